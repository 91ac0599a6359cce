//! Paths as bytes, relative to the root of a layer.

use std::fmt;

/// A path relative to the root, with `/` between components; empty for the root itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Path(pub Vec<u8>);

impl Path {
    /// Returns the path of the root.
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns the components, from the root down.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|c| !c.is_empty())
    }

    /// Returns the parent's path and the last component; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.0.iter().rposition(|&b| b == b'/') {
            Some(at) => (Self(self.0[..at].to_vec()), &self.0[at + 1..]),
            None => (Self::root(), &self.0[..]),
        })
    }

    /// Returns the path of an entry of this directory.
    pub fn join(&self, name: &[u8]) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }

    /// Whether `other` is this path or lies beneath it.
    pub fn contains(&self, other: &Self) -> bool {
        self.0.is_empty()
            || self == other
            || (other.0.len() > self.0.len() && other.0.starts_with(&self.0) && other.0[self.0.len()] == b'/')
    }
}

impl From<&str> for Path {
    fn from(path: &str) -> Self {
        Self(path.as_bytes().to_vec())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Long names are runs of one letter: a prefix and the length keep printed programs
        // readable.
        write!(f, "\"")?;
        for (i, component) in self.components().enumerate() {
            if i > 0 {
                write!(f, "/")?;
            }
            if component.len() > 40 {
                write!(f, "{}*{}", component[..8].escape_ascii(), component.len())?;
            } else {
                write!(f, "{}", component.escape_ascii())?;
            }
        }
        write!(f, "\"")
    }
}
