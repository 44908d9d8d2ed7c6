//! How many threads of a run compute at the same time.
//!
//! A run has a worker for each machine, each with a compute pool of its own, so that workers do not
//! fight over one pool. There may be more workers than threads that may compute; [`Permits`] lets
//! them take turns, first come, first served.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Threads of each worker's compute pool, when `threads` may compute and `workers` do so at the same
/// time: all threads have work, and no worker has fewer than one.
///
/// A kernel cuts its work by images, as workers on parts of the mini-batch would, and threads inside
/// kernels need less memory than workers; which of the two is faster has not been measured.
///
/// ```
/// use omnivore::threads::per_worker;
///
/// assert_eq!([per_worker(8, 2), per_worker(2, 1), per_worker(1, 4)], [4, 2, 1]);
/// ```
pub fn per_worker(threads: usize, workers: usize) -> usize {
    (threads / workers.max(1)).max(1)
}

/// Permission for a number of threads to compute at the same time.
#[derive(Debug)]
pub struct Permits {
    total: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// The number that the next to come draws.
    next: u64,
    /// The number whose turn it is.
    turn: u64,
}

impl Permits {
    /// Permission for `threads` threads, at least one.
    pub fn new(threads: usize) -> Self {
        let total = threads.max(1);
        let state = Mutex::new(State { free: total, next: 0, turn: 0 });
        Permits { total, state, changed: Condvar::new() }
    }

    /// Threads that may compute at the same time.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Does something that keeps `threads` threads busy, as soon as so many may compute. More than
    /// there may be at all count as all.
    pub fn during<R>(&self, threads: usize, work: impl FnOnce() -> R) -> R {
        let threads = threads.clamp(1, self.total);
        let mut state = self.state();
        let own = state.next;
        state.next += 1;
        while state.turn != own || state.free < threads {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn += 1;
        state.free -= threads;
        drop(state);
        self.changed.notify_all();
        let _held = Held { permits: self, threads };
        work()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permits that are given back in any case, also when the work panics.
struct Held<'a> {
    permits: &'a Permits,
    threads: usize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.permits.state().free += self.threads;
        self.permits.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_more_threads_work_at_once_than_are_permitted() {
        let permits = Permits::new(3);
        let (busy, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let (permits, busy, most) = (&permits, &busy, &most);
                scope.spawn(move || {
                    for round in 0..20 {
                        let threads = 1 + (worker + round) % 5;
                        permits.during(threads, || {
                            let counted = threads.min(3);
                            let now = busy.fetch_add(counted, Ordering::SeqCst) + counted;
                            most.fetch_max(now, Ordering::SeqCst);
                            std::thread::yield_now();
                            busy.fetch_sub(counted, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        // A worker that takes all three makes the bound a value that is reached.
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn permits_come_back_when_the_work_panics() {
        let permits = Permits::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            permits.during(1, || panic!("on purpose"));
        }));
        assert!(panicked.is_err());
        assert_eq!(permits.during(1, || 7), 7);
    }
}
