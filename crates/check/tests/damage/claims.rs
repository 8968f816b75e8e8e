//! Inodes and roots that are older than what they name, as an order without a log or a lost one leaves them. Blocks
//! that have become somebody else's are that one's to keep.

use crate::common::{Builder, Image, SHAPE, SMALL, Shape};
use crate::places::{first_extent, word};
use crate::{LINEAR, LINEAR_SMALL, SLOTS, SLOTS_SMALL, TREES, TREES_SMALL, look, mend, remaining, shown};
use myriad_check::Totals;
use myriad_format::choices::Directory;
use myriad_format::dir::IndexHeader;
use myriad_format::extent::Extent;
use myriad_format::inode::{RawInode, flag, fork};
use myriad_format::{BlockKind, FileBlock, FsBlock};
use zerocopy::IntoBytes;

/// A way to name a block, which does not lie there.
type Root = fn(&mut RawInode, FsBlock);

const ROOTS: [(&str, Root); 2] = [
    ("attributes", |raw, block| {
        raw.flags.set(raw.flags.get() | flag::ATTR_BLOCKS);
        raw.fork[24..].copy_from_slice(&(block.0 | 1 << 48).to_le_bytes());
    }),
    ("a map", |raw, block| {
        raw.fork[..8].copy_from_slice(&block.0.to_le_bytes());
        raw.set_fork(fork::TREE, 0);
        raw.size.set(1 << 20);
    }),
];

/// The older inode comes first: it took the block before it was read, and did not give it back to the file that had it,
/// which lost its attributes or all that its map named, or got zeros in place of its data.
#[test]
fn a_root_takes_no_block_that_is_another_files() {
    for shape in [SHAPE, SMALL].into_iter().flat_map(Shape::every_record) {
        for (name, set) in ROOTS {
            for kind in [None, Some(BlockKind::Attributes), Some(BlockKind::ExtentTree)] {
                let mut builder = Builder::new(shape);
                let root = builder.root;
                let old = builder.file(root, b"old", 0, &[]);
                let [plain, mapped] = [(&b"plain"[..], &[3][..]), (b"mapped", &[1; 9])]
                    .map(|(name, lengths)| builder.file(root, name, 0, lengths));
                builder.chain_attributes(mapped, &[(b"user.long", &vec![b'v'; shape.block_size * 2])]);
                let image = builder.finish();
                assert!(old < plain && old < mapped);
                let block = match kind {
                    None => first_extent(&image.inode(plain)),
                    Some(kind) => image.blocks_of(kind, mapped.0)[0],
                };
                let before = [plain, mapped].map(|ino| image.inode(ino));
                let bytes = image.read(block);
                image.change_inode(old, |raw| set(raw, block));
                let what = format!("{name} in place of {kind:?}, {}", shown(&shape));
                let report = mend(&image);
                assert!(report.repaired && report.is_sound(), "{what}: {}", remaining(&report));
                let after = [plain, mapped].map(|ino| image.inode(ino));
                assert!(after == before, "{what}: {:?}", report.actions);
                assert!(image.read(block) == bytes, "{what}: {:?}", report.actions);
            }
        }
    }
}

/// The root of an index was older than the last blocks of entries: their names were dropped, and what they named came
/// to lost+found. A name that has been removed from there does not come back, though its inode, which has another one,
/// may say that it is its own.
#[test]
fn names_behind_a_stale_root_are_kept() {
    for shape in [SHAPE, SMALL].into_iter().flat_map(Shape::every_record) {
        let (image, before) = with_old_root(shape);
        let report = mend(&image);
        let what = format!("{}: {}", shown(&shape), remaining(&report));
        assert!(report.is_sound(), "{what}");
        assert_eq!(
            (report.totals.entries, report.totals.directories),
            (before.entries - 1, before.directories),
            "{what}"
        );
        assert!(!report.actions.iter().any(|action| action.contains("lost+found")), "{what}");
        assert_eq!(mend(&image).finding_count, 0, "{what}");
    }
}

/// A volume with a directory whose root does not know the last two blocks of entries, and what was there before.
pub fn with_old_root(shape: Shape) -> (Image, Totals) {
    let mut builder = Builder::new(shape);
    let (root, body) = (builder.root, builder.small_body());
    let directory = builder.dir(root, b"directory", 0, 0);
    let twice = builder.file(root, b"twice", 0, &[]);
    for number in 0..400 {
        let name = format!("something with number {number}");
        if number % 50 == 7 {
            let below = builder.dir(directory, name.as_bytes(), number % 2, body);
            builder.file(below, b"below", 0, &[1]);
        } else {
            builder.file(directory, name.as_bytes(), number % 2, &[]);
        }
    }
    builder.link(directory, b"removed", twice);
    builder.node(twice).raw.nlink.set(1);
    let image = builder.finish();
    let before = look(&image).totals;
    let index = FsBlock(word(&image.inode(directory).fork));
    image.change(index, |bytes| {
        let blocks = &mut IndexHeader::read_mut(bytes).entry_blocks;
        blocks.set(blocks.get() - 2);
    });
    (image, before)
}

/// Shapes with each kind of directories, and of records of free blocks and inodes.
fn every_directory() -> impl Iterator<Item = Shape> {
    let directories = [SHAPE, SMALL, LINEAR, LINEAR_SMALL, SLOTS, SLOTS_SMALL, TREES, TREES_SMALL];
    directories.into_iter().flat_map(Shape::every_record)
}

/// A directory that has been removed since took the block of a file, which lost it; what it had there was written over with an empty block of entries.
#[test]
fn a_directory_takes_no_block_of_a_file() {
    for shape in every_directory() {
        let mut builder = Builder::new(shape);
        let (root, length) = (builder.root, 9);
        let old = builder.dir(root, b"old", 0, 0);
        let plain = builder.file(root, b"plain", 0, &[length]);
        let image = builder.finish();
        let (what, start) = (shown(&shape), first_extent(&image.inode(plain)));
        let blocks: Vec<FsBlock> = (0..u64::from(length)).map(|at| start.offset_by(at)).collect();
        blocks.iter().for_each(|&block| image.write(block, &vec![b'd'; shape.block_size]));
        assert!(old < plain, "{what}");
        let inode = image.inode(plain);
        image.change_inode(old, |raw| {
            raw.fork[..8].copy_from_slice(&FsBlock::NONE.0.to_le_bytes());
            let extent = Extent { file_block: FileBlock(0), start, length, unwritten: false };
            raw.fork[8..24].copy_from_slice(extent.encode().as_bytes());
            raw.set_fork(fork::DIRECTORY, 0);
            raw.size.set(u64::from(length) * shape.block_size as u64);
            raw.set_block_total(length.into());
        });
        let report = mend(&image);
        assert!(report.repaired && report.is_sound(), "{what}: {}", remaining(&report));
        assert!(image.inode(plain) == inode, "{what}: {:?}", report.actions);
        for block in blocks {
            assert!(image.read(block).iter().all(|&byte| byte == b'd'), "{what}, block {block}: {:?}", report.actions);
        }
    }
}

/// A file whose map is older than a directory took the directory's block where it came first: names were lost, and what they named came to lost+found.
#[test]
fn a_map_takes_no_block_that_is_a_directorys() {
    for shape in every_directory() {
        let mut builder = Builder::new(shape);
        let root = builder.root;
        let old = builder.file(root, b"old", 0, &[1]);
        let directory = builder.dir(root, b"directory", 0, 0);
        for number in 0..300 {
            builder.file(directory, format!("something with number {number}").as_bytes(), number % 2, &[]);
        }
        let image = builder.finish();
        let (what, before) = (shown(&shape), look(&image).totals);
        let of_kind = |kind| image.blocks_of(kind, directory.0);
        let kind = match shape.choices.directory {
            Directory::Linear => BlockKind::LinearEntries,
            Directory::Slots => BlockKind::DirSlots,
            Directory::Tree => BlockKind::DirTree,
            _ => BlockKind::DirEntries,
        };
        assert!(old < directory, "{what}");
        for &block in [of_kind(kind).first(), of_kind(kind).last()].into_iter().flatten() {
            image.change_inode(old, |raw| {
                let extent = Extent { file_block: FileBlock(0), start: block, length: 1, unwritten: false };
                raw.fork[..16].copy_from_slice(extent.encode().as_bytes());
                raw.set_fork(fork::EXTENTS, 1);
            });
            let report = mend(&image);
            assert!(report.repaired && report.is_sound(), "{what}: {}", remaining(&report));
            assert_eq!(report.totals.entries, before.entries, "{what}: {:?}", report.actions);
            let is_found = |action: &String| action.contains("lost+found");
            assert!(!report.actions.iter().any(is_found), "{what}: {:?}", report.actions);
        }
    }
}
