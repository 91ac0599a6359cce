//! Names that are too long for the layer below: docs/formats/long-names.md.

use super::core::Core;
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, NAME_MAX, Name, OpenFile, OpenFlags, Result, SHARDS, SetAttr, Vnode, shard_of};

/// What all names begin with that the template keeps for itself.
const PREFIX: &[u8] = b".wrapfs.";
/// An object with a long name: then 64 hexadecimal digits.
const OBJECT: &[u8] = b".wrapfs.o.";
/// Its companion: then the same digits.
const COMPANION: &[u8] = b".wrapfs.n.";
const DIGITS: usize = 64;
/// What a companion begins with; the encoded name is the rest.
const HEADER: &[u8] = b"strata-name 1\n";
/// The longest encoded name in bytes.
pub(crate) const LONGEST: usize = 64 << 10;

type Hidden = [u8; OBJECT.len() + DIGITS];

/// Is an encoded name stored under a short one? Names that look like the template's own are, too, so that every name can be had.
pub(crate) fn is_long(encoded: &[u8]) -> bool {
    encoded.len() > NAME_MAX || encoded.starts_with(PREFIX)
}

/// A long encoded name and what it is known by.
pub(crate) struct Long {
    encoded: Vec<u8>,
    object: Hidden,
    companion: Hidden,
}

impl Long {
    pub(crate) fn new(encoded: Vec<u8>) -> Self {
        let digits = digest(&encoded);
        Self { object: hidden(OBJECT, &digits), companion: hidden(COMPANION, &digits), encoded }
    }

    /// The name of the object.
    pub(crate) fn object(&self) -> &[u8] {
        &self.object
    }
}

/// What a name in a directory below is to the template.
pub(crate) enum Own<'a> {
    /// Nothing special.
    None,
    /// An object with a long name: its digits.
    Object(&'a [u8]),
    /// A companion: its digits.
    Companion(&'a [u8]),
    /// Reserved, and without meaning.
    Unknown,
}

pub(crate) fn own(name: &[u8]) -> Own<'_> {
    if !name.starts_with(PREFIX) {
        return Own::None;
    }
    match (name.strip_prefix(OBJECT), name.strip_prefix(COMPANION)) {
        (Some(digits), _) if is_digest(digits) => Own::Object(digits),
        (_, Some(digits)) if is_digest(digits) => Own::Companion(digits),
        _ => Own::Unknown,
    }
}

/// The name of the object with these digits.
pub(crate) fn object_of(digits: &[u8]) -> Vec<u8> {
    [OBJECT, digits].concat()
}

/// The name of the companion with these digits.
pub(crate) fn companion_of(digits: &[u8]) -> Vec<u8> {
    [COMPANION, digits].concat()
}

fn is_digest(digits: &[u8]) -> bool {
    digits.len() == DIGITS && digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn digest(encoded: &[u8]) -> [u8; DIGITS] {
    let mut hex = [b'0'; DIGITS];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(Sha256::digest(encoded).iter()) {
        pair.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
    }
    hex
}

const fn hex_digit(n: u8) -> u8 {
    if n < 10 { b'0' + n } else { b'a' + n - 10 }
}

fn hidden(prefix: &[u8], digits: &[u8; DIGITS]) -> Hidden {
    let mut name = [0; OBJECT.len() + DIGITS];
    let (head, tail) = name.split_at_mut(OBJECT.len());
    head.copy_from_slice(prefix);
    tail.copy_from_slice(digits);
    name
}

/// The encoded name in a companion's bytes; `None` if they are not as they should be.
fn parse<'a>(bytes: &'a [u8], digits: &[u8]) -> Option<&'a [u8]> {
    let encoded = bytes.strip_prefix(HEADER)?;
    (is_long(encoded) && digest(encoded) == digits).then_some(encoded)
}

/// One operation at a time makes or removes companions in a directory: directories share these locks by their numbers.
#[derive(Debug)]
pub(crate) struct Locks([Mutex<()>; SHARDS]);

impl Default for Locks {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Mutex::new(())))
    }
}

/// Held while long names of one or two directories come and go.
pub(crate) struct Held<'a>(#[allow(dead_code)] [Option<MutexGuard<'a, ()>>; 2]);

impl Locks {
    pub(crate) fn hold(&self, a: u64, b: u64) -> Held<'_> {
        let (a, b) = (shard_of(a), shard_of(b));
        let lock = |shard: usize| self.0.get(shard).map(Mutex::lock);
        // In the order of the shards, so that two renames never wait for each other.
        Held([lock(a.min(b)), if a == b { None } else { lock(a.max(b)) }])
    }

    /// The same, if nobody holds them.
    pub(crate) fn try_hold(&self, a: u64, b: u64) -> Option<Held<'_>> {
        let (a, b) = (shard_of(a), shard_of(b));
        let lock = |shard: usize| self.0.get(shard).and_then(Mutex::try_lock);
        let first = lock(a)?;
        let second = if a == b { None } else { Some(lock(b)?) };
        Some(Held([Some(first), second]))
    }
}

impl Core {
    /// The encoded name of the object with these digits, from its companion; `None` if that is missing or damaged.
    pub(crate) fn name_of_long(&self, cx: &Cx<'_>, dir: &dyn Vnode, digits: &[u8]) -> Result<Option<Vec<u8>>> {
        let companion = companion_of(digits);
        let Some(entry) = dir.lookup(cx, Name::new(&companion)?)? else {
            tracing::warn!(directory = dir.id(), "an object with a long name has no companion, and is not listed");
            return Ok(None);
        };
        let name = self.read_companion(cx, &entry.vnode, digits)?;
        if name.is_none() {
            tracing::warn!(directory = dir.id(), "a damaged companion of a long name: its object is not listed");
        }
        Ok(name)
    }

    fn read_companion(&self, cx: &Cx<'_>, companion: &Arc<dyn Vnode>, digits: &[u8]) -> Result<Option<Vec<u8>>> {
        if companion.kind() != Kind::Regular {
            return Ok(None);
        }
        let file = companion.open(&self.server(cx), OpenFlags::RDONLY)?;
        let bytes = read_all(&*file, cx, HEADER.len() + LONGEST + 1)?;
        Ok(parse(&bytes, digits).map(<[u8]>::to_vec))
    }

    /// Makes sure that the companion of a long name is there, and durable, before its object is. Answers true if it had to be made.
    pub(crate) fn make_companion(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &Long) -> Result<bool> {
        let cx = &self.server(cx);
        let name = Name::new(&long.companion)?;
        let digits = long.companion.get(COMPANION.len()..).unwrap_or_default();
        let file = match dir.lookup(cx, name)? {
            Some(entry) if self.read_companion(cx, &entry.vnode, digits)?.is_some() => return Ok(false),
            // What a crash cut off is written again. The object may be there: its companion stays whatever happens.
            Some(entry) => {
                let file = entry.vnode.open(cx, OpenFlags::WRONLY)?;
                entry.vnode.setattr(cx, &SetAttr { size: Some(0), ..SetAttr::default() }, Some(&*file))?;
                return fill(&*file, cx, &long.encoded).map(|()| false);
            }
            None => dir.create(cx, name, 0o644, OpenFlags::WRONLY)?.1,
        };
        let filled = fill(&*file, cx, &long.encoded);
        if filled.is_err() {
            self.drop_companion(cx, dir, long);
        }
        filled.map(|()| true)
    }

    /// Removes a companion that has no object. One that can't be removed is in nobody's way.
    pub(crate) fn drop_companion(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &Long) {
        let gone = Name::new(&long.companion).and_then(|name| dir.unlink(&self.server(cx), name));
        if let Err(errno) = gone {
            tracing::debug!(%errno, directory = dir.id(), "the companion of a long name stays");
        }
    }

    /// The same if the object is gone indeed: a rename between two names of one file leaves both.
    pub(crate) fn drop_companion_without_object(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &Long) {
        if let Ok(None) = Name::new(&long.object).and_then(|name| dir.lookup(cx, name)) {
            self.drop_companion(cx, dir, long);
        }
    }
}

/// Writes a companion's bytes. They are durable before the object is published: a name that is lost can't be computed again.
fn fill(file: &dyn OpenFile, cx: &Cx<'_>, encoded: &[u8]) -> Result<()> {
    let bytes = [HEADER, encoded].concat();
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(cx, rest, done as u64)? {
            0 => return Err(Errno::IO),
            n => done += n,
        }
    }
    file.fsync(cx, true)
}

fn read_all(file: &dyn OpenFile, cx: &Cx<'_>, limit: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 1024];
    let mut done = 0;
    loop {
        let n = file.read(cx, bytes.get_mut(done..).unwrap_or_default(), done as u64)?;
        done += n;
        if n == 0 || done >= limit {
            bytes.truncate(done);
            return Ok(bytes);
        }
        if done == bytes.len() {
            bytes.resize((done * 4).min(limit), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_are_parsed_as_hostile() {
        let name = [b'n'; 300];
        let digits = digest(&name);
        let good = [HEADER, &name].concat();
        assert_eq!(parse(&good, &digits), Some(&name[..]));
        assert_eq!(parse(&good[..good.len() - 1], &digits), None);
        assert_eq!(parse(&name, &digits), None);
        assert_eq!(parse(b"", &digits), None);
        assert_eq!(parse(&good, &digest(b"other")), None);
        // A name that needs no companion has none.
        assert_eq!(parse(&[HEADER, b"short"].concat(), &digest(b"short")), None);
    }

    #[test]
    fn names_of_its_own_are_known() {
        let long = Long::new(vec![b'n'; 300]);
        assert!(matches!(own(&long.object), Own::Object(_)));
        assert!(matches!(own(&long.companion), Own::Companion(digits) if object_of(digits) == long.object));
        assert!(matches!(own(b".wrapfs."), Own::Unknown) && matches!(own(b".wrapfs"), Own::None));
        assert!(matches!(own(&long.object.to_ascii_uppercase()), Own::None));
        assert!(is_long(b".wrapfs.o.") && is_long(&[b'x'; 256]) && !is_long(&[b'x'; 255]));
    }

    #[test]
    fn digests_are_sha_256() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(&digest(b"abc")[..16], b"ba7816bf8f01cfea");
    }
}
