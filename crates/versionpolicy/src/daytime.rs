//! Times of day and days of the week.

/// The local time at which something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalTime {
    /// Minutes since midnight, below 1,440.
    pub minute: u16,
    /// The day of the week: 0 is Monday, 6 is Sunday.
    pub weekday: u8,
}

impl LocalTime {
    /// The local time at `seconds` since the epoch, in a zone that is `utc_offset` seconds ahead of
    /// UTC.
    #[must_use]
    pub fn new(seconds: i64, utc_offset: i32) -> Self {
        let local = seconds.saturating_add(i64::from(utc_offset));
        let minute = u16::try_from(local.rem_euclid(86_400) / 60).unwrap_or(0);
        // 1 January 1970 was a Thursday.
        let weekday = u8::try_from((local.div_euclid(86_400) + 3).rem_euclid(7)).unwrap_or(0);
        Self { minute, weekday }
    }
}

/// A part of the day, from a minute inclusive to a minute exclusive. It may pass midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DayTime {
    from: u16,
    to: u16,
}

const DAY_MINUTES: u16 = 24 * 60;

impl DayTime {
    /// Parses `18:00..08:00`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not a time of day; write for example \"18:00..08:00\"");
        let (from, to) = text.split_once("..").ok_or_else(wrong)?;
        let (from, to) = (clock(from).ok_or_else(wrong)?, clock(to).ok_or_else(wrong)?);
        if from == to || from == DAY_MINUTES {
            return Err(format!("\"{text}\" contains no time; for the whole day, leave the time out"));
        }
        Ok(Self { from, to })
    }

    pub(crate) fn contains(self, minute: u16) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

/// Parses `HH:MM` up to `24:00`.
fn clock(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let part = |text: &str, most: u16| {
        let digits = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok())?.filter(|&value: &u16| value <= most)
    };
    let minute = part(hours, 24)? * 60 + part(minutes, 59)?;
    (minutes.len() == 2 && minute <= DAY_MINUTES).then_some(minute)
}

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// Parses `sat` or `mon..fri` to a set with one bit a day.
pub(crate) fn weekdays(text: &str) -> Result<u8, String> {
    let day = |name: &str| {
        let name = name.trim().to_lowercase();
        let found = WEEKDAYS.iter().position(|day| name.len() >= 3 && day.starts_with(&name));
        found.ok_or_else(|| format!("unknown day \"{name}\"; use mon, tue, wed, thu, fri, sat, sun or mon..fri"))
    };
    let Some((first, last)) = text.split_once("..") else {
        return day(text).map(|day| 1 << day);
    };
    let (first, last) = (day(first)?, day(last)?);
    let count = (last + 7 - first) % 7;
    Ok((0..=count).fold(0, |days, step| days | 1 << ((first + step) % 7)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_may_pass_midnight() {
        let night = DayTime::parse("18:00..08:00").unwrap();
        assert!(night.contains(18 * 60) && night.contains(0) && night.contains(479));
        assert!(!night.contains(480) && !night.contains(18 * 60 - 1));
        let evening = DayTime::parse("18:00..24:00").unwrap();
        assert!(evening.contains(1439) && !evening.contains(0));
        assert_eq!(
            DayTime::parse("6pm..8am").unwrap_err(),
            "\"6pm..8am\" is not a time of day; write for example \"18:00..08:00\""
        );
        for text in ["24:01..1:00", "1:60..2:00", "1:00", "1:0..2:00", "3:00..3:00", "99:00..1:00", "24:00..1:00"] {
            assert!(DayTime::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn weekdays_are_sets() {
        assert_eq!(weekdays("mon..fri"), Ok(0b001_1111));
        assert_eq!(weekdays("Saturday"), Ok(0b010_0000));
        assert_eq!(weekdays("sat..mon"), Ok(0b110_0001));
        assert!(weekdays("holiday").is_err() && weekdays("").is_err() && weekdays("\u{e9}\u{e9}").is_err());
    }

    #[test]
    fn local_time_of_an_instant() {
        // Monday, 23 November 2026, 22:37:15 UTC.
        let monday = LocalTime::new(1_795_473_435, 0);
        assert_eq!(monday, LocalTime { minute: 22 * 60 + 37, weekday: 0 });
        assert_eq!(LocalTime::new(1_795_473_435, 7200), LocalTime { minute: 37, weekday: 1 });
        assert_eq!(LocalTime::new(-1, 0), LocalTime { minute: 1439, weekday: 2 });
        let _ = LocalTime::new(i64::MAX, i32::MAX);
        let _ = LocalTime::new(i64::MIN, i32::MIN);
    }
}
