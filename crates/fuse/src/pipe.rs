//! Replies to large READs by splice(2), from the page cache of a host file.
//!
//! A READ served from a host file costs two copies on the device: from the host's page cache to the
//! server, and from there to the FUSE file's pages. A pipe holds references to the host's pages
//! instead, and splice(2) copies directly from them (`fuse_dev_splice_write` in fs/fuse/dev.c). The
//! ring has no equivalent: its replies are in the server's memory.
//!
//! Measured with a union, 256 MiB of its read-only branch read in 128 KiB parts: 78 ms of server
//! time, against 119 ms with copies.

use crate::Errno;
use crate::abi::OutHeader;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use zerocopy::IntoBytes;

/// Minimum size of a reply that is worth the pipe's three system calls, in bytes.
pub(crate) const MIN_REPLY: usize = 32 << 10;
/// A slot of a pipe holds at most a page.
const PAGE: usize = 4096;

/// A pipe that is empty or holds one reply.
pub(crate) struct Pipe {
    unique: u64,
    ends: Option<Ends>,
    /// Maximum number of slots (`fs.pipe-max-size`, 1 MiB, without `CAP_SYS_RESOURCE`).
    max_slots: usize,
    held: Option<Held>,
}

struct Ends {
    out: OwnedFd,
    into: OwnedFd,
    slots: usize,
}

/// The reply in the pipe: a header that announces `promised` bytes, and `len` bytes of data.
#[derive(Clone, Copy)]
struct Held {
    promised: usize,
    len: usize,
}

impl Pipe {
    pub(crate) const fn new() -> Self {
        Self { unique: 0, ends: None, max_slots: usize::MAX, held: None }
    }

    /// Sets the request that the next `fill` replies to.
    pub(crate) fn begin(&mut self, unique: u64) {
        self.unique = unique;
        self.empty();
    }

    /// Writes the header and up to `len` bytes of a host file from `offset` into the pipe. Returns
    /// the number of bytes, or `None` with an empty pipe if the file or the pipe does not support
    /// that, or reading failed.
    pub(crate) fn fill(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> Option<usize> {
        self.empty();
        let header_len = u32::try_from(size_of::<OutHeader>() + len).ok()?;
        let header = OutHeader { len: header_len, error: 0, unique: self.unique };
        let filled = self.ends(len)?.fill(&header, (file, offset), len);
        match filled {
            Ok(filled) => self.held = Some(Held { promised: len, len: filled }),
            Err(error) => {
                tracing::debug!(%error, "a reply cannot use splice");
                self.ends = None;
            }
        }
        filled.ok()
    }

    /// Returns a pipe with room for a header and `len` bytes that need not be page-aligned.
    fn ends(&mut self, len: usize) -> Option<&Ends> {
        let slots = len.div_ceil(PAGE) + 2;
        if slots <= self.max_slots && self.ends.as_ref().is_none_or(|ends| ends.slots < slots) {
            match Ends::new(slots) {
                Ok(ends) => self.ends = Some(ends),
                Err(Errno::PERM) => self.max_slots = slots - 1,
                // Running out of descriptors may be temporary.
                Err(error) => tracing::debug!(%error, "cannot create a pipe for replies"),
            }
        }
        self.ends.as_ref().filter(|ends| ends.slots >= slots)
    }

    /// Whether the pipe holds a reply.
    pub(crate) const fn is_full(&self) -> bool {
        self.held.is_some()
    }

    /// Sends the reply if it is as long as its header announces.
    ///
    /// # Errors
    /// Those of a write to the device.
    pub(crate) fn send(&mut self, device: BorrowedFd<'_>) -> Option<Result<(), Errno>> {
        let held = self.held.filter(|held| held.promised == held.len)?;
        self.held = None;
        let ends = self.ends.as_ref()?;
        let sent = splice(&ends.out, None, device, None, size_of::<OutHeader>() + held.len, SpliceFlags::empty());
        if sent != Ok(size_of::<OutHeader>() + held.len) {
            // The pipe may hold an unknown remainder.
            self.ends = None;
        }
        Some(sent.map(drop))
    }

    /// Copies the reply's data out without the header, for a read past the end of the file: the
    /// header announces more.
    ///
    /// # Errors
    /// If the reply does not fit, or the pipe could not be read.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> Result<(), Errno> {
        // On failure the pipe is dropped together with its contents.
        let (Some(held), Some(ends)) = (self.held.take(), self.ends.take()) else { return Err(Errno::IO) };
        ends.drain(out.get_mut(..held.len).ok_or(Errno::IO)?)?;
        self.ends = Some(ends);
        Ok(())
    }

    /// Drops an unsent reply, together with the pipe.
    fn empty(&mut self) {
        if self.held.take().is_some() {
            self.ends = None;
        }
    }
}

impl Ends {
    /// Writes the header, then splices the file's data.
    fn fill(&self, header: &OutHeader, (file, mut offset): (BorrowedFd<'_>, u64), len: usize) -> Result<usize, Errno> {
        rustix::io::write(&self.into, header.as_bytes())?;
        let mut filled = 0;
        while filled < len {
            match splice(file, Some(&mut offset), &self.into, None, len - filled, SpliceFlags::NONBLOCK) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Discards the header and reads the data into `out`.
    fn drain(&self, out: &mut [u8]) -> Result<(), Errno> {
        let mut header = [0; size_of::<OutHeader>()];
        let mut len = rustix::io::read(&self.out, &mut header)?;
        let mut left = out;
        while len > 0 && !left.is_empty() {
            len = rustix::io::read(&self.out, &mut *left)?;
            left = left.get_mut(len..).ok_or(Errno::IO)?;
        }
        if left.is_empty() { Ok(()) } else { Err(Errno::IO) }
    }

    fn new(slots: usize) -> Result<Self, Errno> {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
        let size = fcntl_setpipe_size(into.as_fd(), slots * PAGE)?;
        Ok(Self { out, into, slots: size / PAGE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(len: usize) -> (std::fs::File, Vec<u8>) {
        let data: Vec<u8> = (0..len).map(|i| (i / 3) as u8).collect();
        let mut file: std::fs::File = rustix::fs::memfd_create("pipe", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.write_all(&data).unwrap();
        (file, data)
    }

    /// Returns what arrives at the device, which here is another pipe.
    fn sent(pipe: &mut Pipe) -> (OutHeader, Vec<u8>) {
        let ends = Ends::new(200).unwrap();
        pipe.send(ends.into.as_fd()).unwrap().unwrap();
        drop(ends.into);
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(ends.out), &mut all).unwrap();
        let header = zerocopy::FromBytes::read_from_bytes(&all[..16]).unwrap();
        (header, all.split_off(16))
    }

    #[test]
    fn complete_replies_are_sent_with_their_header() {
        let (file, data) = file(3 << 20);
        let mut pipe = Pipe::new();
        for (unique, offset, len) in
            [(7, 0, MIN_REPLY), (9, 4095, 600 << 10), (11, 8192, 128 << 10), (13, 1, MIN_REPLY + 1)]
        {
            pipe.begin(unique);
            assert!(!pipe.is_full());
            assert_eq!(pipe.fill(file.as_fd(), offset, len), Some(len));
            assert!(pipe.is_full());
            let (header, body) = sent(&mut pipe);
            assert_eq!((header.unique, header.error, header.len as usize), (unique, 0, 16 + len));
            let from = usize::try_from(offset).unwrap();
            assert!(body == data[from..from + len], "{len} from {offset}");
            assert!(!pipe.is_full());
        }
    }

    #[test]
    fn a_short_read_at_the_end_of_a_file_is_copied_out() {
        let (file, data) = file(100_000);
        let mut pipe = Pipe::new();
        pipe.begin(1);
        assert_eq!(pipe.fill(file.as_fd(), 40_000, 128 << 10), Some(60_000));
        assert!(pipe.send(file.as_fd()).is_none());
        let mut out = vec![0; 60_000];
        pipe.take(&mut out).unwrap();
        assert!(out == data[40_000..]);
        // Nothing past the end of the file.
        assert_eq!(pipe.fill(file.as_fd(), 200_000, MIN_REPLY), Some(0));
        pipe.take(&mut []).unwrap();
        assert!(pipe.take(&mut out).is_err() && !pipe.is_full());
        // A buffer that is too small is refused, and the next reply is not mixed up with this one.
        assert_eq!(pipe.fill(file.as_fd(), 0, 128 << 10), Some(100_000));
        assert_eq!(pipe.take(&mut [0; 10]), Err(Errno::IO));
        pipe.begin(3);
        assert_eq!(pipe.fill(file.as_fd(), 0, MIN_REPLY), Some(MIN_REPLY));
        let (header, body) = sent(&mut pipe);
        assert!(header.unique == 3 && body == data[..MIN_REPLY]);
    }

    #[test]
    fn an_unsent_reply_is_dropped() {
        let (file, data) = file(1 << 20);
        let mut pipe = Pipe::new();
        pipe.begin(1);
        pipe.fill(file.as_fd(), 0, MIN_REPLY).unwrap();
        // A second fill, as after a failed replica.
        pipe.fill(file.as_fd(), 4096, MIN_REPLY).unwrap();
        assert!(sent(&mut pipe).1 == data[4096..4096 + MIN_REPLY]);
        pipe.fill(file.as_fd(), 0, MIN_REPLY).unwrap();
        pipe.begin(2);
        assert!(!pipe.is_full());
        pipe.fill(file.as_fd(), 0, MIN_REPLY).unwrap();
        assert_eq!(sent(&mut pipe).0.unique, 2);
    }

    #[test]
    fn files_without_splice_are_read() {
        let (file, _) = file(1 << 20);
        let directory = std::fs::File::open("/").unwrap();
        let unread = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let mut pipe = Pipe::new();
        pipe.begin(1);
        assert_eq!(pipe.fill(directory.as_fd(), 0, MIN_REPLY), None);
        assert_eq!(pipe.fill(unread.as_fd(), 0, MIN_REPLY), None);
        assert!(!pipe.is_full() && pipe.send(file.as_fd()).is_none());
        // No pipe is large enough for this reply; smaller ones still work.
        assert_eq!(pipe.fill(file.as_fd(), 0, 2 << 30), None);
        assert_eq!(pipe.fill(file.as_fd(), 0, MIN_REPLY), Some(MIN_REPLY));
    }
}
