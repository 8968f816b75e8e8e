//! The on-disk format of a Myriad volume: layouts, magic numbers, checksums, address arithmetic. No I/O, no policy.
//!
//! Each structure is declared once with `on_disk!`; compiler, printers, the check and `docs/FORMAT.md` read that
//! declaration. All integers are little-endian. Raw structures stop at this crate's edge where they can: decoding
//! gives a checked type or a [`Corrupt`].

#![forbid(unsafe_code)]

mod address;
mod corrupt;
mod hash;
mod incompatible;
mod kind;
pub mod leftovers;
mod on_disk;

pub mod bitmap;
pub mod btree;
pub mod checksum;
pub mod choices;
pub mod dir;
pub mod dir_tree;
pub mod exchange;
pub mod extent;
pub mod fork;
pub mod group;
pub mod header;
pub mod inode;
pub mod log;
pub mod pointers;
pub mod slots;
pub mod superblock;
pub mod table;
pub mod unit;
pub mod xattr;

pub use address::{
    AG_BLOCKS_MIN, AG_COUNT_MAX, AgBlock, AgNo, BLOCK_BITS_MAX, BLOCK_BITS_MIN, FileBlock, FsBlock, Geometry, Ino, Lsn,
    RegionNo, SLOT_BITS, SLOT_SIZE,
};
pub use corrupt::Corrupt;
pub use hash::{FEW_TAGS_KEY, NameHasher};
pub use header::BlockHeader;
pub use incompatible::{Incompatible, Unsafe};
pub use kind::BlockKind;
pub use on_disk::{Field, Layout};

/// Every structure's layout, for the printer and for the test that holds `docs/FORMAT.md` to the code.
pub const LAYOUTS: &[Layout] = &[
    header::BlockHeader::LAYOUT,
    unit::UnitHeader::LAYOUT,
    superblock::Superblock::LAYOUT,
    exchange::ExchangedName::LAYOUT,
    superblock::OrphanHeader::LAYOUT,
    group::GroupHeader::LAYOUT,
    group::RegionSummary::LAYOUT,
    checksum::ChecksumHeader::LAYOUT,
    btree::NodeHeader::LAYOUT,
    btree::ChildEntry::LAYOUT,
    inode::InodeBlockHeader::LAYOUT,
    inode::RawInode::LAYOUT,
    inode::BodyHeader::LAYOUT,
    inode::ChunkRecord::LAYOUT,
    extent::RawExtent::LAYOUT,
    pointers::RawPointer::LAYOUT,
    dir::EntryHeader::LAYOUT,
    dir::EntryBlockHeader::LAYOUT,
    dir::IndexHeader::LAYOUT,
    dir::IndexRecord::LAYOUT,
    slots::SlotHeader::LAYOUT,
    slots::SlotBlockHeader::LAYOUT,
    slots::ExtentsHeader::LAYOUT,
    slots::DirExtent::LAYOUT,
    dir_tree::DirNodeHeader::LAYOUT,
    dir_tree::DirTreeEntry::LAYOUT,
    dir_tree::DirTreeChild::LAYOUT,
    xattr::AttrBlockHeader::LAYOUT,
    xattr::AttrHeader::LAYOUT,
    log::AnchorBlock::LAYOUT,
    log::CheckpointHeader::LAYOUT,
    log::RecordHeader::LAYOUT,
    log::PendingFree::LAYOUT,
];
