//! The text of commands and replies (docs/versionfs-commands.md): fields are separated by one
//! blank, names and other free text are escaped.

use vnode::{Kind, Time};

/// Largest reply in bytes. The control channel allows 1 MiB.
pub(crate) const MAX_REPLY: usize = 960 * 1024;

/// Appends free text: bytes up to 0x20, 0x7f and the backslash become a backslash and three octal
/// digits. The result has no blank and no newline.
pub(crate) fn escape(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if byte <= 0x20 || byte == 0x7f || byte == b'\\' {
            out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        } else {
            out.push(byte);
        }
    }
}

/// Appends free text as a field: `-` if it is empty. A text that is `-` is escaped.
pub(crate) fn field(text: &[u8], out: &mut Vec<u8>) {
    match text {
        b"" => out.push(b'-'),
        b"-" => out.extend_from_slice(b"\\055"),
        text => escape(text, out),
    }
}

/// Returns the text of an escaped field. `None` if an escape is malformed.
pub(crate) fn unescape(field: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'\\' {
            text.push(byte);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(3)?;
        if !digits.iter().all(|digit| matches!(digit, b'0'..=b'7')) {
            return None;
        }
        text.push(u8::from_str_radix(core::str::from_utf8(digits).ok()?, 8).ok()?);
        rest = after;
    }
    Some(text)
}

/// Returns a time as `SEC.NNNNNNNNN`. The nanoseconds count forward, also before 1970.
pub(crate) fn time(time: Time) -> String {
    format!("{}.{:09}", time.sec, time.nsec)
}

/// Parses [`time`]; the fraction may be left out or have fewer digits.
pub(crate) fn parse_time(text: &str) -> Option<Time> {
    let (sec, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(sec.strip_prefix('-').unwrap_or(sec)) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nsec = format!("{fraction:0<9}").parse().ok()?;
    Some(Time { sec: sec.parse().ok()?, nsec })
}

/// Returns the word for the kind of a head.
pub(crate) const fn head_word(kind: Option<Kind>) -> &'static str {
    match kind {
        Some(kind) => kind.word(),
        None => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_parsed_as_they_were_written(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut out = Vec::new();
            escape(&text, &mut out);
            prop_assert!(out.iter().all(|byte| *byte > 0x20 && *byte != 0x7f));
            prop_assert_eq!(unescape(&out), Some(text.clone()));
            let mut out = Vec::new();
            field(&text, &mut out);
            prop_assert!(!out.is_empty());
            prop_assert_eq!(out == b"-", text.is_empty());
        }

        #[test]
        fn times_are_parsed_as_they_were_written(sec in any::<i64>(), nsec in 0u32..1_000_000_000) {
            let moment = Time { sec, nsec };
            prop_assert_eq!(parse_time(&time(moment)), Some(moment));
        }

        #[test]
        fn hostile_fields_are_no_problem(text in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = unescape(&text);
            let _ = parse_time(&String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn malformed_escapes_are_refused() {
        for text in [&b"\\"[..], b"\\12", b"\\128", b"\\777", b"\\x12"] {
            assert_eq!(unescape(text), None);
        }
        for text in ["", ".", "1.", ".5", "1.0000000001", "+1", "1e3", "--1", "1.-5"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
        assert_eq!(parse_time("5.25"), Some(Time { sec: 5, nsec: 250_000_000 }));
    }
}
