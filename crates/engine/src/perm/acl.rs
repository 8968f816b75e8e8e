//! Access control lists: POSIX 1003.1e draft 17 as acl(5) describes them, in the form of Linux's
//! system.posix_acl_access and system.posix_acl_default attributes (linux/posix_acl_xattr.h):
//!
//! ```text
//! version u32 = 2, then entries of: tag u16, permissions u16, id u32; all little-endian
//! ```
//!
//! That form is also what we store, in the kernel's own spelling: entries that name nobody have the id -1.
//!
//! A mode and an access ACL describe the same thing twice, so every change to one changes the other:
//!   - group bits of the mode are the mask entry if there is one, the owning group's entry otherwise;
//!   - an ACL that says no more than a mode is not stored; `chmod_acl` and `mode_from_acl` keep the two in step.
//!
//! `check` reads the stored bytes as they are, without allocating; everything else goes through [`Acl`].

use super::subject::{S_ISGID, Subject};
use crate::error::Errno;
use crate::types::Cred;
use myriad_format::inode::{S_IFDIR, S_IFMT};

const VERSION: u32 = 2;
const HEADER_SIZE: usize = 4;
const ENTRY_SIZE: usize = 8;
/// Nobody's number: the id of entries that name nobody (ACL_UNDEFINED_ID).
pub(super) const NO_ID: u32 = u32::MAX;

/// Whom an entry is about. Numbers are the kernel's (linux/posix_acl.h), and so is the order entries come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Tag {
    /// The file's owner.
    UserObj = 0x01,
    User = 0x02,
    /// The file's group.
    GroupObj = 0x04,
    Group = 0x08,
    /// Most that `User`, `GroupObj` and `Group` entries can grant.
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0x01 => Self::UserObj,
            0x02 => Self::User,
            0x04 => Self::GroupObj,
            0x08 => Self::Group,
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    fn names_somebody(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub tag: Tag,
    /// 4 read, 2 write, 1 execute.
    pub perm: u8,
    /// User or group of a `User` or `Group` entry; -1 otherwise.
    pub id: u32,
}

/// One entry as stored: tag, permissions, id.
fn raw_entry(bytes: &[u8]) -> (u16, u16, u32) {
    (
        u16::from_le_bytes([bytes[0], bytes[1]]),
        u16::from_le_bytes([bytes[2], bytes[3]]),
        u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    )
}

/// Splits an attribute's value into entries: EINVAL for impossible lengths, EOPNOTSUPP for another version
/// (posix_acl_from_xattr).
fn raw_entries(value: &[u8]) -> Result<std::slice::ChunksExact<'_, u8>, Errno> {
    let Some((header, entries)) = value.split_first_chunk::<HEADER_SIZE>() else {
        return Err(Errno::INVAL);
    };
    if u32::from_le_bytes(*header) != VERSION {
        return Err(Errno::OPNOTSUPP);
    }
    let entries = entries.chunks_exact(ENTRY_SIZE);
    if entries.remainder().is_empty() { Ok(entries) } else { Err(Errno::INVAL) }
}

/// Fails with EACCES unless the ACL grants `cred` all of `mask`: the algorithm of acl(5) (posix_acl_permission). User
/// 0 is nobody special here; `perm::may_access` is. A value that is no ACL: EUCLEAN, for only valid ones are stored.
pub fn check(value: &[u8], cred: &Cred, owner: u32, group: u32, mask: u8) -> Result<(), Errno> {
    let want = u16::from(mask);
    let mut entries = raw_entries(value).map_err(|_| Errno::UCLEAN)?;
    let mut in_some_group = false;
    while let Some(entry) = entries.next() {
        let (tag, perm, id) = raw_entry(entry);
        match Tag::from_code(tag).ok_or(Errno::UCLEAN)? {
            Tag::UserObj if cred.uid == owner => return grant(perm, want),
            Tag::User if cred.uid == id => return grant_masked(perm, entries, want),
            tag @ (Tag::GroupObj | Tag::Group) if cred.in_group(if tag == Tag::Group { id } else { group }) => {
                // One entry must grant all that is wanted; two that grant half each do not add up. So the first
                // that does decides, and the mask is the same for the rest.
                in_some_group = true;
                if want & !perm == 0 {
                    return grant_masked(perm, entries, want);
                }
            }
            Tag::Other if in_some_group => return Err(Errno::ACCESS),
            Tag::Other => return grant(perm, want),
            _ => {}
        }
    }
    Err(Errno::UCLEAN) // no entry for others
}

fn grant(perm: u16, want: u16) -> Result<(), Errno> {
    if want & !perm == 0 { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Grants what both the entry and the mask grant. Only an ACL without named entries has no mask.
fn grant_masked(perm: u16, rest: std::slice::ChunksExact<'_, u8>, want: u16) -> Result<(), Errno> {
    let mask = rest.map(raw_entry).find(|&(tag, ..)| tag == Tag::Mask as u16);
    grant(mask.map_or(perm, |(_, mask, _)| perm & mask), want)
}

/// A valid ACL: one entry each for owner, group and others, a mask if anybody is named, in the order of [`Tag`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads an attribute's value as setxattr(2) would: EINVAL or, for another version, EOPNOTSUPP
    /// (posix_acl_from_xattr, posix_acl_valid). `None` for no entries at all: setting that removes the ACL.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        if value.is_empty() {
            return Ok(None);
        }
        let raw = raw_entries(value)?;
        if raw.len() == 0 {
            return Ok(None);
        }
        let mut entries = Vec::with_capacity(raw.len());
        for (code, perm, id) in raw.map(raw_entry) {
            let tag = Tag::from_code(code).ok_or(Errno::INVAL)?;
            if perm > 7 || tag.names_somebody() && id == NO_ID {
                return Err(Errno::INVAL);
            }
            let id = if tag.names_somebody() { id } else { NO_ID };
            entries.push(Entry { tag, perm: perm as u8, id });
        }
        Self::from_entries(entries).map(Some)
    }

    /// Whether a value can be read as entries at all, valid together or not (posix_acl_from_xattr alone). Linux judges
    /// who may set an ACL between reading it and judging it (do_set_acl, set_posix_acl).
    pub fn is_readable(value: &[u8]) -> bool {
        raw_entries(value).is_ok_and(|mut raw| {
            raw.all(|entry| {
                let (code, _, id) = raw_entry(entry);
                Tag::from_code(code).is_some_and(|tag| !tag.names_somebody() || id != NO_ID)
            })
        })
    }

    /// EINVAL unless the entries are a valid ACL. Naming somebody twice is allowed, in any order of ids, as in Linux;
    /// the first entry counts.
    pub fn from_entries(entries: Vec<Entry>) -> Result<Self, Errno> {
        let sorted = entries.is_sorted_by_key(|entry| entry.tag);
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let once = [Tag::UserObj, Tag::GroupObj, Tag::Other].into_iter().all(|tag| count(tag) == 1);
        let named = entries.iter().any(|entry| entry.tag.names_somebody());
        let masks = count(Tag::Mask);
        let mask_ok = masks == 1 || masks == 0 && !named;
        if sorted && once && mask_ok { Ok(Self { entries }) } else { Err(Errno::INVAL) }
    }

    /// The attribute's value.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER_SIZE + self.entries.len() * ENTRY_SIZE);
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            value.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            value.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// The permission bits (0777) that go with this ACL, and whether they say all it says (posix_acl_equiv_mode).
    pub fn equiv_mode(&self) -> (u16, bool) {
        let mut mode = 0;
        for entry in &self.entries {
            let perm = u16::from(entry.perm);
            match entry.tag {
                Tag::UserObj => mode |= perm << 6,
                Tag::GroupObj => mode |= perm << 3,
                Tag::Mask => mode = mode & !0o070 | perm << 3, // comes after the group's
                Tag::Other => mode |= perm,
                Tag::User | Tag::Group => {}
            }
        }
        (mode, self.has_only_classes())
    }

    /// Whether there are only the three entries every ACL has.
    fn has_only_classes(&self) -> bool {
        self.entries.len() == 3
    }

    fn perm_mut(&mut self, tag: Tag) -> Option<&mut u8> {
        self.entries.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.perm)
    }

    /// The entries for owner, group class and others, each with the place of its bits in a mode. The group class is
    /// the mask's if there is one: so chmod cannot widen what named users have without showing it.
    fn classes_mut(&mut self, mut f: impl FnMut(&mut u8, u32)) {
        let group_class = if self.has_only_classes() { Tag::GroupObj } else { Tag::Mask };
        for (tag, shift) in [(Tag::UserObj, 6), (group_class, 3), (Tag::Other, 0)] {
            f(self.perm_mut(tag).expect("a valid ACL has it"), shift);
        }
    }
}

/// A stored ACL for change. Only valid ones are stored, so anything else is damage.
fn stored(value: &[u8]) -> Result<Acl, Errno> {
    Acl::parse(value).ok().flatten().ok_or(Errno::UCLEAN)
}

/// The access ACL after chmod to `mode`, in place of `value` (__posix_acl_chmod_masq).
pub fn chmod_acl(value: &[u8], mode: u16) -> Result<Vec<u8>, Errno> {
    let mut acl = stored(value)?;
    acl.classes_mut(|perm, shift| *perm = (mode >> shift & 7) as u8);
    Ok(acl.to_xattr())
}

/// What setting the access ACL `acl` leaves: the inode's mode (type bits included), and the value to store as
/// system.posix_acl_access; `None`: the mode says it all, so an ACL there must go. As with chmod, the setgid bit is
/// lost to callers who are not in the group (posix_acl_update_mode).
pub fn mode_from_acl(cred: &Cred, subject: &Subject<'_>, acl: &Acl) -> (u16, Option<Vec<u8>>) {
    let (bits, equivalent) = acl.equiv_mode();
    let mut mode = subject.mode & !0o777 | bits;
    if !cred.is_root() && !cred.in_group(subject.gid) {
        mode &= !S_ISGID;
    }
    (mode, if equivalent { None } else { Some(acl.to_xattr()) })
}

/// What a new inode has from its directory's default ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    pub mode: u16,
    pub access_acl: Option<Vec<u8>>,
    /// Directories pass the default ACL on as it is.
    pub default_acl: Option<Vec<u8>>,
}

/// Mode and ACLs of a new inode made with `mode` (type bits included) in a directory with the default ACL `value`: the
/// default ACL, less what `mode` does not ask for in each class; the umask plays no part (posix_acl_create_masq).
pub fn create(value: &[u8], mode: u16) -> Result<Created, Errno> {
    let mut acl = stored(value)?;
    acl.classes_mut(|perm, shift| *perm &= (mode >> shift & 7) as u8);
    let (bits, equivalent) = acl.equiv_mode();
    let is_dir = mode & S_IFMT == S_IFDIR;
    Ok(Created {
        mode: mode & !0o777 | bits,
        access_acl: if equivalent { None } else { Some(acl.to_xattr()) },
        default_acl: is_dir.then(|| value.to_vec()),
    })
}

/// Builds values from text such as `u::rw- u:1000:r-- g::r-- m::r-- o::---`, valid or not.
#[cfg(test)]
pub(crate) fn value_from_text(text: &str) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in text.split_whitespace() {
        let [tag, id, perms] = entry.split(':').collect::<Vec<_>>().try_into().expect("tag:id:perm");
        let code: u16 = match (tag, id) {
            ("u", "") => 0x01,
            ("u", _) => 0x02,
            ("g", "") => 0x04,
            ("g", _) => 0x08,
            ("m", _) => 0x10,
            ("o", _) => 0x20,
            _ => panic!("unknown entry {entry}"),
        };
        let perm = perms.bytes().fold(0u16, |bits, byte| bits << 1 | u16::from(byte != b'-'));
        value.extend_from_slice(&code.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.parse().unwrap_or(NO_ID).to_le_bytes());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_format::inode::S_IFREG;

    const FULL: &str = "u::rw- u:1001:rwx u:1002:r-- g::r-- g:2001:rw- g:2002:--x m::rw- o::--x";

    #[test]
    fn parses_what_linux_parses() {
        let table = [
            ("u::rwx g::r-x o::---", Ok(true)),
            (FULL, Ok(true)),
            ("u::rwx g::r-x m::r-- o::---", Ok(true)),
            ("u::rwx u:7:r-- u:7:rwx u:3:r-- g::r-x m::r-- o::---", Ok(true)),
            ("", Ok(false)),
            ("u::rwx g::r-x", Err(Errno::INVAL)),
            ("g::r-x o::---", Err(Errno::INVAL)),
            ("u::rwx o::---", Err(Errno::INVAL)),
            ("u::rwx g::r-x o::--- o::---", Err(Errno::INVAL)),
            ("u::rwx u::rwx g::r-x o::---", Err(Errno::INVAL)),
            ("u::rwx u:7:r-- g::r-x o::---", Err(Errno::INVAL)),
            ("u::rwx g::r-x g:7:r-- o::---", Err(Errno::INVAL)),
            ("u::rwx g::r-x m::r-- m::r-- o::---", Err(Errno::INVAL)),
            ("u::rwx g::r-x u:7:r-- m::r-- o::---", Err(Errno::INVAL)),
            ("u::rwx g::r-x o::--- m::r--", Err(Errno::INVAL)),
            ("u::rwx u:4294967295:r-- g::r-x m::r-- o::---", Err(Errno::INVAL)),
        ];
        for (text, expected) in table {
            let value = value_from_text(text);
            let parsed = Acl::parse(&value);
            assert_eq!(parsed.as_ref().map(Option::is_some).map_err(|e| *e), expected, "{text}");
            if let Ok(Some(acl)) = parsed {
                assert_eq!(acl.to_xattr(), value, "{text}");
            }
        }
        let valid = value_from_text(FULL);
        let changed = |at: usize, byte: u8| {
            let mut value = valid.clone();
            value[at] = byte;
            Acl::parse(&value).map(|acl| acl.unwrap().to_xattr())
        };
        assert_eq!(changed(0, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(changed(4, 3), Err(Errno::INVAL));
        assert_eq!(changed(6, 8), Err(Errno::INVAL));
        assert_eq!(changed(8, 77), Ok(valid.clone()), "ids of unnamed entries do not matter");
        assert_eq!(Acl::parse(&valid[..valid.len() - 1]), Err(Errno::INVAL));
        assert_eq!(Acl::parse(&valid[..3]), Err(Errno::INVAL));
        assert_eq!(Acl::parse(&[]), Ok(None));
    }

    #[test]
    fn checks_as_acl_5_says() {
        // (uid, groups, granted bits) for owner 1000, group 2000
        let table: [(u32, &[u32], u8); 9] = [
            (1000, &[2001], 6),
            (1001, &[], 6), // rwx less the mask
            (1002, &[2001], 4),
            (1, &[2000], 4),
            (1, &[2001], 6),
            (1, &[2002], 0), // x is not in the mask, and a member is not "other"
            (1, &[2000, 2002], 4),
            (1, &[2000, 2001], 6),
            (1, &[9], 1),
        ];
        let value = value_from_text(FULL);
        for (uid, groups, granted) in table {
            let cred = Cred { uid, gid: 5, groups: groups.to_vec(), umask: 0 };
            for mask in 0..8 {
                let expected = if mask & !granted == 0 { Ok(()) } else { Err(Errno::ACCESS) };
                assert_eq!(check(&value, &cred, 1000, 2000, mask), expected, "{uid} {groups:?} {mask}");
            }
        }
        // Two groups that grant half each do not add up.
        let halves = value_from_text("u::--- g::r-- g:7:-w- m::rwx o::---");
        let both = Cred { uid: 1, gid: 7, groups: vec![2000], umask: 0 };
        assert_eq!(check(&halves, &both, 1000, 2000, 6), Err(Errno::ACCESS));
        assert_eq!(check(&halves, &both, 1000, 2000, 4), Ok(()));
        for damaged in [&b""[..], &value[..7], &value[..20]] {
            let nobody = Cred { uid: 1, gid: 1, groups: vec![], umask: 0 };
            assert_eq!(check(damaged, &nobody, 1000, 2000, 4), Err(Errno::UCLEAN));
        }
    }

    #[test]
    fn mode_and_acl_stay_in_step() {
        // (ACL, mode, equivalent, chmod, ACL after)
        let table = [
            ("u::rw- g::r-- o::---", 0o640, true, 0o751, "u::rwx g::r-x o::--x"),
            ("u::rw- u:1:rwx g::r-- m::r-x o::---", 0o650, false, 0o4716, "u::rwx u:1:rwx g::r-- m::--x o::rw-"),
            ("u::rw- g::r-- m::--- o::---", 0o600, false, 0o060, "u::--- g::r-- m::rw- o::---"),
        ];
        for (text, mode, equivalent, chmod, after) in table {
            let value = value_from_text(text);
            let acl = Acl::parse(&value).unwrap().unwrap();
            assert_eq!(acl.equiv_mode(), (mode, equivalent), "{text}");
            assert_eq!(chmod_acl(&value, chmod).unwrap(), value_from_text(after), "{text}");
        }
        assert_eq!(chmod_acl(b"bad", 0), Err(Errno::UCLEAN));
        assert_eq!(create(b"bad", 0), Err(Errno::UCLEAN));
    }

    #[test]
    fn setting_an_acl_sets_the_mode() {
        let subject = Subject { mode: S_IFREG | 0o2777, uid: 1, gid: 2, flags: 0, access_acl: None };
        let minimal = Acl::parse(&value_from_text("u::rw- g::r-- o::---")).unwrap().unwrap();
        let full = Acl::parse(&value_from_text(FULL)).unwrap().unwrap();
        assert_eq!(mode_from_acl(&Cred::root(), &subject, &minimal), (S_IFREG | 0o2640, None));
        let stranger = Cred { uid: 1, gid: 1, groups: vec![], umask: 0 };
        assert_eq!(mode_from_acl(&stranger, &subject, &full), (S_IFREG | 0o661, Some(full.to_xattr())));
    }

    #[test]
    fn new_inodes_take_the_default_acl() {
        // (default ACL, mode asked for, mode, access ACL)
        let table = [
            ("u::rwx g::r-x o::---", 0o666, 0o640, None),
            (FULL, 0o777, 0o661, Some(FULL)),
            ("u::rwx u:1:rwx g::r-x m::rwx o::r-x", 0o644, 0o644, Some("u::rw- u:1:rwx g::r-x m::r-- o::r--")),
        ];
        for (text, asked, mode, access) in table {
            let value = value_from_text(text);
            let created = create(&value, S_IFREG | asked).unwrap();
            let access_acl = access.map(value_from_text);
            let expected = Created { mode: S_IFREG | mode, access_acl, default_acl: None };
            assert_eq!(created, expected, "{text}");
            let directory = create(&value, S_IFDIR | asked).unwrap();
            assert_eq!(directory.default_acl.as_deref(), Some(&value[..]));
        }
    }
}
