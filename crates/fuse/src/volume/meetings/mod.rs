//! Threads of a kernel that meet in one server, in an order that a seed decides (`myriad_engine::schedule`).
//!
//! No kernel is needed: the requests are made here, by the rules that Linux keeps to (`kernel.rs`), and the server answers them
//! as it answers the kernel's. Wherever the engine lets go of a lock another thread may go on, so a FORGET comes in the middle of an
//! UNLINK, a LOOKUP between the removal of a name and the last FORGET of its file, and so on.
//!
//! ```text
//! thread 0   LOOKUP a .. found ..                      .. counted    READ         FORGET ..  .. let go of, freed
//! thread 1                        UNLINK a .. held ..                    FSYNC b              LINK b
//! ```
//!
//! Looked at is
//!
//! - every answer: a name means what it must; a number and generation that were told for one file never mean another; a file that the
//!   kernel knows is never stale, with or without a name, and has the content that was written to it;
//! - at moments between two steps, what the volume would be after losing power, with all that was written and with what was flushed
//!   alone: a file that has not changed since it was synced is there by each of its names, byte by byte;
//! - the end: when all is closed and forgotten, nothing is counted, held, or left on the volume without a name; the volume is sound to
//!   the check, and has what it must.

mod kernel;
mod medium;

use self::kernel::{FileNo, Kernel, Place};
use self::medium::Medium;
use super::raw::{REGULAR, entry, serve};
use crate::negotiate::Agreement;
use crate::options::Options;
use crate::request::Operation;
use crate::wire::{
    CreateIn, DirentHeader, EntryOut, MkdirIn, MknodIn, OpenIn, OpenOut, ROOT, ReadIn, ReleaseIn, SetAttrIn, WriteIn,
    fattr, padded,
};
use myriad_check::{Options as CheckOptions, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::schedule::{self, Turns};
use myriad_engine::{Cred, Errno, Fs, MkfsOptions, MountOptions, Order, Session};
use myriad_format::choices::Profile;
use myriad_sim::rng::{Rng, is_long, number, seed_or};
use rustix::fs::{OFlags, RenameFlags};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

const VOLUME: u64 = 64 << 20;
/// Directories beside the root, and names that each may have.
const DIRS: usize = 2;
const NAMES: u8 = 4;
/// Content is made of these: number of the file, version, zeros.
const UNIT: usize = 16;
const SIZE_MAX: u64 = 48 << 10;
const STEPS: usize = 60;

/// A profile, and the order in which it is written.
type Volume = (&'static str, Order);

const VOLUMES: [Volume; 4] = [("myriad", Order::Log), ("ffs", Order::Soft), ("ffs", Order::Sync), ("xfs", Order::Log)];

/// Says how to do a run again, if it fails.
struct Replay(Volume, u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self((profile, order), seed) = *self;
            eprintln!(
                "on profile {profile}, order {order:?}; replay: MYRIAD_SEED={seed} MYRIAD_RUNS=1 cargo test -p myriad-fuse --lib meetings"
            );
        }
    }
}

#[test]
fn nobody_is_given_what_is_another_files() {
    let runs = number("MYRIAD_RUNS").unwrap_or(if is_long() { 2000 } else { 30 });
    let first = seed_or(1);
    for seed in first..first + runs {
        for volume in VOLUMES {
            let _replay = Replay(volume, seed);
            meet(volume, seed);
        }
    }
}

fn opened(device: Arc<dyn BlockDevice>, order: Order) -> Fs {
    let options = MountOptions {
        order: Some(order),
        cache_size: 16 << 20,
        commit_interval_ms: 0,
        seed: Some(1),
        background: false,
        ..MountOptions::default()
    };
    Fs::open_device(device, None, options).unwrap()
}

fn meet((profile, order): Volume, seed: u64) {
    let mut rng = Rng::new(seed);
    let choices = Profile::parse(profile).unwrap().choices;
    let base = Arc::new(MemoryDevice::new(VOLUME));
    let mkfs = MkfsOptions { choices, order, seed: Some(seed), ..MkfsOptions::default() };
    Fs::format_device(base.clone(), None, &mkfs).unwrap();
    let medium = Arc::new(Medium::new(base.clone_image()));
    let no_open = rng.percent(50);
    let agreement = Agreement { no_open, atomic_truncate: !no_open, ..Agreement::default() };
    let (service, reader) = serve(opened(medium.clone(), order), &Options::default(), agreement);
    // Nobody reads what the kernel would be told.
    service.end_notices();
    drop(reader);
    let kernel = Kernel::new(&service);
    for dir in 1..=DIRS {
        let args = MkdirIn { mode: 0o755, umask: 0 };
        let made = kernel.send(1, ROOT, Operation::MkDir { name: dir_name(dir).as_bytes(), args }).unwrap();
        kernel.add_dir(entry(&made).nodeid);
    }
    service.fs.sync().unwrap();
    let turns = Turns { seed, one_in: [2, 5, 20][rng.index(3)] };
    let threads = 2 + rng.index(2);
    let jobs = (0..threads).map(|thread| -> Box<dyn FnOnce() + Send> {
        let worker = Worker {
            pid: thread as u32 + 1,
            rng: rng.split(),
            kernel: &kernel,
            medium: &medium,
            order,
            open: Vec::new(),
        };
        Box::new(move || worker.run())
    });
    schedule::run(turns, jobs.collect());
    end(&kernel, &medium, order);
}

/// The kernel gives back what it knows, and unmounts.
fn end(kernel: &Kernel<'_>, medium: &Medium, order: Order) {
    let service = kernel.service;
    kernel.evict_all();
    kernel.send_forgets(1, usize::MAX, true);
    assert_eq!(service.nodes.count(), DIRS as u64, "nodes that are counted still");
    let expected = kernel.state();
    let named = expected.files.iter().filter(|file| !file.names.is_empty()).count();
    // In other orders an inode is counted as used until its removal is on the device.
    if order == Order::Log {
        let used = service.fs.statfs().unwrap().inodes_used;
        assert_eq!(used, (1 + DIRS + named) as u64, "inodes in use: files without a name were left");
    }
    // Closing is refused while anything is held; so nothing is let go of before it.
    service.fs.clone().close().unwrap();
    drop(expected);
    let [image, _] = medium.after_power_cut();
    let report = check(Arc::new(image.fork()), None, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
    let fs = opened(Arc::new(image), order);
    let session = fs.session(Cred::root());
    let state = kernel.state();
    for dir in 0..=DIRS {
        let expected = state.listed(dir);
        let names = (0..NAMES).filter(|&name| session.exists(&path_of((dir, name))).unwrap());
        assert!(names.eq(expected.keys().copied()), "names of directory {dir}");
        for (&name, &file) in &expected {
            assert!(session.read(&path_of((dir, name))).unwrap() == state.files[file].bytes, "file {file}");
        }
    }
}

fn dir_name(dir: usize) -> String {
    format!("d{dir}")
}

fn file_name(name: u8) -> String {
    format!("n{name}")
}

fn path_of((dir, name): Place) -> String {
    if dir == 0 { file_name(name) } else { format!("{}/{}", dir_name(dir), file_name(name)) }
}

/// A file that a thread has open: number of the inode, and the server's handle where it was asked.
struct Opened {
    id: u64,
    file: FileNo,
    fh: Option<u64>,
}

struct Worker<'a> {
    pid: u32,
    rng: Rng,
    kernel: &'a Kernel<'a>,
    medium: &'a Medium,
    order: Order,
    open: Vec<Opened>,
}

impl Worker<'_> {
    fn run(mut self) {
        /// Tells the others that one has failed.
        struct Over<'a>(&'a Kernel<'a>);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.is_over.store(true, Ordering::Relaxed);
                }
            }
        }
        let _over = Over(self.kernel);
        for _ in 0..STEPS {
            self.step();
            schedule::pause();
        }
        while !self.open.is_empty() {
            self.close(0);
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..14 => self.make(),
            14..22 => self.look_up(),
            22..30 => self.revalidate(),
            30..38 => self.open_some(),
            38..42 => self.close_some(),
            42..48 => self.read(),
            48..55 => self.write(),
            55..58 => self.cut(),
            58..63 => self.sync(),
            63..73 => self.unlink(),
            73..79 => self.rename(),
            79..84 => self.link(),
            84..86 => self.make_unnamed(),
            86..89 => self.list(),
            89..95 => self.evict(),
            95..99 => {
                let (most, together) = (1 + self.rng.index(4), self.rng.percent(50));
                self.kernel.send_forgets(self.pid, most, together);
            }
            _ => self.lose_power(),
        }
    }

    fn place(&mut self) -> Place {
        (self.rng.index(DIRS + 1), self.rng.below(u64::from(NAMES)) as u8)
    }

    fn dir_id(&self, dir: usize) -> u64 {
        self.kernel.state().dirs[dir].id
    }

    fn send(&self, id: u64, operation: Operation<'_>) -> Result<Vec<u8>, Errno> {
        self.kernel.send(self.pid, id, operation)
    }

    // ---- names ----

    /// Looks a name up whose directory is locked; the inode is pinned.
    fn find(&self, place: Place) -> Option<(u64, FileNo)> {
        let expected = self.kernel.state().named(place);
        let found = self.kernel.lookup(self.pid, self.dir_id(place.0), &file_name(place.1)).unwrap();
        match (found, expected) {
            (None, None) => None,
            (Some(entry), Some(file)) => {
                let mut state = self.kernel.state();
                state.met(&entry, file);
                state.pin(entry.nodeid);
                Some((entry.nodeid, file))
            }
            (found, expected) => panic!("{place:?} means {expected:?}, and was found to be {found:?}"),
        }
    }

    fn unpin(&self, id: u64) {
        self.kernel.state().unpin(id);
    }

    fn make(&mut self) {
        let place = self.place();
        self.kernel.with_names(vec![place.0], || {
            if let Some((id, _)) = self.find(place) {
                return self.unpin(id);
            }
            let args = MknodIn { mode: REGULAR, ..MknodIn::default() };
            let name = file_name(place.1);
            let made = self.send(self.dir_id(place.0), Operation::MkNod { name: name.as_bytes(), args }).unwrap();
            let mut state = self.kernel.state();
            let file = state.made(&entry(&made));
            state.name(place, Some(file));
        });
    }

    fn look_up(&mut self) {
        let place = self.place();
        let found = self.kernel.with_dir(place.0, || self.find(place));
        found.inspect(|&(id, _)| self.unpin(id));
    }

    /// Asks once more for a name, with nothing locked: others may change it meanwhile.
    fn revalidate(&mut self) {
        let place = self.place();
        let seen = self.kernel.state().history.get(&place).map_or(0, Vec::len);
        let found = self.kernel.lookup(self.pid, self.dir_id(place.0), &file_name(place.1));
        let keeps = self.rng.percent(50);
        // Who changes it has its answer then.
        self.kernel.with_dir(place.0, || {
            let mut state = self.kernel.state();
            let history = state.history.get(&place).cloned().unwrap_or_default();
            let mut meant = history[seen.saturating_sub(1)..].to_vec();
            if seen == 0 {
                meant.push(None);
            }
            match found {
                Ok(None) => assert!(meant.contains(&None), "{place:?} was always there: {meant:?}"),
                Ok(Some(entry)) => {
                    let file = state.whose(&entry).expect("of a file that was made");
                    assert!(meant.contains(&Some(file)), "{place:?}: {file} is none of {meant:?}");
                    let is_known = state.inodes.contains_key(&entry.nodeid);
                    if keeps || is_known && state.inodes[&entry.nodeid].generation == entry.generation {
                        state.met(&entry, file);
                    } else {
                        // The kernel sees that the name means another inode than before, and looks once more.
                        state.owe(entry.nodeid);
                    }
                }
                // The kernel looks once more, with the directory locked.
                Err(error) => {
                    assert_eq!(error, Errno::STALE);
                    assert!(meant.len() > 1, "{place:?} has not changed");
                }
            }
        });
    }

    fn unlink(&mut self) {
        let place = self.place();
        self.kernel.with_names(vec![place.0], || {
            let Some((id, file)) = self.find(place) else { return };
            self.kernel.with_files(vec![file], || {
                let name = file_name(place.1);
                self.send(self.dir_id(place.0), Operation::Unlink { name: name.as_bytes() }).unwrap();
                self.kernel.state().name(place, None);
            });
            self.unpin(id);
        });
    }

    fn rename(&mut self) {
        let (from, to) = (self.place(), self.place());
        // Without a log no two names change at once.
        let exchanges = self.order == Order::Log && self.rng.percent(30);
        if from == to {
            return;
        }
        self.kernel.with_names(vec![from.0, to.0], || {
            let (source, target) = (self.find(from), self.find(to));
            if let Some((_, moved)) = source
                && (target.is_some() || !exchanges)
            {
                let files = [source, target].into_iter().flatten().map(|(_, file)| file).collect();
                self.kernel.with_files(files, || {
                    let flags = if exchanges { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                    let (name, new_name) = (file_name(from.1), file_name(to.1));
                    let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
                    let new_parent = self.dir_id(to.0);
                    let request = Operation::Rename { name, new_parent, new_name, flags: flags.bits() };
                    self.send(self.dir_id(from.0), request).unwrap();
                    let replaced = target.map(|(_, file)| file);
                    let mut state = self.kernel.state();
                    // Two names of one file: nothing is to be done, says POSIX.
                    if replaced != Some(moved) {
                        state.name(from, replaced.filter(|_| exchanges));
                        state.name(to, Some(moved));
                    }
                });
            }
            [source, target].into_iter().flatten().for_each(|(id, _)| self.unpin(id));
        });
    }

    /// Gives an open file a further name, or a file that never had one its first.
    fn link(&mut self) {
        let place = self.place();
        if self.open.is_empty() {
            return;
        }
        let Opened { id, file, .. } = self.open[self.rng.index(self.open.len())];
        self.kernel.with_names(vec![place.0], || {
            if let Some((id, _)) = self.find(place) {
                return self.unpin(id);
            }
            self.kernel.with_files(vec![file], || {
                {
                    let state = self.kernel.state();
                    if state.files[file].names.is_empty() && !state.files[file].is_linkable {
                        return;
                    }
                }
                let name = file_name(place.1);
                let linked = self.send(self.dir_id(place.0), Operation::Link { node: id, name: name.as_bytes() });
                let mut state = self.kernel.state();
                state.met(&entry(&linked.unwrap()), file);
                state.name(place, Some(file));
                state.files[file].is_linkable = false;
            });
        });
    }

    fn make_unnamed(&mut self) {
        let dir = self.rng.index(DIRS + 1);
        let args = CreateIn { flags: OFlags::RDWR.bits(), mode: REGULAR, ..CreateIn::default() };
        let made = self.send(self.dir_id(dir), Operation::TmpFile(args)).unwrap();
        let made_entry = entry(&made);
        let (answer, _) = OpenOut::read_from_prefix(&made[size_of::<EntryOut>()..]).unwrap();
        let mut state = self.kernel.state();
        let file = state.made(&made_entry);
        state.files[file].is_linkable = true;
        state.pin(made_entry.nodeid);
        self.open.push(Opened { id: made_entry.nodeid, file, fh: Some(answer.fh) });
    }

    fn list(&mut self) {
        let dir = self.rng.index(DIRS + 1);
        self.kernel.with_dir(dir, || {
            let expected = self.kernel.state().listed(dir);
            let args = ReadIn { size: 32 << 10, ..ReadIn::default() };
            let answer = self.send(self.dir_id(dir), Operation::ReadDir { args, plus: true }).unwrap();
            let mut found = Vec::new();
            let mut rest = &answer[..];
            while !rest.is_empty() {
                let (told, after) = EntryOut::read_from_prefix(rest).unwrap();
                let (header, names) = DirentHeader::read_from_prefix(after).unwrap();
                let name = str::from_utf8(&names[..header.namelen as usize]).unwrap();
                if let Some(name) = name.strip_prefix('n') {
                    let name: u8 = name.parse().unwrap();
                    let file = *expected.get(&name).unwrap_or_else(|| panic!("{dir}/{name} is not there"));
                    if told.nodeid != 0 {
                        self.kernel.state().met(&told, file);
                    }
                    found.push(name);
                } else if told.nodeid != 0 {
                    self.kernel.state().owe(told.nodeid);
                }
                rest = &rest[size_of::<EntryOut>() + padded(size_of::<DirentHeader>() + header.namelen as usize)..];
            }
            found.sort_unstable();
            assert!(found.iter().eq(expected.keys()), "directory {dir} has {expected:?}, and {found:?} were listed");
        });
    }

    // ---- inodes ----

    fn any_inode(&mut self, is_pinned: bool) -> Option<(u64, FileNo)> {
        let mut state = self.kernel.state();
        let mut known: Vec<(u64, FileNo)> = state.inodes.iter().map(|(&id, inode)| (id, inode.file)).collect();
        known.sort_unstable();
        let chosen = (!known.is_empty()).then(|| known[self.rng.index(known.len())]);
        if let Some((id, _)) = chosen.filter(|_| is_pinned) {
            state.pin(id);
        }
        chosen
    }

    fn evict(&mut self) {
        if let Some((id, _)) = self.any_inode(false) {
            self.kernel.state().evict(id);
        }
    }

    fn open_some(&mut self) {
        let Some((id, file)) = self.any_inode(true) else { return };
        let args = OpenIn { flags: OFlags::RDWR.bits(), open_flags: 0 };
        let fh = match self.send(id, Operation::Open(args)) {
            Ok(answer) => Some(OpenOut::read_from_prefix(&answer).unwrap().0.fh),
            Err(Errno::NOSYS) => None,
            Err(error) => panic!("file {file} cannot be opened: {error}"),
        };
        self.open.push(Opened { id, file, fh });
    }

    fn close_some(&mut self) {
        if !self.open.is_empty() {
            let which = self.rng.index(self.open.len());
            self.close(which);
        }
    }

    fn close(&mut self, which: usize) {
        let Opened { id, fh, .. } = self.open.swap_remove(which);
        if let Some(fh) = fh {
            self.send(id, Operation::Release(ReleaseIn { fh, ..ReleaseIn::default() })).unwrap();
        }
        self.unpin(id);
    }

    /// An open file, or any other, which is open meanwhile.
    fn with_open(&mut self, work: impl FnOnce(&mut Self, u64, FileNo)) {
        if self.open.is_empty() || self.rng.percent(20) {
            self.open_some();
        }
        if !self.open.is_empty() {
            let Opened { id, file, .. } = self.open[self.rng.index(self.open.len())];
            work(self, id, file);
        }
    }

    fn content(&self, id: u64) -> Vec<u8> {
        let args = ReadIn { size: SIZE_MAX as u32 * 2, ..ReadIn::default() };
        self.send(id, Operation::Read(args)).unwrap_or_else(|error| panic!("node {id} cannot be read: {error}"))
    }

    fn read(&mut self) {
        self.with_open(|this, id, file| {
            if this.rng.percent(50) {
                this.kernel.with_files(vec![file], || {
                    let content = this.content(id);
                    assert!(content == this.kernel.state().files[file].bytes, "content of file {file}");
                });
                return;
            }
            // Beside who writes it: all is the file's own.
            for unit in this.content(id).chunks(UNIT) {
                let owner = u32::from_le_bytes(unit[..4].try_into().unwrap());
                assert!(owner == 0 || owner == file as u32 + 1, "file {file} has bytes of file {}", owner - 1);
            }
        });
    }

    fn write(&mut self) {
        self.with_open(|this, id, file| {
            let units = 1 + this.rng.index(1000);
            let offset = this.rng.below(SIZE_MAX / UNIT as u64 - units as u64) as usize * UNIT;
            this.kernel.with_files(vec![file], || {
                let version = this.kernel.state().files[file].version;
                let mut unit = [0; UNIT];
                unit[..4].copy_from_slice(&(file as u32 + 1).to_le_bytes());
                unit[4..12].copy_from_slice(&version.to_le_bytes());
                let data = unit.repeat(units);
                let args = WriteIn { offset: offset as u64, size: data.len() as u32, ..WriteIn::default() };
                this.send(id, Operation::Write { args, data: &data }).unwrap();
                let bytes = &mut this.kernel.state().files[file].bytes;
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[offset..offset + data.len()].copy_from_slice(&data);
            });
        });
    }

    fn cut(&mut self) {
        self.with_open(|this, id, file| {
            let size = if this.rng.percent(50) { 0 } else { this.rng.below(SIZE_MAX / UNIT as u64) * UNIT as u64 };
            this.kernel.with_files(vec![file], || {
                let args = SetAttrIn { valid: fattr::SIZE | fattr::FH, size, ..SetAttrIn::default() };
                this.send(id, Operation::SetAttr(args)).unwrap();
                this.kernel.state().files[file].bytes.resize(size as usize, 0);
            });
        });
    }

    fn sync(&mut self) {
        self.with_open(|this, id, file| {
            let version = this.kernel.state().files[file].version;
            this.send(id, Operation::Fsync).unwrap_or_else(|error| panic!("file {file} cannot be synced: {error}"));
            this.kernel.state().files[file].synced = Some(version);
        });
    }

    /// What would be there if power were lost now.
    fn lose_power(&mut self) {
        schedule::undisturbed(|| {
            let quiet: BTreeMap<String, Vec<u8>> = {
                let state = self.kernel.state();
                let files = state.files.iter().filter(|file| file.is_quiet() && file.synced == Some(file.version));
                files.flat_map(|file| file.names.iter().map(|&place| (path_of(place), file.bytes.clone()))).collect()
            };
            for image in self.medium.after_power_cut() {
                let fs = opened(Arc::new(image), self.order);
                let session: Session = fs.session(Cred::root());
                for (path, bytes) in &quiet {
                    let found = session.read(path).unwrap_or_else(|error| panic!("{path} was synced: {error}"));
                    assert!(found == *bytes, "{path} was synced, and has another content after losing power");
                }
            }
        });
    }
}
