use vnode::Attr;

/// Version of a file: size and modification time in seconds, which must be the same on all
/// replicas. rsync(1) and tar(1) preserve both.
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
