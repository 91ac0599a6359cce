//! The server's side of `unionctl` and of `mount -o remount,add=...`: the commands that list and
//! change the branches of a union in use.

use crate::exit::{Exit, Failure};
use crate::host_dir::{HostDir, Place, Role, reason};
use crate::leaf::claim;
use crate::mountinfo::{self, Mount};
use crate::registry::Registry;
use crate::report::{Below, Part};
use crate::tree::{BranchRules, Collected, Host, LiveFanOut, Opening, Tree, TreeContext};
use core::time::Duration;
use hostfs::HostFs;
use parking_lot::Mutex;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use server::Invocation;
use stack::Catalog;
use stack::spec::{self, BottomSpec, BranchSpec, LayerSpec};
use stack::{
    Branch, BranchChange, BranchMode, Branches, ChangeError, ChangePolicy, Given, InUse, LayerType, LiveBranches, Text,
    escape,
};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use vnode::{CommandAccess, Layer as _};

/// Lists the branches.
pub const LIST: &str = "server.branches";
/// Changes the branches.
pub const CHANGE: &str = "server.change-branches";

/// The most files in use that a reply names.
const NAMED_MOST: usize = 500;

/// How long a change waits for operations under way, such as a large copy-up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reply to [`LIST`], and to a [`CHANGE`] that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The type of the layer: `unionfs`.
    pub layer: String,
    /// Number of this list among those of the mount.
    pub generation: u64,
    /// The branches, highest precedence first.
    pub branches: Vec<Listed>,
}

/// A branch in a [`List`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its name, which identifies it: the path of a directory, or a description of a stack; with
    /// the escapes of mount options.
    pub name: String,
    /// Its mode.
    pub mode: String,
    /// It is listed as writable, but its file system turned out to be read-only.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub turned_read_only: bool,
    /// What is wrong with it: `hung` or `lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Number of files that are open on it.
    pub open_files: u64,
}

/// The input of [`CHANGE`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The generation of the list that the change refers to.
    pub generation: u64,
    /// The changes, which are all made or none.
    pub changes: Vec<WantedChange>,
    /// Files that are open on a removed branch: `refuse`, `copyup` or `keep`.
    #[serde(default)]
    pub in_use: WantedInUse,
    /// The root directory through which the paths of new branches are found.
    pub root: RootDir,
}

/// A root directory, for a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootDir {
    /// The ID of its mount, which no other mount has, in any mount namespace.
    mount: u64,
    /// Device and inode number.
    device: (u32, u32),
    inode: u64,
}

impl RootDir {
    /// Returns the root directory of this process.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn own() -> Result<Self, Errno> {
        Self::at(Path::new("/"))
    }

    fn at(path: &Path) -> Result<Self, Errno> {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let root = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO | StatxFlags::MNT_ID)?;
        Ok(Self { mount: root.stx_mnt_id, device: (root.stx_dev_major, root.stx_dev_minor), inode: root.stx_ino })
    }
}

/// A change of the branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WantedChange {
    /// Inserts a branch, as in the list of branches of a mount, with a mode.
    Insert {
        /// At most this many branches have precedence over it.
        at: usize,
        /// The branch: `PATH=MODE` or `[STACK]=MODE`, with absolute paths.
        branch: String,
    },
    /// Inserts an empty branch before all others, and makes all others read-only. The only change.
    Snapshot {
        /// The branch, with an absolute path.
        branch: String,
    },
    /// Removes a branch.
    Remove {
        /// [`Listed::name`]
        name: String,
    },
    /// Switches a branch to another mode.
    Mode {
        /// [`Listed::name`]
        name: String,
        /// The new mode.
        mode: String,
    },
    /// Moves a branch.
    Move {
        /// [`Listed::name`]
        name: String,
        /// At most this many branches then have precedence over it.
        at: usize,
    },
}

/// What happens to files that are open on a removed branch, and are on no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WantedInUse {
    /// The change is refused.
    #[default]
    Refuse,
    /// They are copied to a writable branch.
    CopyUp,
    /// They remain usable until they are closed.
    Keep,
}

/// The reply to [`CHANGE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The branches were changed. The list has this generation now.
    Done(u64),
    /// The list has another generation by now.
    Outdated,
    /// So many files on a removed branch are in use, these among them.
    InUse(usize, Vec<FileInUse>),
    /// Another reason.
    Refused {
        /// The exit status.
        exit: u8,
        /// The reason, and what to do about it.
        reason: String,
    },
}

/// A file that is open on a branch that can't be removed for that reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInUse {
    /// [`Listed::name`]
    pub branch: String,
    /// Its path in the mount, with a leading `/`; empty if it was removed. Invalid UTF-8 is
    /// replaced.
    pub path: String,
    /// Its inode number.
    pub number: u64,
    /// Whether it is open for writing.
    pub writing: bool,
}

/// The branches of a mount in use.
pub struct Live {
    kind: &'static LayerType,
    declared: &'static Branches,
    context: TreeContext,
    opening: Opening,
    /// The options of the layer without its branches.
    options: String,
    handle: Arc<dyn LiveBranches>,
    /// The device number of the mount (`st_dev`).
    device: OnceLock<u64>,
    /// Held during a change.
    changing: Mutex<()>,
    branches: Mutex<Vec<Used>>,
}

/// A branch in use.
#[derive(Clone, Debug)]
struct Used {
    name: PathBuf,
    mode: BranchMode,
    /// Whether it consists of a plain directory.
    is_directory: bool,
    below: Below,
    places: Vec<Place>,
    hosts: Vec<Host>,
}

impl core::fmt::Debug for Live {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Live").field("kind", &self.kind).field("branches", &self.branches).finish_non_exhaustive()
    }
}

impl Used {
    fn of(mode: BranchMode, tree: &Tree, hosts: Vec<Host>) -> Result<Self, Failure> {
        let places: Vec<_> = tree.leaves().iter().filter_map(|leaf| leaf.place()).collect();
        Ok(Self {
            name: tree.name(),
            mode,
            is_directory: tree.is_plain_branch(),
            below: tree.below(mode),
            places: Place::of(&places)?,
            hosts,
        })
    }

    fn check_no_overlap(&self, other: &Self) -> Result<(), Failure> {
        self.places.iter().try_for_each(|place| other.places.iter().try_for_each(|other| place.check_no_overlap(other)))
    }

    fn with_mode(&self, mode: BranchMode) -> Self {
        let below = match self.below.clone() {
            Below::Directory(directory) => Below::Directory(crate::report::Directory { mode: mode.name, ..directory }),
            Below::Stack(_, parts) => Below::Stack(mode.name, parts),
        };
        let hosts = self.hosts.iter().map(|host| Host { written: mode.writes(), ..host.clone() }).collect();
        Self { mode, below, hosts, ..self.clone() }
    }
}

/// A prepared change, with the steps to undo if the union refuses it.
#[derive(Default)]
struct Prepared {
    changes: Vec<BranchChange>,
    after: Vec<Used>,
    /// Directories that were made writable for the change.
    opened_for_writing: Vec<Arc<HostFs>>,
}

impl Live {
    /// Returns the branches of `tree`, which was opened with `opening` and yielded `live`.
    ///
    /// # Errors
    /// Names the directory and the reason.
    pub fn new(
        tree: &Tree,
        context: TreeContext,
        opening: Opening,
        live: LiveFanOut,
    ) -> Result<Option<Arc<Self>>, Failure> {
        let Some((layer, declared, branches)) = tree.branches() else { return Ok(None) };
        let used = branches.iter().zip(live.hosts).map(|((mode, tree), hosts)| Used::of(*mode, tree, hosts));
        Ok(Some(Arc::new(Self {
            kind: layer.kind,
            declared,
            context,
            opening,
            options: options_of(layer),
            handle: live.handle,
            device: OnceLock::new(),
            changing: Mutex::new(()),
            branches: Mutex::new(used.collect::<Result<_, _>>()?),
        })))
    }

    /// Sets the device number of the mount, so that no directory of the mount becomes a branch.
    pub fn set_device(&self, device: u64) {
        let _first = self.device.set(device);
    }

    /// Returns the part of the report with the current branches; `part` is the layer without them.
    #[must_use]
    pub fn part(&self, part: &Part) -> Part {
        let below = self.branches.lock().iter().map(|used| used.below.clone()).collect();
        Part { below, options: self.options.clone(), ..part.clone() }
    }

    /// Returns the directories that are changed.
    #[must_use]
    pub fn written(&self) -> Vec<Weak<HostFs>> {
        let branches = self.branches.lock();
        let hosts = branches.iter().flat_map(|used| &used.hosts).filter(|host| host.written);
        hosts.map(|host| host.layer.clone()).collect()
    }

    /// Returns the server commands that list and change the branches.
    #[must_use]
    pub fn commands(self: &Arc<Self>) -> [server::Command; 2] {
        let (lister, changer) = (Arc::clone(self), Arc::clone(self));
        let list = move |given: &Invocation<'_>| match given.input {
            [] => reply(&lister.list()),
            _ => Err(Errno::INVAL),
        };
        let change = move |given: &Invocation<'_>| {
            let wanted: Wanted = serde_json::from_slice(given.input).map_err(|_| Errno::INVAL)?;
            reply(&changer.change(&wanted, given.pid))
        };
        let help = "Returns the branches of the union as JSON: name, mode, open files. unionctl --list shows them.";
        let list = server::Command {
            declared: vnode::Command { name: LIST, help, access: CommandAccess::Anyone },
            run: Arc::new(list),
        };
        let help = "Adds, removes and switches branches of the union in use. unionctl and mount -o remount send it.";
        let change = server::Command {
            declared: vnode::Command { name: CHANGE, help, access: CommandAccess::Owner },
            run: Arc::new(change),
        };
        [list, change]
    }

    fn list(&self) -> List {
        let current = self.handle.list();
        let branches = current.branches.iter().map(|branch| Listed {
            name: escape(branch.name.as_os_str().as_bytes()),
            mode: branch.mode.name.to_owned(),
            turned_read_only: branch.turned_read_only,
            trouble: branch.trouble.map(str::to_owned),
            open_files: branch.open_files,
        });
        List { layer: self.kind.name.to_owned(), generation: current.generation, branches: branches.collect() }
    }

    /// Changes the branches, as the process `pid` wants.
    fn change(&self, wanted: &Wanted, pid: u32) -> Answer {
        let _changing = self.changing.lock();
        if self.handle.list().generation != wanted.generation {
            return Answer::Outdated;
        }
        let before = self.branches.lock().clone();
        let mut prepared = Prepared { after: before.clone(), ..Prepared::default() };
        let done = self.prepare(wanted, pid, &mut prepared).map_err(refused).and_then(|()| {
            let in_use = match wanted.in_use {
                WantedInUse::Refuse => InUse::Refuse,
                WantedInUse::CopyUp => InUse::CopyUp,
                WantedInUse::Keep => InUse::Keep,
            };
            let policy = ChangePolicy { patience: PATIENCE, in_use, expected_generation: Some(wanted.generation) };
            match self.handle.change(core::mem::take(&mut prepared.changes), &policy) {
                Err(ChangeError::Incomplete(reason)) => Ok(Some(reason)),
                done => done.map(|()| None).map_err(answer),
            }
        });
        match done {
            Err(answer) => {
                forbid_changes(&prepared.opened_for_writing);
                answer
            }
            Ok(incomplete) => {
                forbid_changes(&no_longer_written(&before, &prepared.after));
                *self.branches.lock() = prepared.after;
                let list = self.list();
                tracing::info!(generation = list.generation, "branches changed: {}", show(&list));
                match incomplete {
                    Some(reason) => Answer::Refused { exit: Exit::System.code(), reason },
                    None => Answer::Done(list.generation),
                }
            }
        }
    }

    fn prepare(&self, wanted: &Wanted, pid: u32, prepared: &mut Prepared) -> Result<(), Failure> {
        let is_new =
            |change: &WantedChange| matches!(change, WantedChange::Insert { .. } | WantedChange::Snapshot { .. });
        let inserts = wanted.changes.iter().any(is_new);
        let caller_pid = if inserts { foreign_caller(pid, wanted.root)? } else { None };
        for change in &wanted.changes {
            match change {
                WantedChange::Insert { at, branch } => {
                    let added = self.prepare_insert(*at, branch, caller_pid, prepared)?;
                    prepared.changes.push(BranchChange::Insert { at: *at, branch: added });
                }
                WantedChange::Snapshot { branch } => self.prepare_snapshot(branch, caller_pid, prepared)?,
                WantedChange::Remove { name } => {
                    let (at, used) = find(&prepared.after, name)?;
                    prepared.changes.push(BranchChange::Remove(used.name));
                    prepared.after.remove(at);
                }
                WantedChange::Move { name, at } => {
                    let (from, used) = find(&prepared.after, name)?;
                    prepared.changes.push(BranchChange::Move(used.name.clone(), *at));
                    prepared.after.remove(from);
                    prepared.after.insert((*at).min(prepared.after.len()), used);
                }
                WantedChange::Mode { name, mode } => {
                    let mode = self.mode(mode)?;
                    let (at, used) = find(&prepared.after, name)?;
                    self.prepare_mode(&used, mode, prepared)?;
                    if let Some(place) = prepared.after.get_mut(at) {
                        *place = used.with_mode(mode);
                    }
                }
            }
        }
        Ok(())
    }

    fn mode(&self, name: &str) -> Result<BranchMode, Failure> {
        self.declared.mode(name.as_bytes()).ok_or_else(|| Failure::usage(format!("mode {name:?}: no such mode")))
    }

    fn prepare_insert(
        &self,
        at: usize,
        branch: &str,
        caller_pid: Option<u32>,
        prepared: &mut Prepared,
    ) -> Result<stack::Opened, Failure> {
        let BranchSpec { lower, mode } = parse(self.kind, branch)?;
        let mode = mode.ok_or_else(|| Failure::usage(format!("branch {branch}: has no mode; add =rw or =ro")))?;
        let context = TreeContext { caller_pid, ..self.context };
        let tree = Tree::branch(lower, mode, self.declared, &context)?;
        if mode.writes() && tree.is_read_only() {
            return Err(Failure::mount(format!("branch {branch}: its stack permits no changes; mark it =ro")));
        }
        tree.find()?;
        self.check_outside(&tree)?;
        let mut used = Used::of(mode, &tree, Vec::new())?;
        if prepared.after.iter().any(|other| other.name == used.name) {
            return Err(Failure::mount(format!("branch {}: is in the union already", used.name.display())));
        }
        prepared.after.iter().try_for_each(|other| used.check_no_overlap(other))?;
        let mut collected = Collected::default();
        let lower = tree.open(&self.opening, &mut collected).map_err(|refused| refused.failure)?;
        let misplaced = self.kind.check_above(lower.properties());
        misplaced.map_err(|why| Failure::mount(format!("branch {branch}: {why}")))?;
        // Contains the descriptors of the directories, which are open by now.
        used.below = tree.below(mode);
        used.hosts = collected.hosts;
        let added = Branch { name: used.name.clone(), mode, lower };
        prepared.after.insert(at.min(prepared.after.len()), used);
        Ok(added)
    }

    fn prepare_snapshot(&self, branch: &str, caller_pid: Option<u32>, prepared: &mut Prepared) -> Result<(), Failure> {
        let modes = self.declared.modes.iter();
        let read_only = modes.clone().find(|mode| !mode.writes());
        let writes = modes.clone().find(|mode| mode.writes());
        let (Some(read_only), Some(writes)) = (read_only, writes) else {
            return Err(Failure::usage("snapshot: all branches have the same mode"));
        };
        for used in prepared.after.iter_mut().filter(|used| used.mode.writes()) {
            *used = used.with_mode(*read_only);
        }
        let added = self.prepare_insert(0, &format!("{branch}={}", writes.name), caller_pid, prepared)?;
        prepared.changes.push(BranchChange::Snapshot(added));
        Ok(())
    }

    /// Refuses directories of the mount itself, and of an overlayfs over the mount: the union would
    /// wait for itself.
    fn check_outside(&self, tree: &Tree) -> Result<(), Failure> {
        let unknown = || Failure::system("the device number of the mount is unknown; try again");
        let &own = self.device.get().ok_or_else(unknown)?;
        let mounts = mountinfo::read();
        let leads_back = |place: &&HostDir| {
            let layers = mountinfo::mount_of(&mounts, place.fd()).map(Mount::overlay_layers).unwrap_or_default();
            place.device() == own || layers.iter().any(|layer| device_of_mount(layer) == Some(own))
        };
        let leaves = tree.leaves();
        let inside = leaves.iter().filter_map(|leaf| leaf.place()).find(leads_back);
        match inside {
            None => Ok(()),
            Some(place) => Err(Failure::mount(format!(
                "branch {}: is a directory of the union itself, or leads to it; give the path of a directory outside of it",
                place.given.display()
            ))),
        }
    }

    /// Makes the directory of a branch writable if its mode demands it.
    fn prepare_mode(&self, used: &Used, mode: BranchMode, prepared: &mut Prepared) -> Result<(), Failure> {
        let hosts = || used.hosts.iter().filter_map(|host| host.layer.upgrade());
        if used.mode.writes() == mode.writes() {
            // From ro to nfsro, for instance: the directory stays as it is.
        } else if !mode.writes() {
            // Once nothing writes to it any more: see `no_longer_written`.
        } else if !used.is_directory {
            return Err(Failure::mount(format!(
                "branch {}: its layers were set up as read-only; remove it and add it with the mode {}",
                used.name.display(),
                mode.name
            )));
        } else {
            for host in hosts() {
                // See `forbid_changes`.
                let _as_before = host.suspend_access_times(false);
            }
            for host in hosts().filter(|host| host.properties().read_only) {
                host.set_read_only(false).map_err(|errno| {
                    Failure::mount(format!(
                        "branch {}: can't become {}: {}",
                        used.name.display(),
                        mode.name,
                        reason(errno)
                    ))
                })?;
                claim(&used.name, &host);
                prepared.opened_for_writing.push(host);
            }
        }
        prepared.changes.push(BranchChange::Mode(used.name.clone(), mode));
        Ok(())
    }
}

/// Formats the options of a layer without its list of branches.
fn options_of(layer: &LayerSpec) -> String {
    let whole = layer.to_string();
    whole.split_once(',').map_or_else(String::new, |(_, options)| options.to_owned())
}

/// Lets the kernel refuse changes of directories. The layer doesn't change them, so a failure has
/// no consequence.
fn forbid_changes(hosts: &[Arc<HostFs>]) {
    for host in hosts {
        if let Err(errno) = host.set_read_only(true) {
            tracing::debug!(%errno, "can't make a directory read-only");
            // Open files were carried to another branch, but were opened through this one. What
            // remains is read from now on, which must not change access times.
            if let Err(errno) = host.suspend_access_times(true) {
                tracing::debug!(%errno, "can't stop the access times of a directory");
            }
        }
        host.release_claim();
    }
}

/// Returns the branch with this escaped name, and its index.
fn find(branches: &[Used], name: &str) -> Result<(usize, Used), Failure> {
    let found = branches.iter().enumerate().find(|(_, used)| escape(used.name.as_os_str().as_bytes()) == name);
    found
        .map(|(at, used)| (at, used.clone()))
        .ok_or_else(|| Failure::usage(format!("branch {name}: not in the union; unionctl --list shows the branches")))
}

/// Parses one branch, as in the option that lists them.
///
/// # Errors
/// Describes the problem.
pub fn parse(kind: &'static LayerType, branch: &str) -> Result<BranchSpec, Failure> {
    let wrong = |wrong: String| Failure::usage(format!("branch {branch}: {wrong}"));
    let mut branches = parse_list(kind, branch.as_bytes(), &WithoutFiles).map_err(wrong)?;
    match (branches.pop(), branches.is_empty()) {
        (Some(one), true) => Ok(one),
        _ => Err(wrong("expected one branch; write \\: for a ':' in a path".to_owned())),
    }
}

/// The catalog of the server, which reads no file that a client names: it may have more
/// permissions.
struct WithoutFiles;

impl Catalog for WithoutFiles {
    fn find(&self, name: &str) -> Option<&'static LayerType> {
        Registry.find(name)
    }

    fn names(&self) -> Vec<&'static str> {
        Registry.names()
    }

    fn load(&self, path: &Path) -> Result<&'static LayerType, String> {
        Registry.load(path)
    }

    fn read_list(&self, _path: &Path) -> Result<Vec<u8>, String> {
        Err("the server reads no lists".to_owned())
    }

    fn suggest_path(&self, name: &str) -> Option<String> {
        Registry.suggest_path(name)
    }
}

/// Parses a list of branches.
///
/// # Errors
/// Describes the problem.
pub fn parse_list(kind: &'static LayerType, list: &[u8], catalog: &dyn Catalog) -> Result<Vec<BranchSpec>, String> {
    let text = Text::read(list).map_err(|wrong| format!("it {wrong}"))?;
    let mut given = Given::default();
    given.add(kind.branches().map_or("", |branches| branches.option), text);
    match spec::over_branches(kind, given, catalog)? {
        BottomSpec::Branches(_, branches) => Ok(branches),
        BottomSpec::Directory { .. } => Ok(Vec::new()),
    }
}

/// Returns the name that a branch with absolute paths has in a mount, escaped.
#[must_use]
pub fn name(kind: &'static LayerType, spec: &BranchSpec) -> Option<String> {
    let declared = kind.branches()?;
    let mode = spec.mode.or_else(|| declared.modes.first().copied())?;
    let (role, branch) = (Role::Argument, BranchRules::default());
    let context = TreeContext { role, in_words: true, read_only: false, branch, metered: false, caller_pid: None };
    let tree = Tree::branch(spec.lower.clone(), mode, declared, &context).ok()?;
    Some(escape(tree.name().as_os_str().as_bytes()))
}

/// Returns the process through whose root directory the paths of a request are found: `pid`, which
/// sent it, or `None` if its root directory is that of this process.
///
/// The number alone proves nothing: /proc may belong to another PID namespace, and show another
/// process under it. So the sender says what its root directory is.
fn foreign_caller(pid: u32, root: RootDir) -> Result<Option<u32>, Failure> {
    if RootDir::own() == Ok(root) {
        return Ok(None);
    }
    let unseen = |reason: String| {
        Failure::mount(format!(
            "the server can't access your mount namespace ({reason}): run the command as the user, and in the PID namespace, of the server"
        ))
    };
    if pid == 0 {
        return Err(unseen(reason(Errno::SRCH)));
    }
    match RootDir::at(Path::new(&format!("/proc/{pid}/root"))) {
        Ok(seen) if seen == root => Ok(Some(pid)),
        Ok(_) => Err(unseen("its /proc belongs to another PID namespace".to_owned())),
        Err(errno) => Err(unseen(reason(errno))),
    }
}

/// Returns the directories that are written before a change, but not after it.
fn no_longer_written(before: &[Used], after: &[Used]) -> Vec<Arc<HostFs>> {
    let written = |branches: &[Used]| -> Vec<Arc<HostFs>> {
        let hosts = branches.iter().flat_map(|used| &used.hosts).filter(|host| host.written);
        hosts.filter_map(|host| host.layer.upgrade()).collect()
    };
    let after = written(after);
    written(before).into_iter().filter(|host| !after.iter().any(|other| Arc::ptr_eq(host, other))).collect()
}

/// Formats the list as the option of a mount.
fn show(list: &List) -> String {
    let branches: Vec<_> = list.branches.iter().map(|branch| format!("{}={}", branch.name, branch.mode)).collect();
    branches.join(":")
}

fn answer(error: ChangeError) -> Answer {
    match error {
        ChangeError::Outdated => Answer::Outdated,
        ChangeError::Refused(reason) | ChangeError::Incomplete(reason) => {
            Answer::Refused { exit: Exit::Mount.code(), reason }
        }
        ChangeError::InUse(files) => Answer::InUse(
            files.len(),
            files
                .into_iter()
                .take(NAMED_MOST)
                .map(|file| FileInUse {
                    branch: escape(file.branch.as_os_str().as_bytes()),
                    path: String::from_utf8_lossy(&file.path).into_owned(),
                    number: file.number,
                    writing: file.writing,
                })
                .collect(),
        ),
    }
}

fn refused(failure: Failure) -> Answer {
    Answer::Refused { exit: failure.exit.code(), reason: failure.reason }
}

fn reply(of: &impl Serialize) -> vnode::Result<Vec<u8>> {
    serde_json::to_vec(of).map_err(|_| Errno::IO)
}

/// Returns the device number of the mount at `point`, without a request to its server.
#[must_use]
pub fn device_of_mount(point: &Path) -> Option<u64> {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    let stat = rustix::fs::statx(CWD, point, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    Some(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor))
}
