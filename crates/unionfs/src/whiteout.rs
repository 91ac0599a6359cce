//! Reserved names, and whiteouts.

use crate::branch::Lower;
use crate::node::Core;
use crate::op::Op;
use sha2::{Digest, Sha256};
use vnode::{Errno, NAME_MAX, Name, Result};

/// Prefix of all reserved names.
pub(crate) const PREFIX: &[u8] = b".wh.";
/// Prefix of reserved names that are not plain whiteouts.
const META: &[u8] = b".wh..wh.";
/// Prefix of the names of whiteouts that contain a digest: see [`is_long`].
const LONG: &[u8] = b".wh..wh.l.";
/// The opaque mark of Unionfs 2. It has the form of a whiteout's name, but is none.
pub(crate) const OLD_OPAQUE: &[u8] = b".wh.__dir_opaque";

/// Whether the name is reserved for the union.
pub(crate) fn reserved(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The name of a whiteout, in a buffer on the stack.
pub(crate) struct WhiteoutName {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl WhiteoutName {
    /// Returns the name of the whiteout of `name`.
    pub(crate) fn of(name: &[u8]) -> Self {
        let mut this = Self { bytes: [0; NAME_MAX], len: 0 };
        if !is_long(name) {
            this.push(PREFIX);
            this.push(name);
        } else {
            this.push(LONG);
            this.push(&long_digest(name));
        }
        this
    }

    fn push(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len();
        }
    }

    pub(crate) fn name(&self) -> Result<Name<'_>> {
        Name::new(self.bytes.get(..self.len).unwrap_or_default())
    }
}

/// Whether the whiteout of `name` has a hashed name: if the name is long, or the whiteout's plain
/// name would be an opaque mark.
pub(crate) fn is_long(name: &[u8]) -> bool {
    PREFIX.len() + name.len() > NAME_MAX || name == b"__dir_opaque"
}

/// Returns the first 32 hexadecimal digits of the name's SHA-256.
pub(crate) fn long_digest(name: &[u8]) -> [u8; 32] {
    let digest = Sha256::digest(name);
    let mut hex = [b'0'; 32];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(digest.iter()) {
        if let [high, low] = pair {
            *high = hex_digit(byte >> 4);
            *low = hex_digit(byte & 15);
        }
    }
    hex
}

fn hex_digit(n: u8) -> u8 {
    if n < 10 { b'0' + n } else { b'a' + n - 10 }
}

/// The meaning of an entry of a lower directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Listed<'a> {
    /// An ordinary entry.
    Plain,
    /// A whiteout: hides this name on branches to the right.
    Whiteout(&'a [u8]),
    /// A whiteout of the name with this digest: see [`is_long`].
    LongWhiteout(&'a [u8]),
    /// A mark or record of the union.
    Mark,
}

/// Returns the meaning of a name that a lower directory lists.
pub(crate) fn classify(name: &[u8]) -> Listed<'_> {
    if let Some(digest) = name.strip_prefix(LONG) {
        return Listed::LongWhiteout(digest);
    }
    if name.starts_with(META) || name == OLD_OPAQUE {
        return Listed::Mark;
    }
    match name.strip_prefix(PREFIX) {
        Some(hidden) if !hidden.is_empty() => Listed::Whiteout(hidden),
        Some(_) => Listed::Mark,
        None => Listed::Plain,
    }
}

impl Core {
    /// Whether the lower directory has a whiteout of `name`.
    pub(crate) fn has_whiteout(&self, op: &Op<'_>, dir: &Lower, name: Name<'_>) -> Result<bool> {
        let hidden = WhiteoutName::of(name.as_bytes());
        Ok(dir.vnode.lookup(op, hidden.name()?)?.is_some())
    }

    /// Creates a whiteout of `name` in a lower directory. Returns false if it existed before.
    pub(crate) fn create_whiteout(&self, op: &Op<'_>, dir: &Lower, name: Name<'_>) -> Result<bool> {
        let hidden = WhiteoutName::of(name.as_bytes());
        match self.create_empty(op, &dir.vnode, dir.branch, hidden.name()?) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => {
                op.set.explain_refusal(dir.branch, e);
                Err(e)
            }
        }
    }

    /// Removes the whiteout of `name`, which may be of any file type. Succeeds if there is none.
    pub(crate) fn remove_whiteout(&self, op: &Op<'_>, dir: &Lower, name: Name<'_>) -> Result<()> {
        let hidden = WhiteoutName::of(name.as_bytes());
        match self.unlink_whiteout(op, dir, hidden.name()?) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Removes a whiteout with this name in the lower directory, which may be of any file type.
    pub(crate) fn unlink_whiteout(&self, op: &Op<'_>, dir: &Lower, whiteout: Name<'_>) -> Result<()> {
        let server = self.server(op);
        match dir.vnode.unlink(&server, whiteout) {
            Err(Errno::ISDIR) => dir.vnode.rmdir(&server, whiteout),
            other => other,
        }
    }

    /// Removes a whiteout that has no effect any more. A failure is only logged.
    pub(crate) fn tidy_whiteout(&self, op: &Op<'_>, dir: &Lower, name: Name<'_>) {
        if let Err(errno) = self.remove_whiteout(op, dir, name) {
            tracing::warn!(%name, %errno, branch = %op.set.path_of(dir.branch), "could not remove a whiteout that hides nothing any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whiteout_names() {
        assert_eq!(WhiteoutName::of(b"f").name().unwrap().as_bytes(), b".wh.f");
        let longest = [b'n'; 251];
        assert_eq!(WhiteoutName::of(&longest).name().unwrap().as_bytes().len(), 255);
        let long = WhiteoutName::of(&[b'n'; 252]);
        let long = long.name().unwrap().as_bytes().to_vec();
        assert_eq!(long.len(), 42);
        assert_eq!(classify(&long), Listed::LongWhiteout(&long_digest(&[b'n'; 252])));
        assert_ne!(long_digest(&[b'n'; 252]), long_digest(&[b'n'; 253]));
        // SHA-256("abc"), FIPS 180-4
        assert_eq!(&long_digest(b"abc"), b"ba7816bf8f01cfea414140de5dae2223");
    }

    #[test]
    fn lower_names_are_classified() {
        assert_eq!(classify(b"f"), Listed::Plain);
        assert_eq!(classify(b".wh"), Listed::Plain);
        assert_eq!(classify(b".wh.f"), Listed::Whiteout(b"f"));
        assert_eq!(classify(b".wh."), Listed::Mark);
        assert_eq!(classify(b".wh..wh..opq"), Listed::Mark);
        assert_eq!(classify(b".wh..wh.work"), Listed::Mark);
        assert_eq!(classify(b".wh.__dir_opaque"), Listed::Mark);
        assert_eq!(classify(b".wh..f"), Listed::Whiteout(b".f"));
    }
}
