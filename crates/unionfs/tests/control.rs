//! Commands of the control channel that layers of the branches implement.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::MemFs;
use std::sync::Arc;
use unionfs::{Branch, Mode, Options, Unionfs};
use vnode::{Command, CommandAccess, Cx, Errno, Kind, Layer, Name, OpenFlags, Result};
use wrapfs::Template;
use wrapfs::hooks::{Commands, Object};

const CX: Cx<'static> = Cx::internal(0, 0);

/// Implements one command that returns a fixed text, followed by the input.
#[derive(Debug)]
struct Responder {
    command: &'static str,
    reply: &'static str,
    files_only: bool,
}

impl Commands for Responder {
    fn commands(&self) -> Vec<Command> {
        vec![Command { name: self.command, help: "For a test.", access: CommandAccess::Anyone }]
    }

    fn control(&self, _cx: &Cx<'_>, object: &Object<'_>, _command: &str, input: &[u8]) -> Result<Vec<u8>> {
        if self.files_only && object.kind() != Kind::Regular {
            return Err(Errno::NOTTY);
        }
        Ok([self.reply.as_bytes(), input].concat())
    }
}

/// Returns a branch with the file `file` and the directory `dir`, which all branches have.
fn branch(file: &str, mode: Mode, responder: Responder, read_only: bool) -> Branch {
    let memory = MemFs::new();
    memory.root().mkdir(&CX, Name::new(b"dir").unwrap(), 0o755).unwrap();
    memory.root().create(&CX, Name::new(file.as_bytes()).unwrap(), 0o644, OpenFlags::RDWR).unwrap();
    let template = Template::over(memory).commands(responder);
    let layer = if read_only { template.read_only().build().unwrap() } else { template.build().unwrap() };
    Branch { layer, mode, path: format!("/{file}").into() }
}

fn responder(command: &'static str, reply: &'static str, files_only: bool) -> Responder {
    Responder { command, reply, files_only }
}

fn union(branches: Vec<Branch>) -> Arc<Unionfs> {
    Unionfs::new(branches, Options::default()).unwrap()
}

/// Sends a command to a file, or to the root if `file` is empty.
fn send(fs: &Unionfs, file: &str, command: &str) -> Result<String> {
    let root = fs.root();
    let object = if file.is_empty() { root } else { root.lookup(&CX, Name::new(file.as_bytes())?)?.unwrap().vnode };
    object.control(&CX, command, b"!").map(|reply| String::from_utf8(reply).unwrap())
}

#[test]
fn commands_go_to_the_branch_of_the_object() {
    let fs = union(vec![
        branch("a", Mode::ReadWrite, responder("x.say", "left", true), false),
        branch("b", Mode::ReadWrite, responder("x.say", "right", false), false),
        branch("c", Mode::ReadWrite, responder("y.say", "other", false), false),
    ]);
    let names: Vec<_> = fs.commands().iter().map(|command| command.name).collect();
    assert_eq!(names, ["x.say", "x.say", "y.say"]);
    assert_eq!(send(&fs, "a", "x.say").as_deref(), Ok("left!"));
    assert_eq!(send(&fs, "b", "x.say").as_deref(), Ok("right!"));
    assert_eq!(send(&fs, "c", "x.say"), Err(Errno::NOTTY));
    // On a directory, the leftmost branch that implements the command replies.
    for dir in ["", "dir"] {
        assert_eq!(send(&fs, dir, "x.say").as_deref(), Ok("right!"));
        assert_eq!(send(&fs, dir, "y.say").as_deref(), Ok("other!"));
        assert_eq!(send(&fs, dir, "z.say"), Err(Errno::NOTTY));
    }
}

#[test]
fn read_only_branches_receive_commands_only_if_their_layer_is_read_only() {
    let fs = union(vec![
        branch("a", Mode::ReadWrite, responder("y.say", "top", false), false),
        branch("b", Mode::ReadOnly, responder("x.say", "writable", false), false),
        branch("c", Mode::ReadOnly, responder("x.say", "read-only", false), true),
    ]);
    assert_eq!(send(&fs, "b", "x.say"), Err(Errno::NOTTY));
    assert_eq!(send(&fs, "c", "x.say").as_deref(), Ok("read-only!"));
    assert_eq!(send(&fs, "dir", "x.say").as_deref(), Ok("read-only!"));
    assert_eq!(send(&fs, "a", "y.say").as_deref(), Ok("top!"));
}
