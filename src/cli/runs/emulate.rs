//! `emulate`: real gradients on the virtual clock.

use super::replanned::{replanned, replans};
use super::state::{Kept, begin_anew, keep_state, keeper, state_to_resume};
use super::sweep::sweep_runs;
use super::{Done, publish, timing_of, to_its_end};
use crate::cli::failure::Failure;
use crate::cli::progress::Bar;
use crate::cli::setup::{open_lab, overrides};
use crate::cli::{Beginning, Common, run_folder};
use crate::config::{self, Experiment, Loaded, Measure};
use crate::optimizer::Execution;
use crate::run::{self, Kind};
use crate::runtime::Stopwatch;
use crate::store::RunFolder;

/// `omnivore emulate FILE`.
pub fn emulate(common: &Common, beginning: Beginning) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            let folder = run_folder::open(&common.output, "emulate", &experiment.name)?;
            let keep = keeper(&folder, Kind::Emulated);
            let bar = Bar::new("emulate", experiment.run.updates, common.output.remarks())
                .with_keeper(&keep);
            let from = match beginning {
                Beginning::Fresh => begin_anew(&experiment, &folder).map(|()| None)?,
                Beginning::Resumed => Some(emulation_to_resume(&experiment, &folder)?),
            };
            let done = emulate_one(&experiment, from, (common, &folder, &bar))?;
            drop(bar);
            if let Some(checkpoint) = done.outcome.state.clone() {
                let (kind, chain) = (Kind::Emulated, done.chain.clone());
                keep_state(&folder, Kept { kind, checkpoint, chain })?;
            }
            publish("emulate", common, &experiment, &done, &folder, watch.elapsed())
        }
        Loaded::Sweep(sweep) => {
            sweep_runs("emulate", common, &sweep, |experiment, place, progress| {
                emulate_one(experiment, None, (common, place, progress))
            })
        }
    }
}

fn emulate_one(
    experiment: &Experiment,
    from: Option<Kept>,
    (common, place, progress): (&Common, &RunFolder, &dyn run::RunProgress),
) -> Result<Done, Failure> {
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    if replans(experiment) {
        return replanned(lab, Execution::Emulate, from, (common, place, progress));
    }
    let scenario = experiment.run.scenario(timing_of(experiment)?);
    let state = from.map(|kept| kept.checkpoint);
    let come = state.as_ref().map(|state| state.trace.curve.clone());
    let outcome = to_its_end(experiment, come, progress, |progress| {
        Ok(run::emulate_on(&lab, &scenario, state, progress)?)
    })?;
    Ok(Done::of(outcome, Some(lab)))
}

fn emulation_to_resume(experiment: &Experiment, folder: &RunFolder) -> Result<Kept, Failure> {
    if experiment.run.measure.contains(&Measure::Momentum) {
        let message = "the momentum of a run is measured from its beginning".to_owned();
        let help = "leave `--resume` out, or `measure`".to_owned();
        return Err(experiment.refuse("measure", message, help).into());
    }
    state_to_resume(experiment, folder, Kind::Emulated)
}
