//! What happened in a run, as plain records: the only thing that observers see.

mod timeline;

pub use timeline::{Actor, Content, Doing, Span, TimeSheet};

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::objective::Evaluation;
use crate::protocol::{Blocked, ModelPart, Update};
use crate::units::{Bytes, SimDuration, SimTime};

/// An update and the instant at which it was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRecord {
    /// When it was applied.
    pub time: SimTime,
    /// What was applied.
    #[serde(flatten)]
    pub update: Update,
}

/// The model's quality after a number of updates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Updates of the conv (or whole) model so far.
    pub update: u64,
    /// When.
    pub time: SimTime,
    /// How good.
    pub evaluation: Evaluation,
}

/// How a machine spent its time: busy + communicating + waiting = makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Computing.
    pub busy: SimDuration,
    /// Sending or receiving.
    pub communicating: SimDuration,
    /// Neither.
    pub waiting: SimDuration,
}

impl Usage {
    fn and(self, later: Usage) -> Usage {
        Usage {
            busy: self.busy + later.busy,
            communicating: self.communicating + later.communicating,
            waiting: self.waiting + later.waiting,
        }
    }
}

/// Bytes that crossed the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Handed to a link.
    pub sent: Bytes,
    /// Arrived.
    pub received: Bytes,
    /// Still on a link when the run ended.
    pub in_flight: Bytes,
}

/// Why a run stopped before its last update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// Updates applied by then.
    pub update: u64,
    /// The first machine of the group whose update did it.
    pub machine: MachineId,
    /// What was seen.
    pub reason: String,
}

/// Examples on their way through a run: processed = applied + dropped + unapplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleCount {
    /// Behind a gradient that was computed.
    pub processed: u64,
    /// Behind a gradient that was applied.
    pub applied: u64,
    /// Behind a gradient that came too late to be used, or was given up.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub dropped: u64,
    /// Behind a gradient that was in flight when the run ended.
    pub unapplied: u64,
    /// Of those processed, examples that a machine did not have: zeros stood for them.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub lacking: u64,
    /// Examples that were not used because another machine had no counterpart to them.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub unused: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Everything that a run leaves behind except the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Updates of the conv (or whole) model, in order.
    pub updates: Vec<UpdateRecord>,
    /// Updates of a merged FC model, in order.
    pub fc_updates: Vec<UpdateRecord>,
    /// Updates of single blocks of the model, in order; the versions are those of the block.
    #[serde(default)]
    pub block_updates: Vec<UpdateRecord>,
    /// Quality against updates and time.
    pub curve: Vec<CurvePoint>,
    /// One row per conv machine.
    pub machines: Vec<Usage>,
    /// The merged FC server, where there is one.
    pub fc_server: Option<Usage>,
    /// The model server, where updates take time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model_server: Option<Usage>,
    /// What crossed the network.
    pub traffic: Traffic,
    /// What became of the examples.
    pub examples: ExampleCount,
    /// Set when the run ended early because the loss blew up.
    pub diverged: Option<Divergence>,
    /// Set when the run ended early because nothing could happen any more: who waits for what.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stalled: Option<Vec<Blocked>>,
    /// When the run ended.
    pub makespan: SimTime,
    /// Machines in a group.
    pub machines_per_group: u32,
    /// Number of compute groups.
    pub groups: u32,
    /// What everybody did: the spans of each machine in order, then those of the FC server.
    #[serde(default)]
    pub timeline: Vec<Span>,
}

/// Counts, mean and spread of a staleness.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StalenessSummary {
    /// Mean over updates.
    pub mean: f64,
    /// Population standard deviation over updates.
    pub sd: f64,
    /// Updates with staleness 0, 1, 2, …
    pub histogram: Vec<u64>,
}

impl StalenessSummary {
    /// Summary of a sequence of values.
    #[expect(clippy::cast_precision_loss, reason = "counts of updates stay far below 2⁵³")]
    pub fn of(values: impl Iterator<Item = u64>) -> Self {
        let mut histogram: Vec<u64> = Vec::new();
        for value in values {
            let bin = usize::try_from(value).expect("a staleness fits in memory");
            if histogram.len() <= bin {
                histogram.resize(bin + 1, 0);
            }
            histogram[bin] += 1;
        }
        let n = histogram.iter().sum::<u64>().max(1) as f64;
        let moment = |power: i32| -> f64 {
            let terms = histogram.iter().enumerate();
            terms.map(|(value, count)| (value as f64).powi(power) * *count as f64).sum::<f64>() / n
        };
        let mean = moment(1);
        StalenessSummary { mean, sd: (moment(2) - mean * mean).max(0.0).sqrt(), histogram }
    }

    /// The part of updates that would have to change their staleness for the two histograms to have
    /// the same shape: half the sum of |p − q| over all values, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "counts of updates stay far below 2⁵³")]
    pub fn distance(&self, other: &StalenessSummary) -> f64 {
        let total =
            |summary: &StalenessSummary| summary.histogram.iter().sum::<u64>().max(1) as f64;
        let part = |summary: &StalenessSummary, value: usize| {
            summary.histogram.get(value).copied().unwrap_or(0) as f64 / total(summary)
        };
        let bins = self.histogram.len().max(other.histogram.len());
        (0..bins).map(|value| (part(self, value) - part(other, value)).abs()).sum::<f64>() / 2.0
    }
}

impl Trace {
    /// Staleness of the conv (or whole) model over all groups.
    pub fn staleness(&self) -> StalenessSummary {
        StalenessSummary::of(self.updates.iter().map(|record| record.update.staleness.0))
    }

    /// Staleness of the updates to which a machine contributed.
    pub fn staleness_of(&self, machine: MachineId) -> StalenessSummary {
        let group = GroupId(machine.0 / self.machines_per_group.max(1));
        let own = self.updates.iter().filter(|record| record.update.cycle.group == group);
        StalenessSummary::of(own.map(|record| record.update.staleness.0))
    }

    /// Staleness of each block of the model that is updated by itself, in order.
    pub fn staleness_of_blocks(&self) -> Vec<StalenessSummary> {
        let mut values: Vec<Vec<u64>> = Vec::new();
        for UpdateRecord { update, .. } in &self.block_updates {
            if let ModelPart::Block(block) = update.part {
                let number = block.number as usize;
                values.resize(values.len().max(number + 1), Vec::new());
                values[number].push(update.staleness.0);
            }
        }
        values.into_iter().map(|own| StalenessSummary::of(own.into_iter())).collect()
    }

    /// Mean time between updates after warm-up, over whole cycles; `None` with fewer than two
    /// updates.
    ///
    /// The first two cycles of every group are left out where enough updates remain, and the
    /// window is a whole number of cycles of all groups.
    #[expect(clippy::cast_precision_loss, reason = "counts of updates stay far below 2⁵³")]
    pub fn time_per_update_s(&self) -> Option<f64> {
        let groups = self.groups.max(1) as usize;
        let last = self.updates.len().checked_sub(1)?;
        let first = if last >= 3 * groups { 2 * groups } else { 0 };
        let span = match (last - first) / groups * groups {
            0 => last - first,
            whole_cycles => whole_cycles,
        };
        if span == 0 {
            return None;
        }
        let from = self.updates[last - span].time;
        Some((self.updates[last].time - from).as_secs_f64() / span as f64)
    }

    /// Mean length of a group's cycle from write to write; `None` when no group wrote twice.
    #[expect(clippy::cast_precision_loss, reason = "counts of updates stay far below 2⁵³")]
    pub fn cycle_time_s(&self) -> Option<f64> {
        let mut total = SimDuration::ZERO;
        let mut n_cycles = 0_u64;
        // Not as long as `groups`: a run that went on with fewer has updates of all that it ever had.
        let mut written: Vec<Option<SimTime>> = Vec::new();
        for record in &self.updates {
            let group = record.update.cycle.group.index();
            if group >= written.len() {
                written.resize(group + 1, None);
            }
            if let Some(earlier) = written[group].replace(record.time) {
                total += record.time - earlier;
                n_cycles += 1;
            }
        }
        (n_cycles > 0).then(|| total.as_secs_f64() / n_cycles as f64)
    }

    /// This run and a later one that went on from its model as one: times, updates and versions of
    /// the later one count from where this one ended. What was in flight between them stays so.
    ///
    /// A machine that only one of them has waited through the other. The later one says how it all
    /// ended, and how many groups there are.
    #[must_use]
    pub fn followed_by(self, later: &Trace) -> Trace {
        let span = self.makespan - SimTime::ZERO;
        let joined = |own: Vec<UpdateRecord>, others: &[UpdateRecord]| {
            // Versions are numbered from 1.
            let before = own.len() as u64;
            let shifted = others.iter().map(|record| {
                let Update { read, written, .. } = record.update;
                let (read, written) = (read.0 + before, written.0 + before);
                let (read, written) = (ModelVersion(read), ModelVersion(written));
                let update = Update { read, written, ..record.update };
                UpdateRecord { time: record.time + span, update }
            });
            own.into_iter().chain(shifted).collect::<Vec<_>>()
        };
        let before = self.updates.len() as u64;
        let points = later.curve.iter().filter(|point| point.update > 0 || self.curve.is_empty());
        let points = points.map(|point| CurvePoint {
            update: point.update + before,
            time: point.time + span,
            ..*point
        });
        let spans = later.timeline.iter().map(|own| Span {
            from: own.from + span,
            to: own.to + span,
            ..*own
        });
        let more = later.makespan - SimTime::ZERO;
        let n = self.machines.len().max(later.machines.len());
        let usage = |index: usize| {
            let idle = |span| Usage { waiting: span, ..Usage::default() };
            let first = self.machines.get(index).copied().unwrap_or(idle(span));
            first.and(later.machines.get(index).copied().unwrap_or(idle(more)))
        };
        let machines = (0..n).map(usage).collect();
        let (a, b) = (self.examples, later.examples);
        let both = |first: Option<Usage>, second: Option<Usage>| match (first, second) {
            (Some(first), Some(second)) => Some(first.and(second)),
            (first, second) => first.or(second),
        };
        Trace {
            updates: joined(self.updates, &later.updates),
            fc_updates: joined(self.fc_updates, &later.fc_updates),
            // Versions of blocks are counted block by block.
            block_updates: self
                .block_updates
                .into_iter()
                .chain(later.block_updates.clone())
                .collect(),
            curve: self.curve.iter().copied().chain(points).collect(),
            machines,
            fc_server: both(self.fc_server, later.fc_server),
            model_server: both(self.model_server, later.model_server),
            traffic: Traffic {
                sent: self.traffic.sent + later.traffic.sent,
                received: self.traffic.received + later.traffic.received,
                in_flight: self.traffic.in_flight + later.traffic.in_flight,
            },
            examples: ExampleCount {
                processed: a.processed + b.processed,
                applied: a.applied + b.applied,
                dropped: a.dropped + b.dropped,
                unapplied: a.unapplied + b.unapplied,
                lacking: a.lacking + b.lacking,
                unused: a.unused + b.unused,
            },
            diverged: later
                .diverged
                .clone()
                .map(|diverged| Divergence { update: diverged.update + before, ..diverged }),
            stalled: later.stalled.clone(),
            makespan: later.makespan + span,
            machines_per_group: later.machines_per_group,
            groups: later.groups,
            timeline: self.timeline.into_iter().chain(spans).collect(),
        }
    }

    /// Examples behind the updates so far are counted here by the drivers.
    pub fn record_update(&mut self, time: SimTime, update: Update) {
        let list = match update.part {
            ModelPart::Fc => &mut self.fc_updates,
            ModelPart::Conv | ModelPart::Whole => &mut self.updates,
            ModelPart::Block(_) => &mut self.block_updates,
        };
        list.push(UpdateRecord { time, update });
    }
}

/// Width of the centred mean that smooths loss curves, in evaluations.
///
/// Source: SE.md, section 1.
pub const SMOOTHING_WINDOW: usize = 7;

/// Centred mean over [`SMOOTHING_WINDOW`] values, shrinking at the ends; values are capped at
/// `cap` first, so that a spike or an infinity cannot swamp its neighbours.
#[expect(clippy::cast_precision_loss, reason = "the window is small")]
pub fn smoothed(values: &[f64], cap: f64) -> Vec<f64> {
    let half = SMOOTHING_WINDOW / 2;
    (0..values.len())
        .map(|middle| {
            let reach = half.min(middle).min(values.len() - 1 - middle);
            let window = &values[middle - reach..=middle + reach];
            // `min` turns NaN into the cap, which is what a diverged loss counts as.
            window.iter().map(|value| value.min(cap)).sum::<f64>() / window.len() as f64
        })
        .collect()
}

/// First position at which a curve falls to `target`, by linear interpolation; `None` where it
/// never does. The two slices are positions (ascending) and values.
pub fn first_crossing(positions: &[f64], values: &[f64], target: f64) -> Option<f64> {
    let reached = values.iter().position(|value| *value <= target)?;
    if reached == 0 {
        return Some(positions[0]);
    }
    let (before, after) = (values[reached - 1], values[reached]);
    let part = (before - target) / (before - after);
    Some(positions[reached - 1] + part * (positions[reached] - positions[reached - 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_crossing_is_interpolated_between_evaluations() {
        let positions = [0.0, 5.0, 10.0, 15.0];
        assert_eq!(first_crossing(&positions, &[4.0, 3.0, 1.0, 2.0], 2.0), Some(7.5));
        assert_eq!(first_crossing(&positions, &[1.0, 3.0, 1.0, 2.0], 2.0), Some(0.0));
        assert_eq!(first_crossing(&positions, &[4.0, 3.0, 3.0, 3.0], 2.0), None);
    }

    #[test]
    fn smoothing_keeps_a_constant_and_counts_a_nan_as_the_cap() {
        assert_eq!(smoothed(&[2.0; 9], 3.0), vec![2.0; 9]);
        let with_nan = smoothed(&[1.0, 1.0, 1.0, f64::NAN, 1.0, 1.0, 1.0], 8.0);
        assert!((with_nan[3] - 2.0).abs() < 1e-12);
    }

    #[test]
    fn histograms_that_share_half_of_their_updates_are_half_apart() {
        let of = |values: &[u64]| StalenessSummary::of(values.iter().copied());
        let (one, other) = (of(&[0, 0, 1, 1]), of(&[1, 2]));
        assert!((one.distance(&other) - 0.5).abs() < 1e-12);
        assert!(one.distance(&one) < 1e-12);
    }

    #[test]
    fn a_summary_counts_every_value_once() {
        let summary = StalenessSummary::of([0, 2, 2, 4].into_iter());
        assert_eq!(summary.histogram, vec![1, 0, 2, 0, 1]);
        assert!((summary.mean - 2.0).abs() < 1e-12 && (summary.sd - 2_f64.sqrt()).abs() < 1e-12);
    }
}
