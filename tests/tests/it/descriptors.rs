//! Descriptor limits: one user's open files leave enough descriptors for other users.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use strata_tests::user::{OTHER, USER, as_user};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

/// Returns the number of opens of one inode: nearly the test's own limit.
fn many() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let all = limit.maximum.unwrap_or(20_200).min(20_200);
    assert!(all > 3200, "the hard limit of descriptors is {all}");
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(all), ..limit }).unwrap();
    usize::try_from(all).unwrap() - 200
}

/// Mounts a union whose server is limited to 1,024 descriptors. Returns it and its read-write
/// branch.
fn union(sandbox: &Sandbox, transport: Transport) -> (Mounted, PathBuf) {
    let (rw, ro) = (sandbox.dir("rw"), sandbox.dir("ro"));
    fs::create_dir(ro.join("many")).unwrap();
    fs::write(ro.join("lower"), "from below").unwrap();
    (0..2000).for_each(|i| fs::write(ro.join(format!("many/{i}")), i.to_string()).unwrap());
    fs::write(rw.join("upper"), "in place").unwrap();
    (Mounted::with_limit(Spec::union(&rw, &ro, transport), &sandbox.path("u"), "-n 1024"), rw)
}

/// Opens files with `open` until it fails.
fn open_all(most: usize, open: impl Fn(usize) -> std::io::Result<File>) -> (Vec<File>, Option<std::io::Error>) {
    let mut files = Vec::new();
    for i in 0..most {
        match open(i) {
            Ok(file) => files.push(file),
            Err(error) => return (files, Some(error)),
        }
    }
    (files, None)
}

/// Performs everyday operations.
fn check_usable(mounted: &Mounted, name: &str) {
    let path = mounted.path(name);
    assert_eq!(fs::read_to_string(mounted.path("many/7")).unwrap(), "7");
    fs::write(&path, "new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    File::options().append(true).open(mounted.path("many/8")).unwrap().write_all(b"copied up").unwrap();
    assert_eq!(fs::read_dir(mounted.path("many")).unwrap().count(), 2000);
    fs::remove_file(&path).unwrap();
}

/// When one user opens many files, that user's opens fail, but not those of another user or of
/// root.
fn one_user_can_not_exhaust_descriptors(transport: Transport) {
    let sandbox = Sandbox::new();
    many();
    let (mounted, _) = union(&sandbox, transport);
    let open = |i: usize| File::open(mounted.path(format!("many/{i}")));
    let (files, error) = as_user(USER, || open_all(2000, open));
    assert_eq!(error.unwrap().raw_os_error(), Some(Errno::NFILE.raw_os_error()));
    assert!((200..400).contains(&files.len()), "{}", files.len());
    check_usable(&mounted, "by-root");
    let (others, _) = as_user(OTHER, || open_all(2000, |i| open(1999 - i)));
    assert!(others.len() >= 80, "{}", others.len());
    check_usable(&mounted, "by-root");
    // Every open file can be read.
    for (i, mut file) in files.iter().enumerate() {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert!(text.starts_with(&i.to_string()));
    }
    // RELEASE is asynchronous.
    drop((files, others));
    assert_eq!(as_user(USER, || open_all(100, open)).0.len(), 100);
    assert!(mounted.log_text().contains("out of descriptors"), "{}", mounted.log_text());
}

/// New files count like existing ones, and a refused creation leaves no file.
fn new_files_count(transport: Transport) {
    let sandbox = Sandbox::new();
    many();
    let (mounted, rw) = union(&sandbox, transport);
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(USER.uid), Some(USER.gid)).unwrap();
    let (files, error) = as_user(USER, || open_all(2000, |i| File::create(dir.join(i.to_string()))));
    assert_eq!(error.unwrap().raw_os_error(), Some(Errno::NFILE.raw_os_error()));
    assert!((200..400).contains(&files.len()), "{}", files.len());
    assert_eq!(fs::read_dir(rw.join("dir")).unwrap().count(), files.len());
    check_usable(&mounted, "by-root");
}

/// One file can be opened up to the caller's own limit, also while it is copied up.
fn opens_of_one_file_share_a_descriptor(transport: Transport) {
    let sandbox = Sandbox::new();
    let many = many();
    let (mounted, _) = union(&sandbox, transport);
    fs::write(mounted.path("many/9"), "changed").unwrap();
    for name in ["upper", "lower"] {
        let path = mounted.path(name);
        let (files, error) = as_user(USER, || open_all(many, |_| File::open(&path)));
        assert!(error.is_none(), "{name}: {} and then {error:?}", files.len());
        check_usable(&mounted, "by-root");
        File::options().append(true).open(&path).unwrap().write_all(b", and changed").unwrap();
        for mut file in files.iter().step_by(40) {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert!(text.ends_with(", and changed"), "{name}: {text}");
        }
        check_usable(&mounted, "by-root");
        drop(files);
    }
    assert!(descriptors(&mounted) < 700, "{}", descriptors(&mounted));
}

/// Files that a layer opens on behalf of a user count for that user.
fn files_opened_by_a_layer_count(transport: Transport) {
    let sandbox = Sandbox::new();
    many();
    let lower = sandbox.dir("lower");
    let mounted = Mounted::with_limit(Spec::stack("zstd / ", &lower, transport), &sandbox.path("m"), "-n 1024");
    (0..1000).for_each(|i| fs::write(mounted.path(i.to_string()), i.to_string()).unwrap());
    let (files, error) = as_user(USER, || open_all(1000, |i| File::open(mounted.path(i.to_string()))));
    assert_eq!(error.and_then(|error| error.raw_os_error()), Some(Errno::NFILE.raw_os_error()));
    assert!((200..400).contains(&files.len()), "{}", files.len());
    assert_eq!(fs::read_to_string(mounted.path("999")).unwrap(), "999");
    as_user(OTHER, || assert_eq!(fs::read_to_string(mounted.path("998")).unwrap(), "998"));
}

/// The server raises its soft limit.
fn the_server_raises_its_soft_limit(transport: Transport) {
    let sandbox = Sandbox::new();
    many();
    let lower = sandbox.dir("lower");
    (0..1500).for_each(|i| fs::write(lower.join(i.to_string()), "").unwrap());
    let mounted = Mounted::with_limit(Spec::wrap(&lower, transport), &sandbox.path("m"), "-Sn 1024");
    let (files, error) = as_user(USER, || open_all(1500, |i| File::open(mounted.path(i.to_string()))));
    assert!(error.is_none(), "{} and then {error:?}", files.len());
    assert!(descriptors(&mounted) > 1500);
}

fn descriptors(mounted: &Mounted) -> usize {
    fs::read_dir(format!("/proc/{}/fd", mounted.server())).unwrap().count()
}

on_both_transports! {
    one_user_can_not_exhaust_descriptors,
    new_files_count,
    opens_of_one_file_share_a_descriptor,
    files_opened_by_a_layer_count,
    the_server_raises_its_soft_limit,
}
