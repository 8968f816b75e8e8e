//! Logs that are damaged, and logs made to do harm.

use super::*;
use crate::checkpoint::Link;
use crate::place::POSITION_MAX;
use crate::{Home, recover, search};
use myriad_device::BlockDevice;
use myriad_format::log::{CHECKPOINT_MAGIC, CheckpointHeader, RecordHeader};

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

/// Every unit held a header that claimed nearly all of the ring for its body: a search read the ring as often as it has units.
#[test]
fn headers_that_lie_in_each_others_bodies_cost_one_lap() {
    let (disk, place) = new_log(64);
    append(&mut open(&place).0, filler(1, 1, 1));
    let template = disk.peek(ring_offset(&place, Lsn(0)), CheckpointHeader::SIZE);
    let capacity = place.ring().unwrap().capacity;
    // Each in its place, of one lap or of two, with the longest body or with one that ends before the last unit.
    for (laps, units) in [(1, 64), (2, 64), (2, 63)] {
        for number in 0..64 {
            let lsn = Lsn(number * UNIT + number % laps * capacity);
            let offset = ring_offset(&place, lsn);
            disk.poke(offset, &template);
            reseal(&disk, offset, CheckpointHeader::SIZE, |bytes| {
                let header = CheckpointHeader::read_mut(bytes);
                header.lsn = lsn.0.into();
                header.sequence = (lsn.0 / UNIT).into();
                header.body_len = (units * UNIT - CheckpointHeader::SIZE as u64).into();
                header.body_crc = (header.body_crc.get() ^ 1).into();
            });
        }
        for slot in [0, UNIT] {
            disk.poke(place.start + slot, &[0; UNIT as usize]);
        }
        let before = disk.counters().read_bytes;
        assert!(search(&place, |_| Home::Torn).unwrap().is_none());
        let read = disk.counters().read_bytes - before;
        assert!(read <= 4 * capacity, "{laps} laps, {units} units: read {read} bytes of {capacity}");
    }
}

/// The units for the checkpoints that are missing between two were multiplied before they were compared.
#[test]
fn as_many_missing_checkpoints_as_numbers_allow_have_no_room() {
    let (disk, place) = new_log(8);
    let mut log = open(&place).0;
    append(&mut log, filler(1, 1, 1));
    let forged = log.seal(&mut filler(1, 2, 2), 0).unwrap().link;
    let forged = filler(1, 2, 2).seal(VOLUME, Link { sequence: POSITION_MAX, ..forged }, 0);
    disk.poke(ring_offset(&place, log.head()), forged.bytes());
    let found = search(&place, |_| Home::Torn).unwrap().unwrap();
    assert_eq!(
        (found.checkpoints, found.missing),
        (1, POSITION_MAX),
        "what the forged one does not follow was believed"
    );
    assert!(found.overlay.contains(FsBlock(2)));
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
