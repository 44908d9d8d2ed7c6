//! One network on several devices that share every mini-batch in fixed parts.

use std::ops::Range;
use std::sync::Arc;

use rand::Rng;

use super::{ConvForward, FcResult, Model, ModelError};
use crate::kernels::burn_op::is_cpu;

/// Images of a mini-batch that other devices compute, before and after one's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) before: usize,
    pub(super) after: usize,
}

/// A network on one or several devices, which compute their parts of a mini-batch at the same time.
///
/// Of `B` images, device `i` computes `bᵢ`, in proportion to its parts. What it finds are means over
/// its own images, so losses and gradients are `Σ bᵢ/B · gᵢ`, summed in the order of the devices:
/// up to rounding what one device makes of all images, dropout included.
///
/// Source: arXiv:1606.04487, section on the single device (a CPU beside a GPU).
#[derive(Clone, Debug)]
pub struct SplitModel {
    devices: Vec<Sharer>,
}

/// A device with its parts of a mini-batch.
#[derive(Clone, Debug)]
struct Sharer {
    model: Arc<Model>,
    parts: u32,
}

/// What the forward pass of the conv phase leaves behind on all devices.
#[derive(Debug)]
pub struct SplitForward {
    /// What the conv phase gives to the FC phase, `[images, features]`, row-major.
    pub activations: Vec<f32>,
    /// One for every device that has images.
    forwards: Vec<ConvForward>,
}

/// The images of one device.
struct Piece<'a> {
    model: &'a Model,
    images: Range<usize>,
    others: Others,
}

impl From<Arc<Model>> for SplitModel {
    /// All on one device.
    fn from(model: Arc<Model>) -> Self {
        SplitModel { devices: vec![Sharer { model, parts: 1 }] }
    }
}

impl SplitModel {
    /// The same network on several devices, each with its parts of a mini-batch.
    ///
    /// # Panics
    /// Without a device, or when no device has a part.
    pub fn new(devices: impl IntoIterator<Item = (Arc<Model>, u32)>) -> Self {
        let sharer = |(model, parts)| Sharer { model, parts };
        let devices: Vec<Sharer> = devices.into_iter().map(sharer).collect();
        assert!(devices.iter().any(|device| device.parts > 0), "some device computes");
        SplitModel { devices }
    }

    /// The network on the first device.
    pub fn first(&self) -> &Arc<Model> {
        &self.devices[0].model
    }

    /// First stage, see [`Model::forward`]; `dropout` begins the same random numbers each time.
    ///
    /// # Errors
    /// See [`Model::forward`].
    pub fn forward<R: Rng>(
        &self,
        conv: &[f32],
        images: Vec<f32>,
        dropout: impl Fn() -> R + Sync,
    ) -> Result<SplitForward, ModelError> {
        let length = self.first().image_length();
        let n_images = self.first().whole_images("images", &images, length)?;
        let pieces = self.pieces(n_images);
        if let [piece] = &*pieces {
            let mut forward = piece.model.forward(conv, images, &mut dropout())?;
            let activations = std::mem::take(&mut forward.activations);
            return Ok(SplitForward { activations, forwards: vec![forward] });
        }
        let mut forwards = on_all(&pieces, |piece| {
            let images = images[piece.rows(length)].to_vec();
            piece.model.forward_beside(conv, images, &mut dropout(), piece.others)
        })?;
        let parts = forwards.iter_mut().map(|forward| std::mem::take(&mut forward.activations));
        let activations = parts.collect::<Vec<_>>().concat();
        Ok(SplitForward { activations, forwards })
    }

    /// Second stage, see [`Model::fc_phase`].
    ///
    /// # Errors
    /// See [`Model::fc_phase`].
    #[expect(clippy::cast_precision_loss, reason = "no mini-batch has 2^24 images")]
    pub fn fc_phase<R: Rng>(
        &self,
        fc: &[f32],
        activations: Vec<f32>,
        labels: &[u8],
        dropout: impl Fn() -> R + Sync,
    ) -> Result<FcResult, ModelError> {
        let features = self.first().features();
        let n_images = self.first().whole_images("activations", &activations, features)?;
        self.first().check_labels(labels, n_images)?;
        let pieces = self.pieces(n_images);
        if let [piece] = &*pieces {
            return piece.model.fc_phase(fc, activations, labels, &mut dropout());
        }
        let results = on_all(&pieces, |piece| {
            let activations = activations[piece.rows(features)].to_vec();
            let labels = &labels[piece.images.clone()];
            piece.model.fc_phase_beside(fc, activations, labels, &mut dropout(), piece.others)
        })?;
        let mut all = FcResult { loss: 0.0, gradient: Vec::new(), activation_gradient: Vec::new() };
        for (piece, result) in pieces.iter().zip(results) {
            let share = piece.images.len() as f32 / n_images as f32;
            all.loss += piece.images.len() as f64 / n_images as f64 * result.loss;
            add(share, result.gradient, &mut all.gradient);
            let own = result.activation_gradient.into_iter().map(|gradient| share * gradient);
            all.activation_gradient.extend(own);
        }
        Ok(all)
    }

    /// Third stage, see [`Model::backward`].
    ///
    /// # Errors
    /// See [`Model::backward`].
    pub fn backward(
        &self,
        forward: SplitForward,
        activation_gradient: Vec<f32>,
    ) -> Result<Vec<f32>, ModelError> {
        let features = self.first().features();
        let mut forwards = forward.forwards;
        if forwards.len() == 1 {
            let forward = forwards.remove(0);
            return self.first().backward(forward, activation_gradient);
        }
        if self.first().layout().conv == 0 {
            return Ok(Vec::new());
        }
        let gradients = "activation gradients";
        let n_images = self.first().whole_images(gradients, &activation_gradient, features)?;
        let pieces = self.pieces(n_images);
        let forwards: Vec<_> =
            forwards.into_iter().map(|forward| std::sync::Mutex::new(Some(forward))).collect();
        let results = on_all_with(&pieces, &forwards, |piece, forward| {
            let mut forward = forward.lock().expect("one thread takes it, and does not panic");
            let forward = forward.take().expect("every device computes backward once");
            piece.model.backward(forward, activation_gradient[piece.rows(features)].to_vec())
        })?;
        // The gradient of the activations is that of the mean over all images already.
        let mut sum = Vec::new();
        results.into_iter().for_each(|gradient| add(1.0, gradient, &mut sum));
        Ok(sum)
    }

    /// The images of every device that has some.
    fn pieces(&self, images: usize) -> Vec<Piece<'_>> {
        let parts: Vec<u32> = self.devices.iter().map(|device| device.parts).collect();
        let mut start = 0;
        let mut pieces = Vec::with_capacity(parts.len());
        for (device, size) in self.devices.iter().zip(proportional(images, &parts)) {
            let own = start..start + size;
            start = own.end;
            if size > 0 {
                let others = Others { before: own.start, after: images - own.end };
                pieces.push(Piece { model: &device.model, images: own, others });
            }
        }
        pieces
    }
}

impl Piece<'_> {
    /// Where its images lie among numbers of which each image has `per_image`.
    fn rows(&self, per_image: usize) -> Range<usize> {
        self.images.start * per_image..self.images.end * per_image
    }
}

/// Sizes that add up to `total`, in proportion to `parts`: the whole numbers below the exact sizes,
/// and what is left over to those that lost most.
///
/// # Panics
/// If no part is above 0.
pub fn proportional(total: usize, parts: &[u32]) -> Vec<usize> {
    let all: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    assert!(all > 0, "something has a part");
    let exact = |part: u32| total as u128 * u128::from(part);
    let whole = |part: u32| usize::try_from(exact(part) / all).expect("at most the total");
    let mut sizes: Vec<usize> = parts.iter().map(|part| whole(*part)).collect();
    let mut by_loss: Vec<usize> = (0..parts.len()).collect();
    by_loss.sort_by_key(|&at| std::cmp::Reverse(exact(parts[at]) % all));
    let left = total - sizes.iter().sum::<usize>();
    by_loss.iter().take(left).for_each(|&at| sizes[at] += 1);
    sizes
}

/// Adds `weight · terms` to a sum, which may still be empty.
fn add(weight: f32, terms: Vec<f32>, sum: &mut Vec<f32>) {
    if sum.is_empty() {
        sum.extend(terms.iter().map(|term| weight * term));
    } else {
        sum.iter_mut().zip(&terms).for_each(|(sum, term)| *sum += weight * term);
    }
}

/// Does the work of all devices at the same time: of those on the CPU on the threads of the current
/// pool, of the others on threads that only wait for them.
fn on_all<T: Send>(
    pieces: &[Piece<'_>],
    work: impl Fn(&Piece<'_>) -> Result<T, ModelError> + Sync,
) -> Result<Vec<T>, ModelError> {
    on_all_with(pieces, &vec![(); pieces.len()], |piece, ()| work(piece))
}

fn on_all_with<A: Sync, T: Send>(
    pieces: &[Piece<'_>],
    arguments: &[A],
    work: impl Fn(&Piece<'_>, &A) -> Result<T, ModelError> + Sync,
) -> Result<Vec<T>, ModelError> {
    let mut results: Vec<Option<Result<T, ModelError>>> = pieces.iter().map(|_| None).collect();
    let work = &work;
    std::thread::scope(|threads| {
        rayon::scope(|tasks| {
            let items = pieces.iter().zip(arguments).zip(&mut results);
            for ((piece, argument), result) in items {
                if is_cpu(piece.model.device()) {
                    tasks.spawn(move |_| *result = Some(work(piece, argument)));
                } else {
                    threads.spawn(move || *result = Some(work(piece, argument)));
                }
            }
        });
    });
    results.into_iter().map(|result| result.expect("all work was done")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sizes_add_up_and_are_less_than_one_from_exact(
            total in 0usize..1000,
            parts in prop::collection::vec(0u32..50, 1..6),
        ) {
            prop_assume!(parts.iter().any(|part| *part > 0));
            let sizes = proportional(total, &parts);
            prop_assert_eq!(sizes.iter().sum::<usize>(), total);
            let all: u32 = parts.iter().sum();
            for (size, part) in sizes.iter().zip(&parts) {
                let exact = total as f64 * f64::from(*part) / f64::from(all);
                prop_assert!((*size as f64 - exact).abs() < 1.0, "{size} for {exact}");
            }
        }
    }

    #[test]
    fn one_part_against_three_is_a_quarter() {
        assert_eq!(proportional(32, &[1, 3]), [8, 24]);
        assert_eq!(proportional(10, &[1, 3]), [3, 7]);
        assert_eq!(proportional(1, &[1, 3]), [0, 1]);
    }
}
