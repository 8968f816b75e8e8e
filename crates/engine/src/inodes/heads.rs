//! Which slots of a block of a chunk hold inodes, and which hold parts of their bodies: for a number that somebody made up, or kept
//! for long. Names do not ask, for an entry vouches for its inode.
//!
//! A slot's own bytes prove nothing. What lies in the later slots of a body is a user's: an attribute's value may look like an inode that
//! owns any blocks, and has any slots for its body. What such an imitation cannot have is a place outside the body that it lies in. So an inode
//! is believed once nobody who might be one has it for its body, and what lies in the body of a believed one is none.
//!
//! Where bodies follow their inodes (`Geometry::bodies_follow`) this settles each slot. An imitation covers only slots behind it, so
//! the first inode that is not settled is never covered, and settles those in its body. Bodies that may also lie before their inodes,
//! as on volumes of earlier builds, can form a ring: inode 6 with body 3..6, and in its slot 4 an imitation with body 5..7. Nobody can tell
//! then which one is true, and none of the ring is believed.
//!
//! The checker has a search of its own for this.

use super::chunks::{Slots, run};
use myriad_format::inode::{BodyHeader, InodeBlockHeader, RawInode};
use myriad_format::{Ino, SLOT_SIZE};

/// An inode block, and where bodies may lie in it.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub bytes: &'a [u8],
    pub bodies_follow: bool,
}

impl<'a> Block<'a> {
    /// Whether a slot holds an inode, and no part of a body. One that was just taken holds nothing yet.
    pub fn is_inode(self, slot: u32) -> bool {
        self.raw(slot).mode.get() != 0 && self.is_used(slot) && !has(&self.in_bodies(), slot)
    }

    /// The slots that are in bodies, or may be.
    fn in_bodies(self) -> Slots {
        let mut settled = Slots::default();
        let mut unknown = Slots::default();
        for slot in (1..self.slot_count()).filter(|&slot| self.body_of(slot).is_some()) {
            add(&mut unknown, &run(slot, 1));
        }
        loop {
            let mut covered = Slots::default();
            for body in self.bodies(&unknown) {
                add(&mut covered, &body);
            }
            let mut free = unknown;
            take(&mut free, &covered);
            if free == Slots::default() {
                // None left, or a ring.
                add(&mut settled, &covered);
                return settled;
            }
            for body in self.bodies(&free) {
                add(&mut settled, &body);
            }
            take(&mut unknown, &free);
            take(&mut unknown, &settled);
        }
    }

    fn bodies(self, inodes: &Slots) -> impl Iterator<Item = Slots> {
        (1..self.slot_count()).filter(|&slot| has(inodes, slot)).filter_map(move |slot| self.body_of(slot))
    }

    /// The slots of the body of what looks like an inode with one.
    fn body_of(self, slot: u32) -> Option<Slots> {
        let raw = self.raw(slot);
        // Most slots end here.
        if raw.body_slots == 0 || !self.is_used(slot) || raw.check(Ino(u64::from(slot))).is_err() {
            return None;
        }
        let first = u32::from(raw.body_first.get());
        let body = first..first + u32::from(raw.body_slots);
        let is_placed = first >= 1 && body.end <= self.slot_count() && !body.contains(&slot);
        if !is_placed || (self.bodies_follow && first < slot) || !body.clone().all(|slot| self.is_used(slot)) {
            return None;
        }
        let header = BodyHeader::read(&self.bytes[first as usize * SLOT_SIZE..]);
        let len = BodyHeader::SIZE + usize::from(header.data_len.get()) + usize::from(header.attr_len.get());
        (len <= body.len() * SLOT_SIZE).then(|| run(first, body.len() as u32))
    }

    fn slot_count(self) -> u32 {
        (self.bytes.len() / SLOT_SIZE) as u32
    }

    fn raw(self, slot: u32) -> &'a RawInode {
        RawInode::read(&self.bytes[slot as usize * SLOT_SIZE..])
    }

    fn is_used(self, slot: u32) -> bool {
        InodeBlockHeader::read(self.bytes).free_mask[slot as usize / 8] >> (slot % 8) & 1 == 0
    }
}

fn has(slots: &Slots, slot: u32) -> bool {
    slots[slot as usize / 64] >> (slot % 64) & 1 == 1
}

fn add(slots: &mut Slots, more: &Slots) {
    slots.iter_mut().zip(more).for_each(|(word, more)| *word |= more);
}

fn take(slots: &mut Slots, gone: &Slots) {
    slots.iter_mut().zip(gone).for_each(|(word, gone)| *word &= !gone);
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_format::inode::S_IFREG;
    use std::ops::Range;

    const SLOTS: u32 = 32;

    /// A slot and its body.
    type Inode = (u32, Range<u16>);

    /// A block whose slots are all in use: these inodes, their bodies, in these the imitations, and inodes without bodies.
    fn block(inodes: &[Inode], imitations: &[Inode]) -> Vec<u8> {
        let mut bytes = vec![0; SLOTS as usize * SLOT_SIZE];
        (1..SLOTS).for_each(|slot| put(&mut bytes, slot, &(0..0)));
        for (_, body) in inodes {
            bytes[usize::from(body.start) * SLOT_SIZE..usize::from(body.end) * SLOT_SIZE].fill(0);
        }
        inodes.iter().chain(imitations).for_each(|(slot, body)| put(&mut bytes, *slot, body));
        bytes
    }

    fn put(bytes: &mut [u8], slot: u32, body: &Range<u16>) {
        let raw = RawInode::read_mut(&mut bytes[slot as usize * SLOT_SIZE..]);
        raw.mode.set(S_IFREG | 0o644);
        raw.body_slots = body.len() as u8;
        raw.body_first.set(body.start);
    }

    /// The slots that hold no inode.
    fn others(bytes: &[u8], bodies_follow: bool) -> Vec<u32> {
        (1..SLOTS).filter(|&slot| !Block { bytes, bodies_follow }.is_inode(slot)).collect()
    }

    #[track_caller]
    fn check(bytes: &[u8], in_bodies: &[u32]) {
        for bodies_follow in [false, true] {
            assert_eq!(others(bytes, bodies_follow), in_bodies, "bodies follow: {bodies_follow}");
        }
    }

    /// A directory was lost to a lookup by number: entries in the body of its neighbour happened to look like an inode that has its slot
    /// in its body.
    #[test]
    fn what_lies_in_a_body_has_no_body() {
        check(&block(&[(3, 5..9)], &[(6, 8..11)]), &[5, 6, 7, 8]);
        check(&block(&[(3, 5..9)], &[(7, 8..11), (8, 20..21)]), &[5, 6, 7, 8]);
        // One ends another's claim, but the inode comes first.
        check(&block(&[(2, 4..11)], &[(6, 8..13), (9, 10..12)]), &[4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_body_has_slots_in_use_and_a_header_that_fits() {
        type Spoil = fn(&mut [u8]);
        // What is in use, looks like an inode, and is in no body is one. The length of the data lies where an inode has its mode.
        let spoiled: [(Spoil, &[u32]); 4] = [
            (|bytes| InodeBlockHeader::read_mut(bytes).free_mask[0] |= 1 << 5, &[5]),
            (|bytes| BodyHeader::read_mut(&mut bytes[5 * SLOT_SIZE..]).data_len.set(249), &[]),
            (|bytes| BodyHeader::read_mut(&mut bytes[5 * SLOT_SIZE..]).attr_len.set(249), &[5]),
            (|bytes| RawInode::read_mut(&mut bytes[3 * SLOT_SIZE..]).body_first.set(2), &[5]),
        ];
        for (spoil, in_bodies) in spoiled {
            let mut bytes = block(&[(3, 5..7)], &[(6, 0..0)]);
            check(&bytes, &[5, 6]);
            spoil(&mut bytes);
            check(&bytes, in_bodies);
        }
        // Up to the end of the block, and not past it.
        let mut bytes = block(&[(3, 30..32)], &[(31, 0..0)]);
        check(&bytes, &[30, 31]);
        RawInode::read_mut(&mut bytes[3 * SLOT_SIZE..]).body_slots = 3;
        check(&bytes, &[30]);
    }

    #[test]
    fn of_a_ring_nothing_is_believed() {
        assert_eq!(others(&block(&[(6, 3..6)], &[(4, 5..7)]), false), [3, 4, 5, 6]);
        let ring = block(&[(2, 5..6), (6, 7..10)], &[(8, 5..7)]);
        assert_eq!(others(&ring, false), [5, 6, 7, 8, 9]);
        // Where bodies follow, it is none.
        assert_eq!(others(&ring, true), [5, 7, 8, 9]);
    }

    #[test]
    fn bodies_of_earlier_builds_lie_before_their_inodes() {
        assert_eq!(others(&block(&[(8, 3..6), (9, 10..11)], &[(4, 10..13)]), false), [3, 4, 5, 10]);
    }
}
