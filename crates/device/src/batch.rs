//! Transfers: the pieces in which requests travel to the host, and what to do with each answer.
//!
//! ```text
//! request --split at 1 MiB--> transfer --start--> (bounce?) --attempt--> answer --complete--> done
//!                                           ^                                 |
//!                                           `- short, EINTR, or direct I/O refused
//! ```
//!
//! The engines differ only in who makes the attempts: the caller (`run`), `pool`, or the kernel (`uring`).

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use rustix::fs::{Advice, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::{AlignedBuf, BufferPool, ReadRequest, WriteRequest};

/// Longest transfer, in bytes. Long enough to cost the disk nothing, short enough that one request spreads over the
/// queue and that bounce buffers stay small.
pub(crate) const TRANSFER_SIZE_MAX: usize = 1 << 20;

/// Most parts of one transfer: the kernel's UIO_MAXIOV.
const TRANSFER_PARTS_MAX: usize = 1024;

/// Bounce buffers kept for the next time, at most 1 MiB each.
const IDLE_BOUNCES_MAX: usize = 8;

/// The open file and the rules its host has for I/O. All sizes and alignments are bytes.
pub(crate) struct Target {
    pub file: File,
    /// Where the device begins in the file.
    pub start: u64,
    /// Of offsets and lengths. A power of two.
    alignment: AtomicUsize,
    /// Of buffer addresses, under direct I/O.
    pub memory_alignment: usize,
    /// Whether the file is in direct mode now.
    direct: AtomicBool,
    bounces: BufferPool,
}

impl Target {
    pub fn new(file: File, start: u64, alignment: usize, memory_alignment: usize, direct: bool) -> Self {
        let bounces = BufferPool::new(IDLE_BOUNCES_MAX, TRANSFER_SIZE_MAX);
        let (alignment, direct) = (AtomicUsize::new(alignment), AtomicBool::new(direct));
        Self { file, start, alignment, memory_alignment, direct, bounces }
    }

    pub fn alignment(&self) -> usize {
        self.alignment.load(Relaxed)
    }

    pub fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }

    /// Lets the host's cache go, behind a flush, so that what is read from now on is what the disk has: of what an earlier
    /// flush could not write, the cache may say that it was written.
    pub fn forget_cached(&self) -> io::Result<()> {
        self.file.sync_data()?;
        // To the end. A host that keeps it all the same is no reason to fail.
        let _ = rustix::fs::fadvise(&self.file, self.start, None, Advice::DontNeed);
        Ok(())
    }

    /// Some hosts accept O_DIRECT and refuse its I/O (encrypted files, some network file systems). From there on the
    /// file is an ordinary one: slower, and just as correct.
    fn leave_direct(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
        self.direct.store(false, Relaxed);
        Ok(())
    }

    /// Makes the file an ordinary one, which takes requests of any size, before the first of those that direct mode does not take. `writes`: see
    /// [`Self::forget_cached`]; whoever asks again after that has failed is told so again.
    pub fn take_any_size(&self, writes: bool) -> io::Result<()> {
        self.leave_direct()?;
        if writes {
            self.forget_cached()?;
        }
        self.alignment.store(1, Relaxed);
        Ok(())
    }

    fn wants_bounce(&self, part: &[u8]) -> bool {
        part.as_ptr().addr() % self.memory_alignment != 0 || part.len() % self.alignment() != 0
    }
}

enum Data<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    /// Parts from the second field on are still to be written.
    Gather(Vec<IoSlice<'a>>, usize),
}

/// What the next attempt hands to the kernel. The pointers are good until the transfer is next touched or dropped.
pub(crate) enum Attempt {
    Read { pointer: *mut u8, len: usize },
    Write { pointer: *const u8, len: usize },
    Gather { parts: *const IoSlice<'static>, count: usize },
}

/// At most [`TRANSFER_SIZE_MAX`] bytes between memory and one place in the file, unless made by `whole_*`.
pub(crate) struct Transfer<'a> {
    data: Data<'a>,
    /// Where the transfer began, in the file.
    position: u64,
    done: usize,
    len: usize,
    started: bool,
    /// Whether the attempt is under direct I/O's rules.
    direct: bool,
    durable: bool,
    bounce: Option<AlignedBuf>,
}

impl<'a> Transfer<'a> {
    fn new(data: Data<'a>, position: u64, len: usize) -> Self {
        Self { data, position, done: 0, len, started: false, direct: false, durable: false, bounce: None }
    }

    /// Makes the write durable in itself, as O_DSYNC would.
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    /// Where the remaining bytes go, in the file.
    pub fn position(&self) -> u64 {
        self.position + self.done as u64
    }

    /// Settles how the transfer is made: directly, through the host's cache, or by way of a bounce buffer.
    fn start(&mut self, target: &Target) {
        if self.started {
            return;
        }
        self.started = true;
        self.direct = target.is_direct();
        let wanted = match &self.data {
            Data::Read(buf) => self.direct && target.wants_bounce(buf),
            Data::Write(buf) => self.direct && target.wants_bounce(buf),
            Data::Gather(parts, _) => {
                parts.len() > TRANSFER_PARTS_MAX || self.direct && parts.iter().any(|part| target.wants_bounce(part))
            }
        };
        if !wanted {
            return;
        }
        let mut bounce = target.bounces.take(self.len);
        match &self.data {
            Data::Read(_) => {}
            Data::Write(buf) => bounce.copy_from_slice(buf),
            Data::Gather(parts, _) => {
                let mut rest = &mut bounce[..];
                for part in parts {
                    let (head, tail) = rest.split_at_mut(part.len());
                    head.copy_from_slice(part);
                    rest = tail;
                }
            }
        }
        self.bounce = Some(bounce);
    }

    /// What to ask of the kernel next.
    pub fn attempt(&mut self, target: &Target) -> Attempt {
        self.start(target);
        let done = self.done;
        match (&mut self.data, &mut self.bounce) {
            (Data::Read(buf), None) => {
                let rest = &mut buf[done..];
                Attempt::Read { pointer: rest.as_mut_ptr(), len: rest.len() }
            }
            (Data::Read(_), Some(bounce)) => {
                let rest = &mut bounce[done..];
                Attempt::Read { pointer: rest.as_mut_ptr(), len: rest.len() }
            }
            (Data::Write(buf), None) => {
                let rest = &buf[done..];
                Attempt::Write { pointer: rest.as_ptr(), len: rest.len() }
            }
            (_, Some(bounce)) => {
                let rest = &bounce[done..];
                Attempt::Write { pointer: rest.as_ptr(), len: rest.len() }
            }
            (Data::Gather(parts, first), None) => {
                let rest = &parts[*first..];
                Attempt::Gather { parts: rest.as_ptr().cast(), count: rest.len() }
            }
        }
    }

    /// Makes one attempt in the calling thread.
    fn attempt_here(&mut self, target: &Target) -> io::Result<usize> {
        self.start(target);
        let (file, position, done) = (&target.file, self.position(), self.done);
        let write = |parts: &[IoSlice<'_>]| {
            if self.durable {
                return rustix::io::pwritev2(file, parts, position, ReadWriteFlags::DSYNC);
            }
            match parts {
                [part] => rustix::io::pwrite(file, part, position),
                _ => rustix::io::pwritev(file, parts, position),
            }
        };
        let moved = match (&mut self.data, &mut self.bounce) {
            (Data::Read(buf), None) => rustix::io::pread(file, &mut buf[done..], position)?,
            (Data::Read(_), Some(bounce)) => rustix::io::pread(file, &mut bounce[done..], position)?,
            (Data::Write(buf), None) => write(&[IoSlice::new(&buf[done..])])?,
            (_, Some(bounce)) => write(&[IoSlice::new(&bounce[done..])])?,
            (Data::Gather(parts, first), None) => write(&parts[*first..])?,
        };
        Ok(moved)
    }

    /// Takes the kernel's answer to an attempt. True when nothing is left to do; false asks for another attempt.
    pub fn complete(&mut self, target: &Target, answer: io::Result<usize>) -> io::Result<bool> {
        let moved = match answer {
            Ok(moved) => moved.min(self.len - self.done),
            Err(error) => return self.retry(target, error).map(|()| false),
        };
        // Direct I/O goes on only from a boundary; the bytes past it are moved again.
        let rest = self.len - self.done - moved;
        let moved = if self.direct && rest > 0 { moved & !(target.alignment() - 1) } else { moved };
        if moved == 0 && self.len > 0 {
            return Err(match self.data {
                Data::Read(_) => io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter"),
                _ => io::Error::new(io::ErrorKind::WriteZero, "the host wrote nothing"),
            });
        }
        if let (Data::Gather(parts, first), None) = (&mut self.data, &self.bounce) {
            let mut rest = &mut parts[*first..];
            IoSlice::advance_slices(&mut rest, moved);
            let rest_count = rest.len();
            *first = parts.len() - rest_count;
        }
        self.done += moved;
        if self.done < self.len {
            return Ok(false);
        }
        if let Some(bounce) = self.bounce.take() {
            if let Data::Read(buf) = &mut self.data {
                buf.copy_from_slice(&bounce);
            }
            target.bounces.put(bounce);
        }
        Ok(true)
    }

    /// Decides whether a failed attempt is worth another one.
    fn retry(&mut self, target: &Target, error: io::Error) -> io::Result<()> {
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => Ok(()),
            Some(Errno::INVAL) if self.direct => {
                self.direct = false;
                target.leave_direct()
            }
            _ => Err(error),
        }
    }

    /// Makes the whole transfer in the calling thread.
    pub fn run(&mut self, target: &Target) -> io::Result<()> {
        loop {
            let answer = self.attempt_here(target);
            if self.complete(target, answer)? {
                return Ok(());
            }
        }
    }
}

/// Reads in the calling thread; `offset` is the device's, in bytes.
pub(crate) fn read_whole(target: &Target, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let size_max = whole_size_max(target, buf);
    let mut position = target.start + offset;
    for part in buf.chunks_mut(size_max) {
        let len = part.len();
        Transfer::new(Data::Read(part), position, len).run(target)?;
        position += len as u64;
    }
    Ok(())
}

/// Writes in the calling thread; `durable` makes each piece durable as O_DSYNC would.
pub(crate) fn write_whole(target: &Target, offset: u64, buf: &[u8], durable: bool) -> io::Result<()> {
    let size_max = whole_size_max(target, buf);
    let mut position = target.start + offset;
    for part in buf.chunks(size_max) {
        let transfer = Transfer::new(Data::Write(part), position, part.len());
        let mut transfer = if durable { transfer.durable() } else { transfer };
        transfer.run(target)?;
        position += part.len() as u64;
    }
    Ok(())
}

/// One system call for it all, unless it has to bounce.
fn whole_size_max(target: &Target, buf: &[u8]) -> usize {
    if target.is_direct() && target.wants_bounce(buf) { TRANSFER_SIZE_MAX } else { usize::MAX }
}

/// The transfers of a batch of reads. Empty requests need none.
pub(crate) fn split_reads<'a>(target: &Target, reads: &'a mut [ReadRequest<'_>]) -> Vec<Transfer<'a>> {
    let mut transfers = Vec::with_capacity(reads.len());
    for request in reads {
        let mut position = target.start + request.offset;
        for part in request.buf.chunks_mut(TRANSFER_SIZE_MAX) {
            let len = part.len();
            transfers.push(Transfer::new(Data::Read(part), position, len));
            position += len as u64;
        }
    }
    transfers
}

/// The transfers of a batch of writes. Each ends on an alignment boundary, whatever the parts' lengths.
pub(crate) fn split_writes<'a>(target: &Target, writes: &[WriteRequest<'a>]) -> Vec<Transfer<'a>> {
    let mut transfers = Vec::with_capacity(writes.len());
    for request in writes {
        let mut position = target.start + request.offset;
        let mut parts = request.parts.iter().copied().filter(|part| !part.is_empty());
        let mut current: &[u8] = parts.next().unwrap_or_default();
        while !current.is_empty() {
            let mut gathered = Vec::new();
            let mut len = 0;
            while !current.is_empty() && len < TRANSFER_SIZE_MAX {
                let (head, tail) = current.split_at(current.len().min(TRANSFER_SIZE_MAX - len));
                gathered.push(head);
                len += head.len();
                current = if tail.is_empty() { parts.next().unwrap_or_default() } else { tail };
            }
            let data = match gathered[..] {
                [single] => Data::Write(single),
                _ => Data::Gather(gathered.into_iter().map(IoSlice::new).collect(), 0),
            };
            transfers.push(Transfer::new(data, position, len));
            position += len as u64;
        }
    }
    transfers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No I/O is done: the tests play the kernel.
    fn target(direct: bool) -> Target {
        Target::new(tempfile::tempfile().unwrap(), 0, 512, 1, direct)
    }

    fn remaining(transfer: &mut Transfer<'_>, target: &Target) -> (u64, usize) {
        let len = match transfer.attempt(target) {
            Attempt::Read { len, .. } | Attempt::Write { len, .. } => len,
            Attempt::Gather { .. } => match &transfer.data {
                Data::Gather(parts, first) => parts[*first..].iter().map(|part| part.len()).sum(),
                _ => unreachable!(),
            },
        };
        (transfer.position(), len)
    }

    #[test]
    fn short_answers_go_on_where_they_ended() {
        let bytes = AlignedBuf::from_slice(&[1; 8192]);
        // Under direct I/O from the last sector boundary, else from the byte.
        for (direct, resumed) in [(true, 4608), (false, 5000)] {
            let target = target(direct);
            let parts: [&[u8]; 3] = [&bytes[..1024], &bytes[1024..4096], &bytes[4096..]];
            let whole: [&[u8]; 1] = [&bytes];
            for parts in [&parts[..], &whole[..]] {
                let mut transfers = split_writes(&target, &[WriteRequest { offset: 512, parts }]);
                let [transfer] = &mut transfers[..] else { panic!() };
                assert_eq!(remaining(transfer, &target), (512, 8192));
                assert!(!transfer.complete(&target, Ok(5000)).unwrap());
                assert_eq!(remaining(transfer, &target), (512 + resumed, 8192 - resumed as usize));
                assert!(!transfer.complete(&target, Err(Errno::INTR.into())).unwrap());
                assert_eq!(remaining(transfer, &target), (512 + resumed, 8192 - resumed as usize));
                assert!(transfer.complete(&target, Ok(8192 - resumed as usize)).unwrap());
            }
        }
    }

    #[test]
    fn no_progress_is_an_error() {
        let target = target(true);
        let mut buf = AlignedBuf::zeroed(4096);
        let mut reads = [ReadRequest { offset: 0, buf: &mut buf }];
        let mut transfers = split_reads(&target, &mut reads);
        transfers[0].attempt(&target);
        let error = transfers[0].complete(&target, Ok(511)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let error = transfers[0].complete(&target, Err(Errno::IO.into())).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
    }

    #[test]
    fn a_bounced_read_reaches_its_buffer_when_whole() {
        let mut target = target(true);
        target.memory_alignment = 512;
        let mut buf = AlignedBuf::zeroed(1025);
        let mut reads = [ReadRequest { offset: 0, buf: &mut buf[1..] }];
        let mut transfers = split_reads(&target, &mut reads);
        transfers[0].attempt(&target);
        transfers[0].bounce.as_mut().unwrap().fill(7);
        assert!(!transfers[0].complete(&target, Ok(512)).unwrap());
        assert!(transfers[0].complete(&target, Ok(512)).unwrap());
        drop(transfers);
        assert_eq!((buf[0], &buf[1..]), (0, &[7; 1024][..]));
    }
}
