//! Creates objects with the caller's ids and umask.

use crate::sys;
use rustix::fs::Mode;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities_secure_bits, set_capabilities_secure_bits,
};
use std::cell::Cell;
use vnode::{Cx, Errno, Result};

/// Capabilities that the kernel removes when a thread's file-system uid changes from 0, and
/// restores when it changes back.
const FS_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// The ids and privileges of the server process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    uid: u32,
    gid: u32,
    /// Whether it may switch to other ids.
    may_switch: bool,
}

impl Server {
    /// Returns those of this process, now.
    pub(crate) fn current() -> Self {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            may_switch: rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed)),
        }
    }

    /// Runs `create`, which creates an object with the mode passed to it. Owner, group and mode of
    /// the object are those that the caller would get: the thread takes the caller's file-system
    /// uid, gid and umask. The server's capabilities stay in force, because the kernel has already
    /// checked the caller's permissions.
    ///
    /// A server without the privilege to switch ids creates everything as itself.
    pub(crate) fn create_as<T>(&self, cx: &Cx<'_>, mode: u32, create: impl FnOnce(Mode) -> Result<T>) -> Result<T> {
        let mode = apply_umask(cx.umask, mode);
        let _switched = if self.may_switch && (cx.uid, cx.gid) != (self.uid, self.gid) {
            Some(Switched::to(*self, cx.uid, cx.gid)?)
        } else {
            None
        };
        create(mode)
    }
}

/// Switches this thread to a caller's file-system ids until dropped.
struct Switched {
    server: Server,
    /// The capabilities to restore, where the kernel changes them along with the uid.
    capabilities: Option<CapabilitySets>,
}

impl Switched {
    fn to(server: Server, uid: u32, gid: u32) -> Result<Self> {
        let capabilities = if keeps_capabilities() { None } else { Some(rustix::thread::capabilities(None)?) };
        // From here on, dropping the guard restores the ids, whichever were set.
        let guard = Self { server, capabilities };
        sys::set_fs_gid(gid);
        sys::set_fs_uid(uid);
        if ACCEPTED.get() != Some((uid, gid)) {
            if (sys::fs_uid(), sys::fs_gid()) != (uid, gid) {
                return Err(Errno::PERM);
            }
            ACCEPTED.set(Some((uid, gid)));
        }
        if let Some(capabilities) = capabilities.filter(|_| uid != server.uid) {
            rustix::thread::set_capabilities(None, capabilities)?;
        }
        Ok(guard)
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        // A thread may always switch back to its effective ids.
        sys::set_fs_uid(self.server.uid);
        sys::set_fs_gid(self.server.gid);
        debug_assert_eq!(
            (sys::fs_uid(), sys::fs_gid()),
            (self.server.uid, self.server.gid),
            "the kernel refused the server's own ids"
        );
        // Switching back to uid 0 raises all of them: lower those again that this thread had
        // dropped.
        let Some(sets) = self.capabilities else { return };
        let as_raised = self.server.uid == 0 && sets.effective & FS_CAPABILITIES == sets.permitted & FS_CAPABILITIES;
        if !as_raised {
            let lowered = rustix::thread::set_capabilities(None, sets);
            debug_assert!(lowered.is_ok(), "can't restore the thread's capabilities");
        }
    }
}

thread_local! {
    /// The last uid and gid that the kernel accepted for this thread; it will accept them again.
    static ACCEPTED: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
    /// Whether this thread keeps its capabilities across uid changes. `None`: not requested yet.
    static KEEPS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Makes the kernel keep this thread's capabilities when its file-system uid changes, which needs
/// `CAP_SETPCAP`. Returns whether it does.
fn keeps_capabilities() -> bool {
    KEEPS.get().unwrap_or_else(|| {
        let keep = CapabilitiesSecureBits::NO_SETUID_FIXUP;
        let kept = capabilities_secure_bits().and_then(|bits| set_capabilities_secure_bits(bits | keep)).is_ok();
        KEEPS.set(Some(kept));
        kept
    })
}

/// State of this thread's umask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Umask {
    /// Shared with other threads.
    Shared,
    /// Private to this thread, with this value.
    Own(u32),
    /// A private umask is not available (a seccomp filter).
    Refused,
}

thread_local! {
    static UMASK: Cell<Umask> = const { Cell::new(Umask::Shared) };
}

/// Sets this thread's umask, so that the host applies it or a default ACL, and returns the mode to
/// request.
///
/// Without a private umask, the mode is masked here; default ACLs are then not honoured in full.
fn apply_umask(mask: u32, mode: u32) -> Mode {
    let mask = mask & 0o777;
    UMASK.with(|state| {
        if state.get() == Umask::Shared {
            state.set(if sys::unshare_fs().is_ok() { Umask::Own(u32::MAX) } else { Umask::Refused });
        }
        match state.get() {
            Umask::Own(current) if current == mask => {}
            Umask::Own(_) => {
                rustix::process::umask(Mode::from_raw_mode(mask));
                state.set(Umask::Own(mask));
            }
            Umask::Shared | Umask::Refused => return Mode::from_raw_mode(mode & !mask),
        }
        Mode::from_raw_mode(mode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn ids_are_switched_for_one_call_and_capabilities_kept() {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let server = Server::current();
        let own = || rustix::thread::capabilities(None).unwrap().effective;
        let before = own();
        if !server.may_switch {
            return;
        }
        for uid in [1000, 7, 1000, server.uid] {
            let cx = Cx::new(uid, uid + 1, 0, 0, true, &NEVER);
            let seen = server.create_as(&cx, 0o644, |_| Ok((sys::fs_uid(), sys::fs_gid(), own())));
            assert_eq!(seen, Ok((uid, uid + 1, before)));
            assert_eq!((sys::fs_uid(), sys::fs_gid(), own()), (server.uid, server.gid, before));
        }
    }
}
