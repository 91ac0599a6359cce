//! Hostile stores, clocks that go backwards, several threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use crate::common::store::read;
use memfs::MemFs;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use versionfs::{Options, Storage, VersionFs};
use versionset::{Condition, Index, MAX_NUMBER, Record, STORE, Version};
use vnode::{Cx, Kind, Layer, Name, OpenFlags, SetAttr, Time, Vnode, XattrFlags};

fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

fn get(dir: &Arc<dyn Vnode>, entry: &[u8]) -> Arc<dyn Vnode> {
    dir.lookup(&cx(), name(entry)).unwrap().unwrap().vnode
}

fn write(fs: &Arc<VersionFs>, file: &[u8], data: &[u8]) -> vnode::Result<()> {
    let opened = match fs.root().lookup(&cx(), name(file))? {
        Some(entry) => entry.vnode.open(&cx(), OpenFlags::RDWR.with_trunc())?,
        None => fs.root().create(&cx(), name(file), 0o644, OpenFlags::RDWR)?.1,
    };
    opened.write(&cx(), data, 0).map(|_| ())
}

fn index(mem: &Arc<MemFs>, file: &[u8]) -> Index {
    let store = get(&mem.root(), STORE);
    let (index, condition) = Index::parse(&read(&get(&store, &versionset::index_name(file))));
    assert_eq!(condition, Condition::Complete);
    index
}

#[test]
fn intervals_stay_in_order_when_the_clock_jumps() {
    static NOW: AtomicI64 = AtomicI64::new(1_000_000);
    let clock = || Time { sec: NOW.load(Ordering::Relaxed), nsec: 0 };
    let mem = MemFs::new();
    let fs = VersionFs::new(mem.clone(), Options { clock, ..Options::default() });
    for (step, time) in [50, 40, 1_000_000, 3, -7, 0, 2_000_000, 2_000_000, 5].into_iter().enumerate() {
        NOW.store(time, Ordering::Relaxed);
        write(&fs, b"a", format!("content {step}").as_bytes()).unwrap();
    }
    let index = index(&mem, b"a");
    assert_eq!(index.versions.len(), 8);
    let mut before = Time { sec: i64::MIN, nsec: 0 };
    for version in index.versions.values() {
        assert!(before <= version.born && version.born < version.died, "{version:?}");
        before = version.died;
    }
}

/// Whatever is in the store, the file can be read, and nothing panics.
#[test]
fn hostile_stores_harm_neither_head_nor_server() {
    for storage in [Storage::Full, Storage::Sparse] {
        let options = Options { storage, ..Options::default() };
        let mem = MemFs::new();
        let fs = VersionFs::new(mem.clone(), options);
        for step in 0..4 {
            write(&fs, b"a", format!("content {step}").as_bytes()).unwrap();
        }
        let store = get(&mem.root(), STORE);
        let names = [versionset::index_name(b"a"), b"a;s3".to_vec(), b"a;f3".to_vec()];
        for file in names.iter().filter(|file| store.lookup(&cx(), name(file)).unwrap().is_some()) {
            let whole = read(&get(&store, file));
            for at in (0..whole.len() + 1).step_by(3) {
                let mem = mem.fork(&memfs::Faults::new());
                let damaged = get(&get(&mem.root(), STORE), file).open(&cx(), OpenFlags::RDWR).unwrap();
                match whole.get(at) {
                    Some(byte) => damaged.write(&cx(), &[byte ^ 0x41], at as u64).unwrap(),
                    None => damaged.write(&cx(), b"torn", at as u64).unwrap(),
                };
                drop(damaged);
                let fs = VersionFs::new(mem.clone(), options);
                assert_eq!(read(&get(&fs.root(), b"a")), b"content 3");
                // Either it works, or it fails and changes nothing.
                match write(&fs, b"a", b"content 4") {
                    Ok(()) => assert_eq!(read(&get(&fs.root(), b"a")), b"content 4", "{at}"),
                    Err(_) => assert_eq!(read(&get(&fs.root(), b"a")), b"content 3", "{at}"),
                }
                let _ = fs.root().unlink(&cx(), name(b"a"));
            }
        }
    }
}

/// Numbers that no history reaches leave room for further versions.
#[test]
fn numbers_that_nobody_can_have_used_do_not_end_a_history() {
    let forged: [fn(Version) -> Record; 7] = [
        |_| Record::Next(u64::MAX),
        |_| Record::Next(u64::MAX - 2),
        |_| Record::Linked(Time { sec: 5, nsec: 0 }, b"7.0"[..].into(), u64::MAX),
        |first| Record::Made(Version { number: u64::MAX, ..first }),
        |first| Record::Made(Version { number: MAX_NUMBER, ..first }),
        |first| Record::Made(Version { number: MAX_NUMBER - 1, ..first }),
        |first| Record::Made(Version { number: 1 << 62, ..first }),
    ];
    for forge in forged {
        let mem = MemFs::new();
        let fs = VersionFs::new(mem.clone(), Options::default());
        write(&fs, b"a", b"0").unwrap();
        write(&fs, b"a", b"1").unwrap();
        drop(fs);
        let store = get(&mem.root(), STORE);
        let entry = get(&store, &versionset::index_name(b"a"));
        let mut log = Vec::new();
        let record = forge(index(&mem, b"a").versions[&1].clone());
        record.encode(&mut log);
        let len = entry.getattr(&cx()).unwrap().size;
        entry.open(&cx(), OpenFlags::WRONLY).unwrap().write(&cx(), &log, len).unwrap();
        // And in the file from which the sets of other names count.
        let (_, next) = store.create(&cx(), name(b";next"), 0o600, OpenFlags::WRONLY).unwrap();
        next.write(&cx(), format!("{}\n", u64::MAX).as_bytes(), 0).unwrap();
        for round in 2..5 {
            let fs = VersionFs::new(mem.clone(), Options::default());
            for n in 0..3 {
                for file in [b"a", b"b"] {
                    write(&fs, file, format!("{round} {n}").as_bytes()).unwrap();
                }
            }
            fs.root().link(&cx(), name(b"c"), &fs.root().lookup(&cx(), name(b"a")).unwrap().unwrap().vnode).unwrap();
            write(&fs, b"c", b"through another name").unwrap();
            fs.root().unlink(&cx(), name(b"c")).unwrap();
        }
        assert_eq!(index(&mem, b"b").versions.len(), 8, "{record:?}");
        let listed = VersionFs::new(mem, Options::default()).root().control(&cx(), "versionfs.list", b"a").unwrap();
        let listed = String::from_utf8(listed).unwrap();
        assert!(listed.lines().count() >= 10, "{record:?}\n{listed}");
    }
}

#[test]
fn a_store_that_is_no_directory_stops_changes_and_not_reads() {
    for kind in [Kind::Regular, Kind::Symlink] {
        let mem = MemFs::new();
        let dir = mem.root();
        let file = dir.create(&cx(), name(b"a"), 0o644, OpenFlags::RDWR).unwrap().1;
        file.write(&cx(), b"old", 0).unwrap();
        match kind {
            Kind::Symlink => drop(dir.symlink(&cx(), name(STORE), b"/etc").unwrap()),
            _ => drop(dir.create(&cx(), name(STORE), 0o644, OpenFlags::RDWR).unwrap()),
        }
        let fs = VersionFs::new(mem.clone(), Options::default());
        let a = get(&fs.root(), b"a");
        assert_eq!(read(&a), b"old");
        assert!(a.open(&cx(), OpenFlags::RDWR).and_then(|file| file.write(&cx(), b"new", 0)).is_err());
        assert!(fs.root().unlink(&cx(), name(b"a")).is_err());
        assert!(a.setxattr(&cx(), b"user.x", b"1", XattrFlags::default()).is_err());
        assert_eq!(read(&get(&fs.root(), b"a")), b"old");
        assert!(fs.root().lookup(&cx(), name(STORE)).unwrap().is_none());
    }
}

/// Two threads write one file, a third removes and creates names beside it, a fourth reads.
#[test]
fn threads_do_not_lose_versions() {
    let mem = MemFs::new();
    let fs = VersionFs::new(mem.clone(), Options { storage: Storage::Sparse, ..Options::default() });
    write(&fs, b"a", &[b'0'; 5000]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2_u8 {
            let fs = &fs;
            scope.spawn(move || {
                for step in 0..150_u8 {
                    let file = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap();
                    file.write(&cx(), &[thread * 100 + step % 100 + 1; 10], u64::from(thread) * 4096).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for step in 0..100 {
                write(&fs, b"b", format!("{step}").as_bytes()).unwrap();
                fs.root().rename(&cx(), name(b"b"), &fs.root(), name(b"c"), vnode::RenameFlags::default()).unwrap();
                fs.root().unlink(&cx(), name(b"c")).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..200 {
                assert_eq!(read(&get(&fs.root(), b"a")).len(), 5000);
            }
        });
    });
    // Each write differs from what was there, and each is one open file.
    assert_eq!(index(&mem, b"a").versions.len(), 300);
    assert_eq!(index(&mem, b"b").versions.len(), 100);
    assert_eq!(index(&mem, b"c").versions.len(), 100);
}

/// A user who owns a lower directory can put a store of their own there. Root must not restore
/// privileges from it.
#[test]
fn a_store_that_a_user_may_have_made_gives_no_privileges() {
    let mem = MemFs::new();
    let fs = VersionFs::new(mem.clone(), Options::default());
    write(&fs, b"a", b"text").unwrap();
    let mode = |mode| {
        get(&fs.root(), b"a").setattr(&cx(), &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).unwrap();
    };
    for (name, value) in [(&b"security.capability"[..], &b"caps"[..]), (b"user.note", b"harmless")] {
        get(&fs.root(), b"a").setxattr(&cx(), name, value, XattrFlags::default()).unwrap();
    }
    mode(0o6755);
    mode(0o755);
    let store = get(&mem.root(), STORE);
    for (owner, expected, names) in [
        (store.getattr(&cx()).unwrap().uid, "6755", &b"security.capability\0user.note\0"[..]),
        (4711, "755", b"user.note\0"),
    ] {
        let owner = SetAttr { uid: Some(owner), ..SetAttr::default() };
        store.setattr(&cx(), &owner, None).unwrap();
        let fs = VersionFs::new(mem.clone(), Options::default());
        let list = String::from_utf8(fs.root().control(&cx(), "versionfs.list", b"a").unwrap()).unwrap();
        let newest: Vec<&str> = list.lines().last().unwrap().split(' ').collect();
        assert_eq!(newest[5], expected, "{list}");
        let token = fs.root().control(&cx(), "versionfs.open", format!("a {}", newest[0]).as_bytes()).unwrap();
        let past = get(&fs.root(), token.trim_ascii());
        assert_eq!(vnode::read_value(|out| past.listxattr(&cx(), out)).unwrap(), names);
        let capability = vnode::read_value(|out| past.getxattr(&cx(), b"security.capability", out));
        assert_eq!(capability.is_ok(), expected == "6755");
    }
}
