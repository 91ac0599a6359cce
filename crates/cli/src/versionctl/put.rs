//! Writes an old state of a file, symbolic link or directory to its place in the mount.
//!
//! A file that exists is rewritten in place: only the blocks that differ, then the length. So it
//! keeps its inode number, its other names (hard links) and open descriptors, and the layer keeps
//! the present content as one version, which needs no more space than what differs. The present
//! content is in the history before the first byte changes: if the restore is interrupted,
//! restoring again completes it. A rename over the file would be atomic for readers, but would
//! break hard links and put a temporary name into the history.
//!
//! A file that does not exist is written without a name and linked when it is complete.

use super::client::{Dir, at};
use super::text::shown;
use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const CHUNK: usize = 128 * 1024;

/// An old state: an entry of a directory, or a token for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) dir: &'a Dir,
    pub(crate) entry: &'a [u8],
    /// The mode, if it is known. The past is shown without set-user-ID and set-group-ID.
    pub(crate) mode: Option<u32>,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It was as before.
    Same,
    /// This many bytes were written.
    Written(u64),
}

impl Origin<'_> {
    /// Returns the attributes.
    ///
    /// # Errors
    /// Names the target and the reason.
    pub(crate) fn stat(&self, path: &Path) -> Result<Stat, Failure> {
        rustix::fs::statat(self.dir, self.entry, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| unreadable(path, errno))
    }

    fn open(&self, path: &Path) -> Result<OwnedFd, Failure> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        rustix::fs::openat(self.dir, self.entry, flags, Mode::empty()).map_err(|errno| unreadable(path, errno))
    }
}

fn unreadable(path: &Path, errno: Errno) -> Failure {
    let failure = at(path, errno);
    Failure { reason: format!("{}: the old version can't be read: {}", shown(path), reason(errno)), ..failure }
}

/// Writes an old state to `name` in `dir`. Of a directory, only the directory itself. With
/// `replaces`, a file that has the name keeps its content under its other names.
///
/// # Errors
/// Names the path and the reason.
pub(crate) fn put(origin: Origin<'_>, dir: &Dir, name: &[u8], replaces: bool) -> Result<Put, Failure> {
    let path = dir.path_of(name);
    let mut old = origin.stat(&path)?;
    let kind = FileType::from_raw_mode(old.st_mode);
    let mut present = dir.stat(name)?;
    if let Some(found) = present.filter(|found| FileType::from_raw_mode(found.st_mode) != kind) {
        // Something else has the name now. It becomes a version.
        remove(dir, name, &found)?;
        present = None;
    }
    let special = present.map_or(0, |present| present.st_mode & 0o6000);
    old.st_mode = origin.mode.map_or(old.st_mode | special, |mode| old.st_mode & !0o7777 | mode);
    match kind {
        FileType::RegularFile if present.is_some() && !replaces => rewrite(origin, &old, dir, name),
        FileType::RegularFile => file(origin, &old, dir, name, present.is_some()),
        FileType::Directory => directory(origin, &old, dir, name, present.is_some()),
        _ => unopened(origin, &old, dir, name, present),
    }
}

/// Removes an entry that is no directory, or an empty directory.
///
/// # Errors
/// Names the path and the reason.
pub(crate) fn remove(dir: &Dir, name: &[u8], found: &Stat) -> Result<(), Failure> {
    let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match rustix::fs::unlinkat(dir, name, flags) {
        Err(Errno::NOTEMPTY) => Err(Failure::usage(format!(
            "{}: a directory has this name now, and it is not empty; use --to to restore to another name",
            shown(&dir.path_of(name))
        ))),
        removed => removed.map_err(|errno| at(&dir.path_of(name), errno)),
    }
}

fn mode_of(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

/// Rewrites a file in place.
fn rewrite(origin: Origin<'_>, old: &Stat, dir: &Dir, name: &[u8]) -> Result<Put, Failure> {
    let path = dir.path_of(name);
    let refused = |errno| at(&path, errno);
    let source = File::from(origin.open(&path)?);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let target = File::from(rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(refused)?);
    let mut put = copy(&source, &target, old.st_size, true).map_err(|error| unwritable(&path, &error))?;
    if attributes(source.as_fd(), old, target.as_fd()).map_err(refused)? && put == Put::Same {
        put = Put::Written(0);
    }
    Ok(put)
}

/// Writes a new file. One that has the name loses it when the new one is complete.
fn file(origin: Origin<'_>, old: &Stat, dir: &Dir, name: &[u8], exists: bool) -> Result<Put, Failure> {
    let path = dir.path_of(name);
    let refused = |errno| at(&path, errno);
    let source = File::from(origin.open(&path)?);
    let make_room = || if exists { rustix::fs::unlinkat(dir, name, AtFlags::empty()) } else { Ok(()) };
    let (target, named) = create(dir, name, make_room).map_err(refused)?;
    let put = copy(&source, &target, old.st_size, false).map_err(|error| unwritable(&path, &error))?;
    attributes(source.as_fd(), old, target.as_fd()).map_err(refused)?;
    if !named {
        make_room().map_err(refused)?;
        let from = format!("/proc/self/fd/{}", target.as_raw_fd());
        rustix::fs::linkat(rustix::fs::CWD, from, dir, name, AtFlags::SYMLINK_FOLLOW).map_err(refused)?;
    }
    Ok(if put == Put::Same { Put::Written(0) } else { put })
}

/// Whether the file `path` has the bytes and attributes of an old state, which is that of a file.
///
/// # Errors
/// The old state can't be read.
pub(crate) fn is_equal(origin: Origin<'_>, old: &Stat, path: &Path) -> Result<bool, Failure> {
    if FileType::from_raw_mode(old.st_mode) != FileType::RegularFile {
        return Ok(false);
    }
    let source = File::from(origin.open(path)?);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(other) = rustix::fs::open(path, flags, Mode::empty()) else { return Ok(false) };
    let mode = origin.mode.unwrap_or(old.st_mode) & 0o7777;
    let facts = |stat: &Stat, mode| (mode, stat.st_uid, stat.st_gid, stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    let is_like = |stat: Stat| facts(&stat, stat.st_mode & 0o7777) == facts(old, mode);
    if !rustix::fs::fstat(&other).is_ok_and(is_like) {
        return Ok(false);
    }
    let has_same_xattrs = || -> Result<bool, Errno> {
        let (wanted, present) = (xattr_names(&source)?, xattr_names(&other)?);
        let is_there = |name: &Vec<u8>| Ok(present.contains(name) && xattr(&source, name)? == xattr(&other, name)?);
        Ok(wanted.len() == present.len()
            && wanted.iter().map(is_there).all(|found: Result<bool, Errno>| found == Ok(true)))
    };
    let other = File::from(rustix::io::dup(&other).map_err(|errno| at(path, errno))?);
    let (mut old_bytes, mut bytes, mut offset) = (vec![0; CHUNK], vec![0; CHUNK], 0);
    let unreadable = |error: std::io::Error| unreadable(path, Errno::from_io_error(&error).unwrap_or(Errno::IO));
    loop {
        let got = read_full(&source, &mut old_bytes, offset).map_err(unreadable)?;
        let found = read_full(&other, &mut bytes, offset).unwrap_or(0);
        if old_bytes.get(..got) != bytes.get(..found) {
            return Ok(false);
        }
        if got == 0 {
            return Ok(has_same_xattrs() == Ok(true));
        }
        offset += got as u64;
    }
}

/// Creates a file without a name, or with its name where the file system below has no `O_TMPFILE`
/// or there is no /proc: then `make_room` removes what has it. Returns whether it has its name.
fn create(dir: &Dir, name: &[u8], make_room: impl Fn() -> Result<(), Errno>) -> Result<(File, bool), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let private = Mode::RUSR | Mode::WUSR;
    if Path::new("/proc/self/fd").exists()
        && let Ok(file) = rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, private)
    {
        return Ok((file.into(), false));
    }
    make_room()?;
    let named = rustix::fs::openat(dir, name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, private)?;
    Ok((named.into(), true))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::mount(format!("{}: can't be restored: {error}", shown(path)))
}

/// Copies what differs, then sets the length.
fn copy(source: &File, target: &File, size: i64, exists: bool) -> std::io::Result<Put> {
    let (mut old, mut new) = (vec![0; CHUNK], vec![0; CHUNK]);
    let size = u64::try_from(size).unwrap_or(0);
    let (mut offset, mut written) = (0, 0);
    while offset < size {
        let got = read_full(source, &mut old, offset)?;
        let Some(bytes) = old.get(..got).filter(|bytes| !bytes.is_empty()) else { break };
        let same = if exists {
            let there = read_full(target, &mut new, offset)?;
            new.get(..there) == Some(bytes)
        } else {
            // A hole stays a hole.
            bytes.iter().all(|byte| *byte == 0)
        };
        if !same {
            target.write_all_at(bytes, offset)?;
            written += got as u64;
        }
        offset += got as u64;
    }
    let is_long = target.metadata()?.len() == size;
    if !is_long {
        target.set_len(size)?;
    }
    Ok(if written == 0 && is_long { Put::Same } else { Put::Written(written) })
}

fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn directory(origin: Origin<'_>, old: &Stat, dir: &Dir, name: &[u8], exists: bool) -> Result<Put, Failure> {
    let path = dir.path_of(name);
    if !exists {
        rustix::fs::mkdirat(dir, name, Mode::RWXU).map_err(|errno| at(&path, errno))?;
    }
    let target = dir.child(name).map_err(|errno| at(&path, errno))?;
    let source = origin.open(&path)?;
    let changed = attributes(source.as_fd(), old, target.as_fd()).map_err(|errno| at(&path, errno))?;
    Ok(if exists && !changed { Put::Same } else { Put::Written(0) })
}

/// Restores a symbolic link, FIFO, socket or device node.
fn unopened(origin: Origin<'_>, old: &Stat, dir: &Dir, name: &[u8], present: Option<Stat>) -> Result<Put, Failure> {
    let path = dir.path_of(name);
    let refused = |errno| at(&path, errno);
    let kind = FileType::from_raw_mode(old.st_mode);
    let target = match kind {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(origin.dir, origin.entry, Vec::new());
            Some(target.map_err(|errno| unreadable(&path, errno))?)
        }
        _ => None,
    };
    let is_same = match (&target, &present) {
        (_, None) => false,
        (Some(target), _) => rustix::fs::readlinkat(dir, name, Vec::new()).map_err(refused)? == *target,
        (None, Some(present)) => present.st_rdev == old.st_rdev,
    };
    if !is_same {
        if let Some(present) = &present {
            remove(dir, name, present)?;
        }
        match &target {
            Some(target) => rustix::fs::symlinkat(target, dir, name),
            None => rustix::fs::mknodat(dir, name, kind, mode_of(old) & Mode::RWXU, old.st_rdev),
        }
        .map_err(refused)?;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(refused)?;
    let changed = attributes_of_unopened(old, &made).map_err(refused)?;
    Ok(if is_same && !changed { Put::Same } else { Put::Written(0) })
}

/// Gives an object that is not opened the owner, mode and time of modification of an old state.
/// Returns whether any of them was different. What this user may not set is left.
fn attributes_of_unopened(old: &Stat, object: &OwnedFd) -> Result<bool, Errno> {
    let present = rustix::fs::fstat(object)?;
    let mut changed = false;
    if (present.st_uid, present.st_gid) != (old.st_uid, old.st_gid) {
        let (uid, gid) = (rustix::fs::Uid::from_raw(old.st_uid), rustix::fs::Gid::from_raw(old.st_gid));
        changed |= allowed(rustix::fs::chownat(object, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH))?;
    }
    // A symbolic link has no mode.
    let kind = FileType::from_raw_mode(old.st_mode);
    if kind != FileType::Symlink && present.st_mode & 0o7777 != old.st_mode & 0o7777 {
        changed |= allowed(rustix::fs::chmod(format!("/proc/self/fd/{}", object.as_raw_fd()), mode_of(old)))?;
    }
    if (present.st_mtime, present.st_mtime_nsec) != (old.st_mtime, old.st_mtime_nsec) {
        changed |= allowed(rustix::fs::utimensat(object, "", &modified(old), AtFlags::EMPTY_PATH))?;
    }
    Ok(changed)
}

/// Gives `target` the owner, mode, extended attributes and time of modification of an old state.
/// Returns whether any of them was different. What this user may not set is left.
///
/// # Errors
/// Those of the system calls.
pub(crate) fn attributes(source: impl AsFd, old: &Stat, target: impl AsFd) -> Result<bool, Errno> {
    let target = target.as_fd();
    let present = rustix::fs::fstat(target)?;
    let mut changed = false;
    if (present.st_uid, present.st_gid) != (old.st_uid, old.st_gid) {
        let (uid, gid) = (rustix::fs::Uid::from_raw(old.st_uid), rustix::fs::Gid::from_raw(old.st_gid));
        changed |= allowed(rustix::fs::fchown(target, Some(uid), Some(gid)))?;
    }
    changed |= xattrs(source, target)?;
    // After the owner, whose change clears set-user-ID.
    let present = rustix::fs::fstat(target)?;
    let is_owners = (present.st_uid, present.st_gid) == (old.st_uid, old.st_gid);
    // Another owner's program must not run with the rights of this one.
    let mode = if is_owners { old.st_mode & 0o7777 } else { old.st_mode & 0o1777 };
    if present.st_mode & 0o7777 != mode {
        changed |= allowed(rustix::fs::fchmod(target, Mode::from_raw_mode(mode)))?;
    }
    allowed(rustix::fs::futimens(target, &modified(old)))?;
    Ok(changed)
}

/// Returns the time of modification of an old state.
fn modified(old: &Stat) -> Timestamps {
    let modified = Timespec { tv_sec: old.st_mtime as _, tv_nsec: old.st_mtime_nsec as _ };
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
    Timestamps { last_access: omit, last_modification: modified }
}

fn allowed(done: Result<(), Errno>) -> Result<bool, Errno> {
    match done {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn xattrs(source: impl AsFd, target: impl AsFd) -> Result<bool, Errno> {
    let (source, target) = (source.as_fd(), target.as_fd());
    let (wanted, present) = (xattr_names(source)?, xattr_names(target)?);
    let mut changed = false;
    for name in &wanted {
        let value = xattr(source, name)?;
        if !present.contains(name) || xattr(target, name)? != value {
            changed |= allowed(rustix::fs::fsetxattr(target, &**name, &value, XattrFlags::empty()))?;
        }
    }
    for name in present.iter().filter(|name| !wanted.contains(*name)) {
        changed |= allowed(rustix::fs::fremovexattr(target, &**name))?;
    }
    Ok(changed)
}

fn xattr_names(file: impl AsFd) -> Result<Vec<Vec<u8>>, Errno> {
    const MAX: usize = 64 * 1024;
    let mut list = vec![0_u8; MAX];
    let len = match rustix::fs::flistxattr(file, &mut list[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        len => len?,
    };
    let names = list.get(..len).unwrap_or_default().split(|byte| *byte == 0);
    Ok(names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

fn xattr(file: impl AsFd, name: &[u8]) -> Result<Vec<u8>, Errno> {
    const MAX: usize = 64 * 1024;
    let mut value = vec![0_u8; MAX];
    let len = rustix::fs::fgetxattr(file, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    struct Bed(testkit::TempDir);

    impl Bed {
        fn new() -> Self {
            let bed = Self(testkit::TempDir::new());
            ["old", "now"].iter().for_each(|name| drop(bed.0.dir(name)));
            bed
        }

        fn put(&self, name: &str) -> Result<Put, Failure> {
            let (old, now) = (Dir::open(&self.0.join("old")).unwrap(), Dir::open(&self.0.join("now")).unwrap());
            put(Origin { dir: &old, entry: name.as_bytes(), mode: None }, &now, name.as_bytes(), false)
        }
    }

    #[test]
    fn files_are_restored_in_place() {
        let bed = Bed::new();
        let (old, now) = (bed.0.join("old/f"), bed.0.join("now/f"));
        let content: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
        std::fs::write(&old, &content).unwrap();
        std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o4751)).unwrap();
        std::fs::File::options().write(true).open(&old).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(bed.put("f"), Ok(Put::Written(300_000)));
        let inode = now.metadata().unwrap().ino();
        assert_eq!(bed.put("f"), Ok(Put::Same));
        let mut other = content.clone();
        other[200_000] ^= 1;
        other.extend(b"longer");
        std::fs::write(&now, &other).unwrap();
        std::fs::hard_link(&now, bed.0.join("now/second")).unwrap();
        // Only the chunks that differ are written: those with the byte and the end.
        assert_eq!(bed.put("f"), Ok(Put::Written(300_000 - CHUNK as u64)));
        let metadata = now.metadata().unwrap();
        assert_eq!((metadata.ino(), metadata.nlink(), metadata.mode() & 0o7777), (inode, 2, 0o4751));
        assert_eq!((metadata.mtime(), std::fs::read(bed.0.join("now/second")).unwrap()), (0, content));
    }

    #[test]
    fn other_kinds_are_restored_and_replaced() {
        let bed = Bed::new();
        symlink("somewhere", bed.0.join("old/x")).unwrap();
        std::fs::write(bed.0.join("now/x"), "a file now").unwrap();
        assert_eq!(bed.put("x"), Ok(Put::Written(0)));
        assert_eq!(std::fs::read_link(bed.0.join("now/x")).unwrap(), Path::new("somewhere"));
        assert_eq!(bed.put("x"), Ok(Put::Same));
        std::fs::create_dir_all(bed.0.join("now/d/full")).unwrap();
        std::fs::write(bed.0.join("old/d"), "").unwrap();
        assert!(bed.put("d").unwrap_err().reason.contains("not empty"));
        std::fs::create_dir(bed.0.join("old/e")).unwrap();
        assert_eq!((bed.put("e"), bed.put("e")), (Ok(Put::Written(0)), Ok(Put::Same)));
        assert!(bed.put("missing").unwrap_err().reason.contains("can't be read"));
    }
}
