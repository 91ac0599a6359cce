//! The signals that ask the server to stop.

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
    asked: bool,
    mounted: Option<Arc<Mounted>>,
}

/// How long a mount that is being made when a signal comes is waited for, before the process just ends.
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
        state.asked
    }

    fn watch(&self, signals: &SigSet, background: bool) {
        loop {
            match signals.wait() {
                Ok(Signal::SIGHUP) if background => {}
                Ok(signal) => {
                    tracing::info!("{signal}: unmounting");
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
        state.asked = true;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| state.mounted.is_none());
        let mounted = waited.unwrap_or_else(PoisonError::into_inner).0.mounted.clone();
        match mounted {
            Some(mounted) => unmount(&mounted),
            None => std::process::exit(Exit::Interrupted.code().into()),
        }
    }
}

/// Unmounts. What stands in the way is logged: nobody else is there to hear it.
pub fn unmount(mounted: &Mounted) {
    if let Err(error) = mounted.stop() {
        tracing::error!("{error}");
    }
}
