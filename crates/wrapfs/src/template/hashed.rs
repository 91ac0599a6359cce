//! The store of names that a layer has if it brings none: docs/formats/long-names.md.

use crate::hooks::{LongName, NameStore, Role};
use sha2::{Digest, Sha256};
use vnode::NAME_MAX;

/// What all names begin with that the store keeps for itself.
const PREFIX: &[u8] = b".wrapfs.";
/// An object with a long name: then 64 hexadecimal digits.
const OBJECT: &[u8] = b".wrapfs.o.";
/// Its side file: then the same digits.
const SIDE: &[u8] = b".wrapfs.n.";
const DIGITS: usize = 64;
/// What a side file begins with; the encoded name is the rest.
const HEADER: &[u8] = b"strata-name 1\n";

/// Long names by their hash.
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

/// Is an encoded name stored under a short one? Names that look like the store's own are, too, so that every name can be had.
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
    fn side_files_are_parsed_as_hostile() {
        let name = [b'n'; 300];
        let long = Hashed.long_name(&name).unwrap();
        let parse = |content: &[u8]| Hashed.encoded_name(&long.object, content);
        assert_eq!(parse(&long.content), Some(name.to_vec()));
        assert_eq!(parse(&long.content[..long.content.len() - 1]), None);
        assert_eq!(parse(&name), None);
        assert_eq!(parse(b""), None);
        let other = Hashed.long_name(&[b'o'; 300]).unwrap().object;
        assert_eq!(Hashed.encoded_name(&other, &long.content), None);
        // A name that needs no side file has none.
        let object = [OBJECT, &digest(b"short")].concat();
        assert_eq!(Hashed.encoded_name(&object, &[HEADER, b"short"].concat()), None);
    }

    #[test]
    fn names_of_its_own_are_known() {
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
