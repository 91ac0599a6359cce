//! Moving files between the branches of a union in use: whatever moves, users see the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::config::{Access, Config};
use crate::common::drain::{pass, send};
use crate::common::layer_ops::{CX, at, attr};
use crate::common::random_branches::random_config;
use crate::common::session::Session;
use crate::common::test_union::{Start, TestUnion, check};
use crate::common::view::{Numbers, Times};
use memfs::{Count, Fault, MemOptions, Plan};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use testkit::seeds;
use unionfs::Delete;
use vnode::Errno;

/// Drains a branch; returns the reasons why objects remain, with their number.
fn drain(session: &Session, branch: usize) -> Result<BTreeMap<String, u32>, String> {
    let mut last = Value::Null;
    // A whiteout or directory can depend on an object that is considered after it.
    for _ in 0..3 {
        last = pass(session, branch)?;
        if last.get("refused").is_some() {
            return Ok(BTreeMap::from([("refused".to_owned(), 1)]));
        }
    }
    let mut reasons = BTreeMap::new();
    for object in last["objects"].as_array().unwrap() {
        if object["reason"] == "failed" {
            println!("{branch}: {object}");
        }
        *reasons.entry(object["reason"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    Ok(reasons)
}

/// Returns whether nothing but records of the union is left on the branch.
fn is_empty(union: &TestUnion, branch: usize) -> bool {
    let names = common::layer_ops::list(&*union.branches[branch].1, "");
    names.iter().all(|name| name.starts_with(".wh..wh."))
}

fn same(session: &Session, start: &Start, numbers: &mut Numbers) -> Result<(), String> {
    check(session, &start.tree, numbers, Times::All).map(drop)
}

fn one(start: &Start, config: &Config, branch: usize) -> Result<BTreeMap<String, u32>, String> {
    let mut union = start.union.fork();
    let mut numbers = start.numbers.clone();
    let session = union.mount()?;
    same(&session, start, &mut numbers)?;
    let idle = union.idle_whiteouts();
    let left = drain(&session, branch)?;
    same(&session, start, &mut numbers).map_err(|e| format!("drained:\n{e}"))?;
    union.check_idle_whiteouts(&idle)?;
    union.check_read_only_branches()?;
    drop(session);
    let session = union.mount()?;
    same(&session, start, &mut numbers).map_err(|e| format!("remounted:\n{e}"))?;
    if !left.contains_key("refused") && left.is_empty() != is_empty(&union, branch) {
        return Err(format!("remaining: {left:?}, but the branch holds {:?}", union.dump()[branch]));
    }
    drop(session);
    if left.is_empty() && config.branches.len() > 1 && branch > 0 {
        union.branches.remove(branch);
        let session = union.mount_as(&|at| if at < branch { at } else { at + 1 })?;
        same(&session, start, &mut numbers).map_err(|e| format!("without the branch:\n{e}"))?;
    }
    Ok(left)
}

#[test]
fn draining_changes_nothing_that_users_see() {
    let mut reasons: BTreeMap<String, u32> = BTreeMap::new();
    let mut drained = 0;
    for seed in seeds(80) {
        let config = random_config(seed);
        let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
        for branch in 0..config.branches.len() {
            if config.branches[branch].0 != Access::Rw {
                continue;
            }
            match one(&start, &config, branch) {
                Ok(left) => {
                    drained += u32::from(left.is_empty());
                    left.into_iter().for_each(|(reason, n)| *reasons.entry(reason).or_default() += n);
                }
                Err(e) => panic!(
                    "STRATA_SEED={seed} {} branch {branch}: {e}\nbranches: {:?}",
                    config.name,
                    start.union.dump()
                ),
            }
        }
    }
    println!("drained {drained}; left: {reasons:?}");
    if testkit::number("STRATA_SEED").is_none() {
        assert!(drained > 20, "{drained} {reasons:?}");
    }
}

/// A crash at any change of a branch: the view and the numbers are the same, and draining can be
/// continued.
#[test]
fn draining_can_be_interrupted_anywhere() {
    for seed in seeds(6) {
        let config = random_config(seed * 31);
        let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
        for branch in (0..config.branches.len()).filter(|&at| config.branches[at].0 == Access::Rw) {
            for fault in [Fault::Crash, Fault::Error(Errno::IO), Fault::Errors(Errno::NOSPC)] {
                for step in 1.. {
                    let result = interrupted(&start, branch, step, fault);
                    match result {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(e) => panic!(
                            "STRATA_SEED={seed} {} branch {branch} {fault:?} at {step}: {e}\nbranches: {:?}",
                            config.name,
                            start.union.dump()
                        ),
                    }
                }
            }
        }
    }
}

/// Returns false if the fault did not happen.
fn interrupted(start: &Start, branch: usize, step: u64, fault: Fault) -> Result<bool, String> {
    let mut union = start.union.fork();
    let mut numbers = start.numbers.clone();
    let mut session = union.mount()?;
    same(&session, start, &mut numbers)?;
    union.faults.arm(Plan { count: Count::Changes, at: step, fault });
    let before = pass(&session, branch);
    let hit = union.faults.fired() || union.faults.crashed();
    union.faults.disarm();
    if fault == Fault::Crash {
        union = union.recover();
        drop(std::mem::replace(&mut session, Session::new(memfs::MemFs::new())));
        session = union.mount()?;
    }
    check(&session, &start.tree, &mut numbers, Times::Files).map_err(|e| format!("interrupted ({before:?}):\n{e}"))?;
    let left = drain(&session, branch)?;
    check(&session, &start.tree, &mut numbers, Times::Files).map_err(|e| format!("continued:\n{e}"))?;
    if left.is_empty() && !is_empty(&union, branch) {
        return Err(format!("continued, but the branch holds {:?}", union.dump()[branch]));
    }
    drop(session);
    let session = union.mount()?;
    let seen = check(&session, &start.tree, &mut numbers, Times::Files).map_err(|e| format!("remounted:\n{e}"))?;
    union.check_leftovers(&seen)?;
    Ok(hit)
}

#[test]
fn wrong_requests_are_refused() {
    let config = random_config(4);
    let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
    let session = start.union.mount().unwrap();
    for wrong in [json!({}), json!({ "do": "fly" }), json!({ "do": "drain" }), json!({ "do": "rebalance" })] {
        assert_eq!(send(&session, &wrong), Err(Errno::INVAL));
    }
    assert_eq!(send(&session, &json!({ "do": "step", "id": 7 })), Err(Errno::STALE));
    assert!(send(&session, &json!({ "do": "drain", "branch": "/none" })).unwrap()["refused"].is_string());
    assert_eq!(send(&session, &json!({ "do": "end" })), Ok(json!({})));
    let _ = at(&*session.layer, "");
}

/// A file with several names moves left name by name.
#[test]
fn hard_links_move_left() {
    use crate::common::layer_ops::{find, mkdir, name, write};
    let config = Config {
        name: "hard links".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Rw, vec![]), (Access::Rw, vec![])],
        prologue: vec![],
    };
    let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
    let union = start.union.fork();
    let branch = &*union.branches[2].1;
    for dir in ["d", "e"] {
        mkdir(branch, dir);
    }
    write(branch, "d/a", b"text");
    let session = union.mount().unwrap();
    let root = &*session.layer;
    at(root, "e").link(&CX, name("b"), &at(root, "d/a")).unwrap();
    let number = attr(root, "d/a").ino;
    assert_eq!(drain(&session, 2), Ok(BTreeMap::new()));
    for path in ["d/a", "e/b"] {
        let now = attr(root, path);
        assert_eq!((now.nlink, now.ino), (2, number), "{path}");
    }
    assert!(find(branch, "d").is_none() && find(branch, "e").is_none());
    drop(session);
    let session = union.mount().unwrap();
    assert_eq!(attr(&*session.layer, "e/b").nlink, 2);
}

/// Two branches count names of a file, the last name is removed, and the server is killed. The next
/// unmount looks for names.
#[test]
fn a_copy_without_names_is_dropped_after_a_kill() {
    use crate::common::layer_ops::{list, mkdir, name, write};
    let config = Config {
        name: "a copy without names".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Rw, vec![]), (Access::Ro, vec![])],
        prologue: vec![],
    };
    let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
    let low = &*start.union.branches[2].1;
    mkdir(low, "d");
    mkdir(&*start.union.branches[1].1, "d");
    write(low, "a", b"text");
    at(low, "d").link(&CX, name("b"), &at(low, "a")).unwrap();
    let union = start.union.fork();
    let session = union.mount().unwrap();
    let root = at(&*session.layer, "");
    at(&*session.layer, "d").unlink(&CX, name("b")).unwrap();
    drop(at(&*session.layer, "a").open(&CX, vnode::OpenFlags::WRONLY).unwrap());
    root.unlink(&CX, name("a")).unwrap();
    let killed = union.recover();
    let index = || list(&*killed.branches[0].1, ".wh..wh.links");
    assert_eq!(index().len(), 1);
    drop(killed.mount().unwrap());
    assert_eq!(index(), Vec::<String>::new());
}

/// A file that moves right replaces a whiteout of its name.
#[test]
fn a_file_that_moves_right_leaves_no_whiteout_beside_it() {
    use crate::common::layer_ops::{find, write};
    let config = Config {
        name: "whiteout".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Rw, vec![]), (Access::Ro, vec![])],
        prologue: vec![],
    };
    let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
    for (at, name) in [(0, "f"), (1, ".wh.f"), (2, "f")] {
        write(&*start.union.branches[at].1, name, name.as_bytes());
    }
    let union = start.union.fork();
    let session = union.mount().unwrap();
    assert_eq!(drain(&session, 0), Ok(BTreeMap::new()));
    let right = &*union.branches[1].1;
    assert!(find(right, "f").is_some() && find(right, ".wh.f").is_none());
    // It hides what the whiteout hid.
    at(&*session.layer, "").unlink(&CX, crate::common::layer_ops::name("f")).unwrap();
    assert!(find(&*session.layer, "f").is_none());
}

/// A crash interrupts the copy-up of a file with several names; the next mount copies it to another
/// branch.
#[test]
fn an_interrupted_copy_leaves_no_count_behind() {
    use crate::common::layer_ops::{name, write};
    let config = Config {
        name: "an interrupted copy".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Rw, vec![]), (Access::Ro, vec![])],
        prologue: vec![],
    };
    let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
    let low = start.union.branches[2].1.without_faults();
    write(&*low, "a", b"text");
    at(&*low, "").link(&CX, name("b"), &at(&*low, "a")).unwrap();
    // The branch with the last number is added as the first one after the crash.
    let copy_up = |session: &Session| at(&*session.layer, "a").open(&CX, vnode::OpenFlags::WRONLY).map(drop);
    for step in 1.. {
        let mut union = start.union.fork();
        let first = union.branches.remove(0);
        let session = union.mount().unwrap();
        union.faults.arm(Plan { count: Count::Changes, at: step, fault: Fault::Crash });
        let _crashed = copy_up(&session);
        if !union.faults.crashed() {
            assert!(step > 5, "{step}");
            break;
        }
        drop(session);
        let mut union = union.recover();
        union.branches.insert(0, (first.0, first.1.recover(&union.faults)));
        let name = |at: usize| (at + 2) % 3;
        for _ in 0..2 {
            let session = union.mount_as(&name).unwrap();
            copy_up(&session).unwrap();
            let counts = ["a", "b"].map(|path| attr(&*session.layer, path).nlink);
            assert_eq!(counts, [2, 2], "step {step}: {:?}", union.dump());
        }
    }
}

/// One of a file's two names is removed while the file moves left: one of the two operations is
/// paused before its k-th lower operation until the other has ended or waits for it.
#[test]
fn link_counts_are_right_after_a_name_was_removed_during_a_move() {
    use crate::common::layer_ops::{mkdir, name, write};
    use std::sync::{Arc, mpsc};
    const PATIENCE: std::time::Duration = std::time::Duration::from_millis(30);
    let config = Config {
        name: "a name is removed".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Rw, vec![])],
        prologue: vec![],
    };
    let start = Start::new(&config, Delete::All, MemOptions::default());
    type Job = Box<dyn FnOnce() -> Result<(), String> + Send>;
    for removal_pauses in [false, true] {
        for k in 1.. {
            let at_step = format!("removal pauses: {removal_pauses}, step {k}");
            let union = start.union.fork();
            let branch = &*union.branches[1].1;
            mkdir(branch, "d");
            mkdir(branch, "e");
            write(branch, "d/a", b"text");
            at(branch, "e").link(&CX, name("b"), &at(branch, "d/a")).unwrap();
            let session = Arc::new(union.mount().unwrap());
            let (draining, removing) = (session.clone(), at(&*session.layer, "e"));
            let drain_once: Job = Box::new(move || pass(&draining, 1).map(drop));
            let remove: Job = Box::new(move || removing.unlink(&CX, name("b")).map_err(|errno| errno.to_string()));
            let (paused, other) = if removal_pauses { (remove, drain_once) } else { (drain_once, remove) };
            let (ends, ended) = mpsc::channel();
            union.faults.call_at(k, move || {
                let (ends_soon, end) = mpsc::channel();
                std::thread::spawn(move || {
                    let _ = ends.send(other());
                    let _ = ends_soon.send(());
                });
                let _ = end.recv_timeout(PATIENCE);
            });
            paused().unwrap();
            if union.faults.forget_call() {
                assert!(k > 2, "{at_step}");
                break;
            }
            ended.recv().unwrap().unwrap();
            union.faults.reset();
            assert_eq!(attr(&*session.layer, "d/a").nlink, 1, "{at_step}: {:?}", union.dump());
            assert_eq!(drain(&session, 1), Ok(BTreeMap::new()), "{at_step}: {:?}", union.dump());
            assert_eq!(attr(&*session.layer, "d/a").nlink, 1, "{at_step}, drained");
            drop(session);
            assert_eq!(attr(&*union.mount().unwrap().layer, "d/a").nlink, 1, "{at_step}, remounted");
        }
    }
}

/// The branches are drained in turn while programs create, link, rename, remove and list files.
fn moves_under_load(interval: std::time::Duration) {
    use crate::common::layer_ops::{find, list, mkdir, name, read};
    use std::sync::atomic::{AtomicBool, Ordering};
    use vnode::{OpenFlags, RenameFlags};
    let config = Config {
        name: "load".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Rw, vec![]), (Access::Rw, vec![])],
        prologue: vec![],
    };
    let mut start = Start::new(&config, Delete::All, MemOptions::default());
    start.union.interval = interval;
    start.union.create = unionfs::Create { order: unionfs::Order::RoundRobin, ..unionfs::Create::default() };
    let union = start.union.fork();
    let session = union.mount().unwrap();
    let root = &*session.layer;
    let stop = AtomicBool::new(false);
    let text = |dir: &str, n: u32| format!("{dir} {n} {}", "x".repeat(n as usize % 50));
    let work = &|dir: &str| {
        mkdir(root, dir);
        for n in 0..400 {
            let (new, kept) = (format!("new{n}"), format!("kept{n}"));
            let parent = at(root, dir);
            let (entry, open) = parent.create(&CX, name(&new), 0o644, OpenFlags::RDWR).unwrap();
            open.write(&CX, text(dir, n).as_bytes(), 0).unwrap();
            drop(open);
            if n % 3 == 0 {
                parent.rename(&CX, name(&new), &parent, name(&kept), RenameFlags::default()).unwrap();
            } else {
                parent.link(&CX, name(&kept), &entry.vnode).unwrap();
                parent.unlink(&CX, name(&new)).unwrap();
            }
            let path = format!("{dir}/{kept}");
            assert_eq!(attr(root, &path).nlink, 1, "{path}");
            assert!(find(root, &format!("{dir}/{new}")).is_none(), "{path}");
            assert_eq!(String::from_utf8(read(root, &path)).unwrap(), text(dir, n), "{path}");
            let mut names = list(root, dir);
            names.sort();
            let mut want: Vec<String> = (0..=n).map(|n| format!("kept{n}")).collect();
            want.sort();
            let missing: Vec<_> = want.iter().filter(|name| !names.contains(name)).collect();
            assert_eq!((missing, names.len()), (vec![], want.len()), "{path}");
        }
    };
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| {
            let mut moved = 0;
            for branch in (0..3).cycle() {
                let reply = pass(&session, branch).unwrap();
                moved += reply["files"].as_u64().unwrap_or(0);
                for object in reply["objects"].as_array().into_iter().flatten() {
                    assert!(object["reason"] != "failed", "{object}");
                }
                send(&session, &json!({ "do": "end" })).unwrap();
                if stop.load(Ordering::Relaxed) {
                    return moved;
                }
            }
            0
        });
        let workers: Vec<_> = ["a", "b"].map(|dir| scope.spawn(move || work(dir))).into();
        let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        let moved = drains.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
        assert!(moved > 50, "{moved}");
    });
    for branch in [0, 1] {
        let left = drain(&session, branch).unwrap();
        assert!(left.is_empty(), "{left:?}; {:?}", union.dump()[branch]);
    }
    drop(session);
    let session = union.mount().unwrap();
    for dir in ["a", "b"] {
        for n in 0..400 {
            let path = format!("{dir}/kept{n}");
            assert_eq!(String::from_utf8(read(&*session.layer, &path)).unwrap(), text(dir, n), "{path}");
        }
    }
}

#[test]
fn programs_see_no_moves() {
    moves_under_load(std::time::Duration::ZERO);
}

#[test]
fn programs_see_no_moves_with_name_indexes() {
    moves_under_load(std::time::Duration::from_secs(3600));
}
