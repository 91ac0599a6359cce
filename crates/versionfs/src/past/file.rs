//! Past files.

use crate::core::Core;
use crate::head::{Xattr, xattrs_of};
use crate::history::Seen;
use crate::past::Body;
use crate::set::Reader;
use core::any::Any;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use versionset::{Letter, is_own_attribute};
use vnode::{
    Attr, Backing, Cx, DirEntry, Entry, Errno, HostReader, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags,
    Result, StatFs, Vnode, Whence, copy_value, refuse,
};

/// A file as it was.
#[derive(Debug)]
pub(crate) struct PastFile {
    id: u64,
    core: Arc<Core>,
    body: Body,
    /// The open file that the kernel may read directly. All open files share one, because the
    /// kernel reads an inode in one way only.
    plain: Mutex<Weak<Open>>,
}

/// An open past file.
#[derive(Debug)]
struct Open {
    core: Arc<Core>,
    body: Body,
    /// The file that contains the bytes as they are.
    plain: Option<Arc<dyn OpenFile>>,
    _reader: Option<Reader>,
}

/// A descriptor of an open past file.
#[derive(Debug)]
pub(crate) struct Opened(Arc<Open>);

impl Opened {
    /// Returns the file that contains the bytes as they are, if there is one.
    pub(crate) fn plain(&self) -> Option<&dyn OpenFile> {
        self.0.plain.as_deref()
    }
}

impl PastFile {
    pub(crate) fn new(core: &Arc<Core>, id: u64, body: Body) -> Self {
        Self { id, core: Arc::clone(core), body, plain: Mutex::default() }
    }

    /// Returns the extended attributes: name and value.
    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<Xattr>> {
        let server = self.core.server(cx);
        let mut xattrs = match self.body.now(&self.core, cx)? {
            Body::Head { lower, .. } => xattrs_of(&server, &*lower)?,
            Body::Raw { seen, .. } => {
                // The ACL decides who may read it: without it, the mode would let the group.
                let mut xattrs = stored_xattrs(&self.core, &server, &seen)?;
                xattrs.retain(|(name, _)| name == ACL);
                xattrs
            }
            Body::Version(seen) => stored_xattrs(&self.core, &server, &seen)?,
        };
        xattrs.retain(|(name, _)| !is_own_attribute(name));
        Ok(xattrs)
    }
}

/// The extended attribute with the access control list.
const ACL: &[u8] = b"system.posix_acl_access";

/// Returns the extended attributes that a version has, without those that give privileges if
/// another user may have made it.
pub(crate) fn stored_xattrs(core: &Core, cx: &Cx<'_>, seen: &Seen) -> Result<Vec<Xattr>> {
    let locked = seen.set.lock(core, cx)?;
    let version = seen.find(&locked).ok_or(Errno::STALE)?;
    let mut xattrs = if version.letter == Letter::Full {
        let entry = locked.file(cx, version.letter, version.number)?.ok_or(Errno::IO)?;
        xattrs_of(cx, &*entry.vnode)?
    } else {
        let stored = locked.files(cx, None)?.header(cx, version.letter, version.number)?;
        stored.map(|stored| stored.header.xattrs).unwrap_or_default()
    };
    if locked.is_forgeable() {
        xattrs.retain(|(name, _)| !name.starts_with(b"security.") && !name.starts_with(b"trusted."));
    }
    Ok(xattrs)
}

/// Returns the names of extended attributes as listxattr(2) does.
pub(crate) fn list_names(xattrs: &[Xattr], out: &mut [u8]) -> Result<usize> {
    let names: Vec<u8> = xattrs.iter().flat_map(|(name, _)| name.iter().copied().chain([0])).collect();
    copy_value(&names, out)
}

impl Vnode for PastFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    refuse!(Errno::ROFS => setattr, create, tmpfile, mknod, mkdir, symlink, link, unlink, rmdir, rename, setxattr,
        removexattr);

    fn id(&self) -> u64 {
        self.id
    }

    fn generation(&self) -> u32 {
        0
    }

    fn kind(&self) -> Kind {
        Kind::Regular
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        // Commands change the owner and mode of versions, which the kernel does not see.
        cx.limit_attr_lifetime(core::time::Duration::ZERO);
        Ok(Attr { ino: self.id, ..self.body.attr(&self.core, cx)? })
    }

    fn lookup(&self, _cx: &Cx<'_>, _name: Name<'_>) -> Result<Option<Entry>> {
        Err(Errno::NOTDIR)
    }

    fn names(&self, _cx: &Cx<'_>, _sink: NameSink<'_>) -> Result<()> {
        Ok(())
    }

    fn readlink(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn readdir(&self, _cx: &Cx<'_>, _cookie: u64, _sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        Err(Errno::NOTDIR)
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        Some(0)
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        true
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if flags.writes() || flags.truncates() {
            return Err(Errno::ROFS);
        }
        cx.require_blocking()?;
        if let Some(open) = self.plain.lock().upgrade() {
            return Ok(Arc::new(Opened(open)));
        }
        let reader = match self.body.now(&self.core, cx)? {
            Body::Version(seen) => Some(Reader::new(&seen.set, seen.version.number)),
            Body::Head { .. } | Body::Raw { .. } => None,
        };
        let plain = self.body.open_plain(&self.core, cx)?;
        let body = self.body.clone();
        let open = Arc::new(Open { core: Arc::clone(&self.core), body, plain, _reader: reader });
        // A version that can't be reconstructed fails here, and not with a mapping's SIGBUS.
        if open.plain.is_none() {
            open.body.with(&self.core, cx, |_, _| Ok(()))?;
        }
        let mut shared = self.plain.lock();
        let open = shared.upgrade().unwrap_or(open);
        *shared = Arc::downgrade(&open);
        Ok(Arc::new(Opened(open)))
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let xattrs = self.xattrs(cx)?;
        let (_, value) = xattrs.iter().find(|(known, _)| known == name).ok_or(Errno::NODATA)?;
        copy_value(value, out)
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        list_names(&self.xattrs(cx)?, out)
    }

    fn refused(&self, _cx: &Cx<'_>, _mask: u32) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.core.root().statfs(cx)
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

impl OpenFile for Opened {
    fn as_any(&self) -> &dyn Any {
        self
    }

    refuse!(Errno::ROFS => fallocate, copy_from, reflink_from);

    fn backing(&self) -> Option<Backing<'_>> {
        self.0.plain.as_ref()?.backing()
    }

    fn closes_quickly(&self) -> bool {
        self.backing().is_some()
    }

    fn bind(&self) {
        if let Some(plain) = &self.0.plain {
            plain.bind();
        }
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        match &self.0.plain {
            Some(plain) => plain.read(cx, out, offset),
            None => self.0.body.with(&self.0.core, cx, |cx, content| content.read_at(cx, out, offset)),
        }
    }

    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>> {
        match &self.0.plain {
            Some(plain) => plain.read_host(cx, take),
            None => Ok(None),
        }
    }

    fn write(&self, _cx: &Cx<'_>, _data: &[u8], _offset: u64) -> Result<usize> {
        Err(Errno::BADF)
    }

    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        if let Some(plain) = &self.0.plain {
            return plain.seek(cx, offset, whence);
        }
        let size = self.0.body.with(&self.0.core, cx, |_, content| Ok(content.size()))?;
        match whence {
            _ if offset >= size => Err(Errno::NXIO),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(size),
        }
    }
}
