//! Laws of runs in which machines die, leave and join, servers are down and data runs out.

use proptest::prelude::*;

use super::*;
use crate::hardware::ServiceLaw;
use crate::ids::{GroupId, MachineId};
use crate::objective::{NoisyQuadratic, Objective};
use crate::protocol::{
    Adsp, BackupWorkers, Dropped, Event, FcPlacement, GradientCoding, Late, LocalSgd, ModelServer,
    Roster, Schedule, Ssp, StrategySpec, Subnets, UpdateRule,
};
use crate::rng::Seed;
use crate::trace::{CurvePoint, Trace};
use crate::units::{Bytes, BytesPerSecond, SimDuration, SimTime};

const BATCH: u32 = 60;

fn seconds(seconds: f64) -> SimTime {
    SimTime::ZERO + SimDuration::from_secs_f64(seconds).expect("a possible time")
}

fn phases(means_s: &[f64], law: &ServiceLaw) -> PhaseTimes {
    let nothing = Affine { fixed_s: 0.0, per_example_s: 0.0 };
    let machine = |mean: &f64| MachineTimes {
        forward: Affine { fixed_s: mean / 2.0, per_example_s: 0.0 },
        backward: Affine { fixed_s: mean / 2.0, per_example_s: 0.0 },
        fc: nothing,
        law: law.clone(),
    };
    PhaseTimes {
        machines: means_s.iter().map(machine).collect(),
        fc: Affine { fixed_s: 0.001, per_example_s: 0.0 },
        fc_law: law.clone(),
        network: None,
        update: SimDuration::ZERO,
    }
}

/// A strategy on machines of given mean times, in as many groups as it means or else `groups`.
fn on(strategy: StrategySpec, groups: u32, times: PhaseTimes) -> Scenario {
    let conv_machines = u32::try_from(times.machines.len()).expect("a few machines");
    let groups = strategy.card().grouping.groups_of(conv_machines).unwrap_or(groups);
    Scenario {
        roster: Roster { conv_machines, groups, fc: FcPlacement::Replicated, mini_batch: BATCH },
        strategy,
        rule: UpdateRule { learning_rate: 0.02, explicit_momentum: 0.3, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        before: 0,
        timing: Timing::Phases(times),
        updates: 60,
        evaluate_every: 20,
        divergence_loss: f64::INFINITY,
        seed: Seed(1),
        disruptions: Disruptions::default(),
    }
}

/// A monitor that writes down all events.
#[derive(Default)]
struct Scribe(Vec<(SimTime, Event)>);

impl Monitor for Scribe {
    fn evaluated(&mut self, _: &CurvePoint) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
    fn event(&mut self, time: SimTime, event: Event) {
        self.0.push((time, event));
    }
}

/// Stops after a number of evaluations.
struct Until(u32);

impl Monitor for Until {
    fn evaluated(&mut self, _: &CurvePoint) -> std::ops::ControlFlow<()> {
        let Some(left) = self.0.checked_sub(1) else { return std::ops::ControlFlow::Break(()) };
        self.0 = left;
        std::ops::ControlFlow::Continue(())
    }
}

/// Wants something once, after a number of events; holds the checkpoint that it was given.
struct Once {
    after: u32,
    wants: Next,
    checkpoint: Option<Checkpoint>,
}

impl Monitor for Once {
    fn evaluated(&mut self, _: &CurvePoint) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
    fn next(&mut self) -> Next {
        let left = self.after;
        self.after = left.wrapping_sub(1);
        if left == 0 { self.wants } else { Next::GoOn }
    }
    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        self.checkpoint = Some(checkpoint);
        Ok(())
    }
}

/// Wants to know how much time was spent, and not on what.
struct Accountant;

impl Monitor for Accountant {
    fn evaluated(&mut self, _: &CurvePoint) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
    fn detail(&self) -> Detail {
        Detail::Totals
    }
}

fn objective(scenario: &Scenario) -> NoisyQuadratic {
    NoisyQuadratic::new(vec![1.0, 0.3], vec![0.5; 2], vec![1.0, -1.0], 0.0, scenario.seed)
        .expect("a possible quadratic")
}

fn learn(scenario: &Scenario) -> (Trace, ModelServer, Vec<(SimTime, Event)>) {
    let mut objective = objective(scenario);
    let start = objective.initial();
    let learning = Learning { objective: &mut objective, start };
    let mut scribe = Scribe::default();
    let (trace, model) = run(scenario, Some(learning), &mut scribe).expect("possible");
    (trace, model, scribe.0)
}

fn times_of(scenario: &Scenario) -> Trace {
    run(scenario, None, &mut Unmonitored).expect("possible").0
}

fn churn(machine: u32, turn: Turn, when: When) -> Churn {
    Churn { machine: MachineId(machine), turn, when }
}

fn any_law() -> impl Strategy<Value = ServiceLaw> {
    prop_oneof![
        Just(ServiceLaw::Constant),
        Just(ServiceLaw::Exponential),
        (0.1_f64..2.0).prop_map(ServiceLaw::Pareto),
        (0.05_f64..2.0).prop_map(ServiceLaw::Lognormal),
    ]
}

fn any_when() -> impl Strategy<Value = When> {
    prop_oneof![
        (0.0_f64..0.6).prop_map(|at| When::Time(seconds(at))),
        (1_u64..50).prop_map(When::Update),
    ]
}

fn any_churn(machines: u32) -> impl Strategy<Value = Vec<Churn>> {
    let turn = prop_oneof![
        2 => Just(Turn::Fails),
        2 => Just(Turn::Leaves),
        3 => Just(Turn::Joins),
    ];
    let one = (0..machines, turn, any_when())
        .prop_map(|(machine, turn, when)| churn(machine, turn, when));
    prop::collection::vec(one, 1..7)
}

fn any_straggler(machines: u32) -> impl Strategy<Value = Straggler> {
    let spell = prop_oneof![
        Just(Spell::Always),
        (0.01_f64..1.0).prop_map(Spell::Chance),
        (0.0_f64..0.3, 0.01_f64..0.3).prop_map(|(from, more)| Spell::Between {
            from: seconds(from),
            until: seconds(from + more),
        }),
    ];
    (0..machines, 0.5_f64..8.0, spell).prop_map(|(machine, factor, spell)| Straggler {
        machine: MachineId(machine),
        factor,
        spell,
    })
}

fn any_disruptions(machines: u32) -> impl Strategy<Value = Disruptions> {
    let outage = (any_when(), 1_u64..200).prop_map(|(when, milliseconds)| Outage {
        when,
        downtime: SimDuration::from_millis(milliseconds),
    });
    (
        any_churn(machines),
        prop::collection::vec(outage, 0..3),
        prop::collection::vec(any_straggler(machines), 0..3),
    )
        .prop_map(|(churn, outages, stragglers)| Disruptions {
            churn,
            outages,
            stragglers,
            uneven_data: None,
        })
}

/// Every strategy with its typical knobs, and what they leave out.
fn every_kind() -> Vec<StrategySpec> {
    let (backups, late, dropped) = (1, Late::Finish, Dropped::Requeued);
    let others = [
        StrategySpec::BackupWorkers(BackupWorkers { backups, late, dropped }),
        StrategySpec::Subnets(Subnets { subnets: 5, steps: 2 }),
        StrategySpec::Subnets(Subnets { subnets: 2, steps: 1 }),
        StrategySpec::Adsp(Adsp { commit_interval_ms: 40.0, trial_ms: 90.0 }),
    ];
    StrategySpec::typical().into_iter().chain(others).collect()
}

prop_compose! {
    /// Any strategy on any small cluster, with or without links, and anything going wrong.
    fn any_scenario()(
        means in prop::collection::vec(0.01_f64..0.05, 2..7),
    )(
        plan in any_disruptions(u32::try_from(means.len()).expect("a few machines")),
        means in Just(means),
        law in any_law(),
        groups in 1_u32..4,
        index in 0_usize..1000,
        seed in any::<u64>(),
        link in prop::option::of((0_u64..2000, 1e5_f64..1e9)),
        is_merged in any::<bool>(),
    ) -> Scenario {
        let all = every_kind();
        let mut times = phases(&means, &law);
        times.network = link.map(|(latency_us, rate)| NetworkTimes::through_one_server(
            crate::hardware::Link {
                latency: SimDuration::from_nanos(latency_us * 1000),
                bandwidth: BytesPerSecond::new(rate).expect("above 0"),
            },
            Bytes(4000),
            Bytes(100),
        ));
        let machines = u32::try_from(means.len()).expect("a few machines");
        let groups = if machines.is_multiple_of(groups) { groups } else { machines };
        let mut scenario = on(all[index % all.len()], groups, times);
        if is_merged {
            scenario.roster.fc = FcPlacement::Merged;
        }
        if crate::protocol::strategy(scenario.strategy, scenario.roster).is_err() {
            scenario.roster.fc = FcPlacement::Replicated;
        }
        Scenario { seed: Seed(seed), disruptions: plan, ..scenario }
    }
}

fn is_possible(scenario: &Scenario) -> bool {
    crate::protocol::strategy(scenario.strategy, scenario.roster).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// O7 whatever goes wrong: a run ends with all its updates or with a stall that names somebody,
    /// versions follow each other, and times, bytes and examples add up.
    #[test]
    fn whatever_goes_wrong_everything_adds_up_and_a_stall_has_a_name(scenario in any_scenario()) {
        prop_assume!(is_possible(&scenario));
        let trace = times_of(&scenario);
        let done = trace.updates.len() as u64;
        let is_named = trace.stalled.as_ref().is_some_and(|blocked| !blocked.is_empty());
        prop_assert!(done == scenario.updates || is_named);
        for (version, record) in (1..).zip(&trace.updates) {
            let update = record.update;
            prop_assert_eq!(update.written.0, version);
            prop_assert_eq!(update.written.0, update.read.0 + update.staleness.0 + 1);
        }
        let makespan = trace.makespan - SimTime::ZERO;
        for usage in trace.machines.iter().chain(&trace.fc_server) {
            prop_assert_eq!(usage.busy + usage.communicating + usage.waiting, makespan);
        }
        let traffic = trace.traffic;
        prop_assert_eq!(traffic.sent, traffic.received + traffic.in_flight);
        let examples = trace.examples;
        prop_assert_eq!(
            examples.processed,
            examples.applied + examples.dropped + examples.unapplied
        );
    }

    /// A record tells all: versions, staleness and parameters follow from it alone.
    #[test]
    fn a_run_in_which_anything_goes_wrong_replays_bit_for_bit(scenario in any_scenario()) {
        prop_assume!(is_possible(&scenario));
        let (trace, model, events) = learn(&scenario);
        let mut objective = objective(&scenario);
        let start = objective.initial();
        let learning = Learning { objective: &mut objective, start };
        let record = Record { events };
        let (again, same) =
            replay(&scenario, &record, Some(learning), None, &mut Unmonitored).expect("it happened");
        prop_assert_eq!(&again.updates, &trace.updates);
        prop_assert_eq!(&again.fc_updates, &trace.fc_updates);
        prop_assert_eq!(again.examples.dropped, trace.examples.dropped);
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    /// A run that is stopped anywhere, kept, and goes on is the uninterrupted one, byte for byte:
    /// measured speeds, grants, sums, velocities and all that is on its way included.
    #[test]
    fn a_run_that_was_stopped_and_goes_on_is_the_uninterrupted_one_byte_for_byte(
        scenario in any_scenario(), evaluations in 0_u32..30,
    ) {
        prop_assume!(is_possible(&scenario));
        let scenario = Scenario { evaluate_every: 3, ..scenario };
        let (trace, model, _) = learn(&scenario);
        let go_on = |from: Option<Checkpoint>, monitor: &mut dyn Monitor| {
            let mut objective = objective(&scenario);
            let start = objective.initial();
            let learning = Some(Learning { objective: &mut objective, start });
            run_on(&scenario, learning, from, monitor).expect("possible")
        };
        let stopped = go_on(None, &mut Until(evaluations));
        let resumed = go_on(stopped.checkpoint, &mut Unmonitored);
        // As text: a loss that is no number equals itself.
        prop_assert_eq!(format!("{:?}", resumed.trace), format!("{trace:?}"));
        prop_assert_eq!(resumed.model.contents(), model.contents());
    }

    /// Who spent how much time on what, and how much was sent, is the same if it is added up at once.
    #[test]
    fn a_trace_of_totals_is_the_whole_one_without_its_timeline(scenario in any_scenario()) {
        prop_assume!(is_possible(&scenario));
        let whole = times_of(&scenario);
        let (totals, _) = run(&scenario, None, &mut Accountant).expect("possible");
        prop_assert_eq!(totals, Trace { timeline: Vec::new(), ..whole });
    }

    /// The same between any two events; and keeping a checkpoint changes nothing, which is the one
    /// of a run that is stopped there.
    #[test]
    fn a_run_goes_on_from_between_any_two_events_whether_it_was_stopped_or_killed(
        scenario in any_scenario(), after in 0_u32..400,
    ) {
        prop_assume!(is_possible(&scenario));
        let (trace, model, _) = learn(&scenario);
        let go_on = |from: Option<Checkpoint>, monitor: &mut dyn Monitor| {
            let mut objective = objective(&scenario);
            let start = objective.initial();
            let learning = Some(Learning { objective: &mut objective, start });
            run_on(&scenario, learning, from, monitor).expect("possible")
        };
        let once = |wants| Once { after, wants, checkpoint: None };
        let (mut keeps, mut stops) = (once(Next::Checkpoint), once(Next::Stop));
        let (whole, stopped) = (go_on(None, &mut keeps), go_on(None, &mut stops));
        prop_assert_eq!(stopped.is_stopped, keeps.checkpoint.is_some());
        prop_assert_eq!(format!("{:?}", stopped.checkpoint), format!("{:?}", keeps.checkpoint));
        let resumed = go_on(keeps.checkpoint, &mut Unmonitored);
        for ended in [whole, resumed] {
            // As text: a loss that is no number equals itself.
            prop_assert_eq!(format!("{:?}", ended.trace), format!("{trace:?}"));
            prop_assert_eq!(ended.model.contents(), model.contents());
        }
    }

    /// What never happens changes nothing.
    #[test]
    fn what_is_to_go_wrong_after_the_end_changes_nothing_bit_for_bit(
        scenario in any_scenario(), machine in 0_u32..2, factor in 1.0_f64..9.0,
    ) {
        prop_assume!(is_possible(&scenario));
        let calm = Scenario { disruptions: Disruptions::default(), ..scenario };
        let (never, no_update) = (When::Time(seconds(1e6)), When::Update(1 << 40));
        let downtime = SimDuration::from_millis(5);
        let doomed = Scenario {
            disruptions: Disruptions {
                churn: vec![
                    churn(machine, Turn::Fails, never),
                    churn(1 - machine, Turn::Leaves, no_update),
                    churn(machine, Turn::Joins, no_update),
                ],
                outages: vec![
                    Outage { when: never, downtime },
                    Outage { when: no_update, downtime },
                ],
                stragglers: vec![Straggler {
                    machine: MachineId(machine),
                    factor,
                    spell: Spell::Between { from: seconds(1e6), until: seconds(2e6) },
                }],
                uneven_data: None,
            },
            ..calm.clone()
        };
        let ((expected, model, _), (trace, same, _)) = (learn(&calm), learn(&doomed));
        prop_assert_eq!(trace, expected);
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    /// Two runs as one have the updates and the time of both, and add up like one.
    #[test]
    fn a_run_and_the_one_that_goes_on_from_it_add_up_as_one(
        one in any_scenario(), other in any_scenario(),
    ) {
        prop_assume!(is_possible(&one) && is_possible(&other));
        let (first, second) = (times_of(&one), times_of(&other));
        let joined = first.clone().followed_by(&second);
        prop_assert_eq!(joined.updates.len(), first.updates.len() + second.updates.len());
        for (version, record) in (1..).zip(&joined.updates) {
            let update = record.update;
            prop_assert_eq!(update.written.0, version);
            prop_assert_eq!(update.written.0, update.read.0 + update.staleness.0 + 1);
        }
        prop_assert!(joined.updates.is_sorted_by_key(|record| record.time));
        // Whichever of them had more groups.
        let wrote_twice = first.cycle_time_s().is_some() || second.cycle_time_s().is_some();
        prop_assert!(!wrote_twice || joined.cycle_time_s().is_some_and(|mean| mean >= 0.0));
        let makespan = joined.makespan - SimTime::ZERO;
        prop_assert_eq!(
            makespan,
            (first.makespan - SimTime::ZERO) + (second.makespan - SimTime::ZERO)
        );
        for usage in &joined.machines {
            prop_assert_eq!(usage.busy + usage.communicating + usage.waiting, makespan);
        }
        let examples = joined.examples;
        prop_assert_eq!(
            examples.processed,
            examples.applied + examples.dropped + examples.unapplied
        );
    }

    /// What is left of a plan begins with the machines that are there by then, and nothing else is
    /// still to come than in the plan.
    #[test]
    fn what_is_left_of_a_plan_begins_with_the_machines_that_are_there_by_then(
        plan in any_disruptions(4), at in 0.0_f64..0.7, updates in 0_u64..60,
    ) {
        let roster =
            Roster { conv_machines: 4, groups: 4, fc: FcPlacement::Merged, mini_batch: BATCH };
        let span = seconds(at) - SimTime::ZERO;
        let is_over = |when: When| match when {
            When::Time(time) => span > SimDuration::ZERO && time <= SimTime::ZERO + span,
            When::Update(update) => update <= updates,
        };
        let is_absent = |machine: &MachineId| {
            let own = || plan.churn.iter().filter(|churn| churn.machine == *machine);
            let last = own().rfind(|churn| is_over(churn.when));
            match last.or(own().next()) {
                Some(churn) => (churn.turn == Turn::Joins) != last.is_some(),
                None => false,
            }
        };
        let (absent, there): (Vec<MachineId>, Vec<MachineId>) =
            roster.machine_ids().partition(is_absent);
        let absent = absent.into_iter().map(|machine| Event::Leaving { machine });
        let expected: Vec<Event> =
            absent.chain(there.into_iter().map(|machine| Event::Started { machine })).collect();
        let anew = super::disruption::Fate::new(&plan.after(span, updates), roster);
        prop_assert_eq!(anew.beginning(), expected);
        let whole = super::disruption::Fate::new(&plan, roster).timed();
        for (time, event) in anew.timed() {
            prop_assert!(!is_over(When::Time(time + span)));
            prop_assert!(whole.contains(&(time + span, event)), "{time:?} {event:?}");
        }
    }

    /// O1 with machines that come and go: an update ages the gradient of every other machine that
    /// holds a model by one, whether it is applied, in flight at the end, or lost.
    #[test]
    fn an_update_ages_every_other_gradient_in_flight_by_one_also_of_those_that_are_lost(
        means in prop::collection::vec(0.01_f64..0.05, 2..6), law in any_law(),
        plan in any_disruptions(2),
    ) {
        let machines = u32::try_from(means.len()).expect("a few machines");
        let scenario = Scenario {
            disruptions: plan,
            ..on(StrategySpec::Async, machines, phases(&means, &law))
        };
        let (trace, _, events) = learn(&scenario);
        // By hand from the events: who has read, and how many updates there were since.
        let mut ages: Vec<Option<u64>> = vec![None; machines as usize];
        let (mut updates, mut expected) = (0_u64, Vec::new());
        let mut leaving = vec![false; machines as usize];
        let mut there = vec![true; machines as usize];
        for (_, event) in events {
            let machine = event.machine().expect("no FC server").index();
            match event {
                Event::Started { .. } => ages[machine] = Some(0),
                Event::Joined { .. } => {
                    leaving[machine] = false;
                    if !there[machine] {
                        (there[machine], ages[machine]) = (true, Some(0));
                    }
                }
                Event::Leaving { .. } if ages[machine].is_none() => there[machine] = false,
                Event::Leaving { .. } => leaving[machine] = true,
                Event::Failed { .. } => {
                    (there[machine], leaving[machine], ages[machine]) = (false, false, None);
                }
                Event::GradientArrived { .. } => {
                    expected.push(ages[machine].expect("it read"));
                    updates += 1;
                    ages.iter_mut().flatten().for_each(|age| *age += 1);
                    ages[machine] = Some(0);
                    if std::mem::take(&mut leaving[machine]) {
                        (there[machine], ages[machine]) = (false, None);
                    }
                }
                _ => {}
            }
        }
        let staleness: Vec<u64> = trace.updates.iter().map(|r| r.update.staleness.0).collect();
        prop_assert_eq!(updates, staleness.len() as u64);
        prop_assert_eq!(staleness, expected);
    }

    /// case-31 (horovod, pytorch), joining with zeros: whatever machines lack, the examples behind a pass are those that they have.
    #[test]
    fn zeros_stand_for_exactly_the_examples_that_machines_do_not_have(
        examples in prop::collection::vec(20_u64..200, 2..6), passes in 1_u64..4,
        law in any_law(), is_merged in any::<bool>(),
    ) {
        let machines = examples.len();
        let means = vec![0.02; machines];
        let mut scenario = on(StrategySpec::Sync, 1, phases(&means, &law));
        scenario.roster.mini_batch = u32::try_from(10 * machines).expect("a few machines");
        if is_merged {
            scenario.roster.fc = FcPlacement::Merged;
        }
        let uneven = UnevenData { examples: examples.clone(), tail: Tail::Zeros };
        scenario.updates = passes * uneven.cycles(&scenario.roster);
        scenario.disruptions.uneven_data = Some(uneven);
        let (trace, model, _) = learn(&scenario);
        let counted = trace.examples.applied - (trace.examples.lacking - lacking_after(&trace));
        prop_assert_eq!(counted, passes * examples.iter().sum::<u64>());
        prop_assert!(model.weights().conv.iter().all(|weight| weight.is_finite()));
    }

    /// case-31 (horovod, pytorch), dropping the tail: nobody has a mini-batch more than the others.
    #[test]
    fn a_dropped_tail_is_what_the_poorest_machine_has_no_counterpart_to(
        examples in prop::collection::vec(20_u64..200, 2..6), passes in 1_u64..4,
    ) {
        let machines = examples.len();
        let mut scenario = on(StrategySpec::Sync, 1, phases(&vec![0.02; machines], &ServiceLaw::Constant));
        scenario.roster.mini_batch = u32::try_from(10 * machines).expect("a few machines");
        let uneven = UnevenData { examples: examples.clone(), tail: Tail::Drop };
        let cycles = uneven.cycles(&scenario.roster);
        prop_assert_eq!(cycles, examples.iter().min().expect("a machine") / 10);
        scenario.updates = passes * cycles;
        scenario.disruptions.uneven_data = Some(uneven);
        let trace = times_of(&scenario);
        let total = passes * examples.iter().sum::<u64>();
        prop_assert_eq!(trace.examples.applied + trace.examples.unused, total);
        prop_assert_eq!(trace.examples.lacking, 0);
    }
}

/// Synchronous machines begin no cycle after the last update.
fn lacking_after(trace: &Trace) -> u64 {
    assert_eq!(trace.examples.unapplied, 0);
    0
}

/// The gradient of a machine whose data ends counts its examples once each, under the full divisor.
#[test]
fn with_zeros_the_sum_of_weights_is_the_number_of_examples_over_the_mini_batch() {
    let mut scenario = on(StrategySpec::Sync, 1, phases(&[0.01; 2], &ServiceLaw::Constant));
    scenario.roster.mini_batch = 8;
    (scenario.updates, scenario.rule.explicit_momentum) = (3, 0.0);
    // Shares of 4: the second machine has one example in its second cycle and none in the third.
    let examples = vec![12, 5];
    scenario.disruptions.uneven_data = Some(UnevenData { examples, tail: Tail::Zeros });
    let mut objective =
        NoisyQuadratic::new(vec![1.0], vec![0.0], vec![1.0], 0.0, Seed(1)).expect("possible");
    let start = objective.initial();
    let learning = Learning { objective: &mut objective, start };
    let (trace, model) = run(&scenario, Some(learning), &mut Unmonitored).expect("possible");
    let mut weight = 1_f32;
    for had in [8.0_f32, 5.0, 4.0] {
        weight -= 0.02 * (had / 8.0) * weight;
    }
    // Two roundings in each of three updates.
    assert!((model.weights().conv[0] - weight).abs() < 6.0 * f32::EPSILON, "{weight}");
    assert_eq!(trace.examples.lacking, 7);
}

/// Where any machine may be given any example, how many each has means nothing.
#[test]
fn uneven_data_is_refused_with_the_reason_where_machines_have_no_data_of_their_own() {
    let mut refused = Vec::new();
    for strategy in StrategySpec::typical() {
        let mut scenario = on(strategy, 3, phases(&[0.01; 3], &ServiceLaw::Constant));
        for tail in [Tail::Drop, Tail::Zeros] {
            scenario.disruptions.uneven_data =
                Some(UnevenData { examples: vec![70, 95, 200], tail });
            match run(&scenario, None, &mut Unmonitored) {
                Ok((trace, _)) => assert_eq!(trace.updates.len(), 60, "{strategy}"),
                Err(error) => refused.push(error.to_string()),
            }
        }
    }
    refused.dedup();
    assert_eq!(refused.len(), 3, "{refused:?}");
    for (message, reason) in refused.iter().zip([
        "several machines compute each partition",
        "whoever is free",
        "sizes of mini-batches follow the speeds",
    ]) {
        assert!(message.contains("`uneven_data` means nothing under `"), "{message}");
        assert!(message.contains(reason), "{message}");
    }
}

fn losing(strategy: StrategySpec, machines: usize, lost: u32) -> Trace {
    let mut scenario = on(strategy, 1, phases(&vec![0.02; machines], &ServiceLaw::Exponential));
    scenario.disruptions.churn =
        (0..lost).map(|machine| churn(machine, Turn::Fails, When::Update(10))).collect();
    times_of(&scenario)
}

#[test]
fn backup_workers_and_gradient_coding_bear_the_loss_of_as_many_machines_as_are_redundant() {
    let backups = BackupWorkers { backups: 2, late: Late::Cancel, dropped: Dropped::Lost };
    let coding = GradientCoding {
        stragglers: 2,
        partitions: 5,
        allotment: crate::protocol::Allotment::Equal,
    };
    for (strategy, waits_for) in [
        (StrategySpec::BackupWorkers(backups), "more gradients; 2 of 5 machines are left"),
        (StrategySpec::GradientCoding(coding), "more sums; 2 of 5 machines are left"),
    ] {
        let enough = losing(strategy, 5, 2);
        assert_eq!((enough.updates.len(), enough.stalled), (60, None), "{strategy}");
        let stalled = losing(strategy, 5, 3);
        assert_eq!(stalled.updates.len(), 10, "{strategy}");
        let blocked = stalled.stalled.expect("two machines are not enough");
        assert_eq!(blocked.len(), 2, "{strategy}");
        assert!(blocked[0].waits_for.contains(waits_for), "{blocked:?}");
    }
}

#[test]
fn a_machine_that_joins_ends_a_stall() {
    let backups = BackupWorkers { backups: 1, late: Late::Finish, dropped: Dropped::Lost };
    let strategy = StrategySpec::BackupWorkers(backups);
    let mut scenario = on(strategy, 1, phases(&[0.02; 4], &ServiceLaw::Constant));
    scenario.disruptions.churn = vec![
        churn(0, Turn::Fails, When::Update(10)),
        churn(1, Turn::Fails, When::Update(20)),
        churn(0, Turn::Joins, When::Time(seconds(30.0))),
    ];
    let trace = times_of(&scenario);
    assert_eq!((trace.updates.len(), trace.stalled), (60, None));
    assert!(trace.updates[20].time > seconds(30.0));
}

#[test]
fn without_a_machine_left_every_strategy_stalls_and_counts_what_it_has_done() {
    for strategy in StrategySpec::typical() {
        let mut scenario = on(strategy, 3, phases(&[0.02; 3], &ServiceLaw::Constant));
        if !is_possible(&scenario) {
            continue;
        }
        scenario.disruptions.churn =
            (0..3).map(|machine| churn(machine, Turn::Fails, When::Time(seconds(0.31)))).collect();
        let trace = times_of(&scenario);
        assert!(trace.stalled.is_some_and(|blocked| !blocked.is_empty()), "{strategy}");
        assert_eq!(trace.makespan, seconds(0.31), "{strategy}");
    }
}

/// A group goes on with the mean over those that are left.
#[test]
fn a_group_that_loses_a_machine_counts_the_shares_of_the_others() {
    for strategy in [StrategySpec::Sync, StrategySpec::LocalSgd(LocalSgd { steps: 1 })] {
        let mut scenario = on(strategy, 1, phases(&[0.01, 0.02, 0.03], &ServiceLaw::Constant));
        // In the middle of the third cycle.
        scenario.disruptions.churn = vec![churn(2, Turn::Fails, When::Time(seconds(0.075)))];
        let (trace, ..) = learn(&scenario);
        let third = u64::from(BATCH / 3);
        assert_eq!(trace.examples.dropped, third, "{strategy}");
        assert_eq!(trace.examples.applied, 2 * 3 * third + 58 * 2 * third, "{strategy}");
        assert_eq!(trace.updates[2].time, seconds(0.08), "{strategy}");
    }
}

#[test]
fn a_machine_that_leaves_finishes_its_cycle_and_one_that_joins_begins_with_the_next() {
    let mut scenario = on(StrategySpec::Sync, 1, phases(&[0.01; 3], &ServiceLaw::Constant));
    scenario.updates = 6;
    scenario.disruptions.churn = vec![
        churn(0, Turn::Leaves, When::Time(seconds(0.005))),
        churn(0, Turn::Joins, When::Time(seconds(0.035))),
    ];
    let (trace, ..) = learn(&scenario);
    let third = u64::from(BATCH / 3);
    // The first cycle of three machines, three of two, and two of three again.
    assert_eq!(trace.examples.applied, (3 + 3 * 2 + 2 * 3) * third);
    assert_eq!(trace.examples.dropped, 0);
}

/// The clock of a dead group holds nobody back.
#[test]
fn under_ssp_a_dead_group_is_no_slowest_group() {
    let ssp = StrategySpec::Ssp(Ssp { slack: 1 });
    let mut scenario = on(ssp, 3, phases(&[0.01, 0.02, 0.5], &ServiceLaw::Constant));
    let held_back = times_of(&scenario).makespan;
    scenario.disruptions.churn = vec![churn(2, Turn::Fails, When::Update(3))];
    let trace = times_of(&scenario);
    assert_eq!(trace.updates.len(), 60);
    assert!(trace.makespan < held_back);
    assert!(trace.updates[3..].iter().all(|record| record.update.cycle.group != GroupId(2)));
}

/// What reaches a server while it is down is taken up in its order when it is back.
#[test]
fn a_restart_of_the_server_delays_what_reaches_it_and_loses_nothing() {
    let mut scenario =
        on(StrategySpec::Async, 3, phases(&[0.01, 0.011, 0.5], &ServiceLaw::Constant));
    scenario.updates = 8;
    let downtime = SimDuration::from_millis(100);
    scenario.disruptions.outages = vec![Outage { when: When::Time(seconds(0.025)), downtime }];
    let trace = times_of(&scenario);
    let groups: Vec<u32> = trace.updates.iter().map(|r| r.update.cycle.group.0).collect();
    assert_eq!(groups, [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(trace.updates[3].time, seconds(0.022));
    // Both gradients of 0.030 and 0.033 wait until 0.125.
    assert_eq!(trace.updates[4].time, seconds(0.125));
    assert_eq!(trace.updates[5].time, seconds(0.125));
    assert_eq!(trace.examples.dropped, 0);
}

/// One machine in a synchronous group of three sets the pace.
#[test]
fn a_straggler_takes_its_factor_always_for_a_time_or_with_its_probability() {
    let makespan = |spell: Option<Spell>, updates| {
        let mut scenario = on(StrategySpec::Sync, 1, phases(&[0.01; 3], &ServiceLaw::Constant));
        scenario.updates = updates;
        let straggler = |spell| Straggler { machine: MachineId(1), factor: 4.0, spell };
        scenario.disruptions.stragglers = spell.map(straggler).into_iter().collect();
        times_of(&scenario).makespan.as_secs_f64()
    };
    assert!((makespan(None, 60) - 0.6).abs() < 1e-9);
    assert!((makespan(Some(Spell::Always), 60) - 2.4).abs() < 1e-9);
    // Ten cycles of usual length, then one that begins at 0.10, one at 0.14, one at 0.18.
    let between = Spell::Between { from: seconds(0.1), until: seconds(0.2) };
    assert!((makespan(Some(between), 60) - (0.6 + 3.0 * 0.03)).abs() < 1e-9);
    let chance = makespan(Some(Spell::Chance(0.25)), 4000) / 4000.0;
    // A cycle takes 10 or 40 ms; four standard errors of the mean of 4000 such are 0.8 ms.
    assert!((chance - (0.01 + 0.25 * 0.03)).abs() < 8.3e-4, "{chance}");
}

#[test]
fn what_cannot_go_wrong_is_refused_with_the_machine_and_the_value() {
    let calm = on(StrategySpec::Sync, 1, phases(&[0.01; 3], &ServiceLaw::Constant));
    let refuse = |plan: Disruptions| {
        let scenario = Scenario { disruptions: plan, ..calm.clone() };
        run(&scenario, None, &mut Unmonitored).err().map(|error| error.to_string())
    };
    let nothing = Disruptions::default;
    let straggler = |factor, spell| Disruptions {
        stragglers: vec![Straggler { machine: MachineId(0), factor, spell }],
        ..nothing()
    };
    let data = |examples, tail| Disruptions {
        uneven_data: Some(UnevenData { examples, tail }),
        ..nothing()
    };
    let missing = churn(3, Turn::Fails, When::Update(1));
    for (plan, expected) in [
        (Disruptions { churn: vec![missing], ..nothing() }, "no machine 3"),
        (straggler(0.0, Spell::Always), "0 times as long"),
        (straggler(2.0, Spell::Chance(1.5)), "probability 1.5"),
        (data(vec![50, 50], Tail::Drop), "2 numbers of examples for 3"),
        (data(vec![50, 50, 19], Tail::Drop), "machine 2 has 19 examples"),
    ] {
        let message = refuse(plan.clone()).expect("refused");
        assert!(message.contains(expected), "{plan:?}: {message}");
    }
}

#[test]
fn a_run_does_not_go_on_where_another_was_stopped() {
    let scenario = on(StrategySpec::Async, 3, phases(&[0.02; 3], &ServiceLaw::Exponential));
    let go_on = |scenario: &Scenario, from, monitor: &mut dyn Monitor| {
        let mut objective = objective(scenario);
        let start = objective.initial();
        run_on(scenario, Some(Learning { objective: &mut objective, start }), from, monitor)
    };
    let stopped = go_on(&scenario, None, &mut Until(1)).expect("possible");
    let other = Scenario { seed: Seed(2), ..scenario };
    let refused = go_on(&other, stopped.checkpoint, &mut Unmonitored).map(|ended| ended.trace);
    let message = refused.expect_err("another seed has other times").to_string();
    assert!(message.contains("is not of this configuration: its event"), "{message}");
}
