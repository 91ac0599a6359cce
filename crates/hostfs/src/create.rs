//! Creates files, directories, links and other objects.

use crate::descriptors::Charge;
use crate::file::HostFile;
use crate::opened::OpenFd;
use crate::reopen::{proc_path, retry};
use crate::vnode_impl::HostVnode;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, OFlags};
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, Vnode};

/// Returns the open flags to pass to the host. `O_DIRECT` is dropped: it concerns the caller's
/// buffers, which the host never sees, and the page cache serves as well.
pub(crate) fn host_flags(flags: OpenFlags) -> OFlags {
    let kept = libc::O_ACCMODE | libc::O_TRUNC | libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC | libc::O_NOATIME;
    OFlags::from_bits_retain(flags.0 & kept.cast_unsigned()) | OFlags::CLOEXEC | OFlags::NOCTTY
}

impl HostVnode {
    pub(crate) fn create_regular(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let dir = self.dir_to_change()?;
        let open = (host_flags(flags) - OFlags::TRUNC) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let charge = self.fs().budget.charge(cx)?;
        let _places = self.fs().read_places();
        let fd = self.fs().with_room(|| {
            let create = |mode| retry(|| rustix::fs::openat(&dir, name.as_bytes(), open, mode));
            self.fs().server.create_as(cx, mode & 0o7777, create)
        });
        let fd = self.note_name(name, fd)?;
        let entry = self.entry_or_undo(&dir, name, AtFlags::empty(), self.entry_of_fd(fd.as_fd(), Some(name)))?;
        Ok((entry, self.opened(fd, charge, flags)))
    }

    pub(crate) fn create_unnamed(
        &self,
        cx: &Cx<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let dir = self.dir_to_change()?;
        // `O_TMPFILE` requires write access.
        let access = if flags.writes() { host_flags(flags) } else { host_flags(flags) | OFlags::RDWR };
        let open = (access - OFlags::TRUNC) | OFlags::TMPFILE;
        let charge = self.fs().budget.charge(cx)?;
        let fd = self
            .fs()
            .with_room(|| {
                let create = |mode| retry(|| rustix::fs::openat(&dir, c".", open, mode));
                self.fs().server.create_as(cx, mode & 0o7777, create)
            })
            .map_err(|errno| if errno == Errno::ISDIR { Errno::OPNOTSUPP } else { errno })?;
        let entry = self.entry_of_fd(fd.as_fd(), None)?;
        self.keep_unnamed(&entry, &fd)?;
        Ok((entry, self.opened(fd, charge, flags)))
    }

    /// Keeps an unnamed object that would have to be reopened by name. A separate descriptor keeps
    /// it: `fd` is open for writing and would block execution of the file once it has a name.
    fn keep_unnamed(&self, entry: &Entry, fd: &OwnedFd) -> Result<()> {
        let vnode = self.same_layer(&entry.vnode)?;
        if self.fs().handles.is_some() {
            // Its handle works while the file is open.
            self.fs().table.note_unnamed(&vnode);
            return Ok(());
        }
        let reference = crate::reopen::reopen_fd(fd, OFlags::PATH)?;
        self.fs().table.pin(&vnode, reference);
        Ok(())
    }

    fn opened(&self, fd: OwnedFd, charge: Charge, flags: OpenFlags) -> Arc<dyn OpenFile> {
        Arc::new(HostFile::new(OpenFd::alone(fd, charge, self.fs()), flags))
    }

    pub(crate) fn create_node(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let kind = match mode & Kind::MASK {
            0 => FileType::RegularFile,
            bits => match Kind::from_mode(bits) {
                Some(Kind::Directory) => return Err(Errno::PERM),
                Some(Kind::Symlink) | None => return Err(Errno::INVAL),
                Some(_) => FileType::from_raw_mode(bits),
            },
        };
        let dir = self.dir_to_change()?;
        let created = self.fs().with_room(|| {
            let create = |mode| rustix::fs::mknodat(&dir, name.as_bytes(), kind, mode, rdev);
            self.fs().server.create_as(cx, mode & 0o7777, create)
        });
        self.note_name(name, created)?;
        self.entry_or_undo(&dir, name, AtFlags::empty(), self.entry_of_name(&dir, name))
    }

    pub(crate) fn create_directory(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let dir = self.dir_to_change()?;
        let created = self.fs().with_room(|| {
            self.fs().server.create_as(cx, mode & 0o7777, |mode| rustix::fs::mkdirat(&dir, name.as_bytes(), mode))
        });
        self.note_name(name, created)?;
        self.entry_or_undo(&dir, name, AtFlags::REMOVEDIR, self.entry_of_name(&dir, name))
    }

    pub(crate) fn create_symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        let dir = self.dir_to_change()?;
        let created = self.fs().with_room(|| {
            self.fs().server.create_as(cx, 0o777, |_| rustix::fs::symlinkat(target, &dir, name.as_bytes()))
        });
        self.note_name(name, created)?;
        self.entry_or_undo(&dir, name, AtFlags::empty(), self.entry_of_name(&dir, name))
    }

    pub(crate) fn create_link(&self, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let target = match self.same_layer(target) {
            Err(Errno::XDEV) => self.fs().adopt(target)?,
            other => other?,
        };
        let dir = self.dir_to_change()?;
        let fd = target.fd()?;
        let created =
            match self.fs().with_room(|| rustix::fs::linkat(&fd, c"", &dir, name.as_bytes(), AtFlags::EMPTY_PATH)) {
                // Without CAP_DAC_READ_SEARCH the kernel rejects the empty path.
                Err(Errno::NOENT) => {
                    rustix::fs::linkat(CWD, proc_path(&fd), &dir, name.as_bytes(), AtFlags::SYMLINK_FOLLOW)
                }
                other => other,
            };
        self.note_name(name, created)?;
        self.fs().finder.moved();
        // For a removed object linkat(2) failed with ENOENT; an unnamed one has a name from now on.
        let entry = self.entry_or_undo(&dir, name, AtFlags::empty(), self.entry_of_name(&dir, name))?;
        if target.is_pinned() {
            self.fs().table.unpin(&target);
        }
        Ok(entry)
    }

    /// Returns the entry of a newly created name, as found by a lookup. If that lookup failed (no
    /// free descriptor, no memory), removes the name again: a failed create must not leave an
    /// object behind.
    pub(crate) fn entry_or_undo(
        &self,
        dir: &OwnedFd,
        name: Name<'_>,
        kind: AtFlags,
        found: Result<Entry>,
    ) -> Result<Entry> {
        // After ENOENT or ESTALE, another process has already removed or replaced it.
        if !matches!(found, Ok(_) | Err(Errno::NOENT | Errno::STALE)) {
            // If the removal fails too, the caller gets the first error.
            let _undone = rustix::fs::unlinkat(dir, name.as_bytes(), kind);
        }
        found
    }

    /// Returns the descriptor of this directory for a change of its entries.
    pub(crate) fn dir_to_change(&self) -> Result<Arc<OwnedFd>> {
        self.must_be_directory()?;
        self.fs().check_writable()?;
        self.dir_fd()
    }
}
