//! Convolution, fully-connected layers, pooling and normalisation in `f32` on the CPU, on plain
//! row-major slices.
//!
//! A convolution becomes matrix products by *lowering* ([`Lowering`]). The default packs blocks
//! straight from the image; lowering `b_p` whole images into memory, as arXiv:1606.04487 does, can
//! be chosen instead. Vector instructions are found at run time ([`Instructions`]).
//!
//! In *mixed precision* factors are rounded to bf16 ([`Arithmetic`]); products and sums stay `f32`,
//! and so does all that goes in and comes out.
//!
//! The kernels run on the current rayon pool and cut their work by shape, never by the number of
//! threads, so a result has the same bits on any number of them.
//!
//! Invariants: within `kernels` only `microkernel` has unsafe code; no kernel allocates in a warm loop more than
//! lists of offsets; nothing panics on a shape that its constructor accepted.

mod bf16;
pub mod burn_op;
mod convolution;
mod elementwise;
mod error;
mod fully_connected;
mod lowered;
mod matrix;
mod microkernel;
mod normalisation;
mod packed;
mod packing;
mod parallel;
mod pooling;
mod reduction;
mod scratch;
mod shape;
mod staging;
mod winograd;

#[cfg(test)]
mod tests;

pub use bf16::{Arithmetic, MixedPath};
pub use convolution::{Lowering, backward_data, backward_weights, forward};
pub use error::KernelError;
pub use fully_connected::{
    FullyConnectedShape, fully_connected, fully_connected_backward_data,
    fully_connected_backward_weights,
};
pub use matrix::matrix_product;
pub use microkernel::{Instructions, bf16_products_in_registers, multiply_add_in_registers};
pub use normalisation::{Normalisation, normalise, normalise_backward};
pub use pooling::{
    PoolingShape, PoolingSizes, Rounding, average_pooling, average_pooling_backward, max_pooling,
    max_pooling_backward,
};
pub use scratch::{release_scratch, scratch_bytes};
pub use shape::{ConvolutionShape, ConvolutionSizes};
