//! Making, linking, renaming and removing files, one name at a time.

use super::{AsPath, File, Session};
use crate::error::{Errno, Error, Result};
use crate::file;
use crate::inode;
use crate::namei;
use crate::ops::{Content, NewFile};
use crate::types::*;
use myriad_format::Ino;
use myriad_format::inode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use std::sync::atomic::Ordering;

/// Content that `create_with` takes into its transaction, in bytes.
const CREATE_WITH_MAX: usize = 1 << 20;

/// A link's target must be a path: ENOENT if it is empty, ENAMETOOLONG from 4096 bytes on.
fn check_target(target: &[u8]) -> Result<()> {
    match target.len() {
        0 => Err(Errno::NOENT.into()),
        1..4096 => Ok(()),
        _ => Err(Errno::NAMETOOLONG.into()),
    }
}

/// What mknod(2) makes of a mode.
fn node_kind(mode: u16, rdev: u64) -> Result<NewFile<'static>> {
    let kind = if mode & S_IFMT == 0 { S_IFREG } else { mode & S_IFMT };
    match kind {
        S_IFDIR => Err(Errno::PERM.into()),
        S_IFLNK => Err(Errno::INVAL.into()),
        _ => Ok(NewFile { mode: kind | mode & 0o7777, rdev, ..NewFile::default() }),
    }
}

impl Session {
    // ---- by path ----

    /// Makes an empty regular file; EEXIST if the name is taken. `mode` has permission bits only.
    pub fn create(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<Node> {
        self.mknod(path, S_IFREG | mode & 0o7777, 0)
    }

    /// Makes an empty directory; EEXIST if the name is taken. `mode` has permission bits only.
    pub fn mkdir(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<Node> {
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, true)?;
            let new = NewFile { mode: S_IFDIR | mode & 0o7777, ..NewFile::default() };
            Ok(ops.make(place.parent, &place.name, &new)?.node())
        })
    }

    /// FIFO, socket, device node or regular file: `mode` has the type bits (0 is a regular file).
    pub fn mknod(&self, path: &(impl AsPath + ?Sized), mode: u16, rdev: u64) -> Result<Node> {
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, false)?;
            Ok(ops.make(place.parent, &place.name, &node_kind(mode, rdev)?)?.node())
        })
    }

    /// Makes a symbolic link that leads to `target`, which need not exist: 1 to 4095 bytes, else ENOENT or ENAMETOOLONG.
    /// EEXIST if the name is taken.
    pub fn symlink(&self, target: &[u8], path: &(impl AsPath + ?Sized)) -> Result<Node> {
        check_target(target)?;
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, false)?;
            let new = NewFile { mode: S_IFLNK | 0o777, target, ..NewFile::default() };
            Ok(ops.make(place.parent, &place.name, &new)?.node())
        })
    }

    /// Where a symbolic link leads; EINVAL if the path names anything else.
    pub fn readlink(&self, path: &(impl AsPath + ?Sized)) -> Result<Vec<u8>> {
        self.at_path(path.as_path_bytes(), false, |node| self.readlink_node(node))
    }

    /// A second name for a file (not a directory). A final symbolic link in `source` is linked itself.
    pub fn link(&self, source: &(impl AsPath + ?Sized), target: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let node = self.resolve_node(source.as_path_bytes(), false)?;
            let place = self.new_name(target.as_path_bytes(), Errno::EXIST, false)?;
            ops.link(node, place.parent, &place.name, LinkRules::default()).map(|_| ())
        })
    }

    /// Removes a name of anything but a directory (EISDIR). The file goes with its last name and its last open handle.
    pub fn unlink(&self, path: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let place = self.old_name(path.as_path_bytes(), Errno::ISDIR, Errno::ISDIR)?;
            if place.must_be_dir {
                let stat = self.ops().lookup(place.parent, &place.name)?;
                return Err(if stat.is_dir() { Errno::ISDIR } else { Errno::NOTDIR }.into());
            }
            ops.unlink(place.parent, &place.name)
        })
    }

    /// Removes an empty directory: ENOTEMPTY if it is not, ENOTDIR if it is no directory, EBUSY for the root.
    pub fn rmdir(&self, path: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let place = self.old_name(path.as_path_bytes(), Errno::INVAL, Errno::NOTEMPTY)?;
            ops.rmdir(place.parent, &place.name)
        })
    }

    /// Gives the file or directory named `source` the name `target`, in one step: another thread sees one of the two names, never
    /// both or none. `mode` says what happens if `target` exists. EEXIST, ENOTEMPTY, EISDIR or ENOTDIR if the target may not be replaced so;
    /// EINVAL if a directory would come to lie within itself; EBUSY for the root.
    pub fn rename(
        &self,
        source: &(impl AsPath + ?Sized),
        target: &(impl AsPath + ?Sized),
        mode: RenameMode,
    ) -> Result<()> {
        let (source, target) = (source.as_path_bytes(), target.as_path_bytes());
        if source.is_empty() || target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        self.by_path(|ops| {
            // Both directories are found before either name is judged.
            let (from, to) = {
                let mut look = self.volume().look();
                (self.target(&mut look, source)?, self.target(&mut look, target)?)
            };
            if from.name.is_empty() {
                return Err(Errno::BUSY.into());
            }
            if to.name.is_empty() {
                return Err(if mode.keeps_target() { Errno::EXIST } else { Errno::BUSY }.into());
            }
            let slashes = (from.must_be_dir, to.must_be_dir);
            ops.rename((from.parent, &from.name), (to.parent, &to.name), mode, slashes)
        })
    }

    /// Names an unnamed file, or gives a named one a further name.
    pub fn link_file(&self, file: &File, path: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, false)?;
            let linkable = file.file.linkable.load(Ordering::Acquire);
            ops.link(file.node(), place.parent, &place.name, LinkRules { unnamed: linkable, protected: false })?;
            // Once named, it is like any other file: gone when its last name and its last handle are.
            file.file.linkable.store(false, Ordering::Release);
            Ok(())
        })
    }

    // ---- by node ----

    /// Attributes of the file that `name` names in a directory; ENOENT if there is none. `.` and `..` have answers, too.
    pub fn lookup(&self, parent: Node, name: &[u8]) -> Result<Stat> {
        if name == b"." || name == b".." {
            let node = if name == b"." { parent } else { self.parent_of(parent)? };
            return self.stat_node(node);
        }
        self.ops().lookup(parent, name)
    }

    /// The parent of a directory (the root's is the root); ENOENT for one that was removed.
    pub fn parent_of(&self, directory: Node) -> Result<Node> {
        let look = self.volume().look();
        let _lock = self.volume().lock_shared(Ino(directory.ino));
        let raw = inode::read_node(&look, directory)?;
        if !raw.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        namei::parent(&look, &raw)
    }

    /// As [`Session::mknod`], in a directory.
    pub fn mknod_at(&self, parent: Node, name: &[u8], mode: u16, rdev: u64) -> Result<Stat> {
        self.ops().make(parent, name, &node_kind(mode, rdev)?)
    }

    /// As [`Session::mkdir`], in a directory.
    pub fn mkdir_at(&self, parent: Node, name: &[u8], mode: u16) -> Result<Stat> {
        let new = NewFile { mode: S_IFDIR | mode & 0o7777, ..NewFile::default() };
        self.ops().make(parent, name, &new)
    }

    /// As [`Session::symlink`], in a directory.
    pub fn symlink_at(&self, target: &[u8], parent: Node, name: &[u8]) -> Result<Stat> {
        check_target(target)?;
        self.ops().make(parent, name, &NewFile { mode: S_IFLNK | 0o777, target, ..NewFile::default() })
    }

    /// Makes a file with its content and attributes in one transaction: after a crash it is there whole, or not at all.
    /// The same as `mknod_at` or `symlink_at`, a write, and `set_attr_node`, with their errors; and EINVAL for content
    /// that its type cannot have, or a size in `attr`. Content of more than 1 MiB (less in a small cache) is written
    /// after the name is made, and a crash may leave part of it. Under orders `softdep`, `sync` and `none` power loss may leave the name and the size
    /// before the content: zeros.
    pub fn create_with(&self, parent: Node, name: &[u8], new: &CreateWith<'_>) -> Result<Stat> {
        let mut file = if new.mode & S_IFMT == S_IFLNK {
            check_target(new.content)?;
            NewFile { mode: S_IFLNK | 0o777, target: new.content, ..NewFile::default() }
        } else {
            node_kind(new.mode, new.rdev)?
        };
        if new.attr.size.is_some() || !new.content.is_empty() && !matches!(file.mode & S_IFMT, S_IFREG | S_IFLNK) {
            return Err(Errno::INVAL.into());
        }
        if new.attr != SetAttr::default() {
            file.attr = Some(&new.attr);
        }
        let data = if file.mode & S_IFMT == S_IFREG { new.content } else { &[] };
        let volume = self.volume();
        if data.len() > CREATE_WITH_MAX.min(volume.cache.frame_count() / 8 * volume.cache.block_size()) {
            return self.create_long(parent, name, &NewFile { attr: None, ..file }, new);
        }
        volume.check_running()?;
        let pages = file::fill(volume, data)?;
        file.content = Content { size: data.len() as u64, pages: &pages, passing: new.dont_cache };
        let made = self.ops().make_unsynced(parent, name, &file);
        if made.is_err() {
            // Published last of all, the frames are still ours.
            for page in pages {
                volume.cache.drop_private(page.frame);
            }
            return made;
        }
        volume.before_return()?;
        match file::bound_ordered(volume) {
            // The file is made, and waits for room. The next write is refused, and whoever syncs is told.
            Err(Error::HostFull(_)) => volume.files.is_over_bound.store(true, Ordering::Relaxed),
            bounded => bounded?,
        }
        made
    }

    fn create_long(&self, parent: Node, name: &[u8], file: &NewFile<'_>, new: &CreateWith<'_>) -> Result<Stat> {
        let node = self.ops().make(parent, name, file)?.node();
        let options = OpenOptions { write: true, dont_cache: new.dont_cache, ..OpenOptions::default() };
        let filled = self.open_unchecked(node, options).and_then(|file| {
            let written = file.write_at(new.content, 0)?;
            if written < new.content.len() { Err(Errno::NOSPC.into()) } else { Ok(()) }
        });
        let done = filled.and_then(|()| {
            if new.attr == SetAttr::default() { self.stat_node(node) } else { self.set_attr_node(node, new.attr) }
        });
        if done.is_err() {
            // Somebody may have given the name to another file. The error in hand says more than one about this.
            let _ = self.ops().unlink_only(parent, name, node);
        }
        done
    }

    /// As [`Session::link`], in a directory. ENOENT for a file without names, unless the session's caller has checked that it
    /// may get one ([`Fs::session_checked`](super::Fs::session_checked)).
    pub fn link_at(&self, node: Node, parent: Node, name: &[u8]) -> Result<Stat> {
        // A kernel that checks permissions also knows which of its unnamed files may get a name.
        self.link_with(node, parent, name, LinkRules { unnamed: self.checked, protected: false })
    }

    /// As [`Session::link_at`], by rules of the caller.
    pub fn link_with(&self, node: Node, parent: Node, name: &[u8], rules: LinkRules) -> Result<Stat> {
        self.ops().link(node, parent, name, rules)
    }

    /// As [`Session::unlink`], in a directory.
    pub fn unlink_at(&self, parent: Node, name: &[u8]) -> Result<()> {
        self.ops().unlink(parent, name)
    }

    /// As [`Session::rmdir`], in a directory.
    pub fn rmdir_at(&self, parent: Node, name: &[u8]) -> Result<()> {
        self.ops().rmdir(parent, name)
    }

    /// As [`Session::rename`], from a name in one directory to a name in another or the same.
    pub fn rename_at(&self, source: Node, name: &[u8], target: Node, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.ops().rename((source, name), (target, new_name), mode, (false, false))
    }

    /// As [`Session::readlink`].
    pub fn readlink_node(&self, node: Node) -> Result<Vec<u8>> {
        let target = self.ops().readlink(node)?;
        self.ops().accessed(node);
        Ok(target)
    }
}
