//! What the verbs ask of the files in a volume, whoever has it open: this process (`open`), or a daemon that has it
//! mounted (`live`). Paths start at the volume's root and never leave it; symbolic links are followed where the method
//! says so. Errors are the engine's in both cases, so a verb says the same words.

use myriad_engine::{RenameMode, Result, SetAttr, Stat, WalkEntry, WalkError};

/// Of a walk: a file, or what could not be read; it goes on with the rest.
pub type Step = std::result::Result<WalkEntry, WalkError>;

pub trait Tree {
    /// Attributes; a final symbolic link is followed.
    fn stat(&self, path: &[u8]) -> Result<Stat>;
    /// Attributes; a final symbolic link is not followed.
    fn lstat(&self, path: &[u8]) -> Result<Stat>;
    /// `lstat` of many, in their order.
    fn lstat_many(&self, paths: &[Vec<u8>]) -> Vec<Result<Stat>>;
    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Names of extended attributes, of what a final symbolic link leads to if `follow`.
    fn list_xattr(&self, path: &[u8], follow: bool) -> Result<Vec<Vec<u8>>>;
    /// Names in a directory in its own order, without "." and ".."; links are followed.
    fn names(&self, path: &[u8]) -> Result<Box<dyn Iterator<Item = Result<Vec<u8>>>>>;
    /// Every file at and below `path`, a directory before its content; no link is followed.
    fn walk(&self, path: &[u8]) -> Result<Box<dyn Iterator<Item = Step>>>;
    /// A regular file, to be read through once; links are followed.
    fn open(&self, path: &[u8]) -> Result<Box<dyn ReadAt>>;
    /// A directory of the caller's, with mode `mode` less the umask.
    fn mkdir(&self, path: &[u8], mode: u16) -> Result<()>;
    /// A symbolic link of the caller's.
    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()>;
    /// A further name; a final symbolic link in `source` is linked itself.
    fn link(&self, source: &[u8], target: &[u8]) -> Result<()>;
    fn rename(&self, source: &[u8], target: &[u8], mode: RenameMode) -> Result<()>;
    fn unlink(&self, path: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &[u8]) -> Result<()>;
    /// Removes a directory and all below it: how many files that were. `progress` is called with the number removed so
    /// far and may end it by returning false (`Error::Cancelled`).
    fn remove_tree(&self, path: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> Result<u64>;
    /// Changes mode, owner or times, of what a final symbolic link leads to if `follow`.
    fn set_attr(&self, path: &[u8], follow: bool, attr: SetAttr) -> Result<()>;
    /// A regular file, to be written to; links are followed.
    fn open_write(&self, path: &[u8], how: OpenWrite) -> Result<Box<dyn WriteAt>>;
    /// A directory to work in; links are followed.
    fn folder(&self, path: &[u8]) -> Result<Box<dyn Folder<'_> + '_>>;
}

/// Names in a directory, or why the rest cannot be read.
pub type Names<'t> = Box<dyn Iterator<Item = Result<Vec<u8>>> + 't>;

/// A directory that is held open. Its names are taken as they are: no link is followed, so whoever moves directories about
/// meanwhile cannot lead the work out of it.
pub trait Folder<'t> {
    /// In its own order, without "." and ".."; names may be removed between two of them.
    fn names(&self) -> Result<Names<'t>>;
    fn lstat(&self, name: &[u8]) -> Result<Stat>;
    /// A directory in this one; `.` is this one.
    fn folder(&self, name: &[u8]) -> Result<Box<dyn Folder<'t> + 't>>;
    /// Changes the file that was `judged` by its name here. ESTALE if another one has the name by now, or it has another mode or owner:
    /// whoever may write to the directory could put a file of someone else's in its place.
    fn set_attr(&self, name: &[u8], judged: &Stat, attr: SetAttr) -> Result<()>;
    /// Removes the name of anything but a directory.
    fn unlink(&self, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, name: &[u8]) -> Result<()>;
    /// As [`Tree::remove_tree`].
    fn remove_tree(&self, name: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> Result<u64>;
}

/// How to open a file for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenWrite {
    /// Make it if it is missing: the caller's, with mode 0666 less the umask.
    pub create: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// What it holds goes.
    pub truncate: bool,
}

/// A file that is open for writing.
pub trait WriteAt {
    /// How many bytes were written, which may be fewer than `bytes` has.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize>;
    fn set_size(&self, size: u64) -> Result<()>;
    fn stat(&self) -> Result<Stat>;
}

/// An open file.
pub trait ReadAt {
    /// Up to `buf.len()` bytes; none at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
}
