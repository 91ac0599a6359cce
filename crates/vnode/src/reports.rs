use core::fmt;

/// The source of the reports that a layer makes to the layer above ([`crate::Upcalls`]). Layers may
/// share one.
pub trait Reports: Send + Sync + fmt::Debug {
    /// Whether all changes that were complete before this call have been reported: the calls of
    /// [`crate::Upcalls`] have returned. False if some may be missing. Does not wait.
    fn are_complete(&self) -> bool;
}

/// The reports of a file system on which nothing ever changes.
#[derive(Clone, Copy, Debug)]
pub struct NothingChanges;

impl Reports for NothingChanges {
    fn are_complete(&self) -> bool {
        true
    }
}
