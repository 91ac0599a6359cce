//! `umount.fuse` and `umount.fuse.TYPE`: the helpers of umount(8). They unmount, and wait until the
//! server has closed the directories below: umount(2) returns before that.
//!
//! umount(8) calls the former for an absolute path without options. So that is called for other
//! FUSE file systems too, which it unmounts without waiting.

use crate::exit::{Exit, Failure};
use crate::mountinfo::{self, Mount};
use crate::options::Type;
use crate::{process, tool, users};
use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the helper waits for the server: longer than it writes its records and closes its
/// descriptors on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// Its owner is root, and the helper runs as the caller: nobody else chooses what is run.
const UMOUNT: &str = "/bin/umount";

/// The directory with one entry for each connection that a mount uses, in any mount namespace.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Unmount, and wait until the server has closed the directories below.
#[derive(Debug, Parser)]
#[command(name = "umount.fuse", version, disable_version_flag = true)]
struct Cli {
    /// The mount point.
    dir: PathBuf,
    /// Detach the mount, and don't wait: the server ends once nothing uses it.
    #[arg(short)]
    lazy: bool,
    /// Abort the requests that the server has not answered.
    #[arg(short)]
    force: bool,
    /// If the mount is in use, make it read-only.
    #[arg(short)]
    read_only: bool,
    /// Print a line once it is unmounted.
    #[arg(short)]
    verbose: bool,
    /// Accepted for umount(8).
    #[arg(short = 'n')]
    no_table: bool,
    /// The mount namespace: the path of a namespace file, or a process ID.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
    /// The type, as umount(8) passes it.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<OsString>,
}

/// Whether `program` is `umount.fuse`, `umount.TYPE` or `umount.fuse.TYPE`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    let name = program.rsplit(|byte| *byte == b'/').next().and_then(|name| name.strip_prefix(b"umount."));
    let kind = name.map(|name| name.strip_prefix(b"fuse.").unwrap_or(name));
    kind.and_then(|kind| core::str::from_utf8(kind).ok()).is_some_and(|kind| kind == "fuse" || Type::of(kind).is_some())
}

/// Runs the helper and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    let program = args.first().and_then(|name| Path::new(name).file_name()).unwrap_or_default();
    tool::run(&program.to_string_lossy(), args, |cli: &Cli| execute(cli))
}

fn execute(cli: &Cli) -> Result<(), Failure> {
    cli.namespace.as_deref().map_or(Ok(()), process::enter_namespace)?;
    // A mount that is detached can be in use for any time, one that is made read-only stays, and
    // one that hangs need not answer.
    let ours = ours(&cli.dir);
    let waits = !(cli.lazy || cli.force || cli.read_only);
    let server = ours.as_deref().filter(|_| waits).and_then(Server::of);
    // One that hangs would hang umount(8), which asks it.
    let is_done = ours.is_some_and(|dir| waits && rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW).is_ok());
    match (is_done, cli.verbose) {
        (true, true) => tool::print(format!("{} unmounted\n", cli.dir.display()))?,
        (true, false) => {}
        (false, _) => unmount(cli)?,
    }
    if let Some(server) = server
        && !server.ends()
    {
        let (dir, pid) = (cli.dir.display(), server.pid);
        let _ = writeln!(
            std::io::stderr(),
            "{dir}: unmounted, but process {pid}, its server, still has the directories below open"
        );
    }
    Ok(())
}

/// Returns the path without symbolic links if a mount of Strata is there.
fn ours(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    let is_ours = |mount: &Mount| {
        let kind = mount.kind().strip_prefix(b"fuse.").and_then(|kind| core::str::from_utf8(kind).ok());
        mount.point() == dir && kind.and_then(Type::of).is_some()
    };
    mountinfo::read().iter().any(is_ours).then_some(dir)
}

/// Has umount(8) unmount without helpers. It knows what the caller may do, also on mounts of other
/// file systems.
fn unmount(cli: &Cli) -> Result<(), Failure> {
    let dir = cli.dir.display();
    let options =
        [(cli.lazy, "-l"), (cli.force, "-f"), (cli.read_only, "-r"), (cli.verbose, "-v"), (cli.no_table, "-n")];
    let mut umount = Command::new(UMOUNT);
    umount.arg("-i").args(options.iter().filter(|(is_given, _)| *is_given).map(|(_, option)| option));
    let done = umount.arg("--").arg(&cli.dir).output();
    let done = done.map_err(|error| Failure::mount(format!("{dir}: can't run {UMOUNT}: {error}")))?;
    if done.status.success() {
        return tool::print(done.stdout);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(Failure::mount(said.trim_end().trim_start_matches("umount: ")))
}

/// The server of a mount.
struct Server {
    pid: u32,
    process: OwnedFd,
    /// The minor number of the file system's device, and its connection's name.
    connection: u32,
}

impl Server {
    /// Returns the server of a mount of Strata. `None` if it is not found: it can be in another PID
    /// namespace.
    fn of(dir: &Path) -> Option<Self> {
        // The mount of another user answers no more than this.
        let device = rustix::fs::statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
        let connection = device.stx_dev_minor;
        let pid = serving(connection)?;
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        Some(Self { pid, process, connection })
    }

    /// Waits for the end of the server after an unmount. Returns false if it does not end. A server
    /// whose file system is still mounted elsewhere goes on.
    fn ends(&self) -> bool {
        let is_elsewhere = Path::new(CONNECTIONS).join(self.connection.to_string()).exists()
            || mountinfo::read().iter().any(|mount| mount.device() == format!("0:{}", self.connection).as_bytes());
        if is_elsewhere {
            return true;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
            match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], left.as_ref()) {
                Ok(ready) => return ready > 0,
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }
}

/// Returns the process that serves a connection. Kernels before 6.18 don't show that. There, the
/// mount would have to be asked, and one that hangs would stay in use: the helper doesn't wait.
fn serving(connection: u32) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.find(|pid| users::has_device(*pid) && users::served_by(*pid) == Some(connection))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/sbin/umount.fuse.unionfs") && is_called(b"umount.wrapfs") && is_called(b"umount.fuse"));
        assert!(!is_called(b"umount") && !is_called(b"umount.fuse.sshfs") && !is_called(b"mount.unionfs"));
        let cli = Cli::try_parse_from(["umount.fuse.unionfs", "/mnt", "-n", "-v", "-t", "fuse.unionfs"]).unwrap();
        assert!(cli.dir == Path::new("/mnt") && cli.verbose && !cli.lazy);
    }
}
