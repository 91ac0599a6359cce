use crate::cleaner::Worker;
use crate::core::Core;
use crate::node::VersionVnode;
use crate::options::{CopyOn, NoSpace, Options, Storage};
use crate::policy::{MountPolicies, PolicySource};
use crate::upcalls::SharedStops;
use stack::{Build, LayerType, OptionSpec, Settings, Traits};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use vnode::{Command, Cx, Layer, Result, Upcalls, Vnode, forward};

/// The declaration of `versionfs`.
pub const LAYER: LayerType = LayerType {
    name: "versionfs",
    about: "keeps every version of every file",
    options: &[
        OptionSpec {
            name: "storage",
            value: Some("full|compress|sparse|sparse-compress|delta|text|blocks"),
            help: "How versions are stored, unless a configuration file says otherwise. full: as ordinary files, which \
                   share their data with the file where the file system can (reflinks). compress (the default; sparse for \
                   large files): compressed. sparse: only the 4 KiB blocks that differ from the next newer version. \
                   sparse-compress: these, compressed. delta: the bytes that differ. text: the lines that differ. blocks: \
                   in content-addressed blocks that the whole volume shares.",
        },
        OptionSpec {
            name: "config",
            value: Some("PATH"),
            help: "The administrator's configuration file (default: /etc/versionfs.conf).",
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
        None => Storage::Policy,
        Some("full") => Storage::Full,
        Some("compress") => Storage::Compress,
        Some("sparse") => Storage::Sparse,
        Some("sparse-compress") => Storage::SparseCompress,
        Some("delta") => Storage::Delta,
        Some("text") => Storage::Text,
        Some("blocks") => Storage::Blocks,
        Some(other) => {
            let all = "full, compress, sparse, sparse-compress, delta, text, blocks";
            return Err(format!("storage={other}: it is none of {all}"));
        }
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
    let mut source = PolicySource::of_mount();
    if let Some(path) = settings.bytes("config") {
        source.config = std::path::PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    }
    let options = Options { storage, copy_on, no_space, comprehensive, background: true, ..Options::default() };
    Ok(VersionFs::with_policies(lower, options, source)?)
}

fn source_of(options: &Options, source: PolicySource) -> PolicySource {
    PolicySource { storage: options.storage.of_policy(), nospace: Some(options.no_space.of_policy()), ..source }
}

/// The layer.
#[derive(Debug)]
pub struct VersionFs {
    lower: Arc<dyn Layer>,
    root: Arc<VersionVnode>,
    /// Converts versions while the layer is in use.
    _worker: Option<Worker>,
}

impl VersionFs {
    /// Returns the layer over `lower`. Every version is made and kept for ever.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, options: Options) -> Arc<Self> {
        let source = source_of(&options, PolicySource::default());
        Self::with(lower, options, MountPolicies::keeping_all(source))
    }

    /// Returns the layer over `lower` with the built-in policies and those of `source`. The options
    /// `storage` and `no_space` set the defaults.
    ///
    /// # Errors
    /// A sentence about what is wrong in the administrator's file.
    pub fn with_policies(
        lower: Arc<dyn Layer>,
        options: Options,
        source: PolicySource,
    ) -> core::result::Result<Arc<Self>, String> {
        let policies = MountPolicies::load(source_of(&options, source))?;
        Ok(Self::with(lower, options, policies))
    }

    fn with(lower: Arc<dyn Layer>, options: Options, policies: MountPolicies) -> Arc<Self> {
        let core = Arc::new(Core::new(Arc::clone(&lower), options, policies));
        let root = Arc::new(VersionVnode::over(&core, lower.root()));
        let worker = options.background.then(|| Worker::start(&core));
        Arc::new(Self { lower, root, _worker: worker })
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
        let mut commands = crate::commands_policy::COMMANDS.to_vec();
        commands.extend(self.lower.commands());
        commands
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = self.root.core.by_number(cx, number)?;
        if Arc::ptr_eq(&lower, &self.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(self.root.core.wrap_found(cx, lower)?))
    }
}
