//! Sizes of files and directories. In FFS they belong to the `allocdirect` or `allocindir` of the last block; here a size is judged with all pointers of its inode.
//!
//! Invariants
//!   1. A file shows another size only if nothing shows behind the smaller one that was not there: its last block lasts, where the file ends inside one, and
//!      nothing that lasts leads to a block that the file has given up. Until then size and pointers both stay as they last.
//!   2. The size of a directory covers only blocks that are mapped by what lasts.

use super::inodes::InodeUnit;
use super::{Inode, Judge};
use crate::error::Result;
use crate::order::facts::{self, Part};
use crate::planted::{Bug, planted};
use myriad_format::pointers::{self, BLOCK, Pointer, RawPointer};
use myriad_format::{BlockKind, FileBlock, FsBlock};
use std::ops::Range;

impl Judge<'_> {
    /// Shows size and pointers of a file as they last, if it was cut or grew inside a block that does not last as it is, or was cut and written
    /// again and `keeps_old_block`: no new size shows over old blocks. Whether it was. `is`: the inode as it is.
    pub(super) fn hide_size(&self, inode: &mut InodeUnit<'_>, is: &Inode, keeps_old_block: bool) -> Result<bool> {
        let Some(was) = inode.lasting() else { return Ok(false) };
        let must_hide = keeps_old_block && Self::is_resized(&was, is) || self.is_edge_open(&was, is)?;
        if !must_hide {
            return Ok(false);
        }
        inode.raw_mut().size = was.raw().size;
        inode.undo_pointers();
        Ok(true)
    }

    /// Whether the file that an inode was, as it lasts, has another size as it is.
    fn is_resized(was: &Inode, is: &Inode) -> bool {
        was.is_used()
            && was.raw().generation == is.raw().generation
            && !is.raw().is_dir()
            && was.raw().size != is.raw().size
    }

    /// Whether a file was cut, or grew, inside a block that does not last as it is: behind the smaller size, where there are zeros now or what
    /// was written since, the device may have bytes of before the cut, or of a write whose size power loss has taken. All of the file then
    /// stays as it lasts.
    pub(super) fn is_edge_open(&self, was: &Inode, is: &Inode) -> Result<bool> {
        let size = is.raw().size.get().min(was.raw().size.get());
        let is_inside = size % self.geometry.block_size() as u64 != 0;
        if planted(Bug::SoftCut) || !is_inside || !Self::is_resized(was, is) {
            return Ok(false);
        }
        let current = |block, part: Range<usize>| {
            self.read(block, BlockKind::Pointers, |bytes| RawPointer::read(&bytes[part]).word.get())
        };
        let edge = size >> self.geometry.block_bits;
        let bits = self.geometry.file_fragment_bits(is.raw().file_type());
        let word = self.pointer(is, FileBlock(edge >> bits), current)?;
        let (start, length) = Pointer::run_of(word, &self.geometry);
        let index = edge & ((1 << bits) - 1);
        Ok(word != 0 && index < length.into() && self.data.blocks.contains(&(start.0 + index)))
    }

    /// A directory's size grows once all blocks that it then covers are mapped. As long as one is not that its old size covers, because a new block of
    /// pointers has taken the place of one that was given up, the directory stays as it lasts.
    pub(super) fn judge_directory_size(&self, inode: &mut InodeUnit<'_>) -> Result<()> {
        if !inode.raw().is_dir() {
            return Ok(());
        }
        let size = inode.raw().size.get();
        // One that begins had nothing.
        let lasted = inode.lasting().filter(|_| inode.part(|part| *part == Part::Born).is_none());
        let old = lasted.map_or(0, |lasting| lasting.raw().size.get());
        let replaces = old > 0 && inode.replaces_pointer();
        if size == 0 || size <= old && !replaces {
            return Ok(());
        }
        let shown = inode.shown();
        let last = FileBlock((size - 1) >> self.geometry.block_bits);
        let first = if replaces { FileBlock(0) } else { FileBlock(old >> self.geometry.block_bits) };
        let mut is_mapped = true;
        for block in first.0..=last.0 {
            is_mapped &= self.is_mapped(&shown, FileBlock(block))?;
        }
        if !is_mapped && !planted(Bug::SoftSize) {
            inode.raw_mut().size.set(old);
            // Blocks behind its size are no blocks of a directory.
            inode.undo_pointers();
        }
        Ok(())
    }

    /// Whether a block of a directory is mapped by what lasts, given the inode.
    fn is_mapped(&self, inode: &Inode, at: FileBlock) -> Result<bool> {
        let lasting = |block, part| {
            let word = |bytes: &[u8]| RawPointer::read(bytes).word.get();
            Ok(self.lasting(block, BlockKind::Pointers, part, word)?.unwrap_or(0))
        };
        Ok(self.pointer(inode, at, lasting)? != 0)
    }

    /// The pointer to a block of a file, given the inode and how blocks of pointers are read; 0 if nothing is mapped there.
    fn pointer(
        &self,
        inode: &Inode,
        at: FileBlock,
        read: impl Fn(FsBlock, Range<usize>) -> Result<u64>,
    ) -> Result<u64> {
        let Some(way) = self.geometry.way(at) else { return Ok(0) };
        let mut word = facts::pointers_of(&inode.0).nth(way.root).unwrap_or(0);
        for level in 0..way.depth {
            if word == 0 {
                return Ok(0);
            }
            let at = pointers::offset(way.index(level));
            word = read(FsBlock(word & BLOCK), at..at + RawPointer::SIZE)?;
        }
        Ok(word)
    }
}
