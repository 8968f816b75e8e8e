//! Formats such as `%-8s %T@\n`: what `stat --printf` and `find -printf` have in common. Which letters there are, and what
//! they stand for, is the verb's.

use super::name::Shown;

/// Columns that a directive may ask for: no line is wider, and it bounds the memory.
const WIDTH_MAX: usize = 4096;

/// A format, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(pub Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As it is.
    Text(Vec<u8>),
    Directive(Directive),
    /// `\c`: nothing comes after it.
    Stop,
}

/// `%`, flags, width, precision, and letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directive {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    other_form: bool,
    width: usize,
    /// `.N`; a dot alone means as many digits as there are.
    pub precision: Option<Option<usize>>,
    /// One letter, or one with what belongs to it, as in `T@` or `Hd`.
    pub letters: String,
}

/// What a directive stands for.
pub enum Value {
    Text(Vec<u8>),
    Number(u64),
    Octal(u64),
    Hex(u64),
    /// A number already in digits, with a sign or a fraction.
    Digits(String),
}

impl Value {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into().into_bytes())
    }
}

/// Whether a letter is a directive, and whether another letter belongs to it, before or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    Alone,
    /// It and the letter that follows.
    WithNext,
    /// None that there is.
    Unknown,
}

impl Format {
    /// Reads a format. `letter` says what a letter is; `complete` which pairs there are; escapes are read only if asked for.
    pub fn parse(
        text: &[u8],
        with_escapes: bool,
        letter: impl Fn(char) -> Letter,
        is_pair: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            match byte {
                b'\\' if with_escapes => {
                    let (escape, after) = escape(after);
                    match escape {
                        Some(bytes) => plain.extend(bytes),
                        None => {
                            pieces.push(Piece::Text(std::mem::take(&mut plain)));
                            pieces.push(Piece::Stop);
                            return Ok(Self(pieces));
                        }
                    }
                    rest = after;
                }
                b'%' if after.first() == Some(&b'%') => {
                    plain.push(b'%');
                    rest = &after[1..];
                }
                b'%' => {
                    let (directive, after) = Directive::parse(after, &letter, &is_pair)?;
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    pieces.push(Piece::Directive(directive));
                    rest = after;
                }
                _ => {
                    plain.push(byte);
                    rest = after;
                }
            }
        }
        pieces.push(Piece::Text(plain));
        Ok(Self(pieces))
    }

    /// Whether some directive has these letters.
    pub fn has(&self, letters: &str) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Directive(directive) if directive.letters == letters))
    }

    /// The bytes, with `value` asked for each directive. For a terminal, text that could steer it is put in quotes.
    pub fn fill<E>(
        &self,
        for_terminal: bool,
        mut value: impl FnMut(&Directive) -> Result<Value, E>,
    ) -> Result<Vec<u8>, E> {
        let mut bytes = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => bytes.extend(text),
                Piece::Directive(directive) => {
                    let value = match value(directive)? {
                        Value::Text(text) if for_terminal => Value::text(Shown(&text).to_string()),
                        other => other,
                    };
                    bytes.extend(directive.pad(value));
                }
                Piece::Stop => break,
            }
        }
        Ok(bytes)
    }
}

impl Directive {
    fn parse(
        text: &[u8],
        letter: impl Fn(char) -> Letter,
        is_pair: impl Fn(&str) -> bool,
    ) -> Result<(Self, &[u8]), String> {
        let mut directive = Self::default();
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            match byte {
                b'-' => directive.left = true,
                b'0' => directive.zero = true,
                b'+' => directive.plus = true,
                b' ' => directive.space = true,
                b'#' => directive.other_form = true,
                _ => break,
            }
            rest = after;
        }
        let (width, after) = number(rest)?;
        directive.width = width.unwrap_or(0);
        rest = after;
        if let Some(after) = rest.strip_prefix(b".") {
            let (precision, after) = number(after)?;
            directive.precision = Some(precision);
            rest = after;
        }
        let mut letters = String::from_utf8_lossy(&rest[..rest.len().min(2)]).chars().collect::<Vec<_>>().into_iter();
        let first = letters.next().ok_or("the format ends within a directive; write %% for a percent sign")?;
        let mut pair = String::from(first);
        pair.extend(letters.next());
        let known = letter(first);
        let unknown = || format!("`%{}` is no directive; the manual page lists them", first.escape_debug());
        if known == Letter::WithNext && pair.len() == 2 && is_pair(&pair) {
            directive.letters = pair;
            return Ok((directive, &rest[2..]));
        }
        // A letter may be a directive by itself and with another one: `%H` and `%Hd`.
        if known == Letter::Unknown || known == Letter::WithNext && !is_pair(&String::from(first)) {
            return Err(unknown());
        }
        directive.letters = first.into();
        Ok((directive, &rest[1..]))
    }

    fn pad(&self, value: Value) -> Vec<u8> {
        let (sign, mut body, is_number) = match value {
            Value::Text(mut text) => {
                if let Some(Some(most)) = self.precision {
                    text.truncate(most);
                }
                ("", text, false)
            }
            Value::Number(number) => {
                let sign = if self.plus {
                    "+"
                } else if self.space {
                    " "
                } else {
                    ""
                };
                (sign, number.to_string().into_bytes(), true)
            }
            Value::Octal(number) => {
                let prefix = if self.other_form && number != 0 { "0" } else { "" };
                ("", format!("{prefix}{number:o}").into_bytes(), true)
            }
            Value::Hex(number) => {
                (if self.other_form && number != 0 { "0x" } else { "" }, format!("{number:x}").into_bytes(), true)
            }
            Value::Digits(digits) => match digits.strip_prefix('-') {
                Some(digits) => ("-", digits.as_bytes().to_vec(), true),
                None => ("", digits.into_bytes(), true),
            },
        };
        let missing = self.width.saturating_sub(body.len() + sign.len());
        let mut bytes = sign.as_bytes().to_vec();
        if self.left {
            bytes.append(&mut body);
            bytes.extend(vec![b' '; missing]);
        } else if self.zero && is_number {
            bytes.extend(vec![b'0'; missing]);
            bytes.append(&mut body);
        } else {
            bytes.splice(0..0, vec![b' '; missing]);
            bytes.append(&mut body);
        }
        bytes
    }
}

/// Digits at the start, if there are any.
fn number(text: &[u8]) -> Result<(Option<usize>, &[u8]), String> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    if end == 0 {
        return Ok((None, text));
    }
    let number = std::str::from_utf8(&text[..end]).ok().and_then(|digits| digits.parse().ok());
    match number.filter(|&number| number <= WIDTH_MAX) {
        Some(number) => Ok((Some(number), &text[end..])),
        None => Err(format!("a width of more than {WIDTH_MAX}")),
    }
}

/// What follows a backslash: the bytes it means, `None` for `\c`, and the rest.
fn escape(text: &[u8]) -> (Option<Vec<u8>>, &[u8]) {
    let Some((&first, after)) = text.split_first() else { return (Some(b"\\".to_vec()), text) };
    let byte = match first {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'e' => 27,
        b'\\' | b'"' => first,
        b'c' => return (None, after),
        b'x' if after.first().is_some_and(u8::is_ascii_hexdigit) => {
            let digits = after.iter().take(2).take_while(|byte| byte.is_ascii_hexdigit()).count();
            let text = std::str::from_utf8(&after[..digits]).expect("digits are text");
            return (Some(vec![u8::from_str_radix(text, 16).expect("two digits are a byte")]), &after[digits..]);
        }
        b'0'..=b'7' => {
            let digits = text.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            let value = text[..digits].iter().fold(0_u16, |value, digit| value * 8 + u16::from(digit - b'0'));
            return (Some(vec![value as u8]), &text[digits..]);
        }
        _ => return (Some(vec![b'\\', first]), after),
    };
    (Some(vec![byte]), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `%n` a name, `%s` a number, `%a` octal, `%H` alone and `%Hd`, `%T` only with what follows.
    fn read(text: &str) -> Result<Format, String> {
        let letter = |c| match c {
            'n' | 's' | 'a' => Letter::Alone,
            'H' | 'T' => Letter::WithNext,
            _ => Letter::Unknown,
        };
        Format::parse(text.as_bytes(), true, letter, |pair| matches!(pair, "H" | "Hd" | "T@"))
    }

    fn fill(text: &str) -> String {
        fill_for(text, false)
    }

    fn fill_for(text: &str, for_terminal: bool) -> String {
        let bytes = read(text).unwrap().fill(for_terminal, |directive| {
            Ok::<_, ()>(match directive.letters.as_str() {
                "n" => Value::text("name"),
                "s" => Value::Number(42),
                "a" => Value::Octal(0o755),
                "T@" => Value::Digits("-1.5".into()),
                "Hd" => Value::text("a\x1b[2J"),
                letters => Value::text(format!("<{letters}>")),
            })
        });
        String::from_utf8(bytes.unwrap()).unwrap()
    }

    #[test]
    fn directives_are_padded_as_printf_pads() {
        for (format, text) in [
            ("%n %s\\n", "name 42\n"),
            ("%6n|%-6n|%.2n", "  name|name  |na"),
            ("%5s|%05s|%-5s|%+s|% s", "   42|00042|42   |+42| 42"),
            ("%#a %a %6a", "0755 755    755"),
            ("%H%Hx", "<H><H>x"),
            ("%Hd", "a\x1b[2J"),
            ("%T@ %08T@", "-1.5 -00001.5"),
            ("100%% \\x \\x4a \\101\\0", "100% \\x J A\0"),
            ("stop\\c here", "stop"),
            ("end\\", "end\\"),
        ] {
            assert_eq!(fill(format), text, "{format}");
        }
    }

    #[test]
    fn names_do_not_steer_a_terminal() {
        assert_eq!(fill_for("%n %Hd %s\\n", true), "name $'a\\033[2J' 42\n");
    }

    #[test]
    fn what_is_no_directive_is_refused() {
        for format in ["%", "%q", "%-", "%5", "%Tx", "%T", "%99999999999999999999s", "%5000s", "%\u{e9}"] {
            assert!(read(format).is_err(), "{format}");
        }
    }
}
