//! Entry blocks of a directory with an index, one after the other.

use crate::context::Context;
use crate::findings::number;
use crate::io::Damage;
use crate::report::Place;
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader};
use myriad_format::extent::Extent;
use myriad_format::{BlockKind, FileBlock, Ino};
use std::sync::atomic::Ordering::Relaxed;

/// Why an entry block is left out.
pub(crate) enum BadBlock {
    Damage(Damage),
    /// Where its entries end is impossible.
    Tail(usize),
}

impl BadBlock {
    pub fn report(self, context: &Context<'_>, ino: Ino, file_block: FileBlock) {
        let place = Place::Inode(ino);
        match self {
            Self::Damage(damage) => context.damage(place, damage),
            Self::Tail(tail) => {
                let message = format!("entry block {file_block}: tail {tail} is impossible");
                context.report(number::ENTRY_BLOCK, place, message);
            }
        }
    }
}

/// Hands the entry blocks that were made to `f`: header and packed entries. Blocks mapped past those hold nothing yet.
pub(crate) fn for_each_block(
    context: &Context<'_>,
    ino: Ino,
    extents: &[Extent],
    made: u64,
    mut f: impl FnMut(FileBlock, Result<(&EntryBlockHeader, &[u8]), BadBlock>),
) {
    let mut buf = context.reader.new_buffer();
    for extent in extents.iter().filter(|extent| !extent.unwritten && extent.file_block.0 < made) {
        let length = u64::from(extent.length).min(made - extent.file_block.0);
        for offset in 0..length {
            let file_block = FileBlock(extent.file_block.0 + offset);
            match context.reader.read(extent.start.offset_by(offset), BlockKind::DirEntries, ino.0, &mut buf) {
                Err(damage) => f(file_block, Err(BadBlock::Damage(damage))),
                Ok(()) => {
                    let header = EntryBlockHeader::read(&buf);
                    let tail = header.tail.get() as usize;
                    let is_possible = (ENTRIES_OFFSET..=buf.len()).contains(&tail);
                    let entries = is_possible.then(|| (header, &buf[ENTRIES_OFFSET..tail]));
                    f(file_block, entries.ok_or(BadBlock::Tail(tail)));
                }
            }
            if context.cancelled.load(Relaxed) {
                return;
            }
        }
    }
}

/// Position of the entry at `offset` bytes into the entries of a block.
pub(crate) fn position(file_block: FileBlock, offset: u32, block_size: usize) -> u64 {
    (file_block.0 * block_size as u64 + ENTRIES_OFFSET as u64 + u64::from(offset)) / 8
}
