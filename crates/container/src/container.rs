use crate::cache::Cache;
use crate::codec::BlockCodec;
use crate::format::{STATES, State, new_header};
use crate::group::Group;
use crate::head::{Found, Head, read_header};
use parking_lot::RwLock;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result, SetAttr, Vnode};

/// A lower file seen through a codec. One for each file, shared by all who have it open: two of one file would not know of
/// each other.
///
/// Any number of threads read at a time; one writes. Every operation that changes something has written it to the lower file
/// when it answers, so that nothing is lost if this process is killed; after [`Container::sync`] nothing is lost by a power failure.
#[derive(Debug)]
pub struct Container {
    pub(crate) codec: Arc<dyn BlockCodec>,
    pub(crate) vnode: Arc<dyn Vnode>,
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) inner: RwLock<Inner>,
    pub(crate) cache: Cache,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Inner {
    /// `None`: the file is empty, and has no header yet.
    pub(crate) head: Option<Head>,
    /// The lower file holds something, though it has no header.
    pub(crate) blank: bool,
}

impl Container {
    /// Opens what `file` holds: an open file of `vnode`, readable, and writable if anything is to be changed. It must not have been
    /// opened to append. An empty file is an empty container; it gets its header when it is first written.
    ///
    /// # Errors
    /// `EMEDIUMTYPE` if it is not a container, or one of another codec or a later version; `EIO` if it is damaged; `EINVAL` if the
    /// codec's sizes are not allowed.
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
                // A file made by the codec with other settings may have room for less than this one needs.
                let needed = codec.max_encoded(head.fixed.geometry.block() as usize);
                if needed > head.fixed.geometry.max_encoded() as usize {
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

    /// The plain size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inner.read().head.as_ref().map_or(0, |head| head.state.size)
    }

    /// The header, which is made if there is none, ready for changes.
    pub(crate) fn head_for_change<'a>(&self, cx: &Cx<'_>, inner: &'a mut Inner) -> Result<&'a mut Head> {
        if inner.head.is_none() {
            if inner.blank {
                self.set_lower_size(cx, 0)?;
                inner.blank = false;
            }
            let head = Head::fresh(&*self.codec)?;
            if let Err(errno) = self.write_lower(cx, &new_header(&head.fixed, &head.state), 0) {
                // Half a header would make the file foreign.
                let _best_effort = self.set_lower_size(cx, 0);
                return Err(errno);
            }
            inner.head = Some(head);
        }
        let head = inner.head.as_mut().ok_or(Errno::IO)?;
        self.begin_session(cx, head, 0)?;
        Ok(head)
    }

    /// Makes room for `count` new version numbers. The first change of a session is announced in the header, durably if anything
    /// was promised before: who finds versions after that can tell which ones are to be mistrusted.
    pub(crate) fn begin_session(&self, cx: &Cx<'_>, head: &mut Head, count: u64) -> Result<()> {
        if !head.needs_session(count) {
            return Ok(());
        }
        if head.session.is_some() {
            let state = head.state_with_room()?;
            self.write_state(cx, head, state)?;
            return if head.state.promised { self.file.fsync(cx, true) } else { Ok(()) };
        }
        let (state, start) = head.next_session()?;
        self.write_state(cx, head, state)?;
        if head.state.promised {
            self.file.fsync(cx, true)?;
            // All that was there is durable as it is now.
            head.state.durable = start;
        }
        head.seq = start;
        head.session = Some(start);
        Ok(())
    }

    /// After a version number was met that no session on record has made.
    pub(crate) fn raise_limit(&self, cx: &Cx<'_>, head: &mut Head) -> Result<()> {
        if head.seq < head.state.limit {
            return Ok(());
        }
        let state = head.state_with_room()?;
        self.write_state(cx, head, state)
    }

    /// Writes the state into the record that holds the older one.
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

    /// Writes all, or fails.
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

    /// Reads all; what lies beyond the end is zeros.
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

    /// A group of the index.
    pub(crate) fn group(&self, cx: &Cx<'_>, head: &Head, number: u64) -> Result<Arc<Group>> {
        if let Some(group) = self.cache.group(number) {
            return Ok(group);
        }
        let group = Arc::new(Group::load(cx, &*self.file, &head.fixed, number)?);
        self.cache.put_group(Arc::clone(&group));
        Ok(group)
    }
}
