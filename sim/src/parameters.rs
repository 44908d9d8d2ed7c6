//! Parameters and gradients as flat vectors, one for each phase of a network.

/// Parameters of both phases, possibly of different age.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// Parameters of the conv phase.
    pub conv: &'a [f32],
    /// Parameters of the FC phase.
    pub fc: &'a [f32],
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
