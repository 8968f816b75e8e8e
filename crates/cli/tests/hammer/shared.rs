//! One file that all threads work on at once.
//!
//! ```text
//! 0          RECORDS_END     BLOCKS_END         appended by all, cut off by whoever has the lock for it
//! | records  | blocks        | records of any length ...
//! ```
//! Records lie across blocks, and blocks hold records of all threads: `index % ALL` owns. Each is written, stored through
//! a mapping or punched out, and read back by its owner alone. Blocks are written and read past the kernel's cache.
//!
//! What is punched is in the first half, what is stored through mappings in the second. In one page the kernel would not get
//! it right: it sends what a page holds, if another thread has just stored something in it, after the request that
//! punched a part of it out, and then clears that part in its cache alone.

use crate::common::map::Map;
use crate::contested::count_up;
use crate::worker::{Outcome, Tally};
use myriad_sim::pattern;
use myriad_sim::rng::Rng;
use rustix::fs::{self as unix, Advice, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Threads of both programs.
pub const ALL: usize = 4;
pub const FILE: &str = "file";
/// Counted up under a lock of fcntl(2).
pub const COUNTER: &str = "counter";
const RECORD: usize = 1000;
const RECORDS: usize = 600;
/// Records before this one may be punched out; those from `MAPPED` on, more than a page behind, stored through mappings.
const PUNCHED: usize = 296;
const MAPPED: usize = 304;
const RECORDS_END: u64 = (RECORD * RECORDS) as u64 / BLOCK * BLOCK + BLOCK;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
pub const BLOCKS_END: u64 = RECORDS_END + BLOCKS * BLOCK;

pub struct Shared {
    thread: usize,
    rng: Rng,
    pub tally: Tally,
    file: File,
    appending: File,
    /// Past the kernel's cache; `None` where a mount does not offer it.
    direct: Option<File>,
    /// `None` where the kernel does not map files of such a mount.
    map: Option<Map>,
    /// The version last written of each record and then of each block; 0: zeros.
    versions: Vec<u32>,
    version: u32,
    appended: u32,
}

/// An aligned buffer without unsafe code: memory for one block, wherever it begins in a larger one.
struct Aligned {
    bytes: Vec<u8>,
    begin: usize,
}

impl Aligned {
    fn new(blocks: usize) -> Self {
        let bytes = vec![0; (blocks + 1) * BLOCK as usize];
        let begin = bytes.as_ptr().align_offset(BLOCK as usize);
        Self { bytes, begin }
    }

    fn get(&mut self) -> &mut [u8] {
        let len = self.bytes.len() - BLOCK as usize;
        &mut self.bytes[self.begin..self.begin + len]
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// `None` where this errno says that there is no such thing here.
fn unless<T>(result: rustix::io::Result<T>, absent: Errno) -> rustix::io::Result<Option<T>> {
    match result {
        Err(errno) if errno == absent => Ok(None),
        other => other.map(Some),
    }
}

impl Shared {
    pub fn new(thread: usize, rng: Rng) -> Result<Self, String> {
        let open = |flags| unix::open(FILE, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty()).map(File::from);
        let opened = |error: Errno| format!("opening {FILE}: {error}");
        let file = open(OFlags::empty()).map_err(opened)?;
        let map = Map::new(&file, RECORDS_END as usize);
        Ok(Self {
            thread,
            rng,
            tally: Tally::default(),
            appending: open(OFlags::APPEND).map_err(opened)?,
            direct: unless(open(OFlags::DIRECT), Errno::INVAL).map_err(opened)?,
            map: unless(map, Errno::NODEV).map_err(opened)?,
            file,
            versions: vec![0; RECORDS + BLOCKS as usize],
            version: 0,
            appended: 0,
        })
    }

    pub fn step(&mut self) -> Outcome {
        match self.rng.below(100) {
            0..25 => self.write(),
            25..35 => self.punch(),
            35..55 => self.read_one(),
            55..65 => self.write_block(),
            65..75 => self.append(),
            75..77 => self.harvest(),
            77..95 => self.count(),
            95..98 => {
                let synced = if self.rng.percent(50) { self.file.sync_all() } else { self.file.sync_data() };
                synced.map_err(failed("sync"))
            }
            _ => self.forget(),
        }
    }

    /// One of this thread's records.
    fn mine(&mut self) -> usize {
        self.rng.index(RECORDS / ALL) * ALL + self.thread
    }

    fn content(&self, index: usize) -> Vec<u8> {
        let (place, len) = place(index);
        match self.versions[index] {
            0 => vec![0; len],
            version => pattern::bytes((self.thread as u32) << 28 | version, place, len),
        }
    }

    fn write(&mut self) -> Outcome {
        let index = self.mine();
        self.version += 1;
        self.versions[index] = self.version;
        let (bytes, (at, _)) = (self.content(index), place(index));
        match &self.map {
            Some(map) if index >= MAPPED && self.rng.percent(30) => map.write(at as usize, &bytes),
            // In one piece or in two.
            _ if self.rng.percent(70) => self.file.write_all_at(&bytes, at).map_err(failed("write"))?,
            _ => {
                let (head, tail) = bytes.split_at(self.rng.index(bytes.len()));
                self.file.write_all_at(tail, at + head.len() as u64).map_err(failed("write"))?;
                self.file.write_all_at(head, at).map_err(failed("write"))?;
            }
        }
        Ok(())
    }

    fn punch(&mut self) -> Outcome {
        let index = self.rng.index(PUNCHED / ALL) * ALL + self.thread;
        self.versions[index] = 0;
        let (at, len) = place(index);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        unix::fallocate(&self.file, flags, at, len as u64).map_err(|error| format!("punching at {at}: {error}"))
    }

    fn read_one(&mut self) -> Outcome {
        let index = self.mine();
        let way = self.rng.below(3);
        self.compare(index, way)
    }

    /// Reads a record or block in one of three ways, and wants what was last written.
    fn compare(&self, index: usize, way: u64) -> Outcome {
        let (at, len) = place(index);
        let (way, found) = match (way, &self.map, &self.direct) {
            (1, Some(map), _) if index < RECORDS => ("the mapping", map.read(at as usize, len)),
            (2, _, Some(direct)) => {
                let begin = at / BLOCK * BLOCK;
                let mut buffer = Aligned::new(2);
                let read = direct.read_at(buffer.get(), begin).map_err(failed("direct read"))?;
                let skip = (at - begin) as usize;
                let found = buffer.get()[..read].get(skip..skip + len);
                ("direct I/O", found.ok_or_else(|| format!("{read} bytes at {begin}"))?.to_vec())
            }
            _ => {
                let mut found = vec![0; len];
                self.file.read_exact_at(&mut found, at).map_err(failed("read"))?;
                ("read", found)
            }
        };
        let expected = self.content(index);
        if found == expected {
            return Ok(());
        }
        let first = (0..len).find(|&byte| found[byte] != expected[byte]).unwrap_or(0);
        let version = self.versions[index];
        Err(format!(
            "record {index} of thread {}, version {version}, by {way}: differs from byte {first} of {len}, at {at}: {:02x?}, not {:02x?}",
            self.thread,
            &found[first..len.min(first + 16)],
            &expected[first..len.min(first + 16)]
        ))
    }

    /// A whole block, past the cache, read back either way.
    fn write_block(&mut self) -> Outcome {
        let Some(direct) = &self.direct else { return Ok(()) };
        let index = RECORDS + self.rng.index(BLOCKS as usize / ALL) * ALL + self.thread;
        self.version += 1;
        self.versions[index] = self.version;
        let mut buffer = Aligned::new(1);
        buffer.get().copy_from_slice(&self.content(index));
        direct.write_all_at(buffer.get(), place(index).0).map_err(failed("direct write"))?;
        let way = 2 * self.rng.below(2);
        self.compare(index, way)
    }

    /// A record at the end, wherever that is. Many may append at once, but not while somebody cuts off.
    fn append(&mut self) -> Outcome {
        self.appended += 1;
        let bytes = appended(self.thread as u32, self.appended, self.rng.index(3000));
        let written = {
            let _lock = Locked::new(&self.appending, FlockOperation::LockShared)?;
            (&self.appending).write(&bytes).map_err(failed("append"))?
        };
        if written != bytes.len() {
            return Err(format!("{written} of {} bytes appended", bytes.len()));
        }
        self.tally.add("appended", 1);
        self.tally.add("appended-numbers", i64::from(self.appended));
        Ok(())
    }

    /// Takes what was appended, and cuts it off.
    fn harvest(&mut self) -> Outcome {
        let _lock = Locked::new(&self.appending, FlockOperation::LockExclusive)?;
        harvest(&self.file, &mut self.tally)?;
        if self.rng.percent(30) {
            // What a file grows by reads as zeros, whatever was there before.
            self.file.set_len(BLOCKS_END + 9000).map_err(failed("truncate"))?;
            let mut bytes = vec![1; 9000];
            self.file.read_exact_at(&mut bytes, BLOCKS_END).map_err(failed("read"))?;
            if bytes.iter().any(|&byte| byte != 0) {
                return Err("a file has grown over bytes that were cut off".into());
            }
            self.file.set_len(BLOCKS_END).map_err(failed("truncate"))?;
        }
        Ok(())
    }

    /// Under a lock of fcntl(2), which keeps out other processes, and a mutex for the threads of this one.
    fn count(&mut self) -> Outcome {
        // The lock is the process's: closing any of its descriptors of the file lets go of it, so counting comes last.
        static THREADS: Mutex<()> = Mutex::new(());
        let _threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = File::options().read(true).write(true).open(COUNTER).map_err(failed("counter"))?;
        unix::fcntl_lock(&counter, FlockOperation::LockExclusive).map_err(|error| format!("fcntl: {error}"))?;
        count_up(COUNTER).map_err(failed("counting"))?;
        self.tally.add(COUNTER, 1);
        Ok(())
    }

    /// What is clean in the kernel's cache goes, and is asked for again.
    fn forget(&self) -> Outcome {
        unix::fadvise(&self.file, 0, None, Advice::DontNeed).map_err(|error| format!("fadvise: {error}"))
    }

    /// With everybody at rest: all that is this thread's, in all ways, from the volume.
    pub fn check(&mut self) -> Outcome {
        self.file.sync_all().map_err(failed("sync"))?;
        self.forget()?;
        for way in 0..3 {
            for index in (self.thread..RECORDS + BLOCKS as usize).step_by(ALL) {
                self.compare(index, way).map_err(|error| format!("at rest: {error}"))?;
            }
        }
        Ok(())
    }
}

/// Where a record or block lies, and its length.
fn place(index: usize) -> (u64, usize) {
    match index.checked_sub(RECORDS) {
        None => ((index * RECORD) as u64, RECORD),
        Some(block) => (RECORDS_END + block as u64 * BLOCK, BLOCK as usize),
    }
}

/// A lock of flock(2), for as long as this lives, also where that ends by an error: the others must not wait for ever.
struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    fn new(file: &'a File, operation: FlockOperation) -> Result<Self, String> {
        unix::flock(file, operation).map_err(|error| format!("flock: {error}"))?;
        Ok(Self(file))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        unix::flock(self.0, FlockOperation::Unlock).expect("it was locked");
    }
}

fn appended(thread: u32, number: u32, len: usize) -> Vec<u8> {
    let head = [u32::from_le_bytes(*b"rec:"), thread, number, len as u32];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(pattern::bytes(thread << 28 | number, 0, len));
    bytes
}

/// Counts whole records behind the blocks, each thread's in the order of their making, and cuts them off. The caller has
/// the lock for it.
pub fn harvest(file: &File, tally: &mut Tally) -> Outcome {
    let mut rest = Vec::new();
    let mut at = BLOCKS_END;
    loop {
        let mut bytes = vec![0; 1 << 16];
        let read = file.read_at(&mut bytes, at).map_err(failed("reading what was appended"))?;
        if read == 0 {
            break;
        }
        rest.extend_from_slice(&bytes[..read]);
        at += read as u64;
    }
    let mut last = [0; ALL];
    let mut rest = &rest[..];
    while !rest.is_empty() {
        let word = |index: usize| {
            rest.get(index * 4..index * 4 + 4).map(|word| u32::from_le_bytes(word.try_into().expect("4")))
        };
        let record = match (word(1), word(2), word(3)) {
            (Some(thread), Some(number), Some(len)) if (thread as usize) < ALL && len < 3000 => {
                let whole = appended(thread, number, len as usize);
                rest.starts_with(&whole).then_some((thread as usize, number, whole.len()))
            }
            _ => None,
        };
        let Some((thread, number, len)) = record else {
            return Err(format!("{} bytes before the end of the appended records is none", rest.len()));
        };
        if number <= last[thread] {
            return Err(format!("record {number} of thread {thread} was appended behind its record {}", last[thread]));
        }
        last[thread] = number;
        tally.add("harvested", 1);
        tally.add("harvested-numbers", i64::from(number));
        rest = &rest[len..];
    }
    file.set_len(BLOCKS_END).map_err(failed("cutting off"))
}
