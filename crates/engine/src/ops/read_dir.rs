//! Listing directories.

use super::Ops;
use crate::counters::Count;
use crate::dir;
use crate::error::{Errno, Result};
use crate::inode;
use crate::namei;
use crate::perm;
use crate::types::{DirEntry, FileType, Node, Stat};
use myriad_format::dir::entry_size;
use myriad_format::inode::RawInode;
use myriad_format::{Corrupt, FileBlock, Ino};

impl Ops<'_> {
    /// Up to `max` entries after `cookie`, added to `out`. Nothing added means the end.
    pub fn read_dir(&self, node: Node, cookie: u64, max: usize, out: &mut Vec<DirEntry>) -> Result<()> {
        self.volume.counters.bump(Count::readdirs);
        let look = self.volume.look();
        let ino = Ino(node.ino);
        let _lock = self.volume.lock_shared(ino);
        let raw = inode::read_node(&look, node)?;
        if !raw.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        namei::check_access(&look, self.cred, ino, &raw, perm::READ)?;
        let mut unknown = None;
        let end = out.len() + max;
        dir::list(&look, ino, &raw, cookie, &mut |entry| {
            let Some(file_type) = FileType::from_code(entry.file_type) else {
                unknown = Some((entry.cookie, entry.file_type));
                return false;
            };
            out.push(DirEntry { name: entry.name.to_vec(), ino: entry.ino.0, file_type, cookie: entry.cookie });
            out.len() < end
        })?;
        match unknown {
            None => Ok(()),
            Some((position, value)) => Err(Corrupt::DirEntry {
                ino,
                block: FileBlock((position * 8) >> self.volume.geometry.block_bits),
                offset: 0,
                field: "type",
                value: u64::from(value),
            }
            .into()),
        }
    }

    /// The attributes of those `wanted` of the files that entries of `dir` name. None for others, for a name gone meanwhile,
    /// and for what only a lookup can say. Nothing is locked: the inode itself says whether it is the name's, unless it
    /// has several names.
    pub fn stat_entries(
        &self,
        dir: Ino,
        entries: &[DirEntry],
        wanted: impl Fn(&DirEntry) -> bool,
    ) -> Vec<Option<Stat>> {
        let look = self.volume.look();
        self.fetch_inodes(entries.iter().filter(|entry| wanted(entry)).map(|entry| Ino(entry.ino)));
        let mut stats = Vec::with_capacity(entries.len());
        for batch in entries.chunks(32) {
            for entry in batch {
                if let Some((block, slot)) = self.volume.geometry.locate(Ino(entry.ino)) {
                    self.volume.cache.prefetch_frame(block, slot as usize * myriad_format::SLOT_SIZE);
                }
            }
            for entry in batch {
                if !wanted(entry) {
                    stats.push(None);
                    continue;
                }
                let raw = inode::read(&look, Ino(entry.ino)).ok();
                // The cookie is where the next entry may begin at the earliest.
                let position = entry.cookie - (entry_size(entry.name.len()) / 8) as u64;
                let is_name = |raw: &RawInode| u64::from(raw.entry_position.get()) == position;
                let raw = raw.filter(|raw| match raw.nlink.get() {
                    0 => false,
                    2.. if !raw.is_dir() => true,
                    _ => Ino(raw.parent.get()) == dir && Ino(entry.ino) != dir && is_name(raw),
                });
                stats.push(raw.map(|raw| self.stat_of(&look, Ino(entry.ino), &raw)));
            }
        }
        stats
    }
}
