//! Operations of programs while a branch is drained, interleaved step by step. Draining is paused
//! before its k-th lower operation, where it may hold locks. Then an operation of a program begins,
//! and is paused before its j-th lower operation, until draining has ended or waits for it. So the
//! program's operation has seen what draining then changes. Whatever k and j are, the operation
//! succeeds, and afterwards the union shows the same as before, also to programs that continue to
//! use the directories that they had.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::config::{Access, Config};
use crate::common::drain::pass;
use crate::common::layer_ops::{CX, at, mkdir, name, write};
use crate::common::test_union::{Start, TestUnion};
use memfs::MemOptions;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use unionfs::Delete;
use vnode::{DirEntry, OpenFlags, RenameFlags, Result, Vnode};

/// How long one operation waits for the other, which may wait for it.
const PATIENCE: Duration = Duration::from_millis(30);
const MAX_STEPS: u64 = 2000;

/// The directories that a program has, as the kernel remembers them.
#[derive(Clone)]
struct Held {
    root: Arc<dyn Vnode>,
    d: Arc<dyn Vnode>,
    e: Arc<dyn Vnode>,
    f: Arc<dyn Vnode>,
}

fn content(file: &Arc<dyn Vnode>) -> Result<Vec<u8>> {
    let mut out = vec![0; 100];
    let got = file.open(&CX, OpenFlags::RDONLY)?.read(&CX, &mut out, 0)?;
    out.truncate(got);
    Ok(out)
}

fn listed(dir: &Arc<dyn Vnode>) -> Result<Vec<String>> {
    let mut names = Vec::new();
    dir.readdir(&CX, 0, &mut |entry: &DirEntry<'_>| {
        names.push(entry.name.to_string());
        true
    })?;
    names.sort();
    Ok(names)
}

fn lookup(dir: &Arc<dyn Vnode>, of: &str) -> std::result::Result<Arc<dyn Vnode>, String> {
    let found = dir.lookup(&CX, name(of)).map_err(|e| format!("lookup of {of}: {e}"))?;
    found.map(|entry| entry.vnode).ok_or_else(|| format!("{of} is not found"))
}

/// An operation of a program.
struct Action {
    name: &'static str,
    /// The program has no directory but the root before: the union forgot the others.
    cold: bool,
    run: fn(&Held) -> std::result::Result<(), String>,
    /// Changes the expected files: paths and contents.
    expect: fn(&mut BTreeMap<String, Vec<u8>>),
}

fn rename(from: &str, dir: &Arc<dyn Vnode>, to: &str, dest: &Arc<dyn Vnode>) -> std::result::Result<(), String> {
    dir.rename(&CX, name(from), dest, name(to), RenameFlags::default()).map_err(|e| format!("rename of {from}: {e}"))
}

fn with(tree: &mut BTreeMap<String, Vec<u8>>, from: &str, to: &str) {
    let moved: Vec<String> = tree.keys().filter(|path| path.starts_with(from)).cloned().collect();
    for path in moved {
        let bytes = tree.remove(&path).unwrap();
        tree.insert(path.replacen(from, to, 1), bytes);
    }
}

const LOOK_UP: Action = Action {
    name: "look up from the root",
    cold: false,
    run: |held| {
        let d = lookup(&held.root, "d")?;
        let e = lookup(&d, "e")?;
        for (dir, file) in [(&d, "f"), (&d, "g"), (&e, "h"), (&e, "i")] {
            content(&lookup(dir, file)?).map_err(|e| format!("read of {file}: {e}"))?;
        }
        Ok(())
    },
    expect: |_| {},
};

const ACTIONS: &[Action] = &[
    LOOK_UP,
    Action { name: "look up what was forgotten", cold: true, ..LOOK_UP },
    Action {
        name: "use what it has",
        cold: false,
        run: |held| {
            held.f.getattr(&CX).map_err(|e| format!("stat of f: {e}"))?;
            held.e.getattr(&CX).map_err(|e| format!("stat of e: {e}"))?;
            content(&held.f).map_err(|e| format!("read of f: {e}"))?;
            content(&lookup(&held.e, "h")?).map_err(|e| format!("read of h: {e}"))?;
            lookup(&held.d, "g").map(drop)
        },
        expect: |_| {},
    },
    Action {
        name: "list",
        cold: false,
        run: |held| {
            for (dir, names) in [(&held.d, ["e", "f", "g"].as_slice()), (&held.e, &["h", "i"])] {
                let found = listed(dir).map_err(|e| format!("listing: {e}"))?;
                if found != names {
                    return Err(format!("listing {found:?}, expected {names:?}"));
                }
            }
            Ok(())
        },
        expect: |_| {},
    },
    Action {
        name: "rename a file",
        cold: false,
        run: |held| rename("f", &held.d, "f2", &held.e),
        expect: |tree| with(tree, "d/f", "d/e/f2"),
    },
    Action {
        name: "rename over a file",
        cold: false,
        run: |held| rename("h", &held.e, "g", &held.d),
        expect: |tree| with(tree, "d/e/h", "d/g"),
    },
    Action {
        name: "rename a directory",
        cold: false,
        run: |held| rename("e", &held.d, "e2", &held.d),
        expect: |tree| with(tree, "d/e/", "d/e2/"),
    },
    Action {
        name: "create, link and remove",
        cold: false,
        run: |held| {
            let (_, file) =
                held.e.create(&CX, name("new"), 0o644, OpenFlags::RDWR).map_err(|e| format!("create: {e}"))?;
            file.write(&CX, b"new", 0).map_err(|e| format!("write: {e}"))?;
            drop(file);
            let new = lookup(&held.e, "new")?;
            held.d.link(&CX, name("linked"), &new).map_err(|e| format!("link: {e}"))?;
            held.e.unlink(&CX, name("new")).map_err(|e| format!("unlink: {e}"))
        },
        expect: |tree| drop(tree.insert("d/linked".to_owned(), b"new".to_vec())),
    },
    Action {
        name: "create in a new directory",
        cold: false,
        run: |held| {
            let new = held.e.mkdir(&CX, name("new"), 0o755).map_err(|e| format!("mkdir: {e}"))?.vnode;
            for file in ["1", "2", "3"] {
                let (_, open) =
                    new.create(&CX, name(file), 0o644, OpenFlags::RDWR).map_err(|e| format!("create: {e}"))?;
                open.write(&CX, file.as_bytes(), 0).map_err(|e| format!("write: {e}"))?;
            }
            Ok(())
        },
        expect: |tree| {
            ["1", "2", "3"].iter().for_each(|n| drop(tree.insert(format!("d/e/new/{n}"), n.as_bytes().to_vec())));
        },
    },
];

fn start() -> Start {
    let config = Config {
        name: "interleaved".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Rw, vec![]), (Access::Rw, vec![])],
        prologue: vec![],
    };
    let mut start = Start::new(&config, Delete::All, MemOptions::default());
    start.union.create = unionfs::Create { order: unionfs::Order::RoundRobin, ..unionfs::Create::default() };
    let on = |branch: usize| &*start.union.branches[branch].1;
    for (branch, dirs) in [(0, ["d"].as_slice()), (1, &["d", "d/e"]), (2, &["d", "d/e"])] {
        dirs.iter().for_each(|dir| mkdir(on(branch), dir));
    }
    for (branch, path) in [(1, "d/f"), (2, "d/g"), (1, "d/e/h"), (2, "d/e/i")] {
        write(on(branch), path, path.as_bytes());
    }
    start
}

fn files(dir: &Arc<dyn Vnode>, path: &str, all: &mut BTreeMap<String, Vec<u8>>) -> std::result::Result<(), String> {
    for of in listed(dir).map_err(|e| format!("listing of {path}: {e}"))? {
        let path = if path.is_empty() { of.clone() } else { format!("{path}/{of}") };
        let vnode = lookup(dir, &of).map_err(|e| format!("{path}: {e}"))?;
        match vnode.kind() {
            vnode::Kind::Directory => files(&vnode, &path, all)?,
            _ => drop(all.insert(path.clone(), content(&vnode).map_err(|e| format!("read of {path}: {e}"))?)),
        }
    }
    Ok(())
}

/// What the directories that a program has show, beginning at the deepest.
fn shown(held: &Held, e: &str) -> std::result::Result<[BTreeMap<String, Vec<u8>>; 3], String> {
    let mut all = <[BTreeMap<String, Vec<u8>>; 3]>::default();
    files(&held.e, e, &mut all[0]).map_err(|e| format!("in e: {e}"))?;
    files(&held.d, "d", &mut all[1]).map_err(|e| format!("in d: {e}"))?;
    files(&held.root, "", &mut all[2])?;
    Ok(all)
}

/// Pauses draining before its k-th lower operation, and the action before its j-th one. Returns
/// whether both were reached: the first, and the second.
fn run_at(
    start: &Start,
    branch: usize,
    action: &'static Action,
    (k, j): (u64, u64),
    program_first: bool,
) -> std::result::Result<(bool, bool), String> {
    let union: TestUnion = start.union.fork();
    let session = Arc::new(union.mount()?);
    let layer = &*session.layer;
    let [d, e, f] = ["d", "d/e", "d/f"].map(|path| at(layer, path));
    let mut held = Held { root: layer.root(), d, e, f };
    if action.cold {
        held = Held { root: held.root.clone(), d: held.root.clone(), e: held.root.clone(), f: held.root };
    }
    let (inner, drains) = (held.clone(), session.clone());
    let act = move || (action.run)(&inner);
    let drain = move || pass(&drains, branch).map(drop).map_err(|e| format!("drain: {e}"));
    type Job = Box<dyn FnOnce() -> std::result::Result<(), String> + Send>;
    let (one, two): (Job, Job) =
        if program_first { (Box::new(act), Box::new(drain)) } else { (Box::new(drain), Box::new(act)) };
    let (one_ends, one_ended) = mpsc::channel::<()>();
    let (two_ends, two_ended) = mpsc::channel();
    let (resume_sender, resume) = mpsc::channel::<()>();
    let reached = Arc::new(AtomicBool::new(false));
    let (faults, second) = (union.faults.clone(), reached.clone());
    union.faults.call_at(k, move || {
        let ended = Arc::new(AtomicBool::new(false));
        let (resume_early, early) = (resume_sender.clone(), ended.clone());
        faults.call_after(j, move || {
            if !early.load(Ordering::SeqCst) {
                second.store(true, Ordering::SeqCst);
                let _ = resume_early.send(());
                let _ = one_ended.recv_timeout(PATIENCE);
            }
        });
        std::thread::spawn(move || {
            let done = two();
            ended.store(true, Ordering::SeqCst);
            let _ = two_ends.send(done);
            let _ = resume_sender.send(());
        });
        let _ = resume.recv_timeout(PATIENCE);
    });
    let first = one();
    // A step that was not reached must not happen later.
    let _ = union.faults.forget_call();
    drop(one_ends);
    let Ok(done) = two_ended.recv() else { return Ok((false, false)) };
    first?;
    done?;
    union.faults.reset();
    let mut expected = BTreeMap::new();
    for path in ["d/f", "d/g", "d/e/h", "d/e/i"] {
        expected.insert(path.to_owned(), path.as_bytes().to_vec());
    }
    (action.expect)(&mut expected);
    let e = if expected.keys().any(|path| path.starts_with("d/e2/")) { "d/e2" } else { "d/e" };
    let below = |dir: &str| -> BTreeMap<String, Vec<u8>> {
        expected.iter().filter(|(path, _)| path.starts_with(dir)).map(|(a, b)| (a.clone(), b.clone())).collect()
    };
    let want = [below(&format!("{e}/")), below("d/"), expected.clone()];
    if action.cold {
        let d = lookup(&held.root, "d")?;
        held = Held { e: lookup(&d, "e")?, d, ..held };
    }
    let got = shown(&held, e)?;
    if got != want {
        return Err(format!("shown {got:?}\nexpected {want:?}\nbranches: {:?}", union.dump()));
    }
    drop((held, session));
    let session = union.mount()?;
    let mut again = BTreeMap::new();
    files(&session.layer.root(), "", &mut again)?;
    if again != expected {
        return Err(format!("after a remount: {again:?}"));
    }
    Ok((true, reached.load(Ordering::SeqCst)))
}

fn every_step(branch: usize, stride: u64, program_first: bool) {
    let start = start();
    let mut failures = Vec::new();
    let mut runs = 0;
    let only = testkit::number("STRATA_ACTION");
    for (n, action) in ACTIONS.iter().enumerate() {
        if only.is_some_and(|only| only != n as u64) {
            continue;
        }
        'k: for k in (1..).step_by(stride as usize) {
            assert!(k < MAX_STEPS, "{}", action.name);
            for j in (1..).step_by(stride as usize) {
                runs += 1;
                match run_at(&start, branch, action, (k, j), program_first) {
                    Ok((false, _)) => {
                        println!("{branch}: {}: {k} steps, {runs} runs", action.name);
                        break 'k;
                    }
                    Ok((true, false)) => break,
                    Ok(_) => {}
                    Err(e) => {
                        println!("{branch}: {} at ({k}, {j}): {e}", action.name);
                        failures.push(format!("{} at ({k}, {j}): {e}", action.name));
                        if j > 300 {
                            break;
                        }
                    }
                }
            }
        }
    }
    println!("{runs} runs");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn programs_see_no_step_of_draining() {
    let stride = testkit::number("STRATA_STRIDE").unwrap_or(101);
    for branch in [2, 1] {
        every_step(branch, stride, false);
    }
}

#[test]
fn draining_sees_no_step_of_programs() {
    let stride = testkit::number("STRATA_STRIDE").unwrap_or(101);
    for branch in [2, 1] {
        every_step(branch, stride, true);
    }
}
