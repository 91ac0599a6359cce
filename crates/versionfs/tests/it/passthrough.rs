//! What the layer and the server do about open files whose I/O the kernel does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use core::ops::Range;
use core::time::Duration;
use memfs::MemFs;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, mpsc};
use versionfs::{Options, VersionFs};
use vnode::{Attr, Cx, Drained, Layer as _, Name, OpenFile, OpenFlags, Upcalls};

/// A server that opens a file with passthrough on one thread while the layer stops passthrough on
/// another. Its lock is not simulated: the layer must not make the first wait for the second.
#[derive(Debug, Default)]
struct Server {
    opened: Mutex<Option<Arc<dyn OpenFile>>>,
    /// Whether the open went on while passthrough was being stopped.
    went_on: Mutex<Option<bool>>,
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
        false
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
