//! Transformed kernels.

use super::super::packing::RowPanels;
use super::super::parallel::Units;
use super::{FAR, NEAR};
use super::{FAR_SCALE, FREQUENCIES, NEAR_SCALE, ZERO_SCALE};

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
    /// Transforms the kernels of one group and packs them: per panel of rows and frequency,
    /// `planes × rows of the panel`.
    pub fn pack(&self, start: usize, row_panels: &RowPanels, planes: usize, packed: &mut [f32]) {
        let units = Units {
            count: row_panels.count(),
            flops_per_unit: (packed.len() / row_panels.count()) as u64 * 4,
            bounds: |panel| row_panels.start(panel) * FREQUENCIES * planes,
        };
        units.run(packed, |panel, packed| {
            let rows = row_panels.range(panel);
            for plane in 0..planes {
                let kernel = start + plane * self.plane_pitch + rows.start * self.row_pitch;
                let frequencies = transformed(&self.taps(kernel, rows.len()));
                let targets = packed[plane * rows.len()..].chunks_mut(planes * rows.len());
                for (target, frequency) in targets.zip(&frequencies) {
                    target[..rows.len()].copy_from_slice(&frequency[..rows.len()]);
                }
            }
        });
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
    let mut columns = [[[0.0; 16]; 3]; 6];
    for column in 0..3 {
        let spread = spread([&taps[column], &taps[3 + column], &taps[6 + column]]);
        for (row, spread) in columns.iter_mut().zip(spread) {
            row[column] = spread;
        }
    }
    let mut frequencies = [[0.0; 16]; FREQUENCIES];
    for (frequencies, row) in frequencies.chunks_exact_mut(6).zip(&columns) {
        frequencies.copy_from_slice(&spread([&row[0], &row[1], &row[2]]));
    }
    frequencies
}

/// `G` applied to three vectors.
fn spread([a, b, c]: [&Lanes; 3]) -> [Lanes; 6] {
    let mut spread = [[0.0; 16], [0.0; 16], [0.0; 16], [0.0; 16], [0.0; 16], *c];
    for lane in 0..16 {
        let (a, b, c) = (a[lane], b[lane], c[lane]);
        let (near, near_odd) = (NEAR_SCALE * (a + NEAR * NEAR * c), NEAR_SCALE * NEAR * b);
        let (far, far_odd) = (FAR_SCALE * (a + FAR * FAR * c), FAR_SCALE * FAR * b);
        spread[0][lane] = ZERO_SCALE * a;
        spread[1][lane] = near + near_odd;
        spread[2][lane] = near - near_odd;
        spread[3][lane] = far + far_odd;
        spread[4][lane] = far - far_odd;
    }
    spread
}
