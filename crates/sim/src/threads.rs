//! Many runs on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Failures after which it is enough: the first few tell most.
pub const FAILURES_MAX: usize = 3;

/// Tries each of the runs on so many threads, until `is_over` or until so many have failed. The failures, in the order in which they came.
pub fn try_all<T: Sync>(
    runs: &[T],
    threads: usize,
    failures_max: usize,
    is_over: impl Fn() -> bool + Sync,
    try_one: impl Fn(usize, &T) -> Result<(), String> + Sync,
) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = runs.get(number).filter(|_| !is_over()) else { break };
            if let Err(message) = try_one(number, run) {
                let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures.push(message);
                if failures.len() >= failures_max {
                    next.store(runs.len(), Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads.max(1)).for_each(|_| drop(scope.spawn(work)));
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each run once, whatever thread takes it; none after enough have failed, or when the time is over.
    #[test]
    fn each_run_is_tried_once_until_enough_failed() {
        let tried = Mutex::new(Vec::new());
        let note = |number: usize, run: &usize| {
            assert_eq!(number * 10, *run);
            tried.lock().unwrap().push(number);
            if number % 3 == 2 { Err(format!("run {number}")) } else { Ok(()) }
        };
        let runs: Vec<usize> = (0..12).map(|number| number * 10).collect();
        let mut failed = try_all(&runs, 3, 9, || false, note);
        failed.sort();
        assert_eq!(failed, ["run 11", "run 2", "run 5", "run 8"]);
        let mut all = std::mem::take(&mut *tried.lock().unwrap());
        all.sort_unstable();
        assert_eq!(all, (0..12).collect::<Vec<_>>());

        assert_eq!(try_all(&runs, 1, 2, || false, note), ["run 2", "run 5"]);
        assert_eq!(std::mem::take(&mut *tried.lock().unwrap()), (0..6).collect::<Vec<_>>());
        assert!(try_all(&runs, 2, 1, || true, note).is_empty() && tried.lock().unwrap().is_empty());
    }
}
