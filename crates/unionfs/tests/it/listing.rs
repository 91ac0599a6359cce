//! Reading a directory while its entries change: the entries listed and the number of merges.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, name};
use memfs::{Faults, MemFs, MemOptions, Op};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use testkit::{Rng, seeds};
use unionfs::{Branch, BranchChange, ChangePolicy, Delete, InUse, Mode, Numbers, Options, Unionfs};
use vnode::{Kind, Layer, OpenFlags, RenameFlags, Vnode};

const POLICY: ChangePolicy =
    ChangePolicy { patience: Duration::from_secs(10), in_use: InUse::Keep, expected_generation: None };

struct TestUnion {
    faults: Faults,
    branches: Vec<Arc<MemFs>>,
    root: Arc<dyn Vnode>,
    _union: Arc<Unionfs>,
}

/// Returns a union of branches with these modes and the files `f0`, `f1`, ... spread over them.
fn test_union(files: usize, modes: &[Mode], delete: Delete) -> TestUnion {
    let faults = Faults::new();
    let branches: Vec<_> = modes.iter().map(|_| MemFs::with(MemOptions::default(), &faults)).collect();
    for n in 0..files {
        make(&*branches[n % branches.len()].root(), &format!("f{n}"));
    }
    let listed = branches.iter().zip(modes).enumerate().map(|(n, (layer, &mode))| Branch {
        layer: layer.clone(),
        path: format!("/{n}").into(),
        mode,
    });
    let union = Unionfs::new(listed.collect(), Options { delete, ..Options::default() }).unwrap();
    TestUnion { faults, branches, root: union.root(), _union: union }
}

/// Returns a union of a read-write branch over a read-only one.
fn two_branches(files: usize) -> TestUnion {
    test_union(files, &[Mode::ReadWrite, Mode::ReadOnly], Delete::Whiteout)
}

fn make(dir: &dyn Vnode, file: &str) {
    dir.mknod(&CX, name(file), 0o100_644, 0).unwrap();
}

/// Returns up to `most` names after a cookie, and the cookie of the last.
fn page(dir: &dyn Vnode, after: u64, most: usize) -> (Vec<String>, u64) {
    let (mut names, mut last) = (Vec::new(), after);
    dir.readdir(&CX, after, &mut |entry| {
        let room = names.len() < most;
        if room {
            names.push(entry.name.to_string());
            last = entry.cookie;
        }
        room
    })
    .unwrap();
    (names, last)
}

/// Reads the directory in pages and counts how often each name is listed; calls `between` after
/// each page.
fn scan(dir: &dyn Vnode, most: usize, between: &mut dyn FnMut(&[String])) -> BTreeMap<String, u32> {
    let (mut seen, mut after) = (BTreeMap::new(), 0);
    loop {
        let (names, last) = page(dir, after, most);
        if names.is_empty() {
            return seen;
        }
        for name in &names {
            *seen.entry(name.clone()).or_default() += 1;
        }
        between(&names);
        after = last;
    }
}

fn readdirs(faults: &Faults) -> usize {
    faults.log().iter().filter(|op| **op == Op::Readdir).count()
}

#[test]
fn removing_entries_while_listing_does_not_merge_again() {
    for delete in [Delete::Whiteout, Delete::All] {
        for modes in [&[Mode::ReadWrite, Mode::ReadOnly][..], &[Mode::ReadWrite; 3]] {
            let u = test_union(3000, modes, delete);
            u.faults.record();
            let seen = scan(&*u.root, 7, &mut |names| {
                names.iter().for_each(|file| u.root.unlink(&CX, name(file)).unwrap());
            });
            assert_eq!((seen.len(), seen.values().max()), (3000, Some(&1)));
            assert!(readdirs(&u.faults) <= 2 * modes.len(), "{} readdirs", readdirs(&u.faults));
            assert_eq!(page(&*u.root, 0, 1).0, Vec::<String>::new());
        }
    }
}

#[test]
fn creating_entries_while_listing_merges_only_a_few_times() {
    let u = two_branches(3000);
    u.faults.record();
    let mut made = 0;
    let seen = scan(&*u.root, 7, &mut |names| {
        // Enough new entries to make the cached listing expire now and then.
        for _ in names {
            make(&*u.root, &format!("new{made}"));
            made += 1;
        }
    });
    assert!((0..3000).all(|n| seen.get(&format!("f{n}")) == Some(&1)));
    assert!(seen.values().all(|&times| times == 1));
    assert!(readdirs(&u.faults) <= 10, "{} readdirs for {made} new files", readdirs(&u.faults));
}

#[test]
fn new_readers_do_not_each_merge_a_large_directory() {
    let u = two_branches(50_000);
    assert_eq!(page(&*u.root, 0, 1).0.len(), 1);
    u.faults.record();
    for n in 0..20 {
        make(&*u.root, &format!("new{n}"));
        assert_eq!(page(&*u.root, 0, 1).0.len(), 1);
    }
    assert!(readdirs(&u.faults) <= 8, "{} readdirs for 20 readers", readdirs(&u.faults));
}

/// The cost of a merge depends on the lower entries read, not on the few that are visible.
#[test]
fn new_readers_do_not_each_merge_a_directory_full_of_whiteouts() {
    let u = two_branches(10_000);
    (4..10_000).for_each(|n| u.root.unlink(&CX, name(&format!("f{n}"))).unwrap());
    assert_eq!(scan(&*u.root, 9, &mut |_| {}).len(), 4);
    u.faults.record();
    for n in 0..20 {
        make(&*u.root, &format!("new{n}"));
        assert_eq!(page(&*u.root, 0, 99).0.len(), 5 + n);
    }
    assert!(readdirs(&u.faults) <= 8, "{} readdirs for 20 readers", readdirs(&u.faults));
}

#[test]
fn new_readers_see_out_of_band_changes() {
    let u = two_branches(10);
    let seen = |file: &str| scan(&*u.root, 100, &mut |_| {}).contains_key(file);
    assert!(seen("f1") && !seen("direct"));
    u.branches[1].root().unlink(&CX, name("f1")).unwrap();
    make(&*u.branches[1].root(), "direct");
    assert!(!seen("f1") && seen("direct"));
    // The same after a change through the union.
    make(&*u.root, "own");
    make(&*u.branches[0].root(), "direct too");
    assert!(seen("own") && seen("direct too"));
}

#[test]
fn a_listing_corrects_the_link_count_after_out_of_band_changes() {
    let u = two_branches(3);
    let links = || u.root.getattr(&CX).unwrap().nlink;
    assert_eq!(links(), 2);
    for branch in &u.branches {
        branch.root().mkdir(&CX, name("both"), 0o755).unwrap();
    }
    u.branches[1].root().mkdir(&CX, name("other"), 0o755).unwrap();
    let _ = page(&*u.root, 0, usize::MAX);
    assert_eq!(links(), 4);
    u.branches[1].root().rmdir(&CX, name("other")).unwrap();
    let _ = page(&*u.root, 0, usize::MAX);
    assert_eq!(links(), 3);
    u.root.mkdir(&CX, name("own"), 0o755).unwrap();
    assert_eq!(links(), 4);
}

#[test]
fn the_listing_stamp_changes_only_with_branches_right_of_the_leftmost() {
    let u = two_branches(10);
    scan(&*u.root, 100, &mut |_| {});
    let before = u.root.listing_stamp(&CX);
    make(&*u.root, "own");
    make(&*u.branches[0].root(), "in the leftmost");
    scan(&*u.root, 100, &mut |_| {});
    assert_eq!(u.root.listing_stamp(&CX), before);
    make(&*u.branches[1].root(), "direct");
    assert_ne!(u.root.listing_stamp(&CX), before);
}

#[test]
fn a_large_cached_listing_expires() {
    let u = two_branches(8192);
    assert_eq!(page(&*u.root, 0, 1).0.len(), 1);
    let seen = |file: &str| scan(&*u.root, 9999, &mut |_| {}).contains_key(file);
    make(&*u.root, "own");
    make(&*u.branches[1].root(), "direct");
    let before = u.root.listing_stamp(&CX);
    assert!(seen("own"));
    if !seen("direct") {
        // The stamp changes when the cached listing expires.
        testkit::until("the listing expires", || u.root.listing_stamp(&CX) != before);
        assert!(seen("direct"));
    }
}

/// A xorshift generator with a fixed seed.
/// Makes one random change of the names `c0` to `c99`. Errors are permitted.
fn change(u: &TestUnion, rng: &mut Rng) {
    let one = format!("c{}", rng.below(100));
    let other = format!("c{}", rng.below(100));
    let (one, other, flags) = (name(&one), name(&other), RenameFlags::default());
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    let _ = match rng.below(8) {
        0 => u.root.mknod(&CX, one, 0o100_644, 0).map(drop),
        1 => u.root.mkdir(&CX, one, 0o755).map(drop),
        2 => u.root.unlink(&CX, one),
        3 => u.root.rmdir(&CX, one),
        4 => u.root.rename(&CX, one, &u.root, other, flags),
        5 => u.root.rename(&CX, one, &u.root, other, exchange),
        6 => u.root.lookup(&CX, one).unwrap().map_or(Ok(()), |entry| u.root.link(&CX, other, &entry.vnode).map(drop)),
        _ => u.root.lookup(&CX, one).unwrap().map_or(Ok(()), |entry| entry.vnode.open(&CX, OpenFlags::RDWR).map(drop)),
    };
}

#[test]
fn unchanged_entries_are_listed_exactly_once_during_random_changes() {
    for seed in 1..40 {
        let modes = [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadWrite];
        let delete = if seed % 2 == 0 { Delete::All } else { Delete::Whiteout };
        let u = test_union(60, &modes, delete);
        for n in 0..50 {
            let branch = u.branches[n % 3].root();
            if n % 7 == 0 {
                drop(branch.mkdir(&CX, name(&format!("c{n}")), 0o755));
            } else {
                make(&*branch, &format!("c{n}"));
            }
        }
        let mut rng = Rng::new(seed);
        for _ in 0..5 {
            let most = 1 + rng.below(9);
            let seen = scan(&*u.root, most, &mut |_| (0..rng.below(4)).for_each(|_| change(&u, &mut rng)));
            assert!((0..60).all(|n| seen.get(&format!("f{n}")) == Some(&1)), "seed {seed}: {seen:?}");
            // The listing now agrees with lookup, and the link count with the listing.
            let (mut listed, mut dirs) = (0, 2);
            u.root
                .readdir(&CX, 1, &mut |entry| {
                    let found = u.root.lookup(&CX, entry.name).unwrap().unwrap();
                    assert_eq!((found.vnode.id(), found.vnode.kind()), (entry.ino, entry.kind), "seed {seed}");
                    listed += 1;
                    dirs += u32::from(entry.kind == Kind::Directory);
                    true
                })
                .unwrap();
            let there = (0..100).filter(|n| u.root.lookup(&CX, name(&format!("c{n}"))).unwrap().is_some()).count();
            assert_eq!(listed, 60 + there, "seed {seed}");
            assert_eq!(u.root.getattr(&CX).unwrap().nlink, dirs, "seed {seed}");
        }
    }
}

/// A reader of a directory: where it continues, and what it has read.
#[derive(Clone, Default)]
struct Reader {
    after: u64,
    seen: Vec<String>,
}

/// Readers continue at present and former positions while entries are removed, branches are
/// inserted and removed, and the directory is merged again. Those that began before it was merged
/// have positions of the branch.
#[test]
fn readers_keep_their_place_across_branch_changes_and_merges() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let numbers = if rng.one_in(2) { Numbers::Narrow } else { Numbers::Wide };
        let faults = Faults::new();
        let fs = || MemFs::with(MemOptions::default(), &faults);
        let (first, inserted) = (fs(), [fs(), fs()]);
        // Some have equal positions if these have 31 bits.
        let equal = ["n3131", "n331633", "n3267", "n382948", "n6784", "n368987", "n1900", "n146730"];
        let stable = |n: &String| n.starts_with('f') || equal.iter().step_by(2).any(|name| name == n);
        let mut names: Vec<String> = (0..150).map(|n| format!("{}{n}", if n % 3 == 0 { 'f' } else { 'c' })).collect();
        names.extend(equal.map(String::from));
        (1..names.len()).for_each(|n| names.swap(n, rng.below(n + 1)));
        let dir = first.root().mkdir(&CX, name("d"), 0o755).unwrap().vnode;
        names.iter().for_each(|file| make(&*dir, file));
        names.retain(stable);
        names.sort();
        let branch =
            |layer: &Arc<MemFs>, path: &str| Branch { layer: layer.clone(), path: path.into(), mode: Mode::ReadWrite };
        let options = Options { numbers, ..Options::default() };
        let union = Unionfs::new(vec![branch(&first, "/0")], options).unwrap();
        let dir = union.root().lookup(&CX, name("d")).unwrap().unwrap().vnode;
        let mut readers = vec![Reader::default()];
        let mut left = vec!["/2", "/1"];
        for _ in 0..120 {
            match rng.below(8) {
                0 => {
                    let other = format!("c{}", rng.below(170));
                    let _ = dir.mknod(&CX, name(&other), 0o100_644, 0);
                }
                // Also names on which a reader stands.
                1 | 2 => {
                    let last = readers[rng.below(readers.len())].seen.last().cloned();
                    let other = last.unwrap_or_else(|| equal[1 + 2 * rng.below(4)].to_owned());
                    if !stable(&other) {
                        let _ = dir.unlink(&CX, name(&other));
                    }
                }
                3 if rng.one_in(3) && !left.is_empty() => {
                    let path = left.pop().unwrap();
                    let new = branch(&inserted[left.len()], path);
                    union.change_branches(vec![BranchChange::Insert { at: 0, branch: new }], &POLICY).unwrap();
                }
                // Changed out of band, so that it is merged again.
                4 => {
                    let own = inserted[rng.below(2)].root().lookup(&CX, name("d")).unwrap();
                    let lower = own.unwrap_or_else(|| first.root().lookup(&CX, name("d")).unwrap().unwrap());
                    let other = format!("c{}", rng.below(170));
                    let _ = lower.vnode.mknod(&CX, name(&other), 0o100_644, 0);
                    let _ = page(&*dir, 0, 1);
                }
                5 => readers.push(Reader::default()),
                _ => {
                    let at = rng.below(readers.len());
                    // It can come back to this position later.
                    let mut reader = readers[at].clone();
                    let (new, last) = page(&*dir, reader.after, 1 + rng.below(6));
                    reader.seen.extend(new);
                    reader.after = last;
                    readers.push(reader);
                }
            }
        }
        for mut reader in readers {
            loop {
                let (new, last) = page(&*dir, reader.after, 50);
                if new.is_empty() {
                    break;
                }
                reader.seen.extend(new);
                reader.after = last;
            }
            reader.seen.retain(stable);
            reader.seen.sort();
            assert_eq!(reader.seen, names, "seed {seed}");
        }
    }
}

/// Walks a directory with `dirs` subdirectories and lists each of them, either between the pages of
/// the parent's listing or, if `list_first`, after it. Returns the number of lower readdir
/// operations.
fn readdirs_of_walk(dirs: usize, most: usize, removes: bool, list_first: bool) -> usize {
    let u = two_branches(0);
    for n in 0..dirs {
        for branch in &u.branches {
            branch.root().mkdir(&CX, name(&format!("d{n}")), 0o755).unwrap();
        }
    }
    u.faults.record();
    let enter = |names: &[String]| {
        for dir in names {
            let entry = u.root.lookup(&CX, name(dir)).unwrap().unwrap();
            assert_eq!(page(&*entry.vnode, 0, 9).0.len(), 0);
            if removes {
                u.root.rmdir(&CX, name(dir)).unwrap();
            }
        }
    };
    if list_first {
        let all: Vec<_> = scan(&*u.root, most, &mut |_| {}).into_keys().collect();
        enter(&all);
    } else {
        let seen = scan(&*u.root, most, &mut |names| enter(names));
        assert_eq!((seen.len(), seen.values().max()), (dirs, Some(&1)));
    }
    readdirs(&u.faults)
}

/// nftw(3), BusyBox and others enter subdirectories before they have read all names.
#[test]
fn walks_that_descend_while_listing_merge_each_directory_once() {
    for (dirs, removes) in [(400, true), (5000, false)] {
        let (best, now) = (readdirs_of_walk(dirs, 40, removes, true), readdirs_of_walk(dirs, 40, removes, false));
        assert!(now <= best + 4, "{now} readdirs, at most {best} + 4 expected, removes: {removes}");
    }
}
