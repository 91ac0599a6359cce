//! Crashes and failures at every step of a change of a file with blocks.

use super::format::{Change, changes, open, prepared_with, read_all};
use conformance::fixture::{ROOT, name};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::sync::Arc;
use wrapfs::vnode::{Errno, Layer, MAY_BLOCK};

/// Mounts a layer with a format.
pub(crate) type Mount<'a> = &'a dyn Fn(Arc<MemFs>) -> Arc<dyn Layer>;

/// Checks that each block is an old or a new one, or zeros between the two sizes.
pub(crate) fn check(mounted: &Arc<dyn Layer>, plain: u64, (old, new): (&[u8], &[u8]), what: &str) -> u64 {
    let (vnode, file) = open(mounted);
    let size = vnode.getattr(&ROOT).unwrap().size;
    assert!(size <= old.len().max(new.len()) as u64, "{what}: {size} bytes");
    let mut block = vec![0; plain as usize];
    for number in 0..size.div_ceil(plain) {
        let len =
            file.read(&ROOT, &mut block, number * plain).unwrap_or_else(|e| panic!("{what}: block {number}: {e}"));
        let start = (number * plain) as usize;
        let is_of = |bytes: &[u8]| (0..len).all(|i| block[i] == bytes.get(start + i).copied().unwrap_or(0));
        assert!(is_of(old) || is_of(new), "{what}: block {number}");
    }
    size
}

/// Crashes at every change below, and in the middle of every write. Calls `then` with what a new
/// server finds.
pub(crate) fn crash_everywhere(
    mount: Mount<'_>,
    change: &Change,
    start: &Arc<MemFs>,
    mut then: impl FnMut(Arc<MemFs>, &str),
) {
    let faults = [
        Fault::Crash,
        Fault::CrashInWrite { pages: 1 },
        Fault::CrashInWrite { pages: 2 },
        Fault::CrashInWrite { pages: 4 },
        Fault::CrashInWrite { pages: 9 },
    ];
    for fault in faults {
        for at in 1.. {
            let plan = Faults::new();
            let below = start.fork(&plan);
            let mounted = mount(below.clone());
            let (vnode, file) = open(&mounted);
            plan.arm(Plan { count: Count::Changes, at, fault });
            let answer = change.apply(&*vnode, &*file);
            let fired = plan.fired();
            then(below.recover(&Faults::new()), &format!("{change:?}, {fault:?} at {at}"));
            if !fired {
                answer.unwrap();
                break;
            }
        }
    }
}

/// Fails at every step of a change, and crashes at every change below from there on: also while the
/// failed change is undone. Calls `then` with what a new server finds.
pub(crate) fn fail_and_crash_everywhere(
    mount: Mount<'_>,
    change: &Change,
    start: &Arc<MemFs>,
    mut then: impl FnMut(Arc<MemFs>, &str),
) {
    let errors = [Fault::Error(Errno::NOSPC), Fault::ShortWrite { pages: 1, errno: Errno::NOSPC }];
    let crashes = [Fault::Crash, Fault::CrashInWrite { pages: 1 }];
    for (error, crash) in errors.into_iter().flat_map(|error| crashes.map(|crash| (error, crash))) {
        for step in 1.. {
            let mut fired = false;
            for at in 1.. {
                let plan = Faults::new();
                let below = start.fork(&plan);
                let mounted = mount(below.clone());
                let (vnode, file) = open(&mounted);
                let of_changes = |at, fault| Plan { count: Count::Changes, at, fault };
                plan.arm_both(of_changes(step, error), of_changes(at, crash));
                let _answer = change.apply(&*vnode, &*file);
                fired |= plan.fired();
                if !plan.crashed() {
                    break;
                }
                let what = format!("{change:?}, {error:?} at {step}, {crash:?} {at} later");
                then(below.recover(&Faults::new()), &what);
            }
            if !fired {
                break;
            }
        }
    }
}

/// Fails at every step of every change. The file is then as before, or as after a short write.
pub(crate) fn fail_everywhere(mount: Mount<'_>, plain: u64, (start, old): (&Arc<MemFs>, &[u8])) {
    let errors = [
        (Count::All, Fault::Error(Errno::IO)),
        (Count::Changes, Fault::Error(Errno::NOSPC)),
        (Count::All, Fault::Error(MAY_BLOCK)),
    ];
    // Only blocks larger than a page can be written partly.
    let short = [1, 2, 3, 6].map(|pages| (Count::Changes, Fault::ShortWrite { pages, errno: Errno::NOSPC }));
    let faults: &[(Count, Fault)] = if plain > 4096 { &short } else { &errors };
    let mut runs = 0;
    for change in changes(plain) {
        for &(count, fault) in faults {
            for at in 1.. {
                let below = start.fork(&Faults::new());
                let mounted = mount(below.clone());
                let (vnode, file) = open(&mounted);
                below.faults().arm(Plan { count, at, fault });
                let answer = change.apply(&*vnode, &*file);
                let fired = below.faults().fired();
                below.faults().disarm();
                let seen = read_all(&*vnode, &*file).unwrap_or_else(|e| panic!("{e:?} after {change:?}, step {at}"));
                let mut new = old.to_vec();
                match &answer {
                    Ok(done) => change.apply_to(&mut new, *done),
                    // A part of the range may be zero.
                    Err(_) if matches!(change, Change::Zero(..)) => new.clone_from(&seen),
                    Err(_) => {}
                }
                assert!(seen == new, "{change:?}, {fault:?} at step {at}: {answer:?}, {} bytes", seen.len());
                // No record remains that would be applied to it.
                let again = mount(below.recover(&Faults::new()));
                let (vnode, file) = open(&again);
                assert!(read_all(&*vnode, &*file).unwrap() == seen, "{change:?}, {fault:?} at step {at}");
                runs += 1;
                if !fired {
                    answer.unwrap();
                    break;
                }
            }
        }
    }
    assert!(runs > 150, "{runs}");
}

/// Fails to make a change durable, at each fsync below. The file is then as before the change or as
/// after it, also when it is mounted again.
pub(crate) fn fail_to_sync_everywhere(mount: Mount<'_>, plain: u64, (start, old): (&Arc<MemFs>, &[u8])) {
    let mut runs = 0;
    for change in changes(plain) {
        for at in 1.. {
            let below = start.fork(&Faults::new());
            let mounted = mount(below.clone());
            let (vnode, file) = open(&mounted);
            below.faults().arm(Plan { count: Count::Only(Op::Fsync), at, fault: Fault::Error(Errno::IO) });
            let answer = change.apply(&*vnode, &*file);
            let fired = below.faults().fired();
            below.faults().disarm();
            let what = format!("{change:?}, fsync {at}: {answer:?}");
            let seen = read_all(&*vnode, &*file).unwrap_or_else(|errno| panic!("{what}: {errno}"));
            let mut new = old.to_vec();
            change.apply_to(&mut new, *answer.as_ref().unwrap_or(&None));
            let failed = answer.is_err() && (seen == old || matches!(change, Change::Zero(..)));
            assert!(seen == new || failed, "{what}");
            drop((vnode, file, mounted));
            let again = mount(below);
            let (vnode, file) = open(&again);
            let again = read_all(&*vnode, &*file).unwrap_or_else(|errno| panic!("{what}, mounted again: {errno}"));
            assert!(again == seen, "{what}");
            runs += 1;
            if !fired {
                break;
            }
        }
    }
    assert!(runs > 50, "{runs}");
}

/// Writes to a full disk: each write fails or is short, and the file has what was written.
pub(crate) fn fill_the_disk(mount: Mount<'_>) {
    for extra in 0..90 {
        let (below, mut bytes) = prepared_with(mount, 4096);
        let mounted = mount(below.clone());
        let (vnode, file) = open(&mounted);
        let used = below.root().lookup(&ROOT, name("f")).unwrap().unwrap().attr.blocks * 512;
        below.set_space(used + extra * 4096);
        for (offset, len) in [(8192, 9000), (60_000, 30_000), (1, 40_000), (52_000, 5000), (0, 90_000)] {
            let data = vec![extra as u8 + 20; len];
            match file.write(&ROOT, &data, offset) {
                Ok(n) => Change::Write(offset, data).apply_to(&mut bytes, Some(n)),
                Err(errno) => assert_eq!(errno, Errno::NOSPC),
            }
            assert!(read_all(&*vnode, &*file).unwrap() == bytes, "{extra} {offset}");
        }
        let again = mount(below.recover(&Faults::new()));
        let (vnode, file) = open(&again);
        assert!(read_all(&*vnode, &*file).unwrap() == bytes, "{extra}");
    }
}

/// Loses everything that was not synced, at every step of every change but one that zeroes.
pub(crate) fn lose_power_everywhere(mount: Mount<'_>, plain: u64) {
    let mut runs = 0;
    let filled = [Change::Write(0, vec![5; 1233]), Change::Write(200, vec![6; 300])];
    let all = changes(plain).into_iter().filter(|change| !matches!(change, Change::Zero(..)));
    for (change, before) in all.flat_map(|change| [(change.clone(), &filled[..]), (change, &[])]) {
        for at in 1.. {
            let options = MemOptions { lose_data: true, ..MemOptions::default() };
            let faults = Faults::new();
            let below = MemFs::with(options, &faults);
            let mounted = mount(below.clone());
            let (vnode, file) = open(&mounted);
            let mut old = Vec::new();
            for first in before {
                let done = first.apply(&*vnode, &*file).unwrap();
                first.apply_to(&mut old, done);
            }
            file.fsync(&ROOT, false).unwrap();
            mounted.root().fsync(&ROOT, false).unwrap();
            let mut new = old.clone();
            change.apply_to(&mut new, None);
            faults.arm(Plan { count: Count::All, at, fault: Fault::Crash });
            let _answer = change.apply(&*vnode, &*file);
            let fired = faults.fired();
            let mounted = mount(below.recover(&Faults::new()));
            let size = check(&mounted, plain, (&old, &new), &format!("{change:?}, step {at}"));
            assert!(size >= old.len().min(new.len()) as u64);
            runs += 1;
            if !fired {
                break;
            }
        }
    }
    assert!(runs > 200, "{runs}");
}
