//! File handles: name_to_handle_at(2) and open_by_handle_at(2), which rustix lacks.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest handle in bytes (`MAX_HANDLE_SZ`).
const LONGEST: usize = 128;

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
struct Raw {
    len: u32,
    kind: i32,
    bytes: [u8; LONGEST],
}

/// A file handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    kind: i32,
    bytes: Vec<u8>,
}

fn check(result: libc::c_long) -> rustix::io::Result<i32> {
    if result < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().expect("an errno");
        return Err(Errno::from_raw_os_error(errno));
    }
    Ok(i32::try_from(result).expect("a small number"))
}

impl Handle {
    /// Returns the handle of the object at `path`, without following a symbolic link.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
        let mut raw = Raw { len: LONGEST as u32, kind: 0, bytes: [0; LONGEST] };
        let mut mount: libc::c_int = 0;
        // SAFETY: the pointers are valid, and `raw` has as many bytes as its first field says.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                name.as_ptr(),
                &raw mut raw,
                &raw mut mount,
                0 as libc::c_int,
            )
        };
        check(result).unwrap_or_else(|e| panic!("name_to_handle_at {}: {e}", path.display()));
        Self { kind: raw.kind, bytes: raw.bytes[..raw.len as usize].to_vec() }
    }

    /// Opens the object on the file system that contains `mount`.
    ///
    /// # Errors
    /// Those of open_by_handle_at(2).
    pub fn open(&self, mount: impl AsFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut raw = Raw { len: self.bytes.len() as u32, kind: self.kind, bytes: [0; LONGEST] };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        let flags = (flags | OFlags::CLOEXEC).bits();
        // SAFETY: the pointer is valid, and `raw` has as many bytes as its first field says. The
        // call returns a new descriptor, which nothing else owns.
        unsafe {
            let fd = libc::syscall(libc::SYS_open_by_handle_at, mount.as_fd().as_raw_fd(), &raw mut raw, flags);
            Ok(OwnedFd::from_raw_fd(check(fd)?))
        }
    }

    /// Returns the handle with its node id replaced. Valid for handles of a FUSE file system, which
    /// store the id with the high half first.
    #[must_use]
    pub fn with_node(&self, node: u64) -> Self {
        let mut other = self.clone();
        other.bytes[..4].copy_from_slice(&((node >> 32) as u32).to_ne_bytes());
        other.bytes[4..8].copy_from_slice(&(node as u32).to_ne_bytes());
        other
    }
}

/// Makes the kernel forget unused dentries, and the inodes of FUSE, of the file systems in the
/// sandbox: each is remounted with the options it has. Writing to `/proc/sys/vm/drop_caches` would
/// also drop the caches of tests that run at the same time.
///
/// # Panics
///
/// If a file system can't be remounted, or is not reachable.
pub fn drop_caches() {
    let root = Path::new(crate::sandbox::ROOT);
    let mounts = crate::watchdog::mounts_below(root);
    // The sandbox hides what was mounted before it.
    let oldest = mounts.iter().rposition(|mount| mount.dir == root).expect("a sandbox");
    // Those on top first: they use what is below.
    for mount in mounts[oldest..].iter().rev() {
        let remounted = fspick(CWD, &mount.dir, FsPickFlags::FSPICK_CLOEXEC)
            .and_then(|context| fsconfig_reconfigure(context.as_fd()));
        remounted.unwrap_or_else(|error| panic!("remounting {}: {error}", mount.dir.display()));
    }
}
