//! Where a path leads when all links are followed, and the way from one path to another.

use super::Tree;
use crate::show::name::join;
use myriad_engine::{Errno, FileType, Result};

/// As many as the engine and the kernel follow.
const LINKS_MAX: usize = 40;

/// The path without links, `.` and `..`. What is not there counts as a plain name, wherever it stands.
pub fn canonical(tree: &dyn Tree, path: &[u8]) -> Result<Vec<u8>> {
    let components = |path: &[u8]| path.rsplit(|&byte| byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let mut found = b"/".to_vec();
    // The next one is the last.
    let mut ahead = components(path);
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        match &*name {
            b"" | b"." => {}
            b".." => {
                let slash = found.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                found.truncate(slash.max(1));
            }
            name => {
                let next = join(&found, name);
                if !tree.lstat(&next).is_ok_and(|stat| stat.file_type() == FileType::Symlink) {
                    found = next;
                    continue;
                }
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                let target = tree.readlink(&next)?;
                if target.starts_with(b"/") {
                    found = b"/".to_vec();
                }
                ahead.extend(components(&target));
            }
        }
    }
    Ok(found)
}

/// From one directory to a file, both as paths from the root.
pub fn way(from: &[u8], to: &[u8]) -> Vec<u8> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let (from, to) = (names(from), names(to));
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = vec![b"..".to_vec(); from.len() - common];
    let way = [&up, &to[common..]].concat().join(&b"/"[..]);
    if way.is_empty() { b".".to_vec() } else { way }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_lead_up_and_down() {
        for (from, to, expected) in [
            ("/", "/a", "a"),
            ("/bin", "/lib/a", "../lib/a"),
            ("/a/b/c", "/a/x", "../../x"),
            ("/a", "/a", "."),
            ("/a/b", "/", "../.."),
            ("/ab", "/a", "../a"),
        ] {
            assert_eq!(way(from.as_bytes(), to.as_bytes()), expected.as_bytes(), "{from} {to}");
        }
    }
}
