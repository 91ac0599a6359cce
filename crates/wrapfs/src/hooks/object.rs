use core::fmt;
use std::any::Any;
use std::sync::Arc;
use vnode::{Attr, Cx, Errno, Kind, Result, Vnode};

/// Layer-specific state of an object: see [`Object::attach`].
pub type State = Arc<dyn Any + Send + Sync>;

/// The object passed to a hook, as it exists in the layer below.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    lower: &'a dyn Vnode,
    info: Option<&'a dyn ObjectInfo>,
    state: &'a [u8],
}

impl fmt::Debug for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("lower", &self.lower).finish_non_exhaustive()
    }
}

/// What an [`Object`] can return besides its vnode. Implemented by the lender of the object: the
/// template, or the C ABI of plugins.
pub trait ObjectInfo: Send + Sync {
    /// See [`Object::hold`].
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the lender does not support it.
    fn hold(&self) -> Result<Arc<dyn Vnode>>;

    /// See [`Object::path`].
    fn path(&self) -> Option<Vec<u8>>;

    /// See [`Object::attached`].
    fn attached(&self) -> Option<State>;

    /// See [`Object::attach`].
    fn attach(&self, state: State) -> Option<State>;
}

impl<'a> Object<'a> {
    /// Returns an object that consists of its vnode only.
    #[must_use]
    pub const fn new(lower: &'a dyn Vnode) -> Self {
        Self { lower, info: None, state: &[] }
    }

    /// Returns an object with further information in `info`.
    #[must_use]
    pub const fn with(lower: &'a dyn Vnode, info: &'a dyn ObjectInfo) -> Self {
        Self { lower, info: Some(info), state: &[] }
    }

    /// Returns the same object with the state of the directory.
    #[must_use]
    pub const fn with_state(self, state: &'a [u8]) -> Self {
        Self { state, ..self }
    }

    /// Returns the object's number, which never changes.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.lower.id()
    }

    /// Returns the object's type, which never changes.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.lower.kind()
    }

    /// Returns the attributes in the layer below. This costs one operation of that layer, so call
    /// it only where needed.
    ///
    /// # Errors
    /// The error of the layer below.
    pub fn attr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.lower.getattr(cx)
    }

    /// Returns the vnode of the layer below, for hooks that need more.
    #[must_use]
    pub const fn lower(&self) -> &'a dyn Vnode {
        self.lower
    }

    /// Returns a reference to the lower vnode that outlives the call, or can be passed to `link`
    /// and `rename` of the layer below.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an object not lent by the template; `ENOMEM`.
    pub fn hold(&self) -> Result<Arc<dyn Vnode>> {
        self.info.map_or(Err(Errno::OPNOTSUPP), ObjectInfo::hold)
    }

    /// Returns the state that names in this directory are encoded with, as created by the layer's
    /// [`crate::hooks::NameStore`]. Empty if directories have no state, and in hooks that do not
    /// translate names.
    #[must_use]
    pub const fn directory_state(&self) -> &'a [u8] {
        self.state
    }

    /// Returns a path from the root of this layer to the object, in plain names: `/` or `/a/b`.
    ///
    /// The path is a hint, for messages and rules. It is available only in layers that request it
    /// ([`crate::hooks::Hooks::paths`]):
    ///
    /// * It was correct when the template last looked up, created or renamed the object by that
    ///   name. It follows all changes made through this layer: renames of the object, renames of
    ///   its parent directories, and removals.
    /// * It is stale after an out-of-band rename, removal or replacement of one of its components,
    ///   until that component is looked up again.
    /// * For an object with several names, it is the path of the name used last. After that name is
    ///   removed it is `None`, even if other names remain, until one of them is looked up.
    /// * It is `None` if the object has no name, if it was opened by number while not in use, if
    ///   one of its parent directories is not in use, or if no path information is available.
    ///
    /// Do not open the object by this path: another object may be there by then.
    #[must_use]
    pub fn path(&self) -> Option<Vec<u8>> {
        self.info.and_then(ObjectInfo::path)
    }

    /// Returns the state attached to the object.
    #[must_use]
    pub fn attached(&self) -> Option<State> {
        self.info.and_then(ObjectInfo::attached)
    }

    /// Attaches layer-specific state to the object unless it already has some, and returns the
    /// attached state. Returns `None` if the layer has no [`crate::hooks::Objects`] hook.
    ///
    /// The state belongs to the object, whichever vnode or open file it is accessed through, until
    /// the object is no longer in use.
    #[must_use = "another thread may have attached another state"]
    pub fn attach(&self, state: State) -> Option<State> {
        self.info.and_then(|info| info.attach(state))
    }
}
