use crate::{LbFs, Options, Source};
use memfs::MemFs;
use std::sync::Arc;
use vnode::{Cx, Entry, Layer, Name, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);

fn over(tree: &Arc<MemFs>) -> Arc<LbFs> {
    let source = |i| {
        let tree = Arc::clone(tree);
        Source { name: format!("r{i}"), open: Box::new(move || Ok(tree.without_faults() as Arc<dyn Layer>)) }
    };
    LbFs::new((0..2).map(source).collect(), Options::default()).unwrap()
}

fn find(dir: &Arc<dyn Vnode>, name: &[u8]) -> Entry {
    dir.lookup(&CX, Name::new(name).unwrap()).unwrap().unwrap()
}

#[test]
fn unreferenced_vnodes_are_removed_from_the_table() {
    let tree = MemFs::new();
    for i in 0..500u32 {
        tree.root().mknod(&CX, Name::new(i.to_string().as_bytes()).unwrap(), 0o100_644, 0).unwrap();
    }
    let fs = over(&tree);
    let all: Vec<Entry> = (0..500u32).map(|i| find(&fs.root(), i.to_string().as_bytes())).collect();
    assert_eq!(fs.known(), 500);
    drop(all);
    // Asynchronous comparisons may hold some for a moment.
    while fs.known() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_deep_tree_is_dropped_without_recursion() {
    const DEPTH: usize = 20_000;
    let tree = MemFs::new();
    let name = Name::new(b"d").unwrap();
    let mut here = tree.root();
    for _ in 0..DEPTH {
        here = here.mkdir(&CX, name, 0o755).unwrap().vnode;
    }
    let fs = over(&tree);
    let mut here = fs.root();
    for _ in 0..DEPTH {
        here = find(&here, b"d").vnode;
    }
    assert_eq!(fs.known(), DEPTH);
    assert!(here.getattr(&CX).is_ok());
    drop(here);
    while fs.known() > 0 {
        std::thread::yield_now();
    }
}

/// The server need not ask for what follows the last entry.
#[test]
fn a_listing_is_freed_at_its_last_entry() {
    let tree = MemFs::new();
    for i in 0..5 {
        tree.root().mknod(&CX, Name::new(format!("f{i}").as_bytes()).unwrap(), 0o100_644, 0).unwrap();
    }
    let fs = over(&tree);
    let (mut cookie, mut seen) = (0, 0);
    let mut list = |cookie: &mut u64, most: usize| {
        let mut left = most;
        fs.root()
            .readdir(&CX, *cookie, &mut |entry| {
                if left == 0 {
                    return false;
                }
                (*cookie, left, seen) = (entry.cookie, left - 1, seen + 1);
                true
            })
            .unwrap();
        fs.listings()
    };
    assert_eq!(list(&mut cookie, 2), 1);
    assert_eq!(list(&mut cookie, 2), 1);
    assert_eq!(list(&mut cookie, 2), 0);
    assert_eq!(seen, 5);
}
