//! Counters of a mount, and the log of its requests.

use crate::answer::Answer;
use crate::request::{DecodeError, Operation, Request};
use crate::wire::{OPCODE_LIMIT, opcode_name};
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    /// Messages that were no request.
    pub undecodable: u64,
    /// Inodes that the kernel knows.
    pub nodes: u64,
    pub uptime: Duration,
    /// `classic` or `ring`.
    pub transport: &'static str,
    /// `fuse` or `fuseblk`.
    pub kind: &'static str,
    /// Why sync(2) and syncfs(2) do not reach the volume, if so.
    pub why_no_sync: Option<String>,
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

impl Stats {
    /// For people: a line a kind of request.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let line = format!(
            "{}, transport {}, up {:.0} s, {} nodes known, {} bytes read, {} bytes written\n",
            self.kind,
            self.transport,
            self.uptime.as_secs_f64(),
            self.nodes,
            self.bytes_read,
            self.bytes_written
        );
        text.push_str(&line);
        let _ = writeln!(
            text,
            "{:<20} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "request", "count", "errors", "mean us", "median us", "99% us", "max us"
        );
        for request in &self.requests {
            let _ = writeln!(
                text,
                "{:<20} {:>12} {:>10} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                request.name,
                request.count,
                request.errors,
                request.total_ns as f64 / request.count.max(1) as f64 / 1e3,
                request.quantile_ns(0.5) as f64 / 1e3,
                request.quantile_ns(0.99) as f64 / 1e3,
                request.max_ns as f64 / 1e3,
            );
        }
        text
    }
}

impl RequestStats {
    /// A time that the share `q` of requests did not take longer than: the upper end of its bucket.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let wanted = (self.count as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.latency.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return (2u64 << bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

#[derive(Default)]
struct Kind {
    count: AtomicU64,
    errors: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

/// Counts what a server answers.
pub struct Recorder {
    kinds: Box<[Kind]>,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    undecodable: AtomicU64,
    begin: Instant,
    /// Whether `log` has somebody who reads it, without its lock.
    is_logging: AtomicBool,
    log: Mutex<Option<Box<dyn Write + Send>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            kinds: (0..OPCODE_LIMIT).map(|_| Kind::default()).collect(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            undecodable: AtomicU64::new(0),
            begin: Instant::now(),
            is_logging: AtomicBool::new(false),
            log: Mutex::new(None),
        }
    }
}

impl Recorder {
    pub fn set_log(&self, log: Option<Box<dyn Write + Send>>) {
        self.is_logging.store(log.is_some(), Ordering::Relaxed);
        *self.log.lock() = log;
    }

    /// Counts an answered request.
    pub fn record(&self, request: &Request<'_>, answer: Answer, took: Duration) {
        let ns = took.as_nanos() as u64;
        if let Some(kind) = self.kinds.get(request.header.opcode as usize) {
            kind.count.fetch_add(1, Ordering::Relaxed);
            kind.total_ns.fetch_add(ns, Ordering::Relaxed);
            if ns > kind.max_ns.load(Ordering::Relaxed) {
                kind.max_ns.fetch_max(ns, Ordering::Relaxed);
            }
            kind.latency[(ns.max(1).ilog2() as usize).min(LATENCY_BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
            match (answer, &request.operation) {
                (Answer::Error(_), _) => {
                    kind.errors.fetch_add(1, Ordering::Relaxed);
                }
                (Answer::Bytes(len), Operation::Read(_)) => {
                    self.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
                }
                (_, Operation::Write { data, .. }) => {
                    self.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        if self.is_logging.load(Ordering::Relaxed) {
            self.log(request, answer, ns);
        }
    }

    /// Counts a message that was no request.
    pub fn note(&self, error: &DecodeError) {
        self.undecodable.fetch_add(1, Ordering::Relaxed);
        self.write_line(&format!("undecodable: {error}\n"));
    }

    #[cold]
    fn log(&self, request: &Request<'_>, answer: Answer, ns: u64) {
        let header = &request.header;
        let mut line = format!(
            "{:.6} {} unique={} node={} uid={} pid={}",
            self.begin.elapsed().as_secs_f64(),
            request.name(),
            header.unique,
            header.nodeid,
            header.uid,
            header.pid
        );
        let name = match &request.operation {
            Operation::Lookup { name }
            | Operation::MkNod { name, .. }
            | Operation::MkDir { name, .. }
            | Operation::Unlink { name }
            | Operation::RmDir { name }
            | Operation::Create { name, .. }
            | Operation::Symlink { name, .. }
            | Operation::Link { name, .. }
            | Operation::GetXattr { name, .. }
            | Operation::SetXattr { name, .. }
            | Operation::RemoveXattr { name }
            | Operation::Rename { name, .. } => Some(*name),
            _ => None,
        };
        if let Some(name) = name {
            let _ = write!(line, " name=\"{}\"", name.escape_ascii());
        }
        match &request.operation {
            Operation::Rename { new_parent, new_name, .. } => {
                let _ = write!(line, " to={new_parent} new=\"{}\"", new_name.escape_ascii());
            }
            Operation::Read(args) | Operation::ReadDir { args, .. } => {
                let _ = write!(line, " offset={} size={}", args.offset, args.size);
            }
            Operation::Write { args, .. } => {
                let _ = write!(line, " offset={} size={}", args.offset, args.size);
            }
            _ => {}
        }
        let _ = match answer {
            Answer::Bytes(len) => write!(line, " -> {len} bytes"),
            Answer::Error(errno) => write!(line, " -> {errno}"),
            Answer::Nothing => write!(line, " -> no answer"),
        };
        let _ = writeln!(line, ", {:.1} us", ns as f64 / 1e3);
        self.write_line(&line);
    }

    fn write_line(&self, line: &str) {
        let mut log = self.log.lock();
        // A log that takes no more must not fail the request.
        if log.as_mut().is_some_and(|log| log.write_all(line.as_bytes()).is_err()) {
            *log = None;
            self.is_logging.store(false, Ordering::Relaxed);
        }
    }

    /// Everything counted so far.
    pub fn snapshot(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = self.kinds.iter().enumerate().filter(|(_, kind)| get(&kind.count) > 0);
        Stats {
            requests: requests
                .map(|(opcode, kind)| RequestStats {
                    name: opcode_name(opcode as u32).unwrap_or("unknown"),
                    count: get(&kind.count),
                    errors: get(&kind.errors),
                    total_ns: get(&kind.total_ns),
                    max_ns: get(&kind.max_ns),
                    latency: std::array::from_fn(|bucket| get(&kind.latency[bucket])),
                })
                .collect(),
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            undecodable: get(&self.undecodable),
            nodes: 0,
            uptime: self.begin.elapsed(),
            transport: "",
            kind: "",
            why_no_sync: None,
        }
    }
}
