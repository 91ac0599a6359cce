//! Listing directories (Wrapfs paper, section 3.3): names are decoded, cookies stay those of the layer below.

use super::long::{self, Own};
use super::node::TemplateVnode;
use vnode::{Cx, DirEntry, Name, Result};

impl TemplateVnode {
    pub(crate) fn list(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        if self.core.names.is_none() {
            return self.lower.readdir(cx, cookie, sink);
        }
        let mut failed = Ok(());
        self.lower.readdir(cx, cookie, &mut |entry| match self.name_above(cx, entry.name) {
            Ok(None) => true,
            Ok(Some(bytes)) => match Name::new(&bytes) {
                Ok(name) => sink(&DirEntry { name, ..*entry }),
                Err(_) => true,
            },
            Err(errno) => {
                failed = Err(errno);
                false
            }
        })?;
        failed
    }

    /// The name that an entry below is listed with; `None` if it is not.
    fn name_above(&self, cx: &Cx<'_>, below: Name<'_>) -> Result<Option<Vec<u8>>> {
        match long::own(below.as_bytes()) {
            Own::None => self.core.shown_name(cx, &self.object(), below.as_bytes()),
            Own::Companion(_) | Own::Unknown => Ok(None),
            Own::Object(digits) => match self.core.name_of_long(cx, &*self.lower, digits)? {
                Some(encoded) => self.core.shown_name(cx, &self.object(), &encoded),
                None => Ok(None),
            },
        }
    }
}
