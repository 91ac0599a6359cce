//! A layer in Rust over the border and back: `examples/everything.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Object;
use conformance::fixture::{ROOT, name, names};
use memfs::MemFs;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use vnode::{Errno, IoctlReply, Layer, OpenFlags, RenameFlags, Vnode, XattrFlags};

fn built(name: &str) -> Object {
    // Cargo builds examples beside the tests.
    let program = std::env::current_exe().unwrap();
    let built = program.parent().and_then(Path::parent).unwrap().join(format!("examples/lib{name}.so"));
    Object::of(&fs::read(built).unwrap())
}

fn everything() -> Object {
    built("everything")
}

fn root() -> Arc<dyn Vnode> {
    everything().over(MemFs::new(), &[]).unwrap().root()
}

#[test]
fn programs_can_not_tell_it_from_none() {
    let object = everything();
    let fresh = || object.over(MemFs::new(), &[]).unwrap();
    conformance::run_all(fresh);
    conformance::random::compare(5, 3000, &*fresh(), &*MemFs::new());
    let kind = plugin::load(&object.0).unwrap();
    assert_eq!((kind.name, kind.about, kind.options.len()), ("everything", "has every kind of hook", 3));
    assert!(kind.options[2].value.is_none());
}

#[test]
fn what_fails_fails_with_what_it_said() {
    let object = everything();
    let with = |name, value| object.over(MemFs::new(), &[(name, value)]).map(|_| ()).unwrap_err();
    assert_eq!(with("fail", "no moon today"), "no moon today");
    assert!(with("panic", "").contains("could not be set up"));
    let root = root();
    let mkdir = |at| root.mkdir(&ROOT, name(at), 0o755).map(|_| ());
    assert_eq!(mkdir("panic"), Err(Errno::IO));
    assert_eq!(mkdir("refused"), Err(Errno::PERM));
    assert_eq!(mkdir("good"), Ok(()));
    assert_eq!(root.lookup(&ROOT, name("gone")).map(|_| ()), Err(Errno::STALE));
}

#[test]
fn long_names_come_back() {
    let lower = MemFs::new();
    let root = everything().over(lower.clone(), &[]).unwrap().root();
    root.mkdir(&ROOT, name("long-name"), 0o755).unwrap();
    assert_eq!(names(&root), ["long-name"]);
    assert!(names(&lower.root()).iter().all(|name| name.starts_with(".wrapfs.")));
}

#[test]
fn objects_can_be_asked() {
    let root = root();
    root.setxattr(&ROOT, b"user.size", b"12345", XattrFlags::default()).unwrap();
    assert_eq!(root.getattr(&ROOT).unwrap().gid, 5);
}

#[test]
fn operations_arrive_with_their_arguments() {
    let root = root();
    let seen = |kind: &str| {
        let mut out = vec![0; 4096];
        let len = root.getxattr(&ROOT, format!("user.seen.{kind}").as_bytes(), &mut out).unwrap();
        String::from_utf8_lossy(&out[..len]).into_owned()
    };
    let dir = root.mkdir(&ROOT, name("d"), 0o750).unwrap().vnode;
    let (_, file) = root.create(&ROOT, name("f"), 0o640, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, b"data", 3).unwrap();
    file.fsync(&ROOT, true).unwrap();
    let link = root.symlink(&ROOT, name("l"), b"marked").unwrap().vnode;
    assert_eq!(link.readlink(&ROOT), Ok(b"marked-seen".to_vec()));
    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
    root.rename(&ROOT, name("f"), &dir, name("g"), flags).unwrap();
    for (kind, parts) in [
        ("Mkdir", &["name: \"d\"", "mode: 488"][..]),
        ("Create", &["name: \"f\"", "mode: 416", "flags: OpenFlags(2)"]),
        ("Write", &["offset: 3", "data: [100, 97, 116, 97]"]),
        ("Fsync", &["data_only: true"]),
        ("Symlink", &["name: \"l\"", "target: [109,"]),
        ("Rename", &["name: \"f\"", "new_name: \"g\"", "no_replace: true", "exchange: false"]),
    ] {
        let said = seen(kind);
        assert!(said.starts_with(kind) && parts.iter().all(|part| said.contains(part)), "{said}");
    }
    assert!(seen("Rename").contains(&format!("new_dir: Object {{ lower: Remote {{ id: {}", dir.id())));
}

#[test]
fn a_read_only_layer_changes_nothing() {
    let lower = MemFs::new();
    let object = everything();
    object.over(lower.clone(), &[]).unwrap().root().mkdir(&ROOT, name("d"), 0o755).unwrap();
    let layer = object.over(lower, &[("ro", "")]).unwrap();
    assert!(layer.properties().read_only);
    assert_eq!(names(&layer.root()), ["d"]);
    assert_eq!(layer.root().rmdir(&ROOT, name("d")), Err(Errno::ROFS));
}

#[test]
fn ioctls_of_its_own_are_answered() {
    let mut out = [0; 8];
    assert_eq!(root().ioctl(&ROOT, 42, b"abc", &mut out), Ok(IoctlReply { result: 7, len: 3 }));
    assert_eq!(&out[..4], b"abc\0");
    assert_eq!(root().ioctl(&ROOT, 42, b"more than eight", &mut out), Err(Errno::INVAL));
    assert_eq!(root().ioctl(&ROOT, 43, b"", &mut out), Err(Errno::NOTTY));
}

#[test]
fn data_change_their_size() {
    let object = built("resizing");
    conformance::run_all(|| object.over(MemFs::new(), &[]).unwrap());
    let lower = MemFs::new();
    let content = b"again and again ".repeat(10_000);
    let (_, file) =
        object.over(lower.clone(), &[]).unwrap().root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(file.write(&ROOT, &content, 0), Ok(content.len()));
    drop(file);
    let below = lower.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert!(below.attr.blocks * 512 < content.len() as u64 / 2, "{} blocks", below.attr.blocks);
    // What is not stored so can't be opened, if that is wanted.
    let (_, plain) = lower.root().create(&ROOT, name("plain"), 0o644, OpenFlags::RDWR).unwrap();
    plain.write(&ROOT, b"as it is", 0).unwrap();
    let root = object.over(lower, &[("only", "")]).unwrap().root();
    let open = |at| root.lookup(&ROOT, name(at)).unwrap().unwrap().vnode.open(&ROOT, OpenFlags::RDONLY);
    let mut now = vec![0; content.len()];
    assert_eq!(open("f").unwrap().read(&ROOT, &mut now, 0), Ok(content.len()));
    assert!(now == content);
    assert_eq!(open("plain").map(|_| ()), Err(Errno::MEDIUMTYPE));
}
