//! The catalogue of strategies: names, knobs, sources, and how each is set up.
//!
//! A strategy is one file, whose knobs implement [`Kind`], and one line in the list at the end of
//! this one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{FcPlacement, Groups, ProtocolError, Roster, Strategy};

/// What a reader of a list of strategies wants to know of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Name in an experiment file.
    pub name: &'static str,
    /// The rule in one line.
    pub rule: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// How machines are grouped.
    pub grouping: Grouping,
    /// Whether it works with a merged FC server.
    pub fc: FcSupport,
    /// What can be set. All of them must be.
    pub knobs: &'static [Knob],
}

/// How many compute groups a strategy means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// One group of all machines.
    One,
    /// A group for each machine.
    PerMachine,
    /// Any number that divides the machines.
    Any,
}

/// Where the FC layers of a strategy can live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FcSupport {
    /// On a merged server or replicated.
    Any,
    /// Replicated only: machines have local models of all layers, or are not in step.
    ReplicatedOnly,
}

/// Something about a strategy that can be set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// Name in an experiment file.
    pub name: &'static str,
    /// What it means, with its symbol in the source.
    pub meaning: &'static str,
    /// What it can be.
    pub values: KnobValues,
    /// A value to compare strategies at, from the source where it names one; never a default.
    pub typical: Typical,
}

impl Knob {
    /// The size of a mini-batch.
    pub(super) const fn mini_batch(
        name: &'static str,
        meaning: &'static str,
        typical: u32,
    ) -> Self {
        // Weights over examples are single precision, which counts to 2²⁴.
        let values = KnobValues::Count { from: 1, to: 1 << 24 };
        Knob { name, meaning, values, typical: Typical::Count(typical) }
    }
}

/// A constant [`KnobValue`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Typical {
    /// A whole number.
    Count(u32),
    /// A number.
    Number(f32),
    /// A word.
    Word(&'static str),
}

impl From<Typical> for KnobValue {
    fn from(typical: Typical) -> Self {
        match typical {
            Typical::Count(count) => KnobValue::Count(count),
            Typical::Number(number) => KnobValue::Number(number),
            Typical::Word(word) => KnobValue::Word(word.to_owned()),
        }
    }
}

/// The values that a knob can take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnobValues {
    /// Whole numbers in a closed range.
    Count {
        /// The least.
        from: u32,
        /// The greatest.
        to: u32,
    },
    /// Numbers above or at a bound and below another.
    Number {
        /// The lower bound.
        above: Edge,
        /// Values are below this, or at most this.
        below: Edge,
    },
    /// One of a few words.
    Word(&'static [&'static str]),
}

/// An end of a range of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edge {
    /// The end belongs to the range.
    Included(f32),
    /// It does not.
    Excluded(f32),
    /// There is no end.
    Open,
}

/// The value of a knob.
#[derive(Clone, Debug, PartialEq)]
pub enum KnobValue {
    /// A whole number.
    Count(u32),
    /// A number.
    Number(f32),
    /// A word.
    Word(String),
}

impl std::fmt::Display for KnobValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KnobValue::Count(count) => write!(f, "{count}"),
            KnobValue::Number(number) => write!(f, "{number}"),
            KnobValue::Word(word) => write!(f, "\"{word}\""),
        }
    }
}

impl KnobValues {
    /// The range in words.
    pub fn describe(&self) -> String {
        match self {
            KnobValues::Count { from, to: u32::MAX } => {
                format!("a whole number of at least {from}")
            }
            KnobValues::Count { from, to } => format!("a whole number from {from} to {to}"),
            KnobValues::Number { above, below } => {
                let lower = match above {
                    Edge::Included(value) => Some(format!("at least {value}")),
                    Edge::Excluded(value) => Some(format!("above {value}")),
                    Edge::Open => None,
                };
                let upper = match below {
                    Edge::Included(value) => Some(format!("at most {value}")),
                    Edge::Excluded(value) => Some(format!("below {value}")),
                    Edge::Open => None,
                };
                let ends: Vec<String> = [lower, upper].into_iter().flatten().collect();
                format!("a number {}", ends.join(" and "))
            }
            KnobValues::Word(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                quoted.join(" or ")
            }
        }
    }

    /// Whether a value is of the right kind and in its range.
    pub fn admit(&self, value: &KnobValue) -> bool {
        match (self, value) {
            (KnobValues::Count { from, to }, KnobValue::Count(count)) => {
                (*from..=*to).contains(count)
            }
            (KnobValues::Number { above, below }, KnobValue::Number(number)) => {
                let high_enough = match above {
                    Edge::Included(end) => number >= end,
                    Edge::Excluded(end) => number > end,
                    Edge::Open => true,
                };
                let low_enough = match below {
                    Edge::Included(end) => number <= end,
                    Edge::Excluded(end) => number < end,
                    Edge::Open => true,
                };
                number.is_finite() && high_enough && low_enough
            }
            (KnobValues::Word(words), KnobValue::Word(word)) => words.contains(&word.as_str()),
            _ => false,
        }
    }
}

/// Values of all knobs of a strategy, each found possible by itself.
#[derive(Clone, Debug)]
pub struct Knobs {
    strategy: &'static str,
    values: BTreeMap<&'static str, KnobValue>,
}

impl Knobs {
    fn check(card: &'static Card, given: &[(String, KnobValue)]) -> Result<Self, ProtocolError> {
        let strategy = card.name;
        let mut values = BTreeMap::new();
        for (name, value) in given {
            let Some(knob) = card.knobs.iter().find(|knob| knob.name == name) else {
                let known: Vec<&str> = card.knobs.iter().map(|knob| knob.name).collect();
                let known = match known.as_slice() {
                    [] => "it has none".to_owned(),
                    names => format!("it has {}", names.join(", ")),
                };
                return Err(ProtocolError::UnknownKnob { strategy, knob: name.clone(), known });
            };
            if !knob.values.admit(value) {
                let (value, expected) = (value.to_string(), knob.values.describe());
                return Err(ProtocolError::Knob { strategy, knob: knob.name, value, expected });
            }
            values.insert(knob.name, value.clone());
        }
        match card.knobs.iter().find(|knob| !values.contains_key(knob.name)) {
            Some(Knob { name: knob, meaning, values, .. }) => {
                let expected = values.describe();
                Err(ProtocolError::MissingKnob { strategy, knob, meaning, expected })
            }
            None => Ok(Knobs { strategy, values }),
        }
    }

    fn value(&self, name: &str) -> &KnobValue {
        self.values.get(name).expect("a kind asks for knobs that are on its card")
    }

    /// A whole number.
    ///
    /// # Panics
    /// When the card does not list such a knob.
    pub fn count(&self, name: &str) -> u32 {
        match self.value(name) {
            KnobValue::Count(count) => *count,
            other => unreachable!("`{name}` of `{}` is {other:?}", self.strategy),
        }
    }

    /// A number.
    ///
    /// # Panics
    /// When the card does not list such a knob.
    pub fn number(&self, name: &str) -> f32 {
        match self.value(name) {
            KnobValue::Number(number) => *number,
            other => unreachable!("`{name}` of `{}` is {other:?}", self.strategy),
        }
    }

    /// A word.
    ///
    /// # Panics
    /// When the card does not list such a knob.
    pub fn word(&self, name: &str) -> &str {
        match self.value(name) {
            KnobValue::Word(word) => word,
            other => unreachable!("`{name}` of `{}` is {other:?}", self.strategy),
        }
    }
}

/// A strategy with its knobs set: what a strategy's own file provides.
pub trait Kind {
    /// What it is.
    const CARD: Card;

    /// The knobs, set together.
    ///
    /// # Errors
    /// [`ProtocolError::Knobs`] when they make no sense beside each other.
    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError>
    where
        Self: Sized;

    /// Values of the knobs, in the order of the card.
    fn values(&self) -> Vec<KnobValue>;

    /// The state machine for a roster that fits the card, at the beginning.
    ///
    /// # Errors
    /// A [`ProtocolError`] that says why this roster will not do.
    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError>;
}

/// Refuses a roster that does not fit the card, but for the number of examples.
fn check_roster(card: &Card, roster: Roster) -> Result<(), ProtocolError> {
    let Roster { conv_machines: machines, groups, fc, .. } = roster;
    let strategy = card.name;
    if let Some(expected) = card.grouping.groups_of(machines)
        && expected != groups
    {
        return Err(ProtocolError::FixedGroups { strategy, expected, groups, machines });
    }
    if card.fc == FcSupport::ReplicatedOnly && fc == FcPlacement::Merged {
        return Err(ProtocolError::MergedFc { strategy });
    }
    Ok(())
}

impl Grouping {
    /// The number of groups that it fixes, if any.
    pub fn groups_of(self, conv_machines: u32) -> Option<u32> {
        match self {
            Grouping::One => Some(1),
            Grouping::PerMachine => Some(conv_machines),
            Grouping::Any => None,
        }
    }
}

macro_rules! catalogue {
    (
        plain { $($(#[$plain_doc:meta])* $plain:ident($plain_kind:path)),* $(,)? }
        with_knobs { $($(#[$doc:meta])* $variant:ident($kind:path)),* $(,)? }
    ) => {
        /// A strategy by name, with its knobs: what an experiment file chooses.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum StrategySpec {
            $($(#[$plain_doc])* $plain,)*
            $($(#[$doc])* $variant($kind),)*
        }

        impl StrategySpec {
            /// The cards of all strategies, in the order of the catalogue.
            pub const CARDS: &'static [&'static Card] =
                &[$(&<$plain_kind as Kind>::CARD,)* $(&<$kind as Kind>::CARD,)*];

            /// What the strategy is.
            pub fn card(&self) -> &'static Card {
                match self {
                    $(StrategySpec::$plain => &<$plain_kind as Kind>::CARD,)*
                    $(StrategySpec::$variant(_) => &<$kind as Kind>::CARD,)*
                }
            }

            /// Values of the knobs, in the order of the card.
            pub fn values(&self) -> Vec<KnobValue> {
                match self {
                    $(StrategySpec::$plain => <$plain_kind as Default>::default().values(),)*
                    $(StrategySpec::$variant(kind) => kind.values(),)*
                }
            }

            /// A strategy by name, with values for all of its knobs.
            ///
            /// # Errors
            /// [`ProtocolError`] with the name or the knob that will not do, and what would.
            pub fn from_knobs(
                name: &str,
                given: &[(String, KnobValue)],
            ) -> Result<Self, ProtocolError> {
                $(if name == <$plain_kind as Kind>::CARD.name {
                    Knobs::check(&<$plain_kind as Kind>::CARD, given)?;
                    return Ok(StrategySpec::$plain);
                })*
                $(if name == <$kind as Kind>::CARD.name {
                    let knobs = Knobs::check(&<$kind as Kind>::CARD, given)?;
                    return <$kind as Kind>::from_knobs(&knobs).map(StrategySpec::$variant);
                })*
                let known: Vec<&str> = Self::CARDS.iter().map(|card| card.name).collect();
                Err(ProtocolError::UnknownStrategy {
                    name: name.to_owned(),
                    known: known.join(", "),
                })
            }

            fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
                match self {
                    $(StrategySpec::$plain => <$plain_kind as Default>::default().start(roster),)*
                    $(StrategySpec::$variant(kind) => kind.start(roster),)*
                }
            }
        }
    };
}

impl StrategySpec {
    /// Every strategy with its typical knobs, in the order of the catalogue.
    ///
    /// # Panics
    /// When the typical knobs of a card are not possible, which a test rules out.
    pub fn typical() -> Vec<StrategySpec> {
        let value = |knob: &Knob| (knob.name.to_owned(), knob.typical.into());
        let spec = |card: &&Card| {
            let knobs: Vec<(String, KnobValue)> = card.knobs.iter().map(value).collect();
            StrategySpec::from_knobs(card.name, &knobs).expect("typical knobs are possible")
        };
        Self::CARDS.iter().map(spec).collect()
    }
}

impl std::fmt::Display for StrategySpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.card().name)
    }
}

/// Sets up a strategy, at the beginning.
///
/// # Errors
/// A [`ProtocolError`] that says what is wrong with the roster.
pub fn strategy(spec: StrategySpec, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
    check_roster(spec.card(), roster)?;
    spec.start(roster.check()?)
}

/// The three strategies that are [`Groups`] and have no knobs.
mod plain {
    use super::{
        Card, FcSupport, Grouping, Kind, KnobValue, Knobs, ProtocolError, Roster, Strategy,
    };

    macro_rules! plain {
        ($name:ident, $card:expr) => {
            #[derive(Default)]
            pub struct $name;

            impl Kind for $name {
                const CARD: Card = $card;

                fn from_knobs(_: &Knobs) -> Result<Self, ProtocolError> {
                    Ok($name)
                }

                fn values(&self) -> Vec<KnobValue> {
                    Vec::new()
                }

                fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
                    Ok(Box::new(super::Groups::new(roster)))
                }
            }
        };
    }

    plain!(
        Sync,
        Card {
            name: "sync",
            rule: "w ← w − η·Σ (b_i/B)·g_i over all machines",
            source: "bulk synchronous parallel; Omnivore, arXiv:1606.04487, g = 1",
            grouping: Grouping::One,
            fc: FcSupport::Any,
            knobs: &[],
        }
    );
    plain!(
        Groups,
        Card {
            name: "groups",
            rule: "machines of a group sum one gradient; groups push it asynchronously",
            source: "Omnivore, arXiv:1606.04487",
            grouping: Grouping::Any,
            fc: FcSupport::Any,
            knobs: &[],
        }
    );
    plain!(
        Async,
        Card {
            name: "async",
            rule: "on every push w ← w − η·g(w as it was read)",
            source: "Downpour SGD, NIPS 2012; Omnivore, arXiv:1606.04487, one machine a group",
            grouping: Grouping::PerMachine,
            fc: FcSupport::Any,
            knobs: &[],
        }
    );
}

catalogue! {
    plain {
        /// One group of all machines.
        Sync(plain::Sync),
        /// g compute groups, synchronous inside, asynchronous to each other.
        Groups(plain::Groups),
        /// Every machine a group of its own.
        Async(plain::Async),
        /// Groups whose gradients count less the staler they are.
        StalenessAware(super::staleness_aware::StalenessAware),
    }
    with_knobs {
        /// Groups that may be a bounded number of cycles ahead of the slowest.
        Ssp(super::ssp::Ssp),
        /// Groups whose bound is chosen by how fast they are.
        Dssp(super::dssp::Dssp),
        /// Synchronous updates that do not wait for the slowest machines.
        BackupWorkers(super::backup_workers::BackupWorkers),
        /// Synchronous updates whose gradients are computed more than once.
        GradientCoding(super::gradient_coding::GradientCoding),
        /// Local steps and averages of models, in rounds.
        LocalSgd(super::local_sgd::LocalSgd),
        /// Local steps and outer gradients with momentum, in rounds.
        Diloco(super::diloco::Diloco),
        /// Local steps in rounds, on mini-batches that follow the speeds of machines.
        AdaptiveElastic(super::adaptive_elastic::AdaptiveElastic),
        /// Local steps and outer gradients on arrival.
        AsyncLocal(super::async_local::AsyncLocal),
        /// Local models that a central one holds together.
        Easgd(super::easgd::Easgd),
        /// Mean gradients along local paths.
        Agn(super::agn::Agn),
        /// Sums of several gradients.
        Accumulate(super::accumulate::Accumulate),
        /// Sums of what each machine comes to in equal times.
        Adsp(super::adsp::Adsp),
        /// Asynchronous machines with mini-batches of their own sizes.
        Hogbatch(super::hogbatch::Hogbatch),
        /// Asynchronous machines that push and pull key by key.
        AsyncPerKey(super::async_per_key::AsyncPerKey),
        /// Threads that share one model without locks.
        Hogwild(super::hogwild::Hogwild),
        /// Local steps on parts of the network that do not overlap, in rounds.
        Subnets(super::subnets::Subnets),
    }
}
