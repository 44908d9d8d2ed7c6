//! The seconds of a stage against its size: what was measured, and the affine law through it.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::ProfileError;

/// Probability with which an interval is meant to hold the true value.
const CONFIDENCE: f64 = 0.9;

/// A size whose median lies further from the line than this makes the affine law unfit.
const LARGEST_RESIDUAL: f64 = 0.1;

/// Medians above which a measurement counts as disturbed.
const DISTURBED: f64 = 20.0;

/// Distance of the 10 % and the 90 % quantile of a normal law, in standard deviations.
const DECILE_RANGE: f64 = 2.563_103_131_089_201;

/// A number with a 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// The best single number.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// All measurements of one size, in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Examples of a stage, or gradients behind an update; at least 1.
    pub size: u32,
    /// Seconds of every measurement.
    pub seconds: Vec<f64>,
}

/// How far the line misses the median of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// The size.
    pub size: u32,
    /// Median of its measurements.
    pub measured_s: f64,
    /// measured / fitted − 1.
    pub relative: f64,
}

/// t(n) = fixed + per_size · n, both at least 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffineFit {
    /// Seconds whatever the size.
    pub fixed_s: Estimate,
    /// Seconds for every example, or for every gradient behind an update.
    pub per_size_s: Estimate,
    /// One for every size, ascending.
    pub residuals: Vec<Residual>,
}

/// Where the answer of [`StageProfile::at`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// This very size was measured.
    Measured,
    /// The affine law, between measured sizes.
    Fitted,
    /// A straight line between the two neighbouring sizes, because the affine law does not fit.
    Interpolated,
    /// No size this small or large was measured.
    Extrapolated {
        /// How far beyond the nearest measured size.
        distance: u32,
    },
}

/// Seconds of a stage at one size, and what they rest on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageTime {
    /// Typical seconds with a 90 % interval.
    pub seconds: Estimate,
    /// What they rest on.
    pub basis: Basis,
}

/// Everything known of the duration of one stage.
///
/// Read from a file, everything but the measurements is worked out afresh, so a profile cannot
/// contradict itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredStage")]
pub struct StageProfile {
    /// Standard deviation over mean of repeated measurements, from the deciles of their
    /// logarithms: what a log-normal law with the same middle four fifths has.
    pub coefficient_of_variation: f64,
    /// The affine law; absent where a single size was measured.
    pub fit: Option<AffineFit>,
    /// The measurements, by ascending size.
    pub measured: Vec<Measured>,
}

/// A stage as a file holds it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredStage {
    #[serde(rename = "coefficient_of_variation")]
    _variation: f64,
    #[serde(rename = "fit")]
    _fit: Option<AffineFit>,
    measured: Vec<Measured>,
}

impl TryFrom<StoredStage> for StageProfile {
    type Error = ProfileError;

    fn try_from(stored: StoredStage) -> Result<Self, ProfileError> {
        StageProfile::new(stored.measured)
    }
}

/// The median of a size and how much it counts: measurements over median squared, because
/// measurements scatter in proportion to their median.
#[derive(Clone, Copy, Debug)]
struct Middle {
    size: f64,
    seconds: f64,
    weight: f64,
}

impl Estimate {
    /// A value with a symmetric interval, cut off at 0: no duration is negative.
    fn around(value: f64, half_width: f64) -> Self {
        Estimate { value, low: (value - half_width).max(0.0), high: value + half_width }
    }

    /// The median of some durations.
    ///
    /// The interval is that of Student's t with the normal law's standard error of a median,
    /// √(π/2) σ/√n, and σ from the deciles, so that a few disturbed measurements do no harm.
    ///
    /// # Errors
    /// [`ProfileError::Samples`] for an empty list and for what is no duration above 0.
    pub fn of_median(seconds: &[f64]) -> Result<Self, ProfileError> {
        let measured = vec![Measured { size: 1, seconds: seconds.to_vec() }];
        let stage = StageProfile::new(measured)?;
        Ok(stage.at(1)?.seconds)
    }
}

impl StageProfile {
    /// Sorts measurements by size, joins those of one size and fits the affine law.
    ///
    /// Least squares through the medians of the sizes, weighted with the inverse variances of the
    /// medians. Measurements are taken to scatter in proportion to their median, alike at every
    /// size. Both parameters are kept at or above 0. Intervals are Student's t at 90 %; where the
    /// medians miss the line by more than their scatter explains (χ² per degree of freedom above
    /// 1), they are widened by the square root of that ratio (Birge, Phys. Rev. 40:207, 1932).
    ///
    /// # Errors
    /// [`ProfileError::Samples`] when a size has no measurement or one that is no duration above
    /// 0, and [`ProfileError::NoExamples`] for size 0.
    pub fn new(mut measured: Vec<Measured>) -> Result<Self, ProfileError> {
        measured.sort_by_key(|of_size| of_size.size);
        measured.dedup_by(|later, earlier| {
            let same = later.size == earlier.size;
            if same {
                earlier.seconds.append(&mut later.seconds);
            }
            same
        });
        check(&measured)?;
        let sigma = relative_spread(&measured);
        let fit = (measured.len() > 1).then(|| Line::through(&measured).law(&measured));
        Ok(StageProfile { coefficient_of_variation: lognormal_variation(sigma), fit, measured })
    }

    /// Seconds at a size: the median where it was measured, else the affine law where it fits
    /// within 10 %, else the straight line between neighbours.
    ///
    /// Outside the measured sizes the answer says so. Where the affine law does not fit, it is
    /// then the line through the last two sizes (above), or the smallest size's own time (below).
    ///
    /// # Errors
    /// [`ProfileError::NoExamples`] for size 0, [`ProfileError::SingleSize`] for a size beyond the
    /// only measured one.
    pub fn at(&self, size: u32) -> Result<StageTime, ProfileError> {
        if size == 0 {
            return Err(ProfileError::NoExamples);
        }
        let place = self.measured.partition_point(|of_size| of_size.size < size);
        if let Some(same) = self.measured.get(place).filter(|of_size| of_size.size == size) {
            return Ok(StageTime { seconds: self.middle(same), basis: Basis::Measured });
        }
        let last = self.measured.len() - 1;
        let (smallest, largest) = (self.measured[0].size, self.measured[last].size);
        let Some(fit) = &self.fit else {
            return Err(ProfileError::SingleSize { measured: smallest, wanted: size });
        };
        let (seconds, inside) = if fit.holds() {
            (Line::through(&self.measured).at(size), Basis::Fitted)
        } else {
            let right = place.clamp(1, last);
            let (from, to) = (&self.measured[right - 1], &self.measured[right]);
            (self.between(from, to, size), Basis::Interpolated)
        };
        let distance = size.abs_diff(size.clamp(smallest, largest));
        let basis = if distance > 0 { Basis::Extrapolated { distance } } else { inside };
        Ok(StageTime { seconds, basis })
    }

    /// Mean seconds at a size: what a run's times add up from.
    ///
    /// Where the size was measured, the mean of the measurements up to twenty times their median;
    /// beyond, another program must have been in the way. Else the typical time, stretched by what
    /// all measurements have as mean over median.
    ///
    /// # Errors
    /// Those of [`StageProfile::at`].
    pub fn mean_at(&self, size: u32) -> Result<f64, ProfileError> {
        let ratios = self.undisturbed(&[size]);
        let stretch = ratios.iter().sum::<f64>() / count(ratios.len());
        Ok(self.at(size)?.seconds.value * stretch)
    }

    /// Measurements of some sizes, or of all where none of them was measured, each divided by the
    /// median of its size; without those above twenty medians.
    pub fn undisturbed(&self, sizes: &[u32]) -> Vec<f64> {
        let wanted = |of_size: &&Measured| sizes.contains(&of_size.size);
        let some: Vec<&Measured> = self.measured.iter().filter(wanted).collect();
        let chosen = if some.is_empty() { self.measured.iter().collect() } else { some };
        let ratios = chosen.into_iter().flat_map(ratios);
        ratios.filter(|ratio| *ratio <= DISTURBED).collect()
    }

    fn middle(&self, of_size: &Measured) -> Estimate {
        let middle = median(&of_size.seconds);
        let variance = unit_variance(&self.measured) / Middle::of(of_size).weight;
        Estimate::around(middle, student(degrees(&self.measured)) * variance.sqrt())
    }

    /// The line through two neighbours; it never falls beyond them.
    fn between(&self, from: &Measured, to: &Measured, size: u32) -> Estimate {
        let part = (f64::from(size) - f64::from(from.size)) / f64::from(to.size - from.size);
        let (from, to) = (self.middle(from), self.middle(to));
        let along = |part_of: fn(&Estimate) -> f64| {
            let (start, end) = (part_of(&from), part_of(&to));
            match part {
                _ if part < 0.0 => start,
                _ if part > 1.0 => end + (part - 1.0) * (end - start).max(0.0),
                _ => start + part * (end - start),
            }
        };
        Estimate { value: along(|e| e.value), low: along(|e| e.low), high: along(|e| e.high) }
    }
}

impl AffineFit {
    /// Whether the law meets the median of every size within 10 %.
    pub fn holds(&self) -> bool {
        self.worst_residual() <= LARGEST_RESIDUAL
    }

    /// The largest relative residual, without its sign.
    pub fn worst_residual(&self) -> f64 {
        self.residuals.iter().map(|residual| residual.relative.abs()).fold(0.0, f64::max)
    }
}

/// The line of weighted least squares, with what its intervals need.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Both parameters before they were kept at or above 0.
    free: [f64; 2],
    /// Both parameters.
    kept: [f64; 2],
    /// Variances of both parameters and their covariance, for measurements of unit variance.
    covariance: [f64; 3],
    /// Variance of a median of weight 1, times the square of the quantile of Student's t.
    reach: f64,
}

impl Line {
    fn through(measured: &[Measured]) -> Self {
        let middles: Vec<Middle> = measured.iter().map(Middle::of).collect();
        let sum = |term: fn(&Middle) -> f64| middles.iter().map(|m| m.weight * term(m)).sum();
        let (s0, s1, s2): (f64, f64, f64) =
            (sum(|_| 1.0), sum(|m| m.size), sum(|m| m.size * m.size));
        let (t0, t1): (f64, f64) = (sum(|m| m.seconds), sum(|m| m.size * m.seconds));
        let determinant = s0 * s2 - s1 * s1;
        let free = [(s2 * t0 - s1 * t1) / determinant, (s0 * t1 - s1 * t0) / determinant];
        let kept = match free {
            [fixed, _] if fixed < 0.0 => [0.0, t1 / s2],
            [_, slope] if slope < 0.0 => [t0 / s0, 0.0],
            both => both,
        };
        let misses = middles.iter().map(|m| (m, m.seconds - kept[0] - kept[1] * m.size));
        let chi_squared: f64 = misses.map(|(m, miss)| m.weight * miss * miss).sum();
        let unexplained = chi_squared / count(middles.len().saturating_sub(2).max(1));
        let quantile = student(degrees(measured));
        Line {
            free,
            kept,
            covariance: [s2 / determinant, s0 / determinant, -s1 / determinant],
            reach: quantile * quantile * unit_variance(measured).max(unexplained),
        }
    }

    fn at(&self, size: u32) -> Estimate {
        let n = f64::from(size);
        let [fixed, slope, both] = self.covariance;
        let variance = fixed + 2.0 * both * n + slope * n * n;
        let value = self.kept[0] + self.kept[1] * n;
        Estimate::around(value, (self.reach * variance.max(0.0)).sqrt())
    }

    fn law(&self, measured: &[Measured]) -> AffineFit {
        let parameter = |index: usize| {
            let half_width = (self.reach * self.covariance[index]).sqrt();
            let (free, kept) = (self.free[index], self.kept[index]);
            let low = (free - half_width).max(0.0).min(kept);
            Estimate { value: kept, low, high: (free + half_width).max(kept) }
        };
        let residual = |of_size: &Measured| {
            let measured_s = median(&of_size.seconds);
            let fitted_s = self.kept[0] + self.kept[1] * f64::from(of_size.size);
            Residual { size: of_size.size, measured_s, relative: measured_s / fitted_s - 1.0 }
        };
        AffineFit {
            fixed_s: parameter(0),
            per_size_s: parameter(1),
            residuals: measured.iter().map(residual).collect(),
        }
    }
}

impl Middle {
    fn of(measured: &Measured) -> Self {
        let seconds = median(&measured.seconds);
        let weight = count(measured.seconds.len()) / (seconds * seconds);
        Middle { size: f64::from(measured.size), seconds, weight }
    }
}

fn check(measured: &[Measured]) -> Result<(), ProfileError> {
    if measured.is_empty() {
        return Err(ProfileError::Samples { size: 0, found: "no measurement".to_owned() });
    }
    for Measured { size, seconds } in measured {
        if *size == 0 {
            return Err(ProfileError::NoExamples);
        }
        let bad = seconds.iter().find(|s| !(s.is_finite() && **s > 0.0));
        let found = match bad {
            Some(value) => format!("{value} s"),
            None if seconds.is_empty() => "no measurement".to_owned(),
            None => continue,
        };
        return Err(ProfileError::Samples { size: *size, found });
    }
    Ok(())
}

/// Value below which a share of sorted numbers lies, linear between order statistics.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index of a list in memory, never negative"
)]
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (place - place.floor()) * (sorted[above] - sorted[below])
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// The middle of a list that is not empty.
fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// Measurements of a size over their median.
fn ratios(of_size: &Measured) -> impl Iterator<Item = f64> {
    let middle = median(&of_size.seconds);
    of_size.seconds.iter().map(move |seconds| seconds / middle)
}

/// Coefficient of variation of ratios to so many medians, as [`StageProfile`] has it.
pub(super) fn variation(ratios: &[f64], medians: usize) -> f64 {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    lognormal_variation(spread(&logs, medians))
}

/// √(exp(σ²) − 1)
fn lognormal_variation(sigma: f64) -> f64 {
    (sigma * sigma).exp_m1().sqrt()
}

/// Standard deviation of the logarithms of the measurements about their sizes' medians, from the
/// deciles.
fn relative_spread(measured: &[Measured]) -> f64 {
    let logs: Vec<f64> = measured.iter().flat_map(ratios).map(f64::ln).collect();
    spread(&logs, measured.len())
}

/// Standard deviation from the deciles, for numbers about so many medians of their own.
fn spread(logs: &[f64], medians: usize) -> f64 {
    let logs = sorted(logs);
    // Medians follow their own measurements, which takes one degree of freedom of each size.
    let (n, used) = (count(logs.len()), count(medians));
    let correction = if n > used { (n / (n - used)).sqrt() } else { 1.0 };
    correction * (quantile(&logs, 0.9) - quantile(&logs, 0.1)) / DECILE_RANGE
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ measurements")]
fn count(n: usize) -> f64 {
    n as f64
}

fn degrees(measured: &[Measured]) -> usize {
    measured.iter().map(|of_size| of_size.seconds.len() - 1).sum()
}

/// Variance of a median of weight 1: that of a normal law's median, π/2 · σ²/n.
fn unit_variance(measured: &[Measured]) -> f64 {
    std::f64::consts::FRAC_PI_2 * relative_spread(measured).powi(2)
}

/// The factor on a standard error that gives the interval. With no degree of freedom left there
/// is none, and the standard error itself has to do.
fn student(degrees: usize) -> f64 {
    StudentsT::new(0.0, 1.0, count(degrees))
        .map_or(1.0, |law| law.inverse_cdf((1.0 + CONFIDENCE) / 2.0))
}
