//! Listing directories.

use super::Ops;
use crate::counters::Count;
use crate::dir;
use crate::error::{Errno, Result};
use crate::inode;
use crate::namei;
use crate::order::Look;
use crate::perm;
use crate::types::{DirEntry, FileType, Node, Stat};
use myriad_format::Ino;
use myriad_format::inode::RawInode;

/// Entries whose inodes are read in one stay inside the gate: each may take a frame, and a name that has to be looked for up to three more.
const STATS_AT_A_TIME: usize = crate::cache::FRAMES_UNASKED / 4;

/// Which names are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Those that do not count as gone.
    Names,
}

impl Ops<'_> {
    /// Up to `max` entries after `cookie`, added to `out`. Nothing added means the end.
    pub fn read_dir(&self, node: Node, cookie: u64, max: usize, out: &mut Vec<DirEntry>) -> Result<()> {
        self.read_names(node, cookie, max, Which::Names, out)
    }

    /// As [`Self::read_dir`], with names that count as gone (`Volume::is_leftover`).
    pub fn read_all_names(&self, node: Node, cookie: u64, max: usize, out: &mut Vec<DirEntry>) -> Result<()> {
        self.read_names(node, cookie, max, Which::All, out)
    }

    fn read_names(&self, node: Node, cookie: u64, max: usize, which: Which, out: &mut Vec<DirEntry>) -> Result<()> {
        self.volume.counters.bump(Count::readdirs);
        let mut from = Some(cookie);
        let before = out.len();
        // Blocks without entries are passed over a few at a time: between them, as between two calls, others may change
        // the directory, and room is made for more of its blocks.
        while let Some(cookie) = from
            && out.len() == before
        {
            let look = self.volume.look();
            let _lock = self.volume.lock_shared(Ino(node.ino));
            from = self.list(&look, node, cookie, max, which, out)?;
        }
        Ok(())
    }

    /// As [`Self::read_dir`], with the attributes of each file; `None` for what only a lookup can say: damage, a name gone or another file's by now, or that the
    /// directory may not be searched.
    pub fn read_dir_plus(&self, node: Node, cookie: u64, max: usize) -> Result<Vec<(DirEntry, Option<Stat>)>> {
        self.volume.counters.bump(Count::readdirs);
        let mut from = Some(cookie);
        // As in `read_dir`.
        while let Some(cookie) = from {
            let mut entries = Vec::new();
            {
                let look = self.volume.look();
                let _lock = self.volume.lock_shared(Ino(node.ino));
                from = self.list(&look, node, cookie, max, Which::Names, &mut entries)?;
            }
            if !entries.is_empty() {
                let all = vec![true; entries.len()];
                let stats = self.stats(node, &entries, &all, |look, first, stats| {
                    let after = if first == 0 { cookie } else { entries[first - 1].cookie };
                    self.stat_listed(look, node, after, &entries[first..first + stats.len()], stats);
                });
                return Ok(entries.into_iter().zip(stats).collect());
            }
        }
        Ok(Vec::new())
    }

    /// The attributes that are missing of entries listed after a cookie, of those that the directory still has: it is listed once more, for in some kinds to
    /// look up each name is to read all of it.
    fn stat_listed(&self, look: &Look<'_>, node: Node, after: u64, entries: &[DirEntry], stats: &mut [Option<Stat>]) {
        let is_missing = |(entry, stat): &(&DirEntry, &mut Option<Stat>)| may_have_others(entry) && stat.is_none();
        let missing: Vec<_> = entries.iter().zip(stats).filter(is_missing).collect();
        if missing.is_empty() {
            return;
        }
        let dir = Ino(node.ino);
        let _lock = self.volume.lock_shared(dir);
        let mut now = Vec::new();
        if self.list(look, node, after, entries.len(), Which::Names, &mut now).is_err() {
            return;
        }
        // While the directory is locked, what it names is its own.
        for (entry, stat) in missing {
            let ino = Ino(entry.ino);
            if now.iter().any(|there| there.ino == entry.ino && there.name == entry.name)
                && let Ok(raw) = inode::read(look, ino)
                && inode::check_named(ino, &raw, dir, |raw| raw.name_hash.get() == self.name(&entry.name).hash).is_ok()
            {
                *stat = Some(self.stat_of(look, ino, &raw));
            }
        }
    }

    /// Adds what one stay inside the gate finds; where to go on, if that is not known to be the end.
    fn list(
        &self,
        look: &Look<'_>,
        node: Node,
        cookie: u64,
        max: usize,
        which: Which,
        out: &mut Vec<DirEntry>,
    ) -> Result<Option<u64>> {
        let ino = Ino(node.ino);
        let raw = inode::read_node(look, node)?;
        if !raw.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        namei::check_access(look, self.cred, ino, &raw, perm::READ)?;
        let before = out.len();
        let next = dir::list(look, ino, &raw, cookie, &mut |entry| {
            let dir::Listed { name, ino, file_type, cookie } = entry;
            out.push(DirEntry { name: name.to_vec(), ino: ino.0, file_type, cookie });
            out.len() < before + max
        })?;
        if which == Which::Names && self.volume.may_have_leftovers {
            let last = out[before..].last().map(|entry| entry.cookie);
            out.retain(|entry| entry.file_type != FileType::Directory || !self.is_left(look, node, entry));
            // All that was listed counts as gone: that is not the end.
            return Ok(if out.len() == before { next.or(last) } else { next });
        }
        Ok(next)
    }

    /// Whether a name of a directory is only left of a rename that power loss cut short (`Volume::is_leftover`). The directory that has
    /// it is locked.
    fn is_left(&self, look: &Look<'_>, node: Node, entry: &DirEntry) -> bool {
        let (ino, hash) = (Ino(entry.ino), self.name(&entry.name).hash);
        inode::read(look, ino).is_ok_and(|raw| self.volume.is_leftover(ino, &raw, Ino(node.ino), hash))
    }

    /// The attributes of those `wanted` of the files that entries of a directory named a while ago. None for others, for a
    /// name gone meanwhile, or another inode's by now, and for what only a lookup can say: damage. Nothing is locked where the inode
    /// itself says that this is its name; a further name is looked up.
    pub fn stat_entries(
        &self,
        node: Node,
        entries: &[DirEntry],
        wanted: impl Fn(&DirEntry) -> bool,
    ) -> Vec<Option<Stat>> {
        // Outside the gate: whoever answers may use the volume.
        let wanted: Vec<bool> = entries.iter().map(wanted).collect();
        self.stats(node, entries, &wanted, |look, first, stats| {
            for ((entry, stat), &wanted) in entries[first..].iter().zip(stats).zip(&wanted[first..]) {
                if stat.is_none() && wanted && may_have_others(entry) {
                    *stat = self.lookup_inside(look, node, &entry.name).ok().filter(|stat| stat.ino == entry.ino);
                }
            }
        })
    }

    /// The attributes of those `wanted`: by the inode, if it says that this is its name, else by `others`, which is given what is known of a few entries and
    /// the number of the first. Each inode may lie in a block of its own, so this leaves the gate between them.
    fn stats(
        &self,
        node: Node,
        entries: &[DirEntry],
        wanted: &[bool],
        others: impl Fn(&Look<'_>, usize, &mut [Option<Stat>]),
    ) -> Vec<Option<Stat>> {
        let is_named = |entry: &DirEntry, raw: &RawInode| {
            let is_name = raw.parent.get() == node.ino && raw.name_hash.get() == self.name(&entry.name).hash;
            is_name && raw.nlink.get() > 0 && entry.ino != node.ino
        };
        // Who may list it and not search it learns the names alone, as from stat(2).
        if self.access(node, perm::EXECUTE).is_err() {
            return vec![None; entries.len()];
        }
        let mut look = self.volume.look();
        // In one batch, which takes none of the frames that are kept for others.
        let all = entries.iter().zip(wanted);
        self.fetch_inodes(all.filter(|(_, wanted)| **wanted).map(|(entry, _)| Ino(entry.ino)));
        let mut stats = Vec::with_capacity(entries.len());
        for batch in entries.chunks(STATS_AT_A_TIME) {
            let first = stats.len();
            if first > 0 {
                look.step_out();
            }
            let look = &look;
            for entry in batch {
                if let Some((block, slot)) = self.volume.geometry.locate(Ino(entry.ino)) {
                    self.volume.cache.prefetch_frame(block, self.volume.geometry.inode_offset(slot));
                }
            }
            for (entry, &wanted) in batch.iter().zip(&wanted[first..]) {
                let raw = if wanted { inode::read(look, Ino(entry.ino)).ok() } else { None };
                let raw = raw.filter(|raw| is_named(entry, raw));
                stats.push(raw.map(|raw| self.stat_of(look, Ino(entry.ino), &raw)));
            }
            others(look, first, &mut stats[first..]);
        }
        stats
    }
}

/// Whether an entry is of something that may have other names.
fn may_have_others(entry: &DirEntry) -> bool {
    entry.file_type != FileType::Directory
}
