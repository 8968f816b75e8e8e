//! The free blocks that a group records, whichever way it records them.

/// What a group calls free, group-relative.
pub(crate) struct Free {
    /// Start and length, ascending.
    pub extents: Vec<(u32, u32)>,
    /// Blocks held back for the trees of free space.
    pub reserve: Vec<u32>,
}
