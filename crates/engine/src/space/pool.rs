//! How many blocks of a group are free: in all, in each region, and held back as reserve.

use crate::error::{Error, Result};
use myriad_format::group::HEADER_BLOCK;
use myriad_format::{AgBlock, AgNo, Corrupt, FsBlock, Geometry};

/// A free extent: group-relative start, length.
pub(super) type Free = (u32, u32);

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub free_blocks: u32,
    pub directories: u32,
}

/// The counts of free blocks of a group, and what its trees have let go.
pub(crate) struct Pool {
    pub geometry: Geometry,
    pub ag: AgNo,
    pub block_count: u32,
    /// The first block that can be free.
    pub first_block: u32,
    pub(super) free_blocks: u32,
    /// Of these, fragments of blocks that are partly used.
    pub(super) free_parts: u32,
    pub(super) regions: Vec<Region>,
    /// Blocks on their way to the engine's limbo.
    pub released: Vec<FsBlock>,
}

/// Blocks that are asked for: `min` to `max` of them side by side, near `goal`.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub goal: u32,
    pub min: u32,
    pub max: u32,
}

/// Takes down in `unreadable` that something cannot be read or believed, as if there were nothing to be found. For what has changed nothing yet.
pub(crate) fn unless_unreadable<T>(found: Result<Option<T>>, unreadable: &mut Option<Error>) -> Result<Option<T>> {
    match found {
        Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
            *unreadable = Some(error);
            Ok(None)
        }
        other => other,
    }
}

impl Pool {
    /// Of a group of which nothing is free yet.
    pub(super) fn new(geometry: Geometry, ag: AgNo) -> Self {
        let block_count = geometry.blocks_in(ag);
        Self {
            geometry,
            ag,
            block_count,
            first_block: geometry.first_data_block(ag),
            free_blocks: 0,
            free_parts: 0,
            regions: vec![Region::default(); regions_of(&geometry, ag)],
            released: Vec::new(),
        }
    }

    /// Parts of `length` blocks from `start` by region.
    fn parts(&self, start: u32, length: u32) -> impl Iterator<Item = (usize, u32)> + use<> {
        let bits = self.geometry.region_bits;
        let end = start + length;
        (start >> bits..=(end - 1) >> bits).map(move |region| {
            let from = start.max(region << bits);
            let to = u64::from(end).min((u64::from(region) + 1) << bits) as u32;
            (region as usize, to - from)
        })
    }

    /// Nothing is known to be free.
    pub(super) fn forget(&mut self) {
        self.free_blocks = 0;
        self.free_parts = 0;
        self.regions.iter_mut().for_each(|region| region.free_blocks = 0);
    }

    /// Counts blocks as used.
    pub(super) fn take(&mut self, start: u32, length: u32) -> Result<()> {
        let sound = self.free_blocks >= length
            && self.parts(start, length).all(|(region, part)| self.regions[region].free_blocks >= part);
        if !sound {
            return Err(self.corrupt("free_blocks", self.free_blocks));
        }
        self.free_blocks -= length;
        for (region, part) in self.parts(start, length) {
            self.regions[region].free_blocks -= part;
        }
        Ok(())
    }

    /// Counts blocks as free.
    pub(super) fn give(&mut self, start: u32, length: u32) -> Result<()> {
        let limit = self.geometry.region_blocks();
        if self.parts(start, length).any(|(region, part)| self.regions[region].free_blocks > limit - part) {
            return Err(self.corrupt("free_blocks", self.free_blocks));
        }
        self.free_blocks += length;
        for (region, part) in self.parts(start, length) {
            self.regions[region].free_blocks += part;
        }
        Ok(())
    }

    /// Group-relative address of a node of one of our trees.
    pub fn own(&self, block: FsBlock) -> Result<u32> {
        let at = self.geometry.ag_block_of(block);
        if self.geometry.ag_of(block) != self.ag || at.0 <= HEADER_BLOCK {
            return Err(Corrupt::TreeNode { block, field: "group", value: u64::from(self.ag.0) }.into());
        }
        Ok(at.0)
    }

    /// The region that a block lies in.
    pub fn region_index(&self, at: AgBlock) -> usize {
        assert!(at.0 < self.block_count);
        (at.0 >> self.geometry.region_bits) as usize
    }

    #[cold]
    pub fn corrupt(&self, field: &'static str, value: u32) -> crate::error::Error {
        Corrupt::Group { ag: self.ag, field, value: u64::from(value) }.into()
    }
}

pub(super) fn regions_of(geometry: &Geometry, ag: AgNo) -> usize {
    geometry.blocks_in(ag).div_ceil(geometry.region_blocks()) as usize
}
