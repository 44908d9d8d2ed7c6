//! Vectors with an entry per parameter.

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
