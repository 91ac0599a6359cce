//! Heads that somebody changes in the lower directory, which the layer does not see: the versions
//! that take bytes from such a head must not show bytes that never were.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use crate::common::policies::*;
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::sync::Arc;
use versionfs::{Options, VersionFs};
use vnode::{Errno, Layer, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time, Vnode, XattrFlags};

const SIZE: usize = 5 * 4096;

fn get(root: &Arc<dyn Vnode>) -> Arc<dyn Vnode> {
    root.lookup(&cx(), name(b"f")).unwrap().unwrap().vnode
}

fn write(layer: &Arc<VersionFs>, data: &[u8], offset: u64) {
    let file = get(&layer.root()).open(&cx(), OpenFlags::RDWR).unwrap();
    assert_eq!(file.write(&cx(), data, offset).unwrap(), data.len());
}

/// A file that was all `a`, and whose second block is `b` now.
fn changed() -> (Arc<MemFs>, Arc<VersionFs>) {
    let lower = MemFs::new();
    let layer = changed_in(&lower);
    (lower, layer)
}

fn changed_in(lower: &Arc<MemFs>) -> Arc<VersionFs> {
    let layer = layer(lower, false);
    let (_, file) = layer.root().create(&cx(), name(b"f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&cx(), &[b'a'; SIZE], 0).unwrap();
    drop(file);
    write(&layer, &[b'b'; 4096], 4096);
    layer
}

fn layer(lower: &Arc<MemFs>, trust_heads: bool) -> Arc<VersionFs> {
    VersionFs::new(lower.clone(), Options { trust_heads, ..Options::default() })
}

/// Changes the third block in the lower directory.
fn change_below(lower: &Arc<MemFs>) {
    let file = get(&lower.root()).open(&cx(), OpenFlags::RDWR).unwrap();
    file.write(&cx(), &[b'x'; 4096], 8192).unwrap();
}

/// Reads a version as users do.
fn version(layer: &Arc<VersionFs>, number: u64) -> Result<Vec<u8>> {
    let token = layer.root().control(&cx(), "versionfs.open", format!("f {number}").as_bytes())?;
    let past = layer.root().lookup(&cx(), name(token.trim_ascii()))?.unwrap();
    let mut data = vec![0; SIZE];
    let len = versionset::read_full(&cx(), &*past.vnode.open(&cx(), OpenFlags::RDONLY)?, &mut data, 0)?;
    data.truncate(len);
    Ok(data)
}

#[test]
fn a_version_takes_no_bytes_of_another_head() {
    let (lower, layer_before) = changed();
    assert!(version(&layer_before, 1).unwrap() == [b'a'; SIZE]);
    let before = get(&lower.root()).getattr(&cx()).unwrap();
    change_below(&lower);
    assert_eq!(version(&layer_before, 1), Err(Errno::IO));
    assert_eq!(version(&layer(&lower, false), 1), Err(Errno::IO));
    assert!(version(&layer(&lower, true), 1).unwrap()[8192..12_288] == [b'x'; 4096]);
    // A backup brings the head back, with its time.
    let file = get(&lower.root()).open(&cx(), OpenFlags::RDWR).unwrap();
    file.write(&cx(), &[b'a'; 4096], 8192).unwrap();
    let mtime = Some(SetTime::At(Time { nsec: before.mtime.nsec / 1000 * 1000, ..before.mtime }));
    get(&lower.root()).setattr(&cx(), &SetAttr { mtime, ..SetAttr::default() }, None).unwrap();
    assert!(version(&layer(&lower, false), 1).unwrap() == [b'a'; SIZE]);
}

#[test]
fn what_was_changed_below_gets_a_version_of_its_own() {
    for remounts in [false, true] {
        let (lower, mut layer_now) = changed();
        change_below(&lower);
        if remounts {
            layer_now = layer(&lower, false);
        }
        write(&layer_now, b"c", 0);
        write(&layer_now, b"d", 0);
        let mut state = [b'a'; SIZE];
        state[4096..8192].fill(b'b');
        state[8192..12_288].fill(b'x');
        for layer in [&layer_now, &layer(&lower, false)] {
            assert_eq!(version(layer, 1), Err(Errno::IO), "{remounts}");
            assert!(version(layer, 2).unwrap() == state, "{remounts}");
            state[0] = b'c';
            assert!(version(layer, 3).unwrap() == state, "{remounts}");
            state[0] = b'a';
        }
        // Its own blocks are still there, and nothing makes it whole.
        layer_now.root().control(&cx(), "versionfs.convert", b"").unwrap();
        assert_eq!(version(&layer_now, 1), Err(Errno::IO), "{remounts}");
        assert!(version(&layer_now, 2).unwrap() == state, "{remounts}");
    }
}

#[test]
fn versions_after_a_lost_one_can_be_discarded() {
    for newest_first in [false, true] {
        let (lower, layer) = changed();
        change_below(&lower);
        for byte in [b'c', b'd', b'e'] {
            write(&layer, &[byte; 10], 0);
        }
        let third = version(&layer, 3).unwrap();
        let order = if newest_first { [4, 3, 2] } else { [2, 3, 4] };
        for number in order {
            if number == 3 {
                assert!(version(&layer, 3).unwrap() == third);
            }
            layer.root().control(&cx(), "versionfs.discard", format!("f {number}").as_bytes()).unwrap();
            assert_eq!(version(&layer, 1), Err(Errno::IO), "{number}");
        }
        write(&layer, b"f", 0);
        assert_eq!(version(&layer, 1), Err(Errno::IO));
        assert!(version(&layer, 5).unwrap().starts_with(b"eee"));
    }
}

#[test]
fn the_last_version_of_a_removed_file_can_be_discarded() {
    let storages = ["sparse", "sparse-compress", "delta", "text"];
    for (storage, renames) in storages.into_iter().flat_map(|storage| [(storage, false), (storage, true)]) {
        let (lower, before) = changed();
        drop(before);
        let layer = mount(&lower, &format!("builtin = false\nstorage = \"{storage}\""));
        if renames {
            layer.root().rename(&cx(), name(b"f"), &layer.root(), name(b"g"), RenameFlags::default()).unwrap();
        } else {
            layer.root().unlink(&cx(), name(b"f")).unwrap();
        }
        control(&layer, "versionfs.convert").unwrap();
        layer.root().control(&cx(), "versionfs.discard", b"f 2").unwrap();
        assert!(version(&layer, 1).unwrap() == [b'a'; SIZE], "{storage}");
        // Another file gets the name, and has a history of its own.
        let (_, file) = layer.root().create(&cx(), name(b"f"), 0o644, OpenFlags::RDWR).unwrap();
        file.write(&cx(), &[b'n'; SIZE], 0).unwrap();
        drop(file);
        write(&layer, b"o", 0);
        assert!(version(&layer, 1).unwrap() == [b'a'; SIZE], "{storage}");
        assert!(version(&layer, 3).unwrap() == [b'n'; SIZE], "{storage}");
    }
}

#[test]
fn a_conversion_does_not_take_bytes_of_another_head() {
    for storage in ["full", "compress", "sparse-compress", "delta", "text", "blocks"] {
        let (lower, before) = changed();
        drop(before);
        change_below(&lower);
        let layer = mount(&lower, &format!("builtin = false\nstorage = \"{storage}\""));
        let _ = control(&layer, "versionfs.convert");
        assert_eq!(version(&layer, 1), Err(Errno::IO), "{storage}");
    }
}

#[test]
fn changes_through_the_layer_are_recognised() {
    let (lower, _) = changed();
    let change = |what: &dyn Fn(&Arc<VersionFs>)| {
        let layer = layer(&lower, false);
        what(&layer);
        assert!(version(&layer, 1).unwrap() == [b'a'; SIZE]);
        drop(layer);
        assert!(version(&self::layer(&lower, false), 1).unwrap() == [b'a'; SIZE]);
    };
    let set = |layer: &Arc<VersionFs>, set: SetAttr| {
        get(&layer.root()).setattr(&cx(), &set, None).unwrap();
    };
    change(&|layer| set(layer, SetAttr { mtime: Some(SetTime::At(Time { sec: 7, nsec: 7 })), ..SetAttr::default() }));
    change(&|layer| set(layer, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }));
    change(&|layer| set(layer, SetAttr { mode: Some(0o600), ..SetAttr::default() }));
    change(&|layer| set(layer, SetAttr { uid: Some(7), ..SetAttr::default() }));
    change(&|layer| get(&layer.root()).setxattr(&cx(), b"user.a", b"b", XattrFlags::default()).unwrap());
    // The same bytes set the time, and so does the same size.
    change(&|layer| write(layer, &[b'a'; 4096], 8192));
    change(&|layer| set(layer, SetAttr { size: Some(SIZE as u64), ..SetAttr::default() }));
    change(&|layer| write(layer, &[b'e'; 4096], 0));
    change(&|layer| set(layer, SetAttr { size: Some(100), ..SetAttr::default() }));
    change(&|layer| drop(get(&layer.root()).open(&cx(), OpenFlags::RDWR.with_trunc()).unwrap()));
    change(&|layer| drop(get(&layer.root()).open(&cx(), OpenFlags::RDWR.with_trunc()).unwrap()));
    change(&|layer| get(&layer.root()).open(&cx(), OpenFlags::RDWR).unwrap().fallocate(&cx(), 1, 0, 9000).unwrap());
    change(&|layer| get(&layer.root()).open(&cx(), OpenFlags::RDWR).unwrap().fallocate(&cx(), 0, 0, 9000).unwrap());
    change(&|layer| layer.root().link(&cx(), name(b"g"), &get(&layer.root())).map(drop).unwrap());
    change(&|layer| write(layer, b"through one of two names", 0));
    change(&|layer| layer.root().unlink(&cx(), name(b"g")).unwrap());
}

#[test]
fn a_write_that_failed_may_have_set_the_time() {
    let faults = Faults::new();
    let lower = MemFs::with(MemOptions::default(), &faults);
    let layer_now = changed_in(&lower);
    let open = || get(&layer_now.root()).open(&cx(), OpenFlags::RDWR).unwrap();
    let file = open();
    faults.record();
    file.write(&cx(), b"c", 0).unwrap();
    let last = faults.log().iter().rposition(|op| *op == Op::Write).unwrap() as u64;
    drop(file);
    // The third version is made by the same operations, but writing to the head fails.
    let file = open();
    let (head, plan) = (get(&lower.root()), faults.clone());
    faults.call_at(last + 1, move || {
        let mtime = Some(SetTime::At(Time { sec: 9, nsec: 9 }));
        head.setattr(&cx(), &SetAttr { mtime, ..SetAttr::default() }, None).unwrap();
        plan.arm(Plan { count: Count::All, at: 1, fault: Fault::Error(Errno::NOSPC) });
    });
    assert_eq!(file.write(&cx(), b"d", 0), Err(Errno::NOSPC));
    assert!(faults.fired());
    for layer in [&layer_now, &layer(&lower, false)] {
        assert!(version(layer, 1).unwrap() == [b'a'; SIZE]);
        assert!(version(layer, 2).unwrap()[..4097] == [[b'a'; 4096].as_slice(), b"b"].concat());
        assert!(version(layer, 3).is_err());
    }
}

/// A second name that another program made below the mount: the versions that the file has keep the
/// bytes that they share with it, and a change through the first name makes another one.
#[test]
fn a_name_that_is_made_below_leaves_the_versions_their_bytes() {
    let (lower, before) = changed();
    drop(before);
    lower.root().link(&cx(), name(b"g"), &get(&lower.root())).unwrap();
    let layer = layer(&lower, false);
    let was = read_all(&*get(&layer.root()));
    write(&layer, &[b'c'; 4096], 8192);
    assert!(version(&layer, 1) == Ok(vec![b'a'; SIZE]));
    assert!((2..5).any(|number| version(&layer, number).as_ref() == Ok(&was)));
}
