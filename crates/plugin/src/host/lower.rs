//! Access to the layer below, for plugins.

use super::offers::{Handle, Held, catch, lend, object, put};
use crate::abi::{self, Bytes};
use crate::convert::{attr_out, caller_in, set_in, slice};
use core::ffi::{c_int, c_void};
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Name, OpenFile, OpenFlags, RenameFlags, Result, Vnode, Whence, XattrFlags};
use wrapfs::hooks::Object;

pub(super) static LOWER: abi::Lower = abi::Lower {
    size: size_of::<abi::Lower>(),
    hold: Some(hold),
    release: Some(release),
    lookup: Some(lookup),
    readdir: Some(readdir),
    readlink: Some(readlink),
    setattr: Some(setattr),
    setxattr: Some(setxattr),
    listxattr: Some(listxattr),
    removexattr: Some(removexattr),
    open: Some(open),
    create: Some(create),
    tmpfile: Some(tmpfile),
    mknod: Some(mknod),
    mkdir: Some(mkdir),
    symlink: Some(symlink),
    link: Some(link),
    unlink: Some(unlink),
    rmdir: Some(rmdir),
    rename: Some(rename),
    sync_directory: Some(sync_directory),
    read: Some(read),
    write: Some(write),
    fsync: Some(fsync),
    fallocate: Some(fallocate),
    seek: Some(seek),
    close: Some(close),
};

type Obj = *const abi::Object;
type CallerPtr = *const abi::Caller;

/// Maximum buffer size in bytes.
const LARGEST: usize = 64 << 20;

/// An object held by the plugin, which receives the address of the first field.
#[repr(C)]
struct Owned {
    object: abi::Object,
    handle: Handle<'static>,
}

/// Passes an object to the plugin, if it wants one.
///
/// # Safety
/// `out` is null or points to a pointer.
unsafe fn give_object(vnode: Arc<dyn Vnode>, out: *mut *mut abi::Object) {
    if out.is_null() {
        return;
    }
    let handle = Handle::Held(Held(vnode));
    let owned = Box::into_raw(Box::new(Owned { object: lend(&handle), handle }));
    // SAFETY: just created and not shared; the buffer belongs to the plugin (guaranteed by the
    // caller).
    unsafe {
        (*owned).object.handle = (&raw const (*owned).handle).cast();
        out.write(owned.cast());
    }
}

/// # Safety
/// `out` is null or points to attributes.
unsafe fn give_attr(attr: &Attr, out: *mut abi::Attr) {
    if !out.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { out.write(attr_out(attr)) };
    }
}

/// # Safety
/// As for [`give_object`] and [`give_attr`].
unsafe fn give_entry(entry: Entry, made: *mut *mut abi::Object, attr: *mut abi::Attr) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        give_attr(&entry.attr, attr);
        give_object(entry.vnode, made);
    }
}

/// # Safety
/// `out` is null or points to a pointer.
unsafe fn give_file(file: Arc<dyn OpenFile>, out: *mut *mut abi::File) {
    if !out.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { out.write(Box::into_raw(Box::new(file)).cast()) };
    }
}

fn code(act: impl FnOnce() -> Result<i64>) -> c_int {
    c_int::try_from(catch(act)).unwrap_or(-Errno::IO.raw_os_error())
}

/// Converts the arguments of a function.
///
/// # Safety
/// The object is lent or held, and the caller was passed to a hook; both live for `'a`.
unsafe fn enter<'a>(at: Obj, caller: CallerPtr) -> Result<(Object<'a>, Cx<'a>)> {
    // SAFETY: guaranteed by the caller.
    unsafe { Ok((object(at)?, caller_in(caller.as_ref().ok_or(Errno::INVAL)?))) }
}

/// Converts the arguments of a function on an open file.
///
/// # Safety
/// As for [`enter`].
unsafe fn enter_file<'a>(file: *mut abi::File, caller: CallerPtr) -> Result<(&'a dyn OpenFile, Cx<'a>)> {
    // SAFETY: null, or created by `give_file` and not closed yet (guaranteed by the caller).
    let file = unsafe { file.cast::<Arc<dyn OpenFile>>().as_ref() }.ok_or(Errno::INVAL)?;
    // SAFETY: guaranteed by the caller.
    Ok((&**file, unsafe { caller_in(caller.as_ref().ok_or(Errno::INVAL)?) }))
}

unsafe extern "C" fn hold(at: Obj, held: *mut *mut abi::Object) -> c_int {
    code(|| {
        if held.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the header guarantees an object of the layer below, and the plugin's buffer.
        unsafe { give_object(object(at)?.hold()?, held) };
        Ok(0)
    })
}

unsafe extern "C" fn release(at: *mut abi::Object) {
    if !at.is_null() {
        catch(|| {
            // SAFETY: by the header, it was passed to the plugin and is released once.
            drop(unsafe { Box::from_raw(at.cast::<Owned>()) });
            Ok(0)
        });
    }
}

unsafe extern "C" fn lookup(
    dir: Obj,
    caller: CallerPtr,
    name: Bytes,
    found: *mut *mut abi::Object,
    attr: *mut abi::Attr,
) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((dir, cx), name) = unsafe { (enter(dir, caller)?, slice(name)) };
        let Some(entry) = dir.lower().lookup(&cx, Name::new(name)?)? else { return Ok(0) };
        // SAFETY: the header guarantees the plugin's buffer.
        unsafe { give_entry(entry, found, attr) };
        Ok(1)
    })
}

unsafe extern "C" fn readdir(
    dir: Obj,
    caller: CallerPtr,
    cookie: u64,
    each: Option<abi::Each>,
    arg: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (dir, cx) = unsafe { enter(dir, caller) }?;
        let each = each.ok_or(Errno::INVAL)?;
        let mut said = 0;
        dir.lower().readdir(&cx, cookie, &mut |entry| {
            let entry = abi::DirEntry {
                cookie: entry.cookie,
                id: entry.ino,
                kind: entry.kind.mode_bits(),
                reserved: 0,
                name: Bytes::of(entry.name.as_bytes()),
            };
            // SAFETY: calls the plugin's function with its own argument; the entry outlives the
            // call.
            said = unsafe { each(arg, &raw const entry) };
            said == 0
        })?;
        Ok(i64::from(said.min(0)))
    })
}

unsafe extern "C" fn readlink(link: Obj, caller: CallerPtr, out: *mut u8, capacity: usize) -> i64 {
    catch(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (link, cx) = unsafe { enter(link, caller) }?;
        let target = link.lower().readlink(&cx)?;
        // SAFETY: the header guarantees the plugin's buffer.
        Ok(unsafe { put(&target, out, capacity) })
    })
}

unsafe extern "C" fn setattr(at: Obj, caller: CallerPtr, set: *const abi::SetAttr, attr: *mut abi::Attr) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((object, cx), set) = unsafe { (enter(at, caller)?, set.as_ref().ok_or(Errno::INVAL)?) };
        let now = object.lower().setattr(&cx, &set_in(set).ok_or(Errno::INVAL)?, None)?;
        // SAFETY: the header guarantees the plugin's buffer.
        unsafe { give_attr(&now, attr) };
        Ok(0)
    })
}

unsafe extern "C" fn setxattr(at: Obj, caller: CallerPtr, name: Bytes, value: Bytes, flags: u32) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((object, cx), name, value) = unsafe { (enter(at, caller)?, slice(name), slice(value)) };
        let flags = XattrFlags { create: flags & abi::FLAG_ONE != 0, replace: flags & abi::FLAG_TWO != 0 };
        object.lower().setxattr(&cx, name, value, flags).map(|()| 0)
    })
}

unsafe extern "C" fn listxattr(at: Obj, caller: CallerPtr, out: *mut u8, capacity: usize) -> i64 {
    catch(|| {
        // SAFETY: the header guarantees the plugin's arguments and buffer.
        let ((object, cx), room) = unsafe { (enter(at, caller)?, room(out, capacity)?) };
        let len = object.lower().listxattr(&cx, room)?;
        Ok(i64::try_from(len).unwrap_or(i64::MAX))
    })
}

unsafe extern "C" fn removexattr(at: Obj, caller: CallerPtr, name: Bytes) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((object, cx), name) = unsafe { (enter(at, caller)?, slice(name)) };
        object.lower().removexattr(&cx, name).map(|()| 0)
    })
}

unsafe extern "C" fn open(at: Obj, caller: CallerPtr, flags: u32, file: *mut *mut abi::File) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (object, cx) = unsafe { enter(at, caller) }?;
        if file.is_null() {
            return Err(Errno::INVAL);
        }
        let open = object.lower().open(&cx, OpenFlags(flags))?;
        // SAFETY: the header guarantees the plugin's buffer.
        unsafe { give_file(open, file) };
        Ok(0)
    })
}

unsafe extern "C" fn create(
    dir: Obj,
    caller: CallerPtr,
    name: Bytes,
    mode: u32,
    flags: u32,
    made: *mut *mut abi::Object,
    attr: *mut abi::Attr,
    file: *mut *mut abi::File,
) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((dir, cx), name) = unsafe { (enter(dir, caller)?, slice(name)) };
        let (entry, open) = dir.lower().create(&cx, Name::new(name)?, mode & 0o7777, OpenFlags(flags))?;
        // SAFETY: the header guarantees the plugin's buffer.
        unsafe {
            give_entry(entry, made, attr);
            give_file(open, file);
        }
        Ok(0)
    })
}

unsafe extern "C" fn tmpfile(
    dir: Obj,
    caller: CallerPtr,
    mode: u32,
    flags: u32,
    made: *mut *mut abi::Object,
    attr: *mut abi::Attr,
    file: *mut *mut abi::File,
) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (dir, cx) = unsafe { enter(dir, caller) }?;
        let (entry, open) = dir.lower().tmpfile(&cx, mode & 0o7777, OpenFlags(flags))?;
        // SAFETY: the header guarantees the plugin's buffer.
        unsafe {
            give_entry(entry, made, attr);
            give_file(open, file);
        }
        Ok(0)
    })
}

/// Creates an object with a given name.
///
/// # Safety
/// The plugin's arguments and buffers, as guaranteed by the header.
unsafe fn make(
    (dir, caller, name): (Obj, CallerPtr, Bytes),
    (made, attr): (*mut *mut abi::Object, *mut abi::Attr),
    make: impl FnOnce(&dyn Vnode, &Cx<'_>, Name<'_>) -> Result<Entry>,
) -> c_int {
    code(|| {
        // SAFETY: guaranteed by the caller.
        let ((dir, cx), name) = unsafe { (enter(dir, caller)?, slice(name)) };
        let entry = make(dir.lower(), &cx, Name::new(name)?)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_entry(entry, made, attr) };
        Ok(0)
    })
}

unsafe extern "C" fn mknod(
    dir: Obj,
    caller: CallerPtr,
    name: Bytes,
    mode: u32,
    rdev: u64,
    made: *mut *mut abi::Object,
    attr: *mut abi::Attr,
) -> c_int {
    // SAFETY: the header guarantees the plugin's arguments.
    unsafe { make((dir, caller, name), (made, attr), |dir, cx, name| dir.mknod(cx, name, mode, rdev)) }
}

unsafe extern "C" fn mkdir(
    dir: Obj,
    caller: CallerPtr,
    name: Bytes,
    mode: u32,
    made: *mut *mut abi::Object,
    attr: *mut abi::Attr,
) -> c_int {
    // SAFETY: the header guarantees the plugin's arguments.
    unsafe { make((dir, caller, name), (made, attr), |dir, cx, name| dir.mkdir(cx, name, mode & 0o7777)) }
}

unsafe extern "C" fn symlink(
    dir: Obj,
    caller: CallerPtr,
    name: Bytes,
    target: Bytes,
    made: *mut *mut abi::Object,
    attr: *mut abi::Attr,
) -> c_int {
    // SAFETY: the header guarantees the plugin's arguments.
    unsafe { make((dir, caller, name), (made, attr), |dir, cx, name| dir.symlink(cx, name, slice(target))) }
}

unsafe extern "C" fn link(dir: Obj, caller: CallerPtr, name: Bytes, target: Obj, attr: *mut abi::Attr) -> c_int {
    let made = core::ptr::null_mut();
    // SAFETY: the header guarantees the plugin's arguments.
    unsafe { make((dir, caller, name), (made, attr), |dir, cx, name| dir.link(cx, name, &object(target)?.hold()?)) }
}

unsafe extern "C" fn unlink(dir: Obj, caller: CallerPtr, name: Bytes) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((dir, cx), name) = unsafe { (enter(dir, caller)?, slice(name)) };
        dir.lower().unlink(&cx, Name::new(name)?).map(|()| 0)
    })
}

unsafe extern "C" fn rmdir(dir: Obj, caller: CallerPtr, name: Bytes) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((dir, cx), name) = unsafe { (enter(dir, caller)?, slice(name)) };
        dir.lower().rmdir(&cx, Name::new(name)?).map(|()| 0)
    })
}

unsafe extern "C" fn rename(
    dir: Obj,
    caller: CallerPtr,
    name: Bytes,
    new_dir: Obj,
    new_name: Bytes,
    flags: u32,
) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((dir, cx), new_dir, name, new_name) =
            unsafe { (enter(dir, caller)?, object(new_dir)?.hold()?, slice(name), slice(new_name)) };
        let has = |flag| flags & flag != 0;
        if flags & !(abi::FLAG_ONE | abi::FLAG_TWO | abi::FLAG_THREE) != 0 {
            return Err(Errno::INVAL);
        }
        let flags = RenameFlags {
            no_replace: has(abi::FLAG_ONE),
            exchange: has(abi::FLAG_TWO),
            whiteout: has(abi::FLAG_THREE),
        };
        dir.lower().rename(&cx, Name::new(name)?, &new_dir, Name::new(new_name)?, flags).map(|()| 0)
    })
}

unsafe extern "C" fn sync_directory(dir: Obj, caller: CallerPtr, data_only: c_int) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (dir, cx) = unsafe { enter(dir, caller) }?;
        dir.lower().fsync(&cx, data_only != 0).map(|()| 0)
    })
}

/// # Safety
/// `out` is a buffer of `len` bytes that is not shared for `'a`.
unsafe fn room<'a>(out: *mut u8, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 || out.is_null() {
        return Ok(&mut []);
    }
    if len > LARGEST {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, and a buffer of that many bytes (guaranteed by the caller).
    Ok(unsafe { core::slice::from_raw_parts_mut(out, len) })
}

unsafe extern "C" fn read(file: *mut abi::File, caller: CallerPtr, out: *mut u8, len: usize, offset: u64) -> i64 {
    catch(|| {
        // SAFETY: the header guarantees the plugin's arguments and buffer.
        let ((file, cx), room) = unsafe { (enter_file(file, caller)?, room(out, len)?) };
        Ok(i64::try_from(file.read(&cx, room, offset)?).unwrap_or(i64::MAX))
    })
}

unsafe extern "C" fn write(file: *mut abi::File, caller: CallerPtr, data: Bytes, offset: u64) -> i64 {
    catch(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let ((file, cx), data) = unsafe { (enter_file(file, caller)?, slice(data)) };
        Ok(i64::try_from(file.write(&cx, data, offset)?).unwrap_or(i64::MAX))
    })
}

unsafe extern "C" fn fsync(file: *mut abi::File, caller: CallerPtr, data_only: c_int) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (file, cx) = unsafe { enter_file(file, caller) }?;
        file.fsync(&cx, data_only != 0).map(|()| 0)
    })
}

unsafe extern "C" fn fallocate(file: *mut abi::File, caller: CallerPtr, mode: u32, offset: u64, len: u64) -> c_int {
    code(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (file, cx) = unsafe { enter_file(file, caller) }?;
        file.fallocate(&cx, mode, offset, len).map(|()| 0)
    })
}

unsafe extern "C" fn seek(file: *mut abi::File, caller: CallerPtr, offset: u64, whence: c_int) -> i64 {
    catch(|| {
        // SAFETY: the header guarantees the plugin's arguments.
        let (file, cx) = unsafe { enter_file(file, caller) }?;
        let whence = match whence {
            abi::SEEK_DATA => Whence::Data,
            abi::SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::INVAL),
        };
        Ok(i64::try_from(file.seek(&cx, offset, whence)?).unwrap_or(i64::MAX))
    })
}

unsafe extern "C" fn close(file: *mut abi::File) {
    if !file.is_null() {
        catch(|| {
            // SAFETY: by the header, it was passed to the plugin and is closed once.
            drop(unsafe { Box::from_raw(file.cast::<Arc<dyn OpenFile>>()) });
            Ok(0)
        });
    }
}
