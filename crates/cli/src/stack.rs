//! From options to layers, and how they are served.

use crate::cmdline::Cmdline;
use crate::exit::Failure;
use crate::options::{Copyup, Options, Type};
use crate::place::{self, Place, Role};
use crate::replicas;
use hostfs::{HostFs, HostOptions};
use rustix::mount::MountFlags;
use server::Config;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unionfs::Mode;
use vnode::Layer;

/// The directories at the bottom of a stack, checked.
#[derive(Debug)]
pub enum Stack {
    /// Branches, highest precedence first.
    Union(Vec<(Place, Mode)>),
    /// The directory under a null layer.
    Wrap(Place),
    /// The directories that hold the same tree. They may be away, or hang when they are touched.
    Balance(Vec<PathBuf>),
}

impl Stack {
    /// Finds the directories and whether they can be used together. Changes nothing.
    ///
    /// # Errors
    /// Names the directory, why it can't be used and what to do about it.
    pub fn check(kind: Type, cmdline: &Cmdline, options: &Options) -> Result<Self, Failure> {
        match kind {
            Type::Wrap => Place::open(Role::Lower, Path::new(&cmdline.spec)).map(Self::Wrap),
            Type::Union => check_branches(options).map(Self::Union),
            Type::Balance => replicas::parse(cmdline.spec.as_bytes()).map(Self::Balance),
        }
    }

    /// Can nothing be changed through it, whatever the mount's flags say?
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Union(branches) => branches.iter().all(|(_, mode)| *mode != Mode::ReadWrite),
            Self::Wrap(_) => false,
            Self::Balance(_) => true,
        }
    }

    /// Opens the directories and puts the layers together.
    ///
    /// # Errors
    /// Names the step and the directory that failed.
    pub fn build(&self, options: &Options) -> Result<Arc<dyn Layer>, Failure> {
        match self {
            Self::Wrap(lower) => Ok(wrapfs::WrapFs::new(open(lower, false, options)?)),
            Self::Balance(paths) => {
                let sources = paths.iter().map(|path| replicas::source(path, options.cache)).collect();
                let lbfs = lbfs::LbFs::new(sources, options.balance)
                    .map_err(|error| Failure::mount(format!("can't use the replicas: {error}")))?;
                Ok(lbfs)
            }
            Self::Union(branches) => {
                let branches = branches.iter().map(|b| branch(b, options)).collect::<Result<_, _>>()?;
                let union = unionfs::Unionfs::new(branches, union_options(options))
                    .map_err(|error| Failure::mount(format!("can't make the union: {error}")))?;
                Ok(union)
            }
        }
    }

    /// How it is served.
    #[must_use]
    pub fn config(&self, options: &Options, point: &Place, source: &OsStr, kind: Type) -> Config {
        let mut config = Config::new(point.real.clone(), kind.name(), kind.name());
        config.mount.source = source.as_encoded_bytes().to_vec();
        if let Some(cache) = options.cache {
            config.cache = cache;
        }
        config.passthrough = options.passthrough;
        config.stack_depth = if self.places().any(is_stacked) { 2 } else { 1 };
        config.mount.transport = options.transport;
        let root = rustix::process::geteuid().is_root();
        config.mount.allow_other = options.allow_other.unwrap_or(root);
        config.mount.flags = mount_flags(options.flags);
        config.mount.flags.read_only |= self.is_read_only();
        config
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        let (branches, lower) = match self {
            Self::Union(branches) => (branches.as_slice(), None),
            Self::Wrap(lower) => (&[][..], Some(lower)),
            Self::Balance(_) => (&[][..], None),
        };
        branches.iter().map(|(place, _)| place).chain(lower)
    }
}

fn check_branches(options: &Options) -> Result<Vec<(Place, Mode)>, Failure> {
    if options.branches.is_empty() {
        return Err(Failure::usage("no branches: name them with -o dirs=PATH=rw:PATH=ro; see --help"));
    }
    let mut branches = Vec::with_capacity(options.branches.len());
    for (i, branch) in options.branches.iter().enumerate() {
        branches.push((Place::open(Role::Branch, &branch.path)?, branch.mode(i == 0, options.read_only())));
    }
    place::check_apart(&branches)?;
    let Some(((first, first_mode), others)) = branches.split_first() else { return Ok(branches) };
    match first_mode {
        Mode::ReadWrite => first.check_writable()?,
        _ if others.iter().any(|(_, mode)| *mode == Mode::ReadWrite) => {
            return Err(Failure::mount(format!(
                "branch {} is the first but not rw, while another is: changes could not go to the left; mark it =rw, \
                 or all others =ro",
                first.given.display()
            )));
        }
        _ => {}
    }
    Ok(branches)
}

fn branch((place, mode): &(Place, Mode), options: &Options) -> Result<unionfs::Branch, Failure> {
    Ok(unionfs::Branch {
        layer: open(place, *mode != Mode::ReadWrite, options)?,
        path: place.real.clone(),
        mode: *mode,
    })
}

fn open(place: &Place, read_only: bool, options: &Options) -> Result<Arc<HostFs>, Failure> {
    let host = HostOptions { read_only, ..HostOptions::default() };
    // Whoever wants to see at once what others change below wants no cache here either.
    let believed = options.cache.map_or(host.believed, |cache| cache.min(host.believed));
    HostFs::open(&place.real, HostOptions { believed, ..host }).map_err(|error| Failure::mount(error.to_string()))
}

fn union_options(options: &Options) -> unionfs::Options {
    unionfs::Options {
        delete: options.delete,
        copyup: match options.copyup {
            Copyup::Preserve => unionfs::Copyup::Preserve,
            Copyup::CurrentUser => unionfs::Copyup::CurrentUser,
            Copyup::Mounter => unionfs::Copyup::Mounter {
                uid: options.copyup_uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
                gid: options.copyup_gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
                mode: options.copyup_mode.unwrap_or(0o644),
            },
        },
    }
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
