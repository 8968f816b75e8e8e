//! Open files.

use super::walk::{Last, Walk};
use super::{Body, Content, Handle, Ino, Model, NAME_MAX, ROOT};
use crate::errno::Errno;
use crate::op::{AllocateHow, Answer, Cred, Kind, OpenHow, Value, flag};
use crate::pattern;

impl Model {
    pub(super) fn open(&mut self, cred: &Cred, slot: usize, path: &[u8], how: &OpenHow) -> Answer {
        self.release(slot);
        let (ino, created) = self.open_node(cred, path, how)?;
        let handle =
            Handle { ino, cred: cred.clone(), read: how.read, write: how.write, append: how.append, sync: how.sync };
        self.handles[slot] = Some(handle);
        if how.truncate && !created && self.inode(ino).kind == Kind::File {
            self.set_size(cred, ino, 0);
            self.touch_ctime(ino);
        }
        Ok(Value::None)
    }

    /// Finds or makes the file, and checks that it may be opened so.
    fn open_node(&mut self, cred: &Cred, path: &[u8], how: &OpenHow) -> Result<(Ino, bool), Errno> {
        let mut walk = Walk::new(self, cred);
        let mut parent = walk.parent(ROOT, path)?;
        let mut follow = !(how.no_follow || how.create && how.exclusive);
        let mut must_be_dir = false;
        let found = loop {
            let Last::Name(name) = &parent.last else {
                break walk.step(parent.dir, &parent.last, true)?;
            };
            if parent.trailing {
                if how.create {
                    return Err(Errno::ISDIR);
                }
                follow = true;
                must_be_dir = true;
            }
            if name.len() > NAME_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            match walk.step(parent.dir, &parent.last, false)? {
                Some(link) if follow && walk.model.inode(link).kind == Kind::Symlink => {
                    parent = walk.follow(parent.dir, link)?;
                }
                found => break found,
            }
        };
        let Some(ino) = found else {
            if !how.create {
                return Err(Errno::NOENT);
            }
            let Last::Name(name) = parent.last else { unreachable!("only names can be missing") };
            self.may_create(cred, parent.dir)?;
            let ino = self.make_inode(cred, parent.dir, Kind::File, how.mode, Body::File(Content::default()));
            self.add_name(parent.dir, name, ino);
            return Ok((ino, true));
        };
        let inode = self.inode(ino);
        if how.create {
            if how.exclusive {
                return Err(Errno::EXIST);
            }
            if inode.is_dir() {
                return Err(Errno::ISDIR);
            }
        }
        if must_be_dir && !inode.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let writes = how.write || how.truncate;
        match inode.kind {
            Kind::Symlink => return Err(Errno::LOOP),
            Kind::Directory if writes => return Err(Errno::ISDIR),
            _ => {}
        }
        self.permission(cred, ino, if how.read { 4 } else { 0 } | if writes { 2 } else { 0 })?;
        if inode.flags & flag::APPEND != 0 && ((how.write && !how.append) || how.truncate) {
            return Err(Errno::PERM);
        }
        match inode.kind {
            Kind::File | Kind::Directory => Ok((ino, false)),
            _ => Err(Errno::NXIO),
        }
    }

    pub(super) fn open_tmpfile(&mut self, cred: &Cred, slot: usize, path: &[u8], mode: u16) -> Answer {
        self.release(slot);
        let dir = self.resolve(cred, path, true)?;
        if !self.inode(dir).is_dir() {
            return Err(Errno::NOTDIR);
        }
        self.may_create(cred, dir)?;
        let ino = self.make_inode(cred, dir, Kind::File, mode, Body::File(Content::default()));
        let inode = self.inode_mut(ino);
        inode.nlink = 0;
        inode.linkable = true;
        let cred = cred.clone();
        self.handles[slot] = Some(Handle { ino, cred, read: true, write: true, append: false, sync: false });
        Ok(Value::None)
    }

    pub(super) fn link_file(&mut self, cred: &Cred, slot: usize, path: &[u8]) -> Answer {
        let ino = self.open_handle(slot)?.ino;
        let (dir, name) = self.place_for(cred, path, false)?;
        self.add_link(cred, ino, dir, name)
    }

    pub(super) fn close(&mut self, slot: usize) -> Answer {
        self.open_handle(slot)?;
        self.release(slot);
        Ok(Value::None)
    }

    pub(super) fn content_of(&self, ino: Ino) -> &Content {
        self.inode(ino).content().expect("only regular files are read and written")
    }

    fn content_mut(&mut self, ino: Ino) -> &mut Content {
        match &mut self.inode_mut(ino).body {
            Body::File(content) => content,
            _ => unreachable!("only regular files are read and written"),
        }
    }

    pub(super) fn read(&self, slot: usize, offset: u64, len: usize) -> Answer {
        let handle = self.open_handle(slot)?;
        if !handle.read {
            return Err(Errno::BADF);
        }
        if self.inode(handle.ino).is_dir() {
            return Err(Errno::ISDIR);
        }
        Ok(Value::Bytes(self.content_of(handle.ino).read(offset, len)))
    }

    fn open_for_writing(&self, slot: usize) -> Result<Handle, Errno> {
        let handle = self.open_handle(slot)?;
        if handle.write { Ok(handle.clone()) } else { Err(Errno::BADF) }
    }

    /// The file's content has changed, or might have.
    fn modified(&mut self, cred: &Cred, ino: Ino) {
        self.clear_set_id(cred, ino);
        let now = self.clock;
        let inode = self.inode_mut(ino);
        inode.mtime = now;
        inode.ctime = now;
    }

    pub(super) fn write(&mut self, slot: usize, offset: u64, len: usize, tag: u32) -> Answer {
        let handle = self.open_for_writing(slot)?;
        if len == 0 {
            return Ok(Value::Count(0));
        }
        let at = if handle.append { self.inode(handle.ino).size() } else { offset };
        if at >= self.size_max {
            return Err(Errno::FBIG);
        }
        let len = (self.size_max - at).min(len as u64) as usize;
        let bytes = pattern::bytes(tag, offset, len);
        self.content_mut(handle.ino).write(at, &bytes);
        self.modified(&handle.cred, handle.ino);
        Ok(Value::Count(len as u64))
    }

    /// POSIX.1-2017: mtime and ctime move even if the size is what it was.
    pub(super) fn set_size(&mut self, cred: &Cred, ino: Ino, size: u64) {
        self.content_mut(ino).truncate(size);
        self.modified(cred, ino);
    }

    pub(super) fn truncate(&mut self, slot: usize, size: u64) -> Answer {
        let handle = self.open_handle(slot)?.clone();
        if size > i64::MAX as u64 || !handle.write {
            return Err(Errno::INVAL);
        }
        if self.inode(handle.ino).flags & flag::APPEND != 0 {
            return Err(Errno::PERM);
        }
        if size > self.size_max {
            return Err(Errno::FBIG);
        }
        self.set_size(&handle.cred, handle.ino, size);
        self.touch_ctime(handle.ino);
        Ok(Value::None)
    }

    pub(super) fn allocate(&mut self, slot: usize, how: AllocateHow, offset: u64, len: u64) -> Answer {
        let handle = self.open_handle(slot)?.clone();
        let end = offset.checked_add(len).filter(|&end| end <= i64::MAX as u64);
        if len == 0 || offset > i64::MAX as u64 {
            return Err(Errno::INVAL);
        }
        if !handle.write {
            return Err(Errno::BADF);
        }
        let moves_bytes = matches!(how, AllocateHow::Punch | AllocateHow::Zero { .. });
        let inode = self.inode(handle.ino);
        if inode.flags & flag::APPEND != 0 && how != AllocateHow::Extend && how != AllocateHow::KeepSize {
            return Err(Errno::PERM);
        }
        let Some(end) = end.filter(|&end| end <= self.size_max) else { return Err(Errno::FBIG) };
        let content = self.content_mut(handle.ino);
        if moves_bytes {
            content.zero(offset, len);
        }
        if matches!(how, AllocateHow::Extend | AllocateHow::Zero { keep_size: false }) {
            content.extend(end);
        }
        self.modified(&handle.cred, handle.ino);
        Ok(Value::None)
    }

    /// One legal answer, of a file system that knows of no holes but the last; `compare` judges others.
    pub(super) fn seek(&self, slot: usize, offset: u64, data: bool) -> Answer {
        let handle = self.open_handle(slot)?;
        let Some(content) = self.inode(handle.ino).content() else { return Err(Errno::ISDIR) };
        if offset >= content.size() {
            return Err(Errno::NXIO);
        }
        if data {
            return content.next_nonzero(offset).map(Value::Position).ok_or(Errno::NXIO);
        }
        Ok(Value::Position(content.size()))
    }
}
