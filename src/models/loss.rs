//! Softmax cross-entropy, in double precision on the host.
//!
//! The scores of a mini-batch are few numbers that have to leave the device anyway, since the loss
//! does; in double precision the sum over the classes costs no digits of the loss.

/// Scores of several images, one row of `classes` numbers each.
pub(super) struct Scores {
    values: Vec<f32>,
    classes: usize,
}

impl Scores {
    pub(super) fn new(values: Vec<f32>, classes: usize) -> Self {
        Scores { values, classes }
    }

    /// `−ln softmax(scores)[label]` of each image, in nats.
    ///
    /// With `m` the largest score it is `m + ln Σ exp(s − m) − s[label]`, which cannot overflow.
    pub(super) fn losses(&self, labels: &[u8]) -> impl Iterator<Item = f64> {
        self.rows(labels).map(|(row, label)| {
            let largest = largest(row);
            let sum: f64 = row.iter().map(|&score| (f64::from(score) - largest).exp()).sum();
            largest + sum.ln() - f64::from(row[label])
        })
    }

    /// The mean of the losses.
    #[expect(clippy::cast_precision_loss, reason = "no mini-batch has 2^53 images")]
    pub(super) fn mean_loss(&self, labels: &[u8]) -> f64 {
        self.losses(labels).sum::<f64>() / labels.len() as f64
    }

    /// Gradient of the mean loss with respect to the scores: `(softmax − one-hot) / images`.
    #[expect(clippy::cast_possible_truncation, reason = "the device computes in single precision")]
    #[expect(clippy::cast_precision_loss, reason = "no mini-batch has 2^53 images")]
    pub(super) fn gradient_of_mean(&self, labels: &[u8]) -> Vec<f32> {
        let images = labels.len() as f64;
        let mut gradient = Vec::with_capacity(self.values.len());
        let mut exponentials = vec![0.0; self.classes];
        for (row, label) in self.rows(labels) {
            let largest = largest(row);
            for (exponential, &score) in exponentials.iter_mut().zip(row) {
                *exponential = (f64::from(score) - largest).exp();
            }
            let sum: f64 = exponentials.iter().sum();
            gradient.extend(exponentials.iter().enumerate().map(|(class, exponential)| {
                let target = if class == label { 1.0 } else { 0.0 };
                ((exponential / sum - target) / images) as f32
            }));
        }
        gradient
    }

    /// Images whose label has the largest score; among equal scores the first class counts, and a
    /// row with NaN is never correct.
    pub(super) fn n_correct(&self, labels: &[u8]) -> usize {
        self.rows(labels)
            .filter(|(row, label)| {
                let before = row[..*label].iter().all(|score| score < &row[*label]);
                let after = row[*label + 1..].iter().all(|score| score <= &row[*label]);
                before && after && !row[*label].is_nan()
            })
            .count()
    }

    fn rows(&self, labels: &[u8]) -> impl Iterator<Item = (&[f32], usize)> {
        let labels = labels.iter().map(|&label| usize::from(label));
        self.values.chunks_exact(self.classes).zip(labels)
    }
}

/// The largest score of a row, NaN scores left aside.
fn largest(row: &[f32]) -> f64 {
    f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_cost_the_logarithm_of_the_number_of_classes() {
        let scores = Scores::new(vec![3.0; 20], 10);
        let losses: Vec<f64> = scores.losses(&[0, 9]).collect();
        // Two roundings of numbers near 5, in double precision.
        assert!(losses.iter().all(|loss| (loss - 10_f64.ln()).abs() < 1e-14), "{losses:?}");
        assert!((scores.mean_loss(&[0, 9]) - 10_f64.ln()).abs() < 1e-14);
    }

    #[test]
    fn scores_far_apart_neither_overflow_nor_lose_the_loss() {
        let scores = Scores::new(vec![1e30, 0.0, -1e30, 0.0, 0.0, 0.0], 3);
        let losses: Vec<f64> = scores.losses(&[0, 1]).collect();
        assert!(losses[0].abs() < 1e-9, "{losses:?}");
        assert_eq!(Scores::new(vec![1e30, 0.0], 2).losses(&[1]).next(), Some(f64::from(1e30_f32)));
        assert!(scores.gradient_of_mean(&[0, 1]).iter().all(|value| value.is_finite()));
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_mean_loss() {
        let (values, labels) = (vec![0.5, -1.0, 2.0, 1.5, 0.25, -0.75], [2, 0]);
        let gradient = Scores::new(values.clone(), 3).gradient_of_mean(&labels);
        for place in 0..values.len() {
            let step = 1.0 / 64.0;
            let shifted = |by: f32| {
                let mut values = values.clone();
                values[place] += by;
                Scores::new(values, 3).mean_loss(&labels)
            };
            let slope = (shifted(step) - shifted(-step)) / (2.0 * f64::from(step));
            // Central differences err by step²/6 times a third derivative below 1/4.
            assert!((slope - f64::from(gradient[place])).abs() < 2e-5, "{place}: {slope}");
        }
    }

    #[test]
    fn a_tie_goes_to_the_first_class_and_nan_is_never_correct() {
        let scores = Scores::new(vec![1.0, 1.0, 0.0, 1.0, 1.0, 0.0, f32::NAN, f32::NAN, 0.0], 3);
        assert_eq!(scores.n_correct(&[0, 1, 0]), 1);
        assert!(scores.mean_loss(&[0, 1, 0]).is_nan());
    }
}
