//! Writes an archive in the pax format. The same entries result in the same bytes.

use crate::oci::item::{BLOCK, Item, MAX_LONG, MAX_SHORT, Records, What, XATTR, decimal};
use std::io::{self, Write};
use tar::{EntryType, Header};

/// The name of all pax headers.
const PAX_NAME: &[u8] = b"PaxHeaders/entry";

/// Writes entries to an archive.
pub(crate) struct Writer<'w> {
    out: &'w mut dyn Write,
    /// Bytes written.
    written: u64,
}

impl<'w> Writer<'w> {
    pub(crate) fn new(out: &'w mut dyn Write) -> Self {
        Self { out, written: 0 }
    }

    /// Writes the header of an entry. The caller writes the data of a file after it.
    pub(crate) fn item(&mut self, item: &Item) -> io::Result<()> {
        let mut records = Records::new();
        let header = header(item, &mut records)?;
        if !records.is_empty() {
            self.records(&records)?;
        }
        self.data(header.as_bytes())
    }

    /// Writes data of a file.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Fills the last block after the data of a file.
    pub(crate) fn pad(&mut self) -> io::Result<()> {
        let used = usize::try_from(self.written % BLOCK as u64).unwrap_or(0);
        match used {
            0 => Ok(()),
            used => self.data(&vec![0; BLOCK - used]),
        }
    }

    /// Writes the end of the archive. Returns its size in bytes.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.data(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.written)
    }

    fn records(&mut self, records: &Records) -> io::Result<()> {
        let mut body = Vec::new();
        for (key, value) in records {
            body.extend(record(key, value));
        }
        let mut header = Header::new_ustar();
        set_name(&mut header, PAX_NAME);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(body.len() as u64);
        header.set_entry_type(EntryType::XHeader);
        set_devices(&mut header, 0, 0)?;
        header.set_cksum();
        self.data(header.as_bytes())?;
        self.data(&body)?;
        self.pad()
    }
}

/// Returns a record: `LENGTH KEY=VALUE\n`. The length includes its own digits.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Returns the header of an entry, and adds records for what does not fit into it.
fn header(item: &Item, records: &mut Records) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    let Item { path, what, meta } = item;
    let slash: &[u8] = if *what == What::Dir { b"/" } else { b"" };
    let name = [path, slash].concat();
    if set_name(&mut header, &name) {
        records.insert(b"path".to_vec(), name);
    }
    header.set_mode(meta.mode);
    header.set_uid(number(b"uid", meta.uid.into(), MAX_SHORT, records));
    header.set_gid(number(b"gid", meta.gid.into(), MAX_SHORT, records));
    let seconds = u64::try_from(meta.mtime.sec).ok().filter(|sec| *sec <= MAX_LONG);
    header.set_mtime(seconds.unwrap_or(0));
    if seconds.is_none() || meta.mtime.nsec != 0 {
        records.insert(b"mtime".to_vec(), decimal(meta.mtime).into_bytes());
    }
    let (kind, size, target, devices) = match what {
        What::File(size) => (EntryType::Regular, *size, None, (0, 0)),
        What::Link(target) => (EntryType::Link, 0, Some(target), (0, 0)),
        What::Symlink(target) => (EntryType::Symlink, 0, Some(target), (0, 0)),
        What::Char(major, minor) => (EntryType::Char, 0, None, (*major, *minor)),
        What::Block(major, minor) => (EntryType::Block, 0, None, (*major, *minor)),
        What::Dir => (EntryType::Directory, 0, None, (0, 0)),
        What::Fifo => (EntryType::Fifo, 0, None, (0, 0)),
    };
    header.set_entry_type(kind);
    header.set_size(number(b"size", size, MAX_LONG, records));
    if let Some(target) = target.filter(|target| fill(&mut header.as_old_mut().linkname, target)) {
        records.insert(b"linkpath".to_vec(), target.clone());
    }
    set_devices(&mut header, devices.0, devices.1)?;
    for (name, value) in &meta.xattrs {
        records.insert([XATTR, name].concat(), value.clone());
    }
    header.set_cksum();
    Ok(header)
}

fn set_devices(header: &mut Header, major: u32, minor: u32) -> io::Result<()> {
    header.set_device_major(major)?;
    header.set_device_minor(minor)
}

/// Returns the number for the header: 0 if it is too large and gets a record.
fn number(key: &[u8], value: u64, most: u64, records: &mut Records) -> u64 {
    if value <= most {
        return value;
    }
    records.insert(key.to_vec(), value.to_string().into_bytes());
    0
}

/// Sets the name. Returns whether it was cut off.
fn set_name(header: &mut Header, name: &[u8]) -> bool {
    fill(&mut header.as_old_mut().name, name)
}

/// Copies bytes to a field. Returns whether they were cut off.
fn fill(field: &mut [u8], bytes: &[u8]) -> bool {
    let fits = bytes.len().min(field.len());
    for (to, from) in field.iter_mut().zip(bytes) {
        *to = *from;
    }
    fits < bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_record_includes_itself() {
        assert_eq!(record(b"path", b"a"), b"9 path=a\n");
        for len in 0..2000 {
            let made = record(b"k", &vec![b'x'; len]);
            let text = std::str::from_utf8(&made).unwrap();
            assert_eq!(text.split_once(' ').unwrap().0.parse(), Ok(made.len()));
        }
    }
}
