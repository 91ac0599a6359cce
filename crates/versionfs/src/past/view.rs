//! The directory `.versions` of a directory: subdirectories named by times and tags, each the
//! directory as it was then.

use crate::core::Core;
use crate::history::At;
use crate::past::{Listing, PastDir, PastKey};
use crate::sets_of_dir::names_in;
use crate::{tags, when};
use core::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, Result, Vnode, forward,
    refuse,
};

/// The name of the directory.
pub(crate) const VIEW: &[u8] = b".versions";

/// Times that are listed: the newest.
const LISTED: usize = 1000;

/// The directory `.versions` of a lower directory.
#[derive(Debug)]
pub(crate) struct View {
    id: u64,
    core: Arc<Core>,
    lower: Arc<dyn Vnode>,
    listing: Listing<Vec<(u64, u64, Vec<u8>)>>,
}

impl View {
    /// Returns the directory `.versions` of `lower`.
    pub(crate) fn of(core: &Arc<Core>, lower: &Arc<dyn Vnode>) -> Arc<dyn Vnode> {
        let key = PastKey::View { dir: lower.id(), generation: lower.generation() };
        core.past.get(&key, |id| {
            let (core, lower) = (Arc::clone(core), Arc::clone(lower));
            Arc::new(Self { id, core, lower, listing: Listing::default() })
        })
    }

    /// Returns the number of the directory that this one is in.
    pub(crate) fn directory(&self) -> u64 {
        self.lower.id()
    }

    /// Returns the names of the subdirectories: tags, and the times at which something changed
    /// here.
    fn entries(&self, cx: &Cx<'_>) -> Result<BTreeSet<Vec<u8>>> {
        let mut times = BTreeSet::new();
        for name in names_in(&self.core, cx, &self.lower)? {
            cx.check()?;
            let history = At::new(&self.lower, &name).history(&self.core, cx)?;
            let of_versions = history.versions.iter().flat_map(|seen| [seen.version.born, seen.version.died]);
            // How old a directory of a copy is, nothing tells.
            let since = history.head_since().filter(|since| since.sec > 0);
            times.extend(of_versions.chain(since));
            while times.len() > LISTED * 2 {
                times.pop_first();
            }
        }
        // In the order of the times; a time with another number of digits is not listed.
        let mut entries: BTreeSet<Vec<u8>> = BTreeSet::new();
        for text in times.into_iter().rev().filter_map(when::gmt) {
            if entries.len() >= LISTED {
                break;
            }
            entries.insert(text.into_bytes());
        }
        entries.extend(tags::read(&self.core, cx)?.into_keys());
        Ok(entries)
    }

    /// Returns the subdirectories in the order of a listing: cookie, number and name.
    fn positions(&self, cx: &Cx<'_>) -> Result<Vec<(u64, u64, Vec<u8>)>> {
        let mut entries = Vec::new();
        for name in self.entries(cx)? {
            let Some(moment) = tags::moment(&self.core, cx, &name)? else { continue };
            let ino = self.core.past.number(&PastKey::tree(&*self.lower, moment));
            let position = self.core.past.cookie(&PastKey::Entry { parent: self.id, name: name.clone().into() });
            entries.push((position, ino, name));
        }
        entries.sort();
        Ok(entries)
    }
}

impl Vnode for View {
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
        Ok(Attr { ino: self.id, nlink: 1, ..self.lower.getattr(&self.core.server(cx))? })
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        cx.require_blocking()?;
        let Some(moment) = tags::moment(&self.core, cx, name.as_bytes())? else { return Ok(None) };
        let vnode = PastDir::at(&self.core, &self.lower, moment);
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
        let entries = self.listing.get(cookie, || self.positions(cx))?;
        let from = entries.partition_point(|(position, ..)| *position <= cookie);
        for (position, ino, name) in entries.get(from..).unwrap_or_default() {
            let listed = DirEntry { cookie: *position, ino: *ino, kind: Kind::Directory, name: Name::new(name)? };
            if !sink(&listed) {
                return Ok(());
            }
        }
        self.listing.end();
        Ok(())
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        None
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        false
    }

    fn open(&self, _cx: &Cx<'_>, _flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        Err(Errno::ISDIR)
    }

    fn getxattr(&self, _cx: &Cx<'_>, _name: &[u8], _out: &mut [u8]) -> Result<usize> {
        Err(Errno::NODATA)
    }

    fn listxattr(&self, _cx: &Cx<'_>, _out: &mut [u8]) -> Result<usize> {
        Ok(0)
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

    fn control(&self, cx: &Cx<'_>, command: &str, _input: &[u8]) -> Result<Vec<u8>> {
        crate::commands::not_a_directory(cx, command)
    }
}
