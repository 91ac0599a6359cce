//! System calls for which rustix has no safe wrapper.
#![allow(unsafe_code)]

use crate::layer::{AccessTimes, When};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::thread::UnshareFlags;
use std::ffi::CStr;
use std::time::Duration;
use vnode::{Errno, Result};

/// Maximum length of a file handle in bytes (`MAX_HANDLE_SZ`).
pub(crate) const HANDLE_MAX: usize = 128;

/// How often an open by handle is repeated after `ENOMEM`.
const NOMEM_ATTEMPTS: u32 = 100;

/// `struct file_handle` with space for the longest handle.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX],
}

fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}

/// Wraps a descriptor that a system call just created.
fn owned(result: libc::c_long) -> Result<OwnedFd> {
    let fd = i32::try_from(result).map_err(|_| Errno::IO)?;
    // SAFETY: a system call returned this new descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls name_to_handle_at(2): returns type, length and bytes of the handle of `name` in `dir`, or
/// of `dir` itself if `name` is empty.
pub(crate) fn name_to_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<(i32, usize, [u8; HANDLE_MAX])> {
    let mut raw = RawHandle { len: HANDLE_MAX as u32, kind: 0, bytes: [0; HANDLE_MAX] };
    let mut mount_id: libc::c_int = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: `raw` begins as struct file_handle does and has as many bytes after it as `len` says;
    // all pointers are valid.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    })?;
    let len = usize::try_from(raw.len).ok().filter(|&n| n <= HANDLE_MAX).ok_or(Errno::OVERFLOW)?;
    Ok((raw.kind, len, raw.bytes))
}

/// Calls open_by_handle_at(2) on the file system of `mount`. Adds `O_CLOEXEC`.
pub(crate) fn open_by_handle(mount: BorrowedFd<'_>, kind: i32, handle: &[u8], flags: i32) -> Result<OwnedFd> {
    let mut raw = RawHandle { len: 0, kind, bytes: [0; HANDLE_MAX] };
    raw.bytes.get_mut(..handle.len()).ok_or(Errno::INVAL)?.copy_from_slice(handle);
    raw.len = handle.len() as u32;
    let mut attempts = 0;
    loop {
        // SAFETY: `raw` begins as struct file_handle does and has at least `len` bytes after it;
        // the pointer is valid.
        let result = check(unsafe {
            libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags | libc::O_CLOEXEC)
        });
        match result {
            Err(Errno::INTR) => {}
            // On ext4, also while an inode with this number is being created.
            Err(Errno::NOMEM) if attempts < NOMEM_ATTEMPTS => {
                attempts += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
            other => return owned(other?),
        }
    }
}

/// Returns the generation of an inode on the xfs file system of `root`, which is open for reading
/// (`XFS_IOC_BULKSTAT`); `ESTALE` if there is no such inode.
pub(crate) fn xfs_generation(root: BorrowedFd<'_>, ino: u64) -> Result<u32> {
    /// `_IOR('X', 127, struct xfs_bulkstat_req)`
    const BULKSTAT: libc::c_ulong = 0x8040_587f;
    /// `struct xfs_bulk_ireq`, then one `struct xfs_bulkstat` of 192 bytes.
    #[repr(C)]
    struct Bulk {
        ino: u64,
        flags: u32,
        wanted: u32,
        got: u32,
        group: u32,
        reserved: [u64; 5],
        found: u64,
        before: [u64; 7],
        generation: u32,
        after: [u32; 31],
    }
    let mut bulk = Bulk {
        ino,
        flags: 0,
        wanted: 1,
        got: 0,
        group: 0,
        reserved: [0; 5],
        found: 0,
        before: [0; 7],
        generation: 0,
        after: [0; 31],
    };
    const { assert!(size_of::<Bulk>() == 64 + 192) };
    // SAFETY: the kernel reads the request's 64 bytes, and writes these and as many records of 192
    // bytes as `wanted` says: one, for which there is room.
    check(unsafe { libc::syscall(libc::SYS_ioctl, root.as_raw_fd(), BULKSTAT, &raw mut bulk) })?;
    // The reply is the first inode with this number or a higher one.
    if bulk.got == 1 && bulk.found == ino { Ok(bulk.generation) } else { Err(Errno::STALE) }
}

/// An invalid id: setting it changes nothing and returns the current one.
const INVALID_ID: u32 = u32::MAX;

/// Calls setfsuid(2) for this thread. The call does not report a refusal: see [`fs_uid`].
pub(crate) fn set_fs_uid(uid: u32) {
    // SAFETY: the arguments and the result are plain integers.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
}

/// Calls setfsgid(2) for this thread, which does not report a refusal either.
pub(crate) fn set_fs_gid(gid: u32) {
    // SAFETY: the arguments and the result are plain integers.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
}

/// Returns the file-system uid of this thread.
pub(crate) fn fs_uid() -> u32 {
    // SAFETY: the arguments and the result are plain integers.
    unsafe { libc::syscall(libc::SYS_setfsuid, INVALID_ID) as u32 }
}

/// Returns the file-system gid of this thread.
pub(crate) fn fs_gid() -> u32 {
    // SAFETY: the arguments and the result are plain integers.
    unsafe { libc::syscall(libc::SYS_setfsgid, INVALID_ID) as u32 }
}

/// `struct mount_attr`
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Calls mount_setattr(2) on `mount`, the root of a private mount.
fn set_mount(mount: BorrowedFd<'_>, attr: &MountAttr) -> Result<()> {
    set_mounts(mount, attr, 0)
}

/// Calls mount_setattr(2) with further flags.
fn set_mounts(mount: BorrowedFd<'_>, attr: &MountAttr, flags: libc::c_int) -> Result<()> {
    // SAFETY: the kernel reads an empty, terminated string and a structure of the given size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Makes `mount`, the root of a private mount, read-only (access times don't change either), or
/// writable.
pub(crate) fn set_mount_read_only(mount: BorrowedFd<'_>, read_only: bool) -> Result<()> {
    let flag = libc::MOUNT_ATTR_RDONLY;
    let (set, clear) = if read_only { (flag, 0) } else { (0, flag) };
    set_mount(mount, &MountAttr { set, clear, ..MountAttr::default() })
}

/// Forbids set-user-ID programs on a detached tree of mounts, changes if `read_only`, and the use
/// of devices if `no_devices`: on all of its mounts, or on none if that fails. Devices can be
/// written on a read-only mount, but their attributes can't be changed.
///
/// # Errors
/// Those of mount_setattr(2).
pub fn restrict_mounts(tree: BorrowedFd<'_>, read_only: bool, no_devices: bool) -> Result<()> {
    let of = |given: bool, attribute| if given { attribute } else { 0 };
    let set = libc::MOUNT_ATTR_NOSUID | of(read_only, libc::MOUNT_ATTR_RDONLY) | of(no_devices, libc::MOUNT_ATTR_NODEV);
    set_mounts(tree, &MountAttr { set, ..MountAttr::default() }, libc::AT_RECURSIVE)
}

/// Sets when reads update access times on `mount`, the root of a private mount.
pub(crate) fn set_access_times(mount: BorrowedFd<'_>, times: AccessTimes) -> Result<()> {
    let when = match times.when {
        None => MountAttr::default(),
        Some(when) => MountAttr {
            clear: libc::MOUNT_ATTR__ATIME,
            set: match when {
                When::Never => libc::MOUNT_ATTR_NOATIME,
                When::Relative => libc::MOUNT_ATTR_RELATIME,
                When::Always => libc::MOUNT_ATTR_STRICTATIME,
            },
            ..MountAttr::default()
        },
    };
    set_mount(
        mount,
        &match times.directories {
            None => when,
            Some(true) => MountAttr { clear: when.clear | libc::MOUNT_ATTR_NODIRATIME, ..when },
            Some(false) => MountAttr { set: when.set | libc::MOUNT_ATTR_NODIRATIME, ..when },
        },
    )
}

/// Stops mount propagation into `mount`, the root of a private mount.
pub(crate) fn make_mount_private(mount: BorrowedFd<'_>) -> Result<()> {
    set_mount(mount, &MountAttr { propagation: libc::MS_PRIVATE, ..MountAttr::default() })
}

/// Creates a fanotify group that reports directories, names and objects by file handle.
pub(crate) fn fanotify_init() -> Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_REPORT_DFID_NAME
        | libc::FAN_REPORT_FID;
    // SAFETY: the arguments are plain integers.
    owned(check(unsafe { libc::syscall(libc::SYS_fanotify_init, flags, libc::O_RDONLY | libc::O_LARGEFILE) })?)
}

/// Returns the id that fanotify reports for a file system.
pub(crate) fn fsid_of(stats: &rustix::fs::StatFs) -> [u8; 8] {
    const { assert!(size_of::<libc::fsid_t>() == 8) };
    // SAFETY: the type consists of two integers, and any value is valid for an array of bytes.
    unsafe { std::mem::transmute_copy(&stats.f_fsid) }
}

/// Returns the UUID of the XFS file system of an open file.
pub(crate) fn xfs_uuid(fd: BorrowedFd<'_>) -> Result<[u8; 16]> {
    // XFS_IOC_FSGEOMETRY_V4: struct xfs_fsop_geom_v4, 112 bytes, with the UUID at byte 64.
    const FSGEOMETRY_V4: u32 = 0x8070_587c;
    let mut geometry = [0; 14];
    ioctl(fd, FSGEOMETRY_V4, &mut geometry)?;
    let [.., low, high, _, _, _, _] = geometry;
    let mut uuid = [0; 16];
    uuid.copy_from_slice([low, high].map(u64::to_ne_bytes).as_flattened());
    Ok(uuid)
}

/// Calls fanotify_mark(2) for the mount or the file system of `dir`, as `flags` say.
pub(crate) fn fanotify_mark(group: BorrowedFd<'_>, flags: libc::c_uint, mask: u64, dir: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: both descriptors are open, and the path is a terminated string. The C library passes
    // the mask as the architecture requires.
    check(libc::c_long::from(unsafe {
        libc::fanotify_mark(group.as_raw_fd(), flags, mask, dir.as_raw_fd(), c".".as_ptr())
    }))?;
    Ok(())
}

/// Gives this thread a private umask and working directory.
pub(crate) fn unshare_fs() -> Result<()> {
    // SAFETY: only CLONE_FS is unshared, which concerns umask, root and working directory, not
    // memory or descriptors.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
}

/// Calls fchmodat2(2) on the object of `fd`, which may be an `O_PATH` descriptor. `ENOSYS` before
/// Linux 6.6.
pub(crate) fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    // The number is the same on all architectures.
    const SYS_FCHMODAT2: libc::c_long = 452;
    // SAFETY: the only pointer is to an empty, terminated string.
    check(unsafe { libc::syscall(SYS_FCHMODAT2, fd.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH) })?;
    Ok(())
}

/// Calls ioctl(2) with a command whose argument has at most `size_of_val(buffer)` bytes.
pub(crate) fn ioctl(fd: BorrowedFd<'_>, cmd: u32, buffer: &mut [u64]) -> Result<i32> {
    // The size of the argument is part of the command's number.
    if (cmd >> 16) & 0x3fff > size_of_val(buffer) as u32 {
        return Err(Errno::NOTTY);
    }
    // SAFETY: the callers pass only commands whose argument is a plain structure of the size in the
    // command number. It fits into the buffer, which is aligned for any of them.
    let result = check(unsafe {
        libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), libc::c_ulong::from(cmd), buffer.as_mut_ptr())
    })?;
    i32::try_from(result).map_err(|_| Errno::IO)
}

/// Closes a duplicate of the descriptor. This has the effect of close(2) on an open file, such as
/// writing back over a network, and returns its error.
pub(crate) fn close_copy(fd: BorrowedFd<'_>) -> Result<()> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
    // SAFETY: the duplicate is ours, and its ownership ends here. close(2) closes it even if it
    // returns an error.
    match check(libc::c_long::from(unsafe { libc::close(copy.into_raw_fd()) })) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
