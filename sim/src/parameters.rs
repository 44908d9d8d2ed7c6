//! Parameters and gradients as flat vectors, one for each phase of a network.

use std::ops::Range;

/// Parameters of both phases, possibly of different age.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// Parameters of the conv phase.
    pub conv: &'a [f32],
    /// Parameters of the FC phase.
    pub fc: &'a [f32],
}

/// Which units the entries of one tensor connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Its place in the vector `[conv phase | FC phase]`.
    pub range: Range<usize>,
    /// The hidden units that an entry leads to, where they are hidden.
    pub to: Option<Axis>,
    /// The hidden units that an entry comes from, where it comes from any.
    pub from: Option<Axis>,
}

/// The units of one layer along one axis of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Hidden layers are counted from 0.
    pub layer: u32,
    /// Number of units: neurons, or channels of a convolution.
    pub units: usize,
    /// Entries from one unit to the next.
    pub stride: usize,
}

impl Axis {
    /// The unit of an entry, counted from the beginning of its tensor.
    pub fn unit_of(&self, entry: usize) -> usize {
        entry / self.stride % self.units
    }
}

/// A gradient of both phases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradient {
    /// One entry per conv-phase parameter.
    pub conv: Vec<f32>,
    /// One entry per FC-phase parameter.
    pub fc: Vec<f32>,
}

/// Parameters of both phases to start from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InitialModel {
    /// Parameters of the conv phase.
    pub conv: Vec<f32>,
    /// Parameters of the FC phase.
    pub fc: Vec<f32>,
}
