//! A host whose sessions tests control. Those of other crates include this file, and import what
//! its first line uses.

use super::{KeyHost, KeySource, Leader, Secret, WatchedLeader};
use core::sync::atomic::{AtomicBool, Ordering};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A host whose sessions all have the same leader.
#[derive(Debug)]
pub(crate) struct Host {
    leader: Mutex<Leader>,
    /// Whether watched leaders run; none is watched if this is `None`.
    watched: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Watched(Arc<AtomicBool>);

impl WatchedLeader for Watched {
    fn is_running(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Host {
    /// Returns one whose leader has started at 5.
    pub(crate) fn new(watched: Option<Arc<AtomicBool>>) -> Self {
        Self { leader: Mutex::new(Leader::Started(5)), watched }
    }

    /// Sets the leader of all sessions.
    #[allow(dead_code, reason = "not all tests change it")]
    pub(crate) fn set(&self, leader: Leader) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }
}

impl KeyHost for Host {
    /// The text of `extpass=` is the passphrase.
    fn passphrase(&self, source: &KeySource) -> core::result::Result<Secret, String> {
        match source {
            KeySource::Command(text) => Ok(text.clone().into_bytes().into()),
            _ => Err("not asked".to_owned()),
        }
    }

    fn config(&self, _path: &Path) -> core::result::Result<Vec<u8>, String> {
        Err("not read".to_owned())
    }

    fn leader(&self, _session: u32, thorough: bool) -> Leader {
        match *self.leader.lock().unwrap_or_else(PoisonError::into_inner) {
            Leader::SessionEnded if !thorough => Leader::Exited,
            leader => leader,
        }
    }

    fn watch(&self, _session: u32) -> Option<Box<dyn WatchedLeader>> {
        self.watched.clone().map(|running| Box::new(Watched(running)) as Box<dyn WatchedLeader>)
    }

    fn protect_memory(&self) -> Vec<String> {
        Vec::new()
    }
}
