use crate::{Call, Errno, Result};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::path::Path;

/// Who calls, and how the call may behave: reaches every operation of every layer.
#[derive(Clone, Copy, Debug)]
pub struct Cx<'a> {
    /// File-system user id of the caller: owner of what it makes.
    pub uid: u32,
    /// File-system group id of the caller: group of what it makes, unless the directory is set-group-id.
    pub gid: u32,
    /// Process id of the caller, 0 if none: the way to its supplementary groups, session and name.
    pub pid: u32,
    /// The caller's umask. The bottom layer applies it, unless the directory has a default ACL.
    pub umask: u32,
    /// False where the thread must be free again within about a hundred microseconds: see [`crate::MAY_BLOCK`].
    pub may_block: bool,
    /// The user whose request led to this, also where a layer acts as the server.
    caller: u32,
    /// Is it a layer's own work?
    internal: bool,
    cancelled: Option<&'a AtomicBool>,
    call: Option<&'a Call>,
}

impl<'a> Cx<'a> {
    /// The context of a caller's request. `cancelled` becomes true when the caller gives up (a signal).
    #[must_use]
    pub const fn new(uid: u32, gid: u32, pid: u32, umask: u32, may_block: bool, cancelled: &'a AtomicBool) -> Self {
        Self { uid, gid, pid, umask, may_block, caller: uid, internal: false, cancelled: Some(cancelled), call: None }
    }

    /// The same, with what is kept of the request: facts about the caller, lifetimes of the answer.
    #[must_use]
    pub const fn of_call(self, call: &'a Call) -> Self {
        Self { call: Some(call), ..self }
    }

    /// What is kept of the request, for contexts that are passed on to another thread.
    #[must_use]
    pub const fn call(&self) -> Option<&'a Call> {
        self.call
    }

    /// The context of work that a layer does for itself, as the user that the server runs as (`uid`, `gid`): whiteouts,
    /// copied-up parents, records. Modes are taken as given (umask 0), and it may wait.
    #[must_use]
    pub const fn internal(uid: u32, gid: u32) -> Cx<'static> {
        Cx { uid, gid, pid: 0, umask: 0, may_block: true, caller: uid, internal: true, cancelled: None, call: None }
    }

    /// The same caller's interruption and patience, but acting as the server's own user: for a layer's own
    /// objects made in the course of a caller's operation.
    #[must_use]
    pub const fn as_server(&self, uid: u32, gid: u32) -> Cx<'a> {
        Cx { uid, gid, umask: 0, internal: true, ..*self }
    }

    /// The same, for what is done as the server's user but held for the caller, such as an open file: it counts in full as
    /// the caller's own, and can be refused where the caller has its share.
    #[must_use]
    pub const fn held_for_caller(&self) -> Self {
        Self { internal: false, ..*self }
    }

    /// The user on whose account this is done: the caller of the request, also where a layer acts as the server's user.
    #[must_use]
    pub const fn caller(&self) -> u32 {
        self.caller
    }

    /// Is this a layer's own work, and not what a caller has asked for?
    #[must_use]
    pub const fn is_internal(&self) -> bool {
        self.internal
    }

    /// Has the caller given up?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// The flag that becomes true when the caller gives up, if it can: for contexts that are passed on over a border.
    #[must_use]
    pub const fn cancelled(&self) -> Option<&'a AtomicBool> {
        self.cancelled
    }

    /// Supplementary groups of the caller's process; `None` where that can't be found out.
    ///
    /// Like the other facts below it is read on the first question and kept for this request.
    /// [`Self::session`] tells whether a process that was asked about earlier is still the same.
    #[must_use]
    pub fn groups(&self) -> Option<&'a [u32]> {
        self.call?.groups(self.pid)
    }

    /// Is the caller in that group, by its group id or a supplementary group? No, where that can't be found out.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups().is_some_and(|groups| groups.contains(&gid))
    }

    /// The umask of the caller's process, also where its request does not carry it.
    #[must_use]
    pub fn process_umask(&self) -> Option<u32> {
        self.call?.umask(self.pid)
    }

    /// Session id of the caller's process, and its start time in clock ticks since boot.
    #[must_use]
    pub fn session(&self) -> Option<(u32, u64)> {
        self.call?.session(self.pid)
    }

    /// The path of the program that the caller runs, in the caller's mount namespace. A hint: any
    /// program can be mounted over another.
    #[must_use]
    pub fn executable(&self) -> Option<&'a Path> {
        self.call?.executable(self.pid)
    }

    /// The caller's control group, as a path that begins with a slash.
    #[must_use]
    pub fn cgroup(&self) -> Option<&'a [u8]> {
        self.call?.cgroup(self.pid)
    }

    /// The answer about a name, found or missing, may be remembered for at most so long.
    ///
    /// Of several layers that say so the shortest time counts; with none, the mount's `cache=`.
    pub fn names_for_at_most(&self, time: Duration) {
        if let Some(call) = self.call {
            call.limit_names(time);
        }
    }

    /// The same for the attributes in the answer.
    pub fn attributes_for_at_most(&self, time: Duration) {
        if let Some(call) = self.call {
            call.limit_attributes(time);
        }
    }

    /// To be asked between the steps of long work.
    ///
    /// # Errors
    /// `EINTR` once the caller has given up.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Errno::INTR) } else { Ok(()) }
    }

    /// To be asked before work that may take long, and before anything was changed.
    ///
    /// # Errors
    /// [`crate::MAY_BLOCK`] if this thread must not be kept.
    pub fn require_blocking(&self) -> Result<()> {
        if self.may_block { Ok(()) } else { Err(crate::MAY_BLOCK) }
    }
}
