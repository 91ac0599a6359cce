use std::sync::Arc;
use vnode::OpenFile;

/// A wrapped open file of the layer below.
#[derive(Debug)]
pub(crate) struct WrapFile {
    pub(crate) lower: Arc<dyn OpenFile>,
}

impl WrapFile {
    pub(crate) fn over(lower: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(Self { lower })
    }

    /// Returns the file of the layer below if `file` belongs to a null layer, otherwise `file`
    /// itself.
    pub(crate) fn lower_of(file: &dyn OpenFile) -> &dyn OpenFile {
        file.as_any().downcast_ref::<Self>().map_or(file, |wrapped| &*wrapped.lower)
    }
}
