//! What is due: changes are held back by kind, as FreeBSD's syncer does, so that writes are spread and what comes and goes meanwhile costs none.
//!
//! ```text
//! data         of files, in memory only or with its blocks chosen      filedelay   30 s in FreeBSD
//! directories  blocks of entries                                       dirdelay    29
//! metadata     everything else                                         metadelay   28
//! ```
//!
//! A shadow is as old as the first change since its block was last written whole ([`Shadow::since`]). A visit (`volume/syncer.rs`, once a
//! second) makes rounds of what is due. A round may leave out any block. But some facts show only once all blocks of a kind are there, of which
//! there may always be a young one; those go along ([`Along`]).
//!
//! The clock is one that nobody sets. Should it go back all the same, what comes from the future is due: too early is always safe.

use super::shadow::Shadow;
use super::{Soft, State};
use crate::error::{Error, Result};
use crate::types::{MountOptions, Order, Time};
use myriad_format::{BlockKind, FsBlock, Geometry, Ino};
use std::collections::HashSet;
use std::time::Duration;

const NS_PER_MS: u64 = 1_000_000;
/// Milliseconds between two visits, unless something is due sooner.
const VISIT_MS: u64 = 1000;

/// How long changes are held back, in milliseconds; `None`: until a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    data: Option<u64>,
    directories: Option<u64>,
    metadata: Option<u64>,
}

/// Changes of each kind that are at least so old, in nanoseconds. `None`: no changes of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    now: Time,
    data: Option<u64>,
    directories: Option<u64>,
    metadata: Option<u64>,
}

/// What goes along with what is due: the judge shows a fact only once all of these last.
#[derive(Default)]
pub(super) struct Along {
    /// Groups whose headers are due, and may say that more of their tables is initialised.
    groups: HashSet<u32>,
    /// The superblock is, and may say that more groups are made.
    new_groups: bool,
    /// Directories with names that are due, and that have grown or given up blocks: their names show once all their blocks are mapped by what lasts, and
    /// one that grows all the time always has a young one.
    directories: HashSet<u64>,
    /// Blocks in which their inodes lie.
    inodes: HashSet<u64>,
}

impl Delays {
    /// `None`: everything is written at the commit interval.
    pub fn of(options: &MountOptions) -> Option<Self> {
        let MountOptions { file_delay_ms, dir_delay_ms, meta_delay_ms, commit_interval_ms: commit, .. } = *options;
        let is_any = file_delay_ms.or(dir_delay_ms).or(meta_delay_ms).is_some();
        let delay = |ms: Option<u64>| Some(ms.unwrap_or(commit)).filter(|&ms| ms > 0);
        is_any.then(|| Self {
            data: delay(file_delay_ms),
            directories: delay(dir_delay_ms),
            metadata: delay(meta_delay_ms),
        })
    }

    /// Refuses options of soft updates with another order.
    pub fn check(options: &MountOptions, order: Order) -> Result<()> {
        let given = [
            ("filedelay", options.file_delay_ms.is_some()),
            ("dirdelay", options.dir_delay_ms.is_some()),
            ("metadelay", options.meta_delay_ms.is_some()),
            ("softdep_maxmem", options.softdep_memory.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if order != Order::Soft => {
                let name = order.name();
                let reason = format!(
                    "it is for order=softdep, and this is order={name}; leave it out, or mount a volume that can be written in order=softdep with that"
                );
                Err(Error::bad_option(option, reason))
            }
            _ => Ok(()),
        }
    }

    fn all(self) -> [Option<u64>; 3] {
        [self.data, self.directories, self.metadata]
    }

    /// How long until the next visit.
    pub fn visit(self) -> Duration {
        let soonest = self.all().into_iter().flatten().min().unwrap_or(VISIT_MS);
        Duration::from_millis(soonest.min(VISIT_MS))
    }

    pub fn due_at(self, now: Time) -> Due {
        let age = |ms: Option<u64>| Some(ms?.saturating_mul(NS_PER_MS));
        Due { now, data: age(self.data), directories: age(self.directories), metadata: age(self.metadata) }
    }

    /// What has waited for twice the longest delay: something that it needs comes again and again. `None`: something may wait for ever.
    pub fn overdue_at(self, now: Time) -> Option<Due> {
        let longest = self.all().into_iter().try_fold(0, |longest, delay| Some(delay?.max(longest)))?;
        Some(Due::of_age(now, longest.saturating_mul(2 * NS_PER_MS)))
    }
}

impl Due {
    /// What has waited since then, or longer.
    pub fn since(now: Time, since: Time) -> Self {
        Self::of_age(now, now.saturating_sub(since).max(0) as u64)
    }

    fn of_age(now: Time, age: u64) -> Self {
        Self { now, data: Some(age), directories: Some(age), metadata: Some(age) }
    }

    fn is(self, since: Time, age: Option<u64>) -> bool {
        age.is_some_and(|age| since > self.now || self.now.abs_diff(since) >= age)
    }

    pub fn is_data(self, since: Time) -> bool {
        self.is(since, self.data)
    }

    /// Whether a name is due that has changed `since` then.
    pub(super) fn is_name(self, since: Time) -> bool {
        self.is(since, self.directories)
    }

    /// Whether a block of this kind is due that has changed `since` then.
    pub(super) fn is_block(self, kind: BlockKind, since: Option<Time>) -> bool {
        let age = if kind == BlockKind::LinearEntries { self.directories } else { self.metadata };
        since.is_some_and(|since| self.is(since, age))
    }
}

impl Along {
    pub fn with(due: Due, state: &State, geometry: &Geometry) -> Self {
        let mut along = Self::default();
        let mut named = HashSet::new();
        let all_due = state.shadows.iter().filter(|(_, shadow)| due.is_block(shadow.kind, shadow.since));
        for (&block, shadow) in all_due {
            match shadow.kind {
                BlockKind::Group => drop(along.groups.insert(geometry.ag_of(FsBlock(block)).0)),
                BlockKind::Superblock => along.new_groups = true,
                BlockKind::LinearEntries => drop(named.insert(shadow.owner)),
                _ => {}
            }
        }
        let is_map = |shadow: &Shadow| match shadow.kind {
            BlockKind::LinearEntries => shadow.is_new,
            kind => kind == BlockKind::Pointers,
        };
        let grown = state.shadows.values().filter(|shadow| is_map(shadow)).map(|shadow| shadow.owner);
        along.directories = grown.filter(|dir| named.contains(dir)).collect();
        along.inodes =
            along.directories.iter().filter_map(|&dir| geometry.locate(Ino(dir))).map(|(block, _)| block.0).collect();
        along
    }

    /// Whether a block goes along that is not due itself.
    pub fn has(&self, block: u64, shadow: &Shadow, geometry: &Geometry) -> bool {
        let is_new = shadow.is_new;
        match shadow.kind {
            BlockKind::InodeTable => {
                self.inodes.contains(&block) || is_new && self.groups.contains(&geometry.ag_of(FsBlock(block)).0)
            }
            BlockKind::LinearEntries => is_new && self.directories.contains(&shadow.owner),
            BlockKind::Pointers => self.directories.contains(&shadow.owner),
            BlockKind::BlockBitmap if !self.directories.is_empty() => true,
            BlockKind::Group | BlockKind::BlockBitmap | BlockKind::InodeBitmap => is_new && self.new_groups,
            _ => false,
        }
    }
}

impl Soft {
    /// Whether anything is due, but for files' data in memory. The caller has the checkpointer: while a round begins, what waits is not in its place.
    pub fn has_due(&self, due: Due) -> bool {
        self.data.lock().values().any(|data| due.is_data(data.since))
            || self.state.lock().shadows.values().any(|shadow| due.is_block(shadow.kind, shadow.since))
    }

    /// What has waited as long as half of all that waits, or longer. `None`: nothing needs a write. The caller has the checkpointer, as for
    /// [`Self::has_due`].
    pub fn older_half(&self, now: Time) -> Option<Due> {
        let mut since: Vec<_> = self.state.lock().shadows.values().filter_map(|shadow| shadow.since).collect();
        let middle = since.len() / 2;
        (!since.is_empty()).then(|| Due::since(now, *since.select_nth_unstable(middle).1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::MkfsOptions;
    use crate::volume::{Volume, testing};
    use myriad_device::MemoryDevice;
    use myriad_format::choices::Profile;
    use std::sync::Arc;

    /// A volume that holds changes back for a millisecond, on which some have waited longer.
    fn volume() -> Volume {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        let choices = Profile::parse("ffs").unwrap().choices;
        let options = MkfsOptions { choices, order: Order::Soft, ..MkfsOptions::default() };
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        let delay = Some(1);
        let held_back = MountOptions {
            file_delay_ms: delay,
            dir_delay_ms: delay,
            meta_delay_ms: delay,
            cache_size: 8 << 20,
            ..MountOptions::default()
        };
        let volume = testing::open_as(device, held_back);
        volume.commit_now().unwrap();
        testing::new_file(&volume, b"file");
        std::thread::sleep(Duration::from_millis(5));
        volume
    }

    /// Has another thread do `work` that begins while a round begins.
    fn while_a_round_begins(volume: &Volume, work: impl FnOnce() + Send) {
        let soft = volume.soft.as_ref().unwrap();
        let checkpointer = volume.checkpointer.lock();
        let state = std::mem::take(&mut *soft.state.lock());
        std::thread::scope(|scope| {
            let working = scope.spawn(work);
            std::thread::sleep(Duration::from_millis(100));
            assert!(!working.is_finished(), "it waits for the round");
            *soft.state.lock() = state;
            drop(checkpointer);
        });
    }

    /// A round that begins has what waits out of its place. A visit that asked then what was due found nothing, and left all of it to the next one.
    #[test]
    fn a_visit_while_a_round_begins_writes_what_is_due() {
        let volume = volume();
        while_a_round_begins(&volume, || assert!(volume.write_due().unwrap()));
        assert!(volume.soft.as_ref().unwrap().is_clean());
    }

    /// As there: who was to write what is oldest of too much found nothing that was old, and wrote all of it.
    #[test]
    fn what_is_oldest_is_found_while_a_round_begins() {
        let volume = volume();
        while_a_round_begins(&volume, || volume.write_oldest().unwrap());
        assert!(volume.counters.snapshot().contains(&("soft_sheds", 1)));
    }
}
