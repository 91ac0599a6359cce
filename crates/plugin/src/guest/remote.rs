//! Objects and open files of the layer below, which is on the other side of the border.

use crate::abi::{self, Bytes};
use crate::convert::{attr_in, caller_out, kind_in, set_out, slice};
use core::ffi::{c_int, c_void};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, SeekFrom, SetAttr, Vnode,
    XattrFlags, refuse,
};
use wrapfs::hooks::{Known, Object, State};

/// What the server offers that this object was loaded by: as much of it as both know.
static SERVER: OnceLock<Server> = OnceLock::new();

#[derive(Debug)]
struct Server {
    host: abi::Host,
    lower: abi::Lower,
}

/// Copies a table that begins with its size, as far as both sides know it; what the other one lacks is `NULL`.
///
/// # Safety
/// `at` is a table of the server's, and `T` one that may have any of its pointers `NULL`.
unsafe fn copied<T>(at: *const T) -> T {
    let mut table = MaybeUninit::<T>::zeroed();
    // SAFETY: this function's contract; every table begins with its size, and as many bytes as both have are copied.
    unsafe {
        let known = at.cast::<usize>().read().min(size_of::<T>());
        core::ptr::copy_nonoverlapping(at.cast::<u8>(), table.as_mut_ptr().cast(), known);
        table.assume_init()
    }
}

/// Remembers the server.
///
/// # Safety
/// The server's table, by the header.
pub(super) unsafe fn meet(host: *const abi::Host) {
    SERVER.get_or_init(|| {
        // SAFETY: this function's contract; all that these have are numbers and pointers.
        unsafe {
            let host = copied(host);
            let lower = match host.lower {
                Some(lower) => copied(core::ptr::from_ref(lower)),
                None => MaybeUninit::zeroed().assume_init(),
            };
            Server { host, lower }
        }
    });
}

/// Calls a hook. Nothing unwinds into the server: a hook that panics answers `EIO`, and what it said is in the server's log.
pub(super) fn guard<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        complain(&format!("a hook panicked: {}", text.unwrap_or("it did not say why")));
        Err(Errno::IO)
    })
}

fn complain(text: &str) {
    const ERROR: c_int = 1;
    if let Some(log) = SERVER.get().and_then(|server| server.host.log) {
        // SAFETY: the server's function, with text that lives during the call.
        unsafe { log(ERROR, text.as_ptr().cast(), text.len()) };
    }
}

const NO: Errno = Errno::OPNOTSUPP;

fn server() -> Result<&'static Server> {
    SERVER.get().ok_or(NO)
}

/// The error of a function's answer.
fn errno(code: i64) -> Errno {
    match code.checked_neg().and_then(|code| i32::try_from(code).ok()) {
        Some(code @ 1..4096) => Errno::from_raw_os_error(code),
        _ => Errno::IO,
    }
}

fn done(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(errno(code.into())) }
}

fn length(answer: i64) -> Result<usize> {
    usize::try_from(answer).map_err(|_| errno(answer))
}

/// An object of the layer below.
pub(super) struct Remote {
    object: abi::Object,
    /// What the server knows it by.
    at: *const abi::Object,
    /// It is this side's, to be given back: else it is lent to a hook.
    is_held: bool,
}

// SAFETY: the server's functions may be called by any thread; a lent object lives as long as the call that this is made for.
unsafe impl Send for Remote {}
// SAFETY: as for Send.
unsafe impl Sync for Remote {}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("id", &self.object.id).field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.is_held
            && let Some(release) = server().ok().and_then(|server| server.lower.release)
        {
            // SAFETY: handed out by the server, and given back once.
            unsafe { release(self.at.cast_mut()) };
        }
    }
}

/// What an operation that makes something answers.
struct Made {
    object: *mut abi::Object,
    attr: abi::Attr,
}

impl Made {
    fn new() -> Self {
        Self { object: null_mut(), attr: abi::Attr::default() }
    }

    /// # Safety
    /// The server has filled it.
    unsafe fn entry(self) -> Result<Entry> {
        // SAFETY: this function's contract.
        let vnode = unsafe { Remote::held(self.object) }?;
        Ok(Entry { vnode, attr: attr_in(&self.attr).ok_or(Errno::IO)? })
    }
}

impl Remote {
    /// # Safety
    /// An object of the server's, that lives as long as what is made here; or null.
    pub(super) unsafe fn new(at: *const abi::Object) -> Result<Self> {
        // SAFETY: null, or an object (this function's contract).
        let object = unsafe { read_object(at) }?;
        Ok(Self { object, at, is_held: false })
    }

    /// # Safety
    /// An object that the server has handed out; or null.
    unsafe fn held(at: *mut abi::Object) -> Result<Arc<dyn Vnode>> {
        // SAFETY: this function's contract.
        let object = unsafe { read_object(at) }?;
        Ok(Arc::new(Self { object, at, is_held: true }))
    }

    /// What hooks see of it.
    pub(super) fn lent(&self) -> Object<'_> {
        // SAFETY: the server's bytes, which live as long as the object.
        let state = unsafe { slice(self.object.state) };
        Object::with(self, self).with_state(state)
    }

    /// What the server knows another vnode of the layer below by.
    fn known(vnode: &Arc<dyn Vnode>) -> Result<*const abi::Object> {
        vnode.as_any().downcast_ref::<Self>().map(|other| other.at).ok_or(Errno::XDEV)
    }

    fn make(
        &self,
        cx: &Cx<'_>,
        call: impl FnOnce(*const abi::Caller, *mut *mut abi::Object, *mut abi::Attr) -> c_int,
    ) -> Result<Entry> {
        let (caller, mut made) = (caller_out(cx), Made::new());
        done(call(&raw const caller, &raw mut made.object, &raw mut made.attr))?;
        // SAFETY: the server has said that it filled it.
        unsafe { made.entry() }
    }

    /// Bytes of a length that is only known afterwards.
    fn bytes(&self, call: impl Fn(*mut u8, usize) -> i64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 256];
        loop {
            let len = length(call(bytes.as_mut_ptr(), bytes.len()))?;
            if len <= bytes.len() {
                bytes.truncate(len);
                return Ok(bytes);
            }
            bytes.resize(len, 0);
        }
    }
}

/// An object, as far as both sides know it.
///
/// # Safety
/// An object of the server's, or null.
unsafe fn read_object(at: *const abi::Object) -> Result<abi::Object> {
    if at.is_null() {
        return Err(Errno::IO);
    }
    let mut object = MaybeUninit::<abi::Object>::zeroed();
    let is_new = SERVER.get().is_some_and(|server| server.host.minor >= abi::MINOR_OF_LOWER);
    let known = if is_new { size_of::<abi::Object>() } else { core::mem::offset_of!(abi::Object, state) };
    // SAFETY: not null, and an object of that many bytes by its version (this function's contract); zeros are pointers that lead nowhere.
    unsafe {
        core::ptr::copy_nonoverlapping(at.cast::<u8>(), object.as_mut_ptr().cast(), known);
        Ok(object.assume_init())
    }
}

impl Known for Remote {
    fn hold(&self) -> Result<Arc<dyn Vnode>> {
        let hold = server()?.lower.hold.ok_or(NO)?;
        let mut held = null_mut();
        // SAFETY: the object of this call, and room for a pointer.
        done(unsafe { hold(self.at, &raw mut held) })?;
        // SAFETY: the server has handed it out.
        unsafe { Self::held(held) }
    }

    fn path(&self) -> Option<Vec<u8>> {
        let path = server().ok()?.host.path?;
        // SAFETY: the object of this call, and room for as many bytes as are named.
        self.bytes(|out, capacity| unsafe { path(self.at, out, capacity) }).ok()
    }

    fn attached(&self) -> Option<State> {
        let attached = server().ok()?.host.attached?;
        // SAFETY: the object of this call; what is attached was made by `attach`, and lives during the call.
        unsafe { attached(self.at).cast::<State>().as_ref() }.map(Arc::clone)
    }

    fn attach(&self, state: State) -> Option<State> {
        let attach = server().ok()?.host.attach?;
        let new = Box::into_raw(Box::new(Arc::clone(&state)));
        // SAFETY: the object of this call, and a pointer that is this side's.
        let now = unsafe { attach(self.at, new.cast()) }.cast::<State>();
        if now == new {
            return Some(state);
        }
        // SAFETY: the server did not take it.
        drop(unsafe { Box::from_raw(new) });
        // SAFETY: null, or what another call of this function attached, which lives during the call.
        unsafe { now.as_ref() }.map(Arc::clone)
    }
}

/// The state behind a pointer that [`Remote::attach`] made.
///
/// # Safety
/// The server is done with it.
pub(super) unsafe fn detached(state: *mut c_void) -> State {
    // SAFETY: this function's contract.
    *unsafe { Box::from_raw(state.cast::<State>()) }
}

/// A listing's receiver on its way through the server.
struct Sink<'a, 'b> {
    sink: &'a mut (dyn FnMut(&DirEntry<'_>) -> bool + 'b),
    failed: Result<()>,
}

unsafe extern "C" fn each(arg: *mut c_void, entry: *const abi::DirEntry) -> c_int {
    // SAFETY: what `readdir` below passed on, and an entry of the server's.
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

// Each call passes on what lives during the call: the object, the caller, names, and room for what is answered.
impl Vnode for Remote {
    refuse!(NO => names, refused, statfs, ioctl, control);

    fn generation(&self) -> u32 {
        0
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
        let getattr = server()?.host.getattr.ok_or(NO)?;
        let (caller, mut attr) = (caller_out(cx), abi::Attr::default());
        // SAFETY: see above.
        done(unsafe { getattr(self.at, &raw const caller, &raw mut attr) })?;
        attr_in(&attr).ok_or(Errno::IO)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, _file: Option<&dyn OpenFile>) -> Result<Attr> {
        let setattr = server()?.lower.setattr.ok_or(NO)?;
        let (caller, set, mut attr) = (caller_out(cx), set_out(set), abi::Attr::default());
        // SAFETY: see above.
        done(unsafe { setattr(self.at, &raw const caller, &raw const set, &raw mut attr) })?;
        attr_in(&attr).ok_or(Errno::IO)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let lookup = server()?.lower.lookup.ok_or(NO)?;
        let (caller, mut found) = (caller_out(cx), Made::new());
        let (name, object, attr) = (Bytes::of(name.as_bytes()), &raw mut found.object, &raw mut found.attr);
        // SAFETY: see above.
        match unsafe { lookup(self.at, &raw const caller, name, object, attr) } {
            0 => Ok(None),
            // SAFETY: the server has said that it filled it.
            1 => unsafe { found.entry() }.map(Some),
            code => Err(errno(code.into())),
        }
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let readlink = server()?.lower.readlink.ok_or(NO)?;
        let caller = caller_out(cx);
        // SAFETY: see above.
        self.bytes(|out, capacity| unsafe { readlink(self.at, &raw const caller, out, capacity) })
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let readdir = server()?.lower.readdir.ok_or(NO)?;
        let (caller, mut sink) = (caller_out(cx), Sink { sink, failed: Ok(()) });
        // SAFETY: see above.
        done(unsafe { readdir(self.at, &raw const caller, cookie, Some(each), (&raw mut sink).cast()) })?;
        sink.failed
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let open = server()?.lower.open.ok_or(NO)?;
        let (caller, mut file) = (caller_out(cx), null_mut());
        // SAFETY: see above.
        done(unsafe { open(self.at, &raw const caller, flags.0, &raw mut file) })?;
        Ok(Arc::new(RemoteFile(file)))
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let create = server()?.lower.create.ok_or(NO)?;
        let (name, mut file) = (Bytes::of(name.as_bytes()), null_mut());
        // SAFETY: see above.
        let entry = self.make(cx, |caller, object, attr| unsafe {
            create(self.at, caller, name, mode, flags.0, object, attr, &raw mut file)
        })?;
        Ok((entry, Arc::new(RemoteFile(file))))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let tmpfile = server()?.lower.tmpfile.ok_or(NO)?;
        let mut file = null_mut();
        // SAFETY: see above.
        let entry = self.make(cx, |caller, object, attr| unsafe {
            tmpfile(self.at, caller, mode, flags.0, object, attr, &raw mut file)
        })?;
        Ok((entry, Arc::new(RemoteFile(file))))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let (mknod, name) = (server()?.lower.mknod.ok_or(NO)?, Bytes::of(name.as_bytes()));
        // SAFETY: see above.
        self.make(cx, |caller, object, attr| unsafe { mknod(self.at, caller, name, mode, rdev, object, attr) })
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let (mkdir, name) = (server()?.lower.mkdir.ok_or(NO)?, Bytes::of(name.as_bytes()));
        // SAFETY: see above.
        self.make(cx, |caller, object, attr| unsafe { mkdir(self.at, caller, name, mode, object, attr) })
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        let (symlink, name) = (server()?.lower.symlink.ok_or(NO)?, Bytes::of(name.as_bytes()));
        let target = Bytes::of(target);
        // SAFETY: see above.
        self.make(cx, |caller, object, attr| unsafe { symlink(self.at, caller, name, target, object, attr) })
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let (link, at) = (server()?.lower.link.ok_or(NO)?, Self::known(target)?);
        let (caller, mut attr) = (caller_out(cx), abi::Attr::default());
        // SAFETY: see above.
        done(unsafe { link(self.at, &raw const caller, Bytes::of(name.as_bytes()), at, &raw mut attr) })?;
        Ok(Entry { vnode: Arc::clone(target), attr: attr_in(&attr).ok_or(Errno::IO)? })
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let (unlink, caller) = (server()?.lower.unlink.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { unlink(self.at, &raw const caller, Bytes::of(name.as_bytes())) })
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let (rmdir, caller) = (server()?.lower.rmdir.ok_or(NO)?, caller_out(cx));
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
        let (rename, caller) = (server()?.lower.rename.ok_or(NO)?, caller_out(cx));
        let (name, new_name, to) = (Bytes::of(name.as_bytes()), Bytes::of(new_name.as_bytes()), Self::known(new_dir)?);
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = flag(how.no_replace, abi::FLAG_ONE)
            | flag(how.exchange, abi::FLAG_TWO)
            | flag(how.whiteout, abi::FLAG_THREE);
        // SAFETY: see above.
        done(unsafe { rename(self.at, &raw const caller, name, to, new_name, flags) })
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let (getxattr, caller) = (server()?.host.getxattr.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { getxattr(self.at, &raw const caller, Bytes::of(name), out.as_mut_ptr(), out.len()) })
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let (setxattr, caller) = (server()?.lower.setxattr.ok_or(NO)?, caller_out(cx));
        let flags = if flags.create { abi::FLAG_ONE } else { 0 } | if flags.replace { abi::FLAG_TWO } else { 0 };
        // SAFETY: see above.
        done(unsafe { setxattr(self.at, &raw const caller, Bytes::of(name), Bytes::of(value), flags) })
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let (listxattr, caller) = (server()?.lower.listxattr.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { listxattr(self.at, &raw const caller, out.as_mut_ptr(), out.len()) })
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        let (removexattr, caller) = (server()?.lower.removexattr.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { removexattr(self.at, &raw const caller, Bytes::of(name)) })
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        let (sync, caller) = (server()?.lower.sync_directory.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { sync(self.at, &raw const caller, data_only.into()) })
    }
}

/// An open file of the layer below.
#[derive(Debug)]
struct RemoteFile(*mut abi::File);

// SAFETY: the server's functions may be called by any thread, and the file is this side's until it is closed.
unsafe impl Send for RemoteFile {}
// SAFETY: as for Send.
unsafe impl Sync for RemoteFile {}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        if let Some(close) = server().ok().and_then(|server| server.lower.close) {
            // SAFETY: handed out by the server, and closed once.
            unsafe { close(self.0) };
        }
    }
}

// As for `Remote`.
impl OpenFile for RemoteFile {
    refuse!(NO => flush, copy_from, reflink_from);

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        None
    }

    fn bind(&self) {
        // It is never handed out.
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let (read, caller) = (server()?.lower.read.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { read(self.0, &raw const caller, out.as_mut_ptr(), out.len(), offset) })
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let (write, caller) = (server()?.lower.write.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { write(self.0, &raw const caller, Bytes::of(data), offset) })
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        let (fsync, caller) = (server()?.lower.fsync.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { fsync(self.0, &raw const caller, data_only.into()) })
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let (fallocate, caller) = (server()?.lower.fallocate.ok_or(NO)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { fallocate(self.0, &raw const caller, mode, offset, len) })
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: SeekFrom) -> Result<u64> {
        let (seek, caller) = (server()?.lower.seek.ok_or(NO)?, caller_out(cx));
        let whence = match whence {
            SeekFrom::Data => abi::SEEK_DATA,
            SeekFrom::Hole => abi::SEEK_HOLE,
        };
        // SAFETY: see above.
        let found = unsafe { seek(self.0, &raw const caller, offset, whence) };
        u64::try_from(found).map_err(|_| errno(found))
    }
}
