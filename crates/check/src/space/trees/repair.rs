//! Writes a group's trees of free extents anew, from what nobody owns.

use crate::options::CheckError;
use crate::repair::build::{Fill, level_of, node_count, write_tree};
use crate::repair::volume::Repair;
use myriad_format::btree::{FREE_BY_LENGTH, FREE_BY_START};
use myriad_format::group::RESERVE_MAX;
use myriad_format::{AgBlock, AgNo, FsBlock};

/// What a group's header says of its trees of free space: each root, group-relative, with its level. All zero without.
#[derive(Default)]
pub(crate) struct FreeTrees {
    pub by_start: (u32, u8),
    pub by_length: (u32, u8),
    pub reserve: Vec<u32>,
}

/// Takes a place for a node.
pub(crate) fn pop(places: &mut Vec<FsBlock>) -> Result<FsBlock, CheckError> {
    places.pop().ok_or_else(|| CheckError::Repair("a tree took more nodes than were counted".to_owned()))
}

/// Nodes of both trees of free extents.
pub(crate) fn free_nodes(free: &[(u32, u32)], block_size: usize, fill: Fill) -> usize {
    [FREE_BY_START, FREE_BY_LENGTH].into_iter().map(|kind| node_count(kind, free.len(), block_size, fill)).sum()
}

impl Repair<'_> {
    /// Writes a group's trees of free extents; what is left of the places becomes the reserve.
    pub(crate) fn write_free_trees(
        &mut self,
        ag: AgNo,
        free: &mut [(u32, u32)],
        places: &mut Vec<FsBlock>,
        fill: Fill,
    ) -> Result<FreeTrees, CheckError> {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let (block_size, owner) = (self.reader.block_size(), u64::from(ag.0));
        // The reserve is what the next change of the trees may need, taken from the end of the longest extent, so that the
        // number of extents and with it of nodes stays.
        let need = free_nodes(free, block_size, fill);
        let level = level_of(FREE_BY_START, free.len(), block_size, fill);
        let reserve_wanted = ((level + 2) * 3).min(RESERVE_MAX);
        while places.len() < need + reserve_wanted {
            let Some(longest) = free.iter_mut().max_by_key(|extent| extent.1).filter(|extent| extent.1 > 1) else {
                break;
            };
            longest.1 -= 1;
            let block = first.offset_by(u64::from(longest.0 + longest.1));
            self.blocks.claim(block, 1);
            places.insert(0, block);
        }
        let pack = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
        let by_start: Vec<u8> = free.iter().flat_map(|&(start, length)| pack(start, length)).collect();
        let mut lengths: Vec<(u32, u32)> = free.iter().map(|&(start, length)| (length, start)).collect();
        lengths.sort_unstable();
        let by_length: Vec<u8> = lengths.iter().flat_map(|&(length, start)| pack(length, start)).collect();
        let relative = |block: FsBlock| self.geometry.ag_block_of(block).0;
        let mut write = |kind, records: &[u8]| {
            let (root, level) = write_tree(&self.reader, kind, owner, records, fill, &mut || pop(places))?;
            Ok::<_, CheckError>((relative(root), level))
        };
        let by_start = write(FREE_BY_START, &by_start)?;
        let by_length = write(FREE_BY_LENGTH, &by_length)?;
        if places.len() > RESERVE_MAX {
            return Err(CheckError::Repair(format!(
                "group {ag} has {} blocks left over for its reserve",
                places.len()
            )));
        }
        Ok(FreeTrees { by_start, by_length, reserve: places.iter().map(|&block| relative(block)).collect() })
    }
}
