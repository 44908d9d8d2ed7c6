//! Which rosters are rehearsed, and how often.

use std::collections::BTreeMap;
use std::time::Instant;

use omnivore_sim::objective::Objective;
use omnivore_sim::protocol::{ModelServer, Roster, UpdateRule};

use super::crew::{Crew, Task};
use super::rehearsal::Rehearsal;
use super::tally::Tally;
use super::{Profile, ProfileError, ProfileSetup};

/// Rounds made in any case: with fewer the scatter cannot be told.
const LEAST_ROUNDS: u32 = 3;

/// An update that changes no parameter costs as much as any other.
const AT_REST: UpdateRule =
    UpdateRule { learning_rate: 0.0, explicit_momentum: 0.9, weight_decay: 0.0 };

/// Measures the stages of a network on this machine, as a run will execute them.
///
/// The sizes are the shares that `mini_batch` is cut into for every number of groups that divides
/// `concurrency`, each rehearsed with that number of groups, and for the fit also 1, a quarter and
/// half of it. One round over all sizes warms up and is not counted. `progress` is told the part
/// done, up to 1.
///
/// # Errors
/// [`ProfileError::Zero`] for an empty setup, [`ProfileError::Thread`] and
/// [`ProfileError::WorkerFailed`] when threads cannot be started or fail.
pub fn measure(
    setup: &ProfileSetup<'_>,
    progress: &mut dyn FnMut(f64),
) -> Result<Profile, ProfileError> {
    let zeros = [
        ("mini_batch", setup.mini_batch == 0),
        ("concurrency", setup.concurrency == 0),
        ("threads", setup.threads == 0),
    ];
    if let Some((what, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
        return Err(ProfileError::Zero { what });
    }
    let cuts = cuts(setup.mini_batch, setup.concurrency);
    let mut rehearsals = Rehearsals::new(setup)?;
    rehearsals.round(&cuts)?;
    rehearsals.tally = Tally::default();
    let rounds = setup.rounds.max(LEAST_ROUNDS);
    for round in 1..=rounds {
        rehearsals.round(&cuts)?;
        progress(f64::from(round) / f64::from(rounds));
    }
    rehearsals.tally.into_profile(setup)
}

/// Share sizes to measure, each with the number of machines per group at which it occurs.
///
/// A size that several numbers of machines give belongs to the one that cuts evenly; sizes that
/// only the fit needs are measured with all machines in one group.
pub(super) fn cuts(mini_batch: u32, conv_machines: u32) -> BTreeMap<u32, u32> {
    let mut cuts = BTreeMap::new();
    let possible = 1..=conv_machines.min(mini_batch);
    let machines_per_group = possible.filter(|k| conv_machines.is_multiple_of(*k));
    let (even, uneven): (Vec<u32>, Vec<u32>) =
        machines_per_group.partition(|k| mini_batch.is_multiple_of(*k));
    for machines in even.into_iter().chain(uneven) {
        for size in [mini_batch / machines, mini_batch.div_ceil(machines)] {
            cuts.entry(size).or_insert(machines);
        }
    }
    for size in [1, mini_batch / 4, mini_batch / 2].into_iter().filter(|size| *size > 0) {
        cuts.entry(size).or_insert(conv_machines);
    }
    cuts
}

/// What one rehearsal after the other uses.
struct Rehearsals<'a> {
    setup: &'a ProfileSetup<'a>,
    crew: Crew,
    server: ModelServer,
    /// Cycles so far: no two use the same examples.
    cycles: u64,
    tally: Tally,
}

impl<'a> Rehearsals<'a> {
    fn new(setup: &'a ProfileSetup<'a>) -> Result<Self, ProfileError> {
        let machines = setup.concurrency as usize;
        Ok(Rehearsals {
            setup,
            crew: Crew::start(setup.objective, machines, setup.threads)?,
            server: ModelServer::new(AT_REST, setup.objective.initial()),
            cycles: 0,
            tally: Tally::default(),
        })
    }

    /// A few cycles of every size, and one model sent.
    fn round(&mut self, cuts: &BTreeMap<u32, u32>) -> Result<(), ProfileError> {
        for (size, machines) in cuts {
            let roster = Roster {
                conv_machines: self.setup.concurrency,
                groups: self.setup.concurrency / machines,
                fc: self.setup.fc,
                mini_batch: size.saturating_mul(*machines),
            };
            let rehearsal = Rehearsal::new(roster, &self.crew, &mut self.server, self.cycles)?;
            self.cycles += rehearsal.perform(&mut self.tally)?;
        }
        self.send_model()
    }

    fn send_model(&mut self) -> Result<(), ProfileError> {
        let began = Instant::now();
        let model = self.server.snapshot();
        self.crew.ask(0, Task::Receive(model));
        self.crew.receive()?;
        self.tally.send_model.enter(began.elapsed());
        Ok(())
    }
}
