//! Access to old versions: commands, past files and directories, times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use memfs::MemFs;
use std::cell::RefCell;
use std::sync::Arc;
use versionfs::{Options, Storage, VersionFs};
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

const STORAGES: [Storage; 3] = [Storage::Full, Storage::Compress, Storage::Sparse];

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
        assert_eq!(fields.len(), 18, "{reply}");
        assert_eq!((fields[0], fields[2], fields[3], fields[5], fields[11]), ("1", "file", "3", "644", "truncate"));
        assert_eq!(fields[15..], ["-", "-", "-"]);
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
