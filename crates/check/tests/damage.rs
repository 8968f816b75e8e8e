//! Sound volumes are found sound; each kind of damage is found for what it is, and repair leaves nothing to find.

mod common;

use common::{Image, SHAPE, SMALL, Sample, Shape, VOLUME, sample};
use myriad_check::{Options, Report, check, number as n};
use myriad_format::btree::NodeHeader;
use myriad_format::dir::{
    EntryBlockHeader, EntryHeader, IndexHeader, IndexRecord, LIST_END, OVERFLOWED, encode_pointer, pointer,
};
use myriad_format::extent::RawExtent;
use myriad_format::inode::{ChunkRecord, InodeBlockHeader, RawInode, flag, fork};
use myriad_format::superblock::{OrphanHeader, Superblock};
use myriad_format::xattr::{AttrBlockHeader, AttrHeader};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Ino, SLOT_SIZE, header};

fn look(image: &Image) -> Report {
    check(image.device.clone(), None, &Options::default()).expect("the volume can be checked")
}

fn text(report: &Report) -> String {
    let lines: Vec<String> = report.findings.iter().take(30).map(ToString::to_string).collect();
    format!("{} findings:\n{}", report.finding_count, lines.join("\n"))
}

#[test]
fn sound_volumes_are_silent() {
    let bare = Shape { log_blocks: 0, ..SHAPE };
    let one_region = Shape { region_blocks: 1024, ..SHAPE };
    for shape in [SHAPE, SMALL, bare, one_region] {
        let sample = sample(shape);
        let report = look(&sample.image);
        assert!(report.finding_count == 0, "{}", text(&report));
        assert!(report.is_sound());
        assert!(report.totals.entries > 1000 && report.totals.orphans == 1, "{:?}", report.totals);
    }
}

/// A kind of damage and a number that must be among the findings.
struct Case {
    name: &'static str,
    expected: u32,
    damage: fn(&Sample),
}

/// Index root of a directory in blocks.
fn index_root(s: &Sample, ino: Ino) -> FsBlock {
    FsBlock(u64::from_le_bytes(s.image.inode(ino).fork[..8].try_into().unwrap()))
}

fn index_leaf(s: &Sample) -> FsBlock {
    let blocks = s.image.blocks_of(BlockKind::DirIndex, s.big.0);
    *blocks
        .iter()
        .find(|&&block| IndexHeader::read(&s.image.read(block)).level == 0 && record_at(s, block).is_some())
        .unwrap()
}

/// Byte offset of a leaf's first record in use that is not the first of its line.
fn record_at(s: &Sample, leaf: FsBlock) -> Option<usize> {
    let bytes = s.image.read(leaf);
    (IndexHeader::SIZE..bytes.len())
        .step_by(16)
        .find(|&at| IndexRecord::read(&bytes[at..]).ino.get() & !OVERFLOWED != 0)
}

fn entry_block(s: &Sample, ino: Ino) -> FsBlock {
    s.image.blocks_of(BlockKind::DirEntries, ino.0)[0]
}

/// Changes the first live entry of a directory in blocks.
fn change_entry(s: &Sample, ino: Ino, f: fn(&mut EntryHeader, &mut [u8])) {
    s.image.change(entry_block(s, ino), |bytes| {
        let mut at = 64;
        while EntryHeader::read(&bytes[at..]).ino.get() == 0 {
            at += usize::from(EntryHeader::read(&bytes[at..]).length.get());
        }
        let (head, rest) = bytes[at..].split_at_mut(EntryHeader::SIZE);
        f(EntryHeader::read_mut(head), rest);
    });
}

fn node_of(s: &Sample, kind: BlockKind, owner: u64) -> FsBlock {
    s.image.blocks_of(kind, owner)[0]
}

fn change_node(s: &Sample, kind: BlockKind, owner: u64, f: fn(&mut NodeHeader, &mut [u8])) {
    s.image.change(node_of(s, kind, owner), |bytes| {
        let (head, rest) = bytes.split_at_mut(NodeHeader::SIZE);
        f(NodeHeader::read_mut(head), rest);
    });
}

fn inode_block(s: &Sample, ino: Ino) -> FsBlock {
    s.image.geometry.locate(ino).unwrap().0
}

fn first_extent(raw: &RawInode) -> FsBlock {
    let extent = RawExtent::read(&raw.fork);
    FsBlock((extent.word0.get() & 0x3ff) << 37 | extent.word1.get() >> 27)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

const CASES: &[Case] = &[
    // Blocks.
    Case { name: "torn group header", expected: n::BLOCK_CRC, damage: |s| s.image.smash(s.image.header_block(1)) },
    Case {
        name: "torn inode tree",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(node_of(s, BlockKind::InodeTree, 1)),
    },
    Case {
        name: "torn tree by start",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(node_of(s, BlockKind::FreeByStart, 0)),
    },
    Case {
        name: "torn tree by length",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(node_of(s, BlockKind::FreeByLength, 1)),
    },
    Case {
        name: "torn extent tree",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(node_of(s, BlockKind::ExtentTree, s.tree.0)),
    },
    Case { name: "torn inode block", expected: n::BLOCK_CRC, damage: |s| s.image.smash(inode_block(s, s.deep)) },
    Case {
        name: "torn root inode block",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(inode_block(s, s.image.root)),
    },
    Case { name: "torn entry block", expected: n::BLOCK_CRC, damage: |s| s.image.smash(entry_block(s, s.big)) },
    Case { name: "torn index leaf", expected: n::BLOCK_CRC, damage: |s| s.image.smash(index_leaf(s)) },
    Case { name: "torn index root", expected: n::BLOCK_CRC, damage: |s| s.image.smash(index_root(s, s.big)) },
    Case {
        name: "torn attribute block",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(s.image.blocks_of(BlockKind::Attributes, s.chain.0)[1]),
    },
    Case {
        name: "torn orphan list",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(s.image.blocks_of(BlockKind::Orphans, 0)[0]),
    },
    Case {
        name: "block of another kind",
        expected: n::BLOCK_KIND,
        damage: |s| {
            s.image.change(entry_block(s, s.single), |bytes| {
                header::init(bytes, BlockKind::DirIndex, VOLUME, s.single.0, entry_block(s, s.single));
            });
        },
    },
    Case {
        name: "block of another volume",
        expected: n::BLOCK_VOLUME,
        damage: |s| s.image.change(node_of(s, BlockKind::ExtentTree, s.tree.0), |bytes| bytes[8] ^= 1),
    },
    Case {
        name: "misdirected write",
        expected: n::BLOCK_ADDRESS,
        damage: |s| {
            let other = s.image.read(inode_block(s, s.leaf));
            s.image.write(inode_block(s, s.image.root), &other);
        },
    },
    Case {
        name: "block of another file",
        expected: n::BLOCK_OWNER,
        damage: |s| s.image.change(entry_block(s, s.single), |bytes| bytes[24] ^= 0x80),
    },
    Case {
        name: "all of a group's fixed blocks zero",
        expected: n::BLOCK_KIND,
        damage: |s| {
            for block in 1..5 {
                let size = s.image.geometry.block_size();
                s.image.write(s.image.geometry.fs_block(AgNo(1), AgBlock(block)), &vec![0; size]);
            }
        },
    },
    // Superblock.
    Case { name: "torn superblock", expected: n::SUPERBLOCK, damage: |s| s.image.device_smash(100) },
    Case {
        name: "superblock zero",
        expected: n::SUPERBLOCK,
        damage: |s| s.image.write(FsBlock(0), &vec![0; s.image.geometry.block_size()]),
    },
    Case {
        name: "torn copy",
        expected: n::SUPERBLOCK_COPY,
        damage: |s| {
            let at = s.image.geometry.fs_block(AgNo(1), AgBlock(0));
            s.image.device_smash((at.0 << s.image.geometry.block_bits) + 60);
        },
    },
    Case {
        name: "copy of another volume",
        expected: n::SUPERBLOCK_COPY,
        damage: |s| {
            s.image.change(s.image.geometry.fs_block(AgNo(1), AgBlock(0)), |bytes| {
                Superblock::read_mut(bytes).hash_key = [9; 16]
            });
        },
    },
    Case {
        name: "free count of the volume",
        expected: n::VOLUME_COUNTS,
        damage: |s| s.image.change_superblock(|sb| sb.free_blocks.set(sb.free_blocks.get() - 3)),
    },
    Case {
        name: "inode count of the volume",
        expected: n::VOLUME_COUNTS,
        damage: |s| s.image.change_superblock(|sb| sb.inodes_used.set(0)),
    },
    Case {
        name: "directory count of the volume",
        expected: n::VOLUME_COUNTS,
        damage: |s| s.image.change_superblock(|sb| sb.directories.set(u64::MAX)),
    },
    Case {
        name: "stale high-water mark",
        expected: n::NO_INODE,
        damage: |s| s.image.change_superblock(|sb| sb.ag_high_water.set(1)),
    },
    Case {
        name: "attribute feature missing",
        expected: n::ATTRIBUTE_FLAG,
        damage: |s| s.image.change_superblock(|sb| sb.features_compatible.set(0)),
    },
    Case {
        name: "root of another number",
        expected: n::ROOT,
        damage: |s| s.image.change_superblock(|sb| sb.root_ino.set(s.image.root.0 + 77)),
    },
    // Groups.
    Case { name: "group number", expected: n::GROUP, damage: |s| s.image.change_group(1, |h| h.ag.set(0)) },
    Case {
        name: "group root outside",
        expected: n::GROUP,
        damage: |s| s.image.change_group(1, |h| h.inode_root.set(1 << 30)),
    },
    Case {
        name: "group free count",
        expected: n::GROUP_FREE,
        damage: |s| s.image.change_group(0, |h| h.free_blocks.set(5)),
    },
    Case {
        name: "group inode count",
        expected: n::GROUP_INODES,
        damage: |s| s.image.change_group(0, |h| h.inodes_used.set(5)),
    },
    Case {
        name: "group directory count",
        expected: n::GROUP_INODES,
        damage: |s| s.image.change_group(0, |h| h.directories.set(0)),
    },
    Case {
        name: "group inode blocks",
        expected: n::GROUP_INODES,
        damage: |s| s.image.change_group(0, |h| h.inode_blocks.set(1)),
    },
    Case {
        name: "reserve too long",
        expected: n::GROUP,
        damage: |s| s.image.change_group(0, |h| h.reserve_count.set(25)),
    },
    Case {
        name: "reserve outside",
        expected: n::RESERVE,
        damage: |s| s.image.change_group(0, |h| h.reserve[0].set(1)),
    },
    Case {
        name: "reserve taken",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let taken = s.image.geometry.ag_block_of(first_extent(&s.image.inode(s.small)));
            s.image.change_group(0, |h| h.reserve[0].set(taken.0));
        },
    },
    Case {
        name: "reserve lost",
        expected: n::BLOCK_LEAKED,
        damage: |s| s.image.change_group(0, |h| h.reserve_count.set(h.reserve_count.get() - 1)),
    },
    Case {
        name: "region summary",
        expected: n::REGION,
        damage: |s| s.image.change(s.image.header_block(0), |bytes| bytes[208] ^= 1),
    },
    Case {
        name: "region directories",
        expected: n::REGION,
        damage: |s| s.image.change(s.image.header_block(0), |bytes| bytes[212] ^= 1),
    },
    // Free space.
    Case {
        name: "free extents out of order",
        expected: n::TREE_NODE,
        damage: |s| change_node(s, BlockKind::FreeByStart, 0, |_, body| body.rotate_left(8)),
    },
    Case {
        name: "node too full",
        expected: n::TREE_NODE,
        damage: |s| change_node(s, BlockKind::FreeByStart, 0, |head, _| head.count.set(60000)),
    },
    Case {
        name: "node of another level",
        expected: n::TREE_NODE,
        damage: |s| change_node(s, BlockKind::InodeTree, 0, |head, _| head.level.set(1)),
    },
    Case {
        name: "trees differ",
        expected: n::SPACE_DIFFERS,
        damage: |s| change_node(s, BlockKind::FreeByLength, 0, |head, _| head.count.set(head.count.get() - 1)),
    },
    Case {
        name: "free extent lost",
        expected: n::BLOCK_LEAKED,
        damage: |s| change_node(s, BlockKind::FreeByStart, 0, |head, _| head.count.set(head.count.get() - 1)),
    },
    Case {
        name: "free extent over a file",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            // The first free extent of group 1 begins one block early... on top of what lies before the next gap.
            change_node(s, BlockKind::FreeByStart, 1, |_, body| {
                let last = word(&body[8..]);
                body[8..16].copy_from_slice(&(last - (1 << 32) + 1).to_le_bytes());
            });
        },
    },
    Case {
        name: "free extent of no length",
        expected: n::SPACE_EXTENT,
        damage: |s| {
            change_node(s, BlockKind::FreeByStart, 0, |_, body| {
                let first = word(body);
                body[..8].copy_from_slice(&(first >> 32 << 32).to_le_bytes());
            })
        },
    },
    // Chunks and slots.
    Case {
        name: "chunk outside",
        expected: n::CHUNK,
        damage: |s| change_node(s, BlockKind::InodeTree, 1, |_, body| ChunkRecord::read_mut(body).start.set(1 << 40)),
    },
    Case {
        name: "chunk of no block",
        expected: n::CHUNK,
        damage: |s| change_node(s, BlockKind::InodeTree, 1, |_, body| ChunkRecord::read_mut(body).count = 0),
    },
    Case {
        name: "chunk longer than it is",
        expected: n::CHUNK,
        damage: |s| change_node(s, BlockKind::InodeTree, 1, |_, body| ChunkRecord::read_mut(body).initialised = 65),
    },
    Case {
        name: "chunk masks",
        expected: n::CHUNK_MASK,
        damage: |s| {
            change_node(s, BlockKind::InodeTree, 1, |_, body| {
                let record = ChunkRecord::read_mut(body);
                record.free_mask.set(record.free_mask.get() ^ 1);
            })
        },
    },
    Case {
        name: "chunk forgotten",
        expected: n::NO_INODE,
        damage: |s| change_node(s, BlockKind::InodeTree, 1, |head, _| head.count.set(0)),
    },
    Case {
        name: "stale chunk: fewer blocks initialised",
        expected: n::NO_INODE,
        damage: |s| {
            change_node(s, BlockKind::InodeTree, 0, |_, body| {
                let record = ChunkRecord::read_mut(body);
                record.initialised = 1;
                record.free_mask.set(record.free_mask.get() & 1);
                record.used_mask.set(record.used_mask.get() & 1);
            })
        },
    },
    Case {
        name: "free count of an inode block",
        expected: n::SLOT_MAP,
        damage: |s| {
            s.image.change(inode_block(s, s.deep), |bytes| {
                let head = InodeBlockHeader::read_mut(bytes);
                head.free_count.set(head.free_count.get() + 1);
            })
        },
    },
    Case {
        name: "slot in use by nobody",
        expected: n::SLOT_MAP,
        damage: |s| s.image.change_inode(s.orphan, |raw| raw.mode.set(0)),
    },
    Case {
        name: "inode in a free slot",
        expected: n::NO_INODE,
        damage: |s| {
            let (block, slot) = s.image.geometry.locate(s.small).unwrap();
            s.image.change(block, |bytes| {
                let head = InodeBlockHeader::read_mut(bytes);
                head.free_mask[slot as usize / 8] |= 1 << (slot % 8);
                head.free_count.set(head.free_count.get() + 1);
            });
        },
    },
    Case {
        name: "body outside",
        expected: n::SLOT_SHARED,
        damage: |s| s.image.change_inode(s.text, |raw| raw.body_first.set(9999)),
    },
    Case {
        name: "body on another inode",
        expected: n::SLOT_SHARED,
        damage: |s| {
            let root_body = s.image.inode(s.image.root).body_first.get();
            s.image.change_inode(s.attributes, |raw| raw.body_first.set(root_body));
        },
    },
    // Inodes.
    Case {
        name: "mode of no type",
        expected: n::SLOT_MAP,
        damage: |s| s.image.change_inode(s.small, |raw| raw.mode.set(0o644)),
    },
    Case {
        name: "fork of another type",
        expected: n::INODE,
        damage: |s| s.image.change_inode(s.small, |raw| raw.set_fork(fork::DIRECTORY, 0)),
    },
    Case {
        name: "unknown flags",
        expected: n::INODE,
        damage: |s| s.image.change_inode(s.small, |raw| raw.flags.set(1 << 30)),
    },
    Case {
        name: "negative size",
        expected: n::INODE,
        damage: |s| s.image.change_inode(s.small, |raw| raw.size.set(u64::MAX)),
    },
    Case {
        name: "size of an inline file",
        expected: n::INODE_SIZE,
        damage: |s| s.image.change_inode(s.text, |raw| raw.size.set(3)),
    },
    Case {
        name: "block count",
        expected: n::INODE_BLOCKS,
        damage: |s| s.image.change_inode(s.small, |raw| raw.set_block_total(99)),
    },
    Case {
        name: "directory block count",
        expected: n::INODE_BLOCKS,
        damage: |s| s.image.change_inode(s.big, |raw| raw.set_block_total(0)),
    },
    Case {
        name: "extent outside",
        expected: n::EXTENT,
        damage: |s| s.image.change_inode(s.small, |raw| raw.fork[14] = 0xff),
    },
    Case {
        name: "extent over another",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let fork = s.image.inode(s.small).fork;
            s.image.change_inode(s.chain, |raw| raw.fork[..16].copy_from_slice(&fork[..16]));
        },
    },
    Case {
        name: "extent over an inode block",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let block = inode_block(s, s.deep).0;
            s.image.change_inode(s.small, |raw| {
                let extent = RawExtent::read_mut(&mut raw.fork);
                extent.word1.set(block << 27 | extent.word1.get() & ((1 << 27) - 1));
            });
        },
    },
    Case {
        name: "extents overlap in the file",
        expected: n::EXTENT_ORDER,
        damage: |s| {
            s.image.change_inode(s.small, |raw| {
                let (first, second) = raw.fork.split_at_mut(16);
                let second = RawExtent::read_mut(second);
                second.word0.set(RawExtent::read(first).word0.get() & !0x3ff | second.word0.get() & 0x3ff);
            })
        },
    },
    Case {
        name: "extent tree out of order",
        expected: n::TREE_NODE,
        damage: |s| change_node(s, BlockKind::ExtentTree, s.tree.0, |_, body| body[..32].rotate_left(16)),
    },
    Case {
        name: "extent tree outside",
        expected: n::BLOCK_VIRGIN,
        damage: |s| s.image.change_inode(s.tree, |raw| raw.fork[7] = 0x7f),
    },
    Case {
        name: "extent tree too deep",
        expected: n::TREE_NODE,
        damage: |s| s.image.change_inode(s.tree, |raw| raw.fork[8] = 200),
    },
    // Links.
    Case {
        name: "link count high",
        expected: n::NLINK,
        damage: |s| s.image.change_inode(s.small, |raw| raw.nlink.set(5)),
    },
    Case {
        name: "link count low",
        expected: n::NLINK,
        damage: |s| s.image.change_inode(s.hard, |raw| raw.nlink.set(1)),
    },
    Case {
        name: "link count of a directory",
        expected: n::NLINK,
        damage: |s| s.image.change_inode(s.sub, |raw| raw.nlink.set(9)),
    },
    Case {
        name: "named inode without links",
        expected: n::NLINK,
        damage: |s| s.image.change_inode(s.small, |raw| raw.nlink.set(0)),
    },
    Case {
        name: "unreferenced file",
        expected: n::UNREFERENCED,
        damage: |s| s.image.change_inode(s.orphan, |raw| raw.nlink.set(1)),
    },
    Case {
        name: "nameless inode",
        expected: n::NAMELESS,
        damage: |s| s.image.change_superblock(|sb| sb.orphan_root.set(0)),
    },
    Case {
        name: "orphan list names a free slot",
        expected: n::ORPHAN,
        damage: |s| s.image.change(s.image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| bytes[64] ^= 0x0f),
    },
    Case {
        name: "orphan list too long",
        expected: n::ORPHANS,
        damage: |s| {
            s.image.change(s.image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| {
                OrphanHeader::read_mut(bytes).count.set(1 << 20)
            })
        },
    },
    Case {
        name: "orphan list in a circle",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let block = s.image.blocks_of(BlockKind::Orphans, 0)[0];
            s.image.change(block, |bytes| OrphanHeader::read_mut(bytes).next.set(block.0));
        },
    },
    Case {
        name: "parent of a directory",
        expected: n::IDENTITY,
        damage: |s| s.image.change_inode(s.deep, |raw| raw.parent.set(s.big.0)),
    },
    Case {
        name: "position of a file",
        expected: n::IDENTITY,
        damage: |s| s.image.change_inode(s.small, |raw| raw.entry_position.set(999)),
    },
    Case {
        name: "identity of the root",
        expected: n::IDENTITY,
        damage: |s| s.image.change_inode(s.image.root, |raw| raw.name_hash.set(1)),
    },
    Case {
        name: "root is a file",
        expected: n::ROOT,
        damage: |s| {
            s.image.change_inode(s.image.root, |raw| {
                raw.mode.set(0o100644);
            })
        },
    },
    Case {
        name: "root gone",
        expected: n::ROOT,
        damage: |s| {
            let block = inode_block(s, s.image.root);
            s.image.write(block, &vec![0; s.image.geometry.block_size()]);
        },
    },
    // Directories.
    Case {
        name: "dangling entry",
        expected: n::NO_INODE,
        damage: |s| change_entry(s, s.single, |head, _| head.ino.set(head.ino.get() + 4000)),
    },
    Case {
        name: "entry type",
        expected: n::ENTRY_TYPE,
        damage: |s| change_entry(s, s.big, |head, _| head.file_type = 2),
    },
    Case {
        name: "entry tag",
        expected: n::ENTRY_TAG,
        damage: |s| change_entry(s, s.single, |head, _| head.tag.set(1)),
    },
    Case {
        name: "entry with a slash",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.single, |_, name| name[0] = b'/'),
    },
    Case {
        name: "entry without a name",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.single, |head, _| head.name_len = 0),
    },
    Case {
        name: "entry too long",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.big, |head, _| head.length.set(0xfff8)),
    },
    Case {
        name: "entry of no length",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.big, |head, _| head.length.set(0)),
    },
    Case {
        name: "entry twice",
        expected: n::ENTRY_TWICE,
        damage: |s| {
            s.image.change(entry_block(s, s.single), |bytes| {
                let length = usize::from(EntryHeader::read(&bytes[64..]).length.get());
                bytes.copy_within(64..64 + length, 64 + length);
            })
        },
    },
    Case {
        name: "inline entry damaged",
        expected: n::DIR_ENTRY,
        damage: |s| {
            let (block, _) = s.image.geometry.locate(s.sub).unwrap();
            let first = usize::from(s.image.inode(s.sub).body_first.get());
            s.image.change(block, |bytes| EntryHeader::read_mut(&mut bytes[first * SLOT_SIZE + 8..]).length.set(7));
        },
    },
    Case {
        name: "tail of an entry block",
        expected: n::ENTRY_BLOCK,
        damage: |s| s.image.change(entry_block(s, s.big), |bytes| EntryBlockHeader::read_mut(bytes).tail.set(70000)),
    },
    Case {
        name: "live bytes of an entry block",
        expected: n::ENTRY_BLOCK,
        damage: |s| s.image.change(entry_block(s, s.big), |bytes| EntryBlockHeader::read_mut(bytes).live.set(0)),
    },
    Case {
        name: "size of a directory",
        expected: n::INODE_SIZE,
        damage: |s| s.image.change_inode(s.big, |raw| raw.size.set(24)),
    },
    Case {
        name: "list of room broken",
        expected: n::ROOM_LIST,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).room_head.set(4000)),
    },
    Case {
        name: "list of room forgotten",
        expected: n::ROOM_LIST,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).room_head.set(LIST_END)),
    },
    Case {
        name: "list of room in a circle",
        expected: n::ROOM_LIST,
        damage: |s| s.image.change(entry_block(s, s.big), |bytes| EntryBlockHeader::read_mut(bytes).next_room.set(1)),
    },
    Case {
        name: "directory twice",
        expected: n::DIRECTORY_TWICE,
        damage: |s| {
            let (deep, kind) = (s.deep, 4);
            s.image.change(entry_block(s, s.single), |bytes| {
                let head = EntryHeader::read_mut(&mut bytes[64..]);
                head.ino.set(deep.0);
                head.file_type = kind;
            });
        },
    },
    Case {
        name: "directories in a circle",
        expected: n::DISCONNECTED,
        damage: |s| {
            // The root's entry of "sub" goes to "empty"'s inode type... instead deep's first entry becomes "sub" itself.
            let (block, _) = s.image.geometry.locate(s.deep).unwrap();
            let first = usize::from(s.image.inode(s.deep).body_first.get());
            let sub = s.sub;
            s.image.change(block, |bytes| {
                let head = EntryHeader::read_mut(&mut bytes[first * SLOT_SIZE + 8..]);
                head.ino.set(sub.0);
                head.file_type = 4;
            });
            // ... and the root's own entry for it goes away.
            let root = s.image.inode(s.image.root);
            let (block, first, at) = locate_entry(s, s.image.root, &root, sub);
            s.image.change(block, |bytes| EntryHeader::read_mut(&mut bytes[first + at..]).ino.set(0));
        },
    },
    // Index.
    Case {
        name: "index record lost",
        expected: n::INDEX_MISSING,
        damage: |s| {
            let leaf = index_leaf(s);
            let at = record_at(s, leaf).unwrap();
            s.image.change(leaf, |bytes| {
                let record = IndexRecord::read_mut(&mut bytes[at..]);
                record.ino.set(record.ino.get() & OVERFLOWED);
            });
        },
    },
    Case {
        name: "index record stale",
        expected: n::INDEX_STALE,
        damage: |s| {
            let leaf = index_leaf(s);
            let at = record_at(s, leaf).unwrap();
            s.image.change(leaf, |bytes| IndexRecord::read_mut(&mut bytes[at..]).position.set(77));
        },
    },
    Case {
        name: "index record misplaced",
        expected: n::INDEX_PLACE,
        damage: |s| {
            let leaf = index_leaf(s);
            let at = record_at(s, leaf).unwrap();
            s.image.change(leaf, |bytes| {
                let record = IndexRecord::read_mut(&mut bytes[at..]);
                record.tag.set(record.tag.get() ^ 1);
            });
        },
    },
    Case {
        name: "index leaf depth low",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            s.image.change(index_leaf(s), |bytes| {
                let head = IndexHeader::read_mut(bytes);
                head.depth -= 1;
            })
        },
    },
    Case {
        name: "index leaf depth high",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_leaf(s), |bytes| IndexHeader::read_mut(bytes).depth = 31),
    },
    Case {
        name: "index depth",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).depth = 31),
    },
    Case {
        name: "index pointer twice",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            s.image.change(index_root(s, s.big), |bytes| {
                let first = pointer(bytes, 0);
                let (at, encoded) = encode_pointer(1, first);
                bytes[at..at + 6].copy_from_slice(&encoded);
            })
        },
    },
    Case {
        name: "index pointer outside",
        expected: n::BLOCK_VIRGIN,
        damage: |s| {
            s.image.change(index_root(s, s.big), |bytes| {
                let (at, encoded) = encode_pointer(1, (1 << 48) - 1);
                bytes[at..at + 6].copy_from_slice(&encoded);
            })
        },
    },
    Case {
        name: "index pointer to itself",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let root = index_root(s, s.big);
            s.image.change(root, |bytes| {
                let (at, encoded) = encode_pointer(1, root.0);
                bytes[at..at + 6].copy_from_slice(&encoded);
            });
        },
    },
    Case {
        name: "index without its first pointer",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| bytes[64..70].fill(0)),
    },
    Case {
        name: "entry blocks said to be fewer",
        expected: n::INDEX_STALE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).entry_blocks.set(1)),
    },
    Case {
        name: "entry blocks said to be none",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).entry_blocks.set(0)),
    },
    Case {
        name: "entry blocks said to be more",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).entry_blocks.set(100_000))
        },
    },
    Case {
        name: "hole among the entry blocks",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            change_node(s, BlockKind::ExtentTree, s.big.0, |head, body| {
                let count = usize::from(head.count.get());
                body.copy_within(32..count * 16, 16);
                head.count.set(head.count.get() - 1);
            })
        },
    },
    // Attributes.
    Case {
        name: "attribute list cut",
        expected: n::ATTRIBUTES,
        damage: |s| {
            let (block, _) = s.image.geometry.locate(s.attributes).unwrap();
            let first = usize::from(s.image.inode(s.attributes).body_first.get());
            s.image.change(block, |bytes| bytes[first * SLOT_SIZE + 2] -= 1);
        },
    },
    Case {
        name: "attribute without a namespace",
        expected: n::ATTRIBUTES,
        damage: |s| {
            // Behind the list's one header, whose last byte is the name's length.
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[0], |bytes| bytes[AttrBlockHeader::SIZE + AttrHeader::SIZE] ^= 0x20);
        },
    },
    Case {
        name: "attribute flag",
        expected: n::ATTRIBUTE_FLAG,
        damage: |s| s.image.change_inode(s.attributes, |raw| raw.flags.set(raw.flags.get() & !flag::ATTR_BODY)),
    },
    Case {
        name: "ACL flag",
        expected: n::ATTRIBUTE_FLAG,
        damage: |s| s.image.change_inode(s.attributes, |raw| raw.flags.set(raw.flags.get() & !flag::HAS_ACL)),
    },
    Case {
        name: "attribute chain in a circle",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[1], |bytes| AttrBlockHeader::read_mut(bytes).next.set(blocks[0].0));
        },
    },
    Case {
        name: "attribute chain out of order",
        expected: n::ATTRIBUTES,
        damage: |s| {
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[1], |bytes| AttrBlockHeader::read_mut(bytes).index.set(7));
        },
    },
    Case {
        name: "attribute block too long",
        expected: n::ATTRIBUTES,
        damage: |s| {
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[0], |bytes| AttrBlockHeader::read_mut(bytes).length.set(1 << 20));
        },
    },
];

/// Block of the entry of `child` in a directory, offset of the entries in it, offset of the entry from there.
fn locate_entry(s: &Sample, directory: Ino, raw: &RawInode, child: Ino) -> (FsBlock, usize, usize) {
    let (block, first) = if raw.fork_code() == fork::INLINE {
        (s.image.geometry.locate(directory).unwrap().0, usize::from(raw.body_first.get()) * SLOT_SIZE + 8)
    } else {
        (entry_block(s, directory), 64)
    };
    let bytes = s.image.read(block);
    let mut at = 0;
    while EntryHeader::read(&bytes[first + at..]).ino.get() != child.0 {
        at += usize::from(EntryHeader::read(&bytes[first + at..]).length.get());
    }
    (block, first, at)
}

#[test]
fn each_kind_of_damage_is_found() {
    let mut failed = Vec::new();
    for shape in [SHAPE, SMALL] {
        for case in CASES {
            let sample = sample(shape);
            (case.damage)(&sample);
            let report = look(&sample.image);
            if !report.findings.iter().any(|finding| finding.number == case.expected) {
                let place = format!("{} ({}-byte blocks)", case.name, shape.block_size);
                failed.push(format!("{place}: {} expected; {}", case.expected, text(&report)));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn mend(image: &Image) -> Report {
    let options = Options { repair: true, now: 5, ..Options::default() };
    check(image.device.clone(), None, &options).expect("the volume can be repaired")
}

fn remaining(report: &Report) -> String {
    let lines: Vec<String> = report.remaining.iter().take(20).map(ToString::to_string).collect();
    format!("{} remaining:\n{}\nactions:\n{}", report.remaining_count, lines.join("\n"), report.actions.join("\n"))
}

#[test]
fn each_kind_of_damage_is_repaired() {
    let mut failed = Vec::new();
    for shape in [SHAPE, SMALL, Shape { log_blocks: 0, ..SHAPE }] {
        for case in CASES {
            let sample = sample(shape);
            (case.damage)(&sample);
            let place = format!("{} ({}-byte blocks)", case.name, shape.block_size);
            let report = match check(sample.image.device.clone(), None, &Options { repair: true, ..Options::default() })
            {
                Ok(report) => report,
                Err(error) => {
                    failed.push(format!("{place}: {error}"));
                    continue;
                }
            };
            if !report.repaired || !report.is_sound() {
                failed.push(format!("{place}: {}", remaining(&report)));
            } else if look(&sample.image).finding_count != 0 {
                failed.push(format!("{place}: the second run is not silent"));
            }
        }
    }
    assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
}

/// What damage to what is derived must not cost: any name.
#[test]
fn damage_to_derived_structures_loses_no_name() {
    const DERIVED: &[&str] = &[
        "torn group header",
        "torn inode tree",
        "torn tree by start",
        "torn tree by length",
        "torn index leaf",
        "torn index root",
        "all of a group's fixed blocks zero",
        "torn superblock",
        "superblock zero",
        "stale high-water mark",
        "trees differ",
        "chunk masks",
        "link count high",
        "link count low",
        "parent of a directory",
        "index depth",
        "torn orphan list",
        "size of a directory",
        "list of room in a circle",
        "free count of an inode block",
    ];
    for shape in [SHAPE, SMALL] {
        for name in DERIVED {
            let case = CASES.iter().find(|case| case.name == *name).unwrap_or_else(|| panic!("{name}"));
            let sample = sample(shape);
            let before = look(&sample.image).totals;
            (case.damage)(&sample);
            let after = mend(&sample.image);
            assert!(after.is_sound(), "{name}");
            assert_eq!(after.totals.entries, before.entries, "{name}: {}", after.actions.join("\n"));
            assert_eq!(after.totals.directories, before.directories, "{name}");
        }
    }
}

#[test]
fn a_sound_volume_is_not_written() {
    let sample = sample(SHAPE);
    let before = sample.image.device.clone_image();
    let report = mend(&sample.image);
    assert!(!report.repaired && report.is_sound());
    let mut bytes = [vec![0; 1 << 20], vec![0; 1 << 20]];
    use myriad_device::BlockDevice;
    for offset in (0..before.size()).step_by(1 << 20) {
        let len = (before.size() - offset).min(1 << 20) as usize;
        before.read(offset, &mut bytes[0][..len]).unwrap();
        sample.image.device.read(offset, &mut bytes[1][..len]).unwrap();
        assert!(bytes[0][..len] == bytes[1][..len]);
    }
}

/// A hostile or broken image gives findings or an error: never a panic, never a hang. Repaired, it is sound.
#[test]
fn any_damage_is_survived_and_repaired() {
    let seeds = std::env::var("MYRIAD_SEED").ok().map_or(0..150, |seed| {
        let seed: u64 = seed.parse().expect("MYRIAD_SEED is a number");
        seed..seed + 1
    });
    let images = [sample(SHAPE), sample(SMALL)];
    let metadata: Vec<Vec<FsBlock>> = images.iter().map(|sample| metadata_blocks(&sample.image)).collect();
    for seed in seeds {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let which = random(2);
        let source = &images[which].image;
        let image = Image { device: std::sync::Arc::new(source.device.clone_image()), ..*source };
        for _ in 0..1 + random(12) {
            let block = metadata[which][random(metadata[which].len())];
            let mut bytes = image.read(block);
            let reseal = random(3) > 0;
            match random(4) {
                0 => {
                    let other = metadata[which][random(metadata[which].len())];
                    bytes = image.read(other);
                }
                1 => {
                    let sector = random(bytes.len() / 512);
                    bytes[512 * sector..][..512].fill(0);
                }
                _ => {
                    for _ in 0..1 + random(8) {
                        let at = if reseal { 48 } else { 0 };
                        let at = at + random(bytes.len() - at);
                        bytes[at] = [0, 0xff, bytes[at] ^ 1 << random(8), random(256) as u8][random(4)];
                    }
                }
            }
            if reseal {
                header::seal(&mut bytes, 0);
            }
            image.write(block, &bytes);
        }
        println!("seed {seed}");
        let report = check(image.device.clone(), None, &Options { repair: true, ..Options::default() });
        match report {
            Ok(report) => assert!(report.is_sound(), "seed {seed}: {}", remaining(&report)),
            Err(error) => println!("seed {seed}: {error}"),
        }
    }
}

/// Every block with one of our magics.
fn metadata_blocks(image: &Image) -> Vec<FsBlock> {
    let all = (0..image.geometry.block_count).map(FsBlock);
    all.filter(|&block| {
        let bytes = image.read(block);
        BlockKind::from_magic(u32::from_le_bytes(bytes[..4].try_into().unwrap())).is_some()
    })
    .collect()
}
