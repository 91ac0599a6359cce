use crate::sys;
use rustix::fs::Mode;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities_secure_bits, set_capabilities_secure_bits,
};
use std::cell::Cell;
use vnode::{Cx, Errno, Result};

/// Capabilities that the kernel takes from a thread whose file-system uid ceases to be 0, and gives back when it becomes 0.
const FS_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// Whom the server runs as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    uid: u32,
    gid: u32,
    /// May it act as somebody else?
    may_switch: bool,
}

impl Server {
    /// This process, now.
    pub(crate) fn current() -> Self {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            may_switch: rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed)),
        }
    }

    /// Runs `make`, which makes an object with permission bits from what it is given, so that the object's owner, group
    /// and mode come out as if the caller had made it: file-system uid and gid are the caller's, the umask too. The server's
    /// capabilities stay in force, since the kernel has checked the caller's permissions above us.
    ///
    /// A server without the privilege to switch makes everything as itself.
    pub(crate) fn create_as<T>(&self, cx: &Cx<'_>, mode: u32, make: impl FnOnce(Mode) -> Result<T>) -> Result<T> {
        let mode = apply_umask(cx.umask, mode);
        let _switched = if self.may_switch && (cx.uid, cx.gid) != (self.uid, self.gid) {
            Some(Switched::to(*self, cx.uid, cx.gid)?)
        } else {
            None
        };
        make(mode)
    }
}

/// This thread acts with a caller's file-system ids until this is dropped.
struct Switched {
    server: Server,
    /// What the kernel is told again, where it takes and gives capabilities along with the uid.
    capabilities: Option<CapabilitySets>,
}

impl Switched {
    fn to(server: Server, uid: u32, gid: u32) -> Result<Self> {
        let capabilities = if keeps_capabilities() { None } else { Some(rustix::thread::capabilities(None)?) };
        // From here on, dropping the guard restores whatever was reached.
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
        // The effective ids, which anybody may take.
        sys::set_fs_uid(self.server.uid);
        sys::set_fs_gid(self.server.gid);
        debug_assert_eq!((sys::fs_uid(), sys::fs_gid()), (self.server.uid, self.server.gid), "its own ids are refused");
        // Becoming root again raises all of them: take those away again that this thread had given up.
        let Some(sets) = self.capabilities else { return };
        let as_raised = self.server.uid == 0 && sets.effective & FS_CAPABILITIES == sets.permitted & FS_CAPABILITIES;
        if !as_raised {
            let lowered = rustix::thread::set_capabilities(None, sets);
            debug_assert!(lowered.is_ok(), "a thread could not get its own capabilities back");
        }
    }
}

thread_local! {
    /// The uid and gid that the kernel let this thread take last: it will do so again.
    static ACCEPTED: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
    /// Does this thread keep its capabilities whatever its uid? `None`: not yet asked for.
    static KEEPS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Has the kernel leave this thread's capabilities alone when its file-system uid changes, if that may be had (`CAP_SETPCAP`).
fn keeps_capabilities() -> bool {
    KEEPS.get().unwrap_or_else(|| {
        let keep = CapabilitiesSecureBits::NO_SETUID_FIXUP;
        let kept = capabilities_secure_bits().and_then(|bits| set_capabilities_secure_bits(bits | keep)).is_ok();
        KEEPS.set(Some(kept));
        kept
    })
}

/// What this thread knows about its umask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Umask {
    /// Still shared with other threads.
    Shared,
    /// The thread's own, and this.
    Own(u32),
    /// It can't be had for the thread alone (a seccomp filter).
    Refused,
}

thread_local! {
    static UMASK: Cell<Umask> = const { Cell::new(Umask::Shared) };
}

/// Makes `mask` the umask of this thread, so that the host applies it or a default ACL, and answers the mode to ask for.
///
/// Where a thread can't have its own umask, the mode is masked here; then default ACLs are not honoured in full.
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
    fn ids_are_taken_for_one_call_and_capabilities_stay() {
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
