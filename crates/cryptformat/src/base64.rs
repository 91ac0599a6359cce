//! Base64, decoded strictly: one text for each value, so that an encoded name can't be replaced by
//! another one that means the same.

use data_encoding::{BASE64, BASE64URL, BASE64URL_NOPAD, Encoding};

/// Decodes the standard alphabet with padding, as in the configuration.
pub(crate) fn decode_standard(text: &[u8]) -> Option<Vec<u8>> {
    decode(&BASE64, text)
}

/// Encodes with the standard alphabet and padding.
pub(crate) fn encode_standard(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Returns the encoding of names: the alphabet for URLs, with padding unless `raw64`.
fn of_names(raw64: bool) -> Encoding {
    if raw64 { BASE64URL_NOPAD } else { BASE64URL }
}

/// Decodes a name.
pub(crate) fn decode_name(raw64: bool, text: &[u8]) -> Option<Vec<u8>> {
    decode(&of_names(raw64), text)
}

/// Encodes a name.
pub(crate) fn encode_name(raw64: bool, bytes: &[u8]) -> Vec<u8> {
    of_names(raw64).encode(bytes).into_bytes()
}

/// Returns the length of the text for `bytes` bytes.
pub(crate) fn encoded_len(raw64: bool, bytes: usize) -> usize {
    of_names(raw64).encode_len(bytes)
}

/// Decodes `text`. The library refuses other characters, line ends, wrong padding and bits that are
/// set after the last byte. It also takes several padded texts in a row, which is refused here:
/// padding must be at the end.
fn decode(encoding: &Encoding, text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().position(|&byte| byte == b'=').unwrap_or(text.len());
    if text.iter().skip(padding).any(|&byte| byte != b'=') {
        return None;
    }
    encoding.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_one_text() {
        assert_eq!(decode_standard(b"Zg=="), Some(b"f".to_vec()));
        for other in ["Zh==", "Zg", "Zg=", "Zg===", "Zg==Zg==", "Zg==\n", "Z\ng==", "Z g==", "_w==", "Zg=A"] {
            assert_eq!(decode_standard(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(decode_name(true, b"_w"), Some(vec![255]));
        assert_eq!(decode_name(false, b"_w=="), Some(vec![255]));
        for other in ["/w", "_x", "_w==", "_w\r", "_"] {
            assert_eq!(decode_name(true, other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(decode_name(false, b"_w"), None);
    }
}
