//! Passphrases: from the terminal, a file, a program, or a key file.

use super::warn;
use crate::crypt_host;
use crate::exit::Failure;
use clap::Args;
use cryptformat::Limits;
use cryptfs::{KeySource, Secret};
use std::io::{BufRead as _, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Largest number of bytes, as in gocryptfs.
const LONGEST: usize = 2048;
/// Smallest number of characters of a new passphrase.
const SHORTEST: usize = 16;

/// Where the passphrase of a volume comes from.
#[derive(Clone, Debug, Default, Args)]
pub struct PassphraseArgs {
    /// Read the passphrase from the first line of FILE.
    #[arg(long, value_name = "FILE", group = "source")]
    pub passfile: Option<PathBuf>,
    /// Read the passphrase from the first line of the output of COMMAND, which /bin/sh runs.
    #[arg(long, value_name = "COMMAND", group = "source")]
    pub extpass: Option<String>,
    /// Use the key file FILE, of 16 to 1024 bytes: the passphrase is its content in hexadecimal.
    #[arg(long, value_name = "FILE", group = "source")]
    pub key_file: Option<PathBuf>,
    /// Largest memory for deriving a key from the passphrase.
    #[arg(long, value_name = "MIB", default_value_t = 2048, hide_short_help = true)]
    pub memory_limit: u64,
}

impl PassphraseArgs {
    /// Reads the passphrase of an existing volume.
    ///
    /// # Errors
    /// Names the source and the reason.
    pub fn read(&self) -> Result<Secret, Failure> {
        read(&self.source(), "Passphrase: ")
    }

    /// Returns the limits of key derivations.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { memory: self.memory_limit.saturating_mul(1 << 20) }
    }

    pub(super) fn source(&self) -> KeySource {
        source(self.passfile.as_deref(), self.extpass.as_deref(), self.key_file.as_deref())
    }
}

/// Returns the source that options name.
pub(super) fn source(passfile: Option<&Path>, extpass: Option<&str>, key_file: Option<&Path>) -> KeySource {
    match (passfile, extpass, key_file) {
        (Some(file), _, _) => KeySource::File(file.to_owned()),
        (_, Some(command), _) => KeySource::Command(command.to_owned()),
        (_, _, Some(file)) => KeySource::KeyFile(file.to_owned()),
        _ => KeySource::Ask,
    }
}

fn read(source: &KeySource, prompt: &str) -> Result<Secret, Failure> {
    match source {
        KeySource::Ask => ask(prompt),
        KeySource::File(path) | KeySource::KeyFile(path) => {
            if crypt_host::is_readable_by_others(path) {
                let shown = path.display();
                warn(&format!("{shown}: other users can read it; run chmod 600 {shown}"));
            }
            crypt_host::passphrase(source, prompt).map_err(Failure::system)
        }
        other => crypt_host::passphrase(other, prompt).map_err(Failure::system),
    }
}

/// Reads a new passphrase, twice from a terminal, and checks its length.
pub(super) fn read_new(source: &KeySource, short: bool) -> Result<Secret, Failure> {
    let passphrase = read(source, "New passphrase: ")?;
    if *source == KeySource::Ask && std::io::stdin().is_terminal() && *ask("Repeat: ")? != *passphrase {
        return Err(Failure::usage("the two passphrases differ; try again"));
    }
    let characters = String::from_utf8_lossy(&passphrase).chars().count();
    // Nobody guesses a key file.
    if !short && !matches!(source, KeySource::KeyFile(_)) && characters < SHORTEST {
        return Err(Failure::usage(format!(
            "the passphrase has {characters} characters; use at least {SHORTEST}, such as five words, or \
             --short-passphrase"
        )));
    }
    Ok(passphrase)
}

/// Reads a line from the terminal, without echo. If standard input is no terminal, reads its next
/// line.
pub(super) fn ask(prompt: &str) -> Result<Secret, Failure> {
    let line = if std::io::stdin().is_terminal() {
        let typed = rpassword::prompt_password(prompt);
        let typed = typed.map_err(|error| Failure::system(format!("can't read from the terminal: {error}")))?;
        Zeroizing::new(typed.into_bytes())
    } else {
        next_line()?
    };
    match line.len() {
        0 => Err(Failure::usage(format!("{}nothing was entered", prompt.to_lowercase()))),
        1..=LONGEST => Ok(line),
        _ => Err(Failure::usage(format!("{}more than {LONGEST} bytes", prompt.to_lowercase()))),
    }
}

/// Returns the next line of standard input, without its end.
fn next_line() -> Result<Secret, Failure> {
    // Large enough, so that no copy remains where it was before it grew.
    let mut line = Zeroizing::new(Vec::with_capacity(LONGEST + 2));
    let read = std::io::stdin().lock().take(LONGEST as u64 + 2).read_until(b'\n', &mut line);
    read.map_err(|error| Failure::system(format!("can't read standard input: {error}")))?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(line)
}
