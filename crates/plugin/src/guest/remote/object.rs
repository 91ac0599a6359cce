//! Operations on objects of the layer below.

use super::file::RemoteFile;
use super::{Created, Remote};
use crate::abi::{self, Bytes};
use crate::convert::{attr_in, caller_out, kind_in, set_out, slice};
use crate::guest::server::{UNSUPPORTED, done, errno, guard, length, server};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, Vnode, XattrFlags,
    refuse,
};

/// A listing's receiver, passed through the server.
struct Sink<'a, 'b> {
    sink: &'a mut (dyn FnMut(&DirEntry<'_>) -> bool + 'b),
    failed: Result<()>,
}

unsafe extern "C" fn each(arg: *mut c_void, entry: *const abi::DirEntry) -> c_int {
    // SAFETY: `arg` is the sink that `readdir` below passed, and the entry is the server's.
    let (sink, entry, name) = unsafe {
        let (Some(sink), Some(entry)) = (arg.cast::<Sink<'_, '_>>().as_mut(), entry.as_ref()) else { return 1 };
        (sink, entry, slice(entry.name))
    };
    let taken = guard(|| {
        let name = Name::new(name)?;
        Ok((sink.sink)(&DirEntry { cookie: entry.cookie, ino: entry.id, kind: kind_in(entry.kind), name }))
    });
    match taken {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(errno) => {
            sink.failed = Err(errno);
            1
        }
    }
}

// SAFETY of all calls below: the object, the caller, names and result buffers outlive the call.
impl Vnode for Remote {
    refuse!(UNSUPPORTED => names, refused, statfs, ioctl, control);

    fn generation(&self) -> u32 {
        0
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        false
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.object.id
    }

    fn kind(&self) -> Kind {
        kind_in(self.object.kind)
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        let getattr = server()?.host.getattr.ok_or(UNSUPPORTED)?;
        let (caller, mut attr) = (caller_out(cx), abi::Attr::default());
        // SAFETY: see above.
        done(unsafe { getattr(self.at, &raw const caller, &raw mut attr) })?;
        attr_in(&attr).ok_or(Errno::IO)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, _file: Option<&dyn OpenFile>) -> Result<Attr> {
        let setattr = server()?.lower.setattr.ok_or(UNSUPPORTED)?;
        let (caller, set, mut attr) = (caller_out(cx), set_out(set), abi::Attr::default());
        // SAFETY: see above.
        done(unsafe { setattr(self.at, &raw const caller, &raw const set, &raw mut attr) })?;
        attr_in(&attr).ok_or(Errno::IO)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let lookup = server()?.lower.lookup.ok_or(UNSUPPORTED)?;
        let (caller, mut found) = (caller_out(cx), Created::new());
        let (name, object, attr) = (Bytes::of(name.as_bytes()), &raw mut found.object, &raw mut found.attr);
        // SAFETY: see above.
        match unsafe { lookup(self.at, &raw const caller, name, object, attr) } {
            0 => Ok(None),
            // SAFETY: the server reported that it filled it.
            1 => unsafe { found.entry() }.map(Some),
            code => Err(errno(code.into())),
        }
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let readlink = server()?.lower.readlink.ok_or(UNSUPPORTED)?;
        let caller = caller_out(cx);
        // SAFETY: see above.
        self.bytes(|out, capacity| unsafe { readlink(self.at, &raw const caller, out, capacity) })
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let readdir = server()?.lower.readdir.ok_or(UNSUPPORTED)?;
        let (caller, mut sink) = (caller_out(cx), Sink { sink, failed: Ok(()) });
        // SAFETY: see above.
        done(unsafe { readdir(self.at, &raw const caller, cookie, Some(each), (&raw mut sink).cast()) })?;
        sink.failed
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let open = server()?.lower.open.ok_or(UNSUPPORTED)?;
        let (caller, mut file) = (caller_out(cx), null_mut());
        // SAFETY: see above.
        done(unsafe { open(self.at, &raw const caller, flags.0, &raw mut file) })?;
        // SAFETY: the server reported that it opened it.
        Ok(Arc::new(unsafe { RemoteFile::new(file) }))
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let create = server()?.lower.create.ok_or(UNSUPPORTED)?;
        let (name, mut file) = (Bytes::of(name.as_bytes()), null_mut());
        // SAFETY: see above.
        let entry = self.create_entry(cx, |caller, object, attr| unsafe {
            create(self.at, caller, name, mode, flags.0, object, attr, &raw mut file)
        })?;
        // SAFETY: the server reported that it opened it.
        Ok((entry, Arc::new(unsafe { RemoteFile::new(file) })))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let tmpfile = server()?.lower.tmpfile.ok_or(UNSUPPORTED)?;
        let mut file = null_mut();
        // SAFETY: see above.
        let entry = self.create_entry(cx, |caller, object, attr| unsafe {
            tmpfile(self.at, caller, mode, flags.0, object, attr, &raw mut file)
        })?;
        // SAFETY: the server reported that it opened it.
        Ok((entry, Arc::new(unsafe { RemoteFile::new(file) })))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let (mknod, name) = (server()?.lower.mknod.ok_or(UNSUPPORTED)?, Bytes::of(name.as_bytes()));
        // SAFETY: see above.
        self.create_entry(cx, |caller, object, attr| unsafe { mknod(self.at, caller, name, mode, rdev, object, attr) })
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let (mkdir, name) = (server()?.lower.mkdir.ok_or(UNSUPPORTED)?, Bytes::of(name.as_bytes()));
        // SAFETY: see above.
        self.create_entry(cx, |caller, object, attr| unsafe { mkdir(self.at, caller, name, mode, object, attr) })
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        let (symlink, name) = (server()?.lower.symlink.ok_or(UNSUPPORTED)?, Bytes::of(name.as_bytes()));
        let target = Bytes::of(target);
        // SAFETY: see above.
        self.create_entry(cx, |caller, object, attr| unsafe { symlink(self.at, caller, name, target, object, attr) })
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let (link, at) = (server()?.lower.link.ok_or(UNSUPPORTED)?, Self::server_object(target)?);
        let (caller, mut attr) = (caller_out(cx), abi::Attr::default());
        // SAFETY: see above.
        done(unsafe { link(self.at, &raw const caller, Bytes::of(name.as_bytes()), at, &raw mut attr) })?;
        Ok(Entry { vnode: Arc::clone(target), attr: attr_in(&attr).ok_or(Errno::IO)? })
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let (unlink, caller) = (server()?.lower.unlink.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { unlink(self.at, &raw const caller, Bytes::of(name.as_bytes())) })
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let (rmdir, caller) = (server()?.lower.rmdir.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { rmdir(self.at, &raw const caller, Bytes::of(name.as_bytes())) })
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        how: RenameFlags,
    ) -> Result<()> {
        let (rename, caller) = (server()?.lower.rename.ok_or(UNSUPPORTED)?, caller_out(cx));
        let (name, new_name, to) =
            (Bytes::of(name.as_bytes()), Bytes::of(new_name.as_bytes()), Self::server_object(new_dir)?);
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = flag(how.no_replace, abi::FLAG_ONE)
            | flag(how.exchange, abi::FLAG_TWO)
            | flag(how.whiteout, abi::FLAG_THREE);
        // SAFETY: see above.
        done(unsafe { rename(self.at, &raw const caller, name, to, new_name, flags) })
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let (getxattr, caller) = (server()?.host.getxattr.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { getxattr(self.at, &raw const caller, Bytes::of(name), out.as_mut_ptr(), out.len()) })
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let (setxattr, caller) = (server()?.lower.setxattr.ok_or(UNSUPPORTED)?, caller_out(cx));
        let flags = if flags.create { abi::FLAG_ONE } else { 0 } | if flags.replace { abi::FLAG_TWO } else { 0 };
        // SAFETY: see above.
        done(unsafe { setxattr(self.at, &raw const caller, Bytes::of(name), Bytes::of(value), flags) })
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let (listxattr, caller) = (server()?.lower.listxattr.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { listxattr(self.at, &raw const caller, out.as_mut_ptr(), out.len()) })
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        let (removexattr, caller) = (server()?.lower.removexattr.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { removexattr(self.at, &raw const caller, Bytes::of(name)) })
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        let (sync, caller) = (server()?.lower.sync_directory.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { sync(self.at, &raw const caller, data_only.into()) })
    }
}
