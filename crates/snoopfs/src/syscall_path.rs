//! The path that a process gave to the system call in which it waits for us. A directory that may not be searched is all that the server hears of;
//! this is what was looked for in it.
//!
//! It is read from the memory of the process, which may change it meanwhile, and which can make the reading wait: so it is no more than a
//! hint, and read by a thread of its own that nobody waits for longer than a moment.

#![expect(clippy::disallowed_methods, reason = "what /proc says of a caller is no file of the layer's")]

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Longer than it ever takes, unless the process wants it to.
const PATIENCE: Duration = Duration::from_millis(20);
/// `PATH_MAX`: what the kernel takes.
const LONGEST: usize = 4096;
const PAGE: u64 = 4096;

type Job = (u32, SyncSender<Option<Vec<u8>>>);

/// The path that a thread asked for, if that can be found out.
pub(crate) fn path(thread: u32) -> Option<Vec<u8>> {
    static READER: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    let reader = READER.get_or_init(start).as_ref()?;
    let (answer, answered) = sync_channel(1);
    // One that waits for a hostile process is not waited for again.
    reader.try_send((thread, answer)).ok()?;
    answered.recv_timeout(PATIENCE).ok()?
}

fn start() -> Option<SyncSender<Job>> {
    let (send, jobs) = sync_channel(1);
    let thread = std::thread::Builder::new().name("snoopfs".to_owned());
    thread.spawn(move || serve(&jobs)).is_ok().then_some(send)
}

fn serve(jobs: &Receiver<Job>) {
    while let Ok((thread, answer)) = jobs.recv() {
        // It may have been given up.
        let _ = answer.send(read(thread));
    }
}

fn read(thread: u32) -> Option<Vec<u8>> {
    let call = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    text_at(pointer(&call)?, |out, at| memory.read_at(out, at).ok())
}

/// The path is the first argument, or the second after the descriptor of a directory (`AT_FDCWD` is -100).
fn pointer(call: &str) -> Option<u64> {
    let mut arguments = call.split(' ').skip(1).map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
    let is_pointer = |value: u64| (0x1_0000..1 << 56).contains(&value) && value != 0xffff_ff9c;
    let (first, second) = (arguments.next()?.ok()?, arguments.next()?.ok()?);
    [first, second].into_iter().find(|&value| is_pointer(value))
}

/// A text that ends with a NUL, page by page: what lies behind its last one need not be there.
fn text_at(start: u64, mut read: impl FnMut(&mut [u8], u64) -> Option<usize>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < LONGEST {
        let at = start.checked_add(text.len() as u64)?;
        let mut piece = vec![0; usize::try_from(PAGE - at % PAGE).ok()?];
        let len = read(&mut piece, at).filter(|&len| len > 0)?;
        let piece = piece.get(..len)?;
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => {
                text.extend_from_slice(piece.get(..end)?);
                // No path: the address of a socket begins with its family.
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
    fn the_argument_that_is_a_pointer() {
        let call = |text: &str| pointer(text);
        assert_eq!(call("257 0xffffff9c 0x7ffd1000 0x0 0x0 0x0 0x0 0x7ffd 0x7f"), Some(0x7ffd_1000));
        assert_eq!(call("257 0xffffffffffffff9c 0x7ffd1000 0x0 0x0 0x0 0x0 0x7ffd 0x7f"), Some(0x7ffd_1000));
        assert_eq!(call("2 0x7ffd2000 0x0 0x0"), Some(0x7ffd_2000));
        assert_eq!(call("3 0x3 0x0 0x0"), None);
        assert_eq!(call("running"), None);
        assert_eq!(call(""), None);
    }

    #[test]
    fn texts_end_with_a_nul_and_somewhere() {
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
    fn a_thread_that_waits_in_a_call_is_read() {
        let fifo = std::env::temp_dir().join(format!("snoopfs-asked-{}", std::process::id()));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let path_of_it = fifo.clone();
        let opener = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            drop(File::open(path_of_it).unwrap());
        });
        let thread = told.recv().unwrap();
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
