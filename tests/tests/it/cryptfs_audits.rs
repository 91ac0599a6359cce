//! Faults that audits and users of encrypted file systems found, each as a test.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use strata_tests::crypt::Volume;
use strata_tests::process::sh;
use strata_tests::user::{OTHER, USER, as_user};
use strata_tests::{Mounted, Rng, Sandbox, Transport, long, on_both_transports};

/// A mounted volume on ext4, which reuses inode numbers.
struct Audited {
    mounted: Mounted,
    volume: Volume,
    sandbox: Sandbox,
}

impl Audited {
    fn new(transport: Transport, options: &str) -> Self {
        let sandbox = Sandbox::new();
        let volume = Volume::new(&sandbox.ext4("disk", 64).join("volume"), &[]);
        let mounted = Mounted::with_options(volume.spec(transport), &sandbox.path("m"), options);
        Self { mounted, volume, sandbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    /// Runs `make`, which creates one entry in the root, and returns its path below.
    fn below(&self, make: impl FnOnce()) -> PathBuf {
        let list = || -> Vec<PathBuf> {
            let entries = fs::read_dir(self.volume.dir()).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| !path.as_os_str().as_bytes().ends_with(b"-journal")).collect()
        };
        let before = list();
        make();
        let mut new: Vec<_> = list().into_iter().filter(|path| !before.contains(path)).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        new.pop().unwrap()
    }

    /// Unmounts the volume; gocryptfs must find no damage and the same tree.
    fn check(mut self) {
        let script = "cd \"$1\"; find . -type f | sort | xargs -r -d '\\n' cksum; find . | sort; find . -type l -printf '%l\\n' | sort";
        let seen = sh(script, &[self.mounted.dir()]);
        self.mounted.unmount();
        let fsck = self.volume.fsck();
        assert!(fsck.status.success(), "{}", fsck.text);
        let other = self.volume.gocryptfs(&self.sandbox.path("g"));
        assert_eq!(sh(script, &[other.dir()]), seen);
    }
}

fn header(lower: &Path) -> Vec<u8> {
    let mut header = vec![0; 18];
    let len = File::open(lower).unwrap().read_at(&mut header, 0).unwrap();
    header.truncate(len);
    header
}

/// A file ID does not outlive the data that it was made for: who writes the volume can't choose it
/// for later data.
fn file_ids_are_fresh(transport: Transport) {
    let audited = Audited::new(transport, "cache=0");
    let lower = audited.below(|| fs::write(audited.path("file"), "first").unwrap());
    let mut seen = vec![header(&lower)];
    let mut next = |how: &str| {
        let now = header(&lower);
        assert_eq!(now.len(), 18, "{how}");
        assert!(!seen.contains(&now), "{how}: a file ID is used again");
        seen.push(now);
    };
    for _ in 0..3 {
        // O_TRUNC, truncate(2) by name and ftruncate(2).
        fs::write(audited.path("file"), "next").unwrap();
        next("O_TRUNC");
        let file = OpenOptions::new().write(true).open(audited.path("file")).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(fs::metadata(&lower).unwrap().len(), 0);
        file.write_all_at(b"x", 10_000).unwrap();
        next("ftruncate");
        sh("truncate -s 0 \"$1\"; truncate -s 5000 \"$1\"", &[audited.path("file")]);
        next("truncate");
    }
    // A header that somebody put there beforehand.
    fs::write(audited.path("file"), "").unwrap();
    fs::write(&lower, [&[0, 2][..], &[7; 16]].concat()).unwrap();
    assert_eq!(fs::read(audited.path("file")).unwrap(), b"");
    fs::write(audited.path("file"), "text").unwrap();
    assert_ne!(header(&lower)[2..], [7; 16]);
    fs::write(&lower, [&[0, 2][..], &[7; 16]].concat()).unwrap();
    let file = OpenOptions::new().append(true).open(audited.path("file")).unwrap();
    file.write_all_at(b"text", 0).unwrap();
    assert_ne!(header(&lower)[2..], [7; 16]);
    drop(file);
    audited.check();
}

/// Files that get the inode numbers of removed ones, while those are still open, have their own
/// data and IDs.
fn reused_inode_numbers(transport: Transport) {
    let audited = Audited::new(transport, "");
    let rounds = if long() { 3000 } else { 300 };
    std::thread::scope(|scope| {
        for who in 0..4_u64 {
            let dir = audited.path(&format!("dir{who}"));
            scope.spawn(move || {
                let mut rng = Rng::new(who);
                fs::create_dir(&dir).unwrap();
                let mut held: Option<(File, Vec<u8>)> = None;
                for round in 0..rounds {
                    let path = dir.join(format!("f{}", round % 3));
                    let len = 1 + rng.below(9000);
                    let bytes = rng.bytes(len);
                    let _ = fs::remove_file(&path);
                    fs::write(&path, &bytes).unwrap();
                    if let Some((file, old)) = held.take() {
                        let mut got = vec![0; old.len()];
                        file.read_exact_at(&mut got, 0).unwrap();
                        assert!(got == old, "{who}, {round}: a removed file has other data");
                    }
                    assert!(fs::read(&path).unwrap() == bytes, "{who}, {round}");
                    held = Some((OpenOptions::new().read(true).write(true).open(&path).unwrap(), bytes));
                }
            });
        }
    });
    audited.check();
}

/// A user who can write the volume replaces directories by symbolic links while they are used:
/// nothing outside is read or created.
fn directories_replaced_by_links(transport: Transport) {
    let audited = Audited::new(transport, "cache=0");
    let outside = audited.sandbox.dir("outside");
    let dir = audited.below(|| fs::create_dir(audited.path("dir")).unwrap());
    fs::write(audited.path("dir/file"), "text").unwrap();
    // What the encrypted names lead to if a link is followed.
    sh(
        "cp -a \"$1\"/. \"$2\"; find \"$2\" -type f -name 'gocryptfs*' -o -type f -exec truncate -s 0 {} +",
        &[&dir, &outside],
    );
    let before = sh("cd \"$1\"; find . -printf '%p %s %T@\\n' | sort", &[&outside]);
    let (end, aside) = (AtomicBool::new(false), dir.with_extension("aside"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                fs::rename(&dir, &aside).unwrap();
                symlink(&outside, &dir).unwrap();
                std::thread::yield_now();
                fs::remove_file(&dir).unwrap();
                fs::rename(&aside, &dir).unwrap();
                std::thread::yield_now();
            }
        });
        for round in 0..if long() { 5000 } else { 400 } {
            let path = audited.path(&format!("dir/new{round}"));
            let _ = fs::write(&path, "created");
            let _ = fs::create_dir(audited.path(&format!("dir/d{round}")));
            let _ = OpenOptions::new().append(true).open(audited.path("dir/file")).map(|file| file.set_len(9000));
            if let Ok(bytes) = fs::read(audited.path("dir/file")) {
                assert!(bytes.starts_with(b"text"), "{bytes:?}");
            }
            let _ = fs::remove_file(&path);
        }
        end.store(true, Ordering::Relaxed);
    });
    assert_eq!(sh("cd \"$1\"; find . -printf '%p %s %T@\\n' | sort", &[&outside]), before);
    assert!(fs::read(audited.path("dir/file")).unwrap().starts_with(b"text"));
}

/// A directory that replaces another one of the same name has its own initialization vector.
fn initialization_vectors_are_not_stale(transport: Transport) {
    let audited = Audited::new(transport, "");
    let dir = audited.path("dir");
    let mut seen = Vec::new();
    for round in 0..30 {
        let lower = audited.below(|| fs::create_dir(&dir).unwrap());
        fs::write(dir.join("file"), format!("{round}")).unwrap();
        fs::write(dir.join("long".repeat(50)), format!("{round}")).unwrap();
        let iv = fs::read(lower.join("gocryptfs.diriv")).unwrap();
        assert!(iv.len() == 16 && !seen.contains(&iv));
        seen.push(iv);
        match round % 3 {
            0 => fs::remove_dir_all(&dir).unwrap(),
            1 => {
                fs::create_dir_all(audited.path("kept")).unwrap();
                fs::rename(&dir, audited.path(&format!("kept/{round}"))).unwrap();
            }
            _ => {
                // Over an empty directory, whose vector ends with it.
                fs::create_dir_all(audited.path("kept/empty")).unwrap();
                fs::rename(&dir, audited.path("kept/empty")).unwrap();
                fs::rename(audited.path("kept/empty"), audited.path(&format!("kept/{round}"))).unwrap();
            }
        }
    }
    for round in (0..30).filter(|round| round % 3 != 0) {
        let kept = audited.path(&format!("kept/{round}"));
        assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), format!("{round}"));
        assert_eq!(fs::read_to_string(kept.join("long".repeat(50))).unwrap(), format!("{round}"));
    }
    audited.check();
}

/// Each name of a file with several long names is complete, whichever is removed or renamed.
fn hard_links_with_long_names(transport: Transport) {
    let mut audited = Audited::new(transport, "");
    let long = |n: usize| format!("{n}{}", "-long".repeat(45));
    fs::create_dir(audited.path("dir")).unwrap();
    fs::write(audited.path(&long(0)), "text").unwrap();
    for n in 1..6 {
        fs::hard_link(audited.path(&long(0)), audited.path("dir").join(long(n))).unwrap();
    }
    fs::hard_link(audited.path(&long(0)), audited.path("short")).unwrap();
    fs::remove_file(audited.path(&long(0))).unwrap();
    fs::remove_file(audited.path("dir").join(long(1))).unwrap();
    fs::rename(audited.path("dir").join(long(2)), audited.path(&long(2))).unwrap();
    fs::rename(audited.path("dir").join(long(3)), audited.path("dir/short")).unwrap();
    fs::rename(audited.path("short"), audited.path("dir").join(long(3))).unwrap();
    // Over another name of the same file, and over another file.
    fs::rename(audited.path("dir").join(long(4)), audited.path("dir").join(long(5))).unwrap();
    fs::write(audited.path(&long(9)), "other").unwrap();
    fs::rename(audited.path("dir").join(long(5)), audited.path(&long(9))).unwrap();
    audited.mounted.remount();
    let mut names = sh("cd \"$1\"; find . -type f | sort", &[audited.mounted.dir()]);
    names = names.replace(&"-long".repeat(45), "");
    // A rename over another name of the same file does nothing.
    assert_eq!(names, "./2\n./9\n./dir/3\n./dir/4\n./dir/short\n");
    assert_eq!(fs::metadata(audited.path(&long(2))).unwrap().nlink(), 5);
    assert_eq!(fs::read_to_string(audited.path(&long(9))).unwrap(), "text");
    let count = |pattern: &str| {
        let script = "find \"$1\" -name \"$2\" | wc -l";
        sh(script, &[audited.volume.dir(), Path::new(pattern)]).trim().to_owned()
    };
    assert_eq!((count("gocryptfs.longname.*.name").as_str(), count("gocryptfs.longname.*").as_str()), ("4", "8"));
    audited.check();
}

/// The same long name in several directories is stored differently in each.
fn one_long_name_in_many_directories(transport: Transport) {
    let mut audited = Audited::new(transport, "");
    let name = "long".repeat(60);
    let dirs: Vec<_> = (0..20).map(|n| format!("dir{n}")).collect();
    for dir in &dirs {
        fs::create_dir(audited.path(dir)).unwrap();
        fs::write(audited.path(dir).join(&name), dir).unwrap();
    }
    for _ in 0..2 {
        for dir in dirs.iter().rev().chain(&dirs) {
            assert_eq!(fs::read_to_string(audited.path(dir).join(&name)).unwrap(), *dir);
        }
        audited.mounted.remount();
    }
    let stored = sh(
        "cd \"$1\"; find . -name 'gocryptfs.longname.*.name' -printf '%f\\n' | sort -u | wc -l",
        &[audited.volume.dir()],
    );
    assert_eq!(stored.trim(), "20");
    audited.check();
}

/// Users who create files at the same time own theirs: a server that changes its identity must not
/// do so in other threads.
fn owners_of_concurrent_users(transport: Transport) {
    let audited = Audited::new(transport, "");
    let dir = audited.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    std::thread::scope(|scope| {
        for (who, user) in [("user", USER), ("other", OTHER)] {
            for thread in 0..2 {
                let dir = &dir;
                scope.spawn(move || {
                    as_user(user, || {
                        for n in 0..if long() { 2000 } else { 150 } {
                            let path = dir.join(format!("{who}-{thread}-{n}"));
                            fs::write(&path, "text").unwrap();
                            fs::create_dir(path.with_extension("d")).unwrap();
                            symlink("target", path.with_extension("l")).unwrap();
                        }
                    });
                });
            }
        }
    });
    for entry in fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        let meta = fs::symlink_metadata(entry.path()).unwrap();
        let user = if entry.file_name().as_bytes().starts_with(b"user") { USER } else { OTHER };
        assert_eq!((meta.uid(), meta.gid()), (user.uid, user.gid), "{:?}", entry.file_name());
        if meta.is_dir() {
            // Its owner can use it, though the state of the directory is the server's.
            as_user(user, || fs::write(entry.path().join("inner"), "text")).unwrap();
        }
    }
    audited.check();
}

/// Files that an attacker exchanges, brings back or cuts off at blocks are not detected as changed,
/// as docs/formats/cryptfs.md says: only whole, authentic blocks of the same file are shown.
fn limits_of_the_format(transport: Transport) {
    let audited = Audited::new(transport, "cache=0");
    let [first, second] = [1, 2].map(|n| Rng::new(n).bytes(3 * 4096));
    let one = audited.below(|| fs::write(audited.path("one"), &first).unwrap());
    let two = audited.below(|| fs::write(audited.path("two"), &second).unwrap());
    let aside = one.with_extension("aside");
    for (from, to) in [(&one, &aside), (&two, &one), (&aside, &two)] {
        fs::rename(from, to).unwrap();
    }
    assert!(fs::read(audited.path("one")).unwrap() == second && fs::read(audited.path("two")).unwrap() == first);
    OpenOptions::new().write(true).open(&one).unwrap().set_len(18 + 4128).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while fs::read(audited.path("one")).unwrap().len() != 4096 {
        assert!(std::time::Instant::now() < end);
    }
    assert!(fs::read(audited.path("one")).unwrap() == second[..4096]);
    audited.check();
}

on_both_transports!(
    file_ids_are_fresh,
    reused_inode_numbers,
    directories_replaced_by_links,
    initialization_vectors_are_not_stale,
    hard_links_with_long_names,
    one_long_name_in_many_directories,
    owners_of_concurrent_users,
    limits_of_the_format,
);
