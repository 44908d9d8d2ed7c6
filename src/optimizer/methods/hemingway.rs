//! Hemingway with Ernest: models of convergence and of time, fitted to measured runs of a few
//! numbers of groups, choose the number of groups.
//!
//! Momentum and learning rate are not theirs to choose: the momentum is the customary one, the
//! learning rate the best of short runs of the fewest groups.

use super::linear::{dot, least_squares};
use super::{Choice, Space};
use crate::optimizer::study::{Pause, Proposal, Replay, Searcher, Trial, Until, best_time_s};

/// Numbers of groups at which the first models are fitted.
const FIRST_GROUPS: usize = 4;

/// Part of a run's updates that a run made for a fit is given.
const FITTED_PART: u64 = 2;

/// Part of a run's updates after which learning rates are compared.
const RATE_PART: u64 = 4;

/// Weight of the ridge that keeps the convergence model determinate, in units of the mean square
/// of each feature.
const RIDGE: f64 = 1e-3;

/// t(m) = c₀ + c₁·size/m + c₂·ln m + c₃·m with no coefficient below 0: fixed costs, work that is
/// shared out, a tree of messages, and costs of each machine.
///
/// Source: Venkataraman et al., Ernest (NSDI 2016), section 3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ernest {
    /// c₀ … c₃, in seconds; c₁ in seconds per unit of size.
    pub coefficients: [f64; 4],
}

impl Ernest {
    /// The coefficients of least squared error among those of at least 0, from times (m, size, t).
    ///
    /// With four coefficients, every set of those that are not 0 can be tried: the best of the
    /// sixteen that is not negative is the exact solution. `None` without times.
    pub fn fit(times: &[(f64, f64, f64)]) -> Option<Self> {
        let rows: Vec<[f64; 4]> =
            times.iter().map(|(m, size, _)| Self::features(*m, *size)).collect();
        let values: Vec<f64> = times.iter().map(|(_, _, t)| *t).collect();
        if values.is_empty() {
            return None;
        }
        let error = |c: &[f64; 4]| -> f64 {
            let predicted = rows.iter().map(|row| dot(row, c));
            predicted.zip(&values).map(|(p, t)| (p - t).powi(2)).sum()
        };
        let mut best = ([0.0; 4], error(&[0.0; 4]));
        for set in 1_usize..16 {
            let members: Vec<usize> = (0..4).filter(|i| (set >> i) & 1 == 1).collect();
            let Some(found) = fit_members(&rows, &values, &members) else { continue };
            let squared = error(&found);
            if found.iter().all(|c| *c >= 0.0) && squared < best.1 {
                best = (found, squared);
            }
        }
        Some(Ernest { coefficients: best.0 })
    }

    /// The time at m machines.
    pub fn time_s(&self, m: f64, size: f64) -> f64 {
        dot(&Self::features(m, size), &self.coefficients)
    }

    fn features(m: f64, size: f64) -> [f64; 4] {
        [1.0, size / m, m.ln(), m]
    }
}

/// Coefficients of the features in `members`; the others are 0.
fn fit_members(rows: &[[f64; 4]], values: &[f64], members: &[usize]) -> Option<[f64; 4]> {
    if rows.len() < members.len() {
        return None;
    }
    let chosen: Vec<Vec<f64>> =
        rows.iter().map(|row| members.iter().map(|member| row[*member]).collect()).collect();
    let solved = least_squares(&chosen, values, &vec![0.0; members.len()])?;
    let mut found = [0.0; 4];
    members.iter().zip(solved).for_each(|(member, value)| found[*member] = value);
    Some(found)
}

/// ln loss as a linear function of features of the iteration i and the number m of groups,
///
/// 1, ln(1 + i), √i, i/m, ln(1 + i)/m, ln m,
///
/// by ridge regression. Holds between the runs it was fitted to; beyond, it is a guess.
///
/// Source: Pan et al., Hemingway (arXiv:1702.05865), section 3.2; its features are of the
/// iteration, of its roots and logarithms, and of these over m.
#[derive(Clone, Debug, PartialEq)]
pub struct Convergence {
    coefficients: Vec<f64>,
}

impl Convergence {
    /// The model of points (i, m, loss); `None` with fewer points than features.
    pub fn fit(points: &[(f64, f64, f64)]) -> Option<Self> {
        let usable: Vec<&(f64, f64, f64)> =
            points.iter().filter(|(_, _, loss)| loss.is_finite() && *loss > 0.0).collect();
        let rows: Vec<[f64; 6]> = usable.iter().map(|(i, m, _)| Self::features(*i, *m)).collect();
        let n = rows.len();
        if n < 6 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a few hundred points")]
        let mean_square = |j: usize| rows.iter().map(|row| row[j].powi(2)).sum::<f64>() / n as f64;
        let scales: Vec<f64> = (0..6).map(|j| mean_square(j).sqrt().max(1e-12)).collect();
        let scaled: Vec<Vec<f64>> = rows
            .iter()
            .map(|row| row.iter().zip(&scales).map(|(feature, scale)| feature / scale).collect())
            .collect();
        let values: Vec<f64> = usable.iter().map(|(_, _, loss)| loss.ln()).collect();
        #[expect(clippy::cast_precision_loss, reason = "a few hundred points")]
        let ridge = [RIDGE * n as f64; 6];
        let solved = least_squares(&scaled, &values, &ridge)?;
        let coefficients = solved.iter().zip(&scales).map(|(c, scale)| c / scale).collect();
        Some(Convergence { coefficients })
    }

    fn features(i: f64, m: f64) -> [f64; 6] {
        let ln = (1.0 + i).ln();
        [1.0, ln, i.sqrt(), i / m, ln / m, m.ln()]
    }

    /// The loss after i iterations with m groups.
    pub fn loss(&self, i: f64, m: f64) -> f64 {
        let features = Self::features(i, m);
        features.iter().zip(&self.coefficients).map(|(f, c)| f * c).sum::<f64>().exp()
    }

    /// The first iteration, of those up to `most`, at which the loss is at most `level`.
    #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
    pub fn reaches(&self, level: f64, m: f64, most: u64) -> Option<u64> {
        (0..=most).find(|i| self.loss(*i as f64, m) <= level)
    }
}

/// Hemingway's search for the number of groups.
#[derive(Clone, Debug)]
pub struct Hemingway {
    /// What there is.
    pub space: Space,
    /// What the target's own quantity must fall to.
    pub level: f64,
}

impl Searcher for Hemingway {
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let groups = self.space.groups();
        let rate = self.learning_rate(groups[0], replay)?;
        let mut observed: Vec<Trial> = Vec::new();
        for part in spread(&groups, FIRST_GROUPS).chunks(self.space.round) {
            let of = |g: &u32| Proposal {
                updates: (self.space.updates / FITTED_PART).max(1),
                ..Proposal::to_target(self.choice(*g, rate), self.space.updates, "hemingway: fit")
            };
            observed.extend_from_slice(replay.round(part.iter().map(of).collect())?);
        }
        // What the models prefer is run; each run sharpens the models.
        let mut run: Vec<u32> = Vec::new();
        while let Some(next) = self.preferred(&groups, &run, &observed) {
            let proposal = Proposal::to_target(
                self.choice(next, rate),
                self.space.updates,
                "hemingway: preferred",
            );
            let trial = replay.trial(proposal.racing(best_time_s(replay.so_far())))?;
            observed.push(trial.clone());
            run.push(next);
        }
        Ok(())
    }
}

impl Hemingway {
    fn choice(&self, groups: u32, rate: f64) -> Choice {
        self.space.choice(groups, self.space.baseline_momentum, rate)
    }

    /// The learning rate of the lowest tail after short runs.
    fn learning_rate(&self, groups: u32, replay: &mut Replay<'_>) -> Result<f64, Pause> {
        let rates = self.space.learning_rates();
        let mut best = (f64::INFINITY, rates[0]);
        for part in rates.chunks(self.space.round) {
            let of = |rate: &f64| Proposal {
                updates: (self.space.updates / RATE_PART).max(1),
                until: Until::Updates,
                ..Proposal::to_target(self.choice(groups, *rate), 0, "hemingway: learning rate")
            };
            for trial in replay.round(part.iter().map(of).collect())? {
                let tail = trial.finding.tail.filter(|_| !trial.is_divergent());
                let tail = tail.unwrap_or(f64::INFINITY);
                if tail < best.0 {
                    best = (tail, trial.proposal.choice.learning_rate);
                }
            }
        }
        Ok(best.1)
    }

    /// The number of groups of the least predicted time to the target that has not been run to it.
    fn preferred(&self, groups: &[u32], run: &[u32], observed: &[Trial]) -> Option<u32> {
        let m = |trial: &Trial| f64::from(trial.proposal.choice.groups);
        let times: Vec<(f64, f64, f64)> = observed
            .iter()
            .filter_map(|trial| Some((m(trial), 1.0, trial.finding.time_per_update_s?)))
            .collect();
        let points: Vec<(f64, f64, f64)> = observed
            .iter()
            .flat_map(|t| t.finding.sketch.iter().map(move |(i, loss)| (*i, m(t), *loss)))
            .collect();
        let left = groups.iter().filter(|g| !run.contains(g));
        let (ernest, convergence) = (Ernest::fit(&times)?, Convergence::fit(&points)?);
        let time = |g: u32| {
            let m = f64::from(g);
            let updates = convergence.reaches(self.level, m, 2 * self.space.updates)?;
            #[expect(clippy::cast_precision_loss, reason = "runs have few updates")]
            Some(updates as f64 * ernest.time_s(m, 1.0))
        };
        let timed = left.filter_map(|g| Some((time(*g)?, *g)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, g)| g)
    }
}

/// `n` of the values, the first and the last among them, evenly spread.
fn spread(values: &[u32], n: usize) -> Vec<u32> {
    let last = values.len() - 1;
    let n = n.min(values.len());
    let mut places: Vec<usize> = (0..n).map(|i| i * last / (n - 1).max(1)).collect();
    places.dedup();
    places.into_iter().map(|place| values[place]).collect()
}
