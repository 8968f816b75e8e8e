//! API: sessions and their operations. (Bodies follow.)
#![allow(unused_variables)]

use crate::error::Result;
use crate::types::*;
use myriad_device::BlockDevice;
use std::path::Path;
use std::sync::Arc;

/// An open volume. Cheap to clone; closed cleanly by [`Fs::close`] or when the last clone goes.
#[derive(Clone)]
pub struct Fs {}

impl Fs {
    /// Makes a volume in an image file or on a block device. The file is made if missing and set to `size` bytes
    /// (sparse); `size` `None` takes the existing size.
    pub fn format(path: &Path, size: Option<u64>, options: &MkfsOptions) -> Result<()> {
        todo!()
    }
    /// Makes a volume on a device already open.
    pub fn format_device(device: &dyn BlockDevice, log: Option<&dyn BlockDevice>, options: &MkfsOptions) -> Result<()> {
        todo!()
    }
    /// Opens a volume; recovers it first if it was not closed cleanly.
    pub fn open(path: &Path, options: MountOptions) -> Result<Self> {
        todo!()
    }
    /// Opens a volume on devices already open (tests, volume managers).
    pub fn open_device(device: Arc<dyn BlockDevice>, log: Option<Arc<dyn BlockDevice>>, options: MountOptions) -> Result<Self> {
        todo!()
    }
    /// A view of the volume for one user.
    pub fn session(&self, cred: Cred) -> Session {
        todo!()
    }
    /// Makes everything done so far durable: data, names, attributes.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    /// Syncs and closes. Fails with EBUSY if files are open.
    pub fn close(self) -> Result<()> {
        todo!()
    }
    pub fn statfs(&self) -> Result<StatFs> {
        todo!()
    }
    /// Drops clean cached blocks, so that the next accesses read the device (for measurements).
    pub fn drop_caches(&self) -> Result<()> {
        todo!()
    }
    /// Every counter with its name, in a fixed order.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        todo!()
    }
    /// What `info` shows: superblock fields and state.
    pub fn info(&self) -> VolumeInfo {
        todo!()
    }
}

/// Facts about an open volume.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    pub uuid: [u8; 16],
    pub label: String,
    pub block_size: u32,
    pub block_count: u64,
    pub ag_size: u64,
    pub ag_count: u32,
    pub region_size: u64,
    pub log_size: u64,
    pub log_external: bool,
    pub order: Order,
    pub read_only: bool,
    pub recovered: bool,
    pub made: Time,
}

/// One user's view of a volume: every operation, by path or by node. Paths are bytes, relative to the root, with or
/// without a leading slash; `..`, `.` and symbolic links are resolved as POSIX says (40 links at most, then ELOOP).
pub struct Session {}

/// Anything that can be a path.
pub trait AsPath {
    fn as_path_bytes(&self) -> &[u8];
}

impl<T: AsRef<[u8]> + ?Sized> AsPath for T {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

impl Session {
    pub fn fs(&self) -> &Fs { todo!() }
    pub fn cred(&self) -> &Cred { todo!() }
    pub fn root(&self) -> Node { todo!() }

    // By path. `stat` follows a final symbolic link, `lstat` does not.
    pub fn resolve(&self, path: &(impl AsPath + ?Sized)) -> Result<Node> { todo!() }
    pub fn stat(&self, path: &(impl AsPath + ?Sized)) -> Result<Stat> { todo!() }
    pub fn lstat(&self, path: &(impl AsPath + ?Sized)) -> Result<Stat> { todo!() }
    /// `lstat` of many paths at once: lookups overlap their memory and device waits. Results are in order of `paths`.
    pub fn stat_many<P: AsPath>(&self, paths: &[P]) -> Vec<Result<Stat>> { todo!() }
    /// Makes an empty regular file; EEXIST if the name is taken.
    pub fn create(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<Node> { todo!() }
    pub fn mkdir(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<Node> { todo!() }
    /// FIFO, socket, device node or regular file; `mode` has the type bits.
    pub fn mknod(&self, path: &(impl AsPath + ?Sized), mode: u16, rdev: u64) -> Result<Node> { todo!() }
    pub fn symlink(&self, target: &[u8], path: &(impl AsPath + ?Sized)) -> Result<Node> { todo!() }
    pub fn readlink(&self, path: &(impl AsPath + ?Sized)) -> Result<Vec<u8>> { todo!() }
    /// A second name for a file (not a directory). A final symbolic link in `source` is linked itself.
    pub fn link(&self, source: &(impl AsPath + ?Sized), target: &(impl AsPath + ?Sized)) -> Result<()> { todo!() }
    pub fn unlink(&self, path: &(impl AsPath + ?Sized)) -> Result<()> { todo!() }
    pub fn rmdir(&self, path: &(impl AsPath + ?Sized)) -> Result<()> { todo!() }
    pub fn rename(&self, source: &(impl AsPath + ?Sized), target: &(impl AsPath + ?Sized), mode: RenameMode) -> Result<()> { todo!() }
    /// Follows a final symbolic link (as chmod, chown, truncate, utimensat do); use `set_attr_node` for the link itself.
    pub fn set_attr(&self, path: &(impl AsPath + ?Sized), attr: SetAttr) -> Result<Stat> { todo!() }
    pub fn get_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8]) -> Result<Vec<u8>> { todo!() }
    pub fn set_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> { todo!() }
    pub fn list_xattr(&self, path: &(impl AsPath + ?Sized)) -> Result<Vec<Vec<u8>>> { todo!() }
    pub fn remove_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8]) -> Result<()> { todo!() }
    /// Permission check as access(2): `mask` of 4 read, 2 write, 1 execute or search; 0 for existence.
    pub fn access(&self, path: &(impl AsPath + ?Sized), mask: u8) -> Result<()> { todo!() }
    pub fn open(&self, path: &(impl AsPath + ?Sized), options: OpenOptions) -> Result<File> { todo!() }
    /// An unnamed file in the directory `path`; [`Session::link_file`] can name it.
    pub fn open_tmpfile(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<File> { todo!() }
    pub fn link_file(&self, file: &File, path: &(impl AsPath + ?Sized)) -> Result<()> { todo!() }
    /// Entries of a directory, without "." and "..".
    pub fn read_dir(&self, path: &(impl AsPath + ?Sized)) -> Result<ReadDir> { todo!() }
    /// Every file below `path` (itself first), each directory before its content, with attributes.
    pub fn walk(&self, path: &(impl AsPath + ?Sized)) -> Result<Walk> { todo!() }
    /// Removes `path` and all below it. `progress` is called with the number removed so far and may cancel by
    /// returning false.
    pub fn remove_tree(&self, path: &(impl AsPath + ?Sized), progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> { todo!() }

    // By node.
    pub fn lookup(&self, parent: Node, name: &[u8]) -> Result<Stat> { todo!() }
    /// The parent of a directory (the root's is the root).
    pub fn parent_of(&self, directory: Node) -> Result<Node> { todo!() }
    pub fn stat_node(&self, node: Node) -> Result<Stat> { todo!() }
    pub fn set_attr_node(&self, node: Node, attr: SetAttr) -> Result<Stat> { todo!() }
    pub fn mknod_at(&self, parent: Node, name: &[u8], mode: u16, rdev: u64) -> Result<Stat> { todo!() }
    pub fn mkdir_at(&self, parent: Node, name: &[u8], mode: u16) -> Result<Stat> { todo!() }
    pub fn symlink_at(&self, target: &[u8], parent: Node, name: &[u8]) -> Result<Stat> { todo!() }
    pub fn link_at(&self, node: Node, parent: Node, name: &[u8]) -> Result<Stat> { todo!() }
    pub fn unlink_at(&self, parent: Node, name: &[u8]) -> Result<()> { todo!() }
    pub fn rmdir_at(&self, parent: Node, name: &[u8]) -> Result<()> { todo!() }
    pub fn rename_at(&self, source: Node, name: &[u8], target: Node, new_name: &[u8], mode: RenameMode) -> Result<()> { todo!() }
    pub fn readlink_node(&self, node: Node) -> Result<Vec<u8>> { todo!() }
    pub fn open_node(&self, node: Node, options: OpenOptions) -> Result<File> { todo!() }
    /// Up to `max` entries after `cookie` (0: from the start); an empty answer is the end.
    pub fn read_dir_at(&self, directory: Node, cookie: u64, max: usize) -> Result<Vec<DirEntry>> { todo!() }
    pub fn get_xattr_node(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> { todo!() }
    pub fn set_xattr_node(&self, node: Node, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> { todo!() }
    pub fn list_xattr_node(&self, node: Node) -> Result<Vec<Vec<u8>>> { todo!() }
    pub fn remove_xattr_node(&self, node: Node, name: &[u8]) -> Result<()> { todo!() }
    pub fn access_node(&self, node: Node, mask: u8) -> Result<()> { todo!() }
}

/// An open file. Dropping it closes it; a file without names lives until then.
pub struct File {}

impl File {
    pub fn node(&self) -> Node { todo!() }
    pub fn stat(&self) -> Result<Stat> { todo!() }
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> { todo!() }
    /// Writes all of `buf` (with `append`: at the end, whatever `offset` says).
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> { todo!() }
    pub fn truncate(&self, size: u64) -> Result<()> { todo!() }
    pub fn allocate(&self, mode: AllocateMode, offset: u64, length: u64) -> Result<()> { todo!() }
    /// First data at or after `offset`; ENXIO past the last.
    pub fn seek_data(&self, offset: u64) -> Result<u64> { todo!() }
    /// First hole at or after `offset` (the end of the file counts as one).
    pub fn seek_hole(&self, offset: u64) -> Result<u64> { todo!() }
    pub fn set_attr(&self, attr: SetAttr) -> Result<Stat> { todo!() }
    /// Makes data, attributes and the file's name durable.
    pub fn sync(&self) -> Result<()> { todo!() }
    /// Makes data and size durable.
    pub fn sync_data(&self) -> Result<()> { todo!() }
}

/// Iterator over a directory's entries.
pub struct ReadDir {}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;
    fn next(&mut self) -> Option<Self::Item> { todo!() }
}

/// Iterator over a tree: directories before their content.
pub struct Walk {}

/// One file of a walk.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// Path relative to where the walk began; empty for the beginning itself.
    pub path: Vec<u8>,
    pub stat: Stat,
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;
    fn next(&mut self) -> Option<Self::Item> { todo!() }
}
