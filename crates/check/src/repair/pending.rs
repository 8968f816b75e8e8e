//! What a repair has decided and not written yet: maps of files, and directories. They are written once all owners are known and blocks can be
//! taken.

use crate::map::pointers::InodePointers;
use myriad_format::extent::Extent;
use myriad_format::fork::TreeRoot;
use myriad_format::{FsBlock, Ino};

/// What is left of a damaged file map.
pub(crate) struct Salvaged {
    pub(crate) extents: Vec<Extent>,
    /// Start and length of what the file had past its end.
    pub(crate) past: Vec<(FsBlock, u64)>,
    /// Nodes of the old tree, which is there until the new one is.
    pub(crate) nodes: Vec<FsBlock>,
    /// Blocks of these extents, and of attributes.
    pub(crate) blocks: u64,
}

/// A file's map, whose nodes have been written.
pub(crate) enum BuiltMap {
    /// It has none: the extents fit the inode.
    InFork,
    Tree {
        root: TreeRoot,
        nodes: u64,
    },
    /// The pointers behind the inode, and how many blocks of pointers those lead to.
    Pointers {
        list: InodePointers,
        nodes: u64,
    },
}

impl BuiltMap {
    pub fn nodes(&self) -> u64 {
        match self {
            Self::InFork => 0,
            Self::Tree { nodes, .. } | Self::Pointers { nodes, .. } => *nodes,
        }
    }
}

/// What a directory in blocks becomes.
pub(crate) struct Changed {
    pub(crate) ino: Ino,
    /// Extents and the map that holds them, if they are not what they were.
    pub(crate) map: Option<(Vec<Extent>, BuiltMap)>,
    pub(crate) index_root: FsBlock,
    /// Block of the attributes that lay in the body, if the names leave it.
    pub(crate) attributes: Option<FsBlock>,
    pub(crate) live: u64,
    pub(crate) total: u64,
    pub(crate) has_twins: bool,
}
