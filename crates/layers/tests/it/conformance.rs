//! Conformance of every layer, alone and stacked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::{random, run_all};
use layers::{ALL, casefold, rot13, worldread, xor, zstd};
use memfs::MemFs;
use std::sync::Arc;
use vnode::{Cx, Layer, Name, OpenFlags};
use wrapfs::{LayerType, Settings};

/// Builds a stack of layers, the lowest first.
fn stack(kinds: &[&LayerType]) -> Arc<dyn Layer> {
    let put = |lower, kind: &&LayerType| kind.over(lower, &Settings::new()).unwrap();
    kinds.iter().fold(MemFs::new() as Arc<dyn Layer>, put)
}

/// Layers that are transparent to programs.
const TRANSPARENT: [&LayerType; 3] = [&rot13::LAYER, &xor::LAYER, &casefold::LAYER];

#[test]
fn each_alone() {
    for kind in TRANSPARENT {
        run_all(|| stack(&[kind]));
        random::compare(1, 3000, &*stack(&[kind]), &*MemFs::new());
    }
}

#[test]
fn pairs() {
    for below in TRANSPARENT {
        for above in TRANSPARENT {
            run_all(|| stack(&[below, above]));
            random::compare(2, 2000, &*stack(&[below, above]), &*MemFs::new());
        }
    }
}

#[test]
fn stacks_of_three() {
    let three = [&xor::LAYER, &rot13::LAYER, &xor::LAYER];
    run_all(|| stack(&three));
    random::compare(3, 3000, &*stack(&three), &*MemFs::new());
}

/// The suite, including space reservation, which compressed files don't support.
#[test]
fn compressed() {
    run_all(|| stack(&[&zstd::LAYER]));
    run_all(|| stack(&[&xor::LAYER, &zstd::LAYER, &rot13::LAYER]));
}

#[test]
fn worldread_makes_files_world_readable() {
    const CX: Cx<'static> = Cx::internal(7, 7);
    let root = stack(&[&worldread::LAYER]).root();
    let name = |name: &'static str| Name::new(name.as_bytes()).unwrap();
    let (file, _) = root.create(&CX, name("f"), 0o600, OpenFlags::RDWR).unwrap();
    assert_eq!(file.attr.perm(), 0o644);
    assert_eq!(root.mkdir(&CX, name("d"), 0o700).unwrap().attr.perm(), 0o755);
    assert_eq!(root.lookup(&CX, name("f")).unwrap().unwrap().attr.perm(), 0o644);
}

#[test]
fn options_are_checked() {
    let with = |name: &str, value: &[u8]| {
        let mut settings = Settings::new();
        settings.insert(name, value);
        xor::LAYER.over(MemFs::new(), &settings).map(|_| ())
    };
    assert_eq!((with("block", b"1"), with("key", b"\xff")), (Ok(()), Ok(())));
    for (name, value) in [("block", &b"0"[..]), ("block", b"x"), ("block", b"1048577"), ("key", b"")] {
        assert!(with(name, value).is_err_and(|why| why.starts_with(name)));
    }
    let mut settings = Settings::new();
    settings.insert("block", b"1000");
    assert!(zstd::LAYER.over(MemFs::new(), &settings).is_err());
    assert!(ALL.iter().all(|kind| !kind.about.ends_with('.')));
}
