//! Performs a test's action in a separate process.
//!
//! `exe` prints the target of `/proc/self/exe`. `posix FILE` and `flock FILE` try to lock the whole
//! file with that kind of lock and print `got` or the errno.

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
            report(fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive));
        }
        (Some("flock"), Some(file)) => {
            let file = std::fs::File::open(file).expect("the file to lock");
            report(flock(&file, FlockOperation::NonBlockingLockExclusive));
        }
        _ => panic!("usage: probe exe | posix FILE | flock FILE"),
    }
}

fn report(outcome: rustix::io::Result<()>) {
    match outcome {
        Ok(()) => println!("got"),
        Err(e) => println!("{e:?}"),
    }
}
