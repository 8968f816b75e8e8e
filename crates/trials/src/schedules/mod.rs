//! Threads that meet in the same files, in an order that a seed decides (`myriad_engine::schedule`).
//!
//! ```text
//! thread 0   makes, writes, cuts, renames, links its own files    visits files of 1 and 2, seeks names    syncs
//! thread 1   the same with its own                                visits files of 0 and 2, seeks names    syncs
//! ```
//!
//! Each file has one owner, who alone changes it, so its content is known exactly at any time. The others visit it: they open it by
//! its node, read, keep it open for a while and close it, perhaps as the last. And whoever syncs the volume flushes everybody's files.
//! Volumes are such that a flush takes several transactions: the smallest cache, a small log, data with checksums or without. Of some
//! seeds the host has no room for some writes of the device, and owners try again what was refused for that.
//!
//! In one more file threads write side by side, in stripes of their own (`lanes`); and they sync each other's files. Of some seeds one
//! thread does nothing but sync, and of some the device breaks in the middle: what was synced until then must be there at the next
//! opening.
//!
//! Looked at is
//!
//! - what an owner reads of his files, now and then, and after each sync;
//! - each name that was just made or given up, which others may have looked for a moment before;
//! - after each sync, and at moments between two of a thread's steps, what the volume would be after losing power there, with all that
//!   was written since the last flush, without, and with a part of it (of a log on a device of its own also the one without the other): the owner's files that have not changed since they were synced are there byte by
//!   byte, so are the names in his directory, as far as the order promises that ([`Promise`]); what his files gain when they grow then
//!   is zeros; and the check finds no more than it may;
//! - what losing power in the middle of a checkpoint would leave: it can be opened, and the check finds no more than it may;
//! - the state of a moment that is held meanwhile: the check finds no more in it than it may, either;
//! - the whole volume, closed and opened again.
//!
//! A volume of order `none` promises nothing of the time after power loss, which it does not suffer here; all else holds for it, too.

mod judge;
mod lanes;
mod medium;
mod script;

use self::lanes::Lane;
use self::medium::Media;
use self::script::{BLOCKS_MAX, Do, How, Shape, Timed, script};
use crate::setup::Setup;
use crate::table::{Promise, Row};
use crate::verdict::{catch, check_silent, quietly};
use myriad_engine as engine;
use myriad_engine::schedule;
use myriad_engine::{
    AllocateMode, CreateWith, Cred, Errno, Error, File, HeldMoment, Node, OpenOptions, RenameMode, Session, SyncMode,
};
use myriad_sim::pattern;
use myriad_sim::shrink;
use myriad_sim::threads::try_all;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Files of each thread.
const FILES: usize = 3;
const SHRINK_RUNS: usize = 150;
/// More often than this the host is not full for one operation.
const TRIES_MAX: u32 = 1000;
/// Most that before-images may take.
const IMAGES_MAX: u64 = 64 << 20;

/// A run on a volume of this row, by its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    pub row: Row,
    pub seed: u64,
}

/// What all threads share.
struct Table<'a> {
    media: &'a Media,
    setup: &'a Setup,
    /// Nodes of everybody's files, for visitors.
    nodes: Mutex<Vec<Option<Node>>>,
    /// The number of each thread's last write or name, for those who seek names.
    counts: Vec<AtomicU32>,
    /// Somebody has found something: the others need not go on.
    over: AtomicBool,
    /// Power losses looked at.
    states: &'a AtomicU64,
}

/// A file as its owner knows it.
struct Owned {
    handle: Option<File>,
    node: Node,
    path: Option<String>,
    bytes: Vec<u8>,
    /// Nothing of it has changed since it was synced.
    synced: bool,
}

struct Worker<'a> {
    thread: usize,
    table: &'a Table<'a>,
    session: Session,
    files: Vec<Option<Owned>>,
    visiting: Option<File>,
    holding: Option<HeldMoment>,
    /// What it knows of the shared file, if there is one.
    lane: Option<Lane>,
    /// Writes and names so far.
    count: u32,
    /// Names were made, changed or removed, and need not last yet.
    names_changed: bool,
}

const COMMON: &str = "common";

fn path_of(thread: usize, common: bool, count: u32) -> String {
    let dir = if common { COMMON.into() } else { format!("t{thread}") };
    format!("{dir}/{thread}-{count}")
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Does it, again and again while the host has no room; `attempt` is told how often it has been tried.
fn with_room<T>(mut attempt: impl FnMut(u32) -> engine::Result<T>) -> engine::Result<T> {
    let mut tries = 0;
    loop {
        match attempt(tries) {
            Err(Error::HostFull(_)) if tries < TRIES_MAX => tries += 1,
            done => return done,
        }
    }
}

/// As [`with_room`], of what is refused with `already` once it is done: of order `sync` it may be done, and the host have no room for
/// making it durable.
fn once_with_room(already: Errno, mut attempt: impl FnMut() -> engine::Result<()>) -> engine::Result<()> {
    with_room(|tries| match attempt() {
        Err(Error::Refused(errno)) if errno == already && tries > 0 => Ok(()),
        done => done,
    })
}

/// What may be refused because the host has no room, which is no failure: whether it was done.
fn unless_full<T>(done: engine::Result<T>) -> Result<bool, String> {
    match done {
        Ok(_) => Ok(true),
        Err(Error::HostFull(_)) => Ok(false),
        Err(error) => Err(text(error)),
    }
}

impl Worker<'_> {
    fn dir(&self) -> String {
        format!("t{}", self.thread)
    }

    fn new_path(&mut self, common: bool) -> String {
        self.count_on();
        path_of(self.thread, common, self.count)
    }

    fn count_on(&mut self) {
        self.count += 1;
        self.table.counts[self.thread].store(self.count, Ordering::Relaxed);
    }

    /// A name that was made, whoever has looked for it before, is there; one that was given up is not.
    fn check_name(&self, path: &str, node: Option<Node>) -> Result<(), String> {
        match (self.session.lstat(path), node) {
            (Ok(stat), Some(node)) if stat.node() == node => Ok(()),
            (Err(Error::Refused(Errno::NOENT)), None) => Ok(()),
            (found, _) => Err(format!("{path} should be {node:?}, and is found as {found:?}")),
        }
    }

    /// The owner's file, open.
    fn open(&mut self, file: usize) -> Result<Option<&mut Owned>, String> {
        let Some(owned) = &mut self.files[file] else { return Ok(None) };
        if owned.handle.is_none() {
            let options = OpenOptions::READ_WRITE;
            owned.handle = Some(self.session.open_node(owned.node, options).map_err(|e| format!("open: {e}"))?);
        }
        Ok(Some(owned))
    }

    fn promise(&self) -> Promise {
        Promise::of(self.table.setup.order)
    }

    /// Whether what is changed lasts when that returns: names, or contents as well.
    fn returns(&self, contents: bool) -> bool {
        let is_all = self.table.setup.options.sync_mode == SyncMode::All;
        self.promise() == Promise::Returned && (is_all || !contents)
    }

    /// Does a step. One during which the host had no room promises nothing.
    fn step(&mut self, what: Do) -> Result<(), String> {
        let refusals = &self.table.media.host.refusals;
        let before = refusals.load(Ordering::Relaxed);
        self.run(what)?;
        if refusals.load(Ordering::Relaxed) > before
            && self.returns(false)
            && !matches!(what, Do::Fsync { .. } | Do::Sync | Do::LaneSync)
        {
            self.names_changed = true;
            self.set_synced(false);
        }
        Ok(())
    }

    /// The device has broken during a step: what that was to change may be so or not.
    fn give_up(&mut self, what: Do) {
        let touched = match what {
            Do::Fsync { .. } | Do::Sync | Do::SyncOther { .. } | Do::LaneSync => return,
            Do::Lane { .. } => {
                self.lane.iter_mut().for_each(|lane| lane.synced = false);
                return;
            }
            Do::Make { file, .. }
            | Do::Write { file, .. }
            | Do::Scatter { file, .. }
            | Do::Truncate { file, .. }
            | Do::Punch { file, .. }
            | Do::Link { file }
            | Do::Unlink { file }
            | Do::Whole { file, .. }
            | Do::WriteSynced { file, .. }
            | Do::WritePassing { file, .. }
            | Do::Allocate { file, .. }
            | Do::Rewrite { file, .. }
            | Do::Twice { file } => [Some(file), None],
            Do::Rename { file, over, .. } => [Some(file), over],
            _ => [None, None],
        };
        self.names_changed = true;
        for file in touched.into_iter().flatten() {
            self.files[file].iter_mut().for_each(|owned| owned.synced = false);
        }
    }

    /// All that the thread has was synced just now, or nothing is known of that.
    fn set_synced(&mut self, synced: bool) {
        self.files.iter_mut().flatten().for_each(|owned| owned.synced = synced);
        self.lane.iter_mut().for_each(|lane| lane.synced = synced);
    }

    fn run(&mut self, what: Do) -> Result<(), String> {
        match what {
            Do::Make { file, named } => self.make(file, named),
            Do::Whole { file, len } => self.make_whole(file, len),
            Do::Write { file, offset, len } => self.write(file, offset, len, OpenOptions::default()),
            Do::WritePassing { file, offset, len } => {
                self.write(file, offset, len, OpenOptions { write: true, dont_cache: true, ..OpenOptions::default() })
            }
            Do::WriteSynced { file, offset, len } => {
                let Some(owned) = &self.files[file] else { return Ok(()) };
                let (append, offset) = (offset.is_none(), offset.unwrap_or(owned.bytes.len() as u64));
                if offset + len as u64 > BLOCKS_MAX * u64::from(self.table.setup.block_size) {
                    return Ok(());
                }
                self.write(
                    file,
                    offset,
                    len,
                    OpenOptions { write: true, append, sync: true, ..OpenOptions::default() },
                )?;
                self.synced(file)
            }
            Do::Scatter { file, block, count } => {
                let size = u64::from(self.table.setup.block_size);
                let last = (block + 2 * count).min(BLOCKS_MAX);
                let mut blocks = (block..last).step_by(2);
                blocks.try_for_each(|block| self.write(file, block * size, size as usize, OpenOptions::default()))
            }
            Do::Rewrite { file, len } => self.rewrite(file, len),
            Do::Truncate { file, size } => {
                let returns = self.returns(true);
                let Some(owned) = self.open(file)? else { return Ok(()) };
                owned.synced = returns;
                with_room(|_| owned.handle().truncate(size)).map_err(text)?;
                owned.bytes.resize(size as usize, 0);
                Ok(())
            }
            Do::Punch { file, offset, len } => self.allocate(file, AllocateMode::Punch, offset, len),
            Do::Allocate { file, mode, offset, len } => self.allocate(file, mode, offset, len),
            Do::Rename { file, over, common } => self.rename(file, over, common),
            Do::Link { file } => self.link(file),
            Do::Twice { file } => {
                let second = self.new_path(false);
                let Some(path) = self.files[file].as_ref().and_then(|owned| owned.path.clone()) else { return Ok(()) };
                once_with_room(Errno::EXIST, || self.session.link(&path, &second)).map_err(text)?;
                once_with_room(Errno::NOENT, || self.session.unlink(&second)).map_err(text)?;
                self.names_change();
                Ok(())
            }
            Do::Exchange { file, other } => self.exchange(file, other),
            Do::Unlink { file } => {
                let Some(owned) = &mut self.files[file] else { return Ok(()) };
                let Some(path) = owned.path.take() else { return Ok(()) };
                once_with_room(Errno::NOENT, || self.session.unlink(&path)).map_err(text)?;
                self.names_change();
                self.check_name(&path, None)?;
                // Without a handle it is gone, and one that lost its name gets no other.
                self.forget(file);
                Ok(())
            }
            Do::Close { file } => {
                let Some(owned) = &mut self.files[file] else { return Ok(()) };
                owned.handle = None;
                if owned.path.is_none() {
                    self.forget(file);
                }
                Ok(())
            }
            Do::Fsync { file } => {
                let Some(owned) = self.open(file)? else { return Ok(()) };
                if unless_full(owned.handle().sync())? { self.synced(file) } else { Ok(()) }
            }
            Do::Sync => {
                if !unless_full(self.session.fs().sync())? {
                    return Ok(());
                }
                self.set_synced(true);
                self.names_changed = false;
                (0..FILES).try_for_each(|file| self.look(file))?;
                self.power_cut()
            }
            Do::SyncOther { thread, file } => {
                let node = self.table.nodes.lock().expect("no panic under it")[thread * FILES + file];
                let Some(node) = node else { return Ok(()) };
                match self.session.open_node(node, OpenOptions::READ) {
                    Ok(file) => unless_full(file.sync()).map(drop),
                    Err(Error::Refused(Errno::STALE)) => Ok(()),
                    Err(error) => Err(format!("sync of another's: {error}")),
                }
            }
            Do::Lane { how, first, count } => {
                self.count_on();
                let (tag, returns) = ((self.thread as u32) << 24 | self.count, self.returns(true));
                let Some(lane) = &mut self.lane else { return Ok(()) };
                lane.synced = returns;
                lane.change(&self.session, how, first, count, tag)?;
                if matches!(how, How::Write { synced: true, .. }) { self.lane_synced() } else { Ok(()) }
            }
            Do::LaneSync => {
                let Some(lane) = &self.lane else { return Ok(()) };
                if unless_full(lane.sync(&self.session))? { self.lane_synced() } else { Ok(()) }
            }
            Do::LaneLook => self.lane.as_mut().map_or(Ok(()), |lane| lane.look(&self.session)),
            Do::LaneMove { over } => {
                self.count_on();
                let count = self.count;
                self.lane.as_mut().map_or(Ok(()), |lane| lane.move_to(&self.session, count, over))
            }
            Do::Settle => unless_full(self.session.fs().drop_caches()).map(drop),
            Do::Trim => unless_full(self.session.fs().trim(0..u64::MAX, 0)).map(drop),
            Do::Due => {
                self.table.setup.time.fetch_add(1_000_000_000, Ordering::Relaxed);
                unless_full(self.session.fs().write_due()).map(drop)
            }
            Do::Moment if self.promise() == Promise::Repair => Ok(()),
            Do::Moment => self.hold_moment(),
            Do::Full { writes } => {
                self.table.media.host.refuse(writes);
                Ok(())
            }
            Do::Break { after } => {
                self.table.media.host.break_after(after);
                Ok(())
            }
            Do::Visit { thread, file, reads } => self.visit(thread, file, reads),
            Do::Leave => {
                self.visiting = None;
                Ok(())
            }
            Do::Seek { thread, common, ahead } => {
                let count = self.table.counts[thread].load(Ordering::Relaxed) + ahead;
                match self.session.lstat(&path_of(thread, common, count)) {
                    Ok(_) | Err(Error::Refused(Errno::NOENT)) => Ok(()),
                    Err(error) => Err(format!("seek: {error}")),
                }
            }
            Do::Look { file } => self.look(file),
            Do::PowerCut => self.power_cut(),
        }
    }

    /// Cuts a file to nothing, and writes it again.
    fn rewrite(&mut self, file: usize, len: usize) -> Result<(), String> {
        let returns = self.returns(true);
        let Some(owned) = &mut self.files[file] else { return Ok(()) };
        owned.synced = returns;
        let options = OpenOptions { truncate: true, ..OpenOptions::READ_WRITE };
        let handle = with_room(|_| self.session.open_node(owned.node, options)).map_err(text)?;
        owned.bytes.clear();
        owned.handle = Some(handle);
        if len == 0 { Ok(()) } else { self.write(file, 0, len, OpenOptions::default()) }
    }

    /// Gives a name to a file that was made without one.
    fn link(&mut self, file: usize) -> Result<(), String> {
        let path = self.new_path(false);
        let session = self.session.fs().session(Cred::root());
        let returns = self.returns(false);
        let Some(owned) = self.open(file)? else { return Ok(()) };
        if owned.path.is_some() || owned.handle().stat().map_err(text)?.nlink != 0 {
            return Ok(());
        }
        once_with_room(Errno::EXIST, || session.link_file(owned.handle(), &path))
            .map_err(|error| format!("link: {error}"))?;
        let node = owned.node;
        owned.path = Some(path.clone());
        owned.synced &= returns;
        self.names_change();
        self.check_name(&path, Some(node))
    }

    /// Opens another thread's file and keeps it open; reads some of it, if there is an offset.
    fn visit(&mut self, thread: usize, file: usize, reads: Option<u64>) -> Result<(), String> {
        let node = self.table.nodes.lock().expect("no panic under it")[thread * FILES + file];
        let Some(node) = node else { return Ok(()) };
        self.visiting = match self.session.open_node(node, OpenOptions::READ) {
            Ok(file) => Some(file),
            Err(Error::Refused(Errno::STALE)) => return Ok(()),
            Err(error) => return Err(format!("visit: {error}")),
        };
        let Some(offset) = reads else { return Ok(()) };
        let mut bytes = [0; 600];
        let visited = self.visiting.as_ref().expect("just opened");
        with_room(|_| visited.read_at(&mut bytes, offset)).map(drop).map_err(|error| format!("visit: {error}"))
    }

    fn forget(&mut self, file: usize) {
        self.files[file] = None;
        self.table.nodes.lock().expect("no panic under it")[self.thread * FILES + file] = None;
    }

    fn names_change(&mut self) {
        self.names_changed |= !self.returns(false);
    }

    /// A file was synced by itself.
    fn synced(&mut self, file: usize) -> Result<(), String> {
        let Some(owned) = &mut self.files[file] else { return Ok(()) };
        owned.synced = true;
        self.names_changed &= self.promise() != Promise::Prefix;
        self.look(file)?;
        self.power_cut()
    }

    fn lane_synced(&mut self) -> Result<(), String> {
        let Some(lane) = &mut self.lane else { return Ok(()) };
        lane.synced = true;
        lane.look(&self.session)?;
        self.power_cut()
    }

    /// The owner has a new file.
    fn own(&mut self, file: usize, node: Node, path: Option<String>) -> &mut Owned {
        let synced = self.returns(true) && path.is_some();
        self.table.nodes.lock().expect("no panic under it")[self.thread * FILES + file] = Some(node);
        self.files[file].insert(Owned { handle: None, node, path, bytes: Vec::new(), synced })
    }

    fn make(&mut self, file: usize, named: bool) -> Result<(), String> {
        self.run(Do::Unlink { file })?;
        self.forget(file);
        let (handle, path) = if named {
            let path = self.new_path(false);
            let options = OpenOptions { create: true, exclusive: true, mode: 0o600, ..OpenOptions::READ_WRITE };
            self.names_change();
            let open = |tries| self.session.open(&path, OpenOptions { exclusive: tries == 0, ..options });
            (with_room(open).map_err(text)?, Some(path))
        } else {
            (with_room(|_| self.session.open_tmpfile(&self.dir(), 0o600)).map_err(text)?, None)
        };
        let node = handle.node();
        if let Some(path) = &path {
            self.check_name(path, Some(node))?;
        }
        self.own(file, node, path).handle = Some(handle);
        Ok(())
    }

    fn make_whole(&mut self, file: usize, len: usize) -> Result<(), String> {
        self.run(Do::Unlink { file })?;
        self.forget(file);
        let path = self.new_path(false);
        let name = path.rsplit('/').next().expect("a path has a last part");
        let content = pattern::bytes((self.thread as u32) << 24 | self.count, 0, len);
        let new = CreateWith { mode: 0o600, content: &content, ..CreateWith::default() };
        self.names_change();
        let dir = self.session.stat(&self.dir()).map_err(text)?.node();
        let made = once_with_room(Errno::EXIST, || self.session.create_with(dir, name.as_bytes(), &new).map(drop));
        made.map_err(|error| format!("made whole: {error}"))?;
        let node = self.session.stat(&path).map_err(text)?.node();
        self.own(file, node, Some(path)).bytes = content;
        Ok(())
    }

    /// By the handle that the owner has, or, with `options`, by one of its own.
    fn write(&mut self, file: usize, offset: u64, len: usize, options: OpenOptions) -> Result<(), String> {
        self.count_on();
        let bytes = pattern::bytes((self.thread as u32) << 24 | self.count, offset, len);
        let returns = self.returns(true);
        let session = self.session.fs().session(Cred::root());
        let Some(owned) = self.open(file)? else { return Ok(()) };
        owned.synced = returns;
        let told = |error: Error| format!("write: {error}");
        let own = if options.write { Some(session.open_node(owned.node, options).map_err(told)?) } else { None };
        let handle = own.as_ref().unwrap_or_else(|| owned.handle());
        let mut done = 0;
        while done < len {
            // A write to the end that the host had no room for may have arrived: what is missing is put in its place.
            let put = |tries| match options.append && tries == 0 {
                true => handle.write_at(&bytes[done..], 0),
                false => handle.write_placed(&bytes[done..], offset + done as u64),
            };
            done += with_room(put).map_err(told)?;
        }
        let end = offset as usize + len;
        owned.bytes.resize(owned.bytes.len().max(end), 0);
        owned.bytes[offset as usize..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn allocate(&mut self, file: usize, mode: AllocateMode, offset: u64, len: u64) -> Result<(), String> {
        let returns = self.returns(true);
        let Some(owned) = self.open(file)? else { return Ok(()) };
        owned.synced = returns;
        with_room(|_| owned.handle().allocate(mode, offset, len)).map_err(|error| format!("allocate: {error}"))?;
        let end = (offset + len) as usize;
        if matches!(mode, AllocateMode::Extend | AllocateMode::Zero { keep_size: false }) {
            owned.bytes.resize(owned.bytes.len().max(end), 0);
        }
        if matches!(mode, AllocateMode::Punch | AllocateMode::Zero { .. }) {
            let size = owned.bytes.len();
            owned.bytes[(offset as usize).min(size)..end.min(size)].fill(0);
        }
        Ok(())
    }

    fn rename(&mut self, file: usize, over: Option<usize>, common: bool) -> Result<(), String> {
        let over = over.and_then(|over| Some((over, self.files[over].as_ref()?.path.clone()?)));
        let target = match &over {
            Some((_, path)) => path.clone(),
            None => self.new_path(common),
        };
        let returns = self.returns(false);
        let Some(owned) = &mut self.files[file] else { return Ok(()) };
        let Some(source) = owned.path.replace(target.clone()) else {
            owned.path = None;
            return Ok(());
        };
        let node = owned.node;
        owned.synced &= returns;
        self.names_change();
        once_with_room(Errno::NOENT, || self.session.rename(&source, &target, RenameMode::Replace))
            .map_err(|error| format!("rename: {error}"))?;
        self.check_name(&source, None)?;
        self.check_name(&target, Some(node))?;
        if let Some((over, _)) = over {
            self.forget(over);
        }
        Ok(())
    }

    fn exchange(&mut self, file: usize, other: usize) -> Result<(), String> {
        let path = |file: usize| self.files[file].as_ref().and_then(|owned| owned.path.clone());
        let (Some(source), Some(target)) = (path(file), path(other)) else { return Ok(()) };
        if file == other {
            return Ok(());
        }
        let returns = self.returns(false);
        let nodes = [file, other].map(|file| self.files[file].as_ref().expect("it has a path").node);
        self.names_change();
        // Of order `sync` it may be done, and the host have no room for making it durable: the next one would undo it.
        let is_done = || self.session.lstat(&source).is_ok_and(|stat| stat.node() == nodes[1]);
        with_room(|tries| match tries {
            0 => self.session.rename(&source, &target, RenameMode::Exchange),
            _ if is_done() => self.session.fs().sync(),
            _ => self.session.rename(&source, &target, RenameMode::Exchange),
        })
        .map_err(|error| format!("exchange: {error}"))?;
        for (file, path) in [(file, &target), (other, &source)] {
            let owned = self.files[file].as_mut().expect("it has a path");
            owned.path = Some(path.clone());
            owned.synced &= returns;
        }
        self.check_name(&source, Some(nodes[1]))?;
        self.check_name(&target, Some(nodes[0]))
    }

    /// Looks at the moment that is held, and holds this one, unless another thread does.
    fn hold_moment(&mut self) -> Result<(), String> {
        self.look_at_moment()?;
        let file = memfd_create("before-images", MemfdFlags::CLOEXEC).map_err(|error| error.to_string())?;
        ftruncate(&file, IMAGES_MAX).map_err(|error| error.to_string())?;
        self.holding = match self.session.fs().hold_moment(file.into()) {
            Ok(held) => Some(held),
            Err(Error::HostFull(_) | Error::InUse(_)) => None,
            Err(error) => return Err(format!("a moment: {error}")),
        };
        Ok(())
    }
}

impl Owned {
    fn handle(&self) -> &File {
        self.handle.as_ref().expect("opened")
    }
}

/// Has all these meet on volumes of this row, `threads` meetings at a time, until one fails or `is_over`. What failed.
pub fn meet_all(
    row: Row,
    seeds: Range<u64>,
    threads: usize,
    states: &AtomicU64,
    is_over: impl Fn() -> bool + Sync,
) -> Option<String> {
    let meetings: Vec<Meeting> = seeds.map(|seed| Meeting { row, seed }).collect();
    try_all(&meetings, threads, 1, is_over, |_, meeting| meeting.run(states)).into_iter().next()
}

impl Meeting {
    pub fn name(&self) -> String {
        format!("meeting/{}", self.seed)
    }

    pub fn named(row: Row, name: &str) -> Option<Self> {
        let seed = name.strip_prefix("meeting/")?.parse().ok()?;
        Some(Self { row, seed })
    }

    /// Has the threads of this seed meet; a failure comes with the fewest steps that still fail, and the line that replays it.
    pub fn run(&self, states: &AtomicU64) -> Result<(), String> {
        let shape = Shape::of(self.row, self.seed);
        let all = script(self.seed, &shape);
        let Err(message) = catch(|| meet(&shape, &all, states)) else { return Ok(()) };
        let again = |steps: &[Timed]| catch(|| meet(&shape, steps, &AtomicU64::new(0)));
        let small = quietly(|| shrink::shrink(&all, SHRINK_RUNS, |steps| again(steps).is_err()));
        let last = quietly(|| again(&small)).err().unwrap_or_else(|| "does not fail each time".into());
        let Setup { block_size, log_size, log_device_size, data_checksums, .. } = shape.setup;
        let steps: String =
            small.iter().map(|timed| format!("    thread {}: {:?}\n", timed.thread, timed.what)).collect();
        Err(format!(
            "{message}\n{}\n{:?}, blocks of {block_size}, log {log_size:?}, its own device {log_device_size:?}, checksums {data_checksums}; \
             shrunk to {} steps: {last}\n{steps}",
            self.row.replay_line(&self.name()),
            shape.turns,
            small.len(),
        ))
    }
}

fn meet(shape: &Shape, steps: &[Timed], states: &AtomicU64) -> Result<(), String> {
    let media = Media::new(shape.setup.format_all(), shape.turns.seed);
    let fs = shape.setup.open(media.devices()).map_err(text)?;
    let root = fs.session(Cred::root());
    root.mkdir(COMMON, 0o777).map_err(text)?;
    let block = u64::from(shape.setup.block_size);
    let lane = shape.stripe.map(|stripe| Lane::make(&root, shape.threads, stripe, block)).transpose()?;
    let table = Table {
        media: &media,
        setup: &shape.setup,
        nodes: Mutex::new(vec![None; shape.threads * FILES]),
        counts: (0..shape.threads).map(|_| AtomicU32::new(0)).collect(),
        over: AtomicBool::new(false),
        states,
    };
    let mut workers = Vec::new();
    for thread in 0..shape.threads {
        root.mkdir(&format!("t{thread}"), 0o777).map_err(text)?;
        workers.push(Worker {
            thread,
            table: &table,
            session: fs.session(Cred::root()),
            files: (0..FILES).map(|_| None).collect(),
            visiting: None,
            holding: None,
            lane: lane.as_ref().map(|lane| lane.of_thread(thread)),
            count: 0,
            names_changed: false,
        });
    }
    fs.sync().map_err(text)?;
    let failures = Mutex::new(Vec::new());
    let jobs = workers.iter_mut().map(|worker| {
        let failures = &failures;
        Box::new(move || {
            let thread = worker.thread;
            for Timed { what, .. } in steps.iter().filter(|timed| timed.thread == thread) {
                schedule::pause();
                if worker.table.over.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(message) = catch(|| worker.step(*what).and_then(|()| worker.judge_sudden())) {
                    if worker.table.media.host.is_broken() && !message.starts_with("panic") {
                        return worker.give_up(*what);
                    }
                    worker.table.over.store(true, Ordering::Relaxed);
                    failures.lock().expect("no panic under it").push(format!("thread {thread}, {what:?}: {message}"));
                    return;
                }
                if shape.brief {
                    worker.visiting = None;
                    let named = worker.files.iter_mut().flatten().filter(|owned| owned.path.is_some());
                    named.for_each(|owned| owned.handle = None);
                    worker.lane.iter_mut().for_each(|lane| lane.handle = None);
                }
            }
            if let Err(message) = catch(|| worker.look_at_moment()) {
                failures.lock().expect("no panic under it").push(format!("thread {thread}, at its end: {message}"));
            }
        }) as Box<dyn FnOnce() + Send>
    });
    schedule::run(shape.turns, jobs.collect());
    media.host.calm();
    if let Some(failure) = failures.into_inner().expect("no panic under it").into_iter().next() {
        return Err(failure);
    }
    for worker in &mut workers {
        worker.visiting = None;
        worker.files.iter_mut().flatten().for_each(|owned| owned.handle = None);
        worker.files.iter_mut().for_each(|owned| drop(owned.take_if(|owned| owned.path.is_none())));
        worker.lane.iter_mut().for_each(|lane| lane.handle = None);
    }
    if media.host.is_broken() {
        return workers.iter().try_for_each(|worker| worker.power_cut());
    }
    drop(root);
    for worker in &workers {
        worker.compare_with(&fs, true).map_err(|error| format!("at the end: {error}"))?;
    }
    // The workers' sessions may stay: it is the handles that keep a volume from being closed.
    fs.close().map_err(|error| format!("close: {error}"))?;
    let left = media.written();
    check_silent(&left)?;
    let fs = shape.setup.open(left).map_err(text)?;
    workers
        .iter()
        .try_for_each(|worker| worker.compare_with(&fs, true))
        .map_err(|error| format!("opened again: {error}"))
}
