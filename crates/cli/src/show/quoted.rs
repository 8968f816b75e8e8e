//! Names as the GNU tools quote them in what `-v` prints: always in quotes that a shell undoes.

use super::name::needs_quotes;
use std::fmt::{self, Display, Write};

/// A name in single quotes; in double ones if it has a single quote and nothing that those would not protect. What is not
/// printable, and what is not UTF-8, stands between in the form `$'\n'`.
pub struct Quoted<'a>(pub &'a [u8]);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Ok(text) = std::str::from_utf8(self.0)
            && text.contains('\'')
            && !needs_quotes(self.0)
            && text.chars().enumerate().all(|(index, c)| is_plain_in_double_quotes(index, c))
        {
            return write!(f, "\"{text}\"");
        }
        f.write_char('\'')?;
        let mut is_escaped = false;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if !needs_quotes(c.encode_utf8(&mut [0; 4]).as_bytes()) {
                    if std::mem::take(&mut is_escaped) {
                        f.write_str("''")?;
                    }
                    match c {
                        '\'' => f.write_str("'\\''")?,
                        c => f.write_char(c)?,
                    }
                    continue;
                }
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    escape(f, &mut is_escaped, byte)?;
                }
            }
            for byte in chunk.invalid() {
                escape(f, &mut is_escaped, *byte)?;
            }
        }
        f.write_char('\'')
    }
}

fn escape(f: &mut fmt::Formatter<'_>, is_escaped: &mut bool, byte: u8) -> fmt::Result {
    if !std::mem::replace(is_escaped, true) {
        f.write_str("'$'")?;
    }
    match byte {
        0x07 => f.write_str("\\a"),
        0x08 => f.write_str("\\b"),
        0x0b => f.write_str("\\v"),
        0x0c => f.write_str("\\f"),
        b'\n' => f.write_str("\\n"),
        b'\r' => f.write_str("\\r"),
        b'\t' => f.write_str("\\t"),
        byte => write!(f, "\\{byte:03o}"),
    }
}

fn is_plain_in_double_quotes(index: usize, c: char) -> bool {
    match c {
        '#' | '~' => index == 0,
        '!' | '"' | '$' | '&' | '(' | ')' | '*' | ';' | '<' | '=' | '>' | '?' | '[' | '\\' | '^' | '`' | '{' | '|'
        | '}' => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside what `printf '%q'`-like tools print: `ls --quoting-style=shell-escape-always`, where that is there.
    #[test]
    fn names_are_quoted_as_gnu_does() {
        let cases: &[(&[u8], &str)] = &[
            (b"a", "'a'"),
            (b"a b", "'a b'"),
            (b"it's", "\"it's\""),
            (b"it's $5", "'it'\\''s $5'"),
            (b"a\nb", "'a'$'\\n''b'"),
            (b"\n", "''$'\\n'"),
            (b"a\x1b[2Jb", "'a'$'\\033''[2Jb'"),
            (b"caf\xe9", "'caf'$'\\351'"),
            ("größe".as_bytes(), "'größe'"),
        ];
        for (name, expected) in cases {
            assert_eq!(Quoted(name).to_string(), *expected);
        }
        let folder = tempfile::tempdir().unwrap();
        for (name, expected) in cases {
            let path = folder.path().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name));
            std::fs::write(path, "").unwrap();
            let ls = std::process::Command::new("ls")
                .args(["--quoting-style=shell-escape-always", "-U"])
                .env("LC_ALL", "C.UTF-8")
                .current_dir(folder.path())
                .output()
                .unwrap();
            let said = String::from_utf8(ls.stdout).unwrap();
            assert!(said.lines().any(|line| line == *expected), "{expected} is not in {said}");
        }
    }
}
