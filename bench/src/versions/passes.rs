//! A worker that reads heads, lists directories, or recovers versions.

use std::ffi::{CString, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use versionclient::Directory;

use super::{control, releases};
use crate::worker::{self, Tally, Timed};

/// Hidden first argument that runs this program as such a worker; a [`Task`] in JSON follows.
pub(crate) const SUBCOMMAND: &str = "version-worker";

const BUFFER: usize = 128 << 10;

/// What the worker does with the tree.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Action {
    /// Opens, reads and closes every file.
    Read,
    /// Lists every directory.
    List,
    /// Opens, reads and closes versions of every file.
    Recover(Which),
}

/// Which versions of a file are recovered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Which {
    All,
    Oldest,
    Newest,
}

/// Task of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) action: Action,
    pub(crate) root: PathBuf,
    pub(crate) passes: u32,
}

/// Runs the task given as JSON.
pub(crate) fn main(task: Option<OsString>) -> Result<()> {
    let task = task.context("a worker is started by strata-bench itself")?;
    let task: Task = serde_json::from_slice(task.as_encoded_bytes()).context("read the task")?;
    worker::report(0, || prepare(&task))
}

fn prepare(task: &Task) -> Result<Timed> {
    let (passes, root) = (task.passes, &task.root);
    Ok(match task.action {
        Action::Read => {
            let files = paths(&releases::files(root)?)?;
            Box::new(move || repeat(passes, || read_all(&files)))
        }
        Action::List => {
            let directories = paths(&releases::directories(root)?)?;
            Box::new(move || repeat(passes, || list_all(&directories)))
        }
        Action::Recover(which) => {
            let versions = find_versions(root, which)?;
            Box::new(move || repeat(passes, || recover_all(&versions)))
        }
    })
}

fn paths(paths: &[PathBuf]) -> Result<Vec<CString>> {
    let converted = paths.iter().map(|path| CString::new(path.as_os_str().as_bytes()));
    converted.collect::<Result<_, _>>().context("a path contains a NUL byte")
}

fn repeat(passes: u32, mut each: impl FnMut() -> rustix::io::Result<Tally>) -> rustix::io::Result<Tally> {
    (0..passes).try_fold((0, 0), |(ops, bytes), _| each().map(|(o, b)| (ops + o, bytes + b)))
}

fn read_all(files: &[CString]) -> rustix::io::Result<Tally> {
    let (mut buffer, mut bytes) = (vec![0; BUFFER], 0);
    for path in files {
        let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        bytes += read_to_end(&file, &mut buffer)?;
    }
    Ok((files.len() as u64, bytes))
}

fn read_to_end(file: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<u64> {
    let mut bytes = 0;
    loop {
        match rustix::io::read(file, &mut *buffer)? {
            0 => return Ok(bytes),
            count => bytes += count as u64,
        }
    }
}

fn list_all(directories: &[CString]) -> rustix::io::Result<Tally> {
    let (mut buffer, mut names) = (vec![MaybeUninit::uninit(); 32 << 10], 0);
    for path in directories {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        let mut entries = RawDir::new(listed.as_fd(), &mut buffer);
        while let Some(entry) = entries.next() {
            entry?;
            names += 1;
        }
    }
    if names == 0 { Err(Errno::NOENT) } else { Ok((directories.len() as u64, 0)) }
}

/// A version and the directory to open it in.
struct Found {
    dir: Rc<Directory>,
    name: Rc<[u8]>,
    number: u64,
    size: u64,
}

/// Finds the versions, without opening one.
fn find_versions(root: &Path, which: Which) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for path in releases::directories(root)? {
        let dir = Directory::open(&path).with_context(|| format!("open {}", path.display()))?;
        let dir = Rc::new(dir);
        for named in dir.names().with_context(|| format!("list the names in {}", path.display()))? {
            let name: Rc<[u8]> = named.name.into();
            let versions = control::versions(&dir, &name)?;
            let chosen = match which {
                Which::All => versions.as_slice(),
                Which::Oldest => versions.get(..1).unwrap_or_default(),
                Which::Newest => versions.last().map(std::slice::from_ref).unwrap_or_default(),
            };
            found.extend(chosen.iter().map(|version| {
                let (dir, name) = (Rc::clone(&dir), Rc::clone(&name));
                Found { dir, name, number: version.number, size: version.size }
            }));
        }
    }
    Ok(found)
}

fn recover_all(versions: &[Found]) -> rustix::io::Result<Tally> {
    let (mut buffer, mut bytes) = (vec![0; BUFFER], 0);
    for version in versions {
        let file = version.dir.open_version(&version.name, version.number).map_err(|error| {
            eprintln!("strata-bench: {error:#}");
            Errno::IO
        })?;
        let size = read_to_end(&file, &mut buffer)?;
        if size != version.size {
            eprintln!("strata-bench: a version of {} bytes was recovered as {size} bytes", version.size);
            return Err(Errno::IO);
        }
        bytes += size;
    }
    Ok((versions.len() as u64, bytes))
}
