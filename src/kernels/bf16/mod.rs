//! Mixed precision: factors rounded to bf16, products and sums in `f32`.
//!
//! A bf16 is the upper half of an `f32`: the same range, 8 significant bits. The product of two of
//! them is exact in `f32`, so apart from the rounding of the factors (relatively at most 2⁻⁸ each)
//! only the order and the rounding of the sums differ from single precision.
//!
//! | path | sums |
//! |---|---|
//! | portable | as the `gemm` crate adds `f32` products |
//! | AVX-512 BF16 | `vdpbf16ps`: two products of neighbours in depth are added one after the other, each addition rounded to nearest |
//! | AMX | `tdpbf16ps`: the same, 32 products deep |
//!
//! The instructions take subnormal numbers as zeros, among factors and sums alike, so rounding to
//! bf16 does so on every path.
//!
//! **Tolerance.** For the same rounded factors, `n` products summed in any order differ from the
//! exact sum by at most about `n` roundings of the sum of their magnitudes, `n · 2⁻²⁴ · Σ|aᵢ·bᵢ|`,
//! plus `n · 2⁻¹²⁶` where a subnormal sum is flushed. Two paths therefore agree within twice that.
//!
//! The vector paths are those of single precision: a *pair* of bf16 has the size of a float, and a
//! convolution over pairs of channels is one over half as many channels ([`convolution`]).

mod convolution;
mod path;

use super::microkernel::Pairing;
use super::parallel::Units;
pub(super) use convolution::Mixed;
pub use path::{Arithmetic, MixedPath};

/// Rounds to bf16: to nearest, ties to even; subnormal numbers become zeros.
pub(super) fn round(number: f32) -> f32 {
    if number.is_nan() {
        return f32::NAN;
    }
    if number.is_subnormal() {
        return 0.0_f32.copysign(number);
    }
    let bits = number.to_bits();
    // Adds just below half of the last place kept, and the rest to half where that place is odd.
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    f32::from_bits(rounded & 0xffff_0000)
}

/// Rounds every number to bf16.
pub(super) fn round_all(source: &[f32], target: &mut [f32]) {
    for (target, &number) in target.iter_mut().zip(source) {
        *target = round(number);
    }
}

/// Blocks of equal length that lie one behind the other, some to an item.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub items: usize,
    pub per_item: usize,
    pub length: usize,
}

impl Blocks {
    /// Pairs of all items; an odd block is paired with zeros.
    pub fn pairs_len(self) -> usize {
        self.items * self.per_item.div_ceil(2) * self.length
    }

    /// Pairs every second block of an item with the next.
    pub fn pair(self, pairing: Pairing, source: &[f32], target: &mut [f32]) {
        let Self { items, per_item, length } = self;
        let pairs = per_item.div_ceil(2);
        let units = Units {
            count: items * pairs,
            flops_per_unit: length as u64,
            bounds: |unit| unit * length,
        };
        units.run(target, |unit, target| {
            let (item, pair) = (unit / pairs, unit % pairs);
            let first = (item * per_item + 2 * pair) * length;
            let has_second = 2 * pair + 1 < per_item;
            let second = has_second.then(|| &source[first + length..][..length]);
            pairing.pair(&source[first..][..length], second, target);
        });
    }
}

#[cfg(test)]
mod tests;
