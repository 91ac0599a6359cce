//! Builds the stack of layers from the options, and the configuration of the server.

use crate::already_mounted;
use crate::atime::WritableDirs;
use crate::cmdline::Cmdline;
use crate::exit::Failure;
use crate::host_dir::{HostDir, Role};
use crate::leaf::LeafOptions;
use crate::live::Live;
use crate::options::{Options, Type};
use crate::process;
use crate::registry::Registry;
use crate::report::Report;
use crate::tree::{BranchRules, Collected, Opening, Tree, TreeContext};
use rustix::mount::MountFlags;
use server::Config;
use stack::spec::{self, At, BottomSpec, LayerSpec};
use stack::{LayerType, Needs, Situation, StackSpec, Text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use vnode::{Layer, Properties};

/// A stack whose directories were checked, but not yet opened.
#[derive(Debug)]
pub struct Stack {
    tree: Tree,
    needs: Needs,
    context: TreeContext,
}

/// A stack that is ready to be served.
#[derive(Debug)]
pub struct Ready {
    /// The topmost layer.
    pub layer: Arc<dyn Layer>,
    /// The description of its layers.
    pub report: Report,
    /// The writable directories at the bottom.
    pub(crate) written: WritableDirs,
    /// The branches, if they can be changed while the stack is in use.
    pub live: Option<Arc<Live>>,
}

impl Stack {
    /// Finds the directories and checks that they can be used together. Changes nothing.
    ///
    /// # Errors
    /// Names the directory, the reason and the remedy.
    pub fn check(kind: Type, cmdline: &Cmdline, options: &Options) -> Result<Self, Failure> {
        let (tree, context) = Self::parse(kind, cmdline, options)?;
        tree.find()?;
        let needs = tree.needs();
        if options.cached_data && !options.read_only() && !needs.read_only {
            return Err(Failure::usage(CACHED_AND_WRITABLE));
        }
        Ok(Self { needs, tree, context })
    }

    /// Whether the mounting user must enter a passphrase. Accesses no directory.
    ///
    /// # Errors
    /// Names the layer, the option and the reason.
    pub fn asks_passphrase(kind: Type, cmdline: &Cmdline, options: &Options) -> Result<bool, Failure> {
        Self::parse(kind, cmdline, options).map(|(tree, _)| tree.needs().asks_passphrase)
    }

    /// Parses the options.
    fn parse(kind: Type, cmdline: &Cmdline, options: &Options) -> Result<(Tree, TreeContext), Failure> {
        let in_words = matches!(kind, Type::Stack);
        let spec = match kind {
            Type::Stack => spec::read(&in_words_of(cmdline, options)?, &Registry).map_err(Failure::usage)?,
            Type::Layer(layer) => of_one(layer, cmdline, options)?,
        };
        let role = if in_words { Role::Bottom } else { Role::Lower };
        let metered = is_metered(kind, options);
        let (read_only, branch) = (options.read_only(), BranchRules::default());
        let context = TreeContext { role, in_words, read_only, branch, metered, caller_pid: None };
        Ok((Tree::of(spec, &context)?, context))
    }

    /// Fails if the same stack is mounted at `point` already and one of its layers permits only one
    /// mount. mount(8) can't detect that an fstab line whose source is `none` is mounted, and two
    /// servers would write to the same branches.
    ///
    /// # Errors
    /// Names the mount point and the remedy.
    pub fn check_again(&self, point: &HostDir) -> Result<(), Failure> {
        self.tree.single_mount_layer().map_or(Ok(()), |name| already_mounted::check(point, name, &self.tree.parts()))
    }

    /// Returns the log file of a layer whose purpose is to warn, for systems without journal and
    /// syslog.
    #[must_use]
    pub const fn warns(&self) -> Option<&'static str> {
        self.needs.warns
    }

    /// Opens the directories and assembles the layers. The report describes them while they are in
    /// use.
    ///
    /// # Errors
    /// Names the step and the directory that failed.
    pub fn build(&self, options: &Options) -> Result<Ready, Failure> {
        let situation =
            Situation { passthrough: options.passthrough, may_chown: process::may_chown(), cache: options.cache };
        let opening = Opening { leaf_options: LeafOptions::of(options), situation };
        let mut collected = Collected::default();
        let layer = self.tree.open(&opening, &mut collected).map_err(|refused| refused.failure)?;
        if options.cached_data {
            check_cached(layer.properties())?;
        }
        let given = options.fixed.iter().map(|(_, whole)| whole.clone()).collect();
        let live = collected.live.map(|live| Live::new(&self.tree, self.context, opening, live)).transpose()?.flatten();
        let (parts, current) = (self.tree.parts(), live.clone());
        let report = move || match (&current, parts.split_last()) {
            (Some(live), Some((bottom, above))) => above.iter().cloned().chain([live.part(bottom)]).collect(),
            _ => parts.clone(),
        };
        let (hosts, current) = (collected.hosts, live.clone());
        let written = move || match &current {
            Some(live) => live.written(),
            None => hosts.iter().filter(|host| host.written).map(|host| host.layer.clone()).collect(),
        };
        let (report, written) = (Report::new(Box::new(report), given), WritableDirs(Box::new(written)));
        Ok(Ready { layer, report, written, live })
    }

    /// Returns the configuration of the server.
    #[must_use]
    pub fn config(&self, options: &Options, point: &HostDir, source: &OsStr, kind: Type) -> Config {
        let mut config = Config::new(point.real.clone(), kind.name(), kind.name());
        config.mount.source = source.as_encoded_bytes().to_vec();
        if let Some(cache) = options.cache.or(self.needs.cache) {
            config.cache = cache;
        }
        config.passthrough = options.passthrough.unwrap_or(true);
        config.cached_data = options.cached_data;
        config.xattrs = options.xattrs;
        let places = self.tree.leaves().into_iter().filter_map(|leaf| leaf.place());
        config.stack_depth = if places.into_iter().any(is_stacked) { 2 } else { 1 };
        config.narrow_positions = self.needs.narrow_positions;
        config.mount.transport = options.transport;
        config.mount.readahead = options.readahead;
        let root = rustix::process::geteuid().is_root();
        config.mount.allow_other = options.allow_other.unwrap_or(root);
        config.mount.flags = mount_flags(options.flags);
        config.mount.flags.read_only |= self.needs.read_only;
        config.owner = rustix::process::geteuid().as_raw();
        config
    }
}

/// Returns the stack of `mount -t LAYER`: one layer over the directory in the first argument, or
/// over the branches in the first argument or in its options.
fn of_one(kind: &'static LayerType, cmdline: &Cmdline, options: &Options) -> Result<StackSpec, Failure> {
    let mut given = options.own.clone();
    let Some(branches) = kind.branches() else {
        let bottom = BottomSpec::Directory { path: (&cmdline.spec).into(), read_only: false };
        return Ok(StackSpec { layers: vec![LayerSpec { kind, given, at: At::default() }], bottom });
    };
    if branches.first_argument && !is_placeholder(cmdline) {
        let argument = cmdline.spec.to_string_lossy();
        if let Some(list) = given.lists(branches).last() {
            let (noun, option) = (branches.noun.1, branches.option);
            return Err(Failure::usage(format!(
                "the {noun} are given twice, by the first argument, {argument}, and by {option}={}; remove one of them",
                list.show()
            )));
        }
        let list =
            Text::read(cmdline.spec.as_bytes()).map_err(|wrong| Failure::usage(format!("{argument} {wrong}")))?;
        given.add(branches.option, list);
    }
    let bottom = spec::over_branches(kind, given, &Registry).map_err(Failure::usage)?;
    Ok(StackSpec { layers: Vec::new(), bottom })
}

const CACHED_AND_WRITABLE: &str = "option data=cached: the mount is writable, and the kernel would open files for writing without a request; add ro, or mark \
     every branch =ro";

/// Refuses layers that must see every open, which `data=cached` hides from them.
fn check_cached(properties: Properties) -> Result<(), Failure> {
    let refuse = |why| Err(Failure::usage(format!("option data=cached: {why}; remove the option or the layer")));
    if properties.audits_refusals {
        refuse("a layer monitors refused requests (snoopfs), and would not see opens")
    } else if properties.varies_by_caller {
        refuse("a layer returns different data to different users, who would read each other's data")
    } else {
        Ok(())
    }
}

/// Returns the description of the stack: the first argument, or `stack=` if that is `none`.
fn in_words_of(cmdline: &Cmdline, options: &Options) -> Result<Vec<u8>, Failure> {
    let given = options.own.iter().filter_map(|(_, value)| value).next_back();
    let placeholder = is_placeholder(cmdline);
    match given {
        Some(_) if !placeholder => {
            Err(Failure::usage("the stack is given twice, by the first argument and by stack=; remove one of them"))
        }
        Some(words) => Ok(words.bytes()),
        None if placeholder => Err(Failure::usage(
            "no stack given: pass one as the first argument, such as `wrapfs / /srv/data`; see --help",
        )),
        None => Ok(cmdline.spec.as_bytes().to_vec()),
    }
}

/// Whether the first argument names nothing, and an option gives what to mount.
fn is_placeholder(cmdline: &Cmdline) -> bool {
    cmdline.spec.is_empty() || cmdline.spec == "none"
}

/// Whether operations are metered. By default only in stacks: a single layer accounts for all of
/// the time anyway.
fn is_metered(kind: Type, options: &Options) -> bool {
    options.meter.unwrap_or(matches!(kind, Type::Stack))
}

fn mount_flags(flags: MountFlags) -> fuse::Flags {
    fuse::Flags {
        read_only: flags.contains(MountFlags::RDONLY),
        nosuid: flags.contains(MountFlags::NOSUID),
        nodev: flags.contains(MountFlags::NODEV),
        noexec: flags.contains(MountFlags::NOEXEC),
        noatime: flags.contains(MountFlags::NOATIME),
        nodiratime: flags.contains(MountFlags::NODIRATIME),
        strictatime: flags.contains(MountFlags::STRICTATIME),
        nosymfollow: flags.contains(MountFlags::NOSYMFOLLOW),
        sync: flags.contains(MountFlags::SYNCHRONOUS),
        dirsync: flags.contains(MountFlags::DIRSYNC),
    }
}

/// Whether the kernel counts the directory's file system as stacked on another one.
pub(crate) fn is_stacked(place: &HostDir) -> bool {
    const OVERLAY: u64 = 0x794c_7630;
    const FUSE: u64 = 0x6573_5546;
    const ECRYPTFS: u64 = 0xf15f;
    place.magic().is_some_and(|magic| [OVERLAY, FUSE, ECRYPTFS].contains(&(magic & 0xffff_ffff)))
}
