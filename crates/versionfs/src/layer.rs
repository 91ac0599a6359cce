use crate::cleaner::Worker;
use crate::core::Core;
use crate::node::VersionVnode;
use crate::options::{CopyOn, NoSpace, Options, Storage};
use crate::past::PastDir;
use crate::policy::{MountPolicies, PolicySource};
use crate::upcalls::SharedStops;
use stack::{Build, LayerType, Needs, OptionSpec, Settings, Traits};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use vnode::{Command, Cx, Errno, Layer, Properties, Reports, Result, Upcalls, Vnode};

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
            help: "What happens to a write if there is no room for the version, and old versions can't yield. fail (the \
                   default): it fails with ENOSPC or EDQUOT. skip: it is made without a version.",
        },
        OptionSpec {
            name: "comprehensive",
            value: None,
            help: "Make a version at every operation that changes a file, not one between open and close, and record every \
                   operation in the audit log, which versionctl audit shows.",
        },
        OptionSpec {
            name: "versions",
            value: None,
            help: "Every directory has a directory .versions, which is not listed. Its subdirectories are named by times and \
                   tags, and show the directory as it was then: @GMT-2026.11.23-10.00.00, 2026-11-23T10:00:00Z, \
                   '2026-11-23 10:00'.",
        },
        OptionSpec {
            name: "trust-heads",
            value: None,
            help: "Read old versions even if the file was changed below the mount since they were made. For a lower \
                   directory that was restored without modification times: elsewhere, the versions may have wrong bytes.",
        },
        OptionSpec {
            name: "at",
            value: Some("TIME|TAG"),
            help: "Show the tree as it was at a time, or when a tag was made. Nothing can be changed.",
        },
    ],
    build: Build::Over(&build),
    traits: Traits { needs: |settings| Ok(needs(settings)), ..Traits::NONE },
};

/// The indexes are in memory, too, so another server must not change them. Only a view of the past,
/// which changes nothing, is possible beside it: it reads them at each use.
fn needs(settings: &Settings) -> Needs {
    let is_past = settings.has("at");
    Needs { read_only: is_past, sole_user: !is_past, sees_changes: is_past, ..Needs::NONE }
}

/// The words of the option `storage`.
const STORAGES: &str = "full, compress, sparse, sparse-compress, delta, text, blocks";

fn storage_of(word: &str) -> Option<Storage> {
    Some(match word {
        "full" => Storage::Full,
        "compress" => Storage::Compress,
        "sparse" => Storage::Sparse,
        "sparse-compress" => Storage::SparseCompress,
        "delta" => Storage::Delta,
        "text" => Storage::Text,
        "blocks" => Storage::Blocks,
        _ => return None,
    })
}

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Arc<dyn Layer>, String> {
    let storage = match settings.text("storage")? {
        None => Storage::Policy,
        Some(word) => storage_of(word).ok_or_else(|| format!("storage={word}: it is none of {STORAGES}"))?,
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
    let (versions, trust_heads) = (settings.has("versions"), settings.has("trust-heads"));
    let mut source = PolicySource::of_mount();
    if let Some(path) = settings.bytes("config") {
        source.config = std::path::PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    }
    let audit = comprehensive;
    let options = Options {
        storage,
        copy_on,
        no_space,
        comprehensive,
        audit,
        versions,
        trust_heads,
        background: true,
        ..Options::default()
    };
    match settings.text("at")? {
        None => Ok(VersionFs::with_policies(lower, options, source)?),
        Some(at) => Ok(VersionFs::at(lower, options, source, at.as_bytes())?),
    }
}

fn source_of(options: &Options, source: PolicySource) -> PolicySource {
    PolicySource { storage: options.storage.of_policy(), nospace: Some(options.no_space.of_policy()), ..source }
}

/// The layer.
#[derive(Debug)]
pub struct VersionFs {
    lower: Arc<dyn Layer>,
    core: Arc<Core>,
    root: Arc<dyn Vnode>,
    /// Whether the root is that of the past.
    is_past: bool,
    /// Converts versions while the layer is in use.
    _worker: Option<Worker>,
}

impl VersionFs {
    /// Returns the layer over `lower`. Every version is made and kept forever.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, options: Options) -> Arc<Self> {
        let storage = if options.storage == Storage::Policy { Storage::Sparse } else { options.storage };
        let options = Options { storage, ..options };
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
        policies.set_root(lower.root());
        let core = Arc::new(Core::new(Arc::clone(&lower), options, policies));
        let root = Arc::new(VersionVnode::over(&core, lower.root()));
        let worker = options.background.then(|| Worker::start(&core));
        Arc::new(Self { lower, core, root, is_past: false, _worker: worker })
    }

    /// Returns a layer that shows the tree as it was at a time or tag. Nothing can be changed. Who
    /// may look at it, the administrator's file of `source` says.
    ///
    /// # Errors
    /// Says that `text` is neither a time nor a tag, that the tags can't be read, or what is wrong
    /// in the administrator's file.
    pub fn at(
        lower: Arc<dyn Layer>,
        options: Options,
        source: PolicySource,
        text: &[u8],
    ) -> core::result::Result<Arc<Self>, String> {
        let options = Options { read_only: true, ..options };
        let policies = MountPolicies::load(source_of(&options, source))?;
        let core = Arc::new(Core::new(Arc::clone(&lower), options, policies));
        let shown = text.escape_ascii();
        let moment = crate::tags::moment(&core, &Cx::internal(0, 0), text)
            .map_err(|errno| format!("at={shown}: can't read the tags: {errno}"))?
            .ok_or_else(|| format!("at={shown}: it is neither a time, such as '2026-11-23 10:00', nor a tag"))?;
        let root = PastDir::at(&core, &lower.root(), moment);
        Ok(Arc::new(Self { lower, core, root, is_past: true, _worker: None }))
    }
}

impl Layer for VersionFs {
    fn root(&self) -> Arc<dyn Vnode> {
        Arc::clone(&self.root)
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.core.write_late();
        self.lower.sync(cx)
    }

    fn unmounted(&self) {
        self.core.write_late();
        self.lower.unmounted();
    }

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
        self.lower.commands().into_iter().chain(crate::commands::all()).collect()
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
