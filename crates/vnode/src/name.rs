use crate::{Errno, Result};
use core::fmt;

/// Maximum length of a directory entry's name in bytes (Linux `NAME_MAX`).
pub const NAME_MAX: usize = 255;

/// The name of a directory entry: 1 to 255 bytes, without `/` or NUL, and neither `.` nor `..`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Validates `bytes`.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for more than 255 bytes, `EINVAL` for an invalid name.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        if bytes.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(Errno::INVAL);
        }
        Ok(Self(bytes))
    }

    /// Returns the bytes, without a terminator.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(Name::new(b"a").is_ok());
        assert!(Name::new(b"...").is_ok());
        assert!(Name::new(&[0xff; 255]).is_ok());
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(Name::new(bad), Err(Errno::INVAL));
        }
        assert_eq!(Name::new(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
    }
}
