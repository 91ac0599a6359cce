//! Memory of a server: idle, with every inode of a large tree in the kernel's cache, and after the
//! kernel has forgotten them.

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
use crate::scratch::{ScratchFs, Size};

/// Files per directory of the tree.
const PER_DIR: u32 = 1000;

/// Measurement of one server.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryRow {
    pub(crate) contender: Kind,
    /// Number of files and directories looked up.
    pub(crate) inodes: u64,
    /// After the mount.
    pub(crate) idle: Resident,
    /// After every inode was looked up.
    pub(crate) known: Resident,
    /// After the kernel dropped its caches.
    pub(crate) forgotten: Resident,
    /// Growth of resident memory per inode, in bytes.
    pub(crate) bytes_per_inode: f64,
}

/// Resources of all processes of a server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Resident {
    pub(crate) kib: u64,
    /// Anonymous part, which excludes file-backed pages such as the program's.
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
    let say = |what: &str| progress.show(&format!("memory of {}: {what}", contender.kind.name()));
    let files = options.memory_files();
    say("creating the tree");
    let inodes = u64::from(files) + u64::from(files / PER_DIR) + 10_000;
    let scratch = ScratchFs::new(&crate::isolation::base()?, Size { bytes: (512 << 20) + inodes * 1024, inodes })?;
    let branches = contender.branches(&scratch)?;
    populate(&branches.ro, files).context("create the tree")?;
    rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
    forget()?;

    let running = contender.mount(&scratch, &branches)?;
    let idle = resident();
    say("stat of every file");
    let known_inodes = stat_tree(&running.root)?;
    let known = resident();
    say("dropping the kernel's caches");
    forget()?;
    let forgotten = settled();
    let grown = known.kib.saturating_sub(idle.kib) * 1024;
    let bytes_per_inode = grown as f64 / known_inodes.max(1) as f64;
    Ok(MemoryRow { contender: contender.kind, inodes: known_inodes, idle, known, forgotten, bytes_per_inode })
}

fn populate(root: &Path, files: u32) -> std::io::Result<()> {
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

/// Returns the memory once it no longer shrinks: the kernel's FORGET requests are asynchronous.
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

/// Makes the kernel drop unused dentries and inodes.
pub(crate) fn forget() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").context("ask the kernel to forget")
}

/// Requests the attributes of every file, as find(1) does, and returns the number of files.
fn stat_tree(root: &Path) -> Result<u64> {
    let root = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", root.display()))?;
    stat_tree_in(&root).context("stat the tree")
}

fn stat_tree_in(dir: &OwnedFd) -> rustix::io::Result<u64> {
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
            count += stat_tree_in(&rustix::fs::openat(dir, name, flags, Mode::empty())?)?;
        }
    }
    Ok(count)
}
