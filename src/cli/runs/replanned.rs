//! Training that plans again when things go otherwise than predicted.

use omnivore_sim::cluster::Checkpoint;

use super::state::{Kept, keep_state};
use super::{Done, to_its_end};
use crate::cli::Common;
use crate::cli::calibrate::{Machine, calibrate_in};
use crate::cli::failure::Failure;
use crate::cli::progress::remark;
use crate::config::{Experiment, Replan};
use crate::optimizer::elastic::{Chain, Elastic, Position};
use crate::optimizer::{Choice, Execution, Goal};
use crate::run::{self, Kind, Lab};
use crate::store::RunFolder;

/// Whether training plans again when things go otherwise than predicted.
pub(super) fn replans(experiment: &Experiment) -> bool {
    experiment.search.as_ref().is_some_and(|search| search.replan == Replan::Departure)
}

/// Training from the configuration of the experiment that plans again, by the calibration in its
/// folder, or from where it was interrupted.
pub(super) fn replanned(
    lab: Lab,
    execution: Execution,
    from: Option<Kept>,
    (common, place, progress): (&Common, &RunFolder, &dyn run::RunProgress),
) -> Result<Done, Failure> {
    let experiment = lab.experiment();
    experiment.require_search()?;
    experiment.require_calibration()?;
    let goal = Goal::new(experiment.require_target()?);
    let calibration = calibrate_in(place, &lab, common, Machine::WhereItMatters)?;
    let predictor = calibration.predictor(&lab)?;
    let remarks = common.output.remarks();
    let log = |text: &str| remark(remarks, text);
    let kind = match execution {
        Execution::Emulate => Kind::Emulated,
        Execution::Train(_) => Kind::Measured,
    };
    let keep = |chain: &Chain, checkpoint: Checkpoint| {
        let kept = Kept { kind, checkpoint, chain: Some(chain.clone()) };
        keep_state(place, kept).map_err(|error| error.in_full())
    };
    let elastic = Elastic {
        lab: &lab,
        predictor: &predictor,
        profiles: &calibration.profiles,
        loss_target: calibration.loss_target(goal.target())?,
        updates: experiment.run.updates,
        execution,
        log: &log,
        keep: &keep,
    };
    let come = from.as_ref().map(|kept| kept.trace().curve);
    let mut chain = None;
    let outcome = to_its_end(experiment, come, progress, |progress| {
        let trained = match from {
            Some(Kept { checkpoint, chain: Some(chain), .. }) => {
                elastic.resume(chain, checkpoint, progress)?
            }
            _ => elastic.train(first_choice(&lab), Position::start(&lab), progress)?,
        };
        chain = Some(trained.chain);
        Ok(trained.outcome)
    })?;
    Ok(Done { chain, ..Done::of(outcome, Some(lab)) })
}

/// The configuration of an experiment.
pub(super) fn first_choice(lab: &Lab) -> Choice {
    let run = &lab.experiment().run;
    Choice::new(lab.device(), run.roster.groups, run.explicit_momentum, run.learning_rate)
}
