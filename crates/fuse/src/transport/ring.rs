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
//! Invariant, on which all `unsafe` here rests: the kernel reads and writes an entry's `Headers` and payload only between
//! the submission of a command for the entry and its completion; we touch them only outside that time, and they are freed
//! only then.

#![allow(unsafe_code)]

use super::Transport;
use super::classic::Worker;
use super::device::{Device, Message};
use super::placement::{Placement, Sharing};
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

/// Whether the kernel has FUSE over io_uring switched on.
pub fn is_offered() -> bool {
    let parameter = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    parameter.is_ok_and(|value| matches!(value.trim(), "Y" | "1"))
}

/// Why there can be no ring, if so.
pub fn obstacle() -> Option<String> {
    if !is_offered() {
        let switch = "/sys/module/fuse/parameters/enable_uring";
        return Some(format!("{switch} is not Y (Linux 6.14 or later has it; write Y to it as root)"));
    }
    // Containers often forbid io_uring.
    build_ring().err().map(|error| format!("io_uring: {error}"))
}

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

pub struct Uring {
    device: Device,
    beside: bool,
}

impl Uring {
    /// `beside`: callers stay on their processors while they are served.
    pub fn new(device: Device, beside: bool) -> Self {
        Self { device, beside }
    }
}

/// What the queue threads and the one that looks at the classic descriptor share.
#[derive(Default)]
struct Shared {
    /// Requests came since the last look.
    busy: AtomicBool,
    /// How many queue threads have ended.
    ended: Mutex<usize>,
    one_ended: Condvar,
}

impl Transport for Uring {
    fn run(self: Box<Self>, service: Arc<dyn Service>) -> Result<(), ServeError> {
        let device = Arc::new(self.device);
        let shared = Arc::new(Shared::default());
        device.set_nonblocking().map_err(ServeError::Device)?;
        let queues = queue_count();
        let placement =
            Placement::new(usize::from(queues) * THREADS_PER_QUEUE, Sharing::Queues(THREADS_PER_QUEUE), self.beside);
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for queue in 0..queues {
            for _ in 0..THREADS_PER_QUEUE {
                let (device, shared, service) = (Arc::clone(&device), Arc::clone(&shared), Arc::clone(&service));
                let seat = Seat { placement: Arc::clone(&placement), number: threads.len() };
                let thread = std::thread::Builder::new().name(format!("myriad-ring-{queue}")).spawn(move || {
                    // A queue that fails is not fatal: until all are there, requests come the classic way.
                    let _ = serve_queue(&device, &*service, queue, &shared, &seat);
                    seat.placement.leave_seat(seat.number);
                    *shared.ended.lock() += 1;
                    shared.one_ended.notify_all();
                });
                threads.push(thread.map_err(ServeError::Device)?);
            }
        }
        let watch = placement.watch();
        let result = serve_rest(&device, &*service, &shared, threads.len());
        drop(watch);
        for thread in threads {
            // Its panics were answered as errors.
            let _ = thread.join();
        }
        result.map_err(ServeError::Device)
    }

    fn name(&self) -> &'static str {
        "ring"
    }
}

/// A thread's place among those that are watched.
struct Seat {
    placement: Arc<Placement>,
    number: usize,
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
            // Requests that come this way: the queues are not all there yet, or will never be.
            (false, true) => Duration::from_micros(50),
            (false, false) => (pause * 2).min(LOOK_IDLE),
        };
        let mut ended = shared.ended.lock();
        if *ended == threads {
            // The mount is gone, or no queue could be had: either way only this descriptor is left.
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

    /// Answers the request that is here.
    fn answer(&mut self, device: &Device, service: &dyn Service, scratch: &mut [u8], seat: &Seat) {
        let Ok((header, _)) = InHeader::read_from_prefix(&self.headers.in_out) else { return };
        seat.placement.begin(seat.number, header.pid);
        let mut answered = self.ask(header, service, scratch);
        if answered.is_some_and(|(out, _)| out.error == -Errno::NOSPC.raw_os_error()) {
            // Files that are gone may be all that is in the way, and the kernel's word of it not read yet.
            let mut worker = Worker::new();
            while matches!(worker.serve_one(device, service), Ok(Message::Bytes(_))) {}
            answered = self.ask(header, service, scratch);
        }
        // Requests without an answer do not come through the ring; should one, it is told so.
        let refused = || (OutHeader { len: 16, error: -Errno::NOSYS.raw_os_error(), unique: header.unique }, 0);
        let (out, len) = answered.unwrap_or_else(refused);
        self.headers.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        self.headers.payload_size = len as u32;
        seat.placement.end(seat.number);
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
fn serve_queue(device: &Device, service: &dyn Service, queue: u16, shared: &Shared, seat: &Seat) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::from(queue));
    // A processor that is only possible has no callers either.
    let _ = sched_setaffinity(None, &set);
    seat.placement.take_seat(seat.number);
    let mut ring = build_ring()?;
    let mut scratch = vec![0; SCRATCH_SIZE];
    // Freed below, or never.
    let mut entry = std::mem::ManuallyDrop::new(Entry::new());
    let mut operation = REGISTER;
    let result = loop {
        let submission = entry.command(device, queue, operation);
        // SAFETY: what the submission points to lives in `entry`, which is not touched until its completion has come,
        // and not freed if that never comes.
        if unsafe { ring.submission().push(&submission) }.is_err() {
            break Err(io::Error::other("a ring of several entries has no room for one"));
        }
        match wait(&mut ring) {
            Ok(0) => {}
            // -ENOTCONN: the mount is gone. The entry is ours again in any case.
            Ok(code) => break if code == -libc::ENOTCONN { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) },
            // Whether the kernel still has the entry is unknown: leave it to it.
            Err(error) => return Err(error),
        }
        shared.busy.store(true, Ordering::Relaxed);
        entry.answer(device, service, &mut scratch, seat);
        operation = COMMIT_AND_FETCH;
    };
    // Before the memory: dropping the ring ends what it may still have in flight.
    drop(ring);
    drop(std::mem::ManuallyDrop::into_inner(entry));
    result
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
