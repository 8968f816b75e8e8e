//! Writes the blocks of pointers of a file (`map=blockmap`) anew.

use super::InodePointers;
use crate::io::Reader;
use crate::options::CheckError;
use crate::repair::build::write;
use myriad_format::extent::Extent;
use myriad_format::pointers::{self, Pointer, RawPointer};
use myriad_format::table::POINTERS;
use myriad_format::{BlockKind, FileBlock, FsBlock, Geometry, Ino, header};
use std::collections::HashSet;
use zerocopy::IntoBytes;

/// Blocks of pointers that a file with these extents has, whose file blocks have so many fragments (a power of two).
pub(crate) fn node_count(geometry: &Geometry, bits: u32, extents: &[Extent]) -> usize {
    let mut spans = HashSet::new();
    for extent in extents {
        let mut at = FileBlock(extent.file_block.0 >> bits);
        let end = FileBlock(extent.end().0.div_ceil(1 << bits));
        while at < end
            && let Some(way) = geometry.way(at)
        {
            let of_level = |level| geometry.node_span(&way, level, at);
            spans.extend((0..way.depth).map(|level| (of_level(level).start, of_level(level).end)));
            at = FileBlock(if way.depth == 0 { at.0 + 1 } else { of_level(way.depth - 1).end });
        }
    }
    spans.len()
}

/// Writes the blocks of pointers of a file with these extents, which [`super::fit`], to `places`, which are as many as [`node_count`]; the
/// pointers of its inode.
pub(crate) fn build(
    reader: &Reader,
    ino: Ino,
    bits: u32,
    extents: &[Extent],
    places: Vec<FsBlock>,
) -> Result<InodePointers, CheckError> {
    let mut build = Build { reader, ino, bits, extents, places };
    let mut list = [RawPointer::zeroed(); POINTERS];
    for (root, pointer) in list.iter_mut().enumerate() {
        let start = reader.geometry.root_span(root).start;
        let depth = reader.geometry.way(FileBlock(start)).map_or(0, |way| way.depth);
        *pointer = build.pointer(start, depth)?;
    }
    Ok(list)
}

struct Build<'a> {
    reader: &'a Reader,
    ino: Ino,
    bits: u32,
    extents: &'a [Extent],
    places: Vec<FsBlock>,
}

impl Build<'_> {
    /// The pointer that leads to the file blocks from `start` on through `depth` blocks of pointers, which are written.
    fn pointer(&mut self, start: u64, depth: usize) -> Result<RawPointer, CheckError> {
        let geometry = self.reader.geometry;
        let from = start << self.bits;
        let first = self.extents.partition_point(|extent| extent.end().0 <= from);
        let end = start + geometry.pointer_span(depth);
        let Some(extent) = self.extents.get(first).filter(|extent| extent.file_block.0 < end << self.bits) else {
            return Ok(RawPointer::zeroed());
        };
        if depth == 0 {
            let mut pointer =
                Pointer { block: extent.start.offset_by(from - extent.file_block.0), length: 0, unwritten: 0 };
            for extent in self.extents[first..].iter().take_while(|extent| extent.file_block.0 < end << self.bits) {
                let upto = (extent.end().0.min(end << self.bits) - from) as u32;
                let state = if extent.unwritten { pointers::mask(pointer.length, upto) } else { 0 };
                pointer = Pointer { length: upto, unwritten: pointer.unwritten | state, ..pointer };
            }
            return Ok(pointer.encode(&geometry));
        }
        let no_place = || CheckError::Repair("a map took more blocks of pointers than were counted".to_owned());
        let block = self.places.pop().ok_or_else(no_place)?;
        let mut buf = self.reader.new_buffer();
        header::init(&mut buf, BlockKind::Pointers, self.reader.volume, self.ino.0, block);
        let span = geometry.pointer_span(depth - 1);
        for (index, at) in (0..geometry.pointers_per_block()).zip((start..end).step_by(span as usize)) {
            let pointer = self.pointer(at, depth - 1)?;
            buf[pointers::offset(index)..][..RawPointer::SIZE].copy_from_slice(pointer.as_bytes());
        }
        write(self.reader, block, &mut buf)?;
        Ok(Pointer::new(block, 1, false).encode(&geometry))
    }
}
