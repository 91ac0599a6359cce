use crate::file::WrapFile;
use crate::template::look_through;
use std::any::Any;
use vnode::{Cx, OpenFile, Result, forward};

impl OpenFile for WrapFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: backing, bind, closes_quickly, will_need, read, read_host, write, flush, fsync, fallocate, seek);

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        self.lower.copy_from(cx, offset, look_through(source), source_offset, len)
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        self.lower.reflink_from(cx, look_through(source))
    }
}
