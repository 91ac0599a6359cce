use crate::sys;
use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, CapabilitySets};
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
    capabilities: CapabilitySets,
}

impl Switched {
    fn to(server: Server, uid: u32, gid: u32) -> Result<Self> {
        let capabilities = rustix::thread::capabilities(None)?;
        // From here on, dropping the guard restores whatever was reached.
        let guard = Self { server, capabilities };
        if gid != server.gid && !sys::set_fs_gid(gid) {
            return Err(Errno::PERM);
        }
        if uid != server.uid {
            if !sys::set_fs_uid(uid) {
                return Err(Errno::PERM);
            }
            rustix::thread::set_capabilities(None, capabilities)?;
        }
        Ok(guard)
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        let restored = sys::set_fs_uid(self.server.uid) & sys::set_fs_gid(self.server.gid);
        debug_assert!(restored, "a thread could not get its own file-system ids back");
        // Becoming root again raises all of them: take those away again that this thread had given up.
        let sets = self.capabilities;
        let as_raised = self.server.uid == 0 && sets.effective & FS_CAPABILITIES == sets.permitted & FS_CAPABILITIES;
        if !as_raised {
            let lowered = rustix::thread::set_capabilities(None, sets);
            debug_assert!(lowered.is_ok(), "a thread could not get its own capabilities back");
        }
    }
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
