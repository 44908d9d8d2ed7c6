//! Images side by side.

use std::ops::Range;

use super::super::microkernel::Engine;
use super::super::shape::ConvolutionShape;
use super::TILE;

/// Most images along one axis of a canvas.
const MOST_IMAGES: usize = 4;

/// A plane with a grid of images on it that share the zeros between them, so that tiles need not
/// end where an image does: 13 rows of output take 4 tiles of 4, but 27 rows of two images only 7.
///
/// Outputs of the rows and columns between the images mean nothing and are left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canvas {
    /// Height and width of an image before and after the convolution.
    source: [usize; 2],
    target: [usize; 2],
    padding: usize,
    /// Images of the mini-batch.
    images: usize,
    /// Rows and columns of the grid.
    grid: [usize; 2],
}

/// Some pixels of one row of an image's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Image within the mini-batch's canvases, and where the first pixel is in its plane.
    pub image: usize,
    pub place: usize,
    /// Columns of the canvas before the first pixel.
    pub column: usize,
    pub length: usize,
}

impl Canvas {
    /// The grid with the fewest tiles for all images; the smallest of equals.
    ///
    /// `padding`, at most 2, is that before the rows and columns of an image.
    pub fn new(source: [usize; 2], target: [usize; 2], padding: usize, images: usize) -> Self {
        let with_grid = |grid| Self { source, target, padding, images, grid };
        let axis = 1..=MOST_IMAGES.min(images);
        let grids = axis.clone().flat_map(|rows| axis.clone().map(move |columns| [rows, columns]));
        grids
            .map(with_grid)
            .filter(|canvas| canvas.capacity() <= images)
            .min_by_key(|canvas| (canvas.count() * canvas.tiles(), canvas.capacity()))
            .unwrap_or_else(|| with_grid([1, 1]))
    }

    /// That of the forward pass.
    pub fn of(shape: &ConvolutionShape) -> Self {
        let sizes = shape.sizes();
        let target = [shape.output_height(), shape.output_width()];
        Self::new([sizes.height, sizes.width], target, sizes.padding, sizes.batch)
    }

    /// Images on one canvas.
    pub fn capacity(&self) -> usize {
        self.grid[0] * self.grid[1]
    }

    /// Canvases of the mini-batch.
    pub fn count(&self) -> usize {
        self.images.div_ceil(self.capacity())
    }

    /// Distance between neighbouring images: no window of one reaches a pixel of the next.
    fn pitch(&self) -> [usize; 2] {
        self.source.map(|extent| extent + self.padding)
    }

    /// Rows and columns of tiles.
    pub fn tile_grid(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            ((self.grid[axis] - 1) * self.pitch()[axis] + self.target[axis]).div_ceil(TILE)
        })
    }

    pub fn tiles(&self) -> usize {
        let [rows, columns] = self.tile_grid();
        rows * columns
    }

    /// First row and column of an image's place in the grid.
    fn corner(&self, image: usize) -> [usize; 2] {
        let [height, width] = self.pitch();
        let at = image % self.capacity();
        [at / self.grid[1] * height, at % self.grid[1] * width]
    }

    /// Floats of a staged plane: per row the columns `x` with equal `x mod 4` together, so that
    /// what neighbouring tiles read are neighbours.
    pub fn plane_len(&self) -> usize {
        (self.tile_grid()[0] * TILE + 2) * self.row_pitch()
    }

    fn phase_pitch(&self) -> usize {
        self.tile_grid()[1] + 1
    }

    fn row_pitch(&self) -> usize {
        TILE * self.phase_pitch()
    }

    /// Where the first tile's pixel (`y`, `x`) is in a staged plane.
    pub fn tap(&self, y: usize, x: usize) -> usize {
        y * self.row_pitch() + x % TILE * self.phase_pitch() + x / TILE
    }

    /// How far a tile of row `row`, counted over all canvases, lies from the first.
    pub fn tile(&self, row: usize, column: usize) -> usize {
        let rows = self.tile_grid()[0];
        row / rows * self.plane_len() + row % rows * TILE * self.row_pitch() + column
    }

    /// Copies an image's plane to its place among the staged ones; what is not copied stays.
    pub fn stage(&self, engine: Engine, image: usize, plane: &[f32], stage: &mut [f32]) {
        let [height, width] = self.source;
        let [row, column] = self.corner(image).map(|at| at + self.padding);
        let start = image / self.capacity() * self.plane_len() + row * self.row_pitch();
        for first in 0..TILE.min(width) {
            let phase = (column + first) % TILE;
            let at = start + phase * self.phase_pitch() + (column + first) / TILE;
            let extent = (height, (width - first).div_ceil(TILE));
            let target = (&mut stage[at..], self.row_pitch());
            let known = engine.copy_rows((&plane[first..], width), target, extent, TILE);
            debug_assert!(known, "every engine copies with the stride of tiles");
        }
    }

    /// Canvas of the sources with the channels of a pixel together.
    pub fn interleaved_source(&self, channels: usize) -> Interleaved {
        let [rows, columns] = self.tile_grid().map(|tiles| TILE * tiles + 2);
        Interleaved {
            canvas: *self,
            extent: self.source,
            margin: self.padding,
            rows,
            columns,
            channels,
        }
    }

    /// The same of the targets.
    pub fn interleaved_target(&self, channels: usize) -> Interleaved {
        let [rows, columns] = self.tile_grid().map(|tiles| TILE * tiles);
        Interleaved { canvas: *self, extent: self.target, margin: 0, rows, columns, channels }
    }

    /// The pixels of row `y` of tile row `row`, in the tiles `columns`, that belong to an image.
    pub fn segments(
        &self,
        row: usize,
        y: usize,
        columns: Range<usize>,
    ) -> impl Iterator<Item = Segment> {
        let ([pitch_height, pitch_width], [height, width]) = (self.pitch(), self.target);
        let rows = self.tile_grid()[0];
        let at = row % rows * TILE + y;
        let (grid_row, image_row) = (at / pitch_height, at % pitch_height);
        let first_image = row / rows * self.capacity() + grid_row * self.grid[1];
        let images = if grid_row < self.grid[0] && image_row < height { self.grid[1] } else { 0 };
        let (start, end) = (columns.start * TILE, columns.end * TILE);
        (0..images).filter_map(move |column| {
            let first = column * pitch_width;
            let (from, to) = (start.max(first), end.min(first + width));
            (from < to).then(|| Segment {
                image: first_image + column,
                place: image_row * width + from - first,
                column: from,
                length: to - from,
            })
        })
    }
}

/// Canvases with the channels of a pixel together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interleaved {
    canvas: Canvas,
    /// Height and width of an image, and where it begins in its part of the grid.
    extent: [usize; 2],
    margin: usize,
    rows: usize,
    columns: usize,
    channels: usize,
}

impl Interleaved {
    /// Floats of one canvas.
    pub fn canvas_len(&self) -> usize {
        self.rows * self.columns * self.channels
    }

    /// Where the first tile's pixel (`y`, `x`) is.
    pub fn tap(&self, y: usize, x: usize) -> usize {
        (y * self.columns + x) * self.channels
    }

    /// How far the tiles of `canvases` canvases lie from the first.
    pub fn tiles(&self, canvases: usize) -> Vec<usize> {
        let [rows, columns] = self.canvas.tile_grid();
        let mut tiles = Vec::with_capacity(canvases * rows * columns);
        for canvas in 0..canvases {
            for row in 0..rows {
                let start = canvas * self.canvas_len() + self.tap(row * TILE, 0);
                tiles.extend((0..columns).map(|column| start + self.tap(0, column * TILE)));
            }
        }
        tiles
    }

    /// Copies images to some canvases, `planes` giving the planes of one, with zeros around.
    ///
    /// May write zeros to [`Engine::slack`] floats behind the canvases.
    pub fn stage<'a>(
        &self,
        engine: Engine,
        images: usize,
        planes: impl Fn(usize) -> &'a [f32],
        stage: &mut [f32],
    ) {
        let [height, width] = self.extent;
        let canvases = images.div_ceil(self.canvas.capacity());
        stage[..canvases * self.canvas_len()].fill(0.0);
        // Row by row, because transposing writes a few zeros into what follows.
        for first in (0..images).step_by(self.canvas.grid[1]) {
            let neighbours = first..images.min(first + self.canvas.grid[1]);
            for row in 0..height {
                for image in neighbours.clone() {
                    let [y, x] = self.canvas.corner(image).map(|at| at + self.margin);
                    let at =
                        image / self.canvas.capacity() * self.canvas_len() + self.tap(y + row, x);
                    let source = (&planes(image)[row * width..], height * width);
                    let target = (&mut stage[at..], self.channels);
                    engine.transpose(source, (self.channels, width), target);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Canvas;

    #[test]
    fn four_images_of_13_rows_share_49_tiles() {
        let canvas = Canvas::new([13, 13], [13, 13], 1, 32);
        assert_eq!((canvas.capacity(), canvas.count(), canvas.tiles()), (4, 8, 49));
        let alone = Canvas::new([13, 13], [13, 13], 1, 1);
        assert_eq!((alone.capacity(), alone.count(), alone.tiles()), (1, 1, 16));
    }

    #[test]
    fn the_rows_of_all_images_are_cut_out_of_the_tiles_once() {
        for (source, target, padding) in
            [([13, 9], [13, 9], 1), ([8, 7], [6, 5], 0), ([3, 5], [5, 7], 2)]
        {
            let canvas = Canvas::new(source, target, padding, 11);
            let [rows, columns] = canvas.tile_grid();
            let mut written = vec![0; canvas.count() * canvas.capacity() * target[0] * target[1]];
            for row in 0..canvas.count() * rows {
                for segment in (0..4).flat_map(|y| canvas.segments(row, y, 0..columns)) {
                    let start = segment.image * target[0] * target[1] + segment.place;
                    written[start..][..segment.length].iter_mut().for_each(|times| *times += 1);
                }
            }
            assert!(written.iter().all(|&times| times == 1), "{canvas:?}");
        }
    }
}
