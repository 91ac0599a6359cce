//! Attributes, statfs and fsync.

use crate::file::HostFile;
use crate::hot::Use;
use crate::layer::statx_fd;
use crate::reopen::{Fd, READ_NONBLOCK, proc_path, retry};
use crate::sys;
use crate::vnode_impl::HostVnode;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use vnode::{Attr, Cx, Errno, Kind, OpenFile, Result, SetAttr, SetTime, StatFs, Time};

/// Returns the kind of object that statx(2) reports.
pub(crate) fn kind_of(stat: &Statx) -> Kind {
    Kind::from_mode(u32::from(stat.stx_mode)).unwrap_or(Kind::Regular)
}

fn time_of(time: rustix::fs::StatxTimestamp) -> Time {
    Time { sec: time.tv_sec, nsec: time.tv_nsec }
}

/// Converts a statx(2) result to attributes with the vnode's number.
pub(crate) fn attr_of(stat: &Statx, ino: u64) -> Attr {
    let is_device = matches!(kind_of(stat), Kind::CharDevice | Kind::BlockDevice);
    Attr {
        ino,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time_of(stat.stx_atime),
        mtime: time_of(stat.stx_mtime),
        ctime: time_of(stat.stx_ctime),
        btime: (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time_of(stat.stx_btime)),
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: if is_device { rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) } else { 0 },
        blksize: stat.stx_blksize,
    }
}

fn timespec_of(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(time)) => Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) },
    }
}

/// The descriptor through which attributes are changed.
enum Descriptor<'a> {
    OfFile(&'a HostFile),
    Own(OwnedFd),
    Any(Fd),
}

impl AsFd for Descriptor<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::OfFile(file) => file.fd(),
            Self::Own(fd) => fd.as_fd(),
            Self::Any(fd) => fd.as_fd(),
        }
    }
}

impl HostVnode {
    pub(crate) fn attributes(&self) -> Result<Attr> {
        let Some(files) = self.hot_files() else { return Ok(attr_of(&statx_fd(self.fd()?)?, self.number())) };
        if let Some((_, stat)) = self.hot() {
            return Ok(attr_of(&stat, self.number()));
        }
        let stamp = files.is_repeated(Use::Attributes, self.number()).then(|| files.stamp(self.number()));
        let fd = self.fresh_fd()?;
        let stat = statx_fd(&fd)?;
        if let (Some(stamp), Fd::Own(fd), 1..) = (stamp, fd, stat.stx_nlink) {
            self.keep_reference(fd, stamp);
        }
        Ok(attr_of(&stat, self.number()))
    }

    /// Returns the attributes, without opening the object again if `file` belongs to this layer.
    pub(crate) fn attributes_of_open(&self, file: &dyn OpenFile) -> Result<Attr> {
        match file.as_any().downcast_ref::<HostFile>() {
            Some(file) => Ok(attr_of(&statx_fd(file.fd())?, self.number())),
            None => self.attributes(),
        }
    }

    pub(crate) fn change_attributes(&self, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.fs().check_writable()?;
        let file = file.and_then(|file| file.as_any().downcast_ref::<HostFile>());
        if set.mode.is_some() && self.object_kind() == Kind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let fd = match file {
            Some(file) if set.size.is_none() || file.flags().writes() => Descriptor::OfFile(file),
            _ if set.size.is_some() => Descriptor::Own(self.open_to_truncate()?),
            _ => Descriptor::Any(self.fd()?),
        };
        let fd = fd.as_fd();
        // The size is set first, because it can fail where the other changes succeed. The order
        // does not affect the result: only a change of owner clears mode bits, and the times are
        // set last.
        if let Some(size) = set.size {
            retry(|| rustix::fs::ftruncate(fd, size))?;
        }
        change_owner(fd, set)?;
        change_mode(fd, set)?;
        if !no_times(set) {
            let times = Timestamps { last_access: timespec_of(set.atime), last_modification: timespec_of(set.mtime) };
            rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(attr_of(&statx_fd(fd)?, self.number()))
    }

    fn open_to_truncate(&self) -> Result<OwnedFd> {
        match self.object_kind() {
            Kind::Regular => {
                // As in `open_shared`: drop an entry of a removed file, which must not be truncated
                // in place of the file that has its name now.
                drop(self.hot());
                self.reopen_named(OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
            }
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn link_target(&self) -> Result<Vec<u8>> {
        if self.object_kind() != Kind::Symlink {
            return Err(Errno::INVAL);
        }
        let fd = self.fd()?;
        Ok(rustix::fs::readlinkat(fd, c"", Vec::with_capacity(256))?.into_bytes())
    }

    pub(crate) fn fs_stats(&self) -> Result<StatFs> {
        let stat = rustix::fs::fstatvfs(self.fd()?)?;
        Ok(StatFs {
            frsize: stat.f_frsize,
            bsize: stat.f_bsize,
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            namemax: u32::try_from(stat.f_namemax).unwrap_or(u32::MAX),
            // A layer lies on one mount, so on one file system.
            fsid: self.fs().root_dev,
        })
    }

    /// Syncs an object that is not open.
    pub(crate) fn make_durable(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        cx.require_blocking()?;
        if self.fs().is_read_only() {
            return Ok(());
        }
        if self.object_kind() == Kind::Regular {
            // Through a new descriptor: the host reports a failure once to each open file, and a
            // shared one would consume another's report.
            return sync_fd(self.reopen(READ_NONBLOCK)?.as_fd(), data_only);
        }
        let Some(fd) = self.readable_fd()? else { return Err(Errno::INVAL) };
        match sync_fd(fd.as_fd(), data_only) {
            // An `O_PATH` descriptor, which keeps a removed directory.
            Err(Errno::BADF) => sync_fd(self.reopen(READ_NONBLOCK)?.as_fd(), data_only),
            other => other,
        }
    }
}

/// Calls fsync(2) or fdatasync(2).
pub(crate) fn sync_fd(fd: BorrowedFd<'_>, data_only: bool) -> Result<()> {
    retry(|| if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) })
}

fn no_times(set: &SetAttr) -> bool {
    set.atime.is_none() && set.mtime.is_none()
}

fn change_owner(fd: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
    if set.uid.is_none() && set.gid.is_none() {
        return Ok(());
    }
    let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
    rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
}

/// Sets the requested mode, or clears the bits that `kill_suidgid` removes.
fn change_mode(fd: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
    let mode = match set.mode {
        Some(mode) => mode & 0o7777,
        None if set.kill_suidgid => {
            let present = u32::from(statx_fd(fd)?.stx_mode);
            match without_suidgid(present) {
                Some(mode) => mode,
                None => return Ok(()),
            }
        }
        None => return Ok(()),
    };
    match sys::chmod_fd(fd, mode) {
        // Before Linux 6.6.
        Err(Errno::NOSYS) => rustix::fs::chmodat(CWD, proc_path(fd), Mode::from_raw_mode(mode), AtFlags::empty()),
        other => other,
    }
}

/// Returns the permission bits without set-user-id, and without set-group-id if the group may
/// execute. `None` if neither bit is set, or for a directory, where the bits mean something else.
fn without_suidgid(mode: u32) -> Option<u32> {
    if Kind::from_mode(mode) == Some(Kind::Directory) {
        return None;
    }
    let perm = mode & 0o7777;
    let sgid = if perm & 0o010 != 0 { 0o2000 } else { 0 };
    let killed = perm & !(0o4000 | sgid);
    (killed != perm).then_some(killed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_are_cleared_as_the_kernel_does() {
        assert_eq!(without_suidgid(0o106_755), Some(0o755));
        assert_eq!(without_suidgid(0o102_745), None);
        assert_eq!(without_suidgid(0o104_644), Some(0o644));
        assert_eq!(without_suidgid(0o100_755), None);
        assert_eq!(without_suidgid(0o046_755), None);
    }
}
