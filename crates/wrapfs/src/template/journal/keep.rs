//! Building a layer with a journal.

use super::super::core::Core;
use super::super::unchanged::UnchangedNames;
use super::{Journal, most_marks};
use crate::hooks::Journal as Setting;
use std::sync::Arc;
use vnode::Name;

impl Core {
    /// Applies what a previous server left in the journal, and keeps it from here on. A read-only
    /// layer leaves it alone.
    pub(crate) fn keep_journal(&mut self, setting: Setting) -> core::result::Result<(), String> {
        let shown = setting.name.escape_ascii().to_string();
        if Name::new(&setting.name).is_err() {
            return Err(format!("journal {shown}: this is not a file name"));
        }
        let (owner, lower) = (self.owner(), Arc::clone(&self.lower));
        let Some(format) = &mut self.format else { return Err("a journal needs a file format".to_owned()) };
        self.journal_name = Some(setting.name.clone());
        self.names.get_or_insert_with(|| Box::new(UnchangedNames));
        if self.read_only || self.lower.properties().read_only {
            return Ok(());
        }
        let (head, blocks) = (format.head() as u64, format.chunk() * format.layout.stored());
        let most = most_marks(head, blocks, format.layout.stored()) as u64 + head + blocks;
        let journal = Journal::new(lower, setting, (format.layout, format.fixed()), most, owner);
        journal.recover()?;
        format.journal = Some(journal);
        Ok(())
    }
}
