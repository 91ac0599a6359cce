use crate::core::Core;
use crate::node::VersionVnode;
use crate::options::{CopyOn, NoSpace, Options, Storage};
use crate::upcalls::SharedStops;
use stack::{Build, LayerType, OptionSpec, Settings, Traits};
use std::sync::Arc;
use vnode::{Command, Cx, Layer, Result, Upcalls, Vnode, forward};

/// The declaration of `versionfs`.
pub const LAYER: LayerType = LayerType {
    name: "versionfs",
    about: "keeps every version of every file",
    options: &[
        OptionSpec {
            name: "storage",
            value: Some("full|compress|sparse"),
            help: "How versions are stored. full: as ordinary files, which share their data with the file where the file \
                   system can (reflinks). compress (the default): compressed. sparse: only the 4 KiB blocks that differ from \
                   the next newer version.",
        },
        OptionSpec {
            name: "copy-on",
            value: Some("change|write"),
            help: "When a write makes a version. change (the default): if it changes a byte. write: always.",
        },
        OptionSpec {
            name: "no-space",
            value: Some("fail|skip"),
            help: "What happens to a change if there is no room for the version. fail (the default): the change fails with \
                   ENOSPC or EDQUOT. skip: it is made without a version.",
        },
        OptionSpec {
            name: "comprehensive",
            value: None,
            help: "Make a version at every operation that changes a file, not one between open and close.",
        },
    ],
    build: Build::Over(&build),
    traits: Traits::NONE,
};

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Arc<dyn Layer>, String> {
    let storage = match settings.text("storage")? {
        None | Some("compress") => Storage::Compress,
        Some("full") => Storage::Full,
        Some("sparse") => Storage::Sparse,
        Some(other) => return Err(format!("storage={other}: it is none of full, compress, sparse")),
    };
    let copy_on = match settings.text("copy-on")? {
        None | Some("change") => CopyOn::Change,
        Some("write") => CopyOn::Write,
        Some(other) => return Err(format!("copy-on={other}: it is neither change nor write")),
    };
    let no_space = match settings.text("no-space")? {
        None | Some("fail") => NoSpace::Fail,
        Some("skip") => NoSpace::Skip,
        Some(other) => return Err(format!("no-space={other}: it is neither fail nor skip")),
    };
    let comprehensive = settings.has("comprehensive");
    Ok(VersionFs::new(lower, Options { storage, copy_on, no_space, comprehensive, ..Options::default() }))
}

/// The layer.
#[derive(Debug)]
pub struct VersionFs {
    lower: Arc<dyn Layer>,
    root: Arc<VersionVnode>,
}

impl VersionFs {
    /// Returns the layer over `lower`.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, options: Options) -> Arc<Self> {
        let core = Arc::new(Core::new(Arc::clone(&lower), options));
        let root = Arc::new(VersionVnode::over(&core, lower.root()));
        Arc::new(Self { lower, root })
    }
}

impl Layer for VersionFs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    forward!(lower: properties, sync, reports);

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        let (ours, lowers) = SharedStops::pair(upcalls);
        let _ = self.root.core.upcalls.set(ours);
        self.lower.attach(lowers);
    }

    fn commands(&self) -> Vec<Command> {
        self.lower.commands().into_iter().chain(crate::commands::ALL).collect()
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        if let Some(past) = self.root.core.past.find(number) {
            return Ok(past);
        }
        let lower = self.root.core.by_number(cx, number)?;
        if Arc::ptr_eq(&lower, &self.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(self.root.core.wrap_found(cx, lower)?))
    }
}
