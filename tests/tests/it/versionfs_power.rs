//! Power failures shortly after changes: the file system below has the names and attributes of the
//! changes, but not the data of files that were written last, such as the records of versions. What
//! had been synchronised before must be shown as it was, or not at all.
//!
//! `STRATA_SEED=N` runs that seed only.

#![forbid(unsafe_code)]

use core::fmt;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use strata_tests::process::{run, try_run};
use strata_tests::versions::{keep_all, list};
use strata_tests::{Mounted, Sandbox, Spec, Transport};
use testkit::Rng;

const NAMES: [&str; 6] = ["f", "g", "h", "k", "sub/x", "sub/y"];

/// What a program sees at a path.
#[derive(Clone, PartialEq, Eq)]
enum Seen {
    /// The content and mode.
    File(Vec<u8>, u32),
    Unreadable,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::File(bytes, mode) = self else { return f.write_str("unreadable") };
        let start = bytes.get(..20).unwrap_or(bytes).escape_ascii();
        write!(f, "{} bytes ({start}), mode {mode:o}", bytes.len())
    }
}

/// The files of a tree, and those of a past tree that can't be read.
fn files(root: &Path) -> BTreeMap<&'static str, Seen> {
    let mut seen = BTreeMap::new();
    assert!(root.join("sub").is_dir(), "{}", root.display());
    for name in NAMES {
        let Ok(attr) = fs::symlink_metadata(root.join(name)).inspect_err(|error| {
            let known = error.raw_os_error();
            if known == Some(rustix::io::Errno::STALE.raw_os_error()) {
                seen.insert(name, Seen::Unreadable);
            } else {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{name}");
            }
        }) else {
            continue;
        };
        let found = fs::read(root.join(name)).map(|bytes| Seen::File(bytes, attr.permissions().mode() & 0o7777));
        seen.insert(name, found.unwrap_or(Seen::Unreadable));
    }
    seen
}

/// A mount whose changes are drawn at random.
struct World {
    mounted: Mounted,
    rng: Rng,
    log: Vec<String>,
    has_linked: bool,
}

impl World {
    fn change(&mut self) {
        let name = self.rng.pick(&NAMES);
        let other = self.rng.pick(&NAMES);
        let (path, to) = (self.mounted.path(name), self.mounted.path(other));
        let text = format!("{} ", self.rng.below(1_000_000)).repeat(self.rng.pick(&[1, 1, 900]));
        let kind = self.rng.below(10);
        let is_link = kind == 1 && path.exists() && !to.exists();
        self.has_linked |= is_link;
        let done = match kind {
            0 => fs::rename(&path, &to),
            1 => fs::hard_link(&path, &to),
            2 => fs::remove_file(&path),
            3 => File::options().write(true).open(&path).and_then(|mut file| {
                file.seek(SeekFrom::Start(self.rng.pick(&[0, 2, 4096])))?;
                file.write_all(b"written")
            }),
            4 => File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"appended")),
            5 => fs::set_permissions(&path, fs::Permissions::from_mode(self.rng.pick(&[0o600, 0o640, 0o755]))),
            6 => File::options().write(true).open(&path).and_then(|file| file.set_len(self.rng.pick(&[0, 3, 5000]))),
            7 => {
                let aside = self.mounted.path("saved");
                fs::write(&aside, &text).and_then(|()| fs::rename(&aside, &path))
            }
            _ => fs::write(&path, &text),
        };
        self.log.push(format!("{kind} {name} {other}: {done:?}"));
    }

    /// Records a moment: its time, and the files.
    fn moment(&self) -> (String, BTreeMap<&'static str, Seen>) {
        testkit::tick();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seen = files(self.mounted.dir());
        testkit::tick();
        (format!("{}.{:09}", now.as_secs(), now.subsec_nanos()), seen)
    }
}

/// Returns the number of moments' files that were compared, and of those that are not known any
/// more.
fn power_fails(sandbox: &Sandbox, options: &str, seed: u64, changes: usize) -> (usize, usize) {
    // Each has names of its own: a loop device may outlive its file system for a while.
    let disk = sandbox.ext4(&format!("disk{seed}"), 32);
    fs::create_dir_all(disk.join("lower/sub")).unwrap();
    let mounted = Mounted::new(Spec::versions(&disk.join("lower"), options, Transport::Device), &sandbox.path("m"));
    let mut world = World { mounted, rng: Rng::new(seed), log: Vec::new(), has_linked: false };
    let mut moments = Vec::new();
    for _ in 0..2 {
        (0..=world.rng.below(5)).for_each(|_| world.change());
        moments.push(world.moment());
        world.log.push("moment".to_owned());
    }
    rustix::fs::syncfs(File::open(world.mounted.dir()).unwrap()).unwrap();
    rustix::fs::syncfs(File::open(&disk).unwrap()).unwrap();
    (0..changes).for_each(|_| world.change());
    // Commits the journal, which has names and attributes. The copy has what is on the disk then.
    File::create(disk.join("journal")).unwrap().sync_all().unwrap();
    let (image, copied) = (sandbox.path(&format!("disk{seed}.img")), sandbox.path(&format!("copy{seed}.img")));
    let copy = sandbox.dir(&format!("copy{seed}"));
    fs::copy(&image, &copied).unwrap();
    run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&copied).arg(&copy));
    if seed.is_multiple_of(3) {
        let mut fsck = Command::new(Mounted::program().unwrap());
        let checked = try_run(fsck.arg0("fsck.versionfs").arg("-y").arg(copy.join("lower")));
        assert!(matches!(checked.status.code(), Some(0 | 1 | 4 | 5)), "seed {seed}: {}", checked.text);
    }
    let again = Mounted::new(Spec::versions(&copy.join("lower"), options, Transport::Device), &sandbox.path("n"));
    let (mut compared, mut unknown) = (0, 0);
    for (time, want) in &moments {
        let got = files(&again.path(".versions").join(time));
        for name in NAMES {
            compared += 1;
            let is_right = match (want.get(name), got.get(name)) {
                (want, got) if want == got => true,
                (Some(_), None) if world.has_linked => {
                    unknown += 1;
                    true
                }
                (_, Some(Seen::Unreadable)) => {
                    unknown += 1;
                    true
                }
                _ => false,
            };
            let log = world.log.join("\n");
            assert!(
                is_right,
                "seed {seed}, {name} at {time}: {:?}, and not {:?}\n{log}",
                got.get(name),
                want.get(name)
            );
        }
    }
    // What a program does next is recorded again.
    fs::write(again.path("f"), "next").unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", world.log.join("\n")));
    fs::remove_file(again.path("f")).unwrap();
    assert!(!list(again.dir(), "f").is_empty(), "seed {seed}");
    drop((again, world));
    for dir in [copy, disk] {
        run(Command::new("umount").arg(dir));
    }
    [image, copied].iter().for_each(|image| fs::remove_file(image).unwrap());
    (compared, unknown)
}

/// After a power failure, the past shows what was synchronised, or says that it does not know. It
/// shows no other content, and none under a name that was not there.
#[test]
fn a_power_failure_changes_nothing_that_was_synchronised() {
    let sandbox = Sandbox::new();
    let options = format!("versions,{}", keep_all(&sandbox));
    let (mut all, mut unknown) = (0, 0);
    for seed in testkit::seeds(if testkit::long() { 1000 } else { 60 }) {
        let changes = if seed.is_multiple_of(2) { 1 } else { 3 };
        let (compared, lost) = power_fails(&sandbox, &options, seed, changes);
        (all, unknown) = (all + compared, unknown + lost);
    }
    println!("{unknown} of {all} are not known any more");
    assert!(testkit::number("STRATA_SEED").is_some() || unknown * 5 < all, "{unknown} of {all}");
}
