//! Operations, a file each: lock order and the extent of each transaction show here and nowhere else.
//!
//! Lock order: see `locks`. What is inside the gate never waits for what is outside it.

mod ahead;
mod ancestors;
mod attr;
mod create;
#[cfg(test)]
mod deep_tests;
mod leftovers;
mod link;
mod read_dir;
mod rename;
mod surplus;
mod unlink;
mod xattrs;

use crate::counters::Count;
use crate::dir::{self, Hit, Name};
use crate::error::{Errno, Result};
use crate::inode;
use crate::namei::{self, Guarded};
use crate::order::{Look, Txn};
use crate::perm;
use crate::types::{Cred, Node, Stat, Time};
use crate::volume::{TwoLocks, Volume};
use myriad_format::Ino;
use myriad_format::inode::RawInode;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::I64;

pub(crate) use create::{Content, NewFile, new_node};
pub(crate) use leftovers::settle_second_names;
pub(crate) use surplus::give_back;
#[cfg(test)]
pub(crate) use unlink::reclaim;
pub(crate) use unlink::{finish_nameless, free_all, free_range, free_written, reclaim_orphans, reclaim_put_off};

/// Who does what to which volume.
#[derive(Clone, Copy)]
pub(crate) struct Ops<'a> {
    pub volume: &'a Volume,
    /// For whom permissions are checked.
    pub cred: &'a Cred,
    /// Who asks: new files are theirs, and set-id bits go by them. Another than `cred` where somebody else has checked.
    pub caller: &'a Cred,
}

impl<'a> Ops<'a> {
    fn name<'n>(&self, bytes: &'n [u8]) -> Name<'n> {
        Name { bytes, hash: self.volume.hasher.hash(bytes) }
    }

    /// Attributes of an inode just read, with what open files are ahead of it.
    #[inline(always)]
    pub fn stat_of(&self, look: &Look<'_>, ino: Ino, raw: &RawInode) -> Stat {
        let mut stat = inode::stat(self.volume, ino, raw);
        let is_ahead = self.volume.files.overlay_stat(&mut stat, self.volume.geometry.block_bits);
        // The inode may have caught up after it was read.
        if !is_ahead && self.volume.files.flushes() != look.flushes && inode::is_file(raw) {
            return self.stat_once_more(look, stat);
        }
        stat
    }

    /// Attributes of an inode that was read before a flush of some file ended: read again until none ends meanwhile.
    #[cold]
    fn stat_once_more(&self, look: &Look<'_>, mut stat: Stat) -> Stat {
        loop {
            let flushes = self.volume.files.flushes();
            // Gone meanwhile: what was found was so a moment ago.
            let Ok(raw) = inode::read_node(look, stat.node()) else { return stat };
            stat = inode::stat(self.volume, Ino(stat.ino), &raw);
            let is_ahead = self.volume.files.overlay_stat(&mut stat, self.volume.geometry.block_bits);
            if is_ahead || self.volume.files.flushes() == flushes {
                return stat;
            }
        }
    }

    pub fn stat_node(&self, node: Node) -> Result<Stat> {
        let look = self.volume.look();
        let raw = inode::read_node(&look, node)?;
        Ok(self.stat_of(&look, Ino(node.ino), &raw))
    }

    /// The attributes of `name` in `dir`; a symbolic link is not followed.
    pub fn lookup(&self, dir: Node, name: &[u8]) -> Result<Stat> {
        let look = self.volume.look();
        self.lookup_inside(&look, dir, name)
    }

    pub fn lookup_inside(&self, look: &Look<'_>, dir: Node, name: &[u8]) -> Result<Stat> {
        self.lookup_name(look, dir, self.name(name))
    }

    #[inline]
    pub fn lookup_name(&self, look: &Look<'_>, node: Node, name: Name<'_>) -> Result<Stat> {
        let dir = Ino(node.ino);
        let _lock = self.volume.lock_shared(dir);
        let raw = namei::searchable(look, self.cred, node)?;
        if name.bytes.len() > myriad_format::dir::NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let (ino, child) = namei::find(look, dir, &raw, name)?;
        inode::check_named(ino, &child, dir, |child| child.name_hash.get() == name.hash)?;
        Ok(self.stat_of(look, ino, &child))
    }

    /// The attributes of a name that the name cache knows, in a directory that the caller knows may be searched; ENOENT if it knows
    /// that there is no such name. `None`: it does not know. Nothing is locked: the inode itself says whether the name is still its
    /// own. That the directory is still at the same path, the caller makes sure of afterwards.
    #[inline(always)]
    pub fn lookup_known(&self, look: &Look<'_>, dir: Ino, name: Name<'_>, stat: &mut Stat) -> Option<Result<()>> {
        let Some(ino) = self.volume.names.get(dir, name.hash) else {
            if !self.volume.names.is_absent(dir, name.hash) {
                return None;
            }
            self.volume.counters.bump(Count::name_cache_absent_hits);
            return Some(Err(Errno::NOENT.into()));
        };
        let mut raw = RawInode::zeroed();
        if !read_if_named(look, ino, dir, name, &mut raw) {
            return None;
        }
        self.volume.counters.bump(Count::name_cache_hits);
        *stat = self.stat_of(look, ino, &raw);
        Some(Ok(()))
    }

    /// Finds a name, and reads what it names.
    pub fn find_inside(&self, look: &Look<'_>, dir: Node, name: &[u8]) -> Result<(Ino, RawInode)> {
        namei::step(look, self.cred, dir, self.name(name))
    }

    /// Looks names up together, in steps, so that their waits for memory overlap: name cache; what directories can guess of
    /// those that it does not know; inodes. The directories may be searched, as the caller knows. Nothing is locked, and what
    /// is found on the way is a guess until the inode confirms it. `None` for names that only the ordinary way can answer.
    pub fn lookup_batch<const N: usize>(
        &self,
        look: &Look<'_>,
        names: &[Option<(Ino, Name<'_>)>; N],
    ) -> [Option<Stat>; N] {
        let cache = &self.volume.cache;
        for (dir, name) in names.iter().flatten() {
            self.volume.names.prefetch(*dir, name.hash);
        }
        let mut inos = [None; N];
        let mut probes = [None; N];
        // Neighbours in a batch are mostly in one directory.
        let mut last: Option<(Ino, RawInode)> = None;
        for (i, (dir, name)) in present(names) {
            inos[i] = self.volume.names.get(dir, name.hash);
            if inos[i].is_some() {
                continue;
            }
            if last.is_none_or(|(ino, _)| ino != dir) {
                last = inode::read(look, dir).ok().filter(RawInode::is_dir).map(|raw| (dir, raw));
            }
            let Some((_, raw)) = &last else { continue };
            if let Ok(Some(probe)) = dir::probe(look, dir, raw, name) {
                cache.prefetch_entry(probe.block);
                probes[i] = Some(probe);
            }
        }
        for probe in probes.iter().flatten() {
            cache.prefetch_frame(probe.block, probe.offset);
        }
        let mut blocks = [None; N];
        for (i, (dir, name)) in present(names) {
            if let Some(probe) = probes[i] {
                inos[i] = dir::guess(look, dir, probe, name).ok().flatten();
            }
            blocks[i] = inos[i].and_then(|ino| self.volume.geometry.locate(ino));
            if let Some((block, _)) = blocks[i] {
                cache.prefetch_entry(block);
            }
        }
        for (block, slot) in blocks.iter().flatten() {
            cache.prefetch_frame(*block, self.volume.geometry.inode_offset(*slot));
        }
        let mut found = [const { None }; N];
        for (i, (dir, name)) in present(names) {
            let mut raw = RawInode::zeroed();
            if let Some(ino) = inos[i]
                && read_if_named(look, ino, dir, name, &mut raw)
            {
                found[i] = Some(self.stat_of(look, ino, &raw));
            }
        }
        found
    }

    pub fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        let look = self.volume.look();
        let _lock = self.volume.lock_shared(Ino(node.ino));
        let raw = inode::read_node(&look, node)?;
        if !inode::is_link(&raw) {
            return Err(Errno::INVAL.into());
        }
        inode::link_target(&look, Ino(node.ino), &raw)
    }

    pub fn access(&self, node: Node, mask: u8) -> Result<()> {
        let look = self.volume.look();
        let _lock = self.volume.lock_shared(Ino(node.ino));
        let raw = inode::read_node(&look, node)?;
        if mask & perm::WRITE != 0 && self.volume.options.read_only {
            return Err(Errno::ROFS.into());
        }
        namei::check_access(&look, self.cred, Ino(node.ino), &raw, mask)
    }

    /// Reads the directory `node`, locked by the caller, into `raw`: it must be one that still has a name, and searchable. ESTALE if
    /// it is gone, and perhaps another file by now.
    fn directory(&self, look: &Look<'_>, node: Node, raw: &mut RawInode) -> Result<Guarded> {
        let guarded = self.living_directory(look, node, raw)?;
        perm::may_access(self.cred, &guarded.subject(), perm::EXECUTE)?;
        Ok(guarded)
    }

    /// As [`Self::directory`], with no permission asked for.
    fn living_directory(&self, look: &Look<'_>, node: Node, raw: &mut RawInode) -> Result<Guarded> {
        inode::read_node_into(look, node, raw)?;
        if !raw.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if raw.nlink.get() == 0 {
            return Err(Errno::NOENT.into());
        }
        Guarded::new(look, Ino(node.ino), raw)
    }

    /// Finds `name` in the directory `node`, which is read into `raw`, and locks both, so that the name can be taken away.
    fn lock_entry(&self, txn: &Txn<'a>, node: Node, raw: &mut RawInode, name: Name<'_>) -> Result<LockedEntry<'a>> {
        let volume = self.volume;
        let dir = Ino(node.ino);
        let lock = volume.lock_exclusive(dir);
        let guarded = self.directory(&txn.look, node, raw)?;
        crate::types::check_name(name.bytes)?;
        let mut hit = dir::search(&txn.look, dir, raw, name)?.hit.ok_or(Errno::NOENT)?;
        if let Some(further) = volume.lock_further(dir, hit.ino) {
            return Ok(LockedEntry { guarded, hit, locks: (lock, further) });
        }
        drop(lock);
        // The child's lock comes first: take both in order, and look again.
        loop {
            let locks = volume.lock_two(dir, hit.ino);
            let guarded = self.directory(&txn.look, node, raw)?;
            let again = dir::search(&txn.look, dir, raw, name)?.hit.ok_or(Errno::NOENT)?;
            if again.ino == hit.ino {
                return Ok(LockedEntry { guarded, hit: again, locks });
            }
            hit = again;
        }
    }

    /// A name of `dir` changed meaning: cached resolutions through it are void. `child` is what it named.
    fn forget_name(&self, dir: Ino, name: Name<'_>, ino: Ino, child: &RawInode) {
        self.volume.names.forget(dir, name.hash, ino);
        if child.is_dir() || inode::is_link(child) {
            self.paths_changed();
        }
    }

    fn paths_changed(&self) {
        self.volume.namespace_generation.fetch_add(1, Ordering::Release);
    }
}

/// An inode that is still called `name` in `dir`; of its names it knows one, its identity, until that name is taken away (`drop_link`). Volumes
/// that were written before that was so may have identities of names that had gone by then, so the caller has found the name as this
/// inode's, since the volume was opened. Whatever else is there, be it no inode at all, is the ordinary lookup's to say.
#[inline(always)]
fn read_if_named(look: &Look<'_>, ino: Ino, dir: Ino, name: Name<'_>, raw: &mut RawInode) -> bool {
    inode::read_into(look, ino, raw).is_ok()
        && raw.parent.get() == dir.0
        && raw.name_hash.get() == name.hash
        && raw.nlink.get() > 0
        && ino != dir
}

/// What is there of a batch, with its place.
fn present<'n, T: Copy>(batch: &'n [Option<T>]) -> impl Iterator<Item = (usize, T)> + 'n {
    batch.iter().enumerate().filter_map(|(i, one)| one.map(|one| (i, one)))
}

/// A directory and one of its entries, both locked.
struct LockedEntry<'a> {
    guarded: Guarded,
    hit: Hit,
    #[allow(dead_code)] // held, not read
    locks: TwoLocks<'a>,
}

/// Sets modification and change time of a directory whose entries changed.
fn touch_dir(raw: &mut RawInode, now: Time) {
    raw.mtime = I64::new(now);
    raw.ctime = I64::new(now);
}
