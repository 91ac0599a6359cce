use crate::lineage::{Process, ProcessTable};
use std::fs;

/// Processes according to this process's /proc.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proc;

impl ProcessTable for Proc {
    fn process(&self, thread: u32) -> Option<Process> {
        let status = fs::read(format!("/proc/{thread}/status")).ok()?;
        let (id, parent) = (field(&status, b"Tgid:")?, field(&status, b"PPid:")?);
        let start = start(&fs::read(format!("/proc/{id}/stat")).ok()?)?;
        Some(Process { id, start, parent })
    }

    fn credentials(&self, process: u32) -> Option<(u32, u32)> {
        let status = fs::read(format!("/proc/{process}/status")).ok()?;
        Some((last_field(&status, b"Uid:")?, last_field(&status, b"Gid:")?))
    }

    fn all(&self) -> Vec<Process> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter_map(|id| self.process(id)).collect()
    }
}

/// Returns a number from proc_pid_status(5). A process chooses its own name, but newlines in it are
/// escaped, so it can't fake a line.
fn field(status: &[u8], name: &[u8]) -> Option<u32> {
    core::str::from_utf8(line_of(status, name)?).ok()?.trim().parse().ok()
}

/// Returns the last number of a line: the ID for access to files.
fn last_field(status: &[u8], name: &[u8]) -> Option<u32> {
    core::str::from_utf8(line_of(status, name)?).ok()?.split_ascii_whitespace().next_back()?.parse().ok()
}

fn line_of<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))
}

/// Returns field 22 of proc_pid_stat(5), counted from the end of the name, which may contain blanks
/// and parentheses.
fn start(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    // The first field here is field 3.
    let mut fields = stat.get(end + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    core::str::from_utf8(fields.nth(19)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_belongs_to_its_process() {
        let own = Proc.process(std::process::id()).unwrap();
        assert_eq!((own.id, own.parent), (std::process::id(), std::os::unix::process::parent_id()));
        let thread = std::thread::spawn(|| {
            let link = fs::read_link("/proc/thread-self").unwrap();
            let thread = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
            (thread, Proc.process(thread))
        });
        let (thread, process) = thread.join().unwrap();
        assert_ne!(thread, own.id);
        assert_eq!(process, Some(own));
        assert!(Proc.all().contains(&own));
        assert_eq!(Proc.process(u32::MAX), None);
        let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(Proc.credentials(own.id), Some(ids));
    }

    #[test]
    fn fields_are_parsed_despite_the_name() {
        let stat = b"77 (a) b (c) S 1 2 33 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20\n";
        assert_eq!(start(stat), Some(987_654));
        let status = b"Name:\tPPid:\\nPPid:\t7\nTgid:\t9\nPPid:\t8\n";
        assert_eq!((field(status, b"Tgid:"), field(status, b"PPid:")), (Some(9), Some(8)));
        assert_eq!((start(b"77 (cut"), field(b"", b"Tgid:")), (None, None));
    }
}
