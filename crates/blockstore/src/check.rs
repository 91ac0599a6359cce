//! Checking and repairing a store.

use crate::format::Kind;
use crate::load;
use crate::pack::{FIRST, Pack, Scanned};
use crate::recipe::RecipeId;
use crate::store::BlockStore;
use core::ops::ControlFlow;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Number of ids that are listed at a time.
const IDS: usize = 1024;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of versions.
    pub versions: u64,
    /// Versions that can't be read, in ascending order.
    pub unreadable: Vec<RecipeId>,
    /// Bytes in packs that are no intact entries.
    pub damaged_bytes: u64,
    /// Number of packs whose header is damaged.
    pub damaged_headers: u64,
    /// Number of intact entries.
    pub entries: u64,
    /// Size of all packs in bytes.
    pub bytes: u64,
    /// Size of the deleted versions' recipes and of superseded entries in bytes. Blocks that no
    /// version uses are only known after a garbage collection.
    pub unreferenced_bytes: u64,
}

impl Report {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.unreadable.is_empty() && self.damaged_bytes == 0 && self.damaged_headers == 0
    }
}

impl BlockStore {
    /// Reads every pack, and every block of every version. Versions that are stored meanwhile may
    /// be left out.
    ///
    /// # Errors
    /// `EINTR` if the caller is interrupted, `ENOMEM`, and errors of the directory. Damage is no
    /// error.
    pub fn check(self: &Arc<Self>, cx: &Cx<'_>) -> Result<Report> {
        let mut report = Report::default();
        let packs: Vec<Arc<Pack>> = self.tables.read().packs.values().cloned().collect();
        for pack in packs {
            self.check_pack(cx, &pack, &mut report)?;
        }
        let mut last = None;
        loop {
            let ids = self.ids(last, IDS);
            let Some(&end) = ids.last() else { break };
            for id in ids {
                self.check_version(cx, id, &mut report)?;
            }
            last = Some(end);
        }
        Ok(report)
    }

    fn check_pack(&self, cx: &Cx<'_>, pack: &Pack, report: &mut Report) -> Result<()> {
        self.limit_open(pack);
        if load::header(cx, pack).is_err() {
            report.damaged_headers += 1;
        }
        let scanned = pack.scan(cx, FIRST, &mut |found| {
            match found {
                Scanned::Entry { kind, offset, len, body } => {
                    report.entries += 1;
                    if kind == Kind::Recipe && !self.is_current(pack.number, offset, body) {
                        report.unreferenced_bytes += len;
                    }
                }
                Scanned::Damage { len, .. } => report.damaged_bytes += len,
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(()) => report.bytes += pack.size(cx)?,
            // It was removed meanwhile, or can't be read.
            Err(_) if self.tables.read().pack(pack.number).is_none() => {}
            Err(Errno::INTR) => return Err(Errno::INTR),
            Err(_) => report.damaged_headers += 1,
        }
        Ok(())
    }

    /// Whether an entry is the one that a version is read from.
    fn is_current(&self, pack: u32, offset: u64, body: &[u8]) -> bool {
        let Ok((id, _)) = crate::recipe::parse_base(body) else { return false };
        let slot = self.tables.read().recipes.get(&id).copied();
        let place = slot.filter(|slot| !slot.deleted).and_then(|slot| slot.place);
        place.is_some_and(|place| place.pack == pack && u64::from(place.offset) == offset)
    }

    fn check_version(self: &Arc<Self>, cx: &Cx<'_>, id: RecipeId, report: &mut Report) -> Result<()> {
        report.versions += 1;
        match self.version(cx, id).and_then(|version| version.verify(cx)) {
            Ok(()) => Ok(()),
            Err(errno @ (Errno::INTR | Errno::NOMEM)) => Err(errno),
            // Deleted meanwhile.
            Err(Errno::NOENT) => {
                report.versions -= 1;
                Ok(())
            }
            Err(_) => {
                report.unreadable.push(id);
                Ok(())
            }
        }
    }

    /// Deletes the versions that can't be read, and removes damaged bytes by rewriting their packs.
    /// Returns what a check found before. All other versions keep their ids and contents.
    ///
    /// # Errors
    /// As [`BlockStore::check`] and [`BlockStore::delete`].
    pub fn repair(self: &Arc<Self>, cx: &Cx<'_>) -> Result<Report> {
        let report = self.check(cx)?;
        for &id in &report.unreadable {
            match self.delete(cx, id) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        if !report.is_clean() {
            self.sync(cx)?;
            self.collect_damaged(cx)?;
        }
        Ok(report)
    }
}
