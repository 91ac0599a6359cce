//! Calls on behalf of a caller on another thread.

use std::sync::atomic::AtomicBool;
use vnode::{Call, Cx};

/// The part of a caller's context that may outlive the request.
#[derive(Debug)]
pub struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
    /// The original caller, and whether the operation is internal to a layer.
    account: u32,
    internal: bool,
    /// Facts about the caller, and cache lifetimes, which the operation may narrow.
    call: Option<Call>,
}

/// The result of an operation on another thread, with the cache lifetimes that the layers below
/// narrowed.
#[derive(Debug)]
pub struct CallerResult<T> {
    value: T,
    call: Option<Call>,
}

impl<T> CallerResult<T> {
    /// Returns the result, and limits the cache lifetimes of the caller's reply to the narrowed
    /// ones.
    pub fn take(self, cx: &Cx<'_>) -> T {
        if let (Some(call), Some(narrowed)) = (cx.call(), &self.call) {
            call.absorb(narrowed);
        }
        self.value
    }
}

/// A call on another thread is never interrupted; its caller abandons it.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Caller {
    /// Returns the part of `cx` that another thread needs.
    #[must_use]
    pub fn of(cx: &Cx<'_>) -> Self {
        let (account, internal) = (cx.caller(), cx.is_internal());
        Self { uid: cx.uid, gid: cx.gid, pid: cx.pid, account, internal, call: cx.call().map(Call::share) }
    }

    /// Runs `op` on this thread on behalf of the caller.
    pub fn run<T>(self, op: impl FnOnce(&Cx<'_>) -> T) -> CallerResult<T> {
        let value = op(&self.cx());
        CallerResult { value, call: self.call }
    }

    fn cx(&self) -> Cx<'_> {
        let cx = Cx::new(self.account, self.gid, self.pid, 0, true, &NEVER).as_server(self.uid, self.gid);
        let cx = if self.internal { cx } else { cx.held_for_caller() };
        self.call.as_ref().map_or(cx, |call| cx.with_call(call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_reach_the_other_thread() {
        let user = Cx::new(7, 8, 9, 0o22, true, &NEVER);
        for cx in [user, user.as_server(0, 0), user.as_server(0, 0).held_for_caller(), Cx::internal(1, 1)] {
            let credentials = |cx: &Cx<'_>| (cx.uid, cx.gid, cx.pid, cx.caller(), cx.is_internal());
            assert_eq!(Caller::of(&cx).run(credentials).take(&cx), credentials(&cx));
        }
    }
}
