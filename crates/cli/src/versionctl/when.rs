//! The times that users write: `2h ago`, `yesterday 14:00`, `2026-11-23 10:00`, RFC 3339,
//! `@GMT-2026.11.23-10.00.00`, and the names of tags and numbers of versions in their place.

use jiff::civil::{Date, DateTime, Time};
use jiff::{Span, Timestamp, Zoned};

/// What selects a version, or the state of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The version with this number.
    Number(u64),
    /// The state at this time.
    Time(Timestamp),
    /// The state when this tag was made.
    Tag(String),
}

/// The forms, for messages.
pub(crate) const FORMS: &str = "use '2h ago', 'yesterday 14:00', '14:00', '2026-11-23 10:00', RFC 3339, \
                                @SECONDS, @GMT-2026.11.23-10.00.00, or a tag";

impl When {
    /// Parses a number, a time, or the name of a tag.
    ///
    /// # Errors
    /// Says that `text` is none of them.
    pub(crate) fn parse(text: &str, now: &Zoned) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        if let Some(time) = parse(text, now) {
            return Ok(Self::Time(time));
        }
        // A time that is wrong is not a tag.
        let is_tag = !text.is_empty()
            && !text.contains([' ', ':', '@', '/'])
            && !text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        if is_tag { Ok(Self::Tag(text.to_owned())) } else { Err(format!("{text}: neither a time nor a tag; {FORMS}")) }
    }
}

/// Parses a time. Without an offset, it is in the time zone of `now`.
pub(crate) fn parse(text: &str, now: &Zoned) -> Option<Timestamp> {
    let text = text.trim();
    if text == "now" {
        return Some(now.timestamp());
    }
    if let Some(amount) = text.strip_suffix("ago") {
        return ago(amount, now);
    }
    if let Some(gmt) = text.strip_prefix("@GMT-") {
        return gmt_form(gmt);
    }
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, part) = seconds.split_once('.').unwrap_or((seconds, ""));
        let is_part = part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
        let nanos = is_part.then(|| format!("{part:0<9}"))?.parse().ok()?;
        return Timestamp::new(whole.parse().ok()?, nanos).ok();
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    let local = |civil: DateTime| Some(civil.to_zoned(now.time_zone().clone()).ok()?.timestamp());
    if let Ok(time) = Time::strptime("%H:%M:%S", text).or_else(|_| Time::strptime("%H:%M", text)) {
        return local(now.date().to_datetime(time));
    }
    let (day, clock) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let time = clock_time(clock)?;
    local(date(day, now)?.to_datetime(time))
}

fn date(day: &str, now: &Zoned) -> Option<Date> {
    match day {
        "today" => Some(now.date()),
        "yesterday" => now.date().yesterday().ok(),
        _ => Date::strptime("%Y-%m-%d", day).ok(),
    }
}

fn clock_time(clock: &str) -> Option<Time> {
    let clock = clock.trim();
    ["%H:%M:%S%.f", "%H:%M"].into_iter().find_map(|form| Time::strptime(form, clock).ok())
}

/// Parses the form of Samba's previous versions: `2026.11.23-10.00.00`.
fn gmt_form(text: &str) -> Option<Timestamp> {
    let civil = DateTime::strptime("%Y.%m.%d-%H.%M.%S", text).ok()?;
    Some(civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

/// Parses `2h`, `90 minutes`, `1 day 2h`.
fn ago(amount: &str, now: &Zoned) -> Option<Timestamp> {
    let mut span = Span::new();
    let mut rest = amount.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (count, after) = rest.split_at_checked(digits)?;
        let count: i64 = count.parse().ok()?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        span = add(span, count, unit)?;
        rest = after.trim_start();
    }
    Some(now.checked_sub(span).ok()?.timestamp())
}

/// Adds `count` units to the span; each unit once.
fn add(span: Span, count: i64, unit: &str) -> Option<Span> {
    match unit {
        "s" | "sec" | "secs" | "second" | "seconds" => span.try_seconds(count),
        "m" | "min" | "mins" | "minute" | "minutes" => span.try_minutes(count),
        "h" | "hour" | "hours" => span.try_hours(count),
        "d" | "day" | "days" => span.try_days(count),
        "w" | "week" | "weeks" => span.try_weeks(count),
        "month" | "months" => span.try_months(count),
        "y" | "year" | "years" => span.try_years(count),
        _ => return None,
    }
    .ok()
}

/// Returns how long ago a time was, in one unit: `5m ago`.
pub(crate) fn relative(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(time.as_second());
    match seconds {
        ..0 => "in the future".to_owned(),
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86_400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// Returns a time in the zone of `now`, to the second.
pub(crate) fn local(time: Timestamp, now: &Zoned) -> String {
    time.to_zoned(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use jiff::tz::{TimeZone, offset};

    /// 2026-11-23 12:00:00, two hours east of Greenwich.
    pub(crate) fn noon() -> Zoned {
        "2026-11-23T10:00:00Z".parse::<Timestamp>().unwrap().to_zoned(TimeZone::fixed(offset(2)))
    }

    #[test]
    fn every_form_is_parsed() {
        for (text, utc) in [
            ("now", "2026-11-23T10:00:00Z"),
            ("2h ago", "2026-11-23T08:00:00Z"),
            ("90 minutes ago", "2026-11-23T08:30:00Z"),
            ("1 day 2h ago", "2026-11-22T08:00:00Z"),
            ("1month ago", "2026-10-23T10:00:00Z"),
            ("yesterday 14:00", "2026-11-22T12:00:00Z"),
            ("yesterday", "2026-11-21T22:00:00Z"),
            ("today 00:30", "2026-11-22T22:30:00Z"),
            ("14:00", "2026-11-23T12:00:00Z"),
            ("14:00:05", "2026-11-23T12:00:05Z"),
            ("2026-11-23 10:00", "2026-11-23T08:00:00Z"),
            ("2026-11-23 10:00:01.5", "2026-11-23T08:00:01.5Z"),
            ("2026-11-23T10:00", "2026-11-23T08:00:00Z"),
            ("2026-11-23", "2026-11-22T22:00:00Z"),
            ("2026-11-23T10:00:00Z", "2026-11-23T10:00:00Z"),
            ("2026-11-23T10:00:00-05:00", "2026-11-23T15:00:00Z"),
            ("@GMT-2026.11.23-10.00.00", "2026-11-23T10:00:00Z"),
            ("@1000", "1970-01-01T00:16:40Z"),
            ("@1000.25", "1970-01-01T00:16:40.25Z"),
            ("@1000.123456789", "1970-01-01T00:16:40.123456789Z"),
        ] {
            assert_eq!(When::parse(text, &noon()), Ok(When::Time(utc.parse().unwrap())), "{text}");
        }
    }

    #[test]
    fn numbers_and_tags_are_told_apart_from_times() {
        assert_eq!(When::parse("12", &noon()), Ok(When::Number(12)));
        assert_eq!(When::parse("before-upgrade", &noon()), Ok(When::Tag("before-upgrade".into())));
        for wrong in [
            "",
            "25:00",
            "2026-13-01",
            "2 parsecs ago",
            "yesterday 9pm",
            "@GMT-2026",
            "-1",
            "h ago",
            "@1.+5",
            "@1.1234567890",
        ] {
            let refused = When::parse(wrong, &noon()).unwrap_err();
            assert!(refused.contains("yesterday 14:00") && refused.starts_with(wrong), "{refused}");
        }
        // No number is too large.
        assert!(When::parse("99999999999999999999 days ago", &noon()).is_err());
        assert!(When::parse("9223372036854775807 years ago", &noon()).is_err());
    }

    #[test]
    fn times_are_shown() {
        let now = noon();
        let at = |text: &str| parse(text, &now).unwrap();
        assert_eq!(relative(at("59s ago"), now.timestamp()), "59s ago");
        assert_eq!(relative(at("119m ago"), now.timestamp()), "1h ago");
        assert_eq!(relative(at("3 weeks ago"), now.timestamp()), "21d ago");
        assert_eq!(local(at("2h ago"), &now), "2026-11-23 10:00:00");
    }
}
