//! What must hold whatever the numbers are.

use std::sync::Arc;

use rayon::ThreadPoolBuilder;

use super::super::layers::{Activation, Pass};
use super::super::{into_vec, pull_back};
use super::*;
use crate::memory::counted::of_this_thread;

/// Runs `work` on a rayon pool of its own.
fn with_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a small pool can be built").install(work)
}

/// Loss and gradient when both phases are one recorded graph, never cut at the boundary.
fn unstaged(case: &Case) -> (f64, Vec<f32>) {
    let Case { model, parameters, images, labels } = case;
    let mut dropout = random(3);
    let (conv, fc) = parameters.split_at(model.layout.conv);
    let mut conv_pass = Pass::training(conv, model.computing(), &mut dropout);
    let input = model.images(images.clone(), labels.len(), conv_pass.device());
    let activations = conv_pass.run(&model.conv, input).into_features();
    let mut leaves = conv_pass.into_leaves();
    let mut fc_pass = Pass::training(fc, model.computing(), &mut dropout);
    let output = fc_pass.run(&model.fc, Activation::Features(activations)).into_features();
    leaves.extend(fc_pass.into_leaves());
    let scores = Scores::new(into_vec(output.clone().inner()), model.classes);
    let gradient = pull_back(output, scores.gradient_of_mean(labels), &leaves);
    (scores.mean_loss(labels), gradient)
}

#[test]
fn three_stages_give_the_bits_of_one_whole_graph() {
    for (name, device) in cpu_devices() {
        for spec in [every_kind(), tiny(), linear(), convolutional()] {
            let case = case(&spec, &device, 5);
            let (loss, gradient) = unstaged(&case);
            let staged = case.gradient();
            assert_eq!(staged.loss.to_bits(), loss.to_bits(), "{name}, {}", spec.name);
            assert_eq!(bits(&staged.values), bits(&gradient), "{name}, {}", spec.name);
        }
    }
}

#[test]
fn stages_called_by_hand_from_other_threads_give_the_gradient_of_one_call() {
    let case = case(&tiny(), &flex(), 6);
    let Case { model, parameters, images, labels } = &case;
    let (conv, fc) = parameters.split_at(model.layout().conv);
    let conv_gradient = std::thread::scope(|scope| {
        let forward = scope
            .spawn(|| model.forward(conv, images.clone(), &mut random(3)))
            .join()
            .expect("the worker lives")
            .expect("the lengths match");
        let activations = forward.activations.clone();
        let server = scope.spawn(|| model.fc_phase(fc, activations, labels, &mut random(3)));
        let result = server.join().expect("the server lives").expect("the lengths match");
        assert_eq!(bits(&result.gradient), bits(&case.gradient().values[conv.len()..]));
        let worker = scope.spawn(move || model.backward(forward, result.activation_gradient));
        worker.join().expect("the worker lives").expect("the lengths match")
    });
    assert_eq!(bits(&conv_gradient), bits(&case.gradient().values[..conv.len()]));
}

#[test]
fn repeated_calls_and_any_number_of_threads_give_the_same_bits() {
    for (name, device) in cpu_devices() {
        for spec in [every_kind(), shipped("small-cnn")] {
            let case = case(&spec, &device, 8);
            let reference = with_threads(1, || case.gradient());
            for threads in [1, 2, 3] {
                let again = with_threads(threads, || case.gradient());
                assert_eq!(again.loss.to_bits(), reference.loss.to_bits(), "{name}, {threads}");
                assert_eq!(bits(&again.values), bits(&reference.values), "{name}, {threads}");
            }
        }
    }
}

#[test]
fn workers_that_compute_at_the_same_time_do_not_disturb_each_other() {
    let case = case(&shipped("small-cnn"), &flex(), 8);
    let alone = case.gradient();
    let together: Vec<Gradient> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| case.gradient())).collect();
        workers.into_iter().map(|worker| worker.join().expect("the worker lives")).collect()
    });
    for gradient in together {
        assert_eq!(bits(&gradient.values), bits(&alone.values));
    }
}

#[test]
fn both_cpu_devices_agree_up_to_rounding() {
    let [(_, flex), (_, ndarray)] = cpu_devices();
    for spec in [every_kind(), shipped("small-cnn")] {
        let [flex, ndarray] = [&flex, &ndarray].map(|device| case(&spec, device, 4).gradient());
        // Losses of order 1 from sums of a few hundred terms in single precision.
        assert!((flex.loss - ndarray.loss).abs() < 1e-5, "{}", spec.name);
        let largest = flex.values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        for (place, (flex, ndarray)) in flex.values.iter().zip(&ndarray.values).enumerate() {
            // Each device is within 2e-5 of the largest slope; see the reference tests.
            assert!((flex - ndarray).abs() < 4e-5 * largest, "{}, {place}", spec.name);
        }
    }
}

#[test]
fn gradients_of_shares_weighted_by_their_size_make_up_that_of_the_mini_batch() {
    let case = case(&shipped("small-cnn"), &flex(), 12);
    let whole = case.gradient();
    let per_image = case.model.image_length();
    let (mut loss, mut values) = (0.0, vec![0.0_f64; whole.values.len()]);
    for share in [0..5, 5..6, 6..12] {
        let weight = share.len() as f64 / 12.0;
        let images = case.images[share.start * per_image..share.end * per_image].to_vec();
        let part = case.gradient_of(images, &case.labels[share]);
        loss += weight * part.loss;
        for (sum, value) in values.iter_mut().zip(&part.values) {
            *sum += weight * f64::from(*value);
        }
    }
    // Rounding of the scores, which have order 1 and a few hundred terms.
    assert!((loss - whole.loss).abs() < 1e-6, "{loss} {}", whole.loss);
    let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    for (place, (sum, value)) in values.iter().zip(&whole.values).enumerate() {
        assert!((sum - f64::from(*value)).abs() < 2e-5 * largest, "{place}: {sum} {value}");
    }
}

#[test]
fn evaluation_gives_the_loss_of_training_where_nothing_is_dropped() {
    for (name, device) in cpu_devices() {
        let case = case(&tiny(), &device, 7);
        let evaluation = case
            .model
            .evaluate(&case.parameters, case.images.clone(), &case.labels)
            .expect("the lengths match");
        assert_eq!(evaluation.mean_loss().to_bits(), case.gradient().loss.to_bits(), "{name}");
        assert_eq!(evaluation.n_examples, 7);
    }
}

#[test]
fn evaluation_of_parts_adds_up_to_that_of_the_whole() {
    let case = case(&tiny(), &flex(), 9);
    let evaluate = |images: &[f32], labels: &[u8]| {
        let result = case.model.evaluate(&case.parameters, images.to_vec(), labels);
        result.expect("the lengths match")
    };
    let whole = evaluate(&case.images, &case.labels);
    let cut = 4 * case.model.image_length();
    let mut sum = evaluate(&case.images[..cut], &case.labels[..4]);
    sum += evaluate(&case.images[cut..], &case.labels[4..]);
    assert_eq!((sum.n_correct, sum.n_examples), (whole.n_correct, 9));
    assert!((sum.loss_sum - whole.loss_sum).abs() < 1e-5, "{sum:?} {whole:?}");
    assert!((0.0..=1.0).contains(&whole.accuracy()));
}

#[test]
fn dropout_drops_by_its_own_stream_while_training_and_nothing_in_evaluation() {
    let case = case(&every_kind(), &flex(), 4);
    let loss = |seed| {
        let images = case.images.clone();
        let gradient =
            case.model.gradient(&case.parameters, images, &case.labels, &mut random(seed));
        gradient.expect("the lengths match").loss.to_bits()
    };
    assert_eq!(loss(3), loss(3));
    assert_ne!(loss(3), loss(4));
    let evaluation = || {
        let images = case.images.clone();
        let result = case.model.evaluate(&case.parameters, images, &case.labels);
        result.expect("the lengths match").loss_sum.to_bits()
    };
    assert_eq!(evaluation(), evaluation());
}

#[test]
fn a_network_without_dropout_draws_no_random_number() {
    let case = case(&tiny(), &flex(), 2);
    let (mut used, mut untouched) = (random(9), random(9));
    let images = case.images.clone();
    let result = case.model.gradient(&case.parameters, images, &case.labels, &mut used);
    assert!(result.is_ok());
    assert_eq!(used.random::<u64>(), untouched.random::<u64>());
}

#[test]
fn a_step_against_the_gradient_lowers_the_loss() {
    for (name, device) in cpu_devices() {
        let mut case = case(&shipped("small-cnn"), &device, 16);
        let before = case.gradient();
        for (parameter, slope) in case.parameters.iter_mut().zip(&before.values) {
            *parameter -= 0.01 * slope;
        }
        let after = case.gradient();
        let squares: f64 = before.values.iter().map(|slope| f64::from(*slope).powi(2)).sum();
        // To first order the loss falls by 0.01 · ‖gradient‖²; curvature may take half of it.
        assert!(after.loss < before.loss - 0.005 * squares, "{name}: {before:?}");
    }
}

#[test]
fn a_forward_pass_may_wait_on_another_thread() {
    fn assert_send<T: Send>() {}
    assert_send::<ConvForward>();
    assert_send::<Model>();
}

#[test]
fn a_warm_iteration_allocates_what_the_one_before_did_and_keeps_nothing() {
    for (name, device) in cpu_devices() {
        let case = case(&every_kind(), &device, 8);
        let iterations: Vec<(usize, usize)> = with_threads(1, || {
            let iteration = |_| {
                let (allocated, freed) = of_this_thread();
                drop(case.gradient());
                let (allocated_since, freed_since) = of_this_thread();
                (allocated_since - allocated, freed_since - freed)
            };
            // The first ones fill the scratch memory and the tables of automatic differentiation.
            (0..12).map(iteration).skip(4).collect()
        });
        for (allocated, freed) in &iterations {
            assert_eq!(allocated, freed, "{name}: bytes allocated and freed, {iterations:?}");
            assert_eq!(*allocated, iterations[0].0, "{name}: {iterations:?}");
        }
    }
}

/// Loss and gradient of all images of a case on devices that share them.
fn shared(case: &Case, devices: &[(&Device, u32)]) -> Gradient {
    let Case { model, parameters, images, labels } = case;
    let copy = |device| Arc::new(Model::new(model.spec(), device).expect("it is possible"));
    let all = SplitModel::new(devices.iter().map(|(device, parts)| (copy(device), *parts)));
    let (conv, fc) = parameters.split_at(model.layout().conv);
    let mut forward = all.forward(conv, images.clone(), || random(3)).expect("the lengths match");
    let activations = std::mem::take(&mut forward.activations);
    let result = all.fc_phase(fc, activations, labels, || random(4)).expect("the lengths match");
    let mut values = all.backward(forward, result.activation_gradient).expect("they match");
    values.extend(result.gradient);
    Gradient { loss: result.loss, values }
}

#[test]
fn devices_that_share_a_mini_batch_find_the_gradient_of_one_up_to_rounding() {
    let [(_, flex), (_, ndarray)] = cpu_devices();
    // Both kinds of dropout are in `every_kind`, so the devices must agree on the masks too.
    for spec in [every_kind(), tiny(), linear(), convolutional()] {
        let case = case(&spec, &flex, 9);
        let alone = shared(&case, &[(&flex, 1)]);
        let largest = alone.values.iter().fold(0_f32, |most, value| most.max(value.abs()));
        for parts in [[1, 3], [3, 1], [1, 1], [20, 1]] {
            for threads in [1, 2] {
                let together = with_threads(threads, || {
                    shared(&case, &[(&flex, parts[0]), (&ndarray, parts[1])])
                });
                // A few hundred roundings of single precision in sums of the same terms.
                assert!((together.loss - alone.loss).abs() < 1e-6, "{}, {parts:?}", spec.name);
                for (one, other) in together.values.iter().zip(&alone.values) {
                    assert!((one - other).abs() <= 1e-5 * largest, "{}, {parts:?}", spec.name);
                }
            }
        }
    }
}

#[test]
fn sharing_devices_give_the_same_bits_on_any_number_of_threads() {
    let [(_, flex), (_, ndarray)] = cpu_devices();
    let case = case(&every_kind(), &flex, 9);
    let devices = [(&flex, 1), (&ndarray, 3)];
    let reference = with_threads(1, || shared(&case, &devices));
    for threads in [2, 3] {
        let again = with_threads(threads, || shared(&case, &devices));
        assert_eq!(bits(&again.values), bits(&reference.values));
    }
}
