//! Repair where little is free: what it writes anew needs blocks, and so do the trees of the groups it takes them from.

mod common;

use common::{Builder, SMALL, Shape};
use myriad_check::{Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions};
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
