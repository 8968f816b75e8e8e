//! What the log must know of the metadata blocks that an epoch forgot.
//!
//! Older records of such a block do not count once the epoch is durable: the block may become anything then, and replay would lay
//! them over it. The epoch's checkpoint says so, in a *revoke*. Until it is durable the block belongs to the committed state, and
//! its records are needed: the log's tail must not pass them.

use myriad_format::{FsBlock, Lsn};

#[derive(Default)]
pub(crate) struct Forgotten {
    revokes: Vec<FsBlock>,
    needed: Option<Lsn>,
}

impl Forgotten {
    /// A block was forgotten, and its changes that are not home are in the log from `needed` on.
    pub fn add(&mut self, block: FsBlock, needed: Option<Lsn>) {
        self.revokes.push(block);
        self.needed = self.needed.into_iter().chain(needed).min();
    }

    /// A block is metadata again, and logged whole in this very epoch: nothing older can shine through, and a revoke would drop
    /// the new record with the old ones.
    pub fn take_back(&mut self, block: FsBlock) {
        self.revokes.retain(|&revoked| revoked != block);
    }

    pub fn blocks(&self) -> &[FsBlock] {
        &self.revokes
    }

    /// Oldest log position that the blocks need for as long as the epoch is not durable.
    pub fn needed(&self) -> Option<Lsn> {
        self.needed
    }
}
