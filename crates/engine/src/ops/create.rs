//! create, mkdir, mknod, symlink, and files without a name.

use super::leftovers::make_way;
use super::{Ops, touch_dir};
use crate::attr_list;
use crate::attr_list::{ACCESS_ACL, DEFAULT_ACL};
use crate::counters::Count;
use crate::dir::{self, BlockSource, Name, NewEntry};
use crate::error::{Errno, Error, Result};
use crate::file::{self, OpenFile, Page, ToMap};
use crate::inode;
use crate::map;
use crate::namei::Guarded;
use crate::order::Txn;
use crate::perm::{self, NewInode};
use crate::placement;
use crate::types::{FileType, Node, SetAttr, Stat, Time, check_name};
use crate::volume::{FramesWanted, Reason, Share, Volume, transact};
use crate::xattr;
use myriad_format::fork::{Fork, ShortTarget};
use myriad_format::inode::{NLINK_MAX, RawInode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use myriad_format::{FsBlock, Ino};
use std::sync::Arc;
use zerocopy::little_endian::{I64, U16, U32, U64};

/// What to make.
#[derive(Clone, Copy, Default)]
pub(crate) struct NewFile<'a> {
    /// Type and permission bits, before umask and default ACL.
    pub mode: u16,
    pub rdev: u64,
    /// Of a symbolic link.
    pub target: &'a [u8],
    /// Of a regular file.
    pub content: Content<'a>,
    /// To be set as its maker could set them afterwards; no size.
    pub attr: Option<&'a SetAttr>,
}

/// The data of a new file, already in private frames of the cache.
#[derive(Clone, Copy, Default)]
pub(crate) struct Content<'a> {
    pub size: u64,
    pub pages: &'a [Page],
    /// The cache need not keep it.
    pub passing: bool,
}

impl Ops<'_> {
    /// Makes a file of any type with a name; EEXIST if the name is taken.
    pub fn make(&self, node: Node, name: &[u8], new: &NewFile<'_>) -> Result<Stat> {
        let made = self.make_unsynced(node, name, new)?;
        self.volume.before_return()?;
        Ok(made)
    }

    /// As [`Self::make`], before it is durable in order `sync`. After an error nothing was made, and the frames of the content are the
    /// caller's.
    pub fn make_unsynced(&self, node: Node, name: &[u8], new: &NewFile<'_>) -> Result<Stat> {
        let parent = Ino(node.ino);
        let file_type = FileType::from_mode(new.mode).ok_or(Errno::INVAL)?;
        let is_device = matches!(new.mode & S_IFMT, S_IFCHR | S_IFBLK);
        let is_dir = file_type == FileType::Directory;
        self.volume.counters.bump(if is_dir { Count::mkdirs } else { Count::creates });
        let name = self.name(name);
        let pages = new.content.pages.len() as u64;
        if new.content.size > map::size_max(&self.volume.geometry) {
            return Err(Errno::FBIG.into());
        }
        let blocks = self.volume.blocks_to_create() + map::promise_of_new(&self.volume.geometry, pages);
        make_way(self.volume, node, name)?;
        let mut made = Stat::NONE;
        let mut attempt = |txn: &mut Txn<'_>, is_settled: bool, wanted: &FramesWanted| {
            let volume = self.volume;
            let _lock = volume.lock_exclusive(parent);
            let mut dir = RawInode::zeroed();
            let guarded = self.directory(&txn.look, node, &mut dir)?;
            check_name(name.bytes)?;
            let search = dir::search(&txn.look, parent, &dir, name)?;
            if search.hit.is_some() {
                return Err(Errno::EXIST.into());
            }
            perm::may_access(self.cred, &guarded.subject(), perm::WRITE | perm::EXECUTE)?;
            // A whiteout gives nobody a device.
            let is_whiteout = new.mode & S_IFMT == S_IFCHR && new.rdev == 0;
            if is_device && !is_whiteout && !self.cred.is_root() {
                return Err(Errno::PERM.into());
            }
            if is_dir && dir.nlink.get() >= NLINK_MAX {
                return Err(Errno::MLINK.into());
            }
            let default_acl = xattr::default_acl(&txn.look, parent, &dir)?;
            let mut owner = perm::new_inode(self.caller, &guarded.subject(), default_acl.as_deref(), new.mode)?;
            if new.content.size > 0 {
                owner.mode = perm::mode_after_write(self.caller, &subject_of(&owner));
            }
            let mut raw = blank(volume.now(), &owner, new);
            if let Some(attr) = new.attr {
                let acl = self.change(&subject_of(&owner), attr, raw.ctime.get(), &mut raw)?;
                owner.access_acl = acl.or(owner.access_acl);
            }
            if !is_settled && dir::is_held(&txn.look, parent, name, &search)? {
                return Ok(None);
            }
            reserve_acls(txn, &owner, wanted)?;
            if pages > 0 {
                txn.ask_frames(file::frames_of_run(&volume.geometry, pages), wanted)?;
            }
            let room = dir::prepare(&txn.look, parent, &dir, name, search)?;
            let near = if is_dir { placement::directory(txn, parent)? } else { placement::inode(volume, parent) };
            let ino = volume.allocate_inode(txn, near)?;
            let entry = NewEntry { name, ino, file_type: file_type.code() };
            let position = dir::insert(txn, parent, &mut dir, entry, &room)?;
            dir::trim(txn, parent, &mut dir, &room)?;
            raw.parent = U64::new(parent.0);
            raw.name_hash = U64::new(name.hash);
            raw.entry_position = U32::new(position);
            let nlink = raw.nlink;
            if pages > 0 {
                // As long as its content is not there, it is not, either: who guesses its number opens no file whose
                // blocks still hold somebody else's bytes.
                raw.nlink = U32::new(0);
            }
            finish_inode(txn, ino, &mut raw, &owner, new.target)?;
            let mut mapped = Vec::new();
            if pages > 0 {
                // Now that its place is its own: a map of pointers lies there.
                let mut source = BlockSource::new(placement::beside(volume, ino));
                let Content { size, pages, .. } = new.content;
                let to_map = ToMap { pages, size, reach: None, all: true };
                mapped = file::map_pages(txn, &mut source, ino, &mut raw, to_map)?;
                source.settle(&mut raw);
            }
            touch_dir(&mut dir, raw.btime.get());
            if is_dir {
                dir.nlink = U32::new(dir.nlink.get() + 1);
                volume.count_directory(txn, ino)?;
            } else {
                volume.placement.note_file(volume.geometry.region_of(near));
            }
            inode::write(txn, parent, &dir)?;
            if pages > 0 {
                file::publish_pages(txn, ino, mapped, new.content.passing);
                raw.nlink = nlink;
                inode::write(txn, ino, &raw)?;
            }
            made = inode::stat(volume, ino, &raw);
            Ok(Some(()))
        };
        let done = self.volume.with_frames(|wanted| {
            self.volume.once_settled(|is_settled| transact(self.volume, blocks, |txn| attempt(txn, is_settled, wanted)))
        });
        match done {
            // Refused before anybody had looked at the directory.
            Err(Error::Refused(Errno::NOSPC | Errno::ROFS)) if self.lookup(node, name.bytes).is_ok() => {
                Err(Errno::EXIST.into())
            }
            done => done.map(|()| made),
        }
    }

    /// Makes a regular file without a name; it goes when the last handle closes, unless it is linked before. It is open
    /// from the first moment: without that, it would be gone.
    pub fn make_tmpfile(&self, node: Node, mode: u16) -> Result<Arc<OpenFile>> {
        let parent = Ino(node.ino);
        let make = |txn: &mut Txn<'_>, wanted: &FramesWanted| {
            let _lock = self.volume.lock_shared(parent);
            // No name is looked up in it: search and write permission are asked for at once (vfs_tmpfile).
            let mut dir = RawInode::zeroed();
            let guarded = self.living_directory(&txn.look, node, &mut dir)?;
            perm::may_access(self.cred, &guarded.subject(), perm::WRITE | perm::EXECUTE)?;
            let new = NewFile { mode: S_IFREG | mode & 0o7777, ..NewFile::default() };
            let default_acl = xattr::default_acl(&txn.look, parent, &dir)?;
            let owner = perm::new_inode(self.caller, &guarded.subject(), default_acl.as_deref(), new.mode)?;
            reserve_acls(txn, &owner, wanted)?;
            let near = placement::inode(self.volume, parent);
            let ino = self.volume.allocate_inode(txn, near)?;
            self.volume.placement.note_file(self.volume.geometry.region_of(near));
            let mut raw = blank(self.volume.now(), &owner, &new);
            raw.nlink = U32::new(0);
            finish_inode(txn, ino, &mut raw, &owner, &[])?;
            // Open it first: a thread that finds it on the orphan list and sees no handle frees it.
            let file = self.volume.files.open(ino, raw.generation.get());
            self.volume.orphans.note(ino, Reason::Nameless);
            Ok(file)
        };
        let blocks = self.volume.blocks_to_create();
        self.volume.with_frames(|wanted| transact(self.volume, blocks, |txn| make(txn, wanted)))
    }
}

/// An inode that a rename will leave under the old name, so far only a slot in use.
pub(super) struct Whiteout {
    pub ino: Ino,
    owner: NewInode,
}

impl Whiteout {
    /// Takes the slot: before a rename's first change, for there may be none.
    pub fn reserve(ops: &Ops<'_>, txn: &mut Txn<'_>, dir: Ino, raw: &RawInode, guarded: &Guarded) -> Result<Self> {
        let default_acl = xattr::default_acl(&txn.look, dir, raw)?;
        let owner = perm::new_inode(ops.caller, &guarded.subject(), default_acl.as_deref(), S_IFCHR)?;
        reserve_acls(txn, &owner, &FramesWanted::at_once())?;
        let near = placement::inode(ops.volume, dir);
        let ino = ops.volume.allocate_inode(txn, near)?;
        ops.volume.placement.note_file(ops.volume.geometry.region_of(near));
        Ok(Self { ino, owner })
    }

    /// Writes it, as what has a name now.
    pub fn finish(self, txn: &mut Txn<'_>, dir: Ino, name: Name<'_>, position: u32) -> Result<()> {
        let new = NewFile { mode: S_IFCHR, ..NewFile::default() };
        let mut raw = blank(txn.volume().now(), &self.owner, &new);
        raw.parent = U64::new(dir.0);
        raw.name_hash = U64::new(name.hash);
        raw.entry_position = U32::new(position);
        finish_inode(txn, self.ino, &mut raw, &self.owner, &[])
    }
}

/// A new inode as permission sees it.
#[inline]
fn subject_of(owner: &NewInode) -> perm::Subject<'_> {
    let access_acl = owner.access_acl.as_deref();
    perm::Subject { mode: owner.mode, uid: owner.uid, gid: owner.gid, flags: 0, access_acl }
}

/// ACLs that a directory hands down may not fit the new inode's body. `wanted`: see [`Txn::ask_frames`].
#[inline]
fn reserve_acls(txn: &mut Txn<'_>, owner: &NewInode, wanted: &FramesWanted) -> Result<()> {
    if owner.access_acl.is_none() && owner.default_acl.is_none() {
        Ok(())
    } else {
        reserve_for_acls(txn, owner, wanted)
    }
}

fn reserve_for_acls(txn: &mut Txn<'_>, owner: &NewInode, wanted: &FramesWanted) -> Result<()> {
    let len = |acl: &Option<Vec<u8>>| {
        acl.as_ref().map_or(0, |acl| ACCESS_ACL.len().max(DEFAULT_ACL.len()) + acl.len() + xattr::ENTRY_ROOM)
    };
    let len = len(&owner.access_acl) + len(&owner.default_acl);
    let blocks = xattr::blocks_for(txn.volume().cache.block_size(), len);
    if !txn.try_reserve(blocks, Share::Common) {
        return Err(Errno::NOSPC.into());
    }
    txn.ask_frames(blocks as usize, wanted)
}

/// A new inode, but for what depends on its name, and on its number.
fn blank(now: Time, owner: &NewInode, new: &NewFile<'_>) -> RawInode {
    let now = I64::new(now);
    let mut raw = RawInode::zeroed();
    raw.mode = U16::new(owner.mode);
    raw.uid = U32::new(owner.uid);
    raw.gid = U32::new(owner.gid);
    raw.nlink = U32::new(if new.mode & S_IFMT == S_IFDIR { 2 } else { 1 });
    (raw.mtime, raw.ctime, raw.atime, raw.btime) = (now, now, now, now);
    match new.mode & S_IFMT {
        S_IFCHR | S_IFBLK => Fork::Device(new.rdev).encode(&mut raw),
        S_IFLNK => {
            raw.size = U64::new(new.target.len() as u64);
            if let Some(target) = ShortTarget::new(new.target, raw.fork_room()) {
                Fork::ShortLink(target).encode(&mut raw);
            }
        }
        _ => raw.size = U64::new(new.content.size),
    }
    raw
}

/// Writes a new inode: its slot, then what lies outside it.
fn finish_inode(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode, owner: &NewInode, target: &[u8]) -> Result<()> {
    inode::init(txn, ino, raw)?;
    let long_target = raw.file_type() == S_IFLNK && target.len() > raw.fork_room();
    let acls = owner.access_acl.is_some() || owner.default_acl.is_some();
    if long_target {
        store_target(txn, ino, raw, target)?;
    }
    if acls {
        let mut list = Vec::new();
        for (name, value) in [(ACCESS_ACL, &owner.access_acl), (DEFAULT_ACL, &owner.default_acl)] {
            if let Some(value) = value {
                attr_list::set(ino, &mut list, name, value, crate::types::XattrMode::Set)?;
            }
        }
        xattr::write(txn, ino, raw, &list)?;
    }
    if long_target || acls {
        inode::write(txn, ino, raw)?;
    }
    Ok(())
}

/// Stores a link's target that does not fit the fork: in the body, or in blocks.
fn store_target(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode, target: &[u8]) -> Result<()> {
    if inode::set_body(txn, ino, raw, target, &[])? {
        Fork::Inline.encode(raw);
        return Ok(());
    }
    let mut source = BlockSource::new(placement::beside(txn.volume(), ino));
    xattr::target_to_blocks(txn, &mut source, ino, raw, target)?;
    source.settle(raw);
    Ok(())
}

/// A directory or other inode without permission checks or parent: the root of a new volume.
pub(crate) fn new_node(volume: &Volume, near: FsBlock, owner: &NewInode) -> Result<Ino> {
    transact(volume, 0, |txn| {
        let new = NewFile { mode: owner.mode, ..NewFile::default() };
        let ino = volume.allocate_inode(txn, near)?;
        let mut raw = blank(volume.now(), owner, &new);
        raw.parent = U64::new(ino.0);
        finish_inode(txn, ino, &mut raw, owner, &[])?;
        volume.count_directory(txn, ino)?;
        Ok(ino)
    })
}
