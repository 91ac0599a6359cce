//! Objects that are none, are too old or too new, say wrong things of themselves, or have hooks that answer what they must not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Object, top};
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
fn what_is_no_object() {
    let path = Path::new("/nonexistent/x.so");
    let wrong = plugin::load(path).unwrap_err();
    assert!(wrong.starts_with("/nonexistent/x.so can't be used as a layer: No such file"), "{wrong}");
    assert!(plugin::load(Path::new("/")).unwrap_err().contains("not a regular file"));
    assert!(plugin::load(Path::new("/dev/null")).unwrap_err().contains("not a regular file"));
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0x7f; 4096]] {
        let object = Object::of(bytes);
        assert_eq!(
            object.wrong(),
            format!(
                "{} can't be used as a layer: it is no shared object for this machine (ELF, 64 bits)",
                object.0.display()
            )
        );
    }
    // Whatever is cut off is refused, or was not needed.
    let whole = fs::read(&hostile(&[]).0).unwrap();
    for len in (64..whole.len()).step_by(509) {
        let wrong = Object::of(&whole[..len]).wrong();
        assert!(wrong.contains("it is cut off") || wrong == "it can be used", "{len}: {wrong}");
    }
    // Parts as they should be, and nonsense in them: the loader finds out.
    let mut program = fs::read("/bin/true").unwrap();
    let wrong = Object::of(&program).wrong();
    assert!(wrong.contains("the loader says") && !wrong.contains("/proc/self"), "{wrong}");
    program[18] ^= 0x55;
    assert!(Object::of(&program).wrong().contains("the loader says"));
}

#[test]
fn who_may_have_written_it() {
    let object = hostile(&[]);
    for mode in [0o757, 0o775, 0o722] {
        fs::set_permissions(&object.0, Permissions::from_mode(mode)).unwrap();
        assert!(object.wrong().contains("others may write it") && object.wrong().contains("chmod go-w"));
    }
    fs::set_permissions(&object.0, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(object.wrong(), "it can be used");
    if rustix::process::geteuid().is_root() {
        chown(&object.0, Some(65534), None).unwrap();
        assert!(object.wrong().contains("it belongs to user 65534"), "{}", object.wrong());
    }
}

#[test]
fn versions() {
    assert!(hostile(&["SYMBOL=strata_layer_v2"]).wrong().contains("does not export strata_layer_v1"));
    assert!(hostile(&["NOTHING"]).wrong().contains("answers NULL"));
    assert!(hostile(&["MAGIC=1"]).wrong().contains("`magic` is not STRATA_MAGIC"));
    let wrong = hostile(&["MAJOR=2"]).wrong();
    assert!(wrong.contains("made for version 2 of the interface, and this is 1"), "{wrong}");
    assert!(hostile(&["SIZE=8"]).wrong().contains("has 8 bytes"));
    assert!(hostile(&["SIZE=0"]).wrong().contains("has 0 bytes"));
    // A newer minor version works, with what it has in common.
    assert_eq!(names(&root(&["NEWER", "NAMES"])), [""; 0]);
}

#[test]
fn how_names_are_compared() {
    let wrong = hostile(&["NAMES", "MATCHING=7"]).wrong();
    assert!(wrong.contains("its hook matching answered 7"), "{wrong}");
    let wrong = hostile(&["NAMES", "MATCHING=STRATA_MATCHING_FOLDED"]).wrong();
    assert!(wrong.contains("its hook fold_filename is NULL"), "{wrong}");
    let merges = |defines: &[&str]| hostile(defines).over(memfs::MemFs::new(), &[]).unwrap().properties().merges_names;
    assert!(merges(&["NAMES", "MATCHING=STRATA_MATCHING_ENCODED"]));
    assert!(!merges(&["NAMES", "MATCHING=STRATA_MATCHING_EXACT"]) && !merges(&["NAMES"]));
    // What is past the size of an older table is not read.
    assert!(!merges(&["NAMES", "OLD_NAMES", "MATCHING=STRATA_MATCHING_ENCODED"]));
}

#[test]
fn what_it_says_of_itself() {
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
fn what_it_opens() {
    for (defines, said) in [
        (&["OPEN_ANSWER=-12"][..], "could not be set up"),
        (&["OPEN_ANSWER=7"], "answered 7, which is no errno"),
        (&["OPEN_ANSWER=-99999"], "answered -99999, which is no errno"),
        (&["OPEN_ANSWER=-22", "OPEN_ERROR"], "xxxxxxxx"),
        (&["NAMES", "NO_ENCODE"], "hook encode_filename is NULL"),
        (&["OPERATIONS", "NO_BEFORE"], "before and after are both NULL"),
        (&["DATA", "SMALL_TABLE"], "its table of data has 8 bytes"),
        (&["DATA", "BLOCK=0"], "its blocks have 0 bytes"),
        (&["DATA", "BLOCK=1048577"], "its blocks have 1048577 bytes"),
        (&["DATA", "BLOCK=-1"], "its blocks have 18446744073709551615 bytes"),
        (&["CODEC", "DATA"], "it has both data and codec"),
        (&["CODEC", "BLOCK=0"], "its blocks have 0 bytes"),
        (&["CODEC", "BLOCK=1000"], "its blocks have 1000 bytes"),
        (&["CODEC", "BLOCK=2097152"], "its blocks have 2097152 bytes"),
        (&["CODEC", "FOREIGN=2"], "files that are no containers is 2"),
        (&["CODEC", "STORAGE_ANSWER=-12"], "how it stores files it does not say: Cannot allocate memory"),
        (&["CODEC", "MOST=0"], "a block of 512 bytes may become 0"),
        (&["CODEC", "MOST=5121"], "a block of 512 bytes may become 5121"),
        (&["CODEC", "MOST=-1"], "a block of 512 bytes may become 18446744073709551615"),
        (&["CODEC", "NO_DECODE"], "hook decode is NULL"),
        (&["FLAGS=UINT64_C(1)<<63"], "flags that this server does not know: 0x8000000000000000"),
    ] {
        let wrong = hostile(defines).wrong();
        assert!(wrong.contains(said), "{defines:?}: {wrong}");
    }
}

#[test]
fn names_that_can_not_be() {
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
fn names_from_below_that_can_not_be_are_hidden() {
    let lower = MemFs::new();
    vnode::Layer::root(&*lower).mkdir(&ROOT, name("there"), 0o755).unwrap();
    for bad in ["TEXT=\"a/b\"", "TEXT=\"\"", "TEXT=\".\""] {
        let layer = hostile(&["NAMES", "SAME_TEXT", bad]).over(lower.clone(), &[]).unwrap();
        assert_eq!(names(&layer.root()), [""; 0]);
    }
}

#[test]
fn attributes_that_can_not_be() {
    let attr = |defines: &[&str]| root(&[&["ATTRIBUTES"], defines].concat()).getattr(&ROOT);
    // What an object is does not change, whatever a hook says.
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
fn data_that_can_not_be() {
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
fn data_of_another_size_that_can_not_be() {
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
    // Less than it needs: what is read is not what was written, and the codec says so.
    assert_eq!(write(&["LENGTH=1"]), Err(Errno::IO));
    assert_eq!(write(&["ANSWER=-13"]), Err(Errno::ACCESS));
    for answer in ["1", "-1000000"] {
        assert_eq!(write(&[&format!("ANSWER={answer}")]), Err(Errno::IO), "{answer}");
    }
}

#[test]
fn operations_that_are_answered() {
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
    // To wait is answered only where waiting is not allowed.
    assert_eq!(readlink(&["ANSWER=-529"]), Err(Errno::IO));
    assert_eq!(readlink(&["ANSWER=2"]), Err(Errno::IO));
}

#[test]
fn ioctls_that_answer_too_much() {
    assert_eq!(root(&["IOCTLS"]).ioctl(&ROOT, 1, &[], &mut [0; 4]), Err(Errno::IO));
}
