//! Records count in whatever branch they lie: hard links and inode numbers after branches were
//! added, removed, moved, copied or mounted in another order.
#![allow(clippy::disallowed_methods, reason = "the tests create their own directories")]
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::layer_ops::{at, attr, name, read};
use hostfs::{HostFs, HostOptions};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use testkit::TempDir;
use unionfs::offline::Copied;
use unionfs::{Branch, BranchChange, ChangePolicy, Delete, InUse, Mode, Options, Unionfs};
use vnode::{Cx, Layer, OpenFlags, RenameFlags, SetAttr};

const CX: Cx<'static> = Cx::internal(0, 0);
const POLICY: ChangePolicy =
    ChangePolicy { patience: Duration::from_secs(10), in_use: InUse::Keep, expected_generation: None };

/// Directories that are branches.
struct Bed(TempDir);

impl Bed {
    /// Creates these branches; the last one has a file with the names `f0`, `f1` and `f2`.
    fn new(branches: &[&str]) -> Self {
        let bed = Self(TempDir::new());
        for branch in branches {
            fs::create_dir(bed.0.join(branch)).unwrap();
        }
        let last = bed.0.join(branches.last().unwrap());
        fs::write(last.join("f0"), "data").unwrap();
        for other in ["f1", "f2"] {
            fs::hard_link(last.join("f0"), last.join(other)).unwrap();
        }
        bed
    }

    fn branch(&self, branch: &str) -> Branch {
        let (dir, mode) = branch.split_once('=').unwrap();
        let path = self.0.join(dir);
        let mode = if mode == "rw" { Mode::ReadWrite } else { Mode::ReadOnly };
        Branch { layer: HostFs::open(&path, HostOptions::default()).unwrap(), path, mode }
    }

    /// Builds a union of branches, listed as for `dirs=`.
    fn mount(&self, branches: &str) -> Arc<Unionfs> {
        self.mount_with(branches, Options::default())
    }

    fn mount_with(&self, branches: &str, options: Options) -> Arc<Unionfs> {
        Unionfs::new(branches.split(':').map(|branch| self.branch(branch)).collect(), options).unwrap()
    }

    /// Returns whether the first of these branches is a copy.
    fn copied(&self, branches: &[&str]) -> Option<Copied> {
        let open = |branch: &&str| self.branch(&format!("{branch}=ro"));
        let pairs: Vec<_> = branches.iter().map(open).map(|branch| (branch.layer, branch.path)).collect();
        unionfs::offline::copied(&CX, &pairs).unwrap()
    }

    fn shell(&self, script: &str) {
        let done = Command::new("sh").args(["-ec", script]).current_dir(&*self.0).status().unwrap();
        assert!(done.success(), "{script}");
    }
}

fn append(union: &Unionfs, path: &str, text: &str) {
    let size = attr(union, path).size;
    let file = at(union, path).open(&CX, OpenFlags::WRONLY).unwrap();
    assert_eq!(file.write(&CX, text.as_bytes(), size).unwrap(), text.len());
}

fn rename(union: &Unionfs, from: &str, to: &str) {
    let ((from_dir, from), (to_dir, to)) = (crate::common::layer_ops::split(from), crate::common::layer_ops::split(to));
    let dir = |path: &str| if path.is_empty() { union.root() } else { at(union, path) };
    dir(from_dir).rename(&CX, name(from), &dir(to_dir), name(to), RenameFlags::default()).unwrap();
}

/// Checks that all these are names of one file with this content, and have its link count.
#[track_caller]
fn assert_one_file(union: &Unionfs, names: &[&str], data: &str) {
    let attrs: BTreeMap<&str, (u64, u32)> = names
        .iter()
        .map(|name| (*name, attr(union, name)))
        .map(|(name, attr)| (name, (attr.ino, attr.nlink)))
        .collect();
    let first = attrs[names[0]];
    assert!(attrs.values().all(|other| *other == first), "{attrs:?}");
    assert_eq!(first.1 as usize, names.len(), "{attrs:?}");
    for name in names {
        assert_eq!(String::from_utf8(read(union, name)).unwrap(), data, "{name}");
    }
}

/// The shell of issue reports: a new branch in front by a new mount.
#[test]
fn a_new_first_branch_keeps_hard_links_together() {
    let bed = Bed::new(&["a", "b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    let union = bed.mount("a=rw:b=ro:c=ro");
    assert_one_file(&union, &["f0", "f1", "f2"], "data+b");
    append(&union, "f1", "+a");
    assert_one_file(&union, &["f0", "f1", "f2"], "data+b+a");
    union.root().unlink(&CX, name("f0")).unwrap();
    assert_one_file(&union, &["f1", "f2"], "data+b+a");
    drop(union);
    assert_one_file(&bed.mount("a=rw:b=ro:c=ro"), &["f1", "f2"], "data+b+a");
    // What is discarded with the branch does not come back, and what it hid does.
    assert_one_file(&bed.mount("b=rw:c=ro"), &["f0", "f1", "f2"], "data+b");
    assert_one_file(&bed.mount("c=ro"), &["f0", "f1", "f2"], "data");
}

/// With `delete=all`, a replaced name is removed from its own branch instead of being hidden.
#[test]
fn a_name_that_is_replaced_and_removed_from_its_branch_is_counted_once() {
    let bed = Bed::new(&["a", "b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    let mount = || bed.mount_with("a=rw:b=rw:c=ro", Options { delete: Delete::All, ..Options::default() });
    let union = mount();
    union.root().mknod(&CX, name("new"), 0o100_644, 0).unwrap();
    rename(&union, "new", "f0");
    assert_one_file(&union, &["f1", "f2"], "data+b");
    drop(union);
    assert_one_file(&mount(), &["f1", "f2"], "data+b");
}

/// The number of a file is that of its original, whichever branches are listed before.
#[test]
fn numbers_last_in_unions_with_other_first_branches() {
    let bed = Bed::new(&["a", "b", "c"]);
    let number = {
        let union = bed.mount("b=rw:c=ro");
        append(&union, "f0", "+b");
        attr(&*union, "f0").ino
    };
    for branches in ["a=rw:b=ro:c=ro", "a=rw:b=rw:c=ro", "b=rw:c=ro", "b=ro:c=ro"] {
        assert_eq!(attr(&*bed.mount(branches), "f2").ino, number, "{branches}");
    }
}

/// Each branch takes its own records with it when it is removed.
#[test]
fn link_counts_after_the_first_branch_was_removed() {
    for replaces in [false, true] {
        let bed = Bed::new(&["a", "b", "r"]);
        fs::create_dir(bed.0.join("b/e")).unwrap();
        let union = bed.mount("a=rw:b=rw:r=ro");
        if replaces {
            rename(&union, "f0", "e/x");
            assert_one_file(&union, &["f1", "f2", "e/x"], "data");
        } else {
            // The whiteout is on the first branch.
            union.root().unlink(&CX, name("f0")).unwrap();
            assert_one_file(&union, &["f1", "f2"], "data");
        }
        union.change_branches(vec![BranchChange::Remove(bed.0.join("a"))], &POLICY).unwrap();
        let all: &[&str] = if replaces { &["f0", "f1", "f2", "e/x"] } else { &["f0", "f1", "f2"] };
        let names: Vec<&str> =
            all.iter().copied().filter(|path| crate::common::layer_ops::find(&*union, path).is_some()).collect();
        assert_one_file(&union, &names, "data");
        drop(union);
        assert_one_file(&bed.mount("b=rw:r=ro"), &names, "data");
    }
}

/// A branch that is removed and added again has its files under their numbers.
#[test]
fn a_branch_that_returns_has_the_same_files() {
    let bed = Bed::new(&["a", "r"]);
    let union = bed.mount("a=rw:r=ro");
    let held: Vec<_> = ["f0", "f1", "f2"].iter().map(|path| at(&*union, path)).collect();
    let number = attr(&*union, "f0").ino;
    union.change_branches(vec![BranchChange::Remove(bed.0.join("r"))], &POLICY).unwrap();
    assert!(crate::common::layer_ops::find(&*union, "f0").is_none());
    union.change_branches(vec![BranchChange::Insert { at: 1, branch: bed.branch("r=ro") }], &POLICY).unwrap();
    assert_eq!(attr(&*union, "f1").ino, number);
    append(&union, "f1", "+");
    assert_one_file(&union, &["f0", "f1", "f2"], "data+");
    drop((held, union));
    let union = bed.mount("a=rw:r=ro");
    assert_one_file(&union, &["f0", "f1", "f2"], "data+");
    assert_eq!(attr(&*union, "f1").ino, number);
}

/// Two unions gave the same tags to different branches.
#[test]
fn branches_of_different_unions_are_joined() {
    let bed = Bed::new(&["a", "b", "c", "d"]);
    bed.shell("echo c >c/g; ln c/g c/h");
    // c has the tag 2 in the log of `a`, d in that of `b`.
    append(&bed.mount("a=rw:c=ro"), "g", "+");
    append(&bed.mount("b=rw:d=ro"), "f0", "+b");
    for branches in ["a=rw:b=ro:c=ro:d=ro", "b=rw:a=ro:d=ro:c=ro", "a=ro:b=ro:c=ro:d=ro", "b=rw:a=rw:d=ro:c=ro"] {
        let union = bed.mount(branches);
        assert_one_file(&union, &["f0", "f1", "f2"], "data+b");
        assert_one_file(&union, &["g", "h"], "c\n+");
    }
    let union = bed.mount("a=rw:b=rw:c=ro:d=ro");
    append(&union, "f1", "+");
    append(&union, "h", "+");
    union.root().unlink(&CX, name("f0")).unwrap();
    drop(union);
    for branches in ["a=rw:b=rw:c=ro:d=ro", "a=rw:b=ro:c=ro:d=ro"] {
        let union = bed.mount(branches);
        assert_one_file(&union, &["f1", "f2"], "data+b+");
        assert_one_file(&union, &["g", "h"], "c\n++");
    }
}

/// Branches that were copied with their times have other inode numbers.
#[test]
fn copied_branches_keep_hard_links_together() {
    let bed = Bed::new(&["a", "b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    // Files between the originals, so that the numbers differ also where a file system reuses them.
    bed.shell("mkdir new; touch new/1 new/2; cp -a b new/b; cp -a c new/c; cp -a c d");
    for branches in ["new/b=rw:new/c=ro", "b=rw:d=ro", "a=rw:new/b=ro:c=ro"] {
        assert_one_file(&bed.mount(branches), &["f0", "f1", "f2"], "data+b");
    }
    // A backup is restored.
    bed.shell("mkdir save; cp -a b c save; rm -r b c; touch x y z; cp -a save/b save/c .");
    for _ in 0..2 {
        let union = bed.mount("b=rw:c=ro");
        assert_one_file(&union, &["f0", "f1", "f2"], "data+b");
        append(&union, "f2", "");
    }
    append(&bed.mount("b=rw:c=ro"), "f2", "+");
    assert_one_file(&bed.mount("a=rw:b=ro:c=ro"), &["f0", "f1", "f2"], "data+b+");
}

/// The copy of a file was copied again by a newer branch, as after a snapshot. Branches are copied
/// together or one by one.
#[test]
fn copied_branches_keep_copies_of_copies_together() {
    for modes in ["ro", "rw"] {
        let bed = Bed::new(&["a", "b", "c"]);
        append(&bed.mount("b=rw:c=ro"), "f0", "+b");
        append(&bed.mount(&format!("a=rw:b={modes}:c=ro")), "f1", "+a");
        bed.shell("mkdir new; touch new/1 new/2; cp -a a b c new");
        for branches in ["new/a=rw:new/b=ro:new/c=ro", "new/a=rw:b=ro:new/c=ro", "new/a=rw:new/b=ro:c=ro"] {
            assert_one_file(&bed.mount(branches), &["f0", "f1", "f2"], "data+b+a");
        }
    }
    // The first branch's copy has an original that got its other name on the second one.
    let bed = Bed::new(&["a", "b", "c"]);
    bed.shell("echo g >c/g");
    let union = bed.mount("b=rw:c=ro");
    union.root().link(&CX, name("h"), &at(&*union, "g")).unwrap();
    drop(union);
    append(&bed.mount("a=rw:b=ro:c=ro"), "h", "a");
    bed.shell("touch between; cp -a b d");
    assert_one_file(&bed.mount("a=rw:d=ro:c=ro"), &["g", "h"], "g\na");
}

/// A directory that is put at the path of a branch is another branch: its files have nothing to do
/// with the copies of the other one's.
#[test]
fn another_directory_at_a_branch_path_is_another_branch() {
    let bed = Bed::new(&["b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    let number = fs::metadata(bed.0.join("c/f0")).unwrap().ino();
    bed.shell("mv c old; mkdir c; cp -a b b2; mv old/f0 c/other; ln c/other c/second; rm -r old; echo fresh >>c/other");
    assert_eq!(fs::metadata(bed.0.join("c/other")).unwrap().ino(), number);
    let union = bed.mount("b=rw:c=ro");
    assert_eq!(read(&*union, "second"), b"datafresh\n");
    assert_eq!(read(&*union, "f0"), b"data+b");
}

/// A disk that is mounted elsewhere.
#[test]
fn a_branch_that_was_moved_is_the_same_branch() {
    let bed = Bed::new(&["b", "c"]);
    let number = {
        let union = bed.mount("b=rw:c=ro");
        append(&union, "f0", "+b");
        attr(&*union, "f1").ino
    };
    for (step, branches) in
        [("mv c c2", "b=rw:c2=ro"), ("mv b b2; mv c2 c", "b2=rw:c=ro"), ("mv b2 x; mv c b2; mv x c", "c=rw:b2=ro")]
    {
        bed.shell(step);
        let union = bed.mount(branches);
        assert_one_file(&union, &["f0", "f1", "f2"], "data+b");
        assert_eq!(attr(&*union, "f2").ino, number, "{branches}");
    }
}

/// Logs of version 1 have the link counts of the whole union, in each branch that was once the
/// first.
#[test]
fn logs_of_version_1_are_converted() {
    let bed = Bed::new(&["a", "b", "c"]);
    {
        let union = bed.mount("b=rw:c=ro");
        append(&union, "f0", "+b");
    }
    let log = bed.0.join("b/.wh..wh.ident");
    let old = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[13] = b'1';
        fs::write(path, bytes).unwrap();
    };
    old(&log);
    // As a snapshot did.
    fs::copy(&log, bed.0.join("a/.wh..wh.ident")).unwrap();
    for branches in ["a=ro:b=ro:c=ro", "a=rw:b=ro:c=ro", "a=rw:b=rw:c=ro", "a=rw:b=rw:c=ro", "b=rw:c=ro"] {
        assert_one_file(&bed.mount(branches), &["f0", "f1", "f2"], "data+b");
    }
}

/// A file that was changed before and after a snapshot, whose middle branch then goes: its other
/// names still lead to the newest copy.
#[test]
fn names_of_a_copy_survive_the_removal_of_a_middle_branch() {
    for live in [false, true] {
        let bed = Bed::new(&["a", "b", "c"]);
        append(&bed.mount("b=rw:c=ro"), "f0", "+b");
        let union = bed.mount("a=rw:b=ro:c=ro");
        append(&union, "f1", "+a");
        let union = match live {
            true => {
                union.change_branches(vec![BranchChange::Remove(bed.0.join("b"))], &POLICY).unwrap();
                union
            }
            false => {
                drop(union);
                bed.mount("a=rw:c=ro")
            }
        };
        assert_one_file(&union, &["f0", "f1", "f2"], "data+b+a");
        union.root().unlink(&CX, name("f0")).unwrap();
        assert_one_file(&union, &["f1", "f2"], "data+b+a");
        union.root().unlink(&CX, name("f1")).unwrap();
        assert_one_file(&union, &["f2"], "data+b+a");
    }
}

/// A snapshot is not changed by a mount that has a newer copy of its files, whatever its mode.
#[test]
fn a_writable_branch_keeps_copies_of_which_there_are_newer_ones() {
    let bed = Bed::new(&["a", "b", "c"]);
    let union = bed.mount("b=rw:c=ro");
    append(&union, "f0", "+b");
    union.root().unlink(&CX, name("f0")).unwrap();
    drop(union);
    append(&bed.mount("a=rw:b=ro:c=ro"), "f1", "+a");
    assert_one_file(&bed.mount("a=rw:b=rw:c=ro"), &["f1", "f2"], "data+b+a");
    assert_one_file(&bed.mount("b=ro:c=ro"), &["f1", "f2"], "data+b");
}

/// Only the log of the first branch learns at once that a branch is mounted elsewhere now.
#[test]
fn a_branch_that_was_moved_is_the_same_branch_for_all_logs() {
    let bed = Bed::new(&["x", "a", "c"]);
    append(&bed.mount("a=rw:c=ro"), "f0", "+a");
    bed.shell("mv c c2");
    for branches in ["x=rw:a=ro:c2=ro", "x=rw:a=ro:c2=ro", "a=rw:c2=ro"] {
        assert_one_file(&bed.mount(branches), &["f0", "f1", "f2"], "data+a");
    }
    // Two unions knew it by different paths.
    bed.shell("mkdir b m; mv c2 m/c");
    append(&bed.mount("b=rw:m/c=ro"), "f1", "+b");
    for (branches, data) in [("x=rw:a=ro:b=ro:m/c=ro", "data+a"), ("x=rw:b=ro:a=ro:m/c=ro", "data+b")] {
        let union = bed.mount(branches);
        // Link counts are too high: each copy counts all names of the original.
        for name in ["f0", "f1", "f2"] {
            assert_eq!(String::from_utf8(read(&*union, name)).unwrap(), data, "{name} in {branches}");
        }
    }
}

/// The lower file still has names, but they are hidden.
#[test]
fn a_copy_of_a_file_without_names_gets_no_index_entry() {
    let bed = Bed::new(&["a", "b"]);
    let union = bed.mount("a=rw:b=ro");
    let file = at(&*union, "f0");
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    for removed in ["f0", "f1", "f2"] {
        union.root().unlink(&CX, name(removed)).unwrap();
    }
    file.setattr(&CX, &SetAttr { size: Some(2), ..SetAttr::default() }, None).unwrap();
    assert_eq!(file.getattr(&CX).unwrap().size, 2);
    drop((open, file));
    let links = bed.0.join("a/.wh..wh.links");
    assert!(fs::read_dir(links).map_or(0, Iterator::count) == 0);
}

/// A branch is removed and added by one change: remount,del=c,append=c=ro.
#[test]
fn a_branch_that_is_removed_and_added_at_once_has_the_same_files() {
    let bed = Bed::new(&["a", "c"]);
    let union = bed.mount("a=rw:c=ro");
    append(&union, "f0", "+a");
    let changes =
        vec![BranchChange::Remove(bed.0.join("c")), BranchChange::Insert { at: 1, branch: bed.branch("c=ro") }];
    union.change_branches(changes, &POLICY).unwrap();
    assert_one_file(&union, &["f0", "f1", "f2"], "data+a");
    drop(union);
    assert_one_file(&bed.mount("a=rw:c=ro"), &["f0", "f1", "f2"], "data+a");
}

/// The log of one branch knows the copy of another one's originals, which was used before the other
/// came.
#[test]
fn a_copied_branch_is_recognised_by_each_log() {
    let bed = Bed::new(&["x", "b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    bed.shell("touch between; cp -a c d");
    drop(bed.mount("x=rw:d=ro"));
    assert_one_file(&bed.mount("x=rw:b=ro:d=ro"), &["f0", "f1", "f2"], "data+b");
    let union = bed.mount("x=rw:d=ro");
    assert_one_file(&union, &["f0", "f1", "f2"], "data");
    union.change_branches(vec![BranchChange::Insert { at: 1, branch: bed.branch("b=ro") }], &POLICY).unwrap();
    assert_one_file(&union, &["f0", "f1", "f2"], "data+b");
}

/// The time counts for conflicts of a commit.
#[test]
fn the_first_union_that_writes_a_copy_records_the_time() {
    let bed = Bed::new(&["a", "b"]);
    append(&bed.mount("a=rw:b=ro"), "f0", "+a");
    bed.shell("mkdir new; cp -a a new/a; cp -a a new/later; cp -a b new/b");
    let copied = |branches: &[&str]| bed.copied(branches);
    assert_eq!(copied(&["a", "new/b"]), None);
    for (below, old_below) in [("b", true), ("new/b", false)] {
        assert_eq!(copied(&["new/a", below]).unwrap(), Copied { at: None, old_below });
        drop(bed.mount(&format!("new/a=ro:{below}=ro")));
        assert_eq!(copied(&["new/a", below]).unwrap(), Copied { at: None, old_below });
    }
    drop(bed.mount("new/a=rw:b=ro"));
    let recorded = copied(&["new/a", "new/b"]).unwrap();
    assert!(recorded.at.is_some() && recorded.old_below);
    drop(bed.mount("new/a=rw:new/b=ro"));
    assert_eq!(copied(&["new/a", "b"]), Some(recorded));
    // A copy of the copy.
    bed.shell("cp -a new/a again");
    assert_eq!(copied(&["again", "new/a", "b"]).unwrap(), Copied { at: None, old_below: true });
    // One that was added, or became writable, while the union was in use.
    let union = bed.mount("a=rw:b=ro");
    let insert = BranchChange::Insert { at: 0, branch: bed.branch("again=rw") };
    union.change_branches(vec![insert], &POLICY).unwrap();
    assert!(copied(&["again"]).unwrap().at.is_some());
    let union = bed.mount("new/later=ro:b=ro");
    let changed = BranchChange::Mode(bed.0.join("new/later"), Mode::ReadWrite);
    union.change_branches(vec![changed], &POLICY).unwrap();
    assert!(copied(&["new/later"]).unwrap().at.is_some());
}

/// Also of one that is not the leftmost, and that the union changes nothing in.
#[test]
fn each_written_copy_is_recorded_at_once() {
    let bed = Bed::new(&["a", "b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    bed.shell("mkdir new; cp -a a b c new; cp -a b new/later; cp -a b new/full");
    drop(bed.mount("new/a=rw:new/b=rw:new/c=ro"));
    let recorded = bed.copied(&["new/b", "new/c"]).unwrap();
    assert!(recorded.at.is_some() && !recorded.old_below);
    let log = fs::metadata(bed.0.join("new/b/.wh..wh.ident")).unwrap().len();
    drop(bed.mount("new/a=rw:new/b=rw:new/c=ro"));
    assert_eq!(bed.copied(&["new/b", "new/c"]), Some(recorded));
    assert_eq!(fs::metadata(bed.0.join("new/b/.wh..wh.ident")).unwrap().len(), log);
    // One that becomes writable while the union is in use.
    let union = bed.mount("new/a=rw:new/later=ro:c=ro");
    let changed = BranchChange::Mode(bed.0.join("new/later"), Mode::ReadWrite);
    union.change_branches(vec![changed], &POLICY).unwrap();
    let recorded = bed.copied(&["new/later", "c"]).unwrap();
    assert!(recorded.at.is_some() && recorded.old_below);
    // A union without the branch's log creates none.
    assert!(!bed.0.join("c/.wh..wh.ident").exists());
    drop(bed.mount("a=rw:c=rw"));
    assert!(!bed.0.join("c/.wh..wh.ident").exists());
}

/// Whatever its first record is about.
#[test]
fn an_original_is_no_copy() {
    let bed = Bed::new(&["a", "b", "c"]);
    fs::create_dir(bed.0.join("b/d")).unwrap();
    fs::create_dir(bed.0.join("c/d")).unwrap();
    fs::hard_link(bed.0.join("c/f0"), bed.0.join("c/d/f3")).unwrap();
    let options = Options { delete: Delete::Whiteout, ..Options::default() };
    let union = bed.mount_with("a=rw:b=rw:c=ro", options);
    at(&*union, "d").unlink(&CX, name("f3")).unwrap();
    drop(union);
    assert!(bed.0.join("b/.wh..wh.ident").exists(), "the test needs a record in the log of b");
    assert_eq!(bed.copied(&["b", "c"]), None);
}

/// What it says of link counts depends on all branches of the union that wrote it.
#[test]
fn a_log_of_version_1_is_not_taken_over_without_the_others() {
    let bed = Bed::new(&["a", "b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    let log = bed.0.join("b/.wh..wh.ident");
    let mut bytes = fs::read(&log).unwrap();
    bytes[13] = b'1';
    fs::write(&log, bytes).unwrap();
    let union = bed.mount("a=rw:c=ro");
    let insert = BranchChange::Insert { at: 1, branch: bed.branch("b=ro") };
    let refused = union.change_branches(vec![insert], &POLICY).unwrap_err().to_string();
    assert!(refused.contains("mount it again"), "{refused}");
    drop(union);
    assert_one_file(&bed.mount("a=rw:b=ro:c=ro"), &["f0", "f1", "f2"], "data+b");
}

/// A snapshot is used without the newer branch, and hides a name that the newer branch hides too.
#[test]
fn a_file_is_kept_although_two_branches_count_the_same_name() {
    let bed = Bed::new(&["a", "b", "c"]);
    append(&bed.mount("b=rw:c=ro"), "f0", "+b");
    for branches in ["a=rw:b=ro:c=ro", "b=rw:c=ro"] {
        bed.mount(branches).root().unlink(&CX, name("f1")).unwrap();
    }
    for branches in ["a=rw:b=rw:c=ro", "a=rw:b=ro:c=ro"] {
        let union = bed.mount(branches);
        let _removed = union.root().unlink(&CX, name("f0"));
        assert_eq!(read(&*union, "f2"), b"data+b");
        drop(union);
        assert_one_file(&bed.mount(branches), &["f2"], "data+b");
    }
    bed.mount("a=rw:b=rw:c=ro").root().unlink(&CX, name("f2")).unwrap();
    assert_eq!(fs::read_dir(bed.0.join("b/.wh..wh.links")).unwrap().count(), 0);
}

/// A power failure takes the end of a log, and with it what a newer copy counted.
#[test]
fn names_of_a_copy_survive_the_loss_of_its_records() {
    let bed = Bed::new(&["a", "b", "c"]);
    let union = bed.mount("b=rw:c=ro");
    append(&union, "f0", "+b");
    rename(&union, "f1", "x");
    drop(union);
    let union = bed.mount("a=rw:b=ro:c=ro");
    let log = bed.0.join("a/.wh..wh.ident");
    let before = fs::read(&log).unwrap();
    append(&union, "f0", "+a");
    drop(union);
    fs::write(&log, before).unwrap();
    // Too many is safe, too few is not.
    assert!(attr(&*bed.mount("a=rw:b=ro:c=ro"), "f2").nlink >= 3);
    for gone in ["f0", "x"] {
        bed.mount("a=rw:b=ro:c=ro").root().unlink(&CX, name(gone)).unwrap();
        assert_eq!(read(&*bed.mount("a=rw:b=ro:c=ro"), "f2"), b"data+b+a");
    }
}
