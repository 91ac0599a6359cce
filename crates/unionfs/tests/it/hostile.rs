//! Objects at reserved names that other users put into branches: the union must not trust them,
//! because they could redirect a path to another user's files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, at, find, list, mkdir, name, read, write};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use unionfs::{Branch, Mode, Options, Unionfs};
use vnode::{Cx, Errno, Kind, Layer, OpenFlags, RenameFlags, SetAttr};

const USER: u32 = 1000;

fn set_owner_and_mode(layer: &dyn Layer, path: &str, uid: u32, mode: u32) {
    let set = SetAttr { uid: Some(uid), mode: Some(mode), ..SetAttr::default() };
    at(layer, path).setattr(&CX, &set, None).unwrap();
}

/// An upper branch, and a lower branch with the directory `private`, which only root may search.
struct TestUnion([Arc<MemFs>; 2]);

impl TestUnion {
    fn new() -> Self {
        let faults = Faults::new();
        let test = Self([(); 2].map(|()| MemFs::with(MemOptions::default(), &faults)));
        let lower = test.lower();
        for dir in ["private", "private/pub", "z"] {
            mkdir(lower, dir);
        }
        write(lower, "private/pub/secret", b"secret");
        set_owner_and_mode(lower, "private", 0, 0o700);
        test
    }

    fn upper(&self) -> &MemFs {
        &self.0[0]
    }

    fn lower(&self) -> &MemFs {
        &self.0[1]
    }

    fn union(&self) -> Arc<Unionfs> {
        self.union_with([Mode::ReadWrite, Mode::ReadOnly])
    }

    fn union_with(&self, modes: [Mode; 2]) -> Arc<Unionfs> {
        let branch = |(index, mode)| {
            let layer: &Arc<MemFs> = &self.0[index];
            Branch { layer: layer.clone(), path: format!("/b{index}").into(), mode }
        };
        Unionfs::new(modes.into_iter().enumerate().map(branch).collect(), Options::default()).unwrap()
    }
}

#[test]
fn only_read_only_redirects_of_root_or_the_server_are_trusted() {
    let server = rustix::process::geteuid().as_raw();
    for (uid, mode, counts) in [
        (0, 0o444, true),
        (0, 0o644, false),
        (0, 0o440, true),
        (server, 0o400, true),
        (USER, 0o444, false),
        (65534, 0o444, false),
        (0, 0o464, false),
        (0, 0o446, false),
    ] {
        let test = TestUnion::new();
        let upper = test.upper();
        // The mark that the first rename of a directory creates.
        write(upper, ".wh..wh.moved", b"");
        mkdir(upper, "z");
        write(upper, "z/.wh..wh.redirect", b"strata-redirect 1\n/private/pub\n");
        set_owner_and_mode(upper, "z/.wh..wh.redirect", uid, mode);
        for modes in [[Mode::ReadWrite, Mode::ReadOnly], [Mode::ReadOnly, Mode::ReadOnly]] {
            let union = test.union_with(modes);
            let seen = list(&*union, "z");
            assert_eq!(seen == ["secret"], counts, "{uid} {mode:o}: {seen:?}");
            assert_eq!(find(&*union, "z/secret").is_some(), counts, "{uid} {mode:o}");
        }
    }
}

#[test]
fn a_rename_replaces_a_forged_redirect() {
    let test = TestUnion::new();
    let upper = test.upper();
    write(test.lower(), "z/own", b"own");
    write(upper, ".wh..wh.moved", b"");
    mkdir(upper, "z");
    write(upper, "z/.wh..wh.redirect", b"strata-redirect 1\n/private/pub\n");
    set_owner_and_mode(upper, "z/.wh..wh.redirect", USER, 0o644);
    let union = test.union();
    assert_eq!(list(&*union, "z"), ["own"]);
    union.root().rename(&CX, name("z"), &union.root(), name("y"), RenameFlags::default()).unwrap();
    let made = at(upper, "y/.wh..wh.redirect").getattr(&CX).unwrap();
    assert_eq!((made.uid, made.perm()), (rustix::process::geteuid().as_raw(), 0o444));
    drop(union);
    assert_eq!(list(&*test.union(), "y"), ["own"]);
}

/// When a user renames a directory, the server owns the redirect.
#[test]
fn redirects_from_renames_by_users_are_trusted() {
    let test = TestUnion::new();
    write(test.lower(), "z/own", b"own");
    set_owner_and_mode(test.lower(), "z", USER, 0o755);
    set_owner_and_mode(test.lower(), "", USER, 0o755);
    static NOT_CANCELLED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let user = Cx::new(USER, USER, 0, 0o002, true, &NOT_CANCELLED);
    {
        let union = test.union();
        union.root().rename(&user, name("z"), &union.root(), name("y"), RenameFlags::default()).unwrap();
    }
    assert_eq!(list(&*test.union(), "y"), ["own"]);
}

/// The union neither empties nor uses a work directory that another user created, or another
/// directory that was renamed to that name.
#[test]
fn an_untrusted_work_directory_is_moved_aside_unchanged() {
    for (uid, mode, inside) in [(USER, 0o700, "c1"), (0, 0o755, "c1"), (0, 0o720, "c1"), (0, 0o700, "letters")] {
        let test = TestUnion::new();
        let upper = test.upper();
        mkdir(upper, ".wh..wh.work");
        write(upper, &format!(".wh..wh.work/{inside}"), b"dear");
        set_owner_and_mode(upper, ".wh..wh.work", uid, mode);
        let union = test.union();
        assert_eq!(list(upper, ".wh..wh.work"), [inside], "{uid} {mode:o}");
        // This copies a directory up, which needs the work directory.
        write(&*union, "z/new", b"");
        assert_eq!(list(upper, ".wh..wh.aside0"), [inside], "{uid} {mode:o}");
        assert_eq!(at(upper, ".wh..wh.work").getattr(&CX).unwrap().perm(), 0o700);
        drop(union);
        assert!(find(upper, ".wh..wh.work").is_none());
    }
    let test = TestUnion::new();
    mkdir(test.upper(), ".wh..wh.work");
    write(test.upper(), ".wh..wh.work/c17", b"");
    set_owner_and_mode(test.upper(), ".wh..wh.work", 0, 0o700);
    drop(test.union());
    assert!(find(test.upper(), ".wh..wh.work/c17").is_none(), "leftovers of a killed server are removed");
}

/// A hard link index that other users can write must not map names to their files.
#[test]
fn an_untrusted_hard_link_index_is_ignored() {
    let test = TestUnion::new();
    let (upper, lower) = (test.upper(), test.lower());
    lower.root().link(&CX, name("second"), &at(lower, "private/pub/secret")).unwrap();
    let number = at(&*test.union(), "second").id();
    mkdir(upper, ".wh..wh.links");
    write(upper, &format!(".wh..wh.links/{number:016x}"), b"other");
    for (uid, mode, counts) in [(USER, 0o755, false), (0, 0o777, false), (0, 0o755, true), (0, 0o700, true)] {
        set_owner_and_mode(upper, ".wh..wh.links", uid, mode);
        let union = test.union_with([Mode::ReadOnly; 2]);
        assert_eq!(read(&*union, "second") == b"other", counts, "{uid} {mode:o}");
    }
    // Once the index is trusted and the branch writable, the server restricts its mode.
    set_owner_and_mode(upper, ".wh..wh.links", 0, 0o755);
    let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    lower
        .root()
        .link(&CX, name("fourth"), &at(lower, "z").create(&CX, name("third"), 0o644, OpenFlags::RDWR).unwrap().0.vnode)
        .unwrap();
    at(&*test.union(), "z/third").setattr(&CX, &change, None).unwrap();
    assert_eq!(at(upper, ".wh..wh.links").getattr(&CX).unwrap().perm(), 0o700);
}

/// An index entry applies only to files on branches to the right of its own.
#[test]
fn an_index_entry_for_a_file_on_a_branch_to_the_left_is_ignored() {
    let test = TestUnion::new();
    let (upper, lower) = (test.upper(), test.lower());
    write(upper, "a", b"a");
    upper.root().link(&CX, name("b"), &at(upper, "a")).unwrap();
    let union = test.union();
    let number = at(&*union, "a").id();
    drop(union);
    mkdir(lower, ".wh..wh.links");
    write(lower, &format!(".wh..wh.links/{number:016x}"), b"other");
    let union = test.union();
    assert_eq!(at(&*union, "a").getattr(&CX).unwrap().nlink, 2);
    union.root().unlink(&CX, name("a")).unwrap();
    assert_eq!(at(&*union, "b").getattr(&CX).unwrap().nlink, 1);
    assert_eq!((at(&*union, "b").id(), read(&*union, "b")), (number, b"a".to_vec()));
}

/// A log that other users can write is not trusted: an alias in it could map one of their names to
/// another user's file.
#[test]
fn an_untrusted_identity_log_is_replaced() {
    let numbers = |uid, mode| {
        let test = TestUnion::new();
        let before = {
            let union = test.union();
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            at(&*union, "private/pub/secret").setattr(&CX, &change, None).unwrap();
            at(&*union, "private/pub/secret").id()
        };
        set_owner_and_mode(test.upper(), ".wh..wh.ident", uid, mode);
        let union = test.union();
        let log = at(test.upper(), ".wh..wh.ident").getattr(&CX).unwrap();
        (before == at(&*union, "private/pub/secret").id(), log.uid, log.perm())
    };
    let server = rustix::process::geteuid().as_raw();
    assert_eq!(numbers(0, 0o600), (true, 0, 0o600));
    assert_eq!(numbers(0, 0o640), (true, 0, 0o640));
    assert_eq!(numbers(USER, 0o600), (false, server, 0o600));
    assert_eq!(numbers(0, 0o620), (false, server, 0o600));
}

/// Returns the CRC-32C of `bytes`.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| if sum & 1 == 1 { 0x82f6_3b78 ^ (sum >> 1) } else { sum >> 1 })
    })
}

/// Returns a log record which says that the name `path` is about to be removed or replaced.
fn name_removal_record(path: &[u8]) -> Vec<u8> {
    let payload = [&1_u16.to_le_bytes()[..], &77_u64.to_le_bytes(), &2_u32.to_le_bytes(), path].concat();
    let mut record = u16::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    record.extend([5, 0]);
    record.extend(payload);
    record.extend(crc32c(&record).to_le_bytes());
    record
}

#[test]
fn invalid_paths_in_the_identity_log_do_not_prevent_mounting() {
    let long = [b"/".as_slice(), &[b'n'; 300]].concat();
    for path in [b"/../../etc/passwd".as_slice(), b"/a\0b", b"no/root", b"//", &long] {
        let test = TestUnion::new();
        let log = [b"strata-ident 1\n\0".to_vec(), name_removal_record(path), name_removal_record(b"")].concat();
        write(test.upper(), ".wh..wh.ident", &log);
        for _ in 0..2 {
            assert_eq!(read(&*test.union(), "private/pub/secret"), b"secret");
        }
        let left = read(test.upper(), ".wh..wh.ident");
        let kept = left.windows(path.len()).any(|part| part == path);
        assert!(!kept, "{}", path.escape_ascii());
    }
}

/// No redirect can name a directory this deep. EXDEV makes mv(1) copy it instead.
#[test]
fn renaming_a_directory_too_deep_for_a_redirect_returns_exdev() {
    let test = TestUnion::new();
    let part = "n".repeat(255);
    let mut dir = test.lower().root();
    for _ in 0..17 {
        dir = dir.mkdir(&CX, name(&part), 0o755).unwrap().vnode;
    }
    dir.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    let union = test.union();
    let mut parent = union.root();
    for _ in 0..16 {
        parent = parent.lookup(&CX, name(&part)).unwrap().unwrap().vnode;
    }
    let moved = parent.rename(&CX, name(&part), &parent, name("moved"), RenameFlags::default());
    assert_eq!(moved, Err(Errno::XDEV));
    let inside = parent.lookup(&CX, name(&part)).unwrap().unwrap().vnode;
    assert_eq!(inside.kind(), Kind::Directory);
    assert!(inside.lookup(&CX, name("f")).unwrap().is_some());
    // Only redirects have a length limit: a file in such a directory can be renamed.
    inside.rename(&CX, name("f"), &parent, name("g"), RenameFlags::default()).unwrap();
}
