//! Parsing of option values, with the same error messages everywhere.

use core::time::Duration;

/// Returns the choice with this name.
///
/// # Errors
/// No choice has this name.
pub fn one_of<T: Copy>(value: &[u8], all: &[(&str, T)]) -> Result<T, String> {
    all.iter().find(|(name, _)| name.as_bytes() == value).map(|&(_, found)| found).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|&(name, _)| name).collect();
        format!("{:?} is none of {}", String::from_utf8_lossy(value), names.join(", "))
    })
}

/// Parses a 32-bit number below the maximum, which means "none" for UIDs and GIDs.
///
/// # Errors
/// The value is not such a number.
pub fn number(value: &[u8]) -> Result<u32, String> {
    digits(value, 10)
        .ok_or_else(|| format!("{:?} is not a number from 0 to 4294967294", String::from_utf8_lossy(value)))
}

/// Parses a number of bytes: `4096`, `4k`, `1M` (KiB, MiB, GiB and TiB).
///
/// # Errors
/// The value is not a size, or is too large for this machine.
pub fn size(value: &[u8]) -> Result<usize, String> {
    let bytes = bytes(value).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| "not a size; write it as 4096, 4k or 1M".to_owned())
}

/// Parses an amount of disk space in bytes: `4096`, `500M`, `4G` (KiB, MiB, GiB and TiB).
///
/// # Errors
/// The value is not an amount.
pub fn space(value: &[u8]) -> Result<u64, String> {
    bytes(value).ok_or_else(|| "not an amount of space; write it as 500M or 4G".to_owned())
}

/// Returns a number with an optional unit.
fn bytes(value: &[u8]) -> Option<u64> {
    let (digits, shift) = match value {
        [digits @ .., b'k' | b'K'] => (digits, 10),
        [digits @ .., b'm' | b'M'] => (digits, 20),
        [digits @ .., b'g' | b'G'] => (digits, 30),
        [digits @ .., b't' | b'T'] => (digits, 40),
        digits => (digits, 0),
    };
    let digits = core::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Parses permission bits in octal, including set-user-ID, set-group-ID and sticky.
///
/// # Errors
/// The value is not an octal number, or has other bits.
pub fn permissions(value: &[u8]) -> Result<u32, String> {
    let shown = String::from_utf8_lossy(value);
    match digits(value, 8) {
        Some(mode) if mode <= 0o7777 => Ok(mode),
        Some(_) => Err(format!("{shown} has bits that are not permission bits; the maximum is 7777")),
        None => Err(format!("{shown:?} is not an octal number such as 0644, at most 7777")),
    }
}

fn digits(value: &[u8], radix: u32) -> Option<u32> {
    let text = core::str::from_utf8(value).ok().filter(|_| value.iter().all(u8::is_ascii_digit))?;
    u32::from_str_radix(text, radix).ok().filter(|&n| n != u32::MAX)
}

/// Parses a time in seconds, possibly fractional, of at most a year.
///
/// # Errors
/// The value is not such a time.
pub fn seconds(value: &[u8]) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(365 * 24 * 3600);
    let shown = String::from_utf8_lossy(value);
    let number = shown.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n).ok());
    number
        .map(|n| n.min(MOST))
        .ok_or_else(|| format!("{shown:?} is not a number of seconds, 0 or more, such as 1 or 0.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_space_have_units() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("3k", 3 << 10), ("2M", 2 << 20), ("4G", 4 << 30), ("1t", 1 << 40)]
        {
            assert_eq!(space(text.as_bytes()), Ok(bytes));
        }
        for bad in ["", "G", "+1", "-1", "4GB", "18446744073709551616", "16777216T"] {
            assert!(space(bad.as_bytes()).unwrap_err().contains("500M or 4G"), "{bad}");
        }
    }

    #[test]
    fn values_are_read() {
        assert_eq!(one_of(b"b", &[("a", 1), ("b", 2)]), Ok(2));
        assert_eq!(one_of(b"c", &[("a", 1), ("b", 2)]), Err("\"c\" is none of a, b".to_owned()));
        assert_eq!((number(b"0"), number(b"4294967294"), permissions(b"0640")), (Ok(0), Ok(u32::MAX - 1), Ok(0o640)));
        for bad in ["", "-1", "+1", "root", "4294967295", "4294967296", "1 "] {
            assert!(number(bad.as_bytes()).unwrap_err().contains("is not a number from 0 to"), "{bad}");
        }
        assert!(
            permissions(b"888").unwrap_err().contains("octal") && permissions(b"10000").unwrap_err().contains("7777")
        );
        assert_eq!((size(b"4096"), size(b"512k"), size(b"1M")), (Ok(4096), Ok(512 << 10), Ok(1 << 20)));
        assert_eq!((size(b"1g"), size(b"2T")), (Ok(1 << 30), Ok(2 << 40)));
        for bad in ["", "k", "1P", "1GB", "-1", "+1", "\u{e4}", "18446744073709551615k"] {
            assert!(size(bad.as_bytes()).unwrap_err().contains("4096, 4k or 1M"), "{bad}");
        }
        assert_eq!(seconds(b"0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds(b"1e9"), seconds(b"31536000"));
        for bad in ["", "-1", "x", "nan", "1e400", "\u{e4}"] {
            assert!(seconds(bad.as_bytes()).unwrap_err().contains("seconds"), "{bad}");
        }
    }
}
