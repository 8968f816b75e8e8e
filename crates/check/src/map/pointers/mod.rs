//! Walks the pointers of a file (`map=blockmap`) without trusting them, as `tree` walks trees: the check follows each block of pointers
//! once and reports what is wrong with it, repair follows what it can. What they lead to is handed on as extents, in order.

mod build;

pub(crate) use build::{build, node_count};

use crate::io::{Damage, Reader};
use crate::visitor::Visitor;
use myriad_format::extent::Extent;
use myriad_format::pointers::{self, Pointer, RawPointer};
use myriad_format::table::{POINTERS, POINTERS_OFFSET};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino};
use zerocopy::{FromBytes, IntoBytes};

/// The pointers behind an inode.
pub(crate) type InodePointers = [RawPointer; POINTERS];

/// The pointers behind inode `ino`, whose block, which was looked at before, has these bytes; none of an inode outside a table.
pub(crate) fn in_block(reader: &Reader, ino: Ino, block: &[u8]) -> InodePointers {
    let place = reader.geometry.locate(ino).filter(|_| reader.geometry.has_table());
    let Some((_, slot)) = place else { return [RawPointer::zeroed(); POINTERS] };
    let at = reader.geometry.inode_offset(slot) + POINTERS_OFFSET;
    InodePointers::read_from_bytes(&block[at..at + size_of::<InodePointers>()]).expect("the slice is as long")
}

/// As [`in_block`], with the block read again; none if that cannot be read.
pub(crate) fn of_inode(reader: &Reader, ino: Ino) -> InodePointers {
    let mut buf = reader.new_buffer();
    let place = reader.geometry.locate(ino).filter(|_| reader.geometry.has_table());
    match place.map(|(block, _)| reader.read_inodes(block, &mut buf)) {
        Some(Ok(())) => in_block(reader, ino, &buf),
        _ => [RawPointer::zeroed(); POINTERS],
    }
}

/// Walks the pointers of an inode. Extents come as records, in order; each lies in one block of pointers.
pub(crate) fn walk(reader: &Reader, ino: Ino, pointers: &InodePointers, visitor: &mut dyn Visitor) {
    let mut walk = Walk { reader, ino, visitor };
    for (root, &raw) in pointers.iter().enumerate() {
        let span = reader.geometry.root_span(root);
        match reader.geometry.way(FileBlock(span.start)).map_or(0, |way| way.depth) {
            // Direct ones make runs like those of a block.
            0 if root == 0 => walk.blocks(FileBlock(0), &pointers[..myriad_format::table::DIRECT]),
            0 => {}
            depth => walk.node(raw, FileBlock(span.start), depth),
        }
    }
}

struct Walk<'a> {
    reader: &'a Reader,
    ino: Ino,
    visitor: &'a mut dyn Visitor,
}

impl Walk<'_> {
    /// Pointers to file blocks, from `first` on.
    fn blocks(&mut self, first: FileBlock, list: &[RawPointer]) {
        let geometry = self.reader.geometry;
        let mut index = 0;
        while index < list.len() {
            let at = FileBlock(first.0 + index as u64);
            index += 1;
            match Pointer::decode(list[index - 1], &geometry, self.ino, at) {
                Err(corrupt) => self.visitor.damage(corrupt.into()),
                Ok(None) => {}
                Ok(Some(pointer)) => {
                    let mut run = pointer.run(at, list[index..].iter().copied());
                    // A run that leaves its group is damage where it leaves it.
                    while !geometry.is_data_range(run.start, u64::from(run.length)) {
                        run = Extent { length: run.length - 1, ..run };
                    }
                    index += run.length as usize - 1;
                    self.visitor.record(run.encode().as_bytes());
                }
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
            return self.blocks(at, &list);
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
