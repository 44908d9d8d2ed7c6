//! The limits of the machine.

use std::collections::BTreeMap;

use super::numbers::made_up;
use super::sample::{Timing, alternate};
use super::{Measurement, Scale, Section, SpeedError, Survey, Unit, on_threads};
use crate::kernels::{
    Instructions, KernelError, Lowering, MixedPath, bf16_products_in_registers, matrix_product,
    multiply_add_in_registers,
};

/// Rounds of the loop in registers, about 20 ms.
const ROUNDS: u64 = 5_000_000;

/// Side of the largest product.
const SIDE: usize = 2048;

/// GFLOP/s that this machine reaches with multiply-adds in registers, by number of threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peaks {
    single: BTreeMap<usize, f64>,
    mixed: BTreeMap<usize, f64>,
}

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
            let mut measured = on_threads(threads, || loops(survey, threads))??;
            let mixed = match MixedPath::detect() {
                Some(_) => measured.pop(),
                None => None,
            };
            peaks.mixed.extend(mixed.iter().map(|row| (threads, row.value)));
            let highest = measured.iter().map(|row| row.value).fold(0.0, f64::max);
            peaks.single.insert(threads, highest);
            measured.push(on_threads(threads, || product(survey, threads))??);
            rows.extend(measured.into_iter().map(|row| peaks.held(row, Lowering::default())));
            let held = |row| {
                peaks.held(row, MixedPath::detect().map_or(Lowering::default(), Lowering::Mixed))
            };
            rows.extend(mixed.map(held));
        }
        Ok((peaks, rows))
    }

    /// A rate held against the peak of its arithmetic on as many threads, where it was measured.
    fn held(&self, row: Measurement, lowering: Lowering) -> Measurement {
        let peaks = match lowering {
            Lowering::Mixed(_) => &self.mixed,
            _ => &self.single,
        };
        match peaks.get(&row.threads) {
            Some(peak) => row.held_against(*peak),
            None => row,
        }
    }

    /// The peak of `f32` on some threads, where it was measured.
    pub fn of(&self, threads: usize) -> Option<f64> {
        self.single.get(&threads).copied()
    }

    /// A rate in GFLOP/s, held against the peak of `f32` on as many threads.
    pub(super) fn rate(
        &self,
        section: Section,
        names: [&str; 3],
        threads: usize,
        work: (&Timing, f64),
    ) -> Measurement {
        self.rate_of(section, names, threads, work, Lowering::default())
    }

    /// The same against the peak of the arithmetic of a lowering.
    pub(super) fn rate_of(
        &self,
        section: Section,
        names: [&str; 3],
        threads: usize,
        (timing, flops): (&Timing, f64),
        lowering: Lowering,
    ) -> Measurement {
        let work = (flops / 1e9, Unit::GigaflopsPerSecond);
        self.held(Measurement::rate(section, names, threads, timing, work), lowering)
    }
}

/// A loop of multiply-adds in registers: how many operations some rounds are.
type Loop = Box<dyn Fn(u64) -> Result<u64, KernelError> + Sync>;

/// Every path of `f32`, and behind them the best of bf16, if there is one.
fn paths() -> Vec<(String, Loop)> {
    let single = Instructions::ALL.into_iter().filter(|path| path.is_available()).map(|path| {
        let run = move |rounds| multiply_add_in_registers(path, rounds);
        (path.to_string(), Box::new(run) as Loop)
    });
    let mixed = MixedPath::detect().into_iter().map(|path| {
        let run = move |rounds| bf16_products_in_registers(path, rounds);
        (path.to_string(), Box::new(run) as Loop)
    });
    single.chain(mixed).collect()
}

/// Multiply-adds in registers on all threads of the current pool at once, with every path.
fn loops(survey: &Survey, threads: usize) -> Result<Vec<Measurement>, SpeedError> {
    let rounds = match survey.scale {
        Scale::Full => ROUNDS,
        Scale::Smoke => 100,
    };
    let paths = paths();
    let flops: Result<Vec<u64>, KernelError> = paths.iter().map(|(_, run)| run(rounds)).collect();
    let flops = flops?;
    let timings = alternate(survey.effort, paths.len(), |path| {
        rayon::broadcast(|_| (paths[path].1)(rounds).is_ok());
    });
    let row = |(at, timing): (usize, &Timing)| {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ operations")]
        let work = flops[at] as f64 * threads as f64 / 1e9;
        let names = ["multiply-add in registers", paths[at].0.as_str(), ""];
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
