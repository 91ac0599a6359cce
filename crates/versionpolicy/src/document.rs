//! Reads a TOML document value by value. Each mistake becomes a problem, and reading continues.

use crate::problem::{Place, Problems, instead};
use crate::quantity::Quantity;
use crate::range::{Ends, NO_LIMIT};
use core::ops::Range as Span;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node<'d> {
    pub(crate) value: &'d DeValue<'d>,
    pub(crate) span: Span<usize>,
    /// Where its key begins.
    pub(crate) key: Span<usize>,
}

/// A table whose keys are looked up.
#[derive(Clone, Debug)]
pub(crate) struct Table<'d> {
    table: &'d DeTable<'d>,
    pub(crate) span: Span<usize>,
}

impl<'d> Table<'d> {
    pub(crate) fn new(table: &'d DeTable<'d>, span: Span<usize>) -> Self {
        Self { table, span }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Node<'d>> {
        let (key, value) = self.table.iter().find(|(known, _)| known.get_ref() == key)?;
        Some(Node { value: value.get_ref(), span: value.span(), key: key.span() })
    }

    /// Reports keys that are not known.
    pub(crate) fn expect_keys(&self, known: &[&str], problems: &mut Problems<'_>) {
        for (key, _) in self.table {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                problems.error(&key.span(), format!("unknown key {name}; {}", instead(name, known)));
            }
        }
    }
}

impl<'d> Node<'d> {
    pub(crate) fn new(value: &'d Spanned<DeValue<'d>>) -> Self {
        Self { value: value.get_ref(), span: value.span(), key: value.span() }
    }

    pub(crate) fn place(&self, problems: &Problems<'_>) -> Place {
        problems.place(self.key.start)
    }

    fn expected(&self, what: &str, problems: &mut Problems<'_>) {
        let found = self.value.type_str();
        problems.error(&self.span, format!("expected {what}, found a value of type {found}"));
    }

    pub(crate) fn table(&self, what: &str, problems: &mut Problems<'_>) -> Option<Table<'d>> {
        let table = self.value.as_table().map(|table| Table::new(table, self.span.clone()));
        if table.is_none() {
            self.expected(what, problems);
        }
        table
    }

    pub(crate) fn array(&self, what: &str, problems: &mut Problems<'_>) -> Vec<Node<'d>> {
        let array = self.value.as_array().map(|array| array.iter().map(Node::new).collect());
        array.unwrap_or_else(|| {
            self.expected(what, problems);
            Vec::new()
        })
    }

    pub(crate) fn boolean(&self, problems: &mut Problems<'_>) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.expected("true or false", problems);
        }
        value
    }

    pub(crate) fn string(&self, what: &str, problems: &mut Problems<'_>) -> Option<&'d str> {
        let value = self.value.as_str();
        if value.is_none() {
            self.expected(what, problems);
        }
        value
    }

    /// A string, or an array of values.
    pub(crate) fn list(&self, problems: &mut Problems<'_>) -> Vec<Node<'d>> {
        let Some(array) = self.value.as_array() else { return vec![self.clone()] };
        if array.is_empty() {
            problems.error(&self.span, "the list is empty, so nothing matches; remove the key or add a value");
        }
        array.iter().map(Node::new).collect()
    }

    /// Parses a string, and reports the reason if that fails.
    pub(crate) fn parse<T>(
        &self,
        what: &str,
        problems: &mut Problems<'_>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.string(what, problems)?;
        parse(text).map_err(|reason| problems.error(&self.span, reason)).ok()
    }

    /// One of several words.
    pub(crate) fn word<T: Copy>(&self, all: &[T], names: &[&str], problems: &mut Problems<'_>) -> Option<T> {
        // true and false are words, too, without quotes.
        let flag = self
            .value
            .as_bool()
            .and_then(|flag| crate::settings::named(if flag { "true" } else { "false" }, all, names));
        flag.or_else(|| {
            self.parse("a string", problems, |text| {
                crate::settings::named(text, all, names)
                    .ok_or_else(|| format!("unknown value \"{text}\"; {}", instead(text, names)))
            })
        })
    }

    pub(crate) fn integer(&self) -> Option<u64> {
        let integer = self.value.as_integer()?;
        u64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|&value| i64::try_from(value).is_ok())
    }

    /// `"MIN..MAX"` or `{ min = ..., max = ... }`.
    pub(crate) fn ends(&self, quantity: Quantity, problems: &mut Problems<'_>) -> Option<Ends> {
        let ends = match self.value {
            DeValue::Table(table) => {
                let table = Table::new(table, self.span.clone());
                table.expect_keys(&["min", "max"], problems);
                let min = table.get("min").map(|node| node.end(quantity, 0, problems));
                let max = table.get("max").map(|node| node.end(quantity, NO_LIMIT, problems));
                Ends { min: min.flatten(), max: max.flatten() }
            }
            DeValue::String(text) => {
                Ends::parse(text, quantity).map_err(|reason| problems.error(&self.span, reason)).ok()?
            }
            DeValue::Integer(number) => {
                let advice = format!("write \"..{number}\" for at most, \"{number}..\" for at least");
                problems.error(&self.span, format!("{number} is not a range; {advice}"));
                return None;
            }
            _ => {
                self.expected("a range such as \"10..100\"", problems);
                return None;
            }
        };
        if ends.is_contradictory() {
            problems.error(&self.span, "the minimum is above the maximum; exchange them, or remove one");
            return None;
        }
        Some(ends)
    }

    fn end(&self, quantity: Quantity, none: u64, problems: &mut Problems<'_>) -> Option<u64> {
        match self.value {
            DeValue::Integer(_) if quantity == Quantity::Count => {
                let value = self.integer();
                if value.is_none() {
                    problems.error(&self.span, "the number is negative or too large; write none for no limit");
                }
                value
            }
            DeValue::String(text) if text == "none" => Some(none),
            DeValue::String(text) => quantity.parse(text).map_err(|reason| problems.error(&self.span, reason)).ok(),
            _ => {
                problems.error(&self.span, format!("expected a string; write for example \"{}\"", quantity.example()));
                None
            }
        }
    }
}
