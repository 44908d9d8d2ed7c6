//! The convolution and its data gradient.

use std::ops::Range;

use super::super::microkernel::{Engine, Offsets, Right, Start, Tile, Write};
use super::super::packing::{BLOCK_DEPTH, ColumnPanel, ColumnPanels, RowPanels};
use super::super::parallel::{Units, threads};
use super::super::scratch::with_buffers;
use super::super::staging::{Planar, Window};
use super::{FREQUENCIES, Kernels, TILE, TILES_AT_ONCE};

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
    planar: Planar,
    source_planes: Offsets,
    taps: [usize; FREQUENCIES],
    row_panels: RowPanels,
    /// Depth of a block.
    block: usize,
    /// Images that one unit computes together.
    images_at_once: usize,
    /// Tiles of that many images.
    columns: ColumnPanels,
    packed: &'a [f32],
    input: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl Transform {
    /// The window whose positions are the tiles.
    fn window(&self) -> Window {
        let [height, width] = self.source;
        Window {
            kernel_step: 1,
            height,
            width,
            kernel_height: TILE + 2,
            kernel_width: TILE + 2,
            stride: TILE,
            padding_height: self.padding,
            padding_width: self.padding,
            rows: self.target[0].div_ceil(TILE),
            columns: self.target[1].div_ceil(TILE),
        }
    }

    pub fn run(
        &self,
        input: &[f32],
        kernels: &Kernels<'_>,
        bias: Option<&[f32]>,
        output: &mut [f32],
    ) {
        let window = self.window();
        let planar = Planar::new(window);
        let row_panels = RowPanels::new(self.rows, self.engine.max_rows());
        let block = self.planes.div_ceil(self.planes.div_ceil(BLOCK_DEPTH));
        let group_len = FREQUENCIES * self.rows * self.planes;
        let image_len = self.planes * planar.plane_len();
        let images_at_once = (TILES_AT_ONCE / window.positions())
            .min(self.images.div_ceil(threads()))
            .clamp(1, self.images);
        let place = |row: usize, column: usize| {
            row / window.rows * image_len + planar.position(row % window.rows, column)
        };
        with_buffers([self.groups * group_len], |[packed]| {
            for (group, packed) in packed.chunks_exact_mut(group_len).enumerate() {
                let start = group * self.rows * self.planes * 9;
                kernels.pack(start, &row_panels, (self.rows, self.planes, block), packed);
            }
            let rows = images_at_once * window.rows;
            let transformer = Transformer {
                transform: self,
                planar,
                source_planes: Offsets::new(
                    (0..self.planes).map(|plane| plane * planar.plane_len()).collect(),
                ),
                taps: std::array::from_fn(|tap| planar.tap(0, tap / 4, tap % 4)),
                row_panels,
                block,
                images_at_once,
                columns: ColumnPanels::new(self.engine, rows, window.columns, place),
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
        let Transform { images, groups, rows, target: [height, width], .. } = *self.transform;
        let image_len = groups * rows * height * width;
        let units = Units {
            count: images.div_ceil(self.images_at_once),
            flops_per_unit: (self.images_at_once * image_len * self.transform.planes * 9) as u64,
            bounds: |unit| images.min(unit * self.images_at_once) * image_len,
        };
        units.run(output, |unit, output| {
            let first = unit * self.images_at_once;
            let images = first..images.min(first + self.images_at_once);
            for group in 0..groups {
                self.group(images.clone(), group, output);
            }
        });
    }

    fn group(&self, images: Range<usize>, group: usize, output: &mut [f32]) {
        let Transform { engine, planes, rows, groups, source: [height, width], .. } =
            *self.transform;
        let image_len = planes * self.planar.plane_len();
        let planes_len = planes * height * width;
        let tiles = images.len() * self.transform.window().positions();
        let panel_width = 2 * engine.lanes();
        let panels = &self.columns.panels[..tiles.div_ceil(panel_width)];
        let at_once = TILES_AT_ONCE / panel_width;
        let most_width = panels.len().min(at_once) * panel_width;
        let lengths = [
            self.images_at_once * image_len + engine.slack(),
            FREQUENCIES * planes * most_width,
            FREQUENCIES * rows * most_width,
        ];
        with_buffers(lengths, |[stage, tiles, products]| {
            for (at, image) in images.clone().enumerate() {
                let source = &self.input[(image * groups + group) * planes_len..][..planes_len];
                let stage = &mut stage[at * image_len..][..image_len + engine.slack()];
                self.planar.stage(engine, source, stage);
            }
            for panels in panels.chunks(at_once) {
                let width = panels.iter().map(|panel| panel.vectors * engine.lanes()).sum();
                let block = Block { panels, width };
                self.transform_tiles(&block, stage, tiles);
                self.multiply(&block, group, tiles, products);
                self.transform_back(&block, (group, images.len()), products, output);
            }
        });
    }

    /// Writes, per frequency and panel, the transformed tiles of all planes.
    fn transform_tiles(&self, block: &Block<'_>, stage: &[f32], tiles: &mut [f32]) {
        let Transform { engine, planes, .. } = *self.transform;
        let mut start = 0;
        for panel in block.panels {
            let pitch = panel.vectors * engine.lanes();
            for (vector, runs) in self.columns.vectors(engine, panel).enumerate() {
                let target = &mut tiles[start + vector * engine.lanes()..];
                engine.transform_tiles(
                    stage,
                    (&self.source_planes, 0..planes, &self.taps),
                    (&self.columns.runs, runs),
                    target,
                    (pitch, planes * block.width),
                );
            }
            start += planes * pitch;
        }
    }

    /// Multiplies kernels and tiles, frequency by frequency; products are `rows × width` each.
    fn multiply(&self, block: &Block<'_>, group: usize, tiles: &[f32], products: &mut [f32]) {
        let Transform { planes, rows, .. } = *self.transform;
        let kernels = &self.packed[group * FREQUENCIES * rows * planes..];
        for frequency in 0..FREQUENCIES {
            let kernels = &kernels[frequency * rows * planes..][..rows * planes];
            let tiles = &tiles[frequency * planes * block.width..][..planes * block.width];
            let products = &mut products[frequency * rows * block.width..][..rows * block.width];
            for first in (0..planes).step_by(self.block) {
                let depths = first..planes.min(first + self.block);
                self.multiply_block(block, depths, kernels, tiles, products);
            }
        }
    }

    fn multiply_block(
        &self,
        block: &Block<'_>,
        depths: Range<usize>,
        kernels: &[f32],
        tiles: &[f32],
        products: &mut [f32],
    ) {
        let Transform { engine, planes, rows, .. } = *self.transform;
        let kernels = &kernels[depths.start * rows..];
        let mut column = 0;
        for panel in block.panels {
            let pitch = panel.vectors * engine.lanes();
            let right = &tiles[column * planes + depths.start * pitch..];
            for rows in (0..self.row_panels.count()).map(|panel| self.row_panels.range(panel)) {
                let tile = Tile {
                    rows: rows.len(),
                    left: &kernels[rows.start * depths.len()..],
                    left_pitch: rows.len(),
                    vectors: panel.vectors,
                    right: Right::Packed(right),
                    depth: depths.len(),
                    start: if depths.start == 0 { Start::Zero } else { Start::Output },
                    columns: pitch,
                };
                let place = rows.start * block.width + column;
                engine.tile(&tile, &mut products[place..], block.width);
            }
            column += pitch;
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
                    (&products[column..], block.width, rows * block.width),
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
        let window = self.transform.window();
        let half = engine.lanes() / TILE;
        let end = (first + engine.lanes()).min(images * window.positions());
        let mut tile = first;
        while tile < end {
            let (image, at) = (tile / window.positions(), tile % window.positions());
            let (row, column) = (at / window.columns, at % window.columns);
            let lane = tile - first;
            // Tiles up to the end of their row, of the vector or of its half.
            let tiles = (window.columns - column).min(end - tile).min(half - lane % half);
            let plane = (image * groups + group) * rows * height * width;
            for y in (TILE * row..TILE * (row + 1)).filter(|&y| y < height) {
                writes.push(Write {
                    quarter: TILE * (y % TILE) + lane / half,
                    lane: TILE * (lane % half),
                    length: (TILE * tiles).min(width - TILE * column),
                    place: plane + y * width + TILE * column,
                });
            }
            tile += tiles;
        }
    }
}
