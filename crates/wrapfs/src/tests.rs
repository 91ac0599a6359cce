use crate::WrapFs;
use memfs::{Dump, MemFs};
use std::sync::Arc;
use vnode::{Cx, Errno, Layer, Name, OpenFlags, RenameFlags};

const CX: Cx<'static> = Cx::internal(0, 0);

fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

#[test]
fn wrapper_is_one_pointer() {
    assert_eq!(size_of::<crate::vnode_impl::WrapVnode>(), size_of::<Arc<dyn vnode::Vnode>>());
    assert_eq!(size_of::<crate::file::WrapFile>(), size_of::<Arc<dyn vnode::OpenFile>>());
}

#[test]
fn shows_the_tree_below_unchanged() {
    let below = MemFs::new();
    let wrap = WrapFs::new(below.clone());
    let root = wrap.root();
    let dir = root.mkdir(&CX, name("d"), 0o755).unwrap();
    let (file, open) = dir.vnode.create(&CX, name("f"), 0o640, OpenFlags::RDWR).unwrap();
    open.write(&CX, b"bytes", 0).unwrap();
    root.link(&CX, name("g"), &file.vnode).unwrap();
    root.rename(&CX, name("g"), &dir.vnode, name("h"), RenameFlags::default()).unwrap();
    assert_eq!(Dump::of(&*wrap).unwrap(), below.dump());
    let lower = below.root().lookup(&CX, name("d")).unwrap().unwrap().vnode.lookup(&CX, name("f")).unwrap().unwrap();
    assert_eq!(file.vnode.id(), lower.vnode.id());
}

#[test]
fn copy_from_accepts_sources_of_another_depth() {
    let below = MemFs::new();
    let once = WrapFs::new(below);
    let twice = WrapFs::new(once.clone());
    let (_, from) = once.root().create(&CX, name("a"), 0o644, OpenFlags::RDWR).unwrap();
    from.write(&CX, b"bytes", 0).unwrap();
    let (_, to) = twice.root().create(&CX, name("b"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(to.copy_from(&CX, 0, &*from, 0, 99), Ok(5));
    assert_eq!(from.copy_from(&CX, 5, &*to, 0, 5), Ok(5));
    // An overlap within one file is detected at the bottom.
    assert_eq!(to.copy_from(&CX, 1, &*to, 0, 4), Err(Errno::INVAL));
}

#[test]
fn vnodes_of_another_layer_are_refused() {
    let (a, b) = (WrapFs::new(MemFs::new()), WrapFs::new(MemFs::new()));
    let (file, _) = b.root().create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(a.root().link(&CX, name("g"), &file.vnode).map(|_| ()), Err(Errno::XDEV));
}
