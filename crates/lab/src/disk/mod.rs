//! Disks that are calculated: how long a device of 1996, of 2001 or of today would have taken for the same requests.
//!
//! ```text
//! presets    the drives: what their makers published, and from where
//! drive      a rotating disk: arm, platters, read-ahead, write cache
//! geometry   where a sector lies: zone, cylinder, head, angle
//! seek       how long the arm takes for a distance
//! flat       a device without moving parts: latency, bandwidth, requests in parallel
//! host       the machine around a drive: what its processor takes
//! traced     a device that passes requests on, counts them, and asks a model how long they take
//! trace      a recording of requests, for other models to be asked afterwards
//! ```
//!
//! Invariants
//!   1. A model is a function of the requests: it reads no clock and draws no random numbers. Same requests, same time, on any machine.
//!   2. Modelled time is the device's alone, but for a machine ([`Host`]), whose processor is charged for what the engine counts. Without one
//!      the processor costs nothing: a request arrives when the one before it has been answered, what a mechanism saves in computing does
//!      not show, and nothing is written while the host computes.
//!   3. Requests of one batch are in flight together; those of different calls never are.

mod drive;
mod flat;
mod geometry;
mod host;
pub mod presets;
mod seek;
pub mod trace;
mod traced;

pub use drive::{Drive, Mechanics, Seeks};
pub use flat::{Flat, FlatTimes};
pub use host::{Done, Host};
pub use presets::{PRESETS, Preset};
pub use trace::Recorder;
pub use traced::{Meter, Traced};

/// A request for a device. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub is_write: bool,
    pub offset: u64,
    pub length: u64,
}

impl Request {
    pub fn read(offset: u64, length: u64) -> Self {
        Self { is_write: false, offset, length }
    }

    pub fn write(offset: u64, length: u64) -> Self {
        Self { is_write: true, offset, length }
    }

    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// A device as a calculation.
pub trait Model: Send {
    /// Serves requests that are in flight together, and moves the clock to when the last is answered.
    fn serve(&mut self, batch: &[Request]);
    /// Makes all that was written durable.
    fn flush(&mut self);
    /// The host computes for so long, and asks for nothing.
    fn compute(&mut self, ns: u64);
    /// Nanoseconds since the beginning at which the host could go on.
    fn now_ns(&self) -> u64;
}
