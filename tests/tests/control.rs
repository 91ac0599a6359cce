//! The control channel of a mount: one ioctl, by which the server and the layers are asked and told, from wherever the mount is
//! seen and by whoever may.

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

fn give(path: &Path, command: &str, input: &str) -> Result<String, Error> {
    let answer = call(File::open(path).unwrap(), command, input.as_bytes())?;
    Ok(String::from_utf8(answer).unwrap())
}

fn strata(words: &[&str], path: &Path) -> (Option<i32>, String) {
    let said = try_run(Command::new(Mounted::program().unwrap()).arg0("strata").args(words).arg(path));
    (said.status.code(), said.text)
}

/// The server's commands answer the same on every file and directory, by an open file that has lost its name, through a bind
/// mount of a part, and on files that were opened in any way.
fn every_object_leads_to_the_server(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("dir")).unwrap();
        fs::write(ro.join("dir/file"), "text").unwrap();
        fs::write(ro.join("write-only"), "text").unwrap();
    });
    let bound = fx.sandbox.dir("bound");
    run(Command::new("mount").arg("--bind").arg(fx.path("dir")).arg(&bound));
    let pid = format!("\"pid\":{},", fx.union.server());
    for path in [fx.path(""), fx.path("dir"), fx.path("dir/file"), bound.clone(), bound.join("file")] {
        let info = give(&path, "server.info", "").unwrap();
        assert!(info.contains(&pid), "{}: {info}", path.display());
        let (code, said) = strata(&["info", "--json"], &path);
        assert!(code == Some(0) && said.contains(&pid), "{}: {said}", path.display());
    }
    // A fifo is not opened: the directory that it lies in is asked. A command that acts on an object is refused.
    run(Command::new("mkfifo").arg(fx.path("fifo")));
    assert_eq!(strata(&["info"], &fx.path("fifo")).0, Some(0));
    let said = try_run(
        Command::new(Mounted::program().unwrap()).arg0("strata").arg("control").arg(fx.path("fifo")).arg("a.b"),
    );
    assert!(said.status.code() == Some(1) && said.text.contains("neither a file nor a directory"), "{}", said.text);
    // The mount point's flags and its lower directories are those of the whole mount.
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

/// A process in another mount namespace that sees the mount has the channel, root of another user namespace has no more rights
/// than the user that it is.
fn other_namespaces_and_users(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::create_dir(ro.join("dir")).unwrap());
    let program = fx.sandbox.path("strata");
    fs::copy(Mounted::program().unwrap(), &program).unwrap();
    let root = fx.path("");
    let shell = |unshare: &str, words: &str| {
        let line =
            format!("unshare {unshare} -- {} {words}", program.display()).replace("DIR", &root.display().to_string());
        let said = try_run(Command::new("bash").args(["-c", &line]));
        (said.status.code(), said.text)
    };
    assert_eq!(shell("--mount --propagation private", "debug DIR debug"), (Some(0), String::new()));
    assert_eq!(shell("--mount --propagation slave", "debug DIR"), (Some(0), "debug\n".to_owned()));
    let nobody = "--user --map-root-user";
    let by_nobody = |words: &str| {
        let line = format!(
            "setpriv --reuid 1000 --regid 1000 --clear-groups unshare {nobody} -- {} {words}",
            program.display()
        );
        let said = try_run(Command::new("bash").args(["-c", &line.replace("DIR", &root.display().to_string())]));
        (said.status.code(), said.text)
    };
    let (code, said) = by_nobody("debug DIR trace");
    assert!(code == Some(1) && (said.contains("only root and the user who mounted it")), "{said}");
    assert_eq!(give(&root, "server.debug", "").unwrap(), "{\"level\":\"debug\"}");
    // Who may what, user by user.
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

/// A stack of many layers says more of itself than a frame holds. Many ask at the same time, as several users.
fn replies_longer_than_a_frame(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    fs::write(lower.join("file"), "text").unwrap();
    let layers = "wrapfs / ".repeat(24);
    let mounted = Mounted::new(Spec::stack(&layers, &lower, transport), &sandbox.path("m"));
    // Each kind of operation is a line of each layer's figures.
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
    check(&give(mounted.dir(), "server.stack", "").unwrap());
    thread::scope(|scope| {
        for who in [USER, OTHER] {
            let dir = mounted.dir();
            scope.spawn(move || {
                as_user(who, || (0..20).for_each(|_| check(&give(dir, "server.stack", "").unwrap())));
            });
        }
    });
    let (code, drawn) = strata(&["stack"], mounted.dir());
    assert!(code == Some(0) && drawn.matches("wrapfs").count() == 24, "{drawn}");
}

/// `strata control` lists and gives the commands of layers, which act on the object; also where there are no extended attributes.
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
    assert!(list.contains("Root and the user who mounted: "), "{list}");
    let control = |words: &[&str], path: &Path| {
        let mut command = Command::new(Mounted::program().unwrap());
        let said = try_run(command.arg0("strata").arg("control").arg(path).args(words));
        (said.status.code(), said.text)
    };
    assert_eq!(control(&["usenetfs.state", "--json"], &group).1, "{\"phase\":\"flat\",\"scheme\":null,\"moved\":0}\n");
    let (code, said) = control(&["usenetfs.state"], &group);
    assert!(code == Some(0) && said.contains("phase") && !said.contains('{'), "{said}");
    // The kernel learns of what the command has changed.
    let mode =
        || fs::metadata(&group).map(|meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions())).unwrap();
    assert_eq!(mode() & 0o4000, 0);
    for _ in 0..3 {
        assert_eq!(control(&["usenetfs.convert", "manage digits 100"], &group).0, Some(0));
    }
    assert_eq!(mode() & 0o4000, 0o4000);
    let file = fs::read_dir(&group).unwrap().next().unwrap().unwrap().path();
    let cases: [(&[&str], &Path, &str); 5] = [
        (&["usenetfs.state"], &file, "not for this file or directory"),
        (&["usenetfs.state", "input"], &group, "the input is not understood"),
        (&["usenetfs.other"], &group, "no such command"),
        (&["no-command"], &group, "usenetfs"),
        (&["usenetfs.state"], Path::new("/proc"), "not on a mount of Strata"),
    ];
    for (words, path, said) in cases.iter().filter(|(words, ..)| words[0] != "no-command") {
        let (code, text) = control(words, path);
        assert!(code != Some(0) && text.contains(said), "{words:?}: {text}");
    }
    assert_eq!(control(&["no-command"], &group).0, Some(1));
    assert_eq!(control(&[], &group).0, Some(1));
}

/// A command that takes long keeps nobody from being served, and ends with its caller.
fn long_commands_are_in_nobodys_way(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 128);
    let mounted = Mounted::new(Spec::stack("usenetfs / ", &disk, transport), &sandbox.path("m"));
    let group = mounted.path("group");
    fs::create_dir(&group).unwrap();
    (0..9000).for_each(|i| fs::write(group.join(i.to_string()), "").unwrap());
    fs::write(mounted.path("other"), "text").unwrap();
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| give(&group, "usenetfs.convert", "manage digits 10000"))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            assert_eq!(fs::read_to_string(mounted.path("other")).unwrap(), "text");
        }
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap().is_ok()));
    });
    // Killed in the midst of a step: the rest goes on from there.
    let mut caller = Command::new(Mounted::program().unwrap());
    let caller = caller.arg0("strata").arg("control").arg(&group).args(["usenetfs.convert", "unmanage 10000"]);
    let mut caller = caller.spawn().unwrap();
    thread::sleep(std::time::Duration::from_millis(20));
    caller.kill().unwrap();
    caller.wait().unwrap();
    assert_eq!(fs::read_dir(&group).unwrap().count(), 9000);
    while !give(&group, "usenetfs.convert", "unmanage 10000").unwrap().contains("flat") {}
    assert_eq!(fs::read_dir(&group).unwrap().count(), 9000);
    assert_eq!(fs::metadata(disk.join("group/77")).unwrap().len(), 0);
}

on_both_transports! {
    every_object_leads_to_the_server,
    other_namespaces_and_users,
    replies_longer_than_a_frame,
    layers_have_commands,
    long_commands_are_in_nobodys_way,
}
