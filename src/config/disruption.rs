//! What goes wrong in a run, as files give it.

use omnivore_sim::cluster::{
    Churn, Disruptions, Outage, Spell, Straggler, Tail, Turn, UnevenData, When,
};
use omnivore_sim::ids::MachineId;
use omnivore_sim::protocol::{Roster, StrategySpec};
use omnivore_sim::units::{SimDuration, SimTime};

use super::error::{Mistake, Problem};
use super::keys;
use super::reader::{Bound, Field, Reader};
use super::run::{LONGEST_RUN_S, MOST_MACHINES, MOST_UPDATES};

/// Most examples of a machine.
const MOST_EXAMPLES: u64 = 1 << 40;

/// Reads all of it; `None` when there is a mistake in it.
pub(super) fn read(
    reader: &Reader<'_>,
    cluster: Option<(Roster, StrategySpec)>,
) -> Option<Disruptions> {
    let churn = list(reader, "churn", read_churn);
    let outages = list(reader, "server_restarts", read_outage);
    let stragglers = list(reader, "stragglers", read_straggler);
    let uneven_data = match reader.optional("uneven_data") {
        Some(field) => read_uneven_data(&field).map(Some),
        None => Some(None),
    };
    // What can be read is checked even where something else cannot.
    let plan = Disruptions {
        churn: churn.clone().unwrap_or_default(),
        outages: outages.clone().unwrap_or_default(),
        stragglers: stragglers.clone().unwrap_or_default(),
        uneven_data: uneven_data.clone().unwrap_or_default(),
    };
    let (roster, strategy) = cluster?;
    let is_possible = check(reader, &plan, &roster);
    check_under(reader, &plan, strategy)?;
    is_possible?;
    let lists_are_read = churn.is_some() && outages.is_some() && stragglers.is_some();
    (lists_are_read && uneven_data.is_some()).then_some(plan)
}

fn list<T>(
    reader: &Reader<'_>,
    key: &'static str,
    read: fn(&Field<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    match reader.optional(key) {
        Some(field) => field.list("tables", read),
        None => Some(Vec::new()),
    }
}

/// Checks the plan against the machines, entry by entry for the place of a mistake.
fn check(reader: &Reader<'_>, plan: &Disruptions, roster: &Roster) -> Option<()> {
    let nothing = Disruptions::default;
    let churn = plan.churn.iter().map(|entry| Disruptions { churn: vec![*entry], ..nothing() });
    let stragglers =
        plan.stragglers.iter().map(|entry| Disruptions { stragglers: vec![*entry], ..nothing() });
    let data = plan
        .uneven_data
        .iter()
        .map(|data| Disruptions { uneven_data: Some(data.clone()), ..nothing() });
    let machines =
        reader.optional("conv_machines").or_else(|| reader.optional("machines_per_group"));
    let mut is_right = true;
    let mut refuse = |field: Option<Field<'_>>, part: &Disruptions| {
        if let (Err(error), Some(field)) = (part.check(roster), field) {
            let mistake = Mistake::new(Problem::Disruption(error), &field.node.place);
            reader.mistakes.add(match &machines {
                Some(machines) => mistake.and(&machines.node.place),
                None => mistake,
            });
            is_right = false;
        }
    };
    let items = |key| reader.optional(key).and_then(|field: Field<'_>| field.items("tables"));
    // Of a list that could not be read there are no entries here, and its mistake is known already.
    if !plan.churn.is_empty() {
        for (field, part) in items("churn").into_iter().flatten().zip(churn) {
            refuse(Some(field), &part);
        }
    }
    if !plan.stragglers.is_empty() {
        for (field, part) in items("stragglers").into_iter().flatten().zip(stragglers) {
            refuse(Some(field), &part);
        }
    }
    for part in data {
        refuse(reader.optional("uneven_data"), &part);
    }
    is_right.then_some(())
}

fn check_under(reader: &Reader<'_>, plan: &Disruptions, strategy: StrategySpec) -> Option<()> {
    let (Err(error), Some(field)) = (plan.check_under(strategy), reader.optional("uneven_data"))
    else {
        return Some(());
    };
    let (message, help) = (error.to_string(), String::new());
    field.refuse(Problem::Refused { message, help })
}

fn read_machine(reader: &Reader<'_>) -> Option<MachineId> {
    reader.required("machine")?.count(0..=MOST_MACHINES - 1).map(MachineId)
}

fn read_churn(field: &Field<'_>) -> Option<Churn> {
    let reader = field.table(&keys::CHURN)?;
    let machine = read_machine(&reader);
    let turns = [("fails", Turn::Fails), ("leaves", Turn::Leaves), ("joins", Turn::Joins)];
    let turn = reader.required("turn").and_then(|field| field.choice(&turns));
    let when = read_when(&reader);
    reader.close();
    Some(Churn { machine: machine?, turn: turn?, when: when? })
}

fn read_outage(field: &Field<'_>) -> Option<Outage> {
    let reader = field.table(&keys::SERVER_RESTART)?;
    let when = read_when(&reader);
    let downtime = reader.required("downtime_ms").and_then(|field| {
        let milliseconds = field.number(Bound::Positive)?;
        duration(&field, milliseconds / 1e3)
    });
    reader.close();
    Some(Outage { when: when?, downtime: downtime? })
}

fn read_when(reader: &Reader<'_>) -> Option<When> {
    match (reader.optional("at_s"), reader.optional("at_update")) {
        (Some(time), None) => Some(When::Time(read_time(&time)?)),
        (None, Some(update)) => Some(When::Update(update.whole(1..=MOST_UPDATES)?)),
        (None, None) => {
            reader.miss("at_s");
            None
        }
        (Some(time), Some(update)) => super::run::exclude_each_other(&time, &update),
    }
}

fn read_time(field: &Field<'_>) -> Option<SimTime> {
    let seconds = field.number(Bound::NotNegative)?;
    Some(SimTime::ZERO + duration(field, seconds)?)
}

fn duration(field: &Field<'_>, seconds: f64) -> Option<SimDuration> {
    match SimDuration::from_secs_f64(seconds) {
        Ok(duration) if seconds <= LONGEST_RUN_S => Some(duration),
        _ => {
            let (key, value) = (field.name.clone(), field.node.written());
            let expected = format!("at most {LONGEST_RUN_S} s");
            field.refuse(Problem::OutOfRange { key, value, expected })
        }
    }
}

fn read_straggler(field: &Field<'_>) -> Option<Straggler> {
    let reader = field.table(&keys::STRAGGLER)?;
    let machine = read_machine(&reader);
    let factor = reader.required("factor").and_then(|field| field.number(Bound::Positive));
    let spell = read_spell(&reader);
    reader.close();
    Some(Straggler { machine: machine?, factor: factor?, spell: spell? })
}

fn read_spell(reader: &Reader<'_>) -> Option<Spell> {
    let keys = ["probability", "from_s", "until_s"];
    match keys.map(|key| reader.optional(key)) {
        [None, None, None] => Some(Spell::Always),
        [Some(probability), None, None] => {
            Some(Spell::Chance(probability.number(Bound::Fraction)?))
        }
        [None, from, until] => {
            if from.is_none() {
                reader.miss("from_s");
            }
            if until.is_none() {
                reader.miss("until_s");
            }
            let (from_time, until) = (read_time(&from?)?, until?);
            let until_time = read_time(&until)?;
            if from_time < until_time {
                return Some(Spell::Between { from: from_time, until: until_time });
            }
            let (key, value) = (until.name.clone(), until.node.written());
            let expected = "a time after `from_s`".to_owned();
            until.refuse(Problem::OutOfRange { key, value, expected })
        }
        [Some(probability), Some(other), _] | [Some(probability), None, Some(other)] => {
            super::run::exclude_each_other(&probability, &other)
        }
    }
}

fn read_uneven_data(field: &Field<'_>) -> Option<UnevenData> {
    let reader = field.table(&keys::UNEVEN_DATA)?;
    let examples = reader
        .required("examples")
        .and_then(|field| field.list("whole numbers", |item| item.whole(1..=MOST_EXAMPLES)));
    let tails = [("drop", Tail::Drop), ("zeros", Tail::Zeros)];
    let tail = reader.required("tail").and_then(|field| field.choice(&tails));
    reader.close();
    Some(UnevenData { examples: examples?, tail: tail? })
}

/// The keys that a file would give, in order; none for a run in which nothing goes wrong.
pub(super) fn write(plan: &Disruptions) -> Vec<(&'static str, toml::Value)> {
    let mut keys = Vec::new();
    let mut put = |key, tables: Vec<toml::Table>| {
        if !tables.is_empty() {
            keys.push((key, toml::Value::Array(tables.into_iter().map(Into::into).collect())));
        }
    };
    put("churn", plan.churn.iter().map(write_churn).collect());
    put("server_restarts", plan.outages.iter().map(write_outage).collect());
    put("stragglers", plan.stragglers.iter().map(write_straggler).collect());
    if let Some(UnevenData { examples, tail }) = &plan.uneven_data {
        let mut table = toml::Table::new();
        let whole = |n: &u64| toml::Value::Integer(i64::try_from(*n).unwrap_or(i64::MAX));
        table.insert(
            "examples".to_owned(),
            toml::Value::Array(examples.iter().map(whole).collect()),
        );
        let word = match tail {
            Tail::Drop => "drop",
            Tail::Zeros => "zeros",
        };
        table.insert("tail".to_owned(), word.into());
        keys.push(("uneven_data", table.into()));
    }
    keys
}

fn seconds(time: SimTime) -> toml::Value {
    time.as_secs_f64().into()
}

fn write_when(table: &mut toml::Table, when: When) {
    match when {
        When::Time(time) => table.insert("at_s".to_owned(), seconds(time)),
        When::Update(update) => {
            let update = i64::try_from(update).unwrap_or(i64::MAX);
            table.insert("at_update".to_owned(), update.into())
        }
    };
}

fn write_churn(churn: &Churn) -> toml::Table {
    let mut table = toml::Table::new();
    table.insert("machine".to_owned(), churn.machine.0.into());
    let turn = match churn.turn {
        Turn::Fails => "fails",
        Turn::Leaves => "leaves",
        Turn::Joins => "joins",
    };
    table.insert("turn".to_owned(), turn.into());
    write_when(&mut table, churn.when);
    table
}

fn write_outage(outage: &Outage) -> toml::Table {
    let mut table = toml::Table::new();
    write_when(&mut table, outage.when);
    table.insert("downtime_ms".to_owned(), (outage.downtime.as_secs_f64() * 1e3).into());
    table
}

fn write_straggler(straggler: &Straggler) -> toml::Table {
    let mut table = toml::Table::new();
    table.insert("machine".to_owned(), straggler.machine.0.into());
    table.insert("factor".to_owned(), straggler.factor.into());
    match straggler.spell {
        Spell::Always => {}
        Spell::Chance(probability) => {
            table.insert("probability".to_owned(), probability.into());
        }
        Spell::Between { from, until } => {
            table.insert("from_s".to_owned(), seconds(from));
            table.insert("until_s".to_owned(), seconds(until));
        }
    }
    table
}
