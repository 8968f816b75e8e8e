//! What must not be copied: a file onto itself, or a directory into itself.

use super::super::path;
use super::side::Side;
use crate::failure::{At, Failure, errno_text, image_name};
use crate::volume::place::{is_same_file, unreachable_name};
use crate::volume::{Place, meant};
use anyhow::Result;
use myriad_engine::{Errno, Error, Node, Session};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;

/// Refuses to copy a file onto itself, or a directory into itself. `as_such`: a symbolic link is not followed.
pub fn check_apart(source: &Side, target: &Side, name: Option<&[u8]>, as_such: bool) -> Result<()> {
    let same = || -> Result<()> {
        let what = "source and target are the same file, or one inside the other";
        Err(Failure::new(source.operand(), what, "choose another target").into())
    };
    match (source, target) {
        (Side::Volume(one, from), Side::Volume(other, to)) if Rc::ptr_eq(one, other) => {
            let session = one.session();
            let stat = session.stat(&from.path).or_else(|_| session.lstat(&from.path)).at(from)?;
            let to = match name {
                Some(name) => to.below(name),
                None => to.clone(),
            };
            if session.stat(&to.path).is_ok_and(|there| there.ino == stat.ino) {
                return same();
            }
            if !stat.is_dir() {
                return Ok(());
            }
            let (directory, node) = nearest_above(session, &to)?;
            if is_inside(session, node, stat.node()).at(directory)? { same() } else { Ok(()) }
        }
        _ => {
            let Some(from) = source.host_path() else { return Ok(()) };
            let found = match from.metadata() {
                Err(_) if from.is_symlink() && as_such => return Ok(()),
                Err(error) if source.image().is_none() => return Err(unfound(from, error)),
                found => found.at(source.operand())?,
            };
            let Some(to) = target.host_path() else {
                let is_stdout = matches!(target, Side::Standard)
                    && found.is_file()
                    && rustix::fs::fstat(rustix::stdio::stdout())
                        .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (found.dev(), found.ino()));
                return if is_stdout { same() } else { Ok(()) };
            };
            let to = name.map_or(to.to_owned(), |name| to.join(OsStr::from_bytes(name)));
            // A device may be read and written: what it gives is not what it takes.
            let is_same = is_same_file(from, &to) && !found.file_type().is_char_device();
            // A link that takes the place of another one is another file than what both lead to.
            let id = |path: &Path| path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()));
            let becomes_link = as_such && from.is_symlink() && to.is_symlink() && id(from) != id(&to);
            if is_same && !becomes_link {
                return same();
            }
            if !found.is_dir() {
                return Ok(());
            }
            let from = from.canonicalize().at(source.operand())?;
            let absolute = std::path::absolute(&to).at(image_name(&to))?;
            // Directories between what is there and the new name are still to be made.
            let real = absolute.ancestors().find_map(|above| above.canonicalize().ok());
            if real.is_some_and(|real| real.starts_with(&from)) { same() } else { Ok(()) }
        }
    }
}

/// The nearest directory above a place that is there. Those between are still to be made.
fn nearest_above(session: &Session, place: &Place) -> Result<(Place, Node)> {
    let mut path = &place.path[..];
    loop {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        path = path::split(&path[..end]).0;
        let above = if path.is_empty() { b"/" } else { path };
        let directory = Place { path: above.to_vec(), ..place.clone() };
        match session.resolve(&directory.path) {
            Err(_) if !path.is_empty() => {}
            node => {
                let node = node.at(&directory)?;
                return Ok((directory, node));
            }
        }
    }
}

/// Whether `node` is `directory` or inside it.
fn is_inside(session: &Session, mut node: Node, directory: Node) -> Result<bool, Error> {
    loop {
        if node == directory {
            return Ok(true);
        }
        let parent = session.parent_of(node)?;
        if parent == node {
            return Ok(false);
        }
        node = parent;
    }
}

/// Of a source that is not there, on the host.
fn unfound(path: &Path, error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::NotFound && meant::meant(path.as_os_str().as_bytes()).is_none() {
        return Failure::new(image_name(path), errno_text(Errno::NOENT), "check the name").into();
    }
    unreachable_name(path, error)
}
