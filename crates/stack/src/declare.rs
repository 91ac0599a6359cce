//! Declaration of a layer type: how it is named in mount options, documented by `--help` and built.

use crate::{LiveBranches, Settings};
use core::fmt;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;
use vnode::{Layer, Properties};

/// A type of layer, built over the layer below it or over any number of branches.
///
/// ```
/// # use stack::{Build, LayerType, Traits};
/// /// The null layer.
/// pub const LAYER: LayerType = LayerType {
///     name: "null",
///     about: "forwards everything",
///     options: &[],
///     build: Build::Over(&|lower, _settings| Ok(lower)),
///     traits: Traits::NONE,
/// };
/// ```
#[derive(Clone, Copy)]
pub struct LayerType {
    /// The name in a stack: letters, digits, `-` and `_`.
    pub name: &'static str,
    /// One line for the list of layers, without a full stop.
    pub about: &'static str,
    /// The options that the layer accepts.
    pub options: &'static [OptionSpec],
    /// What the layer is stacked on, and how it is built.
    pub build: Build,
    /// Further properties for the mount command.
    pub traits: Traits,
}

/// What a layer is stacked on, and how it is built.
#[derive(Clone, Copy)]
pub enum Build {
    /// Over the layer below it in the stack.
    Over(&'static BuildOver),
    /// Over branches, directories or whole stacks, that one of its options lists. Such a layer ends
    /// a stack.
    Branches(&'static Branches),
}

/// Builds a layer over the one below. The error is a sentence for the mounting user. An error of an
/// option begins with the option's name and `=`: the helper then exits with 1 (wrong options),
/// otherwise with 32 (the mount failed).
pub type BuildOver = dyn Fn(Arc<dyn Layer>, &Settings) -> Result<Arc<dyn Layer>, String> + Send + Sync;

/// An option of a layer, as written in mount options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// The value as shown in the help (`"N"`, `"random|hash"`); `None` for an option without a
    /// value.
    pub value: Option<&'static str>,
    /// What the option does, in sentences, with the default.
    pub help: &'static str,
}

/// Properties of a layer that the mount command needs, besides its options.
#[derive(Clone, Copy)]
pub struct Traits {
    /// Checks the settings and returns what the mount needs for them. Called before anything is
    /// opened. The error is a sentence for the mounting user.
    pub needs: fn(&Settings) -> Result<Needs, String>,
    /// Whether to refuse mounting the same directories twice at one mount point.
    pub once: bool,
    /// Whether it uses nothing that one caller obtained from below for another caller: no open
    /// file, no name, no content. Each operation reaches the layer below in the name of its caller.
    /// Only such a layer may lie above one that answers each caller differently.
    pub keeps_callers_apart: bool,
    /// The text of its manual page; `None` to generate it from the declaration.
    pub manual: Option<&'static Manual>,
}

impl Traits {
    /// A layer without special properties.
    pub const NONE: Self = Self { needs: |_| Ok(Needs::NONE), once: false, keeps_callers_apart: false, manual: None };
}

/// Requirements of a layer on the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The layer never allows changes, whatever lies below: the mount is read-only.
    pub read_only: bool,
    /// Maximum time that the kernel may cache names and attributes if the mount has no `cache=`.
    /// `None`: the default.
    pub cache: Option<Duration>,
    /// Directory offsets are limited to 31 bits.
    pub narrow_positions: bool,
    /// No other server may have a layer with this need over the same directory.
    pub sole_user: bool,
    /// Another server changes the directory, and the layer must see each change at once.
    pub sees_changes: bool,
    /// The layer's purpose is to log warnings. On a system with neither journal nor syslog, they
    /// are written to this file.
    pub warns: Option<&'static str>,
    /// The mounting user must enter a passphrase.
    pub asks_passphrase: bool,
}

impl Needs {
    /// No requirements.
    pub const NONE: Self = Self {
        read_only: false,
        cache: None,
        narrow_positions: false,
        sole_user: false,
        sees_changes: false,
        warns: None,
        asks_passphrase: false,
    };
}

/// The text of a manual page and of `--help`. The text common to all layers is added to it.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// What `mount -t NAME` does: one line without a full stop.
    pub title: &'static str,
    /// The first argument of `mount -t NAME` and its meaning; `None` to derive it from
    /// [`LayerType::build`].
    pub argument: Option<(&'static str, &'static str)>,
    /// Paragraphs.
    pub description: &'static [&'static str],
    /// A shell or fstab(5) line, and its purpose.
    pub examples: &'static [(&'static str, &'static str)],
}

/// A layer over branches: how branches are listed, used and opened.
#[derive(Clone, Copy)]
pub struct Branches {
    /// The option that lists them, one of [`LayerType::options`]: `PATH[=MODE]:PATH[=MODE]:...`.
    pub option: &'static str,
    /// Whether the first argument of `mount -t NAME` is such a list, unless it is `none`. Otherwise
    /// it is only a name to show.
    pub first_argument: bool,
    /// Whether the list may continue after a comma and be repeated; repeated lists are then joined.
    /// Otherwise the last list applies.
    pub joined: bool,
    /// Singular and plural of what a branch is called: `("replica", "replicas")`.
    pub noun: (&'static str, &'static str),
    /// An example of a list in a stack: `"dirs=/a:/b"`.
    pub example: &'static str,
    /// The modes that may follow a branch. If there are none, a `=` is part of the path.
    pub modes: &'static [BranchMode],
    /// Returns the mode of a branch without an explicit mode, from its index and whether the mount
    /// is read-only.
    pub unmarked: fn(usize, bool) -> BranchMode,
    /// Whether all changes are made on the first branch. It must then be writable if any branch is.
    pub first_must_be_writable: bool,
    /// Whether the branches are alternatives, of which each operation uses one. A directory can
    /// then be part of several of them, if at most one writes to it.
    pub alternatives: bool,
    /// Whether the branches can be changed while the layer is in use ([`Made::branches`]).
    pub live: bool,
    /// Builds the layer over its branches.
    pub make: Make,
}

/// How a branch is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchMode {
    /// The mode as written in options and shown in reports.
    pub name: &'static str,
    /// Whether the branch may be changed.
    pub access: Access,
}

/// Access to a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The branch is never changed.
    ReadOnly,
    /// The branch is changed. No other server may write to its directories at the same time.
    ReadWrite,
}

/// A branch, as passed to [`Branches::make`].
#[derive(Clone, Debug)]
pub struct Branch<T> {
    /// Its absolute path without symbolic links, or, for a stack, the paths of all its directories
    /// and the names of its layers. A branch has the same name each time it is mounted.
    pub name: PathBuf,
    /// How it is used.
    pub mode: BranchMode,
    /// The branch itself.
    pub lower: T,
}

/// An opened branch.
pub type Opened = Branch<Arc<dyn Layer>>;

/// A branch that the layer opens itself.
pub type Reopened = Branch<Reopen>;

/// Opens a branch, anew at each call. May hang.
pub type Reopen = Box<dyn Fn() -> vnode::Result<Arc<dyn Layer>> + Send + Sync>;

/// How a layer is built over its branches. The error is a sentence for the mounting user.
#[derive(Clone, Copy)]
pub enum Make {
    /// All branches are opened first, and must exist.
    Opened(&'static MakeOf<Opened>),
    /// The layer opens its branches as often as it needs to. They may be unavailable or hang, so
    /// nothing accesses them earlier.
    Reopened(&'static MakeOf<Reopened>),
}

/// The builder of a [`Make`].
pub type MakeOf<B> = dyn Fn(Vec<B>, &Settings, &Situation) -> Result<Made, String> + Send + Sync;

/// A layer over branches.
#[derive(Clone, Debug)]
pub struct Made {
    /// The layer.
    pub layer: Arc<dyn Layer>,
    /// Changes its branches while it is in use. `None` if they never change.
    pub branches: Option<Arc<dyn LiveBranches>>,
}

/// Information about the mount that a layer is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// The value of `passthrough=`, if given.
    pub passthrough: Option<bool>,
    /// Whether the server may change the owner of files.
    pub may_chown: bool,
    /// How long the kernel may cache names and attributes (`cache=`); `None`: the default.
    pub cache: Option<Duration>,
}

impl Made {
    /// Returns a layer whose branches never change.
    #[must_use]
    pub fn fixed(layer: Arc<dyn Layer>) -> Self {
        Self { layer, branches: None }
    }
}

impl LayerType {
    /// Fails if the layer must not lie above one with these properties.
    ///
    /// # Errors
    /// A sentence for the mounting user.
    pub fn check_above(&self, below: Properties) -> Result<(), String> {
        if self.traits.keeps_callers_apart || !below.differs_by_caller() {
            return Ok(());
        }
        Err("the layer below answers each caller differently, but this layer shares files and names between callers; \
             leave one of the two out, or give cryptfs key=mount"
            .to_owned())
    }

    /// Builds the layer over `lower`.
    ///
    /// # Errors
    /// A sentence for the mounting user: an invalid option, a layer over branches, or the reason of
    /// [`Self::check_above`].
    pub fn over(&self, lower: Arc<dyn Layer>, settings: &Settings) -> Result<Arc<dyn Layer>, String> {
        self.check_above(lower.properties())?;
        match self.build {
            Build::Over(build) => build(lower, settings),
            Build::Branches(of) => {
                Err(format!("{} takes its branches from {}=; it has no single layer below", self.name, of.option))
            }
        }
    }

    /// Returns the declaration of its branches, if it has any.
    #[must_use]
    pub const fn branches(&self) -> Option<&'static Branches> {
        match self.build {
            Build::Over(_) => None,
            Build::Branches(branches) => Some(branches),
        }
    }
}

impl Branches {
    /// Returns the mode with this name.
    #[must_use]
    pub fn mode(&self, name: &[u8]) -> Option<BranchMode> {
        self.modes.iter().find(|mode| mode.name.as_bytes() == name).copied()
    }
}

impl BranchMode {
    /// Whether changes are made on the branch.
    #[must_use]
    pub fn writes(self) -> bool {
        self.access == Access::ReadWrite
    }
}

impl fmt::Debug for LayerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerType").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Branches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Branches").field("option", &self.option).finish_non_exhaustive()
    }
}
