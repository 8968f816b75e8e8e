//! Walks the pointers of a file (`map=blockmap`) without trusting them, as `tree` walks trees. The check follows each block of pointers once and
//! reports what is wrong with it; a repair follows all that it can. Both get the blocks of the file as extents, in order.

mod build;
mod fit;

pub(crate) use build::{build, node_count};
pub(crate) use fit::fit;

use crate::io::{Damage, Reader};
use crate::visitor::Visitor;
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::pointers::{self, Pointer, RawPointer, Span};
use myriad_format::table::POINTERS;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Geometry, Ino};
use zerocopy::{FromBytes, IntoBytes};

/// The pointers behind an inode.
pub(crate) type InodePointers = [RawPointer; POINTERS];

/// The pointers behind inode `ino`, whose block, which was looked at before, has these bytes; none of an inode outside a table.
pub(crate) fn in_block(reader: &Reader, ino: Ino, block: &[u8]) -> InodePointers {
    let Some((_, at)) = reader.geometry.pointers_place(ino) else { return [RawPointer::zeroed(); POINTERS] };
    InodePointers::read_from_bytes(&block[at..at + size_of::<InodePointers>()]).expect("the slice is as long")
}

/// As [`in_block`], with the block read again; none if that cannot be read.
pub(crate) fn of_inode(reader: &Reader, ino: Ino) -> InodePointers {
    let mut buf = reader.new_buffer();
    let place = reader.geometry.pointers_place(ino);
    match place.map(|(block, _)| reader.read_inodes(block, &mut buf)) {
        Some(Ok(())) => in_block(reader, ino, &buf),
        _ => [RawPointer::zeroed(); POINTERS],
    }
}

/// log2 of the fragments of what an inode's pointers lead to.
pub(crate) fn bits_of(geometry: &Geometry, raw: &RawInode) -> u32 {
    geometry.file_fragment_bits(raw.file_type())
}

/// Walks the pointers of an inode, which lead to file blocks of so many fragments (a power of two). Extents come as records, in order; each
/// lies in one block of pointers.
pub(crate) fn walk(reader: &Reader, ino: Ino, bits: u32, pointers: &InodePointers, visitor: &mut dyn Visitor) {
    let mut walk = Walk { reader, ino, bits, visitor };
    for (root, &raw) in pointers.iter().enumerate() {
        let span = reader.geometry.root_span(root);
        match reader.geometry.way(FileBlock(span.start)).map_or(0, |way| way.depth) {
            // Direct ones make runs like those of a block.
            0 if root == 0 => walk.blocks(FileBlock(0), false, &pointers[..myriad_format::table::DIRECT]),
            0 => {}
            depth => walk.node(raw, FileBlock(span.start), depth),
        }
    }
}

struct Walk<'a> {
    reader: &'a Reader,
    ino: Ino,
    bits: u32,
    visitor: &'a mut dyn Visitor,
}

impl Walk<'_> {
    /// Pointers to file blocks, from `first` on, each to a whole one if `is_whole`.
    fn blocks(&mut self, first: FileBlock, is_whole: bool, list: &[RawPointer]) {
        let geometry = self.reader.geometry;
        let fragments = 1 << self.bits;
        let mut index = 0;
        while index < list.len() {
            let at = (first.0 + index as u64) << self.bits;
            index += 1;
            let span = Span { fragments, is_whole };
            let pointer = match Pointer::decode_data(list[index - 1], &geometry, self.ino, FileBlock(at), span) {
                Err(corrupt) => {
                    self.visitor.damage(corrupt.into());
                    continue;
                }
                Ok(None) => continue,
                Ok(Some(pointer)) => pointer,
            };
            let mut done = 0;
            while done < pointer.length {
                let next = list[index..].iter().copied();
                let mut run = pointer.run(&geometry, FileBlock(at + u64::from(done)), fragments, next);
                // A run that leaves its group is damage where it leaves it.
                while !geometry.is_data_range(run.start, u64::from(run.length)) {
                    run = Extent { length: run.length - fragments, ..run };
                }
                index += ((done + run.length).saturating_sub(1) >> self.bits) as usize;
                done += run.length;
                self.visitor.record(run.encode().as_bytes());
            }
        }
    }

    /// What a pointer to a block of pointers leads to, `depth` of them being on the way to a file block. Recursion is bounded by the depth.
    fn node(&mut self, raw: RawPointer, at: FileBlock, depth: usize) {
        let geometry = self.reader.geometry;
        let block = match Pointer::decode_inner(raw, &geometry, self.ino, at) {
            Ok(None) => return,
            Ok(Some(block)) => block,
            Err(corrupt) => return self.visitor.damage(corrupt.into()),
        };
        if !self.visitor.node(block) {
            return;
        }
        let mut buf = self.reader.new_buffer();
        let is_whole = self.read(block, &mut buf);
        let list: Vec<RawPointer> =
            (0..geometry.pointers_per_block()).map(|index| pointers::read(&buf, index)).collect();
        drop(buf);
        if is_whole && list.iter().all(|raw| raw.word.get() == 0) {
            self.visitor.empty(block);
        }
        if depth == 1 {
            return self.blocks(at, true, &list);
        }
        let span = geometry.pointer_span(depth - 1);
        for (raw, index) in list.into_iter().zip(0..) {
            self.node(raw, FileBlock(at.0 + index * span), depth - 1);
        }
    }

    /// Reads a block of pointers. What of it cannot be believed becomes zeros, and costs no neighbour; whether that is nothing.
    fn read(&mut self, block: FsBlock, buf: &mut [u8]) -> bool {
        let found = self.reader.read_units(block, BlockKind::Pointers, self.ino.0, buf);
        let is_whole = found.bad.is_empty() && found.why.is_empty();
        if found.bad.len() * UNIT_SIZE == buf.len() {
            self.visitor.stranger(block);
        }
        // A block of something else is wrong in each of its units, and that is one thing to say.
        let mut is_other = false;
        for damage in found.why {
            let is_own = matches!(damage, Damage::Corrupt(Corrupt::UnitCrc { .. }) | Damage::Unreadable { .. });
            if is_own || !is_other {
                self.visitor.damage(damage);
            }
            is_other |= !is_own;
        }
        is_whole
    }
}
