//! A mount of the past, over memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::policies::{Host, clock, cx, name};
use memfs::MemFs;
use std::sync::Arc;
use versionfs::{Options, PolicySource, VersionFs};
use vnode::{Cx, Errno, Layer, OpenFlags, Vnode};

#[test]
fn users_look_at_the_past_as_the_administrator_allows() {
    let lower = MemFs::new();
    let layer = VersionFs::new(lower.clone(), Options { clock, ..Options::default() });
    layer.root().create(&cx(), name(b"file"), 0o644, OpenFlags::RDWR).unwrap().1.write(&cx(), b"old", 0).unwrap();
    drop(layer);
    for (config, allowed) in [("", true), ("[users]\naccess = \"none\"\n", false)] {
        let source = PolicySource { host: Some(Arc::new(Host(config.to_owned(), None))), ..PolicySource::default() };
        let time = format!("{}", clock().sec + 100_000_000_000);
        let past = VersionFs::at(lower.clone(), Options { clock, ..Options::default() }, source, time.as_bytes());
        let root = past.unwrap().root();
        let list = |cx: &Cx<'_>| {
            let mut names = Vec::new();
            root.readdir(cx, 0, &mut |entry| {
                names.push(entry.name.as_bytes().to_vec());
                true
            })
            .map(|()| names)
        };
        for (user, allowed) in [(cx(), true), (Cx::internal(1000, 1000), allowed)] {
            let expected = if allowed { Ok(true) } else { Err(Errno::ACCESS) };
            assert_eq!(root.lookup(&user, name(b"file")).map(|found| found.is_some()), expected);
            let expected = if allowed { Ok(vec![b"file".to_vec()]) } else { Err(Errno::ACCESS) };
            assert_eq!(list(&user), expected);
        }
    }
    let wrong = PolicySource {
        host: Some(Arc::new(Host("[users]\naccess = 1\n".to_owned(), None))),
        ..PolicySource::default()
    };
    VersionFs::at(lower, Options::default(), wrong, b"1700000000").unwrap_err();
}

/// Programs that copy trees look at inode numbers and link counts.
#[test]
fn past_names_of_one_file_have_one_number() {
    let lower = MemFs::new();
    let layer = VersionFs::new(lower.clone(), Options { clock, ..Options::default() });
    let root = layer.root();
    let sub = root.mkdir(&cx(), name(b"sub"), 0o755).unwrap();
    let write = |file: &[u8], bytes: &[u8]| {
        let found = root.lookup(&cx(), name(file)).unwrap().unwrap();
        found.vnode.open(&cx(), OpenFlags::RDWR).unwrap().write(&cx(), bytes, 0).unwrap();
    };
    let [changed, same, alone] = [b"a", b"p", b"x"].map(|file| {
        let (entry, open) = root.create(&cx(), name(file), 0o644, OpenFlags::RDWR).unwrap();
        open.write(&cx(), b"old", 0).unwrap();
        entry.vnode
    });
    let links: [(_, &Arc<dyn Vnode>, _); 3] =
        [(&root, &changed, b"b"), (&sub.vnode, &changed, b"c"), (&root, &same, b"q")];
    for (dir, file, link) in links {
        dir.link(&cx(), name(link), file).unwrap();
    }
    drop(alone);
    let then = clock();
    write(b"a", b"new");
    root.unlink(&cx(), name(b"b")).unwrap();
    let time = format!("{}", then.sec);
    let past = VersionFs::at(lower, Options { clock, ..Options::default() }, PolicySource::default(), time.as_bytes());
    let past = past.unwrap().root();
    let past_sub = past.lookup(&cx(), name(b"sub")).unwrap().unwrap().vnode;
    let seen = |dir: &Arc<dyn Vnode>, file: &[u8]| {
        let attr = dir.lookup(&cx(), name(file)).unwrap().unwrap().attr;
        let mut listed = None;
        dir.readdir(&cx(), 0, &mut |entry| {
            listed = (entry.name.as_bytes() == file).then_some(entry.ino).or(listed);
            true
        })
        .unwrap();
        assert_eq!(listed, Some(attr.ino));
        (attr.ino, attr.nlink)
    };
    let [a, b, p, q, x] = [b"a", b"b", b"p", b"q", b"x"].map(|file| seen(&past, file));
    assert_eq!([b, seen(&past_sub, b"c"), q], [a, a, p]);
    assert_eq!((a.1, p.1, x.1), (2, 2, 1));
    assert!(a.0 != p.0 && p.0 != x.0);
}
