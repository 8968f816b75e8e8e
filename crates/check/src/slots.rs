//! Which slots of an inode block hold inodes and which hold their bodies.
//!
//! In an inode table each inode has its place, and there are no bodies. In a block of a chunk a slot's bytes do not say: the
//! later slots of a body are whatever a user wrote, and may look like an inode that claims the body of its neighbour. But the
//! true inodes of a sound block lie in nobody's body. So an inode is believed as soon as no other candidate could cover it,
//! and what it covers is no candidate any more.
//!
//! Where each body follows its inode (`Geometry::bodies_follow`), a candidate covers only slots behind it. So the first one that is left
//! is covered by nobody, and all get settled. On volumes of earlier builds a body may lie before its inode, and a user could make a ring:
//! inode 6 has the body 3..6, and in slot 4, which is that user's, lies what looks like an inode with the body 5..7. Nothing in the block tells
//! which one is true, so neither is believed, nor what they cover. A repair refuses: to believe the false one would give its maker any
//! blocks that it names, and to drop the true one would lose a file.

use myriad_format::inode::{
    BodyHeader, InodeBlockHeader, RawInode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK,
};
use myriad_format::{Corrupt, Geometry, Ino, SLOT_SIZE};
use std::ops::Range;

/// The inodes of a block.
pub(crate) struct Slots {
    /// Slots that hold an inode, ascending, with the slots of its body.
    pub inodes: Vec<(u32, Range<u32>)>,
    /// Inodes whose body is impossible or shared: no inode can be read there with confidence.
    pub bad_bodies: Vec<u32>,
    /// Inodes that might lie in each other's bodies. Which ones are true cannot be told.
    pub ring: Vec<u32>,
    /// Slots in use that belong to nobody.
    pub stray: Vec<u32>,
}

/// Sorts out the inodes of a block: of a table, or of a chunk those that its map says are in use.
pub(crate) fn inodes_of(geometry: &Geometry, block: &[u8]) -> Slots {
    if geometry.has_table() {
        return inodes_of_table(geometry, block);
    }
    let mask = InodeBlockHeader::read(block).free_mask;
    classify(block, geometry.bodies_follow, |slot| mask[slot as usize / 8] >> (slot % 8) & 1 == 0)
}

/// The inodes of a block of a table that have a mode; stray ones have one of no type.
fn inodes_of_table(geometry: &Geometry, block: &[u8]) -> Slots {
    let mode = |slot: u32| inode_at(geometry, block, slot).mode.get();
    let (inodes, stray) =
        geometry.inode_slots().filter(|&slot| mode(slot) != 0).partition(|&slot: &u32| is_type(mode(slot)));
    let inodes: Vec<u32> = inodes;
    let inodes = inodes.into_iter().map(|slot| (slot, 0..0)).collect();
    Slots { inodes, bad_bodies: Vec::new(), ring: Vec::new(), stray }
}

/// Sorts out the slots of `block` that `is_used`.
fn classify(block: &[u8], bodies_follow: bool, is_used: impl Fn(u32) -> bool) -> Slots {
    let count = (block.len() / SLOT_SIZE) as u32;
    let mut owner: Vec<Option<u32>> = vec![None; count as usize];
    let mut slots = Slots { inodes: Vec::new(), bad_bodies: Vec::new(), ring: Vec::new(), stray: Vec::new() };
    let mut unknown: Vec<(u32, Range<u32>)> = Vec::new();
    for slot in (1..count).filter(|&slot| is_used(slot)) {
        let raw = inode_in_chunk(block, slot);
        if is_type(raw.mode.get()) {
            match body_of(block, slot, bodies_follow, &is_used) {
                Some(body) => unknown.push((slot, body)),
                None => slots.bad_bodies.push(slot),
            }
        }
    }
    // Usually nobody is covered and the first round settles everything.
    while !unknown.is_empty() {
        let mut covered = vec![false; count as usize];
        for (_, body) in &unknown {
            covered[body.start as usize..body.end as usize].fill(true);
        }
        let (free, rest): (Vec<_>, Vec<_>) = unknown.into_iter().partition(|(slot, _)| !covered[*slot as usize]);
        if free.is_empty() {
            assert!(!bodies_follow, "the first one is covered by none");
            slots.ring = rest.into_iter().map(|(slot, _)| slot).collect();
            // What they cover may be in their bodies, or what was refused beside them.
            (1..count).filter(|&slot| covered[slot as usize]).for_each(|slot| owner[slot as usize] = Some(slot));
            break;
        }
        for (slot, body) in free {
            if owner[slot as usize].is_some() {
                continue;
            }
            let range = body.start as usize..body.end as usize;
            if owner[range.clone()].iter().any(Option::is_some) {
                slots.bad_bodies.push(slot);
                continue;
            }
            owner[range].fill(Some(slot));
            owner[slot as usize] = Some(slot);
            slots.inodes.push((slot, body));
        }
        unknown = rest.into_iter().filter(|(slot, _)| owner[*slot as usize].is_none()).collect();
    }
    slots.bad_bodies.retain(|slot| owner[*slot as usize].is_none());
    slots.bad_bodies.sort_unstable();
    slots.inodes.sort_unstable_by_key(|(slot, _)| *slot);
    slots.stray = (1..count)
        .filter(|&slot| is_used(slot) && owner[slot as usize].is_none() && !slots.bad_bodies.contains(&slot))
        .collect();
    slots
}

pub(crate) fn is_type(mode: u16) -> bool {
    matches!(mode & S_IFMT, S_IFREG | S_IFDIR | S_IFLNK | S_IFIFO | S_IFCHR | S_IFBLK | S_IFSOCK)
}

/// The inode in a slot of its block, whatever blocks of inodes the volume has.
pub(crate) fn inode_at<'a>(geometry: &Geometry, block: &'a [u8], slot: u32) -> &'a RawInode {
    RawInode::read(&block[geometry.inode_offset(slot)..])
}

/// The inode in a slot of a block of a chunk.
fn inode_in_chunk(block: &[u8], slot: u32) -> &RawInode {
    RawInode::read(&block[slot as usize * SLOT_SIZE..])
}

/// The slots of an inode's body, if they can be that.
fn body_of(block: &[u8], slot: u32, bodies_follow: bool, is_used: &impl Fn(u32) -> bool) -> Option<Range<u32>> {
    let raw = inode_in_chunk(block, slot);
    let count = u32::from(raw.body_slots);
    if count == 0 {
        return Some(0..0);
    }
    let first = u32::from(raw.body_first.get());
    let end = first.checked_add(count)?;
    let lowest = if bodies_follow { slot + 1 } else { 1 };
    let inside = first >= lowest && end as usize <= block.len() / SLOT_SIZE;
    if !inside || (first..end).contains(&slot) || !(first..end).all(is_used) {
        return None;
    }
    let header = BodyHeader::read(&block[first as usize * SLOT_SIZE..]);
    let len = BodyHeader::SIZE + usize::from(header.data_len.get()) + usize::from(header.attr_len.get());
    (len <= count as usize * SLOT_SIZE).then_some(first..end)
}

/// Data and attributes in the body of an inode that [`inodes_of`] accepted; empty without a body.
pub(crate) fn body_parts<'a>(block: &'a [u8], body: &Range<u32>) -> (&'a [u8], &'a [u8]) {
    if body.is_empty() {
        return (&[], &[]);
    }
    let bytes = &block[body.start as usize * SLOT_SIZE..body.end as usize * SLOT_SIZE];
    let header = BodyHeader::read(bytes);
    let rest = &bytes[BodyHeader::SIZE..];
    let (data, rest) = rest.split_at(usize::from(header.data_len.get()));
    (data, &rest[..usize::from(header.attr_len.get())])
}

/// A field of an inode is impossible.
pub(crate) fn bad_inode(ino: Ino, field: &'static str, value: u64) -> Corrupt {
    Corrupt::Inode { ino, field, value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::little_endian::U16;

    fn put(block: &mut [u8], slot: u32, body: Range<u32>) {
        let raw = RawInode::read_mut(&mut block[slot as usize * SLOT_SIZE..]);
        raw.mode = U16::new(S_IFREG | 0o644);
        raw.body_slots = body.len() as u8;
        raw.body_first = U16::new(body.start as u16);
    }

    #[test]
    fn what_a_user_wrote_into_a_body_is_no_inode() {
        let mut block = vec![0; 4096];
        put(&mut block, 1, 2..6);
        put(&mut block, 7, 8..9);
        // Slot 5 is data of inode 1 that looks like an inode whose body is inode 1's.
        put(&mut block, 5, 2..3);
        let slots = classify(&block, false, |slot| slot < 9 && slot != 6);
        assert_eq!(slots.inodes, [(1, 2..6), (7, 8..9)]);
        assert!(slots.bad_bodies.is_empty() && slots.stray.is_empty());
    }

    #[test]
    fn shared_and_stray_slots_show() {
        let mut block = vec![0; 4096];
        put(&mut block, 1, 3..5);
        put(&mut block, 2, 4..6);
        let slots = classify(&block, true, |slot| slot < 8);
        assert_eq!(slots.inodes, [(1, 3..5)]);
        assert_eq!(slots.bad_bodies, [2]);
        assert_eq!(slots.stray, [5, 6, 7]);
        put(&mut block, 2, 20..21);
        assert_eq!(classify(&block, true, |slot| slot < 8).bad_bodies, [2], "a body in a free slot");
    }
}
