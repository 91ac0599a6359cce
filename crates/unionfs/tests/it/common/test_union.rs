//! Branches in memory, unions over them, and the invariants of a mounted union.

use super::config::{Access, Config};
use super::path::Path;
use super::session::Session;
use super::tree::{Caller, ROOT, Tree};
use super::view::{Numbers, Times, View, Walk, compare, compare_object, expected_object, view};
use memfs::{Dump, Faults, MemFs, MemOptions};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use unionfs::{Branch, Create, Delete, Metacopy, Mode, Options, Unionfs};
use vnode::Layer;

/// The names of opaque marks.
const OPAQUE: [&[u8]; 2] = [b".wh..wh..opq", b".wh.__dir_opaque"];

/// A set of branches in memory that share one fault plan, and the options of their union.
pub struct TestUnion {
    /// Which lower operation fails, and how.
    pub faults: Faults,
    /// The branches, left to right.
    pub branches: Vec<(Access, Arc<MemFs>)>,
    /// The union's delete mode.
    pub delete: Delete,
    /// The branch of new objects.
    pub create: Create,
    /// How long the union trusts its name indexes ([`Options::check_interval`]). The tests make no
    /// out-of-band changes, so that any value is right.
    pub interval: Duration,
    /// Which changes of attributes copy no data.
    pub metacopy: Metacopy,
    /// The number in the path of each branch.
    pub numbers: Vec<usize>,
    options: MemOptions,
    /// Initial content of each read-only branch, which must never change.
    read_only: Vec<Option<Dump>>,
}

/// The start of a test: branches to fork, the model of their union, and its inode numbers.
pub struct Start {
    /// The branches, forked for each run.
    pub union: TestUnion,
    /// The expected tree of the union, with every mtime known.
    pub tree: Tree,
    /// The inode number of each object.
    pub numbers: Numbers,
}

impl Start {
    /// Builds the branches of `config` and checks that their union matches the model.
    pub fn new(config: &Config, delete: Delete, options: MemOptions) -> Self {
        let mut union = TestUnion {
            faults: Faults::new(),
            branches: Vec::new(),
            delete,
            create: Create::default(),
            interval: Duration::ZERO,
            // The files of these branches lie on both sides of this threshold.
            metacopy: if options.identified { Metacopy::Off } else { Metacopy::Above(30) },
            numbers: (0..config.branches.len()).collect(),
            options,
            read_only: Vec::new(),
        };
        for (access, program) in &config.branches {
            let branch = MemFs::with(options, &union.faults);
            let mut session = Session::new(branch.clone());
            for op in program {
                session.run(Caller::ROOT, op).unwrap_or_else(|e| panic!("{}: {op:?}: {e}", config.name));
            }
            union.branches.push((*access, branch));
        }
        // A crash must not lose the initial content.
        for (_, branch) in &union.branches {
            branch.sync(&super::view::internal_cx()).unwrap_or_else(|e| panic!("{}: sync: {e}", config.name));
        }
        union.record_read_only();
        let mut tree = config.union_tree();
        let before = Tree { read_only: tree.read_only, ..super::config::merge(&config.branch_trees()) };
        let mut numbers = union.prologue(config, before);
        // The first mount creates the identity log in the root of the leftmost branch.
        tree.nodes.entry(ROOT).and_modify(|root| root.mtime = None);
        let session = union.mount().unwrap_or_else(|e| panic!("{}: {e}", config.name));
        let times = if config.prologue.is_empty() { Times::All } else { Times::Files };
        let seen = check(&session, &tree, &mut numbers, times)
            .unwrap_or_else(|e| panic!("{}, after mounting:\n{e}", config.name));
        super::view::learn_times(&seen, &mut tree);
        drop(session);
        union.check_read_only_branches().unwrap_or_else(|e| panic!("{}: {e}", config.name));
        Self { union, tree, numbers }
    }
}

impl TestUnion {
    /// Runs the configuration's prologue in whiteout mode and checks the union after each step.
    fn prologue(&self, config: &Config, mut tree: Tree) -> Numbers {
        let mut numbers = Numbers::default();
        if config.prologue.is_empty() {
            return numbers;
        }
        let whiteout = TestUnion { delete: Delete::Whiteout, ..self.share() };
        let mut session = whiteout.mount().unwrap_or_else(|e| panic!("{}: {e}", config.name));
        for op in &config.prologue {
            let name = &config.name;
            session.run(Caller::ROOT, op).unwrap_or_else(|e| panic!("{name}: prologue {op:?}: {e}"));
            tree.apply(Caller::ROOT, op).unwrap_or_else(|e| panic!("{name}: prologue {op:?}: {e:?}"));
            check(&session, &tree, &mut numbers, Times::Files)
                .unwrap_or_else(|e| panic!("{name}: after the prologue's {op:?}:\n{e}"));
        }
        numbers.retain(&tree);
        numbers
    }

    /// Records the content of the read-only branches.
    pub fn record_read_only(&mut self) {
        self.read_only =
            self.branches.iter().map(|(access, branch)| (*access == Access::Ro).then(|| branch.dump())).collect();
    }

    /// Returns a union with the same options and other branches.
    fn with_branches(&self, faults: Faults, branches: Vec<(Access, Arc<MemFs>)>) -> Self {
        Self {
            faults,
            branches,
            delete: self.delete,
            create: self.create,
            interval: self.interval,
            metacopy: self.metacopy,
            numbers: self.numbers.clone(),
            options: self.options,
            read_only: self.read_only.clone(),
        }
    }

    /// Returns a second handle to the same branches.
    fn share(&self) -> Self {
        self.with_branches(self.faults.clone(), self.branches.clone())
    }

    /// Returns a deep copy of the branches, with a fault plan of its own.
    pub fn fork(&self) -> Self {
        let faults = Faults::new();
        let branches = self.branches.iter().map(|(access, branch)| (*access, branch.fork(&faults))).collect();
        self.with_branches(faults, branches)
    }

    /// Returns the branches as they are after a crash.
    pub fn recover(&self) -> Self {
        let faults = Faults::new();
        let branches = self.branches.iter().map(|(access, branch)| (*access, branch.recover(&faults))).collect();
        self.with_branches(faults, branches)
    }

    /// Returns the branches of a mount. `name` returns the number in the path of the branch at a
    /// position.
    pub fn to_branches(&self, name: &dyn Fn(usize) -> usize) -> Vec<Branch> {
        let branch = |(at, (access, branch)): (usize, &(Access, Arc<MemFs>))| Branch {
            layer: branch.clone() as Arc<dyn Layer>,
            path: format!("/branch/{}", name(at)).into(),
            mode: if *access == Access::Rw { Mode::ReadWrite } else { Mode::ReadOnly },
        };
        self.branches.iter().enumerate().map(branch).collect()
    }

    /// Returns the branches of a mount.
    pub fn own_branches(&self) -> Vec<Branch> {
        self.to_branches(&|at| self.numbers[at])
    }

    /// Returns the branches of a view of the tools.
    pub fn pairs(&self) -> Vec<(Arc<dyn Layer>, PathBuf)> {
        self.own_branches().into_iter().map(|branch| (branch.layer, branch.path)).collect()
    }

    /// Returns a new branch for the left end, with the attributes of the present first one's root.
    pub fn new_first(&self) -> (usize, Arc<MemFs>) {
        let fs = MemFs::with(self.options, &self.faults);
        super::copies::copy_root(&self.branches[0].1, &fs);
        (1 + self.numbers.iter().max().unwrap(), fs)
    }

    /// Adds a branch as the first one. The others are not written any more.
    pub fn add_first(&mut self, (number, fs): (usize, Arc<MemFs>)) {
        self.branches.iter_mut().for_each(|(access, _)| *access = Access::Ro);
        self.branches.insert(0, (Access::Rw, fs));
        self.numbers.insert(0, number);
        self.record_read_only();
    }

    /// Replaces branches by copies at other paths. `which`: a bit for each position, or none for
    /// all branches.
    pub fn replace_by_copies(&mut self, which: u64) {
        for at in (0..self.branches.len()).filter(|at| which == 0 || which >> at & 1 == 1) {
            let copy = MemFs::with(self.options, &self.faults);
            super::copies::copy(&self.branches[at].1, &copy);
            self.branches[at].1 = copy;
            self.numbers[at] = 1 + self.numbers.iter().max().unwrap();
        }
        self.record_read_only();
    }

    /// Mounts the union.
    pub fn mount(&self) -> Result<Session, String> {
        self.mount_as(&|at| self.numbers[at])
    }

    /// Mounts the union. `name` returns the number in the path of the branch at a position.
    pub fn mount_as(&self, name: &dyn Fn(usize) -> usize) -> Result<Session, String> {
        Ok(Session::new(self.union_as(name)?))
    }

    /// Mounts the union, so that its branches can be changed.
    pub fn union(&self) -> Result<Arc<Unionfs>, String> {
        self.union_as(&|at| self.numbers[at])
    }

    fn union_as(&self, name: &dyn Fn(usize) -> usize) -> Result<Arc<Unionfs>, String> {
        let options = Options {
            delete: self.delete,
            create: self.create,
            metacopy: self.metacopy,
            check_interval: self.interval,
            ..Options::default()
        };
        Unionfs::new(self.to_branches(name), options).map_err(|e| format!("mounting: {e}"))
    }

    /// Checks that no read-only branch has changed.
    pub fn check_read_only_branches(&self) -> Result<(), String> {
        for (at, (before, (_, branch))) in self.read_only.iter().zip(&self.branches).enumerate() {
            if let Some(before) = before
                && *before != branch.dump()
            {
                return Err(format!("the read-only branch {at} was changed:\n{:?}", self.dump()));
            }
        }
        Ok(())
    }

    /// Checks that the writable branches hold no leftover internal files, which is required after a
    /// mount.
    pub fn check_leftovers(&self, seen: &View) -> Result<(), String> {
        let numbers: BTreeSet<u64> = seen.0.values().map(|object| object.ino).collect();
        for (at, (access, branch)) in self.branches.iter().enumerate() {
            if *access == Access::Rw {
                let content = view(&*branch.without_faults(), Walk::Branch).map_err(|e| format!("branch {at}: {e}"))?;
                check_content(&content, &numbers).map_err(|e| format!("branch {at}: {e}"))?;
            }
        }
        Ok(())
    }

    /// Returns the whiteouts in opaque directories, which can hide nothing: the branch, the
    /// directory's inode number there, and the name.
    pub fn idle_whiteouts(&self) -> BTreeSet<(usize, u64, Vec<u8>)> {
        let mut found = BTreeSet::new();
        for (at, View(content)) in self.dump().into_iter().enumerate() {
            let is_opaque = |dir: &Path| OPAQUE.iter().any(|mark| content.contains_key(&dir.join(mark)));
            for (dir, name) in content.keys().filter_map(Path::split) {
                let hides = !name.starts_with(b".wh..wh.") || name.starts_with(b".wh..wh.l.");
                if name.starts_with(b".wh.") && hides && !OPAQUE.contains(&name) && is_opaque(&dir) {
                    found.insert((at, content[&dir].ino, name.to_vec()));
                }
            }
        }
        found
    }

    /// Checks that no directory that holds whiteouts has become opaque.
    pub fn check_idle_whiteouts(&self, before: &BTreeSet<(usize, u64, Vec<u8>)>) -> Result<(), String> {
        match self.idle_whiteouts().difference(before).next() {
            None => Ok(()),
            Some((branch, ino, name)) => {
                let name = name.escape_ascii();
                Err(format!("branch {branch}: the opaque directory {ino:#x} holds {name}:\n{:?}", self.dump()))
            }
        }
    }

    /// Returns a view of each branch, for failure messages.
    pub fn dump(&self) -> Vec<View> {
        self.branches
            .iter()
            .map(|(_, branch)| view(&*branch.without_faults(), Walk::Branch).unwrap_or_default())
            .collect()
    }
}

fn check_content(content: &View, numbers: &BTreeSet<u64>) -> Result<(), String> {
    for (path, object) in &content.0 {
        let names: Vec<&[u8]> = path.components().collect();
        match names.as_slice() {
            [b".wh..wh.work", _, ..] => return Err(format!("leftover in the work directory: /{path:?} {object:?}")),
            [b".wh..wh.links", name] => {
                let number = std::str::from_utf8(name).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                if !number.is_some_and(|number| numbers.contains(&number)) {
                    return Err(format!("stale hard link index entry: /{path:?} {object:?}"));
                }
            }
            [b".wh..wh.work" | b".wh..wh.links" | b".wh..wh.ident" | b".wh..wh.moved" | b".wh..wh.metacopies"] => {}
            [.., last] if last.starts_with(b".wh..wh.") => {
                let known = [&b".wh..wh..opq"[..], b".wh..wh..redirect", b".wh..wh.redirect"].contains(last)
                    || last.starts_with(b".wh..wh.meta.")
                    || last.strip_prefix(b".wh..wh.l.").is_some_and(|hex| hex.len() == 32);
                if !known {
                    return Err(format!("unknown internal file: /{path:?} {object:?}"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that the union and every open file match the model; returns the view of the union.
pub fn check(session: &Session, tree: &Tree, numbers: &mut Numbers, times: Times) -> Result<View, String> {
    let seen = view(&*session.layer, numbers.walk(times))?;
    compare(&seen, tree, numbers, times)?;
    for slot in 0..session.slots.len() {
        let open = tree.slots[slot];
        match (session.observe_slot(slot), open) {
            (None, None) => {}
            (Some(got), Some(open)) => {
                let want = expected_object(tree, open.id, tree.nlink(open.id));
                let got = got.map_err(|e| format!("open file {slot}: {e}"))?;
                compare_object(&got, &want, numbers, times).map_err(|e| format!("open file {slot}: {e}"))?;
            }
            (got, want) => {
                return Err(format!("open file {slot}: open: {}, expected: {}", got.is_some(), want.is_some()));
            }
        }
    }
    Ok(seen)
}
