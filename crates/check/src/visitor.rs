//! The trait through which a walk of a map tells its caller what it meets: extents, nodes, damage. It is the same for every kind of map.

use crate::io::Damage;
use myriad_format::{Corrupt, FsBlock};

/// What a walk hands to its caller, who decides what to do about it.
pub(crate) trait Visitor {
    /// A node is about to be read; `false`: do not follow it.
    fn node(&mut self, block: FsBlock) -> bool;
    fn record(&mut self, record: &[u8]);
    fn damage(&mut self, damage: Damage);
    /// Some sectors of a node of a B+ tree cannot be read, and its header is right. `is_whole`: they held zeros. True: go on with what there is.
    fn part(&mut self, _is_whole: bool) -> bool {
        false
    }
    /// What was read in the place of a node does not say that it is one of this map.
    fn stranger(&mut self, _block: FsBlock) {}
    /// A node leads to nothing.
    fn empty(&mut self, block: FsBlock) {
        self.damage(Corrupt::TreeNode { block, field: "pointers", value: 0 }.into());
    }
}
