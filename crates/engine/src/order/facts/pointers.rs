//! Facts of a unit of a block of pointers.

use super::Fact;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};

pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

pub(super) fn put(image: &mut [u8], at: usize, word: u64) {
    image[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

pub(super) fn between(old: &[u8], new: &[u8], f: &mut dyn FnMut(Fact)) {
    for at in (UnitHeader::SIZE..UNIT_SIZE).step_by(8) {
        let (old, new) = (word(old, at), word(new, at));
        if old != new {
            f(Fact::Pointer { at, inode: None, old, new });
        }
    }
}
