/// An operation of the vnode interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "each is the operation of vnode of that name")]
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
    Access,
    Statfs,
    Fsync,
    Ioctl,
    Sync,
    Read,
    Write,
    Flush,
    Fallocate,
    Seek,
    Copy,
    Reflink,
}

impl Operation {
    /// All of them, and what each is called.
    pub const ALL: [(Self, &'static str); 31] = [
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
        (Self::Access, "access"),
        (Self::Statfs, "statfs"),
        (Self::Fsync, "fsync"),
        (Self::Ioctl, "ioctl"),
        (Self::Sync, "sync"),
        (Self::Read, "read"),
        (Self::Write, "write"),
        (Self::Flush, "flush"),
        (Self::Fallocate, "fallocate"),
        (Self::Seek, "seek"),
        (Self::Copy, "copy"),
        (Self::Reflink, "reflink"),
    ];

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(operation, _)| *operation == self).map_or("", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        for (i, (operation, _)) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, i);
        }
    }
}
