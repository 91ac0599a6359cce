//! Key files: bytes in place of a passphrase that a person remembers.

use data_encoding::HEXLOWER;
use zeroize::Zeroizing;

/// Smallest size of a key file in bytes.
const LEAST: usize = 16;
/// Largest size of a key file in bytes: the passphrase has twice as many, the most that gocryptfs
/// reads.
pub const KEY_FILE_MAX: usize = 1024;

/// Returns the passphrase of a key file: its bytes in hexadecimal. `gocryptfs -extpass` can pass
/// the same: `xxd -p -c 0 FILE`. `None` if the file has less than 16 bytes or more than
/// [`KEY_FILE_MAX`].
#[must_use]
pub fn key_file_passphrase(bytes: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    (LEAST..=KEY_FILE_MAX).contains(&bytes.len()).then(|| {
        let mut text = Zeroizing::new(vec![0; 2 * bytes.len()]);
        HEXLOWER.encode_mut(bytes, &mut text);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_becomes_a_passphrase() {
        assert_eq!(&**key_file_passphrase(&[0xa7; 16]).unwrap(), "a7".repeat(16).as_bytes());
        assert!(key_file_passphrase(&[1; 15]).is_none() && key_file_passphrase(&[1; KEY_FILE_MAX + 1]).is_none());
    }
}
