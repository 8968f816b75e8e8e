//! File names are bytes. A pipe gets exactly them; a terminal, a message and JSON need care.

use serde_json::{Map, Value};
use std::fmt::{self, Display, Write};

/// A name for a terminal or a message: itself, or, when it holds control characters or is not UTF-8, in the `$'...'`
/// form that bash, zsh and ksh turn back into the same bytes.
pub struct Shown<'a>(pub &'a [u8]);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !needs_quotes(self.0) {
            return f.write_str(std::str::from_utf8(self.0).expect("needs_quotes is true of other names"));
        }
        f.write_str("$'")?;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\n' => f.write_str("\\n")?,
                    '\t' => f.write_str("\\t")?,
                    '\'' | '\\' => write!(f, "\\{c}")?,
                    c if is_unsafe(c) => {
                        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                            write!(f, "\\{byte:03o}")?;
                        }
                    }
                    c => f.write_char(c)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\{byte:03o}")?;
            }
        }
        f.write_char('\'')
    }
}

/// A name in double quotes, with the escapes of C: what `-Q` shows.
pub fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", escaped(name, |c| c == '"'))
}

/// A name with the escapes of C for control characters, backslashes, bytes that are not UTF-8, and what `also` names.
pub fn escaped(name: &[u8], also: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match escape(c) {
                Some(letter) => text.extend(['\\', letter]),
                None if c == '\\' || also(c) => text.extend(['\\', c]),
                None if is_unsafe(c) => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&octal(byte)));
                }
                None => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|&byte| text.push_str(&octal(byte)));
    }
    text
}

/// A name on one line, as tree(1) shows it: control characters and bytes that are not UTF-8 as `\ooo`.
pub fn masked(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_unsafe(c) {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&octal(byte)));
            } else {
                text.push(c);
            }
        }
        chunk.invalid().iter().for_each(|&byte| text.push_str(&octal(byte)));
    }
    text
}

/// The letter after the backslash for a control character that has one.
fn escape(c: char) -> Option<char> {
    let letters = [('\x07', 'a'), ('\x08', 'b'), ('\x0c', 'f'), ('\n', 'n'), ('\r', 'r'), ('\t', 't'), ('\x0b', 'v')];
    letters.into_iter().find_map(|(known, letter)| (known == c).then_some(letter))
}

fn octal(byte: u8) -> String {
    format!("\\{byte:03o}")
}

/// Columns that a name takes, if each character takes one and control characters none.
pub fn columns(name: &[u8]) -> usize {
    String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).count()
}

/// Whether a terminal could be steered or misled by the name.
pub fn needs_quotes(name: &[u8]) -> bool {
    std::str::from_utf8(name).map_or(true, |name| name.chars().any(is_unsafe))
}

/// Control characters, line separators, and marks that turn the direction of the text around.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Puts a name into a JSON object. One that is not UTF-8 appears with replacement characters, and `KEY_hex` beside it
/// has its exact bytes.
pub fn put(object: &mut Map<String, Value>, key: &str, name: &[u8]) {
    object.insert(key.into(), String::from_utf8_lossy(name).into());
    if std::str::from_utf8(name).is_err() {
        object.insert(format!("{key}_hex"), hex(name).into());
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// A UUID in its usual form.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex = hex(bytes);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// `1 file`, `2 files`, `0 directories`.
pub fn count(number: u64, what: &str) -> String {
    match (number, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {what}s"),
    }
}

/// `directory/name`, with one slash between them.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.is_empty() || directory.ends_with(b"/") || name.is_empty() { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// The last component of a path; `None` for the root, `.` and `..`.
pub fn last(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_dangerous_is_quoted() {
        let cases: &[(&[u8], &str)] = &[
            (b"plain name", "plain name"),
            ("größe".as_bytes(), "größe"),
            (b"it's", "it's"),
            (b"a\nb", "$'a\\nb'"),
            (b"\x1b[2J", "$'\\033[2J'"),
            (b"caf\xe9", "$'caf\\351'"),
            (b"it's\x07", "$'it\\'s\\007'"),
            ("a\u{202e}gpj".as_bytes(), "$'a\\342\\200\\256gpj'"),
        ];
        for (name, shown) in cases {
            assert_eq!(Shown(name).to_string(), *shown);
        }
    }

    #[test]
    fn json_keeps_every_byte() {
        let mut object = Map::new();
        put(&mut object, "path", b"caf\xe9");
        put(&mut object, "name", b"plain");
        assert_eq!(Value::from(object).to_string(), r#"{"path":"caf�","path_hex":"636166e9","name":"plain"}"#);
    }

    #[test]
    fn paths_join_and_split() {
        for (directory, name, joined) in [("/", "a", "/a"), ("/a", "b", "/a/b"), ("/a/", "b", "/a/b"), ("/a", "", "/a")]
        {
            assert_eq!(join(directory.as_bytes(), name.as_bytes()), joined.as_bytes());
        }
        for (path, name) in [("/a/b", Some("b")), ("/a/b//", Some("b")), ("/", None), ("/a/..", None)] {
            assert_eq!(last(path.as_bytes()), name.map(str::as_bytes));
        }
    }

    #[test]
    fn quotes_are_those_of_c() {
        let cases: &[(&[u8], &str)] = &[
            (b"plain", "\"plain\""),
            (b"say \"x\"", "\"say \\\"x\\\"\""),
            (b"a\nb", "\"a\\nb\""),
            (b"\xff", "\"\\377\""),
            (b"back\\slash", "\"back\\\\slash\""),
        ];
        for (name, c) in cases {
            assert_eq!(quoted(name), *c);
        }
        assert_eq!(masked(b"a\nb\\c\xff"), "a\\012b\\c\\377");
    }
}
