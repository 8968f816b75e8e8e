//! Facts of a unit of a bitmap. A bit that is set says *free*.

use super::Fact;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};

fn word(unit: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(unit[at..at + 8].try_into().expect("8 bytes"))
}

pub(super) fn between(old: &[u8], new: &[u8], f: &mut dyn FnMut(Fact)) {
    for at in (UnitHeader::SIZE..UNIT_SIZE).step_by(8) {
        let (old, new) = (word(old, at), word(new, at));
        if old & !new != 0 {
            f(Fact::Taken { at, bits: old & !new });
        }
        if new & !old != 0 {
            f(Fact::Given { at, bits: new & !old });
        }
    }
}

pub(super) fn flip(image: &mut [u8], at: usize, bits: u64) {
    let word = word(image, at) ^ bits;
    image[at..at + 8].copy_from_slice(&word.to_le_bytes());
}
