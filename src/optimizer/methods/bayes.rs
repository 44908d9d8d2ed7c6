//! Expected improvement of a Gaussian process, the customary way to tune by measurement alone.

use omnivore_sim::rng::{Stream, stream};
use rand::seq::SliceRandom;

use super::gaussian::GaussianProcess;
use super::{Choice, Space};
use crate::optimizer::study::{
    Finding, Pause, Proposal, Replay, Searcher, Trial, Until, best_time_s,
};

/// Random trials before the first fit, for each searched quantity.
const OPENING_PER_DIMENSION: usize = 2;

/// A configuration that did not reach the target counts as if it had taken this many times what
/// it was given.
const NOT_REACHED: f64 = 2.0;

/// ln(time to target) as a Gaussian process over log₂ g, μ, ln η (and ln b, place of the FC
/// layers, strategy, where they are searched); proposes where improvement is most to be expected.
///
/// The trials of a round after the first are chosen as if those before had found what the process
/// expects of them.
#[derive(Clone, Debug)]
pub struct Bayes {
    /// What there is.
    pub space: Space,
}

impl Searcher for Bayes {
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let Space { choices, updates, round, seed, .. } = &self.space;
        let inputs = Inputs::of(choices);
        let mut order: Vec<usize> = (0..choices.len()).collect();
        order.shuffle(&mut stream(*seed, Stream::Search));
        let n_opening = (OPENING_PER_DIMENSION * inputs.dimensions()).min(choices.len());
        let mut tried: Vec<usize> = Vec::new();
        let mut values: Vec<f64> = Vec::new();
        let propose = |indices: &[usize], best: Option<f64>| {
            let of = |i: &usize| Proposal::to_target(choices[*i], *updates, "bayes").racing(best);
            indices.iter().map(of).collect::<Vec<_>>()
        };
        for part in order[..n_opening].chunks(*round) {
            let trials = replay.round(propose(part, best_time_s(replay.so_far())))?;
            tried.extend(part);
            values.extend(trials.iter().map(ln_time));
        }
        while tried.len() < choices.len() {
            let next = next_of(&inputs, &tried, &values, *round);
            let trials = replay.round(propose(&next, best_time_s(replay.so_far())))?;
            tried.extend(&next);
            values.extend(trials.iter().map(ln_time));
        }
        Ok(())
    }
}

/// ln of the time to the target, or of a time beyond what the trial was given.
pub(super) fn ln_time(trial: &Trial) -> f64 {
    let Finding { time_to_target_s, spent_s, .. } = trial.finding;
    let given = match trial.proposal.until {
        Until::TargetWithin(limit) => limit.max(spent_s),
        _ => spent_s,
    };
    time_to_target_s.unwrap_or(NOT_REACHED * given).max(f64::MIN_POSITIVE).ln()
}

fn next_of(inputs: &Inputs, tried: &[usize], values: &[f64], n: usize) -> Vec<usize> {
    let (mut tried, mut values) = (tried.to_vec(), values.to_vec());
    let mut next = Vec::new();
    while next.len() < n {
        let left: Vec<usize> = (0..inputs.0.len()).filter(|i| !tried.contains(i)).collect();
        let Some(first) = left.first() else { break };
        let at: Vec<Vec<f64>> = tried.iter().map(|i| inputs.0[*i].clone()).collect();
        let best = values.iter().copied().fold(f64::INFINITY, f64::min);
        let (chosen, expected) = match GaussianProcess::fit(&at, &values) {
            None => (*first, best),
            Some(process) => {
                let gain = |i: &usize| process.expected_improvement(&inputs.0[*i], best);
                // The first of equals, so that the choice depends on nothing else.
                let chosen = left[1..].iter().fold((*first, gain(first)), |best, i| {
                    let gain = gain(i);
                    if gain > best.1 { (*i, gain) } else { best }
                });
                (chosen.0, process.predict(&inputs.0[chosen.0]).0)
            }
        };
        next.push(chosen);
        tried.push(chosen);
        values.push(expected);
    }
    next
}

/// Configurations as points of the unit cube; what does not vary is left out.
#[derive(Clone, Debug)]
pub(super) struct Inputs(pub Vec<Vec<f64>>);

impl Inputs {
    pub(super) fn of(choices: &[Choice]) -> Self {
        let mut columns: Vec<Vec<f64>> = vec![
            choices.iter().map(|c| f64::from(c.groups).log2()).collect(),
            choices.iter().map(|c| c.explicit_momentum).collect(),
            choices.iter().map(|c| c.learning_rate.ln()).collect(),
            choices.iter().map(|c| c.mini_batch.map_or(0.0, |b| f64::from(b).ln())).collect(),
        ];
        // What has no order is near to nothing but itself: a column for every word.
        let word = |c: &Choice| {
            let strategy = c.strategy.map_or("", |strategy| strategy.card().name);
            format!("{} {strategy} {:?} {:?}", c.device, c.fc, c.hardware_split)
        };
        let mut words: Vec<String> = choices.iter().map(word).collect();
        words.sort();
        words.dedup();
        if words.len() > 1 {
            let is = |of: &String, c: &Choice| f64::from(u8::from(word(c) == *of));
            columns.extend(words.iter().map(|of| choices.iter().map(|c| is(of, c)).collect()));
        }
        columns.iter_mut().for_each(|column| to_unit(column));
        columns.retain(|column| column.iter().any(|value| *value > 0.0));
        Inputs(
            (0..choices.len()).map(|i| columns.iter().map(|column| column[i]).collect()).collect(),
        )
    }

    fn dimensions(&self) -> usize {
        self.0.first().map_or(0, Vec::len).max(1)
    }
}

fn to_unit(column: &mut [f64]) {
    let low = column.iter().copied().fold(f64::INFINITY, f64::min);
    let high = column.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let span = if high > low { high - low } else { 1.0 };
    column.iter_mut().for_each(|value| *value = (*value - low) / span);
}
