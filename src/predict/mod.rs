//! Predicts convergence: loss against updates, and against time, with an interval.
//!
//! The predictor is a *proxy network*: a tiny network on pooled real data that runs the very same
//! protocol, event by event, under the very same service times as the cluster in question. Three
//! numbers tie its loss to the real network's, fitted on short synchronous runs:
//!
//! L̂(t) = x₁ · mean over seeds of L_proxy(t; g, μ, s·η, b) + x₀
//!
//! s scales the learning rate, x₁ and x₀ the loss. A proxy that predicts a run from a warm start
//! first takes a number of synchronous updates of its own. Source: SE.md, section 4.1.

mod calibration;
mod curve;
mod features;
mod fit;
mod monotone;
mod proxy;
mod score;
mod stability;
mod truth;
mod validation;

pub use calibration::{Calibration, CalibrationCurve, CalibrationError, CurveKeeper, calibrate};
pub use curve::{Crossing, Curve, LOSS_CAP, relative_error};
pub use features::{FEATURES_PER_CHANNEL, pooled_features};
pub use fit::{FitError, Observation, ProxyFit, WarmStart, fit, tells_of_learning};
pub use monotone::{Direction, MonotoneMap};
pub use proxy::{Prediction, Predictor, PredictorSetup};
pub use score::{
    Agreement, Happened, Pair, agreement, area_under_curve, covers, quantile, rank_correlation,
    regret,
};
pub use stability::{analytic_safe_rate, effective_curvature, largest_safe_rate};
pub use truth::{
    Truth, TruthError, TruthKeeper, TruthRun, emulate_truth, reached_together, scenario_of,
};
pub use validation::{
    Case, Coverage, Forecast, Regret, Score, Scoring, TargetScore, cases, predict_case,
    stability_accuracy, stability_aucs, stability_law, with_references,
};

#[cfg(test)]
mod tests;
