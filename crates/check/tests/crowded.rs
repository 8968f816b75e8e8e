//! Repair where little is free: what it writes anew needs blocks, and so do the trees of the groups it takes them from.

mod common;

use common::{Builder, Image, RECORDS, SMALL, Shape};
use myriad_check::{Options, Report, check, number};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Session};
use myriad_format::btree::NodeHeader;
use myriad_format::choices::{Choices, Directory};
use myriad_format::dir_tree::{DirNodeHeader, DirTreeEntry};
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::superblock::Superblock;
use myriad_format::{BlockHeader, BlockKind, FsBlock, Ino, header};
use std::sync::Arc;
use zerocopy::IntoBytes;

const BLOCK: u64 = 512;
const GROUP_BLOCKS: u64 = 1024;

fn options(repair: bool) -> Options<'static> {
    Options { repair, threads: 1, now: 5, ..Options::default() }
}

fn volume(data_checksums: bool) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(8 * GROUP_BLOCKS * BLOCK));
    let mkfs = MkfsOptions {
        block_size: BLOCK as u32,
        ag_size: Some(GROUP_BLOCKS * BLOCK),
        log_size: Some(34 * 4096),
        data_checksums,
        seed: Some(7),
        ..MkfsOptions::default()
    };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Fs {
    let options =
        MountOptions { cache_size: 32 << 20, commit_interval_ms: 0, background: false, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).unwrap()
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut block = vec![0; BLOCK as usize];
    device.read(0, &mut block).unwrap();
    *Superblock::read(&block)
}

/// Leads one extent of a file nowhere: all of its map is written anew, while the old one is still there.
fn damage_map(device: &MemoryDevice, ino: u64) {
    let mut bytes = vec![0; BLOCK as usize];
    let geometry = superblock(device).geometry();
    let mut leaves = 0;
    for offset in (0..device.size()).step_by(BLOCK as usize) {
        device.read(offset, &mut bytes).unwrap();
        let block = BlockHeader::read(&bytes);
        let is_here = block.magic.get() == BlockKind::ExtentTree.magic() && block.address.get() == offset / BLOCK;
        if is_here && block.owner.get() == ino && NodeHeader::read(&bytes).level == 0 {
            leaves += 1;
            if leaves == 1 {
                let record = &mut bytes[NodeHeader::SIZE..][..RawExtent::SIZE];
                let extent = Extent::decode(RawExtent::read(record), &geometry, Ino(ino)).unwrap();
                let nowhere = Extent { start: FsBlock(device.size() / BLOCK), ..extent };
                record.copy_from_slice(nowhere.encode().as_bytes());
                header::seal(&mut bytes, 0);
                device.write(offset, &bytes).unwrap();
            }
        }
    }
    assert!(leaves > 9, "the tree has many nodes");
}

/// Groups in use were full, the others were not looked at: "no free block is left".
#[test]
fn a_group_not_used_yet_gives_what_is_missing() {
    for data_checksums in [false, true] {
        let device = volume(data_checksums);
        let fs = open(&device);
        let session = fs.session(Cred::root());
        let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
        let pieces = session.open("pieces", create).unwrap();
        for piece in 0..300 {
            pieces.write_at(&[7; BLOCK as usize], piece * 2 * BLOCK).unwrap();
        }
        let ino = pieces.stat().unwrap().ino;
        drop(pieces);
        fs.drop_caches().unwrap();
        assert_eq!(superblock(&device).ag_high_water.get(), 1);
        let mut crowded = None;
        for number in 0.. {
            let file = session.open(&format!("{number}"), create).unwrap();
            file.write_at(&[1; BLOCK as usize], 0).unwrap();
            drop(file);
            fs.drop_caches().unwrap();
            if superblock(&device).ag_high_water.get() > 1 {
                break;
            }
            crowded = Some(Arc::new(device.clone_image()));
        }
        drop(session);
        drop(fs);
        let device = crowded.expect("a group has room for a file");
        damage_map(&device, ino);
        let before = superblock(&device);
        assert_eq!(before.ag_high_water.get(), 1);
        let report = check(device.clone(), None, &options(true)).expect("finds room");
        assert!(report.repaired && report.remaining_count == 0, "{:?}", report.remaining);
        assert!(check(device.clone(), None, &options(false)).unwrap().is_sound());
        let after = superblock(&device);
        assert_eq!((after.inodes_used, after.ag_high_water.get()), (before.inodes_used, 2));
    }
}

/// The new tree of a directory was written beside the old one, whose blocks nobody else could have: on a full volume one wrong byte of an entry kept the
/// volume from being repaired.
#[test]
fn a_directory_tree_is_written_anew_on_a_full_volume() {
    let choices = Choices { directory: Directory::Tree, ..SMALL.choices };
    let shape = Shape { block_count: 2 * u64::from(SMALL.ag_blocks), choices, ..SMALL };
    let mut builder = Builder::new(shape);
    let root = builder.root;
    builder.gap = 0;
    let file = builder.file(root, b"file", 0, &[]);
    let directory = builder.dir(root, b"many", 1, 0);
    for number in 0..1500 {
        builder.link(directory, format!("name {number}").as_bytes(), file);
    }
    builder.lay_out_directory(directory);
    for (ag, name) in [(0, b"first"), (1, b"other")] {
        let rest = builder.file(root, name, ag, &[]);
        builder.fill_up(rest, ag, 12, ag);
    }
    let image = builder.finish();
    let whole = check(image.device.clone(), None, &options(false)).unwrap();
    assert_eq!(whole.finding_count, 0, "{:?}", whole.findings);
    let leaves = image.blocks_of(BlockKind::DirTree, directory.0);
    let leaf = leaves.into_iter().find(|&leaf| DirNodeHeader::read(&image.read(leaf)).level == 0).unwrap();
    image.change(leaf, |bytes| {
        let heap = DirNodeHeader::read(bytes).heap.get() as usize;
        DirTreeEntry::read_mut(&mut bytes[heap..]).file_type = 2;
    });
    let report = check(image.device.clone(), None, &options(true)).expect("finds room");
    assert!(report.repaired && report.remaining_count == 0, "{:?}", report.remaining);
    assert_eq!(report.totals.entries, whole.totals.entries);
}

/// A volume of two groups of this kind, so full that each group has `last` blocks left for all that is to be written anew, after `build` has put
/// something else there.
fn full(choices: Choices, last: u32, build: impl FnOnce(&mut Builder)) -> Image {
    let shape = Shape { block_count: 2 * u64::from(SMALL.ag_blocks), choices, ..SMALL };
    let mut builder = Builder::new(shape);
    builder.gap = 0;
    build(&mut builder);
    let root = builder.root;
    let large = [(0, b"first"), (1, b"other")].map(|(ag, name)| (ag, builder.file(root, name, ag, &[])));
    builder.lay_out_directory(root);
    for (ag, file) in large {
        builder.fill_up(file, ag, last, ag);
    }
    builder.finish()
}

fn add_strays(builder: &mut Builder, count: u32) {
    for number in 0..count {
        let stray = builder.inode(number % 2, 0o100644, 0);
        builder.node(stray).raw.nlink.set(1);
    }
}

fn mend(image: &Image, what: &str) -> Report {
    check(image.device.clone(), None, &options(true)).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Opens a volume for changes, and closes it.
fn use_it(device: &Arc<MemoryDevice>, change: impl FnOnce(&Session)) {
    let fs = open(device);
    change(&fs.session(Cred::root()));
    fs.close().unwrap();
}

/// A volume without room for the names of all that had none could not be repaired, and so not be changed: nobody could make room.
#[test]
fn what_there_is_no_room_to_name_waits() {
    for directory in [Directory::Indexed, Directory::Linear, Directory::Slots, Directory::Tree] {
        for (space, inodes) in RECORDS {
            let choices = Choices { directory, space, inodes, ..SMALL.choices };
            let what = format!("{directory:?}, {space:?}, {inodes:?}");
            let image = full(choices, 24, |builder| {
                let stray = builder.inode(0, 0o040755, 0);
                builder.node(stray).raw.nlink.set(2);
                builder.file(stray, b"below", 0, &[1]);
                add_strays(builder, 900);
            });
            let inodes_used = superblock_of(&image).inodes_used.get();
            let report = mend(&image, &what);
            let left = report.remaining_count;
            assert!(report.repaired && (1..=901).contains(&left), "{what}: {left} left, {:?}", report.actions);
            assert!(report.remaining.iter().all(|finding| finding.number == number::UNREFERENCED), "{what}");
            let told = format!("left {left} inodes without a name");
            assert!(report.actions.iter().any(|action| action.starts_with(&told)), "{what}: {:?}", report.actions);
            assert!(!superblock_of(&image).needs_check(false), "{what}");
            // Again, with nothing more to take.
            let report = mend(&image, &what);
            assert!((1..=left).contains(&report.remaining_count), "{what}: {:?}", report.actions);
            let made = superblock_of(&image).inodes_used.get() - inodes_used;
            assert!(made <= 1, "{what}: lost+found");
            use_it(&image.device, |session| session.unlink("first").unwrap());
            let report = mend(&image, &what);
            assert!(report.is_sound(), "{what}: {:?}, {:?}", report.remaining.first(), report.actions);
            assert!(superblock_of(&image).inodes_used.get() + 1 >= inodes_used + made, "{what}");
            use_it(&image.device, |session| {
                let count = |path| session.read_dir(path).map_or(0, Iterator::count);
                assert!(count("lost+found") + count("/") >= 901, "{what}");
            });
        }
    }
}

/// The index of lost+found was written beside the old one, of which nothing but the root is needed.
#[test]
fn an_index_that_grows_takes_the_place_of_the_old_one() {
    for (space, inodes) in RECORDS {
        let choices = Choices { space, inodes, ..SMALL.choices };
        let what = format!("{space:?}, {inodes:?}");
        let mut home = Ino(0);
        let image = full(choices, 10, |builder| {
            let body = builder.small_body();
            let root = builder.root;
            home = builder.lost_and_found(body);
            // As full as an engine makes them.
            builder.leaf_limit = 28;
            let file = builder.file(root, b"file", 0, &[]);
            for number in 0..1200 {
                builder.link(home, format!("a name, number {number}").as_bytes(), file);
            }
            builder.lay_out_directory(home);
            add_strays(builder, 1);
        });
        let (free, index) =
            (superblock_of(&image).free_blocks.get(), image.blocks_of(BlockKind::DirIndex, home.0).len());
        assert!(free < index as u64, "{free} blocks are free, the index has {index}");
        let report = mend(&image, &what);
        assert!(report.is_sound(), "{what}: {:?}, {:?}", report.remaining.first(), report.actions);
    }
}

fn superblock_of(image: &Image) -> Superblock {
    superblock(&image.device)
}
