//! Answers to large READs that share the pages of a host file, in place of copying them twice.
//!
//! A READ that a handler serves from a host file costs two copies on the device: from the host's page cache to the server, and
//! from there to the kernel's pages of the FUSE file. A pipe holds references to the host's pages instead, and splice(2)
//! copies from them (`fuse_dev_splice_write` in fs/fuse/dev.c). The ring has no such way: its replies lie in memory of the server.
//!
//! Measured with a union, 256 MiB of its read-only branch read in parts of 128 KiB: 78 ms of the server's time in place of 119.

use crate::Errno;
use crate::abi::OutHeader;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use zerocopy::IntoBytes;

/// From how many bytes on a reply is worth the pipe's three system calls.
pub(crate) const LEAST: usize = 32 << 10;
/// A slot of a pipe holds a page or less.
const PAGE: usize = 4096;

/// A pipe that is empty, or holds one reply to one request.
pub(crate) struct Pipe {
    unique: u64,
    ends: Option<Ends>,
    /// A pipe can't have more slots (`fs.pipe-max-size`, 1 MiB, without `CAP_SYS_RESOURCE`).
    most: usize,
    held: Option<Held>,
}

struct Ends {
    out: OwnedFd,
    into: OwnedFd,
    slots: usize,
}

/// The reply in the pipe: a header that announces `promised` bytes, and `len` bytes.
#[derive(Clone, Copy)]
struct Held {
    promised: usize,
    len: usize,
}

impl Pipe {
    pub(crate) const fn new() -> Self {
        Self { unique: 0, ends: None, most: usize::MAX, held: None }
    }

    /// What is put into the pipe from now on answers this request.
    pub(crate) fn begin(&mut self, unique: u64) {
        self.unique = unique;
        self.empty();
    }

    /// Puts `len` bytes of a host file from `offset` on into the pipe, or as many as there are, after the header. Answers how many;
    /// `None`: this file or this pipe can't do that, or reading failed, and nothing is in the pipe.
    pub(crate) fn fill(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> Option<usize> {
        self.empty();
        let header_len = u32::try_from(size_of::<OutHeader>() + len).ok()?;
        let header = OutHeader { len: header_len, error: 0, unique: self.unique };
        let filled = self.ends(len)?.fill(&header, (file, offset), len);
        match filled {
            Ok(filled) => self.held = Some(Held { promised: len, len: filled }),
            Err(error) => {
                tracing::debug!(%error, "a reply does not go by a pipe");
                self.ends = None;
            }
        }
        filled.ok()
    }

    /// A pipe with room for a header and `len` bytes that need not begin with a page.
    fn ends(&mut self, len: usize) -> Option<&Ends> {
        let slots = len.div_ceil(PAGE) + 2;
        if slots <= self.most && self.ends.as_ref().is_none_or(|ends| ends.slots < slots) {
            match Ends::new(slots) {
                Ok(ends) => self.ends = Some(ends),
                Err(Errno::PERM) => self.most = slots - 1,
                // Descriptors may be short for a moment.
                Err(error) => tracing::debug!(%error, "no pipe for replies"),
            }
        }
        self.ends.as_ref().filter(|ends| ends.slots >= slots)
    }

    /// Does it hold a reply?
    pub(crate) const fn is_full(&self) -> bool {
        self.held.is_some()
    }

    /// Hands the reply over, if it is as long as its header says.
    ///
    /// # Errors
    /// Those of a write to the device.
    pub(crate) fn send(&mut self, device: BorrowedFd<'_>) -> Option<Result<(), Errno>> {
        let held = self.held.filter(|held| held.promised == held.len)?;
        self.held = None;
        let ends = self.ends.as_ref()?;
        let sent = splice(&ends.out, None, device, None, size_of::<OutHeader>() + held.len, SpliceFlags::empty());
        if sent != Ok(size_of::<OutHeader>() + held.len) {
            // What is left in it is not known.
            self.ends = None;
        }
        Some(sent.map(drop))
    }

    /// Copies the reply's bytes out, without its header, for the end of a file: the header has promised more.
    ///
    /// # Errors
    /// The reply does not fit, or the pipe could not be read.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> Result<(), Errno> {
        // What a failure leaves in the pipe is dropped with it.
        let (Some(held), Some(ends)) = (self.held.take(), self.ends.take()) else { return Err(Errno::IO) };
        ends.drain(out.get_mut(..held.len).ok_or(Errno::IO)?)?;
        self.ends = Some(ends);
        Ok(())
    }

    /// A reply that was not sent is dropped, with the pipe.
    fn empty(&mut self) {
        if self.held.take().is_some() {
            self.ends = None;
        }
    }
}

impl Ends {
    /// Writes the header, then splices the file's bytes.
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

    /// Reads the header, which nobody needs, and as many bytes as `out` has.
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

    /// What comes out at the device's end, which here is another pipe.
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
    fn whole_replies_are_sent_with_their_header() {
        let (file, data) = file(3 << 20);
        let mut pipe = Pipe::new();
        for (unique, offset, len) in [(7, 0, LEAST), (9, 4095, 600 << 10), (11, 8192, 128 << 10), (13, 1, LEAST + 1)] {
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
    fn the_end_of_a_file_is_taken_out() {
        let (file, data) = file(100_000);
        let mut pipe = Pipe::new();
        pipe.begin(1);
        assert_eq!(pipe.fill(file.as_fd(), 40_000, 128 << 10), Some(60_000));
        assert!(pipe.send(file.as_fd()).is_none());
        let mut out = vec![0; 60_000];
        pipe.take(&mut out).unwrap();
        assert!(out == data[40_000..]);
        // Beyond it there is nothing.
        assert_eq!(pipe.fill(file.as_fd(), 200_000, LEAST), Some(0));
        pipe.take(&mut []).unwrap();
        assert!(pipe.take(&mut out).is_err() && !pipe.is_full());
        // A buffer that is too small is refused, and the next reply is not mixed up with this one.
        assert_eq!(pipe.fill(file.as_fd(), 0, 128 << 10), Some(100_000));
        assert_eq!(pipe.take(&mut [0; 10]), Err(Errno::IO));
        pipe.begin(3);
        assert_eq!(pipe.fill(file.as_fd(), 0, LEAST), Some(LEAST));
        let (header, body) = sent(&mut pipe);
        assert!(header.unique == 3 && body == data[..LEAST]);
    }

    #[test]
    fn what_was_not_sent_is_dropped() {
        let (file, data) = file(1 << 20);
        let mut pipe = Pipe::new();
        pipe.begin(1);
        pipe.fill(file.as_fd(), 0, LEAST).unwrap();
        // Tried again, as after another replica failed.
        pipe.fill(file.as_fd(), 4096, LEAST).unwrap();
        assert!(sent(&mut pipe).1 == data[4096..4096 + LEAST]);
        pipe.fill(file.as_fd(), 0, LEAST).unwrap();
        pipe.begin(2);
        assert!(!pipe.is_full());
        pipe.fill(file.as_fd(), 0, LEAST).unwrap();
        assert_eq!(sent(&mut pipe).0.unique, 2);
    }

    #[test]
    fn files_that_cannot_be_spliced_are_left_to_read() {
        let (file, _) = file(1 << 20);
        let directory = std::fs::File::open("/").unwrap();
        let unread = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let mut pipe = Pipe::new();
        pipe.begin(1);
        assert_eq!(pipe.fill(directory.as_fd(), 0, LEAST), None);
        assert_eq!(pipe.fill(unread.as_fd(), 0, LEAST), None);
        assert!(!pipe.is_full() && pipe.send(file.as_fd()).is_none());
        // A reply for which no pipe is large enough; smaller ones go on.
        assert_eq!(pipe.fill(file.as_fd(), 0, 2 << 30), None);
        assert_eq!(pipe.fill(file.as_fd(), 0, LEAST), Some(LEAST));
    }
}
