//! Opens the branches of a union that is not mounted, for the commands that compare branches or
//! move changes between them: `strata diff`, `strata commit`, `strata discard`, `snapmerge`.

use crate::exit::Failure;
use crate::host_dir::Role;
use crate::leaf::LeafOptions;
use crate::live::{List, parse, parse_list};
use crate::options::Options;
use crate::registry::{self, Registry};
use crate::tree::{BranchRules, Collected, Opening, Tree, TreeContext};
use crate::{lower, mountinfo, users};
use changes::{Branches, Floor, Source};
use core::time::Duration;
use hostfs::{HostFs, HostOptions};
use stack::spec::{BranchSpec, LowerSpec};
use stack::{LayerType, Situation, Text};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The layer whose branches these are.
pub(crate) const LAYER: &str = "unionfs";

/// What a command does with a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It only reads.
    Read,
    /// It writes: no server may write to the branch meanwhile.
    Write,
}

/// Open branches. No server writes to those that were opened for writing until this is dropped.
#[derive(Debug)]
pub struct Offline {
    /// The branches.
    pub branches: Branches,
    /// Their names, as unions show them, from left to right.
    pub names: Vec<PathBuf>,
}

/// Opens a list of branches, written as the value of `dirs=`. Modes are ignored. With
/// [`Access::Write`], the first two are opened for writing: changes move from the first to the
/// second.
///
/// # Errors
/// Names the branch, the reason and the remedy.
pub fn open_list(list: &[u8], access: Access, floor: Floor) -> Result<Offline, Failure> {
    let shown = list.escape_ascii();
    let specs =
        parse_list(kind()?, list, &Registry).map_err(|wrong| Failure::usage(format!("branches {shown}: {wrong}")))?;
    open(specs, access, floor)
}

/// As [`open_list`], for directories.
///
/// # Errors
/// As [`open_list`].
pub fn open_paths(paths: &[&Path], access: Access, floor: Floor) -> Result<Offline, Failure> {
    let list: Vec<Vec<u8>> = paths.iter().map(|path| written(path)).collect();
    open_list(&list.join(&b':'), access, floor)
}

/// Opens one directory, or stack in brackets, as a branch.
///
/// # Errors
/// As [`open_list`].
pub fn open_one(path: &Path, access: Access) -> Result<Source, Failure> {
    let wrong = |wrong: String| Failure::usage(format!("{}: {wrong}", path.display()));
    let mut specs = parse_list(kind()?, &written(path), &Registry).map_err(wrong)?;
    match (specs.pop(), specs.is_empty()) {
        (Some(spec), true) => open_branch(spec.lower, access),
        _ => Err(wrong("expected one directory".to_owned())),
    }
}

/// Opens the branches of a mounted union, to read them. The server has them open too.
///
/// # Errors
/// As [`open_list`].
pub fn open_mounted(union: &Path, list: &List) -> Result<Offline, Failure> {
    // A mount may cover its own branches. The server's descriptors lead to them nevertheless.
    let lowers = lower::find(&users::mount_point(union)).unwrap_or_default();
    let mut sources = Vec::new();
    for listed in &list.branches {
        let path = Text::read(listed.name.as_bytes()).map(|text| PathBuf::from(OsString::from_vec(text.bytes())));
        let path = path.map_err(|wrong| Failure::system(format!("branch {}: {wrong}", listed.name)))?;
        let reached = lowers.iter().find(|lower| lower.path == path).map(|lower| &lower.by);
        let options = HostOptions { read_only: true, name_cache_ttl: Duration::ZERO, ..HostOptions::default() };
        let opened = reached.and_then(|by| HostFs::open(by, options).ok());
        sources.push(match opened {
            Some(layer) if !listed.name.starts_with('[') => Source { layer, path },
            _ => open_branch(parse(kind()?, &listed.name)?.lower, Access::Read)?,
        });
    }
    offline(sources, Floor::Ground)
}

/// Returns a path, or a stack in brackets, as it is written in a list of branches.
#[must_use]
pub fn written(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.starts_with(b"[") { bytes.to_vec() } else { stack::escape(bytes).into_bytes() }
}

fn kind() -> Result<&'static LayerType, Failure> {
    registry::find(LAYER).ok_or_else(|| Failure::system("this program lacks unionfs".to_owned()))
}

fn open(specs: Vec<BranchSpec>, access: Access, floor: Floor) -> Result<Offline, Failure> {
    if specs.len() < 2 {
        let wrong = "at least two branches are needed: the one with the changes, and the one below it";
        return Err(Failure::usage(wrong.to_owned()));
    }
    let mut sources = Vec::new();
    for (at, spec) in specs.into_iter().enumerate() {
        let access = if at < 2 { access } else { Access::Read };
        sources.push(open_branch(spec.lower, access)?);
    }
    offline(sources, floor)
}

fn offline(sources: Vec<Source>, floor: Floor) -> Result<Offline, Failure> {
    let names: Vec<PathBuf> = sources.iter().map(|source| source.path.clone()).collect();
    if let Some(twice) = names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|other| other == *name))
    {
        return Err(Failure::usage(format!("branch {}: given twice; remove one", twice.1.display())));
    }
    let mut sources = sources.into_iter();
    let Some(upper) = sources.next() else { return Err(Failure::usage("no branches given".to_owned())) };
    let target = names.get(1).filter(|name| !name.as_os_str().as_bytes().starts_with(b"["));
    let points = target.map(|target| mountinfo::points_inside(target)).unwrap_or_default();
    Ok(Offline { branches: Branches::new(upper, sources.collect(), floor).with_mount_points(points), names })
}

fn open_branch(lower: LowerSpec, access: Access) -> Result<Source, Failure> {
    let declared = kind()?.branches();
    let name = if access == Access::Write { "rw" } else { "ro" };
    let mode = declared.and_then(|declared| declared.mode(name.as_bytes()));
    let (Some(declared), Some(mode)) = (declared, mode) else {
        return Err(Failure::system("this program lacks unionfs".to_owned()));
    };
    let (role, branch) = (Role::Argument, BranchRules::default());
    let context = TreeContext { role, in_words: true, read_only: false, branch, metered: false, caller_pid: None };
    let tree = Tree::branch(lower, mode, declared, &context)?;
    tree.find()?;
    if access == Access::Write {
        lower::check_no_union(&tree)?;
    }
    let situation = Situation { passthrough: Some(false), may_chown: crate::process::may_chown(), cache: None };
    let opening = Opening { leaf_options: LeafOptions::of(&Options::default()), situation };
    let mut collected = Collected::default();
    let layer = tree.open(&opening, &mut collected).map_err(|refused| refused.failure)?;
    let path = tree.name();
    for host in collected.hosts.iter().filter(|host| host.written) {
        // The branch was claimed when it was opened, unless another server has it.
        if host.layer.upgrade().is_some_and(|host| host.claim(Duration::ZERO) == Ok(false)) {
            return Err(Failure::mount(format!(
                "branch {}: in use by a mounted union or another command; unmount the union first",
                path.display()
            )));
        }
    }
    Ok(Source { layer, path })
}
