//! Max and average pooling and their gradients.

use std::fmt;
use std::ops::Range;

use rayon::prelude::*;

use super::KernelError;
use super::microkernel::{Engine, Instructions, Windows};
use super::parallel::{Units, threads};
use super::scratch::with_buffers;

/// What to do with a window that only partly fits at the bottom or right edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Leave it out: `⌊(extent + 2·padding − window) / stride⌋ + 1` positions.
    Down,
    /// Keep it, as Caffe does: `⌈…⌉ + 1` positions, less one that would start in the padding
    /// behind the image.
    Up,
}

/// The numbers that describe a pooling layer, not yet checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolingSizes {
    /// Planes, which is images times channels.
    pub planes: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Columns of a plane.
    pub width: usize,
    /// Rows of the window.
    pub window_height: usize,
    /// Columns of the window.
    pub window_width: usize,
    /// Distance between neighbouring windows.
    pub stride: usize,
    /// Rows and columns added on each side, smaller than the window.
    pub padding: usize,
    /// Whether windows may stick out at the bottom and right.
    pub rounding: Rounding,
}

impl fmt::Display for PoolingSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounding = match self.rounding {
            Rounding::Down => "down",
            Rounding::Up => "up",
        };
        write!(
            f,
            "{} planes of {}x{} pooled in windows of {}x{}, stride {}, padding {}, rounded {rounding}",
            self.planes,
            self.height,
            self.width,
            self.window_height,
            self.window_width,
            self.stride,
            self.padding,
        )
    }
}

/// A pooling layer whose sizes fit together.
///
/// Planes are `planes × height × width`, row-major, and become `planes × output_height ×
/// output_width`; see [`Rounding`] for the number of windows along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolingShape {
    sizes: PoolingSizes,
    output_height: usize,
    output_width: usize,
}

impl PoolingShape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// A size that is 0 (padding may be), a window larger than the padded plane, padding as large
    /// as the window, or planes too large to address. The error names the shape.
    pub fn new(sizes: PoolingSizes) -> Result<Self, KernelError> {
        for (size, name) in [
            (sizes.planes, "planes"),
            (sizes.height, "height"),
            (sizes.width, "width"),
            (sizes.window_height, "window height"),
            (sizes.window_width, "window width"),
            (sizes.stride, "stride"),
        ] {
            if size == 0 {
                return Err(KernelError::ZeroSize { shape: sizes.to_string(), name });
            }
        }
        let window = sizes.window_height.min(sizes.window_width);
        if sizes.padding >= window {
            return Err(KernelError::PaddingTooLarge {
                shape: sizes.to_string(),
                padding: sizes.padding,
                kernel: window,
            });
        }
        let padded = |extent: usize| extent.checked_add(sizes.padding.checked_mul(2)?);
        let pixels = padded(sizes.height).zip(padded(sizes.width));
        let addressable = pixels
            .and_then(|(height, width)| height.checked_mul(width))
            // Winners are 32-bit places in a plane.
            .filter(|&pixels| u32::try_from(pixels).is_ok())
            .and_then(|pixels| pixels.checked_mul(4)?.checked_mul(sizes.planes))
            .is_some_and(|elements| elements <= isize::MAX as usize / size_of::<f32>());
        if !addressable {
            return Err(KernelError::TooLarge { shape: sizes.to_string() });
        }
        Ok(Self {
            sizes,
            output_height: positions(&sizes, "height", sizes.height, sizes.window_height)?,
            output_width: positions(&sizes, "width", sizes.width, sizes.window_width)?,
        })
    }

    /// The sizes this shape was made from.
    pub fn sizes(&self) -> PoolingSizes {
        self.sizes
    }

    /// Rows of one output plane.
    pub fn output_height(&self) -> usize {
        self.output_height
    }

    /// Columns of one output plane.
    pub fn output_width(&self) -> usize {
        self.output_width
    }

    /// Elements of all planes.
    pub fn input_len(&self) -> usize {
        self.sizes.planes * self.pixels()
    }

    /// Elements of all output planes.
    pub fn output_len(&self) -> usize {
        self.sizes.planes * self.output_pixels()
    }

    fn pixels(&self) -> usize {
        self.sizes.height * self.sizes.width
    }

    fn output_pixels(&self) -> usize {
        self.output_height * self.output_width
    }

    fn check_len(
        &self,
        slice: &'static str,
        actual: usize,
        expected: usize,
    ) -> Result<(), KernelError> {
        if actual == expected {
            return Ok(());
        }
        Err(KernelError::WrongLength { shape: self.sizes.to_string(), slice, actual, expected })
    }

    /// Work of one plane; a comparison or addition per pixel of each window.
    fn flops_per_plane(&self) -> u64 {
        (self.output_pixels() * self.sizes.window_height * self.sizes.window_width) as u64
    }

    fn windows(&self) -> Windows {
        let sizes = &self.sizes;
        let first = sizes.padding.div_ceil(sizes.stride);
        let behind = (sizes.width + sizes.padding).checked_sub(sizes.window_width);
        let end = behind.map_or(0, |last| last / sizes.stride + 1).min(self.output_width);
        Windows {
            height: sizes.height,
            width: sizes.width,
            window_height: sizes.window_height,
            window_width: sizes.window_width,
            stride: sizes.stride,
            padding: sizes.padding,
            rows: self.output_height,
            columns: self.output_width,
            inner: first.min(end)..end,
        }
    }

    /// Source columns of the windows in output column `x`.
    fn columns(&self, x: usize) -> Range<usize> {
        let sizes = &self.sizes;
        let start = x * sizes.stride;
        let end = (start + sizes.window_width).saturating_sub(sizes.padding).min(sizes.width);
        start.saturating_sub(sizes.padding)..end
    }

    /// One over the number of pixels of each window of a plane.
    fn shares(&self) -> Vec<f32> {
        let windows = (0..self.output_height)
            .flat_map(|y| (0..self.output_width).map(move |x| self.share(y, x)));
        windows.collect()
    }

    /// One over the number of pixels of the window at (`y`, `x`).
    ///
    /// A window is cut at the end of the padding, not of the plane: zeros of the padding count.
    fn share(&self, y: usize, x: usize) -> f32 {
        let sizes = &self.sizes;
        let extent = |at: usize, window: usize, length: usize| {
            let start = at * sizes.stride;
            (start + window).min(length + 2 * sizes.padding) - start
        };
        let rows = extent(y, sizes.window_height, sizes.height);
        let pixels = rows * extent(x, sizes.window_width, sizes.width);
        #[expect(clippy::cast_precision_loss, reason = "windows have few pixels")]
        let pixels = pixels as f32;
        pixels.recip()
    }
}

/// Whether a vector kernel has done the inner columns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inner {
    Done,
    Left,
}

impl Inner {
    fn of(done: Option<bool>) -> Self {
        if done == Some(true) { Inner::Done } else { Inner::Left }
    }
}

impl Windows {
    /// Output columns that remain after the inner ones were done, or all.
    fn remaining(&self, inner: Inner) -> [Range<usize>; 2] {
        match inner {
            Inner::Done => [0..self.inner.start, self.inner.end..self.columns],
            Inner::Left => [0..self.columns, 0..0],
        }
    }
}

/// The vector kernels of this processor, if it has any.
fn engine() -> Option<Engine> {
    Engine::new(Instructions::detect()).ok().flatten()
}

fn positions(
    sizes: &PoolingSizes,
    axis: &'static str,
    extent: usize,
    window: usize,
) -> Result<usize, KernelError> {
    let padded = extent + 2 * sizes.padding;
    if window > padded {
        return Err(KernelError::KernelTooLarge {
            shape: sizes.to_string(),
            axis,
            kernel: window,
            padded,
        });
    }
    let steps = padded - window;
    Ok(match sizes.rounding {
        Rounding::Down => steps / sizes.stride + 1,
        Rounding::Up => {
            let last = steps.div_ceil(sizes.stride);
            // The last window has to start before the padding behind the plane.
            last.min((extent + sizes.padding - 1) / sizes.stride) + 1
        }
    })
}

/// Largest pixel of each window, and its place in the plane (row · width + column).
///
/// Among equals the first in row-major order wins; a window with a NaN has a NaN. Padding never wins.
///
/// # Errors
/// A slice that does not fit the shape.
pub fn max_pooling(
    shape: &PoolingShape,
    input: &[f32],
    output: &mut [f32],
    winners: &mut [u32],
) -> Result<(), KernelError> {
    shape.check_len("input", input.len(), shape.input_len())?;
    shape.check_len("output", output.len(), shape.output_len())?;
    shape.check_len("winners", winners.len(), shape.output_len())?;
    let (pixels, output_pixels) = (shape.pixels(), shape.output_pixels());
    let (windows, engine) = (shape.windows(), engine());
    let plane = |((input, output), winners): ((&[f32], &mut [f32]), &mut [u32])| {
        let done = engine.map(|engine| engine.max_of_windows(&windows, input, output, winners));
        for columns in windows.remaining(Inner::of(done)) {
            max_of_columns(shape, &windows, input, output, winners, columns);
        }
    };
    if threads() == 1 {
        let planes = input.chunks_exact(pixels).zip(output.chunks_exact_mut(output_pixels));
        planes.zip(winners.chunks_exact_mut(output_pixels)).for_each(plane);
    } else {
        let planes = input.par_chunks_exact(pixels).zip(output.par_chunks_exact_mut(output_pixels));
        planes.zip(winners.par_chunks_exact_mut(output_pixels)).with_min_len(8).for_each(plane);
    }
    Ok(())
}

/// Pools the windows of some output columns one by one.
fn max_of_columns(
    shape: &PoolingShape,
    windows: &Windows,
    input: &[f32],
    output: &mut [f32],
    winners: &mut [u32],
    output_columns: Range<usize>,
) {
    for x in output_columns {
        let columns = shape.columns(x);
        for y in 0..shape.output_height {
            let rows = windows.rows_under(y);
            let start = rows.start * shape.sizes.width + columns.start;
            let (mut largest, mut winner) = (f32::NEG_INFINITY, start);
            for row in rows {
                for at in columns.clone().map(|column| row * shape.sizes.width + column) {
                    if input[at] > largest || input[at].is_nan() {
                        (largest, winner) = (input[at], at);
                    }
                }
            }
            output[y * shape.output_width + x] = largest;
            winners[y * shape.output_width + x] = place(winner);
        }
    }
}

fn place(index: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the shape's constructor checked it")]
    let place = index as u32;
    place
}

/// Gradient of [`max_pooling`]: each output's gradient goes to its winner.
///
/// Overwrites `input_gradient`.
///
/// # Errors
/// A slice that does not fit the shape.
pub fn max_pooling_backward(
    shape: &PoolingShape,
    output_gradient: &[f32],
    winners: &[u32],
    input_gradient: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_len("output gradient", output_gradient.len(), shape.output_len())?;
    shape.check_len("winners", winners.len(), shape.output_len())?;
    shape.check_len("input gradient", input_gradient.len(), shape.input_len())?;
    let output_pixels = shape.output_pixels();
    plane_units(shape).run(input_gradient, |plane, target| {
        target.fill(0.0);
        let outputs = plane * output_pixels..(plane + 1) * output_pixels;
        let gradients = &output_gradient[outputs.clone()];
        for (&gradient, &winner) in gradients.iter().zip(&winners[outputs]) {
            // A place beyond the plane can only come from winners of another shape.
            if let Some(target) = target.get_mut(winner as usize) {
                *target += gradient;
            }
        }
    });
    Ok(())
}

/// Planes as units of an array of input planes.
fn plane_units(shape: &PoolingShape) -> Units<impl Fn(usize) -> usize + Sync> {
    let pixels = shape.pixels();
    Units {
        count: shape.sizes.planes,
        flops_per_unit: shape.flops_per_plane(),
        bounds: move |plane| plane * pixels,
    }
}

/// Mean of each window.
///
/// Padding counts as zeros; the part of a window that sticks out beyond the padding does not count.
///
/// # Errors
/// A slice that does not fit the shape.
pub fn average_pooling(
    shape: &PoolingShape,
    input: &[f32],
    output: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_len("input", input.len(), shape.input_len())?;
    shape.check_len("output", output.len(), shape.output_len())?;
    let (pixels, output_pixels) = (shape.pixels(), shape.output_pixels());
    let (windows, shares, engine) = (shape.windows(), shape.shares(), engine());
    let units = Units {
        count: shape.sizes.planes,
        flops_per_unit: shape.flops_per_plane(),
        bounds: |plane| plane * output_pixels,
    };
    units.run(output, |plane, output| {
        let input = &input[plane * pixels..][..pixels];
        let done = engine.map(|engine| engine.sums_of_windows(&windows, input, output));
        for columns in windows.remaining(Inner::of(done)) {
            sums_of_columns(shape, &windows, input, output, columns);
        }
        for (sum, share) in output.iter_mut().zip(&shares) {
            *sum *= share;
        }
    });
    Ok(())
}

/// Sums the windows of some output columns one by one.
fn sums_of_columns(
    shape: &PoolingShape,
    windows: &Windows,
    input: &[f32],
    output: &mut [f32],
    output_columns: Range<usize>,
) {
    for x in output_columns {
        let columns = shape.columns(x);
        for y in 0..shape.output_height {
            let row_sum = |row: usize| -> f32 {
                input[row * shape.sizes.width..][columns.clone()].iter().sum()
            };
            output[y * shape.output_width + x] = windows.rows_under(y).map(row_sum).sum();
        }
    }
}

/// Gradient of [`average_pooling`]: each output's gradient is shared out over its window.
///
/// Overwrites `input_gradient`.
///
/// # Errors
/// A slice that does not fit the shape.
pub fn average_pooling_backward(
    shape: &PoolingShape,
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_len("output gradient", output_gradient.len(), shape.output_len())?;
    shape.check_len("input gradient", input_gradient.len(), shape.input_len())?;
    let (output_pixels, width) = (shape.output_pixels(), shape.sizes.width);
    let (windows, shares) = (shape.windows(), shape.shares());
    plane_units(shape).run(input_gradient, |plane, target| {
        target.fill(0.0);
        let gradients = &output_gradient[plane * output_pixels..][..output_pixels];
        with_buffers([width], |[row_sum]| {
            let rows = gradients.chunks_exact(shape.output_width);
            for (y, (gradients, shares)) in
                rows.zip(shares.chunks_exact(shape.output_width)).enumerate()
            {
                row_sum.fill(0.0);
                for (x, (gradient, share)) in gradients.iter().zip(shares).enumerate() {
                    let share = gradient * share;
                    for pixel in &mut row_sum[shape.columns(x)] {
                        *pixel += share;
                    }
                }
                for row in windows.rows_under(y) {
                    let target = &mut target[row * width..][..width];
                    for (target, sum) in target.iter_mut().zip(&*row_sum) {
                        *target += sum;
                    }
                }
            }
        });
    });
    Ok(())
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "pooling copies numbers, and sums of small ones are exact")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn any_shape()(
            planes in 1usize..5,
            window_height in 1usize..5,
            window_width in 1usize..5,
            extra_height in 0usize..9,
            extra_width in 0usize..30,
            stride in 1usize..6,
            padding in 0usize..4,
            up in any::<bool>(),
        ) -> PoolingShape {
            PoolingShape::new(PoolingSizes {
                planes,
                height: window_height + extra_height,
                width: window_width + extra_width,
                window_height,
                window_width,
                stride,
                padding: padding.min(window_height.min(window_width) - 1),
                rounding: if up { Rounding::Up } else { Rounding::Down },
            })
            .unwrap()
        }
    }

    /// Pixels of a window by their definition, and the number of its padded pixels.
    fn window(shape: &PoolingShape, y: usize, x: usize) -> (Vec<usize>, usize) {
        let sizes = shape.sizes();
        let (mut pixels, mut count) = (Vec::new(), 0);
        for i in 0..sizes.window_height {
            for j in 0..sizes.window_width {
                let (row, column) = (y * sizes.stride + i, x * sizes.stride + j);
                if row >= sizes.height + 2 * sizes.padding
                    || column >= sizes.width + 2 * sizes.padding
                {
                    continue;
                }
                count += 1;
                let row = row.checked_sub(sizes.padding).filter(|&row| row < sizes.height);
                let column =
                    column.checked_sub(sizes.padding).filter(|&column| column < sizes.width);
                if let (Some(row), Some(column)) = (row, column) {
                    pixels.push(row * sizes.width + column);
                }
            }
        }
        (pixels, count)
    }

    /// Small whole numbers, so that ties occur and sums are exact.
    fn values(length: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 61) as f32 - 4.0
            })
            .collect()
    }

    fn windows(shape: &PoolingShape) -> impl Iterator<Item = (usize, Vec<usize>, usize)> {
        (0..shape.output_len()).map(|index| {
            let plane = index / shape.output_pixels();
            let at = index % shape.output_pixels();
            let (pixels, count) = window(shape, at / shape.output_width, at % shape.output_width);
            (plane * shape.pixels(), pixels, count)
        })
    }

    proptest! {
        #[test]
        fn every_window_has_a_pixel(shape in any_shape()) {
            prop_assert!(windows(&shape).all(|(_, pixels, _)| !pixels.is_empty()));
        }

        #[test]
        fn max_pooling_finds_the_first_largest_pixel(shape in any_shape(), seed in any::<u64>()) {
            let input = values(shape.input_len(), seed);
            let mut output = vec![f32::NAN; shape.output_len()];
            let mut winners = vec![u32::MAX; shape.output_len()];
            max_pooling(&shape, &input, &mut output, &mut winners).unwrap();
            let mut gradient = vec![f32::NAN; shape.input_len()];
            let output_gradient = values(shape.output_len(), seed + 1);
            max_pooling_backward(&shape, &output_gradient, &winners, &mut gradient).unwrap();
            let mut expected_gradient = vec![0.0; shape.input_len()];
            for (index, (plane, pixels, _)) in windows(&shape).enumerate() {
                let largest = pixels.iter().map(|&at| input[plane + at]).fold(f32::MIN, f32::max);
                let winner = pixels.iter().find(|&&at| input[plane + at] == largest).unwrap();
                prop_assert_eq!(output[index], largest);
                prop_assert_eq!(winners[index] as usize, *winner);
                expected_gradient[plane + winner] += output_gradient[index];
            }
            prop_assert_eq!(gradient, expected_gradient);
        }

        #[test]
        fn average_pooling_divides_by_the_padded_window(shape in any_shape(), seed in any::<u64>()) {
            let input = values(shape.input_len(), seed);
            let mut output = vec![f32::NAN; shape.output_len()];
            average_pooling(&shape, &input, &mut output).unwrap();
            let mut gradient = vec![f32::NAN; shape.input_len()];
            let output_gradient = values(shape.output_len(), seed + 1);
            average_pooling_backward(&shape, &output_gradient, &mut gradient).unwrap();
            let mut expected_gradient = vec![0.0; shape.input_len()];
            for (index, (plane, pixels, count)) in windows(&shape).enumerate() {
                let sum: f32 = pixels.iter().map(|&at| input[plane + at]).sum();
                // A reciprocal and a product: two roundings.
                let mean = sum / count as f32;
                prop_assert!((output[index] - mean).abs() <= 2.0 * f32::EPSILON * mean.abs());
                for at in pixels {
                    expected_gradient[plane + at] += output_gradient[index] / count as f32;
                }
            }
            for (actual, expected) in gradient.iter().zip(&expected_gradient) {
                // At most 25 windows meet in a pixel, each adds at most 4 with two roundings.
                prop_assert!((actual - expected).abs() <= 25.0 * 25.0 * 4.0 * f32::EPSILON);
            }
        }
    }

    #[test]
    fn rounding_up_keeps_the_window_that_sticks_out() {
        let sizes = PoolingSizes {
            planes: 1,
            height: 32,
            width: 5,
            window_height: 3,
            window_width: 3,
            stride: 2,
            padding: 0,
            rounding: Rounding::Up,
        };
        let shape = PoolingShape::new(sizes).unwrap();
        assert_eq!((shape.output_height(), shape.output_width()), (16, 2));
        let shape = PoolingShape::new(PoolingSizes { rounding: Rounding::Down, ..sizes }).unwrap();
        assert_eq!((shape.output_height(), shape.output_width()), (15, 2));
    }

    #[test]
    fn a_window_with_a_nan_has_a_nan() {
        let shape = PoolingShape::new(PoolingSizes {
            planes: 1,
            height: 1,
            width: 4,
            window_height: 1,
            window_width: 2,
            stride: 1,
            padding: 0,
            rounding: Rounding::Down,
        })
        .unwrap();
        let (mut output, mut winners) = ([0.0; 3], [0; 3]);
        let input = [f32::NAN, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
        max_pooling(&shape, &input, &mut output, &mut winners).unwrap();
        assert!(output[0].is_nan());
        assert_eq!(output[1..], [1.0, f32::NEG_INFINITY]);
        assert_eq!(winners, [0, 1, 2]);
    }

    #[test]
    fn padding_as_large_as_the_window_is_refused() {
        let refusal = PoolingShape::new(PoolingSizes {
            planes: 2,
            height: 6,
            width: 6,
            window_height: 2,
            window_width: 3,
            stride: 1,
            padding: 2,
            rounding: Rounding::Down,
        })
        .unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "2 planes of 6x6 pooled in windows of 2x3, stride 1, padding 2, rounded down: \
             padding 2 must be smaller than the window's 2"
        );
    }
}
