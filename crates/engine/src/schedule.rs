//! Threads of a test, one at a time, in an order drawn from a seed.
//!
//! What a lock guards can be seen by others as soon as the lock is let go, and what is found under one lock may have changed before
//! the next one is taken. On a machine with few processors threads meet there by chance, and hardly ever twice in the same way. A
//! test that calls [`run`] has them meet there on purpose: only one of its threads runs at any time, and wherever that one lets go of a
//! lock or leaves the gate (`locks::Held`), a number drawn from the seed says whether another one goes on. So the same seed, on
//! the same volume, gives the same run.
//!
//! ```text
//! thread 0   runs .. lets a lock go         (waits for its turn)           finds the lock free, runs ..
//! thread 1   (waits for its turn)   runs .. wants a lock that 0 has: the turn goes on  (waits)
//! ```
//!
//! A thread that wants a lock which another one has does not wait for the lock, but gives its turn away and tries again at its next
//! one. If nobody gets on for very many turns, they wait for each other: a deadlock, and a panic says so.
//!
//! Not here: what happens between two accesses of memory. A thread never loses its turn while it has a frame's latch.
//!
//! Without debug assertions nothing is scheduled: threads run as the host has them.

/// How threads take turns.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    pub seed: u64,
    /// At one place in so many, where an inode's, a file's or the checkpointer's lock is let go or the gate is left, another
    /// thread goes on. Where another lock is let go, at one in eight times as many.
    pub one_in: u32,
}

/// Runs `jobs`, each on a thread of its own, until all have returned. A panic of one goes on here once all are done.
pub fn run<'a>(turns: Turns, jobs: Vec<Box<dyn FnOnce() + Send + 'a>>) {
    let table = imp::Table::new(turns, jobs.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .into_iter()
            .enumerate()
            .map(|(number, job)| {
                let table = table.clone();
                scope.spawn(move || {
                    let _seat = imp::sit(table, number);
                    job();
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        for end in ended {
            end.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
        }
    });
}

/// A place where another thread may go on, besides those in the engine: between two operations, or in a device.
pub fn pause() {
    imp::may_switch(1);
}

/// Does `work` without giving the turn away: for what looks at a volume of its own in between.
pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    imp::undisturbed(work)
}

#[cfg(debug_assertions)]
pub(crate) use imp::{acquire, is_on, keep_turn, let_turn_go, may_switch, wait_for_others};
#[cfg(not(debug_assertions))]
pub(crate) use imp::{acquire, is_on, wait_for_others};

#[cfg(debug_assertions)]
mod imp {
    use super::Turns;
    use std::cell::{Cell, RefCell};
    use std::sync::{Arc, Condvar, Mutex, MutexGuard};

    /// Turns in a row, a thread, in which everybody found what he wanted taken.
    const FRUITLESS_MAX: u32 = 100_000;

    /// Who is at the table, and whose turn it is.
    pub struct Table {
        state: Mutex<State>,
        /// One for each thread: its turn has come.
        called: Vec<Condvar>,
        one_in: u32,
    }

    struct State {
        turn: usize,
        seated: Vec<bool>,
        random: u64,
        fruitless: u32,
    }

    impl State {
        /// SplitMix64 (Steele, Lea, Flood 2014).
        fn draw(&mut self) -> u64 {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.random;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        /// Another thread than this one, if there is one.
        fn other_than(&mut self, number: usize) -> Option<usize> {
            let others: Vec<usize> = (0..self.seated.len()).filter(|&n| n != number && self.seated[n]).collect();
            (!others.is_empty()).then(|| others[self.draw() as usize % others.len()])
        }
    }

    impl Table {
        pub fn new(turns: Turns, threads: usize) -> Arc<Self> {
            let state = State { turn: 0, seated: vec![true; threads], random: turns.seed, fruitless: 0 };
            let called = (0..threads).map(|_| Condvar::new()).collect();
            Arc::new(Self { state: Mutex::new(state), called, one_in: turns.one_in.max(1) })
        }

        fn state(&self) -> MutexGuard<'_, State> {
            // A deadlock is told of by a panic under this lock.
            self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        fn give_turn<'a>(&self, mut state: MutexGuard<'a, State>, to: usize) -> MutexGuard<'a, State> {
            state.turn = to;
            self.called[to].notify_one();
            state
        }

        fn await_turn(&self, mut state: MutexGuard<'_, State>, number: usize) {
            while state.turn != number {
                state = self.called[number].wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }

        fn may_switch(&self, number: usize, one_in: u32) {
            let mut state = self.state();
            state.fruitless = 0;
            if state.draw() % u64::from(self.one_in.saturating_mul(one_in)) == 0
                && let Some(other) = state.other_than(number)
            {
                self.await_turn(self.give_turn(state, other), number);
            }
        }

        fn wait_for_others(&self, number: usize) {
            let mut state = self.state();
            let Some(other) = state.other_than(number) else {
                // Somebody who is not at the table has it.
                drop(state);
                std::thread::yield_now();
                return;
            };
            state.fruitless += 1;
            assert!(state.fruitless < FRUITLESS_MAX, "deadlock: each thread waits for what another one has");
            self.await_turn(self.give_turn(state, other), number);
        }
    }

    pub struct Seat {
        table: Arc<Table>,
        number: usize,
    }

    impl Drop for Seat {
        fn drop(&mut self) {
            SEAT.with_borrow_mut(Option::take);
            let mut state = self.table.state();
            state.seated[self.number] = false;
            if let Some(other) = state.other_than(self.number) {
                drop(self.table.give_turn(state, other));
            }
        }
    }

    // Gone where another thread-local uses the engine while the thread ends: it takes no turns then.
    thread_local! {
        static SEAT: RefCell<Option<(Arc<Table>, usize)>> = const { RefCell::new(None) };
        /// What this thread has because of which it keeps its turn.
        static KEPT: Cell<u32> = const { Cell::new(0) };
    }

    /// Takes a place at the table, until the answer is dropped, and waits for the first turn.
    pub fn sit(table: Arc<Table>, number: usize) -> Seat {
        table.await_turn(table.state(), number);
        SEAT.set(Some((table.clone(), number)));
        Seat { table, number }
    }

    /// Whether this thread takes turns with others.
    pub fn is_on() -> bool {
        SEAT.try_with(|seat| seat.borrow().is_some()).unwrap_or(false)
    }

    /// This thread keeps its turn until it has called [`let_turn_go`] as often as this.
    pub fn keep_turn() {
        KEPT.set(KEPT.get() + 1);
    }

    pub fn let_turn_go() {
        KEPT.set(KEPT.get() - 1);
    }

    /// Here another thread may go on: with a chance of one in `one_in` times [`Turns::one_in`].
    pub fn may_switch(one_in: u32) {
        let _ = SEAT.try_with(|seat| {
            if let Some((table, number)) = &*seat.borrow()
                && !std::thread::panicking()
                && KEPT.get() == 0
            {
                table.may_switch(*number, one_in);
            }
        });
    }

    /// Gives the turn away because of something that another thread has.
    pub fn wait_for_others() {
        let _ = SEAT.try_with(|seat| {
            if let Some((table, number)) = &*seat.borrow() {
                table.wait_for_others(*number);
            }
        });
    }

    pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
        struct Back(Option<(Arc<Table>, usize)>);
        impl Drop for Back {
            fn drop(&mut self) {
                let _ = SEAT.try_with(|seat| seat.replace(self.0.take()));
            }
        }
        let _back = Back(SEAT.try_with(RefCell::take).ok().flatten());
        work()
    }

    /// Gets a lock: by trying, turn by turn, or by waiting for it.
    pub fn acquire<G>(attempt: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        if !is_on() {
            return wait();
        }
        loop {
            match attempt() {
                Some(guard) => return guard,
                None => wait_for_others(),
            }
        }
    }
}

#[cfg(not(debug_assertions))]
mod imp {
    use super::Turns;
    use std::sync::Arc;

    pub struct Table;

    impl Table {
        pub fn new(_: Turns, _: usize) -> Arc<Self> {
            Arc::new(Self)
        }
    }

    pub fn sit(table: Arc<Table>, _: usize) -> Arc<Table> {
        table
    }

    #[inline(always)]
    pub fn is_on() -> bool {
        false
    }

    pub fn may_switch(_: u32) {}

    #[inline(always)]
    pub fn wait_for_others() {}

    pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    #[inline(always)]
    pub fn acquire<G>(_: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        wait()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    // They stay usable when the thread that has one panics.
    use parking_lot::{Mutex, MutexGuard};

    #[test]
    #[should_panic(expected = "deadlock")]
    fn who_waits_for_each_other_is_told_of() {
        type Lock = Mutex<()>;
        fn take(lock: &Lock) -> MutexGuard<'_, ()> {
            acquire(|| lock.try_lock(), || unreachable!("at the table"))
        }
        fn job<'a>(first: &'a Lock, second: &'a Lock) -> Box<dyn FnOnce() + Send + 'a> {
            Box::new(move || {
                let held = take(first);
                for _ in 0..20 {
                    pause();
                }
                drop(take(second));
                drop(held);
            })
        }
        let (a, b) = (Lock::default(), Lock::default());
        run(Turns { seed: 1, one_in: 2 }, vec![job(&a, &b), job(&b, &a)]);
    }
}
