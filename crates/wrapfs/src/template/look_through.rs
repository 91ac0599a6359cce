use super::file::TemplateFile;
use crate::file::WrapFile;
use vnode::OpenFile;

/// Returns the file below any number of layers that do not change data. The source of a copy may
/// come from a stack of another depth.
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
