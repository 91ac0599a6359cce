//! Pools of disks: placement of new files, and moving files between branches in use.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::FileType;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use strata_tests::handle::Handle;
use strata_tests::mapping::Mapping;
use strata_tests::process::{sh, try_run};
use strata_tests::suite::fsx;
use strata_tests::tree::{self, Time, Tree};
use strata_tests::{Delete, Mode, Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};
use testkit::until;

const MIB: usize = 1 << 20;

/// A union of disks of the given sizes in MiB, all read-write.
struct Pool {
    union: Mounted,
    disks: Vec<PathBuf>,
    sandbox: Sandbox,
}

impl Pool {
    fn new(transport: Transport, sizes: &[u64], options: &str) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let disk = |(at, &mib): (usize, &u64)| {
            let dir = sandbox.ext4(&format!("disk{at}"), mib).join("pool");
            fs::create_dir(&dir).unwrap();
            dir
        };
        let disks: Vec<PathBuf> = sizes.iter().enumerate().map(disk).collect();
        let branches = disks.iter().map(|disk| (disk.clone(), Mode::Rw)).collect();
        let spec = Spec::Union { branches, delete: Delete::Whiteout, transport };
        let union = Mounted::with_options(spec, &sandbox.path("u"), options);
        Self { union, disks, sandbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.union.path(name)
    }

    /// Runs `unionctl` and returns its exit status and output.
    fn try_ctl(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(Mounted::program().unwrap());
        let output = try_run(command.arg0("unionctl").arg(self.union.dir()).args(words));
        (output.status.code(), output.text)
    }

    fn drain(&self, disk: usize) -> (Option<i32>, String) {
        self.try_ctl(&["--drain", self.disks[disk].to_str().unwrap()])
    }

    fn branches(&self) -> usize {
        self.try_ctl(&["--list"]).1.lines().count()
    }

    /// Returns the disks that have the file.
    fn places(&self, name: &str) -> Vec<usize> {
        (0..self.disks.len()).filter(|&at| self.disks[at].join(name).symlink_metadata().is_ok()).collect()
    }

    /// Returns what is on a disk, except for the union's records.
    fn left_on(&self, disk: usize) -> String {
        sh("cd \"$1\"; find . -mindepth 1 ! -path './.wh..wh.*'", &[&self.disks[disk]])
    }
}

/// Returns how the pool differs from what it was, also in inode numbers.
fn changes(before: &Tree, pool: &Pool) -> String {
    let now = tree::read(pool.union.dir());
    let moved = before.iter().filter(|(path, node)| now.get(*path).is_some_and(|now| now.ino != node.ino));
    let numbers: String = moved.map(|(path, _)| format!("{}: another inode number\n", path.escape_ascii())).collect();
    tree::difference(before, &now, tree::Times::Exact) + &numbers
}

/// Returns the time of the kernel, as it sets times of files.
fn now(pool: &Pool) -> Time {
    let clock = pool.sandbox.path("clock");
    fs::write(&clock, "").unwrap();
    let meta = clock.metadata().unwrap();
    (meta.mtime(), meta.mtime_nsec() as u32)
}

/// As [`changes`], after a kill since `start`: between a change of an entry and the restoration of
/// its directory's time, that time is the one of the change. It stays from then on.
fn changes_after_kill(before: &mut Tree, pool: &Pool, start: Time) -> String {
    let now = tree::read(pool.union.dir());
    for (path, node) in before.iter_mut().filter(|(_, node)| FileType::from_raw_mode(node.mode).is_dir()) {
        node.mtime = now.get(path).map(|now| now.mtime).filter(|mtime| *mtime >= start).unwrap_or(node.mtime);
    }
    changes(before, pool)
}

fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// Fills a directory with objects of all kinds.
fn fill(dir: &Path, seed: u64) {
    fs::create_dir_all(dir.join("sub/empty")).unwrap();
    for at in 0..6 {
        let file = dir.join(format!("sub/file{at}"));
        fs::write(&file, random_bytes(seed + at, 300_000)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600 + at as u32)).unwrap();
        std::os::unix::fs::chown(&file, Some(at as u32), Some(7)).unwrap();
    }
    symlink("sub/file0", dir.join("link")).unwrap();
    sh(
        "cd \"$1\"; mkfifo fifo; setfattr -n user.note -v text sub/file1; setfacl -m u:5:r sub/file2; \
         truncate -s 50M sparse; printf end >> sparse; touch -d 2001-02-03 sub/file3 sub; mkdir -m 2770 shared",
        &[dir],
    );
}

/// New files go to the disk with the most free space, until all are below the minimum.
fn new_files_are_placed(transport: Transport) {
    let pool = Pool::new(transport, &[16, 48, 32], "create=mfs,minfree=4M");
    fs::create_dir(pool.path("dir")).unwrap();
    let mut places = Vec::new();
    for at in 0.. {
        match fs::write(pool.path(&format!("dir/{at}")), random_bytes(at, 2 * MIB)) {
            Ok(()) => places.extend(pool.places(&format!("dir/{at}"))),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
                break;
            }
        }
    }
    assert_eq!(places[0], 1, "{places:?}");
    let count = |disk: usize| places.iter().filter(|&&at| at == disk).count();
    assert!(count(1) > count(2) && count(2) > count(0) && count(0) > 0, "{places:?}");
    for disk in &pool.disks {
        let free = rustix::fs::statvfs(disk).unwrap();
        assert!(free.f_bavail * free.f_frsize < 4 * MIB as u64, "{}", disk.display());
    }
    let numbers = |pool: &Pool| [pool.path("dir"), pool.path("dir/0")].map(|path| fs::metadata(path).unwrap().ino());
    let before = numbers(&pool);
    let mut pool = pool;
    pool.union.remount();
    assert_eq!(numbers(&pool), before);
    // A file of the pool that grows on a full disk.
    let mut file = OpenOptions::new().append(true).open(pool.path("dir/0")).unwrap();
    assert!((0..40).any(|_| file.write_all(&vec![1; MIB]).is_err()));
}

/// Every disk can be drained: names, content, attributes, numbers and handles remain.
fn disks_are_drained(transport: Transport) {
    for disk in 0..3 {
        let pool = Pool::new(transport, &[64, 64, 64], "create=rr");
        fill(&pool.path(""), 1);
        fill(&pool.path("dir"), 100);
        let handles: Vec<Handle> =
            ["sub/file0", "dir/sub", "sub/file5"].map(|name| Handle::of(&pool.path(name))).into();
        let before = tree::read(pool.union.dir());
        let (status, text) = pool.drain(disk);
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("files moved"), "{text}");
        assert_eq!(changes(&before, &pool), "");
        assert_eq!((pool.left_on(disk), pool.branches()), (String::new(), 2));
        for handle in handles {
            handle.open(File::open(pool.union.dir()).unwrap(), rustix::fs::OFlags::RDONLY).unwrap();
        }
        let blocks = fs::metadata(pool.path("sparse")).unwrap().blocks();
        assert!(blocks < 1000, "{blocks} blocks of a sparse file");
    }
}

/// Files that are open while their disk is drained. On the first disk the kernel may have them.
fn files_in_use(transport: Transport) {
    let pool = Pool::new(transport, &[64, 64], "create=ff");
    fs::write(pool.path("early"), "early").unwrap();
    fs::write(pool.path("mapped"), vec![1; 8192]).unwrap();
    let early = OpenOptions::new().read(true).write(true).open(pool.path("early")).unwrap();
    let mapped = OpenOptions::new().read(true).write(true).open(pool.path("mapped")).unwrap();
    let mut mapping = Mapping::new(&mapped, 8192, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    // The mapping remains.
    drop(mapped);
    mapping.write(0, b"before");
    let (status, text) = pool.drain(0);
    assert_eq!(status, Some(32), "{text}");
    assert!(text.contains("/early: a program") && text.contains("/mapped: a program"), "{text}");
    early.write_all_at(b"later", 0).unwrap();
    mapping.write(0, b"during");
    assert_eq!(fs::read(pool.path("mapped")).unwrap()[..6], *b"during");
    assert_eq!(fs::read(pool.path("early")).unwrap(), b"later");
    drop(early);
    drop(mapping);
    // New files go elsewhere meanwhile, and what is opened now can move.
    fs::write(pool.path("new"), "new").unwrap();
    assert_eq!(pool.places("new"), [1]);
    let open = File::open(pool.path("early")).unwrap();
    let (status, text) = pool.drain(0);
    assert_eq!(status, Some(0), "{text}");
    fs::write(pool.path("early"), "moved").unwrap();
    let mut now = [0; 5];
    open.read_exact_at(&mut now, 0).unwrap();
    assert_eq!(now, *b"moved");
    assert_eq!((pool.places("early"), pool.left_on(0)), (vec![1], String::new()));
}

/// Programs work in the pool while a disk is drained.
fn under_load(transport: Transport) {
    for disk in [0, 1] {
        let pool = Pool::new(transport, &[128, 128, 128], "create=rr");
        fill(&pool.path("data"), 5);
        let artifacts = pool.sandbox.dir("fsx");
        let stop = AtomicBool::new(false);
        let (status, text) = thread::scope(|scope| {
            let load = scope.spawn(|| {
                for seed in 1.. {
                    let result = fsx(&pool.path("fsx-file"), seed, 800, &artifacts);
                    assert!(result.status.success(), "{}", result.text);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let git = scope.spawn(|| {
                let dir = pool.path("git");
                sh(
                    "git init -q \"$1\"; cd \"$1\"; git config user.email a@b; git config user.name n; \
                     for i in 1 2 3 4 5 6; do mkdir -p d$i; seq 1 ${i}000 > d$i/f; git add -A; git commit -qm $i; \
                     mv d$i e$i; git add -A; git commit -qm moved; done; git fsck --strict 2>&1; git status --porcelain",
                    &[&dir],
                )
            });
            // The files are in use when the branch is drained.
            thread::sleep(Duration::from_millis(300));
            let mut result = pool.drain(disk);
            let git = git.join();
            stop.store(true, Ordering::Relaxed);
            load.join().unwrap();
            let git = git.unwrap();
            let harmless = |line: &str| line.is_empty() || line.starts_with("Checking") || line.starts_with("notice");
            assert!(git.lines().all(harmless), "{git}");
            // What was in use, and directories renamed before.
            for _ in 0..3 {
                if result.0 != Some(0) {
                    result = pool.drain(disk);
                }
            }
            result
        });
        let renamed = text.contains("renamed");
        assert!(status == Some(0) || (disk == 0 && renamed), "disk {disk}: {text}");
        sh(
            "cd \"$1\"; git fsck --strict 2>&1; for i in 1 2 3 4 5 6; do seq 1 ${i}000 | cmp - e$i/f; done",
            &[pool.path("git")],
        );
    }
}

/// A moved file keeps its number, and the file system that it left gives the inode number on which
/// that is based to another file.
fn a_reused_inode_number_is_not_shared(transport: Transport) {
    let mut pool = Pool::new(transport, &[64, 64], "create=inherit");
    // A directory that lies on the second disk only.
    let make_dir = |pool: &Pool, name: &str| {
        fs::create_dir(pool.disks[1].join(name)).unwrap();
        until("the new directory is visible", || pool.path(name).exists());
    };
    let ino = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
    let below = |pool: &Pool, name: &str| -> Vec<u64> {
        fs::read_dir(pool.disks[1].join(name)).unwrap().map(|entry| ino(&entry.unwrap().path())).collect()
    };
    make_dir(&pool, "old");
    (0..12).for_each(|at| fs::write(pool.path(&format!("old/{at}")), "old").unwrap());
    let freed = below(&pool, "old");
    let (status, text) = pool.drain(1);
    assert_eq!((status, freed.len()), (Some(0), 12), "{text}");
    let (status, text) = pool.try_ctl(&["--add", "--mode", "rw", pool.disks[1].to_str().unwrap()]);
    assert_eq!(status, Some(0), "{text}");
    make_dir(&pool, "new");
    for at in 0..12 {
        match at % 2 {
            0 => fs::create_dir(pool.path(&format!("new/{at}"))).unwrap(),
            _ => fs::write(pool.path(&format!("new/{at}")), "new").unwrap(),
        }
    }
    assert!(below(&pool, "new").iter().any(|ino| freed.contains(ino)));

    let numbers = |pool: &Pool| {
        let entries = ["old", "new"].into_iter().flat_map(|dir| fs::read_dir(pool.path(dir)).unwrap());
        let number = |entry: fs::DirEntry| {
            assert_eq!(entry.ino(), ino(&entry.path()), "{entry:?}");
            (entry.ino(), entry.path())
        };
        entries.map(Result::unwrap).map(number).collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = numbers(&pool);
    assert_eq!(before.len(), 24, "{before:?}");
    pool.union.unmount();
    pool.union.mount_again();
    assert_eq!(numbers(&pool), before);

    (0..12).for_each(|at| fs::remove_file(pool.path(&format!("old/{at}"))).unwrap());
    for at in 0..12 {
        let new = pool.path(&format!("new/{at}"));
        assert_eq!(fs::metadata(&new).unwrap().nlink(), 2 - at % 2);
        if at % 2 == 0 {
            fs::write(new.join("file"), "text").unwrap();
        }
    }
}

/// The server is killed while a disk is drained: nothing is lost, and draining continues.
fn a_server_is_killed(transport: Transport) {
    for disk in [0, 2] {
        let mut pool = Pool::new(transport, &[64, 64, 64], "create=rr");
        for dir in 0..4 {
            fill(&pool.path(&format!("dir{dir}")), dir);
        }
        sh("sync -f \"$1\"; sync -f \"$2\"; sync -f \"$3\"", &pool.disks);
        let mut before = tree::read(pool.union.dir());
        let start = now(&pool);
        for round in 0..3 {
            let name = pool.disks[disk].to_str().unwrap().to_owned();
            let mut command = Command::new(Mounted::program().unwrap());
            let child = command.arg0("unionctl").arg(pool.union.dir()).args(["--drain", &name]);
            let mut child =
                child.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn().unwrap();
            // The kill comes at different steps.
            thread::sleep(Duration::from_millis(40 + 60 * round));
            pool.union.crash();
            let _ = child.wait();
            pool.union.mount_again();
            assert_eq!(changes_after_kill(&mut before, &pool, start), "", "round {round}");
        }
        let (status, text) = pool.drain(disk);
        assert_eq!(status, Some(0), "{text}");
        assert_eq!(changes(&before, &pool), "");
        assert_eq!(pool.left_on(disk), "");
    }
}

/// The others are full.
fn no_space(transport: Transport) {
    let pool = Pool::new(transport, &[16, 64], "create=mfs");
    for at in 0..12 {
        fs::write(pool.path(&format!("{at}")), random_bytes(at, 3 * MIB)).unwrap();
    }
    let before = tree::read(pool.union.dir());
    let (status, text) = pool.drain(1);
    assert_eq!(status, Some(32), "{text}");
    assert!(text.contains("no other branch has enough free space"), "{text}");
    assert_eq!(changes(&before, &pool), "");
    assert_eq!(pool.branches(), 2);
    // The branch is kept.
    let (status, text) = pool.try_ctl(&["--mode", "1", "rw"]);
    assert_eq!(status, Some(0), "{text}");
    fs::write(pool.path("new"), "x").unwrap();
    assert_eq!(pool.places("new"), [1]);
}

/// Hard links stay links when they move left.
fn hard_links(transport: Transport) {
    let pool = Pool::new(transport, &[64, 64], "create=mfs");
    fs::create_dir(pool.path("d")).unwrap();
    fs::write(pool.disks[1].join("outside"), vec![7; MIB]).unwrap();
    fs::write(pool.path("a"), "text").unwrap();
    fs::hard_link(pool.path("a"), pool.path("b")).unwrap();
    fs::hard_link(pool.path("a"), pool.path("d/c")).unwrap();
    // An out-of-band change is listed within a second, at the latest.
    until("the new file is listed", || tree::read(pool.union.dir()).contains_key(b"outside".as_slice()));
    let before = tree::read(pool.union.dir());
    let (status, text) = pool.drain(1);
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(changes(&before, &pool), "");
    assert_eq!(pool.left_on(1), "");
    fs::write(pool.path("b"), "changed").unwrap();
    assert_eq!(fs::read(pool.path("d/c")).unwrap(), b"changed");
}

/// Files move from the fullest disk to the emptiest.
fn space_is_evened_out(transport: Transport) {
    let pool = Pool::new(transport, &[64, 64, 64], "create=ff");
    for at in 0..40 {
        fs::write(pool.path(&format!("{at}")), random_bytes(at, MIB)).unwrap();
    }
    let before = tree::read(pool.union.dir());
    let (status, text) = pool.try_ctl(&["--rebalance", "--json"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("\"files\":") && !text.contains("\"files\":0,"), "{text}");
    let share = |disk: &PathBuf| {
        let figures = rustix::fs::statvfs(disk).unwrap();
        (figures.f_blocks - figures.f_bfree) * 100 / (figures.f_blocks - figures.f_bfree + figures.f_bavail)
    };
    let shares: Vec<u64> = pool.disks.iter().map(share).collect();
    assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 6, "{shares:?}");
    assert_eq!(changes(&before, &pool), "");
    let (status, text) = pool.try_ctl(&["--rebalance"]);
    assert_eq!((status, text.as_str()), (Some(0), "0 files moved (0 bytes)\n"));
}

on_both_transports!(
    new_files_are_placed,
    disks_are_drained,
    files_in_use,
    under_load,
    a_reused_inode_number_is_not_shared,
    a_server_is_killed,
    no_space,
    hard_links,
    space_is_evened_out,
);
