use crate::settings::{Limit, NoSpace, Origin, Settings, Source, Storage};
use core::fmt;

/// Where a value of a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The key, for example `number.max`.
    pub key: &'static str,
    /// The value as it is written in configuration files.
    pub value: String,
    /// The file that sets it, and the line; line 0 if no file does.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The file and the line of the bound that changed the value.
    pub bound: Option<(String, u32)>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, file, line, bound } = self;
        match line {
            0 if file.is_empty() => write!(f, "{key} = {value} (default)")?,
            0 => write!(f, "{key} = {value} {file}")?,
            line => write!(f, "{key} = {value} ({file}:{line})")?,
        }
        if let Some((file, line)) = bound {
            write!(f, ", changed by the bounds of {file}:{line}")?;
        }
        Ok(())
    }
}

/// Returns a reason for each value, in the order of the documentation.
pub(crate) fn reasons(settings: &Settings, admin: &str, user: &str) -> Vec<Reason> {
    let reason = |key, set: Option<(String, Source)>, default: &str| match set {
        Some((value, Source { origin, line, bound })) => {
            let file = match origin {
                Origin::Builtin => "built-in",
                Origin::Mount => "(mount options)",
                Origin::Admin => admin,
                Origin::User => user,
            };
            Reason { key, value, file: file.to_owned(), line, bound: bound.map(|line| (admin.to_owned(), line)) }
        }
        None => Reason { key, value: default.to_owned(), file: String::new(), line: 0, bound: None },
    };
    let Settings { limits, versions, storage, keep, landmarks, nospace, external } = settings;
    let flag = |set: &crate::settings::Set<bool>| (set.value.to_string(), set.source);
    let mut reasons = vec![
        reason("versions", versions.as_ref().map(|set| (set.value.name().to_owned(), set.source)), "true"),
        reason("storage", storage.as_ref().map(|set| (set.value.name().to_owned(), set.source)), Storage::Full.name()),
    ];
    for (limit, set) in Limit::ALL.iter().zip(limits) {
        reasons.push(reason(limit.name(), set.as_ref().map(|set| (limit.show(set.value), set.source)), "none"));
    }
    let path = |path: &str| if path.is_empty() { "none".to_owned() } else { path.to_owned() };
    reasons.extend([
        reason("keep", keep.as_ref().map(|set| (set.value.show(), set.source)), "all"),
        reason("landmarks", landmarks.as_ref().map(flag), "false"),
        reason("nospace", nospace.as_ref().map(|set| (set.value.name().to_owned(), set.source)), NoSpace::Skip.name()),
        reason("external", external.as_ref().map(|set| (path(&set.value), set.source)), "none"),
    ]);
    reasons
}
