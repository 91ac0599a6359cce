//! An open container: header changes, sessions, access to the lower file.

use crate::cache::Cache;
use crate::codec::BlockCodec;
use crate::format::{STATES, State, new_header};
use crate::geometry::Geometry;
use crate::group::Group;
use crate::head::{Found, Head, read_header};
use parking_lot::RwLock;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result, SetAttr, Vnode};

/// A container file, opened with its codec. There must be only one per file, shared by everyone who
/// has the file open: two would not see each other's changes.
///
/// Any number of threads can read concurrently; only one writes at a time. An operation has written
/// its changes to the lower file when it returns, so nothing is lost if the process is killed.
/// After [`Container::sync`], nothing is lost in a power failure.
#[derive(Debug)]
pub struct Container {
    pub(crate) codec: Arc<dyn BlockCodec>,
    pub(crate) vnode: Arc<dyn Vnode>,
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) inner: RwLock<Inner>,
    pub(crate) cache: Cache,
}

/// The data protected by the lock.
#[derive(Debug)]
pub(crate) struct Inner {
    /// `None` for an empty file, which has no header yet.
    pub(crate) head: Option<Head>,
    /// The lower file has data but no header.
    pub(crate) blank: bool,
}

impl Container {
    /// Opens the container in `file`: an open file of `vnode`, readable, and writable if it is to
    /// be changed. It must not be open in append mode. An empty file is an empty container, which
    /// gets a header on the first write.
    ///
    /// # Errors
    /// `EMEDIUMTYPE` if the file is not a container, or has another codec or a later version; `EIO`
    /// if it is damaged; `EINVAL` if the codec's sizes are not allowed.
    pub fn open(
        cx: &Cx<'_>,
        codec: Arc<dyn BlockCodec>,
        vnode: Arc<dyn Vnode>,
        file: Arc<dyn OpenFile>,
    ) -> Result<Self> {
        let inner = match read_header(cx, &*file)? {
            Found::Empty => Inner { head: None, blank: false },
            Found::Blank => Inner { head: None, blank: true },
            Found::Foreign => return Err(Errno::MEDIUMTYPE),
            Found::Head(head) => {
                if head.fixed.codec != codec.id() {
                    return Err(Errno::MEDIUMTYPE);
                }
                // A file written with other codec settings may have less space per block than this
                // codec needs.
                let needed = Geometry::of_codec(&*codec, head.fixed.geometry.block_size())?;
                if needed.max_encoded() > head.fixed.geometry.max_encoded() {
                    return Err(Errno::MEDIUMTYPE);
                }
                Inner { head: Some(*head), blank: false }
            }
        };
        if inner.head.is_none() {
            Head::fresh(&*codec)?;
        }
        Ok(Self { codec, vnode, file, inner: RwLock::new(inner), cache: Cache::default() })
    }

    /// Returns the plain size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inner.read().head.as_ref().map_or(0, |head| head.state.size)
    }

    /// Returns the header for a change, after creating it if necessary and beginning a session.
    pub(crate) fn head_for_change<'a>(&self, cx: &Cx<'_>, inner: &'a mut Inner) -> Result<&'a mut Head> {
        if inner.head.is_none() {
            if inner.blank {
                self.set_lower_size(cx, 0)?;
                inner.blank = false;
            }
            let head = Head::fresh(&*self.codec)?;
            if let Err(errno) = self.write_lower(cx, &new_header(&head.fixed, &head.state), 0) {
                // A partial header would make the file foreign.
                let _best_effort = self.set_lower_size(cx, 0);
                return Err(errno);
            }
            inner.head = Some(head);
        }
        let head = inner.head.as_mut().ok_or(Errno::IO)?;
        self.begin_session(cx, head, 0)?;
        Ok(head)
    }

    /// Reserves `count` new version numbers. The first change of a session is recorded in the
    /// header, durably if a sync was ever requested. A later session that finds newer versions then
    /// knows which of them may not have reached the disk.
    pub(crate) fn begin_session(&self, cx: &Cx<'_>, head: &mut Head, count: u64) -> Result<()> {
        if !head.needs_session(count) {
            return Ok(());
        }
        if head.session.is_some() {
            let state = head.state_with_numbers()?;
            self.write_state(cx, head, state)?;
            return if head.state.promised { self.file.fsync(cx, true) } else { Ok(()) };
        }
        let (state, start) = head.next_session()?;
        self.write_state(cx, head, state)?;
        if head.state.promised {
            self.file.fsync(cx, true)?;
            // All earlier data is durable now.
            head.state.durable = start;
        }
        head.seq = start;
        head.session = Some(start);
        Ok(())
    }

    /// Raises the limit after finding a version number that no recorded session has assigned.
    pub(crate) fn raise_limit(&self, cx: &Cx<'_>, head: &mut Head) -> Result<()> {
        if head.seq < head.state.limit {
            return Ok(());
        }
        let state = head.state_with_numbers()?;
        self.write_state(cx, head, state)
    }

    /// Writes the state over the older of the two records.
    pub(crate) fn write_state(&self, cx: &Cx<'_>, head: &mut Head, state: State) -> Result<()> {
        let stamp = head.state.stamp.checked_add(1).ok_or(Errno::IO)?;
        let state = State { stamp, dead: head.space.dead, ..state };
        let record = 1 - head.record;
        let at = STATES.get(record).ok_or(Errno::IO)?;
        head.unsynced = true;
        self.write_lower(cx, &state.bytes(&head.fixed.file), *at)?;
        head.state = state;
        head.record = record;
        Ok(())
    }

    pub(crate) fn set_size(&self, cx: &Cx<'_>, head: &mut Head, size: u64) -> Result<()> {
        let state = State { size, ..head.state };
        self.write_state(cx, head, state)
    }

    /// Writes all of `data`, or fails.
    pub(crate) fn write_lower(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            match self.file.write(cx, rest, offset.saturating_add(done as u64))? {
                0 => return Err(Errno::IO),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Fills `out`, with zeros beyond the end of the file.
    pub(crate) fn read_lower(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<()> {
        let len = self.file.read(cx, out, offset)?;
        if let Some(rest) = out.get_mut(len..) {
            rest.fill(0);
        }
        Ok(())
    }

    pub(crate) fn set_lower_size(&self, cx: &Cx<'_>, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vnode.setattr(cx, &set, Some(&*self.file)).map(|_| ())
    }

    /// Returns a group of the index.
    pub(crate) fn group(&self, cx: &Cx<'_>, head: &Head, number: u64) -> Result<Arc<Group>> {
        if let Some(group) = self.cache.group(number) {
            return Ok(group);
        }
        let group = Arc::new(Group::load(cx, &*self.file, &head.fixed, number)?);
        self.cache.put_group(Arc::clone(&group));
        Ok(group)
    }
}
