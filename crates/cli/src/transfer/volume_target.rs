//! Target: a volume.

use super::acl;
use super::batch::Meta;
use super::target::{Attrs, Found, Lost, Result, Target};
use crate::failure::At;
use crate::show::name::join;
use crate::volume::{Guard, Place};
use myriad_engine::{
    CreateWith, Errno, Error, File, FileType, Node, OpenOptions, Session, SetAttr, SetTime, XattrMode,
};
use myriad_format::xattr::AttrIter;
use std::cell::RefCell;

pub struct VolumeTarget {
    session: Session,
    /// Where the writer began, for messages.
    place: Place,
    lost: RefCell<Lost>,
    guard: Guard,
}

impl VolumeTarget {
    /// `session` passes all checks and has no umask.
    pub fn new(session: Session, place: Place, guard: Guard) -> Self {
        Self { session, place, lost: RefCell::default(), guard }
    }

    /// Owner, mode and times in one change, after the data, because writing changes times; then the attributes, because
    /// a new owner takes capabilities away. The ACL of the directory goes before: the mode would become its mask.
    fn set(&self, node: Node, attrs: &Attrs, file: &[u8], xattrs: &[u8]) -> Result<()> {
        if attrs.drops_acl {
            self.drop_acl(node, acl::ACCESS)?;
        }
        let set = set_attr(attrs);
        if set != SetAttr::default() {
            self.session.set_attr_node(node, set)?;
        }
        self.set_xattrs(node, attrs.mode, file, xattrs)
    }

    /// It is as well if there is none: links have none at all.
    fn drop_acl(&self, node: Node, name: &[u8]) -> Result<()> {
        match self.session.remove_xattr_node(node, name) {
            Err(Error::Refused(Errno::NODATA | Errno::OPNOTSUPP)) => Ok(()),
            removed => removed,
        }
    }

    /// `mode`: the one that the file has, if it was given one.
    fn set_xattrs(&self, node: Node, mode: Option<u16>, file: &[u8], xattrs: &[u8]) -> Result<()> {
        for attribute in AttrIter::new(xattrs) {
            let (name, value) = attribute.expect("sources pack sound lists");
            match self.session.set_xattr_node(node, name, value, XattrMode::Set) {
                Ok(()) => {}
                // The file is worth more than an attribute that the volume does not take.
                Err(
                    error
                    @ Error::Refused(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL | Errno::RANGE | Errno::TOOBIG),
                ) => {
                    self.lost.borrow_mut().xattr(file, name, &error);
                    let mut attrs = Attrs { mode, ..Attrs::default() };
                    attrs.narrow((name == acl::ACCESS).then(|| acl::group_bits(value)).flatten());
                    if attrs.mode != mode {
                        self.session.set_attr_node(node, set_attr(&attrs))?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A new file of any type but a directory, whole; on an error it is not there.
    fn make(&self, dir: Node, name: &[u8], new: &CreateWith<'_>, drops_acl: bool, xattrs: &[u8]) -> Result<()> {
        let node = self.session.create_with(dir, name, new)?.node();
        let mode = new.attr.mode;
        // The mode that it was given stays: nobody else has the volume, who could come in between.
        let dropped = if drops_acl { self.drop_acl(node, acl::ACCESS) } else { Ok(()) };
        let result = dropped.and_then(|()| self.set_xattrs(node, mode, name, xattrs));
        self.undo(dir, name, result)
    }

    fn undo<R>(&self, dir: Node, name: &[u8], result: Result<R>) -> Result<R> {
        if result.is_err() {
            // The error in hand says more than one about this.
            let _ = self.session.unlink_at(dir, name);
        }
        result
    }
}

impl Target for VolumeTarget {
    type Dir = Node;
    type File = (File, Node);

    fn find(&self, dir: &Node, name: &[u8]) -> Result<Option<Found>> {
        match self.session.lookup(*dir, name) {
            Ok(stat) => Ok(Some(found(&stat))),
            Err(Error::Refused(Errno::NOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn names(&self, dir: &Node) -> Result<Vec<Vec<u8>>> {
        self.session.read_dir_node(*dir)?.map(|entry| Ok(entry?.name)).collect()
    }

    fn acl(&self, dir: &Node, name: &[u8]) -> Option<Vec<u8>> {
        let stat = self.session.lookup(*dir, name).ok()?;
        self.session.get_xattr_node(stat.node(), acl::ACCESS).ok()
    }

    fn leads_to(&self, dir: &Node, name: &[u8], target: &[u8]) -> bool {
        let stat = self.session.lookup(*dir, name);
        stat.and_then(|stat| self.session.readlink_node(stat.node())).is_ok_and(|found| found == target)
    }

    fn open_dir(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        let stat = self.session.lookup(*dir, name)?;
        if stat.is_dir() { Ok(stat.node()) } else { Err(Errno::NOTDIR.into()) }
    }

    fn stat_dir(&self, dir: &Node) -> Result<Found> {
        self.session.stat_node(*dir).map(|stat| found(&stat))
    }

    fn hands_down_acl(&self, dir: &Node) -> bool {
        self.session.get_xattr_node(*dir, acl::DEFAULT).is_ok()
    }

    fn drop_acls(&self, dir: &Node) -> Result<()> {
        [acl::ACCESS, acl::DEFAULT].into_iter().try_for_each(|name| self.drop_acl(*dir, name))
    }

    fn make_dir(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.session.mkdir_at(*dir, name, 0o755).map(|stat| stat.node())
    }

    fn finish_dir(&self, dir: &Node, attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        if attrs.drops_acl {
            self.drop_acl(*dir, acl::DEFAULT)?;
        }
        self.set(*dir, attrs, b"a directory", xattrs)
    }

    fn make_whole(&self, dir: &Node, name: &[u8], data: &[u8], attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        let mode = attrs.mode.unwrap_or(0o644) | FileType::File.mode_bits();
        let new = CreateWith { mode, content: data, attr: set_attr(attrs), dont_cache: true, ..CreateWith::default() };
        self.make(*dir, name, &new, attrs.drops_acl, xattrs)
    }

    fn make_file(&self, dir: &Node, name: &[u8]) -> Result<Self::File> {
        let node = self.session.mknod_at(*dir, name, 0o600 | FileType::File.mode_bits(), 0)?.node();
        let opened =
            self.session.open_node(node, OpenOptions { write: true, dont_cache: true, ..OpenOptions::default() });
        self.undo(*dir, name, opened).map(|file| (file, node))
    }

    fn write(&self, (file, _): &Self::File, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all(file, bytes, offset)
    }

    fn finish_file(&self, (file, node): Self::File, size: u64, attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        // A hole at the end has no data that would have made the file as long.
        if file.stat()?.size != size {
            file.truncate(size)?;
        }
        drop(file);
        self.set(node, attrs, b"a file", xattrs)
    }

    fn make_symlink(&self, dir: &Node, name: &[u8], target: &[u8], attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        // A link has no mode of its own.
        let attr = SetAttr { mode: None, ..set_attr(attrs) };
        let mode = FileType::Symlink.mode_bits();
        self.make(*dir, name, &CreateWith { mode, content: target, attr, ..CreateWith::default() }, false, xattrs)
    }

    fn make_node(&self, dir: &Node, name: &[u8], meta: &Meta, attrs: &Attrs, xattrs: &[u8]) -> Result<()> {
        let mode = attrs.mode.unwrap_or(0o644) | meta.file_type().mode_bits();
        let new = CreateWith { mode, rdev: meta.rdev, attr: set_attr(attrs), ..CreateWith::default() };
        self.make(*dir, name, &new, attrs.drops_acl, xattrs)
    }

    fn link(&self, (from, source): (&Node, &[u8]), (dir, name): (&Node, &[u8])) -> Result<()> {
        let stat = self.session.lookup(*from, source)?;
        self.session.link_at(stat.node(), *dir, name).map(|_| ())
    }

    fn link_path(&self, source: &[u8], follow: bool, (dir, name): (&Node, &[u8])) -> Result<bool> {
        let stat = if follow { self.session.stat(source)? } else { self.session.lstat(source)? };
        match self.session.link_at(stat.node(), *dir, name) {
            Err(Error::Refused(Errno::EXIST)) if self.session.lookup(*dir, name)?.ino == stat.ino => Ok(false),
            linked => linked.map(|_| true),
        }
    }

    fn check_replaced(&self, dir: &Node, name: &[u8], place: &str) -> anyhow::Result<()> {
        let stat = match self.session.lookup(*dir, name) {
            Err(Error::Refused(Errno::NOENT)) => return Ok(()),
            stat => stat.at(place)?,
        };
        if stat.file_type() != FileType::File || stat.size == 0 {
            return Ok(());
        }
        let options = OpenOptions { dont_cache: true, ..OpenOptions::READ };
        let mut head = [0; 4];
        let length =
            self.session.open_node(stat.node(), options).and_then(|file| file.read_at(&mut head, 0)).at(place)?;
        self.guard.check_content(&head[..length], place)
    }

    fn rename(&self, dir: &Node, name: &[u8], new_name: &[u8]) -> Result<()> {
        self.session.rename_at(*dir, name, *dir, new_name, myriad_engine::RenameMode::Replace)
    }

    fn unlink(&self, dir: &Node, name: &[u8]) -> Result<()> {
        self.session.unlink_at(*dir, name)
    }

    fn room(&self) -> Option<u64> {
        let statfs = self.session.fs().statfs().ok()?;
        Some(statfs.available_blocks * u64::from(statfs.block_size))
    }

    fn lost(&self) -> Lost {
        self.lost.borrow().clone()
    }

    fn place(&self, path: &[u8]) -> String {
        Place { image: self.place.image.clone(), path: join(&self.place.path, path) }.to_string()
    }
}

fn set_attr(attrs: &Attrs) -> SetAttr {
    let (atime, mtime) = attrs.times.unzip();
    let (uid, gid) = attrs.owner.unzip();
    let (atime, mtime) = (atime.map(SetTime::At), mtime.map(SetTime::At));
    SetAttr { mode: attrs.mode, uid, gid, atime, mtime, ..SetAttr::default() }
}

/// Writes all of it. When the volume fills up half-way, a write says so only if it is asked for the rest.
fn write_all(file: &File, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let count = file.write_at(bytes, offset)?;
        if count == 0 {
            return Err(Errno::NOSPC.into());
        }
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

pub fn found(stat: &myriad_engine::Stat) -> Found {
    Found {
        file_type: stat.file_type(),
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        device: 0,
        ino: stat.ino,
        size: stat.size,
        mtime: stat.mtime,
        atime: stat.atime,
    }
}
