//! `-regex`: the regular expressions of find(1), put into the words of the `regex` crate. Its time is bounded by the lengths of
//! pattern and path, whatever the pattern; in exchange there are no back-references.

use regex::bytes::{Regex, RegexBuilder};

/// How groups, alternatives and repetitions are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `\(a\|b\)+`
    #[default]
    Emacs,
    /// `(a|b)+`
    Extended,
    /// `\(a\|b\)\+`
    Basic,
}

impl Dialect {
    /// By the word after `-regextype`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "emacs" | "findutils-default" => Ok(Self::Emacs),
            "posix-extended" | "posix-egrep" | "egrep" => Ok(Self::Extended),
            "posix-basic" | "grep" | "ed" | "sed" => Ok(Self::Basic),
            _ => Err(format!(
                "`{text}` is no type; write emacs, posix-extended, posix-egrep, egrep, posix-basic, grep or sed"
            )),
        }
    }

    /// Whether a character is an operator after a backslash, or without one.
    fn is_operator(self, c: char, is_escaped: bool) -> bool {
        match (self, c) {
            (Self::Emacs, '+' | '?') => !is_escaped,
            (Self::Emacs, '{' | '}') => false,
            (Self::Emacs | Self::Basic, '(' | ')' | '|') | (Self::Basic, '{' | '}' | '+' | '?') => is_escaped,
            (Self::Extended, '(' | ')' | '|' | '{' | '}' | '+' | '?') => !is_escaped,
            (_, '*' | '.' | '^' | '$') => !is_escaped,
            _ => false,
        }
    }
}

/// An expression that has to match a whole path.
#[derive(Clone, Debug)]
pub struct Regular(Regex);

impl PartialEq for Regular {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Regular {
    pub fn parse(text: &str, dialect: Dialect, ignore_case: bool) -> Result<Self, String> {
        let wrong = |what: &str| format!("`{text}` is no regular expression: {what}");
        let pattern = format!(r"\A(?:{})\z", translated(text, dialect).map_err(|what| wrong(&what))?);
        let built = RegexBuilder::new(&pattern).case_insensitive(ignore_case).dot_matches_new_line(true).build();
        // The last line says what is wrong; those before it point into our translation.
        built.map(Self).map_err(|error| {
            let error = error.to_string();
            wrong(error.lines().last().unwrap_or_default().trim_start_matches("error: "))
        })
    }

    pub fn matches(&self, path: &[u8]) -> bool {
        self.0.is_match(path)
    }
}

fn translated(text: &str, dialect: Dialect) -> Result<String, String> {
    let mut pattern = String::new();
    let mut rest = text.chars().peekable();
    // Nothing stands here that could be repeated.
    let mut is_start = true;
    while let Some(c) = rest.next() {
        let (c, is_escaped) = match c {
            '\\' => (rest.next().ok_or("it ends with a backslash")?, true),
            '[' => {
                pattern.push_str(&set(&mut rest)?);
                is_start = false;
                continue;
            }
            c => (c, false),
        };
        if dialect.is_operator(c, is_escaped) && !(is_start && matches!(c, '*' | '+' | '?')) {
            pattern.push(c);
            is_start = matches!(c, '(' | '|' | '^');
            continue;
        }
        is_start = false;
        match (is_escaped, c) {
            (true, '1'..='9') => return Err("it refers back to a group, which find cannot do here".into()),
            (true, 'w' | 'W' | 'b' | 'B' | 's' | 'S') => pattern.extend(['\\', c]),
            (true, '<') => pattern.push_str(r"\b{start}"),
            (true, '>') => pattern.push_str(r"\b{end}"),
            (true, '`') => pattern.push_str(r"\A"),
            (true, '\'') => pattern.push_str(r"\z"),
            (_, c) => pattern.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    Ok(pattern)
}

/// A set after its opening bracket. In it, a backslash is one, and only `]`, `-`, `^` and classes are special.
fn set(rest: &mut std::iter::Peekable<std::str::Chars>) -> Result<String, String> {
    let mut set = String::from("[");
    if rest.next_if_eq(&'^').is_some() {
        set.push('^');
    }
    let mut is_first = true;
    loop {
        match rest.next().ok_or("a bracket is not closed")? {
            ']' if !is_first => {
                set.push(']');
                return Ok(set);
            }
            '[' if rest.peek() == Some(&':') => {
                set.push('[');
                // Up to the bracket that closes the class.
                for c in rest.by_ref() {
                    set.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            c @ ('[' | ']' | '\\' | '&' | '~' | '^') => set.extend(['\\', c]),
            c => set.push(c),
        }
        is_first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_write_the_same_in_other_ways() {
        use Dialect::*;
        for (dialect, pattern, path, matches) in [
            (Emacs, r".*\.\(c\|h\)", "/a/b.c", true),
            (Emacs, r".*\.\(c\|h\)", "/a/b.cc", false),
            (Emacs, "/a+", "/aaa", true),
            (Emacs, r"/a\+", "/a+", true),
            (Emacs, "/(a)", "/(a)", true),
            (Emacs, "/a{2}", "/a{2}", true),
            (Extended, r".*\.(c|h)", "/x.h", true),
            (Extended, "/a{2}", "/aa", true),
            (Extended, r"/\(a\)", "/(a)", true),
            (Basic, r"/\(a\|b\)\{2\}", "/ab", true),
            (Basic, "/a+", "/a+", true),
            (Emacs, r"/[]\a^-]*", r"/]\a^-", true),
            (Emacs, "/[^[:digit:]]", "/7", false),
            (Emacs, "/[a&&b]", "/&", true),
            (Emacs, "*x", "*x", true),
            (Emacs, ".*b", "/a\nb", true),
            (Emacs, "b", "/a/b", false),
        ] {
            let found = Regular::parse(pattern, dialect, false).unwrap();
            assert_eq!(found.matches(path.as_bytes()), matches, "{pattern} {path}");
        }
        assert!(Regular::parse(".*README", Emacs, true).unwrap().matches(b"/readme"));
        for pattern in ["[a", r"\(a", r"a\", r"\(a\)\1", "[b-a]"] {
            assert!(Regular::parse(pattern, Emacs, false).is_err(), "{pattern}");
        }
        assert!(Dialect::parse("perl").is_err());
    }
}
