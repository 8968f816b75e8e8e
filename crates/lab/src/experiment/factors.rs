//! Options as factors: a row of the engine's table by its name, with the choices it is flipped between.
//!
//! A factor is written `NAME` or `NAME=CHOICE/CHOICE/...`. Without choices it has those of its row, if there are two: `off` and `on`, or the
//! two names that this build has. An option that is added to the table is a factor from then on.

use myriad_engine::options::{self, Options, Row, UNSET, Value, Values};

/// An option and the choices that it takes in turn.
#[derive(Clone, Debug)]
pub struct Factor {
    pub row: &'static Row,
    pub choices: Vec<Value>,
}

/// A factor, or a choice of one, that this build does not have.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Absent {
    /// As it was asked for.
    pub factor: String,
    pub why: String,
}

/// The four factors of Dowse and Malone 2002, each from without to with: soft updates, dirpref, vmiodir, dirhash. Their placement before
/// dirpref is that of FFS until 2001; `placement=rotor` is XFS's, and does not stand in for it.
const PAPER: [&str; 4] = ["order=sync/softdep", "dirpref=old/new", "dircache=bounded/unified", "dirhash=off/on"];

/// Reads factors as people write them; `paper` stands for the four of the paper. What this build lacks goes into the second list.
/// The error is for what nobody can mean: a factor twice, one choice only, an option that takes any number and no choices given.
pub fn factors(texts: &[String]) -> Result<(Vec<Factor>, Vec<Absent>), String> {
    let (mut found, mut absent) = (Vec::<Factor>::new(), Vec::new());
    let texts = texts.iter().flat_map(|text| if text == "paper" { PAPER.to_vec() } else { vec![text.as_str()] });
    for text in texts {
        let (name, choices) = match text.split_once('=') {
            Some((name, choices)) => (name, choices.split('/').collect()),
            None => (text, Vec::new()),
        };
        let mut lacking = |why| absent.push(Absent { factor: text.to_owned(), why });
        let Some(row) = options::row(name) else {
            lacking(options::unknown(name));
            continue;
        };
        if found.iter().any(|factor| factor.row.name == name) {
            return Err(format!("{name} is named twice"));
        }
        if matches!(row.values, Values::Path) {
            return Err(format!("{name}: a volume that is measured has its log in its image"));
        }
        let choices = if choices.is_empty() { own_choices(row)? } else { choices };
        let (mut read, mut lacks) = (Vec::new(), Vec::new());
        for choice in &choices {
            match row.parse(choice) {
                Ok(value) => read.push(value),
                Err(why) => lacks.push(Absent { factor: format!("{name}={choice}"), why }),
            }
        }
        if (1..read.len()).any(|at| read[..at].contains(&read[at])) {
            return Err(format!("{name}: a choice is named twice"));
        }
        if choices.len() < 2 && lacks.is_empty() {
            return Err(format!("{name}: a factor has two choices at least"));
        }
        // Of three orders two can be compared. One alone is no factor.
        match lacks.pop() {
            Some(last) if read.len() < 2 => absent.push(Absent { factor: text.to_owned(), why: last.why }),
            last => {
                absent.extend(lacks.into_iter().chain(last));
                found.push(Factor { row, choices: read });
            }
        }
    }
    Ok((found, absent))
}

fn own_choices(row: &'static Row) -> Result<Vec<&'static str>, String> {
    let choices = match row.values {
        Values::Switch => vec!["off", "on"],
        _ => row.values.names(),
    };
    match choices.len() {
        2 => Ok(choices),
        0 => Err(format!("{0} takes any value: say which, as in {0}=.../...", row.name)),
        _ => Err(format!("{0} has more than two choices: say which, as in {0}={1}", row.name, choices.join("/"))),
    }
}

/// All combinations, the last factor turning fastest: `[]` of none.
pub fn combinations(factors: &[Factor]) -> Vec<Vec<(&'static Row, Value)>> {
    let mut all = vec![Vec::new()];
    for factor in factors {
        let turned = |before: &Vec<(&'static Row, Value)>| {
            let before = before.clone();
            factor.choices.iter().map(move |choice| {
                let mut more = before.clone();
                more.push((factor.row, choice.clone()));
                more
            })
        };
        all = all.iter().flat_map(turned).collect::<Vec<_>>();
    }
    all
}

/// Every option with its value.
pub fn values(options: &Options) -> Vec<(&'static str, String)> {
    options::TABLE.iter().map(|row| (row.name, row.get(options).to_string())).collect()
}

/// What a row is flipped between when nobody says, for lists: `off/on`, `a/b`, or `one of a, b, c`.
pub fn described(row: &'static Row) -> String {
    match own_choices(row) {
        Ok(choices) => choices.join("/"),
        Err(_) if !row.values.names().is_empty() => format!("two or more of {}", row.values.names().join(", ")),
        Err(_) if row.unset.is_empty() => format!("any: {}", row.values.range()),
        Err(_) => format!("any: {}, or {UNSET}", row.values.range()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Vec<Factor>, Vec<Absent>), String> {
        factors(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn four_factors_have_sixteen_combinations() {
        let (found, absent) = read("namecache,data-checksums,placement=rotor/dirpref,avgfpdir=0/64").unwrap();
        assert!(absent.is_empty());
        let all = combinations(&found);
        assert_eq!(all.len(), 16);
        let written: Vec<String> =
            all.iter().map(|one| one.iter().map(|(row, value)| format!("{}={value} ", row.name)).collect()).collect();
        assert_eq!(written[0], "namecache=off data-checksums=off placement=rotor avgfpdir=0 ");
        assert_eq!(written[15], "namecache=on data-checksums=on placement=dirpref avgfpdir=64 ");
        assert_eq!(written.iter().collect::<std::collections::HashSet<_>>().len(), 16);
        assert!(matches!(&combinations(&[])[..], [none] if none.is_empty()));
        assert_eq!(combinations(&read("order=none/log/softdep").unwrap().0).len(), 3);
    }

    /// What is not there is named as such, with the reason; it never takes the place of something else.
    #[test]
    fn what_the_build_lacks_is_absent() {
        let (found, absent) = read("namecache,colour,directory=linear/append,order=log/never").unwrap();
        assert_eq!(found.len(), 1);
        let names: Vec<&str> = absent.iter().map(|absent| absent.factor.as_str()).collect();
        assert_eq!(names, ["colour", "directory=linear/append", "order=log/never"]);
        assert!(absent[0].why.contains("there is no such option"), "{}", absent[0].why);
        assert!(absent[1].why.contains("is not in this build"), "{}", absent[1].why);
        let (found, absent) = read("order=none/ever/log/never").unwrap();
        assert_eq!(found[0].choices, [Value::Name("none"), Value::Name("log")]);
        let names: Vec<&str> = absent.iter().map(|absent| absent.factor.as_str()).collect();
        assert_eq!(names, ["order=ever", "order=never"]);
        let (found, absent) = read("paper").unwrap();
        assert_eq!(found.len() + absent.len(), 4);
        let paper = ["order", "dirpref", "dircache", "dirhash"];
        for (name, written) in paper.iter().zip(PAPER) {
            let here = found.iter().any(|factor| factor.row.name == *name);
            assert!(here != absent.iter().any(|absent| absent.factor == written), "{name} is either here or absent");
        }
        assert!(found.iter().any(|factor| factor.row.name == "dirhash"));
    }

    #[test]
    fn what_nobody_can_mean_is_refused() {
        for (text, why) in [
            ("namecache,namecache=on/off", "namecache is named twice"),
            ("namecache=on", "namecache: a factor has two choices at least"),
            ("namecache=on/on", "namecache: a choice is named twice"),
            ("atime", "atime has more than two choices"),
            ("cachesize", "cachesize takes any value"),
            ("logdev=/a//b", "logdev: a volume that is measured"),
        ] {
            let refused = read(text).map(drop).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }

    /// What the analysis calls a factor, and what a claim holds fixed, are an option and choices of the engine's table, or ones that the
    /// table knows and this build lacks. Nothing is judged by a name that nobody gave.
    #[test]
    fn the_analysis_names_options_that_there_are() {
        let mut named = Vec::new();
        let factors = include_str!("../../../../analysis/myriad_lab/factors.toml");
        for factor in factors.split("[[factor]]").skip(1) {
            let value = |key: &str| {
                let line = factor.lines().find_map(|line| line.strip_prefix(key)).unwrap();
                line.trim_matches([' ', '=', '[', ']', '"']).split("\", \"").next().unwrap().to_owned()
            };
            named.push(format!("{}={}/{}", value("option"), value("off"), value("on")));
        }
        let claims = include_str!("../../../../analysis/myriad_lab/claims.toml");
        for key in ["fixed = { ", "factors = { "] {
            for part in claims.split(key).skip(1) {
                let inside = part.split(" }").next().unwrap();
                named.extend(inside.split(", ").map(|one| one.replace(" = ", "=").replace('"', "")));
            }
        }
        assert!(named.len() > 30, "{named:?}");
        for one in &named {
            let (name, choices) = one.split_once('=').unwrap();
            let row = options::row(name).unwrap_or_else(|| panic!("{one}: {}", options::unknown(name)));
            for choice in choices.split('/') {
                let why = row.parse(choice).err().unwrap_or_default();
                assert!(why.is_empty() || why.contains("is not in this build"), "{one}: {why}");
            }
        }
    }

    /// A row that is added to the table is a factor without anything being told here.
    #[test]
    fn every_row_is_a_factor() {
        for row in options::TABLE.iter().filter(|row| !matches!(row.values, Values::Path)) {
            assert!(!described(row).is_empty(), "{}", row.name);
            if let Ok(choices) = own_choices(row) {
                let (found, absent) = read(row.name).unwrap();
                assert_eq!((found.len(), absent.len(), choices.len()), (1, 0, 2), "{}", row.name);
            }
        }
    }
}
