//! Local response normalisation across channels, and its gradient.

use std::fmt;
use std::ops::Range;

use super::KernelError;
use super::parallel::Units;
use super::scratch::with_buffers;

/// Pixels that are normalised in one go; the squares of all channels stay in the caches.
const BLOCK: usize = 128;

/// The numbers that describe a local response normalisation.
///
/// Images are `images × channels × pixels`, row-major.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalisation {
    /// Images in the mini-batch.
    pub images: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Pixels of a channel.
    pub pixels: usize,
    /// Channels that a value is compared with, itself in the middle; odd.
    pub size: usize,
    /// Weight of the mean square.
    pub alpha: f32,
    /// Exponent.
    pub beta: f32,
    /// What is added to the weighted mean square.
    pub k: f32,
}

impl fmt::Display for Normalisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}x{}x{} normalised over {} channels",
            self.images, self.channels, self.pixels, self.size
        )
    }
}

impl Normalisation {
    /// Elements of all images, if the numbers make sense.
    fn len(&self) -> Result<usize, KernelError> {
        if self.size.is_multiple_of(2) {
            return Err(KernelError::EvenSize { shape: self.to_string(), size: self.size });
        }
        let elements = self.images.checked_mul(self.channels);
        let elements = elements.and_then(|planes| planes.checked_mul(self.pixels));
        elements.ok_or_else(|| KernelError::TooLarge { shape: self.to_string() })
    }

    fn check_len(&self, slice: &'static str, actual: usize) -> Result<(), KernelError> {
        let expected = self.len()?;
        if actual == expected {
            return Ok(());
        }
        Err(KernelError::WrongLength { shape: self.to_string(), slice, actual, expected })
    }

    /// Channels that count for channel `channel`; the relation is symmetric.
    fn neighbours(&self, channel: usize) -> Range<usize> {
        let reach = self.size / 2;
        channel.saturating_sub(reach)..(channel + reach + 1).min(self.channels)
    }

    /// `s^(−β)` of every element.
    fn powers(&self, scales: &[f32], powers: &mut [f32]) {
        if self.beta.to_bits() == 0.75_f32.to_bits() {
            // The usual exponent, in roots instead of logarithms.
            for (power, scale) in powers.iter_mut().zip(scales) {
                let root = scale.sqrt().recip();
                *power = root * root.sqrt();
            }
        } else {
            for (power, scale) in powers.iter_mut().zip(scales) {
                *power = scale.powf(-self.beta);
            }
        }
    }

    /// Work on blocks of pixels of every image: `work(image, pixels, output)`.
    fn blocks(&self, output: &mut [f32], work: impl Fn(usize, Range<usize>, &mut [f32]) + Sync) {
        let image_len = self.channels * self.pixels;
        let units = Units {
            count: self.images,
            flops_per_unit: (image_len * (self.size + 10)) as u64,
            bounds: |image| image * image_len,
        };
        units.run(output, |image, output| {
            for start in (0..self.pixels).step_by(BLOCK) {
                work(image, start..self.pixels.min(start + BLOCK), output);
            }
        });
    }

    /// `s = k + α/n · Σ x²` of every channel for a block of pixels.
    fn scales(&self, image: &[f32], block: &Range<usize>, squares: &mut [f32], scales: &mut [f32]) {
        let count = block.len();
        let rows = squares.chunks_exact_mut(count).zip(image.chunks_exact(self.pixels));
        for (squares, channel) in rows {
            for (square, value) in squares.iter_mut().zip(&channel[block.clone()]) {
                *square = value * value;
            }
        }
        let weight = self.alpha / self.size_as_float();
        for (channel, scales) in scales.chunks_exact_mut(count).enumerate() {
            self.sum_of_neighbours(channel, squares, scales);
            for scale in scales {
                *scale = self.k + weight * *scale;
            }
        }
    }

    /// Sums rows as long as `sums` over the neighbours of a channel.
    fn sum_of_neighbours(&self, channel: usize, rows: &[f32], sums: &mut [f32]) {
        sums.fill(0.0);
        for neighbour in self.neighbours(channel) {
            let row = &rows[neighbour * sums.len()..][..sums.len()];
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }

    fn size_as_float(&self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "sizes are small")]
        let size = self.size as f32;
        size
    }
}

/// Divides every value by a power of the mean square of its neighbours in channel direction.
///
/// `output[c] = input[c] · s[c]^(−β)` with `s[c] = k + α/n · Σ input[c′]²` over the `n` channels
/// around `c`; channels that do not exist count as 0. All pixels are independent.
///
/// # Errors
/// An even size, or a slice that does not fit.
pub fn normalise(
    shape: &Normalisation,
    input: &[f32],
    output: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_len("input", input.len())?;
    shape.check_len("output", output.len())?;
    let (channels, pixels) = (shape.channels, shape.pixels);
    let image_len = channels * pixels;
    shape.blocks(output, |image, block, output| {
        let image = &input[image * image_len..][..image_len];
        let count = block.len();
        with_buffers([channels * count; 2], |[squares, scales]| {
            shape.scales(image, &block, squares, scales);
            let powers = squares;
            shape.powers(scales, powers);
            for channel in 0..channels {
                let place = channel * pixels + block.start;
                let values = image[place..].iter().zip(&powers[channel * count..][..count]);
                for (output, (value, power)) in output[place..].iter_mut().zip(values) {
                    *output = value * power;
                }
            }
        });
    });
    Ok(())
}

/// Gradient of [`normalise`] with respect to its input.
///
/// `input_gradient[c] = g[c] · s[c]^(−β) − 2αβ/n · input[c] · Σ g[c′] · input[c′] · s[c′]^(−β−1)` with
/// the output gradient `g`. It overwrites `input_gradient`.
///
/// # Errors
/// See [`normalise`].
pub fn normalise_backward(
    shape: &Normalisation,
    input: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_len("input", input.len())?;
    shape.check_len("output gradient", output_gradient.len())?;
    shape.check_len("input gradient", input_gradient.len())?;
    let image_len = shape.channels * shape.pixels;
    shape.blocks(input_gradient, |image, block, target| {
        let start = image * image_len;
        let (input, output) = (&input[start..], &output_gradient[start..]);
        backward_block(shape, (&input[..image_len], &output[..image_len]), &block, target);
    });
    Ok(())
}

fn backward_block(
    shape: &Normalisation,
    (input, output_gradient): (&[f32], &[f32]),
    block: &Range<usize>,
    target: &mut [f32],
) {
    let count = block.len();
    let factor = -2.0 * shape.alpha * shape.beta / shape.size_as_float();
    let place = |channel: usize| channel * shape.pixels + block.start;
    with_buffers([shape.channels * count; 3], |[ratios, scales, powers]| {
        let sums = &mut [0.0; BLOCK][..count];
        shape.scales(input, block, ratios, scales);
        shape.powers(scales, powers);
        let rows = ratios.chunks_exact_mut(count).enumerate();
        for (channel, ratios) in rows {
            let row = channel * count;
            let operands = input[place(channel)..].iter().zip(&output_gradient[place(channel)..]);
            let scales = scales[row..].iter().zip(&powers[row..]);
            for (ratio, ((value, gradient), (scale, power))) in
                ratios.iter_mut().zip(operands.zip(scales))
            {
                *ratio = gradient * value * power / scale;
            }
        }
        for channel in 0..shape.channels {
            shape.sum_of_neighbours(channel, ratios, sums);
            let operands = input[place(channel)..].iter().zip(&output_gradient[place(channel)..]);
            let factors = powers[channel * count..].iter().zip(&*sums);
            let targets = target[place(channel)..][..count].iter_mut();
            for (target, ((value, gradient), (power, sum))) in targets.zip(operands.zip(factors)) {
                *target = gradient * power + factor * value * sum;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(length: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1u64 << 22) as f32 - 2.0
            })
            .collect()
    }

    fn any_shape() -> impl Strategy<Value = Normalisation> {
        let extents = (1usize..4, 1usize..12, 1usize..300, 0usize..4);
        let numbers = (0.0f32..2.0, prop_oneof![Just(0.75f32), 0.1f32..1.5], 0.5f32..3.0);
        (extents, numbers).prop_map(|((images, channels, pixels, reach), (alpha, beta, k))| {
            Normalisation { images, channels, pixels, size: 2 * reach + 1, alpha, beta, k }
        })
    }

    /// The definition, in double precision.
    fn defined(shape: &Normalisation, input: &[f64]) -> Vec<f64> {
        let at = |image: usize, channel: usize, pixel: usize| {
            (image * shape.channels + channel) * shape.pixels + pixel
        };
        let mut output = vec![0.0; input.len()];
        for image in 0..shape.images {
            for channel in 0..shape.channels {
                for pixel in 0..shape.pixels {
                    let squares = (0..shape.channels)
                        .filter(|other| other.abs_diff(channel) <= shape.size / 2)
                        .map(|other| input[at(image, other, pixel)].powi(2));
                    let mean = squares.sum::<f64>() / shape.size as f64;
                    let scale = f64::from(shape.k) + f64::from(shape.alpha) * mean;
                    let place = at(image, channel, pixel);
                    output[place] = input[place] * scale.powf(-f64::from(shape.beta));
                }
            }
        }
        output
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn normalising_follows_its_definition(shape in any_shape(), seed in any::<u64>()) {
            let input = values(shape.len().unwrap(), seed);
            let mut output = vec![f32::NAN; input.len()];
            normalise(&shape, &input, &mut output).unwrap();
            let exact: Vec<f64> = input.iter().copied().map(f64::from).collect();
            for (actual, expected) in output.iter().zip(defined(&shape, &exact)) {
                // Some ten roundings in a sum of at most 7 squares and in a power near 1.
                let error = (f64::from(*actual) - expected).abs();
                prop_assert!(error <= 20.0 * f64::from(f32::EPSILON) * expected.abs());
            }
        }

        #[test]
        fn the_gradient_is_the_slope(shape in any_shape(), seed in any::<u64>()) {
            let shape = Normalisation { images: 1, pixels: shape.pixels.min(3), ..shape };
            let input = values(shape.len().unwrap(), seed);
            let output_gradient = values(input.len(), seed + 1);
            let mut gradient = vec![f32::NAN; input.len()];
            normalise_backward(&shape, &input, &output_gradient, &mut gradient).unwrap();
            let exact: Vec<f64> = input.iter().copied().map(f64::from).collect();
            let loss = |input: &[f64]| -> f64 {
                let output = defined(&shape, input);
                output.iter().zip(&output_gradient).map(|(y, g)| y * f64::from(*g)).sum()
            };
            for (place, actual) in gradient.iter().enumerate() {
                let step = 1e-4;
                let moved = |by: f64| {
                    let mut input = exact.clone();
                    input[place] += by;
                    loss(&input)
                };
                let slope = (moved(step) - moved(-step)) / (2.0 * step);
                // Central differences err by step² times a third derivative of some tens; single
                // precision by some ten roundings of sums of at most 7 terms below 20.
                prop_assert!((f64::from(*actual) - slope).abs() <= 1e-4, "{actual} for {slope}");
            }
        }
    }

    #[test]
    fn an_even_size_is_refused() {
        let shape = Normalisation {
            images: 1,
            channels: 4,
            pixels: 2,
            size: 4,
            alpha: 1.0,
            beta: 0.75,
            k: 1.0,
        };
        let refusal = normalise(&shape, &[0.0; 8], &mut [0.0; 8]).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "1x4x2 normalised over 4 channels: size 4 has no middle, choose an odd one"
        );
    }
}
