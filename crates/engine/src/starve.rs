//! Allocations refused on purpose: tests let space run out at the nth block or inode that operations ask for, wherever
//! in an operation that is. Admission keeps most of these places from ever being reached, so a full volume does not show
//! what they do.
//!
//! Counted by thread, so that volumes under test beside each other do not meet. Without debug assertions nothing is
//! counted and nothing refused.

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::ops::Range;

#[cfg(debug_assertions)]
thread_local! {
    static SEEN: Cell<u64> = const { Cell::new(0) };
    static REFUSED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// From here on the allocations of these numbers, of those that this thread asks for, are refused; 1 is the next one.
#[cfg_attr(not(debug_assertions), allow(unused_variables))]
pub fn refuse(numbers: Range<u64>) {
    #[cfg(debug_assertions)]
    {
        SEEN.set(0);
        REFUSED.set((numbers.start, numbers.end));
    }
}

/// Allocations that this thread has asked for since.
pub fn seen() -> u64 {
    #[cfg(debug_assertions)]
    {
        SEEN.get()
    }
    #[cfg(not(debug_assertions))]
    {
        0
    }
}

/// Whether the allocation that is asked for now is refused.
#[inline]
pub(crate) fn is_due() -> bool {
    #[cfg(debug_assertions)]
    {
        let number = SEEN.get() + 1;
        SEEN.set(number);
        let (start, end) = REFUSED.get();
        (start..end).contains(&number)
    }
    #[cfg(not(debug_assertions))]
    {
        false
    }
}
