//! Measures the momentum of a mean motion, from many runs of one configuration.
//!
//! The laws of [`super::momentum`] are about expectations. A single run shows its noise, and a
//! fit to one averaged run is biased by what noise is left in it. Products of *different* runs have
//! no such bias, since their noises are independent.

/// Sums over some runs of the same number of updates.
///
/// Vectors are `[updates][coordinates]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeanMotion {
    runs: u64,
    displacements: Vec<Vec<f64>>,
    gradients: Vec<Vec<f64>>,
    /// Σ over runs of Δ_t·Δ_t, of Δ_t·Δ_{t+1}, and of Δ_t·∇L(w_{t+1}), all summed over t.
    own: [f64; 3],
}

/// One run: weights after each update, those at the start first, and the gradient at each of them.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// `[updates + 1][coordinates]`.
    pub weights: &'a [Vec<f64>],
    /// A gradient at each of these weights, `[updates + 1][coordinates]`; its noise is independent
    /// of the path.
    pub gradients: &'a [Vec<f64>],
}

impl MeanMotion {
    /// Adds a run.
    pub fn add(&mut self, path: Path<'_>) {
        let displacements: Vec<Vec<f64>> = path
            .weights
            .windows(2)
            .map(|pair| pair[1].iter().zip(&pair[0]).map(|(new, old)| new - old).collect())
            .collect();
        let n_pairs = displacements.len().saturating_sub(1);
        for t in 0..n_pairs {
            let (now, next) = (&displacements[t], &displacements[t + 1]);
            self.own[0] += dot(now, now);
            self.own[1] += dot(now, next);
            self.own[2] += dot(now, &path.gradients[t + 1]);
        }
        add_all(&mut self.displacements, &displacements);
        add_all(&mut self.gradients, path.gradients);
        self.runs += 1;
    }

    /// Adds the runs of another sum.
    pub fn join(&mut self, other: &MeanMotion) {
        add_all(&mut self.displacements, &other.displacements);
        add_all(&mut self.gradients, &other.gradients);
        self.own.iter_mut().zip(other.own).for_each(|(sum, own)| *sum += own);
        self.runs += other.runs;
    }

    /// Total momentum: the m of `E Δ_{t+1} = m·E Δ_t − s·E ∇L(w_{t+1})`, a pure number.
    ///
    /// `m = Σ_t ⟨Δ_t, Δ_{t+1} + s·∇L(w_{t+1})⟩ / Σ_t ⟨Δ_t, Δ_t⟩`, where ⟨·,·⟩ sums products over
    /// all pairs of different runs, so that the noise of a run is not taken for motion. With the
    /// step `s = η/g` and gradients at the *current* weights it is `1 − 1/g` for `g` groups under
    /// exponential cycles without explicit momentum; with `s = η` and stale gradients it would be
    /// the explicit momentum whatever the staleness.
    ///
    /// `None` with fewer than two runs or three weights, and where different runs have no motion
    /// in common.
    ///
    /// Source: derived as an instrumental-variable form of the estimator of Mitliagkas et al.,
    /// "Asynchrony begets Momentum", arXiv:1605.09774.
    pub fn total_momentum(&self, step: f64) -> Option<f64> {
        let mut sums = [0.0; 3];
        for t in 0..self.displacements.len().saturating_sub(1) {
            let (now, next) = (&self.displacements[t], &self.displacements[t + 1]);
            sums[0] += dot(now, now);
            sums[1] += dot(now, next);
            sums[2] += dot(now, &self.gradients[t + 1]);
        }
        let [same, following, pulled] = [0, 1, 2].map(|at| sums[at] - self.own[at]);
        // What is left of a difference of equal sums is rounding.
        let has_motion = self.runs >= 2 && same > 1e-9 * sums[0];
        has_motion.then(|| (following + step * pulled) / same)
    }
}

/// A momentum with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentumEstimate {
    /// From all runs.
    pub momentum: f64,
    /// Half the width of the interval.
    pub half_width: f64,
}

/// Half the 90 % interval of a jackknife over 8 blocks, in standard errors: Student's t with 7
/// degrees of freedom.
const STUDENT_7: f64 = 1.895;

/// Number of blocks for [`jackknife`].
pub const BLOCKS: usize = 8;

/// The total momentum of all runs, with an interval from leaving out one block at a time.
///
/// `se² = (n − 1)/n · Σ (m₍ᵢ₎ − m̄)²` over the n = 8 estimates without block i.
///
/// `None` where the estimate of some selection does not exist, as for [`MeanMotion`].
#[expect(clippy::cast_precision_loss, reason = "eight blocks")]
pub fn jackknife(blocks: &[MeanMotion; BLOCKS], step: f64) -> Option<MomentumEstimate> {
    let joined = |left_out: Option<usize>| {
        let mut all = MeanMotion::default();
        for (_, block) in blocks.iter().enumerate().filter(|(at, _)| Some(*at) != left_out) {
            all.join(block);
        }
        all.total_momentum(step)
    };
    let without: Option<Vec<f64>> = (0..BLOCKS).map(|at| joined(Some(at))).collect();
    let without = without?;
    let n = BLOCKS as f64;
    let mean = without.iter().sum::<f64>() / n;
    let squares: f64 = without.iter().map(|m| (m - mean).powi(2)).sum();
    let half_width = STUDENT_7 * ((n - 1.0) / n * squares).sqrt();
    Some(MomentumEstimate { momentum: joined(None)?, half_width })
}

/// What [`MeanMotion::total_momentum`] reads off a quadratic direction under constant delay.
///
/// The path is `w_{t+1} = w_t − x·w_{t−τ}` with `τ = g − 1` from rest at 1 and `s = η/g`. At small
/// steps it is near `1 − 1/g` as well; towards the stability limit it rises above, since a constant
/// delay is no momentum.
///
/// Source: derived.
pub fn constant_delay_momentum(groups: u32, step: f64, updates: usize) -> Option<f64> {
    let delay = groups.saturating_sub(1) as usize;
    let mut weights = vec![1.0];
    for t in 0..updates {
        let stale = weights[t.saturating_sub(delay)];
        weights.push(weights[t] - step * stale);
    }
    let weights: Vec<Vec<f64>> = weights.into_iter().map(|weight| vec![weight]).collect();
    let mut motion = MeanMotion::default();
    for _ in 0..2 {
        motion.add(Path { weights: &weights, gradients: &weights });
    }
    motion.total_momentum(step / f64::from(groups.max(1)))
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

fn add_all(sums: &mut Vec<Vec<f64>>, terms: &[Vec<f64>]) {
    if sums.is_empty() {
        *sums = terms.to_vec();
        return;
    }
    for (sum, term) in sums.iter_mut().zip(terms) {
        sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
    }
}
