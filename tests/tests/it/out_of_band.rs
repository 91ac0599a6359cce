//! Out-of-band changes: what users of a mount see of changes made directly on a branch, and when.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use strata_tests::mapping::Mapping;
use strata_tests::process::{run, sh};
use strata_tests::tree::{self, Times};
use strata_tests::{Delete, Mode, Mounted, Rng, Sandbox, Spec, Transport, long, on_both_transports};
use testkit::{holds_within, until};

/// Cache lifetime in the kernel: longer than a test.
const NEVER: &str = "cache=3600";

on_both_transports!(
    changes_are_visible_at_once,
    changes_are_visible_within_a_second_without_reports,
    open_files_are_never_other_files,
    a_copy_that_is_removed_below_uncovers_the_original,
    an_open_reads_all_of_a_file_that_grew,
    a_reader_of_a_growing_file_sees_no_zeros,
    attributes_of_a_growing_file_are_current,
    own_changes_cause_no_notifications,
    lost_events_invalidate_everything,
    a_branch_is_watched_while_it_is_one,
    reports_pass_through_other_layers,
    nothing_breaks_while_branches_change,
);

/// A union of a read-write and a read-only branch on separate file systems, for which every kind of
/// object was created.
struct Bed {
    union: Mounted,
    rw: PathBuf,
    ro: PathBuf,
    sandbox: Sandbox,
}

impl Bed {
    fn new(transport: Transport, options: &str) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let (rw, ro) = (sandbox.ext4("rw", 64), sandbox.dir("ro"));
        let union = Mounted::with_options(Spec::union(&rw, &ro, transport), &sandbox.path("u"), options);
        Self { union, rw, ro, sandbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.union.path(name)
    }
}

/// Everything that stat(2), readlink(2), read(2) and getdents(2) show of a path.
#[derive(Clone, PartialEq, Eq)]
struct Shown(Option<Facts>);

/// Mode, size (0 for directories), contents or target, entries.
type Facts = (u32, u64, Vec<u8>, BTreeSet<Vec<u8>>);

impl Shown {
    fn of(path: &Path) -> Self {
        let Ok(stat) = fs::symlink_metadata(path) else { return Self(None) };
        let data = match () {
            () if stat.is_file() => fs::read(path).unwrap_or_default(),
            () if stat.is_symlink() => {
                fs::read_link(path).map_or_else(|_| Vec::new(), |t| t.as_os_str().as_bytes().into())
            }
            () => Vec::new(),
        };
        let names = match fs::read_dir(path) {
            Ok(entries) => entries.map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect(),
            Err(_) => BTreeSet::new(),
        };
        let size = if stat.is_dir() { 0 } else { stat.len() };
        Self(Some((stat.mode(), size, data, names)))
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => write!(f, "nothing"),
            Some((mode, size, data, names)) => {
                let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
                write!(f, "{mode:o} {size} {:?} {names:?}", String::from_utf8_lossy(data))
            }
        }
    }
}

/// A change on a branch, and the names whose view it changes.
struct Change {
    what: &'static str,
    names: &'static [&'static str],
    make: fn(&Path),
}

const CHANGES: &[Change] = &[
    Change { what: "create", names: &["d/new", "d"], make: |b| fs::write(b.join("d/new"), "new").unwrap() },
    Change { what: "mkdir", names: &["d/newdir", "d"], make: |b| fs::create_dir(b.join("d/newdir")).unwrap() },
    Change { what: "delete", names: &["d/f", "d"], make: |b| fs::remove_file(b.join("d/f")).unwrap() },
    Change { what: "rename", names: &["d/f", "d/g", "d"], make: |b| fs::rename(b.join("d/f"), b.join("d/g")).unwrap() },
    Change {
        what: "move",
        names: &["d/f", "e/f", "d", "e"],
        make: |b| fs::rename(b.join("d/f"), b.join("e/f")).unwrap(),
    },
    Change {
        what: "replace",
        names: &["d/f"],
        make: |b| {
            fs::write(b.join(".new"), "another file").unwrap();
            fs::rename(b.join(".new"), b.join("d/f")).unwrap();
        },
    },
    Change {
        what: "replace by a directory",
        names: &["d/f", "d/f/in"],
        make: |b| {
            fs::remove_file(b.join("d/f")).unwrap();
            fs::create_dir(b.join("d/f")).unwrap();
            fs::write(b.join("d/f/in"), "in").unwrap();
        },
    },
    Change {
        what: "grow",
        names: &["d/f"],
        make: |b| OpenOptions::new().append(true).open(b.join("d/f")).unwrap().write_all(b" and more").unwrap(),
    },
    Change { what: "shrink", names: &["d/f"], make: |b| fs::write(b.join("d/f"), "f").unwrap() },
    Change { what: "overwrite", names: &["d/f"], make: |b| fs::write(b.join("d/f"), "FILE").unwrap() },
    Change {
        what: "rename a directory",
        names: &["s/x", "t/x", "s", "t", "."],
        make: |b| fs::rename(b.join("s"), b.join("t")).unwrap(),
    },
    Change {
        what: "remove a directory",
        names: &["s/x", "s", "."],
        make: |b| fs::remove_dir_all(b.join("s")).unwrap(),
    },
    Change {
        what: "replace a directory",
        names: &["s/x", "s", "e/f"],
        make: |b| {
            fs::rename(b.join("s"), b.join("old")).unwrap();
            fs::rename(b.join("e"), b.join("s")).unwrap();
        },
    },
    Change {
        what: "replace a symbolic link",
        names: &["l"],
        make: |b| {
            fs::remove_file(b.join("l")).unwrap();
            std::os::unix::fs::symlink("elsewhere", b.join("l")).unwrap();
        },
    },
    Change {
        what: "hard link",
        names: &["d/f", "e/h"],
        make: |b| fs::hard_link(b.join("d/f"), b.join("e/h")).unwrap(),
    },
    Change {
        what: "chmod",
        names: &["d/f", "d"],
        make: |b| {
            fs::set_permissions(b.join("d/f"), PermissionsExt::from_mode(0o600)).unwrap();
            fs::set_permissions(b.join("d"), PermissionsExt::from_mode(0o700)).unwrap();
        },
    },
];

/// Removes everything from a branch, except for the union's records.
fn clear(branch: &Path) {
    sh("find \"$1\" -mindepth 1 -maxdepth 1 ! -name '.wh..wh.*' -exec rm -rf {} +", &[branch]);
}

/// Creates the objects that [`CHANGES`] change.
fn fill(branch: &Path) {
    for dir in ["d", "e", "s"] {
        fs::create_dir(branch.join(dir)).unwrap();
    }
    fs::write(branch.join("d/f"), "file").unwrap();
    fs::write(branch.join("s/x"), "x").unwrap();
    std::os::unix::fs::symlink("target", branch.join("l")).unwrap();
}

/// Makes each change on `branch` and returns how long it took to become visible in `mount`, which
/// must then show the same as `branch`.
fn latencies(branch: &Path, mount: &Path, changes: &[Change]) -> Vec<(&'static str, Duration)> {
    let mut all = Vec::new();
    for Change { what, names, make } in changes {
        clear(branch);
        fill(branch);
        let want = |name: &&str| Shown::of(&branch.join(name));
        let plain = |shown: Shown| match shown.0 {
            Some((mode, size, data, mut names)) => {
                names.retain(|name| !name.starts_with(b".wh."));
                Shown(Some((mode, size, data, names)))
            }
            None => Shown(None),
        };
        let shown = |name: &&'static str| {
            let (wanted, found) = (plain(want(name)), plain(Shown::of(&mount.join(name))));
            if wanted == found { Ok(()) } else { Err(Box::new((*name, wanted, found))) }
        };
        until(&format!("before {what}"), || names.iter().try_for_each(&shown));
        // Expirations are repeated: let those of the preparation pass.
        thread::sleep(Duration::from_millis(300));
        for name in *names {
            Shown::of(&mount.join(name));
        }
        make(branch);
        let begun = Instant::now();
        until(what, || names.iter().try_for_each(&shown));
        all.push((*what, begun.elapsed()));
    }
    all
}

/// Changes on a watched branch are visible within milliseconds, whatever the cache lifetime.
fn changes_are_visible_at_once(transport: Transport) {
    let bed = Bed::new(transport, NEVER);
    for branch in [&bed.rw, &bed.ro] {
        // Directories of these names on both branches are merged.
        let other = if *branch == bed.rw { &bed.ro } else { &bed.rw };
        let mut all = latencies(branch, bed.union.dir(), CHANGES);
        fs::create_dir_all(other.join("d")).unwrap();
        // The attributes of merged directories are those of the left one.
        let (_, merged) = CHANGES.split_last().unwrap();
        all.extend(latencies(branch, bed.union.dir(), merged));
        fs::remove_dir(other.join("d")).unwrap();
        all.sort_by_key(|(_, time)| *time);
        println!("{transport:?} {}: {all:?}", branch.display());
        // On a busy machine, some take longer.
        let (what, median) = all[all.len() / 2];
        assert!(median < Duration::from_millis(100), "{what}: {median:?}");
        clear(branch);
    }
}

/// Where changes are not reported, they are visible within a second, unless `cache=` says
/// otherwise.
fn changes_are_visible_within_a_second_without_reports(transport: Transport) {
    let bed = Bed::new(transport, "watch=off");
    for branch in [&bed.rw, &bed.ro] {
        for (what, time) in latencies(branch, bed.union.dir(), CHANGES) {
            assert!(time < Duration::from_secs(1), "{what}: {time:?}");
        }
        clear(branch);
    }
    drop(bed);
    let bed = Bed::new(transport, "watch=off,cache=3600");
    fs::write(bed.ro.join("f"), "f").unwrap();
    assert_eq!(fs::metadata(bed.path("f")).unwrap().len(), 1);
    fs::write(bed.ro.join("f"), "longer").unwrap();
    fs::remove_file(bed.ro.join("f")).unwrap();
    // Longer than without cache=.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(fs::metadata(bed.path("f")).unwrap().len(), 1, "the given cache= applies");
}

/// How a program has a file open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Reading,
    Writing,
    Mapped,
}

const LEN: usize = 10_000;
const GROWN: usize = 15_000;
const SHRUNK: usize = 3_000;

/// An out-of-band change of the file `f`: the size of its data afterwards, and what is at `f`.
struct FileChange {
    what: &'static str,
    size: usize,
    at_name: AtName,
    make: fn(&Path),
}

/// What the name of a changed file leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtName {
    TheFile,
    Nothing,
    AnotherFile,
    ADirectory,
}

const FILE_CHANGES: &[FileChange] = &[
    FileChange {
        what: "rename",
        size: LEN,
        at_name: AtName::Nothing,
        make: |b| fs::rename(b.join("f"), b.join("g")).unwrap(),
    },
    FileChange { what: "delete", size: LEN, at_name: AtName::Nothing, make: |b| fs::remove_file(b.join("f")).unwrap() },
    FileChange {
        what: "replace",
        size: LEN,
        at_name: AtName::AnotherFile,
        make: |b| {
            fs::write(b.join(".other"), [b'B'; LEN]).unwrap();
            fs::rename(b.join(".other"), b.join("f")).unwrap();
        },
    },
    FileChange {
        what: "delete and create",
        size: LEN,
        at_name: AtName::AnotherFile,
        make: |b| {
            fs::remove_file(b.join("f")).unwrap();
            // On ext4, it may get the inode number of the removed file.
            fs::write(b.join("f"), [b'B'; LEN]).unwrap();
        },
    },
    FileChange {
        what: "replace by a directory",
        size: LEN,
        at_name: AtName::ADirectory,
        make: |b| {
            fs::remove_file(b.join("f")).unwrap();
            fs::create_dir(b.join("f")).unwrap();
        },
    },
    FileChange {
        what: "grow",
        size: GROWN,
        at_name: AtName::TheFile,
        make: |b| {
            OpenOptions::new().append(true).open(b.join("f")).unwrap().write_all(&[b'A'; GROWN - LEN]).unwrap();
        },
    },
    FileChange {
        what: "shrink",
        size: SHRUNK,
        at_name: AtName::TheFile,
        make: |b| OpenOptions::new().write(true).open(b.join("f")).unwrap().set_len(SHRUNK as u64).unwrap(),
    },
];

/// Reads all data of an open file.
fn read_all(file: &File) -> std::io::Result<Vec<u8>> {
    let mut data = vec![0; 4 * LEN];
    let mut len = 0;
    loop {
        match file.read_at(&mut data[len..], len as u64)? {
            0 => break,
            read => len += read,
        }
    }
    data.truncate(len);
    Ok(data)
}

/// A file that is open in a mount, and changed out of band.
struct OpenCase<'a> {
    about: String,
    union: &'a Path,
    rw: &'a Path,
    held: Held,
    file: File,
    mapping: Option<Mapping>,
    change: &'a FileChange,
    /// Whether the open file is a copy, which the change does not concern.
    is_copy: bool,
}

impl OpenCase<'_> {
    fn size(&self) -> usize {
        if self.is_copy { LEN } else { self.change.size }
    }

    /// What the open file shows, and what a change through it does.
    fn check_open_file(&self) {
        let about = &self.about;
        until(about, || read_all(&self.file).is_ok_and(|data| data.len() == self.size()));
        assert!(read_all(&self.file).unwrap().iter().all(|&byte| byte == b'A'), "{about}: another file's data");
        assert_eq!(self.file.metadata().unwrap().len(), self.size() as u64, "{about}: fstat");
        if let Some(mapping) = &self.mapping {
            // Beyond the end of the file a mapping raises SIGBUS, as natively.
            assert!(mapping.read(0, self.size().min(LEN)).iter().all(|&byte| byte == b'A'), "{about}: mapping");
        }
        if self.held == Held::Writing {
            self.file.write_all_at(b"A", 0).unwrap_or_else(|error| panic!("{about}: write: {error}"));
            self.file.sync_all().unwrap_or_else(|error| panic!("{about}: fsync: {error}"));
        }
        self.file
            .set_permissions(PermissionsExt::from_mode(0o640))
            .unwrap_or_else(|error| panic!("{about}: fchmod: {error}"));
        assert_eq!(self.file.metadata().unwrap().mode() & 0o7777, 0o640, "{about}: fchmod");
    }

    /// What the names show afterwards, and that they can be changed.
    fn check_names(&self) {
        let (about, union) = (&self.about, self.union);
        let at_name = if self.is_copy { AtName::TheFile } else { self.change.at_name };
        let path = union.join("f");
        // The kernel caches names and listings separately: the name may be found before the report
        // of its creation drops the listing.
        let listed = || fs::read_dir(union).unwrap().any(|entry| entry.unwrap().file_name() == "f");
        match at_name {
            AtName::Nothing => {
                until(about, || !path.exists() && !listed());
                fs::write(&path, "created").unwrap();
            }
            AtName::ADirectory => {
                assert!(path.is_dir(), "{about}");
                until(about, listed);
                fs::write(path.join("in"), "created").unwrap();
                assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "{about}");
            }
            AtName::TheFile | AtName::AnotherFile => {
                let (byte, size) = if at_name == AtName::TheFile { (b'A', self.size()) } else { (b'B', LEN) };
                assert_eq!(fs::metadata(&path).unwrap().len(), size as u64, "{about}");
                let data = fs::read(&path).unwrap();
                let others: Vec<_> = data.iter().filter(|other| **other != byte).take(8).collect();
                assert!(
                    data.len() == size && others.is_empty(),
                    "{about}: data at the name: {} bytes, {others:?}",
                    data.len()
                );
                until(about, listed);
                fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
                OpenOptions::new().append(true).open(&path).unwrap().write_all(b"+").unwrap();
                let changed = fs::read(&path).unwrap();
                assert!(
                    changed.len() == size + 1 && changed.ends_with(b"+") && changed.starts_with(&[byte]),
                    "{about}"
                );
            }
        }
        if self.change.what == "rename" && !self.is_copy {
            assert!(fs::read(union.join("g")).unwrap().starts_with(b"A"), "{about}: the new name");
        }
        fs::rename(&path, union.join("h")).unwrap_or_else(|error| panic!("{about}: rename: {error}"));
        assert!(!path.exists() && self.rw.join("h").exists(), "{about}");
    }
}

/// Programs on the mount have a file open while it changes out of band. They see that file alone,
/// as natively, and its name leads to what the branch has there.
fn open_files_are_never_other_files(transport: Transport) {
    for passthrough in ["auto", "off"] {
        let bed = Bed::new(transport, &format!("{NEVER},passthrough={passthrough}"));
        for (branch, held, change) in [&bed.rw, &bed.ro].into_iter().flat_map(|branch| {
            [Held::Reading, Held::Writing, Held::Mapped]
                .into_iter()
                .flat_map(move |held| FILE_CHANGES.iter().map(move |change| (branch, held, change)))
        }) {
            let about = format!("passthrough={passthrough} {} {held:?} {}", branch.display(), change.what);
            clear(&bed.rw);
            clear(&bed.ro);
            fs::write(branch.join("f"), [b'A'; LEN]).unwrap();
            let path = bed.path("f");
            until(&about, || fs::read(&path).is_ok_and(|data| data == [b'A'; LEN]) && !bed.path("h").exists());
            let file = OpenOptions::new().read(true).write(held == Held::Writing).open(&path).unwrap();
            let map = || Mapping::new(&file, LEN, ProtFlags::READ, MapFlags::SHARED).unwrap();
            let mapping = (held == Held::Mapped).then(map);
            let is_copy = held == Held::Writing && *branch == bed.ro;
            let case = OpenCase { about, union: bed.union.dir(), rw: &bed.rw, held, file, mapping, change, is_copy };
            (change.make)(branch);
            let want = Shown::of(&branch.join("f"));
            if !is_copy {
                until(&case.about, || Shown::of(&path) == want);
            }
            case.check_open_file();
            case.check_names();
        }
    }
}

/// Changes through the mount, including data that the kernel writes by itself, are not reported
/// back as out-of-band changes.
fn own_changes_cause_no_notifications(transport: Transport) {
    let bed = Bed::new(transport, &format!("{NEVER},watch=writes"));
    let notifications = || bed.union.requests().get("notifications");
    let before = notifications();
    for round in 0..20 {
        let file = bed.path(&format!("f{round}"));
        fs::write(&file, "data").unwrap();
        OpenOptions::new().append(true).open(&file).unwrap().write_all(b"more").unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        fs::rename(&file, bed.path("renamed")).unwrap();
        fs::create_dir(bed.path("dir")).unwrap();
        fs::remove_dir(bed.path("dir")).unwrap();
        fs::hard_link(bed.path("renamed"), bed.path("link")).unwrap();
        fs::remove_file(bed.path("link")).unwrap();
        fs::remove_file(bed.path("renamed")).unwrap();
    }
    // More than the time until events are read.
    thread::sleep(Duration::from_millis(400));
    assert_eq!(notifications(), before);
    // With watch=writes, a write is visible before the writer closes the file.
    fs::write(bed.ro.join("log"), "1").unwrap();
    let path = bed.path("log");
    until("a new file", || path.exists());
    let mut log = OpenOptions::new().append(true).open(bed.ro.join("log")).unwrap();
    for len in 2..10 {
        log.write_all(b"+").unwrap();
        until("a write", || fs::metadata(&path).unwrap().len() == len);
    }
    assert!(notifications() > before);
}

/// The kernel drops events if too many happen at once. Then everything is invalidated.
fn lost_events_invalidate_everything(transport: Transport) {
    let bed = Bed::new(transport, NEVER);
    fs::write(bed.ro.join("f"), "f").unwrap();
    fs::create_dir(bed.ro.join("many")).unwrap();
    until("before", || bed.path("f").exists() && bed.path("many").exists());
    assert!(!bed.path("new").exists());
    fs::read_dir(bed.path("many")).unwrap().for_each(drop);
    // The server can't read events meanwhile.
    let server = bed.union.server().to_string();
    run(Command::new("kill").args(["-STOP", &server]));
    for number in 0..20_000 {
        File::create(bed.ro.join(format!("many/{number}"))).unwrap();
    }
    fs::remove_file(bed.ro.join("f")).unwrap();
    fs::write(bed.ro.join("new"), "new").unwrap();
    run(Command::new("kill").args(["-CONT", &server]));
    until("changes after an overflow", || !bed.path("f").exists() && bed.path("new").exists());
    until("a listing after an overflow", || fs::read_dir(bed.path("many")).unwrap().count() == 20_000);
}

/// The original is older than its copy, but it is what the name shows from then on.
fn a_copy_that_is_removed_below_uncovers_the_original(transport: Transport) {
    for options in ["", "passthrough=off", "passthrough=off,cache=0"] {
        let bed = Bed::new(transport, options);
        let names = ["replaced", "changed"];
        for name in names {
            fs::write(bed.ro.join(name), [b'o'; 12_005]).unwrap();
        }
        until("the files", || names.iter().all(|name| bed.path(name).exists()));
        // The copies are younger by more than a tick of the clock.
        testkit::tick();
        fs::write(bed.path("replaced"), "copy").unwrap();
        let file = File::options().write(true).open(bed.path("changed")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"copy", 0).unwrap();
        drop(file);
        let Bed { union, rw, ro, sandbox } = bed;
        drop(union);
        let top = sandbox.dir("top");
        let branches = vec![(top, Mode::Rw), (rw.clone(), Mode::Ro), (ro, Mode::Ro)];
        let spec = Spec::Union { branches, delete: Delete::Whiteout, transport };
        let union = Mounted::with_options(spec, &sandbox.path("u"), options);
        for name in names {
            assert!(fs::read(union.path(name)).unwrap().starts_with(b"copy"));
            fs::remove_file(rw.join(name)).unwrap();
            until("the original", || fs::metadata(union.path(name)).unwrap().len() == 12_005);
            for _ in 0..3 {
                let read = fs::read(union.path(name)).unwrap();
                let (len, head) = (read.len(), &read[..read.len().min(9)]);
                assert!(read == [b'o'; 12_005], "{options}: {name} has {len} bytes, {}", head.escape_ascii());
            }
        }
    }
}

/// The kernel does not read beyond the size that it knows, whether the file was used before or only
/// its attributes were shown.
fn an_open_reads_all_of_a_file_that_grew(transport: Transport) {
    let sandbox = Sandbox::new();
    let [lower, rw] = ["lower", "rw"].map(|name| sandbox.dir(name));
    let specs = [
        Spec::wrap(&lower, transport),
        Spec::union(&rw, &lower, transport),
        Spec::stack("xor,key=a / ", &lower, transport),
    ];
    for (number, spec) in specs.into_iter().enumerate() {
        let options = format!("{NEVER},watch=off,passthrough=off");
        let mounted = Mounted::with_options(spec, &sandbox.path(&format!("m{number}")), &options);
        for (step, used) in ["stat", "listed", "read", "written"].into_iter().enumerate() {
            let (name, below) = (format!("{used}{number}"), lower.join(format!("{used}{number}")));
            fs::write(&below, "1").unwrap();
            let path = mounted.path(&name);
            match used {
                "stat" => drop(fs::metadata(&path).unwrap()),
                "listed" => drop(sh("ls -l \"$1\"", &[mounted.dir()])),
                _ => drop(fs::read(&path).unwrap()),
            }
            if used == "written" {
                fs::write(&path, "own").unwrap();
            }
            for size in [2usize, 5000, 100_000, 3] {
                let below = if used == "written" && number == 1 { rw.join(&name) } else { below.clone() };
                fs::write(&below, "x".repeat(size)).unwrap();
                let found = fs::read(&path).unwrap().len();
                assert_eq!(found, size, "{number}, {step}: {used}");
            }
        }
    }
}

/// Calls `test` with mounts without passthrough, each with another way to notice changes below,
/// and an empty file below.
fn without_passthrough(transport: Transport, test: impl Fn(&str, &Mounted, &Path)) {
    let sandbox = Sandbox::new();
    let [lower, rw] = ["lower", "rw"].map(|name| sandbox.dir(name));
    for (number, options) in ["", ",watch=off", ",watch=off,cache=0"].into_iter().enumerate() {
        let specs = [("null", Spec::wrap(&lower, transport)), ("union", Spec::union(&rw, &lower, transport))];
        for (kind, spec) in specs {
            let name = format!("{kind}{number}");
            let mounted = Mounted::with_options(spec, &sandbox.path(&name), &format!("passthrough=off{options}"));
            fs::write(lower.join(&name), "").unwrap();
            test(&format!("{kind}{options}"), &mounted, &lower.join(&name));
        }
    }
}

/// The last page of a file has zeros after the end. The kernel must not show them when it learns
/// that the file has grown. (With other programs that use the file at the same moment, it still
/// can: it changes the size and the page in two steps.)
fn a_reader_of_a_growing_file_sees_no_zeros(transport: Transport) {
    without_passthrough(transport, |what, mounted, below| {
        let path = mounted.path(below.file_name().unwrap());
        let mut log = OpenOptions::new().append(true).open(below).unwrap();
        let file = File::open(&path).unwrap();
        let (mut read, mut written) = (Vec::new(), Vec::new());
        let read_more = |read: &mut Vec<u8>, written: &[u8]| {
            let mut data = [0; 4096];
            let len = file.read_at(&mut data, read.len() as u64).unwrap();
            read.extend(&data[..len]);
            assert!(written.starts_with(read), "{what}: {:?}", String::from_utf8_lossy(&data[..len]));
        };
        for line in 0..if long() { 20_000 } else { 400 } {
            let text = format!("line {line}\n");
            log.write_all(text.as_bytes()).unwrap();
            written.extend(text.into_bytes());
            read_more(&mut read, &written);
            if line % 8 == 0 {
                assert!(fs::read(&path).unwrap() == written, "{what}, line {line}: a new open does not return all");
            }
        }
        until(what, || {
            read_more(&mut read, &written);
            read == written
        });
    });
}

/// While a program has the file open, its attributes show a change below after a moment. A program
/// that reads as much as they say gets all of it.
fn attributes_of_a_growing_file_are_current(transport: Transport) {
    without_passthrough(transport, |what, mounted, below| {
        let path = mounted.path(below.file_name().unwrap());
        let mut log = OpenOptions::new().append(true).open(below).unwrap();
        let held = File::open(&path).unwrap();
        for size in (1000..100_000).step_by(9000) {
            log.write_all(&vec![b'x'; size - fs::metadata(below).unwrap().len() as usize]).unwrap();
            until(what, || {
                let len = fs::metadata(&path).unwrap().len() as usize;
                let mut data = vec![0; len];
                held.read_exact_at(&mut data, 0).unwrap();
                assert!(!data.contains(&0), "{what}: zeros in the first {len} bytes");
                len == size
            });
        }
        // Shorter files too.
        File::options().write(true).open(below).unwrap().set_len(10).unwrap();
        until(what, || fs::metadata(&path).unwrap().len() == 10 && held.read_at(&mut [0; 100], 0).unwrap() == 10);
    });
}

fn unionctl(union: &Mounted, words: &[&str]) {
    run(Command::new(Mounted::program().unwrap()).args(["union".as_ref(), union.dir().as_os_str()]).args(words));
}

/// A branch that is added to a mounted union is watched too. After its removal, its file system can
/// be unmounted.
fn a_branch_is_watched_while_it_is_one(transport: Transport) {
    let bed = Bed::new(transport, NEVER);
    let module = bed.sandbox.ext4("module", 64);
    fs::create_dir(module.join("branch")).unwrap();
    let (added, path) = (module.join("branch"), bed.path("file"));
    for round in 0..3 {
        assert!(!path.exists(), "round {round}");
        unionctl(&bed.union, &["--add", added.to_str().unwrap()]);
        assert!(!path.exists());
        fs::write(added.join("file"), "file").unwrap();
        until("a new file on an added branch", || path.exists());
        fs::remove_file(added.join("file")).unwrap();
        until("a removed file on an added branch", || !path.exists());
        unionctl(&bed.union, &["--remove", added.to_str().unwrap()]);
        // The server may be closing the last descriptor.
        until("unmounting", || Command::new("umount").arg(&module).status().unwrap().success());
        run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(bed.sandbox.path("module.img")).arg(&module));
    }
}

/// Layers between the mount and the branches pass reports on.
fn reports_pass_through_other_layers(transport: Transport) {
    let sandbox = Sandbox::new();
    let stacks = ["wrapfs", "rot13", "casefold", "snoopfs / wrapfs", "usenetfs", "xor"];
    for (round, layers) in stacks.into_iter().enumerate() {
        let lower = sandbox.dir(&format!("lower{round}"));
        let point = sandbox.path(&format!("m{round}"));
        let mounted = Mounted::with_options(Spec::stack(&format!("{layers} / "), &lower, transport), &point, NEVER);
        // These layers don't change the name 1, nor the length of data.
        let (path, below) = (mounted.path("1"), lower.join("1"));
        for _ in 0..3 {
            assert!(!path.exists(), "{layers}");
            fs::write(&below, "1234").unwrap();
            until(layers, || path.exists() && fs::read_dir(mounted.dir()).unwrap().count() == 1);
            assert_eq!(fs::metadata(&path).unwrap().len(), 4);
            fs::write(&below, "123456789").unwrap();
            until(layers, || fs::metadata(&path).unwrap().len() == 9);
            fs::remove_file(&below).unwrap();
            until(layers, || !path.exists() && fs::read_dir(mounted.dir()).unwrap().count() == 0);
        }
    }
    // A union whose branch is a union.
    let [a, b, c] = ["a", "b", "c"].map(|name| sandbox.dir(name));
    fs::create_dir(b.join("d")).unwrap();
    fs::create_dir(c.join("d")).unwrap();
    let words = format!("unionfs,dirs={}=ro:[unionfs,dirs={}=ro:{}=ro]=ro", a.display(), b.display(), c.display());
    let spec = Spec::Stack { words: words.into(), transport };
    let mounted = Mounted::with_options(spec, &sandbox.path("nested"), NEVER);
    let path = mounted.path("d/f");
    for branch in [&c, &b] {
        assert!(!path.exists());
        fs::write(branch.join("d/f"), "f").unwrap();
        until("nested", || path.exists());
        fs::write(branch.join("d/f"), "longer").unwrap();
        until("nested", || fs::read(&path).unwrap() == b"longer");
        fs::remove_file(branch.join("d/f")).unwrap();
        until("nested", || !path.exists());
    }
    // Directories that appear with their contents are merged.
    fs::create_dir_all(a.join("other/sub")).unwrap();
    fs::write(a.join("other/sub/new"), "new").unwrap();
    fs::create_dir(b.join("d/sub")).unwrap();
    until("nested", || mounted.path("d/sub").exists());
    assert!(!mounted.path("d/sub/new").exists());
    fs::rename(a.join("other"), a.join("d")).unwrap();
    until("a directory with contents appears", || mounted.path("d/sub/new").exists());
    fs::rename(a.join("d"), a.join("other")).unwrap();
    until("a directory with contents disappears", || !mounted.path("d/sub/new").exists());
    assert!(mounted.path("d/sub").exists());
}

/// Maximum length of a file in blocks. Each block is the file's id.
const BLOCKS: u64 = 1500;

fn id_of(data: &[u8]) -> Option<u64> {
    data.first_chunk().map(|id| u64::from_le_bytes(*id))
}

/// Whether the data consists of one file's id, repeated. A page that the kernel cached while the
/// file was shorter has zeros instead, until the growth is reported.
fn is_of_one_file(data: &[u8], id: u64) -> bool {
    data.chunks(8).all(|block| id.to_le_bytes().starts_with(block) || block.iter().all(|&byte| byte == 0))
}

/// Returns one of a few paths.
fn some_path(root: &Path, rng: &mut Rng) -> PathBuf {
    root.join(rng.pick(&["", "d", "e", "d/s"])).join(rng.pick(&["1", "2", "3", "s"]))
}

/// Changes a branch at random: everything that [`CHANGES`] does.
fn change_randomly(branch: &Path, rng: &mut Rng, next_id: &AtomicU64) {
    let (one, other) = (some_path(branch, rng), some_path(branch, rng));
    // Each change may fail: the name may not exist, or be a directory.
    match rng.below(9) {
        0 | 1 => {
            let id = next_id.fetch_add(1, Ordering::Relaxed);
            let aside = branch.join(format!(".wh..wh.aside{id}"));
            let blocks = usize::try_from(1 + rng.below(BLOCKS)).unwrap();
            fs::write(&aside, id.to_le_bytes().repeat(blocks)).unwrap();
            if fs::rename(&aside, &one).is_err() {
                fs::remove_file(&aside).unwrap();
            }
        }
        2 => drop(fs::remove_file(&one)),
        3 => drop(fs::rename(&one, &other)),
        4 => drop(fs::create_dir(&one)),
        5 => drop(fs::remove_dir_all(&one)),
        6 => drop(fs::hard_link(&one, &other)),
        7 => {
            if let Ok(mut file) = OpenOptions::new().read(true).append(true).open(&one)
                && let Ok(data) = read_all(&file)
                && let Some(id) = id_of(&data)
                && data.len() < 8 * usize::try_from(BLOCKS).unwrap()
            {
                file.write_all(&id.to_le_bytes().repeat(100)).unwrap();
            }
        }
        _ => {
            if let Ok(file) = OpenOptions::new().write(true).open(&one)
                && let Ok(stat) = file.metadata()
            {
                let _ = file.set_len(8 * rng.below(1 + stat.len() / 8));
            }
        }
    }
}

/// Whether a program may get this error for a name that others change at the same time.
fn is_expected(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let expected = [
        Errno::NOENT,
        Errno::EXIST,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::NOTEMPTY,
        Errno::STALE,
        Errno::INVAL,
        Errno::BUSY,
    ];
    Errno::from_io_error(error).is_some_and(|errno| expected.contains(&errno))
}

/// Opens a file, and reads it several times. The outer error: it had another file's data, or could
/// not be read.
fn read_repeatedly(path: &Path, rng: &mut Rng) -> Result<std::io::Result<()>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    match file.metadata() {
        Ok(stat) if stat.is_file() => {}
        Ok(_) => return Ok(Ok(())),
        Err(error) => return Ok(Err(error)),
    }
    let mut id = None;
    for _ in 0..4 {
        let data = match read_all(&file) {
            // A user's rename copied it up meanwhile, and the copy was removed below.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()) => {
                return Ok(Err(error));
            }
            data => data.map_err(|error| format!("{}: read: {error}", path.display()))?,
        };
        id = id.or_else(|| id_of(&data));
        if id.is_some_and(|id| !is_of_one_file(&data, id)) {
            let found: BTreeSet<_> = data.chunks(8).filter_map(id_of).collect();
            return Err(format!("{}: {found:?} in file {id:?}", path.display()));
        }
        thread::sleep(Duration::from_millis(rng.below(3)));
    }
    Ok(Ok(()))
}

/// Uses the union at random. Returns the first unexpected result.
fn use_randomly(union: &Path, rng: &mut Rng, next_id: &AtomicU64) -> Result<(), String> {
    let (one, other) = (some_path(union, rng), some_path(union, rng));
    let action = rng.below(8);
    let result = match action {
        0..=2 => read_repeatedly(&one, rng)?,
        3 => fs::read_dir(&one).and_then(Iterator::collect::<Result<Vec<_>, _>>).map(drop),
        4 => fs::metadata(&one).map(drop),
        5 => fs::rename(&one, &other),
        6 => fs::remove_file(&one),
        _ => {
            let id = next_id.fetch_add(1, Ordering::Relaxed);
            let aside = union.join(format!("aside{id}"));
            let written = fs::write(&aside, id.to_le_bytes().repeat(200)).and_then(|()| fs::rename(&aside, &one));
            let _ = fs::remove_file(&aside);
            written
        }
    };
    match result {
        Err(error) if !is_expected(&error) => {
            Err(format!("action {action}, {} {}: {error}", one.display(), other.display()))
        }
        _ => Ok(()),
    }
}

/// Processes change both branches while others work in the union: no file has another one's data,
/// and no operation fails with an unexpected error. In the end, the union shows what a fresh mount
/// shows.
fn nothing_breaks_while_branches_change(transport: Transport) {
    for options in ["", "passthrough=off", "watch=off,cache=0.2"] {
        let mut bed = Bed::new(transport, options);
        let (stop, next_id) = (AtomicBool::new(false), AtomicU64::new(1));
        let failure = thread::scope(|scope| {
            let (stop, next_id, bed) = (&stop, &next_id, &bed);
            for (seed, branch) in [(1, &bed.rw), (2, &bed.ro)] {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    while !stop.load(Ordering::Relaxed) {
                        change_randomly(branch, &mut rng, next_id);
                        thread::sleep(Duration::from_micros(rng.below(500)));
                    }
                });
            }
            let users: Vec<_> = (3..6)
                .map(|seed| {
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed);
                        while !stop.load(Ordering::Relaxed) {
                            use_randomly(bed.union.dir(), &mut rng, next_id)?;
                        }
                        Ok::<(), String>(())
                    })
                })
                .collect();
            // They end early only if one of them fails.
            let time = Duration::from_secs(if long() { 120 } else { 4 });
            let _ = holds_within(time, || users.iter().any(thread::ScopedJoinHandle::is_finished));
            stop.store(true, Ordering::Relaxed);
            users.into_iter().find_map(|user| user.join().unwrap().err())
        });
        assert_eq!(failure, None, "{options}");
        // Longer than anything is cached.
        thread::sleep(Duration::from_secs(1));
        // Without reports, the link counts of directories are right once they were listed.
        let _ = tree::read(bed.union.dir());
        thread::sleep(Duration::from_secs(1));
        let shown = tree::read(bed.union.dir());
        bed.union.remount();
        let fresh = tree::read(bed.union.dir());
        assert_eq!(tree::difference(&fresh, &shown, Times::Exact), "", "{options}");
    }
}
