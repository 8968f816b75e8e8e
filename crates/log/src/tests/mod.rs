//! A disk that can lose power at any request, a model of what the log promised, and the two set against each other.

mod contract;
mod damage;
mod disk;
mod overlay;
mod power;

use crate::place::{LogError, LogPlace};
use crate::{Checkpoint, Log, Reach, Recovered, format};
use disk::Disk;
use myriad_format::{Corrupt, FsBlock, Lsn};
use std::sync::Arc;

const BLOCK: usize = 512;
const UNIT: u64 = 4096;
const VOLUME: [u8; 16] = *b"myriad-log tests";

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next() as u8);
    }
}

/// A disk with a log of `units` ring units that does not start at its beginning.
fn new_log(units: u64) -> (Arc<Disk>, LogPlace) {
    let disk = Disk::new(UNIT * (units + 4));
    let place = LogPlace {
        device: disk.clone(),
        start: UNIT,
        length: UNIT * (units + 2) + 512,
        block_size: BLOCK,
        volume: VOLUME,
        known_end: Lsn(0),
    };
    format(&place, Lsn(0)).unwrap();
    (disk, place)
}

fn ring_offset(place: &LogPlace, lsn: Lsn) -> u64 {
    place.ring().unwrap().offset(lsn)
}

/// A block all of one byte.
fn image(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

/// A checkpoint that takes `units`, recording blocks from `block` on.
fn filler(units: u64, block: u64, byte: u8) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(BLOCK);
    for block in block.. {
        let mut next = Checkpoint::new(BLOCK);
        next.record(FsBlock(block), !0, &image(byte));
        if checkpoint.size() == units * UNIT && checkpoint.body_len() + next.body_len() + 128 > units * UNIT {
            break;
        }
        checkpoint.record(FsBlock(block), !0, &image(byte));
    }
    assert_eq!(checkpoint.size(), units * UNIT);
    checkpoint
}

fn append(log: &mut Log, mut checkpoint: Checkpoint) -> Lsn {
    let sealed = log.seal(&mut checkpoint, 7).unwrap();
    log.write_all(&sealed).unwrap();
    sealed.lsn()
}

fn open(place: &LogPlace) -> (Log, Recovered) {
    Log::open(place.clone(), Reach::Ring).unwrap()
}

#[track_caller]
fn is_corrupt<T>(result: Result<T, LogError>, expected: &str) {
    match result {
        Err(LogError::Corrupt(Corrupt::Log { field, .. })) => {
            assert!(field.contains(expected), "{field:?} instead of {expected:?}");
        }
        Err(other) => panic!("{other} instead of {expected}"),
        Ok(_) => panic!("accepted in spite of {expected}"),
    }
}
