//! The subset of Fashion-MNIST that is part of the binary.
//!
//! The first 10,000 training and the first 2,000 test images of the original,
//! under the licence of Zalando SE; `fashion_mnist_subset/README.md` says how
//! the files were made.

use std::path::Path;

use super::error::{Content, DataError};
use super::{Parts, content, fashion_mnist};

struct EmbeddedFile {
    name: &'static str,
    compressed: &'static [u8],
}

macro_rules! embedded_file {
    ($name:literal) => {
        EmbeddedFile {
            name: concat!("embedded/fashion_mnist_subset/", $name),
            compressed: include_bytes!(concat!("fashion_mnist_subset/", $name)),
        }
    };
}

static TRAINING_IMAGES: EmbeddedFile = embedded_file!("train-images-idx3-ubyte.gz");
static TRAINING_LABELS: EmbeddedFile = embedded_file!("train-labels-idx1-ubyte.gz");
static TEST_IMAGES: EmbeddedFile = embedded_file!("t10k-images-idx3-ubyte.gz");
static TEST_LABELS: EmbeddedFile = embedded_file!("t10k-labels-idx1-ubyte.gz");

/// The licence under which the embedded images are distributed.
pub const LICENCE: &str = include_str!("fashion_mnist_subset/LICENSE");

/// Decompresses the subset.
pub(super) fn read() -> Result<Parts, DataError> {
    Ok(fashion_mnist::parts(
        "fashion-mnist-subset",
        fashion_mnist::examples(TRAINING_IMAGES.read()?, TRAINING_LABELS.read()?)?,
        fashion_mnist::examples(TEST_IMAGES.read()?, TEST_LABELS.read()?)?,
    ))
}

impl EmbeddedFile {
    fn read(&self) -> Result<(Content, Vec<u8>), DataError> {
        content::decompress(Path::new(self.name), self.compressed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Examples;
    use super::*;

    fn images_per_class(examples: &Examples) -> Vec<usize> {
        (0..10)
            .map(|class| {
                let labels = examples.labels().iter();
                labels.filter(|&&label| label == class).count()
            })
            .collect()
    }

    /// The expected values were computed from the original files of 60,000 and
    /// 10,000 images by another program.
    #[test]
    fn the_training_images_are_the_first_ten_thousand_of_the_original() {
        let training = read().unwrap().training;

        assert_eq!(training.len(), 10_000);
        assert_eq!(training.checksum(), 0x251b_27d5);
        assert_eq!(
            images_per_class(&training),
            [942, 1027, 1016, 1019, 974, 989, 1021, 1022, 990, 1000]
        );
    }

    #[test]
    fn the_test_images_are_the_first_two_thousand_of_the_original() {
        let test = read().unwrap().test;

        assert_eq!(test.len(), 2_000);
        assert_eq!(test.checksum(), 0xf44e_cf99);
        assert_eq!(images_per_class(&test), [200, 203, 214, 190, 219, 195, 197, 200, 194, 188]);
    }

    #[test]
    fn the_licence_of_the_images_is_at_hand() {
        assert!(LICENCE.contains("Zalando SE"));
        assert!(LICENCE.contains("Permission is hereby granted"));
    }
}
