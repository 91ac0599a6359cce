//! The namespace process: creates the sandbox's namespaces, connects its unions to the kernel, and
//! starts the init process.
//!
//! It is not in the sandbox's PID namespace, since FUSE requests carry process IDs of the process
//! that mounts, and the server looks these up in the host's /proc.

use super::assemble::show;
use super::messages::{MAX_FDS, Message, Messages};
use super::plan::Plan;
use super::{INIT, stage};
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use fuse::Connection;
use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags};
use rustix::process::WaitOptions;
use rustix::thread::CapabilitySets;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// Runs the process. Failures are reported to the front.
pub(super) fn run(messages: &Messages, command: &[OsString]) -> Exit {
    match start(messages, command) {
        Ok(()) => {
            // The init process reports the end of the command.
            while let Ok(Some(_)) = rustix::process::wait(WaitOptions::empty()) {}
            Exit::Success
        }
        Err(failure) => {
            let _front_has_ended = messages.send(&Message::Failed(failure.exit.code(), failure.reason));
            failure.exit
        }
    }
}

fn start(messages: &Messages, command: &[OsString]) -> Result<(), Failure> {
    let Some((Message::Plan(plan), _)) = messages.receive()? else {
        return Err(Failure::system("the front process has ended"));
    };
    let before = rustix::process::getppid();
    block_signals()?;
    unshare(&plan)?;
    // The kernel clears the signal when credentials change.
    stage::die_with_parent(before)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(|errno| step("make the mounts private", errno))?;
    if !plan.network {
        super::loopback::raise()?;
    }
    let mounts = connect(messages, &plan)?;
    match messages.receive()? {
        Some((Message::Served, _)) => {}
        _ => return Err(Failure::system("the front process does not serve the unions")),
    }
    attach(&plan, &mounts, messages)?;
    drop(mounts);
    keep_capabilities().map_err(|errno| step("keep capabilities", errno))?;
    stage::spawn_protected(INIT, messages, command).map(drop)
}

/// Blocks signals for the process group, which are meant for the command.
fn block_signals() -> Result<(), Failure> {
    let mut signals = SigSet::empty();
    let all = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];
    all.into_iter().for_each(|signal| signals.add(signal));
    signals.thread_block().map_err(|errno| step("block signals", Errno::from_raw_os_error(errno as i32)))
}

fn unshare(plan: &Plan) -> Result<(), Failure> {
    let mut flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    flags.set(CloneFlags::CLONE_NEWUSER, plan.rootless);
    flags.set(CloneFlags::CLONE_NEWNET, !plan.network);
    nix::sched::unshare(flags).map_err(|errno| {
        let errno = Errno::from_raw_os_error(errno as i32);
        let remedy = match errno {
            Errno::PERM | Errno::NOSPC | Errno::ACCESS if plan.rootless => {
                "; this system restricts user namespaces (see the sysctls user.max_user_namespaces, \
                 kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns): run as root"
            }
            Errno::PERM => "; run it with CAP_SYS_ADMIN",
            _ => "",
        };
        Failure::system(format!("can't create namespaces: {}{remedy}", reason(errno)))
    })?;
    if plan.rootless {
        let (uid, gid) = plan.ids;
        let write = |file: &str, text: String| {
            std::fs::write(file, text).map_err(|error| Failure::system(format!("{file}: can't map the user: {error}")))
        };
        write("/proc/self/setgroups", "deny".to_owned())?;
        write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
        write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    }
    Ok(())
}

/// Creates the connections of all unions, and sends their devices to the front.
fn connect(messages: &Messages, plan: &Plan) -> Result<Vec<OwnedFd>, Failure> {
    let connect = |union| {
        Connection::new(&super::view::mount_options(union, plan))
            .map_err(|error| Failure::system(format!("can't mount a union: {error}")))
    };
    let connections = plan.unions.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    for some in connections.chunks(MAX_FDS) {
        let devices: Vec<_> = some.iter().map(|connection| connection.device.as_fd()).collect();
        messages.send_with(&Message::Devices, &devices)?;
    }
    Ok(connections.into_iter().map(|connection| connection.mount).collect())
}

/// Puts the unions and the mounts that are shown as they are together, the enclosing ones first.
fn attach(plan: &Plan, mounts: &[OwnedFd], messages: &Messages) -> Result<(), Failure> {
    let view = Path::new(&plan.view);
    let unions = plan.unions.iter().zip(mounts).map(|(union, mount)| (&union.place, Some(mount)));
    let mut all: Vec<_> = unions.chain(plan.shown.iter().map(|place| (place, None))).collect();
    all.sort_by_key(|(place, _)| Path::new(&place.point));
    for (place, union) in all {
        let path = Path::new(&place.point);
        let attached = match union {
            Some(mount) => attach_union(mount, view, &place.at),
            None => show(view, place),
        };
        match attached {
            Err(errno) if path == Path::new("/") => return Err(step("mount the union over /", errno)),
            // Its mount point is missing, or has a name that unions reserve.
            Err(errno) => {
                let what = format!("show {}, which is hidden in the sandbox", path.display());
                messages.send(&Message::Warning(step(&what, errno).reason))?;
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

fn attach_union(mount: &OwnedFd, view: &Path, at: &OsStr) -> Result<(), Errno> {
    Connection::fetch_root(mount);
    let point = if at == OsStr::new("/") { stage::open(view) } else { inside(view, at) };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", &point?, c"", flags)
}

/// Opens a path of the sandbox in the tree below `view`, as a reference. Follows no symbolic link.
pub(super) fn inside(view: &Path, path: &OsStr) -> Result<OwnedFd, Errno> {
    let root = rustix::fs::open(view, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Lets the capabilities in the user namespace survive the execution of the init process. root's
/// do anyway.
fn keep_capabilities() -> Result<(), Errno> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let sets = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable: sets.permitted, ..sets })?;
    for capability in sets.permitted.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

pub(super) fn step(what: &str, errno: Errno) -> Failure {
    Failure::system(format!("can't {what}: {}", reason(errno)))
}

/// The signal that ends the processes of a sandbox with the one that started them.
pub(super) const END: rustix::process::Signal = rustix::process::Signal::KILL;
