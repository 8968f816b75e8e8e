//! Extended attributes: a packed list, at the end of the inode's body or in a chain of attribute blocks.

use crate::on_disk::on_disk;
use zerocopy::little_endian::{U32, U64};

on_disk! {
    /// Start of an attribute block; `length` bytes of the list follow.
    pub struct AttrBlockHeader: 64 {
        0 => header: crate::header::BlockHeader,
        /// Bytes of the list in this block.
        48 => length: U32,
        /// Place in the chain, from 0.
        52 => index: U32,
        /// Next block, 0 for none.
        56 => next: U64,
    }
}

on_disk! {
    /// Start of one attribute; name (with its namespace, as in getxattr(2)) and value follow, unpadded.
    pub struct AttrHeader: 5 {
        0 => value_len: U32,
        4 => name_len: u8,
    }
}

/// Longest name with its namespace, and longest value, in bytes; Linux's own limits.
pub const NAME_MAX: usize = 255;
pub const VALUE_MAX: usize = 65536;
/// Longest packed list of one inode, in bytes.
pub const LIST_MAX: usize = 1 << 20;

/// Iterates over a packed list. An attribute that does not fit the list is damage: `Err` with its offset, then the end.
pub struct AttrIter<'a> {
    list: &'a [u8],
    at: usize,
}

impl<'a> AttrIter<'a> {
    pub fn new(list: &'a [u8]) -> Self {
        Self { list, at: 0 }
    }
}

impl<'a> Iterator for AttrIter<'a> {
    /// Name and value.
    type Item = Result<(&'a [u8], &'a [u8]), usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.list[self.at..];
        if rest.is_empty() {
            return None;
        }
        let offset = self.at;
        self.at = self.list.len();
        if rest.len() < AttrHeader::SIZE {
            return Some(Err(offset));
        }
        let header = AttrHeader::read(rest);
        let name_len = usize::from(header.name_len);
        let end = AttrHeader::SIZE + name_len + header.value_len.get() as usize;
        if name_len == 0 || header.value_len.get() as usize > VALUE_MAX || end > rest.len() {
            return Some(Err(offset));
        }
        self.at = offset + end;
        let (name, value) = rest[AttrHeader::SIZE..end].split_at(name_len);
        Some(Ok((name, value)))
    }
}

/// Whether a name has a namespace that attributes may have: `user.`, `trusted.` and `security.`, with a name behind them
/// that listxattr(2) can give back, and the two ACLs.
pub fn has_namespace(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let is_acl = name == b"system.posix_acl_access" || name == b"system.posix_acl_default";
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(*prefix));
    is_acl || rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(&0))
}

/// Appends one attribute to a packed list.
pub fn push(list: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    debug_assert!(!name.is_empty() && name.len() <= NAME_MAX && value.len() <= VALUE_MAX);
    list.extend_from_slice(&(value.len() as u32).to_le_bytes());
    list.push(name.len() as u8);
    list.extend_from_slice(name);
    list.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces() {
        for name in [&b"user.a"[..], b"trusted.\xff", b"security.selinux", b"system.posix_acl_default"] {
            assert!(has_namespace(name));
        }
        for name in [&b""[..], b"user.", b"user.a\0", b"other.a", b"system.nfs4_acl", b"vser.a"] {
            assert!(!has_namespace(name));
        }
    }

    #[test]
    fn lists_round_trip_and_damage_shows() {
        let mut list = Vec::new();
        push(&mut list, b"user.a", b"1");
        push(&mut list, b"user.bb", b"");
        let all: Vec<_> = AttrIter::new(&list).map(Result::unwrap).collect();
        assert_eq!(all, [(&b"user.a"[..], &b"1"[..]), (b"user.bb", b"")]);
        list.truncate(list.len() - 1);
        assert!(AttrIter::new(&list).last().unwrap().is_err());
    }
}
