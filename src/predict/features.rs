//! Real images reduced to the few numbers that a proxy network sees.

use omnivore_sim::objective::{ProxyData, ProxyError, ProxyShape};
use omnivore_sim::rng::{Seed, Stream, stream};
use rand::RngExt;

use crate::data::Dataset;

/// Side of the pooled image.
const POOLED_SIDE: usize = 7;

/// Features that each colour channel contributes.
pub const FEATURES_PER_CHANNEL: usize = POOLED_SIDE * POOLED_SIDE;

/// Hidden units of the proxy network. Source: SE.md, section 4.1; 12 are too few.
const HIDDEN_UNITS: usize = 24;

/// Training images that the proxy learns from.
const N_EXAMPLES: usize = 8192;

/// The proxy learns from the same images under every seed.
const CHOICE_SEED: Seed = Seed(0);

/// Up to 8192 training images, normalised and mean-pooled to 7 × 7 per channel.
///
/// Window i of a side of n pixels covers ⌊i·n/7⌋ up to ⌈(i+1)·n/7⌉, so 28 pixels make windows of 4
/// and any other size is covered without gaps.
///
/// # Errors
/// [`ProxyError`] when the data has no training example.
pub fn pooled_features(data: &Dataset) -> Result<ProxyData, ProxyError> {
    let chosen = choose(data.training.len());
    let channels = data.shape.channels;
    let shape = ProxyShape {
        features: FEATURES_PER_CHANNEL * channels,
        hidden: HIDDEN_UNITS,
        classes: data.classes,
    };
    let mut image = vec![0.0; data.shape.values()];
    let mut features = Vec::with_capacity(chosen.len() * shape.features);
    for index in &chosen {
        data.training.write_batch(&data.normalisation, &[*index], &mut image);
        for channel in image.chunks_exact(data.shape.values_per_channel()) {
            pool(channel, data.shape.height, data.shape.width, &mut features);
        }
    }
    let labels = chosen.iter().map(|index| data.training.label(*index)).collect();
    ProxyData::new(features, labels, shape)
}

/// A partial Fisher–Yates shuffle: the first `N_EXAMPLES` of a random order.
fn choose(n_available: usize) -> Vec<usize> {
    let mut generator = stream(CHOICE_SEED, Stream::ProxyExamples);
    let mut indices: Vec<usize> = (0..n_available).collect();
    let n_chosen = N_EXAMPLES.min(n_available);
    for place in 0..n_chosen {
        let other = generator.random_range(place as u64..n_available as u64);
        indices.swap(place, usize::try_from(other).expect("an index of a list in memory"));
    }
    indices.truncate(n_chosen);
    indices
}

fn pool(channel: &[f32], height: usize, width: usize, features: &mut Vec<f32>) {
    let window = |i: usize, n: usize| i * n / POOLED_SIDE..((i + 1) * n).div_ceil(POOLED_SIDE);
    for row in 0..POOLED_SIDE {
        for column in 0..POOLED_SIDE {
            let (mut sum, mut count) = (0.0_f32, 0.0_f32);
            for y in window(row, height) {
                for x in window(column, width) {
                    sum += channel[y * width + x];
                    count += 1.0;
                }
            }
            features.push(sum / count);
        }
    }
}
