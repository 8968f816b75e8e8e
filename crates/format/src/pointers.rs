//! Pointers to the blocks of a file (`map=blockmap`): 15 behind the inode, and blocks of pointers that those lead to.
//!
//! Pointers 0 to 11 of the inode lead to file blocks. Pointer 12 leads to a block of pointers to file blocks, pointer 13 to a block of pointers to
//! such blocks, pointer 14 to one more level. Where the pointer of a file block lies follows from its number alone: this module computes it.
//!
//! On a volume with fragments, a block of the volume is a *fragment*, and what a pointer leads to is a *run* of up to 8 of them, side by side,
//! that crosses no multiple of as many. The pointer says how many they are, so nothing else, such as the file's size, has to be known to claim
//! or free them. A pointer of a file leads to a whole block of fragments, or, as a direct pointer, to its first ones. Pointers of directories
//! and links, and those to blocks of pointers, lead to one fragment each.

use crate::extent::Extent;
use crate::inode::S_IFREG;
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

/// The block is allocated but reads as zero. Of the next fragments of a run the bits below this one say so.
pub const UNWRITTEN: u64 = 1 << 63;
/// The first block's number.
pub const BLOCK: u64 = (1 << 48) - 1;
/// log2 of the most fragments of a block.
pub const FRAGMENT_BITS_MAX: u32 = 3;
/// Where it stands how many fragments of a block the run lacks.
const MISSING_SHIFT: u32 = 48;
const MISSING: u64 = ((1 << FRAGMENT_BITS_MAX) - 1) << MISSING_SHIFT;

on_disk! {
    /// A pointer. 0 is a hole.
    pub struct RawPointer: 8 {
        /// Bits 0 to 47: block. Bit 63: unwritten. On a volume with fragments, bits 48 to 50: how many fragments of a block the run has less;
        /// bits 62 to 56: fragment 1 to 7 of the run is unwritten. All others 0.
        0 => word: U64,
    }
}

/// A pointer that leads somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The first fragment.
    pub block: FsBlock,
    /// Fragments.
    pub length: u32,
    /// Bit i: fragment i is allocated but reads as zero.
    pub unwritten: u8,
}

impl Pointer {
    /// To fragments in the same state.
    pub fn new(block: FsBlock, length: u32, unwritten: bool) -> Self {
        Self { block, length, unwritten: if unwritten { mask(0, length) } else { 0 } }
    }

    pub fn encode(&self, geometry: &Geometry) -> RawPointer {
        let missing = u64::from(geometry.fragments() - self.length) << MISSING_SHIFT;
        RawPointer { word: U64::new(self.block.0 | missing | u64::from(self.unwritten.reverse_bits()) << 56) }
    }

    /// The first block and the number of blocks that a word leads to which is not 0 and was decoded before.
    pub fn run_of(word: u64, geometry: &Geometry) -> (FsBlock, u32) {
        let missing = ((word & MISSING) >> MISSING_SHIFT) as u32;
        (FsBlock(word & BLOCK), geometry.fragments().saturating_sub(missing).max(1))
    }

    /// Whether fragment `index` of what a word leads to is unwritten.
    pub fn is_unwritten(word: u64, index: u32) -> bool {
        word << index & UNWRITTEN != 0
    }

    /// Decodes a pointer of `ino`, `None` if it is a hole; one that leads out of a group's data, or has bits that mean nothing, is damage.
    /// `at` is the first file block that it leads to.
    pub fn decode(raw: RawPointer, geometry: &Geometry, ino: Ino, at: FileBlock) -> Result<Option<Self>, Corrupt> {
        let word = raw.word.get();
        if word == 0 {
            return Ok(None);
        }
        let fragments = geometry.fragments();
        let (block, length) = Self::run_of(word, geometry);
        let pointer = Self { block, length, unwritten: ((word >> 56) as u8).reverse_bits() };
        let is_sound = pointer.encode_checked(geometry) == Some(word)
            && pointer.unwritten & !mask(0, length) == 0
            && block.0 % u64::from(fragments) + u64::from(length) <= u64::from(fragments)
            && geometry.is_data_range(block, length.into());
        if is_sound { Ok(Some(pointer)) } else { Err(Corrupt::Pointer { ino, at, word }) }
    }

    /// The word that says this and nothing else.
    fn encode_checked(&self, geometry: &Geometry) -> Option<u64> {
        (self.length <= geometry.fragments()).then(|| self.encode(geometry).word.get())
    }

    /// As [`Self::decode`], of one that leads to file blocks of `span` fragments; where it is not direct, to a whole one.
    pub fn decode_data(
        raw: RawPointer,
        geometry: &Geometry,
        ino: Ino,
        at: FileBlock,
        span: Span,
    ) -> Result<Option<Self>, Corrupt> {
        match Self::decode(raw, geometry, ino, at)? {
            Some(pointer) if pointer.length > span.fragments || span.is_whole && pointer.length < span.fragments => {
                Err(Corrupt::Pointer { ino, at, word: raw.word.get() })
            }
            found => Ok(found),
        }
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
            Some(Self { block, length: 1, unwritten: 0 }) => Ok(Some(block)),
            Some(_) => Err(Corrupt::Pointer { ino, at, word: raw.word.get() }),
        }
    }

    /// Of the fragments from `from` on, which are there, how many are in the same state, and whether that is unwritten.
    pub fn same(&self, from: u32) -> (u32, bool) {
        debug_assert!(from < self.length);
        let unwritten = self.unwritten >> from & 1 == 1;
        let rest = if unwritten { !self.unwritten } else { self.unwritten };
        let other = (u32::from(rest) >> from).trailing_zeros();
        (other.min(self.length - from), unwritten)
    }

    /// The run that begins at the fragment `at` of the file, which this pointer leads to, and goes on with `next`, as long as each leads to
    /// what lies after the one before and says the same of it. File blocks have `fragments`.
    pub fn run(
        self,
        geometry: &Geometry,
        at: FileBlock,
        fragments: u32,
        next: impl Iterator<Item = RawPointer>,
    ) -> Extent {
        let within = (at.0 % u64::from(fragments)) as u32;
        let (mut length, unwritten) = self.same(within);
        if self.length == fragments && self == Self::new(self.block, fragments, unwritten) {
            let word = self.encode(geometry).word.get();
            let follows = |&(raw, index): &(RawPointer, u64)| raw.word.get() == word + index * u64::from(fragments);
            length += next.zip(1..).take_while(follows).count() as u32 * fragments;
        }
        Extent { file_block: at, start: self.block.offset_by(within.into()), length, unwritten }
    }
}

/// What pointers of one array lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Fragments of a file block.
    pub fragments: u32,
    /// Each leads to all of them.
    pub is_whole: bool,
}

/// The bits of the fragments `from` to `end` of a run.
pub fn mask(from: u32, end: u32) -> u8 {
    ((1_u32 << end) - (1_u32 << from)) as u8
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
    /// Fragments of a block; 1: they are the same.
    pub fn fragments(&self) -> u32 {
        1 << self.fragment_bits
    }

    /// log2 of the fragments of what the pointers of an inode of this type lead to.
    pub fn file_fragment_bits(&self, file_type: u16) -> u32 {
        if file_type == S_IFREG { self.fragment_bits } else { 0 }
    }

    /// Pointers of a block of pointers.
    pub fn pointers_per_block(&self) -> usize {
        self.units_per_block() as usize * UNIT_POINTERS
    }

    /// File blocks (of a file with fragments: whole ones) that a pointer leads to, `below` blocks of pointers being between.
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

    fn with_fragments(bits: u32) -> Geometry {
        Geometry { fragment_bits: bits, ..geometry(12) }
    }

    #[test]
    fn what_a_pointer_can_say_wrong_is_damage() {
        let geometry = geometry(12);
        let at = FileBlock(3);
        let decode = |word| Pointer::decode(RawPointer { word: U64::new(word) }, &geometry, Ino(7), at);
        let inner = |word| Pointer::decode_inner(RawPointer { word: U64::new(word) }, &geometry, Ino(7), at);
        let good = u64::from(geometry.first_data_block(crate::AgNo(0)));
        assert_eq!(decode(0), Ok(None));
        let pointer = Pointer::new(FsBlock(good), 1, true);
        assert_eq!(decode(good | 1 << 63), Ok(Some(pointer)));
        assert_eq!(pointer.encode(&geometry).word.get(), good | 1 << 63);
        assert_eq!(inner(good), Ok(Some(FsBlock(good))));
        for bad in [1, good - 1, good | 1 << 48, good | 1 << 62, geometry.block_count, 1 << 63] {
            assert_eq!(decode(bad), Err(Corrupt::Pointer { ino: Ino(7), at, word: bad }));
        }
        assert!(inner(good | 1 << 63).is_err());
    }

    #[test]
    fn a_pointer_says_how_many_fragments_it_leads_to() {
        let geometry = with_fragments(3);
        let at = FileBlock(3);
        let decode = |word| Pointer::decode(RawPointer { word: U64::new(word) }, &geometry, Ino(7), at);
        let base = u64::from(geometry.first_data_block(crate::AgNo(0))).next_multiple_of(8);
        for start in 0..8 {
            for length in 1..=8 {
                for unwritten in 0..=255 {
                    let pointer = Pointer { block: FsBlock(base + start), length, unwritten };
                    let word = pointer.encode(&geometry).word.get();
                    let is_sound = start + u64::from(length) <= 8 && unwritten & !mask(0, length) == 0;
                    assert_eq!(decode(word).ok(), is_sound.then_some(Some(pointer)), "{pointer:?}");
                    assert_eq!(Pointer::run_of(word, &geometry), (pointer.block, length));
                    for index in 0..length {
                        assert_eq!(Pointer::is_unwritten(word, index), unwritten >> index & 1 == 1);
                    }
                }
            }
        }
        assert!(decode(base | 1 << 51).is_err() && decode(base | 1 << 55).is_err());
        let span = |fragments, is_whole| Span { fragments, is_whole };
        let data = |length, span| {
            Pointer::decode_data(
                Pointer::new(FsBlock(base), length, false).encode(&geometry),
                &geometry,
                Ino(7),
                at,
                span,
            )
        };
        assert!(data(5, span(8, false)).is_ok() && data(8, span(8, true)).is_ok() && data(1, span(1, true)).is_ok());
        assert!(data(5, span(8, true)).is_err() && data(2, span(1, true)).is_err());
        let inner = |length, unwritten| {
            let raw = Pointer { block: FsBlock(base), length, unwritten }.encode(&geometry);
            Pointer::decode_inner(raw, &geometry, Ino(7), at)
        };
        assert_eq!(inner(1, 0), Ok(Some(FsBlock(base))));
        assert!(inner(2, 0).is_err() && inner(1, 1).is_err());
        // As many as the volume has, and no more.
        let two = with_fragments(1);
        let word = Pointer::new(FsBlock(base), 1, true).encode(&two).word.get();
        assert_eq!(word, base | 1 << 48 | 1 << 63);
        assert!(Pointer::decode(RawPointer { word: U64::new(base | 2 << 48) }, &two, Ino(7), at).is_err());
    }

    #[test]
    fn a_run_ends_where_blocks_or_their_state_do_not_go_on() {
        let geometry = geometry(12);
        let raw = |block: u64, unwritten| Pointer::new(FsBlock(block), 1, unwritten).encode(&geometry);
        let first = Pointer::new(FsBlock(900), 1, true);
        let next = [raw(901, true), raw(902, true), raw(903, false), raw(904, true)];
        let run = first.run(&geometry, FileBlock(5), 1, next.into_iter());
        assert_eq!(run, Extent { file_block: FileBlock(5), start: FsBlock(900), length: 3, unwritten: true });
        assert_eq!(first.run(&geometry, FileBlock(5), 1, [RawPointer::zeroed()].into_iter()).length, 1);
    }

    #[test]
    fn a_run_of_fragments_goes_on_behind_whole_blocks_only() {
        let geometry = with_fragments(2);
        let raw = |block, length, unwritten| Pointer { block: FsBlock(block), length, unwritten }.encode(&geometry);
        let run = |first: Pointer, at, next: &[RawPointer]| {
            let run = first.run(&geometry, FileBlock(at), 4, next.iter().copied());
            (run.start.0, run.length, run.unwritten)
        };
        let next = [raw(904, 4, 0), raw(908, 4, 0), raw(912, 3, 0)];
        let whole = Pointer::new(FsBlock(900), 4, false);
        assert_eq!(run(whole, 20, &next), (900, 12, false));
        assert_eq!(run(whole, 23, &next), (903, 9, false));
        assert_eq!(run(Pointer { unwritten: 0b0110, ..whole }, 20, &next), (900, 1, false));
        assert_eq!(run(Pointer { unwritten: 0b0110, ..whole }, 21, &next), (901, 2, true));
        assert_eq!(run(Pointer { unwritten: 0b0110, ..whole }, 23, &next), (903, 1, false));
        assert_eq!(run(Pointer::new(FsBlock(901), 3, true), 21, &[raw(904, 4, 15)]), (902, 2, true));
    }
}
