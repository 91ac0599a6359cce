//! Progress on one line of a terminal.

use std::io::{IsTerminal, Write};

/// Prints the current step; silent unless stderr is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub(crate) fn show(&self, what: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{what}");
            // A failure to print progress is ignored.
            let _ = std::io::stderr().flush();
        }
    }

    /// Clears the line.
    pub(crate) fn clear(&self) {
        self.show("");
    }
}
