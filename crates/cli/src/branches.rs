//! Changes of the branches of a union in use, as `unionctl` and `mount -o remount` request them:
//! resolves branches and paths, sends the change to the server, and reports what prevents it.

use crate::channel;
use crate::edits::{Edit, Position, Which};
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use crate::live::{self, Answer, CHANGE, FileInUse, LIST, List, Listed, RootDir, Wanted, WantedChange, WantedInUse};
use crate::registry::{self, Registry};
use crate::users::{self, User};
use core::fmt::Write as _;
use fuse::control::Error;
use rustix::io::Errno;
use stack::spec::BranchSpec;
use stack::{LayerType, Text, escape};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// How often a change is tried again after another change of the branches came first.
const TRIES: usize = 10;
/// The number of files that a message names.
const NAMED: usize = 10;

/// The branches as they will be after the changes so far.
struct Plan {
    kind: &'static LayerType,
    branches: Vec<(String, String)>,
    changes: Vec<WantedChange>,
    /// Whether a branch is removed.
    removes: bool,
    is_snapshot: bool,
}

/// Returns the branches of the union that contains `path`.
///
/// # Errors
/// The path is not on a union.
pub fn list(path: &Path) -> Result<List, Failure> {
    let reply = channel::call(path, LIST, b"").map_err(|error| refusal(path, LIST, error))?;
    serde_json::from_slice(&reply).map_err(|_| channel::failure(path, LIST, Error::Garbled))
}

/// Returns the name of a branch of the union that contains `path`.
///
/// # Errors
/// The union has no such branch.
pub fn name_of(path: &Path, which: &Which) -> Result<String, Failure> {
    let list = self::list(path)?;
    let kind = registry::find(&list.layer).ok_or_else(|| channel::failure(path, LIST, Error::Garbled))?;
    let branches = list.branches.iter().map(|branch| (branch.name.clone(), branch.mode.clone())).collect();
    let plan = Plan { kind, branches, changes: Vec::new(), removes: false, is_snapshot: false };
    let at = plan.find(which)?;
    plan.branches.get(at).map(|(name, _)| name.clone()).ok_or_else(|| channel::failure(path, LIST, Error::Garbled))
}

/// The branches after a change.
#[derive(Debug)]
pub struct Changed {
    /// The new list.
    pub list: List,
    /// Whether the union had a writable branch before the change, and has none now.
    pub ends_writes: bool,
}

/// Makes all of `edits`, in order, or none, and returns the new list. If the edits change nothing,
/// returns the current list.
///
/// # Errors
/// Names the branch, the reason and the remedy; files that are in use with the processes that use
/// them.
pub fn apply(path: &Path, edits: &[Edit], in_use: WantedInUse) -> Result<Changed, Failure> {
    for _ in 0..TRIES {
        let list = self::list(path)?;
        let kind = registry::find(&list.layer).ok_or_else(|| channel::failure(path, LIST, Error::Garbled))?;
        let branches = list.branches.iter().map(|branch| (branch.name.clone(), branch.mode.clone())).collect();
        let mut plan = Plan { kind, branches, changes: Vec::new(), removes: false, is_snapshot: false };
        let was_writable = plan.is_writable();
        edits.iter().try_for_each(|edit| plan.edit(edit))?;
        if plan.changes.is_empty() {
            return Ok(Changed { list, ends_writes: false });
        }
        let root = RootDir::own().map_err(|errno| Failure::system(format!("/: {}", reason(errno))))?;
        let wanted = Wanted { generation: list.generation, changes: std::mem::take(&mut plan.changes), in_use, root };
        let input = serde_json::to_vec(&wanted).map_err(|error| Failure::system(error.to_string()))?;
        let reply = channel::call(path, CHANGE, &input).map_err(|error| refusal(path, CHANGE, error))?;
        match serde_json::from_slice(&reply).map_err(|_| channel::failure(path, CHANGE, Error::Garbled))? {
            Answer::Done(_) => {
                let ends_writes = was_writable && !plan.is_snapshot && !plan.is_writable();
                return Ok(Changed { list: self::list(path)?, ends_writes });
            }
            // An index would mean another branch by now.
            Answer::Outdated if edits.iter().any(Edit::names_an_index) => break,
            Answer::Outdated => {}
            Answer::Refused { exit, reason } => {
                let exit = Exit::from_code(exit).unwrap_or(Exit::Mount);
                return Err(Failure { exit, reason: format!("{}: {reason}", path.display()) });
            }
            Answer::InUse(count, files) => {
                let advice = plan.advice(in_use);
                return Err(in_use_failure(path, (count, &files), advice));
            }
        }
    }
    Err(Failure::mount(format!(
        "{}: another command has changed the branches; look at unionctl --list, and try again",
        path.display()
    )))
}

impl Plan {
    fn edit(&mut self, edit: &Edit) -> Result<(), Failure> {
        match edit {
            Edit::Add { branch, position } => {
                let mut spec = live::parse(self.kind, &branch.written())?;
                resolve(&mut spec)?;
                self.add(&spec, position)
            }
            Edit::Snapshot(branch) => {
                let mut spec = live::parse(self.kind, &branch.written())?;
                resolve(&mut spec)?;
                self.changes.push(WantedChange::Snapshot { branch: spec.lower.to_string() });
                self.is_snapshot = true;
                Ok(())
            }
            Edit::Remove(which) => {
                let at = self.find(which)?;
                self.remove(at);
                Ok(())
            }
            Edit::Mode(which, mode) => {
                let at = self.find(which)?;
                self.check_mode(mode)?;
                self.mode(at, mode);
                // Switching a drained branch to its own mode ends that.
                if let (true, Some((name, _))) = (self.changes.is_empty(), self.branches.get(at)) {
                    self.changes.push(WantedChange::Mode { name: name.clone(), mode: mode.clone() });
                }
                Ok(())
            }
            Edit::Set(list) => self.set(list),
        }
    }

    /// Returns what to do about files in use that prevent the changes.
    fn advice(&self, in_use: WantedInUse) -> &'static str {
        if self.is_snapshot {
            "The kernel may write them without asking the union: end the processes, give a directory on the same file \
             system as the first branch if that supports reflinks (XFS, btrfs), or mount the union with passthrough=off"
        } else if !self.removes {
            "The kernel may write them without asking the union: end the processes, or mount the union with passthrough=off"
        } else if in_use == WantedInUse::CopyUp {
            "They can't be copied to a read-write branch before this one: add one, or end the processes, or use --lazy"
        } else {
            "End the processes, or use --copyup to copy the files to a read-write branch first, or --lazy"
        }
    }

    fn add(&mut self, spec: &BranchSpec, position: &Position) -> Result<(), Failure> {
        // Live systems add read-only modules below the writable branches.
        let mode = spec.mode.map_or("ro", |mode| mode.name);
        let at = match position {
            Position::First => 0,
            Position::Last => self.branches.len(),
            Position::Before(which) => self.find_or_end(which)?,
            Position::After(which) => self.find(which)? + 1,
            Position::Default if self.writes(mode) => 0,
            Position::Default => {
                let last = self.branches.iter().rposition(|(_, mode)| self.writes(mode));
                last.map_or(0, |last| last + 1)
            }
        };
        self.insert(at, spec, mode);
        Ok(())
    }

    fn insert(&mut self, at: usize, spec: &BranchSpec, mode: &str) {
        self.changes.push(WantedChange::Insert { at, branch: format!("{}={mode}", spec.lower) });
        self.branches.insert(at, (self.name_of(spec), mode.to_owned()));
    }

    fn remove(&mut self, at: usize) {
        let (name, _) = self.branches.remove(at);
        self.changes.push(WantedChange::Remove { name });
        self.removes = true;
    }

    fn mode(&mut self, at: usize, mode: &str) {
        if let Some((name, present)) = self.branches.get_mut(at).filter(|(_, present)| present != mode) {
            mode.clone_into(present);
            self.changes.push(WantedChange::Mode { name: name.clone(), mode: mode.to_owned() });
        }
    }

    /// Plans the changes that lead to the branches of a list.
    fn set(&mut self, lists: &[Text]) -> Result<(), Failure> {
        let declared = self.kind.branches();
        let list = lists.iter().map(Text::written).collect::<Vec<_>>().join(":");
        let wrong = |wrong: String| Failure::usage(format!("branches {list}: {wrong}"));
        let mut specs = live::parse_list(self.kind, list.as_bytes(), &Registry).map_err(wrong)?;
        specs.iter_mut().try_for_each(resolve)?;
        let unmarked = |at| declared.map_or("ro", |branches| (branches.unmarked)(at, false).name);
        let wanted: Vec<_> = specs
            .iter()
            .enumerate()
            .map(|(at, spec)| (self.name_of(spec), spec.mode.map_or_else(|| unmarked(at), |mode| mode.name), spec))
            .collect();
        for (at, (name, ..)) in wanted.iter().enumerate() {
            if wanted.iter().take(at).any(|(other, ..)| other == name) {
                return Err(Failure::usage(format!("branch {name}: listed twice; remove one")));
            }
        }
        while let Some(at) = self.branches.iter().position(|(name, _)| !wanted.iter().any(|(known, ..)| known == name))
        {
            self.remove(at);
        }
        for (at, (name, mode, spec)) in wanted.iter().enumerate() {
            match self.branches.iter().position(|(present, _)| present == name) {
                None => self.insert(at, spec, mode),
                Some(present) => {
                    if present != at {
                        let moved = self.branches.remove(present);
                        self.branches.insert(at.min(self.branches.len()), moved);
                        self.changes.push(WantedChange::Move { name: name.clone(), at });
                    }
                    self.mode(at, mode);
                }
            }
        }
        Ok(())
    }

    /// Returns the name that the branch has in the union.
    fn name_of(&self, spec: &BranchSpec) -> String {
        live::name(self.kind, spec).unwrap_or_else(|| spec.lower.to_string())
    }

    fn writes(&self, mode: &str) -> bool {
        let declared = self.kind.branches().and_then(|branches| branches.mode(mode.as_bytes()));
        declared.is_some_and(stack::BranchMode::writes)
    }

    fn is_writable(&self) -> bool {
        self.branches.iter().any(|(_, mode)| self.writes(mode))
    }

    fn check_mode(&self, mode: &str) -> Result<(), Failure> {
        let modes = self.kind.branches().map(|branches| branches.modes).unwrap_or_default();
        if modes.iter().any(|known| known.name == mode) {
            return Ok(());
        }
        let names: Vec<_> = modes.iter().map(|mode| mode.name).collect();
        Err(Failure::usage(format!("mode {mode:?}: no such mode; use one of {}", names.join(", "))))
    }

    /// Returns the index of a branch.
    fn find(&self, which: &Which) -> Result<usize, Failure> {
        let shown = String::from_utf8_lossy(&which.0).into_owned();
        if let Some(index) = which.index() {
            let count = self.branches.len();
            let none = || Failure::usage(format!("branch {index}: the union has {count} branches; the first is 0"));
            return if index < count { Ok(index) } else { Err(none()) };
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(&which.0));
        let mut names = vec![shown.clone(), escape(&which.0)];
        names.extend(path.canonicalize().ok().map(|real| escape(real.as_os_str().as_bytes())));
        let found = names.iter().find_map(|name| self.branches.iter().position(|(present, _)| present == name));
        found.ok_or_else(|| {
            Failure::usage(format!("branch {shown}: not in the union; unionctl --list shows the branches"))
        })
    }

    /// As [`Self::find`], but the number of branches is an index too.
    fn find_or_end(&self, which: &Which) -> Result<usize, Failure> {
        let count = self.branches.len();
        if which.0 == count.to_string().as_bytes() { Ok(count) } else { self.find(which) }
    }
}

/// Makes the paths of a branch absolute and free of symbolic links.
fn resolve(spec: &mut BranchSpec) -> Result<(), Failure> {
    spec.map_directories(&mut |path| {
        path.canonicalize().map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Failure::mount(format!("branch {}: {}", path.display(), reason(errno)))
        })
    })
}

fn refusal(path: &Path, command: &str, error: Error) -> Failure {
    let shown = path.display();
    match error {
        Error::Refused(Errno::NOTTY) => {
            Failure::mount(format!("{shown}: not a union; unionctl works on mounts of unionfs"))
        }
        Error::Refused(Errno::PERM) => {
            Failure::usage(format!("{shown}: only root and the mounting user may change the branches"))
        }
        error => channel::failure(path, command, error),
    }
}

fn in_use_failure(path: &Path, (count, files): (usize, &[FileInUse]), advice: &str) -> Failure {
    let numbers: Vec<u64> = files.iter().map(|file| file.number).collect();
    let found = users::of_files(path, &numbers);
    let point = users::mount_point(path);
    let mut reason = format!("{}: files on the branch are in use:", path.display());
    for file in files.iter().take(NAMED) {
        let _ = write!(reason, "\n  {}", describe(&point, file, &found));
    }
    if count > NAMED {
        let _ = write!(reason, "\n  and {} more", count - NAMED);
    }
    let _ = write!(reason, "\n{advice}");
    Failure::mount(reason)
}

fn describe(point: &Path, file: &FileInUse, found: &HashMap<u64, Vec<User>>) -> String {
    let name = match file.path.strip_prefix('/') {
        None => format!("a deleted file (inode {})", file.number),
        Some(below) => point.join(below).display().to_string(),
    };
    let how = if file.writing { "open for writing" } else { "open" };
    let users = found.get(&file.number).map(Vec::as_slice).unwrap_or_default();
    let users: Vec<_> = users.iter().map(|user| format!("{} ({})", user.pid, user.command)).collect();
    let text = match users.is_empty() {
        true => format!("{name}: {how}"),
        false => format!("{name}: {how} by {}", users.join(", ")),
    };
    // Names chosen by other users must not control the terminal.
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Returns a hint if the branches can be changed but the mount is read-only, or if the change has
/// removed the last writable branch.
#[must_use]
pub fn hint(path: &Path, changed: &Changed) -> Option<String> {
    let declared = registry::find(&changed.list.layer).and_then(LayerType::branches)?;
    let writes = |branch: &Listed| declared.mode(branch.mode.as_bytes()).is_some_and(stack::BranchMode::writes);
    let flags = rustix::fs::statvfs(path).ok()?.f_flag;
    let point = users::mount_point(path).display().to_string();
    match flags.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        true if changed.list.branches.iter().any(writes) => {
            Some(format!("the mount is read-only; to permit changes, run mount -o remount,rw {point}"))
        }
        false if changed.ends_writes => Some(format!(
            "no branch is writable any more, so all changes are refused; to permit them, run \
             unionctl {point} --add --mode rw DIR"
        )),
        _ => None,
    }
}

/// Formats a list as a table.
#[must_use]
pub fn table(list: &List) -> String {
    let mut out = String::new();
    let width = list.branches.iter().map(|branch| branch.mode.len()).max().unwrap_or_default();
    for (index, branch) in list.branches.iter().enumerate() {
        let notes = notes(branch);
        let _ = writeln!(out, "{index:>3}  {:width$}  {}{notes}", branch.mode, branch.name);
    }
    out
}

fn notes(branch: &Listed) -> String {
    let open = match branch.open_files {
        0 => None,
        1 => Some("1 file open".to_owned()),
        files => Some(format!("{files} files open")),
    };
    let read_only = branch.turned_read_only.then(|| "read-only file system".to_owned());
    let notes: Vec<_> = branch.trouble.clone().into_iter().chain(read_only).chain(open).collect();
    if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) }
}

/// Returns a path as a branch of a list.
///
/// # Errors
/// The path is empty.
pub fn branch_of(path: &Path, mode: Option<&str>) -> Result<Text, Failure> {
    let bytes = path.as_os_str().as_bytes();
    let written = match bytes.first() {
        None => return Err(Failure::usage("branch: the path is empty")),
        // A stack is written as in the list of branches.
        Some(b'[') => String::from_utf8_lossy(bytes).into_owned(),
        Some(_) => escape(bytes),
    };
    let mode = mode.map(|mode| format!("={mode}")).unwrap_or_default();
    Text::read(format!("{written}{mode}").as_bytes())
        .map_err(|wrong| Failure::usage(format!("branch {} {wrong}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(branches: &[(&str, &str)]) -> Plan {
        let branches = branches.iter().map(|(name, mode)| ((*name).to_owned(), (*mode).to_owned())).collect();
        Plan {
            kind: registry::find("unionfs").unwrap(),
            branches,
            changes: Vec::new(),
            removes: false,
            is_snapshot: false,
        }
    }

    fn text(written: &str) -> Text {
        Text::read(written.as_bytes()).unwrap()
    }

    fn which(name: &str) -> Which {
        Which(name.as_bytes().to_vec())
    }

    fn added(mut plan: Plan, branch: &str, position: Position) -> Vec<String> {
        plan.edit(&Edit::Add { branch: text(branch), position }).unwrap();
        plan.branches.into_iter().map(|(name, mode)| format!("{name}={mode}")).collect()
    }

    #[test]
    fn new_branches_are_placed_by_their_mode() {
        let union = || plan(&[("/a", "rw"), ("/b", "rw"), ("/c", "ro")]);
        assert_eq!(added(union(), "/", Position::Default), ["/a=rw", "/b=rw", "/=ro", "/c=ro"]);
        assert_eq!(added(union(), "/=rw", Position::Default), ["/=rw", "/a=rw", "/b=rw", "/c=ro"]);
        assert_eq!(added(union(), "/=nfsro", Position::Last), ["/a=rw", "/b=rw", "/c=ro", "/=nfsro"]);
        assert_eq!(added(union(), "/=rw", Position::Before(which("1"))), ["/a=rw", "/=rw", "/b=rw", "/c=ro"]);
        assert_eq!(added(union(), "/", Position::After(which("/c"))), ["/a=rw", "/b=rw", "/c=ro", "/=ro"]);
        // aufs numbers the place after the last branch too.
        assert_eq!(added(union(), "/", Position::Before(which("3"))), ["/a=rw", "/b=rw", "/c=ro", "/=ro"]);
        assert_eq!(added(plan(&[("/c", "ro")]), "/", Position::Default), ["/=ro", "/c=ro"]);
    }

    #[test]
    fn the_removal_of_the_last_writable_branch_is_noticed() {
        let after = |edit| {
            let mut plan = plan(&[("/a", "rw"), ("/c", "ro")]);
            plan.edit(&edit).unwrap();
            plan.is_writable()
        };
        assert!(!after(Edit::Remove(which("0"))) && !after(Edit::Mode(which("0"), "ro".to_owned())));
        assert!(after(Edit::Remove(which("1"))) && !after(Edit::Set(vec![text("/usr=ro")])));
    }

    #[test]
    fn branches_are_found_by_index_and_path() {
        let union = plan(&[("/usr", "rw"), (r"/a\:b", "ro"), ("[zstd / /c]", "ro")]);
        let find = |name: &str| union.find(&which(name)).map_err(|failure| failure.exit);
        assert_eq!((find("0"), find("/usr"), find("/usr/../usr/")), (Ok(0), Ok(0), Ok(0)));
        assert_eq!((find("/a:b"), find("[zstd / /c]")), (Ok(1), Ok(2)));
        assert_eq!((find("3"), find("/nowhere")), (Err(Exit::Usage), Err(Exit::Usage)));
    }

    #[test]
    fn a_new_list_is_reached_by_its_differences() {
        let changes = |list: &str| {
            let mut plan = plan(&[("/usr", "rw"), ("/etc", "ro"), ("/var", "ro")]);
            plan.edit(&Edit::Set(vec![text(list)])).unwrap();
            let branches = plan.branches.iter().map(|(name, mode)| format!("{name}={mode}"));
            (branches.collect::<Vec<_>>().join(":"), plan.changes)
        };
        let remove = |name: &str| WantedChange::Remove { name: name.to_owned() };
        let moved = |name: &str, at| WantedChange::Move { name: name.to_owned(), at };
        assert_eq!(changes("/usr:/etc:/var").1, []);
        assert_eq!(changes("/usr=rw:/var=ro").1, [remove("/etc")]);
        let (after, changes_made) = changes("/var=rw:/usr=rw:/tmp:/etc");
        assert_eq!(after, "/var=rw:/usr=rw:/tmp=ro:/etc=ro");
        let mode = WantedChange::Mode { name: "/var".to_owned(), mode: "rw".to_owned() };
        let insert = WantedChange::Insert { at: 2, branch: "/tmp=ro".to_owned() };
        assert_eq!(changes_made, [moved("/var", 0), mode, insert]);
        assert_eq!(changes("/tmp:/var").0, "/tmp=rw:/var=ro");
    }

    #[test]
    fn files_in_use_are_described() {
        let file = |path: &str| FileInUse { branch: "/b".to_owned(), path: path.to_owned(), number: 7, writing: true };
        let users = vec![User { pid: 12, command: "vim".to_owned() }, User { pid: 3, command: "sh".to_owned() }];
        let found = HashMap::from([(7, users)]);
        let point = Path::new("/mnt");
        assert_eq!(describe(point, &file("/d/f"), &found), "/mnt/d/f: open for writing by 12 (vim), 3 (sh)");
        assert_eq!(describe(point, &file(""), &HashMap::new()), "a deleted file (inode 7): open for writing");
    }
}
