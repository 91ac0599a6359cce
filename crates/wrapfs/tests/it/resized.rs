//! Data of a different size: stat, truncate, append, holes and copies behave as for ordinary files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{Runs, memory};
use conformance::fixture::{ROOT, name};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use vnode::{Errno, Layer, OpenFile, OpenFlags, Result, SetAttr, SetTime, Time, Vnode, Whence};
use wrapfs::container::{BlockAt, BlockCodec};
use wrapfs::{Foreign, Template};

const APPEND: OpenFlags = OpenFlags(OpenFlags::WRONLY.0 | 0o2000);

fn resized(lower: Arc<dyn Layer>, foreign: Foreign) -> Arc<dyn Layer> {
    Template::over(lower).resizing(Arc::new(Runs), foreign).build().unwrap()
}

fn read_all(file: &dyn OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let len = file.read(&ROOT, &mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

/// Preallocation is not supported for files whose data changes its size.
#[test]
fn resizing_layers_conform() {
    for foreign in [Foreign::Plain, Foreign::Refuse] {
        conformance::run_all(|| resized(MemFs::new(), foreign));
    }
    conformance::run_all(|| resized(resized(MemFs::new(), Foreign::Refuse), Foreign::Refuse));
}

#[test]
fn zeroing_sets_the_mtime_everywhere() {
    common::zeroing_sets_the_mtime(&*resized(MemFs::new(), Foreign::Refuse));
}

#[test]
fn sizes_are_plain_sizes() {
    let below = MemFs::new();
    let layer = resized(below.clone(), Foreign::Refuse);
    let root = layer.root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDONLY).unwrap();
    assert_eq!(file.write(&ROOT, b"x", 0), Err(Errno::BADF));
    let writer = entry.vnode.open(&ROOT, APPEND).unwrap();
    writer.write(&ROOT, &[7; 100_000], 0).unwrap();
    writer.write(&ROOT, &[8; 5], 0).unwrap();
    assert_eq!(writer.read(&ROOT, &mut [0; 5], 0), Err(Errno::BADF));
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().size, 100_005);
    assert!(read_all(&*file).ends_with(&[7, 8, 8, 8, 8, 8]));
    drop((file, writer));
    assert_eq!(root.lookup(&ROOT, name("f")).unwrap().unwrap().attr.size, 100_005);
    // It is smaller below than its data.
    let lower = below.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert!(lower.attr.blocks * 512 < 50_000, "{} blocks", lower.attr.blocks);
    let again = resized(below, Foreign::Refuse);
    let found = again.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert_eq!(found.attr.size, 100_005);
    let cut = SetAttr { size: Some(3), mode: Some(0o600), ..SetAttr::default() };
    let attr = found.vnode.setattr(&ROOT, &cut, None).unwrap();
    assert_eq!((attr.size, attr.perm()), (3, 0o600));
    assert_eq!(read_all(&*found.vnode.open(&ROOT, OpenFlags::RDWR).unwrap()), [7, 7, 7]);
    found.vnode.open(&ROOT, OpenFlags::WRONLY.with_trunc()).unwrap();
    assert_eq!(found.vnode.getattr(&ROOT).unwrap().size, 0);
}

#[test]
fn ranges_can_be_zeroed_and_holes_found() {
    const PUNCH: u32 = 3;
    const ZERO: u32 = 0x10;
    let root = resized(MemFs::new(), Foreign::Plain).root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &[7; 10_000], 0).unwrap();
    file.fallocate(&ROOT, PUNCH, 4000, 5000).unwrap();
    file.fallocate(&ROOT, ZERO, 9_900, 200).unwrap();
    let mut expected = vec![7; 10_000];
    expected[4000..9000].fill(0);
    expected[9900..].fill(0);
    expected.resize(10_100, 0);
    assert!(read_all(&*file) == expected);
    assert_eq!(file.seek(&ROOT, 0, Whence::Hole), Ok(4096));
    assert_eq!(file.fallocate(&ROOT, 0, 0, 100), Err(Errno::OPNOTSUPP));
    let (_, copy) = root.create(&ROOT, name("copy"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(copy.copy_from(&ROOT, 50, &*file, 0, 1 << 20), Ok(10_100));
    assert!(read_all(&*copy)[50..] == expected);
    assert_eq!(
        file.copy_from(&ROOT, 10, &*entry.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap(), 0, 99),
        Err(Errno::INVAL)
    );
    assert_eq!(copy.reflink_from(&ROOT, &*file), Err(Errno::OPNOTSUPP));
}

/// A codec of which one method panics: `id`, `block_size`, `max_encoded`, or `max_encoded` for
/// other blocks than its own.
#[derive(Debug)]
struct Panics(&'static str);

impl Panics {
    fn check(&self, method: &str) {
        assert!(self.0 != method, "for this test");
    }
}

impl BlockCodec for Panics {
    fn id(&self) -> [u8; 8] {
        self.check("id");
        Runs.id()
    }
    fn block_size(&self) -> u32 {
        self.check("block_size");
        if self.0 == "other" { 2 * Runs.block_size() } else { Runs.block_size() }
    }
    fn max_encoded(&self, plain: usize) -> usize {
        self.check("max_encoded");
        assert!(self.0 != "other" || plain == 2 * Runs.block_size() as usize, "for this test");
        Runs.max_encoded(plain)
    }
    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        Runs.encode(at, plain, out)
    }
    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        Runs.decode(at, encoded, out)
    }
}

#[test]
fn a_codec_that_panics_causes_eio() {
    for method in ["id", "block_size", "max_encoded", "other"] {
        let below = MemFs::new();
        let (_, file) =
            resized(below.clone(), Foreign::Refuse).root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        file.write(&ROOT, b"data", 0).unwrap();
        drop(file);
        let (_, plain) = below.root().create(&ROOT, name("plain"), 0o644, OpenFlags::RDWR).unwrap();
        plain.write(&ROOT, b"plain", 0).unwrap();
        let root = Template::over(below).resizing(Arc::new(Panics(method)), Foreign::Plain).build().unwrap().root();
        let open = |at| root.lookup(&ROOT, name(at)).unwrap().unwrap().vnode.open(&ROOT, OpenFlags::RDWR);
        assert_eq!(open("f").map(|_| ()), Err(Errno::IO), "{method}");
        assert_eq!(read_all(&*open("plain").unwrap()), b"plain");
        let created = root.create(&ROOT, name("new"), 0o644, OpenFlags::RDWR).map(|_| ());
        assert_eq!(created, if method == "other" { Ok(()) } else { Err(Errno::IO) }, "{method}");
        assert_eq!(root.lookup(&ROOT, name("new")).unwrap().is_some(), method == "other");
    }
}

#[test]
fn files_that_are_not_containers_are_unchanged() {
    let below = MemFs::new();
    let (_, plain) = below.root().create(&ROOT, name("plain"), 0o644, OpenFlags::RDWR).unwrap();
    plain.write(&ROOT, b"as it is", 0).unwrap();
    let (_, zeros) = below.root().create(&ROOT, name("zeros"), 0o644, OpenFlags::RDWR).unwrap();
    zeros.write(&ROOT, &[0; 5000], 0).unwrap();
    for at in ["plain", "zeros"] {
        let found = resized(below.clone(), Foreign::Plain).root().lookup(&ROOT, name(at)).unwrap().unwrap();
        let lower = below.root().lookup(&ROOT, name(at)).unwrap().unwrap();
        assert_eq!(found.attr.size, lower.attr.size);
        let file = found.vnode.open(&ROOT, APPEND).unwrap();
        file.write(&ROOT, b" now", 0).unwrap();
        assert!(read_all(&*lower.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap()).ends_with(b" now"));
    }
    let refused = resized(below, Foreign::Refuse).root();
    let found = refused.lookup(&ROOT, name("plain")).unwrap().unwrap();
    assert_eq!(found.vnode.open(&ROOT, OpenFlags::RDWR).map(|_| ()), Err(Errno::MEDIUMTYPE));
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    assert_eq!(found.vnode.setattr(&ROOT, &cut, None), Err(Errno::MEDIUMTYPE));
    assert_eq!(found.attr.size, 12);
    refused.unlink(&ROOT, name("plain")).unwrap();
}

/// Updates of the container's metadata do not change the mtime.
#[test]
fn explicit_times_are_kept() {
    let root = resized(MemFs::new(), Foreign::Refuse).root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &[7; 10_000], 0).unwrap();
    let time = Time { sec: 1000, nsec: 5 };
    let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    entry.vnode.setattr(&ROOT, &set, Some(&*file)).unwrap();
    file.fsync(&ROOT, false).unwrap();
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().mtime, time);
    drop(file);
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().mtime, time);
}

type Change = fn(&Arc<dyn Vnode>, &Arc<dyn OpenFile>) -> Result<()>;

fn size(vnode: &dyn Vnode, size: u64) -> Result<()> {
    vnode.setattr(&ROOT, &SetAttr { size: Some(size), ..SetAttr::default() }, None).map(drop)
}

/// One change each, of a file of 10,000 bytes in blocks of 4,096, followed by fsync: data still in
/// memory may be lost.
const CHANGES: [(&str, Change); 9] = [
    ("write", |_, file| file.write(&ROOT, &[9; 50], 100).map(drop)),
    ("write all", |_, file| file.write(&ROOT, &[9; 10_000], 0).map(drop)),
    ("write over the end", |_, file| file.write(&ROOT, &[9; 5000], 9000).map(drop)),
    ("write far away", |_, file| file.write(&ROOT, &[9; 20], 50_000).map(drop)),
    ("cut", |vnode, _| size(&**vnode, 5000)),
    ("empty", |vnode, _| size(&**vnode, 0)),
    ("lengthen", |vnode, _| size(&**vnode, 50_000)),
    ("punch", |_, file| file.fallocate(&ROOT, 3, 1000, 8000)),
    ("zero", |_, file| file.fallocate(&ROOT, 0x10, 9000, 3000)),
];

fn content() -> Vec<u8> {
    (0..10_000_u32).map(|i| ((i * i) >> 9) as u8).collect()
}

fn start(faults: &Faults) -> (Arc<MemFs>, Arc<dyn Vnode>, Arc<dyn OpenFile>) {
    let below = memory(faults);
    let layer = resized(below.clone(), Foreign::Refuse);
    let (entry, file) = layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &content(), 0).unwrap();
    file.fsync(&ROOT, false).unwrap();
    (below, entry.vnode, file)
}

/// Returns the file's content as a new mount sees it. Its size must match.
fn after(below: Arc<dyn Layer>) -> Vec<u8> {
    let found = resized(below, Foreign::Refuse).root().lookup(&ROOT, name("f")).unwrap().unwrap();
    let bytes = read_all(&*found.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap());
    assert_eq!(found.vnode.getattr(&ROOT).unwrap().size, bytes.len() as u64);
    bytes
}

/// Returns the file before and after a change without faults.
fn outcome(change: Change) -> (Vec<u8>, Vec<u8>) {
    let (below, vnode, file) = start(&Faults::new());
    change(&vnode, &file).unwrap();
    file.fsync(&ROOT, false).unwrap();
    drop((vnode, file));
    (content(), after(below))
}

/// Whether each byte is an old or a new one, and the size lies between the old and the new one.
fn mixed(now: &[u8], old: &[u8], new: &[u8]) -> bool {
    let lengths = old.len().min(new.len())..=old.len().max(new.len());
    let known = |(i, byte): (usize, &u8)| [old, new].iter().any(|bytes| *byte == bytes.get(i).copied().unwrap_or(0));
    lengths.contains(&now.len()) && now.iter().enumerate().all(known)
}

/// After any failure, the error is reported at once or by fsync, the open file and a new mount
/// return old and new bytes, and the file can be written.
#[test]
fn a_failure_at_any_step_leaves_old_and_new_bytes() {
    for (what, change) in CHANGES {
        let (old, new) = outcome(change);
        for fault in [Fault::Error(Errno::IO), Fault::Errors(Errno::NOSPC)] {
            for at in 1.. {
                let faults = Faults::new();
                let (below, vnode, file) = start(&faults);
                faults.arm(Plan { count: Count::All, at, fault });
                let answer = change(&vnode, &file).and_then(|()| file.fsync(&ROOT, false));
                let fired = faults.fired();
                faults.disarm();
                let now = read_all(&*file);
                let when = format!("{what}, {fault:?} at {at}: {answer:?}, {} bytes", now.len());
                assert!(mixed(&now, &old, &new), "{when}");
                assert!(answer.is_err() || now == new, "{when}");
                assert!(fired || answer.is_ok(), "{when}");
                file.write(&ROOT, b"still writable", 0).unwrap();
                file.fsync(&ROOT, false).unwrap();
                drop((vnode, file));
                let mut expected = now;
                expected.resize(expected.len().max(14), 0);
                expected[..14].copy_from_slice(b"still writable");
                assert!(after(below) == expected, "{when}");
                if !fired {
                    break;
                }
            }
        }
    }
}

/// After a crash, the size lies between the old and the new one, and the bytes are old and new
/// ones.
#[test]
fn a_crash_at_any_step_leaves_old_and_new_bytes() {
    for (what, change) in CHANGES {
        let (old, new) = outcome(change);
        for at in 1.. {
            let faults = Faults::new();
            let (below, vnode, file) = start(&faults);
            faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
            let answer = change(&vnode, &file).and_then(|()| file.fsync(&ROOT, false));
            let crashed = faults.crashed();
            drop((vnode, file));
            let now = after(below.recover(&Faults::new()));
            let when = format!("{what}, crash at {at}: {answer:?}, {} bytes", now.len());
            assert!(mixed(&now, &old, &new) && (answer.is_err() || now == new), "{when}");
            if !crashed {
                break;
            }
        }
    }
}

fn blocks(below: &MemFs) -> u64 {
    below.root().lookup(&ROOT, name("f")).unwrap().unwrap().attr.blocks
}

/// After fsync(2), or after the last close without one, a file takes about as much space as a fresh
/// copy, and its mtime is that of the last change.
#[test]
fn dead_space_is_reclaimed_at_fsync_and_last_close() {
    const LEN: usize = 2 << 20;
    for synced in [true, false] {
        let below = MemFs::new();
        let root = resized(below.clone(), Foreign::Refuse).root();
        let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        let noise: Vec<u8> = (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        file.write(&ROOT, &noise, 0).unwrap();
        drop(file);
        let full = blocks(&below);
        let file = entry.vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
        let other = entry.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap();
        file.write(&ROOT, &vec![3; LEN], 0).unwrap();
        let time = Time { sec: 1000, nsec: 5 };
        let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
        entry.vnode.setattr(&ROOT, &set, None).unwrap();
        if synced {
            file.fsync(&ROOT, false).unwrap();
            assert!(blocks(&below) < full / 5, "{} of {full}", blocks(&below));
        }
        drop(file);
        assert!(synced || blocks(&below) > full, "not before the last close");
        drop(other);
        assert!(blocks(&below) < full / 5, "{} of {full}", blocks(&below));
        let attr = entry.vnode.getattr(&ROOT).unwrap();
        assert_eq!((attr.mtime, attr.size), (time, LEN as u64));
        let mut out = vec![0; LEN];
        assert_eq!(entry.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut out, 0), Ok(LEN));
        assert!(out == vec![3; LEN]);
    }
}

/// Many threads open, overwrite and close one file at the same time.
#[test]
fn files_are_opened_during_reclamation() {
    let below = MemFs::new();
    let layer = resized(below.clone(), Foreign::Refuse);
    let (entry, file) = layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &[1; 1 << 20], 0).unwrap();
    drop(file);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let vnode = &entry.vnode;
            scope.spawn(move || {
                for round in 0..40u64 {
                    let file = vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
                    let at = thread * (256 << 10);
                    let data: Vec<u8> = (0..256u64 << 10).map(|i| ((i * (round + 7)) >> 3) as u8).collect();
                    file.write(&ROOT, &data, at).unwrap();
                    let mut out = vec![0; data.len()];
                    assert_eq!(file.read(&ROOT, &mut out, at), Ok(data.len()));
                    assert!(out == data, "thread {thread}, round {round}");
                    if round % 7 == thread {
                        file.fsync(&ROOT, true).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().size, 1 << 20);
    let (_, copy) = layer.root().create(&ROOT, name("copy"), 0o644, OpenFlags::RDWR).unwrap();
    copy.copy_from(&ROOT, 0, &*entry.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap(), 0, 1 << 20).unwrap();
    drop(copy);
    let fresh = below.root().lookup(&ROOT, name("copy")).unwrap().unwrap().attr.blocks;
    assert!(blocks(&below) <= fresh * 5 / 4 + 256, "{} and {fresh}", blocks(&below));
}

/// What was cut off can't be brought back, so the change of times must not fail it.
#[test]
fn a_failed_truncation_keeps_the_file() {
    for (size, flags) in [(3, None), (70_000, None), (200_000, None), (0, Some(OpenFlags::RDWR.with_trunc()))] {
        for at in 1.. {
            let faults = Faults::new();
            let layer = resized(MemFs::with(MemOptions::default(), &faults), Foreign::Refuse);
            let (entry, file) = layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
            let mut old: Vec<u8> = (0..100_000_u32).map(|i| (i / 100) as u8).collect();
            file.write(&ROOT, &old, 0).unwrap();
            faults.arm(Plan { count: Count::Changes, at, fault: Fault::Error(Errno::NOSPC) });
            let cut = SetAttr { size: Some(size), mode: Some(0o600), ..SetAttr::default() };
            let done = match flags {
                None => entry.vnode.setattr(&ROOT, &cut, None).map(|_| ()),
                Some(flags) => entry.vnode.open(&ROOT, flags).map(|_| ()),
            };
            let fired = faults.fired();
            faults.disarm();
            if done.is_ok() {
                old.resize(size as usize, 0);
            }
            assert!(read_all(&*file) == old, "{size}, {flags:?}, step {at}: {done:?}");
            if !fired {
                break;
            }
        }
    }
}
