use std::fs;
use vnode::Cx;

/// Who asks: file-system ids and supplementary groups.
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
    /// The caller of an operation. Its groups are read from /proc: while its request is being served it waits, and they are those that the
    /// kernel decided by. None, where they can't be read (a process of another pid namespace).
    #[must_use]
    pub fn of(cx: &Cx<'_>) -> Self {
        let status = fs::read(format!("/proc/{}/status", cx.pid)).unwrap_or_default();
        Self { uid: cx.uid, gid: cx.gid, groups: groups(&status) }
    }

    pub(crate) fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The supplementary groups that /proc/PID/status names. The process chooses its name, but can't begin a line with it.
fn groups(status: &[u8]) -> Vec<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Groups:"));
    let words = line.unwrap_or_default().split(u8::is_ascii_whitespace);
    words.filter_map(|word| core::str::from_utf8(word).ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read() {
        let status =
            b"Name:\tGroups:\\nGroups:\t7\nUmask:\t0022\nGid:\t9\t9\t9\t9\nGroups:\t4 24 1000 \nVmRSS:\t1 kB\n";
        assert_eq!(groups(status), [4, 24, 1000]);
        assert_eq!(groups(b"Name:\tcat\nGroups:\t \n"), []);
        assert_eq!(groups(b""), []);
    }

    #[test]
    fn a_caller_is_in_its_group_and_its_groups() {
        let caller = Caller { uid: 1, gid: 2, groups: vec![3] };
        assert_eq!([1, 2, 3].map(|gid| caller.is_in(gid)), [false, true, true]);
    }
}
