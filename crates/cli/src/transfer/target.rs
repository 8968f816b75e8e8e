//! Where files are made: what a volume and a file system of the host have in common.

use super::batch::Meta;
use myriad_engine::{Error, FileType, Time};

pub type Result<T> = std::result::Result<T, Error>;

/// Attributes to give to a file that was made; `None` leaves one as making left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Permission bits.
    pub mode: Option<u16>,
    pub owner: Option<(u32, u32)>,
    /// Of access and of modification.
    pub times: Option<(Time, Time)>,
}

/// Whose the new files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    AsSource,
    Set(u32, u32),
}

/// Which attributes a transfer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// `None`: whoever makes the file.
    pub owner: Option<Owner>,
    /// With set-user-ID and its kin, and untouched by the umask.
    pub mode: bool,
    pub times: bool,
    pub xattrs: bool,
    /// Bits taken from modes that are not kept.
    pub umask: u16,
}

impl Keep {
    pub fn all(owner: Option<Owner>) -> Self {
        Self { owner, mode: true, times: true, xattrs: true, umask: 0 }
    }

    pub fn attrs(&self, meta: &Meta) -> Attrs {
        let owner = self.owner.map(|owner| match owner {
            Owner::AsSource => (meta.uid, meta.gid),
            Owner::Set(uid, gid) => (uid, gid),
        });
        // Set-user-ID without the owner it was set for would hand out another one's rights.
        let is_own = matches!(self.owner, Some(Owner::AsSource));
        let mode = match (self.mode, is_own) {
            (true, true) => meta.mode & 0o7777,
            (true, false) => meta.mode & 0o1777,
            (false, _) => meta.mode & 0o777 & !self.umask,
        };
        let times = self.times.then(|| (meta.atime.unwrap_or(meta.mtime), meta.mtime));
        Attrs { mode: Some(mode), owner, times }
    }
}

/// What is at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub file_type: FileType,
    pub device: u64,
    pub ino: u64,
    pub size: u64,
    pub mtime: Time,
    pub atime: Time,
}

/// A file system to make files in. No operation follows a symbolic link, and none replaces but `rename`: a taken name is
/// EEXIST. One that fails has taken back what it made.
pub trait Target {
    type Dir: Clone;
    type File;

    fn find(&self, dir: &Self::Dir, name: &[u8]) -> Result<Option<Found>>;
    /// ENOTDIR if it is something else.
    fn open_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir>;
    fn stat_dir(&self, dir: &Self::Dir) -> Result<Found>;
    fn make_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir>;
    /// Gives a directory its attributes, after its content.
    fn finish_dir(&self, dir: &Self::Dir, attrs: &Attrs, xattrs: &[u8]) -> Result<()>;
    /// A regular file in one step.
    fn make_whole(&self, dir: &Self::Dir, name: &[u8], data: &[u8], attrs: &Attrs, xattrs: &[u8]) -> Result<()>;
    fn make_file(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::File>;
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<()>;
    fn finish_file(&self, file: Self::File, size: u64, attrs: &Attrs, xattrs: &[u8]) -> Result<()>;
    fn make_symlink(&self, dir: &Self::Dir, name: &[u8], target: &[u8], attrs: &Attrs, xattrs: &[u8]) -> Result<()>;
    /// FIFO, socket or device node.
    fn make_node(&self, dir: &Self::Dir, name: &[u8], meta: &Meta, attrs: &Attrs, xattrs: &[u8]) -> Result<()>;
    /// A further name for the file at `from`.
    fn link(&self, from: (&Self::Dir, &[u8]), to: (&Self::Dir, &[u8])) -> Result<()>;
    /// Refuses if the file at a name must stay, whatever was asked for: a volume, of which `place` is the name for messages.
    fn check_replaced(&self, dir: &Self::Dir, name: &[u8], place: &str) -> anyhow::Result<()>;
    /// From here on what is made is to replace something: it has to be durable before it has the other's name.
    fn set_replacing(&self, _is_replacing: bool) {}
    fn rename(&self, dir: &Self::Dir, name: &[u8], new_name: &[u8]) -> Result<()>;
    fn unlink(&self, dir: &Self::Dir, name: &[u8]) -> Result<()>;
    /// Bytes that are free where the files go, if the target knows.
    fn room(&self) -> Option<u64> {
        None
    }
    /// Attributes that could not be given to files that are there otherwise.
    fn lost(&self) -> Lost;
    /// A path below the target, for messages.
    fn place(&self, path: &[u8]) -> String;
}

/// What could not be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub xattrs: u64,
    /// The first of them.
    pub example: Option<String>,
}

impl Lost {
    pub fn xattr(&mut self, file: &[u8], name: &[u8], error: &Error) {
        use crate::show::name::Shown;
        self.xattrs += 1;
        self.example.get_or_insert_with(|| format!("{} of {}: {error}", Shown(name), Shown(file)));
    }
}
