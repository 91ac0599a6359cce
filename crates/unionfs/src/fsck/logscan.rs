//! Reads an identity log beyond its first damaged record.

use crate::log::{HEADER, Reader, Record};
use crate::recorded::Known;
use vnode::{Cx, OpenFile, Result};

/// Maximum distance to the next readable record after a damaged one, in bytes.
const GAP: usize = 1 << 20;
/// Bytes of a record around its payload.
const FRAME: usize = 8;
/// Prefix of the header of every version.
const FAMILY: &[u8] = b"strata-ident ";

/// What a log holds.
#[derive(Default)]
pub(super) struct Scan {
    /// The content of the readable records before the first damage.
    pub(super) known: Known,
    /// The content of all readable records.
    pub(super) salvaged: Known,
    /// Number of readable records after damaged ones.
    pub(super) after_damage: u64,
    /// Number of bytes before the first damage.
    pub(super) good: u64,
    /// Number of intact records that no server can have written.
    pub(super) forged: u64,
    /// Total number of bytes.
    pub(super) size: u64,
    /// The bytes after `good` were written by a later version.
    pub(super) later: bool,
    /// The log is empty, or has only the beginning of a header: it was being created.
    is_begun: bool,
}

/// Reads a whole log.
pub(super) fn scan(file: &dyn OpenFile, cx: &Cx<'_>, size: u64) -> Result<Scan> {
    let mut scan = Scan { size, ..Scan::default() };
    let read = Reader::read(file, cx, &mut |record| scan.known.apply(record))?;
    (scan.good, scan.forged) = (read.good, read.skipped);
    if scan.good == 0 {
        let mut start = [0; HEADER.len()];
        let len = file.read(cx, &mut start, 0)?;
        let start = start.get(..len).unwrap_or_default();
        scan.later = len == HEADER.len() && start.starts_with(FAMILY);
        scan.is_begun = size < HEADER.len() as u64 && HEADER.starts_with(start);
        if scan.later || scan.is_begun {
            return Ok(scan);
        }
    }
    scan.salvaged = scan.known.clone();
    let mut at = scan.good.max(HEADER.len() as u64);
    while at < size {
        let window = read_at(file, cx, at)?;
        if at == scan.good && at > 0 && is_of_later_version(&window) {
            scan.later = true;
            return Ok(scan);
        }
        let Some(skip) = next_record(&window) else { break };
        at += skip as u64;
        let mut rest = window.get(skip..).unwrap_or_default();
        let before = rest.len();
        while let Some(record) = Record::decode(&mut rest) {
            scan.after_damage += 1;
            if record.is_plausible() {
                scan.salvaged.apply(record);
            }
        }
        at += (before - rest.len()) as u64;
    }
    Ok(scan)
}

fn read_at(file: &dyn OpenFile, cx: &Cx<'_>, at: u64) -> Result<Vec<u8>> {
    let mut window = vec![0; GAP + usize::from(u16::MAX) + FRAME];
    let mut len = 0;
    while let Some(out) = window.get_mut(len..).filter(|out| !out.is_empty()) {
        match file.read(cx, out, at + len as u64)? {
            0 => break,
            got => len += got,
        }
    }
    window.truncate(len);
    Ok(window)
}

/// Whether the bytes begin with an intact record of an unknown type.
fn is_of_later_version(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    Record::decode(&mut rest).is_none() && Record::is_intact(bytes)
}

/// Returns the distance to the next readable record.
fn next_record(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len().min(GAP)).find(|&at| {
        let mut rest = bytes.get(at..).unwrap_or_default();
        Record::may_begin(rest) && Record::decode(&mut rest).is_some()
    })
}

impl Scan {
    /// Whether the log ends with an incomplete record and is otherwise intact.
    pub(super) fn is_cut_off(&self) -> bool {
        self.good < self.size && (self.good > 0 || self.is_begun) && self.after_damage == 0 && !self.later
    }

    /// Whether records are lost that are followed by others, or the header is.
    pub(super) fn is_damaged(&self) -> bool {
        !self.later && !self.is_begun && (self.good == 0 || self.after_damage > 0)
    }
}
