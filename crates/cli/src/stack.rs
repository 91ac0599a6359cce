//! From options to layers, and how they are served.

use crate::already;
use crate::cmdline::Cmdline;
use crate::exit::Failure;
use crate::leaf::Manner;
use crate::options::{Options, Type};
use crate::place::{Place, Role};
use crate::process;
use crate::registry::Registry;
use crate::report::Report;
use crate::tree::{Inside, Opening, Purpose, Tree};
use hostfs::HostFs;
use rustix::mount::MountFlags;
use server::Config;
use stack::spec::{self, At, BottomSpec, LayerSpec};
use stack::{LayerType, Needs, Situation, StackSpec, Text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use vnode::{Layer, Properties};

/// A stack whose directories were found, and nothing of which was opened yet.
#[derive(Debug)]
pub struct Stack {
    tree: Tree,
    needs: Needs,
}

/// A stack that can be served.
#[derive(Debug)]
pub struct Ready {
    /// The topmost layer.
    pub layer: Arc<dyn Layer>,
    /// What it is made of.
    pub report: Report,
    /// The directories at the bottom that can be written.
    pub written: Vec<Arc<HostFs>>,
}

impl Stack {
    /// Finds the directories and whether they can be used together. Changes nothing.
    ///
    /// # Errors
    /// Names the directory, why it can't be used and what to do about it.
    pub fn check(kind: Type, cmdline: &Cmdline, options: &Options) -> Result<Self, Failure> {
        let in_words = matches!(kind, Type::Stack);
        let spec = match kind {
            Type::Stack => spec::read(&in_words_of(cmdline, options)?, &Registry).map_err(Failure::usage)?,
            Type::Layer(layer) => of_one(layer, cmdline, options)?,
        };
        let role = if in_words { Role::Bottom } else { Role::Lower };
        let metered = is_metered(kind, options);
        let (read_only, branch) = (options.read_only(), Inside::default());
        let tree = Tree::of(spec, &Purpose { role, in_words, read_only, branch, metered })?;
        tree.find()?;
        let needs = tree.needs();
        if options.cached_data && !options.read_only() && !needs.read_only {
            return Err(Failure::usage(CACHED_AND_WRITABLE));
        }
        Ok(Self { needs, tree })
    }

    /// Refuses what is mounted at `point` already, where mounting it twice is a mistake: a line of fstab whose source is `none`
    /// can't be told by mount(8) to be mounted, and two servers would write to the same branches.
    ///
    /// # Errors
    /// Names the mount point and what to do about it.
    pub fn check_again(&self, point: &Place) -> Result<(), Failure> {
        self.tree.once().map_or(Ok(()), |name| already::check(point, name, &self.tree.parts()))
    }

    /// Where warnings go that a layer is there for, on a system without journal and syslog.
    #[must_use]
    pub const fn warns(&self) -> Option<&'static str> {
        self.needs.warns
    }

    /// Opens the directories and puts the layers together. The report tells of them while they are in use.
    ///
    /// # Errors
    /// Names the step and the directory that failed.
    pub fn build(&self, options: &Options) -> Result<Ready, Failure> {
        let situation = Situation { passthrough: options.passthrough, may_chown: process::may_chown() };
        let opening = Opening { manner: Manner::of(options), situation };
        let mut written = Vec::new();
        let layer = self.tree.open(&opening, &mut written).map_err(|refused| refused.failure)?;
        if options.cached_data {
            check_cached(layer.properties())?;
        }
        let given = options.fixed.iter().map(|(_, whole)| whole.clone()).collect();
        Ok(Ready { layer, report: Report::new(self.tree.parts(), given), written })
    }

    /// How it is served.
    #[must_use]
    pub fn config(&self, options: &Options, point: &Place, source: &OsStr, kind: Type) -> Config {
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

/// The stack of `mount -t LAYER`: one layer over the directory that the first argument names, or over the branches that its
/// options list.
fn of_one(kind: &'static LayerType, cmdline: &Cmdline, options: &Options) -> Result<StackSpec, Failure> {
    let mut given = options.own.clone();
    let Some(branches) = kind.branches() else {
        let bottom = BottomSpec::Directory { path: (&cmdline.spec).into(), read_only: false };
        return Ok(StackSpec { layers: vec![LayerSpec { kind, given, at: At::default() }], bottom });
    };
    if branches.first_argument {
        let list = Text::read(cmdline.spec.as_bytes())
            .map_err(|wrong| Failure::usage(format!("{} {wrong}", cmdline.spec.to_string_lossy())))?;
        given.add(branches.option, list);
    }
    let bottom = spec::over_branches(kind, given, &Registry).map_err(Failure::usage)?;
    Ok(StackSpec { layers: Vec::new(), bottom })
}

const CACHED_AND_WRITABLE: &str = "option data=cached: this mount can be changed, and the kernel would open files for writing without asking; add ro, or give \
     every branch the mode ro";

/// With `data=cached` no layer sees who opens a file.
fn check_cached(properties: Properties) -> Result<(), Failure> {
    let refuse = |why| Err(Failure::usage(format!("option data=cached: {why}; leave one of the two out")));
    if properties.watches_refusals {
        refuse("a layer watches what programs are refused (snoopfs), and would not see files opened")
    } else if properties.varies_by_caller {
        refuse("a layer answers differently to different users, who would read each other's data")
    } else {
        Ok(())
    }
}

/// The words of a stack: the first argument, or `stack=` where that is `none`.
fn in_words_of(cmdline: &Cmdline, options: &Options) -> Result<Vec<u8>, Failure> {
    let given = options.own.iter().filter_map(|(_, value)| value).next_back();
    let placeholder = cmdline.spec.is_empty() || cmdline.spec == "none";
    match given {
        Some(_) if !placeholder => Err(Failure::usage("the stack is given twice: by the first argument and by stack=")),
        Some(words) => Ok(words.bytes()),
        None if placeholder => {
            Err(Failure::usage("no stack: the first argument is one, such as `wrapfs / /srv/data`; see --help"))
        }
        None => Ok(cmdline.spec.as_bytes().to_vec()),
    }
}

/// Between layers there is something to tell apart; alone, a layer has the whole time anyway.
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

/// Does the kernel count the directory's file system as stacked on another?
fn is_stacked(place: &Place) -> bool {
    const OVERLAY: u64 = 0x794c_7630;
    const FUSE: u64 = 0x6573_5546;
    const ECRYPTFS: u64 = 0xf15f;
    place.magic().is_some_and(|magic| [OVERLAY, FUSE, ECRYPTFS].contains(&(magic & 0xffff_ffff)))
}
