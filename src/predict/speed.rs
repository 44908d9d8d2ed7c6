//! How fast the simulator and the predictors are.

use std::sync::Arc;

use omnivore_sim::cluster::{Disruptions, Monitor, Scenario, Timing as ClusterTiming, run};
use omnivore_sim::engine::Engine;
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::protocol::{Event, FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::CurvePoint;
use omnivore_sim::units::{SimDuration, SimTime};
use rayon::prelude::*;

use super::features::pooled_features;
use super::fit::{Identifiability, Member, ProxyEnsemble, ProxyFit};
use super::prediction::{Predict, Qualities};
use super::proxy::{PredictorSetup, ProxyPredictor};
use super::quadratic::{QuadraticFit, QuadraticPredictor};
use crate::data::{self, DataSource};
use crate::profile::speed::{
    Measured, Measurement, Peaks, Scale, Section, SpeedError, Step, Survey, Timing, Unit, alternate,
};

/// Updates of a prediction.
const UPDATES: u64 = 800;

/// Most seconds of a prediction by the proxy, for each seed.
const PROXY_LIMIT_S: f64 = 0.030;

/// Most seconds of a prediction by the quadratic.
const QUADRATIC_LIMIT_S: f64 = 0.001;

/// Most seconds of [`SWEPT`] predictions by the quadratic, on all threads.
const SWEEP_LIMIT_S: f64 = 15.0;

/// Configurations of the sweep.
const SWEPT: u32 = 10_000;

/// The steps of a survey of simulator and predictors. Only the sweep uses more than one thread.
pub fn engine_steps(survey: &Survey) -> Vec<Step<'_>> {
    type Measure = fn(&Survey) -> Measured;
    let steps: [(&str, Measure); 5] = [
        ("engine/queue", queue),
        ("engine/run", whole_run),
        ("engine/proxy", proxy_prediction),
        ("engine/quadratic", quadratic_prediction),
        ("engine/sweep", sweep),
    ];
    let step = |(name, measure): (&str, Measure)| Step {
        name: name.to_owned(),
        measure: Box::new(move |_: &Peaks| measure(survey)),
    };
    steps.into_iter().map(step).collect()
}

/// The smaller of two numbers at smoke scale.
fn scaled(survey: &Survey, full: u64, smoke: u64) -> u64 {
    match survey.scale {
        Scale::Full => full,
        Scale::Smoke => smoke,
    }
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ events")]
fn events_per_second(subject: &str, events: u64, timing: &Timing) -> Measurement {
    let work = (events as f64, Unit::EventsPerSecond);
    Measurement::rate(Section::Engine, [subject, "", ""], 1, timing, work)
}

/// The event queue alone: every event schedules one more, with 1024 waiting.
fn queue(survey: &Survey) -> Measured {
    let events = scaled(survey, 1_000_000, 100);
    let timings = alternate(survey.effort, 1, |_| {
        let mut engine = Engine::new();
        for waiting in 0..1024_u64 {
            engine.schedule_after(SimDuration::from_nanos(waiting), waiting);
        }
        for _ in 0..events {
            let next = engine.step().expect("there is no bound on events");
            let (_, event) = next.expect("every event schedules one more");
            // A multiplicative step through the residues spreads the events over time.
            let event = event * 48_271 % 65_537;
            engine.schedule_after(SimDuration::from_nanos(event), event);
        }
        std::hint::black_box(engine.now());
    });
    Ok(vec![events_per_second("event queue", events, &timings[0])])
}

/// Counts the events of which a strategy is told.
#[derive(Default)]
struct Counter(u64);

impl Monitor for Counter {
    fn evaluated(&mut self, _: &CurvePoint) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }

    fn event(&mut self, _: SimTime, _: Event) {
        self.0 += 1;
    }
}

fn scenario(conv_machines: u32, groups: u32, updates: u64) -> Scenario {
    Scenario {
        roster: Roster { conv_machines, groups, fc: FcPlacement::Merged, mini_batch: 32 },
        strategy: StrategySpec::Groups,
        rule: UpdateRule { learning_rate: 0.02, explicit_momentum: 0.3, weight_decay: 0.0005 },
        schedule: Schedule::Constant,
        before: 0,
        timing: ClusterTiming::WholeCycle {
            mean: SimDuration::from_millis(10),
            law: ServiceLaw::Exponential,
        },
        disruptions: Disruptions::default(),
        updates,
        evaluate_every: 5,
        divergence_loss: f64::INFINITY,
        seed: Seed(1),
    }
}

/// A run of 32 machines in 8 groups with all of the protocol but nothing to learn.
fn whole_run(survey: &Survey) -> Measured {
    let scenario = scenario(32, 8, scaled(survey, 20_000, 10));
    let mut events = 0;
    let timings = alternate(survey.effort, 1, |_| {
        let mut counter = Counter::default();
        run(&scenario, None, &mut counter).expect("groups of four can finish");
        events = counter.0;
    });
    Ok(vec![events_per_second("run of 32 machines", events, &timings[0])])
}

/// One prediction by the proxy network, for one seed, at a mini-batch of 32 and 8 groups.
fn proxy_prediction(survey: &Survey) -> Measured {
    let failed = |reason: String| failed("the proxy network", reason);
    let data = data::load(&DataSource::FashionMnistSubset, 0).map_err(|e| failed(e.to_string()))?;
    let features = pooled_features(&data).map_err(|error| failed(error.to_string()))?;
    let setup = PredictorSetup { data: Arc::new(features), mini_batch: 32, seeds: vec![Seed(1)] };
    // As fitted to the small network; the opening is made once for all predictions.
    let fit = ProxyFit {
        learning_rate_scale: 1.57,
        loss_slope: 1.99,
        loss_intercept: -1.05,
        opening_updates: scaled(survey, 150, 1),
        score: 0.0,
    };
    let identifiability = Identifiability {
        learning_rate_scale: [1.57; 2],
        loss_slope: [1.99; 2],
        loss_intercept: [-1.05; 2],
        opening_updates: [150; 2],
        condition: None,
        independent_observations: 1.0,
        weight_at_the_ends: 0.0,
    };
    let ensemble = ProxyEnsemble {
        members: vec![Member { fit, weight: 1.0 }],
        best: fit,
        output_scale: 1.0,
        residual_sd: 0.05,
        seen_loss: 1.5,
        inflation: 1.0,
        identifiability,
    };
    let predictor = ProxyPredictor::new(setup, ensemble);
    let scenario = scenario(8, 8, scaled(survey, UPDATES, 5));
    let timings = predictions(survey, 1, |_| predictor.predict(&scenario).map(|_| ()))?;
    let names = ["proxy prediction", "", ""];
    let limit = Some(PROXY_LIMIT_S);
    Ok(vec![Measurement::seconds(Section::Engine, names, 1, &timings[0], limit)])
}

/// A quadratic as fitted to the small network. Source: SE.md, section 4.2.
fn quadratic() -> QuadraticPredictor {
    let fit = QuadraticFit {
        largest_curvature: 3.5,
        largest_curvature_range: [3.5; 2],
        energy_exponent: -0.31,
        floor: 0.0,
        noise: 3.9,
        noise_exponent: 0.94,
        start_loss: 0.96,
        score: 0.0,
        residual_sd: 0.05,
    };
    QuadraticPredictor::new(fit, 0.83, Qualities::default())
}

/// Configuration `index` of a grid of groups, momenta and learning rates.
fn configuration(index: u32, updates: u64) -> Scenario {
    let groups = 1 << (index % 6);
    let scenario = scenario(groups, groups, updates);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let [momentum, rate] = [index / 6 % 10, index / 60].map(|step| step as f32);
    let rule = UpdateRule {
        learning_rate: 0.001 * 1.03_f32.powf(rate),
        explicit_momentum: momentum / 10.0 - 0.3,
        ..scenario.rule
    };
    Scenario { rule, ..scenario }
}

fn failed(who: &str, reason: String) -> SpeedError {
    SpeedError::Answer { who: who.to_owned(), reason }
}

/// One prediction by the noisy quadratic, for 8 groups.
fn quadratic_prediction(survey: &Survey) -> Measured {
    let (predictor, scenario) = (quadratic(), configuration(15, scaled(survey, UPDATES, 5)));
    let timings = predictions(survey, 1, |_| predictor.predict(&scenario).map(|_| ()))?;
    let names = ["quadratic prediction", "", ""];
    let limit = Some(QUADRATIC_LIMIT_S);
    Ok(vec![Measurement::seconds(Section::Engine, names, 1, &timings[0], limit)])
}

/// Times predictions, and tells of one that failed.
fn predictions(
    survey: &Survey,
    contestants: usize,
    mut predict: impl FnMut(usize) -> Result<(), String>,
) -> Result<Vec<Timing>, SpeedError> {
    let mut outcome = Ok(());
    let timings = alternate(survey.effort, contestants, |who| {
        if let Err(reason) = predict(who) {
            outcome = Err(failed("a predictor", reason));
        }
    });
    outcome.map(|()| timings)
}

/// A sweep of configurations by the noisy quadratic, on all threads.
fn sweep(survey: &Survey) -> Measured {
    let threads = survey.threads.iter().copied().max().unwrap_or(1);
    let (predictor, updates) = (quadratic(), scaled(survey, UPDATES, 5));
    let swept = u32::try_from(scaled(survey, u64::from(SWEPT), 20)).expect("a small number");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|source| SpeedError::Pool { threads, source })?;
    let timings = pool.install(|| {
        predictions(survey, 1, |_| {
            (0..swept)
                .into_par_iter()
                .try_for_each(|at| predictor.predict(&configuration(at, updates)).map(|_| ()))
        })
    })?;
    let names = ["sweep by the quadratic", "", ""];
    let limit = Some(SWEEP_LIMIT_S);
    let row = Measurement::seconds(Section::Engine, names, threads, &timings[0], limit);
    Ok(vec![row.with_count(swept as usize)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::speed::Effort;

    #[test]
    fn every_step_gives_a_positive_value() {
        let survey = Survey { threads: vec![2], effort: Effort::SMOKE, scale: Scale::Smoke };
        let mut rows = Vec::new();
        for step in engine_steps(&survey) {
            rows.extend((step.measure)(&Peaks::default()).expect("it can be measured"));
        }
        assert_eq!(rows.len(), 5);
        assert!(rows.iter().all(|row| row.value > 0.0 && row.value.is_finite()), "{rows:?}");
    }
}
