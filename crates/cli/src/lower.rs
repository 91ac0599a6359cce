//! `strata lower`: access to the directories below a mount, even if a mount covers them.
//!
//! The server has a descriptor of each directory, on a private clone of its mount. Root can
//! therefore reach the directory through /proc, even if the Strata mount covers it. A command runs
//! in a new mount namespace, in which the directory replaces the Strata mount. Other processes are
//! not affected.

use crate::channel::{self, STACK};
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use crate::hung_mounts::{self, Answer, Question};
use crate::mountinfo::{self, Mount};
use crate::options::Type;
use crate::tree::Tree;
use nix::sched::CloneFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory below a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lower {
    /// The path through the server's descriptor in /proc, or `path` if the server keeps no
    /// descriptor.
    pub by: PathBuf,
    /// Its mode: `rw`, `ro` and so on.
    pub mode: String,
    /// Its path at the time of the mount.
    pub path: PathBuf,
}

/// Returns the directories below the mount at `dir`.
///
/// # Errors
/// There is no Strata mount at `dir`.
pub fn find(dir: &Path) -> Result<Vec<Lower>, Failure> {
    let reply = channel::text(dir, STACK)?;
    let shown = dir.display();
    if mountinfo::is_root(dir) == Some(false) {
        return Err(Failure::mount(format!(
            "{shown}: not a Strata mount point; findmnt -T {shown} shows the mount point"
        )));
    }
    read(&reply).ok_or_else(|| {
        Failure::system(format!("{shown}: the server's reply can't be parsed; strata stack --json prints it"))
    })
}

/// Returns the mount point of a mount in this namespace that uses the directory `real`, or a
/// directory within or around it, or that contains it. Mounts that hang are skipped with a warning.
#[must_use]
pub fn mount_over(real: &Path) -> Option<PathBuf> {
    let points = points();
    let around = points.iter().find(|point| real.starts_with(point)).cloned();
    around.or_else(|| using(&points, |lower| real.starts_with(&lower.path) || lower.path.starts_with(real)))
}

/// Returns the mount point of a mount in this namespace over exactly the directory `real`. Mounts
/// that hang are skipped with a warning.
#[must_use]
pub fn mount_of(real: &Path) -> Option<PathBuf> {
    using(&points(), |lower| lower.path == real)
}

/// Refuses a branch in a mounted union, for tools that read or write the records of branches: a
/// union shows none.
///
/// # Errors
/// The branch lies in a mounted union.
pub fn check_no_union(branch: &Tree) -> Result<(), Failure> {
    let mounts = mountinfo::read();
    for place in branch.leaves().iter().filter_map(|leaf| leaf.place()) {
        let mount = mountinfo::mount_of(&mounts, place.fd()).filter(|mount| shows_union(mount));
        if let Some(point) = mount.map(Mount::point) {
            let (given, point) = (place.given.display(), point.display());
            return Err(Failure::usage(format!(
                "{given}: lies in the union that is mounted at {point}; name the branches that unionctl {point} --list shows"
            )));
        }
    }
    Ok(())
}

/// Whether a mount shows the names of a union: it is one, or a stack with one.
fn shows_union(mount: &Mount) -> bool {
    if mount.kind() == b"fuse.unionfs" {
        return true;
    }
    // A mount of a subdirectory is no different.
    if !is_of_strata(mount) {
        return false;
    }
    let point = [mount.point().to_owned()];
    match hung_mounts::ask(&point, Question::Stack).into_iter().next() {
        Some(Answer::Given(json)) => {
            serde_json::from_slice(&json).is_ok_and(|stack: Value| stack_shows_union(&stack) == Some(true))
        }
        Some(Answer::Late) => {
            hung_mounts::warn_skipped(mount.point());
            false
        }
        Some(Answer::Failed(_)) | None => false,
    }
}

/// Layers below which names are others: the union's own names don't apply to what users see.
const OTHER_NAMES: [&str; 2] = ["cryptfs", "rot13"];

/// Whether a stack, as its server describes it, shows the names of a union.
fn stack_shows_union(stack: &Value) -> Option<bool> {
    let layers = stack.get("layers")?.as_array()?;
    for layer in layers {
        let name = layer.get("name")?.as_str()?;
        if name == "unionfs" {
            return Some(true);
        }
        if OTHER_NAMES.contains(&name) {
            return Some(false);
        }
    }
    let below = layers.last()?.get("directories")?.as_array()?;
    Some(below.iter().any(|below| stack_shows_union(below) == Some(true)))
}

/// Returns the mount points of Strata in this namespace.
fn points() -> Vec<PathBuf> {
    let mut points: Vec<_> =
        mountinfo::read().iter().filter(|mount| is_ours(mount)).map(|mount| mount.point().to_owned()).collect();
    points.sort();
    points.dedup();
    points
}

/// Returns the first of the mounts with a directory that `is_used`.
fn using(points: &[PathBuf], is_used: impl Fn(&Lower) -> bool) -> Option<PathBuf> {
    let mut found = None;
    for (point, answer) in points.iter().zip(hung_mounts::ask(points, Question::Stack)) {
        match answer {
            Answer::Given(json) => {
                let lowers = String::from_utf8(json).ok().and_then(|json| read(&json)).unwrap_or_default();
                if found.is_none() && lowers.iter().any(&is_used) {
                    found = Some(point.clone());
                }
            }
            Answer::Failed(_) => {}
            Answer::Late => hung_mounts::warn_skipped(point),
        }
    }
    found
}

/// Whether it is a whole mount of a type of Strata. Other file systems are not accessed.
fn is_ours(mount: &Mount) -> bool {
    mount.is_whole() && is_of_strata(mount)
}

fn is_of_strata(mount: &Mount) -> bool {
    let kind = mount.kind().strip_prefix(b"fuse.").and_then(|kind| core::str::from_utf8(kind).ok());
    kind.and_then(Type::of).is_some()
}

fn read(json: &str) -> Option<Vec<Lower>> {
    let stack: Value = serde_json::from_str(json).ok()?;
    let pid = stack.get("pid")?.as_u64()?;
    let mut lowers = Vec::new();
    collect(&stack, pid, &mut lowers)?;
    Some(lowers)
}

/// Collects the directories of a stack in order, including those in branches that are stacks.
fn collect(stack: &Value, pid: u64, lowers: &mut Vec<Lower>) -> Option<()> {
    for below in stack.get("layers")?.as_array()?.last()?.get("directories")?.as_array()? {
        if below.get("layers").is_some() {
            collect(below, pid, lowers)?;
            continue;
        }
        let path = PathBuf::from(below.get("path")?.as_str()?);
        let by = below.get("fd")?.as_u64().map(|fd| format!("/proc/{pid}/fd/{fd}").into());
        let by = by.unwrap_or_else(|| path.clone());
        lowers.push(Lower { by, mode: below.get("mode")?.as_str()?.to_owned(), path });
    }
    Some(())
}

/// Returns the directory with the given number; the first is 1.
///
/// # Errors
/// There is no directory with this number.
pub fn choose(lowers: &[Lower], number: usize) -> Result<&Lower, Failure> {
    number
        .checked_sub(1)
        .and_then(|index| lowers.get(index))
        .ok_or_else(|| Failure::usage(format!("--branch {number}: out of range; use 1 to {}", lowers.len())))
}

/// Executes a command that sees the directory in place of the mount. Returns only on failure.
#[must_use]
pub fn run(dir: &Path, lower: &Lower, command: &[OsString]) -> Failure {
    match enter(dir, lower) {
        Err(failure) => failure,
        Ok(()) => {
            let Some((program, args)) = command.split_first() else { return Failure::usage("no command given") };
            cannot_run(program, &Command::new(program).args(args).exec())
        }
    }
}

/// Returns the failure for a command that can't be executed, with the exit status of env(1) and of
/// shells.
pub(crate) fn cannot_run(program: &OsStr, error: &std::io::Error) -> Failure {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    let (exit, why) = match errno {
        Errno::NOENT if program.as_encoded_bytes().contains(&b'/') => {
            (Exit::NotFound, "the file or its interpreter is missing")
        }
        Errno::NOENT => (Exit::NotFound, "no such command in PATH"),
        Errno::ACCESS => (Exit::NotExecutable, "not an executable file"),
        Errno::NOEXEC => (Exit::NotExecutable, "not a program for this machine"),
        _ => (Exit::NotExecutable, "choose another command"),
    };
    let reason = format!("{}: can't be executed: {}; {why}", program.to_string_lossy(), reason(errno));
    Failure { exit, reason }
}

fn enter(dir: &Path, lower: &Lower) -> Result<(), Failure> {
    let at = |step: &'static str| {
        move |errno: Errno| {
            let remedy = if matches!(errno, Errno::PERM | Errno::ACCESS) { "; run it as root" } else { "" };
            Failure::usage(format!("can't {step}: {}{remedy}", reason(errno)))
        }
    };
    let point = dir.canonicalize().map_err(|error| Failure::mount(format!("{}: {error}", dir.display())))?;
    let directory = open(&lower.by).map_err(at("open the directory through the server"))?;
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)
        .map_err(|errno| at("create a mount namespace")(Errno::from_raw_os_error(errno as i32)))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(at("make the namespace's mounts private"))?;
    rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).map_err(at("detach the mount"))?;
    let placed = place(&point, &directory, lower).map_err(at("attach the directory at the mount point"))?;
    let directory = if placed { open(&point).map_err(at("enter the directory"))? } else { directory };
    rustix::process::fchdir(directory).map_err(at("enter the directory"))
}

/// Attaches the directory at `point`. Returns false if the kernel is too old to clone the server's
/// mount and the directory has moved from its original path.
fn place(point: &Path, directory: &OwnedFd, lower: &Lower) -> Result<bool, Errno> {
    if is_same(point, directory)? {
        return Ok(true);
    }
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if let Ok(tree) = rustix::mount::open_tree(directory, c"", clone) {
        let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        return rustix::mount::move_mount(tree.as_fd(), c"", rustix::fs::CWD, point, empty).map(|()| true);
    }
    if is_same(&lower.path, directory).unwrap_or(false) {
        return rustix::mount::mount_bind(&lower.path, point).map(|()| true);
    }
    Ok(false)
}

fn is_same(path: &Path, directory: &OwnedFd) -> Result<bool, Errno> {
    let (a, b) = (rustix::fs::fstat(open(path)?)?, rustix::fs::fstat(directory)?);
    Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_that_show_the_names_of_a_union_are_recognised() {
        let shows = |layers: &str| {
            let json = format!(r#"{{"pid":1,"layers":[{layers}]}}"#);
            stack_shows_union(&serde_json::from_str(&json).unwrap()) == Some(true)
        };
        let [wrapfs, rot13] = ["wrapfs", "rot13"].map(|name| format!(r#"{{"name":"{name}","options":""}},"#));
        let union = r#"{"name":"unionfs","directories":[{"path":"/a"}]}"#;
        let plain = r#"{"name":"directory","directories":[{"path":"/a"}]}"#;
        assert!(shows(union) && shows(&format!("{wrapfs}{union}")));
        assert!(!shows(plain) && !shows(&format!("{wrapfs}{plain}")) && !shows(&format!("{rot13}{union}")));
        let nested =
            |inner: &str| format!(r#"{{"name":"lbfs","directories":[{{"path":"/a"}},{{"layers":[{inner}]}}]}}"#);
        assert!(shows(&nested(union)) && !shows(&nested(plain)));
    }

    #[test]
    fn missing_and_unexecutable_commands_have_different_statuses() {
        let run = |program: &str| {
            let error = Command::new(program).spawn().unwrap_err();
            cannot_run(program.as_ref(), &error)
        };
        assert_eq!(run("no-such-command").exit, Exit::NotFound);
        assert_eq!(run("/no/such/command").exit, Exit::NotFound);
        assert_eq!(run("/").exit, Exit::NotExecutable);
        assert!(run("/etc/passwd").reason.starts_with("/etc/passwd: can't be executed: permission denied; "));
    }

    #[test]
    fn directories_are_parsed_from_the_reply() {
        let json = r#"{"pid":7,"layers":[{"name":"wrapfs","options":""},{"name":"unionfs","options":"",
            "directories":[{"path":"/a","mode":"rw","fd":9},{"path":"/b","mode":"ro","fd":11}]}]}"#;
        let lowers = read(json).unwrap();
        assert_eq!(lowers.len(), 2);
        assert_eq!(
            choose(&lowers, 2).unwrap(),
            &Lower { by: "/proc/7/fd/11".into(), mode: "ro".into(), path: "/b".into() }
        );
        let nested = r#"{"pid":7,"layers":[{"directories":[{"path":"/a","mode":"rw","fd":9},
            {"mode":"ro","layers":[{"name":"rot13"},{"directories":[{"path":"/c","mode":"ro","fd":null}]}]},
            {"path":"/b","mode":"ro","fd":11}]}]}"#;
        let paths: Vec<_> = read(nested).unwrap().into_iter().map(|lower| (lower.by, lower.mode)).collect();
        let want = [("/proc/7/fd/9", "rw"), ("/c", "ro"), ("/proc/7/fd/11", "ro")];
        assert_eq!(paths, want.map(|(by, mode)| (PathBuf::from(by), mode.to_owned())));
        assert!(choose(&lowers, 0).is_err() && choose(&lowers, 3).unwrap_err().reason.contains("use 1 to 2"));
        for bad in ["", "{}", r#"{"pid":7,"layers":[]}"#, r#"{"pid":7,"layers":[{"directories":[{}]}]}"#] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
