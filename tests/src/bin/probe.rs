//! Does in a process of its own what a test needs another process for.
//!
//! `exe` prints what `/proc/self/exe` names. `lock FILE` tries for a POSIX lock of the whole file and prints `got` or the errno.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use std::os::unix::ffi::OsStrExt;

fn main() {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match (words.first().and_then(|w| w.to_str()), words.get(1)) {
        (Some("exe"), None) => {
            let exe = std::fs::read_link("/proc/self/exe").expect("/proc/self/exe");
            println!("{}", exe.as_os_str().as_bytes().escape_ascii());
        }
        (Some("posix"), Some(file)) => {
            let file = std::fs::File::options().read(true).write(true).open(file).expect("the file to lock");
            say(fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive));
        }
        (Some("flock"), Some(file)) => {
            let file = std::fs::File::open(file).expect("the file to lock");
            say(flock(&file, FlockOperation::NonBlockingLockExclusive));
        }
        _ => panic!("what should be done?"),
    }
}

fn say(outcome: rustix::io::Result<()>) {
    match outcome {
        Ok(()) => println!("got"),
        Err(e) => println!("{e:?}"),
    }
}
