//! Order `softdep` with changes held back: a thread comes by every second and writes the changes that are due, as FreeBSD's syncer does. If too much
//! is held back, the oldest changes are written at once.
//!
//! When a change is due, `order/soft/delays.rs` says; how much is too much, `order/soft/limits.rs`.

use super::Volume;
use crate::counters::Count;
use crate::dir::{self, OwnName};
use crate::error::Result;
use crate::file;
use crate::inode;
use crate::order::soft::{Delays, Soft, Wanted};
use crate::schedule;
use crate::types::Order;
use crate::way_up;
use myriad_format::Ino;

/// With fewer inodes than this, those that wait to be given back are wanted: more than operations under way may take.
const INODES_FEW: u64 = 256;

impl Volume {
    /// How long changes are held back, if they are.
    pub fn delays(&self) -> Option<Delays> {
        if self.order == Order::Soft { self.live.delays() } else { None }
    }

    /// Makes durable what is due; false if nothing is held back. Whoever syncs a file that could not be flushed is told of that.
    pub fn write_due(&self) -> Result<bool> {
        let (Some(delays), Some(soft)) = (self.delays(), &self.soft) else { return Ok(false) };
        let due = delays.due_at(self.ticks());
        let flushed = file::flush_due(self, due);
        let needs_all = {
            // A round that begins takes what waits out of its place.
            let mut checkpointer = self.checkpointer.lock();
            let has_due = soft.has_due(due);
            checkpointer.run_due(self, due, has_due)?;
            // What is overdue was due before, too.
            let is_overdue = has_due && delays.overdue_at(self.ticks()).is_some_and(|overdue| soft.has_due(overdue));
            self.counters.add(Count::soft_overdue, u64::from(is_overdue));
            // Two names that are exchanged show together, in a round of everything.
            is_overdue || soft.has_due_exchange(due)
        };
        if needs_all {
            self.commit_now()?;
        }
        flushed.map(|()| true)
    }

    /// Writes what is oldest of what soft updates hold, and if that is not enough, all of it.
    pub fn write_oldest(&self) -> Result<()> {
        let Some(soft) = &self.soft else { return Ok(()) };
        if self.order == Order::Soft {
            // As in `write_due`.
            let mut checkpointer = self.checkpointer.lock();
            if let Some(due) = soft.older_half(self.ticks()) {
                self.counters.bump(Count::soft_sheds);
                checkpointer.run_due(self, due, true)?;
            }
        }
        if soft.is_much() { self.commit_for_room() } else { Ok(()) }
    }

    /// Before an operation begins: if soft updates hold too much, or if inodes are few and some wait to be given back, that is written first.
    pub(super) fn make_room_in(&self, soft: &Soft) -> Result<()> {
        if soft.is_much() {
            self.throttle_soft(soft)?;
        }
        if soft.inodes_waiting() > 0 && self.table_inodes_free().is_some_and(|free| free < INODES_FEW) {
            // Never full while there is something to give back.
            self.commit_for_room()?;
        }
        Ok(())
    }

    /// Makes durable what an fsync of a file needs, and no more.
    pub(super) fn commit_needed_by(&self, soft: &Soft, file: Ino) -> Result<()> {
        if let Some(name) = self.own_name(file) {
            // The rounds judge whether what lasts reaches the file, behind the closed gate. What cannot be read, they find as well.
            let _ = way_up::read_ahead(self, file);
            // Another thread may give it another name and take this one away: the rounds look once more, where it lay.
            return self.write_needed_by(soft, Wanted { file, name });
        }
        self.counters.bump(Count::soft_fsyncs_of_all);
        self.commit_now()
    }

    /// Makes rounds of what a file needs. The thread that gets the checkpointer does so for all files that threads wait for.
    fn write_needed_by(&self, soft: &Soft, file: Wanted) -> Result<()> {
        let ticket = soft.wants(file);
        // Another thread may do it in the meantime.
        schedule::pause();
        let mut checkpointer = self.checkpointer.lock();
        let wanted = soft.wanted();
        if !wanted.contains_key(&ticket) {
            // Another thread has done it.
            return self.check_not_shut_down();
        }
        let files: Vec<Wanted> = wanted.values().copied().collect();
        let mut done = checkpointer.run_for(self, &files);
        match &done {
            Ok(()) => soft.are_done(wanted.keys()),
            Err(_) => {
                soft.are_done([&ticket]);
                if files.len() > 1 && self.check_not_shut_down().is_ok() {
                    // Another one of them may need what cannot be read.
                    done = checkpointer.run_for(self, &[file]);
                }
            }
        }
        done
    }

    /// The name of a file that its identity says. A file that had several may have lost that one; nothing says then which it has. What cannot be read
    /// says nothing either.
    fn own_name(&self, file: Ino) -> Option<OwnName> {
        let look = self.look();
        let raw = inode::read(&look, file).ok()?;
        let _lock = self.lock_shared(Ino(raw.parent.get()));
        dir::own_name(&look, file, &raw).ok()?
    }

    /// So much waits that the thread that begins an operation writes it, or waits for that.
    #[cold]
    fn throttle_soft(&self, soft: &Soft) -> Result<()> {
        if soft.is_full() {
            self.counters.bump(Count::soft_stalls);
            // Something that cannot be read keeps some of it from becoming durable, and not the rest.
            self.commit_now().or_else(|error| if soft.is_full() { Err(error) } else { self.check_not_shut_down() })
        } else if self.options.background {
            self.wake_to_shed();
            Ok(())
        } else {
            self.write_oldest()
        }
    }
}
