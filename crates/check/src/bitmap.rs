//! Reading and writing the bitmaps of a group: of its blocks (`space/bitmap.rs`), and of the inodes of its table (`inodes/table.rs`).
//!
//! A unit of 512 bytes that fails its checksum says nothing, and the units beside it still count. The reader is told which numbers such a
//! unit covers, and derives their bits from the owners of the blocks, or from the table of inodes.

use crate::io::{Damage, Reader};
use myriad_format::bitmap::UNIT_BITS;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Geometry, header};
use std::io;
use std::ops::Range;

/// Words of 64 bits in a unit.
const UNIT_WORDS: usize = UNIT_BITS as usize / 64;

/// Where a bitmap lies and how much it speaks of.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    ag: AgNo,
    kind: BlockKind,
    start: FsBlock,
    blocks: u32,
    /// Numbers that exist.
    pub count: u32,
}

impl Place {
    /// The bitmap of a group's blocks.
    pub fn of_blocks(geometry: &Geometry, ag: AgNo) -> Self {
        Self {
            ag,
            kind: BlockKind::BlockBitmap,
            start: geometry.fs_block(ag, AgBlock(geometry.block_bitmap_start(ag))),
            blocks: geometry.block_bitmap_blocks(ag),
            count: geometry.blocks_in(ag),
        }
    }

    /// The bitmap of the inodes of a group's table.
    pub fn of_inodes(geometry: &Geometry, ag: AgNo) -> Self {
        Self {
            ag,
            kind: BlockKind::InodeBitmap,
            start: geometry.fs_block(ag, AgBlock(geometry.inode_bitmap_start(ag))),
            blocks: geometry.inode_bitmap_blocks(ag),
            count: geometry.table_inodes(ag),
        }
    }

    fn block(&self, index: u32) -> FsBlock {
        self.start.offset_by(u64::from(index))
    }
}

/// The bits of a group, set for *free*.
pub(crate) struct Bitmap {
    words: Vec<u64>,
    count: u32,
}

impl Bitmap {
    /// One that calls nothing free.
    pub fn new(count: u32) -> Self {
        Self { words: vec![0; count.div_ceil(64) as usize], count }
    }

    pub fn is_free(&self, number: u32) -> bool {
        number < self.count && self.words[number as usize / 64] >> (number % 64) & 1 == 1
    }

    /// Whether any of these is called free.
    pub fn has_free_in(&self, range: Range<u32>) -> bool {
        self.next(range.start, range.end, true) < range.end
    }

    /// Calls a run free, or not.
    pub fn set(&mut self, range: Range<u32>, is_free: bool) {
        let mut at = range.start;
        while at < range.end {
            let (word, bit) = (at as usize / 64, at % 64);
            let length = (64 - bit).min(range.end - at);
            let mask = (u64::MAX >> (64 - length)) << bit;
            self.words[word] = if is_free { self.words[word] | mask } else { self.words[word] & !mask };
            at += length;
        }
    }

    /// The first number from `at` on, and before `end`, that is free, or not; else `end`.
    fn next(&self, mut at: u32, end: u32, is_free: bool) -> u32 {
        while at < end {
            let word = self.words[at as usize / 64];
            let word = if is_free { word } else { !word } >> (at % 64);
            if word != 0 {
                return (at + word.trailing_zeros()).min(end);
            }
            at = at - at % 64 + 64;
        }
        end
    }

    /// The numbers of which another one says something else.
    pub fn differing(&self, other: &Self) -> Vec<u32> {
        let words = self.words.iter().zip(&other.words).enumerate().filter(|(_, (one, other))| one != other);
        let bits = |(word, (one, other)): (usize, (&u64, &u64))| {
            let difference = one ^ other;
            (0..64).filter(move |bit| difference >> bit & 1 == 1).map(move |bit| word as u32 * 64 + bit)
        };
        words.flat_map(bits).collect()
    }

    /// The runs that are called free: start and length, ascending.
    pub fn free_runs(&self) -> Vec<(u32, u32)> {
        let mut runs = Vec::new();
        let mut at = self.next(0, self.count, true);
        while at < self.count {
            let end = self.next(at, self.count, false);
            runs.push((at, end - at));
            at = self.next(end, self.count, true);
        }
        runs
    }
}

/// A bitmap that was read.
pub(crate) struct Found {
    pub bits: Bitmap,
    /// Numbers of which it says nothing that can be believed; they are not called free.
    pub lost: Vec<Range<u32>>,
    /// It says of a number that does not exist that it is free.
    pub is_past_end: bool,
}

/// Reads a bitmap; what is wrong with its blocks goes to `damaged`.
pub(crate) fn read(reader: &Reader, place: &Place, mut damaged: impl FnMut(FsBlock, Damage)) -> Found {
    let units = reader.geometry.units_per_block();
    let mut words = Vec::with_capacity((place.blocks * units) as usize * UNIT_WORDS);
    let mut lost: Vec<Range<u32>> = Vec::new();
    let mut buf = reader.new_buffer();
    for index in 0..place.blocks {
        let block = place.block(index);
        let found = reader.read_units(block, place.kind, u64::from(place.ag.0), &mut buf);
        found.why.into_iter().for_each(|why| damaged(block, why));
        for unit in found.bad {
            let start = (index * units + unit) * UNIT_BITS;
            let numbers = start.min(place.count)..(start + UNIT_BITS).min(place.count);
            match lost.last_mut() {
                Some(last) if last.end == numbers.start => last.end = numbers.end,
                _ => lost.push(numbers),
            }
        }
        for unit in buf.chunks_exact(UNIT_SIZE) {
            let bytes = unit[UnitHeader::SIZE..].chunks_exact(8);
            words.extend(bytes.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes"))));
        }
    }
    let mut bits = Bitmap { count: (words.len() * 64) as u32, words };
    let is_past_end = bits.has_free_in(place.count..bits.count);
    bits.set(place.count..bits.count, false);
    bits.words.truncate(place.count.div_ceil(64) as usize);
    bits.count = place.count;
    Found { bits, lost, is_past_end }
}

/// Writes a bitmap anew; the block at which that failed.
pub(crate) fn write(reader: &Reader, place: &Place, bits: &Bitmap) -> Result<(), (FsBlock, io::Error)> {
    assert_eq!(bits.count, place.count, "a bitmap speaks of all of its group");
    let units = reader.geometry.units_per_block() as usize;
    let mut buf = reader.new_buffer();
    for index in 0..place.blocks {
        let block = place.block(index);
        header::init(&mut buf, place.kind, reader.volume, u64::from(place.ag.0), block);
        for (unit, bytes) in buf.chunks_exact_mut(UNIT_SIZE).enumerate() {
            let from = (index as usize * units + unit) * UNIT_WORDS;
            let words = bits.words.iter().skip(from).take(UNIT_WORDS);
            for (bytes, word) in bytes[UnitHeader::SIZE..].chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        reader.write(block, &mut buf).map_err(|error| (block, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_was_set() {
        let mut bits = Bitmap::new(300);
        let runs = [(0, 1), (5, 60), (66, 62), (130, 128), (299, 1)];
        for (start, length) in runs {
            bits.set(start..start + length, true);
        }
        assert_eq!(bits.free_runs(), runs);
        let is_free = |number| runs.iter().any(|&(start, length)| (start..start + length).contains(&number));
        for number in 0..310 {
            assert_eq!(bits.is_free(number), is_free(number), "{number}");
        }
        assert!(bits.has_free_in(258..300) && !bits.has_free_in(258..299) && !bits.has_free_in(65..66));
        let mut other = Bitmap::new(300);
        other.set(0..1, true);
        other.set(5..66, true);
        assert_eq!(bits.differing(&other).len() - 1, (62 + 128 + 1));
        assert_eq!(bits.differing(&other)[0], 65);
        bits.set(0..299, false);
        assert_eq!(bits.free_runs(), [(299, 1)]);
    }
}
