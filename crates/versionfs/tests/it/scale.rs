//! Very many versions of one file, and very many names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use crate::common::store::read;
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use versionfs::{Options, Storage, VersionFs};
use versionset::{Condition, Index, STORE};
use vnode::{Cx, Layer, Name, OpenFlags, Time, Vnode};

/// Size of the file: two blocks, of which each version changes the first.
const SIZE: usize = 2 * 4096;

fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

fn get(dir: &Arc<dyn Vnode>, entry: &[u8]) -> Arc<dyn Vnode> {
    dir.lookup(&cx(), name(entry)).unwrap().unwrap().vnode
}

fn index(mem: &Arc<MemFs>) -> Index {
    let (index, condition) = Index::parse(&read(&get(&get(&mem.root(), STORE), b"a;i")));
    assert_eq!(condition, Condition::Complete);
    index
}

/// Returns what the file was before its version `step + 1` was made.
fn content(step: usize) -> Vec<u8> {
    let mut content = vec![b'.'; SIZE];
    content[..16].copy_from_slice(format!("{step:16}").as_bytes());
    content
}

fn ask(fs: &Arc<VersionFs>, command: &str, input: &str) -> String {
    String::from_utf8(fs.root().control(&cx(), command, input.as_bytes()).unwrap()).unwrap()
}

fn version(fs: &Arc<VersionFs>, number: usize) -> Vec<u8> {
    let token = ask(fs, "versionfs.open", &format!("a {number}"));
    read(&get(&fs.root(), token.trim_end().as_bytes()))
}

/// Lists all versions, one reply after another. Returns their numbers, and how many replies that
/// took.
fn list(fs: &Arc<VersionFs>) -> (Vec<usize>, usize) {
    let (mut numbers, mut replies, mut from) = (Vec::new(), 0, Some("1".to_owned()));
    while let Some(first) = from.take() {
        let reply = ask(fs, "versionfs.list", &format!("a {first}"));
        assert!(reply.len() < 1 << 20, "{}", reply.len());
        replies += 1;
        for line in reply.lines().skip(1) {
            match line.strip_prefix("more ") {
                Some(next) => from = Some(next.to_owned()),
                None => numbers.push(line.split(' ').next().unwrap().parse().unwrap()),
            }
        }
    }
    (numbers, replies)
}

/// Discards versions, as many with one command as an ioctl has room for.
fn discard(fs: &Arc<VersionFs>, numbers: &[usize]) {
    for part in numbers.chunks(1000) {
        let numbers: Vec<_> = part.iter().map(ToString::to_string).collect();
        ask(fs, "versionfs.discard", &format!("a {}", numbers.join(" ")));
    }
}

/// Makes `count` versions, lists and reads them, discards some, and mounts again.
fn many_versions(storage: Storage, count: usize) {
    let mem = MemFs::new();
    let options = Options { storage, ..Options::default() };
    let fs = VersionFs::new(mem.clone(), options);
    let file = fs.root().create(&cx(), name(b"a"), 0o644, OpenFlags::RDWR).unwrap().1;
    file.write(&cx(), &content(0), 0).unwrap();
    drop(file);
    for step in 1..=count {
        let file = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap();
        file.write(&cx(), &content(step)[..16], 0).unwrap();
    }
    assert_eq!(index(&mem).versions.len(), count);
    let (numbers, replies) = list(&fs);
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
    assert!(replies > count / 20_000, "{replies}");
    // The second block of each is in the head.
    for number in [1, count / 2, count] {
        assert!(version(&fs, number) == content(number - 1), "{number}");
    }
    // From the tail, and some in the middle.
    let tail: Vec<_> = (1..=count / 2).collect();
    discard(&fs, &tail);
    let middle: Vec<_> = (1..=100).map(|step| count - 3 * step).collect();
    discard(&fs, &middle);
    let fs = VersionFs::new(mem.clone(), options);
    let left: Vec<_> = (count / 2 + 1..=count).filter(|number| !middle.contains(number)).collect();
    assert_eq!(list(&fs).0, left);
    for number in [left[0], left[left.len() / 2], count - 4, count] {
        assert!(version(&fs, number) == content(number - 1), "{number}");
    }
    // The log shrinks with the number of versions.
    discard(&fs, &left[..left.len() - 10]);
    assert_eq!(index(&mem).versions.len(), 10);
    let log = read(&get(&get(&mem.root(), STORE), b"a;i")).len();
    assert!(log < 64 * 100, "{log}");
}

#[test]
fn thousands_of_whole_versions() {
    many_versions(Storage::Full, 4_000);
}

#[test]
fn thousands_of_deltas() {
    many_versions(Storage::Sparse, 10_000);
}

#[test]
#[ignore = "needs 1 GB of memory and 30 s of CPU time"]
fn a_hundred_thousand_deltas() {
    many_versions(Storage::Sparse, 100_000);
}

/// Lists a directory in parts of five entries. Returns the names and the operations below.
fn list_in_parts(faults: &Faults, dir: &Arc<dyn Vnode>) -> (Vec<Vec<u8>>, u64) {
    let (before, mut names, mut cookie) = (faults.operations(), Vec::new(), 0);
    loop {
        let len = names.len();
        dir.readdir(&cx(), cookie, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            cookie = entry.cookie;
            names.len() - len < 5
        })
        .unwrap();
        if names.len() == len {
            names.sort();
            return (names, faults.operations() - before);
        }
    }
}

#[test]
fn past_directories_are_listed_in_linear_time() {
    let faults = Faults::new();
    let mem = MemFs::with(MemOptions::default(), &faults);
    let fs = VersionFs::new(mem, Options { versions: true, ..Options::default() });
    let mut per_name = Vec::new();
    for count in [50, 200] {
        let dir = fs.root().mkdir(&cx(), name(format!("d{count}").as_bytes()), 0o755).unwrap().vnode;
        let names: Vec<Vec<u8>> = (100..100 + count).map(|n| format!("f{n}").into_bytes()).collect();
        for file in &names {
            drop(dir.create(&cx(), name(file), 0o644, OpenFlags::RDWR).unwrap());
        }
        testkit::tick();
        let Time { sec, nsec } = (Options::default().clock)();
        testkit::tick();
        names.iter().for_each(|file| dir.unlink(&cx(), name(file)).unwrap());
        let token = dir.control(&cx(), "versionfs.at", format!("{sec}.{nsec:09}").as_bytes()).unwrap();
        let (listed, operations) = list_in_parts(&faults, &get(&dir, token.trim_ascii()));
        assert!(listed == names, "{}", listed.len());
        let (times, more) = list_in_parts(&faults, &get(&dir, b".versions"));
        assert!(!times.is_empty());
        per_name.push((operations + more) / count);
    }
    assert!(per_name[1] <= per_name[0] + 1, "{per_name:?}");
}
