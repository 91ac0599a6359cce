use super::instance::{Instance, must};
use super::offers::{Handle, lend};
use crate::abi::{self, Bytes};
use crate::convert::{attr_in, attr_out, caller_out, set_out, slice};
use core::ffi::{c_int, c_void};
use std::sync::Arc;
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{self, Instead, Object, Op, OpKind, OpSet, Outcome, Reply, Verdict};

#[derive(Debug)]
pub(super) struct Operations {
    instance: Arc<Instance>,
    interest: OpSet,
    before: Option<abi::Before>,
    after: Option<abi::After>,
}

impl Operations {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Operations) -> core::result::Result<Self, String> {
        let interest = must(table.interest, "interest")?;
        if table.before.is_none() && table.after.is_none() {
            return Err("its hooks before and after are both NULL; at least one is required".to_owned());
        }
        // SAFETY: calls the plugin's hook.
        let bits = unsafe { interest(instance.me()) };
        let numbered = abi::OPERATIONS.iter().zip(0_u32..);
        let kinds: Vec<OpKind> = numbered.filter(|(_, bit)| bits >> bit & 1 != 0).map(|(kind, _)| *kind).collect();
        let interest = OpSet::of(&kinds);
        Ok(Self { instance: instance.clone(), interest, before: table.before, after: table.after })
    }

    fn reply(&self, hook: &'static str, room: Room) -> Result<Reply> {
        Ok(match room.reply.kind {
            abi::DONE => Reply::Done,
            abi::MISSING => Reply::Missing,
            abi::BYTES => Reply::Bytes(room.bytes),
            abi::COUNT => Reply::Count(room.reply.count),
            abi::ATTR => {
                let attr = attr_in(&room.reply.attr);
                Reply::Attr(attr.ok_or_else(|| self.instance.log_error(hook, format_args!("set an invalid time")))?)
            }
            kind => {
                return Err(self.instance.log_error(hook, format_args!("returned the unknown reply kind {kind}")));
            }
        })
    }
}

impl hooks::Operations for Operations {
    fn interest(&self) -> OpSet {
        self.interest
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        const HOOK: &str = "before";
        let Some(before) = self.before else { return Ok(Verdict::Proceed) };
        let (caller, mut room) = (caller_out(cx), Room::new());
        let code = with_op(op, |op| {
            // SAFETY: calls the plugin's hook; all arguments outlive the call.
            unsafe { before(self.instance.me(), &raw const caller, op, room.lend()) }
        });
        match i64::from(code) {
            0 => Ok(Verdict::Proceed),
            1 => Ok(Verdict::Reply(self.reply(HOOK, room)?)),
            code => Err(self.instance.errno_for(cx, HOOK, code)),
        }
    }

    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, result: Result<Outcome<'_>>) -> Instead {
        const HOOK: &str = "after";
        let Some(after) = self.after else { return Instead::Keep };
        let (caller, mut room) = (caller_out(cx), Room::new());
        let code = with_op(op, |op| {
            with_outcome(result, |answer| {
                // SAFETY: calls the plugin's hook; all arguments outlive the call.
                unsafe { after(self.instance.me(), &raw const caller, op, answer, room.lend()) }
            })
        });
        match code {
            0 => Instead::Keep,
            1 => Instead::Of(self.reply(HOOK, room)),
            code => Instead::Of(Err(self.instance.errno_for(cx, HOOK, code.into()))),
        }
    }
}

/// A reply buffer lent to a hook, with the bytes that the hook puts into it.
#[repr(C)]
struct Room {
    reply: abi::Reply,
    bytes: Vec<u8>,
}

impl Room {
    fn new() -> Self {
        let reply =
            abi::Reply { kind: abi::DONE, reserved: 0, attr: abi::Attr::default(), count: 0, put: Some(Self::put) };
        Self { reply, bytes: Vec::new() }
    }

    /// Returns the address of the whole struct, which begins with the reply.
    fn lend(&mut self) -> *mut abi::Reply {
        core::ptr::from_mut(self).cast()
    }

    unsafe extern "C" fn put(reply: *mut abi::Reply, bytes: *const c_void, len: usize) -> c_int {
        // SAFETY: null, or the result of `lend`: a whole `Room`, lent only once.
        let Some(room) = (unsafe { reply.cast::<Self>().as_mut() }) else { return -Errno::INVAL.raw_os_error() };
        // The largest reply of any operation is that of a read.
        if len > (64 << 20) || room.bytes.try_reserve(len).is_err() {
            return -Errno::NOMEM.raw_os_error();
        }
        // SAFETY: the header guarantees `len` bytes of the plugin.
        room.bytes.extend_from_slice(unsafe { slice(Bytes { bytes: bytes.cast(), len }) });
        0
    }
}

fn with_outcome<R>(result: Result<Outcome<'_>>, call: impl FnOnce(*const abi::Answer) -> R) -> R {
    let mut answer = abi::Answer {
        error: 0,
        kind: abi::DONE,
        object: core::ptr::null(),
        attr: core::ptr::null(),
        data: Bytes::EMPTY,
        count: 0,
    };
    match result {
        Ok(Outcome::Done) => {}
        Ok(Outcome::Missing) => answer.kind = abi::MISSING,
        Ok(Outcome::Bytes(bytes)) => (answer.kind, answer.data) = (abi::BYTES, Bytes::of(bytes)),
        Ok(Outcome::Count(count)) => (answer.kind, answer.count) = (abi::COUNT, count),
        Ok(Outcome::Attr(attr)) => {
            let attr = attr_out(attr);
            (answer.kind, answer.attr) = (abi::ATTR, &raw const attr);
            return call(&raw const answer);
        }
        Ok(Outcome::Object(object, attr)) => {
            let (attr, handle) = (attr_out(attr), Handle::Lent(*object));
            let object = lend(&handle);
            (answer.kind, answer.object, answer.attr) = (abi::OBJECT, &raw const object, &raw const attr);
            return call(&raw const answer);
        }
        Err(errno) => answer.error = -errno.raw_os_error(),
    }
    call(&raw const answer)
}

/// Returns the object of an operation, and the second one if it has two.
fn objects<'a>(op: &Op<'a>) -> (Handle<'a>, Option<Handle<'a>>) {
    let (one, other): (&Object<'a>, Option<&Object<'a>>) = match *op {
        Op::Rename { dir, new_dir, .. } => (dir, Some(new_dir)),
        Op::Link { dir, target, .. } => (dir, Some(target)),
        Op::Lookup { dir, .. }
        | Op::Readdir { dir }
        | Op::Create { dir, .. }
        | Op::Tmpfile { dir, .. }
        | Op::Mknod { dir, .. }
        | Op::Mkdir { dir, .. }
        | Op::Symlink { dir, .. }
        | Op::Unlink { dir, .. }
        | Op::Rmdir { dir, .. } => (dir, None),
        Op::Getattr { file }
        | Op::Setattr { file, .. }
        | Op::Readlink { file }
        | Op::Open { file, .. }
        | Op::Getxattr { file, .. }
        | Op::Setxattr { file, .. }
        | Op::Listxattr { file }
        | Op::Removexattr { file, .. }
        | Op::Refused { file, .. }
        | Op::Statfs { file }
        | Op::Fsync { file, .. }
        | Op::Ioctl { file, .. }
        | Op::Read { file, .. }
        | Op::Write { file, .. }
        | Op::Flush { file }
        | Op::Fallocate { file, .. }
        | Op::Seek { file, .. }
        | Op::Copy { file, .. } => (file, None),
    };
    (Handle::Lent(*one), other.map(|other| Handle::Lent(*other)))
}

/// Runs `call` with the operation in C ABI form.
fn with_op<R>(op: &Op<'_>, call: impl FnOnce(*const abi::Op) -> R) -> R {
    let (one, other) = objects(op);
    let (one, other) = (lend(&one), other.as_ref().map(lend));
    let set = if let Op::Setattr { set, .. } = op { Some(set_out(set)) } else { None };
    let number = abi::OPERATIONS.iter().zip(0_u32..).find(|(kind, _)| **kind == op.kind()).map_or(u32::MAX, |(_, n)| n);
    let mut out = abi::Op {
        kind: number,
        flags: 0,
        object: &raw const one,
        other: other.as_ref().map_or(core::ptr::null(), core::ptr::from_ref),
        name: Bytes::EMPTY,
        new_name: Bytes::EMPTY,
        data: Bytes::EMPTY,
        set: set.as_ref().map_or(core::ptr::null(), core::ptr::from_ref),
        offset: 0,
        len: 0,
        rdev: 0,
        mode: 0,
        cmd: 0,
    };
    fill(&mut out, op);
    call(&raw const out)
}

const fn flags(one: bool, two: bool) -> u32 {
    (if one { abi::FLAG_ONE } else { 0 }) | (if two { abi::FLAG_TWO } else { 0 })
}

/// Fills in the arguments of an operation.
fn fill(out: &mut abi::Op, op: &Op<'_>) {
    let bytes = Bytes::of;
    match *op {
        Op::Lookup { name, .. } | Op::Link { name, .. } | Op::Unlink { name, .. } | Op::Rmdir { name, .. } => {
            out.name = bytes(name.as_bytes());
        }
        Op::Open { flags, .. } => out.flags = flags.0,
        Op::Create { name, mode, flags, .. } => {
            (out.name, out.mode, out.flags) = (bytes(name.as_bytes()), mode, flags.0);
        }
        Op::Tmpfile { mode, flags, .. } => (out.mode, out.flags) = (mode, flags.0),
        Op::Mknod { name, mode, rdev, .. } => (out.name, out.mode, out.rdev) = (bytes(name.as_bytes()), mode, rdev),
        Op::Mkdir { name, mode, .. } => (out.name, out.mode) = (bytes(name.as_bytes()), mode),
        Op::Symlink { name, target, .. } => (out.name, out.data) = (bytes(name.as_bytes()), bytes(target)),
        Op::Rename { name, new_name, flags: how, .. } => {
            (out.name, out.new_name) = (bytes(name.as_bytes()), bytes(new_name.as_bytes()));
            out.flags = flags(how.no_replace, how.exchange) | if how.whiteout { abi::FLAG_THREE } else { 0 };
        }
        Op::Getxattr { name, .. } | Op::Removexattr { name, .. } => out.name = bytes(name),
        Op::Setxattr { name, value, flags: how, .. } => {
            (out.name, out.data, out.flags) = (bytes(name), bytes(value), flags(how.create, how.replace));
        }
        Op::Refused { mask, .. } => out.mode = mask,
        Op::Fsync { data_only, .. } => out.flags = data_only.into(),
        Op::Ioctl { cmd, input, .. } => (out.cmd, out.data) = (cmd, bytes(input)),
        Op::Read { offset, len, .. } => (out.offset, out.len) = (offset, len as u64),
        Op::Write { offset, data, .. } => (out.offset, out.data) = (offset, bytes(data)),
        Op::Fallocate { mode, offset, len, .. } => (out.mode, out.offset, out.len) = (mode, offset, len),
        Op::Seek { offset, .. } => out.offset = offset,
        Op::Copy { offset, len, .. } => (out.offset, out.len) = (offset, len),
        Op::Getattr { .. }
        | Op::Setattr { .. }
        | Op::Readlink { .. }
        | Op::Readdir { .. }
        | Op::Listxattr { .. }
        | Op::Statfs { .. }
        | Op::Flush { .. } => {}
    }
}
