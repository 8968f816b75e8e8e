//! Target: a directory of the host. Every name is opened relative to its directory and never followed, so that nothing
//! a hostile volume or another user puts in the way leads elsewhere.

use super::acl;
use super::batch::Meta;
use super::host::{self, Named};
use super::target::{Attrs, Found, Lost, Result, Target};
use crate::failure::{At, Failure, errno_text, image_name};
use crate::limits;
use crate::show::name::{Shown, join};
use crate::volume::{Guard, proc_path, recognise};
use myriad_engine::{Errno, Error, FileType, Time};
use myriad_format::xattr::{self, AttrIter};
use rustix::fs::{AtFlags, CWD, FileType as HostType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

pub struct HostTarget {
    /// Where the writer began, for messages.
    place: Vec<u8>,
    lost: RefCell<Lost>,
    is_replacing: Cell<bool>,
    guard: Guard,
    /// Of a volume that is mounted: its device. What is mounted inside is not the volume's.
    device: Option<u64>,
}

impl HostTarget {
    /// From here on this process has no umask: modes are given in full.
    pub fn new(place: Vec<u8>, guard: Guard) -> Self {
        limits::raise_open_files();
        rustix::process::umask(Mode::empty());
        Self { place, lost: RefCell::default(), is_replacing: Cell::new(false), guard, device: None }
    }

    /// In a volume that is mounted, and has this device: directories of others in it are EXDEV.
    pub fn of_mount(place: Vec<u8>, guard: Guard, device: u64) -> Self {
        Self { device: Some(device), ..Self::new(place, guard) }
    }

    /// Attributes of an open file. The owner comes first: changing it takes away set-user-ID and capabilities. Then what
    /// a mode could forbid. The mode comes after the ACL of the directory went, whose mask it would become.
    fn set(&self, file: &OwnedFd, attrs: &Attrs, name: &[u8], xattrs: &[u8]) -> Result<()> {
        let mut attrs = self.give_owner(*attrs, name, |uid, gid| rustix::fs::fchown(file, Some(uid), Some(gid)))?;
        if attrs.drops_acl {
            if_there(rustix::fs::fremovexattr(file, acl::ACCESS))?;
        }
        let set = |key: &[u8], value: &[u8]| rustix::fs::fsetxattr(file, key, value, XattrFlags::empty());
        attrs.narrow(self.set_xattrs(file, set, name, xattrs)?);
        if let Some(mode) = attrs.mode {
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode.into()))?;
        }
        if let Some(times) = attrs.times {
            rustix::fs::futimens(file, &timestamps(times))?;
        }
        Ok(())
    }

    /// The same for what cannot be opened: links and special files, held by `made`. They were made with their mode. Nothing but times goes by
    /// the name: somebody else may have given it to another file.
    fn set_held(&self, (dir, name): (&OwnedFd, &[u8]), made: &OwnedFd, given: &Attrs, xattrs: &[u8]) -> Result<()> {
        let stat = rustix::fs::fstat(made)?;
        let is_symlink = HostType::from_raw_mode(stat.st_mode) == HostType::Symlink;
        let mut attrs = self.give_owner(*given, name, |uid, gid| {
            rustix::fs::chownat(made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
        })?;
        let path = proc_path(made);
        if attrs.drops_acl && !is_symlink {
            if_there(rustix::fs::removexattr(&path, acl::ACCESS))?;
        }
        let set = |key: &[u8], value: &[u8]| rustix::fs::setxattr(&path, key, value, XattrFlags::empty());
        attrs.narrow(self.set_xattrs(made, set, name, xattrs)?);
        // A change of owner takes set-id bits, and with the ACL of the directory it was made with a narrower mode.
        let is_other =
            |mode: u16| attrs.owner.is_some() && mode & 0o6000 != 0 || attrs.drops_acl || attrs.mode != given.mode;
        if let Some(mode) = attrs.mode.filter(|&mode| is_other(mode) && !is_symlink) {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode.into()))?;
        }
        if let Some(times) = attrs.times {
            rustix::fs::utimensat(dir, name, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Gives what was just made its attributes. What has its name by now may be another's, and stays.
    fn finish_held(
        &self,
        (dir, name): (&OwnedFd, &[u8]),
        (host_type, rdev): (HostType, u64),
        attrs: &Attrs,
        xattrs: &[u8],
    ) -> Result<()> {
        match hold(dir, name, host_type, rdev) {
            Err(Error::Refused(Errno::STALE)) => Err(Errno::STALE.into()),
            held => {
                let made = held.and_then(|made| self.set_held((dir, name), &made, attrs, xattrs));
                self.undo(dir, name, made)
            }
        }
    }

    /// Gives a file its owner; what is left to give it. A host that does not take owners gets the file without, and without the set-id bits that
    /// were meant for its owner.
    fn give_owner(
        &self,
        mut attrs: Attrs,
        name: &[u8],
        chown: impl FnOnce(Uid, Gid) -> rustix::io::Result<()>,
    ) -> Result<Attrs> {
        let Some((uid, gid)) = attrs.owner else { return Ok(attrs) };
        match chown(Uid::from_raw(uid), Gid::from_raw(gid)) {
            Ok(()) => {}
            // A server that trusts no root, a user namespace without such an owner, a file system without owners.
            Err(errno @ (Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP)) => {
                self.lost.borrow_mut().owner(name, (uid, gid), &errno.into());
                attrs.mode = attrs.mode.map(|mode| mode & !0o6000);
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(attrs)
    }

    /// If the access ACL is not taken: what the file's group has by it.
    fn set_xattrs(
        &self,
        file: &OwnedFd,
        set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
        name: &[u8],
        xattrs: &[u8],
    ) -> Result<Option<u16>> {
        let mut group_bits = None;
        for attribute in AttrIter::new(xattrs) {
            let (key, value) = attribute.expect("sources pack sound lists");
            match set(key, value) {
                Ok(()) => {}
                Err(errno @ (Errno::DQUOT | Errno::IO | Errno::ROFS)) => return Err(errno.into()),
                // ext4 and btrfs say the same of an attribute that is too long for them.
                Err(Errno::NOSPC) if is_full(file) => return Err(Errno::NOSPC.into()),
                // The file is worth more than an attribute that the host does not take.
                Err(errno) => {
                    self.lost.borrow_mut().xattr(name, key, &errno.into());
                    group_bits = group_bits.or((key == acl::ACCESS).then(|| acl::group_bits(value)).flatten());
                }
            }
        }
        Ok(group_bits)
    }

    /// Ends the writing of a file. Of one that replaces another, a power cut could leave neither the old content nor the new unless it is
    /// synced; an export syncs the others at its end. File systems that send content to a server may say only when a file is closed
    /// that there was no room for it.
    fn close(&self, file: OwnedFd) -> Result<()> {
        if self.is_replacing.get() {
            rustix::fs::fsync(&file)?;
        }
        nix::unistd::close(file).map_err(|errno| Errno::from_raw_os_error(errno as i32).into())
    }

    fn undo<R>(&self, dir: &OwnedFd, name: &[u8], result: Result<R>) -> Result<R> {
        if result.is_err() {
            // The error in hand says more than one about this.
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        }
        result
    }

    fn create(&self, dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?)
    }
}

/// Of removing an attribute: it is as well if there is none, or if the file system has no such attributes.
fn if_there(removed: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match removed {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        removed => removed,
    }
}

/// Whether the file system of a file has no room even for its attributes. Some of it may be left for root alone.
fn is_full(file: &OwnedFd) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    rustix::fs::fstatvfs(file).is_ok_and(|total| {
        let free = if is_root { total.f_bfree } else { total.f_bavail };
        free.saturating_mul(total.f_frsize) < xattr::VALUE_MAX as u64
    })
}

/// Holds what was just made at a name, to change nothing else though somebody gives the name to another file: ESTALE if that has happened.
fn hold(dir: &OwnedFd, name: &[u8], host_type: HostType, rdev: u64) -> Result<OwnedFd> {
    let made = rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&made)?;
    let is_it = HostType::from_raw_mode(stat.st_mode) == host_type && stat.st_nlink <= 1 && stat.st_rdev == rdev;
    if is_it { Ok(made) } else { Err(Errno::STALE.into()) }
}

/// Opens the directory to begin in; symbolic links that the user gave are followed. The empty path is the directory of this process. `device`:
/// of a volume that is mounted, out of which somebody may have led the path by now.
pub fn open_directory(path: &Path, device: Option<u64>) -> anyhow::Result<Rc<OwnedFd>> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let place = image_name(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => anyhow::Error::from(Failure::new(&place, errno_text(errno), "make that directory first")),
        Errno::NOTDIR if recognise::is_volume(path) => {
            let next = format!("name a directory; what is in the volume is {place}:/");
            Failure::new(&place, "is a Myriad volume, not a directory", next).into()
        }
        Errno::NOTDIR => Failure::new(&place, errno_text(errno), "name a directory").into(),
        _ => Err::<(), _>(std::io::Error::from(errno)).at(&place).expect_err("an error stays one"),
    })?;
    if let Some(device) = device
        && rustix::fs::fstat(&opened).map_err(std::io::Error::from).at(&place)?.st_dev != device
    {
        return Err(led_out(place).into());
    }
    Ok(Rc::new(opened))
}

/// What was found in a volume a moment ago leads out of it.
pub fn led_out(place: impl Into<String>) -> Failure {
    Failure::new(place.into(), "has been moved or replaced meanwhile, and leads out of the volume", "try again")
}

/// What a file of this type says that it stands for.
fn rdev_of(host_type: HostType, meta: &Meta) -> u64 {
    if matches!(host_type, HostType::CharacterDevice | HostType::BlockDevice) { meta.rdev } else { 0 }
}

fn timestamps((atime, mtime): (Time, Time)) -> Timestamps {
    let timespec =
        |time: Time| Timespec { tv_sec: time.div_euclid(1_000_000_000), tv_nsec: time.rem_euclid(1_000_000_000) };
    Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) }
}

fn write_all(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(Errno::NOSPC.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

pub fn found(stat: &rustix::fs::Stat) -> Result<Found> {
    let meta = host::meta(stat).ok_or(Error::Refused(Errno::INVAL))?;
    let key = host::link_key(stat);
    Ok(Found {
        file_type: meta.file_type(),
        mode: meta.mode,
        uid: meta.uid,
        gid: meta.gid,
        device: key.device,
        ino: key.ino,
        size: meta.size,
        mtime: meta.mtime,
        atime: meta.atime.expect("the host knows it"),
    })
}

impl Target for HostTarget {
    type Dir = Rc<OwnedFd>;
    type File = OwnedFd;

    fn find(&self, dir: &Self::Dir, name: &[u8]) -> Result<Option<Found>> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => found(&stat).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn names(&self, dir: &Self::Dir) -> Result<Vec<Vec<u8>>> {
        let entries = rustix::fs::Dir::read_from(dir)?;
        entries.map(|entry| Ok(entry?.file_name().to_bytes().to_vec())).collect()
    }

    fn acl(&self, dir: &Self::Dir, name: &[u8]) -> Option<Vec<u8>> {
        // No attribute of Linux is longer.
        let mut value = vec![0; 1 << 16];
        let length = rustix::fs::lgetxattr(Named::path(dir.as_fd(), name), acl::ACCESS, &mut value[..]).ok()?;
        value.truncate(length);
        Some(value)
    }

    fn leads_to(&self, dir: &Self::Dir, name: &[u8], target: &[u8]) -> bool {
        rustix::fs::readlinkat(dir, name, Vec::new()).is_ok_and(|found| found.as_bytes() == target)
    }

    fn open_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        if let Some(device) = self.device
            && rustix::fs::fstat(&opened)?.st_dev != device
        {
            return Err(Errno::XDEV.into());
        }
        Ok(Rc::new(opened))
    }

    fn stat_dir(&self, dir: &Self::Dir) -> Result<Found> {
        found(&rustix::fs::fstat(dir)?)
    }

    fn hands_down_acl(&self, dir: &Self::Dir) -> bool {
        let mut none = [0_u8; 0];
        rustix::fs::fgetxattr(dir, acl::DEFAULT, &mut none[..]).is_ok()
    }

    fn drop_acls(&self, dir: &Self::Dir) -> Result<()> {
        [acl::ACCESS, acl::DEFAULT].into_iter().try_for_each(|name| if_there(rustix::fs::fremovexattr(dir, name)))?;
        Ok(())
    }

    fn make_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir> {
        // Nobody else gets in before it has its own mode.
        rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700))?;
        self.open_dir(dir, name)
    }

    fn finish_dir(&self, dir: &Self::Dir, attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        if attrs.drops_acl {
            if_there(rustix::fs::fremovexattr(dir, acl::DEFAULT))?;
        }
        self.set(dir, attrs, b"a directory", xattrs)
    }

    fn make_whole(&self, dir: &Self::Dir, name: &[u8], data: &[u8], attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        let file = self.create(dir, name)?;
        let made = write_all(&file, 0, data).and_then(|()| self.set(&file, attrs, name, xattrs));
        let made = made.and_then(|()| self.close(file));
        self.undo(dir, name, made)
    }

    fn make_file(&self, dir: &Self::Dir, name: &[u8]) -> Result<OwnedFd> {
        self.create(dir, name)
    }

    fn write(&self, file: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all(file, offset, bytes)
    }

    fn finish_file(&self, file: OwnedFd, size: u64, attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        rustix::fs::ftruncate(&file, size)?;
        self.set(&file, attrs, b"a file", xattrs)?;
        self.close(file)
    }

    fn make_symlink(&self, dir: &Self::Dir, name: &[u8], target: &[u8], attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        rustix::fs::symlinkat(target, dir, name)?;
        self.finish_held((dir, name), (HostType::Symlink, 0), attrs, xattrs)
    }

    fn make_node(&self, dir: &Self::Dir, name: &[u8], meta: &Meta, attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        let host_type = match meta.file_type() {
            FileType::Fifo => HostType::Fifo,
            FileType::Socket => HostType::Socket,
            FileType::CharDevice => HostType::CharacterDevice,
            FileType::BlockDevice => HostType::BlockDevice,
            FileType::File | FileType::Directory | FileType::Symlink => unreachable!("these have calls of their own"),
        };
        // Nobody gets in by an ACL that is still to go.
        let mask = if attrs.drops_acl { 0o700 } else { 0o7777 };
        let mode = Mode::from_raw_mode((attrs.mode.unwrap_or(0o600) & mask).into());
        rustix::fs::mknodat(dir, name, host_type, mode, meta.rdev)?;
        self.finish_held((dir, name), (host_type, rdev_of(host_type, meta)), attrs, xattrs)
    }

    fn link(&self, (from, source): (&Self::Dir, &[u8]), (dir, name): (&Self::Dir, &[u8])) -> Result<()> {
        Ok(rustix::fs::linkat(from, source, dir, name, AtFlags::empty())?)
    }

    fn link_path(&self, source: &[u8], follow: bool, (dir, name): (&Self::Dir, &[u8])) -> Result<bool> {
        let (link, stat) = match follow {
            true => (AtFlags::SYMLINK_FOLLOW, AtFlags::empty()),
            false => (AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW),
        };
        match rustix::fs::linkat(CWD, source, dir, name, link) {
            Err(Errno::EXIST) => {
                let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let is_same = host::link_key(&found) == host::link_key(&rustix::fs::statat(CWD, source, stat)?);
                if is_same { Ok(false) } else { Err(Errno::EXIST.into()) }
            }
            linked => Ok(linked.map(|()| true)?),
        }
    }

    fn check_replaced(&self, dir: &Self::Dir, name: &[u8], place: &str) -> anyhow::Result<()> {
        self.guard.check_at(dir.as_fd(), name, place)
    }

    fn set_replacing(&self, is_replacing: bool) {
        self.is_replacing.set(is_replacing);
    }

    fn rename(&self, dir: &Self::Dir, name: &[u8], new_name: &[u8]) -> Result<()> {
        Ok(rustix::fs::renameat(dir, name, dir, new_name)?)
    }

    fn unlink(&self, dir: &Self::Dir, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }

    fn lost(&self) -> Lost {
        self.lost.borrow().clone()
    }

    fn place(&self, path: &[u8]) -> String {
        Shown(&join(&self.place, path)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn folder() -> (tempfile::TempDir, Rc<OwnedFd>) {
        let folder = tempfile::tempdir().unwrap();
        let dir = open_directory(folder.path(), None).unwrap();
        (folder, dir)
    }

    /// Between making a FIFO and giving it its mode, another user could put a symbolic link under its name: root's file that it led to became set-user-ID.
    #[test]
    fn what_took_the_name_of_a_new_file_is_left_alone() {
        let (folder, dir) = folder();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("victim"), "x").unwrap();
        let before = std::fs::metadata(path("victim")).unwrap().mode();
        symlink(path("victim"), path("link")).unwrap();
        std::fs::hard_link(path("victim"), path("second")).unwrap();
        rustix::fs::mknodat(&dir, "fifo", HostType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let held =
            |name: &str, host_type, rdev| hold(&dir, name.as_bytes(), host_type, rdev).map_err(|error| error.errno());
        assert_eq!(held("link", HostType::Fifo, 0).unwrap_err(), Errno::STALE);
        assert_eq!(held("second", HostType::RegularFile, 0).unwrap_err(), Errno::STALE);
        assert_eq!(held("fifo", HostType::Fifo, 7).unwrap_err(), Errno::STALE);
        // Taken after it was held, it is the FIFO all the same that gets mode and owner.
        let made = held("fifo", HostType::Fifo, 0).unwrap();
        let target = HostTarget::new(Vec::new(), Guard::Always);
        let finished = target.finish_held((&dir, b"link"), (HostType::Fifo, 0), &Attrs::default(), &[]);
        assert_eq!(finished.unwrap_err().errno(), Errno::STALE);
        assert!(std::fs::symlink_metadata(path("link")).is_ok(), "it is another's");
        std::fs::rename(path("fifo"), path("moved")).unwrap();
        symlink(path("victim"), path("fifo")).unwrap();
        let own = std::fs::metadata(path("moved")).unwrap();
        let attrs = Attrs { mode: Some(0o6755), owner: Some((own.uid(), own.gid())), ..Attrs::default() };
        target.set_held((&dir, b"fifo"), &made, &attrs, &[]).unwrap();
        assert_eq!(std::fs::metadata(path("moved")).unwrap().permissions().mode() & 0o7777, 0o6755);
        assert_eq!(std::fs::metadata(path("victim")).unwrap().mode(), before);
    }

    #[test]
    fn a_directory_out_of_the_volume_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let device = std::fs::metadata(folder.path()).unwrap().dev();
        assert!(open_directory(folder.path(), Some(device)).is_ok());
        let refused = open_directory(folder.path(), Some(device + 1)).unwrap_err().to_string();
        assert!(refused.contains("leads out of the volume"), "{refused}");
    }

    /// A file was removed again, and all that came after it was not brought, because a host took an attribute or an owner of one file not.
    #[test]
    fn a_file_is_worth_more_than_its_owner_and_attributes() {
        let (folder, _) = folder();
        let file = OwnedFd::from(std::fs::File::create(folder.path().join("file")).unwrap());
        let target = HostTarget::new(Vec::new(), Guard::Always);
        let mut list = Vec::new();
        xattr::push(&mut list, b"user.large", &[7; 5000]);
        let too_long = |_: &[u8], _: &[u8]| Err(Errno::NOSPC);
        assert_eq!(target.set_xattrs(&file, too_long, b"file", &list).unwrap(), None);
        let attrs = Attrs { mode: Some(0o6755), owner: Some((7, 8)), ..Attrs::default() };
        let given = target.give_owner(attrs, b"file", |_, _| Err(Errno::PERM)).unwrap();
        assert_eq!(given.mode, Some(0o755));
        let lost = target.lost();
        let told = |refused: &super::super::target::Refused| refused.told("of them").unwrap();
        assert!(told(&lost.xattrs).starts_with("1 of them could not be kept; the first: user.large of file: "));
        assert!(told(&lost.owners).starts_with("1 of them could not be kept; the first: 7:8 of file: "));
        // What the next file would meet as well.
        let broken = |_: &[u8], _: &[u8]| Err(Errno::IO);
        assert_eq!(target.set_xattrs(&file, broken, b"file", &list).unwrap_err().errno(), Errno::IO);
        assert_eq!(target.give_owner(attrs, b"file", |_, _| Err(Errno::ROFS)).unwrap_err().errno(), Errno::ROFS);
    }
}
