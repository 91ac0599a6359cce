//! Cryptfs: files and names encrypted one by one over any directory, in the gocryptfs v2 format
//! (Wrapfs paper, section 4.4; docs/formats/cryptfs.md).
//!
//! The layer is built with the template. [`cryptformat`] defines what is stored; this crate decides
//! who can read it. One concept per file:
//!
//! * `volume`: the configuration files of a volume, and unlocking them with a passphrase
//! * `misfit`: warns of a configuration that does not fit the volume
//! * `locked`, `slot`, `scrub`: a key in memory, and its removal
//! * `grant`: the right of one session to use a key, and the files that it has open
//! * `keyring`: all grants of a mount; finding the caller's; adding and withdrawing them
//! * `turns`: whose passphrase is tried
//! * `keyless`: what a session without a key may do
//! * `reaper`: withdraws grants whose session has ended or that were idle
//! * `names`, `store`, `blocks`, `xattrs`: the hooks of the template
//! * `seals`: sealed headers of bound volumes
//! * `belongs`: refuses files of another key
//! * `commands`: the control channel, for cryptctl; `layer`: options and construction
//! * `host`: what the layer needs of the host: passphrases and sessions
#![forbid(unsafe_code)]

mod belongs;
mod blocks;
mod commands;
mod grant;
mod host;
mod keyless;
mod keyring;
mod layer;
mod locked;
mod misfit;
mod names;
mod reaper;
mod scrub;
mod seals;
mod slot;
mod store;
mod turns;
mod volume;
mod xattrs;

pub use commands::{ADD, AddRequest, DELETE, Held, LIST, RESET};
pub use host::{KeyHost, KeySource, Leader, Secret, WatchedLeader, set_host};
pub use layer::{JOURNAL, LAYER, is_kept_journal, kept_journals};

#[cfg(test)]
mod tests;
