//! What a layer says of itself, so that it can be named in a mount option, explained by `--help`
//! and put on others.

use crate::Settings;
use core::fmt;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;
use vnode::Layer;

/// A kind of layer: over the one below it, or over any number of branches.
///
/// ```
/// # use stack::{Build, LayerType, Traits};
/// /// Adds nothing.
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
    /// The options that it takes.
    pub options: &'static [OptionSpec],
    /// What it stands on, and how it is put there.
    pub build: Build,
    /// What else has to be known of it.
    pub traits: Traits,
}

/// What a layer stands on, and how it is put there.
#[derive(Clone, Copy)]
pub enum Build {
    /// On the one layer below it in the stack.
    Over(&'static BuildOver),
    /// On branches: directories, or whole stacks, that one of its options lists. It ends a stack.
    Branches(&'static Branches),
}

/// Puts a layer on the one below. The error is a sentence for the person who mounts.
pub type BuildOver = dyn Fn(Arc<dyn Layer>, &Settings) -> Result<Arc<dyn Layer>, String> + Send + Sync;

/// An option of a layer, as it stands in a mount's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// How its value is shown in the help (`"N"`, `"random|hash"`); `None`: it has none.
    pub value: Option<&'static str>,
    /// What it does, in sentences, with the default.
    pub help: &'static str,
}

/// What the command that mounts has to know of a layer beside its options.
#[derive(Clone, Copy)]
pub struct Traits {
    /// Checks the settings and says what the mount needs for them. Called before anything is
    /// opened. The error is a sentence for the person who mounts.
    pub needs: fn(&Settings) -> Result<Needs, String>,
    /// Mounting it twice at one place over the same directories is a mistake, and is refused.
    pub once: bool,
    /// The text of its manual page; `None`: one is made of what it declares.
    pub manual: Option<&'static Manual>,
}

impl Traits {
    /// Of a layer that needs nothing in particular.
    pub const NONE: Self = Self { needs: |_| Ok(Needs::NONE), once: false, manual: None };
}

/// What a mount has to do because of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Nothing can be changed through the layer, whatever lies below: the mount is read-only.
    pub read_only: bool,
    /// How long the kernel may cache names and attributes at most, where the mount has no `cache=`;
    /// `None`: the default.
    pub cache: Option<Duration>,
    /// Positions in directories have 31 bits.
    pub narrow_positions: bool,
    /// The layer is there to warn. Where the system has neither journal nor syslog, its warnings go
    /// to this file.
    pub warns: Option<&'static str>,
}

impl Needs {
    /// Nothing in particular.
    pub const NONE: Self = Self { read_only: false, cache: None, narrow_positions: false, warns: None };
}

/// The text of a manual page and of `--help`. What all layers have in common is added to it.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// What `mount -t NAME` does, in a line without a full stop.
    pub title: &'static str,
    /// The first argument of `mount -t NAME` and what it is; `None`: what follows from
    /// [`LayerType::build`].
    pub argument: Option<(&'static str, &'static str)>,
    /// Paragraphs.
    pub description: &'static [&'static str],
    /// A line of shell or of fstab(5), and what it is for.
    pub examples: &'static [(&'static str, &'static str)],
}

/// A layer over branches: how they are listed, used and opened.
#[derive(Clone, Copy)]
pub struct Branches {
    /// The option that lists them, one of [`LayerType::options`]: `PATH[=MODE]:PATH[=MODE]:...`.
    pub option: &'static str,
    /// The first argument of `mount -t NAME` is such a list. Otherwise it is only a name to show.
    pub first_argument: bool,
    /// The list may go on after a comma, and be given again: then the lists are joined. Otherwise
    /// the last one counts.
    pub joined: bool,
    /// What one of them is called, and several: `("replica", "replicas")`.
    pub noun: (&'static str, &'static str),
    /// A list as it can stand in a stack: `"dirs=/a:/b"`.
    pub example: &'static str,
    /// The modes that can be written after a branch; none: a `=` is part of the path.
    pub modes: &'static [BranchMode],
    /// The mode of a branch that has none written, by its index and whether the whole is mounted
    /// read-only.
    pub unmarked: fn(usize, bool) -> BranchMode,
    /// If anything can be changed, changes go to the first branch: it must be writable where any is
    /// to be written.
    pub first_takes_changes: bool,
    /// Puts the layer on its branches.
    pub make: Make,
}

/// How a branch is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchMode {
    /// As it is written, and as reports show it.
    pub name: &'static str,
    /// May it be changed?
    pub access: Access,
}

/// What may be done with a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is never changed.
    ReadOnly,
    /// Changes go there. No other server may write to its directories at the same time.
    ReadWrite,
}

/// A branch, as [`Branches::make`] gets it.
#[derive(Clone, Debug)]
pub struct Branch<T> {
    /// Its path, absolute and without symbolic links, or that of all directories of a stack and the
    /// layers' names. The same branch has the same name whenever it is mounted.
    pub name: PathBuf,
    /// How it is used.
    pub mode: BranchMode,
    /// What it is.
    pub lower: T,
}

/// A branch that is open.
pub type Opened = Branch<Arc<dyn Layer>>;

/// A branch that the layer opens by itself.
pub type Reopened = Branch<Reopen>;

/// Opens a branch, anew at each call. May hang.
pub type Reopen = Box<dyn Fn() -> vnode::Result<Arc<dyn Layer>> + Send + Sync>;

/// How a layer is put on its branches. The error is a sentence for the person who mounts.
#[derive(Clone, Copy)]
pub enum Make {
    /// All branches are opened first, and must be there.
    Opened(&'static MakeOf<Opened>),
    /// The layer opens them, as often as it needs to. They can be away or hang, so nothing touches
    /// them before.
    Reopened(&'static MakeOf<Reopened>),
}

/// See [`Make`].
pub type MakeOf<B> = dyn Fn(Vec<B>, &Settings, &Situation) -> Result<Arc<dyn Layer>, String> + Send + Sync;

/// What a layer may have to know of the mount that it is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// `passthrough=`, where that was given.
    pub passthrough: Option<bool>,
    /// May the server give files to other users?
    pub may_give_away: bool,
}

impl LayerType {
    /// Puts the layer on `lower`.
    ///
    /// # Errors
    /// A sentence for the person who mounts: an option that is wrong, or a layer over branches.
    pub fn over(&self, lower: Arc<dyn Layer>, settings: &Settings) -> Result<Arc<dyn Layer>, String> {
        match self.build {
            Build::Over(build) => build(lower, settings),
            Build::Branches(of) => Err(format!("{} lists what it stands on in {}=", self.name, of.option)),
        }
    }

    /// How its branches are listed, if it stands on any.
    #[must_use]
    pub const fn branches(&self) -> Option<&'static Branches> {
        match self.build {
            Build::Over(_) => None,
            Build::Branches(branches) => Some(branches),
        }
    }
}

impl Branches {
    /// The mode of that name.
    #[must_use]
    pub fn mode(&self, name: &[u8]) -> Option<BranchMode> {
        self.modes.iter().find(|mode| mode.name.as_bytes() == name).copied()
    }
}

impl BranchMode {
    /// Do changes go to the branch?
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
