//! Merges of snapshots to which a newer branch, which is not given, refers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{at, attr, chmod, list, name, read};
use changes::{Branches, CommitOptions, Error, Floor, Outcome, Selection, Source};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use unionfs::{Branch, Mode, Options, Unionfs};
use vnode::{Cx, Layer, OpenFlags, SetAttr, XattrFlags};

const CX: Cx<'static> = Cx::internal(0, 0);

/// Branches in memory, by name.
struct Bed(BTreeMap<char, Arc<MemFs>>);

impl Bed {
    fn new(branches: &str) -> Self {
        Self::with(branches, &Faults::new())
    }

    fn with(branches: &str, faults: &Faults) -> Self {
        Self(branches.chars().map(|branch| (branch, MemFs::with(MemOptions::default(), faults))).collect())
    }

    fn each(&self, change: impl Fn(&MemFs) -> Arc<MemFs>) -> Self {
        Self(self.0.iter().map(|(branch, fs)| (*branch, change(fs))).collect())
    }

    fn source(&self, branch: char) -> Source {
        Source { layer: self.0[&branch].clone(), path: format!("/{branch}").into() }
    }

    /// Builds the union of these branches, of which the first is read-write.
    fn mount(&self, branches: &str) -> Arc<Unionfs> {
        let branch = |(at, branch): (usize, char)| {
            let Source { layer, path } = self.source(branch);
            Branch { layer, path, mode: if at == 0 { Mode::ReadWrite } else { Mode::ReadOnly } }
        };
        Unionfs::new(branches.chars().enumerate().map(branch).collect(), Options::default()).unwrap()
    }

    /// Merges the first of these branches into the next one.
    fn merge(&self, branches: &str) {
        let outcome = self.try_merge(branches).unwrap();
        assert!(outcome.failed.is_empty(), "{outcome:?}");
    }

    fn try_merge(&self, branches: &str) -> Result<Outcome, Error> {
        let mut sources = branches.chars().map(|branch| self.source(branch));
        let branches = Branches::new(sources.next().unwrap(), sources.collect(), Floor::Ground);
        // snapmerge looks for conflicts in all snapshots before it merges the first one.
        let options = CommitOptions { force: true, merging: true, ..CommitOptions::default() };
        branches.commit(&Selection::all(), &options, &mut |_| {})
    }
}

fn create(layer: &dyn Layer, names: &[&str]) {
    let root = layer.root();
    let file = root.mknod(&CX, name(names[0]), 0o100_644, 0).unwrap().vnode;
    for other in &names[1..] {
        root.link(&CX, name(other), &file).unwrap();
    }
}

fn append(union: &Unionfs, path: &str, text: &str) {
    let file = at(union, path).open(&CX, OpenFlags::WRONLY).unwrap();
    file.write(&CX, text.as_bytes(), attr(union, path).size).unwrap();
}

/// Checks that all these are names of one file with this content, and have its link count.
#[track_caller]
fn assert_one_file(union: &Unionfs, names: &[&str], data: &str) {
    let shown: BTreeSet<_> = names
        .iter()
        .map(|name| (attr(union, name).ino, attr(union, name).nlink, String::from_utf8(read(union, name)).unwrap()))
        .collect();
    let (_, nlink, content) = shown.first().unwrap();
    assert!(shown.len() == 1 && content == data && *nlink as usize == names.len(), "{shown:?}");
}

/// Checks the file through `a` and without it, then removes all its names but the last one.
#[track_caller]
fn assert_kept(bed: &Bed, below: &str, names: &[&str], (newer, merged): (&str, &str)) {
    assert_one_file(&bed.mount(below), names, merged);
    let all = format!("a{below}");
    assert_one_file(&bed.mount(&all), names, newer);
    for at in 1..names.len() {
        bed.mount(&all).root().unlink(&CX, name(names[at - 1])).unwrap();
        assert_one_file(&bed.mount(&all), &names[at..], newer);
    }
}

#[test]
fn a_newer_change_of_hard_links_that_a_snapshot_created_survives_its_merge() {
    let bed = Bed::new("abcd");
    let union = bed.mount("bcd");
    create(&*union, &["f", "g", "h"]);
    append(&union, "f", "old");
    drop(union);
    append(&bed.mount("abcd"), "g", "+new");
    bed.merge("bcd");
    assert_kept(&bed, "cd", &["f", "g", "h"], ("old+new", "old"));
}

#[test]
fn a_newer_change_of_hard_links_that_a_snapshot_copied_survives_its_merge() {
    for entry_in_snapshot in [false, true] {
        let bed = Bed::new("abcd");
        create(&*bed.0[&'d'], &["f", "g", "h", "i"]);
        let union = bed.mount("bcd");
        append(&union, "f", "old");
        if entry_in_snapshot {
            union.root().link(&CX, name("j"), &at(&*union, "h")).unwrap();
            union.root().unlink(&CX, name("i")).unwrap();
        }
        drop(union);
        append(&bed.mount("abcd"), "g", "+new");
        let names: &[&str] = if entry_in_snapshot { &["f", "g", "h", "j"] } else { &["f", "g", "h", "i"] };
        bed.merge("bcd");
        assert_kept(&bed, "cd", names, ("old+new", "old"));
    }
}

#[test]
fn merging_on_and_on_keeps_a_newer_change_of_hard_links() {
    let bed = Bed::new("abcd");
    create(&*bed.0[&'d'], &["f", "g", "h"]);
    append(&bed.mount("cd"), "f", "c");
    append(&bed.mount("bcd"), "g", "b");
    append(&bed.mount("abcd"), "h", "a");
    bed.merge("bcd");
    assert_one_file(&bed.mount("acd"), &["f", "g", "h"], "cba");
    bed.merge("cd");
    assert_kept(&bed, "d", &["f", "g", "h"], ("cba", "cb"));
}

/// Each snapshot has a newer copy in its index only.
#[test]
fn merging_several_snapshots_keeps_a_newer_change_of_hard_links() {
    let bed = Bed::new("abcde");
    create(&*bed.0[&'e'], &["f", "g", "h"]);
    append(&bed.mount("de"), "f", "d");
    append(&bed.mount("cde"), "g", "c");
    append(&bed.mount("bcde"), "h", "b");
    append(&bed.mount("abcde"), "f", "a");
    bed.merge("bcde");
    assert_eq!(read(&*bed.mount("acde"), "h"), b"dcba");
    bed.merge("cde");
    assert_kept(&bed, "de", &["f", "g", "h"], ("dcba", "dcb"));
    let bed = &bed;
    bed.merge("de");
    assert_one_file(&bed.mount("e"), &["f", "g", "h"], "dcb");
}

/// The last name leads to the copies by the indexes only.
#[test]
fn a_newer_change_of_a_file_that_lost_its_other_names_survives_a_merge() {
    let bed = Bed::new("abc");
    create(&*bed.0[&'c'], &["f", "g"]);
    let union = bed.mount("bc");
    append(&union, "g", "old");
    union.root().unlink(&CX, name("g")).unwrap();
    drop(union);
    append(&bed.mount("abc"), "f", "+new");
    bed.merge("bc");
    assert_kept(&bed, "c", &["f"], ("old+new", "old"));
}

#[test]
fn a_newer_change_survives_the_merge_of_a_file_that_lost_a_name_by_an_earlier_merge() {
    let bed = Bed::new("abcd");
    create(&*bed.mount("cd"), &["f", "g"]);
    let union = bed.mount("abcd");
    append(&union, "g", "new");
    drop(union);
    bed.mount("bcd").root().unlink(&CX, name("g")).unwrap();
    bed.merge("bcd");
    bed.merge("cd");
    assert_eq!((read(&*bed.mount("d"), "f"), read(&*bed.mount("ad"), "f")), (b"".to_vec(), b"new".to_vec()));
}

#[test]
fn a_killed_merge_keeps_newer_changes() {
    let bed = Bed::with("abc", &Faults::new());
    create(&*bed.0[&'c'], &["f", "g"]);
    let union = bed.mount("bc");
    append(&union, "g", "old");
    union.root().unlink(&CX, name("g")).unwrap();
    drop(union);
    append(&bed.mount("abc"), "f", "+new");
    let faults = Faults::new();
    bed.each(|fs| fs.fork(&faults)).merge("bc");
    let steps = faults.changes();
    for at in 1..=steps {
        let faults = Faults::new();
        let run = bed.each(|fs| fs.fork(&faults));
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _crashed = run.try_merge("bc");
        let faults = Faults::new();
        let run = run.each(|fs| fs.recover(&faults));
        run.merge("bc");
        assert_eq!(read(&*run.mount("ac"), "f"), b"old+new", "killed at step {at} of {steps}");
    }
}

/// XFS lists each ACL under a second name.
#[test]
fn other_names_of_acls_are_not_copied() {
    let bed = Bed::new("bc");
    let alias = b"trusted.SGI_ACL_FILE".as_slice();
    let has = |branch: char, xattr: &[u8]| at(&*bed.0[&branch], "f").getxattr(&CX, xattr, &mut []).is_ok();
    create(&*bed.0[&'c'], &["f"]);
    for xattr in [alias, b"user.a"] {
        at(&*bed.0[&'c'], "f").setxattr(&CX, xattr, b"x", XattrFlags::default()).unwrap();
    }
    append(&bed.mount("bc"), "f", "new");
    assert!(has('b', b"user.a") && !has('b', alias) && has('c', alias));
    at(&*bed.0[&'b'], "f").setxattr(&CX, alias, b"x", XattrFlags::default()).unwrap();
    bed.merge("bc");
    assert!(has('c', b"user.a") && !has('c', alias));
}

/// A metacopy of the newer branch belongs to a file that the merge moves: one that the snapshot
/// created, copied, or changed the attributes of.
#[test]
fn newer_attributes_without_data_survive_a_merge() {
    const BIG: usize = 9000;
    for owner in [0, 1000] {
        for case in 0..4 {
            let bed = Bed::new("abcd");
            let big = |layer: &dyn Layer| {
                create(layer, &["f"]);
                let file = at(layer, "f");
                file.open(&CX, OpenFlags::WRONLY).unwrap().write(&CX, &[7; BIG], 0).unwrap();
                let set = SetAttr { uid: Some(owner), ..SetAttr::default() };
                file.setattr(&CX, &set, None).unwrap();
            };
            if case > 0 {
                big(&*bed.0[&'d']);
            }
            let union = bed.mount("bcd");
            let size = match case {
                0 => {
                    big(&*union);
                    BIG
                }
                1 => {
                    append(&union, "f", "+");
                    BIG + 1
                }
                2 => {
                    chmod(&*union, "f", 0o604);
                    BIG
                }
                _ => BIG,
            };
            drop(union);
            chmod(&*bed.mount("abcd"), "f", 0o600);
            let is_metacopy = list(&*bed.0[&'a'], "").contains(&".wh..wh.meta.f".to_owned());
            assert!(is_metacopy, "case {case}");
            for (branches, all) in [("bcd", "acd"), ("cd", "ad")] {
                bed.merge(branches);
                let union = bed.mount(all);
                let now = attr(&*union, "f");
                let shown = (now.perm(), now.uid, read(&*union, "f").len());
                assert_eq!(shown, (0o600, owner, size), "case {case} of owner {owner}, {branches} merged");
            }
            chmod(&*bed.mount("ad"), "f", 0o640);
            bed.merge("ad");
            assert_eq!(attr(&*bed.0[&'d'], "f").perm(), 0o640, "case {case}");
        }
    }
}
