//! How much memory a server takes: idle, with every inode of a large tree known to the kernel, and after the kernel has
//! forgotten them.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use serde::Serialize;

use crate::cli::Options;
use crate::contender::{Contender, Kind};
use crate::process;
use crate::progress::Progress;
use crate::stage::{Size, Stage};

/// Files of the tree in one directory.
const PER_DIR: u32 = 1000;

/// What was found of one server.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryRow {
    pub(crate) contender: Kind,
    /// Files and directories that were looked at.
    pub(crate) inodes: u64,
    /// Resident after the mount.
    pub(crate) idle: Resident,
    /// After each inode was looked at.
    pub(crate) known: Resident,
    /// After the kernel was asked to forget them.
    pub(crate) forgotten: Resident,
    /// What the resident memory grew by per inode, bytes.
    pub(crate) bytes_per_inode: f64,
}

/// What all processes of a server hold together.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Resident {
    pub(crate) kib: u64,
    /// The part of it that is its own and not a file's, such as its program's.
    pub(crate) anonymous_kib: u64,
    pub(crate) descriptors: usize,
}

/// Measures every contender that has a server.
pub(crate) fn run(options: &Options, contenders: &[Contender], progress: &Progress) -> Result<Vec<MemoryRow>> {
    let mut rows = Vec::new();
    for contender in contenders.iter().filter(|contender| contender.kind.is_fuse()) {
        match measure(options, contender, progress) {
            Ok(row) => rows.push(row),
            Err(error) => {
                progress.clear();
                eprintln!("strata-bench: memory of {}: {error:#}", contender.kind.name());
            }
        }
    }
    progress.clear();
    Ok(rows)
}

fn measure(options: &Options, contender: &Contender, progress: &Progress) -> Result<MemoryRow> {
    let say = |what: &str| progress.say(&format!("memory of {}: {what}", contender.kind.name()));
    let files = options.memory_files();
    say("laying out the tree");
    let inodes = u64::from(files) + u64::from(files / PER_DIR) + 10_000;
    let stage = Stage::new(&crate::enclosure::base()?, Size { bytes: (512 << 20) + inodes * 1024, inodes })?;
    let branches = contender.branches(&stage)?;
    lay(&branches.ro, files).context("lay out the tree")?;
    rustix::fs::syncfs(stage.open()?).context("sync the file system")?;
    forget()?;

    let running = contender.mount(&stage, &branches)?;
    let idle = resident();
    say("looking at every file");
    let known_inodes = look(&running.root)?;
    let known = resident();
    say("making the kernel forget");
    forget()?;
    let forgotten = settled();
    let grown = known.kib.saturating_sub(idle.kib) * 1024;
    let bytes_per_inode = grown as f64 / known_inodes.max(1) as f64;
    Ok(MemoryRow { contender: contender.kind, inodes: known_inodes, idle, known, forgotten, bytes_per_inode })
}

fn lay(root: &Path, files: u32) -> std::io::Result<()> {
    for i in 0..files {
        let dir = root.join(format!("d{:05}", i / PER_DIR));
        if i % PER_DIR == 0 {
            fs::create_dir(&dir)?;
        }
        fs::write(dir.join(format!("file-{i:07}")), [])?;
    }
    Ok(())
}

fn resident() -> Resident {
    let servers = process::servers();
    let sum = |field| servers.iter().filter_map(|pid| process::status_field(*pid, field)).sum();
    Resident {
        kib: sum("VmRSS"),
        anonymous_kib: sum("RssAnon"),
        descriptors: servers.iter().filter_map(|pid| process::descriptors(*pid)).sum(),
    }
}

/// The memory once it no longer shrinks: what the kernel forgets reaches the server later.
fn settled() -> Resident {
    let mut last = resident();
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(500));
        let next = resident();
        if next.kib >= last.kib {
            return next;
        }
        last = next;
    }
    last
}

/// Makes the kernel drop the entries and inodes that nobody uses.
fn forget() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").context("ask the kernel to forget")
}

/// Looks at every file as find(1) does when asked for an attribute; answers how many there are.
fn look(root: &Path) -> Result<u64> {
    let root = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", root.display()))?;
    look_in(&root).context("look at the tree")
}

fn look_in(dir: &OwnedFd) -> rustix::io::Result<u64> {
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        count += 1;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            count += look_in(&rustix::fs::openat(dir, name, flags, Mode::empty())?)?;
        }
    }
    Ok(count)
}
