//! `train`: threads on the wall clock, at this machine's own speed or paced.

use omnivore_sim::cluster::{Scenario, Timing};
use omnivore_sim::hardware::{DeviceSplit, ServiceLaw};
use omnivore_sim::trace::Trace;
use omnivore_sim::units::SimDuration;

use super::replanned::{replanned, replans};
use super::state::{Kept, begin_anew, keep_state, keeper, state_to_resume};
use super::sweep::sweep_runs;
use super::{Done, publish, timing_of, to_its_end};
use crate::cli::failure::Failure;
use crate::cli::progress::{Bar, Remarks, Silent, remark};
use crate::cli::setup::{open_lab, overrides};
use crate::cli::{Beginning, Common, Output, run_folder};
use crate::config::{self, Experiment, Hardware, Loaded, ObjectiveChoice, Pacing as PacingChoice};
use crate::optimizer::Execution;
use crate::run::{self, Kind, Outcome};
use crate::runtime::{Pacing, Stopwatch};
use crate::store::RunFolder;

/// Share of late cycles above which a paced run does not keep its pace.
const LATE_SHARE_TO_WARN: f64 = 0.01;

/// `omnivore train FILE`.
pub fn train(common: &Common, beginning: Beginning) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            let folder = run_folder::open(&common.output, "train", &experiment.name)?;
            let done = train_one(&experiment, &folder, beginning, common)?;
            publish("train", common, &experiment, &done, &folder, watch.elapsed())
        }
        Loaded::Sweep(sweep) => {
            // Runs on the wall clock must have the machine to themselves.
            let alone = Common {
                output: Output { threads: Some(1), ..common.output.clone() },
                ..common.clone()
            };
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(common.output.n_threads())
                .build()
                .map_err(Failure::internal)?;
            sweep_runs("train", &alone, &sweep, |experiment, place, progress| {
                pool.install(|| train_without_state(experiment, common, place, progress))
            })
        }
    }
}

fn train_one(
    experiment: &Experiment,
    folder: &RunFolder,
    beginning: Beginning,
    common: &Common,
) -> Result<Done, Failure> {
    let remarks = common.output.remarks();
    let from = match beginning {
        Beginning::Fresh => begin_anew(experiment, folder).map(|()| None)?,
        Beginning::Resumed => Some(state_to_resume(experiment, folder, Kind::Measured)?),
    };
    let bar = Bar::new("train", experiment.run.updates, remarks);
    if replans(experiment) {
        let lab = open_lab(experiment.clone(), remarks)?;
        let execution = Execution::Train(pacing_of(experiment));
        let done = replanned(lab, execution, from, (common, folder, &bar))?;
        if let Some(checkpoint) = done.outcome.state.clone() {
            let (kind, chain) = (Kind::Measured, done.chain.clone());
            keep_state(folder, Kept { kind, checkpoint, chain })?;
        }
        warn_of_lateness(&done.outcome, remarks);
        return Ok(done);
    }
    remark_on_split(experiment, remarks);
    let (scenario, pacing) = wall_clock_scenario(experiment)?;
    let lab = open_lab(experiment.clone(), remarks)?;
    let keep = keeper(folder, Kind::Measured);
    let bar = bar.with_keeper(&keep);
    let state = from.map(|kept| kept.checkpoint);
    let come = state.as_ref().map(|state| state.trace.curve.clone());
    let outcome = to_its_end(experiment, come, &bar, |progress| {
        Ok(run::execute(&lab, &scenario, pacing, state, progress)?)
    })?;
    drop(bar);
    if let Some(checkpoint) = outcome.state.clone() {
        keep_state(folder, Kept { kind: Kind::Measured, checkpoint, chain: None })?;
    }
    warn_of_lateness(&outcome, remarks);
    let foreseen = foreseen(experiment)?;
    Ok(Done { foreseen, ..Done::of(outcome, Some(lab)) })
}

/// A run of a sweep is short enough to be repeated rather than resumed.
fn train_without_state(
    experiment: &Experiment,
    common: &Common,
    place: &RunFolder,
    progress: &dyn run::RunProgress,
) -> Result<Done, Failure> {
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    if replans(experiment) {
        let execution = Execution::Train(pacing_of(experiment));
        return replanned(lab, execution, None, (common, place, progress));
    }
    let (scenario, pacing) = wall_clock_scenario(experiment)?;
    let outcome = to_its_end(experiment, None, progress, |progress| {
        Ok(run::execute(&lab, &scenario, pacing, None, progress)?)
    })?;
    let foreseen = foreseen(experiment)?;
    Ok(Done { foreseen, ..Done::of(outcome, Some(lab)) })
}

fn remark_on_split(experiment: &Experiment, remarks: Remarks) {
    let run = &experiment.run;
    if run.pacing == PacingChoice::None && run.hardware_split != DeviceSplit::Proportional {
        remark(
            remarks,
            "`hardware_split` is about the machines of the hardware file and does nothing without `pacing = \"hardware\"`; `split` shares examples among the devices of this machine",
        );
    }
}

/// What a run on the wall clock does, and whether it is paced.
pub fn wall_clock_scenario(experiment: &Experiment) -> Result<(Scenario, Pacing), Failure> {
    let pacing = pacing_of(experiment);
    let timing = match pacing {
        Pacing::Prescribed => timing_of(experiment)?,
        Pacing::None => unpaced(),
    };
    Ok((experiment.run.scenario(timing), pacing))
}

pub(super) fn pacing_of(experiment: &Experiment) -> Pacing {
    match experiment.run.pacing {
        PacingChoice::Hardware => Pacing::Prescribed,
        PacingChoice::None => Pacing::None,
    }
}

/// What the simulator foresees for a real run: of the paced cluster, or of this machine where a
/// calibration has measured it.
pub fn foreseen(experiment: &Experiment) -> Result<Option<Trace>, Failure> {
    let measured = matches!(experiment.objective, Some(ObjectiveChoice::Calibration(_)));
    let comparable = match experiment.hardware {
        Hardware::Described(_) => experiment.run.pacing == PacingChoice::Hardware,
        Hardware::ThisMachine => measured,
        Hardware::WholeCycle { .. } => false,
    };
    if !comparable {
        return Ok(None);
    }
    let scenario = experiment.run.scenario(timing_of(experiment)?);
    Ok(Some(run::simulate(&scenario, None, &Silent)?.trace))
}

/// A run at this machine's own speed asks nobody when things happen.
pub(super) fn unpaced() -> Timing {
    Timing::WholeCycle { mean: SimDuration::ZERO, law: ServiceLaw::Constant }
}

pub(super) fn warn_of_lateness(outcome: &Outcome, remarks: Remarks) {
    if let Some(late) = outcome.lateness.filter(|late| late.share() > LATE_SHARE_TO_WARN) {
        let text = format!(
            "warning: {} of {} cycles ({:.1} %) took longer than prescribed; this machine is too slow for this cluster at this pace",
            late.late_cycles,
            late.cycles,
            100.0 * late.share()
        );
        remark(remarks, &text);
    }
}
