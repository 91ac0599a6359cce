use crate::{Attr, Name};
use core::fmt;
use core::ops::Range;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Calls from a layer to the layer or server above it. They report changes that did not result from
/// an operation through that layer, and control which files may use FUSE passthrough.
///
/// The server implements this trait and passes it to the topmost layer ([`crate::Layer::attach`]).
/// Each layer passes it down. A layer whose vnode numbers differ from those of the layer below
/// passes a wrapper that translates them.
///
/// All methods may be called from any thread, with any of the layer's own locks held, and from
/// within an operation. They queue the work and return; a server thread performs it. Only
/// [`Self::settle`] waits.
pub trait Upcalls: Send + Sync + fmt::Debug {
    /// The entry `name` of directory number `dir` was added, removed or replaced.
    fn entry_changed(&self, dir: u64, name: Name<'_>);

    /// As [`Self::entry_changed`], for an entry that is or was a directory. A layer that merges or
    /// moves directories may then show other entries below that name.
    fn directory_entry_changed(&self, dir: u64, name: Name<'_>);

    /// The attributes, extended attributes or ACLs of the object changed. If an operation on
    /// another object changed them, call it before that operation returns: nobody sees the old
    /// ones afterwards.
    fn attributes_changed(&self, vnode: u64);

    /// The file's data in this byte range changed, and with it the attributes. An end of `u64::MAX`
    /// means to the end of the file. For a directory: its listing changed.
    fn data_changed(&self, vnode: u64, range: Range<u64>);

    /// The file's data was changed out of band, and the file has these attributes since. Unlike
    /// after [`Self::data_changed`], the receiver may find from size and times that it knows the
    /// change already, because an open or a getattr revealed it.
    fn data_changed_out_of_band(&self, vnode: u64, _attr: &Attr) {
        self.data_changed(vnode, 0..u64::MAX);
    }

    /// The file's data is now in another host file, for example after a copy-up; its content is the
    /// same. Open files that already use passthrough continue to use the old host file. Later opens
    /// use the new one.
    ///
    /// Call it once [`crate::Vnode::open`] opens the new host file, and before the operation that
    /// moved the data returns.
    fn data_moved(&self, vnode: u64);

    /// Any name, attribute or data may have changed, for example because a branch was added or
    /// removed.
    fn everything_changed(&self);

    /// Denies passthrough to new open files of this vnode until [`Self::allow_passthrough`].
    /// Existing open files keep using it.
    ///
    /// `drained` is called on any thread once no open file of the vnode uses passthrough, or
    /// immediately if none does. Until then, the reads and writes of new open files are sent as
    /// requests, but their memory mappings use the host file of the first passthrough open.
    fn stop_passthrough(&self, vnode: u64, drained: Drained);

    /// Reverts [`Self::stop_passthrough`] and drops its callbacks that have not been called yet.
    fn allow_passthrough(&self, vnode: u64);

    /// Returns the vnodes with open files that currently use passthrough.
    fn passthrough(&self) -> Vec<u64>;

    /// Returns the vnodes that programs may have mapped for writing with passthrough. A mapping can
    /// outlive its open file without notice, so most of these have none; see
    /// [`Self::is_host_file_unused`].
    fn maybe_mapped(&self) -> Vec<u64>;

    /// Whether no process has the host file open or mapped, except by `file`. With `readers`, it
    /// may be open or mapped for reading. A mapping made through passthrough remains after the file
    /// was closed. False if that is unknown.
    fn is_host_file_unused(&self, file: BorrowedFd<'_>, readers: bool) -> bool;

    /// Waits until all earlier notifications have been processed, for at most `timeout`. Returns
    /// false on timeout.
    ///
    /// Never call it from an operation on a vnode or an open file: the kernel may hold a lock
    /// during that operation that the notification needs, so this call could only time out.
    /// Commands ([`crate::Vnode::control`]) and a layer's own threads may call it.
    fn settle(&self, timeout: Duration) -> bool;
}

/// The callback of [`Upcalls::stop_passthrough`].
pub type Drained = Box<dyn FnOnce() + Send>;

/// Passes reports on from a layer with other names or directories: a changed entry becomes a change
/// of everything.
#[derive(Debug)]
pub struct WithoutNames(pub Arc<dyn Upcalls>);

impl Upcalls for WithoutNames {
    fn entry_changed(&self, _dir: u64, _name: Name<'_>) {
        self.0.everything_changed();
    }

    fn directory_entry_changed(&self, _dir: u64, _name: Name<'_>) {
        self.0.everything_changed();
    }

    fn attributes_changed(&self, vnode: u64) {
        self.0.attributes_changed(vnode);
    }

    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        self.0.data_changed(vnode, range);
    }

    fn data_changed_out_of_band(&self, vnode: u64, attr: &Attr) {
        self.0.data_changed_out_of_band(vnode, attr);
    }

    fn data_moved(&self, vnode: u64) {
        self.0.data_moved(vnode);
    }

    fn everything_changed(&self) {
        self.0.everything_changed();
    }

    fn stop_passthrough(&self, vnode: u64, drained: Drained) {
        self.0.stop_passthrough(vnode, drained);
    }

    fn allow_passthrough(&self, vnode: u64) {
        self.0.allow_passthrough(vnode);
    }

    fn passthrough(&self) -> Vec<u64> {
        self.0.passthrough()
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        self.0.maybe_mapped()
    }

    fn is_host_file_unused(&self, file: BorrowedFd<'_>, readers: bool) -> bool {
        self.0.is_host_file_unused(file, readers)
    }

    fn settle(&self, timeout: Duration) -> bool {
        self.0.settle(timeout)
    }
}
