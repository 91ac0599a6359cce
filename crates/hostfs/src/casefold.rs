//! Does a host file system take several names for one? Those of other systems do (FAT, exFAT, HFS+, SMB), and directories of ext4, f2fs and
//! tmpfs with the flag `+F` of chattr(1).

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use std::collections::HashSet;
use std::mem::MaybeUninit;
use vnode::Result;

/// `FS_CASEFOLD_FL`
const CASEFOLD: u32 = 0x4000_0000;
/// So many names of the directory are looked at.
const LISTED: usize = 1024;
/// So many of them are tried in another case.
const TRIED: usize = 8;

/// What the type of a file system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByType {
    /// It takes names for one, whatever is in it now.
    Merges,
    /// What it does depends on what is behind it: in doubt it takes names for one.
    Remote,
    /// It can be made to.
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

/// Does the file system that `root` lies on take several names for one? Found out by its type, by the directory's flags and by trying names that
/// are there.
pub(crate) fn merges_names(root: &OwnedFd, magic: u64) -> bool {
    let by_type = ByType::of(magic);
    if by_type == ByType::Merges {
        return true;
    }
    try_names(root).ok().flatten().unwrap_or(by_type == ByType::Remote)
}

/// `None`: there is no name that would tell.
fn try_names(root: &OwnedFd) -> Result<Option<bool>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(root, c".", flags, Mode::empty())
        .or_else(|_| rustix::fs::openat(root, c".", flags - OFlags::NOATIME, Mode::empty()))?;
    if rustix::fs::ioctl_getflags(&dir).is_ok_and(|flags| flags.bits() & CASEFOLD != 0) {
        return Ok(Some(true));
    }
    let (names, whole) = names(&dir)?;
    let mut answer = None;
    let candidates = names.iter().filter(|name| !names.contains(&swapped(name)) && swapped(name) != **name);
    for name in candidates.take(TRIED) {
        match (id_of(&dir, name), id_of(&dir, &swapped(name))) {
            // A name that was not listed, or can't be a second one.
            (Some(one), Some(other)) if one.0 == other.0 && (whole || one.1) => return Ok(Some(true)),
            (Some(_), None) => answer = Some(false),
            _ => {}
        }
    }
    Ok(answer)
}

/// Names of a directory, and whether these are all.
fn names(dir: &OwnedFd) -> Result<(HashSet<Vec<u8>>, bool)> {
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = HashSet::new();
    while let Some(entry) = entries.next() {
        if names.len() >= LISTED {
            return Ok((names, false));
        }
        names.insert(entry?.file_name().to_bytes().to_vec());
    }
    Ok((names, true))
}

/// The name with small letters for large ones and large for small.
fn swapped(name: &[u8]) -> Vec<u8> {
    let swap = |&byte: &u8| if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { byte };
    name.iter().map(swap).collect()
}

/// What has that name: device and number; and whether it can only have one name.
fn id_of(dir: impl AsFd, name: &[u8]) -> Option<((u32, u32, u64), bool)> {
    // Nothing is mounted only to be looked at.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS).ok()?;
    let is_dir = u32::from(stat.stx_mode) & 0o170_000 == 0o040_000;
    Some(((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino), is_dir || stat.stx_nlink == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_is_swapped_in_letters_only() {
        assert_eq!(swapped(b"aZ1-\xe4\x80[{@`"), b"Az1-\xe4\x80[{@`");
    }

    #[test]
    fn types_are_known() {
        assert_eq!(ByType::of(0x4d44), ByType::Merges);
        assert_eq!(ByType::of(0xef53), ByType::Local);
        assert_eq!(ByType::of(0x6573_5546), ByType::Remote);
    }
}
