//! Strategies as files give them: a name, or a name with its knobs.

use omnivore_sim::protocol::{Card, KnobValue, KnobValues, ProtocolError, StrategySpec};

use super::error::Problem;
use super::keys::nearest;
use super::reader::{Field, alternatives};
use super::source::Place;
use super::tree::{Entry, Node, Value};

/// The names of all strategies.
const NAMES: [&str; StrategySpec::CARDS.len()] = {
    let mut names = [""; StrategySpec::CARDS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = StrategySpec::CARDS[index].name;
        index += 1;
    }
    names
};

/// Reads `"name"`, or `{ name = { knob = value, ... } }` for a strategy with knobs.
pub(super) fn read(field: &Field<'_>) -> Option<StrategySpec> {
    match &field.node.value {
        Value::Text(name) => {
            let Some(name) = NAMES.iter().find(|known| *known == name) else {
                let meant = nearest(name, NAMES.iter().copied());
                return field.unknown_choice(&alternatives(NAMES.iter().copied()), meant);
            };
            admit(field, StrategySpec::from_knobs(name, &[]))
        }
        Value::Table(_) => {
            let chosen = field.only_entry(&NAMES)?;
            let name = chosen.name.rsplit('.').next().unwrap_or_default().to_owned();
            read_knobs(&chosen, &name)
        }
        _ => field.wrong_type("a name in quotes, or { name = { knob = value } }"),
    }
}

fn read_knobs(field: &Field<'_>, name: &str) -> Option<StrategySpec> {
    let Value::Table(table) = &field.node.value else {
        return field.wrong_type("a table of knobs: { knob = value }");
    };
    let card = StrategySpec::CARDS.iter().find(|card| card.name == name)?;
    let value = |entry: &Entry| Some((entry.key.clone(), knob_value(field, card, entry)?));
    let values: Vec<_> = table.entries.iter().map(value).collect();
    let values: Vec<(String, KnobValue)> = values.into_iter().collect::<Option<_>>()?;
    let spec = StrategySpec::from_knobs(name, &values);
    let place = match &spec {
        Err(ProtocolError::UnknownKnob { knob, .. }) => {
            table.entry(knob).map(|entry| &entry.key_place)
        }
        Err(ProtocolError::Knob { knob, .. }) => table.get(knob).map(|node| &node.place),
        _ => None,
    };
    refuse_at(field, place.unwrap_or(&field.node.place), spec)
}

/// The value of an entry, as the knob of its name wants it; whole numbers serve as numbers.
fn knob_value(field: &Field<'_>, card: &Card, entry: &Entry) -> Option<KnobValue> {
    let knob = card.knobs.iter().find(|knob| knob.name == entry.key);
    let wants_number = matches!(knob.map(|knob| knob.values), Some(KnobValues::Number { .. }));
    match &entry.node.value {
        Value::Text(word) => Some(KnobValue::Word(word.clone())),
        #[expect(clippy::cast_precision_loss, reason = "knobs are single precision")]
        Value::Integer(number) if wants_number => Some(KnobValue::Number(*number as f32)),
        #[expect(clippy::cast_possible_truncation, reason = "knobs are single precision")]
        Value::Float(number) => Some(KnobValue::Number(*number as f32)),
        Value::Integer(number) => match u32::try_from(*number) {
            Ok(count) => Some(KnobValue::Count(count)),
            Err(_) => {
                let expected = knob.map_or_else(
                    || "a whole number of 32 bits".to_owned(),
                    |knob| knob.values.describe(),
                );
                let (key, value) = (format!("{}.{}", field.name, entry.key), entry.node.written());
                let problem = Problem::OutOfRange { key, value, expected };
                field.mistakes.at(&entry.node.place, problem)
            }
        },
        _ => {
            let name = format!("{}.{}", field.name, entry.key);
            let node: &Node = &entry.node;
            Field { name, node, mistakes: field.mistakes }
                .wrong_type("a number or a word in quotes")
        }
    }
}

fn admit<T>(field: &Field<'_>, outcome: Result<T, ProtocolError>) -> Option<T> {
    refuse_at(field, &field.node.place, outcome)
}

fn refuse_at<T>(field: &Field<'_>, place: &Place, outcome: Result<T, ProtocolError>) -> Option<T> {
    outcome.map_err(|error| field.mistakes.at::<()>(place, Problem::Protocol(error))).ok()
}

/// A strategy as a file would give it.
pub(super) fn write(spec: StrategySpec) -> toml::Value {
    let card = spec.card();
    if card.knobs.is_empty() {
        return card.name.into();
    }
    let value = |value: KnobValue| match value {
        KnobValue::Count(count) => count.into(),
        // The shortest decimal that is this number in single precision.
        KnobValue::Number(number) => {
            toml::Value::Float(number.to_string().parse().expect("a number prints as a number"))
        }
        KnobValue::Word(word) => word.into(),
    };
    let knobs = card.knobs.iter().zip(spec.values());
    let knobs = knobs.map(|(knob, own)| (knob.name.to_owned(), value(own))).collect();
    let mut table = toml::Table::new();
    table.insert(card.name.to_owned(), toml::Value::Table(knobs));
    toml::Value::Table(table)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::reader::Mistakes;
    use crate::config::source::{Layer, Source};
    use crate::config::tree;

    /// What a line of a file gives, or the messages about it.
    fn read_line(line: &str) -> Result<StrategySpec, Vec<String>> {
        let source = Source::new("run.toml", line.to_owned(), Path::new(""), Layer::File);
        let table = tree::parse(&source).expect("the line is TOML");
        let mistakes = Mistakes::default();
        let node = table.get("strategy").expect("the line sets the strategy");
        let spec = read(&Field { name: "strategy".to_owned(), node, mistakes: &mistakes });
        let messages: Vec<String> = mistakes.into_vec().iter().map(ToString::to_string).collect();
        spec.filter(|_| messages.is_empty()).ok_or(messages)
    }

    #[test]
    fn every_strategy_that_is_written_is_read_as_it_was() {
        for spec in StrategySpec::typical() {
            let mut table = toml::Table::new();
            table.insert("strategy".to_owned(), write(spec));
            assert_eq!(read_line(&table.to_string()), Ok(spec), "{table}");
        }
    }

    #[test]
    fn knobs_that_will_not_do_are_refused_with_what_will() {
        for (line, message) in [
            ("strategy = \"spp\"", "\"staleness_aware\""),
            ("strategy = \"ssp\"", "strategy `ssp` needs `slack`"),
            ("strategy = { ssp = { slak = 1 } }", "strategy `ssp` has no knob `slak`"),
            ("strategy = { ssp = { slack = 1.5 } }", "it must be a whole number of at least 0"),
            ("strategy = { ssp = { slack = -1 } }", "a whole number of at least 0"),
            ("strategy = { ssp = 3 }", "a table of knobs"),
            ("strategy = { easgd = { steps = 2, attraction = 1 } }", "above 0 and below 1"),
            ("strategy = { dssp = { slack_low = 2, slack_high = 1 } }", "`slack_high` is 1"),
            ("strategy = { sync = { steps = 2 } }", "strategy `sync` has no knob `steps`"),
            ("strategy = 3", "a name in quotes"),
        ] {
            let messages = read_line(line).expect_err(line).join("\n");
            assert!(messages.contains(message), "{line}: {messages}");
        }
    }
}
