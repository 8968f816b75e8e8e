//! The machine around a modelled drive: what its processor takes.
//!
//! The processor is charged for what the engine counts: calls, calls that change something, blocks of the cache that are looked at, entries of
//! directories that are compared; and for a call for each file whose attributes came with a listing. Its time moves the drive's clock, so the
//! platters turn and the drive's cache is written out meanwhile: computing is hidden behind the drive's work where it would have been.
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

    /// With calls that an engine does not count.
    pub fn with_calls(self, calls: u64) -> Self {
        Self { calls: self.calls + calls, ..self }
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

    /// A write to the same place waits for one turn of the platters, whether the host computes for a part of it or not.
    #[test]
    fn computing_hides_behind_the_drive() {
        let took = |ns: u64| {
            let mut drive = Preset::named("disk1996").unwrap().model();
            drive.serve(&[Request::write(1 << 28, 4096)]);
            let before = drive.now_ns();
            drive.compute(ns);
            drive.serve(&[Request::write(1 << 28, 4096)]);
            drive.now_ns() - before
        };
        assert_eq!(took(0), took(2_000_000));
        assert!(took(0) < took(20_000_000));
    }
}
