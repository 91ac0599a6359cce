//! The times that users write, in commands, options and names in `.versions`.
//!
//! | form | meaning |
//! |---|---|
//! | `@GMT-2026.11.23-10.00.00` | UTC, as in Samba |
//! | `2026-11-23T10:00:00Z`, `2026-11-23T10:00:00.5+01:00` | RFC 3339 |
//! | `2026-11-23 10:00`, `2026-11-23 10:00:00` | the server's time zone |
//! | `1795428000`, `1795428000.25` | seconds since 1970 |

use crate::reply::parse_time;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use vnode::Time;

const GMT: &str = "@GMT-%Y.%m.%d-%H.%M.%S";

/// Parses a time. `None` if it has none of the forms above.
pub(crate) fn parse(text: &str) -> Option<Time> {
    if let Some(time) = parse_time(text) {
        return Some(time);
    }
    let has = |at: usize, byte: u8| text.as_bytes().get(at) == Some(&byte);
    if text.starts_with("@GMT-") {
        let utc = DateTime::strptime(GMT, text).ok()?.to_zoned(TimeZone::UTC).ok()?;
        // strptime accepts numbers without leading zeros.
        return (to_gmt(utc.timestamp()) == text).then(|| from_timestamp(utc.timestamp()));
    }
    if has(10, b'T') {
        return text.parse::<Timestamp>().ok().map(from_timestamp);
    }
    let is_local = has(10, b' ') && matches!(text.len(), 16 | 19);
    let format = if text.len() == 16 { "%Y-%m-%d %H:%M" } else { "%Y-%m-%d %H:%M:%S" };
    let local = DateTime::strptime(format, text).ok().filter(|_| is_local)?;
    Some(from_timestamp(local.to_zoned(TimeZone::system()).ok()?.timestamp()))
}

/// Returns the form `@GMT-...` of the first full second that is not before `time`. `None` if the
/// year does not have four digits.
pub(crate) fn gmt(time: Time) -> Option<String> {
    let second = if time.nsec == 0 { time.sec } else { time.sec.checked_add(1)? };
    let text = to_gmt(Timestamp::from_second(second).ok()?);
    (text.len() == 24).then_some(text)
}

fn to_gmt(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).strftime(GMT).to_string()
}

fn from_timestamp(time: Timestamp) -> Time {
    let nanoseconds = time.as_nanosecond();
    let sec = nanoseconds.div_euclid(1_000_000_000);
    let nsec = nanoseconds.rem_euclid(1_000_000_000);
    Time { sec: i64::try_from(sec).unwrap_or(i64::MAX), nsec: u32::try_from(nsec).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed() {
        let time = |sec, nsec| Some(Time { sec, nsec });
        assert_eq!(parse("@GMT-2026.11.23-10.00.00"), time(1_795_428_000, 0));
        assert_eq!(parse("2026-11-23T10:00:00Z"), time(1_795_428_000, 0));
        assert_eq!(parse("2026-11-23T11:00:00.5+01:00"), time(1_795_428_000, 500_000_000));
        assert_eq!(parse("1795428000"), time(1_795_428_000, 0));
        assert_eq!(parse("-1.25"), time(-1, 250_000_000));
        assert_eq!(parse("1969-12-31T23:59:59.25Z"), time(-1, 250_000_000));
        assert_eq!(parse("2026-11-23 10:00"), parse("2026-11-23 10:00:00"));
        assert!(parse("2026-11-23 10:00").is_some());
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "now",
            "@GMT-2026.11.23-10.00",
            "@GMT-2026.1.23-10.00.00",
            "@GMT-2026.13.23-10.00.00",
            "2026-11-23",
            "2026-11-23T10:00:00",
            "2026-11-23 10:00:00 x",
            "2026-02-30 10:00",
            "2026-1-2  10:00 ",
            "release",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_rounded_up_to_a_second() {
        assert_eq!(gmt(Time { sec: 1_795_428_000, nsec: 0 }).as_deref(), Some("@GMT-2026.11.23-10.00.00"));
        assert_eq!(gmt(Time { sec: 1_795_427_999, nsec: 1 }).as_deref(), Some("@GMT-2026.11.23-10.00.00"));
        assert_eq!(gmt(Time { sec: i64::MAX, nsec: 1 }), None);
    }
}
