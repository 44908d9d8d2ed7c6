//! Prediction of one configuration by the fitted proxy network.

use std::collections::BTreeMap;
use std::sync::Arc;

use omnivore_sim::cluster::{Disruptions, Learning, Scenario, Timing, UpdatesOnly, run};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::objective::{
    InitialModel, Objective, Parameters, ProxyData, ProxyNetwork, synchronous_start,
};
use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::{Trace, smoothed};
use omnivore_sim::units::SimDuration;
use rayon::prelude::*;

use super::curve::{Curve, LOSS_CAP};
use super::fit::{Member, Observation, ProxyEnsemble, ProxyFit};
use super::prediction::{Draw, Predict, Prediction, Qualities, Spread};

/// η of the proxy's synchronous opening. Source: SE.md, section 4.1.
const OPENING_RATE: f32 = 0.06;

/// Mini-batch of the proxy's synchronous opening.
const OPENING_MINI_BATCH: u32 = 32;

/// Half-width of a 90 % interval in standard deviations of a normal law.
pub(super) const NORMAL_90: f64 = 1.645;

/// What predictions are made from, apart from the fit.
#[derive(Clone, Debug)]
pub struct PredictorSetup {
    /// The examples that the proxy learns from.
    pub data: Arc<ProxyData>,
    /// Examples in a mini-batch of the calibration runs.
    pub mini_batch: u32,
    /// Seeds of the proxies; the same for all configurations (common random numbers).
    pub seeds: Vec<Seed>,
}

/// The proxy network with the settings that calibration found.
#[derive(Clone, Debug)]
pub struct ProxyPredictor {
    setup: PredictorSetup,
    ensemble: ProxyEnsemble,
    qualities: Qualities,
    openings: Openings,
}

/// What the proxies of all members and seeds do in a scenario.
pub(super) struct ProxyRuns {
    /// What the real network may do.
    pub(super) draws: Vec<Draw>,
    /// Times and staleness.
    pub(super) trace: Trace,
    /// How far the real network may be from every draw.
    pub(super) spread: Spread,
}

impl Predict for ProxyPredictor {
    /// Predicts a scenario: the proxy runs it on the virtual clock, once for each member of the
    /// ensemble and seed.
    fn predict(&self, scenario: &Scenario) -> Result<Prediction, String> {
        let ProxyRuns { draws, trace, spread } = self.runs(scenario)?;
        Ok(Prediction::of(draws, &spread, &trace, &self.qualities))
    }
}

impl ProxyPredictor {
    /// A predictor from its parts.
    pub fn new(setup: PredictorSetup, ensemble: ProxyEnsemble) -> Self {
        let updates = ensemble.members.iter().map(|member| member.fit.opening_updates);
        let openings = Openings::of(&setup, ensemble.output_scale, updates);
        ProxyPredictor { setup, ensemble, qualities: Qualities::default(), openings }
    }

    /// The same predictor, which also tells what follows from the loss.
    #[must_use]
    pub fn with_qualities(self, qualities: Qualities) -> Self {
        ProxyPredictor { qualities, ..self }
    }

    /// What else follows from the loss.
    pub(super) fn qualities(&self) -> &Qualities {
        &self.qualities
    }

    /// Runs the proxies of all members and seeds.
    ///
    /// # Errors
    /// What the simulator says.
    pub(super) fn runs(&self, scenario: &Scenario) -> Result<ProxyRuns, String> {
        let mut items: Vec<(Member, Seed)> = Vec::new();
        for member in &self.ensemble.members {
            items.extend(self.setup.seeds.iter().map(|seed| (*member, *seed)));
        }
        let runs: Result<Vec<(Trace, Draw)>, String> = items
            .par_iter()
            .map(|(member, seed)| self.draw(&member.fit, member.weight, *seed, scenario))
            .collect();
        let (mut traces, draws): (Vec<Trace>, Vec<Draw>) = runs?.into_iter().unzip();
        let spread = Spread {
            level_sd: self.ensemble.inflation * self.ensemble.residual_sd,
            inflation: self.ensemble.inflation,
            failed_loss: self.setup.data.guessing_loss(),
            other: None,
        };
        Ok(ProxyRuns { draws, trace: traces.swap_remove(0), spread })
    }

    /// The settings.
    pub fn ensemble(&self) -> &ProxyEnsemble {
        &self.ensemble
    }

    /// What the fitted proxies make of a synchronous run, at the run's own evaluations.
    ///
    /// # Errors
    /// What the simulator says.
    pub fn explain(&self, rule: UpdateRule, observed: &Curve) -> Result<Curve, String> {
        let run = Observation { rule, loss: observed.clone() };
        Ok(self.predict(&synchronous_scenario(&run, self.setup.mini_batch))?.loss)
    }

    /// One run of one proxy.
    ///
    /// # Errors
    /// What the simulator says.
    fn draw(
        &self,
        fit: &ProxyFit,
        weight: f64,
        seed: Seed,
        scenario: &Scenario,
    ) -> Result<(Trace, Draw), String> {
        let start = self.openings.start(fit.opening_updates, seed);
        let (trace, curve) =
            proxy_run(&self.setup, fit.learning_rate_scale, start, seed, scenario)?;
        #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
        let weight = weight / self.setup.seeds.len() as f64;
        let translation =
            Translation::new(fit, self.ensemble.seen_loss, self.setup.data.guessing_loss());
        Ok((trace, Draw { weight, curve: translation.of(&curve) }))
    }
}

/// Where the proxies of each seed stand after their synchronous openings.
#[derive(Clone, Debug, Default)]
pub(super) struct Openings(BTreeMap<(u64, Seed), InitialModel>);

impl Openings {
    /// For openings of any number of updates, of proxies with an initial last layer of this scale.
    pub(super) fn of(
        setup: &PredictorSetup,
        output_scale: f64,
        updates: impl Iterator<Item = u64>,
    ) -> Self {
        let mut wanted: Vec<(u64, Seed)> =
            updates.flat_map(|n| setup.seeds.iter().map(move |seed| (n, *seed))).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let starts = wanted.par_iter().map(|(updates, seed)| {
            let mut proxy = opening_proxy(setup, output_scale, *seed);
            let rule = UpdateRule {
                learning_rate: OPENING_RATE,
                explicit_momentum: 0.0,
                weight_decay: 0.0,
            };
            synchronous_start(&mut proxy, rule, OPENING_MINI_BATCH, *updates)
        });
        let starts: Vec<InitialModel> = starts.collect();
        Openings(wanted.into_iter().zip(starts).collect())
    }

    fn start(&self, updates: u64, seed: Seed) -> InitialModel {
        self.0.get(&(updates, seed)).expect("openings are made for every member and seed").clone()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "parameters are single precision")]
fn opening_proxy(setup: &PredictorSetup, output_scale: f64, seed: Seed) -> ProxyNetwork {
    ProxyNetwork::new(Arc::clone(&setup.data), OPENING_MINI_BATCH, seed)
        .with_output_scale(output_scale as f32)
}

/// c ≥ 1, the scale of the initial last layer at which the mean initial loss of the proxies of all
/// seeds is a given one; 1 where that is below their own.
///
/// A network whose initial outputs are large begins with a loss above ln C and large gradients, from
/// which asynchrony makes early spikes that a proxy with small outputs never sees. The loss is
/// convex in c, so that it rises on [1, ∞) wherever a solution is. Source: derived; what it brings
/// is in `results/validations`.
pub(super) fn output_scale_for(setup: &PredictorSetup, start_loss: f64) -> f64 {
    const LARGEST: f64 = 64.0;
    const N_HALVINGS: u32 = 40;
    if setup.seeds.is_empty() || start_loss <= initial_loss(setup, 1.0) {
        return 1.0;
    }
    let (mut below, mut above) = (1.0, LARGEST);
    for _ in 0..N_HALVINGS {
        let middle = f64::midpoint(below, above);
        if initial_loss(setup, middle) < start_loss { below = middle } else { above = middle }
    }
    below
}

/// Mean initial loss of the proxies of all seeds.
#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
fn initial_loss(setup: &PredictorSetup, output_scale: f64) -> f64 {
    let of = |seed: &Seed| {
        let mut proxy = opening_proxy(setup, output_scale, *seed);
        let start = proxy.initial();
        proxy.evaluate(Parameters { conv: &start.conv, fc: &start.fc }).loss
    };
    setup.seeds.iter().map(of).sum::<f64>() / setup.seeds.len() as f64
}

fn proxy_run(
    setup: &PredictorSetup,
    learning_rate_scale: f64,
    start: InitialModel,
    seed: Seed,
    scenario: &Scenario,
) -> Result<(Trace, Curve), String> {
    let mut proxy = ProxyNetwork::new(Arc::clone(&setup.data), scenario.roster.mini_batch, seed);
    #[expect(clippy::cast_possible_truncation, reason = "rates are single precision")]
    let scale = learning_rate_scale as f32;
    let rule = UpdateRule { learning_rate: scenario.rule.learning_rate * scale, ..scenario.rule };
    let scenario = Scenario { rule, seed, divergence_loss: f64::INFINITY, ..scenario.clone() };
    let learning = Learning { objective: &mut proxy, start };
    let (trace, _) =
        run(&scenario, Some(learning), &mut UpdatesOnly).map_err(|error| error.to_string())?;
    let curve = fill(&Curve::of_loss(&trace.curve), &scenario);
    Ok((trace, curve))
}

/// From the proxy's loss to the real network's.
///
/// x₁·L + x₀ up to the largest loss that calibration saw. Beyond it there is one more thing that is
/// known of both networks: one that has lost everything it learned guesses, and has the loss ln C
/// of C equally frequent classes. So a straight line goes on from there to (ln C, ln C), and a
/// larger loss is what it is. Source: derived; real networks with dead units end at ln C.
struct Translation<'a> {
    fit: &'a ProxyFit,
    bend: Option<Bend>,
}

/// The line from what calibration saw to guessing.
struct Bend {
    /// The proxy's loss where it begins.
    from: f64,
    /// The real network's there.
    seen_loss: f64,
    /// Where it ends, for both.
    guessing_loss: f64,
}

impl<'a> Translation<'a> {
    fn new(fit: &'a ProxyFit, seen_loss: f64, guessing_loss: f64) -> Self {
        let from = (seen_loss - fit.loss_intercept) / fit.loss_slope;
        let ends_below = seen_loss < guessing_loss && from < guessing_loss;
        let bend = ends_below.then_some(Bend { from, seen_loss, guessing_loss });
        Translation { fit, bend }
    }

    /// The real network's smoothed loss, as the proxy's raw loss tells it.
    fn of(&self, proxy: &Curve) -> Curve {
        let values = smoothed(&proxy.values, LOSS_CAP);
        proxy.with_values(values.into_iter().map(|loss| self.at(loss)).collect())
    }

    fn at(&self, loss: f64) -> f64 {
        match &self.bend {
            Some(bend) if loss >= bend.guessing_loss => loss,
            Some(Bend { from, seen_loss, guessing_loss }) if loss > *from => {
                let slope = (guessing_loss - seen_loss) / (guessing_loss - from);
                seen_loss + slope * (loss - from)
            }
            _ => (self.fit.loss_slope * loss + self.fit.loss_intercept).max(1.0 / LOSS_CAP),
        }
    }
}

/// Raw losses of proxies in a synchronous run, one for each seed, at the run's own evaluations.
pub(super) fn synchronous_curves(
    setup: &PredictorSetup,
    openings: &Openings,
    seeds: &[Seed],
    (learning_rate_scale, opening_updates): (f64, u64),
    observed: &Observation,
) -> Result<Vec<Curve>, String> {
    let scenario = synchronous_scenario(observed, setup.mini_batch);
    let of = |seed: &Seed| {
        let start = openings.start(opening_updates, *seed);
        Ok(proxy_run(setup, learning_rate_scale, start, *seed, &scenario)?.1)
    };
    seeds.iter().map(of).collect()
}

/// A run that failed early has the largest loss that counts at the evaluations that it never
/// reached.
#[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
pub(super) fn fill(curve: &Curve, scenario: &Scenario) -> Curve {
    let mut curve = curve.clone();
    let every = scenario.evaluate_every.max(1);
    let wanted = (0..=scenario.updates).filter(|u| u % every == 0 || *u == scenario.updates);
    for update in wanted.skip(curve.values.len()) {
        curve.updates.push(update as f64);
        curve.times_s.push(curve.times_s.last().copied().unwrap_or(0.0));
        curve.values.push(LOSS_CAP);
    }
    curve
}

pub(super) fn mean_curve(curves: &[Curve]) -> Curve {
    let mean = |pick: fn(&Curve) -> &Vec<f64>, i: usize| {
        #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
        let n = curves.len() as f64;
        curves.iter().map(|curve| pick(curve)[i]).sum::<f64>() / n
    };
    let first = &curves[0];
    let places = 0..first.values.len();
    Curve {
        updates: first.updates.clone(),
        times_s: places.clone().map(|i| mean(|c| &c.times_s, i)).collect(),
        values: places.map(|i| mean(|c| &c.values, i)).collect(),
    }
}

/// The scenario of a calibration run: one machine, one group.
pub(super) fn synchronous_scenario(run: &Observation, mini_batch: u32) -> Scenario {
    let evaluations = &run.loss.updates;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "updates are small whole numbers"
    )]
    let whole = |updates: f64| updates as u64;
    Scenario {
        roster: Roster { conv_machines: 1, groups: 1, fc: FcPlacement::Merged, mini_batch },
        strategy: StrategySpec::Sync,
        rule: run.rule,
        schedule: Schedule::Constant,
        before: 0,
        timing: Timing::WholeCycle { mean: SimDuration::from_millis(1), law: ServiceLaw::Constant },
        updates: whole(evaluations.last().copied().unwrap_or(0.0)),
        evaluate_every: whole(evaluations.get(1).copied().unwrap_or(1.0)),
        divergence_loss: f64::INFINITY,
        seed: Seed(0),
        disruptions: Disruptions::default(),
    }
}

#[cfg(test)]
mod tests {
    use omnivore_sim::objective::ProxyShape;
    use proptest::prelude::*;

    use super::*;

    /// Examples of two numbers, the class of each the sign of their sum.
    fn data() -> Arc<ProxyData> {
        let shape = ProxyShape { features: 2, hidden: 24, classes: 2 };
        let features: Vec<f32> = (0_u8..128).map(|i| f32::from(i * 37 % 64) / 32.0 - 1.0).collect();
        let labels = features.chunks(2).map(|pair| u8::from(pair[0] + pair[1] > 0.0)).collect();
        Arc::new(ProxyData::new(features, labels, shape).expect("sizes match"))
    }

    proptest! {
        #[test]
        fn proxies_begin_with_the_loss_of_the_network_or_their_own_larger_one(
            start_loss in 0.1_f64..8.0, first_seed in 0_u64..1000,
        ) {
            let seeds = (first_seed..first_seed + 3).map(Seed).collect();
            let setup = PredictorSetup { data: data(), mini_batch: 32, seeds };
            let scale = output_scale_for(&setup, start_loss);
            let (own, scaled) = (initial_loss(&setup, 1.0), initial_loss(&setup, scale));
            match scale {
                1.0 => prop_assert!(start_loss <= own + 1e-6, "{own}"),
                // Examples this easy are hardly ever guessed so wrong.
                63.9.. => prop_assert!(scaled <= start_loss, "{scaled}"),
                _ => prop_assert!((scaled / start_loss - 1.0).abs() < 1e-3, "{scale}: {scaled}"),
            }
        }

        #[test]
        fn a_larger_loss_of_the_proxy_is_never_a_smaller_one_of_the_network(
            slope in 0.2_f64..3.0, intercept in -1.5_f64..0.5, seen in 0.5_f64..4.0,
        ) {
            let fit = ProxyFit {
                learning_rate_scale: 1.0,
                loss_slope: slope,
                loss_intercept: intercept,
                opening_updates: 0,
                score: 0.0,
            };
            let guessing = 10_f64.ln();
            let translation = Translation::new(&fit, seen, guessing);
            let along: Vec<f64> = (0..800).map(|i| translation.at(f64::from(i) / 100.0)).collect();
            prop_assert!(along.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
            // No piece jumps to the next: nothing rises faster than the steepest of them.
            let steepest = translation.bend.as_ref().map_or(slope, |bend| {
                let bent = (bend.guessing_loss - bend.seen_loss) / (bend.guessing_loss - bend.from);
                bent.max(slope).max(1.0)
            });
            let most = 0.01 * steepest + 1e-9;
            prop_assert!(along.windows(2).all(|pair| pair[1] - pair[0] <= most));
            if let Some(bend) = &translation.bend {
                prop_assert!((translation.at(bend.from) - seen).abs() < 1e-9);
                prop_assert!((translation.at(guessing) - guessing).abs() < 1e-9);
            }
        }
    }
}
