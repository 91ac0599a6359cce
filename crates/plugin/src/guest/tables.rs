//! Functions of the C ABI that call hooks in Rust.

use super::remote::{Remote, detached, guard};
use crate::abi::{self, Bytes};
use crate::convert::{attr_in, attr_out, caller_in, kind_in, set_in, set_out, slice};
use core::ffi::{c_int, c_void};
use std::sync::Arc;
use vnode::{Attr, Cx, Errno, Name, OpenFlags, RenameFlags, Result, SetAttr, XattrFlags};
use wrapfs::Foreign;
use wrapfs::container::{BlockAt, BlockCodec};
use wrapfs::hooks::{Answer, Block, Hooks, Instead, Matching, Object, Op, OpKind, Reply, Verdict};

/// Hooks over a layer, and the tables that lead to them.
pub(super) struct Mounted {
    pub(super) hooks: Hooks,
    matching: c_int,
    interest: u64,
}

/// What an instance is for the server.
pub(super) fn instance(hooks: Hooks) -> abi::Instance {
    const fn at<T>(there: bool, table: &'static T) -> *const T {
        if there { core::ptr::from_ref(table) } else { core::ptr::null() }
    }
    let numbered = abi::OPERATIONS.iter().zip(0_u32..);
    let interest = hooks.operations.as_ref().map(|hook| hook.interest());
    let interest = interest
        .map_or(0, |set| numbered.filter(|(kind, _)| set.has(**kind)).fold(0, |bits, (_, bit)| bits | 1 << bit));
    let matching = match hooks.names.as_ref().map_or(Matching::Exact, |hook| hook.matching()) {
        Matching::Exact => abi::MATCHING_EXACT,
        Matching::Encoded => abi::MATCHING_ENCODED,
        Matching::Folded => abi::MATCHING_FOLDED,
    };
    let mounted = Box::new(Mounted { hooks, matching, interest });
    let hooks = &mounted.hooks;
    abi::Instance {
        size: size_of::<abi::Instance>(),
        names: at(hooks.names.is_some(), &NAMES),
        attributes: at(hooks.attributes.is_some(), &ATTRIBUTES),
        data: at(hooks.data.is_some() && hooks.resizing.is_none(), &DATA),
        operations: at(hooks.operations.is_some(), &OPERATIONS),
        ioctls: at(hooks.ioctls.is_some(), &IOCTLS),
        codec: at(hooks.resizing.is_some(), &CODEC),
        flags: if hooks.read_only { abi::READ_ONLY } else { 0 } | if hooks.paths { abi::PATHS } else { 0 },
        objects: at(hooks.objects.is_some(), &OBJECTS),
        store: at(hooks.store.is_some(), &super::store::STORE),
        me: Box::into_raw(mounted).cast(),
    }
}

/// The `close` of every layer that is exported from Rust.
pub(super) unsafe extern "C" fn close(me: *mut c_void) {
    if me.is_null() {
        return;
    }
    // SAFETY: made by `instance`, and closed once, by the header.
    let mounted = unsafe { Box::from_raw(me.cast::<Mounted>()) };
    // A hook that panics while it ends has ended.
    let _ = guard(|| {
        drop(mounted);
        Ok(())
    });
}

static NAMES: abi::Names = abi::Names {
    size: size_of::<abi::Names>(),
    encode_filename: Some(encode_filename),
    decode_filename: Some(decode_filename),
    encode_target: Some(encode_target),
    decode_target: Some(decode_target),
    matching: Some(matching),
    fold_filename: Some(fold_filename),
};

static ATTRIBUTES: abi::Attributes = abi::Attributes {
    size: size_of::<abi::Attributes>(),
    decode_attr: Some(decode_attr),
    encode_attr: Some(encode_attr),
    encode_mode: Some(encode_mode),
};

static DATA: abi::Data = abi::Data {
    size: size_of::<abi::Data>(),
    block_size: Some(block_size),
    applies: Some(applies),
    encode_data: Some(encode_data),
    decode_data: Some(decode_data),
};

static CODEC: abi::Codec = abi::Codec {
    size: size_of::<abi::Codec>(),
    storage: Some(storage),
    max_encoded: Some(max_encoded),
    encode: Some(encode),
    decode: Some(decode),
};

static OPERATIONS: abi::Operations = abi::Operations {
    size: size_of::<abi::Operations>(),
    interest: Some(interest),
    before: Some(before),
    after: Some(after),
};

static OBJECTS: abi::Objects = abi::Objects { size: size_of::<abi::Objects>(), freed: Some(freed) };

static IOCTLS: abi::Ioctls = abi::Ioctls { size: size_of::<abi::Ioctls>(), ioctl: Some(ioctl) };

/// What every function is called with.
///
/// # Safety
/// `me` was made by [`instance`], the caller is one of the server's, and both live during the call.
pub(super) unsafe fn enter<'a>(me: *mut c_void, caller: *const abi::Caller) -> Result<(&'a Mounted, Cx<'a>)> {
    // SAFETY: this function's contract.
    unsafe {
        let mounted = me.cast::<Mounted>().as_ref().ok_or(Errno::IO)?;
        Ok((mounted, caller_in(caller.as_ref().ok_or(Errno::IO)?)))
    }
}

fn code(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|errno| -errno.raw_os_error())
}

/// Answers bytes: as many as fit, and how many there are.
///
/// # Safety
/// There is room for `capacity` bytes at `out`.
pub(super) unsafe fn put(result: Result<Vec<u8>>, out: *mut u8, capacity: usize) -> i64 {
    match result {
        Ok(bytes) => {
            // SAFETY: no more than there is room for (this function's contract).
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len().min(capacity)) };
            i64::try_from(bytes.len()).unwrap_or(i64::MAX)
        }
        Err(errno) => -i64::from(errno.raw_os_error()),
    }
}

macro_rules! names {
    ($($function:ident)*) => { $(
        unsafe extern "C" fn $function(
            me: *mut c_void,
            caller: *const abi::Caller,
            dir: *const abi::Object,
            name: Bytes,
            out: *mut u8,
            capacity: usize,
        ) -> i64 {
            let made = guard(|| {
                // SAFETY: what the server calls with, by the header.
                let ((mounted, cx), dir, name) = unsafe { (enter(me, caller)?, Remote::new(dir)?, slice(name)) };
                mounted.hooks.names.as_ref().ok_or(Errno::IO)?.$function(&cx, &dir.lent(), name)
            });
            // SAFETY: the server's room, by the header.
            unsafe { put(made, out, capacity) }
        }
    )* };
}

macro_rules! targets {
    ($($function:ident)*) => { $(
        unsafe extern "C" fn $function(
            me: *mut c_void,
            caller: *const abi::Caller,
            target: Bytes,
            out: *mut u8,
            capacity: usize,
        ) -> i64 {
            let made = guard(|| {
                // SAFETY: what the server calls with, by the header.
                let ((mounted, cx), target) = unsafe { (enter(me, caller)?, slice(target)) };
                mounted.hooks.names.as_ref().ok_or(Errno::IO)?.$function(&cx, target)
            });
            // SAFETY: the server's room, by the header.
            unsafe { put(made, out, capacity) }
        }
    )* };
}

names! { encode_filename decode_filename fold_filename }
targets! { encode_target decode_target }

unsafe extern "C" fn matching(me: *mut c_void) -> c_int {
    // SAFETY: `instance` made it, and it lives until `close`.
    unsafe { me.cast::<Mounted>().as_ref() }.map_or(abi::MATCHING_EXACT, |mounted| mounted.matching)
}

unsafe extern "C" fn decode_attr(
    me: *mut c_void,
    caller: *const abi::Caller,
    file: *const abi::Object,
    attr: *mut abi::Attr,
) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((mounted, cx), file, out) =
            unsafe { (enter(me, caller)?, Remote::new(file)?, attr.as_mut().ok_or(Errno::IO)?) };
        let mut attr = attr_in(out).ok_or(Errno::IO)?;
        let hook = mounted.hooks.attributes.as_ref().ok_or(Errno::IO)?;
        hook.decode_attr(&cx, &file.lent(), &mut attr)?;
        *out = attr_out(&attr);
        Ok(0)
    }))
}

unsafe extern "C" fn encode_attr(
    me: *mut c_void,
    caller: *const abi::Caller,
    file: *const abi::Object,
    set: *mut abi::SetAttr,
) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((mounted, cx), file, out) =
            unsafe { (enter(me, caller)?, Remote::new(file)?, set.as_mut().ok_or(Errno::IO)?) };
        let mut set = set_in(out).ok_or(Errno::IO)?;
        let hook = mounted.hooks.attributes.as_ref().ok_or(Errno::IO)?;
        hook.encode_attr(&cx, &file.lent(), &mut set)?;
        *out = set_out(&set);
        Ok(0)
    }))
}

unsafe extern "C" fn encode_mode(
    me: *mut c_void,
    caller: *const abi::Caller,
    dir: *const abi::Object,
    kind: u32,
    mode: *mut u32,
) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((mounted, cx), dir, mode) =
            unsafe { (enter(me, caller)?, Remote::new(dir)?, mode.as_mut().ok_or(Errno::IO)?) };
        let hook = mounted.hooks.attributes.as_ref().ok_or(Errno::IO)?;
        *mode = hook.encode_mode(&cx, &dir.lent(), kind_in(kind), *mode)?;
        Ok(0)
    }))
}

unsafe extern "C" fn block_size(me: *mut c_void) -> usize {
    let size = guard(|| {
        // SAFETY: made by `instance`, by the header.
        let mounted = unsafe { me.cast::<Mounted>().as_ref() }.ok_or(Errno::IO)?;
        Ok(mounted.hooks.data.as_ref().ok_or(Errno::IO)?.block_size())
    });
    // Which the server refuses.
    size.unwrap_or(0)
}

unsafe extern "C" fn applies(me: *mut c_void, caller: *const abi::Caller, file: *const abi::Object) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((mounted, cx), file) = unsafe { (enter(me, caller)?, Remote::new(file)?) };
        Ok(mounted.hooks.data.as_ref().ok_or(Errno::IO)?.applies(&cx, &file.lent())?.into())
    }))
}

macro_rules! blocks {
    ($($function:ident)*) => { $(
        unsafe extern "C" fn $function(
            me: *mut c_void,
            caller: *const abi::Caller,
            file: *const abi::Object,
            number: u64,
            from: *const u8,
            to: *mut u8,
            len: usize,
        ) -> c_int {
            code(guard(|| {
                // SAFETY: what the server calls with, by the header: two buffers of `len` bytes that don't overlap.
                let ((mounted, cx), file, from, to) = unsafe {
                    let from = core::slice::from_raw_parts(from, len);
                    (enter(me, caller)?, Remote::new(file)?, from, core::slice::from_raw_parts_mut(to, len))
                };
                let at = Block { file: &file.lent(), number };
                mounted.hooks.data.as_ref().ok_or(Errno::IO)?.$function(&cx, &at, from, to)?;
                Ok(0)
            }))
        }
    )* };
}

blocks! { encode_data decode_data }

/// A codec's function, with its codec.
///
/// # Safety
/// `me` was made by [`instance`].
unsafe fn resizing<'a>(me: *mut c_void) -> Result<&'a (Arc<dyn BlockCodec>, Foreign)> {
    // SAFETY: this function's contract.
    let mounted = unsafe { me.cast::<Mounted>().as_ref() }.ok_or(Errno::IO)?;
    mounted.hooks.resizing.as_ref().ok_or(Errno::IO)
}

unsafe extern "C" fn storage(me: *mut c_void, out: *mut abi::Storage) -> c_int {
    code(guard(|| {
        // SAFETY: made by `instance`, and the server's room, by the header.
        let ((codec, foreign), out) = unsafe { (resizing(me)?, out.as_mut().ok_or(Errno::IO)?) };
        let foreign = match foreign {
            Foreign::Plain => abi::FOREIGN_PLAIN,
            Foreign::Refuse => abi::FOREIGN_REFUSE,
        };
        *out = abi::Storage { id: codec.id(), block_size: codec.block_size(), foreign };
        Ok(0)
    }))
}

unsafe extern "C" fn max_encoded(me: *mut c_void, plain: usize) -> usize {
    // SAFETY: made by `instance`, by the header.
    let most = guard(|| unsafe { resizing(me) }.map(|(codec, _)| codec.max_encoded(plain)));
    // Which the server refuses.
    most.unwrap_or(0)
}

/// # Safety
/// A place of the server's.
unsafe fn place(at: *const abi::BlockAt) -> Result<BlockAt> {
    // SAFETY: this function's contract.
    let at = unsafe { at.as_ref() }.ok_or(Errno::IO)?;
    Ok(BlockAt { file: at.file, block: at.block })
}

unsafe extern "C" fn encode(
    me: *mut c_void,
    at: *const abi::BlockAt,
    plain: Bytes,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    let made = guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((codec, _), at, plain) = unsafe { (resizing(me)?, place(at)?, slice(plain)) };
        let mut encoded = Vec::with_capacity(capacity);
        codec.encode(&at, plain, &mut encoded)?;
        Ok(encoded)
    });
    // SAFETY: the server's room, by the header.
    unsafe { put(made, out, capacity) }
}

unsafe extern "C" fn decode(
    me: *mut c_void,
    at: *const abi::BlockAt,
    encoded: Bytes,
    out: *mut u8,
    len: usize,
) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header: room for `len` bytes.
        let ((codec, _), at, encoded, out) =
            unsafe { (resizing(me)?, place(at)?, slice(encoded), core::slice::from_raw_parts_mut(out, len)) };
        codec.decode(&at, encoded, out)?;
        Ok(0)
    }))
}

unsafe extern "C" fn interest(me: *mut c_void) -> u64 {
    // SAFETY: made by `instance`, by the header.
    unsafe { me.cast::<Mounted>().as_ref() }.map_or(u64::MAX, |mounted| mounted.interest)
}

unsafe extern "C" fn before(
    me: *mut c_void,
    caller: *const abi::Caller,
    op: *const abi::Op,
    reply: *mut abi::Reply,
) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((mounted, cx), op) = unsafe { (enter(me, caller)?, op.as_ref().ok_or(Errno::IO)?) };
        let hook = mounted.hooks.operations.as_ref().ok_or(Errno::IO)?;
        // SAFETY: as before.
        match unsafe { with_op(op, |op| hook.before(&cx, op)) }?? {
            Verdict::Proceed => Ok(0),
            // SAFETY: the server's reply, by the header.
            Verdict::Answer(answer) => unsafe { fill(reply, answer) },
        }
    }))
}

unsafe extern "C" fn after(
    me: *mut c_void,
    caller: *const abi::Caller,
    op: *const abi::Op,
    answer: *const abi::Answer,
    reply: *mut abi::Reply,
) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((mounted, cx), op, answer) =
            unsafe { (enter(me, caller)?, op.as_ref().ok_or(Errno::IO)?, answer.as_ref().ok_or(Errno::IO)?) };
        let hook = mounted.hooks.operations.as_ref().ok_or(Errno::IO)?;
        // SAFETY: as before.
        let instead = unsafe { with_op(op, |op| with_answer(answer, |answer| hook.after(&cx, op, answer))) }??;
        match instead {
            Instead::Keep => Ok(0),
            // SAFETY: the server's reply, by the header.
            Instead::Of(Ok(answer)) => unsafe { fill(reply, answer) },
            Instead::Of(Err(errno)) => Err(errno),
        }
    }))
}

/// # Safety
/// A reply of the server's.
unsafe fn fill(reply: *mut abi::Reply, answer: Reply) -> Result<c_int> {
    // SAFETY: this function's contract. Through the pointer, since what follows the reply is the server's.
    unsafe {
        (*reply).kind = match answer {
            Reply::Done => abi::DONE,
            Reply::Missing => abi::MISSING,
            Reply::Attr(attr) => {
                (*reply).attr = attr_out(&attr);
                abi::ATTR
            }
            Reply::Bytes(bytes) => {
                let put = (*reply).put.ok_or(Errno::IO)?;
                match put(reply, bytes.as_ptr().cast(), bytes.len()) {
                    0 => abi::BYTES,
                    code => return Err(Errno::from_raw_os_error(-code)),
                }
            }
            Reply::Count(count) => {
                (*reply).count = count;
                abi::COUNT
            }
        };
    }
    Ok(1)
}

/// # Safety
/// An answer of the server's.
unsafe fn with_answer<R>(answer: &abi::Answer, see: impl FnOnce(Result<Answer<'_>>) -> R) -> Result<R> {
    if answer.error != 0 {
        return Ok(see(Err(Errno::from_raw_os_error(-answer.error))));
    }
    let attr = || -> Result<Attr> {
        // SAFETY: null, or attributes of the server's (this function's contract).
        attr_in(unsafe { answer.attr.as_ref() }.ok_or(Errno::IO)?).ok_or(Errno::IO)
    };
    Ok(match answer.kind {
        abi::DONE => see(Ok(Answer::Done)),
        abi::MISSING => see(Ok(Answer::Missing)),
        abi::ATTR => see(Ok(Answer::Attr(&attr()?))),
        // SAFETY: bytes of the server's (this function's contract).
        abi::BYTES => see(Ok(Answer::Bytes(unsafe { slice(answer.data) }))),
        abi::COUNT => see(Ok(Answer::Count(answer.count))),
        abi::OBJECT => {
            // SAFETY: an object of the server's (this function's contract).
            let object = unsafe { Remote::new(answer.object) }?;
            see(Ok(Answer::Object(&object.lent(), &attr()?)))
        }
        _ => return Err(Errno::IO),
    })
}

/// # Safety
/// An operation of the server's.
unsafe fn with_op<R>(op: &abi::Op, see: impl FnOnce(&Op<'_>) -> R) -> Result<R> {
    // SAFETY: this function's contract.
    let (one, other, name, new_name, data, set) = unsafe {
        let other = if op.other.is_null() { None } else { Some(Remote::new(op.other)?) };
        (Remote::new(op.object)?, other, slice(op.name), slice(op.new_name), slice(op.data), op.set.as_ref())
    };
    let set: SetAttr = set.map_or(Some(SetAttr::default()), set_in).ok_or(Errno::IO)?;
    let object = one.lent();
    let other = other.as_ref().map(Remote::lent);
    let index = usize::try_from(op.kind).unwrap_or(usize::MAX);
    let kind = *abi::OPERATIONS.get(index).ok_or(Errno::IO)?;
    let args = Args { op, object: &object, other: other.as_ref(), name, new_name, data, set: &set };
    Ok(see(&args.op(kind)?))
}

/// What an operation is made of again.
struct Args<'a> {
    op: &'a abi::Op,
    object: &'a Object<'a>,
    other: Option<&'a Object<'a>>,
    name: &'a [u8],
    new_name: &'a [u8],
    data: &'a [u8],
    set: &'a SetAttr,
}

impl<'a> Args<'a> {
    fn op(&self, kind: OpKind) -> Result<Op<'a>> {
        let (dir, file, bits) = (self.object, self.object, self.op.flags);
        let (one, two) = (bits & abi::FLAG_ONE != 0, bits & abi::FLAG_TWO != 0);
        let name = || Name::new(self.name);
        let other = || self.other.ok_or(Errno::IO);
        let (mode, flags, offset, len, data) = (self.op.mode, OpenFlags(bits), self.op.offset, self.op.len, self.data);
        Ok(match kind {
            OpKind::Lookup => Op::Lookup { dir, name: name()? },
            OpKind::Getattr => Op::Getattr { file },
            OpKind::Setattr => Op::Setattr { file, set: self.set },
            OpKind::Readlink => Op::Readlink { file },
            OpKind::Readdir => Op::Readdir { dir },
            OpKind::Open => Op::Open { file, flags },
            OpKind::Create => Op::Create { dir, name: name()?, mode, flags },
            OpKind::Tmpfile => Op::Tmpfile { dir, mode, flags },
            OpKind::Mknod => Op::Mknod { dir, name: name()?, mode, rdev: self.op.rdev },
            OpKind::Mkdir => Op::Mkdir { dir, name: name()?, mode },
            OpKind::Symlink => Op::Symlink { dir, name: name()?, target: data },
            OpKind::Link => Op::Link { dir, name: name()?, target: other()? },
            OpKind::Unlink => Op::Unlink { dir, name: name()? },
            OpKind::Rmdir => Op::Rmdir { dir, name: name()? },
            OpKind::Rename => {
                let flags = RenameFlags { no_replace: one, exchange: two, whiteout: bits & abi::FLAG_THREE != 0 };
                Op::Rename { dir, name: name()?, new_dir: other()?, new_name: Name::new(self.new_name)?, flags }
            }
            OpKind::Getxattr => Op::Getxattr { file, name: self.name },
            OpKind::Setxattr => {
                let flags = XattrFlags { create: one, replace: two };
                Op::Setxattr { file, name: self.name, value: data, flags }
            }
            OpKind::Listxattr => Op::Listxattr { file },
            OpKind::Removexattr => Op::Removexattr { file, name: self.name },
            OpKind::Refused => Op::Refused { file, mask: mode },
            OpKind::Statfs => Op::Statfs { file },
            OpKind::Fsync => Op::Fsync { file, data_only: one },
            OpKind::Ioctl => Op::Ioctl { file, cmd: self.op.cmd, input: data },
            OpKind::Read => Op::Read { file, offset, len: usize::try_from(len).unwrap_or(usize::MAX) },
            OpKind::Write => Op::Write { file, offset, data },
            OpKind::Flush => Op::Flush { file },
            OpKind::Fallocate => Op::Fallocate { file, mode, offset, len },
            OpKind::Seek => Op::Seek { file, offset },
            OpKind::Copy => Op::Copy { file, offset, len },
            // No hook is shown these.
            OpKind::Reflink | OpKind::Sync | OpKind::Names | OpKind::Vnode | OpKind::Control => return Err(Errno::IO),
        })
    }
}

unsafe extern "C" fn ioctl(
    me: *mut c_void,
    caller: *const abi::Caller,
    file: *const abi::Object,
    cmd: u32,
    input: Bytes,
    out: *mut u8,
    capacity: usize,
    out_len: *mut usize,
    result: *mut i32,
) -> c_int {
    code(guard(|| {
        // SAFETY: what the server calls with, by the header.
        let ((mounted, cx), file, input) = unsafe { (enter(me, caller)?, Remote::new(file)?, slice(input)) };
        let room = if capacity == 0 {
            &mut []
        } else {
            // SAFETY: the server's room for that many bytes, by the header.
            unsafe { core::slice::from_raw_parts_mut(out, capacity) }
        };
        let hook = mounted.hooks.ioctls.as_ref().ok_or(Errno::IO)?;
        let Some(reply) = hook.ioctl(&cx, &file.lent(), cmd, input, room)? else { return Ok(0) };
        // SAFETY: the server's, by the header.
        unsafe {
            out_len.write(reply.len);
            result.write(reply.result);
        }
        Ok(1)
    }))
}

unsafe extern "C" fn freed(me: *mut c_void, id: u64, state: *mut c_void) {
    // A hook that panics has been told.
    let _ = guard(|| {
        // SAFETY: made by `instance`, and a state that was attached, which nobody has any more, by the header.
        let (mounted, state) = unsafe { (me.cast::<Mounted>().as_ref().ok_or(Errno::IO)?, detached(state)) };
        if let Some(hook) = &mounted.hooks.objects {
            hook.freed(id, state);
        }
        Ok(())
    });
}
