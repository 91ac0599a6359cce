//! Conversions with a crash or an error at every step, and with concurrent use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeMap;
use std::sync::Arc;
use usenetfs::control::{CONVERT, Goal, STATE};
use usenetfs::{SchemeChoice, UsenetFs};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, SetAttr, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);
const DIGITS: SchemeChoice = SchemeChoice { hash: false, limit: None };
const HASH: SchemeChoice = SchemeChoice { hash: true, limit: Some(4) };

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Creates files and directories with difficult names, such as those of buckets.
const NAMES: [&str; 21] = [
    "0", "1", "7", "000", "001", "034", "100", "345", "999", "123456", "23456", "9345", "99999999", "0345", "a", "3",
    "3f", "overview", "12.tmp", "f", "034034",
];

fn fill(root: &Arc<dyn Vnode>) {
    for (i, at) in NAMES.iter().enumerate() {
        if i % 4 == 3 {
            let dir = root.mkdir(&CX, name(at), 0o755).unwrap();
            dir.vnode.create(&CX, name("345"), 0o644, OpenFlags::RDWR).unwrap();
        } else {
            let (_, file) = root.create(&CX, name(at), 0o644, OpenFlags::RDWR).unwrap();
            file.write(&CX, at.as_bytes(), 0).unwrap();
        }
    }
}

/// Returns the names with inode numbers and types; asserts that listings and lookups agree.
fn view(root: &Arc<dyn Vnode>) -> Result<BTreeMap<Vec<u8>, (u64, Kind)>, Errno> {
    let mut listed: Vec<(Vec<u8>, u64, Kind, u64)> = Vec::new();
    root.readdir(&CX, 0, &mut |e| {
        listed.push((e.name.as_bytes().to_vec(), e.ino, e.kind, e.cookie));
        true
    })?;
    let mut view = BTreeMap::new();
    for (i, (at, ino, kind, cookie)) in listed.iter().enumerate() {
        assert!(view.insert(at.clone(), (*ino, *kind)).is_none(), "{} is listed twice", at.escape_ascii());
        let found = root
            .lookup(&CX, Name::new(at).unwrap())?
            .unwrap_or_else(|| panic!("{} is listed, not found", at.escape_ascii()));
        assert_eq!((found.vnode.id(), found.vnode.kind()), (*ino, *kind));
        // Resuming after each entry returns the rest.
        let mut rest = Vec::new();
        root.readdir(&CX, *cookie, &mut |e| {
            rest.push(e.name.as_bytes().to_vec());
            true
        })?;
        assert!(rest.iter().eq(listed.iter().skip(i + 1).map(|e| &e.0)), "after {}", at.escape_ascii());
    }
    let dirs = listed.iter().filter(|e| e.2 == Kind::Directory).count();
    assert_eq!(root.getattr(&CX)?.nlink as usize, 2 + dirs);
    for hidden in [".usenetfs", ".usenetfs.d", ".usenetfs.new"] {
        assert!(root.lookup(&CX, name(hidden))?.is_none());
    }
    Ok(view)
}

fn step(root: &Arc<dyn Vnode>, goal: Goal, budget: usize) -> Result<bool, Errno> {
    let reply = root.control(&CX, CONVERT.name, goal.text(budget).as_bytes())?;
    let (reply, state) = (String::from_utf8(reply).unwrap(), state(root));
    assert_eq!(is_done(&reply), is_done(&state), "{reply} {state}");
    Ok(is_done(&state))
}

fn is_done(state: &str) -> bool {
    state.starts_with(r#"{"phase":"flat""#) || state.starts_with(r#"{"phase":"stable""#)
}

fn state(root: &Arc<dyn Vnode>) -> String {
    String::from_utf8(root.control(&CX, STATE.name, b"").unwrap()).unwrap()
}

fn convert(root: &Arc<dyn Vnode>, goal: Goal, budget: usize) -> u32 {
    let mut steps = 1;
    while !step(root, goal, budget).unwrap() {
        steps += 1;
        assert!(steps < 1000, "{goal:?} does not end: {}", state(root));
    }
    steps
}

/// Returns the root of a new layer over `below`.
fn over(below: &Arc<MemFs>) -> Arc<dyn Vnode> {
    UsenetFs::new(below.clone(), DIGITS).root()
}

/// Returns start directories (flat, and managed by each scheme) with the goal of each conversion.
fn starts() -> Vec<(Arc<MemFs>, Goal)> {
    let make = |before: Option<SchemeChoice>| {
        let below = MemFs::new();
        let root = over(&below);
        fill(&root);
        if let Some(wanted) = before {
            convert(&root, Goal::Manage(wanted), 100);
        }
        below
    };
    vec![
        (make(None), Goal::Manage(DIGITS)),
        (make(None), Goal::Manage(HASH)),
        (make(Some(DIGITS)), Goal::Unmanage),
        (make(Some(HASH)), Goal::Unmanage),
    ]
}

#[test]
fn converting_there_and_back_changes_nothing() {
    for wanted in [DIGITS, HASH] {
        let below = MemFs::new();
        let root = over(&below);
        fill(&root);
        let before = below.dump().without_times();
        let seen = view(&root).unwrap();
        convert(&root, Goal::Manage(wanted), 3);
        assert_eq!(view(&root).unwrap(), seen);
        assert_eq!(view(&over(&below)).unwrap(), seen);
        assert!(root.getattr(&CX).unwrap().mode & 0o4000 != 0);
        // The lower directory has only non-numeric names and, with digits, the buckets.
        if wanted.hash {
            assert!(below.root().lookup(&CX, name("overview")).unwrap().is_none());
        } else {
            let bucket = below.root().lookup(&CX, name("345")).unwrap().unwrap();
            assert!(bucket.vnode.lookup(&CX, name("123456")).unwrap().is_some());
        }
        convert(&root, Goal::Unmanage, 3);
        assert_eq!(below.dump().without_times(), before);
    }
}

#[test]
fn after_a_crash_at_any_change_every_entry_is_seen_once() {
    for (start, goal) in starts() {
        let seen = view(&over(&start)).unwrap();
        for k in 1.. {
            let faults = Faults::new();
            let below = start.fork(&faults);
            let root = over(&below);
            faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
            let mut done = Ok(false);
            while done == Ok(false) {
                done = step(&root, goal, 2);
            }
            if !faults.fired() {
                break;
            }
            drop(root);
            let below = below.recover(&Faults::new());
            let root = over(&below);
            assert_eq!(view(&root).unwrap(), seen, "{goal:?}, killed at change {k}: {}", state(&root));
            // The conversion can be reversed, too.
            let reversed = below.fork(&Faults::new());
            let reversed_root = over(&reversed);
            if let Goal::Manage(_) = goal {
                convert(&reversed_root, Goal::Unmanage, 5);
                assert_eq!(view(&reversed_root).unwrap(), seen);
                assert!(state(&reversed_root).contains("\"flat\""));
            }
            convert(&root, goal, 5);
            assert_eq!(view(&root).unwrap(), seen, "{goal:?}, killed at change {k}, and ended");
        }
    }
}

#[test]
fn an_error_at_any_step_loses_nothing() {
    for (start, goal) in starts() {
        let seen = view(&over(&start)).unwrap();
        for (count, fault) in [
            (Count::All, Fault::Error(Errno::IO)),
            (Count::All, Fault::Errors(Errno::IO)),
            (Count::Changes, Fault::Errors(Errno::NOSPC)),
        ] {
            for k in 1.. {
                let faults = Faults::new();
                let below = start.fork(&faults);
                let root = over(&below);
                faults.arm(Plan { count, at: k, fault });
                let mut done = Ok(false);
                while done == Ok(false) {
                    done = step_quietly(&root, goal);
                }
                let fired = faults.fired();
                faults.disarm();
                assert_eq!(view(&root).unwrap(), seen, "{goal:?}, {fault:?} at {k}: {done:?}");
                assert_eq!(view(&over(&below)).unwrap(), seen, "{goal:?}, {fault:?} at {k}, mounted again");
                convert(&root, goal, 7);
                assert_eq!(view(&root).unwrap(), seen);
                if !fired {
                    break;
                }
            }
        }
    }
}

/// Like [`step`], but without a query that could fail.
fn step_quietly(root: &Arc<dyn Vnode>, goal: Goal) -> Result<bool, Errno> {
    let reply = root.control(&CX, CONVERT.name, goal.text(4).as_bytes())?;
    Ok(is_done(&String::from_utf8(reply).unwrap()))
}

#[test]
fn a_directory_is_usable_during_a_conversion() {
    for (start, goal) in starts() {
        let steps = convert(&over(&start.fork(&Faults::new())), goal, 1);
        for at in 0..=steps {
            let below = start.fork(&Faults::new());
            let root = over(&below);
            for _ in 0..at {
                step(&root, goal, 1).unwrap();
            }
            let mut want = view(&root).unwrap();
            for old in ["7", "345", "overview", "034", "123456", "3f"] {
                let entry = want.remove(old.as_bytes()).unwrap();
                assert_eq!(root.create(&CX, name(old), 0o644, OpenFlags::RDWR).map(|_| ()), Err(Errno::EXIST), "{old}");
                let no_replace = RenameFlags { no_replace: true, ..RenameFlags::default() };
                assert_eq!(root.rename(&CX, name("0"), &root, name(old), no_replace), Err(Errno::EXIST));
                let new = format!("{old}0");
                root.rename(&CX, name(old), &root, name(&new), RenameFlags::default()).unwrap();
                want.insert(new.into_bytes(), entry);
                let (made, _) = root.create(&CX, name(old), 0o644, OpenFlags::RDWR).unwrap();
                want.insert(old.as_bytes().to_vec(), (made.vnode.id(), Kind::Regular));
            }
            // Rename one entry over another, wherever they are located.
            let zero = want.remove(&b"0"[..]).unwrap();
            root.rename(&CX, name("0"), &root, name("999"), RenameFlags::default()).unwrap();
            want.insert(b"999".to_vec(), zero);
            let (a, b) = (want[&b"001"[..]], want[&b"a"[..]]);
            let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
            root.rename(&CX, name("001"), &root, name("a"), exchange).unwrap();
            want.extend([(b"001".to_vec(), b), (b"a".to_vec(), a)]);
            root.unlink(&CX, name("99999999")).unwrap();
            want.remove(&b"99999999"[..]);
            assert_eq!(root.unlink(&CX, name("99999999")), Err(Errno::NOENT));
            assert_eq!(view(&root).unwrap(), want, "{goal:?} after step {at}");
            convert(&root, goal, 2);
            assert_eq!(view(&root).unwrap(), want, "{goal:?} after step {at}, in the end");
        }
    }
}

#[test]
fn ten_thousand_articles_can_be_converted_and_listed() {
    for wanted in [DIGITS, SchemeChoice { hash: true, limit: Some(100) }] {
        let below = MemFs::new();
        let root = over(&below);
        let make = |n: u32| drop(root.create(&CX, name(&n.to_string()), 0o644, OpenFlags::RDWR).unwrap());
        (1..=5000).for_each(make);
        convert(&root, Goal::Manage(wanted), 1000);
        (5001..=10_000).for_each(make);
        let mut all = std::collections::BTreeSet::new();
        let mut cookie = 0;
        // Read the listing in parts, with a change after each.
        for round in 0.. {
            let mut taken = 0;
            root.readdir(&CX, cookie, &mut |e| {
                if taken == 37 {
                    return false;
                }
                taken += 1;
                cookie = e.cookie;
                assert!(all.insert(e.name.as_bytes().to_vec()));
                true
            })
            .unwrap();
            if taken == 0 {
                break;
            }
            let other = format!("t{round}");
            root.create(&CX, name(&other), 0o644, OpenFlags::RDWR).unwrap();
            root.unlink(&CX, name(&other)).unwrap();
        }
        assert_eq!(all.len(), 10_000);
        // No lower directory exceeds its maximum.
        let fullest = fullest(&below.root());
        assert!(fullest <= if wanted.hash { 300 } else { 1000 }, "{fullest}");
        for n in 1..=10_000_u32 {
            root.unlink(&CX, name(&n.to_string())).unwrap();
        }
        root.setattr(&CX, &SetAttr { mode: Some(0o755), ..SetAttr::default() }, None).unwrap();
        let mut left = 0;
        below
            .root()
            .readdir(&CX, 0, &mut |_| {
                left += 1;
                true
            })
            .unwrap();
        assert_eq!(left, 0);
    }
}

/// Returns the maximum number of entries of a directory in the tree.
fn fullest(dir: &Arc<dyn Vnode>) -> usize {
    let mut names = Vec::new();
    dir.readdir(&CX, 0, &mut |e| {
        names.push((e.name.as_bytes().to_vec(), e.kind));
        true
    })
    .unwrap();
    let below = names.iter().filter(|(_, kind)| *kind == Kind::Directory);
    let below = below.map(|(at, _)| fullest(&dir.lookup(&CX, Name::new(at).unwrap()).unwrap().unwrap().vnode));
    below.max().unwrap_or(0).max(names.len())
}

#[test]
fn a_step_ends_when_its_caller_is_interrupted() {
    for (below, goal) in starts() {
        let root = over(&below);
        let seen = view(&root).unwrap();
        let gone = std::sync::atomic::AtomicBool::new(true);
        let cx = Cx::new(0, 0, 0, 0, true, &gone);
        assert_eq!(root.control(&cx, CONVERT.name, goal.text(1000).as_bytes()), Err(Errno::INTR));
        assert_eq!(view(&root).unwrap(), seen, "{goal:?}");
        convert(&root, goal, 1000);
        assert_eq!(view(&root).unwrap(), seen, "{goal:?}");
    }
}

#[test]
fn permissions_and_invalid_commands_are_checked() {
    let root = over(&MemFs::with(MemOptions { uid: 5, ..MemOptions::default() }, &Faults::new()));
    fill(&root);
    let by = |uid, input: &[u8]| root.control(&Cx::internal(uid, 0), CONVERT.name, input).map(|_| ());
    assert_eq!(by(7, b"manage digits 10"), Err(Errno::PERM));
    for nonsense in [&b""[..], b"manage", b"manage roman 1", b"manage digits x", b"manage hash 1 1", b"\xff"] {
        assert_eq!(by(0, nonsense), Err(Errno::INVAL));
    }
    // chmod(1) can't change the bit of a directory with entries.
    let mode = |mode| root.setattr(&CX, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).map(|_| ());
    assert_eq!(mode(0o4755), Err(Errno::NOTEMPTY));
    by(5, b"manage digits 1000").unwrap();
    while !step(&root, Goal::Manage(DIGITS), 1000).unwrap() {}
    assert_eq!(mode(0o755), Err(Errno::NOTEMPTY));
    mode(0o4700).unwrap();
    assert_eq!(by(5, b"manage hash 1000"), Err(Errno::EXIST));
    assert_eq!(root.mkdir(&CX, name(".usenetfs"), 0o755).map(|_| ()), Err(Errno::INVAL));
    // Other commands are forwarded to the layer below, which has none.
    assert_eq!(root.control(&CX, STATE.name, b"x"), Err(Errno::INVAL));
    assert_eq!(root.control(&CX, "other.word", b""), Err(Errno::NOTTY));
    let file = root.create(&CX, name("a file"), 0o644, OpenFlags::RDWR).unwrap().0.vnode;
    assert_eq!(file.control(&CX, STATE.name, b""), Err(Errno::NOTTY));
}
