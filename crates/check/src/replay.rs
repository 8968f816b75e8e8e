//! The seam to the log: what a mount would find in it.

use myriad_format::FsBlock;

/// Changed granules of blocks, from the log.
pub(crate) trait Overlay: Send + Sync {
    /// Lays what the log holds of `block` over its bytes; whether it holds anything.
    fn apply(&self, block: FsBlock, bytes: &mut [u8]) -> bool;
    /// Every block it holds something of, ascending.
    fn blocks(&self) -> Vec<FsBlock>;
}

/// What replay yields.
#[derive(Default)]
pub(crate) struct Replay {
    pub overlay: Option<Box<dyn Overlay>>,
    /// Blocks freed by the last checkpoint and not yet in the trees.
    pub pending: Vec<(FsBlock, u32)>,
}
