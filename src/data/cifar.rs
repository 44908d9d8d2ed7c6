//! CIFAR-10 in its binary version.
//!
//! `data_batch_1.bin`, `data_batch_2.bin`, … hold the training set and
//! `test_batch.bin` the test set. Each is a row of records of 3073 bytes
//! without a header: the label, then 1024 red, 1024 green and 1024 blue values,
//! `[channel, row, column]`, row-major.
//!
//! Since there is no header, a file cut off exactly between two records cannot
//! be told from a shorter file.
//!
//! Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny
//! Images", 2009, and the page of the data set.

use std::fs;
use std::path::{Path, PathBuf};

use super::content::read_file;
use super::error::{Content, DataError};
use super::{Examples, ImageShape, Parts, Scale};

/// The shape of every CIFAR-10 image.
pub const SHAPE: ImageShape = ImageShape { channels: 3, height: 32, width: 32 };

/// The ten classes, by label.
pub const CLASS_NAMES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

const PIXEL_BYTES: usize = 3 * 32 * 32;
const RECORD_BYTES: usize = 1 + PIXEL_BYTES;

/// Reads a folder that holds the files of the binary version.
pub(super) fn read(folder: &Path) -> Result<Parts, DataError> {
    let training = read_examples(&training_files(folder)?)?;
    let test = read_examples(&[folder.join("test_batch.bin")])?;
    Ok(Parts {
        name: "cifar-10".to_owned(),
        class_names: CLASS_NAMES.map(str::to_owned).to_vec(),
        training,
        test,
        scale: Scale::OfTrainingSet,
    })
}

/// The bytes of a file of `examples`.
///
/// # Panics
/// When the images are not of [`SHAPE`].
pub fn encode(examples: &Examples) -> Vec<u8> {
    assert_eq!(examples.shape(), SHAPE, "CIFAR-10 images are 3×32×32");
    let mut bytes = Vec::with_capacity(examples.len() * RECORD_BYTES);
    for example_idx in 0..examples.len() {
        bytes.push(examples.label(example_idx));
        bytes.extend_from_slice(examples.image(example_idx));
    }
    bytes
}

/// `data_batch_1.bin` to the last one there is. A gap in the numbers means
/// that a file was lost, which must not quietly make the training set smaller.
fn training_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let last = last_batch_number(folder)?;
    let files: Vec<PathBuf> =
        (1..=last.max(1)).map(|number| folder.join(format!("data_batch_{number}.bin"))).collect();
    match files.iter().find(|path| !path.exists()) {
        None => Ok(files),
        Some(missing) => Err(DataError::MissingFile {
            path: missing.clone(),
            needed: "CIFAR-10 in its binary version has `data_batch_1.bin` and on, without a gap, \
                     and `test_batch.bin`"
                .to_owned(),
        }),
    }
}

fn last_batch_number(folder: &Path) -> Result<u16, DataError> {
    let unreadable = |source| DataError::Unreadable { path: folder.to_owned(), source };
    let mut last = 0;
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("data_batch_")?.strip_suffix(".bin"))
            .and_then(|number| number.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    Ok(last)
}

fn read_examples(files: &[PathBuf]) -> Result<Examples, DataError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for path in files {
        let bytes = read_file(path)?;
        check_records(path, &bytes)?;
        for record in bytes.chunks_exact(RECORD_BYTES) {
            labels.push(record[0]);
            pixels.extend_from_slice(&record[1..]);
        }
    }
    Examples::new(SHAPE, pixels, labels)
}

/// Refuses bytes that are not one or more whole records with labels in range.
fn check_records(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    if bytes.is_empty() {
        return Err(DataError::EmptyFile { path: path.to_owned() });
    }
    let whole_records = bytes.len() / RECORD_BYTES;
    if !bytes.len().is_multiple_of(RECORD_BYTES) {
        return Err(DataError::PartialRecord {
            path: path.to_owned(),
            record: whole_records,
            start: whole_records * RECORD_BYTES,
            offset: bytes.len(),
            record_bytes: RECORD_BYTES,
        });
    }
    let label_offsets = (0..bytes.len()).step_by(RECORD_BYTES);
    for offset in label_offsets {
        let label = bytes[offset];
        if usize::from(label) >= CLASS_NAMES.len() {
            return Err(DataError::LabelOutOfRange {
                content: Content::Plain(path.to_owned()),
                offset,
                label,
                classes: CLASS_NAMES.len(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::super::test_files::write;
    use super::*;

    /// Images whose bytes differ from each other, labelled `labels`.
    fn examples(labels: &[u8]) -> Examples {
        let pixels = (0..labels.len() * PIXEL_BYTES)
            .map(|value_idx| (value_idx % 251) as u8)
            .collect::<Vec<u8>>();
        Examples::new(SHAPE, pixels, labels).unwrap()
    }

    fn records(labels: &[u8]) -> Vec<u8> {
        encode(&examples(labels))
    }

    /// A folder with one image in each of two training files and in the test file.
    fn small_folder() -> TempDir {
        let folder = TempDir::new().unwrap();
        write(folder.path(), "data_batch_1.bin", &records(&[1]));
        write(folder.path(), "data_batch_2.bin", &records(&[2]));
        write(folder.path(), "test_batch.bin", &records(&[9]));
        folder
    }

    fn message(folder: &TempDir) -> String {
        let message = read(folder.path()).unwrap_err().to_string();
        message.replace(&*folder.path().to_string_lossy(), "FOLDER")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn images_and_labels_are_read_as_they_were_written(
            labels in prop::collection::vec(0_u8..10, 1..5),
            seed_bytes in prop::collection::vec(any::<u8>(), PIXEL_BYTES),
        ) {
            let pixels = seed_bytes.repeat(labels.len());
            let written = Examples::new(SHAPE, pixels, labels).unwrap();
            let folder = TempDir::new().unwrap();
            let path = write(folder.path(), "data_batch_1.bin", &encode(&written));

            prop_assert_eq!(read_examples(&[path]).unwrap(), written);
        }
    }

    #[test]
    fn training_files_are_read_in_the_order_of_their_numbers() {
        let folder = TempDir::new().unwrap();
        for number in 1..=10_u8 {
            let name = format!("data_batch_{number}.bin");
            write(folder.path(), &name, &records(&[number - 1]));
        }
        write(folder.path(), "test_batch.bin", &records(&[9, 8]));

        let parts = read(folder.path()).unwrap();

        assert_eq!(parts.training.labels(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(parts.test, examples(&[9, 8]));
    }

    #[test]
    fn a_file_cut_off_inside_a_record_is_refused_at_any_length() {
        let folder = small_folder();
        let whole = records(&[1, 2]);

        let inside_a_record = (0..whole.len()).filter(|length| length % RECORD_BYTES != 0);
        for length in inside_a_record {
            let path = folder.path().join("data_batch_2.bin");
            let error = check_records(&path, &whole[..length]).unwrap_err();
            assert!(
                matches!(error, DataError::PartialRecord { offset, .. } if offset == length),
                "{length}: {error}"
            );
        }
    }

    #[test]
    fn a_cut_off_file_is_named_with_the_place_where_it_ends() {
        let folder = small_folder();
        write(folder.path(), "data_batch_2.bin", &records(&[1, 2])[..4000]);

        assert_eq!(
            message(&folder),
            "`FOLDER/data_batch_2.bin` ends at byte 4000, cut off inside record 1, \
             which starts at byte 3073 and needs 3073 bytes"
        );
    }

    #[test]
    fn a_label_out_of_range_is_refused_with_the_place_of_the_label() {
        let folder = small_folder();
        let mut bytes = records(&[9, 8, 7]);
        bytes[2 * RECORD_BYTES] = 10;
        write(folder.path(), "test_batch.bin", &bytes);

        assert_eq!(
            message(&folder),
            "`FOLDER/test_batch.bin` has label 10 at byte 6146; the 10 classes are numbered 0 to 9"
        );
    }

    #[test]
    fn an_empty_file_is_refused() {
        let folder = small_folder();
        write(folder.path(), "data_batch_1.bin", &[]);

        assert_eq!(
            message(&folder),
            "`FOLDER/data_batch_1.bin` holds no images: it ends at byte 0"
        );
    }

    #[test]
    fn a_gap_in_the_training_files_is_refused_with_the_missing_name() {
        let folder = small_folder();
        write(folder.path(), "data_batch_4.bin", &records(&[4]));

        assert!(
            message(&folder).starts_with("`FOLDER/data_batch_3.bin` is missing; "),
            "{}",
            message(&folder)
        );
    }

    #[test]
    fn a_folder_without_training_files_is_refused_with_the_first_name() {
        let folder = TempDir::new().unwrap();

        assert!(
            message(&folder).starts_with("`FOLDER/data_batch_1.bin` is missing; "),
            "{}",
            message(&folder)
        );
    }

    #[test]
    fn a_missing_test_file_is_refused_with_its_name() {
        let folder = small_folder();
        fs::remove_file(folder.path().join("test_batch.bin")).unwrap();

        assert_eq!(message(&folder), "cannot read `FOLDER/test_batch.bin`");
    }

    #[test]
    fn a_missing_folder_is_refused_with_its_name() {
        let folder = TempDir::new().unwrap();

        let error = read(&folder.path().join("nowhere")).unwrap_err();

        assert!(matches!(error, DataError::Unreadable { .. }), "{error}");
        assert!(error.to_string().ends_with("nowhere`"), "{error}");
    }
}
