//! Durability after fsync(2) of a file or directory, and after `strata sync`: checked in a copy of
//! the lower file system's image, as after a power failure.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_tests::crypt::Volume;
use strata_tests::mapping::Mapping;
use strata_tests::process::{Output, run, try_run};
use strata_tests::user::{USER, as_user};
use strata_tests::{Fixture, Mode, Mounted, Sandbox, Spec, Transport, on_both_transports};

/// Runs `strata sync`.
fn strata_sync(paths: &[&Path]) -> Output {
    try_run(Command::new(Mounted::program().unwrap()).arg("sync").args(paths))
}

/// Mounts the file system NAME in its state after a power failure at this moment.
fn after_power_failure(sandbox: &Sandbox, name: &str) -> PathBuf {
    let (image, dir) = (sandbox.path("copy.img"), sandbox.dir("copy"));
    let _ = try_run(Command::new("umount").arg(&dir));
    fs::copy(sandbox.path(&format!("{name}.img")), &image).unwrap();
    run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&image).arg(&dir));
    dir
}

/// `strata sync` makes all writes durable: on the left and the right branch, and through mappings.
fn sync_makes_all_writes_durable(transport: Transport) {
    let sandbox = Sandbox::new();
    let branches: Vec<PathBuf> = ["left", "right"].map(|name| sandbox.ext4(name, 32).join("branch")).into();
    branches.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(branches[1].join("right"), "old").unwrap();
    fs::write(branches[1].join("mapped"), [b'-'; 4096]).unwrap();
    let spec = Spec::Union {
        branches: branches.iter().map(|dir| (dir.clone(), Mode::Rw)).collect(),
        delete: strata_tests::Delete::Whiteout,
        transport,
    };
    let mounted = Mounted::new(spec, &sandbox.path("u"));
    fs::write(mounted.path("left"), "new on the left").unwrap();
    fs::write(mounted.path("right"), "new on the right").unwrap();
    // Through the page cache of the union's inode: a later copy-up may move the file to the left
    // branch.
    let file = File::options().read(true).write(true).open(mounted.path("mapped")).unwrap();
    let mut map = Mapping::new(&file, 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    map.write(0, b"mapped");
    let done = strata_sync(&[mounted.dir()]);
    assert!(done.status.success(), "{}", done.text);
    let left = after_power_failure(&sandbox, "left").join("branch");
    assert_eq!(fs::read_to_string(left.join("left")).unwrap(), "new on the left");
    let right = after_power_failure(&sandbox, "right").join("branch");
    assert_eq!(fs::read_to_string(right.join("right")).unwrap(), "new on the right");
    assert!(fs::read_to_string(right.join("mapped")).unwrap().starts_with("mapped"));
}

/// fsync(2) of a file, and of the directory that has its name, reaches the branch.
fn fsync_reaches_the_branch(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::create_dir(ro.join("dir")).unwrap());
    let file = File::create(fx.path("dir/file")).unwrap();
    std::io::Write::write_all(&mut &file, b"text").unwrap();
    let dir = File::open(fx.path("dir")).unwrap();
    let sent = fx.union.during(|| {
        file.sync_all().unwrap();
        dir.sync_all().unwrap();
    });
    assert_eq!((sent.get("FSYNC"), sent.get("FSYNCDIR")), (1, 1), "{sent:?}");
    let copy = after_power_failure(&fx.sandbox, "rw");
    assert_eq!(fs::read_to_string(copy.join("branch/dir/file")).unwrap(), "text");
}

/// fsync(2) of an encrypted file and of its directories includes what the volume stores beside
/// them: initialization vectors, long names, headers.
fn fsync_includes_what_encryption_stores(transport: Transport) {
    for options in ["", ",journal=power"] {
        let sandbox = Sandbox::new();
        let volume = Volume::new(&sandbox.ext4("disk", 64).join("volume"), &[]);
        run(Command::new("sync").arg("-f").arg(volume.dir()));
        let stack = |dir: &Path| Spec::stack(&format!("{}{options} / ", volume.layer()), dir, transport);
        let mounted = Mounted::new(stack(volume.dir()), &sandbox.path("m"));
        let long = "long".repeat(60);
        let dir = mounted.path("dir").join(&long);
        fs::create_dir_all(&dir).unwrap();
        let mut content = strata_tests::Rng::new(1).bytes(10_000);
        let sync = |path: &Path| File::open(path).unwrap().sync_all().unwrap();
        for name in ["short", &long] {
            fs::write(dir.join(name), &content).unwrap();
            sync(&dir.join(name));
        }
        // A new name for a file, and a part of a block.
        fs::rename(dir.join("short"), dir.join("renamed")).unwrap();
        let file = File::options().write(true).open(dir.join("renamed")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"overwritten", 5000).unwrap();
        file.sync_all().unwrap();
        for path in [&*dir, &mounted.path("dir"), mounted.dir()] {
            sync(path);
        }
        let copy = after_power_failure(&sandbox, "disk").join("volume");
        let recovered = Mounted::new(stack(&copy), &sandbox.path("recovered"));
        let dir = recovered.path("dir").join(&long);
        assert!(fs::read(dir.join(&long)).unwrap() == content);
        content[5000..5011].copy_from_slice(b"overwritten");
        assert!(fs::read(dir.join("renamed")).unwrap() == content);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    }
}

/// Every user who can open a path of the mount may sync it, by any path.
fn sync_works_by_any_path(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::write(ro.join("file"), "").unwrap();
        fs::create_dir(ro.join("dir")).unwrap();
    });
    run(Command::new("mkfifo").arg(fx.path("fifo")));
    let bound = fx.sandbox.dir("bound");
    run(Command::new("mount").arg("--bind").arg(fx.path("dir")).arg(&bound));
    for path in [fx.path("file"), fx.path("dir"), fx.path("fifo"), bound.clone()] {
        let sent = fx.union.during(|| {
            let done = strata_sync(&[&path]);
            assert!(done.status.success(), "{}: {}", path.display(), done.text);
        });
        assert_eq!(sent.get("IOCTL"), 1, "{}: {sent:?}", path.display());
    }
    run(Command::new("umount").arg(&bound));
    let by_user = || {
        let file = File::open(fx.path("file")).unwrap();
        fuse::control::call(&file, "server.sync", b"").unwrap();
    };
    as_user(USER, by_user);
    // Paths that can't be synced are reported; the others are synced.
    let missing = fx.path("missing");
    let sent = fx.union.during(|| {
        let done = strata_sync(&[fx.sandbox.path("").as_path(), &missing, &fx.path("dir")]);
        assert_eq!(done.status.code(), Some(32), "{}", done.text);
        assert!(done.text.contains("not on a Strata mount") && done.text.contains("missing"), "{}", done.text);
    });
    assert_eq!(sent.get("IOCTL"), 1, "{sent:?}");
    assert_eq!(strata_sync(&[&missing]).status.code(), Some(1));
    assert_eq!(strata_sync(&[]).status.code(), Some(1));
}

on_both_transports! {
    sync_makes_all_writes_durable,
    fsync_reaches_the_branch,
    fsync_includes_what_encryption_stores,
    sync_works_by_any_path,
}
