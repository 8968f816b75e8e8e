//! Each drive is measured as its maker measures it, and must give what its maker says.

use super::*;
use crate::disk::{PRESETS, Preset};
use crate::workloads::random::Random;

const DRIVES: [&str; 2] = ["disk1996", "disk2001"];

fn mechanics(name: &str) -> &'static Mechanics {
    Preset::named(name).unwrap().mechanics()
}

/// Mean nanoseconds of `count` requests, each alone.
fn mean_ns(drive: &mut Drive, count: u64, mut request: impl FnMut(u64) -> Request) -> f64 {
    let before = drive.now_ns();
    for index in 0..count {
        drive.serve(&[request(index)]);
    }
    (drive.now_ns() - before) as f64 / count as f64
}

fn near(value: f64, expected: f64, tolerance: f64) -> bool {
    (value / expected - 1.0).abs() <= tolerance
}

#[test]
fn capacities_are_those_of_the_drives() {
    for (name, bytes) in [("disk1996", 2.147e9), ("disk2001", 46.1e9)] {
        let capacity = Drive::new(mechanics(name)).capacity() as f64;
        assert!(near(capacity, bytes, 0.02), "{name}: {capacity}");
        assert!((Preset::named(name).unwrap().volume_bytes as f64) <= capacity, "{name}");
    }
}

/// A sector at random: overhead, the published average seek, half a turn, and the sector itself.
#[test]
fn a_random_read_takes_the_published_seek_and_half_a_turn() {
    for name in DRIVES {
        let mechanics = mechanics(name);
        let mut drive = Drive::new(mechanics);
        let sectors = drive.capacity() / SECTOR_BYTES;
        let mut random = Random::new(7);
        let mean = mean_ns(&mut drive, 20_000, |_| Request::read(random.below(sectors) * SECTOR_BYTES, SECTOR_BYTES));
        let half_turn = 60e9 / f64::from(mechanics.revolutions_per_minute) / 2.0;
        // Outer zones hold more, so random sectors lie closer together than random cylinders: a little below the average.
        let expected = f64::from(mechanics.overhead_us + mechanics.read_seeks.average_us) * 1e3 + half_turn;
        assert!(mean <= expected * 1.02 && mean >= expected * 0.95, "{name}: {mean} for {expected}");
    }
}

/// MB/s (10^6) of requests of `bytes` in sequence over 64 MB from `start`.
fn sequential(drive: &mut Drive, start: u64, bytes: u64, is_write: bool) -> f64 {
    let count = (64 << 20) / bytes;
    let before = drive.now_ns();
    for index in 0..count {
        drive.serve(&[Request { is_write, offset: start + index * bytes, length: bytes }]);
    }
    drive.flush();
    (count * bytes) as f64 / (drive.now_ns() - before) as f64 * 1e3
}

/// What the data sheet says of the sustained rate, and what the papers say of their raw disks.
#[test]
fn sequential_rates_are_as_published() {
    let rate =
        |name: &str, start, bytes, is_write| sequential(&mut Drive::new(mechanics(name)), start, bytes, is_write);
    // IBM: 37 MB/s sustained at the edge.
    assert!(near(rate("disk2001", 0, 64 << 10, false), 37.0, 0.03));
    assert!(near(rate("disk2001", 0, 64 << 10, true), 37.0, 0.06));
    let inner = rate("disk2001", 22 << 30, 64 << 10, false);
    assert!((25.0..33.0).contains(&inner), "{inner} in the middle");
    // Sweeney and others: "approximately 7 MB/sec" reading, 5.5 writing, with large requests of a size they do not give.
    let (read, write) = (rate("disk1996", 0, 256 << 10, false), rate("disk1996", 0, 256 << 10, true));
    assert!(near(read, 7.0, 0.05), "{read}");
    assert!(near(write, 5.5, 0.08), "{write}");
}

#[test]
fn the_write_cache_answers_at_once_and_a_flush_waits() {
    let mut drive = Drive::new(mechanics("disk2001"));
    let mut random = Random::new(3);
    let mut anywhere = |_| Request::write(random.below(40 << 30) / 4096 * 4096, 4096);
    let cached = mean_ns(&mut drive, 50, &mut anywhere);
    let before = drive.now_ns();
    drive.flush();
    let flushed = (drive.now_ns() - before) as f64;
    assert!(cached < 500e3, "{cached}: overhead and interface only");
    assert!(flushed > 50.0 * 3e6, "{flushed}: fifty places on the platters");
    // Sorted by the drive, they take less than one by one; more than the buffer holds waits for the arm.
    let many = mean_ns(&mut drive, 3_000, &mut anywhere);
    assert!(many > 2e6 && many < 12e6, "{many}");
    let mut uncached = Drive::new(mechanics("disk1996"));
    let mut random = Random::new(3);
    let alone = mean_ns(&mut uncached, 1_000, |_| Request::write(random.below(2 << 30) / 4096 * 4096, 4096));
    assert!(alone > 12e6, "{alone}: each goes to the platters");
}

#[test]
fn a_batch_is_sorted_and_joined() {
    let places: Vec<u64> = Random::new(5).permutation(64).into_iter().map(|place| place * (500 << 20)).collect();
    let batch: Vec<Request> = places.iter().map(|&offset| Request::read(offset, 4096)).collect();
    let (mut together, mut alone) = (Drive::new(mechanics("disk2001")), Drive::new(mechanics("disk2001")));
    together.serve(&batch);
    batch.iter().for_each(|&request| alone.serve(&[request]));
    assert!(together.now_ns() * 3 < alone.now_ns() * 2, "{} {}", together.now_ns(), alone.now_ns());
    let (mut one, mut pieces) = (Drive::new(mechanics("disk1996")), Drive::new(mechanics("disk1996")));
    one.serve(&[Request::write(1 << 20, 64 << 10)]);
    let parts: Vec<Request> = (0..16).rev().map(|part| Request::write((1 << 20) + part * 4096, 4096)).collect();
    pieces.serve(&parts);
    assert_eq!(one.now_ns(), pieces.now_ns());
}

#[test]
fn what_was_read_ahead_is_there_until_it_is_written() {
    let mut drive = Drive::new(mechanics("disk2001"));
    let mut one = |request| {
        let before = drive.now_ns();
        drive.serve(&[request]);
        drive.now_ns() - before
    };
    let at = 10 << 30;
    assert!(one(Request::read(at, 4096)) > 1_000_000);
    assert!(one(Request::read(at + 4096, 4096)) < 1_000_000);
    assert!(one(Request::read(at, 4096)) < 500_000, "read before");
    assert!(one(Request::write(at, 4096)) < 500_000);
    assert!(one(Request::read(at + 4096, 4096)) > 500_000, "dropped with what was written");
}

#[test]
fn same_requests_same_time() {
    for preset in &PRESETS {
        let run = || {
            let mut model = preset.model();
            let mut random = Random::new(11);
            for turn in 0..2_000_u64 {
                let batch: Vec<Request> = (0..1 + random.below(4))
                    .map(|_| Request {
                        is_write: random.below(2) == 0,
                        offset: random.below(2_000 << 20) / 512 * 512,
                        length: 512 << random.below(8),
                    })
                    .collect();
                model.serve(&batch);
                if turn % 100 == 0 {
                    model.flush();
                }
            }
            model.now_ns()
        };
        assert_eq!(run(), run(), "{}", preset.name);
    }
}
