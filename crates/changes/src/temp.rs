//! Temporary names in a directory of a branch. Unions hide them.

use crate::ops::lookup;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vnode::{Cx, Name, Result, Vnode};

/// Prefix of the names.
const PREFIX: &[u8] = b".wh..wh.tmp.";

/// Whether this is such a name.
pub(crate) fn is_temp(name: &[u8]) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A temporary name.
pub(crate) struct Temp(Vec<u8>);

impl Temp {
    /// Returns a name that is not used in a directory.
    pub(crate) fn new(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Self> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = [PREFIX, number.to_string().as_bytes()].concat();
            if lookup(cx, dir, &name)?.is_none() {
                return Ok(Self(name));
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn name(&self) -> Result<Name<'_>> {
        Name::new(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised() {
        assert!(is_temp(b".wh..wh.tmp.0") && is_temp(b".wh..wh.tmp.17"));
        assert!(!is_temp(b".wh..wh.tmp.") && !is_temp(b".wh..wh.tmp.x") && !is_temp(b"tmp.1"));
    }
}
