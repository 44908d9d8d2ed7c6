//! Convolution windows cut at the border of the image, so that no product is made with a zero of
//! the padding.
//!
//! Pixels of a row meet different numbers of zeros, so they cannot share a vector. Here the rows of
//! a tile are the same pixel of several images, its columns are output planes, and its depth is what
//! the image has under the window.

use std::ops::Range;

use rayon::prelude::*;

use super::super::microkernel::{Engine, Right, Start, Tile};
use super::super::packing::RowPanels;
use super::super::parallel::{part, threads};
use super::super::scratch::with_buffers;
use super::super::staging::Window;
use super::correlation::{Correlation, Weights};

/// Least depth of a tile, so that reading and writing its sums does not count.
pub(super) const LEAST_DEPTH: usize = 64;

/// Units per thread from which on they need not divide evenly.
const PLENTY_OF_UNITS: usize = 4;

impl Window {
    /// Rows of the kernel that lie on the image at window row `row`.
    pub(super) fn kernel_rows(&self, row: usize) -> Range<usize> {
        inside(row, self.padding_height, self.kernel_height, self.height)
    }

    /// Columns of the kernel that lie on the image at window column `column`.
    pub(super) fn kernel_columns(&self, column: usize) -> Range<usize> {
        inside(column, self.padding_width, self.kernel_width, self.width)
    }

    /// Columns of the window at which kernel column `column` lies on the image.
    pub(super) fn columns_under(&self, column: usize) -> Range<usize> {
        inside(column, self.padding_width, self.columns, self.width)
    }

    /// Which part of the taps of all windows lies on the image, for stride 1.
    pub(super) fn part_inside(&self) -> f64 {
        let rows: usize = (0..self.rows).map(|row| self.kernel_rows(row).len()).sum();
        let columns: usize =
            (0..self.columns).map(|column| self.kernel_columns(column).len()).sum();
        (rows * columns) as f64 / (self.positions() * self.taps()) as f64
    }
}

/// The numbers below `count` which, `position` added and `padding` taken off, lie on `extent`
/// pixels; for stride 1.
fn inside(position: usize, padding: usize, count: usize, extent: usize) -> Range<usize> {
    let end = (extent + padding).saturating_sub(position).min(count);
    padding.saturating_sub(position).min(end)..end
}

/// How much of the work with padding has to go for the other layout to pay.
pub(super) const LEAST_GAIN: f64 = 1.04;

/// Whether clipping saves work; depends on the shape only, so that threads do not change a result.
pub(super) fn pays(correlation: &Correlation) -> bool {
    let Correlation { engine, window, images, planes, rows, .. } = *correlation;
    let gain = filled(engine, rows) / (window.part_inside() * filled(engine, window.positions()));
    (window.stride, window.kernel_step) == (1, 1)
        && 2 * images >= engine.max_rows()
        && planes * window.kernel_width >= LEAST_DEPTH
        && gain >= LEAST_GAIN
}

/// Which part of the lanes is used by vectors of `count` numbers.
pub(super) fn filled(engine: Engine, count: usize) -> f64 {
    count as f64 / count.next_multiple_of(engine.lanes()) as f64
}

/// Output planes of a group that one tile computes.
#[derive(Clone, Copy)]
struct Panel {
    first: usize,
    columns: usize,
    vectors: usize,
}

/// A correlation whose windows are clipped.
pub(super) struct Clipped<'a> {
    correlation: &'a Correlation,
    source: &'a [f32],
    bias: Option<&'a [f32]>,
    image_panels: RowPanels,
    panels: Vec<Panel>,
    /// Per group and panel: tap by tap, `planes × columns`.
    packed: &'a [f32],
}

/// Some panels of a group for some images, with their place in the output, image by image.
struct Unit<'o> {
    images: Range<usize>,
    group: usize,
    panels: Range<usize>,
    output: Vec<&'o mut [f32]>,
}

/// Computes a correlation for which clipping [`pays`].
pub(super) fn run(
    correlation: &Correlation,
    source: &[f32],
    weights: &Weights<'_>,
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let Correlation { engine, images, groups, rows, .. } = *correlation;
    let panels: Vec<Panel> = (0..rows)
        .step_by(2 * engine.lanes())
        .map(|first| {
            let columns = (rows - first).min(2 * engine.lanes());
            Panel { first, columns, vectors: columns.div_ceil(engine.lanes()) }
        })
        .collect();
    let depth = correlation.planes * correlation.window.taps();
    let group_len = depth * rows.next_multiple_of(engine.lanes());
    with_buffers([groups * group_len], |[packed]| {
        let values = weights.values.chunks_exact(rows * depth);
        for (packed, values) in packed.chunks_exact_mut(group_len).zip(values) {
            pack(correlation, &panels, values, weights, packed);
        }
        let image_panels = RowPanels::new(images, engine.max_rows());
        let clipped = Clipped { correlation, source, bias, image_panels, panels, packed };
        clipped.run(output);
    });
}

fn pack(
    correlation: &Correlation,
    panels: &[Panel],
    values: &[f32],
    weights: &Weights<'_>,
    packed: &mut [f32],
) {
    let (planes, taps) = (correlation.planes, correlation.window.taps());
    let mut rest = packed;
    for panel in panels {
        let width = panel.vectors * correlation.engine.lanes();
        let (panel_weights, after) = rest.split_at_mut(planes * taps * width);
        rest = after;
        let rows = &weights.rows[panel.first..][..panel.columns];
        for (at, &depth) in weights.depths.iter().enumerate() {
            let (plane, tap) = (at / taps, at % taps);
            let target = &mut panel_weights[(tap * planes + plane) * width..][..width];
            for (target, &row) in target.iter_mut().zip(rows) {
                *target = values[row + depth];
            }
            target[panel.columns..].fill(0.0);
        }
    }
}

impl Clipped<'_> {
    fn run(&self, output: &mut [f32]) {
        let units = self.units(output);
        if threads() == 1 {
            units.into_iter().for_each(|unit| self.unit(unit));
        } else {
            units.into_par_iter().with_max_len(1).for_each(|unit| self.unit(unit));
        }
    }

    /// Divides the output by images, groups and, where these are too few for the threads, panels.
    fn units<'o>(&self, output: &'o mut [f32]) -> Vec<Unit<'o>> {
        let Correlation { images, groups, rows, window, .. } = *self.correlation;
        let pixels = window.positions();
        let whole = self.image_panels.count() * groups;
        let is_even = |parts: &usize| {
            let units = whole * parts;
            units.is_multiple_of(threads()) || units >= PLENTY_OF_UNITS * threads()
        };
        let parts = (1..=self.panels.len()).find(is_even).unwrap_or(self.panels.len());
        let mut units = Vec::with_capacity(whole * parts);
        for panel in 0..self.image_panels.count() {
            for at in 0..groups * parts {
                units.push(Unit {
                    images: self.image_panels.range(panel),
                    group: at / parts,
                    panels: part(self.panels.len(), parts, at % parts),
                    output: Vec::with_capacity(images.div_ceil(self.image_panels.count())),
                });
            }
        }
        let mut images = output.chunks_exact_mut(groups * rows * pixels);
        for units in units.chunks_exact_mut(groups * parts) {
            for mut rest in images.by_ref().take(units[0].images.len()) {
                for unit in units.iter_mut() {
                    let planes: usize =
                        self.panels[unit.panels.clone()].iter().map(|panel| panel.columns).sum();
                    let (own, after) = rest.split_at_mut(planes * pixels);
                    unit.output.push(own);
                    rest = after;
                }
            }
        }
        units
    }

    fn unit(&self, mut unit: Unit<'_>) {
        let Correlation { engine, window, planes, .. } = *self.correlation;
        let (count, lanes) = (unit.images.len(), engine.lanes());
        let pitch = engine.max_rows().next_multiple_of(lanes);
        let row_len = window.columns.next_multiple_of(lanes);
        let lengths = [
            window.height * window.width * planes * pitch + engine.slack(),
            engine.max_rows() * window.columns * 2 * lanes,
            2 * lanes * row_len + engine.slack(),
        ];
        with_buffers(lengths, |[stage, products, turned]| {
            self.stage(&unit, pitch, stage);
            let first_plane = self.panels[unit.panels.start].first;
            for row in 0..window.rows {
                for at in unit.panels.clone() {
                    let panel = self.panels[at];
                    self.start(unit.group, panel, products);
                    self.tiles((unit.group, at), row, (stage, pitch), count, products);
                    let place = ((panel.first - first_plane) * window.rows + row) * window.columns;
                    let width = panel.vectors * lanes;
                    let images = products.chunks_exact(window.columns * width);
                    for (products, output) in images.zip(&mut unit.output) {
                        let extent = (window.columns, panel.columns);
                        engine.transpose((products, width), extent, (turned, row_len));
                        let target = (&mut output[place..], window.positions());
                        let extent = (panel.columns, window.columns);
                        engine.copy_rows((turned, row_len), target, extent, 1);
                    }
                }
            }
        });
    }

    /// Copies the group's planes of the images, pixel by pixel: `planes × images`.
    fn stage(&self, unit: &Unit<'_>, pitch: usize, stage: &mut [f32]) {
        let Correlation { engine, window, planes, groups, .. } = *self.correlation;
        let pixels = window.height * window.width;
        let image_len = groups * planes * pixels;
        let first = unit.images.start * image_len + unit.group * planes * pixels;
        for row in 0..window.height {
            for plane in 0..planes {
                let source = &self.source[first + plane * pixels + row * window.width..];
                let target = &mut stage[(row * window.width * planes + plane) * pitch..];
                let extent = (unit.images.len(), window.width);
                engine.transpose((source, image_len), extent, (target, planes * pitch));
            }
        }
    }

    /// What the sums of a row of pixels begin with.
    fn start(&self, group: usize, panel: Panel, products: &mut [f32]) {
        let Some(bias) = self.bias else { return products.fill(0.0) };
        let bias = &bias[group * self.correlation.rows + panel.first..][..panel.columns];
        for sums in products.chunks_exact_mut(panel.vectors * self.correlation.engine.lanes()) {
            sums[..panel.columns].copy_from_slice(bias);
        }
    }

    /// Adds the products of a row of pixels: per image and pixel, the panel's planes.
    fn tiles(
        &self,
        (group, at): (usize, usize),
        row: usize,
        (stage, pitch): (&[f32], usize),
        images: usize,
        products: &mut [f32],
    ) {
        let Correlation { engine, window, planes, rows, .. } = *self.correlation;
        let (panel, lanes) = (self.panels[at], engine.lanes());
        let width = panel.vectors * lanes;
        let depth = planes * window.taps();
        let packed = (group * rows.next_multiple_of(lanes) + panel.first) * depth;
        for kernel_row in window.kernel_rows(row) {
            let source_row = row + kernel_row - window.padding_height;
            for column in 0..window.columns {
                let taps = window.kernel_columns(column);
                if taps.is_empty() {
                    continue;
                }
                let pixel = source_row * window.width + column + taps.start - window.padding_width;
                let tap = kernel_row * window.kernel_width + taps.start;
                let tile = Tile {
                    rows: images,
                    left: &stage[pixel * planes * pitch..],
                    left_pitch: pitch,
                    vectors: panel.vectors,
                    right: Right::Packed(&self.packed[packed + tap * planes * width..]),
                    depth: taps.len() * planes,
                    start: Start::Output,
                    columns: panel.columns,
                };
                engine.tile(&tile, &mut products[column * width..], window.columns * width);
            }
        }
    }
}
