//! What a meeting has of the kernel: the inodes that it was told of, its locks, the FORGETs that it still owes; and beside each
//! file what must be true of it.
//!
//! The rules are those of Linux (fs/namei.c, fs/fuse/dir.c):
//!
//! - Names of a directory change with the directory locked alone. A name is looked up, and a directory listed, with the directory locked
//!   shared. But a name whose lifetime has ended is looked up once more with nothing locked.
//! - A file that loses or gets a name, is written or cut is locked for that.
//! - Each answer that names an inode counts. An inode that nobody uses may be dropped at any time; FORGET gives its count back some time
//!   later, and may be overtaken by a new answer about the same inode.
//! - An inode that somebody has open, or that a request is under way for, is not dropped.

use crate::request::{Dialect, Operation, decode};
use crate::volume::VolumeService;
use crate::volume::raw::{self, entry};
use crate::wire::{BatchForgetIn, EntryOut, ForgetOne, InHeader, ROOT, opcode};
use myriad_engine::{Errno, schedule};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::IntoBytes;

/// A name's place: a directory of [`State::dirs`], and which name.
pub(super) type Place = (usize, u8);

/// Which file of [`State::files`].
pub(super) type FileNo = usize;

/// An inode that the kernel was told of.
pub(super) struct Inode {
    pub generation: u64,
    pub file: FileNo,
    /// Answers that have named it.
    lookups: u64,
    /// Openings, and requests under way.
    pins: u32,
}

/// A file as it must be.
pub(super) struct Model {
    pub names: Vec<Place>,
    pub bytes: Vec<u8>,
    /// Moves at the beginning and at the end of each change of content or names.
    pub version: u64,
    /// The version that an FSYNC has made durable.
    pub synced: Option<u64>,
    /// It never had a name, and may get one.
    pub is_linkable: bool,
    is_locked: bool,
}

impl Model {
    /// Nobody is changing it.
    pub fn is_quiet(&self) -> bool {
        !self.is_locked
    }
}

pub(super) struct Dir {
    pub id: u64,
    readers: u32,
    is_locked: bool,
}

pub(super) struct State {
    pub dirs: Vec<Dir>,
    pub files: Vec<Model>,
    pub inodes: HashMap<u64, Inode>,
    /// What each name has meant, one after the other.
    pub history: BTreeMap<Place, Vec<Option<FileNo>>>,
    /// Whose each number and generation was.
    of_nodes: HashMap<(u64, u64), FileNo>,
    owed: Vec<ForgetOne>,
}

pub(super) struct Kernel<'a> {
    pub service: &'a VolumeService,
    state: Mutex<State>,
    /// A thread has found something: the others need not go on.
    pub is_over: AtomicBool,
}

impl State {
    pub fn named(&self, place: Place) -> Option<FileNo> {
        self.history.get(&place).and_then(|history| *history.last()?)
    }

    /// What the names of a directory mean.
    pub fn listed(&self, dir: usize) -> BTreeMap<u8, FileNo> {
        let of_dir = self.history.range((dir, 0)..=(dir, u8::MAX));
        of_dir.filter_map(|(&(_, name), history)| Some((name, (*history.last()?)?))).collect()
    }

    /// From now on a name means this.
    pub fn name(&mut self, place: Place, file: Option<FileNo>) {
        let before = self.named(place);
        self.history.entry(place).or_insert_with(|| vec![None]).push(file);
        if let Some(before) = before {
            self.files[before].names.retain(|name| *name != place);
            self.files[before].is_linkable = false;
        }
        if let Some(file) = file {
            self.files[file].names.push(place);
        }
    }

    /// An answer names an inode: what the kernel makes of that. `file` is the one that it must be.
    pub fn met(&mut self, entry: &EntryOut, file: FileNo) {
        let node = (entry.nodeid, entry.generation);
        let whose = *self.of_nodes.entry(node).or_insert(file);
        assert_eq!(whose, file, "node {node:?} was told for another file");
        let inode = self.inodes.entry(entry.nodeid).or_insert(Inode {
            generation: entry.generation,
            file,
            lookups: 0,
            pins: 0,
        });
        assert_eq!(
            (inode.generation, inode.file),
            (entry.generation, file),
            "number {} is another file's while the kernel knows it",
            entry.nodeid
        );
        inode.lookups += 1;
    }

    /// A new file.
    pub fn made(&mut self, entry: &EntryOut) -> FileNo {
        let file = self.files.len();
        self.files.push(Model {
            names: Vec::new(),
            bytes: Vec::new(),
            version: 0,
            synced: None,
            is_linkable: false,
            is_locked: false,
        });
        self.met(entry, file);
        file
    }

    /// Whose a node is, if it was told before.
    pub fn whose(&self, entry: &EntryOut) -> Option<FileNo> {
        self.of_nodes.get(&(entry.nodeid, entry.generation)).copied()
    }

    pub fn pin(&mut self, id: u64) {
        self.inodes.get_mut(&id).expect("the kernel knows it").pins += 1;
    }

    pub fn unpin(&mut self, id: u64) {
        self.inodes.get_mut(&id).expect("it was pinned").pins -= 1;
    }

    /// Drops an inode that nobody uses.
    pub fn evict(&mut self, id: u64) {
        if self.inodes.get(&id).is_some_and(|inode| inode.pins == 0) {
            let inode = self.inodes.remove(&id).expect("just seen");
            self.owed.push(ForgetOne { nodeid: id, nlookup: inode.lookups });
        }
    }

    /// Gives one count back.
    pub fn owe(&mut self, id: u64) {
        self.owed.push(ForgetOne { nodeid: id, nlookup: 1 });
    }
}

impl<'a> Kernel<'a> {
    pub fn new(service: &'a VolumeService) -> Self {
        let state = State {
            dirs: vec![Dir { id: ROOT, readers: 0, is_locked: false }],
            files: Vec::new(),
            inodes: HashMap::new(),
            history: BTreeMap::new(),
            of_nodes: HashMap::new(),
            owed: Vec::new(),
        };
        Self { service, state: Mutex::new(state), is_over: AtomicBool::new(false) }
    }

    /// For a moment: nobody sends a request with it.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A directory of the root, made before threads meet.
    pub fn add_dir(&self, id: u64) {
        self.state().dirs.push(Dir { id, readers: 0, is_locked: false });
    }

    /// Waits until `attempt` has something.
    fn wait_for<T>(&self, mut attempt: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            if let Some(got) = attempt(&mut self.state()) {
                return got;
            }
            assert!(!self.is_over.load(Ordering::Relaxed), "another thread has failed");
            schedule::pause();
            std::thread::yield_now();
        }
    }

    /// Locks directories for changes of their names, while `work` goes on.
    pub fn with_names<T>(&self, mut dirs: Vec<usize>, work: impl FnOnce() -> T) -> T {
        dirs.sort_unstable();
        dirs.dedup();
        for &dir in &dirs {
            self.wait_for(|state| {
                let dir = &mut state.dirs[dir];
                let is_free = dir.readers == 0 && !dir.is_locked;
                is_free.then(|| dir.is_locked = true)
            });
        }
        let done = work();
        let mut state = self.state();
        dirs.iter().for_each(|&dir| state.dirs[dir].is_locked = false);
        done
    }

    /// Locks a directory as those do who only look.
    pub fn with_dir<T>(&self, dir: usize, work: impl FnOnce() -> T) -> T {
        self.wait_for(|state| {
            let dir = &mut state.dirs[dir];
            (!dir.is_locked).then(|| dir.readers += 1)
        });
        let done = work();
        self.state().dirs[dir].readers -= 1;
        done
    }

    /// Locks files for a change of them, while `work` goes on.
    pub fn with_files<T>(&self, mut files: Vec<FileNo>, work: impl FnOnce() -> T) -> T {
        files.sort_unstable();
        files.dedup();
        for &file in &files {
            self.wait_for(|state| {
                let file = &mut state.files[file];
                (!std::mem::replace(&mut file.is_locked, true)).then(|| file.version += 1)
            });
        }
        let done = work();
        let mut state = self.state();
        for &file in &files {
            state.files[file].version += 1;
            state.files[file].is_locked = false;
        }
        done
    }

    // ---- requests ----

    /// Sends a request; the answer's bytes.
    pub fn send(&self, pid: u32, nodeid: u64, operation: Operation<'_>) -> Result<Vec<u8>, Errno> {
        raw::send(self.service, pid, nodeid, operation)
    }

    pub fn lookup(&self, pid: u32, dir: u64, name: &str) -> Result<Option<EntryOut>, Errno> {
        let entry = entry(&self.send(pid, dir, Operation::Lookup { name: name.as_bytes() })?);
        Ok((entry.nodeid != 0).then_some(entry))
    }

    /// Sends up to `most` of the FORGETs that are owed: together, or one by one.
    pub fn send_forgets(&self, pid: u32, most: usize, together: bool) {
        let forgets: Vec<ForgetOne> = {
            let mut state = self.state();
            let rest = state.owed.len().saturating_sub(most);
            state.owed.drain(rest..).collect()
        };
        if forgets.is_empty() {
            return;
        }
        if !together {
            for one in forgets {
                let sent = self.send(pid, one.nodeid, Operation::Forget { lookups: one.nlookup });
                assert_eq!(sent, Ok(Vec::new()), "nobody answers a FORGET");
            }
            return;
        }
        let args = BatchForgetIn { count: forgets.len() as u32, dummy: 0 };
        let payload: Vec<u8> = forgets.iter().flat_map(|one| one.as_bytes().to_vec()).collect();
        let mut message = InHeader { len: 0, opcode: opcode::BATCH_FORGET, unique: 1, pid, ..InHeader::default() };
        message.len = (size_of::<InHeader>() + size_of::<BatchForgetIn>() + payload.len()) as u32;
        let bytes = [message.as_bytes(), args.as_bytes(), &payload].concat();
        assert_eq!(raw::receive(self.service, &decode(&bytes, Dialect::default()).unwrap()), Ok(Vec::new()));
    }

    /// Drops all that nobody uses.
    pub fn evict_all(&self) {
        let mut state = self.state();
        let ids: Vec<u64> = state.inodes.keys().copied().collect();
        ids.into_iter().for_each(|id| state.evict(id));
    }
}
