//! The verb `calibrate`, and what `optimize` needs of it.

use serde_json::json;

use super::failure::Failure;
use super::progress::{Bar, Silent, remark};
use super::run_folder::{Circumstances, print_summary, write_figures, write_head};
use super::setup::overrides;
use super::{Common, json, run_folder};
use crate::config::{self, Hardware};
use crate::predict::{Calibration, CalibrationCurve, Curve, CurveKeeper, calibrate as fit};
use crate::profile::{AffineFit, Profile, ProfileSetup, measure};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};
use crate::report::table::{Cell, SummaryTable};
use crate::run::{Kind, Lab};
use crate::runtime::Stopwatch;
use crate::store::RunFolder;

/// File of a calibration in its folder.
pub const CALIBRATION_FILE: &str = "calibration.json";

/// Keeps calibration runs in a folder.
struct Kept<'a> {
    folder: &'a RunFolder,
    bar: &'a Bar<'a>,
}

impl CurveKeeper for Kept<'_> {
    fn kept(&self, name: &str) -> Result<Option<CalibrationCurve>, String> {
        let file = format!("calibration/{name}.json");
        let kept = self.folder.read_json(&file, "calibration run").map_err(|e| e.to_string())?;
        if kept.is_some() {
            self.bar.advance();
        }
        Ok(kept)
    }

    fn keep(&self, name: &str, curve: &CalibrationCurve) -> Result<(), String> {
        let file = format!("calibration/{name}.json");
        self.folder.write_json(&file, curve).map_err(|e| e.to_string())?;
        self.bar.advance();
        Ok(())
    }
}

/// `omnivore calibrate FILE`.
pub fn calibrate(common: &Common) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let experiment = config::load(&common.file, &overrides(common))?;
    experiment.require_calibration()?;
    let folder = run_folder::open(&common.output, "calibrate", &experiment.name)?;
    let lab = Lab::open(experiment.clone())?;
    let calibration = calibrate_in(&folder, &lab, common, Machine::Measured)?;
    let figures = vec![("calibration", calibration_figure(&lab, &calibration)?)];
    write_figures(&folder, figures)?;
    let about = Circumstances {
        verb: "calibrate",
        kind: Kind::Emulated,
        set: &common.set,
        elapsed_s: watch.elapsed().as_secs_f64(),
        data: Some(lab.data()),
    };
    write_head(&folder, &experiment, &about)?;
    let mut object = json::head("calibrate", &experiment, Kind::Emulated);
    object.insert("fit".into(), json::value(&calibration.fit));
    object.insert("profile".into(), json::value(&calibration.profile));
    object.insert("cost".into(), json!({ "real_gradients": calibration.real_gradients }));
    folder.write_json("summary.json", &object)?;
    if common.output.json {
        object.insert("out".into(), folder.path().display().to_string().into());
        json::print(&object);
    } else {
        if let Some(profile) = &calibration.profile {
            println!("{}", profile_table(profile).to_text());
        }
        print_summary(&fit_table(&calibration), &folder);
    }
    Ok(())
}

/// Whether this machine is measured along with the calibration runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// In every case, because its times tell what a real run here costs.
    Measured,
    /// Only where the experiment runs on it: a measurement is never the same twice.
    WhereItMatters,
}

/// Measures this machine where that is asked for, makes the calibration runs that are not there
/// yet, and keeps the calibration.
pub fn calibrate_in(
    folder: &RunFolder,
    lab: &Lab,
    common: &Common,
    machine: Machine,
) -> Result<Calibration, Failure> {
    if let Some(done) = folder.read_json::<Calibration>(CALIBRATION_FILE, "calibration")? {
        remark(common.output.quiet, "using the calibration that is in the folder");
        return Ok(done);
    }
    let experiment = lab.experiment();
    let plan = experiment.require_calibration()?;
    let matters = matches!(experiment.hardware, Hardware::ThisMachine);
    let profile = match machine {
        Machine::WhereItMatters if !matters => None,
        _ => measure_machine(folder, lab, common)?,
    };
    let runs = (plan.runs.len() * plan.seeds.len()) as u64;
    let bar = Bar::new("calibration runs", runs, common.output.quiet);
    let keeper = Kept { folder, bar: &bar };
    let calibration = fit(lab, profile, common.output.n_threads(), &keeper, &Silent)?;
    folder.write_json(CALIBRATION_FILE, &calibration)?;
    Ok(calibration)
}

/// Times of this machine.
fn measure_machine(
    folder: &RunFolder,
    lab: &Lab,
    common: &Common,
) -> Result<Option<Profile>, Failure> {
    if let Some(kept) = folder.read_json::<Profile>("profile.json", "profile")? {
        return Ok(Some(kept));
    }
    let experiment = lab.experiment();
    let plan = experiment.require_calibration()?;
    let run = &experiment.run;
    let device = run.device.parse().map_err(Failure::internal)?;
    // Another cluster's machines do not compute beside each other on this one.
    let concurrency = match experiment.hardware {
        Hardware::ThisMachine => run.roster.conv_machines,
        Hardware::Described(_) | Hardware::WholeCycle { .. } => 1,
    };
    let objective = lab.objective(run.seed);
    let setup = ProfileSetup {
        device,
        objective: &objective,
        fc: run.roster.fc,
        mini_batch: run.roster.mini_batch,
        concurrency,
        threads_per_worker: 1,
        rounds: plan.repetitions,
    };
    let bar = Bar::new("measuring", 100, common.output.quiet);
    let profile =
        measure(&setup, &mut |fraction| bar.set_fraction(fraction)).map_err(Failure::input)?;
    folder.write_json("profile.json", &profile)?;
    Ok(Some(profile))
}

/// Calibration runs, and what the fitted proxy makes of them.
pub fn calibration_figure(lab: &Lab, calibration: &Calibration) -> Result<Figure, Failure> {
    let predictor = calibration.predictor(lab)?;
    let mut figure = Figure::new(
        format!("{}: calibration", calibration.network),
        Axis::linear("updates", ""),
        Axis::linear("training loss", "nats"),
    );
    let points = |curve: &Curve| {
        curve.updates.iter().copied().zip(curve.values.iter().copied()).collect::<Vec<_>>()
    };
    for run in &calibration.runs {
        let name = format!(
            "μ = {}, η = {}, seed {}",
            run.rule.explicit_momentum, run.rule.learning_rate, run.seed.0
        );
        let observed = Curve::of_loss(&run.points);
        let fitted = predictor.explain(run.rule, &observed).map_err(Failure::internal)?;
        let series =
            |source, curve: &Curve| Series::new(name.clone(), source, Mark::Line, points(curve));
        figure.series.push(series(Source::Emulated, &observed.smoothed()));
        figure.series.push(series(Source::Predicted, &fitted));
    }
    figure.notes.push("Losses are centred means of 7 evaluations.".to_owned());
    Ok(figure)
}

fn fit_table(calibration: &Calibration) -> SummaryTable {
    let fit = &calibration.fit;
    let mut table = SummaryTable::new("proxy network, fitted", ["quantity", "value"]);
    let mut row = |name: &str, cell| table.rows.push(vec![Cell::Text(name.to_owned()), cell]);
    row("learning-rate scale s", Cell::number(fit.learning_rate_scale));
    row("loss slope x1", Cell::number(fit.loss_slope));
    row("loss intercept x0", Cell::number(fit.loss_intercept));
    row("opening updates", Cell::Integer(fit.opening_updates));
    row("residual sd of ln loss", Cell::number(fit.residual_sd));
    row("identifiability (1 = s not pinned)", Cell::number(fit.identifiability));
    row("real gradients used", Cell::Integer(calibration.real_gradients));
    table
}

/// What the machine was measured at.
pub fn profile_table(profile: &Profile) -> SummaryTable {
    let title = format!(
        "measured: network `{}` on {}, {} workers at once",
        profile.network, profile.device, profile.concurrency
    );
    let headers = [
        "stage",
        "fixed (ms)",
        "per example or machine (ms)",
        "worst residual (%)",
        "variation (cv)",
    ];
    let mut table = SummaryTable::new(title, headers);
    for (name, stage) in profile.stages() {
        let fitted = |part: fn(&AffineFit) -> f64| stage.fit.as_ref().map(|fit| 1e3 * part(fit));
        table.rows.push(vec![
            Cell::Text(name.to_owned()),
            Cell::optional(fitted(|fit| fit.fixed_s.value)),
            Cell::optional(fitted(|fit| fit.per_size_s.value)),
            Cell::optional(stage.fit.as_ref().map(|fit| 100.0 * fit.worst_residual())),
            Cell::number(stage.coefficient_of_variation),
        ]);
    }
    table
}
