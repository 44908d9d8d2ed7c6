//! Networks that compute: a [`NetworkSpec`] executed by Burn on one device.
//!
//! Parameters are one flat vector of `f32`, `[conv phase | FC phase]`; a model holds none. A
//! gradient is computed in three stages, so that two machines can share the work of one share of a
//! mini-batch:
//!
//! ```text
//! forward   conv parameters, images          → activations        (a conv machine)
//! fc_phase  FC parameters, activations       → loss, FC gradient,  (the FC server, or the
//!                                              activation gradient  same machine)
//! backward  what forward kept, activation    → conv gradient       (the conv machine)
//!           gradient
//! ```
//!
//! Losses and gradients are means over the images of the call. The gradient of a mini-batch of `b`
//! images that is shared as `b₁ + … + b_k` is therefore `Σ bᵢ/b · gᵢ`.
//!
//! A model may be used from several threads at once: every call builds its own tensors from the
//! flat vectors, and computes on the rayon pool of the calling thread.

mod connections;
mod layers;
mod loss;
mod objective;
mod parameters;
mod split;
#[cfg(test)]
mod tests;

use burn::tensor::{Device, Tensor, TensorData};
use omnivore_sim::objective::Connections;
use omnivore_sim::workload::{ImageShape, NetworkSpec, ParameterLayout, Workload, WorkloadError};
use rand::Rng;

use crate::kernels::burn_op::{append_numbers, pulled};
use crate::kernels::{Arithmetic, KernelError};

use layers::{Activation, Computing, Leaf, Operation, Pass, size};
use loss::Scores;

pub use objective::{EVALUATION_SEED, NetworkObjective};
pub use parameters::ParameterTensor;
use split::Others;
pub use split::{SplitForward, SplitModel, proportional};

/// Why a model cannot be built or cannot compute.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The network itself is not possible.
    #[error(transparent)]
    Network(#[from] WorkloadError),
    /// The processor lacks an arithmetic.
    #[error(transparent)]
    Arithmetic(#[from] KernelError),
    /// A vector does not have the length that the network prescribes.
    #[error("{what} hold {found} numbers, but network `{network}` needs {expected}")]
    Length {
        /// Name of the network.
        network: String,
        /// What the vector holds.
        what: &'static str,
        /// Numbers given.
        found: usize,
        /// Numbers needed.
        expected: usize,
    },
    /// A vector of several examples is not a multiple of one example.
    #[error(
        "{what} hold {found} numbers, but network `{network}` needs a multiple of {per_image} and \
         at least one image"
    )]
    NoWholeImages {
        /// Name of the network.
        network: String,
        /// What the vector holds.
        what: &'static str,
        /// Numbers given.
        found: usize,
        /// Numbers of one image.
        per_image: usize,
    },
    /// Images and labels do not belong together.
    #[error("{labels} labels do not match {images} images; give one label for each")]
    LabelsDiffer {
        /// Labels given.
        labels: usize,
        /// Images given.
        images: usize,
    },
    /// A label names no class.
    #[error(
        "label {label} of image {image} is out of range; network `{network}` has {classes} \
         classes, so labels go from 0 to {}", classes - 1
    )]
    Label {
        /// Name of the network.
        network: String,
        /// Place of the label, counted from 0.
        image: usize,
        /// The label.
        label: u8,
        /// Classes of the network.
        classes: usize,
    },
}

/// A network on a device, without parameters.
#[derive(Clone, Debug)]
pub struct Model {
    spec: NetworkSpec,
    workload: Workload,
    layout: ParameterLayout,
    tensors: Vec<ParameterTensor>,
    conv: Vec<Operation>,
    fc: Vec<Operation>,
    image_length: usize,
    features: usize,
    classes: usize,
    device: Device,
    arithmetic: Arithmetic,
}

/// What the forward pass of the conv phase leaves behind.
#[derive(Debug)]
pub struct ConvForward {
    /// What the conv phase gives to the FC phase, `[images, features]`, row-major.
    pub activations: Vec<f32>,
    /// Absent where the conv phase has no parameters, so that nothing flows back.
    graph: Option<Graph>,
}

/// The recorded computation of the conv phase, with the parameters at its ends.
#[derive(Debug)]
struct Graph {
    output: Tensor<2>,
    leaves: Vec<Leaf>,
}

/// What the FC phase computes from one share of a mini-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct FcResult {
    /// Mean loss over the images of the call, in nats.
    pub loss: f64,
    /// Gradient of that mean with respect to the FC parameters.
    pub gradient: Vec<f32>,
    /// Gradient of that mean with respect to the activations, `[images, features]`; empty where
    /// the conv phase has no parameters, because nobody would use it.
    pub activation_gradient: Vec<f32>,
}

/// Loss and gradient of one mini-batch, or of one share of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// Mean loss over the images of the call, in nats.
    pub loss: f64,
    /// Gradient of that mean, `[conv phase | FC phase]`.
    pub values: Vec<f32>,
}

/// How well parameters do on some examples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Sum of the losses, in nats.
    pub loss_sum: f64,
    /// Examples whose label has the largest score; among equals the first class counts.
    pub n_correct: usize,
    /// Examples looked at.
    pub n_examples: usize,
}

impl Evaluation {
    /// Mean loss in nats; NaN without examples.
    #[expect(clippy::cast_precision_loss, reason = "no data set has 2^53 examples")]
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.n_examples as f64
    }

    /// Share of examples classified correctly; NaN without examples.
    #[expect(clippy::cast_precision_loss, reason = "no data set has 2^53 examples")]
    pub fn accuracy(&self) -> f64 {
        self.n_correct as f64 / self.n_examples as f64
    }
}

impl std::ops::AddAssign for Evaluation {
    fn add_assign(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.n_correct += other.n_correct;
        self.n_examples += other.n_examples;
    }
}

impl Model {
    /// Prepares a network for a device. Nothing is computed yet.
    ///
    /// # Errors
    /// [`ModelError::Network`] when the network is not possible.
    pub fn new(spec: &NetworkSpec, device: &Device) -> Result<Self, ModelError> {
        let workload = Workload::new(spec)?;
        let resolved = parameters::resolve(spec, &workload);
        Ok(Model {
            layout: workload.parameter_layout(),
            image_length: size(spec.input.elements()),
            features: size(workload.boundary_features()),
            classes: size(workload.classes()),
            tensors: resolved.tensors,
            conv: resolved.conv,
            fc: resolved.fc,
            device: device.clone().without_autodiff(),
            arithmetic: Arithmetic::default(),
            spec: spec.clone(),
            workload,
        })
    }

    /// The same network with its convolutions and fully-connected layers in another arithmetic.
    ///
    /// It is for devices of the CPU; others compute as they do.
    ///
    /// # Errors
    /// [`ModelError::Arithmetic`] when the processor lacks it.
    pub fn with_arithmetic(self, arithmetic: Arithmetic) -> Result<Self, ModelError> {
        arithmetic.require()?;
        Ok(Model { arithmetic, ..self })
    }

    /// In what the convolutions and the fully-connected layers are computed.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The network as it was described.
    pub fn spec(&self) -> &NetworkSpec {
        &self.spec
    }

    /// Shapes and work of the network, layer by layer.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Lengths of the parts of the flat parameter vector.
    pub fn layout(&self) -> ParameterLayout {
        self.layout
    }

    /// The tensors of the flat parameter vector, in order and without gaps.
    pub fn tensors(&self) -> &[ParameterTensor] {
        &self.tensors
    }

    /// Which hidden units the tensors connect: channels of convolutions, neurons of FC layers.
    ///
    /// Weights of a convolution in groups belong to its own channels alone.
    pub fn connections(&self) -> Vec<Connections> {
        connections::of(&self.spec, &self.tensors)
    }

    /// The device that computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn computing(&self) -> Computing<'_> {
        Computing { device: &self.device, arithmetic: self.arithmetic }
    }

    /// Numbers of one image: `channels · height · width`.
    pub fn image_length(&self) -> usize {
        self.image_length
    }

    /// Numbers per image between the phases.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Classes that the network tells apart.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Draws the parameters before the first update, `[conv phase | FC phase]`.
    ///
    /// `generator` is asked once per tensor, with its index in [`Model::tensors`]; each tensor is
    /// drawn in row-major order from its own generator, so the result depends neither on the
    /// device nor on what other tensors need.
    pub fn initial_parameters<R: Rng>(&self, mut generator: impl FnMut(u32) -> R) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.layout.total());
        for (index, tensor) in (0..).zip(&self.tensors) {
            tensor.draw(&mut generator(index), &mut values);
        }
        values
    }

    /// First stage: the conv phase on `images`, `[images, channels, height, width]`.
    ///
    /// `dropout` gives the random numbers of dropout layers; without such a layer none is drawn.
    ///
    /// # Errors
    /// [`ModelError::Length`] and [`ModelError::NoWholeImages`] for vectors of another length.
    pub fn forward(
        &self,
        conv: &[f32],
        images: Vec<f32>,
        dropout: &mut dyn Rng,
    ) -> Result<ConvForward, ModelError> {
        self.forward_beside(conv, images, dropout, Others::default())
    }

    /// As [`Model::forward`], for images of a mini-batch that has others too.
    fn forward_beside(
        &self,
        conv: &[f32],
        images: Vec<f32>,
        dropout: &mut dyn Rng,
        others: Others,
    ) -> Result<ConvForward, ModelError> {
        self.check_length("conv parameters", conv, self.layout.conv)?;
        let n_images = self.whole_images("images", &images, self.image_length)?;
        if self.conv.is_empty() {
            return Ok(ConvForward { activations: images, graph: None });
        }
        let mut pass = Pass::training(conv, self.computing(), dropout).beside(others);
        let input = self.images(images, n_images, pass.device());
        let output = pass.run(&self.conv, input).into_features();
        let activations = into_vec(output.clone().inner());
        let tracked = output.is_tracked();
        let graph = tracked.then(|| Graph { output, leaves: pass.into_leaves() });
        Ok(ConvForward { activations, graph })
    }

    /// Second stage: the FC phase on `activations`, `[images, features]`, one label per image.
    ///
    /// # Errors
    /// A [`ModelError`] for vectors of another length and for labels that name no class.
    pub fn fc_phase(
        &self,
        fc: &[f32],
        activations: Vec<f32>,
        labels: &[u8],
        dropout: &mut dyn Rng,
    ) -> Result<FcResult, ModelError> {
        self.fc_phase_beside(fc, activations, labels, dropout, Others::default())
    }

    /// As [`Model::fc_phase`], for images of a mini-batch that has others too.
    fn fc_phase_beside(
        &self,
        fc: &[f32],
        activations: Vec<f32>,
        labels: &[u8],
        dropout: &mut dyn Rng,
        others: Others,
    ) -> Result<FcResult, ModelError> {
        self.check_length("FC parameters", fc, self.layout.fc)?;
        let n_images = self.whole_images("activations", &activations, self.features)?;
        self.check_labels(labels, n_images)?;
        let mut pass = Pass::training(fc, self.computing(), dropout).beside(others);
        let data = TensorData::new(activations, [n_images, self.features]);
        let mut input = Tensor::<2>::from_data(data, pass.device());
        if self.layout.conv > 0 {
            input = input.require_grad();
        }
        let output = pass.run(&self.fc, Activation::Features(input.clone())).into_features();
        let scores = Scores::new(into_vec(output.clone().inner()), self.classes);
        let mut leaves = pass.into_leaves();
        leaves.push(Leaf::from(input));
        let mut gradient = pull_back(output, scores.gradient_of_mean(labels), &leaves);
        let activation_gradient = gradient.split_off(self.layout.fc);
        Ok(FcResult { loss: scores.mean_loss(labels), gradient, activation_gradient })
    }

    /// Third stage: the gradient of the conv parameters, from what [`Model::forward`] kept and the
    /// gradient of its activations.
    ///
    /// # Errors
    /// [`ModelError::Length`] when the gradient does not have the length of the activations.
    pub fn backward(
        &self,
        forward: ConvForward,
        activation_gradient: Vec<f32>,
    ) -> Result<Vec<f32>, ModelError> {
        let Some(Graph { output, leaves }) = forward.graph else {
            return Ok(Vec::new());
        };
        let expected = output.shape().num_elements();
        self.check_length("activation gradients", &activation_gradient, expected)?;
        Ok(pull_back(output, activation_gradient, &leaves))
    }

    /// All three stages at once: loss and gradient of `images` under `parameters`,
    /// `[conv phase | FC phase]`.
    ///
    /// # Errors
    /// A [`ModelError`] for vectors of another length and for labels that name no class.
    pub fn gradient(
        &self,
        parameters: &[f32],
        images: Vec<f32>,
        labels: &[u8],
        dropout: &mut dyn Rng,
    ) -> Result<Gradient, ModelError> {
        let (conv, fc) = self.split(parameters)?;
        let mut forward = self.forward(conv, images, dropout)?;
        let activations = std::mem::take(&mut forward.activations);
        let result = self.fc_phase(fc, activations, labels, dropout)?;
        let mut values = self.backward(forward, result.activation_gradient)?;
        values.extend_from_slice(&result.gradient);
        Ok(Gradient { loss: result.loss, values })
    }

    /// Losses and hits of `images` under `parameters`, without dropout and without gradients.
    ///
    /// # Errors
    /// A [`ModelError`] for vectors of another length and for labels that name no class.
    pub fn evaluate(
        &self,
        parameters: &[f32],
        images: Vec<f32>,
        labels: &[u8],
    ) -> Result<Evaluation, ModelError> {
        let (conv, fc) = self.split(parameters)?;
        let n_images = self.whole_images("images", &images, self.image_length)?;
        self.check_labels(labels, n_images)?;
        let mut pass = Pass::evaluation(conv, self.computing());
        let input = self.images(images, n_images, pass.device());
        let activations = pass.run(&self.conv, input);
        let output = Pass::evaluation(fc, self.computing()).run(&self.fc, activations);
        let scores = Scores::new(into_vec(output.into_features()), self.classes);
        Ok(Evaluation {
            loss_sum: scores.losses(labels).sum(),
            n_correct: scores.n_correct(labels),
            n_examples: n_images,
        })
    }

    /// The two parts of a whole parameter vector.
    fn split<'a>(&self, parameters: &'a [f32]) -> Result<(&'a [f32], &'a [f32]), ModelError> {
        self.check_length("parameters", parameters, self.layout.total())?;
        Ok(parameters.split_at(self.layout.conv))
    }

    fn images(&self, images: Vec<f32>, n_images: usize, device: &Device) -> Activation {
        let ImageShape { channels, height, width } = self.spec.input;
        let [channels, height, width] = [channels, height, width].map(size);
        let data = TensorData::new(images, [n_images, channels, height, width]);
        Activation::Image(Tensor::from_data(data, device))
    }

    fn check_length(
        &self,
        what: &'static str,
        values: &[f32],
        expected: usize,
    ) -> Result<(), ModelError> {
        if values.len() == expected {
            return Ok(());
        }
        let network = self.spec.name.clone();
        Err(ModelError::Length { network, what, found: values.len(), expected })
    }

    /// The number of examples that `values` hold.
    fn whole_images(
        &self,
        what: &'static str,
        values: &[f32],
        per_image: usize,
    ) -> Result<usize, ModelError> {
        if !values.is_empty() && values.len().is_multiple_of(per_image) {
            return Ok(values.len() / per_image);
        }
        let network = self.spec.name.clone();
        Err(ModelError::NoWholeImages { network, what, found: values.len(), per_image })
    }

    fn check_labels(&self, labels: &[u8], images: usize) -> Result<(), ModelError> {
        if labels.len() != images {
            return Err(ModelError::LabelsDiffer { labels: labels.len(), images });
        }
        match labels.iter().position(|&label| usize::from(label) >= self.classes) {
            None => Ok(()),
            Some(image) => Err(ModelError::Label {
                network: self.spec.name.clone(),
                image,
                label: labels[image],
                classes: self.classes,
            }),
        }
    }
}

/// The gradients of `leaves`, one after the other, when `gradient` is that of `output`; nothing
/// where nothing flows back.
fn pull_back(output: Tensor<2>, gradient: Vec<f32>, leaves: &[Leaf]) -> Vec<f32> {
    if !output.is_tracked() {
        return Vec::new();
    }
    let mut gradients = pulled(output, gradient).backward();
    let mut values = Vec::with_capacity(leaves.iter().map(Leaf::length).sum());
    for leaf in leaves {
        leaf.append_gradient(&mut gradients, &mut values);
    }
    values
}

/// The numbers of a tensor, row-major.
fn into_vec<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(tensor.shape().num_elements());
    append_numbers(tensor, &mut numbers);
    numbers
}
