use crate::foreign::{Counterpart, agree};
use crate::node::Node;
use classify::ViewId;
use core::fmt;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use vnode::{Backing, Cx, Errno, HostReader, OpenFile, OpenFlags, Result, Whence};

/// An open file of one view.
pub(crate) struct ViewFile {
    node: Arc<Node>,
    view: ViewId,
    lower: Arc<dyn OpenFile>,
    flags: OpenFlags,
    /// The same file as other views have it, for processes of these views.
    others: Mutex<Vec<Other>>,
}

/// A file as another view has it.
#[derive(Clone)]
struct Other {
    view: ViewId,
    file: Arc<dyn OpenFile>,
    /// Whether it was opened for writing.
    writes: bool,
}

/// The lower file of an operation.
enum Lower<'a> {
    /// Of the view in which the file was opened.
    Own(&'a dyn OpenFile),
    /// Of another view.
    Other(Arc<dyn OpenFile>),
}

impl ViewFile {
    pub(crate) fn of(node: &Arc<Node>, view: ViewId, lower: Arc<dyn OpenFile>, flags: OpenFlags) -> Arc<dyn OpenFile> {
        Arc::new(Self { node: Arc::clone(node), view, lower, flags, others: Mutex::default() })
    }

    /// Returns the file that the caller may use.
    ///
    /// # Errors
    /// `ESTALE` if the caller's view has another file, or none; `EACCES` if the caller is refused.
    fn lower(&self, cx: &Cx<'_>, writes: bool) -> Result<Lower<'_>> {
        // The kernel writes mapped pages back on its own, for no process. (A process outside of the
        // server's PID namespace has the number 0, too.)
        if writes && classify::is_servers_own(cx) {
            return Ok(Lower::Own(&*self.lower));
        }
        let view = self.node.fs.view_of(cx)?;
        if view == self.view {
            return Ok(Lower::Own(&*self.lower));
        }
        self.other(cx, view, writes).map(Lower::Other)
    }

    fn other(&self, cx: &Cx<'_>, view: ViewId, writes: bool) -> Result<Arc<dyn OpenFile>> {
        let known = |others: &[Other]| {
            let known = others.iter().find(|other| other.view == view && (other.writes || !writes));
            known.map(|other| Arc::clone(&other.file))
        };
        if let Some(file) = known(&self.others.lock()) {
            return Ok(file);
        }
        let Counterpart { vnode, mut file, .. } = self.node.counterpart(cx, view)?;
        if writes {
            let server = cx.as_server(cx.uid, cx.gid);
            file = vnode.open(&server, self.flags.without_trunc())?;
        }
        let mut others = self.others.lock();
        if let Some(file) = known(&others) {
            return Ok(file);
        }
        // One that was opened for reading stays open until the end: it may be in use.
        others.insert(0, Other { view, file: Arc::clone(&file), writes });
        Ok(file)
    }

    /// Checks after a read for another view that the data is also that of this file's view.
    fn check_agreement(&self, cx: &Cx<'_>, other: &dyn OpenFile) -> Result<()> {
        if agree(cx, &*self.lower, other)? { Ok(()) } else { Err(Errno::STALE) }
    }

    fn read_with<T>(&self, cx: &Cx<'_>, read: impl FnOnce(&dyn OpenFile) -> Result<T>) -> Result<T> {
        match self.lower(cx, false)? {
            Lower::Own(file) => read(file),
            Lower::Other(file) => {
                let result = read(&*file)?;
                self.check_agreement(cx, &*file)?;
                Ok(result)
            }
        }
    }

    fn write_with<T>(&self, cx: &Cx<'_>, write: impl FnOnce(&dyn OpenFile) -> Result<T>) -> Result<T> {
        match self.lower(cx, true)? {
            Lower::Own(file) => write(file),
            Lower::Other(file) => write(&*file),
        }
    }
}

/// Returns the file below an open file of this layer.
pub(crate) fn of(file: &dyn OpenFile, view: ViewId) -> Result<&dyn OpenFile> {
    let file = file.as_any().downcast_ref::<ViewFile>().ok_or(Errno::XDEV)?;
    if file.view == view { Ok(&*file.lower) } else { Err(Errno::STALE) }
}

impl OpenFile for ViewFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<Backing<'_>> {
        // With passthrough, a process could use the file after it was moved to another view.
        None
    }

    fn closes_quickly(&self) -> bool {
        false
    }

    fn bind(&self) {}

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.read_with(cx, |file| file.read(cx, out, offset))
    }

    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>> {
        match self.lower(cx, false)? {
            Lower::Own(file) => file.read_host(cx, take),
            // `read` checks the data before the caller gets it.
            Lower::Other(_) => Ok(None),
        }
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        self.write_with(cx, |file| file.write(cx, data, offset))
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        // Everyone who has a file may close it.
        self.lower.flush(cx)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.write_with(cx, |file| file.fsync(cx, data_only))
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.write_with(cx, |file| file.fallocate(cx, mode, offset, len))
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.read_with(cx, |file| file.seek(cx, offset, whence))
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        match self.lower(cx, true)? {
            Lower::Own(file) => file.copy_from(cx, offset, of(source, self.view)?, source_offset, len),
            Lower::Other(_) => Err(Errno::STALE),
        }
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        match self.lower(cx, true)? {
            Lower::Own(file) => file.reflink_from(cx, of(source, self.view)?),
            Lower::Other(_) => Err(Errno::STALE),
        }
    }
}

impl fmt::Debug for ViewFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewFile").field("view", &self.view).field("lower", &self.lower).finish_non_exhaustive()
    }
}
