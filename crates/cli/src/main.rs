//! Entry point of all command-line programs; the library of this crate implements them.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(&std::env::args_os().collect::<Vec<_>>())
}
