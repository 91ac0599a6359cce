#![expect(clippy::disallowed_methods, reason = "/proc is not a file system below the layer")]

use crate::syscall_path;
use core::fmt;
use std::fs;
use vnode::Cx;

/// The process that made a request. All fields but the ids are controlled by that process, so they
/// are escaped for display.
#[derive(Debug)]
pub(crate) struct Caller {
    uid: u32,
    pid: u32,
    command: Vec<u8>,
    requested: Option<Vec<u8>>,
}

impl Caller {
    /// Returns the caller of an operation; `with_path` adds the path argument of its system call.
    pub(crate) fn of(cx: &Cx<'_>, with_path: bool) -> Self {
        let pid = process_of(cx.pid);
        let mut command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        command.pop_if(|last| *last == b'\n');
        Self { uid: cx.uid, pid, command, requested: if with_path { syscall_path::path(cx.pid) } else { None } }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid={} pid={} command=\"{}\"", self.uid, self.pid, self.command.escape_ascii())?;
        match &self.requested {
            Some(path) => write!(f, " asked=\"{}\"", path.escape_ascii()),
            None => Ok(()),
        }
    }
}

/// Returns the process ID of a thread, or the thread ID if that is unknown.
fn process_of(thread: u32) -> u32 {
    let status = fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"));
    line.and_then(|number| core::str::from_utf8(number).ok()?.trim().parse().ok()).unwrap_or(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_mapped_to_its_process() {
        let pid = std::process::id();
        let thread = std::thread::spawn(|| process_of(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()));
        assert_eq!(thread.join().unwrap(), pid);
        assert_eq!(process_of(0), 0);
    }

    #[test]
    fn names_are_escaped_and_can_not_forge_log_lines() {
        let caller = Caller { uid: 1, pid: 2, command: b"a\"\n\x1b[2J".to_vec(), requested: Some(b"/\xff".to_vec()) };
        assert_eq!(caller.to_string(), r#"uid=1 pid=2 command="a\"\n\x1b[2J" asked="/\xff""#);
    }
}
