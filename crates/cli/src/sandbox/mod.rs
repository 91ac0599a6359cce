//! `strata run --sandbox`: runs a command on its own, writable view of the host.
//!
//! Three processes run a sandbox. They talk by [`messages`] over one socket pair:
//!
//! 1. The *front* ([`front`]) is the command that the user started. It stays in the host's
//!    namespaces and serves a union ([`view`]) for each mount of the host ([`survey`]): a branch of
//!    the sandbox ([`store`]) over the host's directory.
//! 2. The *namespace process* ([`namespaces`]) creates the namespaces and mounts the unions.
//! 3. The *init process* ([`init`]) completes the tree of mounts ([`assemble`]), restricts itself
//!    ([`confine`], [`filter`]) and runs the command.
//!
//! Each ends when the one before it ends, so no end leaves processes or mounts. [`mod@plan`] is
//! what they agree on. In a sandbox without root, [`owner`] adapts owners and modes. [`standard`]
//! guards the standard descriptors, [`loopback`] activates the interface of a sandbox without
//! network. [`outcome`] shows, commits or discards what was written, with [`ask`] and [`summary`];
//! [`remove_tree`] removes a sandbox, and [`temp_names`] makes commits possible where the host is
//! itself a union.

mod args;
mod ask;
mod assemble;
mod confine;
mod filter;
mod front;
mod init;
mod loopback;
mod messages;
mod namespaces;
mod outcome;
mod owner;
mod plan;
mod remove_tree;
mod stage;
mod standard;
mod store;
mod summary;
mod survey;
mod temp_names;
mod view;

pub(crate) use args::{HELP, RunArgs};

use crate::exit::{Exit, Failure};
use crate::tool::print;
use crate::{device, logging, process, tool};
use front::{Foreground, Signals};
use messages::{Message, Messages};
use plan::{Allowed, Plan};
use rustix::thread::CapabilitySet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use store::{Sandbox, Store};
use tracing::level_filters::LevelFilter;
use view::View;

/// `argv[0]` of the namespace process.
const NAMESPACES: &str = "strata-sandbox";
/// `argv[0]` of the init process.
const INIT: &str = "strata-sandbox-init";

/// Whether the program was started as a further process of a sandbox.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, NAMESPACES) || tool::is_called(program, INIT)
}

/// Runs a further process of a sandbox. Its first argument is the number of the descriptor for
/// messages; the others are the command.
#[must_use]
pub fn run_stage(args: &[OsString]) -> Exit {
    let number = args.get(1).and_then(|number| number.to_str()?.parse().ok());
    let Some(Ok(messages)) = number.map(Messages::inherited) else { return Exit::Usage };
    process::close_inherited_except(&messages);
    let command = args.get(2..).unwrap_or_default();
    if args.first().is_some_and(|name| tool::is_called(name.as_bytes(), INIT)) {
        init::run(&messages, command)
    } else {
        namespaces::run(&messages, command)
    }
}

/// Runs `strata run`, and returns the exit status.
///
/// # Errors
/// Wrong arguments; the sandbox failed.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    let store = Store::of(args.dir.as_deref())?;
    let Some(name) = &args.sandbox else { return list(&store, args.json).map(|()| 0) };
    let name = name.as_deref();
    name.map_or(Ok(()), store::check_name)?;
    if args.command.is_empty() {
        let name = name.ok_or_else(|| Failure::usage("no command given, and no sandbox to act on; see --help"))?;
        let found = store.open(name)?;
        let sandbox = found.ok_or_else(|| {
            Failure::usage(format!(
                "sandbox {name}: not found in {}; strata run --list shows all",
                store.path().display()
            ))
        })?;
        return outcome::act(sandbox, args);
    }
    run_command(&store, name, args)
}

fn run_command(store: &Store, name: Option<&str>, args: &RunArgs) -> Result<u8, Failure> {
    let of_sandbox = |failure: Failure| Failure { exit: Exit::SandboxFailed, ..failure };
    device::check_access().map_err(of_sandbox)?;
    standard::check().map_err(of_sandbox)?;
    let mut sandbox = match name.map(|name| store.open(name)).transpose()?.flatten() {
        Some(sandbox) => sandbox,
        None => store.create(name, &args.command).map_err(of_sandbox)?,
    };
    args.command.clone_into(&mut sandbox.record.command);
    let foreground = Foreground::current();
    let status = serve(store, &mut sandbox, args);
    foreground.restore();
    match status {
        Ok(status) => outcome::after(sandbox, args, status),
        Err(failure) => {
            outcome::forget(sandbox, args);
            Err(failure)
        }
    }
}

/// Runs the command, and serves its unions until all processes of the sandbox have ended.
fn serve(store: &Store, sandbox: &mut Sandbox, args: &RunArgs) -> Result<u8, Failure> {
    let of_sandbox = |failure: Failure| match failure.exit {
        Exit::NotFound | Exit::NotExecutable => failure,
        _ => Failure { exit: Exit::SandboxFailed, ..failure },
    };
    let mut plan = plan(store, sandbox, args)?;
    let (ours, theirs) = Messages::pair().map_err(of_sandbox)?;
    // Before this process changes its own umask, limits and signals, which the command inherits.
    let mut child = stage::spawn(NAMESPACES, &theirs, &args.command).map_err(of_sandbox)?;
    drop(theirs);
    let ended = talk(&ours, sandbox, &mut plan);
    // Ends the others, if they have not ended yet.
    drop(ours);
    let _ = child.wait();
    let (status, served) = ended.map_err(of_sandbox)?;
    served.end();
    status.map_err(of_sandbox)
}

/// Mounts the unions together with the other processes, and waits for the command.
fn talk(
    messages: &Messages,
    sandbox: &mut Sandbox,
    plan: &mut Plan,
) -> Result<(Result<u8, Failure>, view::Served), Failure> {
    // Before signals are blocked: this may wait for a mount.
    let mounts = survey::mounts();
    let signals = Signals::block()?;
    let log = logging::LogOptions {
        level: LevelFilter::WARN,
        file: Some(&sandbox.log()),
        background: true,
        last_resort: None,
    };
    logging::start("strata run", &log)?;
    process::configure("strata run");
    let view = View::build(sandbox, &mounts, plan.rootless)?;
    sandbox.save()?;
    view.refused.iter().for_each(|refused| front::warn(&format!("{refused}; hidden in the sandbox")));
    plan.unions = view.mounts();
    plan.shown.clone_from(&view.shown);
    messages.send(&Message::Plan(Box::new(plan.clone())))?;
    let devices = receive_devices(messages, plan.unions.len())?;
    let served = view.serve(devices, plan)?;
    messages.send(&Message::Served)?;
    messages.send(&Message::Plan(Box::new(plan.clone())))?;
    Ok((front::wait(messages, &signals), served))
}

fn receive_devices(messages: &Messages, count: usize) -> Result<Vec<std::os::fd::OwnedFd>, Failure> {
    let mut devices = Vec::new();
    while devices.len() < count {
        match messages.receive()? {
            Some((Message::Devices, more)) => devices.extend(more),
            Some((Message::Failed(code, reason), _)) => return Err(front::failure(code, reason)),
            _ => return Err(Failure::system("the process that creates the namespaces has ended")),
        }
    }
    Ok(devices)
}

/// Returns the plan, except for the mounts.
fn plan(store: &Store, sandbox: &Sandbox, args: &RunArgs) -> Result<Plan, Failure> {
    let failed = |reason: String| Failure { exit: Exit::SandboxFailed, reason };
    let cwd = std::env::current_dir().map_err(|error| failed(format!("the working directory is unknown: {error}")))?;
    let mut allowed = Vec::new();
    for path in &args.allow_write {
        allowed.push(allow("--allow-write", path)?);
    }
    for path in &args.allow_socket {
        let one = allow("--allow-socket", path)?;
        if !std::fs::metadata(&one.path).is_ok_and(|found| found.file_type().is_socket()) {
            return Err(Failure::usage(format!("--allow-socket {}: not a socket", path.display())));
        }
        allowed.push(one);
    }
    let home = store.path().canonicalize().map_err(|error| failed(format!("{}: {error}", store.path().display())))?;
    let terminal = rustix::termios::ttyname(std::io::stdin(), Vec::new()).ok();
    Ok(Plan {
        name: sandbox.name.clone(),
        view: sandbox.view().into_os_string(),
        cwd: cwd.into_os_string(),
        unions: Vec::new(),
        shown: Vec::new(),
        allowed,
        emptied: vec![home.into_os_string()],
        terminal: terminal.map(|name| std::os::unix::ffi::OsStringExt::from_vec(name.into_bytes())),
        rootless: is_rootless(),
        network: !args.no_network,
        blocked: front::blocked(),
        ids: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    })
}

/// Whether this process needs a user namespace to mount: it is not root, or root in a sandbox.
fn is_rootless() -> bool {
    let mounts = |sets: rustix::thread::CapabilitySets| sets.effective.contains(CapabilitySet::SYS_ADMIN);
    !rustix::thread::capabilities(None).is_ok_and(mounts)
}

/// Resolves a path of the host that the command may use.
fn allow(option: &str, path: &Path) -> Result<Allowed, Failure> {
    let refuse = |reason: String| Failure::usage(format!("{option} {}: {reason}", path.display()));
    let real: PathBuf = path.canonicalize().map_err(|error| refuse(error.to_string()))?;
    if ["/", "/proc", "/sys", "/dev"].iter().any(|whole| real == Path::new(whole)) {
        return Err(refuse("leaves nothing of the sandbox; choose a path in it".to_owned()));
    }
    let id = store::identify(&real).map_err(|errno| refuse(errno.to_string()))?;
    Ok(Allowed { path: real.into_os_string(), id })
}

fn list(store: &Store, json: bool) -> Result<(), Failure> {
    print(outcome::list(&store.list()?, json))
}
