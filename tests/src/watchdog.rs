//! Diagnosis and termination of hung tests.

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Ends a test that exceeds its time limit: prints the state of every task in the sandbox, aborts
/// its FUSE connections, kills its servers and, if the test still hangs, exits the process.
#[derive(Debug)]
pub(crate) struct Watchdog(Arc<(Mutex<bool>, Condvar)>);

impl Watchdog {
    /// Starts the time limit.
    pub(crate) fn start(time: Duration) -> Self {
        let state = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || watch(&shared, time));
        Self(state)
    }

    /// Reports that the test has ended.
    pub(crate) fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
}

fn watch(state: &(Mutex<bool>, Condvar), time: Duration) {
    if ended_within(state, time) {
        return;
    }
    eprintln!("=== the test exceeds its time limit of {time:?}; state of every task in its sandbox:");
    let servers = servers();
    print_logs(Path::new("/mnt"));
    print_tasks("test", std::process::id());
    for pid in &servers {
        print_tasks("server", *pid);
    }
    eprintln!("=== aborting its FUSE connections and killing its servers");
    for fuse in fuse_mounts() {
        let file = format!("/sys/fs/fuse/connections/{}/abort", fuse.minor);
        eprintln!("{} on {}: {:?}", file, fuse.dir.display(), fs::write(&file, "1"));
    }
    for pid in servers {
        kill(pid);
    }
    if !ended_within(state, Duration::from_secs(30)) {
        eprintln!("=== the test still hangs: exiting");
        std::process::exit(102);
    }
}

/// Waits until the test has ended or `time` has passed. Returns whether the test has ended.
fn ended_within(state: &(Mutex<bool>, Condvar), time: Duration) -> bool {
    let end = Instant::now() + time;
    let mut over = state.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*over {
        let Some(rest) = end.checked_duration_since(Instant::now()) else { return false };
        over = state.1.wait_timeout(over, rest).unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug)]
pub(crate) struct MountLine {
    /// Minor device number.
    pub(crate) minor: u32,
    /// Mount point.
    pub(crate) dir: PathBuf,
    /// File system type.
    pub(crate) kind: String,
}

/// Returns the mounts at or below `root`, oldest first.
pub(crate) fn mounts_below(root: &Path) -> Vec<MountLine> {
    // Not /proc/self: only this thread is in the namespace.
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse).filter(|m| m.dir.starts_with(root)).collect()
}

fn fuse_mounts() -> Vec<MountLine> {
    mounts_below(Path::new("/mnt")).into_iter().filter(|m| m.kind.starts_with("fuse")).collect()
}

fn parse(line: &str) -> Option<MountLine> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ');
    let minor = fields.nth(2)?.split_once(':')?.1.parse().ok()?;
    let dir = unescape(fields.nth(1)?);
    Some(MountLine { minor, dir, kind: right.split(' ').next()?.to_owned() })
}

/// Decodes octal escapes such as `\040`.
fn unescape(field: &str) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        if let (b'\\', Some(byte)) = (first, octal) {
            out.push(byte);
            rest = &tail[3..];
        } else {
            out.push(first);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Returns the Strata servers in this thread's mount namespace, which contains those of this test
/// only.
pub(crate) fn servers() -> Vec<u32> {
    let Ok(here) = fs::read_link("/proc/thread-self/ns/mnt") else { return Vec::new() };
    let program = crate::Mounted::program();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|ns| ns == here))
        .filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| Some(strip_deleted(&exe)) == program))
        .collect()
}

/// Returns the program's path without the suffix that the kernel adds once the file is replaced by
/// a new build.
fn strip_deleted(exe: &Path) -> PathBuf {
    let bytes = exe.as_os_str().as_bytes();
    PathBuf::from(OsStr::from_bytes(bytes.strip_suffix(b" (deleted)").unwrap_or(bytes)))
}

/// Sends SIGKILL to a process.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn print_tasks(what: &str, pid: u32) {
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        eprintln!(
            "{what} {pid}, task {}: {} in {} ({})\n{}",
            task.file_name().to_string_lossy(),
            read("comm").trim(),
            read("wchan"),
            read("syscall").trim(),
            read("stack")
        );
    }
}

/// Prints the servers' logs.
pub(crate) fn print_logs(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "log") {
            let text = fs::read(&path).unwrap_or_default();
            if !text.is_empty() {
                eprintln!("--- {}:\n{}", path.display(), String::from_utf8_lossy(&text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo() {
        let line = "36 35 0:45 / /mnt/a\\040b rw,noatime shared:1 - fuse.unionfs none rw,user_id=0";
        let m = parse(line).unwrap();
        assert_eq!((m.minor, m.dir.as_path(), m.kind.as_str()), (45, Path::new("/mnt/a b"), "fuse.unionfs"));
        assert!(parse("nonsense").is_none());
    }
}
