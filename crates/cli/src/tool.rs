//! What the commands have in common: their entry points, and output.

use crate::exit::{Exit, Failure};
use crate::progress;
use clap::Parser;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};

/// Whether `program`, in any directory, has this name.
#[must_use]
pub(crate) fn is_called(program: &[u8], name: &str) -> bool {
    program.rsplit(|byte| *byte == b'/').next() == Some(name.as_bytes())
}

/// Parses `args`, runs the command with this name and returns its exit status.
pub(crate) fn run<C: Parser>(name: &str, args: &[OsString], execute: impl FnOnce(&C) -> Result<(), Failure>) -> Exit {
    match C::try_parse_from(args) {
        Ok(cli) => match execute(&cli) {
            Ok(()) => Exit::Success,
            Err(failure) => {
                let _ = writeln!(std::io::stderr(), "{name}: {failure}");
                failure.exit
            }
        },
        Err(error) => {
            let _ = error.print();
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
                _ => Exit::Usage,
            }
        }
    }
}

/// Writes to standard output. A reader that has closed its end is no error.
///
/// # Errors
/// The reason.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    progress::erase();
    let mut out = std::io::stdout();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::system(format!("can't write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints one of a series of drawings; on a terminal it replaces the previous one. Returns false
/// once the reader has closed the pipe.
pub(crate) fn show_again(drawn: &str, json: bool) -> Result<bool, Failure> {
    const HOME_AND_CLEAR: &str = "\x1b[H\x1b[2J";
    let mut out = std::io::stdout();
    let (before, after) = match (out.is_terminal(), json) {
        (true, false) => (HOME_AND_CLEAR, ""),
        (false, false) => ("", "\n"),
        (_, true) => ("", ""),
    };
    match write!(out, "{before}{drawn}{after}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system(format!("can't write to standard output: {error}"))),
    }
}
