//! The colours and the marks by which `ls` tells types of files apart.

use crate::pattern::Pattern;
use myriad_engine::{FileType, Stat};
use std::collections::HashMap;

/// When something is shown that suits people more than programs.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    #[value(aliases = ["yes", "force"])]
    Always,
    /// On a terminal
    #[value(aliases = ["tty", "if-tty"])]
    Auto,
    #[value(aliases = ["no", "none"])]
    Never,
}

impl When {
    pub fn holds(self, is_terminal: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Auto => is_terminal,
            Self::Never => false,
        }
    }
}

/// Which marks stand after names.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    None,
    /// `/` after directories
    Slash,
    /// As classify, without `*`
    FileType,
    /// `/` directory, `@` symbolic link, `|` FIFO, `=` socket, `*` program
    Classify,
}

impl Marks {
    pub fn of(self, stat: &Stat) -> &'static str {
        match (self, stat.file_type()) {
            (Self::None, _) => "",
            (_, FileType::Directory) => "/",
            (Self::Slash, _) => "",
            (_, FileType::Symlink) => "@",
            (_, FileType::Fifo) => "|",
            (_, FileType::Socket) => "=",
            (Self::Classify, FileType::File) if stat.mode & 0o111 != 0 => "*",
            _ => "",
        }
    }
}

/// What dircolors(1) calls the kinds of files, with the colours of ls without LS_COLORS; others there have none.
const DEFAULTS: &[(&str, &str)] = &[
    ("di", "01;34"),
    ("ln", "01;36"),
    ("pi", "33"),
    ("so", "01;35"),
    ("bd", "01;33"),
    ("cd", "01;33"),
    ("ex", "01;32"),
    ("su", "37;41"),
    ("sg", "30;43"),
    ("st", "37;44"),
    ("ow", "34;42"),
    ("tw", "30;42"),
];

/// Terminals (TERM) that have colours, as dircolors(1) knows them.
const TERMINALS: &[&str] = &[
    "Eterm",
    "ansi",
    "*color*",
    "con[0-9]*x[0-9]*",
    "cons25",
    "console",
    "cygwin",
    "*direct*",
    "dtterm",
    "gnome",
    "hurd",
    "jfbterm",
    "konsole",
    "kterm",
    "linux",
    "linux-c",
    "mlterm",
    "putty",
    "rxvt*",
    "screen*",
    "st",
    "terminator",
    "tmux*",
    "vt100",
    "xterm*",
];

/// Colours of names, by LS_COLORS as dircolors(1) makes it.
pub struct Colors {
    by_kind: HashMap<String, String>,
    /// Ends of names; the last one that fits counts.
    by_end: Vec<(String, String)>,
    /// Nothing was coloured yet.
    is_first: bool,
}

impl Colors {
    pub fn from_environment() -> Self {
        let text = std::env::var_os("LS_COLORS");
        Self::parse(text.as_deref().and_then(|text| text.to_str()).unwrap_or(""))
    }

    /// As [`Self::from_environment`]; none where nobody says which and nothing says that the terminal has any, as ls(1) has it.
    pub fn for_terminal() -> Option<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_known = |terminal: std::ffi::OsString| {
            let terminal = terminal.as_encoded_bytes();
            TERMINALS.iter().any(|known| Pattern::new(known.as_bytes().to_vec(), false).matches(terminal))
        };
        let has_colors = set("LS_COLORS").is_some() || set("COLORTERM").is_some() || set("TERM").is_some_and(is_known);
        has_colors.then(Self::from_environment)
    }

    /// Entries that are no colour, such as other starts of the escape sequences, are passed over: no more than digits and
    /// semicolons reaches the terminal.
    fn parse(text: &str) -> Self {
        let mut by_kind: HashMap<String, String> =
            DEFAULTS.iter().map(|(kind, color)| ((*kind).to_owned(), (*color).to_owned())).collect();
        let mut by_end = Vec::new();
        for (key, color) in text.split(':').filter_map(|entry| entry.split_once('=')) {
            if color != "target" && !color.bytes().all(|byte| byte.is_ascii_digit() || byte == b';') {
                continue;
            }
            match key.strip_prefix('*') {
                Some(end) => by_end.push((end.to_owned(), color.to_owned())),
                None => drop(by_kind.insert(key.to_owned(), color.to_owned())),
            }
        }
        Self { by_kind, by_end, is_first: true }
    }

    /// The colour of a kind, if it has one.
    fn kind(&self, kind: &str) -> Option<&str> {
        self.by_kind.get(kind).map(String::as_str).filter(|color| !matches!(*color, "" | "0" | "00"))
    }

    /// The colour of a file. `target` is what a symbolic link leads to, if it leads anywhere.
    fn of(&self, name: &[u8], stat: &Stat, target: Option<&Stat>) -> Option<&str> {
        let mode = stat.mode;
        let special = |kinds: &[(bool, &'static str)], or: &'static str| {
            kinds.iter().find_map(|(is_so, kind)| if *is_so { self.kind(kind) } else { None }).or_else(|| self.kind(or))
        };
        match stat.file_type() {
            FileType::Directory => {
                let (sticky, open) = (mode & 0o1000 != 0, mode & 0o002 != 0);
                special(&[(sticky && open, "tw"), (open, "ow"), (sticky, "st")], "di")
            }
            FileType::Symlink => match (target, self.kind("ln")) {
                (None, color) => self.kind("or").or(color.filter(|color| *color != "target")),
                (Some(target), Some("target")) => self.of(name, target, None),
                (Some(_), color) => color,
            },
            FileType::Fifo => self.kind("pi"),
            FileType::Socket => self.kind("so"),
            FileType::BlockDevice => self.kind("bd"),
            FileType::CharDevice => self.kind("cd"),
            FileType::File => {
                let kinds = [
                    (mode & 0o4000 != 0, "su"),
                    (mode & 0o2000 != 0, "sg"),
                    (mode & 0o111 != 0, "ex"),
                    (stat.nlink > 1, "mh"),
                ];
                let by_kind = kinds.iter().find_map(|(is_so, kind)| if *is_so { self.kind(kind) } else { None });
                let fits = |end: &str| {
                    let start = name.len().checked_sub(end.len());
                    start.is_some_and(|start| name[start..].eq_ignore_ascii_case(end.as_bytes()))
                };
                by_kind
                    .or_else(|| self.by_end.iter().rev().find(|(end, _)| fits(end)).map(|(_, color)| color.as_str()))
                    .or_else(|| self.kind("fi"))
            }
        }
    }

    /// Whether it makes a difference what a link leads to. Without, its target has no colour.
    pub fn looks_at_targets(&self) -> bool {
        self.kind("or").is_some() || self.kind("mi").is_some() || self.kind("ln") == Some("target")
    }

    /// What to print before and after the name of a file.
    pub fn around(&mut self, name: &[u8], stat: &Stat, target: Option<&Stat>) -> (String, &'static str) {
        let Some(color) = self.of(name, stat, target).map(str::to_owned) else { return (String::new(), "") };
        // Whatever the terminal showed before us ends at our first colour.
        let reset = if std::mem::take(&mut self.is_first) { "\x1b[0m" } else { "" };
        (format!("{reset}\x1b[{color}m"), "\x1b[0m")
    }

    /// What to print before and after the target of a link that leads nowhere.
    pub fn around_missing(&mut self) -> (String, &'static str) {
        match self.kind("mi").or_else(|| self.kind("or")).map(str::to_owned) {
            Some(color) => (format!("\x1b[{color}m"), "\x1b[0m"),
            None => (String::new(), ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_reach_the_terminal() {
        let colors = Colors::parse("di=7:*.tar=01;31:lc=\x1b]0;:or=31;\x07:*.gz=:fi=0:ln=target");
        assert_eq!(colors.kind("di"), Some("7"));
        assert_eq!(colors.kind("ln"), Some("target"));
        assert_eq!((colors.kind("lc"), colors.kind("or"), colors.kind("fi")), (None, None, None));
        assert_eq!(colors.by_end, [(".tar".into(), "01;31".into()), (".gz".into(), String::new())]);
    }
}
