//! Reports of out-of-band changes, simulated: the branches are in memory, and the test reports what
//! it changed on them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::reporting::{Reporting, Source};
use memfs::Faults;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use unionfs::{BranchChange, ChangePolicy, InUse, Options, Unionfs};
use vnode::{Cx, Drained, Kind, Layer, Name, RenameFlags, Upcalls, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);

/// Collects the reports of a union.
#[derive(Debug, Default)]
struct Collector(Mutex<BTreeSet<String>>);

impl Collector {
    fn add(&self, text: String) {
        self.0.lock().unwrap().insert(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().collect()
    }
}

impl Upcalls for Collector {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        self.add(format!("entry {dir} {}", name.as_bytes().escape_ascii()));
    }

    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        self.add(format!("directory {dir} {}", name.as_bytes().escape_ascii()));
    }

    fn attributes_changed(&self, vnode: u64) {
        self.add(format!("attributes {vnode}"));
    }

    fn data_changed(&self, vnode: u64, _range: Range<u64>) {
        self.add(format!("data {vnode}"));
    }

    fn data_moved(&self, _vnode: u64) {}

    fn everything_changed(&self) {
        self.add("everything".to_owned());
    }

    fn stop_passthrough(&self, _vnode: u64, drained: Drained) {
        drained();
    }

    fn allow_passthrough(&self, _vnode: u64) {}

    fn passthrough(&self) -> Vec<u64> {
        Vec::new()
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        Vec::new()
    }

    fn is_host_file_unused(&self, _file: std::os::fd::BorrowedFd<'_>, _readers: bool) -> bool {
        true
    }

    fn settle(&self, _timeout: Duration) -> bool {
        true
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn find(dir: &Arc<dyn Vnode>, path: &str) -> Arc<dyn Vnode> {
    path.split('/').fold(dir.clone(), |dir, part| dir.lookup(&CX, name(part)).unwrap().unwrap().vnode)
}

fn mkdir(dir: &Arc<dyn Vnode>, text: &str) -> Arc<dyn Vnode> {
    dir.mkdir(&CX, name(text), 0o755).unwrap().vnode
}

fn mknod(dir: &Arc<dyn Vnode>, text: &str) -> Arc<dyn Vnode> {
    dir.mknod(&CX, name(text), Kind::Regular.mode_bits() | 0o644, 0).unwrap().vnode
}

fn names(dir: &Arc<dyn Vnode>) -> Vec<String> {
    let mut names = Vec::new();
    dir.readdir(&CX, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
        true
    })
    .unwrap();
    names.sort();
    names
}

/// A union of a read-write branch, 0, and two read-only ones.
struct Bed {
    union: Arc<Unionfs>,
    layers: Vec<Arc<Reporting>>,
    seen: Arc<Collector>,
}

impl Bed {
    fn new() -> Self {
        let layers: Vec<_> = (0..3).map(|_| layer()).collect();
        let branches = layers.iter().zip(0..).map(|(layer, at)| layer.branch(at)).collect();
        let (union, seen) = (Unionfs::new(branches, Options::default()).unwrap(), Arc::new(Collector::default()));
        union.attach(seen.clone());
        Self { union, layers, seen }
    }

    fn root(&self) -> Arc<dyn Vnode> {
        self.union.root()
    }

    fn below(&self, branch: usize) -> Arc<dyn Vnode> {
        self.layers[branch].root()
    }

    fn reports(&self, branch: usize) -> &Arc<dyn Upcalls> {
        self.layers[branch].upcalls()
    }
}

fn layer() -> Arc<Reporting> {
    Reporting::new(Some(&Source::new()), &Faults::new())
}

/// A report of any part reaches the directory that merges it, and the kept listing follows.
#[test]
fn entries_of_each_part_are_those_of_the_merged_directory() {
    let bed = Bed::new();
    let parts: Vec<_> = (0..3).map(|branch| mkdir(&bed.below(branch), "d")).collect();
    let dir = find(&bed.root(), "d");
    assert!(names(&dir).is_empty());
    for (branch, part) in parts.iter().enumerate() {
        let file = format!("f{branch}");
        mknod(part, &file);
        bed.reports(branch).entry_changed(part.id(), name(&file));
        assert_eq!(bed.seen.take(), [format!("entry {} {file}", dir.id())]);
        assert_eq!(names(&dir).len(), branch + 1);
        part.unlink(&CX, name(&file)).unwrap();
        bed.reports(branch).entry_changed(part.id(), name(&file));
        assert_eq!(names(&dir).len(), branch);
        mknod(part, &file);
        bed.reports(branch).entry_changed(part.id(), name(&file));
        bed.seen.take();
    }
    // Directories that are not in use are not known.
    let unused = mkdir(&parts[1], "unused");
    bed.reports(1).entry_changed(unused.id(), name("x"));
    bed.reports(1).attributes_changed(unused.id());
    assert!(bed.seen.take().is_empty());
}

#[test]
fn objects_are_reported_by_their_own_numbers() {
    let bed = Bed::new();
    let lower = mknod(&bed.below(1), "f");
    bed.reports(1).data_changed(lower.id(), 0..u64::MAX);
    assert!(bed.seen.take().is_empty(), "not in use");
    let file = find(&bed.root(), "f");
    bed.reports(1).data_changed(lower.id(), 0..u64::MAX);
    bed.reports(1).attributes_changed(lower.id());
    assert_eq!(bed.seen.take(), [format!("attributes {}", file.id()), format!("data {}", file.id())]);
    bed.reports(2).attributes_changed(lower.id());
    assert!(bed.seen.take().is_empty(), "another branch has an object with this number");
    // A copy has the original's number, which does not follow from the copy's.
    let set = vnode::SetAttr { size: Some(0), ..vnode::SetAttr::default() };
    file.setattr(&CX, &set, None).unwrap();
    bed.seen.take();
    let copy = find(&bed.below(0), "f");
    bed.reports(0).attributes_changed(copy.id());
    assert_eq!(bed.seen.take(), [format!("attributes {}", file.id())]);
    bed.reports(1).attributes_changed(lower.id());
    assert!(bed.seen.take().is_empty(), "the original is hidden");
}

/// A lookup may find changed parts before the report arrives, which then finds nothing to replace.
#[test]
fn parts_that_a_lookup_finds_changed_are_reported() {
    let bed = Bed::new();
    mkdir(&bed.below(1), "d");
    let below = bed.below(0);
    mknod(&mkdir(&below, "d"), "f");
    let dir = find(&bed.root(), "d");
    assert_eq!(names(&dir), ["f"]);
    for (old, new, shown) in [("d", "other", 0), ("other", "d", 1)] {
        below.rename(&CX, name(old), &below, name(new), RenameFlags::default()).unwrap();
        assert_eq!(find(&bed.root(), "d").id(), dir.id());
        assert_eq!(bed.seen.take(), ["everything".to_owned()]);
        assert_eq!(names(&dir).len(), shown);
        bed.reports(0).directory_entry_changed(below.id(), name("d"));
        assert_eq!(bed.seen.take(), [format!("directory {} d", bed.root().id())]);
    }
}

/// A directory in use gets the parts that appear, and loses those that disappear.
#[test]
fn directories_in_use_are_merged_again() {
    let bed = Bed::new();
    mkdir(&bed.below(1), "d");
    let dir = find(&bed.root(), "d");
    let root = bed.root().id();
    let number = dir.id();
    for branch in [0, 2] {
        let prepared = mkdir(&bed.below(branch), "prepared");
        mknod(&prepared, &format!("f{branch}"));
        let below = bed.below(branch);
        below.rename(&CX, name("prepared"), &below, name("d"), RenameFlags::default()).unwrap();
        bed.reports(branch).directory_entry_changed(below.id(), name("d"));
        assert_eq!(bed.seen.take(), [format!("directory {root} d"), "everything".to_owned()]);
        // Without a lookup of its name.
        assert_eq!(names(&dir), [format!("f{branch}")]);
        assert_eq!(find(&bed.root(), "d").id(), number);
        below.rename(&CX, name("d"), &below, name("away"), RenameFlags::default()).unwrap();
        bed.reports(branch).directory_entry_changed(below.id(), name("d"));
        bed.seen.take();
        assert!(names(&dir).is_empty());
        assert_eq!(find(&bed.root(), "d").id(), number);
    }
    // A directory that nothing merges concerns only its name.
    mkdir(&bed.below(2), "new");
    bed.reports(2).directory_entry_changed(bed.below(2).id(), name("new"));
    assert_eq!(bed.seen.take(), [format!("directory {root} new")]);
}

/// Whiteouts and marks concern other names than their own.
#[test]
fn marks_are_changes_of_the_names_that_they_concern() {
    let bed = Bed::new();
    for branch in 0..2 {
        mknod(&mkdir(&bed.below(branch), "d"), &format!("f{branch}"));
    }
    let (root, dir) = (bed.root(), find(&bed.root(), "d"));
    assert_eq!(names(&dir), ["f0", "f1"]);
    let part = find(&bed.below(0), "d");
    mknod(&part, ".wh.f1");
    bed.reports(0).entry_changed(part.id(), name(".wh.f1"));
    assert_eq!(bed.seen.take(), [format!("directory {} f1", dir.id())]);
    assert_eq!(names(&dir), ["f0"]);
    part.unlink(&CX, name(".wh.f1")).unwrap();
    bed.reports(0).entry_changed(part.id(), name(".wh.f1"));
    bed.seen.take();
    mknod(&part, ".wh..wh..opq");
    bed.reports(0).entry_changed(part.id(), name(".wh..wh..opq"));
    assert_eq!(bed.seen.take(), [format!("directory {} d", root.id()), "everything".to_owned()]);
    assert_eq!(names(&dir), ["f0"]);
    mknod(&part, ".wh..wh.meta.f1");
    bed.reports(0).entry_changed(part.id(), name(".wh..wh.meta.f1"));
    assert_eq!(bed.seen.take(), [format!("entry {} f1", dir.id())]);
    // The union's own records.
    bed.reports(0).entry_changed(bed.below(0).id(), name(".wh..wh.ident"));
    assert!(bed.seen.take().is_empty());
    // A whiteout of a long name does not tell the name.
    bed.reports(0).entry_changed(part.id(), name(".wh..wh.l.0123456789abcdef0123456789abcdef"));
    assert_eq!(bed.seen.take(), ["everything"]);
}

#[test]
fn lost_reports_invalidate_everything() {
    let bed = Bed::new();
    for branch in 1..3 {
        mkdir(&bed.below(branch), "d");
    }
    let dir = find(&bed.root(), "d");
    assert_eq!(dir.getattr(&CX).unwrap().nlink, 2);
    mkdir(&find(&bed.below(2), "d"), "sub");
    bed.reports(1).everything_changed();
    assert_eq!(bed.seen.take(), ["everything"]);
    assert_eq!((dir.getattr(&CX).unwrap().nlink, names(&dir)), (3, vec!["sub".to_owned()]));
}

/// Reports of a branch that was removed are ignored, those of one that was added are not. A union
/// that no longer exists is not kept by its branches.
#[test]
fn reports_follow_the_set_of_branches() {
    let bed = Bed::new();
    let policy = ChangePolicy { patience: Duration::from_secs(10), in_use: InUse::Keep, expected_generation: None };
    let change = |change| bed.union.change_branches(vec![change], &policy).unwrap();
    let added = layer();
    change(BranchChange::Insert { at: 1, branch: added.branch(3) });
    bed.seen.take();
    // Until the directory is used in the new set, nothing can be cached of it.
    assert!(names(&bed.root()).is_empty());
    let lower = mknod(&added.root(), "f");
    let reports = added.upcalls();
    reports.entry_changed(added.root().id(), name("f"));
    assert_eq!(bed.seen.take(), [format!("entry {} f", bed.root().id())]);
    let file = find(&bed.root(), "f");
    reports.attributes_changed(lower.id());
    assert_eq!(bed.seen.take(), [format!("attributes {}", file.id())]);
    change(BranchChange::Remove("/3".into()));
    bed.seen.take();
    reports.entry_changed(added.root().id(), name("f"));
    reports.attributes_changed(lower.id());
    assert!(bed.seen.take().is_empty());
    let Bed { union, layers, seen } = bed;
    let gone = Arc::downgrade(&union);
    drop((union, file));
    assert!(gone.upgrade().is_none());
    layers[1].upcalls().everything_changed();
    assert!(seen.take().is_empty());
}
