//! From a path to the directory and the name that it means.

use super::Session;
use crate::error::{Errno, Result};
use crate::inode;
use crate::namei::{self, Target};
use crate::order::Look;
use crate::types::*;
use myriad_format::Ino;
use myriad_format::inode::RawInode;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Anything that can be a path: text, bytes, and what the standard library has for names of files.
///
/// ```
/// # fn main() -> myriad_engine::Result<()> {
/// # let session = myriad_engine::Fs::in_memory(64 << 20)?.session(myriad_engine::Cred::root());
/// use std::path::Path;
///
/// session.write("caf\u{e9}", "")?;
/// assert!(session.exists(Path::new("caf\u{e9}"))? && session.exists(b"caf\xc3\xa9")?);
/// # Ok(())
/// # }
/// ```
pub trait AsPath {
    /// The path's bytes.
    fn as_path_bytes(&self) -> &[u8];
}

/// One line a type: a general rule for all that has bytes would leave no room for those whose bytes are reached otherwise.
macro_rules! paths {
    ($($type:ty: $self:ident => $bytes:expr;)*) => {$(
        impl AsPath for $type {
            #[inline]
            fn as_path_bytes(&$self) -> &[u8] {
                $bytes
            }
        }
    )*};
}

paths! {
    [u8]: self => self;
    Vec<u8>: self => self;
    str: self => self.as_bytes();
    String: self => self.as_bytes();
    OsStr: self => self.as_bytes();
    OsString: self => self.as_bytes();
    Path: self => self.as_os_str().as_bytes();
    PathBuf: self => self.as_os_str().as_bytes();
}

impl<const LENGTH: usize> AsPath for [u8; LENGTH] {
    #[inline]
    fn as_path_bytes(&self) -> &[u8] {
        self
    }
}

impl<T: AsPath + ?Sized> AsPath for &T {
    #[inline]
    fn as_path_bytes(&self) -> &[u8] {
        (**self).as_path_bytes()
    }
}

impl<T: AsPath + ToOwned + ?Sized> AsPath for Cow<'_, T> {
    #[inline]
    fn as_path_bytes(&self) -> &[u8] {
        (**self).as_path_bytes()
    }
}

/// The directory part of a path, and what it resolved to.
struct Memo {
    /// Number of the session that resolved it; 0: nothing yet.
    session: u64,
    /// Generation of the name space for which this holds.
    generation: u64,
    parent: Node,
    path: Vec<u8>,
}

/// Sessions of which a thread remembers the last directory, by number.
const MEMOS: usize = 4;

// Gone where another thread-local uses a session while the thread ends: then each path is resolved.
thread_local! {
    static MEMO: RefCell<[Memo; MEMOS]> = const {
        RefCell::new([const { Memo { session: 0, generation: 0, parent: Node { ino: 0, generation: 0 }, path: Vec::new() } }; MEMOS])
    };
}

/// Splits a path whose last component is a plain name; `None` for those that need the slow way.
#[inline]
pub(super) fn split_plain(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memrchr(b'/', path).map_or(0, |at| at + 1);
    let (dir, name) = path.split_at(at);
    let plain = !name.is_empty() && name.len() <= 255 && name != b"." && name != b".." && path.len() < 4096;
    plain.then_some((dir, name))
}

/// A resolved directory and a name in it.
pub(super) struct Place<'p> {
    pub parent: Node,
    pub name: Cow<'p, [u8]>,
    pub must_be_dir: bool,
    pub ends_in_dot: bool,
}

impl From<Target> for Place<'_> {
    fn from(target: Target) -> Self {
        Self {
            parent: target.parent,
            name: target.name.into(),
            must_be_dir: target.must_be_dir,
            ends_in_dot: target.ends_in_dot,
        }
    }
}

impl Session {
    /// The directory of a path and its last component.
    #[inline]
    pub(super) fn target<'p>(&self, look: &mut Look<'_>, path: &'p [u8]) -> Result<Place<'p>> {
        if let Some((dir, name)) = split_plain(path) {
            let parent = self.parent(look, path, dir)?;
            return Ok(Place { parent, name: name.into(), must_be_dir: false, ends_in_dot: false });
        }
        let root = namei::root(look)?;
        Ok(namei::resolve_parent(look, self.judged(), root, path)?.into())
    }

    /// The directory `dir`, which `path` begins with; its user may search it.
    #[inline]
    pub(super) fn parent(&self, look: &mut Look<'_>, path: &[u8], dir: &[u8]) -> Result<Node> {
        let generation = self.volume().namespace_generation.load(Ordering::Acquire);
        let at = self.number as usize % MEMOS;
        let known = MEMO.try_with(|memos| {
            let memo = &memos.borrow()[at];
            let hit = memo.session == self.number && memo.generation == generation && memo.path == dir;
            hit.then_some(memo.parent)
        });
        if let Ok(Some(parent)) = known {
            self.volume().counters.bump(crate::counters::Count::parent_memo_hits);
            return Ok(parent);
        }
        let root = namei::root(look)?;
        let parent = namei::resolve_parent(look, self.judged(), root, path)?.parent;
        let _ = MEMO.try_with(|memos| {
            let memo = &mut memos.borrow_mut()[at];
            (memo.session, memo.generation, memo.parent) = (self.number, generation, parent);
            memo.path.clear();
            memo.path.extend_from_slice(dir);
        });
        Ok(parent)
    }

    pub(super) fn resolve_inside(&self, look: &mut Look<'_>, path: &[u8], follow: bool) -> Result<(Ino, RawInode)> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let root = namei::root(look)?;
        namei::resolve(look, self.judged(), root, path, follow)
    }

    pub(super) fn resolve_node(&self, path: &[u8], follow: bool) -> Result<Node> {
        let (ino, raw) = self.resolve_inside(&mut self.volume().look(), path, follow)?;
        Ok(inode::node(ino, &raw))
    }

    /// Runs an operation on the file that a path names.
    pub(super) fn at_path<T>(&self, path: &[u8], follow: bool, f: impl Fn(Node) -> Result<T>) -> Result<T> {
        self.by_path(|_| f(self.resolve_node(path, follow)?))
    }

    /// Where a new name would go. `taken` is what to say for paths that end in "." or "..", or name the root.
    pub(super) fn new_name<'p>(&self, path: &'p [u8], taken: Errno, dir_ok: bool) -> Result<Place<'p>> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut look = self.volume().look();
        let place = self.target(&mut look, path)?;
        if place.name.is_empty() {
            return Err(taken.into());
        }
        if place.must_be_dir && !dir_ok {
            // "name/" cannot be made, only found: the kernel's answers.
            let stat = self.ops().lookup_inside(&look, place.parent, &place.name);
            return Err(match stat {
                Ok(_) => taken.into(),
                Err(error) => error,
            });
        }
        Ok(place)
    }

    /// An existing name; `dot` and `dotdot` are what to say for paths that end so. The root is busy.
    pub(super) fn old_name<'p>(&self, path: &'p [u8], dot: Errno, dotdot: Errno) -> Result<Place<'p>> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut look = self.volume().look();
        let place = self.target(&mut look, path)?;
        if place.name.is_empty() {
            let ends_in_dotdot = path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty()) == Some(b"..");
            return Err(match (place.ends_in_dot, ends_in_dotdot) {
                (true, _) => dot,
                (_, true) => dotdot,
                _ => Errno::BUSY,
            }
            .into());
        }
        Ok(place)
    }

    /// Where O_CREAT makes the file: a dangling link's target, if links are followed.
    pub(super) fn creation_place<'p>(&self, path: &'p [u8], follow: bool) -> Result<Place<'p>> {
        let mut look = self.volume().look();
        let mut place = self.target(&mut look, path)?;
        let mut links = 0;
        loop {
            if place.name.is_empty() {
                return Err(Errno::ISDIR.into());
            }
            let Ok((ino, raw)) = self.ops().find_inside(&look, place.parent, &place.name) else { return Ok(place) };
            if !follow || !inode::is_link(&raw) {
                return Ok(place);
            }
            let link = namei::follow_link(&look, inode::node(ino, &raw), &mut links)?;
            let target = namei::resolve_parent(&mut look, self.judged(), place.parent, &link)?;
            if target.must_be_dir {
                return Err(Errno::ISDIR.into());
            }
            place = target.into();
        }
    }

    /// The node that a path names; a final symbolic link is followed.
    pub fn resolve(&self, path: &(impl AsPath + ?Sized)) -> Result<Node> {
        self.by_path(|_| self.resolve_node(path.as_path_bytes(), true))
    }
}
