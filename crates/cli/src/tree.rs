//! The tree of layers that forms a stack: layers over one directory, or over branches, which can be
//! stacks themselves.
//!
//! It is built in three steps: [`Tree::of`] parses the options, [`Tree::find`] resolves and
//! compares the directories, and [`Tree::open`] opens them and assembles the layers.

use crate::exit::{Exit, Failure};
use crate::host_dir::{self, HostDir, Role};
use crate::leaf::{Leaf, LeafOptions, OpenFailure};
use crate::report::{Below, Part};
use core::time::Duration;
use hostfs::HostFs;
use meter::{Counts, Meter};
use rustix::io::Errno;
use stack::spec::{At, BottomSpec, BranchSpec, LayerSpec, LowerSpec};
use stack::{Branch, BranchMode, Branches, Build, LiveBranches, Make, Needs, Reopened, Settings, Situation, StackSpec};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use vnode::Layer;

/// The context in which a stack is checked.
#[derive(Clone, Copy, Debug)]
pub struct TreeContext {
    /// The role of the directory at the bottom.
    pub role: Role,
    /// Whether the user described the whole stack, so that messages must name the layer.
    pub in_words: bool,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Constraints on a stack that is a branch.
    pub branch: BranchRules,
    /// Whether operations are counted and timed.
    pub metered: bool,
    /// The process in whose mount namespace the directories are found; `None` for this one.
    pub caller_pid: Option<u32>,
}

/// Constraints that the layers above impose on a stack that is a branch.
#[derive(Clone, Copy, Debug, Default)]
pub struct BranchRules {
    /// It is never changed.
    pub never_changed: bool,
    /// No other server may write to its directories at the same time.
    pub claimed: bool,
    /// Its directories can be unreachable or hang, and are opened on demand.
    pub late: bool,
}

/// Options for opening a stack.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// For its directories.
    pub leaf_options: LeafOptions,
    /// For its layers.
    pub situation: Situation,
}

/// What opening a stack yields besides its layer.
#[derive(Debug, Default)]
pub struct Collected {
    /// The directories that are open for the life of the mount.
    pub hosts: Vec<Host>,
    /// The branches of the layer over branches, if they can be changed while it is in use.
    pub live: Option<LiveFanOut>,
}

/// An open directory.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its layer. A weak reference, so that the directory is closed when its branch is removed.
    pub layer: Weak<HostFs>,
    /// Whether it is changed.
    pub written: bool,
}

/// A layer in use whose branches can be changed.
#[derive(Debug)]
pub struct LiveFanOut {
    /// Changes the branches.
    pub handle: Arc<dyn LiveBranches>,
    /// The directories of each branch, from the left.
    pub hosts: Vec<Vec<Host>>,
}

/// A stack with parsed options.
#[derive(Debug)]
pub struct Tree {
    /// Top first.
    above: Vec<LayerNode>,
    bottom: Bottom,
    /// Whether it is a branch that consists of a plain directory.
    is_branch: bool,
}

/// A layer with its parsed settings.
#[derive(Debug)]
struct LayerNode {
    spec: LayerSpec,
    settings: Settings,
    needs: Needs,
    counts: Option<&'static Counts>,
}

/// The bottom of a stack.
#[derive(Debug)]
enum Bottom {
    Directory { leaf: Leaf, mode: &'static str, counts: Option<&'static Counts> },
    Branches(FanOut),
}

/// A branch: its mode, and what it consists of.
pub type BranchTree = (BranchMode, Arc<Tree>);

/// A layer over branches, and its branches.
#[derive(Debug)]
struct FanOut {
    layer: LayerNode,
    declared: &'static Branches,
    branches: Vec<BranchTree>,
}

impl Tree {
    /// Parses the options of all layers. Accesses no directory.
    ///
    /// # Errors
    /// Names the layer, the option and the reason.
    pub fn of(spec: StackSpec, context: &TreeContext) -> Result<Self, Failure> {
        let above = spec.layers.into_iter().map(|layer| LayerNode::of(layer, context));
        let above = above.collect::<Result<Vec<_>, _>>()?;
        let bottom = match spec.bottom {
            BottomSpec::Directory { path, read_only } => {
                let read_only =
                    read_only || context.branch.never_changed || above.iter().any(|layer| layer.needs.read_only);
                let counts = context.metered.then(|| Counts::leaked("directory"));
                let mode = if read_only { "ro" } else { "rw" };
                let sole = above.iter().find(|layer| layer.needs.sole_user).map(|layer| layer.spec.kind.name);
                let leaf = leaf(path, read_only, context)?.used_by_one(sole);
                if above.iter().any(|layer| layer.needs.sees_changes) {
                    leaf.expect_changes();
                }
                Bottom::Directory { leaf, mode, counts }
            }
            BottomSpec::Branches(layer, branches) => Bottom::Branches(FanOut::of(layer, branches, context)?),
        };
        Ok(Self { above, bottom, is_branch: false })
    }

    /// Parses the options of a branch of a layer that declares its branches as `declared`.
    /// `context` is that of the layer's stack.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn branch(
        lower: LowerSpec,
        mode: BranchMode,
        declared: &Branches,
        context: &TreeContext,
    ) -> Result<Self, Failure> {
        let rules = BranchRules {
            never_changed: context.branch.never_changed || !mode.writes(),
            claimed: mode.writes(),
            late: context.branch.late || matches!(declared.make, Make::Reopened(_)),
        };
        let role = if context.role == Role::Argument { Role::Argument } else { Role::Branch };
        let context = &TreeContext { role, in_words: true, branch: rules, ..*context };
        let path = match lower {
            LowerSpec::Stack(stack) => return Self::of(*stack, context),
            LowerSpec::Directory(path) => path,
        };
        let leaf = leaf(path, context.branch.never_changed, context)?;
        let bottom = Bottom::Directory { leaf, mode: mode.name, counts: None };
        Ok(Self { above: Vec::new(), bottom, is_branch: true })
    }

    /// Resolves the directories and checks that they can be used together. Changes nothing.
    ///
    /// # Errors
    /// Names the directory, the reason and the remedy.
    pub fn find(&self) -> Result<(), Failure> {
        let leaves = self.leaves();
        leaves.iter().try_for_each(|leaf| leaf.find())?;
        let mut uses = Vec::new();
        self.collect_uses(&[], &mut uses);
        uses.retain(|leaf_use| leaf_use.leaf.place().is_some());
        let places: Vec<_> = uses.iter().filter_map(|leaf_use| leaf_use.leaf.place()).collect();
        if places.len() > 1 {
            let common = |a: usize, b: usize| match (uses.get(a), uses.get(b)) {
                (Some(a), Some(b)) => a.may_share_with(b),
                _ => false,
            };
            host_dir::check_no_overlap(&places, common)?;
        }
        check_late(&leaves)?;
        self.check_writable()
    }

    /// Checks that the directory that receives the changes of a layer over branches is writable.
    fn check_writable(&self) -> Result<(), Failure> {
        let Bottom::Branches(fan_out) = &self.bottom else { return Ok(()) };
        for (i, (mode, tree)) in fan_out.branches.iter().enumerate() {
            if i == 0 && mode.writes() && fan_out.declared.first_must_be_writable {
                tree.first_leaf().and_then(Leaf::place).map_or(Ok(()), HostDir::check_writable)?;
            }
            tree.check_writable()?;
        }
        Ok(())
    }

    /// Returns the directory that receives changes.
    fn first_leaf(&self) -> Option<&Leaf> {
        match &self.bottom {
            Bottom::Directory { leaf, .. } => Some(leaf),
            Bottom::Branches(fan_out) => fan_out.branches.first().and_then(|(_, tree)| tree.first_leaf()),
        }
    }

    /// Collects all directories at the bottom, with the alternatives that they belong to.
    fn collect_uses<'a>(&'a self, within: &[(*const FanOut, usize)], uses: &mut Vec<LeafUse<'a>>) {
        match &self.bottom {
            Bottom::Directory { leaf, .. } => uses.push(LeafUse { leaf, within: within.to_vec() }),
            Bottom::Branches(fan_out) => {
                for (number, (_, tree)) in fan_out.branches.iter().enumerate() {
                    let mut within = within.to_vec();
                    if fan_out.declared.alternatives {
                        within.push((core::ptr::from_ref(fan_out), number));
                    }
                    tree.collect_uses(&within, uses);
                }
            }
        }
    }

    /// Returns all directories at the bottom.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Leaf> {
        match &self.bottom {
            Bottom::Directory { leaf, .. } => vec![leaf],
            Bottom::Branches(fan_out) => fan_out.branches.iter().flat_map(|(_, tree)| tree.leaves()).collect(),
        }
    }

    /// Whether the stack permits no changes, regardless of the mount's flags.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let below = match &self.bottom {
            Bottom::Directory { leaf, .. } => !leaf.is_written(),
            Bottom::Branches(fan_out) => {
                fan_out.layer.needs.read_only || !fan_out.branches.iter().any(|(mode, _)| mode.writes())
            }
        };
        below || self.above.iter().any(|layer| layer.needs.read_only)
    }

    /// Returns the combined requirements of its layers.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let all = self.all_needs();
        let chain = self.above.iter().chain(self.fan_out().map(|fan_out| &fan_out.layer));
        Needs {
            read_only: self.is_read_only(),
            cache: all.iter().filter_map(|needs| needs.cache).min(),
            // A layer over branches assigns its own directory positions, which hides those of its
            // branches.
            narrow_positions: chain.into_iter().any(|layer| layer.needs.narrow_positions),
            sole_user: all.iter().any(|needs| needs.sole_user),
            sees_changes: all.iter().any(|needs| needs.sees_changes),
            warns: all.iter().find_map(|needs| needs.warns),
            asks_passphrase: all.iter().any(|needs| needs.asks_passphrase),
        }
    }

    fn all_needs(&self) -> Vec<Needs> {
        let mut all: Vec<_> = self.above.iter().map(|layer| layer.needs).collect();
        if let Some(fan_out) = self.fan_out() {
            all.push(fan_out.layer.needs);
            all.extend(fan_out.branches.iter().flat_map(|(_, tree)| tree.all_needs()));
        }
        all
    }

    /// Returns the layer over branches at the bottom, if any.
    fn fan_out(&self) -> Option<&FanOut> {
        match &self.bottom {
            Bottom::Directory { .. } => None,
            Bottom::Branches(fan_out) => Some(fan_out),
        }
    }

    /// Returns the name of a layer that forbids mounting the same stack twice at one mount point.
    #[must_use]
    pub fn single_mount_layer(&self) -> Option<&'static str> {
        let chain = self.fan_out().map(|fan_out| &fan_out.layer).into_iter().chain(&self.above);
        chain.map(|layer| layer.spec.kind).find(|kind| kind.traits.once).map(|kind| kind.name)
    }

    /// Returns the parts for the report, top first.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<_> = self.above.iter().map(|layer| layer.part(Vec::new())).collect();
        parts.push(match &self.bottom {
            Bottom::Directory { leaf, mode, counts } => Part {
                name: "directory".to_owned(),
                options: String::new(),
                counts: *counts,
                below: vec![Below::Directory(leaf.describe(mode))],
            },
            Bottom::Branches(fan_out) => {
                fan_out.layer.part(fan_out.branches.iter().map(|(mode, tree)| tree.below(*mode)).collect())
            }
        });
        parts
    }

    /// Returns the layer at the bottom, its declaration of branches, and its branches with their
    /// modes; `None` for a stack over one directory.
    #[must_use]
    pub fn branches(&self) -> Option<(&LayerSpec, &'static Branches, &[BranchTree])> {
        self.fan_out().map(|fan_out| (&fan_out.layer.spec, fan_out.declared, &*fan_out.branches))
    }

    /// Whether it is a branch that consists of a plain directory.
    #[must_use]
    pub const fn is_plain_branch(&self) -> bool {
        self.is_branch
    }

    /// Returns the part for the report of a stack that is a branch.
    #[must_use]
    pub fn below(&self, mode: BranchMode) -> Below {
        match &self.bottom {
            Bottom::Directory { leaf, mode, .. } if self.is_branch => Below::Directory(leaf.describe(mode)),
            _ => Below::Stack(mode.name, self.parts()),
        }
    }

    /// Opens the directories and assembles the layers.
    ///
    /// # Errors
    /// Names the step and the directory that failed.
    pub fn open(&self, opening: &Opening, collected: &mut Collected) -> Result<Arc<dyn Layer>, OpenFailure> {
        let mut layer = match &self.bottom {
            Bottom::Directory { leaf, counts, .. } => {
                let host = leaf.open(&opening.leaf_options)?;
                collected.hosts.push(Host { layer: Arc::downgrade(&host), written: leaf.is_written() });
                metered(host, *counts)
            }
            Bottom::Branches(fan_out) => metered(fan_out.open(opening, collected)?, fan_out.layer.counts),
        };
        for above in self.above.iter().rev() {
            layer = metered(above.put_on(layer)?, above.counts);
        }
        Ok(layer)
    }

    /// Returns the identity of a branch: the path of a directory, or all paths of a stack with the
    /// names of its layers. Options are left out, so that a branch keeps its identity if they
    /// change.
    #[must_use]
    pub fn name(&self) -> PathBuf {
        let name = self.name_in_words();
        let name = if self.is_branch { name } else { [b"[", &name[..], b"]"].concat() };
        OsString::from_vec(name).into()
    }

    fn name_in_words(&self) -> Vec<u8> {
        let above = self.above.iter().flat_map(|layer| [layer.spec.kind.name.as_bytes(), b" / "]);
        let mut name = above.collect::<Vec<_>>().concat();
        match &self.bottom {
            Bottom::Directory { leaf, .. } => name.extend(leaf.path().as_os_str().as_bytes()),
            Bottom::Branches(fan_out) => {
                name.extend([fan_out.layer.spec.kind.name, ",", fan_out.declared.option, "="].concat().into_bytes());
                let names: Vec<_> =
                    fan_out.branches.iter().map(|(_, tree)| tree.name().into_os_string().into_vec()).collect();
                name.extend(names.join(&b':'));
            }
        }
        name
    }
}

/// A directory at the bottom, and where it is used.
struct LeafUse<'a> {
    leaf: &'a Leaf,
    /// The layers over alternatives above it, outermost first, and which of the alternatives it
    /// belongs to.
    within: Vec<(*const FanOut, usize)>,
}

impl LeafUse<'_> {
    /// Whether both may be the same directory: in different alternatives, and not both changed.
    fn may_share_with(&self, other: &Self) -> bool {
        let differ = |(mine, theirs): (&(*const FanOut, usize), &(*const FanOut, usize))| {
            mine.0 == theirs.0 && mine.1 != theirs.1
        };
        let written = (self.leaf.is_written(), other.leaf.is_written());
        if written == (true, true) || !self.within.iter().zip(&other.within).any(differ) {
            return false;
        }
        // The other alternative changes it, which must be visible at once.
        if written.0 {
            other.leaf.expect_changes();
        }
        if written.1 {
            self.leaf.expect_changes();
        }
        true
    }
}

impl LayerNode {
    fn of(spec: LayerSpec, context: &TreeContext) -> Result<Self, Failure> {
        let name = spec.kind.name;
        let wrong = |wrong: String| {
            // For a single layer over branches, the layer's options are the mount's options.
            let alone = !context.in_words && spec.kind.branches().is_some();
            let named = if alone { wrong } else { format!("{name}: {wrong}") };
            Failure::usage(in_branch(&spec.at, &named))
        };
        let settings = spec.given.settings(spec.kind.branches()).map_err(wrong)?;
        let needs = (spec.kind.traits.needs)(&settings).map_err(wrong)?;
        let counts = context.metered.then(|| Counts::leaked(name));
        Ok(Self { spec, settings, needs, counts })
    }

    fn part(&self, below: Vec<Below>) -> Part {
        let (name, options) = (self.spec.kind.name.to_owned(), self.spec.given.show());
        Part { name, options, counts: self.counts, below }
    }

    fn put_on(&self, lower: Arc<dyn Layer>) -> Result<Arc<dyn Layer>, OpenFailure> {
        check_above(&self.spec, &*lower)?;
        let made = self.spec.kind.over(lower, &self.settings);
        made.map_err(|wrong| {
            let exit = if self.names_option(&wrong) { Exit::Usage } else { Exit::Mount };
            refused(&self.spec, exit, &wrong)
        })
    }

    /// Whether the message of a layer is about one of its options: such messages begin with
    /// `NAME=`, `NAME:` or `option NAME=`.
    fn names_option(&self, wrong: &str) -> bool {
        let wrong = wrong.strip_prefix("option ").unwrap_or(wrong);
        let mut names = self.spec.kind.options.iter().map(|option| option.name);
        names.any(|name| wrong.strip_prefix(name).is_some_and(|rest| rest.starts_with(['=', ':'])))
    }
}

impl FanOut {
    fn of(spec: LayerSpec, branches: Vec<BranchSpec>, context: &TreeContext) -> Result<Self, Failure> {
        let kind = spec.kind;
        let Build::Branches(declared) = kind.build else {
            return Err(Failure::usage(format!("{}: not a layer over branches", kind.name)));
        };
        let layer = LayerNode::of(spec, context)?;
        let at = &layer.spec.at;
        if branches.is_empty() {
            return Err(Failure::usage(in_branch(at, &no_branches(kind.name, declared, context.in_words))));
        }
        let modes =
            modes(&branches, declared, context).map_err(|failure| failure.map(|wrong| in_branch(at, &wrong)))?;
        let branches = branches
            .into_iter()
            .zip(modes)
            .map(|(branch, mode)| Ok((mode, Arc::new(Tree::branch(branch.lower, mode, declared, context)?))));
        let branches = branches.collect::<Result<_, Failure>>()?;
        let fan_out = Self { layer, declared, branches };
        fan_out.check_writes()?;
        fan_out.check_named_once()?;
        Ok(fan_out)
    }

    /// Refuses a writable mode for a branch that permits no changes.
    fn check_writes(&self) -> Result<(), Failure> {
        let dead = self.branches.iter().zip(1..).find(|((mode, tree), _)| mode.writes() && tree.is_read_only());
        let Some(((mode, _), number)) = dead else { return Ok(()) };
        let noun = self.declared.noun.0;
        let wrong = format!("{noun} {number}: is {}, but its stack permits no changes; mark it =ro", mode.name);
        Err(Failure::mount(in_branch(&self.layer.spec.at, &wrong)))
    }

    /// Refuses duplicate names among branches that are opened late; others are compared as
    /// directories.
    fn check_named_once(&self) -> Result<(), Failure> {
        if matches!(self.declared.make, Make::Opened(_)) {
            return Ok(());
        }
        let names: Vec<_> = self.branches.iter().map(|(_, tree)| tree.name()).collect();
        let twice = names.iter().enumerate().find(|(i, name)| names.iter().take(*i).any(|other| other == *name));
        match twice {
            None => Ok(()),
            Some((_, name)) => {
                let noun = self.declared.noun.0;
                Err(Failure::usage(format!("{noun} {}: given twice; remove one", name.display())))
            }
        }
    }

    /// Returns the options for opening the branches. One alternative can change a directory of
    /// another, which then must not cache what it knows of it.
    fn opening_below(&self, opening: &Opening) -> Opening {
        let cache = if self.declared.alternatives { Some(Duration::ZERO) } else { opening.situation.cache };
        Opening { situation: Situation { cache, ..opening.situation }, ..*opening }
    }

    fn open(&self, opening: &Opening, collected: &mut Collected) -> Result<Arc<dyn Layer>, OpenFailure> {
        let refused = |wrong| OpenFailure { failure: Failure::mount(wrong), errno: Errno::IO, is_directory: false };
        let (settings, situation) = (&self.layer.settings, &opening.situation);
        let below = self.opening_below(opening);
        match self.declared.make {
            Make::Opened(make) => {
                let mut hosts = Vec::with_capacity(self.branches.len());
                let opened = self.branches.iter().map(|(mode, tree)| {
                    let mut collected = Collected::default();
                    let lower = tree.open(&below, &mut collected)?;
                    check_above(&self.layer.spec, &*lower)?;
                    hosts.push(collected.hosts);
                    Ok(Branch { name: tree.name(), mode: *mode, lower })
                });
                let opened = opened.collect::<Result<_, OpenFailure>>()?;
                let made = make(opened, settings, situation).map_err(refused)?;
                collected.hosts.extend(hosts.iter().flatten().cloned());
                collected.live = made.branches.map(|handle| LiveFanOut { handle, hosts });
                Ok(made.layer)
            }
            Make::Reopened(make) => {
                let wrong = Arc::new(OnceLock::new());
                let above = &self.layer.spec;
                let reopened = self.branches.iter().map(|(mode, tree)| reopened(above, (*mode, tree), below, &wrong));
                let made = make(reopened.collect(), settings, situation);
                // An unreachable branch may return, but an invalid option remains invalid.
                match wrong.get() {
                    Some(wrong) => Err(OpenFailure::clone(wrong)),
                    None => made.map(|made| made.layer).map_err(refused),
                }
            }
        }
    }
}

/// Returns the error of a layer that can't be built.
fn refused(spec: &LayerSpec, exit: Exit, wrong: &str) -> OpenFailure {
    let reason = in_branch(&spec.at, &format!("{}: {wrong}", spec.kind.name));
    OpenFailure { failure: Failure { exit, reason }, errno: Errno::IO, is_directory: false }
}

/// Fails if the layer must not lie above `branch`.
fn check_above(spec: &LayerSpec, branch: &dyn Layer) -> Result<(), OpenFailure> {
    spec.kind.check_above(branch.properties()).map_err(|wrong| refused(spec, Exit::Usage, &wrong))
}

/// Returns a branch that the layer `above` opens on demand. If the stack turns out to be invalid,
/// the error is stored in `wrong`.
fn reopened(
    above: &LayerSpec,
    (mode, tree): (BranchMode, &Arc<Tree>),
    opening: Opening,
    wrong: &Arc<OnceLock<OpenFailure>>,
) -> Reopened {
    let (name, tree, wrong, above) = (tree.name(), Arc::clone(tree), Arc::clone(wrong), above.clone());
    let open = move || {
        // Such a branch is never written.
        let opened = tree.open(&opening, &mut Collected::default());
        opened.and_then(|layer| check_above(&above, &*layer).map(|()| layer)).map_err(|refused| {
            if refused.failure.exit == Exit::Usage {
                let _first = wrong.set(refused);
                return Errno::INVAL;
            }
            // The layer reports unreachable directories.
            if !refused.is_directory {
                tracing::debug!("{}", refused.failure);
            }
            refused.errno
        })
    };
    Branch { name, mode, lower: Box::new(open) }
}

fn metered(layer: Arc<dyn Layer>, counts: Option<&'static Counts>) -> Arc<dyn Layer> {
    match counts {
        None => layer,
        Some(counts) => Meter::counting(layer, counts),
    }
}

/// Prefixes a message with its position, if it concerns a branch that is a stack.
fn in_branch(at: &At, wrong: &str) -> String {
    if at.within.is_empty() { wrong.to_owned() } else { format!("{at}: {wrong}") }
}

fn no_branches(name: &str, declared: &Branches, in_words: bool) -> String {
    let Branches { example, noun: (_, several), .. } = declared;
    if in_words {
        format!("{name}: no directories given; add them to the stack, as in `{name},{example}`")
    } else {
        format!("no {several} given; add them with -o {example}; see --help")
    }
}

/// Returns the mode of each branch; unmarked branches get the layer's default.
fn modes(branches: &[BranchSpec], declared: &Branches, context: &TreeContext) -> Result<Vec<BranchMode>, Failure> {
    let (noun, never_changed) = (declared.noun.0, context.branch.never_changed);
    let unmarked = |i| (declared.unmarked)(i, context.read_only || never_changed);
    let modes: Vec<_> =
        branches.iter().enumerate().map(|(i, branch)| branch.mode.unwrap_or_else(|| unmarked(i))).collect();
    let mut written = modes.iter().zip(1..).filter(|(mode, _)| mode.writes()).peekable();
    let Some((mode, number)) = written.peek() else { return Ok(modes) };
    if never_changed {
        return Err(Failure::mount(format!(
            "{noun} {number}: is {}, but its stack is read-only; mark it =ro",
            mode.name
        )));
    }
    if declared.first_must_be_writable && *number != 1 {
        let first = branches.first().map(|branch| branch.lower.to_string()).unwrap_or_default();
        return Err(Failure::mount(format!(
            "{noun} {first}: the first {noun} must be rw if another one is; mark it =rw, or mark all others =ro"
        )));
    }
    Ok(modes)
}

fn leaf(path: PathBuf, read_only: bool, context: &TreeContext) -> Result<Leaf, Failure> {
    if !context.branch.late {
        return Ok(Leaf::new(context.role, path, read_only)
            .claimed(context.branch.claimed)
            .of_caller(context.caller_pid));
    }
    Leaf::late(&path).map_err(|error| Failure::usage(format!("directory {}: {error}", path.display())))
}

/// Refuses directories that overlap with a writable one. Directories that are opened late can't be
/// accessed yet, so only their paths are compared.
fn check_late(leaves: &[&Leaf]) -> Result<(), Failure> {
    for late in leaves.iter().filter(|leaf| leaf.place().is_none()) {
        let overlaps = |path: &Path| path.starts_with(late.path()) || late.path().starts_with(path);
        let written = leaves.iter().filter(|leaf| leaf.is_written() && leaf.place().is_some());
        if let Some(other) = written.into_iter().find(|leaf| overlaps(leaf.path())) {
            let (late, other) = (late.path().display(), other.path().display());
            return Err(Failure::mount(format!(
                "directory {late}: overlaps with the writable branch {other}; remove one of them"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::registry::Registry;
    use core::time::Duration;
    use std::fs;
    use vnode::{Cx, Name};

    fn context(read_only: bool) -> TreeContext {
        TreeContext {
            role: Role::Bottom,
            in_words: true,
            read_only,
            branch: BranchRules::default(),
            metered: true,
            caller_pid: None,
        }
    }

    fn tree(words: &str) -> Tree {
        let spec = stack::spec::read(words.as_bytes(), &Registry).unwrap();
        Tree::of(spec, &context(false)).unwrap_or_else(|failure| panic!("{words}: {failure}"))
    }

    #[test]
    fn requirements_of_all_layers_are_combined() {
        let nested = tree("unionfs,dirs=[unionfs,whiteouts=write,ino=32,dirs=/a]=ro:[snoopfs / /b]=ro").needs();
        assert_eq!((nested.cache, nested.warns), (Some(Duration::ZERO), Some("/var/log/snoopfs.log")));
        // The upper union assigns its own directory positions.
        assert!(!nested.narrow_positions && nested.read_only);
        let chain = tree("wrapfs / rot13 / unionfs,ino=32,dirs=/a:/b").needs();
        assert!(chain.narrow_positions && !chain.read_only && chain.cache.is_none() && chain.warns.is_none());
    }

    #[test]
    fn read_only_stacks_are_recognized() {
        for (words, read_only) in [
            ("rot13 / /a", false),
            ("rot13 / /a,ro", true),
            ("unionfs,dirs=/a:/b", false),
            ("unionfs,dirs=/a=ro:/b", true),
            ("unionfs,dirs=[rot13 / /a]:/b", false),
            ("unionfs,dirs=[unionfs,dirs=/a:/b]:/c", false),
            ("rot13 / lbfs,dirs=/a:/b", true),
        ] {
            assert_eq!(tree(words).is_read_only(), read_only, "{words}");
        }
        // Unmarked branches of a read-only mount are read-only.
        let spec = stack::spec::read(b"unionfs,dirs=[unionfs,dirs=/a:/b]:/c", &Registry).unwrap();
        assert!(Tree::of(spec, &context(true)).unwrap().is_read_only());
    }

    #[test]
    fn only_directories_that_receive_changes_are_writable() {
        let written = |words: &str| -> Vec<PathBuf> {
            let tree = tree(words);
            let leaves = tree.leaves().into_iter().filter(|leaf| leaf.is_written());
            leaves.map(|leaf| leaf.path().to_owned()).collect()
        };
        let nested = "unionfs,dirs=[rot13 / unionfs,dirs=/a:/b=rw:/c]=rw:[xor / /d]=ro:[unionfs,dirs=/e:/f]:/g=rw";
        assert_eq!(written(nested), ["/a", "/b", "/g"].map(PathBuf::from));
        assert!(written("lbfs,dirs=/a:[rot13 / /b]").is_empty());
    }

    #[test]
    fn a_branch_is_identified_by_its_directories_and_layers() {
        let names = |words: &str| -> Vec<String> {
            let tree = tree(words);
            tree.fan_out()
                .unwrap()
                .branches
                .iter()
                .map(|(_, tree)| tree.name().to_string_lossy().into_owned())
                .collect()
        };
        let words = "unionfs,dirs=/a:[xor,key=7/[/b]]:[zstd,level=9 / unionfs,delete=all,dirs=/c:[rot13/[/d,ro]]]";
        assert_eq!(names(words), ["/a", "[xor / /b]", "[zstd / unionfs,dirs=/c:[rot13 / /d]]"]);
        assert_eq!(
            (tree(words).single_mount_layer(), tree("rot13 / /a").single_mount_layer()),
            (Some("unionfs"), None)
        );
    }

    #[test]
    fn counters_persist_when_a_stack_is_reopened() {
        let dir = testkit::TempDir::new();
        fs::write(dir.join("Uryyb"), "text").unwrap();
        let tree = tree(&format!("lbfs,dirs=/nonexistent/replica:[rot13 / {}]", dir.display()));
        tree.find().unwrap();
        let situation = Situation { passthrough: None, may_chown: true, cache: None };
        let opening = Opening { leaf_options: LeafOptions::of(&Options::default()), situation };
        let wrong = Arc::default();
        let branches = &tree.fan_out().unwrap().branches;
        let above = &tree.fan_out().unwrap().layer.spec;
        let [missing, present] = [0, 1].map(|i| reopened(above, (branches[i].0, &branches[i].1), opening, &wrong));
        assert_eq!(((missing.lower)().map(|_| ()), wrong.get().is_none()), (Err(Errno::NOENT), true));
        for lookups in 1..=3 {
            let layer = (present.lower)().unwrap();
            let name = Name::new(b"Hello").unwrap();
            assert!(layer.root().lookup(&Cx::internal(0, 0), name).unwrap().is_some());
            let counts = branches[1].1.above[0].counts.unwrap();
            assert_eq!(counts.of(meter::Operation::Lookup).done, lookups);
            assert!(layer.properties().read_only);
        }
    }
}
