//! Division of work over the current rayon pool.
//!
//! Work is cut into units whose number and content never depend on the number of threads, and
//! each unit owns a part of the output. Which thread runs a unit therefore cannot change a result.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

/// Below this much work a unit is not worth handing to another thread.
const LEAST_FLOPS: u64 = 500_000;

/// Shares of the remaining units that each thread takes a time, where they are many.
const SHARES: usize = 4;

/// How often a thread without work looks whether the others' last units are done before it lets its
/// core sleep: for some 200 µs. Waking it costs 30 µs, as much as many a unit.
const MOST_LOOKS: u32 = 500;

/// Threads of the pool that the caller runs in.
pub(super) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Units of equal work, each with its own part of a slice.
pub(super) struct Units<Bounds> {
    pub count: usize,
    pub flops_per_unit: u64,
    /// Where a unit's part of the output starts; for `count`, where the last one ends.
    pub bounds: Bounds,
}

impl<Bounds: Fn(usize) -> usize + Sync> Units<Bounds> {
    /// Runs `work` on every unit and its part of `output`.
    pub fn run(&self, output: &mut [f32], work: impl Fn(usize, &mut [f32]) + Sync) {
        let least = LEAST_FLOPS / self.flops_per_unit.max(1) + 1;
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        let members = threads().min(self.count.div_ceil(least));
        let start = (self.bounds)(0);
        let output = &mut output[..(self.bounds)(self.count) - start];
        if members <= 1 {
            return self.in_order(0..self.count, output, &work);
        }
        let heap = Heap {
            rest: Mutex::new((0..self.count, output)),
            unfinished: AtomicUsize::new(self.count),
            least,
            members,
        };
        gather(0..members, &|member| {
            while let Some((units, output)) = heap.take(&self.bounds, member) {
                let done = units.len();
                self.in_order(units, output, &work);
                heap.unfinished.fetch_sub(done, Ordering::Release);
            }
            heap.wait();
        });
    }

    fn in_order(
        &self,
        units: Range<usize>,
        mut output: &mut [f32],
        work: &(impl Fn(usize, &mut [f32]) + Sync),
    ) {
        let mut done = (self.bounds)(units.start);
        for unit in units {
            let end = (self.bounds)(unit + 1);
            let (part, after) = output.split_at_mut(end - done);
            (output, done) = (after, end);
            work(unit, part);
        }
    }
}

/// Runs `act` for every member, on threads that are free. Those that come too late find no work.
fn gather(members: Range<usize>, act: &(impl Fn(usize) + Sync)) {
    if members.len() == 1 {
        return act(members.start);
    }
    let middle = members.start + members.len() / 2;
    rayon::join(|| gather(members.start..middle, act), || gather(middle..members.end, act));
}

/// Units that wait for a thread.
///
/// Threads take them from both ends, as many at once as keep them all busy to the end. Halves that
/// are stolen from each other would make a thread wait for one that waits for a third; each
/// of them falls asleep and has to be woken in turn.
struct Heap<'a> {
    /// Units and their part of the output.
    rest: Mutex<(Range<usize>, &'a mut [f32])>,
    unfinished: AtomicUsize,
    /// Units that are worth the trouble of taking them.
    least: usize,
    members: usize,
}

impl<'a> Heap<'a> {
    /// The next units of a member and their part of the output.
    fn take(
        &self,
        bounds: &impl Fn(usize) -> usize,
        member: usize,
    ) -> Option<(Range<usize>, &'a mut [f32])> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let (units, output) = (rest.0.clone(), std::mem::take(&mut rest.1));
        let count = units.len().min(self.least.max(units.len() / (SHARES * self.members)));
        let from_front = member.is_multiple_of(2);
        let cut = if from_front { units.start + count } else { units.end - count };
        let (front, back) = output.split_at_mut(bounds(cut) - bounds(units.start));
        let (front, back) = ((units.start..cut, front), (cut..units.end, back));
        let (taken, left) = if from_front { (front, back) } else { (back, front) };
        *rest = left;
        (count > 0).then_some(taken)
    }

    /// Waits until all units are done, or for long enough.
    fn wait(&self) {
        for _ in 0..MOST_LOOKS {
            if self.unfinished.load(Ordering::Acquire) == 0 {
                break;
            }
            // Another process may need this core.
            std::thread::yield_now();
        }
    }
}

/// Runs `work` on items of so many operations each, which own what they write.
pub(super) fn for_each<Item: Send>(
    items: Vec<Item>,
    flops: usize,
    work: impl Fn(Item) + Sync + Send,
) {
    let all = u64::try_from(items.len().saturating_mul(flops)).unwrap_or(u64::MAX);
    if threads() == 1 || all <= LEAST_FLOPS {
        items.into_iter().for_each(work);
    } else {
        items.into_par_iter().with_max_len(1).for_each(work);
    }
}

/// Part `index` of `0..total` cut into `parts` nearly equal ranges.
pub(super) fn part(total: usize, parts: usize, index: usize) -> Range<usize> {
    index * total / parts..(index + 1) * total / parts
}
