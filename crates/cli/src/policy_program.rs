//! Runs a program that decides which versions are discarded, with limits on its time and output.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a program.
const LIMIT: Duration = Duration::from_secs(5);

/// Pause between two looks at whether the program has exited.
const STEP: Duration = Duration::from_millis(5);

/// Runs `path` as a user and group, or as this process, with `request` on its standard input.
/// Returns its standard output. Its other files are /dev/null, and its process group ends with it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(path: &str, user: Option<(u32, u32)>, request: &[u8]) -> Result<Vec<u8>, &'static str> {
    let end = Instant::now() + LIMIT;
    // The shell opens the program: if that waits for this very server, only the shell does.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec \"$0\"", path]).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if let Some((uid, gid)) = user.filter(|(uid, _)| *uid != own.0) {
        if own.0 != 0 {
            return Err("the server can't run it as the user who registered it");
        }
        // Without supplementary groups: the standard library clears them.
        command.uid(uid).gid(gid);
    }
    let mut child = command.spawn().map_err(|_| "it can't be started")?;
    let answer = converse(&mut child, request, end).and_then(|answer| match exited(&mut child, end)? {
        true => Ok(answer),
        false => Err("it failed"),
    });
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Before the child is waited for, its number is not used again.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    // It may be in a system call that can't be interrupted.
    let _ = std::thread::Builder::new().spawn(move || child.wait());
    answer
}

/// Whether the program succeeded. It remains a zombie, so that its number stays taken.
fn exited(child: &mut Child, end: Instant) -> Result<bool, &'static str> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("it has no number")?;
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), how) {
            Ok(Some(status)) => return Ok(status.exit_status() == Some(0)),
            Ok(None) if Instant::now() < end => std::thread::sleep(STEP),
            Ok(None) => return Err("it took longer than 5 s"),
            Err(Errno::INTR) => {}
            Err(_) => return Err("it can't be waited for"),
        }
    }
}

/// Writes the request and reads the answer at the same time.
fn converse(child: &mut Child, request: &[u8], end: Instant) -> Result<Vec<u8>, &'static str> {
    let (mut input, output) = (child.stdin.take(), child.stdout.take());
    let mut output = output.ok_or("it has no output")?;
    for pipe in input.iter().map(AsFd::as_fd).chain([output.as_fd()]) {
        rustix::io::ioctl_fionbio(pipe, true).map_err(|_| "its pipes can't be set up")?;
    }
    let (mut rest, mut answer) = (request, Vec::new());
    let mut buffer = [0; 64 * 1024];
    loop {
        if rest.is_empty() {
            input = None;
        }
        wait(&output, input.as_ref(), end)?;
        if let Some(pipe) = &mut input {
            match pipe.write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // It does not read on.
                Err(_) => input = None,
            }
        }
        match output.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(read) => answer.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return Err("its output can't be read"),
        }
        if answer.len() > versionpolicy::MAX_ANSWER {
            return Err("its output is too long");
        }
    }
}

/// Waits until one of the pipes is ready.
fn wait(output: &impl AsFd, input: Option<&impl AsFd>, end: Instant) -> Result<(), &'static str> {
    let left = end.checked_duration_since(Instant::now()).ok_or("it took longer than 5 s")?;
    let timeout =
        Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
    let mut pipes = vec![PollFd::new(output, PollFlags::IN)];
    pipes.extend(input.map(|input| PollFd::new(input, PollFlags::OUT)));
    match poll(&mut pipes, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(_) => Err("its output can't be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    fn script(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("policy-program-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn run_script(name: &str, text: &str, request: &[u8]) -> Result<Vec<u8>, &'static str> {
        let path = script(name, text);
        let answer = run(path.to_str().unwrap(), None, request);
        std::fs::remove_file(path).unwrap();
        answer
    }

    #[test]
    fn a_program_answers() {
        let request = vec![b'x'; 1 << 20];
        assert_eq!(run_script("cat", "cat", &request).as_deref(), Ok(&*request));
        assert_eq!(run_script("deaf", "echo done", &request).as_deref(), Ok(&b"done\n"[..]));
        let path = script("open", "");
        let own = std::fs::File::open(&path).unwrap();
        let seen = run_script("bare", "env | sort; pwd; ls -l /proc/self/fd | grep -c policy-program-open", b"");
        // The last command finds nothing, and fails.
        assert_eq!(seen, Err("it failed"));
        let seen = run_script("env", "env | sort; pwd", b"").unwrap();
        assert_eq!(String::from_utf8(seen).unwrap(), "PATH=/usr/bin:/bin\nPWD=/\n/\n");
        drop(own);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_failure_is_reported() {
        assert_eq!(run_script("false", "echo x; exit 3", b""), Err("it failed"));
        assert_eq!(run("/nonexistent/program", None, b""), Err("it failed"));
        assert_eq!(run_script("endless", "cat /dev/zero", b""), Err("its output is too long"));
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_group() {
        let scratch = testkit::TempDir::new();
        let pid = scratch.join("pid");
        let text = format!("sleep 1000 & echo $! >{}; wait", pid.display());
        assert_eq!(run_script("hang", &text, b""), Err("it took longer than 5 s"));
        let number = std::fs::read_to_string(&pid).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", number.trim())).unwrap_or_default();
        // A killed process may remain as a zombie if nobody waits for it.
        testkit::until("its child ends", || testkit::seen(state(), |state| state.is_empty() || state.contains(") Z ")));
    }
}
