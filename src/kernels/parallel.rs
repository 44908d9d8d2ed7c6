//! Division of work over the current rayon pool.
//!
//! Work is cut into units whose number and content never depend on the number of threads, and
//! each unit owns a part of the output. Which thread runs a unit therefore cannot change a result.

use std::ops::Range;

/// Below this much work a unit is not worth handing to another thread.
const LEAST_FLOPS: u64 = 500_000;

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
        let grain = if threads() == 1 {
            self.count
        } else {
            let units = LEAST_FLOPS / self.flops_per_unit.max(1) + 1;
            usize::try_from(units).unwrap_or(usize::MAX)
        };
        self.split(0..self.count, grain, output, &work);
    }

    fn split(
        &self,
        units: Range<usize>,
        grain: usize,
        output: &mut [f32],
        work: &(impl Fn(usize, &mut [f32]) + Sync),
    ) {
        let start = (self.bounds)(units.start);
        if units.len() <= grain {
            let mut rest = output;
            let mut done = start;
            for unit in units {
                let end = (self.bounds)(unit + 1);
                let (part, after) = rest.split_at_mut(end - done);
                (rest, done) = (after, end);
                work(unit, part);
            }
        } else {
            let middle = units.start + units.len() / 2;
            let (left, right) = output.split_at_mut((self.bounds)(middle) - start);
            rayon::join(
                || self.split(units.start..middle, grain, left, work),
                || self.split(middle..units.end, grain, right, work),
            );
        }
    }
}

/// Part `index` of `0..total` cut into `parts` nearly equal ranges.
pub(super) fn part(total: usize, parts: usize, index: usize) -> Range<usize> {
    index * total / parts..(index + 1) * total / parts
}
