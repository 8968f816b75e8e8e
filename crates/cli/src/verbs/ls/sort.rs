//! The orders in which `ls` and `tree` show files.

use crate::show::name::columns;
use myriad_engine::Stat;
use std::cmp::{Ordering, Reverse};

/// What files are sorted by.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Name,
    /// Not at all: the order of the directory
    #[value(alias = "U")]
    None,
    /// Largest first
    Size,
    /// Newest first
    Time,
    /// By what follows the last dot
    Extension,
    /// Numbers in names by their value: a9 before a10
    Version,
    /// Shortest name first
    Width,
}

/// Which of a file's times is shown and sorted by.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Of its contents
    #[value(name = "mtime", alias = "modification")]
    Modify,
    #[value(name = "atime", aliases = ["access", "use"])]
    Access,
    /// Of its attributes
    #[value(name = "ctime", alias = "status")]
    Change,
    #[value(name = "birth", alias = "creation")]
    Birth,
}

impl Clock {
    pub fn of(self, stat: &Stat) -> i64 {
        match self {
            Self::Modify => stat.mtime,
            Self::Access => stat.atime,
            Self::Change => stat.ctime,
            Self::Birth => stat.btime,
        }
    }
}

impl Order {
    /// How two files compare; names decide what is equal otherwise.
    pub fn compare(self, clock: Clock, (name, stat): (&[u8], &Stat), (other, its): (&[u8], &Stat)) -> Ordering {
        let by = match self {
            Self::None => return Ordering::Equal,
            Self::Name => Ordering::Equal,
            Self::Size => Reverse(stat.size).cmp(&Reverse(its.size)),
            Self::Time => Reverse(clock.of(stat)).cmp(&Reverse(clock.of(its))),
            Self::Extension => extension(name).cmp(extension(other)),
            Self::Version => versions(name, other),
            Self::Width => columns(name).cmp(&columns(other)),
        };
        by.then_with(|| name.cmp(other))
    }
}

/// From the last dot on.
fn extension(name: &[u8]) -> &[u8] {
    name.iter().rposition(|&byte| byte == b'.').map_or(b"", |dot| &name[dot..])
}

/// How two names compare if the numbers in them count by their value. The rules are those of filevercmp in gnulib: names that
/// begin with a dot come first, and endings such as `.tar.gz` count only where the rest is equal.
fn versions(one: &[u8], other: &[u8]) -> Ordering {
    let special = |name: &[u8]| match name {
        b"" => 0,
        b"." => 1,
        b".." => 2,
        _ if name.starts_with(b".") => 3,
        _ => 4,
    };
    let (kind, its) = (special(one), special(other));
    if kind != its || kind < 3 {
        return kind.cmp(&its);
    }
    let (one, other) = if kind == 3 { (&one[1..], &other[1..]) } else { (one, other) };
    let heads = (&one[..one.len() - ending(one)], &other[..other.len() - ending(other)]);
    version_parts(heads.0, heads.1).then_with(|| version_parts(one, other))
}

/// Bytes of the longest end that is a chain of `.word`s, where a word does not begin with a digit.
fn ending(name: &[u8]) -> usize {
    let mut end = name.len();
    loop {
        let start = name[..end].iter().rposition(|&byte| !byte.is_ascii_alphanumeric() && byte != b'~');
        match start {
            Some(dot)
                if dot > 0
                    && name[dot] == b'.'
                    && name[..end].get(dot + 1).is_some_and(|byte| !byte.is_ascii_digit()) =>
            {
                end = dot;
            }
            _ => return name.len() - end,
        }
    }
}

/// Runs of digits by value, other bytes one by one: `~` first, then the end, letters, and the rest.
fn version_parts(mut one: &[u8], mut other: &[u8]) -> Ordering {
    let rank = |byte: Option<&u8>| match byte {
        None => -1,
        Some(b'~') => -2,
        Some(byte) if byte.is_ascii_digit() => 0,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(*byte),
        Some(byte) => i32::from(*byte) + 256,
    };
    let is_text = |name: &[u8]| name.first().is_some_and(|byte| !byte.is_ascii_digit());
    while !one.is_empty() || !other.is_empty() {
        while is_text(one) || is_text(other) {
            let order = rank(one.first()).cmp(&rank(other.first()));
            if order != Ordering::Equal {
                return order;
            }
            (one, other) = (&one[1..], &other[1..]);
        }
        // No digits are a zero too.
        let number = |name: &[u8]| {
            let zeros = name.iter().take_while(|&&byte| byte == b'0').count();
            let digits = name[zeros..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            (zeros, zeros + digits)
        };
        let ((start, end), (its_start, its_end)) = (number(one), number(other));
        let (digits, its) = (&one[start..end], &other[its_start..its_end]);
        let order = digits.len().cmp(&its.len()).then_with(|| digits.cmp(its));
        if order != Ordering::Equal {
            return order;
        }
        (one, other) = (&one[end..], &other[its_end..]);
    }
    Ordering::Equal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_the_order_of_ls() {
        // As `ls -v` of coreutils has them.
        let sorted: &[&str] = &[
            "",
            ".",
            "..",
            ".a",
            ".a10",
            "0",
            "9",
            "10",
            "a~",
            "a",
            "a0",
            "a00",
            "a.b",
            "a1",
            "a2",
            "a10",
            "a10.tar",
            "a10.tar.gz",
            "b1",
            "b-1.9",
            "b-1.10",
        ];
        for pair in sorted.windows(2) {
            let order = versions(pair[0].as_bytes(), pair[1].as_bytes()).then_with(|| pair[0].cmp(pair[1]));
            assert_eq!(order, Ordering::Less, "{pair:?}");
        }
    }
}
