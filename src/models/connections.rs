//! Which hidden units each tensor of a network connects.

use omnivore_sim::objective::{Axis, Connections};
use omnivore_sim::workload::{LayerSpec, NetworkSpec};

use super::ParameterTensor;

/// The connections of every tensor, in the order of the tensors: of each layer with parameters its
/// weights, then its biases.
pub(super) fn of(spec: &NetworkSpec, tensors: &[ParameterTensor]) -> Vec<Connections> {
    let layers = spec.layers.iter().filter_map(|layer| match layer {
        LayerSpec::Convolution(convolution) => {
            Some(Kind::Convolution { groups: convolution.groups.get() })
        }
        LayerSpec::FullyConnected(_) => Some(Kind::FullyConnected),
        _ => None,
    });
    let n_layers = tensors.len() / 2;
    let mut before: Option<(u32, usize)> = None;
    let mut connections = Vec::new();
    for ((kind, pair), layer) in layers.zip(tensors.chunks_exact(2)).zip(0..) {
        let units = pair[1].range.len();
        let hidden = connections.len() / 2 + 1 < n_layers;
        let axis = |stride| hidden.then_some(Axis { layer, units, stride });
        let (to, from) = match kind {
            Kind::Convolution { groups } => {
                let per_filter: usize = pair[0].shape[1..].iter().product();
                let per_channel: usize = pair[0].shape[2..].iter().product();
                let whole = before.filter(|_| groups == 1);
                (axis(per_filter), whole.map(|(layer, units)| source(layer, units, per_channel)))
            }
            Kind::FullyConnected => {
                // Row-major [input, output]; the inputs of a channel follow each other.
                let inputs = pair[0].shape[0];
                let from = before
                    .map(|(layer, channels)| source(layer, channels, inputs / channels * units));
                (axis(1), from)
            }
        };
        connections.push(Connections { range: pair[0].range.clone(), to, from });
        connections.push(Connections { range: pair[1].range.clone(), to: axis(1), from: None });
        before = Some((layer, units));
    }
    connections
}

enum Kind {
    Convolution { groups: u32 },
    FullyConnected,
}

fn source(layer: u32, units: usize, stride: usize) -> Axis {
    Axis { layer, units, stride }
}
