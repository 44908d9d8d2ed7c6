//! Products of a mini-batch with the weights of a fully-connected layer.
//!
//! A mini-batch has few rows and the weights are large, so the time goes into reading the weights
//! once. All passes walk along the rows of the weights as they lie in memory:
//!
//! | pass | left | right | product |
//! |---|---|---|---|
//! | forward | images, turned, `inputs × images` | weights, a panel at a time | output |
//! | data gradient | output gradient, row by row | weights, row by row | dot products of rows |
//! | weight gradient | images as they are | output gradient in panels | weight gradient |
//!
//! In mixed precision the same passes run over pairs of bf16, which are made while packing; what
//! is paired are neighbours in the sum: inputs, outputs and images.

use std::fmt;
use std::ops::Range;

use super::bf16::{Blocks, round_all};
use super::microkernel::{Dots, Engine, Matrix, Pairing, Product, Right, Start, Tile, multiply};
use super::packing::RowPanels;
use super::parallel::{Units, threads};
use super::scratch::with_buffers;
use super::{Arithmetic, KernelError};

/// Depth of a block of the forward pass and of the weight gradient: a panel of so many rows and
/// two vectors stays in the first-level cache.
const BLOCK_DEPTH: usize = 128;

/// Length of the rows that dot products are made of in one go.
const DOT_DEPTH: usize = 256;

/// Least and most panels of two vectors that one unit of the forward pass reads side by side.
const UNITS_WANTED: usize = 16;
const MOST_PANELS: usize = 8;

/// Rows of the weights in one unit of the gradients.
const UNIT_ROWS: usize = 60;

/// A fully-connected layer on a mini-batch, whose sizes fit together.
///
/// Images are `images × inputs`, weights `inputs × outputs`, results `images × outputs`, all
/// row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FullyConnectedShape {
    images: usize,
    inputs: usize,
    outputs: usize,
}

impl fmt::Display for FullyConnectedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} images of {} inputs with {} outputs", self.images, self.inputs, self.outputs)
    }
}

impl FullyConnectedShape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// A size that is 0, or arrays too long to address. The error names the shape.
    pub fn new(images: usize, inputs: usize, outputs: usize) -> Result<Self, KernelError> {
        let shape = FullyConnectedShape { images, inputs, outputs };
        for (size, name) in [(images, "images"), (inputs, "inputs"), (outputs, "outputs")] {
            if size == 0 {
                return Err(KernelError::ZeroSize { shape: shape.to_string(), name });
            }
        }
        let sides = [(images, inputs), (inputs, outputs), (images, outputs)];
        // Room for what the kernels pad to whole vectors.
        let limit = isize::MAX as usize / (64 * size_of::<f32>());
        let fits =
            |(rows, columns): (usize, usize)| rows.checked_mul(columns).is_some_and(|n| n <= limit);
        if sides.into_iter().all(fits) {
            Ok(shape)
        } else {
            Err(KernelError::TooLarge { shape: shape.to_string() })
        }
    }

    /// Images in the mini-batch.
    pub fn images(&self) -> usize {
        self.images
    }

    /// Numbers that go in, per image.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers that come out, per image.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Floating-point operations of one pass, a multiply-add counted as two.
    pub fn flops(&self) -> u64 {
        2 * (self.images * self.inputs) as u64 * self.outputs as u64
    }

    fn check_len(
        &self,
        slice: &'static str,
        actual: usize,
        (rows, columns): (usize, usize),
    ) -> Result<(), KernelError> {
        let expected = rows * columns;
        if actual == expected {
            return Ok(());
        }
        Err(KernelError::WrongLength { shape: self.to_string(), slice, actual, expected })
    }
}

/// `output[n, o] = bias[o] + Σ_i input[n, i] · weights[i, o]`.
///
/// Runs on the current rayon pool; the result does not depend on the number of its threads.
///
/// # Errors
/// A slice that does not fit the shape, or an arithmetic that this processor lacks.
pub fn fully_connected(
    shape: &FullyConnectedShape,
    input: &[f32],
    weights: &[f32],
    bias: &[f32],
    output: &mut [f32],
    arithmetic: Arithmetic,
) -> Result<(), KernelError> {
    let FullyConnectedShape { images, inputs, outputs } = *shape;
    shape.check_len("input", input.len(), (images, inputs))?;
    shape.check_len("weights", weights.len(), (inputs, outputs))?;
    shape.check_len("bias", bias.len(), (outputs, 1))?;
    shape.check_len("output", output.len(), (images, outputs))?;
    match engine_of(arithmetic)? {
        Some(engine) => Packed::new(engine, shape).forward(input, weights, bias, output),
        None => {
            with_factors(arithmetic, [input, weights], |[input, weights]| {
                multiply(Product {
                    left: Matrix::rows(input, images, inputs),
                    right: Matrix::rows(weights, inputs, outputs),
                    output,
                    accumulate: false,
                    threads: threads(),
                });
            });
            for row in output.chunks_exact_mut(outputs) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
    }
    Ok(())
}

/// Gradient with respect to the input: `input_gradient[n, i] = Σ_o output_gradient[n, o] · weights[i, o]`.
///
/// # Errors
/// See [`fully_connected`].
pub fn fully_connected_backward_data(
    shape: &FullyConnectedShape,
    weights: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
    arithmetic: Arithmetic,
) -> Result<(), KernelError> {
    let FullyConnectedShape { images, inputs, outputs } = *shape;
    shape.check_len("weights", weights.len(), (inputs, outputs))?;
    shape.check_len("output gradient", output_gradient.len(), (images, outputs))?;
    shape.check_len("input gradient", input_gradient.len(), (images, inputs))?;
    match engine_of(arithmetic)? {
        Some(engine) => {
            Packed::new(engine, shape).backward_data(weights, output_gradient, input_gradient);
        }
        None => with_factors(arithmetic, [output_gradient, weights], |[gradient, weights]| {
            multiply(Product {
                left: Matrix::rows(gradient, images, outputs),
                right: Matrix::rows(weights, inputs, outputs).transposed(),
                output: input_gradient,
                accumulate: false,
                threads: threads(),
            });
        }),
    }
    Ok(())
}

/// Gradients with respect to weights and bias, summed over the mini-batch:
/// `weight_gradient[i, o] = Σ_n input[n, i] · output_gradient[n, o]` and
/// `bias_gradient[o] = Σ_n output_gradient[n, o]`.
///
/// # Errors
/// See [`fully_connected`].
pub fn fully_connected_backward_weights(
    shape: &FullyConnectedShape,
    input: &[f32],
    output_gradient: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
    arithmetic: Arithmetic,
) -> Result<(), KernelError> {
    let FullyConnectedShape { images, inputs, outputs } = *shape;
    shape.check_len("input", input.len(), (images, inputs))?;
    shape.check_len("output gradient", output_gradient.len(), (images, outputs))?;
    shape.check_len("weight gradient", weight_gradient.len(), (inputs, outputs))?;
    shape.check_len("bias gradient", bias_gradient.len(), (outputs, 1))?;
    sum_rows(output_gradient, bias_gradient);
    match engine_of(arithmetic)? {
        Some(engine) => {
            Packed::new(engine, shape).backward_weights(input, output_gradient, weight_gradient);
        }
        None => with_factors(arithmetic, [input, output_gradient], |[input, gradient]| {
            multiply(Product {
                left: Matrix::rows(input, images, inputs).transposed(),
                right: Matrix::rows(gradient, images, outputs),
                output: weight_gradient,
                accumulate: false,
                threads: threads(),
            });
        }),
    }
    Ok(())
}

/// The vector kernels of an arithmetic, where it has such.
fn engine_of(arithmetic: Arithmetic) -> Result<Option<Engine>, KernelError> {
    match arithmetic {
        Arithmetic::Single(instructions) => Engine::new(instructions),
        Arithmetic::Mixed(path) => Engine::of_pairs(path),
    }
}

/// Gives `work` the factors as the arithmetic multiplies them.
fn with_factors(arithmetic: Arithmetic, factors: [&[f32]; 2], work: impl FnOnce([&[f32]; 2])) {
    match arithmetic {
        Arithmetic::Single(_) => work(factors),
        Arithmetic::Mixed(_) => with_buffers(factors.map(<[f32]>::len), |[first, second]| {
            round_all(factors[0], first);
            round_all(factors[1], second);
            work([first, second]);
        }),
    }
}

/// Sums rows as long as `sums`, from the first to the last.
fn sum_rows(rows: &[f32], sums: &mut [f32]) {
    sums.fill(0.0);
    for row in rows.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

/// The passes on the vector kernels.
struct Packed<'a> {
    engine: Engine,
    pairing: Option<Pairing>,
    shape: &'a FullyConnectedShape,
}

/// Columns of a matrix in panels of two vectors, the last one perhaps of one.
#[derive(Clone, Copy)]
struct Panels {
    lanes: usize,
    columns: usize,
    pairing: Option<Pairing>,
}

impl Panels {
    fn count(self) -> usize {
        self.columns.div_ceil(2 * self.lanes)
    }

    fn columns(self, panel: usize) -> Range<usize> {
        let width = 2 * self.lanes;
        panel * width..self.columns.min((panel + 1) * width)
    }

    fn vectors(self, panel: usize) -> usize {
        self.columns(panel).len().div_ceil(self.lanes)
    }

    /// Packs the rows of a row-major matrix with `pitch` floats per row, panel after panel; each
    /// takes `depth(rows) · 2·lanes` floats, and is filled up with zeros. Two rows make one of
    /// pairs.
    fn pack(self, source: &[f32], pitch: usize, panels: Range<usize>, target: &mut [f32]) {
        let rows_at_once = if self.pairing.is_some() { 2 } else { 1 };
        let rows = source.chunks(rows_at_once * pitch);
        let panel_len = rows.len() * 2 * self.lanes;
        for (row, source) in rows.enumerate() {
            let (first, second) = source.split_at(pitch);
            for (panel, target) in panels.clone().zip(target.chunks_exact_mut(panel_len)) {
                let columns = self.columns(panel);
                let width = self.vectors(panel) * self.lanes;
                let target = &mut target[row * width..][..width];
                let (own, padding) = target.split_at_mut(columns.len());
                padding.fill(0.0);
                match self.pairing {
                    Some(pairing) => {
                        let second = second.get(columns.clone());
                        pairing.pair(&first[columns], second, own);
                    }
                    None => own.copy_from_slice(&first[columns]),
                }
            }
        }
    }
}

impl<'a> Packed<'a> {
    fn new(engine: Engine, shape: &'a FullyConnectedShape) -> Self {
        Self { engine, pairing: engine.pairing(), shape }
    }

    fn panels(&self, columns: usize) -> Panels {
        Panels { lanes: self.engine.lanes(), columns, pairing: self.pairing }
    }

    /// Elements in depth that so many products take.
    fn depth(&self, products: usize) -> usize {
        if self.pairing.is_some() { products.div_ceil(2) } else { products }
    }

    /// Products in an element.
    fn products(&self) -> usize {
        if self.pairing.is_some() { 2 } else { 1 }
    }

    fn forward(&self, input: &[f32], weights: &[f32], bias: &[f32], output: &mut [f32]) {
        let FullyConnectedShape { images, inputs, outputs } = *self.shape;
        let panels = self.panels(outputs);
        let panels_per_unit = (panels.count() / UNITS_WANTED).clamp(1, MOST_PANELS);
        let unit_panels =
            |unit: usize| unit * panels_per_unit..panels.count().min((unit + 1) * panels_per_unit);
        let first_column = |unit: usize| outputs.min(unit * panels_per_unit * 2 * panels.lanes);
        let count = panels.count().div_ceil(panels_per_unit);
        let units = Units {
            count,
            flops_per_unit: self.shape.flops() / count as u64,
            bounds: |unit| images * first_column(unit),
        };
        let depth = self.depth(inputs);
        let paired_len = if self.pairing.is_some() { images * depth } else { 0 };
        let lengths = [depth * images + self.engine.slack(), images * outputs, paired_len];
        with_buffers(lengths, |[turned, products, paired]| {
            let mut elements = input;
            if let Some(pairing) = self.pairing {
                let rows = paired.chunks_exact_mut(depth);
                for (row, input) in rows.zip(input.chunks_exact(inputs)) {
                    pairing.pair_neighbours(input, row);
                }
                elements = paired;
            }
            self.engine.transpose((elements, depth), (images, depth), (turned, images));
            let turned = &*turned;
            units.run(products, |unit, products| {
                self.unit_forward(turned, weights, unit_panels(unit), panels, products);
            });
            for unit in 0..count {
                let columns = first_column(unit)..first_column(unit + 1);
                let block = &products[images * columns.start..][..images * columns.len()];
                let rows = output.chunks_exact_mut(outputs);
                for (row, products) in rows.zip(block.chunks_exact(columns.len())) {
                    let biases = products.iter().zip(&bias[columns.clone()]);
                    for (value, (product, bias)) in row[columns.clone()].iter_mut().zip(biases) {
                        *value = product + bias;
                    }
                }
            }
        });
    }

    /// Products with some panels of the weights, row by row.
    fn unit_forward(
        &self,
        turned: &[f32],
        weights: &[f32],
        unit_panels: Range<usize>,
        panels: Panels,
        products: &mut [f32],
    ) {
        let FullyConnectedShape { images, inputs, outputs } = *self.shape;
        let width = 2 * panels.lanes;
        let pitch = products.len() / images;
        let row_panels = RowPanels::new(images, self.engine.max_rows());
        let whole_depth = self.depth(inputs);
        with_buffers([unit_panels.len() * BLOCK_DEPTH.min(whole_depth) * width], |[packed]| {
            for first in (0..whole_depth).step_by(BLOCK_DEPTH) {
                let depth = BLOCK_DEPTH.min(whole_depth - first);
                let rows = first * self.products()..inputs.min((first + depth) * self.products());
                let rows = &weights[rows.start * outputs..rows.end * outputs];
                panels.pack(rows, outputs, unit_panels.clone(), packed);
                let blocks = packed.chunks_exact(depth * width);
                for ((at, panel), block) in unit_panels.clone().enumerate().zip(blocks) {
                    for images_of_panel in (0..row_panels.count()).map(|p| row_panels.range(p)) {
                        let place = images_of_panel.start * pitch + at * width;
                        let tile = Tile {
                            rows: images_of_panel.len(),
                            left: &turned[first * images + images_of_panel.start..],
                            left_pitch: images,
                            vectors: panels.vectors(panel),
                            right: Right::Packed(block),
                            depth,
                            start: if first == 0 { Start::Zero } else { Start::Output },
                            columns: panels.columns(panel).len(),
                        };
                        self.engine.tile(&tile, &mut products[place..], pitch);
                    }
                }
            }
        });
    }

    fn backward_data(&self, weights: &[f32], output_gradient: &[f32], input_gradient: &mut [f32]) {
        let FullyConnectedShape { images, inputs, outputs } = *self.shape;
        let count = inputs.div_ceil(UNIT_ROWS);
        let rows = |unit: usize| unit * UNIT_ROWS..inputs.min((unit + 1) * UNIT_ROWS);
        let units = Units {
            count,
            flops_per_unit: self.shape.flops() / count as u64,
            bounds: |unit| images * inputs.min(unit * UNIT_ROWS),
        };
        let (lanes, pairing) = (self.engine.lanes(), self.pairing);
        let blocks = DotBlocks { lanes, length: outputs, pairing };
        with_buffers([images * blocks.padded(), images * inputs], |[gradients, products]| {
            blocks.pack(output_gradient, images, gradients);
            let gradients = &*gradients;
            units.run(products, |unit, products| {
                let rows = rows(unit);
                let weights = &weights[rows.start * outputs..rows.end * outputs];
                self.unit_backward_data(gradients, weights, blocks, products);
            });
            for rows in (0..count).map(rows) {
                let block = &products[images * rows.start..][..images * rows.len()];
                let targets = input_gradient.chunks_exact_mut(inputs);
                for (target, products) in targets.zip(block.chunks_exact(rows.len())) {
                    target[rows.clone()].copy_from_slice(products);
                }
            }
        });
    }

    /// Dot products of some rows of the weights with the gradients of all images.
    fn unit_backward_data(
        &self,
        gradients: &[f32],
        weights: &[f32],
        blocks: DotBlocks,
        products: &mut [f32],
    ) {
        let FullyConnectedShape { images, outputs, .. } = *self.shape;
        let most = self.engine.max_dots();
        let pitch = products.len() / images;
        let lanes = blocks.lanes;
        with_buffers([most * blocks.padded(), images * most * lanes], |[packed, sums]| {
            for (group, weights) in weights.chunks(most * outputs).enumerate() {
                let right_rows = weights.len() / outputs;
                blocks.pack(weights, right_rows, packed);
                let sums = &mut sums[..images * right_rows * lanes];
                sums.fill(0.0);
                for depth in blocks.ranges() {
                    let right = &packed[right_rows * depth.start..][..right_rows * depth.len()];
                    let left = &gradients[images * depth.start..][..images * depth.len()];
                    for first in (0..images).step_by(most) {
                        let dots = Dots {
                            left: &left[first * depth.len()..],
                            left_rows: most.min(images - first),
                            right,
                            right_rows,
                            depth: depth.len(),
                            pitch: right_rows * lanes,
                        };
                        self.engine.dots(&dots, &mut sums[first * right_rows * lanes..]);
                    }
                }
                let rows = products.chunks_exact_mut(pitch).map(|row| &mut row[group * most..]);
                for (row, sums) in rows.zip(sums.chunks_exact(right_rows * lanes)) {
                    for (product, lanes) in row.iter_mut().zip(sums.chunks_exact(lanes)) {
                        *product = sum_lanes(lanes);
                    }
                }
            }
        });
    }

    fn backward_weights(
        &self,
        input: &[f32],
        output_gradient: &[f32],
        weight_gradient: &mut [f32],
    ) {
        let FullyConnectedShape { images, inputs, outputs } = *self.shape;
        let panels = self.panels(outputs);
        let depth = self.depth(images);
        let pairs_len = if self.pairing.is_some() { depth * inputs } else { 0 };
        let packed_len = depth * panels.count() * 2 * panels.lanes;
        let count = inputs.div_ceil(UNIT_ROWS);
        let units = Units {
            count,
            flops_per_unit: self.shape.flops() / count as u64,
            bounds: |unit| outputs * inputs.min(unit * UNIT_ROWS),
        };
        with_buffers([packed_len, pairs_len], |[packed, pairs]| {
            let blocks = (0..depth).step_by(BLOCK_DEPTH);
            for first in blocks.clone() {
                let target = &mut packed[first * panels.count() * 2 * panels.lanes..];
                let last = images.min((first + BLOCK_DEPTH) * self.products());
                let rows = &output_gradient[first * self.products() * outputs..last * outputs];
                panels.pack(rows, outputs, 0..panels.count(), target);
            }
            let mut input = input;
            if let Some(pairing) = self.pairing {
                let images = Blocks { items: 1, per_item: images, length: inputs };
                images.pair(pairing, input, pairs);
                input = pairs;
            }
            let packed = &*packed;
            units.run(weight_gradient, |unit, gradient| {
                for first in blocks.clone() {
                    let columns = &packed[first * panels.count() * 2 * panels.lanes..];
                    let images = first..depth.min(first + BLOCK_DEPTH);
                    let input = &input[first * inputs + unit * UNIT_ROWS..];
                    self.unit_backward_weights(input, columns, images, panels, gradient);
                }
            });
        });
    }

    /// Adds the products of some images, or pairs of them, to the gradient of some rows of the
    /// weights.
    fn unit_backward_weights(
        &self,
        input: &[f32],
        packed: &[f32],
        images: Range<usize>,
        panels: Panels,
        gradient: &mut [f32],
    ) {
        let FullyConnectedShape { inputs, outputs, .. } = *self.shape;
        let row_panels = RowPanels::new(gradient.len() / outputs, self.engine.max_rows());
        let panel_len = images.len() * 2 * panels.lanes;
        for rows in (0..row_panels.count()).map(|panel| row_panels.range(panel)) {
            for (panel, block) in (0..panels.count()).zip(packed.chunks_exact(panel_len)) {
                let columns = panels.columns(panel);
                let tile = Tile {
                    rows: rows.len(),
                    left: &input[rows.start..],
                    left_pitch: inputs,
                    vectors: panels.vectors(panel),
                    right: Right::Packed(block),
                    depth: images.len(),
                    start: if images.start == 0 { Start::Zero } else { Start::Output },
                    columns: columns.len(),
                };
                let target = &mut gradient[rows.start * outputs + columns.start..];
                self.engine.tile(&tile, target, outputs);
            }
        }
    }
}

/// Rows cut into blocks for dot products, filled up with zeros to whole vectors.
#[derive(Clone, Copy)]
struct DotBlocks {
    lanes: usize,
    length: usize,
    pairing: Option<Pairing>,
}

impl DotBlocks {
    /// Elements of a row with its zeros.
    fn padded(self) -> usize {
        self.length.div_ceil(self.products()).next_multiple_of(self.lanes)
    }

    /// Products in an element.
    fn products(self) -> usize {
        if self.pairing.is_some() { 2 } else { 1 }
    }

    fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let padded = self.padded();
        (0..padded).step_by(DOT_DEPTH).map(move |start| start..padded.min(start + DOT_DEPTH))
    }

    /// Packs `rows`, block after block, each of them row by row.
    fn pack(self, source: &[f32], rows: usize, target: &mut [f32]) {
        for range in self.ranges() {
            let block = &mut target[rows * range.start..][..rows * range.len()];
            let [start, end] = [range.start, range.end].map(|element| element * self.products());
            let kept = start..end.min(self.length);
            let sources = source.chunks_exact(self.length);
            for (source, target) in sources.zip(block.chunks_exact_mut(range.len())) {
                let (own, padding) = target.split_at_mut(kept.len().div_ceil(self.products()));
                padding.fill(0.0);
                match self.pairing {
                    Some(pairing) => pairing.pair_neighbours(&source[kept.clone()], own),
                    None => own.copy_from_slice(&source[kept.clone()]),
                }
            }
        }
    }
}

/// The sum of a vector, in an order that a processor can add in parallel.
fn sum_lanes(lanes: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    for part in lanes.as_chunks::<8>().0 {
        sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bf16::round;
    use super::super::{Instructions, MixedPath};
    use super::*;

    const REFUSED: &str = "the slices fit the shape";

    struct Operands {
        shape: FullyConnectedShape,
        input: Vec<f32>,
        weights: Vec<f32>,
        bias: Vec<f32>,
        output_gradient: Vec<f32>,
    }

    impl Operands {
        fn new(shape: FullyConnectedShape, seed: u64) -> Self {
            let FullyConnectedShape { images, inputs, outputs } = shape;
            let mut state = seed;
            let mut draw = |length: usize| -> Vec<f32> {
                (0..length)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
                    })
                    .collect()
            };
            Operands {
                shape,
                input: draw(images * inputs),
                weights: draw(inputs * outputs),
                bias: draw(outputs),
                output_gradient: draw(images * outputs),
            }
        }

        /// With the factors that mixed precision multiplies.
        fn rounded(&self) -> Self {
            let round = |values: &[f32]| values.iter().map(|value| round(*value)).collect();
            Operands {
                shape: self.shape,
                input: round(&self.input),
                weights: round(&self.weights),
                bias: self.bias.clone(),
                output_gradient: round(&self.output_gradient),
            }
        }

        /// Output, input gradient, weight gradient and bias gradient.
        fn results(&self, arithmetic: Arithmetic) -> [Vec<f32>; 4] {
            let Operands { shape, input, weights, bias, output_gradient } = self;
            let mut results =
                [output_gradient, input, weights, bias].map(|like| vec![f32::NAN; like.len()]);
            let [output, data, weight, biases] = &mut results;
            fully_connected(shape, input, weights, bias, output, arithmetic).expect(REFUSED);
            fully_connected_backward_data(shape, weights, output_gradient, data, arithmetic)
                .expect(REFUSED);
            fully_connected_backward_weights(
                shape,
                input,
                output_gradient,
                weight,
                biases,
                arithmetic,
            )
            .expect(REFUSED);
            results
        }

        /// The defining sums in double precision.
        fn naive(&self) -> [Vec<f64>; 4] {
            let FullyConnectedShape { images, inputs, outputs } = self.shape;
            let mut sums = [images * outputs, images * inputs, inputs * outputs, outputs]
                .map(|length| vec![0.0; length]);
            for (n, o) in (0..images).flat_map(|n| (0..outputs).map(move |o| (n, o))) {
                let gradient = f64::from(self.output_gradient[n * outputs + o]);
                sums[0][n * outputs + o] += f64::from(self.bias[o]);
                sums[3][o] += gradient;
                for i in 0..inputs {
                    let value = f64::from(self.input[n * inputs + i]);
                    let weight = f64::from(self.weights[i * outputs + o]);
                    sums[0][n * outputs + o] += value * weight;
                    sums[1][n * inputs + i] += gradient * weight;
                    sums[2][i * outputs + o] += value * gradient;
                }
            }
            sums
        }
    }

    fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
    }

    fn available() -> impl Iterator<Item = Arithmetic> {
        let single =
            Instructions::ALL.into_iter().filter(|instructions| instructions.is_available());
        let mixed = MixedPath::ALL.into_iter().filter(|path| path.is_available());
        single.map(Arithmetic::Single).chain(mixed.map(Arithmetic::Mixed))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn every_arithmetic_computes_the_defining_sums_of_its_factors(
            (images, inputs, outputs) in (1usize..140, 1usize..200, 1usize..140),
            seed in any::<u64>(),
        ) {
            let shape = FullyConnectedShape::new(images, inputs, outputs).unwrap();
            let operands = Operands::new(shape, seed);
            let rounded = operands.rounded().naive();
            let naive = operands.naive();
            // Terms of each sum, all below 1; every one may cost a rounding of the largest sum.
            let terms = [inputs + 1, outputs, images, images];
            for arithmetic in available() {
                let results = operands.results(arithmetic);
                let mut expected = naive.clone();
                if matches!(arithmetic, Arithmetic::Mixed(_)) {
                    // The gradient of the bias has no factors.
                    expected[..3].clone_from_slice(&rounded[..3]);
                }
                for ((results, naive), terms) in results.iter().zip(&expected).zip(terms) {
                    let bound = (terms * terms) as f64 * f64::from(f32::EPSILON);
                    for (result, sum) in results.iter().zip(naive) {
                        prop_assert!((f64::from(*result) - sum).abs() <= bound, "{result}, {sum}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let shape = FullyConnectedShape::new(70, 300, 530).unwrap();
        let operands = Operands::new(shape, 5);
        let portable = [Instructions::Portable.into(), Arithmetic::Mixed(MixedPath::Portable)];
        for arithmetic in available().filter(|arithmetic| !portable.contains(arithmetic)) {
            let alone = on_threads(1, || operands.results(arithmetic));
            for threads in [2, 5] {
                assert!(alone == on_threads(threads, || operands.results(arithmetic)));
            }
        }
    }

    #[test]
    fn sizes_and_slices_that_do_not_fit_are_refused_with_the_shape() {
        let refusal = |images, inputs, outputs| {
            FullyConnectedShape::new(images, inputs, outputs).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(3, 0, 5),
            "3 images of 0 inputs with 5 outputs: inputs is 0, it must be at least 1"
        );
        let huge = refusal(2, usize::MAX / 4, 9);
        assert!(huge.ends_with("the arrays exceed the address space"), "{huge}");
        let shape = FullyConnectedShape::new(2, 3, 4).unwrap();
        let short = fully_connected(
            &shape,
            &[0.0; 6],
            &[0.0; 11],
            &[0.0; 4],
            &mut [0.0; 8],
            Instructions::Portable.into(),
        );
        assert_eq!(
            short.unwrap_err().to_string(),
            "2 images of 3 inputs with 4 outputs: weights has 11 elements, the shape needs 12"
        );
    }
}
