//! Damage to inodes, their maps and links.

use crate::common::{Builder, SHAPE, SMALL};
use crate::places::*;
use crate::{Case, look, mend, remaining, text};
use myriad_check::number as n;
use myriad_format::BlockKind;
use myriad_format::extent::RawExtent;
use myriad_format::inode::{flag, fork};
use myriad_format::superblock::OrphanHeader;

pub const CASES: &[Case] = &[
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
        name: "orphan list too long",
        expected: n::ORPHANS,
        damage: |s| {
            s.image.change(s.image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| {
                OrphanHeader::read_mut(bytes).count.set(1 << 20)
            })
        },
    },
    Case {
        name: "named directory without links in the orphan list",
        expected: n::NLINK,
        damage: |s| {
            s.image.change_inode(s.deep, |raw| raw.nlink.set(0));
            s.image.change(s.image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| {
                OrphanHeader::read_mut(bytes).count.set(2);
                bytes[OrphanHeader::SIZE + 8..][..8].copy_from_slice(&s.deep.0.to_le_bytes());
            });
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
];

/// To chunks of inodes, or where inodes have bodies.
pub const CHUNKS: &[Case] = &[
    Case {
        name: "mode of no type",
        expected: n::SLOT_MAP,
        damage: |s| s.image.change_inode(s.small, |raw| raw.mode.set(0o644)),
    },
    Case {
        name: "size of an inline file",
        expected: n::INODE_SIZE,
        damage: |s| s.image.change_inode(s.text, |raw| raw.size.set(3)),
    },
    Case {
        name: "extent over an inode block",
        expected: n::BLOCK_TWICE,
        damage: |s| give_to_file(s, inode_block(s, s.deep)),
    },
    Case {
        name: "orphan list names a free slot",
        expected: n::ORPHAN,
        damage: |s| s.image.change(s.image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| bytes[64] ^= 0x0f),
    },
];

/// Who has attributes in the body shows only those; others in blocks were invisible, and the check found nothing.
#[test]
fn attributes_are_in_the_body_or_in_blocks() {
    for shape in [SHAPE, SMALL] {
        let mut builder = Builder::new(shape);
        let root = builder.root;
        let file = builder.with_body_attributes(root, b"file", &[(b"user.body", b"1")]);
        builder.chain_attributes(file, &[(b"user.blocks", b"2")]);
        let image = builder.finish();
        let report = look(&image);
        assert!(report.findings.iter().any(|found| found.number == n::ATTRIBUTES), "{}", text(&report));
        let report = mend(&image);
        assert!(report.is_sound(), "{}", remaining(&report));
        let raw = image.inode(file);
        assert!(raw.has_flag(flag::ATTR_BODY) && raw.attribute_root().is_none(), "{:?}", report.actions);
    }
}
