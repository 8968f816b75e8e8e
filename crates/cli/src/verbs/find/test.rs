//! The tests of `find`.

use super::{Find, Pattern};
use crate::show::{mode, time};
use myriad_engine::{FileType, Stat, Time};
use std::cmp::Ordering;

/// `N`, `+N` or `-N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    ordering: Ordering,
    number: u64,
}

impl Bound {
    fn parse(text: &str) -> Option<Self> {
        let (ordering, digits) = match text.as_bytes().first()? {
            b'+' => (Ordering::Greater, &text[1..]),
            b'-' => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        let number = if digits.starts_with('+') { None } else { digits.parse().ok() }?;
        Some(Self { ordering, number })
    }

    fn holds(self, value: u64) -> bool {
        value.cmp(&self.number) == self.ordering
    }
}

/// `-size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeTest {
    bound: Bound,
    unit: u64,
}

impl SizeTest {
    pub fn parse(text: &str) -> Result<Self, String> {
        let units = [('c', 1), ('b', 512), ('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
        let unit = units.into_iter().find(|(letter, _)| text.ends_with(*letter));
        let (number, unit) = unit.map_or((text, 512), |(_, unit)| (&text[..text.len() - 1], unit));
        Bound::parse(number)
            .map(|bound| Self { bound, unit })
            .ok_or_else(|| format!("`{text}` is not a size; write a number, + or - before it, c, k, M or G after it"))
    }
}

/// `-mtime`, `-mmin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    bound: Bound,
    unit_ns: u64,
}

impl Age {
    pub fn days(text: &str) -> Result<Self, String> {
        Self::parse(text, 86_400_000_000_000)
    }

    pub fn minutes(text: &str) -> Result<Self, String> {
        Self::parse(text, 60_000_000_000)
    }

    fn parse(text: &str, unit_ns: u64) -> Result<Self, String> {
        Bound::parse(text)
            .map(|bound| Self { bound, unit_ns })
            .ok_or_else(|| format!("`{text}` is not an age; write a number, with + before it for older, - for younger"))
    }

    /// Whole units since `mtime`; a time that is still to come counts as now.
    fn holds(self, mtime: Time, now: Time) -> bool {
        self.bound.holds(now.saturating_sub(mtime).max(0) as u64 / self.unit_ns)
    }
}

/// `-type`.
#[derive(Clone, Debug)]
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
}

/// All tests of one run.
pub struct Tests<'a> {
    find: &'a Find,
    now: Time,
}

impl<'a> Tests<'a> {
    pub fn new(find: &'a Find) -> Self {
        Self { find, now: time::now() }
    }

    pub fn pass(&self, name: &[u8], path: &[u8], stat: &Stat) -> bool {
        let find = self.find;
        let all = |patterns: &[Pattern], text| patterns.iter().all(|pattern| pattern.matches(text));
        all(&find.name, name)
            && all(&find.iname, name)
            && all(&find.path, path)
            && find.types.as_ref().is_none_or(|types| types.0.contains(&stat.file_type()))
            && find.size.iter().all(|test| test.bound.holds(stat.size.div_ceil(test.unit)))
            && find.mtime.iter().chain(&find.mmin).all(|age| age.holds(stat.mtime, self.now))
            // The size of a directory is that of its entries.
            && (!find.empty || stat.size == 0 && matches!(stat.file_type(), FileType::File | FileType::Directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_and_held() {
        let size =
            |text: &str, bytes: u64| SizeTest::parse(text).map(|test| test.bound.holds(bytes.div_ceil(test.unit)));
        assert_eq!(size("+1M", (1 << 20) + 1), Ok(true));
        assert_eq!(size("+1M", 1 << 20), Ok(false));
        assert_eq!(size("1k", 5), Ok(true), "sizes are rounded up");
        assert_eq!(size("-1k", 0), Ok(true));
        assert_eq!(size("10c", 10), Ok(true));
        assert_eq!(size("2", 1000), Ok(true));
        for text in ["", "+", "++1", "k", "1x", "-"] {
            assert!(SizeTest::parse(text).is_err(), "{text}");
        }
        let day = 86_400_000_000_000;
        for (text, age_days, holds) in
            [("1", 1, true), ("+1", 1, false), ("+1", 2, true), ("-1", 0, true), ("0", -5, true)]
        {
            assert_eq!(Age::days(text).unwrap().holds(0, age_days * day), holds, "{text} {age_days}");
        }
    }

    #[test]
    fn types_are_letters() {
        assert_eq!(FileTypes::parse("f,l").unwrap().0, [FileType::File, FileType::Symlink]);
        assert!(FileTypes::parse("x").is_err() && FileTypes::parse("").is_err());
    }
}
