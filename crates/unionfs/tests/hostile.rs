//! What others than the server put into branches: it is not believed where it says something about other places.
// Helpers of tests: a failed expectation is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use unionfs::{Branch, Mode, Options, Unionfs};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, SetAttr, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);
const USER: u32 = 1000;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn walk(layer: &dyn Layer, path: &str) -> Option<Arc<dyn Vnode>> {
    let mut at = layer.root();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at = at.lookup(&CX, name(part)).unwrap()?.vnode;
    }
    Some(at)
}

fn at(layer: &dyn Layer, path: &str) -> Arc<dyn Vnode> {
    walk(layer, path).unwrap_or_else(|| panic!("{path} is not there"))
}

fn mkdir(layer: &dyn Layer, path: &str) {
    let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
    at(layer, dir).mkdir(&CX, name(file), 0o755).unwrap();
}

/// A file of root that only root can write.
fn write(layer: &dyn Layer, path: &str, data: &[u8]) {
    let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
    let (_, open) = at(layer, dir).create(&CX, name(file), 0o644, OpenFlags::RDWR).unwrap();
    open.write(&CX, data, 0).unwrap();
}

fn set(layer: &dyn Layer, path: &str, uid: u32, mode: u32) {
    let set = SetAttr { uid: Some(uid), mode: Some(mode), ..SetAttr::default() };
    at(layer, path).setattr(&CX, &set, None).unwrap();
}

fn read(layer: &dyn Layer, path: &str) -> Vec<u8> {
    let mut out = vec![0; 1 << 16];
    let got = at(layer, path).open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut out, 0).unwrap();
    out.truncate(got);
    out
}

fn list(layer: &dyn Layer, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut sink = |entry: &vnode::DirEntry<'_>| {
        names.push(entry.name.to_string());
        true
    };
    at(layer, path).readdir(&CX, 0, &mut sink).unwrap();
    names.sort();
    names
}

/// A branch that is written, and one with `private`, which nobody but its owner may search.
struct Bed([Arc<MemFs>; 2]);

impl Bed {
    fn new() -> Self {
        let faults = Faults::new();
        let bed = Self([(); 2].map(|()| MemFs::with(MemOptions::default(), &faults)));
        let lower = bed.lower();
        for dir in ["private", "private/pub", "z"] {
            mkdir(lower, dir);
        }
        write(lower, "private/pub/secret", b"secret");
        set(lower, "private", 0, 0o700);
        bed
    }

    fn upper(&self) -> &MemFs {
        &self.0[0]
    }

    fn lower(&self) -> &MemFs {
        &self.0[1]
    }

    fn union(&self) -> Arc<Unionfs> {
        self.of([Mode::ReadWrite, Mode::ReadOnly])
    }

    fn of(&self, modes: [Mode; 2]) -> Arc<Unionfs> {
        let branch = |(index, mode)| {
            let layer: &Arc<MemFs> = &self.0[index];
            Branch { layer: layer.clone(), path: format!("/b{index}").into(), mode }
        };
        Unionfs::new(modes.into_iter().enumerate().map(branch).collect(), Options::default()).unwrap()
    }
}

#[test]
fn a_redirect_counts_only_if_root_or_the_server_made_it() {
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
        let bed = Bed::new();
        let upper = bed.upper();
        // As after any rename of a directory.
        write(upper, ".wh..wh.moved", b"");
        mkdir(upper, "z");
        write(upper, "z/.wh..wh.redirect", b"strata-redirect 1\n/private/pub\n");
        set(upper, "z/.wh..wh.redirect", uid, mode);
        for modes in [[Mode::ReadWrite, Mode::ReadOnly], [Mode::ReadOnly, Mode::ReadOnly]] {
            let union = bed.of(modes);
            let seen = list(&*union, "z");
            assert_eq!(seen == ["secret"], counts, "{uid} {mode:o}: {seen:?}");
            assert_eq!(walk(&*union, "z/secret").is_some(), counts, "{uid} {mode:o}");
        }
    }
}

#[test]
fn a_forged_redirect_is_replaced_when_the_directory_moves() {
    let bed = Bed::new();
    let upper = bed.upper();
    write(bed.lower(), "z/own", b"own");
    write(upper, ".wh..wh.moved", b"");
    mkdir(upper, "z");
    write(upper, "z/.wh..wh.redirect", b"strata-redirect 1\n/private/pub\n");
    set(upper, "z/.wh..wh.redirect", USER, 0o644);
    let union = bed.union();
    assert_eq!(list(&*union, "z"), ["own"]);
    union.root().rename(&CX, name("z"), &union.root(), name("y"), RenameFlags::default()).unwrap();
    let made = at(upper, "y/.wh..wh.redirect").getattr(&CX).unwrap();
    assert_eq!((made.uid, made.perm()), (rustix::process::geteuid().as_raw(), 0o444));
    drop(union);
    assert_eq!(list(&*bed.union(), "y"), ["own"]);
}

/// A user renames a directory: the redirect is the server's all the same.
#[test]
fn redirects_of_users_renames_count() {
    let bed = Bed::new();
    write(bed.lower(), "z/own", b"own");
    set(bed.lower(), "z", USER, 0o755);
    set(bed.lower(), "", USER, 0o755);
    static NEVER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let user = Cx::new(USER, USER, 0, 0o002, true, &NEVER);
    {
        let union = bed.union();
        union.root().rename(&user, name("z"), &union.root(), name("y"), RenameFlags::default()).unwrap();
    }
    assert_eq!(list(&*bed.union(), "y"), ["own"]);
}

/// A work directory that somebody else made, or that somebody's directory was renamed to, is neither emptied nor used.
#[test]
fn a_work_directory_of_others_is_left_alone() {
    for (uid, mode, inside) in [(USER, 0o700, "c1"), (0, 0o755, "c1"), (0, 0o720, "c1"), (0, 0o700, "letters")] {
        let bed = Bed::new();
        let upper = bed.upper();
        mkdir(upper, ".wh..wh.work");
        write(upper, &format!(".wh..wh.work/{inside}"), b"dear");
        set(upper, ".wh..wh.work", uid, mode);
        let union = bed.union();
        assert_eq!(list(upper, ".wh..wh.work"), [inside], "{uid} {mode:o}");
        // Takes a copy of a directory, which is built in the work directory.
        write(&*union, "z/new", b"");
        assert_eq!(list(upper, ".wh..wh.aside0"), [inside], "{uid} {mode:o}");
        assert_eq!(at(upper, ".wh..wh.work").getattr(&CX).unwrap().perm(), 0o700);
        drop(union);
        assert!(walk(upper, ".wh..wh.work").is_none());
    }
    let bed = Bed::new();
    mkdir(bed.upper(), ".wh..wh.work");
    write(bed.upper(), ".wh..wh.work/c17", b"");
    set(bed.upper(), ".wh..wh.work", 0, 0o700);
    drop(bed.union());
    assert!(walk(bed.upper(), ".wh..wh.work/c17").is_none(), "what a killed server left");
}

/// An index of hard links that others made leads no name to their files.
#[test]
fn an_index_of_others_leads_nowhere() {
    let bed = Bed::new();
    let (upper, lower) = (bed.upper(), bed.lower());
    lower.root().link(&CX, name("second"), &at(lower, "private/pub/secret")).unwrap();
    let number = at(&*bed.union(), "second").id();
    mkdir(upper, ".wh..wh.links");
    write(upper, &format!(".wh..wh.links/{number:016x}"), b"other");
    for (uid, mode, counts) in [(USER, 0o755, false), (0, 0o777, false), (0, 0o755, true), (0, 0o700, true)] {
        set(upper, ".wh..wh.links", uid, mode);
        let union = bed.of([Mode::ReadOnly; 2]);
        assert_eq!(read(&*union, "second") == b"other", counts, "{uid} {mode:o}");
    }
    // Where it counts, and the server may write, it does not stay open to everybody.
    set(upper, ".wh..wh.links", 0, 0o755);
    let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    lower
        .root()
        .link(&CX, name("fourth"), &at(lower, "z").create(&CX, name("third"), 0o644, OpenFlags::RDWR).unwrap().0.vnode)
        .unwrap();
    at(&*bed.union(), "z/third").setattr(&CX, &change, None).unwrap();
    assert_eq!(at(upper, ".wh..wh.links").getattr(&CX).unwrap().perm(), 0o700);
}

/// An index entry speaks only of files right of its own branch.
#[test]
fn an_index_entry_of_a_file_further_left_is_ignored() {
    let bed = Bed::new();
    let (upper, lower) = (bed.upper(), bed.lower());
    write(upper, "a", b"a");
    upper.root().link(&CX, name("b"), &at(upper, "a")).unwrap();
    let union = bed.union();
    let number = at(&*union, "a").id();
    drop(union);
    mkdir(lower, ".wh..wh.links");
    write(lower, &format!(".wh..wh.links/{number:016x}"), b"other");
    let union = bed.union();
    assert_eq!(at(&*union, "a").getattr(&CX).unwrap().nlink, 2);
    union.root().unlink(&CX, name("a")).unwrap();
    assert_eq!(at(&*union, "b").getattr(&CX).unwrap().nlink, 1);
    assert_eq!((at(&*union, "b").id(), read(&*union, "b")), (number, b"a".to_vec()));
}

/// A log that others can write is not believed: an alias in it could lead a name of theirs to another user's file.
#[test]
fn an_identity_log_of_others_is_not_believed() {
    let numbers = |uid, mode| {
        let bed = Bed::new();
        let before = {
            let union = bed.union();
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            at(&*union, "private/pub/secret").setattr(&CX, &change, None).unwrap();
            at(&*union, "private/pub/secret").id()
        };
        set(bed.upper(), ".wh..wh.ident", uid, mode);
        let union = bed.union();
        let log = at(bed.upper(), ".wh..wh.ident").getattr(&CX).unwrap();
        (before == at(&*union, "private/pub/secret").id(), log.uid, log.perm())
    };
    let server = rustix::process::geteuid().as_raw();
    assert_eq!(numbers(0, 0o600), (true, 0, 0o600));
    assert_eq!(numbers(0, 0o640), (true, 0, 0o640));
    assert_eq!(numbers(USER, 0o600), (false, server, 0o600));
    assert_eq!(numbers(0, 0o620), (false, server, 0o600));
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| if sum & 1 == 1 { 0x82f6_3b78 ^ (sum >> 1) } else { sum >> 1 })
    })
}

/// A record that a name is about to be used up.
fn using(path: &[u8]) -> Vec<u8> {
    let payload = [&1_u16.to_le_bytes()[..], &77_u64.to_le_bytes(), &2_u32.to_le_bytes(), path].concat();
    let mut record = u16::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    record.extend([5, 0]);
    record.extend(payload);
    record.extend(crc32c(&record).to_le_bytes());
    record
}

#[test]
fn a_log_with_impossible_paths_does_not_keep_a_union_from_being_made() {
    let long = [b"/".as_slice(), &[b'n'; 300]].concat();
    for path in [b"/../../etc/passwd".as_slice(), b"/a\0b", b"no/root", b"//", &long] {
        let bed = Bed::new();
        let log = [b"strata-ident 1\n\0".to_vec(), using(path), using(b"")].concat();
        write(bed.upper(), ".wh..wh.ident", &log);
        for _ in 0..2 {
            assert_eq!(read(&*bed.union(), "private/pub/secret"), b"secret");
        }
        let left = read(bed.upper(), ".wh..wh.ident");
        let kept = left.windows(path.len()).any(|part| part == path);
        assert!(!kept, "{}", path.escape_ascii());
    }
}

/// A directory so deep that no redirect can name it is copied by mv(1), which needs EXDEV for that.
#[test]
fn a_directory_too_deep_to_be_renamed_can_be_copied() {
    let bed = Bed::new();
    let part = "n".repeat(255);
    let mut dir = bed.lower().root();
    for _ in 0..17 {
        dir = dir.mkdir(&CX, name(&part), 0o755).unwrap().vnode;
    }
    dir.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    let union = bed.union();
    let mut parent = union.root();
    for _ in 0..16 {
        parent = parent.lookup(&CX, name(&part)).unwrap().unwrap().vnode;
    }
    let moved = parent.rename(&CX, name(&part), &parent, name("moved"), RenameFlags::default());
    assert_eq!(moved, Err(Errno::XDEV));
    let inside = parent.lookup(&CX, name(&part)).unwrap().unwrap().vnode;
    assert_eq!(inside.kind(), Kind::Directory);
    assert!(inside.lookup(&CX, name("f")).unwrap().is_some());
    // Only the way up is too long: a file can be renamed there.
    inside.rename(&CX, name("f"), &parent, name("g"), RenameFlags::default()).unwrap();
}
