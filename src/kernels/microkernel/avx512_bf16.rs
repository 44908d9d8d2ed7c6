//! Pairs of bf16 in vectors of 512 bits: every lane holds two numbers that are neighbours in depth.

use std::arch::x86_64::*;

use super::avx512::{add, load, load_first, load_last, splat, store, store_first, zero};
use super::*;

const LANES: usize = 16;

pub(super) static KERNELS: Kernels = Kernels {
    tiles: tile_table!(1: (1 2 3 4 5 6 7 8 9 10 11 12 13 14), 2: (1 2 3 4 5 6 7 8 9 10 11 12 13 14), 3: (1 2 3 4 5 6 7 8 9)),
    directs: direct_table!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    dots: dot_table!(1 2 3 4 5; (1 2 3 4 5)),
    staged_dots: staged_dot_table!(1 2 3 4 5; (1 2 3 4 5)),
    pairs: Some(&PAIRS),
    of_half_vectors: None,
    ..avx512::KERNELS
};

pub(super) static PAIRS: PairKernels = PairKernels { pair, pair_neighbours };

products!("avx512f,avx512bf16");
dot_products!("avx512f,avx512bf16");

/// `c` plus the products of both numbers of every lane; each addition is rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
    // SAFETY: vectors of the same size, all of whose bits have a meaning in either type.
    let (a, b) = unsafe { (transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b)) };
    _mm512_dpbf16_ps(c, a, b)
}

/// 16 numbers rounded to bf16, each in the lower half of its lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn rounded(numbers: __m512) -> __m512i {
    // SAFETY: vectors of the same size, all of whose bits have a meaning in either type.
    let halves: __m256i = unsafe { transmute(_mm512_cvtneps_pbh(numbers)) };
    _mm512_cvtepu16_epi32(halves)
}

/// See [`Pairing::pair`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pair(first: *const f32, second: *const f32, count: usize, target: *mut f32) {
    for at in (0..count).step_by(LANES) {
        let length = (count - at).min(LANES);
        // SAFETY: the caller vouches for `count` numbers behind every pointer but a null one.
        unsafe {
            let mut pairs = rounded(load_first(first.add(at), length));
            if !second.is_null() {
                let upper = rounded(load_first(second.add(at), length));
                pairs = _mm512_or_si512(pairs, _mm512_slli_epi32::<16>(upper));
            }
            store_first(target.add(at), length, _mm512_castsi512_ps(pairs));
        }
    }
}

/// See [`Pairing::pair_neighbours`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pair_neighbours(source: *const f32, count: usize, target: *mut f32) {
    for at in (0..count).step_by(2 * LANES) {
        let length = (count - at).min(2 * LANES);
        // SAFETY: the caller vouches for `count` numbers and half as many pairs, rounded up; a
        // load of no number reads nothing.
        unsafe {
            let low = load_first(source.add(at), length.min(LANES));
            let high = match length.checked_sub(LANES) {
                None | Some(0) => zero(),
                Some(rest) => load_first(source.add(at + LANES), rest),
            };
            let pairs: __m512 = transmute(_mm512_cvtne2ps_pbh(high, low));
            store_first(target.add(at / 2), length.div_ceil(2), pairs);
        }
    }
}
