//! The head of a version set, and how its versions are made.
//!
//! The record goes to the index first, then the version file is made, then the head changes. So
//! after a kill at any moment, a record may have no file, but no version is lost.

use crate::convert::is_content;
use crate::core::Core;
use crate::inode::{Inode, Place};
use crate::retain::{info, stored};
use crate::session::{Active, Session};
use crate::set::{Locked, Made, Set, link_stem};
use crate::space::{belongs_to, is_last_try, loses_version, wants};
use std::sync::Arc;
use versionpolicy::{Effective, NoSpace, Storage, Versions};
use versionset::{
    Cause, Flags, Gap, Header, Index, Letter, Record, Seal, SparseWriter, Stamp, Version, Who, is_zero, just_after,
    next_hole,
};
use vnode::{
    Attr, Backing, Cx, Entry, Errno, Kind, MAY_BLOCK, OpenFile, OpenFlags, Result, SetAttr, SetTime, Time, Vnode,
    XattrFlags, read_value,
};

/// Largest file that a thread which must not block copies, in bytes.
pub(crate) const QUICK_COPY: u64 = 128 * 1024;

/// What a version takes beside its bytes: a header, or a part of an index.
const OVERHEAD: u64 = 4096;

/// What the records take of a name that goes, and of one that comes, in bytes.
const RECORDS: u64 = 1024;

/// Bytes that are copied at once.
const CHUNK: usize = 128 * 1024;

/// An extended attribute: its name and value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// An object whose version is made.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) core: &'a Core,
    pub(crate) lower: &'a Arc<dyn Vnode>,
    pub(crate) inode: &'a Inode,
}

/// The sets of a head: the one of its name, and the one that keeps its versions.
#[derive(Clone, Debug)]
pub(crate) struct HeadSets {
    /// The set of the name.
    pub(crate) own: Arc<Set>,
    /// The set that keeps the versions: that of the inode if it has or had several names.
    pub(crate) keeps: Arc<Set>,
}

impl Head<'_> {
    /// Takes back a version whose change failed, and returns whether it is gone. It is kept after
    /// `EIO`, and if the size has changed: part of the change was made.
    pub(crate) fn take_back(
        &self,
        cx: &Cx<'_>,
        session: Option<&mut Session>,
        made: Option<Made>,
        errno: Errno,
    ) -> bool {
        let Some(made) = made.filter(|_| errno != Errno::IO) else { return false };
        let server = self.core.server(cx);
        if let (Some(session), Some(_)) = (session, made.letter) {
            session.active = None;
        }
        let now = match self.lower.kind() {
            Kind::Regular => match self.lower.getattr(&server) {
                Ok(attr) => Stamp::of(&attr),
                Err(_) => return false,
            },
            _ => made.before,
        };
        let Ok(mut locked) = made.set.lock(self.core, &server) else { return false };
        let is_last = match made.letter {
            Some(_) => locked.index().newest().is_some_and(|newest| newest.number == made.number),
            None => locked.index().next() == made.number.saturating_add(1),
        };
        if !is_last || now.size != made.before.size {
            return false;
        }
        let Some(letter) = made.letter else {
            return locked.append_after(&server, &[Record::Retracted(made.number)]).is_ok();
        };
        // A write that fails may have set the time.
        if now != made.before && locked.reseal_before(&server, made.number, &now).is_err() {
            return false;
        }
        let stored = locked.file(&server, letter, made.number).ok().flatten().map_or(0, |entry| stored(&entry));
        if locked.remove(&server, letter, made.number).is_err() {
            return false;
        }
        if locked.append(&server, &[Record::Retracted(made.number)]).is_err() {
            // The record lacks its file, which the next use finds out.
            locked.reload();
        }
        self.core.space.took_back(stored);
        true
    }

    /// Returns a name of the object. `None` if it has none.
    ///
    /// # Errors
    /// `ESTALE` if it is a version file, which nobody may change; those of the layer below.
    pub(crate) fn place(&self, cx: &Cx<'_>) -> Result<Option<Place>> {
        if let Some(place) = self.inode.place()
            && place.has(cx, self.inode)?
        {
            return Ok(Some(place));
        }
        if self.inode.is_buried() {
            return Ok(None);
        }
        let (mut is_user_file, mut is_version) = (false, false);
        crate::by_number::each_name(cx, self.lower, |dir, name, is_stored| {
            // A kill while the file was replaced leaves a second name in the store.
            is_version |= is_stored;
            is_user_file = !is_stored;
            if is_user_file {
                self.inode.found_at(dir, name.as_bytes());
            }
            is_stored
        })?;
        if is_version && !is_user_file {
            // It became one after somebody looked it up, and before this layer knew that.
            return Err(Errno::STALE);
        }
        Ok(self.inode.place())
    }

    /// Returns the sets of the object. `None` if it has no name.
    pub(crate) fn sets(&self, cx: &Cx<'_>, nlink: u32) -> Result<Option<HeadSets>> {
        let Some(place) = self.place(cx)? else { return Ok(None) };
        let own = self.core.set_of_name(&place.dir, &place.name);
        if self.lower.kind() != Kind::Regular {
            return Ok(Some(HeadSets { keeps: Arc::clone(&own), own }));
        }
        let is_known = {
            let mut locked = own.lock(self.core, cx)?;
            let is_known = locked.is_linked(&link_stem(&**self.lower));
            if !is_known {
                // Or the versions of this file would count as those of another inode.
                locked.end_stale_period(self.core, cx)?;
            }
            is_known
        };
        // Loading the set may have removed a second name that a crash had left in the store.
        let is_one_of_several = nlink > 1 && self.lower.getattr(cx)?.nlink > 1;
        if is_one_of_several && !is_known {
            self.joins(cx, &own)?;
        }
        if !is_known && !is_one_of_several && !self.rejoins(cx, &own)? {
            return Ok(Some(HeadSets { keeps: Arc::clone(&own), own }));
        }
        let keeps = self.link_set();
        // Loading it removes such a second name, too: the caller counts the names.
        drop(keeps.lock(self.core, cx)?);
        Ok(Some(HeadSets { own, keeps }))
    }

    /// Lets a name that has a history of its own join the set of its inode, which got its other
    /// names below the mount, or is a copy. Without such a history, there is nothing to record.
    fn joins(&self, cx: &Cx<'_>, own: &Arc<Set>) -> Result<()> {
        let server = self.core.server(cx);
        let attr = self.lower.getattr(&server)?;
        let locked = own.lock(self.core, &server)?;
        if locked.index().next() == 1 && locked.index().links.is_empty() {
            return Ok(());
        }
        // From now on, bytes are saved in the inode's set.
        self.close(cx, locked, own, Cause::Link)?;
        let (next, since, is_copy) = {
            let locked = own.lock(self.core, &server)?;
            let index = locked.index();
            (index.next(), interval(self.core, index, &attr, self.core.now()).0, index.is_new_copy())
        };
        let first = self.number_link_from(&server, next)?;
        // What was written through other names of a copy is the history of this one, too.
        let first = if is_copy { next } else { first };
        let mut locked = own.lock(self.core, &server)?;
        let records = locked.joining(since, &link_stem(&**self.lower), first);
        locked.repair(&server, &records)
    }

    /// Lets the name join the inode's set if that has versions of this file, and returns whether it
    /// has: a kill prevented the record of a rename.
    fn rejoins(&self, cx: &Cx<'_>, own: &Arc<Set>) -> Result<bool> {
        if self.inode.has_no_link_set() {
            return Ok(false);
        }
        let server = self.core.server(cx);
        let link = self.link_set();
        let newest = link.lock(self.core, cx)?.index().newest().cloned();
        let Some(newest) = newest.filter(|newest| !newest.cause.ends_head()) else {
            self.inode.set_has_no_link_set(true);
            return Ok(false);
        };
        let attr = self.lower.getattr(&server)?;
        let mut locked = own.lock(self.core, &server)?;
        let (next, since) = (locked.index().next(), interval(self.core, locked.index(), &attr, self.core.now()).0);
        let first = self.number_link_from(&server, next)?;
        // The name is older than this layer, or nobody knows how long it has belonged to the inode.
        let is_old = next == 1 && locked.index().links.is_empty();
        let (since, first) = if is_old { (since, next) } else { (since.max(newest.died), first) };
        let records = locked.joining(since, &link_stem(&**self.lower), first);
        locked.append_surely(&server, &records)?;
        Ok(true)
    }

    /// Numbers the next versions of the inode from `next` on, that of a name which joins or leaves
    /// it, so that the versions of the name have an order. Returns the number that comes next.
    pub(crate) fn number_link_from(&self, server: &Cx<'_>, next: u64) -> Result<u64> {
        let link = self.link_set();
        let mut locked = link.lock(self.core, server)?;
        if next > locked.index().next() {
            locked.append_surely(server, &[Record::Next(next)])?;
        }
        Ok(locked.index().next())
    }

    /// As [`Self::number_link_from`], after the name has joined.
    pub(crate) fn number_link_after(&self, server: &Cx<'_>, next: u64) -> Result<u64> {
        let link = self.link_set();
        let mut locked = link.lock(self.core, server)?;
        if next > locked.index().next() {
            locked.append_after(server, &[Record::Next(next)])?;
        }
        Ok(locked.index().next())
    }

    /// Makes a version of a file with several names before one of them goes, whose history ends
    /// with it: the file may change under the other names. `None` if the policy wants no version.
    pub(crate) fn mark(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        own: &Arc<Set>,
        (attr, cause): (&Attr, Cause),
    ) -> Result<Option<Made>> {
        if self.leaves_none(cx, attr, cause)? {
            return Ok(None);
        }
        let server = self.core.server(cx);
        self.inode.set_has_no_link_set(false);
        let next = own.lock(self.core, &server)?.index().next();
        let made = self.number_link_from(&server, next).and_then(|_| {
            let file = self.lower.open(&server, OpenFlags::RDONLY)?;
            self.make(cx, session, &self.link_set(), &*file, (attr, Cause::Link), false)
        });
        match made {
            Err(errno) if self.may_skip(self.policy(cx, attr)?.as_ref(), Cause::Link, errno) => {
                tracing::warn!(%errno, "no room for the last version of the name {}", own.stem.escape_ascii());
                Ok(None)
            }
            made => made.map(Some),
        }
    }

    /// Returns the set of the inode.
    pub(crate) fn link_set(&self) -> Arc<Set> {
        self.core.set_of_link(&link_stem(&**self.lower))
    }

    /// Returns who changes the object.
    pub(crate) fn who(&self, cx: &Cx<'_>) -> Who {
        self.inode.delayed_by().unwrap_or_else(|| self.core.callers.who(cx))
    }

    /// Describes the version that ends now.
    fn describe(&self, cx: &Cx<'_>, index: &Index, attr: &Attr, cause: Cause, letter: Letter) -> Version {
        let (born, died) = interval(self.core, index, attr, self.core.now());
        Version {
            number: index.next(),
            letter,
            kind: attr.kind(),
            size: if attr.kind() == Kind::Directory { 0 } else { attr.size },
            mode: attr.perm(),
            uid: attr.uid,
            gid: attr.gid,
            mtime: attr.mtime,
            born,
            died,
            cause,
            who: self.who(cx),
            flags: Flags::default(),
        }
    }

    /// Records a version and makes its file by `make`. If that fails, the set is as before.
    pub(crate) fn record<T>(
        &self,
        cx: &Cx<'_>,
        locked: &mut Locked<'_>,
        attr: &Attr,
        (cause, letter): (Cause, Letter),
        make: impl Fn(&mut Locked<'_>, &Version) -> Result<T>,
    ) -> Result<(Version, T)> {
        let server = self.core.server(cx);
        belongs_to(attr.uid);
        locked.check_head(&server, &Stamp::of(attr))?;
        for attempt in 0..2 {
            let version = self.describe(cx, locked.index(), attr, cause, letter);
            locked.append(&server, &[Record::Made(version.clone())])?;
            let errno = match make(locked, &version) {
                Ok(made) => {
                    crate::audit::note(locked.set, version.number);
                    return Ok((version, made));
                }
                Err(errno) => errno,
            };
            if errno == Errno::EXIST && attempt == 0 {
                // A version that the index does not know, after a power failure.
                locked.rebuild_now(self.core, &server)?;
                continue;
            }
            if locked.append(&server, &[Record::Retracted(version.number)]).is_err() {
                locked.reload();
            }
            return Err(errno);
        }
        Err(Errno::IO)
    }

    /// Begins a version that has no block yet. What it lacks is in the head, whose blocks must be
    /// saved before they change.
    pub(crate) fn begin(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        set: &Arc<Set>,
        attr: &Attr,
        cause: Cause,
    ) -> Result<Made> {
        let server = self.core.server(cx);
        let mut locked = set.lock(self.core, &server)?;
        let xattrs = self.xattrs(&server)?;
        let (version, writer) = self.record(cx, &mut locked, attr, (cause, Letter::Sparse), |locked, version| {
            let (entry, file) = locked.create(&server, Letter::Sparse, version.number)?;
            let header = Header { version: version.clone(), xattrs: xattrs.clone() };
            let made = SparseWriter::begin(&server, file, attr.size, &header)
                .and_then(|writer| versionset::give(&server, &entry, attr.uid, attr.gid).map(|()| writer));
            locked.publish(&server, (Letter::Sparse, version.number, false), made)
        })?;
        locked.opened(version.number);
        self.made(cx, set, &mut locked, (attr, version.number));
        session.active = Some(Active { set: Arc::clone(set), number: version.number, writer });
        Ok(Made::new(set, &version, attr))
    }

    /// Makes a version that is an ordinary copy.
    pub(crate) fn copy(
        &self,
        cx: &Cx<'_>,
        set: &Arc<Set>,
        file: &dyn OpenFile,
        attr: &Attr,
        cause: Cause,
    ) -> Result<Made> {
        if attr.size > QUICK_COPY && !cx.may_block {
            return Err(MAY_BLOCK);
        }
        let server = self.core.server(cx);
        let mut locked = set.lock(self.core, &server)?;
        let xattrs = self.xattrs(&server)?;
        let bytes = attr.blocks.saturating_mul(512);
        wants(bytes);
        let (version, ()) = self.record(cx, &mut locked, attr, (cause, Letter::Full), |locked, version| {
            self.copy_aside(&server, locked, file, (attr, &xattrs), (version.number, false))
        })?;
        self.core.space.took(bytes);
        self.made(cx, set, &mut locked, (attr, version.number));
        Ok(Made::new(set, &version, attr))
    }

    /// Makes the file of a version, a copy of `file`.
    fn copy_aside(
        &self,
        server: &Cx<'_>,
        locked: &mut Locked<'_>,
        file: &dyn OpenFile,
        (attr, xattrs): (&Attr, &[Xattr]),
        (number, replaces): (u64, bool),
    ) -> Result<()> {
        let (entry, copy) = locked.create(server, Letter::Full, number)?;
        let made = copy_data(server, &*copy, file, attr.size)
            .and_then(|()| set_xattrs(server, &*entry.vnode, xattrs))
            .and_then(|()| self.copy_attributes(server, &entry, attr));
        locked.publish(server, (Letter::Full, number, replaces), made)
    }

    /// Gives the version that this removed file became a file of its own, before the removed file
    /// changes: a program that still has it open can do that.
    pub(crate) fn leave_version(&self, cx: &Cx<'_>) -> Result<()> {
        if self.lower.kind() != Kind::Regular {
            // Its content can't change. Opening it, to copy it, might wait for another program.
            return Ok(());
        }
        let mut burial = self.inode.burial();
        let Some(made) = &*burial else { return Ok(()) };
        cx.require_blocking()?;
        let server = self.core.server(cx);
        let mut locked = made.set.lock(self.core, &server)?;
        let file = made.letter.map(|letter| locked.file(&server, letter, made.number)).transpose()?.flatten();
        // It may be discarded.
        let is_there = file.is_some_and(|entry| entry.vnode.id() == self.lower.id());
        if is_there {
            let (attr, xattrs) = (self.lower.getattr(&server)?, self.xattrs(&server)?);
            let file = self.lower.open(&server, OpenFlags::RDONLY)?;
            self.copy_aside(&server, &mut locked, &*file, (&attr, &xattrs), (made.number, true))?;
        }
        drop(locked);
        *burial = None;
        Ok(())
    }

    /// Does what follows when a version was made: limits, and later its format.
    pub(crate) fn made(&self, cx: &Cx<'_>, set: &Arc<Set>, locked: &mut Locked<'_>, (attr, number): (&Attr, u64)) {
        self.core.background.made(set, number);
        let Some(letter) = locked.index().versions.get(&number).map(|version| version.letter) else { return };
        // The blocks of a sparse version are counted as they are saved.
        let bytes = if is_content(letter) && letter != Letter::Sparse { attr.blocks.saturating_mul(512) } else { 0 };
        self.core.space.grew(bytes.saturating_add(OVERHEAD), 1);
        // The name that goes has no say in what the inode keeps under the others.
        if locked.index().versions.get(&number).is_some_and(|version| version.cause == Cause::Link) {
            return;
        }
        if let Ok(Some(policy)) = self.policy(cx, attr) {
            self.core.retain(&self.core.server(cx), locked, &policy);
        }
    }

    /// Makes a version in the way that is cheapest now. A session that follows saves the blocks
    /// that it overwrites.
    pub(crate) fn make(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        set: &Arc<Set>,
        head: &dyn OpenFile,
        (attr, cause): (&Attr, Cause),
        changes_data: bool,
    ) -> Result<Made> {
        let policy = self.policy(cx, attr)?;
        self.look_for_mappings(cx, session)?;
        // No delta could be kept right.
        let unseen = self.is_written_unseen(session);
        let is_full = changes_data && policy.as_ref().is_some_and(|policy| policy.storage == Storage::Full);
        let made = if unseen || is_full {
            session.active = None;
            self.copy(cx, set, head, attr, cause)
        } else {
            self.begin(cx, session, set, attr, cause)
        };
        match made {
            // What the name that goes has had is recorded with its end.
            Err(errno) if cause != Cause::Link && self.may_skip(policy.as_ref(), cause, errno) => {
                let skipped = self.skip(&self.core.server(cx), set, attr, errno)?;
                let activated = self.activate(cx, session, set);
                if activated.is_err() {
                    self.take_back(cx, None, Some(skipped.clone()), Errno::CANCELED);
                }
                activated.map(|()| skipped)
            }
            made => made,
        }
    }

    /// Whether a name may leave this object without a version after its version failed with
    /// `errno`: the policy says so, and no older version lacks bytes that only the object has.
    pub(crate) fn may_lose(&self, cx: &Cx<'_>, attr: &Attr, errno: Errno) -> Result<bool> {
        let server = self.core.server(cx);
        if !self.may_skip(self.policy(cx, attr)?.as_ref(), Cause::Unlink, errno) {
            return Ok(false);
        }
        let Some(sets) = self.sets(&server, attr.nlink)? else { return Ok(true) };
        let may_lose = self.give_up(&server, &sets.keeps)?;
        if may_lose {
            tracing::warn!(%errno, "no room for a version of {}", sets.own.stem.escape_ascii());
        }
        Ok(may_lose)
    }

    /// Discards the versions that need bytes of this head, for which there is no room. Returns
    /// false if somebody protects one: then all stay, because an older one may need bytes of a
    /// newer one.
    pub(crate) fn give_up(&self, server: &Cx<'_>, set: &Arc<Set>) -> Result<bool> {
        let tags = crate::tags::times(self.core, server)?;
        let mut locked = set.lock(self.core, server)?;
        if locked.dependent().is_none() {
            return Ok(true);
        }
        let newest_first = locked.index().versions.values().rev();
        let mut needy: Vec<_> = newest_first.take_while(|version| version.letter.depends_on_newer()).collect();
        let is_protected = |version: &&Version| {
            let info = info(set, version, 0, &tags);
            info.pinned || info.tagged || info.landmark
        };
        if !loses_version() || needy.iter().any(is_protected) {
            return Ok(false);
        }
        // No version needs bytes of the oldest, whatever fails or is killed then.
        needy.reverse();
        let needy: Vec<_> = needy.iter().map(|version| (version.number, version.letter)).collect();
        for (number, letter) in needy {
            locked.discard_tail(server, number, letter)?;
        }
        Ok(true)
    }

    /// Records that a change is about to be made without a version: what the head is afterwards, it
    /// was not before. The missing version takes a number, so that no later one counts as the first
    /// of the head. After a kill before the change, nothing is known of the head until then.
    pub(crate) fn skip(&self, server: &Cx<'_>, set: &Arc<Set>, attr: &Attr, errno: Errno) -> Result<Made> {
        tracing::warn!(%errno, "no room for a version of {}", set.stem.escape_ascii());
        let mut locked = set.lock(self.core, server)?;
        let (number, end) = (locked.index().next(), locked.time_of_change(self.core.now()));
        let (born, _) = interval(self.core, locked.index(), attr, end);
        let gone = Record::Gone(Gap { born, died: end, cause: Cause::Write, who: Who::default() });
        locked.append_after(server, &[gone, Record::Ended(end), Record::Next(number.saturating_add(1))])?;
        Ok(Made { set: Arc::clone(set), number, letter: None, before: Stamp::of(attr) })
    }

    /// Sees to it that the record of a name that goes or comes has room, before that: afterwards it
    /// would be too late to make some.
    pub(crate) fn reserve_record(&self, cx: &Cx<'_>, set: &Set, attr: &Attr) -> Result<()> {
        if !self.core.space.is_tight() {
            return Ok(());
        }
        let server = self.core.server(cx);
        let reserved = set.lock(self.core, &server)?.reserve(&server, RECORDS);
        match reserved {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) if self.may_go_unrecorded(cx, attr, errno)? => Ok(()),
            reserved => reserved,
        }
    }

    /// Whether a name goes or comes although the record of that has no room yet.
    fn may_go_unrecorded(&self, cx: &Cx<'_>, attr: &Attr, errno: Errno) -> Result<bool> {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT) && !is_last_try() {
            return Ok(false);
        }
        let policy = self.policy(cx, attr)?;
        let keeps_none = policy.as_ref().is_some_and(|policy| policy.versions == Versions::None);
        Ok(keeps_none || self.may_skip(policy.as_ref(), Cause::Unlink, errno))
    }

    /// Whether a change is made although its version could not be. What takes no space natively is
    /// possible on any full disk, once the history has given way.
    pub(crate) fn may_skip(&self, policy: Option<&Effective>, cause: Cause, errno: Errno) -> bool {
        let skips = policy.is_some_and(|policy| policy.nospace == NoSpace::Skip);
        let adds = matches!(cause, Cause::Write | Cause::Fallocate);
        match errno {
            Errno::NOSPC | Errno::DQUOT => is_last_try() && (skips || (loses_version() && !adds)),
            _ => false,
        }
    }

    /// Opens the newest version for saving blocks, if it depends on the head.
    pub(crate) fn activate(&self, cx: &Cx<'_>, session: &mut Session, set: &Arc<Set>) -> Result<()> {
        let server = self.core.server(cx);
        let mut locked = set.lock(self.core, &server)?;
        let Some((number, Letter::Sparse)) = locked.dependent() else {
            session.active = None;
            return Ok(());
        };
        if session.active.as_ref().is_some_and(|active| active.number == number && Arc::ptr_eq(&active.set, set)) {
            return Ok(());
        }
        let head = Stamp::of(&self.lower.getattr(&server)?);
        let writer = locked.activate(&server, number, &head)?;
        session.active = writer.map(|writer| Active { set: Arc::clone(set), number, writer });
        Ok(())
    }

    /// Whether programs may write to the head without the layer: the kernel does the I/O of the one
    /// that created the file, and mappings of the host file outlive their open files. Then no
    /// version may depend on the head.
    pub(crate) fn is_written_unseen(&self, session: &Session) -> bool {
        session.is_direct() || self.inode.may_be_mapped()
    }

    /// Finds out whether programs still have the host file mapped for writing. While the file is
    /// open for writing, that can't be told.
    pub(crate) fn look_for_mappings(&self, cx: &Cx<'_>, session: &Session) -> Result<()> {
        if !self.inode.may_be_mapped() || session.writers > 0 || session.is_direct() {
            return Ok(());
        }
        let file = self.lower.open(&self.core.server(cx), OpenFlags::RDONLY)?;
        let upcalls = self.core.upcalls.get();
        let is_unused = |backing: Backing<'_>| upcalls.is_some_and(|it| it.is_host_file_unused(backing.file, true));
        if file.backing().is_none_or(is_unused) {
            self.inode.is_unmapped();
        }
        Ok(())
    }

    /// Prepares for a change of the head's modification time, by which the newest version
    /// recognises the head.
    pub(crate) fn before_touch(&self, cx: &Cx<'_>, session: &mut Session, nlink: u32) -> Result<()> {
        if session.active.is_some() || self.lower.kind() != Kind::Regular {
            return Ok(());
        }
        let Some(sets) = self.sets(cx, nlink)? else { return Ok(()) };
        if sets.keeps.lock(self.core, cx)?.dependent().is_none() {
            return Ok(());
        }
        cx.require_blocking()?;
        self.activate(cx, session, &sets.keeps)
    }

    /// Closes the newest version after a change, unless a program goes on writing to the head.
    pub(crate) fn after_change(&self, cx: &Cx<'_>, session: &mut Session) {
        if session.writers == 0 {
            self.seal(cx, session);
        }
    }

    /// Closes the newest version. From now on it takes bytes only from the head as it is now.
    pub(crate) fn seal(&self, cx: &Cx<'_>, session: &mut Session) {
        let Some(mut active) = session.active.take().filter(|_| !session.is_direct()) else { return };
        let server = self.core.server(cx);
        let sealed = self.lower.getattr(&server).and_then(|attr| {
            let seal = Seal::Sealed(Stamp::of(&attr));
            active.writer.set_seal(&server, seal).map(|()| seal)
        });
        match sealed {
            Ok(seal) => active.set.note_seal(active.number, seal),
            // It is as after a kill.
            Err(errno) => tracing::debug!(%errno, "can't seal a version of {}", active.set.stem.escape_ascii()),
        }
    }

    /// Returns the extended attributes that a version keeps.
    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<Xattr>> {
        xattrs_of(cx, &**self.lower)
    }

    /// Gives a copy the attributes of the head.
    fn copy_attributes(&self, cx: &Cx<'_>, entry: &Entry, attr: &Attr) -> Result<()> {
        versionset::give(cx, entry, attr.uid, attr.gid)?;
        let set = SetAttr {
            mode: Some(attr.perm()),
            atime: Some(SetTime::At(attr.atime)),
            mtime: Some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        entry.vnode.setattr(cx, &set, None).map(|_| ())
    }
}

/// Returns when the head that ends `now` began, and when it ends: after all earlier versions, even
/// if the clock was set back.
pub(crate) fn interval(core: &Core, index: &Index, attr: &Attr, now: Time) -> (Time, Time) {
    let birth = core.birth(attr);
    let named = index.birth.as_ref().map(|birth| birth.time);
    let newest = index.newest();
    let since = index.last_end.max(index.links.last().and_then(|period| period.until));
    let born = match (newest, since) {
        (Some(newest), Some(since)) if newest.died == since && is_of_head(index, newest) => since,
        (_, Some(since)) => named.or(birth).unwrap_or(since).max(since),
        // If its time of birth lies in the future, the clock was set back.
        (_, None) => named.or(birth).unwrap_or(attr.mtime).min(now),
    };
    (born, now.max(just_after(born)))
}

/// Whether the newest version of a name is one of its present head.
pub(crate) fn is_of_head(index: &Index, newest: &Version) -> bool {
    let is_left = index.links.last().is_some_and(|period| match (period.departure, period.until) {
        (Some(departure), _) => newest.number <= departure.last,
        (None, until) => until.is_some_and(|until| newest.died <= until),
    });
    let is_older = index.birth.as_ref().is_some_and(|birth| newest.number < birth.first);
    !newest.cause.ends_head() && !is_left && !is_older
}

/// Copies the bytes of a file: shares them where the file system can. Zeros of a file with holes
/// become holes: not every file system below tells of bytes that are in its cache only.
pub(crate) fn copy_data(cx: &Cx<'_>, to: &dyn OpenFile, from: &dyn OpenFile, size: u64) -> Result<()> {
    if size == 0 || to.reflink_from(cx, from).is_ok() {
        return Ok(());
    }
    let mut done = 0;
    let has_holes = next_hole(cx, from, 0..size)? < size;
    while done < size && !has_holes {
        match to.copy_from(cx, done, from, done, size - done) {
            Ok(0) | Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => break,
            Ok(copied) => done += copied,
            Err(errno) => return Err(errno),
        }
    }
    let mut buffer = vec![0; if done < size { CHUNK } else { 0 }];
    while done < size {
        let part = versionset::clamp(&mut buffer, done, size);
        let read = versionset::read_full(cx, from, part, done)?;
        if read == 0 {
            return Err(Errno::IO);
        }
        let (bytes, end) = (part.get(..read).unwrap_or_default(), done + read as u64);
        if !has_holes || !is_zero(bytes) {
            versionset::write_full(cx, to, bytes, done)?;
        } else if end == size {
            // The last byte says how long the file is.
            versionset::write_full(cx, to, &[0], size - 1)?;
        }
        done = end;
    }
    Ok(())
}

/// Returns the extended attributes that the server may read.
pub(crate) fn xattrs_of(cx: &Cx<'_>, vnode: &dyn Vnode) -> Result<Vec<Xattr>> {
    let names = match read_value(|out| vnode.listxattr(cx, out)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let mut all = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match read_value(|out| vnode.getxattr(cx, name, out)) {
            Ok(value) => all.push((name.to_vec(), value)),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(all)
}

/// Sets extended attributes; those that the server may not set are left out.
pub(crate) fn set_xattrs(cx: &Cx<'_>, vnode: &dyn Vnode, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
    for (name, value) in xattrs {
        match vnode.setxattr(cx, name, value, XattrFlags::default()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Gives an ordinary file the attributes of the version that it is.
pub(crate) fn dress(server: &Cx<'_>, file: &Entry, version: &Version, xattrs: &[Xattr]) -> Result<()> {
    set_xattrs(server, &*file.vnode, xattrs)?;
    versionset::give(server, file, version.uid, version.gid)?;
    let mtime = Some(SetTime::At(version.mtime));
    let set = SetAttr { mode: Some(version.mode), mtime, ..SetAttr::default() };
    file.vnode.setattr(server, &set, None).map(drop)
}
