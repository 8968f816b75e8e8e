//! The tests of `find`: what their values are, and when they hold.

use crate::show::mode;
use myriad_engine::{FileType, Stat, Time};
use std::cmp::Ordering;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// `N`, `+N` or `-N`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound<N> {
    ordering: Ordering,
    number: N,
}

impl<N: std::str::FromStr + PartialOrd> Bound<N> {
    pub fn parse(text: &str) -> Option<Self> {
        let (ordering, digits) = match text.as_bytes().first()? {
            b'+' => (Ordering::Greater, &text[1..]),
            b'-' => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        let is_plain = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        let number = if is_plain { digits.parse().ok() } else { None }?;
        Some(Self { ordering, number })
    }

    pub fn holds(&self, value: &N) -> bool {
        value.partial_cmp(&self.number) == Some(self.ordering)
    }
}

/// `-uid`, `-gid`, `-links`, `-inum`.
pub fn number(text: &str) -> Result<Bound<u64>, String> {
    Bound::parse(text).ok_or_else(|| format!("`{text}` is not a number, nor one with + or - before it"))
}

/// `-size`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeTest {
    bound: Bound<u64>,
    unit: u64,
}

impl SizeTest {
    pub fn parse(text: &str) -> Result<Self, String> {
        let units = [('c', 1), ('w', 2), ('b', 512), ('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
        let unit = units.into_iter().find(|(letter, _)| text.ends_with(*letter));
        let (number, unit) = unit.map_or((text, 512), |(_, unit)| (&text[..text.len() - 1], unit));
        Bound::parse(number)
            .map(|bound| Self { bound, unit })
            .ok_or_else(|| format!("`{text}` is not a size; write a number, + or - before it, c, k, M or G after it"))
    }

    pub fn holds(self, bytes: u64) -> bool {
        self.bound.holds(&bytes.div_ceil(self.unit))
    }
}

/// Which of a file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    Access,
    Birth,
    Change,
    Modify,
}

impl Stamp {
    /// By the letter that `-newerXY` has for it.
    pub fn by_letter(letter: u8) -> Option<Self> {
        match letter {
            b'a' => Some(Self::Access),
            b'B' => Some(Self::Birth),
            b'c' => Some(Self::Change),
            b'm' => Some(Self::Modify),
            _ => None,
        }
    }

    /// Of a file of the host.
    pub fn of_host(self, metadata: &Metadata) -> io::Result<Time> {
        let (seconds, nanoseconds) = match self {
            Self::Access => (metadata.atime(), metadata.atime_nsec()),
            Self::Change => (metadata.ctime(), metadata.ctime_nsec()),
            Self::Modify => (metadata.mtime(), metadata.mtime_nsec()),
            Self::Birth => {
                let made = metadata.created()?.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
                return Ok(i64::try_from(made.as_nanos()).unwrap_or(i64::MAX));
            }
        };
        Ok(seconds.saturating_mul(SECOND_NS).saturating_add(nanoseconds))
    }

    pub fn of(self, stat: &Stat) -> Time {
        match self {
            Self::Access => stat.atime,
            Self::Birth => stat.btime,
            Self::Change => stat.ctime,
            Self::Modify => stat.mtime,
        }
    }
}

/// `-mtime`, `-mmin` and their like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Age {
    bound: Bound<f64>,
    unit_ns: i64,
}

const DAY_NS: i64 = 86_400_000_000_000;
const MINUTE_NS: i64 = 60_000_000_000;
const SECOND_NS: i64 = 1_000_000_000;

impl Age {
    pub fn days(text: &str) -> Result<Self, String> {
        Self::parse(text, DAY_NS)
    }

    pub fn minutes(text: &str) -> Result<Self, String> {
        Self::parse(text, MINUTE_NS)
    }

    fn parse(text: &str, unit_ns: i64) -> Result<Self, String> {
        Bound::parse(text)
            .map(|bound| Self { bound, unit_ns })
            .ok_or_else(|| format!("`{text}` is not an age; write a number, with + before it for older, - for younger"))
    }

    /// Days are counted in full, as find(1) does: 1 is from one day up to two, and +1 is two and more. Minutes are counted as
    /// they begin: 1 is less than one minute.
    pub fn holds(self, time: Time, now: Time) -> bool {
        // Numbers beyond the range of times saturate.
        let span = (self.bound.number * self.unit_ns as f64) as i64;
        let at = now.saturating_sub(span);
        let is_days = self.unit_ns == DAY_NS;
        match self.bound.ordering {
            Ordering::Equal if is_days => time > at.saturating_sub(DAY_NS) && time <= at,
            Ordering::Equal => time > at && time <= at.saturating_add(self.unit_ns),
            // find(1) lets a second more pass.
            Ordering::Less => time > at.saturating_sub(if is_days { SECOND_NS } else { 0 }),
            Ordering::Greater => time < at.saturating_sub(if is_days { DAY_NS } else { 0 }),
        }
    }
}

/// `-type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTypes(Vec<FileType>);

impl FileTypes {
    pub fn parse(text: &str) -> Result<Self, String> {
        let types = (0..16).filter_map(FileType::from_code).collect::<Vec<_>>();
        let by_letter = |letter: char| types.iter().copied().find(|&known| mode::letter(known) == letter);
        let chosen = text.split(',').flat_map(str::chars).map(by_letter).collect::<Option<Vec<_>>>();
        chosen
            .filter(|chosen| !chosen.is_empty())
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a type; write letters of f, d, l, p, s, b, c, as in f or f,l"))
    }

    pub fn holds(&self, file_type: FileType) -> bool {
        self.0.contains(&file_type)
    }
}

/// `-perm`: `MODE`, `-MODE` or `/MODE`. `X` sets execute bits for directories only, so they have a mode of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    how: How,
    file: u16,
    directory: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Exactly,
    All,
    Some,
}

impl Permissions {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (how, mode) = match text.as_bytes().first() {
            Some(b'-') => (How::All, &text[1..]),
            Some(b'/') => (How::Some, &text[1..]),
            _ => (How::Exactly, text),
        };
        let octal = if mode.starts_with(|c: char| c.is_ascii_digit()) { mode::parse(mode).ok() } else { None };
        let of = |is_dir| octal.or_else(|| symbolic(mode, is_dir));
        match (of(false), of(true)) {
            (Some(file), Some(directory)) => Ok(Self { how, file, directory }),
            _ => {
                Err(format!("`{text}` is not a mode; write it in octal or as in u+w,go=, with - or / before it or not"))
            }
        }
    }

    pub fn hold(self, stat: &Stat) -> bool {
        let wanted = if stat.is_dir() { self.directory } else { self.file };
        let mode = stat.mode & 0o7777;
        match self.how {
            How::Exactly => mode == wanted,
            How::All => mode & wanted == wanted,
            How::Some => wanted == 0 || mode & wanted != 0,
        }
    }
}

/// The bits that `u+rw,go=x` makes of none, as chmod(1) reads it; nobody's umask counts.
fn symbolic(text: &str, is_dir: bool) -> Option<u16> {
    let mut mode = 0_u16;
    for clause in text.split(',') {
        let operator = clause.find(['+', '-', '='])?;
        let (who, mut rest) = clause.split_at(operator);
        let mut class = 0_u16;
        for letter in who.chars() {
            class |= match letter {
                'u' => 0o4700,
                'g' => 0o2070,
                'o' => 0o1007,
                'a' => 0o7777,
                _ => return None,
            };
        }
        let class = if who.is_empty() { 0o7777 } else { class };
        while let Some(operator) = rest.chars().next() {
            let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |end| end + 1);
            let letters = &rest[1..end];
            let copied = match letters {
                "u" => Some(mode >> 6),
                "g" => Some(mode >> 3),
                "o" => Some(mode),
                _ => None,
            };
            let mut bits = copied.map_or(0, |bits| (bits & 7) * 0o111);
            for letter in if copied.is_some() { "" } else { letters }.chars() {
                bits |= match letter {
                    'r' => 0o444,
                    'w' => 0o222,
                    'x' => 0o111,
                    'X' if is_dir || mode & 0o111 != 0 => 0o111,
                    'X' => 0,
                    's' => 0o6000,
                    't' => 0o1000,
                    _ => return None,
                };
            }
            bits &= class;
            match operator {
                '+' => mode |= bits,
                '-' => mode &= !bits,
                _ => mode = mode & !class | bits,
            }
            rest = &rest[end..];
        }
    }
    Some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_and_held() {
        let size = |text: &str, bytes: u64| SizeTest::parse(text).map(|test| test.holds(bytes));
        assert_eq!(size("+1M", (1 << 20) + 1), Ok(true));
        assert_eq!(size("+1M", 1 << 20), Ok(false));
        assert_eq!(size("1k", 5), Ok(true), "sizes are rounded up");
        assert_eq!(size("-1k", 0), Ok(true));
        assert_eq!(size("10c", 10), Ok(true));
        assert_eq!(size("5w", 10), Ok(true));
        assert_eq!(size("2", 1000), Ok(true));
        for text in ["", "+", "++1", "k", "1x", "-", "1.5"] {
            assert!(SizeTest::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_are_counted_as_find_counts_them() {
        // What is to hold, seconds ago, and whether it does.
        for (text, seconds, days, minutes) in [
            ("1", 86_400, true, false),
            ("1", 86_399, false, false),
            ("1", 2 * 86_400, false, false),
            ("0", 3600, true, false),
            ("0", -5, false, true),
            ("+1", 2 * 86_400 - 1, false, true),
            ("+1", 2 * 86_400 + 1, true, true),
            ("-1", 0, true, true),
            ("-1", -5, true, true),
            ("1", 59, false, true),
            ("+0.5", 45, false, true),
        ] {
            let time = -seconds * SECOND_NS;
            assert_eq!(Age::days(text).unwrap().holds(time, 0), days, "{text} days, {seconds}");
            assert_eq!(Age::minutes(text).unwrap().holds(time, 0), minutes, "{text} minutes, {seconds}");
        }
        assert!(["", "soon", "+", "nan", "-inf", "1e"].iter().all(|text| Age::days(text).is_err()));
        assert!(!Age::days("+99999999999999999999").unwrap().holds(i64::MIN, 0), "a number beyond all times");
    }

    #[test]
    fn types_are_letters() {
        assert_eq!(FileTypes::parse("f,l").unwrap().0, [FileType::File, FileType::Symlink]);
        assert!(FileTypes::parse("x").is_err() && FileTypes::parse("").is_err());
    }

    #[test]
    fn modes_are_octal_or_symbolic() {
        for (text, file, directory) in [
            ("644", 0o644, 0o644),
            ("-4000", 0o4000, 0o4000),
            ("u=rwx,g=rx,o=", 0o750, 0o750),
            ("/a+x", 0o111, 0o111),
            ("+t,u+s", 0o5000, 0o5000),
            ("u+rwx,g=u,g-w", 0o750, 0o750),
            ("a+rX", 0o444, 0o555),
        ] {
            let found = Permissions::parse(text).unwrap();
            assert_eq!((found.file, found.directory), (file, directory), "{text}");
        }
        for text in ["", "x", "u+q", "789", "10000", "u", "z+r", "-", "/"] {
            assert!(Permissions::parse(text).is_err(), "{text}");
        }
    }
}
