//! Permissions: who may do what to an inode, and what a change does to mode and ACL. Pure functions over plain data.
//!
//! The rules are those of Linux (fs/namei.c, fs/attr.c, fs/inode.c, fs/posix_acl.c), on top of POSIX.1 and, for access
//! control lists, POSIX 1003.1e draft 17; functions say which kernel function they follow. Capabilities are all or
//! nothing here: user 0 has them, nobody else does. `host.rs` compares every rule with the kernel the tests run on.
//!
//! What a reader may rely on
//!   1. Nothing here reads a device, takes a lock or allocates, but for results that are new ACLs.
//!   2. Order of refusals is the kernel's: flags (EPERM), then ownership (EPERM), then mode or ACL (EACCES).
//!   3. A stored ACL that makes no sense grants nothing: EUCLEAN. Its owner and user 0 do not depend on it.
//!
//! Not here: read-only volumes (EROFS); whether names exist; the attribute list that holds ACLs (`attr_list`).

pub mod acl;
#[cfg(test)]
mod host;
mod subject;

use subject::S_IXGRP;
pub use subject::{S_ISGID, S_ISUID, S_ISVTX, Subject};

use crate::error::Errno;
use crate::types::{Cred, OpenOptions, SetTime};
use myriad_format::inode::{S_IFDIR, S_IFLNK, S_IFMT, flag};

/// Bits of an access mask, as in access(2).
pub const READ: u8 = 4;
pub const WRITE: u8 = 2;
/// Execute a file, search a directory.
pub const EXECUTE: u8 = 1;

/// Fails unless `cred` has all of `mask`: EACCES, or EPERM for writing to an immutable file (inode_permission).
///
/// Every component of every path comes through here. Directories that all may search, and one's own, are answered
/// inline from the mode alone.
#[inline]
pub fn may_access(cred: &Cred, subject: &Subject<'_>, mask: u8) -> Result<(), Errno> {
    debug_assert!(mask < 8);
    if mask & WRITE != 0 && subject.flags & flag::IMMUTABLE != 0 {
        return Err(Errno::PERM);
    }
    // The mask in all three classes: whichever class the caller is in, it is granted.
    let everyone = u16::from(mask) * 0o111;
    if subject.mode & everyone == everyone && subject.access_acl.is_none() {
        return Ok(());
    }
    // The owner's class is the mode's, with and without an ACL.
    if cred.uid == subject.uid && u16::from(mask) & !(subject.mode >> 6) == 0 {
        return Ok(());
    }
    access_slow(cred, subject, mask)
}

/// The rest of `may_access` (acl_permission_check, then generic_permission for user 0).
#[inline(never)]
fn access_slow(cred: &Cred, subject: &Subject<'_>, mask: u8) -> Result<(), Errno> {
    let want = u16::from(mask);
    if cred.is_root() {
        // Nothing that mode or ACL grant is missing here: without any execute bit in the mode there is none in the
        // ACL that counts either, as its mask is the mode's group bits.
        let executable = subject.is_dir() || subject.mode & 0o111 != 0;
        return if mask & EXECUTE == 0 || executable { Ok(()) } else { Err(Errno::ACCESS) };
    }
    if cred.uid == subject.uid {
        return Err(Errno::ACCESS); // the mode grants too little, or `may_access` would have answered
    }
    // Group bits of an inode with an ACL are the ACL's mask. When they are all clear, Linux does not look at the ACL:
    // members of the owning group get nothing, as acl(5) says, but a named user falls through to the class of others,
    // where acl(5) would refuse. We do as Linux file systems do; `host.rs` shows it.
    if subject.mode & 0o070 != 0
        && let Some(value) = subject.access_acl
    {
        return acl::check(value, cred, subject.uid, subject.gid, mask);
    }
    // Membership matters only if the two classes differ in a bit that is wanted, so most calls never search a list.
    let in_group = want & (subject.mode ^ (subject.mode >> 3)) != 0 && cred.in_group(subject.gid);
    let class = if in_group { subject.mode >> 3 } else { subject.mode };
    if want & !class == 0 { Ok(()) } else { Err(Errno::ACCESS) }
}

/// In a sticky directory, only the owner of the file, the owner of the directory and user 0 remove or rename: EPERM
/// (check_sticky).
pub fn may_delete_sticky(cred: &Cred, dir: &Subject<'_>, victim_uid: u32) -> Result<(), Errno> {
    let free = dir.mode & S_ISVTX == 0;
    if free || cred.uid == victim_uid || dir.is_owned_by(cred) { Ok(()) } else { Err(Errno::PERM) }
}

/// Whether a name of `victim` may leave `dir`, by unlink, rmdir, or rename (may_delete; EISDIR and ENOTDIR are the
/// caller's). A rename asks it for the source, and for a target that is replaced.
#[inline]
pub fn may_delete(cred: &Cred, dir: &Subject<'_>, victim: &Subject<'_>) -> Result<(), Errno> {
    may_access(cred, dir, WRITE | EXECUTE)?;
    if dir.has_flag(flag::APPEND) {
        return Err(Errno::PERM);
    }
    may_delete_sticky(cred, dir, victim.uid)?;
    check_changeable(victim)
}

/// Whether a further name may be given (vfs_link). The caller checks `may_access` to the directory.
pub fn check_link(subject: &Subject<'_>) -> Result<(), Errno> {
    check_changeable(subject)
}

/// Whether who does not own a file may give it a further name on a host that protects hard links (may_linkat,
/// safe_hardlink_source): a regular file that he may read and write, and that runs with nobody's rights. EPERM.
pub fn check_protected_link(cred: &Cred, subject: &Subject<'_>) -> Result<(), Errno> {
    let runs_as_group = subject.mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    let is_safe = subject.is_regular()
        && subject.mode & S_ISUID == 0
        && !runs_as_group
        && may_access(cred, subject, READ | WRITE).is_ok();
    if is_safe || subject.is_owned_by(cred) { Ok(()) } else { Err(Errno::PERM) }
}

/// EPERM for immutable and append-only inodes.
pub fn check_changeable(subject: &Subject<'_>) -> Result<(), Errno> {
    if subject.has_flag(flag::IMMUTABLE | flag::APPEND) { Err(Errno::PERM) } else { Ok(()) }
}

/// Whether an existing file may be opened (may_open): EISDIR, EACCES, and EPERM where an append-only file would be
/// opened for writing anywhere else, or truncated.
pub fn check_open(cred: &Cred, subject: &Subject<'_>, options: &OpenOptions) -> Result<(), Errno> {
    let writes = options.write || options.append;
    if subject.is_dir() && (writes || options.truncate) {
        return Err(Errno::ISDIR);
    }
    let read = if options.read { READ } else { 0 };
    let write = if writes || options.truncate { WRITE } else { 0 };
    may_access(cred, subject, read | write)?;
    if subject.has_flag(flag::APPEND) && (options.truncate || writes && !options.append) {
        return Err(Errno::PERM);
    }
    Ok(())
}

/// truncate(2) by path (vfs_truncate).
pub fn check_truncate(cred: &Cred, subject: &Subject<'_>) -> Result<(), Errno> {
    may_access(cred, subject, WRITE)?;
    if subject.has_flag(flag::APPEND) { Err(Errno::PERM) } else { Ok(()) }
}

/// Only owner and user 0 change the mode: EPERM (may_setattr, setattr_prepare).
pub fn check_chmod(cred: &Cred, subject: &Subject<'_>) -> Result<(), Errno> {
    check_changeable(subject)?;
    if subject.is_owned_by(cred) { Ok(()) } else { Err(Errno::PERM) }
}

/// Only user 0 gives a file away; its owner may change the group to one of his own: EPERM (chown_ok, chgrp_ok). `None`
/// leaves a number as it is. The number -1 is nobody's: EINVAL.
pub fn check_chown(cred: &Cred, subject: &Subject<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    if uid == Some(acl::NO_ID) || gid == Some(acl::NO_ID) {
        return Err(Errno::INVAL);
    }
    // Clearing set-id bits is a chmod, even when neither number changes.
    let mode_changes = mode_after_chown(cred, subject) != subject.mode;
    if uid.is_some() || gid.is_some() || mode_changes {
        check_changeable(subject)?;
    } else if subject.has_flag(flag::IMMUTABLE) {
        return Err(Errno::PERM); // ctime would change (ext4_setattr)
    }
    if cred.is_root() {
        return Ok(());
    }
    let owner = cred.uid == subject.uid;
    let uid_ok = uid.is_none_or(|uid| owner && uid == subject.uid);
    let gid_ok = gid.is_none_or(|gid| owner && (gid == subject.gid || cred.in_group(gid)));
    let mode_ok = owner || !mode_changes;
    if uid_ok && gid_ok && mode_ok { Ok(()) } else { Err(Errno::PERM) }
}

/// Mode after any chown, user 0's too: set-id bits go, except a directory's (chown_common).
pub fn mode_after_chown(cred: &Cred, subject: &Subject<'_>) -> u16 {
    if subject.is_dir() { subject.mode } else { without_set_id(cred, subject) }
}

/// Mode after chmod to the permission bits of `mode` (07777). Who is neither user 0 nor in the file's group cannot set
/// the setgid bit; it is dropped silently (setattr_prepare). `gid` is the group after the operation, if it changes
/// that as well. An access ACL must follow: `acl::chmod_acl`.
pub fn mode_after_chmod(cred: &Cred, subject: &Subject<'_>, gid: u32, mode: u16) -> u16 {
    let kept = if cred.is_root() || cred.in_group(gid) { 0o7777 } else { 0o7777 & !S_ISGID };
    subject.mode & S_IFMT | mode & kept
}

/// Mode after a write or a change of size: a regular file loses its set-id bits unless user 0 did it
/// (setattr_should_drop_suidgid). Cheap when there is nothing to do.
#[inline]
pub fn mode_after_write(cred: &Cred, subject: &Subject<'_>) -> u16 {
    if subject.mode & (S_ISUID | S_ISGID) == 0 || cred.is_root() || !subject.is_regular() {
        return subject.mode;
    }
    without_set_id(cred, subject)
}

/// setuid always goes. setgid without group execute stays with members of the group: it means no privilege then, but
/// (historically) mandatory locking (setattr_should_drop_sgid).
fn without_set_id(cred: &Cred, subject: &Subject<'_>) -> u16 {
    let mode = subject.mode & !S_ISUID;
    let keeps_sgid = mode & S_IXGRP == 0 && (cred.is_root() || cred.in_group(subject.gid));
    if keeps_sgid { mode } else { mode & !S_ISGID }
}

/// Setting times (vfs_utimes, may_setattr; utimensat(2)). Both to now: who may write may do it, EACCES otherwise.
/// Anything else, even one to now and the other left alone, is for owner and user 0: EPERM.
pub fn check_set_times(
    cred: &Cred,
    subject: &Subject<'_>,
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> Result<(), Errno> {
    match (atime, mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => {
            if subject.has_flag(flag::IMMUTABLE) {
                Err(Errno::PERM)
            } else if subject.is_owned_by(cred) {
                Ok(())
            } else {
                may_access(cred, subject, WRITE)
            }
        }
        _ => check_chmod(cred, subject),
    }
}

/// Setting the user's flags (`flag::USER`) to `flags`, all at once (fileattr_set_prepare; ioctl_iflags(2)): for the
/// owner, but immutable and append-only for user 0: EPERM. While a file stays immutable its other flags do, too
/// (ext4_ioctl_check_immutable). A flag that is not the user's: EOPNOTSUPP.
pub fn check_flags(cred: &Cred, subject: &Subject<'_>, flags: u32) -> Result<(), Errno> {
    if flags & !flag::USER != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let changed = (subject.flags ^ flags) & flag::USER;
    let stays_immutable = subject.flags & flags & flag::IMMUTABLE != 0;
    let needs_root = changed & (flag::IMMUTABLE | flag::APPEND) != 0;
    if !subject.is_owned_by(cred) || stays_immutable && changed != 0 || needs_root && !cred.is_root() {
        return Err(Errno::PERM);
    }
    Ok(())
}

/// Owner, group and mode (`mode` with type bits, before the umask) of a new inode in `dir`: inode_init_owner after
/// mode_strip_sgid, with vfs_mkdir's mask of bits. Umask and default ACL come after this; `new_inode` does both.
pub fn new_owner(cred: &Cred, dir: &Subject<'_>, mode: u16) -> (u32, u32, u16) {
    let inherits = dir.mode & S_ISGID != 0;
    let gid = if inherits { dir.gid } else { cred.gid };
    let mut mode = mode;
    if mode & S_IFMT == S_IFDIR {
        mode &= S_IFMT | S_ISVTX | 0o777;
        if inherits {
            mode |= S_ISGID;
        }
    } else if inherits && mode & S_ISGID != 0 && mode & S_IXGRP != 0 && !cred.is_root() && !cred.in_group(dir.gid) {
        // Otherwise a group-writable setgid directory would let strangers make programs that run as its group
        // (CVE-2018-13405). The kernel looks at group execute before the umask, and so do we.
        mode &= !S_ISGID;
    }
    (cred.uid, gid, mode)
}

/// What a new inode starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInode {
    pub uid: u32,
    pub gid: u32,
    /// Type and permission bits.
    pub mode: u16,
    /// To be stored as system.posix_acl_access.
    pub access_acl: Option<Vec<u8>>,
    /// To be stored as system.posix_acl_default: directories inherit it.
    pub default_acl: Option<Vec<u8>>,
}

/// Everything a new inode inherits: `new_owner`, then the default ACL of `dir` (raw value) or, without one, the umask
/// (posix_acl_create). Symbolic links have all permission bits. The caller has checked `may_access` to `dir`.
pub fn new_inode(cred: &Cred, dir: &Subject<'_>, default_acl: Option<&[u8]>, mode: u16) -> Result<NewInode, Errno> {
    if mode & S_IFMT == S_IFLNK {
        let (uid, gid, _) = new_owner(cred, dir, mode);
        return Ok(NewInode { uid, gid, mode: S_IFLNK | 0o777, access_acl: None, default_acl: None });
    }
    let (uid, gid, mode) = new_owner(cred, dir, mode);
    match default_acl {
        None => {
            let mode = mode & !(cred.umask & 0o777);
            Ok(NewInode { uid, gid, mode, access_acl: None, default_acl: None })
        }
        Some(value) => {
            let acl::Created { mode, access_acl, default_acl } = acl::create(value, mode)?;
            Ok(NewInode { uid, gid, mode, access_acl, default_acl })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_format::inode::S_IFREG;

    const OWNER: u32 = 1000;
    const GROUP: u32 = 2000;

    fn cred(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, groups: vec![3000], umask: 0o022 }
    }

    fn file(mode: u16) -> Subject<'static> {
        Subject { mode, uid: OWNER, gid: GROUP, flags: 0, access_acl: None }
    }

    #[test]
    fn who_owns_a_file_or_might_copy_it_links_it() {
        let (owner, member, other, root) = (cred(OWNER, 1), cred(1, GROUP), cred(1, 1), cred(0, 0));
        // (mode, links by a member, by others)
        let table = [
            (S_IFREG | 0o666, true, true),
            (S_IFREG | 0o664, true, false),
            (S_IFREG | 0o644, false, false),
            (S_IFREG | 0o4666, false, false),
            (S_IFREG | 0o2676, false, false),
            (S_IFREG | 0o2666, true, true),
            (S_IFLNK | 0o777, false, false),
        ];
        for (mode, by_member, by_other) in table {
            let links = |cred| check_protected_link(cred, &file(mode)).is_ok();
            let found = [links(&owner), links(&root), links(&member), links(&other)];
            assert_eq!(found, [true, true, by_member, by_other], "{mode:o}");
        }
    }

    #[test]
    fn access_by_class_and_root() {
        // (mode, uid, gid, granted bits)
        let table = [
            (S_IFREG | 0o741, OWNER, GROUP, 7),
            (S_IFREG | 0o741, 1, GROUP, 4),
            (S_IFREG | 0o741, 1, 1, 1),
            // The first class that fits decides, though a later one grants more.
            (S_IFREG | 0o077, OWNER, GROUP, 0),
            (S_IFREG | 0o707, 1, GROUP, 0),
            (S_IFREG | 0o666, 0, 0, 6),
            (S_IFREG, 0, 0, 6),
            (S_IFREG | 0o010, 0, 0, 7),
            (S_IFDIR, 0, 0, 7),
        ];
        for (mode, uid, gid, granted) in table {
            for mask in 0..8 {
                let expected = if mask & !granted == 0 { Ok(()) } else { Err(Errno::ACCESS) };
                assert_eq!(may_access(&cred(uid, gid), &file(mode), mask), expected, "{mode:o} {uid} {gid} {mask}");
            }
        }
        let supplementary = Subject { gid: 3000, ..file(S_IFREG | 0o040) };
        assert_eq!(may_access(&cred(1, 1), &supplementary, READ), Ok(()));
        let immutable = Subject { flags: flag::IMMUTABLE, ..file(S_IFREG | 0o777) };
        assert_eq!(may_access(&Cred::root(), &immutable, WRITE), Err(Errno::PERM));
        assert_eq!(may_access(&cred(1, 1), &immutable, READ), Ok(()));
        // A stored ACL that makes no sense refuses strangers, not the owner or user 0.
        let damaged = Subject { access_acl: Some(b"nonsense"), ..file(S_IFREG | 0o777) };
        assert_eq!(may_access(&cred(1, 1), &damaged, READ), Err(Errno::UCLEAN));
        assert_eq!(may_access(&cred(OWNER, 1), &damaged, READ), Ok(()));
        assert_eq!(may_access(&Cred::root(), &damaged, READ), Ok(()));
    }

    #[test]
    fn set_id_bits_after_changes() {
        let member = cred(OWNER, GROUP);
        let stranger = cred(OWNER, 1);
        let root = Cred::root();
        // (mode, who, after chown, after write)
        let table = [
            (S_IFREG | 0o6755, &member, 0o0755, 0o0755),
            (S_IFREG | 0o6745, &member, 0o2745, 0o2745),
            (S_IFREG | 0o6745, &stranger, 0o0745, 0o0745),
            (S_IFREG | 0o6755, &root, 0o0755, 0o6755),
            (S_IFREG | 0o6745, &root, 0o2745, 0o6745),
            (S_IFDIR | 0o6755, &root, 0o6755, 0o6755),
            (S_IFREG | 0o1644, &stranger, 0o1644, 0o1644),
        ];
        for (mode, who, chown, write) in table {
            assert_eq!(mode_after_chown(who, &file(mode)), mode & S_IFMT | chown, "{mode:o} {who:?}");
            assert_eq!(mode_after_write(who, &file(mode)), mode & S_IFMT | write, "{mode:o} {who:?}");
        }
        let plain = file(S_IFREG | 0o644);
        assert_eq!(mode_after_chmod(&member, &plain, GROUP, 0o6755), S_IFREG | 0o6755);
        assert_eq!(mode_after_chmod(&stranger, &plain, GROUP, 0o6755), S_IFREG | 0o4755);
        assert_eq!(mode_after_chmod(&stranger, &plain, 1, 0o6755), S_IFREG | 0o6755);
        assert_eq!(mode_after_chmod(&root, &plain, GROUP, 0o6755), S_IFREG | 0o6755);
    }

    #[test]
    fn opening_and_truncating() {
        let read = OpenOptions { read: true, ..OpenOptions::default() };
        let write = OpenOptions { write: true, ..OpenOptions::default() };
        let append = OpenOptions { append: true, ..OpenOptions::default() };
        let truncate = OpenOptions { truncate: true, ..read };
        let (immutable, append_only) = (flag::IMMUTABLE, flag::APPEND);
        // (mode, flags, options, answer) for a stranger
        let table = [
            (S_IFDIR | 0o777, 0, read, Ok(())),
            (S_IFDIR | 0o777, 0, write, Err(Errno::ISDIR)),
            (S_IFDIR | 0o700, 0, append, Err(Errno::ISDIR)),
            (S_IFDIR | 0o777, 0, truncate, Err(Errno::ISDIR)),
            (S_IFREG | 0o004, 0, read, Ok(())),
            (S_IFREG | 0o004, 0, truncate, Err(Errno::ACCESS)),
            (S_IFREG | 0o004, 0, append, Err(Errno::ACCESS)),
            (S_IFREG | 0o006, append_only, append, Ok(())),
            (S_IFREG | 0o006, append_only, write, Err(Errno::PERM)),
            (S_IFREG | 0o006, append_only, truncate, Err(Errno::PERM)),
            (S_IFREG | 0o004, append_only, write, Err(Errno::ACCESS)),
            (S_IFREG | 0o006, immutable, append, Err(Errno::PERM)),
            (S_IFREG | 0o006, immutable, read, Ok(())),
        ];
        for (mode, flags, options, answer) in table {
            let subject = Subject { flags, ..file(mode) };
            assert_eq!(check_open(&cred(1, 1), &subject, &options), answer, "{mode:o} {flags} {options:?}");
        }
        let table = [
            (0o006, 0, Ok(())),
            (0o004, 0, Err(Errno::ACCESS)),
            (0o006, append_only, Err(Errno::PERM)),
            (0o004, append_only, Err(Errno::ACCESS)),
            (0o004, immutable, Err(Errno::PERM)),
        ];
        for (mode, flags, answer) in table {
            let subject = Subject { flags, ..file(S_IFREG | mode) };
            assert_eq!(check_truncate(&cred(1, 1), &subject), answer, "{mode:o} {flags}");
        }
    }

    /// `cargo test --release -- --ignored --nocapture cost_of_access`
    #[test]
    #[ignore = "prints times"]
    fn cost_of_access() {
        use std::hint::black_box;
        let user = Cred { uid: 1, gid: 1, groups: (10..26).collect(), umask: 0 };
        let acl = acl::value_from_text("u::rwx u:5:r-x u:6:r-x g::r-x g:7:r-x m::r-x o::r-x");
        let cases = [
            ("all may", Subject { ..file(S_IFDIR | 0o755) }),
            ("own", Subject { uid: 1, ..file(S_IFDIR | 0o700) }),
            ("other class, no list search", Subject { ..file(S_IFDIR | 0o611) }),
            ("group by list search", Subject { gid: 25, ..file(S_IFDIR | 0o750) }),
            ("ACL, others", Subject { access_acl: Some(&acl), ..file(S_IFDIR | 0o755) }),
        ];
        for (name, subject) in cases {
            let count = 20_000_000u32;
            let start = std::time::Instant::now();
            for _ in 0..count {
                let _ = black_box(may_access(black_box(&user), black_box(&subject), EXECUTE));
            }
            println!("{name}: {:.2} ns", start.elapsed().as_nanos() as f64 / f64::from(count));
        }
    }

    #[test]
    fn numbers_that_nobody_has() {
        let root = Cred::root();
        assert_eq!(check_chown(&root, &file(S_IFREG), Some(u32::MAX), None), Err(Errno::INVAL));
        assert_eq!(check_flags(&root, &file(S_IFREG), flag::HAS_ACL), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn new_inodes() {
        let stranger = cred(1, 1);
        let set_gid = file(S_IFDIR | 0o2777);
        let plain = file(S_IFDIR | 0o777);
        // (directory, mode, group, mode after)
        let table = [
            (&plain, S_IFREG | 0o6777, 1, S_IFREG | 0o6755),
            (&plain, S_IFDIR | 0o7777, 1, S_IFDIR | 0o1755),
            (&plain, S_IFLNK, 1, S_IFLNK | 0o777),
            (&set_gid, S_IFREG | 0o6777, GROUP, S_IFREG | 0o4755),
            (&set_gid, S_IFREG | 0o6767, GROUP, S_IFREG | 0o6745),
            (&set_gid, S_IFDIR | 0o0777, GROUP, S_IFDIR | 0o2755),
        ];
        for (dir, mode, gid, after) in table {
            let new = new_inode(&stranger, dir, None, mode).unwrap();
            assert_eq!((new.uid, new.gid, new.mode), (1, gid, after), "{mode:o}");
        }
        let member = new_inode(&cred(1, GROUP), &set_gid, None, S_IFREG | 0o2777).unwrap();
        assert_eq!(member.mode, S_IFREG | 0o2755);
    }
}
