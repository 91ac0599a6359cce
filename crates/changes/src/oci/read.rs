//! Reads an archive: ustar, pax and GNU headers. Nothing in it is trusted.

use crate::oci::error::LayerError;
use crate::oci::item::{BLOCK, Item, Meta, Records, What, XATTR, parse_decimal};
use std::borrow::Cow;
use std::io::{ErrorKind, Read};
use tar::{EntryType, Header};
use vnode::Time;

/// Maximum size of a pax header or of a long name, in bytes.
const MAX_RECORDS: u64 = 8 << 20;
/// Pax records without an effect on a branch: names of users, other times, and what is known from
/// elsewhere.
const IGNORED: &[&[u8]] = &[
    b"atime",
    b"ctime",
    b"uname",
    b"gname",
    b"comment",
    b"charset",
    b"hdrcharset",
    b"LIBARCHIVE.",
    b"SCHILY.dev",
    b"SCHILY.ino",
    b"SCHILY.nlink",
];

/// An entry of an archive, with the keys of pax records that are unknown.
pub(crate) struct ReadItem {
    pub(crate) item: Item,
    pub(crate) unknown: Vec<Vec<u8>>,
}

/// Reads entries of an archive.
pub(crate) struct Reader<'r> {
    input: &'r mut dyn Read,
    at: u64,
    /// Bytes of the present entry's data that were not read.
    left: u64,
    /// Bytes that fill its last block.
    padding: u64,
}

type Result<T> = core::result::Result<T, LayerError>;

impl<'r> Reader<'r> {
    pub(crate) fn new(input: &'r mut dyn Read) -> Self {
        Self { input, at: 0, left: 0, padding: 0 }
    }

    /// Returns the next entry; `None` at the end of the archive.
    pub(crate) fn next(&mut self) -> Result<Option<ReadItem>> {
        let (mut records, mut name, mut target) = (Records::new(), None, None);
        loop {
            self.skip_data()?;
            let Some(header) = self.header()? else {
                return match (records.is_empty(), &name, &target) {
                    (true, None, None) => Ok(None),
                    _ => Err(self.malformed("the archive ends between a header and its entry")),
                };
            };
            self.begin_data(number(header.entry_size(), "size").map_err(|why| self.malformed(why))?)?;
            match header.entry_type().as_byte() {
                b'x' => records.extend(parse_records(&self.small_data()?).map_err(|why| self.malformed(why))?),
                b'g' => self.global_records()?,
                b'L' => name = Some(self.long_name()?),
                b'K' => target = Some(self.long_name()?),
                _ => return self.entry(&header, records, name, target).map(Some),
            }
        }
    }

    /// Reads data of the present entry. Returns 0 at their end.
    pub(crate) fn data(&mut self, out: &mut [u8]) -> Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let out = out.get_mut(..want).unwrap_or_default();
        self.fill(out)?;
        self.left -= want as u64;
        Ok(want)
    }

    /// Reads the input to its end.
    pub(crate) fn drain(self) -> Result<()> {
        std::io::copy(self.input, &mut std::io::sink())?;
        Ok(())
    }

    fn malformed(&self, reason: impl Into<String>) -> LayerError {
        LayerError::Archive { at: self.at, reason: reason.into() }
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        if self.fill_most(out)? < out.len() {
            return Err(self.malformed("the archive ends early: it is incomplete"));
        }
        Ok(())
    }

    /// Reads less only at the end of the input.
    fn fill_most(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.at += done as u64;
        Ok(done)
    }

    fn begin_data(&mut self, size: u64) -> Result<()> {
        let padded = size.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| self.malformed("impossible size"))?;
        (self.left, self.padding) = (size, padded - size);
        Ok(())
    }

    fn skip_data(&mut self) -> Result<()> {
        let mut buffer = [0; 8 * BLOCK];
        let mut rest = self.left.saturating_add(self.padding);
        while rest > 0 {
            let now = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
            self.fill(buffer.get_mut(..now).unwrap_or_default())?;
            rest -= now as u64;
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// Returns the next header; `None` if the block has only zeros, which ends the archive.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        let begin = self.at;
        let mut block = [0; BLOCK];
        let read = self.fill_most(&mut block)?;
        let compressed = || compression(&block).filter(|_| begin == 0);
        if read < BLOCK {
            return Err(self.malformed(compressed().unwrap_or("the archive ends early: it is incomplete")));
        }
        if block.iter().all(|&b| b == 0) {
            return Ok(None);
        }
        header.as_mut_bytes().copy_from_slice(&block);
        let sum = |from: usize, to: usize| -> u32 {
            block.get(from..to).unwrap_or_default().iter().map(|&b| u32::from(b)).sum()
        };
        // The checksum counts as blanks.
        let computed = sum(0, 148) + 8 * u32::from(b' ') + sum(156, BLOCK);
        if header.cksum().ok() != Some(computed) {
            let damaged = "the checksum of a header is wrong: the archive is damaged";
            let reason = if begin > 0 { damaged } else { compressed().unwrap_or("not a tar archive") };
            return Err(LayerError::Archive { at: begin, reason: reason.to_owned() });
        }
        Ok(Some(header))
    }

    fn small_data(&mut self) -> Result<Vec<u8>> {
        if self.left > MAX_RECORDS {
            return Err(self.malformed("a pax header or name has more than 8 MiB"));
        }
        let mut data = vec![0; usize::try_from(self.left).unwrap_or(0)];
        self.data(&mut data)?;
        Ok(data)
    }

    /// Returns a name in the GNU format, which ends with a NUL.
    fn long_name(&mut self) -> Result<Vec<u8>> {
        let mut data = self.small_data()?;
        if data.last() == Some(&0) {
            data.pop();
        }
        Ok(data)
    }

    /// Global records apply to all later entries. Only comments are accepted, as git writes them.
    fn global_records(&mut self) -> Result<()> {
        let records = parse_records(&self.small_data()?).map_err(|why| self.malformed(why))?;
        match records.keys().find(|key| !is_ignored(key)) {
            None => Ok(()),
            Some(key) => {
                Err(self.malformed(format!("a global pax record ({}), which is not supported", key.escape_ascii())))
            }
        }
    }

    fn entry(
        &mut self,
        header: &Header,
        mut records: Records,
        name: Option<Vec<u8>>,
        target: Option<Vec<u8>>,
    ) -> Result<ReadItem> {
        let mut take = |key: &[u8]| records.remove(key).filter(|value| !value.is_empty());
        let path = take(b"path").or(name).unwrap_or_else(|| header.path_bytes().into_owned());
        let target = take(b"linkpath").or(target).or_else(|| header.link_name_bytes().map(Cow::into_owned));
        let refuse = |reason: String| LayerError::refused(&path, reason);
        let size = match take(b"size") {
            Some(text) => decimal(&text, "size").map_err(refuse)?,
            None => self.left,
        };
        let meta = meta(header, &mut take).map_err(refuse)?;
        let mut what = what(header, size, target.unwrap_or_default()).map_err(refuse)?;
        // Before POSIX, a name with a trailing slash was a directory.
        if header.as_old().linkflag == [0] && path.ends_with(b"/") {
            what = What::Dir;
        }
        // Only files have data, whatever the header says.
        self.begin_data(if let What::File(size) = what { size } else { 0 })?;
        let mut item = Item { path, what, meta };
        let mut unknown = Vec::new();
        for (key, value) in records {
            if let Some(name) = key.strip_prefix(XATTR) {
                item.meta.xattrs.insert(name.to_vec(), value);
            } else if key.starts_with(b"GNU.sparse.") {
                return Err(LayerError::refused(&item.path, "a sparse file in the GNU format, which is not supported"));
            } else if !is_ignored(&key) {
                unknown.push(key);
            }
        }
        Ok(ReadItem { item, unknown })
    }
}

/// Names the compression, if these are the first bytes of a compressed file.
fn compression(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x1f, 0x8b, ..] => Some("compressed with gzip; unpack it with gzip -dc"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("compressed with zstd; unpack it with zstd -dc"),
        [b'B', b'Z', b'h', ..] => Some("compressed with bzip2; unpack it with bzip2 -dc"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("compressed with xz; unpack it with xz -dc"),
        _ => None,
    }
}

fn is_ignored(key: &[u8]) -> bool {
    IGNORED.iter().any(|ignored| if ignored.ends_with(b".") { key.starts_with(ignored) } else { key == *ignored })
}

fn what(header: &Header, size: u64, target: Vec<u8>) -> core::result::Result<What, String> {
    let device = |number: std::io::Result<Option<u32>>| {
        number.map(Option::unwrap_or_default).map_err(|_| "impossible device number".to_owned())
    };
    let devices = || Ok::<_, String>((device(header.device_major())?, device(header.device_minor())?));
    Ok(match header.entry_type() {
        EntryType::Regular | EntryType::Continuous => What::File(size),
        EntryType::Link => What::Link(target),
        EntryType::Symlink => What::Symlink(target),
        EntryType::Char => devices().map(|(major, minor)| What::Char(major, minor))?,
        EntryType::Block => devices().map(|(major, minor)| What::Block(major, minor))?,
        EntryType::Directory => What::Dir,
        EntryType::Fifo => What::Fifo,
        EntryType::GNUSparse => return Err("a sparse file in the GNU format, which is not supported".to_owned()),
        other => return Err(format!("an entry of the unknown type {}", [other.as_byte()].escape_ascii())),
    })
}

fn meta(header: &Header, take: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> core::result::Result<Meta, String> {
    let mut id = |key: &str, field: std::io::Result<u64>| -> core::result::Result<u32, String> {
        let id = match take(key.as_bytes()) {
            Some(text) => decimal(&text, key)?,
            None => number(field, key)?,
        };
        // The largest number means "unchanged" in chown(2).
        u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or_else(|| format!("impossible {key} {id}"))
    };
    let (uid, gid) = (id("uid", header.uid())?, id("gid", header.gid())?);
    let mtime = match take(b"mtime") {
        Some(text) => parse_decimal(&text).ok_or("impossible time")?,
        // The base-256 form of the field may be negative.
        None => Time { sec: number(header.mtime(), "time")?.cast_signed(), nsec: 0 },
    };
    let mode = header.mode().map_err(|_| "impossible mode")? & 0o7777;
    Ok(Meta { mode, uid, gid, mtime, ..Meta::default() })
}

fn number(field: std::io::Result<u64>, what: &str) -> core::result::Result<u64, String> {
    field.map_err(|_| format!("impossible {what}"))
}

fn decimal(text: &[u8], what: &str) -> core::result::Result<u64, String> {
    let digits = core::str::from_utf8(text).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| format!("impossible {what}"))
}

/// Parses pax records. Values may contain any byte, also newlines.
fn parse_records(mut data: &[u8]) -> core::result::Result<Records, &'static str> {
    const WRONG: &str = "a malformed pax record";
    let mut records = Records::new();
    while !data.is_empty() {
        let blank = data.iter().position(|&b| b == b' ').ok_or(WRONG)?;
        let digits = data.get(..blank).and_then(|digits| core::str::from_utf8(digits).ok()).ok_or(WRONG)?;
        let length = decimal(digits.as_bytes(), "length").ok().and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or(WRONG)?;
        let record = data.get(blank + 1..length).and_then(|record| record.strip_suffix(b"\n")).ok_or(WRONG)?;
        let equals = record.iter().position(|&b| b == b'=').filter(|at| *at > 0).ok_or(WRONG)?;
        let (key, value) = (record.get(..equals).ok_or(WRONG)?, record.get(equals + 1..).ok_or(WRONG)?);
        records.insert(key.to_vec(), value.to_vec());
        data = data.get(length..).unwrap_or_default();
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed() {
        let records = parse_records(b"10 path=a\n7 k=\n=\n6 k2=\n").unwrap();
        let found: Vec<_> = records.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        assert_eq!(found, [(&b"k"[..], &b"\n="[..]), (b"k2", b""), (b"path", b"a")]);
        for bad in
            [&b"10 path=a"[..], b"8 path=a\n", b"99 path=a\n", b"x path=a\n", b"5 =a\n", b"0 \n", b"1", b"+6 a=b\n"]
        {
            assert!(parse_records(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
