//! A mount with recorded moments, random changes and restores, and the checks.

use super::changes::{Draw, LONG, entries, is_below, remove_tree};
use super::compare::{Difference, Scope, compare, part};
use super::journal::{Journal, Pairs, objects_at};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use strata_tests::process::{Output, try_run};
use strata_tests::tree::{self, Tree};
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport};
use testkit::tick;

const STORAGES: [&str; 7] = ["full", "compress", "sparse", "sparse-compress", "delta", "text", "blocks"];

/// Moments whose views are checked at once, during a run.
const SOME: usize = 3;

/// Time before a moment that was looked at in advance, in which nothing is changed.
const MARGIN: Duration = Duration::from_millis(20);

/// The tree at a time.
#[derive(Debug)]
struct Moment {
    step: u64,
    /// Seconds since 1970.
    time: String,
    /// A tag for it, if it has one.
    tag: Option<String>,
    tree: Tree,
}

impl Moment {
    /// As arguments of `versionctl` select it.
    fn chosen(&self) -> String {
        self.tag.clone().unwrap_or_else(|| format!("@{}", self.time))
    }
}

/// How the file system is mounted.
#[derive(Clone, Debug)]
struct Settings {
    storage: Option<&'static str>,
    comprehensive: bool,
    copy_on_write: bool,
    /// A file system that the history fills.
    is_small: bool,
}

/// A mount, its past, and what has happened.
pub(super) struct World {
    seed: u64,
    number: u64,
    rng: Rng,
    journal: Journal,
    settings: Settings,
    moments: Vec<Moment>,
    /// Files that are open for reading, which the kernel serves.
    readers: Vec<File>,
    /// What fills the disk.
    ballast: Option<PathBuf>,
    /// Whether the server was killed since the cleaner last walked.
    was_killed: bool,
    mounted: Mounted,
    disk: PathBuf,
    copies: PathBuf,
    /// Dropped last, because it removes everything else.
    sandbox: Sandbox,
}

impl World {
    /// Mounts an empty directory, with options that the seed decides.
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let settings = Settings {
            storage: rng.one_in(2).then(|| rng.pick(&STORAGES)),
            comprehensive: rng.one_in(3),
            copy_on_write: rng.one_in(4),
            is_small: rng.one_in(6),
        };
        let sandbox = Sandbox::with_time(Duration::from_secs(240));
        let disk = sandbox.ext4("disk", if settings.is_small { 24 } else { 512 });
        let copies = sandbox.ext4("copies", 256);
        fs::create_dir(disk.join("lower")).unwrap();
        write_policies(&mut rng, &sandbox);
        let mounted = Mounted::new(spec(&sandbox, &settings), &sandbox.path("m"));
        let mut world = Self {
            seed,
            number: 0,
            rng,
            journal: Journal::default(),
            settings,
            moments: Vec::new(),
            readers: Vec::new(),
            ballast: None,
            was_killed: false,
            mounted,
            disk,
            copies,
            sandbox,
        };
        world.record();
        world
    }

    /// What kinds of changes have met.
    pub(super) fn pairs(&self) -> &Pairs {
        &self.journal.pairs
    }

    fn root(&self) -> PathBuf {
        self.mounted.dir().to_owned()
    }

    fn lower(&self) -> PathBuf {
        self.disk.join("lower")
    }

    /// Does one thing.
    pub(super) fn step(&mut self) {
        self.number += 1;
        match self.rng.below(100) {
            0..12 => self.record(),
            12..14 => self.remount(),
            14..16 => self.kill(),
            16..18 => self.tool("clean"),
            18..21 => self.tool("convert"),
            21 => self.change_policies(),
            22 => self.hold(),
            23 => self.readers.clear(),
            24 => self.look_ahead(),
            25 => self.restore_all(),
            26..28 => self.restore_directory(),
            28..31 => self.restore_name(),
            31..33 => self.remove_and_restore(),
            33..35 => self.remove_tree_and_restore(),
            35 => self.restore_elsewhere(),
            36 => self.check_some(),
            37 => self.undo(),
            38..40 if self.settings.is_small => self.fill(),
            _ => self.change(),
        }
    }

    /// Panics with what concerns the path. Keeps the file system if that is wanted.
    fn fail(&self, path: &str, problem: &str) -> ! {
        if let Some(directory) = std::env::var_os("STRATA_KEEP") {
            let image = self.sandbox.path("disk.img");
            let _written = try_run(Command::new("sync").arg("-f").arg(self.lower()));
            let kept = Path::new(&directory).join(format!("restores-{}.img", self.seed));
            let _kept = try_run(Command::new("cp").arg("--sparse=always").args([&image, &kept]));
        }
        let Self { seed, number, settings, .. } = self;
        let story = self.journal.story(path);
        let text = format!("seed {seed}, step {number}, {settings:?}\nof {path}:\n{story}\n{problem}");
        panic!("{}", text.replace(LONG, "LONG"))
    }

    /// Panics if trees differ.
    fn must_equal(&self, want: &Tree, got: &Tree, scope: Scope, what: &str) {
        if let Some(Difference { path, text }) = compare(want, got, scope) {
            self.fail(&path, &format!("{what}:\n{text}"));
        }
    }

    /// Reads a tree, all of which must be readable. `path` leads to it in the present tree.
    fn read(&self, dir: &Path, path: &str, what: &str) -> Tree {
        tree::try_read(dir).unwrap_or_else(|problem| {
            let name = problem.split(": ").next().unwrap_or_default().trim_start_matches('.');
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            self.fail(&path, &format!("{what}: {problem}"))
        })
    }

    fn live(&self) -> Tree {
        self.read(&self.root(), "", "the present tree")
    }

    fn note(&mut self, kind: &'static str, paths: &[String], text: &str) {
        self.journal.note(self.number, kind, paths, text);
    }

    // Changes.

    fn change(&mut self) {
        self.change_until(None);
    }

    /// Makes a change. Once `killed` is set, it may fail.
    fn change_until(&mut self, killed: Option<&AtomicBool>) {
        let is_killed = || killed.is_some_and(|killed| killed.load(Ordering::SeqCst));
        let root = self.root();
        let all = match entries(&root) {
            Err(_) if is_killed() => return,
            all => all.unwrap_or_else(|error| self.fail("", &format!("the present tree: {error}"))),
        };
        let change = Draw { rng: &mut self.rng, all: &all, step: self.number, is_safe: killed.is_some() }.change();
        let (kind, paths) = (change.kind, change.paths.clone());
        self.note(kind, &paths, &change.text);
        let before = objects_at(&root, &paths);
        if let Err(error) = change.run(&root) {
            self.journal.outcome(&error.to_string());
            let may_fail = is_killed() || self.ballast.is_some() && error.to_string().contains("No space");
            // Drawn changes may be wrong; that the store can't be read is not.
            let is_damage =
                ["Input/output", "Stale", "No such file"].iter().any(|text| error.to_string().contains(text));
            if is_damage && !may_fail {
                self.fail(&paths[0], &format!("{kind}: {error}"));
            }
        }
        if ["rewrite", "rewrite same", "empty"].contains(&kind) && !is_killed() {
            self.settle(&paths, &is_killed);
        }
        self.journal.count(&root, kind, &before, &paths);
    }

    /// Waits until the kernel has reported the last close of files that were truncated by opening
    /// them: until then, the lower file can be as before.
    fn settle(&self, paths: &[String], is_killed: &dyn Fn() -> bool) {
        for path in paths {
            let (lower, shown) = (self.lower().join(path), self.root().join(path));
            let facts = |path: &Path| {
                // The kernel does not know of a time that is set after the close.
                let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
                let found = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS).ok()?;
                Some((found.stx_size, found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec))
            };
            testkit::until("the truncated file is closed", || is_killed() || facts(&lower) == facts(&shown));
        }
    }

    /// Keeps a file open for reading.
    fn hold(&mut self) {
        let all = entries(&self.root()).unwrap();
        let Some(path) = (Draw { rng: &mut self.rng, all: &all, step: 0, is_safe: false }).file() else { return };
        self.note("hold", std::slice::from_ref(&path), "");
        self.readers.push(File::open(self.root().join(path)).unwrap());
        self.readers.truncate(4);
    }

    /// Records the present tree.
    fn record(&mut self) {
        tick();
        let tree = self.live();
        let time = since_1970();
        self.keep(time, tree);
        tick();
    }

    fn keep(&mut self, time: Duration, tree: Tree) {
        let time = format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
        let tag = self.rng.one_in(4).then(|| format!("tag{}", self.moments.len()));
        self.note("recorded", &[], &time);
        if let Some(tag) = &tag
            && !self.versionctl(&["tag", tag, "--at", &format!("@{time}")], &[]).status.success()
        {
            assert!(self.ballast.is_some(), "versionctl tag");
            return;
        }
        self.moments.push(Moment { step: self.number, time, tag, tree });
    }

    /// Looks at a moment that is still to come, and records the tree when it has come.
    fn look_ahead(&mut self) {
        let time = since_1970() + Duration::from_millis(150);
        let view = self.view(&format!("{}.{:09}", time.as_secs(), time.subsec_nanos()));
        self.note("look ahead", &[], "");
        let _ = tree::try_read(&view);
        let before =
            objects_at(&view, &entries(&view).unwrap().into_iter().map(|entry| entry.path).collect::<Vec<_>>());
        assert!(!before.is_empty());
        while since_1970() + Duration::from_millis(70) < time {
            self.change();
        }
        if since_1970() + MARGIN < time {
            let tree = self.live();
            if since_1970() > time {
                return;
            }
            testkit::until("the moment is over", || since_1970() > time + MARGIN);
            self.keep(time, tree);
        }
    }

    // The mount.

    fn unmount(&mut self) {
        self.readers.clear();
        self.mounted.unmount();
    }

    fn mount(&mut self) {
        self.mounted = Mounted::new(spec(&self.sandbox, &self.settings), &self.sandbox.path("m"));
    }

    fn remount(&mut self) {
        // What a full disk keeps from being recorded is recorded at the unmount, if there is room.
        self.free();
        self.clean_up();
        self.note("remount", &[], "");
        self.unmount();
        if self.rng.one_in(3) {
            self.check_store();
        }
        self.settings.storage = self.rng.one_in(2).then(|| self.rng.pick(&STORAGES));
        self.mount();
    }

    /// Kills the server while nothing happens, or during a change.
    fn kill(&mut self) {
        if self.settings.is_small {
            // Records that had no room are in memory.
            return;
        }
        self.note("kill", &[], "");
        self.readers.clear();
        if self.rng.one_in(2) {
            let killed = self.mounted.kill_after(Duration::from_micros(self.rng.below(20_000)));
            while !killed.load(Ordering::SeqCst) {
                self.change_until(Some(&killed));
            }
        }
        self.mounted.crash();
        self.mount();
        self.was_killed = true;
    }

    /// Removes what was being made when the server was killed, as the cleaner does in its time.
    fn clean_up(&mut self) {
        if self.was_killed {
            self.tool("clean");
        }
    }

    /// Calls `versionctl` about the whole mount.
    fn tool(&mut self, command: &'static str) {
        self.was_killed &= command != "clean";
        self.note(command, &[], "");
        let root = self.root();
        let output = self.versionctl(&[command], &[&root]);
        assert!(output.status.success() || self.ballast.is_some(), "versionctl {command}: {}", output.text);
    }

    fn change_policies(&mut self) {
        write_policies(&mut self.rng, &self.sandbox);
        self.tool("reload");
    }

    /// Fills the disk, or frees it again.
    fn fill(&mut self) {
        if self.ballast.is_some() {
            return self.free();
        }
        self.note("fill", &[], "");
        let path = self.disk.join("ballast");
        let mut file = File::create(&path).unwrap();
        while file.write(&[7; 1 << 16]).is_ok() {}
        while file.write(&[7; 4096]).is_ok() {}
        let len = file.metadata().unwrap().len();
        file.set_len(len.saturating_sub(self.rng.below(200_000))).unwrap();
        self.ballast = Some(path);
    }

    fn free(&mut self) {
        if let Some(ballast) = self.ballast.take() {
            self.note("free", &[], "");
            fs::remove_file(ballast).unwrap();
        }
    }

    // Restores.

    fn versionctl(&self, words: &[&str], paths: &[&Path]) -> Output {
        try_run(self.versions_command(words).args(paths))
    }

    fn versions_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(Mounted::program().expect("the program"));
        command.arg("versions").args(words).current_dir(self.root()).env("TZ", "UTC");
        command
    }

    /// Restores, and returns whether that succeeded. It must, except on a full disk.
    fn restore(&mut self, words: &[&str], path: &str) -> bool {
        let kind = if words.contains(&"--all") { "restore --all" } else { "restore" };
        let paths = if path.is_empty() { Vec::new() } else { vec![path.to_owned()] };
        self.note(kind, &paths, &words.join(" "));
        let root = self.root();
        let all = entries(&root).unwrap().into_iter().map(|entry| entry.path);
        let concerned: Vec<_> = all.filter(|at| !at.is_empty() && is_below(at, path)).collect();
        let before = objects_at(&root, &concerned);
        let target = if path.is_empty() { root.clone() } else { root.join(path) };
        let output = self.versionctl(&[&["restore"], words].concat(), &[&target]);
        self.journal.count(&root, kind, &before, &concerned);
        if !output.status.success() {
            self.journal.outcome(&output.text);
            if self.ballast.is_none() {
                self.fail(path, &format!("restore {words:?} {path}: {}", output.text));
            }
        }
        output.status.success()
    }

    /// Begins to restore, and is killed.
    fn interrupt(&mut self, words: &[&str]) {
        self.note("interrupted restore", &[], &words.join(" "));
        let mut child = self.versions_command(&[&["restore"], words].concat()).stdout(Stdio::null()).spawn().unwrap();
        // The kill comes at any moment.
        std::thread::sleep(Duration::from_micros(self.rng.below(60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Has a program change files, and undoes what it did.
    fn undo(&mut self) {
        let root = self.root();
        let all = entries(&root).unwrap();
        let mut draw = Draw { rng: &mut self.rng, all: &all, step: 0, is_safe: false };
        let paths: Vec<_> = (0..3).filter_map(|_| draw.file()).collect();
        if paths.len() < 3 || self.ballast.is_some() {
            return;
        }
        let before = self.live();
        self.note("undone program", &paths, "");
        let script = "echo more >>\"$1\"; echo new >\"$2\"; : >\"$3\"";
        let mut child = Command::new("bash");
        let child = child.args(["-ec", script, "bash"]).args(paths.iter().map(|path| root.join(path))).spawn();
        let mut child = child.unwrap();
        let pid = child.id().to_string();
        assert!(child.wait().unwrap().success());
        self.settle(&paths, &|| false);
        if self.rng.one_in(2) {
            self.record();
        }
        if self.restore(&["--pid", &pid], "") {
            // Emptying an empty file is no change, but sets the time.
            let scope = Scope { times: false, others: true };
            self.must_equal(&before, &self.live(), scope, &format!("what process {pid} did was undone"));
        }
        self.record();
    }

    /// Returns a moment, mostly a late one.
    fn moment(&mut self) -> usize {
        let count = self.moments.len();
        if self.rng.one_in(2) { count - 1 - self.rng.below(count.min(4)) } else { self.rng.below(count) }
    }

    fn restore_all(&mut self) {
        let moment = self.moment();
        let shown = self.check_view(moment);
        let chosen = self.moments[moment].chosen();
        let words = ["--all", "--at", &chosen, "--delete"];
        if self.rng.one_in(4) {
            self.interrupt(&words);
        }
        if self.restore(&words, "") {
            let what = format!("restored to {}, recorded in step {}", chosen, self.moments[moment].step);
            let scope = self.past_scope();
            self.must_equal(&self.with_times(moment, &shown), &self.live(), scope, &what);
        }
        self.record();
    }

    /// Returns a recorded tree with the times that the view shows.
    fn with_times(&self, moment: usize, shown: &Tree) -> Tree {
        let mut tree = self.moments[moment].tree.clone();
        for (path, node) in &mut tree {
            node.mtime = shown[path].mtime;
        }
        tree
    }

    /// Whether the directories above `path` are, or are missing: a restore creates these.
    fn leads_there(&self, path: &str) -> bool {
        let above = Path::new(path).ancestors().skip(1);
        above.into_iter().all(|dir| fs::symlink_metadata(self.root().join(dir)).map_or(true, |found| found.is_dir()))
    }

    /// Returns a path of a recorded tree.
    fn recorded(&mut self, moment: usize, is_wanted: impl Fn(FileType) -> bool) -> Option<String> {
        let all = &self.moments[moment].tree;
        let all: Vec<_> = all.iter().filter(|(_, node)| is_wanted(FileType::from_raw_mode(node.mode))).collect();
        let path = if all.is_empty() { return None } else { all[self.rng.below(all.len())].0.clone() };
        let path = String::from_utf8(path).unwrap();
        self.leads_there(&path).then_some(path)
    }

    fn restore_directory(&mut self) {
        let moment = self.moment();
        let Some(path) = self.recorded(moment, FileType::is_dir) else { return };
        let deletes = self.rng.one_in(2);
        let (before, shown) = (self.live(), self.check_view(moment));
        let chosen = self.moments[moment].chosen();
        let words: &[&str] = if deletes { &["--at", &chosen, "--delete"] } else { &["--at", &chosen] };
        let want = part(&self.with_times(moment, &shown), &path);
        let present = part(&before, &path);
        let is_dir =
            |tree: &Tree, at: &Vec<u8>| tree.get(at).is_some_and(|node| FileType::from_raw_mode(node.mode).is_dir());
        // A directory that has the name of a file goes with --delete only.
        if !deletes && want.keys().any(|at| is_dir(&present, at) && !is_dir(&want, at)) {
            return;
        }
        let is_there = is_dir(&before, &path.clone().into_bytes());
        if self.restore(words, &path) {
            let after = self.live();
            let what = format!("{path} restored to {chosen}");
            let mut got = part(&after, &path);
            if !deletes && is_there {
                got.retain(|at, _| want.contains_key(at));
            }
            self.must_equal_below(&path, &want, &got, &what);
            self.check_outside(&path, &before, &after);
        }
        self.record();
    }

    fn must_equal_below(&self, path: &str, want: &Tree, got: &Tree, what: &str) {
        let scope = self.past_scope();
        if let Some(difference) = compare(want, got, scope) {
            let at = if difference.path.is_empty() { path.to_owned() } else { format!("{path}/{}", difference.path) };
            self.fail(at.trim_start_matches('/'), &format!("{what}:\n{}", difference.text));
        }
    }

    /// Checks that what is not below `path` is as before. Other names of what is restored in place
    /// show it, too.
    fn check_outside(&self, path: &str, before: &Tree, after: &Tree) {
        let is_inside = |at: &[u8]| is_below(&String::from_utf8_lossy(at), path);
        let inside: BTreeSet<u64> = before.iter().filter(|(at, _)| is_inside(at)).map(|(_, node)| node.ino).collect();
        let outside = |tree: &Tree| -> Tree {
            let mut tree = tree.clone();
            // Directories above the path may have been created.
            tree.retain(|at, _| {
                let is_known = before.get(at).is_none_or(|before| !inside.contains(&before.ino));
                !is_inside(at) && is_known && !is_below(path, &String::from_utf8_lossy(at))
            });
            tree
        };
        let scope = Scope { times: true, others: true };
        self.must_equal(&outside(before), &outside(after), scope, &format!("outside of {path}, which was restored"));
    }

    fn restore_name(&mut self) {
        let moment = self.moment();
        let Some(path) = self.recorded(moment, |kind| !kind.is_dir()) else { return };
        let is_dir = fs::symlink_metadata(self.root().join(&path)).is_ok_and(|found| found.is_dir());
        if is_dir {
            return;
        }
        let (before, shown) = (self.live(), self.check_view(moment));
        let chosen = self.moments[moment].chosen();
        let want = part(&self.with_times(moment, &shown), &path);
        if self.restore(&["--at", &chosen], &path) {
            let after = self.live();
            self.must_equal_below(&path, &want, &part(&after, &path), &format!("{path} restored to {chosen}"));
            self.check_outside(&path, &before, &after);
        }
        self.record();
    }

    fn remove_and_restore(&mut self) {
        let all = entries(&self.root()).unwrap();
        let Some(path) = (Draw { rng: &mut self.rng, all: &all, step: 0, is_safe: false }).name() else { return };
        self.removed_and_restored("rm", &path, |path| fs::remove_file(path));
    }

    fn remove_tree_and_restore(&mut self) {
        let all = entries(&self.root()).unwrap();
        let Some(path) = (Draw { rng: &mut self.rng, all: &all, step: 0, is_safe: false }).dir() else { return };
        self.removed_and_restored("rm -r", &path, remove_tree);
    }

    fn removed_and_restored(&mut self, kind: &'static str, path: &str, remove: impl Fn(&Path) -> io::Result<()>) {
        let before = self.live();
        let root = self.root();
        self.note(kind, &[path.to_owned()], "and restore");
        if let Err(error) = remove(&root.join(path)) {
            assert!(self.ballast.is_some(), "{kind} {path}: {error}");
            return;
        }
        if self.rng.one_in(2) {
            self.record();
        }
        if self.restore(&[], path) {
            let after = self.live();
            let scope = Scope { times: true, others: true };
            let (want, got) = (part(&before, path), part(&after, path));
            if let Some(difference) = compare(&want, &got, scope) {
                self.fail(path, &format!("{path} removed and restored:\n{}", difference.text));
            }
            self.check_outside(path, &before, &after);
        }
        self.record();
    }

    fn restore_elsewhere(&mut self) {
        let moment = self.moment();
        let Some(path) = self.recorded(moment, FileType::is_dir) else { return };
        if fs::symlink_metadata(self.root().join("elsewhere")).is_ok() || self.ballast.is_some() {
            return;
        }
        let shown = self.check_view(moment);
        let chosen = self.moments[moment].chosen();
        let target = self.root().join("elsewhere");
        if self.restore(&["--at", &chosen, "--to", target.to_str().unwrap()], &path) {
            let want = part(&self.with_times(moment, &shown), &path);
            let got = self.read(&target, "elsewhere", "what was restored elsewhere");
            self.must_equal_below(&path, &want, &got, &format!("{path} restored elsewhere to {chosen}"));
        }
        self.note("rm -r", &["elsewhere".to_owned()], "");
        remove_tree(&target).unwrap();
    }

    // Checks.

    fn view(&self, time: &str) -> PathBuf {
        self.root().join(".versions").join(time)
    }

    fn what(&self, moment: usize, how: &str) -> String {
        let Moment { step, time, .. } = &self.moments[moment];
        format!("{how} at {time}, recorded in step {step}")
    }

    /// Checks that `.versions` shows a moment. Returns what it shows.
    fn check_view(&self, moment: usize) -> Tree {
        let what = self.what(moment, ".versions");
        let got = self.read(&self.view(&self.moments[moment].time), "", &what);
        self.must_equal(&self.moments[moment].tree, &got, self.past_scope(), &what);
        got
    }

    /// Not times: a restore that sets that of a file shows it in the past of the same file, too,
    /// from which it restores another name.
    fn past_scope(&self) -> Scope {
        Scope { times: false, others: false }
    }

    fn check_some(&mut self) {
        for _ in 0..SOME {
            let moment = self.moment();
            self.check_view(moment);
        }
        let moment = self.moment();
        match self.rng.below(4) {
            0 => self.check_copy(moment),
            1 => self.check_mount(moment),
            _ => self.check_texts(moment),
        }
    }

    /// Checks a copy of `.versions` by `cp -a`.
    fn check_copy(&self, moment: usize) {
        let what = self.what(moment, "a copy of .versions");
        let (from, to) = (self.view(&self.moments[moment].time), self.copies.join("copy"));
        let output = try_run(Command::new("cp").args(["-aT", "--"]).args([&from, &to]));
        if !output.status.success() {
            self.fail("", &format!("{what}: {}", output.text));
        }
        self.must_equal(&self.moments[moment].tree, &self.read(&to, "", &what), self.past_scope(), &what);
        remove_tree(&to).unwrap();
    }

    /// Checks a mount of the past.
    fn check_mount(&self, moment: usize) {
        let what = self.what(moment, "a mount");
        let at = format!("at={},{}", self.moments[moment].chosen().trim_start_matches('@'), config(&self.sandbox));
        let past = Mounted::new(Spec::versions(&self.lower(), &at, Transport::Device), &self.sandbox.path("past"));
        let got = self.read(past.dir(), "", &what);
        self.must_equal(&self.moments[moment].tree, &got, self.past_scope(), &what);
    }

    /// Checks that `versionctl cat` prints what the moment had, and every version of a name that
    /// `versionctl log` lists.
    fn check_texts(&mut self, moment: usize) {
        let chosen = self.moments[moment].chosen();
        for _ in 0..SOME {
            let Some(path) = self.recorded(moment, FileType::is_file) else { continue };
            let content = self.moments[moment].tree[path.as_bytes()].content;
            let printed = self.printed(&path, &chosen);
            if tree::hash(&printed) != content {
                self.fail(&path, &format!("versionctl cat {path} {chosen}: {} other bytes", printed.len()));
            }
            // The log of a path does not go on in a directory that was renamed since.
            let is_there = fs::symlink_metadata(self.root().join(&path)).is_ok();
            for number in if is_there { self.numbers(&path) } else { Vec::new() } {
                self.printed(&path, &number);
            }
        }
    }

    /// Returns the numbers of the versions that are files, or were when the name left them.
    fn numbers(&self, path: &str) -> Vec<String> {
        let output = self.versionctl(&["log", "--json"], &[&self.root().join(path)]);
        let log: serde_json::Value = serde_json::from_str(&output.text)
            .unwrap_or_else(|error| self.fail(path, &format!("versionctl log {path}: {error}: {}", output.text)));
        let versions = log["versions"].as_array().into_iter().flatten();
        versions.filter(|one| one["kind"] == "file").map(|one| one["version"].to_string()).collect()
    }

    /// Returns the output of `versionctl cat`.
    fn printed(&self, path: &str, which: &str) -> Vec<u8> {
        let mut command = self.versions_command(&["cat", "--"]);
        let output = command.arg(self.root().join(path)).arg(which).stdin(Stdio::null()).output().unwrap();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            self.fail(path, &format!("versionctl cat {path} {which}: {text}"));
        }
        output.stdout
    }

    /// Checks the store of the unmounted directory: there is nothing to repair.
    fn check_store(&mut self) {
        let before = tree::read(&self.lower());
        for flag in ["-n", "-p"] {
            let mut command = Command::new(Mounted::program().expect("the program"));
            std::os::unix::process::CommandExt::arg0(&mut command, "fsck.versionfs");
            let output = try_run(command.arg(flag).arg(self.lower()));
            if !output.status.success() {
                self.fail("", &format!("fsck.versionfs {flag}: {}: {}", output.status, output.text));
            }
        }
        let scope = Scope { times: true, others: true };
        self.must_equal(&before, &tree::read(&self.lower()), scope, "after fsck.versionfs -p");
    }

    /// Checks every moment, some in each way, and the store; at last restores some of them.
    pub(super) fn finish(&mut self) {
        self.free();
        self.readers.clear();
        self.record();
        for moment in 0..self.moments.len() {
            self.check_view(moment);
        }
        for _ in 0..SOME {
            let moment = self.moment();
            self.check_copy(moment);
            let moment = self.moment();
            self.check_mount(moment);
            self.check_texts(moment);
        }
        self.clean_up();
        self.unmount();
        self.check_store();
        self.mount();
        self.number += 1;
        self.restore_all();
        for moment in 0..self.moments.len() {
            self.check_view(moment);
        }
        self.unmount();
        self.check_store();
    }
}

/// Returns the time since 1970.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970")
}

fn config(sandbox: &Sandbox) -> String {
    format!("config={}", sandbox.path("versionfs.conf").display())
}

fn spec(sandbox: &Sandbox, settings: &Settings) -> Spec {
    let mut options = format!("versions,{}", config(sandbox));
    if let Some(storage) = settings.storage {
        let _ = write!(options, ",storage={storage}");
    }
    options += if settings.comprehensive { ",comprehensive" } else { "" };
    options += if settings.copy_on_write { ",copy-on=write" } else { "" };
    Spec::versions(&sandbox.path("disk/lower"), &options, Transport::Device)
}

/// Writes policies that keep every version, in formats that are drawn: without room, changes fail.
fn write_policies(rng: &mut Rng, sandbox: &Sandbox) {
    let mut text = format!("builtin = false\nstorage = \"{}\"\n", rng.pick(&STORAGES));
    for name in ["a", "b", "c"] {
        let _ = write!(text, "[[rule]]\nname = \"{name}\"\nstorage = \"{}\"\n", rng.pick(&STORAGES));
    }
    text += "[volume]\nmax = \"none\"\nfree = \"none\"\n";
    fs::write(sandbox.path("versionfs.conf"), text).unwrap();
}
