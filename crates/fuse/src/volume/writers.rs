//! Which files are open for writing, on mounts whose kernel asks at each opening.
//!
//! A file can be mapped for storing only while it is open for writing: the kernel sends what was stored before it releases
//! the last such opening. So of a file without one, the volume has all that any program has written or stored.

use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::collections::HashMap;

/// Handles that OPEN answers with. RELEASE brings them back.
pub(super) const READER: u64 = 0;
const WRITER: u64 = 1;

/// Openings for writing, by node.
#[derive(Default)]
pub(super) struct Writers(Mutex<HashMap<u64, u64>>);

impl Writers {
    /// A file is being opened; the handle to answer with.
    pub fn opened(&self, id: u64, flags: OFlags) -> u64 {
        if flags & OFlags::ACCMODE == OFlags::RDONLY {
            return READER;
        }
        *self.0.lock().entry(id).or_default() += 1;
        WRITER
    }

    /// An opening is released, and all that was written through it has been sent.
    pub fn closed(&self, id: u64, handle: u64) {
        if handle != WRITER {
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
        assert_eq!(writers.opened(7, OFlags::RDONLY), READER);
        assert!(!writers.any(7));
        for flags in [OFlags::WRONLY, OFlags::RDWR | OFlags::APPEND] {
            assert_eq!(writers.opened(7, flags), WRITER);
        }
        writers.closed(7, READER);
        writers.closed(7, WRITER);
        assert!(writers.any(7) && !writers.any(8));
        writers.closed(7, WRITER);
        // One more than there were: nothing a kernel sends.
        writers.closed(7, WRITER);
        assert!(!writers.any(7) && writers.0.lock().is_empty());
    }
}
