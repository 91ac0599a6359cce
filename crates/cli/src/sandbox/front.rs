//! The front process while the command runs: it serves the unions, forwards signals and hands the
//! terminal back.

use super::messages::{Message, Messages};
use super::namespaces::step;
use super::standard;
use crate::exit::{Failure, without_numbers};
use crate::progress;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use std::io::Write as _;
use std::os::fd::AsFd as _;

/// `si_code` of a signal that the kernel sent: typed at the terminal, or the terminal is gone. The
/// command has received it too.
const BY_KERNEL: i32 = 0x80;

/// Signals that are passed on to the command.
const FORWARDED: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Receives the signals for the command.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals, to be received by [`wait`]. To be called before threads are started.
    pub(super) fn block() -> Result<Self, Failure> {
        let failed = |errno: nix::errno::Errno| step("receive signals", Errno::from_raw_os_error(errno as i32));
        let mut signals = SigSet::empty();
        FORWARDED.into_iter().for_each(|signal| signals.add(signal));
        // Continues this process nevertheless.
        signals.add(Signal::SIGCONT);
        // Writing to the terminal from the background must not stop this process.
        let mut blocked = signals;
        blocked.add(Signal::SIGTTOU);
        blocked.thread_block().map_err(failed)?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self).map_err(failed)
    }

    /// Receives all signals, and passes those to the command that a process sent to this one alone.
    /// Returns whether this process was stopped and goes on.
    fn pass_on(&self, messages: &Messages) -> bool {
        let mut resumed = false;
        while let Ok(Some(signal)) = self.0.read_signal() {
            let number = i32::try_from(signal.ssi_signo).unwrap_or_default();
            if number == Signal::SIGCONT as i32 {
                resumed = true;
            } else if signal.ssi_code != BY_KERNEL {
                let _ended = messages.send(&Message::Signal(number));
            }
        }
        resumed
    }
}

/// Returns the signals that this process has blocked. To be called before [`Signals::block`].
pub(super) fn blocked() -> Vec<i32> {
    let mask = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
    mask.iter().map(|signal| signal as i32).collect()
}

/// Stops this process, as the command has stopped itself, so that the shell takes the terminal
/// back. The shell continues the whole process group, and with it the command.
fn stop() {
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGTSTP);
}

/// Waits for the end of the command, and returns its exit status.
pub(super) fn wait(messages: &Messages, signals: &Signals) -> Result<u8, Failure> {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(messages.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.0.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            polled => polled.map_err(|errno| step("wait for the command", errno))?,
        };
        let message = !fds[0].revents().is_empty();
        let resumed = signals.pass_on(messages);
        if !message {
            continue;
        }
        match messages.receive()? {
            Some((Message::Warning(warning), _)) => warn(&warning),
            // The terminal may have stopped the whole group, with this process.
            Some((Message::Stopped, _)) => messages.send(&Message::IsStopped)?,
            // This process may have been stopped since it looked.
            Some((Message::StillStopped, _)) if !resumed && !signals.pass_on(messages) => stop(),
            Some((Message::Failed(code, reason), _)) => return Err(failure(code, reason)),
            Some((Message::Ended(status, position), _)) => {
                standard::continue_at(position);
                return Ok(status);
            }
            Some(_) => {}
            None => return Err(Failure::system("the processes of the sandbox were killed")),
        }
    }
}

/// Returns a failure that another process reported.
pub(super) fn failure(code: u8, reason: String) -> Failure {
    use crate::exit::Exit;
    let exit = [Exit::NotFound, Exit::NotExecutable].into_iter().find(|exit| exit.code() == code);
    Failure { exit: exit.unwrap_or(Exit::SandboxFailed), reason }
}

/// Prints a warning.
pub(super) fn warn(warning: &str) {
    progress::erase();
    let _ = writeln!(std::io::stderr(), "strata run: {}", without_numbers(warning));
}

/// The terminal's foreground process group when this process began, if it was this process's own.
#[derive(Debug)]
pub(super) struct Foreground(Option<Pid>);

impl Foreground {
    pub(super) fn current() -> Self {
        // In a nested sandbox the group may be that of a process outside, which has no number here.
        let group = Pid::from_raw(nix::unistd::getpgrp().as_raw());
        let foreground = rustix::termios::tcgetpgrp(std::io::stdin()).ok();
        Self(foreground.filter(|foreground| Some(*foreground) == group))
    }

    /// Takes the terminal back from a shell that ran in the sandbox.
    pub(super) fn restore(&self) {
        if let Some(group) = self.0 {
            let _ = rustix::termios::tcsetpgrp(std::io::stdin(), group);
        }
    }
}
