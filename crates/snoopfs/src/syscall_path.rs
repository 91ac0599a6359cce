//! Reads the path argument of the system call in which a calling thread is blocked. If a directory
//! is not searchable, the server only sees the refused access to the directory; this path contains
//! the name that the caller tried to access.
//!
//! The path is read from the memory of the process. The process can change it concurrently, and can
//! make the read block. It is therefore only a hint, and a separate thread reads it, with a short
//! timeout.

#![expect(clippy::disallowed_methods, reason = "/proc is not a file system below the layer")]

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Time limit for reading a path. A read takes longer only if the process delays it deliberately.
const TIMEOUT: Duration = Duration::from_millis(20);
/// The kernel's limit for the length of a path.
const PATH_MAX: usize = 4096;
const PAGE: u64 = 4096;

type Job = (u32, SyncSender<Option<Vec<u8>>>);

/// Returns the path argument of the system call of a thread, if it can be determined.
pub(crate) fn path(thread: u32) -> Option<Vec<u8>> {
    static READER: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    let reader = READER.get_or_init(start).as_ref()?;
    let (reply, result) = sync_channel(1);
    // If the reader is blocked on a hostile process, don't wait again.
    reader.try_send((thread, reply)).ok()?;
    result.recv_timeout(TIMEOUT).ok()?
}

fn start() -> Option<SyncSender<Job>> {
    let (send, jobs) = sync_channel(1);
    let thread = std::thread::Builder::new().name("snoopfs".to_owned());
    thread.spawn(move || serve(&jobs)).is_ok().then_some(send)
}

fn serve(jobs: &Receiver<Job>) {
    while let Ok((thread, reply)) = jobs.recv() {
        // Fails if the requester has timed out.
        let _ = reply.send(read(thread));
    }
}

fn read(thread: u32) -> Option<Vec<u8>> {
    let call = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    text_at(pointer(&call)?, |out, at| memory.read_at(out, at).ok())
}

/// Returns the address of the path: the first argument, or the second one after a directory
/// descriptor (`AT_FDCWD` is -100).
fn pointer(call: &str) -> Option<u64> {
    let mut arguments = call.split(' ').skip(1).map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
    let is_pointer = |value: u64| (0x1_0000..1 << 56).contains(&value) && value != 0xffff_ff9c;
    let (first, second) = (arguments.next()?.ok()?, arguments.next()?.ok()?);
    [first, second].into_iter().find(|&value| is_pointer(value))
}

/// Reads a NUL-terminated string page by page, since the page after its last one may not be mapped.
fn text_at(start: u64, mut read: impl FnMut(&mut [u8], u64) -> Option<usize>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < PATH_MAX {
        let at = start.checked_add(text.len() as u64)?;
        let mut piece = vec![0; usize::try_from(PAGE - at % PAGE).ok()?];
        let len = read(&mut piece, at).filter(|&len| len > 0)?;
        let piece = piece.get(..len)?;
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => {
                text.extend_from_slice(piece.get(..end)?);
                // Reject socket addresses, which begin with the address family.
                return text.first().is_some_and(|&byte| byte >= b' ').then_some(text);
            }
            None => text.extend_from_slice(piece),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pointer_argument_is_found() {
        let call = |text: &str| pointer(text);
        assert_eq!(call("257 0xffffff9c 0x7ffd1000 0x0 0x0 0x0 0x0 0x7ffd 0x7f"), Some(0x7ffd_1000));
        assert_eq!(call("257 0xffffffffffffff9c 0x7ffd1000 0x0 0x0 0x0 0x0 0x7ffd 0x7f"), Some(0x7ffd_1000));
        assert_eq!(call("2 0x7ffd2000 0x0 0x0"), Some(0x7ffd_2000));
        assert_eq!(call("3 0x3 0x0 0x0"), None);
        assert_eq!(call("running"), None);
        assert_eq!(call(""), None);
    }

    #[test]
    fn strings_end_at_a_nul_and_have_a_maximum_length() {
        let memory = [vec![b'x'; 5000], b"/a/b\0rest".to_vec()].concat();
        let read = |out: &mut [u8], at: u64| {
            let from = memory.get(usize::try_from(at).ok()?..)?;
            let len = from.len().min(out.len());
            out[..len].copy_from_slice(&from[..len]);
            Some(len)
        };
        assert_eq!(text_at(5000, read), Some(b"/a/b".to_vec()));
        assert_eq!(text_at(4000, read).map(|text| text.len()), Some(1004));
        assert_eq!(text_at(0, read), None);
        assert_eq!(text_at(5005, read), None);
        assert_eq!(text_at(1 << 40, read), None);
        assert_eq!(text_at(u64::MAX - 3, |_, _| Some(4)), None);
    }

    #[test]
    fn the_path_of_a_blocked_thread_is_read() {
        let fifo = std::env::temp_dir().join(format!("snoopfs-syscall-path-{}", std::process::id()));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let opened = fifo.clone();
        let opener = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            drop(File::open(opened).unwrap());
        });
        let thread = receiver.recv().unwrap();
        let mut seen = None;
        for _ in 0..500 {
            seen = path(thread);
            if seen.as_deref() == Some(fifo.as_os_str().as_encoded_bytes()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(File::options().write(true).open(&fifo).unwrap());
        opener.join().unwrap();
        fs::remove_file(&fifo).unwrap();
        assert_eq!(seen.as_deref(), Some(fifo.as_os_str().as_encoded_bytes()));
        assert_eq!(path(0), None);
    }
}
