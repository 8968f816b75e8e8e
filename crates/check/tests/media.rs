//! What a medium does to a volume: sectors that cannot be read, a log that is lost or another's.

mod common;

use common::{Builder, Image, Logged, SHAPE, SMALL, Shape, Worn, chain, sample, write_log};
use myriad_check::{CheckError, Options, Report, check};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Session, SetAttr};
use myriad_format::btree::NodeHeader;
use myriad_format::choices::{Choices, Directory};
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, EntryHeader};
use myriad_format::dir_tree::DirNodeHeader;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::inode::{BodyHeader, RawInode, flag, fork};
use myriad_format::superblock::state::IN_USE;
use myriad_format::superblock::{NO_MOUNT, Superblock};
use myriad_format::xattr::{AttrBlockHeader, AttrHeader, AttrIter};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Ino, SLOT_SIZE, header};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SIZE: u64 = 192 << 20;
const LOG_SIZE: u64 = 16 << 20;
const REPAIR: Options<'_> = Options {
    repair: true,
    scrub: false,
    accept_contents: false,
    leave_unreadable: false,
    new_log: false,
    superblock: None,
    leftovers: false,
    threads: 1,
    slots_max: 1 << 23,
    findings_max: 1000,
    progress: None,
    now: 5,
};

fn text(report: &Report) -> String {
    let lines = |findings: &[myriad_check::Finding]| -> String {
        findings.iter().take(20).map(|finding| format!("{finding}\n")).collect()
    };
    format!("{}remaining:\n{}{}", lines(&report.findings), lines(&report.remaining), report.actions.join("\n"))
}

fn options() -> MountOptions {
    MountOptions { cache_size: 32 << 20, commit_interval_ms: 0, background: false, ..MountOptions::default() }
}

/// A volume with files in several groups; closed, or as power loss leaves it.
fn volume(log: Option<&Arc<MemoryDevice>>, close: bool) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let mkfs = MkfsOptions { ag_size: Some(32 << 20), seed: Some(7), ..MkfsOptions::default() };
    let log = log.map(|log| Arc::clone(log) as Arc<dyn BlockDevice>);
    Fs::format_device(device.clone(), log.clone(), &mkfs).unwrap();
    let fs = Fs::open_device(device.clone(), log, options()).unwrap();
    let session = fs.session(Cred::root());
    for directory in 0..40 {
        session.mkdir(&format!("directory {directory}"), 0o755).unwrap();
        for file in 0..20 {
            let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
            let file = session.open(&format!("directory {directory}/{file}"), create).unwrap();
            file.write_at(&[directory as u8; 100_000], 0).unwrap();
        }
    }
    drop(session);
    if close {
        fs.close().unwrap();
        return device;
    }
    fs.drop_caches().unwrap();
    let image = Arc::new(device.clone_image());
    // As if all were home but for the superblock, which says how many groups there are.
    let mut block = vec![0; 4096];
    image.read(0, &mut block).unwrap();
    Superblock::read_mut(&mut block).ag_high_water.set(1);
    header::seal(&mut block, 0);
    image.write(0, &block).unwrap();
    image
}

fn superblock(device: &dyn BlockDevice) -> Superblock {
    let mut bytes = vec![0; Superblock::SIZE];
    device.read(0, &mut bytes).unwrap();
    *Superblock::read(&bytes)
}

/// A sector that cannot be read cost all inodes of its block, and one in block 0 the volume.
#[test]
fn an_unreadable_sector_costs_what_is_in_it() {
    let device = volume(None, true);
    let whole = check(device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap();
    assert!(whole.is_sound());
    // A block of inodes full of files: the one after the root's.
    let geometry = superblock(&*device).geometry();
    let root = geometry.locate(Ino(superblock(&*device).root_ino.get())).unwrap().0;
    let inodes = (root.0 + 1) << geometry.block_bits;
    for (bad, lost) in [(inodes + 1024, 4), (0, 0)] {
        let sector = bad..bad + 512;
        let image = Arc::new(device.clone_image());
        let worn = Worn::new(image.clone(), vec![sector]);
        // At the start of a machine nobody decides that it is lost.
        let report = check(worn.clone(), None, &Options { leave_unreadable: true, ..REPAIR }).unwrap();
        assert!(!report.repaired && report.unreadable_blocks == 1 && !report.is_sound(), "{}", text(&report));
        assert_eq!(image.counters().writes, 0);
        let report = check(worn, None, &REPAIR).unwrap();
        assert!(report.repaired && report.is_sound(), "{}", text(&report));
        let left = report.totals.inodes;
        assert!((whole.totals.inodes - lost..=whole.totals.inodes).contains(&left), "{left}: {}", text(&report));
    }
}

/// The log had one granule of a block of inodes, and of the block's other sectors one could not be read: a repair took
/// the whole block as zeros, laid the granule over them, and sealed that. Up to 31 inodes were gone.
#[test]
fn an_unreadable_sector_costs_no_more_where_the_log_has_a_part_of_the_block() {
    let device = volume(None, true);
    let whole = check(device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap();
    let geometry = superblock(&*device).geometry();
    let root = geometry.locate(Ino(superblock(&*device).root_ino.get())).unwrap().0;
    let block = FsBlock(root.0 + 1);
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    let session = fs.session(Cred::root());
    // The first slots of the block are in another sector than the one that will be unreadable.
    let paths = (0..40).flat_map(|directory| (0..20).map(move |file| format!("directory {directory}/{file}")));
    let is_before = |path: &String| {
        let (at, slot) = geometry.locate(Ino(session.lstat(path.as_str()).unwrap().ino)).unwrap();
        at == block && geometry.inode_offset(slot) < 1024
    };
    let path = paths.into_iter().find(is_before).expect("a file in the first sectors of the block");
    session.set_attr(path.as_str(), SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    fs.sync().unwrap();
    let image = Arc::new(device.clone_image());
    let at = (block.0 << geometry.block_bits) + 1024;
    let sector = at..at + 512;
    let worn = Worn::new(image.clone(), vec![sector]);
    let report = check(worn, None, &REPAIR).unwrap();
    assert!(report.repaired && report.is_sound(), "{}", text(&report));
    let left = report.totals.inodes;
    assert!((whole.totals.inodes - 4..=whole.totals.inodes).contains(&left), "{left}: {}", text(&report));
    let fs = Fs::open_device(image, None, options()).unwrap();
    assert_eq!(fs.session(Cred::root()).lstat(path.as_str()).unwrap().mode & 0o777, 0o640);
}

/// A repair that was cut short had said that only a repair may open the volume. The next one laid the log's superblock over that before it said so
/// anew; if it was cut short in between, the volume opened, and what the first repair had filled with zeros counted as sound.
#[test]
fn a_volume_under_repair_stays_so() {
    let device = volume(None, true);
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    // What changes the superblock, too.
    fs.session(Cred::root()).mkdir("new", 0o755).unwrap();
    fs.sync().unwrap();
    let geometry = superblock(&*device).geometry();
    let root = geometry.locate(Ino(superblock(&*device).root_ino.get())).unwrap().0;
    let at = ((root.0 + 1) << geometry.block_bits) + 1024;
    let sector = at..at + 512;
    let cut = |image: &Arc<MemoryDevice>, nth: u64| {
        let faulty = Arc::new(FaultDevice::new(Worn::new(image.clone(), vec![sector.clone()])));
        faulty.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
        check(faulty, None, &REPAIR).is_err()
    };
    let is_under_repair = |image: &MemoryDevice| superblock(image).mount_nonce.get() == NO_MOUNT;
    let mut tried = 0;
    for first in (1..).map(|cut: u64| if cut <= 20 { cut } else { 20 + (cut - 20) * (cut - 20) }) {
        let image = Arc::new(device.clone_image());
        if !cut(&image, first) {
            break;
        }
        if !is_under_repair(&image) {
            continue;
        }
        for second in 1..6 {
            let again = Arc::new(image.clone_image());
            let is_cut = cut(&again, second);
            assert!(!is_cut || is_under_repair(&again), "cut at write {first}, and then at write {second}");
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried}");
}

/// One sector of an entry block that could not be read cost the names of the whole block; and where its bytes were
/// zeros, all names behind them.
#[test]
fn an_unreadable_sector_of_a_directory_costs_the_names_in_it() {
    let device = volume(None, true);
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    let session = fs.session(Cred::root());
    session.mkdir("many", 0o755).unwrap();
    for file in 0..300 {
        session.create(format!("many/a file with number {file}").as_str(), 0o644).unwrap();
    }
    let many = session.lstat("many").unwrap().ino;
    let names = |session: &Session, path: &str| -> BTreeMap<Vec<u8>, u64> {
        let entries = session.read_dir(path).unwrap().map(Result::unwrap);
        entries.filter(|entry| !entry.name.starts_with(b".")).map(|entry| (entry.name, entry.ino)).collect()
    };
    let before = names(&session, "many");
    drop(session);
    fs.close().unwrap();
    let superblock = superblock(&*device);
    let (geometry, volume) = (superblock.geometry(), superblock.volume());
    let mut bytes = vec![0; 4096];
    let is_entries = |bytes: &mut Vec<u8>, block: FsBlock| {
        device.read(block.0 << geometry.block_bits, bytes).unwrap();
        header::verify(bytes, BlockKind::DirEntries, &volume, block).is_ok()
            && header::verify_owner(bytes, block, many).is_ok()
    };
    let block = (0..geometry.block_count).map(FsBlock).find(|&block| is_entries(&mut bytes, block)).unwrap();
    let bad = 1024..1536;
    let mut at_risk = BTreeSet::new();
    let mut at = ENTRIES_OFFSET;
    while at < EntryBlockHeader::read(&bytes).tail.get() as usize {
        let head = EntryHeader::read(&bytes[at..]);
        let length = usize::from(head.length.get());
        if at < bad.end && at + length > bad.start {
            at_risk.insert(bytes[at + EntryHeader::SIZE..][..usize::from(head.name_len)].to_vec());
        }
        at += length;
    }
    assert!((5..30).contains(&at_risk.len()), "{}", at_risk.len());
    let offset = block.0 << geometry.block_bits;
    for damage in ["unreadable", "zeros"] {
        let image = Arc::new(device.clone_image());
        let mut worn = Worn::new(image.clone(), Vec::new());
        if damage == "zeros" {
            image.write(offset + bad.start as u64, &[0; 512]).unwrap();
        } else {
            let sector = offset + bad.start as u64..offset + bad.end as u64;
            worn = Worn::new(image.clone(), vec![sector]);
        }
        let report = check(worn, None, &REPAIR).unwrap();
        assert!(report.repaired && report.is_sound(), "{damage}: {}", text(&report));
        let fs = Fs::open_device(image, None, options()).unwrap();
        let session = fs.session(Cred::root());
        let after = names(&session, "many");
        let moved: BTreeSet<Vec<u8>> = before.keys().filter(|name| !after.contains_key(*name)).cloned().collect();
        assert!(moved.is_subset(&at_risk), "{damage}: {} names moved: {}", moved.len(), text(&report));
        assert!(after.iter().all(|(name, ino)| before.get(name) == Some(ino)), "{damage}");
        let found: BTreeSet<u64> = names(&session, "lost+found").into_values().collect();
        assert!(moved.iter().all(|name| found.contains(&before[name])), "{damage}");
    }
}

/// Another volume's device, or any, was named as the one of the log: repair began by filling it with zeros.
#[test]
fn a_device_that_holds_no_log_of_ours_is_left_alone() {
    let log = Arc::new(MemoryDevice::new(LOG_SIZE));
    let device = volume(Some(&log), false);
    let other = Arc::new(MemoryDevice::new(LOG_SIZE));
    other.write(0, &[7; 1 << 16]).unwrap();
    let refused = check(device.clone(), Some(other.clone()), &REPAIR);
    assert!(matches!(refused, Err(CheckError::ForeignLog)), "{refused:?}");
    let mut bytes = vec![0; 1 << 16];
    other.read(0, &mut bytes).unwrap();
    assert!(bytes == [7; 1 << 16]);
    let image = Arc::new(device.clone_image());
    let report = check(image.clone(), Some(other), &Options { new_log: true, ..REPAIR }).unwrap();
    assert!(report.repaired && report.is_sound(), "{}", text(&report));
    let report = check(device, Some(log), &REPAIR).unwrap();
    assert!(!report.repaired && report.is_sound(), "{}", text(&report));
}

/// How many groups there are only the log had said: without it, those that the superblock at home did not know of were
/// taken for never used, with all inodes in them; and so were those behind one whose header was damaged.
#[test]
fn groups_are_found_though_nothing_says_how_many_there_are() {
    for damage in ["log", "log and a group header"] {
        let device = volume(None, false);
        let superblock = superblock(&*device);
        let geometry = superblock.geometry();
        let before = check(volume(None, true), None, &Options { repair: false, ..REPAIR }).unwrap();
        assert!(before.is_sound() && before.totals.inodes > 800, "{}", text(&before));
        let anchors = superblock.log_start.get() << geometry.block_bits;
        device.write(anchors, &[0xee; 1 << 14]).unwrap();
        if damage != "log" {
            let header = geometry.fs_block(AgNo(2), AgBlock(1));
            device.write((header.0 << geometry.block_bits) + 512, &[0xee; 64]).unwrap();
        }
        let report = check(device, None, &REPAIR).unwrap();
        assert!(report.repaired && report.is_sound(), "{damage}: {}", text(&report));
        assert_eq!(report.totals.inodes, before.totals.inodes, "{damage}: {}", text(&report));
        assert_eq!(report.totals.entries, before.totals.entries, "{damage}: {}", text(&report));
    }
}

/// Repairs a volume, some sectors of which cannot be read, each given by its first byte.
fn repaired(image: &Image, sectors: &[u64]) -> Report {
    let worn = Worn::new(image.device.clone(), sectors.iter().map(|&at| at..at + 512).collect());
    let report = check(worn, None, &REPAIR).unwrap();
    assert!(report.repaired && report.is_sound(), "{}", text(&report));
    report
}

/// The first byte of a block.
fn start_of(image: &Image, block: FsBlock) -> u64 {
    block.0 << image.geometry.block_bits
}

/// How a crash left a block of which a sector cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    /// There was none.
    No,
    /// The log has a part of it, and home is as before.
    Before,
    /// The log has a part of it that did not come home whole.
    Torn,
}

/// Lets the log of an image have the granules that these bytes lie in.
fn crash(image: &Image, how: Crash, bytes: &[u64]) {
    if how == Crash::No {
        return;
    }
    image.change_superblock(|sb| sb.state.set(IN_USE));
    let granule = image.geometry.granule_size();
    let mut records: Vec<Logged> = Vec::new();
    for &at in bytes {
        let block = FsBlock(at >> image.geometry.block_bits);
        let number = (at - start_of(image, block)) as usize / granule;
        records.push(Logged { block, granules: vec![number], bytes: image.read(block) });
        if how == Crash::Torn {
            let first = start_of(image, block) + (number * granule) as u64;
            image.device.write(first, &vec![0xee; granule]).unwrap();
        }
    }
    records.sort_by_key(|record| record.block);
    write_log(image, &records, &[]);
}

const CRASHES: [Crash; 3] = [Crash::No, Crash::Before, Crash::Torn];

/// One sector of a node could not be read, and all that the node led to was lost. Where the log had a part of the node,
/// too, a repair made the sector readable before it looked, and all was lost again.
#[test]
fn an_unreadable_sector_of_a_node_costs_the_extents_in_it() {
    let mut b = Builder::new(SHAPE);
    let root = b.root;
    let file = b.file(root, b"file", 0, &[1; 100]);
    let image = b.finish();
    let leaf = start_of(&image, image.blocks_of(BlockKind::ExtentTree, file.0)[0]);
    // Behind the last extent, and where 32 of them are; and what the log has of the node: its header, a part of the
    // sector with four extents.
    for (sector, logged, lost) in [(3584, 0, 0), (1024, 0, 32), (3584, 3648, 0), (1024, 1088, 28)] {
        for how in CRASHES {
            let image = Image { device: Arc::new(image.device.clone_image()), ..image };
            crash(&image, how, &[leaf + logged]);
            let report = repaired(&image, &[leaf + sector]);
            let lost = if how == Crash::No && lost > 0 { 32 } else { lost };
            assert_eq!(image.inode(file).block_total(), 101 - lost, "{sector}, {logged}, {how:?}: {}", text(&report));
        }
    }
}

/// A sector of a group's header or of its inode tree could not be read, nothing in it was in use, and the group was
/// searched for inodes: that brings back what was removed.
#[test]
fn an_unreadable_sector_of_an_inode_tree_is_no_reason_to_search() {
    for how in CRASHES {
        let image = sample(SHAPE).image;
        let places = [image.blocks_of(BlockKind::InodeTree, 0)[0], image.header_block(0)];
        let places = places.map(|block| start_of(&image, block));
        crash(&image, how, &places);
        let report = repaired(&image, &places.map(|place| place + 3584));
        assert!(!report.actions.iter().any(|action| action.contains("searched")), "{how:?}: {}", text(&report));
    }
}

/// As [`an_unreadable_sector_of_an_inode_tree_is_no_reason_to_search`], where that sector held what is not in use any more.
#[test]
fn what_is_behind_the_records_of_a_node_is_not_missed() {
    let image = sample(SHAPE).image;
    let tree = image.blocks_of(BlockKind::InodeTree, 0)[0];
    image.change(tree, |bytes| bytes[3700] = 1);
    let report = repaired(&image, &[start_of(&image, tree) + 3584]);
    assert!(!report.actions.iter().any(|action| action.contains("searched")), "{}", text(&report));
}

/// As [`an_unreadable_sector_of_a_directory_costs_the_names_in_it`], of a tree.
#[test]
fn an_unreadable_sector_of_a_directory_tree_costs_the_names_in_it() {
    let choices = Choices { directory: Directory::Tree, ..SHAPE.choices };
    let sample = sample(Shape { choices, ..SHAPE });
    let image = &sample.image;
    let before = check(image.device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap().totals.entries;
    let leaves = image.blocks_of(BlockKind::DirTree, sample.big.0);
    let leaf = leaves.into_iter().find(|&leaf| DirNodeHeader::read(&image.read(leaf)).level == 0).unwrap();
    let report = repaired(image, &[start_of(image, leaf) + 2560]);
    let lost = before - report.totals.entries;
    assert!((1..40).contains(&lost), "{lost}: {}", text(&report));
}

/// Half of a directory's map was lost. More blocks than a bound would have had to be filled in, and so the names in all
/// other blocks were given up.
#[test]
fn names_behind_a_large_hole_stay() {
    let mut b = Builder::new(Shape { ag_blocks: 8192, region_blocks: 8192, block_count: 2 * 8192, ..SMALL });
    let root = b.root;
    let file = b.file(root, b"file", 0, &[]);
    let directory = b.dir(root, b"directory", 1, 0);
    for number in 0..4800 {
        b.link(directory, format!("{number:0200}").as_bytes(), file);
    }
    let image = b.finish();
    let record = |bytes: &[u8]| Extent::decode(RawExtent::read(&bytes[64..]), &image.geometry, directory).unwrap();
    for node in image.blocks_of(BlockKind::ExtentTree, directory.0) {
        let bytes = image.read(node);
        if NodeHeader::read(&bytes).level.get() == 0 && record(&bytes).file_block.0 < 1100 {
            image.smash(node);
        }
    }
    let report = repaired(&image, &[]);
    assert!((2300..2700).contains(&report.totals.entries), "{}: {}", report.totals.entries, text(&report));
}

/// A link or a file, whose attributes or target reach into a second sector.
fn long_body(what: &str) -> (Image, Ino) {
    let contents = [b'c'; 600];
    let mut b = Builder::new(SHAPE);
    let root = b.root;
    let ino = match what {
        "link" => b.inline(root, b"link", 0o120777, &contents),
        _ => {
            let file = b.inode(0, 0o100644, 6);
            b.link(root, b"file", file);
            let second = if what == "acl" { &b"system.posix_acl_access"[..] } else { b"user.b" };
            b.body_attributes(file, &[(b"user.a", b"1"), (second, &contents)]);
            file
        }
    };
    let mode = &mut b.node(ino).raw.mode;
    mode.set(mode.get() | 0o070);
    (b.finish(), ino)
}

/// Where the last sector begins that has any of the body of an inode.
fn end_of_body(image: &Image, ino: Ino) -> u64 {
    let raw = image.inode(ino);
    let (block, _) = image.geometry.locate(ino).unwrap();
    let end = (u64::from(raw.body_first.get()) + u64::from(raw.body_slots)) * SLOT_SIZE as u64;
    start_of(image, block) + (end - 1) / 512 * 512
}

/// The names of the attributes in the body of an inode.
fn names_in_body(image: &Image, ino: Ino) -> Vec<Vec<u8>> {
    let bytes = image.read(image.geometry.locate(ino).unwrap().0);
    let body = &bytes[usize::from(image.inode(ino).body_first.get()) * SLOT_SIZE..];
    let (data, attributes) = (BodyHeader::read(body).data_len.get(), BodyHeader::read(body).attr_len.get());
    let list = &body[BodyHeader::SIZE..][usize::from(data)..][..usize::from(attributes)];
    AttrIter::new(list).map(|attribute| attribute.unwrap().0.to_vec()).collect()
}

/// The volume of [`long_body`], whose last sector could not be read, was repaired: what reached into that is gone, and nothing else.
fn lost_its_end(what: &str, image: &Image, ino: Ino) {
    let report = check(image.device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap();
    assert_eq!(report.finding_count, 0, "{what}: {}", text(&report));
    // With the root.
    assert_eq!(report.totals.inodes, if what == "link" { 1 } else { 2 }, "{what}");
    if what != "link" {
        assert_eq!(names_in_body(image, ino), [b"user.a"], "{what}");
        assert_eq!(image.inode(ino).mode.get() & 0o070, if what == "acl" { 0 } else { 0o070 });
    }
}

/// Zeros that stood for a sector that could not be read were taken for a part of a link's target, and of an attribute's
/// value. The same happened where the log had a part of the block: a repair wrote the zeros home before it looked.
#[test]
fn zeros_for_what_cannot_be_read_are_no_contents() {
    for (what, how) in ["link", "attribute", "acl"].into_iter().flat_map(|what| CRASHES.map(|how| (what, how))) {
        // The header of the block, or a part of the very sector.
        for is_near in [false, true] {
            let (image, ino) = long_body(what);
            let whole = check(image.device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap();
            assert_eq!((whole.finding_count, whole.totals.inodes), (0, 2), "{}", text(&whole));
            let sector = end_of_body(&image, ino);
            let block = start_of(&image, image.geometry.locate(ino).unwrap().0);
            crash(&image, how, &[if is_near { sector + 64 } else { block }]);
            repaired(&image, &[sector]);
            lost_its_end(what, &image, ino);
        }
    }
}

/// As [`zeros_for_what_cannot_be_read_are_no_contents`], with power lost at each write of the repair: a sector of which
/// the log has nothing is not written before all of its block is right.
#[test]
fn what_cannot_be_read_is_no_contents_for_the_next_repair() {
    for what in ["link", "attribute", "acl"] {
        let (image, ino) = long_body(what);
        let sector = end_of_body(&image, ino);
        crash(&image, Crash::Torn, &[start_of(&image, image.geometry.locate(ino).unwrap().0)]);
        let mut cuts = 0;
        for nth in 1.. {
            let image = Image { device: Arc::new(image.device.clone_image()), ..image };
            let bad = sector..sector + 512;
            let worn = Worn::new(image.device.clone(), vec![bad]);
            let device = Arc::new(FaultDevice::new(worn.clone()));
            device.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
            if check(device, None, &REPAIR).is_ok() {
                break;
            }
            cuts += 1;
            let report = check(worn, None, &REPAIR).unwrap();
            assert!(report.is_sound(), "{what}, write {nth}: {}", text(&report));
            lost_its_end(what, &image, ino);
        }
        assert!(cuts > 10, "{cuts}");
    }
}

/// The log had a part of a sector that could not be read. Power was lost when a repair had written zeros for the rest.
/// The next repair made the checksum of the block right over the zeros. An opening would have done the same, and
/// nothing kept the volume from being opened.
#[test]
fn a_block_with_a_part_that_is_lost_stays_torn() {
    let (image, ino) = long_body("link");
    let sector = end_of_body(&image, ino);
    crash(&image, Crash::Torn, &[sector + 64]);
    image.change_superblock(|sb| sb.mount_nonce.set(7));
    let mut is_written = false;
    for nth in 1.. {
        let bad = sector..sector + 512;
        let worn = Worn::new(Arc::new(image.device.clone_image()), vec![bad]);
        let device = Arc::new(FaultDevice::new(worn.clone()));
        device.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
        assert!(check(device, None, &REPAIR).is_err());
        is_written = worn.read(sector, &mut [0; 512]).is_ok();
        if is_written {
            assert!(superblock(&*worn).needs_check(true), "write {nth}");
            let report = check(worn, None, &REPAIR).unwrap();
            assert!(report.is_sound(), "{}", text(&report));
            assert!(report.actions.iter().any(|action| action.contains("was torn")), "{}", text(&report));
            break;
        }
    }
    assert!(is_written);
}

/// Half of an inode was in the log, and the other half in a sector that could not be read: what a repair made of that
/// had the mode of a file and the contents of none.
#[test]
fn half_an_inode_is_none() {
    let (image, ino) = long_body("attribute");
    let (block, slot) = image.geometry.locate(ino).unwrap();
    let at = start_of(&image, block) + image.geometry.inode_offset(slot) as u64;
    // In the block's other sectors is nothing but the end of the body.
    crash(&image, Crash::Torn, &[at]);
    let report = repaired(&image, &[at / 512 * 512]);
    assert!(report.actions.iter().any(|action| action.contains("a part of it cannot be read")), "{}", text(&report));
}

/// Gives a new inode of group 0, the last of its sector, a name.
fn last_of_a_sector(b: &mut Builder, name: &[u8], mode: u16) -> Ino {
    let root = b.root;
    let last = 512 / SLOT_SIZE as u32 - 1;
    while b.geometry.locate(b.nodes.last_key_value().unwrap().1.ino).unwrap().1 % (last + 1) != last - 1 {
        let number = b.nodes.len();
        b.file(root, format!("file {number}").as_bytes(), 0, &[]);
    }
    let ino = b.inode(0, mode, 6);
    b.link(root, name, ino);
    assert_eq!(b.geometry.locate(ino).unwrap().1 % (last + 1), last);
    ino
}

/// The header of a body could not be read, and a link went that had nothing but attributes there: its target was in the inode.
#[test]
fn a_short_link_does_not_need_its_body() {
    let target = b"a short target";
    let mut b = Builder::new(SHAPE);
    let link = last_of_a_sector(&mut b, b"link", 0o120777);
    b.body_attributes(link, &[(b"trusted.a", &[b'v'; 300])]);
    let raw = &mut b.node(link).raw;
    raw.fork[..target.len()].copy_from_slice(target);
    raw.set_fork(fork::SHORT_LINK, 0);
    raw.size.set(target.len() as u64);
    let image = b.finish();
    let whole = check(image.device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap();
    assert_eq!(whole.finding_count, 0, "{}", text(&whole));
    let (block, _) = image.geometry.locate(link).unwrap();
    let body = start_of(&image, block) + u64::from(image.inode(link).body_first.get()) * SLOT_SIZE as u64;
    let report = repaired(&image, &[body]);
    assert_eq!(report.totals.inodes, whole.totals.inodes, "{}", text(&report));
    assert!(!image.inode(link).has_flag(flag::ATTR_BODY));
    let fs = Fs::open_device(image.device.clone(), None, options()).unwrap();
    assert_eq!(fs.session(Cred::root()).readlink("link").unwrap(), target);
}

/// The mask of an ACL became the rights of the owning group where the ACL was lost with the body, or with the end of a
/// list that cannot be parsed. It is still the mask if the ACL is in a block.
#[test]
fn the_mask_of_a_lost_acl_is_no_right() {
    let plain: (&[u8], &[u8]) = (b"user.a", b"1");
    let acl: (&[u8], &[u8]) = (b"system.posix_acl_access", b"acl");
    for damage in ["no body", "half a list", "half a list, and an ACL in a block"] {
        let mut b = Builder::new(SHAPE);
        let root = b.root;
        let file = b.inode(0, 0o100674, 6);
        b.link(root, b"file", file);
        let in_block = damage.contains("block");
        let attributes = [plain, acl];
        b.body_attributes(file, if in_block { &attributes[..1] } else { &attributes });
        if in_block {
            b.chain_attributes(file, &[acl]);
        }
        let image = b.finish();
        let whole = check(image.device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap();
        // No engine writes both; here the body's list is lost, and the other one is all that there is.
        assert_eq!(whole.finding_count, u64::from(in_block), "{damage}: {}", text(&whole));
        if damage == "no body" {
            // It reaches out of the block.
            image.change_inode(file, |raw| raw.body_first.set(30));
        } else {
            let (block, _) = image.geometry.locate(file).unwrap();
            let list = usize::from(image.inode(file).body_first.get()) * SLOT_SIZE + BodyHeader::SIZE;
            // No name is that short.
            image.change(block, |bytes| AttrHeader::read_mut(&mut bytes[list..]).name_len = 0);
        }
        let report = repaired(&image, &[]);
        let raw = image.inode(file);
        assert_eq!(raw.has_flag(flag::HAS_ACL), in_block, "{damage}: {}", text(&report));
        assert_eq!(raw.mode.get() & 0o070, if in_block { 0o070 } else { 0 }, "{damage}: {}", text(&report));
    }
}

/// Only the first sector of an index's root says how many entry blocks the directory has made. Another sector of it
/// could not be read, and the blocks mapped ahead were taken for lost ones.
#[test]
fn a_damaged_root_of_an_index_still_says_how_many_blocks_there_are() {
    let device = volume(None, true);
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    let session = fs.session(Cred::root());
    session.mkdir("many", 0o755).unwrap();
    session.create("many/first", 0o644).unwrap();
    for file in 0..3300 {
        session.link("many/first", &*format!("many/another name, with number {file}")).unwrap();
    }
    let many = session.lstat("many").unwrap().ino;
    drop(session);
    fs.close().unwrap();
    let geometry = superblock(&*device).geometry();
    let (block, slot) = geometry.locate(Ino(many)).unwrap();
    let mut bytes = vec![0; 4096];
    device.read(block.0 << geometry.block_bits, &mut bytes).unwrap();
    let root = RawInode::read(&bytes[geometry.inode_offset(slot)..]).index_root().unwrap();
    let at = root.0 << geometry.block_bits;
    for is_readable in [false, true] {
        let image = Arc::new(device.clone_image());
        let bad = at + 3584..at + 4096;
        let worn = if is_readable {
            image.write(at + 4000, &[0xee]).unwrap();
            Worn::new(image, Vec::new())
        } else {
            Worn::new(image, vec![bad])
        };
        let report = check(worn, None, &REPAIR).unwrap();
        assert!(report.repaired && report.is_sound(), "{}", text(&report));
        assert!(!report.actions.iter().any(|action| action.contains("is lost")), "{}", text(&report));
    }
}

/// One damaged block of a chain of attributes cost all of them. Where an ACL may be among those that are lost, its mask
/// does not become the rights of the owning group.
#[test]
fn a_damaged_block_of_attributes_costs_those_behind_it() {
    for has_acl in [false, true] {
        let (image, file, blocks) = chain(has_acl);
        let whole = check(image.device.clone(), None, &Options { repair: false, ..REPAIR }).unwrap();
        assert_eq!(whole.finding_count, 0, "{}", text(&whole));
        image.smash(blocks[2]);
        repaired(&image, &[]);
        let raw = image.inode(file);
        assert_eq!(raw.attribute_root().map(|root| (root.block, root.count)), Some((blocks[0], 2)));
        let mut list = Vec::new();
        for &block in &blocks[..2] {
            let bytes = image.read(block);
            let length = AttrBlockHeader::read(&bytes).length.get() as usize;
            list.extend_from_slice(&bytes[AttrBlockHeader::SIZE..][..length]);
        }
        let left: Vec<&[u8]> = AttrIter::new(&list).map(|attribute| attribute.unwrap().0).collect();
        assert!(
            left.len() > 20
                && left.iter().enumerate().all(|(number, left)| *left == format!("user.{number}").as_bytes())
        );
        assert_eq!(raw.mode.get() & 0o070, if has_acl { 0 } else { 0o070 });
    }
}
