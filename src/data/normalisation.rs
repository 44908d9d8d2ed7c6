//! From bytes to the numbers that a network takes.

use std::fmt;

use super::{DataError, Examples, ImageShape};

/// Scale of each channel: a byte x becomes (x/255 − mean) / deviation.
///
/// Mean and deviation are in units of full brightness, so both lie in `[0, 1]`
/// when they are computed from images. Computation is in `f32`, in the order
/// in which the equation is written.
#[derive(Clone, PartialEq)]
pub struct Normalisation {
    mean: Vec<f32>,
    deviation: Vec<f32>,
    /// The 256 possible results of each channel: a look-up costs less than the
    /// two divisions and gives the same bits.
    table: Vec<[f32; 256]>,
}

impl Normalisation {
    /// One pair (mean, deviation) per channel.
    ///
    /// # Errors
    /// [`DataError::BadScale`] when a number is not finite or a deviation is
    /// not positive.
    pub fn new(channels: &[(f32, f32)]) -> Result<Normalisation, DataError> {
        for (channel, &(mean, deviation)) in channels.iter().enumerate() {
            let usable = mean.is_finite() && deviation.is_finite() && deviation > 0.0;
            if !usable {
                return Err(DataError::BadScale { channel, mean, deviation });
            }
        }
        Ok(Normalisation {
            mean: channels.iter().map(|&(mean, _)| mean).collect(),
            deviation: channels.iter().map(|&(_, deviation)| deviation).collect(),
            table: channels
                .iter()
                .map(|&(mean, deviation)| results_of_all_bytes(mean, deviation))
                .collect(),
        })
    }

    /// The mean and the (population) standard deviation of each channel of
    /// `training`, over all pixels of all images.
    ///
    /// mean = Σx / 255n and deviation = √(nΣx² − (Σx)²) / 255n over n pixels,
    /// summed exactly in integers, so that no order of summation matters.
    ///
    /// # Errors
    /// [`DataError::ConstantChannel`] when a channel never varies; `data_set`
    /// names the data in that message.
    pub fn of_training_set(
        training: &Examples,
        data_set: &str,
    ) -> Result<Normalisation, DataError> {
        let shape = training.shape();
        let scales = (0..shape.channels)
            .map(|channel| channel_scale(training, channel, data_set))
            .collect::<Result<Vec<_>, _>>()?;
        Normalisation::new(&scales)
    }

    /// The mean of each channel, in units of full brightness.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// The deviation of each channel, in units of full brightness.
    pub fn deviation(&self) -> &[f32] {
        &self.deviation
    }

    /// Normalises one image `[channel, row, column]`.
    pub(super) fn apply(&self, shape: ImageShape, image: &[u8], out: &mut [f32]) {
        assert_eq!(shape.channels, self.table.len(), "the normalisation has one scale per channel");
        let values = shape.values_per_channel();
        let channels = image.chunks_exact(values).zip(out.chunks_exact_mut(values));
        for (table, (bytes, written)) in self.table.iter().zip(channels) {
            for (value, &byte) in written.iter_mut().zip(bytes) {
                *value = table[usize::from(byte)];
            }
        }
    }
}

/// Without the table, which follows from the two numbers of each channel.
impl fmt::Debug for Normalisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Normalisation")
            .field("mean", &self.mean)
            .field("deviation", &self.deviation)
            .finish_non_exhaustive()
    }
}

fn results_of_all_bytes(mean: f32, deviation: f32) -> [f32; 256] {
    let mut results = [0.0; 256];
    for (byte, result) in (0..=u8::MAX).zip(&mut results) {
        *result = (f32::from(byte) / 255.0 - mean) / deviation;
    }
    results
}

fn channel_scale(
    training: &Examples,
    channel: usize,
    data_set: &str,
) -> Result<(f32, f32), DataError> {
    let values = training.shape().values_per_channel();
    let channel_bytes = (0..training.len())
        .flat_map(|example_idx| &training.image(example_idx)[channel * values..][..values]);
    let (mut count, mut sum, mut sum_of_squares) = (0_u64, 0_u64, 0_u64);
    for &byte in channel_bytes {
        let byte = u64::from(byte);
        count += 1;
        sum += byte;
        sum_of_squares += byte * byte;
    }

    let squared_deviation =
        u128::from(count) * u128::from(sum_of_squares) - u128::from(sum) * u128::from(sum);
    if squared_deviation == 0 {
        return Err(DataError::ConstantChannel {
            data_set: data_set.to_owned(),
            channel,
            value: training.image(0)[channel * values],
        });
    }
    let full_brightness = 255.0 * count as f64;
    let mean = sum as f64 / full_brightness;
    let deviation = (squared_deviation as f64).sqrt() / full_brightness;
    Ok((mean as f32, deviation as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples(channels: usize, pixels: Vec<u8>) -> Examples {
        let shape = ImageShape { channels, height: 1, width: 2 };
        let labels = vec![0; pixels.len() / shape.values()];
        Examples::new(shape, pixels, labels).unwrap()
    }

    #[test]
    fn mean_and_deviation_are_those_of_each_channel() {
        // Channel 0: 0, 255, 0, 255. Channel 1: 51, 51, 102, 102.
        let training = examples(2, vec![0, 255, 51, 51, 0, 255, 102, 102]);

        let normalisation = Normalisation::of_training_set(&training, "two channels").unwrap();

        // By hand: (0 + 1)/2 and ±1/2; (0.2 + 0.4)/2 and ±0.1. One rounding to
        // f32 of numbers below 1 is at most 2⁻²⁵.
        let tolerance = 2.0_f32.powi(-25);
        assert!((normalisation.mean()[0] - 0.5).abs() <= tolerance);
        assert!((normalisation.deviation()[0] - 0.5).abs() <= tolerance);
        assert!((normalisation.mean()[1] - 0.3).abs() <= tolerance);
        assert!((normalisation.deviation()[1] - 0.1).abs() <= tolerance);
    }

    #[test]
    fn a_channel_that_never_varies_is_refused_with_its_number_and_value() {
        let training = examples(2, vec![0, 255, 51, 51, 0, 255, 51, 51]);

        let error = Normalisation::of_training_set(&training, "two channels").unwrap_err();

        assert_eq!(
            error.to_string(),
            "every training image of `two channels` has the value 51 in all of channel 1; \
             a channel without variation cannot be normalised, leave it out"
        );
    }

    #[test]
    fn a_training_set_normalised_by_itself_has_mean_zero_and_deviation_one() {
        let pixels: Vec<u8> = (0..2000_u32).map(|x| (x * x % 251) as u8).collect();
        let training = examples(1, pixels);
        let normalisation = Normalisation::of_training_set(&training, "squares").unwrap();
        let indices: Vec<usize> = (0..training.len()).collect();
        let mut values = vec![0.0; 2000];

        training.write_batch(&normalisation, &indices, &mut values);

        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / 2000.0;
        let square = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 2000.0;
        // Each value is off by a few roundings of f32, 6e-8 of numbers near 1.
        assert!(mean.abs() < 1e-6, "{mean}");
        assert!((square - 1.0).abs() < 1e-6, "{square}");
    }

    #[test]
    fn scales_that_would_give_infinite_inputs_are_refused() {
        for (mean, deviation) in [(0.5, 0.0), (0.5, -1.0), (0.5, f32::NAN), (f32::INFINITY, 1.0)] {
            let error = Normalisation::new(&[(0.5, 0.5), (mean, deviation)]).unwrap_err();

            assert!(
                error.to_string().starts_with("channel 1 cannot"),
                "{mean} {deviation}: {error}"
            );
        }
    }
}
