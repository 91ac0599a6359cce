//! `fsck`: finds what is wrong, repairs what can be, and invents nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use crate::common::clerk::inspect;
use crate::common::policies::*;
use memfs::{Count, Fault, Faults, MemFs, Plan};
use std::sync::Arc;
use versionfs::fsck::Problem;
use versionset::{LINKS, STORE};
use vnode::{Layer, OpenFlags};

fn history(storage: &str, steps: u32) -> (Arc<MemFs>, Story) {
    let lower = MemFs::new();
    let layer = mount(&lower, &format!("builtin = false\nstorage = \"{storage}\""));
    let mut story = Story::new(77, b"file");
    for _ in 0..steps {
        story.step(&layer, &lower);
    }
    control(&layer, "versionfs.convert").unwrap();
    (lower, story)
}

#[test]
fn a_healthy_tree_is_clean() {
    for storage in ["full", "compress", "sparse", "sparse-compress", "delta", "text", "blocks"] {
        let (lower, story) = history(storage, 20);
        let clerk = inspect(&lower, false);
        assert_eq!((clerk.found, clerk.left), (vec![], 0), "{storage}");
        // The other set is that of the name from which files were renamed.
        let others = index(&lower, b"new").versions.len();
        assert_eq!(clerk.versions as usize, verify(&lower, b"file", &story.expected) + others);
    }
}

#[test]
fn a_lost_index_is_rebuilt() {
    let (lower, story) = history("sparse", 20);
    let count = verify(&lower, b"file", &story.expected);
    let store = store(&lower).unwrap();
    let entry = store.lookup(&cx(), name(b"file;i")).unwrap().unwrap();
    for damage in 0..3 {
        match damage {
            0 => store.unlink(&cx(), name(b"file;i")).unwrap(),
            1 => {
                let entry = store.lookup(&cx(), name(b"file;i")).unwrap().unwrap();
                let file = entry.vnode.open(&cx(), OpenFlags::RDWR).unwrap();
                file.write(&cx(), b"?", entry.attr.size / 2).unwrap();
            }
            _ => {
                let file = store.lookup(&cx(), name(b"file;i")).unwrap().unwrap().vnode;
                file.open(&cx(), OpenFlags::RDWR).unwrap().write(&cx(), b"nothing!", 0).unwrap();
            }
        }
        assert_eq!(inspect(&lower, false).found, [Problem::Index]);
        let clerk = inspect(&lower, true);
        assert_eq!((clerk.found, clerk.left), (vec![Problem::Index], 0));
        assert_eq!(inspect(&lower, false).found, []);
        assert_eq!(verify(&lower, b"file", &story.expected), count);
    }
    drop(entry);
}

#[test]
fn leftovers_are_removed_and_orphans_reported() {
    let (lower, story) = history("sparse", 20);
    let store = store(&lower).unwrap();
    for leftover in [&b"file;c3~"[..], b"file;i~", b"gone;s1~"] {
        drop(store.create(&cx(), name(leftover), 0o600, OpenFlags::RDWR).unwrap());
    }
    drop(store.create(&cx(), name(b"a stranger"), 0o600, OpenFlags::RDWR).unwrap());
    let clerk = inspect(&lower, true);
    assert_eq!(clerk.found.iter().filter(|problem| **problem == Problem::Unfinished).count(), 3, "{clerk:?}");
    assert!(clerk.found.contains(&Problem::Foreign));
    verify(&lower, b"file", &story.expected);
    // A version on which older ones depend goes.
    let index = index(&lower, b"file");
    let needed = index.versions.values().zip(index.versions.values().skip(1));
    let needed = needed.filter(|(old, _)| old.letter.depends_on_newer()).map(|(_, newer)| newer.clone()).next_back();
    let needed = needed.unwrap();
    let file = versionset::version_name(b"file", needed.letter, needed.number);
    store.unlink(&cx(), name(&file)).unwrap();
    let clerk = inspect(&lower, true);
    assert!(clerk.found.contains(&Problem::Index), "{clerk:?}");
}

#[test]
fn an_interrupted_replacement_is_no_version() {
    let lower = MemFs::new();
    let root = lower.root();
    let (entry, file) = root.create(&cx(), name(b"file"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&cx(), b"content", 0).unwrap();
    let store = root.mkdir(&cx(), name(STORE), 0o700).unwrap().vnode;
    store.link(&cx(), name(b"file;f1"), &entry.vnode).unwrap();
    let clerk = inspect(&lower, true);
    assert!(clerk.found.contains(&Problem::Interrupted), "{clerk:?}");
    assert_eq!(entry.vnode.getattr(&cx()).unwrap().nlink, 1);
    assert_eq!(head(&*lower, b"file"), Some(b"content".to_vec()));
    assert_eq!(inspect(&lower, false).found, []);
}

#[test]
fn the_last_content_of_a_removed_file_with_several_names_stays() {
    let lower = MemFs::new();
    let layer = mount(&lower, "builtin = false\nstorage = \"full\"");
    let root = layer.root();
    let (entry, file) = root.create(&cx(), name(b"file"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&cx(), b"precious", 0).unwrap();
    drop(file);
    root.link(&cx(), name(b"other"), &entry.vnode).unwrap();
    let stem = format!("{:x}.0", entry.vnode.id());
    let links = |lower: &Arc<MemFs>| store(lower).unwrap().lookup(&cx(), name(LINKS)).unwrap().unwrap().vnode;
    for removed in [b"file".as_slice(), b"other"] {
        root.unlink(&cx(), name(removed)).unwrap();
        assert_eq!(inspect(&lower, true).found, [], "{}", removed.escape_ascii());
    }
    drop((entry, root, layer));
    assert_eq!(inspect(&lower, true).found, []);
    let index = versionset::index_name(stem.as_bytes());
    let index = links(&lower).lookup(&cx(), name(&index)).unwrap().unwrap();
    let index = versionset::Index::parse(&read_all(&*index.vnode)).0;
    let newest = index.newest().unwrap();
    let kept = versionset::version_name(stem.as_bytes(), newest.letter, newest.number);
    let kept = links(&lower).lookup(&cx(), name(&kept)).unwrap().unwrap();
    assert_eq!(read_all(&*kept.vnode), b"precious");
    // A replacement that a kill interrupted: the file has its name, too.
    lower.root().link(&cx(), name(b"other"), &kept.vnode).unwrap();
    assert!(inspect(&lower, true).found.contains(&Problem::Interrupted));
    assert_eq!(kept.vnode.getattr(&cx()).unwrap().nlink, 1);
    assert_eq!(head(&*lower, b"other"), Some(b"precious".to_vec()));
    assert_eq!(inspect(&lower, false).found, []);
}

#[test]
fn after_any_kill_a_repair_leaves_a_clean_tree() {
    let (base, story) = history("compress", 10);
    for at in 1..400 {
        let faults = Faults::new();
        let copy = base.fork(&faults);
        let layer = mount(&copy, "builtin = false\nstorage = \"sparse\"");
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _ = control(&layer, "versionfs.clean");
        if !faults.crashed() {
            assert!(at > 5);
            return;
        }
        drop(layer);
        let survivor = copy.recover(&Faults::new());
        let before = index(&survivor, b"file").versions.len();
        let clerk = inspect(&survivor, true);
        assert_eq!(clerk.left, 0, "step {at}: {clerk:?}");
        assert_eq!(inspect(&survivor, false).found, [], "step {at}");
        assert_eq!(verify(&survivor, b"file", &story.expected), before);
    }
}

/// A kill after the record of a version, before its file: the head goes on as if it had not been.
/// It does not matter whether `fsck` or the next mount finds that out.
#[test]
fn a_version_that_was_not_made_leaves_no_gap() {
    for (repairs, is_link) in [(true, false), (false, false), (true, true), (false, true)] {
        let faults = Faults::new();
        let lower = MemFs::with(memfs::MemOptions::default(), &faults);
        let layer = mount(&lower, "builtin = false");
        let root = layer.root();
        let write = |data: &[u8]| {
            let entry = root.lookup(&cx(), name(b"f"))?.unwrap();
            entry.vnode.open(&cx(), OpenFlags::WRONLY)?.write(&cx(), data, 0).map(drop)
        };
        drop(root.create(&cx(), name(b"f"), 0o644, OpenFlags::WRONLY).unwrap());
        if is_link {
            let entry = root.lookup(&cx(), name(b"f")).unwrap().unwrap();
            root.link(&cx(), name(b"g"), &entry.vnode).unwrap();
        }
        write(b"one").unwrap();
        write(b"two").unwrap();
        // The append of the record is the first change, creating the file the second.
        faults.arm(Plan { count: Count::Only(memfs::Op::Create), at: 1, fault: Fault::Crash });
        write(b"three").unwrap_err();
        assert!(faults.crashed());
        drop((root, layer));
        let lower = lower.recover(&Faults::new());
        let sets = if is_link {
            store(&lower).unwrap().lookup(&cx(), name(LINKS)).unwrap().unwrap().vnode
        } else {
            store(&lower).unwrap()
        };
        let index = || {
            let mut found = None;
            sets.readdir(&cx(), 0, &mut |entry| {
                if entry.name.as_bytes().ends_with(b";i") {
                    found = Some(entry.name.as_bytes().to_vec());
                }
                true
            })
            .unwrap();
            let entry = sets.lookup(&cx(), name(&found.unwrap())).unwrap().unwrap();
            versionset::Index::parse(&read_all(&*entry.vnode)).0
        };
        assert_eq!(index().versions.len(), 3);
        if repairs {
            inspect(&lower, true);
        }
        let layer = mount(&lower, "builtin = false");
        control(&layer, "versionfs.clean").unwrap();
        let index = index();
        let newest = index.newest().unwrap();
        assert_eq!((newest.number, index.last_end), (2, Some(newest.died)), "fsck: {repairs}, link: {is_link}");
        drop(layer);
        assert_eq!(inspect(&lower, false).found, []);
    }
}
