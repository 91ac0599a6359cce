//! Unmounting, or a broken connection, leaves nothing behind. A single test, because it counts the
//! threads of the whole process.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::memory::Memory;
use crate::common::{Mounted, ring_is_on, threads};
use fuse::Transport;
use std::fs;
use std::sync::atomic::Ordering;
use testkit::until;

#[derive(Clone, Copy, Debug)]
enum End {
    Unmount,
    LazyUnmount,
    Abort,
}

#[test]
fn all_threads_end() {
    testkit::own_mounts();
    for transport in [Transport::Ring, Transport::Device] {
        if transport == Transport::Ring && !ring_is_on() {
            continue;
        }
        for end in [End::Unmount, End::LazyUnmount, End::Abort] {
            let m = Mounted::new(Memory::new(), |options| options.transport = transport);
            m.fs.add_file(b"hang", b"x");
            fs::write(m.at("f"), b"y").unwrap();
            let file = fs::File::open(m.at("f")).unwrap();
            assert!(threads().iter().any(|name| name.starts_with("fuse-")));
            match end {
                End::Unmount => {
                    drop(file);
                    m.session.stop().unwrap();
                }
                End::LazyUnmount => {
                    m.session.stop().unwrap();
                    // Requests are still served.
                    assert_eq!(std::io::read_to_string(&file).unwrap(), "y");
                    drop(file);
                }
                End::Abort => {
                    let path = m.at("hang");
                    let reader = std::thread::spawn(move || fs::read(path));
                    until("it hangs", || m.fs.hanging.load(Ordering::SeqCst) == 1);
                    m.session.abort().unwrap();
                    assert!(reader.join().unwrap().is_err());
                    assert!(std::io::read_to_string(&file).is_err());
                    m.fs.release();
                }
            }
            m.session.wait();
            assert!(m.fs.destroyed.load(Ordering::SeqCst));
            until("all threads are gone", || !threads().iter().any(|name| name.starts_with("fuse-")));
        }
    }
}
