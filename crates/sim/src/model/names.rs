//! Names: making, linking, removing, renaming.

use super::permission::is_owner;
use super::walk::{Last, Walk};
use super::{Body, Content, Ino, Inode, Model, NAME_MAX, ROOT, TARGET_MAX, acl};
use crate::errno::Errno;
use crate::op::{Answer, Cred, Kind, RenameHow, Value, flag};
use std::collections::BTreeMap;
use std::sync::Arc;

const SETGID: u16 = 0o2000;

impl Model {
    /// A new inode as a child of `dir` would be: owner, group, mode and ACLs as the directory says.
    pub(super) fn make_inode(&mut self, cred: &Cred, dir: Ino, kind: Kind, mode: u16, body: Body) -> Ino {
        let parent = self.inode(dir);
        let inherits = parent.mode & SETGID != 0;
        let gid = if inherits { parent.gid } else { cred.gid };
        let mut mode = mode & 0o7777;
        // Nobody gets a set-group-id program of a group he is not in.
        let sgid_exec = mode & 0o2010 == 0o2010;
        if inherits && sgid_exec && kind != Kind::Directory && !cred.in_group(parent.gid) && !cred.is_root() {
            mode &= !SETGID;
        }
        let (mut access_acl, mut default_acl) = (None, None);
        match (&parent.default_acl, kind) {
            (_, Kind::Symlink) => mode = 0o777,
            (Some(default), _) => {
                (access_acl, mode) = acl::inherit(default, mode);
                if kind == Kind::Directory {
                    default_acl = Some(default.clone());
                }
            }
            (None, _) => mode &= !cred.umask,
        }
        if inherits && kind == Kind::Directory {
            mode |= SETGID;
        }
        let now = self.clock;
        let ino = self.next_ino;
        self.next_ino += 1;
        let inode = Inode {
            kind,
            mode,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            uid: cred.uid,
            gid,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: 0,
            xattrs: BTreeMap::new(),
            access_acl,
            default_acl,
            body,
            parent: dir,
            linkable: false,
        };
        self.inodes.insert(ino, Arc::new(inode));
        ino
    }

    pub(super) fn touch_ctime(&mut self, ino: Ino) {
        let now = self.clock;
        self.inode_mut(ino).ctime = now;
    }

    fn touch_dir(&mut self, dir: Ino) {
        let now = self.clock;
        let inode = self.inode_mut(dir);
        inode.mtime = now;
        inode.ctime = now;
    }

    fn entries_mut(&mut self, dir: Ino) -> &mut BTreeMap<Vec<u8>, Ino> {
        match &mut self.inode_mut(dir).body {
            Body::Dir(entries) => entries,
            _ => unreachable!("the walk ends in a directory"),
        }
    }

    pub(super) fn add_name(&mut self, dir: Ino, name: Vec<u8>, ino: Ino) {
        self.entries_mut(dir).insert(name, ino);
        if self.inode(ino).is_dir() {
            self.inode_mut(dir).nlink += 1;
            self.inode_mut(ino).parent = dir;
        }
        self.touch_dir(dir);
    }

    fn drop_name(&mut self, dir: Ino, name: &[u8]) {
        let ino = self.entries_mut(dir).remove(name).expect("the name was found");
        if self.inode(ino).is_dir() {
            self.inode_mut(dir).nlink -= 1;
        }
        self.touch_dir(dir);
    }

    /// One name of `ino` is gone for good.
    fn drop_link(&mut self, ino: Ino) {
        self.touch_ctime(ino);
        let inode = self.inode_mut(ino);
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink - 1 };
        self.reap(ino);
    }

    pub(super) fn create(&mut self, cred: &Cred, path: &[u8], kind: Kind, mode: u16, rdev: u64) -> Answer {
        let (dir, name) = self.place_for(cred, path, false)?;
        self.may_create(cred, dir)?;
        let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        // Anybody may say that a name is not there: a whiteout of an overlay.
        let is_whiteout = kind == Kind::CharDevice && rdev == 0;
        if is_device && !is_whiteout && !cred.is_root() {
            return Err(Errno::PERM);
        }
        let body = if kind == Kind::File { Body::File(Content::default()) } else { Body::None };
        let ino = self.make_inode(cred, dir, kind, mode, body);
        if is_device {
            self.inode_mut(ino).rdev = rdev;
        }
        self.add_name(dir, name, ino);
        Ok(Value::None)
    }

    pub(super) fn mkdir(&mut self, cred: &Cred, path: &[u8], mode: u16) -> Answer {
        let (dir, name) = self.place_for(cred, path, true)?;
        self.may_create(cred, dir)?;
        let ino = self.make_inode(cred, dir, Kind::Directory, mode & 0o1777, Body::Dir(BTreeMap::new()));
        self.add_name(dir, name, ino);
        Ok(Value::None)
    }

    pub(super) fn symlink(&mut self, cred: &Cred, target: &[u8], path: &[u8]) -> Answer {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > TARGET_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let (dir, name) = self.place_for(cred, path, false)?;
        self.may_create(cred, dir)?;
        let ino = self.make_inode(cred, dir, Kind::Symlink, 0o777, Body::Link(target.to_vec()));
        self.add_name(dir, name, ino);
        Ok(Value::None)
    }

    pub(super) fn readlink(&self, cred: &Cred, path: &[u8]) -> Answer {
        let ino = self.resolve(cred, path, false)?;
        match &self.inode(ino).body {
            Body::Link(target) => Ok(Value::Bytes(target.clone())),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn link(&mut self, cred: &Cred, source: &[u8], target: &[u8]) -> Answer {
        let ino = self.resolve(cred, source, false)?;
        let (dir, name) = self.place_for(cred, target, false)?;
        self.add_link(cred, ino, dir, name)
    }

    /// What fs.protected_hardlinks lets others link to.
    fn is_safe_source(&self, cred: &Cred, ino: Ino) -> bool {
        let inode = self.inode(ino);
        let harmless = inode.kind == Kind::File && inode.mode & 0o4000 == 0 && inode.mode & 0o2010 != 0o2010;
        is_owner(cred, inode) || (harmless && self.permission(cred, ino, 6).is_ok())
    }

    pub(super) fn add_link(&mut self, cred: &Cred, ino: Ino, dir: Ino, name: Vec<u8>) -> Answer {
        if self.protected_hardlinks && !self.is_safe_source(cred, ino) {
            return Err(Errno::PERM);
        }
        self.may_create(cred, dir)?;
        let inode = self.inode(ino);
        if inode.flags & (flag::APPEND | flag::IMMUTABLE) != 0 || inode.is_dir() {
            return Err(Errno::PERM);
        }
        if inode.nlink == 0 && !inode.linkable {
            return Err(Errno::NOENT);
        }
        let inode = self.inode_mut(ino);
        inode.nlink += 1;
        inode.linkable = false;
        self.touch_ctime(ino);
        self.add_name(dir, name, ino);
        Ok(Value::None)
    }

    pub(super) fn unlink(&mut self, cred: &Cred, path: &[u8]) -> Answer {
        let mut walk = Walk::new(self, cred);
        let parent = walk.parent(ROOT, path)?;
        let Last::Name(name) = &parent.last else { return Err(Errno::ISDIR) };
        let ino = walk.step(parent.dir, &parent.last, false)?.ok_or(Errno::NOENT)?;
        if parent.trailing {
            return Err(if self.inode(ino).is_dir() { Errno::ISDIR } else { Errno::NOTDIR });
        }
        self.may_delete(cred, parent.dir, ino, false)?;
        self.drop_name(parent.dir, name);
        self.drop_link(ino);
        Ok(Value::None)
    }

    pub(super) fn rmdir(&mut self, cred: &Cred, path: &[u8]) -> Answer {
        let mut walk = Walk::new(self, cred);
        let parent = walk.parent(ROOT, path)?;
        let name = match &parent.last {
            Last::Name(name) => name,
            Last::DotDot => return Err(Errno::NOTEMPTY),
            Last::Dot => return Err(Errno::INVAL),
            Last::Root => return Err(Errno::BUSY),
        };
        let ino = walk.step(parent.dir, &parent.last, false)?.ok_or(Errno::NOENT)?;
        self.may_delete(cred, parent.dir, ino, true)?;
        if self.inode(ino).size() != 0 {
            return Err(Errno::NOTEMPTY);
        }
        self.drop_name(parent.dir, name);
        self.drop_link(ino);
        Ok(Value::None)
    }

    pub(super) fn rename(&mut self, cred: &Cred, source: &[u8], target: &[u8], how: RenameHow) -> Answer {
        let exchange = how == RenameHow::Exchange;
        let from = Walk::new(self, cred).parent(ROOT, source)?;
        let to = Walk::new(self, cred).parent(ROOT, target)?;
        let Last::Name(old_name) = from.last else { return Err(Errno::BUSY) };
        let Last::Name(new_name) = to.last else {
            return Err(if how.keeps_target() { Errno::EXIST } else { Errno::BUSY });
        };
        if old_name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let old = self.lookup(from.dir, &old_name).ok_or(Errno::NOENT)?;
        if new_name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let new = self.lookup(to.dir, &new_name);
        let old_is_dir = self.inode(old).is_dir();
        let new_is_dir = new.is_some_and(|new| self.inode(new).is_dir());
        match (how, new) {
            (how, Some(_)) if how.keeps_target() => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            (RenameHow::Exchange, _) if !new_is_dir && to.trailing => return Err(Errno::NOTDIR),
            _ => {}
        }
        if !old_is_dir && (from.trailing || (to.trailing && !exchange)) {
            return Err(Errno::NOTDIR);
        }
        if old_is_dir && self.is_within(to.dir, old) {
            return Err(Errno::INVAL);
        }
        if let Some(new) = new
            && from.dir != to.dir
            && self.is_within(from.dir, new)
        {
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if new == Some(old) {
            return Ok(Value::None);
        }
        self.may_delete(cred, from.dir, old, old_is_dir)?;
        match new {
            None => self.may_create(cred, to.dir)?,
            Some(new) => self.may_delete(cred, to.dir, new, if exchange { new_is_dir } else { old_is_dir })?,
        }
        if from.dir != to.dir {
            // The directory's own ".." changes.
            if old_is_dir {
                self.permission(cred, old, 2)?;
            }
            if let Some(new) = new
                && exchange
                && new_is_dir
            {
                self.permission(cred, new, 2)?;
            }
        }
        if let Some(new) = new {
            if !exchange && new_is_dir && self.inode(new).size() != 0 {
                return Err(Errno::NOTEMPTY);
            }
            self.drop_name(to.dir, &new_name);
        }
        self.drop_name(from.dir, &old_name);
        self.add_name(to.dir, new_name, old);
        self.touch_ctime(old);
        if how.leaves_whiteout() {
            let whiteout = self.make_inode(cred, from.dir, Kind::CharDevice, 0, Body::None);
            self.add_name(from.dir, old_name.clone(), whiteout);
        }
        match new {
            Some(new) if exchange => {
                self.add_name(from.dir, old_name, new);
                self.touch_ctime(new);
            }
            Some(new) => self.drop_link(new),
            None => {}
        }
        Ok(Value::None)
    }

    /// Whether directory `inner` is `outer` or below it.
    fn is_within(&self, inner: Ino, outer: Ino) -> bool {
        let mut at = inner;
        loop {
            if at == outer {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.inode(at).parent;
        }
    }
}
