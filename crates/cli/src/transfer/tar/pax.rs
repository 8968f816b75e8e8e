//! Extended headers of the PAX format: records `LENGTH KEY=VALUE\n`, the length in decimal and of the whole record.

use myriad_engine::Time;

pub const XATTR: &[u8] = b"SCHILY.xattr.";
pub const XATTR_ENCODED: &[u8] = b"LIBARCHIVE.xattr.";

/// Iterates over records; a malformed one is an error, and the end.
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn split(rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8], &'a [u8])> {
        let space = rest.iter().take(20).position(|&byte| byte == b' ')?;
        let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
        if length <= space + 1 || length > rest.len() || rest[length - 1] != b'\n' {
            return None;
        }
        let record = &rest[space + 1..length - 1];
        let equals = record.iter().position(|&byte| byte == b'=')?;
        Some((&record[..equals], &record[equals + 1..], &rest[length..]))
    }
}

impl<'a> Iterator for Records<'a> {
    /// Key and value.
    type Item = Result<(&'a [u8], &'a [u8]), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        // Some programs pad the records with NULs.
        if self.rest.iter().all(|&byte| byte == 0) {
            return None;
        }
        let Some((key, value, rest)) = Self::split(self.rest) else {
            self.rest = &[];
            return Some(Err("malformed extended header"));
        };
        self.rest = rest;
        Some(Ok((key, value)))
    }
}

/// Appends a record.
pub fn push(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let body = key.len() + value.len() + 3;
    // The length counts its own digits.
    let mut length = body + 1;
    while body + digits(length) != length {
        length = body + digits(length);
    }
    records.extend_from_slice(length.to_string().as_bytes());
    for part in [b" ", key, b"=", value, b"\n"] {
        records.extend_from_slice(part);
    }
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

pub fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

/// Seconds with a fraction, as nanoseconds. Digits beyond those are dropped, towards the past.
pub fn time(value: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(value).ok()?;
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let kept = &fraction[..fraction.len().min(9)];
    let nanoseconds = format!("{kept:0<9}").parse::<i128>().expect("nine digits");
    let is_cut = is_negative && fraction[kept.len()..].bytes().any(|byte| byte != b'0');
    let total = i128::from(whole.parse::<i64>().ok()?) * 1_000_000_000 + nanoseconds + i128::from(is_cut);
    Some(clamp(if is_negative { -total } else { total }))
}

/// Times further off than some 292 years become the furthest there is, which `is_clamped` knows again.
pub fn clamp(nanoseconds: i128) -> Time {
    nanoseconds.clamp(i64::MIN.into(), i64::MAX.into()) as Time
}

/// Whether a time of a source is past what a volume holds; the two that are the last a volume does hold count as such.
pub fn is_clamped(time: Time) -> bool {
    time == i64::MIN || time == i64::MAX
}

pub fn time_text(time: Time) -> String {
    let sign = if time < 0 { "-" } else { "" };
    let (seconds, nanoseconds) = (time.unsigned_abs() / 1_000_000_000, time.unsigned_abs() % 1_000_000_000);
    let text = format!("{sign}{seconds}.{nanoseconds:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `%XX`, as libarchive writes the names of attributes.
pub fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        let digit = |digit: Option<&u8>| char::from(*digit?).to_digit(16);
        bytes.push(if byte == b'%' { (digit(rest.next())? << 4 | digit(rest.next())?) as u8 } else { byte });
    }
    Some(bytes)
}

/// The name of an attribute as GNU tar writes it into a key, which ends at the first `=`.
pub fn key_encoded(name: &[u8]) -> Vec<u8> {
    let encode = |&byte: &u8| match byte {
        b'%' => b"%25".to_vec(),
        b'=' => b"%3D".to_vec(),
        byte => vec![byte],
    };
    name.iter().flat_map(encode).collect()
}

/// As [`key_encoded`] writes it; any other `%` is one.
pub fn key_decoded(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    let mut rest = key;
    while let Some((&first, behind)) = rest.split_first() {
        let (byte, behind) = match rest {
            [b'%', b'2', b'5', behind @ ..] => (b'%', behind),
            [b'%', b'3', b'D', behind @ ..] => (b'=', behind),
            _ => (first, behind),
        };
        name.push(byte);
        rest = behind;
    }
    name
}

/// As [`percent_decoded`] reads it.
pub fn percent_encoded(bytes: &[u8]) -> Vec<u8> {
    let encode = |&byte: &u8| match byte {
        b'%' | b'=' | ..=b' ' | 127.. => format!("%{byte:02X}").into_bytes(),
        byte => vec![byte],
    };
    bytes.iter().flat_map(encode).collect()
}

/// Base 64 without padding, as libarchive writes it.
pub fn base64_encoded(bytes: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().enumerate().fold(0, |bits, (index, &byte)| bits | u32::from(byte) << (16 - 8 * index));
        text.extend((0..=group.len()).map(|index| LETTERS[(bits >> (18 - 6 * index)) as usize & 63]));
    }
    text
}

/// Base 64, as libarchive writes their values: with or without padding.
pub fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let text = &text[..text.iter().position(|&byte| byte == b'=').unwrap_or(text.len())];
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for &letter in text {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'\n' | b'\r' => continue,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    // A single letter left over would be less than a byte.
    (count < 6).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_whatever_their_length() {
        for length in 0..300 {
            let mut records = Vec::new();
            let value = vec![b'v'; length];
            push(&mut records, b"k", &value);
            push(&mut records, b"path", b"a=b\nc");
            let read: Vec<_> = Records::new(&records).map(Result::unwrap).collect();
            assert_eq!(read, [(&b"k"[..], &value[..]), (b"path", b"a=b\nc")]);
        }
    }

    #[test]
    fn malformed_records_are_errors() {
        let cases: &[&[u8]] = &[
            b"x",
            b"8 path=a\n",
            b"99999999999999999999999 a=b\n",
            b"6 a=b",
            b"5 ab\n",
            b"-6 a=b\n",
            b"0 a=b\n",
            b"2 \n",
            b" a=b\n",
            b"6 a=b\n7 c=d\n",
        ];
        for case in cases {
            assert!(Records::new(case).any(|record| record.is_err()), "{case:?}");
        }
        assert_eq!(Records::new(b"6 a=b\n\0\0").count(), 1);
    }

    #[test]
    fn times_round_trip() {
        for (text, time) in [
            ("0", 0),
            ("1.5", 1_500_000_000),
            ("-1.5", -1_500_000_000),
            ("1700000000.123456789", 1_700_000_000_123_456_789),
            ("-0.000000001", -1),
        ] {
            assert_eq!(super::time(text.as_bytes()), Some(time), "{text}");
            assert_eq!(time_text(time), text);
        }
        assert_eq!(super::time(b"1.1234567899"), Some(1_123_456_789));
        assert_eq!(super::time(b"-1.0000000001"), Some(-1_000_000_001));
        assert_eq!(super::time(b"99999999999"), Some(i64::MAX));
        for wrong in ["", "-", "1e9", ".5", "1.x", "99999999999999999999", "+1"] {
            assert_eq!(super::time(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn libarchive_encodings_are_undone() {
        assert_eq!(percent_decoded(b"user.a%3Db%25"), Some(b"user.a=b%".to_vec()));
        assert_eq!(percent_encoded(b"user.a=b%"), b"user.a%3Db%25");
        assert_eq!(percent_decoded(b"a%3"), None);
        for (name, key) in
            [(&b"user.a=b%"[..], &b"user.a%3Db%25"[..]), (b"%3D=%", b"%253D%3D%25"), (b"plain", b"plain")]
        {
            assert_eq!((key_encoded(name), key_decoded(key)), (key.to_vec(), name.to_vec()));
        }
        assert_eq!(key_decoded(b"a%3d%2%"), b"a%3d%2%");
        for (text, bytes) in
            [("", ""), ("Zg", "f"), ("Zg==", "f"), ("Zm8", "fo"), ("Zm9v", "foo"), ("Zm9v\nYmFy", "foobar")]
        {
            assert_eq!(base64_decoded(text.as_bytes()).unwrap(), bytes.as_bytes());
            let plain = text.trim_end_matches('=').replace('\n', "");
            assert_eq!(base64_encoded(bytes.as_bytes()), plain.as_bytes());
        }
        assert!(base64_decoded(b"A").is_none() && base64_decoded(b"A*").is_none());
    }
}
