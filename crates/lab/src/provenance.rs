//! Where a result comes from: without it a number cannot be judged later.

use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// UTC, ISO 8601.
    pub date: String,
    /// Of the checkout that the program was built from, as it is now; `-dirty` with changes.
    pub commit: String,
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    pub sqlite: String,
}

impl Provenance {
    pub fn now() -> Self {
        let uname = rustix::system::uname();
        let info = rustix::system::sysinfo();
        Self {
            date: now(),
            commit: commit().unwrap_or_else(|| "unknown".to_owned()),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            cpu: cpu_model().unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: info.totalram as u64 * u64::from(info.mem_unit),
            sqlite: rusqlite::version().to_owned(),
        }
    }
}

/// UTC, ISO 8601.
pub fn now() -> String {
    iso_date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn commit() -> Option<String> {
    let arguments = ["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"];
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.is_empty()).then(|| text.trim().to_owned())
}

/// A hash of this program, as it runs: a checkout with changes has many programs by one name of a commit.
pub fn program() -> Option<String> {
    // Read once: it does not change while it runs.
    static PROGRAM: OnceLock<Option<String>> = OnceLock::new();
    let hash = || -> std::io::Result<String> {
        let mut file = BufReader::with_capacity(1 << 20, std::fs::File::open("/proc/self/exe")?);
        let mut hasher = DefaultHasher::new();
        loop {
            let bytes = file.fill_buf()?;
            if bytes.is_empty() {
                return Ok(format!("{:016x}", hasher.finish()));
            }
            hasher.write(bytes);
            let count = bytes.len();
            file.consume(count);
        }
    };
    PROGRAM.get_or_init(|| hash().ok()).clone()
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Days to a date by the civil calendar's 400-year cycle (Hinnant, "chrono-compatible low-level date algorithms").
fn iso_date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(iso_date(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso_date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(iso_date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso_date(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(iso_date(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn machine_is_named() {
        let provenance = Provenance::now();
        assert!(provenance.kernel.starts_with("Linux "));
        assert!(provenance.cpus > 0 && provenance.memory_bytes > 0);
    }
}
