//! One bad block of a young volume, any of them: zeros, or what the device cannot read. What was synced and has another copy,
//! or needs none, is there after `fsck -y`; and where changes are lost with the log, the report says so.

mod common;

use common::Worn;
use myriad_check::{Options, Report, check};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, RenameMode};
use myriad_format::superblock::{Superblock, leftovers};
use myriad_format::{BlockHeader, BlockKind, FsBlock, Geometry, Ino, header};
use myriad_log::{LogPlace, Reach};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: usize = 4096;
const ROUNDS: usize = 5;
const FILES: usize = 24;

struct Synced {
    path: String,
    contents: Vec<u8>,
    ino: Ino,
    /// Of the log: where its checkpoint begins and ends.
    logged: Range<u64>,
}

struct Young {
    device: Arc<MemoryDevice>,
    geometry: Geometry,
    place: LogPlace,
    files: Vec<Synced>,
    /// Where the last checkpoint that was synced begins.
    last: u64,
}

fn options() -> MountOptions {
    MountOptions { cache_size: 8 << 20, commit_interval_ms: 0, background: false, ..MountOptions::default() }
}

fn mkfs() -> MkfsOptions {
    MkfsOptions {
        block_size: BLOCK as u32,
        ag_size: Some(2 << 20),
        log_size: Some(66 * BLOCK as u64),
        seed: Some(3),
        ..MkfsOptions::default()
    }
}

fn block_of(device: &dyn BlockDevice, block: FsBlock) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    device.read(block.0 * BLOCK as u64, &mut bytes).unwrap();
    bytes
}

fn place_of(device: &Arc<MemoryDevice>) -> (LogPlace, Geometry) {
    let superblock = *Superblock::read(&block_of(&**device, FsBlock(0)));
    let place = LogPlace {
        device: device.clone(),
        start: superblock.log_start.get() * BLOCK as u64,
        length: superblock.log_blocks.get() * BLOCK as u64,
        block_size: BLOCK,
        volume: superblock.volume(),
        known_end: superblock.log_end(),
    };
    (place, superblock.geometry())
}

/// A few files, synced in several rounds, and then power loss or a clean end.
fn young(close: bool) -> Young {
    let device = Arc::new(MemoryDevice::new(6 << 20));
    Fs::format_device(device.clone(), None, &mkfs()).unwrap();
    let (place, geometry) = place_of(&device);
    let head = || myriad_log::recover(&place, Reach::End).unwrap().head.0;
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    let session = fs.session(Cred::root());
    let mut files = Vec::new();
    let mut last = 0;
    for round in 0..ROUNDS {
        let from = head();
        let directory = format!("/directory {round}");
        session.mkdir(&*directory, 0o755).unwrap();
        for file in 0..FILES {
            let path = format!("{directory}/a file with a name that is not short, number {file}");
            let contents = format!("contents {round} {file};").repeat(300).into_bytes();
            let create = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
            let handle = session.open(&*path, create).unwrap();
            handle.write_at(&contents, 0).unwrap();
            let ino = Ino(handle.stat().unwrap().ino);
            files.push(Synced { path, contents, ino, logged: from..from });
        }
        fs.sync().unwrap();
        let to = head();
        assert!(to > from);
        files.iter_mut().filter(|file| file.logged == (from..from)).for_each(|file| file.logged = from..to);
        last = myriad_log::recover(&place, Reach::End).unwrap().last.unwrap().0;
    }
    drop(session);
    let device = if close {
        fs.close().unwrap();
        device
    } else {
        Arc::new(device.clone_image())
    };
    Young { place: place_of(&device).0, device, geometry, files, last }
}

/// One file written anew and moved in each round, beside directories that come and go; then power loss. The log's ring has been
/// once around.
fn wrapped(rounds: usize) -> (Arc<MemoryDevice>, LogPlace) {
    let device = Arc::new(MemoryDevice::new(6 << 20));
    Fs::format_device(device.clone(), None, &mkfs()).unwrap();
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    let session = fs.session(Cred::root());
    let create = OpenOptions { write: true, create: true, truncate: true, mode: 0o644, ..OpenOptions::default() };
    for round in 0..rounds {
        for file in 0..4 {
            let handle = session.open(&*format!("/file {file}"), create).unwrap();
            handle.write_at(&format!("round {round}, {file};").repeat(100 + 40 * round).into_bytes(), 0).unwrap();
        }
        session.mkdir(&*format!("/directory {round}"), 0o755).unwrap();
        for name in 0..40 {
            session.open(&*format!("/directory {round}/a name that is not short, number {name}"), create).unwrap();
        }
        fs.sync().unwrap();
        if round > 0 {
            session.rename(&*format!("/directory {}", round - 1), "/directory of before", RenameMode::Replace).unwrap();
            session.remove_tree("/directory of before", &mut |_| true).unwrap();
        }
        fs.sync().unwrap();
    }
    let image = Arc::new(device.clone_image());
    let place = place_of(&image).0;
    let head = myriad_log::recover(&place, Reach::End).unwrap().head.0;
    assert!(head > place.length, "{rounds} rounds, {head} bytes: once around");
    (image, place)
}

/// What `fsck -y` leaves: paths by contents.
fn repaired(worn: Arc<Worn>, context: &str) -> (Report, BTreeMap<Vec<u8>, String>) {
    let repair = Options { repair: true, threads: 1, now: 5, ..Options::default() };
    let report = check(worn.clone(), None, &repair).unwrap_or_else(|error| panic!("{context}: {error}"));
    let lines = |findings: &[myriad_check::Finding]| findings.iter().map(|one| format!("{one}\n")).collect::<String>();
    let said = format!("{}left: {}{}", lines(&report.findings), lines(&report.remaining), report.actions.join("\n"));
    assert!(report.is_sound(), "{context}: {said}");
    let fs = Fs::open_device(worn, None, options()).unwrap_or_else(|error| panic!("{context}: {error}\n{said}"));
    let session = fs.session(Cred::root());
    let mut found = BTreeMap::new();
    for entry in session.walk("/").unwrap() {
        let entry = entry.unwrap();
        if entry.stat.is_dir() {
            continue;
        }
        let mut bytes = vec![0; entry.stat.size as usize];
        let path = format!("/{}", String::from_utf8(entry.path).unwrap());
        let handle = session.open(&*path, OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
        // File data that cannot be read is that file's loss.
        if handle.read_at(&mut bytes, 0).is_ok() {
            found.insert(bytes, path);
        }
    }
    (report, found)
}

/// What a block is, as far as what it may cost goes.
#[derive(Debug, PartialEq)]
enum What {
    Anchor,
    /// So many bytes into the ring.
    Ring(u64),
    Inodes,
    Names,
    Metadata,
    Data,
}

fn what_is(young: &Young, block: FsBlock) -> What {
    let at = block.0 * BLOCK as u64;
    if (young.place.start..young.place.start + young.place.length).contains(&at) {
        let ring = young.place.start + 2 * BLOCK as u64;
        return at.checked_sub(ring).map_or(What::Anchor, What::Ring);
    }
    let bytes = block_of(&*young.device, block);
    let header = BlockHeader::read(&bytes);
    match BlockKind::from_magic(header.magic.get()).filter(|_| header.address.get() == block.0) {
        Some(BlockKind::Inode) => What::Inodes,
        Some(BlockKind::DirEntries) => What::Names,
        Some(_) => What::Metadata,
        None => What::Data,
    }
}

fn run(close: bool) {
    let young = young(close);
    let blocks = (0..young.geometry.block_count).map(FsBlock);
    let used = blocks.filter(|&block| block_of(&*young.device, block).iter().any(|&byte| byte != 0));
    let (mut seen, mut told) = ([0; 6], 0);
    for block in used.collect::<Vec<_>>() {
        let what = what_is(&young, block);
        let kind = match what {
            What::Anchor => 0,
            What::Ring(_) => 1,
            What::Inodes => 2,
            What::Names => 3,
            What::Metadata => 4,
            What::Data => 5,
        };
        seen[kind] += 1;
        for is_zeroed in [true, false] {
            let image = Arc::new(young.device.clone_image());
            let bytes = block.0 * BLOCK as u64..(block.0 + 1) * BLOCK as u64;
            let mut bad = vec![bytes.clone()];
            if is_zeroed {
                image.write(bytes.start, &[0; BLOCK]).unwrap();
                bad.clear();
            }
            let how = if is_zeroed { "zeroed" } else { "unreadable" };
            let context = format!("closed {close}, block {block} {how}, {what:?}");
            let (report, found) = repaired(Worn::new(image, bad), &context);
            told += u64::from(report.has_lost_changes());
            let before = block_of(&*young.device, block);
            for file in &young.files {
                let hit = match what {
                    What::Ring(at) => !close && file.logged.contains(&at),
                    What::Inodes => young.geometry.locate(file.ino).unwrap().0 == block,
                    What::Data => file.contents.chunks(BLOCK).any(|part| before.starts_with(part)),
                    What::Anchor | What::Names | What::Metadata => false,
                };
                match found.get(&file.contents) {
                    None => {
                        let said = || report.findings.iter().map(|one| format!("\n{one}")).collect::<String>();
                        let done = || report.actions.join("\n");
                        assert!(
                            hit,
                            "{context}: {} is lost, {} are left{}\n{}",
                            file.path,
                            found.len(),
                            said(),
                            done()
                        );
                        // Zeros in the place of the last checkpoint look like the end of the log.
                        let is_silent = is_zeroed && matches!(what, What::Ring(at) if at >= young.last);
                        let is_log = matches!(what, What::Ring(_));
                        assert!(!is_log || is_silent || report.has_lost_changes(), "{context}: silently");
                    }
                    // Names lie in entry blocks, and the way to them in inodes.
                    Some(path) if matches!(what, What::Anchor | What::Metadata) => {
                        assert_eq!(*path, file.path, "{context}")
                    }
                    Some(_) => {}
                }
            }
        }
    }
    // Something of each kind was there, or this tests nothing.
    assert!(seen[0] == 2 && seen[1..].iter().all(|&count| count > 0), "{seen:?}");
    assert_eq!(told > 0, !close, "{told}");
}

/// mkfs wrote one of two anchors; a block that could not be read in the log made it impossible to check; and one damaged
/// checkpoint cost all the others.
#[test]
fn one_bad_block_of_a_young_volume_in_use() {
    run(false);
}

#[test]
fn one_bad_block_of_a_young_volume_that_was_closed() {
    run(true);
}

/// Both anchors are gone, one after the other or together: everything is in the ring still.
#[test]
fn without_anchors_the_ring_is_searched() {
    let young = young(false);
    for damage in [0x00, 0xee] {
        let image = Arc::new(young.device.clone_image());
        image.write(young.place.start, &[damage; 2 * BLOCK]).unwrap();
        let look = check(image.clone(), None, &Options { threads: 1, ..Options::default() }).unwrap();
        assert!(!look.is_sound() && look.log_loss.is_some_and(|loss| !loss.is_loss()), "{:?}", look.findings);
        // At the start of a machine nobody decides over it.
        let preen = Options { repair: true, leave_unreadable: true, threads: 1, ..Options::default() };
        assert!(!check(image.clone(), None, &preen).unwrap().repaired);
        let (report, found) = repaired(Worn::new(image.clone(), Vec::new()), "no anchors");
        assert!(report.repaired && !report.has_lost_changes(), "{:?}", report.log_loss);
        for file in &young.files {
            assert_eq!(found.get(&file.contents), Some(&file.path));
        }
        // And no checkpoint at all is told of as what it is.
        let image = Arc::new(young.device.clone_image());
        image.write(young.place.start, &vec![damage; young.place.length as usize]).unwrap();
        let (report, _) = repaired(Worn::new(image, Vec::new()), "no log");
        assert!(report.has_lost_changes());
    }
}

/// A repair brought all home and was cut short while it wrote zeros over the ring: the next one searched what was left, and laid
/// records of an earlier lap over newer inodes and contents.
#[test]
fn a_ring_that_is_half_zeros_is_not_searched() {
    let mut halves = 0;
    for rounds in (36..60).step_by(4) {
        let (device, place) = wrapped(rounds);
        device.write(place.start, &[0; 2 * BLOCK]).unwrap();
        let whole = repaired(Worn::new(Arc::new(device.clone_image()), Vec::new()), "whole").1;
        assert!(whole.len() >= 5, "{}", whole.len());
        for nth in 1.. {
            let image = Arc::new(device.clone_image());
            let failing = Arc::new(FaultDevice::new(Arc::clone(&image)));
            failing.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
            if check(failing, None, &Options { repair: true, threads: 1, now: 5, ..Options::default() }).is_ok() {
                break;
            }
            let ring = place.start + 2 * BLOCK as u64..place.start + place.length;
            let is_zeroed = |block: u64| block_of(&*image, FsBlock(block)).iter().all(|&byte| byte == 0);
            let zeroed = (ring.start / BLOCK as u64..ring.end / BLOCK as u64).filter(|&block| is_zeroed(block)).count();
            halves += usize::from((8..56).contains(&zeroed));
            let context = format!("{rounds} rounds, write {nth}, {zeroed} blocks of the ring are zeros");
            let (report, found) = repaired(Worn::new(image, Vec::new()), &context);
            assert!(!report.has_lost_changes(), "{context}");
            assert!(found == whole, "{context}: {:?}\ninstead of {:?}", found.values(), whole.values());
        }
    }
    assert!(halves > 10, "{halves}");
}

/// What the first of two repairs found missing, the second one still tells.
#[test]
fn a_repair_that_goes_on_tells_what_was_lost() {
    let (device, place) = wrapped(40);
    device.write(place.start, &[0; 2 * BLOCK]).unwrap();
    let middle = place.start + 50 * BLOCK as u64;
    device.write(middle, &[0xee; 4 * BLOCK]).unwrap();
    let said = |image: Arc<MemoryDevice>| {
        let report = repaired(Worn::new(image, Vec::new()), "log in parts").0;
        assert!(report.has_lost_changes());
        report.log_loss
    };
    let first = said(Arc::new(device.clone_image()));
    let image = Arc::new(device.clone_image());
    let failing = Arc::new(FaultDevice::new(Arc::clone(&image)));
    let options = Options { repair: true, threads: 1, now: 5, ..Options::default() };
    let is_marked = || myriad_log::emptied(&LogPlace { device: image.clone(), ..place.clone() }).is_some();
    for nth in (1..).take_while(|_| !is_marked()) {
        failing.clear();
        failing.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
        check(failing.clone(), None, &options).unwrap_err();
    }
    assert_eq!(said(image), first);
}

/// A part of the log that nobody needs cannot be read, far behind its tail: no repair of anything came to its end, and a volume that a check was asked of
/// stayed closed to changes.
#[test]
fn a_worn_log_that_is_not_needed_is_no_obstacle() {
    for is_asked in [false, true] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        Fs::format_device(
            device.clone(),
            None,
            &MkfsOptions { log_size: Some(8 << 20), ag_size: Some(32 << 20), ..mkfs() },
        )
        .unwrap();
        let fs = Fs::open_device(device.clone(), None, options()).unwrap();
        fs.session(Cred::root()).mkdir("/directory", 0o755).unwrap();
        fs.close().unwrap();
        let (place, _) = place_of(&device);
        let mut sector = vec![0; Superblock::SIZE];
        device.read(0, &mut sector).unwrap();
        let superblock = Superblock::read_mut(&mut sector);
        match is_asked {
            true => superblock.leftovers |= leftovers::NEEDS_CHECK,
            false => superblock.inodes_used.set(superblock.inodes_used.get() + 1),
        }
        header::seal(&mut sector, 0);
        device.write(0, &sector).unwrap();
        let at = place.start + (4 << 20);
        let bad = at..at + 512;
        let worn = Worn::new(device, vec![bad]);
        let report = repaired(worn.clone(), &format!("asked {is_asked}")).0;
        assert_eq!(report.repaired, !is_asked, "{:?}", report.findings);
        worn.read(at, &mut [0; 512]).expect("it was written");
    }
}
