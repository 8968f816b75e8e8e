//! All options of a volume, in one table: what mkfs fixes, what each mount says, and what can change while the volume is open.
//!
//! A row has everything that is told of its option: name, values (one parser, one printer), when it can be set, its default, a
//! sentence, and whose idea it is. `mkfs`, the words after `-o`, `tune`, `info`, the targets of `bench` and the documents read
//! the table; a new option is a row in `table.rs`, a field of [`MkfsOptions`] or [`MountOptions`], and the code that heeds it
//! (docs/howto/add-an-option.md).
//!
//! Not here: what only concerns the kernel's side of a mount (`allow_other`, `uid=`), which `myriad mount` has in a table of its
//! own, and what only tests set (clock, seed, threads).

mod table;
mod values;

use crate::types::{MkfsOptions, MountOptions};
pub use table::TABLE;
pub use values::{Named, UNSET, Value, Values, parse_size, print_size};

/// Every option of a volume: how it is made, and how it is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub mkfs: MkfsOptions,
    pub mount: MountOptions,
}

/// When an option can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// While the volume is made; it does not remember it.
    Once,
    /// When the volume is made, and never again.
    Mkfs,
    /// When the volume is made, and changed in it later on.
    Kept,
    /// When the volume is made, and by each opening for itself.
    MkfsOrMount,
    /// By each opening, for as long as it lasts.
    Mount,
    /// By each opening, and changed while it lasts.
    Live,
}

impl When {
    pub fn at_mkfs(self) -> bool {
        matches!(self, Self::Once | Self::Mkfs | Self::Kept | Self::MkfsOrMount)
    }

    pub fn at_mount(self) -> bool {
        matches!(self, Self::MkfsOrMount | Self::Mount | Self::Live)
    }

    /// Whether it changes on an open volume.
    pub fn by_tune(self) -> bool {
        matches!(self, Self::Kept | Self::Live)
    }

    /// Who can set it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Once | Self::Mkfs => "mkfs",
            Self::Kept => "mkfs, tune",
            Self::MkfsOrMount => "mkfs, mount",
            Self::Mount => "mount",
            Self::Live => "mount, tune",
        }
    }
}

/// A word that stands for an option with a value, as libfuse and mount(8) have them: `noatime`.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub word: &'static str,
    pub value: &'static str,
    /// What it does, without full stop.
    pub about: &'static str,
}

/// An option.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    pub values: Values,
    pub when: When,
    /// What it says, without full stop.
    pub about: &'static str,
    /// The paper or system that it comes from.
    pub source: &'static str,
    /// What the engine does where no value is given, if that is not a value; else empty.
    pub unset: &'static str,
    /// Other ways to write some of its values.
    pub words: &'static [Word],
    get: fn(&Options) -> Value,
    set: fn(&mut Options, Value),
}

impl Row {
    /// The value of a text, which names the option's values if it is none.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        match text {
            UNSET if !self.unset.is_empty() => Ok(Value::Unset),
            _ => self.values.parse(text),
        }
    }

    pub fn get(&self, options: &Options) -> Value {
        (self.get)(options)
    }

    /// The value is one of this row's.
    pub fn set(&self, options: &mut Options, value: Value) {
        (self.set)(options, value);
    }

    /// What holds unless somebody says otherwise.
    pub fn default(&self) -> String {
        if self.unset.is_empty() { self.get(&Options::default()).to_string() } else { self.unset.into() }
    }

    /// Whether it can be changed on an open volume; if not, why, and the next step.
    fn check_tune(&self) -> Result<(), String> {
        let name = self.name;
        match self.when {
            When::Kept | When::Live => Ok(()),
            When::Once | When::Mkfs => Err(format!("{name} is chosen by mkfs, and stays as long as the volume")),
            When::MkfsOrMount | When::Mount => {
                Err(format!("{name} is chosen by each mount; unmount, and give it to mount: -o {name}=..."))
            }
        }
    }
}

/// The option of a name.
pub fn row(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

/// One setting as people write it, `NAME=VALUE`, `NAME` of a switch, or a word: the option and its value. `None`: the table has
/// no such name.
pub fn read(setting: &str) -> Option<Result<(&'static Row, Value), String>> {
    let (name, value) = match setting.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (setting, None),
    };
    let meant = TABLE.iter().find_map(|row| Some((row, row.words.iter().find(|word| word.word == name)?)));
    let found = row(name);
    let read = match (value, meant, found) {
        (None, Some((row, word)), _) => Ok((row, row.parse(word.value).expect("the table's words have its values"))),
        (Some(text), _, Some(row)) => row.parse(text).map(|value| (row, value)),
        (None, None, Some(row)) if matches!(row.values, Values::Switch) => Ok((row, Value::Switch(true))),
        (None, None, Some(row)) => Err(format!("it needs a value: {name}={}", row.values.hint())),
        (Some(_), Some(_), None) => Err("it takes no value".into()),
        (_, None, None) => return None,
    };
    Some(read)
}

/// Every name that `read` takes.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|row| std::iter::once(row.name).chain(row.words.iter().map(|word| word.word)))
}

/// The known name that is closest to a mistyped one, if any is close.
pub fn nearest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let near = known.map(|known| (distance(name, known), known)).min()?;
    (near.0 <= name.len().max(3) / 3).then_some(near.1)
}

/// The longest known name with which another one begins, as `log-device` does with `logdev`.
pub fn beginning(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    const LEAST: usize = 5;
    let joined = name.replace(['-', '_'], "");
    known.filter(|known| known.len() >= LEAST && joined.starts_with(known)).max_by_key(|known| known.len())
}

/// How many letters have to be put in, taken out or changed to make one word of the other; two that changed places count
/// as one.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut cost = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                cost = cost.min(rows[i - 2][j - 2] + 1);
            }
            row.push(cost);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// What is said of a name that the table does not have.
pub fn unknown(name: &str) -> String {
    unknown_among(name, |_| true)
}

/// As [`unknown`], where only options of some rows can be set.
fn unknown_among(name: &str, can_be_set: impl Fn(&Row) -> bool) -> String {
    match nearest(name, names()) {
        Some(meant) => format!("there is no such option; did you mean `{meant}`?"),
        None => {
            let all: Vec<&str> = TABLE.iter().filter(|row| can_be_set(row)).map(|row| row.name).collect();
            format!("there is no such option; there are {}", all.join(", "))
        }
    }
}

/// Settings for an open volume, all of which `tune` can change; the error names the first that it cannot, and says why.
pub fn read_for_tune<'a>(settings: impl IntoIterator<Item = &'a str>) -> Result<Vec<(&'static Row, Value)>, String> {
    let read_one = |setting: &'a str| {
        let name = setting.split_once('=').map_or(setting, |(name, _)| name);
        // Before its value is looked at, which does not matter then.
        if let Some(row) = row(name) {
            row.check_tune()?;
        }
        let (row, value) = read(setting)
            .unwrap_or_else(|| Err(unknown_among(name, |row| row.check_tune().is_ok())))
            .map_err(|reason| format!("option `{name}`: {reason}"))?;
        row.check_tune().map(|()| (row, value))
    };
    settings.into_iter().map(read_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of values that a row must take, at the ends of its range among them.
    fn samples(values: &Values) -> Vec<String> {
        let chosen = values.names();
        if !chosen.is_empty() {
            return chosen.into_iter().map(str::to_owned).collect();
        }
        match *values {
            Values::Bytes { least, most, .. } => vec![print_size(least), print_size(most)],
            Values::Number { least, most } => vec![least.to_string(), most.to_string()],
            Values::Time { most_ms } => vec!["0".into(), "0.25".into(), "7".into(), (most_ms / 1000).to_string()],
            Values::Text { most_bytes } => vec![String::new(), "x".repeat(most_bytes)],
            _ => vec!["/dev/some".into()],
        }
    }

    /// Each value is read, set, got and written as it was, and nothing else changes with it.
    #[test]
    fn every_row_comes_back_as_it_was() {
        for row in &TABLE {
            let mut texts = samples(&row.values);
            texts.extend((!row.unset.is_empty()).then(|| UNSET.to_owned()));
            for text in texts {
                let value = row.parse(&text).unwrap_or_else(|error| panic!("{}: {error}", row.name));
                assert_eq!(value.to_string(), text, "{}", row.name);
                let mut options = Options::default();
                row.set(&mut options, value.clone());
                // Where it is left to the engine, the engine may have its number at once.
                if value != Value::Unset {
                    assert_eq!(row.get(&options), value, "{}", row.name);
                }
                for other in TABLE.iter().filter(|other| other.name != row.name) {
                    // A profile is a set of others.
                    if row.name != "profile" && other.name != "profile" {
                        assert_eq!(
                            other.get(&options),
                            other.get(&Options::default()),
                            "{} and {}",
                            row.name,
                            other.name
                        );
                    }
                }
            }
            let unset = row.get(&Options::default()) == Value::Unset;
            assert!(!unset || !row.unset.is_empty(), "{}: nothing says what holds without it", row.name);
        }
    }

    #[test]
    fn every_name_is_there_once_and_every_word_has_a_value() {
        let mut seen = std::collections::BTreeSet::new();
        for row in &TABLE {
            assert!(seen.insert(row.name), "{}", row.name);
            assert!(!row.about.is_empty() && !row.source.is_empty() && !row.about.ends_with('.'), "{}", row.name);
            assert!(!row.name.contains(['=', ',']), "{}", row.name);
        }
        for row in &TABLE {
            for word in row.words {
                // A word may have the name of its own option, as in `discard`.
                assert!(word.word == row.name || seen.insert(word.word), "{}", word.word);
                assert!(row.when.at_mount(), "{} is a word after -o", word.word);
                let (meant, value) = read(word.word).unwrap().unwrap();
                assert_eq!((meant.name, value.to_string()), (row.name, word.value.to_owned()));
            }
        }
    }

    #[test]
    fn what_is_beyond_a_range_hears_of_the_range() {
        for row in &TABLE {
            let range = row.values.range();
            let beyond = match row.values {
                Values::Bytes { least, most, powers } => {
                    let below = least.checked_sub(1).map(|bytes| bytes.to_string());
                    let above = most.checked_add(1).map(|bytes| bytes.to_string());
                    below.into_iter().chain(above).chain(powers.then(|| "3000".to_owned())).collect()
                }
                Values::Number { most, .. } => vec!["-1".to_owned(), (most + 1).to_string(), "many".into()],
                Values::Time { .. } => vec!["-1".to_owned(), "1e12".into()],
                _ => continue,
            };
            for text in beyond {
                let refused = row.parse(&text).unwrap_err();
                assert_eq!(refused, format!("`{text}` is not {range}"), "{}", row.name);
            }
        }
    }

    #[test]
    fn settings_are_read_or_refused_by_name() {
        let read = |setting: &str| read(setting).map(|read| read.map(|(row, value)| format!("{}={value}", row.name)));
        for (setting, expected) in [
            ("placement=rotor", "placement=rotor"),
            ("relatime", "atime=relative"),
            ("discard", "discard=always"),
            ("discard=auto", "discard=auto"),
            ("data-checksums", "data-checksums=on"),
            ("nonamecache", "namecache=off"),
            ("ag-size=auto", "ag-size=auto"),
        ] {
            assert_eq!(read(setting), Some(Ok(expected.into())), "{setting}");
        }
        for (setting, expected) in [
            ("placement=far", "`far` is none of dirpref, rotor"),
            ("placement", "it needs a value: placement=dirpref|rotor"),
            ("noatime=1", "it takes no value"),
            ("commit=auto", "`auto` is not a number of seconds from 0 to 1000000000"),
        ] {
            assert_eq!(read(setting), Some(Err(expected.into())), "{setting}");
        }
        assert_eq!(read("colour=red"), None);
        assert_eq!(unknown("placment"), "there is no such option; did you mean `placement`?");
        assert!(unknown("colour").starts_with("there is no such option; there are profile, space, inodes"));
    }

    #[test]
    fn what_tune_cannot_change_is_refused_by_name() {
        let refused = |setting| read_for_tune([setting]).map(drop).unwrap_err();
        assert_eq!(refused("directory=linear"), "directory is chosen by mkfs, and stays as long as the volume");
        assert_eq!(
            refused("cachesize=no"),
            "cachesize is chosen by each mount; unmount, and give it to mount: -o cachesize=..."
        );
        assert!(refused("nonamecache").contains("namecache is chosen by each mount"));
        assert_eq!(refused("comit=5"), "option `comit`: there is no such option; did you mean `commit`?");
        // Only what it could change is listed.
        let listed = refused("colour=red");
        assert!(listed.contains("there are label, ") && !listed.contains("profile"), "{listed}");
        assert_eq!(refused("commit=soon"), "option `commit`: `soon` is not a number of seconds from 0 to 1000000000");
        let changes = read_for_tune(["commit=1", "relatime"]).unwrap();
        assert_eq!(changes.iter().map(|(row, _)| row.name).collect::<Vec<_>>(), ["commit", "atime"]);
    }
}
