//! The options of a layer's own, read by what it declares.

use crate::near::nearest;
use crate::text::Text;
use core::fmt::Write as _;
use wrapfs::{OptionSpec, Settings};

/// Options that were given and that are declared, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own(Vec<(&'static str, Option<Text>)>);

/// As the help shows an option: `name` or `name=VALUE`.
#[must_use]
pub fn usage(spec: &OptionSpec) -> String {
    match spec.value {
        None => spec.name.to_owned(),
        Some(value) => format!("{}={value}", spec.name),
    }
}

/// What is before the first `=`, and what is after it.
#[must_use]
pub fn name_and_value(item: &Text) -> (String, Option<Text>) {
    match item.split_first(b'=') {
        None => (item.show(), None),
        Some((name, value)) => (name.show(), Some(value)),
    }
}

impl Own {
    /// Takes an option that is declared.
    ///
    /// # Errors
    /// It has a value and should have none, or the other way round.
    pub fn take(&mut self, spec: &OptionSpec, name: &'static str, value: Option<Text>) -> Result<(), String> {
        match (spec.value, &value) {
            (None, Some(_)) => Err(format!("option {name} takes no value")),
            (Some(shape), None) => Err(format!("option {name} needs a value: {name}={shape}")),
            _ => {
                self.0.push((name, value));
                Ok(())
            }
        }
    }

    /// Reads the items of a list, each of which must be declared or, by `continues`, be one more value of that option.
    ///
    /// # Errors
    /// Names the option and what is wrong with it.
    pub fn read(
        items: &[Text],
        declared: &'static [OptionSpec],
        continues: Option<&Continues>,
    ) -> Result<Self, String> {
        let mut own = Self::default();
        for item in items.iter().filter(|item| !item.is_empty()) {
            let (name, value) = name_and_value(item);
            if let Some(spec) = declared.iter().find(|spec| spec.name == name) {
                own.take(spec, spec.name, value)?;
            } else if !own.go_on(item, continues) {
                let way_out = match nearest(&name, declared.iter().map(|spec| spec.name)) {
                    Some(near) => format!("is {near} meant?"),
                    None if declared.is_empty() => "it has none".to_owned(),
                    None => format!("it has {}", declared.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")),
                };
                return Err(format!("unknown option {name}: {way_out}"));
            }
        }
        Ok(own)
    }

    /// Takes an item that has no name of an option, where it is one more value of an option that was given before.
    pub fn go_on(&mut self, item: &Text, continues: Option<&Continues>) -> bool {
        let Some(continues) = continues.filter(|continues| self.has(continues.option)) else { return false };
        let takes = (continues.takes)(item);
        if takes {
            self.0.push((continues.option, Some(item.clone())));
        }
        takes
    }

    /// Adds an option that stood somewhere else.
    pub fn add(&mut self, name: &'static str, value: Text) {
        self.0.push((name, Some(value)));
    }

    /// Was the option given?
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(given, _)| *given == name)
    }

    /// The options and their values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&'static str, Option<&Text>)> {
        self.0.iter().map(|(name, value)| (*name, value.as_ref()))
    }

    /// The same for a layer of the template.
    ///
    /// # Errors
    /// One is given twice.
    pub fn settings(&self) -> Result<Settings, String> {
        let mut settings = Settings::new();
        for (name, value) in self.iter() {
            if !settings.insert(name, &value.map(Text::bytes).unwrap_or_default()) {
                return Err(format!("option {name} is given twice"));
            }
        }
        Ok(settings)
    }

    /// For people to read: `name,name=value`.
    #[must_use]
    pub fn show(&self) -> String {
        let mut out = String::new();
        for (name, value) in self.iter() {
            let comma = if out.is_empty() { "" } else { "," };
            let _ = match value {
                None => write!(out, "{comma}{name}"),
                Some(value) => write!(out, "{comma}{name}={}", value.show()),
            };
        }
        out
    }
}

/// An option whose value may go on in items that follow.
#[derive(Debug)]
pub struct Continues {
    /// Which option.
    pub option: &'static str,
    /// Is the item one more value of it?
    pub takes: fn(&Text) -> bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &[OptionSpec] =
        &[OptionSpec { name: "key", value: Some("N"), help: "" }, OptionSpec { name: "fast", value: None, help: "" }];

    fn read(text: &str) -> Result<Own, String> {
        Own::read(&Text::read(text.as_bytes()).unwrap().split(b','), DECLARED, None)
    }

    #[test]
    fn declared_options_are_read() {
        let own = read(r"key=a\,b=c,fast").unwrap();
        assert_eq!(own.show(), "key=a,b=c,fast");
        let settings = own.settings().unwrap();
        assert_eq!((settings.bytes("key"), settings.bytes("fast")), (Some(&b"a,b=c"[..]), Some(&b""[..])));
        assert!(read("").is_ok_and(|own| own == Own::default()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(read("kye=1").unwrap_err(), "unknown option kye: is key meant?");
        assert_eq!(read("other").unwrap_err(), "unknown option other: it has key, fast");
        assert_eq!(read("key").unwrap_err(), "option key needs a value: key=N");
        assert_eq!(read("fast=1").unwrap_err(), "option fast takes no value");
        assert_eq!(read("key=1,key=2").unwrap().settings().unwrap_err(), "option key is given twice");
    }
}
