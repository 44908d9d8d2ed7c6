//! Gradient coding: every part of the mini-batch is computed several times, so that no single
//! machine is waited for, and yet the whole gradient is used.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::{
    Action, Application, Blocked, Change, Cycle, Event, ModelPart, Parcel, ProtocolError, Roster,
    ServerRule, Share, Stage, Strategy, Term, Update, Work, blocked_at, whereabouts,
};
use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::units::SimTime;

/// The mini-batch is split into k partitions, each computed by s + 1 of the m machines. Machine i
/// pushes Σ_j b_ij·(B_j/B)·g_j over its partitions j; any m − s pushes decode the exact mean
/// gradient Σ_j (B_j/B)·g_j as Σ_i a_i·push_i, and w ← w − η·that. The other s are cancelled.
///
/// The code is a divided difference of order s: b_ij = 1 / Π (x_i − x_l) over the other holders l of
/// partition j, and a_i = Π (x_i − x_l) over the s machines l that are left out, for a node x_i of
/// each machine. The divided difference over s + 1 nodes of the polynomial Π (x − x_l), which is
/// monic of degree s, is 1, so Σ_i a_i·b_ij = 1 for every j. Nodes go round [0, 1) by the golden
/// section, so that machines which follow each other, and hold the same partitions, are far apart.
///
/// With `by_speed` a machine holds partitions in proportion to its measured speed; before all speeds
/// are known, and with `equal`, all hold the same number up to one. With s = 0 and a partition for
/// each machine it is `sync`, bit for bit.
///
/// Up to s machines may be lost, which are then the stragglers; with fewer than m − s left the next
/// update waits for one to join. A machine that joins waits for the next update, unless nothing else
/// can happen: then it computes for the present one.
///
/// Source: Wang et al., "Heterogeneity-aware Gradient Coding for Straggler Tolerance",
/// arXiv:1901.09339, after Tandon et al., "Gradient Coding", ICML 2017; the code here is our own
/// choice of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GradientCoding {
    /// s, machines that need not be waited for.
    pub stragglers: u32,
    /// k, parts of the mini-batch.
    pub partitions: u32,
    /// How partitions are shared out.
    pub allotment: Allotment,
}

/// How partitions are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allotment {
    /// The same number to all machines, up to one.
    Equal,
    /// In proportion to measured speed.
    BySpeed,
}

impl Kind for GradientCoding {
    const CARD: Card = Card {
        name: "gradient_coding",
        rule: "each of k partitions on s + 1 machines; any m − s coded sums decode the exact \
               gradient: w ← w − η·Σ (B_j/B)·g_j",
        source: "Heterogeneity-aware Gradient Coding, arXiv:1901.09339",
        grouping: Grouping::One,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "stragglers",
                meaning: "s, machines that need not be waited for",
                values: KnobValues::Count { from: 0, to: 4 },
                typical: Typical::Count(1),
            },
            Knob {
                name: "partitions",
                meaning: "k, parts of the mini-batch",
                values: KnobValues::Count { from: 1, to: 1 << 16 },
                typical: Typical::Count(4),
            },
            Knob {
                name: "allotment",
                meaning: "how partitions are shared out",
                values: KnobValues::Word(&["equal", "by_speed"]),
                typical: Typical::Word("by_speed"),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let allotment = match knobs.word("allotment") {
            "equal" => Allotment::Equal,
            _ => Allotment::BySpeed,
        };
        let (stragglers, partitions) = (knobs.count("stragglers"), knobs.count("partitions"));
        Ok(GradientCoding { stragglers, partitions, allotment })
    }

    fn values(&self) -> Vec<KnobValue> {
        let word = match self.allotment {
            Allotment::Equal => "equal",
            Allotment::BySpeed => "by_speed",
        };
        vec![
            KnobValue::Count(self.stragglers),
            KnobValue::Count(self.partitions),
            KnobValue::Word(word.to_owned()),
        ]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        self.check(roster)?;
        Ok(Box::new(Coded::new(*self, roster)))
    }
}

impl GradientCoding {
    fn check(self, roster: Roster) -> Result<(), ProtocolError> {
        let Roster { conv_machines: machines, mini_batch, .. } = roster;
        let GradientCoding { stragglers, partitions, .. } = self;
        let refuse = |reason| Err(ProtocolError::Knobs { strategy: Self::CARD.name, reason });
        if stragglers >= machines {
            return refuse(format!(
                "{stragglers} stragglers of {machines} machines leave none; use at most {}",
                machines - 1
            ));
        }
        if partitions > mini_batch {
            return refuse(format!(
                "a mini-batch of {mini_batch} has no {partitions} partitions; use at most \
                 {mini_batch}"
            ));
        }
        if u64::from(partitions) * u64::from(stragglers + 1) < u64::from(machines) {
            return refuse(format!(
                "{partitions} partitions, each on {} machines, leave some of the {machines} \
                 machines without one; use at least {}",
                stragglers + 1,
                machines.div_ceil(stragglers + 1)
            ));
        }
        Ok(())
    }
}

/// (√5 − 1)/2.
const GOLDEN_SECTION: f64 = 0.618_033_988_749_894_9;

/// Who computes which partitions, and the numbers of the code.
#[derive(Clone, Debug, PartialEq)]
struct Code {
    /// x_i of every machine.
    nodes: Vec<f64>,
    /// Partitions of every machine, in the order of computation.
    held: Vec<Vec<u32>>,
    /// Machines of every partition.
    holders: Vec<Vec<usize>>,
}

impl Code {
    /// A code in which machine i holds `counts[i]` partitions, s + 1 of each in all: machines take
    /// the next partitions in turn, going round.
    fn new(counts: &[u32], partitions: u32) -> Self {
        let node = |index: u32| (f64::from(index) * GOLDEN_SECTION).fract();
        let nodes = (0..).map(node).take(counts.len()).collect();
        let mut holders = vec![Vec::new(); partitions as usize];
        let mut next = 0;
        let held = counts
            .iter()
            .enumerate()
            .map(|(machine, count)| {
                let own: Vec<u32> = (0..*count).map(|index| (next + index) % partitions).collect();
                next = (next + count) % partitions;
                own.iter().for_each(|partition| holders[*partition as usize].push(machine));
                own
            })
            .collect();
        Code { nodes, held, holders }
    }

    /// b_ij.
    fn encoding(&self, machine: usize, partition: u32) -> f64 {
        let x = self.nodes[machine];
        let others = self.holders[partition as usize].iter().filter(|other| **other != machine);
        1.0 / others.map(|other| x - self.nodes[*other]).product::<f64>()
    }

    /// a_i.
    fn decoding(&self, machine: usize, left_out: &[usize]) -> f64 {
        let x = self.nodes[machine];
        left_out.iter().map(|other| x - self.nodes[*other]).product()
    }
}

/// Whole numbers that add up to `total`, each from 1 to `most`, in proportion to weights as nearly
/// as these bounds allow; the largest remainders are rounded up, the first of equals first.
fn in_proportion(weights: &[f64], total: u32, most: u32) -> Vec<u32> {
    let all: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| f64::from(total) * weight / all).collect();
    let mut counts: Vec<u32> = exact
        .iter()
        .map(|exact| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a part of a 32-bit total is neither negative nor larger"
            )]
            let whole = exact.floor() as u32;
            whole.clamp(1, most)
        })
        .collect();
    loop {
        let sum: u32 = counts.iter().sum();
        // How far each count is below its exact value.
        let lack = |index: usize| exact[index] - f64::from(counts[index]);
        let by_lack = |a: &usize, b: &usize| lack(*a).total_cmp(&lack(*b)).then(b.cmp(a));
        let indices = 0..counts.len();
        if sum < total {
            let index = indices.filter(|i| counts[*i] < most).max_by(by_lack);
            counts[index.expect("the bounds leave room")] += 1;
        } else if sum > total {
            let index = indices.filter(|i| counts[*i] > 1).min_by(by_lack);
            counts[index.expect("the bounds leave room")] -= 1;
        } else {
            return counts;
        }
    }
}

/// Where a machine stands; the number counts its computed partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Absent,
    Started,
    AwaitsModel,
    Computes(usize),
    Pushes,
    Pushed,
    /// It has joined and waits for the next update.
    Joins,
    Gone,
}

/// The state machine of [`GradientCoding`].
#[derive(Debug)]
struct Coded {
    kind: GradientCoding,
    roster: Roster,
    code: Code,
    version: ModelVersion,
    cycle: u64,
    machines: Vec<Position>,
    /// When each machine began what it computes.
    since: Vec<SimTime>,
    /// Examples per nanosecond, last measured.
    speeds: Vec<Option<f64>>,
    /// Whether a machine goes when the update is done.
    leaving: Vec<bool>,
}

impl Coded {
    fn new(kind: GradientCoding, roster: Roster) -> Self {
        let n_machines = roster.conv_machines as usize;
        let mut coded = Coded {
            kind,
            roster,
            code: Code::new(&[], kind.partitions),
            version: ModelVersion(0),
            cycle: 0,
            machines: vec![Position::Absent; n_machines],
            since: vec![SimTime::ZERO; n_machines],
            speeds: vec![None; n_machines],
            leaving: vec![false; n_machines],
        };
        coded.allot();
        coded
    }

    /// Shares out the partitions for the next update.
    fn allot(&mut self) {
        let GradientCoding { stragglers, partitions, allotment } = self.kind;
        let measured: Option<Vec<f64>> = match allotment {
            Allotment::Equal => None,
            Allotment::BySpeed => self.speeds.iter().copied().collect(),
        };
        let weights = measured.unwrap_or_else(|| vec![1.0; self.machines.len()]);
        let counts = in_proportion(&weights, partitions * (stragglers + 1), partitions);
        self.code = Code::new(&counts, partitions);
    }

    /// The examples of a partition; sizes differ by at most one, the larger first.
    fn share(&self, machine: MachineId, partition: u32) -> Share {
        let (batch, k) = (self.roster.mini_batch, self.kind.partitions);
        let (size, larger) = (batch / k, batch % k);
        let offset = partition * size + partition.min(larger);
        Share { machine, offset, size: size + u32::from(partition < larger) }
    }

    fn send_models(&mut self, actions: &mut Vec<Action>) {
        for machine in self.roster.machine_ids() {
            let own = &mut self.machines[machine.index()];
            if std::mem::take(&mut self.leaving[machine.index()]) {
                *own = Position::Gone;
                actions.push(Action::Dismiss { machine });
            } else if *own != Position::Gone {
                *own = Position::AwaitsModel;
                actions.push(Action::SendModel { machine, version: self.version });
            }
        }
    }

    fn send_model(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        self.machines[machine.index()] = Position::AwaitsModel;
        actions.push(Action::SendModel { machine, version: self.version });
    }

    fn start_if_all_are_there(&mut self, actions: &mut Vec<Action>) {
        let waits =
            |own: &Position| matches!(own, Position::Started | Position::Joins | Position::Gone);
        if self.machines.iter().all(waits) {
            self.send_models(actions);
        }
    }

    /// Partitions that a machine has computed or begun since it got its model.
    fn begun(&self, machine: usize) -> &[u32] {
        let held = &self.code.held[machine];
        match self.machines[machine] {
            Position::Computes(index) => &held[..=index],
            Position::Pushes => held,
            // Nothing is computed before the model is there.
            _ => &[],
        }
    }

    fn on_failure(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        match self.machines[machine.index()] {
            Position::Gone => return,
            // Its sum is there.
            Position::Pushed => {
                self.leaving[machine.index()] = true;
                return;
            }
            _ => {}
        }
        for partition in self.begun(machine.index()) {
            actions.push(Action::Drop { share: self.share(machine, *partition) });
        }
        self.machines[machine.index()] = Position::Gone;
        self.leaving[machine.index()] = false;
        self.start_if_all_are_there(actions);
        self.call_in_those_that_join(actions);
    }

    fn on_leaving(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        match self.machines[machine.index()] {
            Position::Gone => {}
            Position::Absent | Position::Started | Position::Joins => {
                self.machines[machine.index()] = Position::Gone;
                actions.push(Action::Dismiss { machine });
                self.start_if_all_are_there(actions);
            }
            _ => self.leaving[machine.index()] = true,
        }
    }

    fn on_join(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        self.leaving[machine.index()] = false;
        if self.machines[machine.index()] == Position::Gone {
            self.machines[machine.index()] = Position::Joins;
            self.start_if_all_are_there(actions);
            self.call_in_those_that_join(actions);
        }
    }

    /// Lets machines that have joined compute for the present update where it needs them.
    fn call_in_those_that_join(&mut self, actions: &mut Vec<Action>) {
        let is_at_work = |own: &&Position| !matches!(own, Position::Joins | Position::Gone);
        if self.machines.iter().any(|own| matches!(own, Position::Absent | Position::Started)) {
            return;
        }
        let needed = self.machines.len() - self.kind.stragglers as usize;
        let ids: Vec<MachineId> = self.roster.machine_ids().collect();
        for machine in ids {
            let at_work = self.machines.iter().filter(is_at_work).count();
            if at_work < needed && self.machines[machine.index()] == Position::Joins {
                self.send_model(machine, actions);
            }
        }
    }

    fn compute(&mut self, machine: MachineId, index: usize, now: SimTime) -> Action {
        self.machines[machine.index()] = Position::Computes(index);
        self.since[machine.index()] = now;
        let share = self.share(machine, self.code.held[machine.index()][index]);
        let cycle = Cycle { group: GroupId(0), number: self.cycle };
        Action::Compute(Work::new(cycle, share, Stage::Local))
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "weights are single precision; a span is only measured"
    )]
    fn on_computed(
        &mut self,
        machine: MachineId,
        index: usize,
        now: SimTime,
        actions: &mut Vec<Action>,
    ) {
        let partition = self.code.held[machine.index()][index];
        let size = self.share(machine, partition).size;
        let span = (now - self.since[machine.index()]).as_nanos();
        if span > 0 {
            self.speeds[machine.index()] = Some(f64::from(size) / span as f64);
        }
        // The first factor in single precision, so that without stragglers it is that of `sync`.
        let part = size as f32 / self.roster.mini_batch as f32;
        let weight = part * self.code.encoding(machine.index(), partition) as f32;
        actions.push(Action::Change { machine, change: Change::Sum { weight } });
        if index + 1 < self.code.held[machine.index()].len() {
            actions.push(self.compute(machine, index + 1, now));
        } else {
            self.machines[machine.index()] = Position::Pushes;
            actions.push(Action::Push { machine, parcel: Parcel::Sum { divisor: 1.0 } });
        }
    }

    fn on_push(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        self.machines[machine.index()] = Position::Pushed;
        let (there, late): (Vec<usize>, Vec<usize>) =
            (0..self.machines.len()).partition(|own| self.machines[*own] == Position::Pushed);
        if late.len() == self.kind.stragglers as usize {
            self.write(&there, &late, actions);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "weights are single precision")]
    fn write(&mut self, there: &[usize], late: &[usize], actions: &mut Vec<Action>) {
        let read = self.version;
        self.version = read.next();
        let update = Update {
            part: ModelPart::Whole,
            cycle: Cycle { group: GroupId(0), number: self.cycle },
            read,
            written: self.version,
            staleness: read.since(read),
        };
        let ids: Vec<MachineId> = self.roster.machine_ids().collect();
        let term = |index: &usize| Term {
            machine: ids[*index],
            weight: self.code.decoding(*index, late) as f32,
        };
        actions.push(Action::Apply(Application {
            update,
            terms: there.iter().map(term).collect(),
            by: ServerRule::Scaled(1.0),
            examples: u64::from(self.roster.mini_batch),
        }));
        self.account(&ids, there, late, actions);
        self.cycle += 1;
        self.allot();
        self.send_models(actions);
    }

    /// Every example is computed more than once: all but one of its computations are dropped.
    fn account(
        &self,
        ids: &[MachineId],
        there: &[usize],
        late: &[usize],
        actions: &mut Vec<Action>,
    ) {
        let mut used = vec![false; self.kind.partitions as usize];
        for index in there {
            for partition in &self.code.held[*index] {
                if std::mem::replace(&mut used[*partition as usize], true) {
                    actions.push(Action::Drop { share: self.share(ids[*index], *partition) });
                }
            }
        }
        for index in late {
            for partition in self.begun(*index) {
                actions.push(Action::Drop { share: self.share(ids[*index], *partition) });
            }
            if !matches!(self.machines[*index], Position::Joins | Position::Gone) {
                actions.push(Action::Cancel { machine: ids[*index] });
            }
        }
    }
}

impl Strategy for Coded {
    fn handle(
        &mut self,
        now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let out_of_place = |reason| ProtocolError::OutOfPlace { event, reason };
        let (machine, position) = whereabouts(event, &self.machines, |own| *own)?;
        match (event, position) {
            (Event::Started { .. }, Position::Absent) => {
                self.machines[machine.index()] = Position::Started;
                self.start_if_all_are_there(actions);
            }
            (Event::ModelArrived { .. }, Position::AwaitsModel) => {
                actions.push(self.compute(machine, 0, now));
            }
            (Event::Computed { .. }, Position::Computes(index)) => {
                self.on_computed(machine, index, now, actions);
            }
            (Event::PushArrived { .. }, Position::Pushes) => self.on_push(machine, actions),
            (Event::Failed { .. }, _) => self.on_failure(machine, actions),
            (Event::Leaving { .. }, _) => self.on_leaving(machine, actions),
            (Event::Joined { .. }, _) => self.on_join(machine, actions),
            _ => return Err(out_of_place(format!("{machine} {}", position.describe()))),
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let count = |wanted| self.machines.iter().filter(|own| **own == wanted).count();
        let needed = self.machines.len() - self.kind.stragglers as usize;
        let left = self.machines.len() - count(Position::Gone);
        let more = if left < needed {
            format!("; {left} of {} machines are left", self.machines.len())
        } else {
            String::new()
        };
        let waits_for = |position: Position| match position {
            Position::Started => {
                Some(format!("{} machines that have not started", count(Position::Absent)))
            }
            Position::AwaitsModel => Some("its model from the model server".to_owned()),
            Position::Pushed => {
                Some(format!("{} more sums{more}", needed - count(Position::Pushed)))
            }
            Position::Joins => Some("the next update".to_owned()),
            Position::Absent | Position::Computes(_) | Position::Pushes | Position::Gone => None,
        };
        blocked_at(self.machines.iter().copied(), waits_for)
    }

    fn cycles(&self) -> Vec<u64> {
        vec![self.cycle]
    }
}

impl Position {
    fn describe(self) -> &'static str {
        match self {
            Position::Absent => "has not started",
            Position::Started => "waits for the others to start",
            Position::AwaitsModel => "waits for its model",
            Position::Computes(_) => "computes its partitions",
            Position::Pushes => "sends its sum",
            Position::Pushed => "waits for the update",
            Position::Joins => "waits for the next update",
            Position::Gone => "is gone",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, prop_assume, proptest};

    proptest! {
        #[test]
        fn whichever_machines_are_left_out_every_partition_counts_once(
            speeds in prop::collection::vec(0.2_f64..5.0, 1..9),
            stragglers in 0_u32..4, extra in 0_u32..20, pick in prop::collection::vec(any::<u32>(), 4),
        ) {
            let machines = u32::try_from(speeds.len()).expect("a few machines");
            prop_assume!(stragglers < machines);
            let partitions = machines + extra;
            let counts = in_proportion(&speeds, partitions * (stragglers + 1), partitions);
            let code = Code::new(&counts, partitions);
            let mut left: Vec<usize> = (0..speeds.len()).collect();
            let out: Vec<usize> = (0..stragglers as usize)
                .map(|index| left.remove(pick[index] as usize % left.len()))
                .collect();
            for (partition, holders) in (0..).zip(&code.holders) {
                prop_assert_eq!(holders.len(), stragglers as usize + 1);
                let counted: f64 = holders
                    .iter()
                    .filter(|holder| !out.contains(*holder))
                    .map(|holder| code.decoding(*holder, &out) * code.encoding(*holder, partition))
                    .sum();
                // Nodes of nine machines are at least 0.02 apart, so the largest term is below
                // 0.02⁻³ for three stragglers, rounded in double precision.
                prop_assert!((counted - 1.0).abs() < 1e-9, "{partition}: {counted}");
            }
        }

        #[test]
        fn shares_in_proportion_add_up_and_keep_to_their_bounds(
            weights in prop::collection::vec(0.01_f64..10.0, 1..9), extra in 0_u32..50,
        ) {
            let machines = u32::try_from(weights.len()).expect("a few machines");
            let most = machines + extra;
            for total in machines..=most {
                let counts = in_proportion(&weights, total, most);
                prop_assert_eq!(counts.iter().sum::<u32>(), total);
                prop_assert!(counts.iter().all(|count| (1..=most).contains(count)));
            }
        }
    }

    #[test]
    fn a_machine_of_three_times_the_speed_holds_three_times_as_many_partitions() {
        assert_eq!(in_proportion(&[3.0, 1.0, 2.0], 12, 12), [6, 2, 4]);
        assert_eq!(in_proportion(&[1.0, 1.0, 1.0], 8, 4), [3, 3, 2]);
        assert_eq!(in_proportion(&[100.0, 1.0, 1.0], 8, 4), [4, 2, 2]);
    }
}
