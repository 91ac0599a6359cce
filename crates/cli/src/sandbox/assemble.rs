//! Completes the sandbox's tree of mounts, and makes it the root directory.
//!
//! After the unions, which the namespace process has mounted: /proc of the sandbox's own PID
//! namespace, the host's /sys without write access, a /dev of a few devices, and what the user
//! allowed. Nothing of the host's own mounts remains in the namespace, so no process of the sandbox
//! can get at what a mount covers.

use super::namespaces::{inside, step};
use super::plan::{Allowed, Place, Plan};
use super::{stage, store};
use crate::exit::Failure;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// The devices in /dev. Each must exist on the host to appear.
const DEVICES: [&str; 7] = ["null", "zero", "full", "random", "urandom", "tty", "fuse"];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Mounts the rest, and enters the tree. Returns warnings for the user.
pub(super) fn enter(plan: &Plan) -> Result<Vec<String>, Failure> {
    let tree = Tree { view: PathBuf::from(&plan.view) };
    let mut warnings = Vec::new();
    tree.proc(plan, &mut warnings)?;
    let sys = Place { point: "/sys".into(), at: "/sys".into() };
    show(&tree.view, &sys).map_err(|errno| step("mount /sys", errno))?;
    tree.dev(plan)?;
    for allowed in &plan.allowed {
        tree.allow(allowed)?;
    }
    // Also in a directory that is allowed.
    for path in &plan.emptied {
        tree.empty(path)?;
    }
    tree.become_root().map_err(|errno| step("change the root directory", errno))?;
    std::env::set_current_dir(&plan.cwd).map_err(|error| {
        Failure::usage(format!("working directory {}: not accessible in the sandbox: {error}", plan.cwd.display()))
    })?;
    Ok(warnings)
}

/// The tree before it becomes the root.
struct Tree {
    view: PathBuf,
}

impl Tree {
    /// Returns the path, outside of the tree, of a path in it. Only for directories of the
    /// sandbox's own, which contain no symbolic links.
    fn at(&self, path: &str) -> PathBuf {
        self.view.join(path.trim_start_matches('/'))
    }

    /// Attaches a detached mount at a path of the tree.
    fn attach(&self, mount: &OwnedFd, path: impl AsRef<OsStr>) -> Result<(), Errno> {
        attach(mount, &inside(&self.view, path.as_ref())?)
    }

    /// Mounts a file system of the kernel.
    fn mount(&self, kind: &str, path: &str, flags: MountFlags, data: &std::ffi::CStr) -> Result<(), Errno> {
        rustix::mount::mount(kind, self.at(path), kind, flags | MountFlags::NOSUID, data)
    }

    fn proc(&self, plan: &Plan, warnings: &mut Vec<String>) -> Result<(), Failure> {
        let flags = MountFlags::NODEV | MountFlags::NOEXEC;
        match self.mount("proc", "/proc", flags, c"") {
            // A container that hides parts of /proc forbids new instances. The outer one shows the
            // processes outside, but a user namespace protects these.
            Err(Errno::PERM) if plan.rootless => {
                warnings.push(
                    "/proc: the kernel permits no new instance here; the processes outside are visible".to_owned(),
                );
                let tree = clone(OsStr::new("/proc")).map_err(|errno| step("mount /proc", errno))?;
                return self.attach(&tree, "/proc").map_err(|errno| step("mount /proc", errno));
            }
            mounted => mounted.map_err(|errno| step("mount /proc", errno))?,
        }
        // A user may not write these anyway, and the kernel permits further instances of /proc in
        // nested sandboxes only if nothing is mounted in this one.
        if plan.rootless {
            return Ok(());
        }
        for path in changeable(&self.at("/proc")).map_err(|error| step("protect /proc", errno_of(&error)))? {
            let protect = || {
                let tree = rustix::mount::open_tree(CWD, self.at(&path), CLONE)?;
                hostfs::restrict_mounts(tree.as_fd(), true, true)?;
                self.attach(&tree, &path)
            };
            protect().map_err(|errno| step(&format!("protect {path}"), errno))?;
        }
        for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list"] {
            if self.at(path).exists() {
                self.device(Path::new("/dev/null"), path).map_err(|errno| step(&format!("hide {path}"), errno))?;
            }
        }
        Ok(())
    }

    fn dev(&self, plan: &Plan) -> Result<(), Failure> {
        let failed = |what: &'static str| move |errno| step(&format!("mount {what}"), errno);
        self.mount("tmpfs", "/dev", MountFlags::NOEXEC, c"mode=755,size=1m").map_err(failed("/dev"))?;
        for name in DEVICES {
            let path = format!("/dev/{name}");
            self.device(Path::new(&path), &path).map_err(failed("a device"))?;
        }
        for (name, target) in LINKS {
            symlink(target, self.at("/dev").join(name)).map_err(|error| failed("/dev")(errno_of(&error)))?;
        }
        for name in ["/dev/pts", "/dev/shm", "/dev/mqueue"] {
            fs::create_dir(self.at(name)).map_err(|error| failed("/dev")(errno_of(&error)))?;
        }
        let pts = c"newinstance,ptmxmode=0666,mode=620";
        self.mount("devpts", "/dev/pts", MountFlags::NOEXEC, pts).map_err(failed("/dev/pts"))?;
        self.mount("tmpfs", "/dev/shm", MountFlags::NODEV, c"mode=1777").map_err(failed("/dev/shm"))?;
        let flags = MountFlags::NODEV | MountFlags::NOEXEC;
        self.mount("mqueue", "/dev/mqueue", flags, c"").map_err(failed("/dev/mqueue"))?;
        if let Some(terminal) = &plan.terminal {
            // ttyname(3) finds the terminal under this name.
            self.device(Path::new(terminal), "/dev/console").map_err(failed("/dev/console"))?;
        }
        Ok(())
    }

    /// Shows a device of the host, if it exists, at a path of /dev or over a file of /proc. Its
    /// owner and mode can't be changed.
    fn device(&self, host: &Path, path: &str) -> Result<(), Errno> {
        let Ok(tree) = clone(host.as_os_str()) else { return Ok(()) };
        hostfs::restrict_mounts(tree.as_fd(), true, false)?;
        if path.starts_with("/dev/") {
            fs::File::create(self.at(path)).map_err(|error| errno_of(&error))?;
        }
        self.attach(&tree, path)
    }

    /// Covers a directory with an empty one, which can be written but is not kept.
    fn empty(&self, path: &OsString) -> Result<(), Failure> {
        let Ok(point) = inside(&self.view, path) else { return Ok(()) };
        let cover = || {
            let fs = rustix::mount::fsopen("tmpfs", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC)?;
            rustix::mount::fsconfig_set_string(&fs, "mode", "700")?;
            rustix::mount::fsconfig_create(&fs)?;
            let attributes =
                rustix::mount::MountAttrFlags::MOUNT_ATTR_NODEV | rustix::mount::MountAttrFlags::MOUNT_ATTR_NOSUID;
            let mount = rustix::mount::fsmount(&fs, rustix::mount::FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
            attach(&mount, &point)
        };
        cover().map_err(|errno| step(&format!("hide {}", path.display()), errno))
    }

    /// Passes a file or directory of the host through.
    fn allow(&self, allowed: &Allowed) -> Result<(), Failure> {
        let path = Path::new(&allowed.path);
        let failed = |errno| step(&format!("allow {}", path.display()), errno);
        let resolve = rustix::fs::ResolveFlags::NO_SYMLINKS;
        let fd =
            rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).map_err(failed)?;
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        if (stat.st_dev, stat.st_ino) != allowed.id {
            return Err(Failure::usage(format!("{}: was replaced meanwhile; try again", path.display())));
        }
        let tree = rustix::mount::open_tree(&fd, c"", CLONE | OpenTreeFlags::AT_EMPTY_PATH).map_err(failed)?;
        // Device nodes are for use in /dev alone.
        hostfs::restrict_mounts(tree.as_fd(), false, !path.starts_with("/dev")).map_err(failed)?;
        if path.starts_with("/dev")
            && !inside(&self.view, path.as_os_str()).is_ok_and(|point| store::is_same_kind(&point, &fd))
        {
            self.make_device_point(path, &fd).map_err(failed)?;
        }
        self.attach(&tree, path).map_err(failed)
    }

    /// Creates a mount point in the sandbox's own /dev.
    fn make_device_point(&self, path: &Path, fd: &OwnedFd) -> Result<(), Errno> {
        let at = self.view.join(path.strip_prefix("/").unwrap_or(path));
        let above = at.parent().unwrap_or(&at);
        fs::create_dir_all(above).map_err(|error| errno_of(&error))?;
        let is_directory = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode).is_dir();
        let made = if is_directory { fs::create_dir(&at) } else { fs::File::create(&at).map(drop) };
        made.map_err(|error| errno_of(&error))
    }

    /// Makes the tree the root directory, and detaches the host's.
    fn become_root(&self) -> Result<(), Errno> {
        let root = stage::open(&self.view)?;
        rustix::process::fchdir(&root)?;
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }
}

const CLONE: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_RECURSIVE);

/// Attaches a detached mount over an open file or directory.
fn attach(mount: &OwnedFd, point: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", point, c"", flags)
}

/// Shows a path of the host, with the mounts in it, in the tree `view`. Nothing there can be
/// changed, and devices can't be used.
pub(super) fn show(view: &Path, place: &Place) -> Result<(), Errno> {
    let tree = clone(&place.point)?;
    hostfs::restrict_mounts(tree.as_fd(), true, true)?;
    attach(&tree, &inside(view, &place.at)?)
}

/// Returns what root can write in /proc without a capability, such as /proc/sys: all directories
/// and writable files, except for those of processes.
fn changeable(proc: &Path) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)?.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // One of a module may disappear.
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        let of_process = name.bytes().all(|byte| byte.is_ascii_digit());
        if !of_process && !meta.is_symlink() && (meta.is_dir() || meta.permissions().mode() & 0o222 != 0) {
            found.push(format!("/proc/{name}"));
        }
    }
    Ok(found)
}

/// Returns a detached copy of the mount at a path, with those in it: the kernel refuses to copy a
/// mount without those that cover parts of it.
fn clone(path: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::mount::open_tree(CWD, path, CLONE)
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
