//! Listing directories (Wrapfs paper, section 3.3): names are decoded, cookies are those of the
//! layer below.

use super::directory::{Coded, Trust};
use super::node::TemplateVnode;
use crate::hooks::Role;
use vnode::{Cx, DirEntry, Name, Result};

impl TemplateVnode {
    pub(crate) fn list(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        if self.core.names.is_none() {
            return self.lower.readdir(cx, cookie, sink);
        }
        let trust = if cookie == 0 { Trust::Current } else { Trust::Recent };
        let Some(dir) = self.coded(cx, trust)? else { return Ok(()) };
        let mut failed = Ok(());
        self.lower.readdir(cx, cookie, &mut |entry| match self.name_above(cx, &dir, entry.name) {
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

    /// Returns the plain name of an entry below, if it has one.
    pub(crate) fn decoded(&self, cx: &Cx<'_>, below: Name<'_>) -> Result<Option<Vec<u8>>> {
        if self.core.names.is_none() {
            return Ok(Some(below.as_bytes().to_vec()));
        }
        match self.coded(cx, Trust::Recent)? {
            Some(dir) => self.name_above(cx, &dir, below),
            None => Ok(None),
        }
    }

    /// Returns the name that an entry below is listed under; `None` if it is not listed.
    fn name_above(&self, cx: &Cx<'_>, dir: &Coded<'_>, below: Name<'_>) -> Result<Option<Vec<u8>>> {
        let (core, stored) = (&self.core, below.as_bytes());
        match core.role(stored)? {
            // The entry would be listed but never found, because its encoded name is stored under a
            // hash.
            Role::Name if core.long_name(stored)?.is_some() => Ok(None),
            Role::Name => core.shown_name(cx, &dir.object(), stored),
            Role::Side { .. } | Role::Leftover | Role::Own => Ok(None),
            Role::Long { side } => match core.name_of_long(cx, &*self.lower, stored, &side)? {
                Some(encoded) => core.shown_name(cx, &dir.object(), &encoded),
                None => Ok(None),
            },
        }
    }
}
