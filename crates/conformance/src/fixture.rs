//! Short forms for what the cases do all the time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, Vnode};

/// The superuser with umask 0.
pub const ROOT: Cx<'static> = Cx::internal(0, 0);

/// Nobody's signal.
static NEVER: AtomicBool = AtomicBool::new(false);

/// A plain user.
#[must_use]
pub const fn user(uid: u32, gid: u32, umask: u32) -> Cx<'static> {
    Cx::new(uid, gid, 0, umask, true, &NEVER)
}

/// `O_APPEND`, for reading and writing.
pub const APPEND: OpenFlags = OpenFlags(OpenFlags::RDWR.0 | 0o2000);

/// A name that is one.
#[must_use]
pub fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

/// A regular file with these bytes; mode 0644.
pub fn file(dir: &Arc<dyn Vnode>, at: &str, bytes: &[u8]) -> Entry {
    let (entry, open) = dir.create(&ROOT, name(at), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(open.write(&ROOT, bytes, 0), Ok(bytes.len()));
    entry
}

/// A directory; mode 0755.
pub fn dir(parent: &Arc<dyn Vnode>, at: &str) -> Arc<dyn Vnode> {
    parent.mkdir(&ROOT, name(at), 0o755).unwrap().vnode
}

/// What is there.
pub fn find(dir: &Arc<dyn Vnode>, at: &str) -> Option<Entry> {
    dir.lookup(&ROOT, name(at)).unwrap()
}

/// What must be there.
pub fn must_find(dir: &Arc<dyn Vnode>, at: &str) -> Entry {
    find(dir, at).unwrap_or_else(|| panic!("{at} is not there"))
}

/// Attributes.
pub fn attr(vnode: &Arc<dyn Vnode>) -> Attr {
    vnode.getattr(&ROOT).unwrap()
}

/// The bytes of a file.
pub fn bytes(vnode: &Arc<dyn Vnode>) -> Vec<u8> {
    read_from(&*vnode.open(&ROOT, OpenFlags::RDONLY).unwrap(), 0, 1 << 20)
}

/// Up to `len` bytes of an open file.
pub fn read_from(file: &dyn OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let len = file.read(&ROOT, &mut out, offset).unwrap();
    out.truncate(len);
    out
}

/// Names, kinds and numbers in a directory, in the order of names, each with its cookie.
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

/// The names in a directory, in order.
pub fn names(dir: &Arc<dyn Vnode>) -> Vec<String> {
    list(dir).into_iter().map(|(name, ..)| String::from_utf8(name).unwrap()).collect()
}

/// A rename without flags.
pub fn rename(from: &Arc<dyn Vnode>, old: &str, to: &Arc<dyn Vnode>, new: &str) -> Result<()> {
    from.rename(&ROOT, name(old), to, name(new), RenameFlags::default())
}

/// The errno that something that must fail answers. What it answers instead is dropped.
#[allow(clippy::needless_pass_by_value)]
pub fn errno<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(errno) => errno,
    }
}

/// Does this file system count the names of directories? Some always answer 1, which find(1) and others understand.
#[must_use]
pub fn counts_directories(root: &Arc<dyn Vnode>) -> bool {
    attr(root).nlink >= 2
}
