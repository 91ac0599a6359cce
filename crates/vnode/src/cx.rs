use crate::{Call, Errno, Result};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::path::Path;

/// The context of a call: its caller, and how the call may behave. Every operation of every layer
/// receives one.
#[derive(Clone, Copy, Debug)]
pub struct Cx<'a> {
    /// File-system user ID of the caller; owner of the objects it creates.
    pub uid: u32,
    /// File-system group ID of the caller; group of the objects it creates, unless the directory is
    /// set-group-ID.
    pub gid: u32,
    /// Process ID of the caller, 0 if none. Used to read its supplementary groups, session and
    /// executable.
    pub pid: u32,
    /// The caller's umask. The bottom layer applies it, unless the directory has a default ACL.
    pub umask: u32,
    /// False if the thread must not block for more than about 100 microseconds: see
    /// [`crate::MAY_BLOCK`].
    pub may_block: bool,
    /// User who sent the request, even where a layer acts as the server.
    caller: u32,
    /// Whether this is a layer's internal work.
    internal: bool,
    /// Whether the call may wait for a file system that hangs.
    may_wait: bool,
    cancelled: Option<&'a AtomicBool>,
    call: Option<&'a Call>,
}

impl<'a> Cx<'a> {
    /// Returns the context of a caller's request. `cancelled` becomes true when the caller is
    /// interrupted by a signal.
    #[must_use]
    pub const fn new(uid: u32, gid: u32, pid: u32, umask: u32, may_block: bool, cancelled: &'a AtomicBool) -> Self {
        Self {
            uid,
            gid,
            pid,
            umask,
            may_block,
            caller: uid,
            internal: false,
            may_wait: true,
            cancelled: Some(cancelled),
            call: None,
        }
    }

    /// Returns the same context with the state of the request: caller facts and cache lifetimes.
    #[must_use]
    pub const fn with_call(self, call: &'a Call) -> Self {
        Self { call: Some(call), ..self }
    }

    /// Returns the state of the request, to build a context for another thread.
    #[must_use]
    pub const fn call(&self) -> Option<&'a Call> {
        self.call
    }

    /// Returns the context of a layer's internal work, as the server's user (`uid`, `gid`):
    /// whiteouts, copied-up parent directories, metadata. Modes are used as given (umask 0), and
    /// the work may block.
    #[must_use]
    pub const fn internal(uid: u32, gid: u32) -> Cx<'static> {
        Cx {
            uid,
            gid,
            pid: 0,
            umask: 0,
            may_block: true,
            caller: uid,
            internal: true,
            may_wait: true,
            cancelled: None,
            call: None,
        }
    }

    /// Returns a context that acts as the server's user for the same caller, with the same
    /// cancellation and blocking rules. For internal objects created during a caller's operation.
    #[must_use]
    pub const fn as_server(&self, uid: u32, gid: u32) -> Cx<'a> {
        Cx { uid, gid, umask: 0, internal: true, ..*self }
    }

    /// Returns the same context, for a resource that the server's user acquires on behalf of the
    /// caller, such as an open file. The resource counts against the caller's quota and can be
    /// refused when the quota is used up.
    #[must_use]
    pub const fn held_for_caller(&self) -> Self {
        Self { internal: false, ..*self }
    }

    /// Returns the user whom this work is accounted to: the caller of the request, even where a
    /// layer acts as the server's user.
    #[must_use]
    pub const fn caller(&self) -> u32 {
        self.caller
    }

    /// Whether this is a layer's internal work rather than a caller's operation.
    #[must_use]
    pub const fn is_internal(&self) -> bool {
        self.internal
    }

    /// Returns the same context for a call whose caller can do without the answer: on a file system
    /// that hangs, it fails with `ETIMEDOUT` instead of waiting.
    #[must_use]
    pub const fn without_waiting(&self) -> Self {
        Self { may_wait: false, ..*self }
    }

    /// Whether the call may wait for a file system that hangs.
    #[must_use]
    pub const fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Whether the caller has been interrupted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Returns the flag that becomes true when the caller is interrupted, to pass the context over
    /// an ABI or thread boundary.
    #[must_use]
    pub const fn cancelled(&self) -> Option<&'a AtomicBool> {
        self.cancelled
    }

    /// Returns the supplementary groups of the caller's process, or `None` if they cannot be read.
    ///
    /// Like the other process facts below, it is read on first use and cached for this request.
    /// [`Self::session`] detects PID reuse between requests.
    #[must_use]
    pub fn groups(&self) -> Option<&'a [u32]> {
        self.call?.groups(self.pid)
    }

    /// Whether `gid` is the caller's group ID or one of its supplementary groups. False if the
    /// groups cannot be read.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups().is_some_and(|groups| groups.contains(&gid))
    }

    /// Returns the umask of the caller's process, even if the request does not carry it.
    #[must_use]
    pub fn process_umask(&self) -> Option<u32> {
        self.call?.umask(self.pid)
    }

    /// Returns the session ID of the caller's process and its start time in clock ticks since boot.
    #[must_use]
    pub fn session(&self) -> Option<(u32, u64)> {
        self.call?.session(self.pid)
    }

    /// Returns the session ID of the caller's process. Costs one system call, [`Self::session`]
    /// several.
    #[must_use]
    pub fn session_id(&self) -> Option<u32> {
        self.call?.session_id(self.pid)
    }

    /// Returns the path of the caller's executable in the caller's mount namespace. This is a hint
    /// only: any program can be bind-mounted over another.
    #[must_use]
    pub fn executable(&self) -> Option<&'a Path> {
        self.call?.executable(self.pid)
    }

    /// Returns the caller's cgroup path, with a leading slash.
    #[must_use]
    pub fn cgroup(&self) -> Option<&'a [u8]> {
        self.call?.cgroup(self.pid)
    }

    /// Limits how long the kernel may cache the name in the reply, positive or negative.
    ///
    /// The shortest limit of all layers applies. Without one, the mount's `cache=` option applies.
    pub fn limit_name_lifetime(&self, time: Duration) {
        if let Some(call) = self.call {
            call.limit_names(time);
        }
    }

    /// Limits how long the kernel may cache the attributes in the reply.
    pub fn limit_attr_lifetime(&self, time: Duration) {
        if let Some(call) = self.call {
            call.limit_attributes(time);
        }
    }

    /// Fails if the caller has been interrupted. Call it between the steps of long work.
    ///
    /// # Errors
    /// `EINTR` if the caller has been interrupted.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Errno::INTR) } else { Ok(()) }
    }

    /// Fails if this thread must not block. Call it before work that may take long, and before
    /// changing anything.
    ///
    /// # Errors
    /// [`crate::MAY_BLOCK`] if this thread must not block.
    pub fn require_blocking(&self) -> Result<()> {
        if self.may_block { Ok(()) } else { Err(crate::MAY_BLOCK) }
    }
}
