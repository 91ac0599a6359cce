//! A worker that makes passes over the tree: STAT, READDIR and UNLINK.

use std::ffi::{CString, OsString};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::{Advice, AtFlags, Mode, OFlags, RawDir, fadvise, openat, statat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::tree::{FILES, directory_name};
use crate::layout::file_name;
use crate::worker::{self, Timed};

/// Hidden first argument that runs this program as such a worker; a [`Task`] in JSON follows.
pub(crate) const SUBCOMMAND: &str = "tree-worker";

/// Passes of the timed phase where nothing is used up and each is short.
const AGAIN: u32 = 5;

/// The micro-benchmarks of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Action {
    /// lstat(2) of each file and directory.
    Stat,
    /// Lists each directory.
    Readdir,
    /// unlink(2) of each file and rmdir(2) of each directory.
    Unlink,
}

impl Action {
    pub(crate) const ALL: [Self; 3] = [Self::Stat, Self::Readdir, Self::Unlink];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stat => "STAT",
            Self::Readdir => "READDIR",
            Self::Unlink => "UNLINK",
        }
    }

    /// Returns what an operation of it is.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Stat => "file or directory",
            Self::Readdir => "directory of 32 files",
            Self::Unlink => "file or directory",
        }
    }

    /// Returns the states that it is measured in.
    pub(crate) fn states(self) -> &'static [State] {
        match self {
            Self::Stat | Self::Readdir => &[State::Cold, State::Union, State::Kernel],
            Self::Unlink => &[State::Cold, State::Kernel],
        }
    }
}

/// What is known of the names when the timed phase begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// The kernel knows nothing: even the file system of the branches was just mounted.
    Cold,
    /// The union has looked them up or listed them, and the kernel has dropped the result.
    Union,
    /// The kernel's caches hold them.
    Kernel,
}

impl State {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Union => "known to the union",
            Self::Kernel => "known to the kernel",
        }
    }
}

/// Task of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) action: Action,
    pub(crate) state: State,
    /// Root of the mount.
    pub(crate) root: PathBuf,
    /// The first directory of the tree, and the one after the last.
    pub(crate) directories: (u32, u32),
}

/// Runs the task given as JSON.
pub(crate) fn main(task: Option<OsString>) -> Result<()> {
    let task = task.context("a worker is started by strata-bench itself")?;
    let task: Task = serde_json::from_slice(task.as_encoded_bytes()).context("read the task")?;
    worker::report(0, || prepare(&task))
}

/// A directory and its files, as paths from the root.
struct Part {
    directory: CString,
    files: Vec<CString>,
}

fn prepare(task: &Task) -> Result<Timed> {
    let (first, end) = task.directories;
    let parts = (first..end).map(part).collect::<Result<Vec<_>, _>>().context("name the files")?;
    let root = rustix::fs::open(&task.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", task.root.display()))?;
    choose(task, root, parts).with_context(|| format!("{} in {}", task.action.name(), task.root.display()))
}

fn part(directory: u32) -> Result<Part, std::ffi::NulError> {
    let name = directory_name(directory);
    let files = (0..FILES).map(|file| CString::new(format!("{name}/{}", file_name(file)))).collect::<Result<_, _>>()?;
    Ok(Part { directory: CString::new(name)?, files })
}

fn choose(task: &Task, root: OwnedFd, parts: Vec<Part>) -> rustix::io::Result<Timed> {
    let passes = if task.state == State::Kernel { AGAIN } else { 1 };
    Ok(match task.action {
        Action::Stat => {
            if task.state != State::Cold {
                stat(&root, &parts)?;
            }
            // The kernel keeps directories that are open, and so does the union what it knows of
            // them. The coordinator makes the kernel drop the files.
            let held = if task.state == State::Union { open_all(&root, &parts, OFlags::PATH)? } else { Vec::new() };
            keep(held);
            Box::new(move || again(passes, || stat(&root, &parts)))
        }
        Action::Readdir => {
            let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
            if task.state != State::Cold {
                list(&root, &parts, &mut buffer)?;
            }
            let held = if task.state == State::Union { open_all(&root, &parts, OFlags::RDONLY)? } else { Vec::new() };
            // Makes the kernel drop the listing that it has cached for the union.
            held.iter().try_for_each(|directory| fadvise(directory, 0, None, Advice::DontNeed))?;
            keep(held);
            Box::new(move || again(passes, || list(&root, &parts, &mut buffer)))
        }
        Action::Unlink => {
            if task.state != State::Cold {
                stat(&root, &parts)?;
            }
            Box::new(move || remove(&root, &parts).map(|count| (count, 0)))
        }
    })
}

/// Keeps them open until this process ends, since the time to close them would count.
fn keep(held: Vec<OwnedFd>) {
    std::mem::forget(held);
}

fn again(passes: u32, mut pass: impl FnMut() -> rustix::io::Result<u64>) -> rustix::io::Result<worker::Tally> {
    let mut count = 0;
    for _ in 0..passes {
        count += pass()?;
    }
    Ok((count, 0))
}

/// Opens each directory.
fn open_all(root: &OwnedFd, parts: &[Part], access: OFlags) -> rustix::io::Result<Vec<OwnedFd>> {
    parts.iter().map(|part| open(root, part, access)).collect()
}

fn open(root: &OwnedFd, part: &Part, access: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(root, &part.directory, access | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn stat(root: &OwnedFd, parts: &[Part]) -> rustix::io::Result<u64> {
    let mut count = 0;
    for part in parts {
        for path in std::iter::once(&part.directory).chain(&part.files) {
            black_box(statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?);
            count += 1;
        }
    }
    Ok(count)
}

fn list(root: &OwnedFd, parts: &[Part], buffer: &mut [MaybeUninit<u8>]) -> rustix::io::Result<u64> {
    for part in parts {
        let directory = open(root, part, OFlags::RDONLY)?;
        let mut entries = RawDir::new(directory.as_fd(), buffer);
        let mut count = 0;
        while let Some(entry) = entries.next() {
            count += usize::from(!matches!(entry?.file_name().to_bytes(), b"." | b".."));
        }
        // A name that is listed twice, or not at all.
        if count != part.files.len() {
            return Err(Errno::IO);
        }
    }
    Ok(parts.len() as u64)
}

fn remove(root: &OwnedFd, parts: &[Part]) -> rustix::io::Result<u64> {
    let mut count = 0;
    for part in parts {
        for file in &part.files {
            unlinkat(root, file, AtFlags::empty())?;
            count += 1;
        }
        unlinkat(root, &part.directory, AtFlags::REMOVEDIR)?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branches::tree::{Distribution, Tree};

    #[test]
    fn passes_count_what_they_do() {
        let dir = std::env::temp_dir().join(format!("strata-bench-passes-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Tree { directories: 4 }.populate(std::slice::from_ref(&dir), Distribution::Dist).unwrap();
        let run = |action, state, directories| {
            prepare(&Task { action, state, root: dir.clone(), directories }).unwrap()().unwrap().0
        };
        assert_eq!(run(Action::Stat, State::Cold, (0, 4)), 4 * 33);
        assert_eq!(run(Action::Stat, State::Kernel, (0, 4)), 5 * 4 * 33);
        assert_eq!(run(Action::Readdir, State::Union, (0, 4)), 4);
        assert_eq!(run(Action::Unlink, State::Cold, (0, 2)), 2 * 33);
        // What is left is the other half, and a directory with a missing file is noticed.
        std::fs::remove_file(dir.join("d003/f000000")).unwrap();
        let task = Task { action: Action::Readdir, state: State::Cold, root: dir.clone(), directories: (2, 4) };
        assert_eq!(prepare(&task).unwrap()().unwrap_err(), Errno::IO);
        assert!(!dir.join("d001").exists() && dir.join("d002").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
