//! The library's API: volumes, sessions, files. The operations of a session are sorted by what they are about; each file
//! has first those by path, then those by node.

mod attributes;
mod directories;
mod file;
mod fs;
mod info;
mod life;
mod names;
mod open;
mod paths;
mod trees;

pub use directories::ReadDir;
pub use file::File;
pub use fs::{Fs, Keeper};
pub use info::{Levels, VolumeInfo};
pub use paths::AsPath;
pub use trees::{Walk, WalkEntry, WalkError};

use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::ops::{Ops, RESOLVE_AGAIN};
use crate::order::Look;
use crate::types::*;
use crate::volume::Volume;
use myriad_format::Ino;
use std::sync::atomic::{AtomicU64, Ordering};

/// One user's view of a volume: every operation, by path or by node.
///
/// Paths are bytes, relative to the root, with or without a leading slash; `..`, `.` and symbolic links are resolved as
/// POSIX says (40 links at most, then ELOOP). A session may be used by several threads.
pub struct Session {
    fs: Fs,
    cred: Cred,
    /// Permissions were checked by the caller.
    checked: bool,
    /// Tells who may use what a thread remembers: those with the same volume and user.
    number: u64,
}

static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

impl Session {
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    #[inline]
    fn volume(&self) -> &Volume {
        self.fs.volume()
    }

    #[inline]
    fn ops(&self) -> Ops<'_> {
        Ops { volume: self.volume(), cred: self.judged(), caller: &self.cred, resolved: None }
    }

    /// For whom permissions are checked: nobody is refused what was granted already.
    #[inline]
    fn judged(&self) -> &Cred {
        static ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0 };
        if self.checked { &ROOT } else { &self.cred }
    }

    /// Runs an operation on names given by path. Between finding their directories and locking them, those may have been
    /// removed and their numbers used again: then the paths are resolved anew.
    fn by_path<T>(&self, f: impl Fn(Ops<'_>) -> Result<T>) -> Result<T> {
        loop {
            let resolved = Some(self.volume().namespace_generation.load(Ordering::Acquire));
            match f(Ops { resolved, ..self.ops() }) {
                Err(Error::Refused(RESOLVE_AGAIN)) => {}
                result => return result,
            }
        }
    }

    /// The root directory.
    pub fn root(&self) -> Node {
        let look = self.volume().look();
        let generation = inode::read(&look, self.volume().root).map_or(0, |raw| raw.generation.get());
        Node { ino: self.volume().root.0, generation }
    }

    /// The node that has an inode number now.
    pub fn node(&self, ino: u64) -> Result<Node> {
        let look = self.volume().look();
        if self.volume().geometry.locate(Ino(ino)).is_none() {
            return Err(Errno::STALE.into());
        }
        self.node_of(&look, Ino(ino))
    }

    fn node_of(&self, look: &Look<'_>, ino: Ino) -> Result<Node> {
        Ok(inode::node(ino, &inode::read(look, ino)?))
    }

    /// ESTALE unless the node is still what it was.
    fn check_node(&self, node: Node) -> Result<()> {
        let look = self.volume().look();
        inode::read_node(&look, node).map(|_| ())
    }

    /// The same view once more, which may use what a thread remembers for this one.
    fn again(&self) -> Session {
        Session { fs: self.fs.clone(), cred: self.cred.clone(), checked: self.checked, number: self.number }
    }
}
