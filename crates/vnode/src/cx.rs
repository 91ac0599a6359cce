use crate::{Errno, Result};
use core::sync::atomic::{AtomicBool, Ordering};

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
}

impl<'a> Cx<'a> {
    /// The context of a caller's request. `cancelled` becomes true when the caller gives up (a signal).
    #[must_use]
    pub const fn new(uid: u32, gid: u32, pid: u32, umask: u32, may_block: bool, cancelled: &'a AtomicBool) -> Self {
        Self { uid, gid, pid, umask, may_block, caller: uid, internal: false, cancelled: Some(cancelled) }
    }

    /// The context of work that a layer does for itself, as the user that the server runs as (`uid`, `gid`): whiteouts,
    /// copied-up parents, records. Modes are taken as given (umask 0), and it may wait.
    #[must_use]
    pub const fn internal(uid: u32, gid: u32) -> Cx<'static> {
        Cx { uid, gid, pid: 0, umask: 0, may_block: true, caller: uid, internal: true, cancelled: None }
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
        self.cancelled.is_some_and(|c| c.load(Ordering::Relaxed))
    }

    /// The flag that becomes true when the caller gives up, if it can: for contexts that are passed on over a border.
    #[must_use]
    pub const fn cancelled(&self) -> Option<&'a AtomicBool> {
        self.cancelled
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
