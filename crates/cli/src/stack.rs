//! From options to layers, and how they are served.

use crate::already;
use crate::bottom::{Bottom, Single};
use crate::cmdline::Cmdline;
use crate::exit::{Exit, Failure};
use crate::options::{Options, Type};
use crate::place::{Place, Role};
use crate::report::{Part, Report};
use crate::stackspec::{self, BottomSpec, LayerSpec};
use hostfs::HostFs;
use meter::Meter;
use rustix::mount::MountFlags;
use server::Config;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use vnode::Layer;

/// A stack whose directories were found, and nothing of which was opened yet.
#[derive(Debug)]
pub struct Stack {
    /// Top first.
    layers: Vec<LayerSpec>,
    bottom: Box<dyn Bottom>,
    /// What the bottom is called, and its options, for the report.
    shown: (String, String),
    metered: bool,
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
        let (layers, bottom) = match kind {
            Type::Stack => {
                let spec = stackspec::read(&in_words(cmdline, options)?).map_err(Failure::usage)?;
                (spec.layers, spec.bottom)
            }
            Type::Layer(layer) => {
                let bottom = BottomSpec::Directory { path: (&cmdline.spec).into(), read_only: false };
                (vec![LayerSpec { kind: layer, own: options.own.clone() }], bottom)
            }
            Type::Over(bottom) => {
                let mut own = options.own.clone();
                if let Some(name) = bottom.source {
                    own.add(
                        name,
                        crate::text::Text::read(cmdline.spec.as_bytes())
                            .map_err(|wrong| Failure::usage(format!("{} {wrong}", cmdline.spec.to_string_lossy())))?,
                    );
                }
                (Vec::new(), BottomSpec::Over(bottom, own))
            }
        };
        // Said now, before anything is opened.
        for layer in &layers {
            layer.own.settings().map_err(|wrong| Failure::usage(format!("{}: {wrong}", layer.kind.name)))?;
        }
        let role = if matches!(kind, Type::Stack) { Role::Bottom } else { Role::Lower };
        let shown = show(&bottom);
        Ok(Self { layers, bottom: check_bottom(role, bottom, options)?, shown, metered: is_metered(kind, options) })
    }

    /// Can nothing be changed through it, whatever the mount's flags say?
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.bottom.is_read_only()
    }

    /// Refuses a file system over several directories that is mounted at `point` already: a line of fstab whose source is `none`
    /// can't be told by mount(8) to be mounted, and two servers would write to the same branches.
    ///
    /// # Errors
    /// Names the mount point and what to do about it.
    pub fn check_again(&self, point: &Place) -> Result<(), Failure> {
        let Some(branches) = self.bottom.branches() else { return Ok(()) };
        let layers = self.layers.iter().map(|layer| (layer.kind.name, layer.own.show()));
        already::check(point, &layers.collect::<Vec<_>>(), &self.shown.0, &branches)
    }

    /// Is one of the layers there to warn?
    #[must_use]
    pub fn warns(&self) -> bool {
        self.layers.iter().any(|spec| spec.kind.name == snoopfs::LAYER.name)
    }

    /// Opens the directories and puts the layers together. The report tells of them while they are in use.
    ///
    /// # Errors
    /// Names the step and the directory that failed.
    pub fn build(&self, options: &Options) -> Result<Ready, Failure> {
        let built = self.bottom.build(options)?;
        let (name, own) = self.shown.clone();
        let (mut layer, counts) = self.metered(built.layer, &name);
        let mut parts = vec![Part { name, options: own, counts, directories: built.directories }];
        for spec in self.layers.iter().rev() {
            let name = spec.kind.name;
            let wrong = |wrong| Failure::usage(format!("{name}: {wrong}"));
            let upper = (spec.kind.build)(layer, &spec.own.settings().map_err(wrong)?).map_err(wrong)?;
            let (upper, counts) = self.metered(upper, name);
            layer = upper;
            parts.push(Part { name: name.to_owned(), options: spec.own.show(), counts, directories: Vec::new() });
        }
        parts.reverse();
        let report = Report::new(parts, options.fixed.iter().map(|(_, whole)| whole.clone()).collect());
        Ok(Ready { layer, report, written: built.written })
    }

    fn metered(&self, layer: Arc<dyn Layer>, name: &str) -> (Arc<dyn Layer>, Option<&'static meter::Counts>) {
        if !self.metered {
            return (layer, None);
        }
        let meter = Meter::new(layer, name);
        let counts = meter.counts();
        (meter, Some(counts))
    }

    /// How it is served.
    #[must_use]
    pub fn config(&self, options: &Options, point: &Place, source: &OsStr, kind: Type) -> Config {
        let mut config = Config::new(point.real.clone(), kind.name(), kind.name());
        config.mount.source = source.as_encoded_bytes().to_vec();
        if let Some(cache) = options.cache.or_else(|| self.bottom.cache()) {
            config.cache = cache;
        }
        config.passthrough = options.passthrough.unwrap_or(true);
        config.stack_depth = if self.bottom.places().into_iter().any(is_stacked) { 2 } else { 1 };
        config.narrow_positions = self.bottom.narrow_positions();
        config.mount.transport = options.transport;
        let root = rustix::process::geteuid().is_root();
        config.mount.allow_other = options.allow_other.unwrap_or(root);
        config.mount.flags = mount_flags(options.flags);
        config.mount.flags.read_only |= self.is_read_only();
        config.owner = rustix::process::geteuid().as_raw();
        config
    }
}

/// The words of a stack: the first argument, or `stack=` where that is `none`.
fn in_words(cmdline: &Cmdline, options: &Options) -> Result<Vec<u8>, Failure> {
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

/// The option that names the directories under every file system over several.
const DIRECTORIES: &str = "dirs";

fn check_bottom(role: Role, spec: BottomSpec, options: &Options) -> Result<Box<dyn Bottom>, Failure> {
    match spec {
        BottomSpec::Directory { path, read_only } => Ok(Box::new(Single::check(role, Path::new(&path), read_only)?)),
        // In a stack, its options stand with it and not after -o.
        BottomSpec::Over(kind, own) if role == Role::Bottom => {
            let (name, example) = (kind.name, kind.example);
            if !own.has(DIRECTORIES) {
                return Err(Failure::usage(format!(
                    "{name}: it has no directories: name them in the stack, as in `{name},{example}`"
                )));
            }
            (kind.check)(&own, options).map_err(|failure| match failure.exit {
                Exit::Usage => Failure::usage(format!("{name}: {failure}")),
                _ => failure,
            })
        }
        BottomSpec::Over(kind, own) => (kind.check)(&own, options),
    }
}

fn show(bottom: &BottomSpec) -> (String, String) {
    match bottom {
        BottomSpec::Directory { .. } => ("directory".to_owned(), String::new()),
        BottomSpec::Over(kind, own) => (kind.name.to_owned(), own.show()),
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
