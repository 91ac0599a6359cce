//! Data behind a header in larger blocks: compared with a copy in memory, with faults and crashes
//! at every step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::crash::{fail_everywhere, fill_the_disk};
use crate::common::format::{Change, PUNCH, Summed, changes, layer, layout, open, prepared, read_all};
use conformance::fixture::{ROOT, name};
use memfs::{Count, Fault, Faults, MemFs, Plan};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use testkit::Rng;
use vnode::{Cx, Errno, Layer, OpenFile, OpenFlags, Result, SetAttr, Vnode, Whence};
use wrapfs::Template;
use wrapfs::hooks::{FileFormat, FormatBlock, Object};

#[test]
fn format_layers_conform() {
    for plain in [4096, 100, 65_536] {
        conformance::run_all(|| layer(MemFs::new(), plain));
    }
    conformance::run_all(|| layer(layer(MemFs::new(), 4096), 1000));
}

#[test]
fn zeroing_sets_the_mtime_everywhere() {
    for plain in [100, 4096, 65_536] {
        common::zeroing_sets_the_mtime(&*layer(MemFs::new(), plain));
    }
}

#[test]
fn random_changes_match_a_copy_in_memory() {
    for (seed, plain) in [(1, 100), (2, 4096), (3, 7), (4, 512), (5, 65_536), (6, 1)] {
        let below = MemFs::new();
        let mut mounted = layer(below.clone(), plain);
        let (mut vnode, mut file) = open(&mounted);
        let (mut random, mut bytes) = (Rng::new(seed), Vec::new());
        let plain = u64::from(plain);
        for step in 0..400 {
            let change = Change::random(&mut random, plain, 20 * plain);
            let done = change.apply(&*vnode, &*file).unwrap_or_else(|e| panic!("{seed} {step} {change:?}: {e:?}"));
            change.apply_to(&mut bytes, done);
            assert!(read_all(&*vnode, &*file).unwrap() == bytes, "{seed} {step} {change:?}");
            let stored = below.root().lookup(&ROOT, name("f")).unwrap().unwrap().attr.size;
            if !bytes.is_empty() {
                assert_eq!(stored, layout(plain as u32).stored_size(bytes.len() as u64), "{change:?}");
            }
            let (at, len) = (random.below(bytes.len() as u64 + plain), random.below(3 * plain) as usize);
            let mut out = vec![0xee; len];
            let n = file.read(&ROOT, &mut out, at).unwrap();
            let expected = bytes.get(at as usize..).unwrap_or_default();
            assert!(out[..n] == expected[..expected.len().min(len)], "{seed} {step}");
            check_holes(&*file, &bytes, at, plain);
            if random.below(10) == 0 {
                mounted = layer(below.clone(), plain as u32);
                (vnode, file) = open(&mounted);
            }
        }
    }
}

/// Checks that reported holes are zeros and that data is found.
fn check_holes(file: &dyn OpenFile, bytes: &[u8], at: u64, plain: u64) {
    let size = bytes.len() as u64;
    match (file.seek(&ROOT, at, Whence::Data), file.seek(&ROOT, at, Whence::Hole)) {
        (Err(Errno::NXIO), Err(Errno::NXIO)) => assert!(at >= size),
        (data, Ok(hole)) => {
            let data = data.unwrap_or(size);
            assert!(data >= at && hole >= at && data <= size && hole <= size);
            assert!(bytes[at as usize..data as usize].iter().all(|&byte| byte == 0));
            if hole < size {
                let end = ((hole / plain + 1) * plain).min(size);
                assert!(bytes[hole as usize..end as usize].iter().all(|&byte| byte == 0));
            }
        }
        other => panic!("{other:?} at {at} of {size}"),
    }
}

#[test]
fn holes_take_no_space() {
    let below = MemFs::new();
    let mounted = layer(below.clone(), 4096);
    let (vnode, file) = open(&mounted);
    file.write(&ROOT, b"end", 1 << 30).unwrap();
    let blocks = || below.root().lookup(&ROOT, name("f")).unwrap().unwrap().attr.blocks;
    assert!(blocks() <= 32, "{}", blocks());
    // The page that contains the header is not a hole below.
    assert_eq!(file.seek(&ROOT, 9000, Whence::Data), Ok(1 << 30));
    assert_eq!(file.seek(&ROOT, 9000, Whence::Hole), Ok(9000));
    file.write(&ROOT, &vec![5; 1 << 20], 0).unwrap();
    let full = blocks();
    file.fallocate(&ROOT, PUNCH, 5000, 900_000).unwrap();
    assert!(blocks() < full - 1700, "{} of {full}", blocks());
    assert_eq!(file.seek(&ROOT, 0, Whence::Hole), Ok(8192));
    assert_eq!(file.seek(&ROOT, 9000, Whence::Data), Ok(905_000 / 4096 * 4096));
    assert_eq!(vnode.getattr(&ROOT).unwrap().size, (1 << 30) + 3);
    assert_eq!(file.fallocate(&ROOT, 8, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(file.write(&ROOT, b"x", u64::MAX), Err(Errno::FBIG));
}

#[test]
fn files_are_copied_but_not_reflinked() {
    let mounted = layer(MemFs::new(), 100);
    let (_, file) = open(&mounted);
    let bytes: Vec<u8> = (0..3000).map(|i| i as u8).collect();
    file.write(&ROOT, &bytes, 0).unwrap();
    let (entry, copy) = mounted.root().create(&ROOT, name("copy"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(copy.copy_from(&ROOT, 50, &*file, 10, 5000), Ok(2990));
    assert!(read_all(&*entry.vnode, &*copy).unwrap()[50..] == bytes[10..]);
    assert_eq!(file.copy_from(&ROOT, 20, &*open(&mounted).1, 0, 99), Err(Errno::INVAL));
    assert_eq!(copy.reflink_from(&ROOT, &*file), Err(Errno::OPNOTSUPP));
    assert!(copy.backing().is_none());
}

/// The last block changes when a file is appended to, which an append-only file does not permit.
#[test]
fn a_file_with_blocks_cannot_be_made_append_only() {
    let (setflags, setxattr) = (0x4008_6602, 0x401c_5820);
    let mounted = layer(MemFs::new(), 100);
    let (vnode, _file) = open(&mounted);
    let set = |vnode: &dyn Vnode, cmd, flags: u32| {
        let input = [&flags.to_ne_bytes()[..], &[0; 24]].concat();
        vnode.ioctl(&ROOT, cmd, &input, &mut []).unwrap_err()
    };
    assert_eq!(set(&*vnode, setflags, 0x20), Errno::OPNOTSUPP);
    assert_eq!(set(&*vnode, setxattr, 0x10), Errno::OPNOTSUPP);
    // Others are left to the layer below, which has none here.
    assert_eq!(set(&*vnode, setflags, 0x10), Errno::NOTTY);
    assert_eq!(set(&*mounted.root(), setflags, 0x20), Errno::NOTTY);
    let plain = Template::over(MemFs::new()).paths().build().unwrap();
    assert_eq!(set(&*open(&plain).0, setflags, 0x20), Errno::NOTTY);
}

/// A header must not survive truncation to zero.
#[test]
fn a_truncated_file_gets_a_new_header() {
    let below = MemFs::new();
    let mounted = layer(below.clone(), 100);
    let (vnode, file) = open(&mounted);
    let header = || {
        let found = below.root().lookup(&ROOT, name("f")).unwrap().unwrap();
        let mut header = [0; 18];
        let len = found.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut header, 0).unwrap();
        (len, header)
    };
    assert_eq!(header().0, 0);
    file.write(&ROOT, b"one", 0).unwrap();
    let first = header();
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    vnode.setattr(&ROOT, &empty, None).unwrap();
    assert_eq!(header().0, 0);
    file.write(&ROOT, b"two", 0).unwrap();
    let second = header();
    let again = vnode.open(&ROOT, OpenFlags::RDWR.with_trunc()).unwrap();
    assert_eq!(header().0, 0);
    // Through a file that was already open.
    file.write(&ROOT, b"three", 0).unwrap();
    assert_eq!(read_all(&*vnode, &*again).unwrap(), b"three");
    assert!(first.1 != second.1 && second.1 != header().1 && first.0 == 18);
}

/// A damaged block returns an error, and no other block does.
#[test]
fn damage_affects_only_its_block() {
    let below = MemFs::new();
    let mounted = layer(below.clone(), 100);
    let (_, file) = open(&mounted);
    file.write(&ROOT, &[5; 1000], 0).unwrap();
    let raw = below.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
    raw.write(&ROOT, b"?", layout(100).start_of(4) + 50).unwrap();
    let mut out = [0; 100];
    for number in 0..10 {
        let expected = if number == 4 { Err(Errno::IO) } else { Ok(100) };
        assert_eq!(file.read(&ROOT, &mut out, number * 100), expected);
    }
    assert_eq!(file.read(&ROOT, &mut [0; 600], 0), Err(Errno::IO));
    // Writing fails only if the damaged block must be read first.
    assert_eq!(file.write(&ROOT, b"x", 410), Err(Errno::IO));
    assert_eq!(file.write(&ROOT, &[6; 100], 400), Ok(100));
    assert_eq!(file.read(&ROOT, &mut [0; 1000], 0), Ok(1000));
    // An invalid header.
    raw.write(&ROOT, &[0; 18], 0).unwrap();
    drop(file);
    let mounted = layer(below, 100);
    assert_eq!(open(&mounted).1.read(&ROOT, &mut out, 0), Err(Errno::IO));
}

#[test]
fn a_failure_at_any_step_changes_all_or_nothing() {
    for plain in [100, 5000] {
        let (start, old) = prepared(plain);
        fail_everywhere(&|below| layer(below, plain as u32), plain, (&start, &old));
    }
}

#[test]
fn a_crash_at_any_step_leaves_old_or_new_blocks() {
    let plain = 100;
    let (start, old) = prepared(plain);
    let mut runs = 0;
    for change in changes(plain) {
        let mut new = old.clone();
        change.apply_to(&mut new, None);
        for at in 1.. {
            let faults = Faults::new();
            let below = start.fork(&faults);
            let mounted = layer(below.clone(), plain as u32);
            let (vnode, file) = open(&mounted);
            faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
            let _answer = change.apply(&*vnode, &*file);
            let fired = faults.fired();
            let mounted = layer(below.recover(&Faults::new()), plain as u32);
            let (vnode, file) = open(&mounted);
            let size = vnode.getattr(&ROOT).unwrap().size;
            let (mut damaged, mut block) = (0, vec![0; plain as usize]);
            for number in 0..size.div_ceil(plain) {
                match file.read(&ROOT, &mut block, number * plain) {
                    Ok(len) => {
                        let is_of = |bytes: &[u8]| {
                            let start = (number * plain) as usize;
                            (0..len).all(|i| block[i] == bytes.get(start + i).copied().unwrap_or(0))
                        };
                        assert!(is_of(&old) || is_of(&new), "{change:?}, step {at}: block {number}");
                    }
                    Err(errno) => {
                        assert_eq!(errno, Errno::IO);
                        damaged += 1;
                    }
                }
            }
            // After truncation within a block, the block has its new bytes and the old length.
            let may_tear = matches!(change, Change::Truncate(size) if size % plain != 0 && (size as usize) < old.len());
            assert!(damaged <= u32::from(may_tear), "{change:?}, step {at}: {damaged} blocks");
            // The file remains usable.
            file.write(&ROOT, &[9; 350], size + 150).unwrap();
            let mut out = vec![0; 500];
            assert_eq!(file.read(&ROOT, &mut out, size + 150), Ok(350));
            runs += 1;
            if !fired {
                break;
            }
        }
    }
    assert!(runs > 50, "{runs}");
}

#[test]
fn a_full_disk_damages_nothing() {
    fill_the_disk(&|below| layer(below, 4096));
}

#[test]
fn readers_see_whole_writes() {
    const LEN: usize = 50_000;
    let mounted = layer(MemFs::new(), 1000);
    let (vnode, file) = open(&mounted);
    file.write(&ROOT, &[1; LEN], 0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = vec![0; LEN];
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(file.read(&ROOT, &mut out, 0), Ok(LEN));
                    assert!(out.iter().all(|&byte| byte == out[0]));
                }
            });
        }
        for round in 2..100 {
            vnode.open(&ROOT, OpenFlags::WRONLY).unwrap().write(&ROOT, &[round; LEN], 0).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A costly format: its blocks are processed on several threads.
#[derive(Debug, Default)]
struct Slow {
    threads: Arc<Mutex<HashSet<ThreadId>>>,
}

impl FileFormat for Slow {
    fn new_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        Summed.new_header(cx, file, header)
    }

    fn check_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &[u8]) -> Result<()> {
        Summed.check_header(cx, file, header)
    }

    fn encode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        self.threads.lock().unwrap().insert(std::thread::current().id());
        std::thread::sleep(Duration::from_micros(100));
        Summed.encode_block(cx, at, plain, stored)
    }

    fn decode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        self.threads.lock().unwrap().insert(std::thread::current().id());
        std::thread::sleep(Duration::from_micros(100));
        Summed.decode_block(cx, at, stored, plain)
    }
}

#[test]
fn costly_blocks_are_shared_between_threads() {
    let below = MemFs::new();
    let hook = Slow::default();
    let threads = Arc::clone(&hook.threads);
    let mounted = Template::over(below.clone()).format(layout(1000), hook).build().unwrap();
    let (vnode, file) = open(&mounted);
    let bytes: Vec<u8> = (0..300_777).map(|i| (i * 7 % 251) as u8).collect();
    for (at, len) in [(0, 300_777), (150, 100_000), (299_000, 1777), (5500, 200_001)] {
        file.write(&ROOT, &bytes[at..at + len], at as u64).unwrap();
    }
    assert!(read_all(&*vnode, &*file).unwrap() == bytes);
    let mut out = vec![0; 100_001];
    assert_eq!(file.read(&ROOT, &mut out, 77_777), Ok(100_001));
    assert!(out == bytes[77_777..177_778]);
    // Some helper thread has time at last, unless there is only one processor. After one that came
    // late, none is used for a while.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let end = Instant::now() + Duration::from_secs(20);
    while threads.lock().unwrap().len() < cpus.min(2) {
        assert!(Instant::now() < end, "no helper took part");
        assert_eq!(file.read(&ROOT, &mut out, 77_777), Ok(100_001));
    }
    // An error of one of the threads.
    let raw = below.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
    raw.write(&ROOT, b"?", layout(1000).start_of(123) + 50).unwrap();
    assert_eq!(file.read(&ROOT, &mut out, 77_777), Err(Errno::IO));
    assert_eq!(file.read(&ROOT, &mut out, 124_000), Ok(100_001));
}
