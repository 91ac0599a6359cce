use crate::dirs::Listing;
use crate::identity::{self, HostInode};
use crate::layer::{Vague, statx_fd};
use crate::vnode_impl::HostVnode;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, RawDir, RawDirEntry, SeekFrom};
use std::mem::MaybeUninit;
use vnode::{DirEntry, Errno, Kind, Name, Result};

/// Enough for some two hundred entries: as many as a caller takes at a time.
const BUFFER: usize = 8192;

impl HostVnode {
    /// Each call stands for itself: the descriptor is one of this directory that nobody else uses meanwhile.
    pub(crate) fn list(&self, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.must_be_directory()?;
        let mut listing = match self.fs().listings.take(self.number(), cookie) {
            Some(listing) => listing,
            None => Listing { id: self.number(), fd: self.open_listing()?, position: 0 },
        };
        // The start must be gone to even from the start: the host may know a listing's extent from then on.
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

    /// Lists from where the descriptor stands; answers where it stands then.
    fn list_on(&self, fd: &OwnedFd, from: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<u64> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(fd, &mut buffer);
        let mut position = from;
        let mut full = false;
        // The buffer is read to its end even if the sink has enough: that is where the descriptor stands.
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
                full = !self.show(fd, &entry, sink)?;
            }
        }
        Ok(position)
    }

    /// False if the sink has enough.
    fn show(&self, fd: &OwnedFd, entry: &RawDirEntry<'_>, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<bool> {
        // `.`, `..`, and anything that the host should not list.
        let Ok(name) = Name::new(entry.file_name().to_bytes()) else { return Ok(true) };
        let Some((ino, kind)) = self.entry_number(fd, entry, name)? else { return Ok(true) };
        Ok(sink(&DirEntry { cookie: entry.next_entry_cookie(), ino, kind, name }))
    }

    /// Number and kind of an entry; `None` if it is gone already.
    fn entry_number(&self, dir: &OwnedFd, entry: &RawDirEntry<'_>, name: Name<'_>) -> Result<Option<(u64, Kind)>> {
        let kind = kind_of(entry.file_type());
        let fs = self.fs();
        let vague = match fs.traits.vague_d_ino {
            Vague::None => false,
            Vague::Directories => kind == Some(Kind::Directory),
            Vague::All => true,
        };
        // What is in a directory on the root's device is there too, or it is the vague case.
        let on_root_dev = identity::is_plain(self.number());
        let direct = on_root_dev && identity::is_direct(fs.root_dev, HostInode { dev: fs.root_dev, ino: entry.ino() });
        if let (Some(kind), false, true) = (kind, vague, direct) {
            return Ok(Some((entry.ino(), kind)));
        }
        let fd = match fs.refer_name(dir, name.as_bytes()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            // Something is mounted there; it can't be looked up either.
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
