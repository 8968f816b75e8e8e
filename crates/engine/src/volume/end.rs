//! When a volume takes no more changes: it was shut down by an error in the middle of a change or in a checkpoint, or it was closed.

use super::Volume;
use crate::cache::{Closed, ProcessMark};
use crate::error::{Error, Result};
use crate::locks::{Mutex, Rank};
use std::sync::atomic::{AtomicU8, Ordering};

/// Why a volume was shut down when something of it did not come to its end.
pub(crate) const PANICKED: &str =
    "a panic in the middle of a change or a checkpoint: a mistake in this program; open the volume again";

/// An error in the middle of a change, or in a checkpoint.
const SHUT_DOWN: u8 = 1;
/// The volume was closed. Set behind the closed gate.
const CLOSED: u8 = 2;

#[derive(Default)]
pub(super) struct End {
    /// [`SHUT_DOWN`], [`CLOSED`] or both; 0 while changes are taken.
    bits: AtomicU8,
    /// The first error that shut the volume down; empty until then.
    reason: Mutex<{ Rank::Leaf as u8 }, String>,
}

/// The process that opened a volume.
pub(super) struct Opener {
    mark: ProcessMark,
    pid: u32,
}

impl Opener {
    pub fn new() -> Result<Self> {
        let mark = ProcessMark::new().map_err(|source| Error::host("memory for a mark", source))?;
        Ok(Self { mark, pid: std::process::id() })
    }

    #[cold]
    fn refusal(&self) -> Error {
        Error::in_use(format!(
            "the volume was opened by process {}; a forked child must open it itself once its parent has closed it",
            self.pid
        ))
    }
}

impl Volume {
    /// Refuses all changes from now on; reads go on.
    #[cold]
    pub fn shut_down(&self, why: &dyn std::fmt::Display) {
        if self.end.bits.fetch_or(SHUT_DOWN, Ordering::SeqCst) & SHUT_DOWN == 0 {
            *self.end.reason.lock() = why.to_string();
        }
    }

    /// Runs what must not end halfway: a panic in it shuts the volume down before anybody gets at a lock that the caller holds.
    pub fn unbroken<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Dropped by a panic only.
        struct Broken<'a>(&'a Volume);

        impl Drop for Broken<'_> {
            fn drop(&mut self) {
                self.0.shut_down(&PANICKED);
            }
        }

        let broken = Broken(self);
        let result = work();
        std::mem::forget(broken);
        result
    }

    /// Refuses a forked child of the process that opened the volume: it has a copy of the cache, and shares the device.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        if self.opener.mark.is_ours() { Ok(()) } else { Err(self.opener.refusal()) }
    }

    /// Whether operations may change anything. Who is inside the gate and was told yes may go on: the volume is not
    /// closed before he has left.
    #[inline]
    pub fn check_running(&self) -> Result<()> {
        match self.end.bits.load(Ordering::Relaxed) {
            0 => self.check_process(),
            CLOSED => Err(Error::Closed),
            _ => Err(Error::Shutdown),
        }
    }

    /// For who makes checkpoints, also the last ones, after which the volume is closed.
    pub fn check_not_shut_down(&self) -> Result<()> {
        if self.is_shut_down() { Err(Error::Shutdown) } else { Ok(()) }
    }

    fn is_shut_down(&self) -> bool {
        self.end.bits.load(Ordering::Relaxed) & SHUT_DOWN != 0
    }

    /// Whether it was closed, and nothing went wrong with that.
    pub fn is_closed(&self) -> bool {
        self.end.bits.load(Ordering::Relaxed) == CLOSED
    }

    /// Refuses all operations that change anything from now on. The gate is closed, so none is half done.
    pub fn refuse_changes(&self, _: &Closed<'_>) {
        self.end.bits.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// The volume could not be closed for lack of room on the host: it goes on.
    pub fn accept_changes(&self) {
        self.end.bits.fetch_and(!CLOSED, Ordering::SeqCst);
    }

    /// Why the volume was shut down, if it was.
    pub fn shut_down_reason(&self) -> Option<String> {
        self.is_shut_down().then(|| self.end.reason.lock().clone())
    }
}
