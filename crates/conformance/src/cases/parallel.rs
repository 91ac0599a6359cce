//! Concurrent threads. The result is deterministic for any interleaving.

use crate::fixture::{ROOT, attr, bytes, counts_directories, dir, file, find, list, name, names, rename, user};
use std::collections::BTreeSet;
use std::thread::scope;
use vnode::{Errno, Layer, OpenFlags};

const THREADS: u32 = 4;
const EACH: u32 = 60;

/// Each thread creates its own names as its own user, and all compete for one more name.
pub fn makers_in_one_directory(layer: &dyn Layer) {
    let root = layer.root();
    let shared = dir(&root, "shared");
    let winners: u32 = scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || {
                    let cx = user(1000 + thread, 2000 + thread, if thread % 2 == 0 { 0o022 } else { 0o077 });
                    let mut won = 0;
                    for i in 0..EACH {
                        let at = format!("{thread}-{i}");
                        let (made, open) = shared.create(&cx, name(&at), 0o666, OpenFlags::RDWR).unwrap();
                        open.write(&cx, at.as_bytes(), 0).unwrap();
                        let perm = if thread % 2 == 0 { 0o644 } else { 0o600 };
                        assert_eq!((made.attr.uid, made.attr.gid), (cx.uid, cx.gid));
                        assert_eq!(made.attr.perm(), perm);
                        match shared.mkdir(&cx, name(&format!("common-{i}")), 0o755) {
                            Ok(_) => won += 1,
                            Err(errno) => assert_eq!(errno, Errno::EXIST),
                        }
                    }
                    won
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(winners, EACH);
    assert_eq!(names(&shared).len() as u32, THREADS * EACH + EACH);
    if counts_directories(&root) {
        assert_eq!(attr(&shared).nlink, 2 + EACH);
    }
    for thread in 0..THREADS {
        for i in 0..EACH {
            let at = format!("{thread}-{i}");
            assert_eq!(bytes(&crate::fixture::must_find(&shared, &at).vnode), at.as_bytes());
        }
    }
}

/// Each thread moves its files back and forth through directories that are being renamed.
pub fn movers_between_directories(layer: &dyn Layer) {
    let root = layer.root();
    let (a, b) = (dir(&root, "a"), dir(&root, "b"));
    scope(|scope| {
        for thread in 0..THREADS {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let at = format!("file-{thread}");
                let made = file(a, &at, at.as_bytes());
                for i in 0..EACH {
                    let (from, to) = if i % 2 == 0 { (a, b) } else { (b, a) };
                    rename(from, &at, to, &at).unwrap();
                    assert!(find(from, &at).is_none());
                    assert_eq!(find(to, &at).unwrap().attr.ino, made.attr.ino);
                    assert_eq!(bytes(&made.vnode), at.as_bytes());
                }
            });
        }
        let root = &root;
        scope.spawn(move || {
            for i in 0..EACH {
                let (old, new) = if i % 2 == 0 { ("a", "c") } else { ("c", "a") };
                rename(root, old, root, new).unwrap();
            }
        });
    });
    assert_eq!(names(&root), ["a", "b"]);
    assert_eq!(names(&a).len() as u32, THREADS);
    assert!(names(&b).is_empty());
}

/// Concurrent readers do not affect each other's position.
pub fn readers_of_one_directory(layer: &dyn Layer) {
    let root = layer.root();
    for i in 0..200 {
        file(&root, &format!("entry-{i}"), b"");
    }
    scope(|scope| {
        for size in 1..=THREADS as usize {
            let root = &root;
            scope.spawn(move || {
                let (mut seen, mut cookie) = (BTreeSet::new(), 0);
                loop {
                    let mut taken = 0;
                    root.readdir(&ROOT, cookie, &mut |entry| {
                        if taken == size * 10 {
                            return false;
                        }
                        taken += 1;
                        cookie = entry.cookie;
                        assert!(seen.insert(entry.name.as_bytes().to_vec()), "{:?} twice", entry.name);
                        true
                    })
                    .unwrap();
                    if taken == 0 {
                        break;
                    }
                }
                assert_eq!(seen.len(), 200);
            });
        }
    });
    assert_eq!(list(&root).len(), 200);
}
