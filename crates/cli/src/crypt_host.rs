//! What cryptfs needs of the host: passphrases, sessions, protection of memory. The layer itself
//! may use neither the host's files nor its processes.

use core::fmt::Display;
use core::mem::MaybeUninit;
use cryptfs::{KeyHost, KeySource, Leader, Secret, WatchedLeader};
use rustix::event::{Timespec, epoll};
use rustix::mm::MlockAllFlags;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal as _, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// Maximum size of a passphrase in bytes, as in gocryptfs.
const LONGEST: usize = 2048;
/// Maximum size of a configuration in bytes.
const CONFIG_MAX: u64 = 64 << 10;

/// The host of a server process.
#[derive(Debug)]
pub(crate) struct Host {
    /// Whether the process that started this one has asked for the passphrase, and sends it to the
    /// standard input.
    pub(crate) asked_by_parent: bool,
    /// The working directory of the mounting process, to which paths are relative. The server has
    /// another one.
    pub(crate) start: PathBuf,
}

impl KeyHost for Host {
    fn passphrase(&self, source: &KeySource) -> Result<Secret, String> {
        match source {
            KeySource::Ask if self.asked_by_parent => {
                read_bounded(io::stdin().lock(), LONGEST).map_err(|error| format!("passphrase: {error}"))
            }
            KeySource::File(path) => passphrase(&KeySource::File(self.resolve(path)), ""),
            KeySource::KeyFile(path) => passphrase(&KeySource::KeyFile(self.resolve(path)), ""),
            KeySource::Command(command) => output_of(command, &self.start),
            other => passphrase(other, "Passphrase: "),
        }
    }

    fn config(&self, path: &Path) -> Result<Vec<u8>, String> {
        let read = || {
            let mut bytes = Vec::new();
            open_regular(&self.resolve(path))?.take(CONFIG_MAX + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|error: io::Error| format!("config={}: {error}", path.display()))
    }

    fn leader(&self, session: u32, thorough: bool) -> Leader {
        match start_time(session) {
            // A process with the ID of a session is its leader, or has just begun another one.
            Some(start) => Leader::Started(start),
            None if thorough && !has_members(session) => Leader::SessionEnded,
            None => Leader::Exited,
        }
    }

    fn watch(&self, session: u32) -> Option<Box<dyn WatchedLeader>> {
        let pid = Pid::from_raw(session.cast_signed())?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let exits = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        epoll::add(&exits, &process, epoll::EventData::new_u64(0), epoll::EventFlags::IN).ok()?;
        Some(Box::new(Watched { exits, _process: process }))
    }

    fn protect_memory(&self) -> Vec<String> {
        // Names are secret.
        fuse::hide_names_in_trace();
        meter::hide_names_in_trace();
        let mut failed = Vec::new();
        let mut note = |what: &str, error: &dyn Display| failed.push(format!("{what}: {error}"));
        if let Err(errno) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            note("the server's memory can be read by its user", &errno);
        }
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        if let Err(errno) = rustix::process::setrlimit(Resource::Core, none) {
            note("core dumps can't be turned off", &errno);
        }
        // Buffers with plain data and copies of keys in libraries, too. Without privileges, the
        // limit of locked memory would make later allocations fail.
        if rustix::process::geteuid().is_root() {
            let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
            if let Err(errno) = rustix::mm::mlockall(all) {
                note("the server's memory may be swapped", &errno);
            }
        }
        failed
    }
}

/// A process, by its pidfd.
#[derive(Debug)]
struct Watched {
    /// Has an event once the process has exited. Asking an epoll without events costs a third of
    /// poll(2) on the pidfd.
    exits: OwnedFd,
    _process: OwnedFd,
}

impl WatchedLeader for Watched {
    fn is_running(&self) -> bool {
        let (mut exit, now) = ([MaybeUninit::uninit(); 1], Timespec { tv_sec: 0, tv_nsec: 0 });
        epoll::wait(&self.exits, &mut exit, Some(&now)).is_ok_and(|(exited, _)| exited.is_empty())
    }
}

impl Host {
    fn resolve(&self, path: &Path) -> PathBuf {
        // "-" is the standard input.
        if path == OsStr::new("-") { path.into() } else { self.start.join(path) }
    }
}

/// Obtains a passphrase. `prompt` is what a person is asked.
///
/// # Errors
/// A sentence that names the source.
pub(crate) fn passphrase(source: &KeySource, prompt: &str) -> Result<Secret, String> {
    match source {
        KeySource::Ask => ask(prompt).map_err(|error| format!("passphrase: {error}")),
        KeySource::File(path) => first_line_of(path, "passfile"),
        KeySource::KeyFile(path) => key_file(path),
        KeySource::Credential(name) => credential(name),
        KeySource::Keyring(name) => keyring(name),
        KeySource::Command(command) => output_of(command, Path::new(".")),
    }
}

/// Asks on the terminal without echo; without a terminal, reads the first line of the standard
/// input.
fn ask(prompt: &str) -> io::Result<Secret> {
    let entered = match rpassword::prompt_password(prompt) {
        Ok(entered) => Zeroizing::new(entered.into_bytes()),
        Err(error) if io::stdin().is_terminal() => return Err(error),
        Err(_) => first_line(io::stdin().lock())?,
    };
    if entered.is_empty() {
        Err(io::Error::other("it is empty; enter one, or name a source of it"))
    } else {
        Ok(entered)
    }
}

fn first_line_of(path: &Path, option: &str) -> Result<Secret, String> {
    let shown = path.display();
    let line = open_regular(path).and_then(first_line).map_err(|error| format!("{option}={shown}: {error}"))?;
    if line.is_empty() {
        return Err(format!("{option}={shown}: the first line is empty; it must be the passphrase"));
    }
    warn_if_readable(path);
    Ok(line)
}

/// Returns the passphrase of a key file: its bytes in hexadecimal, so that `gocryptfs -extpass` can
/// pass it, too.
fn key_file(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let bytes = open_regular(path).and_then(|file| read_bounded(file, cryptformat::KEY_FILE_MAX));
    let bytes = bytes.map_err(|error| format!("keyfile={shown}: {error}"))?;
    cryptformat::key_file_passphrase(&bytes).ok_or_else(|| {
        format!("keyfile={shown}: it has less than 16 bytes; create one with `head -c 32 /dev/urandom >FILE`")
    })
}

fn credential(name: &str) -> Result<Secret, String> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(format!("credential={name}: not the name of a credential"));
    }
    let dir = std::env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(|| {
        format!("credential={name}: CREDENTIALS_DIRECTORY is not set; mount from a service with LoadCredential={name}")
    })?;
    first_line_of(&PathBuf::from(dir).join(name), "credential")
}

fn keyring(name: &str) -> Result<Secret, String> {
    use linux_keyutils::{KeyRing, KeyRingIdentifier};
    let failed = |error: linux_keyutils::KeyError| {
        format!("keyring={name}: {error}; add it with `keyctl add user {name} PASSPHRASE @u`")
    };
    let mut last = None;
    for ring in [KeyRingIdentifier::Session, KeyRingIdentifier::User, KeyRingIdentifier::UserSession] {
        match KeyRing::from_special_id(ring, false).and_then(|ring| ring.search(name)) {
            Ok(key) => return key.read_to_vec().map(Zeroizing::new).map_err(failed),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(String::new, failed))
}

fn output_of(command: &str, dir: &Path) -> Result<Secret, String> {
    let failed = |error: io::Error| format!("extpass={command}: {error}");
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let line = child.stdout.take().map(first_line).transpose().map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        return Err(format!("extpass={command}: failed ({status})"));
    }
    match line.filter(|line| !line.is_empty()) {
        Some(line) => Ok(line),
        None => Err(format!("extpass={command}: it printed nothing; its first line must be the passphrase")),
    }
}

/// Reads up to the first line feed, and then to the end: a program that still writes must not fail.
fn first_line(input: impl Read) -> io::Result<Secret> {
    let mut all = read_bounded(input, LONGEST)?;
    let end = all.iter().position(|&byte| byte == b'\n').unwrap_or(all.len());
    all.truncate(end);
    Ok(all)
}

/// Reads everything, into memory of which no copy remains. Fails if there is more than `most`.
fn read_bounded(mut input: impl Read, most: usize) -> io::Result<Secret> {
    let mut bytes = Zeroizing::new(vec![0; most + 1]);
    let mut len = 0;
    while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if len > most {
        return Err(io::Error::other(format!("longer than {most} bytes")));
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn open_regular(path: &Path) -> io::Result<fs::File> {
    let path = if path == OsStr::new("-") { Path::new("/dev/stdin") } else { path };
    fs::File::open(path)
}

/// Whether other users can read a file with a passphrase.
pub(crate) fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o77 != 0)
}

/// Warns about a file with a passphrase that others can read.
fn warn_if_readable(path: &Path) {
    if is_readable_by_others(path) {
        tracing::warn!("{}: others can read this passphrase; run `chmod 600` on it", path.display());
    }
}

/// Returns the session and the start time of a process, in clock ticks since boot
/// (proc_pid_stat(5)). `None` if it has exited, even if its parent has not noticed yet.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = core::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = text.split_ascii_whitespace();
    // Fields 3, 6 and 22 are the state, the session and the start time.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let session = fields.nth(2)?.parse().ok()?;
    let start = fields.nth(15)?.parse().ok()?;
    Some((session, start))
}

fn start_time(pid: u32) -> Option<u64> {
    stat(pid).map(|(_, start)| start)
}

/// Whether any process belongs to the session.
fn has_members(session: u32) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut sessions = pids.filter_map(|pid| stat(pid).map(|(session, _)| session));
    sessions.any(|of| of == session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_passphrase() {
        for (input, line) in [("one\ntwo\n", "one"), ("one", "one"), ("", ""), ("a b \r\n", "a b \r")] {
            assert_eq!(&**first_line(input.as_bytes()).unwrap(), line.as_bytes());
        }
        assert!(first_line(&[b'x'; LONGEST + 1][..]).is_err());
        let here = Path::new(".");
        assert_eq!(&**output_of("echo one; echo two", here).unwrap(), b"one");
        assert!(output_of("exit 3", here).unwrap_err().contains("exit status: 3"));
        assert!(output_of("true", here).unwrap_err().contains("printed nothing"));
    }

    #[test]
    fn sessions_are_found() {
        let own = std::process::id();
        let (session, start) = stat(own).unwrap();
        let host = Host { asked_by_parent: false, start: PathBuf::new() };
        assert_eq!(host.leader(own, false), Leader::Started(start));
        assert!(has_members(session));
        assert!(host.watch(own).unwrap().is_running());
        let mut child = Command::new("true").spawn().unwrap();
        let watched = host.watch(child.id()).unwrap();
        child.wait().unwrap();
        assert!(!watched.is_running());
        // The largest process ID is below 2^22.
        assert_eq!(host.leader(1 << 23, true), Leader::SessionEnded);
        assert_eq!(host.leader(1 << 23, false), Leader::Exited);
    }
}
