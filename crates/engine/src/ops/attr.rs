//! chmod, chown, utimes, inode flags.

use super::{Ops, transact};
use crate::attr_list::{self, ACCESS_ACL};
use crate::counters::Count;
use crate::error::Result;
use crate::inode;
use crate::namei::Guarded;
use crate::perm;
use crate::types::{Node, SetAttr, SetTime, Stat, XattrMode};
use crate::xattr;
use myriad_format::Ino;
use zerocopy::little_endian::{I64, U16, U32};

impl Ops<'_> {
    /// Changes attributes other than the size, all or none of them.
    pub fn set_attr(&self, node: Node, attr: &SetAttr) -> Result<Stat> {
        self.volume.counters.bump(Count::setattrs);
        let ino = Ino(node.ino);
        transact(self.volume, 0, |txn| {
            let volume = self.volume;
            let _lock = volume.lock_exclusive(ino);
            let mut raw = inode::read_node(&txn.look, node)?;
            let guarded = Guarded::new(&txn.look, ino, &raw)?;
            let subject = guarded.subject();
            // All checks before the first change. Flags go by what they were: clearing immutable comes first, alone.
            if attr.uid.is_some() || attr.gid.is_some() {
                perm::check_chown(self.cred, &subject, attr.uid, attr.gid)?;
            }
            if attr.mode.is_some() {
                perm::check_chmod(self.cred, &subject)?;
            }
            perm::check_set_times(self.cred, &subject, attr.atime, attr.mtime)?;
            if let Some(flags) = attr.flags {
                perm::check_flags(self.cred, &subject, flags)?;
            }
            let now = volume.now();
            let mut mode = subject.mode;
            if attr.uid.is_some() || attr.gid.is_some() {
                mode = perm::mode_after_chown(self.caller, &subject);
                raw.uid = U32::new(attr.uid.unwrap_or(subject.uid));
                raw.gid = U32::new(attr.gid.unwrap_or(subject.gid));
            }
            if let Some(wanted) = attr.mode {
                mode = perm::mode_after_chmod(self.caller, &subject, raw.gid.get(), wanted);
                if let Some(acl) = subject.access_acl {
                    let value = perm::acl::chmod_acl(acl, mode)?;
                    let mut list = xattr::read(&txn.look, ino, &raw)?;
                    attr_list::set(ino, &mut list, ACCESS_ACL, &value, XattrMode::Set)?;
                    xattr::write(txn, ino, &mut raw, &list)?;
                }
            }
            raw.mode = U16::new(mode);
            if let Some(flags) = attr.flags {
                raw.flags = U32::new(raw.flags.get() & !inode::USER_FLAGS | flags & inode::USER_FLAGS);
            }
            let time = |wanted: SetTime| match wanted {
                SetTime::Now => now,
                SetTime::At(time) => time,
            };
            if let Some(wanted) = attr.atime {
                raw.atime = I64::new(time(wanted));
            }
            if let Some(wanted) = attr.mtime {
                raw.mtime = I64::new(time(wanted));
                volume.files.set_mtime(ino, time(wanted));
            }
            raw.ctime = I64::new(now);
            volume.files.set_ctime(ino, now);
            inode::write(txn, ino, &raw)?;
            if raw.is_dir() {
                self.paths_changed();
            }
            Ok(self.stat_of(ino, &raw))
        })
    }
}
