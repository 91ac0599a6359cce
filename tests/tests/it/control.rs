//! The control channel of a mount: one ioctl that carries commands to the server and its layers,
//! from any namespace in which the mount is visible, subject to permissions.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fuse::control::{Error, INPUT_MAX, PIECE_MAX, call};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use strata_tests::process::{run, try_run};
use strata_tests::user::{OTHER, USER, as_user};
use strata_tests::{Fixture, Mounted, Sandbox, Spec, Transport, on_both_transports};

fn call_on(path: &Path, command: &str, input: &str) -> Result<String, Error> {
    let reply = call(File::open(path).unwrap(), command, input.as_bytes())?;
    Ok(String::from_utf8(reply).unwrap())
}

fn strata(words: &[&str], path: &Path) -> (Option<i32>, String) {
    let output = try_run(Command::new(Mounted::program().unwrap()).arg0("strata").args(words).arg(path));
    (output.status.code(), output.text)
}

/// The server's commands return the same on every file and directory, on an open file without a
/// name, through a bind mount of a part, and on files opened in any mode.
fn every_object_has_the_control_channel(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("dir")).unwrap();
        fs::write(ro.join("dir/file"), "text").unwrap();
        fs::write(ro.join("write-only"), "text").unwrap();
    });
    let bound = fx.sandbox.dir("bound");
    run(Command::new("mount").arg("--bind").arg(fx.path("dir")).arg(&bound));
    let pid = format!("\"pid\":{},", fx.union.server());
    for path in [fx.path(""), fx.path("dir"), fx.path("dir/file"), bound.clone(), bound.join("file")] {
        let info = call_on(&path, "server.info", "").unwrap();
        assert!(info.contains(&pid), "{}: {info}", path.display());
        let (code, output) = strata(&["info", "--json"], &path);
        assert!(code == Some(0) && output.contains(&pid), "{}: {output}", path.display());
    }
    // A fifo is not opened: the command is sent to its directory. A command that acts on an object
    // is refused.
    run(Command::new("mkfifo").arg(fx.path("fifo")));
    assert_eq!(strata(&["info"], &fx.path("fifo")).0, Some(0));
    let output = try_run(
        Command::new(Mounted::program().unwrap()).arg0("strata").arg("control").arg(fx.path("fifo")).arg("a.b"),
    );
    assert!(
        output.status.code() == Some(1) && output.text.contains("neither a file nor a directory"),
        "{}",
        output.text
    );
    // The flags and lower directories are those of the whole mount, not of the bind mount.
    assert_eq!(strata(&["lower"], &bound).0, Some(32));
    run(Command::new("umount").arg(&bound));
    let (unnamed, written) =
        (File::create(fx.path("gone")).unwrap(), File::options().write(true).open(fx.path("write-only")));
    fs::remove_file(fx.path("gone")).unwrap();
    for file in [unnamed, written.unwrap()] {
        assert!(String::from_utf8(call(&file, "server.info", b"").unwrap()).unwrap().contains(&pid));
    }
    let path = rustix::fs::open(fx.path("dir"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(call(&path, "server.info", b""), Err(Error::Channel(Errno::BADF)));
}

/// The channel works in another mount namespace that contains the mount. Root of another user
/// namespace has the rights of the user that it maps to.
fn other_namespaces_and_users(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::create_dir(ro.join("dir")).unwrap());
    let program = fx.sandbox.path("strata");
    fs::copy(Mounted::program().unwrap(), &program).unwrap();
    let root = fx.path("");
    let shell = |unshare: &str, words: &str| {
        let line =
            format!("unshare {unshare} -- {} {words}", program.display()).replace("DIR", &root.display().to_string());
        let output = try_run(Command::new("bash").args(["-c", &line]));
        (output.status.code(), output.text)
    };
    assert_eq!(shell("--mount --propagation private", "debug DIR debug"), (Some(0), String::new()));
    assert_eq!(shell("--mount --propagation slave", "debug DIR"), (Some(0), "debug\n".to_owned()));
    let nobody = "--user --map-root-user";
    let by_nobody = |words: &str| {
        let line = format!(
            "setpriv --reuid 1000 --regid 1000 --clear-groups unshare {nobody} -- {} {words}",
            program.display()
        );
        let output = try_run(Command::new("bash").args(["-c", &line.replace("DIR", &root.display().to_string())]));
        (output.status.code(), output.text)
    };
    let (code, output) = by_nobody("debug DIR trace");
    assert!(code == Some(1) && (output.contains("only root and the mounting user")), "{output}");
    assert_eq!(call_on(&root, "server.debug", "").unwrap(), "{\"level\":\"debug\"}");
    // Permissions of each command, user by user.
    let file = Arc::new(File::open(&root).unwrap());
    for who in [USER, OTHER] {
        let file = Arc::clone(&file);
        as_user(who, move || {
            assert_eq!(call(&file, "server.debug", b"trace"), Err(Error::Refused(Errno::PERM)));
            assert_eq!(call(&file, "server.access-times", b"noatime"), Err(Error::Refused(Errno::PERM)));
            for command in
                ["server.debug", "server.info", "server.stats", "server.stack", "server.commands", "server.sync"]
            {
                assert!(call(&file, command, b"").is_ok(), "{command}");
            }
        });
    }
    assert_eq!(call(&file, "server.debug", b"info").unwrap(), b"{\"level\":\"info\"}");
    assert_eq!(call(&file, "server.debug", b"loud"), Err(Error::Refused(Errno::INVAL)));
    assert_eq!(call(&file, "server.nothing", b""), Err(Error::Refused(Errno::NOTTY)));
    assert_eq!(call(&file, "server.debug", &[b' '; INPUT_MAX + 1]), Err(Error::Channel(Errno::TOOBIG)));
}

/// The description of a deep stack is longer than a frame, and several users request it
/// concurrently.
fn replies_can_exceed_a_frame(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    fs::write(lower.join("file"), "text").unwrap();
    let layers = "wrapfs / ".repeat(24);
    let mounted = Mounted::new(Spec::stack(&layers, &lower, transport), &sandbox.path("m"));
    // Performs several kinds of operations: each is a line in every layer's statistics.
    let at = |name: &str| mounted.path(name);
    assert_eq!(fs::read(at("file")).unwrap(), b"text");
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/new"), "text").unwrap();
    fs::rename(at("dir/new"), at("dir/moved")).unwrap();
    fs::hard_link(at("dir/moved"), at("dir/linked")).unwrap();
    std::os::unix::fs::symlink("moved", at("dir/link")).unwrap();
    fs::read_link(at("dir/link")).unwrap();
    fs::set_permissions(at("file"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(fs::read_dir(at("dir")).unwrap().count(), 3);
    fs::remove_dir_all(at("dir")).unwrap();
    rustix::fs::statvfs(at("file")).unwrap();
    let check = |stack: &str| {
        assert!(stack.len() > 2 * PIECE_MAX, "{} bytes", stack.len());
        assert_eq!(stack.matches("\"name\":\"wrapfs\"").count(), 24);
        assert!(stack.starts_with('{') && stack.ends_with('}'));
    };
    check(&call_on(mounted.dir(), "server.stack", "").unwrap());
    thread::scope(|scope| {
        for who in [USER, OTHER] {
            let dir = mounted.dir();
            scope.spawn(move || {
                as_user(who, || (0..20).for_each(|_| check(&call_on(dir, "server.stack", "").unwrap())));
            });
        }
    });
    let (code, drawn) = strata(&["stack"], mounted.dir());
    assert!(code == Some(0) && drawn.matches("wrapfs").count() == 24, "{drawn}");
}

/// `strata control` lists and sends the commands of layers, which act on the object. It works
/// without extended attributes.
fn layers_have_commands(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    fs::create_dir(disk.join("group")).unwrap();
    (0..50).for_each(|i| fs::write(disk.join(format!("group/{i}")), "").unwrap());
    let spec = Spec::stack("wrapfs / usenetfs / rot13 / ", &disk, transport);
    let mounted = Mounted::with_options(spec, &sandbox.path("m"), "noxattr");
    let group = fs::read_dir(mounted.dir()).unwrap().map(|entry| entry.unwrap().path());
    let group = group.into_iter().find(|path| path.ends_with("tebhc")).unwrap();
    let (code, list) = strata(&["control", "--list"], mounted.dir());
    assert!(code == Some(0) && list.contains("usenetfs.state") && list.contains("server.sync"), "{list}");
    assert!(list.contains("Root and the mounting user: "), "{list}");
    let control = |words: &[&str], path: &Path| {
        let mut command = Command::new(Mounted::program().unwrap());
        let output = try_run(command.arg0("strata").arg("control").arg(path).args(words));
        (output.status.code(), output.text)
    };
    assert_eq!(control(&["usenetfs.state", "--json"], &group).1, "{\"phase\":\"flat\",\"scheme\":null,\"moved\":0}\n");
    let (code, output) = control(&["usenetfs.state"], &group);
    assert!(code == Some(0) && output.contains("phase") && !output.contains('{'), "{output}");
    // The kernel is notified of the command's changes.
    let mode =
        || fs::metadata(&group).map(|meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions())).unwrap();
    assert_eq!(mode() & 0o4000, 0);
    for _ in 0..3 {
        assert_eq!(control(&["usenetfs.convert", "manage digits 100"], &group).0, Some(0));
    }
    assert_eq!(mode() & 0o4000, 0o4000);
    let file = fs::read_dir(&group).unwrap().next().unwrap().unwrap().path();
    let cases: [(&[&str], &Path, &str); 6] = [
        (&["usenetfs.state"], &file, "not supported for this file or directory"),
        (&["usenetfs.state", "input"], &group, "invalid input"),
        (&["usenetfs.other"], &group, "no such command"),
        (&["no-command"], &group, "no-command: no such command on this mount; strata control --list "),
        (&["state"], &group, "did you mean usenetfs.state?"),
        (&["usenetfs.state"], Path::new("/proc"), "not on a Strata mount"),
    ];
    for (words, path, output) in cases {
        let (code, text) = control(words, path);
        assert!(code != Some(0) && text.contains(output), "{words:?}: {text}");
    }
    assert_eq!(control(&["no-command"], &group).0, Some(1));
    assert_eq!(control(&[], &group).0, Some(1));
}

/// A slow command does not block other requests and ends when its caller is killed.
fn slow_commands_block_no_other_request(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 128);
    let mounted = Mounted::new(Spec::stack("usenetfs / ", &disk, transport), &sandbox.path("m"));
    let group = mounted.path("group");
    fs::create_dir(&group).unwrap();
    (0..9000).for_each(|i| fs::write(group.join(i.to_string()), "").unwrap());
    fs::write(mounted.path("other"), "text").unwrap();
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| call_on(&group, "usenetfs.convert", "manage digits 10000"))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            assert_eq!(fs::read_to_string(mounted.path("other")).unwrap(), "text");
        }
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap().is_ok()));
    });
    // Killed during a step: the next call continues from there.
    let mut caller = Command::new(Mounted::program().unwrap());
    let caller = caller.arg0("strata").arg("control").arg(&group).args(["usenetfs.convert", "unmanage 10000"]);
    let mut caller = caller.spawn().unwrap();
    // The kill comes during the conversion.
    thread::sleep(std::time::Duration::from_millis(20));
    caller.kill().unwrap();
    caller.wait().unwrap();
    assert_eq!(fs::read_dir(&group).unwrap().count(), 9000);
    while !call_on(&group, "usenetfs.convert", "unmanage 10000").unwrap().contains("flat") {}
    assert_eq!(fs::read_dir(&group).unwrap().count(), 9000);
    assert_eq!(fs::metadata(disk.join("group/77")).unwrap().len(), 0);
}

on_both_transports! {
    every_object_has_the_control_channel,
    other_namespaces_and_users,
    replies_can_exceed_a_frame,
    layers_have_commands,
    slow_commands_block_no_other_request,
}
