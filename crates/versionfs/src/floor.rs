//! The numbers that removed sets of a store have used: in its file `;next`, the number from which
//! the sets that it gets count. References to versions name a number, so none is used twice under
//! one name.

use crate::set::read_whole;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, OpenFlags, Result, Vnode};

/// The name of the file in a store.
const FLOOR: &[u8] = b";next";

/// Digits of the number in the file: it is replaced in place.
const DIGITS: usize = 20;

/// Longest such file in bytes.
const MAX: u64 = 64;

/// How much a floor is raised beyond what is needed, so that few sets raise it.
const SLACK: u64 = 16;

/// Returns the first number of new sets of a store.
///
/// # Errors
/// Those of the layer below.
pub(crate) fn read(cx: &Cx<'_>, store: &Arc<dyn Vnode>) -> Result<u64> {
    let Some(entry) = store.lookup(cx, Name::new(FLOOR)?)? else { return Ok(1) };
    let text = match read_whole(cx, &entry, MAX) {
        Err(Errno::IO) => Vec::new(),
        text => text?,
    };
    let number = core::str::from_utf8(&text).ok().and_then(|text| text.trim_end().parse().ok());
    let number = number.filter(|number| versionset::may_follow(*number, 1));
    if number.is_none() {
        tracing::warn!("the file ;next in the store of directory {} is damaged", entry.vnode.id());
    }
    Ok(number.unwrap_or(1))
}

/// Makes new sets of a store count from `next` at least. One thread at a time does so.
///
/// # Errors
/// Those of the layer below.
pub(crate) fn raise(cx: &Cx<'_>, store: &Arc<dyn Vnode>, next: u64) -> Result<()> {
    if next <= read(cx, store)? {
        return Ok(());
    }
    let name = Name::new(FLOOR)?;
    let file = match store.lookup(cx, name)? {
        Some(entry) => entry.vnode.open(cx, OpenFlags::WRONLY)?,
        None => store.create(cx, name, 0o600, OpenFlags::WRONLY)?.1,
    };
    let next = next.saturating_add(SLACK);
    versionset::write_full(cx, &*file, format!("{next:0DIGITS$}\n").as_bytes(), 0)?;
    // The sets go after it.
    file.fsync(cx, true)
}
