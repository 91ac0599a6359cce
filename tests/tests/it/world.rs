//! Random worlds on mounts: cryptfs in a random stack, compared with a native tree. Steps of the
//! oracle take turns with remounts with other options, kills, gocryptfs on the same volume, full
//! disks, sessions without a key, and keys that are withdrawn under open files.
//!
//! `STRATA_SEED=N` runs that world only. The same over memory, with failures and damage below:
//! `crates/cli/tests/it/world`.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use strata_tests::crypt::{BOUND, FLAG_SETS, PASSPHRASE, Volume, own_session};
use strata_tests::oracle::Oracle;
use strata_tests::oracle::population::{build, population};
use strata_tests::process::{Output, run, try_run};
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, long, on_both_transports};

/// Steps of the oracle between two other events.
const STEPS: u64 = 40;

/// Errno of a session without a key.
const ENOKEY: i32 = 126;

/// A stack with cryptfs over a volume.
struct Stack {
    volume: Volume,
    /// Names of layers, top first.
    above: Vec<&'static str>,
    below: &'static str,
    sessions: bool,
    transport: Transport,
}

impl Stack {
    fn random(rng: &mut Rng, dir: &Path, transport: Transport) -> Self {
        let mut flags: Vec<&[&str]> = FLAG_SETS.to_vec();
        flags.push(&[BOUND]);
        let volume = Volume::new(dir, rng.pick(&flags));
        let above = (0..rng.below(4)).map(|_| rng.pick(&["wrapfs", "snoopfs", "rot13", "xor"])).collect();
        let below = rng.pick(&["", "", "wrapfs / ", "snoopfs / "]);
        Self { volume, above, below, sessions: rng.one_in(2), transport }
    }

    /// Returns the stack with random options among those that can differ at each mount.
    fn spec(&self, rng: &mut Rng) -> Spec {
        let above: String = self.above.iter().map(|name| format!("{name} / ")).collect();
        let layer = if self.sessions { "cryptfs".to_owned() } else { self.volume.layer() };
        let journal = rng.pick(&["", ",journal=kill", ",journal=power"]);
        let words = format!("{above}{layer}{journal} / {}", self.below);
        Spec::stack(&words, self.volume.dir(), self.transport)
    }

    /// Whether gocryptfs shows the same as the mount.
    fn is_gocryptfs(&self) -> bool {
        !self.volume.is_bound() && self.above.iter().all(|name| ["wrapfs", "snoopfs"].contains(name))
    }
}

struct World {
    rng: Rng,
    stack: Stack,
    native: Mounted,
    at: PathBuf,
    mounted: Option<Mounted>,
    sandbox: Sandbox,
    events: Vec<&'static str>,
}

impl World {
    fn new(seed: u64, transport: Transport) -> (Self, Oracle) {
        own_session();
        let mut rng = Rng::new(seed);
        let sandbox = Sandbox::with_time(Duration::from_secs(240));
        let items = population(seed);
        let disk = sandbox.ext4("disk", 512);
        let tree = disk.join("native");
        fs::create_dir(&tree).unwrap();
        build(&tree, &items);
        let native = Mounted::new(Spec::Bind(tree), &sandbox.path("native"));
        let stack = Stack::random(&mut rng, &disk.join("volume"), transport);
        let at = sandbox.path("m");
        let mut world = Self { rng, stack, native, at, mounted: None, sandbox, events: Vec::new() };
        world.mount();
        build(&world.at, &items);
        // The journal changes the time of the root.
        for root in [world.native.dir(), &world.at] {
            fs::write(root.join("new"), "").unwrap();
            fs::remove_file(root.join("new")).unwrap();
        }
        let oracle = Oracle::new(seed, world.native.dir(), &world.at).encoding_blocks(true);
        (world, oracle)
    }

    fn mount(&mut self) {
        let spec = self.stack.spec(&mut self.rng);
        println!("mount {spec:?}");
        let options = self.rng.pick(&["", "cache=0", "cache=5"]);
        self.mounted = Some(Mounted::with_options(spec, &self.at, options));
        self.add();
    }

    fn mounted(&mut self) -> &mut Mounted {
        self.mounted.as_mut().unwrap()
    }

    fn unmount(&mut self) {
        self.mounted().unmount();
        self.mounted = None;
    }

    /// Gives the key to all users of the oracle in this session.
    fn add(&self) {
        for uid in ["0", "1000", "1001"].into_iter().filter(|_| self.stack.sessions) {
            // The users can't open the file.
            let script = "printf '%s' \"$0\" | \"$1\" crypt add --passfile - \"$2\"";
            let mut command = Command::new("setpriv");
            command.args(["--reuid", uid, "--clear-groups", "--", "bash", "-c", script, PASSPHRASE]);
            run(command.arg(Mounted::program().unwrap()).arg(&self.at));
        }
    }

    fn step(&mut self, oracle: &mut Oracle) {
        let event = match self.rng.below(12) {
            0..=2 => "remount",
            3..=5 => "kill",
            6 => "gocryptfs",
            7 => "full",
            8 => "fsck",
            9 => "stranger",
            10 => "withdraw",
            _ => "close",
        };
        println!("{event}");
        self.events.push(event);
        match event {
            "remount" => {
                oracle.close_all();
                self.unmount();
                self.mount();
            }
            "kill" => self.kill(oracle),
            "gocryptfs" => {
                oracle.close_all();
                self.take_turns();
            }
            "full" => self.fill(),
            "fsck" => {
                oracle.close_all();
                self.unmount();
                self.check();
                self.mount();
            }
            "stranger" => self.stranger(),
            "withdraw" => {
                oracle.close_all();
                self.withdraw();
            }
            _ => oracle.close_all(),
        }
        oracle.compare(event);
        oracle.steps(STEPS);
        oracle.compare("after steps");
    }

    fn kill(&mut self, oracle: &mut Oracle) {
        let time = Duration::from_micros(1000 + self.rng.below(60_000));
        let killed = self.mounted().kill_after(time);
        let interrupted = oracle.steps_until_dead(&killed);
        self.mounted().crash();
        self.mounted = None;
        self.mount();
        oracle.settle(&interrupted);
    }

    /// gocryptfs changes the volume.
    fn take_turns(&mut self) {
        if !self.stack.is_gocryptfs() {
            return;
        }
        self.unmount();
        let theirs = self.stack.volume.gocryptfs(&self.at);
        let number = self.rng.below(3);
        let (len, more) = (self.rng.below(20_000), self.rng.below(9000));
        let (bytes, more) = (self.rng.bytes(len), self.rng.bytes(more));
        for root in [self.native.dir(), &self.at] {
            let (one, other) = (root.join(format!("theirs-{number}")), root.join("theirs"));
            fs::write(&one, &bytes).unwrap();
            let file = OpenOptions::new().write(true).open(&one).unwrap();
            file.write_all_at(&more, len as u64 / 2).unwrap();
            fs::rename(&one, &other).unwrap();
            fs::write(&one, b"").unwrap();
        }
        drop(theirs);
        self.mount();
    }

    /// Writes to files on a full disk: what is acknowledged is there, and nothing else has changed.
    fn fill(&mut self) {
        let filler = self.sandbox.path("disk/filler");
        let files: Vec<_> = (0..4).map(|number| format!("full-{number}")).collect();
        let len = self.rng.below(60_000) as usize;
        let mut contents: Vec<_> = files.iter().map(|_| self.rng.bytes(len)).collect();
        for (name, bytes) in files.iter().zip(&contents) {
            fs::write(self.at.join(name), bytes).unwrap();
        }
        run(Command::new("sync").arg("-f").arg(filler.parent().unwrap()));
        let file = File::create(&filler).unwrap();
        let mut at = 0;
        for size in [1 << 20, 1 << 12] {
            while let Ok(done) = file.write_at(&vec![1; size], at) {
                at += done as u64;
            }
        }
        for (name, bytes) in files.iter().zip(&mut contents) {
            let file = OpenOptions::new().read(true).write(true).open(self.at.join(name)).unwrap();
            for _ in 0..3 {
                let (offset, count) = (self.rng.below(70_000), self.rng.below(30_000));
                let data = self.rng.bytes(count);
                match file.write_at(&data, offset as u64) {
                    Ok(done) => {
                        bytes.resize(bytes.len().max(offset + done), 0);
                        bytes[offset..offset + done].copy_from_slice(&data[..done]);
                    }
                    Err(error) => assert_eq!(error.raw_os_error(), Some(28), "{name}"),
                }
                assert!(fs::read(self.at.join(name)).unwrap() == *bytes, "{name}");
            }
        }
        drop(file);
        fs::remove_file(&filler).unwrap();
        for (name, bytes) in files.iter().zip(&contents) {
            assert!(fs::read(self.at.join(name)).unwrap() == *bytes, "{name}");
            fs::write(self.native.path(name), bytes).unwrap();
        }
    }

    /// Both checks find nothing.
    fn check(&self) {
        let volume = &self.stack.volume;
        let mut own = Command::new(Mounted::program().unwrap());
        own.args(["crypt", "fsck", "--passfile"]).arg(volume.passfile()).arg(volume.dir());
        let own = try_run(&mut own);
        assert!(own.status.success(), "{}", own.text);
        // gocryptfs can't use a directory that a killed mkdir or rmdir has left.
        if !own.text.contains(": note: ") {
            let theirs = volume.fsck();
            assert!(theirs.status.success(), "{}", theirs.text);
        }
    }

    /// A session without the key gets no byte, name or size, also of files that are open.
    fn stranger(&self) {
        if !self.stack.sessions {
            return;
        }
        let secret = self.native.path("secret-name");
        fs::write(&secret, "secret text").unwrap();
        fs::write(self.at.join("secret-name"), "secret text").unwrap();
        let open = File::open(self.at.join("secret-name")).unwrap();
        let (at, pid) = (self.at.display(), std::process::id());
        let fd = std::os::fd::AsRawFd::as_raw_fd(&open);
        for command in [
            format!("ls -l {at}"),
            format!("stat {at}/secret-name"),
            format!("cat {at}/secret-name"),
            format!("cat /proc/{pid}/fd/{fd}"),
            format!("echo x >>{at}/secret-name"),
            format!("echo x >/proc/{pid}/fd/{fd}"),
            format!("rm {at}/secret-name"),
            format!("mv {at}/secret-name {at}/other-name"),
        ] {
            let Output { status, text } = try_run(Command::new("setsid").args(["-w", "bash", "-c", &command]));
            assert!(!status.success() && text.contains("Required key not available"), "{command}: {text}");
            assert!(!text.contains("secret text") && !text.contains("theirs"), "{command}: {text}");
        }
        // The names are found again, and the file is.
        assert_eq!(fs::read_to_string(self.at.join("secret-name")).unwrap(), "secret text");
        assert_eq!(open.metadata().unwrap().size(), 11);
    }

    /// The key is withdrawn under open files with data and with holes, and given again.
    fn withdraw(&self) {
        if !self.stack.sessions {
            return;
        }
        for root in [self.native.dir(), &self.at] {
            let sparse = File::create(root.join("sparse")).unwrap();
            sparse.set_len(20_000).unwrap();
            fs::write(root.join("full"), [7; 9000]).unwrap();
        }
        let open = |name| OpenOptions::new().read(true).write(true).open(self.at.join(name)).unwrap();
        let files = [open("sparse"), open("full")];
        let mut bytes = [0; 100];
        files.iter().for_each(|file| file.read_exact_at(&mut bytes, 4000).unwrap());
        run(Command::new(Mounted::program().unwrap()).args(["crypt", "reset", "--all"]).arg(&self.at));
        for again in [false, true] {
            if again {
                self.add();
            }
            for file in &files {
                let refused =
                    |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(ENOKEY));
                refused(file.read_at(&mut bytes, 4000).map(|_| ()));
                refused(file.write_at(&bytes, 4000).map(|_| ()));
                refused(file.set_len(4096));
                refused(file.set_len(0));
            }
        }
    }
}

fn random_worlds(transport: Transport) {
    let mut pairs: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for seed in testkit::seeds(1) {
        let (mut world, mut oracle) = World::new(seed, transport);
        // At least 300 operations in a long test.
        for _ in 0..if long() { 20 } else { 5 } {
            world.step(&mut oracle);
        }
        world.kill(&mut oracle);
        oracle.close_all();
        world.unmount();
        world.check();
        for pair in world.events.windows(2) {
            *pairs.entry((pair[0], pair[1])).or_default() += 1;
        }
    }
    println!("pairs of events: {pairs:?}");
}

on_both_transports! {
    random_worlds,
}
