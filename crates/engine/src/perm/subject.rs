//! Whom permission is asked of, and the bits of a mode beyond those of access.

use crate::types::Cred;
use myriad_format::inode::{S_IFDIR, S_IFMT, S_IFREG};

pub const S_ISUID: u16 = 0o4000;
pub const S_ISGID: u16 = 0o2000;
pub const S_ISVTX: u16 = 0o1000;
pub(super) const S_IXGRP: u16 = 0o0010;

/// What permission depends on, of the inode in question.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Type and permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Flags as in the inode.
    pub flags: u32,
    /// Value of system.posix_acl_access, if there is one. `None` must mean that there is none.
    pub access_acl: Option<&'a [u8]>,
}

impl Subject<'_> {
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    pub(super) fn is_regular(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }

    pub(super) fn has_flag(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// inode_owner_or_capable.
    pub fn is_owned_by(&self, cred: &Cred) -> bool {
        cred.uid == self.uid || cred.is_root()
    }
}
