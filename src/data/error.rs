//! Everything that can be wrong with a data set, with the file and the place in it.

use std::fmt;
use std::path::{Path, PathBuf};

use super::ImageShape;

/// The bytes that an offset in an error counts: a file's own, or what a gzip
/// file decompresses to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The bytes of the file as they lie on disk.
    Plain(PathBuf),
    /// The bytes that the gzip file decompresses to.
    Decompressed(PathBuf),
}

impl Content {
    /// The file that holds these bytes.
    pub fn path(&self) -> &Path {
        match self {
            Content::Plain(path) | Content::Decompressed(path) => path,
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Plain(path) => write!(f, "`{}`", path.display()),
            Content::Decompressed(path) => write!(f, "`{}` (decompressed)", path.display()),
        }
    }
}

/// Why a data set cannot be used.
///
/// Offsets count bytes from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused to read a file or folder.
    #[error("cannot read `{}`", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },

    /// A gzip file is damaged or cut off; `offset` counts compressed bytes.
    #[error(
        "`{}` is not a whole gzip file: decompression fails at byte {offset} of the compressed file",
        path.display()
    )]
    CorruptGzip { path: PathBuf, offset: usize, source: std::io::Error },

    /// The first four bytes are not those of the expected kind of IDX file.
    #[error(
        "{content} starts with {found:#010x} at byte 0; an IDX file of {kind} starts with {expected:#010x}"
    )]
    BadMagic { content: Content, kind: &'static str, found: u32, expected: u32 },

    /// The content ends before its header says that it does.
    #[error("{content} ends at byte {offset}, cut off: {expected} bytes are needed for {what}")]
    Truncated { content: Content, offset: usize, expected: u128, what: String },

    /// The content goes on after its header says that it ends.
    #[error("{content} has {extra} bytes too many: it should end at byte {offset}, after {what}")]
    TrailingBytes { content: Content, offset: usize, extra: usize, what: String },

    /// An IDX header announces zero images, labels, rows or columns.
    #[error("{content} announces 0 {dimension} at byte {offset}; at least 1 is needed")]
    ZeroDimension { content: Content, dimension: &'static str, offset: usize },

    /// The images are well formed but not of the size that this data set has.
    #[error(
        "{content} announces images of {found_height}×{found_width} at byte {offset}; {data_set} has images of {expected_height}×{expected_width}"
    )]
    UnexpectedSize {
        content: Content,
        offset: usize,
        data_set: &'static str,
        found_height: usize,
        found_width: usize,
        expected_height: usize,
        expected_width: usize,
    },

    /// A label names a class that does not exist; `offset` is that of the label.
    #[error(
        "{content} has label {label} at byte {offset}; the {classes} classes are numbered 0 to {}",
        classes - 1
    )]
    LabelOutOfRange { content: Content, offset: usize, label: u8, classes: usize },

    /// An images file and its labels file do not belong together.
    #[error(
        "{images_content} holds {images} images but {labels_content} holds {labels} labels; each image needs one label"
    )]
    CountMismatch { images_content: Content, images: usize, labels_content: Content, labels: usize },

    /// A CIFAR file ends inside a record.
    #[error(
        "`{}` ends at byte {offset}, cut off inside record {record}, which starts at byte {start} and needs {record_bytes} bytes",
        path.display()
    )]
    PartialRecord { path: PathBuf, record: usize, start: usize, offset: usize, record_bytes: usize },

    /// A file holds nothing.
    #[error("`{}` holds no images: it ends at byte 0", path.display())]
    EmptyFile { path: PathBuf },

    /// One file of a data set is missing where the others are.
    #[error("`{}` is missing; {needed}", path.display())]
    MissingFile { path: PathBuf, needed: String },

    /// A data set is in none of the places where it may be.
    #[error(
        "{data_set} was found in none of these folders: {}; fetch it with `scripts/fetch-data`, or name the folder that holds it",
        listed(places)
    )]
    NotFound { data_set: &'static str, places: Vec<PathBuf> },

    /// The `image` crate cannot decode a file.
    #[error("cannot decode the image `{}`", path.display())]
    CorruptImage { path: PathBuf, source: image::ImageError },

    /// An image file lacks the marker that ends it, which decoders overlook.
    #[error(
        "the image `{}` ends at byte {offset}, cut off: its end marker is missing",
        path.display()
    )]
    TruncatedImage { path: PathBuf, offset: usize },

    /// An image has transparency or more than 8 bits per channel.
    #[error(
        "the image `{}` has pixels of type {found}; 8-bit grey or 8-bit RGB without transparency is needed",
        path.display()
    )]
    UnsupportedColour { path: PathBuf, found: String },

    /// Two images of one data set differ in size or in their number of channels.
    #[error(
        "the image `{}` is {found} but `{}` is {expected} (channels×height×width); all images of a data set must agree",
        path.display(),
        first_path.display()
    )]
    ImageShapeMismatch {
        path: PathBuf,
        found: ImageShape,
        first_path: PathBuf,
        expected: ImageShape,
    },

    /// A folder that should hold one folder per class holds none.
    #[error("`{}` holds no folder of a class; put the images of each class into a folder of its own", path.display())]
    NoClasses { path: PathBuf },

    /// A class without images.
    #[error("the folder `{}` of a class holds no image; png and jpg files are read", path.display())]
    EmptyClass { path: PathBuf },

    /// Something lies where only folders of classes or image files may lie.
    #[error("`{}` is not {expected}; remove it or move it elsewhere", path.display())]
    StrayFile { path: PathBuf, expected: &'static str },

    /// The training and the test folder do not have the same classes.
    #[error(
        "`{}` has the classes {} but `{}` has {}; both must have the same",
        training_path.display(),
        quoted(training),
        test_path.display(),
        quoted(test)
    )]
    ClassMismatch {
        training_path: PathBuf,
        training: Vec<String>,
        test_path: PathBuf,
        test: Vec<String>,
    },

    /// More classes than a label of one byte can number.
    #[error("`{}` holds {found} classes; at most {most} are supported", path.display())]
    TooManyClasses { path: PathBuf, found: usize, most: usize },

    /// A channel that never varies cannot be scaled to unit deviation.
    #[error(
        "every training image of `{data_set}` has the value {value} in all of channel {channel}; a channel without variation cannot be normalised, leave it out"
    )]
    ConstantChannel { data_set: String, channel: usize, value: u8 },

    /// A scale that would make inputs infinite or not a number.
    #[error(
        "channel {channel} cannot be normalised by mean {mean} and deviation {deviation}; both must be finite and the deviation positive"
    )]
    BadScale { channel: usize, mean: f32, deviation: f32 },

    /// Pixels that do not make up one image per label.
    #[error(
        "{pixels} pixel values do not make {labels} images of {shape} (channels×height×width), which need {expected}"
    )]
    PixelCount { pixels: usize, labels: usize, shape: ImageShape, expected: u128 },

    /// The validation set would leave nothing to train on.
    #[error(
        "{requested} validation examples leave nothing to train on: `{data_set}` has {available} training examples, so at most {} can be held out",
        available.saturating_sub(1)
    )]
    ValidationTooLarge { data_set: String, requested: usize, available: usize },

    /// The network was described for other data.
    #[error(
        "the data `{data_set}` has images of {data_shape} (channels×height×width) in {data_classes} classes, but the network takes images of {network_shape} in {network_classes} classes"
    )]
    NetworkMismatch {
        data_set: String,
        data_shape: ImageShape,
        data_classes: usize,
        network_shape: ImageShape,
        network_classes: usize,
    },
}

fn listed(places: &[PathBuf]) -> String {
    let names: Vec<String> = places.iter().map(|place| format!("`{}`", place.display())).collect();
    names.join(", ")
}

fn quoted(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
