//! Hardware efficiency: the mean time between two updates, from the times of the phases.
//!
//! A compute group of `k` machines computes the conv phase of one mini-batch, then waits for the
//! merged FC server, which serves one group at a time. Two scalings are kept apart. With *fixed
//! machines* (`N` machines regrouped, [`FixedMachines`]) the conv phase grows longer as the groups
//! grow smaller; with *fixed machines per group* (machines added with groups, [`PhaseTimes`]) it
//! stays as it is.

use std::num::NonZeroU32;

use super::error::{AnalyticError, check_not_negative};
use crate::units::SimDuration;

/// An expected span of time in seconds: finite and not negative.
///
/// Unlike [`SimDuration`] it is not rounded to nanoseconds, since it is the mean of many spans and
/// decides the order of nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct MeanTime(f64);

impl MeanTime {
    /// No time at all.
    pub const ZERO: MeanTime = MeanTime(0.0);

    /// An expected span of so many seconds.
    ///
    /// # Errors
    /// [`AnalyticError::MeanTime`] when the number is negative, NaN or infinite.
    pub fn from_secs_f64(seconds: f64) -> Result<Self, AnalyticError> {
        check_not_negative(seconds, |seconds| AnalyticError::MeanTime { seconds })?;
        Ok(MeanTime(seconds))
    }

    /// Seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0
    }
}

impl From<SimDuration> for MeanTime {
    fn from(span: SimDuration) -> Self {
        MeanTime(span.as_secs_f64())
    }
}

/// How long the conv phase of one mini-batch takes as a function of the size of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvPhase {
    /// Time one machine computes on the whole mini-batch, `t_compute(1)`.
    pub compute_alone: MeanTime,
    /// Time one machine's share of the model occupies the network, `t_network(1)`.
    pub network_alone: MeanTime,
}

impl ConvPhase {
    /// Time of the conv phase on `k` machines together, in seconds:
    ///
    /// `t_conv(k) = max(t_compute(1) / k, t_network(1) · k)`
    ///
    /// Machines divide the computation, but each of them pulls and pushes the whole conv model
    /// through the one link of the model server. Holds when computation and transfer overlap, and
    /// when all machines of the group are equally fast.
    ///
    /// Source: after the hardware-efficiency model of Hadjis et al., "Omnivore", arXiv:1606.04487.
    pub fn time(&self, machines_per_group: NonZeroU32) -> MeanTime {
        let k = f64::from(machines_per_group.get());
        MeanTime((self.compute_alone.0 / k).max(self.network_alone.0 * k))
    }
}

/// Mean times of the two phases of one group's cycle, at a given size of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseTimes {
    /// Time of the conv phase of one mini-batch on one group, `t_conv`.
    pub conv: MeanTime,
    /// Time the FC server serves one group's mini-batch, `t_fc`.
    pub fc: MeanTime,
}

impl PhaseTimes {
    /// Time per update, in seconds, when every service takes exactly its mean:
    ///
    /// `HE(g) = max(t_fc, (t_conv + t_fc) / g)`
    ///
    /// The second term is one cycle shared by `g` groups; the first is the FC server when it never
    /// rests. Exact after warm-up and over whole cycles, with machines per group kept fixed.
    ///
    /// Source: after the hardware-efficiency model of Hadjis et al., "Omnivore", arXiv:1606.04487.
    pub fn time_per_update(&self, groups: NonZeroU32) -> MeanTime {
        let shared_cycle = (self.conv.0 + self.fc.0) / f64::from(groups.get());
        MeanTime(self.fc.0.max(shared_cycle))
    }

    /// The smallest number of groups that keeps the FC server busy, `g ≥ 1 + t_conv / t_fc`, or
    /// `most_groups` where no number up to it does.
    ///
    /// A shortfall below a billionth of `g` counts as reached: it is the rounding of times that
    /// were measured in nanoseconds. Holds like [`PhaseTimes::time_per_update`].
    ///
    /// Source: after the optimizer of Hadjis et al., "Omnivore", arXiv:1606.04487, which begins there.
    pub fn saturating_groups(&self, most_groups: NonZeroU32) -> NonZeroU32 {
        (1..=most_groups.get())
            .filter_map(NonZeroU32::new)
            .find(|groups| self.saturated_by(*groups))
            .unwrap_or(most_groups)
    }

    /// Whether `g · t_fc ≥ t_fc + t_conv`, up to rounding.
    fn saturated_by(&self, groups: NonZeroU32) -> bool {
        let server_work = f64::from(groups.get()) * self.fc.0;
        self.fc.0 > 0.0 && server_work * (1.0 + 1e-9) >= self.fc.0 + self.conv.0
    }

    /// Time per update, in seconds, when FC services are exponential: the machine-repair queue.
    ///
    /// `HE = t_fc / U`, `U = 1 - 1 / Σ_{j=0..g} g!/(g-j)! · (t_fc / t_conv)^j`
    ///
    /// `U` is the utilisation of the FC server. Computed by mean-value analysis, which gives the
    /// same number without factorials: with `Q(0) = 0` and for `n = 1..g`,
    /// `R = t_fc·(1 + Q(n-1))`, `X = n / (t_conv + R)`, `Q(n) = X·R`, and `HE = 1 / X`. Every term
    /// is positive, so nothing cancels or overflows at any `g`.
    ///
    /// Holds for exponential FC service in order of arrival and independent conv times of any
    /// distribution with mean `t_conv`, without other queues in the loop.
    ///
    /// Source: Reiser and Lavenberg, "Mean-value analysis of closed multichain queuing networks",
    /// J. ACM 27(2), 1980; the sum is Feller, "An Introduction to Probability Theory", vol. 1,
    /// XVII.7.
    pub fn machine_repair_time_per_update(&self, groups: NonZeroU32) -> MeanTime {
        let (mut waiting, mut time_per_update) = (0.0, 0.0);
        for n in 1..=groups.get() {
            let response = self.fc.0 * (1.0 + waiting);
            time_per_update = (self.conv.0 + response) / f64::from(n);
            // Without any service time nobody ever waits.
            waiting = if response > 0.0 { response / time_per_update } else { 0.0 };
        }
        MeanTime(time_per_update)
    }
}

/// A cluster of `N` conv machines that can be divided into more or fewer groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedMachines {
    /// Number of conv machines, `N`; the merged FC server is one more.
    pub machines: NonZeroU32,
    /// The conv phase as a function of the size of the group.
    pub conv: ConvPhase,
    /// Time the FC server serves one group's mini-batch, `t_fc`.
    pub fc: MeanTime,
}

impl FixedMachines {
    /// Mean times of the phases when the machines form `g` groups of `k = N / g`.
    ///
    /// # Errors
    /// [`AnalyticError::UnevenGroups`] when `g` does not divide `N`.
    pub fn phase_times(&self, groups: NonZeroU32) -> Result<PhaseTimes, AnalyticError> {
        let (machines, groups) = (self.machines.get(), groups.get());
        let uneven = AnalyticError::UnevenGroups { groups, machines };
        if !machines.is_multiple_of(groups) {
            return Err(uneven);
        }
        let machines_per_group = NonZeroU32::new(machines / groups).ok_or(uneven)?;
        Ok(PhaseTimes { conv: self.conv.time(machines_per_group), fc: self.fc })
    }

    /// Time per update, in seconds, when every service takes exactly its mean:
    ///
    /// `HE(g) = max(t_fc, (t_conv(N/g) + t_fc) / g)`
    ///
    /// Where computation bounds the conv phase this is `t_compute(1)/N + t_fc/g` until the FC
    /// server saturates: more groups only hide the FC phase. Where the network bounds it, the conv
    /// share falls like `1/g²`. Exact after warm-up and over whole cycles.
    ///
    /// Source: after the hardware-efficiency model of Hadjis et al., "Omnivore", arXiv:1606.04487.
    ///
    /// # Errors
    /// [`AnalyticError::UnevenGroups`] when `g` does not divide `N`.
    pub fn time_per_update(&self, groups: NonZeroU32) -> Result<MeanTime, AnalyticError> {
        Ok(self.phase_times(groups)?.time_per_update(groups))
    }

    /// The smallest divisor `g` of `N` that keeps the FC server busy,
    /// `g ≥ 1 + t_conv(N/g) / t_fc`, or `N` where none does.
    ///
    /// Source: after the optimizer of Hadjis et al., "Omnivore", arXiv:1606.04487, which begins there.
    pub fn saturating_groups(&self) -> NonZeroU32 {
        (1..=self.machines.get())
            .filter_map(NonZeroU32::new)
            .find(|groups| {
                self.phase_times(*groups).is_ok_and(|phases| phases.saturated_by(*groups))
            })
            .unwrap_or(self.machines)
    }
}

/// Synchronous SGD that waits for the first `N` of `N + b` gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupWorkers {
    /// Gradients that make an update, `N`.
    pub needed: NonZeroU32,
    /// Machines beyond them, `b`, whose late gradients are cancelled.
    pub backups: u32,
}

impl BackupWorkers {
    /// Expected time per update, in seconds: the `N`-th of `N + b` exponential compute times.
    ///
    /// `t · (H(N+b) - H(b))`, with `H(n) = 1 + 1/2 + … + 1/n` and mean compute time `t`
    ///
    /// Holds when every machine starts anew at each model version (late gradients are cancelled at
    /// once), compute times are independent and exponential, and nothing else takes time.
    ///
    /// Source: Chen et al., "Revisiting Distributed Synchronous SGD", arXiv:1604.00981, for the
    /// strategy; Rényi, "On the theory of order statistics", 1953, for the expectation.
    pub fn time_per_update(&self, compute: MeanTime) -> MeanTime {
        let backups = f64::from(self.backups);
        let harmonic: f64 =
            (1..=self.needed.get()).rev().map(|i| 1.0 / (backups + f64::from(i))).sum();
        MeanTime(compute.0 * harmonic)
    }
}
