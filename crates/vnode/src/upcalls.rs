use crate::Name;
use core::fmt;
use core::ops::Range;
use core::time::Duration;

/// Notifications from a layer to the layer or server above: something changed without an operation
/// through that layer, or the kernel must no longer use passthrough for a file.
///
/// The server implements this trait and passes it to the topmost layer ([`crate::Layer::attach`]).
/// Each layer passes it down, translating vnode numbers where its numbers differ from those of the
/// layer below.
///
/// All methods may be called from any thread, with any of the layer's own locks held, and from
/// within an operation. They queue the work and return; a server thread performs it. Only
/// [`Self::settle`] waits.
pub trait Upcalls: Send + Sync + fmt::Debug {
    /// The entry `name` of directory number `dir` was added, removed or replaced.
    fn entry_changed(&self, dir: u64, name: Name<'_>);

    /// The attributes, extended attributes or ACLs of the object changed.
    fn attributes_changed(&self, vnode: u64);

    /// The file's data in this byte range changed, and with it the attributes. An end of `u64::MAX`
    /// means to the end of the file. For a directory: its listing changed.
    fn data_changed(&self, vnode: u64, range: Range<u64>);

    /// The file's data, unchanged, now lies in another host file: it was copied up. Open files that
    /// already use passthrough stay on the old host file; later opens get the new one.
    ///
    /// Call it after the vnode returns the new file, and before the operation that moved the data
    /// returns.
    fn data_moved(&self, vnode: u64);

    /// Any name, attribute or data may have changed, for example because a branch was added or
    /// removed.
    fn everything_changed(&self);

    /// Denies passthrough to open files of this vnode until [`Self::allow_passthrough`].
    ///
    /// `drained` is called on any thread as soon as no open file of the vnode uses passthrough,
    /// immediately if none does. Until then, new open files are served through requests, but memory
    /// mappings still use the host file that the first passthrough open returned.
    fn stop_passthrough(&self, vnode: u64, drained: Drained);

    /// Reverts [`Self::stop_passthrough`].
    fn allow_passthrough(&self, vnode: u64);

    /// Returns the vnodes with open files that currently use passthrough.
    fn passthrough(&self) -> Vec<u64>;

    /// Waits until all earlier notifications have been processed, at most for `patience`. Returns
    /// false on timeout.
    ///
    /// Never call it from an operation on a vnode or an open file: for that operation, the kernel
    /// may hold a lock that the notification needs. Commands ([`crate::Vnode::control`]) and a
    /// layer's own threads may call it.
    fn settle(&self, patience: Duration) -> bool;
}

/// The callback of [`Upcalls::stop_passthrough`].
pub type Drained = Box<dyn FnOnce() + Send>;

/// Ignores all notifications: for layers that nothing is attached to yet, and for tests.
#[derive(Debug)]
pub struct Unattached;

impl Upcalls for Unattached {
    fn entry_changed(&self, _dir: u64, _name: Name<'_>) {}

    fn attributes_changed(&self, _vnode: u64) {}

    fn data_changed(&self, _vnode: u64, _range: Range<u64>) {}

    fn data_moved(&self, _vnode: u64) {}

    fn everything_changed(&self) {}

    fn stop_passthrough(&self, _vnode: u64, drained: Drained) {
        drained();
    }

    fn allow_passthrough(&self, _vnode: u64) {}

    fn passthrough(&self) -> Vec<u64> {
        Vec::new()
    }

    fn settle(&self, _patience: Duration) -> bool {
        true
    }
}
