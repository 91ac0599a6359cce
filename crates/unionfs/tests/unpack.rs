//! `whiteouts=write`: an image layer is unpacked through the union, with its whiteouts and opaque marks.
// Helpers of tests: a failed expectation is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use unionfs::{Branch, BuildError, Mode, Options, Unionfs, Whiteouts};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, SetAttr, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);
static NEVER: AtomicBool = AtomicBool::new(false);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn walk(layer: &dyn Layer, path: &str) -> Option<Arc<dyn Vnode>> {
    let mut at = layer.root();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at = at.lookup(&CX, name(part)).unwrap()?.vnode;
    }
    Some(at)
}

fn at(layer: &dyn Layer, path: &str) -> Arc<dyn Vnode> {
    walk(layer, path).unwrap_or_else(|| panic!("{path} is not there"))
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn mkdir(layer: &dyn Layer, path: &str) {
    let (dir, file) = split(path);
    at(layer, dir).mkdir(&CX, name(file), 0o755).unwrap();
}

fn create(layer: &dyn Layer, path: &str) -> Result<Arc<dyn Vnode>, Errno> {
    let (dir, file) = split(path);
    at(layer, dir).create(&CX, name(file), 0o644, OpenFlags::RDWR).map(|(entry, _)| entry.vnode)
}

fn list(layer: &dyn Layer, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut sink = |entry: &vnode::DirEntry<'_>| {
        names.push(entry.name.to_string());
        true
    };
    at(layer, path).readdir(&CX, 0, &mut sink).unwrap();
    names.sort();
    names
}

struct Bed {
    faults: Faults,
    disks: [Arc<MemFs>; 2],
}

impl Bed {
    /// Two files and two trees on the right branch; of one tree the left branch has a part, and a tree of its own.
    fn new() -> Self {
        let faults = Faults::new();
        let disks = [(); 2].map(|()| MemFs::with(MemOptions::default(), &faults));
        let bed = Self { faults, disks };
        for dir in ["low", "low/sub", "both", "both/sub", "moved"] {
            mkdir(bed.lower(), dir);
        }
        for file in ["f", "g", "low/x", "low/sub/y", "both/x", "both/sub/y", "moved/x"] {
            create(bed.lower(), file).unwrap();
        }
        for dir in ["both", "both/own", "both/own/deep", "own"] {
            mkdir(bed.upper(), dir);
        }
        for file in ["g", "both/own/deep/z", "own/x"] {
            create(bed.upper(), file).unwrap();
        }
        bed
    }

    fn upper(&self) -> &MemFs {
        &self.disks[0]
    }

    fn lower(&self) -> &MemFs {
        &self.disks[1]
    }

    fn with(&self, whiteouts: Whiteouts) -> Arc<Unionfs> {
        let branch = |(layer, mode): (&Arc<MemFs>, Mode)| Branch {
            layer: layer.clone(),
            path: format!("/{mode:?}").into(),
            mode,
        };
        let branches = self.disks.iter().zip([Mode::ReadWrite, Mode::ReadOnly]).map(branch).collect();
        Unionfs::new(branches, Options { whiteouts, ..Options::default() }).unwrap()
    }

    fn union(&self) -> Arc<Unionfs> {
        self.with(Whiteouts::Write)
    }
}

#[test]
fn whiteouts_hide_and_remove() {
    for hidden in ["f", "g", "low", "both", "own", "moved", "away", "none", "low/x", "low/sub", "both/x", "both/own"] {
        let bed = Bed::new();
        let union = bed.union();
        if hidden == "away" {
            union.root().rename(&CX, name("moved"), &union.root(), name("away"), RenameFlags::default()).unwrap();
            assert_eq!(list(&*union, "away"), ["x"]);
        }
        let (dir, last) = split(hidden);
        let before = list(&*union, dir);
        let links = at(&*union, dir).getattr(&CX).unwrap().nlink;
        let is_dir = walk(&*union, hidden).is_some_and(|vnode| vnode.kind() == Kind::Directory);
        let whiteout = format!("{dir}/.wh.{last}");
        let mark = create(&*union, &whiteout).unwrap();
        assert_eq!(mark.getattr(&CX).unwrap().nlink, 1, "no file that other whiteouts share");
        // As tar(1) does to what it made.
        let dress = SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() };
        assert_eq!(mark.setattr(&CX, &dress, None).unwrap().uid, 7);
        assert_eq!(at(&*union, &whiteout).getattr(&CX).unwrap().perm(), 0o600);
        assert_eq!(create(&*union, &whiteout).unwrap_err(), Errno::EXIST);
        let left: Vec<String> = before.into_iter().filter(|name| name != last).collect();
        let check = |union: &Unionfs| {
            assert!(walk(union, hidden).is_none(), "{hidden}");
            assert_eq!(list(union, dir), left, "{hidden}");
            assert_eq!(at(union, dir).getattr(&CX).unwrap().nlink, links - u32::from(is_dir), "{hidden}");
        };
        check(&union);
        drop((union, mark));
        check(&bed.with(Whiteouts::Refuse));
        assert!(walk(bed.upper(), &whiteout).is_some() && walk(bed.upper(), hidden).is_none());
        // Made anew, it has nothing of what was hidden.
        let union = bed.union();
        mkdir(&*union, hidden);
        assert_eq!(list(&*union, hidden), [""; 0], "{hidden}");
    }
}

#[test]
fn opaque_marks_hide_what_is_merged() {
    let mark = |dir: &str| format!("{dir}/.wh..wh..opq");
    for (dir, left) in [("low", vec![]), ("both", vec!["own"]), ("own", vec!["x"]), ("", vec!["both", "g", "own"])] {
        let bed = Bed::new();
        let union = bed.union();
        let open = at(&*union, dir);
        let number = open.id();
        create(&*union, &mark(dir)).unwrap();
        assert_eq!(at(&*union, dir).id(), number, "{dir}: it is the same directory");
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
        assert_eq!(seen, left.len(), "{dir}: a directory that was in use");
        if dir.is_empty() {
            assert_eq!(list(&*union, "both"), ["own"]);
        }
        drop((union, open));
        assert_eq!(list(&*bed.with(Whiteouts::Refuse), dir), left, "{dir}");
        assert_eq!(at(&*bed.union(), dir).id(), number, "{dir}");
        assert!(walk(bed.upper(), &mark(dir)).is_some());
    }
}

#[test]
fn a_mark_that_is_removed_hides_nothing_more() {
    let bed = Bed::new();
    let union = bed.union();
    let links = at(&*union, "").getattr(&CX).unwrap().nlink;
    for (mark, seen) in [(".wh.f", "f"), (".wh.low", "low/sub/y"), ("low/.wh..wh..opq", "low/sub/y")] {
        create(&*union, mark).unwrap();
        assert!(walk(&*union, seen).is_none());
        let (dir, file) = split(mark);
        at(&*union, dir).unlink(&CX, name(file)).unwrap();
        assert!(walk(&*union, seen).is_some(), "{mark}");
        assert!(walk(&*union, mark).is_none());
    }
    assert_eq!(at(&*union, "").getattr(&CX).unwrap().nlink, links);
}

#[test]
fn link_counts_follow_whiteouts() {
    let bed = Bed::new();
    bed.lower().root().link(&CX, name("second"), &at(bed.lower(), "f")).unwrap();
    let union = bed.union();
    let count = || at(&*union, "second").getattr(&CX).unwrap().nlink;
    assert_eq!(count(), 2);
    create(&*union, ".wh.f").unwrap();
    assert_eq!(count(), 1);
    union.root().unlink(&CX, name(".wh.f")).unwrap();
    assert_eq!(count(), 2);
}

#[test]
fn only_root_and_the_server_write_marks_and_nobody_writes_records() {
    let bed = Bed::new();
    let union = bed.union();
    let root = union.root();
    let user = Cx::new(1000, 1000, 0, 0, true, &NEVER);
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
    assert!(walk(&*union, "g").is_none());
    assert!(!list(&*union, "").iter().any(|name| name.starts_with(".wh.")));
    assert_eq!(create(&*bed.with(Whiteouts::Refuse), ".wh.x").map(drop), Err(Errno::PERM));
}

/// Whatever fails: what is left can be whited out.
#[test]
fn a_whiteout_that_failed_can_be_written_again() {
    for hidden in ["f", "g", "both", "own", "low"] {
        for step in 1.. {
            let bed = Bed::new();
            let union = bed.union();
            bed.faults.arm(Plan { count: Count::All, at: step, fault: Fault::Error(Errno::NOSPC) });
            let mark = format!(".wh.{hidden}");
            let made = union.root().create(&CX, name(&mark), 0o644, OpenFlags::RDWR).map(drop);
            let over = !bed.faults.fired();
            bed.faults.reset();
            if made.is_err() {
                assert_eq!(made, Err(Errno::NOSPC), "{hidden}, step {step}");
                if walk(&*union, &mark).is_some() {
                    union.root().unlink(&CX, name(&mark)).unwrap();
                }
                create(&*union, &mark).unwrap();
            }
            assert!(walk(&*union, hidden).is_none(), "{hidden}, step {step}");
            drop(union);
            assert!(walk(&*bed.union(), hidden).is_none(), "{hidden}, step {step}");
            if over {
                break;
            }
        }
    }
}

/// A union inside another one says what is wrong.
#[test]
fn a_branch_in_another_union_is_refused_by_name() {
    let bed = Bed::new();
    for whiteouts in [Whiteouts::Refuse, Whiteouts::Write] {
        let outer = bed.with(whiteouts);
        let branch = Branch { layer: outer, path: "/outer".into(), mode: Mode::ReadWrite };
        let refused = Unionfs::new(vec![branch], Options::default()).unwrap_err();
        assert_eq!(refused, BuildError::NamesRefused("/outer".into()));
        assert!(refused.to_string().contains("lies in another union"), "{refused}");
    }
}
