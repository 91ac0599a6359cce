//! Hard links on a full disk: what works natively works, no head loses a byte, and each name has
//! versions of what it had, in that order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use crate::common::clerk::inspect;
use crate::common::policies::{Host, cx, name, read_all, try_read_all};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use testkit::Rng;
use versionfs::{Options, PolicySource, VersionFs};
use versionset::{Index, LINKS, STORE};
use vnode::{Cx, Errno, Layer, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, Time, Vnode, XattrFlags};

static NEVER: AtomicBool = AtomicBool::new(false);

const SPACE: u64 = 1 << 20;

/// What may be kept.
const CONFIGS: [(&str, &str); 4] = [
    ("protected", "builtin = false\nage = \"1000y..none\"\n[volume]\nmax = \"25%\"\nfree = \"1GiB\""),
    ("loose", "builtin = false\n[volume]\nmax = \"25%\"\nfree = \"1GiB\""),
    ("excluded", "builtin = false\nversions = false\n[volume]\nmax = \"25%\"\nfree = \"1GiB\""),
    (
        "blocks",
        "builtin = false\nstorage = \"blocks\"\nage = \"1000y..none\"\n[volume]\nmax = \"25%\"\nfree = \"1GiB\"",
    ),
];

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

thread_local! {
    static NOW: Cell<Time> = const { Cell::new(Time { sec: 0, nsec: 0 }) };
}

/// Sets the clock of the layer to that of the disk.
fn tick(lower: &Arc<MemFs>) {
    let mode = Some(0o755);
    let attr = lower.without_faults().root().setattr(&cx(), &SetAttr { mode, ..SetAttr::default() }, None);
    NOW.set(attr.unwrap().ctime);
}

fn mount(lower: &Arc<MemFs>, config: &str) -> Arc<VersionFs> {
    let source = PolicySource { host: Some(Arc::new(Host(config.to_owned(), None))), ..PolicySource::default() };
    VersionFs::with_policies(lower.clone(), Options { clock: || NOW.get(), ..Options::default() }, source).unwrap()
}

/// A disk of which each object takes a part, as it does on a real one.
fn disk(space: u64) -> Arc<MemFs> {
    MemFs::with(MemOptions { space, object_pages: 1, ..MemOptions::default() }, &Faults::new())
}

fn free(lower: &Arc<MemFs>) -> u64 {
    let stat = lower.root().statfs(&cx()).unwrap();
    stat.bavail * stat.frsize
}

fn user(uid: u32) -> Cx<'static> {
    Cx::new(uid, uid, 0, 0o022, true, &NEVER)
}

/// What users did, and what the names had.
struct World {
    lower: Arc<MemFs>,
    layer: Arc<VersionFs>,
    config: &'static str,
    /// The file of each name.
    names: BTreeMap<&'static str, usize>,
    /// The content of each file.
    files: Vec<Vec<u8>>,
    /// What each name has had, in this order.
    past: BTreeMap<&'static str, Vec<Vec<u8>>>,
    /// What the names had when a tag was made.
    tags: Vec<(String, BTreeMap<&'static str, Vec<u8>>)>,
    /// Whether tags protect versions.
    has_tags: bool,
    /// Whether the disk refuses space that it has.
    is_refused: bool,
    log: Vec<String>,
    made: usize,
}

impl World {
    fn new(lower: &Arc<MemFs>, config: &'static str) -> Self {
        let layer = mount(lower, config);
        Self {
            lower: Arc::clone(lower),
            layer,
            config,
            names: BTreeMap::new(),
            files: Vec::new(),
            past: BTreeMap::new(),
            tags: Vec::new(),
            has_tags: false,
            is_refused: false,
            log: Vec::new(),
            made: 0,
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!("{}\n{}{} free\n{what}", self.log.join("\n"), self.indexes(), free(&self.lower))
    }

    /// Describes the indexes on the disk.
    fn indexes(&self) -> String {
        let mut text = String::new();
        let disk = self.lower.without_faults();
        let Some(store) = disk.root().lookup(&cx(), name(STORE)).unwrap() else { return text };
        let links = store.vnode.lookup(&cx(), name(LINKS)).unwrap();
        for dir in [Some(store), links].into_iter().flatten() {
            let mut names = Vec::new();
            dir.vnode
                .readdir(&cx(), 0, &mut |entry| {
                    names.push(entry.name.as_bytes().to_vec());
                    true
                })
                .unwrap();
            for file in names.iter().filter(|name| name.ends_with(b";i")) {
                let vnode = dir.vnode.lookup(&cx(), name(file)).unwrap().unwrap().vnode;
                let (index, _) = Index::parse(&read_all(&*vnode));
                let numbers: Vec<_> = index.versions.keys().collect();
                let periods: Vec<_> = index
                    .links
                    .iter()
                    .map(|it| (it.stem.escape_ascii().to_string(), it.first, it.until.is_some(), it.departure))
                    .collect();
                text += &format!("{}: {numbers:?} next {} {periods:?}\n", file.escape_ascii(), index.next());
            }
        }
        text
    }

    fn get(&self, file: &str) -> Arc<dyn Vnode> {
        let found = self.layer.root().lookup(&cx(), name(file.as_bytes()));
        match found {
            Ok(Some(entry)) => entry.vnode,
            other => self.fail(&format!("{file}: {:?}", other.map(|_| ()))),
        }
    }

    /// Notes what the name has now.
    fn note(&mut self, file: &'static str) {
        let Some(id) = self.names.get(file) else { return };
        let content = self.files[*id].clone();
        let past = self.past.entry(file).or_default();
        if past.last() != Some(&content) {
            past.push(content);
        }
    }

    fn note_all(&mut self) {
        NAMES.iter().for_each(|file| self.note(file));
    }

    fn data(&mut self, len: usize) -> Vec<u8> {
        self.made += 1;
        format!("{};", self.made).into_bytes().into_iter().cycle().take(len).collect()
    }

    /// Writes and returns how many bytes could be written.
    fn write(&self, opened: &dyn OpenFile, data: &[u8], by: &Cx<'_>) -> (usize, Result<()>) {
        let mut done = 0;
        while done < data.len() {
            match opened.write(by, &data[done..], done as u64) {
                Ok(count) => done += count,
                Err(errno) => return (done, Err(errno)),
            }
        }
        (done, Ok(()))
    }

    /// Checks the result of an operation that takes no space natively. It fails only if a tag
    /// protects a version that needs bytes of the file, or if the disk is not full.
    fn must(&mut self, result: Result<()>) -> bool {
        let is_odd = self.is_refused && free(&self.lower) >= SPACE / 20;
        match result {
            Err(errno) if !((self.has_tags || is_odd) && errno == Errno::NOSPC) => self.fail(&format!("{errno}")),
            result => self.may(result),
        }
    }

    /// Checks the result of one that may take some.
    fn may(&mut self, result: Result<()>) -> bool {
        match result {
            Ok(()) => true,
            Err(Errno::NOSPC) => {
                self.log.push("  no space".to_owned());
                false
            }
            Err(errno) => self.fail(&format!("{errno}")),
        }
    }

    fn create(&mut self, file: &'static str, len: usize, by: &Cx<'_>) {
        self.log.push(format!("create {file} {len}"));
        let data = self.data(len);
        let made = self.layer.root().create(by, name(file.as_bytes()), 0o644, OpenFlags::WRONLY);
        let (opened, made) = match made {
            Ok((_, opened)) => (Some(opened), Ok(())),
            Err(errno) => (None, Err(errno)),
        };
        if self.may(made) {
            let (done, written) = self.write(&*opened.unwrap(), &data, by);
            self.may(written);
            self.files.push(data[..done].to_vec());
            self.names.insert(file, self.files.len() - 1);
            self.note(file);
        }
    }

    fn overwrite(&mut self, file: &'static str, len: usize, truncates: bool, by: &Cx<'_>) {
        self.log.push(format!("overwrite {file} {len} {truncates}"));
        let id = self.names[file];
        let data = self.data(len);
        let flags = if truncates { OpenFlags::WRONLY.with_trunc() } else { OpenFlags::WRONLY };
        let opened = match self.get(file).open(by, flags) {
            Ok(opened) => opened,
            Err(Errno::NOSPC) if self.has_tags => return,
            Err(errno) => self.fail(&format!("open: {errno}")),
        };
        let (done, written) = self.write(&*opened, &data, by);
        drop(opened);
        let mut content = data[..done].to_vec();
        if !truncates {
            content.extend_from_slice(self.files[id].get(done..).unwrap_or_default());
        }
        if !self.may(written) && truncates {
            // The end of a truncation that was delayed needs room, too.
            let now = read_all(&*self.get(file));
            if now == self.files[id] {
                content = now;
            }
        }
        self.files[id] = content;
        self.note_all();
    }

    fn link(&mut self, file: &'static str, to: &'static str, by: &Cx<'_>) {
        self.log.push(format!("link {file} {to}"));
        let linked = self.layer.root().link(by, name(to.as_bytes()), &self.get(file)).map(drop);
        if self.may(linked) {
            self.names.insert(to, self.names[file]);
            self.note(to);
        }
    }

    fn unlink(&mut self, file: &'static str, by: &Cx<'_>) {
        self.log.push(format!("unlink {file}"));
        let removed = self.layer.root().unlink(by, name(file.as_bytes()));
        if !self.must(removed) {
            return;
        }
        self.names.remove(file);
    }

    fn rename(&mut self, from: &'static str, to: &'static str, exchange: bool, by: &Cx<'_>) {
        self.log.push(format!("rename {from} {to} {exchange}"));
        let (root, flags) = (self.layer.root(), RenameFlags { exchange, ..RenameFlags::default() });
        let renamed = root.rename(by, name(from.as_bytes()), &root, name(to.as_bytes()), flags);
        if !self.must(renamed) {
            return;
        }
        let id = self.names[from];
        if self.names.get(to) == Some(&id) {
            return;
        }
        let other = self.names.insert(to, id);
        self.names.remove(from);
        if let Some(other) = other.filter(|_| exchange) {
            self.names.insert(from, other);
        }
        self.note_all();
    }

    fn set(&mut self, file: &'static str, set: &SetAttr, by: &Cx<'_>) {
        self.log.push(format!("set {file} {set:?}"));
        let done = self.get(file).setattr(by, set, None).map(drop);
        if !self.must(done) {
            return;
        }
        if let Some(size) = set.size {
            let id = self.names[file];
            self.files[id].truncate(usize::try_from(size).unwrap());
        }
        self.note_all();
    }

    fn tag(&mut self) {
        self.made += 1;
        let tag = format!("t{}", self.made);
        self.log.push(format!("tag {tag}"));
        let tagged = self.layer.root().control(&cx(), "versionfs.tag", tag.as_bytes()).map(drop);
        if self.may(tagged) {
            self.has_tags = true;
            let had = self.names.iter().map(|(name, id)| (*name, self.files[*id].clone())).collect();
            self.tags.push((tag, had));
        }
    }

    fn remount(&mut self, is_crash: bool) {
        self.log.push(format!("remount {is_crash}"));
        // What had no room in the indexes is in memory until there is some.
        self.give_back(8);
        self.layer.sync(&cx()).unwrap();
        if is_crash {
            self.lower = self.lower.recover(&Faults::new());
            let layer = mount(&self.lower, self.config);
            core::mem::forget(core::mem::replace(&mut self.layer, layer));
        } else {
            self.layer.unmounted();
            self.layer = mount(&self.lower, self.config);
        }
    }

    /// Fills the disk as other programs do, or gives back some of that.
    fn fill(&mut self) {
        self.log.push("fill".to_owned());
        let root = self.lower.root();
        let file = match root.lookup(&cx(), name(b"filler")).unwrap() {
            Some(entry) => entry.vnode.open(&cx(), OpenFlags::WRONLY).unwrap(),
            None => match root.create(&cx(), name(b"filler"), 0o644, OpenFlags::WRONLY) {
                Ok((_, file)) => file,
                Err(_) => return,
            },
        };
        let mut at = root.lookup(&cx(), name(b"filler")).unwrap().unwrap().attr.size;
        while let Ok(written) = file.write(&cx(), &[7; 4096], at) {
            at += written as u64;
        }
    }

    fn give_back(&mut self, pages: u64) {
        self.log.push(format!("give back {pages}"));
        if let Some(entry) = self.lower.root().lookup(&cx(), name(b"filler")).unwrap() {
            let size = entry.attr.size.saturating_sub(pages * 4096);
            entry.vnode.setattr(&cx(), &SetAttr { size: Some(size), ..SetAttr::default() }, None).unwrap();
        }
    }

    fn clean(&mut self) {
        self.log.push("clean".to_owned());
        let cleaned = self.layer.root().control(&cx(), "versionfs.clean", b"").map(drop);
        self.may(cleaned);
    }

    fn read_token(&self, token: &[u8], what: &str) -> Vec<u8> {
        let found = self.layer.root().lookup(&cx(), name(token.trim_ascii()));
        match found.and_then(|found| try_read_all(&*found.ok_or(Errno::NOENT)?.vnode)) {
            Ok(bytes) => bytes,
            Err(errno) => self.fail(&format!("{what}: it was opened, but can't be read: {errno}")),
        }
    }

    /// Checks the heads, and every version of every name. Returns how many versions there are.
    fn check(&self) -> usize {
        let mut count = 0;
        for file in NAMES {
            match (self.names.get(file), self.layer.root().lookup(&cx(), name(file.as_bytes())).unwrap()) {
                (None, None) => {}
                (Some(id), Some(entry)) => {
                    if read_all(&*entry.vnode) != self.files[*id] {
                        self.fail(&format!("{file} has other bytes"));
                    }
                    let links = self.names.values().filter(|other| *other == id).count();
                    if entry.attr.nlink as usize != links {
                        self.fail(&format!("{file} has {} links, not {links}", entry.attr.nlink));
                    }
                }
                (is, _) => self.fail(&format!("{file} exists: {}", is.is_none())),
            }
            count += self.check_versions(file);
        }
        self.check_tags();
        count
    }

    fn check_versions(&self, file: &str) -> usize {
        let root = self.layer.root();
        let list = match root.control(&cx(), "versionfs.list", file.as_bytes()) {
            Ok(list) => String::from_utf8(list).unwrap(),
            Err(Errno::NOENT) => return 0,
            Err(errno) => self.fail(&format!("list of {file}: {errno}")),
        };
        let (mut count, mut at) = (0, 0);
        let empty = Vec::new();
        let past = self.past.get(file).unwrap_or(&empty);
        let shown = || past.iter().map(|data| brief(data)).collect::<Vec<_>>().join(", ");
        for line in list.lines().skip(1) {
            let fields: Vec<&str> = line.split(' ').collect();
            let input = format!("{file} {}", fields[0]);
            let bytes = match root.control(&cx(), "versionfs.open", input.as_bytes()) {
                Ok(token) => self.read_token(&token, &format!("{file}: {list}\n{line}")),
                // It was renamed, and its history under the other name has gone.
                Err(Errno::STALE) if fields[1] == "r" => continue,
                Err(errno) => self.fail(&format!("{file}: {list}\n{line}: {errno}")),
            };
            let Some(found) = past.iter().skip(at).position(|had| *had == bytes) else {
                self.fail(&format!(
                    "{file}:\n{list}\n{line}: {} is not what it had from position {at} of\n{}",
                    brief(&bytes),
                    shown()
                ));
            };
            at += found;
            count += 1;
        }
        count
    }

    fn check_tags(&self) {
        for (tag, had) in &self.tags {
            let token = match self.layer.root().control(&cx(), "versionfs.at", tag.as_bytes()) {
                Ok(token) => token,
                Err(errno) => self.fail(&format!("{tag}: {errno}")),
            };
            let dir = self.layer.root().lookup(&cx(), name(token.trim_ascii())).unwrap().unwrap().vnode;
            for file in NAMES {
                let bytes = match dir.lookup(&cx(), name(file.as_bytes())) {
                    Ok(Some(entry)) => read_all(&*entry.vnode),
                    Ok(None) | Err(Errno::STALE | Errno::NOENT) => continue,
                    Err(errno) => self.fail(&format!("{file} in {tag}: {errno}")),
                };
                if let Some(had) = had.get(file).filter(|had| **had != bytes) {
                    self.fail(&format!("{file} in {tag} is {}, but was {}", brief(&bytes), brief(had)));
                }
            }
        }
    }

    /// Returns what a name had when the last tag was made.
    fn at_tag(&self, file: &str) -> Option<Vec<u8>> {
        let (tag, _) = self.tags.last()?;
        let token = self.layer.root().control(&cx(), "versionfs.at", tag.as_bytes()).unwrap();
        let dir = self.layer.root().lookup(&cx(), name(token.trim_ascii())).unwrap().unwrap().vnode;
        dir.lookup(&cx(), name(file.as_bytes())).unwrap().map(|entry| read_all(&*entry.vnode))
    }

    /// Ends the mount and checks the disk.
    fn finish(self) {
        let Self { lower, layer, log, .. } = self;
        layer.unmounted();
        drop(layer);
        let findings = inspect(&lower, false).texts;
        assert!(findings.is_empty(), "{}\n{findings:?}", log.join("\n"));
    }
}

fn brief(data: &[u8]) -> String {
    format!("{}*{}", data[..data.len().min(6)].escape_ascii(), data.len())
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    match std::env::var("MODEL_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..1 + std::env::var("MODEL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default),
    }
}

fn step(world: &mut World, rng: &mut Rng, tags: bool) {
    tick(&world.lower);
    let by = user(rng.pick(&[0, 1000, 1001]));
    let (file, other) = (rng.pick(&NAMES), rng.pick(&NAMES));
    let (is_there, is_other) = (world.names.contains_key(file), world.names.contains_key(other));
    match rng.below(100) {
        0..=14 if !is_there => world.create(file, 1 + rng.below(30_000), &by),
        15..=29 if is_there => world.overwrite(file, 1 + rng.below(30_000), rng.chance(50), &by),
        30..=44 if is_there && !is_other => world.link(file, other, &by),
        45..=56 if is_there => world.unlink(file, &by),
        57..=70 if is_there && file != other => world.rename(file, other, is_other && rng.chance(30), &by),
        71..=76 if is_there => {
            let size = rng.below(world.files[world.names[file]].len() + 1) as u64;
            world.set(file, &SetAttr { size: Some(size), ..SetAttr::default() }, &by);
        }
        77..=81 if is_there => {
            let mode = Some(0o600 + u32::try_from(rng.below(64)).unwrap());
            world.set(file, &SetAttr { mode, ..SetAttr::default() }, &by);
        }
        82..=83 if is_there => {
            let uid = Some(rng.pick(&[0, 1000, 1001]));
            world.set(file, &SetAttr { uid, ..SetAttr::default() }, &by);
        }
        // Without versions, the past is what the heads are now.
        84..=85 if tags && !world.config.contains("versions = false") => world.tag(),
        86..=89 => world.fill(),
        90..=91 => world.give_back(rng.below(20) as u64),
        92..=93 => world.clean(),
        94..=95 => world.remount(rng.chance(50)),
        _ => {}
    }
}

#[test]
fn names_of_files_with_several_keep_their_bytes_and_their_history() {
    let (mut failures, mut counts) = (Vec::new(), Vec::new());
    for (what, config) in CONFIGS {
        let mut read = 0;
        for seed in seeds(40) {
            let run = std::panic::catch_unwind(|| {
                let mut rng = Rng::new(seed);
                let mut world = World::new(&disk(SPACE), config);
                world.log.push(format!("{what}, seed {seed}"));
                let mut read = 0;
                for n in 0..150 {
                    step(&mut world, &mut rng, seed % 2 == 0);
                    if n % 50 == 49 {
                        read += world.check();
                    }
                }
                world.remount(false);
                read += world.check();
                world.finish();
                read
            });
            match run {
                Ok(count) => read += count,
                Err(error) => {
                    let text = error.downcast_ref::<String>().cloned().unwrap_or_default();
                    failures.push((text.len(), format!("{what} {seed} {text}")));
                }
            }
        }
        counts.push((what, read));
    }
    failures.sort();
    if let Some((_, text)) = failures.first() {
        panic!("{} sequences fail\n{text}", failures.len());
    }
    for (what, read) in counts {
        assert_eq!(read > 0, what != "excluded", "{what}: {read} versions were read");
    }
}

type Operation = fn(&mut World);

/// Operations on `f`, which has the other name `g`, that take no space natively.
const FREE: [(&str, Operation); 9] = [
    ("unlink", |world| world.unlink("f", &cx())),
    ("unlink both", |world| {
        world.unlink("f", &cx());
        world.unlink("g", &cx());
    }),
    ("rename", |world| world.rename("f", "h", false, &cx())),
    ("replace", |world| world.rename("f", "b", false, &cx())),
    ("be replaced", |world| world.rename("b", "f", false, &cx())),
    ("be replaced twice", |world| {
        world.rename("b", "f", false, &cx());
        world.rename("c", "g", false, &cx());
    }),
    ("exchange", |world| world.rename("f", "b", true, &cx())),
    ("truncate", |world| world.set("f", &SetAttr { size: Some(10), ..SetAttr::default() }, &cx())),
    ("chmod", |world| world.set("f", &SetAttr { mode: Some(0o600), ..SetAttr::default() }, &cx())),
];

/// A full disk with a file that has, or had, two names, and with so many old versions of `a`.
fn linked(config: &'static str, versions: usize) -> World {
    let mut world = World::new(&disk(SPACE), config);
    let by = user(1000);
    tick(&world.lower);
    for file in ["a", "b", "c"] {
        world.create(file, 9000, &by);
    }
    for _ in 0..versions {
        world.overwrite("a", 9000, true, &by);
    }
    world.create("f", 20_000, &by);
    world.overwrite("f", 10_000, false, &by);
    world.link("f", "g", &by);
    world.overwrite("g", 5000, false, &by);
    world.fill();
    tick(&world.lower);
    world
}

/// What takes space fails once, or from some step on: what takes none succeeds, no name gets
/// versions of another file, and no head loses a byte.
#[test]
fn any_step_of_a_change_of_several_names_may_fail_for_lack_of_space() {
    for (what, config) in CONFIGS {
        let mut read = 0;
        for versions in [0, 6] {
            for (operation, run) in FREE {
                for fault in [Fault::Error(Errno::NOSPC), Fault::Errors(Errno::NOSPC)] {
                    if versions > 0 && matches!(fault, Fault::Errors(_)) {
                        // Space that is free, but can't be had, is not what the history yields for.
                        continue;
                    }
                    let mut at = 1;
                    loop {
                        let mut world = linked(config, versions);
                        world.log.push(format!("{what}, {versions} versions, {operation}, {fault:?} at {at}"));
                        world.is_refused = matches!(fault, Fault::Errors(_));
                        let faults = world.lower.faults().clone();
                        faults.arm(Plan { count: Count::Allocations, at, fault });
                        run(&mut world);
                        let fired = faults.fired();
                        faults.disarm();
                        read += world.check();
                        world.remount(false);
                        read += world.check();
                        // Removes files whose record was discarded, but not they.
                        world.clean();
                        world.finish();
                        if !fired {
                            break;
                        }
                        at += 1;
                    }
                    assert!(at > 1 || what == "excluded", "{what}, {operation}");
                }
            }
        }
        assert_eq!(read > 0, what != "excluded", "{what}: {read} versions were read");
    }
}

/// A full disk with a file `f` that has the other name `g`. A tag protects its first version, which
/// lacks a block that only the second one has.
fn tagged(label: String) -> World {
    let mut world = World::new(&disk(SPACE), CONFIGS[3].1);
    world.log.push(label);
    let by = user(1000);
    tick(&world.lower);
    for file in ["b", "c"] {
        world.create(file, 9000, &by);
    }
    world.create("f", 20_000, &by);
    world.link("f", "g", &by);
    tick(&world.lower);
    world.tag();
    for len in [8192, 12_288] {
        tick(&world.lower);
        world.overwrite("f", len, false, &by);
    }
    tick(&world.lower);
    world.fill();
    world
}

/// Whatever has no room, a version that is protected keeps the bytes that it takes from newer ones,
/// which are not.
#[test]
fn a_tagged_version_keeps_the_bytes_of_newer_ones_that_go() {
    for (operation, run) in FREE {
        for fault in [Fault::Error(Errno::NOSPC), Fault::Errors(Errno::NOSPC)] {
            let (mut at, mut fired) = (1, true);
            while fired {
                let mut world = tagged(format!("{operation}, {fault:?} at {at}"));
                let faults = world.lower.faults().clone();
                faults.arm(Plan { count: Count::Allocations, at, fault });
                run(&mut world);
                fired = faults.fired();
                faults.disarm();
                for _ in 0..2 {
                    world.check();
                    for file in ["f", "g"] {
                        assert!(
                            world.at_tag(file).as_ref() == world.tags[0].1.get(file),
                            "{operation} at {at}: {file}"
                        );
                    }
                    world.remount(false);
                }
                world.finish();
                at += 1;
            }
            assert!(at > 2, "{operation}");
        }
    }
}

type Change = fn(&World) -> Result<()>;

/// A change that would have been made without a version, and fails, leaves no hole in the past.
#[test]
fn a_change_that_fails_on_a_full_disk_leaves_the_past_whole() {
    let changes: [(&str, Change); 4] = [
        ("chmod", |world| {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            world.get("f").setattr(&cx(), &set, None).map(drop)
        }),
        ("truncate", |world| {
            let set = SetAttr { size: Some(10), ..SetAttr::default() };
            world.get("f").setattr(&cx(), &set, None).map(drop)
        }),
        ("setxattr", |world| world.get("f").setxattr(&cx(), b"user.a", b"1", XattrFlags::default())),
        ("empty", |world| {
            // Another open file: the truncation is not delayed.
            let _reader = world.get("f").open(&cx(), OpenFlags::RDONLY)?;
            world.get("f").open(&cx(), OpenFlags::WRONLY.with_trunc()).map(drop)
        }),
    ];
    for (what, change) in changes {
        let (mut at, mut fired, mut failed) = (1, true, 0);
        while fired {
            let mut world = World::new(&disk(SPACE), CONFIGS[3].1);
            world.log.push(format!("{what} at {at}"));
            tick(&world.lower);
            world.create("f", 20_000, &cx());
            tick(&world.lower);
            world.tag();
            tick(&world.lower);
            world.fill();
            let faults = world.lower.faults().clone();
            faults.arm(Plan { count: Count::Changes, at, fault: Fault::Error(Errno::PERM) });
            let done = change(&world);
            fired = faults.fired();
            faults.disarm();
            tick(&world.lower);
            if done.is_err() {
                failed += 1;
                world.check();
                assert!(world.at_tag("f").as_ref() == Some(&world.files[0]), "{what} at {at}");
                world.remount(false);
                assert!(world.at_tag("f").as_ref() == Some(&world.files[0]), "{what} at {at}, then");
            }
            at += 1;
        }
        assert!(failed > 2, "{what}: {failed} of {at}");
    }
}
