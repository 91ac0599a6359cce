use crate::quantity::Quantity;

/// The value of a maximum without limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// A minimum and a maximum, both inclusive. The unit depends on the field that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The minimum; 0 if there is none.
    pub min: u64,
    /// The maximum; [`NO_LIMIT`] if there is none.
    pub max: u64,
}

impl Range {
    /// Contains every value.
    pub const ALL: Self = Self { min: 0, max: NO_LIMIT };

    /// Whether the value is within the range.
    #[must_use]
    pub fn contains(&self, value: u64) -> bool {
        (self.min..=self.max).contains(&value)
    }
}

/// A range as it is written: a side that is left out is `None`, `none` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
}

impl Ends {
    /// Parses `MIN..MAX`, `MIN..` or `..MAX`. Either side may be `none`.
    ///
    /// # Errors
    /// What is wrong and what to write instead.
    pub(crate) fn parse(text: &str, quantity: Quantity) -> Result<Self, String> {
        let Some((min, max)) = text.split_once("..") else {
            // A correct value that is no range: both meanings are named.
            let value = quantity.parse(text)?;
            let value = quantity.show(value);
            return Err(format!(
                "\"{text}\" is not a range; write \"..{value}\" for at most, \"{value}..\" for at least"
            ));
        };
        let side = |text: &str, none| match text.trim() {
            "" => Ok(None),
            "none" => Ok(Some(none)),
            text => quantity.parse(text).map(Some),
        };
        let ends = Self { min: side(min, 0)?, max: side(max, NO_LIMIT)? };
        if ends.min.is_none() && ends.max.is_none() {
            return Err(format!("\"{text}\" has neither minimum nor maximum; write for example \"10..100\""));
        }
        Ok(ends)
    }

    /// Whether no value lies between the ends.
    pub(crate) fn is_contradictory(self) -> bool {
        matches!((self.min, self.max), (Some(min), Some(max)) if min > max)
    }

    /// The range, with a missing side without limit.
    pub(crate) fn filled(self) -> Range {
        Range { min: self.min.unwrap_or(0), max: self.max.unwrap_or(NO_LIMIT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms() {
        let parse = |text| Ends::parse(text, Quantity::Duration).map(|ends| (ends.min, ends.max));
        assert_eq!(parse("2d..30d"), Ok((Some(172_800), Some(2_592_000))));
        assert_eq!(parse("..30d"), Ok((None, Some(2_592_000))));
        assert_eq!(parse("2d .. none"), Ok((Some(172_800), Some(NO_LIMIT))));
        assert_eq!(parse("none..1h"), Ok((Some(0), Some(3600))));
        let at_least = "\"2d\" is not a range; write \"..2d\" for at most, \"2d..\" for at least";
        assert_eq!(parse("2d"), Err(at_least.to_owned()));
        assert!(parse("..").is_err());
        assert!(parse("1d..2d..3d").is_err());
        assert!(Ends::parse("5..2", Quantity::Count).unwrap().is_contradictory());
    }
}
