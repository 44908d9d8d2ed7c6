//! Standard output and standard error.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::path::Path;

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

/// A path as a shell takes it for one word: as it is, or in quotes.
pub fn for_shell(path: &Path) -> String {
    let text = path.display().to_string();
    // What begins like an option is a path all the same.
    let text = if text.starts_with('-') { format!("./{text}") } else { text };
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_is_one_word_to_a_shell_and_the_same_path() {
        let names =
            ["plain-1.d/x", "with space", "it's", "\"double\"", "$HOME", "a;b", "new\nline"];
        for name in names.into_iter().chain(["-x", "*", "~", "#", "ä ö", "back\\slash", "!"]) {
            let script = format!("printf %s {}", for_shell(Path::new(name)));
            let output = std::process::Command::new("sh").args(["-c", &script]).output();
            let said = output.expect("a shell is there").stdout;
            let said = String::from_utf8(said).expect("text");
            assert_eq!(said.strip_prefix("./").unwrap_or(&said), name, "{script}");
        }
        assert_eq!(for_shell(Path::new("scratch/run-2")), "scratch/run-2");
    }
}
