//! Attributes and extended attributes, and who may do what.

use super::paths::split_plain;
use super::{AsPath, Session};
use crate::dir::Name;
use crate::error::{Errno, Result};
use crate::file;
use crate::inode;
use crate::namei::Guarded;
use crate::order::Look;
use crate::perm;
use crate::types::*;
use myriad_format::Ino;
use myriad_format::inode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use std::sync::atomic::Ordering;

/// Names looked up together: more loads in flight than a core can wait for.
const STAT_BATCH: usize = 32;

impl Session {
    // ---- by path ----

    /// Attributes; a final symbolic link is followed.
    #[inline]
    pub fn stat(&self, path: &(impl AsPath + ?Sized)) -> Result<Stat> {
        let stat = self.lstat(path)?;
        if stat.mode & S_IFMT == S_IFLNK { self.stat_followed(path.as_path_bytes()) } else { Ok(stat) }
    }

    fn stat_followed(&self, path: &[u8]) -> Result<Stat> {
        self.by_path(|ops| {
            let mut look = self.volume().look();
            let (ino, raw) = self.resolve_inside(&mut look, path, true)?;
            Ok(ops.stat_of(&look, ino, &raw))
        })
    }

    /// Attributes; a final symbolic link is not followed (unless the path ends in a slash).
    #[inline]
    pub fn lstat(&self, path: &(impl AsPath + ?Sized)) -> Result<Stat> {
        self.volume().counters.bump(crate::counters::Count::stats);
        self.lstat_uncounted(path.as_path_bytes())
    }

    #[inline]
    fn lstat_uncounted(&self, path: &[u8]) -> Result<Stat> {
        // Into its place at once: each copy on the way costs as much as a look at the cache.
        let mut stat = Stat::NONE;
        self.by_path(|_| self.lstat_inside(&mut self.volume().look(), path, &mut stat))?;
        Ok(stat)
    }

    #[inline]
    fn lstat_inside(&self, look: &mut Look<'_>, path: &[u8], stat: &mut Stat) -> Result<()> {
        if let Some((dir, name)) = split_plain(path) {
            let generation = self.volume().namespace_generation.load(Ordering::Acquire);
            let parent = self.parent(look, path, dir)?;
            let name = Name { bytes: name, hash: self.volume().hasher.hash(name) };
            // The directory was found, or is remembered, as one that this user may search. It is not locked: that it is
            // still the same one is known afterwards.
            if let Some(known) = self.ops().lookup_known(look, Ino(parent.ino), name, stat)
                && self.volume().namespace_generation.load(Ordering::Acquire) == generation
            {
                return known;
            }
            *stat = self.ops().lookup_name(look, parent, name)?;
            return Ok(());
        }
        let (ino, raw) = self.resolve_inside(look, path, false)?;
        *stat = self.ops().stat_of(look, ino, &raw);
        Ok(())
    }

    /// `lstat` of many paths: lookups overlap their waits for memory. Results are in the order of `paths`.
    pub fn stat_many<P: AsPath>(&self, paths: &[P]) -> Vec<Result<Stat>> {
        let mut results = Vec::with_capacity(paths.len());
        for batch in paths.chunks(STAT_BATCH) {
            let mut look = self.volume().look();
            let generation = self.volume().namespace_generation.load(Ordering::Acquire);
            let mut names = [None; STAT_BATCH];
            for (target, path) in names.iter_mut().zip(batch) {
                let path = path.as_path_bytes();
                *target = split_plain(path).and_then(|(dir, name)| {
                    let parent = self.parent(&mut look, path, dir).ok()?;
                    Some((Ino(parent.ino), Name { bytes: name, hash: self.volume().hasher.hash(name) }))
                });
            }
            let mut found = self.ops().lookup_batch(&look, &names);
            if self.volume().namespace_generation.load(Ordering::Acquire) != generation {
                // A directory may have become another one meanwhile.
                found = [const { None }; STAT_BATCH];
            }
            drop(look);
            self.volume().counters.add(crate::counters::Count::stats, batch.len() as u64);
            for (path, found) in batch.iter().zip(found) {
                results.push(match found {
                    Some(stat) => Ok(stat),
                    None => self.lstat_uncounted(path.as_path_bytes()),
                });
            }
        }
        results
    }

    /// Changes attributes: the size first, then all others together or none. Who may not change all of them changes none. If there is no
    /// room for the others, the size has changed. Follows a final symbolic link; [`Session::set_attr_node`] does not.
    pub fn set_attr(&self, path: &(impl AsPath + ?Sized), attr: SetAttr) -> Result<Stat> {
        self.at_path(path.as_path_bytes(), true, |node| self.set_attr_node(node, attr))
    }

    /// Value of an extended attribute, whose name has its namespace (`user.`, `trusted.`, `security.`, `system.`); ENODATA if
    /// there is none. This and the next three follow a final symbolic link.
    pub fn get_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8]) -> Result<Vec<u8>> {
        self.at_path(path.as_path_bytes(), true, |node| self.get_xattr_node(node, name))
    }

    /// Sets an extended attribute: a name of up to 255 bytes (ERANGE), a value of up to 65 536 (E2BIG). ENOSPC if all of a
    /// file's attributes together would take more than 1 MiB; ENOMEM if they would take more of a small cache than it can spare.
    pub fn set_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.at_path(path.as_path_bytes(), true, |node| self.set_xattr_node(node, name, value, mode))
    }

    /// Names of the extended attributes that the session may see.
    pub fn list_xattr(&self, path: &(impl AsPath + ?Sized)) -> Result<Vec<Vec<u8>>> {
        self.at_path(path.as_path_bytes(), true, |node| self.list_xattr_node(node))
    }

    /// Removes an extended attribute; ENODATA if there is none.
    pub fn remove_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8]) -> Result<()> {
        self.at_path(path.as_path_bytes(), true, |node| self.remove_xattr_node(node, name))
    }

    /// Permission check as access(2): `mask` of 4 read, 2 write, 1 execute or search; 0 for existence.
    pub fn access(&self, path: &(impl AsPath + ?Sized), mask: u8) -> Result<()> {
        self.at_path(path.as_path_bytes(), true, |node| self.access_node(node, mask))
    }

    // ---- by node ----

    /// Attributes of a file; ESTALE if it is gone.
    pub fn stat_node(&self, node: Node) -> Result<Stat> {
        self.ops().stat_node(node)
    }

    /// Changes attributes: the size first, then all others together or none. Who may not change all of them changes none. If there is no
    /// room for the others, the size has changed.
    pub fn set_attr_node(&self, node: Node, attr: SetAttr) -> Result<Stat> {
        let rest = SetAttr { size: None, ..attr };
        if let Some(size) = attr.size {
            let file = {
                let look = self.volume().look();
                let _lock = self.volume().lock_shared(Ino(node.ino));
                let raw = inode::read_node(&look, node)?;
                match raw.mode.get() & S_IFMT {
                    S_IFREG => {}
                    S_IFDIR => return Err(Errno::ISDIR.into()),
                    _ => return Err(Errno::INVAL.into()),
                }
                let guarded = Guarded::new(&look, Ino(node.ino), &raw)?;
                perm::check_truncate(self.judged(), &guarded.subject())?;
                self.ops().check_change(&guarded.subject(), &rest)?;
                self.handle(Ino(node.ino), &raw, OpenOptions { write: true, ..OpenOptions::default() })?
            };
            self.take_capabilities(node)?;
            file::truncate(self.volume(), &self.cred, &file.file, size)?;
        }
        if rest == SetAttr::default() && attr.size.is_some() {
            self.stat_node(node)
        } else {
            self.ops().set_attr(node, &rest)
        }
    }

    /// As [`Session::get_xattr`].
    pub fn get_xattr_node(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.ops().get_xattr(node, name)
    }

    /// As [`Session::set_xattr`].
    pub fn set_xattr_node(&self, node: Node, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.ops().set_xattr(node, name, value, mode)
    }

    /// As [`Session::list_xattr`].
    pub fn list_xattr_node(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        self.ops().list_xattr(node)
    }

    /// As [`Session::remove_xattr`].
    pub fn remove_xattr_node(&self, node: Node, name: &[u8]) -> Result<()> {
        self.ops().remove_xattr(node, name)
    }

    /// As [`Session::access`].
    pub fn access_node(&self, node: Node, mask: u8) -> Result<()> {
        self.ops().access(node, mask)
    }
}
