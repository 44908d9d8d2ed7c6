//! Max and average pooling and their gradients.

use std::fmt;
use std::ops::Range;

use rayon::prelude::*;

use super::KernelError;
use super::parallel::{Units, threads};

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

    /// Source rows of the windows in output row `y`.
    fn rows(&self, y: usize) -> Range<usize> {
        let start = y * self.sizes.stride;
        let end = (start + self.sizes.window_height).saturating_sub(self.sizes.padding);
        start.saturating_sub(self.sizes.padding)..end.min(self.sizes.height)
    }

    /// Which windows of an output row have their column `x` in the plane, and the plane's column
    /// under the first of them.
    fn column(&self, x: usize) -> (Range<usize>, usize) {
        let sizes = &self.sizes;
        let start = sizes.padding.saturating_sub(x).div_ceil(sizes.stride);
        let end = (sizes.width + sizes.padding).saturating_sub(x).div_ceil(sizes.stride);
        let end = end.min(self.output_width);
        let start = start.min(end);
        let first = (start * sizes.stride + x).saturating_sub(sizes.padding);
        (start..end, first.min(sizes.width))
    }

    /// One over the number of pixels of each window of output row `y`.
    ///
    /// A window is cut at the end of the padding, not of the plane: zeros of the padding count.
    fn shares(&self, y: usize) -> impl Iterator<Item = f32> {
        let sizes = self.sizes;
        let extent = move |at: usize, window: usize, length: usize| {
            let start = at * sizes.stride;
            (start + window).min(length + 2 * sizes.padding) - start
        };
        let rows = extent(y, sizes.window_height, sizes.height);
        (0..self.output_width).map(move |x| {
            let pixels = rows * extent(x, sizes.window_width, sizes.width);
            #[expect(clippy::cast_precision_loss, reason = "windows have few pixels")]
            let pixels = pixels as f32;
            pixels.recip()
        })
    }
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
    let plane = |((input, output), winners): ((&[f32], &mut [f32]), &mut [u32])| {
        max_of_plane(shape, input, output, winners);
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

fn max_of_plane(shape: &PoolingShape, input: &[f32], output: &mut [f32], winners: &mut [u32]) {
    let sizes = &shape.sizes;
    let output_rows = output.chunks_exact_mut(shape.output_width);
    let rows = output_rows.zip(winners.chunks_exact_mut(shape.output_width));
    for (y, (largest, winners)) in rows.enumerate() {
        largest.fill(f32::NEG_INFINITY);
        let source_rows = shape.rows(y);
        for (x, winner) in winners.iter_mut().enumerate() {
            let column = (x * sizes.stride).saturating_sub(sizes.padding);
            *winner = place(source_rows.start * sizes.width + column);
        }
        for row in source_rows {
            for x in 0..sizes.window_width {
                let (windows, first) = shape.column(x);
                let first = row * sizes.width + first;
                let source = &input[first..(row + 1) * sizes.width];
                let largest = &mut largest[windows.clone()];
                let winners = &mut winners[windows];
                match sizes.stride {
                    1 => take_larger::<1>(largest, winners, source, place(first)),
                    2 => take_larger::<2>(largest, winners, source, place(first)),
                    3 => take_larger::<3>(largest, winners, source, place(first)),
                    stride => take_larger_any(largest, winners, source, place(first), stride),
                }
            }
        }
    }
}

fn place(index: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the shape's constructor checked it")]
    let place = index as u32;
    place
}

/// Replaces what is smaller than every `STRIDE`-th pixel of `source`.
fn take_larger<const STRIDE: usize>(
    largest: &mut [f32],
    winners: &mut [u32],
    source: &[f32],
    first: u32,
) {
    let (blocks, rest) = source.as_chunks::<STRIDE>();
    let whole = blocks.len().min(largest.len());
    let (largest, last_largest) = largest.split_at_mut(whole);
    let (winners, last_winner) = winners.split_at_mut(whole);
    let mut at = first;
    for ((largest, winner), block) in largest.iter_mut().zip(winners).zip(blocks) {
        take_if_larger(largest, winner, block[0], at);
        at += place(STRIDE);
    }
    // The stride may lead past the end of the row behind the last pixel.
    if let ([largest], [winner], [pixel, ..]) = (last_largest, last_winner, rest) {
        take_if_larger(largest, winner, *pixel, at);
    }
}

fn take_larger_any(
    largest: &mut [f32],
    winners: &mut [u32],
    source: &[f32],
    first: u32,
    stride: usize,
) {
    let pixels = source.iter().step_by(stride);
    let places = (first..).step_by(stride);
    for (((largest, winner), &pixel), at) in largest.iter_mut().zip(winners).zip(pixels).zip(places)
    {
        take_if_larger(largest, winner, pixel, at);
    }
}

fn take_if_larger(largest: &mut f32, winner: &mut u32, pixel: f32, at: u32) {
    // Written without a branch, so that the compiler can do several windows at once.
    let taken = (pixel > *largest) | pixel.is_nan();
    *largest = if taken { pixel } else { *largest };
    *winner = if taken { at } else { *winner };
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
    let units = Units {
        count: shape.sizes.planes,
        flops_per_unit: shape.flops_per_plane(),
        bounds: |plane| plane * output_pixels,
    };
    units.run(output, |plane, output| {
        let input = &input[plane * pixels..][..pixels];
        for (y, means) in output.chunks_exact_mut(shape.output_width).enumerate() {
            means.fill(0.0);
            for row in shape.rows(y) {
                let source = &input[row * shape.sizes.width..][..shape.sizes.width];
                add_windows(shape, source, means);
            }
            for (mean, share) in means.iter_mut().zip(shape.shares(y)) {
                *mean *= share;
            }
        }
    });
    Ok(())
}

fn add_windows(shape: &PoolingShape, source: &[f32], sums: &mut [f32]) {
    for x in 0..shape.sizes.window_width {
        let (windows, first) = shape.column(x);
        let pixels = source[first..].iter().step_by(shape.sizes.stride);
        for (sum, pixel) in sums[windows].iter_mut().zip(pixels) {
            *sum += pixel;
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
    plane_units(shape).run(input_gradient, |plane, target| {
        target.fill(0.0);
        let gradients = &output_gradient[plane * output_pixels..][..output_pixels];
        for (y, gradients) in gradients.chunks_exact(shape.output_width).enumerate() {
            for row in shape.rows(y) {
                let target = &mut target[row * width..][..width];
                share_out(shape, y, gradients, target);
            }
        }
    });
    Ok(())
}

fn share_out(shape: &PoolingShape, y: usize, gradients: &[f32], target: &mut [f32]) {
    for x in 0..shape.sizes.window_width {
        let (windows, first) = shape.column(x);
        let shares = shape.shares(y).skip(windows.start);
        let pixels = target[first..].iter_mut().step_by(shape.sizes.stride);
        for ((pixel, gradient), share) in pixels.zip(&gradients[windows]).zip(shares) {
            *pixel += gradient * share;
        }
    }
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
