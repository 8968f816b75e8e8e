//! A file in which all threads of a meeting write side by side.
//!
//! ```text
//! stripe     0  1  2  0  1  2 ...      each is one thread's, who alone writes there and knows what it holds
//! ```
//!
//! A stripe may be shorter than a block, so that threads change the same page, or as long as many, so that each allocates and makes holes
//! beside the others. Nobody cuts the file. Thread 0 moves it, to new names and over other files; the others know it by its node.

use super::judge::compare_bytes;
use super::script::{BLOCKS_MAX, How};
use super::{once_with_room, text, with_room};
use myriad_engine::{AllocateMode, Errno, Error, File, Fs, Node, OpenOptions, RenameMode, Session};
use myriad_sim::pattern;
use std::ops::Range;

pub(super) const SHARED: &str = "shared";

/// What one thread knows of the file.
pub(super) struct Lane {
    thread: u64,
    threads: u64,
    stripe: u64,
    node: Node,
    /// The name that it has; only thread 0 knows.
    path: String,
    pub handle: Option<File>,
    /// The largest file; what is not in this thread's stripes means nothing.
    bytes: Vec<u8>,
    /// The file is at least as long.
    end: u64,
    /// Nothing of the stripes has changed since they were synced.
    pub synced: bool,
}

impl Lane {
    /// Makes the file; what the first thread knows of it, from which [`Self::of_thread`] makes the others'.
    pub fn make(root: &Session, threads: usize, stripe: u64, block: u64) -> Result<Self, String> {
        root.mkdir(SHARED, 0o777).map_err(text)?;
        let path = format!("{SHARED}/0");
        let node = root.create(&path, 0o600).map_err(text)?;
        let bytes = vec![0; (BLOCKS_MAX * block) as usize];
        let (threads, handle) = (threads as u64, None);
        Ok(Self { thread: 0, threads, stripe, node, path, handle, bytes, end: 0, synced: true })
    }

    pub fn of_thread(&self, thread: usize) -> Self {
        let (thread, path, bytes) = (thread as u64, self.path.clone(), self.bytes.clone());
        Self { thread, path, bytes, handle: None, ..*self }
    }

    /// Up to `count` of the thread's stripes, from one of them on.
    fn stripes(&self, first: u64, count: u64) -> Vec<Range<u64>> {
        let most = self.bytes.len() as u64;
        let of_thread = (most - self.thread * self.stripe).div_ceil(self.stripe * self.threads);
        let range = |index: u64| {
            let start = (index * self.threads + self.thread) * self.stripe;
            start.min(most)..(start + self.stripe).min(most)
        };
        let first = first % of_thread;
        (first..first.saturating_add(count).min(of_thread)).map(range).collect()
    }

    fn open(&mut self, session: &Session) -> Result<&File, String> {
        if self.handle.is_none() {
            let handle = session.open_node(self.node, OpenOptions::READ_WRITE);
            self.handle = Some(handle.map_err(|error| format!("the shared file: {error}"))?);
        }
        Ok(self.handle.as_ref().expect("just opened"))
    }

    /// Does something with some stripes; `tag` is that of what is written.
    pub fn change(&mut self, session: &Session, how: How, first: u64, count: u64, tag: u32) -> Result<(), String> {
        for range in self.stripes(first, count) {
            let told = |error: Error| format!("the shared file, {how:?} at {range:?}: {error}");
            let (at, len) = (range.start as usize, (range.end - range.start) as usize);
            let grows = match how {
                How::Write { passing, synced } => {
                    let bytes = pattern::bytes(tag, range.start, len);
                    let options =
                        OpenOptions { write: true, dont_cache: passing, sync: synced, ..OpenOptions::default() };
                    let own = match passing || synced {
                        true => Some(with_room(|_| session.open_node(self.node, options)).map_err(told)?),
                        false => None,
                    };
                    let handle = match &own {
                        Some(own) => own,
                        None => self.open(session)?,
                    };
                    let mut done = 0;
                    while done < len {
                        done +=
                            with_room(|_| handle.write_at(&bytes[done..], range.start + done as u64)).map_err(told)?;
                    }
                    self.bytes[at..][..len].copy_from_slice(&bytes);
                    true
                }
                How::Allocate(mode) => {
                    let handle = self.open(session)?;
                    with_room(|_| handle.allocate(mode, range.start, len as u64)).map_err(told)?;
                    if matches!(mode, AllocateMode::Punch | AllocateMode::Zero { .. }) {
                        self.bytes[at..][..len].fill(0);
                    }
                    matches!(mode, AllocateMode::Extend | AllocateMode::Zero { keep_size: false })
                }
            };
            if grows {
                self.end = self.end.max(range.end);
            }
        }
        Ok(())
    }

    pub fn sync(&self, session: &Session) -> myriad_engine::Result<()> {
        session.open_node(self.node, OpenOptions::READ_WRITE)?.sync()
    }

    /// Thread 0 gives the file another name, which perhaps is another file's.
    pub fn move_to(&mut self, session: &Session, count: u32, over: bool) -> Result<(), String> {
        let new = format!("{SHARED}/{count}");
        if over {
            let options = OpenOptions { create: true, mode: 0o600, ..OpenOptions::READ_WRITE };
            drop(with_room(|_| session.open(&new, options)).map_err(text)?);
        }
        let old = std::mem::replace(&mut self.path, new);
        once_with_room(Errno::NOENT, || session.rename(&old, &self.path, RenameMode::Replace))
            .map_err(|error| format!("the shared file, moved to {}: {error}", self.path))
    }

    /// What the thread reads of its stripes is what it has written there.
    pub fn look(&mut self, session: &Session) -> Result<(), String> {
        self.open(session)?;
        let handle = self.handle.take().expect("just opened");
        let result = self.compare(&handle);
        self.handle = Some(handle);
        result
    }

    /// As [`Self::look`], on another volume: what was synced, or all. The file is there in any case, by some name.
    pub fn compare_with(&self, fs: &Fs, all: bool) -> Result<(), String> {
        let session = fs.session(myriad_engine::Cred::root());
        for entry in session.read_dir(SHARED).map_err(text)? {
            let path = format!("{SHARED}/{}", String::from_utf8_lossy(&entry.map_err(text)?.name));
            if session.stat(&path).map_err(text)?.node() == self.node {
                let told = |error: Error| format!("{path}: {error}");
                let file = session.open(&path, OpenOptions::READ).map_err(told)?;
                return if all || self.synced { self.compare(&file) } else { Ok(()) };
            }
        }
        Err("the shared file has no name".into())
    }

    fn compare(&self, file: &File) -> Result<(), String> {
        let size = file.stat().map_err(text)?.size;
        if size < self.end {
            return Err(format!("the shared file: {size} bytes instead of {} at least", self.end));
        }
        let mut found = vec![0; self.bytes.len()];
        with_room(|_| file.read_at(&mut found, 0)).map_err(|error| format!("the shared file: {error}"))?;
        for range in self.stripes(0, u64::MAX) {
            let range = range.start as usize..range.end as usize;
            let what = format!("the shared file, bytes {range:?} of {size}, thread {}", self.thread);
            compare_bytes(&what, &found[range.clone()], &self.bytes[range])?;
        }
        Ok(())
    }
}
