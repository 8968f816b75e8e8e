//! The engine's volumes against the check, and the check's repairs against the engine.

use myriad_check::{CheckError, Options, Report, Totals, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{
    AllocateMode, Clock, Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Order, RenameMode, Session, SetAttr,
    XattrMode,
};
use myriad_format::inode::{RawInode, flag};
use myriad_format::log::{CHECKPOINT_MAGIC, CheckpointHeader};
use myriad_format::superblock::Superblock;
use myriad_format::{BlockKind, Ino, header};
use myriad_sim::rng::number;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 192 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn options() -> MountOptions {
    MountOptions {
        cache_size: 64 << 20,
        commit_interval_ms: 0,
        seed: Some(1),
        background: false,
        clock: Clock::Manual(Arc::default()),
        ..MountOptions::default()
    }
}

fn make(block_size: u32, order: Order) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let options = MkfsOptions { block_size, ag_size: Some(32 << 20), order, seed: Some(7), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &options).expect("mkfs");
    device
}

fn open(device: &Arc<MemoryDevice>) -> Fs {
    Fs::open_device(device.clone(), None, options()).expect("the volume opens")
}

fn write(session: &Session, path: &str, at: u64, bytes: &[u8]) {
    let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let file = session.open(path, options).unwrap_or_else(|error| panic!("open {path}: {error}"));
    file.write_at(bytes, at).unwrap_or_else(|error| panic!("write {path}: {error}"));
}

/// A bit of everything; refusals do not matter.
fn work(fs: &Fs, random: &mut Random, steps: u64) {
    let session = fs.session(Cred::root());
    for directory in 0..6 {
        let _ = session.mkdir(&*format!("/d{directory}"), 0o755);
    }
    for step in 0..steps {
        let directory = random.below(6);
        let name = |random: &mut Random| {
            let number = random.below(900);
            format!("/d{}/name {number}{}", random.below(6), "x".repeat(number as usize % 60))
        };
        let path = name(random);
        match random.below(16) {
            0..=5 => drop(session.create(&*path, 0o644)),
            6 | 7 => drop(session.unlink(&*path)),
            8 => drop(session.rename(&*path, &*name(random), RenameMode::Replace)),
            9 => drop(session.link(&*path, &*name(random))),
            10 => drop(session.symlink("target/".repeat(1 + random.below(40) as usize).as_bytes(), &*path)),
            11 => drop(session.mkdir(&*format!("/d{directory}/sub {}", random.below(30)), 0o755)),
            12 => drop(session.rmdir(&*format!("/d{directory}/sub {}", random.below(30)))),
            13 => {
                let value = vec![b'v'; random.below(3000) as usize];
                let _ = session.set_xattr(&*path, b"user.note", &value, XattrMode::Set);
            }
            14 => {
                let file = format!("/file {}", random.below(20));
                for _ in 0..4 {
                    let bytes = vec![step as u8; 1 + random.below(30_000) as usize];
                    write(&session, &file, random.below(40) * 50_000, &bytes);
                }
            }
            _ => drop(session.unlink(&*format!("/file {}", random.below(20)))),
        }
        if random.below(400) == 0 {
            fs.sync().expect("sync");
        }
    }
}

#[track_caller]
fn assert_silent(device: &Arc<MemoryDevice>, what: &str) -> Report {
    let report = check(device.clone(), None, &Options::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let text: Vec<String> = report.findings.iter().take(20).map(ToString::to_string).collect();
    assert!(report.finding_count == 0, "{what}: {} findings:\n{}", report.finding_count, text.join("\n"));
    report
}

/// Names under a path, and that each can be looked up and read.
fn count_names(session: &Session, path: &str) -> u64 {
    let mut names = 0;
    let entries: Vec<_> = session.read_dir(path).expect("read_dir").map(|entry| entry.expect("an entry")).collect();
    for entry in entries {
        if entry.name == b"." || entry.name == b".." {
            continue;
        }
        names += 1;
        let below =
            format!("{}/{}", path.trim_end_matches('/'), String::from_utf8(entry.name.clone()).expect("ASCII names"));
        let stat = session.lstat(&*below).unwrap_or_else(|error| panic!("stat {below}: {error}"));
        assert_eq!(stat.ino, entry.ino, "{below}");
        if stat.is_dir() {
            names += count_names(session, &below);
        } else if stat.mode & 0o170000 == 0o100000 {
            let file = session.open(&*below, OpenOptions { read: true, ..OpenOptions::default() }).expect("open");
            let mut buf = vec![0; 1 << 16];
            let _ = file.read_at(&mut buf, 0).unwrap_or_else(|error| panic!("read {below}: {error}"));
        }
    }
    names
}

fn seeds(count: u64) -> Vec<u64> {
    number("MYRIAD_SEED").map_or_else(|| (1..=count).collect(), |seed| vec![seed])
}

#[test]
fn what_the_engine_writes_is_sound() {
    for seed in seeds(3) {
        for block_size in [512, 4096, 65536] {
            for order in [Order::Log, Order::None] {
                let what = format!("seed {seed}, {block_size}-byte blocks, {order:?}");
                println!("{what}");
                let mut random = Random(seed);
                let device = make(block_size, order);
                assert_silent(&device, &format!("{what}, fresh"));
                let fs = open(&device);
                work(&fs, &mut random, 6000);
                fs.sync().expect("sync");
                let synced = Arc::new(device.clone_image());
                if order == Order::Log {
                    assert_silent(&synced, &format!("{what}, synced and cut off"));
                }
                fs.close().expect("close");
                let report = assert_silent(&device, &format!("{what}, closed"));
                assert!(report.totals.entries > 500);
            }
        }
    }
}

#[test]
fn what_repair_writes_the_engine_can_use() {
    for seed in seeds(4) {
        for block_size in [512, 4096] {
            println!("seed {seed}, {block_size}-byte blocks");
            let mut random = Random(seed);
            let device = make(block_size, Order::Log);
            let fs = open(&device);
            work(&fs, &mut random, 5000);
            fs.close().expect("close");
            for round in 0..6 {
                let image = Arc::new(device.clone_image());
                damage(&image, block_size as usize, &mut random, 1 + round);
                let report = match check(image.clone(), None, &Options { repair: true, ..Options::default() }) {
                    Ok(report) => report,
                    Err(error) => panic!("seed {seed} round {round}: {error}"),
                };
                assert!(report.is_sound(), "seed {seed} round {round}: {:?}", report.remaining.first());
                let fs = open(&image);
                let names = count_names(&fs.session(Cred::root()), "/");
                assert_eq!(names, report.totals.entries, "seed {seed} round {round}");
                work(&fs, &mut random, 1500);
                fs.close().expect("close");
                assert_silent(&image, &format!("seed {seed} round {round}, used after repair"));
            }
        }
    }
}

/// Zeroes the superblock's sector in these groups.
fn wipe_superblocks(device: &MemoryDevice, ag_size: u64, groups: impl IntoIterator<Item = u64>) {
    groups.into_iter().for_each(|ag| device.write(ag * ag_size, &[0; 512]).unwrap());
}

/// Only the copy in group 1 was looked for: with that and the original gone the volume counted as lost.
#[test]
fn any_copy_of_the_superblock_will_do() {
    for (block_size, lost) in [(512, [0, 1, 3]), (4096, [0, 1, 5]), (65536, [0, 1, 3])] {
        let device = make(block_size, Order::Log);
        let fs = open(&device);
        work(&fs, &mut Random(3), 500);
        fs.close().expect("close");
        let before = assert_silent(&device, "before").totals;
        wipe_superblocks(&device, 32 << 20, lost);
        let report =
            check(device.clone(), None, &Options { repair: true, ..Options::default() }).expect("a copy is left");
        assert!(report.is_sound(), "{:?}", report.remaining);
        // The look at the copies included.
        let after = assert_silent(&device, "repaired").totals;
        let files = |totals: Totals| [totals.inodes, totals.directories, totals.entries];
        assert_eq!(files(after), files(before), "{block_size}-byte blocks");
        let fs = open(&device);
        assert_eq!(count_names(&fs.session(Cred::root()), "/"), before.entries);
        fs.close().expect("close");
    }
}

/// A volume with smaller groups was here before, and a copy of its superblock lies before the first copy of the new one's. It
/// was taken for the new one's, since the group it lies in is still there, and the old volume was repaired over the new one.
#[test]
fn a_copy_of_an_earlier_volume_does_not_count() {
    // The first group's header lost as well: then somebody has to say which one it is.
    for sectors in [1, 16] {
        let device = Arc::new(MemoryDevice::new(SIZE));
        for ag_size in [16 << 20, 32 << 20] {
            let options = MkfsOptions { ag_size: Some(ag_size), ..MkfsOptions::default() };
            Fs::format_device(device.clone(), None, &options).expect("mkfs");
            let fs = open(&device);
            let session = fs.session(Cred::root());
            // Of the earlier one many groups are in use, of the new one only the first.
            let names = if ag_size == 16 << 20 { 40 } else { 1 };
            for number in 0..names {
                session.mkdir(&*format!("/in groups of {ag_size} {number}"), 0o755).expect("mkdir");
            }
            drop(session);
            fs.close().expect("close");
            // The clock of creations is a coarse one.
            std::thread::sleep(Duration::from_millis(30));
        }
        device.write(0, &vec![0; sectors * 512]).unwrap();
        wipe_superblocks(&device, 32 << 20, [1]);
        let repair =
            |superblock| check(device.clone(), None, &Options { repair: true, superblock, ..Options::default() });
        let mut report = repair(None);
        if sectors > 1 {
            assert!(matches!(report, Err(CheckError::Unconfirmed(_))), "{report:?}");
            report = repair(Some(3 * (32 << 20)));
        }
        let report = report.expect("copies are left");
        assert!(report.is_sound(), "{:?}", report.remaining);
        let fs = open(&device);
        fs.session(Cred::root()).lstat(&*format!("/in groups of {} 0", 32 << 20)).expect("the new volume's name");
        fs.close().expect("close");
    }
}

/// The same for a volume made anew with the same identity: what lies in the new first group, where a user's file may lie as well,
/// was taken for the copy, since that group is the volume's.
#[test]
fn a_copy_that_tells_of_other_groups_does_not_count() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    for ag_size in [16 << 20, 32 << 20] {
        let options = MkfsOptions { ag_size: Some(ag_size), seed: Some(3), ..MkfsOptions::default() };
        Fs::format_device(device.clone(), None, &options).expect("mkfs");
        let fs = open(&device);
        fs.session(Cred::root()).mkdir(&*format!("/in groups of {ag_size}"), 0o755).expect("mkdir");
        fs.close().expect("close");
    }
    wipe_superblocks(&device, 32 << 20, [0]);
    let report = check(device.clone(), None, &Options { repair: true, ..Options::default() }).expect("a copy is left");
    assert!(report.is_sound(), "{:?}", report.remaining);
    let fs = open(&device);
    assert_eq!(fs.info().ag_size, 32 << 20);
    fs.session(Cred::root()).lstat(&*format!("/in groups of {}", 32 << 20)).expect("the new volume's name");
    fs.close().expect("close");
}

/// Copies of the superblock are written when the volume is made, and do not say that it has immutable files. A repair
/// that went by a copy did not say so either, and a mount let the kernel open those files unasked.
#[test]
fn a_repair_does_not_forget_immutable_files() {
    let device = make(4096, Order::Log);
    let fs = open(&device);
    write(&fs.session(Cred::root()), "/fixed", 0, b"content");
    let fixed = SetAttr { flags: Some(flag::IMMUTABLE), ..SetAttr::default() };
    fs.session(Cred::root()).set_attr("/fixed", fixed).expect("a flag");
    fs.close().expect("close");
    assert_silent(&device, "before");
    let repaired = || {
        let report = check(device.clone(), None, &Options { repair: true, ..Options::default() }).expect("repaired");
        assert!(report.is_sound(), "{:?}", report.remaining);
        let fs = open(&device);
        assert!(fs.has_flagged());
        fs.close().expect("close");
        report
    };
    wipe_superblocks(&device, 32 << 20, [0]);
    repaired();
    // As a former repair left it: that is no damage.
    let mut block = vec![0; 4096];
    device.read(0, &mut block).unwrap();
    Superblock::read_mut(&mut block).features_compatible.set(0);
    myriad_format::header::seal(&mut block, 0);
    device.write(0, &block).unwrap();
    let report = repaired();
    assert_eq!((report.finding_count, report.damage_count), (1, 0), "{:?}", report.findings);
}

/// Breaks a few metadata blocks.
fn damage(image: &MemoryDevice, block_size: usize, random: &mut Random, count: u64) {
    let mut metadata = Vec::new();
    let mut magic = [0; 4];
    for offset in (0..image.size()).step_by(block_size) {
        image.read(offset, &mut magic).unwrap();
        if offset > 0 && BlockKind::from_magic(u32::from_le_bytes(magic)).is_some() {
            metadata.push(offset);
        }
    }
    for _ in 0..count {
        let offset =
            metadata[random.below(metadata.len() as u64) as usize] + random.below(block_size as u64 / 512) * 512;
        image.write(offset, &[0; 512]).unwrap();
    }
}

/// A damaged header in the middle of the log was taken for its end: the volume opened, over blocks that were newer.
#[test]
fn a_log_damaged_in_the_middle_is_not_opened() {
    let device = make(4096, Order::Log);
    let fs = open(&device);
    let session = fs.session(Cred::root());
    for i in 0..5 {
        session.create(&format!("/file{i}"), 0o644).unwrap();
        fs.sync().unwrap();
    }
    let cut_off = Arc::new(device.clone_image());
    let mut bytes = vec![0; 4096];
    cut_off.read(0, &mut bytes).unwrap();
    let superblock = Superblock::read(&bytes);
    let unit = myriad_format::log::unit(4096) as u64;
    let (start, units) = (superblock.log_start.get() * 4096, superblock.log_blocks.get() * 4096 / unit);
    let header = |unit_number: u64| {
        let mut bytes = vec![0; unit as usize];
        cut_off.read(start + unit_number * unit, &mut bytes).unwrap();
        let header = CheckpointHeader::read(&bytes);
        (header.magic.get() == CHECKPOINT_MAGIC).then(|| (header.lsn.get(), unit_number, bytes.clone()))
    };
    let mut headers: Vec<_> = (2..units).filter_map(header).collect();
    headers.sort();
    let opens = |damaged: usize| {
        let (_, unit_number, bytes) = &headers[headers.len() - damaged];
        let mut bytes = bytes.clone();
        bytes[33] ^= 4;
        cut_off.write(start + unit_number * unit, &bytes).unwrap();
        let image = Arc::new(cut_off.clone_image());
        bytes[33] ^= 4;
        cut_off.write(start + unit_number * unit, &bytes).unwrap();
        let report = check(image.clone(), None, &Options::default()).unwrap();
        let is_told = report.findings.iter().any(|finding| finding.number == 16);
        match Fs::open_device(image.clone(), None, options()) {
            Ok(fs) => {
                assert!(!is_told);
                Ok(fs.session(Cred::root()).stat("/file3").is_ok())
            }
            Err(error) => {
                assert!(is_told, "{error}");
                check(image.clone(), None, &Options { repair: true, ..Options::default() }).unwrap();
                assert_silent(&image, "repaired");
                open(&image).close().unwrap();
                Err(error.to_string())
            }
        }
    };
    assert_eq!(opens(1), Ok(true), "of the last one, nobody can tell");
    for damaged in 2..5 {
        assert!(opens(damaged).unwrap_err().contains("a later one follows"));
    }
}

/// All that was free in a group were single blocks. Each one that repair took for a node of the trees of free space was
/// one extent less for them, so they needed fewer nodes than were counted; what was left was more than a reserve can
/// be, and every repair failed.
#[test]
fn a_group_whose_free_blocks_are_single_ones_can_be_repaired() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    let mkfs = MkfsOptions { block_size: 512, ag_size: Some(32 << 20), seed: Some(7), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).expect("mkfs");
    let fs = open(&device);
    let session = fs.session(Cred::root());
    let file = session.open("/file", OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE }).unwrap();
    let mut size = 0;
    for part in [1 << 20, 1 << 14, 512] {
        while file.write_at(&vec![7; part], size).is_ok_and(|written| written == part) && file.sync().is_ok() {
            size += part as u64;
        }
    }
    for at in (0..size).step_by(1024) {
        file.allocate(AllocateMode::Punch, at, 512).unwrap();
    }
    drop((file, session));
    fs.close().unwrap();
    assert_eq!(superblock(&device).ag_high_water.get(), 1);
    assert_silent(&device, "before");
    let mut header = vec![0; 512];
    device.read(512, &mut header).unwrap();
    header[100] ^= 1;
    device.write(512, &header).unwrap();
    let report = check(device.clone(), None, &Options { repair: true, ..Options::default() }).expect("a repair");
    assert!(report.repaired && report.is_sound(), "{:?}", report.remaining);
    assert_silent(&device, "after");
    let fs = open(&device);
    assert_eq!(fs.session(Cred::root()).lstat("/file").unwrap().size, size);
}

/// The superblock of a volume that is closed.
fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = vec![0; Superblock::SIZE];
    device.read(0, &mut bytes).unwrap();
    *Superblock::read(&bytes)
}

/// Changes an inode of a volume that is closed, and seals its block again.
fn change_inode(device: &MemoryDevice, ino: u64, change: impl FnOnce(&mut RawInode)) {
    let superblock = superblock(device);
    let geometry = superblock.geometry();
    let (block, slot) = geometry.locate(Ino(ino)).unwrap();
    let mut bytes = vec![0; geometry.block_size()];
    device.read(block.0 << geometry.block_bits, &mut bytes).unwrap();
    change(RawInode::read_mut(&mut bytes[geometry.inode_offset(slot)..]));
    header::reseal(&mut bytes, &superblock.volume(), block);
    device.write(block.0 << geometry.block_bits, &bytes).unwrap();
}

/// Names of a directory, and what they lead to.
fn names_in(fs: &Fs, path: &str) -> BTreeMap<Vec<u8>, u64> {
    let entries = fs.session(Cred::root()).read_dir(path).unwrap().map(Result::unwrap);
    entries.filter(|entry| !entry.name.starts_with(b".")).map(|entry| (entry.name, entry.ino)).collect()
}

/// A full volume of one group with so many directories, whose names `make` makes, is repaired, and has the same names then; what was done.
fn repair_of_full_volume(directories: usize, make: impl Fn(&Session, usize, &str)) -> Vec<String> {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    let mkfs = MkfsOptions { ag_size: Some(32 << 20), seed: Some(7), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).expect("mkfs");
    let fs = open(&device);
    let session = fs.session(Cred::root());
    let directories: Vec<String> = (0..directories).map(|number| format!("/{number}")).collect();
    for (at, directory) in directories.iter().enumerate() {
        session.mkdir(directory, 0o755).unwrap();
        make(&session, at, directory);
    }
    let ino = fill(&fs);
    let before: Vec<_> = directories.iter().map(|directory| names_in(&fs, directory)).collect();
    drop(session);
    fs.close().unwrap();
    change_inode(&device, ino, |raw| raw.nlink.set(3));
    let report = check(device.clone(), None, &Options { repair: true, ..Options::default() }).expect("a repair");
    assert!(report.repaired && report.is_sound(), "{:?}", report.remaining);
    let fs = open(&device);
    let after: Vec<_> = directories.iter().map(|directory| names_in(&fs, directory)).collect();
    assert!(after == before, "{:?}", report.actions);
    report.actions
}

/// On a full volume the only free blocks that a repair saw were the old indexes of directories. It wrote the new index
/// of one over the root of another's, and then did not know how many blocks of entries that one had made.
#[test]
fn the_index_of_one_directory_is_not_written_over_the_root_of_another() {
    let actions = repair_of_full_volume(24, |session, at, directory| {
        // The last ones, which are visited last, leave the longest runs.
        for name in 0..1500 + 50 * at {
            session.create(&*format!("{directory}/a file with number {name}"), 0o644).unwrap();
        }
    });
    assert!(!actions.iter().any(|action| action.contains("is lost")), "{actions:?}");
}

/// Repair filled the leaves of new indexes to three quarters, and the engine fills them further: on a full volume there
/// was no room for the new indexes of many directories of some 200 names, and the volume could never be changed again.
#[test]
fn new_indexes_take_no_more_room_than_the_old_ones() {
    repair_of_full_volume(150, |session, _, directory| {
        session.create(&*format!("{directory}/0"), 0o644).unwrap();
        for name in 1..205 {
            session.link(&*format!("{directory}/0"), &*format!("{directory}/a file with number {name}")).unwrap();
        }
    });
}

/// Writes a file until the volume has no room; its number.
fn fill(fs: &Fs) -> u64 {
    let session = fs.session(Cred::root());
    let file = session.open("/file", OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE }).unwrap();
    let mut size = 0;
    for part in [1 << 20, 1 << 16, 4096] {
        while file.write_at(&vec![7; part], size).is_ok_and(|written| written == part) && file.sync().is_ok() {
            size += part as u64;
        }
    }
    session.lstat("/file").unwrap().ino
}
