//! Which key a file belongs to, on a volume with several keys. A file does not name its key; the
//! key is the one that decrypts its blocks.

use crate::grant::OpenedWith;
use cryptformat::{Keys, Layout};
use vnode::{Cx, Errno, OpenFile, OpenFlags, Result, Whence};
use wrapfs::hooks::Object;

/// Fails if the file belongs to another key than that of the open file `opened`, so that no file
/// contains blocks of two keys. An empty file belongs to no key.
///
/// # Errors
/// `ENOKEY` if it belongs to another key; those of the layer below.
pub(crate) fn check(cx: &Cx<'_>, file: &Object<'_>, opened: &OpenedWith) -> Result<()> {
    cx.require_blocking()?;
    // The caller may have the right to write only.
    let cx = cx.as_server(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let size = file.attr(&cx)?.size;
    let below = file.lower().open(&cx, OpenFlags::RDONLY)?;
    let belongs = opened.with(|keys| belongs(&cx, &*below, size, keys))?;
    if belongs {
        return Ok(());
    }
    tracing::info!(inode = file.id(), "not opened: the file belongs to another key");
    Err(Errno::NOKEY)
}

/// Whether `keys` decrypt a file of `size` stored bytes. True if it contains no block, and if its
/// header is damaged: no key can use it then.
fn belongs(cx: &Cx<'_>, below: &dyn OpenFile, size: u64, keys: &Keys) -> Result<bool> {
    let layout = keys.layout();
    let (header, stored) = (layout.header as u64, layout.stored as u64);
    if layout.plain_size(size) == 0 {
        return Ok(true);
    }
    let stored_header = read(cx, below, 0, layout.header)?;
    let Ok(id) = keys.check_header(&stored_header) else { return Ok(true) };
    if keys.open_header(&id, &stored_header).is_ok() {
        return Ok(true);
    }
    let opens = |number: u64, block: &[u8]| {
        let mut plain = vec![0; block.len().saturating_sub(layout.overhead())];
        keys.open_block(&id, number, block, &mut plain).is_ok()
    };
    let Some((first, block)) = first_block(cx, below, &layout)? else { return Ok(true) };
    if opens(first, &block) {
        return Ok(true);
    }
    // The first block may be damaged.
    let last = (size - header - 1) / stored;
    let block = read(cx, below, header + last * stored, layout.stored)?;
    Ok(last > first && opens(last, &block))
}

/// Returns the first block that is not a hole, and its number.
fn first_block(cx: &Cx<'_>, below: &dyn OpenFile, layout: &Layout) -> Result<Option<(u64, Vec<u8>)>> {
    let (header, stored) = (layout.header as u64, layout.stored as u64);
    let mut number = 0;
    loop {
        cx.check()?;
        match below.seek(cx, header + number * stored, Whence::Data) {
            Ok(data) => number = number.max((data - header) / stored),
            Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let block = read(cx, below, header + number * stored, layout.stored)?;
        if block.is_empty() {
            return Ok(None);
        }
        if !cryptformat::is_hole(layout, &block) {
            return Ok(Some((number, block)));
        }
        number += 1;
    }
}

/// Reads up to `len` bytes; fewer only at the end of the file.
fn read(cx: &Cx<'_>, below: &dyn OpenFile, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match below.read(cx, rest, offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}
