//! Arguments that several subcommands share.

use super::client::Dir;
use super::history::Filter;
use super::place::{Past, Place, nearest, past};
use super::text::{shown, uid_of};
use super::when::{self, FORMS, When};
use crate::exit::Failure;
use clap::Args;
use jiff::{Timestamp, Zoned};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use versionclient::{List, Version};

/// The present time, in the user's time zone.
#[derive(Clone, Debug)]
pub(crate) struct Now(pub(crate) Zoned);

impl Now {
    /// Parses a time.
    ///
    /// # Errors
    /// Names the text and the forms.
    pub(crate) fn time(&self, text: &str) -> Result<Timestamp, Failure> {
        when::parse(text, &self.0).ok_or_else(|| Failure::usage(format!("{text}: not a time; {FORMS}")))
    }
}

/// `log`
#[derive(Debug, Args)]
pub struct LogArgs {
    /// The file or directory; it may be removed.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// For a directory: also what happened in the directories below.
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// Which changes.
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `audit`
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Any directory in the mount.
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Which operations.
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Operations on paths that match: with a slash, the path from the root of the mount, otherwise
    /// the last name. * ? [a-z] {a,b}; ** matches across directories.
    #[arg(long, value_name = "GLOB")]
    pub(crate) path: Option<OsString>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which changes.
#[derive(Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Changes at or after this time.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Changes at or before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Changes by this user: a name or a number.
    #[arg(long)]
    user: Option<String>,
    /// Changes by processes with this name.
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    /// Changes by the process with this number.
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// Changes by the processes of this session.
    #[arg(long, value_name = "N")]
    session: Option<u32>,
}

impl FilterArgs {
    /// Parses the conditions.
    ///
    /// # Errors
    /// Names the invalid one.
    pub(crate) fn parse(&self, now: &Now) -> Result<Filter, Failure> {
        let time = |text: &Option<String>| text.as_deref().map(|text| now.time(text)).transpose();
        let user = |text: &String| uid_of(text).ok_or_else(|| Failure::usage(format!("--user {text}: no such user")));
        Ok(Filter {
            since: time(&self.since)?,
            until: time(&self.until)?,
            uid: self.user.as_ref().map(user).transpose()?,
            process: self.process.as_ref().map(|name| name.clone().into_bytes()),
            pid: self.pid,
            session: self.session,
        })
    }
}

/// Returns the time of a tag.
///
/// # Errors
/// There is no such tag.
pub(crate) fn tag_time(dir: &Dir, tag: &str) -> Result<Timestamp, Failure> {
    let tags = dir.tags()?;
    let found = tags.into_iter().find(|(name, _)| name == tag.as_bytes()).map(|(_, time)| time);
    found.ok_or_else(|| Failure::usage(format!("{tag}: no such tag; versionctl tags lists them. For a time, {FORMS}")))
}

/// Parses a time or a tag.
///
/// # Errors
/// It is neither.
pub(crate) fn instant(text: &str, dir: &Dir, now: &Now) -> Result<Timestamp, Failure> {
    match When::parse(text, &now.0).map_err(Failure::usage)? {
        When::Time(time) => Ok(time),
        When::Tag(tag) => tag_time(dir, &tag),
        When::Number(_) => Err(Failure::usage(format!("{text}: not a time; {FORMS}"))),
    }
}

/// What an argument selects.
#[derive(Debug)]
pub(crate) enum Chosen {
    Version(Box<Version>),
    /// What had the path at a time, whatever has become of it and of the directories above.
    Past(Box<Past>),
    Head,
}

/// Finds what had a path at a time. `None` if `text` selects no time.
///
/// # Errors
/// There was nothing with this path.
pub(crate) fn at_time(path: &Path, text: &str, now: &Now) -> Result<Option<Past>, Failure> {
    let time = match When::parse(text, &now.0).map_err(Failure::usage)? {
        When::Tag(tag) if tag == "head" => return Ok(None),
        When::Number(_) => return Ok(None),
        When::Time(time) => time,
        When::Tag(tag) => tag_time(&nearest(path)?, &tag)?,
    };
    past(path, time)?.ok_or_else(|| absent(path, time, now)).map(Some)
}

/// Finds the version that a number, time or tag selects.
///
/// # Errors
/// There is none.
pub(crate) fn choose(place: &Place, list: &List, text: &str, now: &Now) -> Result<Chosen, Failure> {
    if let Some(past) = at_time(&place.path(), text, now)? {
        return Ok(if past.is_unchanged(place)? { Chosen::Head } else { Chosen::Past(Box::new(past)) });
    }
    let Ok(number) = text.parse::<u64>() else { return Ok(Chosen::Head) };
    let found = list.versions.iter().find(|version| version.number == number).cloned();
    let missing = || Failure::usage(format!("{}: no version {number}; see versionctl log", shown(&place.path())));
    found.map(|version| Chosen::Version(Box::new(version))).ok_or_else(missing)
}

/// Returns the failure for a file that was not there at a time.
pub(crate) fn absent(path: &Path, time: Timestamp, now: &Now) -> Failure {
    let (path, time) = (shown(path), when::local(time, &now.0));
    Failure::usage(format!("{path}: it did not exist at {time}, as far as is known; see versionctl log"))
}
