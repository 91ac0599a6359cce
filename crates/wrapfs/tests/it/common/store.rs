//! A name store like that of an encrypted tree: each directory has a file with a key for its names,
//! and names that are too long are stored under their hash, with a side file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use wrapfs::Template;
use wrapfs::hooks::{LongName, NameStore, Names, Object, Role, StateFile};
use wrapfs::vnode::{Cx, Errno, Layer, Result};

pub(crate) const STATE: &str = "store.state";
pub(crate) const COPY: &[u8] = b"user.store.state";
const LONG: &[u8] = b"store.long.";
const SIDE: &[u8] = b".name";
pub(crate) const LEFTOVER: &str = "store.gone.1";

/// Encoded names are hexadecimal: each byte combined with the directory's key and written several
/// times.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// Encoded names longer than this are stored under their hash.
    pub(crate) longest: usize,
    /// The key of the next directory; all keys differ.
    next: Arc<AtomicU8>,
    /// The attribute that keeps a copy of a directory's key.
    copy: Option<&'static [u8]>,
}

impl Store {
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest, next: Arc::new(AtomicU8::new(1)), copy: None }
    }

    /// Keeps copies in [`COPY`].
    pub(crate) fn copied(self) -> Self {
        Self { copy: Some(COPY), ..self }
    }

    pub(crate) fn over(&self, lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
        Template::over(lower).names(self.clone()).store(self.clone()).build().unwrap()
    }
}

fn key(dir: &Object<'_>) -> Result<u8> {
    // The template calls these hooks only after the directory's state has been loaded.
    dir.directory_state().get(2).copied().ok_or(Errno::NOKEY)
}

pub(crate) fn encoded(name: &[u8], key: u8) -> String {
    name.iter().map(|byte| format!("{:02x}", byte ^ key)).collect()
}

impl Names for Store {
    fn encode_filename(&self, _cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(encoded(name, key(dir)?).into_bytes())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let key = key(dir)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(Errno::INVAL);
        let byte = |pair: &[u8]| match pair {
            [high, low] => Ok((digit(*high)? * 16 + digit(*low)?) as u8 ^ key),
            _ => Err(Errno::INVAL),
        };
        name.chunks(2).map(byte).collect()
    }
}

/// Not a good hash, but all names of a test get different ones.
fn hash(encoded: &[u8]) -> Vec<u8> {
    let sum = encoded.iter().fold(0_u64, |sum, &byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    format!("{sum:016x}").into_bytes()
}

impl NameStore for Store {
    fn role(&self, name: &[u8]) -> Role {
        if name == LEFTOVER.as_bytes() {
            return Role::Leftover;
        }
        if !name.starts_with(LONG) {
            return if name.starts_with(b"store.") { Role::Own } else { Role::Name };
        }
        match name.strip_suffix(SIDE) {
            Some(object) => Role::Side { object: object.to_vec() },
            None => Role::Long { side: [name, SIDE].concat() },
        }
    }

    fn long_name(&self, encoded: &[u8]) -> Option<LongName> {
        (encoded.len() > self.longest).then(|| {
            let object = [LONG, &hash(encoded)].concat();
            LongName { side: [&object, SIDE].concat(), object, content: encoded.to_vec() }
        })
    }

    fn encoded_name(&self, object: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        (object == [LONG, &hash(content)].concat()).then(|| content.to_vec())
    }

    fn side_mode(&self) -> u32 {
        0o400
    }

    fn state_file(&self) -> Option<StateFile> {
        Some(StateFile { name: STATE.as_bytes().to_vec(), mode: 0o444, longest: 4, copy: self.copy })
    }

    fn new_state(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        let byte = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(vec![b'S', b'=', byte, !byte])
    }

    fn is_state(&self, state: &[u8]) -> bool {
        matches!(state, [b'S', b'=', byte, check] if *check == !*byte)
    }
}
