//! Declarations of layers, and the text form of stacks.
//!
//! * [`LayerType`] declares a type of layer: its name, its options, what it is stacked on and how
//!   it is built. Each layer's crate declares its own type. The commands work from these
//!   declarations and do not know the options of any layer.
//! * A layer is built over the layer below it ([`Build::Over`]), or over any number of branches
//!   ([`Build::Branches`]), which one of its options lists ([`mod@spec`]).
//! * Some layers can change their branches while they are in use: [`LiveBranches`].
//! * Option values: [`Given`] holds them as written, with the escapes common to all mount options
//!   ([`Text`]). [`Settings`] holds them as the layer reads them, with common error messages
//!   ([`value`]).
//! * The text form of a stack is parsed into a [`StackSpec`], using the types of a [`Catalog`]
//!   ([`mod@spec`]).
//!
//! Nothing here accesses a file system: the mount command opens the directories and passes them to
//! the layers.
#![forbid(unsafe_code)]

mod catalog;
mod declare;
mod given;
mod list;
mod live;
mod settings;
pub mod spec;
pub mod suggest;
#[cfg(test)]
mod testing;
mod text;
pub mod value;

pub use catalog::Catalog;
pub use declare::{
    Access, Branch, BranchMode, Branches, Build, BuildOver, LayerType, Made, Make, MakeOf, Manual, Needs, Opened,
    OptionSpec, Reopen, Reopened, Situation, Traits,
};
pub use given::{Given, name_and_value};
pub use live::{BranchChange, BranchList, ChangeError, ChangePolicy, InUse, ListedBranch, LiveBranches, OpenedFile};
pub use settings::Settings;
pub use spec::StackSpec;
pub use text::{Text, TextError, escape};
