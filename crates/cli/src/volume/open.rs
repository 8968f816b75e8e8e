//! Opening volumes, each once however many operands name it, and closing them all. One that a daemon has mounted is
//! worked on below its mount point.
//!
//! Whoever may write an image may do anything to what is in it, as with any archive; so the verbs pass every permission
//! check, and what they make belongs to the user who ran them.

use super::beside::{self, Beside};
use super::device::{check_is_image, explain_opening};
use super::meant;
use super::place::is_same_file;
use super::wait::patiently;
use super::{Folder, Guard, Live, Names, OpenWrite, Place, ReadAt, Step, Tree, WriteAt};
use crate::failure::{At, Failure, ToldBefore, and_closed, image_name};
use crate::interrupt::Interrupted;
use crate::mount::control::{self, Daemon, Request};
use crate::show::statfs::get_statfs;
use anyhow::Result;
use myriad_engine::{
    Cred, Errno, Error, File, FileType, Fs, MountOptions, Node, OpenOptions, RenameMode, Session, SetAttr, Stat, StatFs,
};
use rustix::fs::Mode;
use std::path::{Path, PathBuf};
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Change,
}

/// An open volume and the session that the verbs use. Dropping it closes it too, but only `close` hears of errors.
pub struct Volume {
    fs: Fs,
    session: Session,
    image: PathBuf,
    /// It is open beside its writer. The last to go: it looks whether the volume has changed.
    beside: Option<Beside>,
}

impl Volume {
    /// For verbs that work on volumes of their own process only: one that is mounted is refused.
    pub fn open(image: &Path, access: Access, options: &MountOptions) -> Result<Self> {
        let opened = patiently(|| Self::try_open(image, access, options))?;
        opened.at(image_name(image)).map_err(|error| control::or_mounted(image, error))
    }

    /// The inner error is that somebody else has the volume.
    fn try_open(image: &Path, access: Access, options: &MountOptions) -> Result<myriad_engine::Result<Self>> {
        check_is_image(image)?;
        let options = MountOptions { read_only: access == Access::Read, ..options.clone() };
        match Fs::open(image, options.clone()) {
            Err(error @ Error::InUse(_)) if access == Access::Read && beside::is_allowed() => {
                let found = Beside::open(image, &options)?;
                Ok(found.map(|(fs, beside)| Self { beside: Some(beside), ..Self::new(fs, image) }).ok_or(error))
            }
            Err(error @ Error::InUse(_)) => Ok(Err(error)),
            Err(Error::Foreign) => Err(foreign(image)),
            other => {
                let fs = other.map_err(|error| explain_opening(error, image_name(image)))?;
                Ok(Ok(Self::new(fs, image)))
            }
        }
    }

    pub fn new(fs: Fs, image: &Path) -> Self {
        let session = fs.session(credentials());
        Self { fs, session, image: image.to_owned(), beside: None }
    }

    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The name by which messages call it.
    pub fn name(&self) -> String {
        image_name(&self.image)
    }

    /// Its root directory.
    pub fn root(&self) -> Place {
        Place { image: self.image.clone(), path: b"/".to_vec() }
    }

    /// Gives a file just made to the user who runs us.
    fn adopt(&self, node: Node) -> myriad_engine::Result<()> {
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 {
            self.session.set_attr_node(node, SetAttr { uid: Some(uid), ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Makes everything durable and closes the volume.
    pub fn close(self) -> Result<()> {
        let name = self.name();
        {
            // It holds the volume open.
            let _session = self.session;
        }
        let closed = self.fs.close().at(name);
        drop(self.beside);
        closed
    }
}

impl Tree for Volume {
    fn stat(&self, path: &[u8]) -> myriad_engine::Result<Stat> {
        self.session.stat(path)
    }

    fn lstat(&self, path: &[u8]) -> myriad_engine::Result<Stat> {
        self.session.lstat(path)
    }

    fn lstat_many(&self, paths: &[Vec<u8>]) -> Vec<myriad_engine::Result<Stat>> {
        self.session.stat_many(paths)
    }

    fn readlink(&self, path: &[u8]) -> myriad_engine::Result<Vec<u8>> {
        self.session.readlink(path)
    }

    fn list_xattr(&self, path: &[u8], follow: bool) -> myriad_engine::Result<Vec<Vec<u8>>> {
        let stat = if follow { self.session.stat(path)? } else { self.session.lstat(path)? };
        self.session.list_xattr_node(stat.node())
    }

    fn names(&self, path: &[u8]) -> myriad_engine::Result<Box<dyn Iterator<Item = myriad_engine::Result<Vec<u8>>>>> {
        Ok(Box::new(self.session.read_dir(path)?.map(|entry| Ok(entry?.name))))
    }

    fn walk(&self, path: &[u8]) -> myriad_engine::Result<Box<dyn Iterator<Item = Step>>> {
        Ok(Box::new(self.session.walk(path)?))
    }

    fn open(&self, path: &[u8]) -> myriad_engine::Result<Box<dyn ReadAt>> {
        Ok(Box::new(self.session.open(path, OpenOptions { dont_cache: true, ..OpenOptions::READ })?))
    }

    fn mkdir(&self, path: &[u8], mode: u16) -> myriad_engine::Result<()> {
        let node = self.session.mkdir(path, mode)?;
        self.adopt(node)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> myriad_engine::Result<()> {
        let node = self.session.symlink(target, path)?;
        self.adopt(node)
    }

    fn link(&self, source: &[u8], target: &[u8]) -> myriad_engine::Result<()> {
        self.session.link(source, target)
    }

    fn rename(&self, source: &[u8], target: &[u8], mode: RenameMode) -> myriad_engine::Result<()> {
        self.session.rename(source, target, mode)
    }

    fn unlink(&self, path: &[u8]) -> myriad_engine::Result<()> {
        self.session.unlink(path)
    }

    fn rmdir(&self, path: &[u8]) -> myriad_engine::Result<()> {
        self.session.rmdir(path)
    }

    fn remove_tree(&self, path: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> myriad_engine::Result<u64> {
        self.session.remove_tree(path, progress)
    }

    fn set_attr(&self, path: &[u8], follow: bool, attr: SetAttr) -> myriad_engine::Result<()> {
        let stat = if follow { self.session.stat(path)? } else { self.session.lstat(path)? };
        self.session.set_attr_node(stat.node(), attr).map(drop)
    }

    fn open_write(&self, path: &[u8], how: OpenWrite) -> myriad_engine::Result<Box<dyn WriteAt>> {
        let OpenWrite { create, append, truncate } = how;
        let options = OpenOptions { write: true, append, truncate, mode: 0o666, ..OpenOptions::default() };
        match self.session.open(path, options) {
            // Nobody else has the volume: it is not made by another in between.
            Err(Error::Refused(Errno::NOENT)) if create => {
                let file = self.session.open(path, OpenOptions { create, ..options })?;
                self.adopt(file.node())?;
                Ok(Box::new(file))
            }
            Ok(file) if file.stat()?.is_dir() => Err(Errno::ISDIR.into()),
            other => Ok(Box::new(other?)),
        }
    }

    fn folder(&self, path: &[u8]) -> myriad_engine::Result<Box<dyn Folder<'_> + '_>> {
        VolumeFolder::open(&self.session, self.session.stat(path)?)
    }
}

struct VolumeFolder<'v> {
    session: &'v Session,
    node: Node,
}

impl<'v> VolumeFolder<'v> {
    fn open(session: &'v Session, stat: Stat) -> myriad_engine::Result<Box<dyn Folder<'v> + 'v>> {
        if stat.is_dir() { Ok(Box::new(Self { session, node: stat.node() })) } else { Err(Errno::NOTDIR.into()) }
    }
}

impl<'v> Folder<'v> for VolumeFolder<'v> {
    fn names(&self) -> myriad_engine::Result<Names<'v>> {
        Ok(Box::new(self.session.read_dir_node(self.node)?.map(|entry| Ok(entry?.name))))
    }

    fn lstat(&self, name: &[u8]) -> myriad_engine::Result<Stat> {
        if name == b"." { self.session.stat_node(self.node) } else { self.session.lookup(self.node, name) }
    }

    fn folder(&self, name: &[u8]) -> myriad_engine::Result<Box<dyn Folder<'v> + 'v>> {
        Self::open(self.session, self.lstat(name)?)
    }

    /// Nobody else has the volume open: what was judged is what has the name.
    fn set_attr(&self, _: &[u8], judged: &Stat, attr: SetAttr) -> myriad_engine::Result<()> {
        self.session.set_attr_node(judged.node(), attr).map(drop)
    }

    fn unlink(&self, name: &[u8]) -> myriad_engine::Result<()> {
        self.session.unlink_at(self.node, name)
    }

    fn rmdir(&self, name: &[u8]) -> myriad_engine::Result<()> {
        self.session.rmdir_at(self.node, name)
    }

    fn remove_tree(&self, name: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> myriad_engine::Result<u64> {
        self.session.remove_tree_at(self.node, name, progress)
    }
}

impl WriteAt for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> myriad_engine::Result<usize> {
        self.write_at(bytes, offset)
    }

    fn set_size(&self, size: u64) -> myriad_engine::Result<()> {
        self.truncate(size)
    }

    fn stat(&self) -> myriad_engine::Result<Stat> {
        self.stat()
    }
}

impl ReadAt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> myriad_engine::Result<usize> {
        self.read_at(buf, offset)
    }
}

/// A volume that this process opened, or that a daemon has mounted.
#[derive(Clone)]
pub enum Opened {
    Here(Rc<Volume>),
    Mounted(Rc<Mounted>),
}

/// A mount, and who serves it.
pub struct Mounted {
    pub files: Live,
    pub daemon: Daemon,
    access: Access,
}

impl Mounted {
    /// The file or device that it lies in.
    pub fn image(&self) -> &Path {
        &self.daemon.status.image
    }
}

impl Opened {
    /// Totals of the volume, from whoever has it open.
    pub fn statfs(&self) -> Result<StatFs> {
        match self {
            Self::Here(volume) => volume.fs().statfs().at(volume.name()),
            Self::Mounted(mounted) => Ok(get_statfs(&mounted.daemon.ask(Request::Stats)?)),
        }
    }

    /// Opens the volume in `image`; one that a daemon has, by its mount. A directory means what is mounted there.
    pub fn open(image: &Path, access: Access, options: &MountOptions) -> Result<Self> {
        if !image.is_dir() {
            check_is_image(image)?;
        }
        let opened = patiently(|| Self::try_open(image, access, options))?;
        opened.at(image_name(image)).map_err(|error| control::or_elsewhere(image, error))
    }

    /// The inner error is that somebody else has the volume.
    fn try_open(image: &Path, access: Access, options: &MountOptions) -> Result<myriad_engine::Result<Self>> {
        // Asked first: that costs less than to be refused.
        if let Some(mounted) = Self::mounted(image, access)? {
            return Ok(Ok(mounted));
        }
        match Volume::try_open(image, access, options)? {
            Ok(volume) => Ok(Ok(Self::Here(Rc::new(volume)))),
            // Mounted in between, or by nobody that we could ask.
            Err(refusal) => Ok(Self::mounted(image, access)?.ok_or(refusal)),
        }
    }

    fn mounted(image: &Path, access: Access) -> Result<Option<Self>> {
        let Some(daemon) = control::mount_of(image)? else { return Ok(None) };
        let status = &daemon.status;
        // Many may read what nobody changes.
        if status.read_only && access == Access::Read && !image.is_dir() {
            return Ok(None);
        }
        let files = Live::open(&status.mount_point, &status.device).at(image_name(&status.mount_point))?;
        Ok(Some(Self::Mounted(Rc::new(Mounted { files, daemon, access }))))
    }

    /// The file or device that it lies in, also if a mount was named.
    pub fn image(&self) -> &Path {
        match self {
            Self::Here(volume) => &volume.image,
            Self::Mounted(mounted) => mounted.image(),
        }
    }

    pub fn tree(&self) -> &dyn Tree {
        match self {
            Self::Here(volume) => &**volume,
            Self::Mounted(mounted) => &mounted.files,
        }
    }

    /// Attributes of a place of this volume, the last symbolic link not followed.
    pub fn lstat(&self, place: &Place) -> Result<Stat> {
        self.tree().lstat(&place.path).at(place)
    }

    /// Refuses if a file, a last link not followed, must not be replaced: it is a volume itself.
    pub fn check_replaced(&self, place: &Place, guard: Guard) -> Result<()> {
        self.check_volume(place, false, guard)
    }

    /// The same for one that is to lose what it holds, and that a last link may lead to.
    pub fn check_cut(&self, place: &Place) -> Result<()> {
        self.check_volume(place, true, Guard::Always)
    }

    fn check_volume(&self, place: &Place, follow: bool, guard: Guard) -> Result<()> {
        let found = if follow { self.tree().stat(&place.path) } else { self.tree().lstat(&place.path) };
        match found {
            Ok(stat) if stat.file_type() == FileType::File && stat.size > 0 => {}
            _ => return Ok(()),
        }
        match self {
            Self::Here(volume) => {
                let mut head = [0; 4];
                let length =
                    Tree::open(&**volume, &place.path).and_then(|file| file.read_at(&mut head, 0)).at(place)?;
                guard.check_content(&head[..length], &place.to_string())
            }
            Self::Mounted(mounted) => guard.check(&mounted.files.host_path(&place.path, follow).at(place)?),
        }
    }

    /// Whether two places of this volume are one name in one directory.
    pub fn is_same_name(&self, one: &Place, other: &Place) -> bool {
        let ((above, name), (other_above, other_name)) = (one.split(), other.split());
        let ino = |place: &Place| self.tree().stat(&place.path).ok().map(|stat| stat.ino);
        name == other_name && ino(&above).is_some_and(|found| ino(&other_above) == Some(found))
    }

    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Here(one), Self::Here(other)) => Rc::ptr_eq(one, other),
            (Self::Mounted(one), Self::Mounted(other)) => Rc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Makes everything durable, and closes a volume that is open here. This must be the last handle to it.
    pub fn close(self) -> Result<()> {
        match self {
            Self::Here(volume) => match Rc::into_inner(volume) {
                Some(volume) => volume.close(),
                None => unreachable!("no verb keeps a volume beyond its work"),
            },
            Self::Mounted(mounted) if mounted.access == Access::Change => {
                let kept_back = mounted.files.sync();
                // Who was interrupted before waits all the same: what was done is to be durable.
                let was_interrupted = Interrupted::received().is_some();
                let keep_waiting = || match Interrupted::received() {
                    Some(interrupted) if !was_interrupted => Err(interrupted.into()),
                    _ => Ok(()),
                };
                mounted.daemon.sync(kept_back, keep_waiting)
            }
            Self::Mounted(_) => Ok(()),
        }
    }
}

/// A user's view that passes all checks; new files get the caller's group and umask (the user: see `Volume::adopt`).
fn credentials() -> Cred {
    Cred { gid: rustix::process::getegid().as_raw(), umask: umask(), ..Cred::root() }
}

/// The bits that whoever runs us holds back from new files.
pub fn umask() -> u16 {
    // Reading the umask means setting it; there is no other thread yet that could make a file in between.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    umask.bits() as u16
}

/// An error about a file that holds no volume.
fn foreign(image: &Path) -> anyhow::Error {
    match meant::below_mount(image) {
        Some(meant) => {
            let what = "a file in a volume that is mounted, not a volume itself";
            Failure::new(image_name(image), what, format!("write {meant}")).into()
        }
        None => Err::<(), _>(Error::Foreign).at(image_name(image)).expect_err("an error stays one"),
    }
}

/// The volumes of one run: each image is opened at its first use, and once only.
pub struct Volumes {
    access: Access,
    options: MountOptions,
    open: Vec<(PathBuf, Opened)>,
    /// Images whose volumes could not be opened, and why: that is the same for every operand.
    refused: Vec<(PathBuf, String)>,
}

impl Volumes {
    pub fn new(access: Access, options: MountOptions) -> Self {
        Self { access, options, open: Vec::new(), refused: Vec::new() }
    }

    /// The volume in `image`, by whichever of its paths. What keeps it from being opened, the first error says; later ones are
    /// `ToldBefore`.
    pub fn get(&mut self, image: &Path) -> Result<Opened> {
        if let Some((_, volume)) = self.open.iter().find(|(path, _)| is_same_file(path, image)) {
            return Ok(volume.clone());
        }
        if let Some((_, why)) = self.refused.iter().find(|(path, _)| path == image) {
            return Err(ToldBefore(why.clone()).into());
        }
        let opened = Opened::open(image, self.access, &self.options);
        let volume = opened.inspect_err(|error| self.refused.push((image.to_owned(), error.to_string())))?;
        self.open.push((image.to_owned(), volume.clone()));
        Ok(volume)
    }

    /// Runs `work`, which may fail or be interrupted, and closes all volumes in either case; see [`and_closed`].
    pub fn finish(mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut result = work(&mut self);
        for (_, volume) in self.open {
            result = and_closed(result, volume.close());
        }
        result
    }
}
