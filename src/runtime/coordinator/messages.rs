//! What is on its way between machines and servers, and when it arrives.

use omnivore_sim::cluster::{
    Clockwork, Crossing, Letter, Passage, Route, letter_after, message_after, message_sizes,
};
use omnivore_sim::ids::MachineId;
use omnivore_sim::protocol::{Block, Cycle, Event, Stage, Work};
use omnivore_sim::trace::Content;
use omnivore_sim::units::{Bytes, SimTime};

use super::{Coordinator, Expected, OnLink, Then};
use crate::runtime::RuntimeError;

impl Coordinator<'_> {
    /// Notes the arrival of a message, or of anything else that nobody computes for.
    pub(super) fn expect_message(
        &mut self,
        event: Event,
        asked: SimTime,
        arrives: SimTime,
        message: Option<(Content, Bytes)>,
    ) {
        let passage = Passage { begins: asked, computed: arrives };
        let done_at = Some(arrives);
        let (work, is_noted) = (None, false);
        self.expect(Expected { event, asked, passage, work, done_at, message, is_noted });
    }

    /// Notes an event to come, which also waits for a product unless it is done already.
    pub(super) fn expect(&mut self, expected: Expected) -> u64 {
        let (ticket, arrives) = (self.tickets, expected.passage.computed);
        self.tickets += 1;
        self.expected.insert((arrives, ticket), expected);
        self.prescribed.insert(ticket, arrives);
        ticket
    }

    /// Sends a message to or from a machine now; the strategy is told of its arrival.
    pub(super) fn send(&mut self, event: Event, letter: Letter, message: (Content, Bytes)) {
        let now = self.now;
        let route = self.clockwork.as_mut().map(|clockwork| clockwork.route(now, letter));
        match route.unwrap_or(Route::Arrives(now)) {
            Route::Arrives(arrives) => self.expect_message(event, now, arrives, Some(message)),
            Route::Shares(crossing) => {
                let machine = event.machine().expect("only machines send and receive");
                let then = Then::Told(event);
                self.enter(crossing, OnLink { machine, asked: now, message, then });
            }
        }
    }

    /// Lets a message enter a shared link.
    pub(super) fn enter(&mut self, crossing: Crossing, on_link: OnLink) {
        let number = self.tickets;
        self.tickets += 1;
        if let Some(clockwork) = &mut self.clockwork {
            clockwork.enter(crossing, number);
            self.crossing.insert(number, on_link);
        }
    }

    /// Lets messages enter and leave shared links.
    pub(super) fn move_links(&mut self, at: SimTime) -> Result<(), RuntimeError> {
        self.now = self.now.max(at);
        let left = self.clockwork.as_mut().map_or(Vec::new(), |clockwork| clockwork.change(at));
        for (number, arrives) in left {
            let Some(OnLink { machine, asked, message, then }) = self.crossing.remove(&number)
            else {
                continue;
            };
            match then {
                Then::Told(event) => self.expect_message(event, asked, arrives, Some(message)),
                Then::Begins(work) => self.begin(work, asked, arrives)?,
                Then::Pushed => self.pushed[machine.index()] = Some(arrives),
            }
        }
        Ok(())
    }

    pub(super) fn send_model(&mut self, machine: MachineId, content: Content) {
        let bytes = self.clockwork.as_ref().map_or(Bytes(0), Clockwork::model_bytes);
        self.send(Event::ModelArrived { machine }, Letter::Model(machine), (content, bytes));
    }

    pub(super) fn send_block(&mut self, machine: MachineId, block: Block) {
        let number = block.number;
        let bytes = self.clockwork.as_ref().map_or(Bytes(0), |c| c.model_block_bytes(block));
        let event = Event::BlockArrived { machine, block: number };
        self.send(event, Letter::ModelBlock(block), (Content::ModelBlock(number), bytes));
    }

    pub(super) fn push_block(&mut self, machine: MachineId, block: Block) {
        let number = block.number;
        let bytes = self.clockwork.as_ref().map_or(Bytes(0), |c| c.push_block_bytes(block));
        let event = Event::BlockPushed { machine, block: number };
        self.send(event, Letter::PushBlock(block), (Content::PushBlock(number, None), bytes));
    }

    /// Lets what a machine has computed cross a link, where there is one in the way.
    pub(super) fn send_after(&mut self, event: Event, Work { share, stage, .. }: Work) -> bool {
        let Some(clockwork) = self.clockwork.as_ref().filter(|c| c.sends_after(stage)) else {
            return false;
        };
        let message = message_after(clockwork, share, stage);
        if clockwork.overlaps(stage) {
            let arrives = self.pushed[share.machine.index()].take().unwrap_or(self.now);
            self.expect_message(event, self.now, arrives.max(self.now), Some(message));
        } else {
            self.send(event, letter_after(share, stage), message);
        }
        true
    }

    /// Enters into the trace what a machine has sent that is there at once.
    pub(super) fn note_sent(&mut self, Work { share, stage, .. }: Work) {
        let content = match stage {
            Stage::Forward => Content::Activations,
            Stage::Backward | Stage::Whole => Content::Push(None),
            Stage::Local => return,
        };
        self.witness.message(share.machine, self.now, self.now, (content, Bytes(0)));
    }

    /// Enters what has just ended into the trace, with the times that it really took.
    pub(super) fn note(&mut self, expected: &Expected, done_at: SimTime) {
        let Expected { event, asked, passage, work, .. } = expected;
        match (event, work) {
            (_, Some(work)) => {
                let computed = passage.computed.max(done_at).min(self.now);
                let passage = Passage { begins: passage.begins.min(computed), computed };
                let received = self
                    .clockwork
                    .as_ref()
                    .map_or(Bytes(0), |clock| message_sizes(clock, work.share, work.stage).0);
                if work.stage == Stage::Backward {
                    let (machine, begins) = (work.share.machine, passage.begins);
                    let message = (Content::ActivationGradients, received);
                    self.witness.message(machine, *asked, begins, message);
                }
                self.witness.computed(*work, passage);
                self.note_lateness(work.cycle, expected, done_at);
            }
            (Event::FcServed { group }, None) => {
                let number = self.strategy.cycles()[group.index()];
                let cycle = Cycle { group: *group, number };
                self.witness.fc_served(*asked, self.now, cycle);
                self.note_lateness(cycle, expected, done_at);
            }
            (event, None) => {
                if let Some((machine, message)) = event.machine().zip(expected.message) {
                    self.witness.message(machine, *asked, self.now, message);
                }
            }
        }
    }

    pub(super) fn note_lateness(&mut self, cycle: Cycle, expected: &Expected, done_at: SimTime) {
        if self.clockwork.is_some() && done_at > expected.passage.computed {
            self.late.insert(cycle);
        }
    }
}
