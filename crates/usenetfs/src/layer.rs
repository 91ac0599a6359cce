use crate::control::{CONVERT, STATE};
use crate::core::Core;
use crate::node::UsenetVnode;
use crate::scheme::SchemeChoice;
use stack::{Build, LayerType, OptionSpec, Settings, Traits};
use std::sync::Arc;
use vnode::{Command, Cx, Layer, Reports, Result, Upcalls, Vnode, WithoutNames, forward};

/// The declaration of `usenetfs`.
pub const LAYER: LayerType = LayerType {
    name: "usenetfs",
    about: "stores large directories as many small ones",
    options: &[
        OptionSpec {
            name: "scheme",
            value: Some("digits|hash"),
            help: "The scheme for directories that become managed by chmod(1). digits (the default) distributes numeric names over \
                   1000 subdirectories by their second to fourth lowest digits. hash distributes all names over as many \
                   subdirectories as necessary.",
        },
        OptionSpec {
            name: "limit",
            value: Some("N"),
            help: "With scheme=hash: split subdirectories with more than N entries; 2 to 1000000 (default 1000).",
        },
    ],
    build: Build::Over(&build),
    traits: Traits::NONE,
};

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Arc<dyn Layer>, String> {
    let hash = match settings.text("scheme")? {
        None | Some("digits") => false,
        Some("hash") => true,
        Some(other) => return Err(format!("scheme={other}: it is none of digits, hash")),
    };
    let limit: Option<u32> = settings.number("limit", 2..=1_000_000)?;
    if limit.is_some() && !hash {
        return Err("limit: needs scheme=hash".to_owned());
    }
    Ok(UsenetFs::new(lower, SchemeChoice { hash, limit }))
}

/// The layer.
#[derive(Debug)]
pub struct UsenetFs {
    lower: Arc<dyn Layer>,
    root: Arc<UsenetVnode>,
}

impl UsenetFs {
    /// Returns the layer over `lower`.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, choice: SchemeChoice) -> Arc<Self> {
        let core = Arc::new(Core::new(choice));
        let root = Arc::new(UsenetVnode::over(&core, lower.root()));
        Arc::new(Self { lower, root })
    }
}

impl Layer for UsenetFs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    forward!(lower: properties, sync, unmounted);

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        // Entries of a managed directory lie in other directories below.
        self.lower.attach(Arc::new(WithoutNames(upcalls)));
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        // Its own changes of managed directories are not reported, and reports have no names.
        None
    }

    fn commands(&self) -> Vec<Command> {
        [STATE, CONVERT].into_iter().chain(self.lower.commands()).collect()
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = self.lower.vnode(cx, number)?;
        if Arc::ptr_eq(&lower, &self.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(self.root.core.wrap_found(cx, lower)?))
    }
}
