//! Data sets: images with labels, from the binary itself, from files or from folders.
//!
//! [`load`] reads a [`DataSource`] whole into memory as bytes, checks it, and
//! holds some training examples out for validation. Batches are normalised
//! when they are written, see [`Examples::write_batch`].
//!
//! This module opens files but reads no clock, and its only random numbers are
//! those of a constant permutation: the same files always give the same data
//! set, whatever the seed of a run.

use std::path::PathBuf;

pub mod cifar;
mod content;
pub mod embedded;
mod error;
mod examples;
pub mod fashion_mnist;
mod folder;
pub mod idx;
mod normalisation;
mod split;
#[cfg(test)]
mod test_files;

pub use error::{Content, DataError};
pub use examples::{Examples, ImageShape};
pub use normalisation::Normalisation;

/// Where a data set comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// The 10,000 + 2,000 images of Fashion-MNIST that are part of the binary.
    FashionMnistSubset,
    /// The 60,000 + 10,000 images of Fashion-MNIST in IDX files, plain or `.gz`.
    FashionMnist {
        /// The folder that holds the four files. Where it is `None` they are
        /// looked for in `$OMNIVORE_DATA/fashion-mnist`, in
        /// `omnivore/fashion-mnist` of `$XDG_CACHE_HOME` or `~/.cache`, and in
        /// `/usr/share/datasets/fashion-mnist`.
        folder: Option<PathBuf>,
    },
    /// CIFAR-10 in its binary version.
    Cifar10Binary {
        /// The folder that holds `data_batch_1.bin` and on, and `test_batch.bin`.
        folder: PathBuf,
    },
    /// Images in one folder per class.
    ImageFolder {
        /// The folder that holds `train/<class>/` and `test/<class>/`.
        folder: PathBuf,
    },
}

/// Images and labels to train on, to choose by, and to test on.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// A short name, or the folder of a folder of images.
    pub name: String,
    /// The shape of every image.
    pub shape: ImageShape,
    /// The number of classes; labels lie below it.
    pub classes: usize,
    /// The names of the classes, by label.
    pub class_names: Vec<String>,
    /// From bytes to the inputs of a network. Computed from `training` (without
    /// the validation examples) unless the data set has customary values.
    pub normalisation: Normalisation,
    /// What gradients are computed from, in the order of the source.
    pub training: Examples,
    /// Training examples of the source that are held out; may be empty.
    pub validation: Examples,
    /// What the source gives for testing.
    pub test: Examples,
}

/// Reads `source` and holds out `validation_examples` of its training examples.
///
/// Which are held out depends only on the number of training examples and on
/// `validation_examples`: all runs hold out the same ones, and a larger
/// validation set contains the smaller. With 0 the training set is complete
/// and there is no validation set.
///
/// # Errors
/// Any [`DataError`]: it names the file and, where there is one, the byte.
pub fn load(source: &DataSource, validation_examples: usize) -> Result<Dataset, DataError> {
    let parts = match source {
        DataSource::FashionMnistSubset => embedded::read()?,
        DataSource::FashionMnist { folder: None } => {
            let environment = fashion_mnist::Environment::of_this_process();
            fashion_mnist::read(&fashion_mnist::places(&environment))?
        }
        DataSource::FashionMnist { folder: Some(folder) } => {
            fashion_mnist::read(std::slice::from_ref(folder))?
        }
        DataSource::Cifar10Binary { folder } => cifar::read(folder)?,
        DataSource::ImageFolder { folder } => folder::read(folder)?,
    };
    parts.hold_out(validation_examples)
}

impl Dataset {
    /// Whether a network that takes images of `network_shape` in
    /// `network_classes` classes can be trained on this data.
    ///
    /// # Errors
    /// [`DataError::NetworkMismatch`] names the sizes of both.
    pub fn check_shape(
        &self,
        network_shape: ImageShape,
        network_classes: usize,
    ) -> Result<(), DataError> {
        if (self.shape, self.classes) == (network_shape, network_classes) {
            return Ok(());
        }
        Err(DataError::NetworkMismatch {
            data_set: self.name.clone(),
            data_shape: self.shape,
            data_classes: self.classes,
            network_shape,
            network_classes,
        })
    }
}

/// How a data set is to be normalised.
#[derive(Debug)]
enum Scale {
    /// By these pairs (mean, deviation), one per channel.
    Fixed(Vec<(f32, f32)>),
    /// By mean and deviation of what is trained on.
    OfTrainingSet,
}

/// What a reader finds, before anything is held out.
#[derive(Debug)]
struct Parts {
    name: String,
    class_names: Vec<String>,
    training: Examples,
    test: Examples,
    scale: Scale,
}

impl Parts {
    fn hold_out(self, n_validation: usize) -> Result<Dataset, DataError> {
        let (training, validation) = hold_out(self.training, n_validation, &self.name)?;
        let normalisation = match self.scale {
            Scale::Fixed(channels) => Normalisation::new(&channels)?,
            Scale::OfTrainingSet => Normalisation::of_training_set(&training, &self.name)?,
        };
        Ok(Dataset {
            name: self.name,
            shape: training.shape(),
            classes: self.class_names.len(),
            class_names: self.class_names,
            normalisation,
            training,
            validation,
            test: self.test,
        })
    }
}

/// Parts `all` into what remains for training and what is held out.
fn hold_out(
    all: Examples,
    n_validation: usize,
    data_set: &str,
) -> Result<(Examples, Examples), DataError> {
    if n_validation == 0 {
        let validation = Examples::none(all.shape());
        return Ok((all, validation));
    }
    if n_validation >= all.len() {
        return Err(DataError::ValidationTooLarge {
            data_set: data_set.to_owned(),
            requested: n_validation,
            available: all.len(),
        });
    }
    let split = split::split(all.len(), n_validation);
    Ok((all.select(&split.training), all.select(&split.validation)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::test_files::write;
    use super::*;

    const SHAPE: ImageShape = ImageShape { channels: 1, height: 1, width: 1 };

    /// `n` images of one pixel that are all different from each other.
    fn numbered(n: u8) -> Examples {
        let numbers: Vec<u8> = (0..n).collect();
        Examples::new(SHAPE, numbers.clone(), numbers).unwrap()
    }

    proptest! {
        #[test]
        fn every_image_is_trained_on_or_held_out_with_its_label(
            (n, n_validation) in (2_u8..=255).prop_flat_map(|n| (Just(n), 0..usize::from(n)))
        ) {
            let (training, validation) = hold_out(numbered(n), n_validation, "numbers").unwrap();

            let mut pixels = [training.pixels(), validation.pixels()].concat();
            pixels.sort_unstable();
            prop_assert_eq!(pixels, (0..n).collect::<Vec<u8>>());
            prop_assert_eq!(training.pixels(), training.labels());
            prop_assert_eq!(validation.pixels(), validation.labels());
            prop_assert_eq!(validation.len(), n_validation);
        }
    }

    #[test]
    fn with_nothing_held_out_the_training_set_is_the_whole_and_not_copied() {
        let all = numbered(9);

        let (training, validation) = hold_out(all.clone(), 0, "numbers").unwrap();

        assert_eq!(training.pixels().as_ptr(), all.pixels().as_ptr());
        assert!(validation.is_empty());
        assert_eq!(validation.shape(), SHAPE);
    }

    #[test]
    fn holding_out_everything_or_more_is_refused_with_the_numbers() {
        for requested in [9, 10] {
            let error = hold_out(numbered(9), requested, "numbers").unwrap_err();

            assert_eq!(
                error.to_string(),
                format!(
                    "{requested} validation examples leave nothing to train on: `numbers` has \
                     9 training examples, so at most 8 can be held out"
                )
            );
        }
    }

    #[test]
    fn the_embedded_subset_is_a_data_set_that_needs_no_file() {
        let data = load(&DataSource::FashionMnistSubset, 1_000).unwrap();

        assert_eq!(data.name, "fashion-mnist-subset");
        assert_eq!(data.shape.to_string(), "1×28×28");
        assert_eq!(data.classes, 10);
        assert_eq!(data.class_names[9], "Ankle boot");
        assert_eq!(
            (data.training.len(), data.validation.len(), data.test.len()),
            (9_000, 1_000, 2_000)
        );
        assert_eq!(data.normalisation, Normalisation::new(&[(0.286, 0.353)]).unwrap());
    }

    #[test]
    fn two_loads_hold_out_the_same_examples() {
        let once = load(&DataSource::FashionMnistSubset, 500).unwrap();
        let again = load(&DataSource::FashionMnistSubset, 500).unwrap();

        assert_eq!(once, again);
    }

    #[test]
    fn a_named_folder_without_data_is_refused_even_where_other_places_have_it() {
        let folder = tempfile::TempDir::new().unwrap();
        let source = DataSource::FashionMnist { folder: Some(folder.path().to_owned()) };

        let error = load(&source, 0).unwrap_err();

        assert_eq!(
            error.to_string(),
            format!(
                "Fashion-MNIST was found in none of these folders: `{}`; \
                 fetch it with `scripts/fetch-data`, or name the folder that holds it",
                folder.path().display()
            )
        );
    }

    #[test]
    fn held_out_images_do_not_enter_a_computed_normalisation() {
        let folder = tempfile::TempDir::new().unwrap();
        let pixels: Vec<u8> = (0..4 * cifar::SHAPE.values())
            .map(|value_idx| (value_idx * value_idx % 253) as u8)
            .collect();
        let examples = Examples::new(cifar::SHAPE, pixels, vec![3, 2, 1, 0]).unwrap();
        write(folder.path(), "data_batch_1.bin", &cifar::encode(&examples));
        write(folder.path(), "test_batch.bin", &cifar::encode(&examples));
        let source = DataSource::Cifar10Binary { folder: folder.path().to_owned() };

        let data = load(&source, 2).unwrap();

        assert_eq!(
            data.normalisation,
            Normalisation::of_training_set(&data.training, "cifar-10").unwrap()
        );
        assert_ne!(
            data.normalisation,
            Normalisation::of_training_set(&examples, "cifar-10").unwrap()
        );
    }

    #[test]
    fn a_network_of_the_same_sizes_is_accepted() {
        let data = load(&DataSource::FashionMnistSubset, 0).unwrap();

        assert!(data.check_shape(data.shape, 10).is_ok());
    }

    #[test]
    fn a_network_of_other_sizes_is_refused_with_the_sizes_of_both() {
        let data = load(&DataSource::FashionMnistSubset, 0).unwrap();

        let error = data.check_shape(cifar::SHAPE, 10).unwrap_err();

        assert_eq!(
            error.to_string(),
            "the data `fashion-mnist-subset` has images of 1×28×28 (channels×height×width) in \
             10 classes, but the network takes images of 3×32×32 in 10 classes"
        );
    }

    #[test]
    fn a_network_of_another_number_of_classes_is_refused() {
        let data = load(&DataSource::FashionMnistSubset, 0).unwrap();

        let error = data.check_shape(data.shape, 11).unwrap_err();

        assert!(error.to_string().ends_with("in 11 classes"), "{error}");
    }
}
