//! Copies of branches, as `cp -a` makes them.

use super::layer_ops::CX;
use memfs::{Dump, MemFs, Node};
use std::sync::Arc;
use vnode::{Kind, Name, OpenFlags, SetAttr, SetTime, Vnode, XattrFlags};

/// Copies everything in `from` to `to`, which is empty, with owners, modes, modification times,
/// extended attributes and hard links. The inode numbers differ.
pub fn copy(from: &MemFs, to: &MemFs) {
    let root = to.without_faults();
    let root = vnode::Layer::root(&*root);
    // Some numbers are those of other files of the original.
    for _ in 0..3 {
        root.mknod(&CX, Name::new(b"t").unwrap(), Kind::Regular.mode_bits() | 0o600, 0).unwrap();
        root.unlink(&CX, Name::new(b"t").unwrap()).unwrap();
    }
    let Dump(all) = from.dump();
    for (path, node) in &all {
        if !path.is_empty() {
            create(&root, path, node);
        }
    }
    // Files before the directories that hold them.
    for (path, node) in all.iter().rev() {
        set_attributes(&at(&root, path), node, true);
    }
}

/// Gives the root of a new branch the attributes of the branch right of it, which users have seen.
pub fn copy_root(from: &MemFs, to: &MemFs) {
    set_attributes(&vnode::Layer::root(&*to.without_faults()), &from.dump().0[&Vec::new()], false);
}

fn at(root: &Arc<dyn Vnode>, path: &[u8]) -> Arc<dyn Vnode> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    names.fold(root.clone(), |dir, name| dir.lookup(&CX, Name::new(name).unwrap()).unwrap().unwrap().vnode)
}

fn create(root: &Arc<dyn Vnode>, path: &[u8], node: &Node) {
    let start = path.iter().rposition(|&byte| byte == b'/');
    let (dir, name) = start.map_or((&[][..], path), |at| (&path[..at], &path[at + 1..]));
    let (dir, name) = (at(root, dir), Name::new(name).unwrap());
    if node.first != path {
        dir.link(&CX, name, &at(root, &node.first)).unwrap();
        return;
    }
    match node.kind {
        Kind::Directory => drop(dir.mkdir(&CX, name, 0o700).unwrap()),
        Kind::Symlink => drop(dir.symlink(&CX, name, &node.data).unwrap()),
        Kind::Regular => {
            let (_, file) = dir.create(&CX, name, 0o600, OpenFlags::RDWR).unwrap();
            assert_eq!(file.write(&CX, &node.data, 0).unwrap(), node.data.len());
        }
        _ => drop(dir.mknod(&CX, name, node.kind.mode_bits() | 0o600, node.rdev).unwrap()),
    }
}

fn set_attributes(vnode: &Arc<dyn Vnode>, node: &Node, with_time: bool) {
    for (name, value) in &node.xattrs {
        vnode.setxattr(&CX, name, value, XattrFlags::default()).unwrap();
    }
    let owner = SetAttr { uid: Some(node.uid), gid: Some(node.gid), ..SetAttr::default() };
    vnode.setattr(&CX, &owner, None).unwrap();
    let mode = (node.kind != Kind::Symlink).then_some(node.perm);
    let mtime = node.mtime.filter(|_| with_time).map(SetTime::At);
    vnode.setattr(&CX, &SetAttr { mode, mtime, ..SetAttr::default() }, None).unwrap();
}
