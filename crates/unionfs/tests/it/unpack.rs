//! `whiteouts=write`: unpacking an image layer, with its whiteouts and opaque marks, through the
//! union.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, at, create, find, list, mkdir, name, split};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use unionfs::{Branch, BuildError, Mode, Options, Unionfs, Whiteouts};
use vnode::{Cx, Errno, Kind, Layer, OpenFlags, RenameFlags, SetAttr};

static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

struct TestUnion {
    faults: Faults,
    branches: [Arc<MemFs>; 2],
}

impl TestUnion {
    /// The lower branch has files and directories, some of which the upper branch also has. `own`
    /// exists only on the upper branch.
    fn new() -> Self {
        let faults = Faults::new();
        let branches = [(); 2].map(|()| MemFs::with(MemOptions::default(), &faults));
        let test = Self { faults, branches };
        for dir in ["low", "low/sub", "both", "both/sub", "moved"] {
            mkdir(test.lower(), dir);
        }
        for file in ["f", "g", "low/x", "low/sub/y", "both/x", "both/sub/y", "moved/x"] {
            create(test.lower(), file).unwrap();
        }
        for dir in ["both", "both/own", "both/own/deep", "own"] {
            mkdir(test.upper(), dir);
        }
        for file in ["g", "both/own/deep/z", "own/x"] {
            create(test.upper(), file).unwrap();
        }
        test
    }

    fn upper(&self) -> &MemFs {
        &self.branches[0]
    }

    fn lower(&self) -> &MemFs {
        &self.branches[1]
    }

    fn union_with(&self, whiteouts: Whiteouts) -> Arc<Unionfs> {
        let branch = |(layer, mode): (&Arc<MemFs>, Mode)| Branch {
            layer: layer.clone(),
            path: format!("/{mode:?}").into(),
            mode,
        };
        let branches = self.branches.iter().zip([Mode::ReadWrite, Mode::ReadOnly]).map(branch).collect();
        Unionfs::new(branches, Options { whiteouts, ..Options::default() }).unwrap()
    }

    fn union(&self) -> Arc<Unionfs> {
        self.union_with(Whiteouts::Write)
    }
}

#[test]
fn creating_a_whiteout_hides_the_name_and_removes_the_upper_object() {
    for hidden in ["f", "g", "low", "both", "own", "moved", "away", "none", "low/x", "low/sub", "both/x", "both/own"] {
        let test = TestUnion::new();
        let union = test.union();
        if hidden == "away" {
            union.root().rename(&CX, name("moved"), &union.root(), name("away"), RenameFlags::default()).unwrap();
            assert_eq!(list(&*union, "away"), ["x"]);
        }
        let (dir, last) = split(hidden);
        let before = list(&*union, dir);
        let links = at(&*union, dir).getattr(&CX).unwrap().nlink;
        let is_dir = find(&*union, hidden).is_some_and(|vnode| vnode.kind() == Kind::Directory);
        let whiteout = format!("{dir}/.wh.{last}");
        let mark = create(&*union, &whiteout).unwrap();
        assert_eq!(mark.getattr(&CX).unwrap().nlink, 1, "not a link to a shared whiteout inode");
        // tar(1) sets the attributes of every file that it creates.
        let attributes = SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() };
        assert_eq!(mark.setattr(&CX, &attributes, None).unwrap().uid, 7);
        assert_eq!(at(&*union, &whiteout).getattr(&CX).unwrap().perm(), 0o600);
        assert_eq!(create(&*union, &whiteout).unwrap_err(), Errno::EXIST);
        let left: Vec<String> = before.into_iter().filter(|name| name != last).collect();
        let check = |union: &Unionfs| {
            assert!(find(union, hidden).is_none(), "{hidden}");
            assert_eq!(list(union, dir), left, "{hidden}");
            assert_eq!(at(union, dir).getattr(&CX).unwrap().nlink, links - u32::from(is_dir), "{hidden}");
        };
        check(&union);
        drop((union, mark));
        check(&test.union_with(Whiteouts::Refuse));
        assert!(find(test.upper(), &whiteout).is_some() && find(test.upper(), hidden).is_none());
        // A new directory of that name must not show the hidden entries.
        let union = test.union();
        mkdir(&*union, hidden);
        assert_eq!(list(&*union, hidden), [""; 0], "{hidden}");
    }
}

#[test]
fn an_opaque_mark_hides_the_entries_of_lower_branches() {
    let mark = |dir: &str| format!("{dir}/.wh..wh..opq");
    for (dir, left) in [("low", vec![]), ("both", vec!["own"]), ("own", vec!["x"]), ("", vec!["both", "g", "own"])] {
        let test = TestUnion::new();
        let union = test.union();
        let open = at(&*union, dir);
        let number = open.id();
        create(&*union, &mark(dir)).unwrap();
        assert_eq!(at(&*union, dir).id(), number, "{dir}: the inode number changed");
        create(&*union, &format!("{dir}/new")).unwrap();
        let left: Vec<&str> =
            if dir.is_empty() { vec!["both", "g", "new", "own"] } else { [vec!["new"], left].concat() };
        let mut left: Vec<String> = left.into_iter().map(str::to_owned).collect();
        left.sort();
        assert_eq!(list(&*union, dir), left, "{dir}");
        let mut seen = 0;
        open.readdir(&CX, 0, &mut |_| {
            seen += 1;
            true
        })
        .unwrap();
        assert_eq!(seen, left.len(), "{dir}: through a vnode from before");
        if dir.is_empty() {
            assert_eq!(list(&*union, "both"), ["own"]);
        }
        drop((union, open));
        assert_eq!(list(&*test.union_with(Whiteouts::Refuse), dir), left, "{dir}");
        assert_eq!(at(&*test.union(), dir).id(), number, "{dir}");
        assert!(find(test.upper(), &mark(dir)).is_some());
    }
}

#[test]
fn removing_a_mark_makes_hidden_entries_visible_again() {
    let test = TestUnion::new();
    let union = test.union();
    let links = at(&*union, "").getattr(&CX).unwrap().nlink;
    for (mark, seen) in [(".wh.f", "f"), (".wh.low", "low/sub/y"), ("low/.wh..wh..opq", "low/sub/y")] {
        create(&*union, mark).unwrap();
        assert!(find(&*union, seen).is_none());
        let (dir, file) = split(mark);
        at(&*union, dir).unlink(&CX, name(file)).unwrap();
        assert!(find(&*union, seen).is_some(), "{mark}");
        assert!(find(&*union, mark).is_none());
    }
    assert_eq!(at(&*union, "").getattr(&CX).unwrap().nlink, links);
}

#[test]
fn whiteouts_change_link_counts() {
    let test = TestUnion::new();
    test.lower().root().link(&CX, name("second"), &at(test.lower(), "f")).unwrap();
    let union = test.union();
    let count = || at(&*union, "second").getattr(&CX).unwrap().nlink;
    assert_eq!(count(), 2);
    create(&*union, ".wh.f").unwrap();
    assert_eq!(count(), 1);
    union.root().unlink(&CX, name(".wh.f")).unwrap();
    assert_eq!(count(), 2);
}

#[test]
fn only_root_and_the_server_create_marks_and_no_caller_creates_internal_files() {
    let test = TestUnion::new();
    let union = test.union();
    let root = union.root();
    let user = Cx::new(1000, 1000, 0, 0, true, &NOT_CANCELLED);
    assert_eq!(root.create(&user, name(".wh.f"), 0o644, OpenFlags::RDWR).map(drop), Err(Errno::PERM));
    create(&*union, ".wh.f").unwrap();
    assert!(root.lookup(&user, name(".wh.f")).unwrap().is_none());
    assert_eq!(root.unlink(&user, name(".wh.f")), Err(Errno::NOENT));
    let records =
        [".wh..wh.ident", ".wh..wh.redirect", ".wh..wh.moved", ".wh..wh.l.00", ".wh..wh.x", ".wh.", ".wh..", ".wh..."];
    for record in [&records[..], &[".wh.__dir_opaque"]].concat() {
        assert_eq!(create(&*union, record).map(drop), Err(Errno::PERM), "{record}");
        assert!(root.lookup(&CX, name(record)).unwrap().is_none(), "{record}");
        assert_eq!(root.unlink(&CX, name(record)), Err(Errno::NOENT), "{record}");
    }
    assert_eq!(root.mkdir(&CX, name(".wh.g"), 0o755).map(drop), Err(Errno::PERM));
    let fifo = Kind::Fifo.mode_bits() | 0o644;
    assert_eq!(root.mknod(&CX, name(".wh.g"), fifo, 0).map(drop), Err(Errno::PERM));
    let file = Kind::Regular.mode_bits() | 0o644;
    root.mknod(&CX, name(".wh.g"), file, 0).unwrap();
    assert!(find(&*union, "g").is_none());
    assert!(!list(&*union, "").iter().any(|name| name.starts_with(".wh.")));
    assert_eq!(create(&*test.union_with(Whiteouts::Refuse), ".wh.x").map(drop), Err(Errno::PERM));
}

/// After a failure at any step a second attempt succeeds.
#[test]
fn a_failed_whiteout_can_be_retried() {
    for hidden in ["f", "g", "both", "own", "low"] {
        for step in 1.. {
            let test = TestUnion::new();
            let union = test.union();
            test.faults.arm(Plan { count: Count::All, at: step, fault: Fault::Error(Errno::NOSPC) });
            let mark = format!(".wh.{hidden}");
            let made = union.root().create(&CX, name(&mark), 0o644, OpenFlags::RDWR).map(drop);
            let over = !test.faults.fired();
            test.faults.reset();
            if made.is_err() {
                assert_eq!(made, Err(Errno::NOSPC), "{hidden}, step {step}");
                if find(&*union, &mark).is_some() {
                    union.root().unlink(&CX, name(&mark)).unwrap();
                }
                create(&*union, &mark).unwrap();
            }
            assert!(find(&*union, hidden).is_none(), "{hidden}, step {step}");
            drop(union);
            assert!(find(&*test.union(), hidden).is_none(), "{hidden}, step {step}");
            if over {
                break;
            }
        }
    }
}

/// The error of a nested union names the branch and the reason.
#[test]
fn a_branch_inside_another_union_is_refused() {
    let test = TestUnion::new();
    for whiteouts in [Whiteouts::Refuse, Whiteouts::Write] {
        let outer = test.union_with(whiteouts);
        let branch = Branch { layer: outer, path: "/outer".into(), mode: Mode::ReadWrite };
        let refused = Unionfs::new(vec![branch], Options::default()).unwrap_err();
        assert_eq!(refused, BuildError::NamesRefused("/outer".into()));
        assert!(refused.to_string().contains("lies in another union"), "{refused}");
    }
}

/// The directory has been opaque since before the mount: its number is that of its upper part.
#[test]
fn a_directory_that_is_no_longer_opaque_keeps_its_number() {
    let test = TestUnion::new();
    mkdir(test.lower(), "own");
    create(test.lower(), "own/y").unwrap();
    create(test.upper(), "own/.wh..wh..opq").unwrap();
    let union = test.union();
    let dir = at(&*union, "own");
    assert_eq!(list(&*union, "own"), ["x"]);
    dir.unlink(&CX, name(".wh..wh..opq")).unwrap();
    let again = at(&*union, "own");
    assert!(Arc::ptr_eq(&again, &dir));
    assert_eq!(list(&*union, "own"), ["x", "y"]);
    let number = dir.id();
    union.root().mkdir(&CX, name("new"), 0o755).unwrap();
    drop((dir, again, union));
    assert_eq!(at(&*test.union(), "own").id(), number);
}
