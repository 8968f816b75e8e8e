//! What flows from a source to a sink: batches of records, and the queue they travel in.
//!
//! ```text
//! source thread(s) --full batches--> queue, bounded --> sink, on the main thread
//!        ^------------ empty batches, to be filled again -----------'
//! ```
//!
//! A batch is one byte arena and a list of records that point into it, so that neither side allocates per file and a
//! thread is woken once per some hundred small files.
//!
//! Invariants
//!   1. Records are in order: a directory before what is in it, and a hard link after the name it refers to.
//!   2. After an entry with `Body::Parts` come its `Data` records, offsets ascending, then `End` or `Spoiled`; nothing
//!      of another file lies between them.
//!   3. The queue holds at most `SLOTS` slots of `SLOT_DEPTH` batches, whatever the source is.

use super::exclude::Excludes;
use myriad_engine::{FileType, Time};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A batch is sent on when it holds this many bytes. Large enough that waking the other side costs little beside its
/// content, small enough that the batches in flight stay in the processor's outer cache.
pub const BATCH_SIZE: usize = 512 << 10;
/// Or this many records: files may be empty.
const BATCH_RECORDS: usize = 1024;
/// Files up to this size travel as one record.
pub const WHOLE_MAX: u64 = 256 << 10;
/// Larger ones in pieces of this size.
pub const PART_SIZE: usize = BATCH_SIZE;
/// Most slots of the queue: pieces of the source that are read at the same time, in an order that the sink restores.
const SLOTS: usize = 16;
const SLOT_DEPTH: usize = 2;

/// A range of a batch's arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Attributes that a transfer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Type and permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Of a device node.
    pub rdev: u64,
    /// Of a regular file, holes included.
    pub size: u64,
    pub mtime: Time,
    /// `None` where the source does not know it.
    pub atime: Option<Time>,
}

impl Meta {
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).expect("sources make only modes with a type")
    }
}

/// A run of data between holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub length: u64,
}

/// Which inode of the source an entry is a name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkKey {
    pub device: u64,
    pub ino: u64,
}

#[derive(Debug)]
pub struct Entry {
    /// Relative to where the transfer began, without leading or trailing slash, `.` or `..`; empty for the beginning.
    pub path: Span,
    pub meta: Meta,
    /// A packed list of `myriad_format::xattr`.
    pub xattrs: Span,
    /// For files that may have further names.
    pub link: Option<LinkKey>,
    pub body: Body,
}

#[derive(Debug)]
pub enum Body {
    /// Directories, FIFOs, sockets and device nodes.
    None,
    /// Target of a symbolic link.
    Symlink(Span),
    /// Path of another entry of the same transfer.
    HardLink(Span),
    /// All of a regular file, which has no holes.
    Whole(Span),
    /// The data of a regular file comes in further records; everywhere else it has holes.
    Parts(Vec<Segment>),
    /// A regular file whose content nobody wanted.
    Unread,
}

#[derive(Debug)]
pub enum Record {
    Entry(Entry),
    Data {
        offset: u64,
        bytes: Span,
    },
    End,
    /// Instead of `End`: the source could not read the rest, and what there is of the file must go.
    Spoiled(Problem),
    /// The file whose entry came last was changed while it was read: of no interest if the sink did not take it.
    Changed(Problem),
    /// A file that the source could not read; the transfer goes on.
    Problem(Problem),
    /// The source cannot go on.
    Broken(anyhow::Error),
}

/// Whether the content of a regular file is wanted, by its path and attributes. Asked before it is read.
pub type Wanted = Arc<dyn Fn(&[u8], &Meta) -> bool + Send + Sync>;

/// Something the source could not deliver.
#[derive(Debug)]
pub struct Problem {
    pub error: anyhow::Error,
    /// The user who runs us may not read it.
    pub is_unreadable: bool,
}

impl Problem {
    pub fn new(error: anyhow::Error) -> Self {
        Self { error, is_unreadable: false }
    }
}

#[derive(Debug, Default)]
pub struct Batch {
    pub bytes: Vec<u8>,
    pub records: Vec<Record>,
}

impl Batch {
    pub fn get(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..span.end as usize]
    }

    pub fn add(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.since(start)
    }

    /// From `start` to the end of the arena.
    pub fn since(&self, start: usize) -> Span {
        let index = |at: usize| u32::try_from(at).expect("sources send a batch on long before 4 GiB");
        Span { start: index(start), end: index(self.bytes.len()) }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_SIZE || self.records.len() >= BATCH_RECORDS
    }
}

/// Empty batches, waiting to be filled again.
type Pool = Arc<Mutex<Vec<Batch>>>;

/// The sink has gone: the source stops.
#[derive(Debug)]
pub struct Gone;

/// Where a source puts its records.
pub struct Outlet {
    pub batch: Batch,
    sender: SyncSender<Batch>,
    pool: Pool,
}

impl Outlet {
    /// Adds a record; sends the batch on if it is full.
    pub fn push(&mut self, record: Record) -> Result<(), Gone> {
        self.batch.records.push(record);
        if self.batch.is_full() { self.flush() } else { Ok(()) }
    }

    pub fn flush(&mut self) -> Result<(), Gone> {
        if self.batch.records.is_empty() {
            return Ok(());
        }
        let empty = self.pool.lock().expect("nobody panics holding it").pop().unwrap_or_default();
        self.sender.send(std::mem::replace(&mut self.batch, empty)).map_err(|_| Gone)
    }
}

/// Opens slots of the queue, in the order in which the sink shall see them.
pub struct Slots {
    sender: SyncSender<Receiver<Batch>>,
    pool: Pool,
}

impl Slots {
    /// The next slot. Waits while all are in use.
    pub fn open(&self) -> Result<Outlet, Gone> {
        let (sender, receiver) = sync_channel(SLOT_DEPTH);
        self.sender.send(receiver).map_err(|_| Gone)?;
        let batch = self.pool.lock().expect("nobody panics holding it").pop().unwrap_or_default();
        Ok(Outlet { batch, sender, pool: Arc::clone(&self.pool) })
    }
}

/// How far a source is, in units of its own.
#[derive(Debug, Default)]
pub struct Gauge {
    done: AtomicU64,
    /// 0: not known (yet).
    total: AtomicU64,
}

impl Gauge {
    pub fn set_done(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    pub fn set_total(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|&total| total > 0)
    }
}

/// The sink's end of the queue.
pub struct Feed {
    slots: Receiver<Receiver<Batch>>,
    current: Option<Receiver<Batch>>,
    pool: Pool,
    threads: Vec<JoinHandle<()>>,
    /// Position in a compressed archive; `None` where records are counted instead.
    pub position: Option<Arc<Gauge>>,
    /// Records to expect, once somebody has counted them.
    pub count: Arc<Gauge>,
    /// What errors of the source begin with, where they do not name it themselves.
    pub name: Option<String>,
    /// What the sink is not to be given, of a source that does not leave it out itself (archives).
    pub excludes: Excludes,
    /// Whether a directory's entries may come after it was left, and hard links name the file by its path alone (archives).
    pub is_unordered: bool,
    /// Whether the threads end by themselves when the sink goes. One that waits for a pipe does not.
    pub joins: bool,
}

/// An answer of [`Feed::next`].
pub enum Next {
    Batch(Batch),
    /// Nothing yet; a moment to look for signals.
    Waiting,
    End,
}

impl Feed {
    /// A queue, and the source's end of it.
    pub fn new() -> (Slots, Self) {
        let (sender, slots) = sync_channel(SLOTS);
        let pool = Pool::default();
        let feed = Self {
            slots,
            current: None,
            pool: Arc::clone(&pool),
            threads: Vec::new(),
            position: None,
            count: Arc::default(),
            name: None,
            excludes: Excludes::default(),
            is_unordered: false,
            joins: true,
        };
        (Slots { sender, pool }, feed)
    }

    /// Runs a part of the source on a thread of its own.
    pub fn spawn(&mut self, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name("source".into()).spawn(work);
        self.threads.push(thread.expect("the host has room for a few threads"));
    }

    pub fn next(&mut self) -> Next {
        const PATIENCE: Duration = Duration::from_millis(100);
        loop {
            if let Some(current) = &self.current {
                match current.recv_timeout(PATIENCE) {
                    Ok(batch) => return Next::Batch(batch),
                    Err(RecvTimeoutError::Timeout) => return Next::Waiting,
                    Err(RecvTimeoutError::Disconnected) => self.current = None,
                }
            }
            match self.slots.recv_timeout(PATIENCE) {
                Ok(slot) => self.current = Some(slot),
                Err(RecvTimeoutError::Timeout) => return Next::Waiting,
                Err(RecvTimeoutError::Disconnected) => return Next::End,
            }
        }
    }

    /// Gives a batch back to be filled again.
    pub fn recycle(&self, mut batch: Batch) {
        batch.bytes.clear();
        batch.records.clear();
        self.pool.lock().expect("nobody panics holding it").push(batch);
    }

    /// Stops the source and waits for its threads.
    pub fn finish(self) {
        let Self { slots, current, threads, joins, .. } = self;
        drop((slots, current));
        for thread in threads {
            if joins && let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_in_the_order_of_their_opening_whoever_fills_them_first() {
        let (slots, mut feed) = Feed::new();
        let mut first = slots.open().unwrap();
        let mut second = slots.open().unwrap();
        second.push(Record::End).unwrap();
        second.flush().unwrap();
        let span = first.batch.add(b"one");
        first.push(Record::Data { offset: 1, bytes: span }).unwrap();
        first.flush().unwrap();
        drop((first, second, slots));
        let Next::Batch(batch) = feed.next() else { panic!("the first slot has a batch") };
        let [Record::Data { bytes, .. }] = batch.records[..] else { panic!("{:?}", batch.records) };
        assert_eq!(batch.get(bytes), b"one");
        feed.recycle(batch);
        assert!(matches!(feed.next(), Next::Batch(batch) if matches!(batch.records[..], [Record::End])));
        assert!(matches!(feed.next(), Next::End));
        feed.finish();
    }

    #[test]
    fn a_source_hears_that_the_sink_has_gone() {
        let (slots, feed) = Feed::new();
        let mut outlet = slots.open().unwrap();
        feed.finish();
        outlet.push(Record::End).unwrap();
        assert!(outlet.flush().is_err() && slots.open().is_err());
    }
}
