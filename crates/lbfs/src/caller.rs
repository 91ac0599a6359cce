//! Working for a caller on another thread.

use std::sync::atomic::AtomicBool;
use vnode::{Call, Cx};

/// A caller, as far as a thread that may outlive the request can know it.
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
    /// On whose account it is, and whether it is a layer's own work.
    account: u32,
    internal: bool,
    /// The facts about the caller, and lifetimes that are narrowed on that thread.
    call: Option<Call>,
}

/// What comes back from a thread that worked for a caller: an answer, and lifetimes that the layers
/// below narrowed.
pub(crate) struct Told<T> {
    value: T,
    call: Option<Call>,
}

impl<T> Told<T> {
    /// The answer. The caller's own answer is remembered for no longer than that of the replica.
    pub(crate) fn take(self, cx: &Cx<'_>) -> T {
        if let (Some(call), Some(narrowed)) = (cx.call(), &self.call) {
            call.absorb(narrowed);
        }
        self.value
    }
}

/// Nothing interrupts a call on a replica's thread; the caller gives it up at the deadline.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Caller {
    pub(crate) fn of(cx: &Cx<'_>) -> Self {
        let (account, internal) = (cx.caller(), cx.is_internal());
        Self { uid: cx.uid, gid: cx.gid, pid: cx.pid, account, internal, call: cx.call().map(Call::share) }
    }

    /// Does `op` on this thread, for the caller.
    pub(crate) fn run<T>(self, op: impl FnOnce(&Cx<'_>) -> T) -> Told<T> {
        let value = op(&self.cx());
        Told { value, call: self.call }
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
    fn a_replicas_thread_knows_on_whose_account_it_works() {
        let user = Cx::new(7, 8, 9, 0o22, true, &NEVER);
        for cx in [user, user.as_server(0, 0), user.as_server(0, 0).held_for_caller(), Cx::internal(1, 1)] {
            let said = |cx: &Cx<'_>| (cx.uid, cx.gid, cx.pid, cx.caller(), cx.is_internal());
            assert_eq!(Caller::of(&cx).run(said).take(&cx), said(&cx));
        }
    }
}
