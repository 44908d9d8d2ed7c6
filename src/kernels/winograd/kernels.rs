//! Transformed kernels.

use super::super::packing::RowPanels;
use super::FREQUENCIES;

/// The kernels of all groups: that of an output row and a source plane is at
/// `row·row_pitch + plane·plane_pitch`, its taps in the order `taps`.
pub(super) struct Kernels<'a> {
    pub values: &'a [f32],
    pub row_pitch: usize,
    pub plane_pitch: usize,
    pub taps: [usize; 9],
}

/// One number for each row of a panel; panels have fewer rows than this.
type Lanes = [f32; 16];

impl Kernels<'_> {
    /// Transforms the kernels of one group and packs them: per frequency and block of planes, the
    /// panels of rows.
    pub fn pack(
        &self,
        start: usize,
        row_panels: &RowPanels,
        (rows, planes, block): (usize, usize, usize),
        packed: &mut [f32],
    ) {
        let frequency_len = rows * planes;
        let mut place = 0;
        for block_start in (0..planes).step_by(block) {
            let block = block_start..planes.min(block_start + block);
            for rows in (0..row_panels.count()).map(|panel| row_panels.range(panel)) {
                for plane in block.clone() {
                    let kernel = start + plane * self.plane_pitch + rows.start * self.row_pitch;
                    let frequencies = transformed(&self.taps(kernel, rows.len()));
                    let targets = packed[place..].chunks_mut(frequency_len);
                    for (target, frequency) in targets.zip(&frequencies) {
                        target[..rows.len()].copy_from_slice(&frequency[..rows.len()]);
                    }
                    place += rows.len();
                }
            }
        }
    }

    /// The taps of the kernels of some rows, the first of which is at `start`.
    fn taps(&self, start: usize, rows: usize) -> [Lanes; 9] {
        let mut taps = [[0.0; 16]; 9];
        for row in 0..rows.min(16) {
            let kernel = &self.values[start + row * self.row_pitch..][..9];
            for (tap, &place) in taps.iter_mut().zip(&self.taps) {
                tap[row] = kernel[place];
            }
        }
        taps
    }
}

/// `G·g·Gᵀ`.
fn transformed(taps: &[Lanes; 9]) -> [Lanes; FREQUENCIES] {
    let mut columns = [[[0.0; 16]; 3]; 4];
    for column in 0..3 {
        let spread = spread([&taps[column], &taps[3 + column], &taps[6 + column]]);
        for (row, spread) in columns.iter_mut().zip(spread) {
            row[column] = spread;
        }
    }
    let mut frequencies = [[0.0; 16]; FREQUENCIES];
    for (frequencies, row) in frequencies.chunks_exact_mut(4).zip(&columns) {
        frequencies.copy_from_slice(&spread([&row[0], &row[1], &row[2]]));
    }
    frequencies
}

/// `G` applied to three vectors.
fn spread([a, b, c]: [&Lanes; 3]) -> [Lanes; 4] {
    let mut spread = [*a, [0.0; 16], [0.0; 16], *c];
    for lane in 0..16 {
        let (outer, inner) = (0.5 * (a[lane] + c[lane]), 0.5 * b[lane]);
        spread[1][lane] = outer + inner;
        spread[2][lane] = outer - inner;
    }
    spread
}
