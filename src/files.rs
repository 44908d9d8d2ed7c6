//! Opens what a user names where a file belongs: a file, and nothing that would be waited for.
//!
//! A named pipe has its reader wait for a writer, a device may never end. So both are refused, and
//! so is a folder, before anything is read.

use std::fs::{self, File, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens a file for reading.
///
/// # Errors
/// The system's, or that what is there is no file.
pub fn open(path: &Path) -> io::Result<File> {
    check(path)?;
    File::open(path)
}

/// The bytes of a file.
///
/// # Errors
/// As for [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    fs::read(path)
}

/// Looks whether there is a file; a link to one is as good.
///
/// # Errors
/// As for [`open`].
pub fn check(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?.file_type();
    if found.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, not a file", name(found))))
}

fn name(found: FileType) -> &'static str {
    match found {
        found if found.is_dir() => "a folder",
        found if found.is_fifo() => "a named pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_by_its_name_and_a_link_to_a_file_is_one() {
        let place = tempfile::tempdir().expect("a scratch folder");
        let path = |name: &str| place.path().join(name);
        let pipe = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(pipe.expect("mkfifo is there").success());
        let socket = std::os::unix::net::UnixListener::bind(path("socket"));
        socket.expect("the scratch folder is writable");
        fs::write(path("file"), "text").expect("writable");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("writable");
        for (what, expected) in [
            (path("pipe"), "it is a named pipe, not a file"),
            (path("socket"), "it is a socket, not a file"),
            (place.path().to_owned(), "it is a folder, not a file"),
            (Path::new("/dev/null").to_owned(), "it is a device, not a file"),
        ] {
            let opened = open(&what).map(drop).expect_err("refused").to_string();
            let read = read(&what).map(drop).expect_err("refused").to_string();
            assert_eq!((opened.as_str(), read.as_str()), (expected, expected));
        }
        assert_eq!(read(&path("link")).expect("a file"), b"text");
        assert_eq!(open(&path("none")).expect_err("not there").kind(), io::ErrorKind::NotFound);
    }
}
