//! Pass "links", after all names are known: link counts, identities, orphans, and whether every directory is below the root.

use crate::context::Context;
use crate::directory::Directories;
use crate::findings::number;
use crate::report::Place;
use crate::slots::inode_at;
use crate::table::{SlotRef, SlotTable, slot_bit};
use myriad_format::Ino;
use myriad_format::inode::RawInode;
use myriad_format::leftovers::{Leftovers, SurplusLinks};

pub(crate) fn check_links(context: &Context<'_>, slots: &SlotTable<'_>, directories: &Directories) {
    let root = Ino(context.superblock.root_ino.get());
    for (ino, slot) in slots.iter() {
        check_slot(context, directories, root, ino, slot);
    }
    if directories.index(root).is_none() && slots.covers(root) {
        let what = if slots.find(root).is_some() { "is no directory" } else { "does not exist" };
        context.report(number::ROOT, Place::Inode(root), format!("the root {what}"));
    }
}

fn check_slot(context: &Context<'_>, directories: &Directories, root: Ino, ino: Ino, slot: SlotRef<'_>) {
    let place = Place::Inode(ino);
    let state = slot.state();
    let left = slot.links_left();
    let directory = directories.index(ino);
    let is_named = directory.map(|index| ino == root || !directories.parent(index).is_none());
    // A directory that was removed, and held open, when power was lost may have names of directories, which count as links of it.
    if state & slot_bit::NO_LINKS != 0 && state & slot_bit::ORPHAN == 0 && (left == 0 || is_named == Some(false)) {
        let message = "has no links and is not in the list of orphans";
        context.report_leftover(number::NAMELESS, place, message, |all| note_surplus(context, all, ino, 0, true));
        return;
    }
    if left != 0 {
        let nlink = raw_of(context, ino).map_or(0, |raw| raw.nlink.get());
        let found = nlink.wrapping_sub(left);
        if is_named.unwrap_or(found != 0) || nlink == 0 {
            let message = format!("says {nlink} links, {found} were found");
            if found < nlink {
                context.report_leftover(number::NLINK, place, message, |all| {
                    note_surplus(context, all, ino, left, false);
                });
            } else {
                context.report(number::NLINK, place, message);
            }
        } else {
            let message = format!("says {nlink} links, nothing names it");
            context.report_leftover(number::UNREFERENCED, place, message, |all| {
                note_surplus(context, all, ino, left, true);
            });
            return;
        }
    }
    if is_named == Some(true) && state & slot_bit::NO_LINKS != 0 && left == 0 {
        // On the list of orphans: the next opening would free what still has a name.
        context.report(number::NLINK, place, "says 0 links, a name was found");
    }
    if is_named == Some(false) && state & slot_bit::NO_LINKS == 0 {
        let message = "is a directory that nothing names";
        context.report_leftover(number::UNREFERENCED, place, message, |all| note_surplus(context, all, ino, 0, true));
        return;
    }
    // A file that had several names may have kept the identity of one that is gone. A directory never had another name.
    if is_named == Some(true) {
        let sound = if ino == root {
            raw_of(context, ino)
                .is_some_and(|raw| (raw.parent.get(), raw.name_hash.get(), raw.entry_position.get()) == (root.0, 0, 0))
        } else {
            state & slot_bit::IDENTITY != 0
        };
        if !sound {
            context.report(number::IDENTITY, place, "its parent, name hash or position do not describe its entry");
        }
    }
}

/// Notes how many links an inode has too many.
fn note_surplus(context: &Context<'_>, all: &mut Leftovers, ino: Ino, count: u32, is_nameless: bool) {
    match raw_of(context, ino) {
        Some(raw) => {
            let generation = raw.generation.get();
            all.links.push(SurplusLinks { ino, generation, count, is_nameless });
        }
        None => all.others += 1,
    }
}

/// Every named directory must lead to the root by the directories that name it.
pub(crate) fn check_tree(context: &Context<'_>, directories: &Directories) {
    const UNKNOWN: u8 = 0;
    const CONNECTED: u8 = 1;
    const PENDING: u8 = 2;
    const LOST: u8 = 3;
    let Some(root_index) = directories.index(Ino(context.superblock.root_ino.get())) else { return };
    let mut states = vec![UNKNOWN; directories.inos.len()];
    states[root_index] = CONNECTED;
    let mut path = Vec::new();
    for index in 0..states.len() {
        let mut at = index;
        let end = loop {
            match states[at] {
                UNKNOWN => {
                    states[at] = PENDING;
                    path.push(at);
                    let parent = directories.parent(at);
                    // Nothing names it: reported as unreferenced, or an orphan; what lies below is lost with it.
                    let Some(next) = (!parent.is_none()).then(|| directories.index(parent)).flatten() else {
                        break LOST;
                    };
                    at = next;
                }
                CONNECTED => break CONNECTED,
                LOST => break LOST,
                _ => {
                    let ino = directories.inos[at];
                    context.report(number::DISCONNECTED, Place::Inode(ino), "lies on a circle of directories");
                    break LOST;
                }
            }
        };
        for at in path.drain(..) {
            states[at] = end;
        }
    }
}

fn raw_of(context: &Context<'_>, ino: Ino) -> Option<RawInode> {
    let (block, slot) = context.geometry.locate(ino)?;
    let mut buf = context.reader.new_buffer();
    context.reader.read_inodes(block, &mut buf).ok()?;
    Some(*inode_at(&context.geometry, &buf, slot))
}
