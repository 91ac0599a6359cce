//! Deep trees of directories.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use memfs::MemFs;
use std::sync::Arc;
use versionfs::{Options, VersionFs};
use vnode::{Cx, Layer as _, Name, OpenFlags, Vnode};

const DEPTH: usize = 1000;

fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

fn get(dir: &Arc<dyn Vnode>, entry: &[u8]) -> Arc<dyn Vnode> {
    dir.lookup(&cx(), name(entry)).unwrap().unwrap().vnode
}

fn read(vnode: &Arc<dyn Vnode>) -> Vec<u8> {
    let mut data = vec![0; 100];
    let len = vnode.open(&cx(), OpenFlags::RDONLY).unwrap().read(&cx(), &mut data, 0).unwrap();
    data.truncate(len);
    data
}

/// Opens a version of a name.
fn version(dir: &Arc<dyn Vnode>, entry: &str) -> Arc<dyn Vnode> {
    let token = dir.control(&cx(), "versionfs.open", format!("{entry} 1").as_bytes()).unwrap();
    get(dir, token.trim_ascii_end())
}

/// As `rm -r` removes it: from the bottom up.
#[test]
fn a_thousand_nested_directories_are_removed_and_found_again() {
    let lower = MemFs::new();
    let fs = VersionFs::new(lower.clone(), Options::default());
    let mut dirs = vec![fs.root()];
    for depth in 0..DEPTH {
        let dir = dirs[depth].mkdir(&cx(), name(b"d"), 0o755).unwrap().vnode;
        let file = dir.create(&cx(), name(b"f"), 0o644, OpenFlags::RDWR).unwrap().1;
        file.write(&cx(), format!("file {depth}").as_bytes(), 0).unwrap();
        dirs.push(dir);
    }
    fs.root().control(&cx(), "versionfs.tag", b"before").unwrap();
    let objects = lower.objects();
    for depth in (0..DEPTH).rev() {
        dirs[depth + 1].unlink(&cx(), name(b"f")).unwrap();
        dirs[depth].rmdir(&cx(), name(b"d")).unwrap();
    }
    drop(dirs);
    assert!(lower.objects() > objects);
    // Each removed directory within the one above, and its file.
    let fs = VersionFs::new(lower.clone(), Options::default());
    let mut dir = fs.root();
    for depth in 0..DEPTH {
        dir = version(&dir, "d");
        assert_eq!(read(&version(&dir, "f")), format!("file {depth}").into_bytes());
    }
    // The tree as it was.
    let token = fs.root().control(&cx(), "versionfs.at", b"before").unwrap();
    let mut dir = get(&fs.root(), token.trim_ascii_end());
    for depth in 0..DEPTH {
        dir = get(&dir, b"d");
        assert_eq!(read(&get(&dir, b"f")), format!("file {depth}").into_bytes());
    }
    drop((dir, token));
    // For good.
    fs.root().control(&cx(), "versionfs.discard", b"d 1").unwrap();
    drop(fs);
    assert!(lower.recover(&memfs::Faults::new()).objects() < 10, "{}", lower.objects());
}
