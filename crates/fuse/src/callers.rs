//! Whether /proc shows the callers of requests.

use std::sync::OnceLock;

/// Whether /proc belongs to this process's PID namespace, in which the kernel numbers callers. If
/// not, it may show another process under a caller's number.
///
/// Determined once. True if /proc shows nothing at all.
#[must_use]
pub fn proc_shows_callers() -> bool {
    static SHOWS: OnceLock<bool> = OnceLock::new();
    *SHOWS.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        is_of(&status, std::process::id())
    })
}

/// Whether proc_pid_status(5) of a process with this number is that of its own PID namespace. The
/// field `NSpid` has the numbers from the namespace of /proc to that of the process.
fn is_of(status: &str, pid: u32) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_none_or(|numbers| numbers.trim() == pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proc_of_another_namespace_is_recognised() {
        assert!(proc_shows_callers());
        assert!(is_of("Name:\tstrata\nNSpid:\t7\n", 7));
        assert!(is_of("", 7));
        for foreign in ["NSpid:\t7\t7\n", "NSpid:\t100\t7\n", "NSpid:\t8\n", "NSpid:\n"] {
            assert!(!is_of(foreign, 7), "{foreign}");
        }
    }
}
