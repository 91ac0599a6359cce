use super::commands::OwnCommands;
use super::core::Core;
use super::data::Coding;
use super::format::Formatted;
use super::guard::guard;
use super::node::TemplateVnode;
use super::paths::Paths;
use super::record::Records;
use super::resized::{Foreign, Resizing};
use super::unchanged::UnchangedNames;
use super::watch::Watch;
use crate::WrapFs;
use crate::hooks::{
    Attached, Attributes, Commands, Data, FileFormat, Hooks, Ioctls, Journal, Layout, Matching, NameStore, Names,
    Objects, OpKind, Operations, StateFile, Xattrs, only_one,
};
use container::BlockCodec;
use std::sync::Arc;
use vnode::{Command, Cx, Layer, Name, Properties, Reports, Result, Upcalls, Vnode, WithoutNames};

/// Builds a layer from hooks. A hook that is not set is the identity and costs nothing.
///
/// ```
/// use wrapfs::Template;
/// use wrapfs::hooks::Attributes;
/// use vnode::Layer;
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Identity;
/// impl Attributes for Identity {}
///
/// fn layer(lower: Arc<dyn Layer>) -> Result<Arc<dyn Layer>, String> {
///     Template::over(lower).attributes(Identity).build()
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Template {
    core: Core,
    store: Option<Box<dyn NameStore>>,
    objects: Option<Box<dyn Objects>>,
    journal: Option<Journal>,
    paths: bool,
}

impl Template {
    /// Starts a layer over `lower`, without hooks.
    pub fn over(lower: Arc<dyn Layer>) -> Self {
        Self { core: Core::new(lower), store: None, objects: None, journal: None, paths: false }
    }

    /// Translates names with `hook`.
    pub fn names(mut self, hook: impl Names + 'static) -> Self {
        self.core.names = Some(Box::new(hook));
        self
    }

    /// Stores encoded names as `hook` specifies: see [`NameStore`].
    pub fn store(mut self, hook: impl NameStore + 'static) -> Self {
        self.store = Some(Box::new(hook));
        self
    }

    /// Translates attributes with `hook`.
    pub fn attributes(mut self, hook: impl Attributes + 'static) -> Self {
        self.core.attributes = Some(Box::new(hook));
        self
    }

    /// Translates extended attributes with `hook`.
    pub fn xattrs(mut self, hook: impl Xattrs + 'static) -> Self {
        self.core.xattrs = Some(Box::new(hook));
        self
    }

    /// Transforms data with `hook`, keeping its size.
    pub fn data(mut self, hook: impl Data + 'static) -> Self {
        self.core.data = Some(Coding::new(Box::new(hook)));
        self
    }

    /// Transforms data into a different size: files below are containers of blocks encoded by
    /// `codec`. Excludes [`Self::data`]: [`Self::build`] fails if both are set.
    pub fn resizing(mut self, codec: Arc<dyn BlockCodec>, foreign: Foreign) -> Self {
        self.core.resizing = Some(Resizing::new(codec, foreign));
        self
    }

    /// Stores data behind a header, in blocks of a larger, fixed size. Excludes [`Self::data`] and
    /// [`Self::resizing`]: [`Self::build`] fails if several are set.
    pub fn format(mut self, layout: Layout, hook: impl FileFormat + 'static) -> Self {
        self.core.format = Some(Formatted::new(layout, Box::new(hook)));
        self
    }

    /// Protects files stored in a format from being torn: see [`Hooks::journal`].
    pub fn journal(mut self, journal: Journal) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Observes operations with `hook`.
    pub fn operations(mut self, hook: impl Operations + 'static) -> Self {
        self.core.watch = Some(Watch::new(Box::new(hook)));
        self
    }

    /// Handles layer-specific ioctls with `hook`.
    pub fn ioctls(mut self, hook: impl Ioctls + 'static) -> Self {
        self.core.ioctls = Some(Box::new(hook));
        self
    }

    /// Keeps state for objects with `hook`.
    pub fn objects(mut self, hook: impl Objects + 'static) -> Self {
        self.objects = Some(Box::new(hook));
        self
    }

    /// Lets hooks query paths: see [`Hooks::paths`].
    pub fn paths(mut self) -> Self {
        self.paths = true;
        self
    }

    /// Makes the layer read-only: see [`Hooks::read_only`].
    pub fn read_only(mut self) -> Self {
        self.core.read_only = true;
        self
    }

    /// Declares that the hooks' results depend on the caller: see [`Hooks::varies_by_caller`].
    pub fn varies_by_caller(mut self) -> Self {
        self.core.varies_by_caller = true;
        self
    }

    /// Receives the upcalls of the mount: see [`Hooks::attached`].
    pub fn attached(mut self, receive: impl Fn(Arc<dyn Upcalls>) + Send + Sync + 'static) -> Self {
        self.core.attached = Some(Attached::new(receive));
        self
    }

    /// Adds the commands of `hook` to the control channel.
    pub fn commands(mut self, hook: impl Commands + 'static) -> Self {
        self.core.commands = Some(OwnCommands::new(Box::new(hook)));
        self
    }

    /// Uses these hooks, replacing all hooks set before.
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        self.core.read_only = hooks.read_only;
        self.core.varies_by_caller = hooks.varies_by_caller;
        self.core.attached = hooks.attached;
        self.core.names = hooks.names;
        self.core.attributes = hooks.attributes;
        self.core.xattrs = hooks.xattrs;
        self.core.data = hooks.data.map(Coding::new);
        self.core.resizing = hooks.resizing.map(|(codec, foreign)| Resizing::new(codec, foreign));
        self.core.format = hooks.format.map(|(layout, hook)| Formatted::new(layout, hook));
        self.core.watch = hooks.operations.map(Watch::new);
        self.core.ioctls = hooks.ioctls;
        self.store = hooks.store;
        self.objects = hooks.objects;
        self.paths = hooks.paths;
        self.journal = hooks.journal;
        self.core.commands = hooks.commands.map(OwnCommands::new);
        self
    }

    /// Returns the layer, or a null layer if no hooks are set.
    ///
    /// # Errors
    /// Several hooks that transform data are set, or the journal of a previous server cannot be
    /// applied. The error is a sentence for the mounting user.
    pub fn build(self) -> core::result::Result<Arc<dyn Layer>, String> {
        let mut core = self.core;
        only_one([core.data.is_some(), core.resizing.is_some(), core.format.is_some()])?;
        let lower_root = core.lower.root();
        if let Some(store) = self.store {
            core.store_names(store);
        }
        if let Some(journal) = self.journal {
            core.keep_journal(journal)?;
        }
        let paths = self.paths.then(|| Paths::new(lower_root.id()));
        core.records = Records::new(self.objects, paths, core.state_file.is_some());
        if core.has_no_hooks() {
            return Ok(WrapFs::new(core.lower));
        }
        if let Some(resizing) = &mut core.resizing {
            resizing.read_only = core.read_only;
        }
        if let Some(hook) = &core.names {
            // If the hook fails, let the kernel cache no names.
            core.matching = guard("matching", || Ok(hook.matching())).unwrap_or(Matching::Encoded);
        }
        let core = Arc::new(core);
        let root = Arc::new(TemplateVnode::over(&core, lower_root));
        Ok(Arc::new(TemplateFs { core, root }))
    }
}

/// Maximum size of directory state in bytes.
const LONGEST_STATE: usize = 64 << 10;

impl Core {
    /// Stores names with a hook from here on. If the hook cannot name its state file, the layer
    /// becomes read-only.
    fn store_names(&mut self, store: Box<dyn NameStore>) {
        let is_valid = |file: &StateFile| Name::new(&file.name).is_ok() && file.longest <= LONGEST_STATE;
        match guard("state_file", || Ok(store.state_file())) {
            Ok(file) if file.as_ref().is_none_or(is_valid) => self.state_file = file,
            _ => {
                tracing::error!(hook = ?store, "state_file failed or returned an invalid state file: the layer is read-only");
                self.read_only = true;
            }
        }
        self.store = store;
        self.names.get_or_insert_with(|| Box::new(UnchangedNames));
    }

    fn has_no_sizes(&self) -> bool {
        self.resizing.is_none() && self.format.is_none()
    }

    fn has_no_hooks(&self) -> bool {
        let none = !self.read_only && self.names.is_none() && self.attributes.is_none() && self.ioctls.is_none();
        let none = none && self.commands.is_none() && self.xattrs.is_none();
        let none = none && !self.varies_by_caller && self.attached.is_none();
        none && self.records.is_none() && self.watch.is_none() && self.data.is_none() && self.has_no_sizes()
    }
}

/// A layer built from the template.
#[derive(Debug)]
struct TemplateFs {
    core: Arc<Core>,
    root: Arc<TemplateVnode>,
}

impl Layer for TemplateFs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn properties(&self) -> Properties {
        let below = self.core.lower.properties();
        Properties {
            read_only: below.read_only || self.core.read_only,
            audits_refusals: below.audits_refusals || self.core.watch(OpKind::Refused).is_some(),
            varies_by_caller: below.varies_by_caller || self.core.varies_by_caller,
            merges_names: below.merges_names || self.core.matching != Matching::Exact,
            ..below
        }
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        if let Some(attached) = &self.core.attached {
            // A panic has been logged; the layer works without upcalls.
            let _ = guard("attached", || {
                attached.call(Arc::clone(&upcalls));
                Ok(())
            });
        }
        if let Some(journal) = self.core.format.as_ref().and_then(|format| format.journal.as_ref()) {
            journal.attach(Arc::clone(&upcalls));
        }
        if self.core.names.is_some() {
            // Names differ below.
            self.core.lower.attach(Arc::new(WithoutNames(upcalls)));
        } else {
            self.core.lower.attach(upcalls);
        }
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        // Hooks may show other entries than the layer below.
        None
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = self.core.lower.vnode(cx, number)?;
        if Arc::ptr_eq(&lower, &self.core.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(self.core.wrap_found(cx, lower)?))
    }

    fn commands(&self) -> Vec<Command> {
        self.core.all_commands()
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.core.lower.sync(cx)
    }

    fn unmounted(&self) {
        if let Some(journal) = self.core.format.as_ref().and_then(|format| format.journal.as_ref()) {
            journal.remove();
        }
        self.core.lower.unmounted();
    }
}
