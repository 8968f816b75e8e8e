//! Patterns of fnmatch(3) on bytes: `*`, `?`, `[...]`, and `\` before a byte that means itself. Own code, because the
//! crates for this match text or paths: here a name may be any bytes, `?` is a whole UTF-8 character where there is
//! one, and neither slashes nor braces are special.

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use std::os::unix::ffi::OsStringExt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    bytes: Vec<u8>,
    ignore_case: bool,
}

/// Parser of a pattern as an argument.
pub fn parser() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().map(|text| Pattern::new(text.into_vec(), false)))
}

impl Pattern {
    /// Every pattern is valid: an open `[` means itself.
    pub fn new(bytes: Vec<u8>, ignore_case: bool) -> Self {
        Self { bytes, ignore_case }
    }

    /// Whether all of `name` matches. A `*` that turns out too short is tried one longer, from the last `*` only: what
    /// an earlier one took needs no second try, so the time is at most the product of the lengths.
    pub fn matches(&self, name: &[u8]) -> bool {
        let (mut pattern, mut rest) = (&self.bytes[..], name);
        let mut retry: Option<(&[u8], &[u8])> = None;
        loop {
            if let Some((b'*', after)) = pattern.split_first() {
                retry = Some((after, rest));
                pattern = after;
                continue;
            }
            match self.step(pattern, rest) {
                Some((after, left)) => (pattern, rest) = (after, left),
                None if pattern.is_empty() && rest.is_empty() => return true,
                None => match retry {
                    Some((after, from)) if !from.is_empty() => {
                        (pattern, rest) = (after, &from[1..]);
                        retry = Some((after, rest));
                    }
                    _ => return false,
                },
            }
        }
    }

    /// Matches one element of the pattern; what is left of both.
    fn step<'a>(&self, pattern: &'a [u8], name: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let (&first, after) = pattern.split_first()?;
        let (&byte, left) = name.split_first()?;
        match first {
            b'?' => Some((after, &name[char_len(name)..])),
            b'[' => match set(after) {
                Some((members, negated, after)) => (self.is_in(members, byte) != negated).then_some((after, left)),
                None => (byte == b'[').then_some((after, left)),
            },
            b'\\' if !after.is_empty() => self.is_same(after[0], byte).then_some((&after[1..], left)),
            _ => self.is_same(first, byte).then_some((after, left)),
        }
    }

    fn is_same(&self, a: u8, b: u8) -> bool {
        a == b || self.ignore_case && a.eq_ignore_ascii_case(&b)
    }

    fn is_in(&self, members: &[u8], byte: u8) -> bool {
        let mut rest = members;
        while let Some((&low, after)) = rest.split_first() {
            if let Some((class, after)) = class(rest) {
                if class(byte) {
                    return true;
                }
                rest = after;
                continue;
            }
            let (high, after) = match after {
                [b'-', high, after @ ..] => (*high, after),
                _ => (low, after),
            };
            rest = after;
            let within = |byte: u8| (low..=high).contains(&byte);
            if within(byte)
                || self.ignore_case && (within(byte.to_ascii_lowercase()) || within(byte.to_ascii_uppercase()))
            {
                return true;
            }
        }
        false
    }
}

type Class = fn(u8) -> bool;

/// A class such as `[:alpha:]` at the start, of letters in ASCII, and what follows it.
fn class(text: &[u8]) -> Option<(Class, &[u8])> {
    let classes: [(&[u8], Class); 12] = [
        (b"[:alnum:]", |byte| byte.is_ascii_alphanumeric()),
        (b"[:alpha:]", |byte| byte.is_ascii_alphabetic()),
        (b"[:blank:]", |byte| matches!(byte, b' ' | b'\t')),
        (b"[:cntrl:]", |byte| byte.is_ascii_control()),
        (b"[:digit:]", |byte| byte.is_ascii_digit()),
        (b"[:graph:]", |byte| byte.is_ascii_graphic()),
        (b"[:lower:]", |byte| byte.is_ascii_lowercase()),
        (b"[:print:]", |byte| byte.is_ascii_graphic() || byte == b' '),
        (b"[:punct:]", |byte| byte.is_ascii_punctuation()),
        (b"[:space:]", |byte| byte.is_ascii_whitespace() || byte == 11),
        (b"[:upper:]", |byte| byte.is_ascii_uppercase()),
        (b"[:xdigit:]", |byte| byte.is_ascii_hexdigit()),
    ];
    classes.into_iter().find_map(|(name, holds)| text.strip_prefix(name).map(|rest| (holds, rest)))
}

/// Splits `abc]rest` (after the bracket) into members, negation and rest. A `]` that comes first is a member.
fn set(after: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let negated = matches!(after.first(), Some(b'!' | b'^'));
    let members = &after[usize::from(negated)..];
    let mut end = 0;
    loop {
        // A bracket that ends a class does not end the set.
        let step = class(&members[end..]).map_or(1, |(_, rest)| members.len() - end - rest.len());
        end += step;
        if *members.get(end)? == b']' {
            break;
        }
    }
    Some((&members[..end], negated, &members[end + 1..]))
}

/// Bytes of the character that `name` starts with; 1 if that is not UTF-8. `name` is not empty.
fn char_len(name: &[u8]) -> usize {
    let len = match name[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    if name.get(..len).is_some_and(|bytes| std::str::from_utf8(bytes).is_ok()) { len } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_fnmatch_does() {
        let cases: &[(&str, &str, bool)] = &[
            ("*", "", true),
            ("*", ".hidden", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("*.o", "x.o.o", true),
            ("a*b*c", "aXbXbc", true),
            ("?", "é", true),
            ("??", "é", false),
            ("?", "", false),
            ("[abc]x", "bx", true),
            ("[a-c]", "d", false),
            ("[!a-c]", "d", true),
            ("[^a-c]", "a", false),
            ("[]x]", "]", true),
            ("[a-]", "-", true),
            ("[abc", "[abc", true),
            ("[[:alpha:]_]*", "_x", true),
            ("x[![:digit:]]", "x7", false),
            ("[[:digit:]]", "7", true),
            ("[[:nothing:]]", ":]", true),
            ("[", "[", true),
            ("[]", "[]", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("a\\", "a\\", true),
            ("{a,b}", "{a,b}", true),
            ("", "", true),
            ("", "x", false),
        ];
        for (pattern, name, expected) in cases {
            let pattern = Pattern { bytes: pattern.as_bytes().to_vec(), ignore_case: false };
            assert_eq!(pattern.matches(name.as_bytes()), *expected, "{pattern:?} {name}");
        }
        let any_case = Pattern { bytes: b"re[a-c]dme*".to_vec(), ignore_case: true };
        assert!(any_case.matches(b"README.md"));
        assert!(
            Pattern { bytes: b"a?b".to_vec(), ignore_case: false }.matches(b"a\xffb"),
            "a lone byte is one character"
        );
    }

    #[test]
    fn stars_do_not_blow_up() {
        let pattern = Pattern { bytes: b"*a".repeat(100), ignore_case: false };
        assert!(!pattern.matches(&b"a".repeat(99)));
        assert!(!pattern.matches(&[b"a".repeat(250), b"b".to_vec()].concat()));
    }
}
