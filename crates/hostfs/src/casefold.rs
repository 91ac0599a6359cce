//! Detects case-insensitive host directories. File systems of other systems are case-insensitive
//! (FAT, exFAT, HFS+, SMB), and so are directories of ext4, f2fs and tmpfs with `chattr +F`.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use std::collections::HashSet;
use std::mem::MaybeUninit;
use vnode::Result;

/// `FS_CASEFOLD_FL`
const CASEFOLD: u32 = 0x4000_0000;
/// Maximum number of names that are read from the directory.
const MAX_LISTED: usize = 1024;
/// Maximum number of names that are tried in another case.
const MAX_TRIED: usize = 8;

/// Case sensitivity as far as the file system's type determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByType {
    /// Always case-insensitive.
    Merges,
    /// Depends on the remote end; assumed case-insensitive unless names show otherwise.
    Remote,
    /// Case-sensitive, unless configured otherwise.
    Local,
}

impl ByType {
    /// Magic numbers are those of statfs(2).
    const fn of(magic: u64) -> Self {
        match magic {
            // FAT, exFAT, HFS, HFS+, HPFS, AFFS, ADFS, VirtualBox.
            0x4d44 | 0x2011_bab0 | 0x4244 | 0x482b | 0xf995_e849 | 0xadff | 0xadf5 | 0x786f_4256 => Self::Merges,
            // SMB (three clients), FUSE, 9P.
            0x517b | 0xff53_4d42 | 0xfe53_4d42 | 0x6573_5546 | 0x0102_1997 => Self::Remote,
            _ => Self::Local,
        }
    }
}

/// Whether the file system of `root` treats several names as one. Determined by its type, by the
/// directory's flags, and by looking up existing names in another case.
pub(crate) fn merges_names(root: &OwnedFd, magic: u64) -> bool {
    let by_type = ByType::of(magic);
    if by_type == ByType::Merges {
        return true;
    }
    try_names(root).ok().flatten().unwrap_or(by_type == ByType::Remote)
}

/// Looks up existing names in another case. `None` if no name is conclusive.
fn try_names(root: &OwnedFd) -> Result<Option<bool>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(root, c".", flags, Mode::empty())
        .or_else(|_| rustix::fs::openat(root, c".", flags - OFlags::NOATIME, Mode::empty()))?;
    if rustix::fs::ioctl_getflags(&dir).is_ok_and(|flags| flags.bits() & CASEFOLD != 0) {
        return Ok(Some(true));
    }
    let (names, whole) = names(&dir)?;
    let mut found = None;
    let candidates = names.iter().filter(|name| !names.contains(&swap_case(name)) && swap_case(name) != **name);
    for name in candidates.take(MAX_TRIED) {
        match (id_of(&dir, name), id_of(&dir, &swap_case(name))) {
            // One object under both names: conclusive if the second name is not listed, or if the
            // object can have only one name.
            (Some(one), Some(other)) if one.0 == other.0 && (whole || one.1) => return Ok(Some(true)),
            (Some(_), None) => found = Some(false),
            _ => {}
        }
    }
    Ok(found)
}

/// Returns names of a directory, and whether the list is complete.
fn names(dir: &OwnedFd) -> Result<(HashSet<Vec<u8>>, bool)> {
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = HashSet::new();
    while let Some(entry) = entries.next() {
        if names.len() >= MAX_LISTED {
            return Ok((names, false));
        }
        names.insert(entry?.file_name().to_bytes().to_vec());
    }
    Ok((names, true))
}

/// Returns the name with the case of all ASCII letters swapped.
fn swap_case(name: &[u8]) -> Vec<u8> {
    let swap = |&byte: &u8| if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { byte };
    name.iter().map(swap).collect()
}

/// Returns device and inode number of a name, and whether the object can have only one name.
fn id_of(dir: impl AsFd, name: &[u8]) -> Option<((u32, u32, u64), bool)> {
    // A probe must not trigger an automount, and not wait for a mount in the directory that hangs.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS).ok()?;
    let is_dir = u32::from(stat.stx_mode) & 0o170_000 == 0o040_000;
    Some(((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino), is_dir || stat.stx_nlink == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_case_of_letters_is_swapped() {
        assert_eq!(swap_case(b"aZ1-\xe4\x80[{@`"), b"Az1-\xe4\x80[{@`");
    }

    #[test]
    fn file_systems_are_classified_by_type() {
        assert_eq!(ByType::of(0x4d44), ByType::Merges);
        assert_eq!(ByType::of(0xef53), ByType::Local);
        assert_eq!(ByType::of(0x6573_5546), ByType::Remote);
    }
}
