//! What goes wrong in a run: machines die, leave, join or are slow, servers are down, and data runs
//! out before that of others.
//!
//! [`Disruptions`] say what, [`Fate`] follows them through a run. Both drivers keep one, so a plan
//! means the same on every clock. What machines that come and go do to the others is told to the
//! strategy as events, which are recorded like all others; a replay needs no plan.

use rand::RngExt;

use super::witness::RunEnd;
use crate::ids::MachineId;
use crate::protocol::{Blocked, Cycle, Event, Roster, Share, StrategySpec};
use crate::rng::{Seed, Stream, stream_at};
use crate::trace::UpdateRecord;
use crate::units::{SimDuration, SimTime};

/// What goes wrong in a run, and when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disruptions {
    /// Machines that come and go; entries of one machine in the order in which they happen. A
    /// machine whose first entry says that it joins is not there at the beginning.
    pub churn: Vec<Churn>,
    /// Times in which the servers answer nothing.
    pub outages: Vec<Outage>,
    /// Machines that are slower than their hardware says.
    pub stragglers: Vec<Straggler>,
    /// How many examples each machine has; `None` for as many as it is asked for.
    pub uneven_data: Option<UnevenData>,
}

/// A machine that comes or goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Churn {
    /// Which one.
    pub machine: MachineId,
    /// What it does.
    pub turn: Turn,
    /// When.
    pub when: When,
}

/// What a machine that comes or goes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It dies, whatever it is at.
    Fails,
    /// It finishes its cycle and goes.
    Leaves,
    /// It is there, or there again, and holds nothing.
    Joins,
}

/// An instant of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// A time after the beginning.
    Time(SimTime),
    /// Right after the n-th update of the conv (or whole) model.
    Update(u64),
}

/// More updates than any run has.
const NEVER: u64 = u64::MAX;

/// A restart of the servers. They keep the models; what reaches them while they are down waits, and
/// is taken up in the order of its arrival when they are back. Messages on their way to machines
/// arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outage {
    /// When it begins.
    pub when: When,
    /// How long it lasts.
    pub downtime: SimDuration,
}

/// A machine that sometimes or always takes longer to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// Which one.
    pub machine: MachineId,
    /// How many times as long; positive and finite.
    pub factor: f64,
    /// When it does.
    pub spell: Spell,
}

/// When a machine is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spell {
    /// In every cycle.
    Always,
    /// In each cycle with this probability, drawn from a stream of its own.
    Chance(f64),
    /// In what it begins to compute within an interval of time.
    Between {
        /// Its beginning.
        from: SimTime,
        /// Its end.
        until: SimTime,
    },
}

/// Examples of each machine for one pass over its data, which begins again when all are through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnevenData {
    /// One number per machine, at least that of its share.
    pub examples: Vec<u64>,
    /// What becomes of those that others have no counterpart to.
    pub tail: Tail,
}

/// What becomes of the data that is left when some machine has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// It is not used: a pass is as many cycles as the machine with the least data has whole shares.
    Drop,
    /// A machine without data takes part with a gradient of zeros, and with what it has in the cycle
    /// in which its data ends: a gradient is the sum of b_i/B·(a_i/b_i)·g_i over a_i ≤ b_i examples,
    /// so that the divisor is the planned B and every example counts 1/B. So it is on a merged FC
    /// server too: activations that it does not get count as zeros in its gradient.
    Zeros,
}

impl UnevenData {
    fn check(&self, roster: &Roster) -> Result<(), DisruptionError> {
        let (given, machines) = (self.examples.len(), roster.conv_machines);
        if given != machines as usize {
            return Err(DisruptionError::Lengths { given, machines });
        }
        for (machine, examples) in roster.machine_ids().zip(self.examples.iter().copied()) {
            let share = roster.share_of(machine).size;
            if examples < u64::from(share) {
                return Err(DisruptionError::FewExamples { machine, examples, share });
            }
        }
        Ok(())
    }

    /// Cycles of one pass.
    pub fn cycles(&self, roster: &Roster) -> u64 {
        let shares = roster.machine_ids().map(|machine| u64::from(roster.share_of(machine).size));
        let pairs = self.examples.iter().zip(shares);
        match self.tail {
            Tail::Drop => pairs.map(|(own, share)| own / share).min(),
            Tail::Zeros => pairs.map(|(own, share)| own.div_ceil(share)).max(),
        }
        .unwrap_or(1)
        .max(1)
    }

    /// How many examples of a share a machine has in a cycle.
    fn had(&self, roster: &Roster, cycle: u64, share: Share) -> u32 {
        if self.tail == Tail::Drop {
            return share.size;
        }
        let usual = u64::from(roster.share_of(share.machine).size);
        let used = (cycle % self.cycles(roster)) * usual;
        let left = self.examples[share.machine.index()].saturating_sub(used);
        u32::try_from(left).unwrap_or(u32::MAX).min(share.size)
    }

    /// Examples of a machine that the last cycle of a pass leaves unused.
    fn unused(&self, roster: &Roster, cycle: u64, machine: MachineId) -> u64 {
        let cycles = self.cycles(roster);
        if self.tail == Tail::Zeros || cycle % cycles + 1 != cycles {
            return 0;
        }
        self.examples[machine.index()] - cycles * u64::from(roster.share_of(machine).size)
    }
}

/// Why something cannot go wrong as described.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DisruptionError {
    /// There is no such machine.
    #[error("there is no {machine}: the {machines} conv machines are numbered from 0")]
    NoSuchMachine {
        /// The unknown machine.
        machine: MachineId,
        /// How many there are.
        machines: u32,
    },
    /// A machine cannot be slower by this.
    #[error("{machine} cannot take {factor} times as long; the factor must be finite and above 0")]
    Factor {
        /// The machine.
        machine: MachineId,
        /// The refused factor.
        factor: f64,
    },
    /// Not a probability.
    #[error("{machine} cannot be slow with probability {probability}; it must be from 0 to 1")]
    Probability {
        /// The machine.
        machine: MachineId,
        /// The refused probability.
        probability: f64,
    },
    /// A list of another length than that of the machines.
    #[error("uneven data has {given} numbers of examples for {machines} conv machines")]
    Lengths {
        /// Numbers given.
        given: usize,
        /// Machines.
        machines: u32,
    },
    /// A machine that could not fill its first share.
    #[error("{machine} has {examples} examples, but its share is {share}; give it at least that")]
    FewExamples {
        /// The machine.
        machine: MachineId,
        /// Its examples.
        examples: u64,
        /// Its share of a mini-batch.
        share: u32,
    },
    /// Machines that have no data of their own.
    #[error("`uneven_data` means nothing under `{strategy}`: {reason}; use another strategy")]
    PooledData {
        /// The strategy's name.
        strategy: &'static str,
        /// Why not.
        reason: &'static str,
    },
}

impl Disruptions {
    /// Checks that all of it is possible with these machines.
    ///
    /// # Errors
    /// [`DisruptionError`] with the first value that is not.
    pub fn check(&self, roster: &Roster) -> Result<(), DisruptionError> {
        let machines = roster.conv_machines;
        let named = self.churn.iter().map(|churn| churn.machine);
        let named = named.chain(self.stragglers.iter().map(|straggler| straggler.machine));
        if let Some(machine) = named.into_iter().find(|machine| machine.0 >= machines) {
            return Err(DisruptionError::NoSuchMachine { machine, machines });
        }
        for Straggler { machine, factor, spell } in self.stragglers.iter().copied() {
            if !(factor.is_finite() && factor > 0.0) {
                return Err(DisruptionError::Factor { machine, factor });
            }
            if let Spell::Chance(probability) = spell
                && !(0.0..=1.0).contains(&probability)
            {
                return Err(DisruptionError::Probability { machine, probability });
            }
        }
        self.uneven_data.as_ref().map_or(Ok(()), |data| data.check(roster))
    }

    /// Machines that are never there.
    pub fn without(machines: &[MachineId]) -> Disruptions {
        let never = |machine: &MachineId| Churn {
            machine: *machine,
            turn: Turn::Joins,
            when: When::Update(NEVER),
        };
        Disruptions { churn: machines.iter().map(never).collect(), ..Disruptions::default() }
    }

    /// The machines that are not there at the beginning.
    pub fn absent(&self) -> Vec<MachineId> {
        let mut named: Vec<MachineId> = self.churn.iter().map(|churn| churn.machine).collect();
        named.sort_unstable();
        named.dedup();
        named.into_iter().filter(|machine| self.begins_absent(*machine)).collect()
    }

    fn begins_absent(&self, machine: MachineId) -> bool {
        let first = self.churn.iter().find(|churn| churn.machine == machine);
        first.is_some_and(|first| first.turn == Turn::Joins)
    }

    /// What is left of the plan for a run that goes on where another has come to a time and a number
    /// of updates, and counts both from 0 again. A machine that is gone for good joins after more
    /// updates than any run has. A restart of the servers that began with an update counts as over.
    #[must_use]
    pub fn after(&self, span: SimDuration, updates: u64) -> Disruptions {
        let to_come = |when: When| match when {
            When::Time(time) if span > SimDuration::ZERO && time <= SimTime::ZERO + span => None,
            When::Time(time) => Some(When::Time(earlier(time, span))),
            When::Update(NEVER) => Some(when),
            When::Update(update) if update <= updates => None,
            When::Update(update) => Some(When::Update(update - updates)),
        };
        let mut churn: Vec<Churn> = self.churn.clone();
        let mut gone = self.absent();
        churn.retain_mut(|entry| match to_come(entry.when) {
            Some(when) => {
                entry.when = when;
                true
            }
            None => {
                gone.retain(|machine| *machine != entry.machine);
                if entry.turn != Turn::Joins {
                    gone.push(entry.machine);
                }
                false
            }
        });
        // A machine that joins first is not there at the beginning, and one that is there does not.
        let mut met: Vec<MachineId> = gone.clone();
        churn.retain(|entry| {
            let is_said = entry.turn == Turn::Joins && !met.contains(&entry.machine);
            if !is_said {
                met.push(entry.machine);
            }
            !is_said
        });
        for machine in gone {
            let first = churn.iter().find(|entry| entry.machine == machine);
            if first.is_none_or(|first| first.turn != Turn::Joins) {
                churn.insert(0, Churn { machine, turn: Turn::Joins, when: When::Update(NEVER) });
            }
        }
        let outages = self.outages.iter().filter_map(|outage| outage.after(span, &to_come));
        let stragglers = self.stragglers.iter().filter_map(|straggler| match straggler.spell {
            Spell::Between { until, .. } if until <= SimTime::ZERO + span => None,
            Spell::Between { from, until } => {
                let spell =
                    Spell::Between { from: earlier(from, span), until: earlier(until, span) };
                Some(Straggler { spell, ..*straggler })
            }
            Spell::Always | Spell::Chance(_) => Some(*straggler),
        });
        Disruptions {
            churn,
            outages: outages.collect(),
            stragglers: stragglers.collect(),
            uneven_data: self.uneven_data.clone(),
        }
    }

    /// The part of the plan that is about machines which a roster has.
    #[must_use]
    pub fn within(mut self, roster: &Roster) -> Disruptions {
        self.churn.retain(|churn| churn.machine.0 < roster.conv_machines);
        self.stragglers.retain(|straggler| straggler.machine.0 < roster.conv_machines);
        self
    }

    /// Checks that all of it is possible under a strategy.
    ///
    /// # Errors
    /// [`DisruptionError::PooledData`].
    pub fn check_under(&self, strategy: StrategySpec) -> Result<(), DisruptionError> {
        let reason = match strategy {
            StrategySpec::GradientCoding(_) => {
                "several machines compute each partition, so all of them must have its examples"
            }
            StrategySpec::Hogbatch(_) => {
                "sizes of mini-batches follow the speeds of machines, so their data would be through \
                 at times that no two runs share"
            }
            StrategySpec::AdaptiveElastic(_) => {
                "each mini-batch goes to whoever is free, so any machine must have its examples"
            }
            _ => return Ok(()),
        };
        if self.uneven_data.is_none() {
            return Ok(());
        }
        Err(DisruptionError::PooledData { strategy: strategy.card().name, reason })
    }

    /// A stall as a result, where machines come or go, so that a run may come to a halt without
    /// anybody's mistake. It names at least one who waits.
    pub fn stall(&self, mut blocked: Vec<Blocked>) -> Option<RunEnd> {
        if self.churn.is_empty() {
            return None;
        }
        if blocked.is_empty() {
            let (who, waits_for) = ("the model server", "a machine to join: none is left");
            blocked.push(Blocked { who: who.to_owned(), waits_for: waits_for.to_owned() });
        }
        Some(RunEnd::Stalled(blocked))
    }
}

/// An instant on a clock that began later by a span, at the earliest its beginning.
fn earlier(time: SimTime, span: SimDuration) -> SimTime {
    SimTime::from_nanos(time.as_nanos().saturating_sub(span.as_nanos()))
}

impl Outage {
    /// What is left of it after a span.
    fn after(&self, span: SimDuration, to_come: &impl Fn(When) -> Option<When>) -> Option<Outage> {
        let now = SimTime::ZERO + span;
        match (to_come(self.when), self.when) {
            (Some(when), _) => Some(Outage { when, ..*self }),
            (None, When::Time(from)) if from + self.downtime > now => Some(Outage {
                when: When::Time(SimTime::ZERO),
                downtime: from + self.downtime - now,
            }),
            _ => None,
        }
    }
}

/// How much slower than usual machines are, and when.
#[derive(Clone, Debug)]
pub struct Slowness {
    stragglers: Vec<Straggler>,
    seed: Seed,
}

impl Slowness {
    /// The stragglers of a run.
    pub fn new(stragglers: &[Straggler], seed: Seed) -> Self {
        Slowness { stragglers: stragglers.to_vec(), seed }
    }

    /// The factor on the time that a machine takes for what it begins now; 1 as a rule.
    pub fn factor(&self, machine: MachineId, cycle: Cycle, now: SimTime) -> f64 {
        let own = self.stragglers.iter().filter(|straggler| straggler.machine == machine);
        own.filter(|straggler| match straggler.spell {
            Spell::Always => true,
            Spell::Chance(probability) => {
                let mut draws = stream_at(self.seed, Stream::Straggling { machine }, cycle.number);
                draws.random::<f64>() < probability
            }
            Spell::Between { from, until } => (from..until).contains(&now),
        })
        .map(|straggler| straggler.factor)
        .product()
    }
}

/// Follows [`Disruptions`] through a run.
#[derive(Clone, Debug)]
pub struct Fate {
    plan: Disruptions,
    roster: Roster,
    /// Which entries of the plan's churn the strategy has been told of.
    told: Vec<bool>,
    /// Intervals in which the servers are down.
    down: Vec<(SimTime, SimTime)>,
}

/// What there is of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// The share with the examples that the machine has; its size may be 0.
    pub had: Share,
    /// Examples that it lacks.
    pub lacking: u32,
    /// Examples that the end of a pass leaves unused.
    pub unused: u64,
}

impl Fate {
    /// A plan for a run that begins.
    pub fn new(plan: &Disruptions, roster: Roster) -> Self {
        let timed = plan.outages.iter().filter_map(|outage| match outage.when {
            When::Time(from) => Some((from, from + outage.downtime)),
            When::Update(_) => None,
        });
        let told = vec![false; plan.churn.len()];
        Fate { down: timed.collect(), told, plan: plan.clone(), roster }
    }

    /// What is left of a plan for a run that goes on after these events and updates; returns what
    /// was due by then and not told.
    pub fn go_on(&mut self, events: &[(SimTime, Event)], updates: &[UpdateRecord]) -> Vec<Event> {
        let absent = self.roster.machine_ids().filter(|id| self.plan.begins_absent(*id)).count();
        for (_, event) in events.iter().skip(absent) {
            let of_event = |churn: &Churn| churn.event() == *event;
            let mut entries = self.plan.churn.iter().zip(&mut self.told);
            if let Some((_, told)) = entries.find(|(churn, told)| !**told && of_event(churn)) {
                *told = true;
            }
        }
        let done = updates.len() as u64;
        let at = |update: u64| {
            let index = usize::try_from(update).ok()?.checked_sub(1)?;
            updates.get(index).map(|record| record.time)
        };
        let down = self.plan.outages.iter().filter_map(|outage| match outage.when {
            When::Update(update) => at(update).map(|from| (from, from + outage.downtime)),
            When::Time(_) => None,
        });
        self.down.extend(down);
        let due = |churn: &Churn| matches!(churn.when, When::Update(update) if update <= done);
        let untold = self.plan.churn.iter().zip(&self.told).filter(|(_, told)| !**told);
        untold.filter(|(churn, _)| due(churn)).map(|(churn, _)| churn.event()).collect()
    }

    /// What the strategy is told at the beginning: who is not there, then who is.
    pub fn beginning(&self) -> Vec<Event> {
        let (absent, there): (Vec<MachineId>, Vec<MachineId>) =
            self.roster.machine_ids().partition(|machine| self.plan.begins_absent(*machine));
        let absent = absent.into_iter().map(|machine| Event::Leaving { machine });
        absent.chain(there.into_iter().map(|machine| Event::Started { machine })).collect()
    }

    /// What is still to happen at fixed times.
    pub fn timed(&self) -> Vec<(SimTime, Event)> {
        let to_come = self.plan.churn.iter().zip(&self.told).filter(|(_, told)| !**told);
        let timed = |churn: &Churn| match churn.when {
            When::Time(time) => Some((time, churn.event())),
            When::Update(_) => None,
        };
        to_come.filter_map(|(churn, _)| timed(churn)).collect()
    }

    /// What happens right after an update, which is now.
    pub fn after_update(&mut self, updates: u64, now: SimTime) -> Vec<Event> {
        let due = |when: When| when == When::Update(updates);
        let down = self.plan.outages.iter().filter(|outage| due(outage.when));
        self.down.extend(down.map(|outage| (now, now + outage.downtime)));
        let churn = self.plan.churn.iter().filter(|churn| due(churn.when));
        churn.map(|churn| churn.event()).collect()
    }

    /// When something that reaches the servers now is taken up, if they are down.
    pub fn held_until(&self, event: Event, now: SimTime) -> Option<SimTime> {
        let down = self.down.iter().filter(|(from, until)| *from <= now && now < *until);
        down.map(|(_, until)| *until).max().filter(|_| event.is_at_servers())
    }

    /// What a machine has of a share in a cycle.
    pub fn portion(&self, cycle: Cycle, share: Share) -> Portion {
        let Some(data) = &self.plan.uneven_data else {
            return Portion { had: share, lacking: 0, unused: 0 };
        };
        let size = data.had(&self.roster, cycle.number, share);
        let unused = data.unused(&self.roster, cycle.number, share.machine);
        Portion { had: Share { size, ..share }, lacking: share.size - size, unused }
    }
}

impl Portion {
    /// Makes the mean gradient over the examples that were there the one in which zeros stand for
    /// those that were not; a part of a gradient is as good as the whole.
    #[expect(clippy::cast_precision_loss, reason = "mini-batches have fewer than 2²⁴ examples")]
    pub fn dilute(&self, gradient: &mut [f32]) {
        if self.lacking > 0 {
            let factor = self.had.size as f32 / (self.had.size + self.lacking) as f32;
            gradient.iter_mut().for_each(|entry| *entry *= factor);
        }
    }
}

impl Churn {
    fn event(&self) -> Event {
        let machine = self.machine;
        match self.turn {
            Turn::Fails => Event::Failed { machine },
            Turn::Leaves => Event::Leaving { machine },
            Turn::Joins => Event::Joined { machine },
        }
    }
}
