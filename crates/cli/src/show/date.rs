//! Dates as touch(1) takes them, and how far the times of a volume reach.

use super::time::full;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use myriad_engine::Time;
use parse_datetime::{ParsedDateTime, parse_datetime_at_date};

/// A date in any form that GNU's `date -d` reads; what it leaves open it takes from `base`.
pub fn parse(text: &str, base: Time) -> Result<Time, String> {
    let wrong = || format!("`{text}` is not a date; write it as in `2026-11-23 14:00`, `yesterday` or `@86400`");
    let base = Timestamp::from_nanosecond(i128::from(base)).expect("within some 300 years of 1970");
    match parse_datetime_at_date(base.to_zoned(TimeZone::system()), text).map_err(|_| wrong())? {
        ParsedDateTime::InRange(date) => held(&date, text),
        ParsedDateTime::Extended(_) => Err(past(text)),
    }
}

/// `[[CC]YY]MMDDhhmm[.ss]`, as `touch -t` takes it, in the user's time zone; the year is `now`'s without one.
pub fn parse_stamp(text: &str, now: Time) -> Result<Time, String> {
    let wrong = || format!("`{text}` is not a time; write it as [[CC]YY]MMDDhhmm[.ss], as in 202611231400.30");
    let (digits, seconds) = text.split_once('.').unwrap_or((text, "00"));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(digits) || !is_number(seconds) || seconds.len() != 2 || ![8, 10, 12].contains(&digits.len()) {
        return Err(wrong());
    }
    let (year, rest) = digits.split_at(digits.len() - 8);
    let number = |text: &str| text.parse::<i16>().expect("a few digits, looked at above");
    let year = match year.len() {
        0 => zoned(now).year(),
        // As POSIX divides the century.
        2 if number(year) < 69 => 2000 + number(year),
        2 => 1900 + number(year),
        _ => number(year),
    };
    let part = |at: usize| number(&rest[at..at + 2]) as i8;
    // A leap second is the one after it.
    let (seconds, more) = if seconds == "60" { (59, 1) } else { (number(seconds) as i8, 0) };
    let civil = DateTime::new(year, part(0), part(2), part(4), part(6), seconds, 0).map_err(|_| wrong())?;
    let date = civil.to_zoned(TimeZone::system()).map_err(|_| past(text))?;
    held(&date, text).map(|time| time.saturating_add(more * 1_000_000_000))
}

fn zoned(time: Time) -> Zoned {
    Timestamp::from_nanosecond(i128::from(time)).expect("within some 300 years of 1970").to_zoned(TimeZone::system())
}

/// A date as the time of a file, if that can hold it.
fn held(date: &Zoned, text: &str) -> Result<Time, String> {
    Time::try_from(date.timestamp().as_nanosecond()).map_err(|_| past(text))
}

fn past(text: &str) -> String {
    format!("`{text}` is past what the times of a volume hold, {}", range())
}

/// The days from the first to the last that a volume's times hold.
pub fn range() -> String {
    let day = |time: Time| full(time).split(' ').next().unwrap_or_default().to_owned();
    format!("{} to {}", day(Time::MIN), day(Time::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn dates_are_read_as_touch_reads_them() {
        let base = 1_000_000_000 * SECOND + 7;
        for (text, time) in [
            ("@86400", 86_400 * SECOND),
            ("@-1.5", -SECOND - SECOND / 2),
            ("2001-09-09 01:46:40 UTC", 1_000_000_000 * SECOND),
            ("2001-09-09T01:46:40.000000007Z", base),
            ("1 day ago", base - 86_400 * SECOND),
        ] {
            assert_eq!(parse(text, base), Ok(time), "{text}");
        }
        for text in ["soon", "2026-13-01", "25:00"] {
            assert!(parse(text, base).is_err_and(|said| said.contains("is not a date")), "{text}");
        }
    }

    /// Of words that dates are made of, in any order: whatever is no date is told, and nothing panics.
    #[test]
    fn odd_dates_do_no_harm() {
        const WORDS: [&str; 30] = [
            "now",
            "yesterday",
            "next",
            "last",
            "ago",
            "year",
            "months",
            "day",
            "fortnight",
            "sec",
            "monday",
            "Feb",
            "29",
            "2026",
            "99999",
            "-1",
            "+99999999999999999999",
            "9223372036854775807",
            "@",
            "@-9999999999",
            "24:00",
            "23:59:60",
            "PM",
            "UTC",
            "+1400",
            "+99:99",
            "EST",
            "2026-02-30",
            "TZ=\"Nowhere/Far\"",
            "1.5",
        ];
        let mut state = 20_261_123_u64;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let mut dates = 0;
        for round in 0..20_000 {
            let words: Vec<&str> = (0..1 + below(4)).map(|_| WORDS[below(WORDS.len())]).collect();
            let text = words.join([" ", ""][round % 2]);
            dates += [i64::MIN, 0, i64::MAX].iter().filter(|&&base| parse(&text, base).is_ok()).count();
        }
        assert!(dates > 100, "{dates}");
    }

    #[test]
    fn what_no_time_of_a_volume_holds_is_told() {
        for text in ["2500-01-01", "@9999999999", "1500-01-01", "99999-01-01"] {
            let said = parse(text, 0).expect_err("it is too far away");
            assert!(said.contains("past what the times of a volume hold, 1677-09-"), "{said}");
        }
        assert!(parse_stamp("250001010000", 0).is_err_and(|said| said.contains(" to 2262-04-1")));
        assert!(parse("2262-04-01", 0).is_ok() && parse("1677-10-01", 0).is_ok());
    }

    #[test]
    fn stamps_are_read_as_posix_says() {
        let time = |text: &str| parse_stamp(text, 0).unwrap_or_else(|error| panic!("{error}"));
        let civil = |text: &str| parse(text, 0).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(time("202611231400.30"), civil("2026-11-23 14:00:30"));
        assert_eq!(time("6812312359"), civil("2068-12-31 23:59:00"));
        assert_eq!(time("6901010000"), civil("1969-01-01 00:00:00"));
        assert_eq!(time("202611231459.60"), civil("2026-11-23 15:00:00"));
        for text in ["", "1", "13010000", "02300000", "0101000", "01010000.5", "01010000.61", "0101000x", "-1010000"] {
            assert!(parse_stamp(text, 0).is_err(), "{text}");
        }
    }
}
