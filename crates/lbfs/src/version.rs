use vnode::Attr;

/// What must be the same on all replicas of a file: size, and time of the last change in seconds. Copies made by rsync(1) or
/// tar(1) keep these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) size: u64,
    pub(crate) mtime: i64,
}

impl Version {
    pub(crate) fn of(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime.sec }
    }
}
