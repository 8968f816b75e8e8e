//! ACLs. As an attribute they are version 2 of the kernel's binary form; archives hold them as the text of acl(5).

use nix::unistd::{Group, User};

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// An entry that names nobody.
const NOBODY: u32 = u32::MAX;
const GROUP: u16 = 4;
const MASK: u16 = 16;
/// Tag, word, whether it names somebody.
const TAGS: [(u16, &str, bool); 6] = [
    (1, "user", false),
    (2, "user", true),
    (GROUP, "group", false),
    (8, "group", true),
    (MASK, "mask", false),
    (32, "other", false),
];
/// No file system takes more.
const ENTRIES_MAX: usize = 8191;

/// Permission bits of a file's group by an access ACL. Where there is one, those of the mode are its mask: the most that any user or group has
/// whom it names.
pub fn group_bits(acl: &[u8]) -> Option<u16> {
    let entry_of = |wanted: u16| {
        let mut entries = acl.get(4..)?.chunks_exact(8).map(|entry| entry.split_at(2));
        let (_, rest) = entries.find(|(tag, _)| *tag == wanted.to_le_bytes())?;
        Some(u16::from_le_bytes([rest[0], rest[1]]) & 7)
    };
    Some((entry_of(GROUP)? & entry_of(MASK).unwrap_or(7)) << 3)
}

/// Text to binary. Names are looked up on this host, unless the entry has the number too, as libarchive adds it.
pub fn parse(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            entries.push(parse_entry(line)?);
        }
    }
    if entries.is_empty() || entries.len() > ENTRIES_MAX {
        return None;
    }
    // The kernel takes them in this order only.
    entries.sort_by_key(|&(tag, _, id)| (tag, id));
    let mut binary = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        binary.extend_from_slice(&tag.to_le_bytes());
        binary.extend_from_slice(&permissions.to_le_bytes());
        binary.extend_from_slice(&id.to_le_bytes());
    }
    Some(binary)
}

fn parse_entry(line: &str) -> Option<(u16, u16, u32)> {
    let mut fields = line.split(':').map(str::trim);
    let word = match fields.next()? {
        "u" => "user",
        "g" => "group",
        "m" => "mask",
        "o" => "other",
        word => word,
    };
    let mut name = fields.next()?;
    let mut letters = fields.next();
    // `other:r--` and `mask:rw-`, as some systems write them.
    if letters.is_none() && matches!(word, "mask" | "other") {
        letters = Some(name);
        name = "";
    }
    let &(tag, ..) = TAGS.iter().find(|&&(_, known, named)| known == word && named != name.is_empty())?;
    let permissions = letters?.bytes().try_fold(0, |bits, letter| match letter {
        b'r' => Some(bits | 4),
        b'w' => Some(bits | 2),
        b'x' => Some(bits | 1),
        b'-' => Some(bits),
        _ => None,
    })?;
    let id = match (name.is_empty(), fields.next().and_then(|number| number.parse().ok())) {
        (true, _) => NOBODY,
        (false, Some(number)) => number,
        (false, None) => name.parse().ok().or_else(|| lookup(word, name))?,
    };
    Some((tag, permissions, id))
}

fn lookup(word: &str, name: &str) -> Option<u32> {
    if word == "user" {
        Some(User::from_name(name).ok()??.uid.as_raw())
    } else {
        Some(Group::from_name(name).ok()??.gid.as_raw())
    }
}

/// Binary to text, users and groups by number. `None` for a form that is not the kernel's.
pub fn text(binary: &[u8]) -> Option<String> {
    let (version, entries) = binary.split_first_chunk()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let mut lines = Vec::new();
    for entry in entries.chunks_exact(8) {
        let (tag, permissions) = (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]]));
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let (_, word, is_named) = TAGS.iter().find(|(known, ..)| *known == tag)?;
        let name = if *is_named { id.to_string() } else { String::new() };
        let letter = |bit: u16, letter| if permissions & bit != 0 { letter } else { '-' };
        lines.push(format!("{word}:{name}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x')));
    }
    Some(lines.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acls_are_the_same_in_all_spellings() {
        let canonical = "user::rwx,user:0:r--,user:1000:rw-,group::r-x,group:7:--x,mask::rwx,other::r--";
        let binary = parse(canonical.as_bytes()).unwrap();
        assert_eq!(binary.len(), 4 + 7 * 8);
        assert_eq!(text(&binary).unwrap(), canonical);
        for spelling in [
            "u::rwx\nuser:root:r--\nuser:1000:rw-\ng::r-x\ngroup:7:--x\nmask:rwx\nother:r--\n",
            "other::r--,user::rwx,user:nobody-here:rw-:1000,user:root:r--:0,group::r-x,g:7:x,m::rwx # all",
        ] {
            assert_eq!(parse(spelling.as_bytes()).as_ref(), Some(&binary), "{spelling}");
        }
        for wrong in ["", "user", "user::rwq", "nobody::r--", "user:no-such-user-here:r--", "\u{0}", "other:joe:r--"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(text(&binary[..9]), None);
        assert_eq!(text(b"\x01\0\0\0"), None);
    }
}
