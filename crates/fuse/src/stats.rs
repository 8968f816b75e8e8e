//! Counters of a mount.

use std::time::Duration;

/// Powers of two of nanoseconds that a latency histogram tells apart; the last has all that is longer.
pub const LATENCY_BUCKETS: usize = 32;

/// What a mount did since it began.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Kinds of requests that came at least once.
    pub requests: Vec<RequestStats>,
    /// Bytes that READ gave and WRITE took.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Inodes that the kernel knows.
    pub nodes: u64,
    pub uptime: Duration,
    /// `classic` or `ring`.
    pub transport: &'static str,
}

/// One kind of request.
#[derive(Clone, Debug)]
pub struct RequestStats {
    /// As the protocol names it: `LOOKUP`.
    pub name: &'static str,
    pub count: u64,
    /// Answered with an error.
    pub errors: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    /// `latency[i]`: answered in at least 2^i and less than 2^(i+1) nanoseconds.
    pub latency: [u64; LATENCY_BUCKETS],
}
