//! Arguments that several subcommands share.

use super::client::Dir;
use super::history::{Filter, Then, then};
use super::place::{Past, Place, is_same, past};
use super::text::{shown, uid_of};
use super::when::{self, FORMS, When};
use crate::exit::Failure;
use clap::Args;
use jiff::{Timestamp, Zoned};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use versionclient::{List, Version, Why};

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
    /// What had the path at a time, in directories that have been replaced since.
    Past(Box<Past>),
    Head,
}

/// Finds the version that a number, time or tag selects.
///
/// # Errors
/// There is none.
pub(crate) fn choose(place: &Place, list: &List, text: &str, now: &Now) -> Result<Chosen, Failure> {
    let path = shown(&place.path());
    if text == "head" {
        return Ok(Chosen::Head);
    }
    let time = match When::parse(text, &now.0).map_err(Failure::usage)? {
        When::Number(number) => {
            let found = list.versions.iter().find(|version| version.number == number).cloned();
            let missing = || Failure::usage(format!("{path}: no version {number}; see versionctl log"));
            return found.map(|version| Chosen::Version(Box::new(version))).ok_or_else(missing);
        }
        When::Time(time) => time,
        When::Tag(tag) => tag_time(&place.dir, &tag)?,
    };
    let known = then(list, time);
    if let Then::Was(version) = known {
        return Ok(Chosen::Version(Box::new(version.clone())));
    }
    // The versions of this name don't say when it got its first content, or what the directory was
    // before it was removed and created again.
    let found = past(&place.path(), time)?;
    let dir = found.as_ref().map_or(&place.dir, |past| &past.dir);
    if let Some(lost) = dir.lost_at(time, Some(&place.name))?.first() {
        return Err(Failure::usage(format!(
            "{path}: its state at {} is not known: {}",
            when::local(time, &now.0),
            reason(lost.why)
        )));
    }
    let Some(past) = found else { return Err(absent(&place.path(), time, now)) };
    let head = place.dir.stat(&place.name)?.filter(|_| known == Then::Present);
    Ok(if head.is_some_and(|head| is_same(&past.stat, &head)) { Chosen::Head } else { Chosen::Past(Box::new(past)) })
}

/// Returns why a state is not in the history, as the end of a message.
pub(crate) const fn reason(why: Why) -> &'static str {
    match why {
        Why::NoRoom => "there was no room for a version of it",
        Why::Discarded => "its version was discarded",
        Why::Unrecorded => "it has changed since, and its policy keeps no versions of changes",
    }
}

/// Returns the failure for a file that was not there at a time.
pub(crate) fn absent(path: &Path, time: Timestamp, now: &Now) -> Failure {
    let (path, time) = (shown(path), when::local(time, &now.0));
    Failure::usage(format!("{path}: it did not exist at {time}, as far as is known; see versionctl log"))
}
