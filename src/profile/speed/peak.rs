//! The limits of the machine.

use std::collections::BTreeMap;

use super::numbers::made_up;
use super::sample::{Timing, alternate};
use super::{Measurement, Scale, Section, SpeedError, Survey, Unit, on_threads};
use crate::kernels::{Instructions, matrix_product, multiply_add_in_registers};

/// Rounds of the loop in registers, about 20 ms.
const ROUNDS: u64 = 5_000_000;

/// Side of the largest product.
const SIDE: usize = 2048;

/// GFLOP/s that this machine reaches with multiply-adds in registers, by number of threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peaks(BTreeMap<usize, f64>);

impl Peaks {
    /// Measures the peaks of every path of instructions, and the largest matrix product, on every
    /// number of threads of a survey.
    ///
    /// # Errors
    /// [`SpeedError::Pool`] when threads cannot be started.
    pub fn measure(survey: &Survey) -> Result<(Self, Vec<Measurement>), SpeedError> {
        let mut peaks = Peaks::default();
        let mut rows = Vec::new();
        for &threads in &survey.threads {
            let measured = on_threads(threads, || loops(survey, threads))??;
            let highest = measured.iter().map(|row| row.value).fold(0.0, f64::max);
            peaks.0.insert(threads, highest);
            rows.extend(measured);
            rows.push(on_threads(threads, || product(survey, threads))??);
        }
        let held = |row: Measurement| match peaks.of(row.threads) {
            Some(peak) => row.held_against(peak),
            None => row,
        };
        let rows = rows.into_iter().map(held).collect();
        Ok((peaks, rows))
    }

    /// The peak on some threads, where it was measured.
    pub fn of(&self, threads: usize) -> Option<f64> {
        self.0.get(&threads).copied()
    }

    /// A rate in GFLOP/s, held against the peak on as many threads.
    pub(super) fn rate(
        &self,
        section: Section,
        names: [&str; 3],
        threads: usize,
        (timing, flops): (&Timing, f64),
    ) -> Measurement {
        let work = (flops / 1e9, Unit::GigaflopsPerSecond);
        let row = Measurement::rate(section, names, threads, timing, work);
        match self.of(threads) {
            Some(peak) => row.held_against(peak),
            None => row,
        }
    }
}

/// Multiply-adds in registers on all threads of the current pool at once, with every path.
fn loops(survey: &Survey, threads: usize) -> Result<Vec<Measurement>, SpeedError> {
    let rounds = match survey.scale {
        Scale::Full => ROUNDS,
        Scale::Smoke => 100,
    };
    let paths = Instructions::ALL.map(|path| path.is_available().then_some(path));
    let paths: Vec<Instructions> = paths.into_iter().flatten().collect();
    let flops: Result<Vec<u64>, _> =
        paths.iter().map(|path| multiply_add_in_registers(*path, rounds)).collect();
    let flops = flops?;
    let timings = alternate(survey.effort, paths.len(), |path| {
        rayon::broadcast(|_| multiply_add_in_registers(paths[path], rounds).is_ok());
    });
    let row = |(at, timing): (usize, &Timing)| {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ operations")]
        let work = flops[at] as f64 * threads as f64 / 1e9;
        let names = ["multiply-add in registers", &paths[at].to_string(), ""];
        let work = (work, Unit::GigaflopsPerSecond);
        Measurement::rate(Section::Peak, names, threads, timing, work)
    };
    Ok(timings.iter().enumerate().map(row).collect())
}

/// The largest matrix product.
fn product(survey: &Survey, threads: usize) -> Result<Measurement, SpeedError> {
    let side = match survey.scale {
        Scale::Full => SIDE,
        Scale::Smoke => 16,
    };
    let (left, right) = (made_up(side * side, 0), made_up(side * side, 1));
    let mut output = vec![0.0; side * side];
    let mut outcome = Ok(());
    let timings = alternate(survey.effort, 1, |_| {
        let product = matrix_product([side; 3], &left, &right, &mut output);
        outcome = std::mem::replace(&mut outcome, Ok(())).and(product);
    });
    outcome?;
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ operations")]
    let work = 2.0 * (side as f64).powi(3) / 1e9;
    let names = ["matrix product", &format!("{side}x{side}x{side}"), ""];
    let work = (work, Unit::GigaflopsPerSecond);
    Ok(Measurement::rate(Section::Peak, names, threads, &timings[0], work))
}
