//! Conflicts of branches that are copies, on directories of the host.

#![allow(clippy::disallowed_methods, reason = "the tests create their own directories")]

use changes::{Branches, CommitOptions, Error, Floor, Selection, Source};
use hostfs::{HostFs, HostOptions};
use std::fs;
use std::process::Command;
use std::sync::Arc;
use testkit::TempDir;
use unionfs::{Branch, Mode, Options, Unionfs};
use vnode::{Cx, Layer, Name, OpenFlags};

const CX: Cx<'static> = Cx::internal(0, 0);

struct Bed(TempDir);

impl Bed {
    /// Creates branches of which the last one has the files `f` and `g`, with an old time.
    fn new(branches: &str) -> Self {
        let bed = Self(TempDir::new());
        let last = branches.rsplit(' ').next().unwrap();
        bed.shell(&format!(
            "mkdir {branches}; echo one | tee {last}/f >{last}/g; touch -d 2001-01-01 {last}/f {last}/g"
        ));
        bed
    }

    fn shell(&self, script: &str) {
        let done = Command::new("sh").args(["-ec", script]).current_dir(&*self.0).status().unwrap();
        assert!(done.success(), "{script}");
    }

    fn layer(&self, dir: &str) -> Arc<dyn Layer> {
        HostFs::open(&self.0.join(dir), HostOptions::default()).unwrap()
    }

    fn mount(&self, branches: &str) -> Arc<Unionfs> {
        let branch = |branch: &str| {
            let (dir, mode) = branch.split_once('=').unwrap();
            let mode = if mode == "rw" { Mode::ReadWrite } else { Mode::ReadOnly };
            Branch { layer: self.layer(dir), path: self.0.join(dir), mode }
        };
        Unionfs::new(branches.split(':').map(branch).collect(), Options::default()).unwrap()
    }

    /// Returns the paths in conflict, when the first branch is committed to the second.
    fn conflicts(&self, upper: &str, below: &str) -> Vec<String> {
        let source = |dir: &str| Source { layer: self.layer(dir), path: self.0.join(dir) };
        let branches = Branches::new(source(upper), vec![source(below)], Floor::Ground);
        match branches.commit(&Selection::all(), &CommitOptions::default(), &mut |_| {}) {
            Ok(_) => Vec::new(),
            Err(Error::Conflicts(found)) => {
                found.into_iter().map(|conflict| String::from_utf8(conflict.path).unwrap()).collect()
            }
            Err(other) => panic!("{other}"),
        }
    }
}

fn write(union: &Unionfs, path: &str) {
    let file = union.root().lookup(&CX, Name::new(path.as_bytes()).unwrap()).unwrap().unwrap().vnode;
    let file = file.open(&CX, OpenFlags::WRONLY).unwrap();
    assert_eq!(file.write(&CX, b"two", 0).unwrap(), 3);
}

/// Replaces a file below with one that has an old time.
const THEIRS: &str = "sleep .05; echo theirs >tmp; touch -d 2001-01-01 tmp; mv tmp";

/// Each copy is recognised by its first mount that can write it, also if another one is leftmost.
#[test]
fn changes_below_a_copy_that_is_not_the_leftmost_are_found() {
    let bed = Bed::new("a b c");
    write(&bed.mount("b=rw:c=ro"), "f");
    bed.shell("mkdir 1; cp -a a b c 1; sleep .05");
    drop(bed.mount("1/a=rw:1/b=rw:1/c=ro"));
    bed.shell(&format!("{THEIRS} 1/c/f"));
    assert_eq!(bed.conflicts("1/b", "1/c"), ["f"]);
    assert_eq!(fs::read_to_string(bed.0.join("1/c/f")).unwrap(), "theirs\n");
}

/// The restored files have later times of birth than the record of the copy.
#[test]
fn a_copy_that_is_restored_in_place_keeps_its_conflicts() {
    let bed = Bed::new("a b");
    write(&bed.mount("a=rw:b=ro"), "f");
    bed.shell("mkdir 1; cp -a a b 1; sleep .05");
    write(&bed.mount("1/a=rw:1/b=ro"), "g");
    bed.shell("cd 1/a; tar cf ../tar .; find . -mindepth 1 -delete; sleep .05; echo theirs >../b/f");
    bed.shell("cd 1/a; sleep .05; tar xpf ../tar");
    assert_eq!(bed.conflicts("1/a", "1/b"), ["f"]);
}
