//! What a calibration file may hold. One that was damaged or edited into nonsense is refused when it
//! is read, with the place: predictions from it would look like any other.

use serde::de::{Deserialize, Deserializer, Error};

use super::fit::{Member, ProxyEnsemble, ProxyFit};
use super::monotone::MonotoneMap;
use super::quadratic::QuadraticFit;

/// Exponents of a spectrum lie far inside of this; see the bounds of the fit.
const LARGEST_EXPONENT: f64 = 20.0;

/// Curvatures, noises, scales and losses lie far below this.
const LARGEST: f64 = 1e12;

fn is_positive(value: f64) -> bool {
    value > 0.0 && value < LARGEST
}

fn is_not_negative(value: f64) -> bool {
    (0.0..LARGEST).contains(&value)
}

fn checked<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
    fault: impl Fn(&T) -> Option<&'static str>,
) -> Result<T, D::Error> {
    let value = T::deserialize(from)?;
    match fault(&value) {
        None => Ok(value),
        Some(fault) => Err(D::Error::custom(format!("{fault}; calibrate again"))),
    }
}

/// Seeds to average over.
pub fn seeds<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    checked(from, |seeds: &Vec<u64>| seeds.is_empty().then_some("`predictor_seeds` has none"))
}

/// A curvature, where there is one.
pub fn curvature<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    checked(from, |curvature: &Option<f64>| {
        let is_fine = curvature.is_none_or(is_positive);
        (!is_fine).then_some("`effective_curvature` is no number above 0")
    })
}

/// An accuracy for every loss, where there is one.
pub fn accuracy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<MonotoneMap>, D::Error> {
    checked(from, |map: &Option<MonotoneMap>| {
        let is_fine = map.as_ref().is_none_or(|map| map.lies_within(0.0, 1.0));
        (!is_fine).then_some("`accuracy` has values that are not from 0 to 1")
    })
}

/// Settings of the proxy.
pub fn ensemble<'de, D: Deserializer<'de>>(from: D) -> Result<ProxyEnsemble, D::Error> {
    checked(from, fault_of_ensemble)
}

fn fault_of_ensemble(ensemble: &ProxyEnsemble) -> Option<&'static str> {
    let ProxyEnsemble {
        members,
        best,
        output_scale,
        residual_sd,
        seen_loss,
        inflation,
        identifiability: _,
    } = ensemble;
    let fits = members.iter().map(|member| &member.fit).chain([best]);
    let weights: f64 = members.iter().map(|member| member.weight).sum();
    if members.is_empty() {
        Some("`proxy.members` has none")
    } else if !fits.into_iter().all(is_usable) {
        Some("a setting of `proxy` has a scale or slope that is no number above 0")
    } else if !(1.0..LARGEST).contains(output_scale) {
        Some("`proxy.output_scale` is below 1 or no number")
    } else if !members.iter().all(|Member { weight, .. }| is_positive(*weight))
        || (weights - 1.0).abs() > 1e-6
    {
        Some("the weights of `proxy.members` do not add up to 1")
    } else if !is_not_negative(*residual_sd) {
        Some("an error of `proxy` is negative or no number")
    } else if !is_positive(*seen_loss) || !(1.0..LARGEST).contains(inflation) {
        Some("`proxy.seen_loss` is not above 0, or `proxy.inflation` is below 1")
    } else {
        None
    }
}

fn is_usable(fit: &ProxyFit) -> bool {
    let ProxyFit { learning_rate_scale, loss_slope, loss_intercept, score, .. } = *fit;
    is_positive(learning_rate_scale)
        && is_positive(loss_slope)
        && loss_intercept.is_finite()
        && score.is_finite()
}

/// A noisy quadratic.
pub fn quadratic<'de, D: Deserializer<'de>>(from: D) -> Result<QuadraticFit, D::Error> {
    checked(from, |fit: &QuadraticFit| {
        let positive = [fit.largest_curvature, fit.start_loss].into_iter().all(is_positive);
        let errors = [fit.noise, fit.residual_sd];
        let exponents = [fit.energy_exponent, fit.noise_exponent];
        if !positive || !errors.into_iter().all(is_not_negative) || !fit.floor.is_finite() {
            Some("`quadratic` has a curvature, loss, noise or error that is negative or no number")
        } else if !exponents.into_iter().all(|exponent| exponent.abs() <= LARGEST_EXPONENT) {
            Some("an exponent of `quadratic` is beyond 20")
        } else {
            None
        }
    })
}
