//! The position of a directory within its file system, from /proc/self/mountinfo. It makes a bind
//! mount of a subdirectory comparable with the original.

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use stack::Text;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The fields of a line of /proc/self/mountinfo that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    id: u64,
    /// The number of the mount that has the mount point.
    parent: u64,
    device: Vec<u8>,
    root: PathBuf,
    point: PathBuf,
    kind: Vec<u8>,
    /// The flags of this mount: `rw,nosuid`.
    flags: Vec<u8>,
    /// The options of the file system.
    options: Vec<u8>,
    /// Whether mounts and unmounts propagate to and from others.
    is_shared: bool,
}

impl Mount {
    /// Whether it is in a peer group: its unmount takes place in other mount namespaces too.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the path of its root within its file system.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directories that an overlayfs merges; none for other file systems.
    #[must_use]
    pub fn overlay_layers(&self) -> Vec<PathBuf> {
        if self.kind != b"overlay" {
            return Vec::new();
        }
        let options = Text::read(&escape_quotes(&self.options)).unwrap_or_default();
        let layers = options.split(b',').into_iter().filter_map(|option| option.split_first(b'='));
        let layers =
            layers.filter(|(name, _)| ["lowerdir", "lowerdir+", "datadir+", "upperdir"].contains(&&*name.show()));
        layers.flat_map(|(_, value)| value.split(b':')).map(|path| OsString::from_vec(path.bytes()).into()).collect()
    }

    /// Returns the device number of the file system: `0:52`.
    #[must_use]
    pub fn device(&self) -> &[u8] {
        &self.device
    }

    /// Returns the mount point.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Whether its root is that of the file system, not a subdirectory.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the number by which statx(2) identifies the mount.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Whether this mount has the flag, such as `ro` or `noexec`.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.split(|&b| b == b',').any(|one| one == flag.as_bytes())
    }

    /// Whether the file system itself is read-only, so that no mount of it can be written.
    #[must_use]
    pub fn is_read_only_everywhere(&self) -> bool {
        self.options.split(|&b| b == b',').any(|one| one == b"ro")
    }

    /// Whether a server, in a process or on another machine, answers its requests, and may not do
    /// so.
    #[must_use]
    pub fn may_hang(&self) -> bool {
        const KINDS: [&[u8]; 12] = [
            b"fuse",
            b"nfs",
            b"cifs",
            b"smb",
            b"9p",
            b"ceph",
            b"afs",
            b"virtiofs",
            b"lustre",
            b"coda",
            b"orangefs",
            // Of layers that may hang.
            b"overlay",
        ];
        self.kind != b"fusectl" && self.kind != b"nfsd" && KINDS.iter().any(|kind| self.kind.starts_with(kind))
    }

    /// Returns the type of the file system as mount(8) shows it: `ext4`, `fuse.unionfs`.
    #[must_use]
    pub fn kind(&self) -> &[u8] {
        &self.kind
    }
}

/// A path within a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    device: Vec<u8>,
    path: PathBuf,
}

impl Inside {
    /// Whether it is the same directory as `other`, or below it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// Returns the mounts of this process's mount namespace; none if /proc is not mounted.
#[must_use]
pub fn read() -> Vec<Mount> {
    read_from("/proc/self/mountinfo")
}

/// As [`read`], for the mount namespace of a process.
#[must_use]
pub fn read_of(pid: u32) -> Vec<Mount> {
    read_of_thread(&PathBuf::from(format!("/proc/{pid}")))
}

/// As [`read_of`], for a thread with this directory in /proc. Mounts outside its root directory are
/// left out.
#[must_use]
pub fn read_of_thread(thread: &Path) -> Vec<Mount> {
    read_from(thread.join("mountinfo"))
}

fn read_from(path: impl AsRef<Path>) -> Vec<Mount> {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// Parses a line in the format of proc_pid_mountinfo(5): id, parent id, device, root, mount point,
/// options, optional fields, `-`, type, ...
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = fields.next()?.to_vec();
    let path = |field: &[u8]| Some(PathBuf::from(OsString::from_vec(Text::read(&escape_quotes(field)).ok()?.bytes())));
    let root = path(fields.next()?)?;
    let point = path(fields.next()?)?;
    let flags = fields.next()?.to_vec();
    let optional: Vec<&[u8]> = fields.by_ref().take_while(|&field| field != b"-").collect();
    let is_shared = optional.iter().any(|field| field.starts_with(b"shared:"));
    let kind = fields.next()?.to_vec();
    let options = fields.nth(1).unwrap_or_default().to_vec();
    Some(Mount { id, parent, device, root, point, kind, flags, options, is_shared })
}

/// A line of fstab(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FstabEntry<'a> {
    /// The source.
    pub source: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: &'a [u8],
    /// The options, as written.
    pub options: &'a [u8],
}

/// Parses a line of fstab(5); `None` for lines that describe no mount.
#[must_use]
pub fn entry_of_fstab(line: &[u8]) -> Option<FstabEntry<'_>> {
    let path = |field: &[u8]| Some(PathBuf::from(OsString::from_vec(Text::read(&escape_quotes(field)).ok()?.bytes())));
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let source = path(fields.next().filter(|source| !source.starts_with(b"#"))?)?;
    let point = path(fields.next()?)?;
    let kind = fields.next().unwrap_or_default();
    Some(FstabEntry { source, point, kind, options: fields.next().unwrap_or_default() })
}

/// Returns the mount point and the options of a line of fstab(5); `None` for other lines.
#[must_use]
pub fn line_of_fstab(line: &[u8]) -> Option<(PathBuf, &[u8])> {
    entry_of_fstab(line).map(|entry| (entry.point, entry.options))
}

/// Escapes double quotes, which [`Text`] would interpret. The kernel escapes only white space and
/// backslashes, in octal.
fn escape_quotes(field: &[u8]) -> Vec<u8> {
    field.iter().flat_map(|&b| if b == b'"' { vec![b'\\', b] } else { vec![b] }).collect()
}

/// Returns the mount that the descriptor belongs to.
#[must_use]
pub fn mount_of<'a>(mounts: &'a [Mount], dir: BorrowedFd<'_>) -> Option<&'a Mount> {
    let stat = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return None;
    }
    mounts.iter().find(|mount| mount.id == stat.stx_mnt_id)
}

/// Whether `dir` is the mount point of a whole file system, not of a subdirectory of one. `None` if
/// that is unknown.
#[must_use]
pub fn is_root(dir: &Path) -> Option<bool> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty()).ok()?;
    let mounts = read();
    let mount = mount_of(&mounts, fd.as_fd())?;
    Some(mount.is_whole() && mount.point == dir.canonicalize().ok()?)
}

/// Returns the directory's position in its file system, if known. `real` is its path without
/// symbolic links.
#[must_use]
pub fn inside(mounts: &[Mount], dir: BorrowedFd<'_>, real: &Path) -> Option<Inside> {
    let mount = mount_of(mounts, dir)?;
    let below = real.strip_prefix(&mount.point).ok()?;
    Some(Inside { device: mount.device.clone(), path: mount.root.join(below) })
}

/// Returns the mount points inside a directory, as paths from there: also those of other mounts of
/// the same directory. The kernel removes none of them.
#[must_use]
pub fn points_inside(dir: &Path) -> Vec<Vec<u8>> {
    let mounts = read();
    let (Ok(fd), Ok(real)) = (rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()), dir.canonicalize())
    else {
        return Vec::new();
    };
    let points = inside(&mounts, fd.as_fd(), &real).map_or_else(Vec::new, |top| points_of(&mounts, &top));
    points.into_iter().map(|path| path.into_os_string().into_vec()).collect()
}

fn points_of(mounts: &[Mount], top: &Inside) -> Vec<PathBuf> {
    let position = |mount: &Mount| {
        let parent = mounts.iter().find(|parent| parent.id == mount.parent)?;
        let path = parent.root.join(mount.point.strip_prefix(&parent.point).ok()?);
        let below = path.strip_prefix(&top.path).ok().filter(|_| parent.device == top.device)?;
        (below != Path::new("")).then(|| below.to_owned())
    };
    mounts.iter().filter_map(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed() {
        let line = br#"36 35 98:0 /sub\040dir /mnt/a\134b"c rw,noatime master:1 - ext3 /dev/root rw"#;
        let shared = br"36 35 98:0 / /mnt rw shared:7 master:1 - ext3 /dev/root rw,errors=continue";
        assert!(parse(shared).is_some_and(|mount| mount.is_shared() && mount.options == b"rw,errors=continue"));
        let want = Mount {
            id: 36,
            parent: 35,
            device: b"98:0".to_vec(),
            root: "/sub dir".into(),
            point: "/mnt/a\\b\"c".into(),
            kind: b"ext3".to_vec(),
            flags: b"rw,noatime".to_vec(),
            options: b"rw".to_vec(),
            is_shared: false,
        };
        assert_eq!(parse(line), Some(want));
        for bad in [&b""[..], b"x", b"1 2 3", b"x 2 3 / / rw - x y", b"1 2 3 / / rw", b"1 2 3 / / rw -"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn layers_of_an_overlay_are_found() {
        let line = br"9 8 0:7 / /mnt/o rw - overlay none rw,lowerdir=/a\072b:/c\040d,upperdir=/up,workdir=/w";
        let layers = parse(line).unwrap().overlay_layers();
        assert_eq!(layers, ["/a:b", "/c d", "/up"].map(PathBuf::from));
        assert_eq!(parse(b"1 2 0:3 / / rw - ext4 /dev/x rw").unwrap().overlay_layers(), Vec::<PathBuf>::new());
    }

    #[test]
    fn mount_points_of_fstab_are_read() {
        let line = b"none\t/mnt/a\\040b  unionfs dirs=/a:/b,ro 0 0";
        assert_eq!(line_of_fstab(line), Some(("/mnt/a b".into(), &b"dirs=/a:/b,ro"[..])));
        for line in ["", "# none /mnt unionfs", "none", "   "] {
            assert_eq!(line_of_fstab(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn bind_mounts_are_resolved() {
        let mount = |id, root: &str, point: &str| Mount {
            id,
            parent: 0,
            device: b"8:1".to_vec(),
            root: root.into(),
            point: point.into(),
            kind: b"ext4".to_vec(),
            flags: Vec::new(),
            options: Vec::new(),
            is_shared: false,
        };
        let at = |mount: &Mount, path: &str| Inside {
            device: mount.device.clone(),
            path: mount.root.join(Path::new(path).strip_prefix(&mount.point).unwrap()),
        };
        let (whole, bound) = (mount(1, "/", "/"), mount(2, "/srv/data/x", "/mnt"));
        assert!(at(&bound, "/mnt/y").is_within(&at(&whole, "/srv/data")));
        assert!(at(&bound, "/mnt").is_within(&at(&whole, "/srv/data/x")));
        assert!(!at(&whole, "/srv/data").is_within(&at(&bound, "/mnt")));
        assert!(!at(&bound, "/mnt").is_within(&at(&whole, "/srv/data/xy")));
    }

    #[test]
    fn mount_points_inside_are_found() {
        let mounts: Vec<Mount> = [
            "1 0 8:1 / / rw - ext4 /dev/x rw",
            "2 1 8:2 / /home rw - ext4 /dev/y rw",
            "3 2 0:5 / /home/a/b rw - tmpfs none rw",
            "4 1 8:2 /a /bound rw - ext4 /dev/y rw",
            "5 4 0:6 / /bound/c/d rw - tmpfs none rw",
        ]
        .iter()
        .filter_map(|line| parse(line.as_bytes()))
        .collect();
        let of = |device: &str, path: &str| {
            let top = Inside { device: device.as_bytes().to_vec(), path: path.into() };
            points_of(&mounts, &top).into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("8:1", "/"), "home bound");
        assert_eq!((of("8:2", "/"), of("8:2", "/a")), ("a/b a/c/d".to_owned(), "b c/d".to_owned()));
        assert_eq!((of("8:2", "/a/b"), of("0:5", "/")), (String::new(), String::new()));
    }

    #[test]
    fn the_root_is_found() {
        let root = std::fs::File::open("/").unwrap();
        if let Some(inside) = inside(&read(), root.as_fd(), Path::new("/")) {
            assert!(inside.is_within(&inside));
            assert_eq!((is_root(Path::new("/proc")), is_root(Path::new("/proc/self"))), (Some(true), Some(false)));
        }
        assert_eq!(is_root(Path::new("/no/such/directory")), None);
    }
}
