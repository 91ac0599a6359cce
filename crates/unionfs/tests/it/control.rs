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
    assert_eq!(
        names,
        ["unionfs.query", "unionfs.move", "unionfs.state", "unionfs.revalidate", "x.say", "x.say", "y.say"]
    );
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

mod query {
    use super::CX;
    use memfs::MemFs;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use unionfs::{Branch, BranchChange, ChangePolicy, Mode, Options, Unionfs};
    use vnode::{Cx, Kind, Layer, Name, OpenFlags, RenameFlags, SetAttr, Vnode};

    fn name(text: &[u8]) -> Name<'_> {
        Name::new(text).unwrap()
    }

    /// Returns a branch with these files; a path that ends with a slash is a directory.
    fn disk(paths: &[&str]) -> Arc<MemFs> {
        let disk = MemFs::new();
        for path in paths {
            let mut dir = disk.root();
            for part in path.split_inclusive('/') {
                dir = match (
                    dir.lookup(&CX, name(part.trim_end_matches('/').as_bytes())).unwrap(),
                    part.strip_suffix('/'),
                ) {
                    (Some(entry), _) => entry.vnode,
                    (None, Some(part)) => dir.mkdir(&CX, name(part.as_bytes()), 0o755).unwrap().vnode,
                    (None, None) => {
                        let (entry, file) = dir.create(&CX, name(part.as_bytes()), 0o644, OpenFlags::RDWR).unwrap();
                        file.write(&CX, &[1; 5000], 0).unwrap();
                        entry.vnode
                    }
                };
            }
        }
        disk
    }

    /// Returns a union of these branches, named `/0`, `/1`, ...; only the first is read-write.
    fn union(disks: &[&Arc<MemFs>]) -> Arc<Unionfs> {
        let branch = |(at, layer): (usize, &&Arc<MemFs>)| Branch {
            layer: (*layer).clone(),
            mode: if at == 0 { Mode::ReadWrite } else { Mode::ReadOnly },
            path: format!("/{at}").into(),
        };
        Unionfs::new(disks.iter().enumerate().map(branch).collect(), Options::default()).unwrap()
    }

    fn find(union: &Unionfs, path: &str) -> Arc<dyn Vnode> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.fold(union.root(), |dir, part| dir.lookup(&CX, name(part.as_bytes())).unwrap().unwrap().vnode)
    }

    fn ask(vnode: &Arc<dyn Vnode>) -> Value {
        serde_json::from_slice(&vnode.control(&CX, "unionfs.query", b"").unwrap()).unwrap()
    }

    /// Returns path and kind, and the states of all branches, with the path where one is given.
    fn query(union: &Unionfs, path: &str) -> (Value, String) {
        let reply = ask(&find(union, path));
        let states = reply["branches"].as_array().unwrap().iter().enumerate().map(|(at, branch)| {
            assert_eq!((&branch["branch"], &branch["index"]), (&json!(format!("/{at}")), &json!(at)));
            assert_eq!(branch["mode"], if at == 0 { "rw" } else { "ro" });
            let state = branch["state"].as_str().unwrap();
            branch["at"].as_str().map_or_else(|| state.to_owned(), |at| format!("{state} {at}"))
        });
        (json!([reply["path"], reply["name"], reply["kind"]]), states.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn files_and_directories() {
        let union = union(&[
            &disk(&["d/", "op/.wh..wh..opq", "w/", "both/f"]),
            &disk(&["d/f", "op/", ".wh.w", "both/f"]),
            &disk(&["d/f", "op/", "w/", "both/f/", "d2/.wh.x"]),
        ]);
        let file = |path: &str, name: &str| json!([path, name, "file"]);
        let dir = |path: &str, name: &str| json!([path, name, "directory"]);
        assert_eq!(query(&union, "/"), (dir("/", ""), "part /, part /, part /".to_owned()));
        assert_eq!(query(&union, "d"), (dir("/d", "d"), "part /d, part /d, part /d".to_owned()));
        assert_eq!(query(&union, "d/f"), (file("/d/f", "f"), "absent, shown /d/f, hidden /d/f".to_owned()));
        assert_eq!(query(&union, "op"), (dir("/op", "op"), "opaque /op, hidden /op, hidden /op".to_owned()));
        assert_eq!(query(&union, "w"), (dir("/w", "w"), "part /w, whiteout /w, hidden /w".to_owned()));
        let both = "shown /both/f, hidden /both/f, hidden /both/f".to_owned();
        assert_eq!(query(&union, "both/f"), (file("/both/f", "f"), both));
        find(&union, "d/f").open(&CX, OpenFlags::WRONLY).unwrap();
        assert_eq!(query(&union, "d/f").1, "shown /d/f, hidden /d/f, hidden /d/f");
        union.root().mknod(&CX, name(b"pipe"), Kind::Fifo.mode_bits() | 0o600, 0).unwrap();
        assert_eq!(query(&union, "pipe"), (json!(["/pipe", "pipe", "fifo"]), "shown /pipe, absent, absent".to_owned()));
    }

    #[test]
    fn objects_below_renamed_directories() {
        let union = union(&[&disk(&[]), &disk(&["a/d/f", "a/g"]), &disk(&["a/d/h", "b/d/other"])]);
        let rename = |from: &str, to: &str| {
            let root = union.root();
            root.rename(&CX, name(from.as_bytes()), &root, name(to.as_bytes()), RenameFlags::default()).unwrap();
        };
        union.root().unlink(&CX, name(b"b")).unwrap_err();
        find(&union, "b/d").unlink(&CX, name(b"other")).unwrap();
        find(&union, "b").rmdir(&CX, name(b"d")).unwrap();
        union.root().rmdir(&CX, name(b"b")).unwrap();
        rename("a", "b");
        assert_eq!(query(&union, "b").1, "part /b, part /a, part /a");
        assert_eq!(query(&union, "b/d").1, "absent, part /a/d, part /a/d");
        assert_eq!(query(&union, "b/d/h"), (json!(["/b/d/h", "h", "file"]), "absent, absent, shown /a/d/h".to_owned()));
        find(&union, "b/d").create(&CX, name(b"new"), 0o644, OpenFlags::RDWR).unwrap();
        assert_eq!(query(&union, "b/d").1, "part /b/d, part /a/d, part /a/d");
    }

    #[test]
    fn metacopies_and_hard_links() {
        let right = disk(&["d/f", "one"]);
        right.root().link(&CX, name(b"two"), &right.root().lookup(&CX, name(b"one")).unwrap().unwrap().vnode).unwrap();
        let union = union(&[&disk(&[]), &right]);
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        find(&union, "d/f").setattr(&CX, &mode, None).unwrap();
        assert_eq!(query(&union, "d/f").1, "metacopy /d/f, data /d/f");
        find(&union, "one").open(&CX, OpenFlags::WRONLY).unwrap();
        assert_eq!(query(&union, "one").1, "shown /one, hidden /one");
        union.root().unlink(&CX, name(b"one")).unwrap();
        // The copy has no name of its own left; the index leads the other name to it.
        assert_eq!(query(&union, "two").1, "shown, hidden /two");
    }

    #[test]
    fn objects_without_a_name() {
        let right = disk(&["d/f"]);
        let union = union(&[&disk(&[]), &right]);
        let unnamed = union.root().tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap().0.vnode;
        let reply = ask(&unnamed);
        assert_eq!((&reply["path"], &reply["name"], &reply["kind"]), (&json!(null), &json!(null), &json!("file")));
        assert_eq!(
            (&reply["branches"][0]["state"], &reply["branches"][1]["state"]),
            (&json!("shown"), &json!("absent"))
        );
        let (dir, file) = (find(&union, "d"), find(&union, "d/f"));
        union.change_branches(vec![BranchChange::Remove("/1".into())], &ChangePolicy::default()).unwrap();
        for (vnode, kind) in [(dir, "directory"), (file, "file")] {
            let reply = ask(&vnode);
            assert_eq!((&reply["path"], &reply["kind"]), (&json!(null), &json!(kind)));
            assert_eq!(reply["branches"], json!([{ "branch": "/0", "index": 0, "mode": "rw", "state": "absent" }]));
        }
        let bytes = b"\xff\"\n";
        let odd = union.root().create(&CX, name(bytes), 0o644, OpenFlags::RDWR).unwrap().0.vnode;
        assert_eq!(ask(&odd)["name"], json!(bytes));
        assert_eq!(ask(&odd)["path"], json!(b"/\xff\"\n"));
        let quick = std::sync::atomic::AtomicBool::new(false);
        let quick = Cx::new(0, 0, 0, 0, false, &quick);
        assert_eq!(odd.control(&quick, "unionfs.query", b""), Err(vnode::MAY_BLOCK));
    }
}
