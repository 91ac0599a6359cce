use super::commands::Own;
use super::core::Core;
use super::data::Coding;
use super::format::Formatted;
use super::guard::guard;
use super::node::TemplateVnode;
use super::paths::Paths;
use super::record::Records;
use super::resized::{Foreign, Resizing};
use super::watch::Watch;
use crate::WrapFs;
use crate::hooks::{
    Attributes, Commands, Data, FileFormat, Hooks, Ioctls, Layout, Matching, NameStore, Names, Object, Objects, OpKind,
    Operations, StateFile,
};
use container::BlockCodec;
use std::sync::Arc;
use vnode::{Command, Cx, Layer, Name, Properties, Result, Upcalls, Vnode};

/// Builds a layer out of hooks: each that is not given is the identity, and costs nothing.
///
/// ```
/// use wrapfs::Template;
/// use wrapfs::hooks::Attributes;
/// use vnode::Layer;
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct AsItIs;
/// impl Attributes for AsItIs {}
///
/// fn layer(lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
///     Template::over(lower).attributes(AsItIs).build()
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Template {
    core: Core,
    store: Option<Box<dyn NameStore>>,
    objects: Option<Box<dyn Objects>>,
    paths: bool,
}

impl Template {
    /// A layer over `lower`, without hooks.
    pub fn over(lower: Arc<dyn Layer>) -> Self {
        Self { core: Core::new(lower), store: None, objects: None, paths: false }
    }

    /// Names are changed.
    pub fn names(mut self, hook: impl Names + 'static) -> Self {
        self.core.names = Some(Box::new(hook));
        self
    }

    /// Encoded names are kept in the layer's own way: see [`NameStore`].
    pub fn store(mut self, hook: impl NameStore + 'static) -> Self {
        self.store = Some(Box::new(hook));
        self
    }

    /// Attributes are changed.
    pub fn attributes(mut self, hook: impl Attributes + 'static) -> Self {
        self.core.attributes = Some(Box::new(hook));
        self
    }

    /// Data are changed, and not their size.
    pub fn data(mut self, hook: impl Data + 'static) -> Self {
        self.core.data = Some(Coding::new(Box::new(hook)));
        self
    }

    /// Data are changed, and their size: files below are containers of blocks that `codec` encodes. This takes the place of [`Self::data`]; a
    /// layer that needs both is two.
    pub fn resizing(mut self, codec: Arc<dyn BlockCodec>, foreign: Foreign) -> Self {
        self.core.resizing = Some(Resizing::new(codec, foreign));
        self
    }

    /// Data are stored behind a header, in blocks of a larger, fixed size. This takes the place of [`Self::data`] and
    /// [`Self::resizing`]; a layer that needs two of them is two.
    pub fn format(mut self, layout: Layout, hook: impl FileFormat + 'static) -> Self {
        self.core.format = Some(Formatted::new(layout, Box::new(hook)));
        self
    }

    /// Operations are seen.
    pub fn operations(mut self, hook: impl Operations + 'static) -> Self {
        self.core.watch = Some(Watch::new(Box::new(hook)));
        self
    }

    /// There are ioctls of its own.
    pub fn ioctls(mut self, hook: impl Ioctls + 'static) -> Self {
        self.core.ioctls = Some(Box::new(hook));
        self
    }

    /// There is state with objects.
    pub fn objects(mut self, hook: impl Objects + 'static) -> Self {
        self.objects = Some(Box::new(hook));
        self
    }

    /// Hooks can ask for paths: see [`Hooks::paths`].
    pub fn paths(mut self) -> Self {
        self.paths = true;
        self
    }

    /// Nothing is ever changed through the layer: see [`Hooks::read_only`].
    pub fn read_only(mut self) -> Self {
        self.core.read_only = true;
        self
    }

    /// There are commands of its own.
    pub fn commands(mut self, hook: impl Commands + 'static) -> Self {
        self.core.commands = Some(Own::new(Box::new(hook)));
        self
    }

    /// These hooks, in place of all that were given before.
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        self.core.read_only = hooks.read_only;
        self.core.names = hooks.names;
        self.core.attributes = hooks.attributes;
        self.core.data = hooks.data.map(Coding::new);
        self.core.resizing = hooks.resizing.map(|(codec, foreign)| Resizing::new(codec, foreign));
        self.core.format = hooks.format.map(|(layout, hook)| Formatted::new(layout, hook));
        self.core.watch = hooks.operations.map(Watch::new);
        self.core.ioctls = hooks.ioctls;
        self.store = hooks.store;
        self.objects = hooks.objects;
        self.paths = hooks.paths;
        self.core.commands = hooks.commands.map(Own::new);
        self
    }

    /// The layer; the null layer if there are no hooks.
    #[must_use]
    pub fn build(self) -> Arc<dyn Layer> {
        let mut core = self.core;
        let lower_root = core.lower.root();
        if let Some(store) = self.store {
            core.store_names(store);
        }
        let paths = self.paths.then(|| Paths::new(lower_root.id()));
        core.records = Records::new(self.objects, paths, core.state_file.is_some());
        if core.has_no_hooks() {
            return WrapFs::new(core.lower);
        }
        if let Some(resizing) = &mut core.resizing {
            resizing.read_only = core.read_only;
        }
        if let Some(hook) = &core.names {
            // In doubt the kernel caches no names.
            core.matching = guard("matching", || Ok(hook.matching())).unwrap_or(Matching::Encoded);
        }
        let core = Arc::new(core);
        let root = Arc::new(TemplateVnode::over(&core, lower_root));
        Arc::new(TemplateFs { core, root })
    }
}

/// Leaves names as they are: for a layer that only keeps some of them for itself.
#[derive(Debug)]
struct AsTheyAre;

impl Names for AsTheyAre {
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }
}

/// The longest state of a directory in bytes.
const LONGEST_STATE: usize = 64 << 10;

impl Core {
    /// Names are kept by a hook from here on. One that can't be asked for the file of its state is none that can be used.
    fn store_names(&mut self, store: Box<dyn NameStore>) {
        let is_possible = |file: &StateFile| Name::new(&file.name).is_ok() && file.longest <= LONGEST_STATE;
        match guard("state_file", || Ok(store.state_file())) {
            Ok(asked) if asked.as_ref().is_none_or(is_possible) => self.state_file = asked,
            _ => {
                tracing::error!(hook = ?store, "state_file names no file that can be: the layer lets nothing change");
                self.read_only = true;
            }
        }
        self.store = store;
        self.names.get_or_insert_with(|| Box::new(AsTheyAre));
    }

    fn has_no_sizes(&self) -> bool {
        self.resizing.is_none() && self.format.is_none()
    }

    fn has_no_hooks(&self) -> bool {
        let none = !self.read_only && self.names.is_none() && self.attributes.is_none() && self.ioctls.is_none();
        let none = none && self.commands.is_none();
        none && self.records.is_none() && self.watch.is_none() && self.data.is_none() && self.has_no_sizes()
    }
}

/// A layer made with the template.
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
            watches_refusals: below.watches_refusals || self.core.watch(OpKind::Refused).is_some(),
            merges_names: below.merges_names || self.core.matching != Matching::Exact,
            ..below
        }
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        self.core.lower.attach(upcalls);
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = self.core.lower.vnode(cx, number)?;
        if Arc::ptr_eq(&lower, &self.core.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(self.core.raise_found(cx, lower)?))
    }

    fn commands(&self) -> Vec<Command> {
        self.core.all_commands()
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.core.lower.sync(cx)
    }
}
