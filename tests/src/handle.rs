//! File handles: name_to_handle_at(2) and open_by_handle_at(2), which rustix lacks.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest handle in bytes (`MAX_HANDLE_SZ`).
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

fn answer(result: libc::c_long) -> rustix::io::Result<i32> {
    if result < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().expect("an errno");
        return Err(Errno::from_raw_os_error(errno));
    }
    Ok(i32::try_from(result).expect("a small number"))
}

impl Handle {
    /// Of what lies at `path`; a symbolic link is not followed.
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
        answer(result).unwrap_or_else(|e| panic!("name_to_handle_at {}: {e}", path.display()));
        Self { kind: raw.kind, bytes: raw.bytes[..raw.len as usize].to_vec() }
    }

    /// Opens it on the file system that `mount` lies on.
    ///
    /// # Errors
    /// What open_by_handle_at(2) says.
    pub fn open(&self, mount: impl AsFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut raw = Raw { len: self.bytes.len() as u32, kind: self.kind, bytes: [0; LONGEST] };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        let flags = (flags | OFlags::CLOEXEC).bits();
        // SAFETY: the pointer is valid, and `raw` has as many bytes as its first field says. What is
        // answered is a new descriptor.
        unsafe {
            let fd = libc::syscall(libc::SYS_open_by_handle_at, mount.as_fd().as_raw_fd(), &raw mut raw, flags);
            Ok(OwnedFd::from_raw_fd(answer(fd)?))
        }
    }

    /// The same handle with another node id in it, if it is one of a FUSE file system: the high half
    /// of the id comes first.
    #[must_use]
    pub fn with_node(&self, node: u64) -> Self {
        let mut other = self.clone();
        other.bytes[..4].copy_from_slice(&((node >> 32) as u32).to_ne_bytes());
        other.bytes[4..8].copy_from_slice(&(node as u32).to_ne_bytes());
        other
    }
}

/// Makes the kernel forget the inodes and names that nothing uses, of all file systems.
pub fn drop_caches() {
    std::fs::write("/proc/sys/vm/drop_caches", "2").expect("dropping caches takes root");
}
