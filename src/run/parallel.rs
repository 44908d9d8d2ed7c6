//! Independent runs side by side.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Applies `work` to every item on `threads` threads and returns the results in order.
///
/// Every thread computes in a pool of its own with one thread, so that runs do not fight over one
/// pool, and a result does not depend on how many run side by side.
///
/// # Panics
/// When the system refuses a thread.
pub fn in_parallel<I: Sync, T: Send>(
    threads: usize,
    items: &[I],
    work: impl Fn(&I) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(1)
                    .build()
                    .expect("the system allows one more thread");
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = pool.install(|| work(item));
                    done.lock()
                        .expect("no thread panics while it holds the list")
                        .push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("all threads have ended");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Applies `work` to one item after the other, each on a pool of `threads` threads.
///
/// # Panics
/// When the system refuses a thread.
pub fn in_turn<I: Sync, T: Send>(
    threads: usize,
    items: &[I],
    work: impl Fn(&I) -> T + Sync,
) -> Vec<T> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.expect("the system allows a few more threads");
    items.iter().map(|item| pool.install(|| work(item))).collect()
}
