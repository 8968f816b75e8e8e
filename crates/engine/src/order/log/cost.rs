//! What changes cost: room in the log, and blocks that the next checkpoint copies whole or writes home.
//!
//! A transaction counts its own changes in a [`Cost`]. When it ends, it adds them to the cost of the open epoch ([`EpochCost`]). An
//! operation that is about to begin compares the open epoch's cost with what one checkpoint can take, which is another `Cost`
//! (`volume/limits.rs`), and waits for a checkpoint if the epoch has more. One that may change much says so when it begins
//! ([`EpochCost::charge`]): what it has changed is known to others only when it ends.
//!
//! All orders count alike. Without a log, the bytes of log still say how much a checkpoint has to do.

use crate::cache::FrameHeader;
use myriad_format::Lsn;
use myriad_format::log::{PendingFree, RecordHeader};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the log that name a block whose older records no longer count.
const REVOKE_SIZE: u64 = size_of::<u64>() as u64;

#[derive(Clone, Copy, Default)]
pub(crate) struct Cost<T = u64> {
    /// Bytes in the log.
    pub log_bytes: T,
    /// Blocks that are new, and will be written whole.
    pub fresh_blocks: T,
    /// Blocks changed although logged changes of theirs are not home.
    pub again_blocks: T,
    /// Those among them that are to go home at the next checkpoint, which copies them for that.
    pub hot_blocks: T,
    /// Blocks with changes that are not home, those changed just now included.
    pub away_blocks: T,
}

impl<T> Cost<T> {
    fn each(&self) -> [&T; 5] {
        [&self.log_bytes, &self.fresh_blocks, &self.again_blocks, &self.hot_blocks, &self.away_blocks]
    }
}

impl Cost {
    /// Marks the granules in `mask` of a frame as changed in the open epoch, and counts those that were not.
    #[inline]
    pub fn mark(&mut self, header: &FrameHeader, mask: u64, epoch: &EpochCost) {
        let old = header.mask.load(Ordering::Relaxed);
        let new = old | mask;
        if new == old {
            return;
        }
        header.mask.store(new, Ordering::Relaxed);
        self.log_bytes += u64::from((new ^ old).count_ones()) * epoch.granule_size;
        if old != 0 {
            return;
        }
        self.log_bytes += RecordHeader::SIZE as u64;
        match header.unhomed.logged_from() {
            None => self.away_blocks += 1,
            Some(lsn) => {
                self.again_blocks += 1;
                self.hot_blocks += u64::from(lsn.0 < epoch.home_before.load(Ordering::Relaxed));
            }
        }
    }

    pub fn block_made(&mut self) {
        self.fresh_blocks += 1;
    }

    pub fn block_forgotten(&mut self) {
        self.log_bytes += REVOKE_SIZE;
    }

    pub fn extent_freed(&mut self) {
        self.log_bytes += PendingFree::SIZE as u64;
    }
}

/// What the open epoch has come to.
pub(crate) struct EpochCost {
    sum: Cost<AtomicU64>,
    /// Of the bytes of log, those that are charged and not taken yet.
    charged: AtomicU64,
    /// Of the bytes of log, those that name what earlier epochs freed.
    waiting: AtomicU64,
    /// Blocks whose logged changes are older than this position are to go home at the next checkpoint; an estimate. None is older than 0.
    home_before: AtomicU64,
    granule_size: u64,
}

impl EpochCost {
    pub fn new(granule_size: usize) -> Self {
        Self {
            sum: Cost::default(),
            charged: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            home_before: AtomicU64::new(0),
            granule_size: granule_size as u64,
        }
    }

    pub fn log_bytes(&self) -> u64 {
        self.sum.log_bytes.load(Ordering::Relaxed)
    }

    pub fn add(&self, more: &Cost) {
        for (sum, &more) in self.sum.each().into_iter().zip(more.each()) {
            if more > 0 {
                sum.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Counts `wanted` bytes of log ahead, or of them as many as are left up to `most`; so many. Somebody inside the gate takes them, until
    /// [`Self::end_charge`]; so no epoch ends meanwhile. Of two who ask at the same time, one sees what the other has.
    pub fn charge(&self, wanted: u64, most: u64) -> u64 {
        let mut charged = 0;
        let _ = self.sum.log_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| {
            charged = wanted.min(most.saturating_sub(sum));
            Some(sum + charged)
        });
        self.charged.fetch_add(charged, Ordering::Relaxed);
        charged
    }

    /// What was charged is no longer ahead: what it came to is in the sum.
    pub fn end_charge(&self, charged: u64) {
        self.charged.fetch_sub(charged, Ordering::Relaxed);
        self.sum.log_bytes.fetch_sub(charged, Ordering::Relaxed);
    }

    /// Bytes of log that name what earlier epochs freed: only what `release_blocks` puts into the trees makes them fewer.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether it is more than `most`. Blocks changed again matter only when so many are away that the next checkpoint brings
    /// all of them home.
    #[inline]
    pub fn exceeds(&self, most: &Cost) -> bool {
        self.exceeds_beside(most, 0)
    }

    /// As [`Self::exceeds`], but for what is charged: whether so much has been changed. About so, if somebody charges just now.
    pub fn has_changed_more_than(&self, most: &Cost) -> bool {
        self.exceeds_beside(most, self.charged.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn exceeds_beside(&self, most: &Cost, charged: u64) -> bool {
        let exceeds = |sum: &AtomicU64, most: u64| sum.load(Ordering::Relaxed) > most;
        let sum = &self.sum;
        exceeds(&sum.log_bytes, most.log_bytes.saturating_add(charged))
            || exceeds(&sum.fresh_blocks, most.fresh_blocks)
            || exceeds(&sum.hot_blocks, most.hot_blocks)
            || exceeds(&sum.again_blocks, most.again_blocks) && exceeds(&sum.away_blocks, most.away_blocks)
    }

    /// Begins a new epoch, in which `waiting` extents that earlier ones freed have to be named again. Blocks that are away stay
    /// so.
    pub fn reset(&self, waiting: usize) {
        let Cost { log_bytes, fresh_blocks, again_blocks, hot_blocks, away_blocks: _ } = &self.sum;
        debug_assert_eq!(self.charged.load(Ordering::Relaxed), 0, "who has charged is inside the gate");
        let waiting = (waiting * PendingFree::SIZE) as u64;
        self.waiting.store(waiting, Ordering::Relaxed);
        log_bytes.store(waiting, Ordering::Relaxed);
        for blocks in [fresh_blocks, again_blocks, hot_blocks] {
            blocks.store(0, Ordering::Relaxed);
        }
    }

    /// So many blocks are away. While the gate is closed.
    pub fn set_away(&self, blocks: usize) {
        self.sum.away_blocks.store(blocks as u64, Ordering::Relaxed);
    }

    /// Expects blocks to go home whose logged changes are older than `before`; `None`: no blocks.
    pub fn expect_home(&self, before: Option<Lsn>) {
        self.home_before.store(before.map_or(0, |lsn| lsn.0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_adds_exceeds_and_begins_anew() {
        let most = Cost { log_bytes: 100, fresh_blocks: 2, again_blocks: 3, hot_blocks: 3, away_blocks: 10 };
        let epoch = EpochCost::new(64);
        let exceeds = |more: Cost| {
            epoch.add(&more);
            epoch.exceeds(&most)
        };
        assert!(!exceeds(Cost { log_bytes: 100, ..Cost::default() }));
        assert!(exceeds(Cost { log_bytes: 1, ..Cost::default() }));
        epoch.reset(2);
        assert_eq!((epoch.log_bytes(), epoch.waiting()), (32, 32));
        assert!(!exceeds(Cost { fresh_blocks: 2, hot_blocks: 3, ..Cost::default() }));
        assert!(exceeds(Cost { hot_blocks: 1, ..Cost::default() }));
        epoch.reset(0);
        assert!(exceeds(Cost { fresh_blocks: 3, ..Cost::default() }));
        epoch.reset(0);
        // Blocks changed again, alone, do not: not before many are away.
        assert!(!exceeds(Cost { again_blocks: 4, away_blocks: 10, ..Cost::default() }));
        assert!(exceeds(Cost { away_blocks: 1, ..Cost::default() }));
        epoch.set_away(10);
        assert!(!epoch.exceeds(&most));
    }

    #[test]
    fn what_is_charged_counts_until_it_has_ended() {
        let epoch = EpochCost::new(64);
        epoch.add(&Cost { log_bytes: 30, ..Cost::default() });
        assert_eq!((epoch.charge(60, 100), epoch.charge(60, 100), epoch.charge(60, 100)), (60, 10, 0));
        assert_eq!(epoch.log_bytes(), 100);
        let most = Cost { log_bytes: 29, fresh_blocks: 1, again_blocks: 1, hot_blocks: 1, away_blocks: 1 };
        assert!(epoch.has_changed_more_than(&most));
        assert!(!epoch.has_changed_more_than(&Cost { log_bytes: 30, ..most }) && epoch.exceeds(&most));
        epoch.add(&Cost { log_bytes: 5, ..Cost::default() });
        epoch.end_charge(60);
        epoch.end_charge(10);
        assert_eq!((epoch.log_bytes(), epoch.charge(u64::MAX, 100)), (35, 65));
    }

    #[test]
    fn a_granule_counts_once_an_epoch() {
        let arena = crate::cache::Arena::new(1, 12).unwrap();
        let header = arena.header(0);
        let epoch = EpochCost::new(64);
        let mut cost = Cost::default();
        cost.mark(header, 0b11, &epoch);
        assert_eq!((cost.log_bytes, cost.away_blocks), (16 + 128, 1));
        cost.mark(header, 0b110, &epoch);
        cost.mark(header, 0b111, &epoch);
        assert_eq!((cost.log_bytes, cost.away_blocks, cost.again_blocks), (16 + 192, 1, 0));
        // Logged at 5, and not home.
        header.mask.store(0, Ordering::Relaxed);
        header.unhomed.add_logged(0b111, Lsn(5));
        cost.mark(header, 1, &epoch);
        assert_eq!((cost.away_blocks, cost.again_blocks, cost.hot_blocks), (1, 1, 0));
        header.mask.store(0, Ordering::Relaxed);
        epoch.expect_home(Some(Lsn(6)));
        cost.mark(header, 1, &epoch);
        assert_eq!((cost.again_blocks, cost.hot_blocks), (2, 1));
    }
}
