//! Access to old versions: commands, past files and directories, times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use memfs::MemFs;
use std::cell::RefCell;
use std::sync::Arc;
use testkit::Rng;
use versionfs::{Options, PolicySource, Storage, VersionFs};
use vnode::{Cx, Entry, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time, Vnode};

thread_local! {
    static CLOCK: RefCell<Option<Arc<MemFs>>> = const { RefCell::new(None) };
}

/// The clock of the file system below, so that its times and those of versions are in one order.
fn clock() -> Time {
    CLOCK.with_borrow(|fs| {
        let set = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
        fs.as_ref().unwrap().root().setattr(&Cx::internal(0, 0), &set, None).unwrap().ctime
    })
}

struct Bed {
    lower: Arc<MemFs>,
    layer: Arc<VersionFs>,
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn root() -> Cx<'static> {
    Cx::internal(0, 0)
}

impl Bed {
    fn new(storage: Storage) -> Self {
        let lower = MemFs::new();
        CLOCK.set(Some(Arc::clone(&lower)));
        let layer = VersionFs::new(Arc::clone(&lower) as _, Options { storage, clock, ..Options::default() });
        Self { lower, layer }
    }

    fn at(&self, path: &str) -> Arc<dyn Vnode> {
        path.split('/').filter(|part| !part.is_empty()).fold(self.layer.root(), |dir, part| look(&dir, part).vnode)
    }

    fn split<'a>(&self, path: &'a str) -> (Arc<dyn Vnode>, Name<'a>) {
        let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
        (self.at(dir), name(file))
    }

    fn write(&self, path: &str, data: &[u8]) {
        let (dir, file) = self.split(path);
        let open = match dir.lookup(&root(), file).unwrap() {
            Some(entry) => entry.vnode.open(&root(), OpenFlags::RDWR.with_trunc()).unwrap(),
            None => dir.create(&root(), file, 0o644, OpenFlags::RDWR).unwrap().1,
        };
        assert_eq!(open.write(&root(), data, 0).unwrap(), data.len());
    }

    fn unlink(&self, path: &str) {
        let (dir, file) = self.split(path);
        dir.unlink(&root(), file).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        let ((dir, old), (new_dir, new)) = (self.split(from), self.split(to));
        dir.rename(&root(), old, &new_dir, new, RenameFlags::default()).unwrap();
    }

    fn mkdir(&self, path: &str) {
        let (dir, file) = self.split(path);
        dir.mkdir(&root(), file, 0o755).unwrap();
    }
}

fn look(dir: &Arc<dyn Vnode>, part: &str) -> Entry {
    dir.lookup(&root(), name(part)).unwrap().unwrap_or_else(|| panic!("{part} does not exist"))
}

fn run(dir: &Arc<dyn Vnode>, cx: &Cx<'_>, command: &str, input: &str) -> Result<String> {
    dir.control(cx, command, input.as_bytes()).map(|reply| String::from_utf8(reply).unwrap())
}

fn ask(dir: &Arc<dyn Vnode>, command: &str, input: &str) -> String {
    run(dir, &root(), command, input).unwrap_or_else(|errno| panic!("{command} {input}: {errno}"))
}

/// Opens what a token refers to.
fn redeem(dir: &Arc<dyn Vnode>, token: &str) -> Arc<dyn Vnode> {
    look(dir, token.strip_suffix('\n').unwrap()).vnode
}

fn version(dir: &Arc<dyn Vnode>, file: &str, number: u64) -> Arc<dyn Vnode> {
    redeem(dir, &ask(dir, "versionfs.open", &format!("{file} {number}")))
}

fn read(vnode: &Arc<dyn Vnode>) -> Result<Vec<u8>> {
    let open = vnode.open(&root(), OpenFlags::RDONLY)?;
    let mut out = vec![0; usize::try_from(vnode.getattr(&root())?.size).unwrap() + 1];
    let len = open.read(&root(), &mut out, 0)?;
    out.truncate(len);
    Ok(out)
}

const STORAGES: [Storage; 2] = [Storage::Full, Storage::Sparse];

#[test]
fn versions_are_listed_and_opened() {
    for storage in STORAGES {
        let bed = Bed::new(storage);
        let dir = bed.layer.root();
        for text in ["one", "two!", "three"] {
            bed.write("a b", text.as_bytes());
        }
        let reply = ask(&dir, "versionfs.list", "a\\040b");
        let lines: Vec<&str> = reply.lines().collect();
        assert_eq!(lines[0], "set file 1 2 2");
        let fields: Vec<&str> = lines[1].split(' ').collect();
        assert_eq!(fields.len(), 19, "{reply}");
        assert_eq!((fields[0], fields[2], fields[3], fields[5], fields[11]), ("1", "file", "3", "644", "truncate"));
        assert_eq!(fields[15..], ["-"; 4]);
        assert_eq!(ask(&dir, "versionfs.names", ""), "file 1 2 2 a\\040b\n");
        for (number, text) in [(1, "one"), (2, "two!")] {
            let old = version(&dir, "a\\040b", number);
            assert_eq!(read(&old).unwrap(), text.as_bytes());
            assert_eq!(old.id() >> 63, 1);
            assert_eq!(old.id(), version(&dir, "a\\040b", number).id());
            assert_eq!(old.open(&root(), OpenFlags::RDWR).unwrap_err(), Errno::ROFS);
        }
        bed.unlink("a b");
        assert_eq!(ask(&dir, "versionfs.names", ""), "none 1 3 3 a\\040b\n");
        assert_eq!(read(&version(&dir, "a\\040b", 3)).unwrap(), b"three");
        let mut listed = Vec::new();
        dir.readdir(&root(), 0, &mut |entry| {
            listed.push(entry.name.as_bytes().to_vec());
            true
        })
        .unwrap();
        assert!(listed.is_empty());
    }
}

#[test]
fn malformed_commands_are_refused() {
    let bed = Bed::new(Storage::Sparse);
    let dir = bed.layer.root();
    bed.write("f", b"1");
    bed.write("f", b"2");
    for (command, input, errno) in [
        ("versionfs.list", "", Errno::INVAL),
        ("versionfs.list", "f 0", Errno::INVAL),
        ("versionfs.list", "f 1 2", Errno::INVAL),
        ("versionfs.list", "a/b", Errno::INVAL),
        ("versionfs.list", "\\9", Errno::INVAL),
        ("versionfs.list", "g", Errno::NOENT),
        ("versionfs.list", ".;versions", Errno::NOENT),
        ("versionfs.open", "f", Errno::INVAL),
        ("versionfs.open", "f -1", Errno::INVAL),
        ("versionfs.open", "f 9", Errno::NOENT),
        ("versionfs.open", "f 1 all", Errno::INVAL),
        ("versionfs.other", "", Errno::NOTTY),
    ] {
        assert_eq!(run(&dir, &root(), command, input).unwrap_err(), errno, "{command} {input}");
    }
    assert_eq!(run(&bed.at("f"), &root(), "versionfs.list", "f").unwrap_err(), Errno::OPNOTSUPP);
}

#[test]
fn renamed_files_are_followed() {
    let bed = Bed::new(Storage::Sparse);
    let dir = bed.layer.root();
    bed.mkdir("d");
    bed.write("log", b"first");
    for number in 1..4 {
        bed.rename(
            if number == 1 { "log".into() } else { format!("d/log.{}", number - 1) }.as_str(),
            &format!("d/log.{number}"),
        );
    }
    assert_eq!(read(&version(&dir, "log", 1)).unwrap(), b"first");
    bed.write("d/log.3", b"changed");
    assert_eq!(read(&version(&dir, "log", 1)).unwrap(), b"first");
    bed.unlink("d/log.3");
    assert_eq!(read(&version(&dir, "log", 1)).unwrap(), b"first");
    assert_eq!(version(&dir, "log", 1).kind(), Kind::Regular);
    let _ = &bed.lower;
}

/// What the tests compare of an object: links, times and counts of the past are not known.
fn snapshot(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, path: &str, out: &mut std::collections::BTreeMap<String, String>) {
    let mut entries = Vec::new();
    dir.readdir(cx, 0, &mut |entry| {
        entries.push((String::from_utf8(entry.name.as_bytes().to_vec()).unwrap(), entry.ino, entry.kind));
        true
    })
    .unwrap();
    for (file, ino, kind) in entries {
        let entry = look(dir, &file);
        assert_eq!((entry.attr.ino, entry.attr.kind()), (ino, kind), "{path}/{file}");
        assert_eq!((entry.vnode.id(), entry.vnode.kind()), (ino, kind), "{path}/{file}");
        let path = format!("{path}/{file}");
        let attr = entry.attr;
        let content = match kind {
            Kind::Regular => {
                let content = read(&entry.vnode).unwrap_or_else(|errno| panic!("{path}: {errno}"));
                assert_eq!(content.len() as u64, attr.size, "{path}");
                content
            }
            Kind::Symlink => entry.vnode.readlink(cx).unwrap(),
            _ => Vec::new(),
        };
        let text = format!("{kind:?} {:o} {}:{} {}", attr.perm(), attr.uid, attr.gid, digest(&content));
        out.insert(path.clone(), text);
        if kind == Kind::Directory {
            snapshot(cx, &entry.vnode, &path, out);
        }
    }
}

/// Returns short content as it is, and of long content the length and a sum.
fn digest(content: &[u8]) -> String {
    match content.len() {
        0..40 => content.escape_ascii().to_string(),
        len => {
            format!("{len} bytes, {}", content.iter().fold(0u64, |sum, byte| sum * 31 % 1_000_003 + u64::from(*byte)))
        }
    }
}

type Snapshot = std::collections::BTreeMap<String, String>;

/// Snapshots of a tree with the times when they were taken.
#[derive(Default)]
struct Film(Vec<(String, Time, Snapshot)>);

impl Film {
    fn take(&mut self, bed: &Bed, step: &str) {
        let mut picture = Snapshot::new();
        snapshot(&root(), &bed.layer.root(), "", &mut picture);
        self.0.push((step.into(), clock(), picture));
    }

    /// Compares every moment of the past with the snapshot of then.
    fn check(&self, bed: &Bed) {
        let dir = bed.layer.root();
        for (step, time, picture) in &self.0 {
            let then = redeem(&dir, &ask(&dir, "versionfs.at", &format!("{}.{:09}", time.sec, time.nsec)));
            let mut past = Snapshot::new();
            snapshot(&root(), &then, "", &mut past);
            for path in picture.keys().chain(past.keys()) {
                assert_eq!(past.get(path), picture.get(path), "{path} after {step}");
            }
        }
    }
}

#[test]
fn a_tree_is_shown_as_it_was_at_every_moment() {
    for storage in STORAGES {
        let bed = Bed::new(storage);
        let mut film = Film::default();
        film.take(&bed, "nothing");
        let big = |seed: u8| (0..20_000u32).map(|i| (i / 4096) as u8 ^ seed).collect::<Vec<u8>>();
        let steps: &[(&str, &dyn Fn())] = &[
            ("create", &|| bed.write("f", b"one")),
            ("write", &|| bed.write("f", b"second")),
            ("mkdir", &|| bed.mkdir("d")),
            ("create in it", &|| bed.write("d/g", &big(1))),
            ("rename away", &|| bed.rename("f", "d/f")),
            ("create again", &|| bed.write("f", b"new")),
            ("write there", &|| bed.write("d/f", b"third")),
            ("patch", &|| {
                let open = bed.at("d/g").open(&root(), OpenFlags::RDWR).unwrap();
                open.write(&root(), b"xyz", 5000).unwrap();
            }),
            ("symlink", &|| drop(bed.layer.root().symlink(&root(), name("s"), b"d/f").unwrap())),
            ("rename a link", &|| bed.rename("s", "d/s2")),
            ("replace", &|| bed.rename("d/f", "f")),
            ("chmod", &|| {
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                bed.at("f").setattr(&root(), &set, None).unwrap();
            }),
            ("rename a directory", &|| bed.rename("d", "e")),
            ("remove", &|| bed.unlink("e/g")),
            ("remove a link", &|| bed.unlink("e/s2")),
            ("rmdir", &|| bed.layer.root().rmdir(&root(), name("e")).unwrap()),
            ("mkdir again", &|| bed.mkdir("e")),
            ("file in it", &|| bed.write("e/g", b"another")),
            ("truncate", &|| {
                let set = SetAttr { size: Some(2), ..SetAttr::default() };
                bed.at("f").setattr(&root(), &set, None).unwrap();
            }),
            ("remove the last", &|| bed.unlink("f")),
        ];
        for (step, run) in steps {
            run();
            film.take(&bed, step);
        }
        film.check(&bed);
    }
}

fn user(uid: u32) -> Cx<'static> {
    Cx::internal(uid, uid)
}

fn list(dir: &Arc<dyn Vnode>, file: &str) -> Vec<Vec<String>> {
    ask(dir, "versionfs.list", file).lines().skip(1).map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

#[test]
fn discarding_any_version_leaves_the_others() {
    for storage in STORAGES {
        for victim in 1..=4u64 {
            let bed = Bed::new(storage);
            let dir = bed.layer.root();
            let content = |seed: u8| {
                let mut data: Vec<u8> = (0..30_000u32).map(|i| (i / 4096) as u8).collect();
                data[usize::from(seed) * 5000] = 200 + seed;
                data
            };
            bed.write("f", &content(0));
            for seed in 1..5 {
                let open = bed.at("f").open(&root(), OpenFlags::RDWR).unwrap();
                open.write(&root(), &content(seed), 0).unwrap();
                drop(open);
            }
            let old = version(&dir, "f", victim);
            ask(&dir, "versionfs.discard", &format!("f {victim}"));
            for number in (1..=4).filter(|number| *number != victim) {
                let read = read(&version(&dir, "f", number)).unwrap();
                assert!(read == content(u8::try_from(number - 1).unwrap()), "{storage:?} {victim} {number}");
            }
            assert_eq!(list(&dir, "f").len(), 3);
            assert_eq!(run(&dir, &root(), "versionfs.open", &format!("f {victim}")), Err(Errno::NOENT));
            assert!(read(&old).is_err());
            bed.write("f", b"further");
            assert!(read(&version(&dir, "f", 5)).unwrap() == content(4));
            ask(&dir, "versionfs.discard", &format!("f 5 {}", if victim == 1 { 2 } else { 1 }));
            assert_eq!(list(&dir, "f").len(), 2);
        }
    }
}

#[test]
fn versions_are_pinned_and_annotated() {
    let bed = Bed::new(Storage::Sparse);
    let dir = bed.layer.root();
    bed.write("f", b"1");
    bed.write("f", b"2");
    ask(&dir, "versionfs.pin", "f 1 on");
    ask(&dir, "versionfs.annotate", "f 1 before\\040the talk");
    assert_eq!(list(&dir, "f")[0][16..18], ["p", "before\\040the\\040talk"]);
    assert_eq!(run(&dir, &root(), "versionfs.discard", "f 1"), Err(Errno::PERM));
    ask(&dir, "versionfs.pin", "f 1 off");
    ask(&dir, "versionfs.annotate", "f 1");
    assert_eq!(list(&dir, "f")[0][16..], ["-"; 3]);
    ask(&dir, "versionfs.discard", "f 1");
    assert_eq!(ask(&dir, "versionfs.list", "f"), "set file 0 0 0\n");
    for (command, input) in [("pin", "f 1 yes"), ("pin", "f 1"), ("discard", "f"), ("chown", "f x 1"), ("chmod", "f 9")]
    {
        assert_eq!(run(&dir, &root(), &format!("versionfs.{command}"), input), Err(Errno::INVAL), "{command}");
    }
}

#[test]
fn whole_sets_are_renamed_and_removed() {
    for storage in STORAGES {
        let bed = Bed::new(storage);
        let dir = bed.layer.root();
        bed.mkdir("d");
        let there = bed.at("d");
        for text in ["one", "two", "three"] {
            bed.write("f", text.as_bytes());
        }
        let input = format!("f {} g\\040h", there.id());
        ask(&dir, "versionfs.rename", &input);
        assert_eq!(run(&dir, &root(), "versionfs.list", "f"), Err(Errno::NOENT));
        assert_eq!(read(&bed.at("d/g h")).unwrap(), b"three");
        assert_eq!(read(&version(&there, "g\\040h", 1)).unwrap(), b"one");
        bed.write("d/g h", b"four");
        assert_eq!(list(&there, "g\\040h").len(), 3);
        assert_eq!(read(&version(&there, "g\\040h", 3)).unwrap(), b"three");
        bed.write("f", b"other");
        assert_eq!(run(&dir, &root(), "versionfs.rename", &input), Err(Errno::EXIST));
        ask(&there, "versionfs.unlink", "g\\040h");
        assert_eq!(run(&there, &root(), "versionfs.list", "g\\040h"), Err(Errno::NOENT));
        assert!(there.lookup(&root(), name("g h")).unwrap().is_none());
        bed.write("d/x", b"1");
        bed.unlink("d/x");
        assert_eq!(run(&dir, &root(), "versionfs.unlink", "d"), Err(Errno::ISDIR));
        dir.rmdir(&root(), name("d")).unwrap();
        bed.mkdir("d");
        bed.write("d/y", b"1");
        assert_eq!(run(&dir, &root(), "versionfs.rmdir", "d"), Err(Errno::NOTEMPTY));
        bed.unlink("d/y");
        ask(&dir, "versionfs.rmdir", "d");
        assert_eq!(run(&dir, &root(), "versionfs.list", "d"), Err(Errno::NOENT));
        bed.write("f", b"others");
        ask(&dir, "versionfs.chmod", "f 640");
        ask(&dir, "versionfs.chown", "f 7 -1");
        let attr = look(&dir, "f").attr;
        assert_eq!((attr.perm(), attr.uid, attr.gid), (0o640, 7, 0));
        assert_eq!(ask(&dir, "versionfs.names", ""), "file 1 1 1 f\n");
        assert_eq!(list(&dir, "f")[0][5..8], ["640", "7", "0"]);
        assert_eq!(version(&dir, "f", 1).getattr(&root()).unwrap().uid, 7);
    }
}

#[test]
fn removed_directories_are_opened() {
    let bed = Bed::new(Storage::Sparse);
    let dir = bed.layer.root();
    bed.mkdir("d");
    bed.mkdir("d/e");
    bed.write("d/e/f", b"deep");
    bed.unlink("d/e/f");
    bed.at("d").rmdir(&root(), name("e")).unwrap();
    dir.rmdir(&root(), name("d")).unwrap();
    let gone = version(&dir, "d", 1);
    assert_eq!(ask(&gone, "versionfs.names", ""), "none 1 1 1 e\n");
    let deeper = version(&gone, "e", 1);
    assert_eq!(read(&version(&deeper, "f", 1)).unwrap(), b"deep");
    assert_eq!(gone.mkdir(&root(), name("x"), 0o755).unwrap_err(), Errno::ROFS);
    let mut count = 0;
    gone.readdir(&root(), 0, &mut |_| {
        count += 1;
        true
    })
    .unwrap();
    assert_eq!(count, 0);
}

#[test]
fn hard_links_share_versions() {
    for storage in STORAGES {
        let bed = Bed::new(storage);
        let dir = bed.layer.root();
        bed.write("a", b"one");
        bed.write("a", b"two");
        let mut film = Film::default();
        dir.link(&root(), name("b"), &bed.at("a")).unwrap();
        film.take(&bed, "link");
        bed.write("b", b"three");
        film.take(&bed, "write");
        bed.write("a", b"four");
        bed.unlink("b");
        film.take(&bed, "unlink");
        bed.write("a", b"five");
        bed.write("b", b"new");
        film.take(&bed, "again");
        bed.write("b", b"newer");
        film.take(&bed, "write again");
        bed.rename("a", "c");
        film.take(&bed, "rename");
        bed.write("c", b"six");
        film.take(&bed, "write after rename");
        bed.unlink("c");
        film.take(&bed, "unlink the last");
        film.check(&bed);
        let texts = |file: &str| {
            let numbers: Vec<u64> = list(&dir, file).iter().map(|line| line[0].parse().unwrap()).collect();
            numbers.iter().map(|number| read(&version(&dir, file, *number)).unwrap()).collect::<Vec<_>>()
        };
        // Versions that depend on the head are closed by a link: then "two" ends twice.
        let mut texts_of_a = texts("a");
        texts_of_a.dedup();
        assert!(
            texts_of_a.starts_with(&[b"one", b"two", &b"three"[..], b"four"].map(<[u8]>::to_vec)),
            "{:?}",
            list(&dir, "a")
        );
        assert!(texts("b").starts_with(&[b"two".to_vec(), b"three".to_vec()]), "{:?}", list(&dir, "b"));
    }
}

#[test]
fn others_may_read_but_not_change() {
    let bed = Bed::new(Storage::Sparse);
    let dir = bed.layer.root();
    let set = SetAttr { mode: Some(0o1777), ..SetAttr::default() };
    dir.setattr(&root(), &set, None).unwrap();
    let (alice, bob) = (user(1000), user(1001));
    let (_, open) = dir.create(&alice, name("f"), 0o600, OpenFlags::RDWR).unwrap();
    open.write(&alice, b"secret", 0).unwrap();
    drop(open);
    let open = look(&dir, "f").vnode.open(&alice, OpenFlags::RDWR).unwrap();
    open.write(&alice, b"public", 0).unwrap();
    drop(open);
    let token = run(&dir, &bob, "versionfs.open", "f 1").unwrap();
    let attr = redeem(&dir, &token).getattr(&bob).unwrap();
    assert_eq!((attr.perm(), attr.uid), (0o600, 1000));
    for input in ["discard f 1", "pin f 1 on", "annotate f 1 x", "chmod f 777", "chown f 1001 -1", "unlink f"] {
        let (command, input) = input.split_once(' ').unwrap();
        assert_eq!(run(&dir, &bob, &format!("versionfs.{command}"), input), Err(Errno::PERM), "{command}");
    }
    let input = format!("f {} g", dir.id());
    assert_eq!(run(&dir, &bob, "versionfs.rename", &input), Err(Errno::PERM));
    assert_eq!(run(&dir, &alice, "versionfs.chown", "f 1001 -1"), Err(Errno::PERM));
    run(&dir, &alice, "versionfs.chmod", "f 644").unwrap();
    run(&dir, &alice, "versionfs.rename", &input).unwrap();
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    dir.setattr(&root(), &set, None).unwrap();
    for (command, input) in [("list", "g"), ("names", ""), ("open", "g 1"), ("at", "5"), ("unlink", "g")] {
        assert_eq!(run(&dir, &bob, &format!("versionfs.{command}"), input), Err(Errno::ACCESS), "{command}");
    }
}

/// Former names are shown to those who could list the directories.
#[test]
fn origins_of_a_name_are_shown_to_those_who_may_read_them() {
    let bed = Bed::new(Storage::Sparse);
    let dir = bed.layer.root();
    for path in ["private", "private/d e", "public"] {
        bed.mkdir(path);
    }
    bed.write("private/d e/f", b"1");
    bed.rename("private/d e/f", "private/g h");
    bed.rename("private/g h", "public/f");
    bed.write("public/x", b"2");
    bed.rename("public/x", "public/f");
    let public = bed.at("public");
    let paths = |cx: &Cx<'_>, dir: &Arc<dyn Vnode>, file: &str| -> Vec<String> {
        let reply = run(dir, cx, "versionfs.origins", file).unwrap();
        reply.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&root(), &public, "f"), ["../private g\\040h", ". x"]);
    assert_eq!(paths(&root(), &bed.at("private"), "g\\040h"), ["d\\040e f"]);
    let bob = user(1001);
    for (path, mode) in [("private", 0o711), ("private", 0o744)] {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        bed.at(path).setattr(&root(), &set, None).unwrap();
        assert_eq!(paths(&bob, &public, "f"), [". x"], "{mode:o}");
    }
    // A former directory that is gone.
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    bed.at("private").setattr(&root(), &set, None).unwrap();
    assert_eq!(paths(&bob, &public, "f").len(), 2);
    dir.lookup(&root(), name("private")).unwrap().unwrap().vnode.rmdir(&root(), name("d e")).unwrap();
    dir.rmdir(&root(), name("private")).unwrap();
    assert_eq!(paths(&root(), &public, "f"), [". x"]);
    assert_eq!(run(&dir, &root(), "versionfs.origins", "f g"), Err(Errno::INVAL));
    assert_eq!(paths(&root(), &dir, "never"), [""; 0]);
}

#[test]
fn the_past_is_a_directory_and_a_mount() {
    let bed = Bed::new(Storage::Sparse);
    let options = Options { clock, versions: true, ..Options::default() };
    let layer = VersionFs::new(Arc::clone(&bed.lower) as _, options);
    let dir = layer.root();
    bed.write("f", b"old");
    ask(&bed.layer.root(), "versionfs.tag", "release");
    assert_eq!(run(&dir, &root(), "versionfs.tag", "release"), Err(Errno::EXIST));
    assert_eq!(run(&dir, &root(), "versionfs.tag", "1st"), Err(Errno::INVAL));
    bed.write("f", b"new");
    let view = look(&dir, ".versions").vnode;
    assert_eq!(read(&look(&look(&view, "release").vnode, "f").vnode).unwrap(), b"old");
    assert_eq!(read(&look(&look(&view, "@GMT-2026.01.01-00.00.00").vnode, "f").vnode).unwrap(), b"new");
    assert!(look(&view, "5").vnode.lookup(&root(), name("f")).unwrap().is_none());
    assert!(view.lookup(&root(), name("other")).unwrap().is_none());
    let mut listed = Vec::new();
    view.readdir(&root(), 0, &mut |entry| {
        listed.push(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
        assert_eq!(entry.ino, look(&view, listed.last().unwrap()).attr.ino);
        true
    })
    .unwrap();
    listed.sort();
    assert_eq!(listed, ["@GMT-2001.09.09-01.46.41", "release"]);
    let then = VersionFs::at(Arc::clone(&bed.lower) as _, options, PolicySource::default(), b"release").unwrap();
    assert!(then.properties().read_only);
    assert_eq!(read(&look(&then.root(), "f").vnode).unwrap(), b"old");
    assert!(VersionFs::at(Arc::clone(&bed.lower) as _, options, PolicySource::default(), b"none").is_err());
    assert_eq!(ask(&dir, "versionfs.tags", "").split(' ').next(), Some("release"));
    ask(&dir, "versionfs.untag", "release");
    assert_eq!(run(&dir, &root(), "versionfs.untag", "release"), Err(Errno::NOENT));
    assert_eq!(ask(&dir, "versionfs.tags", ""), "");
}

/// A generator of numbers from a seed (xorshift).
/// Does something random. Failures are those of any file system.
fn random_step(bed: &Bed, random: &mut Rng) -> String {
    let dirs = ["", "d", "e", "d/e"];
    let files = ["a", "b", "d", "e", "s"];
    let open_dir = |path: &str| -> Option<Arc<dyn Vnode>> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(bed.layer.root(), |dir, part| {
            Some(dir.lookup(&root(), name(part)).unwrap()?.vnode).filter(|vnode| vnode.kind() == Kind::Directory)
        })
    };
    let (from, to) = (dirs[random.below(4)], dirs[random.below(4)]);
    let (file, other) = (files[random.below(5)], files[random.below(5)]);
    let (Some(dir), Some(new_dir)) = (open_dir(from), open_dir(to)) else { return "nothing".into() };
    let target = dir.lookup(&root(), name(file)).unwrap().map(|entry| entry.vnode);
    let what = random.below(12);
    let seed = random.below(250) as u8;
    let done = match (what, target) {
        (0..4, Some(vnode)) if vnode.kind() == Kind::Regular => (|| {
            let open = vnode.open(&root(), OpenFlags::RDWR)?;
            let data = vec![seed; 1 + random.below(9000)];
            open.write(&root(), &data, random.below(3) as u64 * 3000).map(|_| ())
        })(),
        (4, Some(vnode)) if vnode.kind() == Kind::Regular => {
            let set = SetAttr { size: Some(random.below(8000) as u64), ..SetAttr::default() };
            vnode.setattr(&root(), &set, None).map(|_| ())
        }
        (5, Some(vnode)) if vnode.kind() == Kind::Regular => {
            let set = SetAttr { mode: Some(0o600 | random.below(64) as u32), ..SetAttr::default() };
            vnode.setattr(&root(), &set, None).map(|_| ())
        }
        (6, Some(vnode)) if vnode.kind() == Kind::Regular => new_dir.link(&root(), name(other), &vnode).map(|_| ()),
        (6 | 7, Some(vnode)) if vnode.kind() == Kind::Directory => dir.rmdir(&root(), name(file)),
        (7 | 8, Some(_)) => dir.unlink(&root(), name(file)),
        (9 | 10, Some(_)) => {
            let flags = RenameFlags { exchange: random.below(4) == 0, ..RenameFlags::default() };
            dir.rename(&root(), name(file), &new_dir, name(other), flags)
        }
        (0..5, None) => {
            let made = dir.create(&root(), name(file), 0o644, OpenFlags::RDWR);
            made.and_then(|(_, open)| open.write(&root(), &vec![seed; 1 + random.below(9000)], 0)).map(|_| ())
        }
        (5..8, None) => dir.mkdir(&root(), name(file), 0o755).map(|_| ()),
        (8..10, None) => dir.symlink(&root(), name(file), &[seed | 1]).map(|_| ()),
        _ => Ok(()),
    };
    format!("{what} {from}/{file} {to}/{other}: {done:?}")
}

#[test]
fn random_histories_are_shown_as_they_were() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20u64);
    for seed in 1..=seeds {
        for storage in STORAGES {
            let bed = Bed::new(storage);
            let (mut film, mut random) = (Film::default(), Rng::new(seed));
            for step in 0..60 {
                let done = random_step(&bed, &mut random);
                film.take(&bed, &format!("seed {seed}, step {step}: {done}"));
            }
            film.check(&bed);
        }
    }
}

/// Adds the regular files below a past directory that can be read.
fn readable(dir: &Arc<dyn Vnode>, path: &str, out: &mut Snapshot) {
    let mut names = Vec::new();
    dir.readdir(&root(), 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
        true
    })
    .unwrap();
    for file in names {
        let path = format!("{path}/{file}");
        match dir.lookup(&root(), name(&file)) {
            Ok(Some(entry)) if entry.vnode.kind() == Kind::Directory => readable(&entry.vnode, &path, out),
            Ok(Some(entry)) if entry.vnode.kind() == Kind::Regular => {
                if let Ok(content) = read(&entry.vnode) {
                    out.insert(path, digest(&content));
                }
            }
            _ => {}
        }
    }
}

/// After some versions are discarded, the past lacks files, but shows no other content.
#[test]
fn the_past_lacks_what_was_discarded_and_shows_nothing_else() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20u64);
    for seed in 1..=seeds {
        let bed = Bed::new(STORAGES[seed as usize % 2]);
        let (mut film, mut random) = (Vec::new(), Rng::new(seed));
        for step in 0..60 {
            let done = random_step(&bed, &mut random);
            let mut picture = Snapshot::new();
            readable(&bed.layer.root(), "", &mut picture);
            film.push((format!("seed {seed}, step {step}: {done}"), clock(), picture));
            let dir = bed.layer.root();
            for file in ["a", "b", "d", "e", "s"] {
                let listed = run(&dir, &root(), "versionfs.list", file).unwrap_or_default();
                let numbers: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
                if !numbers.is_empty() && random.below(8) == 0 {
                    ask(&dir, "versionfs.discard", &format!("{file} {}", numbers[random.below(numbers.len())]));
                }
            }
        }
        for (step, time, picture) in film {
            let dir = bed.layer.root();
            let then = redeem(&dir, &ask(&dir, "versionfs.at", &format!("{}.{:09}", time.sec, time.nsec)));
            let mut past = Snapshot::new();
            readable(&then, "", &mut past);
            for (path, content) in &past {
                assert_eq!(Some(content), picture.get(path), "{path} after {step}");
            }
        }
    }
}

#[test]
fn versions_are_read_while_the_head_is_written() {
    for storage in STORAGES {
        let bed = Bed::new(storage);
        let layer = VersionFs::new(Arc::clone(&bed.lower) as _, Options { storage, ..Options::default() });
        let dir = layer.root();
        let (_, open) = dir.create(&root(), name("f"), 0o644, OpenFlags::RDWR).unwrap();
        open.write(&root(), &[0; 40_000], 0).unwrap();
        drop(open);
        let write = |value: u8| {
            let open = look(&dir, "f").vnode.open(&root(), OpenFlags::RDWR).unwrap();
            for part in 0..10 {
                open.write(&root(), &[value; 4000], part * 4000).unwrap();
            }
        };
        write(1);
        std::thread::scope(|scope| {
            scope.spawn(|| (2..60).for_each(write));
            scope.spawn(|| {
                for _ in 0..60 {
                    let count = ask(&dir, "versionfs.list", "f").lines().count() as u64 - 1;
                    for number in [1, count.div_ceil(2), count] {
                        let content = read(&version(&dir, "f", number)).unwrap();
                        assert!(content == vec![u8::try_from(number - 1).unwrap(); 40_000], "{number}");
                    }
                }
            });
            scope.spawn(|| {
                for _ in 0..60 {
                    ask(&dir, "versionfs.pin", "f 1 on");
                    ask(&dir, "versionfs.usage", "");
                    ask(&dir, "versionfs.at", "2000000000");
                }
            });
        });
    }
}

/// The last content of a file that had several names was replaced, and the tree was copied by hard
/// links: the version's other name is none that users see.
#[test]
fn a_version_with_a_name_in_a_copied_store_is_kept() {
    let mut bed = Bed::new(Storage::Full);
    bed.write("a", b"precious");
    bed.at("").link(&root(), name("b"), &bed.at("a")).unwrap();
    bed.unlink("b");
    bed.write("n", b"new");
    bed.rename("n", "a");
    let newest =
        (1..9).rev().find(|number| run(&bed.at(""), &root(), "versionfs.open", &format!("a {number}")).is_ok());
    let newest = newest.unwrap();
    assert_eq!(read(&version(&bed.at(""), "a", newest)).unwrap(), b"precious");
    let below = |path: &[&str]| {
        let start = bed.lower.root();
        path.iter().fold(start, |dir, part| look(&dir, part).vnode)
    };
    let links = below(&[".;versions", ";links"]);
    let mut stored = Vec::new();
    let mut sink = |entry: &vnode::DirEntry<'_>| {
        stored.push(entry.name.as_bytes().to_vec());
        true
    };
    links.readdir(&root(), 0, &mut sink).unwrap();
    for name in stored {
        let name = Name::new(&name).unwrap();
        let file = links.lookup(&root(), name).unwrap().unwrap();
        if file.vnode.kind() == Kind::Regular {
            below(&[".;versions"]).link(&root(), name, &file.vnode).unwrap();
        }
    }
    bed.layer = VersionFs::new(Arc::clone(&bed.lower) as _, Options { clock, ..Options::default() });
    assert_eq!(read(&version(&bed.at(""), "a", newest)).unwrap(), b"precious");
}

/// The names of a file were removed without a record; a new file has one of them.
#[test]
fn versions_of_a_new_file_do_not_belong_to_one_that_had_its_name() {
    let bed = Bed::new(Storage::Sparse);
    bed.write("a", b"old");
    bed.at("").link(&root(), name("b"), &bed.at("a")).unwrap();
    for gone in ["a", "b"] {
        bed.lower.root().unlink(&root(), name(gone)).unwrap();
    }
    let old = vec![b'o'; 3 * 4096];
    bed.write("a", &old);
    let file = bed.at("a").open(&root(), OpenFlags::RDWR).unwrap();
    for at in [0, 8192] {
        file.write(&root(), &[b'n'; 4096], at).unwrap();
    }
    drop(file);
    let newest =
        (1..9).rev().find(|number| run(&bed.at(""), &root(), "versionfs.open", &format!("a {number}")).is_ok());
    assert_eq!(read(&version(&bed.at(""), "a", newest.unwrap())).unwrap(), old);
}
