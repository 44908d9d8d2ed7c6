//! Models that are read and written block by block: what a machine computes on may mix versions.

use super::blocks::{Block, Cut};
use super::{
    Action, Application, Blocked, Cycle, Event, Memory, ModelPart, Parcel, ProtocolError, Roster,
    ServerRule, Stage, Strategy, Term, Update, Work, blocked_at, whereabouts,
};
use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::units::SimTime;

/// In which order a machine reads and writes its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Each is read again at the instant of its own write, while the next one is pushed. Machine i
    /// begins with block i. Blocks are keys of layers.
    EachAtItsWrite,
    /// One after the other is written, then one after the other is read.
    OneByOne,
}

/// Where a machine stands; the numbers count blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Absent,
    AwaitsModel,
    Computes,
    Exchanges { written: u32, read: u32 },
    Gone,
}

#[derive(Clone, Debug)]
struct Machine {
    position: Position,
    cycle: u64,
    /// Version of the whole model when it began to read.
    read: ModelVersion,
    /// Version of every block that it holds.
    blocks: Vec<ModelVersion>,
    /// Whether it goes once its gradient is written.
    leaving: bool,
}

/// The strategies `async_per_key` and `hogwild`: every machine is on its own.
///
/// Every block has versions of its own, which count its writes. An update of the whole model is the
/// last write of a gradient's blocks.
///
/// Nobody waits for a machine that dies; the blocks of its gradient that were written by then stay in
/// the model, but its examples count as dropped. A machine that leaves writes its gradient first; one
/// that joins reads the model at once.
#[derive(Debug)]
pub(super) struct Keys {
    roster: Roster,
    order: Order,
    version: ModelVersion,
    blocks: Vec<ModelVersion>,
    machines: Vec<Machine>,
}

impl Keys {
    pub(super) fn new(order: Order, blocks: u32, roster: Roster) -> Self {
        let version = ModelVersion(0);
        let blocks = vec![version; blocks as usize];
        let machine = Machine {
            position: Position::Absent,
            cycle: 0,
            read: version,
            blocks: blocks.clone(),
            leaving: false,
        };
        let machines = vec![machine; roster.conv_machines as usize];
        Keys { roster, order, version, blocks, machines }
    }

    fn n_blocks(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("as many as a knob said")
    }

    fn block(&self, number: u32) -> Block {
        let blocks = self.n_blocks();
        let of = match self.order {
            Order::EachAtItsWrite => Cut::Layers { keys: blocks },
            Order::OneByOne => Cut::Even { blocks },
        };
        Block { number, of }
    }

    fn compute(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        own.position = Position::Computes;
        let cycle = Cycle { group: GroupId(id.0), number: own.cycle };
        let share = self.roster.share_of(id);
        actions.push(Action::Compute(Work::new(cycle, share, Stage::Local)));
    }

    fn read_block(&mut self, id: MachineId, number: u32, actions: &mut Vec<Action>) {
        let version = self.blocks[number as usize];
        self.machines[id.index()].blocks[number as usize] = version;
        let block = self.block(number);
        actions.push(Action::SendBlock { machine: id, block, version });
    }

    /// Lets a machine push the next of its blocks.
    fn push_block(&self, id: MachineId, nth: u32, actions: &mut Vec<Action>) {
        let number = match self.order {
            Order::EachAtItsWrite => (id.0 + nth) % self.n_blocks(),
            Order::OneByOne => nth,
        };
        let (block, parcel) = (self.block(number), Parcel::Gradient);
        actions.push(Action::PushBlock { machine: id, block, parcel });
    }

    fn on_computed(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        self.machines[id.index()].position = Position::Exchanges { written: 0, read: 0 };
        self.push_block(id, 0, actions);
    }

    /// Applies a block of a machine's gradient.
    fn write(&mut self, id: MachineId, number: u32, actions: &mut Vec<Action>) {
        let (cycle, read) = {
            let own = &self.machines[id.index()];
            (Cycle { group: GroupId(id.0), number: own.cycle }, own.blocks[number as usize])
        };
        let version = &mut self.blocks[number as usize];
        let staleness = version.since(read);
        *version = version.next();
        let written = *version;
        let part = ModelPart::Block(self.block(number));
        actions.push(Action::Apply(Application {
            update: Update { part, cycle, read, written, staleness },
            terms: vec![Term { machine: id, weight: 1.0 }],
            by: ServerRule::Scaled(1.0),
            examples: 0,
        }));
    }

    /// The last block of a gradient is written: an update of the whole model.
    fn complete(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let examples = u64::from(self.roster.share_of(id).size);
        let own = &mut self.machines[id.index()];
        let update = Update {
            part: ModelPart::Whole,
            cycle: Cycle { group: GroupId(id.0), number: own.cycle },
            read: own.read,
            written: self.version.next(),
            staleness: self.version.since(own.read),
        };
        own.cycle += 1;
        self.version = update.written;
        own.read = self.version;
        actions.push(Action::Count { update, pushed_by: vec![id], examples });
    }

    fn on_pushed(&mut self, id: MachineId, number: u32, read: u32, actions: &mut Vec<Action>) {
        self.write(id, number, actions);
        let n_blocks = self.n_blocks();
        let Position::Exchanges { written, .. } = self.machines[id.index()].position else {
            return;
        };
        let written = written + 1;
        self.machines[id.index()].position = Position::Exchanges { written, read };
        if written == n_blocks {
            self.complete(id, actions);
            let own = &mut self.machines[id.index()];
            if std::mem::take(&mut own.leaving) {
                own.position = Position::Gone;
                // Blocks may be on their way to it.
                actions.push(Action::Cancel { machine: id });
                actions.push(Action::Dismiss { machine: id });
                return;
            }
        }
        if self.order == Order::EachAtItsWrite {
            self.read_block(id, number, actions);
        }
        if written < n_blocks {
            self.push_block(id, written, actions);
        } else if self.order == Order::OneByOne {
            self.read_block(id, 0, actions);
        }
    }

    fn start(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let (version, blocks) = (self.version, self.blocks.clone());
        let own = &mut self.machines[id.index()];
        (own.position, own.read, own.blocks) = (Position::AwaitsModel, version, blocks);
        actions.push(Action::SendModel { machine: id, version });
    }

    fn on_failure(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let n_blocks = self.n_blocks();
        let own = &mut self.machines[id.index()];
        let is_unfinished = match own.position {
            Position::Computes => true,
            Position::Exchanges { written, .. } => written < n_blocks,
            Position::Absent | Position::AwaitsModel | Position::Gone => false,
        };
        (own.position, own.leaving) = (Position::Gone, false);
        if is_unfinished {
            actions.push(Action::Drop { share: self.roster.share_of(id) });
        }
    }

    fn on_leaving(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        match own.position {
            Position::Gone => {}
            Position::Absent => {
                own.position = Position::Gone;
                actions.push(Action::Dismiss { machine: id });
            }
            _ => own.leaving = true,
        }
    }

    fn on_join(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        own.leaving = false;
        if own.position == Position::Gone {
            self.start(id, actions);
        }
    }

    fn on_arrived(&mut self, id: MachineId, written: u32, read: u32, actions: &mut Vec<Action>) {
        let read = read + 1;
        self.machines[id.index()].position = Position::Exchanges { written, read };
        if read == self.n_blocks() {
            self.compute(id, actions);
        } else if self.order == Order::OneByOne {
            self.read_block(id, read, actions);
        }
    }
}

impl Strategy for Keys {
    fn memory(&self) -> Memory {
        match self.order {
            Order::EachAtItsWrite => Memory::AtServer,
            Order::OneByOne => Memory::Shared,
        }
    }

    fn handle(
        &mut self,
        _now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let out_of_place = |reason| ProtocolError::OutOfPlace { event, reason };
        let (id, position) = whereabouts(event, &self.machines, |own| own.position)?;
        match (event, position) {
            (Event::Started { .. }, Position::Absent) => self.start(id, actions),
            (Event::Failed { .. }, _) => self.on_failure(id, actions),
            (Event::Leaving { .. }, _) => self.on_leaving(id, actions),
            (Event::Joined { .. }, _) => self.on_join(id, actions),
            (Event::ModelArrived { .. }, Position::AwaitsModel) => self.compute(id, actions),
            (Event::Computed { .. }, Position::Computes) => self.on_computed(id, actions),
            (Event::BlockPushed { block, .. }, Position::Exchanges { read, .. })
                if block < self.n_blocks() =>
            {
                self.on_pushed(id, block, read, actions);
            }
            (Event::BlockArrived { .. }, Position::Exchanges { written, read }) => {
                self.on_arrived(id, written, read, actions);
            }
            _ => return Err(out_of_place(format!("{id} {}", position.describe()))),
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let waits_for = |position: Position| match position {
            Position::AwaitsModel => Some("its model from the model server".to_owned()),
            Position::Exchanges { written, read } => {
                let n_blocks = self.n_blocks();
                let (unwritten, unread) = (n_blocks - written, n_blocks - read);
                Some(format!("{unwritten} blocks to be written and {unread} to be read"))
            }
            Position::Absent | Position::Computes | Position::Gone => None,
        };
        blocked_at(self.machines.iter().map(|own| own.position), waits_for)
    }

    fn cycles(&self) -> Vec<u64> {
        self.machines.iter().map(|machine| machine.cycle).collect()
    }
}

impl Position {
    fn describe(self) -> &'static str {
        match self {
            Position::Absent => "has not started",
            Position::AwaitsModel => "waits for its model",
            Position::Computes => "computes its gradient",
            Position::Exchanges { .. } => "writes and reads blocks",
            Position::Gone => "is gone",
        }
    }
}
