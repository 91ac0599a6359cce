//! Which files a rule selects.

use crate::context::{Accounts, Context};
use crate::daytime::{DayTime, weekdays};
use crate::document::{Node, Table};
use crate::glob::{Glob, Kind};
use crate::problem::Problems;
use crate::quantity::Quantity;
use crate::range::Range;
use crate::subject::Subject;

/// The keys of a rule that select files.
pub(crate) const KEYS: [&str; 11] =
    ["path", "directory", "name", "extension", "except", "size", "process", "time", "weekday", "user", "group"];

/// The kernel cuts the names of processes to this length.
const MAX_COMM: usize = 15;

/// The conditions of a rule. All that are given must hold; one value of each list suffices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    paths: Vec<Glob>,
    directories: Vec<Glob>,
    names: Vec<Glob>,
    /// In lower case, with the dot.
    extensions: Vec<Vec<u8>>,
    except: Vec<Glob>,
    size: Option<Range>,
    processes: Vec<Glob>,
    times: Vec<DayTime>,
    weekdays: Option<u8>,
    users: Vec<u32>,
    groups: Vec<u32>,
}

/// Which facts the rules need that are expensive to find out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The name of the process.
    pub process: bool,
    /// The local time.
    pub time: bool,
    /// The supplementary groups.
    pub groups: bool,
}

impl Needs {
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            process: self.process || other.process,
            time: self.time || other.time,
            groups: self.groups || other.groups,
        }
    }
}

impl Selector {
    pub(crate) fn read(table: &Table<'_>, context: &mut Context<'_>, problems: &mut Problems<'_>) -> Self {
        let home = context.home;
        let mut globs = |key: &str, kind: Kind, pattern: &dyn Fn(&str) -> Result<String, String>| {
            let Some(node) = table.get(key) else { return Vec::new() };
            let nodes = node.list(problems);
            let read = |node: Node<'_>| {
                let glob = node.parse("a pattern", problems, |text| Glob::new(&pattern(text)?, kind))?;
                context.add_cost(glob.cost(), &node.span, problems);
                Some(glob)
            };
            nodes.into_iter().filter_map(read).collect::<Vec<_>>()
        };
        let paths = globs("path", Kind::Path, &|text| anchored(text, home));
        let directories =
            globs("directory", Kind::Path, &|text| Ok(format!("{}/**", anchored(text, home)?.trim_end_matches('/'))));
        let except = globs("except", Kind::Path, &|text| anchored(text, home));
        let names = globs("name", Kind::Name, &no_slash);
        let mut processes = globs("process", Kind::Name, &no_slash);
        processes.iter_mut().for_each(|glob| glob.truncate_exact(MAX_COMM));
        let size =
            table.get("size").and_then(|node| node.ends(Quantity::Size, problems)).map(super::range::Ends::filled);
        let mut selector = Self { paths, directories, names, except, processes, size, ..Self::default() };
        selector.read_strings(table, problems);
        selector.read_accounts(table, context.accounts, problems);
        selector.warn_if_contradictory(table, problems);
        selector
    }

    fn read_strings(&mut self, table: &Table<'_>, problems: &mut Problems<'_>) {
        let nodes =
            |key: &str, problems: &mut Problems<'_>| table.get(key).map_or_else(Vec::new, |node| node.list(problems));
        for node in nodes("extension", problems) {
            self.extensions.extend(node.parse("an extension such as \"o\"", problems, extension));
        }
        for node in nodes("time", problems) {
            self.times.extend(node.parse("a time such as \"18:00..08:00\"", problems, DayTime::parse));
        }
        for node in nodes("weekday", problems) {
            let days = node.parse("a day such as \"sat\"", problems, weekdays);
            self.weekdays = Some(self.weekdays.unwrap_or(0) | days.unwrap_or(0));
        }
    }

    fn read_accounts(&mut self, table: &Table<'_>, accounts: &dyn Accounts, problems: &mut Problems<'_>) {
        self.users = ids(table, "user", problems, |name| accounts.user(name));
        self.groups = ids(table, "group", problems, |name| accounts.group(name));
    }

    fn warn_if_contradictory(&self, table: &Table<'_>, problems: &mut Problems<'_>) {
        if self.names.is_empty() || self.extensions.is_empty() {
            return;
        }
        let impossible =
            |glob: &Glob| glob.exact().is_some_and(|names| !names.iter().any(|name| self.has_extension(name)));
        if self.names.iter().all(impossible) {
            let message = "the rule never matches: no name has one of the extensions; remove one of the two keys";
            problems.warning(&table.get("name").map_or_else(|| table.span.clone(), |node| node.key), message);
        }
    }

    /// Whether the rule selects every file.
    pub(crate) fn is_empty(table: &Table<'_>) -> bool {
        KEYS.iter().all(|key| *key == "except" || table.get(key).is_none()) && table.get("except").is_none()
    }

    pub(crate) fn users(&self) -> &[u32] {
        &self.users
    }

    pub(crate) fn needs(&self) -> Needs {
        Needs {
            process: !self.processes.is_empty(),
            time: !self.times.is_empty() || self.weekdays.is_some(),
            groups: !self.groups.is_empty(),
        }
    }

    pub(crate) fn matches(&self, subject: &Subject<'_>) -> bool {
        // The cheapest conditions first.
        self.matches_account(subject)
            && self.size.is_none_or(|size| size.contains(subject.size))
            && self.matches_time(subject)
            && (self.extensions.is_empty() || self.has_extension(subject.name))
            && any(&self.names, subject.name)
            && (self.processes.is_empty() || subject.process.is_some_and(|process| any(&self.processes, process)))
            && any(&self.directories, subject.path)
            && any(&self.paths, subject.path)
            && !self.except.iter().any(|glob| glob.matches(subject.path))
    }

    fn matches_account(&self, subject: &Subject<'_>) -> bool {
        let in_group = |group: &u32| *group == subject.gid || subject.groups.contains(group);
        (self.users.is_empty() || self.users.contains(&subject.uid))
            && (self.groups.is_empty() || self.groups.iter().any(in_group))
    }

    fn matches_time(&self, subject: &Subject<'_>) -> bool {
        if self.times.is_empty() && self.weekdays.is_none() {
            return true;
        }
        subject.time.is_some_and(|now| {
            (self.times.is_empty() || self.times.iter().any(|time| time.contains(now.minute)))
                && self.weekdays.is_none_or(|days| days.checked_shr(now.weekday.into()).unwrap_or(0) & 1 == 1)
        })
    }

    fn has_extension(&self, name: &[u8]) -> bool {
        self.extensions.iter().any(|extension| {
            // A name such as ".o" is a hidden file without extension.
            let end = name.len().checked_sub(extension.len()).filter(|&stem| stem > 0);
            end.and_then(|at| name.get(at..)).is_some_and(|end| end.eq_ignore_ascii_case(extension))
        })
    }
}

fn any(globs: &[Glob], text: &[u8]) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.matches(text))
}

/// Reads names or numbers of users or groups.
pub(crate) fn ids(
    table: &Table<'_>,
    key: &str,
    problems: &mut Problems<'_>,
    find: impl Fn(&str) -> Option<u32>,
) -> Vec<u32> {
    let Some(node) = table.get(key) else { return Vec::new() };
    let mut found = Vec::new();
    for node in node.list(problems) {
        let id = match node.integer() {
            Some(id) => {
                u32::try_from(id).map_err(|_| format!("{id} is not a {key} ID; the largest one is {}", u32::MAX))
            }
            None => match node.string("a name or a number", problems) {
                Some(name) => find(name).ok_or_else(|| {
                    format!("no {key} has the name \"{name}\"; write the name of an existing {key}, or a number")
                }),
                None => continue,
            },
        };
        match id {
            Ok(id) => found.push(id),
            Err(reason) => problems.error(&node.span, reason),
        }
    }
    found
}

/// Makes a pattern for whole paths: one that begins neither with / nor with ~/ matches anywhere.
fn anchored(pattern: &str, home: Option<&str>) -> Result<String, String> {
    let never = |what: &str| Err(format!("pattern \"{pattern}\": paths contain no \"{what}\"; remove it"));
    for wrong in ["//", "/./", "/../"] {
        if pattern.contains(wrong) {
            return never(wrong);
        }
    }
    if let Some(rest) = pattern.strip_prefix("~/") {
        let home = home.ok_or("~/ is for the files of users; write the path of the directory")?;
        return Ok(format!("{}/{rest}", escaped(home.trim_end_matches('/'))));
    }
    Ok(if pattern.starts_with('/') || pattern.is_empty() { pattern.to_owned() } else { format!("**/{pattern}") })
}

/// Puts a backslash before the special characters of patterns.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        if "*?[]{}\\,".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

fn no_slash(pattern: &str) -> Result<String, String> {
    if pattern.contains('/') {
        return Err(format!("pattern \"{pattern}\": a name contains no slash; use path or directory for paths"));
    }
    Ok(pattern.to_owned())
}

fn extension(text: &str) -> Result<Vec<u8>, String> {
    let bare = text.strip_prefix('.').unwrap_or(text);
    if bare.is_empty() || bare.contains(['/', '*', '?']) {
        return Err(format!(
            "\"{text}\" is not an extension; write for example \"o\" or \"tar.gz\", or use name for patterns"
        ));
    }
    Ok(format!(".{}", bare.to_lowercase()).into_bytes())
}
