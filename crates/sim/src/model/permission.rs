//! Who may do what to which inode.

use super::acl::{AclEntry, Tag};
use super::{Ino, Inode, Model};
use crate::errno::Errno;
use crate::op::{Cred, flag};

const READ: u8 = 4;
const WRITE: u8 = 2;
const EXEC: u8 = 1;

impl Model {
    /// `mask`: 4 read, 2 write, 1 execute or search.
    pub(super) fn permission(&self, cred: &Cred, ino: Ino, mask: u8) -> Result<(), Errno> {
        let inode = self.inode(ino);
        if mask & WRITE != 0 && inode.flags & flag::IMMUTABLE != 0 {
            return Err(Errno::PERM);
        }
        if is_granted(cred, inode, mask) || (cred.is_root() && is_overridden(inode, mask)) {
            return Ok(());
        }
        Err(Errno::ACCES)
    }

    /// Sticky directories: only the owners of file and directory take names away.
    fn is_sticky_for(&self, cred: &Cred, dir: Ino, victim: Ino) -> bool {
        let directory = self.inode(dir);
        directory.mode & 0o1000 != 0
            && cred.uid != self.inode(victim).uid
            && cred.uid != directory.uid
            && !cred.is_root()
    }

    /// Whether `cred` may take `victim`'s name away from `dir`, to remove it or to put another there.
    pub(super) fn may_delete(&self, cred: &Cred, dir: Ino, victim: Ino, as_dir: bool) -> Result<(), Errno> {
        self.permission(cred, dir, WRITE | EXEC)?;
        let inode = self.inode(victim);
        if self.inode(dir).flags & flag::APPEND != 0
            || self.is_sticky_for(cred, dir, victim)
            || inode.flags & (flag::APPEND | flag::IMMUTABLE) != 0
        {
            return Err(Errno::PERM);
        }
        match (as_dir, inode.is_dir()) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            _ => Ok(()),
        }
    }
}

/// Owner of the file, or the super-user.
pub(super) fn is_owner(cred: &Cred, inode: &Inode) -> bool {
    cred.uid == inode.uid || cred.is_root()
}

/// The super-user passes all but execution of what nobody may execute.
fn is_overridden(inode: &Inode, mask: u8) -> bool {
    inode.is_dir() || mask & EXEC == 0 || inode.mode & 0o111 != 0
}

fn is_granted(cred: &Cred, inode: &Inode, mask: u8) -> bool {
    let has = |bits: u16| u16::from(mask & 7) & !bits == 0;
    if cred.uid == inode.uid {
        return has(inode.mode >> 6);
    }
    if let Some(acl) = &inode.access_acl
        && inode.mode & 0o070 != 0
    {
        return is_granted_by(acl, cred, inode, u16::from(mask & (READ | WRITE | EXEC)));
    }
    if cred.in_group(inode.gid) { has(inode.mode >> 3) } else { has(inode.mode) }
}

/// The first match decides: named user, then any group that grants all, then other if no group matched at all. All
/// but owner and other are narrowed by the mask.
fn is_granted_by(acl: &[AclEntry], cred: &Cred, inode: &Inode, want: u16) -> bool {
    let mask = acl.iter().find(|entry| entry.tag == Tag::Mask).map_or(7, |entry| entry.perm);
    if let Some(user) = acl.iter().find(|entry| entry.tag == Tag::User && entry.id == cred.uid) {
        return want & !(user.perm & mask) == 0;
    }
    let groups: Vec<_> = acl
        .iter()
        .filter(|entry| match entry.tag {
            Tag::GroupObj => cred.in_group(inode.gid),
            Tag::Group => cred.in_group(entry.id),
            _ => false,
        })
        .collect();
    if !groups.is_empty() {
        return groups.iter().any(|entry| want & !(entry.perm & mask) == 0);
    }
    acl.iter().any(|entry| entry.tag == Tag::Other && want & !entry.perm == 0)
}
