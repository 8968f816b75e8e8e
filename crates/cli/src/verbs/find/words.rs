//! The words of find(1)'s expressions, and the order in which the parser of the command line gets them.

use std::ffi::OsString;
use std::fmt::Write;

/// A word that begins with a dash, without it.
pub struct Word {
    pub name: &'static str,
    /// What follows it.
    pub value: Option<&'static str>,
    about: &'static str,
}

const fn word(name: &'static str, value: Option<&'static str>, about: &'static str) -> Word {
    Word { name, value, about }
}

struct Group {
    heading: &'static str,
    words: &'static [Word],
}

const GROUPS: &[Group] = &[
    Group {
        heading: "Options, which hold for the whole expression wherever they stand",
        words: &[
            word("maxdepth", Some("N"), "Go at most N directories deep; 0: the places only"),
            word("mindepth", Some("N"), "Leave out what is less than N directories deep"),
            word("depth", None, "Take what is in a directory before the directory"),
            word("d", None, "-depth"),
            word("follow", None, "-L"),
            word(
                "regextype",
                Some("TYPE"),
                "How -regex after it is read: emacs, as without it, posix-extended, posix-basic",
            ),
            word("xdev", None, "Accepted: a volume is one file system"),
            word("mount", None, "-xdev"),
            word("noleaf", None, "Accepted"),
        ],
    },
    Group {
        heading: "Tests; N may be +N for more, -N for less",
        words: &[
            word("name", Some("PATTERN"), "The name matches a pattern with *, ? and [...]"),
            word("iname", Some("PATTERN"), "As -name, without regard to case (of ASCII letters)"),
            word("path", Some("PATTERN"), "The whole path in the volume matches; * matches slashes too"),
            word("wholename", Some("PATTERN"), "-path"),
            word("ipath", Some("PATTERN"), "As -path, without regard to case"),
            word("iwholename", Some("PATTERN"), "-ipath"),
            word("regex", Some("EXPRESSION"), "The whole path in the volume matches a regular expression"),
            word("iregex", Some("EXPRESSION"), "As -regex, without regard to case"),
            word("lname", Some("PATTERN"), "A symbolic link whose target matches"),
            word("ilname", Some("PATTERN"), "As -lname, without regard to case"),
            word("type", Some("LETTERS"), "The type is one of f, d, l, p, s, b, c, as in f or f,l"),
            word("xtype", Some("LETTERS"), "As -type, of what a link leads to; l: one that leads nowhere"),
            word(
                "size",
                Some("N[cwbkMG]"),
                "Size in units of 1 byte, 2, 512 (as without a letter), K, M, G; rounded up",
            ),
            word("empty", None, "An empty file or directory"),
            word("mtime", Some("N"), "Last changed N days ago"),
            word("mmin", Some("N"), "Last changed N minutes ago"),
            word("atime", Some("N"), "Last read N days ago"),
            word("amin", Some("N"), "Last read N minutes ago"),
            word("ctime", Some("N"), "Attributes last changed N days ago"),
            word("cmin", Some("N"), "Attributes last changed N minutes ago"),
            word("newer", Some("FILE"), "Changed later than FILE was: IMAGE:/path, or a file of the host"),
            word("anewer", Some("FILE"), "Read later than FILE was changed"),
            word("cnewer", Some("FILE"), "Attributes changed later than FILE was changed"),
            word(NEWER_XY, Some("FILE"), "X is later than FILE's Y: a read, B made, c attributes changed, m changed"),
            word(
                "newermt",
                Some("TIME"),
                "Changed later than TIME: 2026-11-23 14:30, @SECONDS, 3 days ago; so -newerat ...",
            ),
            word(
                "perm",
                Some("MODE"),
                "Permissions are MODE; -MODE: have all its bits; /MODE: some. Octal, or as in u+w,go=",
            ),
            word("executable", None, "Some execute bit is set"),
            word("user", Some("NAME"), "The owner, by name or number"),
            word("group", Some("NAME"), "The group, by name or number"),
            word("uid", Some("N"), "The owner's number"),
            word("gid", Some("N"), "The group's number"),
            word("nouser", None, "The host knows no such user"),
            word("nogroup", None, "The host knows no such group"),
            word("links", Some("N"), "It has N names"),
            word("inum", Some("N"), "The inode number"),
            word("samefile", Some("IMAGE:/path"), "Another name of that file"),
            word("true", None, "Always"),
            word("false", None, "Never"),
        ],
    },
    Group {
        heading: "Actions; without one but -prune, -print of all that passes",
        words: &[
            word("print", None, "Print IMAGE:/path, which the other verbs take"),
            word("print0", None, "Likewise with a zero byte at the end, for xargs -0; nothing is quoted"),
            word("printf", Some("FORMAT"), "Print by a format (below)"),
            word("ls", None, "Print as ls -dils does"),
            word("delete", None, "Remove it; implies -depth, and a directory has to be empty"),
            word("exec", Some("COMMAND ;"), "Run COMMAND, with IMAGE:/path for each {} in it; true if it exits with 0"),
            word("ok", Some("COMMAND ;"), "As -exec, after asking"),
            word("prune", None, "Do not go into this directory"),
            word("quit", None, "Stop"),
        ],
    },
];

const OPERATORS: &str = "Operators, from the strongest: ( EXPR ); ! EXPR or -not EXPR; EXPR EXPR, with -a or -and between them or \
    not; EXPR -o EXPR or -or; EXPR , EXPR. -exec COMMAND {} + runs COMMAND with as many files at once as fit.\n\n\
    While a command runs, the volume is closed, unless it is mounted: so the command may be a verb that changes it. For the same \
    reason, what goes to a pipe is kept back until the search is done.\n\n\
    Directives of -printf: %p IMAGE:/path, %P the path below the place, %H the place, %h its directory, %f its name, %d depth, \
    %y type, %Y the target's type, %l the target, %s size, %b blocks of 512 bytes, %k of 1024, %S how densely it is stored, %m mode, \
    %M as ls has it, %n names, %i inode, %D device number (0), %F file system, %u %U %g %G owner and group, %a %c %t times, and %A %B \
    %C %T with a directive of date(1), or @, or +. Escapes: \\n \\t \\0 \\NNN \\c and those of C.";

/// A section of the help.
pub fn help() -> String {
    let mut text = String::new();
    for group in GROUPS {
        writeln!(text, "{}:", group.heading).expect("a string takes everything");
        for word in group.words {
            let name = format!("-{} {}", word.name, word.value.unwrap_or(""));
            writeln!(text, "  {name:<20} {}", word.about).expect("a string takes everything");
        }
        text.push('\n');
    }
    text + OPERATORS
}

/// Stands for sixteen words; `newermt` is one of four more.
const NEWER_XY: &str = "newerXY";

/// A word without its dash, or two.
pub fn name_of(text: &str) -> Option<&str> {
    text.strip_prefix("--").or_else(|| text.strip_prefix('-'))
}

/// A word of the table, with one dash or two.
pub fn named(text: &str) -> Option<&'static Word> {
    let name = name_of(text)?;
    let name = if newer_letters(name).is_some() { NEWER_XY } else { name };
    GROUPS.iter().flat_map(|group| group.words).find(|word| word.name == name)
}

/// What `newerXY` compares, as two of the letters a, B, c, m; the second one may be t, a time that is written out.
pub fn newer_letters(name: &str) -> Option<(u8, u8)> {
    match name.strip_prefix("newer")?.as_bytes() {
        [x @ (b'a' | b'B' | b'c' | b'm'), y @ (b'a' | b'B' | b'c' | b'm' | b't')] => Some((*x, *y)),
        _ => None,
    }
}

/// Whether what follows is a command, up to `;` or `+`.
pub fn takes_command(word: &Word) -> bool {
    word.value == Some("COMMAND ;")
}

/// Options of the verb that may stand anywhere, and whether a value follows.
const OPTIONS: [(&str, bool); 8] = [
    ("--json", false),
    ("--quiet", false),
    ("-q", false),
    ("--help", false),
    ("-h", false),
    ("--cachesize", true),
    ("--log-device", true),
    // Its value, if it has one, is in the same word.
    ("--wait", false),
];

/// Puts a command line `find OPTIONS PLACES EXPRESSION` in the order that the parser knows: `find OPTIONS PLACES --
/// EXPRESSION`.
pub fn arrange(arguments: Vec<OsString>, verb: usize) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut arranged: Vec<OsString> = arguments.by_ref().take(verb + 1).collect();
    let (mut places, mut expression) = (Vec::new(), Vec::new());
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().unwrap_or("");
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        if let Some((_, has_value)) = OPTIONS.iter().find(|(option, _)| *option == name) {
            let value = if *has_value && name == text { arguments.next() } else { None };
            arranged.push(argument);
            arranged.extend(value);
            continue;
        }
        let is_expression = !expression.is_empty() || text.starts_with('-') || matches!(text, "(" | ")" | "!" | ",");
        match (is_expression, text) {
            (true, "-L" | "-P" | "-H") if expression.is_empty() => arranged.push(argument),
            (true, "--") if expression.is_empty() => {}
            (true, _) => {
                let word = named(name);
                match (word, text.split_once('=')) {
                    (Some(_), Some((_, value))) if text.starts_with("--") => {
                        expression.push(format!("-{}", name_of(name).unwrap_or_default()).into());
                        expression.push(value.into());
                    }
                    (Some(word), _) => {
                        let ends = takes_command(word);
                        let has_value = word.value.is_some() && !ends;
                        expression.push(format!("-{}", name_of(text).unwrap_or_default()).into());
                        expression.extend(if has_value { arguments.next() } else { None });
                        if ends {
                            take_command(&mut arguments, &mut expression);
                        }
                    }
                    (None, _) => expression.push(argument),
                }
            }
            (false, _) => places.push(argument),
        }
    }
    arranged.extend(places);
    if !expression.is_empty() {
        arranged.push("--".into());
        arranged.extend(expression);
    }
    arranged
}

/// The words of a command, with the `;` or `{} +` that ends it.
fn take_command(arguments: &mut impl Iterator<Item = OsString>, expression: &mut Vec<OsString>) {
    for argument in arguments {
        let is_last = argument == ";" || argument == "+" && expression.last().is_some_and(|last| last == "{}");
        expression.push(argument);
        if is_last {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_the_verb_may_stand_anywhere() {
        let verb = <super::super::Find as clap::Args>::augment_args(clap::Command::new("find"));
        for argument in verb.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            let takes_next = argument.get_action().takes_values() && !argument.is_require_equals_set();
            let option = format!("--{long}");
            assert!(OPTIONS.contains(&(&*option, takes_next)), "{option}");
        }
    }

    #[test]
    fn command_lines_are_arranged() {
        for (line, arranged) in [
            ("find v.img", "find v.img"),
            ("find -L v.img w.img:/x -name *.o", "find -L v.img w.img:/x -- -name *.o"),
            ("find v.img -type f --json", "find --json v.img -- -type f"),
            ("find v.img --maxdepth 1 --name=x", "find v.img -- -maxdepth 1 -name x"),
            ("find v.img -name --json", "find v.img -- -name --json"),
            ("find v.img ( -name a -o -name b )", "find v.img -- ( -name a -o -name b )"),
            ("find v.img -exec ls -q {} ; -quit", "find v.img -- -exec ls -q {} ; -quit"),
            ("find v.img -exec a -q {} + -q", "find -q v.img -- -exec a -q {} +"),
            ("find --cachesize 1M v.img -x y", "find --cachesize 1M v.img -- -x y"),
            ("find v.img -L", "find -L v.img"),
            ("find v.img -type f --wait", "find --wait v.img -- -type f"),
            ("find --wait=5 v.img -name x", "find --wait=5 v.img -- -name x"),
        ] {
            let words = format!("myriad {line}").split(' ').map(OsString::from).collect();
            let found: Vec<String> = arrange(words, 1).into_iter().map(|word| word.into_string().unwrap()).collect();
            assert_eq!(found[1..].join(" "), arranged, "{line}");
        }
    }
}
