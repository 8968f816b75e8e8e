//! Attributes, plain and extended.

use super::permission::is_owner;
use super::{Ino, Inode, Model, acl};
use crate::errno::Errno;
use crate::op::{Answer, Change, Cred, Kind, SetTime, Value, XattrHow, flag};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;

const XATTR_NAME_MAX: usize = 255;
const XATTR_VALUE_MAX: usize = 65536;
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// A group that may keep set-group-id: the user's own, or any for the super-user.
fn may_keep_sgid(cred: &Cred, gid: u32) -> bool {
    cred.in_group(gid) || cred.is_root()
}

/// `mode` without the set-id bits that a change of owner takes away.
fn without_set_id(cred: &Cred, inode: &Inode) -> u16 {
    let mode = inode.mode;
    let drops_sgid = mode & SETGID != 0 && (mode & 0o010 != 0 || !may_keep_sgid(cred, inode.gid));
    mode & !SETUID & !if drops_sgid { SETGID } else { 0 }
}

impl Model {
    /// A change of content takes set-id bits away, but not when the super-user makes it.
    pub(super) fn clear_set_id(&mut self, cred: &Cred, ino: Ino) {
        let inode = self.inode(ino);
        if !cred.is_root() && inode.kind == Kind::File {
            let mode = without_set_id(cred, inode);
            self.inode_mut(ino).mode = mode;
        }
    }

    pub(super) fn set_attr(&mut self, cred: &Cred, ino: Ino, change: Change) -> Answer {
        let inode = self.inode(ino);
        let frozen = inode.flags & (flag::IMMUTABLE | flag::APPEND) != 0;
        match change {
            Change::Mode(mode) => {
                if frozen || !is_owner(cred, inode) {
                    return Err(Errno::PERM);
                }
                let mut mode = mode & 0o7777;
                if !may_keep_sgid(cred, inode.gid) {
                    mode &= !SETGID;
                }
                self.set_mode(ino, mode);
            }
            Change::Owner { uid, gid } => {
                if frozen {
                    return Err(Errno::PERM);
                }
                let owns = cred.uid == inode.uid;
                let uid_ok = uid.is_none_or(|uid| cred.is_root() || (owns && uid == inode.uid));
                let gid_ok = gid.is_none_or(|gid| cred.is_root() || (owns && (gid == inode.gid || cred.in_group(gid))));
                if !uid_ok || !gid_ok {
                    return Err(Errno::PERM);
                }
                let mut mode = inode.mode;
                if !inode.is_dir() {
                    mode = without_set_id(cred, inode);
                }
                let inode = self.inode_mut(ino);
                inode.mode = mode;
                inode.uid = uid.unwrap_or(inode.uid);
                inode.gid = gid.unwrap_or(inode.gid);
            }
            Change::Size(size) => {
                match inode.kind {
                    Kind::File => {}
                    Kind::Directory => return Err(Errno::ISDIR),
                    _ => return Err(Errno::INVAL),
                }
                if size > i64::MAX as u64 {
                    return Err(Errno::INVAL);
                }
                self.permission(cred, ino, 2)?;
                if self.inode(ino).flags & flag::APPEND != 0 {
                    return Err(Errno::PERM);
                }
                if size > self.size_max {
                    return Err(Errno::FBIG);
                }
                self.set_size(cred, ino, size);
            }
            Change::Times { atime, mtime } => {
                if (atime, mtime) == (Some(SetTime::Now), Some(SetTime::Now)) {
                    if inode.flags & flag::IMMUTABLE != 0 {
                        return Err(Errno::PERM);
                    }
                    if !is_owner(cred, inode) {
                        self.permission(cred, ino, 2)?;
                    }
                } else if frozen || !is_owner(cred, inode) {
                    return Err(Errno::PERM);
                }
                let now = self.clock;
                let resolve = |set: SetTime| match set {
                    SetTime::Now => now,
                    SetTime::At(time) => time,
                };
                let inode = self.inode_mut(ino);
                inode.atime = atime.map_or(inode.atime, resolve);
                inode.mtime = mtime.map_or(inode.mtime, resolve);
            }
            Change::Flags(flags) => {
                if !is_owner(cred, inode) {
                    return Err(Errno::PERM);
                }
                if (flags ^ inode.flags) & (flag::IMMUTABLE | flag::APPEND) != 0 && !cred.is_root() {
                    return Err(Errno::PERM);
                }
                self.inode_mut(ino).flags = flags;
            }
        }
        self.touch_ctime(ino);
        Ok(Value::Stat(self.stat(ino)))
    }

    /// chmod: the access ACL follows.
    fn set_mode(&mut self, ino: Ino, mode: u16) {
        let inode = self.inode_mut(ino);
        inode.mode = mode;
        if let Some(acl) = &mut inode.access_acl {
            acl::set_mode(acl, mode);
        }
    }

    /// Whether attribute `name` may be read (4) or written (2).
    fn xattr_permission(&self, cred: &Cred, ino: Ino, name: &[u8], mask: u8) -> Result<(), Errno> {
        let inode = self.inode(ino);
        let writes = mask == 2;
        let hidden = Err(if writes { Errno::PERM } else { Errno::NODATA });
        if writes && inode.flags & (flag::IMMUTABLE | flag::APPEND) != 0 {
            return Err(Errno::PERM);
        }
        if name.starts_with(b"security.") || name.starts_with(b"system.") {
            return Ok(());
        }
        if name.starts_with(b"trusted.") {
            return if cred.is_root() { Ok(()) } else { hidden };
        }
        if name.starts_with(b"user.") {
            match inode.kind {
                Kind::File => {}
                Kind::Directory if writes && inode.mode & 0o1000 != 0 && !is_owner(cred, inode) => return hidden,
                Kind::Directory => {}
                _ => return hidden,
            }
        }
        self.permission(cred, ino, mask)
    }

    /// The namespace must be one we have, and a name must follow it.
    fn check_xattr_space(name: &[u8]) -> Result<(), Errno> {
        for space in [&b"user."[..], b"trusted.", b"security."] {
            if let Some(rest) = name.strip_prefix(space) {
                return if rest.is_empty() { Err(Errno::INVAL) } else { Ok(()) };
            }
        }
        Err(Errno::OPNOTSUPP)
    }

    fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX { Err(Errno::RANGE) } else { Ok(()) }
    }

    fn is_acl(name: &[u8]) -> bool {
        name == ACCESS_ACL || name == DEFAULT_ACL
    }

    pub(super) fn get_xattr(&self, cred: &Cred, path: &[u8], name: &[u8]) -> Answer {
        Self::check_xattr_name(name)?;
        let ino = self.resolve(cred, path, true)?;
        let inode = self.inode(ino);
        if Self::is_acl(name) {
            let acl = if name == ACCESS_ACL { &inode.access_acl } else { &inode.default_acl };
            return acl.as_ref().map(|acl| Value::Bytes(acl::encode(acl))).ok_or(Errno::NODATA);
        }
        self.xattr_permission(cred, ino, name, 4)?;
        Self::check_xattr_space(name)?;
        inode.xattrs.get(name).map(|value| Value::Bytes(value.clone())).ok_or(Errno::NODATA)
    }

    pub(super) fn set_xattr(&mut self, cred: &Cred, path: &[u8], name: &[u8], value: &[u8], how: XattrHow) -> Answer {
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        Self::check_xattr_name(name)?;
        let ino = self.resolve(cred, path, true)?;
        if Self::is_acl(name) {
            let acl = acl::parse(value)?;
            return self.set_acl(cred, ino, name == DEFAULT_ACL, acl);
        }
        self.xattr_permission(cred, ino, name, 2)?;
        if name.starts_with(b"security.") && !cred.is_root() {
            return Err(Errno::PERM);
        }
        Self::check_xattr_space(name)?;
        let inode = self.inode_mut(ino);
        match (how, inode.xattrs.contains_key(name)) {
            (XattrHow::Create, true) => return Err(Errno::EXIST),
            (XattrHow::Replace, false) => return Err(Errno::NODATA),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        self.touch_ctime(ino);
        Ok(Value::None)
    }

    fn set_acl(&mut self, cred: &Cred, ino: Ino, is_default: bool, acl: Option<acl::Acl>) -> Answer {
        let inode = self.inode(ino);
        if inode.flags & (flag::IMMUTABLE | flag::APPEND) != 0 {
            return Err(Errno::PERM);
        }
        // Which of the next two comes first is the kernel's choice: type before owner.
        if is_default && !inode.is_dir() {
            return if acl.is_some() { Err(Errno::ACCES) } else { Ok(Value::None) };
        }
        if !is_owner(cred, inode) {
            return Err(Errno::PERM);
        }
        if acl.as_ref().is_some_and(|acl| !acl::is_valid(acl)) {
            return Err(Errno::INVAL);
        }
        if is_default {
            self.inode_mut(ino).default_acl = acl;
            self.touch_ctime(ino);
            return Ok(Value::None);
        }
        let Some(acl) = acl else {
            self.inode_mut(ino).access_acl = None;
            self.touch_ctime(ino);
            return Ok(Value::None);
        };
        let (bits, minimal) = acl::to_mode(&acl);
        let mut mode = inode.mode & !0o777 | bits;
        if !may_keep_sgid(cred, inode.gid) {
            mode &= !SETGID;
        }
        let inode = self.inode_mut(ino);
        inode.mode = mode;
        inode.access_acl = (!minimal).then_some(acl);
        self.touch_ctime(ino);
        Ok(Value::None)
    }

    pub(super) fn list_xattr(&self, cred: &Cred, path: &[u8]) -> Answer {
        let ino = self.resolve(cred, path, true)?;
        let mut names = self.xattr_names(ino);
        names.retain(|name| cred.is_root() || !name.starts_with(b"trusted."));
        Ok(Value::Names(names))
    }

    /// All names of attributes, sorted.
    fn xattr_names(&self, ino: Ino) -> Vec<Vec<u8>> {
        self.all_xattrs(ino).into_keys().collect()
    }

    /// All attributes of an inode, ACLs included.
    pub fn all_xattrs(&self, ino: Ino) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
        let inode = self.inode(ino);
        let mut all = inode.xattrs.clone();
        for (name, acl) in [(ACCESS_ACL, &inode.access_acl), (DEFAULT_ACL, &inode.default_acl)] {
            if let Some(acl) = acl {
                all.insert(name.to_vec(), acl::encode(acl));
            }
        }
        all
    }

    pub(super) fn remove_xattr(&mut self, cred: &Cred, path: &[u8], name: &[u8]) -> Answer {
        Self::check_xattr_name(name)?;
        let ino = self.resolve(cred, path, true)?;
        if Self::is_acl(name) {
            return self.set_acl(cred, ino, name == DEFAULT_ACL, None);
        }
        self.xattr_permission(cred, ino, name, 2)?;
        if name.starts_with(b"security.") && !cred.is_root() {
            return Err(Errno::PERM);
        }
        Self::check_xattr_space(name)?;
        if self.inode_mut(ino).xattrs.remove(name).is_none() {
            return Err(Errno::NODATA);
        }
        self.touch_ctime(ino);
        Ok(Value::None)
    }
}
