//! Pairs of bf16 that travel as floats.

use super::PairKernels;

/// Rounds floats to bf16 and puts two of them into the place of one float, the first in the lower
/// half of its bits.
///
/// Such a pair is moved like any float; only the products of [`super::Engine::of_pairs`] look into
/// it. Rounding is to nearest, ties to even; subnormal numbers become zeros.
#[derive(Clone, Copy)]
pub struct Pairing {
    pub(super) kernels: &'static PairKernels,
}

impl Pairing {
    /// Pairs `first[i]` with `second[i]`, or with 0 where there is no second.
    pub fn pair(self, first: &[f32], second: Option<&[f32]>, target: &mut [f32]) {
        let count = first.len();
        assert!(target.len() >= count && second.is_none_or(|second| second.len() >= count));
        let second = second.map_or(std::ptr::null(), <[f32]>::as_ptr);
        let kernel = self.kernels.pair;
        // SAFETY: the processor has the instructions, since the engine that this comes from
        // exists. The kernel reads `count` floats of either source, unless it is null, and writes
        // as many pairs; the lengths were compared above.
        unsafe { kernel(first.as_ptr(), second, count, target.as_mut_ptr()) }
    }

    /// Pairs `source[2i]` with `source[2i + 1]`, or with 0 behind the end.
    pub fn pair_neighbours(self, source: &[f32], target: &mut [f32]) {
        assert!(target.len() >= source.len().div_ceil(2));
        let kernel = self.kernels.pair_neighbours;
        // SAFETY: as above; the kernel writes a pair for every two floats, rounded up.
        unsafe { kernel(source.as_ptr(), source.len(), target.as_mut_ptr()) }
    }
}
