/// An operation of the vnode interface: a method of [`crate::Vnode`], [`crate::OpenFile`] or
/// [`crate::Layer`].
///
/// Metering, fault injection and the template's hooks identify operations by this list. The numbers
/// are part of the C ABI for layers: append new operations at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "each is the operation of that name")]
pub enum Operation {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Readdir,
    Open,
    Create,
    Tmpfile,
    Mknod,
    Mkdir,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Getxattr,
    Setxattr,
    Listxattr,
    Removexattr,
    Refused,
    Statfs,
    Fsync,
    Ioctl,
    Read,
    Write,
    Flush,
    Fallocate,
    Seek,
    Copy,
    Reflink,
    Sync,
    Names,
    Vnode,
    Control,
}

impl Operation {
    /// All operations with their names, in numeric order.
    pub const ALL: [(Self, &'static str); 34] = [
        (Self::Lookup, "lookup"),
        (Self::Getattr, "getattr"),
        (Self::Setattr, "setattr"),
        (Self::Readlink, "readlink"),
        (Self::Readdir, "readdir"),
        (Self::Open, "open"),
        (Self::Create, "create"),
        (Self::Tmpfile, "tmpfile"),
        (Self::Mknod, "mknod"),
        (Self::Mkdir, "mkdir"),
        (Self::Symlink, "symlink"),
        (Self::Link, "link"),
        (Self::Unlink, "unlink"),
        (Self::Rmdir, "rmdir"),
        (Self::Rename, "rename"),
        (Self::Getxattr, "getxattr"),
        (Self::Setxattr, "setxattr"),
        (Self::Listxattr, "listxattr"),
        (Self::Removexattr, "removexattr"),
        (Self::Refused, "refused"),
        (Self::Statfs, "statfs"),
        (Self::Fsync, "fsync"),
        (Self::Ioctl, "ioctl"),
        (Self::Read, "read"),
        (Self::Write, "write"),
        (Self::Flush, "flush"),
        (Self::Fallocate, "fallocate"),
        (Self::Seek, "seek"),
        (Self::Copy, "copy"),
        (Self::Reflink, "reflink"),
        (Self::Sync, "sync"),
        (Self::Names, "names"),
        (Self::Vnode, "vnode"),
        (Self::Control, "control"),
    ];

    /// Number of operations.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the name of the operation, as in [`Self::ALL`].
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.get(self as usize).map_or("", |(_, name)| name)
    }

    /// Whether the operation can modify the file system. `Open` does not count, even with
    /// `O_TRUNC`.
    #[must_use]
    pub const fn changes(self) -> bool {
        matches!(
            self,
            Self::Setattr
                | Self::Create
                | Self::Tmpfile
                | Self::Mknod
                | Self::Mkdir
                | Self::Symlink
                | Self::Link
                | Self::Unlink
                | Self::Rmdir
                | Self::Rename
                | Self::Setxattr
                | Self::Removexattr
                | Self::Write
                | Self::Fallocate
                | Self::Copy
                | Self::Reflink
        )
    }

    /// Whether the operation only reads, so that its reply can be replaced after it ran.
    #[must_use]
    pub const fn is_query(self) -> bool {
        matches!(
            self,
            Self::Lookup
                | Self::Getattr
                | Self::Readlink
                | Self::Readdir
                | Self::Getxattr
                | Self::Listxattr
                | Self::Statfs
                | Self::Read
                | Self::Seek
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_numeric_order() {
        for (i, (operation, name)) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, i);
            assert_eq!(operation.name(), *name);
            assert!(!(operation.changes() && operation.is_query()), "{name}");
        }
    }
}
