//! What a map says of a file block, whatever its kind.

use myriad_format::FileBlock;
use myriad_format::extent::{Extent, FILE_BLOCK_MAX};

/// First file block that no map can address.
pub(crate) const FILE_END: FileBlock = FileBlock(FILE_BLOCK_MAX + 1);

/// What a file block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// It lies in this extent, which may be a part of a longer run.
    Mapped(Extent),
    /// Neither it nor any block before `until` is allocated.
    Hole { until: FileBlock },
}

impl Mapping {
    /// Where the next run or hole begins.
    pub fn end(&self) -> FileBlock {
        match self {
            Self::Mapped(extent) => extent.end(),
            Self::Hole { until } => *until,
        }
    }
}
