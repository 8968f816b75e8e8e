//! Where a path leads when all links are followed.

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
