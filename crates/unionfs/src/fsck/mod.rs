//! An offline check of a set of branches, and repairs: docs/fsck.md.
//!
//! The check looks at every directory of every branch. What a branch's directory merges from the
//! branches to its right depends on that directory and those branches only: not on the branches to
//! its left, and not on the name under which users see it. So each directory is checked with its
//! *tail*, the parts to its right that it would merge. This finds whiteouts and marks that have no
//! effect even where a redirect leads to the directory, or where nothing does. Tails come from the
//! union's own lookup, on a union of the same branches in which all are read-only.
//!
//! Branches are checked from right to left, so that a repair never invalidates a tail. Each repair
//! is one step that changes the view at most, in the order of the operations of a union, so a crash
//! leaves nothing new to repair. The times of the changed directories are restored.
//!
//! | what is checked | file |
//! |---|---|
//! | the kinds of findings and their repairs | `finding` |
//! | one directory: whiteouts, marks, reserved names | `directory` |
//! | redirects | `redirects` |
//! | metacopies | `metacopies` |
//! | the union's own files in a branch's root | `own`, `logscan` |
//! | interrupted snapshots | `snapshots` |
//! | hard links | `links` |
//! | the place of a directory | `place` |
//! | the steps of repairs; undoing them | `repair`, `undo` |

mod directory;
mod finding;
mod links;
mod logscan;
mod metacopies;
mod own;
mod place;
mod redirects;
mod repair;
mod snapshots;
mod undo;

pub use finding::{Consent, Finding, Problem, Repair, Severity};
pub use undo::{Undone, undo};

use crate::aside::Aside;
use crate::build::Unionfs;
use crate::node::Core;
use crate::op::Op;
use crate::options::{Branch, BuildError, Mode};
use crate::set::BranchSet;
use directory::Directory;
use redirects::Targets;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Number of times that a check may begin again after a repair that changed the view.
const ROUNDS: u32 = 4;

/// The administrator: decides about repairs, and learns what was found.
pub trait Inspector {
    /// Reports a finding. Returns whether to repair it. The answer has an effect only if
    /// [`Finding::repair`] returns a repair.
    fn found(&mut self, finding: &Finding) -> bool;

    /// Reports the result of a repair.
    fn repaired(&mut self, finding: &Finding, result: Result<()>);

    /// Reports an object that could not be checked.
    fn not_checked(&mut self, branch: &Path, path: &[u8], errno: Errno);

    /// Reports that a repair changed what lookups find. The check begins again, so findings so far
    /// are reported once more if they remain.
    fn restarts(&mut self);

    /// Reports progress: the numbers of directories that were checked, and of those that are known
    /// to follow. Returns false to stop the check.
    fn progress(&mut self, checked: u64, known: u64) -> bool;
}

/// Why a check ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckError {
    /// The union could not be built.
    Build(BuildError),
    /// [`Inspector::progress`] returned false.
    Stopped,
}

impl std::fmt::Display for CheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Build(error) => error.fmt(f),
            Self::Stopped => write!(f, "stopped"),
        }
    }
}

impl std::error::Error for CheckError {}

impl From<BuildError> for CheckError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

/// Checks the branches of a union that is not mounted, and repairs what `inspector` agrees to. Only
/// read-write branches are changed.
///
/// # Errors
/// The branches can't form a union, or the check was stopped. Objects that can't be read are
/// reported to `inspector` instead.
pub fn check(branches: &[Branch], inspector: &mut dyn Inspector) -> std::result::Result<(), CheckError> {
    crate::change::check(branches.iter().map(|branch| (&*branch.path, branch.mode)))?;
    branches.iter().try_for_each(crate::change::check_root)?;
    let cx = Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut asides: Vec<Aside> = branches.iter().map(|_| Aside::default()).collect();
    for _ in 0..ROUNDS {
        snapshots::check(&cx, branches, inspector);
        let log_is_usable = own::check_logs(&cx, branches, &mut asides, inspector)?;
        let union = Unionfs::inspect(branches)?;
        let core = union.core();
        let set = core.branches.get();
        let op = Op::new(&cx, &set);
        let mut checker = Checker {
            core,
            op,
            branches,
            asides: &mut asides,
            inspector,
            targets: Targets::default(),
            checked: 0,
            known: 0,
            uncountable: !log_is_usable,
            restart: false,
        };
        checker.run()?;
        if !checker.restart {
            return Ok(());
        }
        checker.inspector.restarts();
    }
    Ok(())
}

/// A check under way.
struct Checker<'a> {
    core: &'a Arc<Core>,
    op: Op<'a>,
    /// The branches with their modes.
    branches: &'a [Branch],
    asides: &'a mut [Aside],
    inspector: &'a mut dyn Inspector,
    /// The directories that redirects lead to.
    targets: Targets,
    checked: u64,
    known: u64,
    /// The names of files can't be counted: a directory is shown in two places, where there may be
    /// very many names, an object could not be read, or the log or an index is ignored.
    uncountable: bool,
    /// A repair changed what lookups find.
    restart: bool,
}

impl Checker<'_> {
    fn run(&mut self) -> std::result::Result<(), CheckError> {
        for at in (0..self.branches.len()).rev() {
            self.own_directories(at);
            self.branch(at)?;
        }
        self.link_counts()
    }

    /// Checks all directories of a branch.
    fn branch(&mut self, at: usize) -> std::result::Result<(), CheckError> {
        let Some(member) = self.set().order.get(at) else { return Ok(()) };
        let mut stack = vec![member.top()];
        stack.extend(self.set().roots_right_of(member.id));
        let root = Rc::new(Directory::root(at, stack));
        let mut todo: Vec<(Rc<Directory>, Box<[u8]>)> = self.directory(&root);
        self.known += 1 + todo.len() as u64;
        while let Some((parent, name)) = todo.pop() {
            self.checked += 1;
            if !self.inspector.progress(self.checked, self.known) {
                return Err(CheckError::Stopped);
            }
            match self.enter(&parent, &name) {
                Ok(Some(directory)) => {
                    let below = self.directory(&Rc::new(directory));
                    self.known += below.len() as u64;
                    todo.extend(below);
                }
                Ok(None) => {}
                Err(errno) => self.not_checked(at, &parent.path_of(&name), errno),
            }
        }
        self.checked += 1;
        Ok(())
    }

    fn set(&self) -> &BranchSet {
        self.op.set
    }

    fn not_checked(&mut self, at: usize, path: &[u8], errno: Errno) {
        let branch = self.branches.get(at).map_or_else(PathBuf::new, |branch| branch.path.clone());
        self.inspector.not_checked(&branch, path, errno);
        self.uncountable = true;
    }

    /// Reports a finding on a branch, and repairs it if the inspector agrees.
    fn found(&mut self, at: usize, spot: Spot<'_>, repair: impl FnOnce(&mut Self) -> Result<()>) {
        let Some(branch) = self.branches.get(at) else { return };
        let finding = spot.finding(branch);
        self.uncountable |=
            matches!(finding.problem, Problem::RedirectShared | Problem::TooComplex | Problem::IndexForeign);
        if self.inspector.found(&finding) && finding.repair().is_some() {
            let result = repair(self);
            self.inspector.repaired(&finding, result);
        }
    }
}

/// Where something was found, and what.
#[derive(Clone, Copy)]
struct Spot<'a> {
    problem: Problem,
    path: &'a [u8],
    detail: &'a str,
    obstacle: Option<&'static str>,
}

impl<'a> Spot<'a> {
    fn new(problem: Problem, path: &'a [u8]) -> Self {
        Self { problem, path, detail: "", obstacle: None }
    }

    fn detail(self, detail: &'a str) -> Self {
        Self { detail, ..self }
    }

    fn obstacle(self, obstacle: Option<&'static str>) -> Self {
        Self { obstacle, ..self }
    }

    fn finding(self, branch: &Branch) -> Finding {
        let read_only = (branch.mode != Mode::ReadWrite).then_some("the branch is read-only");
        Finding {
            problem: self.problem,
            branch: branch.path.clone(),
            path: self.path.to_vec(),
            detail: self.detail.to_owned(),
            obstacle: self.obstacle.or(read_only),
        }
    }
}
