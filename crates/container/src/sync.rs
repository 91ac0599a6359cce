//! Syncing and closing.

use crate::container::Container;
use crate::format::State;
use crate::head::Head;
use vnode::{Cx, Errno, Result};

/// In files with at most this many groups, the amount of dead space is recorded only if a record is
/// written anyway.
const SMALL_GROUPS: u64 = 16;

impl Container {
    /// Makes all previous writes durable, like fsync(2), or fdatasync(2) if `data_only`.
    ///
    /// # Errors
    /// Same as [`vnode::OpenFile::fsync`].
    pub fn sync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        match &mut inner.head {
            Some(head) => self.make_durable(cx, head, data_only),
            None => self.file.fsync(cx, data_only),
        }
    }

    /// Ends the session. Called once, before the container is dropped, when the file is no longer
    /// open for writing. If everything is durable, records that no version of the session is in
    /// doubt, so that the next session need not verify them. Also records how much space is dead;
    /// otherwise the next session has to scan the index.
    ///
    /// # Errors
    /// Errors of writing to the lower file.
    pub fn close(&self, cx: &Cx<'_>) -> Result<()> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        let Some(head) = &mut inner.head else { return Ok(()) };
        if head.session.is_none() {
            return Ok(());
        }
        let durable = head.state.durable == head.seq;
        // The next session can scan such a small index just as fast.
        if !durable && head.state.size <= SMALL_GROUPS * head.fixed.geometry.group_bytes() {
            return Ok(());
        }
        let limit = if durable { head.seq } else { head.state.limit };
        let state = State { limit, counted: true, ..head.state };
        self.write_state(cx, head, state)?;
        head.session = None;
        Ok(())
    }

    pub(crate) fn make_durable(&self, cx: &Cx<'_>, head: &mut Head, data_only: bool) -> Result<()> {
        let clean = head.state.promised && head.state.limit == head.state.durable;
        if !head.unsynced || clean && head.session.is_none() {
            return self.file.fsync(cx, data_only);
        }
        match self.begin_session(cx, head, 0) {
            Ok(()) => {}
            // Open for reading only: the data is made durable, but this can't be recorded.
            Err(Errno::BADF | Errno::ROFS) => return self.file.fsync(cx, data_only),
            Err(errno) => return Err(errno),
        }
        if !head.state.promised {
            let state = State { promised: true, ..head.state };
            self.write_state(cx, head, state)?;
        }
        let seq = head.seq;
        self.file.fsync(cx, data_only)?;
        head.state.durable = seq;
        head.unsynced = false;
        // This session knows it now. The record is for later sessions. If writing it fails, they
        // know less, which does no harm.
        let _known_to_us = self.write_state(cx, head, head.state);
        head.unsynced = false;
        self.release_punched(cx, head);
        Ok(())
    }
}
