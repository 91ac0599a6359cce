//! Numbers with units: sizes and durations, parsed and printed.

/// A kind of number in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// A number of versions.
    Count,
    /// Seconds.
    Duration,
    /// Bytes.
    Size,
}

const SECOND: u64 = 1;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
const MONTH: u64 = 30 * DAY;
const YEAR: u64 = 365 * DAY;

/// Units of durations, in lower case. The first name of each size is the one that is printed.
const DURATIONS: &[(&[&str], u64)] = &[
    (&["y", "year", "years"], YEAR),
    (&["months", "month", "mo"], MONTH),
    (&["w", "week", "weeks"], 7 * DAY),
    (&["d", "day", "days"], DAY),
    (&["h", "hour", "hours"], HOUR),
    (&["min", "minute", "minutes", "m"], MINUTE),
    (&["s", "sec", "second", "seconds"], SECOND),
];

/// Units of sizes, in lower case.
const SIZES: &[(&[&str], u64)] = &[
    (&["tib", "t"], 1 << 40),
    (&["gib", "g"], 1 << 30),
    (&["mib", "m"], 1 << 20),
    (&["kib", "k"], 1 << 10),
    (&["tb"], 1_000_000_000_000),
    (&["gb"], 1_000_000_000),
    (&["mb"], 1_000_000),
    (&["kb"], 1_000),
    (&["b", "byte", "bytes"], 1),
];

/// The sizes that are printed with a unit.
const PRINTED_SIZES: &[(&str, u64)] = &[("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl Quantity {
    /// Parses a number with its unit.
    ///
    /// # Errors
    /// What is wrong and what to write instead.
    pub(crate) fn parse(self, text: &str) -> Result<u64, String> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(split);
        let unit = unit.trim();
        let wrong = || format!("\"{text}\" is not {}; write for example {}", self.article(), self.example());
        let (whole, fraction) = decimal(digits).ok_or_else(wrong)?;
        let factor = match (self, unit) {
            (Self::Count, "") => 1,
            (Self::Count, _) => return Err(wrong()),
            (_, "") if whole == 0 && fraction == 0 => 1,
            (_, "") => return Err(format!("\"{text}\" has no unit; write for example {}", self.example())),
            _ => self.factor(unit).ok_or_else(|| format!("unknown unit \"{unit}\"; {}", self.units()))?,
        };
        if self == Self::Count && digits.contains('.') {
            return Err(wrong());
        }
        let part = u128::from(fraction) * u128::from(factor) / u128::from(BILLION);
        let value = u128::from(whole) * u128::from(factor) + part;
        // u64::MAX means "no limit" everywhere; i64::MAX seconds are far beyond any time.
        u64::try_from(value).ok().filter(|&value| i64::try_from(value).is_ok()).ok_or_else(|| {
            let none = "write none for no limit";
            format!("\"{text}\" is too large; {none}")
        })
    }

    fn factor(self, unit: &str) -> Option<u64> {
        let known = if self == Self::Size { SIZES } else { DURATIONS };
        let unit = unit.to_lowercase();
        known.iter().find(|(names, _)| names.contains(&unit.as_str())).map(|(_, factor)| *factor)
    }

    fn units(self) -> &'static str {
        match self {
            Self::Count => "a number has no unit",
            Self::Duration => "use s, min, h, d, w, months or y",
            Self::Size => "use B, KB, MB, GB, TB (powers of 1,000) or KiB, MiB, GiB, TiB (powers of 1,024)",
        }
    }

    fn article(self) -> &'static str {
        match self {
            Self::Count => "a whole number",
            Self::Duration => "a duration",
            Self::Size => "a size",
        }
    }

    /// Two values as examples for messages.
    pub(crate) fn example(self) -> &'static str {
        match self {
            Self::Count => "10",
            Self::Duration => "36h, 2d or 3months",
            Self::Size => "140KB or 1.5GiB",
        }
    }

    /// Prints a value with the largest unit that divides it.
    pub(crate) fn show(self, value: u64) -> String {
        let divides = |factor: u64| value != 0 && value.is_multiple_of(factor);
        match self {
            Self::Count => value.to_string(),
            Self::Duration => match DURATIONS.iter().find(|(_, factor)| divides(*factor)) {
                Some((names, factor)) => format!("{}{}", value / factor, names.first().unwrap_or(&"s")),
                None => format!("{value}s"),
            },
            Self::Size => match PRINTED_SIZES.iter().find(|(_, factor)| divides(*factor)) {
                Some((name, factor)) => format!("{}{name}", value / factor),
                None => format!("{value}B"),
            },
        }
    }
}

const BILLION: u64 = 1_000_000_000;

/// Parses `12`, `1_000` or `1.5` to the whole part and the billionths.
fn decimal(digits: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let whole = whole.replace('_', "").parse().ok()?;
    let is_number = !fraction.is_empty() && fraction.len() <= 9 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let billionths = is_number.then(|| format!("{fraction:0<9}").parse().ok())??;
    Some((whole, billionths))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations() {
        assert_eq!(Quantity::Size.parse("140KB"), Ok(140_000));
        assert_eq!(Quantity::Size.parse("1.5GiB"), Ok(3 << 29));
        assert_eq!(Quantity::Size.parse("64 MiB"), Ok(64 << 20));
        assert_eq!(Quantity::Size.parse("0"), Ok(0));
        assert_eq!(Quantity::Size.parse("0.000000001TB"), Ok(1000));
        assert_eq!(Quantity::Duration.parse("2d"), Ok(172_800));
        assert_eq!(Quantity::Duration.parse("36h"), Ok(129_600));
        assert_eq!(Quantity::Duration.parse("1w"), Ok(604_800));
        assert_eq!(Quantity::Duration.parse("3months"), Ok(7_776_000));
        assert_eq!(Quantity::Duration.parse("1.5h"), Ok(5400));
        assert_eq!(Quantity::Count.parse("1_000"), Ok(1000));
    }

    #[test]
    fn mistakes_name_the_way_out() {
        let size = |text| Quantity::Size.parse(text).unwrap_err();
        assert_eq!(size("140"), "\"140\" has no unit; write for example 140KB or 1.5GiB");
        assert_eq!(
            size("3parsec"),
            "unknown unit \"parsec\"; use B, KB, MB, GB, TB (powers of 1,000) or KiB, MiB, GiB, TiB (powers of 1,024)"
        );
        assert_eq!(size("much"), "\"much\" is not a size; write for example 140KB or 1.5GiB");
        assert_eq!(size("99999999TiB"), "\"99999999TiB\" is too large; write none for no limit");
        assert_eq!(Quantity::Count.parse("1.5").unwrap_err(), "\"1.5\" is not a whole number; write for example 10");
        assert_eq!(Quantity::Duration.parse("2x").unwrap_err(), "unknown unit \"x\"; use s, min, h, d, w, months or y");
        for text in ["", ".", "1.", "..", "-1d", "1e9s", "1.0000000001s", "99999999999999999999d", "\u{0661}d"] {
            assert!(Quantity::Duration.parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_parsed_to_the_same_value() {
        for value in [0, 1, 59, 60, 3600, 86_400, 604_800, 7_776_000, 90_000, 31_536_000] {
            assert_eq!(Quantity::Duration.parse(&Quantity::Duration.show(value)), Ok(value));
            assert_eq!(Quantity::Size.parse(&Quantity::Size.show(value)), Ok(value));
        }
        assert_eq!(Quantity::Duration.show(90 * DAY), "3months");
        assert_eq!(Quantity::Size.show(3 << 29), "1536MiB");
    }
}
