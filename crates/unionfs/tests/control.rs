//! Commands of the control channel that the layers of branches know.
// Helpers of tests: a failed expectation is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::MemFs;
use std::sync::Arc;
use unionfs::{Branch, Mode, Options, Unionfs};
use vnode::{Command, Cx, Errno, Kind, Layer, Name, OpenFlags, Result, Who};
use wrapfs::Template;
use wrapfs::hooks::{Commands, Object};

const CX: Cx<'static> = Cx::internal(0, 0);

/// A layer that says its name, on files alone or on everything.
#[derive(Debug)]
struct Says(&'static str, &'static str, bool);

impl Commands for Says {
    fn commands(&self) -> Vec<Command> {
        vec![Command { name: self.0, help: "For a test.", who: Who::Anyone }]
    }

    fn control(&self, _cx: &Cx<'_>, object: &Object<'_>, _command: &str, input: &[u8]) -> Result<Vec<u8>> {
        if self.2 && object.kind() != Kind::Regular {
            return Err(Errno::NOTTY);
        }
        Ok([self.1.as_bytes(), input].concat())
    }
}

/// A branch with a file of its own, and a directory that all have.
fn branch(file: &str, mode: Mode, says: Says, read_only: bool) -> Branch {
    let memory = MemFs::new();
    memory.root().mkdir(&CX, Name::new(b"dir").unwrap(), 0o755).unwrap();
    memory.root().create(&CX, Name::new(file.as_bytes()).unwrap(), 0o644, OpenFlags::RDWR).unwrap();
    let template = Template::over(memory).commands(says);
    let layer = if read_only { template.read_only().build() } else { template.build() };
    Branch { layer, mode, path: format!("/{file}").into() }
}

fn union(branches: Vec<Branch>) -> Arc<Unionfs> {
    Unionfs::new(branches, Options::default()).unwrap()
}

fn give(fs: &Unionfs, file: &str, command: &str) -> Result<String> {
    let root = fs.root();
    let object = if file.is_empty() { root } else { root.lookup(&CX, Name::new(file.as_bytes())?)?.unwrap().vnode };
    object.control(&CX, command, b"!").map(|said| String::from_utf8(said).unwrap())
}

#[test]
fn the_branch_of_the_object_answers() {
    let fs = union(vec![
        branch("a", Mode::ReadWrite, Says("x.say", "left", true), false),
        branch("b", Mode::ReadWrite, Says("x.say", "right", false), false),
        branch("c", Mode::ReadWrite, Says("y.say", "other", false), false),
    ]);
    let names: Vec<_> = fs.commands().iter().map(|command| command.name).collect();
    assert_eq!(names, ["x.say", "x.say", "y.say"]);
    assert_eq!(give(&fs, "a", "x.say").as_deref(), Ok("left!"));
    assert_eq!(give(&fs, "b", "x.say").as_deref(), Ok("right!"));
    assert_eq!(give(&fs, "c", "x.say"), Err(Errno::NOTTY));
    // Of a directory, the first part that knows the command.
    for dir in ["", "dir"] {
        assert_eq!(give(&fs, dir, "x.say").as_deref(), Ok("right!"));
        assert_eq!(give(&fs, dir, "y.say").as_deref(), Ok("other!"));
        assert_eq!(give(&fs, dir, "z.say"), Err(Errno::NOTTY));
    }
}

#[test]
fn what_the_union_never_writes_gets_no_commands_that_could() {
    let says = |name| Says("x.say", name, false);
    let fs = union(vec![
        branch("a", Mode::ReadWrite, Says("y.say", "top", false), false),
        branch("b", Mode::ReadOnly, says("writable"), false),
        branch("c", Mode::ReadOnly, says("read-only"), true),
    ]);
    assert_eq!(give(&fs, "b", "x.say"), Err(Errno::NOTTY));
    assert_eq!(give(&fs, "c", "x.say").as_deref(), Ok("read-only!"));
    assert_eq!(give(&fs, "dir", "x.say").as_deref(), Ok("read-only!"));
    assert_eq!(give(&fs, "a", "y.say").as_deref(), Ok("top!"));
}
