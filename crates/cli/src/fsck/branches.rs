//! The branches to check: from the command line or fstab, opened as layers.

use super::Refused;
use crate::exit::{Failure, FsckExit};
use crate::host_dir::{HostDir, Role, check_no_overlap};
use crate::leaf::{Leaf, LeafOptions};
use crate::mountinfo::{self, FstabEntry};
use crate::options::{self, Options, Type};
use crate::registry::Registry;
use crate::tree::{BranchRules, Collected, Opening, Tree, TreeContext};
use crate::{lower, process};
use hostfs::{HostFs, HostOptions};
use stack::spec::{self, BottomSpec, BranchSpec};
use stack::{BranchMode, Branches, Given, Situation, Text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use unionfs::{Branch, Mode};

const FSTAB: &str = "/etc/fstab";
/// Time limit for a server that is going away to release a branch.
const WAIT: Duration = Duration::from_secs(5);

/// The branches of a union.
pub(super) struct Found {
    pub(super) branches: Vec<Branch>,
    /// The branches that a mounted file system uses, and its description.
    pub(super) users: Vec<(PathBuf, String)>,
    /// The list of branches, for messages.
    pub(super) list: String,
}

/// A branch that is not open yet.
struct Planned {
    mode: BranchMode,
    tree: Tree,
}

fn usage(failure: Failure) -> Refused {
    (FsckExit::USAGE, failure)
}

fn operation(failure: Failure) -> Refused {
    (FsckExit::OPERATION, failure)
}

/// Finds and opens the branches that `device` names. With `read_only`, nothing can be changed.
pub(super) fn open(device: &OsStr, read_only: bool) -> Result<Found, Refused> {
    let kind = unionfs::LAYER.branches().ok_or_else(|| operation(Failure::system("unionfs has no branches")))?;
    let (bottom, mounted_ro) = in_fstab(device).map_err(usage)?.map_or_else(
        || {
            let bottom = spec::over_branches(&unionfs::LAYER, of_list(device, kind)?, &Registry);
            Ok((bottom.map_err(|why| usage(Failure::usage(why)))?, false))
        },
        Ok,
    )?;
    let BottomSpec::Branches(_, specs) = bottom else {
        return Err(usage(Failure::usage("no branches given")));
    };
    if specs.is_empty() {
        let reason = format!("{}: names no branches; list them as in the mount option dirs=", device.display());
        return Err(usage(Failure::usage(reason)));
    }
    let mut planned = Vec::new();
    for (index, spec) in specs.into_iter().enumerate() {
        planned.push(plan(index, spec, kind, mounted_ro, read_only).map_err(operation)?);
    }
    let places: Vec<&HostDir> =
        planned.iter().flat_map(|branch| branch.tree.leaves()).filter_map(Leaf::place).collect();
    check_no_overlap(&places, |_, _| false).map_err(operation)?;
    // A union as a branch of another one is read-only, and not the first.
    let own = planned.iter().enumerate().filter(|(at, branch)| *at == 0 || branch.mode.writes());
    own.map(|(_, branch)| &branch.tree).try_for_each(lower::check_no_union).map_err(usage)?;
    let users = users(&planned);
    let list: Vec<String> =
        planned.iter().map(|branch| format!("{}={}", branch.tree.name().display(), branch.mode.name)).collect();
    let mut branches = Vec::new();
    if users.is_empty() || read_only {
        for branch in &planned {
            branches.push(branch.open().map_err(operation)?);
        }
    }
    Ok(Found { branches, users, list: list.join(":") })
}

/// Returns the union of the line of fstab for this mount point or source, and whether it is mounted
/// read-only; `None` if there is none.
fn in_fstab(device: &OsStr) -> Result<Option<(BottomSpec, bool)>, Failure> {
    let table = std::fs::read(FSTAB).unwrap_or_default();
    let mut found = Vec::new();
    for line in table.split(|&byte| byte == b'\n').filter_map(mountinfo::entry_of_fstab) {
        if line.point == Path::new(device) || line.source.as_os_str() == device {
            found.extend(union_of(&line)?);
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(_), false) => Err(Failure::usage(format!(
            "{}: several unionfs lines of {FSTAB} have this name; use a mount point",
            device.display()
        ))),
        (found, _) => Ok(found),
    }
}

/// Returns the union that a line of fstab mounts, alone or at the bottom of a stack.
fn union_of(line: &FstabEntry<'_>) -> Result<Option<(BottomSpec, bool)>, Failure> {
    let kind = line.kind.strip_prefix(b"fuse.").unwrap_or(line.kind);
    let kind = match kind {
        b"unionfs" => Type::Layer(&unionfs::LAYER),
        b"strata" => Type::Stack,
        _ => return Ok(None),
    };
    let options = options::parse(line.options, kind, true)?;
    let bottom = match kind {
        Type::Layer(layer) => spec::over_branches(layer, options.own.clone(), &Registry).map_err(Failure::usage)?,
        Type::Stack => {
            let given = options.own.iter().filter_map(|(_, value)| value).next_back();
            let words = given.map_or_else(|| line.source.as_os_str().as_bytes().to_vec(), Text::bytes);
            spec::read(&words, &Registry).map_err(Failure::usage)?.bottom
        }
    };
    let is_union = matches!(&bottom, BottomSpec::Branches(layer, _) if layer.kind.name == unionfs::LAYER.name);
    Ok(is_union.then(|| (bottom, options.read_only())))
}

fn of_list(device: &OsStr, kind: &Branches) -> Result<Given, Refused> {
    let list = Text::read(device.as_bytes())
        .map_err(|wrong| usage(Failure::usage(format!("{} {wrong}", device.display()))))?;
    let mut given = Given::default();
    given.add(kind.option, list);
    Ok(given)
}

fn plan(
    index: usize,
    spec: BranchSpec,
    kind: &Branches,
    mounted_ro: bool,
    read_only: bool,
) -> Result<Planned, Failure> {
    let mode = spec.mode.unwrap_or_else(|| (kind.unmarked)(index, mounted_ro));
    let context = TreeContext {
        role: Role::Argument,
        in_words: true,
        read_only: false,
        branch: BranchRules::default(),
        metered: false,
        caller_pid: None,
    };
    // A branch that is opened for reading only is not claimed either.
    let opened = if read_only { kind.modes.iter().copied().find(|mode| !mode.writes()).unwrap_or(mode) } else { mode };
    let tree = Tree::branch(spec.lower, opened, kind, &context)?;
    tree.find()?;
    Ok(Planned { mode, tree })
}

impl Planned {
    fn open(&self) -> Result<Branch, Failure> {
        let opening = Opening {
            leaf_options: LeafOptions::of(&Options::default()),
            situation: Situation { passthrough: None, may_chown: process::may_chown(), cache: None },
        };
        let layer = self.tree.open(&opening, &mut Collected::default()).map_err(|refused| refused.failure)?;
        let mode = match self.mode.name {
            "rw" => Mode::ReadWrite,
            "nfsro" => Mode::NfsReadOnly,
            _ => Mode::ReadOnly,
        };
        Ok(Branch { layer, path: self.tree.name(), mode })
    }
}

/// Returns the written branches that a mounted file system uses. Servers claim such branches, also
/// those in other mount namespaces.
fn users(planned: &[Planned]) -> Vec<(PathBuf, String)> {
    let mut users = Vec::new();
    for leaf in planned.iter().filter(|branch| branch.mode.writes()).flat_map(|branch| branch.tree.leaves()) {
        let path = leaf.path();
        if let Some(point) = lower::mount_over(path) {
            users.push((path.to_owned(), point.display().to_string()));
            continue;
        }
        let layer = HostFs::open(path, HostOptions { read_only: true, ..HostOptions::default() });
        if let Ok(layer) = layer
            && layer.claim(WAIT) == Ok(false)
        {
            users.push((path.to_owned(), "a place outside of this mount namespace".to_owned()));
        }
    }
    users
}
