//! A stack as it is checked and built: layers over a directory, or over branches.
//!
//! What options say is read first ([`Tree::of`]), then the directories are found and compared
//! ([`Tree::find`]), and only then is anything opened ([`Tree::open`]).

use crate::exit::{Exit, Failure};
use crate::leaf::{Leaf, Manner, Refused};
use crate::place::{self, Place, Role};
use crate::report::{Below, Part};
use hostfs::HostFs;
use meter::{Counts, Meter};
use rustix::io::Errno;
use stack::spec::{At, BottomSpec, BranchSpec, LayerSpec, LowerSpec};
use stack::{Branch, BranchMode, Branches, Build, Make, Needs, Reopened, Settings, Situation, StackSpec};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
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
    /// What holds for a stack that is a branch.
    pub branch: Inside,
    /// Are operations counted and timed?
    pub metered: bool,
}

/// What the layers above say of a stack that is a branch of theirs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inside {
    /// It is never changed.
    pub never_changed: bool,
    /// No other server may write to its directories at the same time.
    pub claimed: bool,
    /// Its directories can be away or hang, and are not touched before they are wanted.
    pub late: bool,
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
    /// It is a directory that stands alone among the branches of a layer.
    is_branch: bool,
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
        let above = spec.layers.into_iter().map(|layer| Above::of(layer, purpose));
        let above = above.collect::<Result<_, _>>()?;
        let bottom = match spec.bottom {
            BottomSpec::Directory { path, read_only } => {
                let read_only = read_only || purpose.branch.never_changed;
                let counts = purpose.metered.then(|| Counts::leaked("directory"));
                let mode = if read_only { "ro" } else { "rw" };
                Bottom::Directory { leaf: leaf(path, read_only, purpose)?, mode, counts }
            }
            BottomSpec::Branches(layer, branches) => Bottom::Branches(Fan::of(layer, branches, purpose)?),
        };
        Ok(Self { above, bottom, is_branch: false })
    }

    /// The same of a branch.
    fn branch(lower: LowerSpec, mode: BranchMode, purpose: &Purpose) -> Result<Self, Failure> {
        let path = match lower {
            LowerSpec::Stack(stack) => return Self::of(*stack, purpose),
            LowerSpec::Directory(path) => path,
        };
        let leaf = leaf(path, purpose.branch.never_changed, purpose)?;
        let bottom = Bottom::Directory { leaf, mode: mode.name, counts: None };
        Ok(Self { above: Vec::new(), bottom, is_branch: true })
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
        check_late(&leaves)?;
        self.check_writable()
    }

    /// The directory that takes the changes of a layer over branches must take some.
    fn check_writable(&self) -> Result<(), Failure> {
        let Bottom::Branches(fan) = &self.bottom else { return Ok(()) };
        for (i, (mode, tree)) in fan.branches.iter().enumerate() {
            if i == 0 && mode.writes() && fan.declared.first_takes_changes {
                tree.first_leaf().and_then(Leaf::place).map_or(Ok(()), Place::check_writable)?;
            }
            tree.check_writable()?;
        }
        Ok(())
    }

    /// The directory that takes changes.
    fn first_leaf(&self) -> Option<&Leaf> {
        match &self.bottom {
            Bottom::Directory { leaf, .. } => Some(leaf),
            Bottom::Branches(fan) => fan.branches.first().and_then(|(_, tree)| tree.first_leaf()),
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
        match &self.bottom {
            Bottom::Directory { leaf, mode, .. } if self.is_branch => Below::Directory(leaf.describe(mode)),
            _ => Below::Stack(mode.name, self.parts()),
        }
    }

    /// Opens the directories and puts the layers together. Adds the directories that can be written
    /// to `written`.
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

    /// What a layer over branches knows it by: the path of a directory, or all paths of a stack
    /// with the names of its layers. Options may change without the branch becoming another.
    fn name(&self) -> PathBuf {
        let name = self.name_in_words();
        let name = if self.is_branch { name } else { [b"[", &name[..], b"]"].concat() };
        OsString::from_vec(name).into()
    }

    fn name_in_words(&self) -> Vec<u8> {
        let above = self.above.iter().flat_map(|layer| [layer.spec.kind.name.as_bytes(), b" / "]);
        let mut name = above.collect::<Vec<_>>().concat();
        match &self.bottom {
            Bottom::Directory { leaf, .. } => name.extend(leaf.path().as_os_str().as_bytes()),
            Bottom::Branches(fan) => {
                name.extend([fan.layer.spec.kind.name, ",", fan.declared.option, "="].concat().into_bytes());
                let names: Vec<_> =
                    fan.branches.iter().map(|(_, tree)| tree.name().into_os_string().into_vec()).collect();
                name.extend(names.join(&b':'));
            }
        }
        name
    }
}

impl Above {
    fn of(spec: LayerSpec, purpose: &Purpose) -> Result<Self, Failure> {
        let name = spec.kind.name;
        let wrong = |wrong: String| {
            // Options of a layer over branches that is mounted alone are options of the mount.
            let alone = !purpose.in_words && spec.kind.branches().is_some();
            let named = if alone { wrong } else { format!("{name}: {wrong}") };
            Failure::usage(in_branch(&spec.at, &named))
        };
        let settings = spec.given.settings(spec.kind.branches()).map_err(wrong)?;
        let needs = (spec.kind.traits.needs)(&settings).map_err(wrong)?;
        let counts = purpose.metered.then(|| Counts::leaked(name));
        Ok(Self { spec, settings, needs, counts })
    }

    fn part(&self, below: Vec<Below>) -> Part {
        let (name, options) = (self.spec.kind.name.to_owned(), self.spec.given.show());
        Part { name, options, counts: self.counts, below }
    }

    fn put_on(&self, lower: Arc<dyn Layer>) -> Result<Arc<dyn Layer>, Refused> {
        let made = self.spec.kind.over(lower, &self.settings);
        made.map_err(|wrong| {
            let wrong = format!("{}: {wrong}", self.spec.kind.name);
            let failure = Failure::usage(in_branch(&self.spec.at, &wrong));
            Refused { failure, errno: Errno::IO, is_directory: false }
        })
    }
}

impl Fan {
    fn of(spec: LayerSpec, branches: Vec<BranchSpec>, purpose: &Purpose) -> Result<Self, Failure> {
        let kind = spec.kind;
        let Build::Branches(declared) = kind.build else {
            return Err(Failure::usage(format!("{} has no branches", kind.name)));
        };
        let layer = Above::of(spec, purpose)?;
        let at = &layer.spec.at;
        if branches.is_empty() {
            return Err(Failure::usage(in_branch(at, &no_branches(kind.name, declared, purpose.in_words))));
        }
        let modes =
            modes(&branches, declared, purpose).map_err(|failure| failure.map(|wrong| in_branch(at, &wrong)))?;
        let inside = |mode: BranchMode| Inside {
            never_changed: purpose.branch.never_changed || !mode.writes(),
            claimed: mode.writes(),
            late: purpose.branch.late || matches!(declared.make, Make::Reopened(_)),
        };
        let branches = branches.into_iter().zip(modes).map(|(branch, mode)| {
            let purpose = Purpose { role: Role::Branch, in_words: true, branch: inside(mode), ..*purpose };
            Ok((mode, Arc::new(Tree::branch(branch.lower, mode, &purpose)?)))
        });
        let branches = branches.collect::<Result<_, Failure>>()?;
        let fan = Self { layer, declared, branches };
        fan.check_writes()?;
        fan.check_named_once()?;
        Ok(fan)
    }

    /// A branch that can't be changed can take no changes.
    fn check_writes(&self) -> Result<(), Failure> {
        let dead = self.branches.iter().zip(1..).find(|((mode, tree), _)| mode.writes() && tree.is_read_only());
        let Some(((mode, _), number)) = dead else { return Ok(()) };
        let noun = self.declared.noun.0;
        let wrong =
            format!("{noun} {number} is {}, but nothing can be changed through its stack: mark it =ro", mode.name);
        Err(Failure::mount(in_branch(&self.layer.spec.at, &wrong)))
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
        let refused = |wrong| Refused { failure: Failure::mount(wrong), errno: Errno::IO, is_directory: false };
        let (settings, situation) = (&self.layer.settings, &opening.situation);
        match self.declared.make {
            Make::Opened(make) => {
                let opened = self.branches.iter().map(|(mode, tree)| {
                    Ok(Branch { name: tree.name(), mode: *mode, lower: tree.open(opening, written)? })
                });
                make(opened.collect::<Result<_, Refused>>()?, settings, situation).map_err(refused)
            }
            Make::Reopened(make) => {
                let wrong = Arc::new(OnceLock::new());
                let reopened = self.branches.iter().map(|(mode, tree)| reopened(*mode, tree, *opening, &wrong));
                let made = make(reopened.collect(), settings, situation);
                // A branch may be away for a time, but its options stay wrong.
                match wrong.get() {
                    Some(wrong) => Err(Refused::clone(wrong)),
                    None => made.map_err(refused),
                }
            }
        }
    }
}

/// A branch that its layer opens itself. If an option turns out to be wrong, that is put into
/// `wrong`.
fn reopened(mode: BranchMode, tree: &Arc<Tree>, opening: Opening, wrong: &Arc<OnceLock<Refused>>) -> Reopened {
    let (name, tree, wrong) = (tree.name(), Arc::clone(tree), Arc::clone(wrong));
    let open = move || {
        // Nothing of it is ever written.
        tree.open(&opening, &mut Vec::new()).map_err(|refused| {
            if refused.failure.exit == Exit::Usage {
                let _first = wrong.set(refused);
                return Errno::INVAL;
            }
            // That a directory is away is the layer's to tell.
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

/// What is wrong, with where it is, in a stack that is a branch.
fn in_branch(at: &At, wrong: &str) -> String {
    if at.within.is_empty() { wrong.to_owned() } else { format!("{at}: {wrong}") }
}

fn no_branches(name: &str, declared: &Branches, in_words: bool) -> String {
    let Branches { example, noun: (_, several), .. } = declared;
    if in_words {
        format!("{name}: it has no directories: name them in the stack, as in `{name},{example}`")
    } else {
        format!("no {several}: name them with -o {example}; see --help")
    }
}

/// The modes that count.
fn modes(branches: &[BranchSpec], declared: &Branches, purpose: &Purpose) -> Result<Vec<BranchMode>, Failure> {
    let (noun, never_changed) = (declared.noun.0, purpose.branch.never_changed);
    let unmarked = |i| (declared.unmarked)(i, purpose.read_only || never_changed);
    let modes: Vec<_> =
        branches.iter().enumerate().map(|(i, branch)| branch.mode.unwrap_or_else(|| unmarked(i))).collect();
    let mut written = modes.iter().zip(1..).filter(|(mode, _)| mode.writes()).peekable();
    let Some((mode, number)) = written.peek() else { return Ok(modes) };
    if never_changed {
        return Err(Failure::mount(format!(
            "{noun} {number} is {}, but the stack that it is part of is never changed: mark it =ro",
            mode.name
        )));
    }
    if declared.first_takes_changes && *number != 1 {
        let first = branches.first().map(|branch| branch.lower.to_string()).unwrap_or_default();
        return Err(Failure::mount(format!(
            "{noun} {first} is the first but not rw, while another is: changes could not go to the left; mark it =rw, or all \
             others =ro"
        )));
    }
    Ok(modes)
}

fn leaf(path: PathBuf, read_only: bool, purpose: &Purpose) -> Result<Leaf, Failure> {
    if !purpose.branch.late {
        return Ok(Leaf::new(purpose.role, path, read_only).claimed(purpose.branch.claimed));
    }
    Leaf::late(&path).map_err(|error| Failure::usage(format!("directory {}: {error}", path.display())))
}

/// Of directories that nothing may touch yet, only the paths are compared with those that are
/// written.
fn check_late(leaves: &[&Leaf]) -> Result<(), Failure> {
    for late in leaves.iter().filter(|leaf| leaf.place().is_none()) {
        let overlaps = |path: &Path| path.starts_with(late.path()) || late.path().starts_with(path);
        let written = leaves.iter().filter(|leaf| leaf.is_written() && leaf.place().is_some());
        if let Some(other) = written.into_iter().find(|leaf| overlaps(leaf.path())) {
            let (late, other) = (late.path().display(), other.path().display());
            return Err(Failure::mount(format!(
                "directory {late} lies inside branch {other}, which is written, or the other way round; leave one of them out"
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

    fn purpose(read_only: bool) -> Purpose {
        Purpose { role: Role::Bottom, in_words: true, read_only, branch: Inside::default(), metered: true }
    }

    fn tree(words: &str) -> Tree {
        let spec = stack::spec::read(words.as_bytes(), &Registry).unwrap();
        Tree::of(spec, &purpose(false)).unwrap_or_else(|failure| panic!("{words}: {failure}"))
    }

    #[test]
    fn needs_of_the_whole_tree_are_met() {
        let nested = tree("unionfs,dirs=[unionfs,whiteouts=write,ino=32,dirs=/a]=ro:[snoopfs / /b]=ro").needs();
        assert_eq!((nested.cache, nested.warns), (Some(Duration::ZERO), Some("/var/log/snoopfs.log")));
        // The upper union has positions of its own.
        assert!(!nested.narrow_positions && nested.read_only);
        let chain = tree("wrapfs / rot13 / unionfs,ino=32,dirs=/a:/b").needs();
        assert!(chain.narrow_positions && !chain.read_only && chain.cache.is_none() && chain.warns.is_none());
    }

    #[test]
    fn what_can_not_be_changed_is_known() {
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
        // Without modes nothing is written where the whole is read-only.
        let spec = stack::spec::read(b"unionfs,dirs=[unionfs,dirs=/a:/b]:/c", &Registry).unwrap();
        assert!(Tree::of(spec, &purpose(true)).unwrap().is_read_only());
    }

    #[test]
    fn only_directories_that_take_changes_are_written() {
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
    fn a_branch_is_known_by_its_directories_and_layers() {
        let names = |words: &str| -> Vec<String> {
            let tree = tree(words);
            tree.fan().unwrap().branches.iter().map(|(_, tree)| tree.name().to_string_lossy().into_owned()).collect()
        };
        let words = "unionfs,dirs=/a:[xor,key=7/[/b]]:[zstd,level=9 / unionfs,delete=all,dirs=/c:[rot13/[/d,ro]]]";
        assert_eq!(names(words), ["/a", "[xor / /b]", "[zstd / unionfs,dirs=/c:[rot13 / /d]]"]);
        assert_eq!((tree(words).once(), tree("rot13 / /a").once()), (Some("unionfs"), None));
    }

    #[test]
    fn a_stack_is_opened_again_and_its_meters_go_on() {
        let dir = std::env::temp_dir().join(format!("strata-tree-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("Uryyb"), "text").unwrap();
        let tree = tree(&format!("lbfs,dirs=/nonexistent/replica:[rot13 / {}]", dir.display()));
        tree.find().unwrap();
        let situation = Situation { passthrough: None, may_chown: true };
        let opening = Opening { manner: Manner::of(&Options::default()), situation };
        let wrong = Arc::default();
        let branches = &tree.fan().unwrap().branches;
        let [away, there] = [0, 1].map(|i| reopened(branches[i].0, &branches[i].1, opening, &wrong));
        assert_eq!(((away.lower)().map(|_| ()), wrong.get().is_none()), (Err(Errno::NOENT), true));
        for looked_up in 1..=3 {
            let layer = (there.lower)().unwrap();
            let name = Name::new(b"Hello").unwrap();
            assert!(layer.root().lookup(&Cx::internal(0, 0), name).unwrap().is_some());
            let counts = branches[1].1.above[0].counts.unwrap();
            assert_eq!(counts.of(meter::Operation::Lookup).done, looked_up);
            assert!(layer.properties().read_only);
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
