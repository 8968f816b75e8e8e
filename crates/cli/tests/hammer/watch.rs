//! What of volume and daemon must not grow from round to round.

use crate::common::mount::MountPlace;
use crate::worker::Outcome;
use rustix::fs as unix;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Rounds after which memory and descriptors in use are taken for all that the daemon needs.
const WARM_ROUNDS: u64 = 3;
/// What it may grow by later: the allocator's fragments, stacks of threads that had not been that deep.
const GROWTH_KIB_MAX: u64 = 16 << 10;
/// Descriptors that it may need later: a ring for each batch of requests of the image that is under way with others.
const DESCRIPTORS_MORE: u64 = 8;
/// Inodes that the kernel may remember beyond those of the first rounds' end: the next ones that the host frees.
const NODES_MORE: u64 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    free_blocks: u64,
    free_inodes: u64,
    descriptors: u64,
    nodes: u64,
    rss_kib: u64,
}

pub struct Watch<'a> {
    place: &'a MountPlace,
    daemon: i32,
    rounds: u64,
    /// At the end of the first round.
    first: Level,
    /// The most at the end of one of the first rounds.
    warm: (u64, u64),
    now: Level,
}

impl<'a> Watch<'a> {
    pub fn new(place: &'a MountPlace) -> Self {
        let (first, now) = Default::default();
        Self { place, daemon: place.daemon(), rounds: 0, first, warm: (0, 0), now }
    }

    fn level(&self) -> std::io::Result<Level> {
        let root = self.place.mounted("");
        // What was freed counts as free once its freeing is durable.
        File::open(&root)?.sync_all()?;
        let totals = unix::statvfs(&root)?;
        let process = PathBuf::from(format!("/proc/{}", self.daemon));
        let status = fs::read_to_string(process.join("status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        let stats = self.place.line("stats --json mnt").ok().json();
        Ok(Level {
            free_blocks: totals.f_bfree,
            free_inodes: totals.f_ffree,
            descriptors: fs::read_dir(process.join("fd"))?.count() as u64,
            nodes: stats["nodes"].as_u64().expect("a count"),
            rss_kib: rss.expect("the kernel says how much memory a process has"),
        })
    }

    /// After a round, with everything removed. The kernel tells the daemon in its own time what it forgets, so this waits.
    pub fn look(&mut self) -> Outcome {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.now = self.level().map_err(|error| format!("looking at the daemon: {error}"))?;
            let is_first = self.rounds == 0;
            let excess = if is_first { vec![] } else { self.excess() };
            if excess.is_empty() && (!is_first || self.now.nodes < 50) {
                break;
            }
            if Instant::now() > end {
                return Err(format!(
                    "grown since the first round: {excess:?}; then {:?}, now {:?}",
                    self.first, self.now
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.rounds += 1;
        if self.rounds == 1 {
            self.first = self.now;
        }
        if self.rounds <= WARM_ROUNDS {
            let (descriptors, rss_kib) = self.warm;
            self.warm = (descriptors.max(self.now.descriptors), rss_kib.max(self.now.rss_kib));
        }
        Ok(())
    }

    /// What is not as it was at the end of the first round.
    fn excess(&self) -> Vec<&'static str> {
        let (first, now, is_warm) = (&self.first, &self.now, self.rounds >= WARM_ROUNDS);
        let (descriptors, rss_kib) = self.warm;
        let checks = [
            ("blocks", first.free_blocks != now.free_blocks),
            ("inodes", first.free_inodes != now.free_inodes),
            ("descriptors", is_warm && now.descriptors > descriptors + DESCRIPTORS_MORE),
            ("nodes", now.nodes > first.nodes + NODES_MORE),
            ("memory", is_warm && now.rss_kib > rss_kib + GROWTH_KIB_MAX),
        ];
        checks.into_iter().filter_map(|(what, is_more)| is_more.then_some(what)).collect()
    }

    pub fn report(&self) -> String {
        let Level { free_blocks, free_inodes, descriptors, nodes, rss_kib } = self.now;
        format!(
            "RSS {:.1} MiB, {descriptors} descriptors, {nodes} nodes, {free_blocks} blocks and {free_inodes} inodes free",
            rss_kib as f64 / 1024.0
        )
    }
}
