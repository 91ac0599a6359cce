use super::{Attributes, Commands, Data, FileFormat, Ioctls, Layout, NameStore, Names, Objects, Operations};
use crate::Foreign;
use container::BlockCodec;
use std::sync::Arc;

/// The hooks of a layer together: what [`crate::Template::hooks`] puts over a layer, and what an object file exports.
///
/// ```
/// # use wrapfs::hooks::{Attributes, Hooks};
/// #[derive(Debug)]
/// struct AsItIs;
/// impl Attributes for AsItIs {}
///
/// let hooks = Hooks::new().attributes(AsItIs);
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Hooks {
    /// Names.
    pub names: Option<Box<dyn Names>>,
    /// How encoded names are kept.
    pub store: Option<Box<dyn NameStore>>,
    /// Attributes.
    pub attributes: Option<Box<dyn Attributes>>,
    /// Data.
    pub data: Option<Box<dyn Data>>,
    /// Data of another size, and what becomes of files that are not stored so. Takes the place of `data`.
    pub resizing: Option<(Arc<dyn BlockCodec>, Foreign)>,
    /// Data in blocks of a larger, fixed size. Takes the place of both. An object file with it is refused.
    pub format: Option<(Layout, Box<dyn FileFormat>)>,
    /// Operations.
    pub operations: Option<Box<dyn Operations>>,
    /// Ioctls.
    pub ioctls: Option<Box<dyn Ioctls>>,
    /// State of objects.
    pub objects: Option<Box<dyn Objects>>,
    /// Hooks can ask for paths.
    pub paths: bool,
    /// Nothing is ever changed through the layer.
    pub read_only: bool,
    /// Commands of the control channel. An object file with these is refused.
    pub commands: Option<Box<dyn Commands>>,
}

impl Hooks {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names are changed.
    pub fn names(self, hook: impl Names + 'static) -> Self {
        Self { names: Some(Box::new(hook)), ..self }
    }

    /// Encoded names are kept in the layer's own way: those that are too long, and what directories encode them with.
    pub fn store(self, hook: impl NameStore + 'static) -> Self {
        Self { store: Some(Box::new(hook)), ..self }
    }

    /// Attributes are changed.
    pub fn attributes(self, hook: impl Attributes + 'static) -> Self {
        Self { attributes: Some(Box::new(hook)), ..self }
    }

    /// Data are changed, and not their size.
    pub fn data(self, hook: impl Data + 'static) -> Self {
        Self { data: Some(Box::new(hook)), ..self }
    }

    /// Data are changed, and their size: see [`crate::Template::resizing`].
    pub fn resizing(self, codec: Arc<dyn BlockCodec>, foreign: Foreign) -> Self {
        Self { resizing: Some((codec, foreign)), ..self }
    }

    /// Data are stored in blocks of a larger, fixed size: see [`crate::Template::format`].
    pub fn format(self, layout: Layout, hook: impl FileFormat + 'static) -> Self {
        Self { format: Some((layout, Box::new(hook))), ..self }
    }

    /// Operations are seen.
    pub fn operations(self, hook: impl Operations + 'static) -> Self {
        Self { operations: Some(Box::new(hook)), ..self }
    }

    /// There are ioctls of its own.
    pub fn ioctls(self, hook: impl Ioctls + 'static) -> Self {
        Self { ioctls: Some(Box::new(hook)), ..self }
    }

    /// There is state with objects.
    pub fn objects(self, hook: impl Objects + 'static) -> Self {
        Self { objects: Some(Box::new(hook)), ..self }
    }

    /// Hooks can ask for the path of an object: see [`super::Object::path`]. Costs some memory for each object in use.
    pub fn paths(self) -> Self {
        Self { paths: true, ..self }
    }

    /// Nothing is ever changed through the layer: every change answers `EROFS` before a hook is called, files are not opened
    /// for writing, and a mount of it is shown as read-only.
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// There are commands of its own.
    pub fn commands(self, hook: impl Commands + 'static) -> Self {
        Self { commands: Some(Box::new(hook)), ..self }
    }
}
