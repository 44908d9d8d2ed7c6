//! Adaptive synchronous parallel: machines never wait, and all commit equally often.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, Edge, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::solo::{Habit, Merge, Solo};
use super::{Change, LocalMomentum, Parcel, Progress, ProtocolError, Roster, ServerRule, Strategy};
use crate::ids::MachineId;
use crate::units::{SimDuration, SimTime};

/// Each machine makes local steps w_i ← w_i − η·g without waiting for anybody, sums their
/// gradients, and commits the sum once per interval Γ: w ← w − (η/N)·Σ g for N machines, with the
/// explicit momentum on the server. It then reads the model.
///
/// The n-th commit of a machine is due n·Γ after the run began, and happens with the first
/// gradient from then on; so all commit equally often, and make local steps in proportion to their
/// speed. The source searches Γ while it trains; here it is a knob, to be searched like others.
/// N counts the machines that are there.
///
/// Source: Hu et al., "Distributed Machine Learning through Heterogeneous Edge Systems" (ADSP),
/// AAAI 2020, arXiv:1911.06949.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adsp {
    /// Γ, time between two commits of a machine in milliseconds.
    pub commit_interval_ms: f32,
}

impl Kind for Adsp {
    const CARD: Card = Card {
        name: "adsp",
        rule: "local steps without waiting; once per interval Γ each machine commits: \
               w ← w − (η/N)·Σ g",
        source: "ADSP, arXiv:1911.06949",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[Knob {
            name: "commit_interval_ms",
            meaning: "Γ, time between two commits of a machine",
            values: KnobValues::Number { above: Edge::Included(1e-3), below: Edge::Included(1e9) },
            typical: Typical::Number(100.0),
        }],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Adsp { commit_interval_ms: knobs.number("commit_interval_ms") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Number(self.commit_interval_ms)]
    }

    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2²⁴ machines")]
    fn start(
        &self,
        roster: Roster,
        from: Option<&Progress>,
    ) -> Result<Box<dyn Strategy>, ProtocolError> {
        let interval_s = f64::from(self.commit_interval_ms) / 1e3;
        let interval = SimDuration::from_secs_f64(interval_s).map_err(|error| {
            let (strategy, reason) = (Self::CARD.name, error.to_string());
            ProtocolError::Knobs { strategy, reason }
        })?;
        let commits = Commits {
            interval,
            machines: roster.conv_machines as f32,
            due: vec![None; roster.conv_machines as usize],
        };
        Ok(Box::new(Solo::new(Box::new(commits), roster, from)))
    }
}

/// When each machine is to commit next.
#[derive(Clone, Debug)]
struct Commits {
    interval: SimDuration,
    machines: f32,
    due: Vec<Option<SimTime>>,
}

impl Habit for Commits {
    fn started(&mut self, machine: MachineId, now: SimTime) {
        self.due[machine.index()] = Some(now + self.interval);
    }

    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2²⁴ machines")]
    fn takes_part(&mut self, there: &[bool]) {
        self.machines = there.iter().filter(|is_there| **is_there).count() as f32;
    }

    fn pushes(&mut self, machine: MachineId, _steps: u32, now: SimTime) -> bool {
        let due = &mut self.due[machine.index()];
        if due.is_some_and(|due| now < due) {
            return false;
        }
        *due = due.map(|due| due + self.interval);
        true
    }

    fn changes(&self) -> Vec<Change> {
        vec![Change::Sum { weight: 1.0 }, Change::Step { momentum: LocalMomentum::None, rate: 1.0 }]
    }

    fn parcel(&self, _steps: u32) -> Parcel {
        Parcel::Sum { divisor: self.machines }
    }

    fn merge(&mut self, _machine: MachineId) -> Merge {
        Merge::Apply(ServerRule::Scaled(1.0))
    }
}
