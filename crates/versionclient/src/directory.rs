//! Commands to a directory of the mount.

use crate::reply::{self, List, LogLine, Lost, Named, Origin, escape, time_field};
use fuse::control::{self, Error};
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Largest number of parts of one reply, against a server that never ends.
const MAX_PARTS: usize = 1_000_000;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// A FIFO or a device in the past must not block.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of a mounted versionfs, as it is now or as it was.
///
/// Names are single components. All methods return the errors of [`Error`]: `Foreign` and
/// `Refused(ENOTTY)` outside of a versionfs, `Refused(ENOENT)` if there is no such version,
/// `Refused(EACCES)` and `Refused(EPERM)` if the file's mode or the administrator forbids to read
/// or to change old versions, `Channel` for errors of system calls.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Directory {
    /// Takes a directory that is open for reading.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl Directory {
    /// Opens a directory as it is now.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        rustix::fs::open(path.as_ref(), DIRECTORY, Mode::empty()).map(Self).map_err(Error::Channel)
    }

    /// Opens a directory in this one, as it is now. A symbolic link is not followed.
    ///
    /// # Errors
    /// Those of openat(2).
    pub fn child(&self, name: &[u8]) -> Result<Self, Error> {
        rustix::fs::openat(self, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map(Self).map_err(Error::Channel)
    }

    /// Sends the command `versionfs.WORD`.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn call(&self, word: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
        control::call(self, &format!("versionfs.{word}"), input)
    }

    /// Sends a command about a name. `fields` are appended to the escaped name.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn call_about(&self, word: &str, name: &[u8], fields: &[&[u8]]) -> Result<Vec<u8>, Error> {
        let mut input = escape(name);
        for field in fields {
            input.push(b' ');
            input.extend_from_slice(field);
        }
        self.call(word, &input)
    }

    /// Sends a command whose reply may come in parts. `take` parses one, and returns the input for
    /// the next.
    fn in_parts(
        &self,
        word: &str,
        mut input: Vec<u8>,
        mut take: impl FnMut(&[u8]) -> Option<Option<Vec<u8>>>,
    ) -> Result<(), Error> {
        for _ in 0..MAX_PARTS {
            let bytes = self.call(word, &input)?;
            let Some(next) = take(&bytes).ok_or(Error::Garbled)? else { return Ok(()) };
            if next == input {
                break;
            }
            input = next;
        }
        Err(Error::Garbled)
    }

    /// Returns the versions of a name, oldest first; `None` if there never was such a file (the
    /// paper's version-set stat).
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn versions(&self, name: &[u8]) -> Result<Option<List>, Error> {
        let mut whole: Option<List> = None;
        let read = self.in_parts("list", escape(name), |bytes| {
            let part = reply::list(bytes)?;
            let next = part.more.map(|number| [&*escape(name), b" ", number.to_string().as_bytes()].concat());
            let list = whole.get_or_insert(List { versions: Vec::new(), more: None, ..part });
            list.versions.extend(part.versions);
            Some(next)
        });
        match read {
            Ok(()) | Err(Error::Refused(Errno::NOENT)) => Ok(whole),
            Err(error) => Err(error),
        }
    }

    /// Returns all names that have versions, also removed ones.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn names(&self) -> Result<Vec<Named>, Error> {
        let mut all = Vec::new();
        self.in_parts("names", Vec::new(), |bytes| {
            let (part, more) = reply::names(bytes)?;
            all.extend(part);
            Some(more.map(|name| escape(&name)))
        })?;
        Ok(all)
    }

    /// Returns the names whose last state is not in the history, because it had no room.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn lost(&self) -> Result<Vec<Lost>, Error> {
        reply::lost(&self.call("lost", b"")?).ok_or(Error::Garbled)
    }

    /// Returns the names, or this one, that existed at a time in a state that is not known.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn lost_at(&self, time: Timestamp, name: Option<&[u8]>) -> Result<Vec<Lost>, Error> {
        let mut input = time_field(time).into_bytes();
        if let Some(name) = name {
            input.push(b' ');
            input.extend_from_slice(&escape(name));
        }
        reply::lost(&self.call("lost", &input)?).ok_or(Error::Garbled)
    }

    /// Returns from where files were renamed to a name.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn origins(&self, name: &[u8]) -> Result<Vec<Origin>, Error> {
        reply::origins(&self.call_about("origins", name, &[])?).ok_or(Error::Garbled)
    }

    /// Returns the tags of the mount, and the times that they stand for.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn tags(&self) -> Result<Vec<(Vec<u8>, Timestamp)>, Error> {
        reply::tags(&self.call("tags", b"")?).ok_or(Error::Garbled)
    }

    /// Calls `visit` for each line of the audit log, in order.
    ///
    /// # Errors
    /// See [`Directory`]; `Refused(EPERM)` for others than root and the mounting user.
    pub fn audit_log(&self, visit: &mut dyn FnMut(LogLine)) -> Result<(), Error> {
        self.in_parts("log", Vec::new(), |bytes| {
            let (part, more) = reply::log(bytes)?;
            part.into_iter().for_each(&mut *visit);
            Some(more.map(|number| number.to_string().into_bytes()))
        })
    }

    /// Returns the name under which a version can be opened in this directory for ten seconds.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn token(&self, name: &[u8], number: u64) -> Result<Vec<u8>, Error> {
        let token = self.call_about("open", name, &[number.to_string().as_bytes()])?;
        Ok(token.trim_ascii_end().to_vec())
    }

    fn open_token(&self, token: &[u8], flags: OFlags) -> Result<OwnedFd, Error> {
        rustix::fs::openat(self, token, flags, Mode::empty()).map_err(Error::Channel)
    }

    /// Opens a version of a file, for reading.
    ///
    /// # Errors
    /// See [`Directory`]; `Channel(ELOOP)` for a symbolic link.
    pub fn open_version(&self, name: &[u8], number: u64) -> Result<OwnedFd, Error> {
        self.open_token(&self.token(name, number)?, FILE)
    }

    /// Opens the file of a version as it is stored, for reading. [`crate::Version::letter`] says
    /// what its bytes mean.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn open_raw(&self, name: &[u8], number: u64) -> Result<OwnedFd, Error> {
        let token = self.call_about("open", name, &[number.to_string().as_bytes(), b"raw"])?;
        self.open_token(token.trim_ascii_end(), FILE)
    }

    /// Opens a version of a directory. What was removed in it can be listed and opened.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn directory_version(&self, name: &[u8], number: u64) -> Result<Self, Error> {
        self.open_token(&self.token(name, number)?, DIRECTORY).map(Self)
    }

    /// Returns the target of a version that is a symbolic link.
    ///
    /// # Errors
    /// See [`Directory`]; `Channel(EINVAL)` if it is something else.
    pub fn link_target(&self, name: &[u8], number: u64) -> Result<Vec<u8>, Error> {
        let target = rustix::fs::readlinkat(self, self.token(name, number)?, Vec::new());
        target.map(std::ffi::CString::into_bytes).map_err(Error::Channel)
    }

    /// Opens this directory as it was at a time, with everything in it.
    ///
    /// # Errors
    /// See [`Directory`]; `Channel(ENOENT)` if it did not exist.
    pub fn at(&self, time: Timestamp) -> Result<Self, Error> {
        let token = self.call("at", time_field(time).as_bytes())?;
        self.open_token(token.trim_ascii_end(), DIRECTORY).map(Self)
    }

    /// Writes the content of a version to `to`, and returns its size in bytes.
    ///
    /// # Errors
    /// As [`Self::open_version`], with their errno, and those of reading and writing. Part of the
    /// content may have been written then.
    pub fn recover(&self, name: &[u8], number: u64, to: &mut impl Write) -> io::Result<u64> {
        let version = self.open_version(name, number).map_err(|error| match error {
            Error::Refused(errno) | Error::Channel(errno) => io::Error::from(errno),
            error => io::Error::other(error),
        })?;
        io::copy(&mut std::fs::File::from(version), to)
    }

    /// Renames the head and all versions of a name. The new name must have neither.
    ///
    /// # Errors
    /// See [`Directory`]; `Refused(EEXIST)` if the new name has a head or versions.
    pub fn rename(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<(), Error> {
        let dir = rustix::fs::fstat(to).map_err(Error::Channel)?.st_ino.to_string();
        self.call_about("rename", name, &[dir.as_bytes(), &escape(new_name)]).map(drop)
    }

    /// Removes a file with all its versions, for good.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn unlink(&self, name: &[u8]) -> Result<(), Error> {
        self.call_about("unlink", name, &[]).map(drop)
    }

    /// Removes an empty directory with all its versions and those of everything that was in it, for
    /// good.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn rmdir(&self, name: &[u8]) -> Result<(), Error> {
        self.call_about("rmdir", name, &[]).map(drop)
    }

    /// Sets the owner of the head and all versions; `None` keeps a value.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn chown(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<(), Error> {
        let field = |id: Option<u32>| id.map_or_else(|| "-1".to_owned(), |id| id.to_string());
        self.call_about("chown", name, &[field(uid).as_bytes(), field(gid).as_bytes()]).map(drop)
    }

    /// Sets the permission bits of the head and all versions.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn chmod(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.call_about("chmod", name, &[format!("{mode:o}").as_bytes()]).map(drop)
    }

    /// Discards versions, for good. A pinned one is refused.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn discard(&self, name: &[u8], numbers: &[u64]) -> Result<(), Error> {
        let numbers: Vec<_> = numbers.iter().map(|number| number.to_string().into_bytes()).collect();
        let fields: Vec<_> = numbers.iter().map(Vec::as_slice).collect();
        self.call_about("discard", name, &fields).map(drop)
    }

    /// Keeps a version whatever the policies say, or ends that.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn pin(&self, name: &[u8], number: u64, on: bool) -> Result<(), Error> {
        let word: &[u8] = if on { b"on" } else { b"off" };
        self.call_about("pin", name, &[number.to_string().as_bytes(), word]).map(drop)
    }

    /// Gives a version a note of at most 2,048 bytes; an empty one removes it.
    ///
    /// # Errors
    /// See [`Directory`].
    pub fn annotate(&self, name: &[u8], number: u64, note: &[u8]) -> Result<(), Error> {
        self.call_about("annotate", name, &[number.to_string().as_bytes(), &escape(note)]).map(drop)
    }

    /// Converts all versions of the mount to the formats of their policies, now.
    ///
    /// # Errors
    /// See [`Directory`]; `Refused(EPERM)` for others than root and the mounting user.
    pub fn convert(&self) -> Result<(), Error> {
        self.call("convert", b"").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_mount_every_command_fails() {
        let dir = Directory::open("/").unwrap();
        assert_eq!(dir.versions(b"etc"), Err(Error::Foreign));
        assert_eq!(dir.names(), Err(Error::Foreign));
        assert_eq!(dir.tags(), Err(Error::Foreign));
        assert_eq!(dir.open_version(b"etc", 1).err(), Some(Error::Foreign));
        assert!(dir.recover(b"etc", 1, &mut Vec::new()).is_err());
        assert_eq!(Directory::open("/no/such").err(), Some(Error::Channel(Errno::NOENT)));
        assert_eq!(dir.child(b"no such").err(), Some(Error::Channel(Errno::NOENT)));
    }
}
