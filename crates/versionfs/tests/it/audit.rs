//! The audit log: each operation is recorded with its user, a failed one leaves no record, and no
//! hole remains after errors and crashes at every step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use crate::common::policies::{Host, clock, name, read_all, store};
use core::sync::atomic::AtomicBool;
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeSet;
use std::sync::Arc;
use versionfs::{NoSpace, Options, PolicySource, VersionFs};
use versionset::{LOG, MAX_AUDIT_RECORD, SEGMENT_START, STORE};
use vnode::{
    Cx, Errno, Layer, MAY_BLOCK, Name, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time, Vnode, XattrFlags,
};

static NEVER: AtomicBool = AtomicBool::new(false);

fn user() -> Cx<'static> {
    Cx::new(1000, 100, 0, 0o022, true, &NEVER)
}

fn options() -> Options {
    Options { comprehensive: true, audit: true, clock, ..Options::default() }
}

fn mount(lower: &Arc<MemFs>, options: Options) -> Arc<VersionFs> {
    VersionFs::new(lower.clone(), options)
}

/// A line of the log, without number, time and numbers of directories.
fn short(line: &str) -> String {
    let fields: Vec<_> = line.split(' ').collect();
    assert_eq!(fields.len(), 18, "{line}");
    let picked = [2, 3, 6, 8, 9, 10, 11, 12, 13, 14].map(|at| fields[at]);
    picked.join(" ")
}

fn reply(layer: &VersionFs, from: u64) -> Vec<String> {
    let text = layer.root().control(&Cx::internal(0, 0), "versionfs.log", from.to_string().as_bytes()).unwrap();
    String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
}

/// The whole log, of all parts of the reply.
fn lines(layer: &VersionFs) -> Vec<String> {
    let mut all = reply(layer, 1);
    while let Some(from) = all.last().and_then(|last| last.strip_prefix("more ")).map(|from| from.parse().unwrap()) {
        all.pop();
        all.extend(reply(layer, from));
    }
    all
}

fn numbers(lines: &[String]) -> Vec<u64> {
    lines.iter().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

fn log_dir(lower: &Arc<MemFs>) -> Arc<dyn Vnode> {
    store(lower).unwrap().lookup(&Cx::internal(0, 0), name(LOG)).unwrap().unwrap().vnode
}

fn segments(lower: &Arc<MemFs>) -> Vec<(u64, Vec<u8>)> {
    let (dir, mut names) = (log_dir(lower), Vec::new());
    dir.readdir(&Cx::internal(0, 0), 0, &mut |entry| {
        names.extend(String::from_utf8_lossy(entry.name.as_bytes()).parse::<u64>());
        true
    })
    .unwrap();
    names.sort_unstable();
    let read = |first: u64| read_all(&*look(&dir, &first.to_string()));
    names.into_iter().map(|first| (first, read(first))).collect()
}

fn look(dir: &Arc<dyn Vnode>, entry: &str) -> Arc<dyn Vnode> {
    dir.lookup(&Cx::internal(0, 0), name(entry.as_bytes())).unwrap().unwrap().vnode
}

#[test]
fn each_operation_is_recorded() {
    let lower = MemFs::new();
    let layer = mount(&lower, options());
    let (cx, root) = (user(), layer.root());
    root.setattr(&Cx::internal(0, 0), &SetAttr { uid: Some(1000), ..SetAttr::default() }, None).unwrap();
    let dir = root.mkdir(&cx, name(b"d"), 0o755).unwrap().vnode;
    let (entry, file) = dir.create(&cx, name(b"f 1"), 0o640, OpenFlags::RDWR).unwrap();
    file.write(&cx, b"hello", 0).unwrap();
    file.write(&cx, b"HE", 1).unwrap();
    assert_eq!(file.write(&cx, b"", 0), Ok(0));
    file.fallocate(&cx, 0, 0, 10).unwrap();
    drop(file);
    let vnode = entry.vnode;
    let append = vnode.open(&cx, OpenFlags(OpenFlags::WRONLY.0 | 0o2000)).unwrap();
    append.write(&cx, b"!", 0).unwrap();
    drop(append);
    drop(vnode.open(&cx, OpenFlags::RDONLY).unwrap());
    drop(vnode.open(&cx, OpenFlags::RDWR.with_trunc()).unwrap());
    vnode.setattr(&cx, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None).unwrap();
    vnode.setattr(&cx, &SetAttr { size: Some(3), ..SetAttr::default() }, None).unwrap();
    vnode.setattr(&cx, &SetAttr { mtime: Some(SetTime::At(Time::default())), ..SetAttr::default() }, None).unwrap();
    vnode.setattr(&cx, &SetAttr { uid: Some(5), ..SetAttr::default() }, None).unwrap();
    dir.setattr(&cx, &SetAttr { mode: Some(0o700), ..SetAttr::default() }, None).unwrap();
    vnode.setxattr(&cx, b"user.k", b"value", XattrFlags::default()).unwrap();
    vnode.removexattr(&cx, b"user.k").unwrap();
    root.link(&cx, name(b"second"), &vnode).unwrap();
    root.symlink(&cx, name(b"s"), b"to there").unwrap();
    root.mknod(&cx, name(b"p"), 0o010_644, 0).unwrap();
    drop(root.tmpfile(&cx, 0o600, OpenFlags::RDWR).unwrap());
    dir.rename(&cx, name(b"f 1"), &root, name(b"g"), RenameFlags::default()).unwrap();
    drop(root.create(&cx, name(b"h"), 0o600, OpenFlags::WRONLY).unwrap());
    root.rename(&cx, name(b"h"), &root, name(b"s"), RenameFlags::default()).unwrap();
    root.rename(&cx, name(b"s"), &root, name(b"p"), RenameFlags { exchange: true, ..RenameFlags::default() }).unwrap();
    root.unlink(&cx, name(b"g")).unwrap();
    root.rmdir(&cx, name(b"d")).unwrap();
    root.control(&cx, "versionfs.annotate", b"s 1 note").unwrap();
    // What fails or only reads leaves no record.
    root.unlink(&cx, name(b"none")).unwrap_err();
    root.mkdir(&cx, name(b"s"), 0o755).unwrap_err();
    root.control(&cx, "versionfs.list", b"s").unwrap();
    let all = lines(&layer);
    let shown: Vec<String> = all.iter().map(|line| short(line)).collect();
    // Operation, errno, path, new path, two numbers, text, versions, user, group.
    let expected = "\
chown 0 / - 0 0 uid=0>1000 - 0 0
mkdir 0 /d - 493 0 - - 1000 100
create 0 /d/f\\0401 - 416 0 - - 1000 100
write 0 /d/f\\0401 - 0 5 - 1 1000 100
write 0 /d/f\\0401 - 1 2 - 2 1000 100
write 0 /d/f\\0401 - 0 0 - - 1000 100
fallocate 0 /d/f\\0401 - 0 10 mode=0x0 3 1000 100
write 0 /d/f\\0401 - 10 1 - 4 1000 100
truncate 0 /d/f\\0401 - 0 0 - - 1000 100
chmod 0 /d/f\\0401 - 0 0 mode=640>600 6 1000 100
truncate 0 /d/f\\0401 - 0 3 size=0>3 7 1000 100
times 0 /d/f\\0401 - 0 0 mtime 8 1000 100
chown 0 /d/f\\0401 - 0 0 uid=1000>5 9 1000 100
chmod 0 /d - 0 0 mode=755>700 - 1000 100
setxattr 0 /d/f\\0401 - 0 5 user.k 10 1000 100
removexattr 0 /d/f\\0401 - 0 0 user.k 11 1000 100
link 0 /d/f\\0401 /second 0 0 - 12 1000 100
symlink 0 /s - 0 0 to\\040there - 1000 100
mknod 0 /p - 4516 0 - - 1000 100
tmpfile 0 / - 384 0 - - 1000 100
rename 0 /d/f\\0401 /g 0 0 - 13 1000 100
create 0 /h - 384 0 - - 1000 100
rename 0 /h /s 0 0 - 1,1n 1000 100
rename 0 /s /p 0 0 exchange 2,1n 1000 100
unlink 0 /g - 0 0 - 14 1000 100
rmdir 0 /d - 0 0 - 1 1000 100
command 0 / - 0 0 versionfs.annotate\\040s\\0401\\040note - 1000 100";
    assert_eq!(shown.join("\n"), expected);
    assert_eq!(numbers(&all), (1..=all.len() as u64).collect::<Vec<_>>());
    // The number of the object and of its directory.
    let fields: Vec<_> = all[3].split(' ').collect();
    assert_eq!((fields[4], fields[5]), (vnode.id().to_string().as_str(), dir.id().to_string().as_str()));
    // Nothing of it is visible.
    assert!(root.lookup(&cx, name(STORE)).unwrap().is_none());
}

/// Operations on names: each either made its change and has a record, or neither.
struct Story {
    layer: Arc<VersionFs>,
    acked: Vec<String>,
}

impl Story {
    fn run(&mut self) {
        let (cx, root) = (user(), self.layer.root());
        let mut step = |what: &str, result: Result<()>| {
            if result.is_ok() {
                self.acked.push(what.to_owned());
            }
        };
        for at in 0..4 {
            let (a, b) = (format!("a{at}"), format!("b{at}"));
            step(&format!("mkdir /{a} -"), root.mkdir(&cx, name(a.as_bytes()), 0o755).map(|_| ()));
            step(&format!("symlink /{b} -"), root.symlink(&cx, name(b.as_bytes()), b"x").map(|_| ()));
            let c = format!("c{at}");
            let renamed = root.rename(&cx, name(b.as_bytes()), &root, name(c.as_bytes()), RenameFlags::default());
            step(&format!("rename /{b} /{c}"), renamed);
            step(&format!("unlink /{c} -"), root.unlink(&cx, name(c.as_bytes())));
        }
    }
}

/// The operations in the log with both names, those that failed apart.
fn recorded(layer: &VersionFs) -> (Vec<String>, Vec<String>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for line in lines(layer) {
        assert!(!line.starts_with("damaged"), "{line}");
        let fields: Vec<_> = line.split(' ').collect();
        let shown = format!("{} {} {}", fields[2], fields[6], fields[8]);
        if fields[3] == "0" { done.push(shown) } else { failed.push(shown) }
    }
    (done, failed)
}

/// The names that exist after the operations.
fn replay(operations: &[String]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for operation in operations {
        let fields: Vec<_> = operation.split(' ').map(|field| field.trim_start_matches('/').to_owned()).collect();
        match &*fields[0] {
            "mkdir" | "symlink" => assert!(names.insert(fields[1].clone()), "{operation} twice"),
            "rename" => {
                assert!(names.remove(&fields[1]), "{operation}: no source");
                names.insert(fields[2].clone());
            }
            "unlink" => assert!(names.remove(&fields[1]), "{operation}: never made"),
            other => panic!("{other}"),
        }
    }
    names
}

fn users_names(layer: &VersionFs) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    layer
        .root()
        .readdir(&Cx::internal(0, 0), 0, &mut |entry| {
            let shown = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
            names.extend(Some(shown).filter(|name| name != "." && name != ".."));
            true
        })
        .unwrap();
    names
}

/// Runs the story with a fault at each change of the layer below, until there is none any more.
fn with_each_fault(fault: Fault, check: impl Fn(&Arc<MemFs>, Story, u64)) {
    let mut at = 1;
    loop {
        let faults = Faults::new();
        let lower = MemFs::with(MemOptions::default(), &faults);
        // Small segments: rotation fails, too.
        let layer = mount(&lower, Options { audit_segment: 900, ..options() });
        let mut story = Story { layer, acked: Vec::new() };
        faults.arm(Plan { count: Count::Changes, at, fault });
        story.run();
        let fired = faults.fired();
        if !matches!(fault, Fault::Crash) {
            faults.disarm();
        }
        check(&lower, story, at);
        if !fired {
            assert!(at > 50, "{at}");
            return;
        }
        at += 1;
    }
}

#[test]
fn an_operation_is_recorded_if_and_only_if_it_was_done() {
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS] {
        with_each_fault(Fault::Error(errno), |_, story, at| {
            // The first operation after the fault writes what could not be written.
            story.layer.root().mkdir(&user(), name(b"last"), 0o755).unwrap();
            let (done, failed) = recorded(&story.layer);
            assert_eq!(failed, [""; 0], "fault {at}");
            assert_eq!(replay(&done), users_names(&story.layer), "fault {at}: {done:?}");
            assert!(story.acked.iter().all(|acked| done.contains(acked)), "fault {at}: {done:?}");
            assert!(done.len() <= story.acked.len() + 2, "fault {at}: {done:?}, acknowledged {:?}", story.acked);
        });
    }
}

#[test]
fn an_operation_that_may_have_been_done_is_recorded_with_its_error() {
    with_each_fault(Fault::Error(Errno::IO), |_, story, at| {
        story.layer.root().mkdir(&user(), name(b"last"), 0o755).unwrap();
        let (done, failed) = recorded(&story.layer);
        assert!(failed.len() <= 1, "fault {at}: {failed:?}");
        assert!(story.acked.iter().all(|acked| done.contains(acked)), "fault {at}: {done:?}");
        // memfs does nothing at an error, but the layer can't know.
        assert_eq!(replay(&done), users_names(&story.layer), "fault {at}: {done:?} {failed:?}");
    });
}

#[test]
fn after_a_crash_the_log_has_what_was_acknowledged() {
    with_each_fault(Fault::Crash, |lower, story, at| {
        let acked = story.acked.clone();
        drop(story);
        let lower = lower.recover(&Faults::new());
        let layer = mount(&lower, options());
        layer.root().mkdir(&user(), name(b"last"), 0o755).unwrap();
        let (mut done, failed) = recorded(&layer);
        assert_eq!((done.pop().as_deref(), failed.len()), (Some("mkdir /last -"), 0), "crash {at}");
        assert_eq!(done, acked, "crash {at}");
    });
}

#[test]
fn a_torn_tail_stays_and_the_log_goes_on() {
    let original = MemFs::new();
    let layer = mount(&original, options());
    for entry in ["a", "b", "c"] {
        layer.root().mkdir(&user(), name(entry.as_bytes()), 0o755).unwrap();
    }
    drop(layer);
    let whole = segments(&original).remove(0).1;
    for len in 0..whole.len() {
        let lower = original.fork(&Faults::new());
        let segment = look(&log_dir(&lower), "1");
        let set = SetAttr { size: Some(len as u64), ..SetAttr::default() };
        segment.setattr(&Cx::internal(0, 0), &set, None).unwrap();
        for round in 0..2 {
            let layer = mount(&lower, options());
            layer.root().mkdir(&user(), name(format!("new{round}").as_bytes()), 0o755).unwrap();
            let all = lines(&layer);
            let operations: Vec<_> = all.iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
            let made = operations.iter().filter(|operation| **operation == "mkdir").count();
            let torn = operations.iter().filter(|operation| **operation == "torn").count();
            let damaged = all.iter().filter(|line| line.starts_with("damaged")).count();
            assert_eq!((torn, damaged <= 1), (damaged, true), "{len}: {all:#?}");
            assert!(made > round && made <= 3 + round, "{len}: {all:#?}");
            // What is left of a torn record stays as it was.
            let first = segments(&lower).remove(0).1;
            assert!(torn == 0 || first == whole[..len], "{len}");
        }
    }
}

#[test]
fn a_full_disk_refuses_changes_or_the_log_says_how_many_it_lacks() {
    for no_space in [NoSpace::Fail, NoSpace::Skip] {
        let lower = MemFs::new();
        let layer = mount(&lower, Options { no_space, ..options() });
        let root = layer.root();
        root.mkdir(&user(), name(b"before"), 0o755).unwrap();
        // Nothing is left but what was reserved.
        lower.set_space(0);
        let (mut made, mut refused) = (0, 0);
        for at in 0..5000 {
            match root.mkdir(&user(), name(format!("d{at}").as_bytes()), 0o755) {
                Ok(_) => made += 1,
                Err(errno) => {
                    assert_eq!(errno, Errno::NOSPC);
                    refused += 1;
                }
            }
        }
        assert!(made > 1000, "{made}");
        assert_eq!(refused > 0, no_space == NoSpace::Fail);
        lower.set_space(u64::MAX);
        root.mkdir(&user(), name(b"after"), 0o755).unwrap();
        let all = lines(&layer);
        let count = |word: &str| all.iter().filter(|line| line.split(' ').nth(2) == Some(word)).count();
        let lost: usize = all
            .iter()
            .filter_map(|line| {
                let fields: Vec<_> = line.split(' ').collect();
                (fields[2] == "lost").then(|| fields[10].parse::<usize>().unwrap())
            })
            .sum();
        assert_eq!(users_names(&layer).len(), made + 2);
        assert_eq!(count("mkdir") + lost, made + 2, "{no_space:?}");
        assert_eq!(lost > 0, no_space == NoSpace::Skip);
    }
}

#[test]
fn segments_are_bounded_and_never_changed_again() {
    const BOUND: u64 = 3000;
    let lower = MemFs::new();
    let layer = mount(&lower, Options { audit_segment: BOUND, ..options() });
    let long = [b'n'; 240];
    let mut earlier: Vec<(u64, Vec<u8>)> = Vec::new();
    for _ in 0..3000 {
        layer.root().mkdir(&user(), name(&long), 0o755).unwrap();
        layer.root().rmdir(&user(), name(&long)).unwrap();
    }
    for _ in 0..40 {
        layer.root().mkdir(&user(), name(b"x"), 0o755).unwrap();
        layer.root().rmdir(&user(), name(b"x")).unwrap();
        let now = segments(&lower);
        assert!(now.iter().all(|(_, bytes)| bytes.len() as u64 <= BOUND + MAX_AUDIT_RECORD as u64));
        let done = &now[..now.len() - 1];
        assert_eq!(&done[..earlier.len()], &*earlier);
        earlier = done.to_vec();
    }
    // The reply is cut, and goes on at any record.
    assert!(reply(&layer, 1).last().unwrap().starts_with("more "));
    let all = lines(&layer);
    assert_eq!(numbers(&all), (1..=6080).collect::<Vec<_>>());
    assert_eq!(numbers(&reply(&layer, 6079)), [6079, 6080]);
    assert_eq!(reply(&layer, 6081), [""; 0]);
    // A later mount goes on in the last segment.
    let (last, count) = (segments(&lower).pop().unwrap(), segments(&lower).len());
    drop(layer);
    let layer = mount(&lower, Options { audit_segment: u64::MAX, ..options() });
    layer.root().mkdir(&user(), name(b"y"), 0o755).unwrap();
    let now = segments(&lower);
    assert!(now.len() == count && now[count - 1].1.starts_with(&last.1) && now[count - 1].1.len() > last.1.len());
    assert_eq!(numbers(&lines(&layer)).last(), Some(&6081));
}

#[test]
fn fsync_makes_records_durable() {
    let lower = MemFs::with(MemOptions { lose_data: true, ..MemOptions::default() }, &Faults::new());
    let layer = mount(&lower, options());
    let (_, file) = layer.root().create(&user(), name(b"f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&user(), b"x", 0).unwrap();
    let after = |lower: &Arc<MemFs>| lines(&mount(&lower.recover(&Faults::new()), options())).len();
    assert_eq!(after(&lower), 0);
    file.fsync(&user(), false).unwrap();
    assert_eq!(after(&lower), 2);
    layer.root().mkdir(&user(), name(b"d"), 0o755).unwrap();
    assert_eq!(after(&lower), 2);
    layer.root().fsync(&user(), false).unwrap();
    assert_eq!(after(&lower), 3);
}

#[test]
fn the_administrator_can_have_some_users_logged() {
    let lower = MemFs::new();
    let config = "builtin = false\n[users]\n[[users.override]]\nuser = 1000\nlog = true\n";
    let source = PolicySource { host: Some(Arc::new(Host(config.to_owned(), None))), ..PolicySource::default() };
    let layer = VersionFs::with_policies(lower.clone(), Options { clock, ..Options::default() }, source).unwrap();
    let other = Cx::new(1001, 100, 0, 0o022, true, &NEVER);
    let root = layer.root();
    root.mkdir(&other, name(b"unseen"), 0o755).unwrap();
    assert_eq!(lines(&layer), [""; 0]);
    let (_, file) = root.create(&user(), name(b"f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&user(), b"one", 0).unwrap();
    file.write(&user(), b"two", 3).unwrap();
    drop(file);
    root.rmdir(&other, name(b"unseen")).unwrap();
    let shown: Vec<_> = lines(&layer).iter().map(|line| short(line)).collect();
    // Without comprehensive versions: the first content is no change.
    let expected =
        ["create 0 /f - 420 0 - - 1000 100", "write 0 /f - 0 3 - - 1000 100", "write 0 /f - 3 3 - - 1000 100"];
    assert_eq!(shown, expected);
}

#[test]
fn a_thread_that_must_not_block_goes_elsewhere_before_anything_changes() {
    let lower = MemFs::new();
    let layer = mount(&lower, options());
    let quick = Cx::new(1000, 100, 0, 0o022, false, &NEVER);
    // Opening the log takes longer.
    assert_eq!(layer.root().mkdir(&quick, name(b"d"), 0o755).err(), Some(MAY_BLOCK));
    assert!(users_names(&layer).is_empty());
    layer.root().mkdir(&user(), name(b"d"), 0o755).unwrap();
    assert_eq!(recorded(&layer).0, ["mkdir /d -"]);
}

#[test]
fn hostile_segments_are_no_problem() {
    for content in [&b""[..], b"VERSLOG1", &[0xff; 100], &[0; 4096]] {
        let lower = MemFs::new();
        drop({
            let layer = mount(&lower, options());
            layer.root().mkdir(&user(), name(b"d"), 0o755).unwrap();
            layer
        });
        let (dir, cx) = (log_dir(&lower), Cx::internal(0, 0));
        let (_, file) = dir.create(&cx, name(b"9"), 0o600, OpenFlags::WRONLY).unwrap();
        versionset::write_full(&cx, &*file, content, 0).unwrap();
        dir.mkdir(&cx, Name::new(b"not a segment").unwrap(), 0o700).unwrap();
        let layer = mount(&lower, options());
        layer.root().mkdir(&user(), name(b"e"), 0o755).unwrap();
        let all = lines(&layer);
        assert!(all[0].contains(" mkdir ") && all.last().unwrap().contains("/e "), "{all:#?}");
        assert_eq!(all.iter().any(|line| line.starts_with("damaged 9 ")), content.len() >= SEGMENT_START);
    }
}

/// Mounts with the administrator's bounds of the log. Segments have about five records.
fn bounded(lower: &Arc<MemFs>, bounds: &str, options: Options) -> Arc<VersionFs> {
    let source =
        PolicySource { host: Some(Arc::new(Host(format!("[audit]\n{bounds}\n"), None))), ..PolicySource::default() };
    VersionFs::with_policies(lower.clone(), Options { audit_segment: 500, ..options }, source).unwrap()
}

fn clean(layer: &VersionFs) -> Result<()> {
    layer.root().control(&Cx::internal(0, 0), "versionfs.clean", b"").map(drop)
}

fn change(layer: &VersionFs, count: usize) {
    for _ in 0..count {
        layer.root().mkdir(&user(), name(b"d"), 0o755).unwrap();
        layer.root().rmdir(&user(), name(b"d")).unwrap();
    }
}

/// Panics if a record is missing that the log doesn't say it discarded. Returns the number of the
/// first one.
fn check_gaps(layer: &VersionFs, when: &str) -> u64 {
    let all = lines(layer);
    let numbers = numbers(&all);
    assert!(numbers.is_sorted_by(|one, next| one + 1 == *next), "{when}: {all:#?}");
    let last = all.iter().rev().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields[2] == "discarded");
    let end = last.map_or(0, |fields| fields[10].parse().unwrap());
    assert!(numbers[0] <= end + 1, "{when}: {end} {all:#?}");
    numbers[0]
}

#[test]
fn old_segments_are_discarded_as_the_administrator_says() {
    // The clock advances by more than an hour with each operation.
    for (bounds, is_bounded) in [
        ("", false),
        ("age = \"none..none\"\nspace = \"1GiB..none\"", false),
        ("space = \"..3KB\"", true),
        ("age = \"..5d\"", true),
        ("age = \"1d..\"\nspace = \"..3KB\"", true),
        // A minimum wins.
        ("age = \"100y..\"\nspace = \"..0\"", false),
        ("age = \"..0\"\nspace = \"1GiB..\"", false),
    ] {
        let lower = MemFs::new();
        let mut layer = bounded(&lower, bounds, options());
        let mut first = 1;
        for round in 0..4 {
            change(&layer, 100);
            clean(&layer).unwrap();
            let next = check_gaps(&layer, bounds);
            assert!(if is_bounded { next > first + 150 } else { next == 1 }, "{bounds}: {next}");
            first = next;
            let (count, size) =
                segments(&lower).iter().fold((0, 0), |all, (_, bytes)| (all.0 + 1, all.1 + bytes.len()));
            if bounds.contains("..3KB") && is_bounded {
                assert!(size > 2000 && size < 3900, "{bounds}: {size}");
            }
            assert!(count > 1, "{bounds}: {count}");
            if round == 1 {
                layer = bounded(&lower, bounds, options());
            }
        }
        // Without a log, too, and without a store.
        let lower = MemFs::new();
        clean(&bounded(&lower, bounds, Options { audit: false, comprehensive: false, ..options() })).unwrap();
    }
}

#[test]
fn discarding_segments_may_fail_or_be_killed_at_any_step() {
    for fault in [Fault::Error(Errno::IO), Fault::Error(Errno::NOSPC), Fault::Crash] {
        let mut was_discarded = false;
        for at in 1.. {
            let faults = Faults::new();
            let mut lower = MemFs::with(MemOptions::default(), &faults);
            let mut layer = bounded(&lower, "space = \"..2KB\"", options());
            change(&layer, 20);
            faults.arm(Plan { count: Count::Changes, at, fault });
            let done = clean(&layer);
            let fired = faults.fired();
            if matches!(fault, Fault::Crash) {
                drop(layer);
                lower = lower.recover(&Faults::new());
                layer = bounded(&lower, "space = \"..2KB\"", options());
            } else {
                faults.disarm();
            }
            let when = format!("{fault:?} {at} {done:?}");
            was_discarded |= check_gaps(&layer, &when) > 1;
            change(&layer, 1);
            check_gaps(&layer, &when);
            clean(&layer).unwrap();
            assert!(check_gaps(&layer, &when) > 20, "{when}");
            if !fired {
                assert!(at > 3 && was_discarded, "{when}");
                break;
            }
        }
    }
}

#[test]
fn old_segments_make_room_on_a_full_disk() {
    let lower = MemFs::new();
    change(&bounded(&lower, "", options()), 40);
    lower.set_space(0);
    let layer = bounded(&lower, "space = \"..2KB\"", Options { audit: false, comprehensive: false, ..options() });
    clean(&layer).unwrap();
    assert!(check_gaps(&layer, "full") > 20);
}

#[test]
fn the_log_is_bounded_while_it_grows() {
    let lower = MemFs::new();
    let layer = bounded(&lower, "space = \"..2KB\"", Options { background: true, ..options() });
    change(&layer, 20);
    testkit::until("segments are discarded", || check_gaps(&layer, "in the background") > 1);
}
