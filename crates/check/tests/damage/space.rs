//! Damage to blocks as such, to the superblock, and to what says which blocks and slots are in use.

use crate::Case;
use crate::common::VOLUME;
use crate::places::*;
use myriad_check::number as n;
use myriad_format::inode::{ChunkRecord, InodeBlockHeader};
use myriad_format::superblock::Superblock;
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, header};

pub const CASES: &[Case] = &[
    // Blocks.
    Case { name: "torn group header", expected: n::BLOCK_CRC, damage: |s| s.image.smash(s.image.header_block(1)) },
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
        name: "reserve too long",
        expected: n::GROUP,
        damage: |s| s.image.change_group(0, |h| h.reserve_count.set(25)),
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
];

/// To trees of free extents, and the reserve.
pub const TREES: &[Case] = &[
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
];

/// To chunks of inodes, or where inodes have bodies.
pub const CHUNKS: &[Case] = &[
    Case {
        name: "group inode blocks",
        expected: n::GROUP_INODES,
        damage: |s| s.image.change_group(0, |h| h.inode_blocks.set(1)),
    },
    Case {
        name: "torn inode tree",
        expected: n::BLOCK_CRC,
        damage: |s| s.image.smash(node_of(s, BlockKind::InodeTree, 1)),
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
        name: "node of another level",
        expected: n::TREE_NODE,
        damage: |s| change_node(s, BlockKind::InodeTree, 0, |head, _| head.level.set(1)),
    },
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
];
