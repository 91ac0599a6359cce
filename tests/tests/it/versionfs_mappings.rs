//! versionfs, mounted: memory mappings by which programs write to a file without the layer.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use strata_tests::mapping::Mapping;
use strata_tests::versions::{command, contents, keep_all, list};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

const SIZE: usize = 5 * 4096;

/// How a program got a mapping of the host file.
#[derive(Clone, Copy, Debug)]
enum Mapper {
    /// It created the file.
    Creator,
    /// Another one had opened the file for reading.
    BesideReader,
}

/// A change of the file at a path.
type Change = fn(&Path);

fn content() -> Vec<u8> {
    vec![b'a'; SIZE]
}

/// Makes a file, and maps it. The returned files are to be kept.
fn map(mapper: Mapper, path: &Path, closes: bool) -> (Mapping, Vec<File>) {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let (file, mut kept) = match mapper {
        Mapper::Creator => {
            let file = options.create_new(true).open(path).unwrap();
            file.write_all_at(&content(), 0).unwrap();
            (file, Vec::new())
        }
        Mapper::BesideReader => {
            fs::write(path, content()).unwrap();
            // The layer allows passthrough again when it knows that the file was closed.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let reader = File::open(path).unwrap();
            (options.open(path).unwrap(), vec![reader])
        }
    };
    let mut mapping = Mapping::new(&file, SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    // A page that is writable already changes without a further time stamp.
    mapping.write(2 * 4096, b"a");
    if closes {
        drop(file);
        // The server learns of it later.
        std::thread::sleep(std::time::Duration::from_millis(50));
    } else {
        kept.push(file);
    }
    (mapping, kept)
}

/// Versions keep what the file was, whatever a mapping writes afterwards.
fn mapped_writes_change_no_version(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.ext4("disk", 64).join("lower");
    fs::create_dir(&lower).unwrap();
    let options = format!("{},storage=sparse", keep_all(&sandbox));
    let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &sandbox.path("m"));
    let changes: [(&str, Change); 6] = [
        ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap()),
        ("write", |path| OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"W", 4096).unwrap()),
        ("truncate", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(3 * 4096).unwrap()),
        ("unlink", |path| fs::remove_file(path).unwrap()),
        ("rename", |path| {
            fs::rename(path, path.with_extension("renamed")).unwrap();
            let file = OpenOptions::new().read(true).write(true).open(path.with_extension("renamed")).unwrap();
            file.write_all_at(b"W", 4096).unwrap();
        }),
        ("replace", |path| {
            let new = path.with_extension("new");
            fs::write(&new, "new").unwrap();
            fs::rename(new, path).unwrap();
        }),
    ];
    for mapper in [Mapper::Creator, Mapper::BesideReader] {
        for closes in [true, false] {
            for (change, run) in changes {
                let case = format!("{mapper:?}-{closes}-{change}");
                let path: PathBuf = mounted.path(&case);
                let (mut mapping, kept) = map(mapper, &path, closes);
                run(&path);
                mapping.write(2 * 4096, b"MMM");
                // A file that is being created has no past, unless its name goes.
                let has_past =
                    !matches!(mapper, Mapper::Creator) || closes || ["unlink", "rename", "replace"].contains(&change);
                let versions = contents(mounted.dir(), &case);
                assert!(!has_past || !versions.is_empty(), "{case}: {:?}", list(mounted.dir(), &case));
                for (at, version) in versions.iter().enumerate() {
                    assert!(*version == content(), "{case}: version {at} of {:?}", list(mounted.dir(), &case));
                }
                drop((mapping, kept));
            }
        }
    }
}

/// Once the mapping is gone, a version takes only the blocks that change.
fn versions_are_small_again(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.ext4("disk", 64).join("lower");
    fs::create_dir(&lower).unwrap();
    let options = format!("{},storage=sparse", keep_all(&sandbox));
    let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &sandbox.path("m"));
    let (mapping, kept) = map(Mapper::Creator, &mounted.path("f"), true);
    let write = |byte: &[u8]| {
        let file = OpenOptions::new().write(true).open(mounted.path("f")).unwrap();
        file.write_all_at(byte, 4096).unwrap();
        drop(file);
        // The server learns of the close later.
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    write(b"1");
    drop((mapping, kept));
    write(b"2");
    let letters: String = list(mounted.dir(), "f").iter().map(|version| version.letter).collect();
    assert_eq!(letters, "fs");
}

/// The copy that is made when a file is opened for writing beside a reader goes if nothing changed.
/// The version before it then takes bytes from the head again, whose time has changed.
fn a_needless_copy_goes(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.ext4("disk", 64).join("lower");
    fs::create_dir(&lower).unwrap();
    let options = format!("{},storage=sparse", keep_all(&sandbox));
    let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &sandbox.path("m"));
    // The server learns of a close later.
    let pause = || std::thread::sleep(std::time::Duration::from_millis(50));
    let letters = |name: &str| list(mounted.dir(), name).iter().map(|version| version.letter).collect::<String>();
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(mounted.path(name)).unwrap();
    // If the kernel closes its own file long after it has told the server, a copy stays.
    let (name, reader) = (0..10)
        .find_map(|attempt| {
            let name = format!("f{attempt}");
            fs::write(mounted.path(&name), content()).unwrap();
            open(&name).write_all_at(b"b", 4096).unwrap();
            pause();
            let reader = File::open(mounted.path(&name)).unwrap();
            let file = open(&name);
            file.write_all_at(b"a", 0).unwrap();
            let is_made = letters(&name) == "sf";
            drop(file);
            pause();
            (is_made && letters(&name) == "s").then_some((name, reader))
        })
        .expect("a copy that goes");
    assert!(contents(mounted.dir(), &name) == [content()]);
    // A mapping that is still there keeps the copy, which can't be discarded either.
    let file = open(&name);
    let mut mapping = Mapping::new(&file, SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    drop(file);
    pause();
    let number = list(mounted.dir(), &name)[1].number;
    let discard = || command(mounted.dir(), "versionfs.discard", &format!("{name} {number}"));
    assert_eq!(discard().unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    mapping.write(3 * 4096, b"m");
    let mut before = content();
    before[4096] = b'b';
    assert!(contents(mounted.dir(), &name) == [content(), before]);
    drop((mapping, reader));
    discard().unwrap();
    assert!(contents(mounted.dir(), &name) == [content()]);
}

on_both_transports!(mapped_writes_change_no_version, versions_are_small_again, a_needless_copy_goes);
