//! Data of the same size: reads return what was written, for any codec and block size and after any
//! failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{Chain, Failing, FailurePlan, memory};
use conformance::fixture::{ROOT, name};
use memfs::{Count, Dump, Fault, Faults, MemFs, Plan};
use proptest::prelude::*;
use std::sync::Arc;
use vnode::{Cx, Errno, Layer, OpenFile, OpenFlags, Result, SetAttr, Vnode, Whence};
use wrapfs::Template;
use wrapfs::hooks::{Block, Data, Object};

const BLOCKS: [usize; 6] = [1, 7, 512, 4096, 65_536, 1 << 20];
const PUNCH: u32 = 3;
const ZERO: u32 = 0x10;
const KEEP_SIZE: u32 = 1;
const APPEND: OpenFlags = OpenFlags(OpenFlags::WRONLY.0 | 0o2000);

fn chained(lower: Arc<dyn Layer>, block: usize) -> Arc<dyn Layer> {
    Template::over(lower).data(Chain(block)).build().unwrap()
}

fn create(layer: &dyn Layer, at: &str, flags: OpenFlags) -> (Arc<dyn Vnode>, Arc<dyn OpenFile>) {
    let (entry, file) = layer.root().create(&ROOT, name(at), 0o644, flags).unwrap();
    (entry.vnode, file)
}

fn read_all(file: &dyn OpenFile) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4 << 20];
    let len = file.read(&ROOT, &mut bytes, 0)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn data_layers_conform() {
    for block in BLOCKS {
        conformance::run_all(|| chained(MemFs::new(), block));
    }
}

#[test]
fn zeroing_sets_the_mtime_everywhere() {
    for block in BLOCKS {
        common::zeroing_sets_the_mtime(&*chained(MemFs::new(), block));
    }
}

#[test]
fn random_operations_see_no_difference() {
    for (seed, block) in (1..).zip(BLOCKS) {
        conformance::random::compare(seed, 2000, &*chained(MemFs::new(), block), &*MemFs::new());
    }
}

#[test]
fn a_template_over_a_template() {
    conformance::run_all(|| chained(chained(MemFs::new(), 512), 7));
    conformance::random::compare(9, 2000, &*chained(chained(MemFs::new(), 4096), 1000), &*MemFs::new());
}

#[test]
fn stored_data_is_encoded_and_has_the_same_size() {
    let below = MemFs::new();
    let (_, file) = create(&*chained(below.clone(), 512), "f", OpenFlags::WRONLY);
    let plain = content(5000);
    file.write(&ROOT, &plain, 0).unwrap();
    let lower = below.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    let stored = read_all(&*lower.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap()).unwrap();
    assert_eq!(stored.len(), plain.len());
    assert!(stored.chunks(512).zip(plain.chunks(512)).all(|(a, b)| a != b));
    assert_eq!(file.read(&ROOT, &mut [0; 9], 0), Err(Errno::BADF));
}

/// Every byte value in one-byte blocks, and blocks of zeros: encodings of all zeros are not
/// special.
#[test]
fn every_block_can_be_stored() {
    for block in [1, 2, 3] {
        let (_, file) = create(&*chained(MemFs::new(), block), "f", OpenFlags::RDWR);
        let plain: Vec<u8> = (0..=255u8).cycle().take(100_000).collect();
        file.write(&ROOT, &plain, 0).unwrap();
        assert_eq!(read_all(&*file).unwrap(), plain);
    }
}

#[test]
fn holes_stay_holes() {
    let below = MemFs::new();
    let layer = chained(below.clone(), 4096);
    let (vnode, file) = create(&*layer, "f", OpenFlags::RDWR);
    file.write(&ROOT, b"begin", 0).unwrap();
    file.write(&ROOT, b"end", 1 << 20).unwrap();
    assert_eq!(vnode.getattr(&ROOT).unwrap().blocks, 16);
    assert_eq!(file.seek(&ROOT, 0, Whence::Hole), Ok(4096));
    assert_eq!(file.seek(&ROOT, 5000, Whence::Hole), Ok(5000));
    assert_eq!(file.seek(&ROOT, 5000, Whence::Data), Ok(1 << 20));
    assert_eq!(file.seek(&ROOT, 1 << 20, Whence::Hole), Ok((1 << 20) + 3));
    file.fallocate(&ROOT, PUNCH, 0, 4096).unwrap();
    assert_eq!(file.seek(&ROOT, 0, Whence::Data), Ok(1 << 20));
    vnode.setattr(&ROOT, &size(1 << 30), None).unwrap();
    assert_eq!(vnode.getattr(&ROOT).unwrap().blocks, 8);
    assert_eq!(file.seek(&ROOT, 2 << 20, Whence::Data), Err(Errno::NXIO));
    // Blocks larger than pages: a block is data if any of its pages is.
    let (_, file) = create(&*chained(below, 65_536), "g", OpenFlags::RDWR);
    file.write(&ROOT, &[7; 65_536], 131_072).unwrap();
    assert_eq!(file.seek(&ROOT, 0, Whence::Hole), Ok(0));
    assert_eq!(file.seek(&ROOT, 10, Whence::Data), Ok(131_072));
    assert_eq!(file.seek(&ROOT, 140_000, Whence::Hole), Ok(196_608));
}

#[test]
fn unsupported_operations_are_refused() {
    const COLLAPSE: u32 = 8;
    const INSERT: u32 = 0x20;
    let options = memfs::MemOptions { reflink: true, ..memfs::MemOptions::default() };
    let layer = chained(MemFs::with(options, &Faults::new()), 4096);
    let (_, a) = create(&*layer, "a", OpenFlags::RDWR);
    let (_, b) = create(&*layer, "b", OpenFlags::RDWR);
    assert_eq!(a.reflink_from(&ROOT, &*b), Err(Errno::OPNOTSUPP));
    assert_eq!(a.fallocate(&ROOT, COLLAPSE, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(a.fallocate(&ROOT, INSERT, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(a.fallocate(&ROOT, 0, u64::MAX, 2), Err(Errno::FBIG));
    assert_eq!(a.write(&ROOT, b"x", i64::MAX as u64), Err(Errno::FBIG));
    assert_eq!(a.read(&ROOT, &mut [0; 5], u64::MAX), Ok(0));
}

/// Files that the hook does not transform behave like those of the layer below: passthrough and
/// reflinks work.
#[test]
fn untransformed_files_are_passed_through() {
    #[derive(Debug)]
    struct Private(Chain);
    impl Data for Private {
        fn block_size(&self) -> usize {
            self.0.block_size()
        }
        fn applies(&self, cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
            Ok(file.attr(cx)?.perm() & 0o077 == 0)
        }
        fn encode_data(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
            self.0.encode_data(cx, at, plain, encoded)
        }
        fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
            self.0.decode_data(cx, at, encoded, plain)
        }
    }
    let below = MemFs::new();
    let layer = Template::over(below.clone()).data(Private(Chain(4096))).build().unwrap();
    let stored = |at: &str| {
        let lower = below.root().lookup(&ROOT, name(at)).unwrap().unwrap().vnode;
        read_all(&*lower.open(&ROOT, OpenFlags::RDONLY).unwrap()).unwrap()
    };
    let plain = content(10_000);
    for (at, mode, is_plain) in [("open", 0o644, true), ("private", 0o600, false)] {
        let (_, file) = layer.root().create(&ROOT, name(at), mode, APPEND).unwrap();
        file.write(&ROOT, &plain[..5000], 0).unwrap();
        file.write(&ROOT, &plain[5000..], 0).unwrap();
        assert_eq!(file.read(&ROOT, &mut [0; 9], 0), Err(Errno::BADF));
        assert_eq!(stored(at) == plain, is_plain, "{at}");
    }
    // Copies decode on one side and encode on the other.
    let open = |at: &str| {
        let vnode = layer.root().lookup(&ROOT, name(at)).unwrap().unwrap().vnode;
        vnode.open(&ROOT, OpenFlags::RDWR).unwrap()
    };
    assert_eq!(open("open").copy_from(&ROOT, 10_000, &*open("private"), 1, 999), Ok(999));
    assert_eq!(stored("open")[10_000..], plain[1..1000]);
    assert_eq!(open("private").copy_from(&ROOT, 3, &*open("open"), 0, 99_999), Ok(10_999));
    assert_eq!(read_all(&*open("private")).unwrap()[3..10_003], plain);
}

#[test]
fn concurrent_readers_and_writers_see_whole_blocks() {
    const BLOCK: usize = 1000;
    let layer = chained(MemFs::new(), BLOCK);
    let (vnode, file) = create(&*layer, "f", OpenFlags::RDWR);
    file.write(&ROOT, &[1; 20 * BLOCK], 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=3u8 {
            let vnode = &vnode;
            scope.spawn(move || {
                let file = vnode.open(&ROOT, OpenFlags::WRONLY).unwrap();
                for round in 0..300usize {
                    // Not aligned to blocks: each write covers one or two of them.
                    file.write(&ROOT, &[thread; 600], (round * 331 % (19 * BLOCK)) as u64).unwrap();
                }
            });
        }
        scope.spawn(|| {
            let file = vnode.open(&ROOT, OpenFlags::RDONLY).unwrap();
            for _ in 0..300 {
                assert!(read_all(&*file).unwrap().iter().all(|byte| (1..=3).contains(byte)));
            }
        });
    });
}

#[test]
fn concurrent_appends_are_all_kept() {
    let layer = chained(MemFs::new(), 7);
    let (vnode, _) = create(&*layer, "f", OpenFlags::RDWR);
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let vnode = &vnode;
            scope.spawn(move || {
                let file = vnode.open(&ROOT, APPEND).unwrap();
                (0..100).for_each(|_| assert_eq!(file.write(&ROOT, &[thread; 5], 0), Ok(5)));
            });
        }
    });
    let all = read_all(&*vnode.open(&ROOT, OpenFlags::RDONLY).unwrap()).unwrap();
    assert_eq!(all.len(), 2000);
    assert!(all.chunks(5).all(|five| five.iter().all(|byte| *byte == five[0])));
}

/// A change of a file.
#[derive(Clone, Debug)]
enum Change {
    Write(u64, usize, u8),
    Append(usize, u8),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Allocate(u64, u64, bool),
    Copy(u64, u64, u64),
}

impl Change {
    fn do_to(&self, vnode: &dyn Vnode, file: &dyn OpenFile) -> Result<()> {
        let keep = |keep: bool| if keep { KEEP_SIZE } else { 0 };
        match *self {
            Self::Write(at, len, byte) => file.write(&ROOT, &bytes(len, byte), at).map(|n| assert_eq!(n, len)),
            Self::Append(len, byte) => {
                vnode.open(&ROOT, APPEND)?.write(&ROOT, &bytes(len, byte), 0).map(|n| assert_eq!(n, len))
            }
            Self::Truncate(to) => vnode.setattr(&ROOT, &size(to), Some(file).filter(|_| to % 2 == 0)).map(|_| ()),
            Self::Punch(at, len) => file.fallocate(&ROOT, PUNCH, at, len),
            Self::Zero(at, len, keeps) => file.fallocate(&ROOT, ZERO | keep(keeps), at, len),
            Self::Allocate(at, len, keeps) => file.fallocate(&ROOT, keep(keeps), at, len),
            Self::Copy(to, from, len) => {
                // Like the kernel, which never requests more than exists.
                let len = len.min(vnode.getattr(&ROOT)?.size.saturating_sub(from));
                file.copy_from(&ROOT, to, file, from, len).map(|copied| assert_eq!(copied, len))
            }
        }
    }

    fn do_to_shadow(&self, shadow: &mut Vec<u8>) {
        let grow = |shadow: &mut Vec<u8>, end: usize| shadow.resize(shadow.len().max(end), 0);
        let zero = |shadow: &mut Vec<u8>, at: u64, len: u64| {
            let (from, to) = ((at as usize).min(shadow.len()), ((at + len) as usize).min(shadow.len()));
            shadow[from..to].fill(0);
        };
        match *self {
            Self::Write(at, len, byte) if len > 0 => {
                grow(shadow, at as usize + len);
                shadow[at as usize..][..len].copy_from_slice(&bytes(len, byte));
            }
            Self::Write(..) => {}
            Self::Append(len, byte) => shadow.extend(bytes(len, byte)),
            Self::Truncate(to) => shadow.resize(to as usize, 0),
            Self::Punch(at, len) => zero(shadow, at, len),
            Self::Zero(at, len, keeps) => {
                if !keeps {
                    grow(shadow, (at + len) as usize);
                }
                zero(shadow, at, len);
            }
            Self::Allocate(at, len, false) => grow(shadow, (at + len) as usize),
            Self::Allocate(..) => {}
            Self::Copy(to, from, len) => {
                let len = len.min((shadow.len() as u64).saturating_sub(from));
                if len > 0 && to.abs_diff(from) >= len {
                    let copied = shadow[from as usize..(from + len) as usize].to_vec();
                    grow(shadow, (to + len) as usize);
                    shadow[to as usize..(to + len) as usize].copy_from_slice(&copied);
                }
            }
        }
    }
}

/// Bytes, some of them zeros.
fn bytes(len: usize, byte: u8) -> Vec<u8> {
    if byte < 64 { vec![0; len] } else { (0..len).map(|i| byte.wrapping_add((i / 3) as u8)).collect() }
}

/// Offsets and lengths up to a few blocks, many at block boundaries.
fn offset(block: u64) -> impl Strategy<Value = u64> {
    let most = (block * 5).clamp(40, 3 << 20);
    prop_oneof![0..most, (0..most / block + 1).prop_map(move |n| n * block)]
}

fn change(block: u64) -> impl Strategy<Value = Change> {
    let at = || offset(block);
    let len = || offset(block).prop_map(|len| len.max(1));
    prop_oneof![
        4 => (at(), at(), any::<u8>()).prop_map(|(at, len, byte)| Change::Write(at, len as usize, byte)),
        1 => (at(), any::<u8>()).prop_map(|(len, byte)| Change::Append(len as usize / 3, byte)),
        2 => at().prop_map(Change::Truncate),
        1 => (at(), len()).prop_map(|(at, len)| Change::Punch(at, len)),
        1 => (at(), len(), any::<bool>()).prop_map(|(at, len, keep)| Change::Zero(at, len, keep)),
        1 => (at(), len(), any::<bool>()).prop_map(|(at, len, keep)| Change::Allocate(at, len, keep)),
        1 => (at(), at(), len()).prop_map(|(to, from, len)| Change::Copy(to, from, len)),
    ]
}

fn changes() -> impl Strategy<Value = (usize, Vec<Change>)> {
    proptest::sample::select(&BLOCKS[..]).prop_flat_map(|block| {
        let most = if block > 100_000 { 6 } else { 25 };
        (Just(block), proptest::collection::vec(change(block as u64), 1..most))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_changes_leave_what_they_leave_in_a_shadow((block, changes) in changes()) {
        let layer = chained(MemFs::new(), block);
        let (vnode, file) = create(&*layer, "f", OpenFlags::RDWR);
        let mut shadow = Vec::new();
        for change in &changes {
            match change.do_to(&*vnode, &*file) {
                Ok(()) => change.do_to_shadow(&mut shadow),
                Err(errno) => prop_assert!(matches!(change, Change::Copy(..)) && errno == Errno::INVAL),
            }
            prop_assert_eq!(vnode.getattr(&ROOT).unwrap().size, shadow.len() as u64, "{:?}", change);
            let mut now = vec![1; shadow.len() + 1];
            prop_assert_eq!(file.read(&ROOT, &mut now, 0), Ok(shadow.len()));
            prop_assert!(now[..shadow.len()] == shadow[..], "after {change:?}");
            let (from, len) = (shadow.len() / 3, shadow.len() / 5 + 1);
            let mut part = vec![1; len];
            let got = file.read(&ROOT, &mut part, from as u64).unwrap();
            prop_assert!(part[..got] == shadow[from..(from + len).min(shadow.len())]);
        }
    }

    /// A codec that fails or panics at times: the program gets an errno, and unchanged data is
    /// still intact.
    #[test]
    fn failing_hooks_damage_nothing((block, changes) in changes(), seed in any::<u64>()) {
        common::quietly();
        let layer = Template::over(MemFs::new()).data(Failing(Chain(block.max(512)), FailurePlan::of(seed))).build().unwrap();
        let (vnode, file) = create(&*layer, "f", OpenFlags::RDWR);
        let mut shadow = Vec::new();
        for change in changes.iter().filter(|change| !matches!(change, Change::Copy(..))) {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change.do_to(&*vnode, &*file)));
            match done {
                Ok(Ok(())) => change.do_to_shadow(&mut shadow),
                Ok(Err(errno)) => prop_assert!(matches!(errno, Errno::IO | Errno::DQUOT), "{errno}"),
                // A write that was cut short between two parts.
                Err(_) => return Ok(()),
            }
            let mut now = vec![1; shadow.len() + 1];
            match file.read(&ROOT, &mut now, 0) {
                Ok(len) => prop_assert!(now[..len] == shadow[..], "after {change:?}"),
                Err(errno) => prop_assert!(matches!(errno, Errno::IO | Errno::DQUOT)),
            }
        }
    }
}

/// One change each, of a file of 2,500 bytes in blocks of 1,000.
const CHANGES: [Change; 14] = [
    Change::Write(100, 50, 99),
    Change::Write(0, 2500, 99),
    Change::Write(2400, 700, 99),
    Change::Write(700, 900, 99),
    Change::Write(5100, 20, 99),
    Change::Append(10, 99),
    Change::Truncate(1500),
    Change::Truncate(2000),
    Change::Truncate(2700),
    Change::Truncate(5500),
    Change::Punch(500, 1800),
    Change::Zero(1200, 3000, false),
    Change::Zero(2600, 100, false),
    Change::Allocate(2600, 100, false),
];

type Start = (Arc<dyn Layer>, Arc<dyn Vnode>, Arc<dyn OpenFile>);

fn start(faults: &Faults) -> Start {
    let layer = chained(memory(faults), 1000);
    let (vnode, file) = create(&*layer, "f", OpenFlags::RDWR);
    file.write(&ROOT, &content(2500), 0).unwrap();
    (layer, vnode, file)
}

fn view(layer: &dyn Layer) -> Dump {
    Dump::of(layer).unwrap().without_times()
}

/// After an error the file is as before; after success it is as it should be, except for
/// allocation.
#[test]
fn a_failure_at_any_step_changes_all_or_nothing() {
    for change in CHANGES {
        let (layer, vnode, file) = start(&Faults::new());
        let old = view(&*layer);
        change.do_to(&*vnode, &*file).unwrap();
        let new = view(&*layer);
        assert_ne!(old, new, "{change:?}");
        for count in [Count::All, Count::Changes] {
            for at in 1.. {
                let faults = Faults::new();
                let (layer, vnode, file) = start(&faults);
                faults.arm(Plan { count, at, fault: Fault::Error(Errno::NOSPC) });
                let answer = change.do_to(&*vnode, &*file);
                let fired = faults.fired();
                faults.disarm();
                let expected = if answer.is_ok() { &new } else { &old };
                let differences = view(&*layer).differences(expected);
                assert!(differences.is_empty(), "{change:?}, fault at {at}: {answer:?}\n{differences}");
                if !fired {
                    break;
                }
            }
        }
    }
}

/// On a full file system, a write writes as many whole blocks as fit and leaves the rest unchanged.
#[test]
fn a_full_file_system_leaves_whole_blocks() {
    for block in [100, 4096, 10_000, 65_536] {
        for pages in 1..24 {
            let below = memory(&Faults::new());
            let layer = chained(below.clone(), block);
            let (vnode, file) = create(&*layer, "f", OpenFlags::RDWR);
            let old = content(6000);
            file.write(&ROOT, &old, 0).unwrap();
            below.set_space(pages * 4096);
            let new = vec![9; 80_000];
            let answer = file.write(&ROOT, &new, 6000);
            let mut expected = old.clone();
            match answer {
                Ok(len) => expected.extend(&new[..len]),
                Err(errno) => assert_eq!(errno, Errno::NOSPC),
            }
            let now = read_all(&*file).unwrap();
            assert!(now == expected, "blocks of {block}, {pages} pages: {answer:?}, {} bytes", now.len());
            assert_eq!(vnode.getattr(&ROOT).unwrap().size, expected.len() as u64);
            // Far beyond the end: the gap is not created either.
            let far = file.write(&ROOT, &new, 1_000_000);
            if far.is_err() {
                assert!(read_all(&*file).unwrap() == expected, "blocks of {block}, {pages} pages: {far:?}");
            }
        }
    }
}

/// After a crash every byte is the old or the new one, except in the block that the docs name, and
/// the size lies between the old and the new one.
#[test]
fn a_crash_at_any_step_leaves_old_and_new_bytes() {
    for change in CHANGES {
        let (_, vnode, file) = start(&Faults::new());
        change.do_to(&*vnode, &*file).unwrap();
        let (old, new) = (content(2500), read_all(&*file).unwrap());
        // A truncated block is re-encoded before the rest is removed.
        let block = new.len() / 1000 * 1000;
        let damaged = if new.len() < old.len() { block..block + 1000 } else { 0..0 };
        for at in 1.. {
            let faults = Faults::new();
            let below = memory(&faults);
            let (vnode, file) = create(&*chained(below.clone(), 1000), "f", OpenFlags::RDWR);
            file.write(&ROOT, &old, 0).unwrap();
            faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
            let answer = change.do_to(&*vnode, &*file);
            let after = chained(below.recover(&Faults::new()), 1000);
            let found = after.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
            let now = read_all(&*found.open(&ROOT, OpenFlags::RDONLY).unwrap()).unwrap();
            let (short, long) = (old.len().min(new.len()), old.len().max(new.len()));
            assert!((short..=long).contains(&now.len()), "{change:?}, crash at {at}: {} bytes", now.len());
            for (i, byte) in now.iter().enumerate().filter(|(i, _)| !damaged.contains(i)) {
                let possible = [old.get(i).unwrap_or(&0), new.get(i).unwrap_or(&0)];
                assert!(possible.contains(&byte), "{change:?}, crash at {at}: byte {i}");
            }
            if !faults.crashed() {
                assert!(answer.is_ok() && now == new);
                break;
            }
        }
    }
}
