//! What a directory was at a time is in the past view as it was, or is named by `versionfs.lost`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use crate::common::clerk::inspect;
use crate::common::policies::{Host, cx, name, read_all};
use memfs::{Faults, MemFs, MemOptions};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use testkit::Rng;
use versionfs::{Options, PolicySource, VersionFs};
use versionset::{Index, LOST, STORE, index_name, parse_lost};
use vnode::{Errno, Kind, Layer, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time, Vnode};

const SPACE: u64 = 1 << 20;

/// Versions of changes of names that end with `.o` are not kept; few of the others are.
const CONFIG: &str = "builtin = false\n\
                      number = \"..3\"\n[volume]\nmax = \"25%\"\nfree = \"1GiB\"\n\
                      [[rule]]\nextension = [\"o\"]\nversions = \"removed\"\n";

const DIRS: [&str; 3] = ["", "p/", "q/"];
const NAMES: [&str; 5] = ["a", "b", "c", "x.o", "y.o"];

thread_local! {
    static NOW: Cell<Time> = const { Cell::new(Time { sec: 0, nsec: 0 }) };
}

fn mount(lower: &Arc<MemFs>) -> Arc<VersionFs> {
    let source = PolicySource { host: Some(Arc::new(Host(CONFIG.to_owned(), None))), ..PolicySource::default() };
    VersionFs::with_policies(lower.clone(), Options { clock: || NOW.get(), ..Options::default() }, source).unwrap()
}

fn find(dir: &Arc<dyn Vnode>, entry: &[u8]) -> Option<Arc<dyn Vnode>> {
    dir.lookup(&cx(), name(entry)).unwrap().map(|entry| entry.vnode)
}

/// The content of each path; `None`: a directory.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

struct World {
    lower: Arc<MemFs>,
    layer: Arc<VersionFs>,
    /// The file of each path; `None`: a directory.
    paths: BTreeMap<String, Option<usize>>,
    files: Vec<Vec<u8>>,
    /// What the tree was at some times.
    past: Vec<(Time, Tree)>,
    log: Vec<String>,
    made: usize,
    shown: usize,
    lost: usize,
}

impl World {
    fn new() -> Self {
        let lower = MemFs::with(MemOptions { space: SPACE, object_pages: 1, ..MemOptions::default() }, &Faults::new());
        let (paths, files) = (BTreeMap::new(), Vec::new());
        let (past, log) = (Vec::new(), Vec::new());
        Self { layer: mount(&lower), lower, paths, files, past, log, made: 0, shown: 0, lost: 0 }
    }

    fn fail(&self, what: &str) -> ! {
        panic!("{}\n{what}", self.log.join("\n"))
    }

    /// Fails with what concerns a path.
    fn fail_about(&self, path: &str, what: &str) -> ! {
        let (dir, _) = path.split_once('/').unwrap_or((path, ""));
        let words = [path, dir, "fill", "remember", "clean", "mount"];
        let is_about = |line: &&String| line.split([' ', ':']).any(|word| words.contains(&word));
        let log: Vec<_> = self.log.iter().filter(is_about).map(String::as_str).collect();
        panic!("{}\n{path} {what}\n{}", log.join("\n"), self.describe(path))
    }

    /// Describes what the disk says about a path, as far as its directory is there.
    fn describe(&self, path: &str) -> String {
        let (dir, file) = path.split_once('/').unwrap_or(("", path));
        let root = self.lower.without_faults().root();
        let dir = if dir.is_empty() { Some(root) } else { find(&root, dir.as_bytes()) };
        let Some(store) = dir.and_then(|dir| find(&dir, STORE)) else { return "no store".to_owned() };
        let bytes = |name: &[u8]| find(&store, name).map(|file| read_all(&*file)).unwrap_or_default();
        let index = Index::parse(&bytes(&index_name(file.as_bytes())));
        let lost: Vec<_> = parse_lost(&bytes(LOST)).into_iter().filter(|lost| *lost.name == *file.as_bytes()).collect();
        format!("{index:?}\n{lost:?}")
    }

    /// Advances the clock of the layer to that of the disk.
    fn tick(&self) {
        let mode = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let attr = self.lower.without_faults().root().setattr(&cx(), &mode, None);
        NOW.set(attr.unwrap().ctime);
    }

    fn dir(&self, path: &str) -> (Arc<dyn Vnode>, String) {
        let (dir, file) = path.split_once('/').map_or(("", path), |(dir, file)| (dir, file));
        let root = self.layer.root();
        let found =
            if dir.is_empty() { root } else { root.lookup(&cx(), name(dir.as_bytes())).unwrap().unwrap().vnode };
        (found, file.to_owned())
    }

    fn get(&self, path: &str) -> Arc<dyn Vnode> {
        let (dir, file) = self.dir(path);
        dir.lookup(&cx(), name(file.as_bytes())).unwrap().unwrap().vnode
    }

    /// Whether an operation was done; it may lack room.
    fn done(&mut self, what: &str, result: Result<()>) -> bool {
        self.log.push(format!("{:?} {what}: {result:?}", NOW.get()));
        match result {
            Ok(()) => true,
            Err(Errno::NOSPC) => false,
            Err(errno) => self.fail(&format!("{errno}")),
        }
    }

    fn write(&mut self, path: &str, len: usize, how: usize) {
        self.made += 1;
        let data: Vec<u8> = format!("{};", self.made).into_bytes().into_iter().cycle().take(len).collect();
        let (dir, file) = self.dir(path);
        let opened = match self.paths.get(path) {
            None => dir.create(&cx(), name(file.as_bytes()), 0o644, OpenFlags::WRONLY).map(|(_, file)| file),
            Some(_) if how == 0 => self.get(path).open(&cx(), OpenFlags::WRONLY.with_trunc()),
            Some(_) => self.get(path).open(&cx(), OpenFlags::WRONLY),
        };
        let Ok(opened) = opened else { return };
        let written = opened.write(&cx(), &data, 0).map(drop);
        drop(opened);
        self.done(&format!("write {path} {len} {how}"), written);
        let bytes = read_all(&*self.get(path));
        match self.paths.get(path) {
            Some(id) => self.files[id.unwrap()] = bytes,
            None => {
                self.files.push(bytes);
                self.paths.insert(path.to_owned(), Some(self.files.len() - 1));
            }
        }
    }

    fn remove(&mut self, path: &str) {
        let (dir, file) = self.dir(path);
        let removed = match self.paths[path] {
            Some(_) => dir.unlink(&cx(), name(file.as_bytes())),
            None => {
                let below: Vec<_> =
                    self.paths.keys().filter(|it| it.starts_with(&format!("{path}/"))).cloned().collect();
                below.iter().for_each(|path| self.remove(path));
                dir.rmdir(&cx(), name(file.as_bytes()))
            }
        };
        if self.done(&format!("remove {path}"), removed) {
            self.paths.remove(path);
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let ((dir, file), (new_dir, new_file)) = (self.dir(from), self.dir(to));
        let (file, new_file) = (name(file.as_bytes()), name(new_file.as_bytes()));
        let renamed = dir.rename(&cx(), file, &new_dir, new_file, RenameFlags::default());
        if self.done(&format!("rename {from} {to}"), renamed) && self.paths.get(to) != self.paths.get(from) {
            let id = self.paths.remove(from).unwrap();
            self.paths.insert(to.to_owned(), id);
        }
    }

    fn link(&mut self, from: &str, to: &str) {
        let (dir, file) = self.dir(to);
        let linked = dir.link(&cx(), name(file.as_bytes()), &self.get(from)).map(drop);
        if self.done(&format!("link {from} {to}"), linked) {
            self.paths.insert(to.to_owned(), self.paths[from]);
        }
    }

    fn touch(&mut self, path: &str, time: SetTime) {
        let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
        let touched = self.get(path).setattr(&cx(), &set, None).map(drop);
        self.done(&format!("touch {path} {time:?}"), touched);
    }

    /// Discards a version that is not the newest.
    fn discard(&mut self, path: &str, rng: &mut Rng) {
        let (dir, file) = self.dir(path);
        let Ok(list) = dir.control(&cx(), "versionfs.list", file.as_bytes()) else { return };
        let list = String::from_utf8(list).unwrap();
        let numbers: Vec<_> = list.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        if numbers.len() > 1 {
            let number = numbers[rng.below(numbers.len() - 1)];
            let discarded = dir.control(&cx(), "versionfs.discard", format!("{file} {number}").as_bytes()).map(drop);
            self.done(&format!("discard {path} {number}"), discarded);
        }
    }

    /// Fills the disk as other programs do, or gives some of that back.
    fn fill(&mut self, gives_back: u64) {
        let root = self.lower.root();
        let filler = name(b"filler");
        let Some(entry) = root.lookup(&cx(), filler).unwrap() else {
            let _ = root.create(&cx(), filler, 0o644, OpenFlags::WRONLY);
            return;
        };
        let mut at = entry.attr.size;
        if gives_back > 0 {
            let size = Some(at.saturating_sub(gives_back));
            entry.vnode.setattr(&cx(), &SetAttr { size, ..SetAttr::default() }, None).unwrap();
            return;
        }
        let file = entry.vnode.open(&cx(), OpenFlags::WRONLY).unwrap();
        while let Ok(written) = file.write(&cx(), &[7; 4096], at) {
            at += written as u64;
        }
        self.log.push("fill".to_owned());
    }

    fn remember(&mut self) {
        self.tick();
        let tree = self.paths.iter().map(|(path, id)| (path.clone(), id.map(|id| self.files[id].clone()))).collect();
        self.log.push(format!("remember {:?}", NOW.get()));
        self.past.push((NOW.get(), tree));
        self.tick();
    }

    fn check(&mut self) {
        for (time, tree) in self.past.clone() {
            let when = format!("{}.{:09}", time.sec, time.nsec);
            let token = self.layer.root().control(&cx(), "versionfs.at", when.as_bytes()).unwrap();
            let past = self.layer.root().lookup(&cx(), name(token.trim_ascii())).unwrap().unwrap().vnode;
            self.check_dir(&past, &when, &tree, "");
        }
    }

    /// Compares a directory as it was with what was remembered.
    fn check_dir(&mut self, past: &Arc<dyn Vnode>, when: &str, tree: &Tree, dir: &str) {
        let lost = String::from_utf8(past.control(&cx(), "versionfs.lost", when.as_bytes()).unwrap()).unwrap();
        let lost: BTreeSet<_> = lost.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
        let mut shown = BTreeSet::new();
        let listed = past.readdir(&cx(), 0, &mut |entry| {
            shown.insert(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
            true
        });
        listed.unwrap();
        shown.remove("filler");
        let of_dir = |path: &&String| path.strip_prefix(dir).is_some_and(|rest| !rest.contains('/'));
        let was: BTreeSet<_> = tree.keys().filter(of_dir).map(|path| path[dir.len()..].to_owned()).collect();
        if let Some(entry) = shown.difference(&was).next() {
            self.fail_about(&format!("{dir}{entry}"), &format!("did not exist at {when}"));
        }
        if let Some(entry) = lost.difference(&was).find(|entry| *entry != "-" && *entry != "filler") {
            self.fail_about(&format!("{dir}{entry}"), &format!("is said to be lost, but did not exist at {when}"));
        }
        for entry in &was {
            let path = format!("{dir}{entry}");
            if !shown.contains(entry) {
                if !lost.contains(entry) && !lost.contains("-") {
                    self.fail_about(&path, &format!("is missing at {when}, and nothing says so"));
                }
                self.lost += 1;
                continue;
            }
            let found = match past.lookup(&cx(), name(entry.as_bytes())) {
                Ok(found) => found.unwrap().vnode,
                // It was renamed, and what it was then is not known.
                Err(Errno::STALE) if lost.contains(entry) => {
                    self.lost += 1;
                    continue;
                }
                Err(errno) => self.fail_about(&path, &format!("can't be found at {when}: {errno}")),
            };
            self.shown += 1;
            match &tree[&path] {
                None if found.kind() == Kind::Directory => self.check_dir(&found, when, tree, &format!("{path}/")),
                Some(data) if found.kind() == Kind::Regular && read_all(&*found) == *data => {}
                Some(_) if lost.contains(entry) => self.lost += 1,
                _ => self.fail_about(&path, &format!("is another one at {when}")),
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        self.tick();
        let any = |rng: &mut Rng| format!("{}{}", rng.pick(&DIRS), rng.pick(&NAMES));
        let (path, other) = (any(rng), any(rng));
        let is_there = |path: &str| self.paths.contains_key(path);
        let is_recorded = |path: &str| !path.ends_with(".o");
        let has_dir = |path: &str| path.split_once('/').is_none_or(|(dir, _)| is_there(dir));
        if !has_dir(&path) || !has_dir(&other) {
            let (dir, _) = if has_dir(&path) { &other } else { &path }.split_once('/').unwrap();
            let made = self.layer.root().mkdir(&cx(), name(dir.as_bytes()), 0o755).map(drop);
            if self.done(&format!("mkdir {dir}"), made) {
                self.paths.insert(dir.to_owned(), None);
            }
            return;
        }
        match rng.below(100) {
            0..=34 => self.write(&path, 1 + rng.below(20_000), rng.below(2)),
            35..=47 if is_there(&path) => self.remove(&path),
            // Which changes had no versions is known by the policy of the present name only, and a
            // name that a file leaves without a version is not known.
            48..=60 if is_there(&path) && path != other && is_recorded(&path) && is_recorded(&other) => {
                self.rename(&path, &other);
            }
            61..=66 if is_there(&path) && !is_there(&other) && is_recorded(&path) == is_recorded(&other) => {
                self.link(&path, &other);
            }
            67..=69 if is_there("p") => self.remove("p"),
            70..=71 if is_there("q") => self.remove("q"),
            72..=75 => self.discard(&path, rng),
            76..=79 => self.fill(0),
            80..=84 => self.fill(1 + rng.below(100_000) as u64),
            85..=86 => {
                self.log.push("clean".to_owned());
                drop(self.layer.root().control(&cx(), "versionfs.clean", b""));
            }
            87..=88 => {
                self.log.push("mount".to_owned());
                // What had no room is in memory until there is some.
                self.fill(1 << 17);
                self.layer.sync(&cx()).unwrap();
                self.layer.unmounted();
                self.layer = mount(&self.lower);
            }
            89..=96 => self.remember(),
            97..=99 if is_there(&path) => {
                let old = Time { sec: 1, nsec: rng.below(1000) };
                let time = rng.pick(&[SetTime::Now, SetTime::At(old)]);
                self.touch(&path, time);
            }
            _ => {}
        }
    }
}

/// Programs set modification times: of files that they have not changed, as git does, and old ones
/// of files that they have changed, as `cp -p` does.
#[test]
fn times_that_programs_set_are_no_changes() {
    let mut world = World::new();
    let old = SetTime::At(Time { sec: 1, nsec: 0 });
    let lost_at = |world: &World, (time, _): &(Time, Tree)| {
        let when = format!("{}.{:09}", time.sec, time.nsec);
        let lost = world.layer.root().control(&cx(), "versionfs.lost", when.as_bytes()).unwrap();
        String::from_utf8(lost).unwrap()
    };
    // Whether the file is changed, and the times that it gets then.
    let cases: [(&str, bool, &[SetTime]); 6] = [
        ("a.o", false, &[SetTime::Now]),
        ("b.o", false, &[old, SetTime::Now]),
        ("c.o", false, &[SetTime::Now, old, SetTime::Now]),
        ("d.o", true, &[old]),
        ("e.o", true, &[SetTime::Now, old]),
        ("f.o", true, &[old, old]),
    ];
    for (path, changes, times) in cases {
        for is_touched_before in [false, true] {
            let path = format!("{is_touched_before}-{path}");
            world.tick();
            world.write(&path, 100, 1);
            if is_touched_before {
                world.touch(&path, old);
            }
            world.remember();
            if changes {
                world.tick();
                world.write(&path, 100, 1);
            }
            for time in times {
                world.tick();
                world.touch(&path, *time);
            }
            let before = world.past.last().unwrap().clone();
            let expected = if changes { format!("unrecorded {path}\n") } else { String::new() };
            assert_eq!(lost_at(&world, &before), expected, "the head {path}");
            let names = vnode::read_value(|out| world.get(&path).listxattr(&cx(), out)).unwrap();
            assert!(names.is_empty(), "{}", names.escape_ascii());
            world.tick();
            world.remove(&path);
            assert_eq!(lost_at(&world, &before), expected, "the version of {path}");
            world.tick();
            world.past.clear();
        }
    }
}

#[test]
fn a_state_that_is_not_in_the_history_is_said_to_be_lost() {
    let seeds =
        std::env::var("MODEL_SEED").ok().and_then(|text| text.parse().ok()).map_or(1..60, |seed| seed..seed + 1);
    let (mut shown, mut lost, mut failures) = (0, 0, Vec::new());
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let (mut rng, mut world) = (Rng::new(seed), World::new());
            for _ in 0..150 {
                world.step(&mut rng);
            }
            world.check();
            let World { lower, layer, shown, lost, .. } = world;
            layer.unmounted();
            drop(layer);
            assert_eq!(inspect(&lower, false).texts, [""; 0], "seed {seed}");
            (shown, lost)
        });
        match run {
            Ok(counts) => (shown, lost) = (shown + counts.0, lost + counts.1),
            Err(error) => {
                let text = error.downcast_ref::<String>().cloned().unwrap_or_default();
                failures.push((text.len(), format!("seed {seed}\n{text}")));
            }
        }
    }
    failures.sort();
    if let Some((_, text)) = failures.first() {
        panic!("{} sequences fail\n{text}", failures.len());
    }
    assert!(shown > 100 && lost > 100, "{shown} shown, {lost} lost");
}
