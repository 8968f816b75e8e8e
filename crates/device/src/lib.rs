//! Block devices: the one seam between Myriad and whatever stores its bytes.
//!
//! ```text
//! FileDevice       an image file or a block device, by direct I/O where the host allows it
//! MemoryDevice     sparse memory; copies of an image share what they have in common
//! OverlayDevice    changes in memory over a base that is never written
//! RecordingDevice  any device, and the exact sequence of what was done to it
//! FaultDevice      any device, failing or lying where a test says so
//! PausingDevice    any device, holding back a request until a test lets it go
//! ```
//!
//! [`Moment`] reads a device as it was while somebody writes it, by before-images that the writer keeps.
//! [`CrashImages`] turns a recorded trace into the images that a power cut could have left behind.
//!
//! Not here: what any byte means, caching, checksums, retries.

#![deny(unsafe_code)]

mod batch;
mod block_set;
mod buffer;
mod crash;
mod discard;
mod error;
mod fault;
mod file;
mod lock;
mod loops;
mod memory;
mod moment;
mod overlay;
mod pausing;
mod pool;
mod recording;
mod sparse;
mod uring;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use block_set::BlockSet;
pub use buffer::{AlignedBuf, BUFFER_ALIGNMENT, BufferPool};
pub use crash::{CrashImages, PrefixCursor, Torn, TornSide};
pub use error::{ForkedChild, Holder, InUse, OpenError, RangeError, is_full};
pub use fault::{FAULT_PANIC, FaultDevice, FaultKind, FaultOp, FaultSpan};
pub use file::{Access, Claim, DirectIo, FileDevice, FileOptions, IoBackend};
pub use lock::{WriteLock, holder, write_locks};
pub use memory::MemoryDevice;
pub use moment::{BeforeImages, Moment, Part};
pub use overlay::OverlayDevice;
pub use pausing::PausingDevice;
pub use recording::{Event, RecordingDevice, Timed};

/// A store of bytes addressed by offset, read and written in whole sectors.
///
/// Offsets and lengths are in bytes. Every implementation accepts requests aligned to [`BlockDevice::alignment`]
/// (512 or 4096 for direct I/O, 1 for memory) with buffers of any alignment; `AlignedBuf` avoids a bounce copy.
/// A request that is not aligned or reaches past the end is refused whole, with [`RangeError`] inside an error of kind
/// `InvalidInput`. Any other error leaves the range of a failed write in any mixture of old and new sectors.
///
/// Ordering: a write that has returned may still sit in a volatile cache; only [`BlockDevice::flush`] makes all
/// returned writes durable. Nothing orders two writes without a flush between them.
pub trait BlockDevice: Send + Sync {
    /// Size in bytes: a multiple of [`BlockDevice::alignment`].
    fn size(&self) -> u64;
    /// Smallest unit of offset and length, in bytes: a power of two, the same for as long as the device is open but for
    /// [`BlockDevice::take_units`].
    fn alignment(&self) -> usize;
    /// Asks that requests of so many bytes, a power of two, be taken from here on; false if it cannot be. A file whose host demands more for
    /// direct I/O takes them through the host's cache.
    fn take_units(&self, unit: usize) -> io::Result<bool> {
        Ok(unit % self.alignment() == 0)
    }
    /// Fills `buf` from `offset`. A read past the end is an error, never short.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes `buf` at `offset`.
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()>;
    /// Writes many extents, all in flight together; returns when all have been written, or with the first error.
    /// Nothing is still in flight when it returns. Two writes of one batch must not overlap. A request is aligned as
    /// a whole; its parts may have any length.
    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        for request in writes {
            match request.parts {
                [whole] => self.write(request.offset, whole)?,
                parts => self.write(request.offset, &parts.concat())?,
            }
        }
        Ok(())
    }
    /// Reads many extents, all in flight together; nothing is still in flight when it returns.
    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        for request in reads {
            self.read(request.offset, request.buf)?;
        }
        Ok(())
    }
    /// Makes every write that has returned durable. A failed flush must not be retried: the host may have dropped
    /// what it could not write. Nor is its error ever one that [`is_full`] knows.
    fn flush(&self) -> io::Result<()>;
    /// Writes and makes durable this write and all writes that returned before it (write, then flush, unless the
    /// device can do better).
    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(offset, buf)?;
        self.flush()
    }
    /// Tells the host that a range is no longer needed (hole punch or discard); reads of it return zeros or old
    /// bytes afterwards. A host that cannot do it answers `Ok` and does nothing. The range need not be aligned.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()>;
    /// What a discard is good for here. It may turn to [`Discards::Never`] when the host refuses the first one.
    fn discards(&self) -> Discards;
    /// Requests served since the device was opened.
    fn counters(&self) -> DeviceCounters;
}

/// What a discard is good for on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discards {
    /// For nothing: the host cannot do it.
    Never,
    /// For who asks for it: it takes the device long, or gives up space that somebody allocated on purpose.
    OnRequest,
    /// What is discarded is the host's again at once: worth it whenever something becomes free.
    Always,
}

/// One vectored write: `parts` land one after the other from `offset`.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    pub offset: u64,
    pub parts: &'a [&'a [u8]],
}

impl WriteRequest<'_> {
    /// Length of all parts together, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    pub offset: u64,
    pub buf: &'a mut [u8],
}

/// What a device has served: exact, and therefore what benchmarks compare first.
///
/// One for each call or, in a batch, for each request of it, however the device splits it; refused and failed
/// requests are not counted. A durable write counts as a write and a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
}

/// [`DeviceCounters`] that many threads count in.
#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
}

impl Counters {
    fn read(&self, count: usize, bytes: u64) {
        self.reads.fetch_add(count as u64, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    fn write(&self, count: usize, bytes: u64) {
        self.writes.fetch_add(count as u64, Relaxed);
        self.written_bytes.fetch_add(bytes, Relaxed);
    }

    fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    fn discard(&self) {
        self.discards.fetch_add(1, Relaxed);
    }

    fn snapshot(&self) -> DeviceCounters {
        DeviceCounters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
        }
    }
}

/// Methods of a [`BlockDevice`] in which it does nothing of its own: each is that of the device in the field named first.
///
/// `pass_on!(inner: size, alignment, discards, counters);`
#[macro_export]
macro_rules! pass_on {
    ($inner:ident: $($method:ident),+) => {$($crate::pass_on!(@$method $inner);)+};
    (@size $inner:ident) => {
        fn size(&self) -> u64 {
            self.$inner.size()
        }
    };
    (@alignment $inner:ident) => {
        fn alignment(&self) -> usize {
            self.$inner.alignment()
        }
        fn take_units(&self, unit: usize) -> std::io::Result<bool> {
            self.$inner.take_units(unit)
        }
    };
    (@read $inner:ident) => {
        fn read(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
            self.$inner.read(offset, buf)
        }
    };
    (@write $inner:ident) => {
        fn write(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
            self.$inner.write(offset, buf)
        }
    };
    (@write_many $inner:ident) => {
        fn write_many(&self, writes: &[$crate::WriteRequest<'_>]) -> std::io::Result<()> {
            self.$inner.write_many(writes)
        }
    };
    (@read_many $inner:ident) => {
        fn read_many(&self, reads: &mut [$crate::ReadRequest<'_>]) -> std::io::Result<()> {
            self.$inner.read_many(reads)
        }
    };
    (@flush $inner:ident) => {
        fn flush(&self) -> std::io::Result<()> {
            self.$inner.flush()
        }
    };
    (@discard $inner:ident) => {
        fn discard(&self, offset: u64, length: u64) -> std::io::Result<()> {
            self.$inner.discard(offset, length)
        }
    };
    (@discards $inner:ident) => {
        fn discards(&self) -> $crate::Discards {
            self.$inner.discards()
        }
    };
    (@counters $inner:ident) => {
        fn counters(&self) -> $crate::DeviceCounters {
            self.$inner.counters()
        }
    };
}

/// A pointer to a device is a device, so that wrappers can own, share or borrow what they wrap.
macro_rules! forward_to_pointee {
    ($($pointer:ty),*) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn size(&self) -> u64 {
                (**self).size()
            }
            fn alignment(&self) -> usize {
                (**self).alignment()
            }
            fn take_units(&self, unit: usize) -> io::Result<bool> {
                (**self).take_units(unit)
            }
            fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
                (**self).read(offset, buf)
            }
            fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
                (**self).write(offset, buf)
            }
            fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
                (**self).write_many(writes)
            }
            fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
                (**self).read_many(reads)
            }
            fn flush(&self) -> io::Result<()> {
                (**self).flush()
            }
            fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
                (**self).write_durable(offset, buf)
            }
            fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
                (**self).discard(offset, length)
            }
            fn discards(&self) -> Discards {
                (**self).discards()
            }
            fn counters(&self) -> DeviceCounters {
                (**self).counters()
            }
        }
    )*};
}

forward_to_pointee!(&D, Box<D>, Arc<D>);
