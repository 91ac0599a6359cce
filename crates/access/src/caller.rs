//! The caller's ids and supplementary groups.

use std::fs;
use vnode::Cx;

/// The caller of an operation: file-system ids and supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// Returns the caller of an operation. The caller waits while its request is served, so its
    /// groups are those that the kernel used for its decision. The list is empty if the groups
    /// can't be read (a process of another pid namespace).
    #[must_use]
    pub fn of(cx: &Cx<'_>) -> Self {
        let groups = if cx.call().is_some() { cx.groups().map(<[u32]>::to_vec) } else { read(cx.pid) };
        Self { uid: cx.uid, gid: cx.gid, groups: groups.unwrap_or_default() }
    }

    pub(crate) fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Reads the groups of a process, for contexts that don't provide them: in a layer loaded from an
/// object file.
fn read(pid: u32) -> Option<Vec<u32>> {
    Some(groups(&fs::read(format!("/proc/{pid}/status")).ok()?))
}

/// Parses the supplementary groups from /proc/PID/status. A process chooses its own name, but can't
/// start a line with it.
fn groups(status: &[u8]) -> Vec<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Groups:"));
    let words = line.unwrap_or_default().split(u8::is_ascii_whitespace);
    words.filter_map(|word| core::str::from_utf8(word).ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;
    use vnode::{Call, Processes};

    #[test]
    fn groups_are_parsed() {
        let status =
            b"Name:\tGroups:\\nGroups:\t7\nUmask:\t0022\nGid:\t9\t9\t9\t9\nGroups:\t4 24 1000 \nVmRSS:\t1 kB\n";
        assert_eq!(groups(status), [4, 24, 1000]);
        assert_eq!(groups(b"Name:\tcat\nGroups:\t \n"), []);
        assert_eq!(groups(b""), []);
    }

    /// Knows exactly one process.
    #[derive(Debug)]
    struct One;

    impl Processes for One {
        fn groups(&self, pid: u32) -> Option<Vec<u32>> {
            (pid == 7).then(|| vec![4711])
        }

        fn umask(&self, _pid: u32) -> Option<u32> {
            None
        }

        fn session(&self, _pid: u32) -> Option<(u32, u64)> {
            None
        }

        fn executable(&self, _pid: u32) -> Option<PathBuf> {
            None
        }

        fn cgroup(&self, _pid: u32) -> Option<Vec<u8>> {
            None
        }
    }

    #[test]
    fn groups_are_taken_from_the_context_before_proc() {
        let (never, call) = (AtomicBool::new(false), Call::new(&One));
        let cx = |pid| Cx::new(1, 2, pid, 0, true, &never);
        assert_eq!(Caller::of(&cx(7).with_call(&call)).groups, [4711]);
        let own = std::process::id();
        assert_eq!(Caller::of(&cx(own).with_call(&Call::new(&One))).groups, []);
        let groups = rustix::process::getgroups().unwrap();
        let groups: Vec<u32> = groups.iter().map(|gid| gid.as_raw()).collect();
        assert_eq!(Caller::of(&cx(own)).groups, groups);
    }

    #[test]
    fn a_caller_is_in_its_primary_and_supplementary_groups() {
        let caller = Caller { uid: 1, gid: 2, groups: vec![3] };
        assert_eq!([1, 2, 3].map(|gid| caller.is_in(gid)), [false, true, true]);
    }
}
