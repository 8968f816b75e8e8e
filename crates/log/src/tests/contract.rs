//! What a caller may rely on: contents, order, room, and checkpoints that a crash left half done.

use super::*;
use crate::checkpoint::Link;
use crate::{Emptied, Home, emptied, erase, forget, recover, search};
use myriad_device::BlockDevice;

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
    assert!(disk.is_durable(), "the erasure is durable");
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

/// An older copy of a log was replayed over what is newer.
#[test]
fn a_log_that_ends_before_its_known_end_is_refused() {
    let is_other = |result: Result<(), LogError>| {
        assert!(matches!(result, Err(LogError::Corrupt(Corrupt::LogEnd { .. }))), "{result:?}")
    };
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let copy = disk.peek(0, place.length as usize);
    append(&mut log, filler(1, 2, 2));
    let knowing = LogPlace { known_end: log.head(), ..place.clone() };
    drop(log);
    for reach in [Reach::Ring, Reach::End] {
        assert_eq!(recover(&knowing, reach).unwrap().checkpoints, 2);
    }
    // A newer one is none of a volume that was closed before.
    let before = LogPlace { known_end: Lsn(knowing.known_end.0 - 512), ..place.clone() };
    assert_eq!(recover(&before, Reach::Ring).unwrap().checkpoints, 2);
    is_other(recover(&before, Reach::End).map(drop));
    disk.poke(0, &copy);
    assert_eq!(recover(&place, Reach::Ring).unwrap().checkpoints, 1, "what this is about");
    is_other(recover(&knowing, Reach::Ring).map(drop));
    is_other(Log::open(knowing.clone(), Reach::Ring).map(drop));
    // One that was closed does not need it, but its next crash would.
    is_other(recover(&knowing, Reach::End).map(drop));
    assert_eq!(recover(&knowing, Reach::Written).unwrap().checkpoints, 1);
    // Of a block that may be another's by now, nothing is believed.
    for (home, is_believed) in [(Home::Other, false), (Home::Torn, true)] {
        let found = search(&knowing, |_| home).unwrap().unwrap();
        assert_eq!((found.checkpoints, found.missing, found.overlay.blocks().next().is_some()), (1, 1, is_believed));
    }
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
    let what = Emptied { found: 7, missing: 2, time: -3 };
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
            assert_eq!(forget(&place, what).is_ok(), requests == 4);
            disk.set_fuse(None);
            disk.lose_power(&mut Random(requests));
            match recover(&place, Reach::End) {
                Ok(recovered) => assert!(recovered.tail == tail && requests < 4, "{moves} moves, {requests} requests"),
                Err(_) => assert!(requests > 2 && emptied(&place) == Some(what), "{moves} moves, {requests} requests"),
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
    assert!(disk.is_durable());
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
