//! Damage to directories of kind `btree`.

use crate::common::{Builder, Sample, sample};
use crate::interrupted::open;
use crate::{Case, TREES, TREES_SMALL, every_kind, look, mend, remaining};
use myriad_check::number as n;
use myriad_engine::Cred;
use myriad_format::btree::NodeHeader;
use myriad_format::dir_tree::{
    DirNodeHeader, DirTreeChild, DirTreeEntry, NODE_OFFSET, OFFSET_SIZE, child_at, offset_at,
};
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::{BlockKind, FsBlock, Ino};
use std::collections::BTreeSet;
use std::ops::Range;
use zerocopy::IntoBytes;

/// The nodes of a directory whose level is in a range.
fn nodes(s: &Sample, ino: Ino, levels: Range<u8>) -> Vec<FsBlock> {
    let all = s.image.blocks_of(BlockKind::DirTree, ino.0).into_iter();
    all.filter(|block| levels.contains(&DirNodeHeader::read(&s.image.read(*block)).level)).collect()
}

fn leaf(s: &Sample, ino: Ino) -> FsBlock {
    nodes(s, ino, 0..1)[0]
}

/// The root of `big`: its file block 0.
fn root(s: &Sample) -> FsBlock {
    let level = |block: &FsBlock| DirNodeHeader::read(&s.image.read(*block)).level;
    nodes(s, s.big, 1..8).into_iter().max_by_key(level).unwrap()
}

/// Changes the entry with a number of a leaf.
fn change(s: &Sample, leaf: FsBlock, which: usize, f: impl FnOnce(&mut DirTreeEntry, &mut [u8])) {
    s.image.change(leaf, |bytes| {
        let at = offset_at(bytes, which);
        let (head, rest) = bytes[at..].split_at_mut(DirTreeEntry::SIZE);
        f(DirTreeEntry::read_mut(head), rest);
    });
}

fn head(s: &Sample, block: FsBlock, f: fn(&mut DirNodeHeader)) {
    s.image.change(block, |bytes| f(DirNodeHeader::read_mut(bytes)));
}

fn child(s: &Sample, which: usize, f: impl FnOnce(&mut DirTreeChild)) {
    s.image.change(root(s), |bytes| {
        f(DirTreeChild::read_mut(&mut bytes[NODE_OFFSET + which * DirTreeChild::SIZE..]));
    });
}

/// Makes an offset of a leaf another one.
fn put_offset(s: &Sample, leaf: FsBlock, which: usize, f: impl FnOnce(&[u8]) -> usize) {
    s.image.change(leaf, |bytes| {
        let offset = f(bytes) as u16;
        bytes[NODE_OFFSET + which * OFFSET_SIZE..][..OFFSET_SIZE].copy_from_slice(&offset.to_le_bytes());
    });
}

/// Changes the data of the body of `sub`, which holds a few entries.
fn in_body(s: &Sample, f: impl FnOnce(&mut DirTreeEntry, &mut [u8])) {
    let raw = s.image.inode(s.deep);
    let (block, _) = s.image.geometry.locate(s.deep).unwrap();
    s.image.change(block, |bytes| {
        let at = usize::from(raw.body_first.get()) * 128 + 8;
        let (head, rest) = bytes[at..].split_at_mut(DirTreeEntry::SIZE);
        f(DirTreeEntry::read_mut(head), rest);
    });
}

pub const CASES: &[Case] = &[
    Case {
        name: "dangling entry",
        expected: n::NO_INODE,
        damage: |s| change(s, leaf(s, s.single), 0, |head, _| head.ino.set(head.ino.get() + 4000)),
    },
    Case {
        name: "entry type",
        expected: n::ENTRY_TYPE,
        damage: |s| change(s, leaf(s, s.big), 1, |head, _| head.file_type = 2),
    },
    Case {
        name: "entry tag",
        expected: n::ENTRY_TAG,
        damage: |s| change(s, leaf(s, s.single), 2, |head, _| head.tag.set(head.tag.get() ^ 1)),
    },
    Case {
        name: "entry with a slash",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, leaf(s, s.single), 1, |_, name| name[0] = b'/'),
    },
    Case {
        name: "entry without a name",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, leaf(s, s.single), 0, |head, _| head.name_len = 0),
    },
    Case {
        name: "entry without an inode",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, leaf(s, s.big), 2, |head, _| head.ino.set(0)),
    },
    Case {
        name: "entry behind the block",
        expected: n::DIR_ENTRY,
        damage: |s| put_offset(s, leaf(s, s.big), 1, |bytes| bytes.len() - 10),
    },
    Case {
        name: "entry before the heap",
        expected: n::DIR_ENTRY,
        damage: |s| {
            let leaf = leaf(s, s.single);
            s.image.change(leaf, |bytes| {
                let heap = DirNodeHeader::read(bytes).heap.get() as usize;
                let lowest = (0..7).map(|index| offset_at(bytes, index)).max().unwrap();
                DirNodeHeader::read_mut(bytes).heap.set(lowest as u32);
                assert!(lowest > heap);
            });
        },
    },
    Case {
        name: "two entries in one place",
        expected: n::ENTRY_BLOCK,
        damage: |s| put_offset(s, leaf(s, s.single), 1, |bytes| offset_at(bytes, 0)),
    },
    Case {
        name: "entries in another order",
        expected: n::INDEX_PLACE,
        damage: |s| {
            let leaf = leaf(s, s.big);
            let bytes = s.image.read(leaf);
            put_offset(s, leaf, 0, |_| offset_at(&bytes, 1));
            put_offset(s, leaf, 1, |_| offset_at(&bytes, 0));
        },
    },
    Case {
        name: "one number for two names",
        expected: n::INDEX_PLACE,
        damage: |s| change(s, leaf(s, s.twins), 1, |head, _| head.number.set(0)),
    },
    Case {
        name: "entry in another leaf",
        expected: n::INDEX_PLACE,
        damage: |s| {
            // Its keys are right for itself, and the root leads elsewhere.
            let keys = |bytes: &[u8]| (child_at(bytes, 1).child, child_at(bytes, 2).child);
            let (one, other) = keys(&s.image.read(root(s)));
            child(s, 1, |child| child.child = other);
            child(s, 2, |child| child.child = one);
        },
    },
    Case {
        name: "live bytes of a leaf",
        expected: n::ENTRY_BLOCK,
        damage: |s| head(s, leaf(s, s.big), |head| head.live.set(head.live.get() + 8)),
    },
    Case {
        name: "heap behind the block",
        expected: n::DIR_INDEX,
        damage: |s| head(s, leaf(s, s.single), |head| head.heap.set(1 << 17)),
    },
    Case {
        name: "more entries than fit",
        expected: n::DIR_INDEX,
        damage: |s| head(s, leaf(s, s.big), |head| head.count.set(u16::MAX)),
    },
    Case {
        name: "level of a leaf",
        expected: n::DIR_INDEX,
        damage: |s| head(s, leaf(s, s.single), |head| head.level = 8),
    },
    Case {
        name: "level that no parent asks for",
        expected: n::INDEX_SHAPE,
        damage: |s| head(s, root(s), |head| head.level += 1),
    },
    Case {
        name: "root with one child",
        expected: n::INDEX_SHAPE,
        damage: |s| head(s, root(s), |head| head.count.set(1)),
    },
    Case {
        name: "leaf without entries",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            head(s, leaf(s, s.big), |head| {
                head.count.set(0);
                head.live.set(0);
            })
        },
    },
    Case {
        name: "key of a child",
        expected: n::TREE_NODE,
        damage: |s| child(s, 2, |child| child.key.set(child.key.get() / 1000)),
    },
    Case { name: "key of the first child", expected: n::TREE_NODE, damage: |s| child(s, 0, |child| child.key.set(1)) },
    Case {
        name: "child behind the end",
        expected: n::INDEX_SHAPE,
        damage: |s| child(s, 1, |child| child.child.set(1 << 30)),
    },
    Case {
        name: "child twice",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            let first = child_at(&s.image.read(root(s)), 0).child;
            child(s, 1, |child| child.child = first);
        },
    },
    Case { name: "root below itself", expected: n::INDEX_SHAPE, damage: |s| child(s, 1, |child| child.child.set(0)) },
    Case { name: "torn root of a directory tree", expected: n::BLOCK_CRC, damage: |s| s.image.smash(root(s)) },
    Case { name: "torn leaf", expected: n::BLOCK_CRC, damage: |s| s.image.smash(leaf(s, s.big)) },
    Case {
        name: "leaf of nothing",
        expected: n::BLOCK_KIND,
        damage: |s| {
            let block = leaf(s, s.big);
            let zeros = vec![0; s.image.read(block).len()];
            s.image.write(block, &zeros);
        },
    },
    Case {
        name: "leaf of another directory",
        expected: n::BLOCK_OWNER,
        damage: |s| head(s, leaf(s, s.big), |head| head.header.owner.set(4711)),
    },
    Case {
        name: "directory twice",
        expected: n::DIRECTORY_TWICE,
        damage: |s| {
            change(s, leaf(s, s.single), 0, |head, _| {
                head.ino.set(s.deep.0);
                head.file_type = 4;
            })
        },
    },
    Case {
        name: "entry twice",
        expected: n::ENTRY_TWICE,
        damage: |s| {
            let leaf = leaf(s, s.twins);
            let name = {
                let bytes = s.image.read(leaf);
                bytes[offset_at(&bytes, 0) + DirTreeEntry::SIZE..][..16].to_vec()
            };
            change(s, leaf, 1, |_, other| other[..16].copy_from_slice(&name));
        },
    },
    every_kind::TWINS_WITHOUT_THEIR_FLAG,
    Case { name: "size that no nodes have", ..every_kind::SIZE_BETWEEN_BLOCKS },
    Case { name: "size behind what is mapped", ..every_kind::SIZE_BEYOND_THE_MAP },
    every_kind::SIZE_OF_NOTHING,
    Case {
        name: "nodes behind the end",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change_inode(s.big, |raw| raw.size.set(s.image.read(leaf(s, s.big)).len() as u64)),
    },
    every_kind::BEGINS_WITH_A_HOLE,
    every_kind::WITH_AN_INDEX,
    Case {
        name: "size of a body",
        expected: n::INODE_SIZE,
        damage: |s| s.image.change_inode(s.deep, |raw| raw.size.set(1)),
    },
    Case {
        name: "entry of a body with a slash",
        expected: n::DIR_ENTRY,
        damage: |s| in_body(s, |_, name| name[0] = b'/'),
    },
    Case {
        name: "entry of a body too long",
        expected: n::DIR_ENTRY,
        damage: |s| in_body(s, |head, _| head.name_len = 255),
    },
    Case {
        name: "key of another name of a body",
        expected: n::INDEX_PLACE,
        damage: |s| {
            // `second`, a free entry of five bytes, `third`.
            in_body(s, |head, rest| {
                let third = DirTreeEntry::read_mut(&mut rest[6 + 16 + 5..]);
                assert_eq!(third.name_len, 5);
                (third.tag, third.number) = (head.tag, head.number);
            })
        },
    },
    every_kind::IDENTITY_OF_A_DIRECTORY,
];

/// What leads to leaves can be made anew from them; a leaf costs its own names, and no others.
#[test]
fn a_torn_node_costs_no_more_than_its_names() {
    for shape in [TREES, TREES_SMALL] {
        let is_two_levels_high = shape.block_size == TREES.block_size;
        let first = sample(shape);
        let inner = nodes(&first, first.big, 1..8);
        assert_eq!(inner.len() == 1, is_two_levels_high, "{}", inner.len());
        for block in inner {
            let sample = sample(shape);
            let before = look(&sample.image).totals.entries;
            sample.image.smash(block);
            let report = mend(&sample.image);
            assert!(report.is_sound(), "{}", remaining(&report));
            assert_eq!(report.totals.entries, before, "{}", report.actions.join("\n"));
        }
        let before = look(&first.image).totals.entries;
        let block = leaf(&first, first.big);
        let lost = u64::from(DirNodeHeader::read(&first.image.read(block)).count.get());
        first.image.write(block, &vec![0; first.image.read(block).len()]);
        let report = mend(&first.image);
        assert!(report.is_sound(), "{}", remaining(&report));
        let back = look(&first.image).totals.entries + lost - before;
        assert!(lost > 3 && back <= lost + 1, "{lost} lost, {back} back: {:?}", report.actions);
    }
}

/// Of a torn leaf, names are kept whose tags are theirs.
#[test]
fn a_torn_leaf_keeps_what_can_be_believed() {
    for shape in [TREES, TREES_SMALL] {
        let sample = sample(shape);
        let before = look(&sample.image).totals.entries;
        let block = leaf(&sample, sample.big);
        let mut bytes = sample.image.read(block);
        let at = offset_at(&bytes, 0) + DirTreeEntry::SIZE;
        bytes[at] ^= 1;
        sample.image.write(block, &bytes);
        let report = mend(&sample.image);
        assert!(report.is_sound(), "{}", remaining(&report));
        let after = report.totals.entries;
        assert!((before - 1..=before).contains(&after), "{before} before, {after} after: {:?}", report.actions);
    }
}

/// Takes a child out of the inner node of `big` that leads to it.
fn take_out(s: &Sample, number: u64) {
    for block in nodes(s, s.big, 1..8) {
        s.image.change(block, |bytes| {
            let count = usize::from(DirNodeHeader::read(bytes).count.get());
            let is_it = |&index: &usize| u64::from(child_at(bytes, index).child.get()) == number;
            let Some(index) = (0..count).find(is_it) else { return };
            assert!(index > 0, "the first child's key says nothing");
            let at = |index| NODE_OFFSET + index * DirTreeChild::SIZE;
            bytes.copy_within(at(index + 1)..at(count), at(index));
            DirNodeHeader::read_mut(bytes).count.set(count as u16 - 1);
        });
    }
}

/// A split in order `none` can leave the inode as it was, so that the directory ends before nodes to which its tree leads. All their names were
/// dropped, and what they named came to lost+found.
#[test]
fn a_size_older_than_the_tree_costs_no_name() {
    for shape in [TREES, TREES_SMALL] {
        let block_size = shape.block_size as u64;
        let whole = sample(shape);
        let nodes = whole.image.inode(whole.big).size.get() / block_size;
        for size in [nodes - 1, nodes - 5, 1] {
            let sample = sample(shape);
            let before = look(&sample.image).totals;
            sample.image.change_inode(sample.big, |raw| raw.size.set(size * block_size));
            let report = mend(&sample.image);
            let what = format!("{size} of {nodes} nodes: {}", remaining(&report));
            assert!(report.is_sound(), "{what}");
            assert_eq!(
                (report.totals.entries, report.totals.directories),
                (before.entries, before.directories),
                "{what}"
            );
            assert!(!report.actions.iter().any(|action| action.contains("lost+found")), "{what}");
            assert_eq!(mend(&sample.image).finding_count, 0, "{what}");
        }
    }
}

/// The parent of the new leaf may be as old as the inode. What nothing else names gets back the name there that it says is its own.
#[test]
fn names_that_no_node_leads_to_are_kept_if_nothing_else_has_them() {
    for shape in [TREES, TREES_SMALL] {
        let mut builder = Builder::new(shape);
        let directory = builder.dir(builder.root, b"directory", 0, 0);
        for number in 0..400 {
            builder.file(directory, format!("something with number {number}").as_bytes(), 0, &[]);
        }
        let image = builder.finish();
        let before = look(&image).totals.entries;
        let block_size = shape.block_size as u64;
        let nodes = image.inode(directory).size.get() / block_size;
        let s = Sample { image, big: directory, ..sample(shape) };
        s.image.change_inode(directory, |raw| raw.size.set((nodes - 1) * block_size));
        take_out(&s, nodes - 1);
        let report = mend(&s.image);
        let what = remaining(&report);
        assert!(report.is_sound(), "{what}");
        assert_eq!(report.totals.entries, before, "{what}");
        assert!(!report.actions.iter().any(|action| action.contains("lost+found")), "{what}");
        assert_eq!(mend(&s.image).finding_count, 0, "{what}");
    }
}

/// A directory that has become shorter may have blocks behind its last node, to which no node leads, with what a leaf had before. Once its map had
/// a hole, the repair read those as well, and brought back names that had been removed from what had others.
#[test]
fn what_lies_behind_the_last_node_stays_removed() {
    for shape in [TREES, TREES_SMALL] {
        let sample = sample(shape);
        let image = &sample.image;
        let block_size = shape.block_size as u64;
        let nodes = image.inode(sample.big).size.get() / block_size;
        // The last node is not the directory's any more, and one in the middle cannot be found.
        image.change_inode(sample.big, |raw| raw.size.set((nodes - 1) * block_size));
        take_out(&sample, nodes - 1);
        let mut last = None;
        let mut lost = 0;
        for block in image.blocks_of(BlockKind::ExtentTree, sample.big.0) {
            let bytes = image.read(block);
            let head = NodeHeader::read(&bytes);
            for index in (0..usize::from(head.count.get())).filter(|_| head.level.get() == 0) {
                let at = NodeHeader::SIZE + index * RawExtent::SIZE;
                let extent = Extent::decode(RawExtent::read(&bytes[at..]), &image.geometry, sample.big).unwrap();
                assert_eq!(extent.length, 1);
                if extent.file_block.0 == nodes - 1 {
                    last = Some(extent.start);
                }
                if extent.file_block.0 == nodes / 2 {
                    let nowhere = Extent { start: FsBlock(shape.block_count), ..extent };
                    image.change(block, |bytes| {
                        bytes[at..][..RawExtent::SIZE].copy_from_slice(nowhere.encode().as_bytes())
                    });
                    lost += 1;
                }
            }
        }
        let last = image.read(last.expect("the last node is mapped"));
        assert_eq!((lost, DirNodeHeader::read(&last).level), (1, 0));
        let entries = (0..usize::from(DirNodeHeader::read(&last).count.get())).map(|index| {
            let at = offset_at(&last, index);
            let head = DirTreeEntry::read(&last[at..]);
            (head.ino.get(), last[at + DirTreeEntry::SIZE..][..usize::from(head.name_len)].to_vec())
        });
        // What has no other name gets this one back.
        let removed: Vec<_> = entries.filter(|(ino, _)| *ino == sample.hard.0).map(|(_, name)| name).collect();
        assert!(removed.len() > 2, "{removed:?}");
        let report = mend(image);
        assert!(report.is_sound(), "{}", remaining(&report));
        let fs = open(image.device.clone());
        let names: BTreeSet<Vec<u8>> =
            fs.session(Cred::root()).read_dir("/big").unwrap().map(|entry| entry.unwrap().name.to_vec()).collect();
        assert!(names.len() > 500, "{}", names.len());
        for name in removed {
            assert!(!names.contains(&name), "{} is back", name.escape_ascii());
        }
    }
}
