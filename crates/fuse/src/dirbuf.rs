//! Encoding of directory listings.

use crate::abi::{Dirent, Direntplus, EntryOut};
use core::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

/// Encodes directory entries into the buffer of READDIR or READDIRPLUS.
///
/// A reply holds entries of one kind: use only [`DirBuf::push`] or only [`DirBuf::push_plus`].
#[derive(Debug)]
pub struct DirBuf<'a> {
    out: &'a mut [u8],
    len: usize,
    /// Where the last entry's offset is.
    last_off: Option<usize>,
}

impl<'a> DirBuf<'a> {
    /// Creates an empty reply, which may grow to the size of `out`.
    #[must_use]
    pub const fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0, last_off: None }
    }

    /// Returns the number of bytes written: the handler's return value.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written. An empty reply means the end of the directory.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an entry of READDIR. `off` is the offset to resume after it, `kind` the `DT_*`
    /// number. Returns false, and writes nothing, if it does not fit.
    #[must_use]
    pub fn push(&mut self, ino: u64, off: u64, kind: u32, name: &[u8]) -> bool {
        let at = self.len + offset_of!(Dirent, off);
        let fits = self.write(dirent(ino, off, kind, name).as_bytes(), name);
        self.last_off = if fits { Some(at) } else { self.last_off };
        fits
    }

    /// Appends an entry of READDIRPLUS. A node id of 0 in `entry` means unknown attributes. Returns
    /// false, and writes nothing, if it does not fit; the lookup then does not count.
    #[must_use]
    pub fn push_plus(&mut self, entry: &EntryOut, ino: u64, off: u64, kind: u32, name: &[u8]) -> bool {
        let at = self.len + offset_of!(Direntplus, dirent) + offset_of!(Dirent, off);
        let fits = self.write(Direntplus { entry_out: *entry, dirent: dirent(ino, off, kind, name) }.as_bytes(), name);
        self.last_off = if fits { Some(at) } else { self.last_off };
        fits
    }

    /// Whether an entry of READDIRPLUS with a name of this length fits. Check it before a lookup
    /// that would be counted.
    #[must_use]
    pub const fn fits_plus(&self, name_len: usize) -> bool {
        (size_of::<Direntplus>() + name_len).next_multiple_of(8) <= self.out.len() - self.len
    }

    /// Replaces the offset to resume after the last entry.
    pub fn resume_at(&mut self, off: u64) {
        let place = self.last_off.and_then(|at| self.out.get_mut(at..at + size_of::<u64>()));
        if let Some(place) = place {
            place.copy_from_slice(&off.to_ne_bytes());
        }
    }

    /// Sets the lifetimes of entries of READDIRPLUS to 0 where `is_stale` returns true for the node
    /// id and name.
    pub fn expire(&mut self, mut is_stale: impl FnMut(u64, &[u8]) -> bool) {
        let mut rest = self.out.get_mut(..self.len).unwrap_or_default();
        while let Ok((mut entry, tail)) = Direntplus::read_from_prefix(rest) {
            let name = tail.get(..entry.dirent.namelen as usize).unwrap_or_default();
            let total = (size_of::<Direntplus>() + name.len()).next_multiple_of(8);
            if is_stale(entry.entry_out.nodeid, name) {
                let out = &mut entry.entry_out;
                (out.entry_valid, out.entry_valid_nsec, out.attr_valid, out.attr_valid_nsec) = (0, 0, 0, 0);
                // It fits where it was read.
                let _fits = entry.write_to_prefix(rest);
            }
            rest = rest.get_mut(total..).unwrap_or_default();
        }
    }

    fn write(&mut self, head: &[u8], name: &[u8]) -> bool {
        let total = (head.len() + name.len()).next_multiple_of(8);
        let Some(place) = self.out.get_mut(self.len..).and_then(|rest| rest.get_mut(..total)) else { return false };
        let (head_place, rest) = place.split_at_mut(head.len());
        let (name_place, padding) = rest.split_at_mut(name.len());
        head_place.copy_from_slice(head);
        name_place.copy_from_slice(name);
        padding.fill(0);
        self.len += total;
        true
    }
}

fn dirent(ino: u64, off: u64, kind: u32, name: &[u8]) -> Dirent {
    // The kernel refuses a name that is too long; none exceeds 4 GiB.
    Dirent { ino, off, namelen: u32::try_from(name.len()).unwrap_or(u32::MAX), r#type: kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_entries_lose_their_lifetimes() {
        let mut buffer = [0; 1024];
        let mut dir = DirBuf::new(&mut buffer);
        let entry = |nodeid| EntryOut {
            nodeid,
            entry_valid: 1,
            attr_valid: 2,
            entry_valid_nsec: 3,
            attr_valid_nsec: 4,
            ..EntryOut::default()
        };
        for (node, name) in [(7, &b"abc"[..]), (8, b"12345678"), (9, b"x")] {
            assert!(dir.push_plus(&entry(node), node, node, 8, name));
        }
        let mut seen = Vec::new();
        dir.expire(|node, name| {
            seen.push((node, name.to_vec()));
            name == b"12345678"
        });
        assert_eq!(seen, [(7, b"abc".to_vec()), (8, b"12345678".to_vec()), (9, b"x".to_vec())]);
        let second = (size_of::<Direntplus>() + 3).next_multiple_of(8);
        let third = second + size_of::<Direntplus>() + 8;
        for (at, node, is_stale) in [(0, 7, false), (second, 8, true), (third, 9, false)] {
            let (found, _) = Direntplus::read_from_prefix(&buffer[at..]).unwrap();
            let expected = if is_stale { EntryOut { nodeid: node, ..EntryOut::default() } } else { entry(node) };
            assert_eq!(found.entry_out.as_bytes(), expected.as_bytes());
        }
    }

    #[test]
    fn entries_are_padded_and_stop_at_the_end() {
        let mut buffer = [0xff; 64];
        let mut dir = DirBuf::new(&mut buffer);
        assert!(dir.is_empty());
        assert!(dir.push(7, 1, 8, b"abc"));
        assert_eq!(dir.len(), 32);
        assert!(dir.push(8, 2, 4, b"12345678"));
        assert_eq!(dir.len(), 64);
        assert!(!dir.push(9, 3, 4, b"x"));
        assert_eq!(dir.len(), 64);
        let (first, rest) = Dirent::read_from_prefix(&buffer).unwrap();
        assert_eq!(first, Dirent { ino: 7, off: 1, namelen: 3, r#type: 8 });
        assert_eq!(&rest[..8], b"abc\0\0\0\0\0");
    }

    #[test]
    fn the_last_offset_can_be_replaced() {
        let mut buffer = [0; 1024];
        DirBuf::new(&mut buffer).resume_at(9);
        assert_eq!(buffer, [0; 1024]);
        let mut dir = DirBuf::new(&mut buffer);
        assert!(dir.push(7, 1, 8, b"abc") && dir.push(8, 2, 4, b"x"));
        dir.resume_at(9);
        let offs = [0, 32].map(|at| Dirent::read_from_prefix(&buffer[at..]).unwrap().0.off);
        assert_eq!(offs, [1, 9]);
        let mut dir = DirBuf::new(&mut buffer);
        assert!((7..9).all(|ino| dir.push_plus(&EntryOut::default(), ino, ino, 4, b"abc")));
        dir.resume_at(9);
        let second = (size_of::<Direntplus>() + 3).next_multiple_of(8);
        let found = [0, second].map(|at| Direntplus::read_from_prefix(&buffer[at..]).unwrap().0.dirent);
        assert_eq!(found.map(|dirent| (dirent.ino, dirent.off)), [(7, 7), (8, 9)]);
    }

    #[test]
    fn fits_plus_predicts_push_plus() {
        let mut buffer = [0; 160];
        let mut dir = DirBuf::new(&mut buffer);
        assert!(dir.fits_plus(8));
        assert!(!dir.fits_plus(9));
        assert!(!dir.push_plus(&EntryOut::default(), 1, 1, 4, b"123456789"));
        assert!(dir.push_plus(&EntryOut::default(), 1, 1, 4, b"12345678"));
        assert_eq!(dir.len(), 160);
    }
}
