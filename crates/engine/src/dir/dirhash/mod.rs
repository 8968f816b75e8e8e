//! dirhash: hashes in memory over directories whose entries lie one after the other on disk (Dowse and Malone 2002, 2.4 and 3).
//!
//! ```text
//!   name --> keyed hash --> slots: positions --> the directory's own block: is it the name?
//!                                                                          yes: found; chain ended: there is none
//!   name to be added --> first unit with just enough free bytes --> that unit
//! ```
//!
//! **Policy.** A directory of `dirhash_minsize` bytes or more gets a hash at the first access, made from all its entries. All
//! hashes together have at most `dirhash_maxmem` bytes; who gets them, [`pool`] says. A hash is never on the device, and may go
//! at any time: whoever finds none searches the directory.
//!
//! **Mechanism.** A hash knows where the entries of all names lie, so a name that it does not know is not there ([`slots`]); and
//! how much of each unit is free, so who adds a name looks at one unit ([`free`]). Under soft updates it knows which names wait to be gone
//! ([`gone`]). Whatever changes entries tells it
//! ([`DirHashes::change`]). The kinds do both in a file of their own (`linear/hashed.rs`, `indexed/hashed.rs`).
//!
//! What may be relied on:
//!   1. A hash that is found says what the directory says. Who changes entries holds the directory's inode lock exclusively, and
//!      the hash with it from the first byte to the last; an error or a panic in between drops the hash.
//!   2. Every answer is confirmed by the directory's block. A hash that is wrong all the same costs a search and is dropped, and
//!      `dirhash_mismatches` counts it.
//!   3. Home slots go by SipHash-1-3 of the name's hash, under a key that is made for each opening and shown to nobody. So who
//!      knows this code, all cookies and even the volume's own key cannot choose names that share a chain.
//!
//! Locking: inode lock, then the hash's own (rank `DirHash`), one at a time, then whatever the directory's blocks ask for; the
//! pool's lock is a leaf.

mod free;
mod gone;
mod pool;
mod slots;
mod table;

use crate::counters::{Count, Counters};
use crate::error::Result;
use crate::locks::{Mutex, Rank};
use crate::types::{DirHash, MountOptions};
use myriad_format::choices::Directory;
use myriad_format::inode::RawInode;
use myriad_format::{Ino, NameHasher};
use pool::{Hash, Meter, Pool, STRUCTURE};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use table::{Kept, Noted, Shape, Table, Useless};

/// Bytes of a word, in which positions and free space are counted.
pub(crate) const WORD: usize = free::WORD;

/// Part of `dirhash_maxmem` that one hash may have when others must go for it.
const EVICTING_PART: u64 = 2;

/// A directory as its kind shows it to whoever makes a hash.
pub(crate) trait Summarised {
    fn shape(&self) -> Result<Shape>;

    /// Hands all that the directory has to `f`, until it refuses something.
    fn each(&self, f: &mut dyn FnMut(Noted<'_>) -> Kept) -> Result<Kept>;
}

/// The hashes of a volume.
pub(crate) struct DirHashes {
    /// Whether this volume's kind of directory gets hashes.
    is_on: AtomicBool,
    memory_max: AtomicU64,
    size_min: AtomicU64,
    checks: AtomicBool,
    kind: Directory,
    counters: Arc<Counters>,
    names: NameHasher,
    key: NameHasher,
    meter: Meter,
    pool: Mutex<{ Rank::Leaf as u8 }, Pool>,
}

/// The hash of a directory that is about to change, if it has one.
pub(crate) struct Change<'a> {
    hashes: &'a DirHashes,
    table: Option<Table>,
}

impl Change<'_> {
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// The directory has so many bytes now: it may be too small for a hash.
    pub fn has_size(&mut self, bytes: u64) {
        if bytes < self.hashes.size_min.load(Ordering::Relaxed) {
            self.table = None;
        }
    }

    /// Tells the hash what has changed. It is dropped if it has no room for that, or does not agree.
    pub fn tell(&mut self, f: impl FnOnce(&DirHashes, &mut Table) -> Kept) {
        let Some(table) = &mut self.table else { return };
        if let Err(useless) = f(self.hashes, table) {
            self.table = None;
            self.hashes.note_useless(useless);
        }
    }
}

impl DirHashes {
    fn note_useless(&self, useless: Useless) {
        self.counters.bump(match useless {
            Useless::Outgrown => Count::dirhash_outgrown,
            Useless::Wrong => Count::dirhash_mismatches,
        });
    }

    /// `key` is secret and this opening's own.
    pub fn new(
        kind: Directory,
        names: NameHasher,
        key: [u8; 16],
        options: &MountOptions,
        counters: Arc<Counters>,
    ) -> Self {
        let meter = Meter::default();
        let hashes = Self {
            is_on: AtomicBool::new(false),
            memory_max: AtomicU64::new(0),
            size_min: AtomicU64::new(0),
            checks: AtomicBool::new(false),
            kind,
            counters,
            names,
            key: NameHasher::new(key),
            pool: Mutex::new(Pool::new(meter.clone())),
            meter,
        };
        hashes.set(options);
        hashes
    }

    /// Takes the options as they are now. Hashes that have no place any more are dropped.
    pub fn set(&self, options: &MountOptions) -> u64 {
        let DirHash { is_on, memory_max, size_min, checks } = options.dirhash;
        let is_on = is_on.unwrap_or(self.kind == Directory::Linear) && memory_max > 0;
        self.memory_max.store(memory_max, Ordering::Relaxed);
        let was = self.size_min.swap(size_min, Ordering::Relaxed);
        self.checks.store(checks || cfg!(debug_assertions), Ordering::Relaxed);
        let mut pool = self.pool.lock();
        // Under the pool's lock, as whoever adds a hash sees it: none is left that nobody tells of changes.
        self.is_on.store(is_on, Ordering::Relaxed);
        pool.shrink(if is_on && size_min <= was { memory_max } else { 0 })
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether what changes is to be compared.
    pub fn checks(&self) -> bool {
        self.checks.load(Ordering::Relaxed)
    }

    /// Bytes that all hashes have, and how many there are.
    pub fn level(&self) -> (u64, u64) {
        (self.meter.used(), self.pool.lock().len() as u64)
    }

    /// Where in a hash a name's hash has its home.
    pub fn home(&self, hash: u64) -> u64 {
        self.key.hash(&hash.to_le_bytes())
    }

    /// As [`Self::home`], of a name's bytes.
    pub fn home_of(&self, name: &[u8]) -> u64 {
        self.home(self.names.hash(name))
    }

    /// Has `f` look at the hash of a directory, which is made if it is worth one. `None`: there is none, or it did not agree with the
    /// directory, and whoever asks searches. The directory is locked.
    pub fn look<R>(
        &self,
        dir: Ino,
        raw: &RawInode,
        whole: &dyn Summarised,
        f: impl FnOnce(&Table) -> Result<R>,
    ) -> Option<R> {
        if !self.is_on() {
            return None;
        }
        // A directory without a name is asked for names by whoever has it open still, and soon gone.
        if raw.size.get() < self.size_min.load(Ordering::Relaxed) || raw.nlink.get() == 0 {
            return None;
        }
        let found = self.pool.lock().find(dir, raw.generation.get(), true);
        let hash = match found {
            Some(hash) => hash,
            None => self.make(dir, raw, whole)?,
        };
        self.ask(dir, &hash, f)
    }

    /// As [`Self::look`], if there is a hash already.
    pub fn peek<R>(&self, dir: Ino, raw: &RawInode, f: impl FnOnce(&Table) -> Result<R>) -> Option<R> {
        if !self.is_on() {
            return None;
        }
        let hash = self.pool.lock().find(dir, raw.generation.get(), false)?;
        self.ask(dir, &hash, f)
    }

    fn ask<R>(&self, dir: Ino, hash: &Arc<Hash>, f: impl FnOnce(&Table) -> Result<R>) -> Option<R> {
        let answer = hash.table.read().as_ref().map(f);
        if let Some(Ok(answer)) = answer {
            return Some(answer);
        }
        if answer.is_some() {
            // What is wrong with the directory, the search will say; or the hash is.
            self.counters.bump(Count::dirhash_mismatches);
        }
        self.pool.lock().forget_only(dir, hash);
        None
    }

    /// Makes a hash. `None`: the directory is to have none this time.
    fn make(&self, dir: Ino, raw: &RawInode, whole: &dyn Summarised) -> Option<Arc<Hash>> {
        let counters = &self.counters;
        let limit = self.memory_max.load(Ordering::Relaxed);
        let shape = whole.shape().ok()?;
        let bytes = shape.bytes().map(|bytes| bytes + STRUCTURE);
        let mut pool = self.pool.lock();
        if let Some(hash) = pool.find(dir, raw.generation.get(), false) {
            // Another one who looks makes it.
            return Some(hash);
        }
        // It has all that is left, or up to a half of all.
        let is_modest =
            |bytes: &u64| bytes.saturating_add(self.meter.used()) <= limit || *bytes <= limit / EVICTING_PART;
        let (dropped, room) = match bytes.filter(is_modest) {
            Some(bytes) => {
                let (dropped, has_room) = pool.make_room(bytes, limit);
                (dropped, has_room.then_some(bytes))
            }
            None => (0, None),
        };
        counters.add(Count::dirhash_recycled, dropped);
        let Some(bytes) = room.filter(|_| self.is_on()) else {
            counters.bump(Count::dirhash_declined);
            return None;
        };
        let hash = pool.add(dir, raw.generation.get(), bytes);
        // Whoever finds it now waits until it is made.
        let mut place = hash.table.try_write().expect("nobody else knows it yet");
        drop(pool);
        let mut table = Table::new(shape);
        let noted = whole.each(&mut |noted| table.note(noted, |name| self.home_of(name)));
        let is_made = matches!(noted, Ok(Ok(())));
        let table = is_made.then_some(table);
        *place = table;
        drop(place);
        if !is_made {
            counters.bump(Count::dirhash_declined);
            self.pool.lock().forget_only(dir, &hash);
            return None;
        }
        counters.bump(Count::dirhash_builds);
        Some(hash)
    }

    /// Runs a change of a directory's entries, which tells the directory's hash of it, if there is one. An error, or a panic, drops
    /// the hash. The directory is locked exclusively.
    pub fn change<R>(&self, dir: Ino, generation: u32, f: impl FnOnce(&mut Change<'_>) -> Result<R>) -> Result<R> {
        let mut change = Change { hashes: self, table: None };
        if !self.is_on() {
            return f(&mut change);
        }
        let Some(hash) = self.pool.lock().find(dir, generation, false) else { return f(&mut change) };
        let mut place = hash.table.write();
        change.table = place.take();
        let result = f(&mut change);
        if result.is_ok() {
            *place = change.table;
        }
        let is_gone = place.is_none();
        drop(place);
        if is_gone {
            self.pool.lock().forget_only(dir, &hash);
        }
        result
    }

    /// Drops all hashes.
    pub fn drop_all(&self) {
        self.pool.lock().shrink(0);
    }

    /// Drops the hash of a directory.
    pub fn forget(&self, dir: Ino) {
        if self.is_on() {
            self.pool.lock().forget(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::{self, Name};
    use crate::edit::BlockStore;
    use crate::error::Errno;
    use crate::inode;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    use crate::types::{Cred, MkfsOptions, Node};
    use crate::volume::{Volume, testing, transact};
    use myriad_device::MemoryDevice;
    use myriad_format::choices::Choices;
    use myriad_format::inode::{S_IFDIR, S_IFREG};
    use myriad_format::{BlockKind, FileBlock};
    use zerocopy::little_endian::U32;

    const NAMES: u32 = 300;

    fn name(i: u32) -> Vec<u8> {
        format!("{i:08}").into_bytes()
    }

    /// A volume of linear directories, and one with names that has a hash.
    fn volume() -> (Volume, Node) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let choices = Choices { directory: Directory::Linear, ..Choices::default() };
        crate::mkfs::format(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
        let volume = testing::open(device);
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        for i in 0..NAMES {
            ops.make(dir, &name(i), &NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }).unwrap();
        }
        assert!(has(&volume, dir, &name(0)));
        assert_eq!(volume.dir_hashes.level().1, 1);
        (volume, dir)
    }

    fn count(volume: &Volume, wanted: &str) -> u64 {
        volume.counters.snapshot().into_iter().find(|(name, _)| *name == wanted).unwrap().1
    }

    fn has_in(volume: &Volume, dir: Node, raw: &RawInode, name: &[u8]) -> bool {
        let name = Name { bytes: name, hash: volume.hasher.hash(name) };
        dir::lookup(&volume.look(), Ino(dir.ino), raw, name).unwrap().is_some()
    }

    fn has(volume: &Volume, dir: Node, name: &[u8]) -> bool {
        let raw = inode::read_node(&volume.look(), dir).unwrap();
        has_in(volume, dir, &raw, name)
    }

    /// FFSOPT 3.5, second issue: whoever still had a directory open that had been removed was told of damage.
    #[test]
    fn a_directory_without_a_name_gets_no_hash() {
        let (volume, dir) = volume();
        volume.dir_hashes.drop_all();
        let mut raw = inode::read_node(&volume.look(), dir).unwrap();
        raw.nlink = U32::new(0);
        assert!(has_in(&volume, dir, &raw, &name(1)) && !has_in(&volume, dir, &raw, b"other"));
        assert_eq!(volume.dir_hashes.level(), (0, 0));
    }

    /// A number that another directory had is no reason to believe its hash.
    #[test]
    fn a_hash_is_that_of_one_generation() {
        let (volume, dir) = volume();
        let mut raw = inode::read_node(&volume.look(), dir).unwrap();
        let builds = count(&volume, "dirhash_builds");
        raw.generation = U32::new(raw.generation.get() + 1);
        assert!(has_in(&volume, dir, &raw, &name(1)));
        assert_eq!((count(&volume, "dirhash_builds"), volume.dir_hashes.level().1), (builds + 1, 1));
    }

    /// FFSOPT 3.5, last: dirhash finds bad hardware. What changed behind its back is found, and the directory is believed.
    #[test]
    fn a_hash_that_does_not_say_what_the_directory_says_is_dropped() {
        let (volume, dir) = volume();
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let entry = |number: usize| 16 + number * 24;
        let change = |f: &dyn Fn(&mut crate::edit::BlockEdit<'_>)| {
            transact(&volume, 0, |txn| {
                let raw = inode::read_node(&txn.look, dir)?;
                let Ok(crate::map::Mapping::Mapped(extent)) =
                    crate::map::lookup(&mut &txn.look, &raw, Ino(dir.ino), FileBlock(0))
                else {
                    panic!("it has blocks")
                };
                txn.change(extent.start, BlockKind::LinearEntries, f)
            })
            .unwrap();
        };
        let mismatches = || count(&volume, "dirhash_mismatches");
        // An entry is gone: the search says so.
        change(&|edit| edit.put(entry(3), &[0; 8]));
        assert_eq!(mismatches(), 0);
        assert!(!has(&volume, dir, &name(3)));
        assert_eq!((mismatches(), volume.dir_hashes.level()), (1, (0, 0)));
        // A change of that unit is compared with the hash: here it has a name that is not in it.
        assert!(has(&volume, dir, &name(4)) && volume.dir_hashes.level().1 == 1);
        change(&|edit| edit.put(entry(5) + 16, b"changed!"));
        ops.unlink(dir, &name(6)).unwrap();
        assert_eq!((mismatches(), volume.dir_hashes.level()), (2, (0, 0)));
        assert!(has(&volume, dir, &name(7)) && !has(&volume, dir, &name(6)) && !has(&volume, dir, &name(5)));
        assert_eq!((mismatches(), volume.dir_hashes.level().1), (2, 1));
    }

    /// Whoever does not come to the end of a change leaves no hash behind.
    #[test]
    fn a_change_that_fails_drops_the_hash() {
        let (volume, dir) = volume();
        let generation = inode::read_node(&volume.look(), dir).unwrap().generation.get();
        let level = || volume.dir_hashes.level();
        let ino = Ino(dir.ino);
        volume
            .dir_hashes
            .change(ino, generation, |change| {
                assert_eq!(change.table().map(Table::names), Some(u64::from(NAMES)));
                Ok(())
            })
            .unwrap();
        assert_eq!(level().1, 1);
        volume.dir_hashes.change(ino, generation, |_| Err::<(), _>(Errno::NOSPC.into())).unwrap_err();
        assert_eq!(level(), (0, 0));
        assert!(has(&volume, dir, &name(1)) && level().1 == 1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            volume.dir_hashes.change(ino, generation, |_| -> Result<()> { panic!("in the middle") })
        }));
        assert!(panicked.is_err());
        assert!(has(&volume, dir, &name(1)), "it is searched");
        assert!(has(&volume, dir, &name(2)), "and the hash made anew after that");
        assert_eq!((level().1, count(&volume, "dirhash_mismatches")), (1, 0));
    }

    /// A hash that goes while it is looked at lives as long as somebody looks, and is charged so long.
    #[test]
    fn a_hash_is_charged_until_the_last_one_lets_go() {
        let (volume, dir) = volume();
        let raw = inode::read_node(&volume.look(), dir).unwrap();
        let (bytes, _) = volume.dir_hashes.level();
        let names = volume.dir_hashes.peek(Ino(dir.ino), &raw, |table| {
            volume.dir_hashes.drop_all();
            assert_eq!(volume.dir_hashes.level(), (bytes, 0));
            Ok(table.names())
        });
        assert_eq!((names, volume.dir_hashes.level()), (Some(u64::from(NAMES)), (0, 0)));
    }
}
