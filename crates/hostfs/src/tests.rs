//! What only this layer has: bounded descriptors, removed objects, both ways of reaching an object. The rest is tested
//! by the conformance suite.

use crate::{HostFs, HostOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, SetAttr, XattrFlags};

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("hostfs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn open(&self, options: HostOptions) -> Arc<HostFs> {
        HostFs::open(&self.0, options).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

const CX: Cx<'static> = Cx::internal(0, 0);

/// Both ways of reaching objects; by handle only where the host has them.
fn both() -> [HostOptions; 2] {
    [HostOptions::default(), HostOptions { handles: false, detach: false, ..HostOptions::default() }]
}

#[test]
fn a_vnode_is_small() {
    assert_eq!(size_of::<crate::vnode_impl::HostVnode>(), 40);
}

#[test]
fn errors_of_opening_name_step_and_path() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("file"), b"").unwrap();
    let missing = HostFs::open(&scratch.0.join("missing"), HostOptions::default()).unwrap_err();
    assert_eq!(missing.errno, Errno::NOENT);
    assert!(missing.to_string().ends_with("missing: no such directory"), "{missing}");
    let file = HostFs::open(&scratch.0.join("file"), HostOptions::default()).unwrap_err();
    assert_eq!(file.errno, Errno::NOTDIR);
}

#[test]
fn removed_objects_answer_while_their_vnode_is_held_and_nothing_is_kept_after() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(options);
        let root = fs.root();
        let (file, open) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        open.write(&CX, b"abc", 0).unwrap();
        drop(open);
        let dir = root.mkdir(&CX, name("d"), 0o755).unwrap();
        root.unlink(&CX, name("f")).unwrap();
        root.rmdir(&CX, name("d")).unwrap();
        let attr = file.vnode.getattr(&CX).unwrap();
        assert_eq!((attr.nlink, attr.size), (0, 3));
        let set = SetAttr { mode: Some(0o600), size: Some(1), ..SetAttr::default() };
        assert_eq!(file.vnode.setattr(&CX, &set, None).unwrap().size, 1);
        let mut byte = [0; 8];
        assert_eq!(file.vnode.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut byte, 0), Ok(1));
        assert_eq!(dir.vnode.getattr(&CX).unwrap().kind(), Kind::Directory);
        assert!(dir.vnode.lookup(&CX, name("x")).unwrap().is_none());
        dir.vnode.readdir(&CX, 0, &mut |entry| panic!("{entry:?}")).unwrap();
        assert_eq!(fs.shared().table.counts(), (2, 2));
        drop((file, dir));
        assert_eq!(fs.shared().table.counts(), (0, 0));
    }
}

#[test]
fn objects_reached_by_name_follow_renames() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(HostOptions { directories: 1, ..options });
        let root = fs.root();
        let a = root.mkdir(&CX, name("a"), 0o755).unwrap();
        let b = a.vnode.mkdir(&CX, name("b"), 0o755).unwrap();
        let c = b.vnode.mkdir(&CX, name("c"), 0o755).unwrap();
        let (f, _) = c.vnode.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        let g = root.link(&CX, name("g"), &f.vnode).unwrap();
        assert!(Arc::ptr_eq(&f.vnode, &g.vnode));
        root.rename(&CX, name("a"), &root, name("z"), RenameFlags::default()).unwrap();
        a.vnode.rename(&CX, name("b"), &root, name("y"), RenameFlags::default()).unwrap();
        assert_eq!(f.vnode.getattr(&CX).unwrap().nlink, 2);
        assert_eq!(c.vnode.getattr(&CX).unwrap().ino, c.vnode.id());
        root.unlink(&CX, name("g")).unwrap();
        assert_eq!(f.vnode.getattr(&CX).unwrap().nlink, 1);
        c.vnode.unlink(&CX, name("f")).unwrap();
        assert_eq!(f.vnode.getattr(&CX).unwrap().nlink, 0);
    }
}

#[test]
fn a_vnode_looked_up_twice_is_one() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(options);
        let root = fs.root();
        let made = root.symlink(&CX, name("s"), b"/etc/passwd").unwrap();
        let found = root.lookup(&CX, name("s")).unwrap().unwrap();
        assert!(Arc::ptr_eq(&made.vnode, &found.vnode));
        assert_eq!(found.vnode.readlink(&CX).unwrap(), b"/etc/passwd");
        found.vnode.setxattr(&CX, b"trusted.x", b"v", XattrFlags::default()).unwrap();
        let mut value = [0; 4];
        assert_eq!(found.vnode.getxattr(&CX, b"trusted.x", &mut value), Ok(1));
    }
}
