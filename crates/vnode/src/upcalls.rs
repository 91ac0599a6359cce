use crate::Name;
use core::fmt;
use core::ops::Range;
use core::time::Duration;

/// What a layer can tell whoever stands on it: that something changed which no operation through
/// that layer has changed, or that data must no longer be handed to the kernel.
///
/// The server implements this and gives it to the topmost layer ([`crate::Layer::attach`]), which
/// passes it down, translated where its vnodes have other numbers than the vnodes below.
///
/// All methods may be called from any thread, with any lock of the layer's own held, also from
/// within an operation. They note what is to be done and return; a thread of the server's does it.
/// Only [`Self::settle`] waits.
pub trait Upcalls: Send + Sync + fmt::Debug {
    /// The entry `name` of the directory with the number `dir` came, went, or leads to another object.
    fn entry_changed(&self, dir: u64, name: Name<'_>);

    /// The attributes, extended attributes or ACLs of the object changed.
    fn attributes_changed(&self, vnode: u64);

    /// Data of the file in this range (in bytes; up to `u64::MAX`: to the end) changed, and with
    /// them its attributes. For a directory: its listing.
    fn data_changed(&self, vnode: u64, range: Range<u64>);

    /// The file's data lie in another host file from now on, with what was in them: it was copied
    /// up. Open files that had passthrough before stay on the old one; whoever opens the file
    /// later gets the new one.
    ///
    /// To be called after the vnode answers the new file, and before the operation that moved the
    /// data returns.
    fn data_moved(&self, vnode: u64);

    /// Any name, attribute and data may have changed: a branch came or went.
    fn everything_changed(&self);

    /// From now on no open file of this vnode gets passthrough, until [`Self::allow_passthrough`].
    ///
    /// `drained` is called, on any thread, once no open file of the vnode has passthrough any
    /// more: at once where none has. Until then new open files are served by requests, but what is
    /// mapped still goes to the host file that the first of them handed out.
    fn stop_passthrough(&self, vnode: u64, drained: Drained);

    /// Takes [`Self::stop_passthrough`] back.
    fn allow_passthrough(&self, vnode: u64);

    /// The vnodes that have open files with passthrough right now.
    fn passthrough(&self) -> Vec<u64>;

    /// Waits until all that was told before has been done, at most so long; false: it has not.
    ///
    /// Never call it from an operation on a vnode or an open file: the kernel may hold a lock for
    /// that operation that the notification needs. Commands ([`crate::Vnode::control`]) and a
    /// layer's own threads may.
    fn settle(&self, patience: Duration) -> bool;
}

/// See [`Upcalls::stop_passthrough`].
pub type Drained = Box<dyn FnOnce() + Send>;

/// Takes no notice: for layers that nothing stands on yet, and for tests.
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
