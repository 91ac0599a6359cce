//! Commands of the control channel: cryptctl adds, withdraws and lists keys with them.

use crate::Secret;
use crate::grant::Grant;
use crate::keyring::{Keyring, caller};
use crate::scrub::scrubbed;
use core::fmt;
use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use vnode::{Command, CommandAccess, Cx, Errno, Result};
use wrapfs::hooks::{Commands, Object};
use zeroize::Zeroizing;

/// Gives the key that a passphrase unlocks to the caller's session.
pub const ADD: Command = Command {
    name: "cryptfs.add",
    help: "Gives a key to the session of the calling process. Input: lines `key=NAME` and `idle=SECONDS`, both optional, an \
           empty line, and the passphrase. Returns the key as cryptfs.list does. EKEYREJECTED: the passphrase unlocks no key. EBUSY: four passphrases of the user are being tried.",
    access: CommandAccess::Anyone,
};

/// Withdraws the key of the caller's session.
pub const DELETE: Command = Command {
    name: "cryptfs.del",
    help: "Withdraws the key of the session of the calling process. Returns the number of keys withdrawn.",
    access: CommandAccess::Anyone,
};

/// Withdraws the keys of all sessions of the caller.
pub const RESET: Command = Command {
    name: "cryptfs.reset",
    help: "Withdraws the keys of all sessions of the calling user; with the input `all`, which only root may give, \
           of all users. Returns the number of keys withdrawn.",
    access: CommandAccess::Anyone,
};

/// Lists keys.
pub const LIST: Command = Command {
    name: "cryptfs.list",
    help: "Returns the keys of the calling user's sessions as JSON; to root, those of all users.",
    access: CommandAccess::Anyone,
};

/// The input of [`ADD`].
#[derive(Default)]
pub struct AddRequest {
    /// The name of the key; `None`: whichever the passphrase unlocks.
    pub key: Option<String>,
    /// How long the key is kept without use; `None`: as the mount says.
    pub idle: Option<Duration>,
    /// The passphrase.
    pub passphrase: Secret,
}

impl fmt::Debug for AddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddRequest").field("key", &self.key).field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl AddRequest {
    /// Returns the input.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut text = String::new();
        if let Some(key) = &self.key {
            text += &format!("key={key}\n");
        }
        if let Some(idle) = self.idle {
            text += &format!("idle={}\n", idle.as_secs().max(1));
        }
        text.push('\n');
        // With the right capacity, so that no copy is left behind.
        let mut input = Zeroizing::new(Vec::with_capacity(text.len() + self.passphrase.len()));
        input.extend_from_slice(text.as_bytes());
        input.extend_from_slice(&self.passphrase);
        input
    }

    /// Parses the input; `None` if it is malformed.
    fn parse(mut input: &[u8]) -> Option<Self> {
        let mut request = Self::default();
        loop {
            let end = input.iter().position(|&byte| byte == b'\n')?;
            let (line, rest) = input.split_at_checked(end)?;
            input = rest.get(1..)?;
            if line.is_empty() {
                request.passphrase = Zeroizing::new(input.to_vec());
                return Some(request);
            }
            let (name, value) = core::str::from_utf8(line).ok()?.split_once('=')?;
            match name {
                "key" => request.key = Some(value.to_owned()),
                "idle" => request.idle = Some(Duration::from_secs(value.parse().ok().filter(|&idle| idle > 0)?)),
                _ => return None,
            }
        }
    }
}

/// A key that a session holds, as [`LIST`] returns it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Held {
    /// The user.
    pub uid: u32,
    /// The session ID.
    pub session: u32,
    /// Whether it is the session of the caller.
    pub own: bool,
    /// The name of the key.
    pub key: String,
    /// Identifies the key, in hexadecimal.
    pub fingerprint: String,
    /// When it was added, in seconds since 1970.
    pub since: u64,
    /// How long it is kept without use, in seconds; `None` means no limit.
    pub idle: Option<u64>,
    /// How many files the session has open.
    pub open_files: usize,
}

/// The commands of a mount.
#[derive(Debug)]
pub(crate) struct KeyCommands(pub(crate) Arc<Keyring>);

impl Commands for KeyCommands {
    fn commands(&self) -> Vec<Command> {
        vec![ADD, DELETE, RESET, LIST]
    }

    fn control(&self, cx: &Cx<'_>, _object: &Object<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        cx.require_blocking()?;
        let own = caller(cx);
        if command == ADD.name {
            let request = AddRequest::parse(input).ok_or(Errno::INVAL)?;
            let grant = scrubbed(|| self.0.add(cx, request.key.as_deref(), &request.passphrase, request.idle))?;
            return json(&held(&grant, own == grant.holder));
        }
        if command == LIST.name {
            let grants = self.0.grants()?;
            let is_visible =
                |grant: &&Arc<Grant>| cx.caller() == 0 || grant.holder.is_some_and(|id| id.uid == cx.caller());
            let list = grants.iter().filter(is_visible).map(|grant| held(grant, own.is_some() && own == grant.holder));
            return json(&list.collect::<Vec<_>>());
        }
        let count = match (command, input.trim_ascii()) {
            (name, b"") if name == DELETE.name => {
                let own = own.ok_or(Errno::SRCH)?;
                self.0.withdraw(|grant| grant.holder == Some(own))?
            }
            (name, b"") if name == RESET.name => {
                self.0.withdraw(|grant| grant.holder.is_some_and(|id| id.uid == cx.caller()))?
            }
            (name, b"all") if name == RESET.name => {
                if cx.caller() != 0 {
                    return Err(Errno::PERM);
                }
                self.0.withdraw(|_| true)?
            }
            _ => return Err(Errno::INVAL),
        };
        Ok(count.to_string().into_bytes())
    }
}

fn held(grant: &Grant, own: bool) -> Held {
    let (uid, session) = grant.holder.map_or((0, 0), |id| (id.uid, id.session));
    Held {
        uid,
        session,
        own,
        key: grant.slot.name.clone(),
        fingerprint: grant.slot.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect(),
        since: grant.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        idle: grant.idle().map(|idle| idle.as_secs()),
        open_files: grant.open_count(),
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|_| Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_as_they_were_encoded() {
        let passphrase = Zeroizing::new(b"a\nb=\xff\n\n".to_vec());
        for (key, idle) in [(None, None), (Some("bob".to_owned()), Some(Duration::from_secs(60)))] {
            let request = AddRequest { key: key.clone(), idle, passphrase: passphrase.clone() };
            let again = AddRequest::parse(&request.encode()).unwrap();
            assert_eq!((again.key, again.idle, again.passphrase), (key, idle, passphrase.clone()));
        }
        for bad in [&b""[..], b"passphrase", b"key=a", b"idle=0\n\np", b"idle=x\n\np", b"else=1\n\np", b"\xff=\n\np"] {
            assert!(AddRequest::parse(bad).is_none(), "{bad:?}");
        }
    }
}
