//! The helper of mount(8), from its arguments to the end of the mount.

use crate::cmdline::{self, Cmdline, Request};
use crate::exit::{Exit, Failure};
use crate::host_dir::{HostDir, Role};
use crate::live::{self, Live};
use crate::namespace_end;
use crate::options::{self, Options, Type};
use crate::signals::{self, Stop};
use crate::stack::{Ready, Stack};
use crate::tool::print;
use crate::version_policies::Host;
use crate::{already_mounted, background, crypt_host, debug, device, logging, man, process, remount};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Runs the helper of a type and returns its exit status.
#[must_use]
pub fn run(kind: Type, args: &[OsString]) -> Exit {
    let program = args.first().map_or_else(|| format!("mount.{}", kind.name()), base_name);
    match dispatch(kind, &program, args) {
        Ok(()) => Exit::Success,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "{program}: {failure}");
            failure.exit
        }
    }
}

fn base_name(name: &OsString) -> String {
    Path::new(name).file_name().unwrap_or(name).to_string_lossy().into_owned()
}

fn dispatch(kind: Type, program: &str, args: &[OsString]) -> Result<(), Failure> {
    match cmdline::parse(args.iter().skip(1).cloned())? {
        Request::Help => print(man::help(kind)),
        Request::Version => print(format!("{program} (Strata) {}\n", env!("CARGO_PKG_VERSION"))),
        Request::Mount(cmdline) if cmdline.serve => {
            // The parent prints the reason.
            if let Err(failure) = serve_in_background(kind, program, &cmdline) {
                background::failed(&failure);
                std::process::exit(failure.exit.code().into());
            }
            Ok(())
        }
        Request::Mount(cmdline) => mount(kind, program, &cmdline, args),
    }
}

fn mount(kind: Type, program: &str, cmdline: &Cmdline, args: &[OsString]) -> Result<(), Failure> {
    let options = options::parse(&cmdline.options, kind, cmdline.sloppy)?;
    if options.remount {
        enter_namespace(cmdline)?;
        return remount::remount(kind, cmdline, &options);
    }
    if cmdline.fake {
        enter_namespace(cmdline)?;
        Plan::check(kind, cmdline, options)?;
    } else if cmdline.foreground || options.foreground {
        enter_namespace(cmdline)?;
        let plan = Plan::check(kind, cmdline, options)?;
        return plan.serve(program, false);
    } else {
        let passphrase = Stack::asks_passphrase(kind, cmdline, &options)?.then(ask_passphrase).transpose()?;
        background::start(args, passphrase.as_ref().map(|bytes| &***bytes))?;
    }
    if cmdline.verbose {
        let spec = cmdline.spec.to_string_lossy();
        let fake = if cmdline.fake { " (fake: not mounted)" } else { "" };
        return print(format!("{program}: {spec} mounted on {}.{fake}\n", cmdline.dir.display()));
    }
    Ok(())
}

/// Asks for the passphrase of the mount, which the server can't: it has no terminal.
fn ask_passphrase() -> Result<cryptfs::Secret, Failure> {
    crypt_host::passphrase(&cryptfs::KeySource::Ask, "Passphrase: ").map_err(Failure::mount)
}

fn serve_in_background(kind: Type, program: &str, cmdline: &Cmdline) -> Result<(), Failure> {
    process::follow_parent()?;
    enter_namespace(cmdline)?;
    process::close_inherited();
    let options = options::parse(&cmdline.options, kind, cmdline.sloppy)?;
    let plan = Plan::check(kind, cmdline, options)?;
    plan.serve(program, true)
}

fn enter_namespace(cmdline: &Cmdline) -> Result<(), Failure> {
    cmdline.namespace.as_deref().map_or(Ok(()), process::enter_namespace)
}

/// A mount that has passed all checks.
struct Plan {
    kind: Type,
    options: Options,
    source: OsString,
    stack: Stack,
    point: HostDir,
}

impl Plan {
    fn check(kind: Type, cmdline: &Cmdline, options: Options) -> Result<Self, Failure> {
        let stack = Stack::check(kind, cmdline, &options)?;
        let point = HostDir::open(Role::MountPoint, &cmdline.dir)?;
        already_mounted::check_alive(&point)?;
        stack.check_again(&point)?;
        device::check()?;
        let source = source(kind, cmdline, &options);
        Ok(Self { kind, options, source, stack, point })
    }

    /// Mounts, reports readiness, and serves until unmounted.
    fn serve(self, program: &str, in_background: bool) -> Result<(), Failure> {
        let log_options = logging::LogOptions {
            level: self.options.log,
            file: self.options.logfile.as_deref(),
            background: in_background,
            last_resort: self.stack.warns(),
        };
        let level = logging::start(program, &log_options)?;
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        let stop = Stop::on_signals(in_background)?;
        let start = std::env::current_dir().unwrap_or_else(|_| "/".into());
        process::configure(program);
        let mut config = self.stack.config(&self.options, &self.point, &self.source, self.kind);
        versionfs::set_host(Arc::new(Host::new(self.point.real.clone())));
        cryptfs::set_host(Arc::new(crypt_host::Host { asked_by_parent: in_background, start }));
        let Ready { layer, report, written, live } = self.stack.build(&self.options)?;
        config.commands = vec![report.command(), debug::command(level), written.command()];
        config.commands.extend(live.iter().flat_map(Live::commands));
        let mounted = server::mount(layer, &config).map_err(|error| refused(&self.point, &error))?;
        let mounted = Arc::new(mounted);
        let point = self.point.real.clone();
        if let Some((live, device)) = live.as_ref().zip(live::device_of_mount(&point)) {
            live.set_device(device);
        }
        drop(live);
        // Closes the descriptors of the directories and of the mount point, so that they pin
        // nothing.
        drop(self);
        tracing::info!("{} mounted by {program}", point.display());
        if !fuse::proc_shows_callers() {
            tracing::warn!(
                "/proc belongs to another PID namespace: groups, sessions and programs of callers are unknown; \
                 mount the right one before: mount -t proc proc /proc"
            );
        }
        if stop.arm(&mounted) {
            signals::unmount(&mounted);
        } else if in_background {
            process::outlive_parent();
            background::ready().inspect_err(|_| signals::unmount(&mounted))?;
            namespace_end::watch(&mounted, &point);
        }
        mounted.wait();
        stop.disarm();
        signals::await_unmount(&mounted);
        let failure = mounted.session().failure();
        signals::drop_layers(mounted);
        if let Some(errno) = failure {
            return Err(Failure::system(format!(
                "{0}: can't read requests from /dev/fuse: {errno}; run `umount {0}` and mount it again",
                point.display()
            )));
        }
        tracing::info!("{} unmounted", point.display());
        Ok(())
    }
}

/// Returns the source that df(1) and findmnt(8) show.
fn source(kind: Type, cmdline: &Cmdline, options: &Options) -> OsString {
    if let Some(name) = options.fsname.as_ref().filter(|name| !name.is_empty()) {
        return name.clone();
    }
    // mount -a recognizes a mounted line of fstab by its source.
    let given = &cmdline.spec;
    let is_placeholder = given.is_empty() || (given == "none" && !matches!(kind, Type::Stack));
    if is_placeholder { kind.name().into() } else { given.clone() }
}

fn refused(point: &HostDir, error: &fuse::MountError) -> Failure {
    let not_permitted = matches!(error.errno(), Some(Errno::PERM | Errno::ACCESS));
    let (exit, remedy) = match not_permitted {
        true => (Exit::Usage, "; mount as root, in a container with CAP_SYS_ADMIN, or as the owner of the mount point"),
        false => (Exit::Mount, ""),
    };
    Failure { exit, reason: format!("{point}: {error}{remedy}").replace('\n', " ") }
}
