//! Frames of file data: read into the cache, private to a file while dirty, published when they have a block.

use super::{Cache, Frame, FrameHeader, State, flag, holds, unwritten};
use crate::error::Result;
use crate::locks::MutexGuard;
use myriad_format::FsBlock;
use std::sync::atomic::Ordering;

/// Written frames that are to go, before the gate is closed for them.
pub(super) const PASSING_MIN: usize = 256;

impl Cache {
    /// A clean or dirty frame of file data, if the block is here. Inside the gate.
    pub fn find_data(&self, block: FsBlock) -> Option<Frame<'_>> {
        let index = self.find(block)?;
        let flags = self.arena.header(index).flags.load(Ordering::Acquire);
        (flags & (flag::KIND | flag::LOADED) == flag::DATA | flag::LOADED).then(|| {
            self.arena.header(index).flags.fetch_or(flag::REFERENCED, Ordering::Relaxed);
            if flags & flag::PASSING != 0 {
                self.arena.header(index).flags.fetch_and(!flag::PASSING, Ordering::Relaxed);
            }
            self.frame(index)
        })
    }

    /// Puts file data just read into the cache, if there is a frame to spare. Inside the gate.
    pub fn insert_data(&self, block: FsBlock, bytes: &[u8]) {
        self.insert_read(block, flag::DATA, bytes);
    }

    /// A frame outside the table, for a file's dirty data. `None`: make room first.
    pub fn take_private(&self) -> Option<u32> {
        let state = self.state.lock();
        if state.unasked_count() <= self.reserve { None } else { self.make_private(state).ok() }
    }

    /// As [`Self::take_private`], for an operation inside the gate, which cannot make room: from the reserve if need be.
    pub fn take_private_inside(&self) -> Result<u32> {
        self.make_private(self.state.lock())
    }

    fn make_private(&self, mut state: MutexGuard<'_, State>) -> Result<u32> {
        let index = self.pop_free(&mut state)?;
        let header = self.arena.header(index);
        header.mask.store(0, Ordering::Relaxed);
        header.unhomed.clear();
        // The checkpointer's lists may still name the frame with the block that it had.
        holds::give(&header.block, &header.flags, FsBlock::NONE.0, flag::DATA | flag::PRIVATE);
        Ok(index)
    }

    /// Gives a private frame back.
    pub fn drop_private(&self, index: u32) {
        let mut state = self.state.lock();
        self.arena.header(index).flags.store(0, Ordering::Release);
        state.free.push(index);
        self.note_room(&state);
    }

    /// Makes the bytes of a private frame the cached, still unwritten contents of `block`; the frame that holds them from
    /// now on. `passing`: it need not stay once it is written. `epoch` is open; inside the gate.
    pub fn publish(&self, index: u32, block: FsBlock, passing: bool, epoch: u64) -> u32 {
        let held = self.find(block);
        if let Some(held) = held {
            let header = self.arena.header(held);
            let mut bytes = self.arena.write(held);
            if unwritten::is_unwritten(header.flags.load(Ordering::Relaxed)) {
                // An earlier epoch has promised to write this block before its commit, and still does: with the new
                // bytes, which are as good to it as the old ones.
                bytes.copy_from_slice(&self.arena.read_private(index));
                unwritten::change_again(&header.flags);
                drop(bytes);
                self.drop_private(index);
                return held;
            }
        }
        let state = self.bury(block);
        let header = self.arena.header(index);
        header.unhomed.publish(epoch);
        let stay = if passing { flag::PASSING } else { flag::REFERENCED };
        let in_use = flag::DATA | flag::LOADED | flag::DATA_DIRTY | stay;
        holds::give(&header.block, &header.flags, block.0, in_use);
        self.insert(block, index);
        drop(state);
        // What the block held before is dead by now.
        if let Some(held) = held {
            self.passing.lock().push(held);
        }
        index
    }

    /// Whether the block's contents were published in this epoch, which is open: nothing has written them yet, and no
    /// committed state knows the block. Inside the gate.
    pub fn is_unwritten_since(&self, block: FsBlock, epoch: u64) -> bool {
        self.find(block).is_some_and(|index| {
            let header = self.arena.header(index);
            unwritten::is_unwritten(header.flags.load(Ordering::Relaxed)) && header.unhomed.is_published_in(epoch)
        })
    }

    /// Whether the frame holds what is still to be written of `block`, data or a fresh block. Under the latch, which keeps it so: the block may be
    /// forgotten meanwhile, and the frame given to another one, only by whoever has had the latch in between.
    pub fn is_to_be_written(header: &FrameHeader, block: u64) -> bool {
        let asked = flag::DATA_DIRTY | flag::DEAD | flag::PRIVATE;
        holds::is_still(&header.block, &header.flags, block, asked, flag::DATA_DIRTY)
    }

    /// The data or fresh block of a frame has been written: the frame may go, unless it holds another block by now.
    pub fn written(&self, block: u64, index: u32) {
        let _latch = self.arena.write(index);
        let header = self.arena.header(index);
        if Self::is_to_be_written(header, block)
            && let Some(flags) = unwritten::end_write(&header.flags)
            && flags & flag::PASSING != 0
        {
            self.passing.lock().push(index);
        }
    }

    /// Lets go of written data that nobody wants to keep, and of what was overwritten, once there is enough to close the gate
    /// for: the next pages then lie in memory that has been used before, which costs less than new memory.
    pub fn let_pass(&self) {
        let written = {
            let mut passing = self.passing.lock();
            if passing.len() < PASSING_MIN {
                return;
            }
            std::mem::take(&mut *passing)
        };
        let closed = self.gate.close();
        let mut state = self.state.lock();
        for index in written {
            let flags = self.arena.header(index).flags.load(Ordering::Relaxed);
            let is_needed = flags & (flag::PRIVATE | flag::LISTED | flag::DATA_DIRTY) != 0;
            // Read or changed since, it is no longer ours to take, unless it died.
            if !is_needed && flags & (flag::DEAD | flag::PASSING) != 0 {
                self.free(&mut state, index);
            }
        }
        self.forget_freed_directories(&mut state);
        self.note_room(&state);
        drop(state);
        drop(closed);
    }
}
