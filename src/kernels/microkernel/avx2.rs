//! Vectors of 256 bits.

use std::arch::x86_64::*;

use super::kernels::low_bits;
use super::*;

type Vector = __m256;
/// A number of 32 bits per lane.
type Numbers = __m256i;
const LANES: usize = 8;
const HALF: usize = LANES / 2;

pub(super) static KERNELS: Kernels = Kernels {
    lanes: LANES,
    max_rows: 6,
    max_dots: 3,
    tiles: tile_table!(1: (1 2 3 4 5 6), 2: (1 2 3 4 5 6), 3: (1 2 3 4)),
    directs: direct_table!(1 2 3 4 5 6),
    dots: dot_table!(1 2 3; (1 2 3)),
    staged_dots: staged_dot_table!(1 2 3; (1 2 3)),
    copy_rows: [copy_rows::<1>, copy_rows::<2>, copy_rows::<4>],
    sum,
    pack,
    scatter,
    transpose,
    transform_tiles,
    transform_gradients,
    transform_back,
    max_of_windows: [max_of_windows::<1>, max_of_windows::<2>],
    sums_of_windows: [sums_of_windows::<1>, sums_of_windows::<2>],
    pairs: None,
    of_half_vectors: None,
};

/// The same where vectors of this length have 32 registers, which are enough for larger blocks.
pub(super) static WITH_32_REGISTERS: Kernels = Kernels {
    max_dots: 5,
    dots: with_32_registers::DOTS,
    staged_dots: with_32_registers::STAGED_DOTS,
    ..KERNELS
};

mod with_32_registers {
    use super::*;

    pub(super) static DOTS: &[&[DotKernel]] = dot_table!(1 2 3 4 5; (1 2 3 4 5));
    pub(super) static STAGED_DOTS: &[&[[StagedDotKernel; 2]]] =
        staged_dot_table!(1 2 3 4 5; (1 2 3 4 5));

    dot_products!("avx2,fma,avx512f,avx512vl");
}

products!("avx2,fma");
dot_products!("avx2,fma");
kernels!("avx2,fma");

/// See [`Engine::transpose`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn transpose(
    source: *const f32,
    source_pitch: usize,
    rows: usize,
    columns: usize,
    target: *mut f32,
    target_pitch: usize,
) {
    let whole = rows - rows % LANES;
    // The last rows come first: the zeros that they leave in the next target row are then
    // overwritten by the first rows.
    for row in std::iter::once(whole).chain((0..whole).step_by(LANES)) {
        // SAFETY: the rows from `row` on are part of the matrix, on both sides.
        unsafe {
            let (source, target) = (source.add(row * source_pitch), target.add(row));
            let strip = match (rows - row).min(LANES) {
                0 => continue,
                1 => transpose_rows::<1>,
                2 => transpose_rows::<2>,
                3 => transpose_rows::<3>,
                4 => transpose_rows::<4>,
                5 => transpose_rows::<5>,
                6 => transpose_rows::<6>,
                7 => transpose_rows::<7>,
                _ => transpose_rows::<8>,
            };
            strip(source, source_pitch, columns, target, target_pitch);
        }
    }
}

/// Transposes `ROWS` rows, at most 8; the missing ones count as zeros.
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose_rows<const ROWS: usize>(
    source: *const f32,
    source_pitch: usize,
    columns: usize,
    target: *mut f32,
    target_pitch: usize,
) {
    for column in (0..columns).step_by(LANES) {
        let count = (columns - column).min(LANES);
        let mut block = [zero(); LANES];
        for (row, vector) in block.iter_mut().take(ROWS).enumerate() {
            // SAFETY: the caller vouches for `columns` floats in each of `ROWS` rows.
            *vector = unsafe { load_first(source.add(row * source_pitch + column), count) };
        }
        for (at, vector) in transpose_block(block).into_iter().take(count).enumerate() {
            // SAFETY: the caller vouches for a vector from the start of each target row.
            unsafe { store(target.add((column + at) * target_pitch), vector) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn transpose_block(rows: [__m256; 8]) -> [__m256; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    let pairs = |a, b, c, d| {
        let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (low_next, high_next) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(low, low_next),
            _mm256_shuffle_ps::<0xee>(low, low_next),
            _mm256_shuffle_ps::<0x44>(high, high_next),
            _mm256_shuffle_ps::<0xee>(high, high_next),
        ]
    };
    // Four columns of the left and of the right half, first of rows a to d, then of e to h.
    let (upper, lower) = (pairs(a, b, c, d), pairs(e, f, g, h));
    let mut columns = [zero(); 8];
    for at in 0..4 {
        columns[at] = _mm256_permute2f128_ps::<0x20>(upper[at], lower[at]);
        columns[at + 4] = _mm256_permute2f128_ps::<0x31>(upper[at], lower[at]);
    }
    columns
}

/// Eight ones and eight zeros: a mask of `count` lanes starts `8 - count` from the front.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline]
#[target_feature(enable = "avx2,fma")]
fn zero() -> __m256 {
    _mm256_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn splat(value: f32) -> __m256 {
    _mm256_set1_ps(value)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn subtract(a: __m256, b: __m256) -> __m256 {
    _mm256_sub_ps(a, b)
}

/// The lanes of even number, of both vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn every_second(low: __m256, high: __m256) -> __m256 {
    let halves = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
    _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(halves))
}

/// `first` and on in steps of `stride`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn places(first: usize, stride: usize) -> Numbers {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let steps = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(low_bits(stride)));
    _mm256_add_epi32(_mm256_set1_epi32(low_bits(first)), steps)
}

/// The larger pixels with their places; the first of equals, and NaN over all.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn larger(largest: (__m256, Numbers), pixel: (__m256, Numbers)) -> (__m256, Numbers) {
    let greater = _mm256_cmp_ps::<_CMP_GT_OQ>(pixel.0, largest.0);
    let taken = _mm256_or_ps(greater, _mm256_cmp_ps::<_CMP_UNORD_Q>(pixel.0, pixel.0));
    let place = _mm256_blendv_epi8(largest.1, pixel.1, _mm256_castps_si256(taken));
    (_mm256_blendv_ps(largest.0, pixel.0, taken), place)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store_places(to: *mut u32, count: usize, places: Numbers) {
    // SAFETY: the caller vouches for `count` numbers of 32 bits; they are moved as they are.
    unsafe { store_first(to.cast(), count, _mm256_castsi256_ps(places)) }
}

/// Lanes of `even` and `odd` in turn, as two vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn interleave(even: __m256, odd: __m256) -> [__m256; 2] {
    let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
    [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply(a: __m256, b: __m256) -> __m256 {
    _mm256_mul_ps(a, b)
}

/// `c − a·b`, rounded once.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn subtract_product(a: __m256, b: __m256, c: __m256) -> __m256 {
    _mm256_fnmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
    _mm256_fmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load(from: *const f32) -> __m256 {
    // SAFETY: the caller vouches for one vector.
    unsafe { _mm256_loadu_ps(from) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store(to: *mut f32, value: __m256) {
    // SAFETY: the caller vouches for one vector.
    unsafe { _mm256_storeu_ps(to, value) }
}

/// `before` with the lanes from `lane` on replaced by the floats at `from`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_last(before: __m256, from: *const f32, lane: usize) -> __m256 {
    // SAFETY: the caller vouches for the floats of these lanes; the others are not read.
    unsafe {
        let kept = mask(lane);
        let taken = _mm256_xor_si256(kept, _mm256_set1_epi32(-1));
        let values = _mm256_maskload_ps(from.wrapping_sub(lane), taken);
        _mm256_blendv_ps(values, before, _mm256_castsi256_ps(kept))
    }
}

/// Writes `length` lanes from `lane` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store_some(to: *mut f32, (lane, length): (usize, usize), value: __m256) {
    let taken = _mm256_andnot_si256(mask(lane), mask(lane + length));
    // SAFETY: the caller vouches for `length` floats; masked lanes are not written.
    unsafe { _mm256_maskstore_ps(to.wrapping_sub(lane), taken, value) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn mask(count: usize) -> __m256i {
    let masks = &MASKS[LANES - count..][..LANES];
    // SAFETY: the slice holds one vector.
    unsafe { _mm256_loadu_si256(masks.as_ptr().cast()) }
}

/// The first `count` lanes, 1 to 8; the others are 0.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_first(from: *const f32, count: usize) -> __m256 {
    // SAFETY: the caller vouches for `count` floats; masked lanes are not read.
    unsafe {
        if count == LANES { _mm256_loadu_ps(from) } else { _mm256_maskload_ps(from, mask(count)) }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store_first(to: *mut f32, count: usize, value: __m256) {
    // SAFETY: the caller vouches for `count` floats; masked lanes are not written.
    unsafe {
        if count == LANES {
            _mm256_storeu_ps(to, value);
        } else {
            _mm256_maskstore_ps(to, mask(count), value);
        }
    }
}
