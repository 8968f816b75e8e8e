//! The engine as a machine that runs `sim`'s steps.

use crate::convert::*;
use crate::setup::{Devices, Setup};
use myriad_engine as engine;
use myriad_engine::{Error, File, Fs, Session};
use myriad_sim::errno::Errno;
use myriad_sim::model::{Model, TICK_NS};
use myriad_sim::op::*;
use myriad_sim::pattern;
use myriad_sim::rng::Rng;
use std::sync::atomic::Ordering;

/// Whether operations go by path, or by node where they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Path,
    Node,
    /// Either, at random.
    Mixed,
}

/// The volume under test, as a machine that runs steps.
pub struct Engine {
    setup: Setup,
    devices: Devices,
    fs: Option<Fs>,
    users: Vec<Cred>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) files: Vec<Option<File>>,
    way: Way,
    /// Put before every path: lets a run live in a directory.
    pub(crate) prefix: Vec<u8>,
    pub(crate) rng: Rng,
    /// When changes that are held back are looked at.
    visits: Rng,
    /// What a remount does with the closed volume.
    pub on_remount: Option<fn(&Devices)>,
}

impl Engine {
    pub fn open(setup: &Setup, devices: impl Into<Devices>, way: Way) -> engine::Result<Self> {
        let devices = devices.into();
        let fs = setup.open(devices.clone())?;
        Ok(Self::on(setup, devices, fs, way, b""))
    }

    /// On a volume that is open already, below `prefix`.
    pub fn on(setup: &Setup, devices: impl Into<Devices>, fs: Fs, way: Way, prefix: &[u8]) -> Self {
        let users = users();
        let sessions = users.iter().map(|cred| fs.session(to_engine(cred))).collect();
        Self {
            setup: setup.clone(),
            devices: devices.into(),
            fs: Some(fs),
            users,
            sessions,
            files: (0..SLOTS).map(|_| None).collect(),
            way,
            prefix: prefix.to_vec(),
            rng: Rng::new(3),
            visits: Rng::new(5),
            on_remount: None,
        }
    }

    pub fn fs(&self) -> &Fs {
        self.fs.as_ref().expect("the volume is open")
    }

    /// A model of the volume as mkfs left it: it has the root's times, which come from the system's clock, and files as large as its map allows.
    pub fn fresh_model(&self) -> engine::Result<Model> {
        let mut model = Model::new(self.root().stat("/")?.btime);
        model.size_max = self.fs().file_size_max();
        Ok(model)
    }

    pub fn root(&self) -> Session {
        self.fs().session(engine::Cred::root())
    }

    /// Runs a step at time `now`. The outer result is the volume's or the device's fault, the inner the caller's.
    pub fn run(&mut self, step: &Step, now: i64) -> engine::Result<Answer> {
        self.setup.time.store(now, Ordering::Relaxed);
        let done = self.perform(step);
        // A remount that failed has left none to visit.
        if self.setup.holds_back() && self.visits.percent(60) && self.fs.is_some() {
            self.visit(now)?;
        }
        match done {
            Ok(value) => Ok(Ok(value)),
            Err(Error::Refused(errno)) => Ok(Err(Errno(errno.raw_os_error()))),
            Err(other) => Err(other),
        }
    }

    /// Has what is due written: now, or by a clock that is ahead for that long.
    fn visit(&mut self, now: i64) -> engine::Result<()> {
        let ahead = [0, 0, 1, 5, 100][self.visits.index(5)] * TICK_NS;
        self.setup.time.store(now + ahead, Ordering::Relaxed);
        let done = self.fs().write_due();
        self.setup.time.store(now, Ordering::Relaxed);
        match done {
            // Where allocations are refused. Nobody waits for it, and the next visit tries again.
            Err(Error::Refused(engine::Errno::NOSPC)) => Ok(()),
            // Nor for what cannot be read: what has changed stays so, and the next sync tells.
            Err(Error::Io(failed)) if failed.op == "read" && self.fs().shut_down_reason().is_none() => Ok(()),
            done => done.map(drop),
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
            look(&self.devices);
        }
        let fs = self.setup.open(self.devices.clone())?;
        self.sessions = self.users.iter().map(|cred| fs.session(to_engine(cred))).collect();
        self.fs = Some(fs);
        Ok(())
    }

    pub(crate) fn at(&self, path: &[u8]) -> Vec<u8> {
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
}
