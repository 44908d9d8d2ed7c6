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
    /// What packing from a staged image would give: the rows are at `depth` of `offsets`.
    Staged { stage: &'a [f32], offsets: &'a Offsets, first_depth: usize, places: &'a Places },
}

/// A block of one matrix product: `rows × vectors·lanes` results, summed over `depth`.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub rows: usize,
    /// `depth × rows`; successive depths are `left_pitch` apart.
    pub left: &'a [f32],
    pub left_pitch: usize,
    /// Width of the right panel in vectors, 1 or 2.
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

/// Consecutive pixels of an output plane that come out of one vector of 2×2 tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// Which vector of pixels: twice the row within the tiles, plus 1 for the second half of the
    /// tiles.
    pub quarter: usize,
    /// First pixel within that vector.
    pub lane: usize,
    pub length: usize,
    /// Where the first pixel goes.
    pub place: usize,
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
    pub fn places(&self, panel_runs: std::ops::Range<usize>, lanes: usize) -> Option<Places> {
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
    directs: &'static [[DirectKernel; MOST_RUNS]],
    dots: &'static [&'static [DotKernel]],
    pack: PackKernel,
    scatter: ScatterKernel,
    transpose: TransposeKernel,
    transform_tiles: TransformTilesKernel,
    transform_gradients: TransformGradientsKernel,
    transform_back: TransformBackKernel,
}

type TileKernel = unsafe fn(&Tile<'_>, *const f32, *mut f32, usize);
type DirectKernel = unsafe fn(&Tile<'_>, *const f32, &[usize], &Places, *mut f32, usize);
type DotKernel = unsafe fn(*const f32, *const f32, usize, *mut f32, usize);
type PackKernel = unsafe fn(*const f32, &[usize], &[Run], *mut f32, usize);
type TransposeKernel = unsafe fn(*const f32, usize, usize, usize, *mut f32, usize);
type TransformTilesKernel =
    unsafe fn(*const f32, &[usize], &[usize; 16], &[Run], *mut f32, (usize, usize));
type TransformGradientsKernel =
    unsafe fn(*const f32, &[usize], &[usize; 4], *mut f32, (usize, usize));
type TransformBackKernel =
    unsafe fn((*const f32, usize, usize), usize, *const f32, &[Write], *mut f32, usize);
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
        assert!(tile.depth > 0 && tile.left_pitch >= tile.rows);
        assert!(tile.left.len() >= (tile.depth - 1) * tile.left_pitch + tile.rows);
        assert!((1..=width).contains(&tile.columns) && tile.columns + self.lanes() > width);
        assert!(output.len() >= (tile.rows - 1) * pitch + tile.columns);
        if let Start::Bias(bias) = tile.start {
            assert!(bias.len() >= tile.rows);
        }
        let output = output.as_mut_ptr();
        match tile.right {
            Right::Packed(right) => {
                assert!(right.len() >= tile.depth * width);
                let kernel = self.kernels.tiles[tile.rows - 1][tile.vectors - 1];
                // SAFETY: the processor has the instructions, since `self` exists. The kernel reads
                // `rows` floats per depth on the left, `depth·width` on the right, a bias per row, and
                // touches `columns` floats of each of `rows` output rows; all were compared with
                // the lengths above.
                unsafe { kernel(tile, right.as_ptr(), output, pitch) }
            }
            Right::Staged { stage, offsets, first_depth, places } => {
                assert!(tile.vectors == 2);
                assert!(stage.len() >= offsets.largest + places.source_end + self.slack());
                let offsets = &offsets.values[first_depth..][..tile.depth];
                let kernel = self.kernels.directs[tile.rows - 1][places.most - 1];
                // SAFETY: as above, but for the right: the kernel loads a vector from the start of
                // each run, behind which there is room for one.
                unsafe { kernel(tile, stage.as_ptr(), offsets, places, output, pitch) }
            }
        }
    }

    /// Transforms tiles of 4×4 pixels for [`super::winograd`]: `Bᵀ·d·B`, a vector of tiles at once.
    ///
    /// For every item, the pixels of the vector's tiles are at its offset plus that of a tap plus
    /// that of a run; frequency `x` goes to `target[item·item_pitch + x·frequency_pitch]`.
    pub fn transform_tiles(
        self,
        source: &[f32],
        (items, range, taps): (&Offsets, std::ops::Range<usize>, &[usize; 16]),
        (runs, vector_runs): (&Runs, std::ops::Range<usize>),
        target: &mut [f32],
        (item_pitch, frequency_pitch): (usize, usize),
    ) {
        let largest_tap = taps.iter().copied().max().unwrap_or(0);
        let most = items.largest + largest_tap + runs.source_end + self.slack();
        assert!(source.len() >= most);
        let items = &items.values[range];
        let Some(last) = items.len().checked_sub(1) else { return };
        let needed = last * item_pitch + 15 * frequency_pitch + self.lanes();
        assert!(target.len() >= needed);
        let runs = &runs.values[vector_runs];
        let kernel = self.kernels.transform_tiles;
        let pitches = (item_pitch, frequency_pitch);
        // SAFETY: the processor has the instructions. A load begins in a run and ends within the
        // slack behind it, a store is one vector at an item's frequency; both were compared above.
        unsafe { kernel(source.as_ptr(), items, taps, runs, target.as_mut_ptr(), pitches) }
    }

    /// Transforms gradients of 2×2 pixels for [`super::winograd`]: `A·y·Aᵀ`, a vector of filters at
    /// once.
    ///
    /// For every item, pixel `i` is at `source[item + taps[i]]`; targets as in
    /// [`Engine::transform_tiles`].
    pub fn transform_gradients(
        self,
        source: &[f32],
        (items, range, taps): (&Offsets, std::ops::Range<usize>, &[usize; 4]),
        target: &mut [f32],
        (item_pitch, frequency_pitch): (usize, usize),
    ) {
        let largest_tap = taps.iter().copied().max().unwrap_or(0);
        assert!(source.len() >= items.largest + largest_tap + self.lanes());
        let items = &items.values[range];
        let Some(last) = items.len().checked_sub(1) else { return };
        let needed = last * item_pitch + 15 * frequency_pitch + self.lanes();
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
        assert!(products.len() >= (rows - 1) * row_pitch + 15 * frequency_pitch + lanes);
        for write in writes {
            assert!(write.quarter < 4 && write.lane + write.length <= lanes);
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
    /// Moves whole vectors: what lies behind a run is read too, and the last vector of a row is
    /// written to its end. Both slices therefore need [`Engine::slack`] floats more.
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
    /// Writes up to [`Engine::slack`] zeros behind every target row, in the order of the columns:
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
        assert!(target.len() >= (columns - 1) * target_pitch + rows + self.slack());
        let kernel = self.kernels.transpose;
        let (source, target) = (source.as_ptr(), target.as_mut_ptr());
        // SAFETY: the processor has the instructions. The kernel reads `columns` floats of each
        // of `rows` source rows and writes whole vectors of 8 that begin within the first `rows`
        // floats of a target row, so that they end within the slack; both were compared above.
        unsafe { kernel(source, source_pitch, rows, columns, target, target_pitch) }
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

/// Adds the sums of a tile to what it starts from.
///
/// A macro with a branch per row, because the sums would go through memory if they were passed to a
/// function or indexed by a variable.
#[cfg(target_arch = "x86_64")]
macro_rules! finish {
    ($sums:ident, $tile:ident, $output:ident, $pitch:ident) => {
        finish!($sums, $tile, $output, $pitch, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    ($sums:ident, $tile:ident, $output:ident, $pitch:ident, $($row:literal)*) => {
        $(if $row < ROWS {
            let last = $sums[$row].len() - 1;
            for (v, sum) in $sums[$row].into_iter().enumerate() {
                let count = if v == last { $tile.columns - last * LANES } else { LANES };
                // SAFETY: `count` floats from here on belong to this row of the output.
                unsafe {
                    let place = $output.add($row * $pitch + v * LANES);
                    let sum = match $tile.start {
                        Start::Zero => sum,
                        Start::Bias(bias) => add(sum, splat(*bias.as_ptr().add($row))),
                        Start::Output => add(sum, load_first(place, count)),
                    };
                    store_first(place, count, sum);
                }
            }
        })*
    };
}

/// The kernels in terms of the vector operations that the surrounding module defines.
macro_rules! kernels {
    ($features:literal) => {
        /// See [`Engine::tile`].
        #[target_feature(enable = $features)]
        unsafe fn tile<const ROWS: usize, const VECTORS: usize>(
            tile: &Tile<'_>,
            mut right: *const f32,
            output: *mut f32,
            pitch: usize,
        ) {
            let mut sums = [[zero(); VECTORS]; ROWS];
            let mut left = tile.left.as_ptr();
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
                // The last step may lead past the end of a panel.
                left = left.wrapping_add(tile.left_pitch);
                right = right.wrapping_add(VECTORS * LANES);
            }
            finish!(sums, tile, output, pitch);
        }

        /// See [`Right::Staged`]; a vector has up to `RUNS` runs, each a place and its first lane.
        #[target_feature(enable = $features)]
        unsafe fn direct<const ROWS: usize, const RUNS: usize>(
            tile: &Tile<'_>,
            source: *const f32,
            offsets: &[usize],
            places: &Places,
            output: *mut f32,
            pitch: usize,
        ) {
            let mut sums = [[zero(); 2]; ROWS];
            let mut left = tile.left.as_ptr();
            for &offset in offsets {
                let mut columns = [zero(); 2];
                for (column, places) in columns.iter_mut().zip(&places.values) {
                    // SAFETY: the caller vouches for a vector from the start of every run; the
                    // lanes before a run, whose addresses may precede the source, are masked out.
                    unsafe {
                        let source = source.add(offset);
                        *column = load(source.add(places[0].0));
                        for &(place, lane) in &places[1..RUNS] {
                            *column = load_last(*column, source.wrapping_add(place), lane);
                        }
                    }
                }
                for (r, row) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for a row of the left panel per offset.
                    let factor = splat(unsafe { *left.add(r) });
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = multiply_add(factor, column, *sum);
                    }
                }
                // The last step may lead past the end of the panel.
                left = left.wrapping_add(tile.left_pitch);
            }
            finish!(sums, tile, output, pitch);
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

        /// See [`Engine::pack`].
        #[target_feature(enable = $features)]
        unsafe fn pack(
            source: *const f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *mut f32,
            pitch: usize,
        ) {
            for runs in runs.chunk_by(|one, next| one.target / LANES == next.target / LANES) {
                // SAFETY: the caller vouches for a vector of slack behind both places.
                unsafe {
                    let panel = panel.add(runs[0].target);
                    match runs.len() {
                        1 => pack_vector::<1>(source, offsets, runs, panel, pitch),
                        2 => pack_vector::<2>(source, offsets, runs, panel, pitch),
                        3 => pack_vector::<3>(source, offsets, runs, panel, pitch),
                        4 => pack_vector::<4>(source, offsets, runs, panel, pitch),
                        _ => pack_narrow(source, offsets, runs, panel, pitch),
                    }
                }
            }
        }

        /// Packs the column of vectors that `RUNS` runs make up.
        #[target_feature(enable = $features)]
        unsafe fn pack_vector<const RUNS: usize>(
            source: *const f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *mut f32,
            pitch: usize,
        ) {
            let mut places = [(0, 0); RUNS];
            for (place, run) in places.iter_mut().zip(runs) {
                *place = (run.source, run.target % LANES);
            }
            for (row, &offset) in offsets.iter().enumerate() {
                // SAFETY: a load begins in its run and ends within the slack behind it; the lanes
                // before the run, whose addresses may precede the source, are masked out.
                unsafe {
                    let source = source.add(offset);
                    let mut vector = load(source.add(places[0].0));
                    for &(place, lane) in &places[1..] {
                        vector = load_last(vector, source.wrapping_add(place), lane);
                    }
                    store(panel.add(row * pitch), vector);
                }
            }
        }

        /// Packs a column of vectors that consist of many short runs.
        #[target_feature(enable = $features)]
        unsafe fn pack_narrow(
            source: *const f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *mut f32,
            pitch: usize,
        ) {
            for (row, &offset) in offsets.iter().enumerate() {
                // SAFETY: as in `pack_vector`.
                unsafe {
                    let source = source.add(offset);
                    let mut vector = zero();
                    for run in runs {
                        let from = source.wrapping_add(run.source);
                        vector = load_last(vector, from, run.target % LANES);
                    }
                    store(panel.add(row * pitch), vector);
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
                        if run.length == HALF {
                            // A mask costs more than a vector of half the length.
                            let to = &mut *to.cast::<[f32; HALF]>();
                            for (to, from) in to.iter_mut().zip(*from.cast::<[f32; HALF]>()) {
                                *to += from;
                            }
                        } else {
                            let sum = add(load_first(from, run.length), load_first(to, run.length));
                            store_first(to, run.length, sum);
                        }
                    }
                }
            }
        }

        /// See [`Engine::transform_tiles`].
        #[target_feature(enable = $features)]
        unsafe fn transform_tiles(
            source: *const f32,
            items: &[usize],
            taps: &[usize; 16],
            runs: &[Run],
            target: *mut f32,
            (item_pitch, frequency_pitch): (usize, usize),
        ) {
            let Some((first, others)) = runs.split_first() else { return };
            for (at, &item) in items.iter().enumerate() {
                let mut pixels = [zero(); 16];
                for (pixel, &tap) in pixels.iter_mut().zip(taps) {
                    // SAFETY: the caller vouches for a vector from the start of every run; lanes
                    // before a run are masked out.
                    unsafe {
                        let source = source.add(item + tap);
                        *pixel = load(source.add(first.source));
                        for run in others {
                            let from = source.wrapping_add(run.source);
                            *pixel = load_last(*pixel, from, run.target % LANES);
                        }
                    }
                }
                for column in 0..4 {
                    let [a, b, c, d] = [0, 4, 8, 12].map(|row| pixels[row + column]);
                    pixels[column] = subtract(a, c);
                    pixels[4 + column] = add(b, c);
                    pixels[8 + column] = subtract(c, b);
                    pixels[12 + column] = subtract(b, d);
                }
                for row in [0, 4, 8, 12] {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|column| pixels[row + column]);
                    let row_out = [subtract(a, c), add(b, c), subtract(c, b), subtract(b, d)];
                    for (column, value) in row_out.into_iter().enumerate() {
                        // SAFETY: the caller vouches for a vector per item and frequency.
                        unsafe {
                            let frequency = (row + column) * frequency_pitch;
                            store(target.add(at * item_pitch + frequency), value);
                        }
                    }
                }
            }
        }

        /// See [`Engine::transform_gradients`].
        #[target_feature(enable = $features)]
        unsafe fn transform_gradients(
            source: *const f32,
            items: &[usize],
            taps: &[usize; 4],
            target: *mut f32,
            (item_pitch, frequency_pitch): (usize, usize),
        ) {
            for (at, &item) in items.iter().enumerate() {
                let mut pixels = [zero(); 4];
                for (pixel, &tap) in pixels.iter_mut().zip(taps) {
                    // SAFETY: the caller vouches for a vector at every tap of an item.
                    *pixel = unsafe { load(source.add(item + tap)) };
                }
                let [a, b, c, d] = pixels;
                let none = zero();
                let rows = [
                    [a, b],
                    [add(a, c), add(b, d)],
                    [subtract(a, c), subtract(b, d)],
                    [subtract(none, c), subtract(none, d)],
                ];
                for (row, [a, b]) in rows.into_iter().enumerate() {
                    let row_out = [a, add(a, b), subtract(a, b), subtract(none, b)];
                    for (column, value) in row_out.into_iter().enumerate() {
                        // SAFETY: the caller vouches for a vector per item and frequency.
                        unsafe {
                            let frequency = (4 * row + column) * frequency_pitch;
                            store(target.add(at * item_pitch + frequency), value);
                        }
                    }
                }
            }
        }

        /// See [`Engine::transform_back`].
        #[target_feature(enable = $features)]
        unsafe fn transform_back(
            (products, row_pitch, frequency_pitch): (*const f32, usize, usize),
            rows: usize,
            bias: *const f32,
            writes: &[Write],
            output: *mut f32,
            plane_pitch: usize,
        ) {
            for row in 0..rows {
                let mut columns = [[zero(); 2]; 4];
                for (column, sums) in columns.iter_mut().enumerate() {
                    let mut values = [zero(); 4];
                    for (at, value) in values.iter_mut().enumerate() {
                        let frequency = (4 * at + column) * frequency_pitch;
                        // SAFETY: the caller vouches for a vector per row and frequency.
                        *value = unsafe { load(products.add(row * row_pitch + frequency)) };
                    }
                    let [a, b, c, d] = values;
                    *sums = [add(add(a, b), c), subtract(subtract(b, c), d)];
                }
                let mut start = zero();
                if !bias.is_null() {
                    // SAFETY: the caller vouches for a bias per row.
                    start = splat(unsafe { *bias.add(row) });
                }
                let mut pixels = [zero(); 4];
                for at in 0..2 {
                    let [a, b, c, d] = columns.map(|sums| sums[at]);
                    let even = add(add(add(a, b), c), start);
                    let odd = add(subtract(subtract(b, c), d), start);
                    [pixels[2 * at], pixels[2 * at + 1]] = interleave(even, odd);
                }
                for write in writes {
                    // SAFETY: the caller vouches for the write within the plane of the row; the
                    // lanes before the first, whose addresses may precede it, are not written.
                    unsafe {
                        let place = output.add(row * plane_pitch + write.place);
                        let pixels = pixels[write.quarter];
                        store_some(place, (write.lane, write.length), pixels);
                    }
                }
            }
        }
    };
}

/// `[[tile::<1, 1>, tile::<1, 2>], [tile::<2, 1>, …], …]`
#[cfg(target_arch = "x86_64")]
macro_rules! tile_table {
    ($($rows:literal)*) => { &[$([tile::<$rows, 1>, tile::<$rows, 2>]),*] };
}

/// `[[direct::<1, 1>, direct::<1, 2>, direct::<1, 3>], [direct::<2, 1>, …], …]`
#[cfg(target_arch = "x86_64")]
macro_rules! direct_table {
    ($($rows:literal)*) => {
        &[$([direct::<$rows, 1>, direct::<$rows, 2>, direct::<$rows, 3>]),*]
    };
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
    const HALF: usize = LANES / 2;

    pub(super) static KERNELS: Kernels = Kernels {
        lanes: LANES,
        max_rows: 14,
        max_dots: 5,
        tiles: tile_table!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        directs: direct_table!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        dots: dot_table!(1 2 3 4 5; (1 2 3 4 5)),
        pack,
        scatter,
        transpose: super::avx2::transpose,
        transform_tiles,
        transform_gradients,
        transform_back,
    };

    kernels!("avx512f");

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
    fn subtract(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
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
    unsafe fn load_last(before: __m512, from: *const f32, lane: usize) -> __m512 {
        // SAFETY: the caller vouches for the floats of these lanes; the others are not read.
        unsafe { _mm512_mask_loadu_ps(before, lanes_from(lane), from.wrapping_sub(lane)) }
    }

    /// The first `count` lanes, 1 to 16; the others are 0.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_first(from: *const f32, count: usize) -> __m512 {
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
    const HALF: usize = LANES / 2;

    pub(super) static KERNELS: Kernels = Kernels {
        lanes: LANES,
        max_rows: 6,
        max_dots: 3,
        tiles: tile_table!(1 2 3 4 5 6),
        directs: direct_table!(1 2 3 4 5 6),
        dots: dot_table!(1 2 3; (1 2 3)),
        pack,
        scatter,
        transpose,
        transform_tiles,
        transform_gradients,
        transform_back,
    };

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

    /// Lanes of `even` and `odd` in turn, as two vectors.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn interleave(even: __m256, odd: __m256) -> [__m256; 2] {
        let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
        [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
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
