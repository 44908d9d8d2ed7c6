//! Turns what a driver does into a trace. Both clocks use it, so traces mean the same.

use crate::cluster::disruption::Portion;
use crate::cluster::timing::Passage;
use crate::ids::MachineId;
use crate::objective::Evaluation;
use crate::protocol::{Blocked, Cycle, FcPlacement, ModelPart, Roster, Share, Update, Work};
use crate::trace::{
    Actor, Content, CurvePoint, Divergence, Doing, Span, TimeSheet, Trace, Traffic, Usage,
};
use crate::units::{Bytes, SimDuration, SimTime};

/// Why a run is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// All updates were applied.
    Complete,
    /// The monitor asked to stop.
    Stopped,
    /// The loss blew up.
    Diverged(Divergence),
    /// Nothing can happen any more; who waits for what.
    Stalled(Vec<Blocked>),
}

/// How much of a run its trace tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All there is.
    Everything,
    /// All but the single spans: how machines spent their time and what was sent is only added up, so
    /// that a long run needs no more memory than its updates.
    Totals,
    /// Updates, evaluations and examples; who did what when, and what was sent, is left out.
    Updates,
}

/// Updates after which what is only added up is added up.
const ADDED_UP_EVERY: u64 = 16;

/// Watches a run and writes its trace.
#[derive(Clone, Debug)]
pub struct Witness {
    roster: Roster,
    trace: Trace,
    sheets: Vec<TimeSheet>,
    fc_sheet: TimeSheet,
    /// What everybody did before an interruption.
    earlier: Vec<Span>,
    /// Time that the model server took for updates.
    updating: SimDuration,
    /// Bytes of messages that have arrived.
    arrived: Bytes,
    /// Other messages with the instant of their arrival.
    messages: Vec<(SimTime, Bytes)>,
    /// Largest loss that still counts as a result.
    divergence_loss: f64,
    detail: Detail,
}

impl Witness {
    /// A witness of a run in which a loss above `divergence_loss` counts as divergence.
    pub fn new(roster: Roster, divergence_loss: f64) -> Self {
        let trace = Trace {
            machines_per_group: roster.machines_per_group(),
            groups: roster.groups,
            ..Trace::default()
        };
        Self::continuing(roster, divergence_loss, trace)
    }

    /// A witness of the rest of a run that was interrupted with the given trace.
    pub fn continuing(roster: Roster, divergence_loss: f64, mut trace: Trace) -> Self {
        let since = trace.makespan;
        // What was on its way is sent again.
        let Traffic { received, .. } = trace.traffic;
        trace.traffic = Traffic { sent: received, received, in_flight: Bytes(0) };
        trace.machines.resize(roster.conv_machines as usize, Usage::default());
        let sheet = |who, before: &Usage| TimeSheet::continuing(who, since, *before);
        let machines = roster.machine_ids().map(Actor::Machine);
        Witness {
            roster,
            sheets: machines.zip(&trace.machines).map(|(who, own)| sheet(who, own)).collect(),
            fc_sheet: sheet(Actor::FcServer, &trace.fc_server.unwrap_or_default()),
            earlier: std::mem::take(&mut trace.timeline),
            updating: trace.model_server.unwrap_or_default().busy,
            arrived: Bytes(0),
            messages: Vec::new(),
            divergence_loss,
            detail: Detail::Everything,
            trace,
        }
    }

    /// The same, with a trace that tells so much.
    #[must_use]
    pub fn telling(self, detail: Detail) -> Self {
        Witness { detail, ..self }
    }

    /// The same, with room for so many updates, which grow by no doubling then.
    #[must_use]
    pub fn expecting(mut self, updates: u64) -> Self {
        let room = usize::try_from(updates).unwrap_or(usize::MAX);
        // Without that much memory the lists grow as far as they get.
        let _ = self.trace.updates.try_reserve_exact(room);
        if self.roster.fc == FcPlacement::Merged {
            // Whoever is in a cycle at the end has changed the FC model already.
            let ahead = self.roster.conv_machines as usize;
            let _ = self.trace.fc_updates.try_reserve_exact(room.saturating_add(ahead));
        }
        self
    }

    /// Puts evaluations in place that were made before the run was stopped.
    pub fn remember(&mut self, curve: Vec<CurvePoint>) {
        self.trace.curve = curve;
    }

    /// Updates of the conv (or whole) model so far.
    pub fn updates(&self) -> u64 {
        self.trace.updates.len() as u64
    }

    /// When the part of the run that this witness watches began.
    pub fn began(&self) -> SimTime {
        self.trace.makespan
    }

    /// Updates after which the model was last evaluated.
    pub fn last_evaluated(&self) -> Option<u64> {
        self.trace.curve.last().map(|point| point.update)
    }

    /// A machine is sent, or sends, a message now that arrives later.
    pub fn message(
        &mut self,
        machine: MachineId,
        now: SimTime,
        arrives: SimTime,
        (content, size): (Content, Bytes),
    ) {
        if self.detail == Detail::Updates {
            return;
        }
        self.sheets[machine.index()].enter(now, arrives, Doing::Moves(content, size));
        self.messages.push((arrives, size));
    }

    /// A machine computes a stage.
    pub fn computed(&mut self, work: Work, passage: Passage) {
        if self.detail == Detail::Updates {
            return;
        }
        let Work { cycle, share, stage, .. } = work;
        let computes = Doing::Computes(stage, cycle, share.size);
        self.sheets[share.machine.index()].enter(passage.begins, passage.computed, computes);
    }

    /// A machine starts on the last stage of its cycle: its examples count as processed.
    pub fn processed(&mut self, share: Share) {
        self.trace.examples.processed += u64::from(share.size);
    }

    /// A machine begins a share of which it has only a portion.
    pub fn portioned(&mut self, portion: Portion) {
        self.trace.examples.lacking += u64::from(portion.lacking);
        self.trace.examples.unused += portion.unused;
    }

    /// The FC server computes from now until later.
    pub fn fc_served(&mut self, now: SimTime, until: SimTime, cycle: Cycle) {
        if self.detail != Detail::Updates {
            self.fc_sheet.enter(now, until, Doing::Serves(cycle));
        }
    }

    /// The model server takes this long for an update.
    pub fn updates_for(&mut self, span: SimDuration) {
        self.updating += span;
    }

    /// An update is applied that has this many examples behind it, and what these machines pushed.
    pub fn applied(
        &mut self,
        now: SimTime,
        update: Update,
        examples: u64,
        pushed_by: impl IntoIterator<Item = MachineId>,
    ) {
        self.trace.record_update(now, update);
        if matches!(update.part, ModelPart::Conv | ModelPart::Whole) {
            self.trace.examples.applied += examples;
            for machine in pushed_by {
                self.sheets[machine.index()].merged(update.written);
            }
            if self.updates().is_multiple_of(ADDED_UP_EVERY) {
                self.forget(now);
            }
        }
    }

    /// Adds up what has come to its end, of which no more need be known.
    fn forget(&mut self, now: SimTime) {
        for (_, size) in self.messages.extract_if(.., |(arrives, _)| *arrives <= now) {
            self.arrived.0 += size.0;
        }
        if self.detail == Detail::Totals {
            self.sheets.iter_mut().chain([&mut self.fc_sheet]).for_each(|sheet| sheet.forget(now));
        }
    }

    /// What a machine has computed is not used.
    pub fn dropped(&mut self, share: Share) {
        self.trace.examples.dropped += u64::from(share.size);
    }

    /// A machine stops what it is at.
    pub fn cancelled(&mut self, machine: MachineId, now: SimTime) {
        self.sheets[machine.index()].cut(now);
    }

    /// The model as it was after `updates` updates was evaluated; says whether its loss counts as
    /// divergence.
    pub fn evaluated(
        &mut self,
        updates: u64,
        time: SimTime,
        evaluation: Evaluation,
    ) -> (CurvePoint, Option<Divergence>) {
        let point = CurvePoint { update: updates, time, evaluation };
        self.trace.curve.push(point);
        (point, self.divergence(updates, evaluation.loss))
    }

    /// Whether a loss seen after `updates` updates counts as divergence, and whose it is.
    pub fn divergence(&self, updates: u64, loss: f64) -> Option<Divergence> {
        let reason = if loss.is_nan() {
            "the loss is not a number".to_owned()
        } else if loss > self.divergence_loss {
            format!("the loss {loss:.4} is above the bound {}", self.divergence_loss)
        } else {
            return None;
        };
        let last =
            usize::try_from(updates).ok().and_then(|n| self.trace.updates.get(n.checked_sub(1)?));
        let machine = last.map_or(MachineId(0), |record| {
            MachineId(record.update.cycle.group.0 * self.roster.machines_per_group())
        });
        Some(Divergence { update: updates, machine, reason })
    }

    /// Closes the trace of a run that ended now.
    pub fn close(mut self, now: SimTime, end: RunEnd) -> Trace {
        self.trace.makespan = now;
        match self.detail {
            Detail::Everything => {
                self.add_up(now);
                self.put_in_order(now);
            }
            Detail::Totals => self.add_up(now),
            Detail::Updates => self.trace.machines.clear(),
        }
        let examples = &mut self.trace.examples;
        examples.unapplied = examples.processed - examples.applied - examples.dropped;
        match end {
            RunEnd::Diverged(divergence) => self.trace.diverged = Some(divergence),
            RunEnd::Stalled(blocked) => self.trace.stalled = Some(blocked),
            RunEnd::Complete | RunEnd::Stopped => {}
        }
        self.trace
    }

    /// Puts into the trace how everybody spent the time, and what was sent.
    fn add_up(&mut self, now: SimTime) {
        self.trace.machines = self.sheets.iter().map(|sheet| sheet.usage(now)).collect();
        if self.roster.fc == FcPlacement::Merged {
            self.trace.fc_server = Some(self.fc_sheet.usage(now));
        }
        if self.updating > SimDuration::ZERO {
            let makespan = now - SimTime::ZERO;
            // The last of them may last beyond the end.
            let busy = self.updating.min(makespan);
            let waiting = SimDuration::from_nanos(makespan.as_nanos() - busy.as_nanos());
            self.trace.model_server = Some(Usage { busy, waiting, ..Usage::default() });
        }
        let total = |arrived: fn(SimTime, SimTime) -> bool| {
            Bytes(self.messages.iter().filter(|(at, _)| arrived(*at, now)).map(|(_, b)| b.0).sum())
        };
        let (received, in_flight) =
            (self.arrived + total(|at, now| at <= now), total(|at, now| at > now));
        let sent = received + in_flight;
        let before = self.trace.traffic;
        self.trace.traffic = Traffic {
            sent: before.sent + sent,
            received: before.received + received,
            in_flight: before.in_flight + in_flight,
        };
    }

    /// Puts into the trace who did what when.
    fn put_in_order(&mut self, now: SimTime) {
        let with_server = self.sheets.iter().chain([&self.fc_sheet]);
        self.earlier.reserve(with_server.clone().map(TimeSheet::n_spans).sum());
        with_server.for_each(|sheet| self.earlier.extend(sheet.spans(now)));
        self.trace.timeline = std::mem::take(&mut self.earlier);
        self.trace.timeline.sort_by_key(|span| span.who);
    }
}
