//! Operations on every number by itself, in place.

use super::parallel::Units;

/// Numbers of one unit of work.
const UNIT: usize = 1 << 14;

/// Runs `work(first, part)` on parts of `values`.
fn in_parts(values: &mut [f32], work: impl Fn(usize, &mut [f32]) + Sync) {
    let length = values.len();
    let units = Units {
        count: length.div_ceil(UNIT),
        // Memory limits these operations: a number costs about as much as ten products.
        flops_per_unit: 10 * UNIT as u64,
        bounds: |unit: usize| length.min(unit * UNIT),
    };
    units.run(values, |unit, part| work(unit * UNIT, part));
}

/// `max(x, 0)`; what is not a number stays so.
pub fn rectify(values: &mut [f32]) {
    in_parts(values, |_, part| {
        for value in part {
            *value = if *value < 0.0 { 0.0 } else { *value };
        }
    });
}

/// Gradient of [`rectify`] with respect to its input: that of the output where the output is above
/// 0, and 0 elsewhere.
///
/// # Panics
/// If the slices differ in length.
pub fn rectify_backward(output: &[f32], gradient: &mut [f32]) {
    assert_eq!(output.len(), gradient.len(), "a gradient has an entry per number");
    in_parts(gradient, |first, part| {
        for (gradient, output) in part.iter_mut().zip(&output[first..]) {
            *gradient = if *output > 0.0 { *gradient } else { 0.0 };
        }
    });
}

/// Multiplies number by number.
///
/// # Panics
/// If the slices differ in length.
pub fn scale(factors: &[f32], values: &mut [f32]) {
    assert_eq!(factors.len(), values.len(), "there is a factor per number");
    in_parts(values, |first, part| {
        for (value, factor) in part.iter_mut().zip(&factors[first..]) {
            *value *= factor;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_numbers_become_zero_and_pass_no_gradient() {
        let length = 2 * UNIT + 5;
        let input: Vec<f32> = (0..length).map(|at| (at % 7) as f32 - 3.0).collect();
        let mut output = input.clone();
        rectify(&mut output);
        let mut gradient = vec![2.0; length];
        rectify_backward(&output, &mut gradient);
        for ((input, output), gradient) in input.iter().zip(output).zip(gradient) {
            let expected = if *input > 0.0 { (*input, 2.0) } else { (0.0, 0.0) };
            assert_eq!((output, gradient), expected);
        }
    }

    #[test]
    fn a_loss_that_is_no_number_does_not_disappear() {
        let mut values = [f32::NAN, -0.5];
        rectify(&mut values);
        assert!(values[0].is_nan());
        assert_eq!(values[1].to_bits(), 0.0f32.to_bits());
    }

    #[test]
    fn every_number_meets_its_own_factor() {
        let length = UNIT + 3;
        let factors: Vec<f32> = (0..length).map(|at| at as f32).collect();
        let mut values = vec![0.5; length];
        scale(&factors, &mut values);
        let expected: Vec<f32> = factors.iter().map(|factor| factor / 2.0).collect();
        assert_eq!(values, expected);
    }
}
