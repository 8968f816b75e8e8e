//! The figures of a mount in the text format that Prometheus and its kin collect.

use super::control::Status;
use super::stats::Figures;
use std::fmt::Write;
use std::path::Path;

/// Gauges and counters of the mount itself: our key, the name there, its kind, what it is.
const FIGURES: [(&str, &str, &str, &str); 15] = [
    ("bytes_read", "myriad_read_bytes_total", "counter", "Bytes that reads gave."),
    ("bytes_written", "myriad_written_bytes_total", "counter", "Bytes that writes took."),
    ("nodes", "myriad_known_inodes", "gauge", "Inodes that the kernel knows."),
    ("cache_size", "myriad_cache_size_bytes", "gauge", "Room for cached blocks."),
    ("cache_used", "myriad_cache_used_bytes", "gauge", "Cached blocks."),
    ("dirty_data", "myriad_dirty_data_bytes", "gauge", "File data that is in memory only."),
    (
        "dirty_log",
        "myriad_dirty_log_bytes",
        "gauge",
        "Metadata changes that are in memory only, as the log will hold them.",
    ),
    ("dircache_used", "myriad_dircache_bytes", "gauge", "Cached blocks of directories."),
    ("dirhash_used", "myriad_dirhash_bytes", "gauge", "Hashes of directories."),
    ("dirhash_count", "myriad_dirhash_directories", "gauge", "Directories that have a hash."),
    ("log_size", "myriad_log_size_bytes", "gauge", "Size of the log."),
    ("size", "myriad_size_bytes", "gauge", "Size of the volume."),
    ("available", "myriad_available_bytes", "gauge", "Free space."),
    ("inodes_used", "myriad_inodes_used", "gauge", "Inodes in use."),
    ("inodes_free", "myriad_inodes_free", "gauge", "Inodes that free space has room for."),
];

pub fn text(figures: &Figures, status: &Status) -> String {
    let labels = format!("image=\"{}\",mount=\"{}\"", escape(&status.image), escape(&status.mount_point));
    let mut text = String::new();
    for (key, name, kind, about) in FIGURES {
        head(&mut text, name, kind, about);
        put(&mut text, name, &labels, figures.number(key));
    }
    let name = "myriad_requests_errors_total";
    head(&mut text, name, "counter", "Requests of the kernel that were answered with an error.");
    for request in figures.requests() {
        put(&mut text, name, &format!("{labels},request=\"{}\"", request.name), request.errors);
    }
    let name = "myriad_request_duration_seconds";
    head(&mut text, name, "histogram", "Time to answer a request of the kernel.");
    for request in figures.requests() {
        let labels = format!("{labels},request=\"{}\"", request.name);
        let mut sum = 0;
        for (bucket, count) in request.latency.iter().enumerate() {
            sum = u64::saturating_add(sum, *count);
            // The last one has no upper end.
            let end = 1_u64.checked_shl(bucket as u32 + 1).filter(|_| bucket + 1 < request.latency.len());
            if let Some(end) = end {
                let end = end as f64 / 1e9;
                put(&mut text, &format!("{name}_bucket"), &format!("{labels},le=\"{end}\""), sum);
            }
        }
        put(&mut text, &format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), request.count);
        let seconds = request.total_ns as f64 / 1e9;
        writeln!(text, "{name}_sum{{{labels}}} {seconds}").expect("a string takes everything");
        put(&mut text, &format!("{name}_count"), &labels, request.count);
    }
    let name = "myriad_engine_total";
    head(&mut text, name, "counter", "What the engine counts.");
    for (counter, value) in figures.counters() {
        put(&mut text, name, &format!("{labels},counter=\"{counter}\""), value);
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, about: &str) {
    writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}").expect("a string takes everything");
}

fn put(text: &mut String, name: &str, labels: &str, value: u64) {
    writeln!(text, "{name}{{{labels}}} {value}").expect("a string takes everything");
}

/// The value of a label.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
