//! Attributes. Files have them in blocks of their own, which FFS of that time did not have: to McKusick and Ganger they would be `allocdirect`.
//!
//! Invariants
//!   1. An inode shows attributes only if the blocks that they lie in last, and last as taken; and if the superblock says that the volume has some.
//!   2. What came with attributes that do not show, mode, owner and flags, does not show either: an ACL says what the mode means.

use super::inodes::InodeUnit;
use super::{Inode, Judge};
use crate::error::Result;
use crate::order::facts::Part;
use crate::planted::{Bug, planted};
use myriad_format::fork::AttributeRoot;
use myriad_format::inode::RawInode;
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{BlockKind, FsBlock, Ino};

impl Judge<'_> {
    /// Whether the attributes that an inode has show, given the inode as it is.
    pub(super) fn may_have_attributes(&self, ino: Ino, is: &RawInode) -> Result<bool> {
        let is_known = self.has_features && self.are_groups_made;
        Ok(is_known && !self.new_attributes.contains(&ino.0) && self.are_attributes_taken(is)?)
    }

    /// Whether the blocks that an inode's attributes lie in last as taken. They are a chain, and lie anywhere.
    fn are_attributes_taken(&self, inode: &RawInode) -> Result<bool> {
        let Some(AttributeRoot { mut block, count }) = inode.attribute_root() else { return Ok(true) };
        for _ in 0..count {
            if planted(Bug::SoftAttributesLate) {
                break;
            }
            if !self.geometry.is_data_range(block, 1) || !self.is_block_taken(block) {
                return Ok(false);
            }
            let next = |bytes: &[u8]| FsBlock(AttrBlockHeader::read(bytes).next.get());
            block = self.read(block, BlockKind::Attributes, next)?;
        }
        Ok(true)
    }

    /// Shows attributes, with mode and owner, and guards as they last, unless what they need lasts; whether it hid attributes. `is`: the inode as it is;
    /// `must_hide`: something else that they need does not last.
    pub(super) fn hide_attributes(&self, inode: &mut InodeUnit<'_>, is: &Inode, must_hide: bool) -> Result<bool> {
        let attributes = inode.part(|part| *part == Part::Attributes);
        let hidden = match attributes {
            Some(attributes) if must_hide || !self.may_have_attributes(inode.ino, is.raw())? => Some(attributes),
            _ => None,
        };
        if let Some(attributes) = hidden {
            inode.undo(attributes);
        }
        if let Some(guards) = inode.part(|part| matches!(part, Part::Guards { .. }))
            && !self.has_features
        {
            inode.undo(guards);
        }
        Ok(hidden.is_some())
    }
}
