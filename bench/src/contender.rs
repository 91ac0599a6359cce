//! The file systems that are compared, and how each is mounted.
//!
//! Peers run with the fastest settings that keep their guarantees. The settings are explained here
//! and listed in the report.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::cli::Options;
use crate::layout::Branches;
use crate::process;
use crate::reference::Transport;
use crate::scratch::{Mounted, ScratchFs};

/// A contender, by its name on the command line and in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A plain directory on the same kind of file system
    Native,
    /// The kernel's overlayfs
    Overlayfs,
    /// Strata's unionfs, with its default transport
    Unionfs,
    /// Strata's unionfs with no options but its branches
    UnionfsDefaults,
    /// Strata's unionfs over io_uring
    UnionfsRing,
    /// Strata's unionfs over /dev/fuse
    UnionfsDevice,
    /// Strata's wrapfs, the null layer, over one directory
    Wrapfs,
    /// Strata's wrapfs over /dev/fuse
    WrapfsDevice,
    /// Strata's versionfs with its default policies
    Versionfs,
    Mergerfs,
    FuseOverlayfs,
    /// unionfs-fuse by Radek Podgorny and others, which is unrelated to Strata's unionfs
    UnionfsFuse,
}

/// Contenders that run by default.
const DEFAULT_CONTENDERS: [Kind; 7] = [
    Kind::Native,
    Kind::Overlayfs,
    Kind::Unionfs,
    Kind::Wrapfs,
    Kind::Mergerfs,
    Kind::FuseOverlayfs,
    Kind::UnionfsFuse,
];

/// Cache lifetime in the kernel, in seconds: a day, the same for all contenders.
pub(crate) const DAY: &str = "86400";

/// Options of mergerfs, without the cache lifetimes.
///
/// ff: creates files on the first writable branch without a statfs of each branch. minfreespace:
/// the default of 4 GiB exceeds the file system's size. auto-full, writeback, readdir, symlinks:
/// enables every cache. security_capability=false saves a getxattr per write; no file here has
/// capabilities.
const MERGERFS: &str = "category.create=ff,minfreespace=0,cache.files=auto-full,cache.writeback=true,\
                        cache.readdir=true,cache.symlinks=true,cache.statfs=3600,security_capability=false";

/// Returns the options of mergerfs.
pub(crate) fn mergerfs_options() -> String {
    format!("{MERGERFS},cache.attr={DAY},cache.entry={DAY},cache.negative_entry={DAY}")
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Native => "native",
            Kind::Overlayfs => "overlayfs",
            Kind::Unionfs => "unionfs",
            Kind::UnionfsDefaults => "unionfs-defaults",
            Kind::UnionfsRing => "unionfs-ring",
            Kind::UnionfsDevice => "unionfs-device",
            Kind::Wrapfs => "wrapfs",
            Kind::WrapfsDevice => "wrapfs-device",
            Kind::Versionfs => "versionfs",
            Kind::Mergerfs => "mergerfs",
            Kind::FuseOverlayfs => "fuse-overlayfs",
            Kind::UnionfsFuse => "unionfs-fuse",
        }
    }

    /// Whether it is one of Strata's file systems.
    pub(crate) fn is_strata(self) -> bool {
        self.alias().is_some()
    }

    /// Whether a server in user space serves it.
    pub(crate) fn is_fuse(self) -> bool {
        !matches!(self, Kind::Native | Kind::Overlayfs)
    }

    /// Whether it has a read-write branch over a read-only one.
    fn is_union(self) -> bool {
        !matches!(self, Kind::Native | Kind::Wrapfs | Kind::WrapfsDevice | Kind::Versionfs)
    }

    /// Returns the transport of its requests, if it is one of Strata's file systems.
    pub(crate) fn transport(self) -> Option<Transport> {
        match self {
            Kind::Unionfs | Kind::UnionfsDefaults | Kind::UnionfsRing | Kind::Wrapfs | Kind::Versionfs => {
                Some(Transport::Auto)
            }
            Kind::UnionfsDevice | Kind::WrapfsDevice => Some(Transport::Device),
            Kind::Native | Kind::Overlayfs | Kind::Mergerfs | Kind::FuseOverlayfs | Kind::UnionfsFuse => None,
        }
    }

    /// Returns the name under which its program is called, if that differs from the program's own:
    /// Strata has one program for all types.
    fn alias(self) -> Option<&'static str> {
        match self {
            Kind::Unionfs | Kind::UnionfsDefaults | Kind::UnionfsRing | Kind::UnionfsDevice => Some("mount.unionfs"),
            Kind::Wrapfs | Kind::WrapfsDevice => Some("mount.wrapfs"),
            Kind::Versionfs => Some("mount.versionfs"),
            Kind::Native | Kind::Overlayfs | Kind::Mergerfs | Kind::FuseOverlayfs | Kind::UnionfsFuse => None,
        }
    }

    /// Returns its mount arguments for the report, with the branches named `RW` and `RO`.
    pub(crate) fn settings(self) -> String {
        let branches = Branches { rw: "RW".into(), ro: "RO".into() };
        let words = self.arguments(&branches, Path::new("WORK"), Path::new("MNT"));
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the program's arguments.
    fn arguments(self, branches: &Branches, work: &Path, point: &Path) -> Vec<OsString> {
        let (rw, ro, point) = (branches.rw.as_os_str(), branches.ro.as_os_str(), point.as_os_str());
        let join = |pieces: &[&str]| -> OsString {
            let pieces: Vec<&OsStr> = pieces
                .iter()
                .map(|piece| match *piece {
                    "{rw}" => rw,
                    "{ro}" => ro,
                    "{work}" => work.as_os_str(),
                    other => OsStr::new(other),
                })
                .collect();
            process::concat(&pieces)
        };
        let (o, none) = (OsString::from("-o"), OsString::from("none"));
        match self {
            Kind::Native => vec![],
            Kind::Overlayfs => vec![
                "-t".into(),
                "overlay".into(),
                "overlay".into(),
                o,
                join(&["lowerdir=", "{ro}", ",upperdir=", "{rw}", ",workdir=", "{work}"]),
                point.into(),
            ],
            Kind::UnionfsDefaults => vec![none, point.into(), o, join(&["dirs=", "{rw}", "=rw:", "{ro}", "=ro"])],
            // The peers' cache lifetimes are as long.
            Kind::Unionfs => vec![none, point.into(), o, join(&["dirs=", "{rw}", "=rw:", "{ro}", "=ro,cache=", DAY])],
            Kind::UnionfsRing => {
                vec![none, point.into(), o, join(&["dirs=", "{rw}", "=rw:", "{ro}", "=ro,transport=ring,cache=", DAY])]
            }
            Kind::UnionfsDevice => {
                vec![
                    none,
                    point.into(),
                    o,
                    join(&["dirs=", "{rw}", "=rw:", "{ro}", "=ro,transport=device,cache=", DAY]),
                ]
            }
            Kind::Wrapfs | Kind::Versionfs => vec![rw.into(), point.into(), o, join(&["cache=", DAY])],
            Kind::WrapfsDevice => vec![rw.into(), point.into(), o, join(&["transport=device,cache=", DAY])],
            Kind::Mergerfs => {
                vec![o, mergerfs_options().into(), join(&["{rw}", "=RW:", "{ro}", "=RO"]), point.into()]
            }
            // volatile skips every sync; its other caches are enabled, with this timeout.
            Kind::FuseOverlayfs => vec![
                o,
                join(&["lowerdir=", "{ro}", ",upperdir=", "{rw}", ",workdir=", "{work}", ",volatile,timeout=", DAY]),
                point.into(),
            ],
            // cow enables copy-on-write over a read-only branch. big_writes, kernel_cache and the
            // timeouts are libfuse options.
            Kind::UnionfsFuse => vec![
                o,
                join(&[
                    "cow,big_writes,kernel_cache,dev,suid,entry_timeout=",
                    DAY,
                    ",attr_timeout=",
                    DAY,
                    ",negative_timeout=",
                    DAY,
                ]),
                join(&["{rw}", "=RW:", "{ro}", "=RO"]),
                point.into(),
            ],
        }
    }

    /// Returns the path of the program that mounts it.
    fn program(self, options: &Options) -> Result<PathBuf, String> {
        let exists = |path: PathBuf| {
            if path.is_file() { Ok(path) } else { Err(format!("{} does not exist", path.display())) }
        };
        let peer = |name: &str| find_peer(options, name);
        match self {
            Kind::Native | Kind::Overlayfs => {
                process::find("mount").ok_or_else(|| "there is no mount program in $PATH".to_owned())
            }
            Kind::Unionfs | Kind::UnionfsDefaults | Kind::UnionfsRing | Kind::UnionfsDevice => {
                exists(options.unionfs.clone())
            }
            Kind::Wrapfs | Kind::WrapfsDevice => exists(options.wrapfs.clone()),
            Kind::Versionfs => exists(options.versionfs.clone()),
            Kind::Mergerfs => peer("mergerfs"),
            Kind::FuseOverlayfs => peer("fuse-overlayfs"),
            // Not mount.unionfs: that name is ours.
            Kind::UnionfsFuse => peer("unionfs"),
        }
    }
}

/// A contender that can be mounted.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) kind: Kind,
    program: PathBuf,
    /// Directory of the unpacked peers.
    unpacked: PathBuf,
}

/// A contender that can't be mounted, and the reason.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Absent {
    pub(crate) name: &'static str,
    pub(crate) reason: String,
}

fn selected(options: &Options) -> Vec<Kind> {
    let mut kinds =
        if options.contenders.is_empty() { DEFAULT_CONTENDERS.to_vec() } else { options.contenders.clone() };
    kinds.push(Kind::Native);
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Whether a contender that can use the FUSE ring takes part.
pub(crate) fn wants_ring(options: &Options) -> bool {
    options.versions
        || options.encryption
        || selected(options).into_iter().any(|kind| kind.is_strata() && kind.program(options).is_ok())
}

/// Returns the selected contenders that can be mounted, and those that can't. The native file
/// system is first.
pub(crate) fn select(options: &Options) -> (Vec<Contender>, Vec<Absent>) {
    of_kinds(options, &selected(options))
}

/// Returns those of the kinds that can be mounted, and those that can't.
pub(crate) fn of_kinds(options: &Options, kinds: &[Kind]) -> (Vec<Contender>, Vec<Absent>) {
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    for &kind in kinds {
        match kind.program(options) {
            Ok(program) => {
                present.push(Contender { kind, program, unpacked: options.cache.join("peers") });
            }
            Err(reason) => absent.push(Absent { name: kind.name(), reason }),
        }
    }
    (present, absent)
}

/// Returns the path of a peer's program, unpacked or installed.
pub(crate) fn find_peer(options: &Options, name: &str) -> Result<PathBuf, String> {
    let unpacked = options.cache.join("peers/usr/bin").join(name);
    if unpacked.is_file() { Some(unpacked) } else { process::find(name) }
        .ok_or_else(|| format!("neither unpacked below {} nor installed", options.cache.display()))
}

/// Returns a command that runs a program. One that is unpacked below `unpacked` finds its libraries
/// there.
pub(crate) fn command(program: &Path, unpacked: &Path) -> Command {
    let mut command = Command::new(program);
    if program.starts_with(unpacked) {
        command.env("LD_LIBRARY_PATH", library_path(unpacked));
    }
    command
}

/// Creates a mount point and calls `mount`, which has to mount the contender of that name there.
pub(crate) fn attach(name: &str, scratch: &ScratchFs, mount: impl FnOnce(&Path) -> Result<()>) -> Result<Running> {
    let point = scratch.base().join("mnt");
    fs::create_dir_all(&point).with_context(|| format!("create {}", point.display()))?;
    let device = |path: &Path| fs::metadata(path).map(|data| data.dev());
    let before = device(&point).with_context(|| format!("stat {}", point.display()))?;
    mount(&point).with_context(|| format!("mount {name}"))?;
    let running = Running { root: point.clone(), mounted: Some(Mounted { at: point.clone() }) };
    if device(&point).with_context(|| format!("stat {}", point.display()))? == before {
        // There is no mount to remove.
        std::mem::forget(running);
        bail!("{name} reported success, but nothing is mounted");
    }
    Ok(running)
}

/// Returns the library directories of unpacked Debian packages.
fn library_path(root: &Path) -> OsString {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let dirs = ["usr/lib", "lib"].map(|dir| root.join(dir).join(&triple));
    process::concat(&[dirs[0].as_os_str(), OsStr::new(":"), dirs[1].as_os_str()])
}

impl Contender {
    /// Creates empty branches on the scratch file system.
    pub(crate) fn branches(&self, scratch: &ScratchFs) -> Result<Branches> {
        let disk = scratch.disk();
        let branches = if self.kind.is_union() {
            Branches { rw: disk.join("rw"), ro: disk.join("ro") }
        } else {
            Branches { rw: disk.join("only"), ro: disk.join("only") }
        };
        for dir in [&branches.rw, &branches.ro, &disk.join("work")] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(branches)
    }

    /// Mounts it over populated branches.
    pub(crate) fn mount(&self, scratch: &ScratchFs, branches: &Branches) -> Result<Running> {
        if self.kind == Kind::Native {
            return Ok(Running::unmounted(branches.rw.clone()));
        }
        let work = scratch.disk().join("work");
        self.attach(scratch, |point| self.run(&self.kind.arguments(branches, &work, point), &scratch.log()))
    }

    /// Runs its program with these arguments.
    pub(crate) fn run(&self, arguments: &[OsString], log: &Path) -> Result<()> {
        let mut command = command(&self.program, &self.unpacked);
        command.args(arguments);
        if let Some(alias) = self.kind.alias() {
            command.arg0(alias);
        }
        process::run(&mut command, log)
    }

    /// Creates a mount point and calls `mount`, which has to mount the contender there.
    pub(crate) fn attach(&self, scratch: &ScratchFs, mount: impl FnOnce(&Path) -> Result<()>) -> Result<Running> {
        attach(self.kind.name(), scratch, mount)
    }
}

/// A mounted contender. Dropping it unmounts it and waits for its servers.
#[derive(Debug)]
pub(crate) struct Running {
    /// Root of the mount.
    pub(crate) root: PathBuf,
    mounted: Option<Mounted>,
}

impl Running {
    /// A plain directory.
    pub(crate) fn unmounted(root: PathBuf) -> Self {
        Self { root, mounted: None }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.mounted.take().is_some() {
            process::wait_for_servers();
        }
    }
}
