//! Names, attributes and content of which the kernel cannot know what became of them.
//!
//! A request that changes something may be done in memory and fail afterwards: the host has no room to make it durable (with `sync`, with
//! `dirsync`, or on a volume of order `sync`), a device fails, memory runs out while a removed file is freed, or its blocks are damaged.
//! Its caller is told so. But an error says to the kernel that nothing has changed. It would go on to say that a file is there which was removed, that one is missing
//! which was made, or that a file has the mode that it had, for as long as it was allowed to remember: a year; and to show what was there
//! before a copy, a hole or a cut. So it is told to ask for these names and attributes again, and to read that content anew.
//!
//! ```text
//! caller    mknod(2): the directory is locked ..              .. ENOSPC, unlocked
//! server                      made; not durable; answers ENOSPC, then queues the name
//! thread                                                      has the kernel look the name up before it trusts it again
//! ```
//!
//! The kernel does that with the directory locked, and nothing interrupts its wait for the lock, not even SIGKILL. The request has the lock
//! until it is answered, so its names are queued only then. One thread tells of the queued names; it begins with the first of them
//! and ends with the mount. Other requests about the directory may have the lock meanwhile, and are answered by the threads that serve.
//! What is left of danger, docs/design/mount.md says. Content goes the same way: the kernel waits for each page of it that a request has,
//! and sends first what programs have stored there. Attributes are dropped without a lock, by the thread that answers.
//!
//! To drop a name would also unmount what is mounted below it, and the directory may be there as before. So the kernel is told to look the
//! name up (Linux 6.2). Only a name that the volume does not have any more is dropped: what had it is given back with that.

use super::VolumeService;
use super::data::COPY_MAX;
use super::settling::Settling;
use crate::request::{Operation, Request};
use crate::transport::Notifier;
use crate::wire::fattr;
use myriad_engine::Errno;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FallocateFlags, OFlags};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most doubts that wait for the thread. Of more names the kernel is not told: their callers were told of the error. Of more content it is told, of whole
/// files: whoever reads them was not told of anything.
const QUEUE_MAX: usize = 1024;

/// The modes of FALLOCATE that take content away.
const CLEARING: u32 = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::ZERO_RANGE).bits();

/// What the kernel is told of once the request is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    Name {
        parent: u64,
        name: Vec<u8>,
        /// And not only looked up again.
        drops: bool,
    },
    /// Bytes of a file; a length of 0 is the rest of it.
    Content { node: u64, offset: u64, length: u64 },
    /// A file that was opened before it got a flag: what the kernel still holds of it goes through that opening.
    Flagged { node: u64, opening: u64 },
}

impl Doubt {
    fn tell(&self, notifier: &Notifier, settling: &Settling) {
        match self {
            Self::Name { parent, name, drops } => notifier.name_changed(*parent, name, *drops),
            Self::Content { node, offset, length } => notifier.content_changed(*node, *offset, *length),
            Self::Flagged { node, opening } => {
                notifier.write_back(*node);
                settling.end(*node, *opening);
            }
        }
    }
}

pub(super) struct Doubts {
    /// Those of requests (their `unique`) that are not answered yet.
    unanswered: Mutex<Vec<(u64, Vec<Doubt>)>>,
    has_unanswered: AtomicBool,
    queue: Arc<Queue>,
    notifier: Arc<Notifier>,
    settling: Arc<Settling>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    one_more: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Doubt>,
    /// Files whose content is doubtful, for which there was no room: no more than the kernel knows.
    files: BTreeSet<u64>,
    has_thread: bool,
    has_ended: bool,
}

impl State {
    /// Puts one into the queue, if it is not there and there is room.
    fn add(&mut self, doubt: Doubt) {
        if self.has_ended || self.waiting.contains(&doubt) {
            return;
        }
        match doubt {
            // Without it the opening would not end. These are as many as files get flags while the kernel sends what it holds of one.
            Doubt::Flagged { .. } => self.waiting.push_back(doubt),
            _ if self.waiting.len() < QUEUE_MAX => self.waiting.push_back(doubt),
            Doubt::Content { node, .. } => drop(self.files.insert(node)),
            Doubt::Name { .. } => {}
        }
    }

    fn take(&mut self) -> Option<Doubt> {
        let whole = |node| Doubt::Content { node, offset: 0, length: 0 };
        self.waiting.pop_front().or_else(|| self.files.pop_first().map(whole))
    }
}

impl Queue {
    /// The next one; `None` once the mount has ended.
    fn next(&self) -> Option<Doubt> {
        let mut state = self.state.lock();
        loop {
            if state.has_ended {
                return None;
            }
            if let Some(doubt) = state.take() {
                return Some(doubt);
            }
            self.one_more.wait(&mut state);
        }
    }
}

impl Doubts {
    pub fn new(notifier: Arc<Notifier>, settling: Arc<Settling>) -> Self {
        let has_unanswered = AtomicBool::new(false);
        Self { unanswered: Mutex::default(), has_unanswered, queue: Arc::default(), notifier, settling }
    }

    /// A request has made these doubtful, and is not answered yet.
    pub fn note(&self, unique: u64, doubts: Vec<Doubt>) {
        let mut unanswered = self.unanswered.lock();
        unanswered.push((unique, doubts));
        self.has_unanswered.store(true, Ordering::Release);
    }

    /// Whether [`Self::tell_of`] has something to do for some request.
    pub fn wait_for_answers(&self) -> bool {
        // The thread that answers is the one that has noted what it wants to find.
        self.has_unanswered.load(Ordering::Acquire)
    }

    /// A request is answered: the kernel is told of what it made doubtful.
    pub fn tell_of(&self, unique: u64) {
        let mut of_request = Vec::new();
        {
            let mut unanswered = self.unanswered.lock();
            unanswered.retain_mut(|(other, doubts)| {
                if *other == unique {
                    of_request.append(doubts);
                }
                *other != unique
            });
            self.has_unanswered.store(!unanswered.is_empty(), Ordering::Release);
        }
        if of_request.is_empty() {
            return;
        }
        let mut state = self.queue.state.lock();
        of_request.into_iter().for_each(|doubt| state.add(doubt));
        if !state.has_thread && !state.has_ended {
            let (queue, notifier) = (Arc::clone(&self.queue), Arc::clone(&self.notifier));
            let settling = Arc::clone(&self.settling);
            let tell = move || {
                while let Some(doubt) = queue.next() {
                    doubt.tell(&notifier, &settling);
                }
            };
            // Without a thread the kernel goes on as it is: its caller was told of the error. The next one tries again.
            state.has_thread = std::thread::Builder::new().name("myriad-doubts".into()).spawn(tell).is_ok();
        }
        self.queue.one_more.notify_one();
    }

    /// The mount has ended, or nobody serves it any more: the thread ends once the kernel has taken what it is being told. Nobody waits
    /// for that.
    pub fn end(&self) {
        let mut state = self.queue.state.lock();
        state.has_ended = true;
        state.waiting.clear();
        state.files.clear();
        self.queue.one_more.notify_one();
    }
}

impl Drop for Doubts {
    fn drop(&mut self) {
        self.end();
    }
}

impl VolumeService {
    /// A request is going to be answered with an error.
    pub(super) fn doubt(&self, request: &Request<'_>, error: Errno) {
        let mut doubts: Vec<Doubt> = content_of(request).into_iter().collect();
        let may_be_done = match error {
            // Content may have changed in part before the volume had no room for the rest.
            Errno::NOSPC => super::HOST_WAS_FULL.get() || !doubts.is_empty(),
            // Memory runs out with a name removed and its file's blocks still to be freed.
            Errno::IO | Errno::UCLEAN | Errno::NOMEM => true,
            // A refusal comes before the first change.
            _ => false,
        };
        if !may_be_done {
            return;
        }
        for id in changed_by(request).into_iter().flatten() {
            self.notifier.attributes_changed(id);
        }
        doubts.extend(self.doubtful_names(request));
        if !doubts.is_empty() {
            self.doubts.note(request.header.unique, doubts);
        }
    }

    fn doubtful_names(&self, request: &Request<'_>) -> Vec<Doubt> {
        let names = names_of(request);
        if names.is_empty() || !self.agreement.expires_names && self.may_drop_directory(request, &names) {
            return Vec::new();
        }
        let is_removal = matches!(request.operation, Operation::Unlink { .. } | Operation::RmDir { .. });
        let doubt = |(parent, name): (u64, &[u8])| {
            let drops = !self.agreement.expires_names || is_removal && self.is_missing(parent, name);
            Doubt::Name { parent, name: name.to_vec(), drops }
        };
        names.into_iter().map(doubt).collect()
    }

    /// Whether the kernel, told to drop these names, might drop a directory that is still there.
    fn may_drop_directory(&self, request: &Request<'_>, names: &[(u64, &[u8])]) -> bool {
        match request.operation {
            Operation::RmDir { .. } => names.iter().any(|&(parent, name)| !self.is_missing(parent, name)),
            // One of the two is what was to be moved.
            Operation::Rename { .. } => {
                names.iter().any(|&(parent, name)| !self.is_missing(parent, name) && !self.is_file(parent, name))
            }
            // The others are about names of files, or about such as were missing.
            _ => false,
        }
    }

    /// Whether the volume says that there is no such name. The kernel has the directory locked until the request is answered.
    fn is_missing(&self, parent: u64, name: &[u8]) -> bool {
        let found = self.node(parent).and_then(|parent| self.kernel.lookup(parent, name).map_err(super::errno));
        matches!(found, Err(Errno::NOENT))
    }

    /// Whether the volume says that a name is that of a file, and not of a directory.
    fn is_file(&self, parent: u64, name: &[u8]) -> bool {
        let found = self.node(parent).and_then(|parent| self.kernel.lookup(parent, name).map_err(super::errno));
        found.is_ok_and(|stat| !stat.is_dir())
    }
}

/// The nodes whose attributes a request changes.
fn changed_by(request: &Request<'_>) -> [Option<u64>; 2] {
    let node = Some(request.header.nodeid);
    match &request.operation {
        Operation::Rename { new_parent, .. } => [node, Some(*new_parent)],
        Operation::Link { node: linked, .. } => [node, Some(*linked)],
        Operation::CopyFileRange { args, .. } => [Some(args.nodeid_out), None],
        Operation::SetAttr(_)
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. }
        | Operation::Fallocate(_)
        | Operation::Ioctl { .. } => [node, None],
        _ if names_of(request).is_empty() => [None; 2],
        _ => [node, None],
    }
}

/// The bytes that a request changes otherwise than by bringing them: the kernel drops what it has of them only after an answer that is no
/// error.
fn content_of(request: &Request<'_>) -> Option<Doubt> {
    let node = request.header.nodeid;
    match &request.operation {
        Operation::CopyFileRange { args, .. } => {
            Some(Doubt::Content { node: args.nodeid_out, offset: args.off_out, length: args.len.min(COPY_MAX) })
        }
        Operation::Fallocate(args) if args.mode & CLEARING != 0 => {
            Some(Doubt::Content { node, offset: args.offset, length: args.length })
        }
        Operation::SetAttr(args) if args.valid & fattr::SIZE != 0 => {
            Some(Doubt::Content { node, offset: args.size, length: 0 })
        }
        Operation::Open(args) if args.flags & OFlags::TRUNC.bits() != 0 => {
            Some(Doubt::Content { node, offset: 0, length: 0 })
        }
        _ => None,
    }
}

/// The names that a request changes, with the nodes of their directories.
fn names_of<'r>(request: &Request<'r>) -> Vec<(u64, &'r [u8])> {
    let parent = request.header.nodeid;
    match &request.operation {
        Operation::MkNod { name, .. }
        | Operation::MkDir { name, .. }
        | Operation::Symlink { name, .. }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. }
        | Operation::Unlink { name }
        | Operation::RmDir { name } => vec![(parent, name)],
        Operation::Rename { name, new_parent, new_name, .. } => vec![(parent, name), (*new_parent, new_name)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::raw::{has_notification, notification, serve};
    use super::*;
    use crate::negotiate::Agreement;
    use crate::options::Options;
    use crate::service::Service;
    use crate::wire::{InHeader, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, ROOT};
    use myriad_engine::Fs;
    use std::io::Read;

    /// A thread waited for the directory's lock, which the request has until it is answered: a server that was killed in between had a
    /// thread that could not end, so its descriptors were not closed, so the request was never answered.
    #[test]
    fn a_name_is_told_of_after_the_answer() {
        let (service, mut reader) = serve(Fs::in_memory(16 << 20).unwrap(), &Options::default(), Agreement::default());
        let header = InHeader { nodeid: ROOT, unique: 7, ..InHeader::default() };
        let request = Request { header, operation: Operation::Unlink { name: b"name" } };
        assert!(!service.waits_for_answers());
        service.doubt(&request, Errno::IO);
        assert_eq!(notification(&mut reader).0, NOTIFY_INVAL_INODE);
        assert!(service.waits_for_answers());
        service.answered(8);
        assert!(!service.doubts.queue.state.lock().has_thread && !has_notification(&reader), "it is not answered");
        service.answered(7);
        assert_eq!(notification(&mut reader).0, NOTIFY_INVAL_ENTRY);
        assert!(!service.waits_for_answers());
        // The thread ends with the mount: nothing is left that could write.
        drop(service);
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    /// A full cache stops the freeing of a file whose last name is gone by then. The kernel took that for a refusal, and went on showing the
    /// name.
    #[test]
    fn a_name_may_be_gone_when_there_is_no_memory() {
        let (service, mut reader) = serve(Fs::in_memory(16 << 20).unwrap(), &Options::default(), Agreement::default());
        let header = InHeader { nodeid: ROOT, unique: 7, ..InHeader::default() };
        service.doubt(&Request { header, operation: Operation::Unlink { name: b"name" } }, Errno::NOMEM);
        service.answered(7);
        assert_eq!(notification(&mut reader).0, NOTIFY_INVAL_INODE);
        assert_eq!(notification(&mut reader).0, NOTIFY_INVAL_ENTRY);
    }

    /// Each request that failed had its own thread, and there were as many as requests could be made before the lock was free.
    #[test]
    fn names_wait_in_a_queue_that_has_an_end() {
        let doubt = |number: usize| Doubt::Name { parent: 1, name: number.to_le_bytes().to_vec(), drops: false };
        let mut state = State::default();
        for number in [1, 2, 1, 1, 2] {
            state.add(doubt(number));
        }
        assert_eq!(state.waiting, [doubt(1), doubt(2)]);
        (0..2 * QUEUE_MAX).for_each(|number| state.add(doubt(number)));
        assert_eq!(state.waiting.len(), QUEUE_MAX);
        // Files are never forgotten: who reads them knows of no error.
        let content = |node, offset, length| Doubt::Content { node, offset, length };
        (0..10).for_each(|number| state.add(content(7 + number % 2, 4096 * number, 4096)));
        state.waiting.truncate(1);
        let queue = Queue { state: Mutex::new(state), one_more: Condvar::new() };
        assert_eq!(queue.next(), Some(doubt(1)));
        assert_eq!([queue.next(), queue.next()], [7, 8].map(|node| Some(content(node, 0, 0))));
        queue.state.lock().has_ended = true;
        assert_eq!(queue.next(), None, "the mount is gone: the rest is nobody's");
    }
}
