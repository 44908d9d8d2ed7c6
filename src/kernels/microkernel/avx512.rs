//! Vectors of 512 bits.

use std::arch::x86_64::*;

use super::kernels::low_bits;
use super::*;

type Vector = __m512;
/// A number of 32 bits per lane.
type Numbers = __m512i;
const LANES: usize = 16;
const HALF: usize = LANES / 2;

pub(super) static KERNELS: Kernels = Kernels {
    lanes: LANES,
    max_rows: 14,
    max_dots: 5,
    tiles: tile_table!(1: (1 2 3 4 5 6 7 8 9 10 11 12 13 14), 2: (1 2 3 4 5 6 7 8 9 10 11 12 13 14), 3: (1 2 3 4 5 6 7 8 9)),
    directs: direct_table!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    dots: dot_table!(1 2 3 4 5; (1 2 3 4 5)),
    staged_dots: staged_dot_table!(1 2 3 4 5; (1 2 3 4 5)),
    copy_rows: [copy_rows::<1>, copy_rows::<2>, copy_rows::<4>],
    sum,
    pack,
    scatter,
    transpose: super::avx2::transpose,
    transform_tiles,
    transform_gradients,
    transform_back,
    max_of_windows: [max_of_windows::<1>, max_of_windows::<2>],
    sums_of_windows: [sums_of_windows::<1>, sums_of_windows::<2>],
    pairs: None,
    of_half_vectors: Some(&super::avx2::WITH_32_REGISTERS),
};

products!("avx512f");
dot_products!("avx512f");
kernels!("avx512f");

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn zero() -> __m512 {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn splat(value: f32) -> __m512 {
    _mm512_set1_ps(value)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn add(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn subtract(a: __m512, b: __m512) -> __m512 {
    _mm512_sub_ps(a, b)
}

/// The lanes of even number, of both vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn every_second(low: __m512, high: __m512) -> __m512 {
    let lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    _mm512_permutex2var_ps(low, lanes, high)
}

/// `first` and on in steps of `stride`.
#[inline]
#[target_feature(enable = "avx512f")]
fn places(first: usize, stride: usize) -> Numbers {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let steps = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(low_bits(stride)));
    _mm512_add_epi32(_mm512_set1_epi32(low_bits(first)), steps)
}

/// The larger pixels with their places; the first of equals, and NaN over all.
#[inline]
#[target_feature(enable = "avx512f")]
fn larger(largest: (__m512, Numbers), pixel: (__m512, Numbers)) -> (__m512, Numbers) {
    let greater = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(pixel.0, largest.0);
    let taken = greater | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(pixel.0, pixel.0);
    let place = _mm512_mask_mov_epi32(largest.1, taken, pixel.1);
    (_mm512_mask_mov_ps(largest.0, taken, pixel.0), place)
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_places(to: *mut u32, count: usize, places: Numbers) {
    // SAFETY: the caller vouches for `count` numbers of 32 bits; they are moved as they are.
    unsafe { store_first(to.cast(), count, _mm512_castsi512_ps(places)) }
}

/// Lanes of `even` and `odd` in turn, as two vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn interleave(even: __m512, odd: __m512) -> [__m512; 2] {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    [_mm512_permutex2var_ps(even, low, odd), _mm512_permutex2var_ps(even, high, odd)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn multiply(a: __m512, b: __m512) -> __m512 {
    _mm512_mul_ps(a, b)
}

/// `c − a·b`, rounded once.
#[inline]
#[target_feature(enable = "avx512f")]
fn subtract_product(a: __m512, b: __m512, c: __m512) -> __m512 {
    _mm512_fnmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
    _mm512_fmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load(from: *const f32) -> __m512 {
    // SAFETY: the caller vouches for one vector.
    unsafe { _mm512_loadu_ps(from) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store(to: *mut f32, value: __m512) {
    // SAFETY: the caller vouches for one vector.
    unsafe { _mm512_storeu_ps(to, value) }
}

/// Writes `length` lanes from `lane` on.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_some(to: *mut f32, (lane, length): (usize, usize), value: __m512) {
    let mask = lanes_from(lane) & !lanes_from(lane + length);
    // SAFETY: the caller vouches for `length` floats; masked lanes are not written.
    unsafe { _mm512_mask_storeu_ps(to.wrapping_sub(lane), mask, value) }
}

/// Mask of the lanes from `lane` on; none for 16.
#[expect(clippy::cast_possible_truncation, reason = "what was shifted out does not count")]
fn lanes_from(lane: usize) -> __mmask16 {
    (0xffff_u32 << lane) as u16
}

/// `before` with the lanes from `lane` on replaced by the floats at `from`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_last(before: __m512, from: *const f32, lane: usize) -> __m512 {
    // SAFETY: the caller vouches for the floats of these lanes; the others are not read.
    unsafe { _mm512_mask_loadu_ps(before, lanes_from(lane), from.wrapping_sub(lane)) }
}

/// The first `count` lanes, 1 to 16; the others are 0.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_first(from: *const f32, count: usize) -> __m512 {
    // SAFETY: the caller vouches for `count` floats; masked lanes are not read.
    unsafe {
        if count == LANES {
            _mm512_loadu_ps(from)
        } else {
            _mm512_maskz_loadu_ps(0xffff >> (LANES - count), from)
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store_first(to: *mut f32, count: usize, value: __m512) {
    // SAFETY: the caller vouches for `count` floats; masked lanes are not written.
    unsafe {
        if count == LANES {
            _mm512_storeu_ps(to, value);
        } else {
            _mm512_mask_storeu_ps(to, 0xffff >> (LANES - count), value);
        }
    }
}
