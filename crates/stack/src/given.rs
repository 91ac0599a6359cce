//! Options of a layer, parsed by its declaration.

use crate::list::is_branch;
use crate::suggest::{elsewhere, nearest};
use crate::{Branches, LayerType, OptionSpec, Settings, Text};
use core::fmt::Write as _;

/// The given options, in order. All of them are declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given(Vec<(&'static str, Option<Text>)>);

impl OptionSpec {
    /// Returns the option as shown in the help: `name` or `name=VALUE`.
    #[must_use]
    pub fn usage(&self) -> String {
        match self.value {
            None => self.name.to_owned(),
            Some(value) => format!("{}={value}", self.name),
        }
    }
}

/// Splits an item at the first `=`.
#[must_use]
pub fn name_and_value(item: &Text) -> (String, Option<Text>) {
    match item.split_first(b'=') {
        None => (item.show(), None),
        Some((name, value)) => (name.show(), Some(value)),
    }
}

impl Given {
    /// Adds a declared option.
    ///
    /// # Errors
    /// It has a value although it takes none, or lacks one.
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

    /// Parses the items of an option list. Each item must be a declared option or another branch.
    ///
    /// # Errors
    /// Names the option and the problem.
    pub fn read(items: &[Text], kind: &LayerType) -> Result<Self, String> {
        Self::declared(items, kind.options, kind.branches())
    }

    /// Parses a list of any declared options.
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
            } else if !given.continue_list(item, branches) {
                let known = || declared.iter().map(|spec| spec.name);
                let near = nearest(&name, known()).map(|near| format!("did you mean {near}?"));
                let remedy = match near.or_else(|| elsewhere(&name, known())) {
                    Some(remedy) => remedy,
                    None if declared.is_empty() => "there are no options".to_owned(),
                    None => {
                        format!("options are {}", known().collect::<Vec<_>>().join(", "))
                    }
                };
                return Err(format!("unknown option {name}: {remedy}"));
            }
        }
        Ok(given)
    }

    /// Adds an item without an option name as another branch, if it follows a list of branches.
    pub fn continue_list(&mut self, item: &Text, branches: Option<&Branches>) -> bool {
        let Some(branches) = branches.filter(|branches| branches.joined && self.has(branches.option)) else {
            return false;
        };
        let takes = is_branch(item, branches);
        if takes {
            self.0.push((branches.option, Some(item.clone())));
        }
        takes
    }

    /// Adds an option from another source.
    pub fn add(&mut self, name: &'static str, value: Text) {
        self.0.push((name, Some(value)));
    }

    /// Whether the option was given.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(given, _)| *given == name)
    }

    /// Returns the options and their values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&'static str, Option<&Text>)> {
        self.0.iter().map(|(name, value)| (*name, value.as_ref()))
    }

    /// Returns the lists of branches that apply: all of them if lists are joined, otherwise the
    /// last one.
    pub fn lists(&self, branches: &Branches) -> impl Iterator<Item = &Text> {
        let lists = self.iter().filter(|(name, _)| *name == branches.option).filter_map(|(_, list)| list);
        let all = self.iter().filter(|(name, _)| *name == branches.option).count();
        lists.skip(if branches.joined { 0 } else { all.saturating_sub(1) })
    }

    /// Returns the settings of the layer, without its branches.
    ///
    /// # Errors
    /// An option is given twice. For a layer over branches, the last one applies instead, as usual
    /// for mount options: the command line overrides fstab.
    pub fn settings(&self, branches: Option<&Branches>) -> Result<Settings, String> {
        let mut settings = Settings::new();
        for (name, value) in self.iter().filter(|(name, _)| branches.is_none_or(|branches| branches.option != *name)) {
            if !settings.insert(name, &value.map(Text::bytes).unwrap_or_default()) && branches.is_none() {
                return Err(format!("option {name} is given twice"));
            }
        }
        Ok(settings)
    }

    /// Formats the options for messages: `name,name=value`.
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
    fn errors_name_the_option() {
        assert_eq!(read("kye=1").unwrap_err(), "unknown option kye: did you mean key?");
        assert_eq!(read("other").unwrap_err(), "unknown option other: options are key, fast");
        assert_eq!(read("key").unwrap_err(), "option key needs a value: key=N");
        assert_eq!(read("fast=1").unwrap_err(), "option fast takes no value");
        assert_eq!(read("key=1,key=2").unwrap().settings(None).unwrap_err(), "option key is given twice");
    }
}
