//! Sums over the mini-batch that do not depend on the number of threads.

use std::ops::Range;

use super::microkernel::Engine;
use super::parallel::{Units, part, threads};
use super::scratch::with_buffers;
use super::shape::ConvolutionShape;

/// Units into which a weight gradient is divided if there is work enough.
const GRADIENT_UNITS: usize = 16;

/// Least work of one such unit.
const GRADIENT_UNIT_FLOPS: u64 = 8_000_000;

/// Partial sums, in floats, that may wait to be added where several threads make them: with more of
/// them, threads wait for each other less often.
const PARTIAL_SUMS: usize = 1024 * 1024;

/// Floats that a thread adds in one go.
const ADDED_AT_ONCE: usize = 16 * 1024;

/// Division of a sum over the images into partial sums, and of each into blocks.
///
/// The numbers depend on the shape only; partial sums are added in their order.
pub(super) struct Chunks {
    /// Blocks of the gradient; equally large, or nearly so.
    blocks: usize,
    /// Partial sums.
    chunks: usize,
    items: usize,
    flops_per_unit: u64,
}

impl Chunks {
    /// Chunks of `items`, which are images or groups of images lowered together.
    pub fn new(shape: &ConvolutionShape, blocks: usize, items: usize) -> Self {
        let affordable = usize::try_from(shape.flops() / GRADIENT_UNIT_FLOPS).unwrap_or(usize::MAX);
        let wanted = GRADIENT_UNITS.min(affordable).div_ceil(blocks);
        let chunks = wanted.clamp(1, items);
        Self { blocks, chunks, items, flops_per_unit: shape.flops() / (blocks * chunks) as u64 }
    }

    /// The same, but with so many items in each chunk, if there are as many.
    pub fn of_at_least(self, items: usize) -> Self {
        let chunks = self.chunks.min(self.items / items).max(1);
        let flops_per_unit = self.flops_per_unit * self.chunks as u64 / chunks as u64;
        Self { chunks, flops_per_unit, ..self }
    }

    /// Pieces of work that may run at the same time.
    pub fn units(&self) -> usize {
        self.blocks * self.chunks
    }

    /// Sums over all items, with blocks of equal length.
    pub fn sum(&self, total: &mut [f32], work: impl Fn(usize, Range<usize>, &mut [f32]) + Sync) {
        let block_len = total.len() / self.blocks;
        self.sum_blocks(total, |block| block * block_len, work);
    }

    /// Sums over all items; `work` overwrites one block's sum over a range of items.
    pub fn sum_blocks(
        &self,
        total: &mut [f32],
        bounds: impl Fn(usize) -> usize + Sync,
        work: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
    ) {
        let length = total.len();
        let wave = |first_chunk: usize, chunks: usize, sums: &mut [f32]| {
            let units = Units {
                count: chunks * self.blocks,
                flops_per_unit: self.flops_per_unit,
                bounds: |unit| unit / self.blocks * length + bounds(unit % self.blocks),
            };
            units.run(sums, |unit, sums| {
                let items = part(self.items, self.chunks, first_chunk + unit / self.blocks);
                work(unit % self.blocks, items, sums);
            });
        };
        if threads() == 1 || self.chunks == 1 {
            let further = 1..self.chunks;
            return with_buffers([length.min(further.len() * length)], |[sums]| {
                wave(0, 1, total);
                for chunk in further {
                    wave(chunk, 1, sums);
                    add_in_order(total, sums, Start::Total);
                }
            });
        }
        let waves = self.chunks.div_ceil(threads().max(PARTIAL_SUMS / length));
        let at_once = self.chunks.div_ceil(waves);
        with_buffers([at_once * length], |[partial]| {
            let mut start = Start::First;
            for done in (0..self.chunks).step_by(at_once) {
                let chunks = at_once.min(self.chunks - done);
                let sums = &mut partial[..chunks * length];
                wave(done, chunks, sums);
                add_in_order(total, sums, start);
                start = Start::Total;
            }
        });
    }
}

/// What partial sums are added to.
#[derive(Clone, Copy)]
enum Start {
    /// The first of them; what the total holds is overwritten.
    First,
    /// The total.
    Total,
}

/// Adds partial sums, which lie one behind the other.
fn add_in_order(total: &mut [f32], partial: &[f32], start: Start) {
    let length = total.len();
    let units = Units {
        count: length.div_ceil(ADDED_AT_ONCE),
        flops_per_unit: (partial.len() / length * ADDED_AT_ONCE) as u64,
        bounds: |unit| length.min(unit * ADDED_AT_ONCE),
    };
    units.run(total, |unit, total| {
        let place = unit * ADDED_AT_ONCE..unit * ADDED_AT_ONCE + total.len();
        let mut partial = partial.chunks_exact(length).map(|sums| &sums[place.clone()]);
        match start {
            Start::First => {
                partial.next().into_iter().for_each(|first| total.copy_from_slice(first))
            }
            Start::Total => {}
        }
        for sums in partial {
            for (total, sum) in total.iter_mut().zip(sums) {
                *total += sum;
            }
        }
    });
}

/// A weight gradient in blocks of channels, each summed as filter, tap, channel.
pub(super) struct ChannelBlocks {
    groups: usize,
    /// Channels of a group.
    channels: usize,
    /// Channels come in vectors of so many, which no block divides.
    lanes: usize,
    /// Blocks per group.
    pub count: usize,
    least_images: usize,
}

/// Some channels of a group.
pub(super) struct ChannelBlock {
    pub group: usize,
    /// Which block of the group.
    pub index: usize,
    pub channels: Range<usize>,
}

impl ChannelBlocks {
    /// So many blocks per group, or fewer where there are not enough channels.
    pub fn new(engine: Engine, shape: &ConvolutionShape, wanted: usize) -> Self {
        let (channels, lanes) = (shape.group_channels(), engine.lanes());
        let count = wanted.clamp(1, channels.div_ceil(lanes));
        Self { groups: shape.sizes().groups, channels, lanes, count, least_images: 1 }
    }

    /// Channels of a block, counted within the group.
    pub fn channels(&self, block: usize) -> Range<usize> {
        let vectors = part(self.channels.div_ceil(self.lanes), self.count, block);
        vectors.start * self.lanes..self.channels.min(vectors.end * self.lanes)
    }

    fn block(&self, unit: usize) -> ChannelBlock {
        let (group, index) = (unit / self.count, unit % self.count);
        ChannelBlock { group, index, channels: self.channels(index) }
    }

    /// The same in blocks of as many pairs of vectors, or fewer, if there is more than one.
    pub fn of_whole_panels(self) -> Self {
        let vectors = self.channels.div_ceil(self.lanes);
        let panels = (vectors / self.count / 2).max(1);
        let count = if self.count > 1 { vectors.div_ceil(2 * panels) } else { 1 };
        Self { count, ..self }
    }

    /// The same, summed over at least so many images in one go, if there are as many.
    pub fn over_at_least(self, images: usize) -> Self {
        Self { least_images: images, ..self }
    }

    /// Sums over the images; `work` overwrites one block's sum over a range of them.
    pub fn sum(
        &self,
        shape: &ConvolutionShape,
        gradient: &mut [f32],
        work: impl Fn(ChannelBlock, Range<usize>, &mut [f32]) + Sync,
    ) {
        let group_len = shape.group_filters() * shape.depth();
        let channel_len = shape.group_filters() * shape.kernel_pixels();
        let chunks = Chunks::new(shape, self.groups * self.count, shape.sizes().batch);
        let chunks = chunks.of_at_least(self.least_images);
        let bounds = |unit: usize| {
            unit / self.count * group_len + self.channels(unit % self.count).start * channel_len
        };
        with_buffers([gradient.len()], |[total]| {
            chunks.sum_blocks(total, bounds, |unit, images, sums| {
                work(self.block(unit), images, sums);
            });
            let (filters, depth) = (shape.group_filters(), shape.depth());
            let units = Units {
                count: self.groups * filters,
                flops_per_unit: depth as u64,
                bounds: |filter| filter * depth,
            };
            units.run(gradient, |unit, gradient| {
                let (group, filter) = (unit / filters, unit % filters);
                for block in group * self.count..(group + 1) * self.count {
                    let channels = self.block(block).channels;
                    let len = channels.len() * shape.kernel_pixels();
                    let sums = &total[bounds(block) + filter * len..][..len];
                    let place = channels.start * shape.kernel_pixels();
                    reorder(channels.len(), sums, &mut gradient[place..][..len]);
                }
            });
        });
    }
}

/// From tap, channel to channel, tap.
fn reorder(channels: usize, sums: &[f32], gradient: &mut [f32]) {
    for (channel, target) in gradient.chunks_exact_mut(sums.len() / channels).enumerate() {
        let tap_sums = sums[channel..].iter().step_by(channels);
        for (target, &sum) in target.iter_mut().zip(tap_sums) {
            *target = sum;
        }
    }
}

/// Sums the planes of each filter over the mini-batch.
pub(super) fn sum_planes(
    engine: Option<Engine>,
    shape: &ConvolutionShape,
    output_gradient: &[f32],
    sums: &mut [f32],
) {
    let (filters, pixels) = (shape.sizes().filters, shape.output_pixels());
    let units = Units {
        count: filters,
        flops_per_unit: (shape.output_len() / filters) as u64,
        bounds: |filter| filter,
    };
    units.run(sums, |filter, sum| {
        let planes = output_gradient.chunks_exact(pixels).skip(filter).step_by(filters);
        let plane_sum = |plane: &[f32]| match engine {
            Some(engine) => engine.sum(plane),
            None => plane.iter().sum(),
        };
        sum.fill(sum_in_order(planes.map(plane_sum)));
    });
}

/// The sum of numbers, rounded once.
pub(super) fn sum_in_order(numbers: impl Iterator<Item = f32>) -> f32 {
    let total: f64 = numbers.map(f64::from).sum();
    #[expect(clippy::cast_possible_truncation, reason = "the sum is rounded once, at the end")]
    let rounded = total as f32;
    rounded
}
