//! Which mounts of the host the sandbox shows, and how.

use crate::hung_mounts::{self, Answer, Question};
use crate::mountinfo::{self, Mount};
use rustix::fs::{FileType, Mode, OFlags, StatxFlags};
use std::path::{Path, PathBuf};

/// Trees of the kernel and of devices, which the sandbox has its own version of.
pub(super) const OWN: [&str; 3] = ["/proc", "/sys", "/dev"];

/// File systems without files of users. Their mount points are empty in the sandbox.
const PSEUDO: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// How a mount appears in the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Through a union, which captures what is written.
    Union {
        /// The mount is read-only, so its union is.
        read_only: bool,
    },
    /// As on the host: nobody can write the file system, nor listen on a socket in it.
    Shown,
    /// As an empty directory or file.
    Hidden,
}

/// A mount of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostMount {
    pub(super) point: PathBuf,
    pub(super) how: How,
    /// Whether programs on it can't be executed.
    pub(super) noexec: bool,
    /// Whether the mount point is a directory.
    pub(super) is_directory: bool,
    /// Whether its server answers. Otherwise it is hidden, as all mounts inside it are.
    pub(super) answers: bool,
}

/// Returns the mounts that this process can reach outside of [`OWN`]. Enclosing mounts come before
/// those inside them; the first one is the root.
pub(super) fn mounts() -> Vec<HostMount> {
    let mounts = mountinfo::read();
    let hung = hung(&mounts);
    let mut all: Vec<HostMount> = mounts.iter().filter_map(|mount| visible(mount, &hung)).collect();
    all.sort_by(|a, b| a.point.cmp(&b.point));
    all.dedup_by(|a, b| a.point == b.point);
    all
}

/// Returns the mount points whose server does not answer.
fn hung(mounts: &[Mount]) -> Vec<PathBuf> {
    let suspects = mounts.iter().filter(|mount| mount.may_hang() && !is_own(mount.point()));
    let mut points: Vec<_> = suspects.map(|mount| mount.point().to_owned()).collect();
    points.sort();
    points.dedup();
    let answers = hung_mounts::ask(&points, Question::Root);
    points.into_iter().zip(answers).filter(|(_, answer)| *answer == Answer::Late).map(|(point, _)| point).collect()
}

/// Whether the path lies in a tree that the sandbox has its own version of.
pub(super) fn is_own(path: &Path) -> bool {
    OWN.iter().any(|own| path.starts_with(own))
}

/// Returns the mount, unless another one covers it or this process can't reach it.
fn visible(mount: &Mount, hung: &[PathBuf]) -> Option<HostMount> {
    let point = mount.point();
    if is_own(point) {
        return None;
    }
    if hung.iter().any(|hung| point.starts_with(hung)) {
        let (point, how) = (point.to_owned(), How::Hidden);
        return Some(HostMount { point, how, noexec: false, is_directory: true, answers: false });
    }
    let fd = rustix::fs::open(point, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let stat =
        rustix::fs::statx(&fd, c"", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::MNT_ID | StatxFlags::TYPE).ok()?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() != 0 && stat.stx_mnt_id != mount.id() {
        return None;
    }
    let kind = FileType::from_raw_mode(stat.stx_mode.into());
    let noexec = mount.has_flag("noexec");
    Some(HostMount {
        point: point.to_owned(),
        how: how(mount, kind),
        noexec,
        is_directory: kind == FileType::Directory,
        answers: true,
    })
}

fn how(mount: &Mount, kind: FileType) -> How {
    let pseudo = PSEUDO.iter().any(|kind| kind.as_bytes() == mount.kind());
    match kind {
        _ if pseudo => How::Hidden,
        FileType::Directory if mount.is_read_only_everywhere() && mount.point() != Path::new("/") => How::Shown,
        FileType::Directory => How::Union { read_only: mount.has_flag("ro") },
        // A file that is a mount point can't be replaced by a union, which has directories alone.
        FileType::RegularFile => How::Shown,
        _ => How::Hidden,
    }
}

/// Returns the index of the mount among `mounts` that encloses `point`, except for that at `point`
/// itself.
pub(super) fn enclosing<'a>(points: impl Iterator<Item = &'a Path>, point: &Path) -> Option<usize> {
    points
        .enumerate()
        .filter(|(_, outer)| point != *outer && point.starts_with(outer))
        .max_by_key(|(_, outer)| outer.components().count())
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_first_mount() {
        let mounts = mounts();
        assert_eq!(mounts[0].point, Path::new("/"));
        assert!(matches!(mounts[0].how, How::Union { .. }));
        assert!(mounts.iter().all(|mount| !is_own(&mount.point)));
    }

    #[test]
    fn the_innermost_enclosing_mount_is_found() {
        let points = ["/", "/home", "/home/a/b"].map(Path::new);
        let of = |point: &str| enclosing(points.into_iter(), Path::new(point));
        assert_eq!(
            (of("/home/a/b/c"), of("/home/a/b"), of("/home"), of("/"), of("/homes")),
            (Some(2), Some(1), Some(0), None, Some(0))
        );
        assert!(is_own(Path::new("/dev/shm")) && !is_own(Path::new("/devel")));
    }
}
