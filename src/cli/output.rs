//! Standard output and standard error.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to standard output. A reader that has seen enough, such as `head`, is no error: what a
/// verb makes lies in its folder all the same.
pub fn write(text: Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    match output.write_fmt(text).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            say(format_args!("cannot write to standard output: {error}"));
            std::process::exit(1);
        }
        _ => {}
    }
}

/// Writes a line to standard error; where nobody reads it there is nobody to be told.
pub fn say(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// `print!` to a reader that may go away.
macro_rules! out {
    ($($text:tt)*) => { $crate::cli::output::write(format_args!($($text)*)) };
}

/// `println!` to a reader that may go away.
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::cli::output::write(format_args!("{}\n", format_args!($($text)*)))
    };
}
