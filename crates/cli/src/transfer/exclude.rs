//! Patterns of files that a transfer leaves out, in rsync's language: bytes, where `*` and `?` match no slash, `**` matches
//! any, `[...]` is one of a set, and `\` takes the meaning from the byte behind it. Own code, because the crates for this
//! match text, or paths with rules of their own.
//!
//! A pattern without a slash is compared with the last name of a path, one with a slash in it with as many names from its
//! end as it likes, and one that begins with a slash with the whole path below the top. A slash at its end: directories
//! only. What is below an excluded directory is excluded too.

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Pattern {
    bytes: Vec<u8>,
    /// The whole path is compared.
    is_anchored: bool,
    /// Only its last name is.
    is_name: bool,
    /// Directories only.
    is_directory: bool,
}

/// Parser of a pattern as an argument.
pub fn parser() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(|text| Pattern::new(text.into_vec())))
}

impl Pattern {
    pub fn new(mut bytes: Vec<u8>) -> Result<Self, &'static str> {
        let is_directory = bytes.ends_with(b"/");
        while bytes.ends_with(b"/") {
            bytes.pop();
        }
        let is_anchored = bytes.starts_with(b"/");
        if is_anchored {
            bytes.remove(0);
        }
        if bytes.is_empty() {
            return Err("matches nothing, or everything: give a name");
        }
        let is_name = !is_anchored && !bytes.contains(&b'/') && !bytes.windows(2).any(|pair| pair == b"**");
        Ok(Self { bytes, is_anchored, is_name, is_directory })
    }

    fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if self.is_directory && !is_directory {
            return false;
        }
        if self.is_anchored {
            return matches(&self.bytes, path);
        }
        let name = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        if self.is_name {
            return matches(&self.bytes, &path[name..]);
        }
        let starts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(slash, _)| slash + 1);
        std::iter::once(0).chain(starts).any(|start| matches(&self.bytes, &path[start..]))
    }
}

/// Whether all of `text` matches. What a star took is lengthened byte by byte; the last `**` is kept beside the last star,
/// because a star cannot take the slash that a `**` can. The time is at most the product of the lengths, times the stars.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    // The pattern behind a star, and what of the text it has not taken so far.
    let mut star: Option<(&[u8], &[u8])> = None;
    let mut stars: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(after) = rest.strip_prefix(b"**") {
            (star, stars) = (None, Some((after, left)));
            rest = after;
            continue;
        }
        if let Some(after) = rest.strip_prefix(b"*") {
            star = Some((after, left));
            rest = after;
            continue;
        }
        if rest.is_empty() && left.is_empty() {
            return true;
        }
        if let Some((after, behind)) = step(rest, left) {
            (rest, left) = (after, behind);
            continue;
        }
        let retry = star.filter(|(_, from)| from.first().is_some_and(|&byte| byte != b'/'));
        if let Some((after, from)) = retry {
            (rest, left) = (after, &from[1..]);
            star = Some((after, left));
        } else if let Some((after, from)) = stars.filter(|(_, from)| !from.is_empty()) {
            (rest, left) = (after, &from[1..]);
            (star, stars) = (None, Some((after, left)));
        } else {
            return false;
        }
    }
}

/// Matches one element of the pattern that is no star; what is left of both.
fn step<'a>(pattern: &'a [u8], text: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&first, after) = pattern.split_first()?;
    let (&byte, left) = text.split_first()?;
    match first {
        b'?' if byte != b'/' => Some((after, left)),
        b'?' => None,
        b'[' => match set(after) {
            Some((members, is_negated, after)) => {
                (byte != b'/' && is_in(members, byte) != is_negated).then_some((after, left))
            }
            // An open bracket means itself.
            None => (byte == b'[').then_some((after, left)),
        },
        b'\\' if !after.is_empty() => (after[0] == byte).then_some((&after[1..], left)),
        _ => (first == byte).then_some((after, left)),
    }
}

/// Splits `abc]rest`, which followed a bracket, into members, negation and rest. A `]` that comes first is a member.
fn set(after: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let is_negated = matches!(after.first(), Some(b'!' | b'^'));
    let members = &after[usize::from(is_negated)..];
    let end = 1 + members.iter().skip(1).position(|&byte| byte == b']')?;
    Some((&members[..end], is_negated, &members[end + 1..]))
}

fn is_in(members: &[u8], byte: u8) -> bool {
    let mut rest = members;
    while let Some((&low, after)) = rest.split_first() {
        let high = match after {
            [b'-', high, ..] => {
                rest = &after[2..];
                *high
            }
            _ => {
                rest = after;
                low
            }
        };
        if (low..=high).contains(&byte) {
            return true;
        }
    }
    false
}

/// All the patterns of a run.
#[derive(Clone, Debug, Default)]
pub struct Excludes(Arc<[Pattern]>);

impl Excludes {
    pub fn new(patterns: &[Pattern]) -> Self {
        Self(patterns.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a file is left out for its own sake. What is above it was asked for before.
    pub fn has(&self, path: &[u8], is_directory: bool) -> bool {
        !path.is_empty() && self.0.iter().any(|pattern| pattern.matches(path, is_directory))
    }

    /// Whether a file is left out for its own sake or that of a directory above it.
    pub fn covers(&self, path: &[u8], is_directory: bool) -> bool {
        let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(slash, _)| &path[..slash]);
        !self.is_empty() && (above.into_iter().any(|above| self.has(above, true)) || self.has(path, is_directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_rsync_has_it() {
        /// Pattern; paths that it excludes; paths that it does not. A slash at the end of a path: a directory.
        type Case = (&'static str, &'static [&'static str], &'static [&'static str]);
        let cases: &[Case] = &[
            ("*.o", &["a.o", "d/a.o", "d/e/.o"], &["a.o.c", "d/a.oo", "o"]),
            ("cache", &["cache", "d/cache/", "cache/x", "d/cache/x/y"], &["caches", "d/a-cache"]),
            ("cache/", &["cache/", "d/cache/", "d/cache/x"], &["cache", "d/cache"]),
            ("/top", &["top", "top/", "top/x"], &["d/top"]),
            ("/d/*.c", &["d/a.c"], &["d/e/a.c", "x/d/a.c", "a.c"]),
            ("d/*.c", &["d/a.c", "x/d/a.c", "x/y/d/a.c/z"], &["d/e/a.c", "ad/a.c"]),
            ("d/**.c", &["d/a.c", "d/e/f/a.c", "x/d/a.c"], &["a.c", "ad/a.c"]),
            ("/**/tmp", &["a/tmp", "a/b/tmp"], &["tmp", "a/tmpx"]),
            ("a?c", &["abc", "x/a-c"], &["a/c", "ac"]),
            ("[a-c]x", &["ax", "d/cx"], &["dx", "-x"]),
            ("[!a-c]x", &["dx"], &["ax", "a/x"]),
            ("[]]x", &["]x"], &["x"]),
            ("[x", &["[x"], &["x"]),
            ("\\*", &["*"], &["a", "\\a"]),
            ("*a*b*", &["xaxbx", "ab", "d/ab"], &["ba", "a/b"]),
            ("**a/b", &["a/b", "x/a/b", "x/ya/b"], &["a/c"]),
            ("/a*/c", &["a/c", "ax/c"], &["a/b/c"]),
        ];
        for (pattern, excluded, others) in cases {
            let excludes = Excludes::new(&[Pattern::new(pattern.as_bytes().to_vec()).unwrap()]);
            for (path, expected) in
                excluded.iter().map(|path| (path, true)).chain(others.iter().map(|path| (path, false)))
            {
                let directory = path.strip_suffix('/');
                let covered = excludes.covers(directory.unwrap_or(path).as_bytes(), directory.is_some());
                assert_eq!(covered, expected, "{pattern} and {path}");
            }
        }
        for pattern in ["", "/", "//"] {
            assert!(Pattern::new(pattern.into()).is_err(), "{pattern}");
        }
    }

    /// A pattern that went back to every star it had would take longer than anybody waits.
    #[test]
    fn no_pattern_takes_for_ever() {
        for pattern in ["*a".repeat(40), "**a".repeat(40), "**a*b".repeat(20)] {
            assert!(!matches(pattern.as_bytes(), "a".repeat(2000).as_bytes()) || pattern.ends_with('a'), "{pattern}");
        }
    }
}
