//! Checks that a shared object is complete. The loader maps the segments that the headers describe;
//! accessing a truncated segment would kill the process.

use std::os::fd::OwnedFd;

/// `PT_LOAD`: a segment that is mapped.
const LOAD: u32 = 1;
/// Sizes of the 64-bit ELF header and program header in bytes.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Sanity limit for program headers.
const MAX_PROGRAM_HEADERS: u16 = 256;

/// Checks that every mapped segment lies within the file.
pub(crate) fn check(file: &OwnedFd, size: u64) -> Result<(), String> {
    let no = || "not a 64-bit ELF shared object for this machine".to_owned();
    let cut = || "the file is truncated; copy or build it again".to_owned();
    let header = read(file, 0, HEADER).ok_or_else(no)?;
    let little = if cfg!(target_endian = "little") { 1 } else { 2 };
    if header.get(..6) != Some(&[0x7f, b'E', b'L', b'F', 2, little]) {
        return Err(no());
    }
    let (begin, each, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
    if usize::from(each) != PROGRAM_HEADER || count > MAX_PROGRAM_HEADERS {
        return Err(no());
    }
    for i in 0..u64::from(count) {
        let at = begin.checked_add(i * PROGRAM_HEADER as u64).ok_or_else(cut)?;
        let part = read(file, at, PROGRAM_HEADER).ok_or_else(cut)?;
        let end = u64_at(&part, 8).checked_add(u64_at(&part, 32));
        if u32_at(&part, 0) == LOAD && end.is_none_or(|end| end > size) {
            return Err(cut());
        }
    }
    Ok(())
}

fn read(file: &OwnedFd, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    (rustix::io::pread(file, &mut *bytes, at) == Ok(len)).then_some(bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(array(bytes, at))
}
