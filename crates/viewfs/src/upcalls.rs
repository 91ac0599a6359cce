use crate::number;
use classify::ViewId;
use core::ops::Range;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vnode::{Attr, Drained, Name, Upcalls};

/// Passes the notifications of one view's layer on, with this layer's numbers.
///
/// The kernel caches no names and no attributes of directories, so a number of a directory need not
/// be the one that the kernel knows.
#[derive(Debug)]
pub(crate) struct Translate {
    pub(crate) view: ViewId,
    pub(crate) above: Arc<dyn Upcalls>,
}

impl Translate {
    const fn number(&self, lower: u64) -> u64 {
        number::convert(self.view, lower)
    }
}

impl Upcalls for Translate {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        self.above.entry_changed(self.number(dir), name);
    }

    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        self.above.directory_entry_changed(self.number(dir), name);
    }

    fn attributes_changed(&self, vnode: u64) {
        self.above.attributes_changed(self.number(vnode));
    }

    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        self.above.data_changed(self.number(vnode), range);
    }

    fn data_changed_out_of_band(&self, vnode: u64, attr: &Attr) {
        self.above.data_changed_out_of_band(self.number(vnode), attr);
    }

    fn data_moved(&self, vnode: u64) {
        self.above.data_moved(self.number(vnode));
    }

    fn everything_changed(&self) {
        self.above.everything_changed();
    }

    fn stop_passthrough(&self, _vnode: u64, drained: Drained) {
        // No file of this layer uses passthrough.
        drained();
    }

    fn allow_passthrough(&self, _vnode: u64) {}

    fn passthrough(&self) -> Vec<u64> {
        Vec::new()
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        Vec::new()
    }

    fn is_host_file_unused(&self, file: BorrowedFd<'_>, readers: bool) -> bool {
        self.above.is_host_file_unused(file, readers)
    }

    fn settle(&self, timeout: Duration) -> bool {
        self.above.settle(timeout)
    }
}
