//! Keys of sessions: the commands that the server of a mount executes.

use crate::exit::Failure;
use crate::{channel, crypt_host, tool};
use clap::Args;
use core::fmt::Write as _;
use core::time::Duration;
use cryptfs::{ADD, AddRequest, DELETE, Held, KeySource, LIST, RESET};
use fuse::control::Error;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How long a command is repeated while too many passphrases of the user are being tried, and the
/// pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

/// Arguments of `cryptctl add`.
#[derive(Debug, Args)]
pub struct Add {
    /// The mount point, or anything in the mount.
    mount: PathBuf,
    /// Read the passphrase from the first line of FILE, or of the standard input (-).
    #[arg(long, value_name = "FILE", group = "source")]
    passfile: Option<PathBuf>,
    /// Read the passphrase from the first line of the output of COMMAND, which /bin/sh runs.
    #[arg(long, value_name = "COMMAND", group = "source")]
    extpass: Option<String>,
    /// Use the key file FILE.
    #[arg(long, value_name = "FILE", group = "source")]
    key_file: Option<PathBuf>,
    /// The key of this name, on a volume with several keys. Default: whichever the passphrase
    /// unlocks.
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
    /// Withdraw the key when it has not been used for this time.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    idle: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `cryptctl del`.
#[derive(Debug, Args)]
pub struct Del {
    /// The mount point, or anything in the mount.
    mount: PathBuf,
}

/// Arguments of `cryptctl reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// The mount point, or anything in the mount.
    mount: PathBuf,
    /// Those of all users. Only root may do this.
    #[arg(long)]
    all: bool,
}

/// Arguments of `cryptctl list`.
#[derive(Debug, Args)]
pub struct List {
    /// The mount point, or anything in the mount.
    mount: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Add {
    pub(super) fn run(&self) -> Result<(), Failure> {
        // Without a mount, do not ask for a passphrase.
        held(&self.mount)?;
        let source = match (&self.passfile, &self.extpass, &self.key_file) {
            (Some(path), ..) => KeySource::File(path.clone()),
            (_, Some(command), _) => KeySource::Command(command.clone()),
            (.., Some(path)) => KeySource::KeyFile(path.clone()),
            _ => KeySource::Ask,
        };
        let prompt = format!("Passphrase for {}: ", self.mount.display());
        let passphrase = crypt_host::passphrase(&source, &prompt).map_err(Failure::mount)?;
        let request = AddRequest { key: self.key.clone(), idle: self.idle.map(Duration::from_secs), passphrase };
        let reply = send(&self.mount, ADD.name, &request.encode())?;
        let added: Held = parse(&self.mount, &reply)?;
        if self.json {
            return tool::print([reply, b"\n".to_vec()].concat());
        }
        let idle = added.idle.map_or_else(String::new, |idle| format!(", until it is unused for {}", time(idle)));
        let (key, session, mount) = (&added.key, added.session, self.mount.display());
        tool::print(format!("{mount}: session {session} has the key {key} ({}){idle}\n", added.fingerprint))
    }
}

impl Del {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let count = count(&self.mount, &send(&self.mount, DELETE.name, b"")?)?;
        if count == 0 {
            return Err(Failure::usage(format!(
                "{}: this session has no key; see cryptctl list",
                self.mount.display()
            )));
        }
        tool::print(format!("{}: the key of this session is withdrawn\n", self.mount.display()))
    }
}

impl Reset {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let count = count(&self.mount, &send(&self.mount, RESET.name, if self.all { b"all" } else { b"" })?)?;
        tool::print(format!("{}: {count} keys withdrawn\n", self.mount.display()))
    }
}

impl List {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let reply = send(&self.mount, LIST.name, b"")?;
        if self.json {
            return tool::print([reply, b"\n".to_vec()].concat());
        }
        let list: Vec<Held> = parse(&self.mount, &reply)?;
        if list.is_empty() {
            return tool::print(format!("{}: no session has a key\n", self.mount.display()));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let mut text = String::from("  USER  SESSION  KEY        FINGERPRINT       AGE      IDLE     OPEN FILES\n");
        for held in list {
            let (age, idle) = (time(now.saturating_sub(held.since)), held.idle.map_or_else(|| "never".into(), time));
            let own = if held.own { '*' } else { ' ' };
            let Held { uid, session, key, fingerprint, open_files, .. } = held;
            let _infallible =
                writeln!(text, "{own} {uid:<5} {session:<8} {key:<10} {fingerprint} {age:<8} {idle:<8} {open_files}");
        }
        tool::print(text)
    }
}

/// Formats a number of seconds.
fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Lists the keys. Fails if this is not a mount with keys per session.
fn held(mount: &Path) -> Result<Vec<Held>, Failure> {
    parse(mount, &send(mount, LIST.name, b"")?)
}

fn parse<T: serde::de::DeserializeOwned>(mount: &Path, reply: &[u8]) -> Result<T, Failure> {
    let wrong = |_| Failure::system(format!("{}: the server's reply can't be parsed", mount.display()));
    serde_json::from_slice(reply).map_err(wrong)
}

fn count(mount: &Path, reply: &[u8]) -> Result<u64, Failure> {
    parse(mount, reply)
}

fn send(mount: &Path, command: &str, input: &[u8]) -> Result<Vec<u8>, Failure> {
    let begin = Instant::now();
    loop {
        match channel::call(mount, command, input) {
            // Other passphrases of the user are being tried.
            Err(Error::Refused(Errno::BUSY)) if begin.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            answer => return answer.map_err(|error| refusal(mount, command, error)),
        }
    }
}

/// Whether the session of this process has an ID in its PID namespace (getsid(2)).
fn is_in_a_session() -> bool {
    nix::unistd::getsid(None).is_ok_and(|session| session.as_raw() != 0)
}

fn refusal(mount: &Path, command: &str, error: Error) -> Failure {
    let shown = mount.display();
    let Error::Refused(errno) = error else { return channel::failure(mount, command, error) };
    let (exit, why): (fn(String) -> Failure, _) = match errno {
        Errno::NOTTY | Errno::OPNOTSUPP => {
            (Failure::mount, "not in a mount with keys per session (mount -t cryptfs, without key=mount)".to_owned())
        }
        Errno::BUSY => (Failure::system, "too many passphrases of this user are being tried; try again".to_owned()),
        Errno::KEYREJECTED => (Failure::usage, "the passphrase unlocks no key of this volume; try again".to_owned()),
        Errno::NOENT => (Failure::usage, "the volume has no key of this name; see cryptctl info".to_owned()),
        Errno::BADMSG => (
            Failure::mount,
            "the configuration of the volume is damaged or unsupported; the log of the server says why".to_owned(),
        ),
        Errno::DQUOT => {
            (Failure::mount, "too many sessions hold a key; withdraw some with cryptctl del or reset".to_owned())
        }
        Errno::SRCH => (
            Failure::mount,
            if is_in_a_session() {
                "the server does not see this process; run cryptctl in the server's PID namespace"
            } else {
                "the session of this process began outside of its container (PID namespace), so it has no ID; \
                 start one inside, for example with: setsid -w bash"
            }
            .to_owned(),
        ),
        Errno::NOMEM => (Failure::system, "not enough memory to derive the key".to_owned()),
        Errno::PERM => (Failure::usage, "only root may withdraw the keys of all users".to_owned()),
        errno => (Failure::mount, crate::host_dir::reason(errno)),
    };
    exit(format!("{shown}: {why}"))
}
