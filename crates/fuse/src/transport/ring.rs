//! FUSE over io_uring: a queue for each processor that the machine may have, and beside each queue threads that are pinned
//! to its processor. A request is handed over on the processor that its caller runs on, so no wake-up crosses processors;
//! committing an answer and fetching the next request is one system call.
//!
//! ```text
//! register -> idle -> request (the kernel filled `Headers` and payload) -> answered (we filled them) -> idle
//!                `-> disconnected: the mount is gone
//! ```
//!
//! FORGET and INTERRUPT, and whatever comes before all queues are registered, arrive on the classic descriptor. Nobody
//! waits for those, so it is only looked at now and then: a thread that slept in a read would be woken, across processors,
//! by every FORGET.
//!
//! An answer that the kernel cannot take is the end of its request, with an error, and nobody tells us: what such an answer has counted
//! (`volume/untaken.rs`) stays counted until the mount ends.
//!
//! Invariant, on which all `unsafe` here rests: the kernel reads and writes an entry's `Headers` and payload only between
//! the submission of a command for the entry and its completion; we touch them only outside that time, and they are freed
//! only then.

#![allow(unsafe_code)]

use super::device::{Device, Message};
use super::placement::{Placement, Sharing};
use super::{Transport, Worker};
use crate::error::ServeError;
use crate::negotiate::REQUEST_MAX;
use crate::request::decode_parts;
use crate::service::{Service, respond};
use crate::wire::{InHeader, OutHeader};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use parking_lot::{Condvar, Mutex};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Threads, with an entry each, beside one queue. Were there one, a request that waits for the device would keep all
/// others of its processor waiting. The kernel gives work to whoever became idle last, so the second costs nothing.
const THREADS_PER_QUEUE: usize = 2;

/// How often the classic descriptor is looked at while requests come, and at most when none do.
const LOOK_BUSY: Duration = Duration::from_millis(10);
const LOOK_IDLE: Duration = Duration::from_millis(160);

/// Room for answers to requests that bring a payload of their own, which lies where the answer will: an attribute's
/// value is the longest.
const SCRATCH_SIZE: usize = 64 << 10;

/// Says whether the kernel has FUSE over io_uring switched on.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

type Ring = IoUring<Entry128, cqueue::Entry>;

fn build_ring() -> io::Result<Ring> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(4)
}

/// `struct fuse_uring_req_header`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Headers {
    /// The request's header, or the answer's.
    in_out: [u8; 128],
    /// The structure of the request's kind.
    args: [u8; 128],
    flags: u64,
    commit_id: u64,
    payload_size: u32,
    padding: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Headers>() == 288);

/// `struct fuse_uring_cmd_req`, in a submission's command area.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
}

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The threads of all queues, each with its ring, before there is a mount for them. Once INIT has promised the kernel a
/// ring, all requests wait until each queue has an entry: a ring that could not be built then would hang whoever asks.
pub struct Queues {
    threads: Vec<Waiting>,
}

/// A thread that has its ring.
struct Waiting {
    begin: Sender<Work>,
    thread: JoinHandle<()>,
}

/// What such a thread needs of a mount.
struct Work {
    device: Arc<Device>,
    service: Arc<dyn Service>,
    shared: Arc<Shared>,
    placement: Arc<Placement>,
    seat: usize,
}

impl Queues {
    /// Or why there can be no ring.
    pub fn build() -> Result<Self, String> {
        let parameter = std::fs::read_to_string(SWITCH);
        if !parameter.is_ok_and(|value| matches!(value.trim(), "Y" | "1")) {
            return Err(format!("{SWITCH} is not Y (Linux 6.14 or later has it; write Y to it as root)"));
        }
        Self::start()
    }

    fn start() -> Result<Self, String> {
        let mut queues = Self { threads: Vec::new() };
        let (report, reports) = mpsc::channel();
        let count = queue_count();
        for queue in 0..count {
            for _ in 0..THREADS_PER_QUEUE {
                let (begin, work) = mpsc::channel();
                let report = report.clone();
                let thread = std::thread::Builder::new()
                    .name(format!("myriad-ring-{queue}"))
                    .spawn(move || run_thread(queue, report, &work))
                    .map_err(|error| format!("a thread of queue {queue} of {count}: {error}"))?;
                queues.threads.push(Waiting { begin, thread });
            }
        }
        drop(report);
        // Containers often forbid io_uring.
        reports.iter().collect::<io::Result<()>>().map_err(|error| format!("io_uring, for {count} queues: {error}"))?;
        Ok(queues)
    }
}

impl Drop for Queues {
    /// Those that wait end for want of work; their rings are gone afterwards.
    fn drop(&mut self) {
        let (begins, threads): (Vec<_>, Vec<_>) =
            self.threads.drain(..).map(|waiting| (waiting.begin, waiting.thread)).unzip();
        drop(begins);
        for thread in threads {
            // Its panics were answered as errors.
            let _ = thread.join();
        }
    }
}

/// A queue's thread: builds its ring and tells of it, then waits for a mount and serves it until that is gone.
fn run_thread(queue: u16, report: Sender<io::Result<()>>, work: &Receiver<Work>) {
    let mut set = CpuSet::new();
    set.set(usize::from(queue));
    // A processor that is only possible has no callers either.
    let _ = sched_setaffinity(None, &set);
    // A ring belongs to the thread that built it.
    let (ring, result) = match build_ring() {
        Ok(ring) => (Some(ring), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let _ = report.send(result);
    // Whoever waits for the reports waits until nobody can send one.
    drop(report);
    let (Some(ring), Ok(work)) = (ring, work.recv()) else { return };
    work.placement.take_seat(work.seat);
    let served = serve_queue(ring, queue, &work);
    work.placement.leave_seat(work.seat);
    let mut ended = work.shared.ended.lock();
    ended.count += 1;
    ended.failure = ended.failure.take().or(served.err());
    work.shared.one_ended.notify_all();
}

pub struct Uring {
    device: Device,
    queues: Queues,
    beside: bool,
}

impl Uring {
    /// `beside`: callers stay on their processors while they are served.
    pub fn new(device: Device, queues: Queues, beside: bool) -> Self {
        Self { device, queues, beside }
    }
}

/// What the queue threads and the one that looks at the classic descriptor share.
#[derive(Default)]
struct Shared {
    /// Requests came since the last look.
    busy: AtomicBool,
    ended: Mutex<Ended>,
    one_ended: Condvar,
}

/// Of the queue threads.
#[derive(Default)]
struct Ended {
    count: usize,
    /// Why the first of them ended that should not have.
    failure: Option<io::Error>,
}

impl Transport for Uring {
    fn run(self: Box<Self>, service: Arc<dyn Service>) -> Result<(), ServeError> {
        let Self { device, mut queues, beside } = *self;
        let device = Arc::new(device);
        let shared = Arc::new(Shared::default());
        device.set_nonblocking().map_err(ServeError::Device)?;
        let count = queues.threads.len();
        let placement = Placement::new(count, Sharing::Queues(THREADS_PER_QUEUE), beside);
        for (seat, waiting) in queues.threads.iter().enumerate() {
            let (device, service, shared) = (Arc::clone(&device), Arc::clone(&service), Arc::clone(&shared));
            // It is there: it ends only when it has worked.
            let _ = waiting.begin.send(Work { device, service, shared, placement: Arc::clone(&placement), seat });
        }
        let watch = placement.watch();
        let result = serve_rest(&device, &*service, &shared, count);
        drop(watch);
        if result.is_err() {
            // The others serve until the mount is gone, which our caller sees to.
            queues.threads.clear();
        }
        result.map_err(ServeError::Device)
    }

    fn name(&self) -> &'static str {
        "ring"
    }
}

/// A queue for each possible processor, as the kernel counts them.
fn queue_count() -> u16 {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = list.trim().rsplit([',', '-']).next().and_then(|number| number.parse::<u16>().ok());
    last.map_or(1, |last| last.saturating_add(1))
}

/// Answers what comes the classic way, until the mount is gone.
fn serve_rest(device: &Device, service: &dyn Service, shared: &Shared, threads: usize) -> io::Result<()> {
    let mut worker = Worker::new();
    let mut pause = Duration::from_millis(1);
    loop {
        let mut found = false;
        loop {
            match worker.serve_one(device, service)? {
                Message::Bytes(_) => found = true,
                Message::Nothing => break,
                Message::Gone => return Ok(()),
            }
        }
        let busy = shared.busy.swap(false, Ordering::Relaxed);
        pause = match (busy, found) {
            (true, _) => LOOK_BUSY,
            // Requests that come this way: the queues do not all have their entries yet.
            (false, true) => Duration::from_micros(50),
            (false, false) => (pause * 2).min(LOOK_IDLE),
        };
        let mut ended = shared.ended.lock();
        if let Some(failure) = ended.failure.take() {
            // Nobody looks at its queue any more. Unless all is over anyway.
            let is_gone = matches!(worker.serve_one(device, service)?, Message::Gone);
            return if is_gone { Ok(()) } else { Err(failure) };
        }
        if ended.count == threads {
            // The mount is gone, and this descriptor will say so.
            drop(ended);
            device.set_blocking()?;
            while !matches!(worker.serve_one(device, service)?, Message::Gone) {}
            return Ok(());
        }
        shared.one_ended.wait_for(&mut ended, pause);
    }
}

/// Where one request at a time lies.
struct Entry {
    headers: Box<Headers>,
    payload: Vec<u8>,
    /// Points to the two above; the kernel reads it when the entry is registered.
    parts: Box<[libc::iovec; 2]>,
}

impl Entry {
    fn new() -> Self {
        let mut headers: Box<Headers> = Box::new(Headers::new_zeroed());
        let mut payload = vec![0u8; REQUEST_MAX];
        let parts = Box::new([
            libc::iovec { iov_base: (&raw mut *headers).cast(), iov_len: size_of::<Headers>() },
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
        ]);
        Self { headers, payload, parts }
    }

    fn command(&self, device: &Device, queue: u16, operation: u32) -> Entry128 {
        let command = Command { flags: 0, commit_id: self.headers.commit_id, queue, padding: [0; 6] };
        let mut area = [0; 80];
        area[..size_of::<Command>()].copy_from_slice(command.as_bytes());
        let fd = types::Fd(device.as_fd().as_raw_fd());
        let mut entry = opcode::UringCmd80::new(fd, operation).cmd(area).addr(Some(self.parts.as_ptr() as u64)).build();
        // The crate has no field for how many parts `addr` points to; `len` of a submission is at byte 24 (io_uring.h).
        // SAFETY: `Entry128` is the kernel's 128 bytes of plain data (`repr(C)`), of which these four are `len`.
        unsafe { (&raw mut entry).cast::<u8>().add(24).cast::<u32>().write(2) };
        entry
    }

    /// Answers the request that is here; which one it is.
    fn answer(&mut self, work: &Work, scratch: &mut [u8]) -> Option<u64> {
        let Work { device, service, placement, seat, .. } = work;
        let Ok((header, _)) = InHeader::read_from_prefix(&self.headers.in_out) else { return None };
        placement.begin(*seat, header.pid);
        let mut answered = self.ask(header, &**service, scratch);
        let found_none = answered.is_some_and(|(out, _)| out.error == -Errno::NOSPC.raw_os_error());
        if found_none && service.may_find_space() {
            // Files that are gone may be all that is in the way, and the kernel's word of it not read yet.
            let mut worker = Worker::new();
            while matches!(worker.serve_one(device, &**service), Ok(Message::Bytes(_))) {}
            answered = self.ask(header, &**service, scratch);
        }
        // Requests without an answer do not come through the ring; should one, it is told so.
        let refused = || (OutHeader { len: 16, error: -Errno::NOSYS.raw_os_error(), unique: header.unique }, 0);
        let (out, len) = answered.unwrap_or_else(refused);
        self.headers.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        self.headers.payload_size = len as u32;
        placement.end(*seat);
        Some(header.unique)
    }

    /// What the service says; its content lies in the payload then.
    fn ask(&mut self, header: InHeader, service: &dyn Service, scratch: &mut [u8]) -> Option<(OutHeader, usize)> {
        let size = (self.headers.payload_size as usize).min(self.payload.len());
        if size == 0 {
            // Nothing in the way: content goes straight to where the kernel fetches it.
            respond(service, decode_parts(header, &self.headers.args, &[]), &mut self.payload)
        } else {
            let request = decode_parts(header, &self.headers.args, &self.payload[..size]);
            let answered = respond(service, request, scratch);
            if let Some((_, len)) = answered {
                self.payload[..len].copy_from_slice(&scratch[..len]);
            }
            answered
        }
    }
}

/// Answers the requests of a queue, until the mount is gone.
fn serve_queue(mut ring: Ring, queue: u16, work: &Work) -> io::Result<()> {
    let mut scratch = vec![0; SCRATCH_SIZE];
    // Freed below, or never.
    let mut entry = std::mem::ManuallyDrop::new(Entry::new());
    let mut operation = REGISTER;
    let mut answered = None;
    let result = loop {
        let submission = entry.command(&work.device, queue, operation);
        // SAFETY: what the submission points to lives in `entry`, which is not touched until its completion has come,
        // and not freed if that never comes.
        if unsafe { ring.submission().push(&submission) }.is_err() {
            break Err(io::Error::other("a ring of several entries has no room for one"));
        }
        if let Some(unique) = answered.filter(|_| work.service.waits_for_answers()) {
            // The kernel takes the answer with this call, and does not wait for the next request.
            submit(&mut ring)?;
            work.service.answered(unique);
        }
        match wait(&mut ring) {
            Ok(0) => {}
            // The mount is gone. The entry is ours again in any case.
            Ok(code) if matches!(-code, libc::ENOTCONN | libc::ECONNABORTED) => break Ok(()),
            Ok(code) => break Err(io::Error::from_raw_os_error(-code)),
            // Whether the kernel still has the entry is unknown: leave it to it.
            Err(error) => return Err(error),
        }
        work.shared.busy.store(true, Ordering::Relaxed);
        answered = entry.answer(work, &mut scratch);
        operation = COMMIT_AND_FETCH;
    };
    // Before the memory: dropping the ring ends what it may still have in flight.
    drop(ring);
    drop(std::mem::ManuallyDrop::into_inner(entry));
    result
}

/// Submits, and waits for nothing.
fn submit(ring: &mut Ring) -> io::Result<()> {
    loop {
        match ring.submit() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}

/// Submits, and waits for the one completion.
fn wait(ring: &mut Ring) -> io::Result<i32> {
    loop {
        if let Some(completion) = ring.completion().next() {
            return Ok(completion.result());
        }
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => drop(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::request::Request;
    use crate::stats::Recorder;
    use rustix::fd::OwnedFd;

    struct Nobody(Recorder);

    impl Service for Nobody {
        fn answer(&self, _: &Request<'_>, _: &mut [u8]) -> Answer {
            Answer::Nothing
        }

        fn panicked(&self) {}

        fn recorder(&self) -> &Recorder {
            &self.0
        }
    }

    /// A queue that the kernel did not take was passed over: all requests of the mount waited for it, and for ever.
    #[test]
    fn a_queue_that_is_refused_is_an_error() {
        let queues = match Queues::start() {
            Ok(queues) => queues,
            Err(reason) => return println!("skipped: {reason}"),
        };
        // No mount, so every command is refused; and nothing comes the classic way.
        let (read, _write) = io::pipe().unwrap();
        let uring = Uring::new(Device::from(OwnedFd::from(read)), queues, false);
        let error = Box::new(uring).run(Arc::new(Nobody(Recorder::default()))).unwrap_err();
        assert!(
            matches!(&error, ServeError::Device(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP)),
            "{error}"
        );
    }
}
