//! Times in the user's own time zone.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};
use myriad_engine::Time;

const SECOND_NS: i64 = 1_000_000_000;
/// As ls counts it: half of an average year of the Gregorian calendar.
const HALF_YEAR_NS: i64 = 31_556_952 * 500_000_000;

/// Every 64-bit count of nanoseconds is a time jiff knows: its range is some thousand years.
fn zoned(time: Time) -> Zoned {
    let timestamp = Timestamp::from_nanosecond(i128::from(time)).expect("within some 300 years of 1970");
    timestamp.to_zoned(TimeZone::system())
}

/// As `stat` shows it: `2025-11-21 20:58:47.123456789 +0100`.
pub fn full(time: Time) -> String {
    zoned(time).strftime(FULL_ISO).to_string()
}

const FULL_ISO: &str = "%Y-%m-%d %H:%M:%S.%9f %z";
const LONG_ISO: &str = "%Y-%m-%d %H:%M";

/// How `ls` and its family show a time: one format for times of the last six months, and one for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Style {
    recent: String,
    other: String,
}

impl Default for Style {
    /// With the time of day or else the year.
    fn default() -> Self {
        Self { recent: "%b %e %H:%M".into(), other: "%b %e  %Y".into() }
    }
}

impl Style {
    pub fn full_iso() -> Self {
        Self::one(FULL_ISO)
    }

    pub fn long_iso() -> Self {
        Self::one(LONG_ISO)
    }

    fn one(format: &str) -> Self {
        Self { recent: format.into(), other: format.into() }
    }

    /// `full-iso`, `long-iso`, `iso`, `locale`, or `+FORMAT` with the directives of date(1). A line's end in the format
    /// divides it: what is before it is for other times than the last six months.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix('+') {
            Some(format) => {
                let (other, recent) = format.split_once('\n').unwrap_or((format, format));
                Ok(Self { recent: checked(recent)?, other: checked(other)? })
            }
            None => match text {
                "full-iso" => Ok(Self::full_iso()),
                "long-iso" => Ok(Self::long_iso()),
                "iso" => Ok(Self { recent: "%m-%d %H:%M".into(), other: "%Y-%m-%d ".into() }),
                "locale" => Ok(Self::default()),
                _ => Err(format!("`{text}` is no style; write full-iso, long-iso, iso, locale or +FORMAT")),
            },
        }
    }

    pub fn show(&self, time: Time, now: Time) -> String {
        let is_recent = time <= now && now.saturating_sub(time) < HALF_YEAR_NS;
        format(time, if is_recent { &self.recent } else { &self.other })
    }
}

/// A format that can be shown.
fn checked(text: &str) -> Result<String, String> {
    let format = numbers_as_here(text);
    match strtime::format(&format, &zoned(0)) {
        Ok(_) => Ok(format),
        Err(error) => Err(format!("`{text}` is no format of a time: {error}")),
    }
}

/// date(1)'s directives that are other words here: the locale's own forms, which are those of the C locale.
fn numbers_as_here(text: &str) -> String {
    let mut format = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        format.push_str(&rest[..at]);
        let directive = rest[at + 1..].chars().next();
        let width = 1 + directive.map_or(0, char::len_utf8);
        format.push_str(match directive {
            Some('c') => "%a %b %e %H:%M:%S %Y",
            Some('x') => "%m/%d/%y",
            Some('X') => "%H:%M:%S",
            Some('r') => "%I:%M:%S %p",
            _ => &rest[at..at + width],
        });
        rest = &rest[at + width..];
    }
    format + rest
}

/// A time by a format that was checked, or is one of ours.
pub fn format(time: Time, format: &str) -> String {
    strtime::format(format, &zoned(time)).unwrap_or_else(|_| full(time))
}

/// A time by one directive of date(1), if there is such a one.
pub fn field(time: Time, directive: char) -> Option<String> {
    strtime::format(numbers_as_here(&format!("%{directive}")), &zoned(time)).ok()
}

/// Seconds since 1970, with `digits` digits of their fraction, rounded down.
pub fn seconds(time: Time, digits: usize) -> String {
    let (whole, nanoseconds) = (time.div_euclid(SECOND_NS), time.rem_euclid(SECOND_NS));
    if digits == 0 {
        return whole.to_string();
    }
    let digits = digits.min(64);
    // Below zero the fraction counts upwards from the second before, and is shown from the one after.
    let (sign, whole, nanoseconds) = match (whole < 0, nanoseconds) {
        (true, 0) => ("-", whole.unsigned_abs(), 0),
        (true, _) => ("-", (whole + 1).unsigned_abs(), SECOND_NS - nanoseconds),
        (false, _) => ("", whole.unsigned_abs(), nanoseconds),
    };
    let fraction = format!("{nanoseconds:09}{:0<1$}", "", digits.saturating_sub(9));
    format!("{sign}{whole}.{}", &fraction[..digits])
}

/// A time as people write it: `2026-11-23`, `2026-11-23 14:30`, `2026-11-23T14:30:00.5+01:00`, `@SECONDS`, `now`, `today`,
/// `yesterday`, `3 days ago`.
pub fn parse(text: &str, now: Time) -> Result<Time, String> {
    let usage = || format!("`{text}` is not a time; write 2026-11-23, 2026-11-23 14:30, @SECONDS or 3 days ago");
    let text = text.trim();
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
        let whole: i64 = whole.parse().map_err(|_| usage())?;
        if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(usage());
        }
        let fraction: i64 = format!("{fraction:0<9}").parse().map_err(|_| usage())?;
        let fraction = if seconds.starts_with('-') { -fraction } else { fraction };
        return whole.checked_mul(SECOND_NS).and_then(|time| time.checked_add(fraction)).ok_or_else(usage);
    }
    let of = |timestamp: Timestamp| i64::try_from(timestamp.as_nanosecond()).map_err(|_| usage());
    let today = zoned(now);
    let midnight = || today.start_of_day().map_err(|_| usage());
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["now"] => return Ok(now),
        ["today"] => return of(midnight()?.timestamp()),
        ["yesterday"] => return of(midnight()?.yesterday().map_err(|_| usage())?.timestamp()),
        [number, unit, "ago"] => {
            let number: i64 = number.parse().map_err(|_| usage())?;
            let span = match unit.strip_suffix('s').unwrap_or(unit) {
                "second" | "sec" => Span::new().try_seconds(number),
                "minute" | "min" => Span::new().try_minutes(number),
                "hour" => Span::new().try_hours(number),
                "day" => Span::new().try_days(number),
                "week" => Span::new().try_weeks(number),
                "month" => Span::new().try_months(number),
                "year" => Span::new().try_years(number),
                _ => return Err(usage()),
            };
            let time = span.and_then(|span| today.checked_sub(span)).map_err(|_| usage())?;
            return of(time.timestamp());
        }
        _ => {}
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return of(timestamp);
    }
    let civil: DateTime = text.parse().map_err(|_| usage())?;
    of(civil.to_zoned(TimeZone::system()).map_err(|_| usage())?.timestamp())
}

pub fn now() -> Time {
    i64::try_from(Timestamp::now().as_nanosecond()).expect("this program is not run after 2262")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_times_can_be_shown() {
        for time in [i64::MIN, -1, 0, i64::MAX] {
            assert!(!full(time).is_empty());
            assert_eq!(Style::default().show(time, 0).len(), 12, "{time}");
        }
    }

    #[test]
    fn seconds_are_counted_and_cut() {
        for (time, digits, text) in [
            (1_500_000_000, 0, "1"),
            (1_500_000_000, 3, "1.500"),
            (1_000_000_007, 10, "1.0000000070"),
            (-500_000_000, 1, "-0.5"),
            (-500_000_000, 0, "-1"),
            (-2_000_000_000, 2, "-2.00"),
        ] {
            assert_eq!(seconds(time, digits), text);
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let day = 86_400 * SECOND_NS;
        assert_eq!(parse("@1.5", 0), Ok(1_500_000_000));
        assert_eq!(parse("1970-01-02T00:00:00Z", 0), Ok(day));
        assert_eq!(parse("2 days ago", 3 * day), Ok(day));
        assert_eq!(parse("now", 7), Ok(7));
        assert!(parse("1970-01-02", 0).is_ok() && parse("1970-01-02 10:30", 0).is_ok());
        for text in ["", "soon", "@", "@x", "@1.0000000001", "2 dogs ago", "x days ago", "1970-13-01"] {
            assert!(parse(text, 0).is_err(), "{text}");
        }
    }

    #[test]
    fn styles_are_checked_before_they_are_used() {
        for (style, text) in [
            ("full-iso", "1970-01-01 00:00:00.000000000"),
            ("long-iso", "1970-01-01 00:00"),
            ("iso", "01-01 00:00"),
            ("+%s %N %c", "0 000000000 Thu Jan  1 00:00:00 1970"),
            ("+old\nnew", "new"),
        ] {
            let shown = Style::parse(style).unwrap().show(0, 1);
            assert!(zoned(0).time_zone() != &TimeZone::UTC || shown.starts_with(text), "{style}: {shown}");
        }
        assert!(["", "bogus", "+%", "+%!"].iter().all(|style| Style::parse(style).is_err()));
    }
}
