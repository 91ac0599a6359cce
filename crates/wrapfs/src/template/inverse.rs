//! Round-trip checks in debug builds: whatever a hook encodes is decoded again at once. A hook
//! whose decoding does not invert its encoding is found while its author tests it, before anything
//! is stored.

use super::guard::guard;
use vnode::{Errno, Result};

/// Number of bytes shown on each side of the first difference.
const SHOWN: usize = 16;

/// Whether this build checks hooks. A constant, so release builds contain no checks.
pub(crate) const CHECKED: bool = cfg!(debug_assertions);

/// Panics in a debug build if `decoded` is not `plain`. The panic counts as one of the encoding
/// hook: the operation fails with `EIO`, and the log names the hooks, the input and the first
/// difference. An error of the decoding hook is logged and returned.
pub(crate) fn check(
    hooks: [&'static str; 2],
    input: impl Fn() -> String,
    plain: &[u8],
    decoded: Result<&[u8]>,
) -> Result<()> {
    let [encode, decode] = hooks;
    let decoded = decoded.inspect_err(|errno| {
        tracing::warn!("{decode} fails with {errno} on the output of {encode} for {}", input());
    })?;
    guard(encode, || {
        debug_assert!(
            decoded == plain,
            "{decode} does not invert {encode}: {}, {}",
            input(),
            difference(plain, decoded).unwrap_or_default()
        );
        if decoded == plain { Ok(()) } else { Err(Errno::IO) }
    })
}

/// Describes the first difference of two byte strings; `None` if they are equal.
fn difference(plain: &[u8], decoded: &[u8]) -> Option<String> {
    let common = plain.iter().zip(decoded).take_while(|(a, b)| a == b).count();
    if common == plain.len() && common == decoded.len() {
        return None;
    }
    let around = |bytes: &[u8]| {
        let (from, to) = (common.saturating_sub(SHOWN), common.saturating_add(SHOWN).min(bytes.len()));
        bytes.get(from..to).unwrap_or_default().escape_ascii().to_string()
    };
    let lengths = (plain.len(), decoded.len());
    Some(format!(
        "{} bytes encoded, {} decoded, different from byte {common} on: \"{}\" became \"{}\"",
        lengths.0,
        lengths.1,
        around(plain),
        around(decoded)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_difference_is_described() {
        assert_eq!(difference(b"same", b"same"), None);
        assert_eq!(
            difference(b"0123456789abcdefghij", b"0123456789abcdefghXj"),
            Some(
                "20 bytes encoded, 20 decoded, different from byte 18 on: \"23456789abcdefghij\" became \
                 \"23456789abcdefghXj\""
                    .to_owned()
            )
        );
        assert_eq!(
            difference(b"ab\n", b"ab"),
            Some("3 bytes encoded, 2 decoded, different from byte 2 on: \"ab\\n\" became \"ab\"".to_owned())
        );
    }

    #[test]
    fn a_failed_round_trip_is_an_error() {
        let check = |decoded| check(["encode_data", "decode_data"], || "a block".to_owned(), b"plain", decoded);
        assert_eq!(check(Ok(b"plain")), Ok(()));
        assert_eq!(check(Ok(b"plaim")), Err(Errno::IO));
        assert_eq!(check(Err(Errno::KEYEXPIRED)), Err(Errno::KEYEXPIRED));
    }
}
