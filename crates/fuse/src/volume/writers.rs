//! What is to be known of openings, on mounts whose kernel asks at each: which files are open for writing, and through which openings each change
//! is to be durable.
//!
//! A file can be mapped for storing only while it is open for writing: the kernel sends what was stored before it releases
//! the last such opening. So of a file without one, the volume has all that any program has written or stored.

use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::collections::HashMap;

/// Bits of the handles that OPEN answers with. RELEASE brings them back, and so do requests that change a file.
const WRITER: u64 = 1 << 0;
/// Opened with O_SYNC or O_DSYNC.
const SYNC: u64 = 1 << 1;

/// What a handle says of how a file was opened, but for whether it counts as open for writing.
pub(super) fn handle(flags: OFlags) -> u64 {
    if flags.intersects(OFlags::DSYNC | OFlags::SYNC) { SYNC } else { 0 }
}

/// Whether what is changed through a handle is to be durable before the answer.
pub(super) fn is_sync(handle: u64) -> bool {
    handle & SYNC != 0
}

/// Openings for writing, by node.
#[derive(Default)]
pub(super) struct Writers(Mutex<HashMap<u64, u64>>);

impl Writers {
    /// A file is being opened, and RELEASE will say when that ends; the handle to answer with.
    pub fn opened(&self, id: u64, flags: OFlags) -> u64 {
        if flags & OFlags::ACCMODE == OFlags::RDONLY {
            return handle(flags);
        }
        *self.0.lock().entry(id).or_default() += 1;
        WRITER | handle(flags)
    }

    /// An opening is released, and all that was written through it has been sent.
    pub fn closed(&self, id: u64, handle: u64) {
        if handle & WRITER == 0 {
            return;
        }
        let mut open = self.0.lock();
        if let Some(count) = open.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                open.remove(&id);
            }
        }
    }

    pub fn any(&self, id: u64) -> bool {
        self.0.lock().contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opening_for_writing_counts() {
        let writers = Writers::default();
        let reader = writers.opened(7, OFlags::RDONLY);
        assert_eq!((reader, writers.opened(7, OFlags::SYNC)), (0, SYNC));
        assert!(!writers.any(7));
        assert_eq!(writers.opened(7, OFlags::WRONLY), WRITER);
        assert_eq!(writers.opened(7, OFlags::RDWR | OFlags::DSYNC), WRITER | SYNC);
        writers.closed(7, reader);
        writers.closed(7, SYNC);
        writers.closed(7, WRITER);
        assert!(writers.any(7) && !writers.any(8));
        writers.closed(7, WRITER | SYNC);
        // One more than there were: nothing a kernel sends.
        writers.closed(7, WRITER);
        assert!(!writers.any(7) && writers.0.lock().is_empty());
    }
}
