//! Conversion of attributes, callers and other values between Rust and the C ABI.

use crate::abi;
use core::sync::atomic::AtomicBool;
use std::sync::OnceLock;
use vnode::{Attr, Cx, Kind, SetAttr, SetTime, Time};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Returns the user and group that the server runs as.
fn server() -> (u32, u32) {
    static SERVER: OnceLock<(u32, u32)> = OnceLock::new();
    *SERVER.get_or_init(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()))
}

pub(crate) fn caller_out(cx: &Cx<'_>) -> abi::Caller {
    // Work done as the server's user is still accounted to the caller.
    let as_server = cx.is_internal() && cx.uid == server().0;
    abi::Caller {
        uid: if as_server { cx.caller() } else { cx.uid },
        gid: cx.gid,
        pid: cx.pid,
        umask: cx.umask,
        may_block: cx.may_block.into(),
        flags: if as_server { abi::AS_SERVER } else { 0 },
        cancelled: cx.cancelled().map_or(core::ptr::null(), |flag| flag.as_ptr().cast_const().cast()),
    }
}

/// # Safety
/// `caller` was created by [`caller_out`] from a context that lives as long, or is a copy with
/// another user.
pub(crate) unsafe fn caller_in(caller: &abi::Caller) -> Cx<'_> {
    let cancelled = if caller.cancelled.is_null() {
        &NEVER
    } else {
        // SAFETY: it is the address of the flag of a live context (guaranteed by the caller).
        unsafe { AtomicBool::from_ptr(caller.cancelled.cast_mut().cast()) }
    };
    let cx = Cx::new(caller.uid, caller.gid, caller.pid, caller.umask, caller.may_block != 0, cancelled);
    if caller.flags & abi::AS_SERVER == 0 {
        return cx;
    }
    let (uid, gid) = server();
    cx.as_server(uid, gid)
}

/// # Safety
/// `len` bytes at `bytes` can be read for `'a`, or `len` is 0.
pub(crate) unsafe fn slice<'a>(bytes: abi::Bytes) -> &'a [u8] {
    if bytes.len == 0 || bytes.bytes.is_null() {
        return &[];
    }
    // SAFETY: not null, and readable for that long (guaranteed by the caller).
    unsafe { core::slice::from_raw_parts(bytes.bytes, bytes.len) }
}

fn time_out(time: Time) -> abi::Time {
    abi::Time { sec: time.sec, nsec: time.nsec, reserved: 0 }
}

/// Returns `None` for an invalid time.
fn time_in(time: abi::Time) -> Option<Time> {
    (time.nsec < 1_000_000_000).then_some(Time { sec: time.sec, nsec: time.nsec })
}

pub(crate) fn attr_out(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        rdev: attr.rdev,
        atime: time_out(attr.atime),
        mtime: time_out(attr.mtime),
        ctime: time_out(attr.ctime),
        btime: time_out(attr.btime.unwrap_or_default()),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        blksize: attr.blksize,
        has_btime: attr.btime.is_some().into(),
    }
}

/// Returns `None` if a time is invalid.
pub(crate) fn attr_in(attr: &abi::Attr) -> Option<Attr> {
    Some(Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        rdev: attr.rdev,
        atime: time_in(attr.atime)?,
        mtime: time_in(attr.mtime)?,
        ctime: time_in(attr.ctime)?,
        btime: if attr.has_btime == 0 { None } else { Some(time_in(attr.btime)?) },
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        blksize: attr.blksize,
    })
}

pub(crate) fn set_out(set: &SetAttr) -> abi::SetAttr {
    let mut out = abi::SetAttr::default();
    let mut given = |is: bool, bit: u32| out.valid |= if is { bit } else { 0 };
    given(set.mode.is_some(), abi::SET_MODE);
    given(set.uid.is_some(), abi::SET_UID);
    given(set.gid.is_some(), abi::SET_GID);
    given(set.size.is_some(), abi::SET_SIZE);
    given(set.atime.is_some(), abi::SET_ATIME);
    given(set.mtime.is_some(), abi::SET_MTIME);
    given(set.atime == Some(SetTime::Now), abi::SET_ATIME_NOW);
    given(set.mtime == Some(SetTime::Now), abi::SET_MTIME_NOW);
    given(set.kill_suidgid, abi::SET_KILL_SUIDGID);
    let at = |time| if let Some(SetTime::At(time)) = time { time_out(time) } else { abi::Time::default() };
    (out.mode, out.uid, out.gid) = (set.mode.unwrap_or(0), set.uid.unwrap_or(0), set.gid.unwrap_or(0));
    (out.size, out.atime, out.mtime) = (set.size.unwrap_or(0), at(set.atime), at(set.mtime));
    out
}

/// Returns `None` if a time or the size is invalid.
pub(crate) fn set_in(set: &abi::SetAttr) -> Option<SetAttr> {
    let has = |bit: u32| set.valid & bit != 0;
    let time = |bit, now, time| match (has(bit), has(now)) {
        (false, _) => Some(None),
        (true, true) => Some(Some(SetTime::Now)),
        (true, false) => Some(Some(SetTime::At(time_in(time)?))),
    };
    if has(abi::SET_SIZE) && i64::try_from(set.size).is_err() {
        return None;
    }
    Some(SetAttr {
        mode: has(abi::SET_MODE).then_some(set.mode),
        uid: has(abi::SET_UID).then_some(set.uid),
        gid: has(abi::SET_GID).then_some(set.gid),
        size: has(abi::SET_SIZE).then_some(set.size),
        atime: time(abi::SET_ATIME, abi::SET_ATIME_NOW, set.atime)?,
        mtime: time(abi::SET_MTIME, abi::SET_MTIME_NOW, set.mtime)?,
        kill_suidgid: has(abi::SET_KILL_SUIDGID),
    })
}

pub(crate) fn kind_in(kind: u32) -> Kind {
    Kind::from_mode(kind).unwrap_or(Kind::Regular)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_round_trip() {
        let at = |sec| Time { sec, nsec: 999_999_999 };
        let mut attr = Attr {
            ino: 1,
            size: 2,
            blocks: 3,
            atime: at(-4),
            mtime: at(5),
            ctime: at(6),
            btime: Some(at(7)),
            mode: 0o100_644,
            nlink: 8,
            uid: 9,
            gid: 10,
            rdev: 11,
            blksize: 12,
        };
        assert_eq!(attr_in(&attr_out(&attr)), Some(attr));
        attr.btime = None;
        assert_eq!(attr_in(&attr_out(&attr)), Some(attr));
        let mut out = attr_out(&attr);
        out.mtime.nsec = 1_000_000_000;
        assert_eq!(attr_in(&out), None);
    }

    #[test]
    fn attribute_changes_round_trip() {
        let none = SetAttr::default();
        let all = SetAttr {
            mode: Some(1),
            uid: Some(2),
            gid: Some(3),
            size: Some(4),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Time { sec: 5, nsec: 6 })),
            kill_suidgid: true,
        };
        for set in [none, all, SetAttr { uid: Some(0), ..none }, SetAttr { atime: all.mtime, mtime: all.atime, ..none }]
        {
            assert_eq!(set_in(&set_out(&set)), Some(set));
        }
        let mut out = set_out(&all);
        out.size = u64::MAX;
        assert_eq!(set_in(&out), None);
    }
}
