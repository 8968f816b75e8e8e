//! The list of orphans on disk: inodes without a name that are open, or whose blocks are still being freed; and files with
//! a name whose truncation is not finished.

use super::Volume;
use crate::edit::BlockStore;
use crate::error::Result;
use crate::order::Txn;
use myriad_format::group::FIXED_BLOCKS;
use myriad_format::superblock::{OrphanHeader, Superblock};
use myriad_format::{BlockKind, Corrupt, FsBlock};
use std::collections::BTreeSet;
use zerocopy::little_endian::{U32, U64};

impl Volume {
    /// Blocks that the next checkpoint may need for the list of orphans.
    pub(super) fn orphan_list_blocks(&self) -> usize {
        self.orphans.lock().len().div_ceil(self.orphans_per_block())
    }

    fn orphans_per_block(&self) -> usize {
        (self.cache.block_size() - OrphanHeader::SIZE) / 8
    }

    /// Writes the list of orphans if it has changed.
    pub(super) fn write_orphans(&self, txn: &mut Txn<'_>) -> Result<()> {
        let orphans = self.orphans.lock().clone();
        let mut written = self.orphan_blocks.lock();
        if written.1 == orphans {
            return Ok(());
        }
        for block in std::mem::take(&mut written.0) {
            txn.forget(block);
            txn.block_free(block, 1);
        }
        let per_block = self.orphans_per_block();
        let list: Vec<u64> = orphans.iter().copied().collect();
        let mut next = 0;
        let mut blocks = Vec::new();
        for part in list.chunks(per_block).rev() {
            let (block, _) = self.allocate_extent(txn, FsBlock(u64::from(FIXED_BLOCKS)), 1, 1)?;
            txn.init(block, BlockKind::Orphans, 0, |edit| {
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
        *written = (blocks, orphans);
        Ok(())
    }

    /// Reads the orphan list as the last checkpoint wrote it.
    pub fn load_orphans(&self, superblock: &Superblock) -> Result<()> {
        let mut next = superblock.orphan_root.get();
        let mut blocks = Vec::new();
        let mut met = BTreeSet::new();
        let mut orphans = BTreeSet::new();
        let look = self.look();
        while next != 0 {
            let block = FsBlock(next);
            let bad = |field, value| Corrupt::Orphans { block, field, value };
            if !self.geometry.is_data_range(block, 1) || !met.insert(block) {
                return Err(bad("next", next).into());
            }
            next = look.read(block, BlockKind::Orphans, |bytes| {
                let raw = OrphanHeader::read(bytes);
                let count = raw.count.get() as usize;
                if count > (bytes.len() - OrphanHeader::SIZE) / 8 {
                    return Err(bad("count", count as u64));
                }
                for i in 0..count {
                    let at = OrphanHeader::SIZE + i * 8;
                    orphans.insert(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
                }
                Ok(raw.next.get())
            })??;
            blocks.push(block);
        }
        *self.orphans.lock() = orphans.clone();
        *self.orphan_blocks.lock() = (blocks, orphans);
        Ok(())
    }
}
