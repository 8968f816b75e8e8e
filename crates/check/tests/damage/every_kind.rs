//! Damage that directories of several kinds can have.

use crate::Case;
use myriad_check::number as n;
use myriad_format::FileBlock;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::inode::{flag, fork};
use zerocopy::IntoBytes;

pub const WITH_AN_INDEX: Case = Case {
    name: "directory with an index",
    expected: n::INODE,
    damage: |s| s.image.change_inode(s.big, |raw| raw.fork[..8].copy_from_slice(&700_u64.to_le_bytes())),
};

pub const IN_ITS_BODY: Case = Case {
    name: "directory in its body",
    expected: n::INODE,
    damage: |s| s.image.change_inode(s.deep, |raw| raw.set_fork(fork::INLINE, 0)),
};

pub const TWINS_WITHOUT_THEIR_FLAG: Case = Case {
    name: "twins without their flag",
    expected: n::TWINS,
    damage: |s| s.image.change_inode(s.twins, |raw| raw.flags.set(raw.flags.get() & !flag::HASH_TWINS)),
};

pub const IDENTITY_OF_A_DIRECTORY: Case = Case {
    name: "identity of a directory",
    expected: n::IDENTITY,
    damage: |s| s.image.change_inode(s.deep, |raw| raw.entry_position.set(3)),
};

pub const SIZE_OF_NOTHING: Case = Case {
    name: "size of nothing",
    expected: n::INODE_SIZE,
    damage: |s| s.image.change_inode(s.single, |raw| raw.size.set(0)),
};

pub const BEGINS_WITH_A_HOLE: Case = Case {
    name: "directory that begins with a hole",
    expected: n::INODE_SIZE,
    damage: |s| {
        let geometry = s.image.geometry;
        let ino = s.single;
        s.image.change_inode(ino, |raw| {
            let extent = Extent::decode(RawExtent::read(&raw.fork[8..]), &geometry, ino).unwrap();
            let moved = Extent { file_block: FileBlock(3), ..extent };
            raw.fork[8..24].copy_from_slice(moved.encode().as_bytes());
        })
    },
};

pub const SIZE_BEYOND_THE_MAP: Case = Case {
    name: "size beyond what is mapped",
    expected: n::INODE_SIZE,
    damage: |s| s.image.change_inode(s.big, |raw| raw.size.set(raw.size.get() << 20)),
};

pub const SIZE_BETWEEN_BLOCKS: Case = Case {
    name: "size that is not of the directory's pieces",
    expected: n::INODE_SIZE,
    damage: |s| s.image.change_inode(s.big, |raw| raw.size.set(raw.size.get() - 24)),
};
