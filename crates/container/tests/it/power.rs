//! Power failures: an arbitrary subset of the sectors written since the last fsync reaches the
//! disk, in any order.
//!
//! Afterwards each block must have its last durable content or one written since then; the same
//! holds for the size. The file must keep working through several failures in a row.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{CX, Change, Growing, Runs, contents, random_change};
use container::{BlockCodec, Container};
use memfs::MemFs;
use std::any::Any;
use std::sync::{Arc, Mutex};
use testkit::Rng;
use vnode::{Cx, OpenFile, Result, Vnode, Whence};

const BLOCK: u64 = 512;
const SECTOR: usize = 512;

/// A change of the lower file since the last fsync.
#[derive(Debug)]
enum Done {
    Write { offset: u64, data: Vec<u8> },
    Size(u64),
    Punch { offset: u64, len: u64 },
}

/// A lower file that records what a power failure could lose.
#[derive(Debug)]
struct Disk {
    vnode: Arc<dyn Vnode>,
    file: Arc<dyn OpenFile>,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    durable: Vec<u8>,
    since: Vec<Done>,
    size: u64,
}

impl Disk {
    fn new(fs: &MemFs) -> Arc<Self> {
        let (vnode, file) = common::lower(fs);
        let disk = Self { vnode, file, log: Mutex::default() };
        disk.fsync(&CX, false).unwrap();
        Arc::new(disk)
    }

    fn all(&self) -> Vec<u8> {
        let mut all = vec![0; self.vnode.getattr(&CX).unwrap().size as usize];
        let len = self.file.read(&CX, &mut all, 0).unwrap();
        assert_eq!(len, all.len());
        all
    }

    /// Detects size changes afterwards, because they are made through the vnode. A journaling file
    /// system keeps them, like punching, in order with earlier changes.
    fn detect_size_change(&self, log: &mut Log) {
        let size = self.vnode.getattr(&CX).unwrap().size;
        if size < log.size {
            log.since.push(Done::Size(size));
        }
        log.size = size;
    }

    /// Returns the content of the disk if the power fails now.
    fn fail(&self, random: &mut Rng) -> Arc<MemFs> {
        let mut log = self.log.lock().unwrap();
        self.detect_size_change(&mut log);
        let mut image = log.durable.clone();
        // The number of changes that reach the disk at all, and the share of their sectors.
        let until = random.below(log.since.len() + 1);
        let share = [0, 1, 5, 9, 10][random.below(5)];
        // The page cache: a sector is written with its content at that time.
        let mut cached = image.clone();
        for done in &log.since[..until] {
            match done {
                Done::Size(size) => {
                    cached.resize(*size as usize, 0);
                    image.resize(*size as usize, 0);
                }
                Done::Punch { offset, len } => {
                    for bytes in [&mut cached, &mut image] {
                        let end = ((offset + len) as usize).min(bytes.len());
                        bytes.get_mut(*offset as usize..end).unwrap_or(&mut []).fill(0);
                    }
                }
                Done::Write { offset, data } => {
                    let (start, end) = (*offset as usize, *offset as usize + data.len());
                    cached.resize(cached.len().max(end), 0);
                    cached[start..end].copy_from_slice(data);
                    for sector in start / SECTOR..end.div_ceil(SECTOR) {
                        if random.below(10) < share {
                            let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(cached.len()));
                            image.resize(image.len().max(to), 0);
                            image[from..to].copy_from_slice(&cached[from..to]);
                        }
                    }
                }
            }
        }
        let fs = MemFs::new();
        let (_, file) = common::lower(&fs);
        if !image.is_empty() {
            file.write(&CX, &image, 0).unwrap();
        }
        fs
    }
}

impl OpenFile for Disk {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        None
    }

    fn closes_quickly(&self) -> bool {
        true
    }

    fn bind(&self) {}

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read(cx, out, offset)
    }

    fn read_host(&self, _cx: &Cx<'_>, _take: vnode::HostReader<'_>) -> Result<Option<usize>> {
        Ok(None)
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let mut log = self.log.lock().unwrap();
        self.detect_size_change(&mut log);
        log.since.push(Done::Write { offset, data: data.to_vec() });
        let n = self.file.write(cx, data, offset)?;
        log.size = self.vnode.getattr(cx)?.size;
        Ok(n)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.file.flush(cx)
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        let mut log = self.log.lock().unwrap();
        let all = self.all();
        *log = Log { size: all.len() as u64, durable: all, since: Vec::new() };
        Ok(())
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        assert_eq!(mode, 3);
        let mut log = self.log.lock().unwrap();
        self.detect_size_change(&mut log);
        log.since.push(Done::Punch { offset, len });
        self.file.fallocate(cx, mode, offset, len)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.file.seek(cx, offset, whence)
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, from: u64, len: u64) -> Result<u64> {
        self.file.copy_from(cx, offset, source, from, len)
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        self.file.reflink_from(cx, source)
    }
}

fn open(codec: &Arc<dyn BlockCodec>, disk: &Arc<Disk>, hint: &str) -> Container {
    let file = Container::open(&CX, Arc::clone(codec), disk.vnode.clone(), disk.clone());
    file.unwrap_or_else(|e| panic!("{hint}: {e:?}, {:?}", disk.all().get(..600)))
}

/// Returns a block of a file, padded with zeros.
fn block(file: &[u8], at: usize) -> Vec<u8> {
    let size = BLOCK as usize;
    let start = (at * size).min(file.len());
    let mut block = file[start..(start + size).min(file.len())].to_vec();
    block.resize(size, 0);
    block
}

/// Checks the content after a failure. `files`: the durable content, and the content after each
/// change since.
fn check(seen: &[u8], files: &[Vec<u8>], hint: &str) {
    assert!(files.iter().any(|file| file.len() == seen.len()), "{hint}: {} bytes", seen.len());
    for at in 0..seen.len().div_ceil(BLOCK as usize) {
        let found = block(seen, at);
        let known = files.iter().any(|file| {
            // Beyond the durable size, any content the file had is valid, up to the size.
            let old = block(file, at);
            let end = seen.len() - at * BLOCK as usize;
            let cut = end.min(BLOCK as usize);
            old[..cut] == found[..cut]
        });
        assert!(known, "{hint}: block {at} was never written with this content");
    }
}

fn scenario(codec: &Arc<dyn BlockCodec>, seed: u64) {
    let mut random = Rng::new(seed);
    let mut disk = Disk::new(&MemFs::new());
    let mut bytes = Vec::new();
    let mut files = vec![bytes.clone()];
    for failure in 0..6 {
        let mut file = open(codec, &disk, "");
        let mut log = Vec::new();
        for _ in 0..random.below(12) {
            let change = random_change(&mut random, BLOCK, 40_000);
            let short: String = format!("{change:?}").chars().take(50).collect();
            log.push(short);
            change.apply(&file).unwrap_or_else(|e| panic!("seed {seed}, failure {failure}, {log:?}: {e:?}"));
            change.apply_to(&mut bytes);
            if change == Change::Sync {
                files.clear();
            }
            files.push(bytes.clone());
            if random.below(5) == 0 {
                file = open(codec, &disk, "");
                log.push("reopened".into());
            }
        }
        drop(file);
        disk = Disk::new(&disk.fail(&mut random));
        let hint = format!("seed {seed}, failure {failure}, {log:?}");
        let file = open(codec, &disk, &hint);
        let seen = contents(&file).unwrap_or_else(|e| panic!("{hint}: {e:?}"));
        check(&seen, &files, &hint);
        bytes = seen;
        files = vec![bytes.clone()];
    }
}

#[test]
fn each_block_is_the_durable_version_or_a_later_one() {
    for seed in std::iter::once(0).chain(testkit::seeds(199)) {
        scenario(&(Arc::new(Growing(BLOCK as u32)) as Arc<dyn BlockCodec>), seed);
        scenario(&(Arc::new(Runs(BLOCK as u32)) as Arc<dyn BlockCodec>), seed);
    }
}
