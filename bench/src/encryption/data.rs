//! Steps on the data of one file: streams, and random access.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{CWD, Mode, OFlags};

use super::record::Record;
use super::step::Step;
use super::volume::Volume;
use crate::layout::SMALL;
use crate::worker::{BLOCK, random_order, sequential};

const FILE: &str = "file";
/// Start of the random offsets, the same for all.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Writes a file, overwrites it, and reads it with a warm and with a cold cache of the encrypted
/// file.
pub(super) fn stream(volume: &mut Volume<'_>, bytes: u64, record: &mut Record) -> Result<()> {
    let block = block();
    for (step, synced, flags) in [
        (Step::Write, Step::WriteSync, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL),
        (Step::Overwrite, Step::OverwriteSync, OFlags::WRONLY),
    ] {
        let path = volume.root()?.join(FILE);
        let mut clock = record.start()?;
        let file = open(&path, flags)?;
        let (operations, _) = sequential(bytes, || rustix::io::write(&file, &block)).context("write")?;
        clock.lap(step, operations, bytes)?;
        rustix::fs::fsync(&file).context("fsync")?;
        clock.lap(synced, operations, bytes)?;
        // Overwriting starts without decrypted data in a cache.
        drop(file);
        volume.warm()?;
    }
    read(volume, Step::ReadWarm, bytes, record)?;
    volume.cool()?;
    read(volume, Step::ReadCold, bytes, record)
}

fn read(volume: &Volume<'_>, step: Step, bytes: u64, record: &mut Record) -> Result<()> {
    let (path, mut buffer) = (volume.root()?.join(FILE), vec![0; BLOCK]);
    let mut clock = record.start()?;
    let file = open(&path, OFlags::RDONLY)?;
    let (operations, _) = sequential(bytes, || rustix::io::read(&file, &mut buffer)).context("read")?;
    clock.lap(step, operations, bytes)
}

/// Reads and overwrites blocks of 4 KiB in random order, as many as the file has.
pub(super) fn random(volume: &mut Volume<'_>, bytes: u64, record: &mut Record) -> Result<()> {
    let block = block();
    let path = volume.root()?.join(FILE);
    let file = open(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    sequential(bytes, || rustix::io::write(&file, &block)).context("write")?;
    rustix::fs::fsync(&file).context("fsync")?;
    drop(file);

    volume.warm()?;
    let (path, mut buffer, mut seed) = (volume.root()?.join(FILE), [0; SMALL], SEED);
    let mut clock = record.start()?;
    let file = open(&path, OFlags::RDONLY)?;
    let (operations, _) =
        random_order(bytes, &mut seed, |at| rustix::io::pread(&file, &mut buffer, at)).context("read")?;
    clock.lap(Step::RandomRead, operations, bytes)?;
    drop(file);

    volume.warm()?;
    let (path, mut seed) = (volume.root()?.join(FILE), SEED);
    let mut clock = record.start()?;
    let file = open(&path, OFlags::WRONLY)?;
    let (operations, _) =
        random_order(bytes, &mut seed, |at| rustix::io::pwrite(&file, &buffer, at)).context("write")?;
    rustix::fs::fsync(&file).context("fsync")?;
    clock.lap(Step::RandomWrite, operations, bytes)
}

/// Returns the data of a write call. It is not compressible, and its blocks differ.
fn block() -> Vec<u8> {
    let mut state = SEED;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(BLOCK / size_of::<u64>()).flatten().collect()
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, mode).with_context(|| format!("open {}", path.display()))
}
