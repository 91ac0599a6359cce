use crate::keyring::Keyring;
use core::time::Duration;
use parking_lot::Mutex;
use std::sync::Arc;

/// How often sessions and idle times are checked.
const PERIOD: Duration = Duration::from_secs(1);

/// The thread that withdraws keys whose session has ended or that were idle. It runs only while
/// there are keys.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    runs: Mutex<bool>,
}

impl Reaper {
    /// Starts the thread unless it runs.
    pub(crate) fn start(&self, keyring: &Arc<Keyring>) {
        let mut runs = self.runs.lock();
        if *runs {
            return;
        }
        let weak = Arc::downgrade(keyring);
        let thread = std::thread::Builder::new().name("key reaper".to_owned()).spawn(move || {
            loop {
                std::thread::sleep(PERIOD);
                let Some(keyring) = weak.upgrade() else { return };
                if !keyring.reap() && keyring.reaper().is_some_and(|reaper| reaper.stop(&keyring)) {
                    return;
                }
            }
        });
        match thread {
            Ok(_) => *runs = true,
            Err(error) => tracing::error!("keys of ended sessions are not withdrawn: can't start a thread: {error}"),
        }
    }

    /// Marks the thread as ended if there are still no keys.
    fn stop(&self, keyring: &Keyring) -> bool {
        let mut runs = self.runs.lock();
        // A key may have been added since: then `start` found the thread running.
        *runs = keyring.grants().is_ok_and(|grants| !grants.is_empty());
        !*runs
    }
}
