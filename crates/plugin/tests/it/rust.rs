//! A Rust layer called through the C ABI, and calling back through it: `examples/everything.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../wrapfs/tests/it/common/store.rs"]
#[allow(dead_code)]
mod store;

use crate::common::Object;
use conformance::fixture::{ROOT, name, names};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use store::Store;
use vnode::{Cx, Errno, IoctlReply, Layer, MAY_BLOCK, OpenFlags, RenameFlags, Vnode, XattrFlags};
use wrapfs::Template;
use wrapfs::hooks::{Op, OpKind, OpSet, Operations, Verdict};

fn built(name: &str) -> Object {
    // Cargo builds examples in a directory beside the tests.
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
fn conforms_to_the_interface() {
    let object = everything();
    let fresh = || object.over(MemFs::new(), &[]).unwrap();
    conformance::run_all(fresh);
    conformance::random::compare(5, 3000, &*fresh(), &*MemFs::new());
    let kind = plugin::load(&object.0).unwrap();
    assert_eq!((kind.name, kind.about, kind.options.len()), ("everything", "has every kind of hook", 3));
    assert!(kind.options[1].value.is_none());
}

#[test]
fn failures_report_the_plugins_message() {
    let object = everything();
    let with = |name, value| object.over(MemFs::new(), &[(name, value)]).map(|_| ()).unwrap_err();
    assert_eq!(with("fail", "no moon today"), "no moon today");
    for hook in ["open", "matching", "interest"] {
        assert_eq!(with("panic", hook), "its function open failed: Input/output error (os error 5)");
    }
    let root = root();
    let mkdir = |at| root.mkdir(&ROOT, name(at), 0o755).map(|_| ());
    assert_eq!(mkdir("panic"), Err(Errno::IO));
    assert_eq!(mkdir("refused"), Err(Errno::PERM));
    assert_eq!(mkdir("good"), Ok(()));
    assert_eq!(root.lookup(&ROOT, name("gone")).map(|_| ()), Err(Errno::STALE));
}

#[test]
fn long_names_round_trip() {
    let lower = MemFs::new();
    let root = everything().over(lower.clone(), &[]).unwrap().root();
    root.mkdir(&ROOT, name("long-name"), 0o755).unwrap();
    assert_eq!(names(&root), ["long-name"]);
    assert!(names(&lower.root()).iter().all(|name| name.starts_with(".wrapfs.")));
}

#[test]
fn hooks_can_query_objects() {
    let root = root();
    root.setxattr(&ROOT, b"user.size", b"12345", XattrFlags::default()).unwrap();
    assert_eq!(root.getattr(&ROOT).unwrap().gid, 5);
}

#[test]
fn operations_carry_their_arguments() {
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
fn a_read_only_layer_refuses_changes() {
    let lower = MemFs::new();
    let object = everything();
    object.over(lower.clone(), &[]).unwrap().root().mkdir(&ROOT, name("d"), 0o755).unwrap();
    let layer = object.over(lower, &[("ro", "")]).unwrap();
    assert!(layer.properties().read_only);
    assert_eq!(names(&layer.root()), ["d"]);
    assert_eq!(layer.root().rmdir(&ROOT, name("d")), Err(Errno::ROFS));
}

#[test]
fn layer_specific_ioctls_work() {
    let mut out = [0; 8];
    assert_eq!(root().ioctl(&ROOT, 42, b"abc", &mut out), Ok(IoctlReply { result: 7, len: 3 }));
    assert_eq!(&out[..4], b"abc\0");
    assert_eq!(root().ioctl(&ROOT, 42, b"more than eight", &mut out), Err(Errno::INVAL));
    assert_eq!(root().ioctl(&ROOT, 43, b"", &mut out), Err(Errno::NOTTY));
}

#[test]
fn data_size_changes() {
    let object = built("resizing");
    let wrong = object.over(MemFs::new(), &[("data", "")]).map(|_| ()).unwrap_err();
    assert_eq!(wrong, "the layer has both data and resizing; use only one, or split it into two layers");
    conformance::run_all(|| object.over(MemFs::new(), &[]).unwrap());
    let lower = MemFs::new();
    let content = b"again and again ".repeat(10_000);
    let (_, file) =
        object.over(lower.clone(), &[]).unwrap().root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(file.write(&ROOT, &content, 0), Ok(content.len()));
    drop(file);
    let below = lower.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert!(below.attr.blocks * 512 < content.len() as u64 / 2, "{} blocks", below.attr.blocks);
    // With `only`, files that are not containers cannot be opened.
    let (_, plain) = lower.root().create(&ROOT, name("plain"), 0o644, OpenFlags::RDWR).unwrap();
    plain.write(&ROOT, b"as it is", 0).unwrap();
    let root = object.over(lower, &[("only", "")]).unwrap().root();
    let open = |at| root.lookup(&ROOT, name(at)).unwrap().unwrap().vnode.open(&ROOT, OpenFlags::RDONLY);
    let mut now = vec![0; content.len()];
    assert_eq!(open("f").unwrap().read(&ROOT, &mut now, 0), Ok(content.len()));
    assert!(now == content);
    assert_eq!(open("plain").map(|_| ()), Err(Errno::MEDIUMTYPE));
}

#[test]
fn the_layer_below_can_be_used() {
    let object = built("lower");
    let faults = Faults::new();
    let lower = MemFs::with(MemOptions::default(), &faults);
    let layer = object.over(lower.clone(), &[]).unwrap();
    let (root, empty) = (layer.root(), lower.dump().without_times());
    assert_eq!(root.ioctl(&ROOT, 1, &[], &mut []), Ok(IoctlReply::default()));
    assert_eq!(lower.dump().without_times(), empty);
    // As the caller, with the errors of the layer below.
    let cancelled = AtomicBool::new(false);
    let user = Cx::new(7, 8, 1, 0, true, &cancelled);
    let mut failed = 0;
    for at in 1.. {
        let dir = root.mkdir(&user, name(&format!("d{at}")), 0o755).unwrap().vnode;
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Error(Errno::DQUOT) });
        let done = dir.ioctl(&user, 1, &[], &mut []).map(|_| ());
        let fired = faults.fired();
        faults.disarm();
        match done {
            Ok(()) if !fired => break,
            Err(Errno::DQUOT) => failed += 1,
            // A step that is expected to fail with another errno.
            other => assert_eq!(other, Err(Errno::IO), "{at}"),
        }
    }
    assert!(failed > 15, "{failed}");
    // A thread that must not block gets `MAY_BLOCK`, and the operation is retried.
    let hasty = Cx::new(7, 8, 1, 0, false, &cancelled);
    let waits = Template::over(lower).operations(Waits).build().unwrap();
    let root = object.over(waits, &[]).unwrap().root();
    assert_eq!(root.ioctl(&hasty, 1, &[], &mut []), Err(MAY_BLOCK));
    assert_eq!(root.ioctl(&user, 1, &[], &mut []), Ok(IoctlReply::default()));
}

/// A layer whose mkdir must block.
#[derive(Debug)]
struct Waits;

impl Operations for Waits {
    fn interest(&self) -> OpSet {
        OpSet::of(&[OpKind::Mkdir])
    }
    fn before(&self, cx: &Cx<'_>, _op: &Op<'_>) -> vnode::Result<Verdict> {
        cx.require_blocking().map(|()| Verdict::Proceed)
    }
}

#[test]
fn objects_have_state_and_paths() {
    let layer = built("lower").over(MemFs::new(), &[]).unwrap();
    let root = layer.root();
    let ask = |vnode: &Arc<dyn Vnode>, what: &str| {
        let mut out = [0; 4096];
        let len = vnode.getxattr(&ROOT, what.as_bytes(), &mut out).unwrap();
        String::from_utf8(out[..len].to_vec()).unwrap()
    };
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    let long = "n".repeat(255);
    let (f, file) = d.create(&ROOT, name(&long), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!((ask(&f.vnode, "user.path"), ask(&root, "user.path")), (format!("/d/{long}"), "/".to_owned()));
    drop(f);
    assert_eq!(ask(&root, "user.counts"), "[2, 0]");
    drop(file);
    assert_eq!(ask(&root, "user.counts"), "[2, 1]");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    d.lookup(&ROOT, name(&long)).unwrap().unwrap().vnode.getattr(&ROOT).unwrap();
                }
            });
        }
    });
    let counts = ask(&root, "user.counts");
    let [attached, freed] = two_numbers(&counts);
    assert!(attached > 10 && freed == attached - 1, "{counts}");
}

/// Parses two numbers in brackets.
fn two_numbers(text: &str) -> [u64; 2] {
    let numbers: Vec<u64> = text.trim_matches(['[', ']']).split(", ").map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn a_name_store_in_rust() {
    let object = built("storing");
    conformance::run_all(|| object.over(MemFs::new(), &[]).unwrap());
    conformance::random::compare(7, 2000, &*object.over(MemFs::new(), &[]).unwrap(), &*MemFs::new());
    // Behaves like the same layer without the ABI.
    let lower = MemFs::new();
    let root = object.over(lower.clone(), &[]).unwrap().root();
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    d.mkdir(&ROOT, name("quite-a-long-name"), 0o755).unwrap();
    drop((root, d));
    let again = Store::new(20).over(lower).root();
    assert_eq!(names(&again), ["d"]);
    assert_eq!(names(&again.lookup(&ROOT, name("d")).unwrap().unwrap().vnode), ["quite-a-long-name"]);
}
