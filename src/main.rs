//! The command `omnivore`.

use std::process::ExitCode;

fn main() -> ExitCode {
    omnivore::cli::main()
}
