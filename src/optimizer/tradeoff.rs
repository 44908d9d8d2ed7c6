//! Where each synchronisation strategy stands between time per update and updates to target.

use std::cmp::Ordering;

use omnivore_sim::cluster::Scenario;
use omnivore_sim::protocol::{self, FcPlacement, FcSupport, Grouping, Roster, StrategySpec};
use rayon::prelude::*;
use serde::Serialize;

use super::{Interval, OptimizerError};
use crate::config::{Experiment, RunConfig};
use crate::devices::DeviceName;
use crate::profile::Profile;
use crate::run::{RunProgress, timing};

/// What is foreseen of one scenario; what it is not foreseen to reach is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Standing {
    /// Mean time between updates.
    pub time_per_update_s: f64,
    /// Updates to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_to_target: Option<f64>,
    /// 90 % interval of the updates to the target, where it is predicted.
    pub interval: Interval,
    /// Time to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_target_s: Option<f64>,
    /// Loss at the end of the budget, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_loss: Option<f64>,
}

/// A strategy with the settings at which it stands best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct System {
    /// The strategy with its knobs.
    pub strategy: StrategySpec,
    /// g.
    pub groups: u32,
    /// μ.
    pub explicit_momentum: f64,
    /// η.
    pub learning_rate: f64,
    /// Where it stands.
    pub standing: Standing,
}

/// A strategy, and where it stands or why it cannot be used on this cluster.
pub type Placed = (StrategySpec, Result<System, String>);

/// What the settings of systems are chosen from.
#[derive(Clone, Debug)]
struct Space {
    groups: Vec<u32>,
    explicit_momentum: Vec<f64>,
    learning_rate: Vec<f64>,
}

impl Space {
    /// The search space of an experiment, or its own settings where it has none.
    fn of(experiment: &Experiment) -> Self {
        let run = &experiment.run;
        match &experiment.search {
            Some(search) => Space {
                groups: search.groups.clone(),
                explicit_momentum: search.explicit_momentum.clone(),
                learning_rate: search.learning_rate.clone(),
            },
            None => Space {
                groups: vec![run.roster.groups],
                explicit_momentum: vec![run.explicit_momentum],
                learning_rate: vec![run.learning_rate],
            },
        }
    }
}

/// The strategies to compare: all with typical knobs, but that of the experiment with its own.
pub fn strategies(experiment: &Experiment) -> Vec<StrategySpec> {
    let own = experiment.run.strategy;
    let choose = |typical: StrategySpec| {
        if typical.card().name == own.card().name { own } else { typical }
    };
    StrategySpec::typical().into_iter().map(choose).collect()
}

/// Finds, for every strategy, the explicit momentum and learning rate (and groups, where it has any
/// number) of the search space that reach the target soonest, as `judge` foresees it.
///
/// A mini-batch has the size of the experiment under every strategy. FC layers live where the
/// experiment says, but replicated under strategies that need that.
///
/// # Errors
/// [`OptimizerError`] when times cannot be had, or the user interrupts. A strategy that the cluster
/// or mini-batch does not allow is no error, but has its reason in the result.
pub fn place(
    experiment: &Experiment,
    device: DeviceName,
    profiles: &[Profile],
    judge: &(dyn Fn(&Scenario) -> Result<Standing, String> + Sync),
    progress: &dyn RunProgress,
) -> Result<Vec<Placed>, OptimizerError> {
    let space = Space::of(experiment);
    let done = std::sync::atomic::AtomicU64::new(0);
    strategies(experiment)
        .par_iter()
        .map(|strategy| {
            if progress.is_interrupted() {
                return Err(OptimizerError::Interrupted);
            }
            let systems: Result<Vec<Result<System, String>>, OptimizerError> =
                settings(experiment, *strategy, &space)
                    .par_iter()
                    .map(|run| try_out(experiment, run, device, profiles, judge))
                    .collect();
            progress.updated(1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            Ok((*strategy, best(systems?)))
        })
        .collect()
}

/// The best of some systems; where none is possible, why the first is not.
fn best(systems: Vec<Result<System, String>>) -> Result<System, String> {
    let mut reason = "no number of groups of the search space divides the machines".to_owned();
    let mut possible: Vec<System> = Vec::new();
    for system in systems.into_iter().rev() {
        match system {
            Ok(system) => possible.push(system),
            Err(why) => reason = why,
        }
    }
    possible.into_iter().rev().min_by(|a, b| rank(&a.standing, &b.standing)).ok_or(reason)
}

fn rank(a: &Standing, b: &Standing) -> Ordering {
    let loss = |standing: &Standing| standing.final_loss.unwrap_or(f64::INFINITY);
    match (a.time_to_target_s, b.time_to_target_s) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => loss(a).total_cmp(&loss(b)),
    }
}

/// The runs of a strategy over the search space.
fn settings(experiment: &Experiment, strategy: StrategySpec, space: &Space) -> Vec<RunConfig> {
    let run = &experiment.run;
    let machines = run.roster.conv_machines;
    let card = strategy.card();
    let groups = match card.grouping {
        Grouping::Any => space.groups.clone(),
        fixed => fixed.groups_of(machines).into_iter().collect(),
    };
    let fc = match card.fc {
        FcSupport::Any => run.roster.fc,
        FcSupport::ReplicatedOnly => FcPlacement::Replicated,
    };
    let mut settings = Vec::new();
    for groups in groups {
        for explicit_momentum in &space.explicit_momentum {
            settings.extend(space.learning_rate.iter().map(|learning_rate| RunConfig {
                roster: Roster { groups, fc, ..run.roster },
                strategy,
                explicit_momentum: *explicit_momentum,
                learning_rate: *learning_rate,
                ..run.clone()
            }));
        }
    }
    settings
}

fn try_out(
    experiment: &Experiment,
    run: &RunConfig,
    device: DeviceName,
    profiles: &[Profile],
    judge: &(dyn Fn(&Scenario) -> Result<Standing, String> + Sync),
) -> Result<Result<System, String>, OptimizerError> {
    if let Err(error) = protocol::strategy(run.strategy, run.roster) {
        return Ok(Err(error.to_string()));
    }
    let scenario = run.scenario(timing(experiment, run, device, profiles)?);
    Ok(judge(&scenario).map(|standing| System {
        strategy: run.strategy,
        groups: run.roster.groups,
        explicit_momentum: run.explicit_momentum,
        learning_rate: run.learning_rate,
        standing,
    }))
}
