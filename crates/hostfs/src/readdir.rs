//! Lists directories.

use crate::dirs::Listing;
use crate::identity::{self, HostInode};
use crate::layer::{UnreliableIno, statx_fd};
use crate::vnode_impl::HostVnode;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, RawDir, RawDirEntry, SeekFrom};
use std::mem::MaybeUninit;
use vnode::{DirEntry, Errno, Kind, Name, Result};

/// Room for about two hundred entries: as many as a caller takes at a time.
const BUFFER: usize = 8192;

impl HostVnode {
    /// Lists the directory from `cookie`. Calls are independent: each uses a descriptor that no
    /// other call uses meanwhile.
    pub(crate) fn list(&self, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.must_be_directory()?;
        let mut listing = match self.fs().listings.take(self.number(), cookie) {
            Some(listing) => listing,
            None => Listing { id: self.number(), fd: self.open_listing()?, position: 0 },
        };
        // Seek to the start even when already there: on btrfs, a listing ends with the entries that
        // existed at the last open or rewind.
        if cookie != listing.position || cookie == 0 {
            rustix::fs::seek(&listing.fd, SeekFrom::Start(cookie))?;
        }
        listing.position = self.list_on(&listing.fd, cookie, sink)?;
        if !self.is_pinned() {
            self.fs().listings.put(listing);
        }
        Ok(())
    }

    fn open_listing(&self) -> Result<OwnedFd> {
        let dir = self.dir_fd()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(dir, c".", flags, Mode::empty()).or_else(|errno| match errno {
            // "." of a removed directory can't be opened by every file system.
            Errno::NOENT => self.reopen(flags),
            errno => Err(errno),
        })
    }

    /// Lists from the descriptor's position and returns the new position.
    fn list_on(&self, fd: &OwnedFd, from: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<u64> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(fd, &mut buffer);
        let mut position = from;
        let mut full = false;
        // Read the buffer to its end even if the sink is full, because the descriptor's position is
        // at the end of the buffer.
        while !(full && entries.is_buffer_empty()) {
            let entry = match entries.next() {
                None => break,
                Some(Ok(entry)) => entry,
                Some(Err(Errno::INTR)) => continue,
                // A removed directory is empty.
                Some(Err(Errno::NOENT)) => break,
                Some(Err(errno)) => return Err(errno),
            };
            position = entry.next_entry_cookie();
            if !full {
                full = !self.emit_entry(fd, &entry, sink)?;
            }
        }
        Ok(position)
    }

    /// Passes an entry to the sink. Returns false if the sink is full.
    fn emit_entry(
        &self,
        fd: &OwnedFd,
        entry: &RawDirEntry<'_>,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        // Skip `.`, `..`, and names that the host should not list.
        let Ok(name) = Name::new(entry.file_name().to_bytes()) else { return Ok(true) };
        let Some((ino, kind)) = self.entry_number(fd, entry, name)? else { return Ok(true) };
        Ok(sink(&DirEntry { cookie: entry.next_entry_cookie(), ino, kind, name }))
    }

    /// Returns vnode number and kind of an entry; `None` if it no longer exists.
    fn entry_number(&self, dir: &OwnedFd, entry: &RawDirEntry<'_>, name: Name<'_>) -> Result<Option<(u64, Kind)>> {
        let kind = kind_of(entry.file_type());
        let fs = self.fs();
        let unreliable = match fs.traits.unreliable_d_ino {
            UnreliableIno::None => false,
            UnreliableIno::Directories => kind == Some(Kind::Directory),
            UnreliableIno::All => true,
        };
        // Entries of a directory on the root's device are on it too, except for those with an
        // unreliable `d_ino`.
        let on_root_dev = identity::is_plain(self.number());
        let direct = on_root_dev && identity::is_direct(fs.root_dev, HostInode { dev: fs.root_dev, ino: entry.ino() });
        if let (Some(kind), false, true) = (kind, unreliable, direct) {
            return Ok(Some((entry.ino(), kind)));
        }
        let fd = match fs.path_fd_at(dir, name.as_bytes()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            // A mount point, which can't be looked up either.
            Err(Errno::XDEV) => return Ok(Some((entry.ino(), kind.unwrap_or(Kind::Directory)))),
            Err(errno) => return Err(errno),
        };
        let stat = statx_fd(fd.as_fd())?;
        Ok(Some((fs.number_of(&fd, &stat)?, crate::attr::kind_of(&stat))))
    }
}

fn kind_of(kind: FileType) -> Option<Kind> {
    Some(match kind {
        FileType::RegularFile => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => return None,
    })
}
