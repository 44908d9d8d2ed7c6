//! `omnivore strategies`: what can be chosen, and by which rule it works.

use omnivore_sim::protocol::{Card, FcSupport, Grouping, Knob, KnobValue, StrategySpec};
use serde_json::{Value, json};

use super::{Format, json};

/// `omnivore strategies`.
pub fn strategies(format: Format) {
    if format == Format::Json {
        let mut object = json::head_of("strategies");
        let cards: Vec<Value> = StrategySpec::CARDS.iter().map(|card| card_json(card)).collect();
        object.insert("strategies".into(), cards.into());
        json::print(&object);
    } else {
        let texts: Vec<String> = StrategySpec::CARDS.iter().map(|card| describe(card)).collect();
        out!("{}", texts.join("\n"));
    }
}

fn describe(card: &Card) -> String {
    let mut lines = vec![
        card.name.to_owned(),
        format!("  rule      {}", card.rule),
        format!("  source    {}", card.source),
        format!("  machines  {}; {}", grouping(card.grouping), fc_layers(card.fc)),
        format!("  setting   {}", setting(card)),
    ];
    for knob in card.knobs {
        lines.push(format!("  {}: {}; {}", knob.name, knob.meaning, knob.values.describe()));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn grouping(grouping: Grouping) -> &'static str {
    match grouping {
        Grouping::One => "one group of all (`groups = 1`)",
        Grouping::PerMachine => "a group for each (`groups` = N)",
        Grouping::Any => "any number of groups that divides N",
    }
}

fn fc_layers(fc: FcSupport) -> &'static str {
    match fc {
        FcSupport::Any => "FC layers merged or replicated",
        FcSupport::ReplicatedOnly => "FC layers replicated",
    }
}

/// The line of an experiment file, with typical knobs.
fn setting(card: &Card) -> String {
    let value = |knob: &Knob| format!("{} = {}", knob.name, KnobValue::from(knob.typical));
    match card.knobs {
        [] => format!("strategy = \"{}\"", card.name),
        knobs => {
            let knobs: Vec<String> = knobs.iter().map(value).collect();
            format!("strategy = {{ {} = {{ {} }} }}", card.name, knobs.join(", "))
        }
    }
}

fn card_json(card: &Card) -> Value {
    let knob = |knob: &Knob| {
        json!({
            "name": knob.name,
            "meaning": knob.meaning,
            "values": knob.values.describe(),
            "typical": KnobValue::from(knob.typical).to_string(),
        })
    };
    json!({
        "name": card.name,
        "rule": card.rule,
        "source": card.source,
        "groups": match card.grouping {
            Grouping::One => "one",
            Grouping::PerMachine => "per_machine",
            Grouping::Any => "any",
        },
        "fc": match card.fc {
            FcSupport::Any => "any",
            FcSupport::ReplicatedOnly => "replicated",
        },
        "setting": setting(card),
        "knobs": card.knobs.iter().map(knob).collect::<Vec<_>>(),
    })
}
