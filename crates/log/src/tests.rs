//! A disk that can lose power at any request, a model of what the log promised, and the two set against each other.

use crate::checkpoint::Link;
use crate::place::{LogError, LogPlace};
use crate::{Checkpoint, Home, Log, Reach, Recovered, Sealed, erase, forget, format, recover, search};
use myriad_device::{BlockDevice, DeviceCounters, Discards};
use myriad_format::log::{CHECKPOINT_MAGIC, CheckpointHeader, RecordHeader};
use myriad_format::{Corrupt, FsBlock, Lsn};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 512;
const UNIT: u64 = 4096;
const VOLUME: [u8; 16] = *b"myriad-log tests";

// ---------------------------------------------------------------------------------------------------- randomness

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

// --------------------------------------------------------------------------------------------------------- disk

/// Memory with a volatile cache. After `fuse` more requests every request fails.
struct Disk(Mutex<State>);

#[derive(Default)]
struct State {
    /// What reads see.
    bytes: Vec<u8>,
    /// What a power loss leaves for sure.
    durable: Vec<u8>,
    /// Writes since the last flush.
    volatile: Vec<(u64, Vec<u8>)>,
    fuse: Option<u64>,
    counters: DeviceCounters,
}

impl State {
    fn burn(&mut self) -> io::Result<()> {
        match &mut self.fuse {
            Some(0) => Err(io::Error::other("fuse")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk {
    fn new(size: u64) -> Arc<Self> {
        let bytes = vec![0; size as usize];
        Arc::new(Self(Mutex::new(State { durable: bytes.clone(), bytes, ..State::default() })))
    }

    /// Power loss: of each write since the last flush an arbitrary subset of its sectors arrives, often all or none.
    fn lose_power(&self, random: &mut Random) {
        let mut state = self.0.lock().unwrap();
        let state = &mut *state;
        let mood = random.below(4);
        for (offset, bytes) in state.volatile.drain(..) {
            let whole = random.one_in(2);
            for (sector, at) in bytes.chunks(512).zip((offset as usize..).step_by(512)) {
                let arrives = match mood {
                    0 => true,
                    1 => false,
                    2 => whole,
                    _ => random.one_in(2),
                };
                if arrives {
                    state.durable[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        state.bytes = state.durable.clone();
        state.fuse = None;
    }

    fn set_fuse(&self, fuse: Option<u64>) {
        self.0.lock().unwrap().fuse = fuse;
    }

    /// Overwrites bytes behind the log's back.
    fn poke(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap();
        let range = offset as usize..offset as usize + bytes.len();
        state.bytes[range.clone()].copy_from_slice(bytes);
        state.durable[range].copy_from_slice(bytes);
    }

    fn peek(&self, offset: u64, size: usize) -> Vec<u8> {
        self.0.lock().unwrap().bytes[offset as usize..][..size].to_vec()
    }
}

impl BlockDevice for Disk {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().bytes.len() as u64
    }
    fn alignment(&self) -> usize {
        512
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        assert!(offset % 512 == 0 && buf.len() % 512 == 0);
        state.counters.reads += 1;
        buf.copy_from_slice(&state.bytes[offset as usize..][..buf.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        assert!(offset % 512 == 0 && buf.len() % 512 == 0);
        state.burn()?;
        state.counters.writes += 1;
        state.bytes[offset as usize..][..buf.len()].copy_from_slice(buf);
        state.volatile.push((offset, buf.to_vec()));
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let state = &mut *state;
        state.burn()?;
        state.counters.flushes += 1;
        for (offset, bytes) in state.volatile.drain(..) {
            state.durable[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn discards(&self) -> Discards {
        Discards::Never
    }
    fn counters(&self) -> DeviceCounters {
        self.0.lock().unwrap().counters
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

// ------------------------------------------------------------------------------------------------------- one by one

#[test]
fn fresh_log_is_empty() {
    let (_, place) = new_log(8);
    let (log, recovered) = open(&place);
    assert_eq!((recovered.checkpoints, recovered.last, recovered.head), (0, None, Lsn(0)));
    assert!(recovered.overlay.is_empty() && recovered.overlay.oldest().is_none());
    assert_eq!((log.capacity(), log.room(), log.last()), (8 * UNIT, 4 * UNIT, None));
}

#[test]
fn a_log_may_start_at_any_lsn() {
    let (disk, place) = new_log(8);
    disk.poke(ring_offset(&place, Lsn(0)), &vec![0xee; 8 * UNIT as usize]);
    let first = Lsn(8 * UNIT * 1000 + 3 * UNIT);
    format(&place, first).unwrap();
    assert_eq!(open(&place).1.head, first);
    append(&mut open(&place).0, filler(2, 1, 1));
    assert_eq!(open(&place).1.last, Some(first));
    assert!(matches!(format(&place, Lsn(1)), Err(LogError::Place { .. })));
}

#[test]
fn contents_round_trip() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    let mut checkpoint = Checkpoint::new(BLOCK);
    assert!(checkpoint.is_empty());
    checkpoint.record(FsBlock(5), 1 << 63 | 0b101, &image(1));
    checkpoint.record(FsBlock(6), !0, &image(2));
    checkpoint.pending(FsBlock(70), 3);
    assert_eq!(checkpoint.body_len(), 16 + 24 + 16 + 512 + 16);
    let first = append(&mut log, checkpoint);

    // The second merges below, between, over and above what is there.
    let mut checkpoint = Checkpoint::new(BLOCK);
    checkpoint.record(FsBlock(5), 0b1110, &image(3));
    checkpoint.pending(FsBlock(80), 4);
    checkpoint.pending(FsBlock(90), 1);
    let sealed = log.seal(&mut checkpoint, -42).unwrap();
    assert!(checkpoint.is_empty(), "the contents have moved");
    log.write_body(&sealed).unwrap();
    assert_eq!(open(&place).1.checkpoints, 1, "no commit yet");
    log.write_commit(&sealed).unwrap();
    assert_eq!(log.last(), Some(sealed.lsn()));
    assert!(sealed.recycle().is_empty());

    let flushes = disk.counters().flushes;
    let tool = recover(&place, Reach::Ring).unwrap();
    assert_eq!((tool.checkpoints, disk.counters().flushes), (2, flushes), "a tool changes nothing");
    let (log, recovered) = open(&place);
    assert_eq!((recovered.checkpoints, recovered.bytes, recovered.time), (2, 2 * UNIT, Some(-42)));
    assert_eq!(recovered.pending, [(FsBlock(80), 4), (FsBlock(90), 1)]);
    assert_eq!((log.head(), log.last()), (Lsn(2 * UNIT), Some(Lsn(UNIT))));
    let overlay = recovered.overlay;
    let mut bytes = image(9);
    let applied = overlay.apply(FsBlock(5), &mut bytes).unwrap();
    assert_eq!((applied.mask, applied.lsn), (1 << 63 | 0b1111, first));
    let granules: Vec<u8> = bytes.chunks(8).map(|granule| granule[7]).collect();
    assert_eq!(granules[..5], [1, 3, 3, 3, 9]);
    assert_eq!((granules[62], granules[63]), (9, 1));
    assert_eq!(overlay.blocks().collect::<Vec<_>>(), [(FsBlock(5), first), (FsBlock(6), first)]);
    assert!(overlay.apply(FsBlock(7), &mut bytes).is_none());
}

#[test]
fn a_revoke_drops_this_checkpoint_and_earlier_ones() {
    let (_, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let mut checkpoint = Checkpoint::new(BLOCK);
    checkpoint.revoke(FsBlock(2));
    checkpoint.record(FsBlock(2), 1, &image(2));
    checkpoint.record(FsBlock(3), 1, &image(2));
    checkpoint.revoke(FsBlock(1));
    checkpoint.revoke(FsBlock(999));
    append(&mut log, checkpoint);
    let mut checkpoint = Checkpoint::new(BLOCK);
    checkpoint.record(FsBlock(1), 2, &image(3));
    let third = append(&mut log, checkpoint);

    let mut overlay = open(&place).1.overlay;
    assert!(!overlay.contains(FsBlock(2)), "revoked together with its own record");
    let mut bytes = image(0);
    let applied = overlay.apply(FsBlock(1), &mut bytes).unwrap();
    assert_eq!((applied.mask, applied.lsn, bytes[0], bytes[8]), (2, third, 0, 3), "only what came later");
    assert_eq!(overlay.oldest(), Some(Lsn(0)));
    let older: Vec<_> = overlay.blocks().filter(|&(_, lsn)| lsn < third).collect();
    for (block, _) in older {
        assert!(overlay.remove(block) && !overlay.remove(block));
    }
    assert_eq!((overlay.oldest(), overlay.len()), (Some(third), 1));
    overlay.remove(FsBlock(1));
    assert!(overlay.oldest().is_none() && !overlay.contains(FsBlock(1)));
}

#[test]
fn full_until_the_tail_is_durable() {
    let (_, place) = new_log(8);
    let mut log = open(&place).0;
    assert!(matches!(log.seal(&mut filler(5, 1, 0), 0), Err(LogError::Full { .. })), "over half the ring");
    append(&mut log, filler(3, 1, 1));
    let second = append(&mut log, filler(3, 2, 2));
    assert_eq!(log.room(), 2 * UNIT);
    let mut checkpoint = filler(3, 3, 3);
    let full = log.seal(&mut checkpoint, 0).err().unwrap();
    assert!(matches!(full, LogError::Full { needed, room } if (needed, room) == (3 * UNIT, 2 * UNIT)));
    assert!(!checkpoint.is_empty(), "kept for the next try");
    log.set_tail(log.head());
    assert_eq!((log.tail_promised(), log.tail(), log.room()), (second, Lsn(0), 2 * UNIT), "promised is not durable");
    log.write_anchor().unwrap();
    assert_eq!((log.tail(), log.room()), (second, 4 * UNIT));
    let third = append(&mut log, checkpoint);
    let fourth = append(&mut log, filler(2, 4, 4));
    assert_eq!((log.room(), log.used()), (0, log.capacity()));
    let recovered = open(&place).1;
    assert_eq!((recovered.tail, recovered.checkpoints, recovered.last), (second, 3, Some(fourth)), "a full ring");

    // Rounded down to a checkpoint's start, and never backwards.
    log.set_tail(Lsn(third.0 + UNIT));
    assert_eq!(log.tail_promised(), third);
    log.set_tail(second);
    assert_eq!(log.tail_promised(), third);
}

#[test]
fn laps() {
    let (_, place) = new_log(7);
    for lap in 0..50 {
        let mut log = open(&place).0;
        let sizes = [1 + lap % 3, 1, 2];
        for (size, block) in sizes.into_iter().zip([10, 20, 30]) {
            log.set_tail(log.head());
            log.write_anchor().unwrap();
            append(&mut log, filler(size, block, lap as u8));
        }
        let mut bytes = image(255);
        let recovered = open(&place).1;
        assert_eq!(recovered.head, log.head());
        assert!(recovered.overlay.apply(FsBlock(30), &mut bytes).is_some());
        assert_eq!(bytes, image(lap as u8));
    }
}

#[test]
fn a_failed_write_poisons() {
    for fuse in 0..2 {
        let (disk, place) = new_log(8);
        let mut log = open(&place).0;
        let sealed = log.seal(&mut filler(1, 1, 1), 0).unwrap();
        disk.set_fuse(Some(fuse));
        assert!(matches!(log.write_all(&sealed), Err(LogError::Io { .. })));
        disk.set_fuse(None);
        assert!(matches!(log.write_all(&sealed), Err(LogError::Poisoned)));
        assert!(matches!(log.write_body(&sealed), Err(LogError::Poisoned)));
        assert!(matches!(log.write_anchor(), Err(LogError::Poisoned)));
        assert!(matches!(log.seal(&mut filler(1, 1, 1), 0), Err(LogError::Poisoned)));
        assert_eq!(log.head(), Lsn(0));
    }
}

#[test]
#[should_panic(expected = "sealed before another checkpoint committed")]
fn two_checkpoints_never_share_a_place() {
    let (_, place) = new_log(8);
    let mut log = open(&place).0;
    let one = log.seal(&mut filler(1, 1, 1), 0).unwrap();
    let two = log.seal(&mut filler(1, 2, 2), 0).unwrap();
    log.write_all(&one).unwrap();
    log.write_all(&two).unwrap();
}

/// A commit is one write and one flush when nothing has to precede it and the tail has not moved.
#[test]
fn requests_of_a_commit() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    let before = disk.counters();
    append(&mut log, filler(2, 1, 1));
    let after = disk.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
}

/// The first attempt at a place loses one unit in the crash. The second happens to put the very same bytes there, and
/// crashes before its own header: the first must not come back to life.
#[test]
fn a_torn_attempt_stays_dead() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let head = log.head();
    let attempt = log.seal(&mut filler(3, 2, 2), 0).unwrap();
    log.write_all(&attempt).unwrap();
    let lost = Lsn(head.0 + UNIT);
    disk.poke(ring_offset(&place, lost), &[0; UNIT as usize]);

    assert_eq!(open(&place).1.checkpoints, 1);
    assert!(disk.0.lock().unwrap().volatile.is_empty(), "the erasure is durable");
    disk.poke(ring_offset(&place, lost), &attempt.bytes()[UNIT as usize..][..UNIT as usize]);
    let recovered = open(&place).1;
    assert_eq!((recovered.checkpoints, recovered.head), (1, head));
}

/// Bytes of an attempt whose header was erased lie around; a later log position finds a header of the right LSN among
/// them, say because a user put it into a file's inode. Only the chain tells.
#[test]
fn a_forged_header_breaks_the_chain() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let right = log.seal(&mut filler(1, 2, 2), 0).unwrap().link;
    for (previous_crc, sequence, found) in [
        (right.previous_crc ^ 1, right.sequence, 1),
        (right.previous_crc, right.sequence + 1, 1),
        (right.previous_crc, right.sequence, 2),
    ] {
        let forged = filler(1, 9, 9).seal(VOLUME, Link { previous_crc, sequence, ..right }, 0);
        disk.poke(ring_offset(&place, right.lsn), forged.bytes());
        assert_eq!(recover(&place, Reach::Ring).unwrap().checkpoints, found);
    }
}

#[test]
fn another_volumes_log_is_not_ours() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let link = log.seal(&mut filler(1, 2, 2), 0).unwrap().link;
    disk.poke(ring_offset(&place, link.lsn), filler(1, 9, 9).seal([1; 16], link, 0).bytes());
    assert_eq!(open(&place).1.checkpoints, 1);
    is_corrupt(Log::open(LogPlace { volume: [1; 16], ..place }, Reach::Ring), "anchor pair");
}

/// The same volume made twice in one place, with the same first checkpoint: the second one of its earlier life followed.
#[test]
fn checkpoints_of_an_earlier_life_are_erased() {
    let (_, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    append(&mut log, filler(2, 2, 2));
    drop(log);
    let again = |erases: bool| {
        if erases {
            // The one that `format` has not zeroed.
            assert_eq!(erase(&place).unwrap(), 1);
        }
        format(&place, Lsn(0)).unwrap();
        assert_eq!(recover(&place, Reach::End).unwrap().checkpoints, 0);
        append(&mut Log::open(place.clone(), Reach::End).unwrap().0, filler(1, 1, 1));
        recover(&place, Reach::End).unwrap().checkpoints
    };
    assert_eq!(again(false), 2, "what this is about");
    format(&place, Lsn(0)).unwrap();
    assert_eq!(again(true), 1);
    let other = LogPlace { volume: [1; 16], ..place.clone() };
    assert_eq!(erase(&other).unwrap(), 0, "others' headers are no danger");
}

/// Zeroed in whatever order, a damaged log could look like the whole of an older one: its newest anchor counts until none does.
#[test]
fn a_log_that_is_forgotten_is_never_an_older_one() {
    for moves in [1, 2, 3] {
        for requests in 0..=4 {
            let (disk, place) = new_log(8);
            let mut log = open(&place).0;
            for number in 0..moves {
                append(&mut log, filler(1, number, 1));
                log.set_tail(log.head());
                log.write_anchor().unwrap();
            }
            let tail = log.tail();
            drop(log);
            disk.set_fuse(Some(requests));
            assert_eq!(forget(&place).is_ok(), requests == 4);
            disk.set_fuse(None);
            disk.lose_power(&mut Random(requests));
            match recover(&place, Reach::End) {
                Ok(recovered) => assert!(recovered.tail == tail && requests < 4, "{moves} moves, {requests} requests"),
                Err(_) => assert!(requests > 2, "{moves} moves, {requests} requests"),
            }
        }
    }
}

/// A process dies, the machine lives on: the next process reads what is not durable yet, and builds on it.
#[test]
fn open_makes_durable_what_it_believes() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    let sealed = log.seal(&mut filler(1, 1, 1), 0).unwrap();
    disk.set_fuse(Some(1)); // the write succeeds, its flush does not
    log.write_all(&sealed).unwrap_err();
    disk.set_fuse(None);
    assert_eq!(open(&place).1.checkpoints, 1);
    assert!(disk.0.lock().unwrap().volatile.is_empty());
}

#[test]
fn places_that_cannot_be() {
    let (_, place) = new_log(8);
    let refused = |change: &dyn Fn(&mut LogPlace)| {
        let mut place = place.clone();
        change(&mut place);
        assert!(matches!(Log::open(place, Reach::Ring), Err(LogError::Place { .. })));
    };
    refused(&|place| place.block_size = 0);
    refused(&|place| place.block_size = 1000);
    refused(&|place| place.block_size = 1 << 17);
    refused(&|place| place.start = u64::MAX - 100);
    refused(&|place| place.start += 1);
    refused(&|place| place.length = 5 * UNIT);
    refused(&|place| place.length = u64::MAX);
    refused(&|place| place.length *= 2);
}

// ------------------------------------------------------------------------------------------------ damage and malice

#[test]
fn anchors() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let second = append(&mut log, filler(1, 2, 2));
    log.set_tail(second);
    log.write_anchor().unwrap();
    let newer = disk.peek(place.start + UNIT, 64);
    // One lost: the other counts.
    disk.poke(place.start + UNIT + 33, &[0xff]);
    let (mut log, recovered) = open(&place);
    assert_eq!((recovered.tail, recovered.checkpoints), (Lsn(0), 2));
    // And the lost one's place is the next to be written.
    log.set_tail(second);
    log.write_anchor().unwrap();
    assert_eq!(disk.peek(place.start + UNIT, 64), newer);
    disk.poke(place.start, &[0]);
    assert_eq!(open(&place).1.tail, second);
    disk.poke(place.start, &[0]);
    disk.poke(place.start + UNIT, &[0]);
    is_corrupt(Log::open(place.clone(), Reach::Ring), "anchor pair");
}

/// mkfs wrote one anchor: until the tail had moved twice, one bad block made the log unreadable.
#[test]
fn either_anchor_of_a_new_log_suffices() {
    for lost in 0..2 {
        let (disk, place) = new_log(8);
        disk.poke(place.start + lost * UNIT, &[0; UNIT as usize]);
        let mut log = open(&place).0;
        append(&mut log, filler(1, 1, 1));
        // The opening has written the lost one anew.
        disk.poke(place.start + (1 - lost) * UNIT, &[0; UNIT as usize]);
        assert_eq!(open(&place).1.checkpoints, 1, "anchor {lost}");
    }
    // So does one that is made over a log.
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    format(&place, log.head()).unwrap();
    assert_eq!(disk.peek(place.start, UNIT as usize), disk.peek(place.start + UNIT, UNIT as usize));
    for slot in [0, UNIT] {
        disk.poke(place.start + slot, &[0; UNIT as usize]);
    }
    assert!(search(&place, |_| Home::Torn).unwrap().is_none(), "an earlier life was found");
}

/// One of the anchors is lost: the other may name a place of which only a part has been written over, and what follows it
/// there was taken for the end, of a log that is not needed; the pending frees of that checkpoint were believed.
#[test]
fn an_older_anchor_is_not_believed_blindly() {
    let (disk, place) = new_log(4);
    let mut log = open(&place).0;
    let lsns: Vec<Lsn> = (1..4).map(|n| append(&mut log, filler(1, n, n as u8))).collect();
    log.set_tail(lsns[1]);
    log.write_anchor().unwrap();
    log.set_tail(lsns[2]);
    append(&mut log, filler(1, 4, 4));
    append(&mut log, filler(1, 5, 5));
    append(&mut log, filler(1, 6, 6));
    let newest = (0..2).max_by_key(|slot| disk.peek(place.start + slot * UNIT + 24, 1)).unwrap();
    disk.poke(place.start + newest * UNIT, &[0; 64]);
    assert!(recover(&place, Reach::End).is_err());
    let found = search(&place, |_| Home::Torn).unwrap().unwrap();
    assert_eq!((found.checkpoints, found.missing, found.head), (4, 0, log.head()));
}

/// Every unit of a log is destroyed in turn. What the others hold is found, and what is missing is told of.
#[test]
fn one_lost_unit_costs_what_it_held() {
    for (count, moves) in [(3, false), (6, false), (6, true), (30, true), (31, true)] {
        for unit in 0..14 {
            let (disk, place) = new_log(12);
            let mut log = open(&place).0;
            let mut lsns = Vec::new();
            for n in 0..count {
                if moves && n > 3 {
                    log.set_tail(lsns[lsns.len() - 3]);
                    if n % 2 == 0 {
                        log.write_anchor().unwrap();
                    }
                }
                // Other blocks in each checkpoint, of one unit and of two.
                lsns.push(append(&mut log, filler(1 + n % 2, 100 * n, n as u8)));
            }
            let (tail, head) = (log.tail(), log.head());
            let needed: Vec<u64> = (0..count).filter(|&n| lsns[n as usize] >= tail).collect();
            disk.poke(place.start + unit * UNIT, &[0; UNIT as usize]);
            let ring = place.ring().unwrap();
            let end_of = |n: u64| lsns.get(n as usize + 1).copied().unwrap_or(head);
            let is_hit = |n: u64| {
                let mut at = (lsns[n as usize].0..end_of(n).0).step_by(UNIT as usize);
                at.any(|at| ring.offset(Lsn(at)) == place.start + unit * UNIT)
            };
            let (overlay, missing) = match recover(&place, Reach::Ring) {
                Ok(recovered) => (recovered.overlay, 0),
                Err(_) => {
                    let found = search(&place, |_| Home::Torn).unwrap().unwrap();
                    (found.overlay, found.missing)
                }
            };
            let context = format!("{count} checkpoints, unit {unit}");
            let mut hit = 0;
            for &n in &needed {
                hit += u64::from(is_hit(n));
                assert_eq!(overlay.contains(FsBlock(100 * n)), !is_hit(n), "{context}: checkpoint {n}");
            }
            let is_last_hit = is_hit(count - 1);
            assert!(missing >= hit || is_last_hit, "{context}: {missing} of {hit}");
        }
    }
}

/// What a gap hides may have freed the block of an older record.
#[test]
fn before_a_gap_only_blocks_that_say_who_they_are() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    let lsns: Vec<Lsn> = (0..4).map(|n| append(&mut log, filler(1, 100 * n, n as u8))).collect();
    let held = |home: Home| {
        let overlay = search(&place, |_| home).unwrap().unwrap().overlay;
        (0..4).filter(|&n| overlay.contains(FsBlock(100 * n))).collect::<Vec<_>>()
    };
    assert_eq!(held(Home::Other), [0, 1, 2, 3]);
    assert_eq!(held(Home::Sound(Lsn(0))), [0, 1, 2, 3]);
    assert_eq!(held(Home::Sound(lsns[2])), [2, 3], "home is newer");
    disk.poke(ring_offset(&place, lsns[1]), &[0; UNIT as usize]);
    assert_eq!(held(Home::Other), [2, 3]);
    assert_eq!(held(Home::Torn), [0, 2, 3]);
    assert_eq!(search(&place, |_| Home::Torn).unwrap().unwrap().missing, 1);
}

/// Rewrites a structure and makes its checksum right again.
fn reseal(disk: &Disk, offset: u64, size: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = disk.peek(offset, size);
    change(&mut bytes);
    bytes[4..8].fill(0);
    let crc = crc32c::crc32c(&bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    disk.poke(offset, &bytes);
}

/// Every byte of a header counts, also those no other check looks at.
#[test]
fn a_damaged_header_is_not_believed() {
    let (disk, place) = new_log(8);
    append(&mut open(&place).0, filler(1, 1, 1));
    let whole = disk.peek(ring_offset(&place, Lsn(0)), CheckpointHeader::SIZE);
    for at in 0..CheckpointHeader::SIZE {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        disk.poke(ring_offset(&place, Lsn(0)), &bytes);
        assert_eq!(recover(&place, Reach::Ring).unwrap().checkpoints, 0, "byte {at}");
    }
}

/// The same volume made again: its first checkpoint of before is at the tail, where no chain protects.
#[test]
fn format_forgets() {
    let (_, place) = new_log(8);
    append(&mut open(&place).0, filler(1, 1, 1));
    format(&place, Lsn(0)).unwrap();
    assert_eq!(open(&place).1.checkpoints, 0);
}

/// A log was emptied in one batch of writes: of a ring that had wrapped, the new anchor without the zeros, or the zeros
/// without the new anchor, was a log that could not be read.
#[test]
fn power_loss_while_a_log_is_emptied_leaves_the_old_one_or_none() {
    let mut random = Random(11);
    for round in 0..4000 {
        let (disk, place) = new_log(7);
        let mut log = open(&place).0;
        for lap in 0..10 + round % 7 {
            append(&mut log, filler(1 + lap % 2, 1, lap as u8));
            log.set_tail(log.head());
            log.write_anchor().unwrap();
        }
        let (head, last) = (log.head(), log.last());
        disk.set_fuse(Some(round % 10));
        let done = format(&place, head).is_ok();
        disk.lose_power(&mut random);
        let recovered = open(&place).1;
        assert_eq!(recovered.head, head, "round {round}");
        assert!(recovered.last == last && !done || recovered.last.is_none(), "round {round}: {:?}", recovered.last);
    }
}

#[test]
fn hostile_anchors() {
    let check = |at: usize, value: u64, expected| {
        let (disk, place) = new_log(8);
        for slot in [0, UNIT] {
            reseal(&disk, place.start + slot, 64, |bytes| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes()));
        }
        is_corrupt(Log::open(place, Reach::Ring), expected);
    };
    check(24, 0, "anchor sequence");
    check(24, u64::MAX, "anchor sequence");
    check(24, 2, "tail without a checkpoint");
    check(32, u64::MAX, "anchor tail");
    check(32, u64::MAX / 4096 * 4096, "anchor tail");
    check(32, 100, "anchor tail");
}

/// The tail's checkpoint has been overwritten by a later lap, and the anchor that knew is lost.
#[test]
fn an_anchor_too_old() {
    let (disk, place) = new_log(4);
    let mut log = open(&place).0;
    for byte in 0..5 {
        append(&mut log, filler(1, 1, byte));
        log.set_tail(log.head());
    }
    let oldest = crate::anchor::Anchor { slot: 0, sequence: 1, tail: Lsn(0) };
    disk.poke(place.start, &oldest.encode(&place, &place.ring().unwrap()));
    disk.poke(place.start + UNIT, &[0; 64]);
    is_corrupt(Log::open(place, Reach::Ring), "checkpoint at the tail");
}

/// A damaged header was taken for the end: what had been committed after it was gone, and nobody said so.
#[test]
fn damage_in_the_middle_is_not_the_end() {
    // The magic, the volume, the LSN, a reserved byte, the body.
    for at in [0, 10, 26, 127, 512] {
        for damaged in 0..3 {
            let (disk, place) = new_log(8);
            let mut log = open(&place).0;
            let lsns: Vec<_> = (1..4).map(|n| append(&mut log, filler(1, n, n as u8))).collect();
            disk.poke(ring_offset(&place, Lsn(lsns[damaged].0 + at)), &[99]);
            assert_eq!(recover(&place, Reach::End).unwrap().checkpoints, damaged as u64);
            if damaged == 2 {
                // The last one cannot be told from a torn attempt.
                assert_eq!(recover(&place, Reach::Ring).unwrap().checkpoints, 2);
            } else {
                let before = disk.peek(0, disk.size() as usize);
                is_corrupt(recover(&place, Reach::Ring), "a later one follows");
                is_corrupt(Log::open(place.clone(), Reach::Ring), "a later one follows");
                assert!(disk.peek(0, disk.size() as usize) == before, "what is damaged stays as it is");
            }
        }
    }
}

/// A block of all the bytes that a header begins with, and one with the header of a checkpoint to come, which lies where a
/// unit begins.
#[test]
fn no_bytes_in_a_body_are_a_header() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let magics = CHECKPOINT_MAGIC.to_le_bytes().repeat(BLOCK / 4);
    let mut forged = disk.peek(ring_offset(&place, Lsn(0)), BLOCK);
    CheckpointHeader::read_mut(&mut forged).lsn = (5 * UNIT).into();
    CheckpointHeader::read_mut(&mut forged).crc = 0.into();
    let crc = crc32c::crc32c(&forged[..CheckpointHeader::SIZE]);
    CheckpointHeader::read_mut(&mut forged).crc = crc.into();

    let mut checkpoint = Checkpoint::new(BLOCK);
    for block in 1..8 {
        checkpoint.record(FsBlock(block), !0, &magics);
    }
    checkpoint.record(FsBlock(8), (1 << 30) - 1, &magics);
    assert_eq!(CheckpointHeader::SIZE as u64 + checkpoint.body_len() + RecordHeader::SIZE as u64, UNIT);
    checkpoint.record(FsBlock(9), !0, &forged);
    for block in 10..30 {
        checkpoint.record(FsBlock(block), !0, &magics);
    }
    let sealed = log.seal(&mut checkpoint, 0).unwrap();
    log.write_body(&sealed).unwrap();
    assert_eq!(open(&place).1.checkpoints, 1, "the body alone is nothing");
    log.write_commit(&sealed).unwrap();
    let is_header = |unit: u64| disk.peek(ring_offset(&place, Lsn(unit * UNIT)), 4) == CHECKPOINT_MAGIC.to_le_bytes();
    assert_eq!((0..8).filter(|&unit| is_header(unit)).collect::<Vec<_>>(), [0, 1]);

    let overlay = open(&place).1.overlay;
    for block in [1, 7, 9, 10, 29] {
        let mut bytes = image(0);
        overlay.apply(FsBlock(block), &mut bytes).unwrap();
        assert!(bytes == if block == 9 { &forged[..] } else { &magics[..] }, "block {block}");
    }
}

/// Checksums right, contents impossible.
#[test]
fn hostile_bodies() {
    #[track_caller]
    fn check(expected: &str, change: impl FnOnce(&mut CheckpointHeader, &mut [u8])) {
        let (disk, place) = new_log(8);
        let mut log = open(&place).0;
        append(&mut log, filler(1, 1, 1));
        let lsn = log.head();
        let mut checkpoint = Checkpoint::new(BLOCK);
        checkpoint.record(FsBlock(1), 0b11, &image(1));
        checkpoint.record(FsBlock(2), 1, &image(1));
        checkpoint.revoke(FsBlock(3));
        checkpoint.pending(FsBlock(4), 1);
        append(&mut log, checkpoint);
        assert_eq!(recover(&place, Reach::Ring).unwrap().checkpoints, 2);

        let offset = ring_offset(&place, lsn);
        let mut bytes = disk.peek(offset, UNIT as usize);
        let (header, body) = bytes.split_at_mut(CheckpointHeader::SIZE);
        let header = CheckpointHeader::read_mut(header);
        change(header, body);
        let body_len = (header.body_len.get() as usize).min(body.len());
        header.body_crc = crc32c::crc32c(&body[..body_len]).into();
        disk.poke(offset, &bytes);
        reseal(&disk, offset, CheckpointHeader::SIZE, |_| ());
        is_corrupt(recover(&place, Reach::Ring), expected);
        is_corrupt(Log::open(place, Reach::Ring), expected);
    }
    check("body length", |header, _| header.body_len = u64::MAX.into());
    check("body length", |header, _| header.body_len = (7 * UNIT).into());
    check("record count", |header, _| header.record_count = u32::MAX.into());
    check("record count", |header, body| {
        // Ends in the middle of a record header.
        body[32..56].fill(0xff);
        (header.body_len, header.record_count) = (40.into(), 2.into());
    });
    check("record without granules", |_, body| RecordHeader::read_mut(&mut body[32..]).mask = 0.into());
    check("record mask", |_, body| RecordHeader::read_mut(&mut body[32..]).mask = u64::MAX.into());
    check("revokes and pending", |header, _| header.record_count = 1.into());
    check("revokes and pending", |header, _| header.revoke_count = u32::MAX.into());
    check("revokes and pending", |header, _| header.pending_count = u32::MAX.into());
    check("revokes and pending", |header, _| header.body_len = (header.body_len.get() + 1).into());
    check("pending free", |_, body| body[72..76].fill(0));
    check("pending free", |_, body| body[64..72].fill(0xff));
}

/// No bytes make `open` panic or run for ever: valid logs with fields and bodies scrambled, checksums put right.
#[test]
fn scrambled_logs() {
    for seed in 0..3000 {
        let mut random = Random(seed);
        println!("scrambled_logs: seed {seed}");
        let (disk, place) = new_log(8);
        let mut log = open(&place).0;
        for n in 0..3 {
            append(&mut log, filler(1 + random.below(2), n, n as u8));
        }
        let target = Lsn(0);
        let offset = ring_offset(&place, target);
        let mut bytes = disk.peek(offset, UNIT as usize);
        for _ in 0..1 + random.below(6) {
            // Mostly in the header's fields and the first records.
            let span = if random.one_in(4) { 4000 } else { 160 };
            let at = 24 + random.below(span) as usize;
            bytes[at] = if random.one_in(2) { random.next() as u8 } else { 0xff * random.below(2) as u8 };
        }
        let header = CheckpointHeader::read_mut(&mut bytes);
        let body_len = if random.one_in(2) { random.below(3900) } else { header.body_len.get() };
        header.body_len = body_len.into();
        let end = (128 + body_len as usize).min(bytes.len());
        let crc = crc32c::crc32c(&bytes[128..end]);
        CheckpointHeader::read_mut(&mut bytes).body_crc = crc.into();
        disk.poke(offset, &bytes);
        reseal(&disk, offset, CheckpointHeader::SIZE, |_| ());
        let _ = Log::open(place, Reach::Ring);
    }
}

// ------------------------------------------------------------------------------------------------------------ overlay

/// The overlay against a map of whole blocks: overlapping records, revokes, then removals.
#[test]
fn overlay_agrees_with_a_map() {
    for seed in 0..60 {
        println!("overlay_agrees_with_a_map: seed {seed}");
        let mut random = Random(seed);
        let blocks = if seed % 2 == 0 { 40 } else { 4000 };
        let mut changes = crate::overlay::Changes::default();
        let mut log = vec![0; 24];
        let mut model: BTreeMap<u64, (u64, Lsn, Vec<u8>)> = BTreeMap::new();
        for lsn in (1..60).map(Lsn) {
            changes.begin(lsn);
            for _ in 0..random.below(100) {
                let block = random.below(blocks);
                let mask = match random.below(4) {
                    0 => 1 << random.below(64),
                    1 => random.next() & random.next() & random.next() | 1,
                    2 => random.next() | 1,
                    _ => !0,
                };
                let (old_mask, _, bytes) = model.entry(block).or_insert_with(|| (0, lsn, image(0)));
                *old_mask |= mask;
                changes.record(block, log.len());
                log.extend_from_slice(&block.to_le_bytes());
                log.extend_from_slice(&mask.to_le_bytes());
                for bit in (0..64).filter(|bit| mask >> bit & 1 == 1) {
                    random.fill(&mut bytes[bit * 8..][..8]);
                    log.extend_from_slice(&bytes[bit * 8..][..8]);
                }
            }
            for _ in 0..random.below(20) {
                let block = random.below(blocks);
                changes.revoke(block);
                model.remove(&block);
            }
        }
        let mut overlay = changes.into_overlay(BLOCK, log);
        while !model.is_empty() {
            assert_eq!(overlay.len(), model.len());
            assert_eq!(overlay.oldest(), model.values().map(|&(_, lsn, _)| lsn).min());
            assert!(overlay.blocks().eq(model.iter().map(|(&block, &(_, lsn, _))| (FsBlock(block), lsn))));
            for (&block, (mask, lsn, expected)) in &model {
                let mut bytes = image(0);
                let applied = overlay.apply(FsBlock(block), &mut bytes).unwrap();
                assert_eq!((applied.mask, applied.lsn), (*mask, *lsn));
                assert!(bytes == *expected);
            }
            let from = random.below(blocks);
            let rest = overlay.blocks_from(FsBlock(from)).map(|(block, _)| block.0);
            assert!(rest.eq(model.range(from..).map(|(&block, _)| block)));
            for _ in 0..blocks / 4 {
                let block = random.below(blocks);
                assert_eq!(overlay.remove(FsBlock(block)), model.remove(&block).is_some());
            }
        }
        assert!(overlay.is_empty() && overlay.blocks().next().is_none() && overlay.oldest().is_none());
    }
}

/// 256 MiB of log with two million granules in records of one, the worst case, spread over `blocks` blocks. Run with
/// `cargo test -p myriad-log --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn replay_speed() {
    for (blocks, per_record) in [(50_000, 1), (500_000, 1), (2_000_000, 1), (200_000, 8)] {
        let ring: u64 = 256 << 20;
        let disk = Disk::new(ring + 2 * UNIT);
        let place =
            LogPlace { device: disk.clone(), start: 0, length: ring + 2 * UNIT, block_size: 4096, volume: VOLUME };
        format(&place, Lsn(0)).unwrap();
        let mut log = open(&place).0;
        let mut random = Random(1);
        let block = vec![7; 4096];
        let mut left = 2_000_000 / per_record;
        let mut checkpoint = Checkpoint::new(4096);
        let mut building = std::time::Duration::ZERO;
        while left > 0 {
            let start = std::time::Instant::now();
            for _ in 0..left.min(10_000) {
                let mask = if per_record == 1 { 1 << random.below(64) } else { 0xff << random.below(56) };
                checkpoint.record(FsBlock(random.below(blocks)), mask, &block);
            }
            building += start.elapsed();
            left -= left.min(10_000);
            let sealed: Sealed = log.seal(&mut checkpoint, 0).unwrap();
            log.write_all(&sealed).unwrap();
            checkpoint = sealed.recycle();
        }
        drop(log);
        let start = std::time::Instant::now();
        let recovered = open(&place).1;
        let elapsed = start.elapsed();
        let blocks_found: Vec<_> = recovered.overlay.blocks().collect();
        let start = std::time::Instant::now();
        let mut bytes = vec![0; 4096];
        for &(block, _) in &blocks_found {
            recovered.overlay.apply(block, &mut bytes);
        }
        let applying = start.elapsed() / blocks_found.len() as u32;
        println!(
            "{blocks} blocks, {per_record} granules a record: \
             {} MiB, {} checkpoints, {} blocks: replay {elapsed:?}; \
             applying {applying:?} a block; building took {building:?}",
            recovered.bytes >> 20,
            recovered.checkpoints,
            recovered.overlay.len(),
        );
    }
}

// ------------------------------------------------------------------------------------------------------- power losses

/// Blocks as the engine sees them, by number; `None`: freed, and home is anyone's.
type Blocks = BTreeMap<u64, Option<Vec<u8>>>;
type Pending = Vec<(FsBlock, u32)>;

/// A caller that keeps the log's contract to the letter and no further, and what it may expect after a crash.
struct World {
    disk: Arc<Disk>,
    place: LogPlace,
    random: Random,
    log: Option<Log>,
    /// As of the last acknowledged checkpoint.
    committed: Blocks,
    last: Option<Lsn>,
    pending: Pending,
    /// As of the checkpoint being written, with its LSN.
    flying: Option<(Lsn, Blocks, Pending)>,
    /// On the volume; home writes are durable at once.
    home: BTreeMap<u64, Vec<u8>>,
    /// First checkpoint that changed a block since it was last home.
    unhomed: BTreeMap<u64, Lsn>,
    checkpoints: u64,
    crashes: u64,
}

const BLOCKS: u64 = 12;

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (disk, place) = new_log(5 + random.below(8));
        let home: BTreeMap<_, _> = (0..BLOCKS).map(|block| (block, image(block as u8))).collect();
        let committed = home.iter().map(|(&block, bytes)| (block, Some(bytes.clone()))).collect();
        let log = Some(open(&place).0);
        let (last, pending, flying, unhomed) = (None, Vec::new(), None, BTreeMap::new());
        Self { disk, place, random, log, committed, last, pending, flying, home, unhomed, checkpoints: 0, crashes: 0 }
    }

    /// One thing a caller may do. An error means the device is gone.
    fn step(&mut self) -> Result<(), LogError> {
        match self.random.below(4) {
            0 => {
                self.write_home();
                Ok(())
            }
            1 if self.random.one_in(3) => self.log.as_mut().unwrap().write_anchor(),
            _ => self.commit(),
        }
    }

    /// Writes home what is oldest, and promises no more than that.
    fn write_home(&mut self) {
        let log = self.log.as_mut().unwrap();
        let span = log.head().0 - log.tail().0;
        let target = Lsn(log.tail().0 + self.random.below(span / UNIT + 2) * UNIT);
        let due: Vec<_> = self.unhomed.iter().filter(|&(_, &lsn)| lsn < target).map(|(&block, _)| block).collect();
        for block in due {
            self.home.insert(block, self.committed[&block].clone().unwrap());
            self.unhomed.remove(&block);
        }
        log.set_tail(self.unhomed.values().copied().min().unwrap_or(log.head()));
    }

    fn commit(&mut self) -> Result<(), LogError> {
        let log = self.log.as_mut().unwrap();
        let random = &mut self.random;
        let mut next = self.committed.clone();
        let mut checkpoint = Checkpoint::new(BLOCK);
        let (mut changed, mut freed, mut pending) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..random.below(if random.0 % 3 == 0 { 40 } else { 6 }) {
            let block = random.below(BLOCKS);
            if freed.contains(&block) {
                continue;
            }
            let content = next.get_mut(&block).unwrap();
            // A freed block comes back whole.
            let mask = if content.is_none() { !0 } else { random.next() & random.next() | 1 << random.below(64) };
            let bytes = content.get_or_insert_with(|| image(0));
            for bit in (0..64).filter(|bit| mask >> bit & 1 == 1) {
                random.fill(&mut bytes[bit * 8..][..8]);
            }
            checkpoint.record(FsBlock(block), mask, bytes);
            changed.push(block);
            if random.one_in(8) {
                next.insert(block, None);
                checkpoint.revoke(FsBlock(block));
                freed.push(block);
            }
        }
        for _ in 0..random.below(3) {
            let free = (FsBlock(random.below(1000)), 1 + random.below(9) as u32);
            checkpoint.pending(free.0, free.1);
            pending.push(free);
        }
        let sealed = match log.seal(&mut checkpoint, 0) {
            Ok(sealed) => sealed,
            Err(LogError::Full { needed, room }) => {
                assert!(needed > room);
                return Ok(());
            }
            Err(error) => panic!("{error}"),
        };
        let lsn = sealed.lsn();
        self.flying = Some((lsn, next, pending));
        if random.one_in(2) {
            log.write_all(&sealed)?;
        } else {
            log.write_body(&sealed)?;
            if random.one_in(2) {
                let flushed = self.disk.flush();
                flushed.map_err(|source| LogError::Io { op: "flush", offset: 0, source })?;
            }
            log.write_commit(&sealed)?;
        }
        (_, self.committed, self.pending) = self.flying.take().unwrap();
        self.last = Some(lsn);
        self.checkpoints += 1;
        for block in changed {
            self.unhomed.entry(block).or_insert(lsn);
        }
        for block in freed {
            // The revoke has committed: the block may be someone's data now.
            self.unhomed.remove(&block);
            self.random.fill(self.home.get_mut(&block).unwrap());
        }
        Ok(())
    }

    /// Opens the log again, after a power loss or (`power`: false) after the process alone has died.
    fn reopen(&mut self, power: bool) {
        self.crashes += 1;
        self.log = None;
        self.disk.set_fuse(None);
        if power {
            self.disk.lose_power(&mut self.random);
        }
        let (log, recovered) = open(&self.place);
        match self.flying.take() {
            Some((lsn, blocks, pending)) if recovered.last == Some(lsn) => {
                (self.last, self.committed, self.pending) = (Some(lsn), blocks, pending);
            }
            _ => assert_eq!(recovered.last, self.last, "exactly the acknowledged checkpoints"),
        }
        assert_eq!(recovered.pending, self.pending);
        for (&block, content) in &self.committed {
            let mut bytes = self.home[&block].clone();
            let applied = recovered.overlay.apply(FsBlock(block), &mut bytes);
            match content {
                Some(content) => assert!(bytes == *content, "block {block}: {applied:?}"),
                None => assert!(applied.is_none(), "block {block} was revoked"),
            }
        }
        self.unhomed = recovered.overlay.blocks().map(|(block, lsn)| (block.0, lsn)).collect();
        self.log = Some(log);
    }
}

/// Many lives of one volume: power is lost at a random request, in a random state of the disk's cache, again and again.
#[test]
fn lives() {
    let (mut crashes, mut checkpoints) = (0, 0);
    for seed in 0..150 {
        println!("lives: seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..40 {
            let fuse = world.random.below(30);
            world.disk.set_fuse(Some(fuse));
            while world.step().is_ok() {}
            // Now and then several processes die before the power does.
            let power = !world.random.one_in(4);
            world.reopen(power);
        }
        crashes += world.crashes;
        checkpoints += world.checkpoints;
    }
    println!("{crashes} crashes, {checkpoints} checkpoints");
    assert!(checkpoints > 2 * crashes, "the run did too little to mean anything");
}

/// The same life, cut at every request in turn, with the cache lost in several ways.
#[test]
fn every_prefix() {
    for seed in 1000..1004 {
        for cut in 0.. {
            let mut finished = false;
            for luck in 0..6 {
                println!("every_prefix: seed {seed}, cut {cut}, luck {luck}");
                let mut world = World::new(seed);
                world.disk.set_fuse(Some(cut));
                finished = (0..250).all(|_| world.step().is_ok());
                world.random = Random(luck);
                world.reopen(true);
                // It must go on from there.
                while world.checkpoints < 3 || world.random.one_in(3) {
                    world.step().unwrap();
                }
                world.reopen(true);
            }
            if finished {
                assert!(cut > 100, "the life was too short");
                break;
            }
        }
    }
}
