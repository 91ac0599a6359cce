//! An entry of an archive, and the names of its pax records.

use std::collections::BTreeMap;
use vnode::Time;

/// Size of a block of an archive, in bytes.
pub(crate) const BLOCK: usize = 512;
/// Largest value of an octal field of 8 bytes: owner, group, device numbers.
pub(crate) const MAX_SHORT: u64 = 0o777_7777;
/// Largest value of an octal field of 12 bytes: size, time.
pub(crate) const MAX_LONG: u64 = 0o777_7777_7777;
/// The prefix of pax records with extended attributes.
pub(crate) const XATTR: &[u8] = b"SCHILY.xattr.";
/// Nanoseconds in a second.
const NANOS: u32 = 1_000_000_000;

/// Records of a pax header.
pub(crate) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A regular file with this many bytes, which follow.
    File(u64),
    /// A hard link to this path.
    Link(Vec<u8>),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A character device: major and minor number.
    Char(u32, u32),
    /// A block device: major and minor number.
    Block(u32, u32),
    /// A directory.
    Dir,
    /// A FIFO.
    Fifo,
}

/// Attributes of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Permission bits.
    pub(crate) mode: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Modification time.
    pub(crate) mtime: Time,
    /// Extended attributes.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// An entry of an archive, without the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// The path. As read, it is not checked.
    pub(crate) path: Vec<u8>,
    /// What it is.
    pub(crate) what: What,
    /// Its attributes.
    pub(crate) meta: Meta,
}

/// Returns a time as a decimal number of seconds.
pub(crate) fn decimal(time: Time) -> String {
    let (sign, sec, nsec) = match time {
        Time { sec, nsec: 0 } => (if sec < 0 { "-" } else { "" }, sec.unsigned_abs(), 0),
        // -1.25 s is 0.75 s after second -2.
        Time { sec, nsec } if sec < 0 => ("-", (sec + 1).unsigned_abs(), NANOS.saturating_sub(nsec)),
        Time { sec, nsec } => ("", sec.unsigned_abs(), nsec),
    };
    match nsec {
        0 => format!("{sign}{sec}"),
        _ => format!("{sign}{sec}.{}", format!("{nsec:09}").trim_end_matches('0')),
    }
}

/// Parses a decimal number of seconds. Digits after the ninth decimal place are dropped.
pub(crate) fn parse_decimal(text: &[u8]) -> Option<Time> {
    let text = core::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let sec: i64 = whole.parse().ok()?;
    let nsec: u32 =
        fraction.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, |n, b| n * 10 + u32::from(b - b'0'));
    Some(match (negative, nsec) {
        (false, nsec) => Time { sec, nsec },
        (true, 0) => Time { sec: -sec, nsec: 0 },
        (true, nsec) => Time { sec: -sec - 1, nsec: NANOS - nsec },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_decimal_numbers() {
        for (sec, nsec, text) in [
            (0, 0, "0"),
            (1, 500_000_000, "1.5"),
            (-2, 750_000_000, "-1.25"),
            (-1, 1, "-0.999999999"),
            (-3, 0, "-3"),
            (1_700_000_000, 1, "1700000000.000000001"),
        ] {
            let time = Time { sec, nsec };
            assert_eq!(decimal(time), text);
            assert_eq!(parse_decimal(text.as_bytes()), Some(time), "{text}");
        }
        for bad in ["", "-", ".5", "1e3", "+1", "1.x", "99999999999999999999"] {
            assert_eq!(parse_decimal(bad.as_bytes()), None, "{bad}");
        }
    }
}
