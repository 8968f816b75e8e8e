//! Where in a directory something lies, for messages about what is damaged there.

use crate::error::Error;
use myriad_format::{Corrupt, FileBlock, Ino};

/// Which directory, and which of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub dir: Ino,
    pub block: FileBlock,
}

impl Place {
    pub fn corrupt(self, offset: usize, field: &'static str, value: u64) -> Error {
        Corrupt::DirEntry { ino: self.dir, block: self.block, offset: offset as u32, field, value }.into()
    }
}
