//! Branches as image layers: round trips of random trees, hostile archives, faults at each step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use changes::oci::{ImportOptions, Imported, LayerError, export, import};
use memfs::{Count, Dump, Fault, Faults, MemFs, MemOptions, Plan};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use tar::Header;
use unionfs::offline::{Record, View, whiteout_name};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, SetAttr, SetTime, Time, Vnode, XattrFlags};

const ROOT: ImportOptions = ImportOptions { privileged: true };

fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

fn branch() -> Arc<MemFs> {
    MemFs::with(MemOptions::default(), &Faults::new())
}

fn exported(branch: &dyn Layer) -> Vec<u8> {
    let mut archive = Vec::new();
    let done = export(branch, &mut archive).unwrap();
    assert_eq!(done.size, archive.len() as u64);
    archive
}

fn imported(mut archive: &[u8], options: ImportOptions) -> Result<(Arc<MemFs>, Imported), LayerError> {
    let into = branch();
    match import(&mut archive, &*into, options) {
        Ok(done) => Ok((into, done)),
        Err(error) => {
            assert_eq!(names(&*into), Vec::<String>::new(), "the branch is empty again after {error}");
            Err(error)
        }
    }
}

fn names(branch: &dyn Layer) -> Vec<String> {
    let dump = Dump::of(branch).unwrap();
    dump.0.keys().filter(|path| !path.is_empty()).map(|path| path.escape_ascii().to_string()).collect()
}

/// What a layer keeps of a branch: all but the root's attributes, inode numbers, and attributes of
/// whiteouts.
fn content(branch: &dyn Layer) -> Dump {
    let mut dump = Dump::of(branch).unwrap().without_ids();
    dump.0.remove(&b""[..]);
    dump.0.retain(|_, node| node.kind != Kind::Socket);
    for (path, node) in &mut dump.0 {
        let last = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
        if Record::of(last) != Record::Entry {
            (node.perm, node.uid, node.gid, node.mtime) = (0, 0, 0, None);
        }
    }
    dump
}

fn same(got: &Dump, want: &Dump) {
    let differences = want.differences(got);
    assert!(differences.is_empty(), "{differences}");
}

// ---- Random branches ----

#[derive(Clone, Debug)]
enum Make {
    File(Vec<u8>),
    Dir,
    Symlink(Vec<u8>),
    Link(usize),
    Node(Kind, u64),
    Whiteout,
    Opaque,
}

#[derive(Clone, Debug)]
struct Made {
    dir: usize,
    name: Vec<u8>,
    make: Make,
    attr: (u32, u32, u32, i64, u32),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b'a'), Just(b'.'), Just(b'\n'), Just(b'='), Just(0xff), 1..=255u8];
    let short = prop::collection::vec(byte.clone(), 1..6);
    let long = prop::collection::vec(byte, 90..250);
    let any = prop_oneof![6 => short, 1 => long].prop_filter("a name", |name| name != b"." && name != b"..");
    any.prop_map(|name| name.into_iter().map(|b| if b == b'/' || b == 0 { b'_' } else { b }).collect())
}

fn any_made() -> impl Strategy<Value = Made> {
    let bytes = |most: usize| prop::collection::vec(any::<u8>(), 0..most);
    let make = prop_oneof![
        4 => prop_oneof![bytes(40), bytes(3000), Just(vec![7; 512])].prop_map(Make::File),
        4 => Just(Make::Dir),
        2 => prop::collection::vec(1..=255u8, 1..200).prop_map(Make::Symlink),
        2 => any::<usize>().prop_map(Make::Link),
        1 => prop_oneof![
            Just(Make::Node(Kind::Fifo, 0)),
            Just(Make::Node(Kind::CharDevice, rustix::fs::makedev(4095, 1_048_575))),
            Just(Make::Node(Kind::BlockDevice, rustix::fs::makedev(8, 1))),
            Just(Make::Node(Kind::Socket, 0)),
        ],
        2 => Just(Make::Whiteout),
        1 => Just(Make::Opaque),
    ];
    let number = || prop_oneof![0..2000u32, 2_097_150..2_097_155u32, Just(u32::MAX - 1)];
    let seconds = prop_oneof![0..2_000_000_000i64, -5..5i64, Just(8_589_934_591), Just(8_589_934_592)];
    let attr = (0..0o10000u32, number(), number(), seconds, prop_oneof![Just(0), 0..1_000_000_000u32]);
    let key =
        prop_oneof![Just(b"user.a".to_vec()), Just(b"trusted.b%".to_vec()), Just(b"security.capability".to_vec())];
    let xattrs = prop::collection::btree_map(key, bytes(40), 0..3);
    (any::<usize>(), any_name(), make, attr, xattrs).prop_map(|(dir, name, make, attr, xattrs)| Made {
        dir,
        name,
        make,
        attr,
        xattrs,
    })
}

/// Builds a branch from these objects. Skips those that the file system refuses.
fn build(all: &[Made]) -> Arc<MemFs> {
    let fs = branch();
    let (mut dirs, mut files) = (vec![fs.root()], Vec::new());
    let mut attributes: Vec<(Arc<dyn Vnode>, &Made)> = Vec::new();
    for made in all {
        let dir = &dirs[made.dir % dirs.len()].clone();
        let at = name(&made.name);
        if Record::of(&made.name) != Record::Entry {
            continue;
        }
        let new = match &made.make {
            Make::File(data) => dir.create(&cx(), at, 0o600, OpenFlags::RDWR).map(|(entry, file)| {
                let _written = file.write(&cx(), data, 0).unwrap();
                entry
            }),
            Make::Dir => dir.mkdir(&cx(), at, 0o700),
            Make::Symlink(target) => dir.symlink(&cx(), at, target),
            Make::Link(_) if files.is_empty() => continue,
            Make::Link(which) => {
                let _linked = dir.link(&cx(), at, &files[which % files.len()]);
                continue;
            }
            Make::Node(kind, rdev) => dir.mknod(&cx(), at, kind.mode_bits() | 0o600, *rdev),
            Make::Whiteout | Make::Opaque => {
                // The root can't be opaque, and a long whiteout can't be exported.
                let mark = if matches!(made.make, Make::Opaque) {
                    b".wh..wh..opq".to_vec()
                } else {
                    whiteout_name(&made.name)
                };
                if !(dirs[0].id() == dir.id() && mark == b".wh..wh..opq") && Record::of(&mark) != Record::LongWhiteout {
                    let _made = dir.mknod(&cx(), name(&mark), 0o100_444, 0);
                }
                continue;
            }
        };
        let Ok(new) = new else { continue };
        match new.vnode.kind() {
            Kind::Directory => dirs.push(new.vnode.clone()),
            _ => files.push(new.vnode.clone()),
        }
        attributes.push((new.vnode, made));
    }
    for (vnode, made) in attributes.iter().rev() {
        let (mode, uid, gid, sec, nsec) = made.attr;
        let mode = Some(mode).filter(|_| vnode.kind() != Kind::Symlink);
        let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        vnode.setattr(&cx(), &owner, None).unwrap();
        for (key, value) in &made.xattrs {
            let _set = vnode.setxattr(&cx(), key, value, XattrFlags::default());
        }
        let mtime = Some(SetTime::At(Time { sec, nsec }));
        vnode.setattr(&cx(), &SetAttr { mode, mtime, ..SetAttr::default() }, None).unwrap();
    }
    fs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_imported_export_is_the_same_branch(all in prop::collection::vec(any_made(), 0..40)) {
        let original = build(&all);
        let archive = exported(&*original);
        let (copy, done) = imported(&archive, ROOT).unwrap();
        same(&content(&*copy), &content(&*original));
        prop_assert_eq!(done.warnings.len(), 0);
        // The order of creation, and so inode numbers, differ between both.
        prop_assert_eq!(exported(&*copy), archive);
    }

    #[test]
    fn archives_of_any_bytes_are_refused_or_imported(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let _done = imported(&bytes, ROOT);
    }

    /// Changes bytes of a valid archive, and corrects the checksums so that the headers are read.
    #[test]
    fn damaged_archives_are_refused_or_imported(
        all in prop::collection::vec(any_made(), 0..12),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
        privileged in any::<bool>(),
    ) {
        let mut archive = exported(&*build(&all));
        for (at, byte) in &changes {
            let at = at.index(archive.len());
            archive[at] = *byte;
        }
        for block in archive.chunks_exact_mut(512) {
            if block[257..262] == *b"ustar" {
                let mut header = Header::new_old();
                header.as_mut_bytes().copy_from_slice(block);
                header.set_cksum();
                block.copy_from_slice(header.as_bytes());
            }
        }
        let options = ImportOptions { privileged };
        if let Ok((copy, _)) = imported(&archive, options) {
            // An accepted archive gives a branch like any other. Only names of attributes may be
            // damaged, and long whiteouts don't contain the name.
            let mut again = Vec::new();
            match export(&*copy, &mut again) {
                Ok(_) => {}
                Err(LayerError::Refused { reason, .. }) if reason.contains("name") => return Ok(()),
                Err(error) => panic!("{error}"),
            }
            let (twice, _) = imported(&again, options).unwrap();
            if privileged {
                same(&content(&*twice), &content(&*copy));
            }
        }
        let cut = cut.index(archive.len());
        let _done = imported(&archive[..cut], options);
    }
}

// ---- Archives of other programs, and hostile ones ----

/// An archive that is written entry by entry.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn entry(mut self, path: &[u8], kind: u8, target: &[u8], data: &[u8]) -> Self {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
        header.set_mode(0o755);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(9);
        header.set_size(data.len() as u64);
        header.as_old_mut().linkflag = [kind];
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, path: &str, data: &str) -> Self {
        self.entry(path.as_bytes(), b'0', b"", data.as_bytes())
    }

    fn dir(self, path: &str) -> Self {
        self.entry(path.as_bytes(), b'5', b"", b"")
    }

    fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path.as_bytes(), b'2', target.as_bytes(), b"")
    }

    fn link(self, path: &str, target: &str) -> Self {
        self.entry(path.as_bytes(), b'1', target.as_bytes(), b"")
    }

    fn pax(self, records: &[u8]) -> Self {
        self.entry(b"pax", b'x', b"", records)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }

    fn import(self) -> Result<(Arc<MemFs>, Imported), LayerError> {
        imported(&self.end(), ROOT)
    }

    #[track_caller]
    fn refused(self, why: &str) {
        let error = self.import().expect_err(why).to_string();
        assert!(error.contains(why), "{error:?} does not contain {why:?}");
    }
}

/// Returns a pax record: `LENGTH KEY=VALUE\n`.
fn rec(record: &[u8]) -> Vec<u8> {
    let mut length = record.len() + 2;
    while length != record.len() + 2 + length.to_string().len() {
        length = record.len() + 2 + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", record, b"\n"].concat()
}

fn archive() -> Archive {
    Archive::default()
}

fn read(fs: &Arc<MemFs>, path: &str) -> Vec<u8> {
    Dump::of(&**fs).unwrap().0[path.as_bytes()].data.clone()
}

#[test]
fn nothing_outside_can_be_reached() {
    archive().file("/etc/passwd", "x").refused("absolute");
    archive().file("../x", "x").refused("..");
    archive().dir("a/").file("a/../../x", "x").refused("..");
    archive().symlink("a", "/etc").file("a/passwd", "x").refused("a is not a directory");
    archive().symlink("a", ".").dir("a/b/").refused("a is not a directory");
    archive().file("a", "x").file("a/b", "x").refused("a is not a directory");
    archive().link("a", "/etc/passwd").refused("absolute");
    archive().link("a", "../x").refused("..");
    archive().link("a", "missing").refused("no earlier file");
    archive().link("a", "a").refused("no earlier file");
    archive().dir("d/").link("a", "d").refused("no earlier file");
    archive().symlink("s", "/etc").link("a", "s/passwd").refused("no earlier file");
    archive().file("x", "").entry(b".wh.x", b'0', b"", b"").link("a", ".wh.x").refused("which is no file");
    archive().link("a", ".").refused("which is no file");
    archive().pax(&rec(b"path=a\0b")).file("a", "").refused("NUL");
    archive().pax(&rec(b"path=/a/b")).file("a", "").refused("absolute");
    archive().pax(&rec(b"linkpath=../b")).link("b", "b").refused("..");
}

#[test]
fn reserved_names_are_refused() {
    for bad in [
        ".wh.",
        ".wh..",
        ".wh...",
        ".wh..wh.ident",
        ".wh..wh.redirect",
        ".wh..wh.meta.x",
        ".wh..wh..wh.x",
        ".wh..wh.plnk",
    ] {
        for path in [bad.to_owned(), format!("dir/{bad}")] {
            assert!(archive().file(&path, "").import().is_err(), "{path}");
        }
        assert!(archive().file(&format!("{bad}/x"), "").import().is_err(), "{bad}/x");
    }
    archive().dir(".wh.x/").refused("regular file");
    archive().symlink(".wh.x", "y").refused("regular file");
    archive().dir("d/").dir("d/.wh..wh..opq/").refused("regular file");
    archive().file(".wh..wh..opq", "").refused("below the root");
    archive().file(".", "").refused("only a directory");
}

#[test]
fn unknown_and_malformed_entries_are_refused() {
    archive().entry(b"a", b'Z', b"", b"").refused("unknown type Z");
    archive().entry(b"a", b'S', b"", b"").refused("sparse");
    archive().pax(&rec(b"GNU.sparse.major=1")).file("a", "").refused("sparse");
    archive().entry(b"g", b'g', b"", &rec(b"path=a")).refused("global");
    archive().pax(b"junk").file("a", "").refused("malformed");
    archive().pax(&rec(b"path=a")).refused("between a header and its entry");
    archive().pax(&rec(b"uid=4294967295")).file("a", "").refused("impossible uid");
    archive().pax(&rec(b"mtime=1e9")).file("a", "").refused("impossible time");
    archive().pax(&rec(b"size=18446744073709551615")).file("a", "").refused("impossible size");
    archive().symlink("a", "").refused("impossible target");
    archive().dir("a/").file("a", "x").refused("is a directory and another file");
    archive().file("d", "x").dir("d/").symlink("d", "x").refused("is a directory and another file");
    assert!(imported(b"", ROOT).unwrap_err().to_string().contains("incomplete"));
    assert!(imported(&[b'x'; 600], ROOT).unwrap_err().to_string().contains("not a tar archive"));
    assert!(imported(&[&[0x1f, 0x8b][..], &[9; 600]].concat(), ROOT).unwrap_err().to_string().contains("gzip"));
}

#[test]
fn an_archive_that_ends_early_leaves_nothing() {
    let whole = archive().dir("d/").file("d/a", &"x".repeat(700)).link("b", "d/a").end();
    imported(&whole, ROOT).unwrap();
    // The second block of zeros, and what follows it, are not needed.
    for len in 0..whole.len() - 512 {
        if len % 37 == 0 || len % 512 == 0 {
            let error = imported(&whole[..len], ROOT).expect_err("incomplete").to_string();
            assert!(error.contains("incomplete"), "{len}: {error}");
        }
    }
}

#[test]
fn archives_of_other_programs_are_read() {
    let long = "n".repeat(150);
    let (fs, done) = archive()
        .dir("./")
        .entry(b"pax_global_header", b'g', b"", &rec(b"comment=x"))
        .entry(b"././@LongLink", b'L', b"", format!("./d/{long}\0").as_bytes())
        .file("cut", "long")
        .pax(&[rec(b"atime=1.000000002"), rec(b"LIBARCHIVE.xattr.user.a=AAAA")].concat())
        .file("implied/dir/a", "first")
        .file("implied/dir/a", "second")
        .link("implied/dir/a", "implied/dir/a")
        .entry(b"old/", 0, b"", b"")
        .pax(&rec(b"SCHILY.acl.access=u::rwx"))
        .file("e", "")
        .symlink("e", "elsewhere")
        .import()
        .unwrap();
    let dump = Dump::of(&*fs).unwrap();
    assert_eq!(read(&fs, &format!("d/{long}")), b"long");
    assert_eq!(read(&fs, "implied/dir/a"), b"second");
    assert_eq!((dump.0[&b"old"[..]].kind, dump.0[&b"e"[..]].kind), (Kind::Directory, Kind::Symlink));
    assert_eq!((dump.0[&b""[..]].uid, dump.0[&b"implied/dir"[..]].perm), (7, 0o755));
    let warnings: Vec<_> = done.warnings.into_iter().collect();
    assert_eq!(warnings, ["pax records SCHILY.acl are ignored"]);
}

#[test]
fn an_ordinary_user_gets_no_rights_of_others() {
    let user = ImportOptions { privileged: false };
    let mut suid = archive().file("suid", "x");
    suid.0[100..108].copy_from_slice(b"0006755\0");
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(&suid.0[..512]);
    header.set_cksum();
    suid.0[..512].copy_from_slice(header.as_bytes());
    let records = [rec(b"SCHILY.xattr.security.foo=x"), rec(b"SCHILY.xattr.user.foo=x")].concat();
    let whole = suid.pax(&records).file("a", "").end();
    let (fs, done) = imported(&whole, user).unwrap();
    let dump = Dump::of(&*fs).unwrap();
    let suid = &dump.0[&b"suid"[..]];
    assert_eq!((suid.perm, suid.uid, suid.gid), (0o755, 0, 0));
    assert_eq!(dump.0[&b"a"[..]].xattrs.keys().collect::<Vec<_>>(), [b"user.foo"]);
    assert_eq!(done.warnings.len(), 2, "{:?}", done.warnings);
    let error = imported(&archive().entry(b"dev", b'3', b"", b"").end(), user).unwrap_err().to_string();
    assert!(error.contains("device node"), "{error}");
    // Records of unions can't be forged.
    let (fs, done) = archive().pax(&rec(b"SCHILY.xattr.trusted.strata.origin=x")).file("a", "").import().unwrap();
    assert_eq!((Dump::of(&*fs).unwrap().0[&b"a"[..]].xattrs.len(), done.warnings.len()), (0, 1));
}

#[test]
fn a_union_over_an_imported_layer_hides_what_the_layer_hides() {
    let below = archive()
        .dir("d/")
        .file("d/old", "")
        .file("gone", "")
        .dir("e/")
        .file("e/kept", "")
        .file("__dir_opaque", "")
        .end();
    let (below, _) = imported(&below, ROOT).unwrap();
    let lower = branch();
    let dir = lower.root().mkdir(&cx(), name(b"d2"), 0o755).unwrap();
    dir.vnode.mknod(&cx(), name(&[b'n'; 253]), 0o100_644, 0).unwrap();
    let whiteout = format!("d2/.wh.{}", "n".repeat(253));
    let record = rec(format!("path={whiteout}").as_bytes());
    let (top, _) = archive()
        .dir("d/")
        .file("d/.wh..wh..opq", "")
        .file("d/new", "")
        .file(".wh.gone", "")
        .link(".wh.__dir_opaque", ".wh.gone")
        .pax(&record)
        .file("cut", "")
        .import()
        .unwrap();
    let pair = |fs: &Arc<MemFs>, path: &str| (fs.clone() as Arc<dyn Layer>, path.into());
    let view = View::new(&[pair(&top, "/top"), pair(&lower, "/lower"), pair(&below, "/below")]).unwrap();
    assert_eq!(names(&*view.layer()), ["d", "d/new", "d2", "e", "e/kept"]);
    // The digest in a whiteout does not tell the name.
    let error = export(&*top, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("more than 251 bytes"), "{error}");
}

#[test]
fn what_a_layer_can_not_express_is_refused() {
    for (path, why) in [
        ("d/.wh..wh.redirect", "was renamed"),
        ("d/.wh..wh.meta.f", "only its attributes"),
        (".wh..wh.links/0000000000000001", "several names"),
        (".wh..wh.commit", "interrupted"),
        (".wh..wh.work/snapshot", "snapshot was interrupted"),
    ] {
        let fs = branch();
        let parts: Vec<_> = path.split('/').collect();
        let mut dir = fs.root();
        for part in &parts[..parts.len() - 1] {
            dir = dir.mkdir(&cx(), name(part.as_bytes()), 0o755).unwrap().vnode;
        }
        dir.mknod(&cx(), name(parts[parts.len() - 1].as_bytes()), 0o100_444, 0).unwrap();
        let error = export(&*fs, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains(why), "{path}: {error}");
    }
}

#[test]
fn records_without_effect_are_left_out() {
    let fs = branch();
    for file in [
        ".wh..wh.ident",
        ".wh..wh.moved",
        ".wh..wh.metacopies",
        ".wh..wh..opq",
        ".wh..wh.aside1",
        "a",
        ".wh..wh.meta.a",
    ] {
        fs.root().mknod(&cx(), name(file.as_bytes()), 0o100_444, 0).unwrap();
    }
    fs.root().mkdir(&cx(), name(b".wh..wh.work"), 0o700).unwrap();
    fs.root().mkdir(&cx(), name(b".wh..wh.links"), 0o700).unwrap();
    let (copy, _) = imported(&exported(&*fs), ROOT).unwrap();
    assert_eq!(names(&*copy), ["a"]);
}

/// Each operation of the branch fails once: the import fails, and leaves nothing.
#[test]
fn a_failed_import_leaves_nothing() {
    let whole = archive()
        .dir("d/")
        .file("d/a", &"x".repeat(700))
        .link("b", "d/a")
        .symlink("s", "t")
        .file(".wh.x", "")
        .pax(&rec(b"SCHILY.xattr.user.a="))
        .file("c/e", "")
        .end();
    for step in 1.. {
        let faults = Faults::new();
        let fs = MemFs::with(MemOptions::default(), &faults);
        faults.arm(Plan { count: Count::All, at: step, fault: Fault::Error(Errno::IO) });
        let done = import(&mut &whole[..], &*fs, ROOT);
        let fired = faults.fired();
        faults.disarm();
        if done.is_ok() {
            assert!(!fired, "step {step}: a failure was ignored");
            assert!(step > 20);
            break;
        }
        assert_eq!(names(&*fs), Vec::<String>::new(), "step {step}: {:?}", done.err());
    }
}

/// A reader that ends with an error.
struct Broken<'a>(&'a [u8]);

impl Read for Broken<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(out)? {
            0 => Err(std::io::Error::from_raw_os_error(5)),
            read => Ok(read),
        }
    }
}

#[test]
fn an_error_of_the_input_is_reported() {
    let whole = archive().dir("d/").file("d/a", "x").end();
    let fs = branch();
    let error = import(&mut Broken(&whole), &*fs, ROOT).unwrap_err();
    assert!(matches!(error, LayerError::Stream(_)), "{error}");
    assert_eq!(names(&*fs), Vec::<String>::new());
    // A branch that is not empty is left alone.
    fs.root().mknod(&cx(), name(b"mine"), 0o100_644, 0).unwrap();
    assert!(matches!(import(&mut &whole[..], &*fs, ROOT), Err(LayerError::NotEmpty)));
    assert_eq!(names(&*fs), ["mine"]);
}
