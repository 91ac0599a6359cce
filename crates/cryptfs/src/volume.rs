use crate::misfit::Names;
use crate::scrub::scrubbed;
use cryptformat::{CONFIG_NAME, Config, ConfigError, Flags, Keys, Limits};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, Result};

/// Maximum size of a configuration in bytes.
const LONGEST: usize = 64 << 10;
/// Prefix of the configurations of further keys, followed by the key's name.
const FURTHER: &[u8] = b"gocryptfs.conf.";
/// Name of the key in `gocryptfs.conf`.
const DEFAULT: &str = "default";
/// Maximum number of keys of a volume.
const KEYS_MAX: usize = 64;

/// A volume: a directory of the layer below with its configurations, one per key. All keys have the
/// same features, since a file does not say which key encrypts it.
#[derive(Debug)]
pub(crate) struct Volume {
    lower: Arc<dyn Layer>,
    /// A configuration outside the volume, in place of `gocryptfs.conf`.
    outside: Option<Vec<u8>>,
    pub(crate) flags: Flags,
}

/// A key, and its configuration.
type Named = (String, core::result::Result<Config, ConfigError>);

/// Whether a name in the root belongs to a configuration.
pub(crate) fn is_config(name: &[u8]) -> bool {
    name == CONFIG_NAME.as_bytes() || name.starts_with(FURTHER)
}

impl Volume {
    /// Reads the configurations. The error is a sentence for the mounting user.
    pub(crate) fn open(lower: Arc<dyn Layer>, outside: Option<Vec<u8>>) -> core::result::Result<Self, String> {
        let read = match &outside {
            Some(bytes) => Some(bytes.clone()),
            None => read(&*lower, CONFIG_NAME.as_bytes()).map_err(|errno| format!("gocryptfs.conf: {errno}"))?,
        };
        let bytes =
            read.ok_or("not an encrypted volume: it has no gocryptfs.conf; create one with `cryptctl init DIR`")?;
        let config = Config::parse(&bytes).map_err(|error| format!("gocryptfs.conf: {error}"))?;
        let volume = Self { flags: *config.flags(), lower, outside };
        if let Err(errno) = volume.warn_of_misfit() {
            tracing::warn!(%errno, "can't list the volume, so its names are not compared with gocryptfs.conf");
        }
        Ok(volume)
    }

    /// Returns the directory of the volume.
    #[cfg(test)]
    pub(crate) fn lower_root(&self) -> Arc<dyn vnode::Vnode> {
        self.lower.root()
    }

    /// Warns if the features in the configuration don't fit what the volume holds.
    fn warn_of_misfit(&self) -> Result<()> {
        let mut names = Names::default();
        self.lower.root().readdir(&own(), 0, &mut |entry| names.add(entry.name.as_bytes()))?;
        if let Some(why) = names.misfit(&self.flags) {
            tracing::warn!("gocryptfs.conf does not fit the volume: {why}. Was it changed? Compare it with a backup");
        }
        Ok(())
    }

    /// Whether the volume has more than one key.
    pub(crate) fn has_several_keys(&self) -> Result<bool> {
        Ok(!self.further()?.is_empty())
    }

    /// Derives the key that a passphrase unlocks. `key` is the name of the key; `None`: whichever
    /// the passphrase unlocks. Returns its name and the key.
    ///
    /// # Errors
    /// `EKEYREJECTED` if the passphrase is wrong; `ENOENT` if there is no key of that name;
    /// `EBADMSG` if a configuration is damaged; `ENOMEM`; those of the layer below.
    pub(crate) fn unlock(&self, key: Option<&str>, passphrase: &[u8]) -> Result<(String, Keys)> {
        self.unlock_or_say(key, passphrase).map_err(|(key, error)| {
            tracing::info!("key {key} not unlocked: {error}");
            match error {
                UnlockError::Below(errno) => errno,
                UnlockError::NoKey => Errno::NOENT,
                UnlockError::Config(ConfigError::Passphrase) => Errno::KEYREJECTED,
                UnlockError::Config(ConfigError::Memory { .. }) => Errno::NOMEM,
                UnlockError::Config(_) | UnlockError::OtherFeatures => Errno::BADMSG,
            }
        })
    }

    /// As [`Self::unlock`]; the error names the key, for the mounting user.
    pub(crate) fn unlock_or_say(
        &self,
        key: Option<&str>,
        passphrase: &[u8],
    ) -> core::result::Result<(String, Keys), (String, UnlockError)> {
        let mut failed = (key.unwrap_or(DEFAULT).to_owned(), UnlockError::NoKey);
        let all = self.configs().map_err(|errno| (failed.0.clone(), UnlockError::Below(errno)))?;
        for (name, config) in all.into_iter().filter(|(name, _)| key.is_none_or(|key| key == name)) {
            match self.keys(config, passphrase) {
                Ok(keys) => return Ok((name, keys)),
                // A wrong passphrase for this key may be right for the next one. Anything else is
                // the better explanation.
                Err(error) if !matches!(failed.1, UnlockError::Config(_)) => failed = (name, error),
                Err(UnlockError::Config(ConfigError::Passphrase)) => {}
                Err(error) => failed = (name, error),
            }
        }
        Err(failed)
    }

    fn keys(
        &self,
        config: core::result::Result<Config, ConfigError>,
        passphrase: &[u8],
    ) -> core::result::Result<Keys, UnlockError> {
        let config = config.map_err(UnlockError::Config)?;
        if !stores_alike(&self.flags, config.flags()) {
            return Err(UnlockError::OtherFeatures);
        }
        // A cipher has bytes without a value, which take over what was on the stack there before:
        // nothing of the passphrase must be left when the keys are derived.
        let unlocked = scrubbed(|| config.unlock(passphrase, Limits::default())).map_err(UnlockError::Config)?;
        Keys::new(config.flags(), &unlocked.master).map_err(UnlockError::Config)
    }

    /// Reads the configurations of all keys anew: a passphrase may have been changed.
    fn configs(&self) -> Result<Vec<Named>> {
        let mut all = Vec::new();
        let first = match &self.outside {
            Some(bytes) => Some(bytes.clone()),
            None => read(&*self.lower, CONFIG_NAME.as_bytes())?,
        };
        all.extend(first.map(|bytes| (DEFAULT.to_owned(), Config::parse(&bytes))));
        for name in self.further()? {
            match read(&*self.lower, &name) {
                Ok(Some(bytes)) => {
                    let key = name.strip_prefix(FURTHER).unwrap_or_default();
                    all.push((String::from_utf8_lossy(key).into_owned(), Config::parse(&bytes)));
                }
                Ok(None) => {}
                // The other keys remain usable.
                Err(errno) => tracing::warn!(%errno, "{}: this key can't be used", name.escape_ascii()),
            }
        }
        Ok(all)
    }

    /// Returns the names of the configurations of further keys, sorted.
    fn further(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.lower.root().readdir(&own(), 0, &mut |entry| {
            let name = entry.name.as_bytes();
            // Temporary files and backups of cryptctl and gocryptfs are no keys, nor is a FIFO or a
            // link that somebody put there.
            let is_key = name.starts_with(FURTHER)
                && !name.ends_with(b".tmp")
                && !name.ends_with(b".bak")
                && entry.kind == Kind::Regular;
            if is_key && names.len() < KEYS_MAX {
                names.push(name.to_vec());
            }
            true
        })?;
        names.sort();
        Ok(names)
    }
}

/// Why a key was not unlocked.
#[derive(Debug)]
pub(crate) enum UnlockError {
    /// The layer below failed.
    Below(Errno),
    /// The volume has no key of that name.
    NoKey,
    /// The configuration is damaged, or the passphrase is wrong.
    Config(ConfigError),
    /// Its features differ from those of the volume.
    OtherFeatures,
}

impl core::fmt::Display for UnlockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Below(errno) => write!(f, "its configuration can't be read: {errno}"),
            Self::NoKey => f.write_str("the volume has no such key; list its keys with cryptctl info"),
            Self::Config(error) => write!(f, "{error}"),
            Self::OtherFeatures => {
                f.write_str("its features differ from those of gocryptfs.conf; all keys of a volume need the same ones")
            }
        }
    }
}

/// Whether files and names are stored in the same way, whatever unlocks the keys.
fn stores_alike(one: &Flags, other: &Flags) -> bool {
    Flags { key_slots: other.key_slots, ..*one } == *other
}

/// Reads a configuration in the root; `None` if it does not exist.
fn read(lower: &dyn Layer, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(entry) = lower.root().lookup(&own(), Name::new(name)?)? else { return Ok(None) };
    // A link could lead anywhere; a FIFO would block.
    if entry.vnode.kind() != Kind::Regular {
        return Err(Errno::INVAL);
    }
    let file = entry.vnode.open(&own(), OpenFlags::RDONLY)?;
    let mut bytes = vec![0; LONGEST + 1];
    let mut len = 0;
    while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read(&own(), rest, len as u64)? {
            0 => break,
            n => len += n,
        }
    }
    bytes.truncate(len);
    Ok(Some(bytes))
}

/// Returns the context of the layer's own work. Configurations are readable only by their owner.
fn own() -> Cx<'static> {
    Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}
