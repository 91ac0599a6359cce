//! The thread that has failed replicas probed.

use crate::node::Core;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Stack of the thread, in bytes: it does next to nothing.
const STACK: usize = 64 << 10;

/// Starts it. It ends with the layer.
pub(crate) fn start(fs: &Arc<Core>) -> io::Result<()> {
    let (bell, fs) = (Arc::clone(fs.board.bell()), Arc::downgrade(fs));
    let run = move || {
        while let Some(next) = round(&fs) {
            if !bell.wait(next) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("lbfs-keeper".to_owned()).stack_size(STACK).spawn(run).map(drop)
}

/// Sends the probes that are due. Answers when to come again; `None`: the layer is gone.
fn round(fs: &Weak<Core>) -> Option<Option<Instant>> {
    let fs = fs.upgrade()?;
    for replica in fs.board.take_due(Instant::now()) {
        probe(&fs, replica);
    }
    Some(fs.board.next())
}

/// Has a replica probed by a thread of its own, which may hang.
fn probe(fs: &Arc<Core>, i: usize) {
    let Some(replica) = fs.replicas.get(i) else { return };
    let weak = Arc::downgrade(fs);
    let ask = move || {
        let Some(fs) = weak.upgrade() else { return };
        let Some(replica) = fs.replicas.get(i) else { return };
        let answer = replica.probe();
        if fs.board.probed(i, answer.is_ok(), Instant::now()) {
            replica.trust();
            tracing::info!("replica {} is back", replica.name);
        }
    };
    // Where the threads for that still wait for earlier probes, it fails by not being answered.
    replica.probes.submit_if_free(Box::new(ask));
}
