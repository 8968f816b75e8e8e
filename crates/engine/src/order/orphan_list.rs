//! The list of orphans on disk, for the orders whose checkpoints write it: inodes of which the next opening has something to free.
//!
//! It lies in a chain of blocks whose first one the superblock names. A checkpoint that has other orphans than the last one
//! writes all of it anew, in blocks of the free space, and frees the old ones. Why an inode is on the list is not written; the next
//! opening finds that out from the inode. Not here: the list in memory, with the reasons (`volume/orphans.rs`).

use super::{Look, Txn};
use crate::edit::{BlockStore, NewBlock};
use crate::error::Result;
use myriad_format::group::FIXED_BLOCKS;
use myriad_format::superblock::{OrphanHeader, Superblock};
use myriad_format::{BlockKind, Corrupt, FsBlock};
use std::collections::BTreeSet;
use zerocopy::little_endian::{U32, U64};

/// The list as the last checkpoint wrote it.
#[derive(Default)]
pub(crate) struct OrphanList {
    /// In the order of the chain.
    blocks: Vec<FsBlock>,
    numbers: BTreeSet<u64>,
}

fn numbers_per_block(block_size: usize) -> usize {
    (block_size - OrphanHeader::SIZE) / 8
}

impl OrphanList {
    /// Blocks that so many orphans take.
    pub fn blocks_for(orphans: usize, block_size: usize) -> usize {
        orphans.div_ceil(numbers_per_block(block_size))
    }

    /// The first block, for the superblock.
    pub fn root(&self) -> Option<FsBlock> {
        self.blocks.first().copied()
    }

    /// Blocks that it takes.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    pub fn numbers(&self) -> &BTreeSet<u64> {
        &self.numbers
    }

    /// Writes the list if it has changed. Behind the closed gate. The blocks are there: `Volume::orphan_list_blocks` has kept others
    /// from them.
    pub fn write(&mut self, txn: &mut Txn<'_>, orphans: BTreeSet<u64>) -> Result<()> {
        if self.numbers == orphans {
            return Ok(());
        }
        for block in std::mem::take(&mut self.blocks) {
            txn.forget(block);
            txn.block_free(block, 1);
        }
        let volume = txn.volume();
        let per_block = numbers_per_block(volume.cache.block_size());
        let list: Vec<u64> = orphans.iter().copied().collect();
        let mut next = 0;
        let mut blocks = Vec::new();
        for part in list.chunks(per_block).rev() {
            let (block, _) = volume.allocate_extent(txn, FsBlock(u64::from(FIXED_BLOCKS)), 1, 1)?;
            txn.init(NewBlock::free(block), BlockKind::Orphans, 0, |edit| {
                let raw = OrphanHeader::read_mut(edit.range_mut(0, OrphanHeader::SIZE));
                raw.count = U32::new(part.len() as u32);
                raw.next = U64::new(next);
                for (i, ino) in part.iter().enumerate() {
                    edit.put(OrphanHeader::SIZE + i * 8, &ino.to_le_bytes());
                }
            })?;
            next = block.0;
            blocks.push(block);
        }
        blocks.reverse();
        volume.orphans.note_written(blocks.len());
        *self = Self { blocks, numbers: orphans };
        Ok(())
    }

    /// Reads the list that the superblock names.
    pub fn read(look: &Look<'_>, superblock: &Superblock) -> Result<Self> {
        let geometry = look.volume.geometry;
        let mut next = superblock.orphan_root.get();
        let mut list = Self::default();
        let mut met = BTreeSet::new();
        while next != 0 {
            let block = FsBlock(next);
            let bad = |field, value| Corrupt::Orphans { block, field, value };
            if !geometry.is_data_range(block, 1) || !met.insert(block) {
                return Err(bad("next", next).into());
            }
            next = look.read(block, BlockKind::Orphans, |bytes| {
                let raw = OrphanHeader::read(bytes);
                let count = raw.count.get() as usize;
                if count > numbers_per_block(bytes.len()) {
                    return Err(bad("count", count as u64));
                }
                for i in 0..count {
                    let at = OrphanHeader::SIZE + i * 8;
                    list.numbers.insert(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
                }
                Ok(raw.next.get())
            })??;
            list.blocks.push(block);
        }
        Ok(list)
    }
}
