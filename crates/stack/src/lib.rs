//! What a layer says of itself, and stacks of layers in words.
//!
//! * [`LayerType`] is all that is known of a kind of layer: its name, its options, what it stands
//!   on and how it is put there. Each layer's crate declares its own; the commands work by these
//!   declarations and know no layer's options.
//! * A layer stands on the one below it ([`Build::Over`]), or on any number of branches
//!   ([`Build::Branches`]), which an option of its own lists ([`mod@spec`]).
//! * What was given for these options: [`Given`] as it was written, with the escapes of all mount
//!   options ([`Text`]); [`Settings`] as the layer reads them, with what it says of wrong ones
//!   ([`value`]).
//! * A stack in words is read, with the types of a [`Catalog`], as a [`StackSpec`] ([`mod@spec`]).
//!
//! Nothing here touches a file system: the command that mounts opens the directories and hands them
//! to the layers.
#![forbid(unsafe_code)]

mod declare;
mod given;
mod list;
pub mod near;
mod settings;
pub mod spec;
#[cfg(test)]
mod testing;
mod text;
pub mod value;

pub use declare::{
    Access, Branch, BranchMode, Branches, Build, BuildOver, LayerType, Make, MakeOf, Manual, Needs, Opened, OptionSpec,
    Reopen, Reopened, Situation, Traits,
};
pub use given::{Given, name_and_value};
pub use settings::Settings;
pub use spec::{Catalog, StackSpec};
pub use text::{Text, Wrong, escape};
