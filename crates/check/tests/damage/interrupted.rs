//! Repairs that power failed: at any write, and with any of the writes since the last flush lost.

use crate::common::{Builder, Image, SHAPE, SMALL, Shape, chain, sample};
use crate::linear::bring_twins_together;
use crate::{LINEAR, LINEAR_SMALL, SLOTS, TREES, TREES_SMALL, cases, claims, places, remaining, shown};
use myriad_check::{Options, check};
use myriad_device::{
    BlockDevice, CrashImages, Event, FaultDevice, FaultOp, FaultSpan, MemoryDevice, OverlayDevice, RecordingDevice,
};
use myriad_engine::{Cred, Fs, MountOptions, Session};
use myriad_format::btree::NodeHeader;
use myriad_format::choices::{Inodes, Space};
use myriad_format::dir::EntryHeader;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::group::GroupHeader;
use myriad_format::inode::{BodyHeader, InodeBlockHeader, RawInode, S_IFLNK, S_IFMT};
use myriad_format::xattr::AttrHeader;
use myriad_format::{BlockKind, FsBlock, Ino, SLOT_SIZE};
use myriad_sim::threads::try_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use zerocopy::IntoBytes;

/// Entries, directories, inodes and blocks of contents after a repair.
pub fn held(device: Arc<dyn BlockDevice>) -> [u64; 4] {
    let options = Options { repair: true, scrub: true, now: 5, threads: 1, ..Options::default() };
    let report = check(device, None, &options).expect("the volume can be repaired");
    assert!(report.is_sound(), "{}", remaining(&report));
    let totals = report.totals;
    [totals.entries, totals.directories, totals.inodes, report.scrub.expect("asked for").data_blocks]
}

/// Called with what a power cut leaves, and where it was.
pub type Judge<'a> = dyn FnMut(Arc<dyn BlockDevice>, String) + 'a;

/// Damages volumes in every way there is. `cut` repairs each and loses power, over and over, and that costs nothing that a
/// whole repair would have kept. As many shapes at a time as there are processors.
fn costs_nothing(cut: impl Fn(&MemoryDevice, &mut Judge<'_>) + Sync) {
    // In the larger blocks units can be torn from each other.
    let shapes = [SHAPE, SMALL, SHAPE.with(Space::Bitmap, Inodes::Static), TREES, TREES_SMALL, LINEAR, SLOTS];
    let cuts = AtomicUsize::new(0);
    let try_shape = |_, &shape: &Shape| {
        let mut failed = Vec::new();
        for case in cases(&shape) {
            let sample = sample(shape);
            (case.damage)(&sample);
            let whole = held(Arc::new(sample.image.device.clone_image()));
            cut(&sample.image.device, &mut |image, what| {
                cuts.fetch_add(1, Ordering::Relaxed);
                let after = held(image);
                // A volume that looks whole again keeps its orphans for the engine.
                if after.iter().zip(whole).any(|(after, whole)| *after < whole) {
                    let place = format!("{} ({}), {what}", case.name, shown(&shape));
                    failed.push(format!("{place}: {after:?} instead of {whole:?}"));
                }
            });
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let failed = try_all(&shapes, threads, shapes.len(), || false, try_shape);
    let cuts = cuts.into_inner();
    assert!(failed.is_empty(), "{cuts} cuts, and of these failed\n{}", failed.join("\n"));
    assert!(cuts > 1000, "{cuts}");
}

/// Each of the first writes fails, then fewer, and all after it.
pub fn cut_each_write(device: &MemoryDevice, judge: &mut Judge<'_>) {
    for nth in (1..).map(|cut: usize| if cut <= 12 { cut } else { 12 + (cut - 12) * (cut - 12) }) {
        let image = Arc::new(device.clone_image());
        let device = Arc::new(FaultDevice::new(Arc::clone(&image)));
        device.fail(FaultOp::Write, nth as u64, FaultSpan::Forever, 5);
        let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
        if check(device, None, &options).is_ok() {
            break;
        }
        judge(image, format!("write {nth}"));
    }
}

/// What is written in place can be found again, and what is derived is durable before what it is derived from goes.
#[test]
fn a_repair_cut_short_costs_nothing() {
    costs_nothing(cut_each_write);
}

/// The magics of the blocks that were written, each once; one of a write of anything else, too.
fn kinds(events: &[Event]) -> BTreeSet<u32> {
    events.iter().map(kind).collect()
}

fn kind(event: &Event) -> u32 {
    match event {
        Event::Write { bytes, .. } => u32::from_le_bytes(bytes[..4].try_into().unwrap()),
        Event::Flush | Event::Discard { .. } => 0,
    }
}

/// Repairs, with a power cut before each flush and at the end: of what was written since the flush before, nothing is lost, all blocks of
/// one kind are, or all of the others; or every other sector is.
pub fn cut_each_flush(device: &MemoryDevice, judge: &mut Judge<'_>) {
    let base = device.clone_image();
    let recorder = Arc::new(RecordingDevice::new(device.clone_image()));
    let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
    check(recorder.clone(), None, &options).expect("the volume can be repaired");
    let images = CrashImages::new(Arc::new(base), recorder.take());
    let ends = (0..images.point_max()).filter(|&at| images.trace()[at] == Event::Flush).chain([images.point_max()]);
    for end in ends.collect::<Vec<_>>() {
        let events = &images.trace()[images.unflushed(end)];
        // What loses all is the end before; with two kinds, either alone is what the other one's loss leaves.
        let mut seen = BTreeSet::from([vec![false; events.len()]]);
        let mut keep = |arrives: &dyn Fn(&Event) -> bool, what: String| {
            let keep: Vec<bool> = events.iter().map(arrives).collect();
            if seen.insert(keep.clone()) {
                judge(Arc::new(images.subset(end, keep, None).unwrap()), format!("{what}, event {end}"));
            }
        };
        keep(&|_| true, "all".into());
        for lost in kinds(events) {
            keep(&|event| kind(event) != lost, format!("{lost:#x} lost"));
            keep(&|event| kind(event) == lost, format!("{lost:#x} alone"));
        }
        for parity in [0, 1] {
            let image = images.subset(end, [], None).unwrap();
            write_sectors(&image, events, |sector| sector % 2 == parity);
            judge(Arc::new(image), format!("only sectors that leave {parity} by 2, event {end}"));
        }
    }
}

/// Writes those sectors of the events that arrive.
fn write_sectors(image: &OverlayDevice, events: &[Event], arrives: impl Fn(u64) -> bool) {
    for event in events {
        if let Event::Write { offset, bytes } = event {
            for (at, sector) in (*offset..).step_by(512).zip(bytes.chunks(512)) {
                if arrives(at / 512) {
                    image.write(at, sector).unwrap();
                }
            }
        }
    }
}

/// As [`a_repair_cut_short_costs_nothing`], with a device that keeps what it was given in a volatile cache.
#[test]
fn what_the_cache_of_the_device_loses_costs_nothing() {
    costs_nothing(cut_each_flush);
}

/// A sound volume, for the engine to read.
pub fn open(device: Arc<dyn BlockDevice>) -> Fs {
    let options = MountOptions { read_only: true, background: false, cache_size: 32 << 20, ..MountOptions::default() };
    Fs::open_device(device, None, options).expect("a sound volume")
}

/// Every path below the root, as the engine lists it, and every attribute of each.
pub fn paths(device: Arc<dyn BlockDevice>) -> BTreeSet<String> {
    fn list_attributes(session: &Session, path: &str, paths: &mut BTreeSet<String>) {
        for name in session.list_xattr(path).expect("what has a name") {
            let value = session.get_xattr(path, &name).expect("what is listed");
            paths.insert(format!("{path} {}={}", name.escape_ascii(), value.escape_ascii()));
        }
    }
    fn list(session: &Session, directory: &str, paths: &mut BTreeSet<String>) {
        list_attributes(session, directory, paths);
        for entry in session.read_dir(directory).expect("a directory") {
            let entry = entry.expect("an entry");
            let name = String::from_utf8(entry.name.clone()).expect("an ASCII name");
            if name != "." && name != ".." {
                let path = format!("{}/{name}", directory.trim_end_matches('/'));
                let stat = session.lstat(&*path).expect("what has a name");
                if stat.is_dir() {
                    list(session, &path, paths);
                } else if stat.mode & S_IFMT != S_IFLNK {
                    list_attributes(session, &path, paths);
                }
                paths.insert(path);
            }
        }
    }
    let fs = open(device);
    let mut found = BTreeSet::new();
    list(&fs.session(Cred::root()), "/", &mut found);
    found
}

/// Builds a volume whose repair has to write a directory's names elsewhere, and wants each path to be there after each cut.
fn keeps_its_paths(shape: Shape, build: impl FnOnce(&mut Builder)) {
    let mut builder = Builder::new(shape);
    build(&mut builder);
    no_path_is_lost(&builder.finish());
}

/// Repairs the volume, which has each path after each cut.
fn no_path_is_lost(image: &Image) {
    let repaired = |device: Arc<dyn BlockDevice>| {
        let [_, _, inodes, data_blocks] = held(device.clone());
        (paths(device), inodes, data_blocks)
    };
    let (whole, inodes, blocks) = repaired(Arc::new(image.device.clone_image()));
    let mut cuts = 0;
    cut_each_flush(&image.device, &mut |cut, what| {
        cuts += 1;
        let (after, inodes_after, blocks_after) = repaired(cut);
        let lost: Vec<&String> = whole.difference(&after).collect();
        assert!(lost.is_empty(), "{what}: lost {lost:?}, left {after:?}");
        assert!(blocks_after >= blocks, "{what}: {blocks_after} blocks of data instead of {blocks}");
        assert_eq!(inodes_after, inodes, "{what}: inodes, of {after:?}");
    });
    assert!(cuts > 10, "{cuts}");
}

/// A stray needed a lost+found, for which the root's names moved from its inode into a block; the inode could arrive without
/// it, and none of them was left.
#[test]
fn names_that_move_out_of_an_inode_are_durable_first() {
    for shape in [SHAPE, SMALL] {
        keeps_its_paths(shape, |builder| {
            let root = builder.root;
            for name in ["a", "b", "c"] {
                builder.dir(root, name.as_bytes(), 0, 0);
            }
            let stray = builder.inode(0, 0o100644, 0);
            builder.node(stray).raw.nlink.set(1);
        });
    }
}

/// The blocks behind the last one that a root knows become empty once their names are elsewhere.
#[test]
fn names_from_behind_the_last_block_are_durable_first() {
    for shape in [SHAPE, SMALL] {
        no_path_is_lost(&claims::with_old_root(shape).0);
    }
}

/// An index is written over the old one where nothing else is free, but for its root, which says how many blocks of entries there are.
#[test]
fn an_index_in_the_place_of_the_old_one_costs_nothing() {
    let shape = Shape { block_count: 2 * u64::from(SMALL.ag_blocks), ..SMALL };
    keeps_its_paths(shape, |builder| {
        (builder.gap, builder.leaf_limit) = (0, 28);
        let (root, body) = (builder.root, builder.small_body());
        let home = builder.lost_and_found(body);
        let file = builder.file(root, b"file", 0, &[]);
        for number in 0..1000 {
            builder.link(home, format!("a name, number {number}").as_bytes(), file);
        }
        let stray = builder.inode(0, 0o100644, 0);
        builder.node(stray).raw.nlink.set(1);
        let large = [(0, b"first"), (1, b"other")].map(|(ag, name)| (ag, builder.file(root, name, ag, &[])));
        [home, root].into_iter().for_each(|directory| builder.lay_out_directory(directory));
        large.into_iter().for_each(|(ag, file)| builder.fill_up(file, ag, 10, ag));
    });
}

/// A body that lies in another sector than its inode was emptied by the same write that made the inode look elsewhere.
#[test]
fn a_body_keeps_its_names_until_its_inode_is_durable() {
    keeps_its_paths(SHAPE, |builder| {
        // Its inode ends a sector.
        let home = builder.lost_and_found(builder.small_body());
        assert_eq!(home.0 * SLOT_SIZE as u64 % 512, 512 - SLOT_SIZE as u64);
        builder.dir(home, b"a", 0, 0);
        builder.dir(home, b"b", 0, 0);
        let stray = builder.inode(0, 0o100644, 0);
        builder.node(stray).raw.nlink.set(1);
    });
}

/// A chain of attributes is shortened in the header of its last block, and the inode follows later. Whichever of the two arrived, the next repair
/// leaves the attributes and the mode that a whole one leaves.
#[test]
fn a_chain_of_attributes_is_shortened_once() {
    for has_acl in [false, true] {
        let (image, _, blocks) = chain(has_acl);
        image.smash(blocks[2]);
        let repaired = |device: Arc<dyn BlockDevice>| {
            let held = held(device.clone());
            let mode = open(device.clone()).session(Cred::root()).lstat("file").unwrap().mode;
            (held, mode, paths(device))
        };
        let whole = repaired(Arc::new(image.device.clone_image()));
        let left = whole.2.iter().filter(|path| path.contains(" user.")).count();
        assert!((21..30).contains(&left), "{left}");
        assert_eq!(whole.1 & 0o070, if has_acl { 0 } else { 0o070 });
        let mut cuts = 0;
        let mut judge = |cut: Arc<dyn BlockDevice>, what: String| {
            cuts += 1;
            assert_eq!(repaired(cut), whole, "{what}, {has_acl}");
        };
        cut_each_write(&image.device, &mut judge);
        cut_each_flush(&image.device, &mut judge);
        assert!(cuts > 20, "{cuts}");
    }
}

/// A name whose tag another name of its unit has goes into a new unit. It was taken out of the old one in place, before the
/// directory led to the new one: names that shared a unit and a tag were lost.
#[test]
fn a_name_that_changes_its_unit_is_durable_there_first() {
    for shape in [LINEAR, LINEAR_SMALL] {
        let sample = sample(shape);
        bring_twins_together(&sample);
        no_path_is_lost(&sample.image);
    }
}

/// Bytes each of which tells where it is.
fn varied(len: u8) -> Vec<u8> {
    (0..len).collect()
}

/// Attributes behind the names in a body moved to where the names had been: half of them, if power failed between two sectors.
#[test]
fn attributes_stay_when_names_leave_a_body() {
    let mut builder = Builder::new(SHAPE);
    let home = builder.lost_and_found(builder.small_body());
    builder.body_attributes(home, &[(b"user.a", &varied(240)), (b"user.b", &varied(170))]);
    // The last one lies at the start of a slot, and would look like an inode if the body were nobody's.
    for name in ["a", "b", "c", "d", "e", "f"] {
        builder.dir(home, name.as_bytes(), 0, 0);
    }
    let stray = builder.inode(0, 0o100644, 0);
    builder.node(stray).raw.nlink.set(1);
    let image = builder.finish();
    no_path_is_lost(&image);
    cut_each_flush(&image.device, &mut |cut, what| {
        let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
        let actions = check(cut, None, &options).unwrap().actions;
        assert!(!actions.iter().any(|action| action.contains("attribute")), "{what}: {actions:?}");
    });
}

/// What a user writes into a body may look like an inode: it was one, if the inode was gone and its body not yet.
#[test]
fn no_body_becomes_inodes() {
    keeps_its_paths(SHAPE, |builder| {
        let mut planted = RawInode::zeroed();
        planted.mode.set(0o104755);
        planted.nlink.set(1);
        let name = b"user.a";
        let mut value = vec![0; SLOT_SIZE - BodyHeader::SIZE - AttrHeader::SIZE - name.len()];
        value.extend_from_slice(planted.as_bytes());
        let root = builder.root;
        for index in 0..5 {
            builder.dir(root, format!("directory {index}").as_bytes(), 0, 0);
        }
        let gone = builder.inode(0, 0o100644, 3);
        builder.body_attributes(gone, &[(name, &value)]);
        let (_, slot) = builder.geometry.locate(gone).unwrap();
        assert_eq!(slot as usize * SLOT_SIZE / 512 % 2, 1, "it can arrive without the map of free slots");
    });
}

/// As [`attributes_stay_when_names_leave_a_body`], where the names have to be cut.
#[test]
fn attributes_stay_when_names_of_a_body_are_cut() {
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    let directory = builder.dir(root, b"directory", 0, builder.small_body());
    builder.body_attributes(directory, &[(b"user.a", &varied(250)), (b"user.b", &varied(250))]);
    for name in ["a", "b", "c"] {
        builder.dir(directory, name.as_bytes(), 0, 0);
    }
    let image = builder.finish();
    let (block, _) = image.geometry.locate(directory).unwrap();
    let first = usize::from(image.inode(directory).body_first.get()) * SLOT_SIZE + BodyHeader::SIZE;
    image.change(block, |bytes| {
        let second = first + usize::from(EntryHeader::read(&bytes[first..]).length.get());
        EntryHeader::read_mut(&mut bytes[second..]).length.set(3);
    });
    no_path_is_lost(&image);
}

/// What a file had past its end was free as soon as that was known: a tree was written there, of a map whose inode arrived,
/// and the file's did not.
#[test]
fn blocks_past_an_end_are_free_when_that_is_durable() {
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    let map = builder.file(root, b"map", 0, &[1; 40]);
    for name in ["one", "two", "three"] {
        builder.file(root, name.as_bytes(), 0, &[]);
    }
    let cut = builder.file(root, b"cut", 0, &[1, 200]);
    builder.orphans.push(cut);
    builder.node(cut).raw.size.set(1);
    let rest = builder.file(root, b"rest", 1, &[]);
    builder.gap = 0;
    builder.fill_up(rest, 0, 40, 1);
    let image = builder.finish();
    let leaf = image.blocks_of(BlockKind::ExtentTree, map.0)[0];
    // One extent leads nowhere.
    image.change(leaf, |bytes| {
        let record = &mut bytes[NodeHeader::SIZE..][..RawExtent::SIZE];
        let extent = Extent::decode(RawExtent::read(record), &image.geometry, map).unwrap();
        let nowhere = Extent { start: FsBlock(SHAPE.block_count), ..extent };
        record.copy_from_slice(nowhere.encode().as_bytes());
    });
    let sector = |ino| image.geometry.locate(ino).unwrap().1 as usize * SLOT_SIZE / 512;
    assert_ne!(sector(map) % 2, sector(cut) % 2, "one of them can arrive without the other");
    let past = Extent::decode(RawExtent::read(&image.inode(cut).fork[16..]), &image.geometry, cut).unwrap();
    let [before, uncut] = [map, cut].map(|ino| image.inode(ino).fork);
    let mut written = 0;
    cut_each_flush(&image.device, &mut |device, what| {
        let [map, cut] = [map, cut].map(|ino| inode_on(&image, &*device, ino));
        let tree = places::word(&map.fork);
        let is_past = (past.start.0..past.start.0 + u64::from(past.length)).contains(&tree);
        assert!(!is_past || cut.fork != uncut, "{what}");
        written += usize::from(map.fork != before);
    });
    assert!(written > 0, "the map was written anew");
    no_path_is_lost(&image);
}

/// Of an entry that went, the half in one sector arrived: all names behind it were cut off.
#[test]
fn a_torn_entry_takes_no_other_with_it() {
    for (entries, body) in [(30, 0), (5, 20)] {
        keeps_its_paths(SHAPE, |builder| {
            let root = builder.root;
            let twice = builder.dir(root, b"a", 0, 0);
            let directory = builder.dir(root, b"b", 0, body);
            for index in 0..entries {
                builder.link(directory, format!("one more name of a directory {index:060}").as_bytes(), twice);
                builder.file(directory, format!("file {index:020}").as_bytes(), 0, &[]);
            }
        });
    }
}

/// The lost+found that was made got its name before its inode was durable: what was deleted came back by that name.
#[test]
fn a_new_lost_and_found_is_durable_before_its_name() {
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    for index in 0..40 {
        builder.file(root, format!("file {index}").as_bytes(), 0, &[]);
    }
    let stray = builder.inode(0, 0o100644, 0);
    builder.node(stray).raw.nlink.set(1);
    let image = builder.finish();
    // The first free slot is taken by an inode that nothing names and that has no links.
    let (block, slot) = image.geometry.locate(root).unwrap();
    image.change(block, |bytes| {
        RawInode::read_mut(&mut bytes[(slot as usize + 1) * SLOT_SIZE..]).mode.set(0o100644);
        let head = InodeBlockHeader::read_mut(bytes);
        assert_eq!(head.free_mask[0] & 7, 4, "the slot after the root's is the first that is free");
        head.free_mask[0] &= !4;
        head.free_count.set(head.free_count.get() - 1);
    });
    no_path_is_lost(&image);
}

/// An inode of an image as a device has it.
pub fn inode_on(image: &Image, device: &dyn BlockDevice, ino: Ino) -> RawInode {
    let (block, slot) = image.geometry.locate(ino).unwrap();
    let mut bytes = vec![0; image.geometry.block_size()];
    device.read(block.0 << image.geometry.block_bits, &mut bytes).unwrap();
    *RawInode::read(&bytes[slot as usize * SLOT_SIZE..])
}

/// The new inode tree was written over the old one, and the header before it: what a search found in their place were also
/// inodes that are long gone, and were written later.
#[test]
fn an_inode_tree_is_there_at_any_time() {
    for shape in [SHAPE, SMALL] {
        let sample = sample(shape);
        let image = &sample.image;
        let block = places::inode_block(&sample, sample.small);
        let free = places::free_block_before(image, block);
        places::plant_inodes(image, block, free, 7 << 20);
        image.change_superblock(|superblock| superblock.inodes_used.set(1));
        let before = image.inode(sample.small).fork;
        cut_each_flush(&image.device, &mut |cut, what| {
            held(cut.clone());
            assert_eq!(inode_on(image, &*cut, sample.small).fork, before, "{what}");
        });
    }
}

/// A full group has no room for an inode tree beside the old one: what it holds is found by a search if power fails. Of the
/// old one's blocks only those are taken that are needed: too many were left over for the reserve. Where the old one's nodes
/// are full, those of the new one have to be, too.
#[test]
fn a_full_group_is_repaired() {
    // Free blocks: those of the builder's tree and its reserve, and more.
    for (files, free, quarters) in [(1000, 17, 3), (5000, 53 + 30, 3), (5000, 40, 4)] {
        let mut builder = Builder::new(SMALL);
        builder.filled_quarters = quarters;
        let root = builder.root;
        let directory = builder.dir(root, b"many", 1, 0);
        for index in 0..files {
            builder.file(directory, format!("file {index}").as_bytes(), 0, &[]);
        }
        let rest = builder.file(root, b"rest", 1, &[]);
        builder.fill_up(rest, 0, free, 1);
        builder.gap = 0;
        let image = builder.finish();
        image.change_superblock(|superblock| superblock.inodes_used.set(1));
        no_path_is_lost(&image);
    }
}

/// A full volume has no room for a new map but what the old one is to give up.
#[test]
fn a_file_is_cut_on_a_full_volume() {
    let mut builder = Builder::new(Shape { block_count: 2 * u64::from(SMALL.ag_blocks), ..SMALL });
    let root = builder.root;
    builder.gap = 0;
    let cut = builder.file(root, b"cut", 0, &[1; 900]);
    builder.orphans.push(cut);
    builder.node(cut).raw.size.set(2 * 800 * SMALL.block_size as u64);
    for (ag, name) in [(0, b"first"), (1, b"other")] {
        let rest = builder.file(root, name, ag, &[]);
        builder.fill_up(rest, ag, 12, ag);
    }
    let image = builder.finish();
    image.change_superblock(|superblock| superblock.inodes_used.set(1));
    no_path_is_lost(&image);
}

/// A tag that a repair was putting right made a name count as torn.
#[test]
fn a_tag_that_is_put_right_costs_no_name() {
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    let directory = builder.dir(root, b"b", 0, 0);
    for index in 0..60 {
        builder.file(directory, format!("file {index:020}").as_bytes(), 0, &[]);
    }
    let image = builder.finish();
    let block = image.blocks_of(BlockKind::DirEntries, directory.0)[0];
    image.change(block, |bytes| {
        let mut at = 64;
        while at < 60 * 40 {
            let head = EntryHeader::read_mut(&mut bytes[at..]);
            at += usize::from(head.length.get());
            head.tag.set(head.tag.get() ^ 1);
        }
    });
    no_path_is_lost(&image);
}

/// As [`a_full_group_is_repaired`], where free blocks are in a bitmap: it takes no block, and a group may be full to its last one. The inode tree
/// is then written over the old one.
#[test]
fn a_group_with_a_bitmap_is_repaired_though_no_block_is_free() {
    for (inodes, files, free) in [(Inodes::Dynamic, 5000, 0), (Inodes::Dynamic, 5000, 9), (Inodes::Static, 400, 0)] {
        let mut builder = Builder::new(SMALL.with(Space::Bitmap, inodes));
        let root = builder.root;
        let directory = builder.dir(root, b"many", 1, 0);
        for index in 0..files {
            builder.file(directory, format!("file {index}").as_bytes(), 0, &[]);
        }
        let rest = builder.file(root, b"rest", 1, &[]);
        // Taken last: the nodes of the inode tree, or the block of names of the root, which has no body.
        let nodes = if inodes == Inodes::Dynamic { 47 } else { 1 };
        builder.fill_up(rest, 0, free + nodes, 1);
        builder.gap = 0;
        let image = builder.finish();
        let left = GroupHeader::read(&image.read(image.header_block(0))).free_blocks.get();
        assert!((free..free + 3).contains(&left), "{left} blocks are free");
        image.change_superblock(|superblock| superblock.inodes_used.set(1));
        let whole = held(Arc::new(image.device.clone_image()));
        let mut cuts = 0;
        cut_each_flush(&image.device, &mut |cut, what| {
            cuts += 1;
            assert_eq!(held(cut), whole, "{inodes:?}, {free} free, {what}");
        });
        assert!(cuts > 10, "{cuts}");
    }
}
