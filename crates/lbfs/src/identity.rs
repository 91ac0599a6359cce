//! Numbers of objects.
//!
//! Replicas give the same object different inode numbers, so a number comes from what is the same on all of them: the path. It is a
//! cryptographic hash, since a name that collides with another's number would be taken for that other file.
//!
//! A file with several names is one object. Only a replica knows which names these are: the number of such a file comes from
//! the number that the *first* replica gives it; while that is away, from the name that was looked up first ([`crate::links`]).

use sha2::{Digest, Sha256};
use vnode::Kind;

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

/// The top bit of all numbers but the root's: a layer above that puts a tag in front of small numbers leaves these alone.
const HASHED: u64 = 1 << 63;

/// What stands for a path: 128 bits of a hash over all of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathKey([u8; 16]);

impl PathKey {
    /// The root's.
    pub(crate) const fn root() -> Self {
        Self(*b"strata lbfs root")
    }

    /// That of an entry of this directory.
    pub(crate) fn child(&self, name: &[u8]) -> Self {
        Self(first(&Sha256::new().chain_update(self.0).chain_update(name).finalize()))
    }

    /// That of what lay at this path while `former` was still in use: it is another object, and needs another number.
    pub(crate) fn renewed(&self, former: u64, nonce: u64) -> u64 {
        // A '/' is part of no name, so that no path's key is made from the same bytes.
        let hash = Sha256::new().chain_update(self.0).chain_update(b"/");
        number(&hash.chain_update(former.to_le_bytes()).chain_update(nonce.to_le_bytes()).finalize())
    }

    /// The number of a file with one name.
    pub(crate) fn number(&self) -> u64 {
        number(&self.0)
    }

    /// Where to go on with a listing after this entry.
    pub(crate) fn cookie(&self) -> u64 {
        // Other bits than the number's, below what the server keeps for `.` and `..`, and not 0.
        let [.., a, b, c, d, e, f, g, h] = self.0;
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 2).max(1)
    }
}

/// What tells one object from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) path: PathKey,
    /// That of the path, unless the object is a file with several names or has replaced another one.
    pub(crate) number: u64,
    pub(crate) kind: Kind,
}

/// The number of a file with several names, by its number on the first replica.
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
    fn numbers_are_those_of_paths() {
        let root = PathKey::root();
        let (a, b) = (root.child(b"a"), root.child(b"b"));
        // Written down: they must not change between versions.
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
