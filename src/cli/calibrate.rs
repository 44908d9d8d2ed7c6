//! The verb `calibrate`, and what `optimize` needs of it.

use serde_json::json;

use super::failure::Failure;
use super::progress::{Bar, Silent, remark};
use super::run_folder::{Circumstances, print_summary, write_figures, write_head};
use super::setup::{open_lab, overrides};
use super::{Common, json, run_folder};
use crate::config::{self, Hardware};
use crate::devices::DeviceName;
use crate::optimizer;
use crate::predict::{Calibration, CalibrationCurve, Curve, CurveKeeper, calibrate as fit};
use crate::profile::{AffineFit, Estimate, Profile, ProfileSetup, measure};
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
        let kept = self.folder.read_json(&file, "calibration run").map_err(|e| e.in_full())?;
        if kept.is_some() {
            self.bar.advance();
        }
        Ok(kept)
    }

    fn keep(&self, name: &str, curve: &CalibrationCurve) -> Result<(), String> {
        let file = format!("calibration/{name}.json");
        self.folder.write_json(&file, curve).map_err(|e| e.in_full())?;
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
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    let calibration = calibrate_in(&folder, &lab, common, Machine::Measured)
        .map_err(|failure| failure.left_in(&folder))?;
    let figures = vec![("calibration", calibration_figures(&lab, &calibration)?)];
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
    object.insert("fit".into(), json::value(&calibration.proxy));
    object.insert("profiles".into(), json::value(&calibration.profiles));
    object.insert("cost".into(), json!({ "real_gradients": calibration.real_gradients }));
    folder.write_json("summary.json", &object)?;
    if common.output.json {
        run_folder::print_object(object, &folder);
    } else {
        for profile in &calibration.profiles {
            outln!("{}", profile_table(profile).to_text());
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
        remark(common.output.remarks(), "using the calibration that is in the folder");
        return Ok(done);
    }
    let experiment = lab.experiment();
    let plan = experiment.require_calibration()?;
    let matters = matches!(experiment.hardware, Hardware::ThisMachine);
    let profiles = match machine {
        Machine::WhereItMatters if !matters => Vec::new(),
        _ => measure_machine(folder, lab, common)?,
    };
    let runs = plan.seeded_runs().len() as u64;
    let bar = Bar::new("calibration runs", runs, common.output.remarks());
    let keeper = Kept { folder, bar: &bar };
    let calibration = fit(lab, profiles, common.output.n_threads(), &keeper, &Silent)?;
    folder.write_json(CALIBRATION_FILE, &calibration)?;
    Ok(calibration)
}

/// Times of this machine for every device that may be chosen.
pub fn measure_machine(
    folder: &RunFolder,
    lab: &Lab,
    common: &Common,
) -> Result<Vec<Profile>, Failure> {
    let experiment = lab.experiment();
    let devices = match experiment.search {
        Some(_) => optimizer::devices(experiment)?,
        None => lab.devices()?,
    };
    devices.into_iter().map(|device| measure_device(folder, lab, device, common)).collect()
}

fn measure_device(
    folder: &RunFolder,
    lab: &Lab,
    device: DeviceName,
    common: &Common,
) -> Result<Profile, Failure> {
    let file = format!("profile-{}.json", device.to_string().replace(':', "-"));
    if let Some(kept) = folder.read_json::<Profile>(&file, "profile")? {
        return Ok(kept);
    }
    let experiment = lab.experiment();
    let plan = experiment.require_calibration()?;
    let run = &experiment.run;
    // Another cluster's machines do not compute beside each other on this one.
    let concurrency = match experiment.hardware {
        Hardware::ThisMachine => run.roster.conv_machines,
        Hardware::Described(_) | Hardware::WholeCycle { .. } => 1,
    };
    let objective = lab.on(device)?.objective(run.seed);
    let setup = ProfileSetup {
        device,
        precision: run.precision,
        objective: &objective,
        fc: run.roster.fc,
        mini_batch: run.roster.mini_batch,
        concurrency,
        threads: common.output.n_threads(),
        rounds: plan.repetitions,
    };
    let bar = Bar::new(&format!("measuring {device}"), 100, common.output.remarks());
    let profile =
        measure(&setup, &mut |fraction| bar.set_fraction(fraction)).map_err(Failure::input)?;
    folder.write_json(&file, &profile)?;
    Ok(profile)
}

/// Each calibration run, and what the fitted proxy makes of it.
pub fn calibration_figures(lab: &Lab, calibration: &Calibration) -> Result<Vec<Figure>, Failure> {
    let predictor = calibration.predictor(lab)?;
    let points = |curve: &Curve| {
        curve.updates.iter().copied().zip(curve.values.iter().copied()).collect::<Vec<_>>()
    };
    calibration
        .runs
        .iter()
        .map(|run| {
            let title = format!(
                "calibration: μ = {}, η = {}, seed {}",
                run.rule.explicit_momentum, run.rule.learning_rate, run.seed.0
            );
            let mut figure = Figure::new(
                title,
                Axis::linear("updates", ""),
                Axis::linear("training loss", "nats"),
            );
            let observed = Curve::of_loss(&run.points);
            let fitted = predictor.explain(run.rule, &observed).map_err(Failure::internal)?;
            for (source, curve) in
                [(Source::Emulated, &observed.smoothed()), (Source::Predicted, &fitted)]
            {
                figure.series.push(Series::new("loss", source, Mark::Line, points(curve)));
            }
            Ok(figure)
        })
        .collect()
}

fn fit_table(calibration: &Calibration) -> SummaryTable {
    let ensemble = &calibration.proxy;
    let known = &ensemble.identifiability;
    let title = "proxy network: best setting, and 90 % interval over those that are nearly as good";
    let mut table = SummaryTable::new(title, ["quantity", "value", "low", "high"]);
    let mut row = |name: &str, [value, low, high]: [Cell; 3]| {
        table.rows.push(vec![Cell::Text(name.to_owned()), value, low, high]);
    };
    let numbers = |value: f64, [low, high]: [f64; 2]| [value, low, high].map(Cell::number);
    let alone = |cell: Cell| [cell, Cell::Absent, Cell::Absent];
    let best = &ensemble.best;
    row("learning-rate scale s", numbers(best.learning_rate_scale, known.learning_rate_scale));
    row("loss slope x1", numbers(best.loss_slope, known.loss_slope));
    row("loss intercept x0", numbers(best.loss_intercept, known.loss_intercept));
    let [low, high] = known.opening_updates;
    row("opening updates", [best.opening_updates, low, high].map(Cell::Integer));
    row("members of the ensemble", alone(Cell::Integer(ensemble.members.len() as u64)));
    row("residual sd of ln loss", alone(Cell::number(ensemble.residual_sd)));
    row("inflation of the interval", alone(Cell::number(ensemble.inflation)));
    row("independent observations", alone(Cell::number(known.independent_observations)));
    row("condition of the parameters", alone(Cell::optional(known.condition)));
    row("real gradients used", alone(Cell::Integer(calibration.real_gradients)));
    table
}

/// What the machine was measured at.
pub fn profile_table(profile: &Profile) -> SummaryTable {
    let workers = match profile.concurrency {
        1 => "1 worker".to_owned(),
        several => format!("{several} workers at once"),
    };
    let title = format!("measured: network `{}` on {}, {workers}", profile.network, profile.device);
    let headers = [
        "stage",
        "fixed (ms) [90 %]",
        "per example or machine (ms) [90 %]",
        "worst residual (%)",
        "variation (cv)",
    ];
    let mut table = SummaryTable::new(title, headers);
    for (name, stage) in profile.stages() {
        let fitted = |part: fn(&AffineFit) -> Estimate| {
            stage.fit.as_ref().map_or(Cell::Absent, |fit| milliseconds(part(fit)))
        };
        // A stage of a single size has its median in place of a line.
        let only = stage.measured.first().and_then(|measured| stage.at(measured.size).ok());
        let fixed = match (&stage.fit, only) {
            (None, Some(time)) => milliseconds(time.seconds),
            _ => fitted(|fit| fit.fixed_s),
        };
        table.rows.push(vec![
            Cell::Text(name.to_owned()),
            fixed,
            fitted(|fit| fit.per_size_s),
            Cell::optional(stage.fit.as_ref().map(|fit| 100.0 * fit.worst_residual())),
            Cell::number(stage.coefficient_of_variation),
        ]);
    }
    let transfers = [("sending a model", profile.send_model_s), ("hand-over", profile.hand_over_s)];
    for (name, estimate) in transfers {
        let fixed = milliseconds(estimate);
        let absent = [Cell::Absent, Cell::Absent, Cell::Absent];
        table.rows.push([Cell::Text(name.to_owned()), fixed].into_iter().chain(absent).collect());
    }
    table
}

/// An estimate with its 90 % interval.
fn milliseconds(estimate: Estimate) -> Cell {
    let Estimate { value, low, high } = estimate;
    let [value, low, high] = [value, low, high].map(|seconds| Cell::number(1e3 * seconds).show());
    Cell::Text(format!("{value} [{low}, {high}]"))
}
