//! The figures of a mount, for people.

use super::Stats;
use crate::context::Context;
use crate::failure::image_name;
use crate::mount::control::{Daemon, Request};
use crate::mount::prometheus;
use crate::mount::stats::{Figures, kind_text};
use crate::output::Output;
use crate::show::{size, table};
use crate::status::Status;
use anyhow::Result;
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Puts the cursor home and clears what is below it.
const CLEAR: &str = "\x1b[H\x1b[J";

impl Stats {
    pub(super) fn live(&self, context: &Context, daemon: &Daemon) -> Result<Status> {
        let ask = || daemon.ask(Request::Stats).map(Figures::new);
        let figures = ask()?;
        if self.json {
            context.out().json(figures.json())?;
            return Ok(Status::OK);
        }
        if self.prometheus {
            context.out().write_all(prometheus::text(&figures, &daemon.status).as_bytes())?;
            return Ok(Status::OK);
        }
        let title = format!(
            "{} on {}, process {}",
            image_name(&daemon.status.image),
            image_name(&daemon.status.mount_point),
            daemon.status.pid
        );
        let mut last = None;
        let mut figures = figures;
        loop {
            {
                let mut out = context.out();
                let refreshes = out.is_terminal() && !self.once;
                if refreshes {
                    write!(out, "{CLEAR}")?;
                }
                writeln!(out, "{title}")?;
                show(&mut out, &figures, last.as_ref(), self.counters)?;
                if !refreshes {
                    return Ok(Status::OK);
                }
                out.flush()?;
            }
            let next = Instant::now() + self.interval;
            while let Some(left) = next.checked_duration_since(Instant::now()) {
                if super::is_told_to_end(context)? {
                    return Ok(Status::OK);
                }
                thread::sleep(left.min(Duration::from_millis(100)));
            }
            last = Some(std::mem::replace(&mut figures, ask()?));
        }
    }
}

/// With rates since the figures before, or else since the mount began.
fn show(out: &mut Output, figures: &Figures, last: Option<&Figures>, with_counters: bool) -> io::Result<()> {
    let before = |key| last.map_or(0, |last| last.number(key));
    let seconds = figures.number("uptime_ns").saturating_sub(before("uptime_ns")) as f64 / 1e9;
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-9);
    let bytes = |key| figures.number(key);
    let log = match figures.json()["log_used"].as_u64() {
        Some(used) => format!("{} of {}", size::human(used), size::human(bytes("log_size"))),
        None => "none, or being written".into(),
    };
    let flow = |key| {
        let per_second = rate(bytes(key), before(key)) as u64;
        format!("{}/s, {} in all", size::human(per_second), size::human(bytes(key)))
    };
    let mut facts = vec![
        ("Transport", figures.text("transport").to_owned()),
        ("Mounted as", kind_text(figures.text("kind"), figures.json()["why_no_sync"].as_str())),
        ("Read", flow("bytes_read")),
        ("Written", flow("bytes_written")),
        ("Inodes known", bytes("nodes").to_string()),
        ("Cache", format!("{} of {}", size::human(bytes("cache_used")), size::human(bytes("cache_size")))),
        ("Directories in cache", size::human(bytes("dircache_used"))),
        (
            "Directory hashes",
            format!("{} of {} directories", size::human(bytes("dirhash_used")), bytes("dirhash_count")),
        ),
        ("Log", log),
        (
            "In memory only",
            format!("{} of data, {} of metadata", size::human(bytes("dirty_data")), size::human(bytes("dirty_log"))),
        ),
        ("Space", format!("{} used, {} free", size::human(bytes("used")), size::human(bytes("available")))),
    ];
    if let Some(reason) = figures.json()["shut_down"].as_str() {
        facts.push(("Shut down", format!("{reason}; reads go on")));
    }
    table::facts(out, &facts)?;
    let rows: Vec<Vec<String>> = figures
        .requests()
        .map(|request| {
            let last = last.and_then(|last| last.request(request.name));
            let count_before = last.as_ref().map_or(0, |last| last.count);
            let shown = |time: Option<u64>| time.map_or_else(|| "-".into(), time_text);
            vec![
                request.name.to_owned(),
                format!("{:.0}", rate(request.count, count_before)),
                request.count.to_string(),
                request.errors.to_string(),
                shown(request.total_ns.checked_div(request.count)),
                shown(request.within(0.5)),
                shown(request.within(0.99)),
                time_text(request.max_ns),
            ]
        })
        .collect();
    if !rows.is_empty() {
        writeln!(out)?;
        table::columns(
            out,
            &["Request", "per s", "Count", "Errors", "Mean", "p50", "p99", "Longest"],
            |column| column == 0,
            rows,
        )?;
    }
    if with_counters {
        let rows = figures.counters().map(|(name, value)| {
            let before = last.map_or(0, |last| last.counter(name));
            vec![name.to_owned(), format!("{:.0}", rate(value, before)), value.to_string()]
        });
        writeln!(out)?;
        table::columns(out, &["Counter", "per s", "Value"], |column| column == 0, rows.collect())?;
    }
    Ok(())
}

/// Three digits and a unit.
fn time_text(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let digits = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (nanoseconds, text) in
            [(7, "7 ns"), (1_234, "1.23 us"), (45_600, "45.6 us"), (789_000_000, "789 ms"), (2_000_000_000, "2.00 s")]
        {
            assert_eq!(time_text(nanoseconds), text);
        }
    }
}
