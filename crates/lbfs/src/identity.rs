//! Inode numbers.
//!
//! The same object has different inode numbers on different replicas, so its number here is derived
//! from its path. A cryptographic hash makes collisions unlikely; with a collision, one file would
//! be taken for another.
//!
//! A file with several hard links is one object, but only a replica knows its names. Its number is
//! derived from its inode number on the *first* replica, or, while that is unavailable, from the
//! name of its first lookup ([`crate::hard_links`]).

use sha2::{Digest, Sha256};
use vnode::Kind;

/// Number of the root.
pub(crate) const ROOT: u64 = 1;

/// The top bit, set in all numbers but the root's. It keeps layers above, which tag small numbers,
/// from changing these.
const HASHED: u64 = 1 << 63;

/// Key of a path: 128 bits of a hash over all of its components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathKey([u8; 16]);

impl PathKey {
    /// Returns the key of the root.
    pub(crate) const fn root() -> Self {
        Self(*b"strata lbfs root")
    }

    /// Returns the key of an entry in this directory.
    pub(crate) fn child(&self, name: &[u8]) -> Self {
        Self(first(&Sha256::new().chain_update(self.0).chain_update(name).finalize()))
    }

    /// Returns the number of a new object at this path while the replaced object `former` is still
    /// in use.
    pub(crate) fn renewed(&self, former: u64, nonce: u64) -> u64 {
        // No name contains a '/', so this input differs from that of every path.
        let hash = Sha256::new().chain_update(self.0).chain_update(b"/");
        number(&hash.chain_update(former.to_le_bytes()).chain_update(nonce.to_le_bytes()).finalize())
    }

    /// Returns the number of an object with a single name.
    pub(crate) fn number(&self) -> u64 {
        number(&self.0)
    }

    /// Returns the directory cookie of this entry.
    pub(crate) fn cookie(&self) -> u64 {
        // Uses other bits than the number, is below the range that the server reserves for `.` and
        // `..`, and is not 0.
        let [.., a, b, c, d, e, f, g, h] = self.0;
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 2).max(1)
    }
}

/// The identity of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) path: PathKey,
    /// The number of the path, unless the object has several hard links or has replaced another
    /// one.
    pub(crate) number: u64,
    pub(crate) kind: Kind,
}

/// Returns the number of a file with several hard links from its number on the first replica.
pub(crate) fn link_number(on_first: u64) -> u64 {
    number(&Sha256::new().chain_update(b"strata lbfs link/").chain_update(on_first.to_le_bytes()).finalize())
}

fn first<const N: usize>(hash: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(hash).for_each(|(to, from)| *to = *from);
    out
}

fn number(hash: &[u8]) -> u64 {
    u64::from_le_bytes(first(hash)) | HASHED
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_stable_and_distinct() {
        let root = PathKey::root();
        let (a, b) = (root.child(b"a"), root.child(b"b"));
        // Hard-coded, because numbers must not change between versions.
        assert_eq!(a.number(), 0xa33f_cf6f_ed1f_9e03);
        assert_eq!(a, PathKey::root().child(b"a"));
        let numbers = [
            a.number(),
            b.number(),
            a.child(b"b").number(),
            root.child(b"ab").number(),
            a.renewed(a.number(), 1),
            a.renewed(a.number(), 2),
            link_number(7),
            link_number(8),
        ];
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
        assert!(numbers.iter().all(|number| number >> 63 == 1));
    }

    #[test]
    fn cookies_leave_room_for_the_server() {
        for i in 0..10_000u32 {
            let cookie = PathKey::root().child(&i.to_le_bytes()).cookie();
            assert!((1..1 << 62).contains(&cookie));
        }
    }
}
