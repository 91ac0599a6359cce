//! The thread that schedules probes of failed replicas.

use crate::node::Core;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Stack size of the thread in bytes; it only schedules.
const STACK: usize = 64 << 10;

/// Starts the thread, which exits when the layer is dropped.
pub(crate) fn start(fs: &Arc<Core>) -> io::Result<()> {
    let (probe_signal, fs) = (Arc::clone(fs.health.probe_signal()), Arc::downgrade(fs));
    let run = move || {
        while let Some(next) = round(&fs) {
            if !probe_signal.wait(next) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("lbfs-prober".to_owned()).stack_size(STACK).spawn(run).map(drop)
}

/// Sends the due probes. Returns the time of the next ones; the outer `None` means that the layer
/// was dropped.
fn round(fs: &Weak<Core>) -> Option<Option<Instant>> {
    let fs = fs.upgrade()?;
    for replica in fs.health.take_due(Instant::now()) {
        probe(&fs, replica);
    }
    Some(fs.health.next())
}

/// Probes a replica on a pool thread, since the probe may hang.
fn probe(fs: &Arc<Core>, i: usize) {
    let Some(replica) = fs.replicas.get(i) else { return };
    let weak = Arc::downgrade(fs);
    let job = move || {
        let Some(fs) = weak.upgrade() else { return };
        let Some(replica) = fs.replicas.get(i) else { return };
        let result = replica.probe();
        if fs.health.probed(i, result.is_ok(), Instant::now()) {
            replica.record_success();
            tracing::info!("replica {}: recovered", replica.name);
        }
    };
    // If earlier probes still occupy the threads, this probe is not sent and fails by timeout.
    replica.probes.submit_if_free(Box::new(job));
}
