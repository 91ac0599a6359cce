//! What `strata export` and `strata import` have in common: the digest of an archive, and messages.

use crate::change_list::shown;
use crate::exit::Failure;
use crate::progress::Transfer;
use changes::oci::LayerError;
use core::fmt::Write as _;
use sha2::{Digest as _, Sha256};
use std::io::{self, Read, Write};

/// Passes bytes on, computes their digest, and shows how many there were.
#[derive(Debug)]
pub(crate) struct Digesting<S> {
    stream: S,
    digest: Sha256,
    progress: Option<Transfer>,
}

impl<S> Digesting<S> {
    pub(crate) fn new(stream: S, progress: Option<Transfer>) -> Self {
        Self { stream, digest: Sha256::new(), progress }
    }

    /// Returns the digest as OCI images write it: `sha256:` and 64 hexadecimal digits.
    pub(crate) fn digest(self) -> String {
        let mut text = "sha256:".to_owned();
        for byte in self.digest.finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        if let Some(progress) = &mut self.progress {
            progress.add(bytes.len());
        }
    }
}

impl<S: Write> Write for Digesting<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.stream.write(bytes)?;
        self.passed(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S: Read> Read for Digesting<S> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(out)?;
        self.passed(out.get(..read).unwrap_or_default());
        Ok(read)
    }
}

/// Returns the reason in a system's message.
pub(crate) fn reason(error: &io::Error) -> String {
    let errno = rustix::io::Errno::from_io_error(error);
    errno.map_or_else(|| error.to_string(), crate::host_dir::reason)
}

/// Returns the failure for an error. `archive` and `branch` are names for messages.
pub(crate) fn failure(error: LayerError, archive: &str, branch: &str) -> Failure {
    match error {
        // Not from the system: the archive has another digest than wanted.
        LayerError::Stream(error) if error.raw_os_error().is_none() => Failure::usage(format!("{archive}: {error}")),
        LayerError::Stream(error) => Failure::system(format!("{archive}: {}", reason(&error))),
        LayerError::Archive { at, reason } => Failure::usage(format!("{archive}: byte {at}: {reason}")),
        LayerError::Refused { path, reason } => Failure::usage(format!("{}: {reason}", shown(&path))),
        LayerError::Failed(failed) => {
            let (path, errno) = (shown(&failed.path), crate::host_dir::reason(failed.errno));
            Failure::system(format!("{branch}: {path}: can't {}: {errno}", failed.step))
        }
        LayerError::NotEmpty => Failure::usage(format!("{branch}: is not empty; import into an empty directory")),
        LayerError::Remains { cause, failed } => {
            let cause = failure(*cause, archive, branch);
            cause.map(|cause| format!("{cause}; a part of the archive remains in {branch}, because of {failed}"))
        }
    }
}
