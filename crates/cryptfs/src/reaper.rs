use core::time::Duration;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// How often sessions and idle times are checked.
const PERIOD: Duration = Duration::from_secs(1);

/// Keys that a [`Reaper`] withdraws.
pub(crate) trait Reaped: Send + Sync + 'static {
    /// Withdraws the keys of sessions that have ended, and those unused for too long.
    fn reap(&self);

    /// Whether any keys remain.
    fn is_needed(&self) -> bool;

    /// Returns the thread that calls these.
    fn reaper(&self) -> Option<&Reaper>;
}

/// The thread that withdraws keys whose session has ended or that were idle. It runs only while
/// there are keys.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    runs: Mutex<bool>,
}

impl Reaper {
    /// Starts the thread unless it runs.
    pub(crate) fn start<K: Reaped>(&self, keys: &Arc<K>) {
        let mut runs = self.runs.lock();
        if *runs {
            return;
        }
        let weak = Arc::downgrade(keys);
        match std::thread::Builder::new().name("key reaper".to_owned()).spawn(move || run(&weak)) {
            Ok(_) => *runs = true,
            Err(error) => tracing::error!("keys of ended sessions are not withdrawn: can't start a thread: {error}"),
        }
    }

    /// Marks the thread as ended if there are still no keys.
    fn stop(&self, keys: &impl Reaped) -> bool {
        let mut runs = self.runs.lock();
        // A key may have been added since: then `start` found the thread running.
        *runs = keys.is_needed();
        !*runs
    }
}

fn run<K: Reaped>(weak: &Weak<K>) {
    loop {
        std::thread::sleep(PERIOD);
        let Some(keys) = weak.upgrade() else { return };
        keys.reap();
        if !keys.is_needed() && keys.reaper().is_none_or(|reaper| reaper.stop(&*keys)) {
            return;
        }
    }
}
