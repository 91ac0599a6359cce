//! The options of a layer's own, read by what it declares.

use crate::list::is_branch;
use crate::near::nearest;
use crate::{Branches, LayerType, OptionSpec, Settings, Text};
use core::fmt::Write as _;

/// Options that were given and that are declared, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given(Vec<(&'static str, Option<Text>)>);

impl OptionSpec {
    /// As the help shows the option: `name` or `name=VALUE`.
    #[must_use]
    pub fn usage(&self) -> String {
        match self.value {
            None => self.name.to_owned(),
            Some(value) => format!("{}={value}", self.name),
        }
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

impl Given {
    /// Takes an option that is declared.
    ///
    /// # Errors
    /// It has a value and should have none, or the other way round.
    pub fn take(&mut self, spec: &'static OptionSpec, value: Option<Text>) -> Result<(), String> {
        match (spec.value, &value) {
            (None, Some(_)) => Err(format!("option {} takes no value", spec.name)),
            (Some(shape), None) => Err(format!("option {name} needs a value: {name}={shape}", name = spec.name)),
            _ => {
                self.0.push((spec.name, value));
                Ok(())
            }
        }
    }

    /// Reads the items of a list, each of which must be declared or be one more branch.
    ///
    /// # Errors
    /// Names the option and what is wrong with it.
    pub fn read(items: &[Text], kind: &LayerType) -> Result<Self, String> {
        Self::declared(items, kind.options, kind.branches())
    }

    /// The same of any declared options.
    pub(crate) fn declared(
        items: &[Text],
        declared: &'static [OptionSpec],
        branches: Option<&Branches>,
    ) -> Result<Self, String> {
        let mut given = Self::default();
        for item in items.iter().filter(|item| !item.is_empty()) {
            let (name, value) = name_and_value(item);
            if let Some(spec) = declared.iter().find(|spec| spec.name == name) {
                given.take(spec, value)?;
            } else if !given.go_on(item, branches) {
                let way_out = match nearest(&name, declared.iter().map(|spec| spec.name)) {
                    Some(near) => format!("is {near} meant?"),
                    None if declared.is_empty() => "it has none".to_owned(),
                    None => format!("it has {}", declared.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")),
                };
                return Err(format!("unknown option {name}: {way_out}"));
            }
        }
        Ok(given)
    }

    /// Takes an item that has no name of an option, where it is one more branch after a list of
    /// branches.
    pub fn go_on(&mut self, item: &Text, branches: Option<&Branches>) -> bool {
        let Some(branches) = branches.filter(|branches| branches.joined && self.has(branches.option)) else {
            return false;
        };
        let takes = is_branch(item, branches);
        if takes {
            self.0.push((branches.option, Some(item.clone())));
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

    /// The lists of branches that count: all of them where they are joined, else the last one.
    pub fn lists(&self, branches: &Branches) -> impl Iterator<Item = &Text> {
        let lists = self.iter().filter(|(name, _)| *name == branches.option).filter_map(|(_, list)| list);
        let all = self.iter().filter(|(name, _)| *name == branches.option).count();
        lists.skip(if branches.joined { 0 } else { all.saturating_sub(1) })
    }

    /// The same for the layer, without its branches.
    ///
    /// # Errors
    /// One is given twice. For a layer over branches the last one counts, as elsewhere in mount
    /// options: what the command line says comes after what fstab says.
    pub fn settings(&self, branches: Option<&Branches>) -> Result<Settings, String> {
        let mut settings = Settings::new();
        for (name, value) in self.iter().filter(|(name, _)| branches.is_none_or(|branches| branches.option != *name)) {
            if !settings.insert(name, &value.map(Text::bytes).unwrap_or_default()) && branches.is_none() {
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

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &[OptionSpec] =
        &[OptionSpec { name: "key", value: Some("N"), help: "" }, OptionSpec { name: "fast", value: None, help: "" }];

    fn read(text: &str) -> Result<Given, String> {
        Given::declared(&Text::read(text.as_bytes()).unwrap().split(b','), DECLARED, None)
    }

    #[test]
    fn declared_options_are_read() {
        let given = read(r"key=a\,b=c,fast").unwrap();
        assert_eq!(given.show(), "key=a,b=c,fast");
        let settings = given.settings(None).unwrap();
        assert_eq!((settings.bytes("key"), settings.bytes("fast")), (Some(&b"a,b=c"[..]), Some(&b""[..])));
        assert!(read("").is_ok_and(|given| given == Given::default()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(read("kye=1").unwrap_err(), "unknown option kye: is key meant?");
        assert_eq!(read("other").unwrap_err(), "unknown option other: it has key, fast");
        assert_eq!(read("key").unwrap_err(), "option key needs a value: key=N");
        assert_eq!(read("fast=1").unwrap_err(), "option fast takes no value");
        assert_eq!(read("key=1,key=2").unwrap().settings(None).unwrap_err(), "option key is given twice");
    }
}
