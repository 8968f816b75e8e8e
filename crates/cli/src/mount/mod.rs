//! Everything around a mounted volume but the requests themselves, which `myriad-fuse` answers.
//!
//!     options   the words after -o
//!     daemon    the process that has the volume, from opening to closing
//!     detach    how it outlives the command that started it
//!     control   its socket: how commands find it and what they ask it
//!     remount   how the kernel has a mount, changed
//!     below     which mount a path lies in
//!     closing   whether an image is still open, for who cannot ask
//!     log       what it has to tell while nobody looks
//!     background  what a crash under soft updates left, given back while the volume is mounted
//!     moment    what holding a moment takes
//!     stats     the figures of a live mount; prometheus: the same for those who collect them
//!     users     which processes use a mount

pub mod background;
pub mod below;
pub mod closing;
pub mod control;
pub mod daemon;
pub mod detach;
pub mod log;
pub mod moment;
pub mod options;
pub mod prometheus;
pub mod remount;
pub mod stats;
pub mod users;
