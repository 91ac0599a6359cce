//! Conversions between the kernel's structures and those of the vnode interface.

use fuse::abi::{self, SetattrIn};
use std::time::Duration;
use vnode::{Attr, Errno, Name, Result, SetAttr, SetTime, Time};

/// Validates a name from the kernel, which has checked it; the server must not rely on that.
pub(crate) fn name(bytes: &[u8]) -> Result<Name<'_>> {
    Name::new(bytes)
}

/// Converts a device number from makedev(3)'s 64 bits to the kernel's 32 (12 bits major, 20 bits
/// minor).
fn rdev_to_kernel(rdev: u64) -> u32 {
    let major = ((rdev >> 32) & 0xffff_f000) | ((rdev >> 8) & 0xfff);
    let minor = ((rdev >> 12) & 0xffff_ff00) | (rdev & 0xff);
    u32::try_from(((minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)) & 0xffff_ffff).unwrap_or(0)
}

/// Converts a device number from the kernel's 32 bits to makedev(3)'s 64.
pub(crate) fn rdev_from_kernel(rdev: u32) -> u64 {
    let major = u64::from((rdev >> 8) & 0xfff);
    let minor = u64::from((rdev & 0xff) | ((rdev >> 12) & 0xfff00));
    ((major & 0xffff_f000) << 32) | ((major & 0xfff) << 8) | ((minor & 0xffff_ff00) << 12) | (minor & 0xff)
}

/// Converts attributes for the kernel. The root has its own inode number, not its node id.
pub(crate) fn attr(a: &Attr) -> abi::Attr {
    abi::Attr {
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.sec.cast_unsigned(),
        mtime: a.mtime.sec.cast_unsigned(),
        ctime: a.ctime.sec.cast_unsigned(),
        atimensec: a.atime.nsec,
        mtimensec: a.mtime.nsec,
        ctimensec: a.ctime.nsec,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: rdev_to_kernel(a.rdev),
        blksize: a.blksize,
        flags: 0,
    }
}

/// Converts attributes and adds their validity.
pub(crate) fn attr_out(a: &Attr, valid: Duration) -> abi::AttrOut {
    abi::AttrOut { attr_valid: valid.as_secs(), attr_valid_nsec: valid.subsec_nanos(), dummy: 0, attr: attr(a) }
}

/// Whether a SETATTR changes no attribute.
pub(crate) fn changes_nothing(arg: &SetattrIn) -> bool {
    arg.valid & !(abi::FATTR_FH | abi::FATTR_LOCKOWNER) == 0
}

/// Converts the changes of a SETATTR.
pub(crate) fn set_attr(arg: &SetattrIn) -> SetAttr {
    let has = |bit: u32| arg.valid & bit != 0;
    let time = |given: u32, now: u32, sec: u64, nsec: u32| {
        if has(now) {
            Some(SetTime::Now)
        } else {
            has(given).then_some(SetTime::At(Time { sec: sec.cast_signed(), nsec }))
        }
    };
    SetAttr {
        mode: has(abi::FATTR_MODE).then_some(arg.mode & 0o7777),
        uid: has(abi::FATTR_UID).then_some(arg.uid),
        gid: has(abi::FATTR_GID).then_some(arg.gid),
        size: has(abi::FATTR_SIZE).then_some(arg.size),
        atime: time(abi::FATTR_ATIME, abi::FATTR_ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(abi::FATTR_MTIME, abi::FATTR_MTIME_NOW, arg.mtime, arg.mtimensec),
        // With passthrough, the kernel requests clearing set-user-id by a SETATTR without changes.
        kill_suidgid: has(abi::FATTR_KILL_SUIDGID) || changes_nothing(arg),
    }
}

/// `STATX_BASIC_STATS`: all fields of stat(2).
const STATX_BASIC_STATS: u32 = 0x7ff;
/// `STATX_BTIME`: the birth time is valid.
const STATX_BTIME: u32 = 0x800;

/// Converts attributes for statx(2) with the birth time.
pub(crate) fn statx_out(a: &Attr, valid: Duration) -> abi::StatxOut {
    let time = |t: Time| abi::SxTime { tv_sec: t.sec, tv_nsec: t.nsec, __reserved: 0 };
    let major = |rdev: u64| u32::try_from(((rdev >> 32) & 0xffff_f000) | ((rdev >> 8) & 0xfff)).unwrap_or(0);
    let minor = |rdev: u64| u32::try_from(((rdev >> 12) & 0xffff_ff00) | (rdev & 0xff)).unwrap_or(0);
    let stat = abi::Statx {
        mask: STATX_BASIC_STATS | if a.btime.is_some() { STATX_BTIME } else { 0 },
        blksize: a.blksize,
        attributes: 0,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: u16::try_from(a.mode & 0xffff).unwrap_or(0),
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        attributes_mask: 0,
        atime: time(a.atime),
        btime: time(a.btime.unwrap_or_default()),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        rdev_major: major(a.rdev),
        rdev_minor: minor(a.rdev),
        ..Default::default()
    };
    abi::StatxOut { attr_valid: valid.as_secs(), attr_valid_nsec: valid.subsec_nanos(), flags: 0, spare: [0; 2], stat }
}

/// Returns the `O_*` bits that concern the open file, not its lookup.
pub(crate) fn open_flags(flags: u32) -> vnode::OpenFlags {
    // O_CREAT, O_EXCL, O_NOCTTY, O_NOFOLLOW, O_DIRECTORY, O_CLOEXEC; and O_DIRECT, because request
    // buffers have arbitrary alignment.
    const LOOKUP_ONLY: u32 = 0o100 | 0o200 | 0o400 | 0o400_000 | 0o200_000 | 0o2_000_000 | 0o40_000;
    vnode::OpenFlags(flags & !(LOOKUP_ONLY | FMODE_EXEC))
}

/// The kernel's internal flag, among the `O_*` bits, for an open by execve(2).
const FMODE_EXEC: u32 = 0x20;

/// Whether `O_EXCL` is set.
pub(crate) fn exclusive(flags: u32) -> bool {
    const O_EXCL: u32 = 0o200;
    flags & O_EXCL != 0
}

/// Whether the file is opened by execve(2).
pub(crate) fn executes(flags: u32) -> bool {
    flags & FMODE_EXEC != 0
}

/// Maximum size of a list of extended attribute names in Linux, in bytes.
pub(crate) const XATTR_LIST_MAX: usize = 65536;

/// Filters a list of NUL-terminated names for unprivileged users, without `trusted.*`. Every file
/// system has to do this, and the one below saw the server's privileges. Returns the length of the
/// list; writes nothing if `out` is empty.
pub(crate) fn ordinary_xattrs(list: &[u8], out: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    for name in list.split_inclusive(|&b| b == 0).filter(|name| !name.starts_with(b"trusted.")) {
        let end = len + name.len();
        if !out.is_empty() {
            out.get_mut(len..end).ok_or(Errno::RANGE)?.copy_from_slice(name);
        }
        len = end;
    }
    Ok(len)
}

/// Converts the flags of renameat2(2), and rejects invalid combinations.
pub(crate) fn rename_flags(flags: u32) -> Result<vnode::RenameFlags> {
    const NOREPLACE: u32 = 1;
    const EXCHANGE: u32 = 2;
    const WHITEOUT: u32 = 4;
    if flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0 || (flags & EXCHANGE != 0 && flags != EXCHANGE) {
        return Err(Errno::INVAL);
    }
    Ok(vnode::RenameFlags {
        no_replace: flags & NOREPLACE != 0,
        exchange: flags & EXCHANGE != 0,
        whiteout: flags & WHITEOUT != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        assert_eq!(rdev_from_kernel(0x0103), 0x0103);
        assert_eq!(rdev_to_kernel(0x0103), 0x0103);
        for kernel in [0u32, 1, 0xff, 0x100, 0xfff00, 0x0010_0000, 0xfff0_0000, 0xffff_ffff, 0x1234_5678] {
            assert_eq!(rdev_to_kernel(rdev_from_kernel(kernel)), kernel);
        }
    }

    #[test]
    fn unprivileged_users_see_no_trusted_attributes() {
        let list = b"trusted.a\0user.b\0trusted.c\0security.d\0";
        let seen = b"user.b\0security.d\0";
        let mut out = [0; 64];
        assert_eq!(ordinary_xattrs(list, &mut out), Ok(seen.len()));
        assert_eq!(&out[..seen.len()], seen);
        assert_eq!(ordinary_xattrs(list, &mut []), Ok(seen.len()));
        assert_eq!(ordinary_xattrs(list, &mut [0; 17]), Err(Errno::RANGE));
        assert_eq!(ordinary_xattrs(b"trusted.a\0", &mut [0; 1]), Ok(0));
    }

    #[test]
    fn a_setattr_without_changes_clears_suid() {
        let none = SetattrIn::default();
        assert!(set_attr(&none).kill_suidgid);
        let mode = SetattrIn { valid: abi::FATTR_MODE, mode: 0o104_755, ..Default::default() };
        assert_eq!(set_attr(&mode).mode, Some(0o4755));
        assert!(!set_attr(&mode).kill_suidgid);
    }
}
