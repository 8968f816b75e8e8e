//! chmod, chown, utimes, inode flags.

use super::Ops;
use crate::attr_list::{self, ACCESS_ACL, CAPABILITIES};
use crate::counters::Count;
use crate::error::{Errno, Result};
use crate::inode;
use crate::namei::Guarded;
use crate::order::Txn;
use crate::perm;
use crate::perm::Subject;
use crate::planted::{Bug, planted};
use crate::types::{AccessTimes, Node, SetAttr, SetTime, Stat, Time, XattrMode};
use crate::volume::{FramesWanted, Share, transact};
use crate::xattr;
use myriad_format::Ino;
use myriad_format::inode::{RawInode, flag};
use zerocopy::little_endian::{I64, U16, U32};

/// An access time of that age moves though the file has not changed since, as Linux has it: a day, in nanoseconds.
const ATIME_AGE: Time = 24 * 3600 * 1_000_000_000;

impl Ops<'_> {
    /// A file, directory or link was read: its access time becomes now, as the volume's options have it. Changed in memory, it
    /// becomes durable with what is changed next.
    #[inline]
    pub fn accessed(&self, node: Node) {
        if self.volume.live.moves_atime() {
            // Who reads is given what there is, also where nothing can be changed any more.
            let _ = self.move_atime(node);
        }
    }

    fn move_atime(&self, node: Node) -> Result<()> {
        let stat = self.stat_node(node)?;
        let now = self.volume.now();
        let (when, of_directories) = self.volume.live.access_times();
        let is_due = match when {
            AccessTimes::Never => false,
            AccessTimes::Relative => {
                stat.atime <= stat.mtime.max(stat.ctime) || now.saturating_sub(stat.atime) >= ATIME_AGE
            }
            // The coarse clock stands still for a few milliseconds.
            AccessTimes::Strict => stat.atime != now,
        };
        let is_wanted = stat.flags & flag::NOATIME == 0 && (of_directories || !stat.is_dir());
        if !is_due || !is_wanted {
            return Ok(());
        }
        let ino = Ino(node.ino);
        transact(self.volume, 0, |txn| {
            let _lock = self.volume.lock_exclusive(ino);
            let mut raw = inode::read_node(&txn.look, node)?;
            raw.atime = I64::new(now);
            inode::write(txn, ino, &raw)
        })
    }

    /// Changes attributes other than the size, all or none of them.
    pub fn set_attr(&self, node: Node, attr: &SetAttr) -> Result<Stat> {
        self.volume.counters.bump(Count::setattrs);
        let ino = Ino(node.ino);
        let change = |txn: &mut Txn<'_>, wanted: &FramesWanted| {
            let volume = self.volume;
            let _lock = volume.lock_exclusive(ino);
            let mut raw = inode::read_node(&txn.look, node)?;
            let guarded = Guarded::new(&txn.look, ino, &raw)?;
            let now = volume.now();
            let acl = self.change(&guarded.subject(), attr, now, &mut raw)?;
            // As with set-id bits: what a program may do is not for its new owner to use (chown_common).
            let is_given = attr.uid.is_some() || attr.gid.is_some();
            let takes_capabilities = is_given && xattr::has_capabilities(&txn.look, ino, &raw);
            if acl.is_some() || takes_capabilities {
                let mut list = xattr::read(&txn.look, ino, &raw)?;
                if let Some(acl) = acl {
                    attr_list::set(ino, &mut list, ACCESS_ACL, &acl, XattrMode::Set)?;
                }
                if takes_capabilities {
                    attr_list::remove(ino, &mut list, CAPABILITIES)?;
                }
                let blocks = xattr::blocks_for(volume.cache.block_size(), list.len());
                if !txn.try_reserve(blocks, Share::Last) {
                    return Err(Errno::NOSPC.into());
                }
                txn.ask_frames(blocks as usize, wanted)?;
                xattr::write(txn, ino, &mut raw, &list)?;
            }
            if attr.mtime.is_some() {
                volume.files.set_mtime(ino, raw.mtime.get());
            }
            volume.files.set_ctime(ino, now);
            inode::write(txn, ino, &raw)?;
            if raw.is_dir() {
                self.paths_changed();
            }
            Ok(self.stat_of(&txn.look, ino, &raw))
        };
        let stat = self.volume.with_frames(|wanted| transact(self.volume, 0, |txn| change(txn, wanted)))?;
        if !planted(Bug::SyncAttributesForgotten) {
            self.volume.before_return()?;
        }
        Ok(stat)
    }

    /// Whether all of `attr` but the size may be changed of the inode that `subject` describes.
    pub fn check_change(&self, subject: &Subject<'_>, attr: &SetAttr) -> Result<()> {
        if attr.uid.is_some() || attr.gid.is_some() {
            perm::check_chown(self.cred, subject, attr.uid, attr.gid)?;
        }
        if attr.mode.is_some() {
            perm::check_chmod(self.cred, subject)?;
        }
        perm::check_set_times(self.cred, subject, attr.atime, attr.mtime)?;
        if let Some(flags) = attr.flags {
            perm::check_flags(self.cred, subject, flags)?;
        }
        Ok(())
    }

    /// Checks all of `attr` but the size against the inode that `subject` and `raw` describe, then makes the changes in
    /// `raw`. Returns the access ACL that must follow a change of mode, if there is one. Flags go by what they were:
    /// clearing immutable comes first, alone.
    pub(super) fn change(
        &self,
        subject: &Subject<'_>,
        attr: &SetAttr,
        now: Time,
        raw: &mut RawInode,
    ) -> Result<Option<Vec<u8>>> {
        self.check_change(subject, attr)?;
        let mut mode = subject.mode;
        if attr.uid.is_some() || attr.gid.is_some() {
            mode = perm::mode_after_chown(self.caller, subject);
            raw.uid = U32::new(attr.uid.unwrap_or(subject.uid));
            raw.gid = U32::new(attr.gid.unwrap_or(subject.gid));
        }
        let mut acl = None;
        if let Some(wanted) = attr.mode {
            mode = perm::mode_after_chmod(self.caller, subject, raw.gid.get(), wanted);
            acl = subject.access_acl.map(|acl| perm::acl::chmod_acl(acl, mode)).transpose()?;
        }
        raw.mode = U16::new(mode);
        if let Some(flags) = attr.flags {
            raw.flags = U32::new(raw.flags.get() & !flag::USER | flags & flag::USER);
            if flags & (flag::IMMUTABLE | flag::APPEND) != 0 {
                self.volume.note_flagged();
            }
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
        }
        raw.ctime = I64::new(now);
        Ok(acl)
    }
}
