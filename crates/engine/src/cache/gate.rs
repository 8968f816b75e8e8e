//! The gate: every operation runs inside it. A thread that closes it waits until all operations have left.
//!
//! While the gate is closed, no operation is half done and none uses a frame. Then a checkpoint copies the changes, and frames are evicted.
//! Because eviction only happens then, an operation needs no pin on the frames that it finds, and entering writes no memory that
//! threads share.
//!
//! What else could have been: pins on the ten blocks that an operation of half a microsecond looks at would be twenty writes to shared memory.
//! Epoch-based reclamation would keep a frame from being used again too early, but would give a checkpoint no moment at which all operations
//! are whole. The gate has its price: eviction stops all threads for one sweep, and a read of the device inside the gate delays the next
//! checkpoint. If a slow device made that delay too long, an operation that misses a block would have to leave the gate, read the block and begin
//! again.
//!
//! A thread enters once, at the top of its operation. If it entered a second time while another thread closes the gate, the two would wait for
//! each other.
//!
//! A thread that is inside may carry a *weight*: the number of free blocks that its operation counts on. The weight lies in the same word as
//! the number of threads inside, so reserving blocks writes nothing more. Weights up to `LIGHT_MAX` are not even summed: there are so few
//! threads that the sum of their light weights has a bound. Larger weights have a sum of their own.

use crate::locks::{Held, Rank};
use crate::schedule;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, sleep, spin_loop, yield_now};
use crate::thread_slot::{SHARED, SLOTS, thread_slot};

/// A weight that any operation on names may have: with the smallest blocks, a new file takes 88.
pub(crate) const LIGHT_MAX: u32 = 128;
/// What the weights of all who are inside come to at most, beyond [`Gate::heavy`].
pub(crate) const LIGHT_SUM_MAX: u64 = SHARED as u64 * LIGHT_MAX as u64;

/// How many of a slot's threads are inside, and, from bit `WEIGHT` on, the sum of their weights.
#[repr(align(128))]
struct Slot(AtomicU64);

const WEIGHT: u32 = 32;

pub(crate) struct Gate {
    slots: Box<[Slot]>,
    closed: AtomicBool,
    /// Sum of what the weights have beyond `LIGHT_MAX`, and of all weights in the shared slot.
    heavy: AtomicU64,
    /// Held while closed: two closers take turns, and those who want in wait on `opened`.
    closing: Mutex<()>,
    wait: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    pub fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot(AtomicU64::new(0))).collect(),
            closed: AtomicBool::new(false),
            heavy: AtomicU64::new(0),
            closing: Mutex::new(()),
            wait: Mutex::new(()),
            opened: Condvar::new(),
        }
    }

    /// Enters with this weight; waits while the gate is closed.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn enter(&self, weight: u32) -> Entered<'_> {
        let held = Held::wait(Rank::Gate, 0);
        let slot = thread_slot();
        let share = 1 | u64::from(weight) << WEIGHT;
        self.pass(slot, share);
        let mut entered = Entered { gate: self, slot, share, heavy: 0, _held: held };
        entered.settle_heavy();
        entered
    }

    #[inline(always)]
    fn pass(&self, slot: usize, share: u64) {
        loop {
            // Sequentially consistent with the closer's store and loads: either we see it closed, or it sees us inside.
            self.slots[slot].0.fetch_add(share, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return;
            }
            self.leave(slot, share);
            self.wait_until_open();
        }
    }

    #[inline]
    fn leave(&self, slot: usize, share: u64) {
        let counter = &self.slots[slot].0;
        if slot == SHARED {
            counter.fetch_sub(share, Ordering::Release);
        } else {
            // Nobody else writes this one: a plain store will do, at a fifth of the cost.
            counter.store(counter.load(Ordering::Relaxed) - share, Ordering::Release);
        }
    }

    #[cold]
    fn wait_until_open(&self) {
        while schedule::is_on() && self.closed.load(Ordering::SeqCst) {
            schedule::wait_for_others();
        }
        let mut wait = self.wait.lock();
        while self.closed.load(Ordering::SeqCst) {
            self.opened.wait(&mut wait);
        }
    }

    /// The weight of all who are inside.
    pub fn weight(&self) -> u64 {
        self.slots.iter().map(|slot| slot.0.load(Ordering::SeqCst) >> WEIGHT).sum()
    }

    /// What the weights of those inside come to at least; at most, it is [`LIGHT_SUM_MAX`] more. One load, for any number of
    /// threads.
    pub fn heavy(&self) -> u64 {
        self.heavy.load(Ordering::SeqCst)
    }

    /// Closes the gate and waits until everybody inside has left. The caller must be outside.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn close(&self) -> Closed<'_> {
        let held = Held::wait(Rank::Gate, 0);
        let closing = schedule::acquire(|| self.closing.try_lock(), || self.closing.lock());
        self.closed.store(true, Ordering::SeqCst);
        for slot in &self.slots {
            let mut turns = 0_u32;
            while slot.0.load(Ordering::SeqCst) != 0 {
                turns += 1;
                if schedule::is_on() {
                    schedule::wait_for_others();
                } else if turns < 200 {
                    spin_loop();
                } else if turns < 400 {
                    yield_now();
                } else {
                    // Somebody inside waits for the device.
                    sleep(std::time::Duration::from_micros(20));
                }
            }
        }
        Closed { gate: self, _closing: closing, _held: held }
    }
}

pub(crate) struct Entered<'a> {
    gate: &'a Gate,
    slot: usize,
    /// What this one has added to its slot.
    share: u64,
    /// What of its weight it has added to `Gate::heavy`.
    heavy: u32,
    /// Which also keeps it on this thread, whose slot it is: who enters is who leaves.
    _held: Held,
}

impl Entered<'_> {
    /// Leaves, runs `f` outside, and enters again. Only for who has reserved nothing, which would be nobody's meanwhile, and holds no lock.
    pub fn step_out(&mut self, f: impl FnOnce()) {
        assert_eq!(self.share, 1, "who has reserved stays inside");
        // Nothing is left to take back if `f` panics.
        self.share = 0;
        self.gate.leave(self.slot, 1);
        self._held.lend(f);
        self.gate.pass(self.slot, 1);
        self.share = 1;
    }

    /// Adds to the weight.
    pub fn add_weight(&mut self, weight: u32) {
        let more = u64::from(weight) << WEIGHT;
        self.gate.slots[self.slot].0.fetch_add(more, Ordering::SeqCst);
        self.share += more;
        self.settle_heavy();
    }

    /// Takes from the weight what was added.
    pub fn sub_weight(&mut self, weight: u32) {
        let less = u64::from(weight) << WEIGHT;
        self.share -= less;
        self.settle_heavy();
        self.gate.slots[self.slot].0.fetch_sub(less, Ordering::SeqCst);
    }

    #[inline]
    fn settle_heavy(&mut self) {
        let weight = (self.share >> WEIGHT) as u32;
        let heavy = if self.slot == SHARED { weight } else { weight.saturating_sub(LIGHT_MAX) };
        if heavy != self.heavy {
            self.set_heavy(heavy);
        }
    }

    #[cold]
    fn set_heavy(&mut self, heavy: u32) {
        // Wraps around where it becomes less.
        self.gate.heavy.fetch_add(u64::from(heavy).wrapping_sub(u64::from(self.heavy)), Ordering::SeqCst);
        self.heavy = heavy;
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.heavy > 0 {
            self.set_heavy(0);
        }
        self.gate.leave(self.slot, self.share);
    }
}

pub(crate) struct Closed<'a> {
    gate: &'a Gate,
    _closing: MutexGuard<'a, ()>,
    _held: Held,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let wait = self.gate.wait.lock();
        self.gate.closed.store(false, Ordering::SeqCst);
        self.gate.opened.notify_all();
        drop(wait);
    }
}
