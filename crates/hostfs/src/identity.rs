//! Vnode numbers and generations.

use crate::handle::FileHandle;

/// The root's number, equal to the kernel's number for the root of a FUSE file system.
pub(crate) const ROOT: u64 = 1;

/// Host inode numbers from 2 up to this one are used as vnode numbers; all others are hashed.
const DIRECT_MAX: u64 = (1 << 48) - 1;

/// Identifies a host inode, apart from its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostInode {
    /// `st_dev`
    pub(crate) dev: u64,
    /// `st_ino`
    pub(crate) ino: u64,
}

/// Whether the vnode's number equals the inode number.
pub(crate) const fn is_direct(root_dev: u64, inode: HostInode) -> bool {
    inode.dev == root_dev && inode.ino > ROOT && inode.ino <= DIRECT_MAX
}

/// Whether this number is an inode number on the root's device (or the root's number), not a hash.
pub(crate) const fn is_plain(number: u64) -> bool {
    number >> 63 == 0
}

/// Returns the number of a vnode. It depends only on what the host reports, so it is the same after
/// a remount.
///
/// It is the inode number where that is unique and small: on the root's device, and leaving room
/// for the tag bits of a layer above. Otherwise it is a 63-bit hash of the file handle, with the
/// top bit set. Other devices occur on btrfs, where each subvolume has its own inode numbers.
/// Without handles, the hash covers device and inode number, and is only as stable as these.
pub(crate) fn number(root_dev: u64, inode: HostInode, handle: Option<&FileHandle>) -> u64 {
    if is_direct(root_dev, inode) {
        return inode.ino;
    }
    match handle {
        Some(handle) => hash_of_handle(handle),
        None => mix(fold(fold(OFFSET, &inode.dev.to_le_bytes()), &inode.ino.to_le_bytes())) | 1 << 63,
    }
}

/// Returns the number of the object with this handle if it is not its inode number.
pub(crate) fn hash_of_handle(handle: &FileHandle) -> u64 {
    let (kind, bytes) = handle.parts();
    mix(fold(fold(OFFSET, &kind.to_le_bytes()), bytes)) | 1 << 63
}

/// Returns the generation of an object with this file handle.
pub(crate) fn generation(kind: i32, handle: &[u8]) -> u32 {
    (mix(fold(fold(OFFSET, &kind.to_le_bytes()), handle)) >> 32) as u32
}

/// Returns a number that tells a root directory from others: its inode number and time of birth,
/// in nanoseconds. The roots of file systems that were made in the same second are told apart by
/// `fs`, a number that the file system has for good.
pub(crate) fn fingerprint(ino: u64, (sec, nsec): (i64, u32), fs: &[u8]) -> u64 {
    let born = fold(fold(fold(OFFSET, &ino.to_le_bytes()), &sec.to_le_bytes()), &nsec.to_le_bytes());
    mix(if nsec == 0 { fold(born, fs) } else { born })
}

/// Returns a hash of a name.
pub(crate) fn hash(name: &[u8]) -> u64 {
    mix(fold(OFFSET, name))
}

// FNV-1a, 64 bits.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

fn fold(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Mixes all bits (the finalizer of splitmix64): FNV alone is weak in its high bits.
const fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_inode_numbers_on_the_roots_device_are_kept() {
        assert_eq!(number(7, HostInode { dev: 7, ino: 2 }, None), 2);
        assert_eq!(number(7, HostInode { dev: 7, ino: DIRECT_MAX }, None), DIRECT_MAX);
    }

    #[test]
    fn other_inodes_get_a_stable_hash() {
        let mut seen = std::collections::HashSet::new();
        for (dev, ino) in [(7, 0), (7, 1), (7, 1 << 48), (8, 2), (8, 3), (9, 2)] {
            let inode = HostInode { dev, ino };
            let id = number(7, inode, None);
            assert!(id >> 63 == 1 && seen.insert(id));
            assert_eq!(id, number(7, inode, None));
        }
    }
}
