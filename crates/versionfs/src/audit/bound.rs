//! Discarding old segments, as the administrator's bounds require.

use super::log::{own_record, read_start, segments};
use super::read::log_dir;
use crate::core::Core;
use std::sync::Arc;
use versionpolicy::AuditSegment;
use versionset::{Audited, SegmentPart, SegmentParts, nanos, segment_name};
use vnode::{Cx, Errno, Name, Result, Vnode};

impl Core {
    /// Discards the oldest segments of the audit log, as far as they exceed its bounds. A record
    /// says which ones, so that an auditor can tell them from lost ones. The newest segment stays.
    ///
    /// # Errors
    /// Those of the layer below.
    pub(crate) fn bound_log(&self, cx: &Cx<'_>) -> Result<()> {
        if self.policies.audit().keeps_all() {
            return Ok(());
        }
        let Some(dir) = log_dir(cx, &self.root())? else { return Ok(()) };
        let all = segments(cx, &dir)?;
        let count = self.count_old(cx, &dir, &all)?;
        let Some((first, end)) = all.first().zip(all.get(count)).filter(|(first, end)| first < end) else {
            return Ok(());
        };
        let record = own_record(Audited::Discarded, self.now(), (*first, end - 1));
        let mut discarded = all.iter().take(count);
        let reserved = match self.log.reserve(self, cx) {
            // The record of this needs room, too.
            Err(Errno::NOSPC | Errno::DQUOT) => {
                discarded.next().map_or(Ok(()), |first| remove(cx, &dir, *first))?;
                self.log.reserve(self, cx)?
            }
            reserved => reserved?,
        };
        reserved.append(cx, record)?;
        // A power failure leaves no gap that the log does not explain.
        self.log.fsync(cx)?;
        discarded.try_for_each(|first| remove(cx, &dir, *first))
    }

    /// Returns how many of the oldest segments exceed the bounds.
    fn count_old(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, all: &[u64]) -> Result<usize> {
        let limit = self.policies.audit();
        let now = self.policies.now(self.now()).at;
        let sizes = all.iter().map(|first| size(cx, dir, *first)).collect::<Result<Vec<_>>>()?;
        let mut left = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
        let (mut count, mut ended) = (0, i128::MIN);
        // The newest segment has no later one.
        for (size, later) in sizes.iter().zip(1..all.len()) {
            let began = first_time(cx, dir, all.get(later..).unwrap_or_default())?;
            // The clock may have jumped back.
            ended = ended.max(began.unwrap_or(now));
            if !limit.discards(AuditSegment { ended, size: *size }, left, now) {
                break;
            }
            left = left.saturating_sub(*size);
            count = later;
        }
        Ok(count)
    }
}

fn size(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, first: u64) -> Result<u64> {
    Ok(dir.lookup(cx, Name::new(&segment_name(first))?)?.map_or(0, |entry| entry.attr.size))
}

/// Returns the time of the first record in these segments; `None` if they have none.
fn first_time(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, all: &[u64]) -> Result<Option<i128>> {
    for first in all {
        let bytes = read_start(cx, dir, *first)?;
        if let Some(SegmentPart::Record(record, _)) = SegmentParts::of(&bytes, *first).next() {
            return Ok(Some(nanos(record.time)));
        }
    }
    Ok(None)
}

fn remove(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, first: u64) -> Result<()> {
    match dir.unlink(cx, Name::new(&segment_name(first))?) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
