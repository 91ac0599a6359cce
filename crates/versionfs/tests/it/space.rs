//! Full disks: the history yields, what is left of it is right, and what takes no space natively
//! succeeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use crate::common::clerk::inspect;
use crate::common::policies::*;
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::Rng;
use versionfs::VersionFs;
use versionset::Letter;
use vnode::{Cx, Errno, Layer, OpenFlags, RenameFlags, Result, SetAttr, Vnode, XattrFlags};

const SPACE: u64 = 2 << 20;

/// Minimums protect every version.
const CONFIG: &str = "builtin = false\nage = \"1000y..none\"\n[volume]\nmax = \"25%\"\nfree = \"1GiB\"";

fn disk(faults: &Faults) -> Arc<MemFs> {
    MemFs::with(MemOptions { space: SPACE, ..MemOptions::default() }, faults)
}

fn free(lower: &Arc<MemFs>) -> u64 {
    let stat = lower.root().statfs(&cx()).unwrap();
    stat.bavail * stat.frsize
}

/// Content that no other version has, and of which each part shows to which it belongs.
fn content(file: &str, n: usize, len: usize) -> Vec<u8> {
    format!("{file} {n};").into_bytes().into_iter().cycle().take(len).collect()
}

fn is_content(file: &str, bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|byte| *byte == b';') else { return bytes.is_empty() };
    let (unit, text) = (&bytes[..=end], String::from_utf8_lossy(&bytes[..end]));
    text.starts_with(&format!("{file} ")) && bytes.chunks(unit.len()).all(|chunk| unit.starts_with(chunk))
}

fn write(dir: &Arc<dyn Vnode>, file: &str, data: &[u8]) -> Result<()> {
    let opened = match dir.lookup(&cx(), name(file.as_bytes()))? {
        Some(entry) => entry.vnode.open(&cx(), OpenFlags::WRONLY.with_trunc())?,
        None => dir.create(&cx(), name(file.as_bytes()), 0o644, OpenFlags::WRONLY)?.1,
    };
    let mut done = 0;
    while done < data.len() {
        done += opened.write(&cx(), &data[done..], done as u64)?;
    }
    Ok(())
}

fn get(dir: &Arc<dyn Vnode>, file: &str) -> Arc<dyn Vnode> {
    dir.lookup(&cx(), name(file.as_bytes())).unwrap().unwrap().vnode
}

/// Fills the lower file system or its quota, as other programs do.
fn fill(lower: &Arc<MemFs>) {
    let (_, file) = lower.root().create(&cx(), name(b"filler"), 0o644, OpenFlags::WRONLY).unwrap();
    let mut at = 0;
    while let Ok(written) = file.write(&cx(), &[7; 4096], at) {
        at += written as u64;
    }
}

/// Reads all versions of a name through the mount. Returns how many there are.
fn check_versions(layer: &VersionFs, file: &str) -> usize {
    let root = layer.root();
    let Ok(list) = root.control(&cx(), "versionfs.list", file.as_bytes()) else { return 0 };
    let list = String::from_utf8(list).unwrap();
    let mut count = 0;
    for line in list.lines().skip(1) {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields.contains(&"r") {
            continue;
        }
        let input = format!("{file} {}", fields[0]);
        let token = root.control(&cx(), "versionfs.open", input.as_bytes()).unwrap();
        let version = root.lookup(&cx(), name(token.trim_ascii())).unwrap().unwrap();
        let bytes = read_all(&*version.vnode);
        assert!(is_content(file, &bytes), "{file} {line}: {}", bytes[..40.min(bytes.len())].escape_ascii());
        count += 1;
    }
    count
}

/// Whatever is done with files that fit, no operation fails, although their history does not fit.
#[test]
fn no_operation_fails_while_the_files_fit() {
    for seed in 0..8 {
        let lower = disk(&Faults::new());
        let layer = mount(&lower, CONFIG);
        let root = layer.root();
        let (mut rng, mut heads) = (Rng::new(seed), BTreeMap::<String, Vec<u8>>::new());
        for n in 0..1500 {
            let file = format!("f{}", rng.below(10));
            let head = heads.get_mut(&file);
            let label = format!("seed {seed}, step {n}, {file}, {} free", free(&lower));
            match (rng.below(7), head) {
                (0..3, _) => {
                    let data = content(&file, n, 1 + rng.below(60_000));
                    write(&root, &file, &data).unwrap_or_else(|errno| panic!("{label}: {errno}"));
                    heads.insert(file, data);
                }
                (3, Some(head)) => {
                    let size = rng.below(head.len() + 1);
                    let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                    get(&root, &file).setattr(&cx(), &set, None).unwrap_or_else(|errno| panic!("{label}: {errno}"));
                    head.truncate(size);
                }
                (4, Some(_)) => {
                    let set = SetAttr { mode: Some(0o600 + (n as u32 & 7)), ..SetAttr::default() };
                    get(&root, &file).setattr(&cx(), &set, None).unwrap_or_else(|errno| panic!("{label}: {errno}"));
                }
                (5, Some(_)) => {
                    root.unlink(&cx(), name(file.as_bytes())).unwrap_or_else(|errno| panic!("{label}: {errno}"));
                    heads.remove(&file);
                }
                (6, Some(head)) if !head.is_empty() => {
                    // In place: the blocks that change are saved.
                    let (data, opened) = (content(&file, n, head.len()), get(&root, &file));
                    let opened = opened.open(&cx(), OpenFlags::WRONLY).unwrap();
                    let written = opened.write(&cx(), &data, 0);
                    assert_eq!(written, Ok(data.len()), "{label}");
                    *head = data;
                }
                _ => {}
            }
        }
        for (file, data) in &heads {
            assert!(read_all(&*get(&root, file)) == *data, "seed {seed}: {file}");
        }
        let versions: usize = (0..10).map(|n| check_versions(&layer, &format!("f{n}"))).sum();
        assert!(versions > 5, "seed {seed}: {versions}");
        drop((root, layer));
        assert_eq!(inspect(&lower, true).texts, [""; 0], "seed {seed}");
    }
}

type Operation = fn(&Arc<dyn Vnode>) -> Result<()>;

/// Operations on `f` that take no space natively.
const FREE: [(&str, Operation); 7] = [
    ("unlink", |root| root.unlink(&cx(), name(b"f"))),
    ("truncate", |root| change(root, &SetAttr { size: Some(10), ..SetAttr::default() })),
    ("chmod", |root| change(root, &SetAttr { mode: Some(0o600), ..SetAttr::default() })),
    ("chown", |root| change(root, &SetAttr { uid: Some(7), ..SetAttr::default() })),
    ("rename", |root| root.rename(&cx(), name(b"f"), root, name(b"g"), RenameFlags::default())),
    ("replace", |root| root.rename(&cx(), name(b"new"), root, name(b"f"), RenameFlags::default())),
    ("empty", |root| get(root, "f").open(&cx(), OpenFlags::WRONLY.with_trunc()).map(drop)),
];

fn change(root: &Arc<dyn Vnode>, set: &SetAttr) -> Result<()> {
    get(root, "f").setattr(&cx(), set, None).map(drop)
}

/// A disk with a file `f` whose history, and nothing else, can yield.
fn full(layer: &VersionFs, lower: &Arc<MemFs>, versions: usize) {
    let root = layer.root();
    for n in 0..=versions {
        write(&root, "old", &content("old", n, 20_000)).unwrap();
    }
    write(&root, "f", &content("f", 0, 50_000)).unwrap();
    write(&root, "new", b"new").unwrap();
    fill(lower);
}

#[test]
fn what_takes_no_space_succeeds_on_a_full_disk() {
    for versions in [0, 1, 6] {
        for (what, run) in FREE {
            let lower = disk(&Faults::new());
            let layer = mount(&lower, CONFIG);
            full(&layer, &lower, versions);
            assert_eq!(run(&layer.root()), Ok(()), "{what} with {versions} versions");
            let kept = check_versions(&layer, "old");
            assert!(kept <= versions, "{what}");
            if versions == 6 {
                // As many as needed went, the oldest first.
                let index = index(&lower, b"old");
                let oldest = *index.versions.keys().next().unwrap_or(&7);
                assert!(oldest > 1 && oldest + kept as u64 == 7, "{what}: {oldest}, {kept}");
                // A name that is renamed refers to the new one.
                assert_eq!(check_versions(&layer, "f"), usize::from(what != "rename"), "{what}");
            }
            let data = read_all(&*get(&layer.root(), "old"));
            assert!(data == content("old", versions, 20_000), "{what}");
            drop(layer);
            assert_eq!(inspect(&lower, true).texts, [""; 0], "{what} with {versions} versions");
        }
    }
}

/// A file system with much room, and a quota of [`SPACE`].
fn with_quota() -> Arc<MemFs> {
    MemFs::with(MemOptions { space: 64 * SPACE, quota: SPACE, ..MemOptions::default() }, &Faults::new())
}

#[test]
fn what_takes_no_space_succeeds_on_a_full_quota() {
    for versions in [0, 1, 6] {
        for (what, run) in FREE {
            let lower = with_quota();
            let layer = mount(&lower, CONFIG);
            full(&layer, &lower, versions);
            assert_eq!(run(&layer.root()), Ok(()), "{what} with {versions} versions");
            let kept = check_versions(&layer, "old");
            if versions == 6 {
                let oldest = *index(&lower, b"old").versions.keys().next().unwrap_or(&7);
                assert!(oldest > 1 && oldest + kept as u64 == 7, "{what}: {oldest}, {kept}");
                assert_eq!(check_versions(&layer, "f"), usize::from(what != "rename"), "{what}");
            }
            assert!(read_all(&*get(&layer.root(), "old")) == content("old", versions, 20_000), "{what}");
            drop(layer);
            assert_eq!(inspect(&lower, true).texts, [""; 0], "{what} with {versions} versions");
        }
    }
}

/// A full quota is that of one user: the history of others stays, and a quarter of the user's own
/// that minimums protect.
#[test]
fn data_takes_room_from_the_history_of_its_owner() {
    let lower = with_quota();
    let layer = mount(&lower, CONFIG);
    let root = layer.root();
    root.setattr(&cx(), &SetAttr { mode: Some(0o777), ..SetAttr::default() }, None).unwrap();
    let user = |uid| Cx::internal(uid, uid);
    let write = |uid, file: &str, data: &[u8]| -> Result<()> {
        let opened = match root.lookup(&user(uid), name(file.as_bytes()))? {
            Some(entry) => entry.vnode.open(&user(uid), OpenFlags::WRONLY.with_trunc())?,
            None => root.create(&user(uid), name(file.as_bytes()), 0o644, OpenFlags::WRONLY)?.1,
        };
        opened.write(&user(uid), data, 0).map(|written| assert_eq!(written, data.len()))
    };
    for n in 0..=16 {
        write(7, "seven", &content("seven", n, 20_000)).unwrap();
        write(8, "eight", &content("eight", n, 20_000)).unwrap();
    }
    fill(&lower);
    assert_eq!(write(9, "nine", b"9"), Err(Errno::DQUOT), "who has no history");
    assert_eq!((check_versions(&layer, "seven"), check_versions(&layer, "eight")), (16, 16));
    write(7, "more", &[1; 100_000]).unwrap();
    let kept = check_versions(&layer, "seven");
    assert!((3..12).contains(&kept), "{kept}");
    assert_eq!(*index(&lower, b"seven").versions.keys().next_back().unwrap(), 16, "the newest stays");
    assert_eq!(check_versions(&layer, "eight"), 16);
    let more = (0..40).map(|n| write(7, &format!("more{n}"), &[1; 20_000])).filter(Result::is_ok).count();
    assert!((1..20).contains(&more), "{more}");
    assert!(check_versions(&layer, "seven") >= 3);
    assert_eq!(check_versions(&layer, "eight"), 16);
    // Where nothing yields, `nospace` decides.
    lower.root().unlink(&cx(), name(b"filler")).unwrap();
    fill(&lower);
    let layer = mount(&lower, "builtin = false\n[volume]\nfree = \"none\"");
    assert_eq!(layer.root().unlink(&cx(), name(b"more")), Err(Errno::DQUOT));
}

/// Without room, a write that would lose the only version of what it overwrites fails, and data
/// does not displace what a minimum protects.
#[test]
fn data_takes_only_what_exceeds_the_bound() {
    let lower = disk(&Faults::new());
    let layer = mount(&lower, CONFIG);
    full(&layer, &lower, 6);
    let root = layer.root();
    assert_eq!(write(&root, "more", &[1; 100_000]), Err(Errno::NOSPC));
    assert_eq!(check_versions(&layer, "old"), 6);
    root.unlink(&cx(), name(b"more")).unwrap();
    // Beyond the bound, protected versions yield to data.
    lower.root().unlink(&cx(), name(b"filler")).unwrap();
    for n in 0..60 {
        write(&root, "old", &content("old", n, 20_000)).unwrap();
    }
    let kept = check_versions(&layer, "old");
    fill(&lower);
    write(&root, "more", &[1; 100_000]).unwrap();
    assert!(check_versions(&layer, "old") < kept);
}

/// Without `free`, nothing is discarded for room, and `nospace` decides.
#[test]
fn a_history_that_does_not_give_way_stays() {
    let config = "builtin = false\n[volume]\nfree = \"none\"";
    let lower = disk(&Faults::new());
    let layer = mount(&lower, config);
    full(&layer, &lower, 6);
    assert_eq!(layer.root().unlink(&cx(), name(b"f")), Err(Errno::NOSPC));
    assert_eq!(check_versions(&layer, "old"), 6);
    let layer = mount(&lower, &config.replace("[volume]", "nospace = \"skip\"\n[volume]"));
    assert_eq!(layer.root().unlink(&cx(), name(b"f")), Ok(()));
}

/// Any lower operation fails for lack of space once, or the server is killed there: no version
/// becomes another one.
#[test]
fn any_step_of_giving_way_may_fail_or_be_the_last() {
    for (what, run) in FREE {
        for fault in [Fault::Error(Errno::NOSPC), Fault::Crash] {
            let (mut at, mut fired) = (1, true);
            while fired {
                let faults = Faults::new();
                let lower = disk(&faults);
                let layer = mount(&lower, CONFIG);
                full(&layer, &lower, 6);
                faults.arm(Plan { count: Count::Changes, at, fault });
                let done = run(&layer.root());
                fired = faults.fired();
                faults.disarm();
                drop(layer);
                let lower = if faults.crashed() { lower.recover(&Faults::new()) } else { lower };
                let layer = mount(&lower, CONFIG);
                let label = format!("{what}, {fault:?} at step {at}");
                if !matches!(fault, Fault::Crash) {
                    assert_eq!(done, Ok(()), "{label}");
                }
                for file in ["old", "f"] {
                    check_versions(&layer, file);
                }
                assert!(read_all(&*get(&layer.root(), "old")) == content("old", 6, 20_000), "{label}");
                drop(layer);
                // Repairs take space, too.
                lower.root().unlink(&cx(), name(b"filler")).unwrap();
                inspect(&lower, true);
                assert_eq!(inspect(&lower, true).texts, [""; 0], "{label}");
                at += 1;
            }
            assert!(at > 10, "{what}: {at}");
        }
    }
}

/// The index of a name goes with its last version, but no number is used twice: other histories
/// refer to versions by their number.
#[test]
fn numbers_of_names_that_are_forgotten_are_not_used_again() {
    let lower = disk(&Faults::new());
    let layer = mount(&lower, CONFIG);
    let root = layer.root();
    for n in 0..5 {
        write(&root, "f", &content("f", n, 8000)).unwrap();
    }
    root.unlink(&cx(), name(b"f")).unwrap();
    fill(&lower);
    root.create(&cx(), name(b"x"), 0o644, OpenFlags::WRONLY).unwrap();
    for n in 0..40 {
        // Each displaces an older version.
        let set = SetAttr { mode: Some(0o600 + n), ..SetAttr::default() };
        get(&root, "x").setattr(&cx(), &set, None).unwrap();
        get(&root, "x").setxattr(&cx(), b"user.a", &[n as u8; 3000], XattrFlags::default()).unwrap();
    }
    let names = store_names(&lower);
    assert!(!names.iter().any(|name| name.starts_with("f;")), "{names:?}");
    lower.root().unlink(&cx(), name(b"filler")).unwrap();
    write(&root, "f", &content("f", 9, 8000)).unwrap();
    write(&root, "f", &content("f", 10, 8000)).unwrap();
    let numbers: Vec<u64> = index(&lower, b"f").versions.keys().copied().collect();
    assert!(numbers.len() == 1 && numbers[0] > 5, "{numbers:?}");
    drop(layer);
    assert_eq!(inspect(&lower, true).texts, [""; 0]);
}

/// Limits that are not the disk's: of an extended attribute's size, of a quota that says `ENOSPC`.
#[test]
fn an_error_of_a_disk_that_is_not_full_discards_nothing() {
    // An open with O_TRUNC truncates at the close.
    for (what, run) in FREE.into_iter().filter(|(what, _)| *what != "empty") {
        let faults = Faults::new();
        let lower = disk(&faults);
        let layer = mount(&lower, CONFIG);
        full(&layer, &lower, 6);
        lower.root().unlink(&cx(), name(b"filler")).unwrap();
        faults.arm(Plan { count: Count::Changes, at: 1, fault: Fault::Errors(Errno::NOSPC) });
        assert_eq!(run(&layer.root()), Err(Errno::NOSPC), "{what}");
        let large = get(&layer.root(), "f").setxattr(&cx(), b"user.a", b"x", XattrFlags::default());
        assert_eq!(large, Err(Errno::NOSPC), "{what}");
        faults.disarm();
        assert_eq!(check_versions(&layer, "old"), 6, "{what}");
    }
}

/// A version that can't fit whatever is discarded displaces none.
#[test]
fn the_removal_of_a_file_that_is_larger_than_all_room_takes_no_history() {
    let lower = disk(&Faults::new());
    let layer = mount(&lower, CONFIG);
    let root = layer.root();
    for n in 0..=6 {
        write(&root, "old", &content("old", n, 20_000)).unwrap();
    }
    write(&root, "log", b"1").unwrap();
    let open = get(&root, "log").open(&cx(), OpenFlags::WRONLY).unwrap();
    open.write(&cx(), &vec![b'2'; 1 << 20], 0).unwrap();
    fill(&lower);
    // It is open for writing, so a copy would become the version.
    root.unlink(&cx(), name(b"log")).unwrap();
    assert!(check_versions(&layer, "old") >= 5, "{}", check_versions(&layer, "old"));
    drop(open);
    assert!(free(&lower) >= 1 << 20);
}

/// Also without any history that could yield, a directory replaces an empty one.
#[test]
fn a_directory_replaces_an_empty_one_on_a_full_disk() {
    for removed in [false, true] {
        let options = MemOptions { space: SPACE, object_pages: 1, ..MemOptions::default() };
        let lower = MemFs::with(options, &Faults::new());
        let layer = mount(&lower, CONFIG);
        let root = layer.root();
        let full = root.mkdir(&cx(), name(b"full"), 0o755).unwrap().vnode;
        write(&full, "f", b"1").unwrap();
        let empty = root.mkdir(&cx(), name(b"empty"), 0o755).unwrap().vnode;
        if removed {
            // It has a store, whose version yields first.
            write(&empty, "x", b"1").unwrap();
            empty.unlink(&cx(), name(b"x")).unwrap();
        }
        fill(&lower);
        root.rename(&cx(), name(b"full"), &root, name(b"empty"), RenameFlags::default()).unwrap();
        assert_eq!(read_all(&*get(&get(&root, "empty"), "f")), b"1");
        assert!(root.lookup(&cx(), name(b"full")).unwrap().is_none());
        drop((root, full, empty));
        layer.unmounted();
        drop(layer);
        assert_eq!(inspect(&lower, true).texts, [""; 0], "{removed}");
    }
}

/// Versions in a removed directory go by their own rules, and the directory after them.
#[test]
fn a_pinned_version_in_a_removed_directory_stays() {
    let lower = disk(&Faults::new());
    let layer = mount(&lower, CONFIG);
    let root = layer.root();
    let dir = root.mkdir(&cx(), name(b"d"), 0o755).unwrap().vnode;
    for n in 0..4 {
        write(&dir, "f", &content("f", n, 30_000)).unwrap();
    }
    dir.control(&cx(), "versionfs.pin", b"f 2 on").unwrap();
    dir.unlink(&cx(), name(b"f")).unwrap();
    drop(dir);
    root.rmdir(&cx(), name(b"d")).unwrap();
    write(&root, "x", b"1").unwrap();
    fill(&lower);
    for n in 0..60 {
        let set = SetAttr { mode: Some(0o600 + n), ..SetAttr::default() };
        get(&root, "x").setattr(&cx(), &set, None).unwrap();
        get(&root, "x").setxattr(&cx(), b"user.a", &[n as u8; 3000], XattrFlags::default()).unwrap();
    }
    let removed = store(&lower).unwrap().lookup(&cx(), name(b"d;d1")).unwrap().unwrap().vnode;
    let inside = removed.lookup(&cx(), name(versionset::STORE)).unwrap().unwrap().vnode;
    let mut names = Vec::new();
    inside
        .readdir(&cx(), 0, &mut |entry| {
            names.push(entry.name.to_string());
            true
        })
        .unwrap();
    let versions: Vec<&String> = names.iter().filter(|name| name.starts_with("f;") && *name != "f;i").collect();
    assert!(versions.len() == 1 && versions[0].ends_with('2'), "{names:?}");
}

/// A version of a removed file may be a difference to one of the file that has the name now, which
/// then stays with it.
#[test]
fn a_pinned_version_keeps_the_bytes_that_it_takes_from_another_file() {
    let mut at = 1;
    loop {
        let faults = Faults::new();
        let lower = disk(&faults);
        let layer = mount(&lower, &format!("storage = \"delta\"\n{CONFIG}"));
        let root = layer.root();
        let data = content("f", 0, 20_000);
        write(&root, "f", &data).unwrap();
        root.unlink(&cx(), name(b"f")).unwrap();
        write(&root, "f", &data).unwrap();
        get(&root, "f").open(&cx(), OpenFlags::WRONLY).unwrap().write(&cx(), &[b'x'; 4096], 8192).unwrap();
        root.control(&cx(), "versionfs.clean", b"").unwrap();
        root.control(&cx(), "versionfs.pin", b"f 1 on").unwrap();
        let letters: Vec<_> = index(&lower, b"f").versions.values().map(|version| version.letter).collect();
        assert_eq!(letters, [Letter::Delta, Letter::Sparse]);
        fill(&lower);
        faults.arm(Plan { count: Count::Allocations, at, fault: Fault::Errors(Errno::NOSPC) });
        let done = change(&root, &SetAttr { size: Some(10), ..SetAttr::default() });
        let fired = faults.fired();
        faults.disarm();
        assert!(matches!(done, Ok(()) | Err(Errno::NOSPC)), "{done:?} at {at}");
        let token = root.control(&cx(), "versionfs.open", b"f 1").unwrap();
        let version = root.lookup(&cx(), name(token.trim_ascii())).unwrap().unwrap();
        assert!(read_all(&*version.vnode) == data, "at {at}");
        if !fired {
            break;
        }
        at += 1;
    }
    assert!(at > 3, "{at}");
}

/// A kill between the new encoding of an older version and the record that its base is discarded
/// leaves a version that refers past that one.
#[test]
fn versions_that_refer_past_the_next_one_keep_their_bytes() {
    let part = |seed: u64| Rng::new(seed).bytes(20_000);
    let [p, q, r, s] = [1, 2, 3, 4].map(part);
    // The second and the third have nothing in common.
    let contents = [[&*p, &*q].concat(), [&*p, &*r].concat(), [&*s, &*q].concat(), part(5)];
    let (mut at, mut fired) = (1, true);
    let mut refers_past = 0;
    while fired {
        let faults = Faults::new();
        let lower = disk(&faults);
        let config = format!("storage = \"delta\"\n{CONFIG}");
        let layer = mount(&lower, &config);
        let root = layer.root();
        for content in &contents {
            write(&root, "f", content).unwrap();
            root.unlink(&cx(), name(b"f")).unwrap();
        }
        root.control(&cx(), "versionfs.clean", b"").unwrap();
        let letters: Vec<_> = index(&lower, b"f").versions.values().map(|version| version.letter).collect();
        assert!(letters[0] == Letter::Delta && !letters[1].depends_on_newer(), "{letters:?}");
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _ = root.control(&cx(), "versionfs.discard", b"f 2");
        fired = faults.fired();
        faults.disarm();
        drop((root, layer));
        let lower = if faults.crashed() { lower.recover(&Faults::new()) } else { lower };
        let layer = mount(&lower, &config);
        let root = layer.root();
        let is_left = index(&lower, b"f").versions.contains_key(&2);
        root.control(&cx(), "versionfs.discard", b"f 3").unwrap();
        refers_past += u32::from(is_left);
        let token = root.control(&cx(), "versionfs.open", b"f 1").unwrap();
        let version = root.lookup(&cx(), name(token.trim_ascii())).unwrap().unwrap();
        assert!(read_all(&*version.vnode) == contents[0], "at {at}");
        at += 1;
    }
    assert!(refers_past > 3 && at > 5, "{refers_past} of {at}");
}
