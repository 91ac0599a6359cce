use crate::blocks::{EncryptedBlocks, Seals};
use crate::commands::KeyCommands;
use crate::host::{KeySource, host};
use crate::keyless::KeyNeeded;
use crate::keyring::Keyring;
use crate::names::{EncryptedNames, PlainNames};
use crate::scrub::scrubbed;
use crate::slot::Slot;
use crate::store::{PlainStore, Store};
use crate::volume::Volume;
use crate::xattrs::EncryptedXattrs;
use core::time::Duration;
use cryptformat::Flags;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use vnode::Layer;
use wrapfs::hooks::{Journal, Layout};
use wrapfs::{Build, KeptJournals, LayerType, Needs, OptionSpec, Settings, Template, Traits};

/// The declaration of `cryptfs`.
pub const LAYER: LayerType = LayerType {
    name: "cryptfs",
    about: "encrypts files and names, in the format of gocryptfs",
    options: &[
        OptionSpec {
            name: "key",
            value: Some("session|mount"),
            help: "Who holds a key: each session that was given one with `cryptctl add` (session, the default), or everybody who \
                   may use the mount (mount), which asks for the passphrase when it is mounted.",
        },
        OptionSpec {
            name: "passfile",
            value: Some("FILE"),
            help: "With key=mount: read the passphrase from the first line of FILE.",
        },
        OptionSpec {
            name: "extpass",
            value: Some("COMMAND"),
            help: "With key=mount: read the passphrase from the first line of the output of COMMAND, which /bin/sh runs.",
        },
        OptionSpec {
            name: "keyfile",
            value: Some("FILE"),
            help: "With key=mount: use the key file FILE, as `cryptctl init --key-file` does.",
        },
        OptionSpec {
            name: "credential",
            value: Some("NAME"),
            help: "With key=mount: read the passphrase from the credential NAME of the systemd service that mounts.",
        },
        OptionSpec {
            name: "keyring",
            value: Some("NAME"),
            help: "With key=mount: read the passphrase from the key `user:NAME` in a keyring of the mounting process \
                   (keyrings(7)).",
        },
        OptionSpec {
            name: "keyname",
            value: Some("NAME"),
            help: "With key=mount: the key of this name, on a volume with several keys. Default: whichever the passphrase \
                   unlocks.",
        },
        OptionSpec { name: "config", value: Some("FILE"), help: "Use FILE in place of gocryptfs.conf in the volume." },
        OptionSpec {
            name: "journal",
            value: Some("kill|power|off"),
            help: "What no block may be torn by: a killed server (kill, the default), or a power failure, too (power), for which \
                   each write waits three times for the medium. With off, both can make blocks unreadable that were being \
                   overwritten.",
        },
        OptionSpec {
            name: "seals",
            value: Some("check|ignore"),
            help: "On a bound volume: whether files with blocks that are missing or were put back fail with EIO (check, the \
                   default), or are read as they are (ignore), which makes the mount read-only.",
        },
        OptionSpec {
            name: "idle",
            value: Some("SECONDS"),
            help: "With key=session: withdraw a key that has not been used for this time. Default: never.",
        },
    ],
    build: Build::Over(&build),
    traits: Traits { needs, ..Traits::NONE },
};

/// Options that name a source of the passphrase.
const SOURCES: [&str; 5] = ["passfile", "extpass", "keyfile", "credential", "keyring"];

/// Who holds keys, and the source of the key of a mount.
enum Holder {
    Sessions { idle: Option<Duration> },
    Mount(KeySource),
}

impl Holder {
    fn of(settings: &Settings) -> Result<Self, String> {
        let given: Vec<_> = SOURCES.into_iter().filter(|name| settings.has(name)).collect();
        let idle = settings.number("idle", 1..=31_536_000_u64)?.map(Duration::from_secs);
        let misplaced = |names: &[&str], key: &str| names.first().map(|name| format!("{name}=: needs key={key}"));
        match settings.text("key")? {
            None | Some("session") => {
                let name = settings.has("keyname").then_some("keyname");
                let wrong = misplaced(&given.into_iter().chain(name).collect::<Vec<_>>(), "mount");
                wrong.map_or(Ok(Self::Sessions { idle }), Err)
            }
            Some("mount") => {
                if let Some(wrong) = misplaced(if idle.is_some() { &["idle"] } else { &[] }, "session") {
                    return Err(wrong);
                }
                Ok(Self::Mount(source(&given, settings)?))
            }
            Some(other) => Err(format!("key={other}: it is neither session nor mount")),
        }
    }
}

fn source(given: &[&str], settings: &Settings) -> Result<KeySource, String> {
    let name = match given {
        [] => return Ok(KeySource::Ask),
        [one] => *one,
        [one, other, ..] => {
            return Err(format!("{one}= and {other}=: the passphrase has one source; give one of them"));
        }
    };
    let text = || settings.text(name).map(|text| text.unwrap_or_default().to_owned());
    let path = || PathBuf::from(OsString::from_vec(settings.bytes(name).unwrap_or_default().to_vec()));
    Ok(match name {
        "passfile" => KeySource::File(path()),
        "extpass" => KeySource::Command(text()?),
        "keyfile" => KeySource::KeyFile(path()),
        "credential" => KeySource::Credential(text()?),
        _ => KeySource::Keyring(text()?),
    })
}

/// The file of the journal, in the root of a volume that is mounted or whose server was killed.
/// gocryptfs reserves all names that begin like this.
pub const JOURNAL: &[u8] = b"gocryptfs.strata-journal";

/// Whether a name in the root is that of a journal that a mount kept.
#[must_use]
pub fn is_kept_journal(name: &[u8]) -> bool {
    KeptJournals::is_name(JOURNAL, name)
}

/// Returns the kept journals of a volume that is not mounted. `owner` is the user and the group of
/// its server.
///
/// # Errors
/// A sentence.
pub fn kept_journals(lower: Arc<dyn Layer>, flags: &Flags, owner: (u32, u32)) -> Result<KeptJournals, String> {
    let fixed = flags.bound.then_some(cryptformat::HEADER);
    Ok(KeptJournals::new(lower, JOURNAL, (layout(flags)?, fixed), owner))
}

fn journal(settings: &Settings) -> Result<Option<Journal>, String> {
    let journal = Journal::new(JOURNAL);
    match settings.text("journal")? {
        None | Some("kill") => Ok(Some(journal)),
        Some("power") => Ok(Some(journal.durable())),
        Some("off") => Ok(None),
        Some(other) => Err(format!("journal={other}: it is none of kill, power, off")),
    }
}

fn seals(settings: &Settings) -> Result<Option<Seals>, String> {
    match settings.text("seals")? {
        None => Ok(None),
        Some("check") => Ok(Some(Seals::Checked)),
        Some("ignore") => Ok(Some(Seals::Ignored)),
        Some(other) => Err(format!("seals={other}: it is neither check nor ignore")),
    }
}

/// Blocks are read, changed and written again, so another server must not change them meanwhile.
fn needs(settings: &Settings) -> Result<Needs, String> {
    journal(settings)?;
    seals(settings)?;
    let asks = matches!(Holder::of(settings)?, Holder::Mount(KeySource::Ask));
    Ok(Needs { sole_user: true, asks_passphrase: asks, ..Needs::NONE })
}

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> Result<Arc<dyn Layer>, String> {
    let host = host().ok_or("cryptfs needs a host that provides passphrases")?;
    for what in host.protect_memory() {
        tracing::warn!("keys are less protected: {what}");
    }
    let config = settings.bytes("config").map(|path| PathBuf::from(OsString::from_vec(path.to_vec())));
    let config = config.map(|path| host.config(&path)).transpose()?;
    let volume = Volume::open(Arc::clone(&lower), config)?;
    let (seals, journal) = protection(settings, volume.flags.bound)?;
    let keyring = scrubbed(|| match Holder::of(settings)? {
        Holder::Sessions { idle } => opened(Keyring::of_sessions(volume, host, idle)),
        Holder::Mount(source) => {
            let passphrase = host.passphrase(&source)?;
            let unlocked = volume.unlock_or_say(settings.text("keyname")?, &passphrase);
            let (name, keys) = unlocked.map_err(|(key, error)| format!("key {key}: {error}"))?;
            opened(Keyring::of_mount(volume, Slot::new(name, keys)))
        }
    })?;
    layer(lower, &keyring, seals, journal)
}

/// Returns how a volume protects its files against changes below, and against being torn.
fn protection(settings: &Settings, is_bound: bool) -> Result<(Option<Seals>, Option<Journal>), String> {
    let (seals, journal) = (seals(settings)?, journal(settings)?);
    if is_bound && journal.is_none() {
        return Err("journal=off: a bound volume needs the journal; leave the option out".to_owned());
    }
    match seals {
        Some(_) if !is_bound => Err("seals=: the volume is not bound (cryptctl init --bound)".to_owned()),
        seals => Ok((is_bound.then(|| seals.unwrap_or(Seals::Checked)), journal)),
    }
}

fn opened(keyring: vnode::Result<Arc<Keyring>>) -> Result<Arc<Keyring>, String> {
    keyring.map_err(|errno| format!("can't list the volume: {errno}"))
}

/// Returns how the files of a volume are stored.
fn layout(flags: &Flags) -> Result<Layout, String> {
    let sizes = cryptformat::Layout::of_flags(flags);
    (u32::try_from(sizes.header).ok())
        .zip(u32::try_from(sizes.plain).ok())
        .zip(u32::try_from(sizes.stored).ok())
        .and_then(|((header, plain), stored)| Layout::new(header, plain, stored))
        .ok_or_else(|| "unsupported block size".to_owned())
}

/// Returns the layer over `lower` with the keys of `keyring`.
pub(crate) fn layer(
    lower: Arc<dyn Layer>,
    keyring: &Arc<Keyring>,
    seals: Option<Seals>,
    journal: Option<Journal>,
) -> Result<Arc<dyn Layer>, String> {
    let flags = keyring.volume.flags;
    let layout = layout(&flags)?;
    let root = lower.root().id();
    let mut template = Template::over(lower)
        .format(layout, EncryptedBlocks { keyring: Arc::clone(keyring), seals })
        .xattrs(EncryptedXattrs(Arc::clone(keyring)));
    template = match flags.names {
        Some(names) => template.store(Store::new(names)).names(EncryptedNames::new(Arc::clone(keyring), &flags)),
        None => template.names(PlainNames { root }).store(PlainStore),
    };
    if seals == Some(Seals::Ignored) {
        template = template.read_only();
    }
    if keyring.is_per_session() {
        template = template.varies_by_caller().operations(KeyNeeded(Arc::clone(keyring)));
        template = template.commands(KeyCommands(Arc::clone(keyring)));
    }
    if let Some(journal) = journal {
        template = template.journal(journal);
    }
    let attached = Arc::downgrade(keyring);
    template = template.attached(move |upcalls| {
        if let Some(keyring) = attached.upgrade() {
            keyring.attach(upcalls);
        }
    });
    template.build()
}
