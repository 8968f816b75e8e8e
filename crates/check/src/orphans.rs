//! The list of orphans: inodes without a name that were still open, and files that were to be cut to their size.

use crate::context::{Context, SlotTable, slot_bit};
use crate::findings::number;
use crate::report::Place;
use myriad_format::inode::S_IFREG;
use myriad_format::superblock::OrphanHeader;
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino};

/// Follows the list; how many it names.
pub(crate) fn check_orphans(context: &Context<'_>, slots: &SlotTable) -> u64 {
    let mut next = FsBlock(context.superblock.orphan_root.get());
    let mut buf = context.reader.new_buffer();
    let room = (buf.len() - OrphanHeader::SIZE) / 8;
    let mut orphans = 0;
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
        for bytes in buf[OrphanHeader::SIZE..].chunks_exact(8).take(count) {
            let ino = Ino(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            orphans += 1;
            match slots.find(&context.geometry, ino) {
                None => context.report(number::ORPHAN, place, format!("names inode {ino}, which does not exist")),
                Some(slot) => {
                    let before = slot.set(slot_bit::ORPHAN);
                    // A file with a name was to be cut to its size when the power went.
                    if before & slot_bit::NO_LINKS == 0 && slot.file_type() != (S_IFREG >> 12) as u8 {
                        context.report(number::ORPHAN, place, format!("names inode {ino}, which has links"));
                    }
                    if before & slot_bit::ORPHAN != 0 {
                        context.report(number::ORPHAN, place, format!("names inode {ino} twice"));
                    }
                }
            }
        }
        next = FsBlock(header.next.get());
    }
    orphans
}
