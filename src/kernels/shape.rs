//! Shapes of convolutions, checked once so that the kernels need not check again.

use std::fmt;

use super::KernelError;

/// The numbers that describe a convolution, not yet checked.
///
/// Images are `batch × channels × height × width`, filters are
/// `filters × channels/groups × kernel_height × kernel_width`, both row-major.
/// Stride and padding are the same along both axes; padding adds zeros on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionSizes {
    /// Images in the mini-batch.
    pub batch: usize,
    /// Channels of one image, over all groups.
    pub channels: usize,
    /// Rows of one image.
    pub height: usize,
    /// Columns of one image.
    pub width: usize,
    /// Filters, over all groups; the channels of the output.
    pub filters: usize,
    /// Rows of one filter.
    pub kernel_height: usize,
    /// Columns of one filter.
    pub kernel_width: usize,
    /// Distance between neighbouring positions of a filter.
    pub stride: usize,
    /// Rows and columns of zeros added on each side of an image.
    pub padding: usize,
    /// Independent convolutions side by side; 1 is the ordinary convolution.
    pub groups: usize,
}

impl fmt::Display for ConvolutionSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}x{}x{}x{} images with {} filters of {}x{}, stride {}, padding {}, groups {}",
            self.batch,
            self.channels,
            self.height,
            self.width,
            self.filters,
            self.kernel_height,
            self.kernel_width,
            self.stride,
            self.padding,
            self.groups
        )
    }
}

/// A convolution whose sizes fit together.
///
/// The output is `batch × filters × output_height × output_width` with
/// `output_height = ⌊(height + 2·padding − kernel_height) / stride⌋ + 1`, and likewise for the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionShape {
    sizes: ConvolutionSizes,
    output_height: usize,
    output_width: usize,
}

impl ConvolutionShape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// A size that is 0 (padding may be), groups that divide neither channels nor filters, a kernel
    /// larger than the padded image, or arrays too long to address. The error names the shape.
    pub fn new(sizes: ConvolutionSizes) -> Result<Self, KernelError> {
        let shape = || sizes.to_string();
        for (size, name) in [
            (sizes.batch, "batch"),
            (sizes.channels, "channels"),
            (sizes.height, "height"),
            (sizes.width, "width"),
            (sizes.filters, "filters"),
            (sizes.kernel_height, "kernel height"),
            (sizes.kernel_width, "kernel width"),
            (sizes.stride, "stride"),
            (sizes.groups, "groups"),
        ] {
            if size == 0 {
                let shape = shape();
                return Err(KernelError::ZeroSize { shape, name });
            }
        }
        for (size, name) in [(sizes.channels, "channels"), (sizes.filters, "filters")] {
            if size % sizes.groups != 0 {
                let groups = sizes.groups;
                let shape = shape();
                return Err(KernelError::UnevenGroups { shape, name, size, groups });
            }
        }
        check_addressable(&sizes).ok_or_else(|| KernelError::TooLarge { shape: shape() })?;
        let extent = |image: usize, kernel: usize, axis: &'static str| {
            let padded = image + 2 * sizes.padding;
            if kernel > padded {
                let shape = shape();
                return Err(KernelError::KernelTooLarge { shape, axis, kernel, padded });
            }
            Ok((padded - kernel) / sizes.stride + 1)
        };
        let output_height = extent(sizes.height, sizes.kernel_height, "height")?;
        let output_width = extent(sizes.width, sizes.kernel_width, "width")?;
        Ok(Self { sizes, output_height, output_width })
    }

    /// The shape of other sizes with the same output planes, none of them larger than its own.
    pub(super) fn with_sizes(&self, sizes: ConvolutionSizes) -> Self {
        Self { sizes, ..*self }
    }

    /// The sizes this shape was made from.
    pub fn sizes(&self) -> ConvolutionSizes {
        self.sizes
    }

    /// Rows of one output plane.
    pub fn output_height(&self) -> usize {
        self.output_height
    }

    /// Columns of one output plane.
    pub fn output_width(&self) -> usize {
        self.output_width
    }

    /// Elements of the mini-batch of images.
    pub fn input_len(&self) -> usize {
        self.sizes.batch * self.sizes.channels * self.image_pixels()
    }

    /// Elements of the filters.
    pub fn weights_len(&self) -> usize {
        self.sizes.filters * self.depth()
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.sizes.batch * self.sizes.filters * self.output_pixels()
    }

    /// Floating-point operations of one pass, a multiply-add counted as two.
    ///
    /// All three passes have the same count: `2 · output_len · channels/groups · kernel pixels`.
    pub fn flops(&self) -> u64 {
        2 * self.output_len() as u64 * self.depth() as u64
    }

    pub(super) fn image_pixels(&self) -> usize {
        self.sizes.height * self.sizes.width
    }

    pub(super) fn output_pixels(&self) -> usize {
        self.output_height * self.output_width
    }

    pub(super) fn kernel_pixels(&self) -> usize {
        self.sizes.kernel_height * self.sizes.kernel_width
    }

    pub(super) fn group_channels(&self) -> usize {
        self.sizes.channels / self.sizes.groups
    }

    pub(super) fn group_filters(&self) -> usize {
        self.sizes.filters / self.sizes.groups
    }

    /// Products summed into one output element: channels of a group times kernel pixels.
    pub(super) fn depth(&self) -> usize {
        self.group_channels() * self.kernel_pixels()
    }

    pub(super) fn check_len(
        &self,
        slice: &'static str,
        actual: usize,
        expected: usize,
    ) -> Result<(), KernelError> {
        if actual == expected {
            return Ok(());
        }
        Err(KernelError::WrongLength { shape: self.sizes.to_string(), slice, actual, expected })
    }
}

/// `None` if an array, padded or lowered for one image, has more bytes than a pointer can span.
fn check_addressable(sizes: &ConvolutionSizes) -> Option<()> {
    let doubled = sizes.padding.checked_mul(2)?;
    let rows = sizes.height.checked_add(doubled)?;
    let columns = sizes.width.checked_add(doubled)?;
    let pixels = rows.checked_mul(columns)?;
    let images = sizes.batch.checked_mul(sizes.channels.max(sizes.filters))?.checked_mul(pixels)?;
    let kernel = sizes.kernel_height.checked_mul(sizes.kernel_width)?;
    let depth = sizes.channels.checked_mul(kernel)?;
    let weights = sizes.filters.checked_mul(depth)?;
    let lowered = depth.checked_mul(pixels)?;
    // A lane of slack for every element covers the vector-wide buffers of the kernels.
    let limit = isize::MAX as usize / (64 * size_of::<f32>());
    (images.max(weights).max(lowered) <= limit).then_some(())
}
