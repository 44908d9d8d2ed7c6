//! Asynchronous local SGD: outer gradients on arrival, with outer momentum now and then.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::diloco::{OUTER_LEARNING_RATE, OUTER_MOMENTUM};
use super::solo::{Habit, Merge, Solo};
use super::{
    Change, LocalMomentum, MomentumTurn, OuterRule, Parcel, ProtocolError, Roster, ServerRule,
    Strategy,
};
use crate::ids::MachineId;
use crate::units::{SimDuration, SimTime};

/// Each machine makes H_i local steps of the run's update rule from the w₀ that it read to w_i;
/// d = w₀ − w_i then changes the model on arrival, with outer momentum only every n arrivals:
/// w ← w − ηₒ·d/n each time, and after n of them with the sum s: m ← μₒ·m + s/n,
/// w ← w − ηₒ·μₒ·m (delayed Nesterov). The inner momentum is on the machines.
///
/// With n = 1 every arrival carries momentum, which is the naive form; one machine with n = 1 is
/// `diloco` on one machine. `by_speed` gives machine i the steps H_i = max(1, ⌊H·v_i/max v⌋) for
/// its measured speed v_i; before all speeds are known, and with `equal`, H_i = H. Only machines that
/// are there count.
///
/// Source: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", arXiv:2401.09135,
/// delayed Nesterov with c = 0 and dynamic local updates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AsyncLocal {
    /// H, local steps of the fastest machine.
    pub steps: u32,
    /// Whether slower machines make fewer.
    pub steps_of_machines: StepsOfMachines,
    /// n, arrivals between two changes of the outer momentum.
    pub momentum_every: u32,
    /// ηₒ above 0.
    pub outer_learning_rate: f32,
    /// μₒ in [0, 1).
    pub outer_momentum: f32,
}

/// Whether slower machines make fewer local steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepsOfMachines {
    /// All make the same number.
    Equal,
    /// In proportion to their speed, so that all push about equally often.
    BySpeed,
}

impl Kind for AsyncLocal {
    const CARD: Card = Card {
        name: "async_local",
        rule: "H local steps from w₀; on arrival w ← w − ηₒ·(w₀ − w_i)/n; outer momentum every n \
               arrivals",
        source: "Asynchronous Local-SGD, arXiv:2401.09135",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "steps",
                meaning: "H, local steps of the fastest machine between two pushes",
                values: KnobValues::Count { from: 1, to: u32::MAX },
                typical: Typical::Count(4),
            },
            Knob {
                name: "steps_of_machines",
                meaning: "whether slower machines make fewer local steps",
                values: KnobValues::Word(&["equal", "by_speed"]),
                typical: Typical::Word("by_speed"),
            },
            Knob {
                name: "momentum_every",
                meaning: "n, arrivals between two changes of the outer momentum",
                values: KnobValues::Count { from: 1, to: 1 << 24 },
                typical: Typical::Count(4),
            },
            OUTER_LEARNING_RATE,
            OUTER_MOMENTUM,
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let steps_of_machines = match knobs.word("steps_of_machines") {
            "equal" => StepsOfMachines::Equal,
            _ => StepsOfMachines::BySpeed,
        };
        Ok(AsyncLocal {
            steps: knobs.count("steps"),
            steps_of_machines,
            momentum_every: knobs.count("momentum_every"),
            outer_learning_rate: knobs.number("outer_learning_rate"),
            outer_momentum: knobs.number("outer_momentum"),
        })
    }

    fn values(&self) -> Vec<KnobValue> {
        let word = match self.steps_of_machines {
            StepsOfMachines::Equal => "equal",
            StepsOfMachines::BySpeed => "by_speed",
        };
        vec![
            KnobValue::Count(self.steps),
            KnobValue::Word(word.to_owned()),
            KnobValue::Count(self.momentum_every),
            KnobValue::Number(self.outer_learning_rate),
            KnobValue::Number(self.outer_momentum),
        ]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        let arrivals = Arrivals {
            kind: *self,
            arrived: 0,
            step_times: vec![None; roster.conv_machines as usize],
            there: vec![true; roster.conv_machines as usize],
        };
        Ok(Box::new(Solo::new(Box::new(arrivals), roster)))
    }
}

/// Counts arrivals and measures speeds.
#[derive(Clone, Debug)]
struct Arrivals {
    kind: AsyncLocal,
    /// Outer gradients since the outer momentum last changed.
    arrived: u32,
    /// How long each machine last took for a local step, in nanoseconds.
    step_times: Vec<Option<u64>>,
    /// Which machines are there.
    there: Vec<bool>,
}

impl Arrivals {
    /// H_i. Speeds are inverse step times, so v_i / max v = min t / t_i.
    fn steps_of(&self, machine: MachineId) -> u32 {
        let pairs = self.step_times.iter().zip(&self.there);
        let there = pairs.filter(|(_, is_there)| **is_there).map(|(time, _)| *time);
        let known: Option<Vec<u64>> = there.collect();
        let (Some(times), StepsOfMachines::BySpeed) = (known, self.kind.steps_of_machines) else {
            return self.kind.steps;
        };
        let own = self.step_times[machine.index()].unwrap_or(0);
        let least = times.iter().min().copied().unwrap_or(0);
        if own == 0 {
            return self.kind.steps;
        }
        let steps = u128::from(self.kind.steps) * u128::from(least) / u128::from(own);
        u32::try_from(steps).unwrap_or(self.kind.steps).max(1)
    }
}

impl Habit for Arrivals {
    fn pushes(&mut self, machine: MachineId, steps: u32, _now: SimTime) -> bool {
        steps >= self.steps_of(machine)
    }

    fn changes(&self) -> Vec<Change> {
        vec![Change::Step { momentum: LocalMomentum::Explicit, rate: 1.0 }]
    }

    fn parcel(&self, _steps: u32) -> Parcel {
        Parcel::Difference
    }

    fn takes_part(&mut self, there: &[bool]) {
        self.there = there.to_vec();
    }

    fn timed(&mut self, machine: MachineId, steps: u32, span: SimDuration) {
        self.step_times[machine.index()] = Some(span.as_nanos() / u64::from(steps));
    }

    fn merge(&mut self, _machine: MachineId) -> Merge {
        let AsyncLocal { outer_learning_rate, outer_momentum, momentum_every, .. } = self.kind;
        self.arrived = (self.arrived + 1) % momentum_every;
        let momentum = if self.arrived == 0 { MomentumTurn::Changes } else { MomentumTurn::Waits };
        Merge::Apply(ServerRule::Delayed {
            rule: OuterRule { learning_rate: outer_learning_rate, momentum: outer_momentum },
            arrivals: momentum_every,
            momentum,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_half_the_speed_makes_half_the_steps_and_everyone_at_least_one() {
        let kind = AsyncLocal {
            steps: 8,
            steps_of_machines: StepsOfMachines::BySpeed,
            momentum_every: 3,
            outer_learning_rate: 1.0,
            outer_momentum: 0.0,
        };
        let mut arrivals =
            Arrivals { kind, arrived: 0, step_times: vec![None; 3], there: vec![true; 3] };
        for (machine, step_ms) in [(0, 10), (1, 20)] {
            arrivals.timed(MachineId(machine), 4, SimDuration::from_millis(4 * step_ms));
        }
        assert_eq!(arrivals.steps_of(MachineId(1)), 8, "one speed is still unknown");
        arrivals.timed(MachineId(2), 1, SimDuration::from_millis(1000));
        let steps = [0, 1, 2].map(|machine| arrivals.steps_of(MachineId(machine)));
        assert_eq!(steps, [8, 4, 1]);
    }
}
