//! Why a kernel refuses its arguments.

use super::{Instructions, MixedPath};

/// A shape, slice or method that a kernel cannot work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A size that must be at least 1 is 0.
    #[error("{shape}: {name} is 0, it must be at least 1")]
    ZeroSize {
        /// The whole shape.
        shape: String,
        /// Which size is 0.
        name: &'static str,
    },
    /// The groups do not divide the channels or the filters.
    #[error("{shape}: {size} {name} do not divide evenly into {groups} groups")]
    UnevenGroups {
        /// The whole shape.
        shape: String,
        /// Channels or filters.
        name: &'static str,
        /// How many there are.
        size: usize,
        /// Into how many groups they would have to go.
        groups: usize,
    },
    /// The kernel or pooling window exceeds the padded image.
    #[error("{shape}: a window {axis} of {kernel} exceeds the padded image's {padded}")]
    KernelTooLarge {
        /// The whole shape.
        shape: String,
        /// Height or width.
        axis: &'static str,
        /// Extent of the window.
        kernel: usize,
        /// Extent of the image with its padding.
        padded: usize,
    },
    /// Pooling padding as large as the window, so that a window could lie outside the image.
    #[error("{shape}: padding {padding} must be smaller than the window's {kernel}")]
    PaddingTooLarge {
        /// The whole shape.
        shape: String,
        /// Zeros on each side.
        padding: usize,
        /// Smaller extent of the window.
        kernel: usize,
    },
    /// Normalisation over an even number of channels.
    #[error("{shape}: size {size} has no middle, choose an odd one")]
    EvenSize {
        /// The whole shape.
        shape: String,
        /// The size.
        size: usize,
    },
    /// The arrays could not be addressed.
    #[error("{shape}: the arrays exceed the address space")]
    TooLarge {
        /// The whole shape.
        shape: String,
    },
    /// A slice does not hold what the shape says.
    #[error("{shape}: {slice} has {actual} elements, the shape needs {expected}")]
    WrongLength {
        /// The whole shape.
        shape: String,
        /// Which argument.
        slice: &'static str,
        /// Its length.
        actual: usize,
        /// The length that the shape asks for.
        expected: usize,
    },
    /// Materialised lowering of no image or of more images than there are.
    #[error("{shape}: cannot lower {images_at_once} images at once, choose 1 to {batch}")]
    ImagesAtOnce {
        /// The whole shape.
        shape: String,
        /// What was asked for.
        images_at_once: usize,
        /// Images in the mini-batch.
        batch: usize,
    },
    /// An instruction set was forced that this processor lacks.
    #[error("this processor has no {wanted} instructions, the best it offers is {best}")]
    MissingInstructions {
        /// What was asked for.
        wanted: Instructions,
        /// What run-time detection found.
        best: Instructions,
    },
    /// A path of mixed precision was forced that this processor lacks.
    #[error(
        "this processor has no instructions for the bf16 path `{}`; it has {available}",
        wanted.word()
    )]
    MissingMixedPath {
        /// What was asked for.
        wanted: MixedPath,
        /// The words of those that there are.
        available: String,
    },
    /// No path of mixed precision is called so.
    #[error("`{word}` is no bf16 path; possible are {possible}")]
    UnknownMixedPath {
        /// What was asked for.
        word: String,
        /// All words.
        possible: String,
    },
}
