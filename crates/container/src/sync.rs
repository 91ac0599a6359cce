use crate::container::Container;
use crate::format::State;
use crate::head::Head;
use vnode::{Cx, Errno, Result};

/// In files of so few groups it is not noted how much space is dead, unless something is to be noted anyway.
const SMALL: u64 = 16;

impl Container {
    /// Makes durable what was written before, as fsync(2) (`data_only`: as fdatasync(2)).
    ///
    /// # Errors
    /// As [`vnode::OpenFile::fsync`].
    pub fn sync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        match &mut inner.head {
            Some(head) => self.make_durable(cx, head, data_only),
            None => self.file.fsync(cx, data_only),
        }
    }

    /// To be called once when nobody has the file open for writing any more, before the container is dropped: notes that nothing
    /// was left undone, so that the next session need not mistrust this one's blocks, and how much space is dead. Without it the next
    /// session has to look.
    ///
    /// # Errors
    /// Those of writing to the lower file.
    pub fn close(&self, cx: &Cx<'_>) -> Result<()> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        let Some(head) = &mut inner.head else { return Ok(()) };
        if head.session.is_none() {
            return Ok(());
        }
        let durable = head.state.durable == head.seq;
        // What little index there is, the next session reads as fast.
        if !durable && head.state.size <= SMALL * head.fixed.geometry.group_bytes() {
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
            // Opened for reading only: the bytes are made durable, though it can't be noted that they are.
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
        // Known from here on in this session. For later ones it is noted; if that fails, they know less, and nothing is wrong.
        let _known_to_us = self.write_state(cx, head, head.state);
        head.unsynced = false;
        self.release_punched(cx, head);
        Ok(())
    }
}
