//! Products of pairs of bf16 on AMX tiles: 16 rows of 16 pairs, with sums of 16 by 16 floats.
//!
//! Only products of panels go through tiles; what is left of an engine of pairs is that of
//! AVX-512 BF16. The left panel lies depth by depth, as for vectors, and is turned 16 depths at a
//! time, because a tile wants it row by row; the right panel lies as a tile wants it.
//!
//! The kernel is written in terms of a [`Unit`], of which there are two: the processor's, and for
//! tests one in plain Rust. The processor's has never been run, for want of such a processor.

use std::arch::asm;
use std::sync::OnceLock;

use super::*;

/// Rows of a tile, and pairs or floats in one.
const SIDE: usize = 16;
const TILE: usize = SIDE * SIDE;

/// What multiplies tiles: two of sums, each the product of one left tile with a right one.
trait Unit {
    /// Sets the sums to 0, for `rows` rows of sums and of the left tile.
    fn begin(rows: usize) -> Self;

    /// Adds the products of `rows` rows of 16 pairs on the left, `SIDE` floats apart, with 16 rows
    /// of `vectors · 16` pairs on the right.
    ///
    /// # Safety
    /// Both panels must have as many floats.
    unsafe fn add(&mut self, left: *const f32, right: *const f32, vectors: usize);

    /// Writes the sums, rows `2·SIDE` floats apart.
    fn end(self, sums: &mut [f32; 2 * TILE], vectors: usize);
}

pub(super) static KERNELS: Kernels = Kernels {
    max_rows: SIDE,
    tiles: &[&[tile::<Tiles> as TileKernel; SIDE], &[tile::<Tiles> as TileKernel; SIDE]],
    directs: &[],
    ..avx512_bf16::KERNELS
};

/// See [`Engine::tile`].
unsafe fn tile<U: Unit>(
    tile: &Tile<'_>,
    right: *const f32,
    steps: &[Step],
    output: *mut f32,
    pitch: usize,
) {
    let (rows, vectors, depth) = (tile.rows, tile.vectors, tile.depth);
    let (mut left, mut rest) = ([0.0_f32; TILE], [0.0_f32; 2 * TILE]);
    let mut unit = U::begin(rows);
    let width = vectors * SIDE;
    let blocks = |step| (0..depth).step_by(SIDE).map(move |first| (step, first));
    for (step, first) in steps.iter().flat_map(blocks) {
        let depths = SIDE.min(depth - first);
        if depths < SIDE {
            left.fill(0.0);
        }
        // SAFETY: the caller vouches for `depth` rows of either panel. Turning writes vectors of 8
        // from the start of each of `rows` rows of 16; the rest of the last rows is copied behind
        // zeros to where 16 of them can be read.
        unsafe {
            let from = tile.left.as_ptr().add(step.left + first * tile.left_pitch);
            avx2::transpose(from, tile.left_pitch, depths, rows, left.as_mut_ptr(), SIDE);
            let mut columns = right.add(step.right + first * width);
            if depths < SIDE {
                rest.as_mut_ptr().copy_from_nonoverlapping(columns, depths * width);
                columns = rest.as_ptr();
            }
            unit.add(left.as_ptr(), columns, vectors);
        }
    }
    let mut sums = [0.0; 2 * TILE];
    unit.end(&mut sums, vectors);
    for (row, sums) in sums.chunks_exact(2 * SIDE).take(rows).enumerate() {
        // SAFETY: the caller vouches for `columns` floats in each row of the output.
        let output =
            unsafe { std::slice::from_raw_parts_mut(output.add(row * pitch), tile.columns) };
        for (target, sum) in output.iter_mut().zip(sums) {
            *target = match tile.start {
                Start::Zero => *sum,
                Start::Bias(bias) => sum + bias[row],
                Start::Output => sum + *target,
            };
        }
    }
}

/// Shapes of the tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Tiles 0 and 1 for sums, 2 for the left, 3 and 4 for the right.
    fn new(rows: usize) -> Self {
        let rows = u8::try_from(rows).expect("a tile has at most 16 rows");
        let mut shapes = Shapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for (tile, rows) in [rows, rows, rows, 16, 16].into_iter().enumerate() {
            shapes.row_bytes[tile] = 64;
            shapes.rows[tile] = rows;
        }
        shapes
    }
}

/// The processor's tiles. It exists only on a path that was found available.
struct Tiles;

impl Unit for Tiles {
    fn begin(rows: usize) -> Self {
        let shapes = Shapes::new(rows);
        // SAFETY: the processor has tiles and the system lets this process use them, as
        // `is_available` found; the shapes are those of palette 1.
        unsafe {
            asm!(
                "ldtilecfg [{shapes}]", "tilezero tmm0", "tilezero tmm1",
                shapes = in(reg) &raw const shapes,
                options(nostack, readonly, preserves_flags),
            );
        }
        Tiles
    }

    unsafe fn add(&mut self, left: *const f32, right: *const f32, vectors: usize) {
        let (left_bytes, right_bytes) = (4 * SIDE, 4 * SIDE * vectors);
        // SAFETY: the caller vouches for the panels; the shapes are those of `begin`.
        unsafe {
            asm!(
                "tileloadd tmm2, [{left} + {left_bytes} * 1]",
                "tileloadd tmm3, [{right} + {right_bytes} * 1]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                left = in(reg) left, left_bytes = in(reg) left_bytes,
                right = in(reg) right, right_bytes = in(reg) right_bytes,
                options(nostack, readonly, preserves_flags),
            );
            if vectors == 2 {
                asm!(
                    "tileloadd tmm4, [{right} + {right_bytes} * 1]",
                    "tdpbf16ps tmm1, tmm2, tmm4",
                    right = in(reg) right.add(SIDE), right_bytes = in(reg) right_bytes,
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
    }

    fn end(self, sums: &mut [f32; 2 * TILE], _vectors: usize) {
        let sums = sums.as_mut_ptr();
        // SAFETY: both tiles fit side by side, with rows `2·SIDE` floats apart.
        unsafe {
            asm!(
                "tilestored [{first} + {bytes} * 1], tmm0",
                "tilestored [{second} + {bytes} * 1], tmm1",
                "tilerelease",
                first = in(reg) sums, second = in(reg) sums.add(SIDE), bytes = in(reg) 8 * SIDE,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Whether processor and system offer tiles of bf16 to this process, which asks for them once.
pub(super) fn is_available() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| has_instructions() && request_permission())
}

/// Bits 22 and 24 of what processors say of their features: bf16 on tiles, and tiles.
fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16_ON_TILES: u32 = 1 << 22 | 1 << 24;
    #[expect(unused_unsafe, reason = "older compilers call these two unsafe")]
    // SAFETY: every x86-64 processor has the instruction.
    let features = unsafe {
        if __cpuid(0).eax < 7 {
            return false;
        }
        __cpuid_count(7, 0).edx
    };
    features & BF16_ON_TILES == BF16_ON_TILES
}

/// Asks Linux to keep the tiles of this process's threads; they are too large to be kept unasked.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: usize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let outcome: isize;
    // SAFETY: the call reads no memory of ours and changes none; it clobbers what is named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => outcome,
            in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    outcome == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// Products of tiles that stay where they are; see [`super::bf16_products_in_registers`].
pub(super) fn products(rounds: u64) -> u64 {
    let (ones, mut sums) = ([0.0_f32; 2 * TILE], [0.0; 2 * TILE]);
    let mut tiles = Tiles::begin(SIDE);
    // SAFETY: the panels have 16 rows of one and of two vectors.
    unsafe { tiles.add(ones.as_ptr(), ones.as_ptr(), 2) };
    for _ in 0..rounds {
        // SAFETY: the tiles were shaped above.
        unsafe {
            asm!(
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tdpbf16ps tmm1, tmm2, tmm4",
                options(nostack, nomem, preserves_flags),
            );
        }
    }
    tiles.end(&mut sums, 2);
    2 * (2 * SIDE * SIDE * 2 * SIDE) as u64 * rounds
}

#[cfg(test)]
pub(super) static EMULATED: Kernels = Kernels {
    tiles: &[&[tile::<Emulated> as TileKernel; SIDE], &[tile::<Emulated> as TileKernel; SIDE]],
    ..KERNELS
};

/// Tiles in plain Rust, as the manual of the processor defines them.
#[cfg(test)]
struct Emulated {
    rows: usize,
    sums: [[[f32; SIDE]; SIDE]; 2],
}

#[cfg(test)]
impl Unit for Emulated {
    fn begin(rows: usize) -> Self {
        let shapes = Shapes::new(rows);
        assert_eq!(size_of::<Shapes>(), 64);
        assert_eq!(shapes.row_bytes[..6], [64, 64, 64, 64, 64, 0]);
        Emulated { rows: usize::from(shapes.rows[0]), sums: [[[0.0; SIDE]; SIDE]; 2] }
    }

    unsafe fn add(&mut self, left: *const f32, right: *const f32, vectors: usize) {
        // SAFETY: the caller vouches for the panels.
        let (left, right) = unsafe {
            (
                std::slice::from_raw_parts(left, self.rows * SIDE),
                std::slice::from_raw_parts(right, SIDE * vectors * SIDE),
            )
        };
        let halves = |pair: f32| {
            let bits = pair.to_bits();
            [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
        };
        for (at, sums) in self.sums.iter_mut().take(vectors).enumerate() {
            for (row, sums) in sums.iter_mut().take(self.rows).enumerate() {
                for depth in 0..SIDE {
                    let [even, odd] = halves(left[row * SIDE + depth]);
                    let columns = &right[(depth * vectors + at) * SIDE..];
                    for (sum, pair) in sums.iter_mut().zip(columns) {
                        let [even_column, odd_column] = halves(*pair);
                        *sum = odd.mul_add(odd_column, even.mul_add(even_column, *sum));
                    }
                }
            }
        }
    }

    fn end(self, sums: &mut [f32; 2 * TILE], _vectors: usize) {
        for (row, target) in sums.chunks_exact_mut(2 * SIDE).enumerate() {
            target[..SIDE].copy_from_slice(&self.sums[0][row]);
            target[SIDE..].copy_from_slice(&self.sums[1][row]);
        }
    }
}
