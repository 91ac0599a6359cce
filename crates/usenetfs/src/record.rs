//! The on-disk record of a managed directory: docs/formats/usenet-directory.md.

use crate::scheme::{LIMIT, Scheme};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, Vnode};

/// Name of the record: a symbolic link whose target is the text, so that it is created and replaced
/// atomically.
pub const RECORD: &[u8] = b".usenetfs";
/// Name of a new record that is about to replace the old one.
pub(crate) const NEW_RECORD: &[u8] = b".usenetfs.new";
/// Name of the store, the directory of buckets that are not in the managed directory itself.
pub const STORE: &[u8] = b".usenetfs.d";

/// Whether the name is reserved for the layer.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name == RECORD || name == NEW_RECORD || name == STORE
}

/// Phase of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No conversion.
    Stable,
    /// Entries move from the directory to buckets in the store.
    Filling,
    /// Buckets move from the store to the directory.
    Raising,
    /// Buckets move from the directory to the store.
    Lowering,
    /// Entries move from buckets in the store to the directory.
    Emptying,
}

impl Phase {
    const ALL: [(Self, &str); 5] = [
        (Self::Stable, "stable"),
        (Self::Filling, "filling"),
        (Self::Raising, "raising"),
        (Self::Lowering, "lowering"),
        (Self::Emptying, "emptying"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(phase, _)| *phase == self).map_or("", |(_, name)| name)
    }
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) scheme: Scheme,
    pub(crate) phase: Phase,
}

impl Record {
    /// The defaults for a managed directory without a record.
    pub(crate) const NONE: Self = Self { scheme: Scheme::Digits, phase: Phase::Stable };

    pub(crate) fn text(&self) -> String {
        let phase = self.phase.name();
        match self.scheme {
            Scheme::Digits => format!("usenetfs 1 {phase} digits"),
            Scheme::Hash { key, limit } => {
                let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("usenetfs 1 {phase} hash {key} {limit}")
            }
        }
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut words = core::str::from_utf8(text).ok()?.split(' ');
        if (words.next()?, words.next()?) != ("usenetfs", "1") {
            return None;
        }
        let phase = words.next()?;
        let phase = Phase::ALL.iter().find(|(_, name)| *name == phase)?.0;
        let scheme = match words.next()? {
            "digits" => Scheme::Digits,
            "hash" => Scheme::Hash { key: parse_key(words.next()?)?, limit: parse_limit(words.next()?)? },
            _ => return None,
        };
        // Buckets of the hash scheme remain in the store.
        let moves_buckets = matches!(phase, Phase::Raising | Phase::Lowering);
        let fits = scheme == Scheme::Digits || !moves_buckets;
        (words.next().is_none() && fits).then_some(Self { scheme, phase })
    }

    /// Reads the record of a directory, or returns `None` if there is none.
    pub(crate) fn read(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Option<Self>> {
        let Some(entry) = dir.lookup(cx, Name::new(RECORD)?)? else { return Ok(None) };
        let text = if entry.vnode.kind() == Kind::Symlink { entry.vnode.readlink(cx)? } else { Vec::new() };
        Self::parse(&text).map(Some).ok_or_else(|| {
            tracing::error!("directory {}: invalid record: \"{}\"", dir.id(), text.escape_ascii());
            Errno::IO
        })
    }

    /// Writes the record, and replaces an existing one.
    pub(crate) fn write(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<()> {
        let (name, new) = (Name::new(RECORD)?, Name::new(NEW_RECORD)?);
        match dir.symlink(cx, name, self.text().as_bytes()) {
            Err(Errno::EXIST) => {}
            done => return done.map(|_| ()),
        }
        // Remove the leftover of a crash.
        remove(cx, dir, NEW_RECORD)?;
        dir.symlink(cx, new, self.text().as_bytes())?;
        dir.rename(cx, new, dir, name, RenameFlags::default())
    }
}

/// Removes one of the layer's symbolic links, if it exists.
pub(crate) fn remove(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
    match dir.unlink(cx, Name::new(name)?) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

fn parse_key(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    let valid = digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit);
    let mut key = [0; 16];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    valid.then_some(key)
}

fn parse_limit(text: &str) -> Option<u32> {
    let limit = text.parse().ok()?;
    (text.bytes().all(|b| b.is_ascii_digit()) && (2..=LIMIT * 1000).contains(&limit)).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        for (phase, _) in Phase::ALL {
            let digits = Record { scheme: Scheme::Digits, phase };
            assert_eq!(Record::parse(digits.text().as_bytes()), Some(digits));
            let hash = Record { scheme: Scheme::Hash { key: [0xa5; 16], limit: 1000 }, phase };
            let fits = !matches!(phase, Phase::Raising | Phase::Lowering);
            assert_eq!(Record::parse(hash.text().as_bytes()), fits.then_some(hash));
        }
        assert_eq!(Record::NONE.text(), "usenetfs 1 stable digits");
    }

    #[test]
    fn invalid_records_are_refused() {
        let long = format!("usenetfs 1 stable hash {} 1000", "0".repeat(33));
        for text in [
            "",
            "usenetfs",
            "usenetfs 2 stable digits",
            "usenetfs 1 moving digits",
            "usenetfs 1 stable digits ",
            "usenetfs 1 stable hash",
            "usenetfs 1 stable hash 00 1000",
            "usenetfs 1 stable hash 000000000000000000000000000000g0 1000",
            "usenetfs 1 stable hash 00000000000000000000000000000000 1",
            "usenetfs 1 stable hash 00000000000000000000000000000000 +9",
            "usenetfs 1 stable hash 00000000000000000000000000000000 99999999999",
            &long,
        ] {
            assert_eq!(Record::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Record::parse(b"usenetfs 1 stable \xff"), None);
    }
}
