//! The convolution and its data gradient.

use std::ops::Range;

use super::super::microkernel::{Engine, Offsets, Right, Start, Tile, Write};
use super::super::packing::{BLOCK_DEPTH, ColumnPanel, ColumnPanels, RowPanels};
use super::super::parallel::{Units, threads};
use super::super::scratch::with_buffers;
use super::{Canvas, FREQUENCIES, Kernels, TILE, TILES_AT_ONCE};

/// Convolutions that differ in their images and, per group, in their kernels.
pub(super) struct Transform {
    pub engine: Engine,
    pub images: usize,
    pub groups: usize,
    /// Source planes of one group.
    pub planes: usize,
    /// Output planes of one group.
    pub rows: usize,
    /// Height and width of a source plane.
    pub source: [usize; 2],
    /// Height and width of an output plane.
    pub target: [usize; 2],
    /// Zeros above and to the left of a source plane.
    pub padding: usize,
}

/// What all units of a transform share.
struct Transformer<'a> {
    transform: &'a Transform,
    canvas: Canvas,
    /// The one plane that is staged.
    plane: Offsets,
    taps: [usize; FREQUENCIES],
    row_panels: RowPanels,
    /// Depth of a block.
    block: usize,
    /// Canvases that one unit computes together.
    canvases_at_once: usize,
    /// Tiles of that many canvases.
    columns: ColumnPanels,
    packed: &'a [f32],
    input: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl Transform {
    pub fn run(
        &self,
        input: &[f32],
        kernels: &Kernels<'_>,
        bias: Option<&[f32]>,
        output: &mut [f32],
    ) {
        let canvas = Canvas::new(self.source, self.target, self.padding, self.images);
        let row_panels = RowPanels::new(self.rows, self.engine.max_rows());
        let group_len = FREQUENCIES * self.rows * self.planes;
        let canvases_at_once = (TILES_AT_ONCE / canvas.tiles())
            .min(canvas.count().div_ceil(threads()))
            .clamp(1, canvas.count());
        let [tile_rows, tile_columns] = canvas.tile_grid();
        let place = |row: usize, column: usize| canvas.tile(row, column);
        with_buffers([self.groups * group_len], |[packed]| {
            for (group, packed) in packed.chunks_exact_mut(group_len).enumerate() {
                let start = group * self.rows * self.planes * 9;
                kernels.pack(start, &row_panels, self.planes, packed);
            }
            let rows = canvases_at_once * tile_rows;
            let transformer = Transformer {
                transform: self,
                canvas,
                plane: Offsets::new(vec![0]),
                taps: std::array::from_fn(|tap| canvas.tap(tap / 6, tap % 6)),
                row_panels,
                block: self.planes.div_ceil(self.planes.div_ceil(BLOCK_DEPTH)),
                canvases_at_once,
                columns: ColumnPanels::new(self.engine, rows, tile_columns, place),
                packed,
                input,
                bias,
            };
            transformer.run(output);
        });
    }
}

/// Some panels of tiles that are transformed together.
struct Block<'a> {
    panels: &'a [ColumnPanel],
    /// Floats of a row of products: the width of all panels.
    width: usize,
}

impl Transformer<'_> {
    fn run(&self, output: &mut [f32]) {
        let Transform { images, groups, rows, planes, target: [height, width], .. } =
            *self.transform;
        let image_len = groups * rows * height * width;
        let images_at_once = self.canvases_at_once * self.canvas.capacity();
        let units = Units {
            count: images.div_ceil(images_at_once),
            flops_per_unit: (images_at_once * image_len * planes * 9) as u64,
            bounds: |unit| images.min(unit * images_at_once) * image_len,
        };
        units.run(output, |unit, output| {
            let first = unit * images_at_once;
            let images = first..images.min(first + images_at_once);
            for group in 0..groups {
                self.group(images.clone(), group, output);
            }
        });
    }

    /// Distance between the frequencies of transformed tiles: an odd number of cache lines, so that
    /// they do not all compete for the same places in a cache.
    fn frequency_pitch(&self, width: usize) -> usize {
        16 * ((self.transform.planes * width).div_ceil(16) | 1)
    }

    fn group(&self, images: Range<usize>, group: usize, output: &mut [f32]) {
        let Transform { engine, rows, .. } = *self.transform;
        let tiles = images.len().div_ceil(self.canvas.capacity()) * self.canvas.tiles();
        let panel_width = 2 * engine.lanes();
        let panels = &self.columns.panels[..tiles.div_ceil(panel_width)];
        let at_once = TILES_AT_ONCE.div_ceil(panel_width);
        let most_width = panels.len().min(at_once) * panel_width;
        let lengths = [
            self.canvases_at_once * self.canvas.plane_len() + engine.slack(),
            FREQUENCIES * self.frequency_pitch(most_width),
            FREQUENCIES * rows * most_width,
        ];
        with_buffers(lengths, |[stage, tiles, products]| {
            stage.fill(0.0);
            for panels in panels.chunks(at_once) {
                let width = panels.iter().map(|panel| panel.vectors * engine.lanes()).sum();
                let block = Block { panels, width };
                self.transform_tiles(&block, (images.clone(), group), stage, tiles);
                self.multiply(&block, group, tiles, products);
                self.transform_back(&block, (group, images.len()), products, output);
            }
        });
    }

    /// Writes, per frequency and panel, the transformed tiles of all planes.
    fn transform_tiles(
        &self,
        block: &Block<'_>,
        (images, group): (Range<usize>, usize),
        stage: &mut [f32],
        tiles: &mut [f32],
    ) {
        let Transform { engine, planes, groups, source: [height, width], .. } = *self.transform;
        let plane_len = height * width;
        let frequency_pitch = self.frequency_pitch(block.width);
        for plane in 0..planes {
            for (at, image) in images.clone().enumerate() {
                let first = ((image * groups + group) * planes + plane) * plane_len;
                self.canvas.stage(engine, at, &self.input[first..][..plane_len], stage);
            }
            let mut start = 0;
            for panel in block.panels {
                let pitch = panel.vectors * engine.lanes();
                for (vector, runs) in self.columns.vectors(engine, panel).enumerate() {
                    engine.transform_tiles(
                        stage,
                        (&self.plane, 0..1, &self.taps),
                        (&self.columns.runs, runs),
                        &mut tiles[start + plane * pitch + vector * engine.lanes()..],
                        (pitch, frequency_pitch),
                    );
                }
                start += planes * pitch;
            }
        }
    }

    /// Multiplies kernels and tiles, frequency by frequency; a row of products is
    /// `frequencies × width`.
    fn multiply(&self, block: &Block<'_>, group: usize, tiles: &[f32], products: &mut [f32]) {
        let Transform { planes, rows, .. } = *self.transform;
        let group_len = FREQUENCIES * rows * planes;
        let kernels = &self.packed[group * group_len..][..group_len];
        for frequency in 0..FREQUENCIES {
            let tiles = &tiles[frequency * self.frequency_pitch(block.width)..];
            for first in (0..planes).step_by(self.block) {
                let depths = first..planes.min(first + self.block);
                self.multiply_block(block, frequency, depths, (kernels, tiles), products);
            }
        }
    }

    fn multiply_block(
        &self,
        block: &Block<'_>,
        frequency: usize,
        depths: Range<usize>,
        (kernels, tiles): (&[f32], &[f32]),
        products: &mut [f32],
    ) {
        let Transform { engine, planes, .. } = *self.transform;
        for rows in (0..self.row_panels.count()).map(|panel| self.row_panels.range(panel)) {
            let left = (FREQUENCIES * rows.start + frequency * rows.len()) * planes;
            let mut column = 0;
            for panel in block.panels {
                let pitch = panel.vectors * engine.lanes();
                let tile = Tile {
                    rows: rows.len(),
                    left: &kernels[left + depths.start * rows.len()..],
                    left_pitch: rows.len(),
                    vectors: panel.vectors,
                    right: Right::Packed(&tiles[column * planes + depths.start * pitch..]),
                    depth: depths.len(),
                    start: if depths.start == 0 { Start::Zero } else { Start::Output },
                    columns: pitch,
                };
                let place = (rows.start * FREQUENCIES + frequency) * block.width + column;
                engine.tile(&tile, &mut products[place..], FREQUENCIES * block.width);
                column += pitch;
            }
        }
    }

    fn transform_back(
        &self,
        block: &Block<'_>,
        (group, images): (usize, usize),
        products: &[f32],
        output: &mut [f32],
    ) {
        let Transform { engine, rows, target: [height, width], .. } = *self.transform;
        let bias = self.bias.map(|bias| &bias[group * rows..][..rows]);
        let mut column = 0;
        let mut writes = Vec::new();
        for panel in block.panels {
            for vector in 0..panel.vectors {
                writes.clear();
                let first = panel.start + vector * engine.lanes();
                self.writes(first, (group, images), &mut writes);
                engine.transform_back(
                    (&products[column..], FREQUENCIES * block.width, block.width),
                    (rows, bias),
                    &writes,
                    (output, height * width),
                );
                column += engine.lanes();
            }
        }
    }

    /// Where the pixels of the vector of tiles from `first` on go in the planes of a group's first
    /// row.
    fn writes(&self, first: usize, (group, images): (usize, usize), writes: &mut Vec<Write>) {
        let Transform { engine, rows, groups, target: [height, width], .. } = *self.transform;
        let tile_columns = self.canvas.tile_grid()[1];
        let quarter = engine.lanes() / 4;
        let end = first + engine.lanes();
        let mut tile = first;
        while tile < end {
            let (row, column) = (tile / tile_columns, tile % tile_columns);
            let lane = tile - first;
            // Tiles up to the end of their row or of their quarter of the vector.
            let tiles = (tile_columns - column).min(quarter - lane % quarter);
            for y in 0..TILE {
                for segment in self.canvas.segments(row, y, column..column + tiles) {
                    if segment.image < images {
                        let plane = (segment.image * groups + group) * rows * height * width;
                        writes.push(Write {
                            row: y,
                            quarter: lane / quarter,
                            lane: TILE * (lane % quarter) + segment.column - TILE * column,
                            length: segment.length,
                            place: plane + segment.place,
                        });
                    }
                }
            }
            tile += tiles;
        }
    }
}
