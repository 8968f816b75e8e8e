//! Directories of kind `slots`, as simplefs has them: slots of one size in extents of eight blocks, which count their names.
//!
//! A directory is a sequence of *spans*. A span begins with a block of kind `DirExtents`, which has a record for each extent
//! behind it; the extents follow, eight blocks of kind `DirSlots` each. All of it is mapped from file block 0 on, in whole
//! extents and without holes:
//!
//! ```text
//! file block  0            1 .. 8      9 .. 16           8n+1          8n+2 ..
//!             DirExtents   extent 0    extent 1    ...   DirExtents    extent n    ...       n = extents_per_span
//! ```
//!
//! Any name fits any slot, and a slot never moves: its number, counted through the blocks of slots, is the position of its
//! entry. A *run* leads from a slot in use to the next one, so that nobody looks at the free slots in between. Runs and
//! counts can all be derived: a slot is in use if its inode number is not 0.

use crate::dir::NAME_MAX;
use crate::on_disk::on_disk;
use crate::{BlockKind, FsBlock, header};
use zerocopy::little_endian::{U16, U32, U64};

on_disk! {
    /// Start of a slot; room for a name of 255 bytes follows.
    pub struct SlotHeader: 13 {
        /// 0 for a free slot, of which nothing else but the run of slot 0 means anything.
        0 => ino: U64,
        /// Slots from this one up to the next one in use, or to the end of the block: 1 if none between them is free. The
        /// paper's `nr_blk`.
        8 => run: u8,
        /// 1 to 255.
        9 => name_len: u8,
        /// `mode >> 12` of the inode.
        10 => file_type: u8,
        /// Low 16 bits of the name's hash.
        11 => tag: U16,
    }
}

on_disk! {
    /// Start of a block of slots, which follow it.
    pub struct SlotBlockHeader: 56 {
        0 => header: crate::header::BlockHeader,
        /// Slots in use. The paper's `nr_files` of a block.
        48 => names: U32,
        52 => reserved: U32,
    }
}

on_disk! {
    /// Start of a block of extents of a directory; their records follow.
    pub struct ExtentsHeader: 56 {
        0 => header: crate::header::BlockHeader,
        /// In the first one of a directory: its extents, of all spans. In others 0.
        48 => extents: U32,
        52 => reserved: U32,
    }
}

on_disk! {
    /// Record of an extent of a directory: what lies in its eight blocks.
    pub struct DirExtent: 4 {
        /// Slots in use. The paper's `nr_files` of an extent.
        0 => names: U16,
        /// Bit i: block i of the extent has slots in use.
        2 => used: u8,
        3 => reserved: u8,
    }
}

/// Blocks of an extent.
pub const EXTENT_BLOCKS: u64 = 8;
/// Bytes of a slot: its header, and the longest name.
pub const SLOT_BYTES: usize = SlotHeader::SIZE + NAME_MAX;
/// The paper's limit: 255 extents of 8 blocks with 15 slots.
pub const PAPER_NAMES_MAX: u64 = 30_600;

/// How directories of slots lie on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// Slots of a block.
    pub slots: usize,
    /// Extents of a span.
    pub extents: u64,
}

impl SlotLayout {
    /// With blocks of this size.
    pub fn new(block_size: usize) -> Self {
        Self {
            slots: (block_size - SlotBlockHeader::SIZE) / SLOT_BYTES,
            extents: ((block_size - ExtentsHeader::SIZE) / DirExtent::SIZE) as u64,
        }
    }

    /// File blocks of a whole span.
    pub fn span_blocks(&self) -> u64 {
        1 + self.extents * EXTENT_BLOCKS
    }

    /// Extents of the largest directory: the number of a slot has 32 bits.
    pub fn extents_max(&self) -> u64 {
        u64::from(u32::MAX) / (EXTENT_BLOCKS * self.slots as u64)
    }

    /// The file block with the record of an extent, and the record's offset there.
    pub fn record_of(&self, extent: u64) -> (u64, usize) {
        let at = ExtentsHeader::SIZE + (extent % self.extents) as usize * DirExtent::SIZE;
        (extent / self.extents * self.span_blocks(), at)
    }

    /// The file block of a block of slots, by its number among these.
    pub fn file_block(&self, slot_block: u64) -> u64 {
        let (extent, block) = (slot_block / EXTENT_BLOCKS, slot_block % EXTENT_BLOCKS);
        self.record_of(extent).0 + 1 + extent % self.extents * EXTENT_BLOCKS + block
    }

    /// The number of the block of slots that a file block is; `None`: it is one of extents.
    pub fn slot_block(&self, file_block: u64) -> Option<u64> {
        let (span, at) = (file_block / self.span_blocks(), file_block % self.span_blocks());
        at.checked_sub(1).map(|at| span * self.extents * EXTENT_BLOCKS + at)
    }

    /// File blocks of a directory with so many extents.
    pub fn file_blocks(&self, extents: u64) -> u64 {
        extents * EXTENT_BLOCKS + extents.div_ceil(self.extents)
    }

    /// Extents of a directory with so many file blocks; `None`: no directory has as many.
    pub fn extents_in(&self, file_blocks: u64) -> Option<u64> {
        let extents = (file_blocks - file_blocks.div_ceil(self.span_blocks())) / EXTENT_BLOCKS;
        (self.file_blocks(extents) == file_blocks).then_some(extents)
    }

    /// Offset of a slot in its block.
    pub fn offset(&self, slot: usize) -> usize {
        SlotBlockHeader::SIZE + slot * SLOT_BYTES
    }

    /// Makes the bytes of a block of slots, behind its common header, those of an empty one.
    pub fn clear(&self, block: &mut [u8]) {
        block[crate::BlockHeader::SIZE..].fill(0);
        SlotHeader::read_mut(&mut block[self.offset(0)..]).run = self.slots as u8;
    }

    /// Starts a block of slots, all of them free.
    pub fn init(&self, block: &mut [u8], volume: [u8; 16], owner: u64, address: FsBlock) {
        header::init(block, BlockKind::DirSlots, volume, owner, address);
        self.clear(block);
    }
}

/// The tag of a name, by its hash.
pub fn tag_of(hash: u64) -> u16 {
    hash as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_numbers_with_its_block() {
        let layout = SlotLayout::new(4096);
        assert_eq!((layout.slots, SLOT_BYTES), (15, 268));
        assert_eq!(layout.slots as u64 * EXTENT_BLOCKS * 255, PAPER_NAMES_MAX);
    }

    #[test]
    fn every_block_has_slots_and_every_slot_a_run_that_fits() {
        for bits in 9..=16 {
            let size = 1_usize << bits;
            let layout = SlotLayout::new(size);
            assert!(layout.slots > 0 && layout.slots <= usize::from(u8::MAX), "{size}");
            assert!(layout.offset(layout.slots) <= size);
            assert!(layout.slots * EXTENT_BLOCKS as usize <= usize::from(u16::MAX));
            assert!(layout.extents_max() * EXTENT_BLOCKS * layout.slots as u64 <= u64::from(u32::MAX));
        }
    }

    #[test]
    fn file_blocks_and_extents_go_over_into_each_other() {
        let layout = SlotLayout::new(512);
        let mut expected = 0;
        for slot_block in 0..5000 {
            let extent = slot_block / EXTENT_BLOCKS;
            if slot_block % (EXTENT_BLOCKS * layout.extents) == 0 {
                assert_eq!(layout.slot_block(expected), None);
                assert_eq!(layout.record_of(extent), (expected, ExtentsHeader::SIZE));
                expected += 1;
            }
            assert_eq!(layout.file_block(slot_block), expected);
            assert_eq!(layout.slot_block(expected), Some(slot_block));
            expected += 1;
            let is_whole = (slot_block + 1) % EXTENT_BLOCKS == 0;
            assert_eq!(layout.extents_in(expected), is_whole.then_some(extent + 1), "{expected}");
            if is_whole {
                assert_eq!(layout.file_blocks(extent + 1), expected);
            }
        }
        assert_eq!(layout.extents_in(0), Some(0));
        assert_eq!(layout.extents_in(1), None);
        assert_eq!(layout.extents_in(layout.span_blocks() + 1), None);
    }
}
