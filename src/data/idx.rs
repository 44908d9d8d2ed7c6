//! The IDX format of MNIST and Fashion-MNIST, plain or compressed by gzip.
//!
//! A header of big-endian 32-bit numbers, then one byte per value:
//!
//! | file | bytes 0–3 | 4–7 | 8–11 | 12–15 | then |
//! |---|---|---|---|---|---|
//! | images | `00 00 08 03` | images | rows | columns | pixels `[image, row, column]`, row-major |
//! | labels | `00 00 08 01` | labels | – | – | one label each |
//!
//! The third byte says "unsigned bytes", the fourth is the number of
//! dimensions. Source: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST
//! database of handwritten digits".

use std::path::Path;

use super::content;
use super::error::{Content, DataError};
use super::{Examples, ImageShape};

/// First bytes of a file of images: unsigned bytes in three dimensions.
const IMAGES_MAGIC: u32 = 0x0000_0803;
/// First bytes of a file of labels: unsigned bytes in one dimension.
const LABELS_MAGIC: u32 = 0x0000_0801;

const IMAGES_HEADER_BYTES: usize = 16;
const LABELS_HEADER_BYTES: usize = 8;
const COUNT_OFFSET: usize = 4;
const HEIGHT_OFFSET: usize = 8;
const WIDTH_OFFSET: usize = 12;

/// The images of one IDX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Where they came from.
    pub content: Content,
    /// How many there are; at least 1.
    pub count: usize,
    /// Rows of each image; at least 1.
    pub height: usize,
    /// Columns of each image; at least 1.
    pub width: usize,
    /// `[image, row, column]`, row-major.
    pub pixels: Vec<u8>,
}

/// The labels of one IDX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Where they came from.
    pub content: Content,
    /// One class number per image; at least one, all below the number of classes.
    pub labels: Vec<u8>,
}

/// Reads a file of images; one whose name ends in `.gz` is decompressed.
///
/// # Errors
/// Names the file and the byte when the file cannot be read, is no IDX file of
/// images, announces no images, or is shorter or longer than it announces.
pub fn read_images(path: &Path) -> Result<Images, DataError> {
    let (content, bytes) = content::read(path)?;
    parse_images(content, bytes)
}

/// Reads a file of labels of `classes` classes; one whose name ends in `.gz`
/// is decompressed.
///
/// # Errors
/// As [`read_images`], and when a label is not below `classes`.
pub fn read_labels(path: &Path, classes: usize) -> Result<Labels, DataError> {
    let (content, bytes) = content::read(path)?;
    parse_labels(content, bytes, classes)
}

/// Puts grey images and their labels together.
///
/// # Errors
/// [`DataError::CountMismatch`] names both files when they hold different numbers.
pub fn pair(images: Images, labels: Labels) -> Result<Examples, DataError> {
    if images.count != labels.labels.len() {
        return Err(DataError::CountMismatch {
            images_content: images.content,
            images: images.count,
            labels_content: labels.content,
            labels: labels.labels.len(),
        });
    }
    let shape = ImageShape { channels: 1, height: images.height, width: images.width };
    Examples::new(shape, images.pixels, labels.labels)
}

/// The bytes of an IDX file of the images `pixels [image, row, column]`.
///
/// # Panics
/// When `pixels` is not a whole number of images, or a number exceeds 32 bits.
pub fn encode_images(height: usize, width: usize, pixels: &[u8]) -> Vec<u8> {
    let values = height * width;
    assert_eq!(pixels.len() % values, 0, "pixels are whole images");
    let sides = [pixels.len() / values, height, width];
    let mut bytes = IMAGES_MAGIC.to_be_bytes().to_vec();
    bytes.extend(sides.into_iter().flat_map(header_number));
    bytes.extend_from_slice(pixels);
    bytes
}

/// The bytes of an IDX file of `labels`.
///
/// # Panics
/// When there are more labels than 32 bits count.
pub fn encode_labels(labels: &[u8]) -> Vec<u8> {
    let mut bytes = LABELS_MAGIC.to_be_bytes().to_vec();
    bytes.extend(header_number(labels.len()));
    bytes.extend_from_slice(labels);
    bytes
}

/// Understands the bytes of a file of images.
pub(super) fn parse_images(content: Content, mut bytes: Vec<u8>) -> Result<Images, DataError> {
    let [count, height, width] = read_header(
        &content,
        &bytes,
        "images",
        IMAGES_MAGIC,
        [("images", COUNT_OFFSET), ("rows", HEIGHT_OFFSET), ("columns", WIDTH_OFFSET)],
    )?;
    let described = Announced {
        header_bytes: IMAGES_HEADER_BYTES,
        // Three 32-bit numbers: the product fits in 96 bits.
        payload_bytes: count as u128 * height as u128 * width as u128,
        what: format!("{count} images of {height}×{width}"),
    };
    described.check(&content, bytes.len())?;
    bytes.drain(..IMAGES_HEADER_BYTES);
    Ok(Images { content, count, height, width, pixels: bytes })
}

/// Understands the bytes of a file of labels.
pub(super) fn parse_labels(
    content: Content,
    mut bytes: Vec<u8>,
    classes: usize,
) -> Result<Labels, DataError> {
    let [count] =
        read_header(&content, &bytes, "labels", LABELS_MAGIC, [("labels", COUNT_OFFSET)])?;
    let described = Announced {
        header_bytes: LABELS_HEADER_BYTES,
        payload_bytes: count as u128,
        what: format!("{count} labels"),
    };
    described.check(&content, bytes.len())?;
    bytes.drain(..LABELS_HEADER_BYTES);
    let wrong = bytes.iter().position(|&label| usize::from(label) >= classes);
    if let Some(label_idx) = wrong {
        return Err(DataError::LabelOutOfRange {
            content,
            offset: LABELS_HEADER_BYTES + label_idx,
            label: bytes[label_idx],
            classes,
        });
    }
    Ok(Labels { content, labels: bytes })
}

/// Reads the magic number and then the `dimensions`, each (name, offset).
fn read_header<const N: usize>(
    content: &Content,
    bytes: &[u8],
    kind: &'static str,
    magic: u32,
    dimensions: [(&'static str, usize); N],
) -> Result<[usize; N], DataError> {
    let number = |offset: usize| {
        let four = bytes.get(offset..offset + 4)?;
        let four = four.try_into().expect("the slice has four bytes");
        Some(u32::from_be_bytes(four))
    };
    let cut_off = || DataError::Truncated {
        content: content.clone(),
        offset: bytes.len(),
        expected: 4 + 4 * N as u128,
        what: format!("the header of an IDX file of {kind}"),
    };

    let found = number(0).ok_or_else(cut_off)?;
    if found != magic {
        return Err(DataError::BadMagic { content: content.clone(), kind, found, expected: magic });
    }
    let mut sides = [0; N];
    for (side, (dimension, offset)) in sides.iter_mut().zip(dimensions) {
        let announced = number(offset).ok_or_else(cut_off)?;
        if announced == 0 {
            return Err(DataError::ZeroDimension { content: content.clone(), dimension, offset });
        }
        *side = usize::try_from(announced).expect("a usize has at least 32 bits");
    }
    Ok(sides)
}

/// What a header says of the length of its file.
struct Announced {
    header_bytes: usize,
    payload_bytes: u128,
    what: String,
}

impl Announced {
    /// Refuses content that is shorter or longer than announced.
    fn check(self, content: &Content, n_bytes: usize) -> Result<(), DataError> {
        let expected = self.header_bytes as u128 + self.payload_bytes;
        match usize::try_from(expected) {
            Ok(end) if end == n_bytes => Ok(()),
            Ok(end) if end < n_bytes => Err(DataError::TrailingBytes {
                content: content.clone(),
                offset: end,
                extra: n_bytes - end,
                what: self.what,
            }),
            _ => Err(DataError::Truncated {
                content: content.clone(),
                offset: n_bytes,
                expected,
                what: self.what,
            }),
        }
    }
}

fn header_number(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("IDX counts in 32 bits").to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::super::test_files::{gzip, write};
    use super::*;

    fn plain(name: &str) -> Content {
        Content::Plain(PathBuf::from(name))
    }

    /// Two images of 2 rows and 3 columns.
    fn small_images() -> Vec<u8> {
        encode_images(2, 3, &(0..12).collect::<Vec<u8>>())
    }

    fn images_error(bytes: Vec<u8>) -> String {
        parse_images(plain("train"), bytes).unwrap_err().to_string()
    }

    fn labels_error(bytes: Vec<u8>) -> String {
        parse_labels(plain("train"), bytes, 10).unwrap_err().to_string()
    }

    proptest! {
        #[test]
        fn images_are_read_as_they_were_written_plain_and_compressed(
            (height, width, pixels) in (1_usize..6, 1_usize..6, 1_usize..6)
                .prop_flat_map(|(count, height, width)| {
                    let pixels = prop::collection::vec(any::<u8>(), count * height * width);
                    (Just(height), Just(width), pixels)
                })
        ) {
            let folder = TempDir::new().unwrap();
            let bytes = encode_images(height, width, &pixels);
            let plain = write(folder.path(), "images", &bytes);
            let packed = write(folder.path(), "images.gz", &gzip(&bytes));

            let from_plain = read_images(&plain).unwrap();
            let from_packed = read_images(&packed).unwrap();

            prop_assert_eq!(from_plain.count * height * width, pixels.len());
            prop_assert_eq!((from_plain.height, from_plain.width), (height, width));
            prop_assert_eq!(&from_plain.pixels, &pixels);
            prop_assert_eq!(from_plain.content, Content::Plain(plain));
            prop_assert_eq!(&from_packed.pixels, &pixels);
            prop_assert_eq!(from_packed.content, Content::Decompressed(packed));
        }

        #[test]
        fn labels_are_read_as_they_were_written(
            labels in prop::collection::vec(0_u8..10, 1..50)
        ) {
            let read = parse_labels(plain("labels"), encode_labels(&labels), 10).unwrap();

            prop_assert_eq!(read.labels, labels);
        }

        #[test]
        fn arbitrary_bytes_after_a_right_magic_never_panic(
            tail in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            let images = [&IMAGES_MAGIC.to_be_bytes(), tail.as_slice()].concat();
            let labels = [&LABELS_MAGIC.to_be_bytes(), tail.as_slice()].concat();

            // Whether they are accepted or refused does not matter here.
            let _ = parse_images(plain("images"), images);
            let _ = parse_labels(plain("labels"), labels, 10);
        }
    }

    #[test]
    fn images_cut_off_at_any_length_are_refused_with_file_and_offset() {
        let whole = small_images();

        for length in 0..whole.len() {
            let message = images_error(whole[..length].to_vec());
            let expected = format!("`train` ends at byte {length}, cut off: ");
            assert!(message.starts_with(&expected), "{length}: {message}");
        }
    }

    #[test]
    fn labels_cut_off_at_any_length_are_refused_with_file_and_offset() {
        let whole = encode_labels(&[3, 1, 4, 1, 5]);

        for length in 0..whole.len() {
            let message = labels_error(whole[..length].to_vec());
            let expected = format!("`train` ends at byte {length}, cut off: ");
            assert!(message.starts_with(&expected), "{length}: {message}");
        }
    }

    #[test]
    fn a_gzip_file_cut_off_at_any_length_is_refused_with_file_and_offset() {
        let folder = TempDir::new().unwrap();
        let whole = gzip(&small_images());

        for length in 0..whole.len() {
            let path = write(folder.path(), "images.gz", &whole[..length]);
            let message = read_images(&path).unwrap_err().to_string();
            assert!(message.contains(&*path.to_string_lossy()), "{message}");
            assert!(message.contains("byte "), "{length}: {message}");
        }
    }

    #[test]
    fn a_gzip_file_with_any_byte_of_its_data_changed_is_refused() {
        let folder = TempDir::new().unwrap();
        let whole = gzip(&small_images());

        // The ten bytes of the gzip header hold a time and flags that do not
        // change what the file decompresses to.
        for offset in 10..whole.len() {
            let mut damaged = whole.clone();
            damaged[offset] ^= 0x55;
            let path = write(folder.path(), "images.gz", &damaged);
            let error = read_images(&path).unwrap_err();
            assert!(matches!(error, DataError::CorruptGzip { .. }), "{offset}: {error}");
        }
    }

    #[test]
    fn a_gzip_file_followed_by_other_bytes_is_refused() {
        let folder = TempDir::new().unwrap();
        let bytes = [gzip(&small_images()), b"more".to_vec()].concat();
        let path = write(folder.path(), "images.gz", &bytes);

        let error = read_images(&path).unwrap_err();

        assert!(matches!(error, DataError::CorruptGzip { .. }), "{error}");
    }

    #[test]
    fn offsets_in_a_compressed_file_are_said_to_count_decompressed_bytes() {
        let folder = TempDir::new().unwrap();
        let bytes = small_images();
        let path = write(folder.path(), "images.gz", &gzip(&bytes[..20]));

        let message = read_images(&path).unwrap_err().to_string();

        assert_eq!(
            message,
            format!(
                "`{}` (decompressed) ends at byte 20, cut off: 28 bytes are needed for 2 images of 2×3",
                path.display()
            )
        );
    }

    #[test]
    fn labels_in_place_of_images_are_refused() {
        assert_eq!(
            images_error(encode_labels(&[3, 1, 4])),
            "`train` starts with 0x00000801 at byte 0; an IDX file of images starts with 0x00000803"
        );
    }

    #[test]
    fn images_in_place_of_labels_are_refused() {
        assert_eq!(
            labels_error(small_images()),
            "`train` starts with 0x00000803 at byte 0; an IDX file of labels starts with 0x00000801"
        );
    }

    #[test]
    fn bytes_after_the_last_image_are_refused() {
        let mut bytes = small_images();
        bytes.extend([0; 5]);

        assert_eq!(
            images_error(bytes),
            "`train` has 5 bytes too many: it should end at byte 28, after 2 images of 2×3"
        );
    }

    #[test]
    fn bytes_after_the_last_label_are_refused() {
        let mut bytes = encode_labels(&[3, 1, 4]);
        bytes.push(0);

        assert_eq!(
            labels_error(bytes),
            "`train` has 1 bytes too many: it should end at byte 11, after 3 labels"
        );
    }

    #[test]
    fn a_label_out_of_range_is_refused_with_the_place_of_the_label() {
        assert_eq!(
            labels_error(encode_labels(&[3, 1, 10, 1, 11])),
            "`train` has label 10 at byte 10; the 10 classes are numbered 0 to 9"
        );
    }

    #[test]
    fn zero_images_rows_or_columns_are_refused_with_the_place_of_the_number() {
        for (offset, dimension) in [(4, "images"), (8, "rows"), (12, "columns")] {
            let mut bytes = small_images();
            bytes[offset..offset + 4].fill(0);

            assert_eq!(
                images_error(bytes),
                format!("`train` announces 0 {dimension} at byte {offset}; at least 1 is needed")
            );
        }
    }

    #[test]
    fn zero_labels_are_refused() {
        assert_eq!(
            labels_error(encode_labels(&[])),
            "`train` announces 0 labels at byte 4; at least 1 is needed"
        );
    }

    #[test]
    fn a_header_that_announces_more_than_memory_holds_is_cut_off_not_a_crash() {
        let bytes = [&IMAGES_MAGIC.to_be_bytes()[..], &[0xff; 12]].concat();

        assert_eq!(
            images_error(bytes),
            "`train` ends at byte 16, cut off: 79228162458924105385300197391 bytes are needed \
             for 4294967295 images of 4294967295×4294967295"
        );
    }

    #[test]
    fn more_labels_than_images_are_refused_with_both_files() {
        let images = parse_images(plain("the-images"), small_images()).unwrap();
        let labels = parse_labels(plain("the-labels"), encode_labels(&[3, 1, 4]), 10).unwrap();

        let error = pair(images, labels).unwrap_err();

        assert_eq!(
            error.to_string(),
            "`the-images` holds 2 images but `the-labels` holds 3 labels; each image needs one label"
        );
    }

    #[test]
    fn a_missing_file_is_refused_with_its_name() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("nothing-here");

        let error = read_images(&path).unwrap_err();

        assert_eq!(error.to_string(), format!("cannot read `{}`", path.display()));
    }

    #[test]
    fn a_folder_in_place_of_a_file_is_refused_with_its_name() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("images");
        fs::create_dir(&path).unwrap();

        let error = read_labels(&path, 10).unwrap_err();

        assert_eq!(error.to_string(), format!("cannot read `{}`", path.display()));
    }
}
