//! The machine around a modelled drive: what its processor takes.
//!
//! The processor is charged for what the engine counts: calls, calls that change something, blocks of the cache that are looked at, entries of
//! directories that are compared. Its time moves the drive's clock, so the platters turn and the drive's cache is written out meanwhile:
//! computing is hidden behind the drive's work where it would have been.
//!
//! Not charged: moving the bytes of files, and what programs compute themselves, such as a compiler.

/// What the processor of a machine takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    pub call_ns: u64,
    /// Of a call that changes names or attributes, in addition.
    pub change_ns: u64,
    pub block_ns: u64,
    pub entry_ns: u64,
}

/// What an engine has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    calls: u64,
    changes: u64,
    blocks: u64,
    entries: u64,
}

impl Done {
    /// From an engine's counters.
    pub fn of<'n>(counters: impl IntoIterator<Item = (&'n str, u64)>) -> Self {
        let mut done = Self::default();
        for (name, count) in counters {
            match name {
                "creates" | "mkdirs" | "links" | "unlinks" | "rmdirs" | "renames" | "setattrs" | "truncates" => {
                    done.calls += count;
                    done.changes += count;
                }
                "stats" | "opens" | "reads" | "writes" | "readdirs" | "fsyncs" => done.calls += count,
                "blocks_touched" => done.blocks += count,
                "dir_tags_compared" => done.entries += count,
                _ => {}
            }
        }
        done
    }
}

impl Host {
    /// What it takes from one moment to another.
    pub fn ns(&self, from: Done, to: Done) -> u64 {
        self.call_ns * (to.calls - from.calls)
            + self.change_ns * (to.changes - from.changes)
            + self.block_ns * (to.blocks - from.blocks)
            + self.entry_ns * (to.entries - from.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Preset, Request};

    #[test]
    fn what_is_counted_is_charged() {
        let host = Host { call_ns: 1000, change_ns: 100, block_ns: 10, entry_ns: 1 };
        let from = Done::of([("stats", 5), ("blocks_touched", 7), ("cache_misses", 100)]);
        let to = Done::of([("stats", 6), ("creates", 2), ("blocks_touched", 10), ("dir_tags_compared", 4), ("x", 9)]);
        assert_eq!(host.ns(from, to), 3000 + 200 + 30 + 4);
        assert_eq!(host.ns(to, to), 0);
    }

    /// What the host computes, the drive uses: a write that follows close on another one waits for the platters, and later for less.
    #[test]
    fn computing_hides_behind_the_drive() {
        let took = |ns: u64| {
            let mut drive = Preset::named("machine2001").unwrap().model();
            // More than the cache has room for.
            (0..40).for_each(|i| drive.serve(&[Request::write(i << 28, 64 << 10)]));
            drive.compute(ns);
            let before = drive.now_ns();
            drive.serve(&[Request::write(50 << 28, 64 << 10)]);
            (before, drive.now_ns() - before)
        };
        let ((start, busy), (later, idle)) = (took(0), took(20_000_000));
        assert_eq!(later - start, 20_000_000);
        assert!(idle < busy / 2, "{idle} {busy}");
    }
}
