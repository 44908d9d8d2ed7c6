//! How fast a processor multiplies and adds when nothing else is in the way.

use std::hint::black_box;

use super::{Instructions, KernelError, MixedPath};

/// What each number is multiplied with; with [`ADDEND`] it tends to 1, so no number grows or
/// becomes subnormal.
const FACTOR: f32 = 0.5;
const ADDEND: f32 = 0.5;

/// Independent sums per vector register set: enough to hide the latency of a multiply-add.
const SUMS: usize = 12;

/// Floats of one of [`SUMS`] numbers in portable code, which the compiler turns into vectors.
const PORTABLE_LANES: usize = 4;

/// Multiplies and adds numbers that stay in registers, and returns how many floating-point
/// operations that were, a multiply-add counted as two.
///
/// Over the time that it takes this is the peak of one core with these instructions; the portable
/// path has what the compiler makes of plain code for the oldest processor of the architecture.
///
/// # Errors
/// [`KernelError::MissingInstructions`] where the processor lacks them.
pub fn multiply_add_in_registers(
    instructions: Instructions,
    rounds: u64,
) -> Result<u64, KernelError> {
    instructions.require()?;
    let lanes = match instructions {
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => {
            // SAFETY: the processor has the instructions, as was required above.
            unsafe { avx512(rounds) };
            16
        }
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => {
            // SAFETY: as above.
            unsafe { avx2(rounds) };
            8
        }
        _ => {
            portable(rounds);
            PORTABLE_LANES as u64
        }
    };
    Ok(2 * lanes * SUMS as u64 * rounds)
}

/// As [`multiply_add_in_registers`], with products of pairs of bf16 added to `f32` by the
/// instructions of `path`; 0 operations where the path has none of its own.
///
/// # Errors
/// [`KernelError::MissingMixedPath`] where the processor lacks them.
pub fn bf16_products_in_registers(path: MixedPath, rounds: u64) -> Result<u64, KernelError> {
    path.require()?;
    match path {
        #[cfg(target_arch = "x86_64")]
        MixedPath::Amx => Ok(super::amx::products(rounds)),
        #[cfg(target_arch = "x86_64")]
        MixedPath::Avx512Bf16 => {
            // SAFETY: the processor has the instructions, as was required above.
            unsafe { avx512_bf16(rounds) };
            Ok(4 * 16 * SUMS as u64 * rounds)
        }
        _ => Ok(0),
    }
}

/// Adds 1 and takes it off again, so no sum grows.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn avx512_bf16(rounds: u64) {
    use std::arch::x86_64::{
        __m512bh, _mm512_dpbf16_ps, _mm512_reduce_add_ps, _mm512_set1_epi32, _mm512_set1_ps,
    };
    /// 1 in the lower half and −1 in the upper one.
    const PAIR: u32 = 0xbf80_3f80;
    /// Twice 1.
    const ONES: u32 = 0x3f80_3f80;
    let pair = |bits: u32| -> __m512bh {
        let bits = _mm512_set1_epi32(black_box(bits).cast_signed());
        // SAFETY: vectors of the same size, all of whose bits have a meaning in either type.
        unsafe { std::mem::transmute(bits) }
    };
    let (left, right) = (pair(PAIR), pair(ONES));
    let mut sums = [_mm512_set1_ps(0.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, left, right);
        }
    }
    black_box(sums.map(|sum| _mm512_reduce_add_ps(sum)));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(rounds: u64) {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let (factor, addend) = (_mm512_set1_ps(black_box(FACTOR)), _mm512_set1_ps(black_box(ADDEND)));
    let mut sums = [_mm512_set1_ps(0.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, addend);
        }
    }
    black_box(sums.map(|sum| _mm512_reduce_add_ps(sum)));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(rounds: u64) {
    use std::arch::x86_64::{_mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
    let (factor, addend) = (_mm256_set1_ps(black_box(FACTOR)), _mm256_set1_ps(black_box(ADDEND)));
    let mut sums = [_mm256_set1_ps(0.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, addend);
        }
    }
    black_box(sums.map(|sum| _mm256_cvtss_f32(sum)));
}

fn portable(rounds: u64) {
    let (factor, addend) = (black_box(FACTOR), black_box(ADDEND));
    let mut sums = [[0.0_f32; PORTABLE_LANES]; SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            for number in sum {
                *number = *number * factor + addend;
            }
        }
    }
    black_box(sums);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_path_counts_two_operations_per_lane_sum_and_round() {
        for (instructions, lanes) in
            [(Instructions::Avx512, 16), (Instructions::Avx2, 8), (Instructions::Portable, 4)]
        {
            let expected = instructions.require().map(|()| 2 * lanes * SUMS as u64 * 10);
            assert_eq!(multiply_add_in_registers(instructions, 10), expected);
        }
    }
}
