//! The command `versionfs.log`.

use super::log::segments;
use crate::commands::Place;
use crate::reply::{MAX_REPLY, field, time};
use crate::set::find_store;
use std::sync::Arc;
use versionset::{AuditRecord, LOG, SegmentPart, SegmentParts};
use vnode::{Command, CommandAccess, Cx, Errno, Kind, Name, Result, Vnode};

/// The command.
pub(crate) const COMMAND: Command = Command {
    name: "versionfs.log",
    help: "Returns the audit log of the mount, a line for each record. The input is empty, or the number of the first \
           record.",
    access: CommandAccess::Owner,
};

impl Place<'_> {
    /// Returns the records from number `from` on, as far as they fit into a reply.
    pub(crate) fn audit_log(&self, cx: &Cx<'_>, from: u64) -> Result<Vec<u8>> {
        let server = self.core.server(cx);
        let mut out = Vec::new();
        let Some(dir) = log_dir(&server, &self.core.root())? else { return Ok(out) };
        let all = segments(&server, &dir)?;
        // The segment that contains the first wanted record is the last one that begins before it.
        let begin = all.partition_point(|first| *first <= from).saturating_sub(1);
        for first in all.into_iter().skip(begin) {
            cx.check()?;
            let bytes = match self.core.log.read_segment(&server, &dir, first) {
                // Discarded since, and all before it: the oldest go first. A reply with those would
                // have a gap.
                Err(Errno::NOENT) => {
                    out.clear();
                    continue;
                }
                read => read?,
            };
            for part in SegmentParts::of(&bytes, first) {
                match part {
                    SegmentPart::Record(record, _) if record.number < from => {}
                    SegmentPart::Record(record, _) if out.len() > MAX_REPLY => {
                        out.extend_from_slice(format!("more {}\n", record.number).as_bytes());
                        return Ok(out);
                    }
                    SegmentPart::Record(record, _) => line(&record, &mut out),
                    SegmentPart::Damage(at, len) => {
                        out.extend_from_slice(format!("damaged {first} {at} {len}\n").as_bytes());
                    }
                }
            }
        }
        Ok(out)
    }
}

/// Returns the directory with the segments, if there is one.
pub(super) fn log_dir(cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<Option<Arc<dyn Vnode>>> {
    let Some(store) = find_store(cx, root)? else { return Ok(None) };
    let found = store.lookup(cx, Name::new(LOG)?)?;
    Ok(found.filter(|entry| entry.vnode.kind() == Kind::Directory).map(|entry| entry.vnode))
}

/// Appends the line of a record.
fn line(record: &AuditRecord, out: &mut Vec<u8>) {
    let numbers = format!(
        "{} {} {} {} {} {} ",
        record.number,
        time(record.time),
        record.operation.word(),
        record.errno,
        record.inode,
        record.place.dir,
    );
    out.extend_from_slice(numbers.as_bytes());
    field(&record.place.shown(), out);
    let new_place = record.new_place.clone().unwrap_or_default();
    out.extend_from_slice(format!(" {} ", new_place.dir).as_bytes());
    field(&new_place.shown(), out);
    out.extend_from_slice(format!(" {} {} ", record.range.0, record.range.1).as_bytes());
    field(&record.text, out);
    let versions = record.versions.iter().map(|(number, is_new)| format!("{number}{}", if *is_new { "n" } else { "" }));
    out.push(b' ');
    field(versions.collect::<Vec<_>>().join(",").as_bytes(), out);
    let who = &record.who;
    out.extend_from_slice(format!(" {} {} {} {} ", who.uid, record.gid, who.pid, who.sid).as_bytes());
    field(&who.comm, out);
    out.push(b'\n');
}
