//! Steps on many files: a source tree, the build of OpenSSH, and small files.

use std::fs;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::archive::Archive;
use super::record::Record;
use super::step::Step;
use super::volume::Volume;
use crate::cli::Options;
use crate::layout::SMALL;
use crate::workload;

/// Unpacks the archive, checks all files, lists them, and removes them. Each step begins with cold
/// caches.
pub(super) fn tree(volume: &mut Volume<'_>, archive: &Archive, record: &mut Record) -> Result<()> {
    let log = volume.log();
    fs::create_dir(volume.root()?.join("tree")).context("create a directory")?;
    for (step, script, argument) in [
        (Step::Untar, "tar -xf \"$1\"", archive.path.as_path()),
        (Step::Md5sum, "md5sum --quiet -c \"$1\"", archive.sums.as_path()),
        (Step::List, "ls -lR . >/dev/null", archive.path.as_path()),
        (Step::Remove, "rm -rf -- *", archive.path.as_path()),
    ] {
        volume.cool()?;
        let dir = volume.root()?.join("tree");
        record.script(step, (script, &[argument]), &dir, &log).with_context(|| step.label().to_owned())?;
    }
    Ok(())
}

/// Configures and builds OpenSSH from sources that are in the volume. Begins with cold caches.
pub(super) fn build(volume: &mut Volume<'_>, options: &Options, record: &mut Record) -> Result<()> {
    let log = volume.log();
    workload::copy_openssh(options, &volume.root()?.join("openssh"), &log)?;
    volume.cool()?;
    let source = volume.root()?.join("openssh");
    let mut clock = record.start()?;
    workload::build_openssh(&source, "./configure --quiet && make -s -j2", &log)?;
    clock.lap(Step::Build, 1, 0)
}

/// Creates files of 4 KiB, and looks at them and removes them with cold caches.
pub(super) fn small(volume: &mut Volume<'_>, count: u32, record: &mut Record) -> Result<()> {
    let names: Vec<String> = (0..count).map(|n| format!("small/a file with the number {n}")).collect();
    fs::create_dir(volume.root()?.join("small")).context("create a directory")?;
    volume.cool()?;
    for step in [Step::Create, Step::Stat, Step::Unlink] {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, volume.root()?, flags, Mode::empty()).context("open the root")?;
        let mut clock = record.start()?;
        for name in &names {
            let done = match step {
                Step::Create => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&root, name, flags, Mode::RUSR | Mode::WUSR);
                    file.and_then(|file| rustix::io::write(&file, &[b'c'; SMALL])).map(drop)
                }
                Step::Unlink => rustix::fs::unlinkat(&root, name, AtFlags::empty()),
                _ => rustix::fs::statat(&root, name, AtFlags::empty()).map(drop),
            };
            done.with_context(|| format!("{} {name}", step.label()))?;
        }
        clock.lap(step, u64::from(count), 0)?;
        drop(root);
        volume.cool()?;
    }
    Ok(())
}
