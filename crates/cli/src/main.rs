//! The commands of Strata in one program: see the library of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(&std::env::args_os().collect::<Vec<_>>()).into()
}
