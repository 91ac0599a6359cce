use crate::core::Core;
use crate::node::VersionVnode;
use crate::options::{CopyOn, NoSpace, Options, Storage};
use crate::past::PastDir;
use crate::upcalls::SharedStops;
use stack::{Build, LayerType, OptionSpec, Settings, Traits};
use std::sync::Arc;
use vnode::{Command, Cx, Errno, Layer, Properties, Reports, Result, Upcalls, Vnode, forward};

/// The declaration of `versionfs`.
pub const LAYER: LayerType = LayerType {
    name: "versionfs",
    about: "keeps every version of every file",
    options: &[
        OptionSpec {
            name: "storage",
            value: Some("full|sparse"),
            help: "How versions are stored. sparse (the default): only the 4 KiB blocks that differ from the next newer \
                   version. full: as ordinary files, which share their data with the file where the file system can \
                   (reflinks). A change of attributes stores no data in either case.",
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
        OptionSpec {
            name: "versions",
            value: None,
            help: "Every directory has a directory .versions, which is not listed. Its subdirectories are named by times and \
                   tags, and show the directory as it was then: @GMT-2026.11.23-10.00.00, 2026-11-23T10:00:00Z, \
                   '2026-11-23 10:00'.",
        },
        OptionSpec {
            name: "at",
            value: Some("TIME|TAG"),
            help: "Show the tree as it was at a time, or when a tag was made. Nothing can be changed.",
        },
    ],
    build: Build::Over(&build),
    traits: Traits::NONE,
};

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Arc<dyn Layer>, String> {
    let storage = match settings.text("storage")? {
        None | Some("sparse") => Storage::Sparse,
        Some("full") => Storage::Full,
        Some(other) => return Err(format!("storage={other}: it is neither full nor sparse")),
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
    let versions = settings.has("versions");
    let options = Options { storage, copy_on, no_space, comprehensive, versions, ..Options::default() };
    match settings.text("at")? {
        None => Ok(VersionFs::new(lower, options)),
        Some(at) => Ok(VersionFs::at(lower, options, at.as_bytes())?),
    }
}

/// The layer.
#[derive(Debug)]
pub struct VersionFs {
    lower: Arc<dyn Layer>,
    core: Arc<Core>,
    root: Arc<dyn Vnode>,
    /// Whether the root is that of the past.
    is_past: bool,
}

impl VersionFs {
    /// Returns the layer over `lower`.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, options: Options) -> Arc<Self> {
        let core = Arc::new(Core::new(Arc::clone(&lower), options));
        let root = Arc::new(VersionVnode::over(&core, lower.root()));
        Arc::new(Self { lower, core, root, is_past: false })
    }

    /// Returns a layer that shows the tree as it was at a time or tag. Nothing can be changed.
    ///
    /// # Errors
    /// Says that `text` is neither a time nor a tag, or that the tags can't be read.
    pub fn at(lower: Arc<dyn Layer>, options: Options, text: &[u8]) -> core::result::Result<Arc<Self>, String> {
        let core = Arc::new(Core::new(Arc::clone(&lower), options));
        let shown = text.escape_ascii();
        let moment = crate::tags::moment(&core, &Cx::internal(0, 0), text)
            .map_err(|errno| format!("at={shown}: can't read the tags: {errno}"))?
            .ok_or_else(|| format!("at={shown}: it is neither a time, such as '2026-11-23 10:00', nor a tag"))?;
        let root = PastDir::at(&core, &lower.root(), moment);
        Ok(Arc::new(Self { lower, core, root, is_past: true }))
    }
}

impl Layer for VersionFs {
    fn root(&self) -> Arc<dyn Vnode> {
        Arc::clone(&self.root)
    }

    forward!(lower: sync);

    fn properties(&self) -> Properties {
        let lower = self.lower.properties();
        Properties { read_only: lower.read_only || self.is_past, ..lower }
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        if self.is_past { None } else { self.lower.reports() }
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        let (ours, lowers) = SharedStops::pair(upcalls);
        let _ = self.core.upcalls.set(ours);
        self.lower.attach(lowers);
    }

    fn commands(&self) -> Vec<Command> {
        self.lower.commands().into_iter().chain(crate::commands::ALL).collect()
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        if let Some(past) = self.core.past.find(number) {
            return Ok(past);
        }
        if self.is_past {
            return Err(Errno::STALE);
        }
        let lower = self.core.by_number(cx, number)?;
        if Arc::ptr_eq(&lower, &self.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(self.core.wrap_found(cx, lower)?))
    }
}
