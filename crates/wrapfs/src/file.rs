use crate::template::TemplateFile;
use std::any::Any;
use std::sync::Arc;
use vnode::{Cx, OpenFile, Result, forward};

/// An open file of the layer below.
#[derive(Debug)]
pub(crate) struct WrapFile {
    lower: Arc<dyn OpenFile>,
}

impl WrapFile {
    pub(crate) fn over(lower: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(Self { lower })
    }

    /// The file of the layer below, if it is one of a null layer; else the file itself.
    pub(crate) fn lower_of(file: &dyn OpenFile) -> &dyn OpenFile {
        file.as_any().downcast_ref::<Self>().map_or(file, |wrapped| &*wrapped.lower)
    }
}

/// The file under any number of layers that leave its data alone: a source of data may come from a stack of another height.
pub(crate) fn look_through(mut file: &dyn OpenFile) -> &dyn OpenFile {
    loop {
        let any = file.as_any();
        let below = match any.downcast_ref::<WrapFile>() {
            Some(wrapped) => Some(&*wrapped.lower),
            None => any.downcast_ref::<TemplateFile>().and_then(TemplateFile::transparent),
        };
        match below {
            Some(below) => file = below,
            None => return file,
        }
    }
}

impl OpenFile for WrapFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: backing, bind, read, write, flush, fsync, fallocate, seek);

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        self.lower.copy_from(cx, offset, look_through(source), source_offset, len)
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        self.lower.reflink_from(cx, look_through(source))
    }
}
