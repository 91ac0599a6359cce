//! The audit log: who changed what, a record for each operation (docs/formats/audit-log.md).
//!
//! | concept | file |
//! |---|---|
//! | what a record says of an operation | `event` |
//! | the versions that an operation makes | `made` |
//! | the segments, appending to them | `log` |
//! | the command `versionfs.log` | `read` |
//! | discarding old segments | `bound` |
//!
//! Before an operation, room for its record is reserved. After it, the record is appended, and then
//! the caller gets the result. So a full disk refuses the operation, and does not leave a hole in
//! the log. A record that can't be written in spite of that stays in memory: the operation fails,
//! and so do all further ones until the log has taken it.

mod bound;
mod event;
mod log;
mod made;
mod read;

pub(crate) use event::Event;
pub(crate) use log::Log;
pub(crate) use made::note;
pub(crate) use read::COMMAND;

use crate::core::Core;
use core::cell::RefCell;
use made::Noted;
use vnode::{Cx, Errno, Result};

/// Whether changes by this caller are recorded: all with the option `audit`, otherwise those of
/// users whose activity the administrator wants logged.
pub(crate) fn enabled_for(core: &Core, cx: &Cx<'_>) -> bool {
    core.options.audit || core.policies.logs(cx)
}

impl Core {
    /// Runs an operation that changes something, and records it. `event` describes it before it
    /// runs; `finish` adds what only its result says.
    ///
    /// # Errors
    /// Those of `run`; those of the layer below if the log can't be written. Then nothing has
    /// changed, except after `EIO`.
    pub(crate) fn audited<T>(
        &self,
        cx: &Cx<'_>,
        event: impl FnOnce() -> Result<Event>,
        run: impl Fn() -> Result<T>,
        finish: impl FnOnce(&T, &mut Event),
    ) -> Result<T> {
        if !enabled_for(self, cx) {
            return self.with_room(cx, run);
        }
        let reserved = self.with_room(cx, || self.log.reserve(self, cx))?;
        let mut event = event()?;
        let versions = RefCell::default();
        let result = self.with_room(cx, || {
            let noted = Noted::begin();
            let result = run();
            versions.replace(noted.end());
            result
        });
        let versions = versions.into_inner();
        match result {
            Ok(done) => {
                finish(&done, &mut event);
                reserved.append(cx, event.into_record(self, cx, &versions, 0)).map(|()| done)
            }
            // Part of the change may have been made.
            Err(Errno::IO) => {
                let record = event.into_record(self, cx, &versions, Errno::IO.raw_os_error().unsigned_abs());
                if let Err(errno) = reserved.append(cx, record) {
                    tracing::warn!(%errno, "can't record a failed operation in the audit log yet");
                }
                Err(Errno::IO)
            }
            Err(errno) => Err(errno),
        }
    }
}
