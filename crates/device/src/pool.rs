//! A few threads that serve batches where io_uring is not to be had.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// Threads that wait for jobs. Dropping it ends them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// A forked child has copies of the handles, but none of the threads.
    owner_pid: u32,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    stop: bool,
}

/// `task` is to be called once with each index below `count`.
///
/// Invariants
///   1. An index is handed out once, by `next`.
///   2. `task` is called only with an index below `count` whose call is not yet in `finished`.
///   3. `Pool::run`, which borrowed `task`, does not return or unwind before `finished` reaches `count`.
struct Job {
    task: &'static Task<'static>,
    count: usize,
    next: AtomicUsize,
    finished: Mutex<usize>,
    all_finished: Condvar,
}

impl Job {
    /// Works on the job until its indexes are handed out.
    fn work(&self) {
        while let Some(index) = self.claim() {
            let _finish = Finish(self);
            (self.task)(index);
        }
    }

    fn claim(&self) -> Option<usize> {
        // An add would run past `count` and, given time, around.
        self.next.fetch_update(Relaxed, Relaxed, |next| (next < self.count).then_some(next + 1)).ok()
    }
}

/// Counts a call as finished, when it panics too: `run` waits for the count.
struct Finish<'a>(&'a Job);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut finished = self.0.finished.lock();
        *finished += 1;
        if *finished == self.0.count {
            self.0.all_finished.notify_all();
        }
    }
}

/// Keeps `run` from leaving early: hands out the rest of the indexes to nobody, and waits for the calls under way.
struct Wait<'a>(&'a Job);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let unclaimed = self.0.count - self.0.next.swap(self.0.count, Relaxed);
        let mut finished = self.0.finished.lock();
        *finished += unclaimed;
        while *finished < self.0.count {
            self.0.all_finished.wait(&mut finished);
        }
    }
}

impl Pool {
    /// Starts up to `thread_count` threads. Where the host refuses some, or all, the callers do the work.
    pub fn new(thread_count: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let threads = (0..thread_count).map_while(|index| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("myriad-io-{index}"));
            thread.spawn(move || shared.serve()).ok()
        });
        let threads = threads.collect();
        Self { shared, threads, owner_pid: std::process::id() }
    }

    /// Calls `task` with each index below `count`, in the pool's threads and this one, and returns when all calls
    /// have. A panic of `task` in this thread goes on here; one in a thread of the pool ends that thread.
    pub fn run(&self, count: usize, task: &Task<'_>) {
        // SAFETY: only the lifetime changes. By invariants 2 and 3 of `Job` nothing calls `task` after this function
        // has been left, though the job itself may live on in a thread's hands.
        let task = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        let job = Arc::new(Job {
            task,
            count,
            next: AtomicUsize::new(0),
            finished: Mutex::new(0),
            all_finished: Condvar::new(),
        });
        let _wait = Wait(&job);
        // Only the threads take jobs off the queue.
        if !self.threads.is_empty() {
            self.shared.queue.lock().jobs.push_back(Arc::clone(&job));
            self.shared.wake.notify_all();
        }
        job.work();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // In a forked child nobody would answer, and a thread of the parent may have held the lock.
        if std::process::id() != self.owner_pid {
            return;
        }
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has already said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut queue = self.queue.lock();
        while !queue.stop {
            let Some(job) = queue.jobs.front().map(Arc::clone) else {
                self.wake.wait(&mut queue);
                continue;
            };
            if job.next.load(Relaxed) >= job.count {
                queue.jobs.pop_front();
                continue;
            }
            drop(queue);
            job.work();
            queue = self.queue.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn each_index_is_called_once() {
        for thread_count in [0, 1, 4] {
            let pool = Pool::new(thread_count);
            let calls: Vec<AtomicU32> = (0..1000).map(|_| AtomicU32::new(0)).collect();
            pool.run(calls.len(), &|index| {
                calls[index].fetch_add(1, Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Relaxed) == 1));
            pool.run(0, &|_| unreachable!());
        }
    }

    #[test]
    fn many_callers_share_the_threads() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for count in 0..200 {
                        let sum = AtomicUsize::new(0);
                        pool.run(count, &|index| {
                            sum.fetch_add(index + 1, Relaxed);
                        });
                        assert_eq!(sum.into_inner(), count * (count + 1) / 2);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_waits_for_the_calls_under_way() {
        let pool = Pool::new(0);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(10, &|index| assert!(index < 3, "index 3 fails, as the test wants"));
        }));
        assert!(caught.is_err());
        let calls = AtomicUsize::new(0);
        pool.run(5, &|_| {
            calls.fetch_add(1, Relaxed);
        });
        assert_eq!(calls.into_inner(), 5);
    }
}
