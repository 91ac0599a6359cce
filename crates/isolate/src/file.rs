use crate::guard::Guard;
use std::any::Any;
use std::sync::Arc;
use vnode::{Backing, Cx, Errno, HostReader, OpenFile, Result, Whence};

/// An open file of a file system that may hang or be lost.
#[derive(Debug)]
pub(crate) struct IsolateFile {
    /// Absent only while this is dropped.
    lower: Option<Arc<dyn OpenFile>>,
    guard: Arc<Guard>,
}

impl IsolateFile {
    pub(crate) fn over(lower: Arc<dyn OpenFile>, guard: &Arc<Guard>) -> Arc<dyn OpenFile> {
        Arc::new(Self { lower: Some(lower), guard: Arc::clone(guard) })
    }

    /// Returns the lower file of an isolated one; other files are returned unchanged.
    pub(crate) fn lower_of(file: &dyn OpenFile) -> &dyn OpenFile {
        file.as_any().downcast_ref::<Self>().and_then(|isolated| isolated.lower.as_deref()).unwrap_or(file)
    }

    fn lower(&self) -> Result<&Arc<dyn OpenFile>> {
        self.lower.as_ref().ok_or(Errno::BADF)
    }

    fn call<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        call: impl FnOnce(&dyn OpenFile, &Cx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let lower = Arc::clone(self.lower()?);
        self.guard.call(cx, move |cx| call(&*lower, cx))
    }
}

impl OpenFile for IsolateFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<Backing<'_>> {
        self.lower.as_ref()?.backing()
    }

    fn closes_quickly(&self) -> bool {
        self.backing().is_some()
    }

    fn bind(&self) {
        self.lower.iter().for_each(|lower| lower.bind());
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        self.lower()?.write(cx, data, offset)
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.lower()?.fallocate(cx, mode, offset, len)
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        if self.guard.calls.is_none() {
            return self.lower()?.read(cx, out, offset);
        }
        let room = out.len();
        let data = self.call(cx, move |lower, cx| {
            let mut data = vec![0; room];
            let len = lower.read(cx, &mut data, offset)?;
            data.truncate(len);
            Ok(data)
        })?;
        for (to, from) in out.iter_mut().zip(&data) {
            *to = *from;
        }
        Ok(data.len())
    }

    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>> {
        // The caller would read from the host file on its own thread, and could hang.
        if self.guard.calls.is_some() { Ok(None) } else { self.lower()?.read_host(cx, take) }
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.call(cx, OpenFile::flush)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.call(cx, move |lower, cx| lower.fsync(cx, data_only))
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.call(cx, move |lower, cx| lower.seek(cx, offset, whence))
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        self.lower()?.copy_from(cx, offset, Self::lower_of(source), source_offset, len)
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        self.lower()?.reflink_from(cx, Self::lower_of(source))
    }
}

impl Drop for IsolateFile {
    fn drop(&mut self) {
        if let (Some(calls), Some(lower)) = (&self.guard.calls, self.lower.take()) {
            // The last close may hang.
            calls.dispose(lower);
        }
    }
}
