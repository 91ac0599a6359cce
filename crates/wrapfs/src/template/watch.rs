//! Observing operations before and after they run.

use super::attributes::fix_identity;
use super::data::blocking;
use super::guard::guard;
use super::node::TemplateVnode;
use crate::hooks::{Instead, Object, Op, OpKind, OpSet, Operations, Outcome, Reply, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Attr, Cx, Entry, Errno, IoctlReply, MAY_BLOCK, OpenFile, Result, StatFs, copy_value};

/// An [`Operations`] hook in use.
#[derive(Debug)]
pub(crate) struct Watch {
    hook: Box<dyn Operations>,
    interest: OpSet,
    /// Whether a reply of the wrong kind has been reported.
    bad_reply_reported: AtomicBool,
}

impl Watch {
    pub(crate) fn new(hook: Box<dyn Operations>) -> Self {
        // If the hook fails, let it observe everything, so that no operation that it would refuse
        // is missed.
        let interest = guard("interest", || Ok(hook.interest())).unwrap_or(OpSet::ALL);
        Self { hook, interest, bad_reply_reported: AtomicBool::new(false) }
    }

    pub(crate) fn sees(&self, kind: OpKind) -> bool {
        self.interest.has(kind)
    }

    /// Runs an operation unless the hook refuses it or replies to it, and passes the result to the
    /// hook.
    pub(crate) fn around<T: Observed>(&self, cx: &Cx<'_>, op: &Op<'_>, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(reply) = self.before(cx, op)? {
            return T::of(reply, op).ok_or_else(|| self.bad_reply(op));
        }
        let result = act();
        let instead = match &result {
            Ok(value) => value.with_outcome(|answer| self.after(cx, op, Ok(answer))),
            Err(errno) => self.after(cx, op, Err(*errno)),
        };
        match instead {
            Ok(None) => result,
            Ok(Some(reply)) => T::of(reply, op).ok_or_else(|| self.bad_reply(op)),
            Err(errno) => Err(errno),
        }
    }

    /// Like [`Self::around`], for operations that fill a buffer.
    pub(crate) fn around_bytes(
        &self,
        cx: &Cx<'_>,
        op: &Op<'_>,
        out: &mut [u8],
        act: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        if let Some(reply) = self.before(cx, op)? {
            return self.fill(op, reply, out);
        }
        let result = act(out);
        let instead = match result {
            Ok(len) => {
                let bytes = out.get(..len).filter(|_| !out.is_empty());
                self.after(cx, op, Ok(bytes.map_or(Outcome::Count(len as u64), Outcome::Bytes)))
            }
            Err(errno) => self.after(cx, op, Err(errno)),
        };
        match instead {
            Ok(None) => result,
            Ok(Some(reply)) => self.fill(op, reply, out),
            Err(errno) => Err(errno),
        }
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Option<Reply>> {
        match guard("before", || self.hook.before(cx, op))? {
            Verdict::Proceed => Ok(None),
            Verdict::Reply(reply) => Ok(Some(reply)),
        }
    }

    /// Passes the result to the hook. Returns its replacement, if any; the result of a change
    /// cannot be replaced.
    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, result: Result<Outcome<'_>>) -> Result<Option<Reply>> {
        if result.is_err_and(|errno| errno == MAY_BLOCK) {
            // The operation has not run. It will be retried on a thread that may block.
            return Ok(None);
        }
        if !op.kind().is_query() {
            // The operation has run and will not be retried, so the hook may block.
            let _ = guard("after", || Ok(self.hook.after(&blocking(cx), op, result)));
            return Ok(None);
        }
        match guard("after", || Ok(self.hook.after(cx, op, result)))? {
            Instead::Keep => Ok(None),
            Instead::Of(Ok(reply)) => Ok(Some(reply)),
            Instead::Of(Err(errno)) => Err(errno),
        }
    }

    /// Copies a reply to `out`, in place of bytes from the layer below.
    fn fill(&self, op: &Op<'_>, reply: Reply, out: &mut [u8]) -> Result<usize> {
        match (reply, op) {
            (Reply::Bytes(bytes), Op::Read { .. }) => {
                let len = bytes.len().min(out.len());
                copy(&bytes, out.get_mut(..len));
                Ok(len)
            }
            (Reply::Bytes(bytes), _) => copy_value(&bytes, out),
            _ => Err(self.bad_reply(op)),
        }
    }

    fn bad_reply(&self, op: &Op<'_>) -> Errno {
        if !self.bad_reply_reported.swap(true, Ordering::Relaxed) {
            tracing::error!(hook = ?self.hook, "hook returned a reply that does not suit {:?}", op.kind());
        }
        Errno::IO
    }
}

fn copy(bytes: &[u8], room: Option<&mut [u8]>) {
    if let Some(room) = room {
        let len = room.len();
        room.copy_from_slice(bytes.get(..len).unwrap_or_default());
    }
}

/// The result of an operation: converted to an [`Outcome`] for a hook, and from a hook's [`Reply`].
pub(crate) trait Observed: Sized {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R;
    fn of(reply: Reply, op: &Op<'_>) -> Option<Self>;
}

impl Observed for () {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Done)
    }

    fn of(reply: Reply, _op: &Op<'_>) -> Option<Self> {
        (reply == Reply::Done).then_some(())
    }
}

impl Observed for Option<Entry> {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        match self {
            Some(entry) => entry.with_outcome(see),
            None => see(Outcome::Missing),
        }
    }

    fn of(reply: Reply, _op: &Op<'_>) -> Option<Self> {
        (reply == Reply::Missing).then_some(None)
    }
}

impl Observed for Entry {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        // Every vnode that this layer returns is its own.
        let own = self.vnode.as_any().downcast_ref::<TemplateVnode>();
        let object = own.map_or_else(|| Object::new(&*self.vnode), TemplateVnode::object);
        see(Outcome::Object(&object, &self.attr))
    }

    fn of(_reply: Reply, _op: &Op<'_>) -> Option<Self> {
        None
    }
}

impl Observed for (Entry, Arc<dyn OpenFile>) {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        self.0.with_outcome(see)
    }

    fn of(_reply: Reply, _op: &Op<'_>) -> Option<Self> {
        None
    }
}

impl Observed for Arc<dyn OpenFile> {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Done)
    }

    fn of(_reply: Reply, _op: &Op<'_>) -> Option<Self> {
        None
    }
}

impl Observed for Attr {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Attr(self))
    }

    fn of(reply: Reply, op: &Op<'_>) -> Option<Self> {
        let (Op::Getattr { file } | Op::Setattr { file, .. }) = op else { return None };
        let Reply::Attr(mut attr) = reply else { return None };
        fix_identity(file.lower(), &mut attr);
        Some(attr)
    }
}

impl Observed for Vec<u8> {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Bytes(self))
    }

    fn of(reply: Reply, _op: &Op<'_>) -> Option<Self> {
        if let Reply::Bytes(bytes) = reply { Some(bytes) } else { None }
    }
}

impl Observed for u64 {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Count(*self))
    }

    fn of(reply: Reply, _op: &Op<'_>) -> Option<Self> {
        if let Reply::Count(count) = reply { Some(count) } else { None }
    }
}

impl Observed for usize {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Count(*self as u64))
    }

    /// The count must not exceed what was to be written.
    fn of(reply: Reply, op: &Op<'_>) -> Option<Self> {
        let (Reply::Count(count), Op::Write { data, .. }) = (reply, op) else { return None };
        Self::try_from(count).ok().filter(|&count| count <= data.len())
    }
}

impl Observed for StatFs {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Done)
    }

    fn of(_reply: Reply, _op: &Op<'_>) -> Option<Self> {
        None
    }
}

impl Observed for IoctlReply {
    fn with_outcome<R>(&self, see: impl FnOnce(Outcome<'_>) -> R) -> R {
        see(Outcome::Done)
    }

    fn of(_reply: Reply, _op: &Op<'_>) -> Option<Self> {
        None
    }
}
