//! What the layer and the server do about open files whose I/O the kernel does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use core::ops::Range;
use core::time::Duration;
use memfs::{Faults, MemFs, MemOptions};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use versionfs::{Options, VersionFs};
use vnode::{Attr, Cx, Drained, Layer as _, Name, OpenFile, OpenFlags, SetAttr, Upcalls};

/// A server that opens a file with passthrough on one thread while the layer stops passthrough on
/// another. Its lock is not simulated: the layer must not make the first wait for the second.
#[derive(Debug, Default)]
struct Server {
    opened: Mutex<Option<Arc<dyn OpenFile>>>,
    /// Whether the open went on while passthrough was being stopped.
    went_on: Mutex<Option<bool>>,
    /// Whether programs have closed their open files. The server does not know it yet.
    are_closed: AtomicBool,
}

impl Upcalls for Server {
    fn entry_changed(&self, _: u64, _: Name<'_>) {}
    fn directory_entry_changed(&self, _: u64, _: Name<'_>) {}
    fn attributes_changed(&self, _: u64) {}
    fn data_changed(&self, _: u64, _: Range<u64>) {}
    fn data_changed_out_of_band(&self, _: u64, _: &Attr) {}
    fn data_moved(&self, _: u64) {}
    fn everything_changed(&self) {}

    fn stop_passthrough(&self, _: u64, _: Drained) {
        let Some(file) = self.opened.lock().unwrap().take() else { return };
        let (done, bound) = mpsc::channel();
        std::thread::spawn(move || {
            file.bind();
            let _ = done.send(());
        });
        *self.went_on.lock().unwrap() = Some(bound.recv_timeout(Duration::from_secs(10)).is_ok());
    }

    fn allow_passthrough(&self, _: u64) {}

    fn passthrough(&self) -> Vec<u64> {
        Vec::new()
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        Vec::new()
    }

    fn is_host_file_unused(&self, _: BorrowedFd<'_>, _: bool) -> bool {
        self.are_closed.load(Ordering::Relaxed)
    }

    fn settle(&self, _: Duration) -> bool {
        true
    }
}

#[test]
fn opens_for_reading_and_for_writing_do_not_wait_for_each_other() {
    let layer = VersionFs::new(MemFs::new(), Options::default());
    let server = Arc::new(Server::default());
    layer.attach(Arc::clone(&server) as _);
    let (cx, name) = (Cx::internal(0, 0), Name::new(b"f").unwrap());
    let (entry, file) = layer.root().create(&cx, name, 0o644, OpenFlags::WRONLY).unwrap();
    drop(file);
    *server.opened.lock().unwrap() = Some(entry.vnode.open(&cx, OpenFlags::RDONLY).unwrap());
    drop(entry.vnode.open(&cx, OpenFlags::RDWR).unwrap());
    assert_eq!(*server.went_on.lock().unwrap(), Some(true));
}

/// The kernel tells the server of a close after it has returned. A change of attributes that
/// follows makes a version, as one of a file that was closed long ago; one while the program that
/// creates the file has it open does not.
#[test]
fn a_change_after_the_close_of_a_new_file_makes_a_version() {
    let backed = MemOptions { backing: true, ..MemOptions::default() };
    let layer = VersionFs::new(MemFs::with(backed, &Faults::new()), Options::default());
    let server = Arc::new(Server::default());
    layer.attach(Arc::clone(&server) as _);
    let (cx, name) = (Cx::internal(0, 0), Name::new(b"f").unwrap());
    let (entry, file) = layer.root().create(&cx, name, 0o644, OpenFlags::WRONLY).unwrap();
    file.bind();
    let change = |mode: u32| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        entry.vnode.setattr(&cx, &set, None).unwrap();
        let list = layer.root().control(&cx, "versionfs.list", b"f").unwrap();
        list.split(|byte| *byte == b'\n').skip(1).filter(|line| !line.is_empty()).count()
    };
    let none = change(0o600);
    server.are_closed.store(true, Ordering::Relaxed);
    assert_eq!([none, change(0o640), change(0o644)], [none, none + 1, none + 2]);
    drop(file);
    assert_eq!(change(0o600), none + 3);
}
