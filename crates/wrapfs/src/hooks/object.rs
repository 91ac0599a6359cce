use core::fmt;
use std::any::Any;
use std::sync::Arc;
use vnode::{Attr, Cx, Errno, Kind, Result, Vnode};

/// The layer's own state of an object: see [`Object::attach`].
pub type State = Arc<dyn Any + Send + Sync>;

/// The object that a hook is asked about, as it is in the layer below.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    lower: &'a dyn Vnode,
    known: Option<&'a dyn Known>,
    state: &'a [u8],
}

impl fmt::Debug for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("lower", &self.lower).finish_non_exhaustive()
    }
}

/// What is known of an object beside its vnode: implemented by whoever lends objects to hooks, the template or the border of
/// an object file.
pub trait Known: Send + Sync {
    /// See [`Object::hold`].
    ///
    /// # Errors
    /// `EOPNOTSUPP` where that can't be had.
    fn hold(&self) -> Result<Arc<dyn Vnode>>;

    /// See [`Object::path`].
    fn path(&self) -> Option<Vec<u8>>;

    /// See [`Object::attached`].
    fn attached(&self) -> Option<State>;

    /// See [`Object::attach`].
    fn attach(&self, state: State) -> Option<State>;
}

impl<'a> Object<'a> {
    /// What a hook sees of a vnode of the layer below, if nothing else is known of it.
    #[must_use]
    pub const fn new(lower: &'a dyn Vnode) -> Self {
        Self { lower, known: None, state: &[] }
    }

    /// The same, with what else is known of it.
    #[must_use]
    pub const fn with(lower: &'a dyn Vnode, known: &'a dyn Known) -> Self {
        Self { lower, known: Some(known), state: &[] }
    }

    /// The same, with the state of the directory.
    #[must_use]
    pub const fn with_state(self, state: &'a [u8]) -> Self {
        Self { state, ..self }
    }

    /// Its number: the same for ever.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.lower.id()
    }

    /// What it is: the same for ever.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.lower.kind()
    }

    /// Its attributes, as the layer below has them. Costs an operation of that layer: to be asked for only where they matter.
    ///
    /// # Errors
    /// Those of the layer below.
    pub fn attr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.lower.getattr(cx)
    }

    /// The vnode of the layer below, for hooks that need more.
    #[must_use]
    pub const fn lower(&self) -> &'a dyn Vnode {
        self.lower
    }

    /// The same to keep: past the end of the call, or as an argument of `link` and `rename` of the layer below.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an object that is not lent by the template; `ENOMEM`.
    pub fn hold(&self) -> Result<Arc<dyn Vnode>> {
        self.known.map_or(Err(Errno::OPNOTSUPP), Known::hold)
    }

    /// What names in this directory are encoded with, as the layer's [`crate::hooks::NameStore`] made it. Empty where directories have
    /// no state, and in hooks that are not about names.
    #[must_use]
    pub const fn directory_state(&self) -> &'a [u8] {
        self.state
    }

    /// A path that leads to the object from the root of this layer, in names as programs see them: `/` or `/a/b`.
    ///
    /// It is a hint, for messages and rules, and only for a layer that asks for it ([`crate::hooks::Hooks::paths`]):
    ///
    /// * It was right when the template last looked the object up, created or renamed it by that name, and it follows all that
    ///   is done through this layer: renames of the object, of the directories above it, and removals.
    /// * It is out of date while somebody renames, removes or replaces a part of it below, until that is looked up again.
    /// * An object with several names has the path of the last one that was used. Removing that one leaves `None`, also
    ///   where other names remain, until one of them is looked up.
    /// * `None`: the object has no name, or was reached by its number after nobody had it in use, or a directory above it is not
    ///   in use; or nothing is known at all.
    ///
    /// It must not be used to reach the object: what is there by then may be another one.
    #[must_use]
    pub fn path(&self) -> Option<Vec<u8>> {
        self.known.and_then(Known::path)
    }

    /// The state that is attached to the object.
    #[must_use]
    pub fn attached(&self) -> Option<State> {
        self.known.and_then(Known::attached)
    }

    /// Attaches state of the layer's own to the object, unless it has some; answers the attached one. `None`: there is none, since
    /// the layer has no [`crate::hooks::Objects`] hook.
    ///
    /// The state stays with the object, whichever vnode or open file it is reached by, until nobody uses it any more.
    #[must_use = "another thread may have attached another state"]
    pub fn attach(&self, state: State) -> Option<State> {
        self.known.and_then(|known| known.attach(state))
    }
}
