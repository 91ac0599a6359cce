use super::{
    Attached, Attributes, Commands, Data, FileFormat, Ioctls, Journal, Layout, NameStore, Names, Objects, Operations,
    Xattrs,
};
use crate::Foreign;
use container::BlockCodec;
use std::sync::Arc;
use vnode::Upcalls;

/// The hooks of a layer: the argument of [`crate::Template::hooks`], and what a plugin (a shared
/// object) exports.
///
/// ```
/// # use wrapfs::hooks::{Attributes, Hooks};
/// #[derive(Debug)]
/// struct Identity;
/// impl Attributes for Identity {}
///
/// let hooks = Hooks::new().attributes(Identity);
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Hooks {
    /// Translates names.
    pub names: Option<Box<dyn Names>>,
    /// Determines how encoded names are stored.
    pub store: Option<Box<dyn NameStore>>,
    /// Translates attributes.
    pub attributes: Option<Box<dyn Attributes>>,
    /// Translates extended attributes. Not available to plugins.
    pub xattrs: Option<Box<dyn Xattrs>>,
    /// Transforms data of the same size.
    pub data: Option<Box<dyn Data>>,
    /// Transforms data into a different size, with a policy for files that are not containers.
    /// Excludes `data`.
    pub resizing: Option<(Arc<dyn BlockCodec>, Foreign)>,
    /// Stores data in blocks of a larger, fixed size. Excludes `data` and `resizing`. Not available
    /// to plugins.
    pub format: Option<(Layout, Box<dyn FileFormat>)>,
    /// Protects files stored with `format` from being torn.
    pub journal: Option<Journal>,
    /// Observes operations.
    pub operations: Option<Box<dyn Operations>>,
    /// Handles layer-specific ioctls.
    pub ioctls: Option<Box<dyn Ioctls>>,
    /// Keeps state for objects.
    pub objects: Option<Box<dyn Objects>>,
    /// Whether hooks can query paths.
    pub paths: bool,
    /// Whether the layer is read-only.
    pub read_only: bool,
    /// Whether callers see different names, attributes or data. Not available to plugins.
    pub varies_by_caller: bool,
    /// Receives the upcalls of the mount. Not available to plugins.
    pub attached: Option<Attached>,
    /// Adds commands to the control channel. Not available to plugins.
    pub commands: Option<Box<dyn Commands>>,
}

impl Hooks {
    /// Returns an empty set of hooks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks that at most one of `data`, `resizing` and `format` is set.
    /// [`crate::Template::build`] checks this too.
    ///
    /// # Errors
    /// Names two of them, and what to do.
    pub fn check(&self) -> Result<(), String> {
        only_one([self.data.is_some(), self.resizing.is_some(), self.format.is_some()])
    }

    /// Translates names with `hook`.
    pub fn names(self, hook: impl Names + 'static) -> Self {
        Self { names: Some(Box::new(hook)), ..self }
    }

    /// Stores encoded names as `hook` specifies: names that are too long, and the encoding state of
    /// directories.
    pub fn store(self, hook: impl NameStore + 'static) -> Self {
        Self { store: Some(Box::new(hook)), ..self }
    }

    /// Translates attributes with `hook`.
    pub fn attributes(self, hook: impl Attributes + 'static) -> Self {
        Self { attributes: Some(Box::new(hook)), ..self }
    }

    /// Translates extended attributes with `hook`.
    pub fn xattrs(self, hook: impl Xattrs + 'static) -> Self {
        Self { xattrs: Some(Box::new(hook)), ..self }
    }

    /// Transforms data with `hook`, keeping its size.
    pub fn data(self, hook: impl Data + 'static) -> Self {
        Self { data: Some(Box::new(hook)), ..self }
    }

    /// Transforms data into a different size: see [`crate::Template::resizing`].
    pub fn resizing(self, codec: Arc<dyn BlockCodec>, foreign: Foreign) -> Self {
        Self { resizing: Some((codec, foreign)), ..self }
    }

    /// Stores data in blocks of a larger, fixed size: see [`crate::Template::format`].
    pub fn format(self, layout: Layout, hook: impl FileFormat + 'static) -> Self {
        Self { format: Some((layout, Box::new(hook))), ..self }
    }

    /// Keeps a journal of changes of files stored with [`Self::format`]. If the server is killed at
    /// any moment, each block then has its old or its new contents at the next mount. Only one
    /// server at a time may use the tree.
    pub fn journal(self, journal: Journal) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// Observes operations with `hook`.
    pub fn operations(self, hook: impl Operations + 'static) -> Self {
        Self { operations: Some(Box::new(hook)), ..self }
    }

    /// Handles layer-specific ioctls with `hook`.
    pub fn ioctls(self, hook: impl Ioctls + 'static) -> Self {
        Self { ioctls: Some(Box::new(hook)), ..self }
    }

    /// Keeps state for objects with `hook`.
    pub fn objects(self, hook: impl Objects + 'static) -> Self {
        Self { objects: Some(Box::new(hook)), ..self }
    }

    /// Lets hooks query the path of an object: see [`super::Object::path`]. Costs some memory for
    /// each object in use.
    pub fn paths(self) -> Self {
        Self { paths: true, ..self }
    }

    /// Makes the layer read-only. Every change fails with `EROFS` before a hook is called, files
    /// are not opened for writing, and the mount is read-only.
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Declares that what the hooks return depends on the caller, for example on the keys that the
    /// caller has. The kernel then caches nothing that callers share:
    /// [`vnode::Properties::varies_by_caller`].
    pub fn varies_by_caller(self) -> Self {
        Self { varies_by_caller: true, ..self }
    }

    /// Calls `receive` once, before the first operation of a mount, with the means to report
    /// changes that no operation made: [`Upcalls`]. It takes the numbers of objects that hooks see
    /// ([`super::Object::id`]), and the names that programs see. A layer that is never mounted
    /// does not call it.
    ///
    /// The hooks are dropped after the last operation, vnode and open file of the layer.
    pub fn attached(self, receive: impl Fn(Arc<dyn Upcalls>) + Send + Sync + 'static) -> Self {
        Self { attached: Some(Attached::new(receive)), ..self }
    }

    /// Adds the commands of `hook` to the control channel.
    pub fn commands(self, hook: impl Commands + 'static) -> Self {
        Self { commands: Some(Box::new(hook)), ..self }
    }
}

/// Checks that at most one of `data`, `resizing` and `format` is set: the others would never be
/// called, and a layer that encrypts would store plain data.
pub(crate) fn only_one(set: [bool; 3]) -> Result<(), String> {
    let mut names = ["data", "resizing", "format"].into_iter().zip(set).filter_map(|(name, set)| set.then_some(name));
    match (names.next(), names.next()) {
        (Some(one), Some(other)) => {
            Err(format!("the layer has both {one} and {other}; use only one, or split it into two layers"))
        }
        _ => Ok(()),
    }
}
