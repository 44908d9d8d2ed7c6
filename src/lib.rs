//! Plans, predicts and verifies distributed stochastic gradient descent.
pub mod data;
pub mod devices;
pub mod kernels;
pub mod models;
pub mod runtime;
