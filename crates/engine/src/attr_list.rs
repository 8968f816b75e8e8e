//! Extended attributes of one inode as a packed list (`format::xattr`): find, set, remove, list; and who may do it, by
//! namespace, as xattr(7) says and Linux's fs/xattr.c does.
//!
//! What a reader may rely on
//!   1. A list grows only by names and values within the limits; the list itself stays within `LIST_MAX`.
//!   2. A refused change leaves the list as it was.
//!   3. A list that does not decode is `Corrupt`, wherever the walk meets the bad place.
//!
//! An access or default ACL is an attribute like others here. What its value means, and what setting it does to the
//! mode, is `perm::acl`'s; see `check_xattr` for the order of calls.

use crate::error::{self, Errno, refuse};
use crate::perm::{self, READ, S_ISVTX, Subject, WRITE};
use crate::types::{Cred, XattrMode};
use myriad_format::inode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use myriad_format::xattr::{AttrHeader, AttrIter, LIST_MAX, NAME_MAX, VALUE_MAX, push};
use myriad_format::{Corrupt, Ino};
use std::ops::Range;

pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// What a program may do that its user may not (capabilities(7)).
pub const CAPABILITIES: &[u8] = b"security.capability";

/// What the first part of a name says about the rules for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    User,
    Trusted,
    Security,
    AccessAcl,
    DefaultAcl,
}

/// What is done to an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrOp {
    Get,
    Set,
    /// Removal; also setting an ACL without entries.
    Remove,
}

/// The namespace of an attribute's name. ERANGE: empty or too long; EOPNOTSUPP: no namespace of ours; EINVAL: nothing
/// after the prefix, or a NUL, which listxattr(2) could not give back.
pub fn namespace(name: &[u8]) -> Result<Namespace, Errno> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    if name == ACCESS_ACL {
        return Ok(Namespace::AccessAcl);
    }
    if name == DEFAULT_ACL {
        return Ok(Namespace::DefaultAcl);
    }
    let prefixes: [(&[u8], _); 3] =
        [(b"user.", Namespace::User), (b"trusted.", Namespace::Trusted), (b"security.", Namespace::Security)];
    for (prefix, namespace) in prefixes {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() || rest.contains(&0) { Err(Errno::INVAL) } else { Ok(namespace) };
        }
    }
    Err(Errno::OPNOTSUPP)
}

/// Whether `cred` may do `op` to the attribute `name` of `subject` (xattr_permission, set_posix_acl, and
/// cap_inode_setxattr for security.*). Checks the name as well, for every operation.
///
/// For ACLs the caller parses first: a value that `Acl::parse` finds empty is `Remove`. `XattrMode` has no effect on
/// ACLs in Linux (do_set_acl), and removing one that is not there succeeds (vfs_remove_acl).
pub fn check_xattr(cred: &Cred, subject: &Subject<'_>, name: &[u8], op: XattrOp) -> Result<(), Errno> {
    let write = op != XattrOp::Get;
    let named = match namespace(name) {
        Err(Errno::RANGE) => return Err(Errno::RANGE),
        named => named,
    };
    if write {
        perm::check_changeable(subject)?;
    }
    // Permission is asked before the name is taken apart (vfs_setxattr): a prefix without a name is judged as if it had
    // one, and a name without a namespace of ours by the mode alone.
    let namespace = match named {
        Ok(namespace) => namespace,
        Err(errno) => {
            let prefix = name.iter().position(|&byte| byte == b'.').map_or(name, |dot| &name[..=dot]);
            if namespace(&[prefix, b"x"].concat()).is_ok() {
                check_xattr(cred, subject, &[prefix, b"x"].concat(), op)?;
            } else {
                perm::may_access(cred, subject, if write { WRITE } else { READ })?;
            }
            return Err(errno);
        }
    };
    let file_type = subject.mode & S_IFMT;
    // What a caller cannot see does not exist for it; what it cannot set is refused.
    let hidden = Err(if write { Errno::PERM } else { Errno::NODATA });
    match namespace {
        Namespace::User => {
            // Elsewhere the mode is not about the file's contents (devices, FIFOs) or grants everything (links), so
            // anybody could fill the disk outside of its quota: xattr(7).
            if file_type != S_IFREG && file_type != S_IFDIR {
                return hidden;
            }
            let shared = file_type == S_IFDIR && subject.mode & S_ISVTX != 0;
            if write && shared && !subject.is_owned_by(cred) {
                return Err(Errno::PERM);
            }
            perm::may_access(cred, subject, if write { WRITE } else { READ })
        }
        Namespace::Trusted if cred.is_root() => Ok(()),
        Namespace::Trusted => hidden,
        Namespace::Security if !write || cred.is_root() => Ok(()),
        Namespace::Security => Err(Errno::PERM),
        Namespace::AccessAcl | Namespace::DefaultAcl => {
            if file_type == S_IFLNK {
                return Err(Errno::OPNOTSUPP);
            }
            if !write {
                return Ok(());
            }
            if namespace == Namespace::DefaultAcl && file_type != S_IFDIR {
                return if op == XattrOp::Set { Err(Errno::ACCESS) } else { Ok(()) };
            }
            if subject.is_owned_by(cred) { Ok(()) } else { Err(Errno::PERM) }
        }
    }
}

/// An attribute and its place in the list.
struct Found<'a> {
    name: &'a [u8],
    value: &'a [u8],
    range: Range<usize>,
}

/// Walks the list. The one place where damage to it turns into an error.
fn walk(ino: Ino, list: &[u8]) -> impl Iterator<Item = error::Result<Found<'_>>> {
    let mut at = 0;
    AttrIter::new(list).map(move |item| match item {
        Ok((name, value)) => {
            let start = at;
            at += size_of_attr(name, value);
            Ok(Found { name, value, range: start..at })
        }
        Err(offset) => Err(Corrupt::Attributes { ino, field: "entry offset", value: offset as u64 }.into()),
    })
}

fn size_of_attr(name: &[u8], value: &[u8]) -> usize {
    AttrHeader::SIZE + name.len() + value.len()
}

fn find<'a>(ino: Ino, list: &'a [u8], name: &[u8]) -> error::Result<Option<Found<'a>>> {
    walk(ino, list).find(|item| item.as_ref().map_or(true, |found| found.name == name)).transpose()
}

/// Value of the attribute `name`, if it is there.
pub fn get<'a>(ino: Ino, list: &'a [u8], name: &[u8]) -> error::Result<Option<&'a [u8]>> {
    Ok(find(ino, list, name)?.map(|found| found.value))
}

/// Value of the attribute `name` in the beginning of a list; else how many bytes at its front are other attributes, whole.
pub fn get_so_far<'a>(beginning: &'a [u8], name: &[u8]) -> Result<&'a [u8], usize> {
    let mut passed = 0;
    for (other, value) in AttrIter::new(beginning).map_while(Result::ok) {
        if other == name {
            return Ok(value);
        }
        passed += size_of_attr(other, value);
    }
    Err(passed)
}

/// Sets an attribute; an existing one keeps its place in the list, and a new ACL comes first, where it is found soon. Refusals: those of `namespace`, E2BIG for the
/// value, EEXIST and ENODATA by `mode`, ENOSPC when the list would be too long.
pub fn set(ino: Ino, list: &mut Vec<u8>, name: &[u8], value: &[u8], mode: XattrMode) -> error::Result<()> {
    namespace(name)?;
    if value.len() > VALUE_MAX {
        return refuse(Errno::TOOBIG);
    }
    let old = find(ino, list, name)?.map(|found| found.range);
    match (mode, &old) {
        (XattrMode::Create, Some(_)) => return refuse(Errno::EXIST),
        (XattrMode::Replace, None) => return refuse(Errno::NODATA),
        _ => {}
    }
    let old_size = old.as_ref().map_or(0, Range::len);
    if list.len() - old_size + size_of_attr(name, value) > LIST_MAX {
        return refuse(Errno::NOSPC);
    }
    match old {
        None if name != ACCESS_ACL && name != DEFAULT_ACL => push(list, name, value),
        old => {
            let mut attr = Vec::with_capacity(size_of_attr(name, value));
            push(&mut attr, name, value);
            list.splice(old.unwrap_or(0..0), attr);
        }
    }
    Ok(())
}

/// Removes an attribute; ENODATA if it is not there.
pub fn remove(ino: Ino, list: &mut Vec<u8>, name: &[u8]) -> error::Result<()> {
    namespace(name)?;
    let Some(range) = find(ino, list, name)?.map(|found| found.range) else {
        return refuse(Errno::NODATA);
    };
    list.drain(range);
    Ok(())
}

/// Names that `cred` may see, in order of the list: all but trusted.* for others than user 0.
pub fn names(cred: &Cred, ino: Ino, list: &[u8]) -> error::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for found in walk(ino, list) {
        let name = found?.name;
        if cred.is_root() || !name.starts_with(b"trusted.") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// Whether there is an access or default ACL: what the inode's flag `HAS_ACL` must say.
pub fn has_acl(ino: Ino, list: &[u8]) -> error::Result<bool> {
    for found in walk(ino, list) {
        let name = found?.name;
        if name == ACCESS_ACL || name == DEFAULT_ACL {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use myriad_format::inode::{S_IFIFO, flag};

    const INO: Ino = Ino(7);

    type Answer = Result<(), Errno>;
    /// Name, value or removal, mode, answer.
    type Step = (&'static [u8], Option<&'static [u8]>, XattrMode, Answer);
    /// Mode, flags, uid, name, operation, answer.
    type Case = (u16, u32, u32, &'static [u8], XattrOp, Answer);

    fn errno<T>(result: error::Result<T>) -> Result<T, Errno> {
        result.map_err(|error| error.errno())
    }

    #[test]
    fn names_and_their_namespaces() {
        let longest = [b"user.".as_slice(), &[b'x'; 250]].concat();
        let too_long = [b"user.".as_slice(), &[b'x'; 251]].concat();
        let table: [(&[u8], Result<Namespace, Errno>); 14] = [
            (b"user.a", Ok(Namespace::User)),
            (&longest, Ok(Namespace::User)),
            (b"trusted.a", Ok(Namespace::Trusted)),
            (b"security.a", Ok(Namespace::Security)),
            (ACCESS_ACL, Ok(Namespace::AccessAcl)),
            (DEFAULT_ACL, Ok(Namespace::DefaultAcl)),
            (b"", Err(Errno::RANGE)),
            (&too_long, Err(Errno::RANGE)),
            (b"user.", Err(Errno::INVAL)),
            (b"user.a\0b", Err(Errno::INVAL)),
            (b"user", Err(Errno::OPNOTSUPP)),
            (b"other.a", Err(Errno::OPNOTSUPP)),
            (b"system.a", Err(Errno::OPNOTSUPP)),
            (b"system.posix_acl_access_", Err(Errno::OPNOTSUPP)),
        ];
        for (name, expected) in table {
            assert_eq!(namespace(name), expected, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn lists_change_in_place() {
        let mut list = Vec::new();
        let table: [Step; 9] = [
            (b"user.a", Some(b"1"), XattrMode::Replace, Err(Errno::NODATA)),
            (b"user.a", Some(b"1"), XattrMode::Create, Ok(())),
            (b"user.b", Some(b"22"), XattrMode::Set, Ok(())),
            (b"user.a", Some(b"1"), XattrMode::Create, Err(Errno::EXIST)),
            (b"user.c", Some(b"333"), XattrMode::Set, Ok(())),
            (b"user.a", Some(b"long"), XattrMode::Replace, Ok(())),
            (b"user.b", None, XattrMode::Set, Ok(())),
            (b"user.b", None, XattrMode::Set, Err(Errno::NODATA)),
            (b"user.c", Some(b""), XattrMode::Set, Ok(())),
        ];
        for (step, (name, value, mode, expected)) in table.into_iter().enumerate() {
            let before = list.clone();
            let answer = match value {
                Some(value) => set(INO, &mut list, name, value, mode),
                None => remove(INO, &mut list, name),
            };
            assert_eq!(errno(answer), expected, "step {step}");
            if expected.is_err() {
                assert_eq!(list, before, "step {step}");
            } else {
                assert_eq!(get(INO, &list, name).unwrap(), value, "step {step}");
            }
        }
        let mut expected = Vec::new();
        push(&mut expected, b"user.a", b"long");
        push(&mut expected, b"user.c", b"");
        assert_eq!(list, expected);
        assert_eq!(get(INO, &list, b"user.b").unwrap(), None);
    }

    #[test]
    fn limits() {
        let mut list = Vec::new();
        let value = vec![0; VALUE_MAX + 1];
        assert_eq!(errno(set(INO, &mut list, b"user.a", &value, XattrMode::Set)), Err(Errno::TOOBIG));
        let value = &value[1..];
        let fits = LIST_MAX / size_of_attr(b"user.00", value);
        for number in 0..fits {
            set(INO, &mut list, format!("user.{number:02}").as_bytes(), value, XattrMode::Set).unwrap();
        }
        let before = list.clone();
        assert_eq!(errno(set(INO, &mut list, b"user.zz", value, XattrMode::Set)), Err(Errno::NOSPC));
        assert_eq!(list, before);
        // To the byte: what is left, and not one more. Replacing counts the difference only.
        let room = LIST_MAX - list.len() - size_of_attr(b"user.zz", b"");
        assert_eq!(errno(set(INO, &mut list, b"user.zz", &value[..room + 1], XattrMode::Set)), Err(Errno::NOSPC));
        set(INO, &mut list, b"user.zz", &value[..room], XattrMode::Set).unwrap();
        assert_eq!(list.len(), LIST_MAX);
        set(INO, &mut list, b"user.00", value, XattrMode::Set).unwrap();
    }

    #[test]
    fn damage_is_an_error() {
        let mut list = Vec::new();
        push(&mut list, b"user.a", b"1");
        let end = list.len();
        push(&mut list, b"user.b", b"2");
        list.pop();
        let is_damage = |error| match error {
            Error::Corrupt(found) => {
                matches!(*found, Corrupt::Attributes { ino: INO, value, .. } if value == end as u64)
            }
            _ => false,
        };
        assert_eq!(get(INO, &list, b"user.a").unwrap(), Some(&b"1"[..]));
        assert!(is_damage(get(INO, &list, b"user.c").unwrap_err()));
        assert!(is_damage(names(&Cred::root(), INO, &list).unwrap_err()));
        assert!(is_damage(remove(INO, &mut list, b"user.c").unwrap_err()));
        assert!(is_damage(set(INO, &mut list, b"user.c", b"", XattrMode::Set).unwrap_err()));
    }

    #[test]
    fn trusted_names_are_for_root() {
        let mut list = Vec::new();
        push(&mut list, b"trusted.a", b"1");
        push(&mut list, b"user.a", b"1");
        assert!(!has_acl(INO, &list).unwrap());
        push(&mut list, ACCESS_ACL, b"1");
        assert!(has_acl(INO, &list).unwrap());
        let user = Cred { uid: 1, ..Cred::root() };
        assert_eq!(names(&Cred::root(), INO, &list).unwrap(), [&b"trusted.a"[..], b"user.a", ACCESS_ACL]);
        assert_eq!(names(&user, INO, &list).unwrap(), [b"user.a", ACCESS_ACL]);
    }

    #[test]
    fn permissions_by_namespace() {
        use XattrOp::{Get, Remove, Set};
        const OWNER: u32 = 1000;
        let ok = Ok(());
        let perm = Err(Errno::PERM);
        let table: [Case; 27] = [
            (S_IFREG | 0o600, 0, OWNER, b"user.a", Set, ok),
            (S_IFREG | 0o604, 0, 1, b"user.a", Get, ok),
            (S_IFREG | 0o604, 0, 1, b"user.a", Set, Err(Errno::ACCESS)),
            (S_IFREG | 0o602, 0, 1, b"user.a", Get, Err(Errno::ACCESS)),
            (S_IFREG | 0o602, 0, 1, b"user.a", Remove, ok),
            (S_IFREG | 0o666, flag::IMMUTABLE, 0, b"user.a", Set, perm),
            (S_IFREG | 0o666, flag::APPEND, 0, b"trusted.a", Remove, perm),
            (S_IFREG | 0o666, flag::APPEND, 1, b"user.a", Get, ok),
            (S_IFIFO | 0o666, 0, 0, b"user.a", Set, perm),
            (S_IFLNK | 0o777, 0, 0, b"user.a", Get, Err(Errno::NODATA)),
            (S_IFDIR | 0o1777, 0, 1, b"user.a", Set, perm),
            (S_IFDIR | 0o1777, 0, 1, b"user.a", Get, ok),
            (S_IFDIR | 0o1777, 0, OWNER, b"user.a", Set, ok),
            (S_IFDIR | 0o1777, 0, 0, b"user.a", Set, ok),
            (S_IFREG | 0o1666, 0, 1, b"user.a", Set, ok),
            (S_IFREG | 0o666, 0, OWNER, b"trusted.a", Set, perm),
            (S_IFREG | 0o666, 0, OWNER, b"trusted.a", Get, Err(Errno::NODATA)),
            (S_IFLNK | 0o777, 0, 0, b"trusted.a", Set, ok),
            (S_IFREG | 0o666, 0, OWNER, b"security.a", Set, perm),
            (S_IFREG, 0, 1, b"security.a", Get, ok),
            (S_IFREG, 0, 0, b"security.a", Set, ok),
            (S_IFREG, 0, 1, ACCESS_ACL, Get, ok),
            (S_IFREG | 0o666, 0, 1, ACCESS_ACL, Set, perm),
            (S_IFREG, 0, OWNER, ACCESS_ACL, Set, ok),
            (S_IFREG | 0o666, 0, 0, DEFAULT_ACL, Set, Err(Errno::ACCESS)),
            (S_IFREG | 0o666, 0, 1, DEFAULT_ACL, Remove, ok),
            (S_IFLNK | 0o777, 0, 0, ACCESS_ACL, Set, Err(Errno::OPNOTSUPP)),
        ];
        for (mode, flags, uid, name, op, expected) in table {
            let cred = Cred { uid, gid: 1, groups: Vec::new(), umask: 0 };
            let subject = Subject { mode, uid: OWNER, gid: 2, flags, access_acl: None };
            let answer = check_xattr(&cred, &subject, name, op);
            assert_eq!(answer, expected, "{mode:o} {flags} {uid} {} {op:?}", name.escape_ascii());
        }
    }
}
