//! Extended attributes and ACLs.

use crate::fixture::{ROOT, attr, dir, errno, file, name, user};
use std::collections::BTreeSet;
use std::sync::Arc;
use vnode::{Errno, Layer, OpenFlags, SetAttr, Vnode, XattrFlags};

const ANY: XattrFlags = XattrFlags { create: false, replace: false };
const CREATE: XattrFlags = XattrFlags { create: true, replace: false };
const REPLACE: XattrFlags = XattrFlags { create: false, replace: true };

fn get(vnode: &Arc<dyn Vnode>, name: &str) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; 65536];
    let len = vnode.getxattr(&ROOT, name.as_bytes(), &mut out)?;
    out.truncate(len);
    Ok(out)
}

fn list(vnode: &Arc<dyn Vnode>) -> BTreeSet<String> {
    let mut out = vec![0; 65536];
    let len = vnode.listxattr(&ROOT, &mut out).unwrap();
    out[..len].split_terminator(|&b| b == 0).map(|n| String::from_utf8(n.to_vec()).unwrap()).collect()
}

/// Slices have no `split_terminator`.
trait SplitTerminator {
    fn split_terminator(&self, is_end: fn(&u8) -> bool) -> impl Iterator<Item = &[u8]>;
}

impl SplitTerminator for [u8] {
    fn split_terminator(&self, is_end: fn(&u8) -> bool) -> impl Iterator<Item = &[u8]> {
        self.split(is_end).filter(|part| !part.is_empty())
    }
}

/// Extended attributes can be set, read, listed, replaced and removed.
pub fn xattrs_are_stored(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"").vnode;
    assert_eq!(get(&f, "user.a"), Err(Errno::NODATA));
    f.setxattr(&ROOT, b"user.a", b"one", ANY).unwrap();
    f.setxattr(&ROOT, b"user.b", b"\0\xff", ANY).unwrap();
    f.setxattr(&ROOT, b"trusted.c", b"", ANY).unwrap();
    assert_eq!(
        (get(&f, "user.a"), get(&f, "user.b"), get(&f, "trusted.c")),
        (Ok(b"one".to_vec()), Ok(b"\0\xff".to_vec()), Ok(Vec::new()))
    );
    assert!(list(&f).is_superset(&["user.a", "user.b", "trusted.c"].map(String::from).into()));
    f.setxattr(&ROOT, b"user.a", b"two", ANY).unwrap();
    assert_eq!(get(&f, "user.a"), Ok(b"two".to_vec()));
    f.removexattr(&ROOT, b"user.a").unwrap();
    assert_eq!(errno(f.removexattr(&ROOT, b"user.a")), Errno::NODATA);
    assert!(!list(&f).contains("user.a") && list(&f).contains("user.b"));
    assert_eq!(errno(f.setxattr(&ROOT, b"nonsense.a", b"", ANY)), Errno::OPNOTSUPP);
}

/// On directories, symbolic links and special files. Links are not followed.
pub fn attributes_of_everything(layer: &dyn Layer) {
    let root = layer.root();
    let target = file(&root, "target", b"").vnode;
    let s = root.symlink(&ROOT, name("s"), b"target").unwrap().vnode;
    let p = root.mknod(&ROOT, name("p"), 0o010_644, 0).unwrap().vnode;
    let c = root.mknod(&ROOT, name("c"), 0o020_644, 0x103).unwrap().vnode;
    for vnode in [&root, &dir(&root, "d"), &s, &p, &c] {
        vnode.setxattr(&ROOT, b"trusted.t", b"value", ANY).unwrap();
        assert_eq!(get(vnode, "trusted.t"), Ok(b"value".to_vec()), "{vnode:?}");
        assert!(list(vnode).contains("trusted.t"));
        vnode.removexattr(&ROOT, b"trusted.t").unwrap();
        assert!(!list(vnode).contains("trusted.t"));
    }
    for vnode in [&s, &p, &c] {
        assert_eq!(errno(vnode.setxattr(&ROOT, b"user.u", b"", ANY)), Errno::PERM);
    }
    assert_eq!(get(&target, "trusted.t"), Err(Errno::NODATA));
}

/// `XATTR_CREATE`, `XATTR_REPLACE`
pub fn attribute_flags(layer: &dyn Layer) {
    let f = file(&layer.root(), "f", b"").vnode;
    assert_eq!(errno(f.setxattr(&ROOT, b"user.a", b"x", REPLACE)), Errno::NODATA);
    f.setxattr(&ROOT, b"user.a", b"x", CREATE).unwrap();
    assert_eq!(errno(f.setxattr(&ROOT, b"user.a", b"y", CREATE)), Errno::EXIST);
    f.setxattr(&ROOT, b"user.a", b"z", REPLACE).unwrap();
    assert_eq!(get(&f, "user.a"), Ok(b"z".to_vec()));
}

/// An empty buffer queries the size; a buffer that is too small gets `ERANGE`.
pub fn attribute_sizes(layer: &dyn Layer) {
    let f = file(&layer.root(), "f", b"").vnode;
    f.setxattr(&ROOT, b"user.a", &[7; 100], ANY).unwrap();
    assert_eq!(f.getxattr(&ROOT, b"user.a", &mut []), Ok(100));
    assert_eq!(f.getxattr(&ROOT, b"user.a", &mut [0; 99]), Err(Errno::RANGE));
    assert_eq!(f.getxattr(&ROOT, b"user.a", &mut [0; 100]), Ok(100));
    let size = f.listxattr(&ROOT, &mut []).unwrap();
    assert!(size >= 7);
    assert_eq!(f.listxattr(&ROOT, &mut vec![0; size - 1]), Err(Errno::RANGE));
    assert_eq!(f.listxattr(&ROOT, &mut vec![0; size]), Ok(size));
    assert_eq!(errno(f.setxattr(&ROOT, b"user.a", &[0; 65_537], ANY)), Errno::TOOBIG);
}

/// Encodes an ACL: version 2, entries of tag, permissions and ID.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    acl
}

const NONE: u32 = u32::MAX;

/// Default ACLs replace the umask.
pub fn default_acls(layer: &dyn Layer) {
    let root = layer.root();
    let d = dir(&root, "d");
    let default = acl(&[(1, 7, NONE), (2, 7, 1000), (4, 5, NONE), (0x10, 7, NONE), (0x20, 0, NONE)]);
    match d.setxattr(&ROOT, b"system.posix_acl_default", &default, ANY) {
        Err(Errno::OPNOTSUPP) => return,
        other => other.unwrap(),
    }
    let cx = user(5, 6, 0o077);
    let (f, _) = d.create(&cx, name("f"), 0o666, OpenFlags::RDWR).unwrap();
    assert_eq!(f.attr.perm(), 0o660);
    let expected = acl(&[(1, 6, NONE), (2, 7, 1000), (4, 5, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]);
    assert_eq!(get(&f.vnode, "system.posix_acl_access"), Ok(expected));
    let sub = d.mkdir(&cx, name("sub"), 0o777).unwrap();
    assert_eq!(sub.attr.perm(), 0o770);
    assert_eq!(get(&sub.vnode, "system.posix_acl_default"), Ok(default));
    let n = d.mknod(&cx, name("n"), 0o010_644, 0).unwrap();
    assert_eq!(n.attr.perm(), 0o640);
    // Without a default ACL, the umask applies again.
    let (g, _) = root.create(&cx, name("g"), 0o666, OpenFlags::RDWR).unwrap();
    assert_eq!(g.attr.perm(), 0o600);
}

/// chmod updates the ACL, and setting an ACL updates the mode.
pub fn modes_follow_acls(layer: &dyn Layer) {
    let f = file(&layer.root(), "f", b"").vnode;
    let set = acl(&[(1, 6, NONE), (2, 7, 1000), (4, 4, NONE), (0x10, 6, NONE), (0x20, 1, NONE)]);
    match f.setxattr(&ROOT, b"system.posix_acl_access", &set, ANY) {
        Err(Errno::OPNOTSUPP) => return,
        other => other.unwrap(),
    }
    assert_eq!(attr(&f).perm(), 0o661);
    f.setattr(&ROOT, &SetAttr { mode: Some(0o700), ..SetAttr::default() }, None).unwrap();
    let expected = acl(&[(1, 7, NONE), (2, 7, 1000), (4, 4, NONE), (0x10, 0, NONE), (0x20, 0, NONE)]);
    assert_eq!(get(&f, "system.posix_acl_access"), Ok(expected));
    // Removing a missing ACL is not an error.
    for _ in 0..2 {
        f.removexattr(&ROOT, b"system.posix_acl_access").unwrap();
        assert_eq!(get(&f, "system.posix_acl_access"), Err(Errno::NODATA));
    }
}

/// Like a native file system.
pub fn writing_drops_capabilities(layer: &dyn Layer) {
    let f = file(&layer.root(), "f", b"").vnode;
    // Version 2, effective, CAP_NET_RAW permitted.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    match f.setxattr(&ROOT, b"security.capability", &capability, ANY) {
        Err(Errno::OPNOTSUPP) => return,
        other => other.unwrap(),
    }
    assert_eq!(get(&f, "security.capability"), Ok(capability.to_vec()));
    f.setattr(&ROOT, &SetAttr { mode: Some(0o755), ..SetAttr::default() }, None).unwrap();
    assert!(get(&f, "security.capability").is_ok());
    f.open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, b"x", 0).unwrap();
    assert_eq!(get(&f, "security.capability"), Err(Errno::NODATA));
}
