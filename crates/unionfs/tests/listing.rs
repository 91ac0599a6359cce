//! Reading a directory while its entries change: what it costs, and what is listed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::layer_ops::{CX, name};
use memfs::{Faults, MemFs, MemOptions, Op};
use std::collections::BTreeMap;
use std::sync::Arc;
use unionfs::{Branch, Delete, Mode, Options, Unionfs};
use vnode::{Kind, Layer, OpenFlags, RenameFlags, Vnode};

struct Merged {
    faults: Faults,
    branches: Vec<Arc<MemFs>>,
    root: Arc<dyn Vnode>,
    _union: Arc<Unionfs>,
}

/// A union of two or more branches, the first read-write, with the files `f0`, `f1`, ... spread over them.
fn merged(files: usize, modes: &[Mode], delete: Delete) -> Merged {
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
    Merged { faults, branches, root: union.root(), _union: union }
}

fn usual(files: usize) -> Merged {
    merged(files, &[Mode::ReadWrite, Mode::ReadOnly], Delete::Whiteout)
}

fn make(dir: &dyn Vnode, file: &str) {
    dir.mknod(&CX, name(file), 0o100_644, 0).unwrap();
}

/// The next `most` entries after a cookie, and the cookie of the last.
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

/// All names, read in pages; `between` is called after each.
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
fn listing_and_removing_merges_once() {
    for delete in [Delete::Whiteout, Delete::All] {
        for modes in [&[Mode::ReadWrite, Mode::ReadOnly][..], &[Mode::ReadWrite; 3]] {
            let u = merged(3000, modes, delete);
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
fn listing_and_making_merges_few_times() {
    let u = usual(3000);
    u.faults.record();
    let mut made = 0;
    let seen = scan(&*u.root, 7, &mut |names| {
        // So many that the listing is not kept all the time.
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
fn readers_who_begin_do_not_merge_a_large_directory_each_time() {
    let u = usual(50_000);
    assert_eq!(page(&*u.root, 0, 1).0.len(), 1);
    u.faults.record();
    for n in 0..20 {
        make(&*u.root, &format!("new{n}"));
        assert_eq!(page(&*u.root, 0, 1).0.len(), 1);
    }
    assert!(readdirs(&u.faults) <= 8, "{} readdirs for 20 readers", readdirs(&u.faults));
}

/// What a merge costs are the entries that are read, not those that are left.
#[test]
fn readers_who_begin_do_not_merge_a_large_directory_of_few_entries_each_time() {
    let u = usual(10_000);
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
fn out_of_band_changes_show_to_who_begins() {
    let u = usual(10);
    let seen = |file: &str| scan(&*u.root, 100, &mut |_| {}).contains_key(file);
    assert!(seen("f1") && !seen("direct"));
    u.branches[1].root().unlink(&CX, name("f1")).unwrap();
    make(&*u.branches[1].root(), "direct");
    assert!(!seen("f1") && seen("direct"));
    // Beside changes through the union.
    make(&*u.root, "own");
    make(&*u.branches[0].root(), "direct too");
    assert!(seen("own") && seen("direct too"));
}

#[test]
fn a_listing_counts_subdirectories_that_came_or_went_out_of_band() {
    let u = usual(3);
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
fn the_stamp_moves_with_other_branches_only() {
    let u = usual(10);
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
fn a_large_listing_that_may_be_out_of_date_is_believed_for_a_while_only() {
    let u = usual(8192);
    assert_eq!(page(&*u.root, 0, 1).0.len(), 1);
    let seen = |file: &str| scan(&*u.root, 9999, &mut |_| {}).contains_key(file);
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    make(&*u.root, "own");
    make(&*u.branches[1].root(), "direct");
    let before = u.root.listing_stamp(&CX);
    assert!(seen("own"));
    if !seen("direct") {
        // What keeps the listing is told when it is to ask again.
        while u.root.listing_stamp(&CX) == before {
            assert!(std::time::Instant::now() < patience);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(seen("direct"));
    }
}

/// A small generator (xorshift): the same programs each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One random change of the names `c0` to `c99`; errors are as good.
fn change(u: &Merged, dice: &mut Dice) {
    let one = format!("c{}", dice.below(100));
    let other = format!("c{}", dice.below(100));
    let (one, other, flags) = (name(&one), name(&other), RenameFlags::default());
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    let _ = match dice.below(8) {
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
fn what_stays_is_listed_once_and_what_changes_as_it_is() {
    for seed in 1..40 {
        let modes = [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadWrite];
        let delete = if seed % 2 == 0 { Delete::All } else { Delete::Whiteout };
        let u = merged(60, &modes, delete);
        for n in 0..50 {
            let branch = u.branches[n % 3].root();
            if n % 7 == 0 {
                drop(branch.mkdir(&CX, name(&format!("c{n}")), 0o755));
            } else {
                make(&*branch, &format!("c{n}"));
            }
        }
        let mut dice = Dice(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
        for _ in 0..5 {
            let most = 1 + usize::try_from(dice.below(9)).unwrap();
            let seen = scan(&*u.root, most, &mut |_| (0..dice.below(4)).for_each(|_| change(&u, &mut dice)));
            assert!((0..60).all(|n| seen.get(&format!("f{n}")) == Some(&1)), "seed {seed}: {seen:?}");
            // What is listed now is what is there, with its number and kind, and the count of directories is right.
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

/// Lists each of `dirs` subdirectories between pages of the listing of all, and then removes it or not. Answers the
/// readdirs; of who lists all first where `first`.
fn walk(dirs: usize, most: usize, removes: bool, first: bool) -> usize {
    let u = usual(0);
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
    if first {
        let all: Vec<_> = scan(&*u.root, most, &mut |_| {}).into_keys().collect();
        enter(&all);
    } else {
        let seen = scan(&*u.root, most, &mut |names| enter(names));
        assert_eq!((seen.len(), seen.values().max()), (dirs, Some(&1)));
    }
    readdirs(&u.faults)
}

/// nftw(3), BusyBox and others go into subdirectories before they have read all names.
#[test]
fn walks_that_descend_while_they_list_merge_a_directory_once() {
    for (dirs, removes) in [(400, true), (5000, false)] {
        let (best, now) = (walk(dirs, 40, removes, true), walk(dirs, 40, removes, false));
        assert!(now <= best + 4, "{now} readdirs in place of {best}, removes: {removes}");
    }
}
