//! A complete POSIX file system in plain maps: the second opinion on what the engine answers.
//!
//! Written from POSIX, the man pages and the order in which Linux checks things; held against the host's own file
//! systems by `tests/model_against_host.rs`. What is Linux' habit rather than POSIX' word:
//! - an existing name is EEXIST before the directory's permissions are asked; sticky is EPERM before EISDIR or ENOTDIR;
//! - an ACL is asked only if the mode's group bits are not all clear;
//! - opening a socket, FIFO or device is ENXIO once permissions allow it: there is nobody behind it here.
//!
//! What only the implementation can know is judged in `compare`: blocks, sizes of directories, where holes are.
//!
//! Invariants
//!   1. An inode is in the map while it has a name or an open file; numbers are never used again.
//!   2. A directory's `nlink` is 2 and its subdirectories, its `parent` the directory that names it.
//!   3. The clock moves by [`TICK_NS`] at each operation, so that "changed now" shows.

pub mod acl;
mod attr;

/// Names of the attributes that hold ACLs.
pub mod attr_names {
    pub use super::attr::{ACCESS_ACL, DEFAULT_ACL};
}

pub mod content;
mod file;
mod names;
mod permission;
#[cfg(test)]
mod tests;
mod walk;

use crate::errno::Errno;
use crate::op::{Answer, Cred, Entry, Kind, Op, SLOTS, Stat, Step, Value, users};
use acl::Acl;
use content::Content;
use std::collections::BTreeMap;
use std::sync::Arc;

pub type Ino = u64;

pub const ROOT: Ino = 1;
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link: one less than PATH_MAX.
pub const TARGET_MAX: usize = 4095;
/// Largest size of a file.
pub const SIZE_MAX: u64 = i64::MAX as u64;
/// How far the clock moves at each operation: more than any clock's resolution.
pub const TICK_NS: i64 = 1_000_003;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    File(Content),
    Dir(BTreeMap<Vec<u8>, Ino>),
    Link(Vec<u8>),
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    pub flags: u32,
    /// All but the ACLs.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub access_acl: Option<Acl>,
    pub default_acl: Option<Acl>,
    pub body: Body,
    /// Of a directory; the root's is the root.
    pub parent: Ino,
    /// Made without a name by O_TMPFILE, and not linked yet.
    pub linkable: bool,
}

impl Inode {
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size(),
            Body::Dir(entries) => entries.len() as u64,
            Body::Link(target) => target.len() as u64,
            Body::None => 0,
        }
    }

    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }

    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Ino>> {
        match &self.body {
            Body::Dir(entries) => Some(entries),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Handle {
    pub ino: Ino,
    pub cred: Cred,
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub sync: bool,
}

/// The model file system. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Model {
    inodes: BTreeMap<Ino, Arc<Inode>>,
    next_ino: Ino,
    clock: i64,
    handles: [Option<Handle>; SLOTS],
    users: Arc<Vec<Cred>>,
    /// Linux' sysctl fs.protected_hardlinks, for runs against a host that has it.
    pub protected_hardlinks: bool,
    pub size_max: u64,
}

impl Model {
    /// A fresh volume at time `clock`: a root directory of user 0, mode 0755.
    pub fn new(clock: i64) -> Self {
        let root = Inode {
            kind: Kind::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: clock,
            mtime: clock,
            ctime: clock,
            btime: clock,
            flags: 0,
            xattrs: BTreeMap::new(),
            access_acl: None,
            default_acl: None,
            body: Body::Dir(BTreeMap::new()),
            parent: ROOT,
            linkable: false,
        };
        Self {
            inodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            next_ino: ROOT + 1,
            clock,
            handles: Default::default(),
            users: Arc::new(users()),
            protected_hardlinks: false,
            size_max: SIZE_MAX,
        }
    }

    /// The time of the last operation.
    pub fn clock(&self) -> i64 {
        self.clock
    }

    /// The time at which the next operation will happen.
    pub fn next_clock(&self) -> i64 {
        self.clock + TICK_NS
    }

    pub fn inode(&self, ino: Ino) -> &Inode {
        &self.inodes[&ino]
    }

    pub fn inodes(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, &**inode))
    }

    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    pub fn contains(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    pub fn handle(&self, slot: usize) -> Option<&Handle> {
        self.handles[slot].as_ref()
    }

    pub fn user(&self, index: usize) -> &Cred {
        &self.users[index]
    }

    /// Resolves for the super-user, following a final link.
    pub fn find(&self, path: &[u8]) -> Option<Ino> {
        self.resolve(&Cred::root(), path, true).ok()
    }

    /// Resolves for the super-user; a final link is itself.
    pub fn find_exact(&self, path: &[u8]) -> Option<Ino> {
        self.resolve(&Cred::root(), path, false).ok()
    }

    /// The symbolic link that `path` names.
    pub fn find_link(&self, path: &[u8]) -> Option<Ino> {
        let ino = self.find_exact(path)?;
        (self.inode(ino).kind == Kind::Symlink).then_some(ino)
    }

    pub fn stat(&self, ino: Ino) -> Stat {
        let inode = self.inode(ino);
        Stat {
            ino,
            kind: inode.kind,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size(),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            flags: inode.flags,
        }
    }

    /// Performs a step, and moves the clock.
    pub fn apply(&mut self, step: &Step) -> Answer {
        self.clock += TICK_NS;
        let users = Arc::clone(&self.users);
        let cred = &users[step.cred];
        match &step.op {
            Op::Create { path, mode } => self.create(cred, path, Kind::File, *mode, 0),
            Op::Mkdir { path, mode } => self.mkdir(cred, path, *mode),
            Op::Mknod { path, kind, mode, rdev } => self.create(cred, path, *kind, *mode, *rdev),
            Op::Symlink { target, path } => self.symlink(cred, target, path),
            Op::Readlink { path } => self.readlink(cred, path),
            Op::Link { source, target } => self.link(cred, source, target),
            Op::Unlink { path } => self.unlink(cred, path),
            Op::Rmdir { path } => self.rmdir(cred, path),
            Op::Rename { source, target, how } => self.rename(cred, source, target, *how),
            Op::Stat { path, follow } => {
                let ino = self.resolve(cred, path, *follow)?;
                Ok(Value::Stat(self.stat(ino)))
            }
            Op::Access { path, mask } => {
                let ino = self.resolve(cred, path, true)?;
                self.permission(cred, ino, *mask).map(|()| Value::None)
            }
            Op::ReadDir { path } => self.read_dir(cred, path),
            Op::SetAttr { path, change } => {
                let ino = self.resolve(cred, path, true)?;
                self.set_attr(cred, ino, *change)
            }
            Op::GetXattr { path, name } => self.get_xattr(cred, path, name),
            Op::SetXattr { path, name, value, how } => self.set_xattr(cred, path, name, value, *how),
            Op::ListXattr { path } => self.list_xattr(cred, path),
            Op::RemoveXattr { path, name } => self.remove_xattr(cred, path, name),
            Op::Open { slot, path, how } => self.open(cred, *slot, path, how),
            Op::OpenTmpfile { slot, path, mode } => self.open_tmpfile(cred, *slot, path, *mode),
            Op::LinkFile { slot, path } => self.link_file(cred, *slot, path),
            Op::Close { slot } => self.close(*slot),
            Op::HandleStat { slot } => {
                let ino = self.open_handle(*slot)?.ino;
                Ok(Value::Stat(self.stat(ino)))
            }
            Op::Read { slot, offset, len } => self.read(*slot, *offset, *len),
            Op::Write { slot, offset, len, tag } => self.write(*slot, *offset, *len, *tag),
            Op::Truncate { slot, size } => self.truncate(*slot, *size),
            Op::Allocate { slot, how, offset, len } => self.allocate(*slot, *how, *offset, *len),
            Op::SeekData { slot, offset } => self.seek(*slot, *offset, true),
            Op::SeekHole { slot, offset } => self.seek(*slot, *offset, false),
            Op::HandleSetAttr { slot, change } => {
                let handle = self.open_handle(*slot)?.clone();
                self.set_attr(&handle.cred, handle.ino, *change)
            }
            Op::Fsync { slot, .. } => self.open_handle(*slot).map(|_| Value::None),
            Op::Sync => Ok(Value::None),
            Op::Remount => {
                for slot in 0..SLOTS {
                    self.release(slot);
                }
                Ok(Value::None)
            }
        }
    }

    fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        Arc::make_mut(self.inodes.get_mut(&ino).expect("the inode is in the map"))
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.inode(dir).entries()?.get(name).copied()
    }

    fn read_dir(&self, cred: &Cred, path: &[u8]) -> Answer {
        let ino = self.resolve(cred, path, true)?;
        let Some(entries) = self.inode(ino).entries() else { return Err(Errno::NOTDIR) };
        self.permission(cred, ino, 4)?;
        let entry =
            |(name, ino): (&Vec<u8>, &Ino)| Entry { name: name.clone(), ino: *ino, kind: self.inode(*ino).kind };
        Ok(Value::Entries(entries.iter().map(entry).collect()))
    }

    /// Drops an inode that has neither name nor open file.
    fn reap(&mut self, ino: Ino) {
        let open = self.handles.iter().flatten().any(|handle| handle.ino == ino);
        if self.inode(ino).nlink == 0 && !open {
            self.inodes.remove(&ino);
        }
    }

    fn release(&mut self, slot: usize) {
        if let Some(handle) = self.handles[slot].take() {
            self.reap(handle.ino);
        }
    }

    fn open_handle(&self, slot: usize) -> Result<&Handle, Errno> {
        self.handles[slot].as_ref().ok_or(Errno::BADF)
    }

    /// Checks the invariants of the maps; for tests of the model itself.
    pub fn assert_sound(&self) {
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        for (ino, inode) in self.inodes() {
            for child in inode.entries().into_iter().flat_map(BTreeMap::values) {
                assert!(self.contains(*child));
                if self.inode(*child).is_dir() {
                    assert_eq!(self.inode(*child).parent, ino);
                    *names.entry(ino).or_default() += 1;
                }
                *names.entry(*child).or_default() += 1;
            }
        }
        for (ino, inode) in self.inodes() {
            // A directory: its name, its own ".", its children's ".."; the root's name is itself.
            let own = if inode.is_dir() && inode.nlink > 0 { 1 } else { 0 } + u32::from(ino == ROOT);
            assert_eq!(inode.nlink, names.get(&ino).copied().unwrap_or(0) + own, "links of {ino}");
        }
    }
}
