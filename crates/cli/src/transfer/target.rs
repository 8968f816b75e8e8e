//! Where files are made: what a volume and a file system of the host have in common.

use super::acl;
use super::batch::Meta;
use crate::failure::{Failure, image_name};
use crate::mount::control::Status;
use crate::show::name::Shown;
use crate::show::quoted::Quoted;
use myriad_engine::{Error, FileType, Time};
use myriad_format::xattr::{self, AttrIter};
use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;

pub type Result<T> = std::result::Result<T, Error>;

/// Attributes to give to a file that was made; `None` leaves one as making left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Permission bits.
    pub mode: Option<u16>,
    pub owner: Option<(u32, u32)>,
    /// Of access and of modification.
    pub times: Option<(Time, Time)>,
    /// The ACL goes that a new file has by the default ACL of its directory, or a directory had that was there. With the source's mode it would
    /// give those whom it names what the source denies them.
    pub drops_acl: bool,
}

impl Attrs {
    /// Without the ACL that the mode was made with, its group would have the rights of the mask.
    pub fn narrow(&mut self, group_bits: Option<u16>) {
        if let Some(bits) = group_bits {
            self.mode = self.mode.map(|mode| mode & !0o070 | bits);
        }
    }
}

/// Whose the new files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    AsSource,
    Set(u32, u32),
    /// Of files that are new; one that is written anew keeps its own.
    New(u32, u32),
}

/// What becomes of permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// With set-user-ID and its kin, and untouched by the umask.
    Keep,
    /// The source's, less these bits: the umask.
    Mask(u16),
    /// Those that any new file has, less these bits.
    Plain(u16),
}

impl Modes {
    /// Bits that no directory gets which is made on the way.
    pub fn mask(self) -> u16 {
        match self {
            Self::Keep => 0,
            Self::Mask(mask) | Self::Plain(mask) => mask,
        }
    }
}

/// Permission bit of a directory whose group is that of all that is made in it.
const SETGID: u16 = 0o2000;

/// Which attributes a transfer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// `None`: whoever makes the file.
    pub owner: Option<Owner>,
    pub modes: Modes,
    pub times: bool,
    /// ACLs go with the modes.
    pub xattrs: bool,
    /// They were asked for by their name, so a target that refuses some is an error.
    pub needs_xattrs: bool,
}

impl Keep {
    pub fn all(owner: Option<Owner>) -> Self {
        Self { owner, modes: Modes::Keep, times: true, xattrs: true, needs_xattrs: false }
    }

    pub fn keeps_modes(&self) -> bool {
        self.modes == Modes::Keep
    }

    /// Refuses a source on a mount that does not show what is to be kept: what it shows in its place would be taken for the file's own.
    pub fn check_mount(&self, mount: &Status) -> std::result::Result<(), Failure> {
        let is_in_the_way = |option: &&String| match option.as_str() {
            "noxattr" => self.xattrs || self.keeps_modes(),
            "umask" => self.keeps_modes(),
            _ => matches!(self.owner, Some(Owner::AsSource)),
        };
        let options: Vec<&str> = mount.shows_otherwise.iter().filter(is_in_the_way).map(String::as_str).collect();
        if options.is_empty() {
            return Ok(());
        }
        let what = format!(
            "mounted at {} with {}: it does not show the owners, modes or extended attributes that its files have",
            Quoted(mount.mount_point.as_os_str().as_bytes()),
            options.join(", ")
        );
        Err(Failure::new(image_name(&mount.image), what, "unmount it first, or mount it without that"))
    }

    pub fn attrs(&self, meta: &Meta) -> Attrs {
        let owner = self.owner.map(|owner| match owner {
            Owner::AsSource => (meta.uid, meta.gid),
            Owner::Set(uid, gid) | Owner::New(uid, gid) => (uid, gid),
        });
        // Set-user-ID without the owner it was set for would hand out another one's rights.
        let is_own = matches!(self.owner, Some(Owner::AsSource));
        let plain = if meta.file_type() == FileType::Directory { 0o777 } else { 0o666 };
        let mode = match (self.modes, is_own) {
            (Modes::Keep, true) => meta.mode & 0o7777,
            (Modes::Keep, false) => meta.mode & 0o1777,
            (Modes::Mask(mask), _) => meta.mode & 0o777 & !mask,
            (Modes::Plain(mask), _) => plain & !mask,
        };
        let times = self.times.then(|| (meta.atime.unwrap_or(meta.mtime), meta.mtime));
        Attrs { mode: Some(mode), owner, times, drops_acl: false }
    }

    /// What a new file gets. `group`: the directory that it is made in has setgid, and gives its group to what is new; a directory
    /// hands on the bit as well.
    pub fn attrs_of_new(&self, meta: &Meta, group: Option<u32>) -> Attrs {
        let mut attrs = self.attrs(meta);
        let Some(group) = group else { return attrs };
        if let Some(Owner::New(uid, _)) = self.owner {
            attrs.owner = Some((uid, group));
        }
        if meta.file_type() == FileType::Directory && matches!(self.modes, Modes::Mask(_)) {
            attrs.mode = attrs.mode.map(|mode| mode | SETGID);
        }
        attrs
    }

    /// Whether new files have anything of the directory that they are made in.
    pub fn inherits(&self) -> bool {
        matches!(self.owner, Some(Owner::New(..))) || matches!(self.modes, Modes::Mask(_))
    }

    /// What a directory gets that was there: only what is kept.
    pub fn attrs_of_old(&self, meta: &Meta) -> Attrs {
        let attrs = self.attrs(meta);
        Attrs {
            mode: attrs.mode.filter(|_| self.keeps_modes()),
            owner: attrs.owner.filter(|_| !matches!(self.owner, Some(Owner::New(..)))),
            times: attrs.times,
            drops_acl: self.keeps_modes(),
        }
    }

    /// Whether anything of a directory that was there is changed.
    pub fn changes_old(&self) -> bool {
        self.keeps_modes() || self.times || self.xattrs || matches!(self.owner, Some(Owner::AsSource))
    }

    /// Those of a packed list of attributes that are kept.
    pub fn xattrs<'a>(&self, list: &'a [u8]) -> Cow<'a, [u8]> {
        if list.is_empty() || self.xattrs && self.keeps_modes() {
            return list.into();
        }
        let mut kept = Vec::new();
        for attribute in AttrIter::new(list) {
            let (name, value) = attribute.expect("sources pack sound lists");
            let is_acl = name.starts_with(b"system.posix_acl_");
            if if is_acl { self.keeps_modes() } else { self.xattrs } {
                xattr::push(&mut kept, name, value);
            }
        }
        kept.into()
    }
}

/// What is at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub file_type: FileType,
    /// Type and permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
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
    /// The names in a directory.
    fn names(&self, dir: &Self::Dir) -> Result<Vec<Vec<u8>>>;
    /// The access ACL of a file, if it has one.
    fn acl(&self, dir: &Self::Dir, name: &[u8]) -> Option<Vec<u8>>;
    /// Whether a name is a symbolic link with this target.
    fn leads_to(&self, dir: &Self::Dir, name: &[u8], target: &[u8]) -> bool;
    /// ENOTDIR if it is something else.
    fn open_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir>;
    fn stat_dir(&self, dir: &Self::Dir) -> Result<Found>;
    /// The group that a directory gives to what is made in it, if it has setgid; one that was just made, from the one above.
    fn given_group(&self, dir: &Self::Dir) -> Option<u32> {
        self.stat_dir(dir).ok().filter(|found| found.mode & SETGID != 0).map(|found| found.gid)
    }
    /// Whether a directory has a default ACL, by which what is made in it has an ACL of its own.
    fn hands_down_acl(&self, dir: &Self::Dir) -> bool;
    /// Takes both its ACLs from a directory that was just made.
    fn drop_acls(&self, dir: &Self::Dir) -> Result<()>;
    fn make_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir>;
    /// Gives a directory its attributes, after its content. Where the ACL goes that it has, the one that it hands down goes too.
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
    /// A further name for the file at a path of the same file system, or for what that leads to; whether it was made: what has the name
    /// already may be that file.
    fn link_path(&self, source: &[u8], follow: bool, to: (&Self::Dir, &[u8])) -> Result<bool>;
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

/// What could not be kept: owners, ACLs, and other extended attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub owners: Refused,
    pub acls: Refused,
    pub xattrs: Refused,
}

/// How many were refused, and which was the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    count: u64,
    first: String,
}

impl Lost {
    pub fn xattr(&mut self, file: &[u8], name: &[u8], error: &Error) {
        let of_kind = if [acl::ACCESS, acl::DEFAULT].contains(&name) { &mut self.acls } else { &mut self.xattrs };
        of_kind.note(|| format!("{} of {}: {error}", Shown(name), Shown(file)));
    }

    pub fn owner(&mut self, file: &[u8], (uid, gid): (u32, u32), error: &Error) {
        self.owners.note(|| format!("{uid}:{gid} of {}: {error}", Shown(file)));
    }
}

impl Refused {
    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.count == 0 {
            self.first = what();
        }
        self.count += 1;
    }

    /// In words, if there are any.
    pub fn told(&self, what: &str) -> Option<String> {
        (self.count > 0).then(|| format!("{} {what} could not be kept; the first: {}", self.count, self.first))
    }
}
