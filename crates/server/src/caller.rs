//! Caller of a request, as the layers see it.

use crate::reports::Moment;
use fuse::Request;
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;
use vnode::{Call, Cx, Processes};

/// Context of a request while it is handled.
#[derive(Debug)]
pub(crate) struct RequestContext<'a> {
    rq: &'a Request<'a>,
    pub(crate) call: Call,
    /// When it began, to find out whether a change overtakes its reply.
    pub(crate) since: Moment,
}

impl<'a> RequestContext<'a> {
    /// Starts a request at this moment.
    pub(crate) const fn new(rq: &'a Request<'a>, since: Moment) -> Self {
        Self { rq, call: Call::new(&Proc), since }
    }

    /// Returns the context for vnode operations.
    pub(crate) fn cx(&self, umask: u32) -> Cx<'_> {
        let rq = self.rq;
        Cx::new(rq.uid, rq.gid, rq.pid, umask, rq.may_block, rq.cancelled()).with_call(&self.call)
    }
}

/// Processes, according to this server's `/proc`.
///
/// A caller blocks until its request is finished, so `/proc` still shows the state that the kernel
/// based its decision on.
#[derive(Debug)]
struct Proc;

impl Processes for Proc {
    fn groups(&self, pid: u32) -> Option<Vec<u32>> {
        groups(&fs::read(format!("/proc/{pid}/status")).ok()?)
    }

    fn umask(&self, pid: u32) -> Option<u32> {
        umask(&fs::read(format!("/proc/{pid}/status")).ok()?)
    }

    fn session(&self, pid: u32) -> Option<(u32, u64)> {
        session(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn session_id(&self, pid: u32) -> Option<u32> {
        // Without a process, getsid(2) would return the server's own session.
        let process = Some(Pid::from_raw(pid.cast_signed())).filter(|_| pid != 0)?;
        let session = nix::unistd::getsid(Some(process)).ok()?;
        // A session outside this PID namespace has the ID 0.
        Some(session.as_raw().cast_unsigned())
    }

    fn executable(&self, pid: u32) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{pid}/exe")).ok()
    }

    fn cgroup(&self, pid: u32) -> Option<Vec<u8>> {
        cgroup(&fs::read(format!("/proc/{pid}/cgroup")).ok()?)
    }
}

/// Returns a field of proc_pid_status(5). A process chooses its own name, but newlines in it are
/// escaped, so it cannot fake a line.
fn line_of<'a>(status: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(field))
}

fn groups(status: &[u8]) -> Option<Vec<u32>> {
    let words = line_of(status, b"Groups:")?.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.map(number).collect()
}

fn umask(status: &[u8]) -> Option<u32> {
    let octal = core::str::from_utf8(line_of(status, b"Umask:")?).ok()?;
    u32::from_str_radix(octal.trim(), 8).ok().filter(|mask| mask & !0o777 == 0)
}

/// Returns fields 6 and 22 of proc_pid_stat(5), counted from the end of the name, which may contain
/// blanks and parentheses.
fn session(stat: &[u8]) -> Option<(u32, u64)> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat.get(end + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    // The first field here is field 3.
    let session = number(fields.nth(3)?)?;
    let start = number(fields.nth(15)?)?;
    Some((session, start))
}

/// Whether a process may do what modes and ACLs deny: it has `CAP_DAC_OVERRIDE`, or it only reads
/// and has `CAP_DAC_READ_SEARCH`. `None` if that is unknown.
pub(crate) fn overrides_modes(pid: u32, only_reads: bool) -> Option<bool> {
    overrides(&fs::read(format!("/proc/{pid}/status")).ok()?, only_reads)
}

fn overrides(status: &[u8], only_reads: bool) -> Option<bool> {
    const DAC_OVERRIDE: u64 = 1 << 1;
    const DAC_READ_SEARCH: u64 = 1 << 2;
    let hex = core::str::from_utf8(line_of(status, b"CapEff:")?).ok()?;
    let effective = u64::from_str_radix(hex.trim(), 16).ok()?;
    let suffices = if only_reads { DAC_OVERRIDE | DAC_READ_SEARCH } else { DAC_OVERRIDE };
    Some(effective & suffices != 0)
}

/// Returns the path in the unified hierarchy: `0::/path`.
fn cgroup(text: &[u8]) -> Option<Vec<u8>> {
    let path = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    path.starts_with(b"/").then(|| path.to_vec())
}

fn number<T: core::str::FromStr>(word: &[u8]) -> Option<T> {
    core::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_parsed() {
        let status =
            b"Name:\tGroups:\\nGroups:\t7\nUmask:\t0022\nGid:\t9\t9\t9\t9\nGroups:\t4 24 1000 \nVmRSS:\t1 kB\n";
        assert_eq!(groups(status), Some(vec![4, 24, 1000]));
        assert_eq!(groups(b"Name:\tcat\nGroups:\t \n"), Some(vec![]));
        assert_eq!(groups(b""), None);
        assert_eq!(umask(status), Some(0o022));
        assert_eq!((umask(b"Umask:\t07777\n"), umask(b"Umask:\n"), umask(b"")), (None, None, None));
    }

    #[test]
    fn capabilities_override_modes() {
        let with = |set: &str, only_reads| overrides(format!("Name:\tx\nCapEff:\t{set}\n").as_bytes(), only_reads);
        assert_eq!((with("0000000000000000", true), with("0000000000000000", false)), (Some(false), Some(false)));
        assert_eq!((with("0000000000000004", true), with("0000000000000004", false)), (Some(true), Some(false)));
        assert_eq!((with("000001ffffffffff", true), with("0000000000000002", false)), (Some(true), Some(true)));
        assert_eq!((with("", true), overrides(b"", true)), (None, None));
        assert_eq!(overrides_modes(u32::MAX, true), None);
    }

    #[test]
    fn session_and_start_time_are_parsed() {
        let stat = b"77 (a) b (c) S 1 2 33 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20\n";
        assert_eq!(session(stat), Some((33, 987_654)));
        assert_eq!(session(b"77 (cut"), None);
        let own = Proc.session(std::process::id()).unwrap();
        assert_eq!(Proc.session(std::process::id()), Some(own));
        assert_eq!(Proc.session_id(std::process::id()), Some(own.0));
        assert_eq!((Proc.session_id(0), Proc.session_id(1 << 23)), (None, None));
        assert!(own.1 > 0);
    }

    #[test]
    fn the_cgroup_is_that_of_the_unified_hierarchy() {
        assert_eq!(cgroup(b"1:name=x:/y\n0::/user.slice/a b\n").as_deref(), Some(b"/user.slice/a b".as_slice()));
        assert_eq!(cgroup(b"1:name=x:/y\n"), None);
    }

    #[test]
    fn an_exited_process_has_no_information() {
        assert_eq!(Proc.groups(u32::MAX), None);
        assert_eq!(Proc.executable(u32::MAX), None);
        assert!(Proc.executable(std::process::id()).is_some());
    }
}
