use crate::{Counts, Operation};
use std::any::Any;
use std::sync::Arc;
use vnode::{Cx, HostReader, OpenFile, Result, Whence, forward};

/// A metered open file.
#[derive(Debug)]
pub(crate) struct MeterFile {
    lower: Arc<dyn OpenFile>,
    counts: &'static Counts,
}

impl MeterFile {
    pub(crate) fn over(lower: Arc<dyn OpenFile>, counts: &'static Counts) -> Arc<dyn OpenFile> {
        Arc::new(Self { lower, counts })
    }

    /// Returns the lower file of a metered file; other files are returned unchanged.
    pub(crate) fn lower_of(file: &dyn OpenFile) -> &dyn OpenFile {
        file.as_any().downcast_ref::<Self>().map_or(file, |metered| &*metered.lower)
    }
}

impl OpenFile for MeterFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: backing, bind, closes_quickly, will_need);

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.counts.begin(Operation::Read).end(self.lower.read(cx, out, offset))
    }

    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>> {
        let begun = self.counts.begin(Operation::Read);
        match self.lower.read_host(cx, take) {
            // The caller falls back to `read`, which counts it.
            Ok(None) => Ok(None),
            done => begun.end(done),
        }
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        self.counts.begin(Operation::Write).end(self.lower.write(cx, data, offset))
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.counts.begin(Operation::Flush).end(self.lower.flush(cx))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.counts.begin(Operation::Fsync).end(self.lower.fsync(cx, data_only))
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.counts.begin(Operation::Fallocate).end(self.lower.fallocate(cx, mode, offset, len))
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.counts.begin(Operation::Seek).end(self.lower.seek(cx, offset, whence))
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let source = Self::lower_of(source);
        self.counts.begin(Operation::Copy).end(self.lower.copy_from(cx, offset, source, source_offset, len))
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        self.counts.begin(Operation::Reflink).end(self.lower.reflink_from(cx, Self::lower_of(source)))
    }
}
