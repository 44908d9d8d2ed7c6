//! Parts of a mini-batch in proportion to how fast devices are.

use std::sync::Arc;

use super::lab::LabError;
use crate::config::{Experiment, Part};
use crate::devices::DeviceName;
use crate::models::{Model, NetworkObjective, SplitModel};
use crate::profile::{ProfileSetup, measure};

/// Parts that are handed out; more would tell apart speeds that no measurement does.
const ALL_PARTS: f64 = 64.0;

/// Rounds of the measurement, over all sizes.
const ROUNDS: u32 = 5;

/// A device that is to share mini-batches.
pub(super) struct Sharer {
    pub(super) device: DeviceName,
    pub(super) model: Arc<Model>,
}

/// The network on all devices that share a mini-batch, and their parts, measured where the
/// experiment does not say.
///
/// # Errors
/// [`LabError::Profile`] when a device cannot be measured.
pub(super) fn share(
    experiment: &mut Experiment,
    objective: &NetworkObjective,
    sharers: Vec<Sharer>,
) -> Result<SplitModel, LabError> {
    let given: Option<Vec<u32>> = experiment.run.split.iter().map(|part| part.parts).collect();
    let parts = match given {
        Some(parts) => parts,
        None => measured_parts(experiment, objective, &sharers)?,
    };
    for (part, parts) in experiment.run.split.iter_mut().zip(&parts) {
        part.parts = Some(*parts);
    }
    Ok(SplitModel::new(sharers.into_iter().map(|sharer| sharer.model).zip(parts)))
}

/// Parts in proportion to the examples per second that each device computes by itself: all three
/// stages of one machine's share of a mini-batch.
fn measured_parts(
    experiment: &Experiment,
    objective: &NetworkObjective,
    sharers: &[Sharer],
) -> Result<Vec<u32>, LabError> {
    let roster = experiment.run.roster;
    let examples = roster.mini_batch.div_ceil(roster.machines_per_group());
    let speeds: Result<Vec<f64>, LabError> = sharers
        .iter()
        .map(|sharer| {
            let setup = ProfileSetup {
                device: sharer.device,
                precision: experiment.run.precision,
                objective: &objective.with_model(sharer.model.clone()),
                fc: roster.fc,
                mini_batch: examples,
                concurrency: 1,
                threads: rayon::current_num_threads(),
                rounds: ROUNDS,
            };
            let profile = measure(&setup, &mut |_| ())?;
            let stages = [&profile.forward, &profile.fc, &profile.backward];
            let times: Result<Vec<f64>, _> =
                stages.iter().map(|stage| stage.mean_at(examples)).collect();
            Ok(f64::from(examples) / times?.iter().sum::<f64>())
        })
        .collect();
    Ok(parts_of(&speeds?))
}

/// Whole parts in proportion to speeds, at least one for each.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of the parts lies between 0 and all of them"
)]
fn parts_of(speeds: &[f64]) -> Vec<u32> {
    let all: f64 = speeds.iter().sum();
    speeds.iter().map(|speed| ((ALL_PARTS * speed / all).round() as u32).max(1)).collect()
}

/// The devices of `split`, or the only one.
pub(super) fn device_names(device: &str, split: &[Part]) -> Vec<String> {
    if split.is_empty() {
        return vec![device.to_owned()];
    }
    split.iter().map(|part| part.device.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::parts_of;

    #[test]
    fn a_device_three_times_as_fast_gets_three_times_the_parts() {
        assert_eq!(parts_of(&[10.0, 30.0]), [16, 48]);
        assert_eq!(parts_of(&[1.0, 1e6]), [1, 64]);
    }
}
