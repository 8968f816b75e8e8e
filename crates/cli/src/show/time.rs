//! Times in the user's own time zone.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use myriad_engine::Time;

const HALF_YEAR_NS: i64 = 31_556_952 * 500_000_000;

/// Every 64-bit count of nanoseconds is a time jiff knows: its range is some thousand years.
fn zoned(time: Time) -> Zoned {
    let timestamp = Timestamp::from_nanosecond(i128::from(time)).expect("within some 300 years of 1970");
    timestamp.to_zoned(TimeZone::system())
}

/// As `stat` shows it: `2025-11-21 20:58:47.123456789 +0100`.
pub fn full(time: Time) -> String {
    zoned(time).strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string()
}

/// As `ls -l` shows it: with the time of day if it is of the last six months, with the year if not.
pub fn short(time: Time, now: Time) -> String {
    let is_recent = time <= now && now.saturating_sub(time) < HALF_YEAR_NS;
    zoned(time).strftime(if is_recent { "%b %e %H:%M" } else { "%b %e  %Y" }).to_string()
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
            assert_eq!(short(time, 0).len(), 12, "{}", short(time, 0));
        }
    }
}
