#![expect(clippy::disallowed_methods, reason = "what /proc says of a caller is no file of the layer's")]

use crate::asked;
use core::fmt;
use std::fs;
use vnode::Cx;

/// Who it was. All of it but the ids is what a process says of itself, so nothing of it is shown as it is.
#[derive(Debug)]
pub(crate) struct Caller {
    uid: u32,
    pid: u32,
    command: Vec<u8>,
    asked: Option<Vec<u8>>,
}

impl Caller {
    /// The caller of an operation; `ask`: also the path that it gave to its system call.
    pub(crate) fn of(cx: &Cx<'_>, ask: bool) -> Self {
        let pid = process_of(cx.pid);
        let mut command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        command.pop_if(|last| *last == b'\n');
        Self { uid: cx.uid, pid, command, asked: if ask { asked::path(cx.pid) } else { None } }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid={} pid={} command=\"{}\"", self.uid, self.pid, self.command.escape_ascii())?;
        match &self.asked {
            Some(path) => write!(f, " asked=\"{}\"", path.escape_ascii()),
            None => Ok(()),
        }
    }
}

/// The process of a thread; the number itself, where that can't be found out.
fn process_of(thread: u32) -> u32 {
    let status = fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"));
    line.and_then(|number| core::str::from_utf8(number).ok()?.trim().parse().ok()).unwrap_or(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_its_process() {
        let pid = std::process::id();
        let thread = std::thread::spawn(|| process_of(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()));
        assert_eq!(thread.join().unwrap(), pid);
        assert_eq!(process_of(0), 0);
    }

    #[test]
    fn names_can_not_forge_lines() {
        let caller = Caller { uid: 1, pid: 2, command: b"a\"\n\x1b[2J".to_vec(), asked: Some(b"/\xff".to_vec()) };
        assert_eq!(caller.to_string(), r#"uid=1 pid=2 command="a\"\n\x1b[2J" asked="/\xff""#);
    }
}
