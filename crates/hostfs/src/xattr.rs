//! Extended attributes.

use crate::reopen::{Fd, proc_path};
use crate::vnode_impl::HostVnode;
use rustix::fs::XattrFlags as HostFlags;
use vnode::{Errno, Result, XattrFlags};

/// How an object's extended attributes are accessed.
enum Access<'a> {
    /// Through a descriptor of a regular file or directory that is not `O_PATH`.
    Descriptor(&'a Fd),
    /// Through a descriptor's link in /proc, for objects that must not be opened for this (device,
    /// fifo) or can't be (symbolic link).
    Path(String),
}

impl HostVnode {
    fn with_xattr_access<T>(&self, mut call: impl FnMut(Access<'_>) -> Result<T>) -> Result<T> {
        if let Some(fd) = self.readable_fd()? {
            match call(Access::Descriptor(&fd)) {
                // An `O_PATH` descriptor of a directory that the server may not read.
                Err(Errno::BADF) => {}
                other => return other,
            }
        }
        let fd = self.fd()?;
        call(Access::Path(proc_path(&fd)))
    }

    pub(crate) fn xattr_get(&self, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.with_xattr_access(|access| match access {
            Access::Descriptor(fd) if out.is_empty() => rustix::fs::fgetxattr_query(fd, name),
            Access::Path(path) if out.is_empty() => rustix::fs::getxattr_query(path, name),
            Access::Descriptor(fd) => rustix::fs::fgetxattr(fd, name, &mut *out),
            Access::Path(path) => rustix::fs::getxattr(path, name, &mut *out),
        })
    }

    pub(crate) fn xattr_set(&self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.fs().check_writable()?;
        let mut host = HostFlags::empty();
        host.set(HostFlags::CREATE, flags.create);
        host.set(HostFlags::REPLACE, flags.replace);
        self.with_xattr_access(|access| match access {
            Access::Descriptor(fd) => rustix::fs::fsetxattr(fd, name, value, host),
            Access::Path(path) => rustix::fs::setxattr(path, name, value, host),
        })
    }

    pub(crate) fn xattr_list(&self, out: &mut [u8]) -> Result<usize> {
        self.with_xattr_access(|access| match access {
            Access::Descriptor(fd) if out.is_empty() => rustix::fs::flistxattr_query(fd),
            Access::Path(path) if out.is_empty() => rustix::fs::listxattr_query(path),
            Access::Descriptor(fd) => rustix::fs::flistxattr(fd, &mut *out),
            Access::Path(path) => rustix::fs::listxattr(path, &mut *out),
        })
    }

    pub(crate) fn xattr_remove(&self, name: &[u8]) -> Result<()> {
        self.fs().check_writable()?;
        self.with_xattr_access(|access| match access {
            Access::Descriptor(fd) => rustix::fs::fremovexattr(fd, name),
            Access::Path(path) => rustix::fs::removexattr(path, name),
        })
    }
}
