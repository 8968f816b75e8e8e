//! The 512-byte header: numbers, names, checksum.

use super::BLOCK;
use std::ops::Range;

pub type Block = [u8; BLOCK];

pub const NAME: Range<usize> = 0..100;
pub const MODE: Range<usize> = 100..108;
pub const UID: Range<usize> = 108..116;
pub const GID: Range<usize> = 116..124;
pub const SIZE: Range<usize> = 124..136;
pub const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
pub const TYPE: usize = 156;
pub const LINK: Range<usize> = 157..257;
pub const MAGIC: Range<usize> = 257..265;
pub const MAJOR: Range<usize> = 329..337;
pub const MINOR: Range<usize> = 337..345;
pub const PREFIX: Range<usize> = 345..500;
/// Of GNU's own format, in the place of the prefix.
pub const GNU_ATIME: Range<usize> = 345..357;

/// Which fields beyond the oldest a header has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Old,
    Ustar,
    Gnu,
}

pub fn dialect(block: &Block) -> Dialect {
    match &block[MAGIC] {
        b"ustar  \0" => Dialect::Gnu,
        magic if magic.starts_with(b"ustar") => Dialect::Ustar,
        _ => Dialect::Old,
    }
}

/// Whether the checksum is right. Some old programs summed signed bytes.
pub fn is_sound(block: &Block) -> bool {
    let Some(stored) = number(&block[CHECKSUM]) else { return false };
    let (unsigned, signed) = sums(block);
    stored == i128::from(unsigned) || stored == i128::from(signed)
}

/// Sums of all bytes, with the checksum's own taken as spaces.
fn sums(block: &Block) -> (u32, i32) {
    let bytes = || block.iter().enumerate().map(|(at, &byte)| if CHECKSUM.contains(&at) { b' ' } else { byte });
    (bytes().map(u32::from).sum(), bytes().map(|byte| i32::from(byte as i8)).sum())
}

/// A number: octal digits between blanks, or, with the first bit set, two's complement in base 256. `None` for anything
/// else; an empty field is 0.
pub fn number(field: &[u8]) -> Option<i128> {
    if field[0] & 0x80 != 0 {
        // The first byte is 0x80 or 0xff in what programs write; its lower bits belong to the number.
        if field[0] != 0x80 && field[0] != 0xff {
            return None;
        }
        let first = if field[0] == 0xff { -1 } else { 0 };
        // Eleven further bytes at most: no overflow.
        return Some(field[1..].iter().fold(first, |number, &byte| number << 8 | i128::from(byte)));
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_blank(byte)).unwrap_or(field.len());
    let digits = &field[start..];
    let digits = &digits[..digits.iter().position(is_blank).unwrap_or(digits.len())];
    digits.iter().try_fold(0, |number, &digit| match digit {
        b'0'..=b'7' => Some(number << 3 | i128::from(digit - b'0')),
        _ => None,
    })
}

/// A text field: up to the first NUL, or all of it.
pub fn text(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|&byte| byte == 0).unwrap_or(field.len())]
}

/// Writes a number in octal; `false` if it does not fit.
pub fn put_number(field: &mut [u8], number: u64) -> bool {
    let digits = field.len() - 1;
    if number >= 1 << (3 * digits) {
        return false;
    }
    for (index, byte) in field[..digits].iter_mut().rev().enumerate() {
        *byte = b'0' + (number >> (3 * index) & 7) as u8;
    }
    field[digits] = 0;
    true
}

/// Writes the checksum, last.
pub fn seal(block: &mut Block) {
    let (sum, _) = sums(block);
    assert!(put_number(&mut block[CHECKSUM.start..CHECKSUM.end - 1], sum.into()), "512 bytes sum up to 18 bits");
    block[CHECKSUM.end - 1] = b' ';
}

/// What a stream is that begins so, where that is an archive of another kind.
pub fn other_kind(block: &Block) -> Option<&'static str> {
    const KINDS: &[(&[u8], &str)] = &[
        (b"PK\x03\x04", "a zip archive"),
        (b"PK\x05\x06", "an empty zip archive"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"Rar!\x1a\x07", "a rar archive"),
        (b"070701", "a cpio archive"),
        (b"070707", "a cpio archive"),
        (b"!<arch>\n", "an ar archive or a Debian package"),
        (b"hsqs", "a squashfs image"),
        (b"LZIP", "compressed by lzip"),
        (b"\x04\x22\x4d\x18", "compressed by lz4"),
    ];
    KINDS.iter().find(|(magic, _)| block.starts_with(magic)).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_programs_are_read() {
        let cases: &[(&[u8], Option<i128>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"644\0junk", Some(0o644)),
            (b"77777777", Some(0o7777_7777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"0000648\0", None),
            (b"-1\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\0\0\0\x01\0\0\0\0", Some(1 << 32)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x81\0\0\0\0\0\0\0", None),
        ];
        for (field, expected) in cases {
            assert_eq!(number(field), *expected, "{field:?}");
        }
        let mut field = [0; 8];
        assert!(put_number(&mut field, 0o777_7777) && !put_number(&mut field, 0o1000_0000));
        assert_eq!(&field, b"7777777\0");
    }

    #[test]
    fn checksums_are_written_and_checked() {
        let mut block = [0; BLOCK];
        assert!(!is_sound(&block));
        block[..4].copy_from_slice(b"name");
        seal(&mut block);
        assert!(is_sound(&block));
        block[0] ^= 1;
        assert!(!is_sound(&block));
    }
}
