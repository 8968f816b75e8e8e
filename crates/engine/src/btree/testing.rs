//! A block store in memory that holds its callers to the rules, a node source that runs dry on demand, and numbers
//! from a seed.

use crate::edit::{BlockEdit, BlockRead, BlockStore, NewBlock, NodeSource, Origin};
use crate::error::{Result, refuse};
use myriad_format::{BlockKind, Corrupt, FsBlock, Geometry, header};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};

/// Checks, beyond what it stores: a change touches only granules it marked, `init` never meets a block of the committed
/// state, nothing reads or forgets a block that is not there.
pub(crate) struct TestStore {
    pub geometry: Geometry,
    pub blocks: HashMap<FsBlock, Vec<u8>>,
    /// Metadata blocks of the last commit.
    committed: BTreeSet<FsBlock>,
    pub changes: u64,
    /// Lets through what only damage explains.
    pub lenient: bool,
}

impl TestStore {
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry, blocks: HashMap::new(), committed: BTreeSet::new(), changes: 0, lenient: false }
    }

    pub fn commit(&mut self) {
        self.committed = self.blocks.keys().copied().collect();
    }

    /// Whether the committed state uses the block as metadata, so that nothing may overwrite it in place.
    pub fn is_committed(&self, block: FsBlock) -> bool {
        self.committed.contains(&block)
    }
}

impl BlockRead for TestStore {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let Some(bytes) = self.blocks.get(&block) else {
            return Err(Corrupt::BlockKind { block, expected: kind.name(), found: 0 }.into());
        };
        let found = myriad_format::BlockHeader::read(bytes).magic.get();
        if found != kind.magic() {
            return Err(Corrupt::BlockKind { block, expected: kind.name(), found }.into());
        }
        Ok(f(bytes))
    }
}

impl BlockStore for TestStore {
    fn change<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&mut BlockEdit<'_>) -> R) -> Result<R> {
        let before = self.read(block, kind, <[u8]>::to_vec)?;
        self.changes += 1;
        let bytes = self.blocks.get_mut(&block).expect("read above");
        let mut mask = 0u64;
        let result = f(&mut BlockEdit::new(bytes, &mut mask));
        let granule = self.geometry.granule_size();
        for (index, (old, new)) in before.chunks(granule).zip(bytes.chunks(granule)).enumerate() {
            assert!(old == new || mask >> index & 1 == 1, "{block:?}: granule {index} changed unmarked");
        }
        Ok(result)
    }

    fn init<R>(
        &mut self,
        NewBlock { block, origin }: NewBlock,
        kind: BlockKind,
        owner: u64,
        f: impl FnOnce(&mut BlockEdit<'_>) -> R,
    ) -> Result<R> {
        if origin == Origin::Free {
            assert!(!self.committed.contains(&block), "{block:?} of the committed state is written in place");
        }
        assert!(self.lenient || !self.blocks.contains_key(&block), "{block:?} is in use");
        assert!(block.0 < self.geometry.block_count);
        let mut bytes = vec![0xa5; self.geometry.block_size()];
        header::init(&mut bytes, kind, [7; 16], owner, block);
        let mut mask = 0;
        let result = f(&mut BlockEdit::new(&mut bytes, &mut mask));
        self.blocks.insert(block, bytes);
        Ok(result)
    }

    fn forget(&mut self, block: FsBlock) {
        assert!(self.blocks.remove(&block).is_some() || self.lenient, "{block:?} is forgotten twice");
    }
}

/// Hands out blocks from a pool; refuses once `budget` is used up.
pub(crate) struct TestSource {
    pub free: BTreeSet<FsBlock>,
    pub budget: usize,
    pub lenient: bool,
}

impl TestSource {
    pub fn new(blocks: std::ops::Range<u64>) -> Self {
        Self { free: blocks.map(FsBlock).collect(), budget: usize::MAX, lenient: false }
    }
}

impl NodeSource<TestStore> for TestSource {
    fn allocate(&mut self, _store: &mut TestStore) -> Result<NewBlock> {
        if self.budget == 0 {
            return refuse(Errno::NOSPC);
        }
        self.budget -= 1;
        self.free.pop_first().map_or_else(|| refuse(Errno::NOSPC), |block| Ok(NewBlock::free(block)))
    }

    fn free(&mut self, store: &mut TestStore, block: FsBlock) -> Result<()> {
        assert!(!store.blocks.contains_key(&block), "{block:?} is freed but not forgotten");
        assert!(self.free.insert(block) || self.lenient, "{block:?} is freed twice");
        Ok(())
    }
}

/// Numbers from a seed (splitmix64). Prints the seed, so that a failed test names it.
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A volume of blocks of `1 << block_bits` bytes, with groups of `1 << ag_bits` and regions of `1 << region_bits`.
pub(crate) fn geometry(block_bits: u32, ag_bits: u32, region_bits: u32, block_count: u64) -> Geometry {
    let ag_count = block_count.div_ceil(1 << ag_bits) as u32;
    Geometry {
        block_bits,
        ag_bits,
        region_bits,
        ag_count,
        block_count,
        chunk_blocks: 8,
        has_checksums: false,
        bodies_follow: true,
        has_bitmap: false,
        table_every: 0,
        map: myriad_format::choices::Map::Extents,
        fragment_bits: 0,
    }
}
