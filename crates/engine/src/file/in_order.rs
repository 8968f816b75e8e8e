//! How far to read ahead for those who read a file in order.
//!
//! Who reads small pieces one after the other gets a *window* of the file read into the cache at once, and the next one when it
//! comes to the end of that. A request to the device takes some 100 us before its first byte comes, whatever its length. So windows
//! become longer, as long as the file is read in order: twice as long each time, as Linux does it for its page cache. A program that
//! reads a few pieces and goes elsewhere has cost one short window; who reads a large file waits for the device once a mebibyte.
//!
//! What is remembered of a file is a guess. Two who read it at the same time may disturb each other, and then too much is read, or
//! too little; what they get is the same.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first window, in bytes: XFS's smallest I/O buffer (XFS96 6.2), doubled. Reading ahead begins where the file, cut into pieces of
/// this length, has one begin.
const WINDOW_MIN: u64 = 128 << 10;
/// The longest: the device's longest transfer.
pub(super) const WINDOW_MAX: u64 = 1 << 20;
/// What part of the cache a window may be: half of what a sweep makes free.
const CACHE_SHARE: u64 = 64;

/// What is remembered of the reads of a file, in bytes of it.
#[derive(Default)]
pub(super) struct InOrder {
    /// Where the last read ended: one that begins there is in order.
    end: AtomicU64,
    /// Where the last window ends.
    ahead: AtomicU64,
    /// How long that was; 0: the last read was not in order, or none of them was at the beginning of a window yet.
    window: AtomicU64,
}

impl InOrder {
    /// Notes a read. Returns how many bytes from its offset on are to be in the cache first; 0: what it asks for itself will do.
    pub fn note(&self, offset: u64, length: u64, cache_bytes: u64) -> u64 {
        let end = offset + length;
        if self.end.swap(end, Ordering::Relaxed) != offset {
            self.window.store(0, Ordering::Relaxed);
            return 0;
        }
        let last = self.window.load(Ordering::Relaxed);
        let is_due = match last {
            0 => length > offset % WINDOW_MIN,
            _ => end > self.ahead.load(Ordering::Relaxed),
        };
        let most = (cache_bytes / CACHE_SHARE).clamp(WINDOW_MIN, WINDOW_MAX);
        let window = (last * 2).max(length * 2).clamp(WINDOW_MIN, most);
        if !is_due || length >= window {
            return 0;
        }
        self.ahead.store(offset + window, Ordering::Relaxed);
        self.window.store(window, Ordering::Relaxed);
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE_CACHE: u64 = 1 << 30;
    const PAGE: u64 = 4096;

    /// The windows that reads of so many bytes from `from` on get: where each begins, and how long it is.
    fn windows(reads: &InOrder, from: u64, piece: u64, until: u64, cache_bytes: u64) -> Vec<(u64, u64)> {
        let at = |offset| (offset, reads.note(offset, piece, cache_bytes));
        (from..until).step_by(piece as usize).map(at).filter(|&(_, window)| window > 0).collect()
    }

    #[test]
    fn windows_grow_while_a_file_is_read_in_order() {
        for piece in [PAGE, 1 << 16] {
            let kib = |from: u64, length: u64| (from << 10, length << 10);
            let expected =
                vec![kib(0, 128), kib(128, 256), kib(384, 512), kib(896, 1024), kib(1920, 1024), kib(2944, 1024)];
            assert_eq!(windows(&InOrder::default(), 0, piece, 3 << 20, LARGE_CACHE), expected, "pieces of {piece}");
        }
        // A window that ends in the middle of a piece is followed by one that begins with that piece.
        let pieces = windows(&InOrder::default(), 0, 1000, 1 << 20, LARGE_CACHE);
        let ends = pieces.iter().map(|(from, length)| from + length);
        assert!(pieces.iter().skip(1).zip(ends).all(|((from, _), end)| (end - 1000..end).contains(from)), "{pieces:?}");
    }

    #[test]
    fn who_reads_here_and_there_gets_no_window() {
        let reads = InOrder::default();
        assert!((1..1000).all(|i| reads.note(i * 7919 % 1009 * PAGE, PAGE, LARGE_CACHE) == 0));
        // Two pages in order, in the middle of nowhere.
        assert_eq!((reads.note(PAGE * 5003, PAGE, LARGE_CACHE), reads.note(PAGE * 5004, PAGE, LARGE_CACHE)), (0, 0));
        // In order again, windows begin anew: with the next piece of 128 KiB, and short.
        let from = PAGE * 5005;
        let next = from.next_multiple_of(WINDOW_MIN);
        assert_eq!(windows(&reads, from, PAGE, next + PAGE, LARGE_CACHE), [(next, WINDOW_MIN)]);
    }

    #[test]
    fn a_window_is_no_longer_than_a_part_of_the_cache() {
        let longest = |cache_bytes| {
            windows(&InOrder::default(), 0, PAGE, 8 << 20, cache_bytes).into_iter().map(|(_, length)| length).max()
        };
        assert_eq!([4 << 20, 32 << 20, LARGE_CACHE].map(longest), [128 << 10, 512 << 10, 1 << 20].map(Some));
    }
}
