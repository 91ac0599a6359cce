//! The options of a layer, and parsing of their values.

use core::ops::RangeInclusive;
use std::collections::BTreeMap;

/// The options of a layer. Contains only declared options, each at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, Vec<u8>>);

impl Settings {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an option, replacing an earlier one with the same name. An option without a value has
    /// an empty value. Returns false if it was already set.
    pub fn insert(&mut self, name: &str, value: &[u8]) -> bool {
        self.0.insert(name.to_owned(), value.to_vec()).is_none()
    }

    /// Whether the option was given.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the option's value as bytes: file names need not be UTF-8.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Returns the option's value as text.
    ///
    /// # Errors
    /// A sentence that names the option, if the value is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&str>, String> {
        let text = |bytes| core::str::from_utf8(bytes).map_err(|_| format!("{name}=: the value is not UTF-8"));
        self.bytes(name).map(text).transpose()
    }

    /// Returns the option's value, parsed as a number, an address or another type.
    ///
    /// # Errors
    /// A sentence that names the option and the problem.
    pub fn parse<T: core::str::FromStr>(&self, name: &str) -> Result<Option<T>, String>
    where
        T::Err: core::fmt::Display,
    {
        let parse = |text: &str| text.parse().map_err(|error| format!("{name}={text}: {error}"));
        self.text(name)?.map(parse).transpose()
    }

    /// Returns the option's value as a number within a range.
    ///
    /// # Errors
    /// A sentence that names the option and the range.
    pub fn number<T>(&self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, String>
    where
        T: core::str::FromStr + PartialOrd + core::fmt::Display,
    {
        let (least, most) = (range.start(), range.end());
        let number = |text: &str| {
            let number = text.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| format!("{name}={text}: it is a number from {least} to {most}"))
        };
        self.text(name)?.map(number).transpose()
    }

    /// Returns the option's value as a number of bytes: `4096`, `4k`, `1M` (KiB and MiB).
    ///
    /// # Errors
    /// A sentence that names the option and the syntax of sizes.
    pub fn size(&self, name: &str) -> Result<Option<usize>, String> {
        let size = |text: &str| crate::value::size(text.as_bytes()).map_err(|wrong| format!("{name}={text}: {wrong}"));
        self.text(name)?.map(size).transpose()
    }

    /// Returns the option's value, parsed by one of the functions of [`crate::value`].
    ///
    /// # Errors
    /// A sentence that names the option and the problem.
    pub fn read<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<Option<T>, String> {
        let value = self.bytes(name).map(read).transpose();
        value.map_err(|wrong| format!("option {name}=: {wrong}"))
    }

    /// Returns all options, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let mut settings = Settings::new();
        assert!(settings.insert("size", b"12") && settings.insert("name", b"\xff") && settings.insert("flag", b""));
        assert!(!settings.insert("flag", b""));
        assert_eq!(settings.parse::<u32>("size"), Ok(Some(12)));
        assert_eq!(settings.parse::<u32>("none"), Ok(None));
        assert!(settings.parse::<u8>("flag").is_err_and(|why| why.starts_with("flag=")));
        assert!(settings.text("name").is_err() && settings.size("name").is_err());
        for (text, size) in [("0", 0), ("12", 12), ("4k", 4096), ("64K", 65_536), ("1M", 1 << 20), ("3m", 3 << 20)] {
            let mut settings = Settings::new();
            settings.insert("block", text.as_bytes());
            assert_eq!(settings.size("block"), Ok(Some(size)), "{text}");
        }
        for text in ["", "k", "4 k", "4kB", "-1", "1.5M", "18446744073709551615k", "\u{e4}"] {
            let mut settings = Settings::new();
            settings.insert("block", text.as_bytes());
            let wrong = format!("block={text}: not a size; write it as 4096, 4k or 1M");
            assert_eq!(settings.size("block"), Err(wrong));
        }
        assert_eq!(settings.bytes("name"), Some(&b"\xff"[..]));
        assert_eq!((settings.number("size", 0..=12), settings.number("none", 0..=1)), (Ok(Some(12)), Ok(None)));
        let wrong = |range| settings.number::<i64>("size", range).unwrap_err();
        assert_eq!(wrong(-7..=11), "size=12: it is a number from -7 to 11");
        assert_eq!(wrong(13..=22), "size=12: it is a number from 13 to 22");
        assert_eq!(settings.number::<u8>("flag", 0..=1).unwrap_err(), "flag=: it is a number from 0 to 1");
    }
}
