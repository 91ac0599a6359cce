//! Termination signals.
//!
//! The first signal unmounts lazily: open files stay usable, and the server exits when the last one
//! is closed. The second signal terminates the server at once, and operations on files that are
//! still open then fail. Neither leaves a partial write or loses data that fsync(2) has confirmed.

use crate::exit::{Exit, Failure};
use crate::logging;
use core::time::Duration;
use nix::sys::signal::{SigSet, Signal};
use server::Mounted;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Stops the server on termination signals.
#[derive(Debug, Default)]
pub struct Stop {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of termination signals so far.
    received: u32,
    mounted: Option<Arc<Mounted>>,
}

/// Time limit before the process exits anyway: for a mount in progress to finish after the first
/// signal, and for writing back data after the second.
const DEADLINE: Duration = Duration::from_secs(5);

impl Stop {
    /// Starts to handle SIGTERM, SIGINT and SIGHUP; in the background, SIGHUP opens the log file
    /// again. To be called before other threads are started, since threads inherit the signal mask.
    ///
    /// # Errors
    /// The signals can't be blocked, or the thread can't be started.
    pub fn on_signals(background: bool) -> Result<Arc<Self>, Failure> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block().map_err(|errno| Failure::system(format!("can't block signals: {errno}")))?;
        let stop = Arc::new(Self::default());
        let watched = stop.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || watched.watch(&signals, background))
            .map_err(|error| Failure::system(format!("can't start a thread: {error}")))?;
        Ok(stop)
    }

    /// Registers the mount, which signals unmount from now on. Returns whether a signal has already
    /// arrived.
    pub fn arm(&self, mounted: &Arc<Mounted>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.mounted = Some(mounted.clone());
        self.changed.notify_all();
        state.received > 0
    }

    /// Drops the reference to the mount, which has ended. Layers write their final records when
    /// they are dropped.
    pub fn disarm(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).mounted = None;
    }

    fn watch(&self, signals: &SigSet, background: bool) {
        loop {
            match signals.wait() {
                Ok(Signal::SIGHUP) if background => logging::reopen(),
                Ok(signal) => {
                    tracing::info!("{signal}: stopping");
                    self.stop();
                }
                Err(errno) => {
                    tracing::error!("can't wait for signals: {errno}; SIGTERM no longer unmounts");
                    return;
                }
            }
        }
    }

    /// Unmounts. If the mount does not complete within [`DEADLINE`], exits.
    fn stop(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.received += 1;
        let again = state.received > 1;
        let waited = self.changed.wait_timeout_while(state, DEADLINE, |state| state.mounted.is_none());
        let mounted = waited.unwrap_or_else(PoisonError::into_inner).0.mounted.clone();
        match mounted {
            Some(mounted) if again => end(mounted),
            Some(mounted) => unmount(&mounted),
            None => std::process::exit(Exit::Interrupted.code().into()),
        }
    }
}

/// Writes all data back and exits, although files are open. The kernel aborts the connection once
/// the device is closed.
fn end(mounted: Arc<Mounted>) -> ! {
    tracing::warn!("second signal: exiting now; operations on open files will fail");
    let (done, synced) = std::sync::mpsc::channel();
    let sync = move || {
        // The requests are still served. sync(2) would wait for all file systems of the machine.
        for written in [mounted.write_back(), mounted.sync()] {
            if let Err(errno) = written {
                tracing::error!("some changes could not be written: {errno}");
            }
        }
        // Fails if the receiver has timed out.
        let _ = done.send(());
    };
    let started = std::thread::Builder::new().name("sync".to_owned()).spawn(sync);
    if started.is_ok() && synced.recv_timeout(DEADLINE).is_err() {
        tracing::error!("the lower file systems do not respond: some changes may be lost");
    }
    std::process::exit(Exit::Success.code().into())
}

/// Waits until the thread that has unmounted is done with the mount: layers write their final
/// records when the last reference is dropped, which must be before the process exits.
pub fn await_unmount(mounted: &Arc<Mounted>) {
    let end = Instant::now() + DEADLINE;
    while Arc::strong_count(mounted) > 1 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Drops the layers after the end of their mount: they report and write what is left, and plugins
/// are closed.
pub fn drop_layers(mounted: Arc<Mounted>) {
    if !Arc::into_inner(mounted).is_some_and(|mounted| mounted.end(DEADLINE)) {
        tracing::debug!("some layers are still in use after the end of the mount");
    }
}

/// Unmounts and logs the error, since no caller is left to receive it.
pub fn unmount(mounted: &Mounted) {
    if let Err(error) = mounted.stop() {
        tracing::error!("{error}");
    }
}
