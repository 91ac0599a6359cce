//! Conversion, retention and cleaning: whatever happens, every version that remains has its bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use crate::common::policies::*;
use memfs::{Count, Fault, Faults, MemFs, Op, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::Rng;
use vnode::{Cx, Errno, Layer as _, OpenFlags, RenameFlags, SetAttr};

const STORAGES: [&str; 7] = ["full", "compress", "sparse", "sparse-compress", "delta", "text", "blocks"];

fn config(storage: &str, more: &str) -> String {
    format!("builtin = false\nstorage = \"{storage}\"\n{more}")
}

#[test]
fn random_histories_survive_conversions_and_discards() {
    let limits = ["", "number = \"..5\"", "keep = { daily = 3 }", "space = \"..30KiB\"", "age = \"..1d\""];
    for seed in 0..40 {
        let mut story = Story::new(seed, b"file");
        let lower = MemFs::new();
        let mut random = Rng::new(seed + 1000);
        let mut layer = mount(&lower, &config(STORAGES[random.below(7)], ""));
        for _ in 0..40 {
            story.step(&layer, &lower);
            verify(&lower, b"file", &story.expected);
            match random.below(8) {
                0 => drop(control(&layer, "versionfs.convert").unwrap()),
                1 => {
                    // Another policy: what is there is converted again, and some versions go.
                    let storage = STORAGES[random.below(7)];
                    layer = mount(&lower, &config(storage, limits[random.below(5)]));
                    let done = control(&layer, "versionfs.clean").unwrap();
                    assert!(done.contains("failed 0"), "{done}");
                }
                _ => {}
            }
            verify(&lower, b"file", &story.expected);
        }
    }
}

/// Returns the number of files of versions.
fn version_files(lower: &Arc<MemFs>) -> usize {
    store_names(lower).iter().filter(|name| name.starts_with("file;") && *name != "file;i").count()
}

/// A history, and the same after a command that was killed at each of its steps.
fn killed(seed: u64, before: &str, after: &str, command: &str) {
    let mut story = Story::new(seed, b"file");
    let lower = MemFs::new();
    let layer = mount(&lower, before);
    for _ in 0..14 {
        story.step(&layer, &lower);
    }
    drop(control(&layer, "versionfs.convert").unwrap());
    for _ in 0..4 {
        story.step(&layer, &lower);
    }
    drop(layer);
    let count = verify(&lower, b"file", &story.expected);
    assert!(count > 4, "{count}");
    let (mut at, mut was_killed) = (1, true);
    while was_killed {
        let faults = Faults::new();
        let copy = lower.fork(&faults);
        let layer = mount(&copy, after);
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _ = control(&layer, command);
        was_killed = faults.crashed();
        drop(layer);
        let survivor = copy.recover(&Faults::new());
        verify(&survivor, b"file", &story.expected);
        // The next one completes the work.
        let layer = mount(&survivor, after);
        let done = control(&layer, "versionfs.clean").unwrap();
        assert!(done.contains("failed 0"), "{done}");
        let left = verify(&survivor, b"file", &story.expected);
        assert_eq!(version_files(&survivor), left, "leftovers after step {at}: {:?}", store_names(&survivor));
        // The second walk deletes blocks that no file refers to.
        control(&layer, "versionfs.clean").unwrap();
        let links = store_names(&survivor).iter().filter(|name| name.starts_with("file;b")).count();
        assert_eq!(block_count(&survivor), links, "step {at}");
        verify(&survivor, b"file", &story.expected);
        at += 1;
    }
    assert!(at > 4);
}

#[test]
fn a_conversion_may_be_killed_at_any_step() {
    for (seed, storage) in STORAGES.iter().enumerate() {
        let other = STORAGES[(seed + 2) % 7];
        killed(seed as u64 + 50, &config(other, ""), &config(storage, ""), "versionfs.clean");
    }
}

#[test]
fn discarding_may_be_killed_at_any_step() {
    for (seed, storage) in STORAGES.iter().enumerate() {
        let after = config(storage, "number = \"1..6\"\nkeep = { daily = 2 }");
        killed(seed as u64 + 80, &config(storage, ""), &after, "versionfs.clean");
    }
}

/// Runs a conversion of which a step fails.
fn convert_failing(storage: &str, plan: Plan) -> (Arc<MemFs>, usize) {
    let mut story = Story::new(7, b"file");
    let faults = Faults::new();
    let lower = MemFs::with(memfs::MemOptions::default(), &faults);
    let layer = mount(&lower, &config(storage, ""));
    for _ in 0..12 {
        story.step(&layer, &lower);
    }
    faults.arm(plan);
    let _ = control(&layer, "versionfs.convert");
    faults.disarm();
    let files = version_files(&lower);
    let extra = files - verify(&lower, b"file", &story.expected);
    for _ in 0..6 {
        story.step(&layer, &lower);
    }
    verify(&lower, b"file", &story.expected);
    (lower, extra)
}

#[test]
fn a_failed_step_of_a_conversion_leaves_the_versions() {
    for (at, storage) in (1..60).step_by(2).zip(STORAGES.iter().cycle()) {
        convert_failing(storage, Plan { count: Count::Changes, at, fault: Fault::Error(Errno::NOSPC) });
    }
}

#[test]
fn a_conversion_without_room_for_its_record_leaves_no_version_stored_twice() {
    for storage in ["compress", "delta", "blocks"] {
        for at in 1..60 {
            let plan = Plan { count: Count::Only(Op::Write), at, fault: Fault::Error(Errno::NOSPC) };
            let (lower, extra) = convert_failing(storage, plan);
            assert_eq!(extra, 0, "write {at}, {storage}: {:?}", store_names(&lower));
        }
    }
}

#[test]
fn a_version_is_converted_while_its_file_is_written() {
    // A program writes at each step of a conversion.
    for at in 1..40 {
        let faults = Faults::new();
        let lower = MemFs::with(memfs::MemOptions::default(), &faults);
        let layer = mount(&lower, &config("compress", ""));
        let root = layer.root();
        let (entry, file) = root.create(&cx(), name(b"file"), 0o644, vnode::OpenFlags::RDWR).unwrap();
        file.write(&cx(), &[1; 40_000], 0).unwrap();
        drop(file);
        let file = entry.vnode.open(&cx(), vnode::OpenFlags::RDWR).unwrap();
        file.write(&cx(), &[2; 10], 5000).unwrap();
        drop(file);
        let vnode = Arc::clone(&entry.vnode);
        faults.reset();
        let (sender, done) = std::sync::mpsc::channel();
        faults.call_at(at, move || {
            let writer = std::thread::spawn(move || {
                let file = vnode.open(&cx(), vnode::OpenFlags::RDWR).unwrap();
                file.write(&cx(), &[3; 9000], 20_000).unwrap();
            });
            // Where the converter holds a lock, the writer waits for it.
            let begun = std::time::Instant::now();
            while !writer.is_finished() && begun.elapsed().as_millis() < 20 {
                std::thread::yield_now();
            }
            sender.send(writer).unwrap();
        });
        let _ = control(&layer, "versionfs.convert");
        let _ = faults.forget_call();
        if let Ok(writer) = done.try_recv() {
            writer.join().unwrap();
        }
        let first: Vec<u8> = vec![1; 40_000];
        assert_eq!(version(&lower, b"file", 1), Ok(first), "step {at}");
    }
}

#[test]
fn limits_apply_when_a_version_is_made() {
    let lower = MemFs::new();
    let layer = mount(&lower, &config("sparse", "number = \"..3\""));
    let mut story = Story::new(3, b"file");
    for _ in 0..30 {
        story.step(&layer, &lower);
        assert!(index(&lower, b"file").versions.len() <= 3);
        verify(&lower, b"file", &story.expected);
    }
    assert_eq!(index(&lower, b"file").versions.len(), 3);
}

/// `versionctl restore` of the oldest version makes a version: the limit must not take the bytes
/// that it is copying.
#[test]
fn a_version_that_is_read_is_not_discarded() {
    for storage in ["full", "sparse"] {
        let lower = MemFs::new();
        let layer = mount(&lower, &config(storage, "number = \"..2\""));
        drop(layer.root().create(&cx(), name(b"file"), 0o600, OpenFlags::RDWR).unwrap());
        let write = |byte: u8| {
            let head = layer.root().lookup(&cx(), name(b"file")).unwrap().unwrap().vnode;
            let head = head.open(&cx(), OpenFlags::RDWR).unwrap();
            assert_eq!(head.write(&cx(), &[byte; 10_000], 0).unwrap(), 10_000);
        };
        (0..3).for_each(write);
        let versions = || index(&lower, b"file").versions.into_keys().collect::<Vec<_>>();
        assert_eq!(versions(), [2, 3]);

        let token = layer.root().control(&cx(), "versionfs.open", b"file 2").unwrap();
        let oldest = layer.root().lookup(&cx(), name(token.trim_ascii_end())).unwrap().unwrap().vnode;
        let reader = oldest.open(&cx(), OpenFlags::RDONLY).unwrap();
        write(3);
        assert!(control(&layer, "versionfs.clean").unwrap().contains("discarded 1"));
        assert_eq!(versions(), [2, 4], "the open one stays, and counts");
        let mut bytes = [9; 10_000];
        assert_eq!(versionset::read_full(&cx(), &*reader, &mut bytes, 0), Ok(10_000));
        assert_eq!(bytes, [0; 10_000]);
        drop((reader, oldest));
        write(4);
        assert_eq!(versions(), [4, 5]);
    }
}

#[test]
fn what_a_policy_excludes_makes_no_version_but_older_ones_stay_right() {
    let lower = MemFs::new();
    let layer = mount(&lower, &config("sparse", ""));
    let mut story = Story::new(11, b"file");
    for _ in 0..10 {
        story.step(&layer, &lower);
    }
    let count = verify(&lower, b"file", &story.expected);
    drop(layer);
    let layer = mount(&lower, &config("sparse", "[[rule]]\nname = \"file\"\nversions = false"));
    for _ in 0..25 {
        story.step(&layer, &lower);
        verify(&lower, b"file", &story.expected);
        // Only removed heads that older versions need, or the history of another name.
        let now = index(&lower, b"file");
        let is_head = |version: &versionset::Version| version.cause.ends_head();
        assert!(now.versions.values().skip(count).all(is_head), "{:?}", now.versions);
    }
    let explained = layer.root().control(&cx(), "versionfs.policy", b"file").unwrap();
    let explained = String::from_utf8(explained).unwrap();
    assert!(explained.contains("versions = false (test.conf:5)"), "{explained}");
}

#[test]
fn an_excluded_file_leaves_nothing() {
    let lower = MemFs::new();
    let layer = mount(&lower, "[[rule]]\nextension = \"tmp\"\nversions = false");
    let root = layer.root();
    for step in 0..3_u8 {
        let (_, file) = root.create(&cx(), name(b"a.tmp"), 0o644, vnode::OpenFlags::RDWR).unwrap();
        file.write(&cx(), &[step; 10], 0).unwrap();
        drop(file);
        let entry = root.lookup(&cx(), name(b"a.tmp")).unwrap().unwrap();
        let file = entry.vnode.open(&cx(), vnode::OpenFlags::RDWR).unwrap();
        file.write(&cx(), &[step + 10; 10], 0).unwrap();
        drop(file);
        root.unlink(&cx(), name(b"a.tmp")).unwrap();
    }
    assert_eq!(store_names(&lower), Vec::<String>::new());
}

#[test]
fn of_what_can_be_made_again_only_removals_make_versions() {
    let lower = MemFs::new();
    let layer = mount(&lower, "");
    let root = layer.root();
    let write = |name_: &[u8], text: &[u8]| {
        let file = match root.create(&cx(), name(name_), 0o644, vnode::OpenFlags::RDWR) {
            Ok((_, file)) => file,
            Err(_) => {
                let entry = root.lookup(&cx(), name(name_)).unwrap().unwrap();
                entry.vnode.open(&cx(), vnode::OpenFlags::RDWR).unwrap()
            }
        };
        file.write(&cx(), text, 0).unwrap();
    };
    let plain = vnode::RenameFlags::default();
    write(b"a.o", b"one");
    write(b"a.o", b"two");
    assert_eq!(store_names(&lower), Vec::<String>::new(), "changes leave nothing");
    write(b"c.o", b"one");
    let object = root.lookup(&cx(), name(b"c.o")).unwrap().unwrap().vnode;
    root.link(&cx(), name(b"b.o"), &object).unwrap();
    root.unlink(&cx(), name(b"b.o")).unwrap();
    write(b"x.tmp", b"new");
    root.rename(&cx(), name(b"x.tmp"), &root, name(b"y.tmp"), plain).unwrap();
    let versions = |stem: &[u8]| index(&lower, stem).versions.len();
    assert_eq!((versions(b"b.o"), versions(b"x.tmp")), (0, 0), "the file remains");
    root.rename(&cx(), name(b"y.tmp"), &root, name(b"a.o"), plain).unwrap();
    assert_eq!(versions(b"a.o"), 1, "a replaced file is a version");
    assert_eq!(versions(b"y.tmp"), 0);
    for _ in 0..12 {
        write(b"a.o", b"again");
        root.unlink(&cx(), name(b"a.o")).unwrap();
    }
    assert_eq!(versions(b"a.o"), 10, "no more than the newest ones stay");
    root.symlink(&cx(), name(b".#lock"), b"me@host").unwrap();
    root.unlink(&cx(), name(b".#lock")).unwrap();
    assert_eq!(versions(b".#lock"), 1);
}

#[test]
fn removed_trees_are_discarded_piecewise() {
    let plain = config("full", "");
    let lower = MemFs::new();
    let layer = mount(&lower, &plain);
    let root = layer.root();
    let dir = root.mkdir(&cx(), name(b"dir"), 0o755).unwrap().vnode;
    for file in [&b"one"[..], b"two"] {
        let (_, open) = dir.create(&cx(), name(file), 0o644, vnode::OpenFlags::RDWR).unwrap();
        open.write(&cx(), file, 0).unwrap();
        drop(open);
        dir.unlink(&cx(), name(file)).unwrap();
    }
    drop(dir);
    root.rmdir(&cx(), name(b"dir")).unwrap();
    drop(root);
    assert!(store_names(&lower).contains(&"dir;d1".to_owned()));
    let objects = lower.objects();
    let (mut at, mut was_killed) = (1, true);
    while was_killed {
        let faults = Faults::new();
        let copy = lower.fork(&faults);
        let layer = mount(&copy, &config("full", "number = \"..0\""));
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _ = control(&layer, "versionfs.clean");
        was_killed = faults.crashed();
        drop(layer);
        let survivor = copy.recover(&Faults::new());
        let layer = mount(&survivor, &config("full", "number = \"..0\""));
        control(&layer, "versionfs.clean").unwrap();
        assert_eq!(store_names(&survivor), [";lost", ";next"], "step {at}");
        assert!(survivor.objects() < objects);
        at += 1;
    }
}

/// A directory that can't be read keeps no other from being cleaned.
#[test]
fn what_cannot_be_listed_is_passed_over() {
    const DIRS: [&[u8]; 3] = [b"a", b"b", b"c"];
    let lower = MemFs::new();
    let layer = mount(&lower, &config("full", ""));
    for dir in DIRS {
        let dir = layer.root().mkdir(&cx(), name(dir), 0o755).unwrap().vnode;
        for content in 0..4_u8 {
            let (_, open) = dir.create(&cx(), name(b"file"), 0o644, OpenFlags::RDWR).unwrap();
            open.write(&cx(), &[content; 100], 0).unwrap();
            drop(open);
            dir.unlink(&cx(), name(b"file")).unwrap();
        }
    }
    drop(layer);
    let (mut at, mut was_failed, mut passed) = (1, true, 0);
    while was_failed {
        let faults = Faults::new();
        let copy = lower.fork(&faults);
        let layer = mount(&copy, &config("full", "number = \"..1\""));
        faults.arm(Plan { count: Count::Only(Op::Readdir), at, fault: Fault::Error(Errno::IO) });
        let done = control(&layer, "versionfs.clean").unwrap();
        was_failed = faults.fired();
        let discarded: u64 = done.split(' ').skip_while(|word| *word != "discarded").nth(1).unwrap().parse().unwrap();
        assert_eq!(done.contains("failed 0"), !was_failed, "step {at}: {done}");
        // Three of each file; all are below the root.
        assert!(discarded == 9 || (was_failed && (discarded == 6 || discarded == 0)), "step {at}: {done}");
        passed += u32::from(was_failed && discarded == 6);
        at += 1;
    }
    assert!(passed >= 3, "{passed}");
}

#[test]
fn the_blocks_of_a_removed_tree_are_deleted() {
    let lower = MemFs::new();
    let layer = mount(&lower, &config("blocks", ""));
    let root = layer.root();
    let dir = root.mkdir(&cx(), name(b"dir"), 0o755).unwrap().vnode;
    for content in 0..4_u8 {
        let (_, open) = dir.create(&cx(), name(b"file"), 0o644, vnode::OpenFlags::RDWR).unwrap();
        open.write(&cx(), &[content; 100], 0).unwrap();
        drop(open);
        dir.unlink(&cx(), name(b"file")).unwrap();
    }
    // A user's symbolic link with such a name is none of ours.
    dir.symlink(&cx(), name(b"file;b1"), b"1").unwrap();
    dir.unlink(&cx(), name(b"file;b1")).unwrap();
    control(&layer, "versionfs.convert").unwrap();
    assert_eq!(block_count(&lower), 4);
    root.rmdir(&cx(), name(b"dir")).unwrap();
    drop((dir, root, layer));
    let layer = mount(&lower, &config("blocks", "number = \"..0\""));
    control(&layer, "versionfs.clean").unwrap();
    assert_eq!(
        (block_count(&lower), store_names(&lower)),
        (0, [";blocks", ";lost", ";next"].map(str::to_owned).to_vec())
    );
}

#[test]
fn a_program_decides() {
    let lower = MemFs::new();
    let with_program = config("full", "external = \"/bin/decide\"\nkeep = \"none\"\nlandmarks = false");
    let layer = mount_with(&lower, &with_program, Some("{\"discard\": [2]}"));
    let mut story = Story::new(5, b"file");
    while index(&lower, b"file").versions.len() < 4 {
        story.step(&layer, &lower);
    }
    control(&layer, "versionfs.clean").unwrap();
    let left: Vec<u64> = index(&lower, b"file").versions.keys().copied().collect();
    assert_eq!(left, [1, 3, 4]);
    verify(&lower, b"file", &story.expected);
    // An answer that makes no sense is none: `keep` does not take what the program would not.
    let layer = mount_with(&lower, &with_program, Some("discard everything"));
    control(&layer, "versionfs.clean").unwrap();
    assert_eq!(index(&lower, b"file").versions.len(), 3);
}

#[test]
fn the_volume_is_bounded() {
    let lower = MemFs::new();
    lower.set_space(4 << 20);
    let layer = mount(&lower, &config("full", ""));
    let mut story = Story::new(9, b"file");
    for _ in 0..30 {
        story.step(&layer, &lower);
    }
    drop(layer);
    let layer = mount(&lower, &config("full", "[volume]\nmax = \"100KiB\""));
    let done = control(&layer, "versionfs.clean").unwrap();
    assert!(!done.contains("discarded 0"), "{done}");
    let usage = control(&layer, "versionfs.usage").unwrap();
    let bytes: u64 = usage.lines().map(|line| line.split(' ').nth(3).unwrap().parse::<u64>().unwrap()).sum();
    assert!((1..=100 << 10).contains(&bytes), "{usage}");
    verify(&lower, b"file", &story.expected);
}

#[test]
fn the_thread_converts_and_ends() {
    let lower = MemFs::new();
    let source = versionfs::PolicySource {
        host: Some(Arc::new(Host(config("compress", ""), None))),
        ..versionfs::PolicySource::default()
    };
    let options = versionfs::Options { background: true, clock, ..versionfs::Options::default() };
    let layer = versionfs::VersionFs::with_policies(lower.clone(), options, source).unwrap();
    let mut story = Story::new(21, b"file");
    for _ in 0..10 {
        story.step(&layer, &lower);
    }
    // `;cN~` is a version that is being built: the end of the layer may interrupt that.
    let is_converted = || store_names(&lower).iter().any(|name| name.contains(";c") && !name.ends_with('~'));
    testkit::until("a version is converted", || if is_converted() { Ok(()) } else { Err(store_names(&lower)) });
    drop(layer);
    assert!(is_converted(), "{:?}", store_names(&lower));
    verify(&lower, b"file", &story.expected);
}

#[test]
fn commands_refuse_what_makes_no_sense() {
    let lower = MemFs::new();
    let layer = mount(&lower, "");
    assert_eq!(layer.root().control(&cx(), "versionfs.policy", b""), Err(vnode::Errno::INVAL));
    assert_eq!(layer.root().control(&cx(), "versionfs.policy", b".;versions"), Err(vnode::Errno::NOENT));
    assert_eq!(control(&layer, "versionfs.reload"), Ok(String::new()));
    assert!(layer.commands().iter().any(|command| command.name == "versionfs.clean"));
}

/// Checks that each version file belongs to the owner that its version had, whose quota it counts
/// against, or to root if it has shared blocks. Returns the owners of the versions by number.
fn owners(lower: &Arc<MemFs>, when: &str) -> Vec<(u64, u32)> {
    let store = store(lower).unwrap();
    let index = index(lower, b"file");
    let check = |(number, version): (&u64, &versionset::Version)| {
        let file = versionset::version_name(b"file", version.letter, *number);
        let attr = store.lookup(&cx(), name(&file)).unwrap().unwrap().attr;
        let is_shared = version.letter == versionset::Letter::Blocks;
        let owner = if is_shared { (0, 0) } else { (version.uid, version.gid) };
        assert_eq!((attr.uid, attr.gid), owner, "{when}: {}", file.escape_ascii());
        (*number, version.uid)
    };
    index.versions.iter().map(check).collect()
}

#[test]
fn versions_count_against_the_owner_of_the_file() {
    let user = |uid: u32| Cx::internal(uid, uid + 1);
    for storage in STORAGES {
        let lower = MemFs::new();
        let layer = mount(&lower, &config(storage, ""));
        let root = layer.root();
        let make = |entry: &[u8], uid: u32| {
            let (_, file) = root.create(&user(uid), name(entry), 0o644, OpenFlags::RDWR).unwrap();
            file.write(&user(uid), &[uid as u8; 9000], 0).unwrap();
        };
        let get = || root.lookup(&cx(), name(b"file")).unwrap().unwrap().vnode;
        let write = |flags: u32, byte: u8| {
            let file = get().open(&user(1000), OpenFlags(OpenFlags::RDWR.0 | flags)).unwrap();
            file.write(&user(1000), &[byte; 5000], 0).unwrap();
        };
        let set = |set: SetAttr| assert!(get().setattr(&cx(), &set, None).is_ok());
        make(b"file", 1000);
        write(0, 1);
        write(0o1000, 2);
        set(SetAttr { size: Some(100), ..SetAttr::default() });
        set(SetAttr { mode: Some(0o600), ..SetAttr::default() });
        // Root gives it away, and another user's file replaces it.
        set(SetAttr { uid: Some(3000), gid: Some(3001), ..SetAttr::default() });
        make(b"new", 2000);
        root.rename(&cx(), name(b"new"), &root, name(b"file"), RenameFlags::default()).unwrap();
        write(0, 3);
        root.unlink(&user(1000), name(b"file")).unwrap();
        let expected = [1000, 1000, 1000, 1000, 1000, 3000, 2000, 2000];
        let expected: Vec<_> = (1..).zip(expected).collect();
        assert_eq!(owners(&lower, storage), expected, "{storage}");
        let done = control(&layer, "versionfs.convert").unwrap();
        assert_eq!(owners(&lower, &format!("{storage}, converted")), expected, "{storage}: {done}");
        // Discarded in the middle: another version takes over its bytes.
        layer.root().control(&cx(), "versionfs.discard", b"file 3 6").unwrap();
        let left: Vec<_> = expected.iter().copied().filter(|(number, _)| ![3, 6].contains(number)).collect();
        assert_eq!(owners(&lower, &format!("{storage}, discarded")), left, "{storage}");
    }
}

#[test]
fn a_walk_leaves_what_programs_are_building() {
    const WRITERS: usize = 2;
    for storage in ["full", "sparse"] {
        let lower = MemFs::new();
        let layer = mount(&lower, &config(storage, ""));
        let running = AtomicUsize::new(WRITERS);
        let write = |writer: usize| {
            let file = format!("file {writer}");
            let (entry, new) = layer.root().create(&cx(), name(file.as_bytes()), 0o644, OpenFlags::RDWR).unwrap();
            drop(new);
            let mut failed = Vec::new();
            for round in 0..1000 {
                let written =
                    entry.vnode.open(&cx(), OpenFlags::RDWR).and_then(|file| file.write(&cx(), b"text", round * 4));
                let mode = SetAttr { mode: Some(0o600 + (round % 2) as u32), ..SetAttr::default() };
                failed.extend(written.map(|_| ()).and(entry.vnode.setattr(&cx(), &mode, None).map(|_| ())).err());
            }
            running.fetch_sub(1, Ordering::Relaxed);
            failed
        };
        let (failed, done) = std::thread::scope(|scope| {
            let write = &write;
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            let mut done = Vec::new();
            while running.load(Ordering::Relaxed) > 0 {
                done.push(control(&layer, "versionfs.clean").unwrap());
            }
            (writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<_>>(), done)
        });
        assert_eq!(failed, [], "{storage}: after {} walks", done.len());
        assert!(done.iter().all(|done| done.contains("failed 0")), "{storage}: {done:?}");
    }
}
