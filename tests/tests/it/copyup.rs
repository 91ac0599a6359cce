//! Copy-up: its cost, the attributes it preserves, and the state after an interruption, a full disk
//! or a server crash.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use strata_tests::process::{run, sh};
use strata_tests::tree::{self, Times, Tree};
use strata_tests::{Delete, Fixture, Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};

fn append(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    File::options().append(true).open(path)?.write_all(bytes)
}

/// Returns the paths on a branch, without the union's own files.
fn users_files(branch: &Path) -> Vec<Vec<u8>> {
    let tree = tree::read(branch);
    tree.into_keys().filter(|path| !path.is_empty() && !path.starts_with(b".wh.")).collect()
}

/// Returns the files that unfinished work left on a branch.
fn leftovers(branch: &Path) -> Vec<Vec<u8>> {
    let work = branch.join(".wh..wh.work");
    if work.exists() { tree::read(&work).into_keys().filter(|p| !p.is_empty()).collect() } else { Vec::new() }
}

/// The copy-up of a large sparse file keeps its holes, is fast and does not fill the disk.
fn copy_up_keeps_holes(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        let file = File::create(ro.join("sparse")).unwrap();
        file.set_len(64 << 30).unwrap();
        file.write_all_at(b"in the middle", 32 << 30).unwrap();
        file.write_all_at(b"first", 0).unwrap();
    });
    append(&fx.path("sparse"), b"end").unwrap();
    let meta = fs::metadata(fx.rw.join("sparse")).unwrap();
    assert_eq!(meta.len(), (64 << 30) + 3);
    assert!(meta.blocks() * 512 <= 128 * 1024, "{} blocks", meta.blocks());
    let file = File::open(fx.path("sparse")).unwrap();
    let mut bytes = [0; 13];
    file.read_exact_at(&mut bytes, 32 << 30).unwrap();
    assert_eq!(&bytes, b"in the middle");
    assert_eq!(fs::metadata(fx.path("sparse")).unwrap().blocks(), meta.blocks());
}

/// Returns the times of a file: as the kernel has cached them, and as the server has them.
fn times(path: &Path) -> [[i64; 4]; 2] {
    [AtFlags::empty(), AtFlags::STATX_FORCE_SYNC].map(|flags| {
        let stat = statx(CWD, path, flags, StatxFlags::BASIC_STATS).unwrap();
        let (ctime, mtime) = (stat.stx_ctime, stat.stx_mtime);
        [ctime.tv_sec, ctime.tv_nsec.into(), mtime.tv_sec, mtime.tv_nsec.into()]
    })
}

/// A copy-up moves the change time of the directory. GNU tar takes a later one for a change.
fn cached_times_of_directories_are_right_after_a_copy_up(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        for dir in ["d", "d/inner", "e"] {
            fs::create_dir(ro.join(dir)).unwrap();
            for name in ["append", "mode", "big"] {
                fs::write(ro.join(dir).join(name), vec![b'x'; 100_000]).unwrap();
            }
        }
        fs::hard_link(ro.join("e/append"), ro.join("e/link")).unwrap();
    });
    let dirs = ["", "d", "d/inner", "e"].map(|dir| fx.path(dir));
    let check = |what: &str, change: &dyn Fn()| {
        dirs.iter().map(|dir| times(dir)).for_each(|_cached| {});
        change();
        for dir in &dirs {
            let [cached, now] = times(dir);
            assert_eq!(cached, now, "{} after {what}", dir.display());
        }
    };
    check("a first copy", &|| append(&fx.path("d/inner/append"), b"end").unwrap());
    check("another copy", &|| append(&fx.path("d/inner/big"), b"end").unwrap());
    check("a copy of attributes", &|| {
        fs::set_permissions(fx.path("d/inner/mode"), PermissionsExt::from_mode(0o600)).unwrap();
    });
    check("a copy of its data", &|| append(&fx.path("d/inner/mode"), b"end").unwrap());
    check("a copy of a file with several names", &|| append(&fx.path("e/append"), b"end").unwrap());
    check("a removal", &|| fs::remove_file(fx.path("e/big")).unwrap());
    check("a rename", &|| fs::rename(fx.path("d/big"), fx.path("e/mode")).unwrap());
}

/// Truncating a file, also by O_TRUNC, copies only the remaining bytes.
fn truncation_copies_only_the_remaining_bytes(transport: Transport) {
    let data = Rng::new(1).bytes(30 << 20);
    let fx = Fixture::new(transport, |ro| {
        ["a", "b", "c"].iter().for_each(|name| fs::write(ro.join(name), &data).unwrap());
    });
    let free = || rustix::fs::statvfs(&fx.rw).unwrap().f_bfree * 4096;
    let before = free();
    fs::write(fx.path("a"), "short").unwrap();
    File::options().write(true).open(fx.path("b")).unwrap().set_len(1000).unwrap();
    assert_eq!(fs::read(fx.path("a")).unwrap(), b"short");
    assert!(fs::read(fx.path("b")).unwrap() == data[..1000]);
    rustix::fs::sync();
    let used = before.saturating_sub(free());
    assert!(used < 1 << 20, "{used} bytes were used");
    append(&fx.path("c"), b"+").unwrap();
    assert!(fs::read(fx.path("c")).unwrap()[..data.len()] == data);
}

/// Copy-up creates missing parent directories with the attributes of the originals.
fn created_parents_have_the_originals_attributes(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        sh(
            "cd \"$1\"; mkdir -p a/b/c untouched/x; echo f > a/b/c/f; chmod 2751 a; chown 1000:2000 a; chmod 700 a/b
             setfattr -n user.x -v y a/b; setfacl -m u:1001:rx -d -m g:2000:rwx a/b/c; touch -d 2001-01-01 a/b/c a/b a",
            &[ro],
        );
    });
    let before = tree::read(fx.union.dir());
    append(&fx.path("a/b/c/f"), b"+").unwrap();
    let on_rw = tree::read(&fx.rw);
    for dir in [&b"a"[..], b"a/b", b"a/b/c"] {
        let (want, got) = (&before[dir], &on_rw[dir]);
        assert_eq!((want.mode, want.owner, want.mtime), (got.mode, got.owner, got.mtime), "{}", dir.escape_ascii());
        assert_eq!(want.xattrs, got.xattrs, "{}", dir.escape_ascii());
    }
    assert!(!on_rw.contains_key(&b"untouched"[..]), "an unneeded parent was created");
    let mut after = tree::read(fx.union.dir());
    let file = &b"a/b/c/f"[..];
    assert_eq!(after[file].size, 3);
    after.insert(file.to_vec(), before[file].clone());
    assert_eq!(tree::difference(&before, &after, Times::Exact), "");
}

/// Starts a process that appends to `file`, to be interrupted.
fn appending(file: &Path) -> std::process::Child {
    let mut command = Command::new("bash");
    command.args(["-c", "trap - INT; echo x >> \"$1\"", "bash"]).arg(file).stdin(Stdio::null());
    command.spawn().unwrap()
}

/// An interrupted copy-up of a large file leaves nothing behind and does not change the file.
///
/// The signal must arrive during the copy-up: the file grows until it does.
fn an_interrupted_copy_up_leaves_nothing(transport: Transport) {
    let mut fx = Fixture::with(Sandbox::new(), 3000, transport, Delete::Whiteout, |ro| {
        let block = Rng::new(2).bytes(16 << 20);
        for mib in [256_u64, 1024] {
            let file = File::create(ro.join(mib.to_string())).unwrap();
            (0..mib / 16).for_each(|i| file.write_all_at(&block, i * (16 << 20)).unwrap());
        }
    });
    let mut interrupted = 0;
    let mut copied = Vec::new();
    for name in ["256", "1024"] {
        for wait in [5, 20, 60] {
            let before = fs::metadata(fx.path(name)).unwrap();
            let mut child = appending(&fx.path(name));
            // The signal comes during the copy-up.
            std::thread::sleep(Duration::from_millis(wait));
            kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
            let ended = child.wait().unwrap();
            if ended.signal().is_none() || fx.rw.join(name).exists() {
                // The copy-up finished before the signal.
                copied.push(name.as_bytes().to_vec());
                break;
            }
            interrupted += 1;
            let after = fs::metadata(fx.path(name)).unwrap();
            assert_eq!(
                (after.len(), after.ino(), after.mtime_nsec()),
                (before.len(), before.ino(), before.mtime_nsec())
            );
            assert_eq!(users_files(&fx.rw), copied, "leftovers on the read-write branch");
            assert_eq!(leftovers(&fx.rw), Vec::<Vec<u8>>::new(), "leftovers in the work directory");
        }
    }
    assert!(interrupted > 0, "the signal interrupted none of six copy-ups");
    // The file can still be copied up.
    append(&fx.path("256"), b"+").unwrap();
    fx.remount();
    run(Command::new("cmp").args(["-n", "268435456"]).arg(fx.path("256")).arg(fx.ro.join("256")));
}

/// chmod of a large file does not block its readers: they read the old bytes during the copy-up.
fn copy_up_does_not_block_readers(transport: Transport) {
    let block = Rng::new(3).bytes(16 << 20);
    let fx = Fixture::with(Sandbox::new(), 1500, transport, Delete::Whiteout, |ro| {
        let file = File::create(ro.join("f")).unwrap();
        (0..40).for_each(|i| file.write_all_at(&block, i * (16 << 20)).unwrap());
    });
    let reader = File::open(fx.path("f")).unwrap();
    let path = fx.path("f");
    let changing = std::thread::spawn(move || append(&path, b"x").unwrap());
    let mut reads_meanwhile = 0;
    let mut bytes = vec![0; 4096];
    let mut rng = Rng::new(4);
    while !changing.is_finished() {
        let at = rng.below((16 << 20) - 4096);
        reader.read_exact_at(&mut bytes, at + (rng.below(40) << 24)).unwrap();
        let at = usize::try_from(at).unwrap();
        assert!(bytes == block[at..at + 4096]);
        // stat and lookup must not block either.
        assert!([40 << 24, (40 << 24) + 1].contains(&fs::metadata(fx.path("f")).unwrap().len()));
        reads_meanwhile += 1;
    }
    changing.join().unwrap();
    assert!(reads_meanwhile > 3, "{reads_meanwhile} reads while 640 MiB were copied");
    assert_eq!(fs::metadata(fx.path("f")).unwrap().len(), (40 << 24) + 1);
}

/// Performs an action that may fail with one of the `allowed` errors. If it fails, nothing visible
/// may have changed. Returns whether it succeeded.
fn fails_or_not(fx: &Fixture, what: &str, allowed: &[Errno], action: impl FnOnce() -> std::io::Result<()>) -> bool {
    let before = tree::read(fx.union.dir());
    let Err(error) = action() else { return true };
    let errno = Errno::from_io_error(&error).unwrap();
    assert!(allowed.contains(&errno), "{what}: {errno:?}");
    let after = tree::read(fx.union.dir());
    assert_eq!(tree::difference(&before, &after, Times::Exact), "", "{what} failed, but changed the tree");
    false
}

/// A full read-write branch: operations fail with ENOSPC, and no data is lost or changed.
fn a_full_branch_returns_enospc_and_loses_nothing(transport: Transport) {
    let sandbox = Sandbox::new();
    let mut fx = Fixture::with(sandbox, 12, transport, Delete::Whiteout, |ro| {
        fs::write(ro.join("big"), Rng::new(5).bytes(4 << 20)).unwrap();
        fs::create_dir_all(ro.join("dir/sub")).unwrap();
        (0..40).for_each(|i| fs::write(ro.join(format!("dir/{i}")), Rng::new(i).bytes(3000)).unwrap());
        fs::hard_link(ro.join("dir/1"), ro.join("dir/link")).unwrap();
    });
    let filler = File::create(fx.path("filler")).unwrap();
    let block = vec![7; 64 * 1024];
    let mut at = 0;
    let full = loop {
        match filler.write_at(&block, at) {
            Ok(n) => at += n as u64,
            Err(e) => break e,
        }
    };
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    filler.sync_all().unwrap();
    drop(filler);
    let nospc = &[Errno::NOSPC];
    let mut done = 0;
    let mut attempt = |what: &str, action: &dyn Fn() -> std::io::Result<()>| {
        done += u32::from(fails_or_not(&fx, what, nospc, action));
    };
    attempt("append to a big file", &|| append(&fx.path("big"), b"+"));
    attempt("chmod of a big file", &|| fs::set_permissions(fx.path("big"), fs::Permissions::from_mode(0o600)));
    for i in 0..40 {
        let name = fx.path(&format!("dir/{i}"));
        match i % 5 {
            0 => attempt("append", &|| append(&name, b"+")),
            1 => attempt("unlink", &|| fs::remove_file(&name)),
            2 => attempt("rename", &|| fs::rename(&name, fx.path(&format!("r{i}")))),
            3 => attempt("link", &|| fs::hard_link(&name, fx.path(&format!("l{i}")))),
            _ => attempt("create", &|| fs::write(fx.path(&format!("dir/new{i}")), "").map(drop)),
        }
    }
    attempt("rename of a directory", &|| fs::rename(fx.path("dir"), fx.path("moved")));
    attempt("symlink", &|| symlink("x".repeat(1000), fx.path("s")));
    assert!(done < 40, "nothing failed on a full branch");
    assert_eq!(leftovers(&fx.rw), Vec::<Vec<u8>>::new(), "leftovers in the work directory");
    fx.remount();
    // After space is freed, everything works again.
    fs::remove_file(fx.path("filler")).unwrap();
    append(&fx.path("big"), b"+").unwrap();
    assert_eq!(fs::metadata(fx.path("big")).unwrap().len(), (4 << 20) + 1);
}

/// On a branch whose last block and whose directory are full after copy-ups, removing files
/// succeeds and frees space.
fn removing_files_frees_a_full_branch(transport: Transport) {
    const FILES: usize = 60;
    let long = |kind: &str, n: usize| format!("{kind}{n:03}{}", "-".repeat(150));
    for delete in [Delete::Whiteout, Delete::All] {
        let mut fx = Fixture::with(Sandbox::new(), 16, transport, delete, |ro| {
            (0..FILES).for_each(|i| fs::write(ro.join(long("f", i)), Rng::new(i as u64).bytes(150 << 10)).unwrap());
            fs::hard_link(ro.join(long("f", 0)), ro.join("another")).unwrap();
            fs::create_dir_all(ro.join("tree/dir")).unwrap();
            (0..5).for_each(|i| fs::write(ro.join(format!("tree/dir/{i}")), "text").unwrap());
        });
        let before = rustix::fs::statvfs(&fx.rw).unwrap().f_bfree;
        (0..5).for_each(|i| append(&fx.path(&format!("tree/dir/{i}")), b"+").unwrap());
        let filler = File::create(fx.rw.with_file_name("filler")).unwrap();
        filler.write_all_at(&vec![7; 8 << 20], 0).unwrap();
        let touched = |i: &usize| append(&fx.path(&long("f", *i)), b"+").is_ok();
        assert!((0..FILES).filter(touched).count() < FILES, "the branch is too large for this test");
        // Uses up the last block, then the last slot of the directory.
        let mut at = 8 << 20;
        while let Ok(n) = filler.write_at(&[7; 1024], at) {
            at += n as u64;
        }
        filler.sync_all().unwrap();
        drop(filler);
        let mut n = 0;
        while File::create(fx.path(&long("n", n))).is_ok() {
            n += 1;
            assert!(n < 10_000);
        }
        for i in 0..FILES {
            fs::remove_file(fx.path(&long("f", i))).unwrap_or_else(|e| panic!("{delete:?}: file {i}: {e}"));
        }
        fs::remove_file(fx.path("another")).unwrap();
        fs::remove_dir_all(fx.path("tree")).unwrap();
        (0..n).for_each(|n| fs::remove_file(fx.path(&long("n", n))).unwrap());
        assert_eq!(fs::read_dir(fx.union.dir()).unwrap().count(), 0);
        fs::remove_file(fx.rw.with_file_name("filler")).unwrap();
        fx.remount();
        assert_eq!(fs::read_dir(fx.union.dir()).unwrap().count(), 0);
        let after = rustix::fs::statvfs(&fx.rw).unwrap().f_bfree;
        assert!(after + 200 > before, "{before} blocks were free, now {after}");
    }
}

/// The read-write branch has no free inode.
fn a_branch_without_free_inodes_returns_enospc(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("dir")).unwrap();
        (0..20).for_each(|i| fs::write(ro.join(format!("dir/{i}")), "text").unwrap());
        fs::write(ro.join("f"), "text").unwrap();
    });
    let mut n = 0;
    while File::create(fx.rw.with_file_name(format!("filler{n}"))).is_ok() {
        n += 1;
        assert!(n < 1_000_000);
    }
    let nospc = &[Errno::NOSPC];
    assert!(!fails_or_not(&fx, "create", nospc, || fs::write(fx.path("new"), "")));
    assert!(!fails_or_not(&fx, "mkdir", nospc, || fs::create_dir(fx.path("newdir"))));
    assert!(!fails_or_not(&fx, "append", nospc, || append(&fx.path("f"), b"+")));
    assert!(!fails_or_not(&fx, "unlink", nospc, || fs::remove_file(fx.path("dir/1"))));
    assert!(!fails_or_not(&fx, "rename", nospc, || fs::rename(fx.path("f"), fx.path("g"))));
    assert!(!fails_or_not(&fx, "rename of a directory", nospc, || fs::rename(fx.path("dir"), fx.path("moved"))));
    (0..10).for_each(|i| fs::remove_file(fx.rw.with_file_name(format!("filler{i}"))).unwrap());
    append(&fx.path("f"), b"+").unwrap();
    fs::remove_file(fx.path("dir/1")).unwrap();
}

/// The read-write branch's file system turns read-only, as ext4 does after an error: operations
/// fail with EROFS and change nothing.
fn a_branch_that_turns_read_only_returns_erofs(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("dir")).unwrap();
        fs::write(ro.join("dir/f"), "text").unwrap();
        fs::write(ro.join("g"), "text").unwrap();
    });
    fs::write(fx.path("mine"), "text").unwrap();
    rustix::fs::sync();
    let script = "mount -o remount,errors=remount-ro \"$1\"; device=$(findmnt -no SOURCE \"$1\")
                  echo 1 > /sys/fs/ext4/${device##*/}/trigger_fs_error; ! touch \"$1\"/f 2>/dev/null";
    sh(script, &[fx.rw.parent().unwrap()]);
    let rofs = &[Errno::ROFS];
    assert!(!fails_or_not(&fx, "create", rofs, || fs::write(fx.path("new"), "")));
    assert!(!fails_or_not(&fx, "mkdir", rofs, || fs::create_dir(fx.path("newdir"))));
    assert!(!fails_or_not(&fx, "append", rofs, || append(&fx.path("dir/f"), b"+")));
    assert!(!fails_or_not(&fx, "append to its own", rofs, || append(&fx.path("mine"), b"+")));
    assert!(!fails_or_not(&fx, "unlink", rofs, || fs::remove_file(fx.path("dir/f"))));
    assert!(!fails_or_not(&fx, "rename", rofs, || fs::rename(fx.path("g"), fx.path("h"))));
    assert!(!fails_or_not(&fx, "rename of a directory", rofs, || fs::rename(fx.path("dir"), fx.path("moved"))));
    assert!(!fails_or_not(&fx, "chmod", rofs, || fs::set_permissions(fx.path("g"), fs::Permissions::from_mode(0o600))));
    assert_eq!(fs::read_to_string(fx.path("mine")).unwrap(), "text");
}

/// A union with a writable branch, mounted with `ro`, writes nothing.
fn a_read_only_mount_writes_nothing(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), "text").unwrap());
    fs::write(fx.path("mine"), "text").unwrap();
    fx.union.unmount();
    let before = tree::read(&fx.rw);
    let union = Mounted::with_options(Spec::union(&fx.rw, &fx.ro, transport), &fx.sandbox.path("r"), "ro");
    for name in ["f", "mine"] {
        assert_eq!(fs::read_to_string(union.path(name)).unwrap(), "text");
        let error = append(&union.path(name), b"+").unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
    }
    drop(union);
    assert_eq!(tree::difference(&before, &tree::read(&fx.rw), Times::Exact), "", "the branch was written");
    fx.union.mount_again();
}

/// Checks that every file of the crash test below has either the old or the new contents.
fn check_all_or_nothing(tree: &Tree, old: u64, new: u64, files: usize) {
    let mut seen = 0;
    for (path, node) in tree.iter().filter(|(_, node)| rustix::fs::FileType::from_raw_mode(node.mode).is_file()) {
        assert!(
            [old, new].contains(&node.content),
            "{} is neither old nor new ({} bytes)",
            path.escape_ascii(),
            node.size
        );
        seen += 1;
    }
    assert_eq!(seen, files, "files are missing or duplicated");
}

/// The server is killed during copy-ups and renames: every file has the old or the new contents,
/// and none is missing.
fn killed_during_copy_up_each_file_is_old_or_new(transport: Transport) {
    const FILES: usize = 60;
    let old = Rng::new(6).bytes(400_000);
    let new = [&b"NEW"[..], &old[3..]].concat();
    for round in 0..if strata_tests::long() { 40 } else { 6_u64 } {
        let mut fx = Fixture::with(Sandbox::new(), 128, transport, Delete::Whiteout, |ro| {
            for dir in 0..6 {
                fs::create_dir(ro.join(format!("d{dir}"))).unwrap();
                (0..FILES / 6).for_each(|i| fs::write(ro.join(format!("d{dir}/{i}")), &old).unwrap());
            }
        });
        let root = fx.union.dir().to_owned();
        let work = std::thread::spawn(move || {
            // Until it fails: overwrites the first bytes, which copies the file up, and renames
            // files and directories.
            let mut rng = Rng::new(round);
            for step in 0..100_000_u64 {
                let dirs: Vec<_> = fs::read_dir(&root)?.collect::<Result<_, _>>()?;
                let paths: Vec<_> = dirs.iter().map(fs::DirEntry::path).collect();
                if paths.is_empty() {
                    // The mount is gone: this is the directory below the mount point.
                    return Err(std::io::Error::other("gone"));
                }
                let dir = rng.pick(&paths);
                let files: Vec<_> = fs::read_dir(&dir)?.collect::<Result<_, _>>()?;
                let Some(file) = files.get(rng.below(files.len())) else { continue };
                match rng.below(4) {
                    0 => File::options().write(true).open(file.path())?.write_all_at(b"NEW", 0)?,
                    1 => fs::rename(file.path(), dir.join(format!("f{step}")))?,
                    2 => fs::rename(&dir, root.join(format!("e{step}")))?,
                    _ => fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600))?,
                }
            }
            Ok::<(), std::io::Error>(())
        });
        // The kill comes at different steps.
        std::thread::sleep(Duration::from_millis(10 + 17 * round));
        fx.union.crash();
        let outcome = work.join().unwrap();
        assert!(outcome.is_err(), "no operation failed although the server was killed");
        fx.union.mount_again();
        let tree = tree::read(fx.union.dir());
        check_all_or_nothing(&tree, tree::hash(&old), tree::hash(&new), FILES);
        assert_eq!(leftovers(&fx.rw), Vec::<Vec<u8>>::new(), "the next mount left unfinished work");
        // The mount works.
        append(&fx.path("new"), b"").unwrap_err();
        fs::write(fx.path("new"), "new").unwrap();
        fx.remount();
        assert_eq!(tree::read(fx.union.dir()).len(), tree.len() + 1);
    }
}

on_both_transports!(
    copy_up_keeps_holes,
    cached_times_of_directories_are_right_after_a_copy_up,
    truncation_copies_only_the_remaining_bytes,
    created_parents_have_the_originals_attributes,
    an_interrupted_copy_up_leaves_nothing,
    copy_up_does_not_block_readers,
    a_full_branch_returns_enospc_and_loses_nothing,
    removing_files_frees_a_full_branch,
    a_branch_without_free_inodes_returns_enospc,
    a_branch_that_turns_read_only_returns_erofs,
    a_read_only_mount_writes_nothing,
    killed_during_copy_up_each_file_is_old_or_new,
);
