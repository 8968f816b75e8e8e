//! Names of files: what they look like decides what a directory index has to work with.

use super::random::mix;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum NameStyle {
    /// `f00000042`: in order, much in common.
    Numeric,
    /// 17 hexadecimal digits without order, as caches and object stores have them.
    Random,
    /// 200 bytes, without order.
    Long,
}

const LONG_BYTES: usize = 200;

/// Appends the name of file `index`. Distinct indexes or kinds give distinct names; `kind` is its first byte.
pub fn push_name(out: &mut Vec<u8>, style: NameStyle, kind: u8, index: u64, seed: u64) {
    let start = out.len();
    out.push(kind);
    match style {
        NameStyle::Numeric => {
            let mut digits = [b'0'; 20];
            let mut first = digits.len();
            let mut rest = index;
            while rest > 0 {
                first -= 1;
                digits[first] = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            out.extend_from_slice(&digits[first.min(digits.len() - 8)..]);
        }
        NameStyle::Random | NameStyle::Long => {
            // A bijection of the index: no two names meet.
            let bits = mix(index ^ mix(seed));
            for shift in (0..16).rev() {
                out.push(b"0123456789abcdef"[(bits >> (4 * shift)) as usize & 15]);
            }
            if style == NameStyle::Long {
                out.resize(start + LONG_BYTES, b'x');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn name(style: NameStyle, index: u64) -> String {
        let mut out = Vec::new();
        push_name(&mut out, style, b'f', index, 1);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numeric() {
        assert_eq!(name(NameStyle::Numeric, 0), "f00000000");
        assert_eq!(name(NameStyle::Numeric, 42), "f00000042");
        assert_eq!(name(NameStyle::Numeric, 123_456_789), "f123456789");
    }

    #[test]
    fn lengths() {
        assert_eq!(name(NameStyle::Random, 3).len(), 17);
        assert_eq!(name(NameStyle::Long, 3).len(), 200);
    }

    #[test]
    fn names_are_distinct_and_same_again() {
        for style in [NameStyle::Numeric, NameStyle::Random, NameStyle::Long] {
            let names: HashSet<String> = (0..2000).map(|index| name(style, index)).collect();
            assert_eq!(names.len(), 2000);
            assert_eq!(name(style, 77), name(style, 77));
        }
    }
}
