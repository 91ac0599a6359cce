//! Acting as another user, temporarily and in the calling thread only.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Credentials of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary group, if any.
    pub group: Option<u32>,
}

/// The superuser.
pub const ROOT: Credentials = Credentials { uid: 0, gid: 0, group: None };
/// An ordinary user.
pub const USER: Credentials = Credentials { uid: 1000, gid: 1000, group: None };
/// Another ordinary user, also a member of group 2000.
pub const OTHER: Credentials = Credentials { uid: 1001, gid: 1001, group: Some(2000) };

/// Runs `what` with the effective ids and groups of `who`. Unless that is root, it runs without
/// capabilities.
pub fn as_user<T>(who: Credentials, what: impl FnOnce() -> T) -> T {
    let restore = RestoreRoot;
    if who != ROOT {
        let groups: Vec<Gid> = who.group.into_iter().map(Gid::from_raw).collect();
        set_thread_groups(&groups).expect("setgroups");
        set_thread_res_gid(None, Gid::from_raw(who.gid), None).expect("setresgid");
        set_thread_res_uid(None, Uid::from_raw(who.uid), None).expect("setresuid");
    }
    let result = what();
    drop(restore);
    result
}

/// Restores root's credentials when dropped, also after a panic.
struct RestoreRoot;

impl Drop for RestoreRoot {
    fn drop(&mut self) {
        set_thread_res_uid(None, Uid::ROOT, None).expect("restore the uid");
        set_thread_res_gid(None, Gid::ROOT, None).expect("restore the gid");
        set_thread_groups(&[]).expect("restore the groups");
    }
}
