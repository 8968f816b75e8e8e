//! Batches through io_uring: many transfers in flight from one thread.
//!
//! ```text
//! transfer: waiting -> queued (in the ring) -> in the kernel -> completed -+-> done
//!              ^                                                           |
//!              `---------------------- short, interrupted ----------------'
//! ```
//!
//! Invariants
//!   1. A batch owns its ring while it runs, and leaves it empty: nothing queued, nothing in the kernel.
//!   2. A transfer that is queued or in the kernel is not touched; its memory is not freed, moved or read.
//!   3. `run_on` is not left while a transfer is in the kernel, whatever fails; if it panicked there, it would abort.
//!
//! Locking: the list of idle rings is locked only to take one and to give it back.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::batch::{Attempt, Target, Transfer};

/// Transfers in flight at once. NVMe drives and virtual disks gain nothing past 32 to 64; at 1 MiB a transfer, 64
/// keep 64 MiB of a caller's memory busy.
const QUEUE_DEPTH: usize = 64;

/// Completions to wait for while there is more to submit: few enough that the queue stays three quarters full, many
/// enough that a wakeup is not paid for each.
const REFILL_COUNT: usize = QUEUE_DEPTH / 4;

/// Idle rings kept; a ring costs 10 KiB of kernel memory and a descriptor.
const IDLE_RINGS_MAX: usize = 8;

/// Rings that are made when a batch finds none idle.
pub(crate) struct Rings {
    idle: Mutex<Vec<IoUring>>,
}

impl Rings {
    /// Fails where the host refuses io_uring (EPERM, ENOSYS) or is too old for its plain reads and writes.
    pub fn new() -> io::Result<Self> {
        let ring = IoUring::new(QUEUE_DEPTH as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Writev::CODE];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { idle: Mutex::new(vec![ring]) })
    }

    /// Makes all transfers; answers with the first error after those in flight have ended. `None` means that no ring
    /// could be had, and nothing was done.
    pub fn run(&self, target: &Target, transfers: &mut [Transfer<'_>]) -> Option<io::Result<()>> {
        let idle = self.idle.lock().pop();
        let mut ring = match idle {
            Some(ring) => ring,
            None => IoUring::new(QUEUE_DEPTH as u32).ok()?,
        };
        let outcome = run_on(&mut ring, target, transfers);
        if let Ok(result) = outcome {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_RINGS_MAX {
                idle.push(ring);
            }
            return Some(result);
        }
        // The ring itself failed and may hold queued entries (not in the kernel: invariant 3). It goes unused.
        drop(ring);
        Some(outcome.and_then(|result| result))
    }
}

/// Counts the transfers that the ring still refers to.
struct InFlight(usize);

impl Drop for InFlight {
    fn drop(&mut self) {
        // Only a panic gets here: the kernel would go on writing to memory that is being freed.
        if self.0 != 0 {
            std::process::abort();
        }
    }
}

/// The outer error is the ring's own, the inner one a transfer's.
fn run_on(ring: &mut IoUring, target: &Target, transfers: &mut [Transfer<'_>]) -> io::Result<io::Result<()>> {
    let mut in_flight = InFlight(0);
    let mut fresh = 0..transfers.len();
    let mut again: Vec<usize> = Vec::new();
    let mut result = Ok(());
    loop {
        while in_flight.0 < QUEUE_DEPTH && result.is_ok() {
            let Some(index) = again.pop().or_else(|| fresh.next()) else { break };
            let entry = entry(target, &mut transfers[index]).user_data(index as u64);
            // SAFETY: the entry points into a transfer and the buffers it borrows. Both outlive this function's
            // frame, stay where they are, and are left alone until the completion arrives (invariants 2 and 3).
            if unsafe { ring.submission().push(&entry) }.is_err() {
                again.push(index);
                break;
            }
            in_flight.0 += 1;
        }
        if in_flight.0 == 0 {
            // Nothing of this batch is left to the next one.
            debug_assert!(ring.submission().is_empty() && ring.completion().is_empty());
            return Ok(result);
        }
        let all_submitted = fresh.is_empty() && again.is_empty() || result.is_err();
        let wanted = if all_submitted { in_flight.0 } else { in_flight.0.min(REFILL_COUNT) };
        match ring.submit_and_wait(wanted) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                // Short of memory, or of room for completions: collecting some helps.
                Some(Errno::AGAIN | Errno::BUSY) => std::thread::yield_now(),
                _ => {
                    drain(ring, in_flight);
                    return Err(error);
                }
            },
        }
        for completion in ring.completion() {
            in_flight.0 -= 1;
            let index = completion.user_data() as usize;
            let transfer = &mut transfers[index];
            let answer = match completion.result() {
                // The kernel would not wait for it; this thread can.
                again if again == -Errno::AGAIN.raw_os_error() => transfer.run(target).map(|()| true),
                code if code < 0 => transfer.complete(target, Err(io::Error::from_raw_os_error(-code))),
                moved => transfer.complete(target, Ok(moved as usize)),
            };
            match answer {
                Ok(true) => {}
                Ok(false) => again.push(index),
                Err(error) => result = result.and(Err(error)),
            }
        }
    }
}

/// Waits until the kernel holds none of the batch's memory, with a ring that can no longer be waited on.
fn drain(ring: &mut IoUring, mut in_flight: InFlight) {
    let mut in_kernel = in_flight.0 - ring.submission().len();
    while in_kernel > 0 {
        // Completions are posted whenever this thread returns from a system call, as from this one.
        std::thread::sleep(Duration::from_micros(100));
        in_kernel -= ring.completion().count();
    }
    in_flight.0 = 0;
}

fn entry(target: &Target, transfer: &mut Transfer<'_>) -> squeue::Entry {
    let file = types::Fd(target.file.as_raw_fd());
    let position = transfer.position();
    // Transfers are at most 1 MiB and 1024 parts, so the lengths fit.
    match transfer.attempt(target) {
        Attempt::Read { pointer, len } => opcode::Read::new(file, pointer, len as u32).offset(position).build(),
        Attempt::Write { pointer, len } => opcode::Write::new(file, pointer, len as u32).offset(position).build(),
        // `IoSlice` is documented to have the layout of `iovec`.
        Attempt::Gather { parts, count } => {
            opcode::Writev::new(file, parts.cast(), count as u32).offset(position).build()
        }
    }
}
