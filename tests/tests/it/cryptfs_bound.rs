//! Bound volumes: changes of the files below without the key are noticed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use strata_tests::crypt::{BOUND, Volume};
use strata_tests::process::try_run;
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};

const HEADER: usize = 4096;

/// A bound volume with `dir/file` in two states, of which the second is in place.
struct Bound {
    volume: Volume,
    sandbox: Sandbox,
    /// The file below, and its stored bytes in both states.
    lower: PathBuf,
    old: Vec<u8>,
    new: Vec<u8>,
    /// Its plain bytes in the second state.
    plain: Vec<u8>,
    /// Stored size of a block.
    block: usize,
    transport: Transport,
}

/// Returns the only file in the subdirectory of a volume.
fn only_file(volume: &Path) -> PathBuf {
    let dirs = fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().path());
    let dir = dirs.into_iter().find(|path| path.is_dir()).unwrap();
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| !path.ends_with("gocryptfs.diriv")).unwrap()
}

impl Bound {
    fn new(transport: Transport, flags: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let volume = Volume::new(&sandbox.ext4("disk", 64).join("volume"), &[&[BOUND], flags].concat());
        let mut states = Vec::new();
        let mut plain = Vec::new();
        for (seed, len) in [(1, 2_500_000), (2, 2_600_000)] {
            let mut mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
            let _ = fs::create_dir(mounted.path("dir"));
            plain = Rng::new(seed).bytes(len);
            let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(mounted.path("dir/file"));
            std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &plain, 0).unwrap();
            fs::write(mounted.path("other"), "other").unwrap();
            mounted.unmount();
            states.push(fs::read(only_file(volume.dir())).unwrap());
        }
        let lower = only_file(volume.dir());
        let (new, old) = (states.pop().unwrap(), states.pop().unwrap());
        let block = 4096 + if flags.contains(&"--xchacha") { 40 } else { 32 };
        assert_eq!(new.len(), HEADER + 634 * block + 2_600_000 % 4096 + block - 4096);
        // The header names the same file in both.
        assert!(new[..18] == old[..18] && new[18..HEADER] != old[18..HEADER]);
        Self { volume, sandbox, lower, old, new, plain, block, transport }
    }

    fn mount(&self, options: &str) -> Mounted {
        let words = format!("{}{options} / ", self.volume.layer());
        Mounted::new(Spec::stack(&words, self.volume.dir(), self.transport), &self.sandbox.path("m"))
    }

    /// Puts other bytes in place of the file's.
    fn forge(&self, stored: &[u8]) {
        fs::write(&self.lower, stored).unwrap();
    }

    /// Checks that the forged file is refused and reported, and nothing else is.
    fn is_noticed(&self, stored: &[u8], reported: &str) {
        self.forge(stored);
        let mounted = self.mount("");
        let read = fs::read(mounted.path("dir/file"));
        assert_eq!(read.map(|bytes| bytes.len()).map_err(errno), Err(Errno::IO), "{reported}");
        assert_eq!(fs::read(mounted.path("other")).unwrap(), b"other");
        drop(mounted);
        let fsck = self.volume.fsck();
        let text = &fsck.text;
        assert_eq!(fsck.status.code(), Some(4), "{reported}: {text}");
        assert!(text.contains("/dir/file (") && text.contains(reported), "{reported}: {text}");
        assert!(!text.contains("/other ("), "{text}");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap())
}

fn every_kind_of_change_is_noticed(transport: Transport) {
    for flags in [&[][..], &["--aes-siv"], &["--xchacha", "--plaintext-names"]] {
        let bound = Bound::new(transport, flags);
        let (old, new, block) = (&bound.old, &bound.new, bound.block);
        assert!(bound.volume.fsck().status.success());
        let range = |number: usize| HEADER + number * block..HEADER + (number + 1) * block;
        let mixed = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = new.clone();
            edit(&mut bytes);
            bytes
        };
        let put_back = mixed(&|bytes| bytes[range(300)].copy_from_slice(&old[range(300)]));
        bound.is_noticed(&put_back, "blocks 256 to 511, bytes 1048576 to 2097151: some of these were put back");
        let hole = mixed(&|bytes| bytes[range(0)].fill(0));
        bound.is_noticed(&hole, "blocks 0 to 255, bytes 0 to 1048575: some of these");
        let many_holes = mixed(&|bytes| bytes[range(512).start..range(633).end].fill(0));
        bound.is_noticed(&many_holes, "blocks 512 to 634, bytes 2097152 to 2599999");
        bound.is_noticed(&new[..range(600).start], "cut without the key: it has 2457600 bytes instead of 2600000");
        bound.is_noticed(&new[..HEADER], "cut without the key: it has 0 bytes instead of 2600000");
        bound.is_noticed(&new[..HEADER - 1], "");
        bound.is_noticed(&[&new[..], &[0; 100][..]].concat(), "extended without the key");
        bound.is_noticed(&[&old[..HEADER], &new[HEADER..]].concat(), "extended without the key");
        bound.is_noticed(&mixed(&|bytes| bytes[2000] ^= 1), "seal: ");
        // Both copies are whole.
        for (state, seed, len) in [(old, 1, 2_500_000), (new, 2, 2_600_000)] {
            bound.forge(state);
            let mounted = bound.mount("");
            assert!(fs::read(mounted.path("dir/file")).unwrap() == Rng::new(seed).bytes(len));
        }
        assert!(bound.volume.fsck().status.success());
    }
}

/// A change through the mount does not make a forged file a valid one.
fn changes_seal_nothing_that_was_forged(transport: Transport) {
    let bound = Bound::new(transport, &[]);
    let range = HEADER..HEADER + bound.block;
    let mut mixed = bound.new.clone();
    mixed[range.clone()].copy_from_slice(&bound.old[range]);
    for change in [
        "truncate -s 100",
        "truncate -s 5000",
        "dd conv=notrunc if=/dev/zero bs=10 count=1 of=",
        "fallocate -p -o 100 -l 50",
    ] {
        bound.forge(&mixed);
        let mounted = bound.mount("");
        let file = mounted.path("dir/file");
        let script = format!("{change}{}\"$1\" 2>&1", if change.ends_with('=') { "" } else { " " });
        let mut command = std::process::Command::new("bash");
        let changed = try_run(command.args(["-c", &script, "bash"]).arg(&file));
        assert!(!changed.status.success() && changed.text.contains("Input/output error"), "{change}: {}", changed.text);
        assert_eq!(fs::read(&file).map_err(errno).map(|_| ()), Err(Errno::IO), "{change}");
    }
}

/// A file that lost its seal, by a power failure for example, can be read and written anew.
fn broken_files_can_be_saved(transport: Transport) {
    let bound = Bound::new(transport, &[]);
    let range = HEADER + 3 * bound.block..HEADER + 4 * bound.block;
    let mut mixed = bound.new.clone();
    mixed[range.clone()].copy_from_slice(&bound.old[range]);
    bound.forge(&mixed);
    let mounted = bound.mount(",seals=ignore");
    let saved = fs::read(mounted.path("dir/file")).unwrap();
    assert!(saved[..4096 * 3] == bound.plain[..4096 * 3] && saved[4096 * 4..] == bound.plain[4096 * 4..]);
    assert!(saved[4096 * 3..4096 * 4] == Rng::new(1).bytes(4096 * 4)[4096 * 3..]);
    assert_eq!(fs::write(mounted.path("dir/file"), "x").map_err(errno), Err(Errno::ROFS));
    drop(mounted);
    let mounted = bound.mount("");
    assert_eq!(fs::read(mounted.path("dir/file")).map_err(errno).map(|_| ()), Err(Errno::IO));
    fs::write(mounted.path("dir/file"), &saved).unwrap();
    assert!(fs::read(mounted.path("dir/file")).unwrap() == saved);
    drop(mounted);
    assert!(bound.volume.fsck().status.success());
    assert!(bound.sandbox.path("m").exists());
}

/// gocryptfs can't use a bound volume, and names a feature; options that contradict it are refused.
fn who_can_mount_it(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let (bound, other) = (Volume::new(&disk.join("bound"), &[BOUND]), Volume::new(&disk.join("other"), &[]));
    let at = sandbox.dir("g");
    let mut command = std::process::Command::new("gocryptfs");
    let refused = try_run(command.args(["-q", "-passfile"]).arg(bound.passfile()).arg(bound.dir()).arg(&at));
    assert!(!refused.status.success() && refused.text.contains("Unknown feature flag \"Strata"), "{}", refused.text);
    for (volume, option, why) in [
        (&bound, "journal=off", "journal=off: a bound volume needs the journal"),
        (&bound, "seals=maybe", "seals=maybe: it is neither check nor ignore"),
        (&other, "seals=check", "seals=: the volume is not bound"),
    ] {
        let words = format!("{},{option} / {}", volume.layer(), volume.dir().display());
        let mut command = std::process::Command::new(Mounted::program().unwrap());
        let refused = try_run(command.arg("mount").arg(&words).arg(&at));
        assert!(!refused.status.success() && refused.text.contains(why), "{words}: {}", refused.text);
    }
    drop(Mounted::new(bound.spec(transport), &sandbox.path("m")));
}

on_both_transports!(
    every_kind_of_change_is_noticed,
    changes_seal_nothing_that_was_forged,
    broken_files_can_be_saved,
    who_can_mount_it,
);
