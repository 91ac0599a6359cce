//! C ABI functions that call the operations hook.

use super::arguments::with_op;
use super::mounted::{Mounted, code, enter};
use super::remote::Remote;
use super::server::guard;
use crate::abi;
use crate::convert::{attr_in, attr_out, slice};
use core::ffi::{c_int, c_void};
use vnode::{Attr, Errno, Result};
use wrapfs::hooks::{Instead, Outcome, Reply, Verdict};

pub(super) static OPERATIONS: abi::Operations = abi::Operations {
    size: size_of::<abi::Operations>(),
    interest: Some(interest),
    before: Some(before),
    after: Some(after),
};

unsafe extern "C" fn interest(me: *mut c_void) -> u64 {
    // SAFETY: the header guarantees that `me` was created by `instance`.
    unsafe { me.cast::<Mounted>().as_ref() }.map_or(u64::MAX, |mounted| mounted.interest)
}

unsafe extern "C" fn before(
    me: *mut c_void,
    caller: *const abi::Caller,
    op: *const abi::Op,
    reply: *mut abi::Reply,
) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let ((mounted, cx), op) = unsafe { (enter(me, caller)?, op.as_ref().ok_or(Errno::IO)?) };
        let hook = mounted.hooks.operations.as_ref().ok_or(Errno::IO)?;
        // SAFETY: as above.
        match unsafe { with_op(op, |op| hook.before(&cx, op)) }?? {
            Verdict::Proceed => Ok(0),
            // SAFETY: the header guarantees the server's reply buffer.
            Verdict::Reply(answer) => unsafe { fill(reply, answer) },
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
        // SAFETY: the header guarantees the server's arguments.
        let ((mounted, cx), op, answer) =
            unsafe { (enter(me, caller)?, op.as_ref().ok_or(Errno::IO)?, answer.as_ref().ok_or(Errno::IO)?) };
        let hook = mounted.hooks.operations.as_ref().ok_or(Errno::IO)?;
        // SAFETY: as above.
        let instead = unsafe { with_op(op, |op| with_outcome(answer, |answer| hook.after(&cx, op, answer))) }??;
        match instead {
            Instead::Keep => Ok(0),
            // SAFETY: the header guarantees the server's reply buffer.
            Instead::Of(Ok(answer)) => unsafe { fill(reply, answer) },
            Instead::Of(Err(errno)) => Err(errno),
        }
    }))
}

/// # Safety
/// `reply` comes from the server.
unsafe fn fill(reply: *mut abi::Reply, answer: Reply) -> Result<c_int> {
    // SAFETY: guaranteed by the caller. Access through the pointer, because the server's data
    // follows the reply.
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
/// `answer` comes from the server.
unsafe fn with_outcome<R>(answer: &abi::Answer, see: impl FnOnce(Result<Outcome<'_>>) -> R) -> Result<R> {
    if answer.error != 0 {
        return Ok(see(Err(Errno::from_raw_os_error(-answer.error))));
    }
    let attr = || -> Result<Attr> {
        // SAFETY: null, or attributes from the server (guaranteed by the caller).
        attr_in(unsafe { answer.attr.as_ref() }.ok_or(Errno::IO)?).ok_or(Errno::IO)
    };
    Ok(match answer.kind {
        abi::DONE => see(Ok(Outcome::Done)),
        abi::MISSING => see(Ok(Outcome::Missing)),
        abi::ATTR => see(Ok(Outcome::Attr(&attr()?))),
        // SAFETY: bytes from the server (guaranteed by the caller).
        abi::BYTES => see(Ok(Outcome::Bytes(unsafe { slice(answer.data) }))),
        abi::COUNT => see(Ok(Outcome::Count(answer.count))),
        abi::OBJECT => {
            // SAFETY: an object of the server's (guaranteed by the caller).
            let object = unsafe { Remote::new(answer.object) }?;
            see(Ok(Outcome::Object(&object.lent(), &attr()?)))
        }
        _ => return Err(Errno::IO),
    })
}
