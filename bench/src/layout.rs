//! Contents of the branches before the contender is mounted.
//!
//! Every operation has a directory with one subdirectory per worker, on both branches: merged
//! directories are the usual case of a union, and the more expensive one. A contender with one
//! branch uses the same directory for both.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::operation::Operation;

/// Size of a small file in bytes.
pub(crate) const SMALL: usize = 4096;
/// Number of entries of a listed directory.
pub(crate) const ENTRIES: u32 = 100;
/// Directory of the large files, shared by their operations.
const LARGE_DIR: &str = "large";

/// The branches of a contender, as the benchmark accesses them directly.
#[derive(Debug)]
pub(crate) struct Branches {
    pub(crate) rw: PathBuf,
    pub(crate) ro: PathBuf,
}

/// Numbers and sizes of the files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amounts {
    pub(crate) workers: u32,
    pub(crate) files: u32,
    pub(crate) large_bytes: u64,
}

/// Returns the name of the `i`-th small file.
pub(crate) fn file_name(i: u32) -> String {
    format!("f{i:06}")
}

/// Returns the directory of a worker, relative to the root of a branch or mount.
pub(crate) fn worker_dir(operation: Operation, worker: u32) -> PathBuf {
    Path::new(if operation.is_large() { LARGE_DIR } else { operation.id() }).join(format!("w{worker}"))
}

/// Returns the large file of an operation, relative to the worker's directory.
pub(crate) fn large_name(operation: Operation) -> &'static str {
    match operation {
        Operation::RoFirst => "ro-first.bin",
        Operation::RoAgain => "ro-again.bin",
        _ => "rw.bin",
    }
}

/// Returns the number of directories of [`ENTRIES`] entries for that number of files.
pub(crate) fn listed_dirs(files: u32) -> u32 {
    (files / ENTRIES).max(1)
}

/// Returns the number of small files that an operation uses per worker.
pub(crate) fn small_files(operation: Operation, files: u32) -> u32 {
    match operation {
        Operation::OpenReadRw | Operation::OpenReadRo => (files / 4).max(1),
        _ => files,
    }
}

/// Creates the files of one operation.
pub(crate) fn populate(operation: Operation, branches: &Branches, amounts: &Amounts) -> Result<()> {
    for worker in 0..amounts.workers {
        let dir = worker_dir(operation, worker);
        let (rw, ro) = (branches.rw.join(&dir), branches.ro.join(&dir));
        fs::create_dir_all(&rw)
            .and_then(|()| fs::create_dir_all(&ro))
            .and_then(|()| populate_worker(operation, &rw, &ro, amounts))
            .with_context(|| format!("create the files of {}", operation.id()))?;
    }
    Ok(())
}

fn populate_worker(operation: Operation, rw: &Path, ro: &Path, amounts: &Amounts) -> std::io::Result<()> {
    let count = small_files(operation, amounts.files);
    match operation {
        Operation::GetattrForced => small(rw, 0),
        Operation::StatFirst | Operation::StatAgain => {
            (0..count).try_for_each(|i| small(if i % 2 == 0 { rw } else { ro }, i))
        }
        Operation::OpenReadRw | Operation::Chmod | Operation::Rename => (0..count).try_for_each(|i| small(rw, i)),
        Operation::OpenReadRo => (0..count).try_for_each(|i| small(ro, i)),
        Operation::Readdir => (0..listed_dirs(amounts.files)).try_for_each(|d| listed(rw, ro, d)),
        Operation::RoFirst | Operation::RoAgain => large(&ro.join(large_name(operation)), amounts.large_bytes),
        Operation::SeqRead
        | Operation::SeqWrite
        | Operation::RandRead
        | Operation::RandWrite
        | Operation::MmapRead
        | Operation::MmapWrite => large(&rw.join(large_name(operation)), amounts.large_bytes),
        Operation::MissingFirst
        | Operation::MissingAgain
        | Operation::Create
        | Operation::Mkdir
        | Operation::Rmdir
        | Operation::Unlink => Ok(()),
    }
}

fn small(dir: &Path, i: u32) -> std::io::Result<()> {
    fs::write(dir.join(file_name(i)), [b's'; SMALL])
}

/// Creates a directory with half of its entries on each branch.
fn listed(rw: &Path, ro: &Path, d: u32) -> std::io::Result<()> {
    let name = format!("d{d:06}");
    for dir in [rw, ro] {
        make_dir(&dir.join(&name))?;
    }
    (0..ENTRIES).try_for_each(|i| fs::write(if i % 2 == 0 { rw } else { ro }.join(&name).join(file_name(i)), []))
}

fn make_dir(path: &Path) -> std::io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn large(path: &Path, bytes: u64) -> std::io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut file = fs::File::create(path)?;
    let block = vec![b'L'; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&block)?;
    }
    Ok(())
}
