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
//! ([`gone`]), and charges units for the bytes that they keep. Whatever changes entries tells it
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
#[cfg(test)]
mod tests;

use crate::counters::{Count, Counters};
use crate::error::Result;
use crate::locks::{Mutex, Rank};
use crate::types::{DirHash, MountOptions};
pub(crate) use free::FreeSpace;
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
        let shape = whole.shape().ok()?;
        let bytes = shape.bytes().map(|bytes| bytes + STRUCTURE);
        let mut pool = self.pool.lock();
        // Under the lock under which `set` makes room for a lower limit.
        let limit = self.memory_max.load(Ordering::Relaxed);
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
