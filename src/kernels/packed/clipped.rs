//! Convolution windows cut at the border of the image, so that no product is made with a zero of
//! the padding.
//!
//! Pixels of a row meet different numbers of zeros, so they cannot share a vector. Here the rows of
//! a tile are neighbouring pixels that meet a column of the kernel inside the image, its columns are
//! output planes, and its depth runs over the planes of the source, which are read where they are.

use std::ops::Range;

use super::super::microkernel::{Engine, Right, Start, Step, TURNED, Tile};
use super::super::packing::RowPanels;
use super::super::parallel::{Units, for_each, part, threads};
use super::super::scratch::with_buffers;
use super::super::staging::Window;
use super::correlation::{Correlation, Weights};

/// Least depth of a tile, so that reading and writing its sums does not count.
pub(super) const LEAST_DEPTH: usize = 64;

/// Floats of the images whose tiles meet a panel of weights in one go, both of which have to stay in
/// the second-level cache.
const IMAGES_AT_ONCE: usize = 128 * 1024;

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
struct Panel {
    first: usize,
    columns: usize,
    vectors: usize,
    spans: Vec<Span>,
}

/// Neighbouring columns of the window, as many as a tile has rows, and all columns of the kernel
/// that lie on the image at each of them.
struct Span {
    columns: Range<usize>,
    kernel_columns: Vec<usize>,
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
    let Correlation { engine, window, groups, planes, rows, .. } = *correlation;
    let panels: Vec<Panel> = column_panels(engine, rows)
        .map(|range| {
            let vectors = range.len().div_ceil(engine.lanes());
            let spans = spans(&window, engine.max_rows_of(vectors));
            Panel { first: range.start, columns: range.len(), vectors, spans }
        })
        .collect();
    let depth = planes * window.taps();
    let group_len = depth * rows.next_multiple_of(engine.lanes());
    with_buffers([groups * group_len], |[packed]| {
        pack(correlation, &panels, weights, packed);
        let image_panels = image_panels(correlation);
        let clipped = Clipped { correlation, source, bias, image_panels, panels, packed };
        clipped.run(output);
    });
}

/// Divides the images so that so many fit in the cache, and where that costs little into equal
/// panels for all threads.
fn image_panels(correlation: &Correlation) -> RowPanels {
    let Correlation { window, images, groups, planes, .. } = *correlation;
    let at_once = (IMAGES_AT_ONCE / (planes * window.height * window.width)).max(1);
    let least = images.div_ceil(at_once);
    let is_even =
        |count: &usize| images.is_multiple_of(*count) && (count * groups).is_multiple_of(threads());
    let count = (least..=images.min(2 * least)).find(is_even).unwrap_or(least);
    RowPanels::new(images, images.div_ceil(count))
}

/// Divides columns into panels of 2 vectors, and one of 3 where their number is odd; a vector by
/// itself would leave a tile that loads more than it multiplies.
pub(super) fn column_panels(engine: Engine, count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let vectors = match (count - first).div_ceil(engine.lanes()) {
            0 => return None,
            odd if odd % 2 == 1 => odd.min(3).min(engine.max_vectors()),
            _ => 2,
        };
        let start = first;
        first = count.min(start + vectors * engine.lanes());
        Some(start..first)
    })
}

/// Spans that cover, for every column of the kernel, the columns of the window at which it lies on
/// the image.
fn spans(window: &Window, most: usize) -> Vec<Span> {
    let blocks = RowPanels::new(window.columns, most);
    let mut spans: Vec<Span> = Vec::new();
    for block in (0..blocks.count()).map(|block| blocks.range(block)) {
        let first = spans.len();
        for kernel_column in 0..window.kernel_width {
            let under = window.columns_under(kernel_column);
            let columns = under.start.max(block.start)..under.end.min(block.end);
            if columns.is_empty() {
                continue;
            }
            match spans[first..].iter_mut().find(|span| span.columns == columns) {
                Some(span) => span.kernel_columns.push(kernel_column),
                None => spans.push(Span { columns, kernel_columns: vec![kernel_column] }),
            }
        }
    }
    spans
}

/// Packs the weights: per group and panel, tap by tap, `planes × columns`.
fn pack(correlation: &Correlation, panels: &[Panel], weights: &Weights<'_>, packed: &mut [f32]) {
    let Correlation { engine, groups, planes, rows, .. } = *correlation;
    let depth = planes * correlation.window.taps();
    let group_len = depth * rows.next_multiple_of(engine.lanes());
    let units = Units {
        count: groups * panels.len(),
        flops_per_unit: (depth * rows / panels.len()) as u64,
        bounds: |unit: usize| {
            unit / panels.len() * group_len + panels[unit % panels.len()].first * depth
        },
    };
    units.run(packed, |unit, target| {
        let values = &weights.values[unit / panels.len() * rows * depth..][..rows * depth];
        pack_panel(correlation, &panels[unit % panels.len()], (values, weights), target);
    });
}

fn pack_panel(
    correlation: &Correlation,
    panel: &Panel,
    (values, weights): (&[f32], &Weights<'_>),
    packed: &mut [f32],
) {
    let Correlation { engine, planes, window, .. } = *correlation;
    let (taps, width) = (window.taps(), panel.vectors * engine.lanes());
    with_buffers([taps * width], |[turned]| {
        turned.fill(0.0);
        for (plane, depths) in weights.depths.chunks_exact(taps).enumerate() {
            let (first, last) = (depths[0], depths[taps - 1]);
            let source = &values[panel.first * weights.row_pitch + first.min(last)..];
            let source = (source, weights.row_pitch);
            engine.transpose(source, (panel.columns, taps), (turned, width));
            for (tap, &depth) in depths.iter().enumerate() {
                let row = &turned[(depth - first.min(last)) * width..][..width];
                packed[(tap * planes + plane) * width..][..width].copy_from_slice(row);
            }
        }
    });
}

impl Clipped<'_> {
    fn run(&self, output: &mut [f32]) {
        for_each(self.units(output), usize::MAX, |unit| self.unit(unit));
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

    fn unit(&self, unit: Unit<'_>) {
        let Correlation { engine, window, .. } = *self.correlation;
        let pixels = window.positions();
        let mut place = 0;
        let mut outputs = unit.output;
        with_buffers([engine.max_vectors() * engine.lanes() * pixels], |[products]| {
            for at in unit.panels.clone() {
                let panel = &self.panels[at];
                let steps = self.steps(panel);
                let width = panel.vectors * engine.lanes();
                let products = &mut products[..pixels * width];
                for (image, output) in unit.images.clone().zip(&mut outputs) {
                    let planes = &mut output[place..][..panel.columns * pixels];
                    self.start(unit.group, panel, products);
                    self.tiles((image, unit.group), panel, (&steps, planes), products);
                    write(engine, (products, width), planes, pixels);
                }
                place += panel.columns * pixels;
            }
        });
    }

    /// What tiles of a panel sum over: per row of the window and span, the taps on the image.
    fn steps(&self, panel: &Panel) -> Vec<Vec<Step>> {
        let Correlation { engine, window, planes, .. } = *self.correlation;
        let width = panel.vectors * engine.lanes();
        let steps = |row: usize, span: &Span| -> Vec<Step> {
            let kernel_rows = window.kernel_rows(row);
            let taps = kernel_rows.flat_map(|y| span.kernel_columns.iter().map(move |&x| (y, x)));
            taps.map(|(y, x)| {
                let pixel = (row + y - window.padding_height) * window.width;
                let left = pixel + span.columns.start + x - window.padding_width;
                Step { left, right: (y * window.kernel_width + x) * planes * width }
            })
            .collect()
        };
        (0..window.rows)
            .flat_map(|row| panel.spans.iter().map(move |span| (row, span)))
            .map(|(row, span)| steps(row, span))
            .collect()
    }

    /// What the sums of an image begin with.
    fn start(&self, group: usize, panel: &Panel, products: &mut [f32]) {
        let Some(bias) = self.bias else { return products.fill(0.0) };
        let bias = &bias[group * self.correlation.rows + panel.first..][..panel.columns];
        for sums in products.chunks_exact_mut(panel.vectors * self.correlation.engine.lanes()) {
            sums[..panel.columns].copy_from_slice(bias);
        }
    }

    /// Adds the products of an image: per pixel, the panel's planes. They go to `target` afterwards,
    /// which is fetched meanwhile.
    fn tiles(
        &self,
        (image, group): (usize, usize),
        panel: &Panel,
        (steps, target): (&[Vec<Step>], &[f32]),
        products: &mut [f32],
    ) {
        let Correlation { engine, window, groups, planes, rows, .. } = *self.correlation;
        let plane_len = window.height * window.width;
        let source = &self.source[(image * groups + group) * planes * plane_len..];
        let width = panel.vectors * engine.lanes();
        let depth = planes * window.taps();
        let packed = (group * rows.next_multiple_of(engine.lanes()) + panel.first) * depth;
        let all = steps.len();
        for (at, steps) in steps.iter().enumerate() {
            engine.fetch(&target[part(target.len(), all, at)]);
            let (row, span) = (at / panel.spans.len(), &panel.spans[at % panel.spans.len()]);
            let tile = Tile {
                rows: span.columns.len(),
                left: &source[..planes * plane_len],
                left_pitch: plane_len,
                vectors: panel.vectors,
                right: Right::Steps { panels: &self.packed[packed..], steps },
                depth: planes,
                start: Start::Output,
                columns: panel.columns,
            };
            let place = (row * window.columns + span.columns.start) * width;
            engine.tile(&tile, &mut products[place..], width);
        }
    }
}

/// Turns products, `pixels × width`, into planes.
fn write(engine: Engine, (products, width): (&[f32], usize), planes: &mut [f32], pixels: usize) {
    let count = planes.len() / pixels;
    // Turning writes behind a plane, which only the last one has no room for.
    let turned = if pixels >= TURNED { count - 1 } else { 0 };
    engine.transpose((products, width), (pixels, turned), (planes, pixels));
    for (at, plane) in planes.chunks_exact_mut(pixels).enumerate().skip(turned) {
        for (pixel, &product) in plane.iter_mut().zip(products[at..].iter().step_by(width)) {
            *pixel = product;
        }
    }
}
