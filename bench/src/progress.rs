//! What runs now, on one line of a terminal.

use std::io::{IsTerminal, Write};

/// Says what runs; silent unless stderr is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub(crate) fn say(&self, what: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{what}");
            // A line that does not appear costs nobody anything.
            let _ = std::io::stderr().flush();
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        self.say("");
    }
}
