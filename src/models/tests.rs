//! What a model computes, against an independent implementation and against its own laws.

mod laws;
mod reference;

use std::path::Path;

use burn::tensor::Device;
use omnivore_sim::rng::{Seed, Stream, stream};
use omnivore_sim::units::Flops;
use omnivore_sim::workload::{LayerSpec, NetworkSpec, ParameterLayout, Phase};
use rand::{Rng, RngExt};

use super::*;

/// One device per backend that every build has.
fn cpu_devices() -> [(&'static str, Device); 2] {
    #[expect(deprecated, reason = "this project keeps the backend that Burn is about to drop")]
    let ndarray = Device::ndarray();
    [("flex", Device::flex()), ("ndarray", ndarray)]
}

fn flex() -> Device {
    Device::flex()
}

fn shipped(name: &str) -> NetworkSpec {
    let file = format!("experiments/networks/{name}.toml");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
    toml::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn network(text: &str) -> NetworkSpec {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Every kind of layer, in both phases where it can stand there, with uneven sides, strides,
/// paddings and groups; small enough for a check of every parameter.
fn every_kind() -> NetworkSpec {
    network(
        r#"
        name = "every kind"
        input = { channels = 2, height = 11, width = 9 }
        initialisation = "he"
        layers = [
            { convolution = { name = "conv1", filters = 6, kernel = 3, stride = 2, padding = 2, groups = 2 } },
            { relu = { name = "relu1" } },
            { local_response_normalisation = { name = "norm", size = 3, alpha = 0.5, beta = 0.75, k = 1.5 } },
            { pooling = { name = "pool1", operator = "max", kernel = 2, stride = 1, padding = 1, rounding = "floor" } },
            { convolution = { name = "conv2", filters = 4, kernel = 2, stride = 1, padding = 0, groups = 1, initialisation = { gaussian = { deviation = 0.5, bias = 0.25 } } } },
            { pooling = { name = "pool2", operator = "average", kernel = 3, stride = 2, padding = 1, rounding = "ceil" } },
            { dropout = { name = "drop1", probability = 0.25 } },
            { pooling = { name = "pool3", operator = "max", kernel = 3, stride = 2, padding = 0, rounding = "ceil" } },
            { fully_connected = { name = "fc1", outputs = 5 } },
            { relu = { name = "relu2" } },
            { dropout = { name = "drop2", probability = 0.5 } },
            { fully_connected = { name = "fc2", outputs = 3 } },
            { softmax_cross_entropy = { name = "loss", classes = 3 } },
        ]
        "#,
    )
}

/// Like the small network of the experiments, but smaller still.
fn tiny() -> NetworkSpec {
    network(
        r#"
        name = "tiny"
        input = { channels = 1, height = 12, width = 12 }
        initialisation = "he"
        layers = [
            { convolution = { name = "conv1", filters = 4, kernel = 5, stride = 2, padding = 0, groups = 1 } },
            { relu = { name = "relu1" } },
            { pooling = { name = "pool", operator = "max", kernel = 2, stride = 2, padding = 0, rounding = "floor" } },
            { fully_connected = { name = "fc1", outputs = 8 } },
            { relu = { name = "relu2" } },
            { fully_connected = { name = "fc2", outputs = 4 } },
            { softmax_cross_entropy = { name = "loss", classes = 4 } },
        ]
        "#,
    )
}

/// No conv phase at all.
fn linear() -> NetworkSpec {
    network(
        r#"
        name = "linear"
        input = { channels = 1, height = 3, width = 4 }
        initialisation = "he"
        layers = [
            { fully_connected = { name = "fc", outputs = 3 } },
            { softmax_cross_entropy = { name = "loss", classes = 3 } },
        ]
        "#,
    )
}

/// No fully connected layer: the loss follows the convolution.
fn convolutional() -> NetworkSpec {
    network(
        r#"
        name = "convolutional"
        input = { channels = 1, height = 4, width = 4 }
        initialisation = "he"
        layers = [
            { convolution = { name = "conv", filters = 3, kernel = 4, stride = 1, padding = 0, groups = 1 } },
            { softmax_cross_entropy = { name = "loss", classes = 3 } },
        ]
        "#,
    )
}

/// A model with parameters, images and labels to try it on.
struct Case {
    model: Model,
    parameters: Vec<f32>,
    images: Vec<f32>,
    labels: Vec<u8>,
}

fn case(spec: &NetworkSpec, device: &Device, n_images: usize) -> Case {
    let model = Model::new(spec, device).expect("the network of a test is possible");
    let parameters = initial_parameters(&model, 1);
    let mut generator = random(2);
    let length = n_images * model.image_length();
    let images = (0..length).map(|_| generator.random_range(-1.0..1.0)).collect();
    let classes = u8::try_from(model.classes()).expect("a test has few classes");
    let labels = (0..n_images).map(|_| generator.random_range(0..classes)).collect();
    Case { model, parameters, images, labels }
}

impl Case {
    fn gradient(&self) -> Gradient {
        self.gradient_of(self.images.clone(), &self.labels)
    }

    fn gradient_of(&self, images: Vec<f32>, labels: &[u8]) -> Gradient {
        self.model
            .gradient(&self.parameters, images, labels, &mut random(3))
            .expect("the lengths of a test match")
    }
}

fn initial_parameters(model: &Model, seed: u64) -> Vec<f32> {
    model.initial_parameters(|tensor| stream(Seed(seed), Stream::Initialisation { tensor }))
}

fn random(seed: u64) -> impl Rng {
    stream(Seed(seed), Stream::Evaluation)
}

/// Bits, so that a comparison is exact and tells 0 from −0.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn the_shipped_networks_have_the_parameters_of_their_sources() {
    let counts = [
        ("small-cnn", ParameterLayout { conv: 3_424, fc: 17_098 }, 20_522),
        ("lenet", ParameterLayout { conv: 25_570, fc: 405_510 }, 431_080),
        ("cifar10-quick", ParameterLayout { conv: 79_328, fc: 66_250 }, 145_578),
        ("cifar10-quick-grey", ParameterLayout { conv: 77_728, fc: 66_250 }, 143_978),
        ("caffenet", ParameterLayout { conv: 2_334_080, fc: 58_631_144 }, 60_965_224),
    ];
    for (name, layout, total) in counts {
        let model = Model::new(&shipped(name), &flex()).expect("a shipped network is possible");
        assert_eq!((model.layout(), model.layout().total()), (layout, total), "{name}");
    }
}

#[test]
fn caffenet_needs_the_work_that_the_paper_states() {
    let workload = Workload::new(&shipped("caffenet")).expect("a shipped network is possible");
    let [conv, fc] = [Phase::Conv, Phase::Fc].map(|phase| workload.phase(phase));
    // Multiply-adds, 2 FLOP each: 0.666 and 0.059 thousand millions.
    assert_eq!(conv.forward_flops, Flops(2 * 665_784_864));
    assert_eq!(fc.forward_flops, Flops(2 * 58_621_952));
    // Conv activations into the FC phase: 9.4 MB per 256 images.
    assert_eq!(workload.boundary_bytes().0 * 256, 9_437_184);
}

#[test]
fn an_unknown_key_of_a_layer_is_refused_with_its_name_and_place() {
    let text = "name = 'n'\ninput = { channels = 1, height = 1, width = 1 }\n\
                initialisation = 'he'\nlayers = [\n{ relu = { nome = 'r' } },\n]";
    let error = toml::from_str::<NetworkSpec>(text).expect_err("`nome` is no key");
    assert_eq!(error.message(), "unknown field `nome`, expected `name`");
    let place = error.span().expect("the error has a place");
    assert_eq!(&text[place], "nome");
}

#[test]
fn tensors_follow_each_other_without_gaps_and_conv_before_fc() {
    for name in ["small-cnn", "lenet", "cifar10-quick", "caffenet"] {
        let model = Model::new(&shipped(name), &flex()).expect("a shipped network is possible");
        let mut next = 0;
        for tensor in model.tensors() {
            assert_eq!(tensor.range.start, next, "{name}: {}", tensor.name);
            assert_eq!(tensor.range.len(), tensor.shape.iter().product::<usize>());
            next = tensor.range.end;
            let is_conv = tensor.range.end <= model.layout().conv;
            assert_eq!(tensor.phase == Phase::Conv, is_conv, "{name}: {}", tensor.name);
        }
        assert_eq!(next, model.layout().total());
    }
}

#[test]
fn he_weights_have_the_variance_two_over_fan_in_and_biases_are_zero() {
    let model = Model::new(&shipped("small-cnn"), &flex()).expect("the network is possible");
    let parameters = initial_parameters(&model, 1);
    let fan_in = [25.0, 200.0, 256.0, 64.0];
    for (tensors, fan_in) in model.tensors().chunks(2).zip(fan_in) {
        let weights = &parameters[tensors[0].range.clone()];
        let squares: f64 = weights.iter().map(|&weight| f64::from(weight).powi(2)).sum();
        let n = weights.len() as f64;
        // The sample variance has the relative standard deviation √(2/n); 4 of them.
        let relative = squares / n / (2.0 / fan_in) - 1.0;
        assert!(relative.abs() < 4.0 * (2.0 / n).sqrt(), "{}: {relative}", tensors[0].name);
        assert!(parameters[tensors[1].range.clone()].iter().all(|&bias| bias == 0.0));
    }
}

#[test]
fn a_layer_that_says_so_starts_with_its_own_deviation_and_bias() {
    let model = Model::new(&every_kind(), &flex()).expect("the network is possible");
    let parameters = initial_parameters(&model, 1);
    let tensor = |name: &str| {
        let tensor = model.tensors().iter().find(|tensor| tensor.name == name);
        &parameters[tensor.expect("the layer is there").range.clone()]
    };
    assert_eq!(tensor("conv2.biases"), [0.25; 4]);
    assert_eq!(tensor("conv1.biases"), [0.0; 6]);
    let weights = tensor("conv2.weights");
    let mean_square = weights.iter().map(|weight| weight * weight).sum::<f32>() / 96.0;
    // 96 draws: the variance 0.25 within 4 relative standard deviations of √(2/96).
    assert!((mean_square / 0.25 - 1.0).abs() < 0.58, "{mean_square}");
}

#[test]
fn a_tensor_starts_the_same_whatever_other_tensors_the_network_has() {
    let lone = Model::new(&tiny(), &flex()).expect("the network is possible");
    let mut wider = tiny();
    let LayerSpec::FullyConnected(fc1) = &mut wider.layers[3] else {
        panic!("the fourth layer is fully connected");
    };
    fc1.outputs = 16.try_into().expect("16 is not zero");
    let wider = Model::new(&wider, &flex()).expect("the network is possible");
    let first = lone.tensors()[0].range.clone();
    assert_eq!(initial_parameters(&lone, 5)[first.clone()], initial_parameters(&wider, 5)[first]);
}

#[test]
fn vectors_of_another_length_and_labels_without_class_are_refused() {
    let Case { model, parameters, images, labels } = case(&tiny(), &flex(), 2);
    let (conv, fc) = parameters.split_at(model.layout().conv);
    let dropout = &mut random(1);
    let message = |error: ModelError| error.to_string();
    assert_eq!(
        model.forward(&conv[1..], images.clone(), dropout).map_err(message).err().as_deref(),
        Some("conv parameters hold 103 numbers, but network `tiny` needs 104"),
    );
    assert_eq!(
        model.forward(conv, images[1..].to_vec(), dropout).map_err(message).err().as_deref(),
        Some(
            "images hold 287 numbers, but network `tiny` needs a multiple of 144 and at least \
             one image"
        ),
    );
    assert!(model.forward(conv, vec![], dropout).is_err());
    assert_eq!(
        model.evaluate(&parameters, images.clone(), &[0]).map_err(message),
        Err("1 labels do not match 2 images; give one label for each".to_owned()),
    );
    assert_eq!(
        model.evaluate(&parameters, images.clone(), &[0, 4]).map_err(message),
        Err("label 4 of image 1 is out of range; network `tiny` has 4 classes, so labels go from \
             0 to 3"
            .to_owned()),
    );
    let forward = model.forward(conv, images, dropout).expect("the lengths match");
    let activations = forward.activations.clone();
    assert!(model.fc_phase(&fc[1..], activations.clone(), &labels, dropout).is_err());
    assert!(model.backward(forward, activations[1..].to_vec()).is_err());
}
