//! Predicts convergence: loss against updates, and against time, with an interval.
//!
//! Two predictors stand behind [`Predict`]. The *proxy network* is a tiny network on pooled real data
//! that runs the very same protocol, event by event, under the very same service times as the
//! cluster in question. Three numbers tie its loss to the real network's, fitted on short
//! synchronous runs:
//!
//! L̂(t) = x₁ · L_proxy(t; g, μ, s·η, b) + x₀
//!
//! s scales the learning rate, x₁ and x₀ the loss. A proxy that predicts a run from a warm start
//! first takes a number of synchronous updates of its own. A prediction weighs several settings of
//! these numbers, each simulated under several seeds. Source: SE.md, section 4.1.
//!
//! The *noisy quadratic* has exact second moments, see [`QuadraticPredictor`]: a thousand times
//! cheaper, and less able to rank.
//!
//! [`Predictor`] lies between both, nearer to the one that foretells calibration runs which were held
//! back from its fit better, and takes what they are apart for their error.

mod calibration;
mod combined;
mod curve;
mod features;
mod fit;
mod minimise;
mod monotone;
mod plausible;
mod prediction;
mod proxy;
mod quadratic;
mod score;
mod speed;
mod stability;
mod truth;
mod validation;

pub use calibration::{
    CalibratedData, Calibration, CalibrationCurve, CalibrationError, CurveKeeper, calibrate,
};
pub use combined::{Predictions, Predictor};
pub use curve::{Crossing, Curve, LOSS_CAP, relative_error};
pub use features::{FEATURES_PER_CHANNEL, pooled_features};
pub use fit::{
    FitError, Identifiability, Member, Observation, ProxyEnsemble, ProxyFit, WarmStart, fit,
    tells_of_learning,
};
pub use monotone::{Direction, MonotoneMap};
pub use prediction::{Draw, Predict, Prediction, Qualities};
pub use proxy::{PredictorSetup, ProxyPredictor};
pub use quadratic::{QuadraticFit, QuadraticPredictor, fit_quadratic};
pub use score::{
    Agreement, Happened, Pair, agreement, area_under_curve, best_groups, covers, quantile,
    rank_correlation, regret,
};
pub use speed::engine_steps;
pub use stability::{
    StabilityLimit, analytic_safe_rate, effective_curvature, largest_safe_rate, stability_law,
    with_stability,
};
pub use truth::{
    Truth, TruthError, TruthKeeper, TruthRun, measure_truth, reached_together, scenario_of,
};
pub use validation::{
    Case, Coverage, Forecast, Forecasts, QualityErrors, Regret, Score, Scoring, TargetScore, cases,
    predict_case, quality_errors, stability_accuracy, stability_aucs, with_references,
};

#[cfg(test)]
mod tests;
