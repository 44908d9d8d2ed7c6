//! Reads a file whole, decompressing it when its name ends in `.gz`.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::{Content, DataError};

/// The bytes of `path`, and what offsets into them mean.
pub(super) fn read(path: &Path) -> Result<(Content, Vec<u8>), DataError> {
    let bytes = read_file(path)?;
    if path.extension() == Some(OsStr::new("gz")) {
        decompress(path, &bytes)
    } else {
        Ok((Content::Plain(path.to_owned()), bytes))
    }
}

/// The bytes of `path` as they lie on disk.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    crate::files::read(path)
        .map_err(|source| DataError::Unreadable { path: path.to_owned(), source })
}

/// What `compressed` decompresses to; bytes after the last gzip member are an error.
pub(super) fn decompress(path: &Path, compressed: &[u8]) -> Result<(Content, Vec<u8>), DataError> {
    let mut decoder = MultiGzDecoder::new(compressed);
    let mut bytes = Vec::new();
    match decoder.read_to_end(&mut bytes) {
        Ok(_) => Ok((Content::Decompressed(path.to_owned()), bytes)),
        Err(source) => Err(DataError::CorruptGzip {
            path: path.to_owned(),
            offset: compressed.len() - decoder.get_ref().len(),
            source,
        }),
    }
}
