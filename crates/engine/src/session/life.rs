//! The life of an open volume: recovery, the background threads, the clean end.

use crate::error::{Errno, Error, Result};
use crate::file;
use crate::ops::{reclaim_orphans, reclaim_put_off, settle_second_names};
use crate::order::checkpointer::Checkpointer;
use crate::types::Order;
use crate::volume::Volume;
use myriad_format::superblock::{Superblock, leftovers, state};
use myriad_format::{BlockKind, Corrupt, FsBlock};
use myriad_log::LogPlace;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct Mounted {
    pub volume: Arc<Volume>,
    pub background: Mutex<Vec<JoinHandle<()>>>,
}

/// How often a volume that others still write to is flushed, before it is said to be in use.
const CLOSING_ROUNDS: u32 = 8;

impl Mounted {
    pub fn check_process(&self) -> Result<()> {
        self.volume.check_process()
    }

    /// Ends the volume for all who have it; EBUSY if files are open.
    pub fn close(&self) -> Result<()> {
        self.check_process()?;
        // Two who close take turns.
        let mut background = self.background.lock();
        self.volume.unmount(true)?;
        self.stop(&mut background);
        Ok(())
    }

    fn stop(&self, background: &mut Vec<JoinHandle<()>>) {
        self.volume.wake.stop();
        self.volume.cache.warm.stop();
        for thread in background.drain(..) {
            // Each ends what it has begun, such as a checkpoint. A panic of one has shut the volume down.
            let _ = thread.join();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        self.stop(&mut self.background.lock());
        // Nobody is left to tell; what was synced is safe, and the next opening recovers the rest.
        let _ = self.volume.unmount(false);
    }
}

pub(super) fn spawn(name: &str, volume: &Arc<Volume>, run: fn(&Volume)) -> Result<JoinHandle<()>> {
    let volume = volume.clone();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&volume));
    thread.map_err(|source| Error::host("start of a background thread", source))
}

/// Looks for second names of directories after a crash, beside those who use the volume. Where it fails, who needs that tries again and is told.
pub(super) fn run_search(volume: &Volume) {
    volume.unbroken(|| drop(settle_second_names(volume)));
}

/// Makes checkpoints when operations ask for them, and by itself every commit interval, unless that is 0. Where soft updates hold changes back, it
/// writes what is due instead, visit by visit, and what is oldest when that is asked for.
pub(super) fn run_background(volume: &Volume) {
    // If this thread panics, nobody makes checkpoints any more; so the volume shuts down.
    volume.unbroken(|| make_checkpoints(volume));
}

/// How long it waits at most; `None`: until it is woken.
fn interval(volume: &Volume) -> Option<Duration> {
    match (volume.delays(), volume.live.commit_interval_ms()) {
        (Some(delays), _) => Some(delays.visit()),
        (None, 0) => None,
        (None, commit) => Some(Duration::from_millis(commit)),
    }
}

fn make_checkpoints(volume: &Volume) {
    let mut last = Instant::now();
    loop {
        // However often it is woken in between, as by whoever sets the interval.
        let (told, timed_out) =
            volume.wake.wait(|| interval(volume).map(|interval| interval.saturating_sub(last.elapsed())));
        if told.stop {
            return;
        }
        // Also where it is woken more often than that.
        let is_time = timed_out || interval(volume).is_some_and(|interval| last.elapsed() >= interval);
        if is_time {
            last = Instant::now();
        }
        let visits = is_time && volume.delays().is_some();
        if !told.wanted && (visits || told.shed && !is_time) {
            write_some(volume, visits, told.shed);
            continue;
        }
        let flush = told.flush || is_time && !visits;
        if volume.check_running().is_err() {
            continue;
        }
        // A file that cannot be flushed stays dirty, and is no reason not to make durable what others did. Who syncs it is
        // told; and so is, of a volume that was shut down, its next user.
        if flush {
            let _ = file::flush_all(volume);
        }
        if flush || visits {
            reclaim_put_off(volume);
        }
        if !flush || volume.has_uncommitted() || volume.has_to_give_back() {
            let _ = volume.commit_now();
        }
        if visits {
            let _ = volume.write_due();
        }
        volume.give_back(false);
    }
}

/// Writes what is due, or oldest. Who syncs a file that cannot be flushed is told, as is of a volume that was shut down its next user.
fn write_some(volume: &Volume, visits: bool, sheds: bool) {
    if volume.check_running().is_err() {
        return;
    }
    if visits {
        let _ = volume.write_due();
    }
    if sheds {
        let _ = volume.write_oldest();
    }
    volume.give_back(false);
}

impl Volume {
    /// Brings an assembled volume to life: totals, orphans, and, for a writer, the mark that it is in use.
    pub(super) fn recover(&self, log: Option<&LogPlace>) -> Result<()> {
        let look = self.look();
        // What the log laid over it has passed no checksum of its own.
        let superblock =
            look.read(FsBlock(0), BlockKind::Superblock, |bytes| Superblock::decode(bytes, FsBlock(0)))??;
        drop(look);
        if superblock.geometry() != self.geometry || superblock.root_ino != self.superblock.root_ino {
            return Err(
                Corrupt::Superblock { field: "block_count in the log", value: superblock.block_count.get() }.into()
            );
        }
        if !self.options.read_only && superblock.needs_check(true) {
            // The log alone has it.
            return Err(Error::Unchecked);
        }
        self.load_totals(&superblock);
        self.live.take_label(&superblock);
        self.load_orphans(&superblock)?;
        if !self.options.read_only {
            self.write_superblock(state::IN_USE)?;
            if let (true, Some(log)) = (self.order != Order::Log, log) {
                self.checkpointer.lock().retire_log(self, log)?;
            }
            if superblock.state.get() == state::IN_USE {
                let went_by_rounds = superblock.order().goes_by_rounds();
                if went_by_rounds {
                    self.recount()?;
                }
                // An opening in another order may have been cut off before it had looked for those of an earlier one.
                if went_by_rounds || superblock.leftovers != 0 {
                    self.second_names.begin();
                }
            }
            if superblock.leftovers & leftovers::SECOND_NAMES != 0 {
                self.second_names.begin();
            }
            if self.order == Order::Log && !superblock.is_logged() {
                // Who opens it next, or looks at the device, goes by what is there. Not before the log has what was counted anew: after a crash under it
                // nobody counts.
                self.commit_now()?;
                self.write_superblock(state::IN_USE)?;
            }
            if self.soft.is_some() && superblock.orphan_root.get() != 0 {
                // The list of another order goes. Nobody gets its blocks before the superblock names it no more.
                self.commit_now()?;
            }
            reclaim_orphans(self)?;
        }
        Ok(())
    }

    /// Brings everything home and marks the volume clean, with which it is closed. With `in_use` others may have it
    /// too: EBUSY, and it goes on, if files are open or do not stop changing. So it does if the host has no room.
    fn unmount(&self, in_use: bool) -> Result<()> {
        if self.options.read_only || self.is_closed() {
            return Ok(());
        }
        if self.check_running().is_ok()
            // The next opening does not look for them.
            && let Err(error) = settle_second_names(self)
        {
            // What was written is to be durable all the same; the volume stays marked as in use, and the next opening looks again.
            let _ = file::flush_all(self);
            let _ = self.commit_now();
            return Err(error);
        }
        // Whoever opens it next knows nothing of a reader.
        self.checkpointer.lock().give_up_moment("the volume was closed");
        for _ in 0..CLOSING_ROUNDS {
            self.check_running()?;
            if let Err(error) = file::flush_all(self).and_then(|()| reclaim_orphans(self)) {
                // What others did is to be durable all the same; the volume stays marked as in use.
                let _ = self.commit_now();
                return Err(error);
            }
            let mut checkpointer = self.checkpointer.lock();
            // Without handles nobody writes: what has changed since is then metadata, and needs no more than
            // checkpoints.
            let gate = self.cache.gate.close();
            if in_use && self.files.open_handles() > 0 {
                break;
            }
            if self.files.has_ahead() || self.has_idle_orphans() {
                continue;
            }
            self.refuse_changes(&gate);
            drop(gate);
            let closed = self.settle_and_mark(&mut checkpointer);
            match &closed {
                // All is as it was, and closing can be tried again once there is room.
                Err(Error::HostFull(_)) => self.accept_changes(),
                Err(error) => self.shut_down(error),
                Ok(()) => {}
            }
            return closed;
        }
        // As where files are found open at once.
        self.commit_now()?;
        Err(Errno::BUSY.into())
    }

    /// Whether a file without a name waits for its end. Those that are held keep the volume open, or are left to the
    /// next opening, and so are those that are damaged. The gate is closed.
    fn has_idle_orphans(&self) -> bool {
        self.orphans.sound().into_iter().any(|ino| !self.files.is_open(ino))
    }

    /// The end of the volume: nobody changes it any more, and no checkpoint comes after this.
    fn settle_and_mark(&self, checkpointer: &mut Checkpointer) -> Result<()> {
        let settled = checkpointer.close(self)?;
        self.give_back(true);
        // One may have begun meanwhile.
        checkpointer.give_up_moment("the volume was closed");
        if self.soft.is_some() && !self.orphans.nameless().is_empty() {
            // No list on the device has those that could not be freed. The next check finds them.
            self.note_leftovers();
        }
        // Not settled, it stays marked as in use, and the next opening recovers what the log holds.
        let marked = if settled { self.write_superblock(state::CLEAN) } else { Ok(()) };
        if matches!(marked, Err(Error::HostFull(_))) {
            checkpointer.reopen();
        }
        marked
    }
}
