//! What everybody did and when: the events of a run as spans of time.

use serde::{Deserialize, Serialize};

use super::Usage;
use crate::ids::{MachineId, ModelVersion};
use crate::protocol::{Cycle, Stage};
use crate::units::{Bytes, SimTime};

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A conv machine.
    Machine(MachineId),
    /// The merged FC server.
    FcServer,
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Actor::Machine(machine) => machine.fmt(f),
            Actor::FcServer => f.write_str("FC server"),
        }
    }
}

/// What a message between a machine and a server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The model, of this version, to a machine.
    Model(ModelVersion),
    /// A machine's own model, as the server has changed it, back to the machine.
    OwnModel,
    /// Gradients of activations, from the FC server to a machine.
    ActivationGradients,
    /// Activations, from a machine to the FC server.
    Activations,
    /// What a machine pushes to the model server, and the version that was made of it, if any.
    Push(Option<ModelVersion>),
    /// A block of the model, by its number, to a machine.
    ModelBlock(u32),
    /// A block of what a machine pushes, and the version that was made of all, if any.
    PushBlock(u32, Option<ModelVersion>),
}

impl Content {
    /// Whether it may be on its way beside others of the same machine.
    fn is_block(self) -> bool {
        matches!(self, Content::ModelBlock(_) | Content::PushBlock(..))
    }
}

/// What an actor does in a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// A stage of a cycle, on a number of examples.
    Computes(Stage, Cycle, u32),
    /// The FC phase of a group's mini-batch.
    Serves(Cycle),
    /// A message of so many bytes, on its way.
    Moves(Content, Bytes),
}

impl Doing {
    /// A few words without numbers: spans of one kind on two clocks have the same.
    pub fn name(self) -> &'static str {
        match self {
            Doing::Computes(Stage::Forward, ..) => "conv forward",
            Doing::Computes(Stage::Backward, ..) => "conv backward",
            Doing::Computes(Stage::Whole | Stage::Local, ..) => "gradient",
            Doing::Serves(_) => "FC phase",
            Doing::Moves(Content::Model(_), _) => "model",
            Doing::Moves(Content::OwnModel, _) => "own model",
            Doing::Moves(Content::ActivationGradients, _) => "activation gradients",
            Doing::Moves(Content::Activations, _) => "activations",
            Doing::Moves(Content::Push(_), _) => "push",
            Doing::Moves(Content::ModelBlock(_), _) => "model block",
            Doing::Moves(Content::PushBlock(..), _) => "push block",
        }
    }

    /// The cycle that is computed for.
    pub fn cycle(self) -> Option<Cycle> {
        match self {
            Doing::Computes(_, cycle, _) | Doing::Serves(cycle) => Some(cycle),
            Doing::Moves(..) => None,
        }
    }

    /// Whether it is computation: everything else is communication.
    pub fn is_computation(self) -> bool {
        !matches!(self, Doing::Moves(..))
    }
}

/// One actor does one thing from one instant to another.
///
/// In files it is `[who, from, to, doing]`: there are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct Span {
    /// Who.
    pub who: Actor,
    /// From when.
    pub from: SimTime,
    /// Until when.
    pub to: SimTime,
    /// What.
    pub doing: Doing,
}

type Row = (Actor, SimTime, SimTime, Doing);

impl From<Row> for Span {
    fn from((who, from, to, doing): Row) -> Self {
        Span { who, from, to, doing }
    }
}

impl From<Span> for Row {
    fn from(Span { who, from, to, doing }: Span) -> Self {
        (who, from, to, doing)
    }
}

/// Keeps the time sheet of one actor, and insists that no two entries overlap.
#[derive(Clone, Debug)]
pub struct TimeSheet {
    who: Actor,
    since: SimTime,
    before: Usage,
    entries: Vec<Span>,
    /// Messages that may overlap each other; what they keep the actor from is among the entries.
    blocks: Vec<Span>,
}

impl TimeSheet {
    /// An empty sheet from the beginning of a run.
    pub fn new(who: Actor) -> Self {
        Self::continuing(who, SimTime::ZERO, Usage::default())
    }

    /// A sheet that goes on where an earlier one ended.
    pub fn continuing(who: Actor, since: SimTime, before: Usage) -> Self {
        TimeSheet { who, since, before, entries: Vec::new(), blocks: Vec::new() }
    }

    /// Notes what the actor does from one instant to another; at the end of a run it may be cut
    /// off.
    ///
    /// # Panics
    /// When the entry begins before the last one ends: a machine does one thing at a time.
    pub fn enter(&mut self, from: SimTime, to: SimTime, doing: Doing) {
        let free_at = self.entries.last().map_or(self.since, |span| span.to);
        let mut span = Span { who: self.who, from, to, doing };
        if let Doing::Moves(content, _) = doing
            && content.is_block()
        {
            self.blocks.push(span);
            span.from = from.max(free_at);
            span.to = to.max(span.from);
        }
        assert!(span.from >= free_at && to >= from, "a machine does one thing at a time");
        self.entries.push(span);
    }

    /// Notes which version was made of what the actor has pushed last.
    pub fn merged(&mut self, version: ModelVersion) {
        let pushes = self.entries.iter_mut().rev().find_map(|span| match &mut span.doing {
            Doing::Moves(Content::Push(made), _) => Some(made),
            _ => None,
        });
        if let Some(made) = pushes {
            *made = Some(version);
        }
        for span in self.blocks.iter_mut().rev() {
            match &mut span.doing {
                Doing::Moves(Content::PushBlock(_, Some(_)), _) => break,
                Doing::Moves(Content::PushBlock(_, made), _) => *made = Some(version),
                _ => {}
            }
        }
    }

    /// Ends whatever the actor is at, at an instant.
    pub fn cut(&mut self, at: SimTime) {
        self.entries.retain(|span| span.from < at);
        if let Some(last) = self.entries.last_mut() {
            last.to = last.to.min(at);
        }
    }

    /// Adds up what has ended by an instant, and keeps its sum alone; nothing is to be cut before it.
    pub fn forget(&mut self, until: SimTime) {
        self.blocks.retain(|span| span.to > until);
        let n = self.entries.partition_point(|span| span.to <= until);
        if let Some(last) = self.entries[..n].last() {
            let since = last.to;
            self.before = self.added_up(&self.entries[..n], since);
            self.since = since;
            self.entries.drain(..n);
        }
    }

    /// Adds up the entries of a run that ended at `makespan`; what lies beyond is cut off.
    pub fn usage(&self, makespan: SimTime) -> Usage {
        self.added_up(&self.entries, makespan)
    }

    fn added_up(&self, entries: &[Span], makespan: SimTime) -> Usage {
        let mut usage = self.before;
        let mut free_at = self.since.min(makespan);
        for span in entries {
            let (from, to) = (span.from.min(makespan), span.to.min(makespan));
            usage.waiting += from - free_at;
            if span.doing.is_computation() {
                usage.busy += to - from;
            } else {
                usage.communicating += to - from;
            }
            free_at = to;
        }
        usage.waiting += makespan - free_at;
        usage
    }

    /// At most so many spans of [`Self::spans`].
    pub fn n_spans(&self) -> usize {
        self.entries.len() + self.blocks.len()
    }

    /// The entries of a run that ended at `makespan`; what lies beyond is cut off.
    pub fn spans(&self, makespan: SimTime) -> impl Iterator<Item = Span> + use<'_> {
        let begun = move |span: &&Span| span.from < makespan || span.to <= makespan;
        let is_block = |span: &&Span| match span.doing {
            Doing::Moves(content, _) => content.is_block(),
            Doing::Computes(..) | Doing::Serves(_) => false,
        };
        let alone = self.entries.iter().filter(move |span| !is_block(span));
        let begun = alone.chain(&self.blocks).filter(begun);
        begun.map(move |span| Span { to: span.to.min(makespan), ..*span })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GroupId;

    const CYCLE: Cycle = Cycle { group: GroupId(0), number: 3 };
    const COMPUTES: Doing = Doing::Computes(Stage::Whole, CYCLE, 8);
    const PUSHES: Doing = Doing::Moves(Content::Push(None), Bytes(40));

    fn sheet() -> TimeSheet {
        let at = SimTime::from_nanos;
        let mut sheet = TimeSheet::new(Actor::Machine(MachineId(1)));
        sheet.enter(at(2), at(5), Doing::Moves(Content::Model(ModelVersion(7)), Bytes(40)));
        sheet.enter(at(5), at(9), COMPUTES);
        sheet.enter(at(9), at(12), PUSHES);
        sheet.enter(at(12), at(20), COMPUTES);
        sheet
    }

    #[test]
    fn a_time_sheet_adds_up_to_the_makespan_wherever_the_run_ends() {
        let at = SimTime::from_nanos;
        for end in 0..30 {
            let Usage { busy, communicating, waiting } = sheet().usage(at(end));
            assert_eq!((busy + communicating + waiting).as_nanos(), end);
            let mut spans = sheet().spans(at(end)).collect::<Vec<_>>();
            spans.retain(|span| span.doing.is_computation());
            let computing: u64 = spans.iter().map(|span| (span.to - span.from).as_nanos()).sum();
            assert_eq!(computing, busy.as_nanos());
        }
        assert_eq!(sheet().usage(at(15)).busy.as_nanos(), 4 + 3);
    }

    #[test]
    fn the_last_push_is_told_which_version_was_made_of_it() {
        let mut sheet = sheet();
        sheet.merged(ModelVersion(8));
        let pushes =
            sheet.spans(SimTime::from_nanos(99)).filter(|span| span.doing.name() == "push");
        let pushes: Vec<Doing> = pushes.map(|span| span.doing).collect();
        assert_eq!(pushes, [Doing::Moves(Content::Push(Some(ModelVersion(8))), Bytes(40))]);
    }
}
