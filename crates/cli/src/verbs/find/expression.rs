//! The expression of `find` as a tree, and how it is read from the words of the command line.

use super::exec::Exec;
use super::print;
use super::regular::{Dialect, Regular};
use super::test::{Age, Bound, FileTypes, Permissions, SizeTest, Stamp, number};
use super::words::{self, Word};
use crate::failure::Failure;
use crate::pattern::Pattern;
use crate::show::directive::Format;
use crate::show::{name::Shown, owner, time};
use crate::volume::Place;
use anyhow::Result;
use myriad_engine::Time;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Parentheses and negations within each other: far more than people write, and few enough for the stack.
const DEPTH_MAX: usize = 100;

const HELP: &str = "myriad find --help lists them";

#[derive(Debug, PartialEq)]
pub enum Expression {
    Test(Test),
    Action(Action),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    /// All are evaluated; the last one counts.
    List(Vec<Expression>),
}

#[derive(Debug, PartialEq)]
pub enum Test {
    Always(bool),
    Name(Pattern),
    Path(Pattern),
    Regular(Regular),
    Target(Pattern),
    Type(FileTypes),
    TargetType(FileTypes),
    Size(SizeTest),
    Empty,
    Age(Stamp, Age),
    Newer(Stamp, Moment),
    Permissions(Permissions),
    Executable,
    Uid(Bound<u64>),
    Gid(Bound<u64>),
    NoUser,
    NoGroup,
    Links(Bound<u64>),
    Inode(Bound<u64>),
    /// Its inode is looked up before the search.
    SameFile {
        place: Place,
        ino: Option<u64>,
    },
}

/// What a time is compared with.
#[derive(Debug, PartialEq)]
pub enum Moment {
    At(Time),
    /// A time of a file in a volume, or of the host.
    Place(Place, Stamp),
    Host(PathBuf, Stamp),
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Print,
    Print0,
    Printf(Format),
    Ls,
    Delete,
    Exec(Exec),
    Prune,
    Quit,
}

/// What holds for a whole search.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub depth_max: Option<usize>,
    pub depth_min: usize,
    /// What is in a directory comes before it.
    pub is_depth_first: bool,
    pub follows: bool,
    pub deletes: bool,
    pub runs_commands: bool,
    /// Commands that end in `+`.
    pub batches: usize,
    /// Something decides during the search how it goes on.
    pub steers: bool,
    /// Prints in other forms than one name a line.
    pub prints_own: bool,
}

/// Reads the words after the places.
pub fn parse(words: &[OsString], now: Time) -> Result<(Expression, Plan)> {
    let mut parser = Parser {
        words,
        at: 0,
        depth: 0,
        now,
        plan: Plan::default(),
        acts: false,
        says_depth: false,
        prunes: false,
        dialect: Dialect::default(),
    };
    let mut expression = if words.is_empty() { Expression::Test(Test::Always(true)) } else { parser.list()? };
    if let Some(word) = parser.peek() {
        return Err(match word.as_bytes() {
            b")" => wrong(word, "no parenthesis was opened before it", ""),
            _ => wrong(word, "no part of an expression", "write places before it, and patterns in quotes"),
        });
    }
    if parser.plan.deletes && parser.prunes && !parser.says_depth {
        let what = "takes what is in a directory first, so -prune would keep nothing from it";
        return Err(wrong(OsStr::new("-delete"), what, "write -depth too if that is meant"));
    }
    if !parser.acts {
        expression = Expression::And(vec![expression, Expression::Action(Action::Print)]);
    }
    Ok((expression, parser.plan))
}

fn wrong(word: &OsStr, what: impl Into<String>, next: &str) -> anyhow::Error {
    Failure::usage(format!("find: {}", Shown(word.as_bytes())), what, next).into()
}

struct Parser<'w> {
    words: &'w [OsString],
    at: usize,
    depth: usize,
    now: Time,
    plan: Plan,
    /// There is an action other than -prune.
    acts: bool,
    says_depth: bool,
    prunes: bool,
    /// Of the regular expressions to come.
    dialect: Dialect,
}

impl<'w> Parser<'w> {
    fn peek(&self) -> Option<&'w OsStr> {
        self.words.get(self.at).map(OsString::as_os_str)
    }

    fn take(&mut self, words: &[&str]) -> bool {
        let is_next = self.peek().is_some_and(|next| words.iter().any(|word| next == *word));
        self.at += usize::from(is_next);
        is_next
    }

    fn list(&mut self) -> Result<Expression> {
        let mut parts = vec![self.either()?];
        while self.take(&[","]) {
            parts.push(self.either()?);
        }
        Ok(one_or(parts, Expression::List))
    }

    fn either(&mut self) -> Result<Expression> {
        let mut parts = vec![self.both()?];
        while self.take(&["-o", "-or"]) {
            parts.push(self.both()?);
        }
        Ok(one_or(parts, Expression::Or))
    }

    fn both(&mut self) -> Result<Expression> {
        let mut parts = vec![self.unary()?];
        loop {
            let is_joined = self.take(&["-a", "-and"]);
            let ends = self.peek().is_none_or(|next| [",", "-o", "-or", ")"].iter().any(|word| next == *word));
            if ends && !is_joined {
                return Ok(one_or(parts, Expression::And));
            }
            parts.push(self.unary()?);
        }
    }

    fn unary(&mut self) -> Result<Expression> {
        if self.depth == DEPTH_MAX {
            let word = self.peek().unwrap_or_default();
            return Err(wrong(word, format!("more than {DEPTH_MAX} parentheses and negations within each other"), ""));
        }
        let Some(word) = self.peek() else {
            let before = self.words.last().map_or(OsStr::new(""), OsString::as_os_str);
            return Err(wrong(before, "nothing follows it", "write a test or an action there"));
        };
        self.depth += 1;
        self.at += 1;
        let expression = match word.as_bytes() {
            b"!" | b"-not" => Expression::Not(Box::new(self.unary()?)),
            b"(" if self.peek().is_some_and(|next| next == ")") => {
                return Err(wrong(
                    OsStr::new("( )"),
                    "nothing is between the parentheses",
                    "write a test or an action there",
                ));
            }
            b"(" => {
                let inner = self.list()?;
                if !self.take(&[")"]) {
                    return Err(wrong(word, "it is not closed", "write ) where it ends, quoted for the shell: ')'"));
                }
                inner
            }
            b")" | b"," | b"-o" | b"-or" | b"-a" | b"-and" => {
                return Err(wrong(word, "nothing stands before it", "write a test or an action there"));
            }
            _ => self.word(word)?,
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn word(&mut self, text: &OsStr) -> Result<Expression> {
        let name = text.to_str().and_then(words::name_of).unwrap_or_default();
        let Some(word) = text.to_str().and_then(words::named) else {
            return Err(if text.as_bytes().starts_with(b"-") {
                wrong(text, "no test or action of find", HELP)
            } else {
                wrong(text, "no part of an expression", "write places before it, and patterns in quotes")
            });
        };
        if words::takes_command(word) {
            return self.command(text, word);
        }
        let value = match word.value {
            None => OsStr::new(""),
            Some(value) => {
                let Some(found) = self.peek() else {
                    return Err(wrong(text, "nothing follows it", &format!("write -{} {value}", word.name)));
                };
                self.at += 1;
                found
            }
        };
        if let Some(action) = self.action(word.name, value)? {
            self.acts |= action != Action::Prune;
            self.plan.prints_own |= !matches!(action, Action::Print | Action::Prune | Action::Quit | Action::Delete);
            return Ok(Expression::Action(action));
        }
        let is_option = self.option(word.name, value)?;
        if is_option {
            return Ok(Expression::Test(Test::Always(true)));
        }
        Ok(Expression::Test(self.test(name, value)?))
    }

    fn command(&mut self, text: &OsStr, word: &Word) -> Result<Expression> {
        let start = self.at;
        while let Some(next) = self.peek() {
            self.at += 1;
            let words = &self.words[start..self.at - 1];
            let is_many = next == "+" && words.last().is_some_and(|last| last == "{}");
            if next != ";" && !is_many {
                continue;
            }
            if words.is_empty() || is_many && words.len() == 1 {
                return Err(wrong(
                    text,
                    "no command follows it",
                    "write one, and ; after it, quoted for the shell: ';'",
                ));
            }
            let asks = word.name == "ok";
            if is_many && asks {
                return Err(wrong(text, "it asks about one file at a time", "end the command with ; instead of +"));
            }
            if is_many
                && words[..words.len() - 1].iter().any(|word| word.as_bytes().windows(2).any(|pair| pair == b"{}"))
            {
                return Err(wrong(text, "with + there is one {}, at the end", "end the command with ; instead of +"));
            }
            self.acts = true;
            self.plan.runs_commands = true;
            self.plan.steers = true;
            self.plan.prints_own = true;
            let words = if is_many { &words[..words.len() - 1] } else { words }.to_vec();
            let many = is_many.then_some(self.plan.batches);
            self.plan.batches += usize::from(is_many);
            return Ok(Expression::Action(Action::Exec(Exec { words, many, asks })));
        }
        Err(wrong(text, "the end of its command is missing", "write ; after it, quoted for the shell: ';', or {} +"))
    }

    fn action(&mut self, name: &str, value: &OsStr) -> Result<Option<Action>> {
        Ok(Some(match name {
            "print" => Action::Print,
            "print0" => Action::Print0,
            "printf" => Action::Printf(print::format(value.as_bytes()).map_err(|what| wrong(value, what, ""))?),
            "ls" => Action::Ls,
            "delete" => {
                self.plan.deletes = true;
                self.plan.is_depth_first = true;
                self.plan.steers = true;
                Action::Delete
            }
            "prune" => {
                self.prunes = true;
                self.plan.steers = true;
                Action::Prune
            }
            "quit" => {
                self.plan.steers = true;
                Action::Quit
            }
            _ => return Ok(None),
        }))
    }

    fn option(&mut self, name: &str, value: &OsStr) -> Result<bool> {
        let levels = || {
            let number = value.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let number = number.and_then(|text| text.parse::<usize>().ok());
            number.ok_or_else(|| wrong(value, format!("no number of directories for -{name}"), "write 0 or more"))
        };
        match name {
            "maxdepth" => self.plan.depth_max = Some(levels()?),
            "mindepth" => self.plan.depth_min = levels()?,
            "depth" | "d" => {
                self.plan.is_depth_first = true;
                self.plan.steers = true;
                self.says_depth = true;
            }
            "follow" => self.plan.follows = true,
            "regextype" => {
                let parsed = Dialect::parse(value.to_str().unwrap_or(""));
                self.dialect = parsed.map_err(|what| wrong(OsStr::new("-regextype"), what, ""))?;
            }
            "xdev" | "mount" | "noleaf" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn test(&self, name: &str, value: &OsStr) -> Result<Test> {
        let pattern = |ignore_case| Pattern::new(value.as_bytes().to_vec(), ignore_case);
        let text = value.to_str().unwrap_or("");
        let say = |what: String| wrong(OsStr::new(&format!("-{name}")), what, "");
        let exactly = |number: u32| Bound::parse(&number.to_string()).expect("a number is a bound");
        let age =
            |stamp, unit: fn(&str) -> std::result::Result<Age, String>| unit(text).map(|age| Test::Age(stamp, age));
        if let Some((stamp, reference)) = words::newer_letters(name) {
            let stamp = Stamp::by_letter(stamp).expect("one of the four letters");
            return Ok(Test::Newer(
                stamp,
                match Stamp::by_letter(reference) {
                    Some(reference) => moment_of(value, reference),
                    None => Moment::At(time::parse(text, self.now).map_err(say)?),
                },
            ));
        }
        Ok(match name {
            "name" => Test::Name(pattern(false)),
            "iname" => Test::Name(pattern(true)),
            "path" | "wholename" => Test::Path(pattern(false)),
            "ipath" | "iwholename" => Test::Path(pattern(true)),
            "regex" => Test::Regular(Regular::parse(text, self.dialect, false).map_err(say)?),
            "iregex" => Test::Regular(Regular::parse(text, self.dialect, true).map_err(say)?),
            "lname" => Test::Target(pattern(false)),
            "ilname" => Test::Target(pattern(true)),
            "type" => Test::Type(FileTypes::parse(text).map_err(say)?),
            "xtype" => Test::TargetType(FileTypes::parse(text).map_err(say)?),
            "size" => Test::Size(SizeTest::parse(text).map_err(say)?),
            "empty" => Test::Empty,
            "mtime" => age(Stamp::Modify, Age::days).map_err(say)?,
            "mmin" => age(Stamp::Modify, Age::minutes).map_err(say)?,
            "atime" => age(Stamp::Access, Age::days).map_err(say)?,
            "amin" => age(Stamp::Access, Age::minutes).map_err(say)?,
            "ctime" => age(Stamp::Change, Age::days).map_err(say)?,
            "cmin" => age(Stamp::Change, Age::minutes).map_err(say)?,
            "newer" => Test::Newer(Stamp::Modify, moment_of(value, Stamp::Modify)),
            "anewer" => Test::Newer(Stamp::Access, moment_of(value, Stamp::Modify)),
            "cnewer" => Test::Newer(Stamp::Change, moment_of(value, Stamp::Modify)),
            "perm" => Test::Permissions(Permissions::parse(text).map_err(say)?),
            "executable" => Test::Executable,
            "user" => Test::Uid(exactly(owner::parse_user(text).map_err(say)?)),
            "group" => Test::Gid(exactly(owner::parse_group(text).map_err(say)?)),
            "uid" => Test::Uid(number(text).map_err(say)?),
            "gid" => Test::Gid(number(text).map_err(say)?),
            "nouser" => Test::NoUser,
            "nogroup" => Test::NoGroup,
            "links" => Test::Links(number(text).map_err(say)?),
            "inum" => Test::Inode(number(text).map_err(say)?),
            "samefile" => {
                let place = Place::parse(value).map_err(|error| say(error.to_string()))?;
                Test::SameFile { place, ino: None }
            }
            "true" => Test::Always(true),
            "false" => Test::Always(false),
            _ => return Err(wrong(OsStr::new(&format!("-{name}")), "no test or action of find", HELP)),
        })
    }
}

/// `IMAGE:/path`, or a file of the host.
fn moment_of(value: &OsStr, stamp: Stamp) -> Moment {
    Place::parse(value).map_or_else(|_| Moment::Host(value.into(), stamp), |place| Moment::Place(place, stamp))
}

fn one_or(mut parts: Vec<Expression>, many: fn(Vec<Expression>) -> Expression) -> Expression {
    if parts.len() == 1 { parts.swap_remove(0) } else { many(parts) }
}

impl Expression {
    /// Looks at every command.
    pub fn each_command(&self, look: &mut dyn FnMut(&Exec)) {
        match self {
            Self::Action(Action::Exec(exec)) => look(exec),
            Self::Test(_) | Self::Action(_) => {}
            Self::Not(inner) => inner.each_command(look),
            Self::And(parts) | Self::Or(parts) | Self::List(parts) => {
                parts.iter().for_each(|part| part.each_command(look));
            }
        }
    }

    /// Changes every test.
    pub fn each_test(&mut self, change: &mut dyn FnMut(&mut Test) -> Result<()>) -> Result<()> {
        match self {
            Self::Test(test) => change(test),
            Self::Action(_) => Ok(()),
            Self::Not(inner) => inner.each_test(change),
            Self::And(parts) | Self::Or(parts) | Self::List(parts) => {
                parts.iter_mut().try_for_each(|part| part.each_test(change))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(Expression, Plan)> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>(), 0)
    }

    /// The tree as text, with `t` and `f` for -true and -false, `p` for -print and `x` for -prune.
    fn shape(expression: &Expression) -> String {
        let all = |parts: &[Expression], operator| parts.iter().map(shape).collect::<Vec<_>>().join(operator);
        match expression {
            Expression::Test(Test::Always(holds)) => if *holds { "t" } else { "f" }.into(),
            Expression::Action(Action::Print) => "p".into(),
            Expression::Action(Action::Prune) => "x".into(),
            Expression::Not(inner) => format!("!{}", shape(inner)),
            Expression::And(parts) => format!("({})", all(parts, "")),
            Expression::Or(parts) => format!("({})", all(parts, "|")),
            Expression::List(parts) => format!("({})", all(parts, ",")),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn operators_bind_as_in_find() {
        for (line, expected) in [
            ("", "(tp)"),
            ("-false", "(fp)"),
            ("-true -false -o -true -print", "((tf)|(tp))"),
            ("-true -a ! -false -or -not ! -true", "(((t!f)|!!t)p)"),
            ("-prune -o -print", "(x|p)"),
            ("-prune", "(xp)"),
            ("( -true , -false ) -true", "(((t,f)t)p)"),
            ("-maxdepth 3 -print -o -false", "((tp)|f)"),
        ] {
            let (expression, _) = read(line).unwrap();
            assert_eq!(shape(&expression), expected, "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_names_the_word() {
        for (line, said) in [
            ("(", "find: (: nothing follows it"),
            ("( -true", "find: (: it is not closed"),
            ("( )", "find: ( ): nothing is between"),
            ("-true )", "find: ): no parenthesis"),
            ("-o -true", "find: -o: nothing stands before it"),
            ("-true -o", "find: -o: nothing follows it"),
            ("!", "find: !: nothing follows it"),
            ("-foo", "find: -foo: no test or action"),
            ("-true x", "find: x: no part of an expression; write places before it"),
            ("-name", "find: -name: nothing follows it; write -name PATTERN"),
            ("-exec rm", "find: -exec: the end of its command is missing"),
            ("-exec ;", "find: -exec: no command"),
            ("-exec {} +", "find: -exec: no command"),
            ("-exec cp {} {} +", "find: -exec: with + there is one {}"),
            ("-ok rm {} +", "find: -ok: it asks about one file"),
            ("-maxdepth -1", "find: -1: no number of directories for -maxdepth"),
            ("-delete -prune", "find: -delete: takes what is in a directory first"),
            ("-printf %q", "find: %q: `%q` is no directive"),
            ("-newerXY x", "find: -newerXY: no test or action"),
            ("-newermx x", "find: -newermx: no test or action"),
            ("-newermt soon", "find: -newermt: `soon` is not a time"),
            ("-perm u+q", "find: -perm: `u+q` is not a mode"),
            ("-samefile x", "find: -samefile: `x` names no path"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.to_string().starts_with(said), "{line}: {error}");
            assert_eq!(crate::failure::kind(&error), crate::failure::Kind::Usage, "{line}");
        }
        let deep = "( ".repeat(100_000);
        assert!(read(&deep).unwrap_err().to_string().contains("more than 100 parentheses"));
        assert!(read(&"! ".repeat(100_000)).is_err());
    }
}
