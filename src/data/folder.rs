//! A folder of images, one folder per class.
//!
//! `train/<class>/*.png` and `test/<class>/*.png`, likewise `.jpg` and `.jpeg`.
//! Classes are numbered by the order of their names, images come in the order
//! of class and file name (both byte by byte). All images have one size and
//! are all 8-bit grey or all 8-bit RGB. Names that begin with a dot are passed
//! over; anything else is refused, since a file that is quietly left out
//! changes the result.

use std::ffi::OsStr;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageReader};

use super::content::read_file;
use super::error::DataError;
use super::{Examples, ImageShape, Parts, Scale};

/// A label is one byte.
const CLASSES_MOST: usize = 256;
const IMAGE_EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Reads the folder that holds `train` and `test`.
pub(super) fn read(folder: &Path) -> Result<Parts, DataError> {
    let (training_path, test_path) = (folder.join("train"), folder.join("test"));
    let training_classes = class_folders(&training_path)?;
    let test_classes = class_folders(&test_path)?;
    let class_names = names(&training_classes);
    if class_names != names(&test_classes) {
        return Err(DataError::ClassMismatch {
            training_path,
            training: class_names,
            test_path,
            test: names(&test_classes),
        });
    }
    let mut reader = Reader::default();
    Ok(Parts {
        name: folder.display().to_string(),
        class_names,
        training: reader.read_classes(&training_classes)?,
        test: reader.read_classes(&test_classes)?,
        scale: Scale::OfTrainingSet,
    })
}

/// The folders of the classes in `path`, by name.
fn class_folders(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let classes = visible_entries(path)?;
    if let Some(stray) = classes.iter().find(|class| !class.is_dir()) {
        return Err(DataError::StrayFile { path: stray.clone(), expected: "a folder of a class" });
    }
    match classes.len() {
        0 => Err(DataError::NoClasses { path: path.to_owned() }),
        found if found > CLASSES_MOST => {
            Err(DataError::TooManyClasses { path: path.to_owned(), found, most: CLASSES_MOST })
        }
        _ => Ok(classes),
    }
}

/// The image files of one class, by name.
fn image_files(class: &Path) -> Result<Vec<PathBuf>, DataError> {
    let files = visible_entries(class)?;
    if let Some(stray) = files.iter().find(|file| !is_image_file(file)) {
        return Err(DataError::StrayFile { path: stray.clone(), expected: "a png or jpg file" });
    }
    if files.is_empty() {
        return Err(DataError::EmptyClass { path: class.to_owned() });
    }
    Ok(files)
}

/// What lies in `folder`, sorted, without names that begin with a dot.
fn visible_entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |source| DataError::Unreadable { path: folder.to_owned(), source };
    let mut paths = fs::read_dir(folder)
        .map_err(unreadable)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<PathBuf>, _>>()
        .map_err(unreadable)?;
    paths.retain(|path| !name_of(path).as_encoded_bytes().starts_with(b"."));
    paths.sort();
    Ok(paths)
}

fn is_image_file(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    let mut known_extensions = IMAGE_EXTENSIONS.iter();
    path.is_file() && known_extensions.any(|known| extension.eq_ignore_ascii_case(known))
}

fn names(classes: &[PathBuf]) -> Vec<String> {
    classes.iter().map(|class| name_of(class).to_string_lossy().into_owned()).collect()
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Reads images and holds all to the shape of the first.
#[derive(Default)]
struct Reader {
    first: Option<(PathBuf, ImageShape)>,
}

impl Reader {
    fn read_classes(&mut self, classes: &[PathBuf]) -> Result<Examples, DataError> {
        let (mut pixels, mut labels, mut shape) = (Vec::new(), Vec::new(), None);
        for (label, class) in (0..=u8::MAX).zip(classes) {
            for file in image_files(class)? {
                shape = Some(self.read_image(file, &mut pixels)?);
                labels.push(label);
            }
        }
        let shape = shape.expect("there is a class, and every class has an image");
        Examples::new(shape, pixels, labels)
    }

    /// Appends one image `[channel, row, column]` to `pixels`.
    fn read_image(&mut self, path: PathBuf, pixels: &mut Vec<u8>) -> Result<ImageShape, DataError> {
        let image = decode(&path)?;
        let shape = shape_of(&path, &image)?;
        let (first_path, expected) = self.first.get_or_insert_with(|| (path.clone(), shape));
        if shape != *expected {
            return Err(DataError::ImageShapeMismatch {
                path,
                found: shape,
                first_path: first_path.clone(),
                expected: *expected,
            });
        }
        // The decoder gives `[row, column, channel]`.
        let interleaved = image.as_bytes();
        for channel in 0..shape.channels {
            pixels.extend(interleaved.iter().skip(channel).step_by(shape.channels));
        }
        Ok(shape)
    }
}

fn decode(path: &Path) -> Result<DynamicImage, DataError> {
    let bytes = read_file(path)?;
    let corrupt = |source| DataError::CorruptImage { path: path.to_owned(), source };
    let image = ImageReader::new(Cursor::new(&bytes))
        .with_guessed_format()
        .map_err(|source| DataError::Unreadable { path: path.to_owned(), source })?
        .decode()
        .map_err(corrupt)?;
    check_end(path, &bytes)?;
    Ok(image)
}

fn shape_of(path: &Path, image: &DynamicImage) -> Result<ImageShape, DataError> {
    let channels = match image {
        DynamicImage::ImageLuma8(_) => 1,
        DynamicImage::ImageRgb8(_) => 3,
        other => {
            return Err(DataError::UnsupportedColour {
                path: path.to_owned(),
                found: format!("{:?}", other.color()),
            });
        }
    };
    let side = |pixels: u32| usize::try_from(pixels).expect("a usize has at least 32 bits");
    Ok(ImageShape { channels, height: side(image.height()), width: side(image.width()) })
}

/// Refuses an image that was cut off: the decoders fill in what is missing at
/// the end of a JPEG file, and do not look for the last chunk of a PNG file.
fn check_end(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
    const PNG_LAST_CHUNK: &[u8] = b"\0\0\0\0IEND\xae\x42\x60\x82";
    const JPEG_START_OF_IMAGE: &[u8] = b"\xff\xd8";
    const JPEG_START_OF_SCAN: &[u8] = b"\xff\xda";
    const JPEG_END_OF_IMAGE: &[u8] = b"\xff\xd9";

    let last = |marker: &[u8]| bytes.windows(marker.len()).rposition(|bytes| bytes == marker);
    let whole = if bytes.starts_with(PNG_SIGNATURE) {
        last(PNG_LAST_CHUNK).is_some()
    } else if bytes.starts_with(JPEG_START_OF_IMAGE) {
        // Within a scan no marker occurs, and a thumbnail comes before it:
        // the end of the image itself is the one after the last scan.
        last(JPEG_END_OF_IMAGE) > last(JPEG_START_OF_SCAN)
    } else {
        true
    };
    if whole {
        Ok(())
    } else {
        Err(DataError::TruncatedImage { path: path.to_owned(), offset: bytes.len() })
    }
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, ImageFormat, Luma, LumaA, Rgb, RgbImage, Rgba};
    use tempfile::TempDir;

    use super::super::test_files::write;
    use super::*;

    fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.into().write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    /// Two rows of three columns: `value`, `value` + 1, ….
    fn grey(value: u8) -> GrayImage {
        GrayImage::from_fn(3, 2, |x, y| Luma([value + (3 * y + x) as u8]))
    }

    fn grey_png(value: u8) -> Vec<u8> {
        encoded(grey(value), ImageFormat::Png)
    }

    /// Two classes with two training images and one test image each.
    fn small_folder() -> TempDir {
        let folder = TempDir::new().unwrap();
        for (name, value) in [
            ("train/dog/b.png", 10),
            ("train/dog/a.png", 20),
            ("train/cat/z.PNG", 30),
            ("train/cat/y.png", 40),
            ("test/cat/1.png", 50),
            ("test/dog/1.png", 60),
        ] {
            write(folder.path(), name, &grey_png(value));
        }
        folder
    }

    fn message(folder: &TempDir) -> String {
        let message = read(folder.path()).unwrap_err().to_string();
        message.replace(&*folder.path().to_string_lossy(), "FOLDER")
    }

    #[test]
    fn classes_are_numbered_by_name_and_images_come_in_the_order_of_their_names() {
        let folder = small_folder();

        let parts = read(folder.path()).unwrap();

        assert_eq!(parts.class_names, ["cat", "dog"]);
        assert_eq!(parts.training.labels(), [0, 0, 1, 1]);
        let first_pixels: Vec<u8> = (0..4).map(|i| parts.training.image(i)[0]).collect();
        assert_eq!(first_pixels, [40, 30, 20, 10]);
        assert_eq!(parts.training.image(0), [40, 41, 42, 43, 44, 45]);
        assert_eq!(parts.test.labels(), [0, 1]);
        assert_eq!(parts.test.image(1)[0], 60);
    }

    #[test]
    fn colours_are_parted_into_channels() {
        let folder = TempDir::new().unwrap();
        let image = RgbImage::from_fn(2, 1, |x, _| Rgb([1 + x as u8, 11 + x as u8, 21 + x as u8]));
        let png = encoded(image, ImageFormat::Png);
        write(folder.path(), "train/one/a.png", &png);
        write(folder.path(), "test/one/a.png", &png);

        let parts = read(folder.path()).unwrap();

        let shape = parts.training.shape();
        assert_eq!((shape.channels, shape.height, shape.width), (3, 1, 2));
        assert_eq!(parts.training.image(0), [1, 2, 11, 12, 21, 22]);
    }

    #[test]
    fn jpeg_files_are_read() {
        let folder = small_folder();
        let flat = GrayImage::from_pixel(3, 2, Luma([128]));
        let jpeg = encoded(flat, ImageFormat::Jpeg);
        write(folder.path(), "test/cat/2.jpg", &jpeg);
        write(folder.path(), "test/cat/3.jpeg", &jpeg);

        let parts = read(folder.path()).unwrap();

        assert_eq!(parts.test.labels(), [0, 0, 0, 1]);
        // An image of one shade survives compression exactly.
        assert_eq!(parts.test.image(1), [128; 6]);
    }

    #[test]
    fn hidden_files_are_passed_over() {
        let folder = small_folder();
        write(folder.path(), "train/.hidden", b"");
        write(folder.path(), "train/cat/.hidden", b"");

        assert_eq!(read(folder.path()).unwrap().training.len(), 4);
    }

    #[test]
    fn an_image_of_another_size_is_refused_with_both_files_and_both_sizes() {
        let folder = small_folder();
        let wide = encoded(GrayImage::new(4, 2), ImageFormat::Png);
        write(folder.path(), "test/dog/2.png", &wide);

        assert_eq!(
            message(&folder),
            "the image `FOLDER/test/dog/2.png` is 1×2×4 but `FOLDER/train/cat/y.png` is 1×2×3 \
             (channels×height×width); all images of a data set must agree"
        );
    }

    #[test]
    fn a_coloured_image_among_grey_ones_is_refused() {
        let folder = small_folder();
        let colour = encoded(RgbImage::new(3, 2), ImageFormat::Png);
        write(folder.path(), "train/dog/c.png", &colour);

        assert_eq!(
            message(&folder),
            "the image `FOLDER/train/dog/c.png` is 3×2×3 but `FOLDER/train/cat/y.png` is 1×2×3 \
             (channels×height×width); all images of a data set must agree"
        );
    }

    #[test]
    fn transparency_and_deep_colour_are_refused_with_their_name() {
        let transparent = image::RgbaImage::from_pixel(3, 2, Rgba([1, 2, 3, 4]));
        let transparent_grey = image::GrayAlphaImage::from_pixel(3, 2, LumaA([1, 2]));
        let deep = image::ImageBuffer::from_pixel(3, 2, Luma([1_u16]));
        let cases: [(DynamicImage, &str); 3] =
            [(transparent.into(), "Rgba8"), (transparent_grey.into(), "La8"), (deep.into(), "L16")];
        for (image, found) in cases {
            let folder = small_folder();
            let png = encoded(image, ImageFormat::Png);
            write(folder.path(), "test/dog/2.png", &png);

            assert_eq!(
                message(&folder),
                format!(
                    "the image `FOLDER/test/dog/2.png` has pixels of type {found}; \
                     8-bit grey or 8-bit RGB without transparency is needed"
                )
            );
        }
    }

    #[test]
    fn a_png_file_cut_off_at_any_length_is_refused_with_its_name() {
        let folder = small_folder();
        let whole = grey_png(1);

        for length in 0..whole.len() {
            write(folder.path(), "test/dog/1.png", &whole[..length]);
            assert!(
                message(&folder).contains("`FOLDER/test/dog/1.png`"),
                "{length}: {}",
                message(&folder)
            );
        }
    }

    #[test]
    fn a_jpeg_file_cut_off_at_any_length_is_refused_with_its_name() {
        let folder = small_folder();
        let whole = encoded(grey(1), ImageFormat::Jpeg);

        for length in 0..whole.len() {
            write(folder.path(), "test/dog/1.jpg", &whole[..length]);
            assert!(
                message(&folder).contains("`FOLDER/test/dog/1.jpg`"),
                "{length}: {}",
                message(&folder)
            );
        }
    }

    #[test]
    fn a_damaged_image_is_refused_with_its_name() {
        let folder = small_folder();
        let mut png = grey_png(1);
        let middle = png.len() / 2;
        png[middle] ^= 0x55;
        write(folder.path(), "train/cat/y.png", &png);

        assert_eq!(message(&folder), "cannot decode the image `FOLDER/train/cat/y.png`");
    }

    #[test]
    fn a_class_without_images_is_refused_with_its_folder() {
        let folder = small_folder();
        fs::remove_file(folder.path().join("test/cat/1.png")).unwrap();

        assert_eq!(
            message(&folder),
            "the folder `FOLDER/test/cat` of a class holds no image; png and jpg files are read"
        );
    }

    #[test]
    fn a_folder_without_classes_is_refused() {
        let folder = small_folder();
        fs::remove_dir_all(folder.path().join("test/cat")).unwrap();
        fs::remove_dir_all(folder.path().join("test/dog")).unwrap();

        assert!(
            message(&folder).starts_with("`FOLDER/test` holds no folder of a class; "),
            "{}",
            message(&folder)
        );
    }

    #[test]
    fn different_classes_in_training_and_test_are_refused_with_their_names() {
        let folder = small_folder();
        write(folder.path(), "test/emu/1.png", &grey_png(1));

        assert_eq!(
            message(&folder),
            "`FOLDER/train` has the classes `cat`, `dog` but `FOLDER/test` has \
             `cat`, `dog`, `emu`; both must have the same"
        );
    }

    #[test]
    fn a_file_that_is_no_image_is_refused_rather_than_passed_over() {
        let folder = small_folder();
        write(folder.path(), "train/cat/notes.txt", b"good cats");

        assert_eq!(
            message(&folder),
            "`FOLDER/train/cat/notes.txt` is not a png or jpg file; remove it or move it elsewhere"
        );
    }

    #[test]
    fn an_image_outside_of_any_class_is_refused() {
        let folder = small_folder();
        write(folder.path(), "train/lost.png", &grey_png(1));

        assert_eq!(
            message(&folder),
            "`FOLDER/train/lost.png` is not a folder of a class; remove it or move it elsewhere"
        );
    }

    #[test]
    fn more_classes_than_a_label_can_number_are_refused() {
        let folder = small_folder();
        for number in 0..255 {
            write(folder.path(), &format!("train/class-{number}/a.png"), &grey_png(1));
        }

        assert_eq!(message(&folder), "`FOLDER/train` holds 257 classes; at most 256 are supported");
    }

    #[test]
    fn a_missing_test_folder_is_refused_with_its_name() {
        let folder = small_folder();
        fs::remove_dir_all(folder.path().join("test")).unwrap();

        assert_eq!(message(&folder), "cannot read `FOLDER/test`");
    }
}
