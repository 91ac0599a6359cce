//! The signals that ask the server to stop.
//!
//! The first unmounts: what is open stays usable, and the server ends with the last of it. After the next it ends at once:
//! the kernel answers errors for what is open then. Nothing is written half, and nothing that fsync(2) promised is lost.

use crate::exit::{Exit, Failure};
use core::time::Duration;
use nix::sys::signal::{SigSet, Signal};
use server::Mounted;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Who stops the server, and when.
#[derive(Debug, Default)]
pub struct Stop {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often.
    asked: u32,
    mounted: Option<Arc<Mounted>>,
}

/// How long a mount that is being made when a signal comes is waited for, or what has to be written, before the process just ends.
const PATIENCE: Duration = Duration::from_secs(5);

impl Stop {
    /// Takes SIGTERM and SIGINT from now on, and SIGHUP too (which, in the background, means nothing). To be called
    /// before other threads are started, since they inherit it.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn on_signals(background: bool) -> Result<Arc<Self>, Failure> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block().map_err(|errno| Failure::system(format!("can't take signals: {errno}")))?;
        let stop = Arc::new(Self::default());
        let watched = stop.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || watched.watch(&signals, background))
            .map_err(|error| Failure::system(format!("can't start a thread: {error}")))?;
        Ok(stop)
    }

    /// The mount is there: it can be stopped now. Answers whether that was asked for in the meantime.
    pub fn arm(&self, mounted: &Arc<Mounted>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.mounted = Some(mounted.clone());
        self.changed.notify_all();
        state.asked > 0
    }

    /// Drops the reference to the mount, which has ended. Its layers write their last records when they are dropped.
    pub fn disarm(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).mounted = None;
    }

    fn watch(&self, signals: &SigSet, background: bool) {
        loop {
            match signals.wait() {
                Ok(Signal::SIGHUP) if background => {}
                Ok(signal) => {
                    tracing::info!("{signal}: stopping");
                    self.stop();
                }
                Err(errno) => {
                    tracing::error!("signals can't be taken any more: {errno}");
                    return;
                }
            }
        }
    }

    /// Unmounts what is mounted. Where nothing is yet, and nothing comes, the process ends.
    fn stop(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked += 1;
        let again = state.asked > 1;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| state.mounted.is_none());
        let mounted = waited.unwrap_or_else(PoisonError::into_inner).0.mounted.clone();
        match mounted {
            Some(mounted) if again => end(mounted),
            Some(mounted) => unmount(&mounted),
            None => std::process::exit(Exit::Interrupted.code().into()),
        }
    }
}

/// Ends the server with what is open. The kernel ends the connection when nobody has the device open any more.
fn end(mounted: Arc<Mounted>) -> ! {
    tracing::warn!("asked again: what is still open answers errors from now on");
    let (done, synced) = std::sync::mpsc::channel();
    let sync = move || {
        // Of the mount: what programs have changed in memory comes by requests, which are still served.
        rustix::fs::sync();
        if let Err(errno) = mounted.sync() {
            tracing::error!("not all could be written: {errno}");
        }
        // If nobody waits any more, it took too long.
        let _ = done.send(());
    };
    let started = std::thread::Builder::new().name("sync".to_owned()).spawn(sync);
    if started.is_ok() && synced.recv_timeout(PATIENCE).is_err() {
        tracing::error!("what lies below does not answer: something may not have been written");
    }
    std::process::exit(Exit::Success.code().into())
}

/// Unmounts. What stands in the way is logged: nobody else is there to hear it.
pub fn unmount(mounted: &Mounted) {
    if let Err(error) = mounted.stop() {
        tracing::error!("{error}");
    }
}
