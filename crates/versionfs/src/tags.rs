//! Tags: names of times, for the whole mount. They are in the file `;tags` of the root's store, a
//! line `NAME SEC.NNNNNNNNN` each.

use crate::core::Core;
use crate::reply::{escape, parse_time, time, unescape};
use crate::set::{find_store, make_dir};
use crate::when;
use std::collections::BTreeMap;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, OpenFlags, Result, Time};

const FILE: &[u8] = b";tags";
const NEW_FILE: &[u8] = b";tags~";

/// Longest tag in bytes.
const MAX_TAG: usize = 200;

/// Largest file with tags in bytes.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// Returns the tags with their times.
///
/// # Errors
/// Those of the layer below. A malformed line is ignored.
pub(crate) fn read(core: &Core, cx: &Cx<'_>) -> Result<BTreeMap<Vec<u8>, Time>> {
    let server = core.server(cx);
    let Some(store) = find_store(&server, &core.root())? else { return Ok(BTreeMap::new()) };
    let Some(entry) = store.lookup(&server, Name::new(FILE)?)? else { return Ok(BTreeMap::new()) };
    if entry.attr.kind() != Kind::Regular || entry.attr.size > MAX_FILE {
        return Err(Errno::IO);
    }
    let file = entry.vnode.open(&server, OpenFlags::RDONLY)?;
    let mut bytes = vec![0; usize::try_from(entry.attr.size).map_err(|_| Errno::IO)?];
    let len = versionset::read_full(&server, &*file, &mut bytes, 0)?;
    bytes.truncate(len);
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

fn parse_line(line: &[u8]) -> Option<(Vec<u8>, Time)> {
    let at = line.iter().position(|byte| *byte == b' ')?;
    let (name, moment) = line.split_at(at);
    let moment = core::str::from_utf8(moment.get(1..)?).ok()?;
    Some((unescape(name).filter(|name| is_tag(name))?, parse_time(moment)?))
}

/// Returns the text of the file and of the reply to `versionfs.tags`.
pub(crate) fn text(tags: &BTreeMap<Vec<u8>, Time>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, moment) in tags {
        escape(name, &mut out);
        out.extend_from_slice(format!(" {}\n", time(*moment)).as_bytes());
    }
    out
}

/// Whether a tag may have this name: it is a name of a file, and not the beginning of a time.
pub(crate) fn is_tag(name: &[u8]) -> bool {
    name.len() <= MAX_TAG
        && Name::new(name).is_ok()
        && !name.first().is_some_and(|first| first.is_ascii_digit() || b"@-.".contains(first))
        && name.iter().all(|byte| *byte > 0x20 && *byte != 0x7f)
}

/// Returns the times that tags name: versions of these times are kept.
///
/// # Errors
/// Those of the layer below.
pub(crate) fn times(core: &Core, cx: &Cx<'_>) -> Result<Arc<[Time]>> {
    let mut known = core.tags.lock();
    if let Some(times) = &*known {
        return Ok(Arc::clone(times));
    }
    let times: Arc<[Time]> = read(core, cx)?.into_values().collect();
    *known = Some(Arc::clone(&times));
    Ok(times)
}

/// Changes the tags by `change`.
///
/// # Errors
/// Those of `change` and of the layer below. Then the tags are as before.
pub(crate) fn update(
    core: &Core,
    cx: &Cx<'_>,
    change: impl FnOnce(&mut BTreeMap<Vec<u8>, Time>) -> Result<()>,
) -> Result<()> {
    let mut known = core.tags.lock();
    let server = core.server(cx);
    let mut tags = read(core, cx)?;
    change(&mut tags)?;
    let bytes = text(&tags);
    if bytes.len() as u64 > MAX_FILE {
        return Err(Errno::NOSPC);
    }
    let store = make_dir(&server, &core.root(), versionset::STORE)?;
    core.inodes.get(core.root().id()).set_has_store(true);
    *known = None;
    versionset::replace(&server, &store, NEW_FILE, FILE, |_, file| versionset::write_full(&server, &*file, &bytes, 0))?;
    *known = Some(tags.into_values().collect());
    Ok(())
}

/// Returns the time that a text means: a time or a tag. `None` if it is neither.
///
/// # Errors
/// Those of the layer below.
pub(crate) fn moment(core: &Core, cx: &Cx<'_>, text: &[u8]) -> Result<Option<Time>> {
    if let Some(moment) = core::str::from_utf8(text).ok().and_then(when::parse) {
        return Ok(Some(moment));
    }
    if !is_tag(text) {
        return Ok(None);
    }
    Ok(read(core, cx)?.get(text).copied())
}
