//! The default name store: docs/formats/long-names.md.

use crate::hooks::{LongName, NameStore, Role};
use sha2::{Digest, Sha256};
use vnode::NAME_MAX;

/// Prefix of all names reserved by the store.
const PREFIX: &[u8] = b".wrapfs.";
/// Prefix of an object with a long name, followed by 64 hexadecimal digits.
const OBJECT: &[u8] = b".wrapfs.o.";
/// Prefix of its side file, followed by the same digits.
const SIDE: &[u8] = b".wrapfs.n.";
const DIGITS: usize = 64;
/// Header of a side file, followed by the encoded name.
const HEADER: &[u8] = b"strata-name 1\n";

/// Stores long names under their hash.
#[derive(Debug)]
pub(crate) struct Hashed;

impl NameStore for Hashed {
    fn role(&self, name: &[u8]) -> Role {
        if !name.starts_with(PREFIX) {
            return Role::Name;
        }
        match (name.strip_prefix(OBJECT), name.strip_prefix(SIDE)) {
            (Some(digits), _) if is_digest(digits) => Role::Long { side: [SIDE, digits].concat() },
            (_, Some(digits)) if is_digest(digits) => Role::Side { object: [OBJECT, digits].concat() },
            _ => Role::Own,
        }
    }

    fn long_name(&self, encoded: &[u8]) -> Option<LongName> {
        if !is_long(encoded) {
            return None;
        }
        let digits = digest(encoded);
        Some(LongName {
            object: [OBJECT, &digits].concat(),
            side: [SIDE, &digits].concat(),
            content: [HEADER, encoded].concat(),
        })
    }

    fn encoded_name(&self, object: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        let encoded = content.strip_prefix(HEADER)?;
        let digits = object.strip_prefix(OBJECT)?;
        (is_long(encoded) && digest(encoded) == digits).then(|| encoded.to_vec())
    }
}

/// Whether an encoded name is stored under its hash. This includes names that look like the store's
/// own, so that every name can be used.
fn is_long(encoded: &[u8]) -> bool {
    encoded.len() > NAME_MAX || encoded.starts_with(PREFIX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_files_are_untrusted() {
        let name = [b'n'; 300];
        let long = Hashed.long_name(&name).unwrap();
        let parse = |content: &[u8]| Hashed.encoded_name(&long.object, content);
        assert_eq!(parse(&long.content), Some(name.to_vec()));
        assert_eq!(parse(&long.content[..long.content.len() - 1]), None);
        assert_eq!(parse(&name), None);
        assert_eq!(parse(b""), None);
        let other = Hashed.long_name(&[b'o'; 300]).unwrap().object;
        assert_eq!(Hashed.encoded_name(&other, &long.content), None);
        // A name that is short enough has no side file.
        let object = [OBJECT, &digest(b"short")].concat();
        assert_eq!(Hashed.encoded_name(&object, &[HEADER, b"short"].concat()), None);
    }

    #[test]
    fn reserved_names_are_recognized() {
        let long = Hashed.long_name(&[b'n'; 300]).unwrap();
        assert_eq!(Hashed.role(&long.object), Role::Long { side: long.side.clone() });
        assert_eq!(Hashed.role(&long.side), Role::Side { object: long.object.clone() });
        assert_eq!((Hashed.role(b".wrapfs."), Hashed.role(b".wrapfs")), (Role::Own, Role::Name));
        assert_eq!(Hashed.role(&long.object.to_ascii_uppercase()), Role::Name);
        assert!(is_long(b".wrapfs.o.") && is_long(&[b'x'; 256]) && !is_long(&[b'x'; 255]));
    }

    #[test]
    fn digests_are_sha_256() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(&digest(b"abc")[..16], b"ba7816bf8f01cfea");
    }
}
