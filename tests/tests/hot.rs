//! Files that are used again and again: the server neither opens nor registers them anew each time, and that shows nowhere else.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use strata_tests::process::{sh, try_run};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

/// The null layer over an ext4; the kernel trusts what it knows for long.
fn wrapped(sandbox: &Sandbox, transport: Transport) -> (Mounted, PathBuf) {
    let lower = sandbox.ext4("lower", 256);
    (Mounted::with_options(Spec::wrap(&lower, transport), &sandbox.path("m"), "cache=1000"), lower)
}

fn append(path: &Path, text: &str) -> std::io::Result<()> {
    File::options().append(true).open(path)?.write_all(text.as_bytes())
}

/// Waits for what happens a second or two after the last use of a file.
fn soon(what: &str, happened: impl Fn() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A file that is opened again and again is given to the kernel once, to be read and written.
fn a_file_in_use_is_registered_once(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = wrapped(&sandbox, transport);
    let path = mounted.path("f");
    fs::write(&path, "begun\n").unwrap();
    let use_it = |i: usize| {
        append(&path, &format!("{i}\n")).unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with(&format!("\n{i}\n")));
    };
    (0..3).for_each(use_it);
    let registered = || mounted.requests().get("backing_opens");
    let before = registered();
    (3..200).for_each(use_it);
    // A pause of the whole machine may make the server forget.
    assert!(registered() <= before + 3, "{before} before, {} after", registered());
    soon("all of them are given back", || mounted.requests().get("backing_closes") == registered());
    assert_eq!(fs::read_to_string(lower.join("f")).unwrap().lines().count(), 201);
}

/// What is written to a name that others removed or replaced below goes to a new file, or to theirs, and never to the one
/// that is only kept here, or that a program has open; what that reads stays.
fn nothing_is_written_to_a_removed_file(transport: Transport) {
    type Way = (&'static str, fn(&Path) -> std::io::Result<()>);
    let ways: [Way; 4] = [
        ("truncate on open", |path| fs::write(path, "data")),
        ("synchronous", |path| {
            let script = "printf data | dd of=\"$1\" oflag=sync conv=notrunc 2>/dev/null";
            drop(sh(script, &[path]));
            Ok(())
        }),
        ("append", |path| File::options().create(true).append(true).open(path)?.write_all(b"data")),
        ("truncate(2)", |path| {
            drop(sh("truncate -s 0 \"$1\" && printf data >> \"$1\"", &[path]));
            Ok(())
        }),
    ];
    let sandbox = Sandbox::new();
    let (mounted, lower) = wrapped(&sandbox, transport);
    let cases = [(false, false), (true, false), (false, true), (true, true)];
    for (i, (what, write)) in ways.iter().enumerate() {
        for (replaced, held) in cases {
            let name = format!("f{i}{replaced}{held}");
            let (path, below) = (mounted.path(&name), lower.join(&name));
            fs::write(&path, "before").unwrap();
            let holder = held.then(|| File::options().read(true).write(true).open(&path).unwrap());
            (0..3).for_each(|_| assert_eq!(fs::read(&path).unwrap(), b"before"));
            if replaced {
                fs::write(lower.join("other"), "").unwrap();
                fs::rename(lower.join("other"), &below).unwrap();
            } else {
                fs::remove_file(&below).unwrap();
            }
            write(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(fs::read(&below).unwrap_or_default(), b"data", "{what}, replaced: {replaced}, held: {held}");
            if let Some(mut holder) = holder {
                let mut text = String::new();
                holder.read_to_string(&mut text).unwrap();
                assert_eq!(text, "before", "{what}, replaced: {replaced}");
                holder.write_all(b", after").unwrap();
            }
        }
    }
}

/// A program opens a file anew that it has open and that has no name: whatever it wants if the file was removed through the
/// mount, and for reading if others have removed it.
fn a_removed_file_is_opened_by_its_descriptor(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = wrapped(&sandbox, transport);
    let path = mounted.path("f");
    let anew = |held: &File| PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let ways: [fn(&Path); 2] = [
        |path| fs::remove_file(path).unwrap(),
        |path| {
            fs::write(path.with_file_name("other"), "other").unwrap();
            fs::rename(path.with_file_name("other"), path).unwrap();
        },
    ];
    for remove in ways {
        fs::write(&path, "text").unwrap();
        let held = File::options().read(true).write(true).open(&path).unwrap();
        remove(&path);
        append(&anew(&held), " and more").unwrap();
        assert_eq!(fs::read_to_string(anew(&held)).unwrap(), "text and more");
        fs::write(anew(&held), "new").unwrap();
        assert_eq!(fs::read_to_string(anew(&held)).unwrap(), "new");
        assert_ne!(fs::read(&path).unwrap_or_default(), b"new");
    }
    let unnamed = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let unnamed = File::from(rustix::fs::open(mounted.dir(), unnamed, 0o600.into()).unwrap());
    fs::write(anew(&unnamed), "unnamed").unwrap();
    assert_eq!(fs::read_to_string(anew(&unnamed)).unwrap(), "unnamed");

    fs::write(&path, "text").unwrap();
    let held = File::options().read(true).write(true).open(&path).unwrap();
    fs::remove_file(lower.join("f")).unwrap();
    let error = append(&anew(&held), "lost").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    assert_eq!(fs::read_to_string(anew(&held)).unwrap(), "text");
    let error = append(&path, "lost").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
}

/// A file that others remove below gives its room back, although it was in use a moment ago and its inode is known.
fn removed_by_others_a_file_gives_its_room_back(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = wrapped(&sandbox, transport);
    let free = || {
        let stat = rustix::fs::statvfs(&lower).unwrap();
        stat.f_bfree * stat.f_frsize
    };
    for (name, writes) in [("read", false), ("written", true)] {
        let path = mounted.path(name);
        fs::write(&path, vec![7; 64 << 20]).unwrap();
        rustix::fs::syncfs(File::open(&lower).unwrap()).unwrap();
        let before = free();
        for _ in 0..5 {
            if writes { append(&path, "+").unwrap() } else { drop(fs::read(&path).unwrap()) }
        }
        fs::remove_file(lower.join(name)).unwrap();
        soon(&format!("the room of the file that was {name}"), || free() > before + (60 << 20));
        // A new one of that name is another.
        fs::write(lower.join(name), "new").unwrap();
        soon("the new one", || fs::read(&path).is_ok_and(|text| text == b"new"));
    }
}

/// What the host refuses to a writer is refused, whatever was open a moment ago; and nothing stays open that would make the host
/// refuse others.
fn the_host_refuses_what_it_must(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = wrapped(&sandbox, transport);
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let use_it = |path: &Path| {
        for _ in 0..5 {
            append(path, "").unwrap();
            drop(fs::read(path).unwrap());
        }
    };
    let (program, below) = (mounted.path("program"), lower.join("program"));
    fs::copy("/bin/sleep", &program).unwrap();
    use_it(&program);
    // The last writer's release is on its way.
    soon("the program can be run", || Command::new(&below).arg("0").status().is_ok());
    let mut child = Command::new(&below).arg("60").spawn().unwrap();
    assert_eq!(errno(append(&program, "")), Some(Errno::TXTBSY.raw_os_error()));
    child.kill().unwrap();
    child.wait().unwrap();
    append(&program, "").unwrap();

    let file = mounted.path("f");
    fs::write(&file, "text").unwrap();
    use_it(&file);
    sh("chattr +i \"$1\"", &[lower.join("f")]);
    assert_eq!(errno(append(&file, "")), Some(Errno::PERM.raw_os_error()));
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    sh("chattr -i \"$1\"", &[lower.join("f")]);
    use_it(&file);
    let remount = || try_run(Command::new("mount").args(["-o", "remount,ro"]).arg(&lower)).status.success();
    soon("nothing is open for writing", remount);
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}

/// However many files are in use, the server keeps a bounded number of descriptors, gives them back, and its table of
/// descriptors does not grow: whoever opens something then would wait for that.
fn what_is_kept_is_bounded(transport: Transport) {
    const FILES: usize = 3000;
    let sandbox = Sandbox::new();
    let (mounted, lower) = wrapped(&sandbox, transport);
    (0..FILES).for_each(|i| fs::write(lower.join(i.to_string()), i.to_string()).unwrap());
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", mounted.server())).unwrap().count();
    let table = || {
        let status = fs::read_to_string(format!("/proc/{}/status", mounted.server())).unwrap();
        status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse::<usize>().ok()).unwrap()
    };
    let (idle, size) = (descriptors(), table());
    for i in 0..FILES {
        (0..3).for_each(|_| assert_eq!(fs::read_to_string(mounted.path(i.to_string())).unwrap(), i.to_string()));
    }
    assert!(descriptors() <= idle + 1024 + 200, "{} descriptors, {idle} before", descriptors());
    assert_eq!(table(), size);
    soon("they are closed", || descriptors() <= idle + 200);
}

on_both_transports!(
    a_file_in_use_is_registered_once,
    nothing_is_written_to_a_removed_file,
    a_removed_file_is_opened_by_its_descriptor,
    removed_by_others_a_file_gives_its_room_back,
    the_host_refuses_what_it_must,
    what_is_kept_is_bounded,
);
