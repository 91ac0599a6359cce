//! Encrypted volumes, created by gocryptfs, and mounted by cryptfs or by gocryptfs.

use crate::process::{Output, run, try_run};
use crate::{Spec, Transport, unmount_soon};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The passphrase of volumes that don't need another one.
pub const PASSPHRASE: &str = "a passphrase for tests";

/// Flags of `gocryptfs -init` that change what is stored: one set per kind of volume.
pub const FLAG_SETS: [&[&str]; 7] = [
    &[],
    &["-aessiv"],
    &["-xchacha"],
    &["-plaintextnames"],
    &["-deterministic-names"],
    &["-longnamemax", "100"],
    &[PADDED],
];

/// In place of a flag of gocryptfs: a bound volume, which gocryptfs can't use.
pub const BOUND: &str = "--bound";

/// Names with padding, as gocryptfs 1.2 and older wrote them. Later versions ignore this flag but
/// still use such volumes.
const PADDED: &str = "-raw64=false";

/// A volume: a directory with encrypted files.
#[derive(Debug)]
pub struct Volume {
    dir: PathBuf,
    passfile: PathBuf,
    bound: bool,
}

/// Gives this process a session that a server can tell from others. In a container, the leader of
/// the session can be outside of the PID namespace: then the session has no ID.
pub fn own_session() {
    use nix::unistd::{getsid, setsid};
    if getsid(None).expect("the session of this process").as_raw() == 0 {
        setsid().expect("a new session");
    }
}

/// Returns a command that runs cryptctl.
fn cryptctl(word: &str) -> Command {
    let mut command = Command::new(crate::Mounted::program().expect("the program under test"));
    command.args(["crypt", word]);
    command
}

/// Returns a command that runs gocryptfs.
fn gocryptfs() -> Command {
    let mut command = Command::new("gocryptfs");
    // It writes its log there if it has become a server.
    command.arg("-nosyslog");
    command
}

impl Volume {
    /// Creates the directory, if it is missing, and a volume in it. `flags` are those of
    /// `gocryptfs -init`, or those of `cryptctl init` if they include [`BOUND`]. The file with the
    /// passphrase is beside the directory.
    #[must_use]
    pub fn new(dir: &Path, flags: &[&str]) -> Self {
        Self::with_passphrase(dir, flags, PASSPHRASE)
    }

    /// As [`Self::new`], with another passphrase.
    #[must_use]
    pub fn with_passphrase(dir: &Path, flags: &[&str], passphrase: &str) -> Self {
        std::fs::create_dir_all(dir).expect("the directory of a volume");
        let mut passfile = dir.as_os_str().to_owned();
        passfile.push(".passphrase");
        let bound = flags.contains(&BOUND);
        let volume = Self { dir: dir.to_owned(), passfile: passfile.into(), bound };
        write_secret(&volume.passfile, passphrase);
        if bound {
            let mut command = cryptctl("init");
            command.args(["--quiet", "--scrypt-n", "10", "--passfile"]).arg(&volume.passfile).args(flags).arg(dir);
            run(&mut command);
            return volume;
        }
        let mut command = Command::new("gocryptfs");
        // The weakest key derivation: its strength is not under test.
        command.args(["-q", "-init", "-scryptn", "10"]).args(flags).arg("-passfile").arg(&volume.passfile).arg(dir);
        assert!(
            Command::new("gocryptfs").arg("-version").output().is_ok(),
            "gocryptfs is missing: run scripts/deps.sh test"
        );
        run(&mut command);
        if flags.contains(&PADDED) {
            volume.remove_feature("Raw64");
        }
        volume
    }

    /// Removes a feature from the configuration, which does not authenticate them.
    fn remove_feature(&self, feature: &str) {
        let path = self.dir.join("gocryptfs.conf");
        let text = std::fs::read_to_string(&path).expect("a configuration");
        // The last one has no comma behind it.
        let other = text.replace(&format!(",\n\t\t\"{feature}\""), "");
        assert_ne!(text, other, "{feature} is not the last of several features");
        std::fs::write(&path, other).expect("a configuration");
    }

    /// Adds a second key with a passphrase of its own, in `gocryptfs.conf.NAME`. `flags` must be
    /// those of [`Self::new`].
    pub fn add_key(&self, name: &str, flags: &[&str], passphrase: &str) {
        let mut dir = self.dir.as_os_str().to_owned();
        dir.push(format!(".{name}"));
        let other = Self::with_passphrase(Path::new(&dir), flags, passphrase);
        let config = self.dir.join(format!("gocryptfs.conf.{name}"));
        std::fs::copy(other.dir.join("gocryptfs.conf"), config).expect("a second configuration");
    }

    /// Returns the directory with the encrypted files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is a bound volume.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.bound
    }

    /// Returns the file with the passphrase.
    #[must_use]
    pub fn passfile(&self) -> &Path {
        &self.passfile
    }

    /// Returns the layer cryptfs with one key for all callers, as part of a stack.
    #[must_use]
    pub fn layer(&self) -> String {
        format!("cryptfs,key=mount,passfile={}", self.passfile.display())
    }

    /// Returns the volume mounted by cryptfs, with one key for all callers.
    #[must_use]
    pub fn spec(&self, transport: Transport) -> Spec {
        Spec::stack(&format!("{} / ", self.layer()), &self.dir, transport)
    }

    /// Returns the volume mounted by cryptfs, with a key per session.
    #[must_use]
    pub fn with_sessions(&self, transport: Transport) -> Spec {
        Spec::stack("cryptfs / ", &self.dir, transport)
    }

    /// Mounts the volume with gocryptfs at `dir`, which is created if missing.
    #[must_use]
    pub fn gocryptfs(&self, dir: &Path) -> Gocryptfs {
        std::fs::create_dir_all(dir).expect("a mount point");
        let mut command = gocryptfs();
        command.args(["-q", "-acl", "-allow_other", "-passfile"]).arg(&self.passfile).arg(&self.dir).arg(dir);
        run(&mut command);
        Gocryptfs { dir: dir.to_owned() }
    }

    /// Checks the volume with gocryptfs, or with cryptctl if gocryptfs can't use it. Fails if it
    /// finds damage.
    #[must_use]
    pub fn fsck(&self) -> Output {
        if self.bound {
            return try_run(cryptctl("fsck").arg("--passfile").arg(&self.passfile).arg(&self.dir));
        }
        try_run(gocryptfs().args(["-fsck", "-passfile"]).arg(&self.passfile).arg(&self.dir))
    }
}

/// Writes a file that only its owner can read.
pub fn write_secret(path: &Path, text: &str) {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file with a passphrase");
}

/// A mount of gocryptfs, unmounted when dropped.
#[derive(Debug)]
pub struct Gocryptfs {
    dir: PathBuf,
}

impl Gocryptfs {
    /// Returns the mount point.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Gocryptfs {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The sandbox removes it, whatever its state.
            return;
        }
        unmount_soon(&self.dir);
    }
}
