//! Invalid plugins: not a shared object, wrong versions, invalid descriptions, hooks that return
//! invalid values.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Object, top};
use conformance::fixture::{ROOT, name, names};
use memfs::MemFs;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use vnode::{Errno, Kind, OpenFlags, Vnode};

fn hostile(defines: &[&str]) -> Object {
    Object::compiled(&top().join("crates/plugin/tests/hostile.c"), defines)
}

fn root(defines: &[&str]) -> Arc<dyn Vnode> {
    hostile(defines).over(MemFs::new(), &[]).unwrap().root()
}

#[test]
fn files_that_are_not_plugins() {
    let path = Path::new("/nonexistent/x.so");
    let wrong = plugin::load(path).unwrap_err();
    assert!(wrong.starts_with("/nonexistent/x.so: cannot load as a layer: No such file"), "{wrong}");
    assert!(plugin::load(Path::new("/")).unwrap_err().contains("not a regular file"));
    assert!(plugin::load(Path::new("/dev/null")).unwrap_err().contains("not a regular file"));
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0x7f; 4096]] {
        let object = Object::of(bytes);
        assert_eq!(
            object.wrong(),
            format!("{}: cannot load as a layer: not a 64-bit ELF shared object for this machine", object.0.display())
        );
    }
    // A truncated file is refused, unless only unneeded bytes are missing.
    let whole = fs::read(&hostile(&[]).0).unwrap();
    for len in (64..whole.len()).step_by(509) {
        let wrong = Object::of(&whole[..len]).wrong();
        assert!(wrong.contains("the file is truncated") || wrong == "usable", "{len}: {wrong}");
    }
    // Valid headers with garbage in the segments: detected by the loader.
    let mut program = fs::read("/bin/true").unwrap();
    let wrong = Object::of(&program).wrong();
    assert!(wrong.contains("the loader reports") && !wrong.contains("/proc/self"), "{wrong}");
    program[18] ^= 0x55;
    assert!(Object::of(&program).wrong().contains("the loader reports"));
}

#[test]
fn ownership_and_permissions() {
    let object = hostile(&[]);
    for mode in [0o757, 0o775, 0o722] {
        fs::set_permissions(&object.0, Permissions::from_mode(mode)).unwrap();
        assert!(object.wrong().contains("writable by group or others") && object.wrong().contains("chmod go-w"));
    }
    fs::set_permissions(&object.0, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(object.wrong(), "usable");
    if rustix::process::geteuid().is_root() {
        chown(&object.0, Some(65534), None).unwrap();
        assert!(object.wrong().contains("owned by user 65534"), "{}", object.wrong());
    }
}

#[test]
fn versions() {
    assert!(hostile(&["SYMBOL=strata_layer_v2"]).wrong().contains("does not export strata_layer_v1"));
    assert!(hostile(&["NOTHING"]).wrong().contains("returned NULL"));
    assert!(hostile(&["MAGIC=1"]).wrong().contains("`magic` is not STRATA_MAGIC"));
    let wrong = hostile(&["MAJOR=2"]).wrong();
    assert!(wrong.contains("built for version 2 of the interface, but this server has version 1"), "{wrong}");
    assert!(hostile(&["SIZE=8"]).wrong().contains("has 8 bytes"));
    assert!(hostile(&["SIZE=0"]).wrong().contains("has 0 bytes"));
    // A newer minor version works, with the features that both sides know.
    assert_eq!(names(&root(&["NEWER", "NAMES"])), [""; 0]);
}

#[test]
fn name_matching() {
    let wrong = hostile(&["NAMES", "MATCHING=7"]).wrong();
    assert!(wrong.contains("its hook matching returned 7"), "{wrong}");
    let wrong = hostile(&["NAMES", "MATCHING=STRATA_MATCHING_FOLDED"]).wrong();
    assert!(wrong.contains("its hook fold_filename is NULL"), "{wrong}");
    let merges = |defines: &[&str]| hostile(defines).over(memfs::MemFs::new(), &[]).unwrap().properties().merges_names;
    assert!(merges(&["NAMES", "MATCHING=STRATA_MATCHING_ENCODED"]));
    assert!(!merges(&["NAMES", "MATCHING=STRATA_MATCHING_EXACT"]) && !merges(&["NAMES"]));
    // Fields beyond the size of an older table are not read.
    assert!(!merges(&["NAMES", "OLD_NAMES", "MATCHING=STRATA_MATCHING_ENCODED"]));
}

#[test]
fn invalid_descriptions() {
    for (defines, said) in [
        (&["NAME=\"a/b\""][..], "its name is \"a/b\""),
        (&["NAME=\"\""], "its name is \"\""),
        (&["NAME=\"a,b\""], "its name is"),
        (&["NAME=\"a\\nb\""], "its name is not one line"),
        (&["NAME=\"\\xff\""], "its name is not one line of UTF-8"),
        (&["NAME=(const char*)0"], "its name is NULL"),
        (&["NO_OPEN"], "its function open is NULL"),
        (&["OPTIONS={\"a\",\"N\",\"h\"},{\"a\",0,\"h\"}"], "declares the option a twice"),
        (&["OPTIONS={\"a=b\",\"N\",\"h\"}"], "its option's name is \"a=b\""),
        (&["OPTIONS={\"a\",\"N\",0}"], "its option's help is NULL"),
        (&["OPTIONS={0,0,0}"], "its option's name is NULL"),
        (&["COUNT=3"], "3 options"),
        (&["COUNT=(size_t)-1"], "at most 256"),
    ] {
        let wrong = hostile(defines).wrong();
        assert!(wrong.contains(said), "{defines:?}: {wrong}");
    }
}

#[test]
fn invalid_instances() {
    for (defines, said) in [
        (&["OPEN_ANSWER=-12"][..], "its function open failed"),
        (&["OPEN_ANSWER=7"], "returned 7, which is not an errno"),
        (&["OPEN_ANSWER=-99999"], "returned -99999, which is not an errno"),
        (&["OPEN_ANSWER=-22", "OPEN_ERROR"], "xxxxxxxx"),
        (&["NAMES", "NO_ENCODE"], "hook encode_filename is NULL"),
        (&["OPERATIONS", "NO_BEFORE"], "before and after are both NULL"),
        (&["DATA", "SMALL_TABLE"], "its table of data has 8 bytes"),
        (&["DATA", "BLOCK=0"], "its block size is 0 bytes"),
        (&["DATA", "BLOCK=1048577"], "its block size is 1048577 bytes"),
        (&["DATA", "BLOCK=-1"], "its block size is 18446744073709551615 bytes"),
        (&["CODEC", "DATA"], "it has both data and codec"),
        (&["CODEC", "BLOCK=0"], "its block size is 0 bytes"),
        (&["CODEC", "BLOCK=1000"], "its block size is 1000 bytes"),
        (&["CODEC", "BLOCK=2097152"], "its block size is 2097152 bytes"),
        (&["CODEC", "FOREIGN=2"], "its `foreign` is 2"),
        (&["CODEC", "STORAGE_ANSWER=-12"], "its hook storage failed: Cannot allocate memory"),
        (&["CODEC", "MOST=0"], "max_encoded returned 0 for a block of 512"),
        (&["CODEC", "MOST=5121"], "max_encoded returned 5121 for a block of 512"),
        (&["CODEC", "MOST=-1"], "max_encoded returned 18446744073709551615 for a block of 512"),
        (&["CODEC", "NO_DECODE"], "hook decode is NULL"),
        (&["FLAGS=UINT64_C(1)<<63"], "flags that this server does not support: 0x8000000000000000"),
    ] {
        let wrong = hostile(defines).wrong();
        assert!(wrong.contains(said), "{defines:?}: {wrong}");
    }
}

#[test]
fn invalid_encoded_names() {
    let make = |defines: &[&str]| root(&[&["NAMES"], defines].concat()).mkdir(&ROOT, name("d"), 0o755).map(|_| ());
    assert_eq!(make(&[]), Ok(()));
    for bad in
        ["LENGTH=65537", "LENGTH=INT64_MAX", "LENGTH=INT64_MIN", "LENGTH=0", "LENGTH=-41", "LENGTH=-100000", "GROWING"]
    {
        assert_eq!(make(&[bad]), Err(Errno::IO), "{bad}");
    }
    assert_eq!(make(&["LENGTH=-13"]), Err(Errno::ACCESS));
    for bad in ["TEXT=\"a/b\"", "TEXT=\"..\"", "TEXT=\"\""] {
        assert_eq!(make(&["SAME_TEXT", bad]), Err(Errno::IO), "{bad}");
    }
}

#[test]
fn undecodable_names_below_are_hidden() {
    let lower = MemFs::new();
    vnode::Layer::root(&*lower).mkdir(&ROOT, name("there"), 0o755).unwrap();
    for bad in ["TEXT=\"a/b\"", "TEXT=\"\"", "TEXT=\".\""] {
        let layer = hostile(&["NAMES", "SAME_TEXT", bad]).over(lower.clone(), &[]).unwrap();
        assert_eq!(names(&layer.root()), [""; 0]);
    }
}

#[test]
fn invalid_attributes() {
    let attr = |defines: &[&str]| root(&[&["ATTRIBUTES"], defines].concat()).getattr(&ROOT);
    // Hooks cannot change the type of an object.
    let root_attr = attr(&[]).unwrap();
    assert_eq!((root_attr.kind(), root_attr.perm()), (Kind::Directory, 0o600));
    assert_ne!(root_attr.ino, 77);
    assert_eq!(attr(&["BAD_TIME"]), Err(Errno::IO));
    for (answer, errno) in [
        ("-1", Errno::PERM),
        ("-133", Errno::from_raw_os_error(133)),
        ("-134", Errno::IO),
        ("-512", Errno::IO),
        ("1", Errno::IO),
    ] {
        assert_eq!(attr(&[&format!("ANSWER={answer}")]), Err(errno), "{answer}");
    }
}

#[test]
fn invalid_data() {
    let write = |defines: &[&str]| {
        let (_, file) = root(&[&["DATA"], defines].concat()).create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        let done = file.write(&ROOT, b"some bytes that are more than a block", 3);
        let mut out = [0; 10];
        done.and_then(|_| file.read(&ROOT, &mut out, 3)).map(|_| out)
    };
    assert_eq!(write(&[]), Ok(*b"some bytes"));
    assert_eq!(write(&["BLOCK=1"]), Ok(*b"some bytes"));
    assert_eq!(write(&["ANSWER=-28"]), Err(Errno::NOSPC));
    for answer in ["1", "-529", "-1000000", "-58"] {
        assert_eq!(write(&[&format!("ANSWER={answer}")]), Err(Errno::IO), "{answer}");
    }
}

#[test]
fn invalid_resized_data() {
    let write = |defines: &[&str]| {
        let object = hostile(&[&["CODEC"], defines].concat());
        let lower = MemFs::new();
        let fresh = || object.over(lower.clone(), &[]).unwrap().root();
        let (_, file) = fresh().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        file.write(&ROOT, &[7; 1000], 3)?;
        file.fsync(&ROOT, false)?;
        drop(file);
        let mut out = [0; 10];
        let file = fresh().lookup(&ROOT, name("f"))?.unwrap().vnode.open(&ROOT, OpenFlags::RDONLY)?;
        file.read(&ROOT, &mut out, 3).map(|_| out)
    };
    assert_eq!(write(&[]), Ok([7; 10]));
    assert_eq!(write(&["LENGTH=-28"]), Err(Errno::NOSPC));
    for length in ["0", "514", "INT64_MAX", "INT64_MIN", "-529"] {
        assert_eq!(write(&[&format!("LENGTH={length}")]), Err(Errno::IO), "{length}");
    }
    // A too small result: what is read differs from what was written, and the codec reports it.
    assert_eq!(write(&["LENGTH=1"]), Err(Errno::IO));
    assert_eq!(write(&["ANSWER=-13"]), Err(Errno::ACCESS));
    for answer in ["1", "-1000000"] {
        assert_eq!(write(&[&format!("ANSWER={answer}")]), Err(Errno::IO), "{answer}");
    }
}

#[test]
fn replies_of_operations() {
    let readlink = |defines: &[&str]| {
        let root = root(&[&["OPERATIONS"], defines].concat());
        root.symlink(&ROOT, name("l"), b"target").unwrap().vnode.readlink(&ROOT)
    };
    assert_eq!(readlink(&[]), Ok(b"target".to_vec()));
    assert_eq!(readlink(&["REPLY=STRATA_BYTES"]), Ok(b"answered".to_vec()));
    for reply in ["STRATA_COUNT", "STRATA_OBJECT", "STRATA_MISSING", "99"] {
        assert_eq!(readlink(&[&format!("REPLY={reply}")]), Err(Errno::IO), "{reply}");
    }
    assert_eq!(readlink(&["ANSWER=-13"]), Err(Errno::ACCESS));
    // `MAY_BLOCK` is passed on only if the caller must not block.
    assert_eq!(readlink(&["ANSWER=-529"]), Err(Errno::IO));
    assert_eq!(readlink(&["ANSWER=2"]), Err(Errno::IO));
}

#[test]
fn oversized_ioctl_replies() {
    assert_eq!(root(&["IOCTLS"]).ioctl(&ROOT, 1, &[], &mut [0; 4]), Err(Errno::IO));
}
