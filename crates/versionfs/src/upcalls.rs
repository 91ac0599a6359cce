//! Passthrough that both this layer and one below it may stop: it is allowed again when neither
//! does.

use core::ops::Range;
use core::time::Duration;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vnode::{Attr, Drained, Name, NumberMap, Upcalls};

/// One of two users of the upcalls of the layer above.
#[derive(Debug)]
pub(crate) struct SharedStops {
    above: Arc<dyn Upcalls>,
    /// For each vnode, which of the two have stopped its passthrough: a set of bits.
    stops: Arc<Mutex<NumberMap<u8>>>,
    bit: u8,
}

impl SharedStops {
    /// Returns the upcalls for this layer and for the one below.
    pub(crate) fn pair(above: Arc<dyn Upcalls>) -> (Arc<dyn Upcalls>, Arc<dyn Upcalls>) {
        let stops = Arc::new(Mutex::new(NumberMap::default()));
        let ours = Self { above: Arc::clone(&above), stops: Arc::clone(&stops), bit: 1 };
        (Arc::new(ours), Arc::new(Self { above, stops, bit: 2 }))
    }
}

impl Upcalls for SharedStops {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        self.above.entry_changed(dir, name);
    }

    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        self.above.directory_entry_changed(dir, name);
    }

    fn attributes_changed(&self, vnode: u64) {
        self.above.attributes_changed(vnode);
    }

    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        self.above.data_changed(vnode, range);
    }

    fn data_changed_out_of_band(&self, vnode: u64, attr: &Attr) {
        self.above.data_changed_out_of_band(vnode, attr);
    }

    fn data_moved(&self, vnode: u64) {
        self.above.data_moved(vnode);
    }

    fn everything_changed(&self) {
        self.above.everything_changed();
    }

    fn stop_passthrough(&self, vnode: u64, drained: Drained) {
        *self.stops.lock().entry(vnode).or_default() |= self.bit;
        self.above.stop_passthrough(vnode, drained);
    }

    fn allow_passthrough(&self, vnode: u64) {
        let mut stops = self.stops.lock();
        let Some(bits) = stops.get_mut(&vnode) else { return };
        *bits &= !self.bit;
        if *bits == 0 {
            stops.remove(&vnode);
            // Under the lock: the other one may stop it again just now.
            self.above.allow_passthrough(vnode);
        }
    }

    fn passthrough(&self) -> Vec<u64> {
        self.above.passthrough()
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        self.above.maybe_mapped()
    }

    fn is_host_file_unused(&self, file: BorrowedFd<'_>, readers: bool) -> bool {
        self.above.is_host_file_unused(file, readers)
    }

    fn settle(&self, timeout: Duration) -> bool {
        self.above.settle(timeout)
    }
}
