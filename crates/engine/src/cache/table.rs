//! The table from blocks to frames: open addressing, read without a lock.

use super::directories::ASKED;
use super::{Cache, FrameHeader, flag, prefetch};
use myriad_format::FsBlock;
use std::sync::atomic::Ordering;

impl Cache {
    /// Multiplicative hash; neighbours land in neighbouring lines only by chance, which spreads probes.
    #[inline]
    fn hash(block: FsBlock) -> u64 {
        block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.table_mask
    }

    #[inline]
    fn entry(hash: u64, index: u32) -> u64 {
        hash << 32 | u64::from(index + 1)
    }

    /// The frame that holds `block`, if any. Inside the gate only, or under the state mutex.
    pub(super) fn find(&self, block: FsBlock) -> Option<u32> {
        self.find_where(block, 0, |header| header.flags.load(Ordering::Acquire) & flag::DEAD == 0)
    }

    /// The frame in which a block of this kind is there to be read; the frame's bytes at `offset` are on their way while its header is
    /// looked at. It counts as asked for and touched. Inside the gate.
    #[inline(always)]
    pub fn find_loaded(&self, block: FsBlock, code: u32, offset: usize) -> Option<u32> {
        self.counters.bump(ASKED[code as usize]);
        self.find_where(block, offset, |header| {
            let flags = header.flags.load(Ordering::Acquire);
            let is_wanted = flags & (flag::KIND | flag::LOADED | flag::DEAD) == code | flag::LOADED;
            if is_wanted && flags & flag::REFERENCED == 0 {
                header.flags.fetch_or(flag::REFERENCED, Ordering::Relaxed);
            }
            is_wanted
        })
    }

    /// The frame that holds `block`, if it is one that is wanted.
    #[inline(always)]
    fn find_where(&self, block: FsBlock, offset: usize, is_wanted: impl Fn(&FrameHeader) -> bool) -> Option<u32> {
        let hash = Self::hash(block);
        let mut at = self.home(hash);
        loop {
            let entry = self.table[at].load(Ordering::Acquire);
            if entry == 0 {
                return None;
            }
            if (entry >> 32) as u32 == hash as u32 {
                let index = entry as u32 - 1;
                let place = self.arena.place(index);
                place.prefetch(offset);
                let header = place.header();
                if header.block.load(Ordering::Relaxed) == block.0 && is_wanted(header) {
                    return Some(index);
                }
            }
            at = (at + 1) & self.table_mask;
        }
    }

    /// Under the state mutex.
    pub(super) fn insert(&self, block: FsBlock, index: u32) {
        let hash = Self::hash(block);
        let mut at = self.home(hash);
        while self.table[at].load(Ordering::Relaxed) != 0 {
            at = (at + 1) & self.table_mask;
        }
        self.table[at].store(Self::entry(hash, index), Ordering::Release);
    }

    /// While the gate is closed, under the state mutex. Closes the gap, so that no probe stops short.
    pub(super) fn remove(&self, index: u32) {
        let block = FsBlock(self.arena.header(index).block.load(Ordering::Relaxed));
        let mut at = self.home(Self::hash(block));
        loop {
            let entry = self.table[at].load(Ordering::Relaxed);
            assert!(entry != 0, "a frame outside the table cannot be evicted");
            if entry as u32 == index + 1 {
                break;
            }
            at = (at + 1) & self.table_mask;
        }
        let mut gap = at;
        loop {
            at = (at + 1) & self.table_mask;
            let entry = self.table[at].load(Ordering::Relaxed);
            if entry == 0 {
                break;
            }
            let block = FsBlock(self.arena.header(entry as u32 - 1).block.load(Ordering::Relaxed));
            let home = self.home(Self::hash(block));
            // The entry may fill the gap if its home is not strictly between gap and its place.
            if at.wrapping_sub(home) & self.table_mask >= at.wrapping_sub(gap) & self.table_mask {
                self.table[gap].store(entry, Ordering::Relaxed);
                gap = at;
            }
        }
        self.table[gap].store(0, Ordering::Release);
    }

    /// First step of a batched access: starts loading the table's line for `block`.
    pub fn prefetch_entry(&self, block: FsBlock) {
        prefetch(&self.table[self.home(Self::hash(block))]);
    }

    /// Second step, when that line has arrived: starts loading the frame's header, and its bytes at `offset`. The block
    /// is taken to be in the first frame whose tag fits; a wrong guess costs a wasted load.
    pub fn prefetch_frame(&self, block: FsBlock, offset: usize) {
        let hash = Self::hash(block);
        let mut at = self.home(hash);
        loop {
            let entry = self.table[at].load(Ordering::Relaxed);
            if entry == 0 {
                return;
            }
            if (entry >> 32) as u32 == hash as u32 {
                let index = entry as u32 - 1;
                let place = self.arena.place(index);
                prefetch(place.header());
                place.prefetch(offset);
                return;
            }
            at = (at + 1) & self.table_mask;
        }
    }
}
