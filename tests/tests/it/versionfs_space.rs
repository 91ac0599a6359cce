//! versionfs with its built-in policies on small file systems of three kinds: the history fills the
//! disk and yields.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use strata_tests::versions::{contents_left, texts};
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport};
use testkit::until;

const MIB: u64 = 1 << 20;

struct Mount {
    mounted: Mounted,
    disk: PathBuf,
    /// Bytes of data that fit without a history.
    native: u64,
    _sandbox: Sandbox,
}

impl Mount {
    fn new(disk: impl Fn(&Sandbox) -> PathBuf, transport: Transport) -> Self {
        let sandbox = Sandbox::new();
        let disk = disk(&sandbox);
        let native = fill(&disk.join("native"));
        fs::remove_file(disk.join("native")).unwrap();
        rustix::fs::syncfs(File::open(&disk).unwrap()).unwrap();
        let lower = disk.join("lower");
        fs::create_dir(&lower).unwrap();
        // The host's own configuration does not count.
        let config = sandbox.path("empty.conf");
        fs::write(&config, "").unwrap();
        let spec = Spec::versions(&lower, &format!("config={}", config.display()), transport);
        Self { mounted: Mounted::new(spec, &sandbox.path("m")), disk, native, _sandbox: sandbox }
    }

    fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }
}

/// Writes to a new file until nothing more fits. Returns its size.
fn fill(path: &Path) -> u64 {
    let mut file = File::create(path).unwrap();
    let mut filled = 0;
    while let Ok(count) = file.write(&[7; 1 << 18]) {
        filled += count as u64;
    }
    filled
}

/// Returns the size of a file system and what it has free for users, in bytes.
fn space(path: &Path) -> (u64, u64) {
    let stat = rustix::fs::statvfs(path).unwrap();
    (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)
}

/// Overwrites, replaces and removes files until several times the size of the disk was written. A
/// third of the names come once, as those of temporary files do. No operation may fail.
fn churn(mount: &Mount, rng: &mut Rng, bytes: u64) {
    let (mut written, mut n) = (0, 0);
    while written < bytes {
        n += 1;
        let dir = mount.path(&format!("d{}", rng.below(8)));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("f{}", rng.below(20)));
        let len = 1 + rng.below(400_000);
        let data = rng.bytes(len);
        written += data.len() as u64;
        match rng.below(6) {
            0 => {
                let temporary = dir.join(format!("t{n}"));
                fs::write(&temporary, &data).unwrap();
                fs::rename(&temporary, &path).unwrap();
            }
            1 => {
                let temporary = dir.join(format!("t{n}"));
                fs::write(&temporary, &data[..data.len().min(8000)]).unwrap();
                fs::remove_file(&temporary).unwrap();
            }
            2 if path.exists() => {
                let file = File::options().write(true).open(&path).unwrap();
                file.write_all_at(&data[..data.len().min(100_000)], 0).unwrap();
            }
            3 if path.exists() => fs::remove_file(&path).unwrap(),
            _ => fs::write(&path, &data).unwrap(),
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let dirs = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    dirs.flat_map(|dir| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path())).collect()
}

fn gives_way(disk: impl Fn(&Sandbox) -> PathBuf, transport: Transport, seed: u64) {
    let mut mount = Mount::new(disk, transport);
    let (size, _) = space(&mount.disk);
    let mut rng = Rng::new(seed);
    churn(&mount, &mut rng, size);
    mount.mounted.crash();
    mount.mounted.mount_again();
    churn(&mount, &mut rng, size / 2);

    // All but the bound of the history is for data.
    let heads: u64 = files(mount.dir()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let filler = mount.path("filler");
    let filled = fill(&filler);
    // The bound, and some small files beside it.
    let history = size * 35 / 100;
    let label = format!("{} of {} MiB, {} are files", filled / MIB, mount.native / MIB, heads / MIB);
    assert!(filled + heads + history > mount.native, "{label}");

    // On the full disk.
    for (n, path) in files(mount.dir()).iter().enumerate() {
        let label = format!("{n}, {}: {:?} free", path.display(), space(&mount.disk).1);
        let done = match n % 4 {
            0 => fs::remove_file(path),
            1 => File::options().write(true).open(path).and_then(|file| file.set_len(10)),
            2 => fs::set_permissions(path, fs::Permissions::from_mode(0o600)),
            _ => fs::rename(path, path.with_extension("new")),
        };
        done.unwrap_or_else(|error| panic!("{label}: {error}"));
    }
    // The last thing that was lost can be had back.
    let kept = mount.path("d0/kept");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::remove_file(&filler).unwrap();
    until("the space of a removed file is free", || space(mount.dir()).1 > filled / 2);
    fs::write(&kept, "first").unwrap();
    fs::write(&kept, "second").unwrap();
    assert_eq!(texts(kept.parent().unwrap(), "kept"), ["first"]);
    let large = rng.bytes(usize::try_from(filled / 2).unwrap());
    fs::write(mount.path("large"), &large).unwrap();
    assert!(fs::read(mount.path("large")).unwrap() == large);
    for entry in fs::read_dir(mount.dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }
}

#[test]
fn history_gives_way_on_ext4() {
    gives_way(|sandbox| sandbox.ext4("disk", 200), Transport::Device, 1);
}

#[test]
fn history_gives_way_on_xfs() {
    gives_way(|sandbox| sandbox.xfs("disk"), Transport::Ring, 2);
}

#[test]
fn history_gives_way_on_btrfs() {
    gives_way(|sandbox| sandbox.btrfs("disk"), Transport::Device, 3);
}

/// The file system has room, but the subvolume's quota is used up.
#[test]
fn history_gives_way_to_a_quota() {
    let mount = Mount::new(|sandbox| sandbox.btrfs_with_quota("disk", 32), Transport::Ring);
    let mut rng = Rng::new(4);
    let write = |path: &Path, data: &[u8]| {
        let mut file = File::create(path)?;
        file.write_all(data).and_then(|()| file.sync_all())
    };
    let paths = (0..).map(|n| mount.path(&format!("f{n}")));
    let mut names: Vec<PathBuf> = paths.take_while(|path| write(path, &rng.bytes(1 << 20)).is_ok()).collect();
    assert!(names.len() > 16);
    for round in 0..2 {
        let (gone, left) = names.split_at(names.len() / 2);
        for path in gone {
            fs::remove_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        for (n, path) in left.iter().enumerate() {
            let done = match n % 3 {
                0 => File::options().write(true).open(path).and_then(|file| file.set_len(100_000)),
                1 => fs::set_permissions(path, fs::Permissions::from_mode(0o600 + round)),
                _ => fs::rename(path, path.with_extension("new"))
                    .and_then(|()| fs::rename(path.with_extension("new"), path)),
            };
            done.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        // Half of what was removed is for data again.
        for path in &gone[gone.len() / 2..] {
            write(path, &rng.bytes(1 << 20)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        names.retain(|path| path.exists());
    }
    let kept = mount.path("kept");
    fs::write(&kept, "first").unwrap();
    fs::write(&kept, "second").unwrap();
    assert_eq!(texts(mount.dir(), "kept"), ["first"]);
}

/// On a full disk, files with several names: what works natively works, nothing is lost, and each
/// version can be read, also after the server was killed.
fn keeps_links(disk: impl Fn(&Sandbox) -> PathBuf, transport: Transport) {
    let mut mount = Mount::new(disk, transport);
    let path = |mount: &Mount, name: &str, n: usize| mount.path(&format!("{name}{n}"));
    let content = |name: &str, n: usize| format!("{name}{n};").into_bytes().repeat(3000);
    for n in 0..12 {
        fs::write(path(&mount, "a", n), content("a", n)).unwrap();
        fs::write(path(&mount, "other", n), content("other", n)).unwrap();
        fs::hard_link(path(&mount, "a", n), path(&mount, "b", n)).unwrap();
        fs::write(path(&mount, "b", n), content("b", n)).unwrap();
    }
    fill(&mount.path("filler"));
    fill(&mount.path("filler2"));
    let mut head = Vec::new();
    for n in 0..12 {
        let (a, b, other) = (path(&mount, "a", n), path(&mount, "b", n), path(&mount, "other", n));
        let done = match n % 6 {
            0 => fs::remove_file(&a),
            1 => fs::rename(&a, path(&mount, "c", n)),
            2 => fs::rename(&other, &a),
            3 => fs::rename(&a, &other),
            4 => File::options().write(true).open(&a).and_then(|file| file.set_len(10)),
            _ => fs::set_permissions(&a, fs::Permissions::from_mode(0o600)),
        };
        done.unwrap_or_else(|error| panic!("{n}: {error}, {} free", space(&mount.disk).1));
        head.push((b, if n % 6 == 4 { content("b", n)[..10].to_vec() } else { content("b", n) }));
    }
    let check = |mount: &Mount, label: &str| {
        let mut read = 0;
        for (n, (path, data)) in head.iter().enumerate() {
            assert!(fs::read(path).unwrap() == *data, "{label}: {}", path.display());
            for name in ["a", "b", "c", "other"] {
                // What the name has had.
                let had: &[&str] = match (name, n % 6) {
                    ("a", 2) => &["a", "b", "other"],
                    ("other", 3) => &["other", "a", "b"],
                    ("other", _) => &["other"],
                    _ => &["a", "b"],
                };
                for version in contents_left(mount.dir(), &format!("{name}{n}")) {
                    let is_known = had.iter().any(|name| content(name, n) == version);
                    let begin = version[..20.min(version.len())].escape_ascii().to_string();
                    assert!(is_known, "{label}: {name}{n}: {begin:?}");
                    read += 1;
                }
            }
        }
        assert!(read > 0, "{label}: no version is left");
    };
    check(&mount, "on the full disk");
    mount.mounted.crash();
    mount.mounted.mount_again();
    check(&mount, "after a kill");
    for (path, _) in &head {
        fs::remove_file(path).unwrap();
    }
    let lower = mount.disk.join("lower");
    mount.mounted.unmount();
    let program = Mounted::program().unwrap();
    let checked = std::process::Command::new(program).arg0("fsck.versionfs").arg("-n").arg(&lower).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn links_keep_their_history_on_ext4() {
    keeps_links(|sandbox| sandbox.ext4("disk", 200), Transport::Device);
}

#[test]
fn links_keep_their_history_on_btrfs() {
    keeps_links(|sandbox| sandbox.btrfs("disk"), Transport::Ring);
}
