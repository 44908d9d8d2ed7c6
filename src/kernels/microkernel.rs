//! The loops that run at the speed of the processor, once per instruction set.
//!
//! Everything here works on packed panels and is told by [`super::convolution`] what to do.
//! This is the only file of the package with unsafe code. Two facts carry its safety:
//! an [`Engine`] exists only if run-time detection found its instructions, and each method of
//! [`Engine`] checks the lengths of its slices before it hands out pointers into them.
#![expect(unsafe_code, reason = "vector instructions and the pointers they load from")]

use std::fmt;

use super::KernelError;

/// Instruction sets that the packed kernels know, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instructions {
    /// 512-bit vectors on x86-64.
    Avx512,
    /// 256-bit vectors with fused multiply-add on x86-64.
    Avx2,
    /// Whatever the compiler and the `gemm` crate make of any processor.
    Portable,
}

impl Instructions {
    /// All instruction sets, best first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// The best instruction set of the processor this runs on.
    pub fn detect() -> Self {
        Self::ALL.into_iter().find(|set| set.is_available()).unwrap_or(Self::Portable)
    }

    /// Whether the processor this runs on has these instructions.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// An error unless the processor has these instructions.
    ///
    /// # Errors
    /// [`KernelError::MissingInstructions`], with the best set that there is.
    pub fn require(self) -> Result<(), KernelError> {
        if self.is_available() {
            return Ok(());
        }
        Err(KernelError::MissingInstructions { wanted: self, best: Self::detect() })
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Portable => "portable",
        })
    }
}

/// What a tile of the product is added to.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    /// Nothing: the tile overwrites.
    Zero,
    /// One constant per row.
    Bias(&'a [f32]),
    /// What the output holds.
    Output,
}

/// A block of one matrix product: `rows × vectors·lanes` results, summed over `depth`.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub rows: usize,
    /// `depth × rows`, row-major.
    pub left: &'a [f32],
    /// Width of the right panel in vectors, 1 or 2.
    pub vectors: usize,
    /// `depth × vectors·lanes`, row-major.
    pub right: &'a [f32],
    pub depth: usize,
    pub start: Start<'a>,
    /// How many columns of the result to write.
    pub columns: usize,
}

/// Consecutive floats of a staged image that are also consecutive in a panel row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub source: usize,
    pub target: usize,
    pub length: usize,
}

/// A list of offsets that remembers its largest, so that one comparison checks them all.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    values: Vec<usize>,
    largest: usize,
}

impl Offsets {
    pub fn new(values: Vec<usize>) -> Self {
        let largest = values.iter().copied().max().unwrap_or(0);
        Self { values, largest }
    }

    pub fn values(&self) -> &[usize] {
        &self.values
    }
}

/// Runs of all panels of an image, with the same safeguard.
#[derive(Debug, Default)]
pub(super) struct Runs {
    values: Vec<Run>,
    source_end: usize,
    target_end: usize,
    longest: usize,
}

impl Runs {
    pub fn new(values: Vec<Run>) -> Self {
        let most = |of: fn(&Run) -> usize| values.iter().map(of).max().unwrap_or(0);
        Self {
            source_end: most(|run| run.source + run.length),
            target_end: most(|run| run.target + run.length),
            longest: most(|run| run.length),
            values,
        }
    }
}

/// A block of dot products: all pairs of a `left` and a `right` row.
#[derive(Clone, Copy)]
pub(super) struct Dots<'a> {
    pub left: &'a [f32],
    pub left_rows: usize,
    pub right: &'a [f32],
    pub right_rows: usize,
    /// Length of a row and distance between rows; a multiple of the lanes.
    pub depth: usize,
    /// Distance between the sums of neighbouring left rows.
    pub pitch: usize,
}

/// The vector kernels of one instruction set.
#[derive(Clone, Copy)]
pub(super) struct Engine {
    kernels: &'static Kernels,
}

/// Function table of one instruction set.
struct Kernels {
    lanes: usize,
    max_rows: usize,
    max_dots: usize,
    tiles: &'static [[TileKernel; 2]],
    dots: &'static [&'static [DotKernel]],
    pack: PackKernel,
    pack_half: PackKernel,
    scatter: ScatterKernel,
}

type TileKernel = unsafe fn(&Tile<'_>, *mut f32, usize);
type DotKernel = unsafe fn(*const f32, *const f32, usize, *mut f32, usize);
type PackKernel = unsafe fn(*const f32, &[usize], &[Run], *mut f32, usize);
type ScatterKernel = unsafe fn(*mut f32, &[usize], &[Run], *const f32, usize);

impl Engine {
    /// The kernels of `instructions`; `None` for the portable set, which has none.
    ///
    /// # Errors
    /// [`KernelError::MissingInstructions`].
    pub fn new(instructions: Instructions) -> Result<Option<Self>, KernelError> {
        instructions.require()?;
        Ok(match instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => Some(Self { kernels: &avx512::KERNELS }),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => Some(Self { kernels: &avx2::KERNELS }),
            _ => None,
        })
    }

    /// Floats in one vector.
    pub fn lanes(self) -> usize {
        self.kernels.lanes
    }

    /// Most rows of a tile.
    pub fn max_rows(self) -> usize {
        self.kernels.max_rows
    }

    /// Most rows on either side of a block of dot products.
    pub fn max_dots(self) -> usize {
        self.kernels.max_dots
    }

    /// Floats that packing may read and write past the end of a run.
    pub fn slack(self) -> usize {
        self.lanes()
    }

    /// Writes `tile` to `output`, whose rows are `pitch` apart.
    pub fn tile(self, tile: &Tile<'_>, output: &mut [f32], pitch: usize) {
        let width = tile.vectors * self.lanes();
        assert!(tile.left.len() >= tile.depth * tile.rows);
        assert!(tile.right.len() >= tile.depth * width);
        assert!((1..=width).contains(&tile.columns) && tile.columns + self.lanes() > width);
        assert!(output.len() >= (tile.rows - 1) * pitch + tile.columns);
        if let Start::Bias(bias) = tile.start {
            assert!(bias.len() >= tile.rows);
        }
        let kernel = self.kernels.tiles[tile.rows - 1][tile.vectors - 1];
        // SAFETY: the processor has the instructions, since `self` exists. The kernel reads
        // `depth·rows` floats on the left, `depth·width` on the right, a bias per row, and touches
        // `columns` floats of each of `rows` output rows; all were compared with the lengths above.
        unsafe { kernel(tile, output.as_mut_ptr(), pitch) }
    }

    /// Adds to `sums`, for every pair of rows, a vector whose lanes add up to the dot product.
    pub fn dots(self, block: &Dots<'_>, sums: &mut [f32]) {
        let lanes = self.lanes();
        assert!(block.depth.is_multiple_of(lanes) && block.pitch >= block.right_rows * lanes);
        assert!(block.left.len() >= block.left_rows * block.depth);
        assert!(block.right.len() >= block.right_rows * block.depth);
        assert!(sums.len() >= (block.left_rows - 1) * block.pitch + block.right_rows * lanes);
        let kernel = self.kernels.dots[block.left_rows - 1][block.right_rows - 1];
        let (left, right) = (block.left.as_ptr(), block.right.as_ptr());
        // SAFETY: the processor has the instructions. The kernel reads whole vectors of `depth`
        // floats per row and updates one vector per pair, within the lengths compared above.
        unsafe { kernel(left, right, block.depth, sums.as_mut_ptr(), block.pitch) }
    }

    /// Copies runs of `source` into the rows of `panel`, one row per offset in `depth`.
    ///
    /// Copies whole (half) vectors: what lies behind a run is read too, and written where a later
    /// run or nothing of use lies. Both slices therefore need [`Engine::slack`] floats more.
    pub fn pack(
        self,
        source: &[f32],
        (offsets, depth): (&Offsets, std::ops::Range<usize>),
        (runs, panel_runs): (&Runs, std::ops::Range<usize>),
        panel: &mut [f32],
        pitch: usize,
    ) {
        let rows = depth.len();
        assert!(runs.longest <= self.lanes());
        assert!(source.len() >= offsets.largest + runs.source_end + self.slack());
        assert!(panel.len() + pitch >= rows * pitch + runs.target_end + self.slack());
        let half = runs.longest * 2 <= self.lanes();
        let kernel = if half { self.kernels.pack_half } else { self.kernels.pack };
        let (offsets, runs) = (&offsets.values[depth], &runs.values[panel_runs]);
        // SAFETY: the processor has the instructions. No run is longer than what one copy moves,
        // and a copy starts inside its run, so it ends within the slack that was compared above.
        unsafe { kernel(source.as_ptr(), offsets, runs, panel.as_mut_ptr(), pitch) }
    }

    /// The reverse of [`Engine::pack`]: adds the rows of `panel` to the runs of `target`.
    pub fn scatter(
        self,
        target: &mut [f32],
        (offsets, rows): (&Offsets, std::ops::Range<usize>),
        (runs, panel_runs): (&Runs, std::ops::Range<usize>),
        panel: &[f32],
        pitch: usize,
    ) {
        assert!(runs.longest <= self.lanes());
        assert!(target.len() >= offsets.largest + runs.source_end);
        assert!(panel.len() + pitch >= rows.len() * pitch + runs.target_end);
        let (offsets, runs) = (&offsets.values[rows], &runs.values[panel_runs]);
        let kernel = self.kernels.scatter;
        // SAFETY: the processor has the instructions. Each run is at most one vector long and the
        // kernel touches only its floats, which lie within the lengths compared above.
        unsafe { kernel(target.as_mut_ptr(), offsets, runs, panel.as_ptr(), pitch) }
    }
}

/// A matrix in a slice: element (`row`, `column`) at `row·row_pitch + column·column_pitch`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_pitch: usize,
    column_pitch: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix at the start of `values`.
    pub fn rows(values: &'a [f32], rows: usize, columns: usize) -> Self {
        let values = &values[..rows * columns];
        Self { values, rows, columns, row_pitch: columns, column_pitch: 1 }
    }

    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_pitch: self.column_pitch,
            column_pitch: self.row_pitch,
            ..self
        }
    }
}

/// A matrix product for the `gemm` crate.
pub(super) struct Product<'a> {
    pub left: Matrix<'a>,
    pub right: Matrix<'a>,
    /// Row-major.
    pub output: &'a mut [f32],
    /// Whether to add to what the output holds instead of overwriting it.
    pub accumulate: bool,
    pub threads: usize,
}

/// `output = left · right`, on any processor.
pub(super) fn multiply(product: Product<'_>) {
    let Product { left, right, output, accumulate, threads } = product;
    assert_eq!(left.columns, right.rows);
    assert!(output.len() >= left.rows * right.columns);
    let parallelism =
        if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    // A pitch is below the length of its slice, which is at most `isize::MAX` bytes.
    let pitch = |pitch: usize| pitch.cast_signed();
    // SAFETY: the matrices lie within their slices: `Matrix::rows` cuts the inputs to size, a
    // transposed matrix has the same elements, and the output's length was compared above.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            output.as_mut_ptr(),
            1,
            pitch(right.columns),
            accumulate,
            left.values.as_ptr(),
            pitch(left.column_pitch),
            pitch(left.row_pitch),
            right.values.as_ptr(),
            pitch(right.column_pitch),
            pitch(right.row_pitch),
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The kernels in terms of the vector operations that the surrounding module defines.
macro_rules! kernels {
    ($features:literal, $half:literal) => {
        /// See [`Engine::tile`].
        #[target_feature(enable = $features)]
        unsafe fn tile<const ROWS: usize, const VECTORS: usize>(
            tile: &Tile<'_>,
            output: *mut f32,
            pitch: usize,
        ) {
            let mut sums = [[zero(); VECTORS]; ROWS];
            let mut left = tile.left.as_ptr();
            let mut right = tile.right.as_ptr();
            for _ in 0..tile.depth {
                let mut columns = [zero(); VECTORS];
                for (v, column) in columns.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for `depth` rows of the right panel.
                    *column = unsafe { load(right.add(v * LANES)) };
                }
                for (r, row) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for `depth` rows of the left panel.
                    let factor = splat(unsafe { *left.add(r) });
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = multiply_add(factor, column, *sum);
                    }
                }
                // SAFETY: one row further is still within the panel or just at its end.
                (left, right) = unsafe { (left.add(ROWS), right.add(VECTORS * LANES)) };
            }
            let last = tile.columns - (VECTORS - 1) * LANES;
            for (r, row) in sums.into_iter().enumerate() {
                for (v, sum) in row.into_iter().enumerate() {
                    let count = if v + 1 == VECTORS { last } else { LANES };
                    // SAFETY: `count` floats from here on belong to this row of the output.
                    unsafe {
                        let place = output.add(r * pitch + v * LANES);
                        let sum = match tile.start {
                            Start::Zero => sum,
                            Start::Bias(bias) => add(sum, splat(*bias.as_ptr().add(r))),
                            Start::Output => add(sum, load_first(place, count)),
                        };
                        store_first(place, count, sum);
                    }
                }
            }
        }

        /// See [`Engine::dots`].
        #[target_feature(enable = $features)]
        unsafe fn dots<const LEFT: usize, const RIGHT: usize>(
            left: *const f32,
            right: *const f32,
            depth: usize,
            sums: *mut f32,
            pitch: usize,
        ) {
            let mut totals = [[zero(); RIGHT]; LEFT];
            let mut at = 0;
            while at < depth {
                let mut columns = [zero(); RIGHT];
                for (j, column) in columns.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for `RIGHT` rows of `depth` floats.
                    *column = unsafe { load(right.add(j * depth + at)) };
                }
                for (i, row) in totals.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for `LEFT` rows of `depth` floats.
                    let factor = unsafe { load(left.add(i * depth + at)) };
                    for (total, column) in row.iter_mut().zip(columns) {
                        *total = multiply_add(factor, column, *total);
                    }
                }
                at += LANES;
            }
            for (i, row) in totals.into_iter().enumerate() {
                for (j, total) in row.into_iter().enumerate() {
                    // SAFETY: the caller vouches for a vector of sums per pair.
                    unsafe {
                        let place = sums.add(i * pitch + j * LANES);
                        store(place, add(load(place), total));
                    }
                }
            }
        }

        /// See [`Engine::pack`]; each copy moves `WIDTH` floats.
        #[target_feature(enable = $features)]
        unsafe fn pack<const WIDTH: usize>(
            source: *const f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *mut f32,
            pitch: usize,
        ) {
            for (row, &offset) in offsets.iter().enumerate() {
                for run in runs {
                    // SAFETY: the caller vouches for a vector of slack behind both places, and
                    // the two slices, one shared and one exclusive, cannot overlap.
                    unsafe {
                        let from = source.add(offset + run.source).cast::<[f32; WIDTH]>();
                        let to = panel.add(row * pitch + run.target).cast::<[f32; WIDTH]>();
                        std::ptr::copy_nonoverlapping(from, to, 1);
                    }
                }
            }
        }

        /// See [`Engine::scatter`].
        #[target_feature(enable = $features)]
        unsafe fn scatter(
            target: *mut f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *const f32,
            pitch: usize,
        ) {
            for (row, &offset) in offsets.iter().enumerate() {
                for run in runs {
                    // SAFETY: the caller vouches for the floats of the run on both sides.
                    unsafe {
                        let from = panel.add(row * pitch + run.target);
                        let to = target.add(offset + run.source);
                        let sum = add(load_first(from, run.length), load_first(to, run.length));
                        store_first(to, run.length, sum);
                    }
                }
            }
        }

        const PACK: PackKernel = pack::<LANES>;
        const PACK_HALF: PackKernel = pack::<$half>;
    };
}

/// `[[tile::<1, 1>, tile::<1, 2>], [tile::<2, 1>, …], …]`
#[cfg(target_arch = "x86_64")]
macro_rules! tile_table {
    ($($rows:literal)*) => { &[$([tile::<$rows, 1>, tile::<$rows, 2>]),*] };
}

/// `[[dots::<1, 1>, dots::<1, 2>, …], [dots::<2, 1>, …], …]`
#[cfg(target_arch = "x86_64")]
macro_rules! dot_table {
    ($($left:literal)*; $right:tt) => { &[$(dot_table!(row $left $right)),*] };
    (row $left:literal ($($right:literal)*)) => { &[$(dots::<$left, $right>),*] };
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::*;

    const LANES: usize = 16;

    pub(super) static KERNELS: Kernels = Kernels {
        lanes: LANES,
        max_rows: 14,
        max_dots: 5,
        tiles: tile_table!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        dots: dot_table!(1 2 3 4 5; (1 2 3 4 5)),
        pack: PACK,
        pack_half: PACK_HALF,
        scatter,
    };

    kernels!("avx512f", 8);

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> __m512 {
        _mm512_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn splat(value: f32) -> __m512 {
        _mm512_set1_ps(value)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller vouches for one vector.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(to: *mut f32, value: __m512) {
        // SAFETY: the caller vouches for one vector.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    /// The first `count` lanes, 1 to 16; the others are 0.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_first(from: *const f32, count: usize) -> __m512 {
        // SAFETY: the caller vouches for `count` floats; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(0xffff >> (LANES - count), from) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store_first(to: *mut f32, count: usize, value: __m512) {
        // SAFETY: the caller vouches for `count` floats; masked lanes are not written.
        unsafe {
            if count == LANES {
                _mm512_storeu_ps(to, value);
            } else {
                _mm512_mask_storeu_ps(to, 0xffff >> (LANES - count), value);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    const LANES: usize = 8;

    pub(super) static KERNELS: Kernels = Kernels {
        lanes: LANES,
        max_rows: 6,
        max_dots: 3,
        tiles: tile_table!(1 2 3 4 5 6),
        dots: dot_table!(1 2 3; (1 2 3)),
        pack: PACK,
        pack_half: PACK_HALF,
        scatter,
    };

    kernels!("avx2,fma", 4);

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
            if count == LANES {
                _mm256_loadu_ps(from)
            } else {
                _mm256_maskload_ps(from, mask(count))
            }
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
}
