//! Fashion-MNIST: 60,000 training and 10,000 test images of 28×28, grey, ten classes.
//!
//! Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image
//! Dataset for Benchmarking Machine Learning Algorithms", arXiv:1708.07747.

use std::env;
use std::path::{Path, PathBuf};

use super::error::{Content, DataError};
use super::{Examples, Parts, Scale, content, idx};

/// The ten classes, by label.
pub const CLASS_NAMES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

/// Mean and deviation of the 60,000 training images, to the three places with
/// which they are commonly used; the subset is scaled by them too, so that a
/// network trained on one can be evaluated on the other.
pub const MEAN_AND_DEVIATION: (f32, f32) = (0.286, 0.353);

const SIDE: usize = 28;
const DATA_SET: &str = "Fashion-MNIST";

const TRAINING_IMAGES: &str = "train-images-idx3-ubyte";
const TRAINING_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// The variables of the environment that say where data may lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    pub omnivore_data: Option<PathBuf>,
    pub xdg_cache_home: Option<PathBuf>,
    pub home: Option<PathBuf>,
}

impl Environment {
    /// Those of this process; an empty variable counts as unset.
    pub(super) fn of_this_process() -> Environment {
        let variable = |name| {
            let value = env::var_os(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        Environment {
            omnivore_data: variable("OMNIVORE_DATA"),
            xdg_cache_home: variable("XDG_CACHE_HOME"),
            home: variable("HOME"),
        }
    }
}

/// The folders that may hold Fashion-MNIST when none is named, in the order in
/// which they are looked at.
pub(super) fn places(environment: &Environment) -> Vec<PathBuf> {
    let cache = environment
        .xdg_cache_home
        .clone()
        .or_else(|| environment.home.as_ref().map(|home| home.join(".cache")));
    let data = environment.omnivore_data.clone();
    let system = PathBuf::from("/usr/share/datasets/fashion-mnist");
    [
        data.map(|data| data.join("fashion-mnist")),
        cache.map(|cache| cache.join("omnivore").join("fashion-mnist")),
        Some(system),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Reads the data from the first of `places` that holds any of its files.
pub(super) fn read(places: &[PathBuf]) -> Result<Parts, DataError> {
    let holds_some_file = |folder: &&PathBuf| {
        [TRAINING_IMAGES, TRAINING_LABELS, TEST_IMAGES, TEST_LABELS]
            .iter()
            .any(|name| find(folder, name).is_some())
    };
    let Some(folder) = places.iter().find(holds_some_file) else {
        return Err(DataError::NotFound { data_set: DATA_SET, places: places.to_vec() });
    };
    let load = |name| content::read(&file(folder, name)?);
    Ok(parts(
        "fashion-mnist",
        examples(load(TRAINING_IMAGES)?, load(TRAINING_LABELS)?)?,
        examples(load(TEST_IMAGES)?, load(TEST_LABELS)?)?,
    ))
}

/// Puts the two halves of a data set in the form of Fashion-MNIST together.
pub(super) fn parts(name: &str, training: Examples, test: Examples) -> Parts {
    Parts {
        name: name.to_owned(),
        class_names: CLASS_NAMES.map(str::to_owned).to_vec(),
        training,
        test,
        scale: Scale::Fixed(vec![MEAN_AND_DEVIATION]),
    }
}

/// Understands the bytes of a file of images and of its file of labels.
pub(super) fn examples(
    images: (Content, Vec<u8>),
    labels: (Content, Vec<u8>),
) -> Result<Examples, DataError> {
    let images = idx::parse_images(images.0, images.1)?;
    let labels = idx::parse_labels(labels.0, labels.1, CLASS_NAMES.len())?;
    if (images.height, images.width) != (SIDE, SIDE) {
        return Err(DataError::UnexpectedSize {
            content: images.content,
            offset: 8,
            data_set: DATA_SET,
            found_height: images.height,
            found_width: images.width,
            expected_height: SIDE,
            expected_width: SIDE,
        });
    }
    idx::pair(images, labels)
}

/// `folder/name`, or `folder/name.gz` where there is only that.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let plain = folder.join(name);
    let compressed = folder.join(format!("{name}.gz"));
    [plain, compressed].into_iter().find(|path| path.exists())
}

fn file(folder: &Path, name: &str) -> Result<PathBuf, DataError> {
    find(folder, name).ok_or_else(|| DataError::MissingFile {
        path: folder.join(format!("{name}.gz")),
        needed: format!(
            "{DATA_SET} has four files, plain or with `.gz`: `{TRAINING_IMAGES}`, \
             `{TRAINING_LABELS}`, `{TEST_IMAGES}`, `{TEST_LABELS}`"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::super::test_files::{gzip, write};
    use super::*;

    /// Three training images and two test images, the training half compressed.
    fn small_folder() -> TempDir {
        let folder = TempDir::new().unwrap();
        let images = |count| idx::encode_images(SIDE, SIDE, &vec![7; count * SIDE * SIDE]);
        write(folder.path(), "train-images-idx3-ubyte.gz", &gzip(&images(3)));
        write(folder.path(), "train-labels-idx1-ubyte.gz", &gzip(&idx::encode_labels(&[9, 0, 5])));
        write(folder.path(), TEST_IMAGES, &images(2));
        write(folder.path(), TEST_LABELS, &idx::encode_labels(&[1, 2]));
        folder
    }

    fn message(folder: &TempDir) -> String {
        let places = [folder.path().to_owned()];
        let message = read(&places).unwrap_err().to_string();
        message.replace(&*folder.path().to_string_lossy(), "FOLDER")
    }

    #[test]
    fn plain_and_compressed_files_are_read_from_one_folder() {
        let folder = small_folder();

        let parts = read(&[folder.path().to_owned()]).unwrap();

        assert_eq!(parts.training.labels(), [9, 0, 5]);
        assert_eq!(parts.test.labels(), [1, 2]);
        assert_eq!(parts.test.image(1), [7; 784]);
    }

    #[test]
    fn the_first_place_that_holds_data_is_read() {
        let (empty, full) = (TempDir::new().unwrap(), small_folder());
        let nowhere = empty.path().join("nowhere");

        let parts = read(&[nowhere, empty.path().to_owned(), full.path().to_owned()]).unwrap();

        assert_eq!(parts.training.len(), 3);
    }

    #[test]
    fn without_data_every_place_and_the_remedy_are_named() {
        let places = [PathBuf::from("/nowhere/a"), PathBuf::from("/nowhere/b")];

        let error = read(&places).unwrap_err();

        assert_eq!(
            error.to_string(),
            "Fashion-MNIST was found in none of these folders: `/nowhere/a`, `/nowhere/b`; \
             fetch it with `scripts/fetch-data`, or name the folder that holds it"
        );
    }

    #[test]
    fn a_folder_that_lacks_one_file_is_refused_rather_than_passed_over() {
        let folder = small_folder();
        fs::remove_file(folder.path().join(TEST_LABELS)).unwrap();

        assert!(
            message(&folder).starts_with("`FOLDER/t10k-labels-idx1-ubyte.gz` is missing; "),
            "{}",
            message(&folder)
        );
    }

    #[test]
    fn images_of_another_size_are_refused() {
        let folder = small_folder();
        let images = idx::encode_images(32, 28, &[0; 2 * 32 * 28]);
        write(folder.path(), TEST_IMAGES, &images);

        assert_eq!(
            message(&folder),
            "`FOLDER/t10k-images-idx3-ubyte` announces images of 32×28 at byte 8; \
             Fashion-MNIST has images of 28×28"
        );
    }

    #[test]
    fn files_of_different_counts_are_refused_with_both_names() {
        let folder = small_folder();
        write(folder.path(), TEST_LABELS, &idx::encode_labels(&[1, 2, 3]));

        assert_eq!(
            message(&folder),
            "`FOLDER/t10k-images-idx3-ubyte` holds 2 images but \
             `FOLDER/t10k-labels-idx1-ubyte` holds 3 labels; each image needs one label"
        );
    }

    #[test]
    fn a_label_out_of_range_in_a_compressed_file_is_named_with_its_place() {
        let folder = small_folder();
        let labels = gzip(&idx::encode_labels(&[9, 200, 5]));
        write(folder.path(), "train-labels-idx1-ubyte.gz", &labels);

        assert_eq!(
            message(&folder),
            "`FOLDER/train-labels-idx1-ubyte.gz` (decompressed) has label 200 at byte 9; \
             the 10 classes are numbered 0 to 9"
        );
    }

    #[test]
    fn the_variables_of_the_environment_decide_the_places_in_order() {
        let environment = Environment {
            omnivore_data: Some(PathBuf::from("/data")),
            xdg_cache_home: Some(PathBuf::from("/cache")),
            home: Some(PathBuf::from("/home/ada")),
        };

        assert_eq!(
            places(&environment),
            [
                PathBuf::from("/data/fashion-mnist"),
                PathBuf::from("/cache/omnivore/fashion-mnist"),
                PathBuf::from("/usr/share/datasets/fashion-mnist"),
            ]
        );
    }

    #[test]
    fn without_a_cache_variable_the_cache_lies_in_the_home_folder() {
        let environment =
            Environment { home: Some(PathBuf::from("/home/ada")), ..Environment::default() };

        assert_eq!(
            places(&environment)[0],
            PathBuf::from("/home/ada/.cache/omnivore/fashion-mnist")
        );
    }

    #[test]
    fn without_any_variable_only_the_system_folder_is_looked_at() {
        assert_eq!(
            places(&Environment::default()),
            [PathBuf::from("/usr/share/datasets/fashion-mnist")]
        );
    }
}
