//! The init process: process 1 of the sandbox's PID namespace. It runs the command and ends with
//! it; the kernel then kills whatever the command left running.

use super::messages::{Message, Messages};
use super::namespaces::step;
use super::plan::Plan;
use super::standard::Input;
use super::{assemble, confine, stage, store};
use crate::exit::{Exit, Failure};
use crate::lower::cannot_run;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus};
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::process::Command;

/// Added to a signal's number in the exit status, as shells do.
const SIGNALLED: i32 = 128;

/// Runs the process. Failures are reported to the front.
pub(super) fn run(messages: &Messages, command: &[OsString]) -> Exit {
    // Otherwise ps(1) would show the number of the descriptor that it was executed from.
    let _ = rustix::thread::set_name(c"strata-init");
    let ended = match start(messages, command) {
        Ok(running) => match running.wait(messages) {
            Ok(status) => Message::Ended(status, running.input.position()),
            Err(failure) => Message::Failed(failure.exit.code(), failure.reason),
        },
        Err(failure) => Message::Failed(failure.exit.code(), failure.reason),
    };
    let _front_has_ended = messages.send(&ended);
    Exit::Success
}

/// The signals with which a program hands the terminal back to the shell.
const JOB_CONTROL: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// The command in progress.
struct Running {
    pid: Pid,
    children: SignalFd,
    input: Input,
}

fn start(messages: &Messages, command: &[OsString]) -> Result<Running, Failure> {
    stage::die_with_parent(None)?;
    let Some((Message::Plan(plan), _)) = messages.receive()? else {
        return Err(Failure::system("the front process has ended"));
    };
    for warning in assemble::enter(&plan)? {
        messages.send(&Message::Warning(warning))?;
    }
    let input = Input::reopen()?;
    if let Some(warning) = confine(&plan)? {
        messages.send(&Message::Warning(warning))?;
    }
    // The namespace process has blocked more, which a new process would inherit.
    let blocked = plan.blocked.iter().filter_map(|&signal| Signal::try_from(signal).ok()).collect::<SigSet>();
    blocked.thread_set_mask().map_err(failed)?;
    let (program, args) = command.split_first().ok_or_else(|| Failure::usage("no command given"))?;
    let child = Command::new(program)
        .args(args)
        .env(store::ENVIRONMENT, &plan.name)
        .spawn()
        .map_err(|error| cannot_run(program, &error))?;
    // Should the command have ended already: the first look at the children does not wait.
    let children = children()?;
    messages.send(&Message::Started)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::system("the command has no process ID"))?;
    Ok(Running { pid, children, input })
}

fn confine(plan: &Plan) -> Result<Option<String>, Failure> {
    confine::apply(plan.network)
}

/// Returns a descriptor that is readable when a child has ended.
fn children() -> Result<SignalFd, Failure> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.thread_block().map_err(failed)?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(failed)
}

fn failed(errno: nix::errno::Errno) -> Failure {
    step("wait for processes", Errno::from_raw_os_error(errno as i32))
}

impl Running {
    /// Waits for the end of the command, and returns its exit status. Forwards signals meanwhile.
    fn wait(&self, messages: &Messages) -> Result<u8, Failure> {
        let (mut is_stopped, mut asked) = (false, false);
        loop {
            match self.reap() {
                Reaped::Ended(status) => return Ok(status),
                Reaped::Stopped => {
                    is_stopped = true;
                    messages.send(&Message::Stopped)?;
                }
                Reaped::Continued => is_stopped = false,
                Reaped::Others => {}
            }
            if std::mem::take(&mut asked) && is_stopped {
                messages.send(&Message::StillStopped)?;
            }
            let mut fds = [
                PollFd::from_borrowed_fd(self.children.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(messages.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                polled => polled.map_err(|errno| step("wait for processes", errno))?,
            };
            let [children, front] = fds.map(|fd| !fd.revents().is_empty());
            if children {
                while let Ok(Some(_)) = self.children.read_signal() {}
            }
            if front {
                asked = self.answer(messages)?;
            }
        }
    }

    /// Forwards a signal to the command. Returns whether the front asks if the command is stopped.
    fn answer(&self, messages: &Messages) -> Result<bool, Failure> {
        match messages.receive()? {
            Some((Message::Signal(number), _)) => {
                let _ended = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(self.pid.as_raw_nonzero().get()),
                    Signal::try_from(number).ok(),
                );
                Ok(false)
            }
            Some((message, _)) => Ok(matches!(message, Message::IsStopped)),
            // This process ends, and with it all others of the namespace.
            None => Err(Failure::system("the front process has ended")),
        }
    }

    /// Reaps all children that have ended.
    fn reap(&self) -> Reaped {
        let mut found = Reaped::Others;
        let events = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        while let Ok(Some((pid, status))) = rustix::process::wait(events) {
            if pid != self.pid {
                continue;
            }
            match status.stopping_signal() {
                Some(signal) if JOB_CONTROL.map(|signal| signal as i32).contains(&signal) => found = Reaped::Stopped,
                Some(_) => {}
                None if status.continued() => found = Reaped::Continued,
                None => found = Reaped::Ended(status_of(status)),
            }
        }
        found
    }
}

/// What happened to the command.
enum Reaped {
    /// It has ended, with this exit status.
    Ended(u8),
    /// It has stopped itself, or the terminal has stopped it.
    Stopped,
    /// It was continued.
    Continued,
    /// Nothing. Other processes may have ended.
    Others,
}

fn status_of(status: WaitStatus) -> u8 {
    let status = match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => status,
        (None, Some(signal)) => SIGNALLED + signal,
        (None, None) => i32::from(Exit::SandboxFailed.code()),
    };
    u8::try_from(status & 0xff).unwrap_or(u8::MAX)
}
