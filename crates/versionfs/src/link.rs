//! Hard links: the versions of a file with several names belong to its inode.

use crate::node::{VersionVnode, is_reserved};
use crate::set::link_stem;
use crate::space::of_data;
use std::sync::Arc;
use versionset::{Birth, Cause, Record};
use vnode::{Cx, Entry, Errno, Kind, Name, Result, Time, Vnode};

impl VersionVnode {
    /// Adds a name to a file.
    pub(crate) fn add_name(&self, cx: &Cx<'_>, name: Name<'_>, target: &Self) -> Result<Entry> {
        if is_reserved(name) {
            return Err(Errno::INVAL);
        }
        if target.lower.kind() != Kind::Regular {
            let entry = of_data(self.lower.link(cx, name, &target.lower))?;
            self.begin(cx, name);
            return Ok(self.wrap_new(name, entry));
        }
        if target.inode.is_buried() {
            return Err(Errno::NOENT);
        }
        cx.require_blocking()?;
        if self.lower.lookup(cx, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let mut session = target.inode.session(cx)?;
        if target.inode.is_buried() {
            // Its last name went meanwhile.
            return Err(Errno::NOENT);
        }
        target.inode.set_has_no_link_set(false);
        target.end_delay(cx, &mut session)?;
        if target.lower.getattr(cx)?.nlink > 1 {
            target.head().sets(cx, 2)?;
        }
        let before = target.lower.getattr(cx)?;
        let server = self.core.server(cx);
        let first = if before.nlink == 1 { target.head().place(cx)? } else { None };
        if let Some(place) = &first {
            let own = self.core.set_of_name(&place.dir, &place.name);
            let locked = own.lock(&self.core, &server)?;
            if !locked.is_linked(&link_stem(&*target.lower)) {
                // If the link fails, the set has one version more, of the content that it had.
                target.head().close(cx, locked, &own, Cause::Link)?;
                session.active = None;
            }
        }
        if before.nlink > 0 {
            if let Some(place) = &first {
                target.join(cx, &place.dir, &place.name, false)?;
            }
            let joined = target.join(cx, &self.lower, name.as_bytes(), true);
            joined.inspect_err(|_| target.unjoin(cx, &self.lower, name))?;
        }
        let linked = of_data(self.lower.link(cx, name, &target.lower));
        let entry = linked.inspect_err(|_| target.unjoin(cx, &self.lower, name))?;
        drop(session);
        Ok(self.wrap_new(name, entry))
    }

    /// Records that a name began: what it has is older. The name is there, so this does not fail.
    fn begin(&self, cx: &Cx<'_>, name: Name<'_>) {
        let (server, own) = (self.core.server(cx), self.core.set_of_name(&self.lower, name.as_bytes()));
        let recorded = own.lock(&self.core, &server).and_then(|mut locked| {
            let (time, first) = (locked.time_of_change(self.core.now()), locked.index().next());
            let who = self.core.callers.who(cx);
            locked.append_after(&server, &[Record::Born(Birth { time, cause: Cause::Link, who, from: None, first })])
        });
        if let Err(errno) = recorded {
            tracing::warn!(%errno, "can't record since when there is {name}");
        }
    }

    /// Undoes [`Self::join`] for a name that did not come to be. The first name stays in the set of
    /// the inode, which goes on.
    fn unjoin(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) {
        let server = self.core.server(cx);
        let own = self.core.set_of_name(dir, name.as_bytes());
        let ended = own.lock(&self.core, &server).and_then(|mut locked| {
            if !locked.is_linked(&link_stem(&*self.lower)) {
                return Ok(());
            }
            let (first, next) = (locked.index().links.last().map_or(0, |period| period.first), locked.index().next());
            let mut ended = vec![Record::Unlinked(locked.time_of_change(self.core.now()), None)];
            // The name's own versions come after those that it could have of the inode.
            ended.extend((first > next).then_some(Record::Next(first)));
            locked.append_after(&server, &ended)
        });
        if let Err(errno) = ended {
            tracing::warn!(%errno, "can't record that there is no link {name}");
        }
    }

    /// Records that a name belongs to an inode with several names, and numbers the inode's versions
    /// after those of the name. The record comes before the name: a file that has one name left
    /// finds its versions by it.
    fn join(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8], is_new: bool) -> Result<()> {
        let server = self.core.server(cx);
        let own = self.core.set_of_name(dir, name);
        let mut locked = own.lock(&self.core, &server)?;
        let next = locked.index().next();
        let first = self.head().number_link_from(&server, next)?;
        let stem = link_stem(&*self.lower);
        if is_new {
            let time = locked.time_of_change(self.core.now());
            // Before the birth: the end of an earlier period ends the head before.
            let mut records = locked.joining(time, &stem, first);
            let who = self.core.callers.who(cx);
            records.push(Record::Born(Birth { time, cause: Cause::Link, who, from: None, first }));
            locked.append(&server, &records)?;
        } else if !locked.is_linked(&stem) {
            // The first name has been the file's since before it got a second one.
            let attr = self.lower.getattr(&server)?;
            let born = crate::head::interval(&self.core, locked.index(), &attr, self.core.now()).0;
            let records = locked.joining(born, &stem, next);
            let index = locked.index();
            let is_older = |end: &Time| index.birth.as_ref().is_none_or(|birth| birth.time < *end);
            if let Some(end) = index.last_end.filter(is_older) {
                // The inode has had its content since then, not since it was created.
                self.head().link_set().lock(&self.core, &server)?.append(&server, &[Record::Ended(end)])?;
            }
            locked.append(&server, &records)?;
        }
        Ok(())
    }
}
