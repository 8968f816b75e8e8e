//! The library's API: volumes, sessions, files. The operations of a session are sorted by what they are about; each file
//! has first those by path, then those by node.

mod attributes;
mod contents;
mod directories;
mod file;
mod fs;
mod info;
mod layout;
mod life;
mod names;
mod open;
mod options;
mod paths;
mod stream;
#[cfg(test)]
mod tests;
mod trees;

pub use directories::ReadDir;
pub use file::File;
pub use fs::{Formatting, Fs};
pub use info::{Levels, VolumeInfo};
pub use layout::BlockRun;
pub use paths::AsPath;
pub use trees::{Walk, WalkEntry, WalkError};

use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::namei;
use crate::ops::Ops;
use crate::types::*;
use crate::volume::Volume;
use myriad_format::Ino;
use std::sync::atomic::AtomicU64;

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
    /// The volume that it is a view of.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// The user whose view it is.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    #[inline]
    fn volume(&self) -> &Volume {
        self.fs.volume()
    }

    #[inline]
    fn ops(&self) -> Ops<'_> {
        Ops { volume: self.volume(), cred: self.judged(), caller: &self.cred }
    }

    /// For whom permissions are checked: nobody is refused what was granted already.
    #[inline]
    fn judged(&self) -> &Cred {
        static ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0 };
        if self.checked { &ROOT } else { &self.cred }
    }

    /// Whoever changes a file's content takes its capabilities. Where a kernel has checked permissions, it has also done that: before it sends
    /// what it has cached, the file may have been given new ones.
    fn take_capabilities(&self, node: Node) -> Result<()> {
        if self.checked { Ok(()) } else { self.ops().drop_capabilities(node) }
    }

    /// Runs an operation on names given by path. Between finding a file and locking it, it may have been removed and its
    /// number used again: then the paths are resolved anew.
    #[inline]
    fn by_path<T>(&self, mut f: impl FnMut(Ops<'_>) -> Result<T>) -> Result<T> {
        match f(self.ops()) {
            Err(Error::Refused(Errno::STALE)) => self.by_path_again(f),
            result => result,
        }
    }

    #[cold]
    fn by_path_again<T>(&self, mut f: impl FnMut(Ops<'_>) -> Result<T>) -> Result<T> {
        // Nobody removes so fast for so long, but damage may.
        for _ in 0..1000 {
            match f(self.ops()) {
                Err(Error::Refused(Errno::STALE)) => {}
                result => return result,
            }
        }
        Err(Errno::STALE.into())
    }

    /// The root directory.
    pub fn root(&self) -> Node {
        let look = self.volume().look();
        namei::root(&look).unwrap_or(Node { ino: self.volume().root.0, generation: 0 })
    }

    /// The node that has an inode number now; ESTALE if there is none. The number may come from anywhere.
    pub fn node(&self, ino: u64) -> Result<Node> {
        inode::node_at(&self.volume().look(), Ino(ino))
    }

    /// The same view once more, which may use what a thread remembers for this one.
    fn again(&self) -> Session {
        Session { fs: self.fs.clone(), cred: self.cred.clone(), checked: self.checked, number: self.number }
    }
}
