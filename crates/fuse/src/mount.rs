//! Mounting and unmounting, as root or through fusermount3.

use crate::{Errno, MountError, device, fusermount, mount_user};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount, unmount,
};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Transport of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The ring where the kernel offers it, otherwise the device.
    #[default]
    Auto,
    /// The ring; mounting fails without it.
    Ring,
    /// The device.
    Device,
}

/// How the file system is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mounter {
    /// Directly as root, otherwise through fusermount3.
    #[default]
    Auto,
    /// Directly, by system calls.
    Direct,
    /// Through the set-user-id program fusermount3, as unprivileged users do.
    Fusermount,
}

/// Per-mount options of mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Flags {
    /// `ro`
    pub read_only: bool,
    /// `nosuid`
    pub nosuid: bool,
    /// `nodev`
    pub nodev: bool,
    /// `noexec`
    pub noexec: bool,
    /// `noatime`
    pub noatime: bool,
    /// `nodiratime`
    pub nodiratime: bool,
    /// `strictatime`
    pub strictatime: bool,
    /// `nosymfollow`
    pub nosymfollow: bool,
    /// `sync`
    pub sync: bool,
    /// `dirsync`
    pub dirsync: bool,
}

/// Options for mounting and serving.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Mount point.
    pub mountpoint: PathBuf,
    /// Source shown by df(1) and findmnt(8).
    pub source: Vec<u8>,
    /// The file system type is `fuse.<subtype>`.
    pub subtype: String,
    /// Per-mount options.
    pub flags: Flags,
    /// Lets the kernel check permissions by mode, owner and ACL.
    pub default_permissions: bool,
    /// Lets users other than the mounting one access the mount.
    pub allow_other: bool,
    /// Largest read in bytes, if not the size agreed on in INIT.
    pub max_read: Option<u32>,
    /// Readahead of files without passthrough, in bytes; `None`: the kernel's default, 128 KiB.
    /// Larger values need root; if refused, a warning is logged and the default stays.
    pub readahead: Option<u32>,
    /// Transport of the requests.
    pub transport: Transport,
    /// How the file system is mounted.
    pub mounter: Mounter,
    /// Initial number of entries in each queue of the ring.
    pub depth: usize,
    /// Maximum number of threads that read the device.
    pub max_threads: usize,
    /// Maximum number of worker threads for slow requests of the ring.
    pub max_workers: usize,
    /// The file systems below can hang (network file systems): no request runs on a thread that
    /// others need.
    pub may_hang: bool,
    /// INIT flags to treat as not offered, for tests: as an older kernel would.
    pub refuse: u64,
    /// Newest minor version to speak, for tests.
    pub max_minor: u32,
}

impl MountOptions {
    /// Returns the default options for a mount point.
    #[must_use]
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            source: b"strata".to_vec(),
            subtype: "strata".to_owned(),
            flags: Flags::default(),
            default_permissions: true,
            allow_other: false,
            max_read: None,
            readahead: None,
            transport: Transport::Auto,
            mounter: Mounter::Auto,
            depth: 16,
            max_threads: 64,
            max_workers: 128,
            may_hang: false,
            refuse: 0,
            max_minor: crate::abi::KERNEL_MINOR_VERSION,
        }
    }

    /// Superblock options without a value.
    fn switches(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("default_permissions", self.default_permissions),
            ("allow_other", self.allow_other),
            ("ro", self.flags.read_only),
            ("sync", self.flags.sync),
            ("dirsync", self.flags.dirsync),
        ];
        all.into_iter().filter_map(|(name, on)| on.then_some(name))
    }

    /// Superblock options with a value.
    fn values(&self, device: &OwnedFd) -> Vec<(&'static str, Vec<u8>)> {
        let mut values = vec![
            ("fd", device.as_raw_fd().to_string().into_bytes()),
            ("rootmode", b"40000".to_vec()),
            ("user_id", rustix::process::getuid().as_raw().to_string().into_bytes()),
            ("group_id", rustix::process::getgid().as_raw().to_string().into_bytes()),
        ];
        if let Some(max_read) = self.max_read {
            values.push(("max_read", max_read.to_string().into_bytes()));
        }
        values
    }

    /// Returns the options in fusermount3's syntax, with commas in values escaped.
    pub(crate) fn fusermount_options(&self) -> Vec<u8> {
        let mut options = Vec::new();
        for (name, value) in [("fsname", &self.source[..]), ("subtype", self.subtype.as_bytes())] {
            if !options.is_empty() {
                options.push(b',');
            }
            options.extend_from_slice(name.as_bytes());
            options.push(b'=');
            for &byte in value {
                if matches!(byte, b',' | b'\\') {
                    options.push(b'\\');
                }
                options.push(byte);
            }
        }
        let flags = &self.flags;
        let attributes =
            [("nosuid", flags.nosuid), ("nodev", flags.nodev), ("noexec", flags.noexec), ("noatime", flags.noatime)];
        let attributes = attributes.into_iter().filter_map(|(name, on)| on.then_some(name));
        for name in self.switches().chain(attributes) {
            options.push(b',');
            options.extend_from_slice(name.as_bytes());
        }
        if let Some(max_read) = self.max_read {
            options.extend_from_slice(format!(",max_read={max_read}").as_bytes());
        }
        options
    }
}

/// How the file system was mounted, which decides how it is unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    Direct,
    Fusermount,
    /// By another process, which also unmounts it.
    Elsewhere,
}

/// A connection to the kernel whose file system nobody serves and that is not attached anywhere
/// yet. One process can create it, in its own user and mount namespace, and another one can serve
/// it ([`crate::Session::serve_device`]).
#[derive(Debug)]
pub struct Connection {
    /// The descriptor of /dev/fuse to read requests from.
    pub device: OwnedFd,
    /// The detached mount, for move_mount(2). Path lookups on it wait until the device is served.
    pub mount: OwnedFd,
}

impl Connection {
    /// Creates a connection and its mount. The options' mount point is not used.
    ///
    /// # Errors
    /// The step that failed and the reason.
    pub fn new(options: &MountOptions) -> Result<Self, MountError> {
        let device = device::open().map_err(|error| MountError::new("opening /dev/fuse", error))?;
        let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|error| MountError::new("opening the file system type fuse", error))?;
        let mount = prepare_new(options, &device, &fs)?;
        Ok(Self { device, mount })
    }
}

/// A superblock that may not be attached yet.
pub(crate) enum Prepared {
    /// Created by fsopen(2) and fsmount(2).
    Mount(OwnedFd),
    /// Created and attached in one step by mount(2).
    Done,
}

/// Creates the superblock. With synchronous INIT this waits for the server's reply.
pub(crate) fn prepare(options: &MountOptions, mountpoint: &Path, device: &OwnedFd) -> Result<Prepared, MountError> {
    match fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(fs) => prepare_new(options, device, &fs).map(Prepared::Mount),
        Err(Errno::NOSYS) => mount_old(options, mountpoint, device).map(|()| Prepared::Done),
        Err(error) => Err(MountError::new("opening the file system type fuse", error)),
    }
}

/// Maximum length of a value of fsconfig(2), in bytes. A longer source is truncated.
const VALUE_MAX: usize = 255;

fn prepare_new(options: &MountOptions, device: &OwnedFd, fs: &OwnedFd) -> Result<OwnedFd, MountError> {
    let explain = |error| MountError::new("setting the mount options", error).with_detail(kernel_message(fs));
    let source = options.source.get(..VALUE_MAX).unwrap_or(&options.source);
    fsconfig_set_string(fs, "source", source).map_err(explain)?;
    fsconfig_set_string(fs, "subtype", &*options.subtype).map_err(explain)?;
    for (key, value) in options.values(device) {
        fsconfig_set_string(fs, key, &*value).map_err(explain)?;
    }
    for key in options.switches() {
        fsconfig_set_flag(fs, key).map_err(explain)?;
    }
    fsconfig_create(fs)
        .map_err(|error| MountError::new("starting the file system", error).with_detail(kernel_message(fs)))?;
    let flags = &options.flags;
    let attributes = [
        (flags.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (flags.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (flags.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (flags.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (flags.noatime, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (flags.nodiratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (flags.strictatime, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
        (flags.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ];
    let attributes = attributes.into_iter().filter(|a| a.0).map(|a| a.1).collect();
    fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|error| MountError::new("creating the mount", error).with_detail(kernel_message(fs)))
}

/// Returns the kernel's messages about a refusal.
fn kernel_message(fs: &OwnedFd) -> String {
    let mut buffer = [0; 512];
    let mut messages = Vec::new();
    while let Ok(len @ 1..) = rustix::io::read(fs, &mut buffer) {
        // Each message begins with a letter for its kind and a space.
        let message = buffer.get(..len).unwrap_or_default();
        messages.push(message.get(2..).unwrap_or_default().trim_ascii().escape_ascii().to_string());
    }
    messages.join("; ")
}

fn mount_old(options: &MountOptions, mountpoint: &Path, device: &OwnedFd) -> Result<(), MountError> {
    let mut data = Vec::new();
    for (key, value) in options.values(device) {
        data.extend_from_slice(key.as_bytes());
        data.push(b'=');
        data.extend_from_slice(&value);
        data.push(b',');
    }
    for key in options.switches().filter(|key| matches!(*key, "default_permissions" | "allow_other")) {
        data.extend_from_slice(key.as_bytes());
        data.push(b',');
    }
    data.pop();
    let data = std::ffi::CString::new(data).map_err(|_| MountError::new("setting the mount options", Errno::INVAL))?;
    let flags = &options.flags;
    let bits = [
        (flags.read_only, MountFlags::RDONLY),
        (flags.nosuid, MountFlags::NOSUID),
        (flags.nodev, MountFlags::NODEV),
        (flags.noexec, MountFlags::NOEXEC),
        (flags.noatime, MountFlags::NOATIME),
        (flags.nodiratime, MountFlags::NODIRATIME),
        (flags.strictatime, MountFlags::STRICTATIME),
        (flags.sync, MountFlags::SYNCHRONOUS),
        (flags.dirsync, MountFlags::DIRSYNC),
    ];
    let bits = bits.into_iter().filter(|b| b.0).map(|b| b.1).collect();
    mount(&*options.source, mountpoint, format!("fuse.{}", options.subtype), bits, data.as_c_str())
        .map_err(|error| MountError::new("mounting", error))
}

/// How long mounting waits for the attributes of the root directory.
const ROOT_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes the kernel fetch the attributes of the root directory before the mount is used.
///
/// Until then the kernel takes the root directory's mode to be 0. It discards attributes that are
/// under way when the server notifies it of a change, and then checks permissions by those that it
/// has: the first users of the mount could get `EACCES`.
pub(crate) fn fetch_root(prepared: &Prepared, mountpoint: &Path) {
    let root = match prepared {
        Prepared::Mount(mount) => mount.try_clone().ok(),
        Prepared::Done => {
            rustix::fs::open(mountpoint, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
        }
    };
    let Some(root) = root else { return };
    // A file system below may hang.
    let (done, fetched) = sync_channel(1);
    let fetch = move |root: Option<OwnedFd>| {
        let _unusable = root.as_ref().map(|root| rustix::fs::statat(root, "", AtFlags::EMPTY_PATH));
        drop(root);
        let _late = done.send(());
    };
    // SAFETY: `fetch` gets its descriptor from `spawn`, and has no other.
    if unsafe { mount_user::spawn("fuse-root".to_owned(), Some(root), fetch) }.is_ok() {
        let _late = fetched.recv_timeout(ROOT_TIMEOUT);
    }
}

/// Returns the attributes of the mount's root that are known without a request to the server.
pub(crate) fn root_of(prepared: &Prepared, mountpoint: &Path) -> Result<Statx, Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    match prepared {
        Prepared::Mount(mount) => statx(mount, "", flags | AtFlags::EMPTY_PATH, StatxFlags::empty()),
        Prepared::Done => statx(CWD, mountpoint, flags, StatxFlags::empty()),
    }
}

impl Connection {
    /// Makes the kernel fetch the attributes of the root directory, before it is used, from the
    /// process that serves the device. Waits for the reply, however long that takes: a process that
    /// creates a PID namespace can't start a thread to wait.
    pub fn fetch_root(mount: &OwnedFd) {
        let _unusable = rustix::fs::statat(mount, "", AtFlags::EMPTY_PATH);
    }
}

/// Attaches the mount at its mount point.
pub(crate) fn attach(prepared: &Prepared, mountpoint: &Path) -> Result<(), MountError> {
    match prepared {
        Prepared::Done => Ok(()),
        Prepared::Mount(mount) => move_mount(mount, "", CWD, mountpoint, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| MountError::new("attaching the mount", error)),
    }
}

/// Unmounts `mountpoint`. If it is in use and `lazy`, it is detached and unmounted once unused.
pub(crate) fn detach(attached: Attached, mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    match attached {
        Attached::Direct => {
            let result = match unmount(mountpoint, UnmountFlags::NOFOLLOW) {
                Err(Errno::BUSY) if lazy => unmount(mountpoint, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
                result => result,
            };
            result.map_err(|error| MountError::new("unmounting", error))
        }
        Attached::Fusermount => match fusermount::unmount(mountpoint, false) {
            Err(_) if lazy => fusermount::unmount(mountpoint, true),
            result => result,
        },
        Attached::Elsewhere => Ok(()),
    }
}

/// Aborts the connection, even if in use: operations on open files fail from now on.
pub(crate) fn abort(mountpoint: &Path) -> Result<(), MountError> {
    unmount(mountpoint, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH)
        .map_err(|error| MountError::new("aborting the connection", error))
}
