//! Helper functions for test cases.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Attr, Call, Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Processes, RenameFlags, Result, Vnode};

/// Root with umask 0.
pub const ROOT: Cx<'static> = Cx::internal(0, 0);

/// A cancellation flag that is never set.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Returns the context of an unprivileged user.
#[must_use]
pub const fn user(uid: u32, gid: u32, umask: u32) -> Cx<'static> {
    Cx::new(uid, gid, 0, umask, true, &NEVER)
}

/// Every process is alone in the session of its ID.
#[derive(Debug)]
struct Alone;

impl Processes for Alone {
    fn groups(&self, _pid: u32) -> Option<Vec<u32>> {
        None
    }

    fn umask(&self, _pid: u32) -> Option<u32> {
        None
    }

    fn session(&self, pid: u32) -> Option<(u32, u64)> {
        (pid != 0).then_some((pid, 0))
    }

    fn executable(&self, _pid: u32) -> Option<PathBuf> {
        None
    }

    fn cgroup(&self, _pid: u32) -> Option<Vec<u8>> {
        None
    }
}

/// Calls `act` as a user in a session.
pub fn in_session<T>(uid: u32, session: u32, act: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::new(&Alone);
    act(&Cx::new(uid, 0, session, 0, true, &NEVER).with_call(&call))
}

/// Flags for reading and writing with `O_APPEND`.
pub const APPEND: OpenFlags = OpenFlags(OpenFlags::RDWR.0 | 0o2000);

/// Returns a valid name.
#[must_use]
pub fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

/// Creates a regular file with this content and mode 0644.
pub fn file(dir: &Arc<dyn Vnode>, at: &str, bytes: &[u8]) -> Entry {
    let (entry, open) = dir.create(&ROOT, name(at), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(open.write(&ROOT, bytes, 0), Ok(bytes.len()));
    entry
}

/// Creates a directory with mode 0755.
pub fn dir(parent: &Arc<dyn Vnode>, at: &str) -> Arc<dyn Vnode> {
    parent.mkdir(&ROOT, name(at), 0o755).unwrap().vnode
}

/// Looks up a name.
pub fn find(dir: &Arc<dyn Vnode>, at: &str) -> Option<Entry> {
    dir.lookup(&ROOT, name(at)).unwrap()
}

/// Looks up a name that must exist.
pub fn must_find(dir: &Arc<dyn Vnode>, at: &str) -> Entry {
    find(dir, at).unwrap_or_else(|| panic!("{at} is not there"))
}

/// Returns the attributes.
pub fn attr(vnode: &Arc<dyn Vnode>) -> Attr {
    vnode.getattr(&ROOT).unwrap()
}

/// Returns the content of a file.
pub fn bytes(vnode: &Arc<dyn Vnode>) -> Vec<u8> {
    read_from(&*vnode.open(&ROOT, OpenFlags::RDONLY).unwrap(), 0, 1 << 20)
}

/// Reads up to `len` bytes from an open file.
pub fn read_from(file: &dyn OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let len = file.read(&ROOT, &mut out, offset).unwrap();
    out.truncate(len);
    out
}

/// Lists the names, types and numbers of a directory in name order, using the cookie of each entry.
pub fn list(dir: &Arc<dyn Vnode>) -> Vec<(Vec<u8>, Kind, u64)> {
    let mut all = Vec::new();
    dir.readdir(&ROOT, 0, &mut |entry| {
        assert_ne!(entry.cookie, 0);
        all.push((entry.name.as_bytes().to_vec(), entry.kind, entry.ino));
        true
    })
    .unwrap();
    all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Lists the names in a directory in order.
pub fn names(dir: &Arc<dyn Vnode>) -> Vec<String> {
    list(dir).into_iter().map(|(name, ..)| String::from_utf8(name).unwrap()).collect()
}

/// Renames without flags.
pub fn rename(from: &Arc<dyn Vnode>, old: &str, to: &Arc<dyn Vnode>, new: &str) -> Result<()> {
    from.rename(&ROOT, name(old), to, name(new), RenameFlags::default())
}

/// Returns the errno of an operation that must fail, and drops the result if it succeeds.
#[allow(clippy::needless_pass_by_value)]
pub fn errno<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(errno) => errno,
    }
}

/// Whether this file system maintains link counts of directories. Some always report 1, which
/// find(1) and other programs handle.
#[must_use]
pub fn counts_directories(root: &Arc<dyn Vnode>) -> bool {
    attr(root).nlink >= 2
}
