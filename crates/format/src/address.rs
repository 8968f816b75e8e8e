//! Addresses and the arithmetic between them. Mixing two kinds of address is the classic bug; here it does not compile.

use std::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident($inner:ty), $label:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

address!(
    /// A block of the volume, counted from its start. Block 0 is the superblock, so 0 also means "none" in pointers.
    FsBlock(u64), "block"
);
address!(
    /// A block counted from the start of its allocation group.
    AgBlock(u32), "ag block"
);
address!(
    /// A block counted from the start of a file or directory.
    FileBlock(u64), "file block"
);
address!(
    /// An allocation group.
    AgNo(u32), "ag"
);
address!(
    /// A placement region, counted over the whole volume.
    RegionNo(u32), "region"
);
address!(
    /// An inode number: block of the inode shifted left, plus its slot in the block. Slot 0 is the block's header, so
    /// no inode has it.
    Ino(u64), "inode"
);
address!(
    /// A position in the log: bytes ever written to it. Grows for the life of the volume.
    Lsn(u64), "lsn"
);

impl FsBlock {
    pub const NONE: Self = Self(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    pub fn offset_by(self, blocks: u64) -> Self {
        Self(self.0 + blocks)
    }
}

impl Ino {
    pub const NONE: Self = Self(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// log2 of the inode slot size, 128 bytes.
pub const SLOT_BITS: u32 = 7;
/// Size of an inode slot in bytes.
pub const SLOT_SIZE: usize = 1 << SLOT_BITS;
/// Smallest and largest log2 of the block size: 512 bytes to 64 KiB.
pub const BLOCK_BITS_MIN: u32 = 9;
pub const BLOCK_BITS_MAX: u32 = 16;
/// Blocks of the smallest group, also of a last one that is shorter than the others.
pub const AG_BLOCKS_MIN: u32 = 64;
/// Most groups of a volume: what an opening keeps for each, in memory, must not be an attacker's to choose.
pub const AG_COUNT_MAX: u32 = 1 << 20;
/// Most placement regions in one allocation group: their summaries share the group header's block.
pub const REGIONS_PER_AG_MAX: u32 = 32;

/// Sizes of a volume and every conversion between addresses. Made from a checked superblock, so its fields are
/// consistent: group and region size are powers of two, and all groups but the last are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub block_bits: u32,
    /// log2 of blocks per allocation group.
    pub ag_bits: u32,
    /// log2 of blocks per placement region.
    pub region_bits: u32,
    pub ag_count: u32,
    /// Blocks of the volume that belong to a group.
    pub block_count: u64,
    /// Inode blocks in a newly made chunk.
    pub chunk_blocks: u32,
    /// Whether each group begins with a table of checksums of its blocks.
    pub has_checksums: bool,
    /// Whether each body lies behind its inode in their block. Where not, it may lie before it.
    pub bodies_follow: bool,
    /// Whether each group records its free blocks in a bitmap (`bitmap`).
    pub has_bitmap: bool,
    /// Blocks of a group for which its inode table has one block (`table`); 0: there is no table.
    pub table_every: u32,
    /// How a block of a file is found.
    pub map: crate::choices::Map,
    /// log2 of the blocks (fragments) of what a pointer of a file leads to (`pointers`); 0: there are no fragments.
    pub fragment_bits: u32,
}

impl Geometry {
    #[inline]
    pub fn block_size(&self) -> usize {
        1 << self.block_bits
    }

    pub fn ag_blocks(&self) -> u32 {
        1 << self.ag_bits
    }

    pub fn region_blocks(&self) -> u32 {
        1 << self.region_bits
    }

    /// Granule: the unit in which changes of a block are tracked and logged; 1/64 of a block, at least 8 bytes.
    pub fn granule_size(&self) -> usize {
        (self.block_size() / 64).max(8)
    }

    /// Blocks of group `ag`; the last group may be shorter.
    #[inline]
    pub fn blocks_in(&self, ag: AgNo) -> u32 {
        debug_assert!(ag.0 < self.ag_count);
        let start = u64::from(ag.0) << self.ag_bits;
        (self.block_count - start).min(u64::from(self.ag_blocks())) as u32
    }

    /// Blocks of group `ag` that can be allocated while nothing is: all but what lies at a fixed place.
    #[inline]
    pub fn usable_blocks_in(&self, ag: AgNo) -> u32 {
        self.blocks_in(ag).saturating_sub(self.first_data_block(ag))
    }

    /// Blocks of the volume that can be allocated while nothing is. All groups but the last one are alike.
    pub fn usable_blocks(&self) -> u64 {
        let last = AgNo(self.ag_count - 1);
        u64::from(last.0) * u64::from(self.usable_blocks_in(AgNo(0))) + u64::from(self.usable_blocks_in(last))
    }

    /// Of [`Self::usable_blocks_in`], those that lie beside others in a block of fragments: it has no room for a whole block.
    pub fn usable_parts_in(&self, ag: AgNo) -> u32 {
        let (first, end) = (self.first_data_block(ag), self.blocks_in(ag));
        let bits = self.fragment_bits;
        let whole = (end >> bits).saturating_sub(first.div_ceil(1 << bits)) << bits;
        self.usable_blocks_in(ag) - whole
    }

    #[inline]
    pub fn ag_of(&self, block: FsBlock) -> AgNo {
        AgNo((block.0 >> self.ag_bits) as u32)
    }

    #[inline]
    pub fn ag_block_of(&self, block: FsBlock) -> AgBlock {
        AgBlock((block.0 & (u64::from(self.ag_blocks()) - 1)) as u32)
    }

    #[inline]
    pub fn fs_block(&self, ag: AgNo, block: AgBlock) -> FsBlock {
        FsBlock((u64::from(ag.0) << self.ag_bits) + u64::from(block.0))
    }

    pub fn regions_per_ag(&self) -> u32 {
        1 << (self.ag_bits - self.region_bits)
    }

    #[inline]
    pub fn region_of(&self, block: FsBlock) -> RegionNo {
        RegionNo((block.0 >> self.region_bits) as u32)
    }

    pub fn region_count(&self) -> u32 {
        self.block_count.div_ceil(u64::from(self.region_blocks())) as u32
    }

    pub fn ag_of_region(&self, region: RegionNo) -> AgNo {
        AgNo(region.0 >> (self.ag_bits - self.region_bits))
    }

    /// Inode slots in a block, the header's slot 0 included.
    #[inline]
    pub fn slots_per_block(&self) -> u32 {
        1 << (self.block_bits - SLOT_BITS)
    }

    pub fn ino(&self, block: FsBlock, slot: u32) -> Ino {
        debug_assert!(slot > 0 && slot < self.slots_per_block());
        Ino(block.0 << (self.block_bits - SLOT_BITS) | u64::from(slot))
    }

    /// Block and slot of an inode; `None` if the number cannot be one of this volume.
    #[inline]
    pub fn locate(&self, ino: Ino) -> Option<(FsBlock, u32)> {
        let bits = self.block_bits - SLOT_BITS;
        let block = FsBlock(ino.0 >> bits);
        let slot = (ino.0 & ((1 << bits) - 1)) as u32;
        let is_inode = if self.has_table() { matches!(slot % 4, 1 | 2) } else { slot != 0 };
        (is_inode && block.0 != 0 && block.0 < self.block_count).then_some((block, slot))
    }

    /// Whether `length` blocks from `start` lie inside one group of the volume, past its fixed blocks and its table of
    /// checksums.
    pub fn is_data_range(&self, start: FsBlock, length: u64) -> bool {
        let Some(end) = start.0.checked_add(length) else { return false };
        length > 0
            && end <= self.block_count
            && self.ag_of(start) == self.ag_of(FsBlock(end - 1))
            && self.ag_block_of(start).0 >= self.first_data_block(self.ag_of(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            block_bits: 12,
            ag_bits: 12,
            region_bits: 10,
            ag_count: 3,
            block_count: 4096 * 2 + 100,
            chunk_blocks: 8,
            has_checksums: false,
            bodies_follow: true,
            has_bitmap: false,
            table_every: 0,
            map: crate::choices::Map::Extents,
            fragment_bits: 0,
        }
    }

    #[test]
    fn inode_numbers_round_trip() {
        let g = geometry();
        let ino = g.ino(FsBlock(77), 31);
        assert_eq!(g.locate(ino), Some((FsBlock(77), 31)));
        assert_eq!(g.locate(Ino(77 << 5)), None, "slot 0 is the header");
        assert_eq!(g.locate(g.ino(FsBlock(9000), 1)), None, "past the end");
    }

    #[test]
    fn last_group_is_short() {
        let g = geometry();
        assert_eq!(g.blocks_in(AgNo(1)), 4096);
        assert_eq!(g.blocks_in(AgNo(2)), 100);
        assert!(g.is_data_range(FsBlock(8192 + 90), 10));
        assert!(!g.is_data_range(FsBlock(8192 + 90), 11));
        assert!(!g.is_data_range(FsBlock(4090), 10), "crosses a group");
    }

    #[test]
    fn usable_blocks_are_those_of_all_groups() {
        let flags = [false, true];
        for (has_checksums, has_bitmap) in flags.into_iter().flat_map(|one| flags.map(|other| (one, other))) {
            for (table_every, last) in
                [0, 8192].into_iter().flat_map(|every| [90, 100, 3000, 4096].map(|last| (every, last)))
            {
                for ag_count in [1, 2, 5] {
                    let block_count = 4096 * u64::from(ag_count - 1) + last;
                    let g = Geometry { ag_count, block_count, has_checksums, has_bitmap, table_every, ..geometry() };
                    let sum: u64 = (0..ag_count).map(|ag| u64::from(g.usable_blocks_in(AgNo(ag)))).sum();
                    assert_eq!(g.usable_blocks(), sum, "{g:?}");
                    assert!(sum > 0);
                }
            }
        }
    }
}
