//! What an option may have as its value: one parser and one printer for each kind.

use myriad_format::choices::{PROFILES, Profile, Seam};
use std::fmt;
use std::path::PathBuf;

/// A value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// One of the names that the option knows.
    Name(&'static str),
    Bytes(u64),
    Number(u64),
    /// In milliseconds.
    Time(u64),
    Switch(bool),
    Text(String),
    Path(PathBuf),
    /// Left to the engine: [`Row::unset`](super::Row::unset) says what it does then.
    Unset,
}

/// One of the names that an option knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: &'static str,
    /// What it does, without full stop; empty if the name says it.
    pub about: &'static str,
}

/// The values that an option may have.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    Names(&'static [Named]),
    /// The choices of a seam that are in this build.
    Seam(&'static Seam),
    /// The profiles that are in this build.
    Profile,
    Bytes {
        least: u64,
        most: u64,
        /// Powers of two only.
        powers: bool,
    },
    Number {
        least: u64,
        most: u64,
    },
    /// In seconds, with fractions.
    Time {
        most_ms: u64,
    },
    /// `on` or `off`.
    Switch,
    Text {
        most_bytes: usize,
    },
    Path,
}

/// How [`Value::Unset`] is written.
pub const UNSET: &str = "auto";

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => out.write_str(name),
            Self::Bytes(bytes) => out.write_str(&print_size(*bytes)),
            Self::Number(number) => write!(out, "{number}"),
            Self::Time(ms) if ms % 1000 == 0 => write!(out, "{}", ms / 1000),
            Self::Time(ms) => out.write_str(format!("{}.{:03}", ms / 1000, ms % 1000).trim_end_matches('0')),
            Self::Switch(on) => out.write_str(if *on { "on" } else { "off" }),
            Self::Text(text) => out.write_str(text),
            Self::Path(path) => write!(out, "{}", path.display()),
            Self::Unset => out.write_str(UNSET),
        }
    }
}

impl Values {
    /// The value of a text; the error says which there are.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        match *self {
            Self::Names(names) => match names.iter().find(|known| known.name == text) {
                Some(known) => Ok(Value::Name(known.name)),
                None => Err(format!("`{text}` is none of {}", self.names().join(", "))),
            },
            Self::Seam(seam) => seam.parse(text).map(|choice| Value::Name(choice.name)),
            Self::Profile => Profile::parse(text).map(|profile| Value::Name(profile.name)),
            Self::Bytes { least, most, powers } => {
                let bytes = parse_size(text)?;
                if (least..=most).contains(&bytes) && (!powers || bytes.is_power_of_two()) {
                    return Ok(Value::Bytes(bytes));
                }
                Err(format!("`{text}` is not {}", self.range()))
            }
            Self::Number { least, most } => {
                let number = text.parse().ok().filter(|number| (least..=most).contains(number));
                number.map(Value::Number).ok_or_else(|| format!("`{text}` is not {}", self.range()))
            }
            Self::Time { most_ms } => {
                let most = most_ms as f64 / 1000.0;
                let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=most).contains(seconds));
                // Any time at all is not none.
                let ms = seconds.map(|seconds| (seconds * 1000.0).ceil() as u64);
                ms.map(Value::Time).ok_or_else(|| format!("`{text}` is not {}", self.range()))
            }
            Self::Switch => match text {
                "on" => Ok(Value::Switch(true)),
                "off" => Ok(Value::Switch(false)),
                _ => Err(format!("`{text}` is none of on, off")),
            },
            Self::Text { .. } if text.contains('\0') => Err("it may hold no zero byte".into()),
            Self::Text { most_bytes } if text.len() > most_bytes => {
                Err(format!("it has at most {most_bytes} bytes, `{text}` has {}", text.len()))
            }
            Self::Text { .. } => Ok(Value::Text(text.into())),
            Self::Path if text.is_empty() => Err("it is a path, and may not be empty".into()),
            Self::Path => Ok(Value::Path(text.into())),
        }
    }

    /// The names among which one is chosen; none for values that are measured.
    pub fn names(&self) -> Vec<&'static str> {
        match self {
            Self::Names(names) => names.iter().map(|known| known.name).collect(),
            Self::Seam(seam) => {
                seam.choices.iter().filter(|choice| choice.is_built).map(|choice| choice.name).collect()
            }
            Self::Profile => {
                let built = PROFILES.iter().filter(|profile| Profile::parse(profile.name).is_ok());
                built.map(|profile| profile.name).collect()
            }
            Self::Switch => vec!["on", "off"],
            _ => Vec::new(),
        }
    }

    /// What stands for a value where the option is explained: its names, or a word.
    pub fn hint(&self) -> String {
        match self {
            Self::Bytes { .. } => "SIZE".into(),
            Self::Number { .. } => "COUNT".into(),
            Self::Time { .. } => "SECONDS".into(),
            Self::Text { .. } => "TEXT".into(),
            Self::Path => "PATH".into(),
            _ => self.names().join("|"),
        }
    }

    /// The names with what they mean; empty for values that are measured.
    pub fn explained(&self) -> String {
        let explain = |(name, about): (&str, &str)| match about {
            "" => name.to_owned(),
            about => format!("{name} ({about})"),
        };
        let pairs: Vec<(&str, &str)> = match self {
            Self::Names(names) => names.iter().map(|known| (known.name, known.about)).collect(),
            Self::Seam(seam) => {
                let built = seam.choices.iter().filter(|choice| choice.is_built);
                built.map(|choice| (choice.name, choice.about)).collect()
            }
            _ => Vec::new(),
        };
        pairs.into_iter().map(explain).collect::<Vec<_>>().join(", ")
    }

    /// Which values there are, in words.
    pub fn range(&self) -> String {
        match *self {
            Self::Bytes { least, most, powers } => {
                let kind = if powers { "a power of two" } else { "a size" };
                format!("{kind} from {} to {}", print_size(least), print_size(most))
            }
            Self::Number { least, most } => format!("a number from {least} to {most}"),
            Self::Time { most_ms } => format!("a number of seconds from 0 to {}", most_ms / 1000),
            Self::Text { most_bytes } => format!("a text of at most {most_bytes} bytes"),
            Self::Path => "a path".into(),
            _ => self.names().join(", "),
        }
    }
}

const UNITS: &[u8] = b"KMGTPE";

/// `4096`, `64K`, `64KiB`, `1.5G`: powers of 1024; `64KB`: powers of 1000, as dd(1) and its family count.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let usage = || format!("`{text}` is not a size; write a number and K, M, G, T, P or E, as in 64M or 1.5G");
    let multiplier = multiplier(suffix.trim_start()).ok_or_else(usage)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Nine digits are finer than any unit needs, and fit the arithmetic.
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') || (number.contains('.') && fraction.is_empty())
    {
        return Err(usage());
    }
    let too_large = || format!("`{text}` is more than 16E, the largest number of bytes that can be told");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let scaled =
        u128::from(fraction.parse::<u64>().unwrap_or(0)) * u128::from(multiplier) / 10_u128.pow(fraction.len() as u32);
    whole.checked_mul(multiplier).and_then(|bytes| bytes.checked_add(scaled as u64)).ok_or_else(too_large)
}

fn multiplier(suffix: &str) -> Option<u64> {
    let upper = suffix.to_ascii_uppercase();
    let (base, unit) = match upper.as_bytes() {
        [] | [b'B'] => return Some(1),
        [unit] | [unit, b'I', b'B'] | [unit, b'I'] => (1024_u64, unit),
        [unit, b'B'] => (1000, unit),
        _ => return None,
    };
    let power = UNITS.iter().position(|known| known == unit)? as u32 + 1;
    Some(base.pow(power))
}

/// A size as `parse_size` reads it, exactly: in the largest unit of which it is a multiple.
pub fn print_size(bytes: u64) -> String {
    let power = (bytes.trailing_zeros() / 10).min(UNITS.len() as u32);
    match power {
        _ if bytes == 0 => "0".into(),
        0 => bytes.to_string(),
        power => format!("{}{}", bytes >> (10 * power), char::from(UNITS[power as usize - 1])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_back_as_they_were() {
        for (bytes, text) in [(0, "0"), (1, "1"), (1000, "1000"), (4096, "4K"), (3 << 19, "1536K"), (1 << 60, "1E")] {
            assert_eq!(print_size(bytes), text);
            assert_eq!(parse_size(text), Ok(bytes));
        }
        assert_eq!(print_size(u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn times_come_back_as_they_were() {
        let times = Values::Time { most_ms: 1_000_000_000_000 };
        for (text, ms, printed) in [
            ("0", 0, "0"),
            ("5", 5000, "5"),
            ("0.5", 500, "0.5"),
            ("1.020", 1020, "1.02"),
            ("0.0001", 1, "0.001"),
            ("10", 10_000, "10"),
        ] {
            assert_eq!(times.parse(text), Ok(Value::Time(ms)));
            assert_eq!(Value::Time(ms).to_string(), printed);
        }
        for text in ["-1", "NaN", "inf", "", "soon", "1e10"] {
            assert_eq!(
                times.parse(text).unwrap_err(),
                format!("`{text}` is not a number of seconds from 0 to 1000000000")
            );
        }
    }
}
