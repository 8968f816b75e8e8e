//! The list of orphans. It has inodes without a name that were still open, files that were to be cut to their size, and directories that were
//! giving up the blocks of their former entries.

use crate::context::Context;
use crate::findings::number;
use crate::report::Place;
use crate::table::{SlotTable, slot_bit};
use myriad_format::inode::{S_IFDIR, S_IFREG};
use myriad_format::superblock::OrphanHeader;
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino};
use std::sync::PoisonError;

/// The list of orphans.
pub(crate) struct Orphans {
    /// Blocks of it that can be believed.
    blocks: Vec<FsBlock>,
    /// Inodes that it names.
    pub count: u64,
}

impl Orphans {
    /// Follows the list. What is behind the end of a file that it names will be cut off; of any other file it is reported.
    pub fn read(context: &Context<'_>) -> Self {
        let mut past_end = context.past_end.lock().unwrap_or_else(PoisonError::into_inner);
        let mut orphans = Self { blocks: Vec::new(), count: 0 };
        let mut next = FsBlock(context.superblock.orphan_root.get());
        let mut buf = context.reader.new_buffer();
        let room = (buf.len() - OrphanHeader::SIZE) / 8;
        // Each block is claimed, so a list that runs in a circle ends.
        while next != FsBlock::NONE && context.claim(next, 1, Place::Volume, "orphan list") {
            let place = Place::Block(next);
            if let Err(damage) = context.reader.read(next, BlockKind::Orphans, 0, &mut buf) {
                context.damage(place, damage);
                break;
            }
            let header = OrphanHeader::read(&buf);
            let count = header.count.get() as usize;
            if count > room {
                context.damage(place, Corrupt::Orphans { block: next, field: "count", value: count as u64 }.into());
                break;
            }
            orphans.blocks.push(next);
            orphans.count += count as u64;
            for ino in numbers(&buf) {
                past_end.remove(&ino);
            }
            next = FsBlock(header.next.get());
        }
        for &ino in &*past_end {
            let message = "has content behind its end, and is not in the list of orphans";
            context.report(number::INODE_SIZE, Place::Inode(ino), message);
        }
        orphans
    }

    /// Compares what the list names with the slots at hand, and marks those.
    pub fn check(&self, context: &Context<'_>, slots: &SlotTable<'_>) {
        let mut buf = context.reader.new_buffer();
        for &block in &self.blocks {
            if let Err(damage) = context.reader.read(block, BlockKind::Orphans, 0, &mut buf) {
                context.damage(Place::Block(block), damage);
                continue;
            }
            for ino in numbers(&buf).filter(|&ino| slots.covers(ino)) {
                check_orphan(context, slots, block, ino);
            }
        }
    }
}

/// What a block of the list names.
pub(crate) fn numbers(block: &[u8]) -> impl Iterator<Item = Ino> {
    let count = OrphanHeader::read(block).count.get() as usize;
    let list = block[OrphanHeader::SIZE..].chunks_exact(8).take(count);
    list.map(|ino| Ino(u64::from_le_bytes(ino.try_into().expect("eight bytes"))))
}

fn check_orphan(context: &Context<'_>, slots: &SlotTable<'_>, block: FsBlock, ino: Ino) {
    let place = Place::Block(block);
    match slots.find(ino) {
        None => context.report(number::ORPHAN, place, format!("names inode {ino}, which does not exist")),
        Some(slot) => {
            let before = slot.set(slot_bit::ORPHAN);
            // With a name: a file was to be cut to its size when the power went, or a directory was giving up the blocks of
            // entries that it had.
            let may_have_name = [S_IFREG, S_IFDIR].iter().any(|kind| slot.file_type() == (kind >> 12) as u8);
            if before & slot_bit::NO_LINKS == 0 && !may_have_name {
                context.report(number::ORPHAN, place, format!("names inode {ino}, which has links"));
            }
            if before & slot_bit::ORPHAN != 0 {
                context.report(number::ORPHAN, place, format!("names inode {ino} twice"));
            }
        }
    }
}
