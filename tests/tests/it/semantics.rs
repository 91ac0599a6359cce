//! POSIX and Linux semantics that programs rely on and the third-party suites do not cover: on a
//! union, for files of both branches, over both transports.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, XattrFlags, fcntl_lock, flock, inotify};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use strata_tests::mapping::Mapping;
use strata_tests::process::{probe, run, sh, try_run};
use strata_tests::user::{Credentials, OTHER, ROOT, USER, as_user};
use strata_tests::{Fixture, Mounted, Rng, Sandbox, Spec, Transport, acl, on_both_transports, tree};
use testkit::names;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A reader sees the old or the new name of a file that is renamed, and never both: the directory
/// fits into one reply.
fn a_listing_during_renames_shows_one_name(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        for dir in ["merged", "alone"] {
            fs::create_dir(ro.join(dir)).unwrap();
            (0..20).for_each(|n| fs::write(ro.join(dir).join(format!("f{n}")), "").unwrap());
        }
    });
    fs::create_dir(fx.path("new")).unwrap();
    for dir in ["merged", "alone", "new"].map(|dir| fx.path(dir)) {
        fs::write(dir.join("a0"), "").unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let renames = scope.spawn(|| {
                let mut count = 0;
                while !done.load(Ordering::Relaxed) {
                    let [old, new] = [count, count + 1].map(|n| dir.join(format!("a{}", n % 7)));
                    fs::rename(old, new).unwrap();
                    count += 1;
                }
                count
            });
            let listed = || (0..2000).map(|_| names(&dir).iter().filter(|name| name.as_bytes()[0] == b'a').count());
            let wrong: Vec<_> = listed().filter(|count| *count != 1).collect();
            done.store(true, Ordering::Relaxed);
            assert!(renames.join().unwrap() > 0);
            assert_eq!(wrong, [0; 0], "{}", dir.display());
        });
    }
}

/// Names of 255 bytes, the maximum of ext4: create, remove from the read-only branch, create again,
/// rename, remount.
fn names_of_255_bytes(transport: Transport) {
    let name = |c: char| c.to_string().repeat(255);
    let (a, b, c) = (name('a'), name('b'), name('c'));
    let mut fx = Fixture::new(transport, |ro| {
        fs::write(ro.join(&a), "a").unwrap();
        fs::create_dir(ro.join(&b)).unwrap();
        fs::write(ro.join(&b).join(&a), "b/a").unwrap();
    });
    assert_eq!(fs::read_to_string(fx.path(&a)).unwrap(), "a");
    fs::remove_file(fx.path(&a)).unwrap();
    fx.remount();
    assert_eq!(names(fx.union.dir()), [&*b]);
    fs::write(fx.path(&a), "again").unwrap();
    fs::rename(fx.path(&b), fx.path(&c)).unwrap();
    fs::remove_file(fx.path(&c).join(&a)).unwrap();
    fx.remount();
    assert_eq!(fs::read_to_string(fx.path(&a)).unwrap(), "again");
    assert_eq!(names(fx.union.dir()), [&*a, &*c]);
    assert!(names(&fx.path(&c)).is_empty());
    assert_eq!(
        fs::write(fx.path(&"x".repeat(256)), "").unwrap_err().raw_os_error(),
        Some(Errno::NAMETOOLONG.raw_os_error())
    );
}

/// Returns modification and change time, requesting no other attribute.
fn times(path: &Path) -> [(i64, u32); 2] {
    let wanted = rustix::fs::StatxFlags::MTIME | rustix::fs::StatxFlags::CTIME;
    let stat = rustix::fs::statx(CWD, path, rustix::fs::AtFlags::empty(), wanted).unwrap();
    [stat.stx_mtime, stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec))
}

/// Checks that writes to a shared mapping of `file`, at `path`, update its times as they happen:
/// natively, and with passthrough.
fn check_times_of_mapped_writes(path: &Path, file: File, lower: &Path) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let mut map = Mapping::new(&file, 4096, both, MapFlags::SHARED).unwrap();
    let mut before = times(path);
    for round in 0..3 {
        testkit::tick();
        map.write(round, b"x");
        let after = times(path);
        assert!(after[0] > before[0] && after[1] > before[1], "{}, {round}: {before:?} {after:?}", path.display());
        assert_eq!(after, times(lower));
        before = after;
        // After writeback the page is clean, so that the kernel notices the next write.
        map.sync().unwrap();
    }
    // The mapping outlives the open file; the kernel does not notify the server of its end.
    drop(file);
    times(path);
    // By then, the server could have closed its file.
    std::thread::sleep(std::time::Duration::from_millis(150));
    map.write(0, b"z");
    assert!(times(path)[0] > before[0], "{}", path.display());
    assert_eq!(times(path), times(lower));
    drop(map);
    assert_eq!(times(path), times(lower));
}

fn mapped_writes_move_the_times(transport: Transport) {
    let page = vec![b'-'; 4096];
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("lower"), &page).unwrap());
    let native = fx.sandbox.ext4("native", 16);
    let rw = |path: &Path| File::options().read(true).write(true).open(path).unwrap();
    for name in ["old", "new"] {
        fs::write(native.join(name), &page).unwrap();
    }
    check_times_of_mapped_writes(&native.join("old"), rw(&native.join("old")), &native.join("old"));
    fs::write(fx.path("old"), &page).unwrap();
    times(&fx.path("old"));
    check_times_of_mapped_writes(&fx.path("old"), rw(&fx.path("old")), &fx.rw.join("old"));
    let new = File::options().read(true).write(true).create_new(true).open(fx.path("new")).unwrap();
    new.set_len(4096).unwrap();
    times(&fx.path("new"));
    check_times_of_mapped_writes(&fx.path("new"), new, &fx.rw.join("new"));
    // Copied up by the open, then passed through.
    times(&fx.path("lower"));
    check_times_of_mapped_writes(&fx.path("lower"), rw(&fx.path("lower")), &fx.rw.join("lower"));
    // After the last close, the kernel may cache the attributes briefly.
    let sent = fx.union.during(|| {
        (0..1000).for_each(|_| {
            times(&fx.path("old"));
        });
    });
    assert!(sent.get("GETATTR") < 500, "{sent:?}");
}

/// Calls `what` for each combination of mode and caller, with names such as `dir-4755-OTHER`.
fn for_each_chown(mut what: impl FnMut(&str, bool, u32, Credentials)) {
    let member = Credentials { group: Some(USER.gid), ..OTHER };
    for mode in [0o644, 0o4755, 0o2755, 0o6755, 0o4644, 0o2644, 0o6777, 0o2745] {
        for (name, who) in [("root", ROOT), ("owner", USER), ("other", OTHER), ("member", member)] {
            what(&format!("file-{mode:o}-{name}"), false, mode, who);
            what(&format!("dir-{mode:o}-{name}"), true, mode, who);
        }
    }
}

/// Creates the objects that [`for_each_chown`] names, owned by a user.
fn make_for_chown(at: &Path) {
    for_each_chown(|name, is_dir, mode, _| {
        let path = at.join(name);
        if is_dir {
            fs::create_dir(&path).unwrap();
        } else {
            fs::write(&path, "abc").unwrap();
        }
        std::os::unix::fs::chown(&path, Some(USER.uid), Some(USER.gid)).unwrap();
        chmod(&path, mode);
    });
}

/// chown(-1, -1) is allowed to every user, unless it clears set-user-id: then only to the owner.
/// Other calls that change nothing follow the same rules.
fn chown_that_changes_nothing(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("lower")).unwrap();
        make_for_chown(&ro.join("lower"));
    });
    let native = fx.sandbox.dir("native");
    fs::create_dir(fx.path("upper")).unwrap();
    make_for_chown(&native);
    make_for_chown(&fx.path("upper"));
    let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let omit = rustix::fs::Timestamps { last_access: omit, last_modification: omit };
    for_each_chown(|name, _, _, who| {
        let try_on = |dir: &Path| {
            let path = dir.join(name);
            let file = File::open(&path).unwrap();
            let calls = as_user(who, || {
                [
                    rustix::fs::chown(&path, None, None),
                    rustix::fs::chownat(CWD, &path, None, None, rustix::fs::AtFlags::SYMLINK_NOFOLLOW),
                    rustix::fs::fchown(&file, None, None),
                    rustix::fs::utimensat(CWD, &path, &omit, rustix::fs::AtFlags::empty()),
                    rustix::fs::futimens(&file, &omit),
                ]
            });
            let meta = fs::metadata(&path).unwrap();
            (calls, mode(&path), meta.uid(), meta.gid())
        };
        let expected = try_on(&native);
        for dir in ["upper", "lower"] {
            assert_eq!(try_on(&fx.path(dir)), expected, "{dir}/{name}");
        }
    });
    assert!(!fx.rw.join("lower/file-644-other").exists(), "copied up without need");
}

/// Directories deeper than `PATH_MAX`.
fn deep_directories(transport: Transport) {
    let component = "directory".repeat(20);
    let fx = Fixture::new(transport, |ro| {
        sh(
            "cd \"$1\"; for i in $(seq 60); do mkdir \"$2\"; cd -P \"$2\"; done; echo bottom > f",
            &[ro, Path::new(&component)],
        );
    });
    let go = "cd \"$1\"; for i in $(seq 60); do cd \"./$2\" 2>/dev/null; done";
    let text = sh(
        &format!("{go}; cat f; echo top > f; cat f; mkdir x; mv f x; cat x/f"),
        &[fx.union.dir(), Path::new(&component)],
    );
    assert_eq!(text, "bottom\ntop\ntop\n");
}

/// sendfile(2) and splice(2) from and to files of both branches.
fn sendfile(transport: Transport) {
    let data = Rng::new(3).bytes(500_000);
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("from"), &data).unwrap());
    let to = File::create(fx.path("to")).unwrap();
    let from = File::open(fx.path("from")).unwrap();
    let mut sent = 0;
    while sent < data.len() {
        sent += rustix::fs::sendfile(&to, &from, None, data.len() - sent).unwrap();
    }
    assert!(fs::read(fx.path("to")).unwrap() == data);
    let (out, input) = rustix::pipe::pipe().unwrap();
    let moved =
        rustix::pipe::splice(&from, Some(&mut 1000), &input, None, 4096, rustix::pipe::SpliceFlags::empty()).unwrap();
    let mut bytes = vec![0; moved];
    File::from(out).read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, data[1000..1000 + moved]);
}

/// A file system in a file of the union, through a loop device: created in a new file, read from a
/// file of the read-only branch.
fn loop_device(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        sh(
            "truncate -s 8M \"$1\"/img; mkfs.ext4 -q \"$1\"/img; mkdir /mnt/in; mount -o loop \"$1\"/img /mnt/in
             echo inside > /mnt/in/f; umount /mnt/in",
            &[ro],
        );
    });
    let read_only = "mount -o loop,ro,noload \"$1\"/img /mnt/in; cat /mnt/in/f; umount /mnt/in";
    assert_eq!(sh(read_only, &[fx.union.dir()]), "inside\n");
    let writing = "mount -o loop \"$1\"/img /mnt/in; echo more >> /mnt/in/f; umount /mnt/in";
    sh(writing, &[fx.union.dir()]);
    assert_eq!(sh(read_only, &[fx.union.dir()]), "inside\nmore\n");
    let new =
        "truncate -s 8M \"$1\"/new; mkfs.ext4 -q \"$1\"/new; mount -o loop \"$1\"/new /mnt/in; echo new > /mnt/in/g
               umount /mnt/in; e2fsck -fn \"$1\"/new >/dev/null";
    sh(new, &[fx.union.dir()]);
}

/// Programs of both branches run and see the union's path in `/proc/self/exe`. A running program
/// can't be written.
fn exec(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::copy(probe(), ro.join("old")).unwrap();
        fs::write(ro.join("script"), "#!/bin/sh\necho \"$0\"\n").unwrap();
        chmod(&ro.join("script"), 0o755);
    });
    fs::copy(probe(), fx.path("new")).unwrap();
    for name in ["old", "new"] {
        let output = run(Command::new(fx.path(name)).arg("exe"));
        assert_eq!(output.trim(), fx.path(name).to_str().unwrap());
    }
    assert_eq!(run(&mut Command::new(fx.path("script"))).trim(), fx.path("script").to_str().unwrap());
    // Copied up while its pages may still be cached.
    chmod(&fx.path("old"), 0o700);
    assert_eq!(run(Command::new(fx.path("old")).arg("exe")).trim(), fx.path("old").to_str().unwrap());
    // A program that is removed and replaced while it runs continues to run.
    let text = "cp /bin/sleep \"$1\"/s; \"$1\"/s 5 & sleep 0.1; rm \"$1\"/s; echo x > \"$1\"/s; kill $!; wait $! || true; cat \"$1\"/s";
    assert_eq!(sh(text, &[fx.union.dir()]), "x\n");
    // Without execute permission it does not run.
    chmod(&fx.path("new"), 0o644);
    assert_eq!(Command::new(fx.path("new")).status().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

/// O_DIRECT is coherent with the page cache, for reads and writes.
fn o_direct(transport: Transport) {
    let data = Rng::new(4).bytes(64 * 1024);
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), &data).unwrap());
    fs::write(fx.path("mine"), &data).unwrap();
    for name in ["f", "mine"] {
        let path = fx.path(name);
        let cached = File::open(&path).unwrap();
        let mut seen = vec![0; 4096];
        cached.read_exact_at(&mut seen, 8192).unwrap();
        let script = "dd if=\"$1\" iflag=direct bs=4096 count=16 status=none | md5sum
                      head -c 8192 /dev/zero | tr '\\0' Z | dd of=\"$1\" oflag=direct conv=notrunc bs=4096 seek=2 status=none iflag=fullblock";
        let sum = sh(script, std::slice::from_ref(&path));
        assert_eq!(sum.split(' ').next(), sh("md5sum < \"$1\"", &[fx.ro.join("f")]).split(' ').next(), "{name}");
        cached.read_exact_at(&mut seen, 8192).unwrap();
        assert!(seen.iter().all(|b| *b == b'Z'), "{name}: O_DIRECT writes are not visible through the page cache");
    }
}

/// inotify on a merged directory reports the changes in it.
fn inotify_on_merged_directory(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("d")).unwrap();
        fs::write(ro.join("d/old"), "").unwrap();
        fs::write(ro.join("d/other"), "").unwrap();
    });
    fs::write(fx.path("d/here"), "").unwrap();
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, fx.path("d"), inotify::WatchFlags::ALL_EVENTS).unwrap();
    fs::write(fx.path("d/new"), "x").unwrap();
    chmod(&fx.path("d/old"), 0o600);
    fs::rename(fx.path("d/old"), fx.path("d/renamed")).unwrap();
    fs::remove_file(fx.path("d/other")).unwrap();
    let mut seen = BTreeSet::new();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    while let Ok(event) = reader.next() {
        let name = event.file_name().map(|n| n.to_str().unwrap().to_owned()).unwrap_or_default();
        for flag in event.events().iter_names() {
            seen.insert(format!("{} {name}", flag.0));
        }
    }
    for want in [
        "CREATE new",
        "MODIFY new",
        "CLOSE_WRITE new",
        "ATTRIB old",
        "MOVED_FROM old",
        "MOVED_TO renamed",
        "DELETE other",
    ] {
        assert!(seen.contains(want), "{want} is missing from {seen:?}");
    }
    assert!(!seen.iter().any(|s| s.contains(".wh.")), "whiteouts are reported: {seen:?}");
}

/// flock(2) and POSIX locks conflict between processes, even if the file was copied up between the
/// two opens.
fn locks_between_processes(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), "text").unwrap());
    let ask = |how: &str| run(Command::new(probe()).arg(how).arg(fx.path("f"))).trim().to_owned();
    let reader = File::open(fx.path("f")).unwrap();
    flock(&reader, FlockOperation::LockExclusive).unwrap();
    assert_eq!(ask("flock"), format!("{:?}", Errno::AGAIN));
    let writer = File::options().read(true).write(true).open(fx.path("f")).unwrap();
    writer.write_all_at(b"TEXT", 0).unwrap();
    assert_eq!(ask("flock"), format!("{:?}", Errno::AGAIN));
    flock(&reader, FlockOperation::Unlock).unwrap();
    assert_eq!(ask("flock"), "got");
    fcntl_lock(&writer, FlockOperation::LockExclusive).unwrap();
    assert_eq!(ask("posix"), format!("{:?}", Errno::AGAIN));
    assert_eq!(ask("flock"), "got");
    // POSIX locks are released when any descriptor of the file is closed.
    drop(reader);
    assert_eq!(ask("posix"), "got");
}

/// FIFOs and sockets of both branches work.
fn fifos_and_sockets(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        sh("mkfifo \"$1\"/old", &[ro]);
    });
    sh("mkfifo \"$1\"/new", &[fx.union.dir()]);
    for name in ["old", "new"] {
        let script = "(echo through > \"$1\") & read -r word < \"$1\"; wait; echo \"$word\"";
        assert_eq!(sh(script, &[fx.path(name)]), "through\n", "{name}");
    }
    let listener = UnixListener::bind(fx.path("socket")).unwrap();
    let mut client = UnixStream::connect(fx.path("socket")).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut output = String::new();
    listener.accept().unwrap().0.read_to_string(&mut output).unwrap();
    assert_eq!(output, "hello");
    chmod(&fx.path("socket"), 0o700);
    UnixStream::connect(fx.path("socket")).unwrap();
    fs::remove_file(fx.path("old")).unwrap();
    assert_eq!(names(fx.union.dir()), ["new", "socket"]);
}

/// statfs(2) describes the writable file system, and counts two branches on one file system once.
fn statfs(transport: Transport) {
    let fx = Fixture::new(transport, |_| {});
    let [all, rw, ro] = [fx.union.dir(), &fx.rw, &fx.ro].map(|p| rustix::fs::statvfs(p).unwrap());
    let bytes = |s: &rustix::fs::StatVfs| s.f_blocks * s.f_frsize;
    assert_eq!(bytes(&all), bytes(&rw) + bytes(&ro), "two file systems are added up");
    assert_eq!(all.f_namemax, 255);
    let sandbox = &fx.sandbox;
    let branches = ["x", "y"].map(|n| fx.rw.with_file_name(n));
    branches.iter().for_each(|b| fs::create_dir(b).unwrap());
    let union = strata_tests::Spec::union(&branches[0], &branches[1], transport);
    let union = strata_tests::Mounted::new(union, &sandbox.path("u2"));
    let one = rustix::fs::statvfs(union.dir()).unwrap();
    assert_eq!(bytes(&one), bytes(&rw), "one file system is counted once");
    // Programs rely on the difference between two calls.
    let before = rustix::fs::statvfs(fx.union.dir()).unwrap().f_bavail;
    let file = File::create(fx.path("big")).unwrap();
    file.write_all_at(&vec![1; 8 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let after = rustix::fs::statvfs(fx.union.dir()).unwrap();
    let used = (before - after.f_bavail) * after.f_frsize;
    assert!((8 << 20..9 << 20).contains(&used), "{used} bytes used after writing 8 MiB");
}

/// Returns the entries from `offset` on, each with its next offset, read with a new open file.
fn entries_from(dir: &Path, offset: i64) -> Vec<(Vec<u8>, i64)> {
    let fd = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut stream = rustix::fs::Dir::new(fd).unwrap();
    stream.seek(offset).unwrap();
    let mut out = Vec::new();
    while let Some(entry) = stream.read() {
        let entry = entry.unwrap();
        out.push((entry.file_name().to_bytes().to_vec(), entry.offset()));
    }
    out
}

/// readdir resumes at any offset with another open file while entries are added and removed. It
/// returns every permanent entry exactly once.
fn readdir_resumes(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("d")).unwrap();
        (0..300).for_each(|i| fs::write(ro.join(format!("d/old{i}")), "").unwrap());
    });
    (0..300).for_each(|i| fs::write(fx.path(&format!("d/new{i}")), "").unwrap());
    (0..50).for_each(|i| fs::remove_file(fx.path(&format!("d/old{i}"))).unwrap());
    for pass in 0..2 {
        let dir = fx.path("d");
        let all = entries_from(&dir, 0);
        let unique: BTreeSet<_> = all.iter().map(|e| &e.0).collect();
        assert_eq!((all.len(), unique.len()), (552, 552), "with . and ..");
        for cut in [1, 2, 3, 100, 299, 400, 551] {
            let rest = entries_from(&dir, all[cut - 1].1);
            assert!(rest == all[cut..], "pass {pass}: from the offset after entry {cut}");
        }
        assert!(entries_from(&dir, all[551].1).is_empty());
        if pass == 0 {
            fx.remount();
        }
    }
    // Entries added and removed meanwhile don't affect the permanent ones.
    let dir = fx.path("d");
    let mut seen = BTreeSet::new();
    let mut offset = 0;
    for round in 0.. {
        let rest = entries_from(&dir, offset);
        let Some((name, next)) = rest.first().cloned() else { break };
        assert!(seen.insert(name), "an entry is listed twice");
        offset = next;
        if round % 10 == 0 && round < 400 {
            fs::remove_file(dir.join(format!("new{}", round / 2))).unwrap();
            fs::write(dir.join(format!("more{round}")), "").unwrap();
        }
    }
    for i in 50..300 {
        assert!(seen.contains(format!("old{i}").as_bytes()), "old{i}");
    }
    for i in (200..300).chain((0..200).filter(|i| i % 5 != 0)) {
        assert!(seen.contains(format!("new{i}").as_bytes()), "new{i}");
    }
}

/// rewinddir(3) makes newly created entries visible.
fn rewinddir_returns_new_entries(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::create_dir(ro.join("d")).unwrap());
    let fd = rustix::fs::open(fx.path("d"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut stream = rustix::fs::Dir::new(fd).unwrap();
    let mut count = || {
        stream.rewind();
        let mut n = 0;
        while let Some(entry) = stream.read() {
            entry.unwrap();
            n += 1;
        }
        n
    };
    assert_eq!(count(), 2);
    fs::write(fx.path("d/f"), "").unwrap();
    assert_eq!(count(), 3);
    fs::create_dir(fx.path("d/g")).unwrap();
    assert_eq!(count(), 4);
    fs::remove_file(fx.path("d/f")).unwrap();
    assert_eq!(count(), 3);
}

/// An ordinary user's write clears set-user-id and set-group-id, on both branches, with and without
/// passthrough. The superuser's write keeps them.
fn writes_of_ordinary_users_clear_set_id_bits(transport: Transport) {
    let make = |path: &Path| {
        fs::write(path, "program").unwrap();
        rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(0)), Some(rustix::fs::Gid::from_raw(1000))).unwrap();
        chmod(path, 0o6777);
    };
    let fx = Fixture::new(transport, |ro| {
        ["old1", "old2", "old3", "old4", "old5"].iter().for_each(|n| make(&ro.join(n)));
    });
    ["new1", "new2", "new3", "new4", "new5"].iter().for_each(|n| make(&fx.path(n)));
    for name in ["old", "new"] {
        let path = |i: u32| fx.path(&format!("{name}{i}"));
        as_user(USER, || File::options().append(true).open(path(1)).unwrap().write_all(b"+").unwrap());
        assert_eq!(mode(&path(1)), 0o777, "{name}: written");
        as_user(USER, || File::options().write(true).open(path(2)).unwrap().set_len(2).unwrap());
        assert_eq!(mode(&path(2)), 0o777, "{name}: truncated");
        as_user(USER, || drop(File::options().write(true).truncate(true).open(path(5)).unwrap()));
        assert_eq!(mode(&path(5)), 0o777, "{name}: emptied while opening");
        // By the owner, through a descriptor that root opened.
        let file = File::options().write(true).open(path(3)).unwrap();
        as_user(USER, || file.write_all_at(b"x", 0).unwrap());
        assert_eq!(mode(&path(3)), 0o777, "{name}: written through root's descriptor");
        File::options().append(true).open(path(4)).unwrap().write_all(b"+").unwrap();
        assert_eq!(mode(&path(4)), 0o6777, "{name}: written by root");
        // chown clears them as well.
        rustix::fs::chown(path(4), Some(rustix::fs::Uid::from_raw(1)), None).unwrap();
        assert_eq!(mode(&path(4)), 0o777, "{name}: given away");
    }
}

/// chown(-1, -1) by a user without write permission does not clear set-user-id.
fn chown_without_ids_keeps_set_id_bits(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::copy("/bin/true", ro.join("old")).unwrap();
        chmod(&ro.join("old"), 0o4755);
    });
    fs::copy("/bin/true", fx.path("new")).unwrap();
    chmod(&fx.path("new"), 0o4755);
    for name in ["old", "new"] {
        // Natively this fails with EPERM; success is allowed if nothing changes.
        let _ = as_user(USER, || rustix::fs::chown(fx.path(name), None, None));
        assert_eq!(mode(&fx.path(name)), 0o4755, "{name}");
    }
}

/// A running program can't be written, nor truncated by an open.
fn running_programs_are_not_changed(transport: Transport) {
    let fx = Fixture::new(transport, |ro| assert!(fs::copy("/bin/sleep", ro.join("old")).is_ok()));
    fs::copy("/bin/sleep", fx.path("new")).unwrap();
    for name in ["old", "new"] {
        let mut child = Command::new(fx.path(name)).arg("60").spawn().unwrap();
        for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC, OFlags::WRONLY | OFlags::TRUNC] {
            let opened = rustix::fs::open(fx.path(name), flags, Mode::empty()).map(drop);
            assert_eq!(opened, Err(Errno::TXTBSY), "{name}: {flags:?}");
            assert!(fs::metadata(fx.path(name)).unwrap().len() > 10_000, "{name} was truncated by {flags:?}");
        }
        assert!(child.try_wait().unwrap().is_none(), "{name} has ended");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Setting the default ACL of a directory keeps its set-group-id bit even if the caller is not in
/// its group; setting the access ACL clears it.
fn acls_and_setgid(transport: Transport) {
    let make = |dir: &Path| {
        fs::create_dir(dir).unwrap();
        rustix::fs::chown(dir, Some(rustix::fs::Uid::from_raw(1000)), Some(rustix::fs::Gid::from_raw(2000))).unwrap();
        chmod(dir, 0o2777);
    };
    let fx = Fixture::new(transport, |ro| make(&ro.join("old")));
    make(&fx.path("new"));
    let acl = acl::encode(7, 5, 4, 7, (1001, 7), (2000, 5));
    for name in ["old", "new"] {
        let set = |which: &str| {
            as_user(USER, || rustix::fs::setxattr(fx.path(name), which, &acl, XattrFlags::empty()).unwrap());
            mode(&fx.path(name)) & 0o7000
        };
        assert_eq!((set(acl::DEFAULT), set(acl::ACCESS)), (0o2000, 0), "{name}");
    }
}

/// File capabilities work, survive a change of attributes with its copy-up, and are removed by a
/// write.
fn file_capabilities(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        for name in ["a", "b"] {
            fs::copy("/bin/cat", ro.join(name)).unwrap();
            run(Command::new("setcap").arg("cap_dac_read_search=ep").arg(ro.join(name)));
        }
    });
    let caps = |name: &str| run(Command::new("getcap").arg(fx.path(name)));
    let secret = fx.sandbox.path("secret");
    fs::write(&secret, "secret").unwrap();
    chmod(&secret, 0o600);
    let read = |name: &str| {
        let mut command = Command::new(fx.path(name));
        std::os::unix::process::CommandExt::uid(&mut command, 1000);
        try_run(command.arg(&secret)).status.success()
    };
    assert!(caps("a").contains("cap_dac_read_search=ep") && read("a"));
    rustix::fs::utimensat(CWD, fx.path("a"), &now(), rustix::fs::AtFlags::empty()).unwrap();
    assert!(!fx.rw.join("a").exists());
    assert!(caps("a").contains("cap_dac_read_search=ep") && read("a"), "after the copy-up of attributes");
    drop(File::options().append(true).open(fx.path("a")).unwrap());
    assert!(fx.rw.join("a").exists());
    assert!(caps("a").contains("cap_dac_read_search=ep") && read("a"), "after the copy-up of data");
    for name in ["a", "b"] {
        File::options().append(true).open(fx.path(name)).unwrap().write_all(b"+").unwrap();
        assert!(caps(name).is_empty(), "{name} was written: {}", caps(name));
        assert!(!read(name), "{name} was written");
    }
    run(Command::new("setcap").arg("cap_dac_read_search=ep").arg(fx.path("b")));
    assert!(read("b"));
}

fn now() -> rustix::fs::Timestamps {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0x3fff_ffff };
    rustix::fs::Timestamps { last_access: now, last_modification: now }
}

/// set-group-id directories, umask and default ACLs have the native effect on new entries, in
/// directories of both branches.
fn inheritance_of_new_entries(transport: Transport) {
    let prepare = |dir: &Path| {
        for name in ["plain", "setgid", "default"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        rustix::fs::chown(dir.join("setgid"), None, Some(rustix::fs::Gid::from_raw(2000))).unwrap();
        chmod(&dir.join("setgid"), 0o2777);
        chmod(&dir.join("plain"), 0o777);
        let acl = acl::encode(7, 5, 0, 7, (1001, 7), (2000, 5));
        rustix::fs::setxattr(dir.join("default"), acl::DEFAULT, &acl, XattrFlags::empty()).unwrap();
        chmod(&dir.join("default"), 0o777);
    };
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("old")).unwrap();
        prepare(&ro.join("old"));
    });
    let native = fx.sandbox.path("rw/native");
    for dir in [fx.path("new"), native.clone()] {
        fs::create_dir(&dir).unwrap();
        prepare(&dir);
    }
    let make = |dir: &Path| {
        let umask = rustix::process::umask(Mode::from_raw_mode(0o027));
        for sub in ["plain", "setgid", "default"] {
            as_user(USER, || {
                let at = |name: &str| dir.join(sub).join(name);
                fs::write(at("file"), "").unwrap();
                fs::create_dir(at("dir")).unwrap();
                fs::create_dir(at("dir/dir")).unwrap();
                File::options().write(true).create(true).truncate(true).mode(0o6777).open(at("suid")).unwrap();
                rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o666), 0)
                    .unwrap();
                symlink("x", at("link")).unwrap();
            });
        }
        rustix::process::umask(umask);
        let mut seen = tree::read(dir);
        for node in seen.values_mut() {
            // Compares the attributes that concern permissions only.
            *node = tree::Node { ino: 0, btime: (0, 0), mtime: (0, 0), atime: (0, 0), dev: (0, 0), ..node.clone() };
        }
        seen
    };
    let want = make(&native);
    for name in ["old", "new"] {
        let got = make(&fx.path(name));
        let difference = tree::difference(&want, &got, tree::Times::Exact);
        assert!(difference.is_empty(), "{name}: {difference}");
    }
}

/// A user with write permission for a file but not for its directory has it copied up; a user
/// without write permission for the file does not.
fn copy_up_follows_the_files_permissions(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("d")).unwrap();
        for (name, mode) in [("d/writable", 0o666), ("d/readable", 0o644), ("d/secret", 0o600)] {
            fs::write(ro.join(name), "old").unwrap();
            chmod(&ro.join(name), mode);
        }
    });
    as_user(USER, || {
        let denied = |e: std::io::Error| assert_eq!(e.kind(), std::io::ErrorKind::PermissionDenied);
        File::options().append(true).open(fx.path("d/writable")).unwrap().write_all(b"+").unwrap();
        denied(File::options().append(true).open(fx.path("d/readable")).unwrap_err());
        denied(File::open(fx.path("d/secret")).unwrap_err());
        denied(fs::write(fx.path("d/new"), "").unwrap_err());
        denied(fs::remove_file(fx.path("d/writable")).unwrap_err());
        denied(fs::set_permissions(fx.path("d/readable"), fs::Permissions::from_mode(0o666)).unwrap_err());
    });
    assert_eq!(fs::read_to_string(fx.path("d/writable")).unwrap(), "old+");
    assert_eq!(fs::metadata(fx.rw.join("d/writable")).unwrap().uid(), 0);
    assert!(!fx.rw.join("d/readable").exists());
}

/// Files that are unlinked or replaced while open remain usable through their descriptors.
fn open_files_outlive_their_names(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::write(ro.join("old"), "old").unwrap();
        fs::write(ro.join("victim"), "victim").unwrap();
        fs::create_dir(ro.join("d")).unwrap();
    });
    fs::write(fx.path("new"), "new").unwrap();
    let open = |name: &str| File::options().read(true).write(true).open(fx.path(name)).unwrap();
    let reader = File::open(fx.path("old")).unwrap();
    let (old, new, victim) = (open("old"), open("new"), File::open(fx.path("victim")).unwrap());
    fs::remove_file(fx.path("old")).unwrap();
    fs::remove_file(fx.path("new")).unwrap();
    fs::write(fx.path("fresh"), "fresh").unwrap();
    fs::rename(fx.path("fresh"), fx.path("victim")).unwrap();
    old.write_all_at(b"OLD+", 0).unwrap();
    new.write_all_at(b"NEW+", 0).unwrap();
    let text = |file: &File| {
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(
        (text(&old), text(&reader), text(&new), text(&victim)),
        ("OLD+".into(), "OLD+".into(), "NEW+".into(), "victim".into())
    );
    assert_eq!((old.metadata().unwrap().nlink(), victim.metadata().unwrap().nlink()), (0, 0));
    old.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(reader.metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(names(fx.union.dir()), ["d", "victim"]);
    // A directory that is removed while it is open or a process's working directory.
    let dir = File::open(fx.path("d")).unwrap();
    fs::remove_dir(fx.path("d")).unwrap();
    let mut stream = rustix::fs::Dir::read_from(&dir).unwrap();
    assert!(stream.read().is_none());
    let mode = Mode::from_raw_mode(0o644);
    assert_eq!(rustix::fs::openat(&dir, "f", OFlags::CREATE | OFlags::WRONLY, mode).map(drop), Err(Errno::NOENT));
}

/// Timestamps with nanoseconds, before 1970 and after 2038.
fn times_to_the_nanosecond(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| fs::write(ro.join("old"), "").unwrap());
    fs::write(fx.path("new"), "").unwrap();
    let cases = [(0, 1), (-86_400, 999_999_999), (4_294_967_296, 123_456_789), (1_700_000_000, 0)];
    for (i, (sec, nsec)) in cases.into_iter().enumerate() {
        for name in ["old", "new"] {
            let time = |s| rustix::fs::Timespec { tv_sec: s, tv_nsec: nsec };
            let times = rustix::fs::Timestamps { last_access: time(sec + 1), last_modification: time(sec) };
            rustix::fs::utimensat(CWD, fx.path(name), &times, rustix::fs::AtFlags::empty()).unwrap();
            for remounted in [false, true] {
                let m = fs::metadata(fx.path(name)).unwrap();
                let got = (m.mtime(), m.mtime_nsec(), m.atime(), m.atime_nsec());
                assert_eq!(got, (sec, nsec, sec + 1, nsec), "case {i} of {name}, remounted: {remounted}");
                if !remounted {
                    fx.remount();
                }
            }
        }
    }
}

/// SEEK_DATA, SEEK_HOLE, fallocate(2) and holes in files of both branches.
fn holes(transport: Transport) {
    let make = |path: &Path| {
        let file = File::create(path).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[2; 4096], 1 << 20).unwrap();
    };
    let fx = Fixture::new(transport, |ro| make(&ro.join("old")));
    make(&fx.path("new"));
    for name in ["old", "new"] {
        for copied_up in [false, true] {
            let file = File::open(fx.path(name)).unwrap();
            let seek = |from| rustix::fs::seek(&file, from);
            assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096), "{name}");
            assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(1 << 20), "{name}");
            assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096), "{name}");
            assert_eq!(seek(rustix::fs::SeekFrom::Data((1 << 20) + 4096)), Err(Errno::NXIO), "{name}");
            drop(file);
            if !copied_up {
                chmod(&fx.path(name), 0o600);
            }
        }
        assert_eq!(fs::metadata(fx.path(name)).unwrap().blocks(), 16, "{name}");
        let file = File::options().read(true).write(true).open(fx.path(name)).unwrap();
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 4096).unwrap();
        let mut bytes = [9; 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes, file.metadata().unwrap().blocks()), ([0; 10], 8), "{name}");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 2 << 20, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (2 << 20) + 4096, "{name}");
    }
}

/// Two threads in one directory: each sees the other's changes at once.
fn two_threads(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("d")).unwrap();
        (0..200).for_each(|i| fs::write(ro.join(format!("d/f{i}")), "old").unwrap());
    });
    let work = |n: usize, dir: PathBuf| {
        for i in (0..200).filter(|i| i % 2 == n) {
            let path = dir.join(format!("f{i}"));
            File::options().append(true).open(&path).unwrap().write_all(b"+").unwrap();
            fs::rename(&path, dir.join(format!("g{i}"))).unwrap();
            fs::write(dir.join(format!("h{n}-{i}")), "new").unwrap();
            if i % 4 == n {
                fs::remove_file(dir.join(format!("g{i}"))).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1, fx.path("d")));
        work(0, fx.path("d"));
        other.join().unwrap();
    });
    assert_eq!(names(&fx.path("d")).len(), 300);
    assert!((0..200).filter(|i| i % 4 > 1).all(|i| fs::read_to_string(fx.path(&format!("d/g{i}"))).unwrap() == "old+"));
}

/// File systems mounted later inside a branch are not part of the union, even if mounts are shared
/// and the mount propagates.
fn mounts_made_later_in_a_branch_are_excluded(transport: Transport) {
    let fx = Fixture::new(transport, |_| {});
    let [x, y] = ["x", "y"].map(|n| fx.rw.with_file_name(n));
    for branch in [&x, &y] {
        fs::create_dir_all(branch.join("d")).unwrap();
        run(Command::new("mount").arg("--bind").args([branch, branch]));
        run(Command::new("mount").arg("--make-shared").arg(branch));
    }
    fs::write(y.join("d/below"), "").unwrap();
    let union = strata_tests::Spec::union(&x, &y, transport);
    let union = strata_tests::Mounted::new(union, &fx.sandbox.path("u2"));
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(y.join("d")));
    fs::write(y.join("d/above"), "").unwrap();
    // A server that followed this mount would wait for its own reply.
    run(Command::new("mount").arg("--bind").arg(union.dir()).arg(x.join("d")));
    assert_eq!(names(&union.dir().join("d")), ["below"]);
    fs::write(union.dir().join("d/new"), "").unwrap();
    run(Command::new("umount").arg(x.join("d")));
    assert_eq!(names(&x.join("d")), ["new"]);
}

/// A file created directly in the branch can be opened by a caller that tries to create it,
/// permissions permitting, although the kernel has a negative entry for its name.
fn files_created_below_can_be_opened_despite_a_negative_entry(transport: Transport) {
    let fx = Fixture::new(transport, |_| {});
    fs::create_dir(fx.path("d")).unwrap();
    chmod(&fx.path("d"), 0o777);
    for i in 0..32 {
        assert!(!fx.path(&format!("d/missing{i}")).exists());
    }
    for (name, mode) in [("shared", 0o666), ("secret", 0o600), ("unseen", 0o666)] {
        assert!(name == "unseen" || !fx.path("d").join(name).exists());
        fs::write(fx.rw.join("d").join(name), "theirs").unwrap();
        chmod(&fx.rw.join("d").join(name), mode);
    }
    fs::create_dir(fx.rw.join("d/sub")).unwrap();
    let open =
        |name: &str| File::options().read(true).write(true).create(true).truncate(false).open(fx.path("d").join(name));
    as_user(USER, || {
        let exclusive = File::create_new(fx.path("d/shared")).unwrap_err();
        assert_eq!(exclusive.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(open("secret").unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    });
    for name in ["shared", "unseen"] {
        let mut text = String::new();
        open(name).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "theirs", "{name}");
    }
    fs::create_dir_all(fx.path("d/sub/below")).unwrap();
}

/// poll(2) on a file reports it ready.
fn poll_reports_ready(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), "text").unwrap());
    let file = File::open(fx.path("f")).unwrap();
    let mut fds = [PollFd::new(&file, PollFlags::IN | PollFlags::OUT)];
    let wait = Timespec { tv_sec: 5, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&wait)), Ok(1));
    assert!(fds[0].revents().contains(PollFlags::IN));
}

/// The system calls of a 32-bit program without large-file support: `stat` and `getdents` with
/// 32-bit numbers, through the kernel's 32-bit entry. Prints their results, and the largest inode
/// number and offset of a directory's entries.
const NARROW: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int call(long number, long a, long b, long c)
{
	int answer;
	__asm__ volatile("int $0x80" : "=a"(answer) : "a"(number), "b"(a), "c"(b), "d"(c)
			 : "memory", "r8", "r9", "r10", "r11");
	return answer;
}

int main(int argc, char **argv)
{
	char *low = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	char *buffer = low + (1 << 15);
	long path = (long)low, out = (long)buffer, count;
	unsigned long long ino, off, most_ino = 0, most_off = 0;

	strcpy(low, argv[1]);
	count = call(106, path, out, 0); /* stat */
	printf("%ld %u", count, *(unsigned *)(buffer + 4));
	int fd = call(5, path, O_RDONLY, 0);
	while ((count = call(141, fd, out, 1 << 14)) > 0) /* getdents */
		;
	printf(" %ld", count);
	fd = call(5, path, O_RDONLY, 0);
	while ((count = call(220, fd, out, 1 << 14)) > 0) /* getdents64 */
		for (char *entry = buffer; entry < buffer + count; entry += *(unsigned short *)(entry + 16)) {
			memcpy(&ino, entry, 8);
			memcpy(&off, entry + 8, 8);
			most_ino = ino > most_ino ? ino : most_ino;
			most_off = off > most_off ? off : most_off;
		}
	printf(" %llu %llu\n", most_ino, most_off);
	return 0;
}
"#;

/// With `ino=32`, 32-bit programs without large-file support can use the union.
fn programs_of_32_bits_with_ino_32(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.ext4("rw", 64), sandbox.ext4("ro", 64));
    fs::create_dir_all(ro.join("dir/sub")).unwrap();
    fs::create_dir(rw.join("alone")).unwrap();
    for n in 0..300 {
        fs::write(ro.join(format!("dir/{n}")), "text").unwrap();
        fs::write(rw.join(format!("alone/{n}")), "text").unwrap();
    }
    let source = sandbox.path("narrow.c");
    fs::write(&source, NARROW).unwrap();
    let program = sandbox.path("narrow");
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(compiled.success());
    let ask = |path: &Path| {
        let out = Command::new(&program).arg(path).output().unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        out.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<i64>>()
    };
    if !cfg!(target_arch = "x86_64") || ask(&ro).first() != Some(&0) {
        println!("this kernel runs no 32-bit programs: skipped");
        return;
    }
    let words = format!("unionfs,dirs={}=rw:{}=ro,ino=32", rw.display(), ro.display());
    let mut union = Mounted::new(Spec::Stack { words: words.into(), transport }, &sandbox.path("u"));
    let paths = ["", "dir", "dir/sub", "alone", "dir/7", "alone/7"];
    let numbers = |union: &Mounted| {
        let mut numbers = Vec::new();
        for path in paths {
            let path = union.path(path);
            let number = fs::metadata(&path).unwrap().ino();
            let result = ask(&path);
            assert_eq!(result[..2], [0, i64::try_from(number).unwrap()], "{}", path.display());
            if path.is_dir() {
                assert_eq!(result[2], 0, "{}", path.display());
                assert!(result[3] <= i64::from(u32::MAX) && result[4] <= i64::from(i32::MAX), "{result:?}");
                assert!(path.ends_with("sub") || fs::read_dir(&path).unwrap().count() > 1);
            }
            numbers.push(number);
        }
        numbers
    };
    let before = numbers(&union);
    fs::set_permissions(union.path("dir/7"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(numbers(&union), before);
    union.remount();
    assert_eq!(numbers(&union), before);
}

on_both_transports!(
    a_listing_during_renames_shows_one_name,
    programs_of_32_bits_with_ino_32,
    names_of_255_bytes,
    deep_directories,
    sendfile,
    loop_device,
    exec,
    o_direct,
    inotify_on_merged_directory,
    locks_between_processes,
    fifos_and_sockets,
    statfs,
    readdir_resumes,
    rewinddir_returns_new_entries,
    writes_of_ordinary_users_clear_set_id_bits,
    chown_that_changes_nothing,
    mapped_writes_move_the_times,
    chown_without_ids_keeps_set_id_bits,
    running_programs_are_not_changed,
    acls_and_setgid,
    file_capabilities,
    inheritance_of_new_entries,
    copy_up_follows_the_files_permissions,
    open_files_outlive_their_names,
    times_to_the_nanosecond,
    holes,
    two_threads,
    mounts_made_later_in_a_branch_are_excluded,
    files_created_below_can_be_opened_despite_a_negative_entry,
    poll_reports_ready,
);
