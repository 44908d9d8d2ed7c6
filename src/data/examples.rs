//! Images with their labels, as bytes.

use std::fmt;
use std::sync::Arc;

use flate2::Crc;

use super::{DataError, Normalisation};

/// The shape of one image: `[channels, height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// 1 for grey, 3 for red, green, blue.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl ImageShape {
    /// Values in one image: channels · height · width.
    pub fn values(self) -> usize {
        self.channels * self.values_per_channel()
    }

    /// Values in one channel of an image: height · width.
    pub fn values_per_channel(self) -> usize {
        self.height * self.width
    }
}

impl fmt::Display for ImageShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}×{}", self.channels, self.height, self.width)
    }
}

/// Images and their labels; a clone shares the bytes.
///
/// Pixels are bytes in `[example, channel, row, column]`, row-major; labels
/// are class numbers from 0.
#[derive(Clone, PartialEq, Eq)]
pub struct Examples {
    shape: ImageShape,
    pixels: Arc<[u8]>,
    labels: Arc<[u8]>,
}

impl Examples {
    /// One image of `shape` per label.
    ///
    /// # Errors
    /// [`DataError::PixelCount`] when there are more or fewer pixel values.
    pub fn new(
        shape: ImageShape,
        pixels: impl Into<Arc<[u8]>>,
        labels: impl Into<Arc<[u8]>>,
    ) -> Result<Examples, DataError> {
        let (pixels, labels) = (pixels.into(), labels.into());
        let expected = [shape.channels, shape.height, shape.width, labels.len()]
            .into_iter()
            .try_fold(1_u128, |product, side| product.checked_mul(side as u128))
            .unwrap_or(u128::MAX);
        if pixels.len() as u128 != expected {
            return Err(DataError::PixelCount {
                pixels: pixels.len(),
                labels: labels.len(),
                shape,
                expected,
            });
        }
        Ok(Examples { shape, pixels, labels })
    }

    /// No examples, of images that would have `shape`.
    pub fn none(shape: ImageShape) -> Examples {
        Examples { shape, pixels: Arc::new([]), labels: Arc::new([]) }
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The shape that every image has.
    pub fn shape(&self) -> ImageShape {
        self.shape
    }

    /// All pixels, `[example, channel, row, column]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// All labels, in the order of the images.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The pixels of one image, `[channel, row, column]`.
    ///
    /// # Panics
    /// When `example_idx` is not below [`len`](Examples::len).
    pub fn image(&self, example_idx: usize) -> &[u8] {
        let values = self.shape.values();
        &self.pixels[example_idx * values..][..values]
    }

    /// The class of one image.
    ///
    /// # Panics
    /// When `example_idx` is not below [`len`](Examples::len).
    pub fn label(&self, example_idx: usize) -> u8 {
        self.labels[example_idx]
    }

    /// Writes the images `example_indices`, normalised, into
    /// `out [batch, channels, height, width]`, row-major.
    ///
    /// # Panics
    /// When `out` does not hold exactly one image per index, when an index is
    /// not below [`len`](Examples::len), or when `normalisation` is of another
    /// number of channels.
    pub fn write_batch(
        &self,
        normalisation: &Normalisation,
        example_indices: &[usize],
        out: &mut [f32],
    ) {
        let values = self.shape.values();
        assert_eq!(
            out.len(),
            example_indices.len() * values,
            "the output holds one image per index"
        );
        for (image_idx, &example_idx) in example_indices.iter().enumerate() {
            let written = &mut out[image_idx * values..][..values];
            normalisation.apply(self.shape, self.image(example_idx), written);
        }
    }

    /// CRC-32 (that of gzip) over the pixels and then the labels: names the
    /// content in a run's record, so that two runs can be told to have seen
    /// the same data.
    pub fn checksum(&self) -> u32 {
        let mut crc = Crc::new();
        crc.update(&self.pixels);
        crc.update(&self.labels);
        crc.sum()
    }

    /// The examples `example_indices`, copied in that order.
    ///
    /// # Panics
    /// When an index is not below [`len`](Examples::len).
    pub fn select(&self, example_indices: &[usize]) -> Examples {
        let mut pixels = Vec::with_capacity(example_indices.len() * self.shape.values());
        let mut labels = Vec::with_capacity(example_indices.len());
        for &example_idx in example_indices {
            pixels.extend_from_slice(self.image(example_idx));
            labels.push(self.label(example_idx));
        }
        Examples { shape: self.shape, pixels: pixels.into(), labels: labels.into() }
    }
}

/// Without the pixels, which would fill many screens.
impl fmt::Debug for Examples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Examples")
            .field("shape", &self.shape)
            .field("len", &self.len())
            .field("checksum", &format_args!("{:#010x}", self.checksum()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape { channels: 2, height: 1, width: 2 };

    fn three_examples() -> Examples {
        Examples::new(SHAPE, (0..12).collect::<Vec<u8>>(), vec![7, 8, 9]).unwrap()
    }

    #[test]
    fn an_image_and_its_label_are_found_by_index() {
        let examples = three_examples();

        assert_eq!(examples.image(1), [4, 5, 6, 7]);
        assert_eq!(examples.label(1), 8);
        assert_eq!(examples.len(), 3);
    }

    #[test]
    fn pixels_that_do_not_make_one_image_per_label_are_refused_with_all_numbers() {
        let error = Examples::new(SHAPE, vec![0; 11], vec![7, 8, 9]).unwrap_err();

        assert_eq!(
            error.to_string(),
            "11 pixel values do not make 3 images of 2×1×2 (channels×height×width), which need 12"
        );
    }

    #[test]
    fn a_shape_too_large_to_multiply_out_is_refused() {
        let shape = ImageShape { channels: usize::MAX, height: usize::MAX, width: usize::MAX };

        let error = Examples::new(shape, vec![0; 11], vec![7, 8, 9]).unwrap_err();

        assert!(matches!(error, DataError::PixelCount { .. }));
    }

    #[test]
    fn a_batch_holds_the_named_images_in_the_named_order_normalised_per_channel() {
        let normalisation = Normalisation::new(&[(0.0, 1.0), (0.5, 2.0)]).unwrap();
        let mut batch = [f32::NAN; 8];

        three_examples().write_batch(&normalisation, &[2, 0], &mut batch);

        let first = |byte: f32| byte / 255.0;
        let second = |byte: f32| (byte / 255.0 - 0.5) / 2.0;
        let expected = [
            first(8.0),
            first(9.0),
            second(10.0),
            second(11.0),
            first(0.0),
            first(1.0),
            second(2.0),
            second(3.0),
        ];
        // The same operations on the same numbers: equal to the last bit.
        assert_eq!(batch.map(f32::to_bits), expected.map(f32::to_bits));
    }

    #[test]
    fn selected_examples_keep_their_labels() {
        let selected = three_examples().select(&[2, 0]);

        assert_eq!(selected.pixels(), [8, 9, 10, 11, 0, 1, 2, 3]);
        assert_eq!(selected.labels(), [9, 7]);
    }

    #[test]
    fn a_clone_shares_the_bytes() {
        let examples = three_examples();

        let clone = examples.clone();

        assert_eq!(clone.pixels().as_ptr(), examples.pixels().as_ptr());
    }

    #[test]
    fn the_checksum_changes_with_a_label() {
        let examples = three_examples();
        let relabelled = Examples::new(SHAPE, examples.pixels().to_vec(), vec![7, 8, 8]).unwrap();

        assert_ne!(examples.checksum(), relabelled.checksum());
    }
}
