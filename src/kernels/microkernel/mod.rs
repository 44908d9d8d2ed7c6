//! The loops that run at the speed of the processor, once per instruction set.
//!
//! Everything here works on packed panels and is told by [`super::convolution`] what to do.
//! This is the only module of the package with unsafe code. Two facts carry its safety:
//! an [`Engine`] exists only if run-time detection found its instructions, and each method of
//! [`Engine`] checks the lengths of its slices before it hands out pointers into them.
#![expect(unsafe_code, reason = "vector instructions and the pointers they load from")]

#[cfg(target_arch = "x86_64")]
#[macro_use]
mod kernels;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod pairing;
mod peak;
mod product;

use std::fmt;
#[cfg(target_arch = "x86_64")]
use std::mem::transmute;
use std::ops::Range;

use super::{KernelError, MixedPath};

pub(super) use pairing::Pairing;
pub use peak::{bf16_products_in_registers, multiply_add_in_registers};
pub(super) use product::{Matrix, Product, multiply};

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
            Self::Avx512 => is_x86_feature_detected!("avx512f") && Self::Avx2.is_available(),
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

/// The right panel of a tile, `depth × vectors·lanes`.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    /// Row-major.
    Packed(&'a [f32]),
    /// Several such panels and as many on the left, over which the tile sums.
    Steps { panels: &'a [f32], steps: &'a [Step] },
    /// What packing from a staged image would give: the rows are at `depth` of `offsets`.
    Staged { stage: &'a [f32], offsets: &'a Offsets, first_depth: usize, places: &'a Places },
}

/// Where a left and a right panel begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub left: usize,
    pub right: usize,
}

/// A block of one matrix product: `rows × vectors·lanes` results, summed over `depth`.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub rows: usize,
    /// `depth × rows`; successive depths are `left_pitch` apart.
    pub left: &'a [f32],
    pub left_pitch: usize,
    /// Width of the right panel in vectors: 1 or 2, or for [`Right::Packed`] and [`Right::Steps`]
    /// up to [`Engine::max_vectors`].
    pub vectors: usize,
    pub right: Right<'a>,
    pub depth: usize,
    pub start: Start<'a>,
    /// How many columns of the result to write.
    pub columns: usize,
}

/// Consecutive floats of a staged image that are also consecutive in a panel row.
///
/// A run does not cross the border between two vectors of the panel row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub source: usize,
    pub target: usize,
    pub length: usize,
}

/// Consecutive pixels of an output plane that come out of one vector of 4×4 tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// Row within the tiles.
    pub row: usize,
    /// Which vector of pixels of that row: the quarter of the tiles.
    pub quarter: usize,
    /// First pixel within that vector.
    pub lane: usize,
    pub length: usize,
    /// Where the first pixel goes.
    pub place: usize,
}

/// Windows that slide over a plane with the same stride along both axes.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// Extent of the plane.
    pub height: usize,
    pub width: usize,
    /// Extent of a window.
    pub window_height: usize,
    pub window_width: usize,
    pub stride: usize,
    /// Rows and columns before the plane where windows may begin.
    pub padding: usize,
    /// Windows along the axes.
    pub rows: usize,
    pub columns: usize,
    /// Columns of windows that lie within the plane's columns.
    pub inner: Range<usize>,
}

impl Windows {
    /// Rows of the plane under the windows of row `y`.
    pub fn rows_under(&self, y: usize) -> Range<usize> {
        let start = y * self.stride;
        let end = (start + self.window_height).saturating_sub(self.padding).min(self.height);
        start.saturating_sub(self.padding).min(end)..end
    }

    /// Whether the inner windows of the planes of `input` and `output` are what they should be.
    fn is_valid(&self, input: usize, output: usize) -> bool {
        let Some(last) = self.inner.end.checked_sub(1) else { return true };
        input >= self.height * self.width
            && output >= self.rows * self.columns
            && self.inner.end <= self.columns
            && self.inner.start * self.stride >= self.padding
            && last * self.stride + self.window_width <= self.width + self.padding
    }
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

/// Most runs per vector that a tile reads without packing.
const MOST_RUNS: usize = 3;

/// The runs of a panel of two vectors, few enough for a tile to read them without packing.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Per vector and run, where it lies in the source and its first lane; a run whose first lane
    /// is behind the last is empty.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only vector kernels read the places")
    )]
    values: [[(usize, usize); MOST_RUNS]; 2],
    /// Runs of the vector that has more.
    most: usize,
    source_end: usize,
}

impl Runs {
    pub fn values(&self) -> &[Run] {
        &self.values
    }

    /// The runs of one panel as places; `None` if they are too many or make up only one vector.
    pub fn places(&self, panel_runs: Range<usize>, lanes: usize) -> Option<Places> {
        let mut values = [[(0, lanes); MOST_RUNS]; 2];
        let mut counts = [0; 2];
        for run in &self.values[panel_runs] {
            let vector = run.target / lanes;
            let count = counts.get_mut(vector)?;
            *values[vector].get_mut(*count)? = (run.source, run.target % lanes);
            *count += 1;
        }
        let most = counts[0].max(counts[1]);
        (counts[1] > 0).then_some(Places { values, most, source_end: self.source_end })
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

/// Runs that fill all lanes of some vectors.
#[derive(Debug)]
pub(super) struct VectorRuns {
    /// Per vector the place of its first run.
    first: Vec<usize>,
    /// Per vector its other runs, each a place and its first lane; empty if no vector has any.
    others: Vec<Vec<(usize, usize)>>,
    /// Largest place.
    last: usize,
}

impl VectorRuns {
    pub fn new(vectors: impl Iterator<Item = Vec<(usize, usize)>>) -> Self {
        let mut others: Vec<Vec<(usize, usize)>> = vectors.collect();
        let last = others.iter().flatten().map(|&(place, _)| place).max().unwrap_or(0);
        let first = others.iter_mut().map(|runs| runs.remove(0).0).collect();
        if others.iter().all(Vec::is_empty) {
            others.clear();
        }
        Self { first, others, last }
    }
}

/// [`Dots`] whose right rows are what packing from a staged image would give.
#[derive(Clone, Copy)]
pub(super) struct StagedDots<'a> {
    /// Images that are summed over.
    pub images: usize,
    pub left: &'a [f32],
    pub left_rows: usize,
    /// Distance between left rows.
    pub left_pitch: usize,
    /// Distance between the left rows of neighbouring images.
    pub left_image_pitch: usize,
    pub stage: &'a [f32],
    /// Distance between the staged images.
    pub stage_pitch: usize,
    /// One offset per right row.
    pub taps: &'a [usize],
    /// The runs of a row.
    pub runs: &'a VectorRuns,
    /// Distance between the sums of neighbouring left rows.
    pub pitch: usize,
}

/// Floats of a cache line.
const LINE_FLOATS: usize = 16;

/// Rows that [`Engine::transpose`] turns in one go.
pub(super) const TURNED: usize = 8;

/// Points of the interpolation in [`super::winograd`]: 0, ∞ and these with both signs.
pub(super) const NEAR: f32 = 0.75;
pub(super) const FAR: f32 = 1.5;

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
    /// Per vectors and rows.
    tiles: &'static [&'static [TileKernel]],
    directs: &'static [[DirectKernel; MOST_RUNS]],
    dots: &'static [&'static [DotKernel]],
    staged_dots: &'static [&'static [[StagedDotKernel; 2]]],
    /// For strides 1, 2 and 4.
    copy_rows: [CopyRowsKernel; 3],
    sum: SumKernel,
    pack: PackKernel,
    scatter: ScatterKernel,
    transpose: TransposeKernel,
    transform_tiles: TransformTilesKernel,
    transform_gradients: TransformGradientsKernel,
    transform_back: TransformBackKernel,
    /// For strides 1 and 2.
    max_of_windows: [MaxOfWindowsKernel; 2],
    sums_of_windows: [SumsOfWindowsKernel; 2],
    /// For engines whose elements are pairs of bf16.
    pairs: Option<&'static PairKernels>,
    /// The same with vectors of half the length; need AVX-512 VL.
    of_half_vectors: Option<&'static Kernels>,
}

/// The kernels that make pairs of bf16.
struct PairKernels {
    pair: PairKernel,
    pair_neighbours: PairNeighboursKernel,
}

type PairKernel = unsafe fn(*const f32, *const f32, usize, *mut f32);
type PairNeighboursKernel = unsafe fn(*const f32, usize, *mut f32);
/// Whether processor and system offer AMX tiles of bf16 to this process.
pub(super) fn has_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_tiles = amx::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    let has_tiles = false;
    has_tiles
}

type TileKernel = unsafe fn(&Tile<'_>, *const f32, &[Step], *mut f32, usize);
type DirectKernel = unsafe fn(&Tile<'_>, *const f32, &[usize], &Places, *mut f32, usize);
type DotKernel = unsafe fn(*const f32, *const f32, usize, *mut f32, usize);
type StagedDotKernel = unsafe fn(&StagedDots<'_>, *mut f32);
type CopyRowsKernel = unsafe fn((*const f32, usize), (*mut f32, usize), (usize, usize));
type SumKernel = unsafe fn(&[f32]) -> f32;
type PackKernel = unsafe fn(*const f32, &[usize], &[Run], *mut f32, usize);
type TransposeKernel = unsafe fn(*const f32, usize, usize, usize, *mut f32, usize);
type TransformTilesKernel =
    unsafe fn(*const f32, &[usize], &[usize; 36], &[Run], *mut f32, (usize, usize));
type TransformGradientsKernel =
    unsafe fn(*const f32, &[usize], &[usize; 16], *mut f32, (usize, usize));
type TransformBackKernel =
    unsafe fn((*const f32, usize, usize), usize, *const f32, &[Write], *mut f32, usize);
type MaxOfWindowsKernel = unsafe fn(&Windows, *const f32, *mut f32, *mut u32);
type SumsOfWindowsKernel = unsafe fn(&Windows, *const f32, *mut f32);
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

    /// The kernels of `path`, whose elements are pairs of bf16; `None` for the portable path, which
    /// has none.
    ///
    /// Every method works on pairs as on floats, with which they share their size, except that
    /// products are those of both numbers of a pair, and that sums are floats.
    ///
    /// # Errors
    /// [`KernelError::MissingMixedPath`].
    pub fn of_pairs(path: MixedPath) -> Result<Option<Self>, KernelError> {
        path.require()?;
        Ok(match path {
            #[cfg(target_arch = "x86_64")]
            MixedPath::Amx => Some(Self { kernels: &amx::KERNELS }),
            #[cfg(target_arch = "x86_64")]
            MixedPath::Avx512Bf16 => Some(Self { kernels: &avx512_bf16::KERNELS }),
            _ => None,
        })
    }

    /// The engine of AMX with its tiles in plain Rust, which needs AVX-512 BF16 for the rest.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub fn of_emulated_tiles() -> Option<Self> {
        MixedPath::Avx512Bf16.is_available().then_some(Self { kernels: &amx::EMULATED })
    }

    /// What makes pairs of bf16, where the elements of this engine are such.
    pub fn pairing(self) -> Option<Pairing> {
        self.kernels.pairs.map(|kernels| Pairing { kernels })
    }

    /// The same with vectors of half the length, where they have as many registers.
    pub fn of_half_vectors(self) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        let is_available = is_x86_feature_detected!("avx512vl");
        #[cfg(not(target_arch = "x86_64"))]
        let is_available = false;
        let kernels = self.kernels.of_half_vectors.filter(|_| is_available)?;
        Some(Self { kernels })
    }

    /// Floats in one vector.
    pub fn lanes(self) -> usize {
        self.kernels.lanes
    }

    /// Most vectors of a tile.
    pub fn max_vectors(self) -> usize {
        self.kernels.tiles.len()
    }

    /// Most rows of a tile of so many vectors.
    pub fn max_rows_of(self, vectors: usize) -> usize {
        self.kernels.tiles[vectors - 1].len()
    }

    /// Most rows of a tile of 1 or 2 vectors.
    pub fn max_rows(self) -> usize {
        self.kernels.max_rows
    }

    /// Whether a tile can read its right panel from a staged image.
    pub fn reads_stages(self) -> bool {
        !self.kernels.directs.is_empty()
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
        assert!(tile.depth > 0 && tile.left_pitch >= tile.rows);
        assert!((1..=width).contains(&tile.columns) && tile.columns + self.lanes() > width);
        assert!(output.len() >= (tile.rows - 1) * pitch + tile.columns);
        if let Start::Bias(bias) = tile.start {
            assert!(bias.len() >= tile.rows);
        }
        let left_len = (tile.depth - 1) * tile.left_pitch + tile.rows;
        let output = output.as_mut_ptr();
        let (panels, steps) = match tile.right {
            Right::Packed(panel) => (panel, &[Step::default()][..]),
            Right::Steps { panels, steps } => (panels, steps),
            Right::Staged { stage, offsets, first_depth, places } => {
                assert!(tile.vectors == 2 && tile.left.len() >= left_len);
                assert!(stage.len() >= offsets.largest + places.source_end + self.slack());
                let offsets = &offsets.values[first_depth..][..tile.depth];
                let kernel = self.kernels.directs[tile.rows - 1][places.most - 1];
                // SAFETY: as below, but for the right: the kernel loads a vector from the start of
                // each run, behind which there is room for one.
                return unsafe { kernel(tile, stage.as_ptr(), offsets, places, output, pitch) };
            }
        };
        for step in steps {
            assert!(tile.left.len() >= step.left + left_len);
            assert!(panels.len() >= step.right + tile.depth * width);
        }
        let kernel = self.kernels.tiles[tile.vectors - 1][tile.rows - 1];
        // SAFETY: the processor has the instructions, since `self` exists. The kernel reads, from
        // the start of every step, `rows` floats per depth on the left and `depth·width` on the
        // right, a bias per row, and touches `columns` floats of each of `rows` output rows; all
        // were compared with the lengths above.
        unsafe { kernel(tile, panels.as_ptr(), steps, output, pitch) }
    }

    /// Transforms tiles of 6×6 pixels for [`super::winograd`]: `Bᵀ·d·B`, a vector of tiles at once.
    ///
    /// For every item, the pixels of the vector's tiles are at its offset plus that of a tap plus
    /// that of a run; frequency `x` goes to `target[item·item_pitch + x·frequency_pitch]`.
    pub fn transform_tiles(
        self,
        source: &[f32],
        (items, range, taps): (&Offsets, Range<usize>, &[usize; 36]),
        (runs, vector_runs): (&Runs, Range<usize>),
        target: &mut [f32],
        (item_pitch, frequency_pitch): (usize, usize),
    ) {
        let largest_tap = taps.iter().copied().max().unwrap_or(0);
        let most = items.largest + largest_tap + runs.source_end + self.slack();
        assert!(source.len() >= most);
        let items = &items.values[range];
        let Some(last) = items.len().checked_sub(1) else { return };
        let needed = last * item_pitch + 35 * frequency_pitch + self.lanes();
        assert!(target.len() >= needed);
        let runs = &runs.values[vector_runs];
        let kernel = self.kernels.transform_tiles;
        let pitches = (item_pitch, frequency_pitch);
        // SAFETY: the processor has the instructions. A load begins in a run and ends within the
        // slack behind it, a store is one vector at an item's frequency; both were compared above.
        unsafe { kernel(source.as_ptr(), items, taps, runs, target.as_mut_ptr(), pitches) }
    }

    /// Transforms gradients of 4×4 pixels for [`super::winograd`]: `A·y·Aᵀ`, a vector of filters at
    /// once.
    ///
    /// For every item, pixel `i` is at `source[item + taps[i]]`; targets as in
    /// [`Engine::transform_tiles`].
    pub fn transform_gradients(
        self,
        source: &[f32],
        (items, range, taps): (&Offsets, Range<usize>, &[usize; 16]),
        target: &mut [f32],
        (item_pitch, frequency_pitch): (usize, usize),
    ) {
        let largest_tap = taps.iter().copied().max().unwrap_or(0);
        assert!(source.len() >= items.largest + largest_tap + self.lanes());
        let items = &items.values[range];
        let Some(last) = items.len().checked_sub(1) else { return };
        let needed = last * item_pitch + 35 * frequency_pitch + self.lanes();
        assert!(target.len() >= needed);
        let kernel = self.kernels.transform_gradients;
        let pitches = (item_pitch, frequency_pitch);
        // SAFETY: as for tiles; a load is one vector at an item's tap.
        unsafe { kernel(source.as_ptr(), items, taps, target.as_mut_ptr(), pitches) }
    }

    /// Transforms products back for [`super::winograd`]: `Aᵀ·m·A` plus a bias, a vector of tiles at
    /// once, for every row of `products` (pitch, and pitch between frequencies).
    ///
    /// Each write takes some of the pixels that come out for the vector to their place in the
    /// plane of the row; planes are `plane_pitch` apart.
    pub fn transform_back(
        self,
        (products, row_pitch, frequency_pitch): (&[f32], usize, usize),
        (rows, bias): (usize, Option<&[f32]>),
        writes: &[Write],
        (output, plane_pitch): (&mut [f32], usize),
    ) {
        let lanes = self.lanes();
        assert!(rows > 0 && bias.is_none_or(|bias| bias.len() >= rows));
        assert!(products.len() >= (rows - 1) * row_pitch + 35 * frequency_pitch + lanes);
        for write in writes {
            assert!(write.row.max(write.quarter) < 4 && write.lane + write.length <= lanes);
            assert!(output.len() >= (rows - 1) * plane_pitch + write.place + write.length);
        }
        let kernel = self.kernels.transform_back;
        let bias = bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
        let products = (products.as_ptr(), row_pitch, frequency_pitch);
        // SAFETY: the processor has the instructions. The kernel reads a vector per frequency and
        // row, a bias per row if there is one, and performs the writes in each row's plane; all
        // were compared with the lengths above.
        unsafe { kernel(products, rows, bias, writes, output.as_mut_ptr(), plane_pitch) }
    }

    /// Largest pixel of each inner window and its place in the plane; see [`super::max_pooling`].
    ///
    /// Returns `false` and does nothing for a stride that has no kernel.
    pub fn max_of_windows(
        self,
        windows: &Windows,
        input: &[f32],
        output: &mut [f32],
        winners: &mut [u32],
    ) -> bool {
        assert!(windows.is_valid(input.len(), output.len().min(winners.len())));
        let Some(kernel) = self.kernels.max_of_windows.get(windows.stride - 1) else {
            return false;
        };
        // SAFETY: the processor has the instructions. Every inner window lies within the columns
        // of the plane, its rows are cut to those of the plane, and the planes have the lengths
        // that were compared above.
        unsafe { kernel(windows, input.as_ptr(), output.as_mut_ptr(), winners.as_mut_ptr()) };
        true
    }

    /// Sums of the pixels of each inner window.
    ///
    /// Returns `false` and does nothing for a stride that has no kernel.
    pub fn sums_of_windows(self, windows: &Windows, input: &[f32], output: &mut [f32]) -> bool {
        assert!(windows.is_valid(input.len(), output.len()));
        let Some(kernel) = self.kernels.sums_of_windows.get(windows.stride - 1) else {
            return false;
        };
        // SAFETY: as for the largest pixels.
        unsafe { kernel(windows, input.as_ptr(), output.as_mut_ptr()) };
        true
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

    /// As [`Engine::dots`], with right rows from a staged image.
    pub fn dots_of_stages(self, block: &StagedDots<'_>, sums: &mut [f32]) {
        let lanes = self.lanes();
        let last_tap = block.taps.iter().copied().max().unwrap_or(0);
        let stages_len =
            (block.images - 1) * block.stage_pitch + block.runs.last + last_tap + lanes;
        assert!(block.stage.len() >= stages_len);
        let row_len = block.runs.first.len() * lanes;
        let rows_len = (block.left_rows - 1) * block.left_pitch + row_len;
        assert!(block.left.len() >= (block.images - 1) * block.left_image_pitch + rows_len);
        assert!(block.pitch >= block.taps.len() * lanes);
        assert!(sums.len() >= (block.left_rows - 1) * block.pitch + block.taps.len() * lanes);
        let straddling = usize::from(!block.runs.others.is_empty());
        let kernels = self.kernels.staged_dots[block.left_rows - 1][block.taps.len() - 1];
        let kernel = kernels[straddling];
        // SAFETY: the processor has the instructions. The kernel reads a vector from the start of
        // every run, a vector of every left row per vector of runs, and updates one vector per
        // pair of rows; all were compared with the lengths above.
        unsafe { kernel(block, sums.as_mut_ptr()) }
    }

    /// Has the processor fetch what will be written soon.
    pub fn fetch(self, places: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        for line in places.chunks(LINE_FLOATS) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch changes nothing that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = places;
    }

    /// The sum of `values`, lane by lane and then over the lanes.
    pub fn sum(self, values: &[f32]) -> f32 {
        let kernel = self.kernels.sum;
        // SAFETY: the processor has the instructions; the kernel reads the floats of the slice.
        unsafe { kernel(values) }
    }

    /// Copies every `stride`-th float, `count` of them, of `rows` rows to consecutive places.
    ///
    /// Returns `false` and does nothing for a stride that has no kernel.
    pub fn copy_rows(
        self,
        (source, source_pitch): (&[f32], usize),
        (target, target_pitch): (&mut [f32], usize),
        (rows, count): (usize, usize),
        stride: usize,
    ) -> bool {
        let [one, two, four] = self.kernels.copy_rows;
        let kernel = match stride {
            1 => one,
            2 => two,
            4 => four,
            _ => return false,
        };
        if rows > 0 && count > 0 {
            assert!(source.len() > (rows - 1) * source_pitch + (count - 1) * stride);
            assert!(target.len() >= (rows - 1) * target_pitch + count);
            let source = (source.as_ptr(), source_pitch);
            let target = (target.as_mut_ptr(), target_pitch);
            // SAFETY: the processor has the instructions, and the last float of the last row lies
            // within both slices, as was compared above.
            unsafe { kernel(source, target, (rows, count)) }
        }
        true
    }

    /// Copies runs of `source` into the rows of `panel`, one row per offset in `depth`.
    ///
    /// Moves whole vectors: what lies behind a run is read too, and the last vector of a row is
    /// written to its end. Both slices therefore need [`Engine::slack`] floats more.
    pub fn pack(
        self,
        source: &[f32],
        (offsets, depth): (&Offsets, Range<usize>),
        (runs, panel_runs): (&Runs, Range<usize>),
        panel: &mut [f32],
        pitch: usize,
    ) {
        let rows = depth.len();
        assert!(runs.longest <= self.lanes());
        assert!(source.len() >= offsets.largest + runs.source_end + self.slack());
        assert!(panel.len() + pitch >= rows * pitch + runs.target_end + self.slack());
        assert!(pitch.is_multiple_of(self.lanes()));
        let (offsets, runs) = (&offsets.values[depth], &runs.values[panel_runs]);
        let kernel = self.kernels.pack;
        // SAFETY: the processor has the instructions. The kernel loads one vector from where a
        // run begins and stores one where a vector of the panel begins; both end within the
        // slack that was compared above.
        unsafe { kernel(source.as_ptr(), offsets, runs, panel.as_mut_ptr(), pitch) }
    }

    /// Writes the transpose: element (`row`, `column`) of `source` goes to
    /// `target[column·target_pitch + row]`.
    ///
    /// Fills every target row with zeros up to a multiple of [`TURNED`], in the order of the columns:
    /// a target row is final once all rows of the source were transposed.
    pub fn transpose(
        self,
        (source, source_pitch): (&[f32], usize),
        (rows, columns): (usize, usize),
        (target, target_pitch): (&mut [f32], usize),
    ) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(source.len() >= (rows - 1) * source_pitch + columns);
        assert!(target.len() >= (columns - 1) * target_pitch + rows.next_multiple_of(TURNED));
        let kernel = self.kernels.transpose;
        let (source, target) = (source.as_ptr(), target.as_mut_ptr());
        // SAFETY: the processor has the instructions. The kernel reads `columns` floats of each
        // of `rows` source rows and writes whole vectors of 8 that begin within the first `rows`
        // floats of a target row; both were compared above.
        unsafe { kernel(source, source_pitch, rows, columns, target, target_pitch) }
    }

    /// The reverse of [`Engine::pack`]: adds the rows of `panel` to the runs of `target`.
    pub fn scatter(
        self,
        target: &mut [f32],
        (offsets, rows): (&Offsets, Range<usize>),
        (runs, panel_runs): (&Runs, Range<usize>),
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
