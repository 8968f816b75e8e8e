//! Sizes as people write them (`64M`) and read them (`1.5G`).

pub use myriad_engine::options::parse_size as parse;

const UNITS: &[u8] = b"KMGTPE";

/// How a verb shows numbers of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// In at most four characters, by powers of 1024.
    Human,
    /// Likewise by powers of 1000.
    Si,
    /// In units of so many bytes, rounded up; after the number comes the unit's letter, if it was given without a number.
    Of { bytes: u64, letter: String },
}

impl Unit {
    pub fn of(bytes: u64) -> Self {
        Self::Of { bytes, letter: String::new() }
    }

    /// What `--block-size` takes: a size, a unit alone (`M`, `MB`), `human-readable` or `si`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "human-readable" => return Ok(Self::Human),
            "si" => return Ok(Self::Si),
            _ => {}
        }
        let (number, letter) = if text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            // As du(1) and df(1) write it.
            let is_kilo = text.eq_ignore_ascii_case("kb");
            (format!("1{text}"), if is_kilo { "kB".into() } else { text.to_ascii_uppercase().replace("IB", "iB") })
        } else {
            (text.to_owned(), String::new())
        };
        match parse(&number)? {
            0 => Err(format!("`{text}` is no unit; write a size above 0, as in 4K or 1M")),
            bytes => Ok(Self::Of { bytes, letter }),
        }
    }

    pub fn show(&self, bytes: u64) -> String {
        match self {
            Self::Human => human(bytes),
            Self::Si => human_si(bytes),
            Self::Of { bytes: unit, letter } => format!("{}{letter}", bytes.div_ceil(*unit)),
        }
    }
}

/// Options of verbs that count space. Of those given, the last one counts.
#[derive(clap::Args)]
pub struct UnitArgs {
    /// Print sizes as people read them
    #[arg(short = 'h', long, overrides_with_all = ["si", "kib", "mib", "block_size"])]
    human_readable: bool,
    /// Count in KiB, as without any of these
    #[arg(short = 'k', overrides_with_all = ["human_readable", "si", "mib", "block_size"])]
    kib: bool,
    /// Count in MiB
    #[arg(short = 'm', overrides_with_all = ["human_readable", "si", "kib", "block_size"])]
    mib: bool,
    /// Count in units of SIZE: 4K, 1M; with a unit alone, as in M or kB, the unit follows each number
    #[arg(short = 'B', long, value_name = "SIZE", overrides_with_all = ["human_readable", "si", "kib", "mib"], value_parser = Unit::parse)]
    block_size: Option<Unit>,
}

impl UnitArgs {
    /// The unit asked for, if one was. `si` is an option of the verb itself, which may give it a letter.
    pub fn unit(&self, si: bool) -> Option<Unit> {
        let flags = [
            (self.human_readable, Unit::Human),
            (si, Unit::Si),
            (self.kib, Unit::of(1 << 10)),
            (self.mib, Unit::of(1 << 20)),
        ];
        let flag = flags.into_iter().find_map(|(given, unit)| given.then_some(unit));
        flag.or_else(|| self.block_size.clone())
    }
}

/// A size in at most four characters, rounded up as `ls -h` and `du -h` round: never less than there is.
pub fn human(bytes: u64) -> String {
    scaled(bytes, 1024)
}

/// As `human`, by powers of 1000: `1.0k`, `9.8M`.
pub fn human_si(bytes: u64) -> String {
    scaled(bytes, 1000).replace('K', "k")
}

fn scaled(bytes: u64, base: u64) -> String {
    if bytes < base {
        return bytes.to_string();
    }
    let mut unit = 1_u64;
    let mut power = 0;
    while bytes.div_ceil(unit) >= base && power < UNITS.len() {
        unit = unit.checked_mul(base).expect("six powers of 1024 fit 64 bits");
        power += 1;
    }
    let letter = char::from(UNITS[power - 1]);
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    if tenths < 100 {
        format!("{}.{}{letter}", tenths / 10, tenths % 10)
    } else {
        format!("{}{letter}", bytes.div_ceil(unit))
    }
}

/// A size exactly, with the human one beside it where that is shorter.
pub fn exact(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} ({bytes} bytes)", human(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64k", Some(64 << 10)),
            ("64M", Some(64 << 20)),
            ("1G", Some(1 << 30)),
            ("16T", Some(16 << 40)),
            ("2GiB", Some(2 << 30)),
            ("2GB", Some(2_000_000_000)),
            ("1.5K", Some(1536)),
            ("10 M", Some(10 << 20)),
            ("512B", Some(512)),
            ("15E", Some(15 << 60)),
            ("16E", None),
            ("99999999999999999999", None),
            ("", None),
            ("M", None),
            ("-1", None),
            ("1X", None),
            ("1.", None),
            ("1.2.3", None),
            (".5G", None),
            ("1MM", None),
            ("0x10", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text).ok(), bytes, "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short_and_never_too_small() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (u64::MAX, "16E"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }
    #[test]
    fn units_are_sizes_or_letters() {
        for (unit, bytes, text) in [
            ("1K", 1025, "2"),
            ("M", 1 << 20, "1M"),
            ("kB", 1001, "2kB"),
            ("human-readable", 1536, "1.5K"),
            ("si", 1536, "1.6k"),
            ("si", 999_999, "1.0M"),
        ] {
            assert_eq!(Unit::parse(unit).unwrap().show(bytes), text, "{unit}");
        }
        assert!(["", "0", "Q", "1X"].iter().all(|text| Unit::parse(text).is_err()));
    }
}
