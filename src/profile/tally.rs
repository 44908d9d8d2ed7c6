//! What was measured so far.

use std::collections::BTreeMap;
use std::time::Duration;

use omnivore_sim::protocol::FcPlacement;

use super::{Estimate, Measured, Profile, ProfileError, ProfileSetup, StageProfile};
use crate::threads::per_worker;

/// Durations of one kind.
#[derive(Default)]
pub(super) struct Durations(Vec<f64>);

impl Durations {
    /// Adds one. A clock may be too coarse for a small one, which took some time nevertheless.
    pub fn enter(&mut self, span: Duration) {
        self.0.push(span.max(Duration::from_nanos(1)).as_secs_f64());
    }
}

/// Durations by the size of what was done.
#[derive(Default)]
pub(super) struct BySize(BTreeMap<u32, Durations>);

impl BySize {
    /// Adds one.
    pub fn enter(&mut self, size: u32, span: Duration) {
        self.0.entry(size).or_default().enter(span);
    }

    fn into_stage(self) -> Result<StageProfile, ProfileError> {
        let measured =
            self.0.into_iter().map(|(size, Durations(seconds))| Measured { size, seconds });
        StageProfile::new(measured.collect())
    }
}

/// One list for everything that a profile holds.
#[derive(Default)]
pub(super) struct Tally {
    pub forward: BySize,
    pub fc: BySize,
    pub backward: BySize,
    pub update: BySize,
    pub update_fc: BySize,
    pub hand_over: Durations,
    pub fc_hand_over: Durations,
    pub send_model: Durations,
}

impl Tally {
    /// The profile of a setup that was gone through.
    pub fn into_profile(self, setup: &ProfileSetup<'_>) -> Result<Profile, ProfileError> {
        let merged = setup.fc == FcPlacement::Merged;
        let fc_hand_over = merged.then(|| Estimate::of_median(&self.fc_hand_over.0));
        Ok(Profile {
            device: setup.device,
            precision: setup.precision,
            network: setup.objective.model().spec().name.clone(),
            fc_placement: setup.fc,
            mini_batch: setup.mini_batch,
            concurrency: setup.concurrency,
            threads_per_worker: per_worker(setup.threads, setup.concurrency as usize),
            hand_over_s: Estimate::of_median(&self.hand_over.0)?,
            fc_hand_over_s: fc_hand_over.transpose()?,
            send_model_s: Estimate::of_median(&self.send_model.0)?,
            forward: self.forward.into_stage()?,
            fc: self.fc.into_stage()?,
            backward: self.backward.into_stage()?,
            update: self.update.into_stage()?,
            update_fc: merged.then(|| self.update_fc.into_stage()).transpose()?,
        })
    }
}
