//! A worker: one process that runs one operation, pinned to one CPU.
//!
//! It is a process and not a thread: threads would share a descriptor table and an address space,
//! whose locks would distort the measurement. It warms up, prints `ready`, waits for a line, runs
//! the timed phase and prints an [`Outcome`] in JSON. The timed loops call directory-relative
//! system calls with names prepared in advance: no path longer than one component is resolved, and
//! no memory is allocated.

use std::ffi::{CString, OsString};
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::layout::{ENTRIES, SMALL, file_name, large_name, listed_dirs, small_files};
use crate::mapping::Mapping;
use crate::operation::Operation;

/// Hidden first argument that runs this program as a worker; a [`Task`] in JSON follows.
pub(crate) const SUBCOMMAND: &str = "worker";
/// Line that a worker prints after its warm-up.
pub(crate) const READY: &str = "ready";

/// Bytes per system call of the sequential operations.
pub(crate) const BLOCK: usize = 128 << 10;

/// Task of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) operation: Operation,
    /// Index of the worker; also its CPU.
    pub(crate) worker: u32,
    /// Its directory in the mounted contender.
    pub(crate) dir: PathBuf,
    pub(crate) files: u32,
    pub(crate) large_bytes: u64,
}

/// Result of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// Times are nanoseconds of the monotonic clock, the same for all workers.
    Done { begun: u64, ended: u64, ops: u64, bytes: u64 },
    /// The operation failed with this error.
    Failed(String),
}

/// Number of operations and of bytes.
pub(crate) type Tally = (u64, u64);
/// The timed phase.
pub(crate) type Timed = Box<dyn FnOnce() -> rustix::io::Result<Tally>>;

/// Runs the task given as JSON.
pub(crate) fn main(task: Option<OsString>) -> Result<()> {
    let task = task.context("a worker is started by strata-bench itself")?;
    let task: Task = serde_json::from_slice(task.as_encoded_bytes()).context("read the task")?;
    report(task.worker, || prepare(&task))
}

/// Pins this process to the worker's CPU, warms up, runs the timed phase on request, and prints the
/// outcome.
pub(crate) fn report(worker: u32, prepare: impl FnOnce() -> Result<Timed>) -> Result<()> {
    let outcome = work(worker, prepare).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
    println!("{}", serde_json::to_string(&outcome).context("write the outcome")?);
    Ok(())
}

fn work(worker: u32, prepare: impl FnOnce() -> Result<Timed>) -> Result<Outcome> {
    pin(worker)?;
    let timed = prepare().context("warm up")?;
    println!("{READY}");
    std::io::stdout().flush().context("say ready")?;
    std::io::stdin().lock().read_line(&mut String::new()).context("wait for the others")?;
    let begun = now();
    let (ops, bytes) = timed()?;
    Ok(Outcome::Done { begun, ended: now(), ops, bytes })
}

fn pin(worker: u32) -> Result<()> {
    let cpus = std::thread::available_parallelism().context("count the CPUs")?.get();
    let mut set = CpuSet::new();
    set.set(usize::try_from(worker)? % cpus);
    rustix::thread::sched_setaffinity(None, &set).context("pin to a CPU")
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn prepare(task: &Task) -> Result<Timed> {
    let dir = rustix::fs::open(&task.dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", task.dir.display()))?;
    choose(task, dir).with_context(|| format!("{} in {}", task.operation.id(), task.dir.display()))
}

fn names(prefix: &str, count: u32) -> Vec<CString> {
    // The generated names contain no NUL byte.
    (0..count).filter_map(|i| CString::new(format!("{prefix}{}", file_name(i))).ok()).collect()
}

/// Calls `each` for every name, `passes` times.
fn over(
    names: &[CString],
    passes: u32,
    mut each: impl FnMut(u32, &CString) -> rustix::io::Result<()>,
) -> rustix::io::Result<Tally> {
    for pass in 0..passes {
        for name in names {
            each(pass, name)?;
        }
    }
    Ok((names.len() as u64 * u64::from(passes), 0))
}

fn choose(task: &Task, dir: OwnedFd) -> rustix::io::Result<Timed> {
    let passes = task.operation.passes();
    let names = names("", small_files(task.operation, task.files));
    Ok(match task.operation {
        Operation::GetattrForced => {
            let name = c"f000000";
            let look = move || rustix::fs::statx(&dir, name, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
            look()?;
            let count = task.files * passes;
            Box::new(move || {
                for _ in 0..count {
                    black_box(look()?);
                }
                Ok((u64::from(count), 0))
            })
        }
        Operation::StatFirst => Box::new(move || over(&names, passes, |_, name| stat(&dir, name))),
        Operation::StatAgain => {
            over(&names, 1, |_, name| stat(&dir, name))?;
            Box::new(move || over(&names, passes, |_, name| stat(&dir, name)))
        }
        Operation::MissingFirst => Box::new(move || over(&names, passes, |_, name| missing(&dir, name))),
        Operation::MissingAgain => {
            over(&names, 1, |_, name| missing(&dir, name))?;
            Box::new(move || over(&names, passes, |_, name| missing(&dir, name)))
        }
        Operation::OpenReadRw | Operation::OpenReadRo => {
            over(&names, 1, |_, name| open_read(&dir, name))?;
            Box::new(move || over(&names, passes, |_, name| open_read(&dir, name)))
        }
        Operation::Readdir => prepare_readdir(task, dir)?,
        Operation::Chmod => {
            over(&names, 1, |_, name| stat(&dir, name))?;
            Box::new(move || {
                over(&names, passes, |pass, name| {
                    let mode = if pass % 2 == 0 { 0o600 } else { 0o644 };
                    rustix::fs::chmodat(&dir, name, Mode::from_raw_mode(mode), AtFlags::empty())
                })
            })
        }
        Operation::Rename => {
            over(&names, 1, |_, name| stat(&dir, name))?;
            let pairs: Vec<_> = std::iter::zip(names, self::names("to-", task.files)).collect();
            Box::new(move || {
                for (from, to) in &pairs {
                    rustix::fs::renameat(&dir, from, &dir, to)?;
                }
                Ok((pairs.len() as u64, 0))
            })
        }
        Operation::Create => Box::new(move || over(&names, passes, |_, name| create(&dir, name))),
        Operation::Unlink => {
            over(&names, 1, |_, name| create(&dir, name))?;
            Box::new(move || over(&names, passes, |_, name| rustix::fs::unlinkat(&dir, name, AtFlags::empty())))
        }
        Operation::Mkdir => Box::new(move || over(&names, passes, |_, name| mkdir(&dir, name))),
        Operation::Rmdir => {
            over(&names, 1, |_, name| mkdir(&dir, name))?;
            Box::new(move || over(&names, passes, |_, name| rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)))
        }
        Operation::SeqRead
        | Operation::SeqWrite
        | Operation::RandRead
        | Operation::RandWrite
        | Operation::MmapRead
        | Operation::MmapWrite
        | Operation::RoFirst
        | Operation::RoAgain => prepare_large(task, dir)?,
    })
}

fn stat(dir: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    black_box(rustix::fs::statat(dir, name, AtFlags::empty())?);
    Ok(())
}

fn missing(dir: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    match rustix::fs::statat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        Err(other) => Err(other),
        Ok(_) => Err(Errno::EXIST),
    }
}

fn open_read(dir: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0_u8; SMALL];
    require_whole(rustix::io::read(&file, &mut buffer[..])?, SMALL)
}

fn create(dir: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
    require_whole(rustix::io::write(&file, &[b'c'; SMALL])?, SMALL)
}

fn mkdir(dir: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))
}

/// Fails on a short transfer, which would count as a whole one.
fn require_whole(moved: usize, wanted: usize) -> rustix::io::Result<()> {
    if moved == wanted { Ok(()) } else { Err(Errno::IO) }
}

fn prepare_readdir(task: &Task, dir: OwnedFd) -> rustix::io::Result<Timed> {
    let names: Vec<_> = (0..listed_dirs(task.files)).filter_map(|d| CString::new(format!("d{d:06}")).ok()).collect();
    let passes = task.operation.passes();
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    over(&names, 1, |_, name| list(&dir, name, &mut buffer))?;
    Ok(Box::new(move || over(&names, passes, |_, name| list(&dir, name, &mut buffer))))
}

fn list(dir: &OwnedFd, name: &CString, buffer: &mut [MaybeUninit<u8>]) -> rustix::io::Result<()> {
    let listed = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut entries = RawDir::new(listed.as_fd(), buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            count += 1;
        }
    }
    require_whole(count, ENTRIES as usize)
}

/// Prepares the timed phase of an operation on a large file; every pass reopens the file, as
/// another program would.
fn prepare_large(task: &Task, dir: OwnedFd) -> rustix::io::Result<Timed> {
    let (operation, bytes) = (task.operation, task.large_bytes);
    let mut seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(task.worker);
    let mut block = vec![b'W'; BLOCK];
    let mut once = move || {
        // A shared writable mapping needs a descriptor with read access.
        let writes = matches!(operation, Operation::SeqWrite | Operation::RandWrite | Operation::MmapWrite);
        let access = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        let file = rustix::fs::openat(&dir, large_name(operation), access | OFlags::CLOEXEC, Mode::empty())?;
        match operation {
            Operation::SeqWrite => sequential(bytes, || rustix::io::write(&file, &block)),
            Operation::RandRead => {
                random_order(bytes, &mut seed, |at| rustix::io::pread(&file, &mut block[..SMALL], at))
            }
            Operation::RandWrite => random_order(bytes, &mut seed, |at| rustix::io::pwrite(&file, &block[..SMALL], at)),
            Operation::MmapRead => mapped(&file, bytes, false),
            Operation::MmapWrite => mapped(&file, bytes, true),
            _ => sequential(bytes, || rustix::io::read(&file, &mut block[..])),
        }
    };
    if operation != Operation::RoFirst {
        once()?;
    }
    Ok(Box::new(move || {
        (0..operation.passes()).try_fold((0, 0), |(ops, bytes), _| once().map(|(o, b)| (ops + o, bytes + b)))
    }))
}

/// Calls `step` for `bytes` of a file in sequence, one block at a time.
pub(crate) fn sequential(bytes: u64, mut step: impl FnMut() -> rustix::io::Result<usize>) -> rustix::io::Result<Tally> {
    let count = bytes / BLOCK as u64;
    for _ in 0..count {
        require_whole(step()?, BLOCK)?;
    }
    Ok((count, bytes))
}

/// Calls `step` for as many random offsets as the file has pages; the same offsets in every run.
pub(crate) fn random_order(
    bytes: u64,
    seed: &mut u64,
    mut step: impl FnMut(u64) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Tally> {
    let pages = bytes / SMALL as u64;
    for _ in 0..pages {
        // xorshift64: good enough to defeat readahead.
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        require_whole(step(*seed % pages * SMALL as u64)?, SMALL)?;
    }
    Ok((pages, bytes))
}

/// Maps the file, accesses all of it, and unmaps it. One operation is a page.
fn mapped(file: &OwnedFd, bytes: u64, write: bool) -> rustix::io::Result<Tally> {
    let len = usize::try_from(bytes).map_err(|_| Errno::FBIG)?;
    let mut mapping = Mapping::new(file, len, write)?;
    if write {
        mapping.fill(b'M')?;
    } else {
        black_box(mapping.read_all());
    }
    Ok((bytes / SMALL as u64, bytes))
}
