//! FIFOs, sockets and devices.

use crate::fixture::{ROOT, attr, errno, must_find, name};
use vnode::{Errno, Kind, Layer, OpenFlags, SetAttr};

/// With their device numbers.
pub fn every_kind_of_node(layer: &dyn Layer) {
    let root = layer.root();
    let (small, large) = (0x0103, (0x12_u64 << 8) | 0x34 | (0x56_u64 << 12 << 8));
    for (at, mode, rdev, kind) in [
        ("fifo", 0o010_640, 0, Kind::Fifo),
        ("socket", 0o140_640, 0, Kind::Socket),
        ("char", 0o020_640, small, Kind::CharDevice),
        ("block", 0o060_640, large, Kind::BlockDevice),
        ("regular", 0o100_640, 0, Kind::Regular),
    ] {
        let made = root.mknod(&ROOT, name(at), mode, rdev).unwrap();
        assert_eq!((made.vnode.kind(), made.attr.mode, made.attr.rdev), (kind, mode, rdev), "{at}");
        let found = must_find(&root, at);
        assert_eq!((found.attr.ino, found.attr.rdev, found.attr.kind()), (made.attr.ino, rdev, kind));
    }
    assert_eq!(errno(root.mknod(&ROOT, name("d"), 0o040_755, 0)), Errno::PERM);
}

/// Opening them is done by the kernel. Their attributes behave like those of other objects.
pub fn special_files_can_not_be_opened(layer: &dyn Layer) {
    let root = layer.root();
    for (at, mode) in [("fifo", 0o010_640), ("socket", 0o140_640), ("null", 0o020_640)] {
        let node = root.mknod(&ROOT, name(at), mode, if at == "null" { 0x103 } else { 0 }).unwrap().vnode;
        assert!(node.open(&ROOT, OpenFlags::RDONLY).is_err());
        let set = SetAttr { mode: Some(0o600), uid: Some(4), ..SetAttr::default() };
        let now = node.setattr(&ROOT, &set, None).unwrap();
        assert_eq!((now.perm(), now.uid), (0o600, 4));
        assert_eq!(errno(node.setattr(&ROOT, &SetAttr { size: Some(0), ..SetAttr::default() }, None)), Errno::INVAL);
        assert_eq!(attr(&node).perm(), 0o600);
    }
}
