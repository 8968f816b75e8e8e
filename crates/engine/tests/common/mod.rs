//! Runs `sim`'s operations on the engine, and asks it for everything it holds.

#![allow(dead_code, reason = "each test uses its part")]

use myriad_check::{Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine as engine;
use myriad_engine::{Clock, Error, File, Fs, MkfsOptions, MountOptions, Order, Session};
use myriad_sim::compare::{ContentDigest, TreeEntry, join};
use myriad_sim::errno::Errno;
use myriad_sim::model::Model;
use myriad_sim::model::content::Content;
use myriad_sim::op::*;
use myriad_sim::pattern;
use myriad_sim::rng::Rng;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Files up to this size are read whole; larger ones by their data.
const WHOLE_SIZE_MAX: u64 = 1 << 20;

/// Whether operations go by path, or by node where they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Path,
    Node,
    /// Either, at random.
    Mixed,
}

/// How a test's volumes are made and opened.
#[derive(Clone, Debug)]
pub struct Setup {
    pub size: u64,
    pub block_size: u32,
    pub order: Order,
    pub log_size: Option<u64>,
    pub ag_size: Option<u64>,
    pub options: MountOptions,
    pub time: Arc<AtomicI64>,
}

impl Setup {
    pub fn new(block_size: u32, size: u64) -> Self {
        let time = Arc::new(AtomicI64::new(0));
        let options = MountOptions {
            cache_size: 64 << 20,
            commit_interval_ms: 0,
            seed: Some(1),
            background: false,
            clock: Clock::Manual(time.clone()),
            ..MountOptions::default()
        };
        Self { size, block_size, order: Order::Log, log_size: None, ag_size: None, options, time }
    }

    pub fn mkfs_options(&self) -> MkfsOptions {
        MkfsOptions {
            block_size: self.block_size,
            ag_size: self.ag_size,
            log_size: self.log_size,
            order: self.order,
            seed: Some(7),
            clock: engine::Clock::Manual(self.time.clone()),
            ..MkfsOptions::default()
        }
    }

    /// A fresh volume.
    pub fn format(&self) -> MemoryDevice {
        let device = Arc::new(MemoryDevice::new(self.size));
        self.time.store(0, Ordering::Relaxed);
        Fs::format_device(device.clone(), None, &self.mkfs_options()).expect("mkfs on memory");
        device.clone_image()
    }

    pub fn open(&self, device: Arc<dyn BlockDevice>) -> engine::Result<Fs> {
        Fs::open_device(device, None, self.options.clone())
    }
}

pub fn to_engine(cred: &Cred) -> engine::Cred {
    engine::Cred { uid: cred.uid, gid: cred.gid, groups: cred.groups.clone(), umask: cred.umask }
}

fn stat_of(stat: &engine::Stat) -> Stat {
    Stat {
        ino: stat.ino,
        kind: Kind::from_mode(stat.mode).expect("a known type"),
        mode: stat.mode & 0o7777,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        btime: stat.btime,
        flags: stat.flags,
    }
}

fn kind_of(kind: engine::FileType) -> Kind {
    Kind::from_mode(kind.mode_bits()).expect("a known type")
}

fn set_time(set: SetTime) -> engine::SetTime {
    match set {
        SetTime::Now => engine::SetTime::Now,
        SetTime::At(time) => engine::SetTime::At(time),
    }
}

fn set_attr(change: Change) -> engine::SetAttr {
    let none = engine::SetAttr::default();
    match change {
        Change::Mode(mode) => engine::SetAttr { mode: Some(mode), ..none },
        Change::Owner { uid, gid } => engine::SetAttr { uid, gid, ..none },
        Change::Size(size) => engine::SetAttr { size: Some(size), ..none },
        Change::Times { atime, mtime } => {
            engine::SetAttr { atime: atime.map(set_time), mtime: mtime.map(set_time), ..none }
        }
        Change::Flags(flags) => engine::SetAttr { flags: Some(flags), ..none },
    }
}

fn xattr_mode(how: XattrHow) -> engine::XattrMode {
    match how {
        XattrHow::Set => engine::XattrMode::Set,
        XattrHow::Create => engine::XattrMode::Create,
        XattrHow::Replace => engine::XattrMode::Replace,
    }
}

fn rename_mode(how: RenameHow) -> engine::RenameMode {
    match how {
        RenameHow::Replace => engine::RenameMode::Replace,
        RenameHow::NoReplace => engine::RenameMode::NoReplace,
        RenameHow::Exchange => engine::RenameMode::Exchange,
    }
}

fn allocate_mode(how: AllocateHow) -> engine::AllocateMode {
    match how {
        AllocateHow::Extend => engine::AllocateMode::Extend,
        AllocateHow::KeepSize => engine::AllocateMode::KeepSize,
        AllocateHow::Punch => engine::AllocateMode::Punch,
        AllocateHow::Zero { keep_size } => engine::AllocateMode::Zero { keep_size },
    }
}

fn open_options(how: &OpenHow) -> engine::OpenOptions {
    engine::OpenOptions {
        read: how.read,
        write: how.write,
        append: how.append,
        truncate: how.truncate,
        create: how.create,
        exclusive: how.exclusive,
        no_follow: how.no_follow,
        sync: how.sync,
        // Makes no difference to any answer, so anything may decide it.
        dont_cache: how.mode & 0o100 != 0,
        mode: how.mode,
    }
}

/// The volume under test, as a machine that runs steps.
pub struct Engine {
    setup: Setup,
    device: Arc<dyn BlockDevice>,
    fs: Option<Fs>,
    users: Vec<Cred>,
    sessions: Vec<Session>,
    files: Vec<Option<File>>,
    way: Way,
    /// Put before every path: lets a run live in a directory.
    prefix: Vec<u8>,
    rng: Rng,
    /// What a remount does with the closed volume.
    pub on_remount: Option<fn(&Arc<dyn BlockDevice>)>,
}

impl Engine {
    pub fn open(setup: &Setup, device: Arc<dyn BlockDevice>, way: Way) -> engine::Result<Self> {
        let fs = setup.open(device.clone())?;
        Ok(Self::on(setup, device, fs, way, b""))
    }

    /// On a volume that is open already, below `prefix`.
    pub fn on(setup: &Setup, device: Arc<dyn BlockDevice>, fs: Fs, way: Way, prefix: &[u8]) -> Self {
        let users = users();
        let sessions = users.iter().map(|cred| fs.session(to_engine(cred))).collect();
        Self {
            setup: setup.clone(),
            device,
            fs: Some(fs),
            users,
            sessions,
            files: (0..SLOTS).map(|_| None).collect(),
            way,
            prefix: prefix.to_vec(),
            rng: Rng::new(3),
            on_remount: None,
        }
    }

    pub fn fs(&self) -> &Fs {
        self.fs.as_ref().expect("the volume is open")
    }

    /// A model of the volume as mkfs left it: it has the root's times, which come from the system's clock.
    pub fn fresh_model(&self) -> engine::Result<Model> {
        Ok(Model::new(self.root().stat("/")?.btime))
    }

    pub fn root(&self) -> Session {
        self.fs().session(engine::Cred::root())
    }

    /// Runs a step at time `now`. The outer result is the volume's or the device's fault, the inner the caller's.
    pub fn run(&mut self, step: &Step, now: i64) -> engine::Result<Answer> {
        self.setup.time.store(now, Ordering::Relaxed);
        match self.perform(step) {
            Ok(value) => Ok(Ok(value)),
            Err(Error::Refused(errno)) => Ok(Err(Errno(errno.raw_os_error()))),
            Err(other) => Err(other),
        }
    }

    /// Closes all files and the volume.
    pub fn close(&mut self) -> engine::Result<()> {
        self.files.fill_with(|| None);
        self.sessions.clear();
        self.fs.take().map_or(Ok(()), Fs::close)
    }

    fn remount(&mut self) -> engine::Result<()> {
        self.close()?;
        if let Some(look) = self.on_remount {
            look(&self.device);
        }
        let fs = self.setup.open(self.device.clone())?;
        self.sessions = self.users.iter().map(|cred| fs.session(to_engine(cred))).collect();
        self.fs = Some(fs);
        Ok(())
    }

    fn at(&self, path: &[u8]) -> Vec<u8> {
        if self.prefix.is_empty() { path.to_vec() } else { [&self.prefix[..], b"/", path].concat() }
    }

    fn by_node(&mut self) -> bool {
        match self.way {
            Way::Path => false,
            Way::Node => true,
            Way::Mixed => self.rng.percent(50),
        }
    }

    fn file(&self, slot: usize) -> engine::Result<&File> {
        self.files[slot].as_ref().ok_or(Error::Refused(engine::Errno::BADF))
    }

    fn perform(&mut self, step: &Step) -> engine::Result<Value> {
        match &step.op {
            Op::Remount => return self.remount().map(|()| Value::None),
            Op::Close { slot } => {
                self.file(*slot)?;
                self.files[*slot] = None;
                return Ok(Value::None);
            }
            Op::Open { slot, .. } | Op::OpenTmpfile { slot, .. } => self.files[*slot] = None,
            _ => {}
        }
        let by_node = self.by_node();
        if by_node && let Some(answer) = self.perform_by_node(step) {
            return answer;
        }
        let session = &self.sessions[step.cred];
        let none = |()| Value::None;
        Ok(match &step.op {
            Op::Create { path, mode } => session.create(&self.at(path), *mode).map(|_| Value::None)?,
            Op::Mkdir { path, mode } => session.mkdir(&self.at(path), *mode).map(|_| Value::None)?,
            Op::Mknod { path, kind, mode, rdev } => {
                session.mknod(&self.at(path), kind.mode_bits() | mode, *rdev).map(|_| Value::None)?
            }
            Op::Symlink { target, path } => session.symlink(target, &self.at(path)).map(|_| Value::None)?,
            Op::Readlink { path } => Value::Bytes(session.readlink(&self.at(path))?),
            Op::Link { source, target } => none(session.link(&self.at(source), &self.at(target))?),
            Op::Unlink { path } => none(session.unlink(&self.at(path))?),
            Op::Rmdir { path } => none(session.rmdir(&self.at(path))?),
            Op::Rename { source, target, how } => {
                none(session.rename(&self.at(source), &self.at(target), rename_mode(*how))?)
            }
            Op::Stat { path, follow: true } => Value::Stat(stat_of(&session.stat(&self.at(path))?)),
            Op::Stat { path, follow: false } => Value::Stat(stat_of(&session.lstat(&self.at(path))?)),
            Op::Access { path, mask } => none(session.access(&self.at(path), *mask)?),
            Op::ReadDir { path } => {
                let entries: engine::Result<Vec<_>> = session.read_dir(&self.at(path))?.collect();
                Value::Entries(entries?.into_iter().map(entry_of).collect())
            }
            Op::SetAttr { path, change } => Value::Stat(stat_of(&session.set_attr(&self.at(path), set_attr(*change))?)),
            Op::GetXattr { path, name } => Value::Bytes(session.get_xattr(&self.at(path), name)?),
            Op::SetXattr { path, name, value, how } => {
                none(session.set_xattr(&self.at(path), name, value, xattr_mode(*how))?)
            }
            Op::ListXattr { path } => Value::Names(session.list_xattr(&self.at(path))?),
            Op::RemoveXattr { path, name } => none(session.remove_xattr(&self.at(path), name)?),
            Op::Open { slot, path, how } => {
                let file = session.open(&self.at(path), open_options(how))?;
                self.files[*slot] = Some(file);
                Value::None
            }
            Op::OpenTmpfile { slot, path, mode } => {
                let file = session.open_tmpfile(&self.at(path), *mode)?;
                self.files[*slot] = Some(file);
                Value::None
            }
            Op::LinkFile { slot, path } => none(session.link_file(self.file(*slot)?, &self.at(path))?),
            Op::HandleStat { slot } => Value::Stat(stat_of(&self.file(*slot)?.stat()?)),
            Op::Read { slot, offset, len } => {
                let mut bytes = vec![0xee; *len];
                let count = self.file(*slot)?.read_at(&mut bytes, *offset)?;
                bytes.truncate(count);
                Value::Bytes(bytes)
            }
            Op::Write { slot, offset, len, tag } => {
                let file = self.file(*slot)?;
                Value::Count(file.write_at(&pattern::bytes(*tag, *offset, *len), *offset)? as u64)
            }
            Op::Truncate { slot, size } => none(self.file(*slot)?.truncate(*size)?),
            Op::Allocate { slot, how, offset, len } => {
                none(self.file(*slot)?.allocate(allocate_mode(*how), *offset, *len)?)
            }
            Op::SeekData { slot, offset } => Value::Position(self.file(*slot)?.seek_data(*offset)?),
            Op::SeekHole { slot, offset } => Value::Position(self.file(*slot)?.seek_hole(*offset)?),
            Op::HandleSetAttr { slot, change } => Value::Stat(stat_of(&self.file(*slot)?.set_attr(set_attr(*change))?)),
            Op::Fsync { slot, data_only: false } => none(self.file(*slot)?.sync()?),
            Op::Fsync { slot, data_only: true } => none(self.file(*slot)?.sync_data()?),
            Op::Sync => none(self.fs().sync()?),
            Op::Close { .. } | Op::Remount => unreachable!("done above"),
        })
    }

    /// The same through nodes, as a mount would do it; `None` where only a path says what is meant.
    fn perform_by_node(&mut self, step: &Step) -> Option<engine::Result<Value>> {
        let session = &self.sessions[step.cred];
        let split = |path: &[u8]| plain(&self.at(path));
        // A refusal on the way to the parent is the answer, as for the path.
        macro_rules! parent {
            ($path:expr) => {
                match session.resolve(&$path) {
                    Ok(node) => node,
                    Err(error) => return Some(Err(error)),
                }
            };
        }
        let made = |result: engine::Result<engine::Stat>| result.map(|_| Value::None);
        let none = |result: engine::Result<()>| result.map(|()| Value::None);
        Some(match &step.op {
            Op::Create { path, mode } => {
                let (dir, name) = split(path)?;
                made(session.mknod_at(parent!(dir), &name, Kind::File.mode_bits() | mode, 0))
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = split(path)?;
                made(session.mkdir_at(parent!(dir), &name, *mode))
            }
            Op::Mknod { path, kind, mode, rdev } => {
                let (dir, name) = split(path)?;
                made(session.mknod_at(parent!(dir), &name, kind.mode_bits() | mode, *rdev))
            }
            Op::Symlink { target, path } if !target.is_empty() => {
                let (dir, name) = split(path)?;
                made(session.symlink_at(target, parent!(dir), &name))
            }
            Op::Readlink { path } => {
                let (dir, name) = split(path)?;
                let link = session.lookup(parent!(dir), &name);
                link.and_then(|stat| session.readlink_node(stat.node())).map(Value::Bytes)
            }
            Op::Link { source, target } => {
                let ((source_dir, source), (dir, name)) = (split(source)?, split(target)?);
                let stat = match session.lookup(parent!(source_dir), &source) {
                    Ok(stat) => stat,
                    Err(error) => return Some(Err(error)),
                };
                made(session.link_at(stat.node(), parent!(dir), &name))
            }
            Op::Unlink { path } => {
                let (dir, name) = split(path)?;
                none(session.unlink_at(parent!(dir), &name))
            }
            Op::Rmdir { path } => {
                let (dir, name) = split(path)?;
                none(session.rmdir_at(parent!(dir), &name))
            }
            Op::Rename { source, target, how } => {
                let ((from, source), (to, target)) = (split(source)?, split(target)?);
                let from = parent!(from);
                // As the kernel walks: the source's directory must be searchable before the target's is looked for.
                if let Err(error) = session.access_node(from, 1) {
                    return Some(Err(error));
                }
                none(session.rename_at(from, &source, parent!(to), &target, rename_mode(*how)))
            }
            Op::Stat { path, follow: true } => {
                session.stat_node(parent!(self.at(path))).map(|stat| Value::Stat(stat_of(&stat)))
            }
            Op::Stat { path, follow: false } => {
                let (dir, name) = split(path)?;
                session.lookup(parent!(dir), &name).map(|stat| Value::Stat(stat_of(&stat)))
            }
            Op::Access { path, mask } => none(session.access_node(parent!(self.at(path)), *mask)),
            Op::ReadDir { path } => {
                let page = 1 + self.rng.clone().index(60);
                let dir = parent!(self.at(path));
                read_pages(session, dir, page).map(Value::Entries)
            }
            Op::SetAttr { path, change } => {
                let node = parent!(self.at(path));
                session.set_attr_node(node, set_attr(*change)).map(|stat| Value::Stat(stat_of(&stat)))
            }
            Op::GetXattr { path, name } => session.get_xattr_node(parent!(self.at(path)), name).map(Value::Bytes),
            Op::SetXattr { path, name, value, how } => {
                none(session.set_xattr_node(parent!(self.at(path)), name, value, xattr_mode(*how)))
            }
            Op::ListXattr { path } => session.list_xattr_node(parent!(self.at(path))).map(Value::Names),
            Op::RemoveXattr { path, name } => none(session.remove_xattr_node(parent!(self.at(path)), name)),
            Op::Open { slot, path, how } if !how.create && !how.no_follow => {
                let file = session.open_node(parent!(self.at(path)), open_options(how));
                let slot = *slot;
                file.map(|file| {
                    self.files[slot] = Some(file);
                    Value::None
                })
            }
            _ => return None,
        })
    }

    /// Everything below the prefix, as the super-user sees it, with the bytes of the files.
    pub fn found(&self) -> engine::Result<(Vec<TreeEntry>, BTreeMap<u64, Content>)> {
        let session = self.root();
        let top = if self.prefix.is_empty() { b"/".to_vec() } else { self.prefix.clone() };
        let node = session.resolve(&top)?;
        let mut found = (Vec::new(), BTreeMap::new());
        add_tree(&session, node, Vec::new(), &mut found)?;
        Ok(found)
    }

    /// As [`Engine::found`], without the bytes.
    pub fn tree(&self) -> engine::Result<Vec<TreeEntry>> {
        Ok(self.found()?.0)
    }

    /// `walk` must show the same files, each after its directory.
    pub fn check_walk(&self, tree: &[TreeEntry]) -> Result<(), String> {
        let session = self.root();
        let top = if self.prefix.is_empty() { b"/".to_vec() } else { self.prefix.clone() };
        let mut seen = BTreeMap::new();
        for entry in session.walk(&top).map_err(|error| error.to_string())? {
            let entry = entry.map_err(|error| error.to_string())?;
            if let Some(end) = entry.path.iter().rposition(|&byte| byte == b'/')
                && !seen.contains_key(&entry.path[..end])
            {
                return Err(format!("walk shows {:?} before its directory", entry.path.escape_ascii().to_string()));
            }
            if seen.insert(entry.path.clone(), stat_of(&entry.stat)).is_some() {
                return Err(format!("walk shows {:?} twice", entry.path.escape_ascii().to_string()));
            }
        }
        let expected: BTreeMap<_, _> = tree.iter().map(|entry| (entry.path.clone(), entry.stat)).collect();
        let paths: Vec<&Vec<u8>> = expected.keys().collect();
        let many: Option<Vec<Stat>> =
            session.stat_many(&paths[1..]).into_iter().map(|stat| stat.ok().map(|stat| stat_of(&stat))).collect();
        if self.prefix.is_empty() && many.is_none_or(|many| !expected.values().skip(1).eq(many.iter())) {
            return Err("stat_many differs from the tree".into());
        }
        if seen == expected { Ok(()) } else { Err("walk differs from the tree of readdir".into()) }
    }
}

/// Directory and name of a path whose last component is an ordinary name without slashes after it.
fn plain(path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let end = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, name) = path.split_at(end);
    if name.is_empty() || name == b"." || name == b".." {
        return None;
    }
    Some((if dir.is_empty() { b"/".to_vec() } else { dir.to_vec() }, name.to_vec()))
}

fn entry_of(entry: engine::DirEntry) -> Entry {
    Entry { name: entry.name, ino: entry.ino, kind: kind_of(entry.file_type) }
}

fn read_pages(session: &Session, dir: engine::Node, page: usize) -> engine::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut cookie = 0;
    loop {
        let more = session.read_dir_at(dir, cookie, page)?;
        let Some(last) = more.last() else { return Ok(entries) };
        assert!(more.len() <= page);
        assert_ne!(last.cookie, cookie, "a page must lead on");
        cookie = last.cookie;
        entries.extend(more.into_iter().map(entry_of));
    }
}

type Collected = (Vec<TreeEntry>, BTreeMap<u64, Content>);

fn add_tree(session: &Session, node: engine::Node, path: Vec<u8>, found: &mut Collected) -> engine::Result<()> {
    let stat = stat_of(&session.stat_node(node)?);
    let mut xattrs = BTreeMap::new();
    for name in session.list_xattr_node(node)? {
        let value = session.get_xattr_node(node, &name)?;
        xattrs.insert(name, value);
    }
    let target = (stat.kind == Kind::Symlink).then(|| session.readlink_node(node)).transpose()?;
    let mut digest = None;
    if stat.kind == Kind::File {
        let content = match found.1.entry(stat.ino) {
            Vacant(first) => first.insert(read_content(session, node, stat.size)?),
            Occupied(again) => again.into_mut(),
        };
        let mut sum = ContentDigest::default();
        content.chunks().for_each(|(offset, bytes)| sum.add(offset, bytes));
        digest = Some(sum.finish());
    }
    let is_dir = stat.kind == Kind::Directory;
    found.0.push(TreeEntry { path: path.clone(), stat, target, xattrs, content: digest });
    if is_dir {
        let mut entries = read_pages(session, node, 100)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let child = session.lookup(node, &entry.name)?;
            assert_eq!((child.ino, kind_of(child.file_type())), (entry.ino, entry.kind), "{:?}", entry.name);
            add_tree(session, child.node(), join(&path, &entry.name), found)?;
        }
    }
    Ok(())
}

fn read_content(session: &Session, node: engine::Node, size: u64) -> engine::Result<Content> {
    let options = engine::OpenOptions { read: true, ..engine::OpenOptions::default() };
    let file = session.open_node(node, options)?;
    let mut content = Content::default();
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    while at < size {
        if size > WHOLE_SIZE_MAX {
            at = match file.seek_data(at) {
                Ok(data) => data,
                Err(Error::Refused(engine::Errno::NXIO)) => break,
                Err(error) => return Err(error),
            };
        }
        let count = file.read_at(&mut buf, at)?;
        assert!(count > 0, "size is {size}, but nothing can be read at {at}");
        content.write(at, &buf[..count]);
        at += count as u64;
    }
    content.truncate(size);
    Ok(content)
}

/// The checker has nothing to say about the volume.
pub fn check_silent(device: &Arc<dyn BlockDevice>) -> Result<(), String> {
    let options = Options { threads: 1, ..Options::default() };
    let report = check(device.clone(), None, &options).map_err(|error| format!("check: {error}"))?;
    if report.is_sound() {
        return Ok(());
    }
    let shown = report.findings.iter().take(10).map(|finding| format!("\n  {finding}"));
    Err(format!("check finds {} things wrong:{}", report.finding_count, shown.collect::<String>()))
}

/// Check may repair; afterwards it has nothing to say.
pub fn repair(device: &Arc<dyn BlockDevice>) -> Result<(), String> {
    let options = Options { threads: 1, repair: true, ..Options::default() };
    let report = check(device.clone(), None, &options).map_err(|error| format!("repair: {error}"))?;
    if !report.is_sound() {
        let shown = report.remaining.iter().take(10).map(|finding| format!("\n  {finding}"));
        return Err(format!("{} things remain after repair:{}", report.remaining_count, shown.collect::<String>()));
    }
    check_silent(device)
}

/// Runs `work`; a panic becomes an error with its message.
pub fn catch(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", message.unwrap_or("(no message)")))
    })
}

/// While shrinking, the same panic would print a hundred times.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    // The hook is the process's: two threads that swap it at once could leave the silent one behind.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = work();
    std::panic::set_hook(hook);
    result
}
