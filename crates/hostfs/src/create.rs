use crate::descriptors::Charge;
use crate::file::HostFile;
use crate::opened::OpenFd;
use crate::reach::{proc_path, retry};
use crate::vnode_impl::HostVnode;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, OFlags};
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, Vnode};

/// The flags that matter to an open file of the host. `O_DIRECT` is left out: it concerns the caller's buffers, which are not
/// what the host is given; the page cache serves as well.
pub(crate) fn host_flags(flags: OpenFlags) -> OFlags {
    let kept = libc::O_ACCMODE | libc::O_TRUNC | libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC | libc::O_NOATIME;
    OFlags::from_bits_retain(flags.0 & kept.cast_unsigned()) | OFlags::CLOEXEC | OFlags::NOCTTY
}

impl HostVnode {
    pub(crate) fn make_open(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let dir = self.dir_to_change()?;
        let open = (host_flags(flags) - OFlags::TRUNC) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let charge = self.fs().budget.charge(cx)?;
        let _steady = self.fs().by_names();
        let fd = self.fs().with_room(|| {
            let make = |mode| retry(|| rustix::fs::openat(&dir, name.as_bytes(), open, mode));
            self.fs().server.create_as(cx, mode & 0o7777, make)
        });
        let fd = self.note_name(name, fd)?;
        let entry = self.made(&dir, name, AtFlags::empty(), self.entry_of_fd(fd.as_fd(), Some(name)))?;
        Ok((entry, self.opened(fd, charge, flags)))
    }

    pub(crate) fn make_unnamed(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let dir = self.dir_to_change()?;
        // The host insists on write access.
        let access = if flags.writes() { host_flags(flags) } else { host_flags(flags) | OFlags::RDWR };
        let open = (access - OFlags::TRUNC) | OFlags::TMPFILE;
        let charge = self.fs().budget.charge(cx)?;
        let fd = self
            .fs()
            .with_room(|| {
                let make = |mode| retry(|| rustix::fs::openat(&dir, c".", open, mode));
                self.fs().server.create_as(cx, mode & 0o7777, make)
            })
            .map_err(|errno| if errno == Errno::ISDIR { Errno::OPNOTSUPP } else { errno })?;
        let entry = self.entry_of_fd(fd.as_fd(), None)?;
        self.keep_unnamed(&entry, &fd)?;
        Ok((entry, self.opened(fd, charge, flags)))
    }

    /// What is reached by name, and has none, is kept by a descriptor: not by this one, which is open for writing and would
    /// keep the file from being executed once it has a name.
    fn keep_unnamed(&self, entry: &Entry, fd: &OwnedFd) -> Result<()> {
        let vnode = self.same_layer(&entry.vnode)?;
        if self.fs().handles.is_some() {
            // Its handle leads to it while it is open.
            self.fs().table.note_unnamed(&vnode);
            return Ok(());
        }
        let reference = crate::reach::reopen_fd(fd, OFlags::PATH)?;
        self.fs().table.pin(&vnode, reference);
        Ok(())
    }

    fn opened(&self, fd: OwnedFd, charge: Charge, flags: OpenFlags) -> Arc<dyn OpenFile> {
        Arc::new(HostFile::new(OpenFd::alone(fd, charge, self.fs()), flags))
    }

    pub(crate) fn make_node(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let kind = match mode & Kind::MASK {
            0 => FileType::RegularFile,
            bits => match Kind::from_mode(bits) {
                Some(Kind::Directory) => return Err(Errno::PERM),
                Some(Kind::Symlink) | None => return Err(Errno::INVAL),
                Some(_) => FileType::from_raw_mode(bits),
            },
        };
        let dir = self.dir_to_change()?;
        let made = self.fs().with_room(|| {
            let make = |mode| rustix::fs::mknodat(&dir, name.as_bytes(), kind, mode, rdev);
            self.fs().server.create_as(cx, mode & 0o7777, make)
        });
        self.note_name(name, made)?;
        self.made(&dir, name, AtFlags::empty(), self.entry_of_name(&dir, name))
    }

    pub(crate) fn make_directory(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let dir = self.dir_to_change()?;
        let made = self.fs().with_room(|| {
            self.fs().server.create_as(cx, mode & 0o7777, |mode| rustix::fs::mkdirat(&dir, name.as_bytes(), mode))
        });
        self.note_name(name, made)?;
        self.made(&dir, name, AtFlags::REMOVEDIR, self.entry_of_name(&dir, name))
    }

    pub(crate) fn make_symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        let dir = self.dir_to_change()?;
        let made = self.fs().with_room(|| {
            self.fs().server.create_as(cx, 0o777, |_| rustix::fs::symlinkat(target, &dir, name.as_bytes()))
        });
        self.note_name(name, made)?;
        self.made(&dir, name, AtFlags::empty(), self.entry_of_name(&dir, name))
    }

    pub(crate) fn make_link(&self, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let target = self.same_layer(target)?;
        let dir = self.dir_to_change()?;
        let fd = target.fd()?;
        let made =
            match self.fs().with_room(|| rustix::fs::linkat(&fd, c"", &dir, name.as_bytes(), AtFlags::EMPTY_PATH)) {
                // Without CAP_DAC_READ_SEARCH the kernel knows no empty path here.
                Err(Errno::NOENT) => {
                    rustix::fs::linkat(CWD, proc_path(&fd), &dir, name.as_bytes(), AtFlags::SYMLINK_FOLLOW)
                }
                other => other,
            };
        self.note_name(name, made)?;
        self.fs().finder.moved();
        // A removed object would answer ENOENT; an unnamed one has a name from now on.
        let entry = self.made(&dir, name, AtFlags::empty(), self.entry_of_name(&dir, name))?;
        if target.is_pinned() {
            self.fs().table.unpin(&target);
        }
        Ok(entry)
    }

    /// What was just made under that name, as it was found; where that failed (no descriptor is free, no memory), it goes again:
    /// who is told of a failure must not find it.
    pub(crate) fn made(&self, dir: &OwnedFd, name: Name<'_>, kind: AtFlags, found: Result<Entry>) -> Result<Entry> {
        // If it is not there any more, or another object is, somebody was faster.
        if !matches!(found, Ok(_) | Err(Errno::NOENT | Errno::STALE)) {
            // Should that fail too, the caller hears of the first failure.
            let _undone = rustix::fs::unlinkat(dir, name.as_bytes(), kind);
        }
        found
    }

    /// The descriptor of this directory for a change of its entries.
    pub(crate) fn dir_to_change(&self) -> Result<Arc<OwnedFd>> {
        self.must_be_directory()?;
        self.fs().changing()?;
        self.dir_fd()
    }
}
