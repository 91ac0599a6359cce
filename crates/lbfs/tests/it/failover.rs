//! Replicas that fail, hang, recover and differ.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{Behaviour, CX, Replicas, name, quick, read, states, statistics, walk};
use lbfs::{LbFs, MakeError, Options, Policy};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::{seen, until};
use vnode::{Call, Cx, Errno, Layer, OpenFlags, Processes, RenameFlags, SetAttr, SetTime, Time, Vnode, XattrFlags};

const FILES: usize = 60;

/// Creates directories with files; the content of a file is its name.
fn tree(root: &Arc<dyn Vnode>) {
    for dir in ["a", "b"] {
        let dir = root.mkdir(&CX, name(dir), 0o755).unwrap().vnode;
        for i in 0..FILES {
            let bytes = format!("file {i}");
            let (_, file) = dir.create(&CX, name(&format!("f{i}")), 0o644, OpenFlags::RDWR).unwrap();
            file.write(&CX, bytes.as_bytes(), 0).unwrap();
        }
        dir.symlink(&CX, name("link"), b"f0").unwrap();
    }
}

fn replicas(count: usize, may_hang: bool) -> Replicas {
    Replicas::new(count, may_hang, tree)
}

/// Asserts that all files can be read.
fn assert_all_readable(fs: &LbFs) {
    for i in 0..FILES {
        assert_eq!(read(fs, &format!("a/f{i}")).unwrap(), format!("file {i}").as_bytes());
    }
    assert_eq!(names(fs, "b").len(), FILES + 1);
    assert_eq!(walk(fs, "b/link").unwrap().vnode.readlink(&CX).unwrap(), b"f0");
    assert!(walk(fs, "b/nothing").is_err_and(|errno| errno == Errno::NOENT));
    assert!(fs.root().statfs(&CX).is_ok());
}

fn names(fs: &LbFs, dir: &str) -> HashSet<Vec<u8>> {
    let mut names = HashSet::new();
    let dir = walk(fs, dir).unwrap().vnode;
    dir.readdir(&CX, 0, &mut |entry| names.insert(entry.name.as_bytes().to_vec())).unwrap();
    names
}

fn counter(fs: &LbFs, replica: usize, which: &str) -> u64 {
    statistics(fs)["replicas"][replica][which].as_u64().unwrap()
}

#[test]
fn isolated_and_direct_replicas_share_the_files() {
    for may_hang in [false, true] {
        let replicas = replicas(3, may_hang);
        let fs = replicas.mount(quick());
        assert_eq!(fs.properties().may_hang, may_hang);
        assert_all_readable(&fs);
        for i in 0..3 {
            assert!(counter(&fs, i, "requests") > 10);
            assert_eq!(counter(&fs, i, "failures"), 0);
        }
        assert_eq!(states(&fs), ["up"; 3]);
    }
}

#[test]
fn replica_errors_are_hidden_at_every_call() {
    let errnos = [Errno::IO, Errno::STALE, Errno::NOTCONN, Errno::TIMEDOUT, Errno::HOSTDOWN, Errno::CONNABORTED];
    for may_hang in [false, true] {
        for errno in errnos {
            let replicas = replicas(2, may_hang);
            let fs = replicas.mount(quick());
            // One file is open, one is live and one is unknown when the failures begin.
            let open: Vec<_> = (0..6).map(|i| walk(&fs, &format!("a/f{i}")).unwrap()).collect();
            let open: Vec<_> = open.iter().map(|e| e.vnode.open(&CX, OpenFlags::RDONLY).unwrap()).collect();
            replicas.gates[1].set(Behaviour::Fails(errno));
            for (i, file) in open.iter().enumerate() {
                let mut out = [0; 64];
                assert_eq!(file.read(&CX, &mut out, 5), Ok(format!("file {i}").len() - 5), "{errno}");
            }
            assert_all_readable(&fs);
            assert!(counter(&fs, 1, "failures") > 0, "{errno}");
        }
    }
}

#[test]
fn ordinary_errors_are_not_failures_of_the_replica() {
    let replicas = replicas(2, false);
    let fs = replicas.mount(quick());
    let file = walk(&fs, "a/f0").unwrap().vnode;
    replicas.all(Behaviour::Fails(Errno::ACCESS));
    assert_eq!(file.getattr(&CX), Err(Errno::ACCESS));
    replicas.all(Behaviour::Healthy);
    assert_eq!(file.getxattr(&CX, b"user.none", &mut []), Err(Errno::NODATA));
    assert_eq!((counter(&fs, 0, "failures"), counter(&fs, 1, "failures")), (0, 0));
    assert_eq!(states(&fs), ["up"; 2]);
}

#[test]
fn one_bad_file_does_not_make_its_replica_suspect() {
    let replicas = replicas(2, false);
    let fs = replicas.mount(quick());
    let file = walk(&fs, "a/f0").unwrap().vnode;
    for gate in &replicas.gates {
        gate.set(Behaviour::Fails(Errno::IO));
        let other = replicas.gates.iter().find(|other| !Arc::ptr_eq(other, gate)).unwrap();
        other.set(Behaviour::Healthy);
        assert!(file.getattr(&CX).is_ok());
        replicas.all(Behaviour::Healthy);
        assert!(file.getattr(&CX).is_ok());
    }
    assert_eq!(states(&fs), ["up"; 2]);
}

#[test]
fn a_file_stays_with_its_replica() {
    let replicas = replicas(2, false);
    let fs = replicas.mount(quick());
    let file = walk(&fs, "a/f0").unwrap().vnode;
    let before: Vec<u64> = replicas.gates.iter().map(|gate| gate.calls()).collect();
    for _ in 0..50 {
        file.getattr(&CX).unwrap();
        let same = walk(&fs, "a/f0").unwrap().vnode;
        assert!(Arc::ptr_eq(&same, &file));
    }
    let after: Vec<u64> = replicas.gates.iter().map(|gate| gate.calls()).collect();
    // Lookups are distributed, but operations on the file are not.
    let added: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    assert!(added.iter().any(|n| *n >= 100), "{added:?}");
}

#[test]
fn hash_selects_the_same_replica_in_each_mount() {
    let replicas = replicas(3, false);
    let options = Options { policy: Policy::Hash, ..quick() };
    let replica_of = |fs: &LbFs, i: usize| {
        let before: Vec<_> = replicas.gates.iter().map(|gate| gate.reads.load(Ordering::SeqCst)).collect();
        read(fs, &format!("a/f{i}")).unwrap();
        let read = |(gate, before): (&Arc<common::Gate>, &u64)| gate.reads.load(Ordering::SeqCst) > *before;
        replicas.gates.iter().zip(&before).position(read).unwrap()
    };
    let (first, second) = (replicas.mount(options), replicas.mount(options));
    let homes: Vec<usize> = (0..FILES).map(|i| replica_of(&first, i)).collect();
    assert_eq!(homes, (0..FILES).map(|i| replica_of(&second, i)).collect::<Vec<_>>());
    assert_eq!(homes.iter().collect::<HashSet<_>>().len(), 3);
    // Only the files of the failed replica move, and they return after its recovery.
    replicas.gates[0].set(Behaviour::Fails(Errno::NOTCONN));
    for (i, home) in homes.iter().enumerate() {
        let now = replica_of(&first, i);
        assert!(now == *home || *home == 0);
    }
    replicas.gates[0].set(Behaviour::Healthy);
    until("the replica is back", || seen(states(&first), |all| all[0] == "up"));
    assert_eq!(homes, (0..FILES).map(|i| replica_of(&first, i)).collect::<Vec<_>>());
}

#[test]
fn a_hanging_replica_delays_each_caller_at_most_once() {
    let replicas = replicas(2, true);
    let options = Options { threads: 4, ..quick() };
    let fs = replicas.mount(options);
    assert_all_readable(&fs);
    let files: Vec<_> = (0..20).map(|i| walk(&fs, &format!("a/f{i}")).unwrap().vnode).collect();
    let open: Vec<_> = files.iter().map(|file| file.open(&CX, OpenFlags::RDONLY).unwrap()).collect();
    replicas.gates[0].set(Behaviour::Hangs);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (i, file) in open.iter().enumerate() {
            scope.spawn(move || {
                let mut out = [0; 64];
                let len = file.read(&CX, &mut out, 0).unwrap();
                assert_eq!(&out[..len], format!("file {i}").as_bytes());
            });
        }
    });
    // Each caller waited for the deadline at most once.
    assert!(began.elapsed() < options.timeout * 5, "{:?}", began.elapsed());
    // From now on the replica receives only probes, and no caller waits.
    let (timeouts, calls) = (counter(&fs, 0, "timeouts"), replicas.gates[0].calls());
    for _ in 0..10 {
        assert_all_readable(&fs);
    }
    assert_eq!(counter(&fs, 0, "timeouts"), timeouts);
    assert!(replicas.gates[0].calls() - calls < 6);
    assert!(counter(&fs, 0, "stuck_threads") >= 1 && counter(&fs, 0, "timeouts") >= 1);
    // It responds again: its threads return, and it recovers.
    replicas.gates[0].set(Behaviour::Healthy);
    until("the replica is back", || states(&fs) == ["up"; 2] && counter(&fs, 0, "stuck_threads") == 0);
    let calls = replicas.gates[0].calls();
    drop((files, open));
    assert_all_readable(&fs);
    assert!(replicas.gates[0].calls() > calls + 50);
}

#[test]
fn the_layer_can_be_dropped_while_a_replica_hangs() {
    let replicas = replicas(2, true);
    let fs = replicas.mount(quick());
    let open: Vec<_> =
        (0..8).map(|i| walk(&fs, &format!("a/f{i}")).unwrap().vnode.open(&CX, OpenFlags::RDONLY)).collect();
    replicas.gates[1].set(Behaviour::Hangs);
    for file in open.iter().flatten() {
        file.read(&CX, &mut [0; 9], 0).unwrap();
    }
    let began = Instant::now();
    // Closing files on it hangs, too.
    drop(open);
    drop(fs);
    assert!(began.elapsed() < quick().timeout, "{:?}", began.elapsed());
    replicas.gates[1].set(Behaviour::Healthy);
    until("all files are closed", || replicas.gates.iter().all(|gate| gate.opened.load(Ordering::SeqCst) == 0));
}

type Operation = fn(&Held) -> Result<(), Errno>;

/// The vnodes that were looked up before the failure.
struct Held {
    dir: Arc<dyn Vnode>,
    file: Arc<dyn Vnode>,
    link: Arc<dyn Vnode>,
    open: Arc<dyn vnode::OpenFile>,
}

/// Returns the context of a caller with a process ID.
const CALLER: Cx<'static> = {
    static NEVER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    Cx::new(0, 0, 77, 0, true, &NEVER)
};

const OPERATIONS: [(&str, Operation); 11] = [
    ("lookup", |held| held.dir.lookup(&CALLER, name("f8")).map(|_| ())),
    ("lookup again", |held| held.dir.lookup(&CALLER, name("f7")).map(|_| ())),
    ("open", |held| held.file.open(&CALLER, OpenFlags::RDONLY).map(|_| ())),
    ("read", |held| held.open.read(&CALLER, &mut [0; 9], 0).map(|_| ())),
    ("seek", |held| held.open.seek(&CALLER, 0, vnode::Whence::Hole).map(|_| ())),
    ("stat", |held| held.file.getattr(&CALLER).map(|_| ())),
    ("stat of the directory", |held| held.dir.getattr(&CALLER).map(|_| ())),
    ("readdir", |held| held.dir.readdir(&CALLER, 0, &mut |_| true)),
    ("readlink", |held| held.link.readlink(&CALLER).map(|_| ())),
    ("getxattr", |held| match held.file.getxattr(&CALLER, b"user.none", &mut []) {
        Err(Errno::NODATA) => Ok(()),
        other => other.map(|_| ()),
    }),
    ("statfs", |held| held.dir.statfs(&CALLER).map(|_| ())),
];

/// One deadline applies to all steps of an operation. If one replica hangs, the operation succeeds
/// before the deadline; if all hang, it fails at the deadline.
#[test]
fn an_operation_has_one_deadline() {
    for (what, operation) in OPERATIONS {
        for hanging in [&[0][..], &[1], &[0, 1], &[0, 1, 2]] {
            let count = hanging.len().max(2);
            let replicas = replicas(count, true);
            let options = quick();
            let fs = replicas.mount(options);
            let file = walk(&fs, "a/f7").unwrap().vnode;
            let held = Held {
                dir: walk(&fs, "a").unwrap().vnode,
                link: walk(&fs, "a/link").unwrap().vnode,
                open: file.open(&CX, OpenFlags::RDONLY).unwrap(),
                file,
            };
            hanging.iter().for_each(|&replica| replicas.gates[replica].set(Behaviour::Hangs));
            let began = Instant::now();
            let answer = operation(&held);
            let took = began.elapsed();
            let expected = if hanging.len() < count { Ok(()) } else { Err(Errno::TIMEDOUT) };
            assert_eq!(answer, expected, "{what}, hanging: {hanging:?}");
            // With a deadline for each step it would be at least twice the timeout. The margin is
            // for busy machines.
            assert!(took < options.timeout * 7 / 4, "{what}, hanging: {hanging:?}: {took:?}");
            if answer.is_err() {
                assert!(took >= options.timeout * 9 / 10, "{what}: {took:?}");
                // The kernel's repeated request fails at once; a retry by the program waits again.
                let began = Instant::now();
                assert_eq!(operation(&held), Err(Errno::TIMEDOUT), "{what} again");
                assert!(began.elapsed() < options.timeout * 3 / 4, "{what} again: {:?}", began.elapsed());
            }
            replicas.all(Behaviour::Healthy);
        }
    }
}

#[test]
fn all_replicas_fail_and_recover() {
    for (may_hang, behaviour) in
        [(false, Behaviour::Fails(Errno::NOTCONN)), (true, Behaviour::Fails(Errno::IO)), (true, Behaviour::Hangs)]
    {
        let replicas = replicas(2, may_hang);
        let fs = replicas.mount(quick());
        let file = walk(&fs, "a/f7").unwrap().vnode.open(&CX, OpenFlags::RDONLY).unwrap();
        let perm = fs.root().getattr(&CX).unwrap().perm();
        replicas.all(behaviour);
        let began = Instant::now();
        // Errors that may be due to the file must repeat before the replica is to blame.
        for _ in 0..4 {
            assert!(file.read(&CX, &mut [0; 9], 0).is_err(), "{behaviour:?}");
        }
        assert!(began.elapsed() < quick().timeout * 20, "{:?}", began.elapsed());
        until("both are down", || seen(states(&fs), |all| *all == ["down"; 2]));
        let began = Instant::now();
        assert!(walk(&fs, "a/f9").is_err());
        let waited = began.elapsed();
        assert!(waited > quick().timeout / 2 && waited < quick().timeout * 3, "{waited:?}");
        // The root's last known attributes are returned, so that lbfs.replicas remains usable.
        assert_eq!(fs.root().getattr(&CX).map(|attr| attr.perm()), Ok(perm), "{behaviour:?}");
        // Operations wait for a recovery until the deadline.
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    match read(&fs, "a/f9") {
                        Ok(bytes) => return bytes,
                        Err(_) => std::thread::yield_now(),
                    }
                }
            });
            replicas.all(Behaviour::Healthy);
            waiting.join().unwrap()
        });
        assert_eq!(waiting, b"file 9");
        let mut out = [0; 9];
        assert_eq!(file.read(&CX, &mut out, 0), Ok(6), "the file that was open all the time: {behaviour:?}");
        until("both are back", || seen(states(&fs), |all| *all == ["up"; 2]));
        assert_all_readable(&fs);
    }
}

#[test]
fn a_remounted_replica_is_reopened() {
    let replicas = replicas(2, true);
    let mut sources = replicas.sources();
    sources.truncate(1);
    // Each opening has a separate gate, like each mount of a network file system.
    let gates: Arc<[Arc<common::Gate>; 2]> = Arc::default();
    let (tree, count) = (Arc::clone(&replicas.trees[0]), Arc::new(AtomicUsize::new(0)));
    let (opened, behind) = (Arc::clone(&count), Arc::clone(&gates));
    sources[0].open = Box::new(move || {
        let gate = Arc::clone(&behind[opened.fetch_add(1, Ordering::SeqCst)]);
        Ok(Arc::new(common::Gated { lower: tree.without_faults(), gate, may_hang: true }))
    });
    let fs = LbFs::new(sources, quick()).unwrap();
    assert_all_readable(&fs);
    let file = walk(&fs, "a/f0").unwrap().vnode;
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    gates[0].set(Behaviour::Fails(Errno::NOTCONN));
    let _noticed = file.getattr(&CX);
    until("it is back", || count.load(Ordering::SeqCst) == 2 && states(&fs)[0] == "up");
    let calls = gates[1].calls();
    assert_all_readable(&fs);
    assert!(gates[1].calls() > calls + 10);
    assert!(file.getattr(&CX).is_ok());
    // Files that were open are reopened there.
    assert_eq!(open.read(&CX, &mut [0; 9], 0), Ok(6));
}

#[test]
fn a_replica_that_is_unreachable_at_first_joins_later() {
    for behaviour in [Behaviour::Fails(Errno::NOTCONN), Behaviour::Hangs] {
        let replicas = replicas(3, true);
        replicas.gates[1].set(behaviour);
        let fs = replicas.mount(quick());
        assert_all_readable(&fs);
        assert_ne!(states(&fs)[1], "up");
        replicas.gates[1].set(Behaviour::Healthy);
        until("it is there", || seen(states(&fs), |all| all[1] == "up"));
        assert_all_readable(&fs);
        assert!(counter(&fs, 1, "requests") > 10);
    }
}

#[test]
fn creation_fails_without_a_usable_replica() {
    assert_eq!(LbFs::new(Vec::new(), quick()).err(), Some(MakeError::Count(0)));
    let replicas = replicas(2, true);
    replicas.gates[0].set(Behaviour::Fails(Errno::NOTCONN));
    replicas.gates[1].set(Behaviour::Hangs);
    let why = LbFs::new(replicas.sources(), quick()).unwrap_err();
    assert_eq!(why, MakeError::NoneReachable(vec![("r0".into(), Errno::NOTCONN), ("r1".into(), Errno::TIMEDOUT)]));
    assert!(why.to_string().contains("r1"));
    // A permanent error of one replica is fatal, too.
    replicas.all(Behaviour::Healthy);
    replicas.gates[1].set(Behaviour::Fails(Errno::NOENT));
    let why = LbFs::new(replicas.sources(), quick()).unwrap_err();
    assert_eq!(why, MakeError::Permanent("r1".into(), Errno::NOENT));
}

#[test]
fn numbers_are_the_same_on_all_replicas_and_over_mounts() {
    // The same tree, created in another order, so that its inode numbers differ.
    let mut replicas = replicas(1, false);
    let other = memfs::MemFs::new();
    other.root().mkdir(&CX, name("zzz"), 0o755).unwrap();
    other.root().rmdir(&CX, name("zzz")).unwrap();
    let b = other.root().mkdir(&CX, name("b"), 0o755).unwrap();
    tree_again(&other.root(), &b.vnode);
    replicas.trees.push(other);
    replicas.gates.push(Arc::default());
    replicas.openings.push(Arc::default());
    let numbers = |fs: &LbFs| -> Vec<u64> {
        (0..FILES)
            .map(|i| walk(fs, &format!("a/f{i}")).unwrap().attr.ino)
            .chain([walk(fs, "b").unwrap().attr.ino])
            .collect()
    };
    let fs = replicas.mount(quick());
    let all = numbers(&fs);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    for away in 0..2 {
        replicas.gates[away].set(Behaviour::Fails(Errno::NOTCONN));
        assert_eq!(numbers(&fs), all);
        assert_eq!(numbers(&replicas.mount(quick())), all);
        // Listings have the same numbers.
        let dir = walk(&fs, "a").unwrap().vnode;
        dir.readdir(&CX, 0, &mut |entry| {
            assert_eq!(entry.ino, dir.lookup(&CX, entry.name).unwrap().unwrap().vnode.id());
            true
        })
        .unwrap();
        replicas.gates[away].set(Behaviour::Healthy);
        until("it is back", || seen(states(&fs), |all| all[away] == "up"));
    }
}

/// Creates the same tree as [`tree`], in another order.
fn tree_again(root: &Arc<dyn Vnode>, b: &Arc<dyn Vnode>) {
    let a = root.mkdir(&CX, name("a"), 0o755).unwrap().vnode;
    for dir in [b, &a] {
        dir.symlink(&CX, name("link"), b"f0").unwrap();
        for i in (0..FILES).rev() {
            let bytes = format!("file {i}");
            let (_, file) = dir.create(&CX, name(&format!("f{i}")), 0o644, OpenFlags::RDWR).unwrap();
            file.write(&CX, bytes.as_bytes(), 0).unwrap();
        }
    }
}

#[test]
fn hard_links_are_one_object() {
    let replicas = Replicas::new(2, false, |root| {
        tree(root);
        let a = root.lookup(&CX, name("a")).unwrap().unwrap().vnode;
        let f1 = a.lookup(&CX, name("f1")).unwrap().unwrap().vnode;
        root.link(&CX, name("second name"), &f1).unwrap();
    });
    let fs = replicas.mount(quick());
    let (one, other) = (walk(&fs, "a/f1").unwrap(), walk(&fs, "second name").unwrap());
    assert_eq!((one.vnode.id(), one.attr.nlink), (other.vnode.id(), 2));
    assert_ne!(one.vnode.id(), walk(&fs, "a/f2").unwrap().vnode.id());
    // This remains true while the first replica, which determines the number, is down.
    replicas.gates[0].set(Behaviour::Fails(Errno::NOTCONN));
    assert_eq!(walk(&fs, "a/f1").unwrap().attr.ino, one.attr.ino);
    assert_eq!(walk(&fs, "second name").unwrap().attr.ino, one.attr.ino);
    replicas.gates[0].set(Behaviour::Healthy);
    let again = replicas.mount(quick());
    for _ in 0..4 {
        assert_eq!(walk(&again, "a/f1").unwrap().attr.ino, one.attr.ino);
    }
}

#[test]
fn listings_continue_on_another_replica() {
    let replicas = replicas(2, false);
    let fs = replicas.mount(quick());
    let dir = walk(&fs, "a").unwrap().vnode;
    let mut seen = Vec::new();
    let (mut cookie, mut turn) = (0, 0);
    loop {
        let before = seen.len();
        dir.readdir(&CX, cookie, &mut |entry| {
            if seen.len() == before + 7 {
                return false;
            }
            seen.push(entry.name.as_bytes().to_vec());
            cookie = entry.cookie;
            true
        })
        .unwrap();
        if seen.len() == before {
            break;
        }
        // The other replica fails, and the cached listing is evicted.
        replicas.gates[turn % 2].set(Behaviour::Fails(Errno::NOTCONN));
        replicas.gates[(turn + 1) % 2].set(Behaviour::Healthy);
        turn += 1;
        until("one is up", || testkit::seen(states(&fs), |all| all[turn % 2] == "up"));
        for i in 0..70 {
            let other = walk(&fs, "b").unwrap().vnode;
            if i % 2 == 0 {
                other.readdir(&CX, 0, &mut |_| false).unwrap();
            }
        }
    }
    assert_eq!(seen.len(), FILES + 1);
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), FILES + 1);
}

#[test]
fn an_open_file_does_not_move_to_another_version() {
    let replicas = replicas(2, false);
    let fs = replicas.mount(quick());
    let found = walk(&fs, "a/f3").unwrap();
    let file = found.vnode.open(&CX, OpenFlags::RDONLY).unwrap();
    // The file changes on both replicas in the same way; then the replica on which it is open
    // fails.
    for tree in &replicas.trees {
        let vnode = tree.root().lookup(&CX, name("a")).unwrap().unwrap().vnode;
        let vnode = vnode.lookup(&CX, name("f3")).unwrap().unwrap().vnode;
        vnode.open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"longer than before", 0).unwrap();
    }
    let home = (0..2).find(|i| replicas.gates[*i].opened.load(Ordering::SeqCst) > 0).unwrap();
    replicas.gates[home].set(Behaviour::Fails(Errno::NOTCONN));
    assert_eq!(file.read(&CX, &mut [0; 9], 0), Err(Errno::NOTCONN));
    assert_eq!(statistics(&fs)["diverging"], 1);
    // A new open returns the new version.
    assert_eq!(read(&fs, "a/f3").unwrap(), b"longer than before");
}

#[test]
fn a_replacement_of_a_file_in_use_gets_another_number() {
    let replicas = replicas(2, false);
    let fs = replicas.mount(quick());
    let before = walk(&fs, "a/f3").unwrap();
    let open = before.vnode.open(&CX, OpenFlags::RDONLY).unwrap();
    for tree in &replicas.trees {
        let dir = tree.root().lookup(&CX, name("a")).unwrap().unwrap().vnode;
        let (_, new) = dir.create(&CX, name("new"), 0o644, OpenFlags::RDWR).unwrap();
        new.write(&CX, b"something else", 0).unwrap();
        dir.rename(&CX, name("new"), &dir, name("f3"), RenameFlags::default()).unwrap();
    }
    let after = walk(&fs, "a/f3").unwrap();
    assert_ne!(after.vnode.id(), before.vnode.id());
    assert_eq!(read(&fs, "a/f3").unwrap(), b"something else");
    let mut out = [0; 64];
    assert_eq!((open.read(&CX, &mut out, 0), &out[..6]), (Ok(6), &b"file 3"[..]));
    // Once the old file is no longer in use, the path gets its number back.
    drop((open, before));
    drop(after);
    let path_number = replicas.mount(quick());
    assert_eq!(walk(&fs, "a/f3").unwrap().vnode.id(), walk(&path_number, "a/f3").unwrap().vnode.id());
}

#[test]
fn differences_are_detected() {
    let replicas = replicas(2, false);
    let at = |tree: &Arc<memfs::MemFs>, path: &str| tree.root().lookup(&CX, name(path)).unwrap().unwrap().vnode;
    let other = at(&replicas.trees[1], "a");
    let vnode = |n: &str| other.lookup(&CX, name(n)).unwrap().unwrap().vnode;
    vnode("f0").open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"longer than before", 0).unwrap();
    let old = SetAttr { mtime: Some(SetTime::At(Time { sec: 77, nsec: 0 })), ..SetAttr::default() };
    vnode("f1").setattr(&CX, &old, None).unwrap();
    other.unlink(&CX, name("f2")).unwrap();
    other.unlink(&CX, name("f3")).unwrap();
    other.mkdir(&CX, name("f3"), 0o755).unwrap();
    other.unlink(&CX, name("link")).unwrap();
    other.symlink(&CX, name("link"), b"f9").unwrap();
    let fs = replicas.mount(Options { compare: 1, ..quick() });
    let everything = || {
        for i in 0..FILES {
            let _found = walk(&fs, &format!("a/f{i}"));
            let _found = walk(&fs, "a/link");
        }
    };
    until("five differences are found", || {
        everything();
        statistics(&fs)["diverging"] == 5
    });
    assert!(statistics(&fs)["compared"].as_u64().unwrap() > 5);
    vnode("f1").setattr(&CX, &SetAttr { mtime: Some(SetTime::At(mtime(&replicas, "f1"))), ..old }, None).unwrap();
    until("one is gone", || {
        everything();
        statistics(&fs)["diverging"] == 4
    });
}

fn mtime(replicas: &Replicas, file: &str) -> Time {
    let dir = replicas.trees[0].root().lookup(&CX, name("a")).unwrap().unwrap().vnode;
    dir.lookup(&CX, name(file)).unwrap().unwrap().attr.mtime
}

#[test]
fn changes_are_refused() {
    let replicas = replicas(2, false);
    let fs = replicas.mount(quick());
    assert!(fs.properties().read_only && !fs.properties().needs_flush);
    let root = fs.root();
    let file = walk(&fs, "a/f0").unwrap().vnode;
    let refused = [
        root.mkdir(&CX, name("d"), 0o755).map(|_| ()),
        root.create(&CX, name("g"), 0o644, OpenFlags::RDWR).map(|_| ()),
        root.tmpfile(&CX, 0o644, OpenFlags::RDWR).map(|_| ()),
        root.mknod(&CX, name("n"), 0o010_644, 0).map(|_| ()),
        root.symlink(&CX, name("s"), b"x").map(|_| ()),
        root.unlink(&CX, name("a")),
        root.rmdir(&CX, name("a")),
        root.rename(&CX, name("a"), &root, name("g"), RenameFlags::default()),
        root.link(&CX, name("g"), &file).map(|_| ()),
        file.setattr(&CX, &SetAttr { mode: Some(0), ..SetAttr::default() }, None).map(|_| ()),
        file.setxattr(&CX, b"user.x", b"", XattrFlags::default()),
        file.removexattr(&CX, b"user.x"),
        file.open(&CX, OpenFlags::RDWR).map(|_| ()),
        file.open(&CX, OpenFlags::RDONLY.with_trunc()).map(|_| ()),
    ];
    assert!(refused.iter().all(|answer| *answer == Err(Errno::ROFS)), "{refused:?}");
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    assert_eq!(open.write(&CX, b"x", 0), Err(Errno::BADF));
    assert!(open.fsync(&CX, false).is_ok() && fs.sync(&CX).is_ok());
}

#[test]
fn threads_that_must_not_block_do_not_wait() {
    let never = std::sync::atomic::AtomicBool::new(false);
    let nonblocking = Cx::new(0, 0, 0, 0, false, &never);
    let replicas = replicas(2, true);
    let fs = replicas.mount(quick());
    let root = fs.root();
    assert_eq!(root.lookup(&nonblocking, name("a")).map(|_| ()), Err(vnode::MAY_BLOCK));
    let file = walk(&fs, "a/f0").unwrap().vnode.open(&CX, OpenFlags::RDONLY).unwrap();
    assert_eq!(file.read(&nonblocking, &mut [0; 9], 0), Err(vnode::MAY_BLOCK));
    assert_eq!(file.read(&CX, &mut [0; 9], 0), Ok(6));
    assert_eq!(states(&fs), ["up"; 2]);
}

/// Caller facts that return the groups of any process.
#[derive(Debug)]
struct Groups;

impl Processes for Groups {
    fn groups(&self, pid: u32) -> Option<Vec<u32>> {
        Some(vec![pid, 4711])
    }
    fn umask(&self, _pid: u32) -> Option<u32> {
        None
    }

    fn session(&self, _pid: u32) -> Option<(u32, u64)> {
        None
    }
    fn executable(&self, _pid: u32) -> Option<std::path::PathBuf> {
        None
    }
    fn cgroup(&self, _pid: u32) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn replicas_receive_the_caller_and_limit_cache_lifetimes() {
    const USUAL: Duration = Duration::from_secs(10);
    let never = std::sync::atomic::AtomicBool::new(false);
    for may_hang in [false, true] {
        let replicas = replicas(2, may_hang);
        let fs = replicas.mount(quick());
        for (gate, seconds) in replicas.gates.iter().zip([3, 2]) {
            *gate.lifetime.lock().unwrap() = Some(Duration::from_secs(seconds));
        }
        let call = Call::new(&Groups);
        let lifetimes = || [call.names_lifetime(USUAL), call.attributes_lifetime(USUAL)].map(|time| time.as_secs());
        let cx = Cx::new(5, 5, 7, 0, true, &never).with_call(&call);
        // Each replica serves one of the two.
        for file in ["none", "neither"] {
            assert!(fs.root().lookup(&cx, name(file)).unwrap().is_none());
        }
        assert_eq!(lifetimes(), [2, 4], "may hang: {may_hang}");
        let groups: Vec<_> = replicas.gates.iter().map(|gate| gate.groups.lock().unwrap().clone()).collect();
        assert_eq!(groups, [Some(vec![7, 4711]), Some(vec![7, 4711])], "may hang: {may_hang}");
    }
}

#[test]
fn the_command_reports_the_replicas() {
    let replicas = replicas(2, true);
    let fs = replicas.mount(quick());
    assert_all_readable(&fs);
    let command = fs.commands().into_iter().find(|command| command.name == "lbfs.replicas").unwrap();
    for object in [fs.root(), walk(&fs, "a/f0").unwrap().vnode] {
        let reply = object.control(&CX, command.name, b"").unwrap();
        let reply: serde_json::Value = serde_json::from_slice(&reply).unwrap();
        assert_eq!(reply["policy"], "roundrobin");
        assert_eq!(reply["replicas"][1]["name"], "r1");
        assert!(reply["replicas"][1]["latency_us"].as_f64().unwrap() > 0.0);
        assert_eq!(object.control(&CX, command.name, b"x"), Err(Errno::INVAL));
        assert_eq!(object.control(&CX, "lbfs.other", b""), Err(Errno::NOTTY));
    }
    // It works even if no replica responds.
    replicas.gates.iter().for_each(|gate| gate.set(Behaviour::Fails(Errno::NOTCONN)));
    assert!(fs.root().control(&CX, command.name, b"").is_ok());
}
