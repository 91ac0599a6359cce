use super::file::TemplateFile;
use crate::file::WrapFile;
use vnode::OpenFile;

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
