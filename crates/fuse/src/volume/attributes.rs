//! Requests about attributes: stat, chmod and their kin, extended attributes, flags, totals.

use super::caller::{Capability, groups_of, has_capability};
use super::{Reply, VolumeService, errno, join_time, split_time};
use crate::answer::put;
use crate::wire::{
    self, FsTrimRange, FsXattr, GetXattrOut, InHeader, IoctlIn, IoctlOut, KStatFs, SetAttrIn, SetXattrIn, Statx,
};
use crate::wire::{IOCTL_32BIT, SETXATTR_ACL_KILL_SGID, STATX_BASIC_STATS, STATX_BTIME, StatxOut, StatxTime, fattr};
use myriad_engine::{Errno, FileType, Node, Session, SetAttr, SetTime, XattrMode};
use zerocopy::{FromBytes, IntoBytes};

/// statx(2)'s bits for immutable, append-only and nodump: the same as the FS_*_FL flags.
const FLAG_PAIRS: [(u32, u32); 4] = [(1, 0x10), (2, 0x20), (4, 0x40), (8, 0x80)];
/// Content is only added to.
pub(super) const APPEND_ONLY: u32 = 2;
/// Of these, immutable and append-only are to be set and cleared by those who have the capability.
pub(super) const SUPER_USERS: u32 = 1 | APPEND_ONLY;
/// The same in `struct fsxattr`.
const XFLAG_PAIRS: [(u32, u32); 4] = [(1, 0x08), (2, 0x10), (4, 0x80), (8, 0x40)];

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;

/// A file's times as the kernel keeps them where it caches what is written. It sends them with the change time, and as if a program had set
/// them: an engine that checks permissions would take them for times that only the owner may set.
enum Kept {
    /// With a new size, or with what was written.
    Following,
    /// A program sets all of them to now.
    Now,
}

/// The attribute that holds the list of who may use a file.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The attribute that gives a program capabilities.
pub(super) const CAPABILITIES: &[u8] = b"security.capability";

/// Flags of one kind as flags of the other; EOPNOTSUPP for one that has no counterpart.
fn convert_flags(flags: u32, pairs: impl Iterator<Item = (u32, u32)>) -> Result<u32, Errno> {
    let (mut left, mut converted) = (flags, 0);
    for (from, to) in pairs {
        converted |= if flags & from != 0 { to } else { 0 };
        left &= !from;
    }
    if left == 0 { Ok(converted) } else { Err(Errno::OPNOTSUPP) }
}

impl VolumeService {
    pub(super) fn get_attr(&self, header: &InHeader, out: &mut [u8]) -> Reply {
        let stat = self.kernel.stat_node(self.node(header.nodeid)?).map_err(errno)?;
        put(out, &self.attr_out(&stat))
    }

    /// As GETATTR, with the time of creation.
    pub(super) fn statx(&self, header: &InHeader, out: &mut [u8]) -> Reply {
        let stat = self.kernel.stat_node(self.node(header.nodeid)?).map_err(errno)?;
        let valid = self.attr_timeout(&stat);
        let attr = self.attr(&stat);
        let (sec, nsec) = split_time(stat.btime);
        let attributes_of = |flags| convert_flags(flags, FLAG_PAIRS.into_iter()).map_or(0, u64::from);
        let statx = Statx {
            mask: STATX_BASIC_STATS | STATX_BTIME,
            attributes: attributes_of(stat.flags & 7),
            attributes_mask: attributes_of(7),
            btime: StatxTime { sec: sec as i64, nsec, reserved: 0 },
            rdev_major: rustix::fs::major(stat.rdev),
            rdev_minor: rustix::fs::minor(stat.rdev),
            ..Statx::from(&attr)
        };
        let answer = StatxOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            stat: statx,
            ..StatxOut::default()
        };
        put(out, &answer)
    }

    pub(super) fn set_attr(&self, header: &InHeader, args: &SetAttrIn, out: &mut [u8]) -> Reply {
        let node = self.node(header.nodeid)?;
        let has = |bit| args.valid & bit != 0;
        let time = |set, now, sec, nsec| match (has(set), has(now)) {
            (false, _) => None,
            (true, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(join_time(sec, nsec))),
        };
        let kept = self.kept_times(node, args)?;
        let [uid, gid] = self.owners_for(header, node, args)?;
        let mtime = time(fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec);
        let mode = has(fattr::MODE).then_some(args.mode as u16 & 0o7777);
        let attr = SetAttr {
            mode: mode.map(|mode| self.mode_for(header, node, mode)).transpose()?,
            uid,
            gid,
            size: has(fattr::SIZE).then_some(args.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec),
            mtime: match kept {
                Some(Kept::Following) => None,
                Some(Kept::Now) => Some(SetTime::Now),
                None => mtime,
            },
            flags: None,
        };
        let mut stat = if kept.is_some() && attr == SetAttr::default() {
            self.kernel.stat_node(node)
        } else {
            self.attr_session(header, node, args, &attr)?.set_attr_node(node, attr)
        }
        .map_err(errno)?;
        // A file whose flags forbid to set times was given its own by the write. Refused here, fsync(2) would fail.
        if kept.is_some() && stat.flags & SUPER_USERS == 0 && mtime != Some(SetTime::At(stat.mtime)) {
            stat = self.kernel.set_attr_node(node, SetAttr { mtime, ..SetAttr::default() }).map_err(errno)?;
        }
        self.changed_file(node)?;
        put(out, &self.attr_out(&stat))
    }

    /// Whether a file's times are the kernel's own, and not such as a program sets.
    fn kept_times(&self, node: Node, args: &SetAttrIn) -> Result<Option<Kept>, Errno> {
        const GIVEN: u32 = fattr::MODE | fattr::UID | fattr::GID | fattr::SIZE | fattr::ATIME | fattr::FH;
        const TIMES: u32 = fattr::MTIME | fattr::CTIME;
        const SIZE_BY_DESCRIPTOR: u32 = fattr::SIZE | fattr::FH;
        if args.valid & TIMES != TIMES {
            return Ok(None);
        }
        Ok(match args.valid & GIVEN {
            // A program sets times by no descriptor, and a size without times.
            fattr::FH | fattr::SIZE | SIZE_BY_DESCRIPTOR => Some(Kept::Following),
            fattr::ATIME if args.valid & fattr::ATIME_NOW != 0 => {
                let is_now = (args.mtime, args.mtimensec) == (args.ctime, args.ctimensec);
                is_now.then_some(Kept::Now)
            }
            // After a name came or went, whose ever the file is: only the change time has moved.
            0 => {
                let mtime = self.kernel.stat_node(node).map_err(errno)?.mtime;
                (mtime == join_time(args.mtime, args.mtimensec)).then_some(Kept::Following)
            }
            _ => None,
        })
    }

    /// On whose behalf attributes are set.
    fn attr_session(&self, header: &InHeader, node: Node, args: &SetAttrIn, attr: &SetAttr) -> Result<Session, Errno> {
        let has = |bit| args.valid & bit != 0;
        // Through a descriptor that may write, whatever the mode says by now.
        let is_allowed = has(fattr::FH) && SetAttr { size: None, ..*attr } == SetAttr::default();
        let session = if !(self.settings.default_permissions || is_allowed && attr.size.is_some()) {
            self.session(header)
        } else if attr.size.is_some() {
            self.writer(header, has(fattr::KILL_SUIDGID), self.group_matters(node)?)
        } else if attr.mode.is_some() {
            // The kernel has dropped the setgid bit of who may not set it.
            self.writer(header, false, false)
        } else if (attr.uid.is_some() || attr.gid.is_some()) && header.uid != 0 {
            self.writer(header, true, self.group_matters(node)?)
        } else {
            self.session(header)
        };
        Ok(session)
    }

    /// The mode that somebody may give a file, who need be its owner only as it is shown. Set-id bits go by whose it is in the
    /// volume, where they would count: EPERM for set-user-ID; set-group-ID goes silently, as from who is not in the group.
    fn mode_for(&self, header: &InHeader, node: Node, mode: u16) -> Result<u16, Errno> {
        if !self.is_shown_as_anothers() || header.uid == 0 || mode & (SET_USER_ID | SET_GROUP_ID) == 0 {
            return Ok(mode);
        }
        let stat = self.kernel.stat_node(node).map_err(errno)?;
        if mode & SET_USER_ID != 0 && stat.uid != header.uid {
            return Err(Errno::PERM);
        }
        let is_member = header.gid == stat.gid || groups_of(header).contains(&stat.gid);
        Ok(if is_member { mode } else { mode & !SET_GROUP_ID })
    }

    /// Whether a file loses set-group-ID when somebody changes its access ACL, who need be its owner only as it is shown; EPERM if it has
    /// set-user-ID. As with [`Self::mode_for`]: an ACL lets people run a program as well as a mode does.
    fn loses_setgid_by_acl(&self, header: &InHeader, node: Node) -> Result<bool, Errno> {
        if !self.is_shown_as_anothers() || header.uid == 0 {
            return Ok(false);
        }
        let mode = self.kernel.stat_node(node).map_err(errno)?.mode & (SET_USER_ID | SET_GROUP_ID);
        Ok(self.mode_for(header, node, mode)? != mode)
    }

    /// Owner and group that somebody gives a file. To those that it is shown to have, only user 0 gives it: from others that takes set-id
    /// bits, and leaves the file whose it is in the volume.
    fn owners_for(&self, header: &InHeader, node: Node, args: &SetAttrIn) -> Result<[Option<u32>; 2], Errno> {
        let [uid, gid] =
            [(fattr::UID, args.uid), (fattr::GID, args.gid)].map(|(bit, id)| (args.valid & bit != 0).then_some(id));
        let is_shown = |given: Option<u32>, shown| given.is_some() && given == shown && header.uid != 0;
        if !is_shown(uid, self.settings.uid) && !is_shown(gid, self.settings.gid) {
            return Ok([uid, gid]);
        }
        let stat = self.kernel.stat_node(node).map_err(errno)?;
        Ok([
            if is_shown(uid, self.settings.uid) { Some(stat.uid) } else { uid },
            if is_shown(gid, self.settings.gid) { Some(stat.gid) } else { gid },
        ])
    }

    /// Whether the owner that the kernel knows need not be whose a file is in the volume.
    pub(super) fn is_shown_as_anothers(&self) -> bool {
        self.settings.uid.is_some() || self.settings.gid.is_some()
    }

    /// Whether people may write to a file who may not by its owner and mode in the volume.
    pub(super) fn is_shown_otherwise(&self) -> bool {
        self.is_shown_as_anothers() || self.settings.umask.is_some()
    }

    /// Whether who loses set-id bits depends on membership in the file's group: setgid without group execute.
    pub(super) fn group_matters(&self, node: Node) -> Result<bool, Errno> {
        let mode = self.kernel.stat_node(node).map_err(errno)?.mode;
        Ok(mode & 0o2010 == 0o2000)
    }

    pub(super) fn access(&self, header: &InHeader, mask: u32) -> Reply {
        if self.settings.default_permissions {
            return Err(Errno::NOSYS);
        }
        let node = self.node(header.nodeid)?;
        self.session(header).access_node(node, (mask & 7) as u8).map(|()| 0).map_err(errno)
    }

    pub(super) fn stat_fs(&self, out: &mut [u8]) -> Reply {
        let total = self.fs.statfs().map_err(errno)?;
        let answer = KStatFs {
            blocks: total.blocks,
            bfree: total.free_blocks,
            bavail: total.available_blocks,
            files: total.inodes_used + total.inodes_free,
            ffree: total.inodes_free,
            bsize: total.block_size,
            namelen: total.name_max,
            frsize: total.block_size,
            ..KStatFs::default()
        };
        put(out, &answer)
    }

    // ---- extended attributes ----

    /// Without ACLs agreed on, the kernel does not know that one changes a mode: they are not to be had then.
    fn check_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        if self.settings.no_xattr {
            return Err(Errno::NOSYS);
        }
        let is_acl = name.starts_with(b"system.posix_acl_");
        if is_acl && !self.agreement.acl { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    /// An attribute's bytes, or how many they are if none are asked for.
    fn put_sized(value: &[u8], size: u32, out: &mut [u8]) -> Reply {
        if size == 0 {
            return put(out, &GetXattrOut { size: value.len() as u32, padding: 0 });
        }
        if value.len() > size as usize {
            return Err(Errno::RANGE);
        }
        out.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
        Ok(value.len())
    }

    pub(super) fn get_xattr(&self, header: &InHeader, name: &[u8], size: u32, out: &mut [u8]) -> Reply {
        self.check_xattr(name)?;
        let value = self.reader(header).get_xattr_node(self.node(header.nodeid)?, name).map_err(errno)?;
        Self::put_sized(&value, size, out)
    }

    pub(super) fn list_xattr(&self, header: &InHeader, size: u32, out: &mut [u8]) -> Reply {
        self.check_xattr(b"")?;
        // Who asks decides which names are shown.
        let names = self.session(header).list_xattr_node(self.node(header.nodeid)?).map_err(errno)?;
        let mut list = Vec::new();
        for name in names {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Self::put_sized(&list, size, out)
    }

    pub(super) fn set_xattr(&self, header: &InHeader, name: &[u8], value: &[u8], args: &SetXattrIn) -> Reply {
        self.check_xattr(name)?;
        let mode = match args.flags {
            0 => XattrMode::Set,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let node = self.node(header.nodeid)?;
        let loses_setgid = name == ACCESS_ACL && self.loses_setgid_by_acl(header, node)?;
        let session = if self.settings.default_permissions {
            self.writer(header, loses_setgid || args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0, loses_setgid)
        } else {
            self.session(header)
        };
        session.set_xattr_node(node, name, value, mode).map_err(errno)?;
        self.changed_file(node).map(|()| 0)
    }

    pub(super) fn remove_xattr(&self, header: &InHeader, name: &[u8]) -> Reply {
        self.check_xattr(name)?;
        let node = self.node(header.nodeid)?;
        if name == ACCESS_ACL && self.loses_setgid_by_acl(header, node)? {
            // The mode gives to the group what the list's mask gave.
            let mode = self.kernel.stat_node(node).map_err(errno)?.mode & 0o7777 & !SET_GROUP_ID;
            let attr = SetAttr { mode: Some(mode), ..SetAttr::default() };
            self.kernel.set_attr_node(node, attr).map_err(errno)?;
        }
        // Whoever removes these on his own account was checked by the kernel in any case; with a change of content, by whom
        // ever, it does so itself.
        let session = if name == CAPABILITIES { &self.kernel } else { &self.session(header) };
        session.remove_xattr_node(node, name).map_err(errno)?;
        self.changed_file(node).map(|()| 0)
    }

    // ---- ioctl ----

    pub(super) fn ioctl(&self, header: &InHeader, args: &IoctlIn, data: &[u8], out: &mut [u8]) -> Reply {
        use wire::ioctl::{FITRIM, FSGETXATTR, FSSETXATTR, GETFLAGS, GETFLAGS_32, SETFLAGS, SETFLAGS_32, SHUTDOWN};
        let node = self.node(header.nodeid)?;
        let read = |value: &[u8], out: &mut [u8]| {
            let head = put(out, &IoctlOut::default())?;
            let len = value.len().min(args.out_size as usize);
            out.get_mut(head..head + len).ok_or(Errno::INVAL)?.copy_from_slice(&value[..len]);
            Ok(head + len)
        };
        let back = |pairs: [(u32, u32); 4]| pairs.into_iter().map(|(ours, theirs)| (theirs, ours));
        // By these numbers programs of 32 bits ask. From others the kernel hands them on without having checked anything, not even whether the
        // mount is read-only; elsewhere they mean nothing.
        if matches!(args.cmd, GETFLAGS_32 | SETFLAGS_32) && args.flags & IOCTL_32BIT == 0 {
            return Err(Errno::NOTTY);
        }
        match args.cmd {
            GETFLAGS | GETFLAGS_32 => {
                let flags = self.kernel.stat_node(node).map_err(errno)?.flags;
                read(convert_flags(flags, FLAG_PAIRS.into_iter())?.as_bytes(), out)
            }
            SETFLAGS | SETFLAGS_32 => {
                let (flags, _) = u32::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
                self.set_flags(header, node, convert_flags(flags, back(FLAG_PAIRS))?)?;
                put(out, &IoctlOut::default())
            }
            FSGETXATTR => {
                let flags = self.kernel.stat_node(node).map_err(errno)?.flags;
                let xflags = convert_flags(flags, XFLAG_PAIRS.into_iter())?;
                read(FsXattr { xflags, ..FsXattr::default() }.as_bytes(), out)
            }
            FSSETXATTR => {
                let (wanted, _) = FsXattr::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
                if (wanted.extsize, wanted.projid, wanted.cowextsize) != (0, 0, 0) {
                    return Err(Errno::OPNOTSUPP);
                }
                self.set_flags(header, node, convert_flags(wanted.xflags, back(XFLAG_PAIRS))?)?;
                put(out, &IoctlOut::default())
            }
            FITRIM => {
                if !has_capability(header, Capability::Administrate) {
                    return Err(Errno::PERM);
                }
                let (range, _) = FsTrimRange::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
                let end = range.start.saturating_add(range.len);
                let len = self.fs.trim(range.start..end, range.minlen).map_err(errno)?;
                read(FsTrimRange { len, ..range }.as_bytes(), out)
            }
            SHUTDOWN => {
                self.shut_down(header, args)?;
                put(out, &IoctlOut::default())
            }
            _ => Err(Errno::NOTTY),
        }
    }

    /// Whoever asks: the kernel asks the owner's question, and not always the super-user's.
    fn set_flags(&self, header: &InHeader, node: Node, flags: u32) -> Result<(), Errno> {
        let stat = self.kernel.stat_node(node).map_err(errno)?;
        if !matches!(stat.file_type(), FileType::File | FileType::Directory) {
            return Err(Errno::NOTTY);
        }
        // Whose the file is shown as, who need not be whose it is in the volume.
        let owner = self.settings.uid.unwrap_or(stat.uid);
        let is_owner = header.uid == 0 || header.uid == owner;
        let is_super_users = (stat.flags ^ flags) & SUPER_USERS != 0;
        if !is_owner || is_super_users && !has_capability(header, Capability::SetImmutable) {
            return Err(Errno::PERM);
        }
        // Before Linux 5.13, which brought that flag as well, it asks nothing at all.
        if !self.agreement.setxattr_ext && self.is_mounted_read_only() {
            return Err(Errno::ROFS);
        }
        let settling = self.begin_settling(header, &stat, flags)?;
        let attr = SetAttr { flags: Some(flags), ..SetAttr::default() };
        let set = self.kernel.set_attr_node(node, attr).map_err(errno);
        // Also where it failed: then nothing is refused, and the opening ends with that.
        if let Some(doubt) = settling {
            self.doubts.note(header.unique, vec![doubt]);
        }
        set?;
        self.gaps.lock().forget(node);
        self.changed_file(node)?;
        // The change time has moved, which the kernel does not expect of an ioctl.
        self.notifier.attributes_changed(header.nodeid);
        Ok(())
    }
}
