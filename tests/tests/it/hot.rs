//! Frequently used files: the server keeps them open and registered with the kernel, without
//! visible side effects.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_tests::process::{sh, try_run};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};
use testkit::until;

/// Mounts the null layer over an ext4, with a long cache time.
fn mount_null_layer(sandbox: &Sandbox, transport: Transport) -> (Mounted, PathBuf) {
    let lower = sandbox.ext4("lower", 256);
    (Mounted::with_options(Spec::wrap(&lower, transport), &sandbox.path("m"), "cache=1000"), lower)
}

fn append(path: &Path, text: &str) -> std::io::Result<()> {
    File::options().append(true).open(path)?.write_all(text.as_bytes())
}

/// A file that is opened repeatedly is registered with the kernel once for reading and once for
/// writing.
fn a_frequently_opened_file_is_registered_once(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = mount_null_layer(&sandbox, transport);
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
    // A pause of the whole machine may expire the registration.
    assert!(registered() <= before + 3, "{before} before, {} after", registered());
    until("all registrations are released", || mounted.requests().get("backing_closes") == registered());
    assert_eq!(fs::read_to_string(lower.join("f")).unwrap().lines().count(), 201);
}

/// After the lower file is removed or replaced below, a write by its name creates a file or changes
/// the replacement. It never changes the removed file, whether the server's cache or a program
/// holds it open. A holder still reads the old contents.
fn writes_by_name_never_reach_a_removed_file(transport: Transport) {
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
    let (mounted, lower) = mount_null_layer(&sandbox, transport);
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

/// A program reopens a file without a name by its descriptor. Any mode works if the file was
/// removed through the mount; reading works if it was removed below.
fn a_removed_file_can_be_reopened_by_descriptor(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = mount_null_layer(&sandbox, transport);
    let path = mounted.path("f");
    let by_descriptor = |held: &File| PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
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
        append(&by_descriptor(&held), " and more").unwrap();
        assert_eq!(fs::read_to_string(by_descriptor(&held)).unwrap(), "text and more");
        fs::write(by_descriptor(&held), "new").unwrap();
        assert_eq!(fs::read_to_string(by_descriptor(&held)).unwrap(), "new");
        assert_ne!(fs::read(&path).unwrap_or_default(), b"new");
    }
    let unnamed = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let unnamed = File::from(rustix::fs::open(mounted.dir(), unnamed, 0o600.into()).unwrap());
    fs::write(by_descriptor(&unnamed), "unnamed").unwrap();
    assert_eq!(fs::read_to_string(by_descriptor(&unnamed)).unwrap(), "unnamed");

    fs::write(&path, "text").unwrap();
    let held = File::options().read(true).write(true).open(&path).unwrap();
    fs::remove_file(lower.join("f")).unwrap();
    let error = append(&by_descriptor(&held), "lost").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    assert_eq!(fs::read_to_string(by_descriptor(&held)).unwrap(), "text");
    let error = append(&path, "lost").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
}

/// A file that is removed below frees its blocks, although it was in use just before and its inode
/// is cached.
fn a_file_removed_below_frees_its_blocks(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = mount_null_layer(&sandbox, transport);
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
        until(&format!("blocks of the removed file {name} are freed"), || free() > before + (60 << 20));
        // A new file of that name is a different file.
        fs::write(lower.join(name), "new").unwrap();
        until("the new file is visible", || fs::read(&path).is_ok_and(|text| text == b"new"));
    }
}

/// Writes that the host refuses are refused, even just after the file was open. No descriptor
/// that would make the host refuse other processes remains open.
fn writes_refused_by_the_host_stay_refused(transport: Transport) {
    let sandbox = Sandbox::new();
    let (mounted, lower) = mount_null_layer(&sandbox, transport);
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
    // The last writer's RELEASE may still be queued.
    until("the program can be run", || Command::new(&below).arg("0").status().is_ok());
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
    until("nothing is open for writing", remount);
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}

/// The number of descriptors that the server keeps open is bounded, they are closed again, and the
/// descriptor table does not grow: concurrent opens would have to wait for that.
fn the_number_of_kept_descriptors_is_bounded(transport: Transport) {
    const FILES: usize = 3000;
    let sandbox = Sandbox::new();
    let (mounted, lower) = mount_null_layer(&sandbox, transport);
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
    until("descriptors are closed", || descriptors() <= idle + 200);
}

on_both_transports!(
    a_frequently_opened_file_is_registered_once,
    writes_by_name_never_reach_a_removed_file,
    a_removed_file_can_be_reopened_by_descriptor,
    a_file_removed_below_frees_its_blocks,
    writes_refused_by_the_host_stay_refused,
    the_number_of_kept_descriptors_is_bounded,
);
