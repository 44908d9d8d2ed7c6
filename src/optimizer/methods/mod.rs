//! Ways to search, all on one interface: each proposes trials in rounds and sees what they found.
//!
//! | method | after | proposes |
//! |---|---|---|
//! | `model` | this program | the best of the simulator's predictions, corrected by what was verified |
//! | `omnivore` | arXiv:1606.04487 | cold start, pruned grid of (μ, η), fewer groups while μ is 0, epochs |
//! | `grid` | – | every configuration |
//! | `random` | – | configurations in random order |
//! | `bayes` | expected improvement of a Gaussian process | where improvement is most to be expected |
//! | `hemingway` | Hemingway (arXiv:1702.05865) with Ernest | the number of groups that fitted models of time and convergence prefer |
//! | `sync`, `async` | practice | one group, or the most groups, with a momentum that nobody tuned |

mod bayes;
mod fixed;
mod gaussian;
mod hemingway;
mod linear;
mod model;
mod outlook;
mod paper;
mod plain;
mod unused;

pub use bayes::Bayes;
pub use fixed::{Fixed, Practice};
pub use gaussian::GaussianProcess;
pub use hemingway::{Convergence, Ernest, Hemingway};
pub use model::{ASYNC_ONLY, Model, PREDICTED_BEST, Ranked, SYNC_ONLY, twin};
pub use paper::{Omnivore, saturating_groups};
pub use plain::{Grid, Random};
pub use unused::unused;

use omnivore_sim::rng::Seed;

use super::Choice;

/// A way to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The calibrated simulator.
    Model,
    /// The paper's own optimizer.
    Omnivore,
    /// All of them.
    Grid,
    /// At random.
    Random,
    /// A Gaussian process.
    Bayes,
    /// Hemingway with Ernest.
    Hemingway,
    /// One group.
    Sync,
    /// The most groups.
    Async,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 8] = [
        Method::Model,
        Method::Omnivore,
        Method::Grid,
        Method::Random,
        Method::Bayes,
        Method::Hemingway,
        Method::Sync,
        Method::Async,
    ];

    /// Its word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Method::Model => "model",
            Method::Omnivore => "omnivore",
            Method::Grid => "grid",
            Method::Random => "random",
            Method::Bayes => "bayes",
            Method::Hemingway => "hemingway",
            Method::Sync => "sync",
            Method::Async => "async",
        }
    }

    /// The method of a word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.word() == word)
    }
}

/// What a searcher may choose from.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Every configuration, in the order of the lists.
    pub choices: Vec<Choice>,
    /// Updates of a whole run.
    pub updates: u64,
    /// μ of those who do not tune it.
    pub baseline_momentum: f64,
    /// Trials of a round.
    pub round: usize,
    /// Seed of the study.
    pub seed: Seed,
}

impl Space {
    /// The numbers of groups, ascending.
    pub fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.choices.iter().map(|choice| choice.groups).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The learning rates, ascending.
    pub fn learning_rates(&self) -> Vec<f64> {
        distinct(self.choices.iter().map(|choice| choice.learning_rate))
    }

    /// The explicit momenta, ascending.
    pub fn momenta(&self) -> Vec<f64> {
        distinct(self.choices.iter().map(|choice| choice.explicit_momentum))
    }

    /// A configuration that differs from the first of the space in what is searched by name only.
    pub fn choice(&self, groups: u32, explicit_momentum: f64, learning_rate: f64) -> Choice {
        Choice { groups, explicit_momentum, learning_rate, ..self.choices[0] }
    }
}

fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup_by(|a, b| a.to_bits() == b.to_bits());
    values
}

#[cfg(test)]
pub(super) mod tests;
