use super::scratch::Scratch;
use vnode::{Cx, Errno, OpenFile, Result};

/// Number of bytes copied between two checks for cancellation.
const STEP: u64 = 256 << 10;

/// Copies from any kind of file by calling `write` with the data and its offset.
pub(crate) fn copy(
    cx: &Cx<'_>,
    write: impl Fn(&[u8], u64) -> Result<usize>,
    offset: u64,
    (from, from_offset): (&dyn OpenFile, u64),
    len: u64,
) -> Result<u64> {
    let mut buffer = Scratch::take(len.min(STEP) as usize);
    let mut done = 0;
    while done < len {
        let step = (len - done).min(STEP) as usize;
        let copied = cx.check().and_then(|()| {
            let part = buffer.get_mut(..step).ok_or(Errno::IO)?;
            let read = from.read(cx, part, from_offset.saturating_add(done))?;
            let part = part.get(..read).unwrap_or_default();
            if part.is_empty() { Ok(0) } else { write(part, offset.saturating_add(done)) }
        });
        match copied {
            Ok(0) => break,
            Ok(n) => done += n as u64,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}
