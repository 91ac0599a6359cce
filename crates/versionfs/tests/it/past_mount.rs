//! A mount of the past, over memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::policies::{Host, clock, cx, name};
use memfs::MemFs;
use std::sync::Arc;
use versionfs::{Options, PolicySource, VersionFs};
use vnode::{Cx, Errno, Layer, OpenFlags};

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
