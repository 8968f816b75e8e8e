//! What a power cut leaves: changes that are only in the log, and, without a log, any mixture of old and new sectors.

mod common;

use common::{Builder, Image, Logged, SHAPE, SMALL, Sample, Shape, VOLUME, Worn, sample, sample_later, write_log};
use myriad_check::{Options, Progress, Report, check, number};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_format::choices::{Choices, Directory, Inodes, Space};
use myriad_format::inode::RawInode;
use myriad_format::log::unit;
use myriad_format::superblock::Superblock;
use myriad_format::superblock::state::{CLEAN, IN_USE};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, FsBlock, header};
use myriad_sim::rng;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn run(image: &Image, repair: bool) -> Report {
    check(image.device.clone(), None, &Options { repair, ..Options::default() }).expect("the volume can be checked")
}

fn text(findings: &[myriad_check::Finding]) -> String {
    findings.iter().take(30).map(|finding| format!("{finding}\n")).collect()
}

/// More of everything, as operations since the last sync.
fn more(b: &mut Builder) {
    let root = b.root;
    let sub = b.dir(root, b"new directory", 1, 0);
    for index in 0..40 {
        b.file(sub, format!("new file {index}").as_bytes(), index % 2, &[1 + index % 3]);
    }
    b.inline(root, b"new link", 0o120777, b"somewhere");
    b.orphan(0);
}

/// Writes one checkpoint by hand: the granules in which `new` differs from `old`, and pending frees.
fn write_checkpoint(old: &Image, new: &Image, pending: &[(FsBlock, u32)]) {
    for image in [old, new] {
        image.change_superblock(|sb| sb.state.set(IN_USE));
    }
    let granule = old.geometry.granule_size();
    let place = old.log_place();
    let log = place.start >> old.geometry.block_bits..(place.start + place.length) >> old.geometry.block_bits;
    let mut records = Vec::new();
    for block in (0..old.geometry.block_count).filter(|block| !log.contains(block)).map(FsBlock) {
        let (before, after) = (old.read(block), new.read(block));
        // Of a block that was never written before, the log has all.
        let is_new = before.iter().all(|&byte| byte == 0) && after.iter().any(|&byte| byte != 0);
        let differs = |at: &usize| is_new || before[at * granule..][..granule] != after[at * granule..][..granule];
        let granules: Vec<usize> = (0..64).filter(|at| at * granule < before.len()).filter(differs).collect();
        if !granules.is_empty() {
            records.push(Logged { block, granules, bytes: after });
        }
    }
    write_log(old, &records, pending);
}

#[test]
fn the_log_is_part_of_the_volume() {
    // A long log, for the checkpoint holds whole blocks.
    let long = [Shape { log_blocks: 150, ..SHAPE }, Shape { log_blocks: 1600, ..SMALL }];
    for shape in long.into_iter().flat_map(Shape::every_record) {
        let old = sample(shape);
        let mut pending = Vec::new();
        let new = sample_later(shape, |b| {
            more(b);
            b.pend(0, 3);
            b.pend(1, 1);
            pending.clone_from(&b.pending);
        });
        let untouched = run(&old.image, false);
        assert_eq!(untouched.finding_count, 0, "{}", text(&untouched.findings));
        write_checkpoint(&old.image, &new.image, &pending);
        let report = run(&old.image, false);
        assert_eq!(report.finding_count, 0, "{}", text(&report.findings));
        assert_eq!(report.totals.inodes, untouched.totals.inodes + 43);
        assert!(report.totals.log_blocks > 10);
        // Closed cleanly, the same log would not be replayed.
        let closed = Image { device: Arc::new(old.image.device.clone_image()), ..old.image };
        closed.change_superblock(|sb| sb.state.set(0));
        assert_eq!(run(&closed, false).totals.log_blocks, 0);

        if shape.has_table() {
            what_was_damaged_below_the_log_stays_so(&old, &new);
        }
        // Damage below the log: repair replays first, and nothing is replayed over what it wrote.
        old.image.change_inode(old.hard, |raw| raw.nlink.set(1));
        assert_ne!(run(&old.image, false).finding_count, 0);
        let report = run(&old.image, true);
        assert!(report.is_sound(), "{}", text(&report.remaining));
        assert_eq!(run(&old.image, false).finding_count, 0);
    }
}

/// A unit at home that was damaged, and of which the log has a part: what the log has does not make the rest right. Its
/// neighbours, and what the log has of them, are there.
fn what_was_damaged_below_the_log_stays_so(old: &Sample, new: &Sample) {
    let geometry = &old.image.geometry;
    let (block, slot) = geometry.locate(old.image.root).unwrap();
    let unit = slot as usize / 4 * UNIT_SIZE;
    let [before, after] = [old, new].map(|sample| sample.image.read(block)[unit..][..UNIT_SIZE].to_vec());
    assert_ne!(before, after, "the root has more links in the log");
    for repair in [false, true] {
        let image = Image { device: Arc::new(old.image.device.clone_image()), ..old.image };
        let mut bytes = image.read(block);
        // Of the unit's last inode, far from what changed.
        bytes[unit + UNIT_SIZE - 5] ^= 1;
        image.write(block, &bytes);
        let report = run(&image, repair);
        let told = report.findings.iter().any(|finding| finding.number == number::BLOCK_CRC);
        assert!(told, "{}", text(&report.findings));
        if repair {
            assert!(report.is_sound(), "{}", text(&report.remaining));
            let is_told = report.actions.iter().any(|action| action.contains("units that are lost, made empty: 1"));
            assert!(is_told, "{:?}", report.actions);
        }
    }
}

/// A unit of a linear directory was damaged at home, beside one of which the log has a change. The check made up a checksum for the whole block, and
/// found nothing wrong with it.
#[test]
fn entries_beside_those_in_the_log_stay_damaged() {
    let linear = Choices { directory: Directory::Linear, ..SHAPE.choices };
    let shape = Shape { log_blocks: 150, choices: linear, ..SHAPE };
    let old = sample(shape);
    let is_told = |report: &Report| report.findings.iter().any(|finding| finding.number == number::BLOCK_CRC);
    let block = old.image.blocks_of(BlockKind::LinearEntries, old.big.0)[0];
    // In the log, a byte behind the last entry of the first unit.
    let new = Image { device: Arc::new(old.image.device.clone_image()), ..old.image };
    let mut bytes = new.read(block);
    bytes[UNIT_SIZE - 1] ^= 1;
    header::reseal(&mut bytes, &VOLUME, block);
    new.write(block, &bytes);
    write_checkpoint(&old.image, &new, &[]);
    let report = run(&old.image, false);
    assert!(report.totals.log_blocks > 0 && report.finding_count == 0, "{}", text(&report.findings));
    // At home, one of the second.
    let mut bytes = old.image.read(block);
    bytes[2 * UNIT_SIZE - 1] ^= 1;
    old.image.write(block, &bytes);
    let report = run(&old.image, false);
    assert!(is_told(&report), "{}", text(&report.findings));
}

/// The first unit of a block was gone at home, and the log had changes of the fourth one. Replay took that for a block with a header: it gave the
/// unit no checksum, and the repair emptied it.
#[test]
fn units_keep_what_the_log_has_of_them_without_the_first_one() {
    let linear = Choices { directory: Directory::Linear, ..SHAPE.choices };
    let tables = SHAPE.with(Space::Bitmap, Inodes::Static);
    for shape in [tables, Shape { choices: linear, ..SHAPE }] {
        let old = sample(Shape { log_blocks: 150, ..shape });
        let geometry = old.image.geometry;
        // A byte that no checksum lies beside: of a time of an inode, or behind the last entry of a unit.
        let (block, unit) = match shape.has_table() {
            true => (geometry.locate(old.image.root).unwrap().0.offset_by(1), 3 * UNIT_SIZE),
            false => (old.image.blocks_of(BlockKind::LinearEntries, old.big.0)[0], 3 * UNIT_SIZE),
        };
        let ino = shape.has_table().then(|| geometry.ino(block, 3 * 4 + 1));
        let byte = match ino {
            Some(_) => unit + UnitHeader::SIZE + offset_of!(RawInode, atime),
            None => unit + UNIT_SIZE - 1,
        };
        let new = Image { device: Arc::new(old.image.device.clone_image()), ..old.image };
        let mut bytes = new.read(block);
        bytes[byte] ^= 1;
        new.write(block, &bytes);
        let atime = ino.map(|ino| new.inode(ino).atime);
        write_checkpoint(&old.image, &new, &[]);
        assert_eq!(run(&old.image, false).finding_count, 0, "the log has a change");
        let start = block.0 << geometry.block_bits;
        for (what, zeroed) in [("unreadable", 0), ("zeros", UNIT_SIZE), ("no magic", 4)] {
            let repaired = |state: u32| {
                let image = Image { device: Arc::new(old.image.device.clone_image()), ..old.image };
                image.change_superblock(|sb| sb.state.set(state));
                image.device.write(start, &vec![0; zeroed]).unwrap();
                let sector = start..start + UNIT_SIZE as u64;
                let bad = if zeroed == 0 { vec![sector] } else { Vec::new() };
                let options = Options { repair: true, ..Options::default() };
                let report = check(Worn::new(image.device.clone(), bad), None, &options).unwrap();
                assert!(report.is_sound(), "{what}: {}", text(&report.remaining));
                let totals = report.totals;
                let atime = ino.map(|ino| image.inode(ino).atime);
                ([totals.inodes, totals.entries, totals.directories], atime, report.actions)
            };
            // Closed cleanly, it has no log.
            let (without, _, _) = repaired(CLEAN);
            let (with, after, actions) = repaired(IN_USE);
            assert_eq!(with, without, "{what}: {actions:#?}");
            assert_eq!(after, atime, "{what}");
        }
    }
}

/// The superblock was damaged, and a change of it lay in the log. Repair gave what stood there a checksum before it wrote what a copy says: a power
/// cut in between left a superblock that was sound, of another volume.
#[test]
fn a_damaged_superblock_is_not_sealed_for_what_the_log_has_of_it() {
    let read_only_features = std::mem::offset_of!(Superblock, features_read_only) as u64;
    for (shape, log_blocks) in [(SHAPE, 150), (SMALL, 1600)] {
        let shape = Shape { log_blocks, ..shape };
        let old = sample(shape);
        let new = sample_later(shape, more);
        new.image.change_superblock(|sb| sb.inodes_used.set(sb.inodes_used.get() + 1));
        write_checkpoint(&old.image, &new.image, &[]);
        // Its version, its UUID, and features that nobody knows.
        for byte in [8, 48, read_only_features] {
            let damaged = old.image.device.clone_image();
            let mut bytes = [0];
            damaged.read(byte, &mut bytes).unwrap();
            damaged.write(byte, &[bytes[0] ^ 0x40]).unwrap();
            let repaired = |device: Arc<dyn BlockDevice>| {
                let options = Options { repair: true, scrub: true, threads: 1, now: 5, ..Options::default() };
                let report = check(device, None, &options).expect("the volume can be repaired");
                assert!(report.is_sound(), "{}", text(&report.remaining));
                let data_blocks = report.scrub.expect("asked for").data_blocks;
                [report.totals.entries, report.totals.directories, report.totals.inodes, data_blocks]
            };
            let whole = repaired(Arc::new(damaged.clone_image()));
            let mut cuts = 0;
            for nth in 1.. {
                let image = Arc::new(damaged.clone_image());
                let device = Arc::new(FaultDevice::new(image.clone()));
                device.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
                if check(device, None, &Options { repair: true, now: 5, threads: 1, ..Options::default() }).is_ok() {
                    break;
                }
                cuts += 1;
                assert_eq!(repaired(image), whole, "byte {byte}, write {nth}");
            }
            assert!(cuts > 20, "{cuts}");
        }
    }
}

#[test]
fn a_pending_free_that_is_taken_shows() {
    let sample = sample(SHAPE);
    let taken = sample.image.geometry.locate(sample.small).unwrap().0;
    write_checkpoint(&sample.image, &sample.image, &[(taken, 1)]);
    let report = run(&sample.image, false);
    assert!(report.findings.iter().any(|finding| finding.number == number::BLOCK_TWICE), "{}", text(&report.findings));
    let report = run(&sample.image, true);
    assert!(report.is_sound(), "{}", text(&report.remaining));
}

#[test]
fn a_log_that_cannot_be_read_is_found_and_made_anew() {
    let sample = sample(SHAPE);
    let place = sample.image.log_place();
    let unit = unit(sample.image.geometry.block_size()) as u64;
    for anchor in 0..2 {
        sample.image.device.write(place.start + anchor * unit, &[0xee; 64]).unwrap();
    }
    let report = run(&sample.image, true);
    assert!(report.findings.iter().any(|finding| finding.number == number::LOG), "{}", text(&report.findings));
    assert!(report.is_sound(), "{}", text(&report.remaining));
}

/// order=none: each sector is as of before or as of after, whichever the power cut left. Repair makes a sound volume of
/// it, and what was not touched since the last sync is all there.
#[test]
fn any_mixture_of_old_and_new_sectors_is_repaired() {
    let seeds = rng::number("MYRIAD_SEED").map_or(0..160, |seed| seed..seed + 1);
    let shapes = [SHAPE, SMALL].map(|shape| Shape { log_blocks: 0, ..shape });
    let shapes: Vec<Shape> = shapes.into_iter().flat_map(Shape::every_record).collect();
    let states: Vec<(Sample, Sample)> =
        shapes.iter().map(|&shape| (sample(shape), sample_later(shape, more))).collect();
    for seed in seeds {
        println!("seed {seed}");
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (old, new) = &states[random(states.len() as u64) as usize];
        let (first, second) = if random(2) == 0 { (old, new) } else { (new, old) };
        let image = Image { device: Arc::new(first.image.device.clone_image()), ..first.image };
        let whole_blocks = random(2) == 0;
        let step = if whole_blocks { image.geometry.block_size() } else { 512 };
        let share = 1 + random(9);
        let mut buf = vec![0; step];
        for offset in (0..image.device.size()).step_by(step) {
            if random(10) < share {
                second.image.device.read(offset, &mut buf).unwrap();
                image.device.write(offset, &buf).unwrap();
            }
        }
        let report = run(&image, true);
        assert!(report.is_sound(), "seed {seed}: {}\n{}", text(&report.remaining), report.actions.join("\n"));
        assert_eq!(run(&image, false).finding_count, 0, "seed {seed}");
        // The big directory and the files of "single" are the same in both states.
        let least = old.image.inode(old.big).size.get();
        assert_eq!(image.inode(old.big).size.get(), least, "seed {seed}: entries of the big directory were lost");
        assert_eq!(
            image.inode(old.small).fork,
            old.image.inode(old.small).fork,
            "seed {seed}: an old file lost its blocks"
        );
    }
}

/// Direct I/O asks for 4096-byte requests; blocks may be smaller.
#[test]
fn a_device_with_large_sectors_will_do() {
    let sample = sample(Shape { log_blocks: 0, ..SMALL });
    let size = sample.image.device.size();
    let device = Arc::new(MemoryDevice::with_alignment(size, 4096));
    let mut buf = vec![0; 1 << 16];
    for offset in (0..size).step_by(buf.len()) {
        sample.image.device.read(offset, &mut buf).unwrap();
        device.write(offset, &buf).unwrap();
    }
    let report = check(device.clone(), None, &Options::default()).unwrap();
    assert_eq!(report.finding_count, 0, "{}", text(&report.findings));
    let mut byte = vec![0; 4096];
    device.read(0, &mut byte).unwrap();
    byte[100] ^= 1;
    device.write(0, &byte).unwrap();
    let report = check(device, None, &Options { repair: true, ..Options::default() }).unwrap();
    assert!(report.repaired && report.is_sound(), "{}", text(&report.remaining));
}

#[test]
fn progress_rises_to_one_and_can_cancel() {
    let sample = sample(SHAPE);
    let last = std::sync::Mutex::new(0.0_f64);
    let progress = |progress: Progress| {
        let mut last = last.lock().unwrap();
        *last = last.max(progress.fraction);
        true
    };
    let options = Options { progress: Some(&progress), threads: 1, ..Options::default() };
    check(sample.image.device.clone(), None, &options).unwrap();
    assert_eq!(*last.lock().unwrap(), 1.0);
    let options = Options { progress: Some(&|_| false), ..Options::default() };
    let result = check(sample.image.device.clone(), None, &options);
    assert!(matches!(result, Err(myriad_check::CheckError::Cancelled)));
}

/// Nothing was told of a repair, and the bar went from 0 to 1 before it and once more behind it.
#[test]
fn progress_rises_through_a_repair() {
    let sample = sample(SHAPE);
    let device = &sample.image.device;
    device.write(0, &[0; 512]).unwrap();
    let told = std::sync::Mutex::new(Vec::new());
    let progress = |progress: Progress| {
        told.lock().unwrap().push((progress.phase, progress.fraction));
        true
    };
    let options = Options { repair: true, progress: Some(&progress), threads: 1, ..Options::default() };
    assert!(check(device.clone(), None, &options).unwrap().is_sound());
    let told = told.into_inner().unwrap();
    assert!(told.is_sorted_by(|one, next| one.1 <= next.1), "{told:?}");
    assert_eq!(told.last().unwrap().1, 1.0);
    for phase in ["repairing inodes", "repairing names", "repairing space"] {
        assert!(told.iter().any(|told| told.0 == phase), "{phase}: {told:?}");
    }
    assert!(told.iter().filter(|told| told.0.starts_with("repairing")).count() > 10, "{told:?}");
}

/// A repair whose second look was cancelled said that nothing was changed.
#[test]
fn cancelled_behind_a_repair_is_not_unchanged() {
    let sample = sample(SHAPE);
    let device = &sample.image.device;
    let mut block = vec![0; 4096];
    device.read(0, &mut block).unwrap();
    block[100] ^= 1;
    device.write(0, &block).unwrap();
    let is_repairing = AtomicBool::new(false);
    // The repair itself goes on to its end.
    let until_repair = |progress: Progress| {
        is_repairing.fetch_or(progress.phase.starts_with("repairing"), Relaxed);
        !is_repairing.load(Relaxed)
    };
    let options = Options { repair: true, progress: Some(&until_repair), threads: 1, ..Options::default() };
    let result = check(device.clone(), None, &options);
    assert!(matches!(result, Err(myriad_check::CheckError::Unverified)), "{result:?}");
    assert!(check(device.clone(), None, &Options::default()).unwrap().is_sound());
}
