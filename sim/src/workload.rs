//! A network as data: layers with shapes, floating-point operations, parameters and bytes.
//!
//! A [`NetworkSpec`] is what a user writes in a file. [`Workload::new`] infers the shapes, refuses
//! what cannot be computed with the layer and the numbers at fault, and counts the work of one
//! image. The network splits in two phases: the *conv phase* is every layer before the first
//! fully connected one (or before the loss when there is none), the *FC phase* is the rest.
//!
//! What is counted: the multiply-adds of convolutions and fully connected layers, 2 FLOP each.
//! Biases, activation functions, pooling, normalisation, dropout and the loss count as 0, as is
//! usual in the literature; they are less than 1 % of the work of the networks shipped here.
//! Numbers are 32-bit, 4 bytes each.
//!
//! ```
//! use omnivore_sim::workload::{
//!     FullyConnected, ImageShape, Initialisation, LayerSpec, NetworkSpec, SoftmaxCrossEntropy,
//!     Workload,
//! };
//! use std::num::NonZeroU32;
//!
//! let ten = NonZeroU32::new(10).expect("10 is not zero");
//! let spec = NetworkSpec {
//!     name: "linear".into(),
//!     input: ImageShape { channels: 1, height: 28, width: 28 },
//!     initialisation: Initialisation::He,
//!     layers: vec![
//!         LayerSpec::FullyConnected(FullyConnected {
//!             name: "fc".into(),
//!             outputs: ten,
//!             initialisation: None,
//!         }),
//!         LayerSpec::SoftmaxCrossEntropy(SoftmaxCrossEntropy { name: "loss".into(), classes: ten }),
//!     ],
//! };
//! let workload = Workload::new(&spec)?;
//! assert_eq!(workload.fc_parameters(), 7850);
//! # Ok::<(), omnivore_sim::workload::WorkloadError>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Flops};

/// Bytes of one parameter or activation: single precision.
const BYTES_PER_NUMBER: u64 = 4;

/// Most operations, parameters or activations that one layer may have per image.
///
/// Far above any network that fits a machine, and low enough that no sum over the layers of a
/// network, a mini-batch included, leaves 64 bits.
const LARGEST_COUNT: u64 = 1 << 44;

/// Most layers of a network; see [`LARGEST_COUNT`].
const MOST_LAYERS: usize = 1 << 12;

/// A network as it stands in a file: the shape of its input and its layers in order.
///
/// In TOML every layer is one entry of `layers`, keyed by its kind:
///
/// ```toml
/// name = "tiny"
/// input = { channels = 1, height = 28, width = 28 }
/// initialisation = "he"
/// layers = [
///     { convolution = { name = "conv1", filters = 8, kernel = 5, stride = 2, padding = 0, groups = 1 } },
///     { relu = { name = "relu1" } },
///     { fully_connected = { name = "fc1", outputs = 10 } },
///     { softmax_cross_entropy = { name = "loss", classes = 10 } },
/// ]
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// The name under which reports and messages speak of the network.
    pub name: String,
    /// Shape of one input image.
    pub input: ImageShape,
    /// How weights start in every layer that does not say otherwise.
    pub initialisation: Initialisation,
    /// The layers from input to loss.
    pub layers: Vec<LayerSpec>,
}

/// Shape of one image: `[channels, height, width]`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageShape {
    /// Planes per image: 1 for grey, 3 for colour, the number of filters after a convolution.
    pub channels: u32,
    /// Rows of a plane.
    pub height: u32,
    /// Columns of a plane.
    pub width: u32,
}

/// How the parameters of a layer are drawn before the first update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initialisation {
    /// Weights from the normal law with mean 0 and variance `2 / fan_in`, biases 0. `fan_in` is
    /// the number of inputs of one output: `channels / groups · kernel²` or the inputs of a fully
    /// connected layer.
    ///
    /// Source: He et al., "Delving Deep into Rectifiers", arXiv:1502.01852.
    He,
    /// Weights from the normal law with mean 0 and the given standard deviation, biases constant.
    Gaussian(Gaussian),
}

/// Parameters of [`Initialisation::Gaussian`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gaussian {
    /// Standard deviation of the weights; not negative.
    pub deviation: f64,
    /// The value of every bias.
    pub bias: f64,
}

/// One layer of a network, by kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerSpec {
    /// Cross-correlation of an image with learned filters, plus a learned bias per filter.
    Convolution(Convolution),
    /// Maximum or mean over windows of each plane.
    Pooling(Pooling),
    /// `max(0, x)`, element by element.
    Relu(Relu),
    /// Normalisation over neighbouring channels.
    LocalResponseNormalisation(LocalResponseNormalisation),
    /// Zeroes random elements while training.
    Dropout(Dropout),
    /// `x · weights + biases` over the flattened input.
    FullyConnected(FullyConnected),
    /// The loss: `−ln softmax(x)[label]`, in nats. It ends the network.
    SoftmaxCrossEntropy(SoftmaxCrossEntropy),
}

/// A convolution with square filters.
///
/// Output rows: `⌊(height + 2·padding − kernel) / stride⌋ + 1`, columns alike. Weights
/// `[filters, channels / groups, kernel, kernel]`, biases `[filters]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// Name of the layer, unique in the network.
    pub name: String,
    /// Output channels.
    pub filters: NonZeroU32,
    /// Side of a filter in pixels.
    pub kernel: NonZeroU32,
    /// Pixels between the places of a filter.
    pub stride: NonZeroU32,
    /// Rows and columns of zeros added on every side.
    pub padding: u32,
    /// Parts of the channels that do not see each other; divides both channels and filters.
    pub groups: NonZeroU32,
    /// How this layer starts, when not as the network says.
    pub initialisation: Option<Initialisation>,
}

/// Pooling over square windows of each plane.
///
/// Output rows: `(height + 2·padding − kernel) / stride + 1`, the quotient rounded as `rounding`
/// says; with [`Rounding::Ceil`] a last window that would start beyond the image and its upper
/// padding is left out. Windows are cut off at the padded border; the mean divides by what is left
/// of the window, padding included.
///
/// Source: Caffe's `PoolingLayer` (rounds up), also PyTorch's `ceil_mode`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pooling {
    /// Name of the layer, unique in the network.
    pub name: String,
    /// What is taken of a window.
    pub operator: PoolingOperator,
    /// Side of a window in pixels.
    pub kernel: NonZeroU32,
    /// Pixels between windows.
    pub stride: NonZeroU32,
    /// Rows and columns added on every side; less than `kernel`. They never are a maximum, and
    /// count as 0 in a mean.
    pub padding: u32,
    /// Whether a window that does not fit as a whole is left out or cut off.
    pub rounding: Rounding,
}

/// What pooling takes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolingOperator {
    /// The largest element.
    Max,
    /// The mean of the elements.
    Average,
}

/// How the number of pooling windows is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Only whole windows, as in PyTorch by default.
    Floor,
    /// Windows cut off at the border too, as in Caffe.
    Ceil,
}

/// A rectifier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relu {
    /// Name of the layer, unique in the network.
    pub name: String,
}

/// Normalisation across channels: `y_c = x_c · (k + alpha / size · Σ x²)^(−beta)`, the sum over
/// the `size` channels around `c` that exist.
///
/// Source: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks",
/// §3.3; the division of `alpha` by `size` as in Caffe and PyTorch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalResponseNormalisation {
    /// Name of the layer, unique in the network.
    pub name: String,
    /// Channels in a sum; odd.
    pub size: NonZeroU32,
    /// Weight of the mean square; not negative.
    pub alpha: f64,
    /// Exponent.
    pub beta: f64,
    /// Offset that keeps the power away from zero; above 0.
    pub k: f64,
}

/// Inverted dropout: while training an element is 0 with `probability`, otherwise divided by
/// `1 − probability`; in evaluation nothing happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// Name of the layer, unique in the network.
    pub name: String,
    /// Probability that an element becomes 0; in `[0, 1)`.
    pub probability: f64,
}

/// A fully connected layer. Weights `[inputs, outputs]`, biases `[outputs]`; an image is flattened
/// to `channels · height · width` inputs, row-major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullyConnected {
    /// Name of the layer, unique in the network.
    pub name: String,
    /// Number of outputs.
    pub outputs: NonZeroU32,
    /// How this layer starts, when not as the network says.
    pub initialisation: Option<Initialisation>,
}

/// The loss at the end of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftmaxCrossEntropy {
    /// Name of the layer, unique in the network.
    pub name: String,
    /// Number of classes; must be what the layer before gives.
    pub classes: NonZeroU32,
}

impl LayerSpec {
    /// The name of the layer.
    pub fn name(&self) -> &str {
        match self {
            LayerSpec::Convolution(layer) => &layer.name,
            LayerSpec::Pooling(layer) => &layer.name,
            LayerSpec::Relu(layer) => &layer.name,
            LayerSpec::LocalResponseNormalisation(layer) => &layer.name,
            LayerSpec::Dropout(layer) => &layer.name,
            LayerSpec::FullyConnected(layer) => &layer.name,
            LayerSpec::SoftmaxCrossEntropy(layer) => &layer.name,
        }
    }
}

impl ImageShape {
    /// Numbers per image.
    ///
    /// Exact for every shape that [`Workload::new`] has accepted.
    pub fn elements(self) -> u64 {
        u64::from(self.channels) * u64::from(self.height) * u64::from(self.width)
    }
}

impl fmt::Display for ImageShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.channels, self.height, self.width)
    }
}

/// Why a network cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// The input has no pixels or no channels.
    #[error(
        "network `{network}`: an input of {input} (channels x height x width) is empty; every side must be at least 1"
    )]
    EmptyInput {
        /// Name of the network.
        network: String,
        /// The refused shape.
        input: ImageShape,
    },
    /// More layers than can be counted safely.
    #[error("network `{network}` has {layers} layers; at most {MOST_LAYERS} are possible")]
    TooManyLayers {
        /// Name of the network.
        network: String,
        /// Its number of layers.
        layers: usize,
    },
    /// The last layer is not a loss, or there is no layer.
    #[error(
        "network `{network}` does not end in a `softmax_cross_entropy` layer; it needs one as its last layer"
    )]
    NoLoss {
        /// Name of the network.
        network: String,
    },
    /// A loss stands before the end.
    #[error("layer `{layer}`: a loss is layer {position} of {layers}; it must be the last one")]
    LossNotLast {
        /// Name of the layer.
        layer: String,
        /// Its place, counted from 1.
        position: usize,
        /// The number of layers.
        layers: usize,
    },
    /// Two layers bear one name, so that messages and tables could not tell them apart.
    #[error("two layers are named `{layer}`; every layer needs its own name")]
    SameName {
        /// The name.
        layer: String,
    },
    /// A layer that works on images gets a plain vector.
    #[error(
        "layer `{layer}` works on images but gets {features} features of a fully connected layer; it must come before the first fully connected layer"
    )]
    NeedsImage {
        /// Name of the layer.
        layer: String,
        /// Numbers that it is given.
        features: u64,
    },
    /// A window is larger than what it slides over.
    #[error("layer `{layer}`: a kernel of {kernel} does not fit an image of {height}x{width} with padding {padding}; at most {} fits", u64::from(*height.min(width)) + 2 * u64::from(*padding))]
    KernelTooLarge {
        /// Name of the layer.
        layer: String,
        /// Side of the window.
        kernel: u32,
        /// Padding on every side.
        padding: u32,
        /// Rows of the image.
        height: u32,
        /// Columns of the image.
        width: u32,
    },
    /// A pooling window could lie in the padding as a whole.
    #[error(
        "layer `{layer}`: padding {padding} must be less than the kernel of {kernel}, or a window sees no pixel"
    )]
    PaddingTooLarge {
        /// Name of the layer.
        layer: String,
        /// Padding on every side.
        padding: u32,
        /// Side of the window.
        kernel: u32,
    },
    /// Groups of a convolution do not divide its channels or filters.
    #[error(
        "layer `{layer}`: {groups} groups cannot share {channels} input channels and {filters} filters evenly; both must be multiples of the groups"
    )]
    UnevenGroups {
        /// Name of the layer.
        layer: String,
        /// Groups of the convolution.
        groups: u32,
        /// Channels of its input.
        channels: u32,
        /// Its filters.
        filters: u32,
    },
    /// A number lies outside of the range in which the layer is defined.
    #[error("layer `{layer}`: {key} = {value} is not possible; it must be {expected}")]
    OutOfRange {
        /// Name of the layer or network.
        layer: String,
        /// The key of the number.
        key: &'static str,
        /// The refused number.
        value: f64,
        /// What would be right.
        expected: &'static str,
    },
    /// The loss counts other classes than the layer before gives.
    #[error(
        "layer `{layer}`: {classes} classes do not match the {features} outputs of the layer before; give both the same number"
    )]
    ClassesDiffer {
        /// Name of the layer.
        layer: String,
        /// Classes of the loss.
        classes: u32,
        /// Numbers that it is given.
        features: u64,
    },
    /// A count of one layer leaves the range in which everything is exact.
    #[error("layer `{layer}`: its number of {what} is {factors}, above the limit of 2^44")]
    TooLarge {
        /// Name of the layer.
        layer: String,
        /// What is counted.
        what: &'static str,
        /// The product that is too large, as text.
        factors: String,
    },
}

/// The half of a network that a layer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Layers before the first fully connected one: most computation, few parameters.
    Conv,
    /// The first fully connected layer and all after it: most parameters, little computation.
    Fc,
}

/// What one layer gives to the next, per image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationShape {
    /// Planes.
    Image(ImageShape),
    /// A plain vector of this length.
    Features(u64),
}

impl ActivationShape {
    /// Numbers per image.
    pub fn elements(self) -> u64 {
        match self {
            ActivationShape::Image(shape) => shape.elements(),
            ActivationShape::Features(features) => features,
        }
    }
}

impl fmt::Display for ActivationShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ActivationShape::Image(shape) => shape.fmt(f),
            ActivationShape::Features(features) => features.fmt(f),
        }
    }
}

/// The work of one layer on one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerWorkload {
    /// Name of the layer.
    pub name: String,
    /// The phase that it belongs to.
    pub phase: Phase,
    /// What it gives to the next layer.
    pub output: ActivationShape,
    /// Number of weights and biases.
    pub parameters: u64,
    /// Operations of the forward pass.
    pub forward_flops: Flops,
    /// Operations of the backward pass: the gradient of the weights and, where a layer before has
    /// parameters, the gradient of the input; as many again as the forward pass for each.
    pub backward_flops: Flops,
    /// Size of the output.
    pub activation_bytes: Bytes,
}

/// Sums over the layers of one phase, per image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PhaseWorkload {
    /// Number of weights and biases.
    pub parameters: u64,
    /// Operations of the forward pass.
    pub forward_flops: Flops,
    /// Operations of the backward pass.
    pub backward_flops: Flops,
    /// Size of all outputs.
    pub activation_bytes: Bytes,
}

/// Lengths of the two parts of the flat parameter vector `[conv phase | FC phase]`.
///
/// Within a part the layers follow in order, each with its weights and then its biases, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterLayout {
    /// Parameters of the conv phase, which come first.
    pub conv: usize,
    /// Parameters of the FC phase.
    pub fc: usize,
}

impl ParameterLayout {
    /// Length of the whole vector.
    pub fn total(self) -> usize {
        self.conv + self.fc
    }
}

/// What one image costs a network, layer by layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Name of the network.
    pub name: String,
    /// Shape of one input image.
    pub input: ImageShape,
    /// The layers in order.
    pub layers: Vec<LayerWorkload>,
}

impl Workload {
    /// Infers the shapes of a network and counts the work of each layer.
    ///
    /// # Errors
    /// A [`WorkloadError`] that names the first layer that cannot be computed, with its numbers.
    pub fn new(spec: &NetworkSpec) -> Result<Self, WorkloadError> {
        check_network(spec)?;
        let mut counter = Counter {
            phase: Phase::Conv,
            shape: ActivationShape::Image(spec.input),
            parameters_before: false,
        };
        let layers =
            spec.layers.iter().map(|layer| counter.layer(layer)).collect::<Result<_, _>>()?;
        Ok(Workload { name: spec.name.clone(), input: spec.input, layers })
    }

    /// Sums over the layers of one phase, per image.
    pub fn phase(&self, phase: Phase) -> PhaseWorkload {
        let mut sum = PhaseWorkload::default();
        for layer in self.layers.iter().filter(|layer| layer.phase == phase) {
            sum.parameters += layer.parameters;
            sum.forward_flops += layer.forward_flops;
            sum.backward_flops += layer.backward_flops;
            sum.activation_bytes += layer.activation_bytes;
        }
        sum
    }

    /// Number of parameters before the first fully connected layer.
    pub fn conv_parameters(&self) -> u64 {
        self.phase(Phase::Conv).parameters
    }

    /// Number of parameters from the first fully connected layer on.
    pub fn fc_parameters(&self) -> u64 {
        self.phase(Phase::Fc).parameters
    }

    /// Size of the parameters of one phase: what a whole model transfer moves.
    pub fn parameter_bytes(&self, phase: Phase) -> Bytes {
        Bytes(self.phase(phase).parameters * BYTES_PER_NUMBER)
    }

    /// Numbers per image that the conv phase gives to the FC phase.
    pub fn boundary_features(&self) -> u64 {
        let last = self.layers.iter().rfind(|layer| layer.phase == Phase::Conv);
        last.map_or(self.input.elements(), |layer| layer.output.elements())
    }

    /// Bytes per image that cross from the conv phase to the FC phase; the gradient that returns
    /// has the same size.
    pub fn boundary_bytes(&self) -> Bytes {
        Bytes(self.boundary_features() * BYTES_PER_NUMBER)
    }

    /// Classes of the loss.
    pub fn classes(&self) -> u64 {
        self.layers.last().map_or(0, |layer| layer.output.elements())
    }

    /// Where the phases lie in the flat parameter vector.
    pub fn parameter_layout(&self) -> ParameterLayout {
        let length = |phase| {
            usize::try_from(self.phase(phase).parameters)
                .expect("a network that was accepted fits the address space")
        };
        ParameterLayout { conv: length(Phase::Conv), fc: length(Phase::Fc) }
    }
}

/// Checks what concerns the network as a whole.
fn check_network(spec: &NetworkSpec) -> Result<(), WorkloadError> {
    let network = || spec.name.clone();
    let ImageShape { channels, height, width } = spec.input;
    if channels == 0 || height == 0 || width == 0 {
        return Err(WorkloadError::EmptyInput { network: network(), input: spec.input });
    }
    count(&spec.name, "input values", &[channels, height, width].map(u64::from))?;
    if spec.layers.len() > MOST_LAYERS {
        return Err(WorkloadError::TooManyLayers { network: network(), layers: spec.layers.len() });
    }
    check_initialisation(&spec.name, spec.initialisation)?;
    let mut names = BTreeSet::new();
    if let Some(twin) = spec.layers.iter().find(|layer| !names.insert(layer.name())) {
        return Err(WorkloadError::SameName { layer: twin.name().to_owned() });
    }
    let is_loss = |layer: &LayerSpec| matches!(layer, LayerSpec::SoftmaxCrossEntropy(_));
    match spec.layers.iter().position(is_loss) {
        None => Err(WorkloadError::NoLoss { network: network() }),
        Some(at) if at + 1 < spec.layers.len() => Err(WorkloadError::LossNotLast {
            layer: spec.layers[at].name().to_owned(),
            position: at + 1,
            layers: spec.layers.len(),
        }),
        Some(_) => Ok(()),
    }
}

/// Walks through the layers, with what the next one needs to know.
struct Counter {
    phase: Phase,
    shape: ActivationShape,
    /// Whether a layer before has parameters, so that gradients must flow that far.
    parameters_before: bool,
}

impl Counter {
    fn layer(&mut self, spec: &LayerSpec) -> Result<LayerWorkload, WorkloadError> {
        if matches!(spec, LayerSpec::FullyConnected(_) | LayerSpec::SoftmaxCrossEntropy(_)) {
            self.phase = Phase::Fc;
        }
        let layer = spec.name();
        let cost = match spec {
            LayerSpec::Convolution(convolution) => self.convolution(convolution)?,
            LayerSpec::Pooling(pooling) => Cost::free(self.pooling(pooling)?),
            LayerSpec::Relu(_) => Cost::free(self.shape),
            LayerSpec::LocalResponseNormalisation(normalisation) => {
                check_normalisation(normalisation)?;
                Cost::free(ActivationShape::Image(self.image(layer)?))
            }
            LayerSpec::Dropout(dropout) => {
                let probability = dropout.probability;
                Number { layer, key: "probability", value: probability }.probability_below_one()?;
                Cost::free(self.shape)
            }
            LayerSpec::FullyConnected(fully_connected) => self.fully_connected(fully_connected)?,
            LayerSpec::SoftmaxCrossEntropy(loss) => Cost::free(self.loss(loss)?),
        };
        let elements = cost.output.elements();
        let passes_back = u64::from(cost.parameters > 0) + u64::from(self.parameters_before);
        self.parameters_before |= cost.parameters > 0;
        self.shape = cost.output;
        Ok(LayerWorkload {
            name: layer.to_owned(),
            phase: self.phase,
            output: cost.output,
            parameters: cost.parameters,
            forward_flops: Flops(cost.flops),
            backward_flops: Flops(cost.flops) * passes_back,
            activation_bytes: Bytes(elements * BYTES_PER_NUMBER),
        })
    }

    /// The input as an image, which it is before the first fully connected layer.
    fn image(&self, layer: &str) -> Result<ImageShape, WorkloadError> {
        match self.shape {
            ActivationShape::Image(shape) => Ok(shape),
            ActivationShape::Features(features) => {
                Err(WorkloadError::NeedsImage { layer: layer.to_owned(), features })
            }
        }
    }

    fn convolution(&self, spec: &Convolution) -> Result<Cost, WorkloadError> {
        let input = self.image(&spec.name)?;
        let (filters, groups) = (spec.filters.get(), spec.groups.get());
        if !input.channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
            return Err(WorkloadError::UnevenGroups {
                layer: spec.name.clone(),
                groups,
                channels: input.channels,
                filters,
            });
        }
        check_layer_initialisation(&spec.name, spec.initialisation)?;
        let window = Window {
            layer: &spec.name,
            kernel: spec.kernel,
            stride: spec.stride,
            padding: spec.padding,
            rounding: Rounding::Floor,
        };
        let output = window.slide(ImageShape { channels: filters, ..input })?;
        let kernel = spec.kernel.get();
        let weights = [filters, input.channels / groups, kernel, kernel].map(u64::from);
        let n_weights = count(&spec.name, "weights", &weights)?;
        let pixels = u64::from(output.height) * u64::from(output.width);
        Ok(Cost {
            output: ActivationShape::Image(output),
            parameters: n_weights + u64::from(filters),
            flops: count(&spec.name, "operations", &[2, n_weights, pixels])?,
        })
    }

    fn pooling(&self, spec: &Pooling) -> Result<ActivationShape, WorkloadError> {
        let input = self.image(&spec.name)?;
        let kernel = spec.kernel.get();
        if spec.padding >= kernel {
            return Err(WorkloadError::PaddingTooLarge {
                layer: spec.name.clone(),
                padding: spec.padding,
                kernel,
            });
        }
        let window = Window {
            layer: &spec.name,
            kernel: spec.kernel,
            stride: spec.stride,
            padding: spec.padding,
            rounding: spec.rounding,
        };
        window.slide(input).map(ActivationShape::Image)
    }

    fn fully_connected(&self, spec: &FullyConnected) -> Result<Cost, WorkloadError> {
        check_layer_initialisation(&spec.name, spec.initialisation)?;
        let outputs = u64::from(spec.outputs.get());
        let n_weights = count(&spec.name, "weights", &[outputs, self.shape.elements()])?;
        Ok(Cost {
            output: ActivationShape::Features(outputs),
            parameters: n_weights + outputs,
            flops: count(&spec.name, "operations", &[2, n_weights])?,
        })
    }

    fn loss(&self, spec: &SoftmaxCrossEntropy) -> Result<ActivationShape, WorkloadError> {
        let (classes, features) = (spec.classes.get(), self.shape.elements());
        if u64::from(classes) != features {
            return Err(WorkloadError::ClassesDiffer {
                layer: spec.name.clone(),
                classes,
                features,
            });
        }
        Ok(ActivationShape::Features(features))
    }
}

/// What a layer adds to the counts.
struct Cost {
    output: ActivationShape,
    parameters: u64,
    flops: u64,
}

impl Cost {
    /// A layer without parameters, whose operations are not counted.
    fn free(output: ActivationShape) -> Self {
        Cost { output, parameters: 0, flops: 0 }
    }
}

/// A square window that slides over planes.
struct Window<'a> {
    layer: &'a str,
    kernel: NonZeroU32,
    stride: NonZeroU32,
    padding: u32,
    rounding: Rounding,
}

impl Window<'_> {
    /// The shape that is left of an image of this shape.
    fn slide(&self, image: ImageShape) -> Result<ImageShape, WorkloadError> {
        let (kernel, padding) = (self.kernel.get(), self.padding);
        let ImageShape { channels, height, width } = image;
        let (Some(rows), Some(columns)) = (self.places(height), self.places(width)) else {
            let layer = self.layer.to_owned();
            return Err(WorkloadError::KernelTooLarge { layer, kernel, padding, height, width });
        };
        count(self.layer, "outputs", &[u64::from(channels), rows, columns])?;
        let (height, width) = (self.side("rows", rows)?, self.side("columns", columns)?);
        Ok(ImageShape { channels, height, width })
    }

    /// A side as the shape keeps it.
    fn side(&self, what: &'static str, length: u64) -> Result<u32, WorkloadError> {
        u32::try_from(length).map_err(|_| WorkloadError::TooLarge {
            layer: self.layer.to_owned(),
            what,
            factors: length.to_string(),
        })
    }

    /// Places along a side of `length` pixels; none when the window does not fit.
    fn places(&self, length: u32) -> Option<u64> {
        let [length, kernel, stride, padding] =
            [length, self.kernel.get(), self.stride.get(), self.padding].map(u64::from);
        let room = (length + 2 * padding).checked_sub(kernel)?;
        let places = match self.rounding {
            Rounding::Floor => room / stride + 1,
            Rounding::Ceil => room.div_ceil(stride) + 1,
        };
        let starts_outside = (places - 1) * stride >= length + padding;
        Some(places - u64::from(starts_outside && self.rounding == Rounding::Ceil))
    }
}

/// The product of `factors`, refused when it is above [`LARGEST_COUNT`].
fn count(layer: &str, what: &'static str, factors: &[u64]) -> Result<u64, WorkloadError> {
    let product = factors.iter().try_fold(1_u64, |product, &factor| product.checked_mul(factor));
    product.filter(|&product| product <= LARGEST_COUNT).ok_or_else(|| WorkloadError::TooLarge {
        layer: layer.to_owned(),
        what,
        factors: factors.iter().map(u64::to_string).collect::<Vec<_>>().join(" x "),
    })
}

/// A number of a layer, to be held against the range in which the layer is defined.
struct Number<'a> {
    layer: &'a str,
    key: &'static str,
    value: f64,
}

impl Number<'_> {
    fn finite(self) -> Result<(), WorkloadError> {
        if self.value.is_finite() { Ok(()) } else { Err(self.must_be("finite")) }
    }

    fn at_least_zero(self) -> Result<(), WorkloadError> {
        if self.value.is_finite() && self.value >= 0.0 {
            return Ok(());
        }
        Err(self.must_be("finite and at least 0"))
    }

    fn above_zero(self) -> Result<(), WorkloadError> {
        if self.value.is_finite() && self.value > 0.0 {
            return Ok(());
        }
        Err(self.must_be("finite and above 0"))
    }

    fn probability_below_one(self) -> Result<(), WorkloadError> {
        if (0.0..1.0).contains(&self.value) {
            return Ok(());
        }
        Err(self.must_be("at least 0 and below 1"))
    }

    fn must_be(self, expected: &'static str) -> WorkloadError {
        let Number { layer, key, value } = self;
        WorkloadError::OutOfRange { layer: layer.to_owned(), key, value, expected }
    }
}

fn check_normalisation(spec: &LocalResponseNormalisation) -> Result<(), WorkloadError> {
    let number = |key, value| Number { layer: &spec.name, key, value };
    if spec.size.get().is_multiple_of(2) {
        return Err(number("size", f64::from(spec.size.get())).must_be("odd"));
    }
    number("alpha", spec.alpha).at_least_zero()?;
    number("beta", spec.beta).finite()?;
    number("k", spec.k).above_zero()
}

fn check_layer_initialisation(
    layer: &str,
    initialisation: Option<Initialisation>,
) -> Result<(), WorkloadError> {
    initialisation.map_or(Ok(()), |initialisation| check_initialisation(layer, initialisation))
}

fn check_initialisation(layer: &str, initialisation: Initialisation) -> Result<(), WorkloadError> {
    let Initialisation::Gaussian(Gaussian { deviation, bias }) = initialisation else {
        return Ok(());
    };
    Number { layer, key: "deviation", value: deviation }.at_least_zero()?;
    Number { layer, key: "bias", value: bias }.finite()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at_least_one(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).expect("a test gives numbers above zero")
    }

    fn convolution(name: &str, filters: u32, kernel: u32) -> Convolution {
        Convolution {
            name: name.to_owned(),
            filters: at_least_one(filters),
            kernel: at_least_one(kernel),
            stride: at_least_one(1),
            padding: 0,
            groups: at_least_one(1),
            initialisation: None,
        }
    }

    fn pooling(kernel: u32, stride: u32, padding: u32, rounding: Rounding) -> Pooling {
        Pooling {
            name: "pool".to_owned(),
            operator: PoolingOperator::Max,
            kernel: at_least_one(kernel),
            stride: at_least_one(stride),
            padding,
            rounding,
        }
    }

    fn fully_connected(name: &str, outputs: u32) -> LayerSpec {
        LayerSpec::FullyConnected(FullyConnected {
            name: name.to_owned(),
            outputs: at_least_one(outputs),
            initialisation: None,
        })
    }

    fn relu(name: &str) -> LayerSpec {
        LayerSpec::Relu(Relu { name: name.to_owned() })
    }

    fn loss(classes: u32) -> LayerSpec {
        let classes = at_least_one(classes);
        LayerSpec::SoftmaxCrossEntropy(SoftmaxCrossEntropy { name: "loss".to_owned(), classes })
    }

    fn network(input: [u32; 3], layers: Vec<LayerSpec>) -> NetworkSpec {
        let [channels, height, width] = input;
        NetworkSpec {
            name: "net".to_owned(),
            input: ImageShape { channels, height, width },
            initialisation: Initialisation::He,
            layers,
        }
    }

    /// The network of 20,522 parameters that the shared experiments use.
    fn small_cnn() -> NetworkSpec {
        let strided = Convolution { stride: at_least_one(2), ..convolution("conv1", 8, 5) };
        network(
            [1, 28, 28],
            vec![
                LayerSpec::Convolution(strided),
                relu("relu1"),
                LayerSpec::Convolution(convolution("conv2", 16, 5)),
                relu("relu2"),
                LayerSpec::Pooling(pooling(2, 2, 0, Rounding::Floor)),
                fully_connected("fc1", 64),
                relu("relu3"),
                fully_connected("fc2", 10),
                loss(10),
            ],
        )
    }

    fn refused(spec: &NetworkSpec) -> String {
        Workload::new(spec).expect_err("this network cannot be computed").to_string()
    }

    #[test]
    fn counts_of_the_small_network_are_those_worked_out_by_hand() {
        let workload = Workload::new(&small_cnn()).expect("the network can be computed");
        let parameters: Vec<u64> = workload.layers.iter().map(|layer| layer.parameters).collect();
        assert_eq!(parameters, [208, 0, 3216, 0, 0, 16_448, 0, 650, 0]);
        assert_eq!(workload.parameter_layout(), ParameterLayout { conv: 3424, fc: 17_098 });
        assert_eq!(workload.boundary_features(), 16 * 4 * 4);
        assert_eq!(workload.boundary_bytes(), Bytes(1024));
        assert_eq!(workload.classes(), 10);
        let conv = workload.phase(Phase::Conv);
        assert_eq!(conv.forward_flops, Flops(2 * (12 * 12 * 8 * 25 + 8 * 8 * 16 * 200)));
        assert_eq!(workload.phase(Phase::Fc).forward_flops, Flops(2 * (256 * 64 + 64 * 10)));
    }

    #[test]
    fn only_the_first_layer_with_parameters_does_without_a_data_gradient() {
        let workload = Workload::new(&small_cnn()).expect("the network can be computed");
        let passes: Vec<u64> = workload
            .layers
            .iter()
            .filter(|layer| layer.parameters > 0)
            .map(|layer| layer.backward_flops.0 / layer.forward_flops.0)
            .collect();
        assert_eq!(passes, [1, 2, 2, 2]);
    }

    #[test]
    fn groups_divide_weights_and_operations_but_not_biases() {
        let whole = convolution("conv", 8, 3);
        let halves = Convolution { groups: at_least_one(2), ..whole.clone() };
        let cost = |layer: Convolution| {
            let spec = network(
                [4, 9, 9],
                vec![LayerSpec::Convolution(layer), fully_connected("fc", 2), loss(2)],
            );
            Workload::new(&spec).expect("the network can be computed").layers[0].clone()
        };
        let (whole, halves) = (cost(whole), cost(halves));
        assert_eq!(whole.parameters, 4 * 8 * 9 + 8);
        assert_eq!(halves.parameters, 4 * 8 * 9 / 2 + 8);
        assert_eq!(whole.forward_flops, halves.forward_flops * 2);
    }

    #[test]
    fn pooling_rounds_as_it_is_told_and_drops_a_window_that_starts_outside() {
        let places = |length, pooling: Pooling| {
            let spec = network(
                [1, length, length],
                vec![LayerSpec::Pooling(pooling), fully_connected("fc", 2), loss(2)],
            );
            let workload = Workload::new(&spec).expect("the network can be computed");
            match workload.layers[0].output {
                ActivationShape::Image(shape) => shape.height,
                ActivationShape::Features(_) => panic!("pooling gives an image"),
            }
        };
        // The three pooling layers of Caffe's CIFAR-10 quick: 32, 16, 8, 4.
        assert_eq!(places(32, pooling(3, 2, 0, Rounding::Ceil)), 16);
        assert_eq!(places(32, pooling(3, 2, 0, Rounding::Floor)), 15);
        assert_eq!(places(8, pooling(3, 2, 0, Rounding::Ceil)), 4);
        assert_eq!(places(55, pooling(3, 2, 0, Rounding::Ceil)), 27);
        // A third window would start at 6, beyond the last pixel.
        assert_eq!(places(5, pooling(1, 3, 0, Rounding::Ceil)), 2);
        // A fourth window would start at 6 − 1 = 5 of 5 pixels and one of padding: in the padding.
        assert_eq!(places(5, pooling(2, 2, 1, Rounding::Ceil)), 3);
    }

    #[test]
    fn a_network_without_conv_layers_gives_its_images_to_the_fc_phase() {
        let spec = network([3, 2, 2], vec![fully_connected("fc", 5), loss(5)]);
        let workload = Workload::new(&spec).expect("the network can be computed");
        assert_eq!(workload.parameter_layout(), ParameterLayout { conv: 0, fc: 65 });
        assert_eq!(workload.boundary_features(), 12);
        assert_eq!(workload.phase(Phase::Fc).backward_flops, Flops(120));
    }

    #[test]
    fn a_convolutional_layer_that_does_not_fit_is_refused_with_its_numbers() {
        let mut spec = small_cnn();
        spec.input.height = 4;
        assert_eq!(
            refused(&spec),
            "layer `conv1`: a kernel of 5 does not fit an image of 4x28 with padding 0; \
             at most 4 fits"
        );
        let uneven = Convolution { groups: at_least_one(3), ..convolution("conv2", 16, 5) };
        spec = small_cnn();
        spec.layers[2] = LayerSpec::Convolution(uneven);
        assert_eq!(
            refused(&spec),
            "layer `conv2`: 3 groups cannot share 8 input channels and 16 filters evenly; \
             both must be multiples of the groups"
        );
        spec = small_cnn();
        spec.layers.insert(6, LayerSpec::Pooling(pooling(2, 2, 0, Rounding::Floor)));
        spec.layers.remove(4);
        assert_eq!(
            refused(&spec),
            "layer `pool` works on images but gets 64 features of a fully connected layer; \
             it must come before the first fully connected layer"
        );
        spec = small_cnn();
        spec.layers[4] = LayerSpec::Pooling(pooling(2, 2, 2, Rounding::Floor));
        assert_eq!(
            refused(&spec),
            "layer `pool`: padding 2 must be less than the kernel of 2, or a window sees no pixel"
        );
    }

    #[test]
    fn a_loss_that_is_missing_misplaced_or_of_another_size_is_refused() {
        let mut spec = small_cnn();
        spec.layers.pop();
        assert_eq!(
            refused(&spec),
            "network `net` does not end in a `softmax_cross_entropy` layer; \
             it needs one as its last layer"
        );
        spec.layers.insert(0, loss(10));
        assert_eq!(refused(&spec), "layer `loss`: a loss is layer 1 of 9; it must be the last one");
        spec = small_cnn();
        *spec.layers.last_mut().expect("there are layers") = loss(100);
        assert_eq!(
            refused(&spec),
            "layer `loss`: 100 classes do not match the 10 outputs of the layer before; \
             give both the same number"
        );
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused_with_layer_key_and_value() {
        let with = |layer| network([1, 4, 4], vec![layer, fully_connected("fc", 2), loss(2)]);
        let dropout = |probability| {
            with(LayerSpec::Dropout(Dropout { name: "drop".to_owned(), probability }))
        };
        let message = "layer `drop`: probability = 1 is not possible; \
                       it must be at least 0 and below 1";
        assert_eq!(refused(&dropout(1.0)), message);
        assert!(refused(&dropout(f64::NAN)).contains("NaN"));
        let normalisation = |size, k| {
            with(LayerSpec::LocalResponseNormalisation(LocalResponseNormalisation {
                name: "norm".to_owned(),
                size: at_least_one(size),
                alpha: 1e-4,
                beta: 0.75,
                k,
            }))
        };
        assert!(refused(&normalisation(4, 1.0)).contains("size = 4"));
        assert!(refused(&normalisation(5, 0.0)).contains("k = 0"));
        let deviation = Initialisation::Gaussian(Gaussian { deviation: -1.0, bias: 0.0 });
        let wide = Convolution { initialisation: Some(deviation), ..convolution("conv", 2, 3) };
        assert!(refused(&with(LayerSpec::Convolution(wide))).contains("deviation = -1"));
    }

    #[test]
    fn two_layers_of_one_name_and_an_empty_input_are_refused() {
        let mut spec = small_cnn();
        spec.layers[1] = relu("relu2");
        assert_eq!(refused(&spec), "two layers are named `relu2`; every layer needs its own name");
        assert!(refused(&network([1, 0, 4], vec![loss(1)])).contains("1x0x4"));
    }

    #[test]
    fn counts_beyond_the_exact_range_are_refused_instead_of_wrapping() {
        let huge = [fully_connected("fc1", u32::MAX), fully_connected("fc2", u32::MAX)];
        let spec = network([1, 1, 1], [&huge[..], &[loss(u32::MAX)]].concat());
        assert_eq!(
            refused(&spec),
            "layer `fc2`: its number of weights is 4294967295 x 4294967295, \
             above the limit of 2^44"
        );
        let padded = Convolution { padding: u32::MAX, ..convolution("conv", 1, 1) };
        let spec = network([1, 1, 1], vec![LayerSpec::Convolution(padded), loss(1)]);
        assert!(refused(&spec).contains("above the limit"), "{}", refused(&spec));
    }

    proptest! {
        /// A window is inside the padded image when rounded down; when rounded up, every pixel
        /// that some window could cover is covered and no window lies outside.
        #[test]
        fn windows_cover_what_their_rounding_promises(
            length in 1_u32..40, kernel in 1_u32..8, stride in 1_u32..8, padding in 0_u32..8,
        ) {
            prop_assume!(padding < kernel && kernel <= length + 2 * padding);
            let window = |rounding| Window {
                layer: "pool",
                kernel: at_least_one(kernel),
                stride: at_least_one(stride),
                padding,
                rounding,
            };
            let [stride, kernel] = [stride, kernel].map(u64::from);
            let padded = u64::from(length + 2 * padding);
            let floor = window(Rounding::Floor).places(length).expect("the kernel fits");
            prop_assert!((floor - 1) * stride + kernel <= padded);
            prop_assert!(floor * stride + kernel > padded);
            let ceil = window(Rounding::Ceil).places(length).expect("the kernel fits");
            prop_assert!(ceil == floor || ceil == floor + 1);
            // The last window starts on a pixel or in the upper padding.
            prop_assert!(ceil == 1 || (ceil - 1) * stride < u64::from(length + padding));
            // Another window would start outside, or what is there already reaches the end.
            let reaches_the_end = (ceil - 1) * stride + kernel >= padded;
            prop_assert!(reaches_the_end || ceil * stride >= u64::from(length + padding));
        }

        /// The totals are sums over the layers, and the phases share out the whole network.
        #[test]
        fn phases_share_out_all_layers(hidden in 1_u32..50, filters in 1_u32..9, kernel in 1_u32..7) {
            let spec = network(
                [2, 7, 6],
                vec![
                    LayerSpec::Convolution(convolution("conv", filters, kernel.min(6))),
                    relu("relu"),
                    fully_connected("fc1", hidden),
                    fully_connected("fc2", 3),
                    loss(3),
                ],
            );
            let workload = Workload::new(&spec).expect("the network can be computed");
            let (conv, fc) = (workload.phase(Phase::Conv), workload.phase(Phase::Fc));
            let parameters: u64 = workload.layers.iter().map(|layer| layer.parameters).sum();
            prop_assert_eq!(conv.parameters + fc.parameters, parameters);
            let forward: Flops = workload.layers.iter().map(|layer| layer.forward_flops).sum();
            prop_assert_eq!(conv.forward_flops + fc.forward_flops, forward);
            let length = u64::try_from(workload.parameter_layout().total()).expect("it fits");
            prop_assert_eq!(length, parameters);
            prop_assert_eq!(workload.parameter_bytes(Phase::Conv), Bytes(4 * conv.parameters));
        }
    }
}
