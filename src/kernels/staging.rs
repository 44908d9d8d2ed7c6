//! Padded copies of one image, laid out so that a convolution window reads consecutive floats.
//!
//! A *planar* stage keeps rows of pixels together; where the stride `s` exceeds 1, column `x` goes
//! to place `x / s` of phase `x mod s`, so that the pixels which one kernel tap meets on its way
//! along a row are neighbours. An *interleaved* stage keeps the channels of a pixel together, so
//! that the taps of a kernel row are neighbours.

use super::microkernel::Engine;
use super::shape::ConvolutionShape;

/// How a kernel window slides over planes of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Extent of a source plane.
    pub height: usize,
    pub width: usize,
    pub kernel_height: usize,
    pub kernel_width: usize,
    /// Rows of the plane from one row of the kernel to the next.
    pub kernel_step: usize,
    pub stride: usize,
    /// Zeros above and to the left of a plane; those behind follow from the positions.
    pub padding_height: usize,
    pub padding_width: usize,
    /// Positions of the window.
    pub rows: usize,
    pub columns: usize,
}

impl Window {
    /// Rows of the padded plane that some window touches.
    fn staged_rows(&self) -> usize {
        (self.rows - 1) * self.stride + (self.kernel_height - 1) * self.kernel_step + 1
    }

    /// Columns of the padded plane that some window touches.
    fn staged_columns(&self) -> usize {
        (self.columns - 1) * self.stride + self.kernel_width
    }

    pub fn positions(&self) -> usize {
        self.rows * self.columns
    }

    pub fn taps(&self) -> usize {
        self.kernel_height * self.kernel_width
    }

    /// Row of the source plane under row `y` of the padded plane.
    fn source_row(&self, y: usize) -> Option<usize> {
        y.checked_sub(self.padding_height).filter(|&row| row < self.height)
    }
}

impl ConvolutionShape {
    /// The window of the forward pass.
    pub(super) fn window(&self) -> Window {
        let sizes = self.sizes();
        Window {
            height: sizes.height,
            width: sizes.width,
            kernel_height: sizes.kernel_height,
            kernel_width: sizes.kernel_width,
            kernel_step: 1,
            stride: sizes.stride,
            padding_height: sizes.padding,
            padding_width: sizes.padding,
            rows: self.output_height(),
            columns: self.output_width(),
        }
    }

    /// The window that gathers the data gradient from the output gradient, if stride 1 allows one.
    pub(super) fn flipped_window(&self) -> Option<Window> {
        let sizes = self.sizes();
        let window = Window {
            height: self.output_height(),
            width: self.output_width(),
            stride: 1,
            padding_height: (sizes.kernel_height - 1).checked_sub(sizes.padding)?,
            padding_width: (sizes.kernel_width - 1).checked_sub(sizes.padding)?,
            rows: sizes.height,
            columns: sizes.width,
            ..self.window()
        };
        (sizes.stride == 1).then_some(window)
    }
}

/// Planar layout; see the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planar {
    window: Window,
    phase_pitch: usize,
}

impl Planar {
    pub fn new(window: Window) -> Self {
        Self { window, phase_pitch: window.staged_columns().div_ceil(window.stride) }
    }

    fn row_pitch(&self) -> usize {
        self.phase_pitch * self.window.stride
    }

    pub fn plane_len(&self) -> usize {
        self.window.staged_rows() * self.row_pitch()
    }

    /// Where the first position's window finds its tap (`y`, `x`) of plane `plane`.
    pub fn tap(&self, plane: usize, y: usize, x: usize) -> usize {
        let stride = self.window.stride;
        let column = (x % stride) * self.phase_pitch + x / stride;
        plane * self.plane_len() + y * self.window.kernel_step * self.row_pitch() + column
    }

    /// Offsets of all taps of `planes` planes, in the order of the weights.
    pub fn taps(&self, planes: usize) -> Vec<usize> {
        let (height, width) = (self.window.kernel_height, self.window.kernel_width);
        let mut taps = Vec::with_capacity(planes * height * width);
        for plane in 0..planes {
            for y in 0..height {
                taps.extend((0..width).map(|x| self.tap(plane, y, x)));
            }
        }
        taps
    }

    /// How far the window's position (`row`, `column`) lies from the first one.
    pub fn position(&self, row: usize, column: usize) -> usize {
        row * self.window.stride * self.row_pitch() + column
    }

    /// Copies planes of pixels to `stage` and surrounds them with zeros.
    ///
    /// May write zeros to [`Engine::slack`] floats behind the planes.
    pub fn stage(&self, engine: Engine, planes: &[f32], stage: &mut [f32]) {
        let window = &self.window;
        if self.has_margins() {
            stage.fill(0.0);
        }
        let plane_len = window.height * window.width;
        let rows = window.staged_rows().saturating_sub(window.padding_height).min(window.height);
        for (plane, source) in planes.chunks_exact(plane_len).enumerate() {
            let start = plane * self.plane_len() + window.padding_height * self.row_pitch();
            if rows > 0 && !self.stage_phases(engine, source, &mut stage[start..], rows) {
                for (row, source) in source.chunks_exact(window.width).take(rows).enumerate() {
                    self.stage_row(engine, source, &mut stage[start + row * self.row_pitch()..]);
                }
            }
        }
    }

    /// Copies the rows of a plane phase by phase, for strides whose steps the engine knows.
    fn stage_phases(
        &self,
        engine: Engine,
        source: &[f32],
        target: &mut [f32],
        rows: usize,
    ) -> bool {
        (0..self.window.stride).all(|phase| {
            let (first, count, start) = self.phase(phase);
            let target = &mut target[phase * self.phase_pitch + first..];
            let (source, target) = (&source[start.min(source.len())..], (target, self.row_pitch()));
            let extent = (rows, count);
            engine.copy_rows((source, self.window.width), target, extent, self.window.stride)
        })
    }

    /// Whether the stage has places without a pixel.
    fn has_margins(&self) -> bool {
        let window = &self.window;
        let padded = window.padding_height > 0 || window.padding_width > 0;
        let short = window.height < window.staged_rows() || window.width < window.staged_columns();
        padded || short || window.stride > 1
    }

    fn stage_row(&self, engine: Engine, source: &[f32], target: &mut [f32]) {
        let (stride, padding) = (self.window.stride, self.window.padding_width);
        // From the first pixel of phase 0 on, the row is a matrix with a column per phase.
        let head = (padding.next_multiple_of(stride) - padding).min(source.len());
        let place = (padding + head) / stride;
        let rows = ((source.len() - head) / stride).min(self.phase_pitch.saturating_sub(place));
        if rows > 0 {
            let matrix = (&source[head..], stride);
            let phases = (&mut target[place..], self.phase_pitch);
            engine.transpose(matrix, (rows, stride), phases);
        }
        let rest = head + rows * stride..source.len();
        for x in (0..head).chain(rest) {
            let (phase, place) = ((padding + x) % stride, (padding + x) / stride);
            if place < self.phase_pitch {
                target[phase * self.phase_pitch + place] = source[x];
            }
        }
    }

    /// Which places of a phase hold pixels: the first, how many, and the first's source column.
    fn phase(&self, phase: usize) -> (usize, usize, usize) {
        let (stride, padding) = (self.window.stride, self.window.padding_width);
        let first = padding.saturating_sub(phase).div_ceil(stride).min(self.phase_pitch);
        let start = (first * stride + phase).saturating_sub(padding);
        let pixels = self.window.width.saturating_sub(start).div_ceil(stride);
        (first, pixels.min(self.phase_pitch - first), start)
    }

    /// The reverse of [`Planar::stage`]: pixels that no window touched become 0.
    pub fn unstage(&self, stage: &[f32], planes: &mut [f32]) {
        let window = &self.window;
        let targets = planes.chunks_exact_mut(window.height * window.width);
        for (target, staged) in targets.zip(stage.chunks_exact(self.plane_len())) {
            target.fill(0.0);
            for (y, row) in staged.chunks_exact(self.row_pitch()).enumerate() {
                if let Some(at) = window.source_row(y) {
                    self.unstage_row(row, &mut target[at * window.width..][..window.width]);
                }
            }
        }
    }

    fn unstage_row(&self, staged: &[f32], target: &mut [f32]) {
        for (phase, places) in staged.chunks_exact(self.phase_pitch).enumerate() {
            let (first, places_used, start) = self.phase(phase);
            let used = &places[first..][..places_used];
            if self.window.stride == 1 {
                target[start..][..places_used].copy_from_slice(used);
            } else {
                let start = start.min(target.len());
                let picked = target[start..].iter_mut().step_by(self.window.stride);
                for (pixel, &place) in picked.zip(used) {
                    *pixel = place;
                }
            }
        }
    }
}

/// Interleaved layout of `channels` planes; see the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interleaved {
    window: Window,
    channels: usize,
}

impl Interleaved {
    pub fn new(window: Window, channels: usize) -> Self {
        Self { window, channels }
    }

    fn row_pitch(&self) -> usize {
        self.window.staged_columns() * self.channels
    }

    pub fn image_len(&self) -> usize {
        self.window.staged_rows() * self.row_pitch()
    }

    /// Consecutive floats that one kernel row covers: its taps times the channels.
    pub fn kernel_row_len(&self) -> usize {
        self.window.kernel_width * self.channels
    }

    /// Where float `at` of kernel row `y` lies at the window's first position.
    pub fn tap(&self, y: usize, at: usize) -> usize {
        y * self.row_pitch() + at
    }

    /// How far the window's positions of `images` staged images lie from the very first one.
    pub fn positions(&self, images: usize) -> Vec<usize> {
        let (window, stride) = (&self.window, self.window.stride);
        let mut positions = Vec::with_capacity(images * window.positions());
        for image in 0..images {
            for row in 0..window.rows {
                let start = image * self.image_len() + row * stride * self.row_pitch();
                let step = stride * self.channels;
                positions.extend((0..window.columns).map(|column| start + column * step));
            }
        }
        positions
    }

    /// Copies the planes of one image to `stage`, channels innermost, zeros around.
    ///
    /// May write zeros to [`Engine::slack`] floats behind the image.
    pub fn stage(&self, engine: Engine, planes: &[f32], stage: &mut [f32]) {
        let window = &self.window;
        let plane_len = window.height * window.width;
        let first = window.padding_width.min(window.staged_columns());
        let used = window.width.min(window.staged_columns() - first);
        let padded = window.padding_height > 0 || window.padding_width > 0;
        if padded || window.height < window.staged_rows() || used < window.staged_columns() {
            stage[..self.image_len()].fill(0.0);
        }
        for row in window.padding_height..window.staged_rows() {
            let Some(source_row) = window.source_row(row) else { break };
            let source = (&planes[source_row * window.width..], plane_len);
            let start = row * self.row_pitch() + first * self.channels;
            let target = (&mut stage[start..], self.channels);
            engine.transpose(source, (self.channels, used), target);
        }
    }
}
