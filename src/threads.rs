//! How many threads of a run compute at the same time, and on which cores.
//!
//! A run has a worker for each machine, each with a compute pool of its own, so that workers do not
//! fight over one pool. There may be more workers than threads that may compute; [`Permits`] lets
//! them take turns, first come, first served.
//!
//! Where as many threads may compute as the computer has cores, each permit is a core, and whoever
//! has it computes there. Threads that were left to the system wake on one core together after they
//! slept, and two of them were as slow as one for 20 ms and longer. A process that may not use all
//! cores is left to the system, and so are its threads when they are fewer or more than the cores.

mod cores;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Threads of each worker's compute pool, when `threads` may compute and `workers` do so at the same
/// time: all threads have work, and no worker has fewer than one.
///
/// A kernel cuts its work by images, as workers on parts of the mini-batch would. Measured on two
/// threads, parts are faster for networks whose kernels take microseconds, and threads inside
/// kernels, which need less memory, for those with large weights.
///
/// ```
/// use omnivore::threads::per_worker;
///
/// assert_eq!([per_worker(8, 2), per_worker(2, 1), per_worker(1, 4)], [4, 2, 1]);
/// ```
pub fn per_worker(threads: usize, workers: usize) -> usize {
    (threads / workers.max(1)).max(1)
}

/// Threads that compute together when [`Permits`] let them.
#[derive(Debug)]
pub struct Pool {
    threads: rayon::ThreadPool,
    /// The permits that it had last.
    places: Mutex<Vec<usize>>,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no more threads to give.
    pub fn new(threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        Ok(Pool { threads, places: Mutex::default() })
    }

    fn places(&self) -> MutexGuard<'_, Vec<usize>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permission for a number of threads to compute at the same time.
#[derive(Debug)]
pub struct Permits {
    total: usize,
    /// The core that belongs to each permit, if the process has the computer to itself.
    cores: Option<Vec<usize>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The permits that nobody has.
    free: Vec<usize>,
    /// The number that the next to come draws.
    next: u64,
    /// The number whose turn it is.
    turn: u64,
}

impl Permits {
    /// Permission for `threads` threads, at least one.
    pub fn new(threads: usize) -> Self {
        let total = threads.max(1);
        let state = Mutex::new(State { free: (0..total).collect(), next: 0, turn: 0 });
        let cores = cores::of_the_computer().filter(|cores| cores.len() == total);
        Permits { total, cores, state, changed: Condvar::new() }
    }

    /// Threads that may compute at the same time.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Does something that keeps `threads` threads busy, as soon as so many may compute. More than
    /// there may be at all count as all.
    pub fn during<R>(&self, threads: usize, work: impl FnOnce() -> R) -> R {
        let _held = self.take(threads, &[]);
        work()
    }

    /// Does something on the threads of a pool as soon as all of them may compute, each on a core of
    /// its own where the permits have cores: those it had before if they are free.
    pub fn compute<R: Send>(&self, pool: &Pool, work: impl FnOnce() -> R + Send) -> R {
        let threads = pool.threads.current_num_threads();
        let before = pool.places().clone();
        let held = self.take(threads, &before);
        let moved = held.places != before && held.places.len() == threads;
        let cores = self.cores.as_ref().filter(|_| moved);
        pool.places().clone_from(&held.places);
        pool.threads.install(|| {
            if let Some(cores) = cores {
                rayon::broadcast(|thread| cores::stay_on(cores[held.places[thread.index()]]));
            }
            work()
        })
    }

    fn take(&self, threads: usize, wanted: &[usize]) -> Held<'_> {
        let threads = threads.clamp(1, self.total);
        let mut state = self.state();
        let own = state.next;
        state.next += 1;
        while state.turn != own || state.free.len() < threads {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn += 1;
        // Wanted permits first, in the order in which they were had.
        let rank = |place: &usize| wanted.iter().position(|wanted| wanted == place);
        state.free.sort_by_key(|place| (rank(place).unwrap_or(usize::MAX), *place));
        let places = state.free.drain(..threads).collect();
        drop(state);
        self.changed.notify_all();
        Held { permits: self, places }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permits that are given back in any case, also when the work panics.
struct Held<'a> {
    permits: &'a Permits,
    places: Vec<usize>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.permits.state().free.append(&mut self.places);
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
    fn threads_that_compute_at_once_have_cores_of_their_own() {
        let cores = cores::of_the_computer().unwrap_or_default();
        let permits = Permits::new(cores.len());
        let pools: Vec<Pool> = cores.iter().map(|_| Pool::new(1).expect("a thread")).collect();
        let all_there = std::sync::Barrier::new(cores.len());
        let mut found: Vec<Vec<usize>> = std::thread::scope(|scope| {
            let compute = |pool| {
                permits.compute(pool, || {
                    all_there.wait();
                    cores::of_this_thread()
                })
            };
            let threads: Vec<_> =
                pools.iter().map(|pool| scope.spawn(move || compute(pool))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        found.sort();
        assert_eq!(found, cores.iter().map(|core| vec![*core]).collect::<Vec<_>>());
    }

    #[test]
    fn a_pool_keeps_its_cores_while_others_take_turns() {
        let permits = Permits::new(2);
        let pools = [Pool::new(1).expect("a thread"), Pool::new(1).expect("a thread")];
        permits.compute(&pools[0], || permits.compute(&pools[1], || ()));
        let places = || pools.each_ref().map(|pool| pool.places().clone());
        assert_eq!(places(), [[0], [1]]);
        permits.compute(&pools[1], || ());
        assert_eq!(places(), [[0], [1]]);
    }

    #[test]
    fn threads_that_are_fewer_than_the_cores_are_left_to_the_system() {
        let cores = cores::of_the_computer().unwrap_or_default();
        let permits = Permits::new(cores.len() + 1);
        let pool = Pool::new(1).expect("a thread");
        assert_eq!(
            permits.compute(&pool, cores::of_this_thread),
            std::thread::spawn(cores::of_this_thread).join().expect("no panic"),
        );
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
