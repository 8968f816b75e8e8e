//! Reading ahead for those who will list directories or read files soon.
//!
//! Nothing is locked, and nothing fails: what cannot be found or read is left to whoever asks for it, and so is what would take a frame
//! of the reserve.

use super::Ops;
use crate::checksums;
use crate::dir;
use crate::error::Result;
use crate::inode;
use crate::map::{self, Mapping};
use crate::order::Look;
use myriad_format::inode::RawInode;
use myriad_format::{FileBlock, FsBlock, Ino};

/// Entry blocks of a directory that are read before it is listed. A walk that goes on finds the others.
const DIRECTORY_BLOCKS: u64 = 4;
/// Larger files are worth a request of their own, in bytes.
const FILE_MAX: u64 = 64 << 10;
/// File data read in one batch, in bytes: the gate cannot be closed meanwhile.
const BATCH: usize = 1 << 20;

impl Ops<'_> {
    /// Reads what listing directories takes: their inodes and first blocks, in two batches.
    pub fn fetch_directories(&self, directories: &[Ino]) {
        let look = self.volume.look();
        self.fetch_inodes(directories.iter().copied());
        let mut blocks = Vec::new();
        for ino in directories {
            if !self.volume.cache.has_room() {
                break;
            }
            if let Ok(raw) = inode::read(&look, *ino)
                && raw.is_dir()
            {
                dir::first_blocks(&look, *ino, &raw, DIRECTORY_BLOCKS, &mut blocks);
            }
        }
        self.volume.cache.fetch(&mut blocks);
    }

    /// Reads the content of small files, and first their inodes.
    pub fn fetch_files(&self, files: &[Ino]) {
        let most = BATCH >> self.volume.geometry.block_bits;
        let mut files = files.iter();
        while !files.as_slice().is_empty() && self.volume.cache.has_room() {
            let look = self.volume.look();
            self.fetch_inodes(files.as_slice().iter().take(most).copied());
            let mut wanted = Vec::new();
            while wanted.len() < most
                && self.volume.cache.has_room()
                && let Some(&ino) = files.next()
            {
                if let Ok(raw) = inode::read(&look, ino)
                    && raw.size.get() <= FILE_MAX
                    && !raw.is_dir()
                    && map::is_mapped(&raw)
                {
                    let before = wanted.len();
                    if add_data(&look, ino, &raw, &mut wanted).is_err() {
                        wanted.truncate(before);
                    }
                }
            }
            self.volume.cache.fetch_data(&mut wanted);
        }
    }

    /// Inside the gate.
    pub(super) fn fetch_inodes(&self, inos: impl Iterator<Item = Ino>) {
        let mut blocks: Vec<_> = inos.filter_map(|ino| Some(self.volume.geometry.locate(ino)?.0)).collect();
        blocks.dedup();
        self.volume.cache.fetch(&mut blocks);
    }
}

/// Adds the blocks that hold a file's data, with their checksums.
fn add_data(look: &Look<'_>, ino: Ino, raw: &RawInode, wanted: &mut Vec<(FsBlock, Option<u32>)>) -> Result<()> {
    let geometry = &look.volume.geometry;
    let end = raw.size.get().div_ceil(1 << geometry.block_bits);
    let mut at = 0;
    let mut sums = Vec::new();
    while at < end {
        match map::lookup(&mut &*look, raw, ino, FileBlock(at))? {
            Mapping::Hole { until } => at = until.0,
            Mapping::Mapped(extent) => {
                let start = extent.start.offset_by(at - extent.file_block.0);
                let count = extent.end().0.min(end) - at;
                at += count;
                if extent.unwritten {
                    continue;
                }
                sums.clear();
                if geometry.has_checksums {
                    checksums::load(look, start, count, &mut sums)?;
                }
                wanted.extend((0..count).map(|i| (start.offset_by(i), sums.get(i as usize).copied())));
            }
        }
    }
    Ok(())
}
