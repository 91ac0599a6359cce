//! Branches in memory after random operations on their union, and checks of their views.

// Each test program uses only some of these functions.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::config::{Access, configs};
use crate::common::path::Path;
use crate::common::random_branches::random_config;
use crate::common::random_ops::OpChooser;
use crate::common::report::Report;
use crate::common::session::Session;
use crate::common::test_union::{Start, TestUnion};
use crate::common::tree::{Caller, Tree};
use crate::common::view::internal_cx;
use changes::{Branches, Change, CommitOptions, Error, Floor, Selection, Source};
use memfs::{Dump, Faults, MemFs, MemOptions};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use testkit::Rng;
use testkit::seeds;
use unionfs::Delete;
use unionfs::offline::View;
use vnode::{Layer, Name};

/// Branches in memory, after some operations on their union.
pub struct Case {
    pub faults: Faults,
    pub branches: Vec<Arc<MemFs>>,
    /// The numbers in the paths of the branches, which the union's records refer to.
    pub names: Vec<usize>,
}

impl Case {
    pub fn of(union: &TestUnion) -> Self {
        let branches: Vec<_> = union.branches.iter().map(|(_, fs)| fs.clone()).collect();
        Self { faults: union.faults.clone(), names: (0..branches.len()).collect(), branches }
    }

    pub fn fork(&self) -> Self {
        let faults = Faults::new();
        Self { branches: self.branches.iter().map(|fs| fs.fork(&faults)).collect(), names: self.names.clone(), faults }
    }

    pub fn recover(&self) -> Self {
        let faults = Faults::new();
        Self {
            branches: self.branches.iter().map(|fs| fs.recover(&faults)).collect(),
            names: self.names.clone(),
            faults,
        }
    }

    pub fn pairs(&self, from: usize) -> Vec<(Arc<dyn Layer>, std::path::PathBuf)> {
        let pair = |(at, fs): (&usize, &Arc<MemFs>)| (fs.clone() as Arc<dyn Layer>, format!("/branch/{at}").into());
        self.names.iter().zip(&self.branches).map(pair).skip(from).collect()
    }

    pub fn open(&self) -> Branches {
        self.open_some(|_| true, Floor::Ground)
    }

    /// The branches at the positions that `known` accepts.
    pub fn open_some(&self, known: impl Fn(usize) -> bool, floor: Floor) -> Branches {
        let pairs = self.pairs(0).into_iter().enumerate().filter(|(at, _)| known(*at));
        let mut sources = pairs.map(|(_, (layer, path))| Source { layer, path });
        Branches::new(sources.next().unwrap(), sources.collect(), floor)
    }

    /// Merges the first `snapshots` branches into the next one, as snapmerge does. `below`: whether
    /// the branches right of that are given.
    pub fn merge(&self, snapshots: usize, below: bool) -> Result<(), Error> {
        let given = |at: usize| below || at <= snapshots;
        let floor = if below { Floor::Ground } else { Floor::Unknown };
        let options = CommitOptions { force: true, merging: true, ..CommitOptions::default() };
        for step in self.open_some(given, floor).merge_steps(snapshots)? {
            let branches = self.open_some(|at| given(at) && (at == step.from || at >= step.to), floor);
            let outcome = branches.commit(&Selection::all(), &options, &mut |_| {})?;
            if let Some(failed) = outcome.failed.into_iter().next() {
                return Err(Error::Failed(failed));
            }
        }
        Ok(())
    }

    /// What users see of the branches from `from` on.
    pub fn view(&self, from: usize) -> Result<Dump, String> {
        let view = View::new(&self.pairs(from)).map_err(|e| format!("view: {e}"))?;
        let mut dump =
            Dump::of(&*view.layer()).map_err(|e| format!("dump of the branches from {from}: {e}"))?.without_ids();
        // Those of the root are the upper branch's own.
        dump.0.remove(&b""[..]);
        let names = names_of(&dump);
        for node in dump.0.values_mut() {
            node.nlink = names[&node.first];
        }
        Ok(dump)
    }

    /// Files whose link count is not the number of their names: a whiteout that no union has logged
    /// does not change the link count of what it hides.
    pub fn miscounted(&self) -> Result<BTreeSet<Vec<u8>>, String> {
        let dump = self.numbered(0)?;
        let names = names_of(&dump);
        let wrong =
            dump.0.iter().filter(|(_, node)| node.kind != vnode::Kind::Directory && node.nlink != names[&node.first]);
        Ok(wrong.map(|(path, _)| path.clone()).collect())
    }

    /// What users see of the branches from `from` on, with inode numbers.
    pub fn numbered(&self, from: usize) -> Result<Dump, String> {
        let view = View::new(&self.pairs(from)).map_err(|e| format!("view: {e}"))?;
        Dump::of(&*view.layer()).map_err(|e| format!("dump: {e}"))
    }

    /// The inode number in the union of a file that the branches below show at a path, if it has
    /// not got another one.
    pub fn number_below(&self, path: &[u8]) -> Result<Option<u64>, String> {
        let views = [0, 1].map(|from| View::new(&self.pairs(from)).map_err(|e| format!("view: {e}")));
        let [all, below] = views;
        let (all, below) = (all?, below?);
        let mut at = below.root();
        for name in path.split(|&b| b == b'/') {
            let found = Name::new(name).and_then(|name| at.lookup(&internal_cx(), name)).map_err(|e| e.to_string())?;
            let Some(entry) = found else { return Ok(None) };
            at = entry.vnode;
        }
        let number = below.lower(&at).and_then(|(branch, lower)| all.number((branch + 1, lower.id())));
        number.map(Some).map_err(|e| e.to_string())
    }

    /// Checks that no link count is wrong that was not wrong before.
    pub fn check_counts(&self, before: &BTreeSet<Vec<u8>>) -> Result<(), String> {
        let Some(path) = self.miscounted()?.difference(before).next().cloned() else { return Ok(()) };
        let dump = self.numbered(0)?;
        let (node, names) = (&dump.0[&path], names_of(&dump));
        Err(format!("/{} has link count {}, but {} names", path.escape_ascii(), node.nlink, names[&node.first]))
    }

    pub fn commit(&self, selection: &Selection) -> Result<changes::Outcome, Error> {
        self.open().commit(selection, &CommitOptions { force: true, ..CommitOptions::default() }, &mut |_| {})
    }

    pub fn discard(&self, selection: &Selection) -> Result<changes::Outcome, Error> {
        self.open().discard(selection, false, &mut |_| {})
    }

    pub fn dump(&self) -> String {
        if testkit::number("STRATA_DUMP").is_none() {
            return String::new();
        }
        let dumps = self.branches.iter().map(|fs| Dump::of(&*fs.without_faults()).unwrap_or_default());
        dumps.map(|dump| format!("\n{}", dump.differences(&Dump::default()))).collect::<Vec<_>>().join("\n--")
    }
}

/// Returns the number of names of each object, by its first name.
pub fn names_of(dump: &Dump) -> HashMap<Vec<u8>, u32> {
    let mut names = HashMap::new();
    for node in dump.0.values() {
        *names.entry(node.first.clone()).or_insert(0) += 1;
    }
    names
}

pub fn same(what: &str, got: &Dump, want: &Dump) -> Result<(), String> {
    let differences = want.differences(got);
    if differences.is_empty() { Ok(()) } else { Err(format!("{what}:\n{differences}")) }
}

/// Returns the branches that a seed begins with.
fn start(seed: u64, options: MemOptions) -> Start {
    let fixed = configs();
    let config = match usize::try_from(seed).unwrap() {
        small if small % 3 == 0 => &fixed[small / 3 % fixed.len()],
        _ => &random_config(seed),
    };
    Start::new(config, Delete::Whiteout, options)
}

/// Runs operations on a union and on its model.
fn operate(session: &mut Session, model: &mut Tree, rng: &mut Rng, steps: usize) {
    let mut chooser = OpChooser { rng, beneath: Path::root(), keeps_open: false };
    for _ in 0..steps {
        let op = chooser.op(model);
        if session.run(Caller::ROOT, &op).is_ok() {
            let _applied = model.apply(Caller::ROOT, &op);
        }
    }
}

/// Builds branches from a seed, and runs operations on their union.
pub fn case(seed: u64, options: MemOptions, steps: usize) -> Case {
    let start = start(seed, options);
    let union = start.union.fork();
    operate(&mut union.mount().unwrap(), &mut start.tree.clone(), &mut Rng::new(seed), steps);
    for (_, branch) in &union.branches {
        branch.sync(&internal_cx()).unwrap();
    }
    Case::of(&union)
}

/// As [`case`], then adds snapshots: new branches on the left, with operations after each.
pub fn case_with_snapshots(seed: u64, options: MemOptions, steps: usize, snapshots: usize) -> Case {
    let start = start(seed, options);
    let (mut union, mut tree, mut rng) = (start.union.fork(), start.tree.clone(), Rng::new(seed));
    let old = union.branches.len();
    for made in 0..=snapshots {
        if made > 0 {
            union.branches.iter_mut().for_each(|(access, _)| *access = Access::Ro);
            let new = MemFs::with(options, &union.faults);
            union.branches.insert(0, (Access::Rw, new));
        }
        // The old branches keep their paths.
        let name = |at: usize| if at < made { old + made - 1 - at } else { at - made };
        let Ok(mut session) = union.mount_as(&name) else { continue };
        tree.read_only = false;
        operate(&mut session, &mut tree, &mut rng, steps);
    }
    for (_, branch) in &union.branches {
        branch.sync(&internal_cx()).unwrap();
    }
    let names =
        (0..union.branches.len()).map(|at| if at < snapshots { old + snapshots - 1 - at } else { at - snapshots });
    Case { names: names.collect(), ..Case::of(&union) }
}

/// Paths that differ, with their directories' times ignored.
pub fn differing(all: &Dump, below: &Dump) -> BTreeSet<Vec<u8>> {
    differing_with(all, below, false)
}

/// As [`differing`]; with `links`, paths of a file whose other names differ are included.
pub fn differing_with(all: &Dump, below: &Dump, links: bool) -> BTreeSet<Vec<u8>> {
    let strip = |dump: &Dump, path: &Vec<u8>| {
        dump.0.get(path).cloned().map(|mut node| {
            if node.kind == vnode::Kind::Directory {
                node.mtime = None;
            }
            if node.kind == vnode::Kind::Directory || !links {
                node.nlink = 0;
                node.first = Vec::new();
            }
            node
        })
    };
    let paths: BTreeSet<_> = all.0.keys().chain(below.0.keys()).cloned().collect();
    paths.into_iter().filter(|path| strip(all, path) != strip(below, path)).collect()
}

pub fn is_within(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

pub fn run(
    name: &str,
    count: u64,
    steps: usize,
    options: MemOptions,
    check: impl Fn(&Case, u64) -> Result<(), String>,
) {
    run_on(name, count, |seed| case(seed, options, steps), check);
}

/// As [`run`], with other branches.
pub fn run_on(name: &str, count: u64, case: impl Fn(u64) -> Case, check: impl Fn(&Case, u64) -> Result<(), String>) {
    let mut report = Report::default();
    for seed in seeds(count) {
        let case = case(seed);
        if case.branches.len() < 2 {
            continue;
        }
        report.record(|| format!("seed {seed}"), check(&case, seed).map_err(|e| format!("{e}{}", case.dump())));
    }
    report.finish(name);
}

pub fn trace(case: &Case, what: &str) {
    if testkit::number("STRATA_TRACE").is_some() {
        println!("{what}: {}", case.dump());
        for change in case.open().changes().unwrap_or_default() {
            println!(
                "    {:?} {} {:?}",
                change.kind,
                change.path.escape_ascii(),
                change.from.map(|f| f.escape_ascii().to_string())
            );
        }
    }
}

/// Removes the times of directories: those of an interrupted step may remain.
pub fn without_times(mut dump: Dump) -> Dump {
    dump.0.values_mut().filter(|node| node.kind == vnode::Kind::Directory).for_each(|node| node.mtime = None);
    dump
}

pub fn committed(case: &Case, before: &Dump) -> Result<(), String> {
    same("the union after the commit", &case.view(0)?, before)?;
    same("the branches below after the commit", &case.view(1)?, before)?;
    emptied(case)
}

/// Checks that a branch is empty.
pub fn is_empty(case: &Case, at: usize) -> Result<(), String> {
    let dump = Dump::of(&*case.branches[at].without_faults()).unwrap();
    let is_left = |path: &&Vec<u8>| !path.is_empty();
    let left: Vec<_> = dump.0.keys().filter(is_left).map(|p| p.escape_ascii().to_string()).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("branch {at} still has {left:?}")) }
}

pub fn emptied(case: &Case) -> Result<(), String> {
    is_empty(case, 0)?;
    let temps = case.branches[1..].iter().map(|fs| Dump::of(&**fs).unwrap());
    let temps: Vec<_> =
        temps.flat_map(|dump| dump.0.into_keys()).filter(|p| p.windows(8).any(|w| w == b".wh.tmp.")).collect();
    if temps.is_empty() { Ok(()) } else { Err(format!("temporary files remain: {temps:?}")) }
}

/// Selects some of the changes.
pub fn some(changes: &[Change], rng: &mut Rng) -> Selection {
    Selection::of(changes.iter().filter(|_| rng.one_in(3)).map(|c| c.path.clone()))
}

pub fn lose() -> MemOptions {
    MemOptions { lose_data: true, ..MemOptions::default() }
}
