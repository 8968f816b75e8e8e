//! How many nodes of a file's map have to be reserved for its dirty pages.
//!
//! A flush reserves nothing. When a page becomes dirty, the file is promised the blocks that the page's flush may need in the worst case, so no flush
//! runs out of blocks in the middle of its change. How many of these are nodes depends on the map.
//!
//! `extents`: a page without a dirty neighbour may split a node on each level of the tree. Of pages side by side, every twelfth reserves
//! one more block (every third with checksums), because each of them may become an extent of its own.
//!
//! `blockmap`: where the pointer of a page lies follows from the page's number, so the promise is exact: every block of pointers on the way to any
//! dirty page, once. Blocks of pointers that exist already count as well: a hole punched beside the page may take them away before the
//! flush, and overwriting out of place takes them away and makes them anew. A full volume lets a page over a mapped block be written in place, without
//! a promise. The next page that lies elsewhere then reserves what is missing.

//! With fragments, a page is one fragment, and what its flush takes may be all of its file block. So the first page of each file block is
//! promised a whole block.

use super::extents;
use crate::error::Result;
use myriad_format::choices::Map;
use myriad_format::inode::RawInode;
use myriad_format::{FileBlock, Geometry, Ino};
use std::collections::{BTreeMap, BTreeSet};

/// Pages side by side that get a further promise of one block for the nodes of the extent tree: each may be an extent of its
/// own, and a node of the smallest block that was split holds 14.
const PAGES_PER_NODE: u64 = 12;

/// What a file's dirty pages have been promised for nodes, besides what [`Promised::after`] derives from their number.
#[derive(Default)]
pub(crate) struct Promised {
    /// For nodes of their own.
    nodes: u64,
    /// `blockmap`: blocks of pointers on the way to any of them.
    on_the_way: u64,
    /// With fragments: file blocks that have been promised.
    whole: BTreeSet<u64>,
}

/// What a new page is to be promised.
pub(crate) struct Nodes {
    /// Blocks, the page's own included.
    pub count: u64,
    /// As many if the block is mapped and unwritten.
    pub to_reserved: u64,
    /// The page's file block, if that is promised with it.
    whole: Option<u64>,
    /// Of `count`, what is for blocks of data.
    data: u64,
    /// Nodes that go with this page alone.
    own: u64,
    /// Blocks of pointers on its way and on that of no other page.
    new_on_the_way: u64,
}

/// Pages that get a further promise of one block for nodes. Data with checksums that overwrites may cut an extent in three.
fn pages_per_node(geometry: &Geometry) -> u64 {
    if geometry.has_checksums { PAGES_PER_NODE / 4 } else { PAGES_PER_NODE }
}

/// Blocks that a new file may need, of which the first `pages` blocks are written: for those and for nodes of its map.
#[inline]
pub(crate) fn promise_of_new(geometry: &Geometry, pages: u64) -> u64 {
    if pages == 0 {
        return 0;
    }
    match geometry.map {
        // At worst each page is an extent of its own, and the tree over them has a node for few.
        Map::Extents => pages + pages / PAGES_PER_NODE,
        Map::Blocks => {
            let whole = pages.next_multiple_of(geometry.fragments().into());
            whole + on_the_way(geometry, &FileBlocks { pages: &(0..pages), bits: geometry.fragment_bits })
        }
    }
}

impl Promised {
    /// What a page for `block` is to be promised, beside those in `pages`. `raw` reads the file's inode.
    pub fn for_page<T>(
        &self,
        geometry: &Geometry,
        ino: Ino,
        raw: impl FnOnce() -> Result<RawInode>,
        pages: &BTreeMap<u64, T>,
        block: u64,
    ) -> Result<Nodes> {
        match geometry.map {
            Map::Extents => {
                let beside = u64::from(pages.len() as u64 % pages_per_node(geometry) == 0);
                let is_dirty = |block: Option<u64>| block.is_some_and(|block| pages.contains_key(&block));
                if is_dirty(block.checked_sub(1)) || is_dirty(block.checked_add(1)) {
                    return Ok(Nodes::of_extents(beside, beside, 0));
                }
                // Each time: whoever gives the file an attribute may plant a tree as well.
                let apart = extents::levels(&raw()?, ino, geometry)?;
                Ok(Nodes::of_extents(beside + apart, (beside + apart).max(1), apart))
            }
            Map::Blocks => {
                let new_on_the_way = new_on_the_way(geometry, pages, block);
                let own = (self.on_the_way + new_on_the_way).saturating_sub(self.nodes);
                let file_block = block >> geometry.fragment_bits;
                let whole = (geometry.fragments() > 1).then_some(file_block);
                let is_promised = self.whole.contains(&file_block);
                let data = if is_promised { 0 } else { geometry.fragments().into() };
                // What is mapped has its pointer, and keeps it while it is written.
                Ok(Nodes { count: data + own, to_reserved: 0, whole, data, own, new_on_the_way })
            }
        }
    }

    /// Notes that a page was made that got `promised` blocks, itself included.
    pub fn note(&mut self, nodes: &Nodes, promised: u64) {
        self.nodes += nodes.own.min(promised);
        self.on_the_way += nodes.new_on_the_way;
        if promised >= nodes.data.max(1) {
            self.whole.extend(nodes.whole);
        }
    }

    /// Forgets what pages that are gone were promised. What those that are left in `pages` can need at most, themselves included.
    pub fn after<T>(&mut self, geometry: &Geometry, pages: &BTreeMap<u64, T>) -> u64 {
        let count = pages.len() as u64;
        if count == 0 {
            *self = Self::default();
            return 0;
        }
        match geometry.map {
            Map::Extents => count + count / pages_per_node(geometry) + 1 + self.nodes,
            Map::Blocks => {
                self.on_the_way = on_the_way(geometry, &FileBlocks { pages, bits: geometry.fragment_bits });
                self.nodes = self.nodes.min(self.on_the_way);
                let bits = geometry.fragment_bits;
                self.whole.retain(|&block| pages.range(block << bits..(block + 1) << bits).next().is_some());
                let data = if bits > 0 { (self.whole.len() as u64) << bits } else { count };
                data + self.nodes
            }
        }
    }
}

/// File blocks that may be asked for the first at or after one.
trait Set {
    fn first_from(&self, block: u64) -> Option<u64>;
}

impl<T> Set for BTreeMap<u64, T> {
    fn first_from(&self, block: u64) -> Option<u64> {
        self.range(block..).next().map(|(&block, _)| block)
    }
}

impl Set for std::ops::Range<u64> {
    fn first_from(&self, block: u64) -> Option<u64> {
        Some(block.max(self.start)).filter(|&block| block < self.end)
    }
}

/// The file blocks that pages lie in, which may be fragments of them.
struct FileBlocks<'a, T> {
    pages: &'a T,
    bits: u32,
}

impl<T: Set> Set for FileBlocks<'_, T> {
    fn first_from(&self, block: u64) -> Option<u64> {
        self.pages.first_from(block << self.bits).map(|page| page >> self.bits)
    }
}

impl Nodes {
    /// For a page and so many nodes, `own` of them for the page alone.
    fn of_extents(nodes: u64, to_reserved: u64, own: u64) -> Self {
        Self { count: 1 + nodes, to_reserved, whole: None, data: 1, own, new_on_the_way: 0 }
    }
}

/// Blocks of pointers on the way to any of `blocks`.
fn on_the_way(geometry: &Geometry, blocks: &impl Set) -> u64 {
    let mut count = 0;
    // Ends of what was counted already, by level from the file blocks on.
    let mut ends = [0; myriad_format::pointers::DEPTH_MAX];
    let mut next = blocks.first_from(0);
    while let Some(block) = next {
        let Some(way) = geometry.way(FileBlock(block)) else { break };
        let mut goes_on = block + 1;
        for (below, end) in ends.iter_mut().enumerate().take(way.depth) {
            let span = geometry.node_span(&way, way.depth - 1 - below, FileBlock(block));
            if below == 0 {
                goes_on = span.end;
            }
            if span.end > *end {
                *end = span.end;
                count += 1;
            }
        }
        next = blocks.first_from(goes_on);
    }
    count
}

/// Of the blocks of pointers on the way to `block`, those that lead to none of `pages`.
fn new_on_the_way<T>(geometry: &Geometry, pages: &BTreeMap<u64, T>, block: u64) -> u64 {
    let bits = geometry.fragment_bits;
    let block = FileBlock(block >> bits);
    let Some(way) = geometry.way(block) else { return 0 };
    let leads_to_none = |&level: &usize| {
        let span = geometry.node_span(&way, level, block);
        pages.range(span.start << bits..span.end << bits).next().is_none()
    };
    (0..way.depth).rev().take_while(leads_to_none).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::testing::{Rng, geometry};

    fn small() -> Geometry {
        Geometry { map: Map::Blocks, ..geometry(9, 23, 20, 1 << 24) }
    }

    /// The plain way to count: each block of pointers by where what it leads to begins and ends.
    fn counted(geometry: &Geometry, pages: &BTreeMap<u64, ()>) -> u64 {
        let mut nodes = BTreeSet::new();
        for &block in pages.keys() {
            let way = geometry.way(FileBlock(block)).unwrap();
            for level in 0..way.depth {
                let span = geometry.node_span(&way, level, FileBlock(block));
                nodes.insert((span.start, span.end));
            }
        }
        nodes.len() as u64
    }

    #[test]
    fn each_block_of_pointers_is_promised_once() {
        let geometry = small();
        let end = geometry.pointed_blocks_max();
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut promised, mut pages, mut sum) = (Promised::default(), BTreeMap::new(), 0);
            for _ in 0..300 {
                let block = if rng.one_in(2) { rng.below(end) } else { rng.below(600) };
                if pages.contains_key(&block) {
                    continue;
                }
                let raw = || unreachable!("the way follows from the block's number");
                let nodes = promised.for_page(&geometry, Ino(1), raw, &pages, block).unwrap();
                // A page over a mapped block of a full volume is promised nothing.
                let is_short = rng.one_in(5);
                let got = if is_short { 0 } else { nodes.count };
                promised.note(&nodes, got);
                pages.insert(block, ());
                sum += got.saturating_sub(1);
                assert_eq!(promised.on_the_way, counted(&geometry, &pages));
                assert_eq!(promised.nodes, sum);
                assert!(is_short || sum == promised.on_the_way, "what was short is made up for");
                if rng.one_in(20) {
                    let from = rng.below(end);
                    pages.retain(|&page, ()| page < from);
                    let needed = promised.after(&geometry, &pages);
                    sum = sum.min(counted(&geometry, &pages));
                    assert_eq!(needed, pages.len() as u64 + sum);
                }
            }
        }
    }

    #[test]
    fn a_new_file_is_promised_what_it_takes() {
        let geometry = small();
        let n = 62;
        for (pages, nodes) in
            [(0, 0), (12, 0), (13, 1), (12 + n, 1), (13 + n, 3), (12 + n + n * n, 2 + n), (13 + n + n * n, 5 + n)]
        {
            assert_eq!(promise_of_new(&geometry, pages), pages + nodes, "{pages} pages");
        }
    }
}
