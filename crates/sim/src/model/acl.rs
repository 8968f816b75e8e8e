//! POSIX ACLs: the attribute's bytes, validity, and how they and the mode follow each other.

use crate::errno::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    UserObj = 1,
    User = 2,
    GroupObj = 4,
    Group = 8,
    Mask = 16,
    Other = 32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    pub tag: Tag,
    pub perm: u16,
    /// User or group of a named entry.
    pub id: u32,
}

pub type Acl = Vec<AclEntry>;

/// Permissions of one class.
const S_IRWX: u16 = 7;
const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

/// Parses the value of `system.posix_acl_*`. `None`: an empty list, which stands for removal. Whether the entries
/// make a list is [`is_valid`]'s question, asked later.
pub fn parse(value: &[u8]) -> Result<Option<Acl>, Errno> {
    if value.is_empty() {
        return Ok(None);
    }
    let Some((version, entries)) = value.split_first_chunk::<4>() else { return Err(Errno::INVAL) };
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::OPNOTSUPP);
    }
    if entries.len() % 8 != 0 {
        return Err(Errno::INVAL);
    }
    let mut acl = Acl::new();
    for raw in entries.chunks_exact(8) {
        let tag = match u16::from_le_bytes([raw[0], raw[1]]) {
            1 => Tag::UserObj,
            2 => Tag::User,
            4 => Tag::GroupObj,
            8 => Tag::Group,
            16 => Tag::Mask,
            32 => Tag::Other,
            _ => return Err(Errno::INVAL),
        };
        let named = matches!(tag, Tag::User | Tag::Group);
        let id = u32::from_le_bytes(raw[4..8].try_into().expect("4 bytes"));
        if named && id == NO_ID {
            return Err(Errno::INVAL);
        }
        acl.push(AclEntry { tag, perm: u16::from_le_bytes([raw[2], raw[3]]), id: if named { id } else { NO_ID } });
    }
    Ok((!acl.is_empty()).then_some(acl))
}

/// One owner, one group, one other, in the order of the tags; a mask when there are named entries.
pub fn is_valid(acl: &[AclEntry]) -> bool {
    let count = |tag| acl.iter().filter(|entry| entry.tag == tag).count();
    let named = count(Tag::User) + count(Tag::Group) > 0;
    acl.is_sorted_by_key(|entry| entry.tag)
        && acl.iter().all(|entry| entry.perm <= S_IRWX)
        && [Tag::UserObj, Tag::GroupObj, Tag::Other].into_iter().all(|tag| count(tag) == 1)
        && count(Tag::Mask) <= 1
        && (!named || count(Tag::Mask) == 1)
}

/// The attribute's value.
pub fn encode(acl: &[AclEntry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in acl {
        value.extend_from_slice(&(entry.tag as u16).to_le_bytes());
        value.extend_from_slice(&entry.perm.to_le_bytes());
        value.extend_from_slice(&entry.id.to_le_bytes());
    }
    value
}

/// The nine permission bits that the list implies, and whether they say all that it says.
pub fn to_mode(acl: &[AclEntry]) -> (u16, bool) {
    let perm = |tag| acl.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm);
    let mask = perm(Tag::Mask);
    let group = mask.or(perm(Tag::GroupObj)).unwrap_or(0);
    let mode = perm(Tag::UserObj).unwrap_or(0) << 6 | group << 3 | perm(Tag::Other).unwrap_or(0);
    let minimal = acl.iter().all(|entry| matches!(entry.tag, Tag::UserObj | Tag::GroupObj | Tag::Other));
    (mode, minimal)
}

/// What chmod does to the list: owner, group class and other take the mode's bits.
pub fn set_mode(acl: &mut [AclEntry], mode: u16) {
    let group_class = if acl.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::GroupObj };
    for entry in acl {
        if entry.tag == Tag::UserObj {
            entry.perm = mode >> 6 & S_IRWX;
        } else if entry.tag == group_class {
            entry.perm = mode >> 3 & S_IRWX;
        } else if entry.tag == Tag::Other {
            entry.perm = mode & S_IRWX;
        }
    }
}

/// A new file in a directory with default list `acl`: the list that it gets, if that says more than its mode, and
/// the mode; both are the narrower of what was asked for and what the list allows.
pub fn inherit(acl: &[AclEntry], mode: u16) -> (Option<Acl>, u16) {
    let (allowed, minimal) = to_mode(acl);
    let mode = mode & (allowed | !0o777);
    let mut own = acl.to_vec();
    set_mode(&mut own, mode);
    ((!minimal).then_some(own), mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> Acl {
        text.split_whitespace()
            .map(|entry| {
                let (tag, rest) = entry.split_at(1);
                let (id, perm) = rest.split_once(':').unwrap();
                let named = !id.is_empty();
                let tag = match (tag, named) {
                    ("u", false) => Tag::UserObj,
                    ("u", true) => Tag::User,
                    ("g", false) => Tag::GroupObj,
                    ("g", true) => Tag::Group,
                    ("m", _) => Tag::Mask,
                    _ => Tag::Other,
                };
                AclEntry { tag, perm: perm.parse().unwrap(), id: id.parse().unwrap_or(NO_ID) }
            })
            .collect()
    }

    #[test]
    fn validity() {
        for (text, expected) in [
            ("u:7 g:5 o:0", true),
            ("u:7 u5:7 g:5 m:7 o:0", true),
            ("u:7 u5:7 g:5 o:0", false),
            ("u:7 g:5", false),
            ("g:5 u:7 o:0", false),
            ("u:8 g:5 o:0", false),
            ("u:7 g:5 m:1 m:1 o:0", false),
            ("u:7 g:5 m:1 o:0", true),
        ] {
            let parsed = parse(&encode(&acl(text))).unwrap().unwrap();
            assert_eq!(is_valid(&parsed), expected, "{text}");
        }
        assert_eq!(parse(&[2, 0, 0, 0]), Ok(None));
        assert_eq!(parse(&[2, 0, 0]), Err(Errno::INVAL));
        assert_eq!(parse(&[3, 0, 0, 0]), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn modes_follow() {
        assert_eq!(to_mode(&acl("u:7 g:5 o:1")), (0o751, true));
        assert_eq!(to_mode(&acl("u:7 u5:7 g:5 m:2 o:1")), (0o721, false));
        assert_eq!(inherit(&acl("u:7 g:5 o:1"), 0o666), (None, 0o640));
        let (own, mode) = inherit(&acl("u:7 u5:7 g:5 m:7 o:0"), 0o2664);
        assert_eq!((own, mode), (Some(acl("u:6 u5:7 g:5 m:6 o:0")), 0o2660));
    }
}
