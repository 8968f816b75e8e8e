//! What can be wrong with a volume, as values.

use crate::{AgNo, FileBlock, FsBlock, Ino, Lsn};

/// The volume holds something no correct engine writes. Each kind has a permanent number, shared with the check's table;
/// 17 (freed twice) only the engine meets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    #[error("{block:?}: expected {expected}, found magic {found:#010x}")]
    BlockKind { block: FsBlock, expected: &'static str, found: u32 },
    #[error("{block:?}: checksum {stored:#010x} stored, {computed:#010x} computed")]
    BlockCrc { block: FsBlock, stored: u32, computed: u32 },
    #[error("{block:?}, unit {unit}: checksum {stored:#010x} stored, {computed:#010x} computed")]
    UnitCrc { block: FsBlock, unit: u32, stored: u32, computed: u32 },
    #[error("{block:?}: belongs to another volume")]
    BlockVolume { block: FsBlock },
    #[error("{block:?}: says it is block {stored}")]
    BlockAddress { block: FsBlock, stored: u64 },
    #[error("{block:?}: belongs to {stored}, expected {expected}")]
    BlockOwner { block: FsBlock, stored: u64, expected: u64 },
    #[error("superblock: {field} cannot be {value}")]
    Superblock { field: &'static str, value: u64 },
    #[error("{ag:?}: group header: {field} cannot be {value}")]
    Group { ag: AgNo, field: &'static str, value: u64 },
    #[error("{block:?}: tree node: {field} cannot be {value}")]
    TreeNode { block: FsBlock, field: &'static str, value: u64 },
    #[error("{ino:?}: {field} cannot be {value:#x}")]
    Inode { ino: Ino, field: &'static str, value: u64 },
    #[error("{ino:?}: there is no such inode, though a directory or list names it")]
    NoInode { ino: Ino },
    #[error("{ino:?}: extent {word0:#018x} {word1:#018x} is impossible")]
    Extent { ino: Ino, word0: u64, word1: u64 },
    #[error("{ino:?}: pointer {word:#018x} of file block {at} is impossible")]
    Pointer { ino: Ino, at: FileBlock, word: u64 },
    #[error("directory {ino:?}: {block:?}: entry at byte {offset}: {field} cannot be {value}")]
    DirEntry { ino: Ino, block: FileBlock, offset: u32, field: &'static str, value: u64 },
    #[error("directory {ino:?}: index {block:?}: {field} cannot be {value}")]
    DirIndex { ino: Ino, block: FsBlock, field: &'static str, value: u64 },
    #[error("{ino:?}: extended attributes: {field} cannot be {value}")]
    Attributes { ino: Ino, field: &'static str, value: u64 },
    #[error("orphan list {block:?}: {field} cannot be {value}")]
    Orphans { block: FsBlock, field: &'static str, value: u64 },
    /// It is an older copy, to begin with; or belongs to a volume that was put back from one.
    #[error(
        "the log ends at {end:?}, where the volume knows its end to be {known:?}: it is of another state of the volume, or its end is lost"
    )]
    LogEnd { end: Lsn, known: Lsn },
    #[error("log at {lsn:?}: {field} cannot be {value}")]
    Log { lsn: Lsn, field: &'static str, value: u64 },
    #[error("{ag:?}: block {start} length {length} is freed but was free already")]
    DoubleFree { ag: AgNo, start: u32, length: u32 },
}

impl Corrupt {
    /// Permanent number of the kind of damage.
    pub fn number(&self) -> u32 {
        match self {
            Self::BlockKind { .. } => 1,
            Self::BlockCrc { .. } | Self::UnitCrc { .. } => 2,
            Self::BlockVolume { .. } => 3,
            Self::BlockAddress { .. } => 4,
            Self::BlockOwner { .. } => 5,
            Self::Superblock { .. } => 6,
            Self::Group { .. } => 7,
            Self::TreeNode { .. } => 8,
            Self::Inode { .. } => 9,
            Self::NoInode { .. } => 10,
            Self::Extent { .. } | Self::Pointer { .. } => 11,
            Self::DirEntry { .. } => 12,
            Self::DirIndex { .. } => 13,
            Self::Attributes { .. } => 14,
            Self::Orphans { .. } => 15,
            Self::Log { .. } | Self::LogEnd { .. } => 16,
            Self::DoubleFree { .. } => 17,
        }
    }
}
