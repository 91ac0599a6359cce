//! Reports of layers after the end of their mount.

use crate::notifier::UpcallHandler;
use core::time::Duration;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use vnode::{Attr, Drained, Name, Upcalls};

/// The receiver of the layers' reports. It does not keep the mount's nodes, which keep the layers:
/// otherwise a layer would keep itself, and never be dropped. After the end, reports are ignored.
#[derive(Debug)]
pub(crate) struct UntilEnd(pub(crate) Weak<UpcallHandler>);

impl UntilEnd {
    fn handler(&self) -> Option<Arc<UpcallHandler>> {
        self.0.upgrade()
    }
}

impl Upcalls for UntilEnd {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        if let Some(handler) = self.handler() {
            handler.entry_changed(dir, name);
        }
    }

    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        if let Some(handler) = self.handler() {
            handler.directory_entry_changed(dir, name);
        }
    }

    fn attributes_changed(&self, vnode: u64) {
        if let Some(handler) = self.handler() {
            handler.attributes_changed(vnode);
        }
    }

    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        if let Some(handler) = self.handler() {
            handler.data_changed(vnode, range);
        }
    }

    fn data_changed_out_of_band(&self, vnode: u64, attr: &Attr) {
        if let Some(handler) = self.handler() {
            handler.data_changed_out_of_band(vnode, attr);
        }
    }

    fn data_moved(&self, vnode: u64) {
        if let Some(handler) = self.handler() {
            handler.data_moved(vnode);
        }
    }

    fn everything_changed(&self) {
        if let Some(handler) = self.handler() {
            handler.everything_changed();
        }
    }

    fn stop_passthrough(&self, vnode: u64, drained: Drained) {
        match self.handler() {
            Some(handler) => handler.stop_passthrough(vnode, drained),
            None => drained(),
        }
    }

    fn allow_passthrough(&self, vnode: u64) {
        if let Some(handler) = self.handler() {
            handler.allow_passthrough(vnode);
        }
    }

    fn passthrough(&self) -> Vec<u64> {
        self.handler().map_or_else(Vec::new, |handler| handler.passthrough())
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        self.handler().map_or_else(Vec::new, |handler| handler.maybe_mapped())
    }

    fn is_host_file_unused(&self, file: BorrowedFd<'_>, readers: bool) -> bool {
        self.handler().is_none_or(|handler| handler.is_host_file_unused(file, readers))
    }

    fn settle(&self, timeout: Duration) -> bool {
        self.handler().is_none_or(|handler| handler.settle(timeout))
    }
}
