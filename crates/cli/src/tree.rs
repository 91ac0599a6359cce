//! A stack as it is checked and built: layers over a directory, or over branches.
//!
//! What options say is read first ([`Tree::of`]), then the directories are found and compared ([`Tree::find`]), and only then is
//! anything opened ([`Tree::open`]).

use crate::exit::Failure;
use crate::leaf::{Leaf, Manner, Refused};
use crate::place::{self, Place, Role};
use crate::report::{Below, Part};
use hostfs::HostFs;
use meter::{Counts, Meter};
use rustix::io::Errno;
use stack::list::BranchSpec;
use stack::spec::{BottomSpec, LayerSpec};
use stack::{Branch, BranchMode, Branches, Build, Make, Needs, Reopened, Settings, Situation, StackSpec};
use std::path::PathBuf;
use std::sync::Arc;
use vnode::Layer;

/// What a stack is checked for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// What the directory at the bottom is for.
    pub role: Role,
    /// Does the stack stand there in words? Then what is wrong is said with the name of the layer.
    pub in_words: bool,
    /// Is it mounted read-only?
    pub read_only: bool,
    /// Are operations counted and timed?
    pub metered: bool,
}

/// How a stack is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Its directories.
    pub manner: Manner,
    /// What its layers may have to know.
    pub situation: Situation,
}

/// A stack whose options were read.
#[derive(Debug)]
pub struct Tree {
    /// Top first.
    above: Vec<Above>,
    bottom: Bottom,
}

/// A layer over one other.
#[derive(Debug)]
struct Above {
    spec: LayerSpec,
    settings: Settings,
    needs: Needs,
    counts: Option<&'static Counts>,
}

/// What a stack stands on.
#[derive(Debug)]
enum Bottom {
    Directory { leaf: Leaf, mode: &'static str, counts: Option<&'static Counts> },
    Branches(Fan),
}

/// A layer over branches, and these.
#[derive(Debug)]
struct Fan {
    layer: Above,
    declared: &'static Branches,
    branches: Vec<(BranchMode, Arc<Tree>)>,
}

impl Tree {
    /// Reads what the options say. Touches nothing.
    ///
    /// # Errors
    /// Names the layer, the option and what is wrong with it.
    pub fn of(spec: StackSpec, purpose: &Purpose) -> Result<Self, Failure> {
        let above = spec.layers.into_iter().map(|layer| Above::of(layer, purpose.metered, true));
        let above = above.collect::<Result<_, _>>()?;
        let bottom = match spec.bottom {
            BottomSpec::Directory { path, read_only } => {
                let counts = purpose.metered.then(|| Counts::leaked("directory"));
                let mode = if read_only { "ro" } else { "rw" };
                Bottom::Directory { leaf: Leaf::new(purpose.role, path, read_only), mode, counts }
            }
            BottomSpec::Branches(layer, branches) => Bottom::Branches(Fan::of(layer, branches, purpose)?),
        };
        Ok(Self { above, bottom })
    }

    /// A branch that is a directory.
    fn branch(leaf: Leaf, mode: BranchMode) -> Self {
        Self { above: Vec::new(), bottom: Bottom::Directory { leaf, mode: mode.name, counts: None } }
    }

    /// Finds the directories, and whether they can be used together. Changes nothing.
    ///
    /// # Errors
    /// Names the directory, why it can't be used and what to do about it.
    pub fn find(&self) -> Result<(), Failure> {
        let leaves = self.leaves();
        leaves.iter().try_for_each(|leaf| leaf.find())?;
        let places: Vec<_> = leaves.iter().filter_map(|leaf| leaf.place()).collect();
        if places.len() > 1 {
            place::check_apart(&places)?;
        }
        self.check_writable()
    }

    /// The directory that takes the changes of a layer over branches must take some.
    fn check_writable(&self) -> Result<(), Failure> {
        let Bottom::Branches(fan) = &self.bottom else { return Ok(()) };
        match fan.branches.first() {
            Some((mode, first)) if mode.writes() && fan.declared.first_takes_changes => {
                first.leaves().first().and_then(|leaf| leaf.place()).map_or(Ok(()), Place::check_writable)
            }
            _ => Ok(()),
        }
    }

    /// All directories at the bottom.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Leaf> {
        match &self.bottom {
            Bottom::Directory { leaf, .. } => vec![leaf],
            Bottom::Branches(fan) => fan.branches.iter().flat_map(|(_, tree)| tree.leaves()).collect(),
        }
    }

    /// Can nothing be changed through it, whatever the mount's flags say?
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let below = match &self.bottom {
            Bottom::Directory { leaf, .. } => !leaf.is_written(),
            Bottom::Branches(fan) => fan.layer.needs.read_only || !fan.branches.iter().any(|(mode, _)| mode.writes()),
        };
        below || self.above.iter().any(|layer| layer.needs.read_only)
    }

    /// What its layers need of the mount.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let all = self.all_needs();
        let chain = self.above.iter().chain(self.fan().map(|fan| &fan.layer));
        Needs {
            read_only: self.is_read_only(),
            cache: all.iter().filter_map(|needs| needs.cache).min(),
            // A layer over branches has positions of its own.
            narrow_positions: chain.into_iter().any(|layer| layer.needs.narrow_positions),
            warns: all.iter().find_map(|needs| needs.warns),
        }
    }

    fn all_needs(&self) -> Vec<Needs> {
        let mut all: Vec<_> = self.above.iter().map(|layer| layer.needs).collect();
        if let Some(fan) = self.fan() {
            all.push(fan.layer.needs);
            all.extend(fan.branches.iter().flat_map(|(_, tree)| tree.all_needs()));
        }
        all
    }

    /// The layer over branches that it stands on.
    fn fan(&self) -> Option<&Fan> {
        match &self.bottom {
            Bottom::Directory { .. } => None,
            Bottom::Branches(fan) => Some(fan),
        }
    }

    /// The name of the layer that makes it a mistake to mount the same stack at one place twice.
    #[must_use]
    pub fn once(&self) -> Option<&'static str> {
        let chain = self.fan().map(|fan| &fan.layer).into_iter().chain(&self.above);
        chain.map(|layer| layer.spec.kind).find(|kind| kind.traits.once).map(|kind| kind.name)
    }

    /// What it is made of, top first: as far as it was opened.
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
            Bottom::Branches(fan) => {
                fan.layer.part(fan.branches.iter().map(|(mode, tree)| tree.below(*mode)).collect())
            }
        });
        parts
    }

    /// The same, as a branch.
    fn below(&self, mode: BranchMode) -> Below {
        let leaf = self.leaves();
        Below::Directory(leaf.first().map(|leaf| leaf.describe(mode.name)).unwrap_or_default())
    }

    /// Opens the directories and puts the layers together. Adds the directories that can be written to `written`.
    ///
    /// # Errors
    /// Names the step and the directory that failed.
    pub fn open(&self, opening: &Opening, written: &mut Vec<Arc<HostFs>>) -> Result<Arc<dyn Layer>, Refused> {
        let mut layer = match &self.bottom {
            Bottom::Directory { leaf, counts, .. } => {
                let host = leaf.open(&opening.manner)?;
                if leaf.is_written() {
                    written.push(Arc::clone(&host));
                }
                metered(host, *counts)
            }
            Bottom::Branches(fan) => metered(fan.open(opening, written)?, fan.layer.counts),
        };
        for above in self.above.iter().rev() {
            layer = metered(above.put_on(layer)?, above.counts);
        }
        Ok(layer)
    }

    /// What a layer over branches knows it by.
    fn name(&self) -> PathBuf {
        self.leaves().first().map(|leaf| leaf.path().to_owned()).unwrap_or_default()
    }
}

impl Above {
    fn of(spec: LayerSpec, metered: bool, in_words: bool) -> Result<Self, Failure> {
        let name = spec.kind.name;
        let wrong = |wrong: String| Failure::usage(if in_words { format!("{name}: {wrong}") } else { wrong });
        let settings = spec.given.settings(spec.kind.branches()).map_err(wrong)?;
        let needs = (spec.kind.traits.needs)(&settings).map_err(wrong)?;
        let counts = metered.then(|| Counts::leaked(name));
        Ok(Self { spec, settings, needs, counts })
    }

    fn part(&self, below: Vec<Below>) -> Part {
        let (name, options) = (self.spec.kind.name.to_owned(), self.spec.given.show());
        Part { name, options, counts: self.counts, below }
    }

    fn put_on(&self, lower: Arc<dyn Layer>) -> Result<Arc<dyn Layer>, Refused> {
        let made = self.spec.kind.over(lower, &self.settings);
        made.map_err(|wrong| {
            let failure = Failure::usage(format!("{}: {wrong}", self.spec.kind.name));
            Refused { failure, errno: Errno::IO }
        })
    }
}

impl Fan {
    fn of(spec: LayerSpec, branches: Vec<BranchSpec>, purpose: &Purpose) -> Result<Self, Failure> {
        let kind = spec.kind;
        let Build::Branches(declared) = kind.build else {
            return Err(Failure::usage(format!("{} has no branches", kind.name)));
        };
        let layer = Above::of(spec, purpose.metered, purpose.in_words)?;
        if branches.is_empty() {
            return Err(no_branches(kind.name, declared, purpose.in_words));
        }
        let modes = modes(&branches, declared, purpose.read_only)?;
        let branches = branches.into_iter().zip(modes).map(|(branch, mode)| {
            let leaf = leaf(branch, mode, declared)?;
            Ok((mode, Arc::new(Tree::branch(leaf, mode))))
        });
        let fan = Self { layer, declared, branches: branches.collect::<Result<_, Failure>>()? };
        fan.check_named_once()?;
        Ok(fan)
    }

    /// Of branches that are opened late, only the names are known.
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
                Err(Failure::usage(format!("{noun} {} is named twice; leave one out", name.display())))
            }
        }
    }

    fn open(&self, opening: &Opening, written: &mut Vec<Arc<HostFs>>) -> Result<Arc<dyn Layer>, Refused> {
        let made = match self.declared.make {
            Make::Opened(make) => {
                let opened = self.branches.iter().map(|(mode, tree)| {
                    Ok(Branch { name: tree.name(), mode: *mode, lower: tree.open(opening, written)? })
                });
                make(opened.collect::<Result<_, Refused>>()?, &self.layer.settings, &opening.situation)
            }
            Make::Reopened(make) => {
                let reopened = self.branches.iter().map(|(mode, tree)| reopened(*mode, tree, *opening));
                make(reopened.collect(), &self.layer.settings, &opening.situation)
            }
        };
        made.map_err(|wrong| Refused { failure: Failure::mount(wrong), errno: Errno::IO })
    }
}

/// A branch that its layer opens itself.
fn reopened(mode: BranchMode, tree: &Arc<Tree>, opening: Opening) -> Reopened {
    let (name, tree) = (tree.name(), Arc::clone(tree));
    // Nothing of it is ever written.
    let open = move || tree.open(&opening, &mut Vec::new()).map_err(|refused| refused.errno);
    Branch { name, mode, lower: Box::new(open) }
}

fn metered(layer: Arc<dyn Layer>, counts: Option<&'static Counts>) -> Arc<dyn Layer> {
    match counts {
        None => layer,
        Some(counts) => Meter::counting(layer, counts),
    }
}

fn no_branches(name: &str, declared: &Branches, in_words: bool) -> Failure {
    let Branches { example, noun: (_, several), .. } = declared;
    Failure::usage(if in_words {
        format!("{name}: it has no directories: name them in the stack, as in `{name},{example}`")
    } else {
        format!("no {several}: name them with -o {example}; see --help")
    })
}

/// The modes that count.
fn modes(branches: &[BranchSpec], declared: &Branches, read_only: bool) -> Result<Vec<BranchMode>, Failure> {
    let of = |(i, branch): (usize, &BranchSpec)| branch.mode.unwrap_or_else(|| (declared.unmarked)(i, read_only));
    let modes: Vec<_> = branches.iter().enumerate().map(of).collect();
    let first_writes = modes.first().is_some_and(|mode| mode.writes());
    if declared.first_takes_changes && !first_writes && modes.iter().any(|mode| mode.writes()) {
        let first = branches.first().map(|branch| branch.path.display().to_string()).unwrap_or_default();
        return Err(Failure::mount(format!(
            "branch {first} is the first but not rw, while another is: changes could not go to the left; mark it =rw, or all \
             others =ro"
        )));
    }
    Ok(modes)
}

fn leaf(branch: BranchSpec, mode: BranchMode, declared: &Branches) -> Result<Leaf, Failure> {
    match declared.make {
        Make::Opened(_) => Ok(Leaf::new(Role::Branch, branch.path, !mode.writes()).claimed(true)),
        Make::Reopened(_) => Leaf::late(&branch.path)
            .map_err(|error| Failure::usage(format!("{} {}: {error}", declared.noun.0, branch.path.display()))),
    }
}
