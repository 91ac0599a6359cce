//! Acting as somebody else, for a moment, in this thread alone.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary group, if any.
    pub group: Option<u32>,
}

/// The superuser.
pub const ROOT: Who = Who { uid: 0, gid: 0, group: None };
/// An ordinary user.
pub const USER: Who = Who { uid: 1000, gid: 1000, group: None };
/// Another one, who is in group 2000 too.
pub const OTHER: Who = Who { uid: 1001, gid: 1001, group: Some(2000) };

/// Does `what` as `who`: with effective ids and groups of that user, hence without capabilities if it is not root.
pub fn as_user<T>(who: Who, what: impl FnOnce() -> T) -> T {
    let back = Back;
    if who != ROOT {
        let groups: Vec<Gid> = who.group.into_iter().map(Gid::from_raw).collect();
        set_thread_groups(&groups).expect("setgroups");
        set_thread_res_gid(None, Gid::from_raw(who.gid), None).expect("setresgid");
        set_thread_res_uid(None, Uid::from_raw(who.uid), None).expect("setresuid");
    }
    let answer = what();
    drop(back);
    answer
}

/// Becomes root again, also after a panic.
struct Back;

impl Drop for Back {
    fn drop(&mut self) {
        set_thread_res_uid(None, Uid::ROOT, None).expect("setresuid back");
        set_thread_res_gid(None, Gid::ROOT, None).expect("setresgid back");
        set_thread_groups(&[]).expect("setgroups back");
    }
}
