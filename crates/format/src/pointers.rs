//! Pointers to the blocks of a file (`map=blockmap`): 15 behind the inode, and blocks of pointers that those lead to.
//!
//! Pointers 0 to 11 of the inode lead to file blocks. Pointer 12 leads to a block of pointers to file blocks, pointer 13 to a block of pointers to
//! such blocks, pointer 14 to one more level. Where the pointer of a file block lies follows from its number alone: this module computes it.

use crate::extent::Extent;
use crate::on_disk::on_disk;
use crate::table::{DIRECT, POINTERS};
use crate::unit::{UNIT_ROOM, UNIT_SIZE, UnitHeader};
use crate::{Corrupt, FileBlock, FsBlock, Geometry, Ino};
use std::ops::Range;
use zerocopy::little_endian::U64;

/// Pointers of a unit of a block of pointers.
pub const UNIT_POINTERS: usize = UNIT_ROOM / RawPointer::SIZE;
/// Most blocks of pointers between an inode and a file block.
pub const DEPTH_MAX: usize = POINTERS - DIRECT;

/// The block is allocated but reads as zero.
pub const UNWRITTEN: u64 = 1 << 63;
/// The block's number.
pub const BLOCK: u64 = (1 << 48) - 1;

on_disk! {
    /// A pointer. 0 is a hole.
    pub struct RawPointer: 8 {
        /// Bits 0 to 47: block. Bit 63: unwritten. All others 0.
        0 => word: U64,
    }
}

/// A pointer that leads somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    pub block: FsBlock,
    pub unwritten: bool,
}

impl Pointer {
    pub fn encode(&self) -> RawPointer {
        RawPointer { word: U64::new(self.block.0 | if self.unwritten { UNWRITTEN } else { 0 }) }
    }

    /// Decodes a pointer of `ino`, `None` if it is a hole; one that leads out of a group's data, or has bits that mean nothing, is damage.
    /// `at` is the first file block that it leads to.
    pub fn decode(raw: RawPointer, geometry: &Geometry, ino: Ino, at: FileBlock) -> Result<Option<Self>, Corrupt> {
        let word = raw.word.get();
        if word == 0 {
            return Ok(None);
        }
        let pointer = Self { block: FsBlock(word & BLOCK), unwritten: word & UNWRITTEN != 0 };
        if word & !(BLOCK | UNWRITTEN) != 0 || !geometry.is_data_range(pointer.block, 1) {
            return Err(Corrupt::Pointer { ino, at, word });
        }
        Ok(Some(pointer))
    }

    /// As [`Self::decode`], of a pointer to a block of pointers, which cannot be unwritten.
    pub fn decode_inner(
        raw: RawPointer,
        geometry: &Geometry,
        ino: Ino,
        at: FileBlock,
    ) -> Result<Option<FsBlock>, Corrupt> {
        match Self::decode(raw, geometry, ino, at)? {
            None => Ok(None),
            Some(pointer) if pointer.unwritten => Err(Corrupt::Pointer { ino, at, word: raw.word.get() }),
            Some(pointer) => Ok(Some(pointer.block)),
        }
    }

    /// The run that begins with the pointer of file block `at` and goes on with `next`, as long as each leads to the block after the one
    /// before and says the same of it.
    pub fn run(self, at: FileBlock, next: impl Iterator<Item = RawPointer>) -> Extent {
        let word = self.encode().word.get();
        let more = next.zip(1..).take_while(|(raw, index)| raw.word.get() == word + index).count();
        Extent { file_block: at, start: self.block, length: 1 + more as u32, unwritten: self.unwritten }
    }
}

/// Byte of a block of pointers at which a pointer lies.
pub fn offset(index: usize) -> usize {
    index / UNIT_POINTERS * UNIT_SIZE + UnitHeader::SIZE + index % UNIT_POINTERS * RawPointer::SIZE
}

/// A pointer of a block of pointers.
pub fn read(bytes: &[u8], index: usize) -> RawPointer {
    *RawPointer::read(&bytes[offset(index)..])
}

/// The way from an inode to a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Pointer of the inode.
    pub root: usize,
    /// Blocks of pointers on the way.
    pub depth: usize,
    /// Pointer in each of them.
    indices: [usize; DEPTH_MAX],
}

impl Way {
    /// Which pointer of its block leads on at `level`, 0 being the block that the inode's pointer leads to.
    pub fn index(&self, level: usize) -> usize {
        debug_assert!(level < self.depth);
        self.indices[level]
    }
}

impl Geometry {
    /// Pointers of a block of pointers.
    pub fn pointers_per_block(&self) -> usize {
        self.units_per_block() as usize * UNIT_POINTERS
    }

    /// File blocks that a pointer leads to, `below` blocks of pointers being between.
    pub fn pointer_span(&self, below: usize) -> u64 {
        (self.pointers_per_block() as u64).pow(below as u32)
    }

    /// The file blocks that pointer `root` of an inode leads to.
    pub fn root_span(&self, root: usize) -> Range<u64> {
        let Some(below) = (root + 1).checked_sub(DIRECT).filter(|&below| below > 0) else {
            return root as u64..root as u64 + 1;
        };
        let start = DIRECT as u64 + (1..below).map(|below| self.pointer_span(below)).sum::<u64>();
        start..start + self.pointer_span(below)
    }

    /// Blocks of the largest file.
    pub fn pointed_blocks_max(&self) -> u64 {
        self.root_span(POINTERS - 1).end
    }

    /// The way to a file block; `None` if it lies past the largest file.
    pub fn way(&self, at: FileBlock) -> Option<Way> {
        if at.0 < DIRECT as u64 {
            return Some(Way { root: at.0 as usize, depth: 0, indices: [0; DEPTH_MAX] });
        }
        let root = (DIRECT..POINTERS).find(|&root| at.0 < self.root_span(root).end)?;
        let depth = root + 1 - DIRECT;
        let mut way = Way { root, depth, indices: [0; DEPTH_MAX] };
        let mut rest = at.0 - self.root_span(root).start;
        for level in 0..depth {
            let span = self.pointer_span(depth - 1 - level);
            way.indices[level] = (rest / span) as usize;
            rest %= span;
        }
        Some(way)
    }

    /// The file blocks that the block of pointers at `level` of the way to `at` leads to.
    pub fn node_span(&self, way: &Way, level: usize, at: FileBlock) -> Range<u64> {
        debug_assert!(level < way.depth);
        let first = self.root_span(way.root).start;
        let span = self.pointer_span(way.depth - level);
        let start = first + (at.0 - first) / span * span;
        start..start + span
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::geometry;

    #[test]
    fn every_file_block_has_a_way_of_its_own() {
        let geometry = geometry(9);
        let n = 62_u64;
        assert_eq!(geometry.pointers_per_block() as u64, n);
        assert_eq!(geometry.pointed_blocks_max(), 12 + n + n * n + n * n * n);
        let mut last: Option<(usize, [usize; 3])> = None;
        for at in 0..geometry.pointed_blocks_max() {
            let way = geometry.way(FileBlock(at)).unwrap();
            let mut indices = [0; 3];
            for (level, place) in indices.iter_mut().enumerate().take(way.depth) {
                *place = way.index(level);
                assert!((*place as u64) < n);
                let span = geometry.node_span(&way, level, FileBlock(at));
                assert!(span.contains(&at) && span.end - span.start == n.pow((way.depth - level) as u32));
            }
            assert!(geometry.root_span(way.root).contains(&at));
            assert!(last < Some((way.root, indices)), "{at}");
            last = Some((way.root, indices));
        }
        assert_eq!(geometry.way(FileBlock(geometry.pointed_blocks_max())), None);
        assert_eq!(geometry.way(FileBlock(12 + n + 3 * n + 5)), Some(Way { root: 13, depth: 2, indices: [3, 5, 0] }));
    }

    #[test]
    fn pointers_lie_behind_the_headers_of_their_units() {
        assert_eq!([0, 61, 62, 495].map(offset), [16, 504, 528, 4088]);
    }

    #[test]
    fn what_a_pointer_can_say_wrong_is_damage() {
        let geometry = geometry(12);
        let at = FileBlock(3);
        let decode = |word| Pointer::decode(RawPointer { word: U64::new(word) }, &geometry, Ino(7), at);
        let inner = |word| Pointer::decode_inner(RawPointer { word: U64::new(word) }, &geometry, Ino(7), at);
        let good = u64::from(geometry.first_data_block(crate::AgNo(0)));
        assert_eq!(decode(0), Ok(None));
        let pointer = Pointer { block: FsBlock(good), unwritten: true };
        assert_eq!(decode(good | 1 << 63), Ok(Some(pointer)));
        assert_eq!(pointer.encode().word.get(), good | 1 << 63);
        assert_eq!(inner(good), Ok(Some(FsBlock(good))));
        for bad in [1, good - 1, good | 1 << 48, good | 1 << 62, geometry.block_count, 1 << 63] {
            assert_eq!(decode(bad), Err(Corrupt::Pointer { ino: Ino(7), at, word: bad }));
        }
        assert!(inner(good | 1 << 63).is_err());
    }

    #[test]
    fn a_run_ends_where_blocks_or_their_state_do_not_go_on() {
        let raw = |block: u64, unwritten| Pointer { block: FsBlock(block), unwritten }.encode();
        let first = Pointer { block: FsBlock(900), unwritten: true };
        let next = [raw(901, true), raw(902, true), raw(903, false), raw(904, true)];
        let run = first.run(FileBlock(5), next.into_iter());
        assert_eq!(run, Extent { file_block: FileBlock(5), start: FsBlock(900), length: 3, unwritten: true });
        assert_eq!(first.run(FileBlock(5), [RawPointer::zeroed()].into_iter()).length, 1);
    }
}
