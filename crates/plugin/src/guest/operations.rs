//! Functions of the C ABI that call hooks for whole operations.

use super::arguments::with_op;
use super::mounted::{Mounted, code, enter};
use super::remote::Remote;
use super::server::guard;
use crate::abi;
use crate::convert::{attr_in, attr_out, slice};
use core::ffi::{c_int, c_void};
use vnode::{Attr, Errno, Result};
use wrapfs::hooks::{Answer, Instead, Reply, Verdict};

pub(super) static OPERATIONS: abi::Operations = abi::Operations {
    size: size_of::<abi::Operations>(),
    interest: Some(interest),
    before: Some(before),
    after: Some(after),
};

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
