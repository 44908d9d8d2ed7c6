//! Convolution without a lowered matrix: panels are packed straight from a padded copy of one
//! image (or a few) and consumed while they are in the first-level cache.
//!
//! All passes are matrix products per group, with `F` filters, `C` channels, `T` kernel taps and
//! `P` output pixels:
//!
//! | pass | left | right | product |
//! |---|---|---|---|
//! | forward | weights, `F × CT` | pixels under each tap, `CT × P` | output, `F × P` |
//! | data gradient, stride 1 | flipped weights, `C × FT` | gradient under each tap, `FT × HW` | gradient, `C × HW` |
//! | data gradient, otherwise | weights, `CT × F` | output gradient, `F × P` | added tap by tap into the image |
//! | weight gradient | output gradient, `F × P` | pixels under each tap, `P × TC` | gradient, `F × TC` |

use std::ops::Range;

use super::microkernel::{Dots, Engine, Offsets, Right, Start, Tile};
use super::packing::{ColumnPanel, ColumnPanels, RowPanels};
use super::parallel::{Units, part, threads};
use super::reduction::Chunks;
use super::scratch::with_buffers;
use super::shape::ConvolutionShape;
use super::staging::{Interleaved, Planar, Window};

/// Depth of a packed block: its panel of two vectors has to stay in the first-level cache and the
/// block of all rows in the second-level cache.
const BLOCK_DEPTH: usize = 256;

/// Most row panels for which tiles read the staged image themselves: packing a panel costs as much
/// as a few rows of products, and pays only if more panels than these share it.
const MOST_DIRECT_PANELS: usize = 4;

/// Weights of one block of the scattered data gradient, in floats: a part of the second-level cache.
const SCATTER_BLOCK: usize = 64 * 1024;

/// Sums of one block of the weight gradient, in floats: a part of the second-level cache.
const GRADIENT_BLOCK: usize = 128 * 1024;

/// Most sums for which the weight gradient is computed as dot products along the pixels.
const MOST_DOTS: usize = 1024;

/// A matrix inside the weights of one group: element (`row`, `depth`) is at
/// `rows[row] + depths[depth]`.
struct Weights<'a> {
    values: &'a [f32],
    rows: Vec<usize>,
    depths: Vec<usize>,
}

impl ConvolutionShape {
    /// The window of the forward pass.
    fn window(&self) -> Window {
        let sizes = self.sizes();
        Window {
            height: sizes.height,
            width: sizes.width,
            kernel_height: sizes.kernel_height,
            kernel_width: sizes.kernel_width,
            stride: sizes.stride,
            padding_height: sizes.padding,
            padding_width: sizes.padding,
            rows: self.output_height(),
            columns: self.output_width(),
        }
    }

    /// The window that gathers the data gradient from the output gradient, if stride 1 allows one.
    fn flipped_window(&self) -> Option<Window> {
        let sizes = self.sizes();
        let window = Window {
            height: self.output_height(),
            width: self.output_width(),
            stride: 1,
            padding_height: (sizes.kernel_height - 1).checked_sub(sizes.padding)?,
            padding_width: (sizes.kernel_width - 1).checked_sub(sizes.padding)?,
            rows: sizes.height,
            columns: sizes.width,
            ..self.window()
        };
        (sizes.stride == 1).then_some(window)
    }
}

/// Output of the convolution, see [`super::forward`].
pub(super) fn forward(
    engine: Engine,
    shape: &ConvolutionShape,
    input: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let correlation = Correlation {
        engine,
        window: shape.window(),
        images: shape.sizes().batch,
        groups: shape.sizes().groups,
        planes: shape.group_channels(),
        rows: shape.group_filters(),
    };
    let depth = shape.depth();
    let rows = (0..shape.group_filters()).map(|filter| filter * depth).collect();
    let weights = Weights { values: weights, rows, depths: (0..depth).collect() };
    correlation.run(input, &weights, bias, output);
}

/// Gradient of the input, see [`super::backward_data`].
pub(super) fn backward_data(
    engine: Engine,
    shape: &ConvolutionShape,
    weights: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) {
    // Gathering multiplies with the padding too; it wins unless that is a fifth of the work.
    let gather =
        shape.flipped_window().filter(|_| 5 * shape.image_pixels() <= 6 * shape.output_pixels());
    match gather {
        Some(window) => {
            gather_data(engine, shape, window, weights, output_gradient, input_gradient)
        }
        None => Scatter::new(engine, shape).run(weights, output_gradient, input_gradient),
    }
}

fn gather_data(
    engine: Engine,
    shape: &ConvolutionShape,
    window: Window,
    weights: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) {
    let correlation = Correlation {
        engine,
        window,
        images: shape.sizes().batch,
        groups: shape.sizes().groups,
        planes: shape.group_filters(),
        rows: shape.group_channels(),
    };
    let taps = window.taps();
    let flipped = |filter: usize| (0..taps).rev().map(move |tap| filter * shape.depth() + tap);
    let depths = (0..shape.group_filters()).flat_map(flipped).collect();
    let rows = (0..shape.group_channels()).map(|channel| channel * taps).collect();
    let weights = Weights { values: weights, rows, depths };
    correlation.run(output_gradient, &weights, None, input_gradient);
}

/// A stack of convolutions that differ in their images and, per group, in their weights.
struct Correlation {
    engine: Engine,
    window: Window,
    images: usize,
    groups: usize,
    /// Source planes of one group.
    planes: usize,
    /// Output planes of one group.
    rows: usize,
}

/// What all units of a correlation share.
struct Correlator<'a> {
    correlation: &'a Correlation,
    planar: Planar,
    taps: Offsets,
    columns: ColumnPanels,
    row_panels: RowPanels,
    /// Depth of a block.
    block: usize,
    packed: &'a [f32],
    source: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl Correlation {
    fn run(&self, source: &[f32], weights: &Weights<'_>, bias: Option<&[f32]>, output: &mut [f32]) {
        let planar = Planar::new(self.window);
        let depth = self.planes * self.window.taps();
        let group_len = self.rows * depth;
        let block = depth.div_ceil(depth.div_ceil(BLOCK_DEPTH));
        let row_panels = RowPanels::new(self.rows, self.engine.max_rows());
        with_buffers([self.groups * group_len], |[packed]| {
            let groups = packed.chunks_exact_mut(group_len);
            for (packed, values) in groups.zip(weights.values.chunks_exact(group_len)) {
                row_panels.pack(values, &weights.rows, &weights.depths, block, packed);
            }
            let correlator = Correlator {
                correlation: self,
                planar,
                taps: Offsets::new(planar.taps(self.planes)),
                columns: ColumnPanels::new(
                    self.engine,
                    self.window.rows,
                    self.window.columns,
                    |row, column| planar.position(row, column),
                ),
                row_panels,
                block,
                packed,
                source,
                bias,
            };
            correlator.run(output);
        });
    }
}

impl Correlator<'_> {
    /// One unit is a range of row panels of one group of one image; more than one range only where
    /// there are fewer images than threads, since each range packs the image again.
    fn run(&self, output: &mut [f32]) {
        let Correlation { images, groups, rows, .. } = *self.correlation;
        let panels = self.row_panels.count();
        let parts = threads().div_ceil(images * groups).min(panels);
        let pixels = self.correlation.window.positions();
        let flops = 2 * rows * self.taps.values().len() * pixels / parts;
        let units = Units {
            count: images * groups * parts,
            flops_per_unit: flops as u64,
            bounds: |unit| {
                let panel = part(panels, parts, unit % parts).start;
                (unit / parts * rows + self.row_panels.start(panel)) * pixels
            },
        };
        units.run(output, |unit, output| {
            self.unit(unit / parts, part(panels, parts, unit % parts), output);
        });
    }

    fn unit(&self, image_and_group: usize, panels: Range<usize>, output: &mut [f32]) {
        let Correlation { engine, window, planes, rows, groups, .. } = *self.correlation;
        let planes_len = planes * window.height * window.width;
        let source = &self.source[image_and_group * planes_len..][..planes_len];
        let depth = self.taps.values().len();
        let group = image_and_group % groups;
        let packed = &self.packed[group * rows * depth..][..rows * depth];
        let bias = self.bias.map(|bias| &bias[group * rows..][..rows]);
        let stage_len = planes * self.planar.plane_len() + engine.slack();
        let panel_len = self.block * 2 * engine.lanes() + engine.slack();
        with_buffers([stage_len, panel_len], |[stage, right]| {
            self.planar.stage(engine, source, stage);
            for block in (0..depth).step_by(self.block) {
                let depths = block..depth.min(block + self.block);
                for panel in &self.columns.panels {
                    let image = Staged { stage, offsets: &self.taps, depths: depths.clone() };
                    let right = image.panel(engine, &self.columns, panel, panels.len(), right);
                    self.tiles(panels.clone(), packed, depths.clone(), panel, right, bias, output);
                }
            }
        });
    }

    #[expect(clippy::too_many_arguments, reason = "the innermost level of a loop nest")]
    fn tiles(
        &self,
        panels: Range<usize>,
        packed: &[f32],
        depths: Range<usize>,
        panel: &ColumnPanel,
        right: Right<'_>,
        bias: Option<&[f32]>,
        output: &mut [f32],
    ) {
        let pixels = self.correlation.window.positions();
        let first_row = self.row_panels.start(panels.start);
        let block = &packed[depths.start * self.correlation.rows..];
        for row_panel in panels {
            let rows = self.row_panels.range(row_panel);
            let start = match bias {
                _ if depths.start > 0 => Start::Output,
                Some(bias) => Start::Bias(&bias[rows.clone()]),
                None => Start::Zero,
            };
            let tile = Tile {
                rows: rows.len(),
                left: &block[depths.len() * rows.start..],
                vectors: panel.vectors,
                right,
                depth: depths.len(),
                start,
                columns: panel.columns,
            };
            let place = (rows.start - first_row) * pixels + panel.start;
            self.correlation.engine.tile(&tile, &mut output[place..], pixels);
        }
    }
}

/// A block of rows of a lowered matrix, inside a staged image.
struct Staged<'a> {
    stage: &'a [f32],
    offsets: &'a Offsets,
    depths: Range<usize>,
}

impl<'a> Staged<'a> {
    /// A panel of the block for tiles of `row_panels` panels, packed into `buffer` if that pays.
    fn panel<'b>(
        &self,
        engine: Engine,
        columns: &ColumnPanels,
        panel: &'b ColumnPanel,
        row_panels: usize,
        buffer: &'b mut [f32],
    ) -> Right<'b>
    where
        'a: 'b,
    {
        if let (Some(places), ..=MOST_DIRECT_PANELS) = (&panel.places, row_panels) {
            let Self { stage, offsets, depths } = self;
            return Right::Staged { stage, offsets, first_depth: depths.start, places };
        }
        let pitch = panel.vectors * engine.lanes();
        let runs = (&columns.runs, panel.runs.clone());
        engine.pack(self.stage, (self.offsets, self.depths.clone()), runs, buffer, pitch);
        Right::Packed(buffer)
    }
}

/// The data gradient as a product that is added tap by tap into the image.
struct Scatter<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    planar: Planar,
    /// Blocks of channels per group.
    blocks: usize,
}

impl<'a> Scatter<'a> {
    fn new(engine: Engine, shape: &'a ConvolutionShape) -> Self {
        let per_channel = shape.kernel_pixels() * shape.group_filters();
        let channels = shape.group_channels();
        let blocks = (channels * per_channel).div_ceil(SCATTER_BLOCK).min(channels);
        Self { engine, shape, planar: Planar::new(shape.window()), blocks }
    }

    fn channels(&self, block: usize) -> Range<usize> {
        part(self.shape.group_channels(), self.blocks, block)
    }

    fn row_panels(&self, block: usize) -> RowPanels {
        let rows = self.channels(block).len() * self.shape.kernel_pixels();
        RowPanels::new(rows, self.engine.max_rows())
    }

    fn run(&self, weights: &[f32], output_gradient: &[f32], input_gradient: &mut [f32]) {
        let shape = self.shape;
        let (depth, filters, taps) = (shape.depth(), shape.group_filters(), shape.kernel_pixels());
        let (channels, image_pixels) = (shape.group_channels(), shape.image_pixels());
        let filter_offsets: Vec<usize> = (0..filters).map(|filter| filter * depth).collect();
        let plan = ScatterPlan::new(self);
        with_buffers([weights.len()], |[packed]| {
            let groups = packed.chunks_exact_mut(filters * depth);
            for (packed, weights) in groups.zip(weights.chunks_exact(filters * depth)) {
                for (block, rows) in plan.rows.iter().enumerate() {
                    let start = self.channels(block).start * taps;
                    let (weights, packed) = (&weights[start..], &mut packed[start * filters..]);
                    self.row_panels(block).pack(weights, rows, &filter_offsets, filters, packed);
                }
            }
            let units = Units {
                count: shape.sizes().batch * shape.sizes().groups * self.blocks,
                flops_per_unit: shape.flops()
                    / (shape.sizes().batch * shape.sizes().groups * self.blocks) as u64,
                bounds: |unit| {
                    let start = self.channels(unit % self.blocks).start;
                    (unit / self.blocks * channels + start) * image_pixels
                },
            };
            units.run(input_gradient, |unit, planes| {
                let (image_and_group, block) = (unit / self.blocks, unit % self.blocks);
                let group = image_and_group % shape.sizes().groups;
                let start = group * filters * depth + self.channels(block).start * taps * filters;
                let gradient =
                    &output_gradient[image_and_group * filters * shape.output_pixels()..];
                self.unit(&plan, block, &packed[start..], gradient, planes);
            });
        });
    }

    fn unit(
        &self,
        plan: &ScatterPlan,
        block: usize,
        packed: &[f32],
        gradient: &[f32],
        planes: &mut [f32],
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let gradient_len = filters * self.shape.output_pixels();
        let stage_len = self.channels(block).len() * self.planar.plane_len();
        // Packing reads past the end of a row; only the very last gradient has nothing behind it.
        let copied = gradient.len() < gradient_len + engine.slack();
        let copy_len = if copied { gradient_len + engine.slack() } else { 0 };
        let width = 2 * engine.lanes();
        let lengths =
            [stage_len, copy_len, filters * width + engine.slack(), engine.max_rows() * width];
        with_buffers(lengths, |[stage, copy, right, product]| {
            if copied {
                copy[..gradient_len].copy_from_slice(&gradient[..gradient_len]);
            }
            let gradient = if copied { &*copy } else { gradient };
            stage.fill(0.0);
            for (from, to) in plan.gradients.panels.iter().zip(&plan.positions.panels) {
                let pitch = from.vectors * engine.lanes();
                let runs = (&plan.gradients.runs, from.runs.clone());
                engine.pack(gradient, (&plan.planes, 0..filters), runs, right, pitch);
                self.tiles(plan, block, packed, (to, right), product, stage);
            }
            self.planar.unstage(stage, planes);
        });
    }

    fn tiles(
        &self,
        plan: &ScatterPlan,
        block: usize,
        packed: &[f32],
        (panel, right): (&ColumnPanel, &[f32]),
        product: &mut [f32],
        stage: &mut [f32],
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let row_panels = self.row_panels(block);
        let pitch = panel.vectors * engine.lanes();
        let runs = (&plan.positions.runs, panel.runs.clone());
        for row_panel in 0..row_panels.count() {
            let rows = row_panels.range(row_panel);
            let tile = Tile {
                rows: rows.len(),
                left: &packed[rows.start * filters..],
                vectors: panel.vectors,
                right: Right::Packed(right),
                depth: filters,
                start: Start::Zero,
                columns: panel.columns,
            };
            engine.tile(&tile, product, pitch);
            let taps = &plan.taps[block];
            engine.scatter(stage, (taps, rows), runs.clone(), product, pitch);
        }
    }
}

/// Channel, row and column of every tap, in the order of the rows of a scattered product.
///
/// Neighbouring taps of a kernel row add to overlapping pixels, and a load that overlaps a store
/// still under way has to wait for it. So rows that lie close together belong to different
/// channels.
fn row_order(
    shape: &ConvolutionShape,
    channels: usize,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let (height, width) = (shape.sizes().kernel_height, shape.sizes().kernel_width);
    (0..width).flat_map(move |x| {
        (0..height).flat_map(move |y| (0..channels).map(move |channel| (channel, y, x)))
    })
}

/// Offsets and panels that all units of a [`Scatter`] share.
struct ScatterPlan {
    /// Offsets of a group's output planes.
    planes: Offsets,
    /// Panels of the output gradient.
    gradients: ColumnPanels,
    /// The same panels, as positions of the window in the staged image.
    positions: ColumnPanels,
    /// Per block and row of the product, where its tap lies in the weights of the block.
    rows: Vec<Vec<usize>>,
    /// Per block and row of the product, where its tap lies in the stage of the block.
    taps: Vec<Offsets>,
}

impl ScatterPlan {
    fn new(scatter: &Scatter<'_>) -> Self {
        let (shape, engine, planar) = (scatter.shape, scatter.engine, scatter.planar);
        let pixels = shape.output_pixels();
        let planes = (0..shape.group_filters()).map(|filter| filter * pixels).collect();
        let order = |block: usize| row_order(shape, scatter.channels(block).len());
        let blocks = 0..scatter.blocks;
        let weight = |(channel, y, x): (usize, usize, usize)| {
            (channel * shape.sizes().kernel_height + y) * shape.sizes().kernel_width + x
        };
        Self {
            planes: Offsets::new(planes),
            gradients: ColumnPanels::new(engine, 1, pixels, |_, column| column),
            positions: ColumnPanels::new(
                engine,
                shape.output_height(),
                shape.output_width(),
                |row, column| planar.position(row, column),
            ),
            rows: blocks.clone().map(|block| order(block).map(weight).collect()).collect(),
            taps: blocks
                .map(|block| {
                    let taps = order(block).map(|(channel, y, x)| planar.tap(channel, y, x));
                    Offsets::new(taps.collect())
                })
                .collect(),
        }
    }
}

/// Gradient of the weights, see [`super::backward_weights`].
pub(super) fn backward_weights(
    engine: Engine,
    shape: &ConvolutionShape,
    input: &[f32],
    output_gradient: &[f32],
    weight_gradient: &mut [f32],
) {
    if shape.group_filters() * shape.depth() <= MOST_DOTS {
        let gradient = DotGradient::new(engine, shape, input, output_gradient);
        let chunks = Chunks::new(shape, shape.sizes().groups, shape.sizes().batch);
        chunks.sum(weight_gradient, |unit, images, sums| gradient.unit(unit, images, sums));
    } else {
        TileGradient::new(engine, shape, input, output_gradient).run(weight_gradient);
    }
}

/// The weight gradient as dot products along the pixels, for few weights.
///
/// A vector of partial sums per weight stays in the first-level cache over all images.
struct DotGradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    input: &'a [f32],
    output_gradient: &'a [f32],
    planar: Planar,
    taps: Offsets,
    columns: ColumnPanels,
}

impl<'a> DotGradient<'a> {
    fn new(
        engine: Engine,
        shape: &'a ConvolutionShape,
        input: &'a [f32],
        output_gradient: &'a [f32],
    ) -> Self {
        let planar = Planar::new(shape.window());
        let place = |row, column| planar.position(row, column);
        Self {
            engine,
            shape,
            input,
            output_gradient,
            planar,
            taps: Offsets::new(planar.taps(shape.group_channels())),
            columns: ColumnPanels::single(
                engine,
                shape.output_height(),
                shape.output_width(),
                place,
            ),
        }
    }

    fn unit(&self, group: usize, images: Range<usize>, gradient: &mut [f32]) {
        let (shape, engine) = (self.shape, self.engine);
        let (filters, depth, pixels) =
            (shape.group_filters(), shape.depth(), shape.output_pixels());
        let row_len = pixels.next_multiple_of(engine.lanes());
        let planes_len = shape.group_channels() * shape.image_pixels();
        let lengths = [
            filters * depth * engine.lanes(),
            shape.group_channels() * self.planar.plane_len() + engine.slack(),
            depth * row_len + engine.slack(),
            filters * row_len,
        ];
        with_buffers(lengths, |[sums, stage, right, left]| {
            sums.fill(0.0);
            for image in images {
                let place = image * shape.sizes().groups + group;
                self.planar.stage(engine, &self.input[place * planes_len..][..planes_len], stage);
                let runs = (&self.columns.runs, self.columns.panels[0].runs.clone());
                engine.pack(stage, (&self.taps, 0..depth), runs, right, row_len);
                let rows = &self.output_gradient[place * filters * pixels..][..filters * pixels];
                if row_len == pixels {
                    self.dots(rows, right, sums);
                } else {
                    pad_rows(rows, pixels, left, row_len);
                    clear_padding(right, pixels, row_len);
                    self.dots(left, right, sums);
                }
            }
            for (gradient, sum) in gradient.iter_mut().zip(sums.chunks_exact(engine.lanes())) {
                *gradient = sum.iter().sum();
            }
        });
    }

    fn dots(&self, left: &[f32], right: &[f32], sums: &mut [f32]) {
        let (engine, filters, depth) =
            (self.engine, self.shape.group_filters(), self.shape.depth());
        let (lanes, row_len) = (engine.lanes(), left.len() / filters);
        let left_panels = RowPanels::new(filters, engine.max_dots());
        let right_panels = RowPanels::new(depth, engine.max_dots());
        for right_rows in (0..right_panels.count()).map(|panel| right_panels.range(panel)) {
            for left_rows in (0..left_panels.count()).map(|panel| left_panels.range(panel)) {
                let block = Dots {
                    left: &left[left_rows.start * row_len..],
                    left_rows: left_rows.len(),
                    right: &right[right_rows.start * row_len..],
                    right_rows: right_rows.len(),
                    depth: row_len,
                    pitch: depth * lanes,
                };
                let place = (left_rows.start * depth + right_rows.start) * lanes;
                engine.dots(&block, &mut sums[place..]);
            }
        }
    }
}

fn pad_rows(rows: &[f32], length: usize, padded: &mut [f32], padded_length: usize) {
    let targets = padded.chunks_exact_mut(padded_length);
    for (target, row) in targets.zip(rows.chunks_exact(length)) {
        target[..length].copy_from_slice(row);
        target[length..].fill(0.0);
    }
}

fn clear_padding(rows: &mut [f32], length: usize, padded_length: usize) {
    for row in rows.chunks_exact_mut(padded_length) {
        row[length..].fill(0.0);
    }
}

/// The weight gradient as a product with the kernel taps as columns, channels innermost.
struct TileGradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    input: &'a [f32],
    output_gradient: &'a [f32],
    /// Blocks of channels per group.
    blocks: usize,
    /// Images whose pixels are summed in one go.
    images_at_once: usize,
}

/// What all units with the same number of channels share.
struct GradientPlan {
    interleaved: Interleaved,
    positions: Offsets,
    columns: ColumnPanels,
}

impl<'a> TileGradient<'a> {
    fn new(
        engine: Engine,
        shape: &'a ConvolutionShape,
        input: &'a [f32],
        output_gradient: &'a [f32],
    ) -> Self {
        let channels = shape.group_channels();
        let sums = shape.group_filters() * shape.depth();
        // Whole vectors of channels keep the panels of a block full.
        let blocks = sums.div_ceil(GRADIENT_BLOCK).min(channels.div_ceil(engine.lanes()));
        let images_at_once = BLOCK_DEPTH.div_ceil(shape.output_pixels()).min(shape.sizes().batch);
        Self { engine, shape, input, output_gradient, blocks, images_at_once }
    }

    fn channels(&self, block: usize) -> Range<usize> {
        let (channels, lanes) = (self.shape.group_channels(), self.engine.lanes());
        let vectors = part(channels.div_ceil(lanes), self.blocks, block);
        vectors.start * lanes..channels.min(vectors.end * lanes)
    }

    fn plan(&self, channels: usize) -> GradientPlan {
        let interleaved = Interleaved::new(self.shape.window(), channels);
        GradientPlan {
            interleaved,
            positions: Offsets::new(interleaved.positions(self.images_at_once)),
            columns: ColumnPanels::new(
                self.engine,
                self.shape.sizes().kernel_height,
                interleaved.kernel_row_len(),
                |row, column| interleaved.tap(row, column),
            ),
        }
    }

    fn run(&self, weight_gradient: &mut [f32]) {
        let shape = self.shape;
        let groups = shape.sizes().groups;
        let group_len = shape.group_filters() * shape.depth();
        let channel_len = shape.group_filters() * shape.kernel_pixels();
        let plans: Vec<GradientPlan> =
            (0..self.blocks).map(|block| self.plan(self.channels(block).len())).collect();
        let chunks = Chunks::new(shape, groups * self.blocks, shape.sizes().batch);
        with_buffers([weight_gradient.len()], |[total]| {
            let bounds = |block: usize| {
                let (group, block) = (block / self.blocks, block % self.blocks);
                group * group_len + self.channels(block).start * channel_len
            };
            chunks.sum_blocks(total, bounds, |unit, images, sums| {
                let (group, block) = (unit / self.blocks, unit % self.blocks);
                self.unit(&plans[block], group, self.channels(block), images, sums);
            });
            for unit in 0..groups * self.blocks {
                let (group, block) = (unit / self.blocks, unit % self.blocks);
                let gradient = &mut weight_gradient[group * group_len..][..group_len];
                self.reorder(self.channels(block), &total[bounds(unit)..], gradient);
            }
        });
    }

    /// From filter, tap, channel to filter, channel, tap.
    fn reorder(&self, channels: Range<usize>, sums: &[f32], gradient: &mut [f32]) {
        let (depth, taps) = (self.shape.depth(), self.shape.kernel_pixels());
        let filters = gradient.chunks_exact_mut(depth);
        for (gradient, sums) in filters.zip(sums.chunks_exact(channels.len() * taps)) {
            let block = &mut gradient[channels.start * taps..][..sums.len()];
            for (channel, target) in block.chunks_exact_mut(taps).enumerate() {
                let tap_sums = sums[channel..].iter().step_by(channels.len());
                for (target, &sum) in target.iter_mut().zip(tap_sums) {
                    *target = sum;
                }
            }
        }
    }

    fn unit(
        &self,
        plan: &GradientPlan,
        group: usize,
        channels: Range<usize>,
        images: Range<usize>,
        sums: &mut [f32],
    ) {
        let (shape, engine) = (self.shape, self.engine);
        let image_len = plan.interleaved.image_len();
        let pixels = shape.output_pixels();
        let most_depth = self.images_at_once * pixels;
        let block = most_depth.div_ceil(most_depth.div_ceil(2 * BLOCK_DEPTH));
        let lengths = [
            self.images_at_once * image_len + engine.slack(),
            block * 2 * engine.lanes() + engine.slack(),
            block * shape.group_filters() + engine.slack(),
        ];
        with_buffers(lengths, |[stage, right, left]| {
            let mut start = Start::Zero;
            for first in images.clone().step_by(self.images_at_once) {
                let images = first..images.end.min(first + self.images_at_once);
                for (at, image) in images.clone().enumerate() {
                    let planes = self.planes(image, group, &channels);
                    plan.interleaved.stage(engine, planes, &mut stage[at * image_len..]);
                }
                let depth = images.len() * pixels;
                for first_pixel in (0..depth).step_by(block) {
                    let depths = first_pixel..depth.min(first_pixel + block);
                    self.pack_left(group, first, depths.clone(), left);
                    let row_len = channels.len() * shape.kernel_pixels();
                    let image = Staged { stage, offsets: &plan.positions, depths: depths.clone() };
                    for panel in &plan.columns.panels {
                        let panels = shape.group_filters().div_ceil(engine.max_rows());
                        let right = image.panel(engine, &plan.columns, panel, panels, right);
                        self.tiles(left, right, depths.len(), panel, start, sums, row_len);
                    }
                    start = Start::Output;
                }
            }
        });
    }

    /// The planes of some channels of a group of an image.
    fn planes(&self, image: usize, group: usize, channels: &Range<usize>) -> &[f32] {
        let sizes = self.shape.sizes();
        let first = image * sizes.channels + group * self.shape.group_channels() + channels.start;
        let pixels = self.shape.image_pixels();
        &self.input[first * pixels..][..channels.len() * pixels]
    }

    /// Packs the output gradient of the pixels `depths`, counted from those of image `first`.
    fn pack_left(&self, group: usize, first: usize, depths: Range<usize>, left: &mut [f32]) {
        let (filters, pixels) = (self.shape.group_filters(), self.shape.output_pixels());
        let row_panels = RowPanels::new(filters, self.engine.max_rows());
        // Panel by panel, because transposing writes a few zeros into what follows.
        for panel in 0..row_panels.count() {
            let rows = row_panels.range(panel);
            let mut at = depths.start;
            while at < depths.end {
                let (image, pixel) = (first + at / pixels, at % pixels);
                let count = (pixels - pixel).min(depths.end - at);
                let plane = (image * self.shape.sizes().groups + group) * filters + rows.start;
                let source = &self.output_gradient[plane * pixels + pixel..];
                let start = depths.len() * rows.start + (at - depths.start) * rows.len();
                let target = (&mut left[start..], rows.len());
                self.engine.transpose((source, pixels), (rows.len(), count), target);
                at += count;
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the innermost level of a loop nest")]
    fn tiles(
        &self,
        left: &[f32],
        right: Right<'_>,
        depth: usize,
        panel: &ColumnPanel,
        start: Start<'_>,
        sums: &mut [f32],
        row_len: usize,
    ) {
        let row_panels = RowPanels::new(self.shape.group_filters(), self.engine.max_rows());
        for row_panel in 0..row_panels.count() {
            let rows = row_panels.range(row_panel);
            let tile = Tile {
                rows: rows.len(),
                left: &left[depth * rows.start..],
                vectors: panel.vectors,
                right,
                depth,
                start,
                columns: panel.columns,
            };
            let place = rows.start * row_len + panel.start;
            self.engine.tile(&tile, &mut sums[place..], row_len);
        }
    }
}
