//! Directories as they were at a time: exactly the names that existed then.

use crate::core::Core;
use crate::history::At;
use crate::node::is_reserved;
use crate::past::{Listing, PastKey, Target};
use crate::sets_of_dir::names_in;
use core::any::Any;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, Result, Time, Vnode,
    copy_value, forward, read_value, refuse,
};

/// A time after all others: shows a removed directory as it was when it was removed.
pub(crate) const END: Time = Time { sec: i64::MAX, nsec: 0 };

/// A lower directory, as it was at a time.
#[derive(Debug)]
pub(crate) struct PastDir {
    pub(crate) id: u64,
    pub(crate) core: Arc<Core>,
    pub(crate) lower: Arc<dyn Vnode>,
    pub(crate) time: Time,
    pub(crate) listing: Listing<Entries>,
}

/// Entries by cookie and name: number and kind.
pub(crate) type Entries = BTreeMap<(u64, Vec<u8>), (u64, Kind)>;

impl PastDir {
    /// Returns a directory as it was at a time.
    pub(crate) fn at(core: &Arc<Core>, lower: &Arc<dyn Vnode>, time: Time) -> Arc<dyn Vnode> {
        core.past.get(&PastKey::tree(&**lower, time), |id| {
            let (core, lower) = (Arc::clone(core), Arc::clone(lower));
            Arc::new(Self { id, core, lower, time, listing: Listing::default() })
        })
    }

    /// Fails with `EACCES` if the administrator does not let the caller read old versions: the root
    /// of a mount of the past is reached without a command or `.versions`.
    fn check_access(&self, cx: &Cx<'_>) -> Result<()> {
        if self.core.policies.hides_from_someone() {
            // Others must not find the name in the kernel's cache.
            cx.limit_name_lifetime(Duration::ZERO);
        }
        if self.core.may_read_versions(cx) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether what the directory shows may still change without a command: a name in `.versions`
    /// is a full second, which is rounded up.
    pub(crate) fn is_in_future(&self) -> bool {
        self.time != END && self.time >= self.core.now()
    }

    /// Returns the entries by cookie: number, kind and name. The cookie depends on the name only.
    fn entries(&self, cx: &Cx<'_>) -> Result<Entries> {
        let mut entries = BTreeMap::new();
        for name in names_in(&self.core, cx, &self.lower)? {
            cx.check()?;
            let history = At::new(&self.lower, &name).history(&self.core, cx)?;
            let Some(moment) = history.at(self.time) else { continue };
            let Some(kind) = history.kind(&moment) else { continue };
            let number = self.core.past.number(&PastKey::entry(self, &name, &history, &moment));
            let cookie = self.core.past.cookie(&PastKey::Entry { parent: self.id, name: (*name).into() });
            entries.insert((cookie, name), (number, kind));
        }
        Ok(entries)
    }
}

impl Vnode for PastDir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: statfs);

    refuse!(Errno::ROFS => setattr, create, tmpfile, mknod, mkdir, symlink, link, unlink, rmdir, rename, setxattr,
        removexattr);

    fn id(&self) -> u64 {
        self.id
    }

    fn generation(&self) -> u32 {
        0
    }

    fn kind(&self) -> Kind {
        Kind::Directory
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        if self.is_in_future() {
            cx.limit_attr_lifetime(Duration::ZERO);
        }
        // A count of 1 means that the subdirectories are not counted.
        Ok(Attr { ino: self.id, nlink: 1, ..self.lower.getattr(&self.core.server(cx))? })
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        cx.require_blocking()?;
        self.check_access(cx)?;
        if is_reserved(name) {
            return Ok(None);
        }
        if let Some(vnode) = self.core.tokens.find(self.id, name.as_bytes()) {
            cx.limit_name_lifetime(Duration::ZERO);
            let attr = vnode.getattr(cx)?;
            return Ok(Some(Entry { vnode, attr }));
        }
        if self.is_in_future() {
            cx.limit_name_lifetime(Duration::ZERO);
        }
        let at = At::new(&self.lower, name.as_bytes());
        let history = at.history(&self.core, cx)?;
        let Some(moment) = history.at(self.time) else { return Ok(None) };
        let key = PastKey::entry(self, name.as_bytes(), &history, &moment);
        let target = Target::of(&self.core, cx, &at, history, moment)?;
        let vnode = self.core.past.get(&key, |id| target.into_vnode(&self.core, id, self.time));
        let attr = vnode.getattr(cx)?;
        Ok(Some(Entry { vnode, attr }))
    }

    fn names(&self, _cx: &Cx<'_>, _sink: NameSink<'_>) -> Result<()> {
        Ok(())
    }

    fn readlink(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        cx.require_blocking()?;
        self.check_access(cx)?;
        let entries = self.listing.get(cookie, || self.entries(cx))?;
        for ((position, name), &(ino, kind)) in entries.range((cookie.saturating_add(1), Vec::new())..) {
            if !sink(&DirEntry { cookie: *position, ino, kind, name: Name::new(name)? }) {
                return Ok(());
            }
        }
        self.listing.end();
        Ok(())
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        // No stamp is like the one before.
        Some(if self.is_in_future() { self.core.stamps.fetch_add(1, Ordering::Relaxed) } else { 0 })
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        // Tokens are not listed.
        false
    }

    fn open(&self, _cx: &Cx<'_>, _flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        Err(Errno::ISDIR)
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let server = self.core.server(cx);
        let value = read_value(|out| self.lower.getxattr(&server, name, out))?;
        copy_value(&value, out)
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.lower.listxattr(&self.core.server(cx), out)
    }

    fn refused(&self, _cx: &Cx<'_>, _mask: u32) -> Result<()> {
        Ok(())
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn ioctl(&self, _cx: &Cx<'_>, _cmd: u32, _input: &[u8], _out: &mut [u8]) -> Result<IoctlReply> {
        Err(Errno::NOTTY)
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        let place = crate::commands::Place { core: &self.core, lower: &self.lower, id: self.id };
        place.run(cx, command, input).unwrap_or(Err(Errno::NOTTY))
    }
}
