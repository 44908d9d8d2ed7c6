//! Sums over the mini-batch that do not depend on the number of threads.

use std::ops::Range;

use super::parallel::{Units, part, threads};
use super::scratch::with_buffers;
use super::shape::ConvolutionShape;

/// Units into which a weight gradient is divided if there is work enough.
const GRADIENT_UNITS: usize = 16;

/// Least work of one such unit.
const GRADIENT_UNIT_FLOPS: u64 = 8_000_000;

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
        let at_once = threads().min(self.chunks - 1);
        with_buffers([at_once * length], |[partial]| {
            // The first chunk needs no partial sum, so its wave has room for one chunk less.
            let mut done = at_once.max(1);
            let sums = &mut partial[..(done - 1) * length];
            if done == 1 {
                wave(0, 1, total);
            } else {
                rayon::join(|| wave(0, 1, total), || wave(1, done - 1, sums));
            }
            add_in_order(total, sums);
            while done < self.chunks {
                let chunks = at_once.min(self.chunks - done);
                let sums = &mut partial[..chunks * length];
                wave(done, chunks, sums);
                add_in_order(total, sums);
                done += chunks;
            }
        });
    }
}

/// Adds partial sums, which lie one behind the other, to the total.
fn add_in_order(total: &mut [f32], partial: &[f32]) {
    for sums in partial.chunks_exact(total.len()) {
        for (total, sum) in total.iter_mut().zip(sums) {
            *total += sum;
        }
    }
}
