//! `lower=shared`: files of read-only branches are passed through for reading until they are copied
//! up.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use strata_tests::handle::drop_caches;
use strata_tests::mapping::Mapping;
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, long, on_both_transports};

/// Returns the contents of a file on the read-only branch, which include its number.
fn original(number: usize) -> Vec<u8> {
    format!("original {number:04} ").into_bytes().repeat(1000)
}

struct Fixture {
    union: Mounted,
    upper: PathBuf,
    lower: PathBuf,
    files: usize,
    _sandbox: Sandbox,
}

impl Fixture {
    fn new(transport: Transport, files: usize) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(240));
        let disk = sandbox.ext4("disk", 512);
        let (upper, lower) = (disk.join("upper"), disk.join("lower"));
        for dir in [&upper, &lower] {
            fs::create_dir(dir).unwrap();
        }
        for number in 0..files {
            fs::write(lower.join(format!("f{number}")), original(number)).unwrap();
        }
        let union = Mounted::with_options(Spec::union(&upper, &lower, transport), &sandbox.path("u"), "lower=shared");
        Self { union, upper, lower, files, _sandbox: sandbox }
    }

    fn at(&self, number: usize) -> PathBuf {
        self.union.path(format!("f{number}"))
    }

    /// Checks that the read-only branch is unchanged.
    fn check_lower(&self) {
        for number in 0..self.files {
            assert!(fs::read(self.lower.join(format!("f{number}"))).unwrap() == original(number), "f{number}");
        }
    }
}

fn reads(fixture: &Fixture, what: impl FnOnce()) -> u64 {
    fixture.union.during(what).get("READ")
}

fn read_at_start(file: &File) -> [u8; 13] {
    let mut bytes = [0; 13];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn reads_of_read_only_branches_bypass_the_server(transport: Transport) {
    let fixture = Fixture::new(transport, 2);
    let first = File::open(fixture.at(0)).unwrap();
    assert_eq!(reads(&fixture, || assert!(fs::read(fixture.at(0)).unwrap() == original(0))), 0);
    assert_eq!(reads(&fixture, || assert_eq!(&read_at_start(&first), b"original 0000")), 0);
    let map = Mapping::new(&first, 4096, ProtFlags::READ, MapFlags::SHARED).unwrap();
    assert_eq!(map.read(0, 13), b"original 0000");
    assert!(
        fs::read_dir(&fixture.upper).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('f'))
    );
    // In the default mode every read is a request.
    fixture.check_lower();
}

/// Without passthrough, open files follow the copy-up, as in the default mode.
fn without_passthrough_readers_see_changes(transport: Transport) {
    let sandbox = Sandbox::new();
    let (upper, lower) = (sandbox.dir("upper"), sandbox.dir("lower"));
    fs::write(lower.join("f0"), original(0)).unwrap();
    let options = "lower=shared,passthrough=off";
    let union = Mounted::with_options(Spec::union(&upper, &lower, transport), &sandbox.path("u"), options);
    let reader = File::open(union.path("f0")).unwrap();
    assert_eq!(&read_at_start(&reader), b"original 0000");
    OpenOptions::new().write(true).open(union.path("f0")).unwrap().write_all_at(b"changed", 0).unwrap();
    assert_eq!(&read_at_start(&reader), b"changedl 0000");
    assert!(fs::read(lower.join("f0")).unwrap() == original(0));
}

/// Every way to change a file, with one reader that has it open and one that has it mapped.
fn readers_keep_the_original_and_new_opens_see_changes(transport: Transport) {
    type Way = (&'static str, fn(&Path));
    let ways: [Way; 9] = [
        ("append", |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap()),
        ("truncate", |path| drop(File::create(path).unwrap())),
        ("write", |path| OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"changed", 0).unwrap()),
        ("mapping", |path| {
            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let mut map = Mapping::new(&file, 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
            map.write(0, b"mapped");
            map.sync().unwrap();
        }),
        ("set_len", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(5).unwrap()),
        ("truncate(2)", |path| drop(strata_tests::process::sh("truncate -s 3 \"$1\"", &[path]))),
        ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap()),
        ("rename", |path| fs::rename(path, path.with_extension("new")).unwrap()),
        ("unlink", |path| fs::remove_file(path).unwrap()),
    ];
    let fixture = Fixture::new(transport, ways.len());
    for (number, (what, change)) in ways.iter().enumerate() {
        let (path, before) = (fixture.at(number), original(number));
        let ino = fs::metadata(&path).unwrap().ino();
        let mut reader = File::open(&path).unwrap();
        let mapped = File::open(&path).unwrap();
        let map = Mapping::new(&mapped, 4096, ProtFlags::READ, MapFlags::SHARED).unwrap();
        assert_eq!(map.get(0), b'o', "{what}");
        change(&path);
        // As on overlayfs, they continue to read the original file.
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert!(bytes == before, "{what}: a reader does not see the original");
        assert_eq!(map.read(0, 8), b"original", "{what}");
        // SEEK_END may use the size of the changed file; data are at their original offsets.
        assert_eq!(reader.seek(SeekFrom::Start(14)).unwrap(), 14);
        let renamed = path.with_extension("new");
        let now = if renamed.exists() { &renamed } else { &path };
        if *what == "unlink" {
            assert!(!now.exists());
            continue;
        }
        assert_eq!(fs::metadata(now).unwrap().ino(), ino, "{what}: st_ino changed");
        let shown = fs::read(now).unwrap();
        let expected = match *what {
            "append" => [&before[..], b"more"].concat(),
            "truncate" => Vec::new(),
            "write" => [b"changed", &before[7..]].concat(),
            "mapping" => [b"mapped", &before[6..]].concat(),
            "set_len" => before[..5].to_vec(),
            "truncate(2)" => before[..3].to_vec(),
            _ => before.clone(),
        };
        assert!(shown == expected, "{what}: {} bytes shown", shown.len());
        drop((reader, map, mapped));
        assert!(fs::read(now).unwrap() == expected, "{what}: after the readers closed the file");
    }
    fixture.check_lower();
}

/// A file with two names that is changed by one of them, and a file that is changed through the
/// reader's descriptor.
fn hard_links_and_reopened_descriptors(transport: Transport) {
    let fixture = Fixture::new(transport, 2);
    fs::hard_link(fixture.lower.join("f0"), fixture.lower.join("g0")).unwrap();
    let reader = File::open(fixture.at(0)).unwrap();
    assert_eq!(&read_at_start(&reader), b"original 0000");
    let other = fixture.union.path("g0");
    OpenOptions::new().write(true).open(&other).unwrap().write_all_at(b"changed", 0).unwrap();
    assert_eq!(&read_at_start(&reader), b"original 0000");
    for path in [fixture.at(0), other] {
        assert!(fs::read(&path).unwrap().starts_with(b"changed"), "{}", path.display());
    }
    let reader = File::open(fixture.at(1)).unwrap();
    reader.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(reader.metadata().unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::metadata(fixture.at(1)).unwrap().mode() & 0o777, 0o640);
    assert!(fs::read(fixture.at(1)).unwrap() == original(1));
    assert_eq!(&read_at_start(&reader), b"original 0001");
    fixture.check_lower();
}

/// Concurrent readers, mappings and writers of the same files. No operation fails, an open after a
/// completed write reads the written data, and no byte of the read-only branch changes.
fn concurrent_readers_and_writers(transport: Transport) {
    let files = if long() { 2000 } else { 200 };
    let fixture = Fixture::new(transport, files);
    let (stop, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    // Set per file once its write has returned.
    let changed: Vec<AtomicBool> = (0..files).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (fixture, stop, opened, changed) = (&fixture, &stop, &opened, &changed);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    let number = rng.below(files);
                    let was_changed = changed[number].load(Ordering::SeqCst);
                    let file = File::open(fixture.at(number)).unwrap_or_else(|e| panic!("f{number}: {e}"));
                    let start = if rng.below(4) == 0 {
                        let map = Mapping::new(&file, 4096, ProtFlags::READ, MapFlags::SHARED).unwrap();
                        map.read(0, 13)
                    } else {
                        read_at_start(&file).to_vec()
                    };
                    let new = format!("changed! {number:04}").into_bytes();
                    let old = original(number)[..13].to_vec();
                    assert!(start == new || (!was_changed && start == old), "f{number}: {}", start.escape_ascii());
                    opened.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut order: Vec<usize> = (0..files).collect();
        let mut rng = Rng::new(77);
        for i in (1..files).rev() {
            order.swap(i, rng.below(i + 1));
        }
        for number in order {
            let file = OpenOptions::new().read(true).write(true).open(fixture.at(number)).unwrap();
            let new = format!("changed! {number:04}").into_bytes();
            if number % 3 == 0 {
                let mut map = Mapping::new(&file, 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
                map.write(0, &new);
            } else {
                file.write_all_at(&new, 0).unwrap();
            }
            changed[number].store(true, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(opened.load(Ordering::Relaxed) > 0);
    for number in 0..files {
        let expected = [format!("changed! {number:04}").as_bytes(), &original(number)[13..]].concat();
        assert!(fs::read(fixture.at(number)).unwrap() == expected, "f{number}");
    }
    fixture.check_lower();
}

/// After the kernel has forgotten both nodes of a file, the file has its original node again.
fn forgotten_nodes_return_to_the_original(transport: Transport) {
    let mut fixture = Fixture::new(transport, 1);
    for round in 0..3 {
        let reader = File::open(fixture.at(0)).unwrap();
        let first = read_at_start(&reader);
        OpenOptions::new()
            .write(true)
            .open(fixture.at(0))
            .unwrap()
            .write_all_at(format!("{round}").as_bytes(), 0)
            .unwrap();
        assert_eq!(read_at_start(&reader)[1..], first[1..]);
        drop(reader);
        drop_caches();
        assert!(fs::read(fixture.at(0)).unwrap().starts_with(format!("{round}").as_bytes()));
    }
    let ino = fs::metadata(fixture.at(0)).unwrap().ino();
    fixture.union.remount();
    assert_eq!(fs::metadata(fixture.at(0)).unwrap().ino(), ino);
    fixture.check_lower();
}

on_both_transports!(
    reads_of_read_only_branches_bypass_the_server,
    without_passthrough_readers_see_changes,
    readers_keep_the_original_and_new_opens_see_changes,
    hard_links_and_reopened_descriptors,
    concurrent_readers_and_writers,
    forgotten_nodes_return_to_the_original,
);
